"""Reference arithmetic: values, the bounds of their errors, and the effect of roundings and conversions on both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import ELEMENTS, FLOATS, INTEGERS, DataType, float_format, numpy_type, to_elements, to_numbers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Tracked:
    """Values of the type ``kind`` as a kernel has them, up to ``bound``.

    Floats are held in a wider type: float64, or long double for float64. Integers are held exactly, in their own type, and
    wrap around like it; their bound is 0.
    """

    value: npt.NDArray[Any]
    bound: npt.NDArray[Any]
    kind: DataType

    def with_integers(self, value: npt.NDArray[Any]) -> Tracked:
        """A value of this type with other, exact numbers."""
        return Tracked(value, self.bound, self.kind)


def wide_type(kind: str) -> Any:
    """The NumPy type that values of ``kind`` are held in."""
    import numpy as np

    if kind in INTEGERS:
        return numpy_type(kind)
    return np.dtype(np.longdouble if kind == "f64" else np.float64)


def tracked(values: npt.NDArray[Any], kind: DataType) -> Tracked:
    """Exact values of the type ``kind``."""
    import numpy as np

    return Tracked(values.astype(wide_type(kind)), np.zeros(values.shape, np.float64), kind)


def spread(value: Tracked, shape: tuple[int, ...]) -> Tracked:
    """A value for each element of an array, of one that may be the same for several."""
    import numpy as np

    return Tracked(np.broadcast_to(value.value, shape), np.broadcast_to(value.bound, shape), value.kind)


def clear_bounds(bound: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bound, infinite where it is not a number, 0 times infinity say."""
    import numpy as np

    return np.where(np.isnan(bound), np.inf, bound)


def nearest(value: npt.NDArray[Any], kind: DataType) -> npt.NDArray[Any]:
    """The nearest numbers of ``kind``, in the type they were held in."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(np.isfinite(value), to_numbers(kind, to_elements(kind, value)).astype(value.dtype), value)


def rounded(value: npt.NDArray[Any], bound: npt.NDArray[Any], kind: DataType, ulps: float = 1.0) -> Tracked:
    """Values and bounds after one rounding to ``kind``, or after an operation that errs by up to ``ulps`` roundings.

    Where the bound is 0, the one correctly rounded value is expected: such elements are then compared for equality. That
    needs a value with twice the digits, which for float64 only the values have that a float64 holds.
    """
    import numpy as np

    shape = float_format(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        if ulps == 1.0:
            exact = nearest(value, kind)
            certain = (bound == 0) & ((kind != "f64") | (exact == value) | np.isnan(value))
            if kind in ("f16", "bf16"):  # values on both ends of the bound often round to the same half, which is then known
                low, high = nearest(value - bound, kind), nearest(value + bound, kind)
                certain |= (low == high) & np.isfinite(low)
            value = np.where(certain, exact, value)
        else:
            certain = np.zeros(value.shape, np.bool_)
        grown = bound + ulps * (shape.roundoff * (np.abs(value) + bound) + shape.smallest)
        return overflown(Tracked(value, np.asarray(np.where(certain, 0.0, grown), np.float64), kind), kind)


def least_beyond(kind: DataType) -> Any:
    """The smallest magnitude that rounds to infinity: of float64 too, whose values are held in long double."""
    import numpy as np

    form = float_format(kind)
    return np.longdouble(form.largest) + np.ldexp(np.longdouble(1), 1024 - form.digits - 1) if kind == "f64" else form.overflow


def overflown(result: Tracked, kind: DataType) -> Tracked:
    """Infinity where a value lies beyond all numbers of ``kind``, even if it errs by its bound; that is then certain.

    Where the bound leaves open whether it does, the bound is infinite from there on: nothing is known of the value any more.
    """
    import numpy as np

    with np.errstate(invalid="ignore"):
        finite, size, overflow = np.isfinite(result.value), np.abs(result.value), least_beyond(kind)
        beyond = finite & (size - result.bound >= overflow)
        undecided = finite & ~beyond & (result.bound > 0) & (size + result.bound >= overflow) | ~np.isfinite(result.bound)
        value = np.where(beyond, np.copysign(np.inf, result.value).astype(result.value.dtype), result.value)
        return Tracked(value, np.where(undecided, np.inf, np.where(np.isfinite(value), result.bound, 0.0)), result.kind)


def to_type(value: Tracked, kind: DataType) -> Tracked:
    """A conversion as the kernels do it, to halves by way of float32 and to int8 by way of int32."""
    import numpy as np

    if kind in ("f16", "bf16"):
        narrow = to_type(value, "f32")
        half = rounded(narrow.value, narrow.bound, kind)
        return Tracked(half.value, half.bound, "f32")
    if kind in FLOATS:
        if value.kind == kind:
            return value
        result = rounded(value.value.astype(np.longdouble), value.bound, kind)
        return Tracked(result.value.astype(wide_type(kind)), result.bound, kind)
    if kind in ("s8", "u8"):
        whole = to_type(value, "s32")
        byte = np.clip(whole.value, -128, 127) if value.kind in FLOATS else whole.value.astype(ELEMENTS[kind].holder)
        return whole.with_integers(byte.astype(np.int32))
    target = numpy_type(kind)
    if value.kind in FLOATS:
        limits = np.iinfo(target)
        whole_part = np.nan_to_num(np.trunc(value.value.astype(np.longdouble)), nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
        inside = np.clip(whole_part, np.longdouble(limits.min), np.longdouble(limits.max)).astype(target)
        # An error in the value can move the result over the next integer.
        bound = np.where(value.bound > 0, np.ceil(value.bound) + 1, 0.0)
        return Tracked(inside, bound, kind)
    return Tracked(value.value.astype(target), value.bound, kind)


def stored_value(value: Tracked, kind: DataType) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A value and its bound as an element of an array: rounded to nearest, with saturation to integers and 8-bit floats."""
    import numpy as np

    from gemmgen.kernels.accuracy import stored

    if value.kind == "bool" or kind == "bool":
        unknown = value.bound > 0 if value.kind == "bool" else (value.bound > 0) & (np.abs(value.value) <= value.bound)
        truth = value.value if value.kind == "bool" else value.value != 0
        return truth.astype(np.float64), np.where(unknown, np.inf, 0.0)
    if kind in ("s8", "u8", "s32") and value.kind in FLOATS:
        low, high = ELEMENTS[kind].limits
        nearest = np.where(np.isnan(value.value), 0.0, np.clip(np.rint(value.value), low, high))
        return nearest, np.where(value.bound > 0, value.bound + 1, 0.0)
    if kind in INTEGERS:
        return value.value.astype(numpy_type(kind)), value.bound
    if value.kind not in FLOATS:
        value = to_type(value, "f32")
    return stored(kind, value.value, value.bound)


def extremum(reduce: str, values: Tracked, axes: tuple[int, ...], before: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A maximum, minimum or largest absolute value along axes and of the old value, with its bound; NaN wins."""
    import numpy as np

    sign = -1.0 if reduce == "min" else 1.0
    value = sign * (np.abs(values.value) if reduce == "absmax" else values.value)
    start = sign * before.astype(np.float64)

    def largest(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(np.maximum(np.max(part, axis=axes, initial=-np.inf).reshape(start.shape), start))

    with np.errstate(invalid="ignore"):
        # An infinity of which nothing is known may be any number.
        unknown = np.isinf(values.bound) & np.isinf(value)
        above, below = (np.where(unknown, limit, value + side * values.bound) for side, limit in ((1, np.inf), (-1, -np.inf)))
        middle, high, low = largest(value), largest(above), largest(below)
        bound = np.where(
            np.isfinite(middle), np.maximum(high - middle, middle - low), np.where(np.isnan(middle) | (high == low), 0.0, np.inf)
        )
    return sign * middle, bound


def summed(terms: Tracked, axes: tuple[int, ...], squares: bool, shape: tuple[int, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Float32 sums of terms, or of their squares, along axes, in any order, with their bounds.

    N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2: each of n terms takes part in at most n - 1 additions;
    a fused square is one more rounding.
    """
    import numpy as np

    from gemmgen.kernels.accuracy import SMALLEST, UNIT_ROUNDOFF

    with np.errstate(invalid="ignore", over="ignore"):
        value, bound = terms.value.astype(np.float64), terms.bound
        if squares:
            value, bound = value * value, clear_bounds(bound * (2 * np.abs(value) + bound))
            bound = np.where((terms.bound == 0) & ~np.isfinite(value), 0.0, bound)
        count = max(1, int(np.prod([value.shape[axis] for axis in axes])))
        growth = count * UNIT_ROUNDOFF / (1 - count * UNIT_ROUNDOFF)
        total, size = (part.sum(axis=axes).reshape(shape) for part in (value, np.abs(value) + bound))
        spread = bound.sum(axis=axes).reshape(shape) + growth * size + count * SMALLEST * squares
        integers = np.all((value == np.rint(value)) & (bound == 0), axis=axes).reshape(shape) & (size < 2.0**24)
        unknown = ~np.isfinite(spread) | (size + spread >= float(np.finfo(np.float32).max))
        uncertain = (~np.isfinite(bound)).any(axis=axes).reshape(shape)
        spread = np.where(integers, 0.0, np.where(unknown, np.inf, spread))
        # An infinity or NaN among exact terms decides, unless a partial sum of the others may overflow to the other infinity.
        finite = np.where(np.isfinite(value), np.abs(value) + bound, 0.0).sum(axis=axes).reshape(shape)
        certain = ~np.isfinite(total) & ~uncertain & (finite < 1e38)
        return total, np.where(certain, 0.0, spread)


def gamma(roundings: int, kind: str) -> float:
    """Largest relative error of successive roundings to ``kind``: N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma
    3.1."""
    return roundings * float_format(kind).roundoff / (1 - roundings * float_format(kind).roundoff)


def tree_sum(elements: Tracked, depth: int, overflows: bool = True) -> Tracked:
    """Sums along axis 1 by any tree in which each element passes through at most ``depth`` additions (Higham, section 4.2).

    ``overflows``: True for sums in one number, which may overflow on the way.
    """
    import numpy as np

    kind, value = elements.kind, elements.value
    total, magnitude = value.sum(axis=1) + 0.0, np.abs(value).sum(axis=1)
    exact = (elements.bound == 0).all(axis=1)
    held = np.zeros(total.shape, np.bool_)
    for unit in (1.0, 2.0**-8, float_format(kind).smallest):  # units: the elements of exact sums are multiples of one of these
        whole = (value / unit == np.rint(value / unit)).all(axis=1)
        held |= whole & (magnitude / unit <= 2.0 ** float_format(kind).digits)
    exact &= held | ~np.isfinite(magnitude)
    inherited = elements.bound.sum(axis=1)
    own = gamma(depth, kind) * (magnitude + inherited) + value.shape[1] * np.finfo(value.dtype).eps * magnitude
    # Both signs may overflow on the way to a sum that does not, in an order that is not known.
    finite = np.where(np.isfinite(value), value, 0)
    up, down = (np.where(sign * finite > 0, np.abs(finite), 0).sum(axis=1) for sign in (1, -1))
    if not overflows:
        return Tracked(total, np.asarray(np.where(exact, 0.0, clear_bounds(inherited + own)), np.float64), kind)
    error, overflow = inherited + own, least_beyond(kind)
    over_up, over_down = up + error >= overflow, down + error >= overflow
    undecided = (over_up & (over_down | (value == -np.inf).any(axis=1))) | (over_down & (value == np.inf).any(axis=1))
    undecided |= (over_up | over_down) & np.isfinite(total) & (np.abs(total) - error < overflow)
    exact &= ~undecided
    inherited = np.where(undecided, np.inf, inherited)
    return overflown(Tracked(total, np.asarray(np.where(exact, 0.0, clear_bounds(inherited + own)), np.float64), kind), kind)


def fused_multiply_add(a: object, b: object, c: object) -> npt.NDArray[np.float64]:
    """a * b + c of float32 numbers, in float64: rounding it to float32 gives the result of a fused multiply-add.

    The product is exact in float64. Its sum with c is rounded to odd there (the exact error of the sum says where), after
    which rounding to float32 is right: S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved
    algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008.
    """
    import numpy as np

    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = np.atleast_1d(total).copy().view(np.int64).reshape(total.shape)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    upward = (error > 0) == (total > 0)
    odd = np.where(inexact, bits + np.where(upward, 1, -1), bits)
    return np.asarray(odd, np.int64).view(np.float64)
