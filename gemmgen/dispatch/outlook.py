"""Expectations of listed instances before they are planned: by points of the space that are like them, and by neighbouring problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

from gemmgen.dispatch.candidates import Candidate, candidates
from gemmgen.dispatch.matcher import space_of
from gemmgen.dispatch.space import Point
from gemmgen.dispatch.table import Near, Table
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.requests import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALIKE = 0.02
"""Square of the distance below which an instance takes as long as a point of the same tile: their stages differ by a fifth at most."""
TILE = slice(0, 2)
"""Coordinates of a tile's rows and columns. 512 x 5120 x 2560 with a gate took 12% more by 128 x 168 than by 128 x 160."""
SLOW = 1.25
"""An instance that took this many times as long as the best, or was not worth timing, on all neighbouring problems is not planned."""
OTHERS = 6
"""Instances of another kind than points that are planned where points copy nothing: those that came nearest to the best there."""
MIN_ROWS, MAX_ROWS = 6, 24
FARTHEST = 2.2
"""Distance of problems that tell which instances are slow."""


class Outlook:
    """Expectations for one problem whose best points are known."""

    def __init__(
        self, request: Request, points: Sequence[Point], table: Table | None, near: Near, architecture: Architecture, whole: bool = False
    ) -> None:
        """``whole``: the best of the points serves the request by one launch."""
        self._request, self._points, self._table, self._near, self._whole = request, points, table, near, whole
        self._space, self._architecture = space_of(request.kind), architecture

    def seconds(self, candidate: Candidate) -> float | None:
        """Seconds of the point that an instance is like; None if it is like none of the best."""
        return self._alike.get(candidate.label)

    def is_promising(self, candidate: Candidate) -> bool:
        """True if an instance may be the fastest: it was timed on this very problem, or is like one of the best points; or it is of another
        kind, and no neighbouring problem tells that it is slow."""
        if candidate.name in self._timed:
            return True
        if self._whole and self._space is not None and self._space.is_outrun(candidate.spec, self._request, whole=True):
            return False
        if candidate.label in _places(self._request.kind)[0]:
            likely = candidate.label in self._alike
        elif self._table is None or candidate.name not in self._table.names:
            likely = True
        elif self._fast is None:
            likely = self._space is None or not self._space.is_outrun(candidate.spec, self._request, whole=False)
        else:
            likely = candidate.name in self._fast
        return likely and (self._space is None or self._space.suits(candidate.spec, self._request))

    @property
    def promising(self) -> list[Candidate]:
        """The listed instances that may be the fastest."""
        placed, alike, timed = _places(self._request.kind)[0], self._alike, self._timed
        instances = _of_chip(self._request.kind, self._architecture.name)
        near = [one for one in instances if one.label in alike or one.label not in placed or one.name in timed]
        likely = [one for one in near if self.is_promising(one)]
        if not self._whole or not self._near:
            return likely
        certain, ratios = {one.label for one in likely if one.label in alike or one.name in timed}, self._ratios
        ranked = sorted((one for one in likely if one.label not in certain), key=lambda one: ratios.get(one.name, math.inf))
        certain |= {one.label for one in ranked[:OTHERS]}
        return [one for one in likely if one.label in certain]

    @cached_property
    def _alike(self) -> dict[str, float]:
        """Seconds of the first point that an instance is like, by the labels of instances that multiply elements of the request's types."""
        import numpy as np

        labels, places = _places(self._request.kind)
        if self._space is None or not labels or not self._points:
            return {}
        points = np.array([point.coordinates for point in self._points])
        apart = places[:, None, :] - points[None]
        near = ((apart**2).sum(axis=2) < ALIKE) & (np.abs(apart[:, :, TILE]).max(axis=2) < 1e-6)
        rows, known = np.flatnonzero(near.any(axis=1)).tolist(), list(labels.items())
        return {
            known[row][0]: self._points[int(near[row].argmax())].seconds
            for row in rows
            if self._space.multiplies(known[row][1], self._request)
        }

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
        if sum(distance < FARTHEST for distance, _ in self._near[:MIN_ROWS]) < MIN_ROWS:
            return None
        return frozenset(name for name, ratio in self._ratios.items() if ratio < SLOW)

    @cached_property
    def _ratios(self) -> dict[str, float]:
        """Times of instances over that of the best, the least of neighbouring problems, by their names."""
        ratios: dict[str, float] = {}
        for place, (distance, row) in enumerate(self._near[:MAX_ROWS]):
            if place < MIN_ROWS or distance < FARTHEST:
                best = min(row.times.values())
                for name, time in row.times.items():
                    ratios[name] = min(time / best, ratios.get(name, math.inf))
        return ratios


@cache
def _of_chip(kind: str, architecture: str) -> tuple[Candidate, ...]:
    """The listed instances without those that need features of another chip."""
    return tuple(one for one in candidates(kind) if not one.spec.architecture.endswith("a") or one.spec.architecture == architecture)


@cache
def _places(kind: str) -> tuple[dict[str, KernelSpec], NDArray[np.float64]]:
    """The listed instances that have coordinates in the family's space, by their labels, and those coordinates, a row for each."""
    import numpy as np

    space = space_of(kind)
    near = {} if space is None else {one.label: (one.spec, space.coordinates(one.spec)) for one in candidates(kind)}
    known = {label: pair for label, pair in near.items() if pair[1] is not None}
    return {label: spec for label, (spec, _) in known.items()}, np.array([place for _, place in known.values()])
