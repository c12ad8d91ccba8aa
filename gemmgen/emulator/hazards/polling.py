"""Loads that a thread waits with: their values decide whether it leaves the loop that they are in.

Such a load may see an unordered write, now or on a later iteration. For any other load, the value depends on timing.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.core.graphs import reached
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import Instruction, registers_of, sources_of, writers_of, written_by


class Polling:
    """The registers on which the loops of a program that poll memory depend."""

    def __init__(self, program: Program) -> None:
        self._loops = [block for block in program.blocks if block.spins]
        self._deciding = self._registers()

    def _registers(self) -> frozenset[str]:
        ends = [block.terminator for block in self._loops if block.terminator is not None]
        writers = writers_of(inst for block in self._loops for inst in block.body)

        def sources(name: str) -> Iterator[str]:
            for inst in writers.get(name, ()):
                yield from (register.name for operand in sources_of(inst) for register in registers_of(operand))
                if inst.guard is not None:
                    yield inst.guard.name

        return frozenset(reached((end.guard.name for end in ends if end.guard is not None), sources))

    def waits_with(self, load: Instruction) -> bool:
        """True if the loaded value decides on another iteration of its loop."""
        if self._deciding.isdisjoint(written_by(load)):
            return False
        return any(inst is load for block in self._loops for inst in block.body)


polling = of_program(Polling)
"""The registers on which the loops of a program that poll memory depend. Cached."""
