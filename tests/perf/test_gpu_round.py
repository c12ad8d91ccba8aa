"""The round of measurements: what is run, what is not, and what the journal says."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import click
import pytest

from gemmgen.cli import cli
from measurements.gpu_round import ROOT, Step, copier, run, run_all, specs, steps, succeeded


def step(name: str, code: str, least: int = 0) -> Step:
    return Step(name, (sys.executable, "-c", code), 600, least)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def entries(journal: Path) -> list[tuple[str, int]]:
    return [(entry["step"], entry["rc"]) for entry in map(json.loads, journal.read_text().splitlines())]


def test_steps_run_in_order_and_failures_are_counted(journal: Path) -> None:
    assert run_all([step("a", ""), step("b", "raise SystemExit(3)"), step("c", "")], 6000, journal, "x") == 1
    assert entries(journal) == [("a", 0), ("b", 3), ("c", 0)]


def test_what_succeeded_at_the_commit_is_not_run_again(journal: Path) -> None:
    run_all([step("a", ""), step("b", "raise SystemExit(3)")], 6000, journal, "x")
    run_all([step("a", ""), step("b", "")], 6000, journal, "x")
    assert entries(journal) == [("a", 0), ("b", 3), ("b", 0)]


def test_another_commit_runs_all_again(journal: Path) -> None:
    run_all([step("a", "")], 6000, journal, "x")
    run_all([step("a", "")], 6000, journal, "y")
    assert entries(journal) == [("a", 0), ("a", 0)]


def test_no_step_begins_with_too_little_time(journal: Path) -> None:
    assert run_all([step("a", "", least=100)], 50, journal, "x") == 0
    assert not journal.exists()


def test_a_step_is_ended_at_its_limit() -> None:
    assert run(step("a", "import time; print('begun', flush=True); time.sleep(100000)"), 5)[0] == 124


def test_a_line_of_the_journal_that_was_cut_off_is_nothing(journal: Path) -> None:
    journal.write_text('{"step": "a", "commit": "x", "rc": 0}\n{"step": "b", "com')
    assert succeeded(journal, "x") == {"a"}


def test_what_a_step_printed_is_copied(tmp_path: Path, journal: Path) -> None:
    run_all([step("one step", "print(1 + 1)")], 6000, journal, "x", copier(tmp_path / "out"))
    assert (tmp_path / "out" / "one_step.txt").read_text() == "2\n"


def test_every_program_of_the_round_exists() -> None:
    programs = [one.command[2].removeprefix("measurements.") for one in steps() if one.command[2].startswith("measurements.")]
    assert len(programs) > 5
    assert [name for name in programs if not (ROOT / "measurements" / f"{name}.py").is_file()] == []


@pytest.mark.parametrize("one", [one for one in steps() if one.command[2] == "gemmgen"], ids=lambda one: one.name)
def test_every_command_of_the_round_has_what_it_requires(one: Step) -> None:
    command: click.Command = cli
    words = list(one.command[3:])
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    assert command.make_context(one.name, words).params


@pytest.mark.parametrize("path", sorted((ROOT / "measurements").glob("*.py")), ids=lambda path: path.stem)
def test_programs_import_one_another_by_the_package(path: Path) -> None:
    """Modules that `python -m measurements.NAME` cannot find are named here: a GPU machine is a dear place to find it out."""
    beside = {file.stem for file in path.parent.glob("*.py")}
    tree = ast.walk(ast.parse(path.read_text()))
    bare = [node.module for node in tree if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in beside]
    assert bare == []


def test_patterns_of_the_round_name_specs() -> None:
    assert len(specs("gemm/mma_sync/*")) > 10
    assert specs("gemm/mma_sync/none") == ()
