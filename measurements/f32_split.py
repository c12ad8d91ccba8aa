"""float32 products of few rows and a large matrix: split in the mainloop, split before, multiply-adds, and cuBLAS SGEMM.

    python -m measurements.f32_split                on a machine with a GPU of compute capability 9.0 and torch
    python -m measurements.f32_split --compile      compiles all ways, without a GPU

Prints all times, and writes f32_split.json and f32_split.md beside this file.
Every result is compared with one in double precision, element by element: its error over u |x| |w|, u = 2^-24, stands beside the time.
Ways run from CUDA graphs in turns, on as many sets of operands as exceed the L2.
"""

from __future__ import annotations

import argparse
import datetime
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gemmgen
from gemmgen import ops
from gemmgen.perf.contestants import median_seconds

HERE = Path(__file__).resolve().parent
OTHERS = ("cuBLAS", "multiply-adds", "split before, f16x3")
WEIGHTS = ((4096, 4096), (11008, 4096), (4096, 11008))
"""(n, k) of the large matrix, which is stored along k."""
ROWS = (16, 32, 64, 96, 128, 256)
L2_BYTES = 64 << 20
UNIT = 2.0**-24
Tile = tuple[int, int, int, int, int, str, int]
TILES: tuple[Tile, ...] = (
    # tile m, tile n, slices of k, stages, groups, their schedule, blocks on an SM
    (64, 16, 1, 4, 1, "cooperative", 2),
    (64, 16, 2, 8, 1, "cooperative", 1),
    (64, 16, 2, 4, 1, "cooperative", 2),
    (64, 16, 2, 8, 2, "alternating", 1),
    (64, 16, 4, 6, 2, "alternating", 1),
    (64, 32, 2, 6, 1, "cooperative", 1),
    (64, 32, 1, 6, 2, "alternating", 1),
    (64, 32, 2, 6, 2, "alternating", 1),
    (64, 32, 4, 6, 2, "alternating", 1),
    (64, 48, 2, 5, 2, "alternating", 1),
    (64, 64, 2, 4, 1, "cooperative", 1),
    (64, 64, 1, 5, 2, "alternating", 1),
    (64, 64, 2, 4, 2, "alternating", 1),
    (64, 64, 4, 4, 2, "alternating", 1),
    (128, 64, 4, 2, 2, "cooperative", 1),
    (64, 96, 2, 3, 1, "cooperative", 1),
    (64, 96, 2, 3, 2, "alternating", 1),
    (64, 96, 4, 2, 2, "alternating", 1),
    (64, 128, 2, 3, 1, "cooperative", 1),
    (64, 128, 1, 3, 2, "alternating", 1),
    (64, 128, 2, 3, 2, "alternating", 1),
)
"""Instances that split in the mainloop."""


def named(tile: Tile) -> str:
    """The name of an instance in the table."""
    m, n, slices, stages, consumers, schedule, blocks = tile
    return f"{m}x{n} k{slices} s{stages} {schedule[0]}{consumers} b{blocks}"


def split_kernel(tile: Tile) -> gemmgen.Kernel:
    """An instance that splits in the mainloop, compiled."""
    m, n, slices, stages, consumers, schedule, blocks = tile
    spec = {
        "kind": "gemm",
        "architecture": "sm_90a",
        "order": "column_major",
        "transpose": "tn",
        "alpha": "one",
        "beta": "zero",
        "alignment": {"a": 4, "b": 4},
        "decomposition": {"scheme": "split_k_cluster", "slices": slices} if slices > 1 else {"scheme": "data_parallel"},
        "mainloop": {
            "strategy": "wgmma",
            "arithmetic": {"f32_by": "bf16x6", "split": "mainloop"},
            "tile": {"m": m, "n": n, "k": 64},
            "stages": stages,
            "consumers": consumers,
            "schedule": schedule,
            "promote_every": 16 if schedule == "alternating" else 32,
            "min_blocks_per_sm": blocks,
        },
        "early_launch": True,
    }
    return gemmgen.compile(spec, "sm_90a")


def measured(m: int, n: int, k: int, kernels: dict[str, gemmgen.Kernel], planes: gemmgen.Kernel) -> dict[str, Any]:
    """Microseconds and errors of all ways on one problem."""
    import torch

    sets = max(1, -(-L2_BYTES * 2 // (4 * n * k)))
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    xs = [torch.randn(m, k, device="cuda", generator=generator) for _ in range(sets)]
    ws = [torch.randn(n, k, device="cuda", generator=generator) for _ in range(sets)]
    y = torch.empty(m, n, device="cuda")
    want = xs[0].double() @ ws[0].double().T
    size = xs[0].double().abs() @ ws[0].double().abs().T
    ways = {"cuBLAS": lambda index: torch.mm(xs[index], ws[index].T, out=y)}
    ways["multiply-adds"] = lambda index: ops.matmul(xs[index], ws[index].T, precision="ffma", out=y)
    ways["split before, f16x3"] = lambda index: planes(A=xs[index], B=ws[index].T, C=y, alpha=1.0, beta=0.0)
    for name, kernel in kernels.items():
        if min(m, 128) <= int(name.split("x")[1].split()[0]) < m + 40:
            ways[name] = lambda index, kernel=kernel: kernel(A=ws[index], B=xs[index].T, C=y.T)
    errors = {}
    for name, way in ways.items():
        y.fill_(float("nan"))
        way(0)
        errors[name] = ((y.double() - want).abs() / size).max().item() / UNIT
    times = median_seconds(torch, ways, sets=sets, rounds=15)
    return {"m": m, "n": n, "k": k, "us": {name: seconds * 1e6 for name, seconds in times.items()}, "errors": errors}


def corners(kernels: dict[str, gemmgen.Kernel]) -> None:
    """Raises where an infinity, a NaN or a tiny number in either factor does not come out as in double precision."""
    import torch

    generator = torch.Generator("cuda").manual_seed(1)
    x, w = (torch.randn(size, 1024, device="cuda", generator=generator) for size in (37, 517))
    w[3, 5], w[200, 1023], w[516, 0], w[77, 100] = float("inf"), float("nan"), 1e-42, 3e38
    x[2, 9], x[36, 1000] = float("-inf"), 1e-39
    want = x.double() @ w.double().T
    for name, kernel in kernels.items():
        y = torch.full((37, 517), 7.0, device="cuda")
        kernel(A=w, B=x.T, C=y.T)
        try:
            torch.testing.assert_close(y.double(), want.float().double(), rtol=1e-4, atol=1e-3, equal_nan=True)
        except AssertionError as reason:
            raise RuntimeError(f"{name}: {reason}") from None


def report(data: dict[str, Any]) -> str:
    """The table of the fastest ways."""
    lines = [
        "# float32 products of few rows: the large factor split in the mainloop",
        "",
        f"{data['device']}, {data['date']}, microseconds, NT, splitting included; graphs in turns, on sets of operands that exceed the L2.",
        "The fastest instance that splits in the mainloop is named by its tile, the blocks that share k (k), stages (s), groups of warps",
        "(c: separate rows; a: parts of k in turns) and blocks of an SM (b). Errors are the largest over u \\|x\\| \\|w\\|, u = 2^-24.",
        "`python -m measurements.f32_split` makes this file.",
        "",
        "| m | n | k | in the mainloop | | cuBLAS | multiply-adds | split before | over cuBLAS | error | that of cuBLAS |",
        "|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in data["rows"]:
        times, errors = row["us"], row["errors"]
        best = min((name for name in times if name[0].isdigit()), key=times.__getitem__)
        others = " | ".join(f"{times[name]:.1f}" for name in OTHERS)
        lines.append(
            f"| {row['m']} | {row['n']} | {row['k']} | {times[best]:.1f} | {best} | {others} | {times['cuBLAS'] / times[best]:.2f} | "
            f"{errors[best]:.2f} | {errors['cuBLAS']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints a line for each problem and way, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="only compile")
    arguments = parser.parse_args()
    with ThreadPoolExecutor() as pool:
        kernels = dict(zip(map(named, TILES), pool.map(split_kernel, TILES), strict=True))
    planes = gemmgen.compile("gemm/split_precision/f16x3/128x128", "sm_90a")
    if arguments.compile:
        return
    import torch

    corners(kernels)
    print(torch.cuda.get_device_name(), datetime.datetime.now(datetime.UTC).date())
    rows = []
    for n, k in WEIGHTS:
        for m in ROWS:
            rows.append(measured(m, n, k, kernels, planes))
            row = rows[-1]
            print(f"m={m} n={n} k={k}", flush=True)
            for name in sorted(row["us"], key=row["us"].__getitem__):
                print(f"    {row['us'][name]:8.2f} us  error {row['errors'][name]:6.2f} u  {name}", flush=True)
    data = {"device": torch.cuda.get_device_name(), "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "rows": rows}
    (HERE / "f32_split.json").write_text(json.dumps(data, indent=1) + "\n")
    (HERE / "f32_split.md").write_text(report(data))


if __name__ == "__main__":
    main()
