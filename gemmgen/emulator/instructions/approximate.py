"""Approximate functions: ex2, lg2, sin, cos, tanh, rsqrt.

The GPU's results are within the bounds of the PTX manual (about 2 ulp for ex2, lg2 and rsqrt, absolute 2**-20.5 for sin
and cos inside [-pi, pi], relative 2**-11 for tanh). The emulator returns the correctly rounded value of the
float64 function, so results agree within those bounds, not bit for bit. Where that value lies next to the middle between two float32, or is
subnormal as a float32, a wider type decides, so that NumPy's functions and the C library's (native_runs.c) give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.instructions.floating import finish_f32
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction

_FUNCTIONS: dict[str, Callable[[Source], Source]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "rsqrt": lambda value: 1.0 / np.sqrt(value),
}


_NEAR = 64
"""Last places of a float64 by which a function may be wrong."""


def rounded_f32(function: Callable[[Source], Source], value: Source) -> np.ndarray:
    """A function of float32 values, rounded correctly: by float64, and by a wider type where float64 is too close to call."""
    wide = np.array(value, np.float64, ndmin=1)
    exact: np.ndarray = function(wide)
    result: np.ndarray = exact.astype(np.float32)
    beside = (exact.view(np.int64) & 0x1FFFFFFF) - 0x10000000
    unsure = (np.abs(beside) <= _NEAR) | ((np.abs(exact) < 2.0**-126) & (exact != 0))
    if unsure.any():
        result[unsure] = function(wide[unsure].astype(np.longdouble)).astype(np.float32)
    return result.reshape(np.shape(value))


@instruction("ex2", "lg2", "sin", "cos", "tanh", "rsqrt")
def approximate(inst: Instruction, binder: Binder) -> Operation:
    """The function in float64, rounded once to the type."""
    function = _FUNCTIONS[inst.opcode]
    # "tanh.approx.bf16x2" and such: the last type says how lanes are packed.
    type_name = inst.type
    target = binder.target(inst, inst.operands[0], type_name)
    source = binder.source(inst, inst.operands[1], type_name)
    if type_name == "f64":
        return binder.gathered([target], function, [source])
    if type_name == "f32":
        if inst.opcode == "rsqrt":
            compute = lambda a: ieee.canonical_f32(function(np.asarray(a, np.float64)).astype(np.float32))  # noqa: E731
        else:
            compute = lambda a: ieee.canonical_f32(rounded_f32(function, a))  # noqa: E731
        return binder.gathered([target], finish_f32(inst, compute), [source])
    brain = type_name.startswith("bf16")

    def halves(value: np.ndarray) -> Source:
        bits = np.array(value, ndmin=1).view(np.uint16)
        wide = ieee.bf16_to_f64(bits) if brain else bits.view(np.float16).astype(np.float64)
        result = function(wide)
        narrow = ieee.to_bf16(result, 0.0) if brain else ieee.to_f16(result, 0.0).view(np.uint16)
        return narrow.view(np.uint32) if TYPE_BYTES[type_name] == 4 else narrow

    raw = "b32" if TYPE_BYTES[type_name] == 4 else "b16"
    return binder.computed(inst, halves, raw, raw)
