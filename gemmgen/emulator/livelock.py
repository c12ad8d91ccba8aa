"""Kernels without progress: every thread that can run loops forever, polling memory.

Two things follow from that. The others may wait for blocks that have not started, so those are started wherever blocks have ended: no proof
is needed for that, since hardware would have started them anyway. If there are none, or no places for them, the kernel never ends. That is
an error, and must be certain: a lane that returns to an instruction with the same registers returns there forever if no memory has
changed in between.

Threads in a loop without an exit, in one that only counts and would count beyond the limit of steps, or in one whose registers are as they
were, are not waited for either.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.blocks import BasicBlock, polls
from gemmgen.emulator.counted_loops import CountedLoop, counted_loops
from gemmgen.emulator.errors import Deadlock
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.lane_state import LaneState
from gemmgen.emulator.memory import GLOBAL_BASE, UNIT_BYTES, Access, BankedSpace, Observer, Space, Spaces
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction, registers_of
from gemmgen.emulator.registers import RegisterFile
from gemmgen.emulator.repeated_iterations import Trail
from gemmgen.emulator.schedule import BLOCKED

_SOON = 256
"""Steps (basic blocks) in a row that only spin after which more blocks are started: several turns of a schedule's patience."""
_FIRST_PROBE = 1024
_ENDLESS = 10_000
"""Steps between looks for threads in loops that do not end: other findings in such a loop come first."""
_FOLLOWED = 8
"""A thread is followed after 10,000 steps, 20,000, 40,000 and so on, each time for this fraction of the steps so far."""
_MAX_COUNTERS = 4096
"""Different counters of a loop that are looked at."""
_GROWTH = 4
"""A probe that finds the lanes moving puts off the next one by this factor, so that all probes together cost little."""
_NEVER = 1 << 62


class Wave(Protocol):
    """The machine that runs a wave, as far as this module asks."""

    program: Program
    geometry: Geometry
    registers: RegisterFile
    spaces: Spaces
    state: LaneState
    binder: Binder

    @property
    def blocks_left(self) -> int:
        """Number of blocks of the grid that have not started."""

    def start_more(self) -> bool:
        """Puts the next blocks of the grid at the places of blocks that have ended; False if there are none."""


def _begin(spaces: Spaces, observer: Observer) -> None:
    """Lets an observer see the following events."""
    spaces.watch([*spaces.shared.observers, observer])


def _end(spaces: Spaces, observer: Observer) -> None:
    """Tells an observer nothing more."""
    spaces.watch([other for other in spaces.shared.observers if other is not observer])


class Watch:
    """Decides how to continue with a wave whose lanes only spin."""

    def __init__(self, machine: Wave, step_limit: int) -> None:
        self.machine = machine
        self._step_limit = step_limit
        self._calm_at = _SOON if machine.program.polls else _NEVER
        self._endless = np.array([block.endless for block in machine.program.blocks])
        self._counted: tuple[CountedLoop, ...] | None = None
        self._endless_at = _ENDLESS
        self._follow_at = _ENDLESS
        self._followed_from = 0
        self._trail: Trail | None = None
        self._probe: Probe | None = None
        self._probe_after = _FIRST_PROBE
        self._probe_until = 0

    @property
    def attention(self) -> int:
        """The step at which `attend` is to be called."""
        return min(self._calm_at, self._endless_at, self._follow_at)

    def attend(self, steps: int, moved: int) -> bool:
        """After so many steps, the last of which that did not spin was `moved`: starts the next blocks of the grid (then
        True), or looks closely whether anything still happens. Raises Deadlock if nothing does."""
        if steps >= self._endless_at:
            self._endless_at = steps + _ENDLESS
            self._look_for_endless()
            self._look_for_long_counts(self._step_limit - steps)
        if steps >= self._follow_at:
            self._follow(steps)
        return steps >= self._calm_at and self._attend_calm(steps, moved)

    def _follow(self, steps: int) -> None:
        """Begins to follow a thread, the one furthest behind, or ends it."""
        machine = self.machine
        if self._trail is not None:
            _end(machine.spaces, self._trail)
            self._trail = None
            self._follow_at = max(2 * self._followed_from, steps)
            return
        self._followed_from = steps
        self._follow_at = steps + steps // _FOLLOWED
        self._trail = Trail(machine.program.blocks, machine.registers, machine.geometry, int(np.argmin(machine.state.key)))
        _begin(machine.spaces, self._trail)

    def _look_for_endless(self) -> None:
        """Raises Deadlock if threads are at a place from which no path leads to their end."""
        key = self.machine.state.key
        running = np.flatnonzero(key < BLOCKED)
        lost = running[self._endless[key[running]]]
        if len(lost):
            block = self.machine.program.blocks[int(key[lost[0]])]
            raise Deadlock(
                "no path leads from here to the end of the kernel: these threads never end",
                instruction=block.terminator or block.body[0],
                threads=self.machine.geometry.describe(lost),
            )

    def _look_for_long_counts(self, left: int) -> None:
        """Raises Deadlock if threads are in a loop that counts, and have more iterations left than steps."""
        machine = self.machine
        if self._counted is None:
            self._counted = counted_loops(machine.program.blocks)
        key = machine.state.key
        for loop in self._counted:
            lanes = np.flatnonzero(key == loop.start)
            if not len(lanes):
                continue
            # A lane leaves by the exit that opens first.
            iterations = np.full(len(lanes), np.inf)
            readings = []
            for way in loop.exits:
                rows = [
                    machine.registers.row(value, f"u{way.bits}")[lanes] if not isinstance(value, int) else np.full(len(lanes), value)
                    for value in (way.counter, way.limit)
                ]
                pairs, of_lane = np.unique(np.stack([row.astype(np.uint64) for row in rows]), axis=1, return_inverse=True)
                if pairs.shape[1] > _MAX_COUNTERS:
                    iterations[:] = 0
                    break
                counts = np.array([way.iterations(int(counter), int(limit)) for counter, limit in pairs.T])[of_lane.reshape(-1)]
                readings.append((way, rows, counts))
                iterations = np.minimum(iterations, counts)
            lost = np.flatnonzero(iterations > left)
            if len(lost):
                worst = int(lost[np.argmax(iterations[lost])])
                way, rows, _ = next(reading for reading in readings if reading[2][worst] == iterations[worst])
                story = way.describe(int(rows[0][worst]), int(rows[1][worst]))
                much = (
                    "never ends"
                    if math.isinf(iterations[worst])
                    else f"runs for {int(iterations[worst]):,} iterations or more, over the limit of steps"
                )
                raise Deadlock(
                    f"this loop {much}: {story}; a recursion that misses its base case becomes such a loop",
                    instruction=way.instruction,
                    threads=machine.geometry.describe(lanes[lost]),
                )

    def _attend_calm(self, steps: int, moved: int) -> bool:
        calm = steps - moved
        if self._probe is not None and (calm < _SOON or self._probe.refuted or steps >= self._probe_until):
            if calm >= _SOON:
                self._probe.judge()
            self._end_probe()
        if calm < _SOON:
            self._calm_at = moved + _SOON
            return False
        self._calm_at = steps + _SOON
        engines = self.machine.binder.started_engines
        if engines is not None and engines.copies.land_oldest():
            return False
        if self.machine.start_more():
            if self._probe is not None:
                self._end_probe()
            return True
        if self._probe is None and calm >= self._probe_after:
            self._probe = Probe(self.machine)
            self._probe_until = steps + self._probe_after // 2
        return False

    def _end_probe(self) -> None:
        assert self._probe is not None
        self._probe.leave()
        self._probe = None
        self._probe_after *= _GROWTH


class Probe(Observer):
    """Follows every lane until it is back where it was. Watches the wave from its making until `leave`."""

    def __init__(self, machine: Wave) -> None:
        self.machine = machine
        lanes = machine.geometry.lanes
        self.refuted = False
        """True if something happens: a lane left its loop, or memory changed."""
        self._acted = np.zeros(lanes, np.bool_)
        self._periodic = np.zeros(lanes, np.bool_)
        self._place = np.full(lanes, -1, np.int32)
        self._polled = np.full(lanes, -1, np.int32)
        self._registers = np.zeros(lanes, np.uint64)
        self._writes: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        # Only registers and memory that the loops mention can change in them.
        watched = {
            register.name: register
            for block in machine.program.blocks
            if block.spins
            for inst in block.instructions
            for operand in inst.operands
            for register in registers_of(operand)
        }
        arrays = machine.registers.arrays
        self._rows = [machine.registers.carry]
        for register in watched.values():
            name, row = machine.registers.place(register)
            self._rows += [arrays[name][row + part] for part in range(2 if name == "b128" else 1)]
        self._weights = np.random.default_rng(0).integers(1 << 63, size=len(self._rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        _begin(machine.spaces, self)

    def leave(self) -> None:
        """Stops watching."""
        _end(self.machine.spaces, self)

    def block_started(self, block: BasicBlock, lanes: Lanes | None) -> None:
        if self.refuted:
            return
        self._compare_writes()
        who = np.arange(self.machine.geometry.lanes) if lanes is None else lanes
        self._acted[who] = True
        if not block.spins:
            self.refuted = True
        if block.polling:
            self._polled[who] = block.index
        state = np.zeros(len(who), np.uint64)
        for row, weight in zip(self._rows, self._weights, strict=True):
            state += row[who].astype(np.uint64) * weight
        place = self._place[who]
        new, back = place < 0, place == block.index
        same = back & (self._registers[who] == state)
        self._periodic[who[back]] = same[back]
        self._place[who[new]] = block.index
        self._registers[who[new | back]] = state[new | back]

    def barrier_arrived(self, instruction: Instruction, lanes: Lanes, numbers: np.ndarray) -> None:
        # Arrivals are counted where no register shows it.
        self.refuted = True

    def async_copy_issued(self, access: Access, lanes: Lanes | None, addresses: np.ndarray, origins: np.ndarray) -> None:
        # It will change memory.
        self.refuted = True

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if self.refuted or access.kind == "load":
            return
        unit = min(access.width, UNIT_BYTES)
        memory = space.units[unit]
        if isinstance(space, BankedSpace):
            first = space.resolve(access, lanes, addresses)
        else:
            first = (addresses.astype(np.uint64) - np.uint64(GLOBAL_BASE)).view(np.int64) // unit
        for piece in range(access.width // unit):
            index = first + piece
            self._writes.append((memory, index, memory[index]))

    def _compare_writes(self) -> None:
        """True if the last step's writes have changed anything."""
        for memory, index, before in self._writes:
            if not np.array_equal(before.view(np.uint8), memory[index].view(np.uint8)):
                self.refuted = True
        self._writes.clear()

    def judge(self) -> None:
        """Raises Deadlock if every lane that ran, or could, goes round and round."""
        self._compare_writes()
        key, geometry = self.machine.state.key, self.machine.geometry
        turning = self._acted | (key < BLOCKED)
        if self.refuted or not self._periodic[turning].all() or int(self._polled.max()) < 0:
            return
        message = "all threads that still run only poll memory, which nothing changes any more"
        left = self.machine.blocks_left
        if left:
            message += f"; {left} of the grid's blocks cannot start, for there is room for {geometry.blocks} and none of these ends"
        polled = self._polled[self._polled >= 0]
        block = self.machine.program.blocks[int(polled[0])]
        here = np.flatnonzero(self._polled == block.index)
        raise Deadlock(message, instruction=polls(block.body), threads=geometry.describe(here))
