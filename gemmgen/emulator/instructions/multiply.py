"""mma.sync: one small matrix product a warp, all warps at once.

Fragments follow the PTX ISA, "Matrix Fragments for mma". They all have one structure: a 32-bit register holds, over the 32
lanes, a tile of 8 rows of 16 bytes; lane l has the bytes 4(l mod 4) to 4(l mod 4) + 3 of row l div 4. The tiles of A are
ordered down its rows first, then along k; B is described by its columns, with k along the 16 bytes; C and D are tiles of
8 x 8 elements, down the rows first, two elements a lane side by side.

Of sparse products (``mma.sp``), A holds half of the elements along k, and metadata say which (`gemmgen.emulator.instructions.sparse`).
Products that are left out take no part. With `kind::mxf4` and `kind::mxf4nvf4` the metadata choose bytes, each with two floats of 4 bits.

The results are those of sm_90, bit for bit (`gemmgen.emulator.tensor_core`), and for sm_120 those of published bit models. Integers are
exact: the accumulator wraps, or with .satfinite is cut to the range of s32 once, after the whole sum. Bytes of fp8 go through steps on
float16 operands on sm_90; sm_120 multiplies them in one step, as all types of `kind::f8f6f4`.

Block scales (PTX ISA, "Block Scaling for mma.sync") come from registers of some lanes of each quad: byte `byte-id` and following ones
hold the scales along k, `thread-id` chooses the lanes. The scales of rows r and r + 8 of A are in lanes 2 thread-id and 2 thread-id + 1 of
quad r, those of column n of B in lane thread-id of quad n.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gemmgen.emulator import residue_loops, residue_products, residue_words, residues, tensor_core
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.forms import SPARSE
from gemmgen.emulator.instructions.matrix import aligned, registers_in, whole_warps
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.sparse import Metadata
from gemmgen.emulator.instructions.warp import uniform
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Operand, Vector
from gemmgen.emulator.residue_loops import Elements

_BYTES, _NIBBLES = ("s8", "u8"), ("s4", "u4")
_FP8 = ("e4m3", "e5m2")
_SMALL = (*_FP8, "e3m2", "e2m3", "e2m1")
_SHAPES = {
    **dict.fromkeys(_BYTES, ((8, 8, 16), (16, 8, 16), (16, 8, 32))),
    **dict.fromkeys(_NIBBLES, ((8, 8, 32), (16, 8, 32), (16, 8, 64))),
    **dict.fromkeys(("f16", "bf16"), ((16, 8, 8), (16, 8, 16))),
    "tf32": ((16, 8, 4), (16, 8, 8)),
    **dict.fromkeys(_FP8, ((16, 8, 16), (16, 8, 32))),
}
_SPARSE_SHAPES = {
    **dict.fromkeys(("f16", "bf16"), ((16, 8, 16), (16, 8, 32))),
    "tf32": ((16, 8, 8), (16, 8, 16)),
    **dict.fromkeys(_BYTES, ((16, 8, 32), (16, 8, 64))),
    **dict.fromkeys(_FP8, ((16, 8, 64),)),
}
"""Shapes of mma.sp, whose k counts the elements that A leaves out."""
_MIXES = (_BYTES, _NIBBLES, _FP8)
_ELEMENT_BITS = {"s4": 4, "u4": 4, "s8": 8, "u8": 8, **dict.fromkeys(_SMALL, 8), "f16": 16, "bf16": 16, "tf32": 32}
_DTYPES = {
    "s8": np.int8,
    **dict.fromkeys(("u8", *_SMALL), np.uint8),
    **dict.fromkeys(("f16", "bf16"), np.uint16),
    "tf32": np.uint32,
}
_TILE = 8
_QUAD = 4


@dataclass(frozen=True)
class _Kind:
    """A `.kind` of mma on types of up to 8 bits."""

    depth: int
    types: tuple[str, ...]
    scales: tuple[tuple[str, str], ...] = ()
    """Types of scales, each with a number of scales along k as it is written."""
    default: bool = True
    """True if the first of these numbers need not be written."""

    @property
    def packed(self) -> bool:
        """True if a byte holds two floats of 4 bits."""
        return self.depth == 64


_KINDS = {
    "kind::f8f6f4": _Kind(32, _SMALL),
    "kind::mxf8f6f4": _Kind(32, _SMALL, (("ue8m0", "1X"),)),
    "kind::mxf4": _Kind(64, ("e2m1",), (("ue8m0", "2X"),)),
    "kind::mxf4nvf4": _Kind(64, ("e2m1",), (("ue8m0", "2X"), ("ue8m0", "4X"), ("ue4m3", "4X")), default=False),
}


def _elements(tiles: np.ndarray, type_name: str, packed: bool) -> Source:
    """Registers as tiles [..., 8, 4] of uint32 to their elements [..., 8, elements]: integers, or the bits of floats. `packed` floats have
    4 bits, without space between them; where they are parts of words, bytes of two are given."""
    if packed and residue_words.has_packed_words():
        return tiles.view(np.uint8)
    if type_name not in _NIBBLES and not packed:
        elements = tiles.view(_DTYPES[type_name])
        # In a separate byte, a float of 4 bits has two unused bits on either side, one of 6 bits has them above.
        return elements >> 2 & 15 if type_name == "e2m1" else elements & 63 if type_name in ("e3m2", "e2m3") else elements
    both = np.repeat(tiles.view(np.uint8), 2, axis=-1)
    both[..., 1::2] >>= 4
    both &= 15
    return (both ^ 8).astype(np.int8) - np.int8(8) if type_name == "s4" else both


class _Multiply:
    """An mma of one shape and its fragments."""

    def __init__(self, inst: Instruction, binder: Binder) -> None:
        self.inst, self.binder = inst, binder
        self.kind = _KINDS.get(inst.first_of(tuple(_KINDS)) or "")
        self.sparse = inst.first_of(SPARSE) is not None
        types = inst.modifiers[-5:-1] if self.kind is not None and self.kind.scales else inst.modifiers[-4:]
        self.result_type, a_type, b_type, self.sum_type = types
        shape = next((m for m in inst.modifiers if m.startswith("m") and m[1:2].isdigit()), "")
        if self.kind is None:
            self.rows, self.columns, self.depth = _check(inst, shape, a_type, b_type, self.result_type, self.sum_type)
        else:
            self.rows, self.columns, self.depth = _check_kind(inst, self.kind, shape, types, self.sparse)
        self.a_type, self.b_type = a_type, b_type
        self.saturates = inst.has("satfinite")
        self.packed = self.kind is not None and self.kind.packed
        self.one_step = binder.program.module.target.startswith("sm_12")
        scaled = self.kind is not None and bool(self.kind.scales) and not self.sparse
        has_residues = self.kind is None or (scaled and {a_type, b_type} <= set(residues.CODE_BITS))
        binder.require_real(inst, self.sum_type == "f16" or not has_residues)
        d, a, b, c = (registers_in(operand) for operand in inst.operands[:4])
        tiles_along_k = self.depth * (4 if self.packed else _ELEMENT_BITS[a_type]) // 128
        self.metadata = self._metadata() if self.sparse else None
        self.a = self._sources(a, self.rows // _TILE * tiles_along_k // (2 if self.sparse else 1))
        self.b = self._sources(b, tiles_along_k)
        self.c = self._sources(c, self._accumulators(self.sum_type))
        if len(d) != self._accumulators(self.result_type):
            raise UnknownInstruction("the number of registers does not fit the shape", instruction=inst)
        self.d = [binder.target(inst, register, "b32") for register in d]
        self.scales = self._scales() if self.kind is not None and self.kind.scales else None
        self.loops = self._loops()

    def _loops(self) -> Callable[[Elements, Lanes | None], None] | None:
        """The whole product in C, over the field of residues that elements have by a table; None where there is no such loop."""
        library = residue_loops.loops()
        plain = self.binder.arithmetic.name == "field" and self.sum_type in ("f32", "s32") and not self.sparse and self.scales is None
        registers = [*self.a, *self.b, *self.c, *self.d]
        if library is None or not plain or any(each is not None and each.strides != (each.itemsize,) for each in registers):
            return None
        places = (ctypes.c_void_p * len(registers))(*[None if each is None else each.ctypes.data for each in registers])
        tiles, along_k = self.rows // _TILE, len(self.b)
        is_reduced = self.sum_type == "s32"

        def compute(elements: Elements, lanes: Lanes | None) -> None:
            codes = residue_loops.NO_CODES if is_reduced else residues.codes_in_loops()
            firsts = None if lanes is None else np.ascontiguousarray(lanes[::WARP], np.int64)
            warps = self.binder.geometry.lanes // WARP if firsts is None else len(firsts)
            pointer = None if firsts is None else firsts.ctypes.data
            library.multiply_fragments(codes, places, tiles, along_k, elements, is_reduced, warps, pointer)
            residues.settle()

        return compute

    def _metadata(self) -> tuple[Metadata, Source]:
        """The metadata of a sparse A."""
        registers = registers_in(self.inst.operands[4]) if len(self.inst.operands) >= 6 else ()
        selector = self.inst.operands[5] if len(registers) == 1 else None
        if not isinstance(selector, Integer):
            raise UnknownInstruction("an mma.sp has six operands, metadata and a constant selector behind C", instruction=self.inst)
        bits, elements = (8, self.depth // 2) if self.packed else (_ELEMENT_BITS[self.a_type], self.depth)
        return Metadata(self.inst, bits, elements, selector.value), self._source(registers[0])

    def _scales(self) -> tuple[_ScaleFactors, _ScaleFactors]:
        """The block scales of A and B."""
        before = 6 if self.sparse else 4
        if len(self.inst.operands) != before + 4:
            raise UnknownInstruction("an mma with block scales has four operands for them", instruction=self.inst)
        assert self.kind is not None
        vector = next((m for m in self.inst.modifiers if m.startswith("scale_vec::")), None)
        count = int(self.kind.scales[0][1][0] if vector is None else vector.removeprefix("scale_vec::")[0])
        of_a, ids_of_a, of_b, ids_of_b = self.inst.operands[before:]
        return self._scales_in(of_a, ids_of_a, count, self.rows), self._scales_in(of_b, ids_of_b, count, self.columns)

    def _scales_in(self, register: Operand, ids: Operand, count: int, rows: int) -> _ScaleFactors:
        registers = registers_in(register)
        if len(registers) != 1 or not isinstance(ids, Vector) or len(ids.elements) != 2:
            raise UnknownInstruction("scales are {a register}, {byte-id, thread-id}", instruction=self.inst)
        byte, thread = (self.binder.source(self.inst, element, "u16") for element in ids.elements)
        return _ScaleFactors(self.inst, self._source(registers[0]), byte, thread, count, rows)

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
        if self.loops is not None and (elements := residue_products.elements_of((self.a_type, self.b_type))) is not None:
            self.loops(elements, lanes)
            return
        a = self._operand(self.a, self.rows // _TILE, self.a_type, lanes)
        b = self._operand(self.b, 1, self.b_type, lanes)
        words = np.concatenate(self.c if lanes is None else [register[lanes] for register in self.c])
        if self.metadata is not None:
            # Each row of A selects other rows of B, so every row is multiplied separately.
            places, source = self.metadata
            own = places.read(source if lanes is None else source[lanes], a)
            if self.packed:
                own = np.stack([2 * own, 2 * own + 1], axis=-1).reshape(*own.shape[:2], -1)
            chosen = np.take_along_axis(b[:, None], own[:, :, None], axis=3)
            a, b = a.reshape(-1, 1, a.shape[2]), chosen.reshape(-1, *chosen.shape[2:])
        if self.sum_type == "s32" and not residue_products.adds_residues((self.a_type, self.b_type)):
            sums_of_products = tensor_core.multiply_integers(a, b).reshape(-1, self.rows, self.columns)
            products = self._registers(sums_of_products).view(np.int32)
            sums = tensor_core.accumulate_integers(words.view(np.int32).reshape(products.shape), products, saturate=self.saturates)
            results = sums.view(np.uint32)
        else:
            before = self._accumulators_of(words)
            rows = before.reshape(-1, 1, self.columns) if self.sparse else before
            results = self._registers(np.ascontiguousarray(self._float_sums(a, b, rows, lanes)).reshape(before.shape))
        for target, result in zip(self.d, results, strict=True):
            if target is not None:
                target[... if lanes is None else lanes] = result

    def _operand(self, registers: list[Source], row_tiles: int, type_name: str, lanes: Lanes | None) -> np.ndarray:
        """A fragment as matrices [warps, rows, k]."""
        words = np.concatenate(registers if lanes is None else [register[lanes] for register in registers])
        along_k = len(registers) // row_tiles
        tiles = words.reshape(along_k, row_tiles, -1, _TILE, 4).transpose(2, 1, 3, 0, 4)
        elements: np.ndarray = _elements(np.ascontiguousarray(tiles), type_name, self.packed)
        return elements.reshape(elements.shape[0], row_tiles * _TILE, -1)

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

    def _float_sums(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, lanes: Lanes | None) -> np.ndarray:
        if not self.binder.arithmetic.is_real and self.scales is not None:
            codes = [scales.codes(lanes) for scales in self.scales]
            return residue_products.multiply_add_scaled(self.binder.arithmetic, a, b, (self.a_type, self.b_type), c, *codes)
        if not self.binder.arithmetic.is_real:
            return residue_products.multiply_add(self.binder.arithmetic, a, b, (self.a_type, self.b_type), c)
        left, right = tensor_core.factor(a, self.a_type), tensor_core.factor(b, self.b_type)
        if self.scales is not None:
            of_a, of_b = (scales.read(lanes) for scales in self.scales)
            if self.sparse:
                of_a, of_b = of_a.by_row(), of_b.repeated(self.rows)
            multiply = tensor_core.multiply_block_scaled if self.packed else tensor_core.multiply_scaled
            return multiply(left, right, c, of_a, of_b)
        if self.a_type in _FP8 and self.kind is None and not self.one_step:
            return tensor_core.multiply_fp8_on_halves(left, right, c)
        if self.sum_type == "f16":
            return tensor_core.multiply_half(left, right, c)
        return tensor_core.multiply_float(left, right, c)


@dataclass(frozen=True)
class _ScaleFactors:
    """The registers that scales come from."""

    inst: Instruction
    source: Source
    byte: Source
    thread: Source
    count: int
    """Scales along k, one a byte."""
    rows: int
    """Rows of A or columns of B."""

    def read(self, lanes: Lanes | None) -> tensor_core.Scales:
        """The scales of each warp, [warps, rows, count]."""
        return tensor_core.scales(self.codes(lanes), self.inst.modifiers[-1])

    def codes(self, lanes: Lanes | None) -> np.ndarray:
        """Their bits."""
        lanes_a_row = self.rows // _TILE
        byte = self._id(self.byte, range(0, 4, self.count), "byte-id", lanes)
        thread = self._id(self.thread, range(_QUAD // lanes_a_row), "thread-id", lanes)
        words = self.source if lanes is None else self.source[lanes]
        quads = residue_words.scales(np.ascontiguousarray(words).view(np.uint8)).reshape(-1, WARP // _QUAD, _QUAD, 4)
        chosen = quads[:, :, thread * lanes_a_row : (thread + 1) * lanes_a_row, byte : byte + self.count]
        return np.ascontiguousarray(chosen.transpose(0, 2, 1, 3)).reshape(-1, self.rows, self.count)

    def _id(self, source: Source, allowed: range, name: str, lanes: Lanes | None) -> int:
        value = uniform(source if lanes is None or not isinstance(source, np.ndarray) else source[lanes])
        if value is None or value not in allowed:
            got = "differs between lanes" if value is None else f"is {value}"
            wanted = ", ".join(map(str, allowed))
            raise UnknownInstruction(f"the {name} of a scale {got}; it must be one of {wanted} for all lanes", instruction=self.inst)
        return value


def _check_kind(inst: Instruction, kind: _Kind, shape: str, types: tuple[str, ...], sparse: bool) -> tuple[int, int, int]:
    """The shape of an mma with a kind; raises UnknownInstruction for forms that the PTX ISA does not have."""
    aligned(inst)
    result_type, a_type, b_type, sum_type = types
    sums = ("f32",) if kind.scales else ("f32", "f16")
    vector = next((m.removeprefix("scale_vec::") for m in inst.modifiers if m.startswith("scale_vec::")), None)
    if kind.scales:
        scaled = inst.has("block_scale") and any(
            inst.modifiers[-1] == type_name and vector in (number, None if kind.default else number) for type_name, number in kind.scales
        )
    else:
        scaled = not inst.has("block_scale") and vector is None
    depth = kind.depth * 2 if sparse else kind.depth
    if inst.has("sp"):
        raise UnknownInstruction("sparse products with a kind have .sp::ordered_metadata", instruction=inst)
    valid = shape == f"m16n8k{depth}" and a_type in kind.types and b_type in kind.types and result_type == sum_type in sums
    if not (scaled and valid and inst.has("row") and inst.has("col") and not inst.has("satfinite")):
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    return 16, 8, depth


def _check(inst: Instruction, shape: str, a_type: str, b_type: str, result_type: str, sum_type: str) -> tuple[int, int, int]:
    """The shape of an mma that is implemented; raises UnknownInstruction for others."""
    aligned(inst)
    integers = a_type in (*_BYTES, *_NIBBLES)
    partners = next((mix for mix in _MIXES if a_type in mix), (a_type,))
    sparse = inst.modifiers[0] in SPARSE
    written = inst.modifiers[1:] if sparse else inst.modifiers
    for known in (_SPARSE_SHAPES if sparse else _SHAPES).get(a_type, ()):
        if (
            shape == "m{}n{}k{}".format(*known)
            and b_type in partners
            and result_type == sum_type
            and sum_type in (("s32",) if integers else ("f32", "f16") if a_type in ("f16", *_FP8) else ("f32",))
            and (integers or not inst.has("satfinite"))
            and written[3:5] == ("row", "col")
        ):
            return known
    raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)


@instruction("mma")
def multiply(inst: Instruction, binder: Binder) -> Operation:
    """D = A B + C."""
    operation = _Multiply(inst, binder)
    return Operation(lambda: operation.run(None), operation.run)
