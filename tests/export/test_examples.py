"""The example programs: they compile without a warning, notice a kernel that does nothing, and are right on a GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE

from export.c_host import build, build_fake_driver, compiler, cuda_include, driver_library
from gemmgen.cli import cli
from gemmgen.layouts import channel_order, reorder_filter
from gemmgen.runtime.cuda import gpu_available, list_gpus

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
PROGRAMS = {
    "sgemm": ("sgemm.cpp", "gemm/simt/blocked/128x128x8", ("g++", "-std=c++11")),
    "sum": ("sum.c", "reduction/sum_last_block", ("gcc", "-std=c99")),
}
needs_gpu = pytest.mark.skipif(not gpu_available(), reason="this machine has no GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers that the programs include, exported for one architecture: that of the GPU if there is one."""
    made = tmp_path_factory.mktemp("examples")
    gpus = list_gpus()
    architecture = gpus[0].architecture.name.removesuffix("a") if gpus and gpus[0].architecture else "sm_80"
    for program, (_, spec, _) in PROGRAMS.items():
        cli.main(
            ["export", spec, "--format", "header", "--prefix", program, "--arch", architecture, "-o", str(made / f"{program}.h")],
            standalone_mode=False,
        )
    build_fake_driver(made)
    return made


def compile_program(folder: Path, program: str, command: Sequence[str], library: Sequence[str | Path], name: str) -> Path:
    """The example ``program``, built with a compiler and linked with a driver."""
    result = folder / name
    source = EXAMPLES / PROGRAMS[program][0]
    build([compiler(command[0]), *command[1:], "-I", folder, source, "-o", result, *library, "-lm"])
    return result


@pytest.mark.parametrize("program", PROGRAMS)
def test_compiles_without_warning(folder: Path, program: str) -> None:
    command = [*PROGRAMS[program][2], *STRICT, "-isystem", str(cuda_include())]
    made = compile_program(folder, program, command, [folder / "libcuda.so"], f"{program}_fake")
    environment = {**os.environ, "FAKE_ANY_ENTRY": "1"}
    arguments = ["60", "50", "40"] if program == "sgemm" else ["5000"]
    result = subprocess.run([made, *arguments], capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert result.returncode == 1
    assert "expected" in result.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_compiles_with_nvcc(folder: Path, program: str) -> None:
    assert compile_program(folder, program, ["nvcc", "-Werror", "all-warnings"], [folder / "libcuda.so"], f"{program}_nvcc").exists()


def test_the_tutorials_program_compiles(tmp_path: Path) -> None:
    tutorial = EXAMPLES.parent / "docs" / "tutorials"
    header = tmp_path / "mine.h"
    cli.main(
        ["export", str(tutorial / "mine.yaml"), "--format", "header", "--prefix", "mine", "--arch", "sm_80", "-o", str(header)],
        standalone_mode=False,
    )
    made = tmp_path / "mine.o"
    build([compiler("g++"), "-std=c++11", *STRICT, "-isystem", cuda_include(), "-I", tmp_path, "-c", tutorial / "mine.cpp", "-o", made])
    assert made.exists()


def test_problem_that_kernel_cannot_run_is_refused_in_words(folder: Path) -> None:
    command = [*PROGRAMS["sgemm"][2], "-isystem", str(cuda_include())]
    made = compile_program(folder, "sgemm", command, [folder / "libcuda.so"], "sgemm_refuses")
    environment = {**os.environ, "FAKE_ANY_ENTRY": "1"}
    result = subprocess.run([made, "-1", "5", "5"], capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert result.returncode == 2
    assert "m (rows of A and C) must be from 0" in result.stderr


def test_the_makefile_builds_both(folder: Path, tmp_path: Path) -> None:
    for file in ("Makefile", "sgemm.cpp", "sum.c"):
        shutil.copy(EXAMPLES / file, tmp_path)
    for program in PROGRAMS:
        shutil.copy(folder / f"{program}.h", tmp_path)
    variables = [f"CPPFLAGS=-isystem {cuda_include()}", f"LDFLAGS=-L{folder}", "GEMMGEN=false"]
    build([compiler("make"), "-C", tmp_path, *variables])
    assert (tmp_path / "sgemm").exists()
    assert (tmp_path / "sum").exists()


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["host", "nvcc"])
@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        ("sgemm", ("1000", "700", "500")),
        ("sgemm", ("1", "1", "1")),
        ("sgemm", ("129", "127", "0")),
        ("sgemm", ("0", "5", "5")),
        ("sum", ("4194304",)),
        ("sum", ("1",)),
        ("sum", ("1000003",)),
        ("sum", ("0",)),
    ],
)
def test_runs_right_on_a_gpu(folder: Path, program: str, sizes: tuple[str, ...], tool: str) -> None:
    command = ["nvcc"] if tool == "nvcc" else [*PROGRAMS[program][2], "-isystem", str(cuda_include())]
    library = ["-Xlinker", driver_library()] if tool == "nvcc" else [driver_library()]
    made = compile_program(folder, program, command, library, f"{program}_{tool}")
    result = subprocess.run([made, *sizes], capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    assert "right" in result.stdout


def test_filter_orders_are_those_of_the_examples_readme() -> None:
    text = (EXAMPLES / "README.md").read_text()
    formulas = dict(re.findall(r"^\| `(plain|octets|quads|pairs)` \| `(.*)` \|$", text, re.MULTILINE))
    assert len(formulas) == 4
    for order, formula in formulas.items():
        positions = [eval(formula.replace("/", "//"), {"i": i}) for i in range(32)]
        assert [channel_order(order)[position] for position in positions] == list(range(32)), order


def test_filter_rows_are_those_of_the_examples_readme() -> None:
    text = (EXAMPLES / "README.md").read_text()
    formula = re.search(r"^\| `neighbours` \| `\[(.*?)\]\[r\]", text, re.MULTILINE)
    assert formula is not None
    filters = np.arange(40, dtype=np.int8).reshape(40, 1, 1, 1)
    rows = reorder_filter(filters, "neighbours")
    assert rows.shape == (48, 1, 1, 1)
    assert all(rows[eval(formula.group(1).replace("/", "//"), {"k": k})] == k for k in range(40))
