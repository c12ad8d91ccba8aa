"""Sizes baked in: kernels that are made for some sizes of their problem beside the same kernels for all sizes.

    python -m measurements.baked_sizes                    on a machine with a GPU: times 12 problems, small, odd and large
    python -m measurements.baked_sizes --prepare          on such a machine: compiles the kernels of all 12 first, in parallel
    python -m measurements.baked_sizes --verify 30        anywhere: verifies drawn problems on the emulator
    python -m measurements.baked_sizes --verify 30 --backend gpu --jobs 8        the same on this machine's GPU

Timing takes the kernels that operations launch and makes two copies of each: for all extents and strides but the first extent, and for all.
The three take turns, in CUDA graphs, as in ``gemmgen bench``. Writes baked_sizes.json and baked_sizes.md beside this file; rows of the same
device that are not measured again remain. Drawn problems
have a random set of their sizes baked in, and are verified on all cases that are left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gemmgen.api import choose
from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.chosen import ChosenKernel
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.planning import plan as plan_of

HERE = Path(__file__).resolve().parent
SEED = 2611
PROBLEMS = (
    # small: a launch's overhead counts
    "gemm:64,64,64,f32",
    "gemm:16,128,512,nt,bf16",
    "reduction:64,512,1,sum",
    "elementwise:1,1,128,96,silu,padded",
    # odd: edges
    "gemm:333,777,1001,unaligned",
    "gemm:127,1023,511,bf16,unaligned",
    "reduction:31,742,371,max",
    "conv2d:4,32,29,31,96,3,3,1,1",
    # large
    "gemm:4096,11008,4096,nt,bf16,silu",
    "gemm:2048,2048,2048",
    "reduction:4096,8192,1,mean,bf16",
    "conv2d:32,128,28,28,128,3,3,1,1",
)
PRODUCTS = ("", "nt", "tn", "bias", "relu", "f16", "bf16,nt", "s8,nt", "alpha,beta")
REDUCTIONS = ("", "max", "f16", "mean,bf16", "argmax")
MAPS = ("silu", "padded,relu", "strided,abs", "f16")


def _drawn_sizes(draw: random.Random, number: int) -> tuple[str, list[int], tuple[str, ...]]:
    """Kind, sizes and words to choose from of a drawn problem."""
    match number % 5:
        case 0:
            return "gemm", [draw.randint(1, 150) for _ in range(3)], PRODUCTS
        case 1:
            return "gemm", [draw.randint(1, 40), draw.randint(1, 200), draw.randint(1, 600)], ("", "nt,bf16", "unaligned", "batch=3")
        case 2:
            return "reduction", [draw.randint(1, 9), draw.randint(1, 900), draw.choice([1, 1, 33, 64])], REDUCTIONS
        case 3:
            return "elementwise", [1, draw.randint(1, 3), draw.randint(1, 30), draw.randint(1, 120)], MAPS
    return "conv2d", [draw.randint(1, 2), 32, draw.randint(3, 9), draw.randint(3, 9), 32, 3, 3, 1, 1], ("", "relu", "f32")


@dataclass(frozen=True)
class Row:
    """One problem. Times in microseconds."""

    problem: str
    instance: str
    general_us: float
    but_first_us: float
    """With all sizes baked in but the first."""
    all_us: float
    peer_us: float | None
    error: str = ""


def made_for(chosen: ChosenKernel, names: list[str]) -> KernelPlan:
    """The chosen kernel with these dimensions of its problem as constants."""
    sizes = tuple((name, chosen.dimensions[name]) for name in names if chosen.dimensions[name] > 0)
    made: KernelPlan = plan_of(chosen.plan.spec.model_copy(update={"sizes": sizes}), chosen.plan.architecture)
    return made


def drawn(count: int, device: str) -> Iterator[tuple[str, ChosenKernel, list[str]]]:
    """Problems of all kinds, each with the names of the sizes to bake in."""
    draw = random.Random(SEED)
    for number in range(count):
        kind, sizes, words = _drawn_sizes(draw, number)
        text = f"{kind}:{','.join([*map(str, sizes), *filter(None, [draw.choice(words)])])}"
        chosen = choose(text, device)
        names = list(chosen.dimensions)
        yield text, chosen, draw.sample(names, draw.randint(1, len(names)))


def _verified(entry: tuple[str, list[str]], device: str, backend: str) -> tuple[str, bool]:
    """One drawn problem, in words, and whether it is wrong."""
    from gemmgen.api import verify as verified

    text, chosen, names = entry[0], choose(entry[0], device), entry[1]
    started = time.perf_counter()
    sizes = {name: chosen.dimensions[name] for name in names}
    wrong = False
    try:
        report = verified(made_for(chosen, names), backend)
        failed = [result.failure for result in report.results if result.failure]
        told = f"{len(report.results)} cases, {len(failed)} wrong {' '.join(map(str, failed[:1]))}"
        wrong = bool(failed) or not report.results
    except GemmgenError as error:
        told, wrong = f"refused: {error}", True
    return f"{text:<40} {sizes}: {told}; {time.perf_counter() - started:.1f} s", wrong


def verify(count: int, device: str, backend: str, skip: int = 0, jobs: int = 1) -> int:
    """Verifies drawn problems, so many processes at a time; the number that are wrong."""
    entries = [(text, names) for text, _, names in list(drawn(count, device))[skip:]]
    wrong = 0
    one = partial(_verified, device=device, backend=backend)
    with multiprocessing.get_context("spawn").Pool(jobs) if jobs > 1 else nullcontext() as pool:
        for told, is_wrong in pool.imap_unordered(one, entries) if pool is not None else map(one, entries):
            print(told, flush=True)
            wrong += is_wrong
    print(f"{len(entries)} problems on the {backend}, {wrong} wrong")
    return wrong


def compile_all(text: str) -> str:
    """Compiles the three kernels of a problem, into the cache."""
    from gemmgen.toolchain.compilation import compile_plan

    started, chosen = time.monotonic(), choose(text)
    names = list(chosen.dimensions)
    for plan in (chosen.plan, made_for(chosen, names[1:]), made_for(chosen, names)):
        compile_plan(plan)
    return f"{text}: {time.monotonic() - started:.1f} s"


def measure(text: str, rounds: int) -> Row:
    """Times one problem: the kernel for all sizes, for all but the first, for these alone."""
    from gemmgen.perf.benchmark import Candidate, benchmark
    from gemmgen.toolchain.compilation import compile_plan

    chosen = choose(text)
    names = list(chosen.dimensions)
    plans: list[Any] = [chosen.plan, made_for(chosen, names[1:]), made_for(chosen, names)]
    report = benchmark([Candidate(plan, compile_plan(plan)) for plan in plans], chosen.dimensions, rounds=rounds)
    times = {timing.name: timing.median_us for timing in report.timings}
    peers = [timing.median_us for timing in report.timings if timing.kind == "peer"]
    return Row(text, chosen.plan.name, *(round(times[plan.name], 3) for plan in plans), round(min(peers), 3) if peers else None)


def table(rows: list[Row], device: str) -> str:
    """The page of the measurement."""
    lines = [f"# Sizes baked in, on {device}", ""]
    lines += ["Microseconds of a launch; the three kernels and the vendor's library take turns (`python -m measurements.baked_sizes`).", ""]
    lines += ["| problem | for all sizes | all but the first baked in | all baked in | gain | peer |", "|---|---|---|---|---|---|"]
    for row in rows:
        gain = f"{row.general_us / min(row.but_first_us, row.all_us) - 1:+.1%}" if not row.error else row.error
        times = f"{row.general_us:.2f} | {row.but_first_us:.2f} | {row.all_us:.2f}"
        lines.append(f"| `{row.problem}` | {times} | {gain} | {'' if row.peer_us is None else f'{row.peer_us:.2f}'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Verifies or times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", type=int, metavar="N", help="verify so many drawn problems")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="with --verify: leave the first out")
    parser.add_argument("--device", default="H200", help="with --verify: the device that kernels are chosen for")
    parser.add_argument("--backend", default="emulator", choices=("emulator", "gpu"), help="with --verify: where to run")
    parser.add_argument("--jobs", type=int, default=1, help="with --verify: processes at a time")
    parser.add_argument("--prepare", action="store_true", help="compile the kernels that are timed, in so many processes as --jobs says")
    parser.add_argument("--only", nargs="*", default=PROBLEMS, metavar="PROBLEM", help="time these problems")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=90.0, help="begin no further problem after so long")
    parser.add_argument("--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    if arguments.verify:
        raise SystemExit(bool(verify(arguments.verify, arguments.device, arguments.backend, arguments.skip, arguments.jobs)))
    if arguments.prepare:
        with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            for told in pool.imap_unordered(compile_all, arguments.only):
                print(told, flush=True)
        return
    from gemmgen.runtime.cuda.driver import gpu

    started, device, file = time.monotonic(), str(gpu()), arguments.output / "baked_sizes.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    rows = {row["problem"]: Row(**row) for row in known.get("rows", []) if known["device"] == device}
    for text in arguments.only:
        if time.monotonic() - started > arguments.seconds:
            print(f"left out for lack of time: {text}")
            continue
        try:
            rows[text] = measure(text, arguments.rounds)
        except GemmgenError as error:
            rows[text] = Row(text, "", 0.0, 0.0, 0.0, None, str(error).splitlines()[0])
        print(rows[text], flush=True)
        ordered = sorted(rows.values(), key=lambda row: PROBLEMS.index(row.problem) if row.problem in PROBLEMS else len(PROBLEMS))
        file.write_text(json.dumps({"device": device, "rows": [asdict(row) for row in ordered]}, indent=1) + "\n")
        (arguments.output / "baked_sizes.md").write_text(table(ordered, device))


if __name__ == "__main__":
    main()
