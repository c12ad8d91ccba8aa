"""Contents of a report: results grouped by problem and device, the measure that they are compared by, and the dots to draw."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.hardware.target import ARCHITECTURES, DEVICES, Device
from gemmgen.kernels.family import Cost
from gemmgen.perf.analysis.roofline import Roofline, roofline
from gemmgen.sweep.encoding import encodable, plain
from gemmgen.sweep.records import PointResult, Status

MAX_DOTS = 5000
"""Points of a whole report that are drawn; of more, a sample."""
MIN_DOTS = 120
"""Points of one problem that are drawn in any case."""
MAX_VALUES = 24
"""Maximum number of an axis's values that get a separate place."""
ABSENT = "(none)"


@dataclass(frozen=True)
class Measure:
    """Measure of comparison: a metric, and its form in words."""

    metric: str
    unit: str
    larger_is_better: bool

    @property
    def title(self) -> str:
        """Name on a page."""
        if self.unit.endswith("/s"):
            return "rate"
        return "time, µs" if self.metric == "median_us" else self.metric.replace("_us", ", µs").replace("_", " ")

    def value(self, result: PointResult) -> float | None:
        """The metric of a correct result; None if there is none that can be drawn."""
        value = result.metrics.get(self.metric) if result.status is Status.CORRECT else None
        return value if value is not None and math.isfinite(value) and value >= 0 else None

    def better(self, one: float, other: float) -> bool:
        return one > other if self.larger_is_better else one < other

    def rank(self, value: float) -> float:
        """A key that sorts the best first."""
        return -value if self.larger_is_better else value

    def text(self, value: float) -> str:
        """A value for people."""
        if not self.unit.endswith("/s"):
            return f"{four_digits(value)} {self.unit}".strip()
        for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if value >= factor:
                return f"{_digits(value / factor)} {prefix}{self.unit}"
        return f"{_digits(value)} {self.unit}"


@dataclass(frozen=True)
class Shown:
    """A result that has a value, and its number on the page."""

    number: int
    result: PointResult
    value: float


@dataclass(frozen=True)
class Axis:
    """A field that differs between the points, and the values that it takes, in order."""

    path: str
    name: str
    """The end of the path, as much of it as tells it from the other axes."""
    values: tuple[str, ...]
    numbers: tuple[float, ...] | None
    """The values, if all are numbers."""


@dataclass(frozen=True)
class Group:
    """The results of one problem on one device: those that can be compared."""

    kind: str
    sizes: dict[str, int]
    architecture: str
    device: str
    results: tuple[PointResult, ...]
    """Results in the order of evaluation."""
    measure: Measure
    shown: tuple[Shown, ...]
    """Points with a value, in the order of evaluation."""
    axes: tuple[Axis, ...]
    roofs: Roofline | None

    @property
    def title(self) -> str:
        """Label that tells it from other groups."""
        sizes = " × ".join(str(size) for size in self.sizes.values())
        return " · ".join(part for part in (self.kind, sizes, self.architecture, self.device) if part)

    @cached_property
    def ranked(self) -> tuple[Shown, ...]:
        """Best first."""
        return tuple(sorted(self.shown, key=lambda one: (self.measure.rank(one.value), one.result.digest)))

    @cached_property
    def peer_us(self) -> float | None:
        """The peer's time beside the best point; None if no peer was timed."""
        times = (one.result.metrics.get("peer_us") for one in self.ranked)
        return next((time for time in times if time is not None and math.isfinite(time) and time > 0), None)

    def fraction(self, result: PointResult) -> float | None:
        """Share of the binding roof that a timed result reaches."""
        time = result.metrics.get("median_us")
        if self.roofs is None or not time or not math.isfinite(time) or self.roofs.least_seconds <= 0:
            return None
        return self.roofs.fraction(time * 1e-6)

    def best_by_value(self, axis: Axis) -> dict[str, Shown]:
        """The best point for each value of an axis."""
        best: dict[str, Shown] = {}
        for one in self.ranked:
            best.setdefault(value_text(one.result, axis.path), one)
        return best

    def drawn(self, limit: int) -> tuple[Shown, ...]:
        """At most about ``limit`` of the points, as evaluated: those that stand out, and an even sample of the others that depends
        on nothing but their digests."""
        if len(self.shown) <= limit:
            return self.shown
        numbers = {one.number for one in self.ranked[:20]}
        for axis in self.axes:
            numbers |= {one.number for one in list(self.best_by_value(axis).values())[:MAX_VALUES]}
        rest = sorted((one for one in self.shown if one.number not in numbers), key=lambda one: one.result.digest)
        places = max(limit - len(numbers), 0)
        numbers |= {rest[place * len(rest) // places].number for place in range(places)}
        return tuple(one for one in self.shown if one.number in numbers)


def grouped(results: Iterable[PointResult]) -> list[Group]:
    """The groups of ``results``, which are in the order of evaluation, as they came up; each result is in one of them."""
    members: dict[tuple[Any, ...], list[PointResult]] = {}
    evaluated = list(results)
    timed = {(result.kind, result.architecture): result.device for result in evaluated if result.device and "median_us" in result.metrics}
    for result in evaluated:
        # Points rejected before they ran belong to those that did run.
        device = result.device or timed.get((result.kind, result.architecture), "")
        members.setdefault((result.kind, tuple(result.problem.items()), result.architecture, device), []).append(result)
    groups: list[Group] = []
    first = 0
    for (kind, sizes, architecture, device), group in members.items():
        measure, roofs = _measure(group, architecture, device)
        values = [(result, measure.value(result)) for result in group]
        numbered = [(result, value) for result, value in values if value is not None]
        shown = tuple(Shown(first + place, result, value) for place, (result, value) in enumerate(numbered))
        first += len(shown)
        groups.append(
            Group(kind, dict(sizes), architecture, device, tuple(group), measure, shown, _axes(one.result for one in shown), roofs)
        )
    return groups


def axis_value(result: PointResult, path: str) -> Any:
    """The value of an axis: the point's, else the value that its spec inherits from the base or a default; None if it has neither."""
    if path in result.axes:
        return result.axes[path]
    value: Any = result.spec
    for part in path.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict):
            value = value.get(part)
        else:
            return None
    return value


def value_text(result: PointResult, path: str) -> str:
    """The value of an axis in words."""
    value = axis_value(result, path)
    return ABSENT if value is None and path not in result.axes else plain_text(value)


def plain_text(value: object) -> str:
    """A value from a spec on one line."""
    if isinstance(value, str):
        return " ".join(encodable(value).split()) or "(empty)"
    if isinstance(value, dict) and all(isinstance(item, int | float | str) for item in value.values()):
        return "×".join(str(item) for item in value.values()) if len(value) > 1 else plain_text(next(iter(value.values()), ""))
    return json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False)


def known_device(name: str, architecture: str) -> Device | None:
    """The device of that name whose peaks are known; None if there is none, or a name alone does not say which chip it is."""
    words = set(re.split(r"[^A-Za-z0-9]+", name.upper()))
    known = ARCHITECTURES.get(architecture)
    if known is None or words & {"PCIE", "NVL", "MIG"}:  # other chips than their namesakes, or parts of one
        return None
    for device in DEVICES.values():
        if set(device.name.upper().split()) <= words and device.architecture.runs_cubins_of(known):
            return device
    return None


def reasons(results: Iterable[PointResult]) -> list[tuple[Status, str, int, str]]:
    """Reasons for points that were not correct: status, code, how many, and the first one's words; most frequent first."""
    counts: Counter[tuple[Status, str]] = Counter()
    examples: dict[tuple[Status, str], str] = {}
    for result in results:
        if result.status is not Status.CORRECT:
            key = (result.status, result.reason_code or str(result.status))
            counts[key] += 1
            examples.setdefault(key, result.reason)
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(status, code, count, examples[status, code]) for (status, code), count in most]


def failures(results: Iterable[PointResult]) -> list[tuple[Status, str, list[PointResult]]]:
    """Points that were accepted and did not come out right, by status and code of the reason; most frequent first."""
    members: dict[tuple[Status, str], list[PointResult]] = {}
    for result in results:
        if result.failed:
            members.setdefault((result.status, result.reason_code or str(result.status)), []).append(result)
    return [(status, code, group) for (status, code), group in sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))]


def jitter(digest: str) -> float:
    """A number from -1 to 1 that depends on ``digest`` only."""
    number = int.from_bytes(hashlib.sha256(encodable(digest).encode()).digest()[:4], "big")
    return number / 2**31 - 1


def _measure(results: Sequence[PointResult], architecture: str, device: str) -> tuple[Measure, Roofline | None]:
    """A rate if points were timed, else the model's prediction, the compiler's registers or spills, or the error, whichever is there."""
    timed = [result for result in results if _positive(result, "median_us")]
    if not timed:
        for metric, unit in (
            ("predicted_us", "µs predicted"),
            ("registers", "registers"),
            ("spill_bytes", "bytes spilled"),
            ("worst_ratio", "of the error bound"),
        ):
            if any(metric in result.metrics for result in results if result.status is Status.CORRECT):
                return Measure(metric, unit, larger_is_better=False), None
        return Measure("registers", "registers", larger_is_better=False), None
    cost = _cost(timed[0], architecture)
    chip = known_device(device, architecture)
    roofs = roofline(cost, chip) if cost and chip else None
    operations = all(_positive(result, "operations_per_second") for result in timed)
    moved = all(_positive(result, "bytes_per_second") for result in timed)
    bound_by_memory = roofs.binding == "memory" if roofs else bool(cost and cost.intensity < 10)
    if operations and not (bound_by_memory and moved):
        unit = "FLOP/s" if cost and cost.unit.startswith("fp") else "OP/s"
        return Measure("operations_per_second", unit, larger_is_better=True), roofs
    if moved:
        return Measure("bytes_per_second", "B/s", larger_is_better=True), roofs
    return Measure("median_us", "µs", larger_is_better=False), roofs


def _positive(result: PointResult, metric: str) -> bool:
    value = result.metrics.get(metric)
    return result.status is Status.CORRECT and value is not None and math.isfinite(value) and value > 0


def _cost(result: PointResult, architecture: str) -> Cost | None:
    """Least cost of the problem, by the family; None if this gemmgen cannot plan the spec any more."""
    from gemmgen.kernels import family_of
    from gemmgen.kernels.planning import plan
    from gemmgen.perf.cost_model import cost_model_of

    try:
        planned = plan(result.spec, architecture or None)
        problem = family_of(planned.spec).problem(planned, list(result.problem.values()))
        return cost_model_of(planned.spec.kind).cost(planned, problem)
    except (GemmgenError, ArithmeticError, LookupError, TypeError, ValueError):
        return None


def _axes(results: Iterable[PointResult]) -> tuple[Axis, ...]:
    """The fields that take more than one value among ``results``."""
    rows = list(results)
    paths = list(dict.fromkeys(path for row in rows for path in row.axes))
    names = short_names(paths)
    axes = []
    for path in paths:
        values = {value_text(row, path): axis_value(row, path) for row in rows}
        if len(values) < 2:
            continue
        numeric = {text: value for text, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)}
        others = sorted(text for text in values if text not in numeric)
        texts = [*sorted(numeric, key=lambda text: (numeric[text], text)), *others]
        numbers = None if others else tuple(float(numeric[text]) for text in texts)
        axes.append(Axis(path, names[path], tuple(texts), numbers))
    return tuple(axes)


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """For each dotted path the shortest end of at least two letters that no other path has."""
    names = {}
    for path in paths:
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[-count:])
            alike = sum(other == name or other.endswith(f".{name}") for other in paths)
            if alike == 1 and (len(name) > 1 or count == len(parts)):
                break
        names[path] = name
    return names


def four_digits(value: float) -> str:
    """A number to four digits, without an exponent where it is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
