"""The pictures in the documentation equal the output of the commands beside them, byte by byte."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cli.conftest import Run, run

__all__ = ["run"]

ROOT = Path(__file__).parents[3]
COMMANDS = re.findall(r"^gemmgen (draw .+) -o docs/(\S+)$", (ROOT / "docs" / "pictures.md").read_text(), re.MULTILINE)


def test_each_picture_has_its_command() -> None:
    shown = re.findall(r"\]\((\S+\.svg)\)", (ROOT / "docs" / "pictures.md").read_text())
    assert shown == [name for _, name in COMMANDS] and len(COMMANDS) >= 3


@pytest.mark.parametrize(("command", "name"), COMMANDS)
def test_a_command_draws_what_is_committed(run: Run, command: str, name: str) -> None:
    run(*shlex.split(command), "-o", name)
    assert Path(name).read_bytes() == (ROOT / "docs" / name).read_bytes()
