# ruff: noqa: D103 - the kernels are described by their names
"""Kernels of tool_comparison.cu for Triton's interpreter: `TRITON_INTERPRET=1 python tool_comparison_triton.py NAME`."""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def read_past_the_end(x, y, n):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(y + i, tl.load(x + i + 1))


@triton.jit
def write_past_the_end(x, y, n):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(y + i, i, mask=i <= n)


@triton.jit
def read_before_the_start(x, y, n):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(y + i, tl.load(x + i - 1))


@triton.jit
def null_pointer(x, y, n):
    nowhere = (n >> 20).to(tl.int64).to(tl.pointer_type(tl.int32))
    tl.store(nowhere + tl.arange(0, 128), tl.load(x))


@triton.jit
def unwritten_global(x, y, n):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(x + i, tl.load(y + i) + 1)


@triton.jit
def blocks_write_one_element(x, y, n):
    tl.store(y + tl.arange(0, 128), tl.program_id(0) * 128 + tl.arange(0, 128))


@triton.jit
def neighbours_in_global(x, y, n):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(x + i, i)
    tl.store(y + i, tl.load(x + (i + 1) % n))


@triton.jit
def plain_counter(x, y, n):
    tl.store(x, tl.load(x) + 1)


@triton.jit
def right_own_element(x, y, n):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    value = tl.load(x + i, mask=i < n) + 1
    tl.store(y + i, value, mask=i < n)
    tl.store(x + i, value * 2, mask=i < n)


@triton.jit
def right_same_value(x, y, n):
    tl.store(x, 1)


if __name__ == "__main__":
    blocks = 3 if sys.argv[1] == "write_past_the_end" else 2
    globals()[sys.argv[1]][(blocks,)](torch.zeros(256, dtype=torch.int32), torch.empty(256, dtype=torch.int32), 256)
