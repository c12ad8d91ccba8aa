"""Host code in the files of a project: headers of its own, headers of frameworks, names that nvcc has without an include, and errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import CompileError
from gemmgen.sanitizer.front_end import CompileOptions, Request, _Attempt, compile_request, project_files
from gemmgen.sanitizer.host_code import device_macros, device_parts, members_of
from gemmgen.toolchain.containment import contained
from gemmgen.toolchain.nvcc import find_nvcc

KERNEL = "__global__ void k(unsigned* x) { x[threadIdx.x] = threadIdx.x; }\n"


@pytest.fixture(autouse=True)
def _without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMGEN_NVCC", "")


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_h", ".h").replace("_cu", ".cu")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "main.cu"


def result(path: Path, **options: object) -> np.ndarray:
    found = gemmgen.emulate(path, grid=1, block=32, args=[np.zeros(32, np.uint32)], **options)
    assert not found.findings
    return found["x"]


def test_declarations_of_the_host_in_a_header_of_the_project(tmp_path: Path) -> None:
    header = (
        "#pragma once\n#include <cublas_v2.h>\n#include <fstream>\nvoid note(std::ofstream& f);\nvoid gemm(cublasHandle_t h, float* c);\n"
    )
    main = '#include "sub/host.h"\n' + KERNEL + "void note(std::ofstream& f) { f << 1; }\n"
    assert result(project(tmp_path, main_cu=main, sub__host_h=header)).tolist() == list(range(32))


def test_headers_of_a_framework_that_a_header_includes(tmp_path: Path) -> None:
    header = "#pragma once\n#include <c10/cuda/CUDAException.h>\n" + KERNEL
    assert result(project(tmp_path, main_cu='#include "launch.h"\n', launch_h=header))[3] == 3


def test_a_header_beside_a_header_is_found_and_separated(tmp_path: Path) -> None:
    inner = "#include <vector>\nstd::vector<int> all();\n__device__ inline unsigned one() { return 1; }\n"
    outer = '#include "../inner.h"\nint count(std::vector<int> v) { return v.size(); }\n'
    main = '#include "a/outer.h"\n__global__ void k(unsigned* x) { x[threadIdx.x] = one(); }\nint main() { k<<<1, 1>>>(nullptr); }\n'
    assert result(project(tmp_path, main_cu=main, a__outer_h=outer, inner_h=inner)).tolist() == [1] * 32


def test_a_macro_of_another_header_marks_device_code(tmp_path: Path) -> None:
    main = '#include "marks.h"\n#include <string>\nDEVICE unsigned two() { return 2; }\nstd::string name() { return ""; }\n'
    main += "__global__ void k(unsigned* x) { x[threadIdx.x] = two(); }\n"
    assert result(project(tmp_path, main_cu=main, marks_h="#define INLINE inline\n#define DEVICE INLINE __device__\n"))[0] == 2


def test_folders_of_headers_are_separated_last(tmp_path: Path) -> None:
    path = project(tmp_path, main_cu="#include <library.h>\nint main() { return f(); }\n", given__library_h="int f() { return 1; }\n")
    options = CompileOptions(include_directories=(str(tmp_path / "given"),))
    request = Request(path.read_text(), "main.cu", tmp_path, options)
    attempt = _Attempt(request, project_files(request), str(tmp_path / "mirror"))
    own, library = str(path), str(tmp_path / "given" / "library.h")
    assert attempt.separate(given_folders=False)
    assert "main()" not in attempt.texts[own] and "int f()" in attempt.texts[library]
    assert attempt.separate(given_folders=True)
    assert "int f()" not in attempt.texts[library]


def test_a_newer_standard_where_the_source_needs_it(tmp_path: Path) -> None:
    main = 'struct S {\n  int n;\n  constexpr __device__ S(int m) : n(m) { if (m < 0) asm volatile("trap;"); }\n};\n'
    main += "__global__ void k(unsigned* x) { x[threadIdx.x] = S(5).n; }\n"
    assert result(project(tmp_path, main_cu=main))[0] == 5


@pytest.mark.skipif(find_nvcc() is None or shutil.which("g++") is None, reason="needs nvcc")
def test_nvcc_takes_device_code_alone_where_headers_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMMGEN_NVCC")
    header = "#pragma once\n#include <cublas_v2.h>\n#include <c10/cuda/CUDAException.h>\n#include <vector>\n"
    header += "void gemm(cublasHandle_t h, std::vector<float>& c);\n" + KERNEL
    path = project(tmp_path, ops__k_h=header, main_cu='#include "ops/k.h"\nint main() { k<<<1, 32>>>(nullptr); }\n')
    code = compile_request(Request(path.read_text(), "main.cu", tmp_path, CompileOptions(compiler="nvcc"))).ptx
    assert code.count(".entry") == 1 and 'ops/k.h"' in code and "front-end" not in code


def test_the_error_is_that_of_the_file_and_not_of_what_nvcc_has(tmp_path: Path) -> None:
    main = "template <int N> __device__ int twice(const uint x) { return 2 * x + N + MISSING; }\n"
    main += "__global__ void k(uint* x) { x[threadIdx.x] = twice<1>(threadIdx.x); }\n"
    with pytest.raises(CompileError) as raised:
        result(project(tmp_path, main_cu=main))
    assert "1 error" in str(raised.value) and 'identifier "MISSING" is undefined' in str(raised.value)


@pytest.mark.parametrize(
    "body",
    [
        "cudaGridDependencySynchronize(); x[threadIdx.x] = 1; cudaTriggerProgrammaticLaunchCompletion();",
        "__int128 y = 1; x[threadIdx.x] = y;",
    ],
)
def test_what_nvcc_has_without_an_include(tmp_path: Path, body: str) -> None:
    main = f"__global__ void k(unsigned* x) {{ {body} }}\n"
    assert result(project(tmp_path, main_cu=main), architecture="sm_90a")[5] == 1


def test_structures_of_headers_and_bases_are_passed_by_name(tmp_path: Path) -> None:
    header = "namespace a { struct Base { int first; float* p; }; struct Params : Base { union { int n; float f; };  }; }\n"
    main = '#include "params.h"\n__global__ void k(a::Params q) { if (threadIdx.x < q.n) q.p[threadIdx.x] = q.first; }\n'
    path = project(tmp_path, main_cu=main, params_h=header)
    found = gemmgen.emulate(path, grid=1, block=32, args=["{first=1, p=f32[8]=zeros, n=8}"])
    assert not found.findings
    assert members_of([header], "Params") == ["first", "p", "n", "f"]


def test_the_crash_of_a_compiler_is_an_error() -> None:
    import os
    import signal

    with pytest.raises(CompileError, match=r"crashed \(SIGSEGV\)"):
        contained(lambda: os.kill(os.getpid(), signal.SIGSEGV), "the compiler, on k.cu")


def test_code_in_both_branches_of_a_condition_is_looked_at() -> None:
    text = "#ifdef A\nint f(int n) {\n#else\nint f() {\n#endif\n  return 0;\n}\n"
    text += "#ifndef A\nint g() { return 1; }\n#endif\n__device__ int h();\n"
    kept = device_parts({"": text}, device_macros([text]))[""]
    assert "return" not in kept and "h();" in kept and kept.count("\n") == text.count("\n") and kept.count("#") == text.count("#")
