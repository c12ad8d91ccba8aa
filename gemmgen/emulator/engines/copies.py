"""TMA: bulk copies and tensor copies that were issued and have not landed.

PTX ISA, "Data Movement and Conversion Instructions: Bulk copy" and "Tensor copy". A copy moves its data as late as it may. One that
completes on a barrier lands when nothing else can run (or when a schedule says so); one that belongs to a bulk group reads its source
when its thread waits for the group, and writes when the thread waits for more than the reading, or when the grid ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmgen.emulator.engines.async_proxy import AsyncProxy
from gemmgen.emulator.engines.barriers import Barriers
from gemmgen.emulator.errors import UnfinishedCopy
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.memory import BankedSpace
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.emulator.transfers import AsyncAccess

NOBODY = np.zeros(0, np.int64)


@dataclass(eq=False, slots=True)
class Copy:
    """One copy. `take` reads the source, `put` writes the result of `take`; `signals` are barriers (absolute offset) and bytes."""

    instruction: Instruction
    lane: int
    take: Callable[[], np.ndarray]
    put: Callable[[np.ndarray], None]
    reads: AsyncAccess | None = None
    writes: list[AsyncAccess] = field(default_factory=list)
    signals: Sequence[tuple[int, int]] = ()
    data: np.ndarray | None = None

    def read(self, knowing: Lanes, proxy: AsyncProxy) -> None:
        """Takes the data; the source is free again, as these lanes know."""
        if self.data is None:
            self.data = self.take()
            if self.reads is not None:
                proxy.end(self.reads, knowing)

    def write(self) -> None:
        """Moves the data to its destination."""
        assert self.data is not None
        self.put(self.data)


@dataclass(slots=True)
class _Groups:
    """The bulk groups of one lane: the open one, and the closed ones whose writes are not known to be done, oldest first."""

    open: list[Copy] = field(default_factory=list)
    closed: deque[list[Copy]] = field(default_factory=deque)


class CopyEngine:
    """Copies under way in one wave."""

    def __init__(self, geometry: Geometry, shared: BankedSpace, proxy: AsyncProxy, barriers: Barriers) -> None:
        self.geometry = geometry
        self.shared = shared
        self.proxy = proxy
        self.barriers = barriers
        self.pending: deque[Copy | Callable[[], None]] = deque()
        """Completions on barriers to come, oldest first: copies, and other deferred arrivals."""
        self._groups: dict[int, _Groups] = {}

    def clear(self) -> None:
        """Nothing is under way."""
        self.pending.clear()
        self._groups.clear()

    # -- completion on barriers --------------------------------------------------------------------------------

    def issue(self, copy: Copy) -> None:
        """Starts a copy that completes on barriers."""
        self.pending.append(copy)

    def land_oldest(self) -> bool:
        """Lets the oldest copy arrive; False if there is none."""
        if not self.pending:
            return False
        copy = self.pending.popleft()
        if not isinstance(copy, Copy):
            copy()
            return True
        self._move(copy)
        return True

    def land_any(self, choose: Callable[[int], int | None]) -> None:
        """Lets one of the copies arrive, for they overtake each other, or none: `choose(count)` says which."""
        chosen = choose(len(self.pending))
        if chosen is not None:
            self.pending.rotate(-chosen)
            oldest = self.pending.popleft()
            self.pending.rotate(chosen)
            self.pending.appendleft(oldest)
            self.land_oldest()

    def _move(self, copy: Copy) -> None:
        copy.read(NOBODY, self.proxy)
        for access in copy.writes:
            self.proxy.end(access, NOBODY)
        copy.write()
        lanes = np.array([copy.lane])
        for position, (offset, size) in enumerate(copy.signals):
            barrier = self.barriers.at(copy.instruction, lanes, offset)
            for observer in self.shared.observers:
                if copy.reads is not None:
                    observer.bytes_arrived(copy.reads, barrier)
                observer.bytes_arrived(copy.writes[position], barrier)
            self.barriers.complete(copy.instruction, barrier, lanes, size)

    # -- bulk groups -------------------------------------------------------------------------------------------

    def issue_in_group(self, copy: Copy) -> None:
        """Starts a copy as part of its lane's open group."""
        self._groups.setdefault(copy.lane, _Groups()).open.append(copy)

    def commit(self, lanes: Lanes) -> None:
        """Closes the open group of each lane, empty or not."""
        for lane in lanes.tolist():
            groups = self._groups.setdefault(lane, _Groups())
            groups.closed.append(groups.open)
            groups.open = []

    def wait(self, lanes: Lanes, newest: int, only_reads: bool) -> None:
        """Completes all but each lane's `newest` latest groups, or the reading of their sources."""
        for lane in lanes.tolist() if self._groups else ():
            groups = self._groups.get(lane)
            if groups is None:
                continue
            knowing = np.array([lane])
            for group in list(groups.closed)[: max(len(groups.closed) - newest, 0)]:
                for copy in group:
                    copy.read(knowing, self.proxy)
                    if not only_reads:
                        copy.write()
                        for observer in self.shared.observers:
                            observer.bulk_store_seen(copy.instruction, knowing)
                if not only_reads:
                    groups.closed.popleft()

    # -- the end -----------------------------------------------------------------------------------------------

    def blocks_ended(self, places: Sequence[int]) -> None:
        """Blocks have no living thread: their shared memory is gone. Raises UnfinishedCopy if something still needs it."""
        stride = self.geometry.stride
        for access in list(self.proxy.open):
            place = int(access.chunks[0]) * 16 // self.shared.stride
            if place in places:
                what = "read from" if access.kind == "read" else "write to"
                message = f"{self.geometry.describe_block(place)} ends while an asynchronous operation may still {what} its shared memory: "
                message += f"nobody has seen {access.awaits}"
                if access.kind == "read":
                    for observer in self.shared.observers:
                        observer.store_unfinished(message, access.instruction, access.lanes)
                else:
                    raise UnfinishedCopy(message, instruction=access.instruction, threads=self.geometry.describe(access.lanes))
        for lane in [lane for lane in self._groups if lane // stride in places]:
            for group in (*self._groups[lane].closed, self._groups[lane].open):
                for copy in group:
                    if copy.data is None:
                        copy.read(NOBODY, self.proxy)
                    copy.write()
            del self._groups[lane]
