"""Products of tensor cores over the field, and as nodes of a summation tree."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator import residue_loops, residues, tensor_core
from gemmgen.emulator.arithmetic import Arithmetic
from gemmgen.emulator.residue_words import whole_words
from gemmgen.emulator.residues import Array

_SCALES = {"tf32": 26, "bf16": 32, "f16": 32, "e4m3": 32, "e5m2": 32, "e2m1": 32}
"""The power of two of a product of two codes; modulo 2^31 - 1, exponents count modulo 31."""
_FP8 = ("e4m3", "e5m2")
_SHORT = (*_FP8, "e2m1")
"""Types whose sums of products are exact in float32."""
_IN_WORDS = {8: ("e2m1",), 4: (*_FP8, "s8"), 2: ("f16", "bf16")}
"""Types whose elements can be parts of words of so many."""
_EXACT_DEPTH = 64
_WGMMA_FP8 = 2
_OTHERS = 1


def multiply_add(
    arithmetic: Arithmetic,
    a: Array,
    b: Array,
    types: tuple[str, str],
    c: Array,
    *,
    negated: bool = False,
    warpgroup: bool = False,
) -> Array:
    """D = A B + C of stacks of codes: A [..., rows, depth], B [..., columns, depth], C and D [..., rows, columns] of 32-bit patterns."""
    if arithmetic.name == "tree":
        return _tree(a, b, types, c, negated, warpgroup)
    return _plus(_products(a, b, types), c, negated, types[0] == "s8")


def _plus(products: Array, c: Array, negated: bool, is_integer: bool) -> Array:
    """The patterns of C plus or minus sums of products."""
    # Sums of integers are below the modulus, so that conversions to float32 read them as the residues that they are.
    if residue_loops.loops() is not None and products.shape == c.shape:
        codes = residue_loops.NO_CODES if is_integer else residues.codes_in_loops()
        sums = residue_loops.added(codes, products, c, negated=negated, is_reduced=is_integer)
        residues.settle()
        return sums
    products = _signed(products, negated)
    if is_integer:
        return residues.words(residues.canonical(products + c)).reshape(c.shape)
    total: Array = residues.written(residues.words(residues.folded(products + residues.read(c))))
    return total


def _scaled(factors: Array, scales: Array) -> Array:
    """Residues of elements times those of their scales, of which each is for as many elements."""
    blocks = factors.reshape(*scales.shape, -1).astype(np.uint64) * scales[..., None]
    return residues.words(residues.canonical(blocks)).reshape(factors.shape)


def elements_of(types: tuple[str, str]) -> residue_loops.Elements | None:
    """The table of the residues of elements in the present run; None where elements stand for their codes."""
    if (drawn := whole_words.get()) is not None and set(types) <= set(_IN_WORDS[drawn.elements]):
        return drawn.in_loops
    if (interned := residues.interned.get()) is not None and {residues.CODE_BITS.get(each) for each in types} == {16}:
        return interned.elements
    long = residues.long_codes.get()
    return long.elements if types[0] == "tf32" and long is not None else None


def multiply_add_scaled(arithmetic: Arithmetic, a: Array, b: Array, types: tuple[str, str], c: Array, of_a: Array, of_b: Array) -> Array:
    """D = (scale A) (B scale) + C: each block of k has codes of its scales, [..., rows or columns, blocks]; residues of its scales, where
    elements are parts of words."""
    if (drawn := whole_words.get()) is not None:
        left, right = (_scaled(drawn.of_elements(each), scales) for each, scales in ((a, of_a), (b, of_b)))
        return _plus(_of_residues(left, right), c, negated=False, is_integer=False)
    blocks = of_a.shape[-1]
    size = a.shape[-1] // blocks
    total = np.zeros(c.shape, np.uint64)
    for block in range(blocks):
        part = slice(block * size, (block + 1) * size)
        scales = of_a[..., :, None, block].astype(np.uint64) * of_b[..., None, :, block].astype(np.uint64)
        scales = residues.folded(scales << np.uint64(32 % 31))
        total += residues.folded(_products(a[..., part], b[..., part], types) * scales)
    if arithmetic.name == "tree":
        return residues.tree_step(c, residues.folded(total), _OTHERS)
    return residues.words(residues.folded(total + c))


def adds_residues(types: tuple[str, str]) -> bool:
    """True if products of integers are sums of residues in the present run, because elements are parts of words."""
    drawn = whole_words.get()
    return drawn is not None and set(types) <= set(_IN_WORDS[drawn.elements])


def _products(a: Array, b: Array, types: tuple[str, str]) -> Array:
    """Sums of products as uint64 below 2^31 + 5."""
    own = _residues_of(a, b, types)
    if own is not None:
        return _of_residues(*own)
    # Codes of 8 bits have sums below 2^24, exact in float32; others below 2^53, exact in float64.
    dtype = np.float32 if types[0] in _SHORT else np.float64
    left, right = (_codes(matrix, type_name).astype(dtype) for matrix, type_name in ((a, types[0]), (b, types[1])))
    exact = tensor_core.exact_product(left, right).astype(np.uint64)
    if types[0] not in _SHORT:
        exact = residues.folded(exact)
    exact <<= np.uint64(_SCALES[types[0]] % 31)
    return residues.folded(exact)


def _residues_of(a: Array, b: Array, types: tuple[str, str]) -> tuple[Array, Array] | None:
    """The residues of elements as words, where the run has some for them; None where elements stand for their codes."""
    if (drawn := whole_words.get()) is not None and set(types) <= set(_IN_WORDS[drawn.elements]):
        a, b = (each.astype(np.uint16) for each in (a, b)) if drawn.elements == 2 else (a, b)
        return drawn.of_elements(a), drawn.of_elements(b)
    if (interned := residues.interned.get()) is not None and {residues.CODE_BITS.get(each) for each in types} == {16}:
        return interned.residues.take(a), interned.residues.take(b)
    if types[0] == "tf32" and (long := residues.long_codes.get()) is not None:
        return long.residues.take(a >> np.uint32(13)), long.residues.take(b >> np.uint32(13))
    return None


def _of_residues(a: Array, b: Array) -> Array:
    products = residue_loops.matrix_products(a, b)
    return _long_products(a, b) if products is None else products


def _long_products(a: Array, b: Array) -> Array:
    """Sums of products of words up to a depth of 2^14: halves of 16 bits of A times B are exact in float64 up to a depth of 64, with sums
    below 2^53."""
    total = np.zeros((), np.uint64)
    right = b.astype(np.float64)
    for begin in range(0, b.shape[-1], _EXACT_DEPTH):
        part = slice(begin, begin + _EXACT_DEPTH)
        halves = ((each[..., part].astype(np.float64)) for each in (a >> np.uint32(16), a & np.uint32(0xFFFF)))
        high, low = (tensor_core.exact_product(half, right[..., part]).astype(np.uint64) for half in halves)
        total = total + low + (residues.folded(high) << np.uint64(16))
    return residues.folded(total)


def _signed(products: Array, negated: bool) -> Array:
    return np.uint64(2 * residues.MODULUS) - products if negated else products


def _codes(matrix: Array, type_name: str) -> Array:
    return matrix >> np.uint32(13) if type_name == "tf32" else matrix


def _tree(a: Array, b: Array, types: tuple[str, str], c: Array, negated: bool, warpgroup: bool) -> Array:
    if types[0] in _FP8 and not warpgroup:
        # Two steps of half the depth from zero, to whose sum C is added (`tensor_core.multiply_fp8_on_halves`).
        total: Array = np.zeros(c.shape, np.uint32)
        depth = np.arange(a.shape[-1])
        for chosen in (depth % 4 < 2, depth % 4 >= 2):
            products = _signed(_products(a[..., chosen], b[..., chosen], types), negated)
            total = residues.tree_step(total, products, _OTHERS)
        return residues.tree_sum(total, c)
    kind = _WGMMA_FP8 if types[0] in _FP8 else _OTHERS
    return residues.tree_step(c, _signed(_products(a, b, types), negated), kind)
