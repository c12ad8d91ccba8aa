"""The report in a browser: charts are drawn, filters and choices change them, it fits into a phone and can be read in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Opened, chromium

from gemmgen.sweep.records import PointResult, Status
from gemmgen.sweep.report.page import html_report
from sweep.samples import SPEC, sample


def results() -> list[PointResult]:
    """Sixty points of which twenty are at each of three stages, and a few that failed."""
    found = []
    for number in range(60):
        one = sample(number, axes={"mainloop.stages": 1 + number % 3, "tile": 8 * (number % 5)}, spec=SPEC | {"description": str(number)})
        found.append(sample(number, axes=one.axes, spec=one.spec, metrics=one.metrics | {"registers": 40.0 + number * 7 % 90}))
    return [*found, *(sample(100 + number, Status.TIMEOUT, spec=SPEC | {"description": f"late {number}"}) for number in range(3))]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html_report(results(), against=("before.sqlite", results())))
    return path


def drawn(opened: Opened, chart: str) -> int:
    """The number of points that a chart has, once it is there."""
    selector = f"details.problem .chart[data-chart={chart}]"
    opened.page.locator(selector).scroll_into_view_if_needed()
    opened.page.wait_for_selector(f"{selector}[data-drawn] svg")
    return int(opened.page.get_attribute(selector, "data-drawn"))


def test_every_chart_is_drawn_and_nothing_is_complained_of(browser: Any, report: Path) -> None:
    opened = Opened(browser, report)
    charts = opened.page.locator(".chart")
    for place in range(charts.count()):
        charts.nth(place).scroll_into_view_if_needed()
        charts.nth(place).locator("svg.marks").wait_for()
    assert charts.count() == 6
    assert opened.page.locator("[data-chart=a0] .mark-symbol.role-mark path").count() >= 60
    assert opened.messages == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_no_wider_than_its_window(browser: Any, report: Path, width: int) -> None:
    opened = Opened(browser, report, width)
    drawn(opened, "choice")
    assert opened.overflow <= 0


def test_filters_leave_out_points_and_last(browser: Any, report: Path) -> None:
    opened = Opened(browser, report)
    assert drawn(opened, "a0") == 60
    opened.page.select_option("[data-filter=a0]", "2")
    opened.page.wait_for_selector(".chart[data-chart=a0][data-drawn='20']")
    assert opened.page.inner_text(".passing") == "20 of 60 points pass"
    opened.page.reload()
    assert drawn(opened, "a0") == 20
    opened.page.click(".reset")
    opened.page.wait_for_selector(".chart[data-chart=a0][data-drawn='60']")
    assert opened.messages == []


def test_the_front_is_of_the_metrics_that_were_chosen(browser: Any, report: Path) -> None:
    opened = Opened(browser, report)
    drawn(opened, "choice")
    points = [(one.metrics["registers"], one.metrics["median_us"]) for one in results() if one.metrics]
    best = {one for one in points if not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points)}
    assert opened.page.inner_text(".front").startswith(f"{len(best)} point")
    opened.page.select_option("[data-choice=x]", "a0")
    assert "needs two metrics" in opened.page.inner_text(".front")


def test_no_value_has_the_colour_of_the_front(browser: Any, report: Path) -> None:
    opened = Opened(browser, report)
    drawn(opened, "choice")
    read = "all => all.map(one => one.getAttribute(one.matches('.role-legend-symbol *') ? 'fill' : 'stroke'))"
    chart = "details.problem .chart[data-chart=choice] svg.marks"
    legend = opened.page.eval_on_selector_all(f"{chart} .role-legend-symbol path", read)
    front = opened.page.eval_on_selector_all(f"{chart} .mark-line path", read)
    assert len(set(legend)) == 3 and front and not set(legend) & set(front)


def test_text_can_be_read_in_the_dark(browser: Any, report: Path) -> None:
    dark, light = (Opened(browser, report, scheme=scheme) for scheme in ("dark", "light"))
    for opened, readable in ((dark, lambda part: part > 190), (light, lambda part: part < 100)):
        assert all(map(readable, opened.colour("h1")))
    opened = dark
    drawn(opened, "progress") if opened.page.locator("details.problem [data-chart=progress]").count() else drawn(opened, "a0")
    fill = opened.page.get_attribute("details.problem .chart svg.marks .role-axis-label text", "fill")
    assert fill == "#98a3b0"
