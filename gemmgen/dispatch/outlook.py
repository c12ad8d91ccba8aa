"""Expectations of listed instances before they are planned: by points of the space that are like them, and by neighbouring problems."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.matcher import space_of
from gemmgen.dispatch.space import Point
from gemmgen.dispatch.table import Near, Table

ALIKE = 0.02
"""Square of the distance below which an instance takes as long as a point: their stages differ by a fifth at most."""
SLOW = 1.25
"""An instance that took this many times as long as the best, or was not worth timing, on all neighbouring problems is not planned."""
FEWEST_ROWS, MOST_ROWS = 6, 24
FARTHEST = 2.2
"""Distance of problems that tell which instances are slow."""


class Outlook:
    """Expectations for one problem whose best points are known."""

    def __init__(self, points: Sequence[Point], table: Table | None, near: Near) -> None:
        self._points, self._table, self._near = points, table, near

    def seconds(self, candidate: Candidate) -> float | None:
        """Seconds of the point that an instance is like; None if it is like none of the best."""
        place = _coordinates(candidate)
        if place is None:
            return None
        alike = (point.seconds for point in self._points if _apart(point.coordinates, place) < ALIKE)
        return next(alike, None)

    def is_promising(self, candidate: Candidate) -> bool:
        """True if an instance may be the fastest: it was timed on this very problem, or is like one of the best points; or it is of another
        kind, and no neighbouring problem tells that it is slow."""
        if candidate.name in self._timed:
            return True
        if _coordinates(candidate) is not None:
            return self.seconds(candidate) is not None
        return self._table is None or self._fast is None or candidate.name not in self._table.names or candidate.name in self._fast

    @cached_property
    def _timed(self) -> frozenset[str]:
        """Instances that were timed on this very problem, those that are far behind left out."""
        if not self._near or self._near[0][0] > 0:
            return frozenset()
        times = self._near[0][1].times
        return frozenset(name for name, time in times.items() if time < SLOW * min(times.values()))

    @cached_property
    def _fast(self) -> frozenset[str] | None:
        """Instances that were nearly the best on some neighbouring problem; None if there are few of these."""
        rows = [row for distance, row in self._near[:MOST_ROWS] if distance < FARTHEST]
        if len(rows) < FEWEST_ROWS:
            return None
        return frozenset(name for row in rows for name, time in row.times.items() if time < SLOW * min(row.times.values()))


@lru_cache(maxsize=4096)
def _coordinates(candidate: Candidate) -> Sequence[float] | None:
    space = space_of(candidate.spec.kind)
    return None if space is None else space.coordinates(candidate.spec)


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
