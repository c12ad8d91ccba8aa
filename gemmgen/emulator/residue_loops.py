"""Loops over residues in C (residues.c), each of which replaces several passes of NumPy. Without a compiler, NumPy computes the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen.emulator import native

Array = np.ndarray[Any, Any]

_SOURCE = Path(__file__).with_name("residues.c")
_OPTIONS = ("-O3", "-march=native", "-fPIC", "-shared")
_FUNCTIONS = (
    *("read_words", "hide_codes", "ring", "multiply_add_rows", "matrix_products", "add_products", "reduce_words", "reduce_long"),
    *("read_elements", "multiply_fragments", "find_short", "find_long", "narrow", "opaque", "compare", "choose", "join"),
)
RELATIONS = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "num": 4, "nan": 5}
"""Numbers of the comparisons; "gt" and "ge" are these of exchanged sides. All residues are numbers."""
LANES_AT_ONCE = 128
"""Lanes of `multiply_add_rows` that are worked on together."""
OPERATIONS = {"add": 0, "sub": 1, "mul": 2, "fma": 3, "mad": 3, "neg": 4}
"""Numbers of the sums and products."""


class Codes(ctypes.Structure):
    """`struct Codes` of residues.c."""

    _fields_ = [("residues", ctypes.c_void_p), ("is_free", ctypes.c_void_p), ("taken", ctypes.c_int64)]


NO_CODES = Codes(None, None, 0)


class Elements(ctypes.Structure):
    """`struct Elements` of residues.c."""

    _fields_ = [
        ("table", ctypes.c_void_p),
        ("in_word", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("inverse", ctypes.c_uint32),
        ("last", ctypes.c_uint32),
    ]


@cache
def loops() -> native.Loops | None:
    """The library; None where there is none."""
    opened = native.library("residue loops", _SOURCE.read_bytes(), _OPTIONS, _FUNCTIONS) if native.is_possible() else None
    if opened is None:
        return None
    word, short, place, codes = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Codes)
    opened.read_words.argtypes = (codes, place, word, place)
    opened.hide_codes.argtypes = (place, word, place)
    opened.ring.argtypes = (codes, short, place, place, place, short, short, short, place, word, place)
    opened.multiply_add_rows.argtypes = (codes, place, word, word, place, word, place, place, place, word, place)
    opened.matrix_products.argtypes = (place, place, place, word, word, word, word)
    opened.opaque.argtypes = (ctypes.c_uint64, short, short, place, place, word, place)
    opened.add_products.argtypes = (codes, place, place, short, short, word, place)
    opened.read_elements.argtypes = (place, word, ctypes.c_uint32, ctypes.c_uint32, place, short, place)
    elements = ctypes.POINTER(Elements)
    opened.multiply_fragments.argtypes = (codes, place, short, short, elements, short, word, place)
    opened.reduce_words.argtypes = opened.reduce_long.argtypes = (place, word, place)
    opened.narrow.argtypes = (place, word, place, place, word, place, word, word, place, place)
    opened.narrow.restype = word
    opened.compare.argtypes = (codes, short, place, place, short, short, place, place, word, place)
    opened.choose.argtypes = (place, place, place, short, short, place, word, place)
    opened.join.argtypes = (ctypes.c_uint32, ctypes.c_uint64, short, place, place, place, place, word, place)
    for find in (opened.find_short, opened.find_long):
        find.argtypes = (place, word, place, place, word, place)
        find.restype = word
    return opened


def words_of(values: Sequence[object]) -> list[Array] | None:
    """Arguments as arrays of words, of which each has one element or as many as the longest; None if they are something else."""
    arrays = []
    for value in values:
        array = np.ascontiguousarray(value)
        if array.dtype != np.uint32 or array.ndim != 1:
            return None
        arrays.append(array)
    longest = max(map(len, arrays), default=0)
    return arrays if all(len(array) in (1, longest) for array in arrays) else None


def ring(name: str, values: Sequence[Array], out: Array) -> Callable[[Codes, Array | None], object]:
    """A function of codes and lanes (None: all) that writes a sum or product of rows of words, or of single ones, some of which may be
    codes."""
    library = loops()
    assert library is not None
    missing, function, count = 3 - len(values), library.ring, len(out)
    places = [array.ctypes.data for array in values] + [None] * missing
    steps = [int(len(array) > 1) for array in values] + [0] * missing
    arguments = (OPERATIONS[name], *places, *steps, out.ctypes.data)

    def compute(codes: Codes, lanes: Array | None, kept: object = values) -> object:
        if lanes is None:
            return function(codes, *arguments, count, None)
        return function(codes, *arguments, len(lanes), lanes.ctypes.data)

    return compute


def opaque(name: int, values: Sequence[object], commutes: bool) -> Array | None:
    """A hash of words (`residues.opaque`); None where NumPy has to compute it."""
    library, arrays = loops(), words_of(values)
    if library is None or not arrays:
        return None
    count = max(map(len, arrays))
    out = np.empty(count, np.uint32)
    places = (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
    steps = (ctypes.c_int32 * len(arrays))(*[int(len(array) > 1) for array in arrays])
    library.opaque(name, commutes, len(arrays), places, steps, count, out.ctypes.data)
    return out


def comparison(relation: str, values: Sequence[Array], infinities: Array | None, out: Array) -> Callable[[Codes, Array | None], object]:
    """A function of codes and lanes (None: all) that compares two rows of words, or single ones, in the order of residues around zero, or
    of the two ``infinities`` alone."""
    if relation in ("gt", "ge"):
        relation, values = {"gt": "lt", "ge": "le"}[relation], values[::-1]
    library = loops()
    assert library is not None
    places, steps = [array.ctypes.data for array in values], [int(len(array) > 1) for array in values]
    arguments = (RELATIONS[relation], *places, *steps, native.pointer(infinities), out.ctypes.data)

    def compute(codes: Codes, lanes: Array | None, kept: object = (values, infinities)) -> object:
        return library.compare(codes, *arguments, *_lanes_of(out, lanes))

    return compute


def choice(answers: Array, values: Sequence[Array], out: Array) -> Callable[[Array | None], None]:
    """A function of lanes (None: all) that takes the first of two rows of words, or single ones, where the answer is true."""
    library = loops()
    assert library is not None
    places, steps = [array.ctypes.data for array in values], [int(len(array) > 1) for array in values]
    arguments = (answers.ctypes.data, *places, *steps, out.ctypes.data)

    def compute(lanes: Array | None, kept: object = (answers, values)) -> None:
        library.choose(*arguments, *_lanes_of(out, lanes))

    return compute


def union(
    values: Sequence[Array], fresh: tuple[bool, bool], neutral: int, element: int, out: Array, *, gives_place: bool
) -> Callable[[Array | None], object]:
    """A function of lanes (None: all) that writes sums in place of the better of two values (`over_field.joined`): `values` are both, and
    perhaps both places. It is true if some value and its place are those of different sums."""
    library = loops()
    assert library is not None
    pointers = (ctypes.c_void_p * 4)(*[array.ctypes.data for array in values])
    steps, sides = (ctypes.c_int32 * 4)(*[int(len(array) > 1) for array in values]), (ctypes.c_int32 * 2)(*fresh)
    arguments = (neutral, element, gives_place, sides, pointers, steps, out.ctypes.data)

    def compute(lanes: Array | None, kept: object = values) -> object:
        return library.join(*arguments, *_lanes_of(out, lanes))

    return compute


def _lanes_of(out: Array, lanes: Array | None) -> tuple[int, int | None]:
    return (len(out), None) if lanes is None else (len(lanes), lanes.ctypes.data)


def reduced(values: object) -> Array | None:
    """Words, or numbers of 64 bits, as the residues below the modulus; None where NumPy has to compute them."""
    library = loops()
    if library is None or not isinstance(values, np.ndarray) or not values.ndim or not values.flags.c_contiguous:
        return None
    if values.dtype not in (np.uint32, np.uint64):
        return None
    out = np.empty(values.shape, np.uint64)
    function = library.reduce_words if values.dtype == np.uint32 else library.reduce_long
    function(values.ctypes.data, values.size, out.ctypes.data)
    return out


def added(codes: Codes, products: Array, addends: Array, *, negated: bool, is_reduced: bool) -> Array:
    """Words and sums of products together, by the loops of `matrix_products`; below the modulus if ``is_reduced``."""
    library = loops()
    assert library is not None
    products, addends = np.ascontiguousarray(products), np.ascontiguousarray(addends).view(np.uint32)
    out = np.empty(addends.shape, np.uint32)
    places = (products.ctypes.data, addends.ctypes.data)
    library.add_products(codes, *places, negated, is_reduced, addends.size, out.ctypes.data)
    return out


def matrix_products(a: Array, b: Array) -> Array | None:
    """Sums of products of stacks of matrices of words below 2^31, A [..., rows, depth] and B [..., columns, depth], below 2^31 + 5; None
    where NumPy has to compute them."""
    library = loops()
    if library is None or a.shape[:-2] != b.shape[:-2] or a.dtype != np.uint32 or b.dtype != np.uint32:
        return None
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    rows, columns, depth = a.shape[-2], b.shape[-2], a.shape[-1]
    out = np.empty((*a.shape[:-2], rows, columns), np.uint64)
    stacks = a.size // max(rows * depth, 1)
    library.matrix_products(a.ctypes.data, b.ctypes.data, out.ctypes.data, stacks, rows, columns, depth)
    return out
