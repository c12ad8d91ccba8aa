"""Reductions over a finite field: sums and products of lines, computed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import FLOATS
from gemmgen.emulator import residues
from gemmgen.emulator.comparators import Order
from gemmgen.kernels.family import Case, Extremum, FieldPart
from gemmgen.kernels.reduction.arithmetic import EXTREMA
from gemmgen.kernels.reduction.oracle import cases
from gemmgen.kernels.reduction.plan import ReductionPlan
from gemmgen.kernels.reduction.tensor import TensorLayout

_ELEMENTS: dict[str, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    "square": lambda values: residues.multiplied(values, values),
    "abs": lambda values: residues.opaque("abs.f32", [values]),
}
_CASES = ("several blocks and a rest", "several tiles and a rest")


def reference_spec(plan: ReductionPlan) -> dict[str, Any]:
    """Lines are summed up in NumPy; no plain kernel is needed."""
    raise NotImplementedError


def field_cases(plan: ReductionPlan) -> list[Case]:
    """Several blocks, the last of them not full."""
    return [next(case for case in cases(plan) if case.name in _CASES)]


def excluded(plan: ReductionPlan) -> str:
    """Operations that are no sums or products of float32."""
    a = plan.arithmetic
    if a.operation in ("mean", "l2_norm"):
        return f"sums of {a.operation} that would overflow are rescaled, so that data decide about control flow"
    if extremum(plan) is not None:
        return ""
    if a.parts or a.combiner not in ("add", "multiply"):
        return f"{a.operation} chooses by comparisons of data and is no polynomial"
    if a.compute != "f32" or a.stored not in FLOATS or a.output not in ("f32", "f16", "bf16"):
        return f"elements of type {a.stored} are combined as {a.compute} and stored as {a.output}"
    steps = [step.operation.op for step in a.prologue]
    if a.epilogue or any(step not in _ELEMENTS for step in steps):
        return "elements or results go through further operations"
    return ""


def extremum(plan: ReductionPlan) -> Extremum | None:
    """The order and the axes of an extremum of floats, or of its place; None for other operations."""
    a = plan.arithmetic
    types = {array.name: array.type for array in plan.sequence.arrays}
    plain = not (a.parts or a.prologue or a.epilogue) and a.compute == "f32" and types["X"] in ("f32", "f16", "bf16")
    if not plain or a.operation not in EXTREMA or types["Y"] not in ("f32", "f16", "bf16", "s32", "s64"):
        return None
    return Extremum(Order(a.operation in ("max", "argmax"), a.operation.startswith("arg")), _reduced_axes(plan))


def degree(plan: ReductionPlan) -> int:
    """1 for sums, 2 for sums of squares; a product has the degree of its length."""
    if plan.arithmetic.combiner == "multiply":
        return int(plan.extents(field_cases(plan)[0].dimensions)[1])
    return 2 if any(step.operation.op == "square" for step in plan.arithmetic.prologue) else 1


def types(plan: ReductionPlan) -> dict[str, str]:
    """All elements count in full."""
    return {}


def polynomial(
    plan: ReductionPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]
) -> dict[str, npt.NDArray[Any]] | None:
    """Sums or products of lines."""
    a = plan.arithmetic
    values = residues.canonical(arrays["X"])
    for step in a.prologue:
        values = residues.canonical(_ELEMENTS[step.operation.op](values))
    axes = _reduced_axes(plan)
    if a.combiner == "add":
        # Up to 2^33 residues below 2^31 fit.
        results = residues.canonical(values.sum(axis=axes, dtype=np.uint64))
    else:
        lines = np.moveaxis(values, axes, range(len(axes))).reshape(-1, *[n for i, n in enumerate(values.shape) if i not in axes])
        results = np.ones(lines.shape[1:], np.uint64)
        for line in lines:
            results = residues.canonical(residues.multiplied(results, line))
    return {"Y": results}


def _reduced_axes(plan: ReductionPlan) -> tuple[int, ...]:
    names = [str(extent) for extent in next(array for array in plan.sequence.arrays if array.name == "X").shape]
    if isinstance(plan.layout, TensorLayout):
        return tuple(place for place, name in enumerate(names) if name in plan.layout.reduced)
    return (names.index("reduced"),)


def parts(plan: ReductionPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]) -> Iterator[FieldPart]:
    """No plain kernel is needed."""
    yield from ()


def unclaimed(plan: ReductionPlan) -> tuple[str, ...]:
    """Nothing is left out."""
    return ()
