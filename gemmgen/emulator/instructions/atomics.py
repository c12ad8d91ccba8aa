"""atom and red: read-modify-write. Lanes that meet at one address take turns in lane order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gemmgen.emulator import ieee, residues
from gemmgen.emulator.arithmetic import REAL, Arithmetic
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import NoFieldMeaning, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.floating import minimum
from gemmgen.emulator.instructions.half import _add, join, split
from gemmgen.emulator.instructions.memory import Transfer, through_space
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.memory import Access, Space
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Instruction, Register, Sink, Vector
from gemmgen.emulator.registers import DTYPES

Update = Callable[..., Source]
"""`update(old, b[, c])`: the new values."""

_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")


def _increment(old: np.ndarray, limit: np.ndarray) -> Source:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: np.ndarray, limit: np.ndarray) -> Source:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


_UPDATES: dict[str, Update] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": _increment,
    "dec": _decrement,
    "exch": lambda old, b: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
}


def _flushed(update: Update) -> Update:
    return lambda old, b: ieee.flush_f32(update(ieee.flush_f32(old), ieee.flush_f32(b)))


def _add_f64(old: np.ndarray, b: np.ndarray) -> Source:
    """A sum that takes a NaN as it is, quiet or not."""
    return np.where(np.isnan(b), b, np.where(np.isnan(old), old, old + b))


def update_of(inst: Instruction, operation: str, type_name: str, arithmetic: Arithmetic = REAL) -> Update:
    """The new values of an operation on a type."""
    if operation in _UPDATES:
        return _UPDATES[operation]
    if not arithmetic.is_real and "f" in type_name:
        return _residue_update(inst, operation, type_name, arithmetic)
    if type_name in ("f16", "f16x2", "bf16", "bf16x2"):
        if operation == "add":
            return lambda old, b: join(*_add(split(old, type_name), split(b, type_name)), type_name)
        largest = operation == "max"
        return lambda old, b: join(minimum(split(old, type_name), split(b, type_name), largest, False), 0.0, type_name)
    if type_name == "f32" and operation == "add":
        return lambda old, b: ieee.canonical_f32(old + b)
    if operation == "add":
        return _add_f64 if type_name == "f64" else np.add
    if operation in ("min", "max"):
        return np.minimum if operation == "min" else np.maximum
    raise UnknownInstruction(f"atomic operation .{operation} on .{type_name}", instruction=inst)


def _residue_update(inst: Instruction, operation: str, type_name: str, arithmetic: Arithmetic) -> Update:
    if (operation, type_name) != ("add", "f32"):
        raise NoFieldMeaning(f"atomic operation .{operation} on .{type_name} has no meaning over a finite field", instruction=inst)

    def add(old: np.ndarray, b: np.ndarray) -> Source:
        pair = old.view(np.uint32), np.ascontiguousarray(b).view(np.uint32)
        if arithmetic.name == "tree":
            return residues.tree_sum(*pair).view(old.dtype)
        pair = residues.read(pair[0]), residues.read(pair[1])
        return residues.written(residues.words(residues.folded(pair[0].astype(np.uint64) + pair[1]))).view(old.dtype)

    return add


def stable_order(index: np.ndarray) -> np.ndarray:
    """The stable order of indices; those that lie close together are sorted by their low 16 bits, in linear time."""
    lowest = index.min()
    near = index - lowest
    return np.argsort(near.astype(np.uint16) if int(near.max()) < 1 << 16 else near, kind="stable")


def in_turns(memory: np.ndarray, index: np.ndarray, update: Update, values: tuple[Source, ...]) -> Source:
    """Applies `update` once a lane, lanes of equal index one after another; returns the previous value seen by each lane."""
    order = stable_order(index)
    ordered = index[order]
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    old = np.empty(len(index), memory.dtype)
    if first.all():
        old[:] = memory[index]
        memory[index] = update(old, *values)
        return old
    starts = np.flatnonzero(first)
    turn = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
    by_turn = np.argsort(turn, kind="stable")
    bounds = np.searchsorted(turn[by_turn], np.arange(int(turn.max()) + 2))
    for begin, end in pairwise(bounds):
        who = order[by_turn[begin:end]]
        where = index[who]
        before = memory[where]
        old[who] = before
        memory[where] = update(before, *[value[who] for value in values])
    return old


def integer_add(memory: np.ndarray, index: np.ndarray, values: np.ndarray) -> Source:
    """`in_turns` for integer addition, which needs no turns: running sums give the previous value for each lane."""
    order = stable_order(index)
    ordered, amounts = index[order], values[order]
    totals = np.cumsum(amounts, dtype=memory.dtype)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(ordered)))
    before = np.repeat(totals[starts] - amounts[starts], lengths)
    old = np.empty(len(index), memory.dtype)
    old[order] = memory[ordered] + (totals - amounts - before)
    ends = starts + lengths - 1
    memory[ordered[ends]] += totals[ends] - (totals[starts] - amounts[starts])
    return old


@instruction("atom", "red")
def atomic(inst: Instruction, binder: Binder) -> Operation:
    """Reads, updates and writes back; `atom` returns the previous value."""
    operation = inst.first_of(_OPERATIONS)
    type_name = inst.type
    if operation is None or inst.has("async") or TYPE_BYTES[type_name] > 8:
        raise UnknownInstruction("this atomic form is not implemented", instruction=inst)
    if inst.first_of(("v2", "v4", "v8")):
        return _vector(inst, binder)
    operands = inst.operands
    has_result = inst.opcode == "atom"
    target_operand = operands[0] if has_result else Sink()
    address = operands[1] if has_result else operands[0]
    raw = type_name if type_name[0] in "busf" and "x2" not in type_name and type_name[:2] != "bf" else (f"b{TYPE_BYTES[type_name] * 8}")
    if type_name == "f16":
        raw = "b16"
    if type_name == "f32" and not binder.arithmetic.is_real:
        raw = "b32"
    dtype = np.dtype(DTYPES[raw])
    target = binder.target(inst, target_operand, raw)
    if isinstance(target_operand, Register) and target_operand.name in binder.program.mentioned_once:
        target = None
    sources = [binder.source(inst, operand, raw) for operand in operands[2 if has_result else 1 :]]
    if len(sources) > (2 if operation == "cas" else 1):
        sources = sources[: 2 if operation == "cas" else 1]
    update = update_of(inst, operation, type_name, binder.arithmetic)
    access = Access(inst, "atomic", dtype.itemsize, dtype.itemsize)
    return through_space(
        inst,
        binder,
        address,
        lambda space: _transfer(
            space, access, dtype, target, sources, update, operation == "add" and dtype.kind in "iu" and "f" not in type_name
        ),
    )


def _vector(inst: Instruction, binder: Binder) -> Operation:
    """An operation on neighbouring elements, each for itself: only the elements are atomic, not the vector."""
    has_result = inst.opcode == "atom"
    address = inst.operands[int(has_result)]
    values = inst.operands[-1] if isinstance(inst.operands[-1], Vector) else inst.operands[1 + has_result]
    if not isinstance(address, Address) or not isinstance(values, Vector):
        raise UnknownInstruction("a vector of values is expected", instruction=inst)
    results = inst.operands[0].elements if isinstance(inst.operands[0], Vector) and has_result else (Sink(),) * len(values.elements)
    modifiers = tuple(modifier for modifier in inst.modifiers if modifier not in ("v2", "v4", "v8"))
    parts = []
    for index, (result, value) in enumerate(zip(results, values.elements, strict=True)):
        place = replace(address, offset=address.offset + index * TYPE_BYTES[inst.type])
        operands = (result, place, value) if has_result else (place, value)
        parts.append(atomic(replace(inst, modifiers=modifiers, operands=operands), binder))

    def full() -> None:
        for part in parts:
            part.full()

    def some(lanes: Lanes) -> None:
        for part in parts:
            part.some(lanes)

    return Operation(full, some)


def _transfer(
    space: Space,
    access: Access,
    dtype: np.dtype,
    target: np.ndarray | None,
    sources: list[Source],
    update: Update,
    plain_add: bool,
) -> Transfer:
    units, width = space.units, access.width
    # PTX ISA, atom: on global memory additions of float32 flush subnormal inputs and results, on shared memory they do not.
    flushes = dtype == np.float32 and access.instruction.has("add")

    def transfer(lanes: Lanes | None, addresses: np.ndarray) -> None:
        index = space.locate(access, lanes, addresses)
        memory = units[width].view(dtype)
        values = tuple(
            np.broadcast_to(source[lanes] if lanes is not None and isinstance(source, np.ndarray) else source, index.shape)
            for source in sources
        )
        change = _flushed(update) if flushes and space.name == "global" else update
        if plain_add and target is None:
            np.add.at(memory, index, values[0])
            return
        old = integer_add(memory, index, values[0]) if plain_add else in_turns(memory, index, change, values)
        if target is not None:
            target[... if lanes is None else lanes] = old

    return transfer
