"""Reference arithmetic: values, the bounds of their errors, and what roundings and conversions do to both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmgen.kernels.launch import DataType

if TYPE_CHECKING:
    import numpy.typing as npt

FLOATS: tuple[DataType, ...] = ("f32", "f64", "f16", "bf16")
UNIT_ROUNDOFF: dict[str, float] = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Largest relative error of rounding to nearest."""
SMALLEST: dict[str, float] = {"f32": 2.0**-149, "f64": 2.0**-1074, "f16": 2.0**-24, "bf16": 2.0**-133}
"""The smallest positive number: more than any rounding errs in the subnormal range."""
OVERFLOW: dict[str, float] = {"f32": 2.0**128 - 2.0**103, "f64": float("inf"), "f16": 65520.0, "bf16": 2.0**128 - 2.0**119}
"""The smallest magnitude that is rounded to infinity; nothing that the references compute in reaches that of float64."""
INTEGER_TYPES = {"s8": "int8", "u8": "uint8", "s32": "int32", "s64": "int64"}


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
        """The same kind with other, exact values."""
        return Tracked(value, self.bound, self.kind)


def wide_type(kind: str) -> Any:
    """The NumPy type that values of ``kind`` are held in."""
    import numpy as np

    if kind in INTEGER_TYPES:
        return np.dtype(INTEGER_TYPES[kind])
    return np.dtype(np.longdouble if kind == "f64" else np.float64)


def tracked(values: npt.NDArray[Any], kind: DataType) -> Tracked:
    """Exact values of the type ``kind``."""
    import numpy as np

    return Tracked(values.astype(wide_type(kind)), np.zeros(values.shape, np.float64), kind)


def clear_bounds(bound: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bound, infinite where it is not a number, 0 times infinity say."""
    import numpy as np

    return np.where(np.isnan(bound), np.inf, bound)


def nearest(value: npt.NDArray[Any], kind: DataType) -> npt.NDArray[Any]:
    """The nearest numbers of ``kind``, in the type they were held in."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "bf16":
            bits = value.astype(np.float32).view(np.uint32)
            even = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
            return np.where(np.isfinite(value), even.view(np.float32).astype(value.dtype), value)
        narrow: Any = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
        return value.astype(narrow).astype(value.dtype)


def rounded(value: npt.NDArray[Any], bound: npt.NDArray[Any], kind: DataType, ulps: float = 1.0) -> Tracked:
    """Values and bounds after one rounding to ``kind``, or after an operation that errs by up to ``ulps`` roundings.

    Where the bound is 0, the one correctly rounded value is expected: such elements are then compared for equality. That
    needs a value with twice the digits, which for float64 only the values have that a float64 holds.
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        if ulps == 1.0:
            exact = nearest(value, kind)
            certain = (bound == 0) & ((kind != "f64") | (exact == value) | np.isnan(value))
            value = np.where(certain, exact, value)
        else:
            certain = np.zeros(value.shape, np.bool_)
        grown = bound + ulps * (UNIT_ROUNDOFF[kind] * (np.abs(value) + bound) + SMALLEST[kind])
        return overflown(Tracked(value, np.asarray(np.where(certain, bound, grown), np.float64), kind), kind)


def overflown(result: Tracked, kind: DataType) -> Tracked:
    """Infinity where a value lies beyond all numbers of ``kind``, even if it errs by its bound; that is then certain."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        beyond = np.isfinite(result.value) & (np.abs(result.value) - result.bound >= OVERFLOW[kind])
        value = np.where(beyond, np.copysign(np.inf, result.value).astype(result.value.dtype), result.value)
        return Tracked(value, np.where(np.isfinite(value), result.bound, 0.0), result.kind)


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
        byte = np.clip(whole.value, -128, 127) if value.kind in FLOATS else whole.value.astype(INTEGER_TYPES[kind])
        return whole.with_integers(byte.astype(np.int32))
    target = np.dtype(INTEGER_TYPES[kind])
    if value.kind in FLOATS:
        limits = np.iinfo(target)
        whole_part = np.nan_to_num(np.trunc(value.value.astype(np.longdouble)), nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
        inside = np.clip(whole_part, np.longdouble(limits.min), np.longdouble(limits.max)).astype(target)
        # An error in the value can move the result over the next integer.
        bound = np.where(value.bound > 0, np.ceil(value.bound) + 1, 0.0)
        return Tracked(inside, bound, kind)
    return Tracked(value.value.astype(target), value.bound, kind)
