"""Waits that give up: loops that poll memory and count their turns, changed to end after one turn.

A kernel may wait for another block's data for many turns and then continue without them. No run takes so long, but a copy of the kernel
whose counters reach their limits at once shows the same behaviour."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemmgen.core.graphs import dominators, natural_loop, reached, reversed_edges
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.data_flow import instructions_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Integer, Operand, Register, registers_of, written_by

_WAIT = re.compile(r"mbarrier\.(?:try|test)_wait[^;]*?\s(%?\w+)\s*,[^;]*;")
_WAITING = frozenset(
    [
        *("add", "sub", "mul", "mad", "and", "or", "xor", "not", "shl", "shr", "mov", "cvt", "cvta", "setp", "selp", "bfe", "prmt", "lop3"),
        *("min", "max", "rem", "div", "shfl", "vote", "atom", "nanosleep", "membar", "fence", "mbarrier", "bar", "elect", "activemask"),
    ]
)
"""Instructions of loops that wait, except for loads."""
_TRY = re.compile(r"mbarrier\.try_wait([^;]*\]\s*,\s*[^,;]+)(?:,[^;]*)?;")
_FAR = 1 << 28
"""A step of a counter whose limit is not known."""


def impatient(program: Program, ptx: str) -> str | None:
    """PTX in which waits give up after one turn, and questions to barriers are answered at once; None if there are none of both."""
    lines = ptx.split("\n")
    changed = False
    for counter in _counters(program):
        for wait in counter.waits:
            lines[wait.line - 1] = _WAIT.sub(r"setp.ne.u32 \1, 0, 0;", lines[wait.line - 1])
        place = counter.holder.line - 1
        number = rf"(?<=[\s,]){counter.constant}(?=\s*[,;])"
        text, count = re.subn(number, str(counter.step), lines[place], count=1)
        changed |= count > 0
        lines[place] = text
        for start in counter.starts:  # a wait may take more turns than any limit behind it
            value = start.operands[1]
            assert isinstance(value, Integer)
            number = rf"(?<=[\s,]){value.value}(?=\s*[,;])"
            lines[start.line - 1] = re.sub(number, str(value.value + counter.step), lines[start.line - 1], count=1)
    for place, line in enumerate(lines):
        lines[place] = _TRY.sub(r"mbarrier.test_wait\1;", line)  # which answers at once
        changed |= lines[place] != line
    return "\n".join(lines) if changed else None


@dataclass(frozen=True)
class _Counter:
    """The constant that a wait adds to its counter."""

    holder: Instruction
    """The instruction that the constant stands in."""
    constant: int
    step: int
    """The constant by which the counter reaches its limit in one turn."""
    waits: tuple[Instruction, ...]
    """Questions to barriers in the loop, whose answer is no; none if only statements after the loop look at the counter."""
    starts: tuple[Instruction, ...] = ()
    """In that case, the statements that give the counter its first value."""


def _counters(program: Program) -> Iterator[_Counter]:
    everything = list(instructions_of(program))
    for loop in _innermost_waits(program.blocks):
        inside = [inst for index in sorted(loop) for inst in program.blocks[index].body]
        if not all(_may_wait(inst) for inst in inside):
            continue
        names = {id(inst) for inst in inside}
        waits = tuple(inst for inst in inside if inst.opcode == "mbarrier" and (inst.has("try_wait") or inst.has("test_wait")))
        for add in inside:
            if add.opcode not in ("add", "sub") or add.guard is not None or TYPE_BYTES.get(add.type) not in (4, 8):
                continue
            target, source, added = add.operands[:3]
            holder, constant = _constant(add, added, inside)
            if constant is None or not isinstance(target, Register) or not isinstance(source, Register):
                continue
            counters = {target.name, source.name}
            uses = [inst for inst in everything if inst is not add and counters & _read(inst)]
            tests = sorted((inst for inst in uses if inst.opcode == "setp"), key=lambda inst: id(inst) not in names)
            if tests and all(inst.opcode in ("setp", "mov") for inst in uses):
                first = [inst for inst in everything if id(inst) not in names and not counters.isdisjoint(written_by(inst))]
                ends_loop = id(tests[0]) in names
                step = _step(add, constant, tests[0], first)
                starts = tuple(inst for inst in first if inst.opcode == "mov" and isinstance(inst.operands[1], Integer))
                yield _Counter(holder, constant, step, waits, ()) if ends_loop else _Counter(holder, constant, step, (), starts)


def _may_wait(inst: Instruction) -> bool:
    """True for instructions of a loop that does nothing but wait: it reads flags and counts."""
    if inst.opcode == "ld":
        return any(inst.has(order) for order in ("volatile", "relaxed", "acquire"))
    return inst.opcode in _WAITING and not any(name.startswith(("f", "bf")) for name in inst.types)


def _constant(add: Instruction, added: Operand, inside: Sequence[Instruction]) -> tuple[Instruction, int | None]:
    """The constant that is added, always or if a condition holds, with the instruction that it stands in."""
    if isinstance(added, Integer):
        return add, added.value
    if isinstance(added, Register):
        for inst in inside:
            if inst.opcode == "selp" and added.name in written_by(inst):
                values = [operand.value for operand in inst.operands[1:3] if isinstance(operand, Integer) and operand.value]
                return inst, values[0] if len(values) == 1 else None
    return add, None


def _step(add: Instruction, constant: int, test: Instruction, first: Sequence[Instruction]) -> int:
    sign = -1 if add.opcode == "sub" else 1
    upwards = 1 if constant * sign > 0 else -1
    limits = [operand.value for operand in test.operands[1:] if isinstance(operand, Integer)]
    starts = [inst.operands[1].value for inst in first if inst.opcode == "mov" and isinstance(inst.operands[1], Integer)]
    if not limits:
        return sign * upwards * _FAR
    exact = any(test.has(relation) for relation in ("eq", "ne"))
    return sign * (limits[0] - (starts[0] if starts else 0) + (0 if exact else upwards))


def _read(inst: Instruction) -> set[str]:
    """Names of the registers that an instruction reads."""
    sources = inst.operands if inst.opcode in ("st", "bra", "red") else inst.operands[1:]
    return {register.name for operand in sources for register in registers_of(operand)}


def _innermost_waits(blocks: Sequence[BasicBlock]) -> list[frozenset[int]]:
    """The innermost loops with a block that polls or waits, each as the numbers of its blocks: loops without barriers of the block."""
    successors = [block.successors for block in blocks]
    dominating = dominators(0, len(blocks), dict(enumerate(reversed_edges(successors))), range(len(blocks)))
    inside = [
        () if block.terminator is not None and block.terminator.opcode in ("bar", "barrier") else block.successors for block in blocks
    ]
    before = reversed_edges(inside)
    loops = [
        natural_loop(header, index, before.__getitem__)
        for index in sorted(reached([0], successors.__getitem__))
        for header in sorted(dominating[index].intersection(inside[index]))
    ]
    waits = []
    for block in blocks:
        around = [loop for loop in loops if block.index in loop] if block.polling or block.parking else []
        if around:
            waits.append(min(around, key=len))
    return list(dict.fromkeys(waits))
