"""Charts of a report as specifications in Vega-Lite (https://vega.github.io/vega-lite/docs/spec.html).

The page embeds them over the points of its data that its filters select. Fields have names of this module alone (``a0`` is the
first axis), as a path of a spec is an expression to Vega-Lite. Colours come from the page, by the names of the styles: ``dots``,
``best``, ``best-line``, ``peer``, ``roof``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmgen.sweep.model_view import PREDICTED, unseen_axes
from gemmgen.sweep.report.data import MAX_VALUES, Axis, Group, Measure, Shown, axis_value, jitter, plain_text, value_text

Spec = dict[str, Any]

_LABELLED_VALUES = 10
_LEGEND_ENTRIES = 10

METRICS: dict[str, tuple[str, int]] = {
    "median_us": ("time, µs", -1),
    "predicted_us": ("predicted time, µs", -1),
    "operations_per_second": ("operations a second", 1),
    "bytes_per_second": ("bytes a second", 1),
    "registers": ("registers a thread", -1),
    "shared_bytes": ("shared memory a block, bytes", -1),
    "spill_bytes": ("spilled bytes a thread", -1),
    "threads": ("threads a block", 0),
    "blocks_per_sm": ("blocks on an SM", 1),
    "worst_ratio": ("error / bound", -1),
}
"""Metric -> its title, and whether more (1) or less (-1) of it is better, or neither (0)."""


@dataclass(frozen=True)
class Chart:
    """A chart with its heading and a line that explains it."""

    name: str
    heading: str
    remark: str
    spec: Spec


Drawn = Mapping[int, Sequence[Shown]]
"""The points to draw of each group, by the group's position."""


def field_of(group: Group, axis: Axis) -> str:
    """Name of an axis among the fields of a group's points."""
    return f"a{group.axes.index(axis)}"


def is_continuous(axis: Axis) -> bool:
    """True for an axis whose values are positions on a scale rather than categories."""
    return axis.numbers is not None and len(axis.values) > MAX_VALUES


def points(group: Group, drawn: Sequence[Shown]) -> dict[str, Any]:
    """The drawn points of a group as a table: names of fields, and a row for each point.

    ``value`` is the value by which the group is compared, and ``told`` its text; ``order`` counts from 1 as evaluated; ``jitter`` is from
    -1 to 1, to separate points of one value; metrics have their own names.
    """
    metrics = metrics_of(group)
    order = {one.number: place for place, one in enumerate(group.shown, start=1)}
    rows = []
    for one in drawn:
        values = [axis_value(one.result, axis.path) if is_continuous(axis) else value_text(one.result, axis.path) for axis in group.axes]
        row = [one.number, order[one.number], round(jitter(one.result.digest), 3), one.value, group.measure.text(one.value)]
        rows.append([*row, *values, *(one.result.metrics.get(name) for name in metrics)])
    names = ["number", "order", "jitter", "value", "told", *(f"a{place}" for place in range(len(group.axes))), *metrics]
    return {"fields": names, "rows": rows}


def metrics_of(group: Group) -> list[str]:
    """Metrics that differ between some points of a group."""
    return [name for name in METRICS if len({one.result.metrics.get(name) for one in group.shown}) > 1]


def choices(group: Group) -> list[dict[str, Any]]:
    """Choices for an axis of the chart of two choices: ``key``, ``title``, ``better`` and an encoding of Vega-Lite."""
    options: list[dict[str, Any]] = []
    for name in metrics_of(group):
        title, better = METRICS[name]
        form = ".3~s" if better > 0 and name.endswith("per_second") else ",.4~g"
        scale = {"zero": False, "nice": True}
        encoding = {"field": name, "type": "quantitative", "title": title, "scale": scale, "axis": {"format": form}}
        options.append({"key": name, "title": title, "better": better, "encoding": encoding})
    for axis in group.axes:
        options.append({"key": field_of(group, axis), "title": axis.name, "better": 0, "encoding": _axis_encoding(group, axis)})
    return options


def filters(group: Group) -> list[dict[str, object]]:
    """Filters of points: the values of each axis, or its range."""
    return [
        {"key": field_of(group, axis), "title": axis.name, "values": None if is_continuous(axis) else list(axis.values)}
        for axis in group.axes
        if is_continuous(axis) or len(axis.values) <= 4 * MAX_VALUES
    ]


def axis_charts(group: Group) -> list[Chart]:
    """A chart for each axis; first those on which the choice matters most."""
    charts = [(_loss(group, axis), place, _axis_chart(group, axis)) for place, axis in enumerate(group.axes)]
    return [chart for _, _, chart in sorted(charts, key=lambda item: (-item[0], item[1]))]


def progress_chart(group: Group) -> Chart:
    """Every point in the order of evaluation, and the best up to there."""
    x: Spec = {"field": "order", "type": "quantitative", "title": "points in order of evaluation"}
    x |= {"scale": {"zero": False, "nice": False, "padding": 6}, "axis": {"grid": False, "tickMinStep": 1, "format": ",d"}}
    if len(group.shown) <= _LABELLED_VALUES:  # of few points, each is counted; ticks between them would be rounded to the same number
        x["axis"]["values"] = list(range(1, len(group.shown) + 1))
    best = {"op": "max" if group.measure.larger_is_better else "min", "field": "value", "as": "best"}
    layers: list[Spec] = [
        {"mark": {"type": "point", "style": "dots"}, "encoding": {"x": x, "y": _value(group), "tooltip": _tooltip(group)}},
        {
            "transform": [{"window": [best], "sort": [{"field": "order"}], "frame": [None, 0]}],
            "mark": {"type": "line", "style": "best-line", "interpolate": "step-after"},
            "encoding": {"x": x, "y": {**_value(group), "field": "best"}},
        },
        *_peer(group),
    ]
    rank = next((place for place, one in enumerate(group.shown, start=1) if one is group.ranked[0]), 0)
    remark = f"the best came {_ordinal(rank)} of {len(group.shown):,}" if len(group.shown) > 1 else ""
    return Chart("progress", "Best so far", remark, _chart(layers))


def choice_chart(group: Group) -> Chart:
    """Any metric or axis over any other, coloured by a third, with the Pareto front; the page fills in ``x``, ``y`` and ``color``."""
    zoom = [{"name": "zoom", "select": "interval", "bind": "scales"}]
    dots = {"mark": {"type": "point", "style": "dots"}, "params": zoom, "encoding": {"tooltip": _tooltip(group)}}
    front = {"name": "front", "values": []}
    return Chart(
        "choice",
        "Any two, and their Pareto front",
        "scroll to zoom, drag to move, double-click to come back",
        _chart(
            [
                dots,
                {"data": front, "mark": {"type": "line", "style": "best-line"}, "encoding": {"order": {"field": "place"}}},
                {"data": front, "mark": {"type": "point", "style": "best"}, "encoding": {"tooltip": _tooltip(group)}},
            ],
            height=320,
        ),
    )


def roofline_charts(groups: Sequence[Group], drawn: Drawn) -> list[Chart]:
    """One chart for each device and operation: all problems under its roofs, on two logarithmic scales. They hold their data."""
    charts: dict[tuple[str, str], list[int]] = {}
    for place, group in enumerate(groups):
        if group.roofs is not None and group.roofs.compute_roof and group.roofs.memory_roof and group.shown:
            charts.setdefault((group.roofs.device.name, group.roofs.cost.unit), []).append(place)
    return [
        _roofline_chart(f"roofline-{number}", [(groups[place], drawn[place]) for place in places])
        for number, places in enumerate(charts.values())
    ]


def comparison_chart(measure: Measure, matched: Sequence[Mapping[str, Any]]) -> Chart:
    """The points of two results files, each over itself in the other, on logarithmic scales; on the diagonal nothing changed."""
    values = [one[name] for one in matched for name in ("before", "after")]
    low, high = min(values) * 0.95, max(values) * 1.05
    scale = {"type": "log", "domain": [low, high], "nice": False}
    title = measure.title

    def axis(field: str, which: str) -> Spec:
        return {"field": field, "type": "quantitative", "title": f"{title}, {which}", "scale": scale, "axis": {"format": ",.4~g"}}

    names = [("instance", "instance"), ("problem", "problem"), ("before", "before"), ("after", "after"), ("times", "times as fast")]
    layers: list[Spec] = [
        {
            "data": {"values": [{"before": low, "after": low}, {"before": high, "after": high}]},
            "mark": {"type": "line", "style": "roof"},
            "encoding": {"x": axis("before", "before"), "y": axis("after", "after")},
        },
        {
            "data": {"values": list(matched)},
            "mark": {"type": "point", "style": "dots"},
            "params": [{"name": "zoom", "select": "interval", "bind": "scales"}],
            "encoding": {
                "x": axis("before", "before"),
                "y": axis("after", "after"),
                "tooltip": [{"field": field, "title": name} for field, name in names],
            },
        },
    ]
    return Chart("comparison", "Before and after", "below the line it became faster, above it slower", _chart(layers, height=320))


def _chart(layers: list[Spec], height: int = 220) -> Spec:
    return {"width": "container", "height": height, "data": {"name": "points", "values": []}, "layer": layers}


def _axis_encoding(group: Group, axis: Axis) -> Spec:
    if is_continuous(axis):
        return {"field": field_of(group, axis), "type": "quantitative", "title": axis.name, "scale": {"zero": False, "nice": True}}
    labels = {"labelLimit": 120, "labelOverlap": False, "labelAngle": -38 if _crowded(axis.values) else 0}
    return {"field": field_of(group, axis), "type": "ordinal", "title": axis.name, "sort": list(axis.values), "axis": labels}


def _crowded(values: Sequence[str]) -> bool:
    """True if names do not fit beside each other below a chart of the usual width."""
    return len(values) * max((len(value) for value in values), default=0) * 7 > 300


def _axis_chart(group: Group, axis: Axis) -> Chart:
    best_of = {"op": "max" if group.measure.larger_is_better else "min", "field": "value", "as": "best"}
    hidden: list[str] = []
    x = {**_axis_encoding(group, axis), "title": None}
    transform: list[Spec] = []
    if not is_continuous(axis) and len(axis.values) > MAX_VALUES:
        ranked = sorted(group.best_by_value(axis).items(), key=lambda item: group.measure.rank(item[1].value))
        shown = {text for text, _ in ranked[:MAX_VALUES]}
        hidden = [text for text in axis.values if text not in shown]
        x["sort"] = [text for text in axis.values if text in shown]
        transform = [{"filter": {"field": x["field"], "oneOf": x["sort"]}}]
    dots: Spec = {"x": x, "y": _value(group), "tooltip": _tooltip(group)}
    if not is_continuous(axis):
        dots["xOffset"] = {"field": "jitter", "type": "quantitative", "scale": {"domain": [-1.6, 1.6]}}
    aggregate = [*transform, {"aggregate": [best_of], "groupby": [x["field"]]}]
    best = {"x": x, "y": {**_value(group), "field": "best"}}
    form = _format(group.measure)
    layers: list[Spec] = [{"transform": transform, "mark": {"type": "point", "style": "dots"}, "encoding": dots}]
    if axis.numbers is not None:
        layers.append({"transform": aggregate, "mark": {"type": "line", "style": "best-line"}, "encoding": best})
    layers.append(
        {
            "transform": aggregate,
            "mark": {"type": "point", "style": "best"},
            "encoding": {
                **best,
                "tooltip": [{"field": "best", "format": form, "title": "best"}, {"field": x["field"], "title": axis.name}],
            },
        }
    )
    if len(axis.values) <= _LABELLED_VALUES:  # beyond the best, where there are no points
        away = -11 if group.measure.larger_is_better else 13
        text = {"text": {"field": "best", "type": "quantitative", "format": form}}
        layers.append({"transform": aggregate, "mark": {"type": "text", "style": "label", "dy": away}, "encoding": {**best, **text}})
    layers += _peer(group)
    return Chart(field_of(group, axis), axis.name, _axis_remark(group, axis, len(hidden)), _chart(layers))


def _axis_remark(group: Group, axis: Axis, hidden: int) -> str:
    if group.measure.metric == PREDICTED and axis.path in unseen_axes(group.results):
        return "the model does not distinguish these values: only a measurement does"
    best = group.best_by_value(axis)
    winner = min(best, key=lambda text: group.measure.rank(best[text].value))
    loss = _loss(group, axis)
    cost = f"costs at most {loss:.1%}" if loss < 10 or group.measure.larger_is_better else f"takes up to {1 + loss:,.0f} times as much"
    remark = f"best at {winner}; another value {cost}" if loss >= 0.0005 else "makes no difference to the best"
    return f"{remark}; {hidden} values that do worse are not shown" if hidden else remark


def _loss(group: Group, axis: Axis) -> float:
    """Part of the best that is lost with the worst value of an axis, everything else chosen well."""
    values = [one.value for one in group.best_by_value(axis).values()]
    low, high = min(values), max(values)
    if group.measure.larger_is_better:
        return 1 - low / high if high else 0.0
    return high / low - 1 if low else float(high > 0)


def _roofline_chart(name: str, members: Sequence[tuple[Group, Sequence[Shown]]]) -> Chart:
    roofs = members[0][0].roofs
    assert roofs is not None and roofs.compute_roof is not None and roofs.memory_roof is not None and roofs.ridge is not None
    compute, memory, ridge = roofs.compute_roof, roofs.memory_roof, roofs.ridge
    rows: list[dict[str, Any]] = []
    for group, drawn in members:
        sizes = " × ".join(str(size) for size in group.sizes.values()) or group.title
        for one in drawn:
            intensity, rate = _intensity(group, one), _rate(one)
            if intensity > 0 and rate > 0:
                share = group.fraction(one.result)
                text = f"{share:.1%}" if share else ""
                rows.append({"intensity": intensity, "rate": rate, "problem": sizes, "told": group.measure.text(one.value), "share": text})
    intensities = [row["intensity"] for row in rows] or [ridge]
    rates = [row["rate"] for row in rows] or [compute.value / 10]
    left, right = min(*intensities, ridge) / 3, max(*intensities, ridge) * 3
    bottom, top = min(min(rates) / 1.6, compute.value / 30), compute.value * 1.6
    first = max(left, bottom / memory.value)
    roof = [(first, first * memory.value), (ridge, compute.value), (right, compute.value)]
    unit = "FLOP/s" if roofs.cost.unit.startswith("fp") else "OP/s"
    clipped = {"type": "log", "nice": False}
    encoding: Spec = {
        "x": {
            "field": "intensity",
            "type": "quantitative",
            "title": "operations per byte",
            "scale": {**clipped, "domain": [left, right]},
            "axis": {"format": ",.4~g", "grid": False},
        },
        "y": {
            "field": "rate",
            "type": "quantitative",
            "title": unit,
            "scale": {**clipped, "domain": [bottom, top]},
            "axis": {"format": ".2~s"},
        },
    }
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    dots = dict(encoding)
    titles = [("told", "value"), ("share", "of the roof"), ("problem", "problem")]
    dots["tooltip"] = [{"field": field, "title": title} for field, title in titles]
    if 1 < len(problems) <= _LEGEND_ENTRIES:
        dots["color"] = {
            "field": "problem",
            "type": "nominal",
            "sort": problems,
            "title": None,
            "legend": {"orient": "bottom", "columns": 4},
        }
    layers: list[Spec] = [
        {
            "data": {"values": [{"intensity": intensity, "rate": rate} for intensity, rate in roof]},
            "mark": {"type": "line", "style": "roof"},
            "encoding": encoding,
        },
        {"data": {"values": rows}, "mark": {"type": "point", "style": "dots"}, "encoding": dots},
    ]
    bests = [max((share for one in drawn if (share := group.fraction(one.result)) is not None), default=0.0) for group, drawn in members]
    shares = [share for share in bests if share]
    bound = {group.roofs.binding for group, _ in members if group.roofs}
    which = f"{next(iter(bound))} binds" if len(bound) == 1 else "compute or memory binds"
    reach = f"{min(shares):.0%}" if len(shares) == 1 else f"{min(shares):.0%} to {max(shares):.0%}" if shares else ""
    remark = f"{which}; the best reach{'es' if len(shares) == 1 else ''} {reach} of that roof" if reach else which
    ceiling = f"{roofs.cost.unit.upper()} {_short(compute.value)}{unit}, {compute.origin}"
    remark = f"{remark}; {ceiling}; memory {_short(memory.value)}B/s, {memory.origin}"
    return Chart(name, f"Roofline of {roofs.device.name}", remark, _chart(layers))


def _intensity(group: Group, one: Shown) -> float:
    metrics = one.result.metrics
    operations, moved = metrics.get("operations_per_second", 0.0), metrics.get("bytes_per_second", 0.0)
    if operations > 0 and moved > 0 and math.isfinite(operations / moved):
        return operations / moved
    return group.roofs.cost.intensity if group.roofs else 0.0


def _rate(one: Shown) -> float:
    rate = one.result.metrics.get("operations_per_second", 0.0)
    return rate if math.isfinite(rate) else 0.0


def _format(measure: Measure) -> str:
    return ".3~s" if measure.unit.endswith("/s") else ",.4~r"


def _value(group: Group) -> Spec:
    """The encoding of the measure: from zero, unless all points lie in the upper part of that."""
    values = [one.value for one in group.shown]
    peer = peer_value(group)
    low, high = min(values), max([*values, *([peer] if peer is not None and peer < 1.6 * max(values) else [])])
    if group.measure.metric == "median_us" and len(values) > 20:  # slow points must not flatten the fast ones
        high = min(high, 6 * low)
    pad = (high - low) * 0.12 or abs(high) * 0.05 or 1.0
    start = max(low - pad, 0.0) if low > 0.55 * high else 0.0
    scale = {"domain": [start, high + pad], "clamp": True, "nice": False}
    above = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": -30, "titleY": -8}
    axis = {"format": _format(group.measure), "tickCount": 5, **above}
    return {"field": "value", "type": "quantitative", "title": group.measure.unit, "scale": scale, "axis": axis}


def _tooltip(group: Group) -> list[Spec]:
    axes = [{"field": field_of(group, axis), "title": plain_text(axis.name)} for axis in group.axes]
    metrics = [name for name in ("registers", "shared_bytes", "spill_bytes") if name in metrics_of(group) and name != group.measure.metric]
    return [{"field": "told", "title": group.measure.title}, *axes, *({"field": name, "title": METRICS[name][0]} for name in metrics)]


def peer_value(group: Group) -> float | None:
    """The peer's value of the group's measure; None if no peer was timed."""
    if group.peer_us is None or not group.ranked:
        return None
    best = group.ranked[0]
    time = best.result.metrics.get("median_us", 0.0)
    if group.measure.metric == "median_us":
        return group.peer_us
    return best.value * time / group.peer_us if group.measure.unit.endswith("/s") else None


def _peer(group: Group) -> list[Spec]:
    value = peer_value(group)
    low, high = _value(group)["scale"]["domain"]
    if value is None or not low <= value <= high:
        return []
    rule = {"y": {**_value(group), "field": "peer"}, "tooltip": {"value": f"the peer: {group.measure.text(value)}"}}
    return [{"data": {"values": [{"peer": value}]}, "mark": {"type": "rule", "style": "peer"}, "encoding": rule}]


def _short(value: float) -> str:
    """A number with an SI prefix where it is large."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
