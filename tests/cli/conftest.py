from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gemmgen.cli import cli

SPEC = """\
kind: gemm
alpha: one
beta: zero
mainloop:
  strategy: tiled
  tile:
    threadblock: {m: 32, n: 32, k: 8}
    warp: {m: 32, n: 32}
    thread: {m: 8, n: 4}
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in an empty directory and checks its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run_command(*arguments: str | Path, code: int = 0) -> Outcome:
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="gemmgen")
        assert result.exit_code == code, f"exit code {result.exit_code}\n{result.stdout}\n{result.stderr}"
        assert code == 70 or "Traceback" not in result.stderr
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run_command


@pytest.fixture
def spec(tmp_path: Path, run: Run) -> Path:
    """A small spec in the current directory, named as a user would."""
    file = tmp_path / "small.yaml"
    file.write_text(SPEC)
    return Path("small.yaml")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whatever this one has."""
    monkeypatch.setattr("gemmgen.runtime.cuda.driver._probe", lambda: ((), "this machine has no NVIDIA driver; use the emulator"))
