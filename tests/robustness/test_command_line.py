"""Commands under odd command lines, terminals and folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sweep.samples import sample

from gemmgen.cli import cli
from gemmgen.cli.selection import find_specs
from gemmgen.core.errors import SpecError
from gemmgen.sweep.records import PointResult, SweepError
from gemmgen.sweep.store import ResultStore
from gemmgen.toolchain.nvrtc import _from_files, _to_files, compile_source

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-P", "-m", "gemmgen")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="gemmgen")


EMPTY = {
    "a spec": ["check", ""],
    "render": ["render", "gemm/v0_naive", "-o", ""],
    "compile": ["compile", "gemm/v0_naive", "-o", ""],
    "schema": ["schema", "-o", ""],
    "export": ["export", "gemm/v0_naive", "--format", "header", "-o", ""],
    "draw": ["draw", "gemm/v3_double_buffer", "-o", ""],
    "results": ["sweep", "ci_gemm", "--stages", "check", "--results", ""],
    "winner": ["sweep", "ci_gemm", "--stages", "check", "--winner", ""],
    "library": ["library", "list", "--library", ""],
    "list": ["library", "check", "--list", ""],
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_name_is_not_the_current_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(*EMPTY[name])
    assert outcome.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("digits", [30, 400, 5000])
@pytest.mark.parametrize("arguments", [("explain", "gemm/v0_naive", "--size"), ("explain", "--problem")])
def test_a_size_of_many_digits_is_a_short_message(arguments: tuple[str, ...], digits: int) -> None:
    size = f"{'9' * digits},1,1"
    outcome = run(*arguments, f"gemm:{size}" if arguments[-1] == "--problem" else size)
    assert outcome.exit_code == 2 and len(outcome.output) < 600


@pytest.mark.parametrize("value", ["null", "true"])
def test_a_value_is_told_as_yaml_has_it(value: str) -> None:
    assert f"mainloop.stages: got {value}," in run("check", "gemm/v3_double_buffer", "--set", f"mainloop.stages={value}").output


@pytest.mark.parametrize("closed", ["1", "2"])
@pytest.mark.parametrize("arguments", ["--version", "check gemm/v0_naive", "check nothing"])
def test_a_closed_stream_is_no_traceback(closed: str, arguments: str) -> None:
    line = f"{' '.join(COMMAND)} {arguments} {closed}>&-"
    done = subprocess.run(["sh", "-c", line], cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr


def test_a_folder_that_vanishes_during_the_scan_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(self: Path, pattern: str) -> Any:
        raise FileNotFoundError(2, "No such file or directory", str(self / "gone"))

    monkeypatch.setattr(Path, "rglob", vanish)
    with pytest.raises(SpecError, match="gone: cannot be searched"):
        find_specs([str(tmp_path)])


def test_a_file_that_vanishes_after_the_scan_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nothing")
    outcome = run("check", str(tmp_path))
    assert outcome.exit_code == 2 and "cannot be read" in outcome.output


def test_a_warning_that_is_an_error_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "GEMMGEN_CACHE_DIR": str(tmp_path / "cache")}
    line = [sys.executable, "-W", "error", *COMMAND[1:], "compile", "gemm/v0_naive"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "others may write" in done.stderr and "warnings are errors" in done.stderr
    assert "Traceback" not in done.stderr and "bug" not in done.stderr


ROW = sample().to_json()
WRONG_ROWS = {
    "no mapping": [1],
    "a number for a text": {**ROW, "kind": 3},
    "null for a text": {**ROW, "device": None},
    "text among metrics": {**ROW, "metrics": {"registers": "many"}},
    "a list for metrics": {**ROW, "metrics": []},
    "a truth among sizes": {**ROW, "problem": {"m": True}},
    "another status": {**ROW, "status": "fine"},
    "another stage": {**ROW, "stage": "later"},
    "a text for cases": {**ROW, "cases": "one"},
    "more than there is": {**ROW, "colour": "red"},
    "less than there is": {"digest": "x"},
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_row_of_another_shape_is_a_message(name: str) -> None:
    with pytest.raises(SweepError, match="not the result of a point"):
        PointResult.from_json(WRONG_ROWS[name])


@pytest.mark.parametrize("record", ["[" * 100_000, "{", "null", json.dumps({**ROW, "axes": 3})], ids=range(4))
def test_a_damaged_row_in_a_results_file_is_a_message(tmp_path: Path, record: str) -> None:
    with ResultStore(tmp_path / "results") as store:
        store._connection.execute("INSERT INTO results (digest, sweep, record) VALUES ('a', 'b', ?)", (record,))
        with pytest.raises(SweepError, match="holds something that is no result"):
            store.all()


def test_nested_json_in_a_cached_binary_is_a_miss() -> None:
    files = _to_files(compile_source('extern "C" __global__ void kernel() {}', architecture="sm_90"))
    assert _from_files({**files, "binary.json": b"[" * 100_000}, "key") is None
