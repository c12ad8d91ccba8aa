"""Registers that may be read before they are written, found by a definite-assignment analysis of the control flow.

If a register is written only where a predicate holds, the analysis keeps this fact from branch to branch until the predicate changes.
``mov`` copies a register without using it: the copy counts as written if its source does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from gemmgen.emulator.ptx.syntax import Function, Instruction, Register, registers_of, sources_of, written
from gemmgen.proof.control import LEAVES, ControlFlow
from gemmgen.proof.members import constants_of, number_of
from gemmgen.proof.slicing import negated_register


@dataclass(frozen=True)
class _Facts:
    """Facts that hold at one statement on every path to it. A predicate is the name of a register, with ``!`` in front if it is negated."""

    always: frozenset[str] = frozenset()
    """Registers that were written."""
    under: frozenset[tuple[str, str]] = frozenset()
    """Registers, each with a predicate: if it holds, the register was written."""
    false: frozenset[str] = frozenset()
    """Predicates that do not hold here."""

    def has(self, name: str, guard: str) -> bool:
        """True if a register was written wherever a predicate holds."""
        return name in self.always or bool(guard and ((name, guard) in self.under or guard in self.false))

    def where(self, guard: str) -> _Facts:
        """The facts on a path that is taken if a predicate holds."""
        return _Facts(self.always | {name for name, other in self.under if other == guard}, self.under, self.false | {_opposite(guard)})

    def meet(self, other: _Facts, live: Container[str]) -> _Facts:
        """The facts where two paths meet. ``live`` holds the registers that are read later; predicates of others are dropped."""
        both = {pair for pair in self.under if other.has(*pair)} | {pair for pair in other.under if self.has(*pair)}
        for one, two in ((self, other), (other, self)):
            # A register that only one path has written was written if a predicate holds that is false on the other path.
            alone = [name for name in one.always - two.always if name in live]
            both |= {(name, guard) for guard in two.false if guard.removeprefix("!") in live for name in alone}
        return _Facts(self.always & other.always, frozenset(both), self.false & other.false)


def read_unwritten(function: Function, flow: ControlFlow) -> Iterator[tuple[Instruction, Register]]:
    """Statements that may use an unwritten register, each with that register."""
    entry, never = _at_entry(flow), _never(function)
    for block in sorted(flow.order):
        if block == flow.end:
            continue
        facts = entry[block]
        assert facts is not None
        passing = _Passing(facts)
        for instruction in flow.blocks[block]:
            for register, guard in _reads(instruction, never):
                if not passing.has(register.name, guard):
                    yield instruction, register
            passing.after(instruction)


def _at_entry(flow: ControlFlow) -> dict[int, _Facts | None]:
    """Facts at the start of each basic block; None if no path to it was followed yet."""
    live = _live(flow)
    entry: dict[int, _Facts | None] = dict.fromkeys(range(flow.end + 1))
    entry[0] = _Facts()
    order = sorted((block for block in flow.order if block != flow.end), key=lambda number: flow.order[number])
    pending = {0}
    while pending:
        block = next(number for number in order if number in pending)
        pending.remove(block)
        facts = entry[block]
        assert facts is not None
        passing = _Passing(facts)
        for instruction in flow.blocks[block]:
            passing.after(instruction)
        for target, here in _leads(flow, block, passing.facts()):
            before = entry[target]
            now = here if before is None else before.meet(here, live[target])
            if now != before:
                entry[target] = now
                if target != flow.end:
                    pending.add(target)
    return entry


@dataclass(frozen=True)
class _Names:
    """A set of registers as the bits of a number."""

    bits: int
    places: Mapping[str, int]

    def __contains__(self, name: object) -> bool:
        return name in self.places and bool(self.bits >> self.places[str(name)] & 1)


def _live(flow: ControlFlow) -> Mapping[int, Container[str]]:
    """Registers that may be read after the start of each basic block before they are written."""
    places: dict[str, int] = {}

    def bit(name: str) -> int:
        return 1 << places.setdefault(name, len(places))

    uses, kills = dict.fromkeys(flow.order, 0), dict.fromkeys(flow.order, 0)
    for block in flow.order:
        for instruction in flow.blocks[block] if block != flow.end else ():
            read = {register.name for operand in instruction.operands for register in registers_of(operand)}
            targets = {register.name for register in written(instruction)}
            read |= set() if instruction.guard is None else {instruction.guard.name, *targets}
            for name in read:
                uses[block] |= bit(name) & ~kills[block]
            for name in targets if instruction.guard is None else ():
                kills[block] |= bit(name)
    live = dict(uses)
    order = sorted(flow.order, key=lambda number: -flow.order[number])
    changed = True
    while changed:
        changed = False
        for block in order:
            after = 0
            for target in flow.successors[block] if block != flow.end else ():
                after |= live[target]
            now = uses[block] | (after & ~kills[block])
            if now != live[block]:
                live[block], changed = now, True
    return {block: _Names(bits, places) for block, bits in live.items()}


def _leads(flow: ControlFlow, block: int, facts: _Facts) -> Iterator[tuple[int, _Facts]]:
    """The successors of a basic block, each with the facts on the edge to it."""
    targets, last = flow.successors[block], flow.blocks[block][-1] if flow.blocks[block] else None
    guard = "" if last is None or (last.opcode != "bra" and last.opcode not in LEAVES) else _guard(last)
    if not guard or len(targets) != 2 or targets[0] == targets[1]:
        return ((target, facts) for target in targets)
    return iter(((targets[0], facts.where(guard)), (targets[1], facts.where(_opposite(guard)))))


def _guard(instruction: Instruction) -> str:
    if instruction.guard is None:
        return ""
    return f"{'!' if instruction.guard_negated else ''}{instruction.guard.name}"


def _opposite(guard: str) -> str:
    return guard[1:] if guard.startswith("!") else f"!{guard}"


def copied(instruction: Instruction) -> Register | None:
    """The register that a statement only copies; None if it does more."""
    if instruction.opcode != "mov" or instruction.guard is not None or len(written(instruction)) != 1:
        return None
    target, source = instruction.operands
    return source if isinstance(target, Register) and isinstance(source, Register) else None


def _never(function: Function) -> frozenset[str]:
    """Predicates that one comparison of two numbers writes, which does not hold."""
    constants = constants_of(function)
    writes = Counter(register.name for instruction in function.body for register in written(instruction))
    predicates: set[str] = set()
    for instruction in function.body:
        if instruction.opcode != "setp" or instruction.guard is not None or instruction.modifiers not in (("ne", "b32"), ("ne", "s32")):
            continue
        target, *compared = instruction.operands
        one, other = (number_of(operand, constants) for operand in compared)
        if isinstance(target, Register) and writes[target.name] == 1 and one is not None and one == other:
            predicates.add(target.name)
    return frozenset(predicates)


def _reads(instruction: Instruction, never: Container[str] = ()) -> Iterator[tuple[Register, str]]:
    """Registers that a statement uses, each with the predicate under which it uses the register.

    A product of a warpgroup adds to its results unless its predicate is in ``never``.
    """
    guard = _guard(instruction)
    if instruction.guard is not None:
        yield instruction.guard, ""
    if copied(instruction) is not None or (instruction.opcode == "xor" and len(set(instruction.operands[1:])) == 1):
        return
    if instruction.opcode == "selp" and not guard:
        _, yes, no, condition = instruction.operands
        predicate, is_negated = negated_register(condition)
        chosen = "" if predicate is None else f"{'!' if is_negated else ''}{predicate.name}"
        for operand, under in ((yes, chosen), (no, _opposite(chosen) if chosen else ""), (condition, "")):
            yield from ((register, under) for register in registers_of(operand))
        return
    adds = instruction.opcode == "wgmma" and instruction.has("mma_async")
    adds = adds and not any(isinstance(each, Register) and each.type == "pred" and each.name in never for each in instruction.operands)
    for operand in instruction.operands if adds else sources_of(instruction):
        yield from ((register, guard) for register in registers_of(operand))


class _Passing:
    """The facts from statement to statement of one basic block."""

    def __init__(self, facts: _Facts) -> None:
        self._always, self._under, self._false = set(facts.always), set(facts.under), set(facts.false)

    def facts(self) -> _Facts:
        """The facts here."""
        return _Facts(frozenset(self._always), frozenset(self._under), frozenset(self._false))

    def has(self, name: str, guard: str) -> bool:
        """True if a register was written wherever a predicate holds."""
        return name in self._always or bool(guard and ((name, guard) in self._under or guard in self._false))

    def after(self, instruction: Instruction) -> None:
        """Updates the facts by a statement."""
        targets = written(instruction)
        guard = _guard(instruction)
        always = {target.name for target in targets if not guard or self.has(target.name, _opposite(guard))}
        source = copied(instruction)
        copies = set() if source is None else {under for name, under in self._under if name == source.name}
        predicates = {target.name for target in targets if target.type == "pred"}
        if predicates:
            self._under = {pair for pair in self._under if pair[1].removeprefix("!") not in predicates}
            self._false = {other for other in self._false if other.removeprefix("!") not in predicates}
        if source is None:
            self._always |= always
            if guard and guard.removeprefix("!") not in predicates:  # that predicate says nothing of its earlier value
                self._under |= {(target.name, guard) for target in targets}
            return
        (target,) = targets
        self._under = {pair for pair in self._under if pair[0] != target.name}
        if source.name in self._always:
            self._always.add(target.name)
        elif target.name != source.name:
            self._always.discard(target.name)
            self._under |= {(target.name, under) for under in copies}
        else:
            self._under |= {(target.name, under) for under in copies}
