"""Loops that count in registers alone, and the number of iterations that a lane still takes in them.

A recursion that passes its base case by is one, once the compiler has made a loop of the tail call: its counter runs until it wraps around,
or forever. Neither needs to be waited for: where each iteration adds a constant to the counter, and the exit compares it with something
that does not change, the number of iterations follows from the values of one moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Integer, Operand, Register, registers_of

_BITWISE = {
    *("and", "bfe", "bfi", "brev", "clz", "lop3", "mov", "not", "or", "popc", "prmt", "selp", "setp", "shf", "shl", "shr", "slct"),
    *("xor",),
}
_ARITHMETIC = {"abs", "add", "cvt", "div", "fma", "mad", "max", "min", "mul", "neg", "rcp", "rem", "sqrt", "sub"}
_REGISTERS_ONLY = _BITWISE | _ARITHMETIC
"""Operations that read and write registers only: a loop of others may end by an error before it ends by its counter."""
_ORDERS = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "lo": "lt", "ls": "le", "hi": "gt", "hs": "ge", "eq": "eq", "ne": "ne"}
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_MAX__LENGTH = 8
"""Blocks of a loop that is looked at."""
_IN_WORDS = {"eq": "equal to", "ne": "other than", "lt": "less than", "le": "at most", "gt": "greater than", "ge": "at least"}


@dataclass(frozen=True, slots=True)
class Exit:
    """A way out of a loop: in iteration k (from 0) it is open if `counter + offset + k * step` stands in a relation to `limit`."""

    counter: Register
    offset: int
    step: int
    relation: str
    """`eq`, `ne`, `lt`, `le`, `gt` or `ge`."""
    limit: Register | int
    bits: int
    signed: bool
    instruction: Instruction

    def iterations(self, counter: int, limit: int) -> float:
        """The number of iterations before the exit opens, or a bound below it where the counter wraps around first; infinite if it never
        does."""
        size = 1 << self.bits
        value, limit = self.normal(counter + self.offset), self.normal(limit)
        if self.open(value, limit):
            return 0
        step = self.step % size
        if not step:
            return math.inf
        if self.relation == "ne":
            return 1
        if self.relation == "eq":
            common = math.gcd(step, size)
            if (limit - value) % common:
                return math.inf
            return (limit - value) // common * pow(step // common, -1, size // common) % (size // common)
        stride = step - size if step >= size // 2 else step
        low = -size // 2 if self.signed else 0
        to_wrap = (low + size - 1 - value) // stride + 1 if stride > 0 else (value - low) // -stride + 1
        if (stride > 0) == (self.relation in ("gt", "ge")):
            distance = abs(limit - value) + (self.relation in ("gt", "lt"))
            return min(to_wrap, -(-distance // abs(stride)))
        return to_wrap

    def open(self, value: int, limit: int) -> bool:
        """True if lanes with this value leave."""
        match self.relation:
            case "eq":
                return value == limit
            case "ne":
                return value != limit
            case "lt":
                return value < limit
            case "le":
                return value <= limit
            case "gt":
                return value > limit
            case _:
                return value >= limit

    def normal(self, value: int) -> int:
        """A value as the comparison reads it."""
        value %= 1 << self.bits
        return value - (1 << self.bits) if self.signed and value >> (self.bits - 1) else value

    def describe(self, counter: int, limit: int) -> str:
        """`a counter, now -39, changes by -2 an iteration until it is equal to 0`."""
        now = self.normal(counter + self.offset)
        return f"a counter, now {now}, changes by {self.step:+d} an iteration until it is {_IN_WORDS[self.relation]} {self.normal(limit)}"


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """A loop with one path round; `start` is the block at whose beginning the counters are read."""

    start: int
    exits: tuple[Exit, ...]


def counted_loops(blocks: Sequence[BasicBlock]) -> tuple[CountedLoop, ...]:
    """All loops whose ways out are all known, once for each block of theirs."""
    return tuple(loop for block in blocks if (loop := _loop_from(blocks, block)) is not None)


def _loop_from(blocks: Sequence[BasicBlock], start: BasicBlock) -> CountedLoop | None:
    for first in sorted(_followers(blocks, start)):
        path = _way_round(blocks, start.index, first)
        if path is not None:
            exits = _exits([blocks[index] for index in path])
            if exits:
                return CountedLoop(start.index, exits)
    return None


def _followers(blocks: Sequence[BasicBlock], block: BasicBlock) -> set[int]:
    falls = block.terminator is None or block.terminator.guard is not None
    return {*block.targets, *([block.index + 1] if falls and block.index + 1 < len(blocks) else [])}


def _way_round(blocks: Sequence[BasicBlock], start: int, first: int) -> list[int] | None:
    """The blocks from `start` by `first` back to `start`, if each block has one follower from which there is a way back."""
    path, here = [start], first
    while here != start:
        if here in path or len(path) > _MAX__LENGTH or not _plain(blocks[here]):
            return None
        path.append(here)
        onward = [index for index in _followers(blocks, blocks[here]) if index == start or _leads_back(blocks, index, start)]
        if len(onward) != 1:
            return None
        here = onward[0]
    return path if _plain(blocks[start]) else None


def _leads_back(blocks: Sequence[BasicBlock], here: int, start: int) -> bool:
    seen, work = {here}, [here]
    while work and len(seen) <= 4 * _MAX__LENGTH:
        for index in _followers(blocks, blocks[work.pop()]) - seen:
            if index == start:
                return True
            seen.add(index)
            work.append(index)
    return bool(work)


def _plain(block: BasicBlock) -> bool:
    last = block.terminator
    return (last is None or last.opcode == "bra") and all(inst.opcode in _REGISTERS_ONLY for inst in block.body)


@dataclass(frozen=True, slots=True)
class _Sum:
    """The value that a register had at the start of the iteration, and a constant."""

    register: Register
    offset: int


def _exits(path: Sequence[BasicBlock]) -> tuple[Exit, ...] | None:
    """The ways out of a loop; None if one of them is not of the kind known here."""
    body = [inst for block in path for inst in block.body]
    written = {register.name for inst in body for register in registers_of(inst.operands[0])}
    sums: dict[str, _Sum | None] = {}
    conditions: dict[str, Instruction | None] = {}
    compared: dict[str, _Sum | None] = {}
    leaving: list[tuple[str, bool, Instruction]] = []
    for position, block in enumerate(path):
        for inst in block.body:
            sum_of = _sum(inst, sums)
            for register in registers_of(inst.operands[0]):
                sums[register.name] = sum_of
                conditions[register.name] = None
            if inst.opcode == "setp" and isinstance(inst.operands[0], Register):
                conditions[inst.operands[0].name] = inst
                compared[inst.operands[0].name] = _known(inst.operands[1], sums)
        last = block.terminator
        if last is not None and last.guard is not None:
            onward = path[(position + 1) % len(path)].index
            stays_if_taken = block.targets == (onward,)
            condition = conditions.get(last.guard.name)
            if condition is None or condition.guard is not None or (stays_if_taken and block.index + 1 == onward):
                return None
            leaving.append((last.guard.name, stays_if_taken == last.guard_negated, condition))
    exits = []
    for name, leaves_if_true, condition in leaving:
        value, kind = compared[name], condition.modifiers[-1]
        limit = condition.operands[2]
        if value is None or len(condition.modifiers) != 2 or condition.modifiers[0] not in _ORDERS or kind[1:] not in ("32", "64"):
            return None
        after = sums.get(value.register.name, _Sum(value.register, 0))
        if after is None or after.register.name != value.register.name or TYPE_BYTES[kind] != TYPE_BYTES.get(value.register.type):
            return None
        if not isinstance(limit, Integer | Register) or (isinstance(limit, Register) and limit.name in written):
            return None
        relation = _ORDERS[condition.modifiers[0]]
        exits.append(
            Exit(
                value.register,
                value.offset,
                after.offset,
                relation if leaves_if_true else _OPPOSITE[relation],
                limit.value if isinstance(limit, Integer) else limit,
                8 * TYPE_BYTES[kind],
                kind[0] == "s",
                condition,
            )
        )
    return tuple(exits)


def _sum(inst: Instruction, sums: dict[str, _Sum | None]) -> _Sum | None:
    """The sum that an instruction writes; None if it writes anything else."""
    if inst.guard is not None or len(inst.modifiers) != 1 or inst.modifiers[0][1:] not in ("32", "64"):
        return None
    destination = inst.operands[0]
    if not isinstance(destination, Register) or TYPE_BYTES[inst.modifiers[0]] != TYPE_BYTES.get(destination.type):
        return None
    if inst.opcode == "mov":
        return _known(inst.operands[1], sums)
    if inst.opcode in ("add", "sub") and isinstance(inst.operands[2], Integer):
        value = _known(inst.operands[1], sums)
        constant = inst.operands[2].value
        return None if value is None else _Sum(value.register, value.offset + (constant if inst.opcode == "add" else -constant))
    return None


def _known(operand: Operand, sums: dict[str, _Sum | None]) -> _Sum | None:
    if not isinstance(operand, Register):
        return None
    return sums.get(operand.name, _Sum(operand, 0))
