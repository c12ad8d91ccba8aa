"""Matrix products as tensor cores compute them, bit for bit (docs/tensor_core_numerics.md has the evidence for each architecture).

One step is D = A B + C over the whole depth of an instruction. Products are exact; their exponents are the sums of their
factors' exponents and are not normalised. Every term, C included, is cut toward zero to a fixed number of bits below the
largest exponent; the sum of the remaining bits is exact, and is cut toward zero once more to float32. Matrices are stacks
[..., rows, depth] for A, [..., columns, depth] for B, [..., rows, columns] for C and D.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gemmgen.emulator import ieee

Array = np.ndarray[Any, Any]

FLOATS = ("f16", "bf16", "tf32", "e4m3", "e5m2")
_NO_EXPONENT = -1000
"""The exponent of zero: below every other, also in a sum with another exponent."""
_MIN_NO = 1000
_MIN_EXPONENT = -600
"""Below the exponent of every product; its powers of two are still in the range of float64."""
_MIN_FLOAT32 = -126
"""The exponent of the smallest normal float32."""
_SUMMED_EXACTLY = 16
"""Values of k whose products of 4-bit floats are added before anything is cut."""
_BLOCK_FRACTION_BITS = 35
"""Bits below the largest exponent that terms of block-scaled products of 4-bit floats keep."""
_NAN = np.uint32(0x7FFFFFFF)
_TF32_BITS = np.uint32(0xFFFFE000)
_CHUNK = 1 << 15
"""Results that are worked on at once, so that the working arrays stay in a core's cache."""
_THREADLESS = 1 << 18
"""Multiplications above which OpenBLAS starts threads, which cost more than they gain for products of this size."""
_NARROW = 50
"""Factors between 2 to this power and its inverse have products, scaled ones too, in the range of float32."""


class Factor(NamedTuple):
    """A matrix of factors, taken apart. Infinities and NaN count as zero in `values`."""

    values: Array
    """float32, exact."""
    exponents: Array
    """int16: of the leading bit of a normal number; of the smallest normal number for a subnormal one."""
    lowest: int
    """The exponent of the lowest bit that is set in any of them."""
    highest: int
    special: Array | None
    """The matrix with infinities and NaN, or None if there are none."""


class Step(NamedTuple):
    """An instruction's way to sum."""

    fraction_bits: int = 25
    """Bits below the largest exponent that a term keeps."""
    dropped_bits: int = 0
    """Low bits of the float32 result that are always zero."""


FLOAT_STEP = Step()
FP8_STEP = Step(13, 10)
"""wgmma on fp8."""


class Format(NamedTuple):
    """A binary floating type of up to 16 bits."""

    bits: int
    exponent_bits: int
    infinities: bool = True
    """True if the largest exponent is that of infinities and NaN."""
    nan: bool = True
    """False if every code is a number."""


_FORMATS = {
    "f16": Format(16, 5),
    "bf16": Format(16, 8),
    "e4m3": Format(8, 4, infinities=False),
    "e5m2": Format(8, 5),
    "e2m3": Format(6, 2, infinities=False, nan=False),
    "e3m2": Format(6, 3, infinities=False, nan=False),
    "e2m1": Format(4, 2, infinities=False, nan=False),
}


@lru_cache
def _table(type_name: str) -> tuple[Array, Array, Array]:
    """For each bit pattern: its value (float32), its exponent, and the exponent of its lowest set bit."""
    form = _FORMATS[type_name]
    patterns = np.arange(1 << form.bits)
    mantissa_bits = form.bits - 1 - form.exponent_bits
    bias = (1 << (form.exponent_bits - 1)) - 1
    field = patterns >> mantissa_bits & ((1 << form.exponent_bits) - 1)
    mantissa = patterns & ((1 << mantissa_bits) - 1)
    significand = mantissa + np.where(field > 0, 1 << mantissa_bits, 0)
    exponents = np.maximum(field, 1) - bias
    values = np.ldexp(significand.astype(np.float64), exponents - mantissa_bits)
    last = field == field.max()
    if form.infinities:
        values[last] = np.where(mantissa[last] == 0, np.inf, np.nan)
    elif form.nan:
        values[last & (mantissa == mantissa.max())] = np.nan
    values = np.where(patterns >> (form.bits - 1) != 0, -values, values)
    zero = significand == 0
    lowest = np.where(zero, _MIN_NO, exponents - mantissa_bits + _trailing_zeros(significand))
    return values.astype(np.float32), np.where(zero, _NO_EXPONENT, exponents).astype(np.int16), lowest.astype(np.int16)


def _trailing_zeros(numbers: Array) -> Array:
    """For integers that are not zero; -1 for zero."""
    lowest = numbers & -numbers
    return np.frexp(lowest.astype(np.float64))[1] - 1


def factor(bits: Array, type_name: str) -> Factor:
    """Takes a matrix apart. `bits` are uint16, uint8, or uint32 for tf32, of which the low 13 bits are ignored."""
    if type_name == "tf32":
        truncated = np.ascontiguousarray(bits & _TF32_BITS)
        values, exponents = truncated.view(np.float32), _exponents_of_float32(truncated)
        significand = (truncated & np.uint32(0x7FFFFF)).astype(np.int64) | (exponents > _NO_EXPONENT).astype(np.int64) << 23
        lowest_bits = np.where(exponents == _NO_EXPONENT, np.int16(_MIN_NO), exponents - 23 + _trailing_zeros(significand))
    else:
        table, table_exponents, table_lowest = _table(type_name)
        values, exponents, lowest_bits = table[bits], table_exponents[bits], table_lowest[bits]
    special = None
    if not np.isfinite(values).all():
        special = values
        finite = np.isfinite(values)
        values = np.where(finite, values, np.float32(0))
        exponents = np.where(finite, exponents, np.int16(_NO_EXPONENT))
        lowest_bits = np.where(finite, lowest_bits, np.int16(_MIN_NO))
    return Factor(values, exponents, int(lowest_bits.min(initial=_MIN_NO)), int(exponents.max(initial=_NO_EXPONENT)), special)


def _exponents_of_float32(bits: Array) -> Array:
    """Exponents of float32 patterns (uint32)."""
    field = (bits >> np.uint32(23) & np.uint32(0xFF)).astype(np.int16)
    return np.where(bits << np.uint32(1) == 0, np.int16(_NO_EXPONENT), np.maximum(field, np.int16(1)) - np.int16(127))


def negated(matrix: Factor) -> Factor:
    """The matrix with all signs changed."""
    return matrix._replace(values=-matrix.values, special=None if matrix.special is None else -matrix.special)


def multiply_float(a: Factor, b: Factor, c: Array, step: Step = FLOAT_STEP) -> Array:
    """D = A B + C with float32 accumulators; c and the result are float32 bits (uint32)."""
    addend = np.ascontiguousarray(c).view(np.float32)
    return _finish(_sums(a, b, addend.astype(np.float64), _exponents_of_float32(c), step), a, b, addend, lambda sums: _cut(sums, step))


def multiply_half(a: Factor, b: Factor, c: Array, step: Step = FLOAT_STEP) -> Array:
    """D = A B + C with float16 accumulators; c and the result are float16 bits (uint16)."""
    values, exponents, _ = _table("f16")
    addend = values[c]
    return _finish(_sums(a, b, addend.astype(np.float64), exponents[c], step), a, b, addend, _round_to_half)


def multiply_fp8_on_halves(a: Factor, b: Factor, c: Array) -> Array:
    """mma.sync on fp8 as the machine code of sm_90 does it: two steps of half the depth on float16 operands that start from zero, over
    those k with k mod 4 in {0, 1} and then {2, 3}; C is added at the end and rounded to nearest. The type of c, float32 or float16
    bits, is that of all sums."""
    multiply = multiply_half if c.dtype == np.uint16 else multiply_float
    total = np.zeros(c.shape, c.dtype)
    depth = np.arange(a.values.shape[-1])
    for chosen in (depth % 4 < 2, depth % 4 >= 2):
        total = multiply(_some_of(a, chosen), _some_of(b, chosen), total)
    if c.dtype == np.uint16:
        with np.errstate(over="ignore", invalid="ignore"):
            halves: Array = ieee.canonical_f16(total.view(np.float16) + np.ascontiguousarray(c).view(np.float16)).view(np.uint16)
        return halves
    return _bits_of(ieee.canonical_f32(total.view(np.float32) + np.ascontiguousarray(c).view(np.float32)))


class Scales(NamedTuple):
    """Scale factors of blocks of a row of A or a column of B, [..., rows, blocks], as exact parts. NaN has the significand NaN."""

    significands: Array
    """float64; 0 or in [1/8, 2)."""
    exponents: Array
    """int16; of the smallest normal number for a subnormal one."""

    def by_row(self) -> Scales:
        """Each row as a matrix of one row."""
        return Scales(*(part.reshape(-1, 1, part.shape[-1]) for part in self))

    def repeated(self, count: int) -> Scales:
        """Each matrix so many times, one after the other."""
        return Scales(*(np.repeat(part, count, axis=0) for part in self))


def scales(codes: Array, type_name: str) -> Scales:
    """Takes scale factors apart: `ue8m0` is 2 to the power of code - 127, and 255 is NaN; `ue4m3` is e4m3 without its sign."""
    if type_name == "ue8m0":
        return Scales(np.where(codes == 0xFF, np.nan, 1.0), codes.astype(np.int16) - np.int16(127))
    values, exponents, _ = _table("e4m3")
    magnitudes = codes & 0x7F
    exponents = np.maximum(exponents[magnitudes], np.int16(-6))
    return Scales(np.ldexp(values[magnitudes].astype(np.float64), -exponents.astype(np.int64)), exponents)


def multiply_scaled(a: Factor, b: Factor, c: Array, of_a: Scales, of_b: Scales) -> Array:
    """D = (scale A) (B scale) + C with one power of two a row of A and a column of B (`kind::mxf8f6f4`); float32 bits.

    One step as `multiply_float`: the exponents of the two scales belong to the exponent of each product, and a C of zero counts with the
    exponent of the smallest normal float32.
    """
    exponents = of_a.exponents[..., :, None, 0] + of_b.exponents[..., None, :, 0]
    significands = of_a.significands[..., :, None, 0] * of_b.significands[..., None, :, 0]
    addend = np.ascontiguousarray(c).view(np.float32)
    # Scaling C the other way instead of every product changes no bit, for all of it is by powers of two.
    inverse = np.ldexp(1.0, -exponents.astype(np.int64))
    of_c = np.maximum(_exponents_of_float32(c), np.int16(_MIN_FLOAT32)) - exponents
    sums = _sums(a, b, addend.astype(np.float64) * inverse, of_c, FLOAT_STEP) / inverse
    results = _finish(sums, a, b, addend, lambda finite: _cut(finite, FLOAT_STEP), scale=significands / inverse)
    return np.where(np.isnan(significands), _NAN, results)


def multiply_block_scaled(a: Factor, b: Factor, c: Array, of_a: Scales, of_b: Scales) -> Array:
    """D = (scale A) (B scale) + C on e2m1, with a scale for each 32 or 16 values of k (`kind::mxf4`, `kind::mxf4nvf4`); float32 bits.

    The products of each 16 values of k are added exactly; the sum times the significands of its scales is one term, whose exponent is
    the sum of the exponents of the scales. Terms and C are cut to 35 bits below the largest exponent.
    """
    depth, addend = a.values.shape[-1], np.ascontiguousarray(c).view(np.float32)
    blocks = of_a.exponents.shape[-1]
    finite = np.where(np.isfinite(addend), addend, np.float32(0))
    parts = [slice(first, first + _SUMMED_EXACTLY) for first in range(0, depth, _SUMMED_EXACTLY)]
    terms, exponents = [], []
    for part in parts:
        block = part.start * blocks // depth
        exponents.append(of_a.exponents[..., :, None, block] + of_b.exponents[..., None, :, block])
        significands = of_a.significands[..., :, None, block] * of_b.significands[..., None, :, block]
        terms.append(exact_product(a.values[..., part], b.values[..., part]) * significands)
    invalid = np.isnan(sum(terms)) | np.isnan(addend)
    largest = np.maximum(_exponents_of_float32(np.ascontiguousarray(finite).view(np.uint32)), np.int16(_MIN_FLOAT32))
    for exponent in exponents:
        np.maximum(largest, exponent, out=largest)
    shift = _BLOCK_FRACTION_BITS - largest.astype(np.int64)
    total = np.trunc(np.ldexp(finite.astype(np.float64), shift))
    for term, exponent in zip(terms, exponents, strict=True):
        total += np.trunc(np.ldexp(np.where(invalid, 0.0, term), shift + exponent))
    with np.errstate(over="ignore"):
        results = np.where(np.isinf(addend), c, _cut(np.ldexp(total, -shift), FLOAT_STEP))
    return np.where(invalid, _NAN, results).astype(np.uint32)


def multiply_integers(a: Array, b: Array) -> Array:
    """A B of matrices of integers of up to 8 bits, as int32."""
    # Sums of up to 256 products of two bytes stay below 2**24: float32 holds them exactly, and its product is fast.
    return exact_product(a.astype(np.float32), b.astype(np.float32)).astype(np.int32)


def exact_product(a: Array, b: Array) -> Array:
    """A B by the library, where it is exact."""
    columns, depth = b.shape[-2:]
    at_once = max(_THREADLESS // (a.shape[-2] * depth), 1)
    if at_once >= columns:
        whole: Array = np.matmul(a, b.swapaxes(-1, -2))
        return whole
    result = np.empty((*a.shape[:-1], columns), a.dtype)
    for first in range(0, columns, at_once):
        chosen = slice(first, first + at_once)
        np.matmul(a, b[..., chosen, :].swapaxes(-1, -2), out=result[..., chosen])
    return result


def accumulate_integers(c: Array, products: Array, *, saturate: bool) -> Array:
    """int32 accumulators plus sums of products: they wrap or, with `saturate`, are cut to their range once."""
    if not saturate:
        return c + products
    exact = np.add(c, products, dtype=np.float64)
    return np.minimum(np.maximum(exact, -(2.0**31)), 2.0**31 - 1).astype(np.int32)


def _some_of(matrix: Factor, chosen: Array) -> Factor:
    special = None if matrix.special is None else matrix.special[..., chosen]
    return matrix._replace(values=matrix.values[..., chosen], exponents=matrix.exponents[..., chosen], special=special)


# -- the sum -------------------------------------------------------------------------------------------------------


def _sums(a: Factor, b: Factor, addend: Array, exponents: Array, step: Step) -> Array:
    """The sums of the terms after these have been cut, exact, in float64. Terms that are not finite count as zero."""
    if not np.isfinite(addend).all():
        finite = np.isfinite(addend)
        addend, exponents = np.where(finite, addend, 0.0), np.where(finite, exponents, np.int16(_NO_EXPONENT))
    unit = max(a.highest + b.highest, int(exponents.max(initial=_NO_EXPONENT)), _MIN_EXPONENT) - step.fraction_bits
    if a.lowest + b.lowest >= unit and not np.fmod(addend, 2.0**unit).any():
        # Nothing is cut anywhere: the products and their sums are multiples of one unit, far below 2**53 of them.
        return exact_product(a.values.astype(np.float64), b.values.astype(np.float64)) + addend
    narrow = all(m.highest <= _NARROW and m.lowest >= -_NARROW for m in (a, b))
    rows, columns = addend.shape[-2:]
    depth = a.values.shape[-1]
    stack = addend.size // (rows * columns)
    dtype = np.float32 if narrow else np.float64
    # The longest dimension goes last, where NumPy is fast: the columns, or the matrices of a stack of small ones.
    by_columns = columns >= stack
    left, right = ((2, 0, 1, 3), (2, 0, 3, 1)) if by_columns else ((2, 1, 3, 0), (2, 3, 1, 0))
    back = (0, 1, 2) if by_columns else (1, 2, 0)
    at_once = max(_CHUNK // (rows * columns), 1)
    sums = np.empty((stack, rows, columns))
    for first in range(0, stack, at_once):
        chosen = slice(first, first + at_once)

        def part(matrices: Array, axes: tuple[int, ...], extent: int, of: slice = chosen) -> Array:
            return np.ascontiguousarray(matrices.reshape(stack, extent, depth, 1)[of].transpose(axes))

        def results(matrices: Array, of: slice = chosen) -> Array:
            return np.ascontiguousarray(matrices.reshape(stack, rows, columns)[of].transpose(back))

        total = _sum_of_terms(
            part(a.values, left, rows).astype(dtype, copy=False),
            part(a.exponents, left, rows),
            part(b.values, right, columns).astype(dtype, copy=False),
            part(b.exponents, right, columns),
            results(addend),
            results(exponents),
            step,
        )
        sums[chosen] = total if by_columns else total.transpose(2, 0, 1)
    return sums.reshape(addend.shape)


def _sum_of_terms(av: Array, ae: Array, bv: Array, be: Array, addend: Array, exponents: Array, step: Step) -> Array:
    """Sums along the first dimension of the factors, `av` and `bv` with their exponents; the others broadcast to the addend's.

    The factors are float32 if all products, and these times the scale of their sum, are in its range."""
    largest, pair = exponents.copy(), np.empty_like(exponents)
    depth = len(av)
    for k in range(depth):
        np.add(ae[k], be[k], out=pair)
        np.maximum(largest, pair, out=largest)
    np.maximum(largest, np.int16(_MIN_EXPONENT), out=largest)
    shift = step.fraction_bits - largest.astype(np.int64)
    scale = (shift + 1023 << 52).view(np.float64)
    total = np.trunc(addend * scale)
    term = np.empty(largest.shape, av.dtype)
    if av.dtype == np.float64:
        for k in range(depth):
            np.multiply(av[k], bv[k], out=term)
            np.multiply(term, scale, out=term)
            np.trunc(term, out=term)
            np.add(total, term, out=total)
    else:
        # Where no product takes part the scale may be large; anything finite serves there.
        narrow_scale = np.minimum(scale, 2.0**127).astype(np.float32)
        # Terms are below 2**27: sixteen of them fit an int32. The conversion to it cuts toward zero.
        part, whole = np.empty(largest.shape, np.int32), np.empty(largest.shape, np.int32)
        for begin in range(0, depth, 16):
            part.fill(0)
            for k in range(begin, min(begin + 16, depth)):
                np.multiply(av[k], bv[k], out=term)
                np.multiply(term, narrow_scale, out=term)
                np.copyto(whole, term, casting="unsafe")
                np.add(part, whole, out=part)
            np.add(total, part, out=total)
    unscale = (1023 - shift << 52).view(np.float64)
    sums: Array = total * unscale
    return sums


# -- results -------------------------------------------------------------------------------------------------------


def _finish(sums: Array, a: Factor, b: Factor, addend: Array, convert: Callable[[Array], Array], scale: Array | float = 1.0) -> Array:
    """The results of finite sums; infinities and NaN as IEEE 754 says. `scale` multiplies the products."""
    with np.errstate(over="ignore"):
        results = convert(sums)
    if a.special is None and b.special is None and np.isfinite(addend).all():
        return results
    left, right = (m.values if m.special is None else m.special for m in (a, b))
    with np.errstate(invalid="ignore"):
        # Sums of finite terms stay finite in float64, in any order.
        naive = np.einsum("...mk,...nk->...mn", left.astype(np.float64), right.astype(np.float64)) * scale + addend
    with np.errstate(over="ignore"):
        if results.dtype == np.uint32:
            special = _bits_of(ieee.canonical_f32(naive.astype(np.float32)))
        else:
            special = ieee.canonical_f16(naive.astype(np.float16)).view(np.uint16)
    return np.where(np.isfinite(naive), results, special)


def _cut(sums: Array, step: Step) -> Array:
    """Toward zero to float32, as bits; infinity from 2**128 on. Zero has no sign."""
    nearest = sums.astype(np.float32)
    bits = nearest.view(np.uint32)
    magnitudes = np.abs(sums)
    bits -= (np.abs(nearest) > magnitudes) & (magnitudes < 2.0**128)
    bits[bits == np.uint32(0x80000000)] = 0
    if step.dropped_bits:
        bits &= np.uint32(0xFFFFFFFF << step.dropped_bits & 0xFFFFFFFF)
    return bits


def _round_to_half(sums: Array) -> Array:
    """To the nearest float16, as bits. Zero has no sign."""
    bits = sums.astype(np.float16).view(np.uint16)
    return np.where(bits == np.uint16(0x8000), np.uint16(0), bits)


def _bits_of(values: Array) -> Array:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)
