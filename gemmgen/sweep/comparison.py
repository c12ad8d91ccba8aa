"""Two sets of results compared point by point: before and after a change, or one device beside another."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gemmgen.sweep.encoding import plain
from gemmgen.sweep.records import PointResult, Status

METRICS = ("median_us", "predicted_us", "registers")
"""Measures by which points are compared, smaller is better: the first of these that both sets have."""

SAME = 0.005
"""Ratios that differ from 1 by less say nothing."""


@dataclass(frozen=True)
class Pair:
    """The results of one point in both sets."""

    before: PointResult
    after: PointResult

    def values(self, metric: str) -> tuple[float, float] | None:
        """The metric in both; None if one of them lacks it, or is not correct."""
        metrics = [one.metrics.get(metric, math.nan) for one in (self.before, self.after) if one.status is Status.CORRECT]
        return (metrics[0], metrics[1]) if len(metrics) == 2 and all(math.isfinite(value) and value > 0 for value in metrics) else None


@dataclass(frozen=True)
class Comparison:
    """Two sets of results. A point is the same in both if its spec, problem and architecture are; the architecture does not count
    where each set has a single one."""

    pairs: tuple[Pair, ...]
    only_before: int
    only_after: int

    @cached_property
    def metric(self) -> str:
        """Measure that is compared; "" if there is nothing."""
        return next((name for name in METRICS if any(pair.values(name) for pair in self.pairs)), "")

    @cached_property
    def measured(self) -> tuple[tuple[Pair, float], ...]:
        """The pairs that have the metric, and how many times smaller it is after; most improved first."""
        ratios = [(pair, values[0] / values[1]) for pair in self.pairs if (values := pair.values(self.metric))]
        return tuple(sorted(ratios, key=lambda item: (-item[1], item[0].after.digest)))

    @cached_property
    def mean(self) -> float | None:
        """Geometric mean of those ratios."""
        if not self.measured:
            return None
        return math.exp(math.fsum(math.log(ratio) for _, ratio in self.measured) / len(self.measured))

    @cached_property
    def changed(self) -> tuple[Pair, ...]:
        """The pairs that end in another status; those that are not correct any more first."""
        pairs = [pair for pair in self.pairs if pair.before.status is not pair.after.status]
        return tuple(sorted(pairs, key=lambda pair: pair.after.status is Status.CORRECT))

    def to_json(self) -> dict[str, Any]:
        """The figures, and for each pair that has the metric the values of it."""
        return {
            "metric": self.metric,
            "geometric_mean": self.mean,
            "in_both": len(self.pairs),
            "only_before": self.only_before,
            "only_after": self.only_after,
            "changed": [
                {"digest": pair.after.digest, "before": str(pair.before.status), "after": str(pair.after.status)} for pair in self.changed
            ],
            "pairs": [
                {
                    "digest": pair.after.digest,
                    "instance": pair.after.instance,
                    "problem": pair.after.problem,
                    "before": pair.before.metrics[self.metric],
                    "after": pair.after.metrics[self.metric],
                    "ratio": ratio,
                }
                for pair, ratio in self.measured
            ],
        }


def compared(before: Iterable[PointResult], after: Iterable[PointResult]) -> Comparison:
    """The comparison of two sets of results; of a point that is in a set more than once, the latest counts."""
    old, new = list(before), list(after)
    with_architecture = any(len({one.architecture for one in results}) > 1 for results in (old, new))
    olds, news = (_by_point(results, with_architecture) for results in (old, new))
    pairs = tuple(Pair(olds[key], result) for key, result in news.items() if key in olds)
    return Comparison(pairs, len(olds) - len(pairs), len(news) - len(pairs))


def _by_point(results: Sequence[PointResult], with_architecture: bool) -> dict[Any, PointResult]:
    return {
        (
            json.dumps(plain(one.spec), sort_keys=True),
            tuple(one.problem.items()),
            one.architecture if with_architecture else "",
        ): one
        for one in sorted(results, key=lambda one: one.date)
    }
