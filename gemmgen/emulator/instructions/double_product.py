"""mma.sync on doubles: one small matrix product a warp, as chains of fused multiply-adds.

Fragments follow the PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f64 floating point type" and the same for m16n8k4, m16n8k8 and
m16n8k16. A register of lane l is a double of row l div 4 and k = l mod 4 of A, of column l div 4 and k = l mod 4 of B; registers of A are
ordered down the rows first, 8 at a time, then along k, 4 at a time. C and D are tiles of 8 x 8 elements, two elements a lane side by side.

An element of D is its element of C, to which products are added one after the other in the order of k, rounded to nearest each time.
"""

from __future__ import annotations

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.matrix import aligned, registers_in, whole_warps
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Operand

_SHAPES = {"m8n8k4": (8, 4), "m16n8k4": (16, 4), "m16n8k8": (16, 8), "m16n8k16": (16, 16)}
"""Rows and depth by the words of a shape."""
_HOPPER = 90
_TILE, _QUAD = 8, 4


@instruction("mma", when=lambda inst: inst.type == "f64")
def multiply(inst: Instruction, binder: Binder) -> Operation:
    """D = A B + C."""
    operation = _Multiply(inst, binder)
    return Operation(lambda: operation.run(None), operation.run)


class _Multiply:
    """An mma on doubles of one shape, and its fragments."""

    def __init__(self, inst: Instruction, binder: Binder) -> None:
        aligned(inst)
        shape = inst.modifiers[2] if len(inst.modifiers) > 2 else ""
        target = binder.program.module.target.removeprefix("sm_").rstrip("abf")
        known = shape in _SHAPES and (shape == "m8n8k4" or int(target) >= _HOPPER)
        if not known or inst.modifiers[3:] != ("row", "col", "f64", "f64", "f64", "f64"):
            raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
        binder.require_real(inst, True)
        self.inst, self.binder = inst, binder
        self.rows, self.depth = _SHAPES[shape]
        d, a, b, c = (registers_in(operand) for operand in inst.operands)
        self.a = self._sources(a, self.rows * self.depth)
        self.b = self._sources(b, _TILE * self.depth)
        self.c = self._sources(c, self.rows * _TILE)
        if len(d) * WARP != self.rows * _TILE:
            raise UnknownInstruction("the number of registers does not fit the shape", instruction=inst)
        self.d = [binder.target(inst, register, "f64") for register in d]

    def _sources(self, registers: tuple[Operand, ...], elements: int) -> list[Source]:
        if len(registers) * WARP != elements:
            raise UnknownInstruction("the number of registers does not fit the shape", instruction=self.inst)
        sources = (self.binder.source(self.inst, register, "f64") for register in registers)
        return [source if isinstance(source, np.ndarray) else np.full(self.binder.geometry.lanes, source) for source in sources]

    def _tiles(self, registers: list[Source], lanes: Lanes | None) -> np.ndarray:
        """Registers as [register, warps, quad, lane of the quad]."""
        values = np.stack(registers if lanes is None else [register[lanes] for register in registers])
        return values.reshape(len(registers), -1, _TILE, _QUAD)

    def run(self, lanes: Lanes | None) -> None:
        """Executes the instruction for the warps of these lanes (None: all)."""
        if lanes is not None:
            whole_warps(self.inst, self.binder, lanes)
        halves = self.rows // _TILE
        a = self._tiles(self.a, lanes)
        b = self._tiles(self.b, lanes)
        # Two registers a tile of D hold neighbours of one row: [tile, warps, row, column].
        sums = self._tiles(self.c, lanes).reshape(halves, 2, -1, _TILE, _QUAD).transpose(0, 2, 3, 4, 1).reshape(halves, -1, _TILE, _TILE)
        for k in range(self.depth):
            step, at = divmod(k, _QUAD)
            left = a[step * halves : (step + 1) * halves, :, :, at, None]
            right = b[step, :, None, :, at]
            x, y, _ = np.broadcast_arrays(left, right, sums)
            sums = ieee.fma_f64(x.ravel(), y.ravel(), sums.ravel()).reshape(sums.shape)
        results = sums.reshape(halves, -1, _TILE, _QUAD, 2).transpose(0, 4, 1, 2, 3).reshape(2 * halves, -1)
        for target, result in zip(self.d, results, strict=True):
            if target is not None:
                target[... if lanes is None else lanes] = result
