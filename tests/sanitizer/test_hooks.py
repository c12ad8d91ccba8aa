"""Kernels from elsewhere: numba-cuda, Triton, CuPy's sources, nvcc's PTX; and the pytest plugin."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gemmgen
from gemmgen.sanitizer.findings import Finding

pytest_plugins = "pytester"


def needed(module: str) -> ModuleType:
    """The module; without it the test is skipped, or fails if GEMMGEN_HOOKS is `required`."""
    if os.environ.get("GEMMGEN_HOOKS") == "required":
        return importlib.import_module(module)
    return pytest.importorskip(module, reason=f"needs {module}")


def test_a_numba_kernel():
    cuda = needed("numba.cuda")
    from gemmgen.sanitizer.numba_kernels import emulate_numba

    @cuda.jit
    def scale(x, y, factor):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = factor * x[i]

    x = np.arange(100, dtype=np.float32)
    result = emulate_numba(scale, grid=1, block=128, args=[x, np.zeros(100, np.float32), 2.0]).check()
    np.testing.assert_array_equal(result["y"], 2 * x)


def test_a_numba_kernel_that_runs_over_its_array():
    cuda = needed("numba.cuda")
    from gemmgen.sanitizer.numba_kernels import emulate_numba

    def reverse(x):
        i = cuda.grid(1)
        shared = cuda.shared.array(64, np.int32)
        shared[i] = x[i]
        x[i] = shared[63 - i]

    (finding,) = emulate_numba(reverse, grid=1, block=64, args=[np.arange(64, dtype=np.int32)]).findings
    assert finding.code == "shared-race" and finding.places[0].file == __file__
    beyond = emulate_numba(reverse, grid=1, block=64, args=[np.arange(60, dtype=np.int32)]).findings
    assert "past the end of x (240 bytes)" in beyond[0].message


def test_a_triton_kernel():
    needed("triton")
    from triton_samples import softmax

    from gemmgen.sanitizer.triton_kernels import emulate_triton

    x = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    arrays = {"x": x, "y": np.zeros_like(x), "n": 100}
    result = emulate_triton(softmax, grid=3, args=arrays, constants={"B": 128}).check()
    expected = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(result["y"], expected / expected.sum(axis=1, keepdims=True), rtol=1e-5)
    beyond = emulate_triton(softmax, grid=4, args=arrays, constants={"B": 128}).findings
    assert beyond[0].code == "out-of-bounds" and "triton_samples.py" in beyond[0].text


def test_copies_of_a_sum_that_differ_in_rounding_are_a_warning():
    needed("triton")
    from triton_samples import layer_norm

    from gemmgen.sanitizer.triton_kernels import emulate_triton

    random = np.random.default_rng(3)
    x, weight = random.standard_normal((5, 100)).astype(np.float32), random.standard_normal(100).astype(np.float32)
    arrays = {"x": x, "weight": weight, "y": np.zeros_like(x), "n": 100}
    result = emulate_triton(layer_norm, grid=5, args=arrays, constants={"B": 128}).check()
    expected = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(result["y"], expected, rtol=1e-4, atol=1e-5)
    assert {finding.code for finding in result.findings} <= {"shared-race", "same-value"}
    assert not emulate_triton(layer_norm, grid=5, args=arrays, constants={"B": 128}, strict=True).clean


def test_a_triton_product_of_odd_sizes():
    needed("triton")
    from triton_samples import matmul

    from gemmgen.sanitizer.triton_kernels import emulate_triton

    random = np.random.default_rng(4)
    a, b = random.standard_normal((70, 50)).astype(np.float16), random.standard_normal((50, 90)).astype(np.float16)
    arrays = {"a": a, "b": b, "c": np.zeros((70, 90), np.float32), "m": 70, "n": 90, "k": 50}
    result = emulate_triton(matmul, grid=(3, 3), args=arrays, constants={"M": 32, "N": 32, "K": 16})
    assert result.findings == ()
    np.testing.assert_allclose(result["c"], a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_a_race_of_triton_programs_is_an_error():
    needed("triton")
    from triton_samples import total_without_atomics

    from gemmgen.sanitizer.triton_kernels import emulate_triton

    arrays = {"x": np.arange(256, dtype=np.int32), "out": np.zeros(1, np.int32), "n": 256}
    result = emulate_triton(total_without_atomics, grid=2, args=arrays, constants={"B": 128})
    assert not result.clean and result.findings[0].code == "global-race"


def test_only_copies_within_a_warp_are_softened():
    from gemmgen.sanitizer.triton_kernels import _softened

    def race(source: str) -> tuple[Finding, ...]:
        return gemmgen.emulate(source, grid=1, block=64, args=["i32[64]=zeros"]).findings

    kernel = "__global__ void k(int* o) {{ __shared__ int s[64]; s[{at}] = threadIdx.x; o[threadIdx.x] = s[0]; }}"
    (copies,) = [one for one in race(kernel.format(at="threadIdx.x / 32")) if one.code == "shared-race"]
    assert copies.severity == "error" and [one.severity for one in _softened((copies,))] == ["warning"]
    (across,) = [one for one in race(kernel.format(at="threadIdx.x % 32")) if one.code == "shared-race"]
    assert [one.severity for one in _softened((across,))] == ["error"]


def test_the_source_of_a_cupy_raw_kernel():
    source = r"""extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) c[i] = a[i] + b[i]; }"""
    a = np.arange(50, dtype=np.float32)
    assert gemmgen.emulate(source, "add", grid=2, block=32, args=[a, a, np.zeros(50, np.float32), 50])["c"].tolist() == (2 * a).tolist()


PAGE = Path(__file__).parents[2] / "docs" / "kernels_from_elsewhere.md"
EXAMPLES = {
    section.split("\n", 1)[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL) for section in PAGE.read_text().split("\n## ")[1:]
}
MODULES = {"numba-cuda": "numba.cuda", "Triton": "triton", "CuPy": "numpy", "cuda.core": "cuda.core"}


@pytest.mark.parametrize("library", MODULES)
def test_the_example_of_a_library_runs(library: str, tmp_path: Path):
    needed(MODULES[library])
    (example,) = EXAMPLES[library]
    program = tmp_path / "example.py"
    program.write_text(example)
    names = runpy.run_path(str(program))
    assert "assert (result" in example and names["result"].clean


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_ptx_from_nvcc(tmp_path: Path):
    (tmp_path / "k.cu").write_text(
        "#include <cstdio>\n__global__ void k(int* o) { o[threadIdx.x] = threadIdx.x; }\nint main() { return 0; }\n"
    )
    subprocess.run(["nvcc", "-ptx", "-lineinfo", "-arch=sm_80", "k.cu", "-o", "k.ptx"], cwd=tmp_path, check=True)
    (finding,) = gemmgen.emulate(tmp_path / "k.ptx", grid=1, block=8, args=[np.zeros(7, np.int32)]).findings
    assert finding.code == "out-of-bounds" and finding.places[0].line == 2


PLUGIN_TESTS = """
import numpy as np
import pytest

FLAG = "__global__ void k(int* flag) { *flag = 1; }"

def test_clean(cuda_emulator):
    assert cuda_emulator(FLAG, grid=1, block=32, args=["i32[1]=zeros"])["flag"][0] == 1

def test_wrong(cuda_emulator):
    cuda_emulator(FLAG, grid=1, block=32, args=[np.zeros(0, np.int32)])

@pytest.mark.cuda_emulator(strict=True)
def test_strict(cuda_emulator):
    cuda_emulator(FLAG, grid=1, block=32, args=["i32[1]=zeros"])

@pytest.mark.cuda_emulator(strict=True, allow=["same-value"])
def test_allowed(cuda_emulator):
    cuda_emulator(FLAG, grid=1, block=32, args=["i32[1]=zeros"])

@pytest.mark.cuda_emulator(allow=["same-valeu"])
def test_misspelt(cuda_emulator):
    pass

def test_no_launch(cuda_emulator):
    cuda_emulator(FLAG, grid=1, block=32, args=[])
"""


def test_the_fixture_fails_tests_with_the_messages(pytester: pytest.Pytester):
    pytester.makepyfile(PLUGIN_TESTS)
    outcome = pytester.runpytest_inprocess("-p", "gemmgen.sanitizer.pytest_plugin", "--strict-markers", "-p", "no:cacheprovider")
    assert outcome.parseoutcomes() == {"passed": 2, "failed": 3, "errors": 1}
    outcome.stdout.fnmatch_lines(["*allow=*same-valeu*: no finding has this name; the names are *same-value*"])
    outcome.stdout.no_fnmatch_line("*def check_arguments*")
    outcome.stdout.fnmatch_lines(["*out of bounds: write of 4 bytes*", "*several threads store the same value*"])
