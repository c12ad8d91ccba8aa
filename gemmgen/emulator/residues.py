"""Residues modulo 2^31 - 1 in the bits of 32-bit registers, and hashes of them.

Any 32-bit pattern stands for its residue, so zero bits are zero; `canonical` gives the one pattern below the modulus. Elements of 16
bits are read as code * 2^16, which is how bfloat16 widens to float32, or as indices of random residues (`Interned`). Those of 8 and 4
bits and block scales are read as code * 2^16, and tf32, the upper 19 bits of a word, as code * 2^13. Schwartz and Zippel count the codes
that are drawn from, not the modulus.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np

from gemmgen.emulator import residue_loops
from gemmgen.emulator.residue_loops import NO_CODES, Codes, Elements
from gemmgen.emulator.tensor_core import exact_product

Array = np.ndarray[Any, Any]

MODULUS = (1 << 31) - 1
_MODULUS = np.uint64(MODULUS)
_SHIFT = np.uint64(31)
_MODULUS_OF_WORDS, _SHIFT_OF_WORDS = np.uint32(MODULUS), np.uint32(31)
_GOLDEN, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_NEUTRAL = np.uint64(77)

CODE_BITS = {"f32": 32, "tf32": 19, "bf16": 16, "f16": 16, "e4m3": 8, "e5m2": 8, "ue8m0": 8, "e2m1": 4}
"""Bits of an element that count."""
CODE_SHIFT = {"f32": 0, "tf32": 13, "bf16": 16, "f16": 16, "e4m3": 16, "e5m2": 16, "ue8m0": 16, "e2m1": 16}
"""The power of two that a code is multiplied by to give its residue."""


class CodeTable:
    """Codes of 16 bits by the numbers that they stand for: open addressing by hashes of the numbers."""

    def __init__(self, numbers: Array, count: int) -> None:
        """The number of each code, and how many codes will be noted at most."""
        self.numbers = numbers
        self._mask = (1 << (4 * count).bit_length()) - 1
        self._slots = np.zeros(self._mask + 1, np.uint16)
        """0: a free slot."""
        self.places = (numbers.ctypes.data, self._slots.ctypes.data, self._mask)

    def note(self, codes: Array) -> None:
        """Enters codes whose numbers have been set."""
        slots = self._slot_of(self.numbers[codes])
        while len(codes):
            free = self._slots[slots] == 0
            self._slots[slots[free]] = codes[free]
            left = self._slots[slots] != codes
            codes, slots = codes[left], (slots[left] + 1) & self._mask

    def find(self, wanted: Array) -> Array:
        """Codes of numbers; 0 for those without one."""
        loops = residue_loops.loops()
        if loops is not None and wanted.flags.c_contiguous and wanted.dtype == self.numbers.dtype:
            entries = np.empty(len(wanted), np.uint16)
            find = loops.find_short if wanted.dtype == np.uint32 else loops.find_long
            find(wanted.ctypes.data, len(wanted), *self.places, entries.ctypes.data)
            return entries
        slots = self._slot_of(wanted)
        entries = self._slots[slots]
        open_ones = np.flatnonzero((self.numbers[entries] != wanted) & (entries != 0))
        while len(open_ones):
            slots[open_ones] = (slots[open_ones] + 1) & self._mask
            entries[open_ones] = self._slots[slots[open_ones]]
            here = entries[open_ones]
            open_ones = open_ones[(self.numbers[here] != wanted[open_ones]) & (here != 0)]
        return entries

    def _slot_of(self, values: Array) -> Array:
        slots: Array = ((values.astype(np.uint64) * _GOLDEN) >> np.uint64(40)).astype(np.int64) & self._mask
        return slots


def _distinct(values: Array) -> Array:
    ordered = np.sort(values)
    first: Array = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return first


class Interned:
    """The numbers of one run that 16 bits hold: each code is the index of a residue, and no two codes have the same one.

    Elements are drawn as codes without repetition, as long as there are enough, so that they are different random residues. Rounding to 16
    bits looks the residue up, or gives it a code that no element has, so that nothing is lost. A word whose lower half is zero stands for
    the code in its upper half, as bfloat16 widens, whichever instruction widens it; other words stand for themselves, and a residue
    with such bits is written as itself plus the modulus. Integer instructions make such words, too, as the power of two of an
    exponential: a code that is read before it is given to a residue keeps the one that it has then.
    """

    def __init__(self, rng: np.random.Generator, elements: int, results: int) -> None:
        """Codes for so many elements that are drawn, and so many results."""
        most = POISONED - 1
        # An odd factor permutes the codes.
        factor, start = int(rng.integers(0, _CODES // 2)) * 2 + 1, int(rng.integers(0, _CODES))
        every = (np.arange(_CODES, dtype=np.uint32) * np.uint32(factor) + np.uint32(start)).astype(np.uint16)
        self.codes = every[(every != 0) & (every != POISONED)][: min(elements + results, most)]
        self.pool = min(elements, max(len(self.codes) - results, 0))
        """Codes that elements are drawn from: as many as there are elements, or fewer."""
        self.residues = _other_residues().copy()
        """The residue of each code; zero bits are zero."""
        own = self.codes[: self.pool]
        self.residues[own] = rng.integers(1, MODULUS, self.pool, dtype=np.uint32)
        while _repeats(self.residues[own]):
            self.residues[own] = rng.integers(1, MODULUS, self.pool, dtype=np.uint32)
        self.distinct = self.pool >= elements
        self._rng, self._drawn, self._next = rng, 0, self.pool
        self._free = np.zeros(_CODES, np.bool_)
        """Codes that have neither been given to a residue nor read."""
        self._free[self.codes[self.pool :]] = True
        self.in_loops = Codes(self.residues.ctypes.data, self._free.ctypes.data, 0)
        self.elements = Elements(self.residues.ctypes.data, 2, 16, 0, 0)
        self._table = CodeTable(self.residues, len(self.codes))
        self._table.note(self.codes[: self.pool])

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Codes of elements."""
        count = int(np.prod(shape))
        if self.distinct:
            chosen = self.codes[self._drawn : self._drawn + count]
            self._drawn += count
        else:
            chosen = self.codes[self._rng.integers(0, self.pool, count)]
        drawn: Array = chosen.reshape(shape)
        return drawn

    def narrowed(self, value: object) -> Array:
        """The codes of residues. Raises OverflowError if there are too few codes."""
        every = words(canonical(value))
        wanted = every.reshape(-1)
        if (loops := residue_loops.loops()) is not None:
            result = np.empty(every.shape, np.uint32)
            of_codes = (self.codes.ctypes.data, self._next, len(self.codes), self._free.ctypes.data)
            used = loops.narrow(wanted.ctypes.data, len(wanted), *self._table.places, *of_codes, result.ctypes.data)
            if used < 0:
                raise self._too_few
            self._next = used
            return result
        slots = self._table.find(wanted)
        new = wanted[(slots == 0) & (wanted != 0)]
        if len(new):
            fresh = _distinct(new)
            if self._next + len(fresh) > len(self.codes):
                raise self._too_few
            codes = self.codes[self._next : self._next + len(fresh)]
            self._next += len(fresh)
            self._free[codes] = False
            self.residues[codes] = fresh
            self._table.note(codes)
            slots = self._table.find(wanted)
        return slots.reshape(every.shape)

    @property
    def _too_few(self) -> OverflowError:
        return OverflowError(f"a run rounds more than {len(self.codes) - self.pool} different numbers to 16 bits")

    def read(self, patterns: Array) -> Array:
        """32-bit patterns, of which those with an empty lower half are codes, as residues."""
        values = np.asarray(patterns)
        loops = residue_loops.loops()
        if loops is not None and values.ndim and values.flags.c_contiguous and values.dtype == np.uint32:
            meant = np.empty(values.shape, np.uint32)
            loops.read_words(self.in_loops, values.ctypes.data, values.size, meant.ctypes.data)
            self.settle()
            return meant
        is_code = np.bitwise_and(values, _LOWER_HALF) == 0
        if not values.ndim or not is_code.any():
            return self.of_codes(values >> np.uint32(16)) if not values.ndim and is_code else values
        meant = values.copy()
        meant[is_code] = self.of_codes(values[is_code] >> np.uint32(16))
        return meant

    def of_codes(self, codes: Array) -> Array:
        """The residues of codes, which they keep from now on."""
        if self._free[codes].any():
            self._free[codes] = False
            self.in_loops.taken = 1
            self.settle()
        residues: Array = self.residues[codes]
        return residues

    def settle(self) -> None:
        """Leaves out the codes that have been read from those that residues will be given."""
        if self.in_loops.taken:
            self.in_loops.taken = 0
            left = self.codes[self._next :]
            self.codes = np.concatenate([self.codes[: self._next], left[self._free[left]]])


_CODES = 1 << 16
_LOWER_HALF = np.uint32(0xFFFF)


@lru_cache(maxsize=1)
def _other_residues() -> Array:
    """Residues of codes that no element has."""
    values = np.random.default_rng(0).integers(1, MODULUS, _CODES, dtype=np.uint32)
    values[0] = 0
    return values


def _repeats(values: Array) -> bool:
    ordered = np.sort(values)
    return bool((ordered[1:] == ordered[:-1]).any())


POISONED = 0xFFFF
"""The code of memory that holds no element."""
interned: ContextVar[Interned | None] = ContextVar("interned", default=None)
"""The numbers of 16 bits of the present run; None: such codes stand for themselves times 2^16, and rounding is a hash."""


class LongCodes:
    """The numbers of one run that the upper 19 bits of a word hold (tf32): each code is the index of another random residue."""

    MOST = (1 << 19) - 1
    """Different elements that there can be."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._factor = np.uint32(int(rng.integers(0, 1 << 18)) * 2 + 1)
        self._drawn = 0
        self.residues = rng.integers(0, MODULUS, self.MOST + 1, dtype=np.uint32)
        self.residues[0] = 0
        self.elements = Elements(self.residues.ctypes.data, 1, 19, 0, 0)

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Words of elements that are different from all others."""
        first = self._drawn + 1
        self._drawn += int(np.prod(shape))
        if self._drawn > self.MOST:
            raise OverflowError(f"a run has more than {self.MOST} elements of tf32")
        # An odd factor permutes the numbers below a power of two.
        codes = np.arange(first, self._drawn + 1, dtype=np.uint32) * self._factor << np.uint32(13)
        drawn: Array = codes.reshape(shape)
        return drawn


def codes_in_loops() -> Codes:
    """The codes of 16 bits of the present run, for loops in C."""
    own = interned.get()
    return NO_CODES if own is None else own.in_loops


def settle() -> None:
    """Leaves out the codes that loops in C have read (`Interned.settle`)."""
    if (own := interned.get()) is not None:
        own.settle()


long_codes: ContextVar[LongCodes | None] = ContextVar("long_codes", default=None)
"""The elements of tf32 of the present run; None: such codes stand for themselves times 2^13."""


def read(patterns: Any) -> Any:
    """The residues that 32-bit patterns of registers and memory stand for."""
    own = interned.get()
    return patterns if own is None else own.read(patterns)


def written(patterns: object) -> Any:
    """Canonical patterns as registers and memory hold them: none looks like a code."""
    return patterns if interned.get() is None else without_code(patterns)


def without_code(patterns: object) -> Any:
    """Patterns below the modulus, or near it, of which none but zero has an empty lower half; they stand for the same residues."""
    values = np.asarray(patterns)
    loops = residue_loops.loops()
    if loops is not None and values.ndim and values.flags.c_contiguous and values.dtype == np.uint32:
        hidden = np.empty(values.shape, np.uint32)
        loops.hide_codes(values.ctypes.data, values.size, hidden.ctypes.data)
        return hidden
    moved = np.where(((values & np.uint32(0xFFFF)) == 0) & (values != 0), values + _MODULUS_OF_WORDS, values)
    return moved if moved.ndim else moved[()]


def folded(value: Array) -> Array:
    """uint64 below 2^64 to a representative below 2^31 + 5, in place."""
    high = value >> _SHIFT
    np.bitwise_and(value, _MODULUS, out=value)
    np.add(value, high, out=value)
    np.right_shift(value, _SHIFT, out=high)
    np.bitwise_and(value, _MODULUS, out=value)
    np.add(value, high, out=value)
    return value


def canonical(value: Any) -> Array:
    """Residues of unsigned integers as uint64 below the modulus."""
    in_c = residue_loops.reduced(value)
    if in_c is not None:
        return in_c
    if getattr(value, "dtype", None) == np.uint32 and value.ndim:
        # 32 bits are folded once.
        reduced: Array = (value & _MODULUS_OF_WORDS).astype(np.uint64)
        np.add(reduced, value >> _SHIFT_OF_WORDS, out=reduced)
    else:
        reduced = folded(np.array(value, np.uint64, ndmin=1))
    # A difference below zero wraps around to a large number.
    return np.minimum(reduced, reduced - _MODULUS, out=reduced)


def words(value: Array) -> Array:
    """The 32-bit patterns of uint64 residues below 2^32."""
    return value.astype(np.uint32)


def of_float(value: float) -> np.uint32:
    """A floating-point literal, a dyadic fraction, as a residue; infinities and NaN as some fixed ones.

    Those from 2^23 to 2^24 are read as their bits, which count up by one from each integer to the next: code adds and subtracts such
    numbers to convert integers that it writes into, or reads from, the lowest bits."""
    if value != value or value in (float("inf"), float("-inf")):
        return np.uint32(zlib.crc32(repr(value).encode()) % MODULUS)
    if 2.0**23 <= abs(value) < 2.0**24:
        bits = int(np.float32(abs(value)).view(np.uint32))
        return np.uint32((bits if value > 0 else -bits) % MODULUS)
    numerator, denominator = float(value).as_integer_ratio()
    return np.uint32(numerator * pow(denominator, -1, MODULUS) % MODULUS)


def of_integers(value: object) -> Array:
    """Integers as residues, negative ones too, as 32-bit patterns."""
    array = np.array(value, ndmin=1)
    if array.dtype.kind == "u":
        return words(canonical(array))
    return np.mod(array.astype(np.int64), MODULUS).astype(np.uint32)


def of_codes(codes: Array, type_name: str) -> Array:
    """Elements of a storage type, given by their bits, as uint64 residues (not canonical)."""
    if (own := interned.get()) is not None and CODE_BITS[type_name] == 16:
        return own.residues[codes].astype(np.uint64)
    if type_name == "tf32" and (drawn := long_codes.get()) is not None:
        elements: Array = drawn.residues[codes >> np.uint32(13)].astype(np.uint64)
        return elements
    wide = codes.astype(np.uint64)
    if type_name == "tf32":
        return wide >> np.uint64(13) << np.uint64(13)
    return wide << np.uint64(CODE_SHIFT[type_name])


def centred(value: object) -> Array:
    """Residues as integers around zero: the fixed order that comparisons use."""
    signed = canonical(value).astype(np.int64)
    around: Array = np.where(signed > MODULUS // 2, signed - MODULUS, signed)
    return around


def multiplied(first: object, second: object) -> Array:
    """Products as uint64 below 2^31 + 5."""
    return folded(np.array(first, np.uint64, ndmin=1) * np.asarray(second, np.uint64))


_MAX_TERMS = 1 << 21
"""Terms of a product up to which one loop in C is faster than four products of float64."""


def matrix_product(left: Array, right: Array) -> Array:
    """left @ right of canonical uint64 residues: halves of 16 bits multiply exactly in float64 as long as sums stay below 2^53; integers
    and codes of 16 bits are no longer than such a half."""
    depth = left.shape[-1]
    if left.size * right.shape[-1] < _MAX_TERMS:
        columns = np.ascontiguousarray(right.swapaxes(-1, -2)).astype(np.uint32)
        products = residue_loops.matrix_products(left.astype(np.uint32), columns)
        if products is not None:
            return canonical(products)
    total = np.zeros((*left.shape[:-1], right.shape[-1]), np.uint64)
    low = np.uint64(0xFFFF)
    short = _short(left), _short(right)
    for begin in range(0, depth, 1 << 20):
        chosen = slice(begin, begin + (1 << 20))
        if short[0] is not None and short[1] is not None:
            sums = _exact(short[0][0][..., chosen], short[1][0][..., chosen, :]).astype(np.int64) % np.int64(MODULUS)
            total = folded(total + (sums.astype(np.uint64) << np.uint64(short[0][1] + short[1][1])))
            continue
        a, b = left[..., chosen], right[..., chosen, :]
        parts = [(each & low).astype(np.float64) for each in (a, b)], [(each >> np.uint64(16)).astype(np.float64) for each in (a, b)]
        (a_low, b_low), (a_high, b_high) = parts
        lows = folded(_exact(a_low, b_low).astype(np.uint64))
        # One sum for both products across: below 2 * 2^20 * 2^31 < 2^53.
        across = folded((_exact(a_low, b_high) + _exact(a_high, b_low)).astype(np.uint64))
        highs = folded(_exact(a_high, b_high).astype(np.uint64))
        # 2^32 is 2 modulo 2^31 - 1.
        total = folded(total + lows + (across << np.uint64(16)) + (highs << np.uint64(1)))
    return canonical(total)


def _exact(left: Array, right: Array) -> Array:
    return exact_product(left, right.swapaxes(-1, -2))


def _short(values: Array) -> tuple[Array, int] | None:
    """Residues as float64 of at most 16 bits, and the power of 2 that they are multiplied by: small integers around zero, or codes. None if
    they are longer."""
    around = centred(values)
    if np.abs(around).max(initial=0) < 1 << 16:
        return around.astype(np.float64), 0
    # 2^16 times 2^15 is 1 modulo 2^31 - 1.
    codes = canonical(folded(values << np.uint64(15)))
    return (codes.astype(np.float64), 16) if codes.max(initial=0) < 1 << 16 else None


class Pairs:
    """The pairs of one run that words of 16 bits stand for: two results that are rounded to 8 bits each and stored side by side. Each pair
    has another code, so that rounding loses nothing. No byte of a code is 128, which saturation on a scale of 128ths changes."""

    MOST = 255 * 255 - 1
    """Different pairs that there can be."""

    def __init__(self, rng: np.random.Generator) -> None:
        every = np.arange(1, _CODES, dtype=np.uint16)
        self._codes = rng.permutation(every[(every & 0xFF != 0x80) & (every >> 8 != 0x80)])
        self._numbers = np.full(_CODES, np.iinfo(np.uint64).max)
        self._table = CodeTable(self._numbers, len(self._codes))
        self._next = 0

    def codes(self, first: object, second: object) -> Array:
        """The codes of pairs of residues as uint32. Raises OverflowError if there are too few codes."""
        both = (canonical(first) << _SHIFT) | canonical(second)
        wanted = both.reshape(-1)
        slots = self._table.find(wanted)
        new = wanted[slots == 0]
        if len(new):
            fresh = _distinct(new)
            if self._next + len(fresh) > self.MOST:
                raise OverflowError(f"a run stores more than {self.MOST} different pairs of bytes")
            codes = self._codes[self._next : self._next + len(fresh)]
            self._next += len(fresh)
            self._numbers[codes] = fresh
            self._table.note(codes)
            slots = self._table.find(wanted)
        return slots.reshape(both.shape).astype(np.uint32)


pairs: ContextVar[Pairs | None] = ContextVar("pairs", default=None)
"""The pairs of the present run; None: each result of 8 bits is a hash by itself."""


# -- hashes --------------------------------------------------------------------------------------------------------


def _mixed(value: Array) -> Array:
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    result: Array = (value ^ (value >> _SHIFT)) & _MODULUS
    return result


_ODD, _OTHER_ODD = np.uint64(0x2C1B3C6D), np.uint64(0x297A2D39)


def _permuted(value: Array) -> Array:
    """A permutation of the numbers below 2^31."""
    value = value & _MODULUS
    value = (value ^ (value >> np.uint64(15))) * _ODD & _MODULUS
    value = (value ^ (value >> np.uint64(14))) * _OTHER_ODD & _MODULUS
    result: Array = value ^ (value >> np.uint64(16))
    return result


@lru_cache(maxsize=256)
def name_of(key: str) -> int:
    """The number of a function without algebraic meaning."""
    return zlib.crc32(key.encode())


@lru_cache(maxsize=1024)
def _permuted_number(value: int, key: str) -> Array:
    """The term of a number, such as the literal of a maximum."""
    return _permuted(np.full(1, value + name_of(key), np.uint64))


def narrowed(value: object, bits: int) -> Array:
    """Rounding to a narrower type as a hash of so many bits; to 16 bits without a loss where the numbers of the run are kept."""
    if bits == 16 and (own := interned.get()) is not None:
        return own.narrowed(value).astype(np.uint32)
    hashed = _mixed(canonical(value) * _GOLDEN)
    return (hashed >> np.uint64(31 - bits)).astype(np.uint32)


def opaque(key: str, arguments: Sequence[object], *, commutes: bool = False) -> Array:
    """A function without algebraic meaning: a hash of its name and its arguments. Of each argument, with the others as they are, it is a
    permutation: two results that differ in one argument are never equal (but for 0 and the modulus, which are the same residue)."""
    in_c = residue_loops.opaque(name_of(key), arguments, commutes)
    if in_c is not None:
        return in_c
    name = np.full(1, name_of(key), np.uint64)
    parts = [canonical(argument) for argument in arguments]
    if commutes:
        terms = [_permuted(part + name) if part.size > 1 else _permuted_number(int(part.flat[0]), key) for part in parts]
        return words(_permuted(sum(terms[1:], start=terms[0])))
    hashed: Array = name
    for part in parts:
        hashed = _permuted(part + hashed * _ODD)
    return words(hashed)


def tree_sum(first: object, second: object) -> Array:
    """Addition that commutes and does not associate; zero is neutral."""
    a, b = np.broadcast_arrays(canonical(first), canonical(second))
    hashed = _mixed(_mixed(a + _NEUTRAL) + _mixed(b + _NEUTRAL) + ((a * b) << np.uint64(1)))
    return words(np.where(a == 0, b, np.where(b == 0, a, hashed)))


def tree_step(accumulator: object, products: object, kind: int) -> Array:
    """One instruction's sum of products on top of an accumulator: the set of products counts, not their order. Products that sum to
    zero change nothing. `kind` tells instructions apart that cut their terms differently."""
    a, b = np.broadcast_arrays(canonical(accumulator), canonical(products))
    hashed = _mixed(a * _GOLDEN + b * _SECOND + np.uint64(kind))
    return words(np.where(b == 0, a, hashed))
