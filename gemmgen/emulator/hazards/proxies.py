"""Order between threads and engines by barriers in shared memory and clusters, and missing proxy fences.

PTX ISA, "Memory Consistency Model: Proxies" and "mbarrier". An engine is a separate thread here (a stream): the copies that complete on one
barrier, the bulk copies of one thread, the products of one warpgroup. A thread that has observed the completion is ordered after the
stream's work.

- An arrival releases the clock of its thread to the barrier. A wait that has observed the phase's completion acquires it, together with the
writes of the copies of that phase. The barrier of a cluster does the same for all its threads.
- Writes of threads to shared memory are visible to the engines only after a fence.proxy.async: on the way from the write to the
  operation that reads it, by whichever thread. Writes of engines need no fence, because their completion acts as one. By strict rules,
  reads of threads need one too before an engine overwrites the data that they have read.
- A tensor map that the launch has changed is released to the tensormap proxy by a fence behind the change, or by the copy that brings it
  to global memory, and each block that uses it acquires it (CUDA C++ Programming Guide, "Usage of a Modified Tensor Map").
- A barrier may be used where its initialisation is known; by TMA, behind a fence.mbarrier_init or fence.proxy.async.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gemmgen.emulator.engines.async_proxy import CHUNK
from gemmgen.emulator.fused_access import FusedAccess
from gemmgen.emulator.geometry import WARP, Geometry, Lanes
from gemmgen.emulator.hazards.clocks import NOTHING
from gemmgen.emulator.hazards.order import Order
from gemmgen.emulator.hazards.report import (
    CopyWithoutProxyFence,
    EarlyBarrierUse,
    Findings,
    MissingInitFence,
    MissingMapFence,
    MissingProxyFence,
    OutlivingAccess,
    RefillWithoutProxyFence,
)
from gemmgen.emulator.hazards.shadow import WRITTEN, Records, Shadow
from gemmgen.emulator.hazards.sites import Site, site_of
from gemmgen.emulator.memory import GLOBAL_BASE, Access, BankedSpace, Observer, Space, Spaces
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.emulator.transfers import AsyncAccess, Barrier

EARLIER = ("the launch before this one", "a launch further back, which may not have ended when the launch before this one has")
"""Launches that may still run: the one that griddepcontrol.wait waits for, and those that it does not wait for."""
_WARPS = 4
_MAX_FENCES = 256
_MAX_ACQUIRES = 4
"""Latest fences of one map in one block that are remembered."""


@dataclass(slots=True)
class Fence:
    """One execution of a proxy fence, and the clocks of its lanes."""

    lanes: Lanes
    threads: np.ndarray
    time: int
    base: np.ndarray
    known: np.ndarray
    rows: np.ndarray | None
    covers: frozenset[str]
    """Kinds of memory that it orders for engines: barriers (their initialisation), shared, global, maps (released)."""


_FENCED, _PUBLISHED = 1, 2


@dataclass(slots=True)
class _Initialised:
    """The thread and time of a barrier's initialisation, and the lanes that are ordered after it."""

    instruction: Instruction
    lane: int
    time: int
    informed: np.ndarray
    told: np.ndarray
    """Lanes that know of it, fence included, by a relaxed arrival at the barrier of their cluster."""
    state: int = 0
    """Progress towards such an arrival: _FENCED, then _PUBLISHED."""


@dataclass(slots=True)
class _Landed:
    """Writes of a stream into a block's memory, as long as nobody there need have seen it."""

    place: int
    site: Site
    granules: np.ndarray
    packed: int


class Detector(Protocol):
    """The detector that these rules are a part of."""

    program: Program
    order: Order
    records: Records
    findings: Findings
    follows_refills: bool

    @property
    def shared_shadow(self) -> Shadow | None:
        """Events in shared memory."""

    @property
    def global_shadow(self) -> Shadow:
        """Events in global memory."""

    def shared_place(self, offset: int) -> str:
        """The variable at an offset in the shared memory of all blocks."""

    def global_place(self, granule: int) -> str:
        """The buffer at a granule of global memory."""


class ProxyRules(Observer):
    """The part of a detector that watches engines. Comes after the detector among the observers."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.order = detector.order
        self.order.clocks.holders.append(self._held)
        self.findings = detector.findings
        self.records = detector.records
        self.follows = False
        """True if the launch may have begun before the one in front of it has ended."""
        self.waited: set[int] = set()
        """Blocks, by number, of which a thread has waited for that one."""
        self.triggered: set[int] = set()
        """Blocks that have let the next launch begin before that."""
        self._sites: dict[tuple[int, str], Site] = {}
        self._streams: dict[tuple[str, int], int] = {}
        instructions = [inst for block in detector.program.blocks for inst in block.body]
        self.tensor_fence: Callable[[Instruction, Lanes], None] | None = None
        """Observer of the fences of tcgen05."""
        engines = ("wgmma", "tcgen05", "clusterlaunchcontrol")
        self._follows_reads = detector.follows_refills
        self._concerned = any(inst.opcode in engines or (inst.opcode == "cp" and inst.has("bulk")) for inst in instructions)

    def of_worker(self) -> ProxyRules:
        return self

    def wave_started(self, geometry: Geometry, spaces: Spaces) -> None:
        self.geometry = geometry
        self.shared = spaces.shared
        self._streams.clear()
        if self.follows and not self.order.streams:
            for name in EARLIER:
                self.order.new_stream(name)
        self._stores: dict[int, deque[int]] = {}
        chunks = len(spaces.shared.data) // CHUNK if self._concerned else 0
        self._generic = np.zeros(chunks, np.int64)
        self._read = np.zeros(chunks if self._follows_reads else 0, np.int64)
        self._fences: deque[Fence] = deque(maxlen=_MAX_FENCES)
        self._acquires: dict[tuple[int, int], deque[Fence]] = {}
        self._inits: dict[int, _Initialised] = {}
        self._arrived: dict[int, int] = {}
        self._completed: dict[int, int] = {}
        self._landed: list[_Landed] = []
        self._at_cluster: dict[int, int] = {}
        self._of_cluster: dict[int, int] = {}
        self._remote: dict[tuple[int, int], tuple[Instruction, int]] = {}

    def _held(self) -> Iterator[int]:
        """The numbers of the clocks that barriers and fences hold."""
        for table in (self._arrived, self._completed, self._at_cluster, self._of_cluster):
            yield from table.values()
        for fence in (*self._fences, *(fence for fences in self._acquires.values() for fence in fences)):
            yield from np.unique(fence.known).tolist()

    def blocks_replaced(self, places: np.ndarray) -> None:
        for place in places.tolist():
            first = place * self.shared.stride
            for last in (self._generic, self._read):
                last[first // CHUNK : (first + self.shared.stride) // CHUNK] = 0
            for table in (self._inits, self._arrived, self._completed):
                for offset in [offset for offset in table if first <= offset < first + self.shared.stride]:
                    del table[offset]
            self._at_cluster.pop(place, None)
            self._of_cluster.pop(place, None)
        self._landed = [entry for entry in self._landed if entry.place not in places]
        self._remote = {key: value for key, value in self._remote.items() if key[0] not in places}

    @property
    def _shadow(self) -> Shadow:
        shadow = self.detector.shared_shadow
        assert shadow is not None
        return shadow

    def _site(self, inst: Instruction, kind: str) -> Site:
        key = (id(inst), kind)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = site_of(Access(inst, kind, CHUNK, CHUNK))
        return site

    def _stream(self, kind: str, number: int, name: str) -> int:
        key = (kind, number)
        if key not in self._streams:
            self._streams[key] = self.order.new_stream(name)
        return self._streams[key]

    def _granules(self, chunks: np.ndarray) -> np.ndarray:
        per = CHUNK // self._shadow.granule
        granules: np.ndarray = chunks if per == 1 else (chunks[:, None] * per + np.arange(per)).ravel()
        return granules

    # -- operations of threads ---------------------------------------------------------------------------------------

    def plan(self, space: Space, fused: FusedAccess) -> bool:
        # A load or store of one of a thread's registers is no bulk copy.
        return space.name != "shared" or not (self.geometry.cluster_size > 1 or self._concerned)

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if space.name == "shared":
            if self.geometry.cluster_size > 1:
                self._note_remote(access, lanes, addresses)
            followed = access.kind != "load" or self._follows_reads
            if self._concerned and followed and not access.instruction.has("bulk"):
                last = self._read if access.kind == "load" else self._generic
                record = self.records.add(self._site(access.instruction, access.kind), self.order.time)
                threads = self.order.threads if lanes is None else self.order.threads[lanes]
                chunks = self.shared.offsets(lanes, addresses) // CHUNK
                for piece in range(max(access.width // CHUNK, 1)):
                    last[chunks + piece] = threads | record << 32
        elif self._concerned and space.name == "global" and access.kind == "load" and access.instruction.has("bulk"):
            if access.describes:
                self._check_map(access, lanes, addresses)
            else:
                self._check_global(access, lanes, addresses)
        elif self._concerned and space.name == "global" and access.kind == "store" and access.instruction.has("bulk"):
            self._begin_store(access, lanes, addresses)

    def _begin_store(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        """A bulk copy writes global memory at any time until its thread has waited for it."""
        assert lanes is not None
        lane, shadow = int(lanes[0]), self.detector.global_shadow
        stream = self._stream("bulk", lane, f"the bulk copies of {self.geometry.describe(lanes[:1])}")
        offsets = (addresses.astype(np.uint64) - np.uint64(GLOBAL_BASE)).view(np.int64)
        granules = (offsets[:, None] + np.arange(0, access.width, shadow.granule)).ravel() // shadow.granule
        shadow.note(site_of(access), np.unique(granules), stream)
        self._stores.setdefault(lane, deque()).append(self.order.time)
        self.order.time += 1

    def bulk_store_seen(self, instruction: Instruction, lanes: Lanes) -> None:
        for lane in lanes.tolist():
            stores = self._stores.get(lane)
            if stores and not instruction.has("reduce"):
                self.order.learn(lanes, self.order.clock_of({self._streams["bulk", lane]: stores.popleft()}))

    def _check_global(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        """A bulk copy reads global memory; writes of this launch to it need a proxy fence as well."""
        written, packed = self._written(addresses)
        if lanes is not None and len(packed):
            place = self.detector.global_place(int(written[0]))
            self._check_fence(access.instruction, lanes[:1], packed, place, space="global")

    def _written(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Granules of global memory among these that the launch has written, and their writers."""
        shadow = self.detector.global_shadow
        offsets = (addresses.astype(np.uint64) - np.uint64(GLOBAL_BASE)).view(np.int64)
        granules = np.unique(offsets // shadow.granule)
        written = granules[(shadow.state[granules] & WRITTEN) != 0]
        return written, shadow.writers_of(written)

    def _check_map(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        """A copy goes by a tensor map that this launch may have changed: it has to be released, and acquired in the block that uses it."""
        written, packed = self._written(addresses)
        packed, threads, times = self._by_threads(packed)
        if lanes is None or not len(packed):
            return
        issuer = int(lanes[0])
        acquires = self._acquires.get((int(addresses[0]), int(self.order.threads[issuer]) // self.geometry.stride), ())
        acquired = self._fenced(issuer, threads, times, acquires)
        sites = [self.records.sites[entry >> 32] for entry in packed.tolist()]
        copied = np.array(
            [site is not None and site.instruction.opcode == "tensormap" and site.instruction.has("release") for site in sites]
        )
        # Fences of waves before this one are forgotten.
        elsewhere = ~np.isin(threads, self.order.threads)
        released = copied | elsewhere
        released |= self._fenced(issuer, threads, times, self._covering("maps"))
        bad = np.flatnonzero(~(acquired & released))
        if not len(bad):
            return
        first, other = int(bad[0]), sites[int(bad[0])]
        assert other is not None
        place = self.detector.global_place(int(written[0]))
        missing = [] if released[first] else ["no fence.proxy.tensormap::generic.release (or tensormap.cp_fenceproxy) behind the change"]
        if not acquired[first]:
            missing.append("no fence.proxy.tensormap::generic.acquire of this map by a thread of this block that the copy follows")
        self.findings.add(
            MissingMapFence(
                f"a copy goes by the tensor map {place}, which threads have changed; there is {', and '.join(missing)}",
                len(bad),
                place,
                instruction=access.instruction,
                threads=self.geometry.describe(lanes[:1]),
                other=other.instruction,
                other_threads=self.geometry.describe_thread(int(threads[first])),
            )
        )

    def map_acquired(self, instruction: Instruction, lanes: Lanes, addresses: np.ndarray) -> None:
        blocks = self.order.threads[lanes] // self.geometry.stride
        for address, block in sorted(set(zip(addresses.tolist(), blocks.tolist(), strict=True))):
            mine = lanes[(addresses == address) & (blocks == block)]
            fences = self._acquires.setdefault((address, block), deque(maxlen=_MAX_ACQUIRES))
            fences.appendleft(self._fence(mine, frozenset()))

    def executed(self, instruction: Instruction, lanes: Lanes | None) -> None:
        if instruction.opcode == "griddepcontrol":
            if not self.follows:
                return
            who = np.arange(self.geometry.lanes) if lanes is None else lanes
            blocks = self.order.threads[who] // self.geometry.stride
            if instruction.has("launch_dependents"):
                many = np.full(len(who), self.order.first_stream)
                self.triggered.update(blocks[~self.order.ordered(who, many, np.zeros_like(many))].tolist())
            else:
                self.waited.update(blocks.tolist())
                self.order.learn(who, self.order.clock_of({self.order.first_stream: self.order.time}))
            return
        if instruction.opcode == "tcgen05":
            if self.tensor_fence is not None:
                self.tensor_fence(instruction, np.arange(self.geometry.lanes) if lanes is None else lanes)
            return
        covers = _covered(instruction)
        if not covers:
            return
        who = np.arange(self.geometry.lanes) if lanes is None else lanes
        self._fences.appendleft(self._fence(who, covers))
        if instruction.has("mbarrier_init"):
            for init in self._inits.values():
                if init.lane in who:
                    init.state = max(init.state, _FENCED)

    def fence_of(self, lanes: Lanes) -> Fence:
        """A fence that orders no memory between threads and engines."""
        return self._fence(lanes, frozenset())

    def _fence(self, lanes: Lanes, covers: frozenset[str]) -> Fence:
        """A fence that lanes execute now."""
        order = self.order
        rows = None
        if order.matrix is not None:
            rows = order.matrix[lanes // order.group, lanes % order.group].copy()
        fence = Fence(lanes.copy(), order.threads[lanes], order.time, order.base[lanes], order.known[lanes], rows, covers)
        order.time += 1
        return fence

    # -- proxy fences ------------------------------------------------------------------------------------------

    def _covering(self, what: str) -> Iterator[Fence]:
        """Fences that order a kind of memory for engines, the latest first."""
        return (fence for fence in self._fences if what in fence.covers)

    def _fenced(self, issuer: int, threads: np.ndarray, times: np.ndarray, fences: Iterable[Fence]) -> np.ndarray:
        """Writes among these (by thread and time) that have one of the fences between them and the present operation of lane `issuer`."""
        fine = np.zeros(len(threads), np.bool_)
        for fence in fences:
            left = np.flatnonzero(~fine & (times <= fence.time))
            if not len(left):
                continue
            own = left[np.isin(threads[left], fence.threads)]
            if len(own):
                fine[own] = self.order.ordered(np.full(len(own), issuer), threads[own], np.full(len(own), fence.time))
            left = left[~fine[left]]
            if len(left):
                for position in self._candidates(fence, issuer):
                    thread = int(fence.threads[position])
                    if self.order.ordered(np.array([issuer]), np.array([thread]), np.array([fence.time]))[0]:
                        fine[left] |= self.knew(fence, position, threads[left], times[left])
            if fine.all():
                break
        return fine

    @staticmethod
    def _candidates(fence: Fence, issuer: int) -> list[int]:
        """Positions of the lanes whose fence may cover the writes of others: all if they are few."""
        if len(fence.lanes) <= _WARPS:
            return list(range(len(fence.lanes)))
        mine = np.flatnonzero(fence.lanes == issuer).tolist()
        return [*mine, *(position for position in (0, len(fence.lanes) - 1) if position not in mine)]

    def knew(self, fence: Fence, position: int, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Writes that a lane knew when it executed a fence."""
        order, stride = self.order, self.geometry.stride
        mine = int(fence.threads[position])
        known: np.ndarray = (threads == mine) | ((threads // stride == mine // stride) & (times <= fence.base[position]))
        if fence.rows is not None:
            near = threads // order.group == mine // order.group
            known |= near & (fence.rows[position][threads % order.group] >= times)
        if fence.known[position] != NOTHING:
            known |= order.clocks[int(fence.known[position])].covers(threads, times, stride)
        return known

    def _check_fence(self, inst: Instruction, lanes: Lanes, packed: np.ndarray, place: str, space: str, reads: bool = False) -> None:
        distinct, threads, times = self._by_threads(packed)
        if not len(distinct):
            return
        # All warps issue a wgmma, and each reads for itself.
        issuers = lanes[::WARP] if inst.opcode == "wgmma" else lanes[:1]
        fine = np.ones(len(distinct), np.bool_)
        for issuer in issuers.tolist():
            fine &= self._fenced(issuer, threads, times, self._covering(space))
        reported = set()
        for position in np.flatnonzero(~fine).tolist():
            other = self.records.sites[int(distinct[position]) >> 32]
            assert other is not None
            kind = CopyWithoutProxyFence if other.instruction.opcode == "cp" else MissingProxyFence
            done = f"uses {place}, which threads have written{' by cp.async' if kind is CopyWithoutProxyFence else ''}"
            if reads:
                kind, done = RefillWithoutProxyFence, f"overwrites {place}, which threads have read"
            if kind in reported:
                continue
            reported.add(kind)
            self.findings.add(
                kind(
                    f"{_doing(inst)} {done}; no fence.proxy.async lies between the {'read' if reads else 'write'} and this"
                    f"{self._narrower(space)}",
                    int((~fine).sum()),
                    place,
                    instruction=inst,
                    threads=self.geometry.describe(lanes),
                    other=other.instruction,
                    other_threads=self.geometry.describe_thread(int(threads[position])),
                )
            )

    def _by_threads(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Different events of threads, not of engines: packed, and their threads and times."""
        distinct = np.unique(packed)
        threads, times = self.records.unpack(distinct)
        real = threads < self.order.first_stream
        return distinct[real], threads[real], times[real]

    def _narrower(self, space: str) -> str:
        """A word on fences of the other state space alone, if there were any."""
        other = "global" if space == "shared" else "shared"
        there = any(space not in fence.covers and other in fence.covers for fence in self._fences)
        return f" but one that is restricted to {other} memory" if there else ""

    def _check_chunks(self, inst: Instruction, lanes: Lanes, chunks: np.ndarray, reads: bool = False) -> None:
        packed = (self._read if reads else self._generic)[chunks]
        used = np.flatnonzero(packed)
        if len(used):
            place = self.detector.shared_place(int(chunks[used[0]]) * CHUNK)
            self._check_fence(inst, lanes, packed[used], place, "shared", reads)

    # -- operations of engines ---------------------------------------------------------------------------------------

    def async_started(self, access: AsyncAccess) -> None:
        site = self._site(access.instruction, "load" if access.kind == "read" else "store")
        # All warps issue a wgmma, and each must see the written data.
        issuers = access.lanes[::WARP] if access.instruction.opcode == "wgmma" else access.lanes[:1]
        if access.kind == "write" or not self._shadow.only_written_before(self._granules(access.chunks), issuers):
            self._ask(site, issuers, access.chunks)
        self._check_chunks(access.instruction, access.lanes, access.chunks)
        if access.kind == "write" and self._follows_reads:
            self._check_chunks(access.instruction, access.lanes, access.chunks, reads=True)

    def _ask(self, site: Site, lanes: Lanes, chunks: np.ndarray) -> None:
        """True if an operation that lanes start races with earlier accesses of others."""
        for lane in lanes.tolist():
            self._shadow.access(site, np.full(len(chunks), lane), chunks * CHUNK, writes=False)

    def async_ended(self, access: AsyncAccess, lanes: Lanes) -> None:
        if access.instruction.opcode == "wgmma":
            # It reads for all warps until the first of them waits; later waits order as much.
            if access.stream < 0:
                access.stream = self._stream("warpgroup", int(access.lanes[0]), f"the wgmma of {self.geometry.describe(access.lanes)}")
                access.time = self.order.time
                self._shadow.note(self._site(access.instruction, "load"), self._granules(access.chunks), access.stream)
                self.order.time += 1
            self.order.learn(lanes, self.order.clock_of({access.stream: access.time}))
        elif len(lanes):
            # Seen by the thread that issued it: its reading ends with the wait.
            site = self._site(access.instruction, "load" if access.kind == "read" else "store")
            self._shadow.access(site, np.full(len(access.chunks), lanes[0]), access.chunks * CHUNK)

    def bytes_arrived(self, access: AsyncAccess, barrier: Barrier) -> None:
        name = f"the copies that complete on {_address(barrier, self.shared)}"
        stream = self._stream("barrier", barrier.offset, name)
        site = self._site(access.instruction, "load" if access.kind == "read" else "store")
        granules = self._granules(access.chunks)
        packed = self._shadow.note(site, granules, stream)
        self._learn_by_barrier(barrier.offset, {stream: self.order.time})
        self.order.time += 1
        if access.kind == "write":
            self._generic[access.chunks] = 0
            if self._follows_reads:
                self._read[access.chunks] = 0
            place = int(access.chunks[0]) * CHUNK // self.shared.stride
            self._landed.append(_Landed(place, site, granules, packed))

    def products_ended(self, lane: int, accesses: Sequence[AsyncAccess], barriers: Sequence[Barrier], clock: int) -> tuple[int, int]:
        """Operations of tcgen05 that a lane has issued have read shared memory, as barriers are to tell, together with a clock; returns the
        number of their stream and the time."""
        stream, time = (
            self._stream("tensor", lane, f"the tcgen05 operations of {self.geometry.describe(np.array([lane]))}"),
            self.order.time,
        )
        for access in accesses:
            self._shadow.note(self._site(access.instruction, "load"), self._granules(access.chunks), stream)
        for barrier in barriers:
            self._learn_by_barrier(barrier.offset, {stream: time})
            self._arrived[barrier.offset] = self.order.clocks.join_all([self._arrived[barrier.offset], clock])
        self.order.time += 1
        return stream, time

    def words_arrived(self, instruction: Instruction, offsets: np.ndarray, width: int, barrier: Barrier) -> None:
        stream = self._stream("barrier", barrier.offset, f"the stores that complete on {_address(barrier, self.shared)}")
        granule = self._shadow.granule
        granules = (offsets[:, None] // granule + np.arange(max(width // granule, 1))).ravel()
        packed = self._shadow.note(self._site(instruction, "store"), granules, stream)
        self._learn_by_barrier(barrier.offset, {stream: self.order.time})
        self.order.time += 1
        self._landed.append(_Landed(barrier.offset // self.shared.stride, self._site(instruction, "store"), granules, packed))

    # -- barriers in shared memory -----------------------------------------------------------------------------

    def barrier_initialised(self, barrier: Barrier) -> None:
        informed = np.zeros(self.geometry.lanes, np.bool_)
        informed[barrier.lane] = True
        self._inits[barrier.offset] = _Initialised(barrier.instruction, barrier.lane, self.order.time, informed, np.zeros_like(informed))
        self._arrived.pop(barrier.offset, None)
        self._completed.pop(barrier.offset, None)

    def barrier_used(self, instruction: Instruction, barrier: Barrier, lanes: Lanes) -> None:
        place = barrier.offset // self.shared.stride
        # Copies that complete on it are waited for there.
        remote = lanes[lanes // self.geometry.stride != place] if instruction.opcode == "mbarrier" else lanes[:0]
        for lane in remote.tolist():
            self._remote[place, int(self.order.threads[lane])] = (instruction, self.order.time)
        init = self._inits.get(barrier.offset)
        if init is None or init.informed[lanes].all():
            return
        thread = int(self.order.threads[init.lane])
        uninformed = lanes[~init.informed[lanes]]
        many = np.full(len(uninformed), thread)
        fine = self.order.ordered(uninformed, many, np.full(len(uninformed), init.time))
        where = _address(barrier, self.shared)
        if not fine.all():
            self.findings.add(
                EarlyBarrierUse(
                    f"{where} is used by threads that need not know of its initialisation",
                    int((~fine).sum()),
                    where,
                    instruction=instruction,
                    threads=self.geometry.describe(uninformed[~fine]),
                    other=init.instruction,
                    other_threads=self.geometry.describe_thread(thread),
                )
            )
        init.informed[uninformed] = True

    def engine_uses_barrier(self, instruction: Instruction, barrier: Barrier, lane: int) -> None:
        init = self._inits.get(barrier.offset)
        if init is None or init.told[lane]:
            return
        thread = int(self.order.threads[init.lane])
        if not self._fenced(lane, np.array([thread]), np.array([init.time]), self._covering("barriers"))[0]:
            where = _address(barrier, self.shared)
            self.findings.add(
                MissingInitFence(
                    f"a copy completes on {where}; no fence.mbarrier_init lies between its initialisation and this",
                    1,
                    where,
                    instruction=instruction,
                    threads=self.geometry.describe(np.array([lane])),
                    other=init.instruction,
                    other_threads=self.geometry.describe_thread(thread),
                )
            )

    def _learn_by_barrier(self, offset: int, threads: dict[int, int]) -> None:
        clock = self.order.clock_of(threads)
        self._arrived[offset] = self.order.clocks.join_all([self._arrived.get(offset, NOTHING), clock])

    def mbarrier_arrived(self, instruction: Instruction, barrier: Barrier, lanes: Lanes) -> None:
        clock = self._released(instruction, lanes)
        self._arrived[barrier.offset] = self.order.clocks.join_all([self._arrived.get(barrier.offset, NOTHING), clock])

    def _released(self, instruction: Instruction, lanes: Lanes) -> int:
        """The clock that an arrival publishes; for a relaxed arrival, the clock at the last fence."""
        return self.order.release_fenced(lanes) if instruction.has("relaxed") else self.order.release(lanes)

    def phase_completed(self, barrier: Barrier) -> None:
        self._completed[barrier.offset] = self._arrived.pop(barrier.offset, NOTHING)

    def phase_seen(self, instruction: Instruction, barrier: Barrier, lanes: Lanes) -> None:
        clock = self._completed.get(barrier.offset, NOTHING)
        if instruction.has("relaxed"):
            self.order.observe(lanes, clock)
        else:
            self.order.learn(lanes, clock)

    # -- clusters ----------------------------------------------------------------------------------------------

    def _first_place(self, lanes: Lanes) -> int:
        size = self.geometry.cluster_size
        return int(lanes[0]) // self.geometry.stride // size * size

    def _by_cluster(self, lanes: Lanes) -> list[Lanes]:
        clusters = lanes // (self.geometry.stride * self.geometry.cluster_size)
        return [lanes[clusters == cluster] for cluster in np.unique(clusters).tolist()]

    def cluster_arrived(self, instruction: Instruction, lanes: Lanes) -> None:
        for members in self._by_cluster(lanes):
            first = self._first_place(members)
            clock = self._released(instruction, members)
            self._at_cluster[first] = self.order.clocks.join_all([self._at_cluster.get(first, NOTHING), clock])
            # The init fence releases initialisations, and nothing else, to a relaxed arrival behind it (PTX ISA, fence.mbarrier_init).
            for init in self._inits.values():
                if init.state == _FENCED and init.lane in members:
                    init.state = _PUBLISHED

    def cluster_met(self, lanes: Lanes) -> None:
        first = self._first_place(lanes)
        self._of_cluster[first] = self._at_cluster.pop(first, NOTHING)

    def cluster_waited(self, instruction: Instruction, lanes: Lanes) -> None:
        for members in self._by_cluster(lanes):
            first = self._first_place(members)
            self.order.learn(members, self._of_cluster.get(first, NOTHING))
            for init in self._inits.values():
                if init.state == _PUBLISHED and self._first_place(np.array([init.lane])) == first:
                    init.informed[members] = init.told[members] = True

    def _note_remote(self, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        who = np.arange(self.geometry.lanes) if lanes is None else lanes
        places = self.shared.offsets(who, addresses) // self.shared.stride
        for position in np.flatnonzero(places != who // self.geometry.stride).tolist():
            key = (int(places[position]), int(self.order.threads[who[position]]))
            self._remote[key] = (access.instruction, self.order.time)

    def blocks_ended(self, places: Sequence[int]) -> None:
        for place in places:
            members = self.geometry.lanes_at(np.array([place]))
            members = members[~self.geometry.padding[members]]
            for (target, thread), (inst, time) in list(self._remote.items()):
                if target != place:
                    continue
                del self._remote[target, thread]
                known = self.order.ordered(members, np.full(len(members), thread), np.full(len(members), time))
                if not known.any():
                    self.findings.add(
                        OutlivingAccess(
                            f"access to shared memory of {self.geometry.describe_block(place)}, which need not wait for it before it ends",
                            instruction=inst,
                            threads=self.geometry.describe_thread(thread),
                        )
                    )

    # -- barriers of blocks ------------------------------------------------------------------------------------

    def block_barrier(self, instruction: Instruction, lanes: Lanes | None) -> None:
        """The detector has forgotten the accesses to the blocks' shared memory. Writes of engines that no thread has observed are kept."""
        if not self._landed:
            return
        places = None if lanes is None else set(np.unique(lanes // self.geometry.stride).tolist())
        left = []
        for entry in self._landed:
            if places is None or entry.place in places:
                lane = entry.place * self.geometry.stride if lanes is None else int(lanes[lanes // self.geometry.stride == entry.place][0])
                thread, time = self.records.unpack(np.array([entry.packed]))
                if self.order.ordered(np.array([lane]), thread, time)[0]:
                    continue
                self._shadow.mark_written(entry.granules, entry.packed)
            left.append(entry)
        self._landed = left


def _covered(instruction: Instruction) -> frozenset[str]:
    """Kinds of memory that an instruction orders between threads and engines; none, if it is no such fence."""
    if instruction.opcode != "fence":
        return frozenset()
    if instruction.has("mbarrier_init"):
        return frozenset(("barriers",))
    if instruction.has("tensormap::generic"):
        return frozenset(("maps",)) if instruction.has("release") else frozenset()
    if not (instruction.has("proxy") and any(modifier.split("::")[0] == "async" for modifier in instruction.modifiers)):
        return frozenset()
    if instruction.has("global"):
        return frozenset(("global",))
    if any("shared" in modifier.split("::") for modifier in instruction.modifiers):
        return frozenset(("barriers", "shared"))
    return frozenset(("barriers", "shared", "global"))


def _doing(inst: Instruction) -> str:
    return "wgmma" if inst.opcode == "wgmma" else f"tcgen05.{inst.modifiers[0]}" if inst.opcode == "tcgen05" else "an asynchronous copy"


def _address(barrier: Barrier, shared: BankedSpace) -> str:
    return f"the barrier at shared address {shared.shown(barrier.offset)}"
