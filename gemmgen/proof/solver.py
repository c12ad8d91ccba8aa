"""Questions to z3 with limits of time: whether premises imply a goal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import z3

from gemmgen.proof.contract import _is_product
from gemmgen.proof.values import Condition, as_condition

QUICK_MILLISECONDS = 500
"""Limit of attempts with some of the premises, the nearest and then those without products: what they prove, all prove."""
FULL_MILLISECONDS = 5000


class OutOfTime(Exception):
    """The time for a kernel is used up."""


@dataclass(frozen=True)
class Answer:
    """An answer of z3: ``proved``, ``refuted`` with a model, or ``unknown`` within the limit."""

    verdict: Literal["proved", "refuted", "unknown"]
    model: z3.ModelRef | None = None


class Solver:
    """Answers questions about one kernel within a number of seconds. Raises ``OutOfTime`` after that."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._shapes: dict[int, _Shape] = {}
        self.queries = 0
        self.seconds = 0.0

    def implies(self, premises: Sequence[Condition], goal: Condition, milliseconds: int = FULL_MILLISECONDS) -> Answer:
        """The answer to the question of whether the premises imply the goal."""
        if goal is True:
            return Answer("proved")
        conditions = [as_condition(premise) for premise in premises if premise is not True]
        linear = [condition for condition in conditions if not self._facts_of(condition).nonlinear]
        attempts = [(conditions, milliseconds)]
        if len(linear) < len(conditions):
            attempts.insert(0, (linear, QUICK_MILLISECONDS))
        near = self._near(linear, as_condition(goal))
        if len(near) < len(linear):
            attempts.insert(0, (near, QUICK_MILLISECONDS))
        answer = Answer("unknown")
        for chosen, limit in attempts:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise OutOfTime
            began = time.monotonic()
            solver = z3.Solver()
            solver.set("timeout", max(1, min(limit, int(left * 1000))))
            solver.add(*chosen, z3.Not(as_condition(goal)))
            result = solver.check()
            self.queries += 1
            self.seconds += time.monotonic() - began
            if result == z3.unsat:
                return Answer("proved")
            if chosen is conditions:
                answer = Answer("refuted", solver.model()) if result == z3.sat else Answer("unknown")
        return answer

    def proves(self, premises: Sequence[Condition], goal: Condition, milliseconds: int = FULL_MILLISECONDS) -> bool:
        """True if the premises imply the goal; False also where that is not known."""
        return self.implies(premises, goal, milliseconds).verdict == "proved"

    def _near(self, conditions: Sequence[z3.BoolRef], goal: z3.BoolRef) -> list[z3.BoolRef]:
        """The conditions that speak of nothing but the goal's symbols and those that these are compared with."""
        wanted = self._facts_of(goal).symbols
        direct = [condition for condition in conditions if self._facts_of(condition).symbols & wanted]
        reach = wanted.union(*[self._facts_of(condition).symbols for condition in direct if len(self._facts_of(condition).symbols) <= 3])
        return [condition for condition in conditions if self._facts_of(condition).symbols <= reach]

    def _facts_of(self, term: z3.ExprRef) -> _Shape:
        known = self._shapes.get(term.get_id())
        if known is None:
            known = self._shapes[term.get_id()] = _Shape(term, _is_product(term), frozenset(_symbols(term)))
        return known


@dataclass(frozen=True)
class _Shape:
    term: z3.ExprRef
    """Kept, so that its number is not given to another term."""
    nonlinear: bool
    symbols: frozenset[int]


def _symbols(term: z3.ExprRef) -> Iterator[int]:
    """Numbers of the symbols in a term."""
    seen: set[int] = set()
    pending = [term]
    while pending:
        part = pending.pop()
        if part.get_id() in seen:
            continue
        seen.add(part.get_id())
        children = part.children()
        if not children and not z3.is_int_value(part) and not z3.is_true(part) and not z3.is_false(part):
            yield part.get_id()
        pending += children
