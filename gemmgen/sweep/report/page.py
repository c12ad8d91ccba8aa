"""The page: outcomes of the points, effect of each axis, distance of the best from the roof, changes since another sweep.

It needs no network and no other file, escapes all text, and stays a few megabytes at most however many points there are. Its charts
are drawn by Vega-Lite, of which it holds a copy.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import GemmgenError
from gemmgen.core.version import __version__
from gemmgen.sweep.comparison import SAME, Comparison, Pair, compared
from gemmgen.sweep.encoding import encodable, plain
from gemmgen.sweep.records import FAILURES, PointResult, Stage, Status
from gemmgen.sweep.report.charts import (
    METRICS,
    Chart,
    axis_charts,
    choice_chart,
    choices,
    comparison_chart,
    filters,
    points,
    progress_chart,
    roofline_charts,
)
from gemmgen.sweep.report.data import (
    MAX_DOTS,
    MIN_DOTS,
    Group,
    Measure,
    Shown,
    axis_value,
    failures,
    four_digits,
    grouped,
    reasons,
    value_text,
)

if TYPE_CHECKING:
    import jinja2

BEST = 20
"""Points of a problem that are listed."""
BEST_OF_MANY = 5
"""Number of best points that are shown where there are many problems."""
MANY_PROBLEMS = 8
MAX_PROBLEMS = 40
"""Problems that are shown with charts."""
MAX_REASONS = 25
MAX_FAILURES = 50
"""Points of one reason that are listed."""
MAX_CHANGES = 8
"""Rows of each table of a comparison."""
MAX_TEXT = 400
"""Characters of a reason, or of a value of an axis."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and its sort key."""

    text: str
    key: str
    number: bool = True


@dataclass(frozen=True)
class Row:
    """A point in the table of the best."""

    cells: tuple[Cell, ...]
    yaml: str
    instance: str
    number: int


@dataclass(frozen=True)
class Beside:
    """The comparison with another set of results."""

    name: str
    told: str
    chart: Chart | None
    tables: list[tuple[str, list[tuple[str, ...]]]]


@dataclass(frozen=True)
class Section:
    """Report of one problem."""

    title: str
    best: str
    against_peer: str
    of_roof: str
    part: float
    """Length of its bar in the overview: its share of the roof or, where there is none, its speed beside the peer's; 0 to 1."""
    timed: bool
    compared: str
    """Figure that points are compared by, in words, where none was timed."""
    drawn: int
    points: int
    progress: Chart
    axes: list[Chart]
    choice: Chart | None
    """Two choices over each other; None if there is nothing to choose from."""
    choices: list[dict[str, Any]]
    filters: list[dict[str, Any]]
    columns: list[tuple[str, bool]]
    """Headings, and whether a column holds numbers."""
    rows: list[Row]
    alike: str
    """Values that are the same in all rows, and so in no column."""


def html_report(
    results: Sequence[PointResult], title: str = "", against: tuple[str, Sequence[PointResult]] | None = None, live: int = 0
) -> str:
    """The page. Points count as evaluated in the order of their dates, those of one second in the order given.

    ``title``: the sweeps' names if empty. ``against``: the name of other results, and these, that are compared with. ``live``: seconds
    after which a browser loads the page again; 0: it does not.
    """
    results = sorted(results, key=lambda result: result.date)
    groups = grouped(results)
    charted = sorted((group for group in groups if group.shown), key=lambda group: -len(group.shown))[:MAX_PROBLEMS]
    charted.sort(key=groups.index)
    limit = max(MIN_DOTS, MAX_DOTS // max(len(charted), 1))
    drawn = {place: group.drawn(limit) for place, group in enumerate(charted)}
    listed = BEST if len(charted) <= MANY_PROBLEMS else BEST_OF_MANY
    counts = Counter(result.status for result in results)
    why = reasons(results)
    titles = _titles(charted)
    sections = [_section(group, drawn[place], listed, titles[place]) for place, group in enumerate(charted)]
    roofs = roofline_charts(charted, drawn)
    beside = _beside(results, *against) if against else None
    wide = [*roofs, *([beside.chart] if beside and beside.chart else [])]
    page = _template().render(
        title=title or ", ".join(dict.fromkeys(result.sweep for result in results)) or "no points",
        version=__version__,
        facts=_facts(results),
        tiles=_tiles(results, charted),
        total=len(results),
        statuses=[(str(status), counts[status]) for status in Status],
        reasons=[(str(status), code, count, _cut(text), count / why[0][2]) for status, code, count, text in why[:MAX_REASONS]],
        other_reasons=why[MAX_REASONS:],
        failures=[
            (
                str(status),
                code,
                len(members),
                _cut(members[0].reason, 120),
                [(one.instance, _named_axes(one), _cut(one.reason)) for one in members[:MAX_FAILURES]],
            )
            for status, code, members in failures(results)
        ],
        comparison=beside,
        roofs=roofs,
        sections=sections,
        other_problems=sum(bool(group.shown) for group in groups) - len(charted),
        live=live,
        data=_script_json(
            {
                "live": bool(live),
                "charts": {chart.name: chart.spec for chart in wide},
                "groups": [_group_data(group, drawn[place], sections[place]) for place, group in enumerate(charted)],
            }
        ),
        css=_asset("page.css"),
        script=_asset("page.js"),
        vega=_asset("vega.js"),
    )
    return encodable(page).replace("\0", "\ufffd")


def _titles(groups: Sequence[Group]) -> list[str]:
    """Differences between the groups; of a single one, all there is."""
    parts = [(group.kind, " × ".join(str(size) for size in group.sizes.values()), group.architecture, group.device) for group in groups]
    differ = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    if not any(differ):
        differ = [True] * 4
    return [" · ".join(text for text, needed in zip(row, differ, strict=True) if text and needed) or "(none)" for row in parts]


def _section(group: Group, drawn: Sequence[Shown], listed: int, title: str) -> Section:
    best = group.ranked[0]
    time = best.result.metrics.get("median_us")
    best_text = group.measure.text(best.value)
    if time is not None and group.measure.metric != "median_us" and math.isfinite(time):
        best_text = f"{best_text} · {four_digits(time)} µs"
    rows = group.ranked[:listed]
    share = group.fraction(best.result)
    ratio = group.peer_us / time if group.peer_us and time else None
    columns, alike = [], []
    for place, (name, number, cell) in enumerate(_columns(group)):
        texts = {cell(one).text for one in rows}
        if place < 2 or len(texts) > 1 or len(rows) == 1:
            columns.append((name, number, cell))
        else:
            alike.append(f"{name} {texts.pop() or 'unknown'}")
    return Section(
        title=title,
        best=best_text,
        against_peer="" if ratio is None else f"{ratio:.2f}×",
        of_roof="" if share is None else f"{share:.0%}",
        part=min(max(share if share is not None else (ratio or 0) / 2, 0), 1),
        timed=time is not None,
        compared="the time that the model predicts" if group.measure.metric == "predicted_us" else group.measure.title,
        drawn=len(drawn),
        points=len(group.shown),
        progress=progress_chart(group),
        axes=axis_charts(group),
        choice=choice_chart(group) if len(choices(group)) > 1 else None,
        choices=choices(group),
        filters=filters(group),
        columns=[(name, number) for name, number, _ in columns],
        rows=[Row(tuple(cell(one) for _, _, cell in columns), spec_yaml(one.result.spec), one.result.instance, one.number) for one in rows],
        alike=", ".join(alike),
    )


_Column = tuple[str, bool, Callable[[Shown], Cell]]


def _columns(group: Group) -> list[_Column]:
    """Columns of a group's table: only those that some point has."""
    rank = {one.number: place for place, one in enumerate(group.ranked, start=1)}
    metrics = {name for one in group.shown for name in one.result.metrics}
    columns: list[_Column] = [
        ("#", True, lambda one: Cell(str(rank[one.number]), str(rank[one.number]))),
        (
            group.measure.unit.removesuffix("/s") if group.measure.unit == "µs" else _heading(group),
            True,
            lambda one: Cell(group.measure.text(one.value), repr(one.value)),
        ),
    ]
    if "median_us" in metrics and group.measure.metric != "median_us":
        columns.append(("µs", True, lambda one: _metric(one, "median_us")))
    if {"p10_us", "p90_us"} <= metrics:
        columns.append(("spread", True, _spread))
    if group.peer_us is not None:
        columns.append(("to peer", True, _to_peer))
    if group.roofs is not None:
        columns.append(("of roof", True, lambda one: _share(group.fraction(one.result))))
    for axis in group.axes:
        columns.append((axis.name, axis.numbers is not None, partial(_axis_cell, path=axis.path)))
    for name, heading in (
        ("registers", "registers"),
        ("spill_bytes", "spilled B"),
        ("shared_bytes", "shared B"),
        ("blocks_per_sm", "blocks/SM"),
        ("worst_ratio", "error/bound"),
    ):
        if name in metrics and name != group.measure.metric:
            columns.append((heading, True, partial(_metric, name=name)))
    return columns


def _heading(group: Group) -> str:
    return "rate" if group.measure.unit.endswith("/s") else group.measure.metric.replace("_", " ")


def _metric(one: Shown, name: str) -> Cell:
    value = one.result.metrics.get(name)
    return Cell("", "") if value is None or not math.isfinite(value) else Cell(four_digits(value), repr(float(value)))


def _spread(one: Shown) -> Cell:
    low, high = one.result.metrics.get("p10_us", math.nan), one.result.metrics.get("p90_us", math.nan)
    half = (high - low) / 2
    return Cell(f"±{half:,.2g}", repr(half)) if math.isfinite(half) else Cell("", "")


def _to_peer(one: Shown) -> Cell:
    peer, time = one.result.metrics.get("peer_us", math.nan), one.result.metrics.get("median_us", math.nan)
    return Cell(f"{peer / time:.2f}×", repr(peer / time)) if time > 0 and math.isfinite(peer / time) else Cell("", "")


def _share(fraction: float | None) -> Cell:
    return Cell("", "") if fraction is None else Cell(f"{fraction:.1%}", repr(fraction))


def _axis_cell(one: Shown, path: str) -> Cell:
    text = _cut(value_text(one.result, path), 80)
    value = axis_value(one.result, path)
    return Cell(text, repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else text)


def _facts(results: Sequence[PointResult]) -> list[tuple[str, str]]:
    """Common values of the points, in words."""
    facts = []
    for name in ("kind", "architecture", "device", "backend", "compiler"):
        values = sorted({getattr(result, name) for result in results} - {""})
        if values:
            facts.append((name, _cut(", ".join(values), 160)))
    clocks = [value for result in results if (value := result.metrics.get("sm_clock_mhz")) is not None and math.isfinite(value)]
    if clocks:
        low, high = min(clocks), max(clocks)
        facts.append(("SM clock", f"{low:,.0f} MHz" if round(low) == round(high) else f"{low:,.0f} to {high:,.0f} MHz"))
    dates = sorted({result.date for result in results} - {""})
    if dates:
        first, last = _minute(dates[0]), _minute(dates[-1])
        facts.append(("evaluated", f"{first} UTC" if first == last else f"{first} to {last} UTC"))
    return facts


def _minute(date: str) -> str:
    try:
        moment = datetime.fromisoformat(date)
        return (moment.astimezone(UTC) if moment.tzinfo else moment).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return date


def _tiles(results: Sequence[PointResult], groups: Sequence[Group]) -> list[tuple[str, str, str]]:
    """The figures to see first: (number, description, class)."""
    counts = Counter(result.status for result in results)
    failed = sum(counts[status] for status in FAILURES)
    verified = sum(result.status is Status.CORRECT and result.stage.number >= Stage.VERIFY.number for result in results)
    tiles = [
        (f"{len(results):,}", "point" if len(results) == 1 else "points", ""),
        (f"{counts[Status.CORRECT]:,}", "correct" if verified == counts[Status.CORRECT] else f"correct, {verified:,} of them verified", ""),
        (f"{counts[Status.CONSTRAINTS]:,}", "rejected by constraints", ""),
        (f"{failed:,}", "failed", "bad" if failed else ""),
    ]
    if counts[Status.INVALID]:
        tiles.insert(3, (f"{counts[Status.INVALID]:,}", "no valid spec", "bad"))
    if len(groups) == 1:
        best = groups[0].ranked[0]
        tiles.append((groups[0].measure.text(best.value), "the best" if groups[0].measure.larger_is_better else "the least", "best"))
        share = groups[0].fraction(best.result)
        if share is not None:
            tiles.append((f"{share:.0%}", "of the roof that binds", ""))
    elif groups:
        tiles.append((f"{len(groups):,}", "problems", ""))
    ratios = [group.peer_us / time for group in groups if group.peer_us and (time := group.ranked[0].result.metrics.get("median_us"))]
    if ratios:
        mean = math.exp(math.fsum(math.log(ratio) for ratio in ratios) / len(ratios))
        tiles.append((f"{mean:.2f}×", "the peer's speed" if len(ratios) == 1 else "the peers' speed, geometric mean of the best", "best"))
    return tiles


def _group_data(group: Group, drawn: Sequence[Shown], section: Section) -> dict[str, object]:
    """Data of a group that the page's script draws and filters."""
    keys = [choice["key"] for choice in section.choices]
    times = [name for name in ("median_us", "predicted_us", group.measure.metric) if name in keys]
    across = [name for name in ("registers", "shared_bytes") if name in keys and name not in times[:1]]
    up = times[0] if times else keys[0] if keys else ""
    other = across[0] if across else next((key for key in keys if key != up), up)
    charts = [section.progress, *section.axes, *([section.choice] if section.choice else [])]
    return {
        "title": group.title,
        "points": points(group, drawn),
        "filters": section.filters,
        "choices": section.choices,
        "usual": {"x": other, "y": up, "colour": next((chart.name for chart in section.axes), "")},
        "charts": {chart.name: chart.spec for chart in charts},
    }


def _beside(results: Sequence[PointResult], name: str, before: Sequence[PointResult]) -> Beside:
    """The comparison with results ``before``: its words, its chart, the largest changes."""
    comparison = compared(before, results)
    measured, measure = (
        comparison.measured,
        Measure(comparison.metric, "µs" if comparison.metric.endswith("_us") else comparison.metric, False),
    )
    rows = [_change(pair, comparison.metric, ratio) for pair, ratio in measured]
    better = [row for row, (_, ratio) in zip(rows, measured, strict=True) if ratio - 1 >= SAME][:MAX_CHANGES]
    worse = [row for row, (_, ratio) in zip(rows, measured, strict=True) if 1 - ratio >= SAME][::-1][:MAX_CHANGES]
    changed: list[tuple[str, ...]] = [
        (pair.after.instance, _named_axes(pair.after), _problem(pair.after), str(pair.before.status), str(pair.after.status), "", "")
        for pair in comparison.changed[:MAX_CHANGES]
    ]
    data = [
        {
            "instance": pair.after.instance,
            "problem": _problem(pair.after),
            "before": pair.before.metrics[comparison.metric],
            "after": pair.after.metrics[comparison.metric],
            "times": f"{ratio:.3f}",
        }
        for pair, ratio in measured[:: max(1, len(measured) // MAX_DOTS)]
    ]
    heading = METRICS[comparison.metric][0].split(",")[0] if comparison.metric else ""
    return Beside(
        name,
        comparison_words(comparison),
        comparison_chart(measure, data) if data else None,
        [("Ended otherwise", changed), (f"Less {heading}", better), (f"More {heading}", worse)],
    )


def comparison_words(comparison: Comparison) -> str:
    """A comparison in a sentence."""
    parts = [f"{len(comparison.pairs):,} points are in both, {comparison.only_before:,} only before, {comparison.only_after:,} only now"]
    if comparison.mean is not None:
        faster = sum(ratio - 1 >= SAME for _, ratio in comparison.measured)
        slower = sum(1 - ratio >= SAME for _, ratio in comparison.measured)
        parts.append(
            f"{METRICS[comparison.metric][0]}: before / now is {comparison.mean:.3f} as a geometric mean of {len(comparison.measured):,}; "
            f"{faster:,} have less, {slower:,} more, the rest is within {SAME:.1%}"
        )
    if comparison.changed:
        parts.append(f"{len(comparison.changed):,} ended otherwise")
    return ". ".join(parts) + "."


def _change(pair: Pair, metric: str, ratio: float) -> tuple[str, ...]:
    before, after = (four_digits(one.metrics[metric]) for one in (pair.before, pair.after))
    kind = "good" if ratio - 1 >= SAME else "worse" if 1 - ratio >= SAME else ""
    return pair.after.instance, _named_axes(pair.after), _problem(pair.after), before, after, f"{ratio:.3f}×", kind


def _problem(result: PointResult) -> str:
    return " × ".join(map(str, result.problem.values()))


def _script_json(data: object) -> str:
    """JSON that nothing in it can end a script element."""
    text = json.dumps(plain(data), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def spec_yaml(fields: dict[str, object]) -> str:
    """A spec as a file would hold it: without defaults if it can still be read, else with all its fields."""
    import yaml

    from gemmgen.codegen.rendering import spec_lines
    from gemmgen.kernels.spec_files import load_spec

    try:
        return "\n".join(spec_lines(load_spec(fields)))
    except (GemmgenError, yaml.YAMLError, ValueError, TypeError):
        return str(yaml.safe_dump(plain(fields), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)).rstrip()


def _named_axes(result: PointResult) -> str:
    return _cut(", ".join(f"{path}={value_text(result, path)}" for path in result.axes))


def _cut(text: str, most: int = MAX_TEXT) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


@lru_cache
def _asset(name: str) -> str:
    """A file that the page holds."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8").rstrip()
