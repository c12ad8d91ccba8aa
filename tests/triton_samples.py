"""Triton kernels; Triton reads their source from this file."""

import triton
import triton.language as tl


@triton.jit
def softmax(x, y, n, B: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, B)
    value = tl.load(x + row * n + column, mask=column < n, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * n + column, power / tl.sum(power, axis=0), mask=column < n)


@triton.jit
def layer_norm(x, weight, y, n, B: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, B)
    value = tl.load(x + row * n + column, mask=column < n, other=0.0)
    centred = tl.where(column < n, value - tl.sum(value, axis=0) / n, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + 1e-5)
    tl.store(y + row * n + column, centred * scale * tl.load(weight + column, mask=column < n), mask=column < n)


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    column = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        left = start + tl.arange(0, K)[None, :]
        right = start + tl.arange(0, K)[:, None]
        x = tl.load(a + row * k + left, mask=(row < m) & (left < k), other=0.0)
        y = tl.load(b + right * n + column, mask=(right < k) & (column < n), other=0.0)
        total += tl.dot(x, y)
    tl.store(c + row * n + column, total, mask=(row < m) & (column < n))


@triton.jit
def total_without_atomics(x, out, n, B: tl.constexpr):
    index = tl.program_id(0) * B + tl.arange(0, B)
    part = tl.sum(tl.load(x + index, mask=index < n, other=0), axis=0)
    tl.store(out, tl.load(out) + part)
