"""Order of accesses to tensor memory, and missing tcgen05 fences.

PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations". The operations of one lane are a stream, which a commit's
barrier tells of. An access by a warp counts from its wait on. Between threads, the one that comes first executes
tcgen05.fence::before_thread_sync (a commit contains it), then both synchronize, and the other executes fence::after_thread_sync.
An operation that follows one in flight, and is executed after it, needs both fences as well. Accesses of one warp need no fence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gemmgen.emulator.engines.tensor_memory import Cells, TensorOperation, WarpAccess
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.hazards.proxies import Fence, ProxyRules
from gemmgen.emulator.hazards.report import LanesOfFirstWarp, MissingTensorFence, TensorLoadInFlight, TensorRace, UnwrittenRead
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.emulator.transfers import Barrier

_MAX_FENCES = 16
"""Latest fences of one warp before a synchronization that are remembered."""


@dataclass(eq=False, slots=True)
class _Event:
    """An access that has ended, or an operation in flight (`thread` -1)."""

    instruction: Instruction
    cells: Cells
    writes: bool
    lane: int
    of_warp: bool
    thread: int = -1
    time: int = -1
    operation: TensorOperation | None = None
    issued: int = -1
    """Time of the issue of an operation."""


class TensorRules:
    """Part of a detector that watches tensor memory."""

    def __init__(self, proxies: ProxyRules) -> None:
        self.proxies = proxies
        self.order = proxies.order
        self.order.clocks.holders.append(self._held)
        self._events: dict[int, list[_Event]] = {}
        self._before: dict[int, deque[Fence]] = {}
        self._after: dict[int, Fence] = {}
        self._clocks: list[int] = []
        proxies.tensor_fence = self._fenced

    def clear(self, places: Sequence[int] | None) -> None:
        """Fresh blocks (None: all)."""
        if places is None:
            self._events.clear()
            self._before.clear()
            self._after.clear()
            self._clocks.clear()
            return
        per_block = self.proxies.geometry.warps_per_block
        for place in places:
            self._events.pop(place, None)
            for warp in range(place * per_block, (place + 1) * per_block):
                self._before.pop(warp, None)
                self._after.pop(warp, None)

    def _held(self) -> Iterator[int]:
        yield from self._clocks
        for fence in (*self._after.values(), *(fence for fences in self._before.values() for fence in fences)):
            yield from np.unique(fence.known).tolist()

    def _fenced(self, instruction: Instruction, lanes: Lanes) -> None:
        """Lanes execute a tcgen05 fence."""
        for warp in np.unique(lanes // WARP).tolist():
            fence = self.proxies.fence_of(lanes[lanes // WARP == warp])
            if instruction.has("fence::after_thread_sync"):
                self._after[warp] = fence
            else:
                self._before.setdefault(warp, deque(maxlen=_MAX_FENCES)).appendleft(fence)

    # -- events ------------------------------------------------------------------------------------------------

    def issued(self, operation: TensorOperation) -> None:
        """A lane issues an operation."""
        inst, lane = operation.instruction, operation.lane
        for group, writes in ((operation.reads, False), (operation.writes, True)):
            for cells in group:
                self._check(inst, lane, cells, writes, in_order=True)
                if not writes and cells in operation.writes:
                    continue
                self._events.setdefault(cells.place, []).append(
                    _Event(inst, cells, writes, lane, False, operation=operation, issued=self.order.time)
                )
        self.order.time += 1

    def committed(self, lane: int) -> int:
        """A clock of the lane's knowledge, for a commit."""
        clock = self.order.release(np.array([lane]))
        self._clocks.append(clock)
        return clock

    def ended(self, lane: int, operations: Sequence[TensorOperation], barriers: Sequence[Barrier], clock: int) -> None:
        """Operations of a lane have ended, as these barriers are to tell."""
        accesses = [access for operation in operations for access in operation.shared]
        stream, time = self.proxies.products_ended(lane, accesses, barriers, clock)
        self._clocks.remove(clock)
        done = set(map(id, operations))
        for events in self._events.values():
            for event in events:
                if event.operation is not None and id(event.operation) in done:
                    event.thread, event.time, event.operation = stream, time, None
            _prune(events)

    def accessed(self, access: WarpAccess) -> None:
        """A warp loads or stores."""
        self._check(access.instruction, access.lane, access.cells, access.writes)

    def waited(self, access: WarpAccess) -> None:
        """A warp has waited for a load or store."""
        events = self._events.setdefault(access.cells.place, [])
        thread = int(self.order.threads[access.lane])
        events.append(_Event(access.instruction, access.cells, access.writes, access.lane, True, thread, self.order.time))
        self.order.time += 1
        if access.writes or len(events) > 64:
            _prune(events)

    def deallocated(self, instruction: Instruction, lane: int, cells: Cells) -> None:
        """A warp gives columns back."""
        self._check(instruction, lane, cells, True, fences=False)
        self._events[cells.place] = [event for event in self._events.get(cells.place, ()) if not cells.meets(event.cells)]

    def first_lanes(self, instruction: Instruction, lanes: Lanes, message: str) -> None:
        """A warp names lanes of the first warp instead of its lanes."""
        threads = self.proxies.geometry.describe(lanes)
        self.proxies.findings.add(LanesOfFirstWarp(message, 1, "tensor memory", instruction=instruction, threads=threads))

    def used_early(self, instruction: Instruction, load: Instruction, lanes: Lanes, message: str) -> None:
        """Lanes touch a register of a load that they have not waited for."""
        threads = self.proxies.geometry.describe(lanes)
        self.proxies.findings.add(
            TensorLoadInFlight(message, len(lanes), instruction=instruction, threads=threads, other=load, other_threads=threads)
        )

    def unwritten(self, instruction: Instruction, lanes: Lanes, cells: Cells) -> None:
        """An operation reads cells among these that nothing has written."""
        self.proxies.findings.add(
            UnwrittenRead(
                f"{_name(instruction)} of {cells} of tensor memory, of which nothing has written a part",
                1,
                str(cells),
                instruction=instruction,
                threads=self.proxies.geometry.describe(lanes),
            )
        )

    # -- the questions -----------------------------------------------------------------------------------------

    def _check(self, inst: Instruction, lane: int, cells: Cells, writes: bool, fences: bool = True, in_order: bool = False) -> None:
        """`in_order`: an operation, before which those of its lane happen."""
        for event in self._events.get(cells.place, ()):
            if not (writes or event.writes) or not event.cells.meets(cells):
                continue
            if in_order and not event.of_warp and event.lane == lane:
                continue
            if not event.of_warp and event.operation is not None:
                if event.lane != lane and not self._follows(lane, event.lane, event.issued):
                    self._race(inst, lane, event)
                elif in_order and event.lane // WARP != lane // WARP:
                    issued = replace(event, thread=int(self.order.threads[event.lane]), time=event.issued)
                    self._check_fences(inst, lane, issued, fenced_by_commit=False)
                continue
            if event.of_warp and event.lane // WARP == lane // WARP and self._is_present(event):
                continue
            if not self._knows(lane, event):
                self._race(inst, lane, event)
            elif fences and event.lane // WARP != lane // WARP:
                self._check_fences(inst, lane, event)

    def _is_present(self, event: _Event) -> bool:
        return int(self.order.threads[event.lane]) == event.thread

    def _follows(self, lane: int, other: int, time: int) -> bool:
        thread = self.order.threads[[other]]
        return bool(self.order.ordered(np.array([lane]), thread, np.array([time]))[0])

    def _knows(self, lane: int, event: _Event) -> bool:
        if not event.of_warp:
            return bool(self.order.ordered(np.array([lane]), np.array([event.thread]), np.array([event.time]))[0])
        # Any thread of a warp may signal the operations that the warp issued together.
        threads = np.arange(event.thread, event.thread + WARP)
        return bool(self.order.ordered(np.full(WARP, lane), threads, np.full(WARP, event.time)).any())

    def _check_fences(self, inst: Instruction, lane: int, event: _Event, fenced_by_commit: bool = True) -> None:
        missing = []
        if (event.of_warp or not fenced_by_commit) and not self._fenced_before(lane, event):
            missing.append("no tcgen05.fence::before_thread_sync lies between the first one and the synchronization")
        after = self._after.get(lane // WARP)
        if after is None or not self._knew(after, event):
            missing.append("no tcgen05.fence::after_thread_sync lies between the synchronization and the second one")
        if missing:
            self._tell(MissingTensorFence, inst, lane, event, "; ".join(missing))

    def _fenced_before(self, lane: int, event: _Event) -> bool:
        for fence in self._before.get(event.lane // WARP, ()):
            if fence.time < event.time:
                break
            if self.order.ordered(np.full(len(fence.threads), lane), fence.threads, np.full(len(fence.threads), fence.time)).any():
                return True
        return False

    def _knew(self, fence: Fence, event: _Event) -> bool:
        threads = np.arange(event.thread, event.thread + (WARP if event.of_warp else 1))
        times = np.full(len(threads), event.time)
        return any(self.proxies.knew(fence, position, threads, times).any() for position in range(len(fence.lanes)))

    def _race(self, inst: Instruction, lane: int, event: _Event) -> None:
        what = "is in flight, or has ended without" if event.operation is not None else "has ended without"
        self._tell(TensorRace, inst, lane, event, f"the first one {what} that this thread need know of it")

    def _tell(self, kind: type[TensorRace], inst: Instruction, lane: int, event: _Event, why: str) -> None:
        geometry = self.proxies.geometry
        self.proxies.findings.add(
            kind(
                f"{_name(event.instruction)}, then {_name(inst)} of {event.cells} of tensor memory: {why}",
                1,
                str(event.cells),
                instruction=inst,
                threads=geometry.describe(np.array([lane])),
                other=event.instruction,
                other_threads=geometry.describe(np.array([event.lane])),
            )
        )


def _name(inst: Instruction) -> str:
    return f"{inst.opcode}.{inst.modifiers[0]}"


def _prune(events: list[_Event]) -> None:
    """Forgets events whose cells a later write that has ended covers: it has been found to be ordered after them."""
    open_events: list[_Event] = []
    covers: list[_Event] = []
    for event in reversed(events):
        if event.operation is None and any(later.cells.holds(event.cells) for later in covers):
            continue
        open_events.append(event)
        if event.writes and event.operation is None:
            covers.append(event)
    events[:] = open_events[::-1]
