"""Variants of the kernels for one to four rows or columns whose matrix is read across k, and of some others that torch's are close to.

    python -m measurements.columns_variants                on a machine with a GPU and torch
    python -m measurements.columns_variants --list         anywhere: the variants of every shape, compiled

Each shape's variants, with several numbers of slices of k, are compared with torch on small integers, for equality; then CUDA graphs of
all of them are replayed in turns. Writes columns_variants.json and prints the best beside what the choice takes.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.core.resources import resource_directory
from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.model import model_seconds, resident_blocks
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import Option, choose, fitted
from gemmgen.hardware.target import Device
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.spec_files import load_spec
from gemmgen.perf.contestants import median_seconds
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.toolchain.compilation import compile_plan
from measurements.choice import launch, launcher_of
from measurements.odd_shapes import Shape, arrays, spread, theirs

HERE = Path(__file__).resolve().parent
SEED = 29
ROUNDS = 5
GRAPH_SECONDS = 2e-4
BLOCKS = (1, 2, 3, 4, 6, 8)
"""Blocks for each multiprocessor that numbers of slices are chosen for."""
MOST_SLICES = 512

COLUMNS = {
    "u4": ["unroll=4"],
    "u8": ["unroll=8"],
    "u8 three": ["unroll=8", "min_blocks_per_sm=3"],
    "u16": ["unroll=16"],
    "512 u4": ["unroll=4", "threads=512", "lanes=64", "min_blocks_per_sm=2"],
    "512 by 32 u4": ["unroll=4", "threads=512", "lanes=32", "min_blocks_per_sm=2"],
    "512 by 32 u8": ["unroll=8", "threads=512", "lanes=32", "min_blocks_per_sm=1"],
    "1024 by 32 u4": ["unroll=4", "threads=1024", "lanes=32", "min_blocks_per_sm=1"],
    "1024 by 64 u4": ["unroll=4", "threads=1024", "lanes=64", "min_blocks_per_sm=1"],
    "256 by 64 u8": ["unroll=8", "lanes=64", "min_blocks_per_sm=3"],
    "128 u8": ["unroll=8", "threads=128", "lanes=32"],
}
"""Variants of ``gemm/gemv/columns/one`` by what they change of its mainloop."""
SHALLOW = {
    "one": [],
    "128": ["mainloop.threads=128"],
    "64": ["mainloop.threads=64"],
    "512": ["mainloop.threads=512"],
    "two lanes": ["mainloop.lanes=2"],
    "four lanes": ["mainloop.lanes=4"],
    "two blocks": ["mainloop.min_blocks_per_sm=2"],
    "four blocks": ["mainloop.min_blocks_per_sm=4"],
    "two rows": ["mainloop.rows=2"],
}
ONE_STEP = ["mainloop.tile.threadblock.k=32", "mainloop.stages=1"]
SIX_WARPS = ["mainloop.tile.warp={m: 16, n: 96}", "mainloop.tile.thread={m: 4, n: 12}"]
PAIRS = "alignment={a: 2, b: 2}"
BATCHED = {
    "one": [],
    "pairs": [PAIRS],
    "pairs, C too": ["alignment={a: 2, b: 2, c: 2}"],
    "k 32": ["mainloop.tile.threadblock.k=32", "mainloop.stages=2"],
    "through shared": ["store=through_shared"],
    "five blocks": ["mainloop.min_blocks_per_sm=5"],
    "five blocks, pairs, two stages": ["alignment={a: 2, b: 2, c: 2}", "mainloop.min_blocks_per_sm=5", "mainloop.stages=2"],
    "turned": ["mainloop.tile.warp={m: 96, n: 32}", "mainloop.tile.thread={m: 12, n: 8}"],
    "six warps": SIX_WARPS,
    "six warps, four blocks": [*SIX_WARPS, "mainloop.min_blocks_per_sm=4"],
    "six warps, two stages": [*SIX_WARPS, "mainloop.stages=2", "mainloop.min_blocks_per_sm=4"],
    "two stages": ["mainloop.stages=2"],
    "k 8": ["mainloop.tile.threadblock.k=8"],
}
WIDE = {
    "one": [],
    "k 16": ["mainloop.tile.threadblock.k=16"],
    "one step": ONE_STEP,
    "one step, four blocks": [*ONE_STEP, "mainloop.min_blocks_per_sm=4"],
    "cp_async": ["mainloop.tile.threadblock.k=16", "mainloop.copies=cp_async", "mainloop.stages=2"],
    "128 rows": ["mainloop.tile.threadblock={m: 128, n: 128, k: 8}"],
    "not streamed": ["cache.streaming_stores=false"],
    "32 rows": ["mainloop.tile.threadblock={m: 32, n: 128, k: 8}"],
    "256 columns": ["mainloop.tile.threadblock={m: 32, n: 256, k: 8}"],
    "five blocks": ["mainloop.min_blocks_per_sm=5"],
}
HALVES = {
    "one": [],
    "two stages": ["mainloop.stages=2"],
    "64 x 128": ["mainloop.tile.threadblock={m: 64, n: 128, k: 32}", "mainloop.stages=2"],
    "128 x 64": ["mainloop.tile.threadblock={m: 128, n: 64, k: 32}", "mainloop.stages=2"],
    "128 x 256": ["mainloop.tile.threadblock={m: 128, n: 256, k: 32}", "mainloop.stages=2"],
    "64 x 256": ["mainloop.tile.threadblock={m: 64, n: 256, k: 32}", "mainloop.stages=2"],
    "warps of 32 x 32": ["mainloop.tile.warp={m: 32, n: 32}", "mainloop.stages=2"],
    "warps of 32 x 64": ["mainloop.tile.warp={m: 32, n: 64}", "mainloop.stages=2"],
}


@dataclass
class Timed:
    """One variant with one number of slices."""

    name: str
    slices: int
    expected_us: float
    us: float = math.nan


@dataclass
class Found:
    """One shape with its variants."""

    problem: str
    torch_us: float = math.nan
    chosen: str = ""
    chosen_us: float = math.nan
    bytes: float = 0.0
    times: list[Timed] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def drawn(seed: int) -> list[tuple[Shape, str]]:
    """Products of few rows or columns whose matrix is read across k, aligned and not, and those that were seen before."""
    rng = random.Random(f"{seed}:columns")
    found = [
        (Shape("columns", 1, 3435, 4934, "tn"), "f32"),
        (Shape("columns", 1, 3435, 4934, "tn"), "bf16"),
        (Shape("columns", 10024, 1, 3680, "tn"), "bf16"),
        (Shape("columns", 10024, 1, 3680, "tn"), "f32"),
    ]
    for index in range(12):
        type = ("f32", "f32", "bf16", "f16")[index % 4]
        unaligned = index % 3 != 2
        long = spread(rng, 1500, 14000, 8) + (rng.choice([1, 2, 3, 5, 7]) if unaligned else 0)
        k = spread(rng, 1500, 9000, rng.choice([1, 8]))
        few = 1 if index < 7 else rng.choice([2, 3, 4])
        if rng.random() < 0.5:
            found.append((Shape("columns", few, long, k, rng.choice(["nn", "tn"]), offset=index % 5 == 4), type))
        else:
            found.append((Shape("columns", long, few, k, rng.choice(["tn", "tt"]), offset=index % 5 == 4), type))
    found += [
        (Shape("shallow", 65536, 16, 16), "f32"),
        (Shape("batched", 90, 90, 90, "nt", batch=3286), "f32"),
        (Shape("wide", 4097, 4097, 31), "f32"),
        (Shape("halves", 4097, 4097, 31), "bf16"),
    ]
    return found


Specs = Mapping[str, tuple[str, Sequence[str]]]
"""Spec and changes of each variant, by name."""


def variants(kind: str, type: str, unaligned: bool) -> Specs:
    """Name, spec and changes of each variant of a kind of shapes."""
    if kind != "columns":
        spec, changes = {
            "shallow": ("gemm/gemv/shallow/one_row", SHALLOW),
            "batched": ("gemm/simt/batched/96x96_nn", BATCHED),
            "wide": ("gemm/simt/shallow", WIDE),
            "halves": ("gemm/mma_sync/bf16/128x128", HALVES),
        }[kind]
        return {name: (spec, change) for name, change in changes.items()}
    found = {}
    for name, change in COLUMNS.items():
        own = [f"mainloop.{one}" for one in change]
        found[name] = ("gemm/gemv/columns/shifted" if unaligned else "gemm/gemv/columns/one", own)
        if unaligned and name in ("u4", "u8"):
            found[f"{name} narrow"] = ("gemm/gemv/columns/one", own)
    return found


def options(shape: Shape, type: str, device: Device, failures: list[str], specs: Specs | None = None) -> list[Option]:
    """Every variant of a shape with every number of slices; what cannot be made is told in ``failures``. ``specs``: the variants, if not
    those of the shape's kind."""
    request = parse_problem(shape.problem(type))
    size = 4 if type == "f32" else 2
    contiguous = shape.m if shape.letters[0] == "t" and shape.m > 4 else shape.n
    unaligned = bool(shape.offset) or contiguous * size % 16 != 0
    found = []
    for name, (spec, changes) in (specs or variants(shape.kind, type, unaligned)).items():
        try:
            candidate = Candidate(name, load_spec(resource_directory("specs") / f"{spec}.yaml", changes))
        except GemmgenError as error:
            failures.append(f"{name}: {' '.join(str(error).split())[:200]}")
            continue
        option = fitted(candidate, request, device.architecture)
        if isinstance(option, str):
            failures.append(f"{name}: {option}")
            continue
        fit, plan, dimensions = option
        work = cost_model_of("gemm").work
        for slices in numbers_of_slices(plan, dimensions, device):
            chosen = {**dimensions, **slices}
            found.append(Option(candidate, fit, plan, chosen, model_seconds(work(plan, chosen), device), "model"))
    return found


def numbers_of_slices(plan: Any, dimensions: Mapping[str, int], device: Device) -> list[dict[str, int]]:
    """Slices of k that give each multiprocessor so many blocks."""
    if "slices" not in dimensions:
        return [{}]
    tiles = math.prod(plan.sequence.launches[0].grid_of({**dimensions, "slices": 1}))
    most = max(1, min(MOST_SLICES, dimensions["k"] // plan.loop.step))
    resident = resident_blocks(cost_model_of("gemm").work(plan, {**dimensions, "slices": 1})[0], device)
    wanted = {device.sm_count * blocks // tiles for blocks in {*BLOCKS, resident}} | {math.ceil(device.sm_count / tiles)}
    return [{"slices": slices} for slices in sorted({max(1, min(most, one)) for one in wanted})]


def compile_variants(index: int, device: str) -> list[str]:
    """Compiles the variants of a shape into the user's cache; what failed."""
    failures: list[str] = []
    shape, type = drawn(SEED)[index]
    for plan in {option.plan.name: option.plan for option in options(shape, type, find_device(device), failures)}.values():
        try:
            compile_plan(plan)
        except GemmgenError as error:
            failures.append(f"{plan.name}: {' '.join(str(error).split())[:200]}")
    return failures


def measure(torch: Any, shape: Shape, type: str, device: Device, specs: Specs | None = None) -> Found:
    """Times all variants of one shape beside torch and the choice; ``specs``: as in ``options``."""
    found = Found(shape.problem(type))
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[type]
    size = torch.empty(0, dtype=kind).element_size()
    found.bytes = shape.bytes(size)
    beyond = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    count = max(1, min(64, math.ceil(beyond / shape.bytes(size))))
    sets = [arrays(torch, shape, kind, integers=False) for _ in range(count)]
    integers = arrays(torch, shape, kind, integers=True)
    wanted = torch.matmul(integers[0].float(), integers[1].float()).to(kind)
    chosen = choose(parse_problem(found.problem), device).chosen
    found.chosen = f"{chosen.candidate.label} slices {chosen.dimensions.get('slices', 1)}"
    ways: dict[str, Any] = {"torch": lambda index: theirs(torch, *sets[index])}
    entries: dict[str, Timed] = {}
    made = options(shape, type, device, found.failures, specs)
    for option in (replace(chosen, candidate=Candidate("chosen", chosen.candidate.spec)), *made):
        timed = Timed(option.candidate.label, option.dimensions.get("slices", 1), round(option.seconds * 1e6, 2))
        try:
            launcher = launcher_of(torch, option, option.early)
            integers[3].fill_(math.nan)
            launch(torch, launcher, integers)
            torch.cuda.synchronize()
        except GemmgenError as error:
            found.failures.append(f"{timed.name}: {' '.join(str(error).split())[:200]}")
            continue
        if not torch.equal(integers[3], wanted):
            found.failures.append(f"{timed.name}, {timed.slices} slices: wrong result")
            continue
        name = f"{len(ways)}: {timed.name}"
        entries[name], ways[name] = timed, lambda index, launcher=launcher: launch(torch, launcher, sets[index])
    times = median_seconds(torch, ways, sets=count, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
    found.torch_us = round(times["torch"] * 1e6, 2)
    for name, timed in entries.items():
        timed.us = round(times[name] * 1e6, 2)
        if timed.name == "chosen":
            found.chosen_us = timed.us
        else:
            found.times.append(timed)
    return found


def report(found: Found, seconds: float) -> None:
    """Prints the best number of slices of every variant, the fastest variant first."""
    rate = found.bytes / 1e6
    chosen = f"chosen {found.chosen_us:.2f} ({found.chosen})"
    print(f"{seconds:4.0f} s  {found.problem}  torch {found.torch_us:.2f}  {chosen}", flush=True)
    best: dict[str, Timed] = {}
    for timed in sorted(found.times, key=lambda one: one.us):
        best.setdefault(timed.name, timed)
    for name, timed in best.items():
        others = " ".join(f"{one.slices}:{one.us:.1f}/{one.expected_us:.1f}" for one in found.times if one.name == name)
        print(f"    {timed.us:8.2f}  {found.torch_us / timed.us:5.2f}  {rate / timed.us:5.2f} TB/s  {name:16s} {others}")
    for failure in sorted(set(found.failures)):
        print(f"    {failure}")


def measure_all(
    torch: Any,
    jobs: Sequence[tuple[Shape, str]],
    device: Device,
    compile_one: Callable[[int, str], list[str]],
    measure_one: Callable[[Any, Shape, str, Device], Found],
    started: float,
    seconds: float,
) -> list[Found]:
    """Measures and reports one shape after the other while other processes compile; begins none so long after ``started``."""
    results: list[Found] = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        compiled = [pool.submit(compile_one, index, device.name) for index in range(len(jobs))]
        for (shape, type), ready in zip(jobs, compiled, strict=True):
            if time.monotonic() - started > seconds:
                break
            ready.result()
            try:
                results.append(measure_one(torch, shape, type, device))
            except (GemmgenError, RuntimeError) as error:
                print(f"{shape.problem(type)}: {' '.join(str(error).split())[:300]}", flush=True)
                continue
            report(results[-1], time.monotonic() - started)
            torch.cuda.empty_cache()
        pool.shutdown(cancel_futures=True)
    return results


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="plan and compile the variants for an H100, without a GPU")
    parser.add_argument("--seconds", type=float, default=110.0, help="begin no further shape after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "columns_variants.json")
    arguments = parser.parse_args()
    started = time.monotonic()
    jobs = drawn(SEED)
    if arguments.list:
        device = find_device("H100")
        for index, (shape, type) in enumerate(jobs):
            failures: list[str] = []
            made = options(shape, type, device, failures)
            plans = {option.plan.name for option in made}
            print(f"{shape.problem(type)}: {len(plans)} variants, {len(made)} with their slices", flush=True)
            failures += compile_variants(index, device.name)
            for failure in sorted(set(failures)):
                print(f"    {failure}")
        return
    import torch

    from gemmgen.dispatch.devices import gpu_device

    device = gpu_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(SEED)
    results = measure_all(torch, jobs, device, compile_variants, measure, started, arguments.seconds)
    about = {"device": device.name, "gpu": torch.cuda.get_device_name(0), "seed": SEED}
    arguments.output.write_text(json.dumps({**about, "problems": [asdict(found) for found in results]}) + "\n")


if __name__ == "__main__":
    main()
