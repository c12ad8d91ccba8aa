"""Vector clocks as values: the accesses of other threads that are ordered before a point.

A join keeps its sides and combines them only on demand, so that many clocks share their common parts. A part
worth less than half of the entries is merged, and clocks that nothing holds any longer are dropped: memory follows the threads that
may still race, not the number of fences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

NOTHING = 0
"""The number of the clock that knows nothing."""

_MIN_CLOCKS = 4096
"""Clocks to make before the first look for those that nobody holds."""
_MIN_ENTRIES = 16
"""Entries of a clock that are worth adding up."""
_REMEMBERED = 64
"""Sums to keep for the next question."""

Times = tuple[np.ndarray, np.ndarray]
"""Keys, ascending, and the time of each."""


class Clock:
    """Times for all threads of a block (by block of the grid) and for single threads (by thread of the grid)."""

    __slots__ = ("blocks", "entries", "sides", "summed", "threads")

    def __init__(self, blocks: Times, threads: Times, sides: tuple[int, ...] = (), entries: int = 0, summed: int = 0) -> None:
        self.blocks = blocks
        self.threads = threads
        self.sides = sides
        """The clocks that it joins."""
        self.entries = entries or len(blocks[0]) + len(threads[0])
        """Entries to add up, those of its sides included."""
        self.summed = summed or self.entries
        """Entries that were left when the longest of its sides was last added up."""

    def covers(self, threads: np.ndarray, times: np.ndarray, stride: int) -> np.ndarray:
        """Accesses, by thread and time, that are known. `stride` threads make a block. For a clock that joins nothing."""
        known = _look_up(self.blocks, threads // stride, times)
        known |= _look_up(self.threads, threads, times)
        return known

    def covers_one(self, thread: int, time: int, stride: int) -> bool:
        """True if one access is known."""
        return _knows(self.blocks, thread // stride, time) or _knows(self.threads, thread, time)


_NONE: Times = (np.zeros(0, np.int64), np.zeros(0, np.int64))


class Clocks:
    """Clocks by number, so that arrays can hold them; joins are remembered."""

    def __init__(self) -> None:
        self._clocks = {NOTHING: Clock(_NONE, _NONE)}
        self._joins: dict[tuple[int, ...], int] = {}
        self._sums: dict[int, Clock] = {}
        self._next = 1
        self._limit = _MIN_CLOCKS
        self.holders: list[Callable[[], Iterable[int]]] = []
        """Each tells the numbers that somebody still holds."""

    def __len__(self) -> int:
        return len(self._clocks)

    def __getitem__(self, number: int) -> Clock:
        """A clock that joins nothing."""
        clock = self._clocks[number]
        if not clock.sides:
            return clock
        known = self._sums.pop(number, None) or self._sum(number)
        self._sums[number] = known
        if len(self._sums) > _REMEMBERED:
            del self._sums[next(iter(self._sums))]
        return known

    def new(self, blocks: Mapping[int, int], threads: Mapping[int, int]) -> int:
        """The number of a new clock."""
        return self._add(Clock(_sorted(blocks), _sorted(threads)))

    def join_all(self, numbers: Iterable[int]) -> int:
        """The union of several clocks."""
        key = tuple(sorted({number for number in numbers if number != NOTHING}))
        if len(key) < 2:
            return key[0] if key else NOTHING
        known = self._joins.get(key)
        if known is None:
            sides = [self._clocks[number] for number in key]
            longest = max(sides, key=lambda side: side.entries)
            clock = Clock(_NONE, _NONE, key, sum(side.entries for side in sides), longest.summed)
            known = self._joins[key] = self._add(clock)
            if clock.entries > max(2 * clock.summed, _MIN_ENTRIES):
                self._clocks[known] = self._sum(known)
        return known

    def drop_unheld(self) -> None:
        """Forgets clocks that nobody holds, once there are many. To be called only where no number is still to reach its holder."""
        if len(self._clocks) < self._limit:
            return
        reachable = {NOTHING}
        work = [number for holder in self.holders for number in holder()]
        while work:
            number = work.pop()
            if number not in reachable:
                reachable.add(number)
                work.extend(self._clocks[number].sides)
        self._clocks = {number: self._clocks[number] for number in sorted(reachable)}
        self._joins = {key: joined for key, joined in self._joins.items() if joined in reachable and reachable.issuperset(key)}
        self._sums = {number: total for number, total in self._sums.items() if number in reachable}
        self._limit = max(_MIN_CLOCKS, 2 * len(reachable))

    def _add(self, clock: Clock) -> int:
        number = self._next
        self._next += 1
        self._clocks[number] = clock
        return number

    def _sum(self, number: int) -> Clock:
        members: set[int] = set()
        work, blocks, threads = [number], [_NONE], [_NONE]
        while work:
            clock = self._clocks[work.pop()]
            if clock.sides:
                fresh = [side for side in clock.sides if side not in members]
                members.update(fresh)
                work.extend(fresh)
            else:
                blocks.append(clock.blocks)
                threads.append(clock.threads)
        return Clock(_latest(blocks), _latest(threads))


def _latest(parts: Sequence[Times]) -> Times:
    """The latest time of each key in any part."""
    keys, times = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    last = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=last[:-1])
    return keys[last], times[last]


def _sorted(times: Mapping[int, int]) -> Times:
    if not times:
        return _NONE
    keys = sorted(times)
    return np.array(keys, np.int64), np.array([times[key] for key in keys], np.int64)


def _knows(known: Times, wanted: int, time: int) -> bool:
    keys, times = known
    position = int(keys.searchsorted(wanted)) if len(keys) else 0
    return position < len(keys) and bool(keys[position] == wanted and times[position] >= time)


def _look_up(known: Times, wanted: np.ndarray, times: np.ndarray) -> np.ndarray:
    keys, key_times = known
    if not len(keys):
        return np.zeros(len(wanted), np.bool_)
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    covered: np.ndarray = (keys[position] == wanted) & (key_times[position] >= times)
    return covered
