"""Element types: one table of every type that arrays, scalars and registers have, and conversions between elements and numbers.

Types without a C type that every compiler knows (float16, bfloat16, the 8-bit floats) are held as their bits, in NumPy as in CUDA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DataType = Literal["f32", "f64", "f16", "bf16", "tf32", "e4m3", "e5m2", "ue8m0", "s8", "u8", "u16", "s32", "u32", "s64", "bool"]


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format."""

    digits: int
    """Significant bits, the implicit one included."""
    least_exponent: int
    """Exponent of the smallest normal number."""
    largest: float
    """The largest finite number."""
    saturates: bool = False
    """True if conversions give the largest finite number where others give infinity."""

    @property
    def roundoff(self) -> float:
        """Largest relative error of rounding to nearest."""
        return 2.0**-self.digits

    @property
    def smallest(self) -> float:
        """The smallest positive number, a subnormal: twice the largest error of a rounding in the subnormal range."""
        return math.ldexp(1.0, self.least_exponent - self.digits + 1)

    @property
    def overflow(self) -> float:
        """The smallest magnitude that rounds to infinity; infinite for formats that saturate and for float64, beyond which
        no reference computes."""
        if self.saturates:
            return math.inf
        _, exponent = math.frexp(self.largest)
        return self.largest + math.ldexp(1.0, exponent - self.digits - 1) if exponent < 1024 else math.inf


@dataclass(frozen=True)
class Element:
    """One type of elements."""

    name: DataType
    bytes: int
    word: str
    """Name of the type in NumPy and torch."""
    holder: str
    """The NumPy type that holds it: its own, or an integer type for its bits."""
    c_type: str
    """Name of the type in CUDA C++."""
    stdint: str
    """Name of the type in C, from ``stdint.h`` where that has one."""
    ctypes_name: str
    """Name of the type in Python's ctypes."""
    dlpack: tuple[int, int]
    """Type code and bits in DLPack."""
    format: FloatFormat | None = None
    """None: integers and truth values."""
    held_in: DataType | None = None
    """The type that a value is computed with; None: the type itself."""

    @property
    def is_float(self) -> bool:
        return self.format is not None

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest finite value: integers for integer types."""
        if self.format is not None:
            return -self.format.largest, self.format.largest
        if self.name == "bool":
            return 0, 1
        bits = 8 * self.bytes
        return (0, 2**bits - 1) if self.name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    @property
    def computed_in(self) -> DataType:
        """The type of a register that holds a value of this type."""
        return self.held_in or self.name

    @property
    def unsigned_c_type(self) -> str:
        """The unsigned type in which integers of this type wrap around."""
        return {1: "unsigned char", 4: "unsigned int", 8: "unsigned long long"}[self.bytes]

    def literal(self, number: int) -> str:
        """A small integer as a constant of this type in C."""
        suffix = {"f32": ".0f", "f64": ".0"}.get(self.name, "")
        return f"{number}{suffix}"

    @property
    def typestr(self) -> str:
        """NumPy's array-interface code of the holder, in little endian."""
        letter = "b" if self.holder == "bool" else self.holder[0]
        return f"{'<' if self.bytes > 1 else '|'}{letter}{self.bytes}"


_F32 = FloatFormat(24, -126, 3.4028234663852886e38)
_F64 = FloatFormat(53, -1022, 1.7976931348623157e308)
_F16 = FloatFormat(11, -14, 65504.0)
_BF16 = FloatFormat(8, -126, 3.3895313892515355e38)
_TF32 = FloatFormat(11, -126, 3.4011621342146535e38)
# OCP 8-bit Floating Point Specification 1.0: E4M3 has no infinities and one NaN, E5M2 is like IEEE 754. Conversions saturate
# (PTX ISA, cvt: .satfinite is required for both).
_E4M3 = FloatFormat(4, -6, 448.0, saturates=True)
_E5M2 = FloatFormat(3, -14, 57344.0, saturates=True)
# OCP Microscaling Formats Specification 1.0: the exponent alone, of powers of two from 2^-127 to 2^127, and one NaN.
_UE8M0 = FloatFormat(1, -127, 2.0**127, saturates=True)

_TABLE = (
    Element("f32", 4, "float32", "float32", "float", "float", "c_float", (2, 32), _F32),
    Element("f64", 8, "float64", "float64", "double", "double", "c_double", (2, 64), _F64),
    Element("f16", 2, "float16", "float16", "unsigned short", "uint16_t", "c_ushort", (2, 16), _F16, "f32"),
    Element("bf16", 2, "bfloat16", "uint16", "unsigned short", "uint16_t", "c_ushort", (4, 16), _BF16, "f32"),
    Element("tf32", 4, "float32", "float32", "float", "float", "c_float", (2, 32), _TF32, "f32"),
    Element("e4m3", 1, "float8_e4m3fn", "uint8", "unsigned char", "uint8_t", "c_ubyte", (10, 8), _E4M3, "f32"),
    Element("e5m2", 1, "float8_e5m2", "uint8", "unsigned char", "uint8_t", "c_ubyte", (12, 8), _E5M2, "f32"),
    Element("ue8m0", 1, "float8_e8m0fnu", "uint8", "unsigned char", "uint8_t", "c_ubyte", (14, 8), _UE8M0, "f32"),
    Element("s8", 1, "int8", "int8", "signed char", "int8_t", "c_byte", (0, 8), None, "s32"),
    Element("u8", 1, "uint8", "uint8", "unsigned char", "uint8_t", "c_ubyte", (1, 8), None, "s32"),
    Element("u16", 2, "uint16", "uint16", "unsigned short", "uint16_t", "c_ushort", (1, 16)),
    Element("s32", 4, "int32", "int32", "int", "int32_t", "c_int", (0, 32)),
    Element("u32", 4, "uint32", "uint32", "unsigned int", "uint32_t", "c_uint", (1, 32)),
    Element("s64", 8, "int64", "int64", "long long", "int64_t", "c_longlong", (0, 64)),
    Element("bool", 1, "bool", "bool", "bool", "bool", "c_bool", (6, 8), None, "s32"),
)

ELEMENTS: dict[str, Element] = {element.name: element for element in _TABLE}
"""Every type by its name."""

BY_WORD: dict[str, DataType] = {element.word: element.name for element in reversed(_TABLE)}
"""The names that NumPy and torch have for the types; float32 is f32, not tf32, which is stored the same."""

INTEGERS: tuple[DataType, ...] = tuple(element.name for element in _TABLE if not element.is_float and element.name != "bool")
FLOATS: tuple[DataType, ...] = tuple(element.name for element in _TABLE if element.is_float)


def float_format(kind: str) -> FloatFormat:
    """The format of a floating-point type; raises ``TypeError`` for others."""
    shape = ELEMENTS[kind].format
    if shape is None:
        raise TypeError(f"{kind} is no floating-point type")
    return shape


def numpy_type(kind: str) -> np.dtype[Any]:
    """The NumPy type that holds elements of ``kind``."""
    import numpy as np

    return np.dtype(ELEMENTS[kind].holder)


def to_elements(kind: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers as elements of ``kind``, rounded to nearest even (tf32: ties away from zero, as ``cvt.rna`` does); types that are
    held as their bits become those. 8-bit floats saturate; ue8m0 has the power of two that is no smaller, the least for 0."""
    import numpy as np

    values = np.asarray(values)
    if kind == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        even = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FFF), even)
    if kind == "tf32":
        bits = values.astype(np.float32).view(np.uint32)
        finite = (bits & 0x7F800000) != 0x7F800000
        return np.where(finite, (bits + 0x1000) & np.uint32(0xFFFFE000), bits).view(np.float32)
    if kind in ("e4m3", "e5m2"):
        return _byte_codes(kind, values)
    if kind == "ue8m0":
        return _exponent_codes(values)
    return values.astype(numpy_type(kind))


def to_numbers(kind: str, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Elements of ``kind`` as numbers: the inverse of ``to_elements``."""
    import numpy as np

    if kind == "bf16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    if kind in ("e4m3", "e5m2"):
        return cast("npt.NDArray[Any]", _byte_values(kind)[elements])
    if kind == "ue8m0":
        return np.where(elements == 255, np.nan, np.ldexp(1.0, elements.astype(np.int32) - 127)).astype(np.float32)
    return elements


@cache
def _byte_values(kind: str) -> npt.NDArray[np.float32]:
    """The number of each of the 256 codes of an 8-bit float."""
    import numpy as np

    shape = float_format(kind)
    fraction_bits = shape.digits - 1
    codes = np.arange(128)
    fraction = (codes & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    exponent = codes >> fraction_bits
    values = np.where(exponent > 0, 1 + fraction, fraction) * 2.0 ** (np.maximum(exponent, 1) - 1 + shape.least_exponent)
    if kind == "e5m2":
        values[0x7C] = np.inf
        values[0x7D:] = np.nan
    else:
        values[0x7F] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


def _byte_codes(kind: str, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    import numpy as np

    known = _byte_values(kind)[:128].astype(np.float64)
    finite = known[np.isfinite(known)]
    middles = (finite[:-1] + finite[1:]) / 2
    numbers = values.astype(np.float64)
    size = np.abs(numbers)
    low, high = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
    codes = np.where(low % 2 == 0, low, high)  # they differ by one where the number lies in the middle: the even one
    codes = np.where(np.isnan(numbers), 0x7F, codes) | np.where(np.signbit(numbers) & ~np.isnan(numbers), 0x80, 0)
    return codes.astype(np.uint8)


def _exponent_codes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Powers of two that are at least as large as numbers; NaN for negative ones, which there are none of."""
    import numpy as np

    numbers = values.astype(np.float64)
    fraction, exponent = np.frexp(np.where(np.isfinite(numbers), numbers, 0.0))
    codes = np.clip(np.where(fraction == 0.5, exponent - 1, exponent) + 127, 0, 254)
    codes = np.where(numbers == 0, 0, np.where(np.isposinf(numbers), 254, codes))
    return np.where(np.isnan(numbers) | (numbers < 0), 255, codes).astype(np.uint8)
