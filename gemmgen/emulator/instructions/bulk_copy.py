"""cp.async.bulk and its tensor form: copies that TMA makes for one lane.

PTX ISA, "Data Movement and Conversion Instructions: Bulk copy" and "Tensor copy", with their reductions, prefetches and bulk groups. Each
lane that executes one starts a separate copy; the engine decides when its data moves (`engines/copies.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.engines import Copy, PlacedMap
from gemmgen.emulator.engines.boxes import Box, decode
from gemmgen.emulator.engines.tensor_memory import pair_of
from gemmgen.emulator.errors import ClusterMisuse, InvalidCopy, Misaligned, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.atomics import update_of
from gemmgen.emulator.instructions.mbarrier import shared_offsets
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.memory import GLOBAL_BASE, LOCAL_WINDOW, Access
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Address, Instruction, Integer, Operand, Vector
from gemmgen.emulator.registers import DTYPES
from gemmgen.emulator.transfers import AsyncAccess
from gemmgen.hardware.tensor_map import MAP_ALIGNMENT, MAP_BYTES, SHARED_ALIGNMENT, TensorMap, problems

_CHUNK = 16
_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_ROUNDED = ("tf32", "tf32_ftz")
"""Elements that a copy to shared memory rounds."""

BARRIER = "the completion of a phase of its barrier"
GROUP_READ = "the end of its reading (cp.async.bulk.wait_group.read)"


def _is_bulk(*words: str) -> Callable[[Instruction], bool]:
    return lambda inst: inst.has("bulk") and all(inst.has(word) for word in words)


def _to_shared(inst: Instruction) -> bool:
    """True if the first state space, the destination, is shared memory."""
    first = inst.first_of(("shared::cluster", "shared::cta", "global"))
    return first is not None and first != "global"


# -- bulk groups -----------------------------------------------------------------------------------------------


@instruction("cp", when=_is_bulk("commit_group"))
def commit_group(inst: Instruction, binder: Binder) -> Operation:
    """Closes the open bulk group."""
    return by_lanes(binder, binder.engines.copies.commit)


@instruction("cp", when=_is_bulk("wait_group"))
def wait_group(inst: Instruction, binder: Binder) -> Operation:
    """Completes all bulk groups but the N latest; with .read only the reading of their sources."""
    copies = binder.engines.copies
    count, only_reads = inst.operands[0], inst.has("read")
    if not isinstance(count, Integer) or count.value < 0:
        raise UnknownInstruction("cp.async.bulk.wait_group needs a constant", instruction=inst)
    return by_lanes(binder, lambda lanes: copies.wait(lanes, count.value, only_reads))


# -- common to all copies ----------------------------------------------------------------------------


class Ends:
    """Both ends of the copies of one instruction."""

    def __init__(self, inst: Instruction, binder: Binder) -> None:
        self.inst = inst
        self.binder = binder
        self.engines = binder.engines
        self.global_ = binder.spaces.global_
        self.shared = binder.spaces.shared
        self.loads = Access(inst, "load", _CHUNK, _CHUNK)
        self.stores = Access(inst, "store", _CHUNK, _CHUNK)

    def fail(self, message: str, lane: int) -> None:
        self.binder.fail(InvalidCopy, message, self.inst, np.array([lane]))

    def global_units(self, kind: str, lane: int, units: np.ndarray, unit: int) -> None:
        """Checks, and tells observers of, global memory that a lane's copy touches."""
        if len(units):
            access = Access(self.inst, kind, unit, unit)
            addresses = (units * unit).astype(np.uint64) + np.uint64(GLOBAL_BASE)
            self.global_.locate(access, np.full(len(units), lane), addresses)

    def box_moved(self, kind: str, placed: PlacedMap, box: Box, blocks: int) -> None:
        """Tells observers of the rows of a box."""
        if self.shared.observers:
            rows = np.where(box.inside, box.array * box.unit, -1).reshape(placed.map.rows, -1)
            for observer in self.shared.observers:
                observer.box_moved(self.inst, kind, rows, box.unit, blocks)

    def aligned(self, offset: int, lane: int, alignment: int, what: str) -> None:
        """Raises Misaligned for an address that is no multiple of `alignment`."""
        address = self.shared.shown(offset)
        if address % alignment:
            self.binder.fail(
                Misaligned,
                f"{what} at shared address {address}, which is {address % alignment} bytes past a multiple of {alignment}",
                self.inst,
                np.array([lane]),
            )

    def writes(self, lane: int, chunks: np.ndarray) -> AsyncAccess:
        """Marks chunks of shared memory as being written until the barrier tells."""
        return self.engines.proxy.begin(self.inst, "write", np.array([lane]), chunks, BARRIER)

    def reads(self, lane: int, chunks: np.ndarray, awaits: str) -> AsyncAccess:
        """Marks chunks of shared memory as being read."""
        return self.engines.proxy.begin(self.inst, "read", np.array([lane]), chunks, awaits)

    def targets(self, lane: int, destination: int, barrier: int, mask: int | None) -> Iterator[tuple[int, int]]:
        """Destination and barrier (absolute offsets) of every block that gets the data. With `.cta_group::2` the barriers are in the blocks
        of their pairs that have the parity of the named barrier's block (PTX ISA, "cp.async.bulk.tensor")."""
        stride, geometry = self.shared.stride, self.binder.geometry
        pairs = self.inst.has("cta_group::2")
        if pairs:
            pair_of(self.inst, geometry, lane // geometry.stride, lambda message: self._misused(message, lane))
        if mask is None:
            if (destination // stride // 2 != barrier // stride // 2) if pairs else (destination // stride != barrier // stride):
                where = "in the pair of the block" if pairs else "in the block"
                self._misused(f"the barrier of a copy has to be {where} that gets the data", lane)
            yield destination, barrier
            return
        size = geometry.cluster_size
        if mask == 0 or mask >> size:
            absent = [rank for rank in range(mask.bit_length()) if mask >> rank & 1 and rank >= size]
            reason = f"there is no block of rank {absent[0]}" if absent else "it names no block"
            self._misused(f"multicast to the ranks of mask 0x{mask:x} in a cluster of {size}: {reason}", lane)
        first = lane // geometry.stride // size * size
        ranks = [rank for rank in range(size) if mask >> rank & 1]
        self.engines.clusters.check_remote(self.inst, np.full(len(ranks), lane), np.array([first + rank for rank in ranks]))
        parity = barrier // stride % 2
        for rank in ranks:
            signalled = rank // 2 * 2 + parity if pairs and self.inst.opcode == "cp" else rank
            yield (first + rank) * stride + destination % stride, (first + signalled) * stride + barrier % stride

    def _misused(self, message: str, lane: int) -> NoReturn:
        self.binder.fail(ClusterMisuse, message, self.inst, np.array([lane]))

    def use_barrier(self, lane: int, offset: int) -> None:
        """The barrier must be there when the copy is issued."""
        barrier = self.engines.barriers.at(self.inst, np.array([lane]), offset)
        for observer in self.shared.observers:
            observer.barrier_used(self.inst, barrier, np.array([lane]))
            observer.engine_uses_barrier(self.inst, barrier, lane)


def _operands(inst: Instruction) -> list[Operand]:
    operands = list(inst.operands)
    if inst.has("L2::cache_hint"):
        operands.pop()
    return operands


def _multicast(inst: Instruction, binder: Binder, operands: list[Operand]) -> Source | None:
    return binder.source(inst, operands.pop(), "u16") if inst.has("multicast::cluster") else None


def _chunks(first_byte: int, size: int) -> np.ndarray:
    return np.arange(first_byte // _CHUNK, (first_byte + size) // _CHUNK)


# -- bulk copies -----------------------------------------------------------------------------------------------


@instruction("cp", when=lambda inst: inst.has("bulk") and inst.first_of(("tensor", "commit_group", "wait_group")) is None)
def bulk_copy(inst: Instruction, binder: Binder) -> Operation:
    """Copies, or reduces, a run of bytes between global and shared memory or between blocks of a cluster; prefetches do nothing."""
    operands = _operands(inst)
    if inst.has("prefetch"):
        return _prefetch(inst, binder, operands)
    mask = _multicast(inst, binder, operands)
    if _to_shared(inst):
        if len(operands) != 4:
            raise UnknownInstruction("cp.async.bulk in a form that is not understood", instruction=inst)
        return (_between_blocks if not inst.has("global") else _to_block)(inst, binder, operands, mask)
    if len(operands) != (4 if inst.has("cp_mask") else 3):
        raise UnknownInstruction("cp.async.bulk in a form that is not understood", instruction=inst)
    return _to_global(inst, binder, operands)


def _prefetch(inst: Instruction, binder: Binder, operands: list[Operand]) -> Operation:
    ends = Ends(inst, binder)
    _, addresses = binder.addresses(inst, operands[0])
    size = binder.source(inst, operands[1], "u32")

    def run(lanes: Lanes) -> None:
        for lane, address, count in zip(lanes.tolist(), addresses(lanes).tolist(), value_at(size, lanes).tolist(), strict=True):
            _run_of_bytes(ends, lane, address - GLOBAL_BASE, count)

    return by_lanes(binder, run)


def _run_of_bytes(ends: Ends, lane: int, start: int, size: int) -> np.ndarray:
    """Chunks of global memory; raises for a size or an address that is no multiple of 16."""
    if size % _CHUNK:
        ends.fail(f"a bulk copy of {size} bytes, which is no multiple of {_CHUNK}", lane)
    if start % _CHUNK:
        ends.binder.fail(
            Misaligned,
            f"a bulk copy at global address 0x{start + GLOBAL_BASE:x}, which is no multiple of {_CHUNK}",
            ends.inst,
            np.array([lane]),
        )
    return _chunks(start, size)


def _checked_shared(ends: Ends, lane: int, offset: int, size: int) -> None:
    """Raises OutOfBounds if a run of bytes leaves its block's shared memory."""
    access = Access(ends.inst, "store", 1, 1)
    if size:
        lanes = np.array([lane])
        ends.shared.resolve(access, lanes, ends.shared.own_addresses(lanes, np.array([offset % ends.shared.stride + size - 1])))


def _to_block(inst: Instruction, binder: Binder, operands: list[Operand], mask: Source | None) -> Operation:
    ends = Ends(inst, binder)
    destinations = shared_offsets(inst, binder, operands[0], _CHUNK)
    _, addresses = binder.addresses(inst, operands[1])
    size = binder.source(inst, operands[2], "u32")
    barriers = shared_offsets(inst, binder, operands[3], 8)
    source, shared = binder.spaces.global_, binder.spaces.shared

    def run(lanes: Lanes) -> None:
        masks = None if mask is None else value_at(mask, lanes).tolist()
        sizes, starts = value_at(size, lanes).tolist(), addresses(lanes).tolist()
        for position, (lane, to, barrier) in enumerate(
            zip(lanes.tolist(), destinations(lanes).tolist(), barriers(lanes).tolist(), strict=True)
        ):
            count = sizes[position]
            taken = _run_of_bytes(ends, lane, starts[position] - GLOBAL_BASE, count)
            _checked_shared(ends, lane, to, count)
            if not count:
                continue
            ends.global_units("load", lane, taken, _CHUNK)
            targets = list(ends.targets(lane, to, barrier, None if masks is None else masks[position]))
            for _, signal in targets:
                ends.use_barrier(lane, signal)
            writes = [ends.writes(lane, _chunks(target, count)) for target, _ in targets]
            put = box_putter(shared.units, [access.chunks for access in writes], _CHUNK)
            take = _taker(source.units, taken)
            ends.engines.copies.issue(Copy(inst, lane, take, put, None, writes, [(signal, count) for _, signal in targets]))

    return by_lanes(binder, run)


def _taker(units: dict[int, np.ndarray], index: np.ndarray, unit: int = _CHUNK) -> Callable[[], np.ndarray]:
    return lambda: units[unit][index]


def _between_blocks(inst: Instruction, binder: Binder, operands: list[Operand], mask: Source | None) -> Operation:
    ends = Ends(inst, binder)
    destinations = shared_offsets(inst, binder, operands[0], _CHUNK)
    sources = shared_offsets(inst, binder, operands[1], _CHUNK)
    size = binder.source(inst, operands[2], "u32")
    barriers = shared_offsets(inst, binder, operands[3], 8)
    shared = binder.spaces.shared
    combine = _combination(inst, binder)

    def run(lanes: Lanes) -> None:
        for lane, to, origin, count, barrier in zip(
            lanes.tolist(),
            destinations(lanes).tolist(),
            sources(lanes).tolist(),
            value_at(size, lanes).tolist(),
            barriers(lanes).tolist(),
            strict=True,
        ):
            if count % _CHUNK:
                ends.fail(f"a bulk copy of {count} bytes, which is no multiple of {_CHUNK}", lane)
            _checked_shared(ends, lane, to, count)
            _checked_shared(ends, lane, origin, count)
            if not count:
                continue
            ((target, signal),) = ends.targets(lane, to, barrier, None)
            ends.use_barrier(lane, signal)
            reads = ends.reads(lane, _chunks(origin, count), BARRIER)
            writes = ends.writes(lane, _chunks(target, count))

            put = _putter(shared.units, combine, writes.chunks)
            take = _taker(shared.units, reads.chunks)
            ends.engines.copies.issue(Copy(inst, lane, take, put, reads, [writes], [(signal, count)]))

    return by_lanes(binder, run)


def _to_global(inst: Instruction, binder: Binder, operands: list[Operand]) -> Operation:
    ends = Ends(inst, binder)
    _, addresses = binder.addresses(inst, operands[0])
    sources = shared_offsets(inst, binder, operands[1], _CHUNK)
    size = binder.source(inst, operands[2], "u32")
    mask = binder.source(inst, operands[3], "u16") if inst.has("cp_mask") else None
    units, shared = binder.spaces.global_.units, binder.spaces.shared
    combine, kind = _combination(inst, binder), "atomic" if inst.has("reduce") else "store"

    def run(lanes: Lanes) -> None:
        masks = None if mask is None else value_at(mask, lanes).tolist()
        for position, (lane, address, origin, count) in enumerate(
            zip(lanes.tolist(), addresses(lanes).tolist(), sources(lanes).tolist(), value_at(size, lanes).tolist(), strict=True)
        ):
            written = _run_of_bytes(ends, lane, address - GLOBAL_BASE, count)
            _checked_shared(ends, lane, origin, count)
            if not count:
                continue
            reads = ends.reads(lane, _chunks(origin, count), GROUP_READ)
            if masks is None:
                ends.global_units(kind, lane, written, _CHUNK)
                put = _putter(units, combine, written)
            else:
                chosen = np.array([byte for byte in range(_CHUNK) if masks[position] >> byte & 1], np.int64)
                places = (np.arange(count // _CHUNK)[:, None] * _CHUNK + chosen).ravel()
                to = written[:1].sum() * _CHUNK + places
                ends.global_units("store", lane, to, 1)
                put = _byte_putter(units, to, places)
            ends.engines.copies.issue_in_group(Copy(inst, lane, _taker(shared.units, reads.chunks), put, reads))

    return by_lanes(binder, run)


def _putter(units: dict[int, np.ndarray], combine: Combine, index: np.ndarray, unit: int = _CHUNK) -> Callable[[np.ndarray], None]:
    return lambda data: combine(units, index, data, unit)


def _byte_putter(units: dict[int, np.ndarray], index: np.ndarray, places: np.ndarray) -> Callable[[np.ndarray], None]:
    def put(data: np.ndarray) -> None:
        units[1][index] = data.view(np.uint8)[places]

    return put


Combine = Callable[[dict[int, np.ndarray], np.ndarray, np.ndarray, int], None]
"""`combine(units, index, data, unit)` writes data, or reduces it into the old contents."""


def _combination(inst: Instruction, binder: Binder, element: str | None = None) -> Combine:
    """Effect at the destination. `element`: type of the elements if the instruction names none."""
    operation = inst.first_of(_OPERATIONS) if inst.has("reduce") else None
    if operation is None:

        def write(units: dict[int, np.ndarray], index: np.ndarray, data: np.ndarray, unit: int) -> None:
            units[unit][index] = data

        return write
    type_name = element or inst.type
    if type_name in ("bf16", "f16") and operation != "add":
        # The minimum of halves works on pairs.
        type_name += "x2"
    update = update_of(inst, operation, type_name, binder.arithmetic)
    dtype = np.dtype(DTYPES[type_name if type_name not in ("f16", "f16x2") else "b16" if type_name == "f16" else "b32"])

    def reduce(units: dict[int, np.ndarray], index: np.ndarray, data: np.ndarray, unit: int) -> None:
        old = np.ascontiguousarray(units[unit][index]).view(dtype)
        units[unit][index] = np.ascontiguousarray(update(old, data.view(dtype)), dtype).view(units[unit].dtype)

    return reduce


# -- tensor copies ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TensorOperand:
    """The `[map, {coordinates}]` of an instruction."""

    addresses: Callable[[Lanes], np.ndarray]
    coordinates: tuple[Source, ...]


def _tensor_operand(inst: Instruction, binder: Binder, operand: Operand) -> _TensorOperand:
    if not (isinstance(operand, Address) and len(operand.extra) == 1 and isinstance(operand.extra[0], Vector)):
        raise UnknownInstruction("a tensor copy without a map and coordinates", instruction=inst)
    _, some = binder.addresses(inst, Address(operand.base, operand.offset))
    elements = operand.extra[0].elements
    return _TensorOperand(some, tuple(binder.source(inst, element, "s32") for element in elements))


def _map_at(ends: Ends, address: int, lane: int) -> PlacedMap:
    """The tensor map at a global or generic address."""
    inst, lanes = ends.inst, np.array([lane])
    if address % MAP_ALIGNMENT:
        ends.binder.fail(Misaligned, f"a tensor map at 0x{address:x}, which is no multiple of {MAP_ALIGNMENT}", inst, lanes)
    if LOCAL_WINDOW <= address < GLOBAL_BASE:
        ends.fail(
            "a tensor map in a thread's local memory, to which the compiler has copied it: it has to lie in global or constant memory, "
            "or be a parameter that is declared const __grid_constant__ CUtensorMap",
            lane,
        )
    access = Access(inst, "load", _CHUNK, _CHUNK, describes=True)
    chunks = np.uint64(address) + np.arange(0, MAP_BYTES, _CHUNK, dtype=np.uint64)
    index = ends.global_.locate(access, np.full(len(chunks), lane), chunks)
    number = decode(ends.global_.units[_CHUNK][index].tobytes())
    if number is None:
        ends.fail(f"no tensor map at 0x{address:x}: its 128 bytes are something else", lane)
        raise AssertionError("unreachable")
    placed = ends.engines.maps[number]
    wrong = list(problems(placed.map, placed.base + GLOBAL_BASE)) if placed.changed else []
    if wrong:
        ends.fail("\n  ".join(["a tensor map that CUDA does not allow, after the kernel has changed it", *wrong]), lane)
    return placed


def _dimensions(inst: Instruction) -> int:
    word = inst.first_of(("1d", "2d", "3d", "4d", "5d"))
    if word is None:
        raise UnknownInstruction("a tensor copy without a number of dimensions", instruction=inst)
    return int(word[0])


def _box(ends: Ends, placed: PlacedMap, lane: int, coordinates: list[int], offsets: list[int], address: int) -> Box:
    """The box that a lane's copy moves; raises InvalidCopy where map and instruction do not fit."""
    inst, m = ends.inst, placed.map
    im2col = inst.has("im2col") or inst.has("im2col_no_offs")
    if m.rank != _dimensions(inst) or m.rank != len(coordinates):
        ends.fail(f"a copy of {len(coordinates)} dimensions through a tensor map of {m.rank}", lane)
    if (m.im2col is not None) != im2col:
        have, want = ("im2col", "tile") if m.im2col is not None else ("tile", "im2col")
        ends.fail(f"a copy in {want} mode through a tensor map that was made for {have} mode", lane)
    _check_coordinates(ends, m, lane, coordinates)
    ends.aligned(address, lane, SHARED_ALIGNMENT, "a box of a tensor copy")
    inside = address % ends.shared.stride
    if inside + m.shared_bytes > ends.shared.size:
        _checked_shared(ends, lane, address, m.shared_bytes)
    stores = _leaves_shared(inst)
    if not im2col:
        return placed.tile(coordinates, inside, stores)
    if stores:
        _check_pixels(ends, placed, lane, coordinates)
    else:
        _check_offsets(ends, m, lane, offsets)
    return placed.column(coordinates, offsets, inside, stores)


def _leaves_shared(inst: Instruction) -> bool:
    """True for stores and reductions of boxes."""
    return not (_to_shared(inst) or inst.has("prefetch"))


def _check_coordinates(ends: Ends, m: TensorMap, lane: int, coordinates: list[int]) -> None:
    """Coordinates at which a GPU ends the kernel with an illegal instruction (seen on an H200)."""
    begin = coordinates[0] * m.unit_bytes
    if begin % _CHUNK:
        ends.fail(
            f"a tensor copy at innermost coordinate {coordinates[0]}, {begin} bytes: in bytes it has to be a multiple of {_CHUNK}; a GPU "
            "stops with an illegal instruction",
            lane,
        )
    if _leaves_shared(ends.inst) and min(coordinates) < 0:
        ends.fail(f"a store through a tensor map at negative coordinates {coordinates}; a GPU stops with an illegal instruction", lane)


def _check_pixels(ends: Ends, placed: PlacedMap, lane: int, coordinates: list[int]) -> None:
    """A column that is stored may not walk into padding, neither that before the pixels nor that behind them (faults of an H200)."""
    pixels = placed.pixels(coordinates)
    extents = [placed.map.extents[axis] for axis in placed.map.spatial_axes]
    outside = np.flatnonzero((pixels < 0).any(axis=1) | (pixels[:, : len(extents)] >= extents).any(axis=1))
    if len(outside):
        ends.fail(
            f"a store through a tensor map whose walk leaves the array: pixel {outside[0]} of its column is at "
            f"{pixels[outside[0]].tolist()}, in padding; a GPU stops with an illegal instruction",
            lane,
        )


def _check_offsets(ends: Ends, m: TensorMap, lane: int, offsets: list[int]) -> None:
    """Offsets of pixels share 16 bits (PTX ISA, "im2col mode"): all of one axis, 8 of each of two, 5 of each of three."""
    limit = 1 << 16 // (m.rank - 2)
    for offset in offsets:
        if offset >= limit:
            ends.fail(f"an im2col offset of {offset}; with {m.rank} axes 0 to {limit - 1} are possible", lane)


@instruction("cp", when=_is_bulk("tensor"))
def tensor_copy(inst: Instruction, binder: Binder) -> Operation:
    """Copies, or reduces, a box of an array between global and shared memory; prefetches only look at their operands."""
    operands = _operands(inst)
    mask = _multicast(inst, binder, operands)
    if inst.has("prefetch"):
        return _load(inst, binder, None, operands, None)
    if _to_shared(inst):
        return _load(inst, binder, operands.pop(0), operands, mask)
    return _store(inst, binder, operands)


def _load(inst: Instruction, binder: Binder, destination: Operand | None, operands: list[Operand], mask: Source | None) -> Operation:
    ends = Ends(inst, binder)
    tensor = _tensor_operand(inst, binder, operands.pop(0))
    destinations = barriers = None
    if destination is not None:
        destinations = shared_offsets(inst, binder, destination, _CHUNK)
        barriers = shared_offsets(inst, binder, operands.pop(0), 8)
    offset_sources: tuple[Source, ...] = ()
    if inst.has("im2col"):
        if not operands or not isinstance(operands[0], Vector) or len(operands[0].elements) != _dimensions(inst) - 2:
            raise UnknownInstruction("a copy in im2col mode without its offsets", instruction=inst)
        offset_sources = tuple(binder.source(inst, element, "u16") for element in operands.pop(0).elements)  # type: ignore[union-attr]
    if operands:
        raise UnknownInstruction("a tensor copy with operands too many", instruction=inst)
    global_units, shared = binder.spaces.global_.units, binder.spaces.shared

    def run(lanes: Lanes) -> None:
        masks = None if mask is None else value_at(mask, lanes).tolist()
        maps = tensor.addresses(lanes).tolist()
        coordinates = [value_at(source, lanes).tolist() for source in tensor.coordinates]
        offsets = [value_at(source, lanes).tolist() for source in offset_sources]
        to = [0] * len(lanes) if destinations is None else destinations(lanes).tolist()
        signals = [0] * len(lanes) if barriers is None else barriers(lanes).tolist()
        for position, lane in enumerate(lanes.tolist()):
            placed = _map_at(ends, maps[position], lane)
            box = _box(ends, placed, lane, [c[position] for c in coordinates], [o[position] for o in offsets], to[position])
            if destinations is None:
                continue
            inside = box.array[box.inside]
            ends.global_units("load", lane, inside, box.unit)
            targets = list(ends.targets(lane, to[position], signals[position], None if masks is None else masks[position]))
            for _, signal in targets:
                ends.use_barrier(lane, signal)
            ends.box_moved("load", placed, box, len(targets))
            stride = shared.stride
            places = [target // stride * stride // box.unit + box.shared for target, _ in targets]
            writes = [ends.writes(lane, _chunks_of(place, box.unit)) for place in places]
            copy = Copy(
                inst,
                lane,
                _box_taker(global_units, placed, box, inside),
                box_putter(shared.units, places, box.unit),
                None,
                writes,
                [(signal, placed.map.box_bytes) for _, signal in targets],
            )
            ends.engines.copies.issue(copy)

    return by_lanes(binder, run)


def _chunks_of(units: np.ndarray, unit: int) -> np.ndarray:
    return units if unit == _CHUNK else np.unique(units * unit // _CHUNK)


def _box_taker(units: dict[int, np.ndarray], placed: PlacedMap, box: Box, inside: np.ndarray) -> Callable[[], np.ndarray]:
    def take() -> np.ndarray:
        elements: np.ndarray = units[box.unit][inside]
        if placed.map.element in _ROUNDED:
            elements = _rounded_to_tf32(np.ascontiguousarray(elements).view(np.uint32)).view(elements.dtype)
        if len(inside) == len(box.inside):
            return elements
        data = np.full(len(box.inside), placed.fill(box.unit).view(elements.dtype)[0], elements.dtype)
        data[box.inside] = elements
        return data

    return take


def _rounded_to_tf32(bits: np.ndarray) -> np.ndarray:
    """Elements as a copy of a tf32 map leaves them: 10 bits of mantissa, to nearest even, and one NaN (measured on an H200)."""
    wide = bits.astype(np.uint64)
    rounded = ((wide + 0xFFF + (wide >> np.uint64(13) & np.uint64(1))) & np.uint64(0xFFFFE000)).astype(np.uint32)
    return np.where((bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), np.uint32(0x7FFFE000), rounded)


def box_putter(units: dict[int, np.ndarray], places: list[np.ndarray], unit: int) -> Callable[[np.ndarray], None]:
    """Writes the same data to several places, given as units of memory."""

    def put(data: np.ndarray) -> None:
        for place in places:
            units[unit][place] = data

    return put


def _store(inst: Instruction, binder: Binder, operands: list[Operand]) -> Operation:
    ends = Ends(inst, binder)
    if len(operands) != 2:
        raise UnknownInstruction("a tensor copy in a form that is not understood", instruction=inst)
    tensor = _tensor_operand(inst, binder, operands[0])
    sources = shared_offsets(inst, binder, operands[1], _CHUNK)
    units, shared = binder.spaces.global_.units, binder.spaces.shared
    kind = "atomic" if inst.has("reduce") else "store"

    def run(lanes: Lanes) -> None:
        maps = tensor.addresses(lanes).tolist()
        coordinates = [value_at(source, lanes).tolist() for source in tensor.coordinates]
        origins = sources(lanes).tolist()
        for position, lane in enumerate(lanes.tolist()):
            placed = _map_at(ends, maps[position], lane)
            origin = origins[position]
            box = _box(ends, placed, lane, [c[position] for c in coordinates], [0] * (len(coordinates) - 2), origin)
            inside = box.array[box.inside]
            ends.global_units(kind, lane, inside, box.unit)
            if not len(inside):
                continue
            ends.box_moved(kind, placed, box, 1)
            place = (origin // shared.stride * shared.stride // box.unit + box.shared)[box.inside]
            reads = ends.reads(lane, _chunks_of(place, box.unit), GROUP_READ)
            combine = _combination(inst, binder, placed.map.element)
            put = _putter(units, combine, inside, box.unit)
            take = _taker(shared.units, place, box.unit)
            ends.engines.copies.issue_in_group(Copy(inst, lane, take, put, reads))

    return by_lanes(binder, run)


@instruction("prefetch", when=lambda inst: inst.has("tensormap"))
def prefetch_map(inst: Instruction, binder: Binder) -> Operation:
    """Looks whether there is a tensor map."""
    if not set(inst.modifiers) <= {"tensormap", "const", "param"}:
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is no form of prefetch", instruction=inst)
    ends = Ends(inst, binder)
    _, addresses = binder.addresses(inst, inst.operands[0])

    def run(lanes: Lanes) -> None:
        for lane, address in zip(lanes.tolist(), addresses(lanes).tolist(), strict=True):
            _map_at(ends, address, lane)

    return by_lanes(binder, run)
