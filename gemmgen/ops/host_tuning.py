"""The choice among kernels for this machine's processor, class of shapes by class of shapes: timed once, then remembered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Literal

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.cpu import CPU_ARCHITECTURES, host_name, runs_here
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan, packed, plan_cpu_gemm
from gemmgen.kernels.cpu_gemm.spec import CpuGemmSpec
from gemmgen.kernels.spec_files import load_spec
from gemmgen.toolchain.compilation import compile_host_plan
from gemmgen.toolchain.host import find_compiler

CANDIDATES = (("c7_streamed", ()), ("c7_streamed", ("loops.blocks.k=256",)), ("avx512_12x32", ()), ("avx2_6x16", ()), ("neon_8x12", ()))
"""Specs of ``specs/cpu`` for any product, with what is changed of them: micro-kernels, and depths of slices."""
ROUNDS = 7
TIE = 1.02
"""Of candidates that are so much slower than the fastest at most, the first is taken: times come out anew by that much."""

ShapeClass = Literal["few_rows", "few_columns", "small", "large"]
REPRESENTATIVES: dict[ShapeClass, tuple[int, int, int]] = {
    "few_rows": (16, 2048, 1024),
    "few_columns": (2048, 64, 1024),
    "small": (128, 128, 128),
    "large": (640, 640, 640),
}
"""The m, n, k that stand for each class."""
MOST_FEW_ROWS = 32
MOST_FEW_COLUMNS = 96
MOST_SMALL_PRODUCTS = 160**3


@dataclass(frozen=True)
class Choice:
    """The instance that was fastest on a class of shapes."""

    name: str
    us: dict[str, float]
    """Best time of one call of each candidate on the class's representative, one thread, in microseconds of processor time."""
    seconds: float
    """Seconds of the search, compilation included."""


def class_of(m: int, n: int, k: int) -> ShapeClass:
    """The class of a product whose result is stored by rows."""
    if m <= MOST_FEW_ROWS < n:
        return "few_rows"
    if n <= MOST_FEW_COLUMNS < m:
        return "few_columns"
    return "small" if m * n * k <= MOST_SMALL_PRODUCTS else "large"


@cache
def candidates() -> tuple[CpuGemmPlan, ...]:
    """Plans of all candidates that this machine runs."""
    folder = resource_directory("specs") / "cpu"
    specs: list[CpuGemmSpec] = [load_spec(folder / f"{name}.yaml", changes) for name, changes in CANDIDATES]  # type: ignore[misc]
    wanted = [(spec, CPU_ARCHITECTURES[spec.architecture]) for spec in specs]
    return tuple(plan_cpu_gemm(spec, architecture) for spec, architecture in wanted if runs_here(architecture))


@cache
def choice(shape: ShapeClass) -> Choice | None:
    """The choice for a class, from the cache or timed now; None if the machine runs no candidate. Raises ``EnvironmentMissing``
    without a compiler."""
    compiler, plans = find_compiler(), candidates()
    if len(plans) < 2:
        return Choice(plans[0].name, {}, 0.0) if plans else None
    names = [plan.name for plan in plans]
    known_choices, key = Cache(), cache_key("fastest", shape, *map(str, REPRESENTATIVES[shape]), host_name(), compiler.version, *names)
    known = known_choices.load(key)
    if known is not None:
        return Choice(**json.loads(known["choice.json"]))
    started = time.perf_counter()
    times = timed(plans, REPRESENTATIVES[shape])
    least = min(times.values())
    fastest = next(name for name, us in times.items() if us <= TIE * least)
    found = Choice(fastest, times, time.perf_counter() - started)
    known_choices.store(key, {"choice.json": json.dumps(asdict(found)).encode()})
    return found


def general_spec(shape: ShapeClass = "large") -> CpuGemmSpec | None:
    """The fastest candidate on a class of shapes; None if this machine runs none. Raises ``EnvironmentMissing`` without a compiler."""
    found = choice(shape)
    return None if found is None else next(plan.spec for plan in candidates() if plan.name == found.name)


def timed(plans: Sequence[CpuGemmPlan], sizes: tuple[int, int, int]) -> dict[str, float]:
    """Best time of one call of each plan, by name, in microseconds of processor time; one thread, in turns."""
    import numpy as np

    from gemmgen.perf.host.benchmark import in_turns
    from gemmgen.runtime.native import LoadedLibrary

    m, n, k = sizes
    a, b, c = np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.empty((m, n), np.float32)
    pointers = {"A": a.ctypes.data, "B": b.ctypes.data, "C": c.ctypes.data}
    calls: dict[str, Callable[[], object]] = {}
    for plan in plans:
        library = LoadedLibrary(compile_host_plan(plan), plan.sequence)
        library.set_threads(1)
        numbers = {**packed(plan, sizes), **plan.sequence.default_scalars}
        calls[plan.name] = lambda library=library, numbers=numbers: library.call(pointers, numbers)  # type: ignore[misc]
    samples = in_turns(calls, ROUNDS, time.thread_time)
    return {name: 1e6 * min(found) for name, found in samples.items()}
