"""Attacks that are held off, each with its tests, and with a change of the code that these tests notice."""

from __future__ import annotations

import ast
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOM = Path(__file__).parent
ROOT = ROOM.parents[1]
CASES: list[dict[str, Any]] = yaml.safe_load((ROOM / "cases.yaml").read_text())
PLANTED = [case for case in CASES if "in" in case]
CHOSEN = PLANTED if os.environ.get("GEMMGEN_PLANTED") == "all" else PLANTED[:1]
MEMORY = 6 << 30
"""Of the process in which a bound on memory is missing."""


def changed(case: dict[str, Any]) -> str:
    """The text of a module with the changes that the case plants; the places stand in it once."""
    text = (ROOT / "gemmgen" / case["in"]).read_text()
    for change in (case, *([case["and"]] if "and" in case else [])):
        assert text.count(change["before"]) == 1, f"{case['case']}: {change['before']!r}"
        text = text.replace(change["before"], change["after"])
    return text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_every_case_names_tests_that_there_are(case: dict[str, Any]) -> None:
    for test in case["tests"]:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOM / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


@pytest.mark.parametrize("case", PLANTED, ids=lambda case: case["case"])
def test_what_is_planted_is_a_change(case: dict[str, Any]) -> None:
    text = changed(case)
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse((ROOT / "gemmgen" / case["in"]).read_text()))


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case["case"])
def test_a_planted_mistake_is_noticed(case: dict[str, Any], tmp_path: Path) -> None:
    text = changed(case)
    for folder in ("gemmgen", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for other in ("docs", "specs", "templates", "generated", "pyproject.toml"):
        (tmp_path / other).symlink_to(ROOT / other)
    (tmp_path / "gemmgen" / case["in"]).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/robustness/{case['tests'][0]}"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "failed" in done.stdout, done.stdout[-2000:]
