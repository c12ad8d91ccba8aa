"""Closed forms of a loop's registers: guessed from one iteration on arbitrary values, then proved by induction.

A register may grow by a step that the loop does not change, run around a ring of two to eight places, or grow while a condition
holds that only goes from true to false. All others are forgotten at the start of each iteration. The closed forms of the following
iteration are proved from the body itself, with overflow; a guess that fails is dropped and the rest is proved again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import z3

from gemmgen.emulator.ptx.syntax import written
from gemmgen.proof.control import ControlFlow, Unliftable
from gemmgen.proof.data import DATA, Carried, Data, Recurrence
from gemmgen.proof.knowledge import COUNTERS, Knowledge, Path, State, bits_of
from gemmgen.proof.terms import mentions
from gemmgen.proof.values import UNBOUNDED, Condition, Value, add, conjunction

MAX_ATTEMPTS = 8
MAX_RING = 8
MAX_UNROLLED = 40
"""Iterations of a loop that is run iteration by iteration."""
GUESS_MILLISECONDS = 1000
REGISTER_LIMIT = 1 << 63


@dataclass(frozen=True, eq=False)
class Growth:
    """A step in every iteration."""

    step: z3.ArithRef


@dataclass(frozen=True, eq=False)
class Ring:
    """One place further in every iteration, modulo ``size``."""

    size: int


@dataclass(frozen=True, eq=False)
class GrowthWhile:
    """A step in every iteration in which a condition holds; the condition goes from true to false once."""

    step: z3.ArithRef
    condition: z3.BoolRef


Form = Growth | Ring | GrowthWhile


@dataclass(frozen=True)
class Edge:
    """A way from one basic block to the next."""

    target: int
    path: Path
    state: State


class Runner(Protocol):
    """Runs parts of a kernel."""

    def region(self, blocks: frozenset[int], entry: int, incoming: Sequence[Edge]) -> tuple[list[Edge], list[Edge]]:
        """Runs a region from its entry, without its ways back to it; returns the ways back and the ways out."""

    def merge(self, block: int, edges: Sequence[Edge]) -> tuple[Path, State]:
        """The path and the state where several ways meet."""


def run_loop(known: Knowledge, flow: ControlFlow, runner: Runner, header: int, path: Path, state: State) -> list[Edge]:
    """Runs a loop; returns its ways out, in terms of the iteration in which it is left."""
    blocks = flow.loops[header]
    names = {register.name for block in blocks for instruction in flow.blocks[block] for register in written(instruction)}
    names.update(COUNTERS)
    unchanged = {name: value for name, value in state.items() if name.removeprefix(DATA) not in names or isinstance(value, Value)}
    carried = {name: value for name, value in unchanged.items() if name in names and isinstance(value, Value)}
    counted = any(value.constant is not None for value in carried.values()) or any(isinstance(state.get(name), bool) for name in names)
    unrolled = _unroll(known, flow, runner, header, path, state) if counted else None
    if unrolled is not None:
        return unrolled
    loop = _Loop(known, flow, runner, header, path, unchanged, carried)
    loop.data = {name: value for name, value in state.items() if name not in unchanged and not isinstance(value, Value | bool | z3.BoolRef)}
    return loop.run()


def _unroll(known: Knowledge, flow: ControlFlow, runner: Runner, header: int, path: Path, state: State) -> list[Edge] | None:
    """Runs a loop iteration by iteration, if each knows whether another follows; None if one does not, or after ``MAX_UNROLLED``."""
    marks = known.lifted.marks()
    for _ in range(MAX_UNROLLED):
        back, out = runner.region(flow.loops[header], header, [Edge(header, path, dict(state))])
        if not back:
            return out
        if out:
            break
        path, state = (back[0].path, back[0].state) if len(back) == 1 else runner.merge(header, back)
    known.lifted.forget_since(marks)
    return None


class _Loop:
    """One loop at one place, for the facts that hold before it."""

    def __init__(
        self, known: Knowledge, flow: ControlFlow, runner: Runner, header: int, path: Path, state: State, carried: Mapping[str, Value]
    ) -> None:
        self.known, self.runner, self.header, self.path, self.state, self.carried = known, runner, header, path, state, carried
        self.blocks = flow.loops[header]
        self.first = flow.blocks[header][0]
        statements = (instruction for block in self.blocks for instruction in flow.blocks[block])
        self.bits = {register.name: bits_of(register.type) for instruction in statements for register in written(instruction)}
        self.start = {name: z3.Int(f"{name} at the start of an iteration") for name in carried}
        self.moved: set[str] = set()
        """Addresses that may point into another array after an iteration."""
        self.data: dict[str, Data] = {}
        """The data that iterations change, before the loop."""

    def run(self) -> list[Edge]:
        forms, latch = self._guess()
        if any(_steps_by_blocks(name, form) for name, form in forms.items()) and (left := self._single_iteration()) is not None:
            return left
        sides: list[z3.BoolRef] | None = None
        for _ in range(MAX_ATTEMPTS):
            outside = len(self.known.private)
            forms = self._of_known(forms)
            iteration = self.known.symbol("iteration", 0).z3
            counts = {form: self.known.symbol("taken", 0).z3 for form in forms.values() if isinstance(form, GrowthWhile)}
            values = {name: self._closed(name, forms.get(name), iteration, counts) for name in self.carried}
            substitution = [(self.start[name], values[name].z3) for name in self.carried]
            if sides is None:
                sides = self._sides(latch, forms)
            sides = [side for side in sides if not mentions(side, self._unknown(forms))]
            invariants = [z3.substitute(side, *substitution) for side in sides]
            previous = self._previous(latch, forms, values, substitution, iteration)
            invariants += [] if previous is None else [previous]
            conditions = {form: z3.substitute(form.condition, *substitution) for form in counts}
            for form, condition in conditions.items():
                if mentions(condition, counts.values()):
                    raise Unliftable(None, "a loop's step depends on how often it was taken")
                self.known.taken[counts[form].get_id()] = (iteration, condition)
                before = z3.substitute(condition, (iteration, iteration - 1))
                invariants += [counts[form] <= iteration, z3.Implies(z3.Or(iteration == 0, before), counts[form] == iteration)]
            edges = self._attempt(forms, values, invariants, conditions, counts, iteration, sides, substitution, previous)
            if isinstance(edges, _Failed):
                self.moved |= edges.moved
                forms = {name: form for name, form in forms.items() if name not in edges.forms}
                sides = [side for side in sides if not any(side.eq(wrong) for wrong in edges.sides)]
                if edges.latch and not (edges.forms or edges.sides or edges.moved):
                    latch = z3.BoolVal(True)
                continue
            self.known.changing += self.known.private[outside:]
            return edges
        raise Unliftable(self.first, "no invariant of this loop was found")

    def _unknown(self, forms: Mapping[str, Form]) -> list[z3.ArithRef]:
        """Registers without a form at the start of an iteration. What holds for their content there says nothing of the next iteration."""
        return [start for name, start in self.start.items() if name not in forms]

    def _of_known(self, forms: Mapping[str, Form]) -> dict[str, Form]:
        """The forms whose conditions depend on registers with a form alone."""
        known = dict(forms)
        while True:
            unknown = self._unknown(known)
            lost = [name for name, form in known.items() if isinstance(form, GrowthWhile) and mentions(form.condition, unknown)]
            if not lost:
                return known
            for name in lost:
                del known[name]

    def _single_iteration(self) -> list[Edge] | None:
        """The ways out, if no thread comes to a second iteration: a loop over the tiles of as many blocks; None if some may."""
        marks = self.known.lifted.marks()
        start: State = {**self.state, **self.carried, **self.data}
        back, out = self.runner.region(self.blocks, self.header, [Edge(self.header, self.path, start)])
        if all(self.known.proves(edge.path, False) for edge in back):
            return out
        self.known.lifted.forget_since(marks)
        return None

    def _guess(self) -> tuple[dict[str, Form], z3.BoolRef]:
        """Closed forms that one iteration from arbitrary values suggests, and the condition of a further iteration."""
        known = self.known
        before = known.guessing
        known.guessing = True
        start: State = dict(self.state)
        start.update({name: Value(self.start[name], base=value.base) for name, value in self.carried.items()})
        back, _ = self.runner.region(self.blocks, self.header, [Edge(self.header, self.path, start)])
        known.guessing = before
        if not back:
            return {}, z3.BoolVal(False)
        path, after = _joined(self.runner, self.header, back)
        forms: dict[str, Form] = {}
        for _ in range(2):  # registers that follow others are recognised once those are
            for name in self.carried:
                value = after.get(name)
                if name not in forms and isinstance(value, Value) and value.base == self.carried[name].base:
                    form = self._form(name, value, path, forms)
                    if form is not None:
                        forms[name] = form
        return forms, conjunction(path[len(self.path) :])

    def _form(self, name: str, after: Value, path: Path, forms: Mapping[str, Form]) -> Form | None:
        known, before, initial = self.known, self.start[name], self.carried[name]
        difference = z3.simplify(after.z3 - before)
        starts = list(self.start.values())
        if not mentions(difference, starts):
            return Growth(difference)
        for condition in _conditions(difference):
            for holds, taken in ((True, condition), (False, z3.Not(condition))):
                step = z3.simplify(z3.substitute(difference, (condition, z3.BoolVal(holds))))
                rest = z3.simplify(z3.substitute(difference, (condition, z3.BoolVal(not holds))))
                if mentions(step, starts):
                    continue
                if known.solver.proves([*known.facts, *path], taken, GUESS_MILLISECONDS):
                    return Growth(step)
                if z3.is_int_value(rest) and rest.as_long() == 0 and not mentions(taken, [before]):
                    return GrowthWhile(step, taken)
        for size in range(2, MAX_RING + 1):
            if initial.low < 0 or initial.high >= size or not mentions(after.z3, [before]):
                continue
            inside = [*known.facts, *path, before >= 0, before < size]
            if known.solver.proves(inside, after.z3 == (before + 1) % size, GUESS_MILLISECONDS):
                return Ring(size)
        for other, form in forms.items():  # the value that another register had an iteration ago
            possible = isinstance(form, Ring) and initial.low >= 0 and initial.high < form.size and mentions(after.z3, [self.start[other]])
            if possible and known.solver.proves([*known.facts, *path], after.z3 == self.start[other], GUESS_MILLISECONDS):
                return form
        return None

    def _closed(self, name: str, form: Form | None, iteration: z3.ArithRef, counts: Mapping[GrowthWhile, z3.ArithRef]) -> Value:
        """The register at the start of an iteration."""
        initial = self.carried[name]
        if form is None:
            value = self.known.anything(self.bits.get(name, 32), None if name in self.moved else initial.base)
            if value.low <= initial.low and initial.high <= value.high:
                self.known.at_start.append((self.header, value.z3, initial.z3))
            return value
        if isinstance(form, Ring):
            return Value((initial.z3 + iteration) % form.size, 0, form.size - 1)
        times = counts[form] if isinstance(form, GrowthWhile) else iteration
        if z3.is_int_value(form.step):
            step = form.step.as_long()
            if not step:
                return initial
            zeros = (step & -step).bit_length() - 1
            grown = Value(times * step, 0 if step > 0 else -UNBOUNDED, UNBOUNDED if step > 0 else 0, zeros)
        else:
            grown = Value(times * form.step)
        total = add(initial, grown)
        assert total is not None
        return total

    def _sides(self, latch: z3.BoolRef, forms: Mapping[str, Form]) -> list[z3.BoolRef]:
        """Sides of the limits that the way back compares counters with: an inequality says less than a counter keeps."""
        facts: list[z3.BoolRef] = []
        for a, b in _compared(latch):
            for name, start in self.start.items():
                form = forms.get(name)
                if isinstance(form, Growth) and z3.is_int_value(form.step) and mentions(a - b, [start]):
                    # The way back compares the value after the step; at the start of an iteration it is a step behind.
                    at_start = z3.simplify(z3.substitute(a - b, (start, start - form.step)))
                    facts += [at_start > 0, at_start < 0, at_start >= 0, at_start <= 0]
        return facts

    def _previous(
        self,
        latch: z3.BoolRef,
        forms: Mapping[str, Form],
        values: Mapping[str, Value],
        substitution: Sequence[tuple[z3.ArithRef, z3.ArithRef]],
        iteration: z3.ArithRef,
    ) -> z3.BoolRef | None:
        """The first iteration, or the condition to continue held one iteration ago; None if it depends on values no longer known."""
        there = z3.substitute(latch, *substitution)
        if z3.is_true(z3.simplify(there)):
            return None
        if any(mentions(there, [values[name].z3]) for name in self.carried if name not in forms):
            return None
        return z3.Or(iteration == 0, z3.substitute(there, (iteration, iteration - 1)))

    def _attempt(
        self,
        forms: Mapping[str, Form],
        values: Mapping[str, Value],
        invariants: Sequence[z3.BoolRef],
        conditions: Mapping[GrowthWhile, z3.BoolRef],
        counts: Mapping[GrowthWhile, z3.ArithRef],
        iteration: z3.ArithRef,
        sides: Sequence[z3.BoolRef],
        substitution: Sequence[tuple[z3.ArithRef, z3.ArithRef]],
        previous: z3.BoolRef | None,
    ) -> list[Edge] | _Failed:
        known = self.known
        lifted = known.lifted
        marks, symbols = lifted.marks(), len(known.private)
        known.iterations.append(iteration)
        known.finished.append(iteration)
        known.loops[iteration.get_id()] = self.header
        start_path = (*self.path, *invariants)
        begin: State = {**self.state, **values, **{name: Carried(iteration, name) for name in self.data}}
        back, out = self.runner.region(self.blocks, self.header, [Edge(self.header, start_path, begin)])
        known.iterations.pop()
        known.recurrences[iteration.get_id()] = Recurrence(
            self.header, tuple(known.iterations), self.path, start_path, (False,), self.data, {}
        )
        if not back:
            # A single iteration needs no invariants, and none was proved.
            if not sides and previous is None:
                return out
            lifted.forget_since(marks)
            return _Failed(set(), list(sides), previous is not None, set())
        path, after = _joined(self.runner, self.header, back)
        failed = _Failed(set(), [], False, set())
        for name, before in values.items():
            value = after.get(name)
            if name not in forms and before.base is not None and (not isinstance(value, Value) or value.base != before.base):
                failed.moved.add(name)
        for name, form in forms.items():
            value = after.get(name)
            if not isinstance(value, Value) or value.base != self.carried[name].base:
                failed.forms.add(name)
                continue
            extra = dict(counts)
            if isinstance(form, GrowthWhile):
                now = conditions[form]
                extra[form] = counts[form] + z3.If(now, 1, 0)
                if not known.proves([*path, now], counts[form] == iteration):
                    failed.forms.add(name)
                    continue
            wanted = self._closed(name, form, iteration + 1, extra)
            if not known.proves(path, value.z3 == wanted.z3):
                failed.forms.add(name)
        for side in sides:
            here = z3.substitute(side, *substitution)
            first, following = (z3.substitute(here, (iteration, at)) for at in (z3.IntVal(0), iteration + 1))
            if not known.proves(path, following) or not known.proves(self.path, first):
                failed.sides.append(side)
        if previous is not None and not known.proves(path, z3.substitute(previous, (iteration, iteration + 1))):
            failed.latch = True
        if failed:
            lifted.forget_since(marks)
            return failed
        changed = {name: value for name, value in after.items() if name in self.data and not isinstance(value, Value | bool | z3.BoolRef)}
        known.recurrences[iteration.get_id()] = Recurrence(
            self.header, tuple(known.iterations), self.path, start_path, path, self.data, changed
        )
        if not known.guessing and not self._ends(forms, values, path):
            lifted.unbounded_loops.append(self.first)
        start = len(self.path) + len(invariants)
        unknown = [each for each in known.private[symbols:] if not each.eq(iteration)] + [*counts.values()]
        bounds = [
            z3.substitute(side, *substitution) for side in sides
        ]  # of counters; an inequality alone says nothing of earlier iterations
        again = conjunction([*path[start:], *[bound for bound in bounds if not mentions(bound, unknown)]])
        if not mentions(again, unknown):
            self._reached_waits(again, iteration, start, unknown)
        return out

    def _reached_waits(self, again: z3.BoolRef, iteration: z3.ArithRef, start: int, unknown: Sequence[z3.ExprRef]) -> None:
        """Notes when a thread comes to the waits of one iteration: it enters the loop, continued an iteration ago, and goes their way now.

        The condition under which an iteration continues must hold in all earlier iterations if it holds in one.
        """
        known = self.known
        waits = known.lifted.waits
        mine = [place for place, wait in enumerate(waits) if wait.iteration is not None and wait.iteration.eq(iteration)]
        later = z3.substitute(again, (iteration, iteration + 1))
        if mine and known.proves((iteration >= 0, later), again):
            entered = conjunction([*self.path, z3.Or(iteration == 0, z3.substitute(again, (iteration, iteration - 1)))])
            for place in mine:
                inside = conjunction(waits[place].path[start:])
                if not mentions(inside, unknown):
                    waits[place] = replace(waits[place], reached=z3.And(entered, inside))

    def _ends(self, forms: Mapping[str, Form], values: Mapping[str, Value], path: Path) -> bool:
        """True if some register that grows by a step other than 0 is bounded on the way back: the number of iterations is, then, too."""
        for name, form in forms.items():
            if not isinstance(form, Growth) or name in COUNTERS:
                continue
            nonzero = self.known.proves(path, form.step != 0)
            value = values[name].z3
            if nonzero and self.known.proves(path, z3.And(value > -REGISTER_LIMIT, value < REGISTER_LIMIT)):
                return True
        return False


def _steps_by_blocks(name: str, form: Form) -> bool:
    """True for a number, not an address, that grows by a step that depends on the problem."""
    return name.startswith("%r") and not name.startswith("%rd") and isinstance(form, Growth) and not z3.is_int_value(form.step)


@dataclass
class _Failed:
    """Guesses that were not proved."""

    forms: set[str]
    sides: list[z3.BoolRef]
    latch: bool
    moved: set[str]

    def __bool__(self) -> bool:
        return bool(self.forms or self.sides or self.latch or self.moved)


def _joined(runner: Runner, header: int, back: Sequence[Edge]) -> tuple[tuple[Condition, ...], State]:
    if len(back) == 1:
        return back[0].path, back[0].state
    path, state = runner.merge(header, back)
    return (*path, z3.Or(*[conjunction(edge.path) for edge in back])), state


def _conditions(term: z3.ExprRef) -> list[z3.BoolRef]:
    """The conditions of all choices in a term, each once."""
    conditions: dict[int, z3.BoolRef] = {}
    seen: set[int] = set()
    pending: list[z3.ExprRef] = [term]
    while pending:
        part = pending.pop()
        if part.get_id() in seen:
            continue
        seen.add(part.get_id())
        children = part.children()
        if part.decl().kind() == z3.Z3_OP_ITE:
            conditions.setdefault(children[0].get_id(), children[0])
        pending += children
    return list(conditions.values())


def _compared(condition: z3.BoolRef) -> Iterable[tuple[z3.ArithRef, z3.ArithRef]]:
    """Pairs of integers that a condition compares."""
    pending: list[z3.ExprRef] = [condition]
    while pending:
        part = pending.pop()
        if z3.is_and(part) or z3.is_or(part) or z3.is_not(part):
            pending += part.children()
        elif z3.is_eq(part) or z3.is_distinct(part) or z3.is_lt(part) or z3.is_le(part) or z3.is_gt(part) or z3.is_ge(part):
            a, b = part.children()
            if z3.is_int(a):
                yield a, b
