"""Two products in a chain, as in attention: the accumulators of one become the A registers of the other, while the next one runs."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import tensor_core

from .helpers import run_cuda
from .wgmma import HELPERS, wrapper

TILES = 3

SOURCE = (
    HELPERS
    + wrapper("product", "m64n32k16.f32.bf16.bf16", "f32", 16, "1, 1, 0, 0")
    + wrapper("product_of_registers", "m64n16k16.f32.bf16.bf16", "f32", 8, "1, 1, 1", a_registers=True)
    + """
__device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Compilers move arithmetic across asm volatile, but not its operands.
template <int n> __device__ __forceinline__ void keep(float (&values)[n])
{
    for (int i = 0; i < n; ++i) asm volatile("" : "+f"(values[i]) :: "memory");
}

// out = sum over the tiles of bf16(q k^T / 8) v, with q [64, 16], k [tiles * 32, 16] and v [tiles * 32, 16].
extern "C" __global__ void __launch_bounds__(128) chain(const uint4* in_q, const uint4* in_k, const uint4* in_v, float* out, int tiles)
{
    __shared__ __align__(1024) uint4 q[128], k[3 * 64], v[3 * 64];
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // q and k: rows of 32 bytes, swizzled; v as it is, for its columns are its leading dimension.
    q[thread ^ thread / 8 % 2] = in_q[thread];
    for (int i = thread; i < tiles * 64; i += 128) {
        k[i ^ i / 8 % 2] = in_k[i];
        v[i ^ i / 8 % 2] = in_v[i];
    }
    proxy_fence();
    __syncthreads();
    uint64_t at_q = matrix(q, 16, 256, 3);
    float scores[16], sums[8];
    for (int i = 0; i < 8; ++i) sums[i] = 0.0f;
    wgmma_fence();
    product(scores, at_q, matrix(k, 16, 256, 3), 0);
    wgmma_commit();
    for (int tile = 0; tile < tiles; ++tile) {
        wgmma_wait<0>();
        keep(scores);
        uint32_t weights[2][4];
        for (int i = 0; i < 8; ++i) weights[i / 4][i % 4] = pack(scores[2 * i] * 0.125f, scores[2 * i + 1] * 0.125f);
        for (int i = 0; i < 8; ++i) asm volatile("" : "+r"(weights[i / 4][i % 4]) :: "memory");
        wgmma_fence();
        for (int half = 0; half < 2; ++half)
            product_of_registers(sums, weights[half], matrix(v + tile * 64 + half * 32, 256, 256, 3), 1);
        wgmma_commit();
        if (tile + 1 < tiles) product(scores, at_q, matrix(k + (tile + 1) * 64, 16, 256, 3), 0);
        wgmma_commit();
    }
    wgmma_wait<0>();
    int row = warp * 16 + lane / 4;
    for (int i = 0; i < 8; ++i) out[(row + i / 2 % 2 * 8) * 16 + lane % 4 * 2 + i / 4 * 8 + i % 2] = sums[i];
}
"""
)


def bits(shape: tuple[int, int], seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 to the nearest bfloat16, as bits."""
    words = values.view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    sums = np.zeros((64, 16), np.uint32)
    for tile in range(TILES):
        part = slice(32 * tile, 32 * tile + 32)
        factors = tensor_core.factor(q, "bf16"), tensor_core.factor(k[part], "bf16")
        scores = tensor_core.multiply_float(*factors, np.zeros((64, 32), np.uint32)).view(np.float32)
        weights = rounded(scores * np.float32(0.125))
        for first in (0, 16):
            left = tensor_core.factor(weights[:, first : first + 16], "bf16")
            right = tensor_core.factor(np.ascontiguousarray(v[part][first : first + 16].T), "bf16")
            sums = tensor_core.multiply_float(left, right, sums)
    return sums


def test_what_the_compiler_moves_before_the_wait_is_told():
    source = SOURCE.replace("        keep(scores);\n", "")
    q, k, v = bits((64, 16), 1), bits((32 * TILES, 16), 2), bits((32 * TILES, 16), 3)
    with pytest.raises(emulator.RegisterInFlight, match="the compiler moved it"):
        run_cuda(source, "chain", 1, 128, [q, k, v, np.zeros((64, 16), np.float32), TILES], "compute_90a")


@pytest.mark.parametrize("schedule", [None, emulator.RandomWarps(5)])
def test_accumulators_become_fragments(schedule):
    q, k, v = bits((64, 16), 1), bits((32 * TILES, 16), 2), bits((32 * TILES, 16), 3)
    out = np.zeros((64, 16), np.float32)
    result = run_cuda(SOURCE, "chain", 1, 128, [q, k, v, out, TILES], "compute_90a", hazards=True, schedule=schedule)
    assert not result.findings
    np.testing.assert_array_equal(out.view(np.uint32), expected(q, k, v))
