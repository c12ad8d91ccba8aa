"""Plain loads whose value only serves as the guess of a compare-and-swap on the same address.

The CUDA programming guide writes every atomic operation that the hardware lacks as such a loop, and so do the headers of bfloat16. The
first load is not ordered with the swaps of other threads, but a stale value does no harm: the swap compares it with the present value.
"""

from __future__ import annotations

from gemmgen.core.graphs import reached
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program, register_writers
from gemmgen.emulator.ptx.syntax import Address, Instruction, Operand, Register, registers_of, source_registers

_COPIES = ("mov", "cvta")


class Guesses:
    """The loads of a program that a compare-and-swap checks."""

    def __init__(self, program: Program) -> None:
        self._definitions = register_writers(program)
        swaps = [inst for block in program.blocks for inst in block.body if inst.opcode == "atom" and inst.has("cas")]
        self._loads = {id(load) for swap in swaps for load in self._checked_by(swap)}

    def __contains__(self, load: Instruction) -> bool:
        return id(load) in self._loads

    def _checked_by(self, swap: Instruction) -> list[Instruction]:
        place = self._place(swap.operands[1])

        def sources(name: str) -> list[str]:
            computing = [inst for inst in self._definitions.get(name, ()) if inst.opcode not in ("ld", "atom")]
            return [source for inst in computing for source in source_registers(inst)]

        names = reached((register.name for register in registers_of(swap.operands[2])), sources)
        loads = [inst for name in names for inst in self._definitions.get(name, ()) if inst.opcode == "ld"]
        return [load for load in loads if self._place(load.operands[1]) == place]

    def _place(self, operand: Operand) -> tuple[object, int]:
        """An address as its register, copies undone, and its offset."""
        assert isinstance(operand, Address)
        base: Operand = operand.base
        while isinstance(base, Register):
            definitions = self._definitions.get(base.name, [])
            if len(definitions) != 1 or definitions[0].opcode not in _COPIES or definitions[0].guard is not None:
                break
            base = definitions[0].operands[1]
        return base, operand.offset


guesses = of_program(Guesses)
"""The loads of a program that a compare-and-swap checks. Cached."""
