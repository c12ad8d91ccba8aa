"""Approximate functions: ex2, lg2, sin, cos, tanh, rsqrt.

The GPU's results are within the bounds of the PTX manual (about 2 ulp for ex2, lg2 and rsqrt, absolute 2**-20.5 for sin
and cos inside [-pi, pi], relative 2**-11 for tanh). The emulator returns the correctly rounded value of the
float64 function, so results agree within those bounds, not bit for bit.
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
        compute = lambda a: ieee.canonical_f32(function(np.asarray(a, np.float64)).astype(np.float32))  # noqa: E731
        return binder.gathered([target], finish_f32(inst, compute), [source])
    brain = type_name.startswith("bf16")

    def halves(value: np.ndarray) -> Source:
        bits = np.array(value, ndmin=1).view(np.uint16)
        wide = ieee.bf16_to_f64(bits) if brain else bits.view(np.float16).astype(np.float64)
        result = function(wide)
        narrow = ieee.to_bf16(result, 0.0) if brain else ieee.to_f16(result, 0.0).view(np.uint16)
        return narrow.view(np.uint32) if TYPE_BYTES[type_name] == 4 else narrow

    raw = "b32" if TYPE_BYTES[type_name] == 4 else "b16"
    return binder.gathered([binder.target(inst, inst.operands[0], raw)], halves, [binder.source(inst, inst.operands[1], raw)])
