"""mma.sync: one small matrix product a warp, all warps at once.

Fragments follow the PTX ISA, "Matrix Fragments for mma". They all have one structure: a 32-bit register holds, over the 32
lanes, a tile of 8 rows of 16 bytes; lane l has the bytes 4(l mod 4) to 4(l mod 4) + 3 of row l div 4. The tiles of A are
ordered down its rows first, then along k; B is described by its columns, with k along the 16 bytes; C and D are tiles of
8 x 8 elements, down the rows first, two elements a lane side by side.

Integers are exact: the accumulator wraps, or with .satfinite is cut to the range of s32 once, after the whole sum. For
floating types the ISA leaves the order and the intermediate precision of the sum open. Here the products are exact, the
sum of the products and the accumulator is formed in float64, and the result is rounded once to nearest even: at least as
accurate as any GPU, not bit for bit the same. Of a .tf32 operand the low 13 bits are ignored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Operation, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.matrix import aligned, registers_in, whole_warps
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.ptx.syntax import Instruction, Operand

_INTEGER_SHAPES = ((8, 8, 16), (16, 8, 16), (16, 8, 32))
_SHAPES = {
    "s8": _INTEGER_SHAPES, "u8": _INTEGER_SHAPES, "f16": ((16, 8, 8), (16, 8, 16)), "bf16": ((16, 8, 8), (16, 8, 16)),
    "tf32": ((16, 8, 4), (16, 8, 8)),
}  # fmt: skip
_ELEMENT_BYTES = {"s8": 1, "u8": 1, "f16": 2, "bf16": 2, "tf32": 4}
_TF32_BITS = np.uint32(0xFFFFE000)
_TILE = 8

Values = Callable[[np.ndarray], Source]
"""Registers as tiles [..., 8, 4] of uint32 to their values [..., 8, elements], in a type in which the sums are exact."""


def _bf16(tiles: np.ndarray) -> Source:
    return ieee.bf16_to_f64(tiles.view(np.uint16))


_VALUES: dict[str, Values] = {
    # Sums of 32 products of two bytes stay below 2**24: float32 holds them exactly, and its matrix product is fast.
    "s8": lambda tiles: tiles.view(np.int8).astype(np.float32),
    "u8": lambda tiles: tiles.view(np.uint8).astype(np.float32),
    "f16": lambda tiles: tiles.view(np.float16).astype(np.float64),
    "bf16": _bf16,
    "tf32": lambda tiles: (tiles & _TF32_BITS).view(np.float32).astype(np.float64),
}


class _Multiply:
    """An mma of one shape and its fragments."""

    def __init__(self, inst: Instruction, binder: Binder) -> None:
        self.inst, self.binder = inst, binder
        self.result_type, a_type, b_type, self.sum_type = inst.modifiers[-4:]
        shape = next((m for m in inst.modifiers if m.startswith("m") and m[1:2].isdigit()), "")
        self.rows, self.columns, self.depth = _check(inst, shape, a_type, b_type, self.result_type, self.sum_type)
        self.a_values, self.b_values = _VALUES[a_type], _VALUES[b_type]
        self.saturates = inst.has("satfinite")
        element = _ELEMENT_BYTES[a_type]
        d, a, b, c = (registers_in(operand) for operand in inst.operands)
        tiles_along_k = self.depth * element // 16
        self.a = self._sources(a, self.rows // _TILE * tiles_along_k)
        self.b = self._sources(b, tiles_along_k)
        self.c = self._sources(c, self._accumulators(self.sum_type))
        if len(d) != self._accumulators(self.result_type):
            raise UnknownInstruction("the number of registers does not fit the shape", instruction=inst)
        self.d = [binder.target(inst, register, "b32") for register in d]

    def _accumulators(self, type_name: str) -> int:
        elements = self.rows * self.columns // WARP
        return elements // 2 if type_name == "f16" else elements

    def _sources(self, registers: tuple[Operand, ...], wanted: int) -> list[Source]:
        if len(registers) != wanted:
            raise UnknownInstruction("the number of registers does not fit the shape", instruction=self.inst)
        return [self._source(register) for register in registers]

    def _source(self, register: Operand) -> Source:
        source = self.binder.source(self.inst, register, "b32")
        return source if isinstance(source, np.ndarray) else np.full(self.binder.geometry.lanes, source)

    def run(self, lanes: Lanes | None) -> None:
        """Executes the instruction for the warps of these lanes (None: all)."""
        if lanes is not None:
            whole_warps(self.inst, self.binder, lanes)
        a = self._operand(self.a, self.rows // _TILE, self.a_values, lanes)
        b = self._operand(self.b, 1, self.b_values, lanes)
        product = a @ b.swapaxes(1, 2)
        # From [warps, rows, columns] to one row of lanes for each element that a lane holds.
        tiles = product.reshape(-1, self.rows // _TILE, _TILE, 4, 2)
        elements = tiles.transpose(1, 4, 0, 2, 3).reshape(self.rows // _TILE * 2, -1)
        results = self._sums(elements, lanes)
        for target, result in zip(self.d, results, strict=True):
            if target is not None:
                target[... if lanes is None else lanes] = result

    def _operand(self, registers: list[Source], row_tiles: int, values: Values, lanes: Lanes | None) -> np.ndarray:
        """A fragment as matrices [warps, rows, k]."""
        words = np.concatenate(registers if lanes is None else [register[lanes] for register in registers])
        along_k = len(registers) // row_tiles
        tiles = words.reshape(along_k, row_tiles, -1, _TILE, 4).transpose(2, 1, 3, 0, 4)
        numbers: np.ndarray = values(np.ascontiguousarray(tiles))
        return numbers.reshape(numbers.shape[0], row_tiles * _TILE, self.depth)

    def _sums(self, products: np.ndarray, lanes: Lanes | None) -> Source:
        """The accumulators plus the products [elements, lanes], as registers."""
        words = np.concatenate(self.c if lanes is None else [register[lanes] for register in self.c]).reshape(len(self.c), -1)
        if self.sum_type == "s32":
            if not self.saturates:
                return words + products.astype(np.int32).view(np.uint32)
            # Both summands and their sum are integers below 2**53.
            exact = np.add(words.view(np.int32), products, dtype=np.float64)
            return np.minimum(np.maximum(exact, -(2.0**31)), 2.0**31 - 1).astype(np.int32).view(np.uint32)
        if self.sum_type == "f16":
            halves = words.reshape(*words.shape, 1).view(np.float16).astype(np.float64)
            total = products + halves.transpose(0, 2, 1).reshape(products.shape)
        else:
            total = products + words.view(np.float32)
        if self.result_type == "f32":
            return ieee.canonical_f32(total.astype(np.float32)).view(np.uint32)
        narrow = ieee.canonical_f16(total.astype(np.float16)).view(np.uint16)
        pairs = np.ascontiguousarray(narrow.reshape(len(total) // 2, 2, -1).transpose(0, 2, 1))
        return pairs.view(np.uint32)[:, :, 0]


def _check(inst: Instruction, shape: str, a_type: str, b_type: str, result_type: str, sum_type: str) -> tuple[int, int, int]:
    """The shape of an mma that is implemented; raises UnknownInstruction for others."""
    aligned(inst)
    integers = a_type in ("s8", "u8")
    for known in _SHAPES.get(a_type, ()):
        if (
            shape == "m{}n{}k{}".format(*known)
            and (b_type in ("s8", "u8") if integers else b_type == a_type)
            and result_type == sum_type
            and sum_type in (("s32",) if integers else ("f32", "f16") if a_type == "f16" else ("f32",))
            and (integers or not inst.has("satfinite"))
            and inst.modifiers[3:5] == ("row", "col")
        ):
            return known
    raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)


@instruction("mma")
def multiply(inst: Instruction, binder: Binder) -> Operation:
    """D = A B + C."""
    operation = _Multiply(inst, binder)
    return Operation(lambda: operation.run(None), operation.run)
