"""Warps whose lanes do not all take part in statements that exchange values between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemmgen.emulator.ptx.syntax import Function, Instruction, Integer, Operand, Register, writers_of
from gemmgen.hardware.target import WARP_THREADS

MASKED = frozenset({"shfl", "vote", "match", "redux", "elect"})
"""Opcodes whose last operand is a mask of lanes."""
OF_WHOLE_WARPS = frozenset({"mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"})
"""Opcodes that need all lanes of a warp."""
ALL_LANES = (1 << WARP_THREADS) - 1


def incomplete_masks(function: Function, threads: int) -> Iterator[Instruction]:
    """Statements whose mask of lanes may leave out a lane that executes them."""
    present = (1 << min(threads, WARP_THREADS)) - 1
    constants = constants_of(function)
    for instruction in function.body:
        of_warp = instruction.opcode in ("bar", "barrier") and instruction.has("warp")
        if not of_warp and not (instruction.opcode in MASKED and instruction.has("sync")):
            continue
        mask = number_of(instruction.operands[-1], constants) if instruction.operands else None
        if mask is None or present & ~mask:
            yield instruction


def incomplete_warps(function: Function, threads: int) -> Iterator[Instruction]:
    """Statements that need all lanes of a warp, where a block's last warp has fewer."""
    if threads % WARP_THREADS:
        yield from (instruction for instruction in function.body if instruction.opcode in OF_WHOLE_WARPS)


def missing_lanes(function: Function, threads: int) -> Iterator[Instruction]:
    """Shuffles that may read from lanes that a block does not have: its last warp is not full, and a segment of the shuffle exceeds it."""
    constants = constants_of(function)
    for instruction in function.body:
        if instruction.opcode != "shfl" or not threads % WARP_THREADS:
            continue
        clamp = number_of(instruction.operands[3], constants) if len(instruction.operands) > 3 else None
        if clamp is None or threads % (WARP_THREADS - (clamp >> 8 & WARP_THREADS - 1)):
            yield instruction


def constants_of(function: Function) -> dict[str, int]:
    """Registers that one unguarded move of a number writes, and nothing else."""
    constants: dict[str, int] = {}
    for name, those in writers_of(function.body).items():
        source = those[0].operands[1] if len(those) == 1 and those[0].opcode == "mov" and those[0].guard is None else None
        if isinstance(source, Integer):
            constants[name] = source.value & ALL_LANES
    return constants


def number_of(operand: Operand, constants: Mapping[str, int]) -> int | None:
    """The 32 bits of a number, or of a register that always holds one; None for other operands."""
    if isinstance(operand, Integer):
        return operand.value & ALL_LANES
    return constants.get(operand.name) if isinstance(operand, Register) else None
