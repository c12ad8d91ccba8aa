"""Pairs of float32 in one 64-bit register (sm_100 and later)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.instructions.floating import finish_f32, rounding
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction


@instruction("add", "sub", "mul", "fma", when=lambda inst: inst.type == "f32x2")
def arithmetic(inst: Instruction, binder: Binder) -> Operation:
    """Arithmetic on each half, rounded once."""
    mode = rounding(inst)
    functions: dict[str, Callable[..., Source]] = {
        "add": lambda a, b: ieee.add_f32(a, b, mode),
        "sub": lambda a, b: ieee.add_f32(a, -b, mode),
        "mul": lambda a, b: ieee.mul_f32(a, b, mode),
        "fma": lambda a, b, c: ieee.fma_f32(a, b, c, mode),
    }
    function = finish_f32(inst, functions[inst.opcode])

    def compute(*values: Source) -> Source:
        pairs = [np.array(value, ndmin=1).view(np.float32) for value in values]
        longest = max(len(pair) for pair in pairs)
        pairs = [np.tile(pair, longest // len(pair)) for pair in pairs]
        return function(*pairs).astype(np.float32).view(np.uint64)

    return binder.computed(inst, compute, "b64", "b64")
