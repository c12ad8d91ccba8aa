"""The problems that a CPU GEMM is verified on, derived from its micro-kernel and its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, to_numbers
from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.accuracy import SMALLEST, UNIT_ROUNDOFF, rounded
from gemmgen.kernels.blas_cases import case_of, corner_cases, scalar_values
from gemmgen.kernels.cpu_gemm.cost_model import cost
from gemmgen.kernels.cpu_gemm.plan import BlockedPlan, CpuGemmPlan, packed
from gemmgen.kernels.epilogue.numbers import Tracked, spread
from gemmgen.kernels.epilogue.steps import Access, apply_steps, stored_output
from gemmgen.kernels.family import Case, Expected

MAX_INTEGER = 4
"""Entries of A and B in integer cases lie in [-4, 4], so that sums of a million products stay exact in float32."""

MAX_REFERENCE = 60_000_000
"""Multiplications of a case: its reference is computed in float64 by NumPy, several times over."""


def cases(plan: CpuGemmPlan) -> list[Case]:
    """Edges of the micro-kernel and of every block, packed and padded strides, odd pointers, nothing at all, and BLAS's corners."""
    scalars = scalar_values(plan.sequence)
    cases = []
    seen = set()
    for name, (rows, columns, depth) in _sizes(plan.blocked).items():
        size = (columns, rows, depth) if plan.swapped else (rows, columns, depth)
        if size in seen or rows * columns * depth > MAX_REFERENCE:
            continue
        seen.add(size)
        for data in ("integers", "reals"):
            cases.append(case_of(name, packed(plan, size), scalars[data], data))
    uneven = packed(plan, (29, 37, 19))
    padded = dict(uneven)
    matrices = (plan.matrix_a, plan.matrix_b, plan.matrix_c, *plan.residuals)
    for index, matrix in enumerate(matrices):
        padded[matrix.leading_dimension] += 3 + 2 * index  # each its own, so that one in place of another shows
    offsets = {array.name: 1 + index for index, array in enumerate(plan.sequence.arrays)}
    for data in ("integers", "reals"):
        cases.append(case_of("padded leading dimensions", padded, scalars[data], data))
        cases.append(case_of("odd pointers", uneven, scalars[data], data, offsets=offsets))
    cases.append(case_of("not-a-numbers and infinities", uneven, scalars["integers"], "nonfinite"))
    for name, empty in {"m of 0": (0, 5, 3), "n of 0": (5, 0, 3), "k of 0": (17, 5, 0), "all of 0": (0, 0, 0)}.items():
        cases.append(case_of(name, packed(plan, empty), scalars["integers"], "integers"))
    return cases + corner_cases(padded, scalars["integers"])


def _sizes(blocked: BlockedPlan | None) -> dict[str, tuple[int, int, int]]:
    """Rows, columns and depths of the product that the loops compute."""
    rows, columns, lanes, unroll = (blocked.tile_rows, blocked.tile_columns, blocked.lanes, blocked.unroll) if blocked else (4, 16, 8, 4)
    sizes = {
        "one element": (1, 1, 1),
        "one tile": (rows, columns, 3 * unroll),
        "one row below a tile": (max(1, rows - 1), columns, unroll + 1),
        "one row above a tile": (rows + 1, columns, unroll + 1),
        "one column below a tile": (rows, max(1, columns - 1), unroll + 1),
        "one column above a tile": (rows, columns + 1, unroll + 1),
        "a vector and a lane": (2, lanes + 1, 5),
        "a row": (1, columns + 2, 7),
        "a column": (rows + 2, 1, 7),
        "a long column": (7, 1, 53),
        "k of 1": (5, 3, 1),
        "primes": (2 * rows + 3, 3 * columns + 5, 41),
        "tiles of every extent": (3 * rows + rows // 2, 2 * columns + columns // 2 + 1, 64),
    }
    if blocked is None:
        return sizes
    sizes |= {
        "one below a slice": (rows, columns, blocked.block_depth - 1),
        "one above a slice": (rows + 1, columns + 1, blocked.block_depth + 1),
        "three slices": (rows + 1, lanes + 3, 2 * blocked.block_depth + unroll + 1),
        "a long row": (1, 4096 + lanes + 1, 9),
        "three long rows": (3, 1400, blocked.block_depth + 3),
        "four long rows": (4, 64, 2 * blocked.block_depth + unroll + 1),
        "six rows and deep sums": (6, 3 * lanes + 5, 131),
        "seven columns and deep sums": (2 * rows + 3, 7, 131),
        "one row above a block": (blocked.block_rows + 1, lanes + 3, 17),
        "two blocks of rows": (2 * blocked.block_rows + 3, 5, blocked.block_depth + 3),
        "one column above a block": (rows + 1, blocked.block_columns + 1, 9),
        "all blocks": (blocked.block_rows + rows + 1, blocked.block_columns + columns + 1, blocked.block_depth + 2),
    }
    if blocked.threaded:
        side = 1 + round(max(64.0, (16.0 * blocked.least_work) ** (1 / 3)))
        sizes["work for several threads"] = (side, side, side)
        sizes["a wide product for several threads"] = (rows + 1, 8 * side, side)
        sizes["a high product for several threads"] = (8 * side, columns + 1, side)
    return sizes


def fill(plan: CpuGemmPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Values for the array argument ``name``; NaN where the case must not read it."""
    unread = (name in "AB" and case.scalars.get("alpha", 1.0) == 0) or (name == "C" and case.scalars.get("beta", 0.0) == 0)
    if unread:
        return np.full(shape, np.nan)
    kind = next(array.type for array in plan.sequence.arrays if array.name == name)
    if any(store.argument.name == name and store.output.reduce for step in plan.epilogue for store in step.stores):
        return rng.choice([-1e6, -3.0, 0.0, 2.0, 1e6], shape)
    values = rng.integers(0 if kind in ("u8", "bool") else -MAX_INTEGER, 2 if kind == "bool" else MAX_INTEGER + 1, shape).astype(np.float64)
    if case.data == "reals" and ELEMENTS[kind].is_float:
        low, high = (-2.0, 0.3) if plan.approximate else (-3.0, 3.0)
        return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(low, high, shape)
    if case.data == "nonfinite" and ELEMENTS[kind].is_float:
        special = rng.choice([np.nan, np.inf, -np.inf], shape)
        values = np.where(rng.random(shape) < 0.02, special, values)
    return values


def reference(plan: CpuGemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """Expected contents of C.

    The terms of an element are k products and beta C. Each takes part in a rounding for every product (Higham, Accuracy and
    Stability of Numerical Algorithms, 2nd ed., section 3.1), in one for its factor, and in one for every slice of k, whose sums
    are added to C one after the other.
    """
    k = case.dimensions["k"]
    alpha, beta = (float(np.float32(case.scalars.get(name, default))) for name, default in (("alpha", 1.0), ("beta", 0.0)))
    shape = arrays["C"].shape
    value, terms = np.zeros(shape), np.zeros(shape)
    slices = ceil_div(k, plan.blocked.block_depth) if plan.blocked is not None else 1
    roundings = k + slices + 3
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0 and k:
            a, b = arrays["A"].astype(np.float64), arrays["B"].astype(np.float64)
            value = alpha * (a @ b)
            if case.data == "reals":
                terms = abs(alpha) * (np.abs(a) @ np.abs(b))
        if beta != 0:
            scaled = beta * arrays["C"].astype(np.float64)
            value = value + scaled
            if case.data == "reals":
                terms = terms + np.abs(scaled)
        bound = np.zeros(shape)
        if case.data == "reals":
            bound = roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF) * terms + roundings * SMALLEST
        else:
            value, bound = rounded(value, bound)
        numbers = case.scalars.items()
        given: dict[str, Any] = {name: one if isinstance(one, int) else float(np.float32(one)) for name, one in numbers}
        given |= {array.name: to_numbers(array.type, arrays[array.name]) for array in plan.sequence.arrays if array.name in arrays}

        def read(access: Access) -> npt.NDArray[Any]:
            array = np.asarray(given[access.name], np.int64 if access.stored == "s64" else np.float64)
            return array[:, None] if access.operand.per == "row" else array

        coordinates = {"row": np.arange(shape[0])[:, None], "column": np.arange(shape[1])[None, :]}
        outputs: dict[str, Tracked] = {}
        finished = spread(apply_steps(plan.epilogue, Tracked(value, bound, "f32"), read, coordinates, outputs), shape)
    stores = [store for step in plan.epilogue for store in step.stores]
    extra = {store.name: Expected(*stored_output(store, spread(outputs[store.name], shape), arrays[store.name])) for store in stores}
    return {"C": Expected(finished.value, finished.bound)} | extra


def counted_case(plan: CpuGemmPlan) -> Case:
    """The case with most operations: its traffic and instructions stand for the instance."""
    return max(cases(plan), key=lambda case: cost(plan, case.dimensions).weight)
