"""Kernels of no file: the points of a family's space for a request, timed by the model and the errors that its traits lead to expect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gemmgen.dispatch.matcher import space_of
from gemmgen.dispatch.model import memory_bandwidth, operation_rate, seconds_of_many
from gemmgen.hardware.target import Device
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.points import Points
from gemmgen.kernels.requests import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHOWN = 8
"""Points that are planned whole."""
LIKELY = 24
"""Points that listed instances are compared with."""
TRIED = 96
"""Points, the fastest by the model alone, whose times are corrected by their traits."""

SUSTAINED = 0.83
"""Part of the peak of tensor cores that no kernel exceeds for long: the fastest products of 4608 and 7680 rows and columns reach 0.80 to
0.82 of it on an H200, in bfloat16, 8-bit floats and integers. Predictions beyond it are extrapolated from smaller tiles."""


@dataclass(frozen=True)
class Point:
    """A kernel of the space, with the time that is expected of it."""

    make: Callable[[], KernelSpec]
    """Makes its spec, which takes longer than all the rest: of most points, none is needed."""
    seconds: float
    modelled: float
    """Seconds by the model alone, which its traits do not correct."""
    coordinates: tuple[float, ...] = ()
    saved: float = 0.0
    """Seconds of these that it saves if it copies tiles of a constant operand early."""

    @cached_property
    def spec(self) -> KernelSpec:
        return self.make()


def fastest_points(request: Request, device: Device, longest_early: float, most: int = LIKELY, early_copies: bool = False) -> list[Point]:
    """The points that are expected to be the fastest for a request, fastest first, ``most`` of them; none for a family without a space.

    ``longest_early``: seconds up to which kernels start while the work before them still runs; ``early_copies``: True if they then copy
    tiles of a constant operand.
    """
    tried = _tried_points(request, device)
    if tried is None:
        return []
    import numpy as np

    expected, fastest = tried.copying if early_copies else tried.expected, []
    for place in np.argsort(expected - tried.saved if early_copies else expected, kind="stable")[:most]:
        group = int(np.searchsorted(tried.first, tried.best[place], side="right")) - 1
        seconds = float(expected[place])
        make = partial(tried.groups[group].spec, int(tried.best[place] - tried.first[group]), seconds < longest_early, early_copies)
        coordinates = tuple(tried.features[place].tolist())
        fastest.append(Point(make, seconds, float(tried.modelled[place]), coordinates, float(tried.saved[place])))
    return fastest


@dataclass(frozen=True)
class _Tried:
    """The points whose times are corrected, in columns, and the groups that they are of."""

    groups: Sequence[Points]
    first: NDArray[np.intp]
    """Number of the first point of each group."""
    best: NDArray[np.intp]
    """Numbers of the points."""
    features: NDArray[np.float64]
    modelled: NDArray[np.float64]
    expected: NDArray[np.float64]
    copying: NDArray[np.float64]
    """Expected seconds of kernels that copy tiles of a constant operand early, as none did by whose times others are corrected."""
    saved: NDArray[np.float64]


@lru_cache(maxsize=4)
def _tried_points(request: Request, device: Device) -> _Tried | None:
    """The points that are tried for a request, remembered for the choice with a caller's promises, which follows that without."""
    space = space_of(request.kind)
    groups = space.points(request, device) if space is not None else []
    if not groups:
        return None
    import numpy as np

    modelled = np.concatenate([seconds_of_many(points.works, device) for points in groups])
    least = np.concatenate([least_seconds(points.works, device) * points.bounded for points in groups])
    first = np.cumsum([0] + [len(points) for points in groups])
    best = np.sort(np.argsort(bounded_seconds(modelled, least), kind="stable")[:TRIED])
    modelled, least = modelled[best], least[best]
    inside = [best[(best >= start) & (best < end)] - start for start, end in pairwise(first.tolist())]
    features = np.concatenate([points.features[places] for points, places in zip(groups, inside, strict=True)])
    traits = np.concatenate([points.traits(places) for points, places in zip(groups, inside, strict=True) if len(places)])
    errors = groups[0].errors(traits) + np.concatenate([points.added for points in groups])[best]
    saved = np.concatenate([points.saved for points in groups])[best]
    uncorrected = bounded_seconds(modelled * np.exp(errors), least)
    expected = uncorrected * np.exp(groups[0].corrections(traits))
    copying = np.maximum(uncorrected, expected) if groups[0].slows_copies else uncorrected
    return _Tried(groups, first, best, features, modelled, expected, copying, saved)


SUSTAINED_MEMORY = 0.92
"""Part of the memory's rate that no kernel exceeds for long: 48 x 14336 x 8192 in bfloat16 reads 4.2 of 4.55 TB/s."""


def bounded_seconds(expected: Any, least: Any) -> Any:
    """Expected times, numbers or columns, that ``least`` bounds: the norm with the exponent 12 keeps their order."""
    return (_twelfth(expected) + _twelfth(least)) ** (1 / 12)


def _twelfth(seconds: Any) -> Any:
    """The twelfth power, by products: ``**`` takes several times as long for a column."""
    square = seconds * seconds
    return square * square * square * square * square * square


def least_seconds(work: Any, device: Device) -> Any:
    """Seconds of a launch, or of a column of launches, if its fullest SM multiplies all the time, or its bytes cross the memory bus without
    a pause, whichever takes longer."""
    busiest = -(-work.blocks // device.sm_count) * work.steps * work.operations
    multiplying = busiest * device.sm_count / (operation_rate(device, work.unit).value * SUSTAINED)
    moving = work.memory_bytes / (memory_bandwidth(device) * SUSTAINED_MEMORY)
    return bounded_seconds(multiplying, moving)
