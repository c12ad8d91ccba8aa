"""Planes of float32 matrices in NumPy, for verification: the kernels' results, and the error bound of products by planes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.kernels.accuracy import SMALLEST, UNIT_ROUNDOFF, accumulated
from gemmgen.kernels.gemm.split_precision.planes import NEAR_THE_END, PlaneOperand, PlanesPlan, Scheme
from gemmgen.kernels.gemm.tensor_cores.factors import REGION_BYTES

MARKED = 0x7FFFFFFF
"""Exponent of a row that no planes can hold."""
_BIAS = 127
_MAX_SCALED = 14
"""Exponent of the largest magnitude of a row, once it is scaled."""


def stored_planes(operand: PlaneOperand, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The array of an operand's scales and planes. ``values``: (rows, k) of A, or (columns, k) of B."""
    scheme = operand.scheme
    exponents = scale_exponents(scheme, values)
    if 0 < values.shape[1] < operand.least_depth:
        exponents[:] = MARKED
    planes = split(scheme, values, exponents)
    if not operand.k_major:
        planes = planes.swapaxes(1, 2)
    width = planes.shape[2]
    padded = np.zeros((*planes.shape[:2], -(-width // operand.pitch_multiple) * operand.pitch_multiple), planes.dtype)
    padded[:, :, :width] = planes
    extremes = [] if operand.k_major else [np.zeros(2 * len(values), np.uint32)]
    parts = [part.reshape(-1).view(np.uint8) for part in (*extremes, exponents, padded)]
    return np.concatenate([np.pad(part, (0, -len(part) % REGION_BYTES)) for part in parts])


def scale_exponents(scheme: Scheme, values: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """For each row the exponent of the power of two that it is scaled by, or that it is marked."""
    largest = np.abs(values).max(axis=1, initial=0)
    high = np.maximum(np.ascontiguousarray(largest).view(np.int32) >> 23, 1)
    exponents = _MAX_SCALED + _BIAS - high if scheme.scaled else np.zeros_like(high)
    return np.where(scheme.holds(values), exponents, MARKED).astype(np.int32)


def split(scheme: Scheme, values: npt.NDArray[np.float32], exponents: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
    """Planes (plane, rows, k) as bits, zeros for rows that are marked."""
    marked = exponents == MARKED
    held = np.where(marked[:, None], np.float32(0), values)
    rest = np.ldexp(held, np.where(marked, 0, exponents)[:, None]).astype(np.float32)
    if scheme.type == "f16":
        high = rest.astype(np.float16)
        left = (rest - high.astype(np.float32)) * np.float32(2.0**scheme.significand_bits)
        low = left.astype(np.float16)
        up = np.where(rest > 0, low.astype(np.float32) < left, low.astype(np.float32) > left)
        low = np.where(up, np.nextafter(low, np.where(rest > 0, np.float16(np.inf), np.float16(-np.inf))), low)
        return np.stack([high, low]).view(np.uint16)
    if scheme.type == "f32":
        mask = np.uint32(0xFFFFE000)
        first = rest.view(np.uint32) + np.uint32(0x1000) & mask
        second = (rest - first.view(np.float32)).view(np.uint32)
        opposite = (second ^ rest.view(np.uint32)).view(np.int32) < 0
        return np.stack([first, np.where(opposite, second, second + ~mask) & mask])
    planes: list[npt.NDArray[Any]] = []
    for _ in range(scheme.planes):
        bits = rest.view(np.uint32)
        bits = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) & np.uint32(0xFFFF0000)
        planes.append((bits >> np.uint32(16)).astype(np.uint16))
        rest = rest - bits.view(np.float32)
    return np.stack(planes)


def planes_bound(planes: PlanesPlan, a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Largest error of a float32 product by planes: that of ``PlanesPlan.error_factor``, near the end of float32's range that of
    ``PlanesPlan.range_factor``, and that of float32 multiply-adds in rows of A and columns of B that planes cannot hold."""
    k, scheme = a.shape[-1], planes.scheme
    size = np.abs(a) @ np.abs(b)
    fma = accumulated(k)
    held = scheme.holds(a)[..., :, None] & scheme.holds(b.swapaxes(-1, -2))[..., None, :] | (k < planes.least_depth)
    factor = np.where(size < NEAR_THE_END, planes.error_factor(k), planes.range_factor(k)) * UNIT_ROUNDOFF
    bound: npt.NDArray[np.float64] = np.where(held, factor, fma) * size + SMALLEST
    return bound
