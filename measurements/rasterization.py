"""The order in which persistent blocks take tiles: products on tensor cores by several bands of tiles, beside torch.

    python -m measurements.rasterization                  on a machine with an H100 or H200, and torch

Each instance is compiled once for every order, verified, and timed by CUDA graphs that are replayed in turns on arrays beyond the L2.
Writes rasterization.json and rasterization.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmgen.api import plan
from gemmgen.kernels import family_of
from gemmgen.perf.benchmark import Candidate, benchmark
from gemmgen.runtime.cuda.driver import gpu
from gemmgen.toolchain.compilation import compile_plan

HERE = Path(__file__).resolve().parent
INSTANCES = ("gemm/wgmma/bf16/128x256", "gemm/wgmma/bf16/192x192", "gemm/wgmma/fp8/128x256", "gemm/wgmma/int8/128x192")
ORDERS = (("minor", 1), ("minor", 2), ("minor", 4), ("minor", 8), ("minor", 16), ("minor", 32), ("major", 8), ("major", 32))
"""Direction of a band of tiles, and its width in tiles; the shipped instances have bands of 8 along the minor direction."""
SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 2048),
    (2048, 32768, 4096),
    (32768, 2048, 4096),
    (16384, 4096, 8192),
    (3072, 5120, 7168),
    (6144, 6144, 1024),
)


@dataclass
class Row:
    """One instance on one shape: microseconds by order, and of the peer."""

    instance: str
    shape: tuple[int, int, int]
    peer_us: float
    times: dict[str, float] = field(default_factory=dict)

    @property
    def spread(self) -> float:
        """The slowest order's time over the fastest's, less 1."""
        return max(self.times.values()) / min(self.times.values()) - 1

    @property
    def lost(self) -> float:
        """Time of the shipped order over the fastest's, less 1."""
        return self.times["minor 8"] / min(self.times.values()) - 1


def made(job: tuple[str, tuple[str, int]]) -> Candidate:
    """An instance with an order, compiled."""
    name, (along, group) = job
    changes = (f"rasterization={{along: {along}, group: {group}}}",)
    planned = plan(name, gpu(0).architecture, changes)
    return Candidate(planned, compile_plan(planned))


def markdown(about: dict[str, Any], rows: list[Row]) -> str:
    """The table."""
    orders = [f"{along} {group}" for along, group in ORDERS]
    lines = [
        "# The order of tiles",
        "",
        f"Products on tensor cores by bands of tiles, {about['device']}, {about['date']}. Persistent blocks take tiles band by band;",
        "`minor 8`, as shipped, is eight tiles wide along the shorter direction. Microseconds, medians, arrays rotated beyond the L2.",
        f"The shipped order takes {max(row.lost for row in rows):.1%} longer than the fastest at most, "
        f"{sum(row.lost for row in rows) / len(rows):.1%} on average: orders are no parameter of the choice.",
        "",
        f"| instance | m × n × k | torch | {' | '.join(orders)} | shipped / fastest |",
        "|---|---|---:|" + "---:|" * (len(orders) + 1),
    ]
    for row in rows:
        cells = " | ".join(f"{row.times[order]:.1f}" if order in row.times else "" for order in orders)
        lines.append(f"| {row.instance} | {' × '.join(map(str, row.shape))} | {row.peer_us:.1f} | {cells} | {1 + row.lost:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no further shape after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    started = time.monotonic()
    jobs = [(name, order) for name in INSTANCES for order in ORDERS]
    with ThreadPoolExecutor(8) as pool:
        candidates = dict(zip(jobs, pool.map(made, jobs), strict=True))
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    rows: list[Row] = []
    for shape in SHAPES:
        for name in INSTANCES:
            if time.monotonic() - started > arguments.seconds:
                break
            tried = {order: candidates[name, order] for order in ORDERS}
            names = {one.plan.name: f"{along} {group}" for (along, group), one in tried.items()}
            problem = family_of(tried[ORDERS[0]].plan.spec).problem(tried[ORDERS[0]].plan, shape)
            timings = benchmark([*tried.values()], problem, rounds=5).timings
            peers = [timing.median_us for timing in timings if timing.kind == "peer"]
            times = {names[timing.name]: round(timing.median_us, 2) for timing in timings if timing.name in names}
            rows.append(Row(name, shape, round(min(peers, default=float("nan")), 2), times))
            print(f"{name} {shape}: {rows[-1].times}, shipped {rows[-1].lost:.1%} above the fastest", flush=True)
    about = {"device": gpu(0).name, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "rasterization.json").write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    (arguments.output / "rasterization.md").write_text(markdown(about, rows))


if __name__ == "__main__":
    main()
