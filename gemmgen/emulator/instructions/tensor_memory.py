"""tcgen05: tensor memory is allocated, loaded, stored, filled from shared memory, shifted, and its operations waited for.

PTX ISA, "TensorCore 5th Generation Family Instructions". Addresses hold a lane in their upper half and a column in their lower one. Warp w
reaches lanes 32 (w mod 4) to 32 (w mod 4) + 31. The shapes of loads and stores are those of CuTe's copy atoms (`copy_traits_sm100.hpp`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, NoReturn

import numpy as np

from gemmgen.emulator import ieee, matrix_descriptor
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.engines.async_proxy import CHUNK
from gemmgen.emulator.engines.tensor_memory import COMMIT, LANES, QUARTER, Cells, TensorOperation, pair_of
from gemmgen.emulator.errors import ClusterMisuse, InvalidMatrix, TensorMemoryMisuse, UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.bulk_copy import Ends
from gemmgen.emulator.instructions.floating import minimum
from gemmgen.emulator.instructions.matrix import aligned, registers_in, whole_warps, widened
from gemmgen.emulator.instructions.mbarrier import shared_offsets
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.memory import Access
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Address, Instruction, Integer, Operand, Pair, Register
from gemmgen.emulator.transfers import AsyncAccess

_WORDS = CHUNK // 4
_HALF_LANES = 16


class Shape(NamedTuple):
    """Registers of one load or store of a warp."""

    registers: int
    lanes: int
    columns: int
    """Columns of tensor memory, twice as many where each holds 16 bits of a register."""


def _is(*names: str) -> Callable[[Instruction], bool]:
    return lambda inst: inst.modifiers[0] in names


def shape_of(inst: Instruction) -> Shape:
    """The shape of a load or store. Raises UnknownInstruction."""
    count = next((int(word[1:]) for word in inst.modifiers if word[:1] == "x" and word[1:].isdigit()), 0)
    name = inst.first_of(tuple(_PER_COUNT))
    packed = inst.has("pack::16b") or inst.has("unpack::16b")
    registers = 0 if name is None else _PER_COUNT[name] * count
    if name is None or count not in (1, 2, 4, 8, 16, 32, 64, 128) or registers > 128:
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is no form of tcgen05", instruction=inst)
    lanes = QUARTER if name == "32x32b" else _HALF_LANES
    columns = registers * QUARTER // lanes if name != "16x32bx2" else registers
    return Shape(registers, lanes, columns * (2 if packed else 1))


_PER_COUNT = {"32x32b": 1, "16x32bx2": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}
"""Registers for each one of `.num`."""


@lru_cache(maxsize=64)
def fragment(name: str, registers: int, width: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Lanes and columns, [32 threads, registers], of the words that a warp's threads hold, `width` columns each. `split`: columns from the
    first half of `16x32bx2` to the second."""
    thread, register = np.arange(WARP)[:, None], np.arange(registers)[None, :]
    if name == "32x32b":
        places = thread + 0 * register, register + 0 * thread
    elif name == "16x32bx2":
        places = thread % _HALF_LANES + 0 * register, register + 0 * thread
    elif name == "16x64b":
        places = thread // 4 + thread % 2 * 8 + 0 * register, thread // 2 % 2 + 2 * register
    elif name == "16x128b":
        places = thread // 4 + register % 2 * 8, thread % 4 + register // 2 * 4
    else:
        places = thread // 4 + register // 2 % 2 * 8, thread % 4 * 2 + register % 2 + register // 4 * 8
    lanes, columns = places
    return lanes, columns * width + thread // _HALF_LANES * split


# -- allocation ------------------------------------------------------------------------------------------------


def _warps(inst: Instruction, binder: Binder, lanes: Lanes) -> np.ndarray:
    """The lanes of each warp, [warps, 32]; all of its lanes have to be there."""
    whole_warps(inst, binder, lanes)
    rows: np.ndarray = lanes.reshape(-1, WARP)
    return rows


def _uniform(inst: Instruction, binder: Binder, values: np.ndarray, rows: np.ndarray, what: str) -> list[int]:
    """One value for each warp. Raises TensorMemoryMisuse where its threads differ."""
    by_warp = values.reshape(-1, WARP)
    different = (by_warp != by_warp[:, :1]).any(axis=1)
    if different.any():
        binder.fail(TensorMemoryMisuse, f"{what} differs between the threads of a warp", inst, rows[different][0])
    uniform: list[int] = by_warp[:, 0].astype(np.int64).tolist()
    return uniform


def failing(inst: Instruction, binder: Binder, lanes: Lanes) -> Callable[[str], NoReturn]:
    """Raises ClusterMisuse with a message."""

    def fail(message: str) -> NoReturn:
        binder.fail(ClusterMisuse, message, inst, lanes)

    return fail


@instruction("tcgen05", when=_is("alloc"))
def allocate(inst: Instruction, binder: Binder) -> Operation:
    """Allocates columns of tensor memory; their address goes to shared memory."""
    aligned(inst)
    memory = binder.engines.tensor_memory
    named = inst.has("shared::cta")
    offsets = shared_offsets(inst, binder, inst.operands[0], 4, not named)
    count = binder.source(inst, inst.operands[1], "u32")
    access, shared = Access(inst, "store", 4, 4), binder.spaces.shared
    _, addresses = binder.addresses(inst, inst.operands[0])

    def run(lanes: Lanes) -> None:
        for warp in _warps(inst, binder, lanes):
            pair_of(inst, binder.geometry, int(warp[0]) // binder.geometry.stride, failing(inst, binder, warp))
            (columns,) = _uniform(inst, binder, value_at(count, warp), warp[None], "the number of columns")
            place = offsets(warp[:1])
            first = memory.allocate(inst, warp, columns)
            local = addresses(warp[:1]) if named else shared.own_addresses(warp[:1], place % shared.stride)
            shared.units[4][shared.locate(access, warp[:1], local)] = first

    return by_lanes(binder, run)


@instruction("tcgen05", when=_is("dealloc"))
def deallocate(inst: Instruction, binder: Binder) -> Operation:
    """Gives columns of tensor memory back."""
    aligned(inst)
    memory = binder.engines.tensor_memory
    address, count = (binder.source(inst, operand, "u32") for operand in inst.operands)

    def run(lanes: Lanes) -> None:
        for warp in _warps(inst, binder, lanes):
            (start,) = _uniform(inst, binder, value_at(address, warp), warp[None], "the address")
            (columns,) = _uniform(inst, binder, value_at(count, warp), warp[None], "the number of columns")
            memory.deallocate(inst, warp, start, columns)

    return by_lanes(binder, run)


@instruction("tcgen05", when=_is("relinquish_alloc_permit"))
def relinquish(inst: Instruction, binder: Binder) -> Operation:
    """Ends allocation by this block, so that other blocks of the SM may allocate."""
    aligned(inst)
    memory = binder.engines.tensor_memory

    def run(lanes: Lanes) -> None:
        for warp in _warps(inst, binder, lanes):
            memory.relinquish(inst, warp)

    return by_lanes(binder, run)


# -- order -----------------------------------------------------------------------------------------------------


@instruction("tcgen05", when=_is("fence::before_thread_sync", "fence::after_thread_sync"))
def fence(inst: Instruction, binder: Binder) -> Operation:
    """Orders tcgen05 operations before, or after, a synchronization of threads."""
    shared = binder.spaces.shared

    def run(lanes: Lanes) -> None:
        for observer in shared.observers:
            observer.executed(inst, lanes)

    return by_lanes(binder, run)


@instruction("tcgen05", when=_is("wait::ld", "wait::st"))
def wait(inst: Instruction, binder: Binder) -> Operation:
    """Waits for the loads, or the stores, of the warp."""
    aligned(inst)
    engines, writes = binder.engines, inst.has("wait::st")

    def run(lanes: Lanes) -> None:
        _warps(inst, binder, lanes)
        engines.tensor_memory.wait(lanes, writes)
        if not writes and binder.tensor_loads is not None:
            binder.tensor_loads.waited(lanes)

    return by_lanes(binder, run)


@instruction("tcgen05", when=_is("commit"))
def commit(inst: Instruction, binder: Binder) -> Operation:
    """Lets a barrier count an arrival when the operations of this thread so far have ended."""
    engines, geometry = binder.engines, binder.geometry
    if not inst.has("mbarrier::arrive::one"):
        raise UnknownInstruction("tcgen05.commit in a form that is not understood", instruction=inst)
    barriers = shared_offsets(inst, binder, inst.operands[0], 8, not inst.has("shared::cluster"))
    mask = binder.source(inst, inst.operands[1], "u16") if inst.has("multicast::cluster") else None
    ends = Ends(inst, binder)

    def run(lanes: Lanes) -> None:
        masks = None if mask is None else value_at(mask, lanes).tolist()
        for position, (lane, barrier) in enumerate(zip(lanes.tolist(), barriers(lanes).tolist(), strict=True)):
            pair_of(inst, geometry, lane // geometry.stride, failing(inst, binder, np.array([lane])))
            targets = ends.targets(lane, barrier, barrier, None if masks is None else masks[position])
            signals = [signal for _, signal in targets]
            for signal in signals:
                ends.use_barrier(lane, signal)
            engines.tensor_memory.commit(inst, lane, signals)

    return by_lanes(binder, run)


# -- loads and stores of warps ---------------------------------------------------------------------------------


class _Reduction:
    """The minimum or maximum of each thread's loaded registers (tcgen05.ld.red)."""

    def __init__(self, inst: Instruction, binder: Binder, target: Operand, shape: Shape) -> None:
        chip = binder.program.module.target
        if chip.startswith(("sm_100", "sm_12")):
            raise UnknownInstruction(f"tcgen05.ld.red does not exist on {chip}, but on sm_103a and sm_110a", instruction=inst)
        kinds = {"u32": np.uint32, "s32": np.int32, "f32": np.float32}
        named = inst.first_of(tuple(kinds))
        if named is None or inst.has("min") == inst.has("max") or shape.registers < 2 or not inst.first_of(("32x32b", "16x32bx2")):
            raise UnknownInstruction("tcgen05.ld.red in a form that does not exist", instruction=inst)
        if named != "f32" and (inst.has("abs") or inst.has("NaN")):
            raise UnknownInstruction("tcgen05.ld.red has .abs and .NaN with .f32 only", instruction=inst)
        binder.require_real(inst, named == "f32")
        self.inst, self.dtype = inst, kinds[named]
        self.target = binder.target(inst, target, named)

    def write(self, warp: Lanes, values: np.ndarray) -> None:
        """From the words of a warp, [32, registers]."""
        words = np.ascontiguousarray(values).view(self.dtype)
        if self.inst.has("abs"):
            words = np.abs(words)
        largest, propagate = self.inst.has("max"), self.inst.has("NaN")
        extremum: np.ndarray = words[:, 0]
        for column in words.T[1:]:
            if self.dtype is np.float32:
                extremum = np.asarray(ieee.canonical_f32(minimum(extremum, column, largest, propagate)))
            else:
                extremum = np.maximum(extremum, column) if largest else np.minimum(extremum, column)
        if self.target is not None:
            self.target[warp] = extremum


class _WarpAccess:
    """One tcgen05.ld or tcgen05.st: its registers and cells."""

    def __init__(self, inst: Instruction, binder: Binder) -> None:
        aligned(inst)
        self.inst, self.binder = inst, binder
        self.memory = binder.engines.tensor_memory
        self.shape = shape_of(inst)
        self.name = inst.first_of(tuple(_PER_COUNT)) or ""
        self.packed = inst.has("pack::16b") or inst.has("unpack::16b")
        stores = inst.modifiers[0] == "st"
        operands = list(inst.operands)
        split = operands.pop(1 if stores else 2) if self.name == "16x32bx2" and len(operands) == 3 else None
        if len(operands) != 2 or (self.name == "16x32bx2") != isinstance(split, Integer):
            raise UnknownInstruction(f"tcgen05.{inst.modifiers[0]} with operands that are not understood", instruction=inst)
        self.split = split.value if isinstance(split, Integer) else 0
        address, fragment_operand = operands if stores else reversed(operands)
        self.reduction = None
        if isinstance(fragment_operand, Pair):
            self.reduction = _Reduction(inst, binder, fragment_operand.second, self.shape)
            fragment_operand = fragment_operand.first
        elif inst.has("red"):
            raise UnknownInstruction("tcgen05.ld.red without a register for its result", instruction=inst)
        registers = registers_in(fragment_operand)
        if len(registers) != self.shape.registers or any(not isinstance(r, Register) or binder.registers.width(r) != 4 for r in registers):
            raise UnknownInstruction(f"this form has {self.shape.registers} registers of 32 bits", instruction=inst)
        self.rows = [binder.registers.place(r)[1] for r in registers if isinstance(r, Register)]
        self.registers = binder.registers.arrays["b32"]
        _, self.addresses = binder.addresses(inst, address)

    def start(self, lanes: Lanes, writes: bool) -> list[tuple[np.ndarray, Cells, list[tuple[np.ndarray, np.ndarray]]]]:
        """Starts the access of each warp: its lanes, its cells, and the index of each word (of both halves of packed ones)."""
        parts = []
        rows = _warps(self.inst, self.binder, lanes)
        for warp, address in zip(rows, _uniform(self.inst, self.binder, self.addresses(lanes), rows, "the address"), strict=True):
            place, inside = divmod(int(warp[0]), self.binder.geometry.stride)
            first = inside // WARP % 4 * QUARTER
            bases = (first,) if self.shape.lanes == QUARTER else (first, first + _HALF_LANES)
            extent = (self.shape.lanes, self.shape.columns + self.split)
            cells = self.memory.cells(self.inst, warp, place, address, extent, bases)
            self.memory.start_access(self.inst, warp, cells, writes)
            width = 2 if self.packed else 1
            tensor_lanes, columns = fragment(self.name, self.shape.registers, width, self.split)
            words = [(tensor_lanes + cells.lanes[0], columns + cells.columns[0] + part) for part in range(width)]
            parts.append((warp, cells, words))
        return parts


@instruction("tcgen05", when=_is("ld"))
def load(inst: Instruction, binder: Binder) -> Operation:
    """Loads words of tensor memory to the registers of a warp; they may be used after tcgen05.wait::ld."""
    access = _WarpAccess(inst, binder)
    memory = access.memory

    def run(lanes: Lanes) -> None:
        for warp, cells, words in access.start(lanes, writes=False):
            wanted = np.zeros((cells.lanes[1] - cells.lanes[0], cells.columns[1] - cells.columns[0]), np.bool_)
            values = np.zeros(words[0][0].shape, np.uint32)
            for part, (tensor_lanes, columns) in enumerate(words):
                wanted[tensor_lanes - cells.lanes[0], columns - cells.columns[0]] = True
                cells_read = memory.data[cells.place][tensor_lanes, columns]
                values |= (cells_read & np.uint32(0xFFFF)) << np.uint32(16 * part) if access.packed else cells_read
            memory.check_written(inst, warp, cells, wanted)
            for row, column in zip(access.rows, values.T, strict=True):
                access.registers[row][warp] = column
            if access.reduction is not None:
                access.reduction.write(warp, values)
        if binder.tensor_loads is not None:
            binder.tensor_loads.loaded(inst, lanes)

    return by_lanes(binder, run)


@instruction("tcgen05", when=_is("st"))
def store(inst: Instruction, binder: Binder) -> Operation:
    """Stores the registers of a warp to tensor memory; others may use it after tcgen05.wait::st."""
    access = _WarpAccess(inst, binder)
    memory = access.memory

    def run(lanes: Lanes) -> None:
        for warp, cells, words in access.start(lanes, writes=True):
            values = np.stack([access.registers[row][warp] for row in access.rows], axis=1)
            for part, (tensor_lanes, columns) in enumerate(words):
                halves = values >> np.uint32(16 * part) & np.uint32(0xFFFF) if access.packed else values
                memory.data[cells.place][tensor_lanes, columns] = halves
                memory.written[cells.place][tensor_lanes, columns] = True

    return by_lanes(binder, run)


# -- copies and shifts -----------------------------------------------------------------------------------------


class SharedOperand:
    """A matrix in shared memory that a descriptor names."""

    def __init__(self, inst: Instruction, binder: Binder, operand: Operand, name: str) -> None:
        self.inst, self.binder, self.name = inst, binder, name
        self.source = binder.source(inst, operand, "u64")

    def chunks(self, lane: int, rows: int, row_chunks: int, k_major: bool, may_continue: bool = False) -> matrix_descriptor.Chunks:
        """Chunks of 16 bytes within a block; ``may_continue``: its rows may continue in a second matrix."""
        bits = int(value_at(self.source, np.array([lane]))[0])
        descriptor, problem = matrix_descriptor.decode_tensor(bits, may_continue)
        if problem is not None:
            self._fail(f"the descriptor 0x{bits:016x} of {self.name}: {problem}", lane)
        if k_major and descriptor.mode == matrix_descriptor.WIDE_ATOMS:
            self._fail(f"{self.name} has a swizzle of 32-byte atoms, which K-major operands do not have", lane)
        matrix = matrix_descriptor.placed(descriptor, rows, row_chunks, k_major)
        shared = self.binder.spaces.shared
        where = f"{self.name} begins at shared address 0x{descriptor.start - shared.first:x}"
        if matrix.first < shared.first or matrix.end > shared.size:
            reached = f"reaches to 0x{matrix.end - shared.first:x}"
            offsets = f"a leading offset of {descriptor.leading} and a stride of {descriptor.stride} bytes"
            self._fail(f"{where} and {reached} with {offsets}; shared memory has {shared.size - shared.first} bytes", lane)
        within = descriptor.start % descriptor.span + row_chunks * CHUNK <= descriptor.span
        if descriptor.mode and k_major and not within and descriptor.continued is None:
            row = f"rows of {descriptor.span} bytes, as its swizzle has them"
            self._fail(f"{where}, {descriptor.start % descriptor.span} bytes into {row}: its rows reach beyond their end", lane)
        return matrix

    def _fail(self, message: str, lane: int) -> NoReturn:
        self.binder.fail(InvalidMatrix, message, self.inst, np.array([lane]))

    def begin(self, lane: int, place: int, operand: matrix_descriptor.Chunks) -> tuple[AsyncAccess, np.ndarray]:
        """Starts reading them in a block: the access, and the numbers of the chunks in the whole space."""
        first = place * self.binder.spaces.shared.stride // CHUNK
        access = self.binder.engines.proxy.begin(self.inst, "read", np.array([lane]), operand.distinct + first, COMMIT)
        return access, operand.addresses // CHUNK + first


_COPIES = {"128x256b": (128, 2), "4x256b": (4, 2), "128x128b": (128, 1), "64x128b": (64, 1), "32x128b": (32, 1)}
"""Rows and chunks of a row of each shape of tcgen05.cp."""
_TARGETS: dict[tuple[str, str | None], tuple[tuple[int, int, int], ...]] = {
    ("128x256b", None): ((0, 0, 128),),
    ("4x256b", None): tuple((row, QUARTER * row, 1) for row in range(4)),
    ("128x128b", None): ((0, 0, 128),),
    ("64x128b", "warpx2::02_13"): ((0, 0, 64), (0, 64, 64)),
    ("64x128b", "warpx2::01_23"): ((0, 0, 32), (0, 32, 32), (32, 64, 32), (32, 96, 32)),
    ("32x128b", "warpx4"): ((0, 0, 32), (0, 32, 32), (0, 64, 32), (0, 96, 32)),
}
"""Rows of the source and lanes that they go to: first row, first lane, number."""


def _unpacked_bits(inst: Instruction) -> int:
    """Bits of the elements that a copy widens to bytes; 0 if it copies bytes as they are."""
    formats = {"b6x16_p32": 6, "b4x16_p64": 4}
    named = inst.first_of(tuple(formats))
    if inst.has("b8x16") != (named is not None):
        raise UnknownInstruction("tcgen05.cp with .b8x16 needs .b6x16_p32 or .b4x16_p64", instruction=inst)
    return 0 if named is None else formats[named]


def _unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """Chunks of 16 bytes, [..., 16], whose first bytes hold 16 elements of 6 or 4 bits: one to a byte. Four bits go to the middle."""
    if bits == 0:
        return data
    wide: np.ndarray = np.ascontiguousarray(widened(data, bits)).reshape(data.shape)
    return np.ascontiguousarray(wide << np.uint8(2) if bits == 4 else wide)


@instruction("tcgen05", when=_is("cp"))
def copy(inst: Instruction, binder: Binder) -> Operation:
    """Copies a matrix from shared to tensor memory, to several quarters of its lanes where the shape says so."""
    memory, geometry = binder.engines.tensor_memory, binder.geometry
    shape = inst.first_of(tuple(_COPIES))
    targets = _TARGETS.get((shape or "", inst.first_of(("warpx4", "warpx2::02_13", "warpx2::01_23"))))
    if shape is None or targets is None:
        raise UnknownInstruction("tcgen05.cp in a form that is not implemented", instruction=inst)
    (rows, row_chunks), moves = _COPIES[shape], targets
    bits = _unpacked_bits(inst)
    matrix = SharedOperand(inst, binder, inst.operands[1], "the source of tcgen05.cp")
    _, addresses = binder.addresses(inst, inst.operands[0])
    units = binder.spaces.shared.units[CHUNK]

    def run(lanes: Lanes) -> None:
        for lane, address in zip(lanes.tolist(), addresses(lanes).tolist(), strict=True):
            who = np.array([lane])
            places = pair_of(inst, geometry, lane // geometry.stride, failing(inst, binder, who))
            chunks = matrix.chunks(lane, rows, row_chunks, k_major=True)
            begun = [matrix.begin(lane, place, chunks) for place in places]
            writes = [memory.cells(inst, who, place, address, (LANES, row_chunks * _WORDS), (0,)) for place in places]
            sources = [source for _, source in begun]

            def move(sources: list[np.ndarray] = sources, writes: list[Cells] = writes) -> None:
                for source, cells in zip(sources, writes, strict=True):
                    data = units[source].view(np.uint8).reshape(rows, row_chunks, CHUNK)
                    words = _unpacked(data, bits).reshape(rows, -1).view(np.uint32)
                    for row, first, count in moves:
                        memory.write((cells.place, slice(first, first + count), slice(*cells.columns)), words[row : row + count])

            memory.issue(TensorOperation(inst, lane, (), writes, [access for access, _ in begun], move))

    return by_lanes(binder, run)


@instruction("tcgen05", when=_is("shift"))
def shift(inst: Instruction, binder: Binder) -> Operation:
    """Moves 32 bytes of each of 31 lanes to the lane before it."""
    memory, geometry = binder.engines.tensor_memory, binder.geometry
    if not inst.has("down") or not isinstance(inst.operands[0], Address):
        raise UnknownInstruction("tcgen05.shift in a form that is not understood", instruction=inst)
    _, addresses = binder.addresses(inst, inst.operands[0])

    def run(lanes: Lanes) -> None:
        for lane, address in zip(lanes.tolist(), addresses(lanes).tolist(), strict=True):
            who = np.array([lane])
            places = pair_of(inst, geometry, lane // geometry.stride, failing(inst, binder, who))
            writes = [memory.cells(inst, who, place, address, (QUARTER, 8), range(0, LANES, QUARTER)) for place in places]

            def move(writes: list[Cells] = writes, who: Lanes = who) -> None:
                for cells in writes:
                    memory.check_written(inst, who, cells)
                    place, (first, last), columns = cells.place, cells.lanes, slice(*cells.columns)
                    moved = memory.data[place, first + 1 : last, columns].copy()
                    memory.write((place, slice(first, last - 1), columns), moved)

            memory.issue(TensorOperation(inst, lane, writes, writes, [], move))

    return by_lanes(binder, run)
