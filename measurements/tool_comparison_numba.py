# ruff: noqa: D103 - the kernels are described by their names
"""Kernels of tool_comparison.cu for numba's simulator: `NUMBA_ENABLE_CUDASIM=1 python tool_comparison_numba.py NAME`."""

import re
import sys
from pathlib import Path

import numpy as np
from numba import cuda, int32


def read_past_the_end(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i + 1]


def write_past_the_end(x, y, n):
    i = cuda.grid(1)
    if i <= n:
        y[i] = 1


def read_before_the_start(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i - 1]


def read_the_next_array(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i + 256]


def past_dynamic_shared(x, y, n):
    t = cuda.threadIdx.x
    dynamic = cuda.shared.array(0, int32)
    dynamic[t + 1] = t
    cuda.syncthreads()
    y[cuda.grid(1)] = dynamic[t + 1]


def into_the_next_shared_array(x, y, n):
    t = cuda.threadIdx.x
    first = cuda.shared.array(128, int32)
    second = cuda.shared.array(128, int32)
    first[t] = t
    second[t] = t
    cuda.syncthreads()
    if t < 127:
        y[cuda.grid(1)] = first[t + (n >> 7)] + second[t]


def past_a_local_array(x, y, n):
    i = cuda.grid(1)
    local = cuda.local.array(8, int32)
    for k in range(8):
        local[k] = x[(i + k) % n]
    y[i] = local[(i + x[i]) % 9]


def unwritten_global(x, y, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = y[i] + 1


def unwritten_shared(x, y, n):
    t = cuda.threadIdx.x
    part = cuda.shared.array(128, int32)
    if t < 100:
        part[t] = t
    cuda.syncthreads()
    y[cuda.grid(1)] = part[127 - t]


def unassigned_variable(x, y, n):
    i = cuda.grid(1)
    for k in range(x[i]):
        value = k
    y[i] = value


def missing_barrier(x, y, n):
    t = cuda.threadIdx.x
    part = cuda.shared.array(128, int32)
    part[t] = t
    y[cuda.grid(1)] = part[127 - t]


def missing_second_barrier(x, y, n):
    t = cuda.threadIdx.x
    part = cuda.shared.array(128, int32)
    total = 0
    for k in range(4):
        part[t] = t + k
        cuda.syncthreads()
        total += part[127 - t]
    y[cuda.grid(1)] = total


def missing_syncwarp(x, y, n):
    t = cuda.threadIdx.x
    part = cuda.shared.array(128, int32)
    part[t] = t
    if t % 32 < 16:
        part[t] += part[t + 16]
    cuda.syncthreads()
    y[cuda.grid(1)] = part[t]


def blocks_write_one_element(x, y, n):
    y[cuda.threadIdx.x] = cuda.grid(1)


def neighbours_in_global(x, y, n):
    i = cuda.grid(1)
    x[i] = i
    y[i] = x[(i + 1) % n]


def plain_counter(x, y, n):
    x[0] = x[0] + 1
    y[cuda.grid(1)] = 1


def last_block_without_fence(x, y, n):
    i, t = cuda.grid(1), cuda.threadIdx.x
    last = cuda.shared.array(1, int32)
    x[i] = i
    cuda.syncthreads()
    if t == 0:
        last[0] = cuda.atomic.add(y, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        y[t + 1] = x[(t + 128) % n] + x[t]


def barrier_in_a_branch(x, y, n):
    if cuda.threadIdx.x < 48:
        cuda.syncthreads()
        y[cuda.grid(1)] = 1
    else:
        cuda.syncthreads()
        y[cuda.grid(1)] = 2


def return_before_a_barrier(x, y, n):
    if cuda.threadIdx.x >= 100:
        return
    cuda.syncthreads()
    y[cuda.grid(1)] = 1


def right_own_element(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i] + 1
        x[i] = y[i] * 2


def right_reversal(x, y, n):
    t = cuda.threadIdx.x
    part = cuda.shared.array(128, int32)
    part[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    y[cuda.grid(1)] = part[127 - t]


def right_last_block(x, y, n):
    i, t = cuda.grid(1), cuda.threadIdx.x
    last = cuda.shared.array(1, int32)
    x[i] = i
    cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        last[0] = cuda.atomic.add(y, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        y[t + 1] = x[(t + 128) % n] + x[t]


def right_same_value(x, y, n):
    x[0] = 1
    y[cuda.grid(1)] = 1


def right_histogram(x, y, n):
    i, t = cuda.grid(1), cuda.threadIdx.x
    bins = cuda.shared.array(16, int32)
    if t < 16:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, (x[i] + i) % 16, 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(y, t, bins[t])


if __name__ == "__main__":
    name = sys.argv[1]
    source = (Path(__file__).parent / "tool_comparison.cu").read_text(encoding="utf-8")
    blocks, shared = map(int, re.findall(rf"X\({name}, (\d+), (\d+)\)", source)[0])
    cuda.jit(globals()[name])[blocks, 128, 0, shared](np.zeros(256, np.int32), np.empty(256, np.int32), 256)
