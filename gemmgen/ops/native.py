"""Products of arrays in host memory by kernels for this machine's processor."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

from gemmgen.core.errors import EnvironmentMissing, PlanError
from gemmgen.hardware.cpu import cpu_architecture
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan, packed, plan_cpu_gemm
from gemmgen.kernels.cpu_gemm.spec import BlockedLoops, CpuGemmSpec
from gemmgen.kernels.epilogue.steps import numbered
from gemmgen.kernels.gemm.request import GemmRequest, is_stored
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.kernels.requests import Layout, Request, replaced
from gemmgen.ops.arrays import NO_MEMORY
from gemmgen.ops.background import Compilers
from gemmgen.ops.first_products import MAX_PRODUCTS, first_function
from gemmgen.ops.host_tuning import ShapeClass, Transposes, class_of, general_spec, quick_spec
from gemmgen.toolchain.compilation import compile_host_plan, host_plan_is_cached

TRANSPOSES: dict[tuple[bool, ...], Transposes] = {(True, True): "nn", (True, False): "nt", (False, True): "tn", (False, False): "tt"}
"""The transpositions by which a kernel for matrices stored by rows takes operands, by whether A and B are stored by rows."""


class Served:
    """The kernel that serves a kind of product now: a function of C, and the plan of its arguments. A better one with the same
    arguments and the same bits may take its place at any time."""

    __slots__ = ("address", "function", "plan")

    def __init__(self, plan: CpuGemmPlan) -> None:
        """``plan``: the one that is meant to serve."""
        self.plan = plan
        self.function: Any = None
        self.address = ctypes.c_void_p()
        """Address of the function, for callers outside of Python."""

    def serve(self, plan: CpuGemmPlan) -> None:
        """Compiles a plan, if the user's cache does not have it, and has it serve from now on."""
        from gemmgen.runtime.native import LoadedLibrary

        self.serve_by(LoadedLibrary(compile_host_plan(plan), plan.sequence).function)

    def serve_by(self, function: Any) -> None:
        """Has a function of C serve from now on."""
        self.function = function
        self.address.value = ctypes.cast(function, ctypes.c_void_p).value


class NativeCall:
    """A product with the layouts of one call: a function, and where each of its arguments comes from."""

    def __init__(self, served: Served, request: GemmRequest) -> None:
        """``request`` has a result that is stored by rows, and operands as the plan wants them."""
        self.served, plan = served, served.plan
        self.plan = plan
        layouts = {"A": (request.operands[0], request.a), "B": (request.operands[1], request.b), "C": ("out", request.c)}
        if request.residual is not None:
            layouts["Z"] = ("residual", request.residual)
        sources = {name: operand for name, (operand, _) in layouts.items()} | {"bias": "bias"}
        sources |= {numbered("factor", index): scale for index, scale in enumerate(request.scales)}
        problem = packed(plan, request.sizes)
        for matrix in (plan.matrix_a, plan.matrix_b, plan.matrix_c, *plan.residuals):
            problem[matrix.leading_dimension] = _leading_dimension(layouts[matrix.name][1], matrix.row_major)
        self._batch = request.c.shape[0] if request.batched else 1
        self._values: list[Any] | None = None
        self._places: tuple[tuple[int, int], ...] = ()
        self._numbers: tuple[tuple[int, int], ...] = ()
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
        self._moving = [(at, value) for at, (kind, _, value) in enumerate(self._arguments) if kind == "pointer" and value]

    def __call__(self, pointers: Mapping[str, int], numbers: Mapping[str, float]) -> None:
        """Computes the product; ``pointers`` and ``numbers`` by the names that the operation gives them."""
        self._run(
            [value if kind == "number" else (pointers if kind == "pointer" else numbers)[name] for kind, name, value in self._arguments]
        )

    def bind(self, arrays: Sequence[str], numbers: Sequence[str]) -> None:
        """Has ``call`` take pointers and numbers in the order of these names."""
        values = [value if kind == "number" else None for kind, _, value in self._arguments]
        sources = [(kind, at, name) for at, (kind, name, _) in enumerate(self._arguments)]
        self._places = tuple((at, arrays.index(name)) for kind, at, name in sources if kind == "pointer")
        self._numbers = tuple((at, numbers.index(name)) for kind, at, name in sources if kind == "scalar")
        self._values = values

    def call(self, pointers: Sequence[int], numbers: Sequence[float]) -> None:
        """Computes the product once ``bind`` has said in which order pointers and numbers come; looks up no name."""
        assert self._values is not None
        values = self._values.copy()
        for at, place in self._places:
            values[at] = pointers[place]
        for at, place in self._numbers:
            values[at] = numbers[place]
        self._run(values)

    def plain_arguments(self) -> tuple[list[Any], dict[str, int]] | None:
        """The function's arguments for a product without factors, and the places among them of the addresses of ``a``, ``b`` and ``out``;
        None where it takes further arrays or numbers, or is called several times."""
        factors = {"alpha": ctypes.c_float(1.0), "beta": ctypes.c_float(0.0)}
        places = {name: at for at, (kind, name, _) in enumerate(self._arguments) if kind == "pointer"}
        plain = all(kind != "scalar" or name in factors for kind, name, _ in self._arguments)
        if self._batch != 1 or not plain or places.keys() != {"a", "b", "out"}:
            return None
        return [value if kind == "number" else factors.get(name) for kind, name, value in self._arguments], places

    def _run(self, values: list[object]) -> None:
        function = self.served.function
        for _ in range(self._batch):
            if function(*values) != 0:
                raise MemoryError(NO_MEMORY)
            for index, step in self._moving:
                values[index] += step


def native_plan(request: Request) -> CpuGemmPlan | None:
    """Plan of the kernel that multiplies ``request``'s operands on this processor; None where no kernel for processors does. Raises
    ``EnvironmentMissing`` without a compiler."""
    readable = _readable(request)
    if readable is None:
        return None
    form, letters = readable
    return _planned(general_spec(class_of(*form.sizes), letters), form.epilogue, form.invariant != "none")


def _readable(request: Request) -> tuple[GemmRequest, Transposes] | None:
    """A product that kernels for processors can compute, its result stored by rows, and how its operands are stored; None of others."""
    if not isinstance(request, GemmRequest) or {request.a.type, request.b.type, request.c.type} != {"f32"} or request.amax != "none":
        return None
    if request.groups is not None or request.second is not None or request.triangles.c != "all":
        return None
    if not is_stored(request.c, row_major=True) or _is_vector_along_lines(request):
        request = request.transposed
    if not _stores_by_rows(request):
        return None
    by_rows = tuple(is_stored(layout, row_major=True) for layout in (request.a, request.b))
    if not all(rows or is_stored(layout, row_major=False) for rows, layout in zip(by_rows, (request.a, request.b), strict=True)):
        return None
    return request, TRANSPOSES[by_rows]


def _stores_by_rows(request: GemmRequest) -> bool:
    stored = [request.c] + ([] if request.residual is None else [request.residual])
    return all(is_stored(layout, row_major=True) for layout in stored)


def _is_vector_along_lines(request: GemmRequest) -> bool:
    """True if the transposed product of a matrix and a vector reads the matrix in order: by dot products of its lines with the vector, or
    line by line. These add up in another order than products of more rows."""
    m, n, _ = request.sizes
    swaps = (m == 1 < n and not is_stored(request.b, row_major=True)) or (n == 1 < m and not is_stored(request.a, row_major=True))
    return swaps and request.invariant == "none" and _stores_by_rows(request.transposed)


def native_call(request: Request) -> NativeCall | None:
    """Plan of a request on this processor; None where it does not: other types than float32, or no compiler."""
    readable = _readable(request)
    if readable is None or (isinstance(request, GemmRequest) and request.named):
        return None
    form, letters = readable
    try:
        served = _served(letters, form.epilogue, class_of(*form.sizes), prod(form.sizes) > MAX_PRODUCTS, form.invariant != "none")
    except EnvironmentMissing:
        return None
    return None if served is None else NativeCall(served, form)


def _leading_dimension(layout: Layout, row_major: bool) -> int:
    slow, contiguous = (-2, -1) if row_major else (-1, -2)
    least = max(1, layout.shape[contiguous])
    return max(least, layout.strides[slow]) if layout.shape[slow] > 1 else least


def _served(letters: Transposes, epilogue: tuple[object, ...], shape: ShapeClass, patient: bool, invariant: bool = False) -> Served | None:
    """The kernel for a kind of product. ``patient``: one of so many multiplications that it waits for the kernel meant for it; others
    take one that is compiled in a part of a second, while a thread compiles that. ``invariant``: rows keep their bits."""
    key = letters, epilogue, shape, invariant
    known = _known.get(key)
    if known is not None:
        return known
    plan = _planned(general_spec(shape, letters), epilogue, invariant)
    if plan is None:
        return None
    served = Served(plan)
    waits = patient or host_plan_is_cached(plan)
    first = None if waits or epilogue or invariant else first_function(letters)
    quick = None if waits or first else _planned(quick_spec(letters), epilogue, invariant)
    if first is not None:
        served.serve_by(first)
    else:
        served.serve(quick or plan)
    served = _known.setdefault(key, served)
    if first is not None or quick is not None:
        _compilers().submit(plan, lambda: served.serve(plan))
    return served


_known: dict[tuple[Transposes, tuple[Any, ...], ShapeClass, bool], Served] = {}


@cache
def _compilers() -> Compilers:
    return Compilers(compile_host_plan)


def _planned(spec: CpuGemmSpec | None, epilogue: tuple[object, ...], invariant: bool = False) -> CpuGemmPlan | None:
    """The plan of a spec with other operations; None if there is none. ``invariant``: its functions for few rows must keep a row's bits."""
    if spec is None:
        return None
    if invariant and isinstance(spec.loops, BlockedLoops) and spec.loops.few == "fastest":
        spec = replaced(spec, {"loops": spec.loops.model_copy(update={"few": "invariant"})})
    try:
        return plan_cpu_gemm(replaced(spec, {"epilogue": epilogue}), cpu_architecture(spec.architecture))
    except PlanError:
        return None
