"""Tall and shallow products in bfloat16: variants of the instances that keep B in registers, beside others, torch and the choice.

    python -m measurements.tall_variants                on a machine with a GPU and torch
    python -m measurements.tall_variants --list         anywhere: the variants of every shape, compiled

As ``measurements.columns_variants`` does: results are compared with torch on small integers, for equality; CUDA graphs are replayed in
turns. Writes tall_variants.json and prints the variants of every shape, the fastest first, with the times that the model expects.
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
SEED = 43
SEEN = (
    Shape("tall", 255336, 40, 16, "tn"),
    Shape("tall", 90000, 56, 24, "tt"),
    Shape("tall", 33024, 56, 32),
    Shape("tall", 180648, 48, 16),
    Shape("tall", 65536, 16, 16),
    Shape("tall", 117088, 24, 8, "tn"),
    Shape("batched", 32, 32, 32, batch=1175),
    Shape("batched", 28, 28, 28, batch=3174),
    Shape("batched", 54, 54, 54, "nt", batch=938),
    Shape("square", 3270, 3270, 14, "tt"),
    Shape("square", 3792, 3792, 10, "nt"),
)
"""Shapes that were measured before, batches and squares among them."""
DRAWN = 9
COLUMNS, DEPTHS = (16, 32, 48, 64), (16, 32, 64)
"""Columns and depth of the instances' tiles."""
OTHERS = (
    "gemm/mma_sync/bf16_direct/32x16",
    "gemm/mma_sync/bf16_direct/32x32",
    "gemm/mma_sync/bf16/256x32_k16",
    "gemm/mma_sync/bf16/128x128",
    "gemm/wgmma/bf16/128x64",
)


def drawn(seed: int) -> list[Shape]:
    """Shapes seen before, and others: of 20000 to 300000 rows, 8 to 64 columns and a depth of 8 to 64, in every storage order."""
    rng = random.Random(f"{seed}:tall")
    found = list(SEEN)
    for index in range(DRAWN):
        found.append(Shape("tall", spread(rng, 20000, 300000, 8), spread(rng, 8, 64, 8), spread(rng, 8, 64, 8), LETTERS[index % 4]))
    return found


def tile(rows: int, columns: int, depth: int, warps: int = 4, blocks: int = 528, least: int = 1) -> tuple[str, list[str]]:
    """The spec and changes of an instance that keeps B: a warp's tile, warps of a block, blocks of the grid, blocks on a multiprocessor."""
    changes = [
        f"mainloop.tile.threadblock={{m: {rows * warps}, n: {columns}, k: {depth}}}",
        f"mainloop.tile.warp={{m: {rows}, n: {columns}}}",
        f"mainloop.persistent_blocks={blocks}",
        f"mainloop.min_blocks_per_sm={least}",
    ]
    return "gemm/mma_sync/bf16_tall/64x48_k16", changes


def variants(shape: Shape) -> Specs:
    """The tiles that hold all columns and depth, one of them with other numbers of warps and blocks, and other instances."""
    depth = next(k for k in DEPTHS if k >= shape.k)
    columns = [n for n in COLUMNS if n >= min(shape.n, COLUMNS[-1])][:2]
    own = columns[0]
    found = {f"{rows}x{n}": tile(rows, n, depth) for n in columns for rows in (16, 32, 64)}
    rows = 64 if depth == DEPTHS[0] or own <= COLUMNS[1] else 32
    for blocks in (132, 264, 396, 792, 1056, 2112, 65536):
        found[f"{rows}x{own}, {blocks} blocks"] = tile(rows, own, depth, blocks=blocks)
    found[f"{rows}x{own}, 3 fit"] = tile(rows, own, depth, least=3)
    found[f"{rows}x{own}, 4 fit"] = tile(rows, own, depth, least=4)
    found[f"{rows}x{own}, 8 warps"] = tile(rows, own, depth, warps=8, blocks=264, least=2)
    if own > COLUMNS[0]:
        found[f"{rows}x{COLUMNS[0]}"] = tile(rows, COLUMNS[0], depth)
    return {**found, **{label.rpartition("/")[2]: (label, []) for label in OTHERS}}


def compile_variants(index: int, device: str) -> list[str]:
    """Compiles the variants of a shape into the user's cache; what failed."""
    failures: list[str] = []
    shape = drawn(SEED)[index]
    made = options(shape, "bf16", find_device(device), failures, variants(shape))
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
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no further shape after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "tall_variants.json")
    arguments = parser.parse_args()
    started = time.monotonic()
    shapes = drawn(SEED)
    if arguments.list:
        device = find_device("H100")
        for index, shape in enumerate(shapes):
            failures: list[str] = []
            made = options(shape, "bf16", device, failures, variants(shape))
            print(f"{shape.problem('bf16')}: {len(made)} variants", flush=True)
            failures += compile_variants(index, device.name)
            for failure in sorted(set(failures)):
                print(f"    {failure}")
        return
    import torch

    from gemmgen.dispatch.devices import gpu_device

    device = gpu_device(0)
    torch.manual_seed(SEED)
    results: list[Found] = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        compiled = [pool.submit(compile_variants, index, device.name) for index in range(len(shapes))]
        for shape, ready in zip(shapes, compiled, strict=True):
            ready.result()
            if time.monotonic() - started > arguments.seconds:
                print(f"not begun after {arguments.seconds:g} s: {shape.problem('bf16')}", flush=True)
                continue
            results.append(measure(torch, shape, "bf16", device, variants(shape)))
            report(results[-1], time.monotonic() - started)
            torch.cuda.empty_cache()
    about = {"device": device.name, "gpu": torch.cuda.get_device_name(0), "seed": SEED}
    document = {**about, "problems": [asdict(found) for found in results]}
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
