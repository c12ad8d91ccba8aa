"""Registers that may be read before they are written, by definite assignment over the control flow."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.emulator.ptx.syntax import Function, Instruction, Register, registers_of
from gemmgen.proof.control import ControlFlow
from gemmgen.proof.slicing import NO_RESULT, written

Written = frozenset[tuple[str, str]]
"""Registers, each with the guard that it was written under; an empty guard is none."""


def read_unwritten(function: Function, flow: ControlFlow) -> Iterator[tuple[Instruction, Register]]:
    """Statements, each with a register that some way to it leaves unwritten."""
    entry = _at_entry(flow)
    for block in sorted(flow.order):
        if block == flow.end:
            continue
        known = entry[block]
        assert known is not None
        for instruction in flow.blocks[block]:
            guard = _guard(instruction)
            for register in _reads(instruction):
                if (register.name, "") not in known and (not guard or (register.name, guard) not in known):
                    yield instruction, register
            known = _after(instruction, known)


def _at_entry(flow: ControlFlow) -> dict[int, Written | None]:
    """Registers that every way to a basic block has written; None where no way was followed yet."""
    entry: dict[int, Written | None] = dict.fromkeys(range(flow.end + 1))
    entry[0] = frozenset()
    changed = True
    while changed:
        changed = False
        for block in sorted(flow.order, key=lambda number: flow.order[number]):
            known = entry[block]
            if block == flow.end or known is None:
                continue
            for instruction in flow.blocks[block]:
                known = _after(instruction, known)
            for target in flow.successors[block]:
                before = entry[target]
                now = known if before is None else before & known
                if now != before:
                    entry[target], changed = now, True
    return entry


def _guard(instruction: Instruction) -> str:
    if instruction.guard is None:
        return ""
    return f"{'!' if instruction.guard_negated else ''}{instruction.guard.name}"


def _reads(instruction: Instruction) -> Iterator[Register]:
    if instruction.guard is not None:
        yield instruction.guard
    targets = 0 if instruction.opcode in NO_RESULT else 1
    if instruction.opcode == "xor" and len(set(instruction.operands[1:])) == 1:
        return
    for operand in instruction.operands[targets:]:
        yield from registers_of(operand)
    if targets and instruction.operands and not written(instruction):
        yield from registers_of(instruction.operands[0])


def _after(instruction: Instruction, known: Written) -> Written:
    targets = {register.name for register in written(instruction)}
    if not targets:
        return known
    guard = _guard(instruction)
    kept = {pair for pair in known if pair[1].removeprefix("!") not in targets}
    if not guard:
        return frozenset(kept | {(name, "") for name in targets})
    other = guard[1:] if guard.startswith("!") else f"!{guard}"
    return frozenset(kept | {(name, "" if (name, other) in known else guard) for name in targets})
