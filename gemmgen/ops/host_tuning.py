"""The choice among kernels for this machine's processor, class of shapes by class of shapes: timed once, then remembered."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Literal

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.errors import PlanError
from gemmgen.hardware.cpu import CPU_ARCHITECTURES, CpuArchitecture, best_architecture, host_name, runs_here
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan, packed, plan_cpu_gemm
from gemmgen.kernels.cpu_gemm.spec import CpuGemmSpec
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import load_spec
from gemmgen.toolchain.compilation import compile_host_plan
from gemmgen.toolchain.host import find_compiler

_DEPTH = ("loops.blocks.k=256",)
"""All kernels cut k alike, so that results have the same bits whichever of them makes them."""
_UNPACKED = ("loops.pack=none", "loops.blocks={m: 64, n: 6144, k: 256}", "loops.prefetch.packing=false")
"""For few rows: packed, every element of B would be written and read once more than it is used."""
Candidate = tuple[str, tuple[str, ...]]
"""A spec of ``specs/cpu`` and its changed fields: micro-kernels, packing and prefetching."""
_FETCHED = ("loops.prefetch.packing=true",)
_FITTED = ("loops.pack=b", "loops.edges=fitted", "loops.prefetch.packing=false")
"""Tiles of the shapes that fit C best; B is read in place where a copy would be read too seldom."""
_AVX512_FITTED: Candidate = (
    "micro_kernels/avx512_12x32",
    ("loops.micro_kernel={rows: 6, columns: 64}", "loops.blocks={m: 384, n: 2048, k: 256}", *_FITTED),
)
_AVX2_FITTED: Candidate = (
    "micro_kernels/avx2_6x16",
    ("loops.micro_kernel={rows: 4, columns: 24}", "loops.blocks={m: 120, n: 1152, k: 256}", *_FITTED),
)
_AVX512_ROWS: Candidate = ("micro_kernels/avx512_12x32", ("loops.micro_kernel={rows: 4, columns: 96}", *_UNPACKED))
_AVX2_ROWS: Candidate = ("micro_kernels/avx2_6x16", ("loops.micro_kernel={rows: 4, columns: 24}", *_UNPACKED))
CANDIDATES: tuple[Candidate, ...] = (
    ("c7_streamed", _DEPTH),
    ("c6_avx512", _DEPTH),
    ("micro_kernels/avx512_12x32", _DEPTH),
    ("micro_kernels/avx512_12x32", (*_DEPTH, "loops.pack=b")),
    _AVX512_ROWS,
    _AVX512_FITTED,
    ("micro_kernels/avx2_6x16", (*_DEPTH, *_FETCHED)),
    ("micro_kernels/avx2_6x16", _DEPTH),
    ("micro_kernels/avx2_6x16", (*_DEPTH, "loops.pack=b")),
    ("micro_kernels/avx2_6x16", (*_DEPTH, "loops.pack=b", *_FETCHED)),
    ("micro_kernels/avx2_6x16", (*_DEPTH, "loops.pack=none")),
    _AVX2_ROWS,
    _AVX2_FITTED,
    ("micro_kernels/neon_8x12", _DEPTH),
)
QUICK: Candidate = (
    "micro_kernels/avx2_6x16",
    (*_DEPTH, "loops.edges=padded", "loops.instructions=extension", "loops.threads.count=1"),
)
"""The kernel that is compiled soonest; it serves while another is compiled."""
MIN_ROUNDS = 7
MAX_ROUNDS = 31
SEARCH_SECONDS = 0.2
"""Seconds of timing for each class, if that leaves enough rounds."""
LIKELY_PRODUCTS_PER_SECOND = 25e9
TIE = 1.02
"""Candidates within this factor of the fastest count as equal, and the first is taken: repeated times vary by as much."""

Transposes = Literal["nn", "nt", "tn", "tt"]
ShapeClass = Literal["few_rows", "few_rows_near", "few_columns", "small", "large"]
REPRESENTATIVES: dict[ShapeClass, tuple[int, int, int]] = {
    "few_rows": (8, 4096, 4096),
    "few_rows_near": (8, 512, 1024),
    "few_columns": (2048, 64, 1024),
    "small": (128, 128, 128),
    "large": (640, 640, 640),
}
"""The m, n, k that stand for each class. Where rows are few, B is read once: from memory if it is larger
than most caches, else, if it is near, from them."""
TUNED_TRANSPOSES: tuple[Transposes, ...] = ("nn", "nt")
"""Storage of the operands for which ``gemmgen tune --cpu`` finds the choices; others are found when they are first needed."""
MAX_FEW_ROWS = 32
MAX_GROUPED_ROWS = 12
"""Rows up to which a large B is not packed: on a Xeon, 27 x 4369 x 708 takes 2.7 ms with panels of B, 3.8 by groups of four rows."""
MAX_NEAR_ELEMENTS = 1 << 19
MAX_FEW_COLUMNS = 96
MAX_SMALL_PRODUCTS = 1 << 24
MAX_DOTS = 8
"""Rows, and columns, up to which sums are dot products under some layouts; kernels for large products have none."""
MAX_SHALLOW = 24
"""Depth up to which writing C takes longer than multiplying."""


@dataclass(frozen=True)
class Choice:
    """The instance that was fastest on a class of shapes."""

    name: str
    us: dict[str, float]
    """Time of one call of each candidate on the class's representative, one thread, in microseconds of processor time."""
    seconds: float
    """Seconds of the search, compilation included."""


def class_of(m: int, n: int, k: int) -> ShapeClass:
    """The class of a product whose result is stored by rows."""
    if m <= MAX_FEW_ROWS < n:
        return "few_rows_near" if n * k <= MAX_NEAR_ELEMENTS else "few_rows" if m <= MAX_GROUPED_ROWS else "large"
    if n <= MAX_FEW_COLUMNS < m:
        return "few_columns"
    return "small" if m * n * k <= MAX_SMALL_PRODUCTS or k <= MAX_SHALLOW or min(m, n) <= MAX_DOTS else "large"


_LARGE = (*_DEPTH, "loops.few=none")
_PACKED: tuple[Candidate, ...] = (("micro_kernels/avx512_12x32", _DEPTH), ("micro_kernels/avx2_6x16", _DEPTH))
_WITHOUT_TIMING: dict[ShapeClass, tuple[Candidate, ...]] = {
    "few_rows": (_AVX512_FITTED, *_PACKED),
    "few_rows_near": (_AVX512_FITTED, _AVX2_FITTED),
    "few_columns": (_AVX512_FITTED, _AVX2_FITTED),
    "small": (_AVX512_FITTED, _AVX2_FITTED),
    "large": (("c7_streamed", _LARGE), ("micro_kernels/avx2_6x16", (*_LARGE, *_FETCHED))),
}
"""Candidates of each class, the best first, as measured on the machines of ``docs/cpu.md``. NEON has one."""


_shipped = cache(shipped_specs)


def _plan(candidate: Candidate, transpose: Transposes, architecture: CpuArchitecture) -> CpuGemmPlan | None:
    """None if the candidate is for other processors, or does not take operands stored so."""
    name, changes = candidate
    spec = load_spec(_shipped()[f"cpu/{name}"], (*changes, f"transpose={transpose}"))
    if isinstance(spec, CpuGemmSpec) and spec.architecture == architecture.name:
        with suppress(PlanError):
            return plan_cpu_gemm(spec, architecture)
    return None


@cache
def candidates(transpose: Transposes) -> tuple[CpuGemmPlan, ...]:
    """Plans of all candidates for this machine's newest architecture that take operands stored so."""
    architecture = best_architecture()
    if architecture is None:
        return ()
    plans = [_plan(candidate, transpose, architecture) for candidate in CANDIDATES]
    return tuple(plan for plan in plans if plan is not None)


@cache
def quick_spec(transpose: Transposes) -> CpuGemmSpec | None:
    """The spec that is compiled soonest; None where this machine does not run it."""
    architecture, best = CPU_ARCHITECTURES["x86_64_v3"], best_architecture()
    if best is None or not runs_here(architecture):
        return None
    name, changes = QUICK
    plan = _plan((name, (*changes, f"loops.dot_columns={best.dot_columns}")), transpose, architecture)
    return None if plan is None else plan.spec


@cache
def choice(shape: ShapeClass, transpose: Transposes) -> Choice | None:
    """The choice for a class and the storage of its operands, from the cache or timed now; None if the machine runs no candidate.
    Raises ``EnvironmentMissing`` without a compiler."""
    plans = candidates(transpose)
    if len(plans) < 2:
        return Choice(plans[0].name, {}, 0.0) if plans else None
    known = known_choice(shape, transpose)
    if known is not None:
        return known
    started = time.perf_counter()
    times = timed(plans, REPRESENTATIVES[shape])
    least = min(times.values())
    fastest = next(name for name, us in times.items() if us <= TIE * least)
    fastest_choice = Choice(fastest, times, time.perf_counter() - started)
    Cache().store(_choice_key(shape, plans), {"choice.json": json.dumps(asdict(fastest_choice)).encode()})
    return fastest_choice


def known_choice(shape: ShapeClass, transpose: Transposes) -> Choice | None:
    """The choice that ``gemmgen tune --cpu`` made on this machine; None if it did not run."""
    known = Cache().load(_choice_key(shape, candidates(transpose)))
    return None if known is None else Choice(**json.loads(known["choice.json"]))


def _choice_key(shape: ShapeClass, plans: Sequence[CpuGemmPlan]) -> str:
    names = (plan.name for plan in plans)
    return cache_key("fastest", shape, *map(str, REPRESENTATIVES[shape]), host_name(), find_compiler().version, *names)


def general_spec(shape: ShapeClass, transpose: Transposes) -> CpuGemmSpec | None:
    """The candidate for a class of shapes: the fastest where that was timed, which nobody does unasked; else the best on other machines.
    None if this machine runs none. Raises ``EnvironmentMissing`` without a compiler."""
    known, architecture = known_choice(shape, transpose), best_architecture()
    if architecture is None:
        return None
    chosen = [plan for plan in candidates(transpose) if known is not None and plan.name == known.name]
    plans = (_plan(candidate, transpose, architecture) for candidate in (*_WITHOUT_TIMING[shape], *CANDIDATES))
    best: CpuGemmPlan | None = next((plan for plan in (*chosen, *plans) if plan is not None), None)
    return None if best is None else best.spec


def timed(plans: Sequence[CpuGemmPlan], sizes: tuple[int, int, int]) -> dict[str, float]:
    """Time of one call of each plan, by name, in microseconds of processor time; one thread, in turns.

    It is a plan's median share of the rounds, of the shortest round: disturbances of whole rounds, such as another process on the same
    core, do not change the order."""
    import numpy as np

    from gemmgen.perf.host.benchmark import MIN_TURN_SECONDS, in_turns
    from gemmgen.runtime.native import LoadedLibrary

    m, n, k = sizes
    # Ones are the same however they are stored.
    a, b, c = np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.empty((m, n), np.float32)
    pointers = {"A": a.ctypes.data, "B": b.ctypes.data, "C": c.ctypes.data}
    calls: dict[str, Callable[[], object]] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        binaries = list(pool.map(compile_host_plan, plans))
    for plan, binary in zip(plans, binaries, strict=True):
        library = LoadedLibrary(binary, plan.sequence)
        library.set_threads(1)
        numbers = {**packed(plan, sizes), **plan.sequence.default_scalars}
        calls[plan.name] = lambda library=library, numbers=numbers: library.call(pointers, numbers)  # type: ignore[misc]
    seconds_a_round = len(plans) * max(MIN_TURN_SECONDS, m * n * k / LIKELY_PRODUCTS_PER_SECOND)
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(SEARCH_SECONDS / seconds_a_round)))
    samples = np.array(list(in_turns(calls, rounds, time.thread_time).values()))
    whole = samples.sum(axis=0)
    shares = np.median(samples / whole, axis=1)
    return {plan.name: 1e6 * float(share * whole.min()) for plan, share in zip(plans, shares, strict=True)}
