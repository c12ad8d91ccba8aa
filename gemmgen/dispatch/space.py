"""Kernels of no file: the points of a family's space for a request, timed by the model and what tables tell of their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmgen.dispatch.matcher import space_of
from gemmgen.dispatch.model import memory_bandwidth, operation_rate, seconds_of_many
from gemmgen.dispatch.table import DOUBT, NEIGHBOURS, Neighbour
from gemmgen.hardware.target import Device
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.requests import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHOWN = 8
"""Points that are planned whole."""
TRIED = 256
"""Points, the fastest by the model alone, whose times are corrected by their neighbours'."""
KINSHIP = 0.35
"""Square of the distance of two kernels over which what is known of one tells less of the other by a factor of e."""


SUSTAINED = 0.83
"""Part of the peak of tensor cores that no kernel exceeds for long: the fastest products of 4608 and 7680 rows and columns reach 0.80 to
0.82 of it on an H200, in bfloat16, 8-bit floats and integers. Predictions beyond it are extrapolated from smaller tiles."""


@dataclass(frozen=True)
class Point:
    """A kernel of the space, with the time that is expected of it."""

    spec: KernelSpec
    seconds: float
    error: float
    """Logarithm of the factor by which its traits and tables correct the model."""
    known: float
    """Weight of what tables tell of it and its neighbours: 0 if they tell nothing."""
    least: float
    """Seconds in which no kernel of its tile does it."""


def fastest_points(
    request: Request,
    device: Device,
    neighbours: Sequence[Neighbour],
    coordinates: Callable[[str], Sequence[float] | None],
    longest_early: float,
) -> list[Point]:
    """The points that are expected to be the fastest for a request, fastest first; none for a family without a space.

    ``coordinates``: those of an instance by its name, None for one of no space; ``longest_early``: seconds up to which kernels start while
    the work before them still runs.
    """
    space = space_of(request.kind)
    groups = space.points(request, device) if space is not None else []
    if not groups:
        return []
    import numpy as np

    modelled = np.concatenate([seconds_of_many(points.works, device) * np.exp(points.correction) for points in groups])
    corrections = np.concatenate([points.correction for points in groups])
    first = np.cumsum([0] + [len(points) for points in groups])
    best = np.argsort(modelled, kind="stable")[:TRIED]
    features = np.concatenate([points.features for points in groups])[best]
    told, known = told_errors(features, neighbours, coordinates)
    least = np.concatenate([least_seconds(points.works, device) for points in groups])[best]
    expected = bounded_seconds(modelled[best] * np.exp(told), least)
    errors = corrections[best] + told
    found = []
    for place in np.argsort(expected, kind="stable")[:SHOWN]:
        group = int(np.searchsorted(first, best[place], side="right")) - 1
        seconds = float(expected[place])
        spec = groups[group].spec(int(best[place] - first[group]), seconds < longest_early)
        found.append(Point(spec, seconds, float(errors[place]), float(known[place]), float(least[place])))
    return found


SUSTAINED_MEMORY = 0.92
"""Part of the memory's rate that no kernel exceeds for long: 48 x 14336 x 8192 in bfloat16 reads 4.2 of 4.55 TB/s."""
SHARPNESS = 12.0
"""Exponent of the norm that bounds times from below, and keeps their order."""


def bounded_seconds(expected: Any, least: Any) -> Any:
    """Expected times, numbers or columns, that ``least`` bounds."""
    return (expected**SHARPNESS + least**SHARPNESS) ** (1 / SHARPNESS)


def least_seconds(work: Any, device: Device) -> Any:
    """Seconds of a launch, or of a column of launches, if its fullest SM multiplies all the time, or its bytes cross the memory bus without
    a pause, whichever takes longer."""
    busiest = -(-work.blocks // device.sm_count) * work.steps * work.operations
    multiplying = busiest * device.sm_count / (operation_rate(device, work.unit).value * SUSTAINED)
    moving = work.memory_bytes / (memory_bandwidth(device) * SUSTAINED_MEMORY)
    return bounded_seconds(multiplying, moving)


def told_errors(
    features: NDArray[np.float64], neighbours: Sequence[Neighbour], coordinates: Callable[[str], Sequence[float] | None]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logarithms of the factors that correct the model at points, and how much is known of each: the error that all instances share in the
    nearest rows, and the additional errors of kernels nearby, the less of them the farther these and their rows are."""
    import numpy as np

    none = np.zeros(len(features))
    nearest = neighbours[:NEIGHBOURS]
    if not nearest:
        return none, none
    shared = sum(one.weight * one.median for one in nearest) / sum(one.weight for one in nearest)
    told = [
        (one.weight, place, error - one.median)
        for one in neighbours
        for name, error in one.errors.items()
        if (place := coordinates(name)) is not None
    ]
    if not told:
        return none + shared, none
    distances = ((features[:, None, :] - np.array([place for _, place, _ in told])[None]) ** 2).sum(axis=2)
    kinship = np.exp(-distances / KINSHIP) * np.array([weight for weight, *_ in told])
    known = kinship.sum(axis=1)
    own = kinship @ np.array([error for *_, error in told]) / np.maximum(known, 1e-12)
    return shared + known / (known + DOUBT) * own, known
