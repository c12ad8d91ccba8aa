"""Plain loads whose value only serves as the guess of a compare-and-swap on the same address.

The CUDA programming guide writes every atomic operation that the hardware lacks as such a loop, and so do the headers of bfloat16. The
first load is not ordered with the swaps of other threads, but a stale value does no harm: the swap compares it with the present value.
"""

from __future__ import annotations

from collections import defaultdict

from gemmgen.emulator.hazards.undefined import results_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import Address, Instruction, Operand, Register, registers_of

_COPIES = ("mov", "cvta")


class Guesses:
    """The loads of a program that a compare-and-swap checks."""

    def __init__(self, program: Program) -> None:
        self._definitions: dict[str, list[Instruction]] = defaultdict(list)
        swaps = []
        for block in program.blocks:
            for inst in block.body:
                for name in results_of(inst):
                    self._definitions[name].append(inst)
                if inst.opcode == "atom" and inst.has("cas"):
                    swaps.append(inst)
        self._loads = {id(load) for swap in swaps for load in self._checked_by(swap)}

    def __contains__(self, load: Instruction) -> bool:
        return id(load) in self._loads

    def _checked_by(self, swap: Instruction) -> list[Instruction]:
        place = self._place(swap.operands[1])
        guesses = []
        work = [register.name for register in registers_of(swap.operands[2])]
        seen = set(work)
        while work:
            for inst in self._definitions[work.pop()]:
                if inst.opcode == "ld":
                    if self._place(inst.operands[1]) == place:
                        guesses.append(inst)
                    continue
                if inst.opcode == "atom":
                    continue
                for operand in inst.operands[1:]:
                    for register in registers_of(operand):
                        if register.name not in seen:
                            seen.add(register.name)
                            work.append(register.name)
        return guesses

    def _place(self, operand: Operand) -> tuple[object, int]:
        """An address as its register, copies undone, and its offset."""
        assert isinstance(operand, Address)
        base: Operand = operand.base
        while isinstance(base, Register):
            definitions = self._definitions[base.name]
            if len(definitions) != 1 or definitions[0].opcode not in _COPIES or definitions[0].guard is not None:
                break
            base = definitions[0].operands[1]
        return base, operand.offset


guesses = of_program(Guesses)
"""The loads of a program that a compare-and-swap checks. Cached."""
