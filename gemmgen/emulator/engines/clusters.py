"""Clusters: blocks that run at the same time, access each other's shared memory and synchronise at a cluster barrier.

PTX ISA, "Cooperative Thread Arrays: Cluster of Cooperative Thread Arrays" and `barrier.cluster`. The blocks of a cluster have
neighbouring places in a wave. A block's shared memory may be reached from outside once a barrier of the cluster has shown that the
block runs, and until its last thread has ended.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator.errors import ClusterMisuse
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.memory import BankedSpace
from gemmgen.emulator.ptx.syntax import Instruction


class Clusters:
    """The barriers of all clusters of a wave. `wake` resumes the waiting lanes of a cluster."""

    def __init__(
        self, geometry: Geometry, shared: BankedSpace, ended: Callable[[Lanes], np.ndarray], wake: Callable[[Lanes], None]
    ) -> None:
        self.geometry = geometry
        self.shared = shared
        self._ended = ended
        self._wake = wake
        self.arrivals = np.zeros(geometry.lanes, np.int64)
        self.waits = np.zeros(geometry.lanes, np.int64)
        self.phase = np.zeros(geometry.blocks, np.int64)
        """Completed phases of each cluster, by its first place."""

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh blocks (None: all)."""
        chosen = slice(None) if lanes is None else lanes
        self.arrivals[chosen] = 0
        self.waits[chosen] = 0
        self.phase[slice(None) if lanes is None else np.unique(lanes // self.geometry.stride)] = 0

    # -- barrier.cluster ---------------------------------------------------------------------------------------

    def first_place(self, lanes: Lanes) -> np.ndarray:
        """The first place of each lane's cluster."""
        size = self.geometry.cluster_size
        return lanes // self.geometry.stride // size * size

    def members(self, first: int) -> np.ndarray:
        """The lanes of the cluster that begins at a place, padding included."""
        return np.arange(first * self.geometry.stride, (first + self.geometry.cluster_size) * self.geometry.stride)

    def missing(self, first: int) -> np.ndarray:
        """The lanes that the barrier of a cluster, by its first place, waits for."""
        members = self.members(first)
        late: np.ndarray = members[~self._ended(members) & (self.arrivals[members] <= self.phase[first])]
        return late

    def arrive(self, inst: Instruction, lanes: Lanes) -> None:
        """Lanes arrive; each must have waited for its last arrival."""
        twice = self.arrivals[lanes] != self.waits[lanes]
        if twice.any():
            raise ClusterMisuse(
                "arrival at the barrier of the cluster by a thread that has not waited for its last arrival",
                instruction=inst,
                threads=self.geometry.describe(lanes[twice]),
            )
        self.arrivals[lanes] += 1
        for observer in self.shared.observers:
            observer.cluster_arrived(inst, lanes)
        self.complete(lanes)

    def complete(self, lanes: Lanes) -> None:
        """Checks whether the clusters of these lanes, which have arrived or ended, can continue."""
        for first in np.unique(self.first_place(lanes)).tolist():
            members = self.members(first)
            living = members[~self._ended(members)]
            if len(living) and (self.arrivals[living] > self.phase[first]).all():
                self.phase[first] += 1
                for observer in self.shared.observers:
                    observer.cluster_met(living)
                self._wake(living)

    def may_pass(self, inst: Instruction, lanes: Lanes) -> np.ndarray:
        """Lanes among these that find the phase of their arrival completed."""
        idle = self.arrivals[lanes] == self.waits[lanes]
        if idle.any():
            raise ClusterMisuse(
                "wait at the barrier of the cluster by a thread that has not arrived",
                instruction=inst,
                threads=self.geometry.describe(lanes[idle]),
            )
        passed: np.ndarray = self.phase[self.first_place(lanes)] > self.waits[lanes]
        return passed

    def passed(self, inst: Instruction, lanes: Lanes) -> None:
        """Resumes lanes."""
        self.waits[lanes] += 1
        for observer in self.shared.observers:
            observer.cluster_waited(inst, lanes)

    # -- memory of other blocks --------------------------------------------------------------------------------

    def check_remote(self, inst: Instruction, lanes: Lanes, places: np.ndarray) -> None:
        """Raises ClusterMisuse for lanes that reach into blocks (by place) that may not have started, or have ended."""
        foreign = places != lanes // self.geometry.stride
        if not foreign.any():
            return
        lanes, places = lanes[foreign], places[foreign]
        early = self.phase[self.first_place(lanes)] == 0
        if early.any():
            place = int(places[early][0])
            raise ClusterMisuse(
                f"access to shared memory of {self.geometry.describe_block(place)}, which need not have started: no barrier of the "
                "cluster has been passed yet",
                instruction=inst,
                threads=self.geometry.describe(lanes[early]),
            )
        for place in np.unique(places).tolist():
            if self._ended(self.geometry.lanes_at(np.array([place]))).all():
                raise ClusterMisuse(
                    f"access to shared memory of {self.geometry.describe_block(place)}, which has ended",
                    instruction=inst,
                    threads=self.geometry.describe(lanes[places == place]),
                )
