"""Positions of the lanes of a wave: at a basic block, or why they do not run."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.schedule import BLOCKED

AGAIN = -1
WAITING = BLOCKED
"""At a barrier of the block."""
STALLED = BLOCKED + 1
"""At a warp-synchronous instruction, for lanes of the warp."""
PARKED = BLOCKED + 2
"""Before an instruction that waits for an engine."""
EXITED = BLOCKED + 3


class LaneState:
    """Position of every lane: the next basic block, or the reason that it does not run."""

    def __init__(self, lanes: int) -> None:
        self.key = np.zeros(lanes, np.int32)
        self.resume = np.zeros(lanes, np.int32)
        self.barrier = np.zeros(lanes, np.int32)
        self.site = np.zeros(lanes, np.int32)
        self.timed_out = np.zeros(lanes, np.bool_)
        """Parked lanes whose wait ends without its event."""
        self.arrived: dict[tuple[int, int], int] = {}
        self.expected: dict[tuple[int, int], int] = {}
        self.any_waiting = False
        self.any_stalled = False

    def reset(self, padding: np.ndarray) -> None:
        """All lanes at the first block; padding lanes do not exist."""
        self.key[:] = np.where(padding, EXITED, 0)
        self.arrived.clear()
        self.expected.clear()
        self.any_waiting = False
        self.any_stalled = False
        self.timed_out[:] = False

    def park(self, lanes: Lanes, block: int) -> None:
        """Lanes wait at a basic block until `wake`."""
        self.key[lanes] = PARKED
        self.resume[lanes] = block

    def wake(self, lanes: Lanes) -> None:
        """Resumes the parked ones of these lanes."""
        parked = lanes[self.key[lanes] == PARKED]
        self.key[parked] = self.resume[parked]

    def ended(self, lanes: Lanes) -> np.ndarray:
        """Lanes among these that have exited, or never were."""
        gone: np.ndarray = self.key[lanes] == EXITED
        return gone

    def restart(self, geometry: Geometry, places: np.ndarray) -> None:
        """The lanes of the blocks at these places at the first block; the others stay where they are."""
        lanes = geometry.lanes_at(places)
        self.key[lanes] = np.where(geometry.padding[lanes], EXITED, 0)
        self.timed_out[lanes] = False
        for counts in (self.arrived, self.expected):
            for key in [key for key in counts if key[0] in places]:
                del counts[key]
