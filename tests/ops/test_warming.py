"""Kernels that are compiled before they are asked for, or while something else serves."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from gemmgen import ops
from gemmgen.cli import cli
from gemmgen.core.errors import EnvironmentMissing, LaunchError, SpecError
from gemmgen.ops import engine
from gemmgen.ops.functions import matmul


def test_warmed_kernels_are_in_the_cache(monkeypatch):
    (warmed,) = ops.warm(["gemm:96,1,64"], device="T4")
    monkeypatch.setattr(engine, "_kernels", {})
    monkeypatch.setattr("gemmgen.toolchain.nvrtc._compile", None)  # no kernel can be compiled any more
    (again,) = ops.warm(["gemm:96,1,64"], device="T4")
    assert again.name == warmed.name


def test_problems_with_one_kernel_compile_it_once(monkeypatch):
    compiled = []
    monkeypatch.setattr("gemmgen.ops.warming.compiled", lambda plan: compiled.append(plan.name))
    warmed = ops.warm(["gemm:4096,1,4096", "gemm:4096,1,4096,nn"], device="H100")
    assert len(warmed) == 2
    assert compiled == [warmed[0].name]


@pytest.mark.parametrize("problem, error", [("gemm:1,2", SpecError), ("gemm:0,2,3", SpecError), ("gemm:64,64,64,e4m3", LaunchError)])
def test_problem_that_cannot_be_warmed_is_refused(problem, error):
    with pytest.raises(error):
        ops.warm([problem], device="T4")


def test_machine_without_a_gpu_is_told_how_to_fill_a_cache(monkeypatch):
    def missing(ordinal):
        raise EnvironmentMissing("this machine has no NVIDIA driver; run elsewhere")

    monkeypatch.setattr("gemmgen.ops.warming.gpu_device", missing)
    with pytest.raises(EnvironmentMissing, match=r"no NVIDIA driver; name the GPU to compile for: gemmgen warm --device"):
        ops.warm(["gemm:96,1,64"])


def test_kernels_that_are_not_kept_are_no_success(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(engine, "_kernels", {})
    result = CliRunner().invoke(cli, ["warm", "gemm:96,1,64", "--device", "T4"])
    assert result.exit_code != 0
    assert "0 kernels ready" in result.output
    assert "1 kernel not kept" in result.output and "GEMMGEN_CACHE_DIR" in result.output


def test_command_names_what_it_compiled():
    result = CliRunner().invoke(cli, ["warm", "gemm:96,1,64", "--device", "T4", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.output)
    assert row["problem"] == "gemm:96,1,64"
    assert row["spec"].startswith("gemm/gemv/")


def test_call_is_served_while_the_best_is_compiled(monkeypatch):
    compiled, waiting = [], []
    operator = matmul.OPERATOR
    monkeypatch.setattr(operator, "_calls", {})
    monkeypatch.setattr(engine, "_background", True)
    monkeypatch.setattr(engine, "is_compiled", lambda plan: plan.name in compiled)
    monkeypatch.setattr(engine, "is_held", lambda plan: plan.name.startswith("sgemm") or plan.name in compiled)
    monkeypatch.setattr(engine.compilers(), "submit", lambda plan, then: waiting.append(then))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((300, 200), (200, 1)))
    np.testing.assert_array_equal(ops.matmul(a, b, backend="emulator"), a @ b)
    (work,) = waiting
    first = next(iter(operator._calls.values())).choice
    assert first.chosen.plan.name.startswith("sgemm")
    compiled.append(first.options[0].plan.name)
    work()
    np.testing.assert_array_equal(ops.matmul(a, b, backend="emulator"), a @ b)
    assert next(iter(operator._calls.values())).choice.chosen.plan.name == compiled[0]
