"""Row reductions of drawn shapes beside torch: CUDA graphs in turns, seeds, mean and worst.

    python measurements/row_reductions.py                    # 25 fixed and drawn shapes beside eager torch, about 60 s on a GPU
    python measurements/row_reductions.py --compiled         # beside torch.compile (max-autotune) too, which compiles for minutes
    python measurements/row_reductions.py --seed 7 --drawn 40

A ratio is torch's time over ours: above 1, ours is faster. Each graph holds as many calls as take about 200 us; the graphs take turns,
and the median of the turns counts. Arrays are larger than the L2, or several of them take turns where one is not.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.perf.contestants import median_seconds

FIXED = (
    ("argmax", 8192, 4096, "bfloat16"),
    ("argmin", 8192, 4095, "float16"),
    ("mean_variance", 8192, 4096, "bfloat16"),
    ("logsumexp", 8192, 4096, "bfloat16"),
    ("logsumexp", 2048, 1000, "float32"),
    ("sum", 2048, 1000, "float32"),
    ("any", 4096, 4099, "int8"),
    ("max", 4096, 4099, "bfloat16"),
    ("mean", 8192, 4096, "float32"),
    ("l2_norm", 8192, 4096, "bfloat16"),
)
OPERATIONS = ("sum", "mean", "max", "min", "argmax", "argmin", "any", "l2_norm", "logsumexp", "mean_variance")
TYPES = ("float32", "float16", "bfloat16", "int8")
ROTATED_BYTES = 256 << 20
TURNS = 15


@dataclass(frozen=True)
class Row:
    """Times of one case, in microseconds, of one call."""

    operation: str
    rows: int
    columns: int
    type: str
    ours: float
    torch: float
    compiled: float | None


def reference(torch: Any, operation: str) -> Callable[[Any], Any]:
    """The operation along rows as a user of torch writes it."""
    float32 = torch.float32
    return {
        "sum": lambda x: x.sum(1, dtype=float32) if x.is_floating_point() else x.sum(1),
        "mean": lambda x: x.mean(1, dtype=float32),
        "max": lambda x: x.amax(1),
        "min": lambda x: x.amin(1),
        "argmax": lambda x: x.argmax(1),
        "argmin": lambda x: x.argmin(1),
        "any": lambda x: x.any(1),
        "l2_norm": lambda x: torch.linalg.vector_norm(x, dim=1, dtype=float32),
        "logsumexp": lambda x: x.to(float32).logsumexp(1),
        "mean_variance": lambda x: torch.var_mean(x.to(float32), 1, correction=0),
    }[operation]


def timed(torch: Any, calls: dict[str, Callable[[Any], Any]], arrays: list[Any]) -> dict[str, float]:
    """Microseconds of one call of each, the median of turns."""

    def on_sets(call: Callable[[Any], Any]) -> Callable[[int], Any]:
        return lambda index: call(arrays[index])

    found = median_seconds(torch, {name: on_sets(call) for name, call in calls.items()}, sets=len(arrays), rounds=TURNS)
    return {name: 1e6 * seconds for name, seconds in found.items()}


def measured(torch: Any, operation: str, rows: int, columns: int, word: str, compiled: bool) -> Row:
    """Times of one case."""
    kind = getattr(torch, word)
    size = rows * columns * kind.itemsize
    count = max(1, min(16, ROTATED_BYTES // size))
    plain = (torch.randn(rows, columns, device="cuda") * 3).to(kind)
    arrays = [plain.clone() for _ in range(count)]
    theirs = reference(torch, operation)
    calls = {"ours": lambda x: ops.reduce(x, operation, 1), "torch": theirs}
    if compiled:
        calls["compiled"] = torch.compile(theirs, mode="max-autotune-no-cudagraphs", dynamic=False)
    times = timed(torch, calls, arrays)
    return Row(operation, rows, columns, word, times["ours"], times["torch"], times.get("compiled"))


def drawn(seed: int, count: int) -> list[tuple[str, int, int, str]]:
    """Operations, rows from 64 to 130,000 by 256 to 100,000 of at most 2^27 elements, odd lengths among them."""
    generator = random.Random(seed)
    found: list[tuple[str, int, int, str]] = []
    while len(found) < count:
        operation, word = generator.choice(OPERATIONS), generator.choice(TYPES)
        rows = round(exp(generator.uniform(log(64), log(130_000))))
        columns = round(exp(generator.uniform(log(256), log(100_000))))
        whole = operation in ("l2_norm", "logsumexp", "mean_variance", "mean") and word == "int8"
        if 1 << 18 <= rows * columns <= 1 << 27 and not whole:
            found.append((operation, rows, columns // generator.choice((1, 8)) * 8 if generator.random() < 0.5 else columns, word))
    return [case for case in found if case[2] > 0]


def geometric(values: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def main() -> None:
    """Measures the cases and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=15)
    parser.add_argument("--compiled", action="store_true", help="also beside torch.compile (max-autotune)")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args()
    import torch

    ops.register_torch()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {options.seed}")
    rows = []
    for case in (*FIXED, *drawn(options.seed, options.drawn)):
        row = measured(torch, *case, options.compiled)
        rows.append(row)
        beside = "" if row.compiled is None else f"  compiled {row.compiled:8.1f} us  {row.compiled / row.ours:5.2f}"
        print(
            f"{row.operation:14}{row.rows:7} x {row.columns:6} {row.type:9} ours {row.ours:8.1f} us  torch {row.torch:8.1f} us  "
            f"{row.torch / row.ours:5.2f}{beside}",
            flush=True,
        )
    for name in ("torch", "compiled"):
        ratios = [getattr(row, name) / row.ours for row in rows if getattr(row, name) is not None]
        if ratios:
            print(f"beside {name}: mean {geometric(ratios):.2f}, worst {min(ratios):.2f} of {len(ratios)}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
