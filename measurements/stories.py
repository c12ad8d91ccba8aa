"""Times the steps of the stories in docs/stories, chapter by chapter, each beside the vendor's library, in one run.

    python -m measurements.stories            on a machine with a GPU and torch

A chapter is a problem and the kernels that its page leads through, in their order: shipped specs, some of them with a field replaced
to show the effect of that field. Writes stories.json beside this file; the pages draw their charts from it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemmgen.api import plan
from gemmgen.core.errors import LaunchError
from gemmgen.hardware.target import Architecture, architecture
from gemmgen.kernels import family_of
from gemmgen.perf.benchmark import BenchmarkReport, Candidate, benchmark
from gemmgen.runtime.cuda.driver import gpu
from gemmgen.toolchain.compilation import compile_plan

OUTPUT = Path(__file__).resolve().parent / "stories.json"
SERIES = (
    "s0_interleaved",
    "s1_interleaved_compact",
    "s2_sequential",
    "s3_first_add",
    "s4_unroll_last_warp",
    "s5_fully_unrolled",
    "s6_grid_stride",
    "s7_shuffle",
    "s8_streaming",
)


@dataclass(frozen=True)
class Step:
    """A kernel of a chapter."""

    spec: str
    changes: tuple[str, ...] = ()
    """Fields of the spec that are replaced, as ``--set`` takes them."""
    label: str = ""
    """Name in charts; that of the spec if it is not given."""

    @property
    def name(self) -> str:
        return self.label or self.spec.rpartition("/")[2]


@dataclass(frozen=True)
class Chapter:
    """Steps that solve one problem."""

    name: str
    sizes: tuple[int, ...]
    """In the family's order."""
    steps: tuple[Step, ...]


def _gemm(*steps: tuple[str, tuple[str, ...], str]) -> tuple[Step, ...]:
    return tuple(Step(f"gemm/{spec}", changes, label) for spec, changes, label in steps)


_CHECKS = "mainloop.edges=each_vector"
_ONE_BUFFER = "mainloop.fragment_buffers=1"
SGEMM = _gemm(
    ("v0_naive", (), "V0: naive"),
    ("v1_tiled", (), "V1: tiles"),
    ("v2_transposed_quads", (), "V2: no conflicts"),
    ("v3_double_buffer", (_CHECKS, _ONE_BUFFER, "mainloop.order=rows"), "V3: two stages alone"),
    ("v3_double_buffer", (_CHECKS, _ONE_BUFFER), "V3: columns in turns"),
    ("v3_double_buffer", (_ONE_BUFFER,), "V3: edges apart"),
    ("v3_double_buffer", (), "V3: fragments ahead"),
    ("simt/blocked/128x128x8", (_CHECKS, _ONE_BUFFER), "squarer warps"),
    ("simt/blocked/128x128x8", (_ONE_BUFFER,), "squarer warps, edges apart"),
    ("simt/blocked/128x128x8", (), "squarer warps, fragments ahead"),
    ("simt/swizzled_cp_async", (), "cp.async, 4 stages"),
    ("simt/sgemm_large/nn", (), "8 × 16 a thread"),
)
MAXAS = _gemm(
    ("simt/maxas/64", ("mainloop.order=rows",), "64 threads, rows"),
    ("simt/maxas/64", ("store=direct",), "64 threads, stored directly"),
    ("simt/maxas/64", ("mainloop.edges=each_vector", "mainloop.min_blocks_per_sm=1"), "64 threads, any registers"),
    ("simt/maxas/64", (), "64 threads"),
    ("simt/maxas/256", ("mainloop.order=rows",), "256 threads, rows"),
    ("simt/maxas/256", ("store=direct",), "256 threads, stored directly"),
    ("simt/maxas/256", ("mainloop.edges=each_vector", "mainloop.min_blocks_per_sm=1"), "256 threads, any registers"),
    ("simt/maxas/256", (), "256 threads"),
    ("simt/sgemm_large/tn", (), "8 × 16 a thread"),
)
_K_MAJOR = ("mainloop.shared_a.order=k_major", "mainloop.shared_a.k_vector=4", "mainloop.shared_a.fragment=interleaved")
SHARED = _gemm(
    ("simt/swizzled_cp_async", ("mainloop.shared_a.swizzle=none", "mainloop.shared_a.padding=0"), "k-major, as it comes"),
    ("simt/swizzled_cp_async", ("mainloop.shared_a.swizzle=none", "mainloop.shared_a.padding=4"), "k-major, padded by 4"),
    ("simt/swizzled_cp_async", (), "k-major, XOR swizzle"),
    (
        "simt/swizzled_cp_async",
        (
            "mainloop.shared_a.order=mn_major",
            "mainloop.shared_a.k_vector=1",
            "mainloop.shared_a.fragment=quads_in_warp",
            "mainloop.shared_a.swizzle=none",
        ),
        "transposed, 4 bytes at a time",
    ),
    ("simt/swizzled_cp_async", ("mainloop.edges=each_tile",), "XOR swizzle, edges apart"),
    ("simt/swizzled_cp_async", ("mainloop.fragment_buffers=2", "mainloop.edges=each_tile"), "XOR swizzle, fragments ahead"),
    ("simt/swizzled_cp_async", ("cache.l2_prefetch_a=128", "cache.l2_prefetch_b=128"), "L2 prefetch of 128 bytes"),
    ("simt/swizzled_cp_async", ("cache.l2_policy_a=evict_first", "cache.l2_policy_b=evict_last"), "L2 policies: A first, B last"),
    ("simt/swizzled_cp_async", ("cache.l2_policy_a=evict_last", "cache.l2_policy_b=evict_last"), "L2 policies: both last"),
)
CONV = (
    Step("conv2d/mma_sync/turing/one_stage", (), "m8n8k16, one stage"),
    Step("conv2d/mma_sync/turing/128x64x64", (), "m8n8k16, two stages"),
    Step("conv2d/mma_sync/turing/128x128x32", (), "m8n8k16, 64 × 64 a warp, residual"),
    Step("conv2d/mma_sync/int8/channels_128x128x64", (), "m16n8k32, cp.async"),
    Step("conv2d/mma_sync/int8/pixels_128x128x64", (), "pixels as rows, no exchange"),
    Step("conv2d/wgmma/int8/128x128", (), "wgmma, NHWC"),
)
ELEMENTWISE = (
    Step("elementwise/relu", ("alignment=1", "unroll=1"), "1 element"),
    Step("elementwise/relu", ("alignment=1", "unroll=4"), "4 × 1 element"),
    Step("elementwise/relu", ("unroll=1",), "4 elements"),
    Step("elementwise/relu", (), "2 × 4 elements"),
    Step("elementwise/relu", ("unroll=4",), "4 × 4 elements"),
    Step("elementwise/relu", ("unroll=8",), "8 × 4 elements"),
)
TENSOR = _gemm(
    ("simt/sgemm_large/nt", (), "float32, FFMA"),
    ("split_precision/f16x3/128x64", (), "float32 by three of float16"),
)
HALVES = _gemm(("mma_sync/bf16/128x256", (), "bfloat16, mma.sync"), ("wgmma/bf16/128x256", (), "bfloat16, wgmma"))
CHAPTERS = (
    *(Chapter(f"sgemm_{n}", (n, n, n), SGEMM) for n in (1024, 4096, 4095)),
    *(Chapter(f"maxas_{n}", (n, n, n), MAXAS) for n in (512, 1024, 4096)),
    Chapter("shared", (4096, 4096, 4096), SHARED),
    Chapter("tensor", (4096, 4096, 4096), TENSOR),
    Chapter("halves", (4096, 4096, 4096), HALVES),
    *(Chapter(f"reduction_{e}", (2**e,), tuple(Step(f"reduction/{name}") for name in SERIES)) for e in (16, 22, 28)),
    Chapter("convolution", (128, 128, 28, 28, 128, 3, 3, 1, 1), CONV),
    Chapter("elementwise", (2**26,), ELEMENTWISE),
)


def measure(chapter: Chapter, binaries: dict[Step, Candidate], rounds: int) -> dict[str, Any]:
    """Times of a chapter's steps, in their order, and of the vendor's library."""
    candidates = [binaries[step] for step in chapter.steps]
    try:
        reports = [_timed(chapter, candidates, rounds)]
    except LaunchError:  # other arguments, other runs
        reports = [_timed(chapter, [candidate], rounds) for candidate in candidates]
    times = {timing.name: timing for report in reports for timing in report.timings}
    steps = [
        {
            "name": step.name,
            "spec": step.spec,
            "changes": list(step.changes),
            "registers": _registers(candidate),
            **{key: value for key, value in asdict(times[candidate.plan.name]).items() if key not in ("name", "kind")},
        }
        for step, candidate in zip(chapter.steps, candidates, strict=True)
    ]
    peers = {timing.name: asdict(timing) for report in reports for timing in report.timings if timing.kind == "peer"}
    clocks = reports[-1].clocks
    return {
        "chapter": chapter.name,
        "sizes": list(chapter.sizes),
        "inputs": reports[-1].inputs,
        "steps": steps,
        "peers": list(peers.values()),
        "clocks": f"SM {clocks.sm_lowest} to {clocks.sm_highest} MHz",
    }


def _timed(chapter: Chapter, candidates: Sequence[Candidate], rounds: int) -> BenchmarkReport:
    first = min((candidate.plan for candidate in candidates), key=lambda p: sum(array.alignment for array in p.sequence.arrays))
    problem = family_of(first.spec).problem(first, chapter.sizes)
    # Specs that promise less pack without gaps, which others may not take.
    if not all(c.condition.evaluate(problem) for candidate in candidates for c in candidate.plan.sequence.constraints):
        problem = family_of(candidates[0].plan.spec).problem(candidates[-1].plan, chapter.sizes)
    return benchmark(candidates, problem, rounds=rounds)


def _registers(candidate: Candidate) -> dict[str, int]:
    """Registers of the kernel that does the work, and the bytes that it spills."""
    used = candidate.binary.resources[candidate.plan.sequence.launches[0].entry]
    return {"registers": used.registers, "spilled_bytes": used.spill_stores + used.spill_loads}


def compiled(steps: Sequence[Step], target: Architecture) -> dict[Step, Candidate]:
    """The kernels of all steps, for the device or for its chip's features only."""

    def candidate(step: Step) -> Candidate:
        planned = plan(step.spec, None, step.changes)
        if not planned.architecture.name.endswith("a"):
            planned = plan(step.spec, target.name, step.changes)
        return Candidate(planned, compile_plan(planned))

    with ThreadPoolExecutor() as pool:
        return dict(zip(steps, pool.map(candidate, steps), strict=True))


def main() -> None:
    """Compiles, measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="replays of each kernel of a chapter")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--compile-only", action="store_true", help="compile for an H200, which needs no GPU, and stop")
    parser.add_argument("chapters", nargs="*", help="chapters to measure; the others keep their entries")
    arguments = parser.parse_args()
    chosen = [chapter for chapter in CHAPTERS if not arguments.chapters or chapter.name in arguments.chapters]
    target = architecture("sm_90") if arguments.compile_only else gpu(0).architecture
    assert target is not None
    steps = list(dict.fromkeys(step for chapter in chosen for step in chapter.steps))
    binaries = compiled(steps, target)
    for step in steps:
        print(f"{step.name}: {_registers(binaries[step])}", flush=True)
    if arguments.compile_only:
        return
    known = {row["chapter"]: row for row in json.loads(arguments.output.read_text())["chapters"]} if arguments.output.exists() else {}
    about = {"device": str(gpu(0)), "date": datetime.date.today().isoformat()}
    for chapter in chosen:
        started = time.monotonic()
        try:
            known[chapter.name] = measure(chapter, binaries, arguments.rounds)
        except Exception as error:  # an error in one chapter must not cost the others
            print(f"{chapter.name}: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{chapter.name}: {time.monotonic() - started:.1f} s", flush=True)
        for row in [*known[chapter.name]["steps"], *known[chapter.name]["peers"]]:
            print(f"    {row['median_us']:12.2f} µs  {row['name']}", flush=True)
        rows = [known[item.name] for item in CHAPTERS if item.name in known]
        arguments.output.write_text(json.dumps({**about, "chapters": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
