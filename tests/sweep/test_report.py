"""The HTML report: one file that stands alone, shows the outcome of every point, escapes everything, and stays small."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest
import yaml

from gemmgen.kernels.spec_files import load_spec
from gemmgen.sweep.live_report import LiveReport
from gemmgen.sweep.model_view import unseen_axes
from gemmgen.sweep.records import PointResult, Status
from gemmgen.sweep.report.charts import axis_charts, progress_chart
from gemmgen.sweep.report.data import MAX_DOTS, grouped, jitter, known_device, reasons, short_names, value_text
from gemmgen.sweep.report.page import html_report, spec_yaml
from sweep.samples import SPEC, one_of_each, sample

VOID = {"meta", "br", "link", "img", "input", "hr", "path"}


class Page(HTMLParser):
    """The elements of a page; fails where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data.strip()))

    def all(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        found = [attributes for name, attributes in self.elements if name == tag]
        return [attributes for attributes in found if not kind or kind in (attributes.get("class") or "").split()]

    def text(self) -> str:
        return "\n".join(text for tag, text in self.texts if tag not in ("script", "style"))


def data(text: str) -> Any:
    """Data that the page's script draws."""
    return json.loads(re.search(r'id="report">(.*?)</script>', text).group(1))  # type: ignore[union-attr]


def column(group: Any, field: str) -> list[Any]:
    """The values of a field of a group's points."""
    place = group["points"]["fields"].index(field)
    return [row[place] for row in group["points"]["rows"]]


def written(text: str) -> str:
    """The page without the charting library."""
    return re.sub(r"<script>// Vega.*?</script>", "", text, flags=re.DOTALL)


def many(count: int, **fields: Any) -> list[PointResult]:
    return [sample(number, axes={"mainloop.stages": number % 5, "tile": number % 31 * 8}, **fields) for number in range(count)]


@pytest.mark.parametrize("results", [[], one_of_each(), many(60)], ids=["none", "one of each", "sixty"])
def test_the_page_needs_no_other_file(results):
    text = html_report(results)
    page = Page(text)
    loads = {"src", "href", "data", "srcset", "xlink:href"}
    values = [value or "" for _, attributes in page.elements for name, value in attributes.items() if name in loads]
    assert all(value.startswith("#problem-") for value in values)
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest|import\(", written(text))
    assert "default-src 'none'" in text and "unsafe-eval" not in text


def test_every_status_and_reason_is_counted():
    results = one_of_each() + [sample(20 + number, Status.CONSTRAINTS, reason_code="shared_memory") for number in range(3)]
    assert reasons(results)[0] == (Status.CONSTRAINTS, "shared_memory", 3, "the point is constraints")
    text = Page(html_report(results)).text()
    assert all(f"{status}_code" in text for status in Status if status is not Status.CORRECT)
    assert re.search(r"10\npoints\n1\ncorrect\n4\nrejected by constraints\n1\nno valid spec\n4\nfailed", text)


def test_failures_are_listed_and_rejected_points_are_not():
    text = html_report(one_of_each())
    listed = text[text.index("Failures</h2>") :].split("</section>")[0]
    assert "sgemm_4" in listed and "sgemm_1" not in listed


def test_failures_of_one_reason_stand_together():
    results = [sample(number, Status.CORRECTNESS if number % 3 else Status.TIMEOUT) for number in range(9)]
    groups = re.findall(r'<details class="failed">.*?</details>', html_report(results), re.DOTALL)
    assert [group.count("<tr><td>") for group in groups] == [6, 3]
    assert "correctness_code" in groups[0] and "timeout_code" in groups[1]


def test_what_results_say_is_never_markup():
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    results = [
        sample(
            number,
            status,
            reason=evil,
            reason_code=evil,
            instance=evil,
            sweep=evil,
            device=evil,
            compiler=evil,
            kind=evil,
            axes={evil: evil if number % 2 else "b", "x": number},
            spec={evil: evil},
        )
        for number in range(8)
        for status in (Status.CORRECT, Status.TIMEOUT)
    ]
    page = Page(html_report(results))
    assert len(page.all("script")) == 3 and not page.all("img")
    assert evil in "".join(text for _, text in page.texts)


def test_every_point_is_in_the_data_of_the_charts():
    (group,) = data(html_report(many(50)))["groups"]
    assert sorted(column(group, "number")) == list(range(50))
    assert list(group["charts"]) == ["progress", "a1", "a0", "choice"]


def test_points_beyond_the_limit_are_a_sample_that_says_so():
    text = html_report(many(6000))
    (group,) = data(text)["groups"]
    assert MAX_DOTS * 0.9 < len(group["points"]["rows"]) <= MAX_DOTS * 1.05
    assert re.search(r"[45],\d\d\d of 6,000 points are drawn", text)
    assert len(text) < 3_000_000
    assert text == html_report(many(6000))


def test_best_of_each_value_is_drawn():
    results = many(6000)
    (group,) = grouped(results)
    drawn = {one.number for one in group.drawn(100)}
    assert all(one.number in drawn for axis in group.axes for one in list(group.best_by_value(axis).values())[:24])


def test_a_point_has_its_value_and_settings():
    (group,) = data(html_report(many(10)))["groups"]
    point = dict(zip(group["points"]["fields"], group["points"]["rows"][3], strict=True))
    assert (point["a0"], point["a1"], point["told"], point["order"]) == ("3", "24", "11.7 TFLOP/s", 4)


def test_axes_are_filters_and_choices_with_metrics():
    results = [sample(number, axes={"tile": number, "stages": number % 3}) for number in range(40)]
    (group,) = data(html_report(results))["groups"]
    assert {one["title"]: one["values"] for one in group["filters"]} == {"tile": None, "stages": ["0", "1", "2"]}
    assert {one["title"]: one["better"] for one in group["choices"]}["time, µs"] == -1
    assert group["usual"]["y"] == "median_us"


def test_labels_stand_beyond_the_best_point():
    (group,) = data(html_report(many(50)))["groups"]
    labels = [layer["mark"] for chart in group["charts"].values() for layer in chart["layer"] if layer["mark"]["type"] == "text"]
    assert [label["dy"] for label in labels] == [-11]


def test_results_are_compared_with_others():
    before = [sample(number, spec=SPEC | {"label": str(number)}) for number in range(20)]
    after = [
        sample(
            number,
            Status.TIMEOUT if number == 3 else Status.CORRECT,
            spec=one.spec,
            **({} if number == 3 else {"metrics": one.metrics | {"median_us": one.metrics["median_us"] / 2}}),
        )
        for number, one in enumerate(before)
        if number
    ]
    text = html_report(after, against=("old.sqlite", before))
    assert "19 points are in both, 1 only before, 0 only now" in text and "is 2.000 as a geometric mean of 18" in text
    assert len(data(text)["charts"]["comparison"]["layer"][1]["data"]["values"]) == 18
    assert "Ended otherwise" in text and "Less time" in text and "More time" not in text


def test_a_page_of_a_sweep_that_runs_is_loaded_again():
    assert '<meta http-equiv="refresh" content="5">' in html_report(many(3), live=5)
    assert 'http-equiv="refresh"' not in html_report(many(3))


def test_a_page_of_a_sweep_that_runs_has_its_name_from_the_start(tmp_path):
    LiveReport(tmp_path / "live.html", "tiles of mine")
    assert "<h1>tiles of mine</h1>" in (tmp_path / "live.html").read_text()


def test_problems_and_devices_are_not_mixed():
    results = [sample(0), sample(1, problem={"m": 1, "n": 2, "k": 3}), sample(2, device="NVIDIA A100"), sample(3, architecture="sm_80")]
    assert [len(group.shown) for group in grouped(results)] == [1, 1, 1, 1]


def test_many_problems_begin_with_an_overview():
    results = [sample(number, problem={"m": size, "n": 512, "k": 512}) for size in (64, 128, 256) for number in range(size, size + 4)]
    page = Page(html_report(results))
    assert [one["href"] for one in page.all("a")] == [f"#{one['id']}" for one in page.all("details", "problem")]
    assert "open" in page.all("details", "problem")[0] and "open" not in page.all("details", "problem")[1]


def test_points_that_were_rejected_are_with_those_that_ran():
    results = [sample(0), sample(1, Status.CONSTRAINTS)]
    assert [len(group.results) for group in grouped(results)] == [2]


def test_without_times_registers_are_shown():
    results = [sample(number, metrics={"registers": 60.0 + number}, device="", backend="emulator", problem={}) for number in range(9)]
    (group,) = grouped(results)
    assert group.measure.metric == "registers" and group.ranked[0].value == 60
    assert "60 registers" in Page(html_report(results)).text()


def test_the_roof_is_that_of_the_device_and_the_problem():
    (group,) = grouped([sample(0, metrics={"median_us": 20.0, "operations_per_second": 13.4e12, "bytes_per_second": 1.57e11})])
    assert group.roofs is not None and group.roofs.device.name == "H200" and group.roofs.binding == "compute"
    assert group.fraction(group.shown[0].result) == pytest.approx(2 * 512**3 / 65.5e12 / 20e-6)


def test_problems_under_a_roof_are_told_apart_by_a_legend():
    sizes = [{"m": size, "n": size, "k": size} for size in (2048, 2049, 2050)]
    spec = data(html_report([sample(number, problem=problem) for number, problem in enumerate(sizes)]))["charts"]["roofline-0"]
    assert spec["layer"][1]["encoding"]["color"]["sort"] == [f"{size} × {size} × {size}" for size in (2048, 2049, 2050)]
    assert all(layer["mark"]["type"] != "text" for layer in spec["layer"])


def test_a_problem_that_was_not_timed_has_no_column_for_its_peer():
    results = [sample(number, metrics={"registers": 40.0}, problem={"m": 1 + number, "n": 1, "k": 1}) for number in range(2)]
    assert "to peer" not in html_report(results) and "1 points" not in html_report(results)


@pytest.mark.parametrize(
    ("name", "architecture", "found"),
    [
        ("NVIDIA H200", "sm_90a", "H200"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "A100"),
        ("NVIDIA H100 PCIe", "sm_90a", None),
        ("NVIDIA H200", "sm_75", None),
        ("", "sm_90", None),
        ("NVIDIA T400", "sm_75", None),
        ("Tesla T4", "sm_75", "T4"),
    ],
)
def test_a_device_is_known_by_name_and_architecture(name, architecture, found):
    device = known_device(name, architecture)
    assert (device.name if device else None) == found


def test_results_that_cannot_be_drawn_are_counted_all_the_same():
    results = [sample(number, metrics={"median_us": value}) for number, value in enumerate((math.nan, math.inf, 0.0, -1.0))]
    assert re.search(r"4\npoints\n4\ncorrect", Page(html_report(results)).text())


def test_the_best_point_comes_first_and_its_yaml_is_its_spec():
    text = html_report(many(30))
    listed = re.findall(r'<pre class="code">(.*?)</pre>', text, re.DOTALL)
    assert len(listed) == 20 and load_spec(yaml.safe_load(listed[0])) == load_spec(SPEC)
    ranks = [float(value) for value in re.findall(r'<td class="num" data-key="([\d.e+]+)">[\d.]+ TFLOP/s', text)]
    assert ranks == sorted(ranks, reverse=True) and len(ranks) == 20


def test_a_spec_that_cannot_be_read_any_more_is_shown_as_it_was():
    assert yaml.safe_load(spec_yaml({"kind": "gone", "tile": [1, 2]})) == {"kind": "gone", "tile": [1, 2]}


def test_axes_have_the_shortest_names_that_tell_them_apart():
    names = short_names(["mainloop.tile.threadblock.m", "mainloop.tile.warp.m", "mainloop.stages", "k", "alignment.a"])
    assert list(names.values()) == ["threadblock.m", "warp.m", "stages", "k", "alignment.a"]


def test_jitter_depends_on_the_digest_only():
    assert jitter("a") == jitter("a") != jitter("b") and all(-1 <= jitter(str(number)) <= 1 for number in range(200))


def test_large_numbers_of_a_report_have_no_exponents():
    results = [sample(number, metrics={"predicted_us": 10.0 ** (4 + 3 * number)}, device="", backend="emulator") for number in range(2)]
    (group,) = grouped(results)
    told = Page(html_report(results)).text()
    assert "10,000 µs predicted" in told and not re.search(r"\de\+\d", told)
    assert all("times as much" in chart.remark for chart in axis_charts(group))


def test_every_one_of_few_points_is_a_tick():
    (group,) = grouped(many(3))
    ticks = [layer["encoding"]["x"]["axis"]["values"] for layer in progress_chart(group).spec["layer"][:2]]
    assert ticks == [[1, 2, 3]] * 2


def predicted(times: dict[tuple[int, str], float]) -> list[PointResult]:
    return [
        sample(n, axes={"mainloop.stages": stages, "mainloop.swizzle": swizzle}, metrics={"predicted_us": time}, problem={})
        for n, ((stages, swizzle), time) in enumerate(times.items())
    ]


def test_axes_that_the_model_does_not_see_are_named():
    results = predicted({(2, "none"): 5.0, (3, "none"): 5.0, (2, "xor"): 7.0, (3, "xor"): 7.0})
    assert unseen_axes(results) == ("mainloop.stages",)
    text = Page(html_report(results)).text()
    assert text.count("the model does not distinguish these values") == 1 and "makes no difference" not in text
    assert unseen_axes(predicted({(2, "none"): 5.0, (3, "xor"): 5.0})) == ()
    assert unseen_axes(predicted({(2, "none"): 5.0, (3, "none"): 5.1})) == ()


def test_differences_below_the_models_resolution_rank_nothing():
    results = predicted({(2, "none"): 12268.27, (3, "none"): 12267.16, (2, "xor"): 12262.83, (3, "xor"): 12261.72})
    assert unseen_axes(results) == ("mainloop.stages", "mainloop.swizzle")
    (group,) = grouped(results)
    assert {chart.remark for chart in axis_charts(group)} == {"the model does not distinguish these values: only a measurement does"}


def test_a_value_that_a_point_inherits_is_shown_instead_of_none():
    set_by_axis, inherited = (
        sample(spec={"mainloop": {"stages": 3}}, axes={"mainloop.stages": 3}),
        sample(spec={"mainloop": {"stages": 2}}, axes={}),
    )
    assert [value_text(one, "mainloop.stages") for one in (set_by_axis, inherited)] == ["3", "2"]
    assert value_text(sample(spec={"mainloop": "auto"}, axes={}), "mainloop.stages") == "(none)"
