"""The error of the model's times of points, fitted to timed kernels as a Gaussian process.

    python -m measurements.fit_points measurements/points_h200.jsonl            regret, each problem by the fit to all others
    python -m measurements.fit_points measurements/points_h200.jsonl --write    also writes point_costs.json and point_costs.npz
    python -m measurements.fit_points measurements/points_h200.jsonl --correct  leaves this process as it is, and writes the second one

The files are those of ``python -m measurements.points``. Logarithms of measured over modelled time, less the mean excess of all of the
library's instances in the same run over the times of tables, are the values of a process whose covariance is squared exponential in
scaled traits, with a linear part, and a constant for each run of a problem. The scales of traits were chosen by the regret on problems that
the fit had not seen: ``python -m measurements.fit_points FILES --tune``. A second process of small amplitude, in the same scaled traits, is
fitted to what the expected times are off by then, bounds included; each problem has its own level in it. ``LANDMARKS`` of the timed points
stand for all.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmgen.core.files import write_atomically
from gemmgen.dispatch.candidates import candidates
from gemmgen.dispatch.model import seconds_of_many
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.space import bounded_seconds, least_seconds
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm import space
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.gemm.wgmma.point_model import FILE, PLACES, TRAITS, point_model
from gemmgen.kernels.gemm.wgmma.space import BAND, PERSISTENT, SHALLOW, points

Values = NDArray[np.float64]
SETTINGS = Path(__file__).with_name("fit_points.json")
"""Scales of traits and amplitudes, as ``--tune`` finds them."""
EXACT = 1e-6
NEAR = 0.1
"""Squares of the distance below which a label's, or a listed instance's, coordinates count as a point's."""
SLOW = 1.3
"""Points that take this many times as long as the best of their problem are left out."""
FADING = 1.5
"""A point counts less by this power of its time over that of the problem's best."""
UNIT = 100
"""Scaled traits are written in units of 1 / UNIT."""
NEARLY_BEST, SOFT = 1.2, 0.02
"""Quality of a fit: points within a factor of the best, and the uncertainty of logarithms of times that a choice has to bear."""
LANDMARKS, COARSE = 2000, 4
"""Points that the second process has weights at, and the parts of a unit of scaled traits to which points are rounded to choose them."""
LATER, LATER_NOISE, LATER_FADING = 0.03, 0.03, 4.0
"""Amplitude and noise of the second process, and its ``FADING``: of 944 runs of problems, each eighth by the fit to all others, the kernel
that is expected to be the fastest takes 0.75% longer than the fastest timed, 0.87% without this process."""
RUNG = 1e-6
LABEL = re.compile(r"point/wgmma/(\d+)x(\d+)x(\d+)_s(\d+)_([cp])(\d)(.*)")


@dataclass(frozen=True)
class Settings:
    """Amplitudes of the process, as parts of a time, and the scales of traits."""

    scales: Mapping[str, float]
    amplitude: float
    linear: float
    run: float
    noise: float
    constant: float = 0.3

    @property
    def columns(self) -> Values:
        return np.array([self.scales.get(name, 0.0) for name in TRAITS])


@dataclass(frozen=True)
class Timed:
    """The timed points of one problem in one run."""

    run: str
    problem: str
    peer: float
    microseconds: Values
    modelled: Values
    traits: Values
    slower: float
    """Logarithm of the time of the library's instances over the expectation from tables, in the run."""
    expected: Values
    """Microseconds that are expected by the process as it is written, bounds included."""
    own: NDArray[np.bool_]
    """True for points of no file."""

    @property
    def errors(self) -> Values:
        return np.log(self.microseconds / self.modelled) - self.slower

    @property
    def weights(self) -> Values:
        found: Values = (self.microseconds.min() / self.microseconds) ** FADING
        return found


def coordinates(label: str, element_bytes: int) -> list[float] | None:
    """Coordinates of a point by its label."""
    found = LABEL.fullmatch(label)
    if found is None:
        return None
    m, n, k, stages = map(int, found.groups()[:4])
    words = found[7].split("_")
    cluster = next((word[7:].split("x") for word in words if word.startswith("cluster")), ["1", "1"])
    resident, slices = (next((int(word[1:]) for word in words if re.fullmatch(letter + r"\d", word)), 1) for letter in "bk")
    row = k * element_bytes
    return [
        math.log2(m),
        math.log2(n),
        math.log2(row) / 2,
        math.log2(stages * row) / 2,
        float(found[6]),
        float(found[5] == "p"),
        SHALLOW / 2 + ("across" in words) if {"turned", "across"} & set(words) else 0.0,
        math.log2(int(cluster[0])),
        math.log2(int(cluster[1])),
        SHALLOW * math.log2(slices) / 2,
        math.log2(resident),
        PERSISTENT * (slices == 1 and "turned" not in words),
    ]


def read(paths: Sequence[Path], device_name: str) -> list[Timed]:
    """The timed points in files, problem by problem."""
    device = find_device(device_name)
    listed = {candidate.label: candidate.spec for candidate in candidates("gemm")}
    found: list[Timed] = []
    slower: dict[str, list[float]] = {}
    run = ""
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines()):
            row = json.loads(line)
            if "problem" not in row:
                run = f"{path.name}:{number}"
                continue
            request = parse_problem(f"gemm:{row['problem']}")
            groups = points(request, device, every_store=True)
            if not groups:
                continue
            features = np.concatenate([points.features for points in groups])
            seconds = np.concatenate([seconds_of_many(points.works, device) for points in groups])
            traits = np.concatenate([points.traits(np.arange(len(points))) for points in groups])
            least = np.concatenate([least_seconds(points.works, device) for points in groups])
            added = np.concatenate([points.added for points in groups])
            first = np.cumsum([0, *map(len, groups)])
            us, places, own = [], [], []
            for kernel in row["kernels"]:
                label = kernel["label"]
                if "us" not in kernel:
                    continue
                if "expected" in kernel and kernel["role"] in ("old", "listed"):
                    slower.setdefault(run, []).append(math.log(kernel["us"] / kernel["expected"]))
                spec = listed.get(label)
                place = coordinates(label, request.a.element_bytes) if spec is None else space.coordinates(spec)
                if place is None:
                    continue
                distances = ((features - np.array(place)) ** 2).sum(axis=1)
                nearest = int(distances.argmin())
                group = int(np.searchsorted(first, nearest, side="right")) - 1
                if distances[nearest] < (EXACT if spec is None else NEAR) and _in_order(
                    kernel, groups[group].spec(nearest - int(first[group]), False)
                ):
                    us.append(kernel["us"])
                    places.append(nearest)
                    own.append(spec is None)
            times = np.array(us)
            fast = times < SLOW * times.min() if us else times > 0
            if fast.any():
                chosen = np.array(places)[fast]
                expected = bounded_seconds(seconds[chosen] * np.exp(groups[0].errors(traits[chosen]) + added[chosen]), least[chosen])
                peer = row.get("peer", math.nan)
                timed = Timed(
                    run, row["problem"], peer, times[fast], seconds[chosen] * 1e6, traits[chosen], 0.0, expected * 1e6, np.array(own)[fast]
                )
                found.append(timed)
    return [replace(one, slower=median(slower.get(one.run, [0.0]))) for one in found]


def _in_order(kernel: Mapping[str, Any], spec: GemmSpec) -> bool:
    """True if a timed kernel's blocks took tiles in the order in which its point takes them now; lines without an order are of ``BAND``."""
    timed = kernel.get("spec", kernel).get("rasterization", {})
    return (timed.get("along", "minor"), timed.get("group", BAND)) == (spec.rasterization.along, spec.rasterization.group)


class Process:
    """The process on timed points."""

    def __init__(self, timed: Sequence[Timed]) -> None:
        self.timed = timed
        self.traits = np.concatenate([one.traits for one in timed])
        self.errors = np.concatenate([one.errors for one in timed])
        self.weights = np.concatenate([one.weights for one in timed])
        self.run = np.concatenate([np.full(len(one.microseconds), number) for number, one in enumerate(timed)])
        names = {one.problem: number for number, one in enumerate(timed)}
        problem = np.concatenate([np.full(len(one.microseconds), names[one.problem]) for one in timed])
        self.problems = [np.flatnonzero(problem == number) for number in np.unique(problem)]
        self.centres, self.spread = np.average(self.traits, axis=0, weights=self.weights), self.traits.std(axis=0) + 1e-9
        self.level = float(np.average(self.errors, weights=self.weights))
        self.standard = (self.traits - self.centres) / self.spread

    def factor(self, settings: Settings) -> Any:
        """The Cholesky factor of the covariance of the timed points."""
        import scipy.linalg

        scaled = self.standard * settings.columns
        squares = (scaled**2).sum(axis=1)
        apart = np.maximum(squares[:, None] + squares - 2 * scaled @ scaled.T, 0)
        linear = self.standard * (settings.columns > 0)
        covariance = settings.amplitude**2 * np.exp(-apart / 2) + settings.linear**2 * linear @ linear.T / len(TRAITS)
        covariance += settings.run**2 * (self.run[:, None] == self.run) + settings.constant**2
        covariance[np.diag_indices_from(covariance)] += settings.noise**2 / self.weights
        return scipy.linalg.cho_factor(covariance, lower=True, overwrite_a=True)

    def unseen(self, settings: Settings) -> list[Values]:
        """Expected times in each run of a problem, by the fit to all other problems."""
        import scipy.linalg

        inverse = scipy.linalg.cho_solve(self.factor(settings), np.eye(len(self.errors)))
        solved = inverse @ (self.errors - self.level)
        left = np.empty(len(self.errors))
        for places in self.problems:
            left[places] = np.linalg.solve(inverse[np.ix_(places, places)], solved[places])
        expected = self.errors - left
        return [one.modelled * np.exp(expected[self.run == number] + one.slower) for number, one in enumerate(self.timed)]

    def written(self, settings: Settings) -> dict[str, Any]:
        """The process as ``point_costs.json`` and ``point_costs.npz`` hold it."""
        import scipy.linalg

        solved = scipy.linalg.cho_solve(self.factor(settings), self.errors - self.level)
        linear = self.standard * (settings.columns > 0)
        slopes = settings.linear**2 / len(TRAITS) * (linear.T @ solved) / self.spread * (settings.columns > 0)
        # Points that were timed several times, or whose traits are alike, are one place with the sum of their weights.
        places, alike = np.unique(np.rint(self.standard * settings.columns * UNIT).astype(int), axis=0, return_inverse=True)
        return {
            "traits": TRAITS,
            "level": round(self.level + settings.constant**2 * float(solved.sum()), 5),
            "centres": _rounded(self.centres),
            "slopes": _rounded(slopes),
            "scales": _rounded(settings.columns / self.spread),
            "unit": UNIT,
            "weights": _rounded(np.bincount(alike.ravel(), settings.amplitude**2 * solved)),
            "places": places.tolist(),
        }


def corrected(timed: Sequence[Timed]) -> dict[str, Any]:
    """The second process as the same files hold it: by least squares with the process's prior on the weights of landmarks."""
    import scipy.linalg

    model = point_model()
    own = [one for one in timed if one.own.sum() > 1]
    scaled = np.concatenate([model.scaled(one.traits[one.own]) for one in own]).astype(np.float64)
    left = np.concatenate([np.log(one.microseconds / one.expected)[one.own] for one in own])
    weights = np.concatenate([(one.microseconds.min() / one.microseconds[one.own]) ** LATER_FADING for one in own])
    of = np.repeat(np.arange(len(own)), [one.own.sum() for one in own])
    _, first = np.unique(np.rint(scaled * COARSE), axis=0, return_index=True)
    places = np.rint(scaled[np.random.default_rng(0).permutation(first)[:LANDMARKS]] * UNIT) / UNIT

    def kinship(rows: Values) -> Values:
        squares = (rows**2).sum(axis=1)[:, None] + (places**2).sum(axis=1) - 2 * rows @ places.T
        return np.asarray(np.exp(-np.maximum(squares, 0) / 2))

    def apart(columns: Values) -> Values:
        """Columns less their weighted means in each problem."""
        sums = np.zeros((len(own), columns.shape[1]))
        np.add.at(sums, of, columns * weights[:, None])
        return np.asarray(columns - (sums / np.bincount(of, weights)[:, None])[of])

    columns, values = apart(kinship(scaled)), apart(left[:, None])[:, 0]
    squared = (columns * weights[:, None]).T @ columns / LATER_NOISE**2
    squared += kinship(places) / LATER**2 + RUNG * np.eye(len(places))
    solved = scipy.linalg.solve(squared, columns.T @ (weights * values) / LATER_NOISE**2, assume_a="pos")
    ends = np.cumsum([one.own.sum() for one in own])[:-1]
    changed = zip(own, np.split(kinship(scaled) @ solved, ends), strict=True)
    level = np.mean([math.log(one.expected[one.own].min() / (one.expected[one.own] * np.exp(by)).min()) for one, by in changed])
    rounded = {"later_level": round(float(level), 5), "later_weights": _rounded(solved)}
    return rounded | {"later_places": np.rint(places * UNIT).astype(int).tolist()}


def write(data: Mapping[str, Any]) -> None:
    """Writes ``point_costs.npz``, the places and their weights, and ``point_costs.json``, all else in lines of up to 120 columns."""

    def lines(name: str, value: object) -> str:
        if not isinstance(value, list | tuple):
            return f' "{name}": {json.dumps(value)}'
        rows = textwrap.wrap(json.dumps(value)[1:-1], 118, break_long_words=False, break_on_hyphens=False)
        return f' "{name}": [\n  ' + "\n  ".join(rows) + "\n ]"

    types = {"places": np.int16, "weights": np.float32}
    arrays: dict[str, Any] = {
        name: np.asarray(value, types[name.removeprefix("later_")]) for name, value in data.items() if name.endswith(tuple(types))
    }
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomically(PLACES, content.getvalue())
    write_atomically(FILE, "{\n" + ",\n".join(lines(name, value) for name, value in data.items() if name not in arrays) + "\n}\n")


def _rounded(values: NDArray[Any]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def regrets(timed: Sequence[Timed], expected: Sequence[Values]) -> Values:
    """Regret of the choice: the time of the kernel that is expected to be the fastest over that of the fastest, less 1."""
    pairs = zip(timed, expected, strict=True)
    return np.array([one.microseconds[times.argmin()] / one.microseconds.min() - 1 for one, times in pairs if len(times) > 3])


def objective(timed: Sequence[Timed], expected: Sequence[Values]) -> float:
    """Quality of a fit, the less the better: the regret if expectations are uncertain, and the error at points that are nearly the best."""
    regret, error = [], []
    for one, times in zip(timed, expected, strict=True):
        if len(times) > 3:
            chance = np.exp(-np.log(times / times.min()) / SOFT)
            regret.append(float((chance / chance.sum()) @ (one.microseconds / one.microseconds.min() - 1)))
            error.append(np.log(one.microseconds / times)[one.microseconds < NEARLY_BEST * one.microseconds.min()].var())
    return float(np.mean(regret) + 0.3 * math.sqrt(np.mean(error)))


def tuned(process: Process, settings: Settings, sweeps: int = 2) -> Settings:
    """Settings with a better objective, found by changing one after the other."""

    def quality(tried: Settings) -> float:
        return objective(process.timed, process.unseen(tried))

    best = quality(settings)
    rng = np.random.default_rng(7)
    for _ in range(sweeps):
        steps = [
            *({name: getattr(settings, name) * by} for name in ("amplitude", "linear", "run", "noise") for by in (0.7, 1.4)),
            *({"scales": {name: by}} for name in rng.permutation(TRAITS) for by in (0.0, 0.6, 1.7)),
        ]
        for step in steps:
            changed = dict(step)
            if "scales" in step:
                ((name, by),) = step["scales"].items()
                changed["scales"] = {**settings.scales, name: (settings.scales.get(name, 0.0) or 0.2) * by}
            tried = replace(settings, **changed)
            found = quality(tried)
            if found < best - 2e-5:
                best, settings = found, tried
                print(f"{step}: {best:.5f}", flush=True)
    return settings


def main() -> int:
    """Reports or fits; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--device", default="H200")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--correct", action="store_true", help="fits the second process to the files, and writes it")
    parser.add_argument("--tune", action="store_true", help="looks for better settings first, and writes them to fit_points.json")
    given = parser.parse_args()
    timed = read(given.files, given.device)
    if given.correct:
        data = json.loads(FILE.read_text(encoding="utf-8"))
        data["origin"]["later_data"] = [path.as_posix() for path in given.files]
        with np.load(PLACES) as arrays:
            write(data | dict(arrays) | corrected(timed))
        return 0
    process = Process(timed)
    settings = Settings(**json.loads(SETTINGS.read_text()))
    if given.tune:
        settings = tuned(process, settings)
        write_atomically(SETTINGS, json.dumps(vars(settings), indent=1) + "\n")
    if given.write:
        origin = {"device": given.device, "command": "python -m measurements.fit_points", "data": [path.as_posix() for path in given.files]}
        none: dict[str, Any] = {"later_level": 0.0, "later_weights": [], "later_places": []}
        data = {"schema_version": 2, "origin": origin, **process.written(settings), **none}
        write(data)
    expected = process.unseen(settings)
    for one, times in zip(timed, expected, strict=True):
        pick, best = int(times.argmin()), one.microseconds.min()
        print(
            f"{one.problem:32} {len(times):3} points, peer {one.peer:7.1f}, best {best:7.1f}, picked {one.microseconds[pick]:7.1f} "
            f"(expected {times[pick]:.1f})"
        )
    found = regrets(timed, expected)
    print(
        f"{len(process.errors)} points; regret among timed points of problems not seen: mean {found.mean():.1%}, largest {found.max():.1%}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
