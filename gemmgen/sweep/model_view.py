"""Axes that the model of time does not distinguish: its predictions for points that differ only there are nearly equal."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gemmgen.sweep.encoding import plain
from gemmgen.sweep.records import PointResult

PREDICTED = "predicted_us"
"""The metric that the model gives."""
RESOLUTION = 0.01
"""Smaller relative differences of predictions say nothing: the model errs by more than that."""


def unseen_axes(results: Sequence[PointResult]) -> tuple[str, ...]:
    """Field paths along which predictions change by less than ``RESOLUTION`` while everything else stays as it is, of those that can be
    compared so."""
    predicted = [result for result in results if PREDICTED in result.metrics]
    return tuple(path for path in dict.fromkeys(path for one in predicted for path in one.axes) if _is_unseen(path, predicted))


def _is_unseen(path: str, predicted: Sequence[PointResult]) -> bool:
    """True if there are points that differ in this axis alone, and predictions of all such points are nearly the same."""
    seen: dict[str, tuple[set[str], set[float]]] = {}
    for result in predicted:
        if path in result.axes:
            others = {name: value for name, value in result.axes.items() if name != path}
            key = json.dumps([result.kind, result.architecture, result.problem, plain(others)], sort_keys=True)
            values, times = seen.setdefault(key, (set(), set()))
            values.add(json.dumps(plain(result.axes[path]), sort_keys=True))
            times.add(result.metrics[PREDICTED])
    compared = [times for values, times in seen.values() if len(values) > 1]
    return bool(compared) and all(max(times) < min(times) * (1 + RESOLUTION) + 1e-9 for times in compared)
