"""Answers without z3 agree with z3."""

import random
import time
from typing import TYPE_CHECKING

import pytest

z3 = pytest.importorskip("z3")

from gemmgen.proof import solver as solver_module  # noqa: E402
from gemmgen.proof.quick import Comparisons, Samples  # noqa: E402
from gemmgen.proof.terms import node_of  # noqa: E402

if TYPE_CHECKING:
    from z3 import ArithRef, BoolRef


def symbols() -> list["ArithRef"]:
    """Four integers of z3's present context, which each proof replaces."""
    return [z3.Int(name) for name in "abcd"]


def term(source: random.Random) -> "ArithRef":
    """A sum of multiples of symbols, of their quotients, remainders and choices between them."""
    total = z3.IntVal(source.randrange(-9, 10))
    for _ in range(source.randrange(1, 4)):
        part, by = source.choice(symbols()), source.choice((2, 4, 8))
        other = source.choice(symbols())
        part = source.choice((part, part, part / by, part % by, z3.If(part < other, part, z3.IntVal(by)), part * other))
        total = total + source.choice((-4, -1, 1, 1, 4, 8)) * part
    return total


def condition(source: random.Random, depth: int = 2) -> "BoolRef":
    kind = source.randrange(12 if depth else 5)
    if kind < 5:
        a, b = term(source), source.choice((z3.IntVal(source.randrange(20)), source.choice(symbols()), term(source)))
        return (a < b, a <= b, a > b, a >= b, a == b)[kind]
    if kind == 5:
        return z3.Not(condition(source, depth - 1))
    if kind == 6:
        return term(source) % 4 == 0
    if kind == 7:
        return 4 * term(source) % source.choice((2, 4, 8)) == 0
    one, other = condition(source, depth - 1), condition(source, depth - 1)
    return (z3.And(one, other), z3.Or(one, other), z3.Implies(one, other), z3.And(one, z3.Not(other)))[kind - 8]


def weakened(source: random.Random, premise: "BoolRef") -> "BoolRef":
    """A goal that one premise may imply."""
    a, b = term(source), source.choice(symbols())
    return z3.substitute(premise, (z3.IntVal(4), z3.IntVal(3))) if source.random() < 0.5 else z3.Or(premise, a < b)


def test_goals_that_follow_are_implied() -> None:
    """A goal without parts left is never false where its premises hold; each conclusion is checked by z3."""
    source, comparisons, proved = random.Random(7), Comparisons(), 0
    for _ in range(260):
        premises = [bound for symbol in symbols()[:3] for bound in (symbol >= source.choice((0, 1)), symbol < source.choice((8, 32, 100)))]
        premises += [condition(source) for _ in range(source.randrange(3))]
        base = source.choice(premises)
        a, b = base.arg(0), base.arg(1) if base.num_args() > 1 else base.arg(0)
        shifted = a + source.randrange(-3, 4) <= b + source.randrange(5) if z3.is_arith(a) and z3.is_arith(b) else weakened(source, base)
        goal = source.choice((condition(source), weakened(source, base), shifted))
        left = comparisons.unproved([node_of(premise) for premise in premises], node_of(goal))
        if not left:
            proved += 1
            solver = z3.SimpleSolver()
            solver.set("rlimit", 40_000)
            solver.add(*premises, z3.Not(goal))
            assert solver.check() != z3.sat, (premises, goal)
    assert proved > 40


def test_parts_that_are_left_imply_the_goal() -> None:
    comparisons, (a, b, c, _) = Comparisons(), symbols()
    premises = [a >= 0, a < 32, b * 32 + a < c]
    goal = z3.And(a / 4 < 8, b * 32 + a + 1 <= c, b >= 0, (8 * b + 16) % 8 == 0)
    assert [part.term for part in comparisons.unproved([node_of(premise) for premise in premises], node_of(goal))] == [b >= 0]


@pytest.mark.parametrize(
    "goal",
    [
        lambda a, b, c: b * 32 + a + 2 <= c,
        lambda a, b, c: b * 32 + a < c - 1,
        lambda a, b, c: a / 4 < 7,
        lambda a, b, c: (4 * b + 16) % 8 == 0,
        lambda a, b, c: (8 * b + 4) % 8 == 0,
        lambda a, b, c: z3.Or(a < 31, a > 31),
        lambda a, b, c: b == 0,
        lambda a, b, c: a % 4 < 3,
    ],
)
def test_goals_that_are_not_implied_are_left(goal: object) -> None:
    a, b, c, _ = symbols()
    premises = [node_of(premise) for premise in (a >= 0, a < 32, b >= 0, b * 32 + a < c)]
    assert callable(goal)
    assert Comparisons().unproved(premises, node_of(goal(a, b, c)))


def test_samples_are_counterexamples() -> None:
    """Values that refute a goal fulfil the premises and not the goal."""
    source, samples, refuted = random.Random(3), Samples(), 0
    for _ in range(100):
        premises = [symbol >= 0 for symbol in symbols()] + [condition(source, 1) for _ in range(2)]
        goal = condition(source, 1)
        nodes = [node_of(premise) for premise in premises]
        found = samples.refute(nodes, node_of(goal))
        solver = z3.SimpleSolver()
        solver.set("rlimit", 40_000)
        solver.add(*premises, z3.Not(goal))
        result = solver.check()
        if found:
            refuted += 1
            assert result != z3.unsat
        elif result == z3.sat:
            samples.add(solver.model(), [*nodes, node_of(goal)])
    assert refuted > 20


def test_processor_time_ends_questions_without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_module, "STEPS_A_MILLISECOND", 1_000_000)
    a, b, c, _ = symbols()
    question = z3.Solver()
    question.add(a * a * a + b * b * b + c * c * c == 114, a > 100_000)
    began = time.process_time()
    assert solver_module.limited_check(question, 50) == z3.unknown
    assert time.process_time() - began < 3
