"""The error of the model's times at points of the space: a Gaussian process over traits of points, fitted to timed kernels.

Its mean at a point is a linear function of the traits, and the errors of timed points, each by a weight that falls with the distance of
its traits. So a measurement of one problem informs about problems in which kernels have similar waves, loads and stages. A second process
of small amplitude has what the expected times of all timed kernels, those of later measurements among them, are off by: it changes nothing
far from these. ``python -m measurements.fit_points`` fits both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.hardware.target import Device
from gemmgen.kernels.points import Works

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column = NDArray[np.float64]
    Matrix = NDArray[np.float64]

FILE, PLACES = (Path(__file__).with_name(name) for name in ("point_costs.json", "point_costs.npz"))
TRAITS = (
    *("loads_of_sm", "memory", "latency", "store", "filled_wave", "in_flight", "rows", "cluster_m", "resident", "stages", "depth"),
    *("element", "own_columns", "odd_columns", "half_columns", "boxes_off", "wide", "shares_larger", "shares_smaller"),
    *("shares_smaller_turned", "four_slices", "ping_pong", "rows_64", "columns", "area", "turned", "scattered", "blocks", "steps"),
    *("arithmetic_share", "memory_share", "loads_share", "in_flight_loads"),
)
"""Traits on which the model's error depends, in the order of the fitted scales."""
MULTIPLIED_PER_SECOND = {2: 8192 * 1.62e9, 1: 16384 * 1.62e9}
"""Operations of an SM of an H200 on elements of 2 and of 1 bytes, at the clock that it keeps."""
FROM_L2, FROM_MEMORY, OF_ONE_SM = 5.5e12, 4.3e12, 1.0e11
"""Bytes per second that an H200's SMs get from the L2 together, from memory, and that one of them gets."""
LATENCY_SECONDS = 1e-6
LAUNCH_SECONDS = 3e-6
LOADED_PER_SECOND = 5e10
"""Bytes that an SM gets from the L2, roughly, for a point's share of time."""
ALONE = 1 << 18
"""Multiplications up to which OpenBLAS uses one thread."""
AROUND_SECONDS = 2e-6
"""Time of a launch that its steps do not take, roughly."""


@dataclass(frozen=True)
class Extents:
    """A problem, as points compute it: transposed where they compute C as its transpose."""

    m: int
    n: int
    k: int
    element_bytes: int


@dataclass(frozen=True)
class Shapes:
    """Numbers of points, a column each."""

    tile_m: Column
    tile_n: Column
    row_bytes: Column
    """Bytes along k of a stage."""
    stages: Column
    consumers: Column
    cluster_m: Column
    cluster_n: Column
    cluster_k: Column
    resident: Column
    usable: Column
    """Multiprocessors that their clusters use at a time."""
    boxes_off: Column
    """Powers of two by which columns of B's tiles, where n is contiguous, miss the width of a box."""
    ping_pong: bool
    column_major: bool
    scattered: bool
    """True if threads store single elements of column-major results."""


@dataclass(frozen=True)
class Process:
    """Values at places, each of which counts less the farther it is."""

    places: Matrix
    """Scaled traits, a row for each."""
    weights: Column

    def at(self, scaled: Matrix) -> Column:
        """The sum of the weights for each row of scaled traits."""
        import numpy as np

        # Half the squared distance, negated, is the product less half of each square: one multiplication makes it.
        half = -0.5 * (scaled**2).sum(axis=1, keepdims=True)
        left = np.concatenate([scaled, half, np.ones_like(half)], axis=1)
        total: Column = np.zeros(len(scaled))
        # In parts that a BLAS multiplies by one thread: starting others takes longer than all of it.
        part = max(1, ALONE // max(left.size, 1))
        for first in range(0, len(self.weights), part):
            kinship = left @ self._extended[:, first : first + part]
            np.exp(kinship, out=kinship)
            total += kinship @ self.weights[first : first + part]
        return total

    @cached_property
    def _extended(self) -> Matrix:
        """The transposed places, below them a row of ones, and half the negated square of each."""
        import numpy as np

        squares = -0.5 * (self.places**2).sum(axis=1)
        return np.ascontiguousarray(np.concatenate([self.places.T, np.ones_like(squares)[None], squares[None]]))


@dataclass(frozen=True)
class PointModel:
    """The fitted processes."""

    level: float
    centres: Column
    """The traits' means."""
    slopes: Column
    """Change of the error by each trait."""
    scales: Column
    """Factors that give differences of traits their weight in a distance."""
    timed: Process
    later: Process
    later_level: float
    """Keeps the least expected time of a problem where it was, on average, for the comparison with kernels that are no points."""

    def errors(self, traits: Matrix) -> Column:
        """Logarithms of the factors by which the model's times of points are off, from their traits, a row for each."""
        return self.level + (traits - self.centres) @ self.slopes + self.timed.at(self.scaled(traits))

    def corrections(self, traits: Matrix) -> Column:
        """Logarithms of the factors by which the times that are expected of points, after these errors and bounds, are still off."""
        return self.later_level + self.later.at(self.scaled(traits))

    def scaled(self, traits: Matrix) -> Matrix:
        """Traits as processes take them."""
        import numpy as np

        scaled: Matrix = ((traits - self.centres) * self.scales).astype(np.float32)
        return scaled


@cache
def point_model() -> PointModel:
    """The processes in ``point_costs.json``, with the places and weights in ``point_costs.npz``."""
    import numpy as np

    data = json.loads(FILE.read_text(encoding="utf-8"))
    assert tuple(data["traits"]) == TRAITS
    with np.load(PLACES) as arrays:
        timed, later = (
            Process(arrays[f"{kind}places"].reshape(-1, len(TRAITS)) / np.float32(data["unit"]), arrays[f"{kind}weights"])
            for kind in ("", "later_")
        )
    centres, slopes, scales = (np.array(data[name], np.float64) for name in ("centres", "slopes", "scales"))
    return PointModel(float(data["level"]), centres, slopes, scales, timed, later, float(data["later_level"]))


def traits_of(shapes: Shapes, works: Works, problem: Extents, device: Device) -> Matrix:
    """The traits of points on a problem, a column for each of ``TRAITS``."""
    import numpy as np

    at, size = shapes, problem.element_bytes
    one = np.ones_like(at.tile_m)
    tiles_m, tiles_n = np.ceil(problem.m / at.tile_m), np.ceil(problem.n / at.tile_n)
    pieces = np.ceil(tiles_m / at.cluster_m) * np.ceil(tiles_n / at.cluster_n) * at.cluster_m * at.cluster_n * at.cluster_k
    slots = at.usable * at.resident
    waves, of_one_sm = np.ceil(pieces / slots), np.ceil(pieces / at.usable)
    steps = np.ceil(np.ceil(problem.k * size / at.row_bytes) / at.cluster_k)
    own_rows, own_columns = problem.m / (tiles_m * at.tile_m), problem.n / (tiles_n * at.tile_n)
    alone = (at.tile_m * own_rows + at.tile_n * own_columns) * at.row_bytes
    shared = (at.tile_m * own_rows / at.cluster_n + at.tile_n * own_columns / at.cluster_m) * at.row_bytes
    in_flight = np.minimum(at.stages, steps) * alone * np.minimum(at.resident, of_one_sm)
    # Seconds that each limit would take alone.
    multiplying = of_one_sm * steps * (2 * at.tile_m * at.tile_n * at.row_bytes / size) / MULTIPLIED_PER_SECOND[size]
    from_l2 = pieces * steps * shared / FROM_L2
    loading = of_one_sm * steps * alone / OF_ONE_SM
    memory = works.memory_bytes / FROM_MEMORY * one
    latency = pieces * steps * alone / (in_flight * np.minimum(pieces, device.sm_count)) * LATENCY_SECONDS
    longest = np.maximum.reduce([multiplying, from_l2, loading, memory, latency]) + LAUNCH_SECONDS
    # The same as the model has them.
    arithmetic = works.operations * works.steps / ((device.roof(works.unit) or device.fp32_roof).value / device.sm_count)
    bus = works.memory_bytes / (device.memory_roof.value if device.memory_roof else device.fp32_roof.value / 10) * one
    loads = works.loaded_bytes * works.steps / LOADED_PER_SECOND
    most = np.maximum(np.maximum(arithmetic, bus), loads) + AROUND_SECONDS
    shares = at.cluster_m * at.cluster_n > 1
    larger = (at.cluster_n if problem.m > problem.n else at.cluster_m) > 1  # the cluster shares tiles of the larger factor
    traits: dict[str, Any] = {
        "loads_of_sm": loading / longest,
        "memory": memory / longest,
        "latency": latency / longest,
        "store": of_one_sm * at.tile_m * at.tile_n * 2 / OF_ONE_SM / longest,
        "filled_wave": pieces / (slots * waves),
        "in_flight": np.log2(in_flight / 65536),
        "rows": np.log2(at.tile_m),
        "cluster_m": np.log2(at.cluster_m),
        "resident": np.log2(at.resident),
        "stages": at.stages,
        "depth": np.log2(problem.k * size) * one,
        "element": size * one,
        "own_columns": own_columns,
        "odd_columns": at.tile_n % 16 == 8,
        "half_columns": at.tile_n % 32 == 16,
        "boxes_off": at.boxes_off,
        "wide": (problem.m < problem.n) * one,
        "shares_larger": shares & larger,
        "shares_smaller": shares & ~larger,
        "shares_smaller_turned": shares & ~larger & at.column_major,
        "four_slices": (at.cluster_k == 4) + 0.5 * (at.cluster_k == 3),
        "ping_pong": at.ping_pong * one,
        "rows_64": at.tile_m == 64,
        "columns": np.log2(at.tile_n / 64),
        "area": np.log2(at.tile_m * at.tile_n / 8192),
        "turned": at.column_major * one,
        "scattered": at.scattered * one,
        "blocks": np.log2(np.maximum(works.blocks / device.sm_count, 1 / 8)),
        "steps": np.log2(works.steps / 32),
        "arithmetic_share": arithmetic / most,
        "memory_share": bus / most,
        "loads_share": loads / most,
        "in_flight_loads": np.log2(at.stages * works.loaded_bytes / 65536),
    }
    return np.stack([np.asarray(traits[name], float) for name in TRAITS], axis=1)
