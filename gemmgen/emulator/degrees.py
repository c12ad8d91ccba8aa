"""Degree of what a program computes as a polynomial of the numbers that it loads, as far as the text shows it.

Two different polynomials of degree d agree at a random point of a field of p elements with a probability of at most d / p. A kernel that
raises a sum to the power p - 1 multiplies it by one over the field, and by no such number in float32. Numbers that are stored and
loaded again count as loaded ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.emulator.data_flow import Effect, effects_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import Operand, registers_of

MOST = 1 << 10
"""Limit of degrees; a degree above it counts as growing without end."""
_PASSES = 16
"""Passes over a program after which degrees that still grow are taken to grow without end; loops within loops need a few."""
_LOADS = ("ld", "ldu", "ldmatrix", "atom", "tex", "tld4", "suld")
_PRODUCTS = ("mul", "fma", "mad")
_MATRICES = ("mma", "wmma", "wgmma", "tcgen05")


@of_program
def degree_of(program: Program) -> int:
    """The highest degree of a register; ``MOST`` if a loop multiplies what it has multiplied before, or there is no end to it otherwise."""
    degrees: dict[str, int] = {}
    effects = [effect for block in effects_of(program) for effect in block]
    for _ in range(_PASSES):
        grows = False
        for effect in effects:
            degree = min(_degree(effect, degrees), MOST)
            for name in effect.writes:
                if degree > degrees.get(name, 0):
                    degrees[name] = degree
                    grows = True
        if not grows:
            return max(degrees.values(), default=0)
    return MOST


def _degree(effect: Effect, degrees: Mapping[str, int]) -> int:
    inst, reads, _ = effect
    of_sources = max((degrees.get(name, 0) for name in reads), default=0)
    if inst.opcode in _LOADS:
        return 0 if inst.has("param") and inst.type != "f32" else 1
    if inst.opcode in _MATRICES:
        factors = [_of(operand, degrees) for operand in inst.operands[1:3]]
        return max(sum(max(each, 1) for each in factors), of_sources)
    if inst.opcode in _PRODUCTS and inst.types == ("f32",):
        first, second, *addend = (_of(operand, degrees) for operand in inst.operands[1:])
        return max([first + second, *addend])
    return of_sources


def _of(operand: Operand, degrees: Mapping[str, int]) -> int:
    return max((degrees.get(register.name, 0) for register in registers_of(operand)), default=0)
