"""Traits that only a process of its own shows: imports, speed, pipes, signals, completion."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import PATIENCE

GEMMGEN = (sys.executable, "-c", "from gemmgen.cli import main; main()")


def gemmgen(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GEMMGEN, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_are_quick(argument: str) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert gemmgen(argument).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time, since a loaded machine is no reason to fail; the aim is a tenth of a second.
    assert min(seconds() for _ in range(5)) < 1


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(argument: str) -> None:
    code = f"import sys; sys.argv = ['gemmgen', '{argument}']\nfrom gemmgen.cli import main\ntry: main()\nfinally: print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "click" in modules
    assert not {"cuda", "numpy", "pydantic", "jinja2", "yaml", "rich"} & set(modules)


@pytest.mark.parametrize("command", ["render", "check", "explain"])
def test_working_on_specs_alone_touches_no_cuda(command: str) -> None:
    code = (
        f"import sys; sys.argv = ['gemmgen', '{command}', 'gemm/v0_naive']\nfrom gemmgen.cli import main\n"
        "try: main()\nfinally: print(*[name for name in sys.modules if name.split('.')[0] == 'cuda'], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cuda" not in done.stderr


def test_a_thousand_specs_are_rendered_in_seconds(tmp_path: Path) -> None:
    text = (
        "kind: gemm\nmainloop:\n  strategy: tiled\n  min_blocks_per_sm: {blocks}\n  tile:\n    threadblock: {{m: {m}, n: {n}, k: {k}}}\n"
        "    warp: {{m: 32, n: 32}}\n    thread: {{m: 8, n: 4}}\ntranspose: {transpose}\nepilogue: [{{op: scale, factor: {number}}}]\n"
    )
    tiles = [(32, 32, 8), (64, 64, 8), (64, 32, 16), (128, 64, 8), (128, 128, 8)]
    for number in range(1000):
        m, n, k = tiles[number % len(tiles)]
        transpose = ("nn", "nt", "tn", "tt")[number % 4]
        spec = text.format(m=m, n=n, k=k, transpose=transpose, number=number, blocks=1)
        (tmp_path / f"{number}.yaml").write_text(spec)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = gemmgen("render", str(tmp_path), "-o", str(tmp_path / "out"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "1,000 files written" in done.stderr
    # Processor time here too; the aim is 5 s.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60


def test_a_reader_that_goes_away_early_is_no_error_message() -> None:
    with subprocess.Popen([*GEMMGEN, "render", "gemm"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(PATIENCE)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("command", [["schema"], ["render", "gemm"]])
def test_a_full_disk_is_one_message(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*GEMMGEN, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: No space left on device\n"


SLOW = """
import time
from gemmgen.cli import cli, main
def slow(**options):
    print("begun", flush=True)
    time.sleep(600)
cli.get_command(None, "schema").callback = slow
main()
"""


def test_an_interrupt_is_quiet() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert (out.strip(), err.strip()) == ("", "")


INTERRUPTED_AT = """
import os, signal, sys
module, sys.argv = sys.argv[1], ["gemmgen", "explain", "gemm/v0_naive"]
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from gemmgen.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["gemmgen.cli", "click", "gemmgen.cli.application", "gemmgen.cli.commands.explain", "pydantic", "yaml"])
def test_an_interrupt_of_an_import_is_quiet(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_AT, module], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (130, "", "")


@pytest.mark.parametrize("milliseconds", [0, 5, 10, 20, 30, 40, 50, 60])
def test_an_interrupt_at_the_start_shows_no_line_of_gemmgen(milliseconds: int) -> None:
    """Until Python has begun with a program, an interrupt ends it as a signal or with a traceback of Python's own modules, which nothing
    can prevent; from then on it is quiet."""
    process = subprocess.Popen([sys.executable, "-m", "gemmgen", "explain", "gemm/v0_naive"], stdout=-1, stderr=-1, text=True)
    time.sleep(milliseconds / 1000)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    if process.returncode == 130:
        assert (out.strip(), err.strip()) == ("", "")
    else:
        assert process.returncode in (1, -signal.SIGINT) and out == ""
        assert not re.search(r"/gemmgen/(?!__init__|core/__init__|core/version)", err), err


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    code = "import signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + INTERRUPTED_AT
    done = subprocess.run([sys.executable, "-c", code, "click"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "index", "expected"),
    [
        ("gemmgen ver", 1, "verify"),
        ("gemmgen verify gemm/v3", 2, "gemm/v3_double_buffer"),
        ("gemmgen verify x --arch sm_90", 4, "sm_90a"),
        ("gemmgen compile x --arch a", 4, "all"),
        ("gemmgen explain x --device h", 4, "H200"),
    ],
)
def test_completion(words: str, index: int, expected: str, tmp_path: Path) -> None:
    environment = {**os.environ, "_GEMMGEN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
    assert f"plain,{expected}" in gemmgen(env=environment, cwd=tmp_path).stdout.split()


def test_completion_of_files_beside_what_was_typed(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    environment = {**os.environ, "_GEMMGEN_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    assert gemmgen(env={**environment, "COMP_WORDS": "gemmgen check mi"}, cwd=tmp_path).stdout.split() == ["plain,mine.yaml"]
    assert gemmgen(env={**environment, "COMP_WORDS": "gemmgen check /tm"}, cwd=tmp_path).stdout.split() == ["file,/tm"]
