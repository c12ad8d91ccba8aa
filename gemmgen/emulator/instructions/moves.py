"""mov, cvta, selp, slct and the packing of vectors into wider registers."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.memory import GLOBAL_BASE, LOCAL_WINDOW, RANK_SHIFT, SHARED_WINDOW
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Special, Vector
from gemmgen.emulator.registers import DTYPES


def copy(value: Source, out: np.ndarray | None) -> Source:
    """Moves a row; the ufunc convention."""
    if out is None:
        return value
    np.copyto(out, value)
    return out


@instruction("mov")
def mov(inst: Instruction, binder: Binder) -> Operation:
    """Moves, packs, unpacks; reads special registers and addresses."""
    target, value = inst.operands
    type_name = inst.type
    if isinstance(target, Vector):
        return _unpack(inst, binder, target, type_name)
    if isinstance(value, Vector):
        return _pack(inst, binder, value, type_name)
    row = binder.target(inst, target, type_name)
    if isinstance(value, Special) and binder.specials.is_clock(value.name):
        return _read_clock(binder, row)
    return binder.elementwise(row, copy, [binder.source(inst, value, type_name)])


def _read_clock(binder: Binder, row: np.ndarray | None) -> Operation:
    def full() -> None:
        if row is not None:
            row[...] = binder.specials.tick()

    def some(lanes: Lanes) -> None:
        if row is not None:
            row[lanes] = binder.specials.tick()

    return Operation(full, some)


def _element_type(inst: Instruction, vector: Vector, type_name: str) -> str:
    bits, remainder = divmod(TYPE_BYTES[type_name] * 8, len(vector.elements))
    if remainder or bits not in (8, 16, 32, 64):
        raise UnknownInstruction("a vector that does not divide its register", instruction=inst)
    return f"b{bits}"


def _pack(inst: Instruction, binder: Binder, vector: Vector, type_name: str) -> Operation:
    element = _element_type(inst, vector, type_name)
    target = binder.target(inst, inst.operands[0], type_name)
    sources = [binder.source(inst, operand, element) for operand in vector.elements]
    if target is None:
        return binder.elementwise(None, copy, sources)
    dtype = np.dtype(DTYPES[element])
    parts = len(sources)

    def compute(*values: Source) -> Source:
        length = max(np.size(value) for value in values)
        packed = np.empty((length, parts), dtype)
        for position, value in enumerate(values):
            packed[:, position] = value
        return packed.view(target.dtype)[:, 0]

    return binder.gathered([target], compute, sources)


def _unpack(inst: Instruction, binder: Binder, vector: Vector, type_name: str) -> Operation:
    element = _element_type(inst, vector, type_name)
    # Registers of 8 bits have rows of 16.
    targets = [binder.target(inst, operand, "b16" if element == "b8" else element) for operand in vector.elements]
    source = binder.source(inst, inst.operands[1], f"b{TYPE_BYTES[type_name] * 8}")
    dtype = np.dtype(DTYPES[element])
    parts = len(targets)

    def compute(value: Source) -> list[np.ndarray]:
        columns = np.array(value, ndmin=1).view(dtype).reshape(-1, parts)
        return [columns[:, position] for position in range(parts)]

    return binder.gathered(targets, compute, [source])


@instruction("cvta")
def cvta(inst: Instruction, binder: Binder) -> Operation:
    """Between a space's own addresses and generic ones: global, const and param are the same in both."""
    type_name = inst.type
    target = binder.target(inst, inst.operands[0], type_name)
    source = binder.source(inst, inst.operands[1], type_name)
    window = SHARED_WINDOW if any(word.split("::")[0] == "shared" for word in inst.modifiers) else LOCAL_WINDOW if inst.has("local") else 0
    if not window:
        return binder.elementwise(target, copy, [source])
    if type_name != "u64":
        raise UnknownInstruction("32-bit generic addresses do not exist", instruction=inst)
    compute = np.subtract if inst.has("to") else np.add
    return binder.elementwise(target, compute, [source, np.uint64(window)])


@instruction("isspacep")
def isspacep(inst: Instruction, binder: Binder) -> Operation:
    """True if a generic address lies in a space."""
    target = binder.target(inst, inst.operands[0], "pred")
    source = binder.source(inst, inst.operands[1], "u64")
    shared, local = np.uint64(SHARED_WINDOW >> 32), np.uint64(LOCAL_WINDOW >> 32)
    high = np.uint64(32)
    if (inst.has("shared") or inst.has("shared::cta")) and binder.program.names_clusters:
        own, window = binder.specials.shared_addresses(0, 8), np.uint64(SHARED_WINDOW)
        return binder.gathered(
            [target], lambda value, rank: (value - window) >> np.uint64(RANK_SHIFT) == rank >> np.uint64(RANK_SHIFT), [source, own]
        )
    if inst.has("shared") or inst.has("shared::cta"):
        return binder.gathered([target], lambda value: value >> high == shared, [source])
    if inst.has("local"):
        return binder.gathered([target], lambda value: value >> high == local, [source])
    if inst.has("global"):
        return binder.gathered([target], lambda value: (value >> high != shared) & (value >> high != local), [source])
    if inst.has("shared::cluster"):
        return binder.gathered([target], lambda value: value >> high == shared, [source])
    if inst.has("const") or inst.has("param") or inst.has("param::entry"):
        ranges = _ranges(binder, "const" if inst.has("const") else "param")
        return binder.gathered([target], lambda value: _within(value, ranges), [source])
    raise UnknownInstruction("isspacep of this space", instruction=inst)


def _ranges(binder: Binder, space: str) -> list[tuple[int, int]]:
    """Generic addresses of the variables of a space."""
    placed = [each for each in binder.program.symbols.values() if each.variable.space == space]
    return [(GLOBAL_BASE + each.offset, GLOBAL_BASE + each.offset + each.variable.size) for each in placed]


def _within(value: Source, ranges: list[tuple[int, int]]) -> Source:
    inside = np.zeros(np.shape(value), np.bool_)
    for start, stop in ranges:
        inside = inside | ((value >= np.uint64(start)) & (value < np.uint64(stop)))
    return inside


@instruction("selp")
def selp(inst: Instruction, binder: Binder) -> Operation:
    """One of two values, by a predicate."""
    target = binder.target(inst, inst.operands[0], inst.type)
    first, second = (binder.source(inst, operand, inst.type) for operand in inst.operands[1:3])
    condition = binder.source(inst, inst.operands[3], "pred")
    return binder.gathered([target], lambda c, a, b: np.where(c, a, b), [condition, first, second])


@instruction("slct")
def slct(inst: Instruction, binder: Binder) -> Operation:
    """One of two values, by a sign."""
    type_name, condition_type = inst.types
    target = binder.target(inst, inst.operands[0], type_name)
    first, second = (binder.source(inst, operand, type_name) for operand in inst.operands[1:3])
    condition = binder.source(inst, inst.operands[3], condition_type)
    zero, flush = condition.dtype.type(0), inst.has("ftz")

    def choose(c: Source, a: Source, b: Source) -> Source:
        return np.where((ieee.flush_f32(c) if flush else c) >= zero, a, b)

    return binder.gathered([target], choose, [condition, first, second])
