"""Tables of measured times by device, problem and instance, and interpolation to other problems."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, overload

from gemmgen.core.cache import cache_key
from gemmgen.core.errors import SpecError
from gemmgen.core.files import MAX_BYTES, read_plain, write_atomically
from gemmgen.core.resources import resource_directory
from gemmgen.dispatch.model import PARAMETERS
from gemmgen.dispatch.problems import parse_problem
from gemmgen.hardware.target import DEVICES, Device
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.requests import Request
from gemmgen.kernels.spec_files import load_spec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA_VERSION = 1
NEIGHBOURS = 8
"""Tabulated problems that an estimate is interpolated from."""
TELLING = 24
"""Tabulated problems that tell of kernels which they do not hold."""
TRAIT_DISTANCE = 2.0
"""Distance of a difference in layout, type or alignment, in units of a factor of two in one extent."""
CLOSE = 0.3
"""Square of the distance below which a tabulated problem says little more than from there."""
DOUBT = 4.0
"""Weight of the model itself beside tabulated problems, each of which has 1 / (CLOSE + distance²): 238 drawn products, each estimated
without its own row on an H200, take 2.8% longer than by their best instances, 3.8% by the model alone or with a DOUBT of 0.5."""
ALMOST = 0.01
"""Distance of problems that differ in no extent or trait, but in a residual that is read: where results lie scattered, that takes as long
as all else."""
REMEMBERED = 256
"""Traits of requests whose differences from those of all rows are remembered."""
Source = Literal["measured", "interpolated", "model"]
RowModel = Callable[["Row", str], float | None]
"""The model's seconds of an instance on a row's problem; None for an instance that is not known any more."""


@dataclass(frozen=True)
class Row:
    """One problem, timed."""

    problem: str
    """The request's text, without the kind."""
    kind: str
    times: Mapping[str, float]
    """Microseconds by instance."""
    models: Mapping[str, float] = field(default_factory=dict)
    """Predictions of the model, in microseconds, by instance."""
    peer: float | None = None
    """Microseconds of the vendor's library."""
    points: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Specs of the timed points of a space, which no file lists, by the names of their instances."""

    @cached_property
    def fastest_points(self) -> tuple[tuple[str, KernelSpec], ...]:
        """The timed points with their specs, fastest first. Raises ``SpecError`` for one that is no spec."""
        names = sorted((name for name in self.points if name in self.times), key=lambda name: self.times[name])
        return tuple((name, load_spec(dict(self.points[name]))) for name in names)

    @cached_property
    def request(self) -> Request:
        return parse_problem(f"{self.kind}:{self.problem}")


@dataclass(frozen=True)
class Neighbour:
    """Statements of a tabulated problem about another."""

    weight: float
    """The larger, the nearer it is."""
    errors: Mapping[str, float]
    """Logarithms of measured over modelled time, by instance."""
    median: float


class Near(Sequence[tuple[float, Row]]):
    """Rows with their distances from a request, nearest first; pairs are made when they are asked for."""

    def __init__(self, rows: Sequence[Row] = (), distances: Sequence[float] = (), order: Sequence[int] = ()) -> None:
        self._rows, self._distances, self._order = rows, distances, order
        self.common: _Mean | None = None
        """The model's error that all instances share in the nearest rows, once it is asked for."""

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: int) -> tuple[float, Row]: ...

    @overload
    def __getitem__(self, place: slice) -> Near: ...

    def __getitem__(self, place: int | slice) -> tuple[float, Row] | Near:
        if isinstance(place, slice):
            return Near(self._rows, self._distances, self._order[place])
        at = self._order[place]
        return self._distances[at], self._rows[at]

    def with_instance(self, name: str) -> Iterator[tuple[float, Row]]:
        """Rows in which an instance was timed, found one after the other: an estimate needs the first few."""
        return ((self._distances[at], self._rows[at]) for at in self._order if name in self._rows[at].times)


class _Mean:
    """A weighted mean in the making."""

    def __init__(self) -> None:
        self.count, self.weight, self._total = 0, 0.0, 0.0

    def add(self, weight: float, value: float) -> None:
        self.count += 1
        self.weight += weight
        self._total += weight * value

    @property
    def value(self) -> float:
        return self._total / self.weight if self.weight else 0.0


@dataclass(frozen=True)
class Table:
    """Measurements on one device."""

    device: str
    rows: tuple[Row, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Compiler, clocks, driver, date."""
    borrowed: bool = False
    """True for another device of the same architecture that has no table: times correct the model of that device, and none is used
    directly."""

    def near(self, request: Request, without: Row | None = None) -> Near:
        """The rows of the request's family with their distances, nearest first; ``without`` leaves one out. Only a row for this very
        problem has none: not one beside which a residual is read."""
        import numpy as np

        rows = self._by_kind.get(request.kind, [])
        distances = self._distances(request)
        for place in np.flatnonzero(distances == 0):
            distances[place] = ALMOST * (rows[place].request.adds != request.adds)
        order = np.argsort(distances, kind="stable").tolist()
        if without is not None:
            order = [place for place in order if rows[place] is not without]
        return Near(rows, distances.tolist(), order)

    def _distances(self, request: Request) -> NDArray[np.float64]:
        """Distances of all rows of the request's family, as ``request_distance`` has them, in one go."""
        import numpy as np

        rows = self._by_kind.get(request.kind, [])
        if not rows:
            return np.zeros(0)
        sizes, kinds, traits = self._places(request.kind)
        wanted = np.log2(np.maximum(np.array(request.sizes, float), 0.5))
        own = request.traits
        differing = self._differing.get((request.kind, own))
        if differing is None:
            if len(self._differing) >= REMEMBERED:
                self._differing.clear()
            counts = [sum(a != b for a, b in zip(own, other, strict=True)) for other in traits]
            differing = self._differing[request.kind, own] = np.array(counts)
        squares = ((sizes - wanted) ** 2).sum(axis=1)
        distances: NDArray[np.float64] = np.sqrt(squares + differing[kinds] * TRAIT_DISTANCE**2)
        return distances

    def _places(self, kind: str) -> tuple[Any, Any, list[tuple[str, ...]]]:
        """Logarithms of the sizes of a family's rows, and for each the place of its traits in a list of all."""
        placed = self._placed.get(kind)
        if placed is None:
            import numpy as np

            requests = [row.request for row in self._by_kind.get(kind, [])]
            traits = list(dict.fromkeys(request.traits for request in requests))
            at = {each: place for place, each in enumerate(traits)}
            sizes = np.log2(np.maximum(np.array([request.sizes for request in requests], float), 0.5))
            placed = self._placed[kind] = sizes, np.array([at[request.traits] for request in requests]), traits
        return placed

    def estimate(self, near: Near, instance: str, model_seconds: float, model: RowModel) -> tuple[float, Source]:
        """Seconds of an instance on a request that has ``near`` it, and where they come from.

        A row for this very problem decides: by its time where it was timed on this device, else by how much the model is off there for this
        instance. Otherwise the model is corrected, in logarithms, by its errors in the nearest rows: the error that all instances share
        there, and the additional error of this one. The farther these rows are, the less of the latter is believed. ``model`` gives the
        model's seconds for a row."""
        if near and near[0][0] == 0 and instance in near[0][1].times:
            if not self.borrowed:
                return near[0][1].times[instance] * 1e-6, "measured"
            errors, _ = self._errors(near[0][1], model)
            if instance in errors:
                return model_seconds * math.exp(errors[instance]), "interpolated"
        if near.common is None:
            near.common = self._common(near, model)
        common, own = near.common, _Mean()
        for distance, row in near.with_instance(instance):
            errors, middle = self._errors(row, model)
            if instance in errors:
                own.add(1 / (CLOSE + distance * distance), errors[instance] - middle)
            if own.count == NEIGHBOURS:
                break
        if not common.count:
            return model_seconds, "model"
        believed = own.weight / (own.weight + DOUBT)
        source: Source = "interpolated" if own.count else "model"
        return model_seconds * math.exp(common.value + believed * own.value), source

    def _common(self, near: Near, model: RowModel) -> _Mean:
        """The error that all instances share in the nearest rows."""
        common = _Mean()
        for distance, row in near:
            errors, middle = self._errors(row, model)
            if errors:
                common.add(1 / (CLOSE + distance * distance), middle)
            if common.count == NEIGHBOURS:
                break
        return common

    def neighbours(self, near: Sequence[tuple[float, Row]], model: RowModel) -> list[Neighbour]:
        """Statements of the nearest rows about a request that has ``near`` it, nearest first."""
        neighbouring: list[Neighbour] = []
        for distance, row in near:
            errors, median_error = self._errors(row, model)
            if errors:
                neighbouring.append(Neighbour(1 / (CLOSE + distance * distance), errors, median_error))
            if len(neighbouring) == TELLING:
                break
        return neighbouring

    def _errors(self, row: Row, model: RowModel) -> tuple[dict[str, float], float]:
        """Logarithms of measured over modelled time, by instance, and their median."""
        errors = self._kept.get(row.problem + row.kind)
        if errors is None:
            known: dict[str, float] = {}
            for name, measured in row.times.items():
                # A current table has the model's times for all instances that can do it.
                stored = row.models.get(name)
                seconds = (None if stored is None else stored * 1e-6) if self.current else model(row, name)
                if seconds is not None and math.isfinite(seconds):
                    known[name] = math.log(measured * 1e-6 / seconds)
            errors = self._kept[row.problem + row.kind] = known, median(known.values()) if known else 0.0
        return errors

    @cached_property
    def _kept(self) -> dict[str, tuple[dict[str, float], float]]:
        return {}

    @cached_property
    def current(self) -> bool:
        """True if the times that the rows have from the model are those of today's."""
        return self.origin.get("model") == PARAMETERS.digest

    @cached_property
    def names(self) -> frozenset[str]:
        """Instances that were timed on some problem."""
        return frozenset(name for row in self.rows for name in row.times)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parts of the table that choices read."""
        rows = (f"{row.kind}:{row.problem} {sorted(row.times.items())} {json.dumps(row.points, sort_keys=True)}" for row in self.rows)
        return cache_key(self.device, str(self.borrowed), str(self.origin.get("model")), *rows)

    @cached_property
    def _differing(self) -> dict[tuple[str, tuple[str, ...]], NDArray[np.int_]]:
        """Numbers of traits in which requests of a family, by their traits, differ from each of ``_places``."""
        return {}

    @cached_property
    def _placed(self) -> dict[str, tuple[Any, Any, list[tuple[str, ...]]]]:
        return {}

    @cached_property
    def _by_kind(self) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(row.kind, []).append(row)
        return rows

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "device": self.device,
            **self.origin,
            "problems": [
                {
                    "kind": row.kind,
                    "problem": row.problem,
                    "peer": row.peer,
                    "times": dict(sorted(row.times.items(), key=lambda item: item[1])),
                    "models": {name: row.models[name] for name in sorted(row.models)},
                }
                | ({"points": {name: dict(row.points[name]) for name in sorted(row.points)}} if row.points else {})
                for row in self.rows
            ],
        }


def request_distance(one: Request, other: Request) -> float:
    """Distance of two requests: Euclidean over the logarithms, to base 2, of the extents; each other trait counts too."""
    squares = sum((math.log2(max(a, 0.5)) - math.log2(max(b, 0.5))) ** 2 for a, b in zip(one.sizes, other.sizes, strict=True))
    differing = sum(a != b for a, b in zip(one.traits, other.traits, strict=True))
    return math.sqrt(squares + differing * TRAIT_DISTANCE**2)


def read_table(path: Path, *, check_problems: bool = True) -> Table:
    """The table in a file; without ``check_problems`` its problems are read when they are asked for, family by family. Raises
    ``SpecError``."""
    try:
        data: Any = json.loads(read_plain(path, MAX_BYTES))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: is no JSON: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise SpecError(f"{path}: is no table of tuned instances of schema_version {SCHEMA_VERSION}")
    try:
        rows = tuple(
            Row(
                str(row["problem"]),
                str(row["kind"]),
                _numbers(row["times"]),
                _numbers(row.get("models", {})),
                None if row.get("peer") is None else _numbers({"peer": row["peer"]})["peer"],
                {str(name): dict(spec) for name, spec in row.get("points", {}).items()},
            )
            for row in data["problems"]
        )
        origin = {name: value for name, value in data.items() if name not in ("schema_version", "device", "problems")}
        table = Table(str(data["device"]), rows, origin)
        for row in rows if check_problems else ():
            row.request, row.fastest_points  # noqa: B018  a problem or a spec that cannot be read shows here
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(f"{path}: is no table of tuned instances: {type(error).__name__} at {error}") from None
    return table


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    numbers = {str(name): float(value) for name, value in values.items()}
    if any(not 0 < value < math.inf for value in numbers.values()):
        raise ValueError("a time that is not positive and finite")
    return numbers


def write_table(table: Table, path: Path) -> bool:
    """Writes the table, atomically; whether the file changed."""
    return write_atomically(path, json.dumps(table.to_json(), indent=1) + "\n")


def file_name(device: str) -> str:
    """The name of a device's table."""
    return f"{device.lower().replace(' ', '_')}.json"


def table_paths(device: str) -> list[Path]:
    """Paths of a device's table, the user's own first."""
    from platformdirs import user_data_path

    paths = [user_data_path("gemmgen") / "tuned" / file_name(device)]
    with contextlib.suppress(FileNotFoundError):
        paths.append(resource_directory("generated") / "tuned" / file_name(device))
    return paths


def default_path(device: str) -> Path:
    """Path that a device's table is written to: into the library of a checkout, else among the user's data."""
    users, *_ = table_paths(device)
    library = resource_directory("specs").parent
    return users if library.name == "_resources" else library / "generated" / "tuned" / file_name(device)


def table_for(device: Device) -> Table | None:
    """The table to choose by on a device: its own, or that of another of its architecture, whose times say where the model errs; None
    if there is neither. Raises ``SpecError`` for one that cannot be read."""
    loaded = load_table(device.name)
    if loaded is not None:
        return loaded
    kin = (load_table(other.name) for other in DEVICES.values() if other.architecture == device.architecture)
    table = next((table for table in kin if table is not None), None)
    return None if table is None else replace(table, borrowed=True)


@lru_cache(maxsize=16)
def load_table(device: str) -> Table | None:
    """The device's table; None if there is none. Raises ``SpecError`` for one that cannot be read."""
    users, *_ = paths = table_paths(device)
    for path in paths:
        if path.is_file():
            return read_table(path, check_problems=path == users)  # the library's own are checked when they are made
    return None
