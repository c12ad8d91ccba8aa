"""Questions to z3 with limits of time: whether premises imply a goal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import z3

from gemmgen.proof.terms import Node, node_of
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
        conditions = [node_of(condition) for premise in premises if (condition := as_condition(premise)) is not True]
        wanted = node_of(as_condition(goal))
        linear = [condition for condition in conditions if not condition.nonlinear]
        attempts = [(conditions, milliseconds)]
        if len(linear) < len(conditions):
            attempts.insert(0, (linear, QUICK_MILLISECONDS))
        near = _near(linear, wanted)
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
            solver.add(*[condition.term for condition in chosen], z3.Not(wanted.term))
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


def _near(conditions: Sequence[Node], goal: Node) -> list[Node]:
    """The conditions that speak of nothing but the goal's symbols and those that these are compared with."""
    wanted = goal.symbols
    reach = wanted.union(*[condition.symbols for condition in conditions if len(condition.symbols) <= 3 and condition.symbols & wanted])
    return [condition for condition in conditions if condition.symbols <= reach]
