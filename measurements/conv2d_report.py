"""Measured times of convolutions, for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from measurements.conv2d_contest import LayerResult, Timing


def _ratio(one: Timing | None, other: Timing) -> float | None:
    return None if one is None else one.median_us / other.median_us


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def summary_lines(results: Sequence[LayerResult]) -> list[str]:
    """One line a layer and batch, then the means."""
    lines = [
        f"{'n':>3} {'c,h,k,r,stride':<18} {'best candidate':<30} {'us':>8} {'TOP/s':>6} {'of floor':>8} "
        f"{'NHWC us':>8} {'ratio':>5} {'NCHW32':>7}"
    ]
    for result in results:
        best = result.best
        nhwc, old = _ratio(result.cudnn_nhwc, best), _ratio(result.cudnn_nchw32, best)
        nhwc_us = result.cudnn_nhwc.median_us if result.cudnn_nhwc else math.nan
        lines.append(
            f"{result.n:>3} {','.join(map(str, result.layer)):<18} {best.name:<30} {best.median_us:8.1f} {best.tops:6.0f} "
            f"{result.floor_us / best.median_us:7.0%} {result.bound[0]} {nhwc_us:7.1f} "
            f"{nhwc or math.nan:5.2f} {old or math.nan:6.1f}x"
        )
    for n in sorted({result.n for result in results}):
        ratios = [r for result in results if result.n == n and (r := _ratio(result.cudnn_nhwc, result.best))]
        old = [r for result in results if result.n == n and (r := _ratio(result.cudnn_nchw32, result.best))]
        wrong = [t.name for result in results if result.n == n for t in result.candidates if not t.agrees]
        lines.append(
            f"batch {n}: {_geometric_mean(ratios):.3f} of cuDNN NHWC (worst {min(ratios, default=math.nan):.2f}), "
            f"{_geometric_mean(old):.1f} x cuDNN NCHW32 (worst {min(old, default=math.nan):.1f}); wrong results: {wrong or 'none'}"
        )
    return lines


def markdown(report: Mapping[str, Any], results: Sequence[LayerResult]) -> str:
    """The report for people."""
    failures = sum(len(spec["failures"]) for spec in report["verification"]["specs"])
    cases = sum(spec["cases"] for spec in report["verification"]["specs"])
    lines = [
        "# int8 convolution beside cuDNN",
        "",
        f"{report['device']}, driver {report['driver']}, cuDNN {report['cudnn']}, {report['date']}. "
        f"SM clock {report['clocks']['sm_median']} MHz (median; {report['clocks']['sm_lowest']} to {report['clocks']['sm_highest']}).",
        f"Verified: {len(report['verification']['specs'])} specs, {cases} cases, {failures} failures.",
        "",
        "Device time of one launch from CUDA graphs, copies rotated beyond the L2, random data, contestants in turns. "
        "The floor is the larger of operations / 1287 TOP/s and bytes / 4.30 TB/s. Ratios above 1: faster than cuDNN.",
        "",
        "| n | c, h, k, r, stride | best | µs (p10-p90) | TOP/s | TB/s | of floor | cuDNN NHWC µs | ratio | cuDNN NCHW32 µs | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        best, nhwc, old = result.best, result.cudnn_nhwc, result.cudnn_nchw32
        lines.append(
            f"| {result.n} | {', '.join(map(str, result.layer))} | {best.name} "
            f"| {best.median_us:.1f} ({best.p10_us:.1f}-{best.p90_us:.1f}) | {best.tops:.0f} | {best.tbps:.2f} "
            f"| {result.floor_us / best.median_us:.0%} ({result.bound}) "
            f"| {f'{nhwc.median_us:.1f}' if nhwc else 'none'} | {f'{_ratio(nhwc, best):.2f}' if nhwc else ''} "
            f"| {f'{old.median_us:.0f}' if old else 'none'} | {f'{_ratio(old, best):.1f}' if old else ''} |"
        )
    lines += ["", *(f"- {line}" for line in summary_lines(results) if line.startswith("batch")), ""]
    return "\n".join([*lines, *_candidates_table(results)]) + "\n"


NEAR = 1.05
"""A candidate is near the fastest one if it takes at most this many times as long."""


def _candidates_table(results: Sequence[LayerResult]) -> list[str]:
    """One line a candidate: on how many layers it runs, is the fastest, and is near the fastest."""
    lines = [
        "## Candidates",
        "",
        "The two batches of a layer count as two problems. `conv2d.json` holds the time of each candidate on each problem.",
        "",
        "| candidate | problems it can run | fastest | at most 5% slower | time / fastest: mean | worst |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    factors: dict[str, list[float]] = {}
    for result in results:
        for timing in result.candidates:
            factors.setdefault(timing.name, []).append(timing.median_us / result.best.median_us)
    for name in sorted(factors, key=lambda name: (-sum(factor == 1 for factor in factors[name]), _geometric_mean(factors[name]))):
        found = factors[name]
        lines.append(
            f"| {name} | {len(found)} | {sum(factor == 1 for factor in found)} | {sum(factor <= NEAR for factor in found)} "
            f"| {_geometric_mean(found):.2f} | {max(found):.2f} |"
        )
    return lines
