"""The cases of topk, their data, and its results: the elements themselves, so that all bits are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import to_numbers
from gemmgen.kernels.family import Case, Expected
from gemmgen.kernels.rows.plan import CANDIDATES, MAX_SELECTED, RowsPlan, packed_problem

LONG_ROW = 2600
"""Columns of a long row where any length is possible."""
FEW_LANES = "equal elements of few lanes"
EQUAL, FEW_VALUES, RISING, ZEROS = "equal elements", "few values", "rising elements", "zeros of both signs"


def cases(plan: RowsPlan) -> list[Case]:
    """Edges of vectors and rows of a block, every k, equal elements, order, gaps, odd pointers, nothing, NaN and infinities."""
    step = plan.vector if plan.spec.aligned else 1
    most = min(plan.most_columns, LONG_ROW) // step * step
    lanes = plan.lanes * plan.vector
    lengths = [step, min(lanes, most), max(min(lanes, most) - step, step), min(lanes + 3 * step, most), most]
    counts = [1, 2, 7, 33, MAX_SELECTED]
    rows = (1, 2 * plan.rows + 1)
    all_cases = [_case(plan, f"{n} columns", rows[index % 2], n, counts[-1 - index], "reals") for index, n in enumerate(lengths)]
    all_cases += [_case(plan, f"{n} columns, k = {k}", rows[1], n, k, "integers") for n, k in zip(lengths, counts, strict=True)]
    all_cases.append(_case(plan, "all elements", rows[1], min(MAX_SELECTED // step * step or step, most), MAX_SELECTED, "integers"))
    middle = max(min(most, CANDIDATES * 3) // step * step, step)
    all_cases += [_case(plan, name, rows[1], middle, k, "reals") for name, k in ((EQUAL, 5), (EQUAL, MAX_SELECTED), (FEW_VALUES, 20))]
    all_cases += [_case(plan, name, rows[1], middle, k, "reals") for name, k in ((RISING, MAX_SELECTED), (ZEROS, 12))]
    all_cases.append(_case(plan, "not-a-numbers and infinities", rows[1], middle, 40, "nonfinite"))
    problem = dict(all_cases[-1].dimensions)
    every = (*plan.matrices, *plan.outputs)
    gaps = {one.leading_dimension: problem[one.leading_dimension] + (index + 1) * one.alignment for index, one in enumerate(every)}
    all_cases.append(Case("padded leading dimensions", problem | gaps, {}, "reals"))
    all_cases.append(Case("least aligned pointers", problem, {}, "reals", offsets={one.name: one.alignment for one in every}))
    all_cases.append(Case("no rows", packed_problem(plan, (0, step)), {}, "integers"))
    return all_cases


def deep_cases(plan: RowsPlan) -> list[Case]:
    """More equal elements than candidates, the k-th among them, all read by fewer lanes than k."""
    lanes, columns = _few_lanes(plan)
    return [_case(plan, FEW_LANES, 2 * plan.rows + 1, columns, 2 * lanes, "reals")] if 2 * lanes <= MAX_SELECTED else []


def _few_lanes(plan: RowsPlan) -> tuple[int, int]:
    """A number of lanes that read more elements than there are candidates, and the columns of the row."""
    width = plan.lanes * plan.vector
    turns = min(8, plan.most_columns // width)
    return CANDIDATES // max(turns * plan.vector, 1) + 1, max(turns, 1) * width


def _case(plan: RowsPlan, name: str, rows: int, columns: int, selected: int, data: Any) -> Case:
    problem = dict(packed_problem(plan, (rows, columns)))
    count = min(selected, columns)
    few = {"k": count} | {one.leading_dimension: count for one in plan.outputs}
    return Case(name if "columns" in name else f"{name}, {count} of {columns}", problem | few, {}, data)


def fill(plan: RowsPlan, case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Small integers, of which many are equal, reals, or the values that the case is named for."""
    name = case.name.partition(",")[0]
    values: npt.NDArray[Any] = rng.normal(0, 2, shape)
    if case.data == "integers":
        values = rng.integers(-4, 5, shape).astype(np.float64)
    elif case.data == "nonfinite":
        values = np.where(rng.random(shape) < 0.02, rng.choice([np.nan, -np.nan, np.inf, -np.inf], shape), values)
    elif name == EQUAL:
        values = np.full(shape, -1.5)
    elif name == FEW_LANES:
        lanes, _ = _few_lanes(plan)
        values = np.where(np.arange(shape[1]) // plan.vector % plan.lanes < lanes, 20.0, values)
    elif name == FEW_VALUES:
        values = np.where(rng.random(shape) < 0.02, rng.integers(-2, 3, shape), 0.5)
    elif name == RISING:
        values = np.sort(values, axis=-1) if shape[0] % 2 else values
        values[::2] = np.sort(values[::2], axis=-1)[:, ::-1]
    elif name == ZEROS:
        values = np.where(rng.random(shape) < 0.01, values, np.copysign(0.0, values))
    return values


def reference(plan: RowsPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """The first elements in a stable order by value, NaN beyond infinity, zeros equal."""
    x = to_numbers(plan.type, arrays["x"]).astype(np.float64)
    # NumPy sorts NaN to the end, and equal elements stay in their order if sorted stably.
    order = np.argsort(x, axis=1, kind="stable")
    if not plan.spec.smallest:
        order = x.shape[1] - 1 - np.argsort(x[:, ::-1], axis=1, kind="stable")[:, ::-1]
    columns = order[:, : case.dimensions["k"]]
    chosen = np.take_along_axis(x, columns, axis=1)
    return {"values": Expected(chosen, signed_zeros=True), "indices": Expected(columns.astype(np.int64))}
