"""tensormap: tensor maps that a kernel changes, in global or in shared memory, and their way back to global memory.

PTX ISA, "tensormap.replace" and "tensormap.cp_fenceproxy". A map in memory is a number here; a changed map gets a new number. Whether
the driver would take it is asked when a copy uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.engines.boxes import PlacedMap, decode
from gemmgen.emulator.errors import InvalidCopy, Misaligned, UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.memory import in_space
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import value_at
from gemmgen.emulator.memory import GLOBAL_BASE, Access, Space
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Address, Instruction, Integer
from gemmgen.hardware.tensor_map import MAP_ALIGNMENT, MAP_BYTES, MAX_AXES, TensorMap

_CHUNK = 16
_ELEMENTS = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32_ftz", "f64", "bf16", "tf32", "tf32_ftz")
_NAMED = {
    "elemtype": ("element", _ELEMENTS),
    "interleave_layout": ("interleave", ("none", "16B", "32B")),
    "swizzle_mode": ("swizzle", ("none", "32B", "64B", "128B")),
    "swizzle_atomicity": ("swizzle", ("128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")),
    "fill_mode": ("fill", ("zeros", "nan")),
}
"""Fields whose values are names, in the order of the ISA's numbers."""
_BY_AXIS = {"box_dim": "box", "global_dim": "extents", "global_stride": "strides", "element_stride": "element_strides"}


def changed(placed: PlacedMap, field: str, axis: int, value: int) -> tuple[TensorMap, int]:
    """A map with one field replaced, and where its array begins. Raises ValueError for a value that no field can have."""
    old = placed.map
    if field == "global_address":
        return old, value - GLOBAL_BASE
    if field == "rank":
        return _of_rank(old, value + 1), placed.base
    if field in _NAMED:
        name, values = _NAMED[field]
        if value >= len(values):
            raise ValueError(f"{field} {value}, which means nothing")
        chosen = values[value]
        if field == "swizzle_atomicity" and not old.swizzle.startswith("128B"):
            if value > 0:
                raise ValueError(f"atoms of a swizzle of {old.swizzle}, but only 128B has a choice of them")
            chosen = old.swizzle
        if field == "swizzle_mode" and chosen == "128B" and old.swizzle.startswith("128B"):
            chosen = old.swizzle
        changed: dict[str, Any] = {name: chosen}
        return replace(old, **changed), placed.base
    name = _BY_AXIS[field]
    numbers = list(getattr(old, name) or (1,) * old.rank)
    if axis >= len(numbers):
        return old, placed.base  # a map has room for five axes: CUTLASS fills those beyond the rank too, which nothing reads
    numbers[axis] = value
    changed = {name: tuple(numbers)}
    return replace(old, **changed), placed.base


def _of_rank(old: TensorMap, rank: int) -> TensorMap:
    """A map with axes left out, or with more of one element."""
    more = max(rank - old.rank, 0)
    strides = (*old.strides, *[old.strides[-1] if old.strides else _CHUNK] * more)[: rank - 1]
    steps = (*old.element_strides, *[1] * more)[:rank] if old.element_strides else ()
    return replace(
        old, extents=(*old.extents, *[1] * more)[:rank], strides=strides, box=(*old.box, *[1] * more)[:rank], element_strides=steps
    )


def _chunks(inst: Instruction, binder: Binder, address: int, lane: int) -> np.ndarray:
    if address % MAP_ALIGNMENT:
        binder.fail(Misaligned, f"a tensor map at 0x{address:x}, which is no multiple of {MAP_ALIGNMENT}", inst, np.array([lane]))
    chunks: np.ndarray = np.uint64(address) + np.arange(0, MAP_BYTES, _CHUNK, dtype=np.uint64)
    return chunks


@instruction("tensormap", when=lambda inst: inst.modifiers[:1] == ("replace",))
def replace_field(inst: Instruction, binder: Binder) -> Operation:
    """Replaces one field of a tensor map."""
    field = inst.first_of(("global_address", "rank", *_BY_AXIS, *_NAMED))
    address, *rest = inst.operands
    if field is None or not inst.has("tile") or not isinstance(address, Address) or len(rest) != 1 + (field in _BY_AXIS):
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    choices = range(MAX_AXES) if field in _BY_AXIS else range(len(_NAMED[field][1])) if field in _NAMED else None
    if choices is not None and not (isinstance(rest[0], Integer) and rest[0].value in choices):
        what = "an axis" if field in _BY_AXIS else "a value"
        raise UnknownInstruction(f"tensormap.replace.{field} needs {what} that is a constant from 0 to {choices[-1]}", instruction=inst)
    axis = rest[0].value if field in _BY_AXIS and isinstance(rest[0], Integer) else 0
    values = binder.source(inst, rest[-1], "u64" if inst.modifiers[-1] == "b64" else "u32")
    engines = binder.engines

    def make(space: Space) -> Callable[[Lanes | None, np.ndarray], None]:
        loads, stores = Access(inst, "load", _CHUNK, _CHUNK), Access(inst, "store", _CHUNK, _CHUNK)

        def run(lanes: Lanes | None, addresses: np.ndarray) -> None:
            who = np.arange(len(addresses)) if lanes is None else lanes
            for lane, at, value in zip(who.tolist(), addresses.tolist(), value_at(values, who).tolist(), strict=True):
                chunks, same = _chunks(inst, binder, at, lane), np.full(MAP_BYTES // _CHUNK, lane)
                units = space.units[_CHUNK]
                number = decode(units[space.locate(loads, same, chunks)].tobytes())
                if number is None:
                    binder.fail(InvalidCopy, f"no tensor map at 0x{at:x}: its 128 bytes are something else", inst, np.array([lane]))
                try:
                    new, base = changed(engines.maps[number], field, axis, value)
                except ValueError as error:
                    binder.fail(InvalidCopy, str(error), inst, np.array([lane]))
                placed = PlacedMap(new, base, len(engines.maps), changed=True)
                engines.maps.append(placed)
                units[space.locate(stores, same, chunks)] = np.frombuffer(placed.encode(), np.uint8).view(units.dtype)

        return run

    all_addresses, some_addresses = binder.addresses(inst, address)
    transfer = in_space(inst, binder, address, make)
    return Operation(lambda: transfer(None, all_addresses()), lambda lanes: transfer(lanes, some_addresses(lanes)))


@instruction("tensormap", when=lambda inst: inst.modifiers[:1] == ("cp_fenceproxy",))
def copy_back(inst: Instruction, binder: Binder) -> Operation:
    """Copies a tensor map from shared to global memory, for TMA to see."""
    target, source, size = inst.operands
    if not isinstance(size, Integer) or size.value != MAP_BYTES:
        raise UnknownInstruction(f"tensormap.cp_fenceproxy copies {MAP_BYTES} bytes, no other number", instruction=inst)
    to, of = (binder.addresses(inst, each)[1] for each in (target, source))
    shared, global_ = binder.spaces.shared, binder.spaces.global_
    loads, stores = Access(inst, "load", _CHUNK, _CHUNK), Access(inst, "store", _CHUNK, _CHUNK)

    def run(lanes: Lanes) -> None:
        # The whole warp takes part; one lane's copy is enough.
        first = lanes[np.unique(lanes // WARP, return_index=True)[1]]
        for lane, there, here in zip(first.tolist(), to(first).tolist(), of(first).tolist(), strict=True):
            same = np.full(MAP_BYTES // _CHUNK, lane)
            content = shared.units[_CHUNK][shared.locate(loads, same, _chunks(inst, binder, here, lane))]
            global_.units[_CHUNK][global_.locate(stores, same, _chunks(inst, binder, there, lane))] = content

    everyone = np.arange(binder.geometry.lanes)
    return Operation(lambda: run(everyone), run)
