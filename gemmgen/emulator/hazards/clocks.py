"""Knowledge as a value: up to which time the accesses of which threads are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

NOTHING = 0
"""The number of the clock that knows nothing."""


@dataclass(slots=True)
class Clock:
    """Times for all threads of a block (by block of the grid) and for single threads (by thread of the grid)."""

    blocks: dict[int, int]
    threads: dict[int, int]
    _arrays: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = field(default=None, repr=False)

    def covers(self, threads: np.ndarray, times: np.ndarray, stride: int) -> np.ndarray:
        """Accesses, by thread and time, that are known. `stride` threads make a block."""
        if self._arrays is None:
            self._arrays = (*_sorted(self.blocks), *_sorted(self.threads))
        block_keys, block_times, thread_keys, thread_times = self._arrays
        known = _look_up(block_keys, block_times, threads // stride, times)
        known |= _look_up(thread_keys, thread_times, threads, times)
        return known


class Clocks:
    """Clocks by number, so that arrays can hold them; joins are remembered."""

    def __init__(self) -> None:
        self._clocks = [Clock({}, {})]
        self._joins: dict[tuple[int, int], int] = {}

    def __getitem__(self, number: int) -> Clock:
        return self._clocks[number]

    def add(self, clock: Clock) -> int:
        """A number for a clock."""
        self._clocks.append(clock)
        return len(self._clocks) - 1

    def join_all(self, numbers: Sequence[int]) -> int:
        """The clock that knows what any of these knows."""
        return reduce(self._join, numbers, NOTHING)

    def _join(self, first: int, second: int) -> int:
        if first == second or second == NOTHING:
            return first
        if first == NOTHING:
            return second
        key = (min(first, second), max(first, second))
        known = self._joins.get(key)
        if known is None:
            left, right = self._clocks[first], self._clocks[second]
            known = self.add(Clock(_latest(left.blocks, right.blocks), _latest(left.threads, right.threads)))
            self._joins[key] = known
        return known


def _latest(left: dict[int, int], right: dict[int, int]) -> dict[int, int]:
    joined = dict(left)
    for key, time in right.items():
        if joined.get(key, -1) < time:
            joined[key] = time
    return joined


def _sorted(times: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    keys = np.array(sorted(times), np.int64)
    return keys, np.array([times[key] for key in keys.tolist()], np.int64)


def _look_up(keys: np.ndarray, key_times: np.ndarray, wanted: np.ndarray, times: np.ndarray) -> np.ndarray:
    if not len(keys):
        return np.zeros(len(wanted), np.bool_)
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    known: np.ndarray = (keys[position] == wanted) & (key_times[position] >= times)
    return known
