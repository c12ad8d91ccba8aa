"""Bundles: the kernels of a model's layers, and the choice between them, compiled into a C and a C++ program."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path

import pytest

from export.c_host import WARNINGS, build, build_fake_driver, compiler, cuda_include, dummy_bundle
from gemmgen.dispatch.layers import Layer, layers_of
from gemmgen.export.layers import bundle_files
from gemmgen.hardware.target import device

PROBLEMS = (
    "gemm:1,4096,4096,nt,bf16",
    "gemm:64,4096,4096,nt,bf16",
    "gemm:2048,4096,4096,nt,bfloat16",
    "gemm:m=4096,n=11008,k=4096,nt,bf16,silu",
    "gemm:17,100,40,alpha,bias",
    "reduction:64,4096,1,max",
    "elementwise:1,1,64,128,silu",
)

PROGRAM = """
#include <stdint.h>
#include "model.h"
#ifdef __cplusplus
extern "C" {
#endif
int call(int64_t m);
int call(int64_t m)
{
    static model_t kernels;
    CUresult result = model_load(&kernels);
    if (result != CUDA_SUCCESS) return -1;
    result = model_gemm_4096_4096_nt_bf16(&kernels, (CUstream)0, m, (uint16_t *)0x1000, (uint16_t *)0x100000000,
                                          (uint16_t *)0x200000000000, (void *)0x300000000000);
    return result != CUDA_SUCCESS ? -2 : model_gemm_4096_4096_nt_bf16_choose(m, NULL);
}
const char *why(int64_t m);
const char *why(int64_t m) { return model_gemm_4096_4096_nt_bf16_why(m); }
#ifdef __cplusplus
}
#endif
"""


@pytest.fixture(scope="module")
def layers() -> list[Layer]:
    return layers_of(PROBLEMS, device("H200"))


def test_problems_that_differ_in_their_first_size_are_one_layer(layers: list[Layer]) -> None:
    assert [layer.name for layer in layers][:2] == ["gemm_4096_4096_nt_bf16", "gemm_11008_4096_nt_bf16_silu"]
    ranges = [(row.least, row.most) for row in layers[0].served]
    assert len(ranges) == 3 and ranges[0][0] == 1 and ranges[-1][1] == 2**31 - 1
    assert all(one[1] + 1 == other[0] for one, other in pairwise(ranges))
    assert list(layers[0].operands) == ["a", "b", "out"] and layers[0].written == {"out"}


def test_every_dimension_follows_from_the_first_size(layers: list[Layer]) -> None:
    wide = layers[0].served[-1]
    assert {name: constant + factor * 512 for name, (constant, factor) in wide.dimensions.items()} == {
        "m": 512,
        "n": 4096,
        "k": 4096,
        "lda": 4096,
        "ldb": 4096,
        "ldc": 4096,
    }


@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_bundle_compiles_and_takes_the_kernel_of_its_table(layers: list[Layer], language: str, tmp_path: Path) -> None:
    plans = {row.plan.name: row.plan for layer in layers for row in layer.served}
    files = bundle_files("model", layers, {name: dummy_bundle(plan) for name, plan in plans.items()})
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "program.c").write_text(PROGRAM)
    driver = build_fake_driver(tmp_path)
    standard = ["gcc", "-std=c99"] if language == "c" else ["g++", "-std=c++11", "-x", "c++"]
    command = [compiler(standard[0]), *standard[1:], *WARNINGS, "-Wno-unused-function", "-shared", "-fPIC", "-isystem", cuda_include()]
    build(
        [*command, f"-I{tmp_path}", tmp_path / "program.c", "-o", tmp_path / "program.so", "-x", "none", driver, f"-Wl,-rpath,{tmp_path}"]
    )
    library = ctypes.CDLL(str(tmp_path / "program.so"))
    library.call.argtypes = library.why.argtypes = [ctypes.c_int64]
    library.why.restype = ctypes.c_char_p
    fake = ctypes.CDLL(str(driver))
    for plan in plans.values():
        for resolved in plan.sequence.launches:
            fake.fake_add_entry(resolved.entry.encode(), 0, None)
    table = layers[0].served
    places = {m: next(place for place, row in enumerate(table) if row.least <= m <= row.most) for m in (1, 8, 9, 100, 400, 5000)}
    assert {m: library.call(m) for m in places} == places
    assert library.why(100) is None and library.why(-1) is not None
