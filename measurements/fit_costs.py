"""The fitted costs of GEMM launches: their quality on measured times, and a new fit.

    python -m measurements.fit_costs                        median and largest error of each kind on the device's tuned table
    python -m measurements.fit_costs --fit "tiled" --fit "mma"   fits those kinds again and prints the changes
    python -m measurements.fit_costs --fit "tiled" --write  also writes gemmgen/kernels/gemm/fitted_costs.json

The error of a kind is that of the model's time over the measured one, on problems of the table where a launch of that kind takes part. A
fit moves one factor after the other, as long as the mean square of the errors' logarithms falls by at least ``WORTH``. Factors that are
written name the table's device, its date and this command as their origin. ``python -m measurements.products`` measures how good the
choices by the new factors are; ``gemmgen tune`` renews the table's own predictions.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

from gemmgen.core.files import write_atomically
from gemmgen.dispatch.candidates import candidates, reserves
from gemmgen.dispatch.model import model_seconds
from gemmgen.dispatch.selection import fitted, set_best, table_name
from gemmgen.dispatch.table import table_for
from gemmgen.hardware.target import Device
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.family import Costs, Work
from gemmgen.kernels.gemm import fitted_costs
from gemmgen.perf.cost_model import cost_model_of

STEPS = (0.8, 0.9, 0.95, 1.05, 1.1, 1.25)
"""Factors by which a cost is moved."""
SHIFTS = (-0.25, -0.05, 0.05, 0.25)
"""Amounts by which ``idle``, which may be 0 or negative, is moved."""
BOUNDS = 0.1, 6.0
"""Smallest and largest factor; a fit beyond them follows noise."""
IDLE_BOUNDS = -1.0, 5.0
WORTH = 1e-3
"""Part by which the error has to fall for a move to count."""
SAMPLE = 400
"""Times that a kind is fitted to, at most."""
SEED = 1


@dataclass(frozen=True)
class Timing:
    """A measured time of an instance, and its launches by the costs in force."""

    problem: str
    seconds: float
    works: Callable[[], Sequence[Work]]

    def error(self, device: Device) -> float:
        """Logarithm of the model's time over the measured one."""
        return math.log(model_seconds(self.works(), device) / self.seconds)


def timings(device: Device) -> list[Timing]:
    """The times of GEMMs in the device's tuned table, as far as their instances still exist and fit."""
    table = table_for(device)
    if table is None:
        return []
    by_name = {table_name(one, device.architecture): one for one in (*candidates("gemm"), *reserves("gemm"))}
    found = []
    for row in table.rows:
        for name, microseconds in row.times.items() if row.kind == "gemm" else ():
            option = fitted(by_name[name], row.request, device.architecture) if name in by_name else ""
            if not isinstance(option, str):
                _, plan, dimensions = option
                settings, _ = set_best(plan, dimensions, device)
                found.append(Timing(row.problem, microseconds * 1e-6, _works_of(plan, {**dimensions, **settings})))
    return found


def _works_of(plan: object, dimensions: Mapping[str, int]) -> Callable[[], Sequence[Work]]:
    return lambda: cost_model_of("gemm").work(plan, dimensions)


def by_kind(found: Sequence[Timing]) -> dict[str, list[Timing]]:
    """The times by the kinds of costs that they read."""
    kinds: dict[str, list[Timing]] = {}
    real = fitted_costs.fitted_costs()
    for timing in found:
        read = _Noted(real.kinds)
        with patch.object(fitted_costs, "fitted_costs", lambda read=read: replace(real, kinds=read)):
            timing.works()
        for kind in sorted(read.names):
            kinds.setdefault(kind, []).append(timing)
    return kinds


class _Noted(dict[str, Costs]):
    """Costs that note which of them are read."""

    def __init__(self, costs: Mapping[str, Costs]) -> None:
        super().__init__(costs)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Costs:
        self.names.add(name)
        return super().__getitem__(name)


def spread(found: Sequence[Timing], device: Device) -> float:
    """Mean square of the logarithms of the errors."""
    return sum(timing.error(device) ** 2 for timing in found) / len(found)


def fit(kind: str, found: Sequence[Timing], device: Device) -> Costs:
    """The costs of a kind that predict these times best, starting from those in force."""
    real = fitted_costs.fitted_costs()

    def error(costs: Costs) -> float:
        tried = replace(real, kinds={**real.kinds, kind: costs})
        with patch.object(fitted_costs, "fitted_costs", lambda: tried):
            return spread(found, device)

    best = real.kinds[kind]
    least = error(best)
    moved = True
    while moved:
        moved = False
        for field in fields(Costs):
            for move in _moves(field.name, getattr(best, field.name)):
                candidate = replace(best, **{field.name: move})
                new = error(candidate)
                if new < least * (1 - WORTH):
                    best, least, moved = candidate, new, True
    return best


def _moves(name: str, value: float) -> list[float]:
    """Values near that of a cost, within its bounds."""
    if name == "idle":
        moves, (least, most) = [value + shift for shift in SHIFTS], IDLE_BOUNDS
    else:
        moves, (least, most) = [value * step for step in STEPS], BOUNDS
    return [round(move, 3) for move in moves if least <= move <= most]


def written(kinds: Mapping[str, Costs], device: Device, command: str) -> str:
    """The data file with new costs of some kinds."""
    data = json.loads(fitted_costs.FILE.read_text(encoding="utf-8"))
    table = table_for(device)
    assert table is not None
    date = str(table.origin["date"])[:10]
    origin = f"{device.name.lower()}_{date}"
    data["origins"][origin] = {"device": table.origin["gpu"], "date": date, "command": command, "data": f"tuned/{device.name.lower()}.json"}
    plain = Costs()
    for kind, costs in kinds.items():
        data["kinds"][kind] = {"origin": origin, "costs": {k: v for k, v in asdict(costs).items() if v != getattr(plain, k)}}
    used = {row["origin"] for section in ("kinds", "stores") for row in data[section].values()}
    data["origins"] = {name: about for name, about in data["origins"].items() if name in used}
    return fitted_costs.as_text(data)


def main() -> int:
    """Reports or fits; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="H200", help="device whose tuned table has the times")
    parser.add_argument("--fit", action="append", default=[], metavar="KIND", help="a kind of kernel to fit anew; may be repeated")
    parser.add_argument("--write", action="store_true", help="write the fitted costs to the data file")
    parser.add_argument("-o", "--output", type=Path, default=fitted_costs.FILE, help="data file to write")
    given = parser.parse_args()
    device = find_device(given.device)
    kinds = by_kind(timings(device))
    unknown = [kind for kind in given.fit if kind not in kinds]
    if unknown:
        parser.error(f"--fit {unknown[0]}: no times of that kind; there are {', '.join(sorted(kinds))}")
    fits: dict[str, Costs] = {}
    for kind in given.fit or sorted(kinds):
        found = kinds[kind]
        errors = sorted(math.exp(abs(timing.error(device))) - 1 for timing in found)
        print(f"{kind}: {len(found)} times, median error {median(errors):.1%}, 90% within {errors[int(0.9 * (len(errors) - 1))]:.1%}")
        if given.fit:
            sample = random.Random(SEED).sample(found, min(SAMPLE, len(found)))
            fits[kind] = fit(kind, sample, device)
            old = fitted_costs.costs_of(kind)
            changes = [f"{f.name} {getattr(old, f.name)} -> {getattr(fits[kind], f.name)}" for f in fields(Costs)]
            changes = [change for change in changes if len(set(change.split()[1::2])) > 1]
            print(f"  {', '.join(changes) or 'no change'}")
    if given.write and fits:
        command = "python -m measurements.fit_costs " + " ".join(f"--fit '{kind}'" for kind in given.fit)
        write_atomically(given.output, written(fits, device, command))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
