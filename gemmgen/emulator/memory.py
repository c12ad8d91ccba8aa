"""Memory spaces: where addresses become indices, and where every access can be watched.

A space finds, for an access of some lanes at some addresses, the element index of each lane in the space's own array,
after bounds and alignment have been checked. Data then moves by plain NumPy indexing. Observers see each access.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import numpy as np

from gemmgen.emulator import native
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.errors import EmulatorError, Misaligned, OutOfBounds, ReadOnly
from gemmgen.emulator.fused_access import FusedAccess
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.printing import Output
from gemmgen.emulator.ptx.syntax import Instruction

if TYPE_CHECKING:
    from gemmgen.emulator.program import Program
    from gemmgen.emulator.transfers import AsyncAccess, Barrier

CopyForm = Literal["whole", "chosen", "sized"]
"""Forms of a cp.async in machine code: without a number of bytes, with a choice of all or nothing, with a number."""

GLOBAL_BASE = 0x7F00_0000_0000
SHARED_WINDOW = 0x7000_0000_0000
LOCAL_WINDOW = 0x7100_0000_0000
GUARD_BYTES = 1 << 16
RANK_SHIFT = 24
"""Position of a block's rank in its cluster within a shared address: machine code from sm_90 on builds addresses of shared variables as
``LEA rank, offset, 24``, and ``mapa`` replaces that byte."""
MAPPED_BYTES = 2 << 20
"""Granularity of device memory on GPUs (cuMemGetAllocationGranularity): an access faults only if its page holds no allocation."""
_HEAP_GUARD = 256
UNIT_BYTES = 16
"""The widest element that one index moves; wider vectors move in pieces."""

_UNIT_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


@dataclass(slots=True)
class Access:
    """One access site: `width` bytes a lane in elements of `element_bytes`; kind is load, store or atomic.

    `hint` is scratch for the space: the region where the site's addresses lay the last time. `stored` reports the bytes that a plain store
    is about to write, one row per lane."""

    instruction: Instruction
    kind: str
    width: int
    element_bytes: int
    hint: int = 0
    stored: Callable[[Lanes], np.ndarray] | None = None
    describes: bool = False
    """True if it reads a tensor map, which is no data."""
    copy_form: CopyForm = "whole"
    """Form of a cp.async."""


class Observer:
    """Observes the events of a launch. Override the events that you need; without observers nothing is called."""

    sees_parameters = True
    """False if loads of parameters and constants at the same address for all lanes need not be reported."""

    def of_worker(self) -> Observer | None:
        """The observer that a copy of the process uses for its share of the blocks; None if there is none for that."""
        return None

    def observed(self) -> Any:
        """All that an observer of such a copy has to tell; `absorb` of the first process's one takes it."""

    def absorb(self, observed: object, program: Program) -> None:
        """Adds the observations of a copy."""

    def restarted(self) -> None:
        """The launch begins again from its start: its events so far are discarded."""

    def wave_started(self, geometry: Geometry, spaces: Spaces) -> None:
        """A wave of blocks begins with fresh shared and local memory."""

    def blocks_replaced(self, places: np.ndarray) -> None:
        """Other blocks have begun at these places of the wave, where blocks had ended, with fresh shared and local memory."""

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        """Lanes (None: all) are about to access addresses that passed the checks. Called before data moves."""

    def plan(self, space: Space, fused: FusedAccess) -> bool:
        """Adds the work of `accessed` to the plan of a native access; False if that takes more."""
        return False

    def passes(self, error: EmulatorError, count: int = 1, place: str = "") -> bool:
        """True if an error of `count` lanes that a GPU does not notice is noted, and the launch continues; `place` is the array meant."""
        return False

    def look_ahead(self, addresses: np.ndarray) -> None:
        """Lanes are about to access these addresses of global memory, natively."""

    def block_started(self, block: BasicBlock, lanes: Lanes | None) -> None:
        """Lanes (None: all) are about to execute a basic block, its terminator included."""

    def block_barrier(self, instruction: Instruction, lanes: Lanes | None) -> None:
        """These lanes (whole blocks' worth, None: all) were released together from a barrier."""

    def barrier_arrived(self, instruction: Instruction, lanes: Lanes, numbers: np.ndarray) -> None:
        """Lanes arrived, without waiting, at the barriers of these numbers."""

    def warp_barrier(self, instruction: Instruction, lanes: Lanes | None) -> None:
        """These lanes met at a warp-synchronous instruction."""

    def allocated(self, start: int, stop: int) -> None:
        """These bytes of global memory, which nothing has written, belong to the kernel from here on."""

    def copied_locally(self, lanes: Lanes, to: int, source: int, size: int) -> None:
        """Bytes moved from one place to another of the local memory of each of these lanes."""

    def executed(self, instruction: Instruction, lanes: Lanes | None) -> None:
        """Lanes execute a fence or another ordering instruction that is no access."""

    def map_acquired(self, instruction: Instruction, lanes: Lanes, addresses: np.ndarray) -> None:
        """Lanes execute a fence after which they see changes of the tensor maps at these addresses."""

    def async_copy_issued(self, access: Access, lanes: Lanes | None, addresses: np.ndarray, origins: np.ndarray) -> None:
        """Lanes start an asynchronous copy of `access.width` bytes each to these shared addresses, from `origins`; `accessed` has reported
        the read, for lanes that read anything, and will report the write when it happens."""

    def async_group_landed(self, wait: Instruction, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        """These lanes' part of an issued copy is about to be written, because they execute `wait`. Called once a copy of
        each group, `accessed` with the same lanes and addresses right after."""

    def box_moved(self, instruction: Instruction, kind: str, rows: np.ndarray, unit: int, blocks: int) -> None:
        """A tensor copy loads or stores a box, one row of the array each: byte offsets of its units, -1 outside of the array. It goes to so
        many blocks."""

    def product_issued(self, instruction: Instruction, groups: np.ndarray, shared_bytes: int) -> None:
        """Warpgroups, given by their first lanes, start a wgmma, each with its number of bytes of shared memory to read."""

    def async_started(self, access: AsyncAccess) -> None:
        """An engine may read or write shared memory from now on."""

    def async_ended(self, access: AsyncAccess, lanes: Lanes) -> None:
        """An engine has read or written, and these lanes have seen it; nobody, if a barrier is to tell. Called again when more
        lanes come to know, as the warps of a warpgroup do that wait one after another."""

    def barrier_initialised(self, barrier: Barrier) -> None:
        """A lane has made a barrier."""

    def barrier_used(self, instruction: Instruction, barrier: Barrier, lanes: Lanes) -> None:
        """Lanes are about to arrive at a barrier, to announce bytes, or to wait."""

    def mbarrier_arrived(self, instruction: Instruction, barrier: Barrier, lanes: Lanes) -> None:
        """Lanes are about to arrive at a barrier: its phase may complete by it."""

    def store_unfinished(self, message: str, instruction: Instruction, lanes: Lanes) -> None:
        """The block of these lanes ends while an engine still reads its shared memory for a store."""

    def registers_misused(self, message: str, instruction: Instruction, lanes: Lanes) -> None:
        """The warps of a warpgroup have asked for different numbers of registers; these lanes differ from the first warp."""

    def bytes_arrived(self, access: AsyncAccess, barrier: Barrier) -> None:
        """Called when an engine's writes are about to count at a barrier."""

    def words_arrived(self, instruction: Instruction, offsets: np.ndarray, width: int, barrier: Barrier) -> None:
        """Called when lanes' remote stores, `width` bytes each at these absolute offsets, are about to count at a barrier."""

    def engine_uses_barrier(self, instruction: Instruction, barrier: Barrier, lane: int) -> None:
        """A copy that a lane starts will complete on a barrier."""

    def bulk_store_seen(self, instruction: Instruction, lanes: Lanes) -> None:
        """Records that the oldest unfinished bulk copy of a lane to global memory has been written, and that the lane has waited for it."""

    def phase_completed(self, barrier: Barrier) -> None:
        """A phase of a barrier has completed."""

    def phase_seen(self, instruction: Instruction, barrier: Barrier, lanes: Lanes) -> None:
        """Lanes have found that a phase of a barrier has completed."""

    def cluster_arrived(self, instruction: Instruction, lanes: Lanes) -> None:
        """Lanes arrived at the barrier of their cluster."""

    def cluster_met(self, lanes: Lanes) -> None:
        """All living lanes of a cluster have arrived."""

    def cluster_waited(self, instruction: Instruction, lanes: Lanes) -> None:
        """Lanes continue after the barrier of their cluster."""

    def blocks_ended(self, places: Sequence[int]) -> None:
        """The last threads of the blocks at these places have exited."""


class Pending(Protocol):
    """Writes to a space that are under way."""

    def check(self, access: Access, lanes: Lanes | None, index: np.ndarray) -> None:
        """Raises if an access meets one of them. `index`: units of min(width, 16) bytes."""


class PendingOfLanes(Pending, Protocol):
    """Such writes that end with the lanes that started them."""

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh lanes (None: all) have started nothing."""


class Lasting(Protocol):
    """State of lanes beside their memory."""

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh lanes (None: all)."""


class Neighbours(Protocol):
    """The blocks whose shared memory a lane may reach."""

    def check_remote(self, inst: Instruction, lanes: Lanes, places: np.ndarray) -> None:
        """Raises for lanes that reach into blocks (by place) that may not have started, or have ended."""


class Space:
    """A flat array of bytes with views by element width."""

    name = ""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.loops = native.loops_for(geometry.lanes)
        self.generation = 0
        """Number that changes with the memory and its observers: plans of native accesses hold for one."""
        self.observers: Sequence[Observer] = ()
        self.data = np.zeros(UNIT_BYTES, np.uint8)
        self.units: dict[int, np.ndarray] = {}
        """The bytes as elements of 1, 2, 4, 8, 16 bytes."""
        self.attach(self.data)

    def attach(self, data: np.ndarray) -> None:
        """Takes another array (uint8, length a multiple of 16) as the memory."""
        self.data = data
        self.generation += 1
        for width, dtype in _UNIT_DTYPES.items():
            self.units[width] = data.view(dtype)

    def locate(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> np.ndarray:
        """The index of each lane's first unit, min(width, 16) bytes wide. Raises OutOfBounds, Misaligned, ReadOnly."""
        raise NotImplementedError

    @property
    def is_in_flight(self) -> bool:
        """True if accesses have to look at operations in flight."""
        return False

    def foresee(self, fused: FusedAccess, addresses: np.ndarray) -> None:
        """Expects a native access in the region that it is about to touch, not in that of an earlier launch."""

    def is_planned_for(self, fused: FusedAccess) -> bool:
        """True if the plan of a native access is for the region where the access is expected."""
        return True

    def plan(self, fused: FusedAccess) -> bool:
        """Fills the plan of a native access, with its observers; False if it cannot be made natively."""
        return all(observer.plan(self, fused) for observer in self.observers)

    def check_alignment(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        """Raises Misaligned for an address that is no multiple of the access's width."""
        if int(np.bitwise_or.reduce(addresses)) & (access.width - 1):
            self._misaligned(access, lanes, addresses)

    def _fail(self, kind: type[EmulatorError], access: Access, lanes: Lanes | None, bad: np.ndarray, message: str) -> NoReturn:
        positions = np.flatnonzero(bad)
        who = positions if lanes is None else lanes[positions]
        raise kind(message, instruction=access.instruction, threads=self.geometry.describe(who))

    def _misaligned(self, access: Access, lanes: Lanes | None, addresses: np.ndarray, what: str = "") -> NoReturn:
        bad = (addresses.astype(np.uint64) & np.uint64(access.width - 1)) != 0
        address = int(addresses[np.flatnonzero(bad)[0]])
        self._fail(
            Misaligned,
            access,
            lanes,
            bad,
            f"{verb(access)} of {access.width} bytes at {self.name} address 0x{address:x}, "
            f"which is {address % access.width} bytes past a multiple of {access.width}{what}",
        )


def verb(access: Access) -> str:
    """Short name of the access."""
    return {"load": "read", "store": "write", "atomic": "atomic operation"}[access.kind]


@dataclass(frozen=True, slots=True)
class Region:
    """Mapped bytes [start, stop) of global memory, relative to its base."""

    name: str
    start: int
    stop: int
    writable: bool


@dataclass(slots=True)
class Heap:
    """Bytes [used, stop) of global memory from which kernels allocate, with the allocations and freed blocks by address."""

    used: int
    stop: int
    sizes: dict[int, int] = field(default_factory=dict)
    freed: dict[int, int] = field(default_factory=dict)


class GlobalSpace(Space):
    """All of device memory: buffers, module variables, kernel parameters, as regions of one array with guards between."""

    name = "global"

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.regions: list[Region] = []
        self.heap = Heap(0, 0)
        self.meant: Callable[[Instruction], list[Region]] = lambda instruction: []
        """Regions that an instruction's addresses are computed from, for messages."""
        self._strayed: dict[int, tuple[OutOfBounds, str]] = {}
        """The first access of each instruction that lay outside of all regions, and that the launch survived, and the array meant."""
        self._set_regions([])

    def map(self, data: np.ndarray, regions: list[Region], heap: Heap | None = None) -> None:
        """Takes the memory of a launch; regions ascend and do not overlap."""
        self.attach(data)
        self._strayed.clear()
        self.heap = heap or Heap(0, 0)
        self._set_regions(regions)

    def _set_regions(self, regions: list[Region]) -> None:
        self.regions = list(regions)
        self._table = np.zeros((3, max(len(regions), 8)), np.int64)
        """Start, stop and writability of each region, with room for more: an allocation takes the same time however many there are."""
        for column, region in enumerate(regions):
            self._table[:, column] = region.start, region.stop, region.writable
        self._use_table()

    def _use_table(self) -> None:
        self._starts, self._stops, self._writable = self._table[:, : len(self.regions)]

    def allocate(self, count: int, name: str) -> int:
        """The address of fresh bytes on the heap, for `malloc`; 0 if there is no room."""
        heap = self.heap
        start = -(-(heap.used + _HEAP_GUARD) // _HEAP_GUARD) * _HEAP_GUARD
        if count <= 0 or start + count > heap.stop:
            return 0
        heap.used = start + count
        heap.sizes[start + GLOBAL_BASE] = count
        if len(self.regions) == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        self._table[:, len(self.regions)] = start, start + count, True
        self.regions.append(Region(name, start, start + count, True))
        self._use_table()
        return start + GLOBAL_BASE

    def free(self, address: int) -> str:
        """Frees memory from `allocate`; returns the error, if any."""
        if address == 0:
            return ""
        if address in self.heap.freed:
            return f"free of 0x{address:x}, which has been freed before"
        if address not in self.heap.sizes:
            return f"free of 0x{address:x}, which malloc did not return"
        self.heap.freed[address] = self.heap.sizes.pop(address)
        place = int(np.searchsorted(self._starts, address - GLOBAL_BASE))
        del self.regions[place]
        self._table[:, place:-1] = self._table[:, place + 1 :]
        self._use_table()
        return ""

    def release(self) -> None:
        """Lets go of a launch's memory."""
        self.meant = lambda instruction: []
        self.map(np.zeros(UNIT_BYTES, np.uint8), [Region("nothing", 0, 0, False)])

    def locate(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> np.ndarray:
        if addresses.dtype != np.uint64:
            addresses = addresses.astype(np.uint64)
        width = access.width
        if access.hint >= len(self.regions):
            access.hint = 0
        region = self.regions[access.hint]
        unit = width if width < UNIT_BYTES else UNIT_BYTES
        inside = addresses - np.uint64(GLOBAL_BASE + region.start)
        # All bits that are set anywhere: no offset is larger than that, and one below the region has them all.
        bits, last = int(np.bitwise_or.reduce(inside)), region.stop - region.start - width
        if (
            (bits <= last or (last >= 0 and int(np.maximum.reduce(inside)) <= last))
            and (region.writable or access.kind == "load")
            and not (bits | region.start) & (width - 1)
        ):
            for observer in self.observers:
                observer.accessed(self, access, lanes, addresses)
            index = inside.view(np.int64)
            if unit > 1:
                index >>= unit.bit_length() - 1
            index += region.start // unit
            return index
        offsets = (addresses - np.uint64(GLOBAL_BASE)).view(np.int64)
        low, high = int(offsets.min()), int(offsets.max())
        if not (region.start <= low and high <= region.stop - width and (region.writable or access.kind == "load")):
            self._search(access, lanes, offsets)
        if width > 1 and int(np.bitwise_or.reduce(offsets)) & (width - 1):
            self._misaligned(access, lanes, addresses, self._where(int(addresses[0]) - GLOBAL_BASE))
        for observer in self.observers:
            observer.accessed(self, access, lanes, addresses)
        return offsets >> (unit.bit_length() - 1) if unit > 1 else offsets

    def foresee(self, fused: FusedAccess, addresses: np.ndarray) -> None:
        assert isinstance(fused.access, Access)
        if len(addresses):
            place = int(np.searchsorted(self._starts, int(addresses[0]) - GLOBAL_BASE, side="right")) - 1
            fused.access.hint = place if place >= 0 else fused.access.hint

    def is_planned_for(self, fused: FusedAccess) -> bool:
        access = fused.access
        assert isinstance(access, Access)
        return access.hint < len(self.regions) and self.regions[access.hint] is fused.region

    def plan(self, fused: FusedAccess) -> bool:
        access, plan = fused.access, fused.plan
        assert isinstance(access, Access)
        fused.region = region = self.regions[access.hint] if access.hint < len(self.regions) else None
        if region is None or region.stop - region.start < access.width or not (region.writable or access.kind == "load"):
            return False
        plan.start, plan.first, plan.last = GLOBAL_BASE, region.start, region.stop - region.start - access.width
        return super().plan(fused)

    def holds(self, offset: int, width: int) -> bool:
        """True if aligned bytes, from `offset` in the space on, lie in one region."""
        if offset < 0 or offset % width:
            return False
        region = self.regions[int(np.searchsorted(self._starts, offset, side="right")) - 1]
        return region.start <= offset <= region.stop - width

    def _search(self, access: Access, lanes: Lanes | None, offsets: np.ndarray) -> None:
        """Finds each lane's region; raises if there is none, unless a GPU performs the access, or if it may not be written."""
        region_of = np.searchsorted(self._starts, offsets, side="right") - 1
        # An empty region starts where a neighbour could: it holds nothing, and guards keep starts distinct.
        outside = (region_of < 0) | (offsets > self._stops[region_of] - access.width)
        if outside.any():
            self._stray(access, lanes, offsets, region_of, outside)
        if access.kind != "load":
            bad = (self._writable[region_of] == 0) & ~outside
            if bad.any():
                position = np.flatnonzero(bad)[0]
                self._fail(
                    ReadOnly,
                    access,
                    lanes,
                    bad,
                    f"{verb(access)} of {access.width} bytes at 0x{int(offsets[position]) + GLOBAL_BASE:x}, "
                    f"in {self.regions[int(region_of[position])].name}",
                )
        access.hint = int(region_of[int(np.argmin(outside))])

    def _stray(self, access: Access, lanes: Lanes | None, offsets: np.ndarray, region_of: np.ndarray, outside: np.ndarray) -> None:
        """Raises OutOfBounds, unless a GPU performs the accesses outside of all regions and an observer notes them."""
        lost = outside & ~self._is_mapped(offsets, region_of, access.width)
        fatal, count = bool(lost.any()), int(np.count_nonzero(outside))
        known = self._strayed.get(id(access.instruction))
        if not fatal and known is not None and any(observer.passes(known[0], count, known[1]) for observer in self.observers):
            return
        bad = np.flatnonzero(lost if fatal else outside)
        offset = int(offsets[bad[0]])
        distance, meant = self._nearest(offset, access.width, access.instruction)
        error = OutOfBounds(
            f"{verb(access)} of {access.width} bytes at 0x{(offset + GLOBAL_BASE) & (2**64 - 1):x}{distance}",
            instruction=access.instruction,
            threads=self.geometry.describe(bad if lanes is None else lanes[bad]),
        )
        if fatal or not any(observer.passes(error, count, meant) for observer in self.observers):
            raise error
        self._strayed[id(access.instruction)] = error, meant

    def _is_mapped(self, offsets: np.ndarray, region_of: np.ndarray, width: int) -> np.ndarray:
        """True for accesses to a page that also holds an allocation. The first region, at 0, holds the kernel's parameters."""
        if len(self.regions) < 2:
            return np.zeros(len(offsets), np.bool_)
        first, last = offsets // MAPPED_BYTES, (offsets + width - 1) // MAPPED_BYTES
        below, above = np.maximum(region_of, 0), np.minimum(region_of + 1, len(self.regions) - 1)
        near = (below > 0) & ((self._stops[below] - 1) // MAPPED_BYTES >= last)
        near |= (self._starts[above] // MAPPED_BYTES <= first) & (self._starts[above] > offsets)
        mapped: np.ndarray = near & (offsets >= self._starts[1]) & (offsets <= len(self.data) - width)
        return mapped

    def _where(self, offset: int) -> str:
        number = int(np.searchsorted(self._starts, offset, side="right")) - 1
        if number < 0:
            return ""
        region = self.regions[number]
        return f"; {region.name} begins at 0x{region.start + GLOBAL_BASE:x}"

    def _nearest(self, offset: int, width: int, instruction: Instruction) -> tuple[str, str]:
        """Distance by which an access missed its target, a region that the address is computed from, else any; and the region's name."""
        best: tuple[int, str, str] | None = None
        for start, size in self.heap.freed.items():
            if start <= offset + GLOBAL_BASE < start + size:
                return f", {offset + GLOBAL_BASE - start} bytes into an allocation of {size} bytes that has been freed", ""
        for region in self.meant(instruction) or self.regions:
            size = region.stop - region.start
            if offset + width > region.stop and offset >= region.start:
                past = offset - region.stop
                text = (
                    f", {past} bytes past the end of {region.name} ({size} bytes)"
                    if past >= 0
                    else f", of which {offset + width - region.stop} lie past the end of {region.name} ({size} bytes)"
                )
                distance = max(past, 0)
            elif offset < region.start:
                distance = region.start - offset
                text = f", {distance} bytes before {region.name} ({size} bytes)"
            else:
                continue
            if best is None or distance < best[0]:
                best = (distance, text, region.name)
        if best is None or best[0] > 1 << 40:
            return ", which is near no buffer" + (" (a null pointer?)" if offset + GLOBAL_BASE < 1 << 20 else ""), ""
        return best[1:]


class BankedSpace(Space):
    """Memory that exists many times, once a block (shared) or once a lane (local), at the same addresses in each."""

    def __init__(
        self, name: str, geometry: Geometry, owner_of_lane: np.ndarray, owners: int, size: int, first: int = 0, padding: int = 0
    ) -> None:
        """`size` counts the bytes before `first`, the lowest address that exists, a multiple of the widest unit. `padding`: bytes behind
        them that a GPU allocates too, so that it notices no access there."""
        super().__init__(geometry)
        self.name = name
        self.size, self.first, self.padding = size, first, padding
        self.stride = max(-(-(size + padding) // UNIT_BYTES) * UNIT_BYTES, UNIT_BYTES)
        self.describe: Callable[[int], str] = lambda address: f"{name} address {address}"
        """An address in words."""
        self.in_flight: PendingOfLanes | None = None
        """Bytes that asynchronous copies are about to write; made by the first such instruction."""
        self.warpgroups: Lasting | None = None
        """The wgmma operations in flight; made with a machine whose program has any."""
        self.async_proxy: Pending | None = None
        """Engines' accesses to this memory; set by the first instruction that starts one."""
        self.clusters: Neighbours | None = None
        self._base = owner_of_lane.astype(np.int64) * self.stride
        self._first_base = self._base + first
        self._bases = {1 << shift: self._first_base >> shift for shift in range(5)}
        self.ranks: np.ndarray | None = None
        """The rank bits in addresses of each lane's own block; None if they are zero."""
        self.attach(np.full(owners * self.stride, 0xFF, np.uint8))

    @property
    def is_in_flight(self) -> bool:
        return self.in_flight is not None or self.async_proxy is not None or self.ranks is not None

    def plan(self, fused: FusedAccess) -> bool:
        plan = fused.plan
        last = self.size - self.first - fused.access.width
        if last < 0:
            return False
        plan.base, plan.start, plan.first, plan.last = self._first_base.ctypes.data, self.first, 0, last
        return super().plan(fused)

    def shown(self, address: int) -> int:
        """An address, or an offset in the whole space, as messages count it: from the lowest address of its owner."""
        return address % self.stride - self.first

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh memory for lanes (None: all), whole blocks: a pattern that is NaN as a float and -1 as an integer."""
        if lanes is None:
            self.data.fill(0xFF)
        else:
            self.data.reshape(-1, self.stride)[np.unique(self._base[lanes]) // self.stride] = 0xFF
        if self.in_flight is not None:
            self.in_flight.clear(lanes)
        if self.warpgroups is not None:
            self.warpgroups.clear(lanes)

    def locate(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> np.ndarray:
        index = self.resolve(access, lanes, addresses)
        if self.in_flight is not None:
            self.in_flight.check(access, lanes, index)
        if self.async_proxy is not None:
            self.async_proxy.check(access, lanes, index)
        for observer in self.observers:
            observer.accessed(self, access, lanes, addresses)
        return index

    def resolve(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> np.ndarray:
        """`locate` for an access that happens later: bounds and alignment are checked, observers are not notified."""
        width = access.width
        given = addresses
        if self.ranks is not None:
            addresses = addresses ^ (self.ranks if lanes is None else self.ranks[lanes]).astype(addresses.dtype)
        if self.first:
            addresses = addresses - addresses.dtype.type(self.first)
        if int(addresses.max()) > self.size - self.first - width and not self._is_in_padding(access, lanes, addresses):
            return self._resolve_remote(access, lanes, given)
        if width > 1 and int(np.bitwise_or.reduce(addresses)) & (width - 1):
            self._misaligned(access, lanes, addresses)
        unit = width if width < UNIT_BYTES else UNIT_BYTES
        base = self._bases[unit] if lanes is None else self._bases[unit][lanes]
        if addresses.dtype == np.uint64:
            addresses = addresses.view(np.int64)
        if unit > 1:
            addresses = addresses >> addresses.dtype.type(unit.bit_length() - 1)
        index: np.ndarray = base + addresses
        return index

    def _resolve_remote(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> np.ndarray:
        """`resolve` where some addresses name another block of the cluster, or nothing."""
        inst = access.instruction
        ranks, inside = addresses >> addresses.dtype.type(RANK_SHIFT), addresses & addresses.dtype.type((1 << RANK_SHIFT) - 1)
        own = (inst.has("shared") or inst.has("shared::cta")) and not inst.has("shared::cluster")
        exist = self.first <= int(inside.min()) and int(inside.max()) <= self.size - access.width
        if self.clusters is None or own or not exist or int(ranks.max()) >= self.geometry.cluster_size:
            self._out_of_bounds(access, lanes, addresses)
        if access.width > 1 and int(np.bitwise_or.reduce(inside)) & (access.width - 1):
            self._misaligned(access, lanes, inside - inside.dtype.type(self.first))
        who = np.arange(len(addresses)) if lanes is None else lanes
        offsets = self.offsets(who, addresses)
        self.clusters.check_remote(inst, who, offsets // self.stride)
        return offsets // min(access.width, UNIT_BYTES)

    def own_addresses(self, lanes: Lanes, inside: np.ndarray) -> np.ndarray:
        """Addresses of bytes in the lanes' own blocks."""
        addresses = inside.astype(np.uint64)
        return addresses if self.ranks is None else addresses | self.ranks[lanes]

    def offsets(self, lanes: Lanes | None, addresses: np.ndarray) -> np.ndarray:
        """Byte offsets in the whole space of valid addresses of lanes (None: all), other blocks of a cluster included."""
        base = self._base if lanes is None else self._base[lanes]
        if self.ranks is None:
            own: np.ndarray = base + (addresses.view(np.int64) if addresses.dtype == np.uint64 else addresses)
            return own
        wide = addresses.astype(np.int64)
        size = self.geometry.cluster_size
        base = (base // self.stride // size * size + (wide >> RANK_SHIFT)) * self.stride
        wide &= (1 << RANK_SHIFT) - 1
        offsets: np.ndarray = base + wide
        return offsets

    def _is_in_padding(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> bool:
        """True if all addresses past the end lie in the padding, and an observer notes them."""
        last = self.size - self.first + self.padding - access.width
        if not self.padding or self.ranks is not None or int(addresses.max()) > last:
            return False
        outside = np.flatnonzero(addresses > max(self.size - self.first - access.width, -1))
        past = int(addresses[outside[0]]) + access.width - self.size + self.first
        error = OutOfBounds(
            f"{verb(access)} of {access.width} bytes at {self.name} address 0x{int(addresses[outside[0]]):x}: {self.name} memory has "
            f"{self.size - self.first} bytes, the access reaches {past} bytes past its end",
            instruction=access.instruction,
            threads=self.geometry.describe(outside if lanes is None else lanes[outside]),
        )
        return any(observer.passes(error, len(outside), f"{self.name} memory") for observer in self.observers)

    def _out_of_bounds(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> NoReturn:
        wide = (addresses - addresses.dtype.type(self.first)).astype(np.uint64)
        size = self.size - self.first
        limit = size - access.width
        bad = wide > np.uint64(limit) if limit >= 0 else np.ones(len(wide), np.bool_)
        address = int(wide[np.flatnonzero(bad)[0]])
        modulus = 1 << (8 * addresses.dtype.itemsize)
        if address > modulus // 2:
            miss = f"{modulus - address} bytes before its start"
            shown = f"-0x{modulus - address:x}"
        else:
            past = address + access.width - size
            miss = f"{past} bytes past its end"
            shown = f"0x{address:x}"
        self._fail(
            OutOfBounds,
            access,
            lanes,
            bad,
            f"{verb(access)} of {access.width} bytes at {self.name} address {shown}: {self.name} memory has "
            f"{size} bytes, the access reaches {miss}",
        )


@dataclass(slots=True)
class Spaces:
    """The memory of a machine."""

    global_: GlobalSpace
    shared: BankedSpace
    local: BankedSpace
    output: Output = field(default_factory=Output)
    """Text that the kernel printed."""

    def watch(self, observers: Sequence[Observer]) -> None:
        """Lets observers see every access."""
        for space in (self.global_, self.shared, self.local):
            space.observers = observers
            space.generation += 1
