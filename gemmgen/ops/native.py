"""Products of arrays in host memory by kernels for this machine's processor."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.errors import EnvironmentMissing, PlanError
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.cpu import CPU_ARCHITECTURES, cpu_architecture, host_name, runs_here
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan, packed, plan_cpu_gemm
from gemmgen.kernels.cpu_gemm.spec import CpuGemmSpec
from gemmgen.kernels.epilogue.steps import numbered
from gemmgen.kernels.gemm.matcher import GemmRequest, is_stored
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.kernels.requests import Layout, Request, replaced
from gemmgen.kernels.spec_files import load_spec
from gemmgen.toolchain.compilation import compile_host_plan
from gemmgen.toolchain.host import find_compiler

if TYPE_CHECKING:
    from gemmgen.runtime.arrays.views import ArrayView
    from gemmgen.runtime.native import LoadedLibrary

GENERAL_SPECS = ("c6_avx512", "avx2_6x16", "neon_8x12")
"""Instances for any product, in ``specs/cpu``; of those that the machine runs, the one that is fastest on it is taken."""
TUNING_SIZE = 512
TUNING_ROUNDS = 7


class NativeCall:
    """A product with the layouts of one call: a function, and where each of its arguments comes from."""

    def __init__(self, library: LoadedLibrary, plan: CpuGemmPlan, request: GemmRequest) -> None:
        """``request`` has a result that is stored by rows, and operands as ``plan`` wants them."""
        self._function = library.function
        layouts = {"A": (request.operands[0], request.a), "B": (request.operands[1], request.b), "C": ("out", request.c)}
        if request.residual is not None:
            layouts["Z"] = ("residual", request.residual)
        sources = {name: operand for name, (operand, _) in layouts.items()} | {"bias": "bias"}
        sources |= {numbered("factor", index): scale for index, scale in enumerate(request.scales)}
        problem = packed(plan, request.sizes)
        for matrix in (plan.matrix_a, plan.matrix_b, plan.matrix_c, *plan.residuals):
            problem[matrix.leading_dimension] = _leading_dimension(layouts[matrix.name][1], matrix.row_major)
        self._batch = request.c.shape[0] if request.batched else 1
        strides = {name: layout.strides[0] if request.batched else 0 for name, (_, layout) in layouts.items()}
        self._arguments: list[tuple[str, str, Any]] = []
        for argument in plan.sequence.parameters_of(0):
            if isinstance(argument, ArrayArgument):
                step = 4 * strides.get(argument.name, 0)
                self._arguments.append(("pointer", sources[argument.name], step))
            elif argument.name in problem:
                self._arguments.append(("number", "", ctypes.c_int(problem[argument.name])))
            else:
                self._arguments.append(("scalar", argument.name, None))

    def __call__(self, views: Mapping[str, ArrayView | None], numbers: Mapping[str, float]) -> None:
        """Computes the product; ``views`` and ``numbers`` by the names that the operation gives them."""
        values: list[Any] = []
        moving = []
        for kind, name, value in self._arguments:
            if kind == "pointer":
                view = views[name]
                assert view is not None
                if value:
                    moving.append((len(values), value))
                values.append(view.pointer)
            else:
                values.append(value if kind == "number" else numbers[name])
        for _ in range(self._batch):
            if self._function(*values) != 0:
                raise MemoryError("matmul: no memory for packed operands")
            for index, step in moving:
                values[index] += step


def native_call(request: Request) -> NativeCall | None:
    """Plan of a request on this processor; None where it does not: other types than float32, or no compiler."""
    if not isinstance(request, GemmRequest) or {request.a.type, request.b.type, request.c.type} != {"f32"} or request.amax != "none":
        return None
    if not is_stored(request.c, row_major=True):
        request = request.transposed
    stored = [request.c] + ([] if request.residual is None else [request.residual])
    if not all(is_stored(layout, row_major=True) for layout in stored):
        return None
    letters = ""
    for layout in (request.a, request.b):
        by_rows = is_stored(layout, row_major=True)
        if not by_rows and not is_stored(layout, row_major=False):
            return None
        letters += "n" if by_rows else "t"
    try:
        loaded = _loaded(letters, request.epilogue)
    except EnvironmentMissing:
        return None
    return None if loaded is None else NativeCall(*loaded, request)


def _leading_dimension(layout: Layout, row_major: bool) -> int:
    slow, contiguous = (-2, -1) if row_major else (-1, -2)
    least = max(1, layout.shape[contiguous])
    return max(least, layout.strides[slow]) if layout.shape[slow] > 1 else least


@cache
def _loaded(letters: str, epilogue: tuple[Any, ...]) -> tuple[LoadedLibrary, CpuGemmPlan] | None:
    from gemmgen.runtime.native import LoadedLibrary

    spec = general_spec()
    if spec is None:
        return None
    wanted = replaced(spec, {"transpose": letters, "epilogue": epilogue})
    try:
        plan = plan_cpu_gemm(wanted, cpu_architecture(spec.architecture))
    except PlanError:
        return None
    return LoadedLibrary(compile_host_plan(plan), plan.sequence), plan


@cache
def general_spec() -> CpuGemmSpec | None:
    """The fastest of the general instances on this machine; None if it runs none. Several are timed once, and the cache remembers
    which it was. Raises ``EnvironmentMissing`` without a compiler."""
    folder = resource_directory("specs") / "cpu"
    specs: list[CpuGemmSpec] = [load_spec(folder / f"{name}.yaml") for name in GENERAL_SPECS]  # type: ignore[misc]
    specs = [spec for spec in specs if runs_here(CPU_ARCHITECTURES[spec.architecture])]
    if len(specs) < 2:
        find_compiler()
        return specs[0] if specs else None
    plans = [plan_cpu_gemm(spec, CPU_ARCHITECTURES[spec.architecture]) for spec in specs]
    cache_of_choices, key = Cache(), cache_key("fastest", host_name(), find_compiler().version, *(plan.name for plan in plans))
    known = cache_of_choices.load(key)
    if known is not None:
        name = json.loads(known["choice.json"])["name"]
        return next((spec for spec, plan in zip(specs, plans, strict=True) if plan.name == name), specs[0])
    fastest = _fastest(plans)
    cache_of_choices.store(key, {"choice.json": json.dumps({"name": plans[fastest].name}).encode()})
    return specs[fastest]


def _fastest(plans: list[CpuGemmPlan]) -> int:
    """The plan that multiplies middling matrices in the least time, on one thread."""
    import numpy as np

    from gemmgen.perf.host.benchmark import in_turns
    from gemmgen.runtime.native import LoadedLibrary

    size = TUNING_SIZE
    a, b, c = (np.ones((size, size), np.float32) for _ in range(3))
    pointers = {"A": a.ctypes.data, "B": b.ctypes.data, "C": c.ctypes.data}
    calls: dict[str, Callable[[], object]] = {}
    for index, plan in enumerate(plans):
        library = LoadedLibrary(compile_host_plan(plan), plan.sequence)
        library.set_threads(1)
        numbers = {**packed(plan, (size, size, size)), **plan.sequence.default_scalars}
        calls[str(index)] = lambda library=library, numbers=numbers: library.call(pointers, numbers)  # type: ignore[misc]
    samples = in_turns(calls, TUNING_ROUNDS, time.thread_time)
    return min(range(len(plans)), key=lambda index: min(samples[str(index)]))
