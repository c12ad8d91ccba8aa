"""Extended-precision integers: additions, subtractions and multiply-adds that leave or take a carry."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.integer import is_integer, multiply_high
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction


def _leaves_carry(inst: Instruction) -> bool:
    return is_integer(inst) and inst.has("cc")


@instruction("add", "sub", "mad", when=_leaves_carry)
@instruction("addc", "subc", "madc")
def extended(inst: Instruction, binder: Binder) -> Operation:
    """`.cc` sets the carry flag, and addc, subc and madc take it.

    There is one flag for both directions: a - b is a + ~b + 1, whose carry is set where nothing was borrowed, and subc adds a
    and ~b and the flag. That is the code which ptxas makes of every mixture of the two.
    """
    type_name = inst.type
    if not is_integer(inst) or TYPE_BYTES[type_name] < 4 or inst.has("sat"):
        raise UnknownInstruction("this form of carry arithmetic does not exist", instruction=inst)
    stem = inst.opcode.removesuffix("c")
    takes, leaves, high = inst.opcode.endswith("c"), inst.has("cc"), inst.has("hi")
    flags = binder.registers.carry
    unsigned = "u" + type_name[1:]
    target = binder.target(inst, inst.operands[0], unsigned)
    # Only the upper half of a product depends on the sign.
    first, second, *rest = (binder.source(inst, operand, type_name) for operand in inst.operands[1:])
    third = rest[0] if rest else None

    def run(lanes: Lanes) -> None:
        a, b = value_at(first, lanes), value_at(second, lanes)
        if stem == "mad":
            a, b = multiply_high(a, b) if high else a * b, value_at(third, lanes)
        result, carry = _combine(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"), stem == "sub", flags[lanes] if takes else None)
        if target is not None:
            target[lanes] = result
        if leaves:
            flags[lanes] = carry

    return by_lanes(binder, run)


def _combine(a: np.ndarray, b: np.ndarray, subtract: bool, flag: np.ndarray | None) -> tuple[Source, Source]:
    """a + b + flag or a + ~b + flag modulo 2**width, and its carry. Without a flag: a + b, or a + ~b + 1."""
    if subtract:
        b = ~b
    result = a + b
    carry = result < a
    if flag is None and not subtract:
        return result, carry
    one = a.dtype.type(1) if flag is None else flag.astype(a.dtype)
    again = result + one
    # At most one of the two steps can leave the range.
    return again, carry | (again < result)
