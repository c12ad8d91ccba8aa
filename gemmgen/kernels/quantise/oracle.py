"""The problems that a quantising kernel is verified on, the data in them, and the bits that have to come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import float_format, to_elements, to_numbers
from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.family import Case, Expected
from gemmgen.kernels.quantise.plan import BLOCK_COLUMNS, BLOCK_LINES, QuantisePlan, moved_bytes, packed_problem

TINY, ZEROS = "the smallest numbers", "blocks of zeros"
MAX_ANYWHERE = "an infinity and one largest number in each row"
"""A case of rows that are read in two parts, each of several vectors: in every row another vector has the largest finite number."""


def cases(plan: QuantisePlan) -> list[Case]:
    """Edges of blocks in both directions, several blocks, gaps between rows, odd pointers, nothing, NaN and infinities, and numbers so
    small that scales are at their least."""
    sizes = {
        "one element": (1, 1),
        "one block": (BLOCK_LINES, BLOCK_COLUMNS),
        "one row above a block": (BLOCK_LINES + 1, BLOCK_COLUMNS),
        "one column above a block": (5, BLOCK_COLUMNS + 1),
        "one column below a block": (BLOCK_LINES - 1, BLOCK_COLUMNS - 1),
        "several blocks": (BLOCK_LINES * 2 + 3, BLOCK_COLUMNS * 3 + 70),
        "a long row": (3, 4 * plan.threads * 2 + 5),
        "many rows": (300, 7),
    }
    all_cases = [Case(name, packed_problem(plan, size), {}, data) for name, size in sizes.items() for data in ("integers", "reals")]
    middle = (BLOCK_LINES + 9, 2 * BLOCK_COLUMNS + 20)
    problem = packed_problem(plan, middle)
    all_cases += [Case(name, problem, {}, "reals") for name in (TINY, ZEROS)]
    all_cases.append(Case("not-a-numbers and infinities", problem, {}, "nonfinite"))
    matrices = (plan.x, plan.y, plan.scales)
    padded = {
        matrix.leading_dimension: problem[matrix.leading_dimension] + (index + 1) * matrix.alignment
        for index, matrix in enumerate(matrices)
    }
    all_cases.append(Case("padded leading dimensions", problem | padded, {}, "reals"))
    offsets = {matrix.name: matrix.alignment for matrix in matrices}
    all_cases.append(Case("least aligned pointers", problem, {}, "reals", offsets=offsets))
    all_cases += [Case(f"{m} x {k}", packed_problem(plan, (m, k)), {}, "integers") for m, k in ((0, 5), (5, 0), (0, 0))]
    return all_cases


def deep_cases(plan: QuantisePlan) -> list[Case]:
    """For scales of rows, rows of twice as many elements as stay in registers, one for each vector of a thread."""
    if plan.spec.block != "row":
        return []
    rows = 2 * plan.held
    return [Case(MAX_ANYWHERE, packed_problem(plan, (rows, rows * plan.threads * plan.lane_columns)), {}, "nonfinite")]


def counted_case(plan: QuantisePlan) -> Case:
    """The case with most bytes."""
    return max(cases(plan), key=lambda case: moved_bytes(plan, case.dimensions))


def fill(plan: QuantisePlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Small integers, or reals over several magnitudes, those of some rows far below the others."""
    if case.data == "reals":
        values = rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-4, 3, shape)
        if case.name == TINY:
            # Halves end at 6e-8; the quotient by the largest number of y is below the least normal float32.
            return values * (1e-6 if plan.x.type == "f16" else 2.0**-135)
        values[::3] *= 2.0**-9
        if case.name == ZEROS:
            values[:BLOCK_LINES, :BLOCK_COLUMNS] = 0
            values[::2, BLOCK_COLUMNS:] = 0
        return values
    values = rng.integers(-4, 5, shape).astype(np.float64)
    if case.name == MAX_ANYWHERE:
        rows, columns = np.arange(shape[0]), shape[1] // shape[0]  # of one vector of each thread
        values[rows, rows * columns + rng.integers(0, columns, shape[0])] = 100.0
        values[rows, (rows + 1) % shape[0] * columns + rng.integers(0, columns, shape[0])] = np.inf
        return values
    if case.data == "nonfinite":
        return np.where(rng.random(shape) < 0.05, rng.choice([np.nan, np.inf, -np.inf], shape), values)
    return values


def scales_of_blocks(values: npt.NDArray[Any], block: str, kind: str, output: str) -> npt.NDArray[Any]:
    """Scales, as elements of ``kind``, of the blocks of values (m, k): the quotient of the largest finite magnitude by the largest number
    of ``output``, at least the smallest normal float32, or the power of two above; 1 for blocks of zeros."""
    lines, columns = {"1x128": (1, BLOCK_COLUMNS), "128x128": (BLOCK_LINES, BLOCK_COLUMNS)}.get(block, (0, 0))
    m, k = values.shape
    lines, columns = lines or (1 if block == "row" else max(m, 1)), columns or max(k, 1)
    down, across = ceil_div(m, lines), ceil_div(k, columns)
    if block in ("row", "tensor"):
        down, across = (m, 1) if block == "row" else (1, 1)
    full = np.zeros((down * lines, across * columns), np.float32)
    full[:m, :k] = np.where(np.isfinite(values), np.abs(values), 0)
    amax = full.reshape(down, lines, across, columns).max(axis=(1, 3))
    quotient = np.where(amax > 0, amax / np.float32(float_format(output).largest), np.float32(1)).astype(np.float32)
    return np.maximum(quotient, np.finfo(np.float32).tiny) if kind == "f32" else to_elements(kind, quotient)


def quantised(values: npt.NDArray[Any], numbers: npt.NDArray[Any], block: str, output: str) -> npt.NDArray[np.float32]:
    """Values (m, k) over the scales of their blocks, within the range of ``output``."""
    m, k = values.shape
    lines = m if block == "tensor" else BLOCK_LINES if block == "128x128" else 1
    columns = BLOCK_COLUMNS if block in ("1x128", "128x128") else k
    each = np.repeat(np.repeat(numbers, lines, axis=0)[:m], columns, axis=1)[:, :k]
    largest = np.float32(float_format(output).largest)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = values.astype(np.float32) / each.astype(np.float32)
        return np.where(np.isnan(scaled), scaled, np.clip(scaled, -largest, largest)).astype(np.float32)


def reference(plan: QuantisePlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """The scales and y of one case, to the bit."""
    spec = plan.spec
    values = to_numbers(spec.input, arrays["x"]).astype(np.float32)
    elements = scales_of_blocks(values, spec.block, spec.scales, spec.output)
    numbers = to_numbers(spec.scales, elements)
    y = to_numbers(spec.output, to_elements(spec.output, quantised(values, numbers, spec.block, spec.output)))
    return {"y": Expected(y.astype(np.float64)), "scales": Expected(numbers.astype(np.float64))}
