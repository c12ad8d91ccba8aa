"""Compiling with NVRTC: results, errors, the cache and parallel jobs."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemmgen.core.cache import Cache
from gemmgen.core.errors import CompileError, EnvironmentMissing
from gemmgen.toolchain import nvrtc as compiler
from gemmgen.toolchain.cubin import text_sections
from gemmgen.toolchain.diagnostics import read_spills, warnings_of
from gemmgen.toolchain.nvrtc import CompileJob, compile_many, compile_source, nvrtc_version, supported_architectures

ROOT = Path(__file__).parents[2]
SAXPY = """extern "C" __global__ void __launch_bounds__(128) saxpy(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
# More live values than 16 registers hold.
SPILLING = """extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* a) {
    float v[48];
    #pragma unroll
    for (int i = 0; i < 48; i++) v[i] = a[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 48; i++) a[i * 1024 + threadIdx.x] = v[i] * v[47 - i] + v[(i * 5) % 48];
}
"""


def test_gives_ptx_with_line_information_a_cubin_and_resources():
    binary = compile_source(SAXPY, architecture="sm_90a", name="saxpy.cu")
    assert ".target sm_90a" in binary.ptx
    assert ".visible .entry saxpy(" in binary.ptx
    assert re.search(r"^\s*\.loc\s+1 3 ", binary.ptx, re.MULTILINE)
    assert '"saxpy.cu"' in binary.ptx
    assert "\0" not in binary.ptx
    assert "fma.rn.f32" in binary.ptx
    assert list(text_sections(binary.cubin)) == ["saxpy"]
    resources = binary.resources["saxpy"]
    assert resources.parameter_bytes == 24
    assert resources.max_threads == 128
    assert (resources.spill_stores, resources.spill_loads, resources.static_shared_bytes) == (0, 0, 0)
    assert binary.nvrtc_version == nvrtc_version()
    assert binary.log == ""


def test_spills_are_reported_in_bytes():
    resources = compile_source(SPILLING, architecture="sm_90").resources["spilling"]
    assert resources.registers <= 32
    assert resources.spill_stores > 0
    assert resources.spill_loads >= resources.spill_stores
    assert resources.stack_bytes > 0


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_120"])
def test_line_information_does_not_change_the_code(monkeypatch, architecture):
    with_lines = compile_source(SPILLING, architecture=architecture)
    plain = tuple(option for option in compiler.BASE_OPTIONS if option != "--generate-line-info")
    monkeypatch.setattr(compiler, "BASE_OPTIONS", plain)
    without_lines = compile_source(SPILLING, architecture=architecture)
    assert ".loc" not in without_lines.ptx
    assert text_sections(with_lines.cubin) == text_sections(without_lines.cubin)


def test_neither_ptx_nor_cubin_depends_on_the_current_directory(tmp_path, monkeypatch):
    here = compile_source(SAXPY, architecture="sm_90")
    monkeypatch.chdir(tmp_path)
    there = compile_source(SAXPY, architecture="sm_90")
    assert here.ptx == there.ptx
    assert here.cubin == there.cubin
    assert str(ROOT).encode() not in here.cubin


def test_no_header_is_found_by_accident(tmp_path, monkeypatch):
    (tmp_path / "local.h").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"local\.h"):
        compile_source('#include "local.h"\n', architecture="sm_90")
    with pytest.raises(CompileError, match=r"could not open source file"):
        compile_source('#include "dev/null"\n', architecture="sm_90")


@pytest.mark.parametrize("name", ['we"ird\nna\\me.cu', "", "/etc/passwd", "../x", "é" * 300, "a(3): error: b", "\0"])
def test_odd_names_break_nothing(name):
    binary = compile_source(SAXPY, architecture="sm_90", name=name)
    assert "saxpy" in binary.resources
    with pytest.raises(CompileError, match="undefined") as caught:
        compile_source("int f() { return missing; }", architecture="sm_90", name=name)
    assert "1 | int f() { return missing; }" in str(caught.value)


def test_an_error_quotes_its_line():
    broken = SAXPY.replace("a * x[i]", "a * z[i]")
    with pytest.raises(CompileError) as caught:
        compile_source(broken, architecture="sm_90", name="saxpy.cu")
    lines = str(caught.value).splitlines()
    assert lines[0] == "saxpy.cu does not compile for sm_90: 1 error"
    assert lines[1] == 'saxpy.cu:3: identifier "z" is undefined'
    assert lines[2] == "        3 |     if (i < n) y[i] = a * z[i] + y[i];"
    assert 'identifier "z"' in caught.value.log
    assert pickle.loads(pickle.dumps(caught.value)).log == caught.value.log


def test_many_errors_are_counted_and_cut():
    source = "\n".join(f"__device__ float f{i}() {{ return missing{i}; }}" for i in range(25))
    with pytest.raises(CompileError) as caught:
        compile_source(source, architecture="sm_90")
    assert "25 errors" in str(caught.value)
    assert "... and 15 more" in str(caught.value)


def test_an_error_in_inline_ptx_quotes_the_ptx_and_the_cuda_line():
    source = SAXPY.replace("    if", '    asm volatile("foo.bar %0;" :: "r"(i));\n    if')
    with pytest.raises(CompileError) as caught:
        compile_source(source, architecture="sm_90")
    assert "kernel.cu:3: PTX: " in str(caught.value)
    assert re.search(r"\| \s*foo\.bar %r\d+;", str(caught.value))
    assert '3 |     asm volatile("foo.bar %0;" :: "r"(i));' in str(caught.value)


def test_too_much_static_shared_memory_is_one_readable_error():
    source = """extern "C" __global__ void greedy(float* a) {
        __shared__ float s[20000];
        s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = s[threadIdx.x ^ 1];
    }"""
    with pytest.raises(CompileError) as caught:
        compile_source(source, architecture="sm_90")
    assert str(caught.value).splitlines() == [
        "kernel.cu does not compile for sm_90: 1 error",
        "Entry function 'greedy' uses too much shared data (0x13880 bytes, 0xc000 max)",
    ]


@pytest.mark.parametrize("architecture", ["sm_20", "sm_91a", "compute_90", "sm_90 -o x"])
def test_an_unknown_architecture_is_named(architecture):
    with pytest.raises(CompileError, match=re.escape(architecture)):
        compile_source(SAXPY, architecture=architecture)


@pytest.mark.parametrize("option", ["--nope", "nodash", "-D\0", "--gpu-architecture=sm_80", "-arch=sm_80"])
def test_bad_options_are_refused(option):
    with pytest.raises(CompileError, match=r"option|architecture"):
        compile_source(SAXPY, architecture="sm_90", options=[option])


def test_sources_that_are_no_text_are_refused():
    with pytest.raises(CompileError, match="NUL character in line 2"):
        compile_source("\n\0", architecture="sm_90")
    with pytest.raises(CompileError, match="not Unicode"):
        compile_source("// \ud800", architecture="sm_90")


def test_options_reach_compiler_and_standard_replaces_default():
    source = SAXPY + "\n#if __cplusplus != 202002L || !defined(FLAG)\n#error wrong options\n#endif\n"
    binary = compile_source(source, architecture="sm_90", options=["--std=c++20", "-DFLAG=1", "--fmad=false"])
    assert "fma.rn" not in binary.ptx
    assert "--std=c++17" not in binary.options


def test_warnings_are_kept_without_the_report_of_ptxas():
    log = compile_source(SAXPY.replace("    if", "    int unused = 3;\n    if"), architecture="sm_90").log
    assert "kernel.cu(3): warning" in log
    assert "ptxas info" not in log


def test_a_second_compilation_is_read_from_the_cache(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    first = compile_source(SAXPY, architecture="sm_90", cache=cache)
    monkeypatch.setattr(compiler, "_compile", lambda *_: pytest.fail("compiled again"))
    assert compile_source(SAXPY, architecture="sm_90", cache=cache) == first


def test_what_changes_the_binary_changes_the_digest(tmp_path):
    cache = Cache(tmp_path)
    base = {"architecture": "sm_90", "cache": cache}
    binaries = [
        compile_source(SAXPY, **base),
        compile_source(SAXPY + "\n", **base),
        compile_source(SAXPY, **base, options=["--fmad=false"]),
        compile_source(SAXPY, **base, name="other.cu"),
        compile_source(SAXPY, architecture="sm_80", cache=cache),
    ]
    assert len({binary.digest for binary in binaries}) == len(binaries) == cache.info().entries


def test_an_entry_of_another_form_is_compiled_again(tmp_path):
    cache = Cache(tmp_path)
    first = compile_source(SAXPY, architecture="sm_90", cache=cache)
    files = cache.load(first.digest)
    assert files is not None
    for about in (b"", b"[]", b"{}", b'{"architecture": 3}', files["binary.json"].replace(b"registers", b"resisters")):
        cache.clear()
        cache.store(first.digest, files | {"binary.json": about})
        assert compile_source(SAXPY, architecture="sm_90", cache=cache).resources == first.resources


def test_failures_are_not_cached(tmp_path):
    cache = Cache(tmp_path)
    with pytest.raises(CompileError):
        compile_source("nonsense", architecture="sm_90", cache=cache)
    assert cache.info().entries == 0


def test_many_jobs_keep_their_order_and_their_errors():
    architectures = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"]
    jobs = [CompileJob(SAXPY, architecture, name=f"{i}.cu") for i, architecture in enumerate(architectures * 2)]
    jobs.insert(5, CompileJob("nonsense", "sm_90"))
    finished: list[int] = []
    results = compile_many(jobs, workers=4, on_finished=lambda: finished.append(len(finished)))
    assert len(finished) == len(jobs), "every job moves the bar, a failed one too"
    assert isinstance(results.pop(5), CompileError)
    jobs.pop(5)
    for job, result in zip(jobs, results, strict=True):
        assert not isinstance(result, CompileError)
        assert result.architecture == job.architecture
        assert f'"{job.name}"' in result.ptx
        assert result.resources["saxpy"].parameter_bytes == 24


def test_supported_architectures_are_those_of_nvrtc():
    assert {"sm_80", "sm_90", "sm_100"} <= set(supported_architectures())


def test_importing_loads_no_cuda_library():
    code = "import sys, gemmgen.toolchain.nvrtc; print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'numpy')])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


HIDDEN = """
import sys
from unittest import mock
{hide}
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.core.errors import EnvironmentMissing
try:
    compile_source("", architecture="sm_90")
except EnvironmentMissing as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("hide", "needed"),
    [
        ("sys.modules['cuda'] = None", "pip install 'cuda-python"),
        (
            "import cuda.bindings.nvrtc as n; n.nvrtcVersion = mock.Mock(side_effect=RuntimeError('not found'))",
            "pip install 'nvidia-cuda-nvrtc",
        ),
        (
            "from cuda.bindings import nvrtc\nnvrtc.nvrtcVersion = lambda: (nvrtc.nvrtcResult(0), 12, 3)",
            "12.3 is too old",
        ),
    ],
)
def test_a_missing_compiler_says_what_to_install(hide, needed):
    run = subprocess.run([sys.executable, "-c", HIDDEN.format(hide=hide)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert needed in run.stdout, run.stderr


def test_incomplete_nvrtc_is_an_environment_error():
    log = "nvrtc: error: failed to open libnvrtc-builtins.so.13.5.\n"
    error = compiler._compile_error("", "", "sm_90", "k.cu", log, "")
    assert isinstance(error, EnvironmentMissing)


def test_the_report_on_spills_is_read_in_both_forms():
    log = """ptxas info    : Function properties for one
ptxas         .     48 bytes stack frame, 52 bytes spill stores, 56 bytes spill loads
ptxas info    : Function properties for two
    0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
kernel.cu(1): warning #1: kept
"""
    spills = read_spills(log)
    assert (spills["one"].store_bytes, spills["one"].load_bytes) == (52, 56)
    assert (spills["two"].store_bytes, spills["two"].load_bytes) == (8, 12)
    assert warnings_of(log) == "kernel.cu(1): warning #1: kept"


def test_a_library_that_cannot_be_loaded_is_not_called_missing() -> None:
    from importlib.metadata import version

    from gemmgen.toolchain.nvrtc import _why_not_loaded

    told = _why_not_loaded(RuntimeError("libnvrtc.so.13: failed to map segment from shared object"))
    assert told.startswith(f"NVRTC {version('nvidia-cuda-nvrtc')} is installed but cannot be loaded: libnvrtc.so.13: failed to map")
    assert "ulimit -v" in told
