"""A double-buffered SGEMM, as a person would write it: right to the bit, and fast enough to be used without thinking."""

import time

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import ieee

from .helpers import compile_ptx

SGEMM = r"""
extern "C" __global__ void __launch_bounds__(256)
sgemm(int m, int n, int k, float alpha, const float* __restrict__ A, int lda,
      const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    __shared__ __align__(16) float As[2][8][128 + 4];
    __shared__ __align__(16) float Bs[2][8][128];
    const int tid = threadIdx.x;
    const int bm = blockIdx.y * 128, bn = blockIdx.x * 128;
    const int ar = tid >> 1, ac = (tid & 1) * 4;
    const int br = tid >> 5, bc = (tid & 31) * 4;
    const int warp = tid >> 5, lane = tid & 31;
    const int tm = (warp >> 1) * 32 + (lane >> 3) * 4;
    const int tn = (warp & 1) * 64 + (lane & 7) * 4;
    float acc[8][8];
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = 0.f;
    float ra[4], rb[4];
    auto load = [&](int k0) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            int r = bm + ar, c = k0 + ac + i;
            ra[i] = (r < m && c < k) ? A[(size_t)r * lda + c] : 0.f;
            int r2 = k0 + br, c2 = bn + bc + i;
            rb[i] = (r2 < k && c2 < n) ? B[(size_t)r2 * ldb + c2] : 0.f;
        }
    };
    auto store = [&](int s) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) As[s][ac + i][ar] = ra[i];
        *reinterpret_cast<float4*>(&Bs[s][br][bc]) = make_float4(rb[0], rb[1], rb[2], rb[3]);
    };
    load(0); store(0); __syncthreads();
    int s = 0;
    for (int k0 = 0; k0 < k; k0 += 8) {
        if (k0 + 8 < k) load(k0 + 8);
        #pragma unroll
        for (int kk = 0; kk < 8; ++kk) {
            float fa[8], fb[8];
            *reinterpret_cast<float4*>(&fa[0]) = *reinterpret_cast<float4*>(&As[s][kk][tm]);
            *reinterpret_cast<float4*>(&fa[4]) = *reinterpret_cast<float4*>(&As[s][kk][tm + 16]);
            *reinterpret_cast<float4*>(&fb[0]) = *reinterpret_cast<float4*>(&Bs[s][kk][tn]);
            *reinterpret_cast<float4*>(&fb[4]) = *reinterpret_cast<float4*>(&Bs[s][kk][tn + 32]);
            #pragma unroll
            for (int i = 0; i < 8; ++i)
                #pragma unroll
                for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(fa[i], fb[j], acc[i][j]);
        }
        if (k0 + 8 < k) { store(s ^ 1); }
        __syncthreads();
        s ^= 1;
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        int r = bm + tm + (i & 3) + (i >> 2) * 16;
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            int c = bn + tn + (j & 3) + (j >> 2) * 32;
            if (r < m && c < n) {
                float v = alpha * acc[i][j];
                if (beta != 0.f) v = fmaf(beta, C[(size_t)r * ldc + c], v);
                C[(size_t)r * ldc + c] = v;
            }
        }
    }
}
"""


def run(m, n, k, a, b, alpha=1.0, beta=0.0, c=None, architecture="compute_80", **kwargs):
    c = np.full((m, n), np.nan, np.float32) if c is None else c.copy()
    emulator.launch(
        compile_ptx(SGEMM, architecture),
        "sgemm",
        grid=(-(-n // 128), -(-m // 128)),
        block=256,
        source=SGEMM,
        args=[m, n, k, np.float32(alpha), a, k, b, n, np.float32(beta), c, n],
        **kwargs,
    )
    return c


def operands(m, n, k, integers=False, seed=0):
    random = np.random.default_rng(seed)
    if integers:
        return tuple(random.integers(-8, 9, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return tuple((random.standard_normal(shape) * 2.0 ** random.integers(-20, 20, shape)).astype(np.float32) for shape in ((m, k), (k, n)))


def fma_in_order(a, b):
    """Reference of the kernel: one fma a step of k, in order."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for step in range(a.shape[1]):
        total = ieee.fma_f32(*np.broadcast_arrays(a[:, step, None], b[None, step, :], total))
    return total


@pytest.mark.parametrize("architecture", ["compute_75", "compute_80", "compute_90", "compute_100"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (128, 128, 16), (130, 127, 9), (5, 200, 33), (64, 64, 0)])
def test_bits(m, n, k, architecture):
    a, b = operands(m, n, k)
    with np.errstate(all="ignore"):
        want = fma_in_order(a, b)
    np.testing.assert_array_equal(run(m, n, k, a, b, architecture=architecture).view(np.uint32), want.view(np.uint32))


def test_bits_with_subnormal_and_overflowing_products():
    a, b = operands(64, 64, 24)
    a, b = a * np.float32(2.0**-60), b * np.float32(2.0**-84)
    with np.errstate(all="ignore"):
        want = fma_in_order(a, b)
    assert (np.abs(want[want != 0]) < 2.0**-126).any()
    np.testing.assert_array_equal(run(64, 64, 24, a, b), want)
    a, b = (x * np.float32(2.0**52) for x in operands(64, 64, 24))
    a[3, 5], b[5, 7] = np.inf, 0
    with np.errstate(all="ignore"):
        want = fma_in_order(a, b)
    assert np.isinf(want).any() and np.isnan(want).any()
    np.testing.assert_array_equal(run(64, 64, 24, a, b).view(np.uint32), want.view(np.uint32))


def test_bits_do_not_depend_on_how_lanes_are_scheduled():
    a, b = operands(130, 70, 20)
    want = run(130, 70, 20, a, b)
    np.testing.assert_array_equal(run(130, 70, 20, a, b, lanes_per_wave=256), want)
    np.testing.assert_array_equal(run(130, 70, 20, a, b, schedule=emulator.RandomWarps(5)), want)


def test_alpha_and_beta():
    a, b = operands(100, 50, 30, integers=True)
    c = np.ones((100, 50), np.float32)
    np.testing.assert_array_equal(run(100, 50, 30, a, b, 2.0, 3.0, c), 2 * (a @ b) + 3)


def test_a_missing_predicate_is_found():
    broken = SGEMM.replace("if (r < m && c < n) {", "if (r < m) {")
    assert broken != SGEMM
    a, b = operands(16, 100, 8)
    c = emulator.Buffer(np.zeros((16, 100), np.float32), name="C")
    with pytest.raises(emulator.OutOfBounds, match="past the end of C"):
        emulator.launch(compile_ptx(broken), "sgemm", grid=1, block=256, args=[16, 100, 8, 1.0, a, 8, b, 100, 0.0, c, 100])


def test_speed_and_counts():
    """Generous bounds: 256**3 takes a twentieth of a second, a small launch a few milliseconds, on one core of 2024."""
    a, b = operands(256, 256, 256, integers=True)
    run(128, 128, 16, a[:128, :16].copy(), b[:16, :128].copy())
    start = time.process_time()
    run(128, 128, 16, a[:128, :16].copy(), b[:16, :128].copy())
    small = time.process_time() - start
    start = time.process_time()
    c = run(256, 256, 256, a, b)
    assert time.process_time() - start < 10
    assert small < 2
    np.testing.assert_array_equal(c, a @ b)


def test_instruction_counts():
    a, b = operands(128, 128, 16, integers=True)
    result = emulator.launch(
        compile_ptx(SGEMM), grid=1, block=256, args=[128, 128, 16, 1.0, a, 16, b, 128, 0.0, np.zeros((128, 128), np.float32), 128]
    )
    assert result.instructions["fma"] == 128 * 128 * 16
    assert result.instructions["bar"] == 256 * 3
    assert result.waves == 1
    assert result.total_instructions == sum(result.instructions.values())
