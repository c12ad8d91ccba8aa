"""Tensor memory: 128 lanes of 512 columns of 32 bits in each block, its allocation, and the tcgen05 operations in flight on it.

PTX ISA, "Tensor Memory" and "Memory Consistency Model for 5th generation of TensorCore operations". Products, copies and shifts that one
thread has issued happen in order, at the latest moment: when a commit behind them reaches its barrier. Until then their operands in
shared memory and in tensor memory belong to them. Loads and stores of warps are in flight until the wait of their warp.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np

from gemmgen.emulator.engines.async_proxy import AsyncProxy
from gemmgen.emulator.engines.barriers import Barriers
from gemmgen.emulator.engines.copies import NOBODY, CopyEngine
from gemmgen.emulator.errors import TensorMemoryInFlight, TensorMemoryMisuse, UnfinishedTensorOperation
from gemmgen.emulator.geometry import WARP, Geometry, Lanes
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.emulator.transfers import AsyncAccess, Barrier

LANES = 128
COLUMNS = 512
QUARTER = 32
"""Lanes that one warp of a warpgroup reaches."""
MIN_COLUMNS = 32
COMMIT = "the arrival of a tcgen05.commit at its barrier"
_LANE_SHIFT = 16
_COLUMN_MASK = 0xFFFF


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of one block's tensor memory: lanes and columns from a first one to before a last one."""

    place: int
    lanes: tuple[int, int]
    columns: tuple[int, int]

    def meets(self, other: Cells) -> bool:
        """True if they share a cell."""
        return (
            self.place == other.place
            and self.columns[0] < other.columns[1]
            and other.columns[0] < self.columns[1]
            and self.lanes[0] < other.lanes[1]
            and other.lanes[0] < self.lanes[1]
        )

    def holds(self, other: Cells) -> bool:
        """True if all of the other's cells are among these."""
        return (
            self.place == other.place
            and self.columns[0] <= other.columns[0]
            and other.columns[1] <= self.columns[1]
            and self.lanes[0] <= other.lanes[0]
            and other.lanes[1] <= self.lanes[1]
        )

    @property
    def index(self) -> tuple[int, slice, slice]:
        """The cells as an index of arrays [block, lane, column]."""
        return self.place, slice(*self.lanes), slice(*self.columns)

    def __str__(self) -> str:
        return f"columns {self.columns[0]} to {self.columns[1] - 1} of lanes {self.lanes[0]} to {self.lanes[1] - 1}"


@dataclass(eq=False, slots=True)
class TensorOperation:
    """A product, copy or shift that one lane has issued."""

    instruction: Instruction
    lane: int
    reads: Sequence[Cells]
    writes: Sequence[Cells]
    shared: list[AsyncAccess]
    """Operands in shared memory."""
    run: Callable[[], None]
    done: bool = False


@dataclass(eq=False, slots=True)
class WarpAccess:
    """A load or store of one warp, in flight until the wait of that warp."""

    instruction: Instruction
    lane: int
    """The first lane of the warp."""
    cells: Cells
    writes: bool


@dataclass(slots=True)
class _Commit:
    instruction: Instruction
    operations: list[TensorOperation]
    signals: Sequence[int]
    clock: int


class TensorWatch(Protocol):
    """Watches the order of accesses to tensor memory; there is one where somebody looks for hazards."""

    def clear(self, places: Sequence[int] | None) -> None:
        """Fresh blocks (None: all)."""

    def issued(self, operation: TensorOperation) -> None:
        """A lane issues an operation."""

    def committed(self, lane: int) -> int:
        """A clock of the lane's knowledge, for a commit."""

    def ended(self, lane: int, operations: Sequence[TensorOperation], barriers: Sequence[Barrier], clock: int) -> None:
        """Operations of a lane have ended, as these barriers are to tell."""

    def accessed(self, access: WarpAccess) -> None:
        """A warp loads or stores."""

    def waited(self, access: WarpAccess) -> None:
        """A warp has waited for a load or store."""

    def deallocated(self, instruction: Instruction, lane: int, cells: Cells) -> None:
        """A warp gives columns back."""

    def unwritten(self, instruction: Instruction, lanes: Lanes, cells: Cells) -> None:
        """An operation reads cells among these that nothing has written."""

    def first_lanes(self, instruction: Instruction, lanes: Lanes, message: str) -> None:
        """A warp names lanes of the first warp instead of its lanes."""

    def used_early(self, instruction: Instruction, load: Instruction, lanes: Lanes, message: str) -> None:
        """Lanes touch a register of a load that they have not waited for."""


def check_groups(instructions: Iterable[Instruction]) -> None:
    """Raises TensorMemoryMisuse where instructions of single blocks and of pairs are in one kernel; ptxas refuses these."""
    first: Instruction | None = None
    for inst in instructions:
        if inst.opcode != "tcgen05" or not (inst.has("cta_group::1") or inst.has("cta_group::2")):
            continue
        first = first or inst
        if inst.has("cta_group::2") != first.has("cta_group::2"):
            message = "tcgen05 with cta_group::1 and with cta_group::2 in one kernel: all its instructions need the same"
            raise TensorMemoryMisuse(message, instruction=inst, other=first)


class TensorMemory:
    """The tensor memory of all blocks of a wave."""

    def __init__(self, geometry: Geometry, proxy: AsyncProxy, barriers: Barriers, copies: CopyEngine) -> None:
        self.geometry = geometry
        self.proxy, self.barriers, self.copies = proxy, barriers, copies
        self.data = np.full((geometry.blocks, LANES, COLUMNS), 0xFFFFFFFF, np.uint32)
        self.written = np.zeros((geometry.blocks, LANES, COLUMNS), np.bool_)
        self._owner = np.zeros((geometry.blocks, COLUMNS), np.int32)
        self._allocations: list[dict[int, tuple[int, Instruction]]] = [{} for _ in range(geometry.blocks)]
        """Columns of each block's allocations by their first one."""
        self._of_pairs: dict[int, list[tuple[int, Instruction]]] = {}
        """Columns of each block's allocations by both blocks of a pair, in order."""
        self._relinquished: dict[int, Instruction] = {}
        self._open: dict[int, list[TensorOperation]] = {}
        """Operations of each lane that no commit follows yet."""
        self._commits: dict[int, deque[_Commit]] = {}
        self._in_flight: list[TensorOperation] = []
        self._accesses: list[WarpAccess] = []
        self.watch: TensorWatch | None = None

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh blocks (None: all)."""
        places = range(self.geometry.blocks) if lanes is None else np.unique(lanes // self.geometry.stride).tolist()
        for place in places:
            if self._allocations[place] or self.written[place].any():
                self.data[place] = 0xFFFFFFFF
                self.written[place] = False
            self._owner[place] = 0
            self._allocations[place].clear()
            self._relinquished.pop(place, None)
            self._of_pairs.pop(place, None)
        gone = set(places)
        self._open = {lane: ops for lane, ops in self._open.items() if self._place(lane) not in gone}
        self._commits = {lane: commit for lane, commit in self._commits.items() if self._place(lane) not in gone}
        self._in_flight = [op for op in self._in_flight if self._place(op.lane) not in gone]
        self._accesses = [access for access in self._accesses if access.cells.place not in gone]
        if self.watch is not None:
            self.watch.clear(None if lanes is None else list(places))

    def _place(self, lane: int) -> int:
        return lane // self.geometry.stride

    def fail(self, message: str, inst: Instruction, lanes: Lanes, other: Instruction | None = None) -> NoReturn:
        """Raises TensorMemoryMisuse."""
        raise TensorMemoryMisuse(message, instruction=inst, threads=self.geometry.describe(lanes), other=other)

    # -- allocation --------------------------------------------------------------------------------------------

    def allocate(self, inst: Instruction, lanes: Lanes, columns: int) -> int:
        """The address of fresh columns for the block of a warp."""
        place = self._place(int(lanes[0]))
        self._check_count(inst, lanes, columns)
        if place in self._relinquished:
            self.fail(
                "tcgen05.alloc after tcgen05.relinquish_alloc_permit: the block must not allocate any more",
                inst,
                lanes,
                self._relinquished[place],
            )
        if inst.has("cta_group::2"):
            self._check_pair(inst, lanes, place, columns)
        free = self._owner[place] == 0
        for first in range(0, COLUMNS - columns + 1, MIN_COLUMNS):
            if free[first : first + columns].all():
                self._owner[place, first : first + columns] = len(self._allocations[place]) + 1
                self._allocations[place][first] = columns, inst
                return first
        self.fail(f"tcgen05.alloc of {columns} columns where {int(free.sum())} are free in this block: it would wait forever", inst, lanes)

    def _check_pair(self, inst: Instruction, lanes: Lanes, place: int, columns: int) -> None:
        """Both blocks of a pair allocate the same number of columns."""
        mine, others = self._of_pairs.setdefault(place, []), self._of_pairs.get(place ^ 1, [])
        if len(mine) < len(others) and others[len(mine)][0] != columns:
            there, other = others[len(mine)]
            self.fail(f"tcgen05.alloc.cta_group::2 of {columns} columns, of {there} in the other block of the pair", inst, lanes, other)
        mine.append((columns, inst))

    def _check_count(self, inst: Instruction, lanes: Lanes, columns: int) -> None:
        if not MIN_COLUMNS <= columns <= COLUMNS or columns & (columns - 1):
            what = f"{inst.opcode}.{inst.modifiers[0]} of {columns} columns"
            self.fail(f"{what}: powers of two from {MIN_COLUMNS} to {COLUMNS} are possible", inst, lanes)

    def deallocate(self, inst: Instruction, lanes: Lanes, address: int, columns: int) -> None:
        """Gives columns back."""
        place, first = self._place(int(lanes[0])), address & _COLUMN_MASK
        self._check_count(inst, lanes, columns)
        allocation = self._allocations[place].get(first)
        if allocation is None or address >> _LANE_SHIFT:
            freed = "they have been freed already, or were never allocated" if not self._owner[place, first : first + 1].any() else "none"
            self.fail(f"tcgen05.dealloc at tensor memory 0x{address:08x}, where no allocation begins: {freed}", inst, lanes)
        if allocation[0] != columns:
            self.fail(f"tcgen05.dealloc of {columns} columns of an allocation of {allocation[0]}", inst, lanes, allocation[1])
        cells = Cells(place, (0, LANES), (first, first + columns))
        self._check_pending(inst, lanes, cells, writes=True, issuer=None)
        if self.watch is not None:
            self.watch.deallocated(inst, int(lanes[0]), cells)
        del self._allocations[place][first]
        self._owner[place, first : first + columns] = 0
        self.written[cells.index] = False
        self.data[cells.index] = 0xFFFFFFFF

    def relinquish(self, inst: Instruction, lanes: Lanes) -> None:
        """The block allocates no more."""
        self._relinquished.setdefault(self._place(int(lanes[0])), inst)

    def cells(self, inst: Instruction, lanes: Lanes, place: int, address: int, extent: tuple[int, int], base_lanes: Sequence[int]) -> Cells:
        """Checked cells at an address: `extent` lanes and columns. The lane that the address names has to be one of `base_lanes`."""
        lane, column = address >> _LANE_SHIFT, address & _COLUMN_MASK
        what = f"tensor memory 0x{address:08x} (lane {lane}, column {column})"
        name = f"{inst.opcode}.{inst.modifiers[0]}"
        if lane not in base_lanes:
            message = f"{name} at {what}: it may begin at lane {' or '.join(map(str, base_lanes))} there"
            own = base_lanes[0] + lane
            if inst.modifiers[0] not in ("ld", "st") or own not in base_lanes:
                self.fail(message, inst, lanes)
            if self.watch is not None:
                self.watch.first_lanes(inst, lanes, message)
            lane = own
        end = column + extent[1]
        if end > COLUMNS:
            self.fail(f"{name} at {what} reaches column {end - 1}; tensor memory has {COLUMNS}", inst, lanes)
        owners = self._owner[place, column:end]
        if not owners.all():
            missing = column + int(np.flatnonzero(owners == 0)[0])
            self.fail(f"{name} at {what} touches column {missing}, which is not allocated", inst, lanes)
        return Cells(place, (lane, lane + extent[0]), (column, end))

    # -- conflicts of operations in flight ------------------------------------------------------------------------

    def _check_pending(self, inst: Instruction, lanes: Lanes, cells: Cells, writes: bool, issuer: int | None) -> None:
        """Raises TensorMemoryInFlight if cells belong to something in flight. `issuer`: the lane of an operation, whose own earlier
        operations come first."""
        name = f"{inst.opcode}.{inst.modifiers[0]}"
        # The watch asks for the order of operations of different threads.
        for operation in self._in_flight if issuer is None or self.watch is None else ():
            pair = self._place(operation.lane) // 2  # no operation reaches beyond the pair of its block
            if operation.lane == issuer or pair != cells.place // 2:
                continue
            meets = any(cells.meets(other) for other in operation.writes)
            if meets or (writes and any(cells.meets(other) for other in operation.reads)):
                doing = "is going to write" if meets else "may still be reading"
                self._conflict(f"{name} of {cells}, which a tcgen05 operation {doing}: nobody has seen {COMMIT}", inst, lanes, operation)
        for access in self._accesses:
            if (writes or access.writes) and cells.meets(access.cells):
                doing = f"is going to {'write' if access.writes else 'read'}"
                wait = f"tcgen05.wait::{'st' if access.writes else 'ld'} by its warp has to come first"
                self._conflict(f"{name} of {cells}, which a warp {doing}: {wait}", inst, lanes, access)

    def _conflict(self, message: str, inst: Instruction, lanes: Lanes, other: TensorOperation | WarpAccess) -> NoReturn:
        raise TensorMemoryInFlight(
            message,
            instruction=inst,
            threads=self.geometry.describe(lanes),
            other=other.instruction,
            other_threads=f"issued by {self.geometry.describe(np.array([other.lane]))}",
        )

    def check_written(self, inst: Instruction, lanes: Lanes, cells: Cells, of: np.ndarray | None = None) -> None:
        """Tells the watch of cells that nothing has written. `of`: flags of the cells that are read, all without it."""
        if self.watch is None:
            return
        written = self.written[cells.index]
        if not (written.all() if of is None else (written | ~of).all()):
            self.watch.unwritten(inst, lanes, cells)

    # -- products, copies, shifts ------------------------------------------------------------------------------

    def issue(self, operation: TensorOperation) -> None:
        """A lane starts an operation."""
        lanes = np.array([operation.lane])
        for group, writes in ((operation.reads, False), (operation.writes, True)):
            for cells in group:
                self._check_pending(operation.instruction, lanes, cells, writes, operation.lane)
        if self.watch is not None:
            self.watch.issued(operation)
        self._open.setdefault(operation.lane, []).append(operation)
        self._in_flight.append(operation)

    def commit(self, inst: Instruction, lane: int, signals: Sequence[int]) -> None:
        """The lane's operations so far are going to arrive at barriers, given by absolute offsets."""
        clock = self.watch.committed(lane) if self.watch is not None else 0
        self._commits.setdefault(lane, deque()).append(_Commit(inst, self._open.pop(lane, []), signals, clock))
        # The commits of one lane arrive in order, in any order in which engines are served.
        self.copies.pending.append(lambda: self._land(lane))

    def _land(self, lane: int) -> None:
        commit = self._commits[lane].popleft()
        for operation in commit.operations:
            self._perform(operation)
        lanes = np.array([lane])
        barriers = [self.barriers.at(commit.instruction, lanes, offset) for offset in commit.signals]
        if self.watch is not None:
            self.watch.ended(lane, commit.operations, barriers, commit.clock)
        for barrier in barriers:
            self.barriers.arrive_from_engine(commit.instruction, barrier, lanes)

    def _perform(self, operation: TensorOperation) -> None:
        """Performs an operation, and before it those of other lanes whose cells it uses."""
        if operation.done:
            return
        for other in [*self._in_flight]:
            if other is operation:
                break
            if other.lane != operation.lane and _overlap(operation, other):
                self._perform(other)
        operation.run()
        operation.done = True
        self._in_flight.remove(operation)
        for access in operation.shared:
            self.proxy.end(access, NOBODY)

    def write(self, index: tuple[int, slice, slice], values: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Writes cells; `mask` chooses lanes."""
        place, lanes, columns = index
        if mask is None:
            self.data[place, lanes, columns] = values
            self.written[place, lanes, columns] = True
        else:
            self.data[place, lanes, columns][mask] = values[mask]
            self.written[place, lanes, columns][mask] = True

    # -- loads and stores of warps -----------------------------------------------------------------------------

    def start_access(self, inst: Instruction, lanes: Lanes, cells: Cells, writes: bool) -> None:
        """A warp loads or stores until it waits."""
        self._check_pending(inst, lanes, cells, writes, None)
        access = WarpAccess(inst, int(lanes[0]) // WARP * WARP, cells, writes)
        if self.watch is not None:
            self.watch.accessed(access)
        self._accesses.append(access)

    def wait(self, lanes: Lanes, writes: bool) -> None:
        """Warps have waited for their loads, or their stores."""
        if not self._accesses:
            return
        warps = set((lanes // WARP * WARP).tolist())
        left = []
        for access in self._accesses:
            if access.writes == writes and access.lane in warps:
                if self.watch is not None:
                    self.watch.waited(access)
            else:
                left.append(access)
        self._accesses = left

    # -- the end -----------------------------------------------------------------------------------------------

    def blocks_ended(self, places: Sequence[int]) -> None:
        """Blocks have no living thread. Raises if they hold tensor memory, or have operations in flight."""
        for place in places:
            for operation in self._in_flight:
                if self._place(operation.lane) == place:
                    committed = any(operation in commit.operations for commit in self._commits.get(operation.lane, ()))
                    what = "whose commit nobody has waited for" if committed else "that no tcgen05.commit follows"
                    raise UnfinishedTensorOperation(
                        f"{self.geometry.describe_block(place)} ends with a tcgen05 operation in flight {what}",
                        instruction=operation.instruction,
                        threads=self.geometry.describe(np.array([operation.lane])),
                    )
            for first, (columns, inst) in self._allocations[place].items():
                self.fail(
                    f"{self.geometry.describe_block(place)} ends while it holds {columns} columns of tensor memory from column {first} on: "
                    "tcgen05.dealloc has to give them back",
                    inst,
                    np.array([place * self.geometry.stride]),
                )


def _overlap(one: TensorOperation, other: TensorOperation) -> bool:
    return any(cells.meets(its) for cells in (*one.reads, *one.writes) for its in other.writes) or any(
        cells.meets(its) for cells in one.writes for its in other.reads
    )


def pair_of(inst: Instruction, geometry: Geometry, place: int, fail: Callable[[str], NoReturn]) -> tuple[int, ...]:
    """The blocks, by place, that an instruction of a block works on: itself, or with `.cta_group::2` the pair that it belongs to."""
    if inst.has("cta_group::1"):
        return (place,)
    if not inst.has("cta_group::2"):
        fail(f"{inst.opcode}.{inst.modifiers[0]} without .cta_group")
    if geometry.cluster_size % 2:
        fail(f"{inst.opcode}.{inst.modifiers[0]}.cta_group::2 in a cluster of {geometry.cluster_size}: there is no pair of blocks")
    return place // 2 * 2, place // 2 * 2 + 1
