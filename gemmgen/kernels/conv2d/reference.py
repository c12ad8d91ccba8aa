"""Reference of a convolution: exact integer sums, then float32 operations in the kernel's order, then rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, DataType, to_numbers
from gemmgen.kernels.accuracy import SMALLEST, rounded, stored
from gemmgen.kernels.conv2d.epilogue import plan_operations
from gemmgen.kernels.conv2d.layouts import (
    FilterOrder,
    nchw4_to_nchw,
    nchw32_to_nchw,
    nchw_to_nchw32,
    plain_filters,
    tap_sums,
)
from gemmgen.kernels.conv2d.spec import Conv2dSpec
from gemmgen.kernels.epilogue.numbers import Tracked, fused_multiply_add, spread
from gemmgen.kernels.epilogue.steps import Access, Store, apply_steps, stored_output
from gemmgen.kernels.family import Expected
from gemmgen.kernels.math.tensor_accuracy import magnitude

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

EXACT_DEPTH = 2**53 // 2**14
"""Number of products of int8 numbers whose sum is exact in float64."""


def convolution(x: Integers, filter: Integers, problem: Mapping[str, int]) -> Integers:
    """The sums of integers x (n, c, h, w) with filter (k, c / groups, r, s): (n, k, p, q).

    The products of a filter tap are one matrix product in float64, which holds all these integers exactly.
    """
    assert filter.shape[1] * filter.shape[2] * filter.shape[3] <= EXACT_DEPTH
    return sums(x.astype(np.float64), filter.astype(np.float64), problem).astype(np.int64)


def sums(x: Float64, filter: Float64, problem: Mapping[str, int]) -> Float64:
    """The sums for float64 numbers, rounded as NumPy does."""
    n, k, p, q, r, s, groups = (problem[name] for name in ("n", "k", "p", "q", "r", "s", "groups"))
    pad_h, pad_w = problem["padding_h"], problem["padding_w"]
    if 0 in (n, p, q):
        return np.zeros((n, k, p, q))
    depth = x.shape[1] // groups
    padded = np.pad(x, ((0, 0), (0, 0), (pad_h, pad_h), (pad_w, pad_w)))
    totals = np.zeros((groups, k // groups, n * p * q))
    for row in range(r):
        top = row * problem["dilation_h"]
        for column in range(s):
            left = column * problem["dilation_w"]
            taken = padded[
                :,
                :,
                top : top + (p - 1) * problem["stride_h"] + 1 : problem["stride_h"],
                left : left + (q - 1) * problem["stride_w"] + 1 : problem["stride_w"],
            ]
            for group in range(groups):
                channels = taken[:, group * depth : (group + 1) * depth].transpose(1, 0, 2, 3).reshape(depth, n * p * q)
                filters = filter[group * (k // groups) : (group + 1) * (k // groups), :, row, column]
                with np.errstate(invalid="ignore"):  # of infinite numbers
                    totals[group] += filters @ channels
    return totals.reshape(k, n, p, q).transpose(1, 0, 2, 3)


def reference(
    spec: Conv2dSpec,
    order: FilterOrder,
    problem: Mapping[str, int],
    scalars: Mapping[str, float],
    arrays: Mapping[str, npt.NDArray[Any]],
    error: float = 0.0,
) -> dict[str, Expected]:
    """y, in the layout and of the type of the spec's output, and the further outputs of the epilogue. Sums of integers, their factors
    and most operations are exact; where a function is only known up to a bound, so is the result. ``error``: largest of a sum of floats,
    as a share of the sum of the products' magnitudes; 0 for numbers whose sums float32 holds."""
    kind = spec.input.type
    whole = kind in ("s8", "u8")
    held = np.int64 if whole else np.float64
    filters = plain_filters(to_numbers(kind if kind != "u8" else "s8", arrays["filter"]).astype(held), order, problem)
    x = to_nchw(to_numbers(kind, arrays["x"]).astype(held), spec.input.layout)
    total: Any = convolution(x, filters, problem) if whole else sums(x, filters, problem)
    lost = error * sums(magnitude(kind, x), magnitude(kind, filters), problem) + SMALLEST if error else np.zeros(total.shape)
    if spec.zero_point != "none":
        over_taps = arrays["tap_sums"] if "tap_sums" in arrays else tap_sums(filters)
        total = total - int(scalars["zero_point"]) * sums_of_taps(over_taps.astype(np.int64), problem)
    bias = arrays["bias"][:, None, None] if spec.bias != "none" else None
    residual = to_nchw(to_numbers(spec.output.type, arrays["z"]), spec.output.layout) if spec.residual else None
    if spec.output.type == "s32":
        return {"y": Expected(from_nchw(_exact(spec, total, bias, residual), spec.output.layout))}
    factors = dict(scalars) | ({"alpha": arrays["alpha"][:, None, None]} if spec.alpha == "channel" else {})
    value, lost = _bounded(total, lost, bias, residual, factors) if error else (_rounded(total, bias, residual, factors), lost)

    def read(access: Access) -> npt.NDArray[Any]:
        if access.operand.per == "all":
            given = scalars[access.name]
            return np.asarray(given, np.int64) if access.stored == "s64" else np.asarray(np.float32(given), np.float64)
        array = to_numbers(access.stored, arrays[access.name]).astype(np.float64)
        if access.operand.per == "memory":
            return array
        if access.operand.per == "row":
            return array.reshape(problem["n"], 1, problem["p"], problem["q"])
        return array[:, None, None] if access.operand.per == "channel" else to_nchw(array, spec.output.layout)

    steps, outputs = plan_operations(spec, []), dict[str, Tracked]()
    n, k, p, q = (problem[name] for name in ("n", "k", "p", "q"))
    coordinates = {"row": np.arange(n * p * q).reshape(n, 1, p, q), "column": np.arange(k).reshape(1, k, 1, 1)}
    finished = apply_steps(steps, Tracked(value.astype(np.float64), lost, "f32"), read, coordinates, outputs)
    result, bound = finished.value, finished.bound
    extra = {
        store.name: _extra(store, spread(outputs[store.name], finished.value.shape), spec.output.layout, arrays[store.name])
        for step in steps
        for store in step.stores
    }
    if spec.output.type in ("s8", "u8"):
        low, result, high = (_saturated(number, spec.output.type) for number in (result - bound, result, result + bound))
        bound = np.maximum(high - result, result - low).astype(np.float64)
    else:
        result, bound = stored(spec.output.type, result, bound)
    return {"y": Expected(from_nchw(result, spec.output.layout), from_nchw(bound, spec.output.layout) if bound.any() else None)} | extra


def _extra(store: Store, value: Tracked, layout: str, before: npt.NDArray[Any]) -> Expected:
    """A further output, from the value of each element (n, k, p, q)."""
    if store.output.per == "row":
        rows, bounds = (array.transpose(0, 2, 3, 1).reshape(-1, array.shape[1]) for array in (value.value, value.bound))
        return Expected(*stored_output(store, Tracked(rows, bounds, value.kind), before))
    stored, bound = stored_output(store, value, before, {"channel": (0, 2, 3)})
    return Expected(from_nchw(stored, layout), from_nchw(bound, layout)) if store.output.reduce is None else Expected(stored, bound)


def sums_of_taps(sums: Integers, problem: Mapping[str, int]) -> Integers:
    """For each result (k, p, q), the sum of its filter over the taps within the image, from (r + 1, s + 1, k) sums over those above and
    left of each."""

    def within(axis: str, taps: str, outputs: str) -> tuple[Integers, Integers]:
        first = np.arange(problem[outputs]) * problem[f"stride_{axis}"] - problem[f"padding_{axis}"]
        places = first[:, None] + np.arange(problem[taps]) * problem[f"dilation_{axis}"]
        end = (places < problem[axis]).sum(1)
        return np.minimum((places < 0).sum(1), end), end

    (top, bottom), (left, right) = within("h", "r", "p"), within("w", "s", "q")
    totals = sums[bottom][:, right] - sums[bottom][:, left] - sums[top][:, right] + sums[top][:, left]
    return totals.transpose(2, 0, 1)


def _bounded(sums: Float64, lost: Float64, bias: Any, residual: Any, factors: Mapping[str, Any]) -> tuple[Float64, Float64]:
    """alpha * sum + beta * bias + gamma * z in float32, of sums up to a bound."""

    def factor(name: str) -> Any:
        return np.float32(factors.get(name, 1.0)).astype(np.float64)

    with np.errstate(over="ignore", invalid="ignore"):
        value, bound = factor("alpha") * sums, np.abs(factor("alpha")) * lost
        if bias is not None:
            value = value + (np.float32(factors.get("beta", 1.0)) * bias.astype(np.float32)).astype(np.float64)
        value, bound = rounded(value, bound)
        if residual is not None:
            value, bound = rounded(value + factor("gamma") * residual.astype(np.float64), bound)
    return value, bound


def _saturated(value: npt.NDArray[Any], kind: DataType) -> Integers:
    """The nearest 8-bit integer, ties to even; fmax and fmin ignore NaN, as the kernel's do."""
    low, high = ELEMENTS[kind].limits
    whole: Integers = np.rint(np.fmin(np.fmax(value, float(low)), float(high))).astype(np.int64)
    return whole


def _exact(spec: Conv2dSpec, sums: Integers, bias: Any, residual: Any) -> Integers:
    total = sums
    for term in (bias, residual):
        if term is not None:
            total = total + term.astype(np.int64)
    low = 0 if spec.activation.op == "relu" else -(2**31)
    return np.clip(total, low, 2**31 - 1)


def _rounded(sums: Integers | Float64, bias: Any, residual: Any, factors: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """alpha * sum + beta * bias + gamma * z in float32: one rounding for beta * bias, and one for each fused multiply-add."""

    def factor(name: str) -> Any:
        return np.float32(factors.get(name, 1.0))

    with np.errstate(over="ignore", invalid="ignore"):
        value = sums.astype(np.float32)
        shift = None if bias is None else factor("beta") * bias.astype(np.float32)
        value = factor("alpha") * value if shift is None else _fused(factor("alpha"), value, shift)
        if residual is not None:
            value = _fused(factor("gamma"), residual.astype(np.float32), value)
        return value


def _fused(a: object, b: object, c: object) -> Float32:
    """a * b + c of float32, rounded once."""
    return fused_multiply_add(a, b, c).astype(np.float32)


def to_nchw(array: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """An output array with the channels second."""
    if layout == "nhwc":
        return array.transpose(0, 3, 1, 2)
    converted: npt.NDArray[Any] = nchw32_to_nchw(array) if layout == "nchw32" else nchw4_to_nchw(array)
    return converted


def from_nchw(array: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """The inverse of ``to_nchw``."""
    if layout == "nhwc":
        return array.transpose(0, 2, 3, 1)
    if layout == "nchw32":
        converted: npt.NDArray[Any] = nchw_to_nchw32(array)
        return converted
    n, c, h, w = array.shape
    return array.reshape(n, c // 4, 4, h, w).transpose(0, 1, 3, 4, 2)
