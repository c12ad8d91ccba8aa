"""Answers to questions about integers that need no solver.

``Comparisons`` proves a goal that follows from the ranges of symbols, or from these and one of the premises: ``64 q + t < m`` from
``64 q + t + 3 < m``. ``Samples`` keeps values of the symbols for which a goal once did not hold: if all premises of another question hold
for them as well and its goal does not, then it is not proved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import z3

from gemmgen.proof.polynomials import Monomial, Polynomials
from gemmgen.proof.terms import RELATIONS, Node, compute, node_of, node_with

Form: TypeAlias = "Mapping[Monomial, int]"
"""A sum of monomials."""
Range: TypeAlias = "tuple[int | float, int | float]"
"""The least and the greatest value, which may be infinite."""
Rows: TypeAlias = "tuple[tuple[Form, ...], ...] | None"
"""Sums of which one in each row must be at least 0, for a goal to hold; None for goals of another form."""
ANYTHING: Range = (-math.inf, math.inf)
MAX_SAMPLES = 48
_SIGNS = {z3.Z3_OP_LE: (-1, 0), z3.Z3_OP_LT: (-1, -1), z3.Z3_OP_GE: (1, 0), z3.Z3_OP_GT: (1, -1)}
"""A comparison of a and b as a sum that is at least 0: the factor of a - b, and what is added."""
_OPPOSITE = {z3.Z3_OP_LE: z3.Z3_OP_GT, z3.Z3_OP_LT: z3.Z3_OP_GE, z3.Z3_OP_GE: z3.Z3_OP_LT, z3.Z3_OP_GT: z3.Z3_OP_LE}


@dataclass(frozen=True, eq=False)
class Says:
    """A condition taken apart: all of it holds if the condition does."""

    sums: tuple[Form, ...]
    """Sums that are at least 0."""
    ranges: tuple[tuple[int, Range], ...]
    """Ranges of symbols, by the numbers of their terms."""
    implied: tuple[tuple[Node, Node], ...]
    """Premises and conclusions."""


class Comparisons:
    """Proves comparisons of integers from the ranges of their symbols and at most one premise."""

    def __init__(self) -> None:
        self._polynomials = Polynomials()
        self._says: dict[int, Says] = {}
        self._goals: dict[int, tuple[tuple[Node, Rows], ...]] = {}

    def unproved(self, premises: Sequence[Node], goal: Node) -> list[Node]:
        """The parts of a goal, a conjunction, that do not follow in that way."""
        goals = self._wanted(goal)
        if not any(rows for _, rows in goals):
            return [part for part, rows in goals if rows is None]
        known = [self._said(premise) for premise in premises]
        ranges: dict[int, Range] = {}
        _narrow(ranges, (each for says in known for each in says.ranges))
        sums = [form for says in known for form in says.sums]
        factors: dict[int, Range] = {}
        for says in known:
            for condition, conclusion in says.implied:
                if all(self._holds(rows, (), ranges, factors) for _, rows in self._wanted(condition)):
                    extra = self._said(conclusion)
                    sums += extra.sums
                    _narrow(ranges, extra.ranges)
                    factors.clear()
        return [part for part, rows in goals if not self._holds(rows, sums, ranges, factors)]

    def _holds(self, rows: Rows, sums: Sequence[Form], ranges: Mapping[int, Range], factors: dict[int, Range]) -> bool:
        return rows is not None and all(any(self._follows(form, sums, ranges, factors) for form in row) for row in rows)

    def _follows(self, form: Form, sums: Sequence[Form], ranges: Mapping[int, Range], factors: dict[int, Range]) -> bool:
        open_: list[Monomial] = []
        low: int | float = 0
        for monomial, number in form.items():
            least = self._least(monomial, number, ranges, factors)
            if least == -math.inf:
                open_.append(monomial)
            low += least
        if low >= 0:
            return True
        for premise in sums:
            if premise.keys() & form.keys() - {()} and all(premise.get(monomial) == form[monomial] for monomial in open_):
                difference = dict(form)
                for monomial, number in premise.items():
                    difference[monomial] = difference.get(monomial, 0) - number
                if self._at_least_0(difference, ranges, factors):
                    return True
        return False

    def _at_least_0(self, form: Form, ranges: Mapping[int, Range], factors: dict[int, Range]) -> bool:
        return sum(self._least(monomial, number, ranges, factors) for monomial, number in form.items()) >= 0

    def _least(self, monomial: Monomial, number: int, ranges: Mapping[int, Range], factors: dict[int, Range]) -> int | float:
        if not number:
            return 0
        bounds: Range = (number, number)
        for factor in monomial:
            bounds = _product(bounds, self._range(node_with(factor), ranges, factors))
        return bounds[0]

    def _range(self, part: Node, ranges: Mapping[int, Range], factors: dict[int, Range]) -> Range:
        """The values that a term may have."""
        if part.number in ranges:
            return ranges[part.number]
        bounds = factors.get(part.number)
        if bounds is None:
            bounds = factors[part.number] = self._uncached_range(part, ranges, factors)
        return bounds

    def _uncached_range(self, part: Node, ranges: Mapping[int, Range], factors: dict[int, Range]) -> Range:
        if part.kind in (z3.Z3_OP_IDIV, z3.Z3_OP_MOD):
            divisor = part.children[1].term
            if not z3.is_int_value(divisor) or divisor.as_long() <= 0:
                return ANYTHING
            by = divisor.as_long()
            low, high = self._range(part.children[0], ranges, factors)
            low, high = (end if math.isinf(end) else int(end) // by for end in (low, high))
            if part.kind == z3.Z3_OP_IDIV:
                return low, high
            return (0, by - 1)
        if part.kind == z3.Z3_OP_ITE:
            (low, high), (low_, high_) = (self._range(arm, ranges, factors) for arm in part.children[1:])
            return min(low, low_), max(high, high_)
        if part.kind in (z3.Z3_OP_ADD, z3.Z3_OP_SUB, z3.Z3_OP_MUL, z3.Z3_OP_UMINUS, z3.Z3_OP_ANUM):
            term = part.term
            assert isinstance(term, z3.ArithRef)
            form = self._polynomials.of(term)
            if (part.number,) in form:  # too many monomials
                return ANYTHING
            least = sum(self._least(monomial, number, ranges, factors) for monomial, number in form.items())
            most = sum(self._least(monomial, -number, ranges, factors) for monomial, number in form.items())
            return least, -most
        return ANYTHING

    def _said(self, condition: Node) -> Says:
        said = self._says.get(condition.number)
        if said is None:
            sums: list[Form] = []
            ranges: list[tuple[int, Range]] = []
            implied: list[tuple[Node, Node]] = []
            for part, holds in _parts(condition, True):
                if part.kind == z3.Z3_OP_IMPLIES and holds:
                    implied.append((part.children[0], part.children[1]))
                for form in self._compared(part, holds) or ():
                    unknown = [monomial for monomial in form if monomial]
                    if len(unknown) == 1 and len(unknown[0]) == 1:
                        factor, number = form[unknown[0]], -form.get((), 0)
                        bound: Range = (-(-number // factor), math.inf) if factor > 0 else (-math.inf, number // factor)
                        ranges.append((unknown[0][0], bound))
                    sums.append(form)
            said = self._says[condition.number] = Says(tuple(sums), tuple(ranges), tuple(implied))
        return said

    def _wanted(self, goal: Node) -> tuple[tuple[Node, Rows], ...]:
        """The parts of a goal, each with its rows."""
        if goal.number not in self._goals:
            parts = [(part if holds else node_of(z3.Not(part.term)), self._rows(part, holds)) for part, holds in _parts(goal, True)]
            self._goals[goal.number] = tuple(parts)
        return self._goals[goal.number]

    def _rows(self, part: Node, holds: bool) -> Rows:
        ways = [forms for way in _ways(part, holds) if (forms := self._compared(*way)) is not None]
        if len(ways) == 1:
            return () if holds and self._divides(part) else tuple((form,) for form in ways[0])
        row = tuple(forms[0] for forms in ways if len(forms) == 1)
        return (row,) if row else None

    def _divides(self, part: Node) -> bool:
        """True for ``x % c == 0`` where all factors of the sum x are multiples of c."""
        if part.kind != z3.Z3_OP_EQ or part.children[0].kind != z3.Z3_OP_MOD:
            return False
        term, divisor = (child.term for child in part.children[0].children)
        zero = part.children[1].term
        if not (z3.is_int_value(divisor) and z3.is_int_value(zero) and isinstance(term, z3.ArithRef)) or zero.as_long():
            return False
        by = divisor.as_long()
        return by > 0 and all(number % by == 0 for number in self._polynomials.of(term).values())

    def _compared(self, part: Node, holds: bool) -> list[Form] | None:
        """Sums that are all at least 0 if and only if a comparison holds, or does not hold. None for other conditions."""
        kind = part.kind
        if kind != z3.Z3_OP_EQ and kind not in _SIGNS:
            return None
        term = part.children[0].term
        if not isinstance(term, z3.ArithRef) or not term.is_int():
            return None
        if kind == z3.Z3_OP_EQ:
            return [self._sum(part, 1, 0), self._sum(part, -1, 0)] if holds else None
        sign, added = _SIGNS[kind if holds else _OPPOSITE[kind]]
        return [self._sum(part, sign, added)]

    def _sum(self, part: Node, sign: int, added: int) -> Form:
        one, other = (child.term for child in part.children)
        assert isinstance(one, z3.ArithRef)
        assert isinstance(other, z3.ArithRef)
        total = {monomial: sign * number for monomial, number in self._polynomials.of(one).items()}
        for monomial, number in self._polynomials.of(other).items():
            total[monomial] = total.get(monomial, 0) - sign * number
        total[()] = total.get((), 0) + added
        return {monomial: number for monomial, number in total.items() if number}


def _narrow(ranges: dict[int, Range], extra: Iterable[tuple[int, Range]]) -> None:
    for number, (low, high) in extra:
        before = ranges.get(number, ANYTHING)
        ranges[number] = max(before[0], low), min(before[1], high)


def _product(one: Range, other: Range) -> Range:
    corners = [0 if 0 in (a, b) else a * b for a in one for b in other]
    return min(corners), max(corners)


def _parts(condition: Node, holds: bool) -> Iterator[tuple[Node, bool]]:
    """Conditions that all hold, or do not hold, if one does."""
    pending = [(condition, holds)]
    while pending:
        part, holds = pending.pop()
        if part.kind == z3.Z3_OP_NOT:
            pending.append((part.children[0], not holds))
        elif part.kind == (z3.Z3_OP_AND if holds else z3.Z3_OP_OR):
            pending += [(child, holds) for child in part.children]
        else:
            yield part, holds


def _ways(condition: Node, holds: bool) -> Iterator[tuple[Node, bool]]:
    """Conditions of which one is enough."""
    return ((part, not holds_) for part, holds_ in _parts(condition, not holds))


class Samples:
    """Values of symbols for which some premises held and their goal did not."""

    def __init__(self) -> None:
        self._values: list[dict[int, int | None]] = []
        """For each sample, the values of terms by their numbers; None for values that are not known."""
        self._holds: dict[int, tuple[int, int]] = {}
        """By the number of a condition: samples for which it holds, as bits, and how many samples were looked at."""
        self._fails: dict[int, tuple[int, int]] = {}

    def add(self, model: z3.ModelRef, conditions: Sequence[Node]) -> None:
        """Keeps a model of conditions."""
        if len(self._values) == MAX_SAMPLES:
            del self._values[: MAX_SAMPLES // 2]
            self._holds.clear()
            self._fails.clear()
        values: dict[int, int | None] = {}
        for number in frozenset[int]().union(*[condition.symbols for condition in conditions]):
            value = model.eval(node_with(number).term, model_completion=True)
            values[number] = value.as_long() if z3.is_int_value(value) else 1 if z3.is_true(value) else 0 if z3.is_false(value) else None
        self._values.append(values)

    def refute(self, conditions: Sequence[Node], goal: Node) -> bool:
        """True if all conditions hold for some sample, and the goal does not."""
        left = self._bits(goal, self._fails, 0)
        for condition in reversed(conditions):
            if not left:
                return False
            left &= self._bits(condition, self._holds, 1)
        return left != 0

    def _bits(self, condition: Node, known: dict[int, tuple[int, int]], wanted: int) -> int:
        bits, seen = known.get(condition.number, (0, 0))
        for place in range(seen, len(self._values)):
            if compute(condition, self._values[place], _computed) == wanted:
                bits |= 1 << place
        known[condition.number] = bits, len(self._values)
        return bits


def _computed(part: Node, given: Sequence[int | None]) -> int | None:
    """A term's value from those of its children; None if it is not known."""
    kind = part.kind
    if kind == z3.Z3_OP_ANUM:
        return part.term.as_long() if z3.is_int_value(part.term) else None
    if kind == z3.Z3_OP_ITE:
        return None if given[0] is None else given[1] if given[0] else given[2]
    values = [value for value in given if value is not None]
    if kind in (z3.Z3_OP_AND, z3.Z3_OP_OR):
        decides = int(kind == z3.Z3_OP_OR)
        return decides if decides in values else 1 - decides if len(values) == len(given) else None
    if len(values) < len(given):
        return None
    if kind in RELATIONS:
        return int(RELATIONS[kind](values[0], values[1]))
    match kind:
        case z3.Z3_OP_TRUE | z3.Z3_OP_FALSE:
            return int(kind == z3.Z3_OP_TRUE)
        case z3.Z3_OP_ADD:
            return sum(values)
        case z3.Z3_OP_MUL:
            return math.prod(values)
        case z3.Z3_OP_SUB:
            return values[0] - sum(values[1:])
        case z3.Z3_OP_UMINUS:
            return -values[0]
        case z3.Z3_OP_IDIV | z3.Z3_OP_MOD if values[1] > 0:
            return values[0] // values[1] if kind == z3.Z3_OP_IDIV else values[0] % values[1]
        case z3.Z3_OP_DISTINCT | z3.Z3_OP_XOR if len(values) == 2:
            return int(values[0] != values[1])
        case z3.Z3_OP_NOT:
            return 1 - values[0]
        case z3.Z3_OP_IMPLIES:
            return int(not values[0] or bool(values[1]))
    return None
