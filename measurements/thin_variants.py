"""Variants of the kernels for few columns: one, read across k and not aligned; two to sixteen, read across k; many short rows. And
products by planes of small and middle size, whose first kernels take a large part of the time.

    python -m measurements.thin_variants                on a machine with a GPU and torch
    python -m measurements.thin_variants --list         anywhere: the variants of every shape, compiled
    python -m measurements.thin_variants --tabulate     anywhere: adds what was measured of shipped instances to the device's tuned table

As ``measurements.columns_variants`` does: results are compared with torch on small integers, for equality; CUDA graphs are replayed in
turns. Writes thin_variants.json and prints the variants of every shape, the fastest first, with the times that the model expects.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import set_best
from gemmgen.hardware.target import Device
from gemmgen.hardware.target import device as find_device
from gemmgen.toolchain.compilation import compile_plan
from measurements.choice import add_to_table, fitted_instance
from measurements.columns_variants import Found, Specs, measure, measure_all, options
from measurements.odd_shapes import Shape, spread
from measurements.unaligned_variants import THIN, thin

HERE = Path(__file__).resolve().parent
SEED = 53
FEW = "few"
SHALLOW = "shallow"
PLANES = "planes"
SEEN = (
    Shape(FEW, 11184, 12, 1384, "tn"),
    Shape(SHALLOW, 117088, 24, 8, "tn"),
    Shape(FEW, 9, 12568, 3368),
    Shape(THIN, 1, 3435, 4934, "tn"),
    Shape(SHALLOW, 250928, 8, 16, "tn"),
    Shape(FEW, 5, 2552, 4304),
    Shape(SHALLOW, 82800, 16, 8, "nt"),
    Shape(FEW, 1519, 3, 7977, "tn"),
    Shape(SHALLOW, 65536, 16, 16),
    Shape(FEW, 16, 8192, 4096, "tn"),
    Shape(FEW, 4096, 7, 2048, "tt"),
    Shape(THIN, 1, 1725, 1640),
    Shape(THIN, 4096, 1, 4096, "tn"),
    Shape(THIN, 1, 2000, 4000),
    Shape(THIN, 8011, 1, 2869, "tn"),
    Shape(THIN, 5153, 1, 5016, "tn"),
)
"""Shapes that were slower than torch's before, and others of their kinds."""
SPLIT_FIRST = (
    Shape(PLANES, 563, 563, 563),
    Shape(PLANES, 544, 544, 288, "nt"),
    Shape(PLANES, 640, 640, 352, "nt"),
    Shape(PLANES, 282, 1024, 1024, "nt"),
    Shape(PLANES, 563, 563, 563, "nt"),
    Shape(PLANES, 1366, 1366, 1366),
    Shape(PLANES, 2048, 1344, 2368, "tn"),
)
"""Products by planes."""
FEW_COLUMNS = {
    "128 u4 b4": [],
    "128 u4 b2": ["min_blocks_per_sm=2"],
    "128 u8 b3": ["unroll=8", "min_blocks_per_sm=3"],
    "64 u4 b8": ["threads=64", "min_blocks_per_sm=8"],
}
"""Variants of ``gemm/gemv/columns/few`` by what they change of its mainloop."""
SHORT_ROWS = {
    "256 b2": [],
    "256 b1": ["min_blocks_per_sm=1"],
    "128 b4": ["threads=128", "min_blocks_per_sm=4"],
    "two rows, 128 b4": ["rows=2", "threads=128", "min_blocks_per_sm=4"],
    "two rows, 64 b8": ["rows=2", "threads=64", "min_blocks_per_sm=8"],
    "four rows, 64 b4": ["rows=4", "threads=64", "min_blocks_per_sm=4"],
    "four rows, 64 b6": ["rows=4", "threads=64", "min_blocks_per_sm=6"],
    "four rows, 128 b3": ["rows=4", "threads=128", "min_blocks_per_sm=3"],
    "u2, 256 b2": ["unroll=2"],
}
"""The same of ``gemm/gemv/shallow/one_row``."""
SINGLE = {
    "1024 by 32 u4": (1024, 8, 4, 1),
    "1024 by 32 u2": (1024, 8, 2, 1),
    "1024 by 64 u2": (1024, 16, 2, 1),
    "512 by 16 u2": (512, 4, 2, 2),
    "1024 by 16 u4": (1024, 4, 4, 1),
}
"""Threads, lanes, vectors ahead and blocks of variants for one column."""
SHIPPED = {
    "as it is": "columns_tn",
    "1024 by 16 u4": "columns_whole16_tn",
    "1024 by 32 u2": "columns_whole32_tn",
    "1024 by 64 u2": "columns_whole64_tn",
    "shifted": "columns_shifted_tn",
    "128 u4 b4": "few_columns_tn",
    "columns_tn": "columns_tn",
    "256 b2": "shallow_nn",
    "two rows, 64 b8": "shallow_two_rows_nn",
    "four rows, 64 b4": "shallow_four_rows_nn",
}
"""Instances of ``gemm/vector`` that variants are."""


def drawn(seed: int) -> list[tuple[Shape, str]]:
    """Shapes seen before, and others of their kinds, of every order; one column of halves, too."""
    rng = random.Random(f"{seed}:thin")
    found = list(SEEN)
    for index in range(5):
        few, long, k = rng.randint(2, 16), spread(rng, 1024, 16384, 8), spread(rng, 1024, 8192, 8)
        found.append(
            Shape(FEW, few, long, k, rng.choice(["nn", "tn"])) if index % 2 else Shape(FEW, long, few, k, ("tn", "tt")[index // 2 % 2])
        )
        letters = ("nn", "nt", "tn", "tt")[index % 4]
        found.append(Shape(SHALLOW, spread(rng, 32768, 262144, 8), spread(rng, 8, 64, 8), spread(rng, 8, 32, 8), letters))
        long, k = spread(rng, 1024, 9000) | 1, spread(rng, 1024, 9000)
        found.append(Shape(THIN, 1, long, k, rng.choice(["nn", "tn"])) if index % 2 else Shape(THIN, long, 1, k, rng.choice(["tn", "tt"])))
    found[:0] = SPLIT_FIRST
    halves = [Shape(THIN, 1, 3435, 4934, "tn"), Shape(THIN, 1, 3216, 5533), Shape(THIN, 1, 2000, 4000), Shape(FEW, 11184, 12, 1384, "tn")]
    return [(shape, "f32") for shape in found] + [(shape, "bf16") for shape in halves]


def variants(shape: Shape) -> Specs:
    """Variants of the instance that a shape's kind is for."""
    if shape.kind == THIN:
        found: dict[str, tuple[str, list[str]]] = {"as it is": ("gemm/gemv/columns/one", [])}
        found |= {name: thin(*numbers) for name, numbers in SINGLE.items()}
        return found | {"shifted": ("gemm/gemv/columns/shifted", [])}
    if shape.kind == PLANES:
        names = ("hopper/f32_64x64", "hopper/f32_64x32", "hopper/f32_128x64", "f32_by_f16x3", "mma/f32_by_f16x3_64x64")
        return {name: (f"gemm/{name}", []) for name in names}
    spec, changes = ("gemm/gemv/columns/few", FEW_COLUMNS) if shape.kind == FEW else ("gemm/gemv/shallow/one_row", SHORT_ROWS)
    found = {name: (spec, [f"mainloop.{one}" for one in change]) for name, change in changes.items()}
    others: dict[str, tuple[str, list[str]]] = {
        "columns_tn": ("gemm/gemv/columns/one", []),
        "shifted": ("gemm/gemv/columns/shifted", []),
    }
    return found | others if shape.kind == FEW else found


def compile_variants(index: int, device: str) -> list[str]:
    """Compiles the variants of a shape into the user's cache; what failed."""
    failures: list[str] = []
    shape, type = drawn(SEED)[index]
    made = options(shape, type, find_device(device), failures, variants(shape))
    for plan in {option.plan.name: option.plan for option in made}.values():
        try:
            compile_plan(plan)
        except GemmgenError as error:
            failures.append(f"{plan.name}: {' '.join(str(error).split())[:200]}")
    return failures


def measure_variants(torch: Any, shape: Shape, type: str, device: Device) -> Found:
    """Times of the variants for a shape."""
    return measure(torch, shape, type, device, variants(shape))


def tabulate(path: Path) -> int:
    """Adds the times of shipped instances, with the number of slices that each has by today's model. The number of problems."""
    data = json.loads(path.read_text())
    device = find_device(data["device"])
    found = []
    for problem in data["problems"]:
        request, times = parse_problem(problem["problem"]), {}
        for variant, name in SHIPPED.items():
            label, by_slices = f"gemm/vector/{name}", {one["slices"]: one["us"] for one in problem["times"] if one["name"] == variant}
            option = fitted_instance(label, request, device) if by_slices else None
            if option is not None:
                wanted = set_best(option[1], option[2], device)[0].get("slices", 1)
                times[label] = by_slices[min(by_slices, key=lambda slices: abs(math.log(slices / wanted)))]
        if times:
            found.append((problem["problem"], times, problem["torch_us"]))
    add_to_table(device, found, keep=True)
    return len(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="plan and compile the variants for an H200, without a GPU")
    parser.add_argument("--tabulate", action="store_true", help="add what was measured to the tuned table of its device")
    parser.add_argument("--seconds", type=float, default=35.0, help="begin no further shape after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "thin_variants.json")
    arguments = parser.parse_args()
    started = time.monotonic()
    shapes = drawn(SEED)
    if arguments.tabulate:
        print(f"{tabulate(arguments.output)} problems")
        return
    if arguments.list:
        device = find_device("H200")
        for index, (shape, type) in enumerate(shapes):
            failures: list[str] = []
            made = options(shape, type, device, failures, variants(shape))
            plans = len({option.plan.name for option in made})
            print(f"{shape.problem(type)}: {plans} variants, {len(made)} with their slices", flush=True)
            failures += compile_variants(index, device.name)
            for failure in sorted(set(failures)):
                print(f"    {failure}")
        return
    import torch

    from gemmgen.dispatch.devices import gpu_device

    device = gpu_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(SEED)
    results = measure_all(torch, shapes, device, compile_variants, measure_variants, started, arguments.seconds)
    about = {"device": device.name, "gpu": torch.cuda.get_device_name(0), "seed": SEED}
    document = {**about, "problems": [asdict(found) for found in results]}
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
