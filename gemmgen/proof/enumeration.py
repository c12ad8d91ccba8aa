"""Values of terms for every thread of a block at once, where they depend on nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import z3

from gemmgen.proof.terms import RELATIONS, Node, compute, node_of

Numbers: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
LIMIT = 1 << 60
"""Terms with larger numbers are not evaluated, so that 64 bits hold every sum of two of them."""


class NotEnumerable(Exception):
    """A term depends on more than the given symbols, or holds an operation or a number that is not evaluated."""


def evaluate(term: z3.ExprRef, symbols: Mapping[int, Numbers], known: dict[int, Numbers] | None = None) -> Numbers:
    """A term's value for each value of the symbols, which are given by the numbers of their terms. Raises ``NotEnumerable``."""
    known = {} if known is None else known

    def value(part: Node, values: list[Numbers]) -> Numbers:
        if part.number in symbols:
            return symbols[part.number]
        return _number(part.term) if part.kind == z3.Z3_OP_ANUM else operation(part.kind, values)

    return compute(node_of(term), known, value, lambda part: () if part.number in symbols else part.children)


def total(products: Iterable[tuple[int, Sequence[Numbers]]], length: int) -> Numbers:
    """The sum of some products, each a number and values by thread, for as many threads. Raises ``NotEnumerable``."""
    result: Numbers = np.zeros(length, dtype=np.int64)
    for number, factors in products:
        result = operation(z3.Z3_OP_ADD, [result, operation(z3.Z3_OP_MUL, [_small(number), *factors])])
    return result


def _number(term: z3.ExprRef) -> Numbers:
    _require(z3.is_int_value(term))
    return _small(term.as_long())


def _small(number: int) -> Numbers:
    _require(abs(number) < LIMIT)
    return np.asarray(number, dtype=np.int64)


def operation(kind: int, values: list[Numbers]) -> Numbers:
    """A term's value by its operation, from those of its children. Raises ``NotEnumerable``."""
    if kind in (z3.Z3_OP_ADD, z3.Z3_OP_SUB):
        _require(sum(_largest(value) for value in values) < LIMIT)
        return np.asarray(sum(values[1:], values[0]) if kind == z3.Z3_OP_ADD else values[0] - sum(values[1:]))
    if kind == z3.Z3_OP_MUL:
        _require(math.prod(max(1, _largest(value)) for value in values) < LIMIT)
        return np.asarray(math.prod(values[1:], start=values[0]))
    if kind in (z3.Z3_OP_IDIV, z3.Z3_OP_MOD):
        _require(bool((values[1] > 0).all()))  # both round down for positive divisors
        return np.asarray(values[0] // values[1] if kind == z3.Z3_OP_IDIV else values[0] % values[1])
    if kind == z3.Z3_OP_ITE:
        return np.asarray(np.where(values[0] != 0, values[1], values[2]))
    if kind in RELATIONS:
        return np.asarray(RELATIONS[kind](values[0], values[1]), dtype=np.int64)
    result: object
    match kind:
        case z3.Z3_OP_UMINUS:
            result = -values[0]
        case z3.Z3_OP_DISTINCT if len(values) == 2:
            result = values[0] != values[1]
        case z3.Z3_OP_XOR if len(values) == 2:
            result = (values[0] != 0) != (values[1] != 0)
        case z3.Z3_OP_NOT:
            result = values[0] == 0
        case z3.Z3_OP_AND:
            result = np.logical_and.reduce(np.broadcast_arrays(*[value != 0 for value in values]))
        case z3.Z3_OP_OR:
            result = np.logical_or.reduce(np.broadcast_arrays(*[value != 0 for value in values]))
        case z3.Z3_OP_TRUE:
            result = 1
        case z3.Z3_OP_FALSE:
            result = 0
        case _:
            raise NotEnumerable
    return np.asarray(result, dtype=np.int64)


def _largest(value: Numbers) -> int:
    return int(np.abs(value).max())


def _require(holds: bool) -> None:
    if not holds:
        raise NotEnumerable
