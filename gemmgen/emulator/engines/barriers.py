"""Barriers in shared memory: mbarrier objects (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").

A barrier counts the arrivals that its current phase still expects and the bytes that asynchronous operations still owe it. When both are
zero the phase completes, the next one begins with the full count, and waiting threads continue. Its eight bytes are opaque: nothing but
these instructions may touch them, so they are kept here and not in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from gemmgen.emulator.engines.async_proxy import AsyncProxy
from gemmgen.emulator.errors import BarrierMisuse
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.memory import BankedSpace
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.emulator.transfers import Barrier

COUNT_LIMIT = (1 << 20) - 1
"""Largest arrival count and largest number of bytes that a phase can be owed (PTX ISA, "Contents of the mbarrier object")."""

_PENDING_BITS = 20


class Barriers:
    """All barriers of a wave, by absolute offset. `wake` resumes parked lanes."""

    def __init__(self, geometry: Geometry, shared: BankedSpace, proxy: AsyncProxy, wake: Callable[[Lanes], None]) -> None:
        self.geometry = geometry
        self.shared = shared
        self.proxy = proxy
        self.wake = wake
        self.live: dict[int, Barrier] = {}
        self.events = 0
        """Number of changes of any barrier's counts."""

    def clear(self) -> None:
        """No barrier anywhere."""
        self.live.clear()

    def clear_block(self, place: int) -> None:
        """No barrier in the memory of one block."""
        first = place * self.shared.stride
        self.live = {at: barrier for at, barrier in self.live.items() if not first <= at < first + self.shared.stride}

    def describe(self, barrier: Barrier) -> str:
        """Address of a barrier."""
        place, address = barrier.offset // self.shared.stride, self.shared.shown(barrier.offset)
        if self.geometry.blocks == 1 and self.geometry.grid_dim == (1, 1, 1):
            return f"the barrier at shared address {address}"
        return f"the barrier at shared address {address} of {self.geometry.describe_block(place)}"

    def fail(self, message: str, inst: Instruction, lanes: Lanes, barrier: Barrier | None = None) -> NoReturn:
        """Raises BarrierMisuse."""
        raise BarrierMisuse(
            message,
            instruction=inst,
            threads=self.geometry.describe(lanes),
            other=None if barrier is None else barrier.instruction,
            other_threads="the initialisation of the barrier",
        )

    def at(self, inst: Instruction, lanes: Lanes, offset: int) -> Barrier:
        """The live barrier at an absolute offset."""
        barrier = self.live.get(offset)
        if barrier is None:
            self.fail(
                f"shared address {self.shared.shown(offset)} is used as a barrier, but none has been initialised there",
                inst,
                lanes,
            )
        return barrier

    # -- life --------------------------------------------------------------------------------------------------

    def init(self, inst: Instruction, lane: int, offset: int, count: int) -> None:
        """Makes a barrier of eight bytes."""
        lanes = np.array([lane])
        known = self.live.get(offset)
        if known is not None:
            waiting = np.concatenate([np.zeros(0, np.int64), *known.waiters])
            who = f" while {self.geometry.describe(waiting)} wait for its phase {known.phase}" if len(waiting) else ""
            self.fail(f"{self.describe(known)} is initialised again{who}; mbarrier.inval has to end it first", inst, lanes, known)
        if not 1 <= count <= COUNT_LIMIT:
            self.fail(f"a barrier with a count of {count}; 1 to {COUNT_LIMIT} are possible", inst, lanes)
        barrier = self.live[offset] = Barrier(offset, count, count, inst, lane)
        self.events += 1
        self.proxy.place_barrier(inst, offset)
        for observer in self.shared.observers:
            observer.barrier_initialised(barrier)

    def inval(self, inst: Instruction, lane: int, offset: int) -> None:
        """Ends a barrier: its bytes are memory again."""
        barrier = self.at(inst, np.array([lane]), offset)
        if barrier.waiters:
            self.fail(f"{self.describe(barrier)} ends while threads wait for it", inst, np.array([lane]), barrier)
        self.proxy.remove_barrier(offset)
        del self.live[offset]

    # -- counting ----------------------------------------------------------------------------------------------

    def arrive(self, inst: Instruction, barrier: Barrier, lanes: Lanes, counts: np.ndarray, drop: bool, completes: bool) -> np.ndarray:
        """Lanes arrive one after another, each with a count; returns the state that each one found before it.

        Those behind the one that completes the phase arrive in the next phase.
        """
        states = np.empty(len(lanes), np.uint64)
        told = 0
        for position, count in enumerate(counts.tolist()):
            if not 1 <= count <= barrier.pending:
                who = lanes[position : position + 1]
                if barrier.pending == 0:
                    self.fail(
                        f"{self.describe(barrier)} gets an arrival more than its count of {barrier.expected} in phase "
                        f"{barrier.phase}, which only waits for {barrier.owed} bytes",
                        inst,
                        who,
                        barrier,
                    )
                self.fail(
                    f"{self.describe(barrier)} gets {count} arrivals at once where {barrier.pending} of {barrier.expected} are "
                    f"pending in phase {barrier.phase}",
                    inst,
                    who,
                    barrier,
                )
            states[position] = state_of(barrier)
            barrier.pending -= count
            if drop:
                barrier.expected -= count
            if not completes and barrier.pending == 0 and barrier.owed == 0:
                self.fail(
                    f"{self.describe(barrier)} would complete phase {barrier.phase} by an arrival that promises not to (.noComplete)",
                    inst,
                    lanes[position : position + 1],
                    barrier,
                )
            if position + 1 == len(counts) or not (barrier.pending or barrier.owed):
                for observer in self.shared.observers:
                    observer.mbarrier_arrived(inst, barrier, lanes[told : position + 1])
                told = position + 1
            self._advance(barrier)
        self.events += 1
        return states

    def arrive_from_engine(self, inst: Instruction, barrier: Barrier, lanes: Lanes) -> None:
        """One arrival by an engine for these lanes, whose own accesses it does not publish."""
        if not barrier.pending:
            self.fail(
                f"{self.describe(barrier)} gets an arrival more than its count of {barrier.expected} in phase {barrier.phase}, which only "
                f"waits for {barrier.owed} bytes",
                inst,
                lanes,
                barrier,
            )
        barrier.pending -= 1
        self.events += 1
        self._advance(barrier)

    def expect(self, inst: Instruction, barrier: Barrier, lanes: Lanes, sizes: np.ndarray) -> None:
        """Lanes announce bytes that the current phase is to wait for."""
        barrier.owed += int(sizes.sum())
        self.events += 1
        if barrier.owed > COUNT_LIMIT:
            self.fail(
                f"{self.describe(barrier)} is owed {barrier.owed} bytes in phase {barrier.phase}; it can count to {COUNT_LIMIT}",
                inst,
                lanes,
                barrier,
            )

    def complete(self, inst: Instruction, barrier: Barrier, lanes: Lanes, size: int) -> None:
        """Bytes have arrived."""
        barrier.owed -= size
        self.events += 1
        if barrier.owed < -COUNT_LIMIT:
            self.fail(f"{self.describe(barrier)} got {-barrier.owed} bytes that nobody expects", inst, lanes, barrier)
        if barrier.owed < 0 and barrier.pending == 0:
            self.fail(
                f"{self.describe(barrier)} gets {-barrier.owed} bytes more in phase {barrier.phase} than were expected: "
                "the phase completes before all of them are there",
                inst,
                lanes,
                barrier,
            )
        self._advance(barrier)

    def _advance(self, barrier: Barrier) -> None:
        if barrier.pending or barrier.owed:
            return
        barrier.phase += 1
        barrier.pending = barrier.expected
        for observer in self.shared.observers:
            observer.phase_completed(barrier)
        waiters, barrier.waiters = barrier.waiters, []
        for lanes in waiters:
            self.wake(lanes)

    # -- waiting -----------------------------------------------------------------------------------------------

    def has_completed(self, inst: Instruction, barrier: Barrier, lanes: Lanes, numbers: np.ndarray, parity: bool) -> np.ndarray:
        """For each lane whether the phase it asks for has completed. `numbers`: parities, or states that arrivals returned.

        Raises BarrierMisuse for a state of neither the current phase nor the one before it: a barrier tells of no other.
        """
        if parity:
            done: np.ndarray = (numbers & 1) != (barrier.phase & 1)
            return done
        phases = (numbers >> np.uint64(_PENDING_BITS)).astype(np.int64)
        wrong = np.flatnonzero((phases > barrier.phase) | (phases < barrier.phase - 1))
        if len(wrong):
            phase = int(phases[wrong[0]])
            what = f"a state of its phase {phase}" if phase < barrier.phase else "a state that none of its arrivals has returned"
            self.fail(
                f"{self.describe(barrier)}, which is in phase {barrier.phase}, is asked with {what}: "
                "it can tell of the current phase and of the one before it",
                inst,
                lanes[wrong],
                barrier,
            )
        past: np.ndarray = phases < barrier.phase
        return past


def state_of(barrier: Barrier) -> int:
    """The opaque state that an arrival returns: the number of the phase, and its pending count in the low bits."""
    return barrier.phase << _PENDING_BITS | barrier.pending


def pending_count(states: np.ndarray) -> np.ndarray:
    """The pending arrivals that states tell of."""
    counts: np.ndarray = (states & np.uint64((1 << _PENDING_BITS) - 1)).astype(np.uint32)
    return counts
