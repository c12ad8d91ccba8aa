"""Output at the end of a sweep: its points by status and reason, and the best of them on each problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.output import Column, count, counted, print_table, rate, styled
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.sweep.records import PointResult

BEST = 3
"""Points that are shown for each problem."""

_FAILED = dict.fromkeys(("invalid", "timeout", "runtime", "compile"), "red")
_STYLES = {"correct": "green", "constraints": "dim", **_FAILED, "correctness": "bold red"}


def by_reason(results: Sequence[PointResult]) -> list[dict[str, Any]]:
    """Number of points that ended in each status for each reason, with an example; right ones first, then the commonest."""
    counts: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], str] = {}
    for result in results:
        key = (str(result.status), result.reason_code, str(result.stage))
        counts[key] += 1
        examples.setdefault(key, result.reason.split("\n", 1)[0])
    ordered = sorted(counts.items(), key=lambda item: (item[0][0] != "correct", item[0][0] == "constraints", -item[1], item[0]))
    return [
        {"status": status, "stage": stage, "reason_code": code, "points": number, "example": examples[status, code, stage]}
        for (status, code, stage), number in ordered
    ]


def best_points(results: Sequence[PointResult], most: int = BEST, metric: str = "median_us") -> list[PointResult]:
    """The fastest right points of each problem and device, best first; problems in the order of their sizes."""
    groups: dict[Any, list[PointResult]] = {}
    for result in results:
        if result.status == "correct" and metric in result.metrics:
            groups.setdefault((result.kind, result.device, *result.problem.items()), []).append(result)

    def speed(one: PointResult) -> tuple[float, str]:
        return one.metrics[metric], one.instance

    ordered = sorted(groups.items(), key=lambda item: (item[0][0], str(item[0][1]), [size for _, size in item[0][2:]]))
    return [result for _, group in ordered for result in sorted(group, key=speed)[:most]]


def print_counts(results: Sequence[PointResult]) -> None:
    """The table of statuses and reasons."""
    rows: list[list[str | Text]] = [
        [
            styled(line["status"], _STYLES[line["status"]]),
            line["stage"],
            count(line["points"]),
            _shortened(line["reason_code"]),
            _shortened(line["example"]),
        ]
        for line in by_reason(results)
    ]
    print_table([Column("status"), Column("at"), Column("points", "right"), Column("reason"), Column("for example", folds=True)], rows)


def print_best(results: Sequence[PointResult]) -> None:
    """The fastest points of each problem; if none was timed, those that the model expects to be."""
    best = best_points(results)
    if not best:
        _print_predicted(results)
        return
    rows: list[list[str | Text]] = []
    for result in best:
        metrics = result.metrics
        peer = metrics.get("peer_us")
        rows.append(
            [
                ",".join(map(str, result.problem.values())),
                _shortened(result.instance),
                f"{metrics['median_us']:.2f}",
                rate(metrics.get("operations_per_second", 0.0), "OP/s"),
                f"{peer / metrics['median_us']:.2f}x" if peer else "",
                f"{metrics['registers']:.0f}" if "registers" in metrics else "",
            ]
        )
    click.echo("\nThe fastest:\n")
    columns = [Column("size"), Column("instance", folds=True), Column("µs", "right"), Column("rate", "right")]
    print_table([*columns, Column("peer", "right"), Column("registers", "right")], rows)


def _print_predicted(results: Sequence[PointResult]) -> None:
    from gemmgen.sweep.model_view import PREDICTED, RESOLUTION, unseen_axes

    predicted = best_points(results, metric=PREDICTED)
    rows: list[list[str | Text]] = [
        [
            _shortened(result.instance),
            f"{result.metrics['predicted_us']:.2f}",
            f"{registers:.0f}" if (registers := result.metrics.get("registers")) is not None else "",
        ]
        for result in predicted
    ]
    if rows:
        click.echo(
            "\nNo point was timed. The model predicts these to be the fastest, on the problems of the sweep or else on a typical one:\n"
        )
        columns = [Column("instance", folds=True), Column("µs predicted", "right"), Column("registers", "right")]
        print_table(columns, rows)
        unseen = unseen_axes(results)
        if unseen:
            reason = f"its predictions for points that differ only there are within {RESOLUTION:.0%}. Measure these points to rank them."
            click.echo(printable(f"\nThe model does not distinguish the values of {', '.join(unseen)}: {reason}"))


def print_comparison(name: str, before: Sequence[PointResult], results: Sequence[PointResult]) -> None:
    """Changes since other results: in words, and the points that changed most either way."""
    from gemmgen.sweep.comparison import SAME, compared
    from gemmgen.sweep.report.page import comparison_words

    comparison = compared(before, results)
    click.echo(printable(f"\nBeside {name}: {comparison_words(comparison)}"))
    moved = [(pair, ratio) for pair, ratio in comparison.measured if abs(ratio - 1) >= SAME]
    few = moved[:BEST] + moved[BEST:][-BEST:]
    rows: list[list[str | Text]] = [
        [
            ",".join(map(str, pair.after.problem.values())),
            pair.after.instance,
            f"{pair.before.metrics[comparison.metric]:.4g}",
            f"{pair.after.metrics[comparison.metric]:.4g}",
            f"{ratio:.3f}x",
        ]
        for pair, ratio in few
    ]
    for pair in comparison.changed[:BEST]:
        problem = ",".join(map(str, pair.after.problem.values()))
        statuses = [styled(str(one.status), _STYLES[str(one.status)]) for one in (pair.before, pair.after)]
        rows.append([problem, pair.after.instance, *statuses, ""])
    if rows:
        click.echo()
        columns = [Column("size"), Column("instance", folds=True), Column("before", "right"), Column("now", "right")]
        print_table([*columns, Column("before / now", "right")], rows)


def totals(results: Sequence[PointResult]) -> str:
    """``120 points: 80 correct, 38 constraints, 2 runtime``."""
    counts = Counter(str(result.status) for result in results)
    ordered = [status for status in _STYLES if counts[status]]
    return f"{counted(len(results), 'point')}: {', '.join(f'{count(counts[status])} {status}' for status in ordered) or 'nothing ran'}"


def _shortened(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:156]} ..."
