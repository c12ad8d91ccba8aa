"""Loops that come back to where they were are reported in time; those that only look like it run on."""

import time

import numpy as np
import pytest

from gemmgen import emulator
from tests.emulator.helpers import run_cuda

N = 64
ENDLESS = {
    "a division that stays at zero": "float s = 0; for (int i = t; i < n; i /= 128) s += x[i]; y[t] = s;",
    "the step is a product": "float s = 0; for (int i = t; i < n; i *= 2) s += x[i]; y[t] = s;",
    "one thread of many": "int i = t; while (i != 1) i = i % 2 ? 3 * i - 1 : i / 2; y[t] = i;",
    "a search that does not narrow": """int lo = 0, hi = n;
        while (lo < hi) { int m = (lo + hi) / 2; if (x[m] < 5) lo = m; else hi = m; }
        y[t] = lo;""",
    "a list with a cycle": "int i = t; while (i != 63) i = (int)x[i] + (i & 1); y[t] = i;",
    "in a loop that ends": "for (int j = 0; j < n; ++j) for (int i = j; i < n; i /= 3) y[i] += 1;",
    "with a barrier": "for (int i = t; i < n; i /= 2) { __syncthreads(); y[t] += i; }",
}  # fmt: skip
ENDING = {
    "a generator of numbers": """unsigned i = t + 1, c = 0;
        while (i >> 16 != 7 && c < 30000) { i = i * 1664525u + 1013904223u; ++c; }
        y[t] = c;""",
    "a count in memory": "x[t] = 0; while (x[t] < 12000) x[t] = x[t] + 1; y[t] = x[t];",
    "a recursion": "y[t] = fib(14);",
    "a count in shared memory": "__shared__ int c[64]; c[t] = 0; do c[t] += 1; while (c[t] < 12000); y[t] = c[t];",
}  # fmt: skip


RECURSION = "__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }"


def run(body: str) -> np.ndarray:
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    source = f'{RECURSION} extern "C" __global__ void k(float* x, float* y, int n) {{ int t = threadIdx.x; {body} }}'
    run_cuda(source, "k", 1, N, [x, y, N])
    return y


@pytest.mark.parametrize("name", ENDLESS)
def test_a_loop_that_repeats_itself_is_reported(name):
    began = time.process_time()
    with pytest.raises(emulator.Deadlock, match="nothing that its branches depend on has changed"):
        run(ENDLESS[name])
    assert time.process_time() - began < 20


@pytest.mark.parametrize("name", ENDING)
def test_a_long_loop_that_ends_is_run_to_its_end(name):
    assert run(ENDING[name]).all()
