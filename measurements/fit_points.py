"""The weights by which the model's times of points are corrected, fitted to timed points.

    python -m measurements.fit_points measurements/points_h200.jsonl            errors and regret, each problem by the fit to all others
    python -m measurements.fit_points measurements/points_h200.jsonl --write    also writes gemmgen/kernels/gemm/wgmma/point_costs.json

The files are those of ``python -m measurements.points``. A ridge regression of the logarithm of measured over modelled time on the traits
of points, within each problem, the more by a point the faster it is; then a level, for which points and listed instances are expected to
take as long beside each other as they did in the same run, where tables correct both.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmgen.core.files import write_atomically
from gemmgen.dispatch.candidates import candidates
from gemmgen.dispatch.model import seconds_of_many
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import coordinates_of, row_model
from gemmgen.dispatch.space import told_errors
from gemmgen.dispatch.table import table_for
from gemmgen.hardware.target import Device
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm import space
from gemmgen.kernels.gemm.wgmma.space import TRAITS, WEIGHTS
from gemmgen.kernels.requests import Request

RIDGE = 50.0
NEAR = 0.1
"""Square of the distance below which a listed instance counts as a point."""
FADING = 0.5
"""A point counts less by this power of its time over that of the problem's best."""


@dataclass(frozen=True)
class Timed:
    """The timed points of one problem."""

    problem: str
    peer: float
    listed: float
    """Microseconds of the choice among the library's instances."""
    slower: float
    """Logarithm of the time of the library's instances over what was expected of them: that of the run, which points share."""
    microseconds: NDArray[np.float64]
    modelled: NDArray[np.float64]
    traits: NDArray[np.float64]
    told: NDArray[np.float64]
    """Logarithms by which the table's nearest rows correct the model."""

    @property
    def errors(self) -> NDArray[np.float64]:
        return np.log(self.microseconds / self.modelled)

    @property
    def weights(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (self.microseconds.min() / self.microseconds) ** FADING
        return found


def read(paths: Sequence[Path], device_name: str) -> list[Timed]:
    """The timed points in files, problem by problem."""
    device = find_device(device_name)
    table = table_for(device)
    found = []
    for line in (line for path in paths for line in path.read_text().splitlines()):
        row = json.loads(line)
        times = {
            kernel["label"]: kernel["us"] for kernel in row.get("kernels", ()) if "us" in kernel and kernel["label"].startswith("point/")
        }
        if not times:
            continue
        request = parse_problem(f"gemm:{row['problem']}")
        us, modelled, traits, features = [], [], [], []
        for points in space.points(request, device):
            seconds = seconds_of_many(points.works, device)
            for place in range(len(points)):
                label = space.label(points.spec(place, False))
                if label in times:
                    us.append(times[label])
                    modelled.append(seconds[place] * 1e6)
                    traits.append(points.traits[place])
                    features.append(points.features[place])
        known = [math.log(kernel["us"] / kernel["expected"]) for kernel in row["kernels"] if "expected" in kernel and "us" in kernel]
        add_listed(row, request, device, us, modelled, traits, features)
        listed = next((kernel["us"] for kernel in row["kernels"] if kernel["role"] == "old" and "us" in kernel), math.nan)
        told = np.zeros(len(us))
        if table is not None:
            neighbours = table.neighbours(table.near(request), row_model(table, device, device.architecture))
            told, _ = told_errors(np.array(features), neighbours, lambda name: coordinates_of("gemm", name, device.architecture))
        columns = (np.array(column) for column in (us, modelled, traits))
        found.append(Timed(row["problem"], row.get("peer", math.nan), listed, median(known or [0.0]), *columns, told))
    return found


def add_listed(
    row: dict[str, Any],
    request: Request,
    device: Device,
    us: list[float],
    modelled: list[float],
    traits: list[NDArray[np.float64]],
    features: list[NDArray[np.float64]],
) -> None:
    """Adds the library's instances that differ from a point in the number of stages or resident blocks alone, as that point."""
    specs = {candidate.label: candidate.spec for candidate in candidates("gemm")}
    groups = space.points(request, device)
    if not groups:
        return
    at = np.concatenate([points.features for points in groups])
    seconds = np.concatenate([seconds_of_many(points.works, device) for points in groups])
    known = np.concatenate([points.traits for points in groups])
    for kernel in row["kernels"]:
        spec = specs.get(kernel["label"])
        place = None if spec is None else space.coordinates(spec)
        if place is not None and "us" in kernel:
            distances = ((at - np.array(place)) ** 2).sum(axis=1)
            nearest = int(distances.argmin())
            if distances[nearest] < NEAR:
                us.append(kernel["us"])
                modelled.append(seconds[nearest] * 1e6)
                traits.append(known[nearest])
                features.append(at[nearest])


def fit(timed: Sequence[Timed]) -> NDArray[np.float64]:
    """Weights of the traits."""
    traits = np.concatenate([one.traits - np.average(one.traits, axis=0, weights=one.weights) for one in timed])
    errors = np.concatenate([one.errors - np.average(one.errors, weights=one.weights) for one in timed])
    weights = np.concatenate([one.weights for one in timed])[:, None]
    scale = np.concatenate([one.traits for one in timed]).std(axis=0) + 1e-9
    scaled = traits / scale
    found: NDArray[np.float64] = np.linalg.solve((scaled * weights).T @ scaled + RIDGE * np.eye(len(scale)), (scaled * weights).T @ errors)
    return found / scale


def level(timed: Sequence[Timed], weights: NDArray[np.float64]) -> float:
    """Logarithm that is added for all points: the median over problems of what is left of the errors of the fastest points, beside those
    of the library's instances in the same run."""
    left = [np.average(one.errors - one.traits @ weights - one.told, weights=one.weights**3) - one.slower for one in timed]
    return float(median(left))


def main() -> int:
    """Reports or fits; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--device", default="H200")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    timed = read(given.files, given.device)
    regrets = []
    for number, one in enumerate(timed):
        rest = [*timed[:number], *timed[number + 1 :]]
        weights = fit(rest)
        expected = one.modelled * np.exp(one.traits @ weights + level(rest, weights) + one.told)
        pick, plain = int(np.argmin(expected)), int(np.argmin(one.modelled))
        best = one.microseconds.min()
        regrets.append((one.microseconds[pick] / best - 1, one.microseconds[plain] / best - 1))
        print(
            f"{one.problem:32} {len(one.microseconds):3} points, peer {one.peer:7.1f}, listed {one.listed:7.1f}, best {best:7.1f}, "
            f"picked {one.microseconds[pick]:7.1f} (expected {expected[pick]:.1f}), by the model alone {one.microseconds[plain]:.1f}"
        )
    picked, plain_regret = np.array(regrets).T
    print(f"regret among timed points: mean {picked.mean():.1%}, largest {picked.max():.1%}; by the model alone {plain_regret.mean():.1%}")
    weights = fit(timed)
    if given.write:
        data = {
            "schema_version": 1,
            "origin": {
                "device": given.device,
                "command": "python -m measurements.fit_points",
                "data": [path.as_posix() for path in given.files],
            },
            "level": round(level(timed, weights), 4),
            "weights": {name: round(float(weight), 4) for name, weight in zip(TRAITS, weights, strict=True)},
        }
        write_atomically(WEIGHTS, json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
