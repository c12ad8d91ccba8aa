"""Float32 whose rows are not aligned: thin tiles of one column that need no slices of k, and tiled instances that check a tile at a time.

    python -m measurements.unaligned_variants                on a machine with a GPU and torch
    python -m measurements.unaligned_variants --list         anywhere: the variants of every shape, compiled

As ``measurements.columns_variants`` does: results are compared with torch on small integers, for equality; CUDA graphs are replayed in
turns. Writes unaligned_variants.json and prints the variants of every shape, the fastest first, with the times that the model expects.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from gemmgen.core.errors import GemmgenError
from gemmgen.hardware.target import device as find_device
from gemmgen.toolchain.compilation import compile_plan
from measurements.columns_variants import Found, Specs, measure, options, report
from measurements.odd_shapes import LETTERS, Shape, spread

HERE = Path(__file__).resolve().parent
SEED = 47
DRAWN = 10
THIN = "thin"
SEEN = (Shape(THIN, 1, 3435, 4934, "tn"), Shape(THIN, 1, 3216, 5533), Shape("tiled", 777, 301, 333), Shape("tiled", 333, 513, 1029))
"""Shapes that were slower than torch's before."""
TILES = ("small", "medium", "large")
CHANGES = {
    "": [],
    ", each tile": ["mainloop.edges=each_tile"],
    ", registers": ["mainloop.copies=registers", "mainloop.stages=2"],
    ", registers, each tile": ["mainloop.copies=registers", "mainloop.stages=2", "mainloop.edges=each_tile"],
}
"""Ways of copying single elements: with a check of each or of a whole tile, asynchronously or through registers."""


def drawn(seed: int) -> list[Shape]:
    """Shapes seen before, and others: of one column, read across k, and of small and middle size."""
    rng = random.Random(f"{seed}:unaligned")
    found = list(SEEN)
    for index in range(DRAWN):
        long, k = spread(rng, 1500, 14000, 8) + rng.choice([1, 2, 3, 5, 7]), spread(rng, 1500, 9000, rng.choice([1, 8]))
        if index % 2:
            found.append(Shape(THIN, 1, long, k, rng.choice(["nn", "tn"]), offset=index % 5 == 4))
        else:
            found.append(Shape(THIN, long, 1, k, rng.choice(["tn", "tt"]), offset=index % 5 == 4))
        m, n, depth = (spread(rng, least, most, 1) | 1 for least, most in ((150, 1100), (150, 1100), (100, 1200)))
        found.append(Shape("tiled", m, n, depth, LETTERS[index % 4], offset=index % 5 == 4))
    return found


def thin(threads: int, lanes: int, unroll: int, blocks: int) -> tuple[str, list[str]]:
    """The spec and changes of an instance for one column: its matcher gives a block four times ``lanes`` lanes, of one element each, and
    has a thread read four times ``unroll`` elements ahead."""
    changes = [f"mainloop.threads={threads}", f"mainloop.lanes={lanes}", f"mainloop.unroll={unroll}"]
    return "gemm/gemv/columns/one", [*changes, f"mainloop.min_blocks_per_sm={blocks}"]


def variants(shape: Shape) -> Specs:
    """Tiles of 8 to 64 rows for one column; tiled instances for any alignment by their ways of copying."""
    if shape.kind == THIN:
        found: dict[str, tuple[str, list[str]]] = {"as it is": ("gemm/gemv/columns/one", [])}
        for threads, blocks in ((512, 2), (512, 4), (1024, 1), (1024, 2)):
            for lanes in (2, 4, 8, 16):
                unroll = 4 if threads * blocks == 1024 else 2
                found[f"{threads} by {4 * lanes} u{unroll}"] = thin(threads, lanes, unroll, blocks)
        return found
    return {
        f"{tile}{name}": (f"gemm/general/{tile}_{shape.letters}_unaligned", change) for tile in TILES for name, change in CHANGES.items()
    }


def compile_variants(index: int, device: str) -> list[str]:
    """Compiles the variants of a shape into the user's cache; what failed."""
    failures: list[str] = []
    shape = drawn(SEED)[index]
    made = options(shape, "f32", find_device(device), failures, variants(shape))
    for plan in {option.plan.name: option.plan for option in made}.values():
        try:
            compile_plan(plan)
        except GemmgenError as error:
            failures.append(f"{plan.name}: {' '.join(str(error).split())[:200]}")
    return failures


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="plan and compile the variants for an H100, without a GPU")
    parser.add_argument("--seconds", type=float, default=45.0, help="begin no further shape after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "unaligned_variants.json")
    arguments = parser.parse_args()
    started = time.monotonic()
    shapes = drawn(SEED)
    if arguments.list:
        device = find_device("H100")
        for index, shape in enumerate(shapes):
            failures: list[str] = []
            made = options(shape, "f32", device, failures, variants(shape))
            print(
                f"{shape.problem('f32')}: {len({option.plan.name for option in made})} variants, {len(made)} with their slices", flush=True
            )
            failures += compile_variants(index, device.name)
            for failure in sorted(set(failures)):
                print(f"    {failure}")
        return
    import torch

    from gemmgen.dispatch.devices import gpu_device

    device = gpu_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(SEED)
    results: list[Found] = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        compiled = [pool.submit(compile_variants, index, device.name) for index in range(len(shapes))]
        for shape, ready in zip(shapes, compiled, strict=True):
            ready.result()
            if time.monotonic() - started > arguments.seconds:
                print(f"not begun after {arguments.seconds:g} s: {shape.problem('f32')}", flush=True)
                continue
            results.append(measure(torch, shape, "f32", device, variants(shape)))
            report(results[-1], time.monotonic() - started)
            torch.cuda.empty_cache()
    about = {"device": device.name, "gpu": torch.cuda.get_device_name(0), "seed": SEED}
    document = {**about, "problems": [asdict(found) for found in results]}
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
