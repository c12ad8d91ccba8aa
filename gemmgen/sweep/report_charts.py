"""The charts of a report: performance over each axis, the best so far, and where points lie under the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmgen.sweep.report_data import MAXIMUM_VALUES, Axis, Group, Shown, jitter, value_text
from gemmgen.sweep.report_plots import Plot, Position, Scale, short, turned

_FEW = 150
"""Up to so many dots are drawn large."""
_LABELLED_GROUPS = 8
_LETTER, _LINE = 6.8, 13.0
"""Width and height that a letter of a label takes at most."""


@dataclass(frozen=True)
class Chart:
    """A picture with its heading and a line that says what to see in it."""

    heading: str
    remark: str
    svg: str


Drawn = Mapping[int, Sequence[Shown]]
"""The points to draw of each group, by the group's position."""


def axis_charts(group: Group, drawn: Sequence[Shown]) -> list[Chart]:
    """A chart for each axis; first those on which the choice matters most."""
    charts = [(_loss(group, axis), place, _axis_chart(group, axis, drawn)) for place, axis in enumerate(group.axes)]
    return [chart for _, _, chart in sorted(charts, key=lambda item: (-item[0], item[1]))]


def progress_chart(group: Group, drawn: Sequence[Shown]) -> Chart:
    """Every point in the order of evaluation, and the best up to there."""
    measure = group.measure
    plot = Plot(560, 240, f"Best so far on {group.title}")
    x = Scale(1, max(len(group.shown), 2), plot.x_range[0] + 6, plot.x_range[1])
    y = _value_scale(group, plot)
    plot.y_axis(y, short, unit=group.measure.unit)
    plot.x_axis(x, lambda value: f"{value:.0f}" if value == int(value) else "", "points in order of evaluation")
    order = {one.number: place for place, one in enumerate(group.shown, start=1)}
    plot.dots((((x(order[one.number]), y(one.value)), one.number) for one in drawn), _dots(drawn))
    steps: list[Position] = []
    best: Shown | None = None
    improvements = []
    for place, one in enumerate(group.shown, start=1):
        if best is None or measure.better(one.value, best.value):
            if best is not None:
                steps.append((x(place), y(best.value)))
            steps.append((x(place), y(one.value)))
            best = one
            improvements.append(one)
    if best is not None:
        steps.append((x(len(group.shown)), y(best.value)))
    plot.line(steps, "best-line")
    plot.dots((((x(order[one.number]), y(one.value)), one.number) for one in improvements), "best")
    _peer_line(group, plot, y)
    found = order[improvements[-1].number] if improvements else 0
    remark = f"the best came {_ordinal(found)} of {len(group.shown):,}"
    return Chart("Best so far", remark if len(group.shown) > 1 else "", plot.svg())


def roofline_charts(groups: Sequence[Group], drawn: Drawn) -> list[Chart]:
    """One chart for each device and operation: all problems under its roofs, on two logarithmic scales."""
    charts: dict[tuple[str, str], list[int]] = {}
    for place, group in enumerate(groups):
        if group.roofs is not None and group.roofs.compute_roof and group.roofs.memory_roof and group.shown:
            charts.setdefault((group.roofs.device.name, group.roofs.cost.unit), []).append(place)
    return [_roofline_chart([(groups[place], drawn[place]) for place in places]) for places in charts.values()]


def _axis_chart(group: Group, axis: Axis, drawn: Sequence[Shown]) -> Chart:
    measure = group.measure
    best = group.best_by_value(axis)
    continuous = axis.numbers is not None and len(axis.values) > MAXIMUM_VALUES
    shown = axis.values
    if not continuous and len(shown) > MAXIMUM_VALUES:
        keep = {text for text, _ in sorted(best.items(), key=lambda item: measure.rank(item[1].value))[:MAXIMUM_VALUES]}
        shown = tuple(text for text in axis.values if text in keep)
    plot = Plot(430, 240, f"{measure.metric} over {axis.path}")
    left, right = plot.x_range
    slot = (right - left) / len(shown)
    if not continuous and turned(shown, slot):
        plot.bottom, plot.height = 78, 284
    y = _value_scale(group, plot)
    plot.y_axis(y, short, unit=group.measure.unit)
    centre: dict[str, float]
    if continuous and axis.numbers is not None:
        x = Scale(min(axis.numbers), max(axis.numbers), left + 6, right)
        plot.x_axis(x, short, "")
        centre = {text: x(number) for text, number in zip(axis.values, axis.numbers, strict=True)}
        slot = 0
    else:
        centre = {text: left + slot * (place + 0.5) for place, text in enumerate(shown)}
        plot.categories([centre[text] for text in shown], shown, "", slot)
    placed = [(one, value_text(one.result, axis.path)) for one in drawn]
    plot.dots(
        (
            ((centre[text] + jitter(one.result.digest) * min(slot * 0.3, 26), y(one.value)), one.number)
            for one, text in placed
            if text in centre
        ),
        _dots(drawn),
    )
    bests = [(text, best[text]) for text in shown if text in best]
    if axis.numbers is not None:
        plot.line([(centre[text], y(one.value)) for text, one in bests], "best-line")
    plot.dots((((centre[text], y(one.value)), one.number) for text, one in bests), "best")
    if len(bests) <= 10:
        for text, one in bests:
            plot.label((centre[text], y(one.value) - 8), short(one.value).rstrip("TGMk"), "value", "middle")
    _peer_line(group, plot, y)
    return Chart(axis.name, _axis_remark(group, axis, len(shown)), plot.svg())


def _axis_remark(group: Group, axis: Axis, shown: int) -> str:
    best = group.best_by_value(axis)
    winner = min(best, key=lambda text: group.measure.rank(best[text].value))
    loss = _loss(group, axis)
    remark = f"best at {winner}; another value costs at most {loss:.1%}" if loss >= 0.0005 else "makes no difference to the best"
    hidden = len(axis.values) - shown
    return f"{remark}; {hidden} values that do worse are not shown" if hidden else remark


def _loss(group: Group, axis: Axis) -> float:
    """Part of the best that is lost with the worst value of an axis, everything else chosen well."""
    values = [one.value for one in group.best_by_value(axis).values()]
    low, high = min(values), max(values)
    if group.measure.larger_is_better:
        return 1 - low / high if high else 0.0
    return high / low - 1 if low else float(high > 0)


def _roofline_chart(members: Sequence[tuple[Group, Sequence[Shown]]]) -> Chart:
    roofs = members[0][0].roofs
    assert roofs is not None and roofs.compute_roof is not None and roofs.memory_roof is not None and roofs.ridge is not None
    compute, memory, ridge = roofs.compute_roof, roofs.memory_roof, roofs.ridge
    placed = [(group, [(one, _intensity(group, one), _rate(one)) for one in drawn]) for group, drawn in members]
    columns = [(group, [item for item in points if item[1] > 0 and item[2] > 0]) for group, points in placed]
    intensities = [intensity for _, points in columns for _, intensity, _ in points] or [ridge]
    rates = [rate for _, points in columns for _, _, rate in points] or [compute.value / 10]
    plot = Plot(560, 240, f"Roofline of {roofs.device.name}", right=20)
    x = Scale(min(*intensities, ridge) / 3, max(*intensities, ridge) * 3, plot.x_range[0] + 4, plot.x_range[1], True)
    low = min(min(rates) / 1.6, compute.value / 30)
    y = Scale(low, compute.value * 1.9, *plot.y_range, True)
    kind = "FLOP/s" if roofs.cost.unit.startswith("fp") else "OP/s"
    plot.y_axis(y, short, unit=kind)
    plot.x_axis(x, short, "operations per byte", about=5)
    first = max(x.low, low / memory.value)
    plot.line([(x(first), y(first * memory.value)), (x(ridge), y(compute.value)), (x(x.high), y(compute.value))], "roof")
    name = roofs.cost.unit.upper()
    plot.label((plot.x_range[1], y(compute.value) - 6), f"{name} {short(compute.value)}{kind}, {compute.origin}", "roof-label", "end")
    plot.dots((((x(i), y(rate)), one.number) for _, points in columns for one, i, rate in points), _dots(rates))
    bests = [(group, *max(points, key=lambda item: item[2])) for group, points in columns if points]
    plot.dots((((x(i), y(rate)), one.number) for _, one, i, rate in bests), "best")
    if len(bests) <= _LABELLED_GROUPS:
        taken: list[tuple[float, float, float]] = []
        for group, one, intensity, rate in sorted(bests, key=lambda best: -best[3]):
            share = group.fraction(one.result)
            sizes = "×".join(str(size) for size in group.sizes.values()) if len(bests) > 1 else ""
            text = " ".join(part for part in (sizes, f"{share:.0%}" if share else "") if part)
            end = x(intensity) > (plot.x_range[0] + plot.x_range[1]) * 0.7
            plot.label(_free_place(x(intensity), y(rate) + 4, text, end, taken), text, "value", "end" if end else "start")
    shares = [share for group, one, _, _ in bests if (share := group.fraction(one.result)) is not None]
    bound = {group.roofs.binding for group, _ in members if group.roofs}
    which = f"{next(iter(bound))} binds" if len(bound) == 1 else "compute or memory binds"
    reach = f"{min(shares):.0%}" if len(shares) == 1 else f"{min(shares):.0%} to {max(shares):.0%}" if shares else ""
    remark = f"{which}; the best reach{'es' if len(shares) == 1 else ''} {reach} of that roof" if reach else which
    remark = f"{remark}; memory {short(memory.value)}B/s, {memory.origin}"
    return Chart(f"Roofline of {roofs.device.name}", remark, plot.svg())


def _free_place(x: float, y: float, text: str, end: bool, taken: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Beside a dot at ``x``, and as far below ``y`` as it needs to meet no label that is there already: left end, right end, line."""
    start = x - 9 if end else x + 9
    left, right = sorted((start, start + (-1 if end else 1) * _LETTER * len(text)))
    while any(left < other_right and other_left < right and abs(y - line) < _LINE for other_left, other_right, line in taken):
        y += 2
    taken.append((left, right, y))
    return start, y


def _intensity(group: Group, one: Shown) -> float:
    metrics = one.result.metrics
    operations, moved = metrics.get("operations_per_second", 0.0), metrics.get("bytes_per_second", 0.0)
    if operations > 0 and moved > 0 and math.isfinite(operations / moved):
        return operations / moved
    return group.roofs.cost.intensity if group.roofs else 0.0


def _rate(one: Shown) -> float:
    rate = one.result.metrics.get("operations_per_second", 0.0)
    return rate if math.isfinite(rate) else 0.0


def _value_scale(group: Group, plot: Plot) -> Scale:
    """From zero, unless all points lie in the upper part of that."""
    values = [one.value for one in group.shown]
    peer = peer_value(group)
    low, high = min(values), max([*values, *([peer] if peer is not None and peer < 1.6 * max(values) else [])])
    if group.measure.metric == "median_us" and len(values) > 20:  # slow points must not flatten the fast ones
        high = min(high, 6 * low)
    pad = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    start = low - pad if low > 0.55 * high else 0.0
    return Scale(start, high + (high - start) * 0.12, *plot.y_range)


def peer_value(group: Group) -> float | None:
    """The peer's value of the group's measure; None if no peer was timed."""
    if group.peer_us is None or not group.ranked:
        return None
    best = group.ranked[0]
    time = best.result.metrics.get("median_us", 0.0)
    if group.measure.metric == "median_us":
        return group.peer_us
    return best.value * time / group.peer_us if group.measure.unit.endswith("/s") else None


def _peer_line(group: Group, plot: Plot, y: Scale) -> None:
    value = peer_value(group)
    if value is not None and y.low <= value <= y.high:
        left, right = plot.x_range
        plot.line([(left, y(value)), (right, y(value))], "peer-line")
        plot.label((right, y(value) + 11), "peer", "peer-label", "end")


def _dots(drawn: Sequence[object]) -> str:
    return "dots few" if len(drawn) <= _FEW else "dots"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
