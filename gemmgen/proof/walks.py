"""Loops over the tiles of a result: in iteration t, block b works on the tiles from ``W (b + E t)`` on, where E is the number of blocks.

A number ``W (b + E t) + f(thread)`` with ``0 <= f(thread) < W`` takes each value v from 0 on, in one block b, one iteration t and for those
threads whose f is ``v % W``. A tile's row and column may be the quotient q and the remainder r of that number by the number Q of tiles in
a row. For a row ``q < P`` and a column ``r < Q`` it is ``q Q + r < P Q``, and no other number has that quotient and that remainder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import z3

from gemmgen.proof.enumeration import Numbers
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.polynomials import Monomial


@dataclass(frozen=True)
class Walk:
    """The part ``width * (b + E t)`` of a number; without iterations, ``width * b``."""

    width: int
    block: int
    """Number of the term of the block's index, or of a part of it."""
    iterations: bool


@dataclass(frozen=True, eq=False)
class Division:
    """Quotient and remainder of a number ``W (b + E t) + f(thread)`` by one that all threads share."""

    quotient: int
    remainder: int
    """Numbers of their terms."""
    dividend: z3.ArithRef
    divisor: z3.ArithRef
    walk: Walk
    own: Numbers
    """The dividend's part of each thread, from 0 to below W."""


def walk_of(known: Knowledge, outer: Mapping[Monomial, int], iteration: z3.ArithRef | None) -> Walk | None:
    """The walk that a number's part without the thread is; None for other sums."""
    blocks = {part.get_id() for whole in known.block_parts.values() for part in whole}
    firsts = [monomial for monomial in outer if len(monomial) == 1 and monomial[0] in blocks]
    if len(firsts) != 1 or outer[firsts[0]] < 1:
        return None
    width, block = outer[firsts[0]], firsts[0][0]
    rest = {monomial: number for monomial, number in outer.items() if monomial != firsts[0]}
    if not rest:
        return Walk(width, block, False)
    extent = known.extents[block]
    for form in (extent, z3.simplify(extent)):  # a loop's step may hold the grid in another form
        if iteration is not None and rest == known.polynomials.of(z3.simplify(iteration * width) * form):
            return Walk(width, block, True)
    return None


def numbers_of_divisions(known: Knowledge) -> frozenset[int]:
    """Numbers of the terms of quotients and remainders by numbers of the problem, which are no parts of a block's index.

    Threads, blocks and iterations with divisors of their own would have tiles in rows of different lengths.
    """
    parts = {part.get_id() for whole in known.block_parts.values() for part in whole}
    pairs = [(quotient.z3, remainder.z3) for quotient, remainder in known.divided]
    shared = [pair for pair in pairs if known.is_of_problem(known.quotients[pair[0].get_id()][1])]
    return frozenset(term.get_id() for pair in shared for term in pair) - parts
