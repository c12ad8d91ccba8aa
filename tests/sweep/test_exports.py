"""Exports of results: each format is valid, holds every result, and survives whatever text and numbers results contain."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmgen.sweep.exports import EXPORTS, export, ordered, write_junit
from gemmgen.sweep.junit import _short_paths
from gemmgen.sweep.records import PointResult, Stage, Status, SweepError
from sweep.samples import one_of_each, sample

NASTY = "<b>&\"'\x00\x07\ud800 ]]> \u2028 \r\n é 漢 =1+1"


def written(form: str, results: list[PointResult], folder: Path) -> Path:
    path = folder / f"out.{form}"
    EXPORTS[form](results, path)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("form", EXPORTS)
def test_the_order_of_results_does_not_change_the_file(form, tmp_path):
    results = [sample(number) for number in range(40)] + [sample(40 + number, status) for number, status in enumerate(Status)]
    straight = written(form, results, tmp_path).read_bytes()
    random.Random(1).shuffle(results)
    assert written(form, results, tmp_path).read_bytes() == straight


@pytest.mark.parametrize("form", EXPORTS)
def test_a_file_that_cannot_be_written_is_one_message(form, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SweepError, match="cannot be written"):
        EXPORTS[form]([sample()], tmp_path / "file" / "below")


def test_the_format_follows_from_the_name(tmp_path):
    export([sample()], tmp_path / "a.xml")
    assert ElementTree.parse(tmp_path / "a.xml").getroot().tag == "testsuites"


def test_a_name_without_a_format_is_told_the_formats(tmp_path):
    with pytest.raises(SweepError, match="csv, jsonl, t4, junit, html"):
        export([], tmp_path / "a.txt")


def test_csv_holds_every_value(tmp_path):
    result = sample(3, axes={"stages": 4, "tile": {"m": 64}, "copies": "cp_async"})
    (row,) = rows_of(written("csv", [result], tmp_path))
    assert row["status"] == "correct" and row["digest"] == result.digest
    assert (row["axes.stages"], json.loads(row["axes.tile"]), row["axes.copies"]) == ("4", {"m": 64}, "cp_async")
    assert {name: float(row[f"metrics.{name}"]) for name in result.metrics} == result.metrics
    assert {name: float(row[f"seconds.{name}"]) for name in result.seconds} == result.seconds
    assert {name: int(row[f"problem.{name}"]) for name in result.problem} == result.problem
    assert json.loads(row["spec"]) == result.spec


def test_csv_of_results_with_different_axes_leaves_cells_empty(tmp_path):
    rows = rows_of(written("csv", [sample(0, axes={"a": 1}), sample(1, axes={"b": 2})], tmp_path))
    assert [(row["axes.a"], row["axes.b"]) for row in rows] == [("1", ""), ("", "2")]


def test_csv_text_never_begins_as_a_formula(tmp_path):
    results = [sample(number, reason=text) for number, text in enumerate(("=1+1", "+1", "-1", "@x", "\t=1"))]
    assert all(row["reason"].startswith("'") for row in rows_of(written("csv", results, tmp_path)))


def test_csv_keeps_negative_and_endless_numbers(tmp_path):
    (row,) = rows_of(written("csv", [sample(metrics={"a": -1.5, "b": float("inf"), "c": float("nan")})], tmp_path))
    assert (float(row["metrics.a"]), row["metrics.b"], row["metrics.c"]) == (-1.5, "inf", "nan")


def test_csv_of_nothing_is_a_header(tmp_path):
    path = written("csv", [], tmp_path)
    assert rows_of(path) == [] and path.read_text().startswith("sweep,kind,")


def test_jsonl_reads_back_as_the_results(tmp_path):
    results = one_of_each()
    lines = written("jsonl", results, tmp_path).read_text().splitlines()
    assert [PointResult.from_json(json.loads(line)) for line in lines] == ordered(results)


def test_jsonl_of_nothing_is_empty(tmp_path):
    assert written("jsonl", [], tmp_path).read_bytes() == b""


# The results format T4, version 1.1.0, as far as it concerns these files.
T4: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema_version": {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+$"},
        "metadata": {
            "type": "object",
            "properties": {
                "compute_api": {"enum": ["OpenCL", "CUDA", "Vulkan"]},
                "platform": {"type": "string"},
                "device": {"type": "string"},
                "autotuner": {"type": "string"},
                "autotuner_version": {"type": "string"},
                "timestamp": {"type": "string"},
                "timeunit": {"enum": ["nanoseconds", "microseconds", "milliseconds", "seconds"]},
            },
        },
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["configuration", "times", "invalidity", "correctness"],
                "properties": {
                    "timestamp": {"type": "string"},
                    "configuration": {"type": "object"},
                    "objectives": {"type": "array", "items": {"type": "string"}},
                    "times": {
                        "type": "object",
                        "properties": {
                            "compilation_time": {"type": "number"},
                            "runtimes": {"type": "array", "items": {"type": "number"}},
                            "framework": {"type": "number"},
                            "search_algorithm": {"type": "number"},
                            "validation": {"type": "number"},
                        },
                    },
                    "invalidity": {"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
                    "correctness": {"enum": [0, 1]},
                    "measurements": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}, "value": {"type": "scalar"}, "unit": {"type": "string"}},
                        },
                    },
                },
            },
        },
    },
}
TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float), "scalar": (int, float, str, list)}


def violations(data: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """Parts of ``data`` that a JSON Schema does not allow: of its words, those that stand above."""
    found = []
    if "type" in schema and (not isinstance(data, TYPES[schema["type"]]) or isinstance(data, bool)):
        return [f"{where}: {data!r} is no {schema['type']}"]
    if "enum" in schema and data not in schema["enum"]:
        found.append(f"{where}: {data!r} is none of {schema['enum']}")
    if "pattern" in schema and not re.search(schema["pattern"], data):
        found.append(f"{where}: {data!r} does not match")
    if isinstance(data, dict):
        found += [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in data]
        for name, below in schema.get("properties", {}).items():
            found += violations(data[name], below, f"{where}.{name}") if name in data else []
    if isinstance(data, list) and "items" in schema:
        for place, item in enumerate(data):
            found += violations(item, schema["items"], f"{where}[{place}]")
    return found


def strict_json(path: Path) -> Any:
    def refuse(text: str) -> Any:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_t4_keeps_to_its_schema(tmp_path):
    assert violations(strict_json(written("t4", one_of_each(), tmp_path)), T4) == []


def test_the_check_of_t4_can_fail():
    assert violations({"results": [{"configuration": {}, "times": {"validation": "1"}, "invalidity": "wrong"}]}, T4) == [
        ".results[0]: correctness is missing",
        ".results[0].times.validation: '1' is no number",
        ".results[0].invalidity: 'wrong' is none of ['timeout', 'compile', 'runtime', 'correctness', 'constraints', 'correct']",
    ]


def test_t4_times_are_milliseconds(tmp_path):
    document = strict_json(written("t4", [sample(0)], tmp_path))
    (result,) = document["results"]
    assert document["metadata"]["timeunit"] == "milliseconds"
    assert result["times"]["runtimes"] == pytest.approx([0.020])
    assert (result["times"]["compilation_time"], result["times"]["validation"]) == (500.0, 2000.0)
    assert {"name": "time", "value": pytest.approx(0.020), "unit": "milliseconds"} in result["measurements"]


def test_t4_status_and_correctness_agree(tmp_path):
    results = strict_json(written("t4", one_of_each(), tmp_path))["results"]
    as_t4 = [Status.CONSTRAINTS if status is Status.INVALID else status for status in Status]
    assert sorted(one["invalidity"] for one in results) == sorted(map(str, as_t4))
    assert all(one["correctness"] == (one["invalidity"] == "correct") for one in results)


def test_t4_leaves_out_numbers_that_json_lacks(tmp_path):
    (result,) = strict_json(written("t4", [sample(metrics={"worst_ratio": float("inf"), "registers": 9.0})], tmp_path))["results"]
    names = [one["name"] for one in result["measurements"]]
    assert "registers" in names and "worst_ratio" not in names


def test_t4_of_nothing_has_no_results(tmp_path):
    document = strict_json(written("t4", [], tmp_path))
    assert document["results"] == [] and violations(document, T4) == []


TOKEN = re.compile(r"\S+( \S+)*")
SUITE = {"package", "id", "name", "timestamp", "hostname", "tests", "failures", "errors", "skipped", "time"}
DECIMAL = re.compile(r"[0-9]{0,3}(,?[0-9]{3})*(\.[0-9]*)?|[0-9]+\.[0-9]+")


def check_junit(root: ElementTree.Element) -> None:
    """Structure that the schemas of Ant's JUnit task and of Jenkins's xUnit plugin both allow."""
    assert root.tag == "testsuites" and not root.attrib
    for number, suite in enumerate(root):
        assert suite.tag == "testsuite" and set(suite.attrib) == SUITE and suite.get("id") == str(number)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        assert all(TOKEN.fullmatch(suite.attrib[name]) for name in ("name", "package", "hostname"))
        cases = suite.findall("testcase")
        assert [child.tag for child in suite] == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
        assert all(set(one.attrib) == {"name", "value"} and one.get("name") for one in suite.iterfind("properties/property"))
        ends = {"failures": "failure", "errors": "error", "skipped": "skipped"}
        assert {name: suite.get(name) for name in ends} == {
            name: str(sum(case.find(tag) is not None for case in cases)) for name, tag in ends.items()
        }
        assert suite.get("tests") == str(len(cases))
        for case in cases:
            assert set(case.attrib) == {"name", "classname", "time"} and DECIMAL.fullmatch(case.attrib["time"])
            assert TOKEN.fullmatch(case.attrib["name"]) and TOKEN.fullmatch(case.attrib["classname"])
            assert len(case) <= 1 and all(child.tag in ends.values() and "type" in child.attrib for child in case)


def junit_of(results: list[PointResult], folder: Path) -> ElementTree.Element:
    root = ElementTree.parse(written("junit", results, folder)).getroot()
    check_junit(root)
    return root


def test_junit_has_a_case_for_each_result(tmp_path):
    (suite,) = junit_of(one_of_each(), tmp_path)
    ends = {status: [child.tag for child in case] for case, status in zip(suite.findall("testcase"), Status, strict=True)}
    assert ends == {
        Status.CORRECT: [],
        Status.CONSTRAINTS: ["skipped"],
        Status.INVALID: ["error"],
        Status.COMPILE: ["error"],
        Status.RUNTIME: ["error"],
        Status.CORRECTNESS: ["failure"],
        Status.TIMEOUT: ["error"],
    }


def test_junit_tells_the_reason(tmp_path):
    (suite,) = junit_of([sample(0, Status.CORRECTNESS, reason="C[1] is 2, expected 3\nmore", reason_code="wrong")], tmp_path)
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.get("message") == "C[1] is 2, expected 3" and failure.get("type") == "wrong"
    assert "more" in (failure.text or "")


def test_junit_names_are_axes_and_sizes_and_differ(tmp_path):
    (suite,) = junit_of([sample(1), sample(1, digest="other")], tmp_path)
    name = "stages=2 copies=cp_async 512x512x512"
    assert [case.get("name") for case in suite.findall("testcase")] == [name, f"{name} #2"]


def test_junit_has_a_suite_for_each_sweep_and_architecture(tmp_path):
    root = junit_of([sample(0), sample(1, architecture="sm_80"), sample(2, sweep="other")], tmp_path)
    assert [suite.get("name") for suite in root] == ["other sm_90a", "tiles sm_80", "tiles sm_90a"]


def test_short_names_of_fields_stay_apart():
    paths = ["mainloop.tile.thread.m", "mainloop.tile.warp.m", "mainloop.stages", "stages", "alignment.a"]
    assert list(_short_paths(paths).values()) == ["thread.m", "warp.m", "mainloop.stages", "stages", "a"]


def test_junit_after_an_interrupt_says_that_points_are_missing(tmp_path):
    path = tmp_path / "found.xml"
    write_junit([sample(0)], path, "the sweep was interrupted")
    root = ElementTree.parse(path).getroot()
    check_junit(root)
    assert [suite.get("name") for suite in root] == ["tiles sm_90a", "incomplete"]
    assert root[1].find("testcase/error").get("message") == "the sweep was interrupted"


def test_invalid_points_are_constraints_in_t4(tmp_path):
    document = json.loads(written("t4", [sample(0, Status.INVALID)], tmp_path).read_text())
    assert [one["invalidity"] for one in document["results"]] == ["constraints"]


def test_junit_of_nothing_has_no_suites(tmp_path):
    assert len(junit_of([], tmp_path)) == 0


text = st.text(max_size=12) | st.sampled_from([NASTY, "", " ", "\x1b[0m", "]]>", "\ud800"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text
values = st.recursive(scalars, lambda below: st.lists(below, max_size=2), max_leaves=3)
numbers = st.dictionaries(text, st.floats(), max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    reasons=st.lists(text, min_size=1, max_size=3),
    axes=st.dictionaries(text, values, max_size=3),
    metrics=numbers,
    seconds=numbers,
    status=st.sampled_from(Status),
    name=text,
    date=text,
)
def test_no_content_breaks_a_format(reasons, axes, metrics, seconds, status, name, date, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    results = [
        sample(
            number,
            status,
            reason=reason,
            reason_code=name,
            sweep=name,
            instance=name,
            device=name,
            axes=axes,
            metrics={**metrics, "median_us": metrics.get("", 1.0)},
            seconds=seconds,
            date=date,
            spec={"kind": name, **axes},
        )
        for number, reason in enumerate(reasons)
    ]
    assert len(rows_of(written("csv", results, folder))) == len(results)
    assert len([json.loads(line) for line in written("jsonl", results, folder).read_text().splitlines()]) == len(results)
    assert violations(strict_json(written("t4", results, folder)), T4) == []
    assert sum(len(suite.findall("testcase")) for suite in junit_of(results, folder)) == len(results)
    written("html", results, folder)


def test_stages_do_not_matter_to_the_files(tmp_path):
    results = [sample(number, stage=stage) for number, stage in enumerate(Stage)]
    assert [row["stage"] for row in rows_of(written("csv", results, tmp_path))] == [str(stage) for stage in Stage]
