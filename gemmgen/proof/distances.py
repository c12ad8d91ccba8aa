"""Distances between the addresses of two threads of a block, from those of all threads at once.

An address is ``U + f(thread)``: a part that all threads share in one iteration of a loop, such as the place of a stage, and a number for
each thread. Two accesses at ``U + f(t)`` and ``U' + g(t') + a`` have no byte in common if no ``f(t) - g(t')`` is within their sizes of
``a - (U - U')``. The shared parts take few values, so the differences ``U - U'`` are listed. The solver is only asked whether a difference
at which bytes meet is possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import z3

from gemmgen.proof.data import Access
from gemmgen.proof.enumeration import NotEnumerable, Numbers, evaluate, total
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.polynomials import Monomial
from gemmgen.proof.terms import Node, node_with
from gemmgen.proof.values import Condition, conjuncts

MAX_PAIRS = 1 << 20
"""Pairs of threads whose distances are listed."""
MAX_VALUES = 16
"""Values of the shared part of an address."""
MILLISECONDS = 2000


class Another(Protocol):
    """The second thread."""

    def term(self, term: z3.ExprRef) -> z3.ExprRef:
        """Its value of a term."""


def by_thread(
    known: Knowledge, term: z3.ArithRef, digits: Collection[int] = (), symbols: Mapping[int, Numbers] | None = None
) -> tuple[dict[Monomial, int], Numbers]:
    """The part of a number that threads share, or that depends on terms of some numbers, and the rest for each thread.

    ``symbols``: the indices of all threads, which may be those of a cluster.

    Raises ``NotEnumerable``.
    """
    shared: dict[Monomial, int] = {}
    if symbols is None:
        symbols = known.all_threads()
    threads = max([known.contract.launch.threads, *[len(each) for each in symbols.values()]])
    own: list[tuple[int, list[Numbers]]] = []
    for monomial, number in known.polynomials.of(term).items():
        factors = [known.polynomials.term(factor) for factor in monomial]
        differs = any(known.depends_on_thread(factor) or known.depends_on_rank(factor) for factor in factors)
        if factors and (not differs or not {*monomial}.isdisjoint(digits)):
            shared[monomial] = number
        else:
            own.append((number, [evaluate(factor, symbols) for factor in factors]))
    return shared, total(own, threads)


class Distances:
    """Accesses of two threads of one block. Remembers the questions that were asked."""

    def __init__(self, known: Knowledge, other: Another) -> None:
        self._known, self._other = known, other
        self._excluded: dict[tuple[object, ...], bool] = {}

    def meeting(
        self,
        one: Access,
        two: Access,
        distances: Collection[int],
        together: Sequence[Condition],
        same_thread: bool,
        when: tuple[object, ...],
        ordered: Iterable[z3.ArithRef] = (),
        parts: Sequence[z3.ArithRef] = (),
    ) -> Collection[int]:
        """Those of some distances, added to the address of the second access, at which the two accesses may touch the same byte.

        ``together``: conditions under which both take place between the same barriers, named by ``when``. ``same_thread``: one thread may
        be both. ``ordered``: numbers of teams of threads; two threads with one number do not meet. ``parts``: numbers of teams that have
        barriers of their own.
        """
        if one.address is None or two.address is None or not isinstance(one.size, int) or not isinstance(two.size, int):
            return distances
        try:
            mine, table = by_thread(self._known, one.address.z3)
            theirs, table_ = by_thread(self._known, two.address.z3)
            teams = [evaluate(team, self._known.all_threads()) for team in ordered]
        except NotEnumerable:
            return distances
        between = _between(table, self._allowed(one), table_, self._allowed(two), same_thread, teams)
        differences = self._differences(mine, theirs, together, when) if between is not None else None
        if between is None or differences is None:
            return distances
        near: set[int] = set()
        tables = [(part, numbers) for part in parts if (numbers := self._enumerated(part)) is not None]
        for shared in differences:
            met = {at for at in distances if _any_within(between, at - shared - one.size, at - shared + two.size)}
            if not met - near or self._is_excluded(mine, theirs, shared, together, when):
                continue
            for part, numbers in tables:  # where only threads of one team meet, the barriers of their team may exclude it
                others = _between(table, self._allowed(one), table_, self._allowed(two), same_thread, [*teams, numbers])
                if others is None or any(_any_within(others, at - shared - one.size, at - shared + two.size) for at in met):
                    continue
                within = [*together, part == self._other.term(part)]
                if self._is_excluded(mine, theirs, shared, within, (*when, "in one team", part.get_id())):
                    break
            else:
                near |= met
        return near

    def apart(
        self,
        one: Access,
        two: Access,
        distance: int,
        together: Sequence[Condition],
        premises: Sequence[Condition],
        when: tuple[object, ...],
    ) -> bool:
        """True if two accesses, the second so many bytes further, never touch the same byte: wherever they do, both threads have one
        index, and ``premises`` exclude that. ``together`` and ``when`` as for ``meeting``."""
        if one.address is None or two.address is None or not isinstance(one.size, int) or not isinstance(two.size, int):
            return False
        try:
            mine, table = by_thread(self._known, one.address.z3)
            theirs, table_ = by_thread(self._known, two.address.z3)
        except NotEnumerable:
            return False
        differences = self._differences(mine, theirs, together, when) if len(table) ** 2 <= MAX_PAIRS else None
        if differences is None:
            return False
        between = table[:, None] - table_[None, :] - distance
        indices = [value.z3 for value in self._known.thread.values() if not isinstance(value.term, int)]
        same = [index == self._other.term(index) for index in indices]
        for shared in differences:
            meets = (between + shared > -one.size) & (between + shared < two.size)
            if not meets.any():
                continue
            np.fill_diagonal(meets, False)
            never = self._sum(mine) - self._other.term(self._sum(theirs)) != shared
            if meets.any() or not self._known.solver.proves([*premises, *same], never, MILLISECONDS):
                return False
        return True

    def _enumerated(self, part: z3.ArithRef) -> Numbers | None:
        """A number of each thread; None if it depends on more than the thread's index."""
        try:
            return evaluate(part, self._known.all_threads())
        except NotEnumerable:
            return None

    def _allowed(self, access: Access) -> Numbers:
        """The numbers of the threads that conditions on the thread alone let through."""
        symbols = self._known.all_threads()
        allowed = np.ones(self._known.contract.launch.threads, dtype=bool)
        for condition in conjuncts(access.path):
            if isinstance(condition, bool):
                continue
            try:
                allowed &= np.broadcast_to(evaluate(condition, symbols) != 0, len(allowed))
            except NotEnumerable:
                continue
        return np.nonzero(allowed)[0]

    def _differences(
        self, mine: Mapping[Monomial, int], theirs: Mapping[Monomial, int], together: Sequence[Condition], when: tuple[object, ...]
    ) -> Collection[int] | None:
        """The numbers that the first thread's shared part less the other's may be; None if they are not few."""
        if mine == theirs and all(self._other.term(term).eq(term) for term in self._terms(mine)):
            return [0]
        values, values_ = _values(mine), _values(theirs)
        if values is not None and values_ is not None:
            return {a - b for a in values for b in values_}
        return [0] if mine == theirs and self._proves(mine, theirs, 0, True, together, when) else None

    def _is_excluded(
        self,
        mine: Mapping[Monomial, int],
        theirs: Mapping[Monomial, int],
        difference: int,
        together: Sequence[Condition],
        when: tuple[object, ...],
    ) -> bool:
        """True if the shared parts never differ by a number."""
        return bool(mine or theirs) and self._proves(mine, theirs, difference, False, together, when)

    def _proves(
        self,
        mine: Mapping[Monomial, int],
        theirs: Mapping[Monomial, int],
        difference: int,
        equal: bool,
        together: Sequence[Condition],
        when: tuple[object, ...],
    ) -> bool:
        key = (when, tuple(sorted(mine.items())), tuple(sorted(theirs.items())), difference, equal)
        if key not in self._excluded:
            same = self._sum(mine) - self._other.term(self._sum(theirs)) == difference
            self._excluded[key] = self._known.solver.proves(together, same if equal else z3.Not(same), MILLISECONDS)
        return self._excluded[key]

    def _terms(self, shared: Mapping[Monomial, int]) -> list[z3.ArithRef]:
        return [self._known.polynomials.term(factor) for monomial in shared for factor in monomial]

    def _sum(self, shared: Mapping[Monomial, int]) -> z3.ArithRef:
        total: z3.ArithRef = z3.IntVal(0)
        for monomial, number in shared.items():
            product: z3.ArithRef = z3.IntVal(number)
            for factor in monomial:
                product = product * self._known.polynomials.term(factor)
            total = total + product
        return total


def _between(
    table: Numbers, threads: Numbers, table_: Numbers, threads_: Numbers, same_thread: bool, teams: Sequence[Numbers] = ()
) -> Numbers | None:
    """All differences of the numbers of two threads, sorted; None if there are too many pairs."""
    if len(threads) * len(threads_) > MAX_PAIRS:
        return None
    apart = table[threads][:, None] - table_[threads_][None, :]
    meeting = np.ones(apart.shape, dtype=bool) if same_thread else threads[:, None] != threads_[None, :]
    for team in teams:
        meeting &= team[threads][:, None] != team[threads_][None, :]
    return np.unique(apart[meeting])


def _any_within(between: Numbers, low: int, high: int) -> bool:
    """True if a sorted number lies strictly between two others."""
    place = int(np.searchsorted(between, low, side="right"))
    return place < len(between) and int(between[place]) < high


def _values(shared: Mapping[Monomial, int]) -> set[int] | None:
    """A few numbers that a shared part is one of; None if they are not known."""
    values = {0}
    for monomial, number in shared.items():
        factor = _few_values(node_with(monomial[0])) if len(monomial) == 1 else None
        if factor is None or len(factor) * len(values) > MAX_VALUES:
            return None
        values = {value + number * each for value in values for each in factor}
    return values


def _few_values(part: Node) -> set[int] | None:
    """A few numbers that a term is one of, whatever its symbols are; None for most terms."""
    if part.kind == z3.Z3_OP_ANUM and z3.is_int_value(part.term):
        return {part.term.as_long()}
    if part.kind == z3.Z3_OP_MOD and z3.is_int_value(part.children[1].term):
        size = part.children[1].term.as_long()
        return set(range(size)) if 0 < size <= MAX_VALUES else None
    if part.kind not in (z3.Z3_OP_ITE, z3.Z3_OP_ADD, z3.Z3_OP_MUL):
        return None
    by_child = [_few_values(child) for child in part.children[1 if part.kind == z3.Z3_OP_ITE else 0 :]]
    total: set[int] = set()
    for place, values in enumerate(by_child):
        if values is None:
            return None
        if part.kind == z3.Z3_OP_ITE:
            total |= values
        elif place:
            total = {a + b if part.kind == z3.Z3_OP_ADD else a * b for a in total for b in values}
        else:
            total = values
    return total if len(total) <= MAX_VALUES else None
