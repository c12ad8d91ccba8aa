"""Questions to z3 with limits of time: whether premises imply a goal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import z3

from gemmgen.proof.values import Condition, as_condition

QUICK_MILLISECONDS = 500
"""Limit of attempts with some of the premises, the nearest and then those without products; their proofs are valid for all premises."""
FULL_MILLISECONDS = 5000
STEPS_A_MILLISECOND = 5000
"""z3's own count of work, about as much as it does in a millisecond: limits that do not depend on the machine's load."""
SLOWEST = 4
"""Limits of time are this many times longer, so that they only matter where the count does not follow the time."""


class OutOfTime(Exception):
    """The time for a kernel is used up."""


@dataclass(frozen=True)
class Answer:
    """An answer of z3: ``proved``, ``refuted`` with a model, or ``unknown`` within the limit."""

    verdict: Literal["proved", "refuted", "unknown"]
    model: z3.ModelRef | None = None


class Solver:
    """Answers questions about one kernel within a number of seconds of its process's time. Raises ``OutOfTime`` after that."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.process_time() + seconds
        self._shapes: dict[int, Shape] = {}
        self._by_object: dict[int, tuple[z3.BoolRef, Shape]] = {}
        self.queries = 0
        self.seconds = 0.0

    def check_time(self) -> None:
        """Raises ``OutOfTime`` where the time is used up."""
        if time.process_time() > self._deadline:
            raise OutOfTime

    def milliseconds_left(self) -> int:
        """Time that is left, for z3's own limit. Raises ``OutOfTime``."""
        self.check_time()
        return max(1, int((self._deadline - time.process_time()) * 1000 * SLOWEST))

    def implies(self, premises: Sequence[Condition], goal: Condition, milliseconds: int = FULL_MILLISECONDS) -> Answer:
        """The answer to the question of whether the premises imply the goal."""
        if goal is True:
            return Answer("proved")
        conditions = [(condition, self._shape_of(condition)) for premise in premises if (condition := as_condition(premise)) is not True]
        wanted = as_condition(goal)
        linear = [item for item in conditions if not item[1].nonlinear]
        attempts = [(conditions, milliseconds)]
        if len(linear) < len(conditions):
            attempts.insert(0, (linear, QUICK_MILLISECONDS))
        near = _near(linear, self._shape_of(wanted))
        if len(near) < len(linear):
            attempts.insert(0, (near, QUICK_MILLISECONDS))
        answer = Answer("unknown")
        for chosen, limit in attempts:
            left = self._deadline - time.process_time()
            if left <= 0:
                raise OutOfTime
            began = time.process_time()
            solver = z3.Solver()
            solver.set("rlimit", limit * STEPS_A_MILLISECOND)
            solver.set("timeout", max(1, min(limit * SLOWEST, int(left * 1000 * SLOWEST))))
            solver.add(*[condition for condition, _ in chosen], z3.Not(wanted))
            result = solver.check()
            self.queries += 1
            self.seconds += time.process_time() - began
            if result == z3.unsat:
                return Answer("proved")
            if chosen is conditions:
                answer = Answer("refuted", solver.model()) if result == z3.sat else Answer("unknown")
        return answer

    def proves(self, premises: Sequence[Condition], goal: Condition, milliseconds: int = FULL_MILLISECONDS) -> bool:
        """True if the premises imply the goal; False also where that is not known."""
        return self.implies(premises, goal, milliseconds).verdict == "proved"

    def _shape_of(self, term: z3.ExprRef) -> Shape:
        known = self._by_object.get(id(term))
        if known is None:  # the object is kept, so that its number is not given to another one
            known = self._by_object[id(term)] = (term, shape_of(term, self._shapes))
        return known[1]


def _near(conditions: Sequence[tuple[z3.BoolRef, Shape]], goal: Shape) -> list[tuple[z3.BoolRef, Shape]]:
    """The conditions that speak of nothing but the goal's symbols and those that these are compared with."""
    wanted = goal.symbols
    reach = wanted.union(*[shape.symbols for _, shape in conditions if len(shape.symbols) <= 3 and shape.symbols & wanted])
    return [item for item in conditions if item[1].symbols <= reach]


@dataclass(frozen=True)
class Shape:
    """The symbols of a term, and whether it multiplies numbers that are not known."""

    term: z3.ExprRef
    """Kept, so that its number is not given to another term."""
    nonlinear: bool
    symbols: frozenset[int]
    """Numbers of the symbols' terms."""


def shape_of(term: z3.ExprRef, known: dict[int, Shape] | None = None) -> Shape:
    """The shape of a term; ``known`` holds those of all terms that were asked for, and of their parts."""
    known = {} if known is None else known
    pending = [term]
    while pending:
        part = pending[-1]
        number = part.get_id()
        if number in known:
            pending.pop()
            continue
        children = part.children()
        shapes = [known.get(child.get_id()) for child in children]
        missing = [child for child, shape in zip(children, shapes, strict=True) if shape is None]
        if missing:
            pending += missing
            continue
        found = [shape for shape in shapes if shape is not None]
        product = z3.is_mul(part) and sum(not z3.is_int_value(child) for child in children) > 1
        if children:
            symbols = frozenset[int]().union(*[shape.symbols for shape in found])
        else:
            is_number = z3.is_int_value(part) or z3.is_true(part) or z3.is_false(part)
            symbols = frozenset() if is_number else frozenset({number})
        known[number] = Shape(part, product or any(shape.nonlinear for shape in found), symbols)
        pending.pop()
    return known[term.get_id()]
