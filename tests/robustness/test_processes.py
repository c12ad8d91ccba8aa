"""Programs that gemmgen starts: compilers that are none, or lie, and workers that print without end."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gemmgen.cli import cli
from gemmgen.core.errors import EnvironmentMissing
from gemmgen.emulator.program import link
from gemmgen.emulator.ptx.parser import parse
from gemmgen.emulator.waves import _machines
from gemmgen.sweep.processes import Task, Worker, wait_for
from gemmgen.sweep.records import Stage
from gemmgen.toolchain import host

ROOT = Path(__file__).parents[2]
SPEC = "cpu/c0_naive"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="gemmgen")


def compiler(folder: Path, text: str) -> str:
    """A shell script that identifies itself as a compiler."""
    script = folder / 'it\'s a "compiler" $(x).sh'
    script.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo cc 1.0; exit; fi\n{text}\n')
    script.chmod(0o755)
    return "'" + str(script).replace("'", "'\\''") + "'"


@pytest.fixture(autouse=True)
def nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "cache"))
    for found in (host._default_compiler, host._compiler):
        found.cache_clear()


@pytest.mark.parametrize("command", ["'", "gcc '", "/bin/false", "/dev/null", "nothing", " ", "/", "; touch owned", "$(touch owned)"])
def test_a_command_that_is_no_compiler_is_a_message(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMGEN_CC", command)
    with pytest.raises(EnvironmentMissing, match="no C compiler"):
        host.find_compiler()
    assert not (tmp_path / "owned").exists()


def test_another_compiler_stands_in_for_a_command_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMMGEN_CC", raising=False)
    monkeypatch.setenv("CC", "gcc '")
    assert host.find_compiler().command[0] != "gcc '"


LIARS = {
    "bytes that are no text": "printf '\\377\\033[2J: error\\n' >&2; exit 1",
    "no library": "exit 0",
    "a folder for a library": "mkdir library.so",
    "a device for a library": "ln -s /dev/zero library.so",
    "a pipe for a library": "mkfifo library.so",
    "nothing in the library": ": > library.so",
}


@pytest.mark.parametrize("name", LIARS)
def test_a_compiler_that_lies_is_a_message(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMGEN_CC", compiler(tmp_path, LIARS[name]))
    result = run("verify", SPEC)
    assert (result.exit_code in (1, 2), "Traceback" in result.output, "\x1b" in result.output) == (True, False, False)


def test_odd_names_of_folders_reach_the_compiler_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a b'c\"$(touch owned)"
    odd.mkdir()
    monkeypatch.setattr(host.tempfile, "tempdir", str(odd))
    monkeypatch.delenv("GEMMGEN_CC", raising=False)
    result = run("compile", SPEC)
    assert result.exit_code == 0, result.output
    assert list(odd.iterdir()) == []


def chatter(payload: object, enter: Callable[[Stage], None]) -> None:
    """Prints a hundred megabytes and dies."""
    enter(Stage.CHECK)
    for _ in range(100):
        sys.stdout.write("x" * 2**20)
    sys.stdout.write("\nthe last line\n")
    sys.stdout.flush()
    import os

    os._exit(3)


def test_a_worker_that_prints_without_end_is_quoted_briefly() -> None:
    tracemalloc.start()
    worker = Worker({})
    try:
        outcome = worker.submit(Task(f"{__name__}:chatter", None, dict.fromkeys(Stage, 100.0)))
        while outcome is None:
            wait_for([worker.connection], worker.deadline)
            outcome = worker.receive()
        assert outcome.kind == "died" and "the last line" in outcome.text
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
        worker.stop()


def test_a_worker_that_is_ended_leaves_no_file_open() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        worker = Worker({})
        worker.stop()
        printed = worker._printed
        del worker
        gc.collect()
    assert printed.closed and not [warning for warning in told if issubclass(warning.category, ResourceWarning)]


@pytest.mark.parametrize(
    "command",
    ["check gemm/v0_naive", "verify reduction/rows/32", "sweep ci_gemm --dry-run", "explain gemm/v0_naive", "draw gemm/simt/maxas/64"],
)
def test_a_command_leaves_nothing_open(command: str, tmp_path: Path) -> None:
    line = [sys.executable, "-X", "dev", "-W", "error", "-P", "-m", "gemmgen", *command.split()]
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr


def test_a_long_run_does_not_grow() -> None:
    def verified(number: int) -> None:
        result = run("verify", "--backend", "emulator", "reduction/rows/32", "--set", f"label=run_{number}")
        assert result.exit_code == 0, result.output

    def held() -> int:
        for clear in (parse.cache_clear, link.cache_clear, _machines.by_shape.clear):  # each of which has a bound of its own
            clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    verified(0)
    tracemalloc.start()
    try:
        verified(1)
        before = held()
        for number in range(2, 5):
            verified(number)
        assert held() - before < 2**20
    finally:
        tracemalloc.stop()
