"""Correctly rounded arithmetic in formats and rounding modes that NumPy does not offer.

The road is always the same: the exact result as an unevaluated float64 sum s + e with |e| <= ulp(s)/2 (error-free
transformations, Knuth and Dekker), then one rounding of that sum to the wanted format. For round-to-nearest, s is first
rounded to odd: float64 has more than two bits beyond the target's precision, so that the second rounding is exact
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
Rounding modes are PTX's: rn nearest even, rz toward zero, rm down, rp up.
"""

from __future__ import annotations

from math import isfinite, isinf, isnan, nextafter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fractions import Fraction

F32_NAN = np.uint32(0x7FFFFFFF).view(np.float32)
_MIDPOINT = np.iinfo(np.int64).min
"""The low 29 bits of a float64 midway between two float32, shifted to the top."""
F32_MIN_NORMAL = np.float32(2.0**-126)
F16_NAN_BITS = np.uint16(0x7FFF)
BF16_NAN_BITS = np.uint16(0x7FFF)
F64_NAN = np.uint64(0xFFF8000000000000).view(np.float64)
ROUNDINGS = ("rn", "rz", "rm", "rp")

Array = Any
"""A NumPy array or scalar; the result is of the same kind as the argument."""


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """s + e == a + b exactly, s the rounded sum (no overflow)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def round_to_odd(s: Array, e: Array) -> Array:
    """The float64 that s + e rounds to if inexact results take the neighbour whose last bit is set."""
    s = np.array(s, np.float64, ndmin=1)
    bits = s.view(np.int64)
    inexact = (e != 0) & np.isfinite(s) & ((bits & 1) == 0) & np.isfinite(e)
    away = (e > 0) == (s > 0)
    return (bits + np.where(inexact, np.where(away, 1, -1), 0)).view(np.float64)


def to_f32(s: Array, e: Array | float, mode: str = "rn") -> Array:
    """s + e rounded once to float32. NaN becomes the hardware's canonical one."""
    s = np.asarray(s, np.float64)
    e = np.broadcast_to(np.asarray(e, np.float64), s.shape)
    if mode == "rn":
        return canonical_f32(round_to_odd(s, e).astype(np.float32).reshape(s.shape))
    return canonical_f32(_directed(s, e, s.astype(np.float32), mode))


def to_f16(s: Array, e: Array | float, mode: str = "rn") -> Array:
    """s + e rounded once to float16."""
    s = np.asarray(s, np.float64)
    e = np.broadcast_to(np.asarray(e, np.float64), s.shape)
    if mode == "rn":
        return canonical_f16(round_to_odd(s, e).astype(np.float16).reshape(s.shape))
    return canonical_f16(_directed(s, e, s.astype(np.float16), mode))


def to_bf16(s: Array, e: Array | float, mode: str = "rn") -> Array:
    """s + e rounded once to bfloat16, as bits."""
    s = np.asarray(s, np.float64)
    e = np.broadcast_to(np.asarray(e, np.float64), s.shape)
    odd = _f32_round_to_odd(s, e) if mode == "rn" else to_f32(s, e, mode)
    return f32_to_bf16(odd, mode)


def _f32_round_to_odd(s: Array, e: Array) -> Array:
    exact = round_to_odd(s, e).reshape(np.shape(s))
    truncated = _directed(exact, np.zeros_like(exact), exact.astype(np.float32), "rz")
    inexact = np.isfinite(exact) & (truncated.astype(np.float64) != exact)
    return (truncated.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


def f32_to_bf16(value: Array, mode: str = "rn") -> Array:
    """float32 to bfloat16 bits."""
    value = np.asarray(value, np.float32)
    bits = value.view(np.uint32)
    one, half, low = np.uint32(1), np.uint32(0x7FFF), np.uint32(0xFFFF)
    upper = bits >> np.uint32(16)
    negative = (bits >> np.uint32(31)).astype(np.bool_)
    if mode == "rn":
        rounded = (bits + half + (upper & one)) >> np.uint32(16)
    elif mode == "rna":
        rounded = (bits + np.uint32(0x8000)) >> np.uint32(16)
    else:
        up = np.zeros(value.shape, np.bool_) if mode == "rz" else (negative if mode == "rm" else ~negative)
        rounded = upper + (up & ((bits & low) != 0))
    if mode in ("rz", "rm", "rp"):
        rounded = np.where(np.isinf(value), upper, rounded)
    return np.where(np.isnan(value), BF16_NAN_BITS, rounded).astype(np.uint16)


def bf16_to_f64(bits: Array) -> Array:
    """bfloat16 bits to float64, exactly."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def canonical_f32(value: Array) -> Array:
    """Every NaN replaced by 0x7fffffff, which float32 arithmetic on the GPU returns."""
    return np.where(np.isnan(value), F32_NAN, value)


def canonical_f16(value: Array) -> Array:
    """Every NaN replaced by 0x7fff."""
    return np.where(np.isnan(value), F16_NAN_BITS.view(np.float16), value)


def quiet(value: Array) -> Array:
    """float64 NaNs as arithmetic passes them on: sign and payload kept, the top bit of the mantissa set."""
    return (np.asarray(value, np.float64).view(np.uint64) | np.uint64(1 << 51)).view(np.float64)


def passing_nan(result: Array, *operands: Array) -> Array:
    """float64 results, with the NaN of the last operand that is one (the hardware's order differs from a processor's)."""
    for operand in operands:
        result = np.where(np.isnan(operand), quiet(operand), result)
    return result


def negated(value: Array) -> Array:
    """float64 with the sign changed, of all but NaN."""
    value = np.asarray(value, np.float64)
    return np.where(np.isnan(value), value, -value)


def flush_f32(value: Array) -> Array:
    """Subnormals replaced by zero of the same sign (.ftz)."""
    value = np.asarray(value)
    return np.where(np.abs(value) < F32_MIN_NORMAL, np.copysign(np.float32(0), value), value)


def _directed(s: Array, e: Array, nearest: Array, mode: str) -> Array:
    """A nearest result corrected to a directed rounding of s + e, in the format of `nearest`."""
    back = nearest.astype(np.float64)
    # Signs of exact - nearest; an infinite `nearest` of a finite s compares correctly by itself.
    difference = np.where(np.isinf(back) & np.isfinite(s), -np.sign(back), np.sign(s - back))
    difference = np.where(difference == 0, np.sign(e), difference)
    exact_negative = (s < 0) | ((s == 0) & (e < 0))
    if mode == "rz":
        step = np.where(exact_negative, difference > 0, difference < 0)
        toward = nearest.dtype.type(0)
    elif mode == "rm":
        step, toward = difference < 0, nearest.dtype.type(-np.inf)
    else:
        step, toward = difference > 0, nearest.dtype.type(np.inf)
    stepped = np.nextafter(nearest, toward)
    if mode == "rz":
        # From zero there is no step toward zero.
        stepped = np.where(nearest == 0, nearest, stepped)
    result = np.where(step & ~np.isnan(nearest) & np.isfinite(s), stepped, nearest)
    # A result that rounds to zero keeps the sign of the exact value.
    sign = np.where(s == 0, np.copysign(1.0, s), np.sign(s))
    return np.where(result == 0, np.copysign(result, sign), result).astype(nearest.dtype)


def add_f32(a: Array, b: Array, mode: str) -> Array:
    """float32 a + b in any mode."""
    s, e = two_sum(np.asarray(a, np.float64), np.asarray(b, np.float64))
    if mode == "rm":
        # An exact zero sum of opposite signs is -0 when rounding down.
        s = np.where((s == 0) & ~((_sign_of(a) == 0) & (_sign_of(b) == 0)), -0.0, s)
    return to_f32(s, np.where(np.isfinite(s), e, 0.0), mode)


def _sign_of(value: Array) -> Array:
    return np.signbit(value)


def mul_f32(a: Array, b: Array, mode: str) -> Array:
    """float32 a * b in any mode: the float64 product is exact."""
    return to_f32(np.asarray(a, np.float64) * np.asarray(b, np.float64), 0.0, mode)


def fma_f32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """float32 a * b + c, rounded once."""
    product, addend = np.asarray(a, np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64)
    if mode != "rn":
        return to_f32(*_exact_sum(product, addend, mode), mode)
    total = np.asarray(product + addend, order="C")
    result = np.asarray(canonical_f32(total.astype(np.float32)))
    # Rounding the float64 sum again is wrong only for midpoints of two float32, and for subnormal results.
    doubtful = (total.reshape(-1).view(np.int64) << 35) == _MIDPOINT
    tiny = np.abs(total).reshape(-1) < 2 * float(F32_MIN_NORMAL)
    if tiny.any():
        doubtful |= tiny & (total != 0).reshape(-1)
    if doubtful.any():
        where = np.flatnonzero(doubtful)
        products, addends = (np.broadcast_to(each, total.shape).reshape(-1)[where] for each in (product, addend))
        result.reshape(-1)[where] = to_f32(*_exact_sum(products, addends, mode), mode)
    return result


def _fused(a: Array, b: Array, c: Array, mode: str) -> tuple[Array, Array]:
    return _exact_sum(np.asarray(a, np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64), mode)


def _exact_sum(product: Array, addend: Array, mode: str) -> tuple[Array, Array]:
    s, e = two_sum(product, addend)
    if mode == "rm":
        s = np.where((s == 0) & (np.signbit(product) | np.signbit(addend)), -0.0, s)
    return s, np.where(np.isfinite(s), e, 0.0)


def div_f32(a: Array, b: Array, mode: str = "rn") -> Array:
    """float32 a / b in any mode."""
    a32, b32 = np.asarray(a, np.float32), np.asarray(b, np.float32)
    if mode == "rn":
        return canonical_f32(a32 / b32)
    x, y = a32.astype(np.float64), b32.astype(np.float64)
    quotient = x / y
    # The sign of the quotient's error is the sign of the remainder x - q*y over y, with q*y exact for a float32 q.
    nearest = quotient.astype(np.float32)
    s, e = two_sum(x, -(nearest.astype(np.float64) * y))
    residual = np.where(s != 0, s, e) * np.sign(y)
    exact = np.isinf(quotient) | np.isnan(quotient) | np.isinf(x) | np.isinf(y)
    return canonical_f32(_directed_by_sign(nearest, np.where(exact, 0.0, residual), quotient, mode))


def sqrt_f32(a: Array, mode: str = "rn") -> Array:
    """float32 square root in any mode."""
    a32 = np.asarray(a, np.float32)
    nearest = np.sqrt(a32)
    if mode == "rn":
        return canonical_f32(nearest)
    root = nearest.astype(np.float64)
    residual = np.where(np.isfinite(root), a32.astype(np.float64) - root * root, 0.0)
    return canonical_f32(_directed_by_sign(nearest, residual, nearest.astype(np.float64), mode))


def _directed_by_sign(nearest: Array, residual: Array, value: Array, mode: str) -> Array:
    """Moves a nearest float32 by one ulp where the exact result (nearest + residual's sign) asks for it."""
    infinite = np.isinf(nearest) & np.isfinite(value)
    sign = np.where(infinite, -np.sign(nearest), np.sign(residual))
    if mode == "rz":
        step, toward = (sign != 0) & ((sign < 0) != np.signbit(value)), np.float32(0)
    elif mode == "rm":
        step, toward = sign < 0, np.float32(-np.inf)
    else:
        step, toward = sign > 0, np.float32(np.inf)
    stepped = np.where((mode == "rz") & (nearest == 0), nearest, np.nextafter(nearest, toward))
    result = np.where(step, stepped, nearest)
    return np.where(result == 0, np.copysign(result, value.astype(np.float32)), result)


# -- float64 -----------------------------------------------------------------------------------------------------


def _fraction(value: float) -> Fraction:
    """The exact value. Directed rounding of float64 needs it, and little else: importing fractions takes 3 ms."""
    from fractions import Fraction

    return Fraction(value)


def round_fraction(value: Fraction, mode: str, zero_sign: float = 1.0) -> float:
    """An exact value rounded to float64. `zero_sign` is the sign of an exact zero."""
    if value == 0:
        return float(np.copysign(0.0, zero_sign))
    try:
        nearest = value.numerator / value.denominator
    except OverflowError:
        nearest = float("inf") if value > 0 else float("-inf")
    if mode == "rn":
        return nearest if nearest else float(np.copysign(0.0, float(1 if value > 0 else -1)))
    above = (isinf(nearest) and nearest > 0) or (not isinf(nearest) and _fraction(nearest) > value)
    below = (isinf(nearest) and nearest < 0) or (not isinf(nearest) and _fraction(nearest) < value)
    down = mode == "rm" or (mode == "rz" and value > 0)
    if down and above:
        nearest = nextafter(nearest, float("-inf"))
    elif not down and below:
        nearest = nextafter(nearest, float("inf"))
    return nearest if nearest else float(np.copysign(0.0, float(1 if value > 0 else -1)))


def fma_f64_scalar(a: float, b: float, c: float, mode: str = "rn") -> float:
    """One float64 fma, exactly rounded, by rational arithmetic."""
    if not (isfinite(a) and isfinite(b) and isfinite(c)):
        if isinf(c) and isfinite(a) and isfinite(b):
            return c
        product = float(np.multiply(a, b)) if not (isfinite(a) and isfinite(b)) else 0.0
        result = float(np.add(product, c))
        return float("nan") if isnan(result) else result
    product_negative = (np.signbit(a) != np.signbit(b)).item()
    zero_sign = -1.0 if product_negative and bool(np.signbit(c)) else 1.0
    if mode == "rm" and (product_negative or bool(np.signbit(c))):
        zero_sign = -1.0
    return round_fraction(_fraction(a) * _fraction(b) + _fraction(c), mode, zero_sign)


_SPLITTER = np.float64(134217729.0)
_SAFE_LOW, _SAFE_HIGH = 2.0**-450, 2.0**450


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """p + e == a * b exactly (magnitudes far from overflow and underflow)."""
    p = a * b
    t = _SPLITTER * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = _SPLITTER * b
    b_high = t - (t - b)
    b_low = b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def fma_f64(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """float64 a * b + c, rounded once: error-free transformations where magnitudes allow, rationals elsewhere."""
    a, b, c = (np.array(value, np.float64, ndmin=1) for value in np.broadcast_arrays(a, b, c))
    result = np.empty(a.shape, np.float64)

    def tame(value: Array) -> Array:
        magnitude = np.abs(value)
        return (magnitude > _SAFE_LOW) & (magnitude < _SAFE_HIGH)

    easy = tame(a) & tame(b) & (tame(c) | (c == 0)) if mode == "rn" else np.zeros(a.shape, np.bool_)
    if easy.any():
        x, y, z = a[easy], b[easy], c[easy]
        product, product_low = two_product(x, y)
        middle, middle_low = two_sum(z, product_low)
        top, top_low = two_sum(product, middle)
        rest, rest_low = two_sum(top_low, middle_low)
        result[easy] = top + round_to_odd(rest, rest_low)
    # The sum of c and a product that is zero or no number is exact or rounded once by itself; only its zeros know of directions.
    plain = ~easy & ((a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b)) & ((c != 0) | (mode == "rn"))
    result[plain] = a[plain] * b[plain] + c[plain]
    for index in np.flatnonzero(~(easy | plain)):
        result[index] = fma_f64_scalar(float(a[index]), float(b[index]), float(c[index]), mode)
    result[np.isnan(result)] = F64_NAN
    return passing_nan(result, a, c, b)


def directed_f64(operation: str, a: Array, b: Array | None, mode: str) -> Array:
    """float64 add, mul, div or sqrt in a directed rounding mode."""
    a = np.array(a, np.float64, ndmin=1)
    second = np.zeros_like(a) if b is None else np.array(np.broadcast_to(b, a.shape), np.float64)
    nearest = {
        "add": lambda: a + second,
        "mul": lambda: a * second,
        "div": lambda: a / second,
        "sqrt": lambda: np.sqrt(a),
    }[operation]()
    result = nearest.copy()
    for index in range(len(a)):
        x, y = float(a[index]), float(second[index])
        if not isfinite(x) or not isfinite(y) or isnan(float(nearest[index])) or (operation == "div" and y == 0):
            continue
        result[index] = _directed_scalar(operation, x, y, float(nearest[index]), mode)
    return passing_nan(result, a, second) if operation in ("add", "mul") else result


def _directed_scalar(operation: str, x: float, y: float, nearest: float, mode: str) -> float:
    if operation == "add":
        negative_zero = mode == "rm" and not (x == 0 == y and nextafter(x, 1) > 0 and not np.signbit(x) and not np.signbit(y))
        zero_sign = -1.0 if (np.signbit(x) and np.signbit(y)) or negative_zero else 1.0
        return round_fraction(_fraction(x) + _fraction(y), mode, zero_sign)
    if operation in ("mul", "div"):
        exact = _fraction(x) * _fraction(y) if operation == "mul" else _fraction(x) / _fraction(y)
        return round_fraction(exact, mode, -1.0 if np.signbit(x) != np.signbit(y) else 1.0)
    square = _fraction(nearest) ** 2
    if square > _fraction(x) and mode in ("rz", "rm"):
        return nextafter(nearest, 0.0)
    if square < _fraction(x) and mode == "rp":
        return nextafter(nearest, float("inf"))
    return nearest
