"""Grouped products beside torch's, and beside one product of as many operations: uneven groups of rows, graph replay.

    python -m measurements.grouped                on a machine with an H100 or H200, and torch
    python -m measurements.grouped --seed 606     products that a seed draws, of 8 and of 64 groups

Results are compared before anything is timed. Writes grouped.json and grouped.md; for drawn products, grouped_drawn.json and
grouped_drawn.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gemmgen import ops
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.gemm.cublaslt import Product
from gemmgen.kernels.gemm.peer import fastest_product, operand
from gemmgen.perf.contestants import median_seconds
from measurements.grouped_bounds import uneven_ends

CASES = (
    (8, 8192, 4096, 4096),
    (16, 8192, 4096, 4096),
    (32, 16384, 4096, 4096),
    (64, 32768, 2048, 4096),
    (128, 65536, 2048, 2048),
    (8, 4096, 7168, 2048),
    (64, 8192, 4096, 2048),
    (128, 8192, 2048, 4096),
)
"""(groups, m, n, k)."""
GROUPS = (8, 64)
DRAWN = 5
"""Products that a seed draws for each number of groups."""
WIDTHS = (1536, 2048, 2560, 3072, 4096, 5120, 7168)
ROUNDS = 15
BANDWIDTH = 4.8e12
"""Bytes a second of an H200's memory, as its data sheet says."""


def drawn(seed: int) -> list[tuple[int, int, int, int]]:
    """Cases of a seed, with 128 to 1,024 rows for each group of 8, and 64 to 512 for each of 64, on average."""
    rng = random.Random(seed)
    cases = [(groups, groups * rng.choice((64, 128, 256, 512)) * (2 if groups == 8 else 1)) for _ in range(DRAWN) for groups in GROUPS]
    return [(groups, m, rng.choice(WIDTHS), rng.choice(WIDTHS)) for groups, m in cases]


def measured(groups: int, m: int, n: int, k: int, kind: str) -> dict[str, Any]:
    """One case; raises ``AssertionError`` if results differ from torch's by more than the type's rounding."""
    torch.manual_seed(groups)
    made: Any = getattr(torch, kind)
    a = torch.randn(m, k, device="cuda").to(made)
    b = torch.empty(groups, n, k, device="cuda", dtype=made)
    for matrix in b:
        matrix.copy_(torch.randn(n, k, device="cuda"))
    ends = torch.from_numpy(uneven_ends(groups, m)).cuda()
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    one = torch.empty_like(out)
    views = b.transpose(1, 2)
    scales: dict[str, Any] = {}
    if kind != "bfloat16":
        scales = {"scale_a": torch.rand(m, device="cuda") + 0.5, "scale_b": torch.rand(groups, n, device="cuda") + 0.5}
    start = 0
    ops.grouped_matmul(a, views, ends, out=out, **scales)
    for index, end in enumerate(ends.tolist()):
        want = a[start:end].float() @ b[index].float().T
        if scales:
            want = want * scales["scale_a"][start:end, None] * scales["scale_b"][index]
        torch.testing.assert_close(out[start:end].float(), want, rtol=2e-2, atol=0.02 * k**0.5)
        start = end
    whole = {"scale_a": scales["scale_a"], "scale_b": scales["scale_b"][0].contiguous()} if scales else {}
    calls: dict[str, Callable[[], Any]] = {
        "grouped": lambda: ops.grouped_matmul(a, views, ends, out=out, **scales),
        "one product": lambda: ops.matmul(a, views[0], out=one, **whole),
    }
    if not scales:
        calls["torch, one product"] = lambda: torch.matmul(a, views[0], out=one)
    refused = ""

    def peer() -> Any:
        if not scales:
            return torch._grouped_mm(a, views, offs=ends)
        return torch._scaled_grouped_mm(a, views, scale_a=scales["scale_a"], scale_b=scales["scale_b"], offs=ends, out_dtype=torch.bfloat16)

    try:
        peer()
        calls["torch"] = peer
    except (AttributeError, RuntimeError) as error:
        refused = str(error).splitlines()[0]
    alone = one_by_one(a, views, ends.tolist(), one, kind)
    if not isinstance(alone, str):
        calls["cuBLASLt, group by group"] = alone
    ways = {name: lambda index, call=call: call() for name, call in calls.items()}
    times = {name: seconds * 1e6 for name, seconds in median_seconds(torch, ways, rounds=ROUNDS).items()}
    operations = 2.0 * m * n * k
    size = a.element_size()
    roof = (m * k * size + groups * n * k * size + m * n * 2) / BANDWIDTH * 1e6
    return {
        "type": kind,
        "groups": groups,
        "m": m,
        "n": n,
        "k": k,
        "microseconds": {name: round(time, 2) for name, time in times.items()},
        "tflops": round(operations / times["grouped"] / 1e6, 1),
        "of_one_product": round(times["one product"] / times["grouped"], 3),
        "of_torch": round(times["torch"] / times["grouped"], 3) if "torch" in times else None,
        "torch_refused": refused,
        "of_best_peer": _of_best_peer(times),
        "memory_microseconds": round(roof, 2),
    }


PEERS = ("torch", "cuBLASLt, group by group")
BYTE_ROWS = 16
"""Rows of 8-bit products are a multiple of this, which cuBLASLt needs."""


def one_by_one(a: Any, views: Any, ends: list[int], out: Any, kind: str) -> Callable[[], Any] | str:
    """A launch of cuBLASLt for each group, by the fastest of its algorithms; the reason why there is none. Without scales, and with the
    rows of a group rounded down to a multiple that cuBLASLt accepts: the peer does no more than is asked for."""
    types = ("bf16", "bf16") if kind == "bfloat16" else ("e4m3", "bf16")
    unit = 1 if kind == "bfloat16" else BYTE_ROWS
    peers, start = [], 0
    for index, end in enumerate(ends):
        rows = (end - start) // unit * unit
        if rows:
            parts = a[start : start + rows], views[index], out[start : start + rows]
            product = Product(operand(parts[0], types[0]), operand(parts[1], types[0]), operand(parts[2], types[1]), "none")
            made = fastest_product(product, parts, None, 1.0, 0.0)
            if isinstance(made, str):
                return made
            peers.append(made)
        start = end

    def run() -> None:
        for made in peers:
            made.run()

    return run


def _of_best_peer(times: dict[str, float]) -> float | None:
    found = [times[name] for name in PEERS if name in times]
    return round(min(found) / times["grouped"], 3) if found else None


LOSSES = (
    "Groups end within a tile. Groups of warps that have no rows of it let it pass, and a counter deals tiles out, so that the end",
    "of a group costs about half a tile where it fills no more than half: 512 rows lose 32 on average, in tiles of 128 rows and two",
    "groups of warps. Such a tile loads as much of B for half of the products, and the last tiles do not end together, which accounts",
    "for the rest. Tiles distributed round-robin are 3 to 7% slower in bfloat16; half-filled tiles last are slower still",
    "(0.78 to 0.87 of one product), since they find no B in the L2. Tiles of 128 x 256, which the model has taken for all rows in",
    "bfloat16 since this run, reached 0.92, 0.90, 0.91, 0.92, 0.91 and 0.88 of one product in another of the same day, down the table.",
    "How much is missing depends on the power that one product draws: it ran at 650 to 780 TFLOP/s for the first shape in two runs.",
    "[grouped_bounds.md](grouped_bounds.md) has an account of these losses by shape.",
)


def means(rows: list[dict[str, Any]]) -> list[str]:
    """Geometric mean and least of the better peer's time over ours, by type."""
    lines = ["| type | products | × the better peer, geometric mean | least |", "|---|---:|---:|---:|"]
    for kind in dict.fromkeys(row["type"] for row in rows):
        ratios = [row["of_best_peer"] for row in rows if row["type"] == kind]
        lines.append(f"| {kind} | {len(ratios)} | {statistics.geometric_mean(ratios):.2f} | {min(ratios):.2f} |")
    return lines


def table(rows: list[dict[str, Any]], header: str, drawn: bool = False) -> str:
    """The rows as a page; ``drawn``: with means, in place of the losses of the cases that are always measured."""
    lines = [
        "# Grouped products",
        "",
        header,
        "",
        "Rows in uneven groups, one of them empty, each with its own matrix, in one launch (`ops.grouped_matmul`).",
        "*Of one product*: the rate as a part of that of one product with as many rows (`ops.matmul`), which reads a single matrix;",
        "*memory*: the time that the matrices take from memory at its full rate, below which no launch with so many of them can be.",
        "*Of the floor*: the longer of these two times over that of the groups. *The better peer*: the faster of torch's grouped product",
        "and of cuBLASLt called for each group, with the fastest of its algorithms and without scales.",
        "",
    ]
    lines += means(rows) if drawn else LOSSES
    lines += [
        "",
        "| type | groups | m | n | k | µs | TFLOP/s | of one product | of the floor | × torch's grouped | × the better peer | memory, µs |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        peer = "–" if row["of_torch"] is None else f"{row['of_torch']:.2f}"
        better = "–" if row.get("of_best_peer") is None else f"{row['of_best_peer']:.2f}"
        times = row["microseconds"]
        floor = max(times["one product"], row["memory_microseconds"]) / times["grouped"]
        lines.append(
            f"| {row['type']} | {row['groups']} | {row['m']} | {row['n']} | {row['k']} | {row['microseconds']['grouped']:.1f} | "
            f"{row['tflops']:.0f} | {row['of_one_product']:.2f} | {floor:.2f} | {peer} | {better} | {row['memory_microseconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures all cases and writes both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="draws the cases")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further case after so long")
    parser.add_argument("--out", type=Path, default=Path("measurements"))
    given = parser.parse_args()
    cases = CASES if given.seed is None else drawn(given.seed)
    rows, began = [], time.monotonic()
    for case in cases:
        for kind in ("bfloat16", "float8_e4m3fn"):
            if time.monotonic() - began > given.seconds:
                break
            try:
                rows.append(measured(*case, kind))
            except (GemmgenError, AssertionError) as error:
                print(kind, case, error, flush=True)
                raise SystemExit(1) from None
            print(json.dumps(rows[-1]), flush=True)
    rows.sort(key=lambda row: row["type"])
    device = torch.cuda.get_device_name()
    today = datetime.now(UTC).date().isoformat()
    stem, of_seed = ("grouped", "") if given.seed is None else ("grouped_drawn", f", seed {given.seed}")
    data = {"device": device, "date": today, "torch": torch.__version__, "seed": given.seed, "rows": rows}
    (given.out / f"{stem}.json").write_text(json.dumps(data, indent=1) + "\n")
    header = f"{device}, {today}, torch {torch.__version__}{of_seed}; medians of {ROUNDS} graphs in turns."
    (given.out / f"{stem}.md").write_text(table(rows, header, given.seed is not None))


if __name__ == "__main__":
    main()
