"""Planted hazards in four styles of kernels on tensor memory: pairs of blocks that take tiles from cluster launch control; weights that warps
convert on their way to tensor memory; groups of masked lengths whose scales another thread copies; and a single warp that does everything."""

# ruff: noqa: E501 (CUDA)

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import run_cuda
from ..tcgen05 import TCGEN05, core_matrices, descriptor, moves

# Two blocks multiply together. The leader's scheduler asks for tiles of both; each thread with a role reads the answers.
PERSISTENT = r"""
struct Shared {
    char a[2][4096], b[2][1024];
    u32 answer[2][4];
    u64 full[2], other[2], empty[2], arrived[2], read[2], done, drained;
    u32 slot;
};
DEVICE void commit_both(u64* bar) {
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" :: "r"(shared_address(bar)), "h"((u16)3) : "memory");
}
DEVICE int next(Shared& s, int asked) {
    int place = asked & 1, tile;
    wait(&s.arrived[place], asked >> 1 & 1);
    asm volatile("{.reg .pred p; .reg .b128 r; .reg .b32 x; ld.shared.b128 r, [%1];"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r; mov.b32 %0, -1;"
        "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {x, _, _, _}, r; @p shr.u32 %0, x, 1;}"
        : "=r"(tile) : "r"(shared_address(s.answer[place])) : "memory");
    arrive_at(peer_address(&s.read[place], 0));
    return tile;
}
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(224) kernel(const char* a, const char* b, float* d) {
    extern __shared__ __align__(1024) char raw[];
    Shared& s = *reinterpret_cast<Shared*>(raw);
    int t = threadIdx.x, warp = t / 32, rank = blockIdx.x & 1;
    if (t == 0) {
        for (int i = 0; i < 2; ++i) { init(&s.full[i], 1); init(&s.other[i], 1); init(&s.empty[i], 1); init(&s.arrived[i], 1); init(&s.read[i], 261); }
        init(&s.done, 1); init(&s.drained, 256); fence_init();
    }
    if (warp == 0) { tmem_alloc(&s.slot, 64); relinquish(); }
    before_sync(); cluster_sync(); after_sync();
    u32 tmem = s.slot;
    int tile = blockIdx.x / 2, asked = 0;
    if (t == 128) {
        for (int i = 0; tile >= 0; tile = next(s, asked++))
            for (int k = 0; k < 2; ++k, ++i) {
                int p = i & 1;
                wait(&s.empty[p], i >> 1 & 1 ^ 1);
                arrive_expect(&s.full[p], 5120);
                load_bulk(s.a[p], a + ((tile * 2 + k) * 2 + rank) * 4096, 4096, &s.full[p]);
                load_bulk(s.b[p], b + ((tile * 2 + k) * 2 + rank) * 1024, 1024, &s.full[p]);
            }
    } else if (t == 160 && rank == 1) {
        for (int i = 0; tile >= 0; tile = next(s, asked++))
            for (int k = 0; k < 2; ++k, ++i) {
                wait(&s.full[i & 1], i >> 1 & 1);
                arrive_at(peer_address(&s.other[i & 1], 0));
            }
    } else if (t == 160) {
        for (int i = 0, u = 0; tile >= 0; tile = next(s, asked++), ++u) {
            wait(&s.drained, u & 1 ^ 1); after_sync();
            for (int k = 0; k < 2; ++k, ++i) {
                int p = i & 1;
                wait(&s.full[p], i >> 1 & 1);
                wait(&s.other[p], i >> 1 & 1);
                mma_f16(tmem, matrix(s.a[p], 2048, 128, 0), matrix(s.b[p], 512, 128, 0), FORMu, k > 0);
                commit_both(&s.empty[p]);
            }
            commit_both(&s.done);
        }
    } else if (t == 192 && rank == 0) {
        while (tile >= 0) {
            int place = asked & 1;
            wait(&s.read[place], asked >> 1 & 1 ^ 1);
            fence_async();
            for (int block = 0; block < 2; ++block)
                asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], 16;" :: "r"(peer_address(&s.arrived[place], block)) : "memory");
            asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%0], [%1];"
                :: "r"(shared_address(s.answer[place])), "r"(shared_address(&s.arrived[place])) : "memory");
            tile = next(s, asked++);
        }
    } else if (warp < 4) {
        for (int u = 0; tile >= 0; tile = next(s, asked++), ++u) {
            wait(&s.done, u & 1); after_sync();
            load_columns(tmem + (warp * 32u << 16), (u32*)d + ((tile * 2 + rank) * 128 + t) * 64);
            before_sync(); arrive_at(peer_address(&s.drained, 0));
        }
    }
    __syncwarp();
    before_sync(); cluster_sync(); after_sync();
    if (warp == 0) tmem_free(tmem, 64);
}
""".replace("FORM", str(descriptor(256, 64, 0, 0, 1)))
CLUSTERS = 6
IN_USE = "in flight|going to write|race|unwritten|may still be reading|still in use"
Plants = dict[str, tuple[str, str, str]]
PERSISTENT_PLANTS: Plants = {
    "an answer read before it arrived": ("    wait(&s.arrived[place], asked >> 1 & 1);\n", "", "going to write|unwritten|must not ask again"),
    "an answer's place asked for again before all read it": ("wait(&s.read[place], asked >> 1 & 1 ^ 1);", "", "race|may still|read|in flight"),
    "an answer that one block does not expect": ("block < 2; ++block", "block < 1; ++block", "deadlock|bytes|going to write|unwritten"),
    "readers of one block alone give the place back": ("init(&s.read[i], 261)", "init(&s.read[i], 131)", "race|may still|arriv|in flight|read"),
    "the other block's factors are not waited for": ("wait(&s.other[p], i >> 1 & 1);", "", IN_USE),
    "sums given back by one block": ("init(&s.drained, 256)", "init(&s.drained, 128)", f"deadlock|{IN_USE}"),
    "sums that the readers do not wait for": ("wait(&s.done, u & 1); after_sync();", "after_sync();", IN_USE),
    "sums written before the readers of either block are through": ("wait(&s.drained, u & 1 ^ 1); after_sync();", "after_sync();", IN_USE),
    "no fence of the issuer behind the readers": ("wait(&s.drained, u & 1 ^ 1); after_sync();", "wait(&s.drained, u & 1 ^ 1);", "after_thread_sync"),
    "no fence of the readers before they give back": ("before_sync(); arrive_at(peer_address(&s.drained, 0));", "arrive_at(peer_address(&s.drained, 0));", "before_thread_sync"),
    "a stage given back to the leader alone": ('"h"((u16)3)', '"h"((u16)1)', "deadlock"),
    "columns of one block alone": ("if (warp == 0) { tmem_alloc", "if (warp == 0 && rank == 0) { tmem_alloc", "both blocks|pair|deadlock|not allocated|unwritten"),
    "a block that leaves before its pair": (
        "before_sync(); cluster_sync(); after_sync();\n    if",
        "before_sync(); __syncthreads(); after_sync();\n    if",
        "exit|ended|in use|left|pair|deadlock|race",
    ),
}  # fmt: skip

# Four warps turn weights of 8 bits into float16 in tensor memory, of which there are two buffers; another thread multiplies by them.
CONVERTED = r"""
extern "C" __global__ void __launch_bounds__(192) kernel(const signed char* w, const char* b, float* d) {
    __shared__ __align__(1024) char bs[2][1024];
    __shared__ u32 slot;
    __shared__ __align__(8) u64 full[2], empty[2], ready[2], used[2], done;
    int t = threadIdx.x, warp = t / 32;
    if (t == 128) {
        for (int i = 0; i < 2; ++i) { init(&full[i], 1); init(&empty[i], 1); init(&ready[i], 128); init(&used[i], 1); }
        init(&done, 1); fence_init();
    }
    __syncwarp();
    if (warp == 4) { tmem_alloc(&slot, 64); relinquish(); }
    before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot;
    if (warp < 4) {
        u32 mine = tmem + (warp * 32u << 16);
        for (int i = 0; i < 5; ++i) {
            int p = i & 1;
            wait(&used[p], i >> 1 & 1 ^ 1); after_sync();
            for (int c = 0; c < 8; ++c) {
                const signed char* two = w + (i * 128 + t) * 16 + 2 * c;
                u16 low, high;
                asm("cvt.rn.f16.s32 %0, %1;" : "=h"(low) : "r"((int)two[0])); asm("cvt.rn.f16.s32 %0, %1;" : "=h"(high) : "r"((int)two[1]));
                tmem_st(mine + 32 + 8 * p + c, low | (u32)high << 16);
            }
            wait_st();
            before_sync(); arrive(&ready[p]);
        }
        wait(&done, 0); after_sync();
        load_columns(mine, (u32*)d + t * 32);
        before_sync();
    } else if (t == 128) {
        for (int i = 0; i < 5; ++i) {
            int p = i & 1;
            wait(&empty[p], i >> 1 & 1 ^ 1);
            arrive_expect(&full[p], 1024);
            load_bulk(bs[p], b + i * 1024, 1024, &full[p]);
        }
    } else if (t == 160) {
        for (int i = 0; i < 5; ++i) {
            int p = i & 1;
            wait(&full[p], i >> 1 & 1);
            wait(&ready[p], i >> 1 & 1); after_sync();
            mma_f16_ts(tmem, tmem + 32 + 8 * p, matrix(bs[p], 512, 128, 0), FORMu, i > 0);
            commit(&empty[p]);
            commit(&used[p]);
        }
        commit(&done);
    }
    __syncthreads();
    after_sync();
    if (warp == 4) tmem_free(tmem, 64);
}
""".replace("FORM", str(descriptor(128, 32, 0, 0, 1)))
CONVERTED_PLANTS: Plants = {
    "weights multiplied before they are stored": ("wait(&ready[p], i >> 1 & 1); after_sync();", "after_sync();", "nothing has written|race|in flight"),
    "weights stored over those in use": ("wait(&used[p], i >> 1 & 1 ^ 1); after_sync();", "after_sync();", f"deadlock|{IN_USE}"),
    "weights given back by an arrival": ("commit(&used[p]);", "arrive(&used[p]);", IN_USE),
    "weights given back at the other barrier": ("commit(&used[p]);", "commit(&empty[p]);", f"deadlock|more than its count|{IN_USE}"),
    "stores without their wait": ("wait_st();", "", "wait::st"),
    "no fence behind the stores": ("before_sync(); arrive(&ready[p]);", "arrive(&ready[p]);", "before_thread_sync"),
    "no fence of the issuer": ("wait(&ready[p], i >> 1 & 1); after_sync();", "wait(&ready[p], i >> 1 & 1);", "after_thread_sync"),
    "no fence of the warps that convert": ("wait(&used[p], i >> 1 & 1 ^ 1); after_sync();", "wait(&used[p], i >> 1 & 1 ^ 1);", "after_thread_sync"),
    "two warps count for four": ("init(&ready[i], 128)", "init(&ready[i], 64)", "nothing has written|race|in flight|phase|arriv"),
    "one buffer for both": ("tmem_st(mine + 32 + 8 * p + c", "tmem_st(mine + 32 + c", f"nothing has written|{IN_USE}"),
    "weights over the sums": ("mine + 32 + 8 * p", "mine + 24 + 8 * p", "overlap|nothing has written|race"),
    "results before the last product": ("wait(&done, 0); after_sync();", "after_sync();", f"nothing has written|{IN_USE}"),
    "a factor given back by an arrival": ("commit(&empty[p]);", "arrive(&empty[p]);", IN_USE),
    "held when the block ends": ("if (warp == 4) tmem_free(tmem, 64);", "", "holds 64 columns"),
    "freed before the results are read": ("    __syncthreads();\n    after_sync();\n    if", "    if", "freed|in flight|race|not allocated|still"),
}  # fmt: skip

# Products of NVFP4 for groups with as many steps as a mask says. One thread copies scales to tensor memory, another multiplies.
MASKED = r"""
DEVICE void copy(u32 to, const char* from) { asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(to), "l"(matrix(from, 0, 128, 0)) : "memory"); }
DEVICE void multiply(u32 d, u64 a, u64 b, u32 scales_a, u32 scales_b, u32 accumulate) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %6, [%3], [%4], p;}"
        :: "r"(d), "l"(a), "l"(b), "r"(scales_a), "r"(scales_b), "r"(accumulate), "r"(FORMu) : "memory");
}
extern "C" __global__ void __launch_bounds__(224) kernel(const char* a, const char* b, const char* scales, const int* steps, u32* d) {
    __shared__ __align__(1024) char as[2][4096], bs[2][2048], sc[2][1024];
    __shared__ u32 slot;
    __shared__ __align__(8) u64 full[2], empty[2], scaled[2], done, drained;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) {
        for (int i = 0; i < 2; ++i) { init(&full[i], 1); init(&empty[i], 1); init(&scaled[i], 1); }
        init(&done, 1); init(&drained, 128); fence_init();
    }
    if (warp == 6) { tmem_alloc(&slot, 128); relinquish(); }
    before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot;
    int i = 0, used = 0;
    if (t == 128) {
        for (int group = 0; group < 3; ++group)
            for (int k = 0; k < steps[group]; ++k, ++i) {
                int p = i & 1, from = group * 3 + k;
                wait(&empty[p], i >> 1 & 1 ^ 1);
                arrive_expect(&full[p], 7168);
                load_bulk(as[p], a + from * 4096, 4096, &full[p]); load_bulk(bs[p], b + from * 2048, 2048, &full[p]);
                load_bulk(sc[p], scales + from * 1024, 1024, &full[p]);
            }
    } else if (t == 160) {
        for (int group = 0; group < 3; ++group)
            for (int k = 0; k < steps[group]; ++k, ++i) {
                int p = i & 1;
                wait(&full[p], i >> 1 & 1); after_sync();
                copy(tmem + 64 + 8 * p, sc[p]);
                copy(tmem + 68 + 8 * p, sc[p] + 512);
                commit(&scaled[p]);
            }
    } else if (t == 192) {
        for (int group = 0; group < 3; ++group) {
            if (steps[group] == 0) continue;
            wait(&drained, used++ & 1 ^ 1); after_sync();
            for (int k = 0; k < steps[group]; ++k, ++i) {
                int p = i & 1;
                wait(&full[p], i >> 1 & 1);
                wait(&scaled[p], i >> 1 & 1); after_sync();
                multiply(tmem, matrix(as[p], 2048, 128, 0), matrix(bs[p], 1024, 128, 0), tmem + 64 + 8 * p, tmem + 68 + 8 * p, k > 0);
                commit(&empty[p]);
            }
            commit(&done);
        }
    } else if (warp < 4) {
        for (int group = 0; group < 3; ++group) {
            if (steps[group] == 0) continue;
            wait(&done, used++ & 1); after_sync();
            load_columns(tmem + (warp * 32u << 16), d + (group * 128 + t) * 64);
            before_sync(); arrive(&drained);
        }
    }
    __syncthreads();
    if (warp == 6) tmem_free(tmem, 128);
}
"""
MASKED = MASKED.replace("FORM", str(descriptor(128, 64, 1, 1, 0)))
MASKED_PLANTS: Plants = {
    "products before their scales are copied": ("wait(&scaled[p], i >> 1 & 1); after_sync();", "after_sync();", f"nothing has written|{IN_USE}"),
    "scales copied before they arrived": ("wait(&full[p], i >> 1 & 1); after_sync();\n                copy", "after_sync();\n                copy", IN_USE),
    "no fence of the thread that multiplies": ("wait(&scaled[p], i >> 1 & 1); after_sync();", "wait(&scaled[p], i >> 1 & 1);", "after_thread_sync"),
    "one place for the scales of both stages": ("8 * p", "0 * p", IN_USE),
    "scales of the other stage": ("tmem + 68 + 8 * p, k", "tmem + 76 - 8 * p, k", f"nothing has written|{IN_USE}"),
    "a scale id that does not exist": (f"{descriptor(128, 64, 1, 1, 0)}u", f"{descriptor(128, 64, 1, 1, 0) | 1 << 29}u", "scale id"),
    "bytes that the barrier does not count": ("arrive_expect(&full[p], 7168);", "arrive_expect(&full[p], 6144);", f"bytes|deadlock|{IN_USE}"),
    "a stage given back by an arrival": ("commit(&empty[p]);", "arrive(&empty[p]);", IN_USE),
    "a mask that the readers do not heed": ("            if (steps[group] == 0) continue;\n            wait(&done", "            wait(&done", "deadlock"),
    "a step more than were copied": ("k < steps[group]; ++k, ++i) {\n                int p = i & 1;\n                wait(&full[p], i >> 1 & 1);\n                wait", "k < steps[group] + 1; ++k, ++i) {\n                int p = i & 1;\n                wait(&full[p], i >> 1 & 1);\n                wait", "deadlock"),
    "sums written before the group before was read": ("wait(&drained, used++ & 1 ^ 1); after_sync();", "after_sync();", IN_USE),
    "sums handed on after every step": ("commit(&empty[p]);", "commit(&empty[p]); commit(&done);", f"deadlock|{IN_USE}"),
}  # fmt: skip

FOLLOWED = MASKED.replace("commit(&scaled[p]);", "before_sync(); arrive(&scaled[p]);")
"""Products behind copies in flight, which they follow: no commit in between, but fences."""
FOLLOWED_PLANTS: Plants = {
    "no fence behind the copies": ("before_sync(); arrive(&scaled[p]);", "arrive(&scaled[p]);", "before_thread_sync"),
    "no fence before the products": ("wait(&scaled[p], i >> 1 & 1); after_sync();", "wait(&scaled[p], i >> 1 & 1);", "after_thread_sync"),
    "products that do not wait": ("wait(&scaled[p], i >> 1 & 1); after_sync();", "after_sync();", f"nothing has written|{IN_USE}"),
}

# One warp allocates, copies, multiplies and reads the rows that its lanes reach.
ALONE = r"""
extern "C" __global__ void __launch_bounds__(32) kernel(const char* a, const char* b, float* d) {
    __shared__ __align__(1024) char as[2][4096], bs[2][1024];
    __shared__ u32 slot;
    __shared__ __align__(8) u64 full[2], used[2], done;
    int lane = threadIdx.x;
    if (lane == 0) { init(&full[0], 1); init(&full[1], 1); init(&used[0], 1); init(&used[1], 1); init(&done, 1); fence_init(); }
    tmem_alloc(&slot, 32);
    relinquish();
    before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot;
    if (lane == 0) {
        for (int i = 0; i < 7; ++i) {
            if (i < 5) {
                if (i >= 2) wait(&used[i & 1], (i - 2) >> 1 & 1);
                arrive_expect(&full[i & 1], 5120);
                load_bulk(as[i & 1], a + i * 4096, 4096, &full[i & 1]); load_bulk(bs[i & 1], b + i * 1024, 1024, &full[i & 1]);
            }
            if (i == 0 || i > 5) continue;
            int k = i - 1, p = k & 1;
            wait(&full[p], k >> 1 & 1);
            mma_f16(tmem, matrix(as[p], 2048, 128, 0), matrix(bs[p], 512, 128, 0), FORMu, k > 0);
            commit(&used[p]);
        }
        commit(&done);
    }
    __syncwarp();
    wait(&done, 0);
    after_sync();
    u32 x[32];
    #pragma unroll
    for (int c = 0; c < 32; ++c) x[c] = tmem_ld(tmem + c);
    wait_ld();
    #pragma unroll
    for (int c = 0; c < 32; ++c) d[lane * 32 + c] = __uint_as_float(x[c]);
    tmem_free(tmem, 32);
}
""".replace("FORM", str(descriptor(128, 32, 0, 0, 1)))
ALONE_PLANTS: Plants = {
    "a stage refilled under its product": ("if (i >= 2) wait(&used[i & 1], (i - 2) >> 1 & 1);", "", IN_USE),
    "a stage refilled at the turn before": ("(i - 2) >> 1 & 1)", "(i - 2) >> 1 & 1 ^ 1)", IN_USE),
    "a product of bytes that have not arrived": ("wait(&full[p], k >> 1 & 1);", "", IN_USE),
    "results before the products": ("    wait(&done, 0);\n", "", IN_USE),
    "registers before wait::ld": ("    wait_ld();\n", "", "has to come first"),
    "freed before the loads are complete": ("    wait_ld();\n", "    tmem_free(tmem, 32); wait_ld();\n", "freed|in use|in flight|first"),
    "held at the end": ("    tmem_free(tmem, 32);\n", "", "holds 32 columns"),
    "freed twice": ("    tmem_free(tmem, 32);\n", "    tmem_free(tmem, 32); tmem_free(tmem, 32);\n", "freed already"),
    "a second allocation behind the permit": ("    relinquish();\n", "    relinquish(); tmem_alloc(&slot, 32);\n", "relinquish|permit"),
    "columns of nobody": ("tmem_ld(tmem + c)", "tmem_ld(tmem + c + 1)", "not allocated|nothing has written"),
    "lanes of the second warp": ("tmem_ld(tmem + c)", "tmem_ld(tmem + (32 << 16) + c)", "may begin at lane"),
    "every lane commits": ("        commit(&done);\n    }\n", "    }\n    commit(&done);\n", f"arriv|phase|{IN_USE}"),
    "two commits expected": ("init(&done, 1)", "init(&done, 2)", "deadlock"),
    "version bits of zero": ("matrix(bs[p], 512, 128, 0)", "(matrix(bs[p], 512, 128, 0) ^ 1ull << 46)", "bits 46"),
    "the swizzle of another copy": ("matrix(as[p], 2048, 128, 0)", "matrix(as[p], 2048, 1024, 2)", "unwritten|past the end|shared memory|race|proxy|in flight"),
}  # fmt: skip


def factors(steps: tuple[int, ...], rows: int, seed: int) -> np.ndarray:
    """Small float16 integers, [*steps, rows, 16]."""
    return np.random.default_rng(seed).integers(-2, 3, (*steps, rows, 16)).astype(np.float16)


def images(matrices: np.ndarray) -> np.ndarray:
    """Matrices as operands without swizzle, one after the other."""
    return np.concatenate([core_matrices(each) for each in matrices.reshape(-1, *matrices.shape[-2:])])


def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum over steps, of [..., steps, rows, 16]."""
    return np.einsum("...krd,...kcd->...rc", a.astype(np.float32), b.astype(np.float32))


def persistent(source: str, **options) -> tuple[np.ndarray, np.ndarray]:
    a, b = factors((CLUSTERS, 2, 2), 128, 1), factors((CLUSTERS, 2, 2), 32, 2)
    d = np.zeros((CLUSTERS, 256, 64), np.float32)
    text = (TCGEN05 + moves(64)).replace("cta_group::1", "cta_group::2") + source
    run_cuda(text, "kernel", 2 * CLUSTERS, 224, [images(a), images(b), d], "sm_100a", hazards=True, shared_bytes=12000, **options)
    return d, products(a.reshape(CLUSTERS, 2, 256, 16), b.reshape(CLUSTERS, 2, 64, 16))


def converted(source: str, **options) -> tuple[np.ndarray, np.ndarray]:
    weights, b = np.random.default_rng(3).integers(-9, 9, (5, 128, 16)).astype(np.int8), factors((5,), 32, 4)
    d = np.zeros((128, 32), np.float32)
    run_cuda(TCGEN05 + moves(32) + source, "kernel", 1, 192, [weights, images(b), d], "sm_100a", hazards=True, **options)
    return d, products(weights, b)


def masked(source: str, **options) -> tuple[np.ndarray, np.ndarray]:
    steps = np.array([2, 0, 3], np.int32)
    codes = [np.random.default_rng(seed).integers(0, 256, (3, 3, rows, 32)).astype(np.uint8) for seed, rows in ((5, 128), (6, 64))]
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    a, b = (np.stack([values[side & 15], values[side >> 4]], axis=-1).reshape(*side.shape[:-1], 64) for side in codes)
    of_steps = (np.arange(3) < steps[:, None])[..., None, None]
    d = np.zeros((3, 128, 64), np.float32)
    scales = np.full((9, 2, 512), 0x38, np.uint8)  # 1 in e4m3
    arguments = [*[images(side) for side in codes], scales, steps, d]
    run_cuda(TCGEN05 + moves(64) + source, "kernel", 1, 224, arguments, "sm_100a", hazards=True, **options)
    return d, products(a * of_steps, b)


def alone(source: str, **options) -> tuple[np.ndarray, np.ndarray]:
    a, b = factors((5,), 128, 7), factors((5,), 32, 8)
    d = np.zeros((32, 32), np.float32)
    run_cuda(TCGEN05 + moves(32) + source, "kernel", 1, 32, [images(a), images(b), d], "sm_100a", hazards=True, **options)
    return d, products(a, b)[:32]


Run = Callable[..., tuple[np.ndarray, np.ndarray]]
STYLES: dict[str, tuple[Run, str, Plants]] = {
    "persistent pairs": (persistent, PERSISTENT, PERSISTENT_PLANTS),
    "masked groups whose scales follow products": (masked, FOLLOWED, FOLLOWED_PLANTS),
    "converted weights": (converted, CONVERTED, CONVERTED_PLANTS),
    "masked groups": (masked, MASKED, MASKED_PLANTS),
    "a single warp": (alone, ALONE, ALONE_PLANTS),
}


@pytest.mark.parametrize("schedule", [None, 1, 2, 3])
@pytest.mark.parametrize("style", STYLES)
def test_the_sound_kernel_is_clean_in_every_order(style, schedule):
    run, source, _ = STYLES[style]
    found, wanted = run(source, **({} if schedule is None else {"schedule": emulator.RandomWarps(schedule)}))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("style", "plant"), [(style, plant) for style, (_, _, plants) in STYLES.items() for plant in plants])
def test_a_planted_hazard_is_found(style, plant):
    run, source, plants = STYLES[style]
    before, after, message = plants[plant]
    assert before in source
    with pytest.raises(emulator.EmulatorError, match=message):
        run(source.replace(before, after))
