"""wmma: matrix fragments whose layout over the lanes is unspecified, loaded, multiplied and stored by whole warps.

The PTX ISA leaves open which lane holds which element. Here the elements lie row by row over the lanes, each lane holding as
many neighbours as its registers have room for; where there is room for more than the matrix has, it is repeated. Products are
those of one mma step over the whole depth.
"""

from __future__ import annotations

import re

import numpy as np

from gemmgen.emulator import ieee, residue_products, tensor_core
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.matrix import aligned, registers_in, whole_warps
from gemmgen.emulator.instructions.memory import Transfer, in_space
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.memory import Access, Space
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Operand

_BYTES = {"tf32": 4, **TYPE_BYTES}
_FLOATS = ("f16", "bf16", "tf32")


def _shape(inst: Instruction) -> tuple[int, int, int]:
    for modifier in inst.modifiers:
        match = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", modifier)
        if match is not None:
            return int(match[1]), int(match[2]), int(match[3])
    raise UnknownInstruction("wmma without a shape", instruction=inst)


def _extent(inst: Instruction, part: str) -> tuple[int, int]:
    """Rows and columns of a matrix: A, B, or C and D."""
    rows, columns, depth = _shape(inst)
    return {"a": (rows, depth), "b": (depth, columns)}.get(part, (rows, columns))


class _Fragment:
    """The registers of one matrix, all lanes side by side."""

    def __init__(self, inst: Instruction, binder: Binder, registers: tuple[Operand, ...], part: str, type_name: str, writes: bool) -> None:
        self.inst, self.rows_columns = inst, _extent(inst, part)
        self.bytes = _BYTES[type_name]
        self.dtype = np.dtype(f"u{self.bytes}")
        raw = "b64" if type_name == "f64" else "b32"
        read = binder.target if writes else binder.source
        self.registers: list[Source] = [read(inst, register, raw) for register in registers]
        if not writes:
            wide = np.dtype("u8" if raw == "b64" else "u4")
            lanes = binder.geometry.lanes
            self.registers = [r if isinstance(r, np.ndarray) else np.full(lanes, r, wide) for r in self.registers]
        self.slots = len(registers) * (8 if raw == "b64" else 4) // self.bytes
        count = self.rows_columns[0] * self.rows_columns[1]
        if self.slots * WARP % count:
            raise UnknownInstruction("the number of registers does not fit the shape", instruction=inst)
        self.count = count

    def places(self, lanes: Lanes) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of each element that lanes hold, [lanes, slots]."""
        element = ((lanes % WARP)[:, None] * self.slots + np.arange(self.slots)) % self.count
        row, column = np.divmod(element, self.rows_columns[1])
        return row, column

    def elements(self, lanes: Lanes) -> np.ndarray:
        """Elements that lanes hold, [lanes, slots]."""
        words = np.stack([register[lanes] for register in self.registers], axis=1)
        held: np.ndarray = np.ascontiguousarray(words).view(self.dtype)
        return held

    def matrices(self, lanes: Lanes) -> np.ndarray:
        """The matrices of whole warps, [warps, rows, columns]."""
        held = self.elements(lanes).reshape(-1, WARP * self.slots)
        return held[:, : self.count].reshape(-1, *self.rows_columns)

    def put(self, lanes: Lanes, elements: np.ndarray) -> None:
        """Gives lanes their elements, [lanes, slots]."""
        words = np.ascontiguousarray(elements.astype(self.dtype, copy=False)).view(f"u{4 if self.bytes < 8 else 8}")
        for number, register in enumerate(self.registers):
            if register is not None:
                register[lanes] = words[:, number]


@instruction("wmma", when=lambda inst: inst.has("load") or inst.has("store"))
def move(inst: Instruction, binder: Binder) -> Operation:
    """Fragments from memory and to memory, element by element. The stride counts elements between rows, or columns for `.col`."""
    aligned(inst)
    loads = inst.has("load")
    part = inst.modifiers[1]
    type_name = inst.modifiers[-1]
    if type_name not in _BYTES:
        raise UnknownInstruction(f"wmma on .{type_name} is not implemented", instruction=inst)
    vector, address = inst.operands[:2] if loads else (inst.operands[1], inst.operands[0])
    fragment = _Fragment(inst, binder, registers_in(vector), part, type_name, loads)
    by_columns = inst.has("col")
    rows, columns = fragment.rows_columns
    dense: Source = np.uint32(rows if by_columns else columns)
    stride = binder.source(inst, inst.operands[2], "u32") if len(inst.operands) > 2 else dense
    size = fragment.bytes
    access = Access(inst, "load" if loads else "store", size, size)

    def offsets(lanes: Lanes) -> np.ndarray:
        row, column = fragment.places(lanes)
        line = value_at(stride, lanes).astype(np.int64)[:, None]
        places: np.ndarray = (column * line + row if by_columns else row * line + column) * size
        return places

    def make(space: Space) -> Transfer:
        def transfer(lanes: Lanes | None, addresses: np.ndarray) -> None:
            assert lanes is not None
            places = addresses[:, None] + offsets(lanes).astype(addresses.dtype)
            memory = space.units[size]
            if loads:
                elements = np.empty(places.shape, fragment.dtype)
                for slot in range(fragment.slots):
                    elements[:, slot] = memory[space.locate(access, lanes, np.ascontiguousarray(places[:, slot]))]
                fragment.put(lanes, elements)
                return
            elements = fragment.elements(lanes)
            for slot in range(fragment.slots):
                memory[space.locate(access, lanes, np.ascontiguousarray(places[:, slot]))] = elements[:, slot]

        return transfer

    _, some_addresses = binder.addresses(inst, address)
    transfer = in_space(inst, binder, address, make)

    def run(lanes: Lanes) -> None:
        whole_warps(inst, binder, lanes)
        transfer(lanes, some_addresses(lanes))

    return by_lanes(binder, run)


@instruction("wmma", when=lambda inst: inst.has("mma"))
def multiply(inst: Instruction, binder: Binder) -> Operation:
    """D = A B + C on fragments."""
    aligned(inst)
    types = [modifier for modifier in inst.modifiers if modifier in _BYTES]
    result_type, a_type, b_type, sum_type = types if len(types) == 4 else (types[0], "f16", "f16", types[-1])
    floats = a_type in _FLOATS and a_type == b_type and sum_type in ("f32", "f16")
    if result_type != sum_type or not (floats or (a_type in ("s8", "u8") and sum_type == "s32") or sum_type == a_type == "f64"):
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    binder.require_real(inst, sum_type in ("f16", "f64"))
    d, a, b, c = (
        _Fragment(inst, binder, registers_in(operand), part, type_name, part == "d")
        for operand, part, type_name in zip(inst.operands, "dabc", (result_type, a_type, b_type, sum_type), strict=True)
    )

    def product(left: np.ndarray, right: np.ndarray, addend: np.ndarray) -> np.ndarray:
        if sum_type == "f64":
            total = addend.view(np.float64)
            for k in range(left.shape[-1]):
                x, y = np.broadcast_arrays(left[:, :, k : k + 1].view(np.float64), right[:, None, :, k].view(np.float64))
                total = ieee.fma_f64(x.ravel(), y.ravel(), total.ravel()).reshape(total.shape)
            return total.view(np.uint64)
        if sum_type == "s32":
            signed = [each.view(np.int8) if name == "s8" else each for each, name in ((left, a_type), (right, b_type))]
            sums = tensor_core.multiply_integers(*signed)
            return tensor_core.accumulate_integers(addend.view(np.int32), sums, saturate=inst.has("satfinite")).view(np.uint32)
        if not binder.arithmetic.is_real:
            return residue_products.multiply_add(binder.arithmetic, left, right, (a_type, b_type), addend)
        factors = tensor_core.factor(left, a_type), tensor_core.factor(right, b_type)
        return (tensor_core.multiply_half if sum_type == "f16" else tensor_core.multiply_float)(*factors, addend)

    def run(lanes: Lanes) -> None:
        whole_warps(inst, binder, lanes)
        right = np.ascontiguousarray(b.matrices(lanes).swapaxes(1, 2))
        results = product(np.ascontiguousarray(a.matrices(lanes)), right, np.ascontiguousarray(c.matrices(lanes)))
        d.put(lanes, results.reshape(len(lanes), d.slots))

    return by_lanes(binder, run)
