"""Objective of a search: a metric of the results, made small or large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gemmgen.sweep.records import PointResult, SweepError

_LARGER_IS_BETTER = ("_per_second", "blocks_per_sm")
_RATIOS = ("_us", "_per_second")


@dataclass(frozen=True)
class Objective:
    """A metric, and whether it is to be small or large."""

    metric: str
    direction: Literal["minimise", "maximise"] = "minimise"

    @property
    def sign(self) -> int:
        """Sign by which a value is multiplied to make smaller better."""
        return 1 if self.direction == "minimise" else -1

    @property
    def is_ratio(self) -> bool:
        """True if values are times or rates, of which ratios tell which is better, and how much."""
        return self.metric.endswith(_RATIOS)

    def value(self, result: PointResult) -> float | None:
        """The metric of one result; None if it has none, or one that cannot be compared."""
        value = result.metrics.get(self.metric)
        if value is None or not math.isfinite(value) or (self.is_ratio and value <= 0):
            return None
        return float(value)

    def __str__(self) -> str:
        return f"{'least' if self.direction == 'minimise' else 'greatest'} {self.metric}"


def parse_objective(text: str) -> Objective:
    """``median_us``, ``min:registers`` or ``max:operations_per_second``; without a direction, the one that is usually wanted.

    Raises ``SweepError``.
    """
    direction, colon, metric = text.rpartition(":")
    metric = metric.strip()
    directions: dict[str, Literal["minimise", "maximise"]] = {"min": "minimise", "max": "maximise"}
    if not metric.isidentifier() or (colon and direction.strip() not in directions):
        raise SweepError(f"--objective {text!r}: expected a metric, such as median_us, min:registers or max:blocks_per_sm")
    if colon:
        return Objective(metric, directions[direction.strip()])
    return Objective(metric, "maximise" if metric.endswith(_LARGER_IS_BETTER) else "minimise")


def combined(goal: Objective, values: Sequence[float]) -> float:
    """One number for several problems: the geometric mean of times and rates, the mean of anything else."""
    if goal.is_ratio:
        return math.exp(math.fsum(math.log(value) for value in values) / len(values))
    return math.fsum(values) / len(values)


def worse_by(goal: Objective, value: float, best: float) -> float:
    """Ratio by which a time or a rate is worse than the best."""
    return value / best if goal.direction == "minimise" else best / value
