"""Listings as articles print them, each as a short program with the same peculiarity: those that run, and why others do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli.conftest import Run

MACROS = "__global__ void twice(const float* a, float* y) { WIDE(y[AT(threadIdx.x, 0, 4)]) = WIDE(a[AT(threadIdx.x, 0, 4)]); }\n"
WIDE = "WIDE(p)=(reinterpret_cast<float4*>(const_cast<float*>(&(p)))[0])"
UNEVEN = "#define WIDE(p) (reinterpret_cast<float4*>(const_cast<float*>(&(p))))[0])\n"
TAIL = """
template <unsigned N> __device__ void tail(volatile float* s, int t) {
  if (N >= 64) s[t] += s[t + 32];
  s[t] += s[t + 16]; s[t] += s[t + 8];
}
template <unsigned N> __global__ void sums(const float* x, float* y) {
  __shared__ float s[LENGTH]; s[threadIdx.x] = x[threadIdx.x]; s[threadIdx.x + N] = 0; __syncthreads();
  if (threadIdx.x < 32) tail<N>(s, threadIdx.x);
  if (threadIdx.x < 8) y[threadIdx.x] = s[threadIdx.x];
}
"""
BUFFERS = """
__global__ void stages(const float* x, float* y, int steps) {
  __shared__ float s[2][64]; int t = threadIdx.x; float sum = 0;
  s[0][t] = x[t];
  // here
  for (int step = 1; step < steps; ++step) {
    float next = x[step * 64 + t];
    sum += s[(step - 1) & 1][63 - t];
    s[step & 1][t] = next;
    __syncthreads();
  }
  y[t] = sum + s[(steps - 1) & 1][63 - t];
}
"""
WITH_HOST = """
#include <stdio.h>
#include <cuda_runtime.h>
#include <cublas_v2.h>
template <const int N, const bool NEGATE> __global__ void add(float* __restrict__ x) { x[threadIdx.x] += NEGATE ? -N : N; }
int main(int argc, char** argv) {
  float* d; cudaMalloc(&d, 128);
  cublasHandle_t handle; cublasCreate(&handle);
  add<3, true><<<1, 32>>>(d);
  printf("%d\\n", argc);
}
"""


def test_macros_of_another_listing_are_defined(run: Run) -> None:
    Path("twice.cu").write_text(MACROS)
    defined = ["--define", "AT(row,column,ld)=((row)*(ld)+(column))", "--define", WIDE]
    launch = ["--grid", 1, "--block", 8, "--arg", "f32[32]=range", "--arg", "f32[32]", "--save", "y=y.npy"]
    run("emulate", "twice.cu", *defined, *map(str, launch))
    assert np.load("y.npy").tolist() == list(range(32))
    assert 'identifier "AT" is undefined' in run("emulate", "twice.cu", *map(str, launch), code=2).err


def test_a_misprinted_macro_is_told(run: Run) -> None:
    Path("uneven.cu").write_text(UNEVEN + MACROS)
    told = run("emulate", "uneven.cu", "--define", "AT(r,c,ld)=((r)*(ld)+(c))", "--grid", "1", "--block", "8", code=2).err
    assert "uneven.cu:2" in told and "does not compile" in told


def test_a_forgotten_name_is_told(run: Run) -> None:
    Path("sums.cu").write_text("__global__ void fill(float* y) { float sum = 2; total[threadIdx.x] += 1; y[threadIdx.x] = sum; }")
    launch = ["--grid", "1", "--block", "32", "--arg", "f32[32]", "--save", "y=y.npy"]
    assert 'identifier "total" is undefined' in run("emulate", "sums.cu", *launch, code=2).err
    run("emulate", "sums.cu", "--define", "total=(&sum-threadIdx.x)", *launch)
    assert (np.load("y.npy") == 3).all()


def test_warps_in_lockstep_sum_up_with_a_warning(run: Run) -> None:
    Path("sums.cu").write_text(TAIL)
    launch = ["--entry", "sums<64>", "--define", "LENGTH=128", "--grid", "1", "--block", "64", "--arg", "f32[64]=ones", "--arg", "f32[8]"]
    told = run("emulate", "sums.cu", *launch, "--save", "y=y.npy")
    assert (np.load("y.npy") == 8).all()
    assert "lockstep-race" in told.out + told.err
    run("emulate", "sums.cu", *launch, "--strict", code=1)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_missing_barrier_is_a_race(run: Run, steps: int) -> None:
    launch = ["--grid", "1", "--block", "64", "--arg", f"f32[{64 * steps}]=ones", "--arg", "f32[64]", "--arg", f"i32={steps}"]
    Path("stages.cu").write_text(BUFFERS)
    told = run("emulate", "stages.cu", *launch, code=1)
    assert "shared memory race" in told.out + told.err
    Path("stages.cu").write_text(BUFFERS.replace("// here", "__syncthreads();"))
    run("emulate", "stages.cu", *launch, "--save", "y=y.npy")
    assert (np.load("y.npy") == steps).all()


def test_host_code_of_a_listing_is_left_out(run: Run) -> None:
    Path("whole.cu").write_text(WITH_HOST)
    run("emulate", "whole.cu", "--entry", "add<3, true>", "--grid", "1", "--block", "32", "--arg", "f32[32]=zeros", "--save", "x=x.npy")
    assert (np.load("x.npy") == -3).all()
