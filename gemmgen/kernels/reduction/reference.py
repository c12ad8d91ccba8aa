"""Reference of a reduction: exactly where arithmetic is exact, else within the error bound of its summation tree.

Notation follows Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.: u is the unit roundoff, and
gamma(n) = n u / (1 - n u) bounds the effect of n successive roundings on a number (lemma 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmgen.core.elements import ELEMENTS, FLOATS, float_format, to_numbers
from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.epilogue.functions import EXPONENTIAL_ULPS, square_root
from gemmgen.kernels.epilogue.numbers import (
    Tracked,
    clear_bounds,
    gamma,
    overflown,
    rounded,
    spread,
    to_type,
    tracked,
    tree_sum,
    wide_type,
)
from gemmgen.kernels.epilogue.steps import Access, apply_steps, stored_output
from gemmgen.kernels.family import Case, Expected
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.kernels.reduction.plan import BlockLayout, ColumnLayout, LaneLayout, ReductionPlan
from gemmgen.kernels.reduction.tensor import TensorLayout

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


def reference(plan: ReductionPlan, case: Case, arrays: Mapping[str, Array]) -> dict[str, Expected]:
    """The expected outputs of one case."""
    a = plan.arithmetic
    if a.parts:
        one = [reference(replace(plan, arithmetic=part), case, arrays)["Y"] for part in a.parts]
        return {f"Y{place}": expected for place, expected in enumerate(one)}
    problem = case.dimensions
    numbers = to_numbers(a.stored, arrays["X"])
    lines = numbers.reshape(plan.extents(problem))
    shape = tuple(extent.evaluate(problem) for extent in _output(plan).shape)
    with np.errstate(all="ignore"):
        elements = to_type(tracked(lines, ELEMENTS[a.stored].computed_in), a.value)
        by_name: dict[str, Tracked] = {}
        elements = apply_steps(a.prologue, elements, partial(_of_elements, plan, case, arrays), _coordinates(plan, lines.shape), by_name)
        depth = path_length(plan, problem)
        results: dict[str, Expected] = {}
        for store in a.element_stores:
            value, bound = stored_output(store, spread(by_name[store.name], lines.shape), arrays[store.name])
            own = arrays[store.name].shape
            results[store.name] = Expected(value.reshape(own), bound.reshape(own))
        if a.state == "moments":
            mean, variance = _moments(elements, depth, plan)
            return results | {name: _expected(plan, value, shape) for name, value in (("mean", mean), ("variance", variance))}
        result = _reduced(plan, elements, depth)
        result = _finished(plan, result, plan.extents(problem)[1])

        def read(access: Access) -> Array:
            if access.operand.per == "memory":
                return to_numbers(access.stored, arrays[access.name])
            if isinstance(access.argument, ArrayArgument):
                return to_numbers(access.stored, arrays[access.name]).reshape(result.value.shape)
            return np.asarray(case.scalars[access.name])

        outputs: dict[str, Tracked] = {}
        result = apply_steps(a.epilogue, result, read, outputs=outputs)
        results["Y"] = _expected(plan, result, shape)
        for store in a.result_stores:
            stored, bound = stored_output(store, spread(outputs[store.name], result.value.shape), arrays[store.name])
            own = shape if store.output.reduce is None else stored.shape
            results[store.name] = Expected(stored.reshape(own), bound.reshape(own))
        return results


def _of_elements(plan: ReductionPlan, case: Case, arrays: Mapping[str, Array], access: Access) -> Array:
    """The values of an operand of the elements, shaped like X as (outer, reduced, inner)."""
    if not isinstance(access.argument, ArrayArgument):
        return np.asarray(case.scalars[access.name])
    values, extents = to_numbers(access.stored, arrays[access.name]), plan.extents(case.dimensions)
    if access.operand.per == "result":
        return values.reshape(extents)
    axes = _axes(plan).get(access.operand.per, ())
    return values.reshape([extent if place in axes else 1 for place, extent in enumerate(extents)])


def _coordinates(plan: ReductionPlan, extents: tuple[int, ...]) -> dict[str, Array]:
    """Row and column of each element, shaped likewise."""
    shapes = {name: [extent if place in axes else 1 for place, extent in enumerate(extents)] for name, axes in _axes(plan).items()}
    return {name: np.arange(np.prod(shape)).reshape(shape) for name, shape in shapes.items()}


def _axes(plan: ReductionPlan) -> dict[str, tuple[int, ...]]:
    """Axes of X as (outer, reduced, inner) that count its rows, and those that count its columns."""
    lines = plan.arithmetic.lines
    if lines in ("rows", "results"):
        return {"row": (0,), "column": (1,)}
    return {"row": (1,) if lines == "columns" else (0, 1), "column": (2,)}


def _output(plan: ReductionPlan) -> ArrayArgument:
    return next(array for array in plan.sequence.arrays if array.role == "output")


def _expected(plan: ReductionPlan, result: Tracked, shape: tuple[int, ...]) -> Expected:
    final = to_type(result, plan.arithmetic.output)
    value, bound = final.value, final.bound
    if final.kind in FLOATS:
        value = value.astype(np.float64)
        bound = bound + np.where((bound > 0) & np.isfinite(value) & (value != final.value), np.abs(np.spacing(value)), 0.0)
    return Expected(value.reshape(shape), bound.reshape(shape), signed_zeros=final.kind in FLOATS)


def _reduced(plan: ReductionPlan, elements: Tracked, depth: int) -> Tracked:
    """The state of each line (outer x inner), as a number."""
    a, value = plan.arithmetic, elements.value
    none = np.zeros((value.shape[0], value.shape[2]))
    if a.is_truth:
        truths = (value != 0).any(axis=1) if a.operation == "any" else (value != 0).all(axis=1)
        return Tracked(truths.astype(np.int32), none, "s32")
    if value.shape[1] == 0 and not a.rejects_nothing:
        empty = {"multiply": 1, "logsumexp": -np.inf}.get(a.combiner, 0)
        return Tracked(np.full(none.shape, empty, wide_type(a.compute)), none, a.compute)
    if a.combiner.startswith("first_"):
        find = np.argmin if a.combiner == "first_minimum" else np.argmax
        return Tracked(find(value, axis=1).astype(np.int64), none, "s64")
    if a.combiner in ("minimum", "maximum"):
        return _extreme(elements, a.combiner == "minimum")
    if not a.is_float:
        combine = np.add if a.combiner == "add" else np.multiply
        return Tracked(combine.reduce(value, axis=1, dtype=value.dtype), none, a.compute)
    if a.combiner == "logsumexp":
        if a.compute == "f32" and isinstance(plan.layout, TensorLayout):
            # 2^x of the special function units errs by 2^-22; its argument is rounded twice after the distance, and is relative to an
            # element that is less than the largest by at most the logarithm of kLargeSum.
            return _logsumexp(elements, depth, 4.0, 4.0, float(np.log(LARGE_SUM)))
        return _logsumexp(elements, depth, EXPONENTIAL_ULPS, 2.0)
    if a.combiner == "large_sum":
        return tree_sum(elements, depth, overflows=False)
    if a.combiner == "norm":
        return _norm(elements, depth)
    return {"add": tree_sum, "multiply": _product}[a.combiner](elements, depth)


def _finished(plan: ReductionPlan, result: Tracked, reduced: int) -> Tracked:
    """The operation's last step on its state: divide by the count, take the root."""
    a = plan.arithmetic
    if a.operation == "mean":
        whole = result if a.state == "large_sum" else to_type(result, a.result)
        count = to_type(tracked(np.array([reduced]), "s64"), a.result)
        bound = clear_bounds(whole.bound / float(max(reduced, 1)))
        return rounded(whole.value / count.value, bound, a.result, ulps=_rounds(count, reduced))
    if a.operation == "l2_norm" and a.state != "norm":
        return square_root(to_type(result, a.result), of_squares=True)
    return result


def _rounds(count: Tracked, reduced: int) -> float:
    """Roundings in a division by a count that may itself have been rounded."""
    return 1.0 if count.value[0] == reduced else 2.0


def _extreme(elements: Tracked, smallest: bool) -> Tracked:
    value = elements.value
    result = (np.min if smallest else np.max)(value, axis=1)
    if elements.kind in FLOATS:
        of_sign = (value == 0) & (np.signbit(value) == smallest)
        zero = -0.0 if smallest else 0.0
        result = np.where((result == 0) & of_sign.any(axis=1), zero, np.where(result == 0, -zero, result))
    return Tracked(result, elements.bound.max(axis=1), elements.kind)


def _product(elements: Tracked, depth: int) -> Tracked:
    """Each of the factors takes part in one rounding, for any tree.

    Products of small factors may fall below all numbers on the way, and larger ones then multiply that error.
    """
    kind, value = elements.kind, elements.value
    total, factors = value.prod(axis=1), value.shape[1]
    sizes = np.abs(value)
    exact = ((sizes == np.rint(sizes)) & (elements.bound == 0)).all(axis=1)
    exact &= np.maximum(sizes, 1).prod(axis=1) <= 2.0 ** float_format(kind).digits
    exact |= ~np.isfinite(sizes).all(axis=1) | (total == 0)
    # A product that overflows on the way stays infinite, or becomes NaN with a zero: in an order that is not known.
    partial = np.maximum(np.where(np.isfinite(sizes), sizes + elements.bound, 1), 1).prod(axis=1)
    undecided = (partial * (1 + gamma(factors, kind)) >= float_format(kind).overflow) & ((sizes < 1).any(axis=1) | (total == 0))
    undecided |= ~np.isfinite(elements.bound).all(axis=1)
    exact &= ~undecided
    inherited = np.where(undecided, np.inf, (sizes + elements.bound).prod(axis=1) - sizes.prod(axis=1))
    own = gamma(factors, kind) * (np.abs(total) + inherited)
    subnormal = np.where(sizes == 0, 1, np.minimum(sizes, 1)).prod(axis=1) < float_format(kind).smallest / (2 * float_format(kind).roundoff)
    own += np.where(subnormal, factors * float_format(kind).smallest * np.maximum(sizes, 1).prod(axis=1), 0)
    return overflown(Tracked(total, np.asarray(np.where(exact, 0.0, clear_bounds(inherited + own)), np.float64), kind), kind)


LARGE_SUM = 1024.0
"""Sum of e^x over e^origin up to which the elements of a tensor keep their origin."""


def _logsumexp(elements: Tracked, depth: int, ulps: float, argument_roundings: float, reach: float = 0.0) -> Tracked:
    """log(sum(exp(x))) = m + log(s): on its way an element is scaled by at most ``depth`` exponentials.

    Each of those errs by the exponential's own error (``ulps``), by u times its argument for each rounding of that, and by two
    roundings; the arguments add up to m - x, or are by at most ``reach`` longer. The relative error of s is an absolute one of
    log(s).
    """
    kind, value = elements.kind, elements.value
    u = float_format(kind).roundoff
    largest = value.max(axis=1, keepdims=True)
    distance = np.where(value == largest, 0.0, largest - value)
    weights = np.exp(-distance)
    total = weights.sum(axis=1)
    result = largest[:, 0] + np.log(total)
    shift = np.where(weights > 0, weights * distance, 0.0).sum(axis=1) / total
    relative = depth * u * (2 * ulps + 3) + value.shape[1] * np.finfo(value.dtype).eps
    relative += argument_roundings * u * (shift + reach)
    log_error = relative / (1 - np.minimum(relative, 0.5)) + 4 * u * np.abs(np.log(total))
    bound = elements.bound.max(axis=1) + log_error + u * (np.abs(result) + log_error)
    undecided = ~np.isfinite(elements.bound).all(axis=1)
    bound = np.where(undecided, np.inf, np.where(np.isfinite(result), clear_bounds(bound), 0.0))
    return Tracked(result, np.asarray(bound, np.float64), kind)


SQUARED_AS_THEY_ARE = {"f32": (2.0**-60, 2.0**46), "f64": (2.0**-480, 2.0**480)}
"""Between these, elements of a norm are squared without being scaled first."""


def _norm(elements: Tracked, depth: int) -> Tracked:
    """The root of a sum of squares. Elements that are scaled first, by a power of 2, are rounded no further."""
    kind, value = elements.kind, elements.value
    low, high = SQUARED_AS_THEY_ARE[kind]
    sizes = np.abs(value)
    plain = ((sizes == 0) | ((sizes > low) & (sizes < high))).all(axis=1) & (elements.bound == 0).all(axis=1)
    squares = rounded(value * value, clear_bounds(elements.bound * (2 * sizes + elements.bound)), kind)
    root = square_root(tree_sum(squares, depth), of_squares=True)
    sizes = sizes.astype(np.longdouble)
    total = (sizes * sizes).sum(axis=1)
    inherited = (elements.bound * (2 * sizes + elements.bound)).sum(axis=1)
    error = inherited + gamma(depth + 6, kind) * (total + inherited)
    length = np.sqrt(total)
    bound = np.asarray(clear_bounds(np.sqrt(total + error) - length), np.float64)
    scaled = rounded(length.astype(value.dtype), bound, kind, ulps=4.0)
    return Tracked(np.where(plain, root.value, scaled.value), np.where(plain, root.bound, scaled.bound), kind)


def _moments(elements: Tracked, depth: int, plan: ReductionPlan) -> tuple[Tracked, Tracked]:
    """Mean and variance, with bounds for joining parts whose means are relative to an element (Chan, Golub and LeVeque, 1983).

    A mean relative to an element is as large as the range R of the elements at most, and errs by d = 4 depth u R; no error of a part
    grows when parts are joined. The variance is the sum of the squared distances between means that are joined, weighted by counts
    over the count of all: an error of d in each of these adds up to 2 d times the sum of the weighted distances, which is the
    standard deviation at most (Cauchy and Schwarz) at each of ``depth`` levels, the roots of whose weights add up to their root.
    """
    kind, value = elements.kind, elements.value
    u, tiny, count = float_format(kind).roundoff, float_format(kind).smallest, value.shape[1]
    correction = plan.arithmetic.correction
    nothing = np.full((value.shape[0], value.shape[2]), np.nan)
    if count == 0:
        empty = Tracked(nothing, np.zeros(nothing.shape), kind)
        return empty, empty
    mean = value.mean(axis=1)
    finite = np.isfinite(value).all(axis=1)
    known = np.where(finite[:, None], value, 0)
    spread = known.max(axis=1) - known.min(axis=1)
    variance = np.where(finite, ((known - np.where(finite, mean, 0)[:, None]) ** 2).mean(axis=1), np.nan)
    wide = np.finfo(value.dtype).eps
    inherited = elements.bound.max(axis=1)
    mean_error = inherited + 4 * (depth + 6) * u * spread + 2 * u * np.abs(mean) + count * wide * np.abs(known).max(axis=1)
    mean_error += (depth + 8) * tiny  # Among subnormal numbers, a part's mean that moves is rounded to a multiple of the smallest.
    error = inherited + 4 * (depth + 6) * u * spread
    variance_error = 4 * error * np.sqrt(variance) * (1 + np.sqrt(depth)) + 4 * error**2 * (1 + depth)
    variance_error += 4 * (depth + 6) * u * variance + 64 * (depth + 6) * tiny
    equal = (spread == 0) & (elements.bound == 0).all(axis=1) & finite  # Nothing is rounded: all distances are 0.
    quarters = (np.abs(known) >= 2**4 * tiny / u) | (known == 0)
    mean_error = np.where((equal & quarters.all(axis=1)) | ~finite, 0.0, mean_error)
    first = rounded(mean, clear_bounds(mean_error), kind, ulps=0.0)
    if count <= correction:
        return first, Tracked(nothing, np.zeros(nothing.shape), kind)
    # The square of a distance may overflow where the variance, over all elements, does not.
    near = finite & (spread.astype(np.longdouble) ** 2 * 2 >= float_format(kind).overflow) & (variance < float_format(kind).overflow)
    near |= ~np.isfinite(elements.bound).all(axis=1)
    of_sample = count / (count - correction)
    result = rounded(variance * of_sample, np.where(near, np.inf, clear_bounds(variance_error)) * of_sample, kind, ulps=4.0)
    return first, Tracked(result.value, np.where(equal, 0.0, result.bound), kind)


def path_length(plan: ReductionPlan, problem: Mapping[str, int]) -> int:
    """The most states that an element's own is combined with, one after another, until it is in the result."""
    layout, reduced = plan.layout, plan.extents(problem)[1]
    joins = plan.accumulators.bit_length() + 1
    if isinstance(layout, TensorLayout):
        return _tensor_path_length(plan, layout, problem)
    if isinstance(layout, LaneLayout):
        steps = ceil_div(reduced, layout.lanes * plan.vector)
        return steps * ceil_div(plan.vector, plan.accumulators) + plan.vector + joins + layout.lanes.bit_length()
    if isinstance(layout, ColumnLayout):
        tree = layout.row_threads.bit_length()
        length = ceil_div(reduced, layout.row_threads * layout.splits) + 1 + tree
        return length + (layout.splits + tree if layout.splits > 1 else 0)
    assert isinstance(layout, BlockLayout)
    tree = plan.threads.bit_length()
    blocks = layout.blocks_per_row or plan.sequence.launches[1 if plan.finish == "atomic" else 0].grid_of(problem)[0]
    if layout.loads == "stream":
        turns = ceil_div(ceil_div(reduced, plan.tile), blocks) + 1
        length = turns * plan.unroll * ceil_div(plan.vector, plan.accumulators) + 1 + joins + tree
    else:
        length = 2 + tree
    # The blocks' results: each thread of one block, or one thread for each result, combines them in turn.
    return length + (blocks + tree if plan.finish else 0)


def _tensor_path_length(plan: ReductionPlan, layout: TensorLayout, problem: Mapping[str, int]) -> int:
    parts = problem.get("parts", 1)
    _, reduced, inner = layout.extents(problem)
    joins = plan.accumulators.bit_length() + 1
    meeting = parts + plan.threads.bit_length() if parts > 1 else 0
    if layout.name == "tensor_rows":
        loads = layout.unit_count(problem)
        steps = ceil_div(loads, layout.lanes * parts) + plan.unroll
        return steps * plan.vector + joins + layout.lanes.bit_length() + meeting
    if layout.name == "tensor_columns":
        return ceil_div(reduced, layout.groups * parts) + plan.unroll + layout.groups.bit_length() + meeting
    if layout.name == "flat_tiles":
        return ceil_div(reduced, layout.groups * parts) + plan.unroll + layout.groups + 2 * plan.vector + meeting
    if layout.name == "flat_columns":
        rows = max(1, plan.threads // max(inner, 1)) * plan.vector
        return ceil_div(reduced, rows * parts) + 2 * plan.unroll + plan.threads * plan.vector + meeting
    return reduced
