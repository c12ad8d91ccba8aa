"""SIMD video instructions: two halves or four bytes of a word at once, and their sum if asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction

_OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray], Source]] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}


@instruction(*(f"{stem}{parts}" for stem in _OPERATIONS for parts in (2, 4)))
def simd(inst: Instruction, binder: Binder) -> Operation:
    """`vop.dtype.atype.btype{.sat}{.add} d, a, b, c`: part by part; with .add, c and the sum of the parts."""
    if len(inst.types) != 3 or set(inst.modifiers) - {"u32", "s32", "sat", "add"}:
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    compute, parts = _OPERATIONS[inst.opcode[:-1]], int(inst.opcode[-1])
    size = 4 // parts
    result_type, *sources_types = inst.types
    low, high = (-(1 << (8 * size - 1)), (1 << (8 * size - 1)) - 1) if result_type == "s32" else (0, (1 << 8 * size) - 1)
    adds, saturates = inst.has("add"), inst.has("sat")
    a_kind, b_kind = ("i" if name == "s32" else "u" for name in sources_types)

    def split(value: Source, kind: str) -> np.ndarray:
        words: np.ndarray = np.array(value, ndmin=1).view(f"{kind}{size}").reshape(-1, parts).astype(np.int64)
        return words

    def run(a: Source, b: Source, c: Source) -> Source:
        results = compute(split(a, a_kind), split(b, b_kind))
        if saturates:
            results = np.clip(results, low, high)
        if adds:
            return (results.sum(axis=1) + np.asarray(c).astype(np.int64)).astype(np.uint32)
        return np.ascontiguousarray(results.astype(f"u{size}")).view(np.uint32)[:, 0]

    target = binder.target(inst, inst.operands[0], "u32")
    return binder.gathered([target], run, [binder.source(inst, operand, "u32") for operand in inst.operands[1:4]])
