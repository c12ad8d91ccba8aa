"""Candidates with host code: programs, torch extensions, Triton kernels; and kernels on a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from sampling import ALL

from gemmgen.cli import cli
from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.judge.api import judge
from gemmgen.judge.programs import ExtensionCandidate, ProgramCandidate, built, extension_program, linked_names, own_counter
from gemmgen.judge.referee import Referee, Verdict
from gemmgen.judge.reference import PythonReference
from gemmgen.judge.task import Task, parse_shapes
from gemmgen.toolchain.nvcc import find_nvcc

REFERENCES = Path(__file__).with_name("references.py")
needs_nvcc = pytest.mark.skipif(
    sys.platform != "linux" or find_nvcc() is None or shutil.which("g++") is None, reason="programs are built by nvcc and g++"
)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
ARRAYS = [{"name": "x", "shape": ["n"]}, {"name": "z", "shape": ["n"]}, {"name": "y", "shape": ["n"], "role": "output"}]
PROGRAM = Path(__file__).with_name("program.cu")
ASKING = Path(__file__).with_name("asking.cu")
EXTENSION = Path(__file__).with_name("extension.cu")


def program_task(mode: str) -> dict[str, Any]:
    return {"command": [mode, "{n}", "{x}", "{z}", "{y}"], "arguments": ARRAYS, "tile": {"n": 64}}


def extension_task(mode: int, **more: Any) -> dict[str, Any]:
    arguments = [*ARRAYS, {"name": "mode", "value": mode}]
    return {"function": "scale_add", "returns": ["y"], "arguments": arguments, "tile": {"n": 64}, **more}


def verdict(candidate: ProgramCandidate, fields: dict[str, Any]) -> Verdict:
    task = Task.model_validate(fields)
    own = type(candidate)(candidate.name, candidate.program, task, candidate.toolkit, candidate.hidden)
    return Referee(own, task, PythonReference(REFERENCES, "scale_add"), parse_shapes(("n=96",))).judge()


@pytest.fixture(scope="module")
def program() -> Iterator[ProgramCandidate]:
    with built(PROGRAM, Task.model_validate(program_task("right"))) as found:
        yield found


@pytest.fixture(scope="module")
def asking() -> Iterator[ProgramCandidate]:
    with built(ASKING, Task.model_validate(program_task("grid"))) as found:
        yield found


@pytest.fixture(scope="module")
def extension() -> Iterator[ProgramCandidate]:
    with built(EXTENSION, Task.model_validate(extension_task(0))) as found:
        yield found


PROGRAM_MODES = [
    ("right", ""),
    ("tiny", "another-polynomial"),
    ("by_argument", ""),
    ("half", "unwritten-output"),
    ("on_the_host", ""),
    ("beyond", "out-of-bounds"),
    ("negated", "wrong-function"),
    ("fails", "fails"),
    ("inputs", "writes-input"),
    ("large", "fails"),
]
ASKING_MODES = [
    ("grid", ""),
    ("name", "reads-device"),
    ("fast_events", "reads-device"),
    ("environment", "wrong-function"),
    ("prints", ""),
    ("warms_up", ""),
    ("checks", ""),
    ("another_name", "reads-device"),
    ("no_emulator", "reads-device"),
    ("memory", "reads-device"),
    ("free_memory", "reads-device"),
    ("clock", "reads-device"),
    ("multiprocessors", "reads-device"),
    ("bus", "reads-device"),
    ("slow_events", "reads-device"),
    ("fast_host", "reads-device"),
    ("fast_day", "reads-device"),
    ("own_name", "wrong-function"),
]
EXTENSION_MODES = [
    (0, ""),
    (1, "keeps-state"),
    (9, "keeps-state"),
    (6, "fails"),
    (2, "writes-input"),
    (3, "unwritten-output"),
    (4, "fails"),
    (5, "race"),
    (7, "race"),
    (8, ""),
]


@needs_nvcc
@pytest.mark.parametrize(("mode", "kind"), PROGRAM_MODES if ALL else PROGRAM_MODES[:4])
def test_programs_are_judged(program: ProgramCandidate, mode: str, kind: str) -> None:
    found = verdict(program, program_task(mode))
    assert found.accepted if not kind else kind in found.kinds, found.failures
    assert ("one run over a finite field" in found.checks) == (mode in ("right", "tiny", "by_argument", "negated"))


@needs_nvcc
@pytest.mark.parametrize(("mode", "kind"), ASKING_MODES if ALL else ASKING_MODES[:3])
def test_programs_may_ask_for_their_device_but_not_decide(asking: ProgramCandidate, mode: str, kind: str) -> None:
    found = verdict(asking, program_task(mode))
    assert found.accepted if not kind else kind in found.kinds, found.failures
    assert any("devices and paces of time" in check for check in found.checks)


@needs_nvcc
@pytest.mark.parametrize(("mode", "kind"), EXTENSION_MODES if ALL else EXTENSION_MODES[:4])
def test_torch_extensions_are_judged_from_source(extension: ProgramCandidate, mode: int, kind: str) -> None:
    assert isinstance(extension, ExtensionCandidate)
    found = verdict(extension, extension_task(mode))
    assert found.accepted if not kind else kind in found.kinds, found.failures
    if mode == 0:
        assert "one run over a finite field" in found.checks
    if mode == 6:
        assert "the result y is [2, " in found.failures[0].message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"/proc/self/maps", "/proc/"),
        (b"/dev/nvidia0", "/dev/"),
        (b"/sys/class/dmi", "/sys"),
        (b"/etc/hostname", "/etc"),
        (b"/dev/null", ""),
        (b"/usr/include/sys/types.h", ""),
    ],
)
def test_a_program_must_not_read_files_of_the_system(tmp_path: Path, text: bytes, found: str) -> None:
    file = tmp_path / "program"
    file.write_bytes(b"fopen\0" + text + b"\0")
    candidate = ProgramCandidate("program", file, Task.model_validate(program_task("right")), None, ())  # type: ignore[arg-type]
    assert candidate.asks_for == found


def test_a_call_of_an_extension_passes_outputs_not_returned() -> None:
    fields = extension_task(0)
    text = extension_program(EXTENSION, Task.model_validate({**fields, "returns": []}))
    assert "scale_add(x, z, y, mode);" in text and "results(" not in text
    fields["arguments"][0] = {"name": "x", "shape": ["n"], "type": "e4m3"}
    with pytest.raises(SpecError, match="e4m3"):
        extension_program(EXTENSION, Task.model_validate(fields))


@pytest.mark.parametrize(
    ("file", "fields", "what"),
    [
        ("program.cu", program_task("right"), "a program"),
        ("extension.cu", extension_task(0), "a torch extension"),
        ("kernel.py", {"grid": [1], "arguments": ARRAYS}, "a Triton kernel"),
    ],
)
def test_host_code_runs_only_if_it_is_allowed(tmp_path: Path, file: str, fields: dict[str, Any], what: str) -> None:
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(fields))
    (tmp_path / file).write_text("raise SystemExit(9)\n")
    options = ["--task", str(tmp_path / "task.yaml"), "--reference", f"{REFERENCES}:scale_add", "--shapes", "n=64"]
    result = CliRunner().invoke(cli, ["judge", str(tmp_path / file), *options])
    assert result.exit_code == 2
    assert what in result.output and "--run-native" in result.output


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"grid": []}, "needs a grid"),
        ({"command": ["{n}"], "function": "f"}, "need one of them"),
        ({"returns": ["x"]}, "x is no output"),
        ({"command": []}, "command"),
    ],
)
def test_tasks_that_make_no_sense_are_told(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    task = tmp_path / "task.yaml"
    task.write_text(yaml.safe_dump({"grid": [1], "block": [64], "arguments": ARRAYS, **more}))
    with pytest.raises(SpecError, match=told):
        judge(PROGRAM, task, (REFERENCES, "scale_add"), ("n=64",))


def test_a_time_needs_the_permission_and_a_kernel(tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text(yaml.safe_dump({"grid": [1], "block": [64], "arguments": ARRAYS}))
    with pytest.raises(SpecError, match="--run-native"):
        judge(PROGRAM, task, (REFERENCES, "scale_add"), ("n=64",), time="n=4096")


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="gcc builds programs for Linux")
@pytest.mark.parametrize(("asked", "found"), [('getenv("HOME")', b"getenv"), ('fopen("HOME", "r")', b"fopen")])
def test_names_that_a_program_is_linked_with(tmp_path: Path, asked: str, found: bytes) -> None:
    source = tmp_path / "program.c"
    source.write_text(f"#include <stdio.h>\n#include <stdlib.h>\nint main(void) {{ return {asked} != 0; }}\n")
    subprocess.run(["gcc", str(source), "-o", str(tmp_path / "program")], check=True)
    names = linked_names((tmp_path / "program").read_bytes())
    assert found in names
    assert (b"getenv" in names) == (found == b"getenv")


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None or shutil.which("objdump") is None, reason="gcc and objdump for Linux"
)
@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("return __builtin_ia32_rdtsc() == 0;", "rdtsc"),
        ('long s; asm volatile("syscall" : "=a"(s) : "a"(39)); return s == 1;', "syscall"),
        ("return 0;", ""),
    ],
)
def test_counters_that_a_program_reads_itself(tmp_path: Path, code: str, found: str) -> None:
    source = tmp_path / "program.c"
    source.write_text(f"int main(void) {{ {code} }}\n")
    subprocess.run(["gcc", str(source), "-o", str(tmp_path / "program")], check=True)
    assert own_counter(tmp_path / "program") == found


TRITON = """
import triton
import triton.language as tl

@triton.jit
def scale_add(x, z, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, 2.0 * tl.load(x + i, mask=i < n) + tl.load(z + i, mask=i < n), mask=i < n)

@triton.jit
def without_mask(x, z, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, 2.0 * tl.load(x + i) + tl.load(z + i))
"""


@needs_triton
@pytest.mark.parametrize(
    ("entry", "constants", "kind"), [("scale_add", {"B": 64}, ""), ("without_mask", {"B": 64}, "out-of-bounds"), ("scale_add", {}, None)]
)
def test_triton_kernels_are_judged(tmp_path: Path, entry: str, constants: dict[str, int], kind: str | None) -> None:
    (tmp_path / "kernel.py").write_text(TRITON)
    fields = {"entry": entry, "grid": ["ceil_div(n, 64)"], "constants": constants, "warps": 2, "arguments": [*ARRAYS, {"name": "n"}]}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump({**fields, "tile": {"n": 64}}))
    if kind is None:
        with pytest.raises(GemmgenError, match="neither an argument nor a constant"):
            judge(tmp_path / "kernel.py", tmp_path / "task.yaml", (REFERENCES, "scale_add"), ("n=96",), run_native=True)
        return
    found = judge(tmp_path / "kernel.py", tmp_path / "task.yaml", (REFERENCES, "scale_add"), ("n=96",), run_native=True)
    assert found.accepted if not kind else kind in found.kinds, found.failures
