"""Products of tensor cores over the field, and as nodes of a summation tree."""

from __future__ import annotations

from collections.abc import Callable

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
_IN_WORDS = {4: (*_FP8, "s8"), 2: ("f16", "bf16")}
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
    if types[0] == "s8":
        # Patterns of integers below the modulus, which conversions to float32 read as the residues that they are.
        return residues.words(residues.canonical(_products(a, b, types, negated) + c)).reshape(c.shape)
    total: Array = residues.written(residues.words(residues.folded(_products(a, b, types, negated) + residues.read(c))))
    return total


def multiply_add_scaled(arithmetic: Arithmetic, a: Array, b: Array, types: tuple[str, str], c: Array, of_a: Array, of_b: Array) -> Array:
    """D = (scale A) (B scale) + C: each block of k has codes of its scales, [..., rows or columns, blocks]."""
    blocks = of_a.shape[-1]
    size = a.shape[-1] // blocks
    total = np.zeros(c.shape, np.uint64)
    for block in range(blocks):
        part = slice(block * size, (block + 1) * size)
        scales = of_a[..., :, None, block].astype(np.uint64) * of_b[..., None, :, block].astype(np.uint64)
        scales = residues.folded(scales << np.uint64(32 % 31))
        total += residues.folded(_products(a[..., part], b[..., part], types, False) * scales)
    if arithmetic.name == "tree":
        return residues.tree_step(c, residues.folded(total), _OTHERS)
    return residues.words(residues.folded(total + c))


def adds_residues(types: tuple[str, str]) -> bool:
    """True if products of integers are sums of residues in the present run, because elements are parts of words."""
    drawn = whole_words.get()
    return drawn is not None and set(types) <= set(_IN_WORDS[drawn.elements])


def _products(a: Array, b: Array, types: tuple[str, str], negated: bool) -> Array:
    """Sums of products as uint64 below 2^63."""
    if (drawn := whole_words.get()) is not None and set(types) <= set(_IN_WORDS[drawn.elements]):
        a, b = (each.astype(np.uint16) for each in (a, b)) if drawn.elements == 2 else (a, b)
        if (found := _in_loops(lambda: (drawn.of_elements(a), drawn.of_elements(b)), negated)) is not None:
            return found
        total = _sums_of_halves(drawn.of_factors(a), drawn.of_whole_factors(b))
        return np.uint64(2 * residues.MODULUS) - residues.folded(total) if negated else total
    if (kept := residues.interned.get()) is not None and {residues.CODE_BITS.get(each) for each in types} == {16}:
        if (found := _in_loops(lambda: (kept.residues.take(a), kept.residues.take(b)), negated)) is not None:
            return found
        high, low = kept.halves
        total = _sums_of_halves((high.take(a), low.take(a)), kept.factors.take(b))
        return np.uint64(2 * residues.MODULUS) - residues.folded(total) if negated else total
    if types[0] == "tf32" and (long := residues.long_codes.get()) is not None:
        table = long.residues
        if (found := _in_loops(lambda: (table.take(a >> np.uint32(13)), table.take(b >> np.uint32(13))), negated)) is not None:
            return found
        own = (residues.of_codes(matrix, type_name) for matrix, type_name in zip((a, b), types, strict=True))
        total = _long_products(*own)
        return np.uint64(2 * residues.MODULUS) - residues.folded(total) if negated else total
    # Codes of 8 bits have sums below 2^24, exact in float32; others below 2^53, exact in float64.
    dtype = np.float32 if types[0] in _SHORT else np.float64
    left, right = (_codes(matrix, type_name).astype(dtype) for matrix, type_name in ((a, types[0]), (b, types[1])))
    exact = tensor_core.exact_product(left, right).astype(np.uint64)
    if types[0] not in _SHORT:
        exact = residues.folded(exact)
    exact <<= np.uint64(_SCALES[types[0]] % 31)
    exact = residues.folded(exact)
    return np.uint64(2 * residues.MODULUS) - exact if negated else exact


def _in_loops(factors: Callable[[], tuple[Array, Array]], negated: bool) -> Array | None:
    """Sums of products of residues by the loops in C; None if there are none."""
    if residue_loops.loops() is None:
        return None
    total = residue_loops.matrix_products(*factors())
    return total if total is None or not negated else np.uint64(2 * residues.MODULUS) - total


def _long_products(a: Array, b: Array) -> Array:
    """Sums of products of residues."""
    high, low = (((a >> shift) & np.uint64(0xFFFF)).astype(np.float64) for shift in (np.uint64(16), np.uint64(0)))
    return _sums_of_halves((high, low), b.astype(np.float64))


def _sums_of_halves(halves: tuple[Array, Array], right: Array) -> Array:
    """Sums of products up to a depth of 2^14: halves of 16 bits of A times B are exact in float64 up to a depth of 64, with sums below
    2^53."""
    total: Array | None = None
    for begin in range(0, right.shape[-1], _EXACT_DEPTH):
        part = slice(begin, begin + _EXACT_DEPTH)
        high, low = (tensor_core.exact_product(half[..., part], right[..., part]).astype(np.uint64) for half in halves)
        low += residues.folded(high) << np.uint64(16)
        total = low if total is None else total + low
    return np.zeros((), np.uint64) if total is None else total


def _codes(matrix: Array, type_name: str) -> Array:
    return matrix >> np.uint32(13) if type_name == "tf32" else matrix


def _tree(a: Array, b: Array, types: tuple[str, str], c: Array, negated: bool, warpgroup: bool) -> Array:
    if types[0] in _FP8 and not warpgroup:
        # Two steps of half the depth from zero, to whose sum C is added (`tensor_core.multiply_fp8_on_halves`).
        total: Array = np.zeros(c.shape, np.uint32)
        depth = np.arange(a.shape[-1])
        for chosen in (depth % 4 < 2, depth % 4 >= 2):
            products = _products(a[..., chosen], b[..., chosen], types, negated)
            total = residues.tree_step(total, products, _OTHERS)
        return residues.tree_sum(total, c)
    kind = _WGMMA_FP8 if types[0] in _FP8 else _OTHERS
    return residues.tree_step(c, _products(a, b, types, negated), kind)
