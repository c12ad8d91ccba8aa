"""Libraries for processors in place of another BLAS: a program that tests SGEMM is linked with them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cli.conftest import Run, run
from kernels.cpu_gemm.specs import HERE, blocked
from waiting import PATIENCE

import gemmgen
from gemmgen.export.blas import c_header, shared_library

__all__ = ["run"]
PROGRAM = Path(__file__).with_name("blas_level3.c")
pytestmark = [
    pytest.mark.skipif(not HERE, reason="this machine runs no code for x86-64-v3"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to link a program with"),
]


def run_program(folder: Path, name: str, library: bytes, source: Path = PROGRAM) -> subprocess.CompletedProcess[str]:
    (folder / f"lib{name}.so").write_bytes(library)
    command = ["gcc", "-O2", "-Wall", "-Werror", str(source), f"-L{folder}", f"-l{name}", f"-Wl,-rpath,{folder}", "-lm"]
    subprocess.run([*command, "-o", str(folder / "program")], check=True, capture_output=True, text=True)
    return subprocess.run([str(folder / "program")], capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("edges", ["masked", "padded"])
def test_a_program_is_linked_with_the_library(edges: str, tmp_path: Path) -> None:
    plan = gemmgen.plan(blocked(HERE[-1], **{"micro_kernel": {"rows": 4, "columns": 16}, "edges": edges}))
    done = run_program(tmp_path, plan.name, shared_library(plan))
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["passed"]), done.stdout[:2000] + done.stderr[:2000]


def test_column_major_specs_serve_too(tmp_path: Path) -> None:
    spec = blocked(order="column_major", micro_kernel={"rows": 16, "columns": 3}, blocks={"m": 32, "n": 12, "k": 20})
    spec["loops"]["threads"] = {"count": 2, "least_work": 5000}
    plan = gemmgen.plan(spec)
    done = run_program(tmp_path, plan.name, shared_library(plan))
    assert done.returncode == 0, done.stdout[:2000]


def test_the_program_finds_a_wrong_library(tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text(
        "void sgemm_(void) {}\n"
        "void cblas_sgemm(int o, int a, int b, int m, int n, int k, float f, const float *x, int l, const float *y, int q, float g,"
        " float *c, int p) { if (m && n) *c += 1; }\n"
    )
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libwrong.so")], check=True)
    done = run_program(tmp_path, "wrong", (tmp_path / "libwrong.so").read_bytes())
    assert done.returncode == 1 and "expected" in done.stdout


def test_the_header_declares_what_there_is(tmp_path: Path) -> None:
    plan = gemmgen.plan(blocked(micro_kernel={"rows": 2, "columns": 8}, blocks={"m": 8, "n": 16, "k": 8}))
    (tmp_path / "instance.h").write_text(c_header(plan))
    program = tmp_path / "call.c"
    program.write_text(
        '#include "instance.h"\n#include <stdio.h>\n'
        "int main(void) { float a[2] = {2, 3}, b[2] = {5, 7}, c[1] = {0};\n"
        f"  if ({plan.name}(1, 1, 2, 1.0f, a, 2, b, 1, 0.0f, c, 1)) return 1;\n"
        '  printf("%g\\n", c[0]); return 0; }\n'
    )
    done = run_program(tmp_path, plan.name, shared_library(plan), program)
    assert done.stdout == "31\n"


def test_a_library_with_an_epilogue_is_no_blas() -> None:
    plan = gemmgen.plan(blocked(epilogue=[{"op": "relu"}]))
    assert "cblas_sgemm" not in c_header(plan)
    assert plan.name in c_header(plan)


def test_the_command_writes_library_and_header(run: Run, tmp_path: Path) -> None:
    for kind in ("shared", "header"):
        run("export", "--format", kind, "cpu/c3_packed", "-o", f"{tmp_path}/made/")
    assert sorted(path.suffix for path in (tmp_path / "made").iterdir()) == [".h", ".so"]


def test_a_format_of_gpus_is_refused(run: Run, tmp_path: Path) -> None:
    done = run("export", "--format", "cubin", "cpu/c3_packed", "-o", f"{tmp_path}/", code=2)
    assert "--format shared or header" in done.err
