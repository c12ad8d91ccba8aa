"""Loops that come back to where they were: a thread whose branches see the same registers again runs the same way again, forever.

No count shows such a loop: `for (i = n; i >= 0; i /= 2)` stays at 0. A thread is followed for a while, and its registers are compared with
those of an earlier visit to the same basic block. Only registers that decide the way through the blocks in between matter, and those that
they are computed from: a sum may keep growing. Memory may be among them if nothing in between writes, waits or synchronises: a
write of another thread meanwhile would be a race.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.errors import Deadlock
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.memory import Observer
from gemmgen.emulator.program import FRAME, register_class
from gemmgen.emulator.ptx.syntax import Instruction, Register, Special, registers_of, writers_of
from gemmgen.emulator.registers import RegisterFile

FROM_REGISTERS = {
    *("abs", "add", "and", "bfe", "bfi", "brev", "clz", "copysign", "cvt", "cvta", "div", "ex2", "fma", "lg2", "lop3", "mad", "max", "min"),
    *("mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rcp", "rem", "rsqrt", "sad", "selp", "set", "setp", "shf", "shl", "shr"),
    *("slct", "sqrt", "sub", "xor"),
}
"""Operations whose results depend on their operands only."""
_CHANGING = ("%clock", "%globaltimer", "%pm")
_SEEN_BY_OTHERS = ("volatile", "relaxed", "acquire", "mmio")
_BRANCHES = ("bra", "brx")
_LEAVES = ("ret", "exit", "trap", "bar", "barrier")


def deciding_registers(blocks: Sequence[BasicBlock]) -> frozenset[Register] | None:
    """The registers that decide the way of a thread through blocks; None if something else than them and unchanging memory does."""
    ends = [block.terminator for block in blocks if block.terminator is not None]
    if any(end.opcode not in (*_BRANCHES, *_LEAVES) for end in ends):
        return None
    wanted = {end.guard for end in ends if end.guard is not None}
    wanted |= {register for end in ends if end.opcode == "brx" for register in registers_of(end.operands[0])}
    body = [inst for block in blocks for inst in block.body]
    if any(inst.opcode == FRAME for inst in body):  # a recursion's stack is no register
        return None
    writers = writers_of(body)
    quiet = all(_is_quiet(inst) for inst in body) and all(end.opcode in _BRANCHES for end in ends)
    work = list(wanted)
    while work:
        for inst in writers.get(work.pop().name, ()):
            if not (_is_quiet(inst) if quiet else _is_pure(inst)):
                return None
            deciding = {register for operand in inst.operands for register in registers_of(operand)}
            new = (deciding if inst.guard is None else deciding | {inst.guard}) - wanted
            wanted |= new
            work += new
    return None if any(register_class(register.type) == "b128" for register in wanted) else frozenset(wanted)


def _is_pure(inst: Instruction) -> bool:
    """True if registers alone decide the result."""
    if inst.opcode == "ld" and inst.has("const"):
        return True
    timed = any(isinstance(operand, Special) and operand.name.startswith(_CHANGING) for operand in inst.operands)
    return inst.opcode in FROM_REGISTERS and not timed


def _is_quiet(inst: Instruction) -> bool:
    """True if registers and memory alone decide the result, nothing else comes of it, and other threads take no part."""
    return _is_pure(inst) or (inst.opcode == "ld" and not any(inst.has(word) for word in _SEEN_BY_OTHERS))


class Trail(Observer):
    """Follows one thread through its basic blocks. Raises Deadlock when it is where it was."""

    def __init__(self, blocks: Sequence[BasicBlock], registers: RegisterFile, geometry: Geometry, lane: int) -> None:
        self._blocks, self._registers, self._geometry, self._lane = blocks, registers, geometry, lane
        self._steps, self._move_at = 0, 1
        self._anchor = -1
        self._before: dict[str, np.ndarray] = {}
        self._visited: set[int] = set()
        self._deciding: dict[frozenset[int], frozenset[Register] | None] = {}

    def block_started(self, block: BasicBlock, lanes: Lanes | None) -> None:
        if lanes is not None and not (lanes == self._lane).any():
            return
        if block.index == self._anchor and self._is_where_it_was():
            raise Deadlock(
                "this loop never ends: nothing that its branches depend on has changed since the last time round",
                instruction=block.terminator or block.body[0],
                threads=self._geometry.describe(np.array([self._lane])),
            )
        # The place to compare with moves on at steps 1, 2, 4 and so on (Brent's method) until it is in the loop and stays for an iteration.
        self._steps += 1
        if self._steps >= self._move_at:
            self._move_at *= 2
            self._anchor = block.index
            self._before = {name: array[:, self._lane].copy() for name, array in self._registers.arrays.items()}
            self._visited.clear()
        self._visited.add(block.index)

    def _is_where_it_was(self) -> bool:
        between = frozenset(self._visited)
        if between not in self._deciding:
            self._deciding[between] = deciding_registers([self._blocks[index] for index in sorted(between)])
        deciding = self._deciding[between]
        if deciding is None:
            return False
        places = [self._registers.place(register) for register in deciding]
        return all(self._before[name][row] == self._registers.arrays[name][row, self._lane] for name, row in places)
