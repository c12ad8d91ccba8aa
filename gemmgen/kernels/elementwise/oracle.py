"""The problems that an elementwise kernel is verified on, the data in them, and the elements of y with their error bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, FLOATS, to_numbers
from gemmgen.core.formulas import round_up
from gemmgen.kernels.elementwise.access import AXES, axis_of
from gemmgen.kernels.elementwise.cost_model import cost
from gemmgen.kernels.elementwise.plan import ElementwisePlan, packed_problem
from gemmgen.kernels.epilogue.numbers import Tracked, spread, to_type, tracked
from gemmgen.kernels.epilogue.steps import Access, apply_steps, stored_output
from gemmgen.kernels.family import Case, Expected

MAX_INTEGER = 4
MAX_BLOCKS_OF_A_TURN = 64
"""Grids of no more blocks get a case in which blocks come round again."""


def cases(plan: ElementwisePlan) -> list[Case]:
    """Edges of vectors, tiles and rows, strides, broadcasts, odd pointers, nothing, and NaN and infinities."""
    all_cases = [_case(plan, name, extents, data) for name, extents in _extents(plan).items() for data in ("integers", "reals")]
    middle = _shaped(plan, plan.tile * plan.vector // 2 + 3)
    if plan.stored in FLOATS:
        all_cases.append(_case(plan, "not-a-numbers and infinities", middle, "nonfinite"))
    else:
        all_cases.append(_case(plan, "the whole range of the type", middle, "extremes"))
    strides = [dimension.name for dimension in plan.sequence.dimensions if dimension.name not in AXES]
    if strides:
        padded = _padded(plan, middle)
        all_cases.append(_of(plan, "padded strides", padded, "reals"))
        read = {array.name for array in plan.sequence.arrays if array.role == "input"}
        for axis in range(plan.rank):
            spread = packed_problem(plan, dict(zip(AXES, middle, strict=False)))
            named = [name for name in strides if name.endswith(f"stride{axis}") and name.split("_stride")[0] in read]
            if named:
                all_cases.append(_of(plan, f"broadcast along axis {axis}", {**spread, **dict.fromkeys(named, 0)}, "reals"))
    alignment = int(plan.spec.alignment)
    offsets = {array.name: alignment for array in plan.sequence.arrays}
    all_cases.append(_case(plan, "least aligned pointers", middle, "reals", offsets=offsets))
    for axis in range(plan.rank):
        all_cases.append(
            _case(plan, f"no element along axis {axis}", tuple(0 if one == axis else 3 for one in range(plan.rank)), "integers")
        )
    return all_cases


def _padded(plan: ElementwisePlan, extents: tuple[int, ...]) -> dict[str, int]:
    """A problem with gaps between neighbours, rows and planes."""
    alignment = int(plan.spec.alignment)
    problem = packed_problem(plan, dict(zip(AXES, extents, strict=False)))
    for name in reversed([dimension.name for dimension in plan.sequence.dimensions if dimension.name not in AXES]):
        array, axis = name.split("_stride")
        inner = problem.get(f"{array}_stride{int(axis) + 1}", 1)
        last = int(axis) == plan.rank - 1
        problem[name] = 2 if last else round_up(extents[int(axis) + 1] * inner, alignment) + 3 * alignment
    return problem


def _extents(plan: ElementwisePlan) -> dict[str, tuple[int, ...]]:
    tile, vector = plan.tile * plan.vector, plan.vector
    sizes = {
        "one element": (1,) * plan.rank,
        "one less than a tile": _shaped(plan, tile - 1),
        "one tile": _shaped(plan, tile),
        "several tiles and a rest": _shaped(plan, 2 * tile + tile // 2 + 1),
    }
    if vector > 1:
        sizes["one less than a vector"] = (*(2,) * (plan.rank - 1), vector - 1)
    if plan.rank > 1:
        sizes["rows of one element"] = (*(3,) * (plan.rank - 1), 1)
        sizes["rows of a vector and one"] = (*(3,) * (plan.rank - 1), vector + 1)
    if plan.spec.blocks and plan.spec.blocks <= MAX_BLOCKS_OF_A_TURN:
        sizes["a second turn of some blocks"] = _shaped(plan, tile * plan.spec.blocks + tile + vector + 1)
    return sizes


def _shaped(plan: ElementwisePlan, elements: int) -> tuple[int, ...]:
    """Extents with approximately a given number of elements; exactly as many along a single axis."""
    if plan.rank == 1:
        return (max(1, elements),)
    outer = {2: (3,), 3: (2, 3), 4: (2, 2, 3)}[plan.rank]
    count = 1
    for extent in outer:
        count *= extent
    return (*outer, max(1, elements // count + 1))


def _case(plan: ElementwisePlan, name: str, extents: tuple[int, ...], data: object, **more: object) -> Case:
    return _of(plan, name, packed_problem(plan, dict(zip(AXES, extents, strict=False))), data, **more)


def _of(plan: ElementwisePlan, name: str, problem: dict[str, int], data: Any, **more: Any) -> Case:
    whole = data in ("integers", "nonfinite")
    scalars = {number.name: 3 if number.type == "s64" else 3.0 if whole or number.type not in FLOATS else 0.75 for number in plan.numbers}
    return Case(name, problem, scalars, data, seed=sum(problem.values()), **more)


def fill(plan: ElementwisePlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Small integers; reals over several magnitudes, near 0 where an operation overflows soon; the whole range of an integer type."""
    stored, own = ELEMENTS[plan.stored], ELEMENTS[next(array.type for array in plan.sequence.arrays if array.name == name)]
    if stored.is_float and not own.is_float:  # an operand of a formula
        return rng.integers(max(-MAX_INTEGER, int(own.limits[0])), min(MAX_INTEGER, int(own.limits[1])) + 1, shape)
    if not stored.is_float and case.data != "integers":
        low, high = (int(limit) for limit in stored.limits)
        return rng.integers(low, high, shape, endpoint=True)
    if case.data == "reals":
        if any(step.calls & {"exp", "square"} or step.approximate for step in plan.steps):
            return rng.normal(0, 3, shape)
        return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-3, 1.5, shape)
    values = rng.integers(-MAX_INTEGER, MAX_INTEGER + 1, shape).astype(np.float64)
    if case.data == "nonfinite":
        return np.where(rng.random(shape) < 0.05, rng.choice([np.nan, np.inf, -np.inf], shape), values)
    return values


def counted_case(plan: ElementwisePlan) -> Case:
    """The case with most bytes, whose traffic and instructions stand for the instance."""
    return max(cases(plan), key=lambda case: cost(plan, case.dimensions).bytes)


def reference(plan: ElementwisePlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """The expected y of one case."""

    def read(access: Access) -> npt.NDArray[Any]:
        if access.operand.per == "all":
            return np.asarray(case.scalars[access.name])
        values = to_numbers(access.stored, arrays[access.name])
        axis = axis_of(access.operand.per, plan.rank)
        return values if axis is None else values.reshape([-1 if one == axis else 1 for one in range(plan.rank)])

    with np.errstate(all="ignore"):
        values = tracked(to_numbers(plan.stored, arrays["x"]), ELEMENTS[plan.stored].computed_in)
        outputs: dict[str, Tracked] = {}
        shape = arrays["y"].shape
        axes = {"row": plan.rank - 2, "column": plan.rank - 1}
        places = {name: _index(axis, shape) for name, axis in axes.items() if axis >= 0}
        final = to_type(apply_steps(plan.steps, values, read, places, outputs), plan.output)
        value, bound = final.value, final.bound
        if final.kind in FLOATS:
            value = value.astype(np.float64)
            bound = bound + np.where((bound > 0) & (value != final.value), np.abs(np.spacing(value)), 0.0)
        along = {per: tuple(one for one in range(plan.rank) if one != axis_of(per, plan.rank)) for per in ("row", "column", "channel")}
        extra = {
            one.name: Expected(*stored_output(one.store, spread(outputs[one.name], shape), arrays[one.name], along)) for one in plan.extra
        }
    return {"y": Expected(value, np.broadcast_to(bound, value.shape), signed_zeros=final.kind in FLOATS)} | extra


def _index(axis: int, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """The indices along an axis, shaped to broadcast."""
    return np.arange(shape[axis]).reshape([-1 if one == axis else 1 for one in range(len(shape))])
