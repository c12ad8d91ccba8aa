"""Parts of z3's terms. Each term is taken apart once: z3's functions for that are slow, and a proof asks for the same parts many times."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import z3

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A term, its operation and its parts."""

    term: z3.ExprRef
    number: int
    """z3's number of the term, which no other term has as long as this one is kept."""
    kind: int
    children: tuple[Node, ...]
    symbols: frozenset[int]
    """Numbers of the symbols that occur in the term."""
    nonlinear: bool
    """True if the term multiplies numbers that are not known."""

    def parts(self) -> Iterator[Node]:
        """The term and everything in it, each once."""
        pending, seen = [self], {self.number}
        while pending:
            part = pending.pop()
            yield part
            for child in part.children:
                if child.number not in seen:
                    seen.add(child.number)
                    pending.append(child)


RELATIONS: Mapping[int, Callable[[Any, Any], Any]] = {
    z3.Z3_OP_LE: operator.le,
    z3.Z3_OP_LT: operator.lt,
    z3.Z3_OP_GE: operator.ge,
    z3.Z3_OP_GT: operator.gt,
    z3.Z3_OP_EQ: operator.eq,
}
"""Comparisons of two numbers, or of arrays of numbers."""

z3.z3.Z3_DEBUG = False  # its functions check the types of their arguments otherwise, which takes a third of a proof's time
_NODES: dict[int, Node] = {}
_CONSTANTS = (z3.Z3_OP_ANUM, z3.Z3_OP_TRUE, z3.Z3_OP_FALSE)


def forget_terms() -> None:
    """Drops the terms of earlier kernels, and z3's context with them: z3 numbers terms one after the other and searches in this order,
    so that a proof would depend on the kernels that were proved before it.
    """
    _NODES.clear()
    z3.z3._main_ctx = None


def node_of(term: z3.ExprRef) -> Node:
    """A term taken apart."""
    number = term.get_id()
    node = _NODES.get(number)
    if node is not None:
        return node
    pending: list[tuple[z3.ExprRef, int, list[tuple[z3.ExprRef, int]]]] = [_opened(term, number)]
    while pending:
        part, number, children = pending[-1]
        missing = [child for child in children if child[1] not in _NODES]
        if missing:
            pending += [_opened(*child) for child in missing]
            continue
        pending.pop()
        if number not in _NODES:
            _NODES[number] = _node(part, number, tuple(_NODES[child] for _, child in children))
    return _NODES[term.get_id()]


def _opened(term: z3.ExprRef, number: int) -> tuple[z3.ExprRef, int, list[tuple[z3.ExprRef, int]]]:
    return term, number, [(child, child.get_id()) for child in term.children()]


def _node(term: z3.ExprRef, number: int, children: tuple[Node, ...]) -> Node:
    kind = term.decl().kind()
    if children:
        symbols = children[0].symbols.union(*[child.symbols for child in children[1:]])
    else:
        symbols = frozenset() if kind in _CONSTANTS else frozenset({number})
    product = kind == z3.Z3_OP_MUL and sum(child.kind != z3.Z3_OP_ANUM for child in children) > 1
    return Node(term, number, kind, children, symbols, product or any(child.nonlinear for child in children))


def compute(
    whole: Node,
    known: MutableMapping[int, ResultT],
    of: Callable[[Node, list[ResultT]], ResultT],
    children: Callable[[Node], Sequence[Node]] = lambda part: part.children,
) -> ResultT:
    """``of`` the term and the results of its ``children``. ``known`` has results of parts by their numbers, and gets those of others."""
    pending = [whole]
    while pending:
        part = pending[-1]
        below = children(part) if part.number not in known else ()
        missing = [child for child in below if child.number not in known]
        if missing:
            pending += missing
            continue
        pending.pop()
        if part.number not in known:
            known[part.number] = of(part, [known[child.number] for child in below])
    return known[whole.number]


def node_with(number: int) -> Node:
    """The term that has a number, which was taken apart before."""
    return _NODES[number]


def term_of(number: int) -> z3.ArithRef:
    """The integer that has a number, which was taken apart before."""
    term = _NODES[number].term
    assert isinstance(term, z3.ArithRef)
    return term


def mentions(term: z3.ExprRef | int | bool, parts: Iterable[z3.ExprRef]) -> bool:
    """True if one of the symbols, or other terms, occurs in a term."""
    if isinstance(term, int):
        return False
    whole, nodes = node_of(term), [node_of(part) for part in parts]
    if any(part.number in whole.symbols for part in nodes):
        return True
    numbers = {part.number for part in nodes if part.symbols <= whole.symbols}
    return bool(numbers) and any(part.number in numbers for part in whole.parts())
