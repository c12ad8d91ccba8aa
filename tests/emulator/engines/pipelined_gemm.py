"""A GEMM as kernels for Hopper are: a producer warp that feeds a ring of slots by TMA, with multicast in a cluster of two blocks, two
consumer warpgroups with wgmma, and results that leave through shared memory. C[m, n] = A[m, k] B[n, k], bf16 in, f32 out."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmgen.emulator import TensorMap

from .prelude import run

M, N, K = 128, 64, 64
"""Tile of a block: each consumer group computes 64 rows."""

BODY = (
    r"""
constexpr int STAGES = 3, A_BYTES = 128 * 64 * 2, B_BYTES = 64 * 64 * 2, BYTES = A_BYTES + B_BYTES;
DEVICE u64 descriptor(u32 address) { return ((address & 0x3FFFF) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62; }
DEVICE void multiply(float (&d)[32], u64 a, u64 b, int accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
"""
    + '"\n        "'.join(", ".join(f"%{8 * row + i}" for i in range(8)) + (", " if row < 3 else "") for row in range(4)).join(
        ['        "', ""]
    )
    + r"""}, %32, %33, p, 1, 1, 0, 0;}"
        : """
    + ", ".join(f'"+f"(d[{i}])' for i in range(32))
    + r""" : "l"(a), "l"(b), "r"(accumulate));
}
DEVICE void multicast(void* to, const CUtensorMap* map, u64* bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y), "h"((u16)3) : "memory");
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384) kernel(
    const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_c,
    int tiles_n, int steps) {
    extern __shared__ __align__(1024) u8 slots[];
    __shared__ __align__(1024) float result[2][64 * 32];
    __shared__ u64 full[STAGES], empty[STAGES];
    const int group = threadIdx.x / 128 - 1;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) { init(full + s, 1); init(empty + s, 4); }
        fence_init();
    }
    cluster_sync();
    const int row = 128 * blockIdx.x;
    if (group < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int tile = 0, i = 0; tile < tiles_n; ++tile)
                for (int k = 0; k < steps; ++k, ++i) {
                    const int s = i % STAGES, phase = i / STAGES & 1;
                    wait(empty + s, phase ^ 1);
                    arrive_expect(full + s, BYTES);
                    load_tile(slots + BYTES * s, &map_a, full + s, 64 * k, row);
                    multicast(slots + BYTES * s + A_BYTES + B_BYTES / 2 * rank(), &map_b, full + s, 64 * k, 64 * tile + 32 * rank());
                }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        for (int tile = 0, i = 0; tile < tiles_n; ++tile) {
            float d[32];
            for (int k = 0; k < steps; ++k, ++i) {
                const int s = i % STAGES, phase = i / STAGES & 1;
                const u32 a = shared_address(slots) + BYTES * s + 8192 * group, b = shared_address(slots) + BYTES * s + A_BYTES;
                wait(full + s, phase);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                for (int kk = 0; kk < 4; ++kk) multiply(d, descriptor(a + 32 * kk), descriptor(b + 32 * kk), k + kk > 0);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                if (threadIdx.x % 128 < 2) arrive_at(peer_address(empty + s, threadIdx.x % 128));
            }
            const int thread = threadIdx.x % 128, first = thread / 32 * 16 + thread % 32 / 4;
            for (int half = 0; half < 2; ++half) {
                if (thread == 0) wait_group_read<0>();
                asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
                for (int j = 0; j < 4; ++j)
                    for (int q = 0; q < 4; ++q)
                        result[group][(first + q / 2 * 8) * 32 + j * 8 + thread % 4 * 2 + q % 2] = d[16 * half + 4 * j + q];
                fence_async();
                asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
                if (thread == 0) { store_tile(&map_c, result[group], 64 * tile + 32 * half, row + 64 * group); commit(); }
            }
        }
        if (threadIdx.x % 128 == 0) wait_group<0>();
    }
    cluster_sync();
}"""
)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Small integers as the bits of bfloat16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def gemm(m: int, n: int, k: int, body: str = BODY, swizzle: str = "128B", **kwargs: Any) -> bool:
    """Runs the kernel on small integers; whether the product is right."""
    random = np.random.default_rng(m + n + k)
    a, b = (random.integers(-4, 5, (rows, k)).astype(np.float32) for rows in (m, n))
    c = np.full((m, n), -1, np.float32)
    maps = [
        TensorMap("bf16", (k, m), (2 * k,), (64, 128), swizzle=swizzle, base=to_bf16(a)),
        TensorMap("bf16", (k, n), (2 * k,), (64, 32), swizzle="128B", base=to_bf16(b)),
        TensorMap("f32", (n, m), (4 * n,), (32, 64), base=c),
    ]
    run(body, *maps, n // N, k // K, grid=m // M, block=384, shared_bytes=3 * (M + N) * K * 2, **kwargs)
    return np.array_equal(c, a @ b.T)
