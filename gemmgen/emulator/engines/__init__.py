"""What works beside the threads of a wave: barriers in shared memory, the copy engine, clusters. One module each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmgen.emulator.engines.async_proxy import AsyncAccess, AsyncProxy
from gemmgen.emulator.engines.barriers import Barrier, Barriers
from gemmgen.emulator.engines.boxes import PlacedMap
from gemmgen.emulator.engines.clusters import Clusters
from gemmgen.emulator.engines.copies import Copy, CopyEngine
from gemmgen.emulator.engines.registers import RegisterPool
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.lane_state import PARKED, LaneState
from gemmgen.emulator.memory import Spaces
from gemmgen.emulator.program import Program

__all__ = ["AsyncAccess", "AsyncProxy", "Barrier", "Barriers", "Clusters", "Copy", "CopyEngine", "Engines", "PlacedMap"]


class Engines:
    """The engines of one machine."""

    def __init__(self, program: Program, geometry: Geometry, spaces: Spaces, state: LaneState) -> None:
        self.geometry = geometry
        self.state = state
        self.maps: Sequence[PlacedMap] = ()
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

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh blocks (None: all of the wave)."""
        self.clusters.clear(lanes)
        self.registers.clear(lanes)
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
        """Lanes have exited: clusters go on without them, and blocks may have ended."""
        if self.geometry.cluster_size > 1:
            self.clusters.complete(lanes)
        places = np.unique(lanes // self.geometry.stride)
        ended = [place for place in places.tolist() if self.state.ended(self.geometry.lanes_at(np.array([place]))).all()]
        if ended:
            self.copies.blocks_ended(ended)
            for observer in self.proxy.shared.observers:
                observer.blocks_ended(ended)

    def go_on(self) -> bool:
        """No lane can run: lets a copy land, or else a wait time out. False if that has been tried since anything happened."""
        if self.copies.land_oldest():
            return True
        parked = np.flatnonzero(self.state.key == PARKED)
        if not len(parked) or self._seen == self.barriers.events:
            return False
        self._seen = self.barriers.events
        self.state.timed_out[parked] = True
        self.state.wake(parked)
        return True
