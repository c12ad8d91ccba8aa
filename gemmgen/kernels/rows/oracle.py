"""The problems that an operation on rows is verified on, the data in them, and the results with their error bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import to_numbers
from gemmgen.kernels.accuracy import SMALLEST, UNIT_ROUNDOFF
from gemmgen.kernels.epilogue.graph import evaluate
from gemmgen.kernels.epilogue.numbers import Tracked, clear_bounds, extremum, gamma, overflown, to_type, tracked, tree_sum
from gemmgen.kernels.family import Case, Expected
from gemmgen.kernels.rows import selection
from gemmgen.kernels.rows.plan import ACCURACY, COLUMNS, RowsPlan, Statement, moved_bytes, packed_problem

LONG_ROW = 2600
"""Columns of a long row where any length is possible."""
LOG_ADD_ERROR = 2.0**-20
"""Error of ``log_add`` beside one rounding of its result: 2^x errs by 2^-22 of at most 1 (PTX ISA, ex2.approx) and by twice the unit
roundoff times a distance d, where d e^-d is below 0.37; a rounding of 1 + e^-d; the logarithm by 2^-21.41 (CUDA C++ Programming Guide,
__logf on [0.5, 2])."""
EPS = 1e-5
FAR = "rows far below zero, and one element far above the others"
FAR_DISTANCE = 300
"""A distance whose power of e is no float32, and 0 if negative."""
FAR_ROWS = 32
SHIFTED, EQUAL, WIDE, SMALL = "a large mean", "equal elements", "several magnitudes", "elements whose squares are below eps"


def cases(plan: RowsPlan) -> list[Case]:
    """Edges of vectors and rows of a block, long rows, gaps, odd pointers, nothing, NaN and infinities, and data that tempt an error."""
    vector, aligned = plan.vector, plan.spec.aligned
    step = vector if aligned else 1
    if plan.program.selects:
        return selection.cases(plan)
    most = min(plan.most_columns, LONG_ROW) // step * step
    lanes = plan.lanes * vector
    lengths = {
        "one vector": vector,
        "one vector for each lane": min(lanes, most),
        "one vector less": max(min(lanes, most) - step, step),
        "the longest row": most,
        "some lanes have more": min(lanes + 3 * step, most),
        "one element": step,
    }
    rows = {"one row": 1, "rows of several blocks": 2 * plan.rows + 1}
    all_cases = [
        Case(f"{name}, {count}", packed_problem(plan, (m, n)), _numbers(plan), data)
        for (name, n), (count, m), data in _pairs(lengths, rows)
    ]
    middle = (2 * plan.rows + 1, min(max(most // 2 // step, 1) * step, 517 // step * step))
    problem = packed_problem(plan, middle)
    all_cases += [Case(name, problem, _numbers(plan), "reals") for name in (SHIFTED, EQUAL, WIDE, SMALL)]
    all_cases.append(Case("not-a-numbers and infinities", problem, _numbers(plan), "nonfinite"))
    every = (*plan.matrices, *plan.outputs)
    padded = {
        matrix.leading_dimension: problem[matrix.leading_dimension] + (index + 1) * matrix.alignment for index, matrix in enumerate(every)
    }
    all_cases.append(Case("padded leading dimensions", problem | padded, _numbers(plan), "reals"))
    offsets = {matrix.name: matrix.alignment for matrix in every}
    all_cases.append(Case("least aligned pointers", problem, _numbers(plan), "reals", offsets=offsets))
    if plan.sums:
        many = (plan.rows * plan.spec.blocks + 3, step)
        all_cases.append(Case("more rows than blocks", packed_problem(plan, many), _numbers(plan), "reals"))
    all_cases += [Case(f"{m} x {n}", packed_problem(plan, (m, n)), _numbers(plan), "integers") for m, n in ((0, step), (3, 0))]
    return all_cases


def deep_cases(plan: RowsPlan) -> list[Case]:
    """For powers of distances from the largest element of a row, rows where a smaller one would be too far, or one beyond the row."""
    if plan.program.selects:
        return selection.deep_cases(plan)
    if not any(statement.combination == "row_max" for statement in plan.statements):
        return []
    columns = min(plan.lanes * plan.vector, plan.most_columns)
    return [Case(FAR, packed_problem(plan, (FAR_ROWS, columns)), _numbers(plan), "reals")]


def _pairs(lengths: Mapping[str, int], rows: Mapping[str, int]) -> list[Any]:
    """Each length with a number of rows and kind of data, and with others for the longest row."""
    data: tuple[Any, ...] = ("integers", "reals")
    pairs = [(length, list(rows.items())[index % 2], data[index % 2]) for index, length in enumerate(lengths.items())]
    longest = ("the longest row", lengths["the longest row"])
    return [*pairs, (longest, ("rows of several blocks", rows["rows of several blocks"]), "integers")]


def _numbers(plan: RowsPlan) -> dict[str, float]:
    return dict.fromkeys(plan.program.numbers, EPS)


def counted_case(plan: RowsPlan) -> Case:
    """The case with most bytes."""
    return max(cases(plan), key=lambda case: moved_bytes(plan, case.dimensions))


def fill(plan: RowsPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Small integers, reals of a normal distribution, or the values that the case is named for."""
    if plan.program.selects:
        return selection.fill(plan, case, shape, rng)
    if case.data == "integers":
        return rng.integers(-4, 5, shape).astype(np.float64)
    values = rng.normal(0, 2, shape)
    if case.data == "nonfinite":
        return np.where(rng.random(shape) < 0.002, rng.choice([np.nan, np.inf, -np.inf], shape), values)
    if name == "y" and plan.spec.operation.startswith("log_softmax"):
        return -np.abs(values)
    if case.name == SHIFTED and name in ("x", "residual"):
        return values + 100
    if case.name == FAR and name == "x":
        rows = np.arange(1, shape[0], 2)
        values[::2] -= FAR_DISTANCE
        values[rows, rows * shape[1] // shape[0]] += FAR_DISTANCE
        return values
    if case.name == EQUAL and name in ("x", "residual"):
        return np.full(shape, 1.5)
    if case.name == SMALL and name in ("x", "residual"):
        return values * 1e-3
    if case.name == WIDE:
        return values * 10.0 ** rng.uniform(-3, 1, shape)
    return values


def reference(plan: RowsPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """The expected results of one case: the plan's formulas in float64, with the bounds of every step."""
    if plan.program.selects:
        return selection.reference(plan, case, arrays)
    problem = case.dimensions
    columns = problem["n"]
    names: dict[str, Tracked] = {COLUMNS: to_type(tracked(np.array([[columns]]), "s32"), "f32")}
    names |= {name: tracked(np.array([[np.float32(case.scalars[name])]], np.float64), "f32") for name in plan.program.numbers}
    names |= {matrix.name: tracked(to_numbers(plan.type, arrays[matrix.name]), "f32") for matrix in plan.matrices}
    names |= {name: tracked(to_numbers(plan.weight_type, arrays[name]).reshape(1, -1), "f32") for name in plan.program.vectors}
    with np.errstate(all="ignore"):
        for statement in plan.statements:
            names[statement.name] = _combined(plan, statement, evaluate(statement.tree, names, ACCURACY[plan.type]), problem)
        expected = {matrix.name: _stored(names[matrix.name], plan.type, arrays[matrix.name].shape) for matrix in plan.outputs}
        expected |= {name: _stored(names[name], plan.weight_type, (columns,)) for name in plan.sums}
    return expected


def _combined(plan: RowsPlan, statement: Statement, terms: Tracked, problem: Mapping[str, int]) -> Tracked:
    """The value of a statement from those of its expression."""
    rows, columns = problem["m"], problem["n"]
    if not statement.combination:
        return terms
    shape = (rows, columns)
    terms = Tracked(np.broadcast_to(terms.value, shape), np.broadcast_to(terms.bound, shape), terms.kind)
    if statement.combination == "column_sum":
        across = Tracked(terms.value.T, terms.bound.T, terms.kind)
        return tree_sum(across, -(-rows // plan.rows) + int(plan.spec.blocks) * plan.rows)
    if statement.combination == "row_sum":
        total = tree_sum(terms, plan.depth(columns))
        return Tracked(total.value[:, None], total.bound[:, None], total.kind)
    if statement.combination == "row_max":
        value, bound = extremum("max", terms, (1,), np.full((rows, 1), -np.inf))
        return Tracked(value, bound, terms.kind)
    return (_prefix_sum if statement.combination == "prefix_sum" else _prefix_logsumexp)(terms, plan.depth(columns))


def _prefix_sum(terms: Tracked, depth: int) -> Tracked:
    value, size = np.cumsum(terms.value, axis=1), np.cumsum(np.abs(terms.value), axis=1)
    whole = (terms.value == np.rint(terms.value)).all(axis=1, keepdims=True) & (size < 2.0**24)
    bound = np.where(whole | ~np.isfinite(size), 0.0, gamma(depth, terms.kind) * size)
    return overflown(Tracked(value, bound, terms.kind), terms.kind)


def _prefix_logsumexp(terms: Tracked, depth: int) -> Tracked:
    """log_add changes by no more than its arguments do, so that the errors of its calls add up."""
    value = np.logaddexp.accumulate(terms.value, axis=1) if terms.value.size else terms.value
    size = np.maximum.accumulate(np.abs(np.where(np.isfinite(terms.value), terms.value, 0.0)), axis=1) + np.log(
        max(terms.value.shape[1], 1)
    )
    bound = depth * (LOG_ADD_ERROR + 2 * UNIT_ROUNDOFF * size) + SMALLEST
    first = np.arange(terms.value.shape[1]) == 0
    return Tracked(value, np.where(np.isfinite(value) & ~first, clear_bounds(bound), 0.0), terms.kind)


def _stored(value: Tracked, kind: Any, shape: tuple[int, ...]) -> Expected:
    final = to_type(Tracked(np.broadcast_to(value.value, shape), np.broadcast_to(value.bound, shape), value.kind), kind)
    number = final.value.astype(np.float64)
    return Expected(number, np.broadcast_to(final.bound, number.shape), signed_zeros=False)
