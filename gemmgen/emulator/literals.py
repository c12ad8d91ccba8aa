"""Numbers that decide something in a kernel's code: literals that it compares, multiplies or masks with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gemmgen.emulator.data_flow import instructions_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Float, Instruction, Integer, Operand, Register, Special, source_registers, writers_of, written_by

_MAX_FACTOR = 1 << 12
_MAX_COUNTS = 16
"""Numbers that are tried as numbers of blocks."""
_OF_COUNT: Mapping[str, Callable[[int], tuple[int, ...]]] = {
    "popc": lambda count: ((1 << count) - 1, ((1 << count) - 1) << max(0, 11 - count)),
    "clz": lambda count: (1 << (31 - count),),
    "bfind": lambda count: (1 << count,),
}
"""Instructions that count bits of 32, each with numbers of a count; the second of popc is beyond the sizes that are tried first."""


def floats_of(program: Program) -> list[float]:
    """The finite floating-point literals of a kernel and of its variables, and the floats whose bits it compares with integers."""
    bits: dict[int, None] = {}
    for inst in instructions_of(program):
        for operand in inst.operands:
            if isinstance(operand, Float) and operand.width == 32:
                bits[operand.bits] = None
            elif isinstance(operand, Integer) and inst.opcode in ("setp", "set", "xor"):
                bits[operand.value & 0xFFFFFFFF] = None
    floats = np.array(list(bits), np.uint32).view(np.float32).astype(np.float64)
    return [float(value) for value in floats if np.isfinite(value) and value]


def integers_of(program: Program) -> list[int]:
    """The integer literals that a kernel compares something with."""
    compared = (inst for inst in instructions_of(program) if inst.opcode in ("setp", "set"))
    return list(dict.fromkeys(operand.value for inst in compared for operand in inst.operands if isinstance(operand, Integer)))


def limits_of(program: Program) -> list[int]:
    """The integers that a kernel compares something with, and those from which on a bit that it shifts to the lowest place, or takes by a
    mask, is set; where it counts bits, numbers for which a count is one of these integers."""
    limits = dict.fromkeys((*integers_of(program), *numbers_of_counts(program)))
    for inst in instructions_of(program):
        by = inst.operands[2] if inst.opcode in ("shr", "and") and len(inst.operands) > 2 else None
        if isinstance(by, Integer) and inst.opcode == "shr" and 0 < by.value < 32:
            limits[1 << by.value] = None
        elif isinstance(by, Integer) and by.value:
            limits[by.value & -by.value] = None
    return list(limits)


def limits_of_arithmetic(program: Program) -> list[int]:
    """The numbers from which on a limit or a mask of a kernel changes a number, a quotient is not zero, or a product or sum leaves 32
    bits."""
    limits: dict[int, None] = {}
    products: dict[str, tuple[int, int]] = {}
    constants = _constants(program)
    for inst in instructions_of(program):
        literals = [value for operand in inst.operands[1:] if (value := _whole_number(operand, constants)) is not None]
        limits |= dict.fromkeys(_limits_by_arithmetic(inst, literals))
        if inst.opcode == "mul" and literals and (inst.has("hi") or inst.has("wide")):
            products |= dict.fromkeys(written_by(inst), (literals[0] & 0xFFFFFFFF, 32 if inst.has("hi") else 0))
        elif inst.opcode == "shr" and literals:  # division by a number, as a product with its reciprocal
            of_products = [products[name] for name in source_registers(inst) if name in products]
            limits |= {-(-1 << places + (literals[-1] & 63)) // factor: None for factor, places in of_products if factor}
    return list(limits)


def _constants(program: Program) -> dict[str, Operand]:
    """Registers that one instruction writes, a move of a number, each with the number."""
    writers = writers_of(instructions_of(program))
    return {name: own[0].operands[1] for name, own in writers.items() if len(own) == 1 and own[0].opcode == "mov"}


def _whole_number(operand: Operand, constants: Mapping[str, Operand]) -> int | None:
    """The whole number that an operand is, also as a float of 32 bits; None for other operands."""
    if isinstance(operand, Register):
        operand = constants.get(operand.name, operand)
    if isinstance(operand, Float) and operand.width == 32:
        number = float(np.array([operand.bits], np.uint32).view(np.float32)[0])
        return int(number) if number.is_integer() else None
    return operand.value if isinstance(operand, Integer) else None


def _limits_by_arithmetic(inst: Instruction, literals: list[int]) -> Iterator[int]:
    """Numbers from which on an instruction with literals has other results."""
    if not literals:
        return
    match inst.opcode:
        case "min" | "max" | "div":
            yield from literals
        case "and" if literals[0] > 0:
            lowest = literals[0] & -literals[0]
            above = literals[0] + lowest
            if above & (above - 1) == 0:  # consecutive bits; of an offset in bytes, the index is that many times less
                yield from (above, above // lowest)
        case "bfe" if len(literals) == 2:
            yield 1 << min(sum(literals), 32)
        case "add":
            yield (1 << 31) - literals[0] if inst.has("sat") else -literals[0]
        case "mul" if inst.has("hi") and literals[0]:
            yield -(-1 << 32) // (literals[0] & 0xFFFFFFFF)
        case "mul" if inst.has("lo") and literals[0] > 0:
            yield (1 << 32) // literals[0]


def numbers_of_counts(program: Program) -> list[int]:
    """Where a kernel counts bits, numbers for which a count is an integer that it compares something with."""
    counts, opcodes = [value for value in integers_of(program) if 0 < value < 32], {inst.opcode for inst in instructions_of(program)}
    return [number for opcode, numbers in _OF_COUNT.items() if opcode in opcodes for count in counts for number in numbers(count)]


def counts_of_blocks(program: Program) -> list[int]:
    """Some integers that a kernel compares something with, if it reads the number of blocks."""
    reads = any(isinstance(operand, Special) and "nctaid" in operand.name for inst in instructions_of(program) for operand in inst.operands)
    return [value for value in integers_of(program) if value > 2][:_MAX_COUNTS] if reads else []


def factors_of(program: Program) -> list[int]:
    """The integer literals that a kernel multiplies, divides or takes remainders by, and those that it compares something with."""
    factors = dict.fromkeys(integers_of(program))
    for inst in instructions_of(program):
        if inst.opcode in ("mul", "mad", "div", "rem") and not inst.has("wide"):
            factors |= dict.fromkeys(operand.value for operand in inst.operands[1:3] if isinstance(operand, Integer))
    return [value for value in factors if 2 < value < _MAX_FACTOR]
