"""Engines beside the threads of a wave: barriers in shared memory, TMA, clusters. One module each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gemmgen.emulator.engines.async_proxy import AsyncProxy
from gemmgen.emulator.engines.barriers import Barriers
from gemmgen.emulator.engines.boxes import PlacedMap
from gemmgen.emulator.engines.clusters import Clusters
from gemmgen.emulator.engines.copies import Copy, CopyEngine
from gemmgen.emulator.engines.registers import RegisterPool
from gemmgen.emulator.engines.tensor_memory import TensorMemory, TensorWatch, check_groups
from gemmgen.emulator.errors import Deadlock
from gemmgen.emulator.geometry import Dim3, Geometry, Lanes
from gemmgen.emulator.lane_state import PARKED, LaneState
from gemmgen.emulator.memory import Spaces
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction

__all__ = ["AsyncProxy", "Barriers", "Clusters", "Copy", "CopyEngine", "Engines", "PlacedMap"]


class Engines:
    """The engines of one machine."""

    def __init__(self, program: Program, geometry: Geometry, spaces: Spaces, state: LaneState) -> None:
        self.geometry = geometry
        self.program = program
        self.state = state
        self.maps: list[PlacedMap] = []
        """The tensor maps of the launch, by number."""
        shared = spaces.shared
        self.proxy = AsyncProxy(geometry, shared)
        self.barriers = Barriers(geometry, shared, self.proxy, state.wake)
        self.copies = CopyEngine(geometry, shared, self.proxy, self.barriers)
        self.clusters = Clusters(geometry, shared, state.ended, state.wake)
        self.registers = RegisterPool(geometry, program.entry.directives, state.wake)
        shared.async_proxy = self.proxy
        shared.clusters = self.clusters
        self._seen = -1
        self.tensor_watch: TensorWatch | None = None
        """Observes tensor memory, where somebody looks for hazards."""
        self._tensor_memory: TensorMemory | None = None
        self.claim_cluster: Callable[[], Dim3 | None] = lambda: None
        """Cancels the launch of the next cluster, and gives the coordinates of its first block; None if all have started."""
        self.refused: dict[int, Instruction] = {}
        """Blocks that have read that no cluster was cancelled, by the instruction that reported it: they must not ask again."""

    @property
    def tensor_memory(self) -> TensorMemory:
        """The tensor memory, made by the first instruction that uses it."""
        if self._tensor_memory is None:
            check_groups(inst for block in self.program.blocks for inst in block.body)
            self._tensor_memory = TensorMemory(self.geometry, self.proxy, self.barriers, self.copies)
            self.watch_tensor_memory(self.tensor_watch)
        return self._tensor_memory

    def watch_tensor_memory(self, watch: TensorWatch | None) -> None:
        """Another observer of tensor memory, or none."""
        self.tensor_watch = watch
        if self._tensor_memory is not None:
            self._tensor_memory.watch = watch

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh blocks (None: all of the wave)."""
        if self._tensor_memory is not None:
            self._tensor_memory.clear(lanes)
        self.clusters.clear(lanes)
        self.registers.clear(lanes)
        if self.refused:
            gone = range(self.geometry.blocks) if lanes is None else np.unique(lanes // self.geometry.stride).tolist()
            self.refused = {place: inst for place, inst in self.refused.items() if place not in gone}
        self._seen = -1
        if lanes is None:
            self.proxy.clear()
            self.barriers.clear()
            self.copies.clear()
            return
        for place in np.unique(lanes // self.geometry.stride).tolist():
            self.proxy.clear_block(place)
            self.barriers.clear_block(place)

    def exited(self, lanes: Lanes) -> None:
        """Lanes have exited: clusters continue without them, and blocks may have ended."""
        if self.geometry.cluster_size > 1:
            self.clusters.complete(lanes)
        places = np.unique(lanes // self.geometry.stride)
        ended = [place for place in places.tolist() if self.state.ended(self.geometry.lanes_at(np.array([place]))).all()]
        if ended:
            if self._tensor_memory is not None:
                self._tensor_memory.blocks_ended(ended)
            self.copies.blocks_ended(ended)
            self.registers.blocks_ended(ended, self.proxy.shared.observers)
            for observer in self.proxy.shared.observers:
                observer.blocks_ended(ended)

    def explain(self, instruction_at: Callable[[int], Instruction], others: Sequence[str]) -> Deadlock:
        """The error for parked lanes that nothing will wake: every barrier that has waiting threads or an incomplete phase, and the
        position of each waiting thread. `instruction_at` gives the first instruction of a basic block; `others` describes lanes that wait
        elsewhere."""
        parked = np.flatnonzero(self.state.key == PARKED)
        roles: list[tuple[Instruction, Lanes, str]] = []
        for block in np.unique(self.state.resume[parked]).tolist():
            inst = instruction_at(block)
            here = parked[self.state.resume[parked] == block]
            roles += self._roles(inst, here)
        lines = [
            f"{self.geometry.describe(lanes)} wait{'s' if len(lanes) == 1 else ''} {what}, {_line(inst)}" for inst, lanes, what in roles
        ]
        barriers = [
            f"{self.barriers.describe(barrier)} (initialised at {_line(barrier.instruction)}): phase {barrier.phase}, "
            f"{barrier.pending} of {barrier.expected} arrivals pending, {barrier.owed} bytes still to come"
            for barrier in self.barriers.live.values()
        ]
        text = "no thread can continue: the events that threads wait for never happen"
        text += "".join(f"\n  waits {line}" for line in (*lines, *others)) + "".join(f"\n  state {line}" for line in barriers)
        return Deadlock(text, instruction=roles[0][0], threads=self.geometry.describe(roles[0][1]))

    def _roles(self, inst: Instruction, lanes: Lanes) -> Iterator[tuple[Instruction, Lanes, str]]:
        """The lanes parked at one instruction, by the event that they wait for."""
        if inst.opcode == "barrier":
            missing = np.concatenate([self.clusters.missing(first) for first in np.unique(self.clusters.first_place(lanes)).tolist()])
            yield inst, lanes, f"for the barrier of the cluster, where {self.geometry.describe(missing)} have not arrived"
        elif inst.opcode == "setmaxnreg":
            yield inst, lanes, self.registers.explain(int(lanes[0]) // self.geometry.stride, lanes, inst)
        else:
            for barrier in self.barriers.live.values():
                here = np.intersect1d(lanes, np.concatenate([lanes[:0], *barrier.waiters]))
                if len(here):
                    yield inst, here, f"for phase {barrier.phase} of {self.barriers.describe(barrier)}"

    def go_on(self) -> bool:
        """No lane can run: lets a copy land, or else a wait time out. False if that has been tried since anything happened."""
        if self.copies.land_oldest():
            return True
        parked = np.flatnonzero(self.state.key == PARKED)
        if not len(parked) or self._seen == self.barriers.events:
            return False
        self._seen = self.barriers.events
        for barrier in self.barriers.live.values():
            barrier.waiters.clear()
        self.state.timed_out[parked] = True
        self.state.wake(parked)
        return True


def _line(inst: Instruction) -> str:
    where = f" ({inst.location})" if inst.location is not None else ""
    return f"PTX line {inst.line}{where}"
