"""Torch packages: built with a C compiler alone, and registered with torch where that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner
from waiting import PATIENCE

from export.c_host import WARNINGS, build, build_fake_driver, compiler, cuda_include, dummy_bundle
from gemmgen.cli import cli
from gemmgen.core.errors import SpecError
from gemmgen.dispatch.layers import layers_of
from gemmgen.export.framework_packages import torch_package
from gemmgen.hardware.target import device

PROGRAM = Path(__file__).parent / "torch_package_program.py"


def test_a_package_builds_and_registers_its_operators(tmp_path: Path) -> None:
    layers = layers_of(["gemm:16,64,32,nt,bf16,bias,silu", "gemm:2048,64,32,nt,bf16,bias,silu"], device("H200"))
    plans = {row.plan.name: row.plan for layer in layers for row in layer.served}
    for name, text in torch_package("mine", layers, {name: dummy_bundle(plan) for name, plan in plans.items()}).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if path.suffix == ".py":
            compile(text, name, "exec")
    driver = build_fake_driver(tmp_path)
    flags = [*WARNINGS, "-Wno-unused-function", "-std=c99", "-shared", "-fPIC", "-isystem", cuda_include()]
    package = tmp_path / "mine"
    build([compiler("gcc"), *flags, package / "glue.c", "-o", package / "_kernels.so", driver, f"-Wl,-rpath,{tmp_path}"])
    python = os.environ.get("GEMMGEN_TORCH_PYTHON") or (sys.executable if find_spec("torch") is not None else None)
    if python is None or shutil.which(python) is None:
        pytest.skip("torch is not installed; the package was built")
    result = subprocess.run([python, str(PROGRAM), str(tmp_path), "mine"], capture_output=True, text=True, timeout=PATIENCE)
    assert result.stdout.strip() == "fine", result.stderr


@pytest.mark.parametrize("problem", ["reduction:64,128,1,max", "gemm:16,64,32,batch=4", "gemm:16,64,32,alpha"])
def test_what_is_no_product_of_two_matrices_is_refused(problem: str) -> None:
    layers = layers_of([problem], device("H200"))
    with pytest.raises(SpecError, match="a torch package holds products"):
        torch_package("mine", layers, {row.plan.name: dummy_bundle(row.plan) for layer in layers for row in layer.served})


@pytest.mark.parametrize("name", ["import", "None", "torch", "json", "setup"])
def test_a_package_has_a_name_that_python_can_import(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name}: Python has this name already"):
        torch_package(name, [], {})


@pytest.mark.parametrize("file", ["1model", "int", "日本", "lambda", "torch"])
def test_a_file_whose_name_is_no_name_asks_for_another(file: str, tmp_path: Path) -> None:
    problems = tmp_path / f"{file}.txt"
    problems.write_text("gemm:64,64,64,nt,bf16\n")
    arguments = ["export", "--problems", str(problems), "--format", "torch", "--device", "H200", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(cli, arguments, prog_name="gemmgen")
    assert result.exit_code == 2
    assert f"{file}.txt: no name for the exported kernels: pass one with --prefix" in result.stderr
    assert not (tmp_path / "out").exists()
