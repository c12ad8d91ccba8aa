"""A whole GEMM of Hopper's kind on the emulator: tensor copies, barriers, a producer and two groups of consumers."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import TensorMap, tensor_core

from .helpers import compile_ptx
from .wgmma import HELPERS, wrapper

STAGES, DEPTH = 3, 64

SOURCE = (
    HELPERS
    + wrapper("mma", "m64n128k16.f32.bf16.bf16", "f32", 64)
    + """
typedef struct __align__(64) { uint64_t words[16]; } CUtensorMap;
constexpr int kStages = 3, kTileA = 16384, kTileB = 16384;
__device__ __forceinline__ void barrier_init(uint64_t* bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* bar, int parity)
{
    asm volatile("{\\n.reg .pred P;\\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\\n@P bra DONE;\\nbra AGAIN;\\nDONE:\\n}"
        :: "r"(shared_address(bar)), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy_tile(void* to, const CUtensorMap* map, uint64_t* bar, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        :: "r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y) : "memory");
}

extern "C" __global__ void __launch_bounds__(384) gemm(
    const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, float* C, int n, int k)
{
    extern __shared__ __align__(1024) unsigned char tiles[];
    __shared__ uint64_t full[kStages], empty[kStages];
    unsigned char* a = tiles;
    unsigned char* b = tiles + kStages * kTileA;
    int group = threadIdx.x / 128, steps = k / 64;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            barrier_init(&full[stage], 1);
            barrier_init(&empty[stage], 2);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        proxy_fence();
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int step = 0; step < steps; ++step) {
                int stage = step % kStages;
                if (step >= kStages) barrier_wait(&empty[stage], step / kStages % 2 ^ 1);
                barrier_expect(&full[stage], kTileA + kTileB);
                copy_tile(a + stage * kTileA, &map_a, &full[stage], step * 64, blockIdx.y * 128);
                copy_tile(b + stage * kTileB, &map_b, &full[stage], step * 64, blockIdx.x * 128);
            }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int row_of_group = (group - 1) * 64, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    float d[64];
    for (int i = 0; i < 64; ++i) d[i] = 0.0f;
    for (int step = 0; step < steps; ++step) {
        int stage = step % kStages;
        barrier_wait(&full[stage], step / kStages % 2);
        wgmma_fence();
        for (int i = 0; i < 4; ++i) {
            uint64_t at_a = matrix(a + stage * kTileA + row_of_group * 128 + i * 32, 16, 1024, 1);
            uint64_t at_b = matrix(b + stage * kTileB + i * 32, 16, 1024, 1);
            mma(d, at_a, at_b, 1);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && threadIdx.x % 128 == 0) barrier_arrive(&empty[(step - 1) % kStages]);
    }
    wgmma_wait<0>();
    int row = blockIdx.y * 128 + row_of_group + warp * 16 + lane / 4, column = blockIdx.x * 128 + lane % 4 * 2;
    for (int i = 0; i < 64; ++i) C[(size_t)(row + i / 2 % 2 * 8) * n + column + i / 4 * 8 + i % 2] = d[i];
}
"""
)


def operands(rows: int, depth: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(rows, depth)).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def launch(source: str, m: int, n: int, k: int, **more) -> tuple[np.ndarray, np.ndarray]:
    """The result, and the H200's result step by step; both as bits."""
    a, b = operands(m, k, 1), operands(n, k, 2)
    maps = [TensorMap("bf16", (k, rows), (2 * k,), (DEPTH, 128), swizzle="128B", base=array) for array, rows in ((a, m), (b, n))]
    c = np.zeros((m, n), np.float32)
    emulator.launch(
        compile_ptx(source, "compute_90a"),
        "gemm",
        grid=(n // 128, m // 128),
        block=384,
        shared_bytes=STAGES * 32768,
        args=[*maps, c, n, k],
        source=source,
        hazards=True,
        **more,
    )
    want = np.zeros((m, n), np.uint32)
    for first in range(0, k, 16):
        left, right = (tensor_core.factor(x[:, first : first + 16], "bf16") for x in (a, b))
        want = tensor_core.multiply_float(left, right, want)
    return c.view(np.uint32), want


@pytest.mark.parametrize("schedule", [None, emulator.RandomCrowds(1)])
def test_equals_the_h200_and_is_clean(schedule):
    got, want = launch(SOURCE, 256, 128, 320, schedule=schedule)
    np.testing.assert_array_equal(got, want)
