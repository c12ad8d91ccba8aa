"""Planted hazards of block scales, factors in tensor memory, pairs of blocks and cluster launch control, each with its sound kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import run_cuda
from ..tcgen05 import TCGEN05, core_matrices, descriptor, moves

STEPS = 3
COPY = 'asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"({to}), "l"(matrix({source}, 0, 128, 0)) : "memory");'
SCALED_MMA = (
    'asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X '
    '[%0], %1, %2, %3, [%4], [%5], p;}" :: "r"(tmem), "l"(matrix(as, 2048, 128, 0)), "l"(matrix(bs, 1024, 128, 0)), '
    '"r"(FORMu), "r"(tmem + 64), "r"(tmem + 68));'
)

# Copies, products and results by separate warps; scales have barriers apart from those of the factors.
SCALED = (
    r"""
extern "C" __global__ void __launch_bounds__(192) kernel(const char* a, const char* b, const char* scales, u32* d) {
    __shared__ __align__(1024) char as[4096], bs[2048], sa[512], sb[512];
    __shared__ u32 slot;
    __shared__ __align__(8) u64 full, empty, scaled, copied, done, drained;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) {
        init(&full, 1); init(&empty, 1); init(&scaled, 1); init(&copied, 1); init(&done, 1); init(&drained, 128); fence_init();
    }
    if (warp == 0) { tmem_alloc(&slot, 128); relinquish(); }
    before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot;
    if (t == 128) {
        for (int i = 0; i < STEPS; ++i) {
            wait(&copied, i & 1 ^ 1);
            arrive_expect(&scaled, 1024);
            load_bulk(sa, scales + i * 1024, 512, &scaled); load_bulk(sb, scales + i * 1024 + 512, 512, &scaled);
            wait(&empty, i & 1 ^ 1);
            arrive_expect(&full, 6144);
            load_bulk(as, a + i * 4096, 4096, &full); load_bulk(bs, b + i * 2048, 2048, &full);
        }
    } else if (t == 160) {
        for (int i = 0; i < STEPS; ++i) {
            wait(&drained, i & 1 ^ 1); after_sync();
            wait(&scaled, i & 1);
            COPY_A
            COPY_B
            commit(&copied);
            wait(&full, i & 1);
            MULTIPLY
            commit(&empty);
            commit(&done);
        }
    } else if (warp < 4) {
        for (int i = 0; i < STEPS; ++i) {
            wait(&done, i & 1); after_sync();
            load_columns(tmem + (warp * 32u << 16), d + (i * 128 + t) * 64);
            before_sync(); arrive(&drained);
        }
    }
    __syncthreads();
    if (warp == 0) tmem_free(tmem, 128);
}
""".replace("COPY_A", COPY.format(to="tmem + 64", source="sa"))
    .replace("COPY_B", COPY.format(to="tmem + 68", source="sb"))
    .replace("MULTIPLY", SCALED_MMA.replace("FORM", str(descriptor(128, 64, 1, 1, 0))))
    .replace("STEPS", str(STEPS))
)
COPY_A = COPY.format(to="tmem + 64", source="sa")
SCALE_PLANTS: dict[str, tuple[str, str, str]] = {
    "scales refilled under a copy": ("commit(&copied);", "arrive(&copied);", "may still be reading"),
    "scales read before they arrived": ("wait(&scaled, i & 1);", "", "unwritten|is going to write|in flight"),
    "scales that nobody copied": (COPY_A, "", "nothing has written a part"),
    "scales in columns beside": ('"r"(tmem + 68))', '"r"(tmem + 72))', "nothing has written a part"),
    "a scale id that does not exist": (f'"r"({descriptor(128, 64, 1, 1, 0)}u)', f'"r"({descriptor(128, 64, 1, 1, 1)}u)', "scale id"),
    "scales over the sums": ('"r"(tmem + 64), "l"(matrix(sa', '"r"(tmem + 32), "l"(matrix(sa', "nothing has written a part"),
    "scales copied again under a load": (
        "wait(&drained, i & 1 ^ 1); after_sync();\n            wait(&scaled, i & 1);",
        f"wait(&scaled, i & 1);\n            {COPY.format(to='tmem', source='sa')}\n            wait(&drained, i & 1 ^ 1); after_sync();",
        "race in tensor memory|still in use|is going to read|without that this thread need know",
    ),
    "scales of another swizzle": ("matrix(sa, 0, 128, 0)", "matrix(sa, 0, 128, 2)", "unwritten|past the end|swizzle"),
    "scales at another stride": ("matrix(sa, 0, 128, 0)", "matrix(sa, 0, 1024, 0)", "unwritten|past the end"),
    "version bits of zero": ("matrix(sa, 0, 128, 0)", "(matrix(sa, 0, 128, 0) ^ 1ull << 46)", "version|invalid|bits"),
    "factors refilled under a product": ("commit(&empty);", "arrive(&empty);", "may still be reading"),
}

# A factor goes to tensor memory by stores of the warps that made it.
STORED = r"""
extern "C" __global__ void __launch_bounds__(160) kernel(const u32* a, const uint4* b, u32* d) {
    __shared__ __align__(1024) uint4 bs[64];
    __shared__ u32 slot; __shared__ __align__(8) u64 ready, done;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) { init(&ready, 128); init(&done, 1); fence_init(); }
    if (warp == 0) { tmem_alloc(&slot, 64); relinquish(); }
    if (t < 64) bs[t] = b[t];
    fence_async(); before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot, mine = tmem + (warp * 32u << 16);
    if (warp < 4) {
        for (int c = 0; c < 8; ++c) tmem_st(mine + 32 + c, a[t * 8 + c]);
        wait_st();
        before_sync(); arrive(&ready);
        wait(&done, 0); after_sync();
        load_columns(mine, d + t * 32);
        before_sync();
    } else if (t == 128) {
        wait(&ready, 0); after_sync();
        mma_f16_ts(tmem, tmem + 32, matrix(bs, 512, 128, 0), FORMu, 0);
        commit(&done);
    }
    __syncthreads();
    if (warp == 0) tmem_free(tmem, 64);
}
""".replace("FORM", str(descriptor(128, 32, 0, 0, 1)))
STORE_PLANTS: dict[str, tuple[str, str, str]] = {
    "stores without their wait": ("wait_st();", "", "tcgen05.wait::st"),
    "stores without a fence": ("before_sync(); arrive(&ready);", "arrive(&ready);", "before_thread_sync"),
    "an issuer without a fence": ("wait(&ready, 0); after_sync();", "wait(&ready, 0);", "after_thread_sync"),
    "an issuer that does not wait": ("wait(&ready, 0); after_sync();", "", "nothing has written|race|in flight|is going to write"),
    "a column too few": ("c < 8", "c < 7", "nothing has written a part"),
    "a factor under the sums": ("mma_f16_ts(tmem, tmem + 32", "mma_f16_ts(tmem, tmem + 24", "overlaps the sums"),
    "a store over the factor": (
        "wait(&done, 0); after_sync();",
        "tmem_st(mine + 32, 7); wait_st(); wait(&done, 0); after_sync();",
        "race|still in use|may still be reading",
    ),
}

# Two blocks multiply together, step after step; the first one issues, and barriers of both hear of it.
PAIR = r"""
DEVICE void commit_both(u64* bar) {
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
        :: "r"(shared_address(bar)), "h"((u16)3) : "memory");
}
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(192) kernel(const char* a, const char* b, u32* d) {
    __shared__ __align__(1024) char as[4096], bs[1024];
    __shared__ u32 slot; __shared__ __align__(8) u64 full, other, empty, done, drained;
    int t = threadIdx.x, warp = t / 32, rank = blockIdx.x;
    if (t == 0) { init(&full, 1); init(&other, 1); init(&empty, 1); init(&done, 1); init(&drained, 256); fence_init(); }
    if (warp == 0) { tmem_alloc(&slot, 64); relinquish(); }
    before_sync(); cluster_sync(); after_sync();
    u32 tmem = slot;
    if (t == 128) {
        for (int i = 0; i < STEPS; ++i) {
            wait(&empty, i & 1 ^ 1);
            arrive_expect(&full, 5120);
            load_bulk(as, a + (i * 2 + rank) * 4096, 4096, &full); load_bulk(bs, b + (i * 2 + rank) * 1024, 1024, &full);
        }
    } else if (t == 160 && rank == 1) {
        for (int i = 0; i < STEPS; ++i) {
            wait(&full, i & 1);
            arrive_at(peer_address(&other, 0));
        }
    } else if (t == 160) {
        for (int i = 0; i < STEPS; ++i) {
            wait(&drained, i & 1 ^ 1); after_sync();
            wait(&full, i & 1);
            wait(&other, i & 1);
            mma_f16(tmem, matrix(as, 2048, 128, 0), matrix(bs, 512, 128, 0), FORMu, 0);
            commit_both(&empty);
            commit_both(&done);
        }
    } else if (warp < 4) {
        for (int i = 0; i < STEPS; ++i) {
            wait(&done, i & 1); after_sync();
            load_columns(tmem + (warp * 32u << 16), d + ((i * 2 + rank) * 128 + t) * 64);
            before_sync(); arrive_at(peer_address(&drained, 0));
        }
    }
    before_sync(); cluster_sync(); after_sync();
    if (warp == 0) tmem_free(tmem, 64);
}
""".replace("FORM", str(descriptor(256, 64, 0, 0, 1))).replace("STEPS", str(STEPS))
PAIR_PLANTS: dict[str, tuple[str, str, str]] = {
    "the other block's factors are not there": ("wait(&other, i & 1);", "", "unwritten|is going to write|in flight|race"),
    "the other block is not told": ('"h"((u16)3)', '"h"((u16)1)', "deadlock"),
    "the other block's factors are refilled": (
        "wait(&empty, i & 1 ^ 1);",
        "if (rank == 0) wait(&empty, i & 1 ^ 1);",
        "may still be reading|arrival more",
    ),
    "the other block reads early": (
        "wait(&done, i & 1); after_sync();",
        "if (rank == 0) wait(&done, i & 1); after_sync();",
        "unwritten|going to write",
    ),
    "sums are replaced under the other block": (
        "init(&drained, 256)",
        "init(&drained, 128)",
        "race|still in use|is going to read|arrival more|deadlock",
    ),
    "both blocks issue": ("t == 160 && rank == 1", "t == 192", "deadlock|race|in flight|still in use|arrival more|first block"),
    "memory in one block only": (
        "if (warp == 0) { tmem_alloc",
        "if (warp == 0 && rank == 0) { tmem_alloc",
        "not allocated|every block|deadlock|both",
    ),
    "memory of two sizes": (
        "tmem_alloc(&slot, 64)",
        "tmem_alloc(&slot, rank ? 128 : 64)",
        "of 64 in the other block|of 128 in the other block",
    ),
    "blocks that leave alone": (
        "before_sync(); cluster_sync(); after_sync();\n    if (warp == 0) tmem_free",
        "__syncthreads(); if (warp == 0) tmem_free",
        "may have ended",
    ),
    "no fence of the other block": (
        "before_sync(); arrive_at(peer_address(&drained, 0));",
        "if (rank == 0) before_sync(); arrive_at(peer_address(&drained, 0));",
        "before_thread_sync",
    ),
}

# Blocks take over the tiles of those that wait; every thread reads the answer.
LAUNCH = r"""
extern "C" __global__ void kernel(u32* done) {
    __shared__ __align__(16) u32 answer[4];
    __shared__ __align__(8) u64 arrived, read;
    int t = threadIdx.x;
    if (t == 0) { init(&arrived, 1); init(&read, 64); fence_init(); }
    __syncthreads();
    u32 tile = blockIdx.x;
    for (int i = 0;; ++i) {
        if (t == 0) {
            wait(&read, i & 1 ^ 1);
            fence_async();
            arrive_expect(&arrived, 16);
            asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];"
                :: "r"(shared_address(answer)), "r"(shared_address(&arrived)) : "memory");
            atomicAdd(&done[tile], 1);
        }
        wait(&arrived, i & 1);
        u32 ok, x;
        asm volatile("{.reg .pred p; .reg .b128 r; ld.shared.b128 r, [%2];"
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r; selp.u32 %0, 1, 0, p;"
            "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, _, _, _}, r;}" : "=r"(ok), "=r"(x)
            : "r"(shared_address(answer)) : "memory");
        arrive(&read);
        if (!ok) break;
        tile = x;
    }
}
"""
LAUNCH_PLANTS: dict[str, tuple[str, str, str]] = {
    "an answer read before it arrived": ("wait(&arrived, i & 1);", "", "is going to write"),
    "an answer that is asked for again too early": ("wait(&read, i & 1 ^ 1);", "", "race|may still|read"),
    "a barrier that expects no bytes": ("arrive_expect(&arrived, 16);", "arrive(&arrived);", "bytes|deadlock|going to write"),
    "a barrier that expects others": ("arrive_expect(&arrived, 16);", "arrive_expect(&arrived, 32);", "deadlock"),
    "a request after a refusal": ("if (!ok) break;", "if (!ok && i > 30) break;", "must not ask again"),
    "the other phase": ("wait(&arrived, i & 1);", "wait(&arrived, i & 1 ^ 1);", "is going to write|deadlock"),
    "an answer that is not asked whether it is one": (
        "if (!ok) break;\n        tile = x;",
        "tile = x;\n        if (!ok && i > 40) break;",
        "out of bounds|must not ask again",
    ),
    "an answer that nobody waits for": (
        "        wait(&arrived, i & 1);\n",
        "        if (i == 1) break;\n        wait(&arrived, i & 1);\n",
        "in flight|ends",
    ),
}


def product(source: str, **options) -> tuple[np.ndarray, np.ndarray]:
    """Sums of NVFP4 products, and their values."""
    rng = np.random.default_rng(6)
    codes = [rng.integers(0, 256, (STEPS, rows, 32)).astype(np.uint8) for rows in (128, 64)]
    scales = np.full((STEPS, 2, 512), 0x38, np.uint8)  # 1 in e4m3
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    a, b = (np.stack([values[side & 15], values[side >> 4]], axis=-1).reshape(STEPS, len(side[0]), 64) for side in codes)
    images = [np.concatenate([core_matrices(step) for step in side]) for side in codes]
    d = np.zeros((STEPS, 128, 64), np.float32)
    run_cuda(TCGEN05 + moves(64) + source, "kernel", 1, 192, [*images, scales, d], "sm_100a", hazards=True, **options)
    return d, np.matmul(a, b.swapaxes(1, 2))


def stored(source: str, **options) -> tuple[np.ndarray, np.ndarray]:
    """Sums of a product whose first factor is stored to tensor memory, and their values."""
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-8, 8, (rows, 16)).astype(np.float16) for rows in (128, 32))
    d = np.zeros((128, 32), np.float32)
    run_cuda(TCGEN05 + moves(32) + source, "kernel", 1, 160, [a, core_matrices(b), d], "sm_100a", hazards=True, **options)
    return d, a.astype(np.float32) @ b.astype(np.float32).T


def paired(source: str, **options) -> tuple[np.ndarray, np.ndarray]:
    """Sums of products of a pair of blocks, and their values."""
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-8, 8, (STEPS, 2, rows, 16)).astype(np.float16) for rows in (128, 32))
    images = [np.concatenate([core_matrices(half) for step in side for half in step]) for side in (a, b)]
    d = np.zeros((STEPS, 256, 64), np.float32)
    text = (TCGEN05 + moves(64)).replace("cta_group::1", "cta_group::2") + source
    run_cuda(text, "kernel", 2, 192, [*images, d], "sm_100a", hazards=True, **options)
    wide = [side.reshape(STEPS, -1, 16).astype(np.float32) for side in (a, b)]
    return d, np.matmul(wide[0], wide[1].swapaxes(1, 2))


def taken_over(source: str, **options) -> tuple[np.ndarray, np.ndarray]:
    """Times that each tile was done, which should be once."""
    done = np.zeros(24, np.uint32)
    run_cuda(TCGEN05 + source, "kernel", 24, 64, [done], "sm_100a", hazards=True, **options)
    return done, np.ones(24, np.uint32)


Run = Callable[..., tuple[np.ndarray, np.ndarray]]
KERNELS: dict[str, tuple[Run, str, dict[str, tuple[str, str, str]]]] = {
    "scales": (product, SCALED, SCALE_PLANTS),
    "stores": (stored, STORED, STORE_PLANTS),
    "pairs": (paired, PAIR, PAIR_PLANTS),
    "launch control": (taken_over, LAUNCH, LAUNCH_PLANTS),
}


@pytest.mark.parametrize("schedule", [None, 1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_a_sound_kernel_is_clean_in_every_order(name, schedule):
    run, source, _ = KERNELS[name]
    found, wanted = run(source, **({} if schedule is None else {"schedule": emulator.RandomWarps(schedule)}))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("name", "plant"), [(name, plant) for name, (_, _, plants) in KERNELS.items() for plant in plants])
def test_a_planted_hazard_is_found(name, plant):
    run, source, plants = KERNELS[name]
    old, new, message = plants[plant]
    assert old in source
    with pytest.raises(emulator.EmulatorError, match=message):
        run(source.replace(old, new))
