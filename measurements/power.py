"""Products at the power limit: time, clock and power of ``ops.matmul`` and of cuBLASLt's fastest algorithm, each alone, on several data.

    python -m measurements.power                  on a machine with a GPU and torch

Each runs by itself for three quarters of a second at a time, in the order ours, peer, peer, ours, while ``nvidia-smi`` samples the clock
and the power; the first part of each time, in which both settle, does not count. Data: random, random with the eight significant bits that
bfloat16 has, and zeros. Writes power.json and .md beside this file.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.files import write_atomically
from gemmgen.kernels.gemm.cublaslt import Product
from gemmgen.kernels.gemm.peer import fastest_product, operand
from gemmgen.perf.contestants import median_seconds

HERE = Path(__file__).resolve().parent
SHAPES = ((4608, 4608, 4608), (384, 28672, 8192), (1024, 6144, 9216), (64, 14336, 5632))
DATA = (("bf16", "random"), ("f16", "random"), ("f16", "8 bits"), ("bf16", "zeros"))
BYTE_SHAPES = ((4096, 28672, 4096), (7680, 7680, 7680))
BYTE_DATA = (("s8", "random"), ("s8", "zeros"))
TORCH = {"bf16": "bfloat16", "f16": "float16", "s8": "int8"}
RESULTS = {"s8": ("s32", "int32")}
"""Types of results that differ from the factors'."""
ORDER = ("ours", "peer", "peer", "ours")
SETS_BYTES, MAX_SETS = 160 << 20, 24
GRAPH_SECONDS, GRAPHS = 8e-3, 20
SAMPLE_MILLISECONDS = 20
QUERY = "--query-gpu=clocks.sm,power.draw.instant"


@dataclass
class Row:
    """One product on one kind of data: microseconds, megahertz and watts, by contestant."""

    shape: tuple[int, int, int]
    type: str
    data: str
    in_turns: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    megahertz: dict[str, float] = field(default_factory=dict)
    watts: dict[str, float] = field(default_factory=dict)


class Sampler:
    """Clock and power of a GPU, as ``nvidia-smi`` samples them."""

    def __init__(self, lines: Any) -> None:
        self._samples: list[tuple[float, float, float]] = []
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Any) -> None:
        for clock, power in csv.reader(lines):
            self._samples.append((time.monotonic(), float(clock), float(power)))

    def means(self, since: float) -> tuple[float, float]:
        """Mean clock and power since a time."""
        found = [(clock, power) for at, clock, power in self._samples if at >= since]
        return tuple(statistics.mean(column) for column in zip(*found, strict=True)) if found else (float("nan"),) * 2


@contextmanager
def sampler(gpu: str) -> Iterator[Sampler]:
    """Samples while the block runs."""
    command = ["nvidia-smi", "-i", gpu, QUERY, "--format=csv,noheader,nounits", f"-lms={SAMPLE_MILLISECONDS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Sampler(process.stdout)
        finally:
            process.terminate()


def measure(torch: Any, shape: tuple[int, int, int], kind: str, data: str, samples: Sampler) -> Row:
    """Times one product on one kind of data."""
    m, n, k = shape
    factor = getattr(torch, TORCH[kind])
    result, stored = RESULTS.get(kind, (kind, TORCH[kind]))
    sets = max(1, min(MAX_SETS, SETS_BYTES // ((m * k + k * n) * factor.itemsize) + 1))

    def matrix(rows: int, columns: int) -> Any:
        if kind == "s8":
            least, most = (0, 1) if data == "zeros" else (-100, 100)
            return torch.randint(least, most, (rows, columns), dtype=factor, device="cuda")
        made = torch.randn((rows, columns), device="cuda") / 4
        return (torch.zeros_like(made) if data == "zeros" else made.bfloat16() if data == "8 bits" else made).to(factor)

    a, b = [matrix(m, k) for _ in range(sets)], [matrix(n, k).t() for _ in range(sets)]
    own, theirs = (torch.empty((m, n), dtype=getattr(torch, stored), device="cuda") for _ in range(2))
    product = Product(operand(a[0], kind), operand(b[0], kind), operand(own, result), "none")
    peers: list[Any] = [fastest_product(product, (a[index], b[index], theirs), None, 1.0, 0.0) for index in range(sets)]
    calls: dict[str, Callable[[int], Any]] = {
        "ours": lambda index: ops.matmul(a[index], b[index], out=own),
        "peer": lambda index: peers[index].run(),
    }
    row = Row(shape, kind, data)
    turns = median_seconds(torch, calls, sets=sets, rounds=15, graph_seconds=2e-3)
    row.in_turns = {name: seconds * 1e6 for name, seconds in turns.items()}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    for name in ORDER:
        median_seconds(torch, {name: calls[name]}, sets=sets, rounds=GRAPHS, graph_seconds=GRAPH_SECONDS)
        seconds = median_seconds(torch, {name: calls[name]}, sets=sets, rounds=GRAPHS, graph_seconds=GRAPH_SECONDS)[name]
        found[name].append((seconds * 1e6, *samples.means(time.monotonic() - GRAPHS * GRAPH_SECONDS)))
    for name, runs in found.items():
        row.alone[name], row.megahertz[name], row.watts[name] = (statistics.mean(column) for column in zip(*runs, strict=True))
    return row


def report(data: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Products at the power limit",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}; `python -m measurements.power` makes this file. gemmgen /",
        "cuBLASLt's fastest algorithm. *In turns*: graphs of 2 ms, one after the other, as in the tables of products, both at one",
        "clock. *Alone*: each for three quarters of a second at a time, at the clock that its own power allows. *8 bits*: float16 with",
        "the significant bits of bfloat16.",
        "",
        "| m × n × k | type | data | in turns, µs | ratio | alone, µs | ratio | MHz | W |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in data["rows"]:

        def pair(name: str, digits: int, row: dict[str, Any] = row) -> str:
            return " / ".join(f"{row[name][who]:.{digits}f}" for who in ("ours", "peer"))

        ratios = [row[name]["peer"] / row[name]["ours"] for name in ("in_turns", "alone")]
        lines.append(
            f"| {' × '.join(map(str, row['shape']))} | {row['type']} | {row['data']} | {pair('in_turns', 1)} | {ratios[0]:.3f} "
            f"| {pair('alone', 1)} | {ratios[1]:.3f} | {pair('megahertz', 0)} | {pair('watts', 0)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, and writes both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", default="0", help="the GPU, as nvidia-smi counts")
    parser.add_argument("--seconds", type=float, default=120.0, help="no product is begun after this time")
    parser.add_argument("--out", type=Path, default=HERE / "power.json")
    arguments = parser.parse_args()
    import torch

    began, rows = time.monotonic(), list[dict[str, Any]]()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    found = {"device": torch.cuda.get_device_name(), "date": date, "torch": torch.__version__, "rows": rows}
    cases = [(shape, *data) for shapes, kinds in ((BYTE_SHAPES, BYTE_DATA), (SHAPES, DATA)) for shape in shapes for data in kinds]
    with sampler(arguments.gpu) as samples:
        for shape, kind, data in cases:
            if time.monotonic() - began < arguments.seconds:
                rows.append(asdict(measure(torch, shape, kind, data, samples)))
                print(rows[-1], flush=True)
                write_atomically(arguments.out, (json.dumps(found, indent=1) + "\n").encode())
                write_atomically(arguments.out.with_suffix(".md"), report(found).encode())


if __name__ == "__main__":
    main()
