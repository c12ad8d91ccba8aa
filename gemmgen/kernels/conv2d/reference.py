"""What a convolution kernel must compute: exact integer sums, then float32 operations in the kernel's order, then rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.kernels.conv2d.layouts import FilterOrder, nchw4_to_nchw, nchw32_to_nchw, nchw_to_nchw32, restore_filter
from gemmgen.kernels.conv2d.spec import Conv2dSpec

Float32 = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

EXACT_DEPTH = 2**53 // 2**14
"""Sums of so many products of int8 numbers are exact in float64."""


def convolution(x: Integers, filter: Integers, problem: Mapping[str, int]) -> Integers:
    """The sums of x (n, c, h, w) with filter (k, c / groups, r, s): (n, k, p, q).

    The products of a filter tap are one matrix product in float64, which holds all these integers exactly.
    """
    n, k, p, q, r, s, groups = (problem[name] for name in ("n", "k", "p", "q", "r", "s", "groups"))
    pad_h, pad_w = problem["padding_h"], problem["padding_w"]
    if 0 in (n, p, q):
        return np.zeros((n, k, p, q), np.int64)
    depth = x.shape[1] // groups
    assert depth * r * s <= EXACT_DEPTH
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad_h, pad_h), (pad_w, pad_w)))
    weights = filter.astype(np.float64)
    sums = np.zeros((groups, k // groups, n * p * q))
    for row in range(r):
        top = row * problem["dilation_h"]
        for column in range(s):
            left = column * problem["dilation_w"]
            taken = padded[
                :, :, top : top + (p - 1) * problem["stride_h"] + 1 : problem["stride_h"],
                left : left + (q - 1) * problem["stride_w"] + 1 : problem["stride_w"],
            ]  # fmt: skip
            for group in range(groups):
                channels = taken[:, group * depth : (group + 1) * depth].transpose(1, 0, 2, 3).reshape(depth, n * p * q)
                filters = weights[group * (k // groups) : (group + 1) * (k // groups), :, row, column]
                sums[group] += filters @ channels
    return sums.astype(np.int64).reshape(k, n, p, q).transpose(1, 0, 2, 3)


def reference(
    spec: Conv2dSpec,
    order: FilterOrder,
    problem: Mapping[str, int],
    scalars: Mapping[str, float],
    arrays: Mapping[str, npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """y, in the layout and of the type of the spec's output."""
    filters = nchw32_to_nchw(restore_filter(arrays["filter"].astype(np.int64), order))
    sums = convolution(nchw32_to_nchw(arrays["x"].astype(np.int64)), filters, problem)
    bias = arrays["bias"][:, None, None] if spec.bias != "none" else None
    residual = to_nchw(arrays["z"], spec.output.layout) if spec.residual else None
    finished = _exact(spec, sums, bias, residual) if spec.output.type == "s32" else _rounded(spec, sums, bias, residual, scalars)
    return from_nchw(finished, spec.output.layout)


def _exact(spec: Conv2dSpec, sums: Integers, bias: Any, residual: Any) -> Integers:
    total = sums
    for term in (bias, residual):
        if term is not None:
            total = total + term.astype(np.int64)
    low = 0 if spec.activation.op == "relu" else -(2**31)
    return np.clip(total, low, 2**31 - 1)


def _rounded(spec: Conv2dSpec, sums: Integers, bias: Any, residual: Any, scalars: Mapping[str, float]) -> npt.NDArray[Any]:
    """alpha * sum + beta * bias + gamma * z in float32: one rounding for beta * bias, and one for each fused multiply-add."""

    def factor(name: str) -> np.float32:
        return np.float32(scalars.get(name, 1.0))

    with np.errstate(over="ignore", invalid="ignore"):
        value = sums.astype(np.float32)
        shift = None if bias is None else factor("beta") * bias.astype(np.float32)
        value = factor("alpha") * value if shift is None else fused_multiply_add(factor("alpha"), value, shift)
        if residual is not None:
            value = fused_multiply_add(factor("gamma"), residual.astype(np.float32), value)
        value = spec.activation.reference(value).astype(np.float32)
        if spec.output.type == "f32":
            return value
        # fmax and fmin ignore NaN, as the kernel's do; rint rounds ties to even.
        return np.rint(np.fmin(np.fmax(value, np.float32(-128)), np.float32(127))).astype(np.int64)


def fused_multiply_add(a: Any, b: Any, c: Any) -> Float32:
    """a * b + c of float32, rounded once.

    The product is exact in float64. Its sum with c is rounded to odd there (the exact error of the sum says where), after
    which rounding to float32 is right: S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved
    algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = np.atleast_1d(total).copy().view(np.int64).reshape(total.shape)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    upward = (error > 0) == (total > 0)
    odd = np.where(inexact, bits + np.where(upward, 1, -1), bits)
    return np.asarray(odd, np.int64).view(np.float64).astype(np.float32)


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
