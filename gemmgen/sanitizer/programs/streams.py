"""Order of a program's enqueued work: kernels, copies and fills in streams, events, and the host's waits.

Each stream, and the host, has a vector clock. Work is ordered after the work that its stream and the host know when it is enqueued; the
legacy default stream and blocking streams wait for each other (CUDA programming guide, "Implicit Synchronization"). Two accesses to the
same bytes, one of which writes, that no clock orders are a finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gemmgen.emulator.device import Touched, touched_unit
from gemmgen.emulator.memory import Region

DEFAULT_STREAM = 0
_MAX_ACCESSES = 64
"""Accesses of a region to remember; older ones are dropped."""

Clock = dict[int, int]
AccessKind = Literal["read", "write", "atomic"]


@dataclass(frozen=True, slots=True)
class Work:
    """Something enqueued: its stream, its number there, the work that it is ordered after, and a description."""

    stream: int
    number: int
    behind: Clock = field(repr=False)
    label: str

    def follows(self, other: Work) -> bool:
        """True if `other` has ended when this work begins."""
        return self.behind.get(other.stream, 0) >= other.number


@dataclass(frozen=True, slots=True)
class _Access:
    work: Work
    first: int
    last: int
    kind: AccessKind
    flags: np.ndarray | None
    """Touched units, as bits from the multiple of eight at or below `first` on; None: all."""
    span: range | None = None
    """The bytes behind the region's start, if they are known: neighbours may share a unit of a large region."""
    whole: range | None = None
    """The units that these bytes fill, if they are known."""

    @property
    def writes(self) -> bool:
        """True if it can change memory."""
        return self.kind != "read"

    def conflicts_with(self, other: _Access) -> bool:
        """True if two accesses in no order are a race: one writes, and not both are atomic operations."""
        return (self.writes or other.writes) and not (self.kind == other.kind == "atomic") and self._meets(other)

    def _meets(self, other: _Access) -> bool:
        first, last = max(self.first, other.first), min(self.last, other.last)
        if first > last:
            return False
        if self.span is not None and other.span is not None:
            return self.span.start < other.span.stop and other.span.start < self.span.stop
        for known in (self.whole, other.whole):
            if known is not None:
                # Of the units at its ends, the other access may have touched the other bytes.
                first, last = max(first, known.start), min(last, known.stop - 1)
        if first > last:
            return False
        mine, theirs = self._within(first, last), other._within(first, last)
        return bool((mine & theirs).any())

    def _within(self, first: int, last: int) -> np.ndarray:
        """The bits of the bytes that hold these units."""
        begin, end = first // 8, last // 8 + 1
        bits = np.full(end - begin, 0xFF, np.uint8)
        bits[0] &= 0xFF >> first % 8
        bits[-1] &= 0xFF << (7 - last % 8) & 0xFF
        return bits if self.flags is None else bits & self.flags[begin - self.first // 8 : end - self.first // 8]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two pieces of work that touch the same bytes in no order."""

    earlier: Work
    later: Work
    region: int
    earlier_writes: bool
    later_writes: bool


class StreamOrder:
    """Clocks of streams, events and the host, and the last accesses of each region."""

    def __init__(self) -> None:
        self._clocks: dict[int, Clock] = {DEFAULT_STREAM: {}}
        self._numbers: dict[int, int] = {}
        self._unordered: set[int] = set()
        self._events: dict[int, Clock] = {}
        self._host: Clock = {}
        self._accesses: dict[int, list[_Access]] = {}
        self.is_used = False
        """True once the program has made a stream: without one everything is in order."""

    def create(self, stream: int, is_unordered: bool) -> None:
        """A stream begins; an unordered one (cudaStreamNonBlocking) does not wait for the default stream."""
        self._clocks[stream] = {}
        self.is_used = True
        if is_unordered:
            self._unordered.add(stream)

    def destroy(self, stream: int) -> None:
        """The stream's handle is released; its work continues."""

    def enqueue(self, stream: int, label: str) -> Work:
        """Work in a stream."""
        clock = self._clocks.setdefault(stream, {})
        _join(clock, self._host)
        if stream == DEFAULT_STREAM:
            for other, theirs in self._clocks.items():
                if other not in self._unordered:
                    _join(clock, theirs)
        elif stream not in self._unordered:
            _join(clock, self._clocks[DEFAULT_STREAM])
        number = self._numbers[stream] = self._numbers.get(stream, 0) + 1
        work = Work(stream, number, dict(clock), label)
        clock[stream] = number
        return work

    def record(self, event: int, stream: int) -> None:
        """An event stands for all work of a stream so far."""
        self._events[event] = dict(self._behind(stream))

    def wait(self, stream: int, event: int) -> None:
        """Work of a stream from here on waits for an event."""
        _join(self._clocks.setdefault(stream, {}), self._events.get(event, {}))

    def synchronize(self, stream: int) -> None:
        """The host waits for a stream."""
        _join(self._host, self._behind(stream))

    def synchronize_event(self, event: int) -> None:
        """The host waits for an event."""
        _join(self._host, self._events.get(event, {}))

    def synchronize_all(self) -> None:
        """The host waits for the device."""
        for clock in self._clocks.values():
            _join(self._host, clock)

    def _behind(self, stream: int) -> Clock:
        clock = dict(self._clocks.setdefault(stream, {}))
        if stream == DEFAULT_STREAM:
            for other, theirs in self._clocks.items():
                if other not in self._unordered:
                    _join(clock, theirs)
        return clock

    def forget(self, region: int) -> None:
        """A region is given back."""
        self._accesses.pop(region, None)

    def touch_bytes(self, work: Work, region: Region, first: int, count: int, writes: bool) -> Iterator[Conflict]:
        """Work touches all bytes of a range, which begins `first` bytes behind the region's start."""
        if count > 0:
            unit = touched_unit(region.stop - region.start)
            span, whole = range(first, first + count), range(-(-first // unit), (first + count) // unit)
            access = _Access(work, first // unit, (first + count - 1) // unit, "write" if writes else "read", None, span, whole)
            yield from self._touch(region.start, access)

    def touch(self, work: Work, touched: Touched) -> Iterator[Conflict]:
        """Work touches the parts of a region that a launch has touched."""
        kinds: tuple[tuple[np.ndarray, AccessKind], ...] = ((touched.read, "read"), (touched.written, "write"), (touched.atomic, "atomic"))
        for flags, kind in kinds:
            units = np.flatnonzero(flags)
            if len(units):
                first, last = int(units[0]), int(units[-1])
                bits = np.packbits(flags[first // 8 * 8 : last + 1])
                yield from self._touch(touched.region.start, _Access(work, first, last, kind, bits))

    def _touch(self, region: int, access: _Access) -> Iterator[Conflict]:
        earlier = self._accesses.setdefault(region, [])
        others = []
        for other in earlier:
            ordered = access.work is other.work or access.work.follows(other.work)
            if not ordered and access.conflicts_with(other):
                yield Conflict(other.work, access.work, region, other.writes, access.writes)
            covers = access.flags is None and access.first <= other.first and other.last <= access.last
            if not (ordered and covers and access.writes >= other.writes):
                others.append(other)
        self._accesses[region] = [*others[-_MAX_ACCESSES:], access]


def _join(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number
