"""Properties of a program, found once and not at every launch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction, writers_of

_MAX_KNOWN = 16
Property = TypeVar("Property")


def of_program(find: Callable[[Program], Property]) -> Callable[[Program], Property]:
    """``find``, remembered for the last 16 programs; a program is known by its identity and never changes."""
    known: OrderedDict[int, tuple[Program, Property]] = OrderedDict()

    @wraps(find)
    def remembered(program: Program) -> Property:
        entry = known.get(id(program))
        if entry is None:
            entry = known[id(program)] = (program, find(program))
            while len(known) > _MAX_KNOWN:
                known.popitem(last=False)
        return entry[1]

    return remembered


@of_program
def opcodes(program: Program) -> frozenset[str]:
    """The opcodes of a program's instructions, those that end blocks left out."""
    return frozenset(inst.opcode for block in program.blocks for inst in block.body)


@of_program
def register_writers(program: Program) -> dict[str, list[Instruction]]:
    """The instructions that may write each register, by its name."""
    return writers_of(inst for block in program.blocks for inst in block.instructions)
