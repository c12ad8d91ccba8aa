"""Axes that the model of time does not distinguish: points that differ only there have one prediction, which ranks none of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gemmgen.sweep.encoding import plain
from gemmgen.sweep.records import PointResult

PREDICTED = "predicted_us"
"""The metric that the model gives."""


def unseen_axes(results: Sequence[PointResult]) -> tuple[str, ...]:
    """Field paths along which predictions never change while everything else stays as it is, of those that can be compared so."""
    predicted = [result for result in results if PREDICTED in result.metrics]
    return tuple(path for path in dict.fromkeys(path for one in predicted for path in one.axes) if _is_unseen(path, predicted))


def _is_unseen(path: str, predicted: Sequence[PointResult]) -> bool:
    """True if there are points that differ in this axis alone, and all such points have one prediction."""
    seen: dict[str, tuple[set[str], set[float]]] = {}
    for result in predicted:
        if path in result.axes:
            others = {name: value for name, value in result.axes.items() if name != path}
            key = json.dumps([result.kind, result.architecture, result.problem, plain(others)], sort_keys=True)
            values, times = seen.setdefault(key, (set(), set()))
            values.add(json.dumps(plain(result.axes[path]), sort_keys=True))
            times.add(round(result.metrics[PREDICTED], 9))
    compared = [times for values, times in seen.values() if len(values) > 1]
    return bool(compared) and all(len(times) == 1 for times in compared)
