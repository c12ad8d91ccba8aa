"""Questions to z3 with limits of time: whether premises imply a goal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Literal

import z3

from gemmgen.proof.quick import Comparisons, Samples
from gemmgen.proof.terms import Node, node_of
from gemmgen.proof.values import Condition, as_condition

QUICK_MILLISECONDS = 500
"""Limit of attempts with some of the premises, the nearest and then those without products; their proofs are valid for all premises."""
FULL_MILLISECONDS = 5000
STEPS_A_MILLISECOND = 5000
"""z3's own count of work, about as much as it does in a millisecond: limits that do not depend on the machine's load."""
SLOWEST = 8
"""z3 is also interrupted after so many times a limit's processor time: only where its count does not follow the time."""


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
        self._comparisons, self._samples = Comparisons(), Samples()
        self._enough: dict[int, list[frozenset[int]]] = {}
        """By the number of a goal: premises that were enough for it."""
        self.queries = 0
        self.seconds = 0.0

    def check_time(self) -> None:
        """Raises ``OutOfTime`` where the time is used up."""
        if time.process_time() > self._deadline:
            raise OutOfTime

    def implies(self, premises: Sequence[Condition], goal: Condition, milliseconds: int = FULL_MILLISECONDS) -> Answer:
        """The answer to the question of whether the premises imply the goal."""
        return self._answer(premises, goal, milliseconds, True)

    def proves(
        self, premises: Sequence[Condition], goal: Condition, milliseconds: int = FULL_MILLISECONDS, wide: Sequence[z3.BoolRef] = ()
    ) -> bool:
        """True if the premises imply the goal; False also where that is not known.

        ``wide``: conditions for a first search for a counterexample, which then serves for similar questions as well.
        """
        return self._answer(premises, goal, milliseconds, False, wide).verdict == "proved"

    def _answer(
        self, premises: Sequence[Condition], goal: Condition, milliseconds: int, with_model: bool, wide: Sequence[z3.BoolRef] = ()
    ) -> Answer:
        if goal is True:
            return Answer("proved")
        conditions = [node_of(condition) for premise in premises if (condition := as_condition(premise)) is not True]
        wanted = node_of(as_condition(goal))
        numbers = frozenset(condition.number for condition in conditions)
        contradiction = any(each.kind == z3.Z3_OP_NOT and each.children[0].number in numbers for each in conditions)
        if contradiction or wanted.number in numbers:
            return Answer("proved")
        left = self._comparisons.unproved(conditions, wanted)
        if not left:
            return Answer("proved")
        wanted = left[0] if len(left) == 1 else node_of(z3.And(*[part.term for part in left]))
        if any(enough <= numbers for enough in self._enough.get(wanted.number, ())):
            return Answer("proved")
        if not with_model and self._samples.refute(conditions, wanted):
            return Answer("refuted")
        if wide:
            possible = [node_of(each) for each in wide if self._comparisons.unproved(conditions, node_of(z3.Not(each)))]
            result, solver = self._check([*conditions, *possible], wanted, QUICK_MILLISECONDS, True)
            if result == z3.sat:
                self._samples.add(solver.model(), [*conditions, wanted])
                return Answer("refuted")
        linear = [condition for condition in conditions if not condition.nonlinear]
        attempts = [(conditions, milliseconds)]
        if len(linear) < len(conditions):
            attempts.insert(0, (linear, QUICK_MILLISECONDS))
        near = _near(linear, wanted)
        if wanted.symbols and len(near) < len(linear):
            attempts.insert(0, (near, QUICK_MILLISECONDS))
        for chosen, limit in attempts:
            result, solver = self._check(chosen, wanted, limit, chosen is not conditions)
            if result == z3.unsat:
                self._enough.setdefault(wanted.number, []).append(frozenset(condition.number for condition in chosen))
                return Answer("proved")
        if result == z3.sat:
            model = solver.model()
            self._samples.add(model, [*conditions, wanted])
            return Answer("refuted", model)
        return Answer("unknown")

    def _check(self, conditions: Sequence[Node], goal: Node, milliseconds: int, simple: bool) -> tuple[z3.CheckSatResult, z3.Solver]:
        self.check_time()
        began = time.process_time()
        solver = z3.SimpleSolver() if simple else z3.Solver()
        solver.add(*[condition.term for condition in conditions], z3.Not(goal.term))
        result = limited_check(solver, milliseconds)
        self.queries += 1
        self.seconds += time.process_time() - began
        return result, solver


def limited_check(solver: z3.Solver, milliseconds: int) -> z3.CheckSatResult:
    """z3's answer within so many milliseconds' steps; ``unknown`` where they are not enough."""
    solver.set("rlimit", milliseconds * STEPS_A_MILLISECOND)
    done, end = Event(), time.process_time() + milliseconds * SLOWEST / 1000

    def watch() -> None:
        while not done.wait(max(0.01, end - time.process_time())):
            if time.process_time() >= end:
                solver.ctx.interrupt()
                return

    watching = Thread(target=watch, daemon=True)
    watching.start()
    try:
        return solver.check()
    finally:
        done.set()
        watching.join()


def _near(conditions: Sequence[Node], goal: Node) -> list[Node]:
    """The conditions that speak of nothing but the goal's symbols and those that these are compared with."""
    wanted = goal.symbols
    reach = wanted.union(*[condition.symbols for condition in conditions if len(condition.symbols) <= 3 and condition.symbols & wanted])
    return [condition for condition in conditions if condition.symbols <= reach]
