"""mma.sync: one small matrix product a warp, all warps at once.

Fragments follow the PTX ISA, "Matrix Fragments for mma". They all have one structure: a 32-bit register holds, over the 32
lanes, a tile of 8 rows of 16 bytes; lane l has the bytes 4(l mod 4) to 4(l mod 4) + 3 of row l div 4. The tiles of A are
ordered down its rows first, then along k; B is described by its columns, with k along the 16 bytes; C and D are tiles of
8 x 8 elements, down the rows first, two elements a lane side by side.

The results are those of sm_90, bit for bit (`gemmgen.emulator.tensor_core`). Integers are exact: the accumulator wraps, or
with .satfinite is cut to the range of s32 once, after the whole sum. Bytes of fp8 go through steps on float16 operands.
"""

from __future__ import annotations

import numpy as np

from gemmgen.emulator import residue_products, tensor_core
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.matrix import aligned, registers_in, whole_warps
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Operand

_BYTES, _NIBBLES = ("s8", "u8"), ("s4", "u4")
_FP8 = ("e4m3", "e5m2")
_SHAPES = {
    **dict.fromkeys(_BYTES, ((8, 8, 16), (16, 8, 16), (16, 8, 32))),
    **dict.fromkeys(_NIBBLES, ((8, 8, 32), (16, 8, 32), (16, 8, 64))),
    **dict.fromkeys(("f16", "bf16"), ((16, 8, 8), (16, 8, 16))),
    "tf32": ((16, 8, 4), (16, 8, 8)),
    **dict.fromkeys(_FP8, ((16, 8, 16), (16, 8, 32))),
}
_MIXES = (_BYTES, _NIBBLES, _FP8)
_ELEMENT_BITS = {"s4": 4, "u4": 4, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "f16": 16, "bf16": 16, "tf32": 32}
_DTYPES = {"s8": np.int8, "u8": np.uint8, "e4m3": np.uint8, "e5m2": np.uint8, "f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32}
_TILE = 8


def _elements(tiles: np.ndarray, type_name: str) -> Source:
    """Registers as tiles [..., 8, 4] of uint32 to their elements [..., 8, elements]: integers, or the bits of floats."""
    if type_name not in _NIBBLES:
        return tiles.view(_DTYPES[type_name])
    both = np.repeat(tiles.view(np.uint8), 2, axis=-1)
    both[..., 1::2] >>= 4
    both &= 15
    return both if type_name == "u4" else (both ^ 8).astype(np.int8) - np.int8(8)


class _Multiply:
    """An mma of one shape and its fragments."""

    def __init__(self, inst: Instruction, binder: Binder) -> None:
        self.inst, self.binder = inst, binder
        self.result_type, a_type, b_type, self.sum_type = inst.modifiers[-4:]
        shape = next((m for m in inst.modifiers if m.startswith("m") and m[1:2].isdigit()), "")
        self.rows, self.columns, self.depth = _check(inst, shape, a_type, b_type, self.result_type, self.sum_type)
        self.a_type, self.b_type = a_type, b_type
        self.saturates = inst.has("satfinite")
        binder.require_real(inst, self.sum_type == "f16")
        d, a, b, c = (registers_in(operand) for operand in inst.operands)
        tiles_along_k = self.depth * _ELEMENT_BITS[a_type] // 128
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
        a = self._operand(self.a, self.rows // _TILE, self.a_type, lanes)
        b = self._operand(self.b, 1, self.b_type, lanes)
        words = np.concatenate(self.c if lanes is None else [register[lanes] for register in self.c])
        if self.sum_type == "s32":
            products = self._registers(tensor_core.multiply_integers(a, b)).view(np.int32)
            sums = tensor_core.accumulate_integers(words.view(np.int32).reshape(products.shape), products, saturate=self.saturates)
            results = sums.view(np.uint32)
        else:
            results = self._registers(self._float_sums(a, b, self._accumulators_of(words)))
        for target, result in zip(self.d, results, strict=True):
            if target is not None:
                target[... if lanes is None else lanes] = result

    def _operand(self, registers: list[Source], row_tiles: int, type_name: str, lanes: Lanes | None) -> np.ndarray:
        """A fragment as matrices [warps, rows, k]."""
        words = np.concatenate(registers if lanes is None else [register[lanes] for register in registers])
        along_k = len(registers) // row_tiles
        tiles = words.reshape(along_k, row_tiles, -1, _TILE, 4).transpose(2, 1, 3, 0, 4)
        elements: np.ndarray = _elements(np.ascontiguousarray(tiles), type_name)
        return elements.reshape(elements.shape[0], row_tiles * _TILE, self.depth)

    def _accumulators_of(self, words: np.ndarray) -> np.ndarray:
        """Registers one after another as matrices [warps, rows, columns] of uint32, or of uint16 for f16."""
        row_tiles = self.rows // _TILE
        if self.sum_type == "f16":
            parts = words.view(np.uint16).reshape(row_tiles, -1, _TILE, 4, 2).transpose(1, 0, 2, 3, 4)
        else:
            parts = words.reshape(row_tiles, 2, -1, _TILE, 4).transpose(2, 0, 3, 4, 1)
        return np.ascontiguousarray(parts).reshape(parts.shape[0], self.rows, self.columns)

    def _registers(self, results: np.ndarray) -> np.ndarray:
        """The inverse of `_accumulators_of`: one row of lanes for each register."""
        row_tiles = self.rows // _TILE
        parts = results.reshape(-1, row_tiles, _TILE, 4, 2)
        if self.sum_type == "f16":
            return np.ascontiguousarray(parts.transpose(1, 0, 2, 3, 4)).view(np.uint32).reshape(row_tiles, -1)
        return parts.transpose(1, 4, 0, 2, 3).reshape(row_tiles * 2, -1).view(np.uint32)

    def _float_sums(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        if not self.binder.arithmetic.is_real:
            return residue_products.multiply_add(self.binder.arithmetic, a, b, (self.a_type, self.b_type), c)
        left, right = tensor_core.factor(a, self.a_type), tensor_core.factor(b, self.b_type)
        if self.a_type in _FP8:
            return tensor_core.multiply_fp8_on_halves(left, right, c)
        if self.sum_type == "f16":
            return tensor_core.multiply_half(left, right, c)
        return tensor_core.multiply_float(left, right, c)


def _check(inst: Instruction, shape: str, a_type: str, b_type: str, result_type: str, sum_type: str) -> tuple[int, int, int]:
    """The shape of an mma that is implemented; raises UnknownInstruction for others."""
    aligned(inst)
    integers = a_type in (*_BYTES, *_NIBBLES)
    partners = next((mix for mix in _MIXES if a_type in mix), (a_type,))
    for known in _SHAPES.get(a_type, ()):
        if (
            shape == "m{}n{}k{}".format(*known)
            and b_type in partners
            and result_type == sum_type
            and sum_type in (("s32",) if integers else ("f32", "f16") if a_type in ("f16", *_FP8) else ("f32",))
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
