"""Results files that somebody made to harm who reads them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sweep.samples import sample

from gemmgen.cli import cli
from gemmgen.sweep.processes import _last_words
from gemmgen.sweep.records import PointResult, SweepError
from gemmgen.sweep.store import MAX_RECORD_BYTES, ResultStore

ROW = sample().to_json()
ENDLESS = """
WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers)
SELECT number, 'd' || number AS digest, 's' AS sweep, '{}' AS record FROM numbers
"""
FORGET = "AFTER INSERT ON results BEGIN DELETE FROM results WHERE number < new.number; END"
PROGRAMS = {
    "a view in place of the table": ["ALTER TABLE results RENAME TO others", f"CREATE VIEW results AS {ENDLESS}"],
    "a view beside it": [f"CREATE VIEW more AS {ENDLESS}"],
    "a trigger": [f"CREATE TRIGGER forget {FORGET}"],
}


def results_file(folder: Path, *statements: str, record: str = json.dumps(ROW)) -> Path:
    path = folder / "results"
    ResultStore(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("INSERT INTO results (digest, sweep, record) VALUES ('a', 'b', ?)", (record,))
    for statement in statements:
        connection.execute(statement)
    connection.close()
    return path


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_in_a_results_file_are_not_run(tmp_path: Path, name: str, read_only: bool) -> None:
    path = results_file(tmp_path, *PROGRAMS[name])
    with pytest.raises(SweepError, match=r"holds the (view|trigger) '\w+', which gemmgen does not make"):
        ResultStore(path, read_only=read_only)


def test_a_row_of_megabytes_is_a_message(tmp_path: Path) -> None:
    text = json.dumps({**ROW, "reason": "x" * MAX_RECORD_BYTES})
    with pytest.raises(SweepError, match="too big"):
        ResultStore(results_file(tmp_path, record=text), read_only=True).all()


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


BEYOND = {
    "a measure": {"metrics": {"median_us": 10**400}},
    "a time": {"seconds": {"check": 10**400}},
    "a size": {"problem": {"m": 2**63}},
    "an axis": {"axes": {"transpose": nested(70)}},
    "a spec": {"spec": {"kind": {"gemm": nested(300)}}},
}


@pytest.mark.parametrize("form", ["csv", "jsonl", "t4", "junit", "html"])
@pytest.mark.parametrize("name", BEYOND)
def test_a_value_beyond_all_bounds_is_a_message(tmp_path: Path, name: str, form: str) -> None:
    path = results_file(tmp_path, record=json.dumps({**ROW, **BEYOND[name]}))
    outcome = CliRunner().invoke(cli, ["sweep", "--results", str(path), "--export", f"{form}={tmp_path / 'out'}"], prog_name="gemmgen")
    assert outcome.exit_code == 2 and "holds something that is no result" in outcome.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["csv", "jsonl", "t4", "junit", "html"])
def test_half_of_a_surrogate_pair_is_written_as_text(tmp_path: Path, form: str) -> None:
    path = results_file(tmp_path, record=json.dumps({**ROW, "instance": "\ud800", "reason": "\udcff", "status": "runtime"}))
    outcome = CliRunner().invoke(cli, ["sweep", "--results", str(path), "--export", f"{form}={tmp_path / 'out'}"], prog_name="gemmgen")
    assert outcome.exit_code == 0 and (tmp_path / "out").read_text(encoding="utf-8")


@pytest.mark.parametrize("field", ["instance", "reason", "reason_code", "device", "sweep", "kind"])
@pytest.mark.parametrize("status", ["correct", "runtime"])
def test_a_long_text_in_a_row_is_shown_in_short(tmp_path: Path, field: str, status: str) -> None:
    path = results_file(tmp_path, record=json.dumps({**ROW, "status": status, field: "x" * 10**5}))
    outcome = CliRunner().invoke(cli, ["sweep", "--results", str(path)], prog_name="gemmgen")
    assert outcome.exit_code == 0 and len(outcome.output) < 2000


def test_values_within_bounds_are_read() -> None:
    row = {**ROW, "axes": {"transpose": nested(30)}, "metrics": {"median_us": 2**62, "registers": float("inf")}}
    assert PointResult.from_json(row).metrics["median_us"] == 2**62


@pytest.mark.parametrize(
    ("printed", "quoted"),
    [
        ("", ""),
        ("one\n\n two \n", "two"),
        ("two\nFatal Python error: Segmentation fault\n\nExtension modules: yaml._yaml (total: 1)\n", "two"),
        ("Fatal Python error: Segmentation fault\n\nExtension modules: yaml._yaml (total: 1)\n", "Fatal Python error: Segmentation fault"),
    ],
)
def test_last_line_before_a_fatal_error_is_quoted(printed: str, quoted: str) -> None:
    assert _last_words(printed.split("\n")) == quoted
