"""Freedom of doubly stored elements, from the form of a store's indices alone: each is a number in the system whose digits are the
thread's place in its block's tile, the block and the iterations of loops, with bases that are at least as large as the digits need.

An index ``64 q + f(t)`` with ``0 <= f(t) < 64`` tells q and f(t), and ``256 g iteration + 256 b + t`` with ``b < g`` and ``t < 256`` tells
all three. The quotient and the remainder of one number by another tell that number and its own digits, if the divisor is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import z3

from gemmgen.proof.enumeration import NotEnumerable, Numbers, evaluate, total
from gemmgen.proof.polynomials import Monomial, Polynomials, product
from gemmgen.proof.values import Condition, as_condition, conjuncts

MAX_ELEMENTS = 1 << 20
"""Elements of one block's stores that are listed."""


@dataclass(frozen=True)
class Stored:
    """One store: the indices of its first element, and the elements that follow along the last axis."""

    indices: Sequence[z3.ArithRef]
    count: int
    path: Sequence[Condition] = ()
    """The conditions of the store; those on the thread alone leave some threads out."""


@dataclass(frozen=True)
class Digits:
    """The unknowns that stores may depend on besides the thread."""

    threads: Mapping[int, Numbers]
    """The thread's indices by the numbers of their terms: entry i of each array belongs to thread i of the block."""
    outer: Mapping[int, z3.ArithRef | None]
    """Symbols by number, each with the number of values from 0 that it takes; None: without limit."""
    identity: frozenset[int]
    """The symbols that tell two blocks, or two iterations, from each other."""
    divided: Sequence[tuple[int, int, z3.ArithRef, frozenset[int]]] = ()
    """Numbers of quotients and remainders, each with the dividend, which they determine, and the symbols that determine the divisor."""


def shared_elements(polynomials: Polynomials, stores: Sequence[Stored], digits: Digits) -> set[tuple[int, int]] | None:
    """Pairs of stores that share an element in one thread, which is then in one iteration of its loops.

    An empty set says that no element is stored twice, by any thread, block or iteration. None where this form does not show that two
    threads never share an element.
    """
    try:
        return _shared(polynomials, stores, digits)
    except NotEnumerable:
        return None


def _shared(polynomials: Polynomials, stores: Sequence[Stored], digits: Digits) -> set[tuple[int, int]] | None:
    threads = len(next(iter(digits.threads.values()))) if digits.threads else 1
    if threads * sum(store.count for store in stores) > MAX_ELEMENTS:
        return None
    terms: set[int] = set()
    allowed = [_allowed(store, digits, threads) for store in stores]
    if not all(here.any() for here in allowed):
        return None
    places: list[list[Numbers]] = [[] for _ in stores]
    known: dict[int, Numbers] = {}
    for axis in range(len(stores[0].indices)):
        outer: dict[Monomial, int] | None = None
        for store, place in zip(stores, places, strict=True):
            mine, own = _split(polynomials, store.indices[axis], digits, threads, known)
            if outer is not None and outer != mine:
                return None
            outer = mine
            place.append(own)
        assert outer is not None
        last = axis == len(stores[0].indices) - 1
        low = min(int(place[axis][here].min()) for place, here in zip(places, allowed, strict=True))
        ends = zip(stores, places, allowed, strict=True)
        high = max(int(place[axis][here].max()) + (store.count - 1 if last else 0) for store, place, here in ends)
        numbers = _told(polynomials, outer, high - low + 1, digits)
        if numbers is None:
            return None
        terms |= numbers
    for quotient, remainder, dividend, divisor in digits.divided[::-1]:  # a remainder may be divided again
        if not {quotient, remainder, *divisor} <= terms:
            continue
        outer, own = _split(polynomials, dividend, digits, threads, known)
        numbers = _told(polynomials, outer, int(own.max()) - int(own.min()) + 1, digits)
        if numbers is not None:
            terms |= numbers
            for place in places:
                place.insert(0, own)
    if not digits.identity <= terms:
        return None
    owners: dict[tuple[int, ...], tuple[int, list[int]]] = {}
    for number, (store, place) in enumerate(zip(stores, places, strict=True)):
        for thread, (*rows, column) in enumerate(zip(*[axis.tolist() for axis in place], strict=True)):
            if not allowed[number][thread]:
                continue
            for step in range(store.count):
                owner, before = owners.setdefault((*rows, column + step), (thread, []))
                if owner != thread:
                    return None
                before.append(number)
    return {(before[i], before[j]) for _, before in owners.values() for j in range(len(before)) for i in range(j)}


def _split(
    polynomials: Polynomials, term: z3.ArithRef, digits: Digits, threads: int, known: dict[int, Numbers]
) -> tuple[dict[Monomial, int], Numbers]:
    """The part of a sum that depends on other unknowns than the thread, and the number of each thread."""
    form = polynomials.of(term)
    outer = {monomial: number for monomial, number in form.items() if any(factor in digits.outer for factor in monomial)}
    own = [
        (number, [evaluate(polynomials.term(factor), digits.threads, known) for factor in monomial])
        for monomial, number in form.items()
        if monomial not in outer
    ]
    return outer, total(own, threads)


def _allowed(store: Stored, digits: Digits, threads: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """The threads that a store's conditions on the thread alone let through."""
    allowed = np.ones(threads, dtype=np.bool_)
    for condition in conjuncts(store.path):
        try:
            allowed &= np.broadcast_to(evaluate(as_condition(condition), digits.threads) != 0, threads)
        except NotEnumerable:
            continue
    return allowed


def _told(polynomials: Polynomials, outer: Mapping[Monomial, int], width: int, digits: Digits) -> set[int] | None:
    """The symbols that an index tells, if its digits do not overlap; ``width``: values that its part of the thread takes."""
    left = dict(outer)
    numbers: set[int] = set()
    base: dict[Monomial, int] | None = None
    while left:
        fitting: list[tuple[int, int, dict[Monomial, int]]] = []
        for symbol in digits.outer.keys() - numbers:
            factor = _cofactor(left, symbol)
            if factor is not None and (set(factor) == {()} and factor[()] >= width if base is None else factor == base):
                fitting.append((factor.get((), 0), symbol, factor))
        if not fitting:
            return None
        _, symbol, factor = min(fitting, key=lambda each: each[:2])
        numbers.add(symbol)
        left = {monomial: number for monomial, number in left.items() if symbol not in monomial}
        extent = digits.outer[symbol]
        if extent is None and left:
            return None
        if extent is not None:
            base = product(factor, polynomials.of(extent))
    return numbers


def _cofactor(form: Mapping[Monomial, int], symbol: int) -> dict[Monomial, int] | None:
    """Factor of a symbol in a sum; None if it occurs in no monomial, or as a square."""
    quotient: dict[Monomial, int] = {}
    for monomial, number in form.items():
        if symbol in monomial:
            if monomial.count(symbol) > 1:
                return None
            quotient[tuple(factor for factor in monomial if factor != symbol)] = number
    return quotient or None
