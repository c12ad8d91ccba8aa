"""Planted hazards of kernels whose products depend on each other through tensor memory: attention, sparse factors that copies widen, and
tiles that come from a queue of answers; each with its sound kernel."""

# ruff: noqa: E501 (CUDA)

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import run_cuda
from ..tcgen05 import TCGEN05, core_matrices, descriptor, moves
from ..test_tcgen05_sparse import chosen_places, metadata_words

ROWS, KEYS, WIDTH = 128, 32, 16

# S = Q K^T, P = S / 2 in float16 back to tensor memory, O = P V. Sums of S in columns 0 to 31, P in 32 to 47, O in 64 to 79.
ATTENTION = (
    r"""
extern "C" __global__ void __launch_bounds__(128) kernel(const uint4* q, const uint4* k, const uint4* v, u32* o) {
    __shared__ __align__(1024) uint4 qs[256], ks[64], vs[64];
    __shared__ u32 slot;
    __shared__ __align__(8) u64 scored, done;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) { init(&scored, 1); init(&done, 1); fence_init(); }
    if (warp == 3) { tmem_alloc(&slot, 128); relinquish(); }
    for (int i = t; i < 256; i += 128) qs[i] = q[i];
    if (t < 64) { ks[t] = k[t]; vs[t] = v[t]; }
    fence_async();
    before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot, mine = tmem + (warp * 32u << 16);
    if (t == 96) {
        mma_f16(tmem, matrix(qs, 2048, 128, 0), matrix(ks, 512, 128, 0), SCORESu, 0);
        commit(&scored);
    }
    wait(&scored, 0); after_sync();
    u32 s[32];
    LOAD
    wait_ld();
    #pragma unroll
    for (int i = 0; i < 16; ++i) {
        float low = __uint_as_float(s[2 * i]) * 0.5f, high = __uint_as_float(s[2 * i + 1]) * 0.5f;
        u32 both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        tmem_st(mine + 32 + i, both);
    }
    wait_st();
    before_sync(); __syncthreads(); after_sync();
    if (t == 96) {
        mma_f16_ts(tmem + 64, tmem + 32, matrix(vs, 256, 128, 0), VALUESu, 0);
        mma_f16_ts(tmem + 64, tmem + 40, matrix(vs + 32, 256, 128, 0), VALUESu, 1);
        commit(&done);
    }
    wait(&done, 0); after_sync();
    load_columns(mine + 64, o + t * 16);
    before_sync(); __syncthreads();
    if (warp == 3) tmem_free(tmem, 128);
}
""".replace(
        "LOAD",
        'asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{}}}, [%32];" : {} : "r"(mine));'.format(
            ", ".join(f"%{i}" for i in range(32)), ", ".join(f'"=r"(s[{i}])' for i in range(32))
        ),
    )
    .replace("SCORES", str(descriptor(ROWS, KEYS, 0, 0, 1)))
    .replace("VALUES", str(descriptor(ROWS, WIDTH, 0, 0, 1)))
)
SECOND = "mma_f16_ts(tmem + 64, tmem + 40, matrix(vs + 32, 256, 128, 0), VALUESu, 1);".replace(
    "VALUES", str(descriptor(ROWS, WIDTH, 0, 0, 1))
)
FREE = "if (warp == 3) tmem_free(tmem, 128);"
ATTENTION_PLANTS: dict[str, tuple[str, str, str]] = {
    "scores read at the barrier of the results": ("wait(&scored, 0); after_sync();", "", "is going to write|race|unwritten"),
    "scores used before the wait for them": ("wait_ld();", "", "has to come first"),
    "probabilities multiplied before their wait": ("wait_st();", "", "wait::st|race"),
    "no fence behind the probabilities": ("wait_st();\n    before_sync();", "wait_st();", "before_thread_sync"),
    "no fence before the second product": (
        "__syncthreads(); after_sync();\n    if (t == 96) {\n        mma_f16_ts",
        "__syncthreads();\n    if (t == 96) {\n        mma_f16_ts",
        "after_thread_sync",
    ),
    "probabilities over the scores of other warps": ("tmem_st(mine + 32 + i", "tmem_st((mine ^ 32u << 16) + 32 + i", "may begin at lane"),
    "half of the probabilities in columns that nobody wrote": ("tmem + 40, matrix", "tmem + 48, matrix", "nothing has written a part"),
    "results in the columns of the probabilities": ("mma_f16_ts(tmem + 64", "mma_f16_ts(tmem + 40", "overlaps the sums"),
    "a commit between the two products": (SECOND, f"commit(&done); {SECOND}", "in flight|going to write|race|arrival|deadlock"),
    "results that the second product has yet to change": (
        f"{SECOND}\n        commit(&done);",
        f"commit(&done); {SECOND}",
        "in flight|going to write|race",
    ),
    "values refilled behind the first commit": (
        "wait(&done, 0);",
        "if (t < 64) vs[t] = k[t];\n    wait(&done, 0);",
        "may still be reading",
    ),
    "values that TMA's side does not see": ("fence_async();", "", "proxy"),
    "freed before the results are loaded": (
        "load_columns(mine + 64, o + t * 16);\n    before_sync(); __syncthreads();\n    " + FREE,
        f"__syncthreads();\n    {FREE} __syncthreads();\n    load_columns(mine + 64, o + t * 16);",
        "not allocated|race",
    ),
    "freed by every warp": (FREE, "tmem_free(tmem, 128);", "freed already"),
    "held at the end": (FREE, "", "holds 128 columns"),
    "more columns behind the permit": (
        "before_sync(); __syncthreads();\n    if (warp == 3)",
        "if (warp == 2) tmem_alloc(&slot, 32);\n    before_sync(); __syncthreads();\n    if (warp == 3)",
        "relinquish_alloc_permit",
    ),
    "too few columns": ("tmem_alloc(&slot, 128)", "tmem_alloc(&slot, 64)", "which is not allocated"),
    "a descriptor of Hopper": ("matrix(ks, 512, 128, 0)", "matrix(ks, 512, 128, 0) & ~(1ull << 46)", "bits 46 to 48"),
    "values at the stride of the queries": ("matrix(vs + 32, 256, 128, 0)", "matrix(vs + 32, 2048, 128, 0)", "unwritten|past the end"),
    "queries of another swizzle": ("matrix(qs, 2048, 128, 0)", "matrix(qs, 2048, 1024, 6)", "unwritten|shared memory has"),
    "two arrivals where one comes": ("init(&scored, 1)", "init(&scored, 2)", "deadlock"),
}

# Metadata and bytes of A come to tensor memory by copies, which widen 4 bits; then a sparse product, with a reduction of its results.
SPARSE = r"""
extern "C" __global__ void __launch_bounds__(192) kernel(const char* a, const char* b, const u32* words, float* best) {
    __shared__ __align__(1024) char as[4096], bs[2048];
    __shared__ u32 slot;
    __shared__ __align__(8) u64 full, copied, done;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) { init(&full, 1); init(&copied, 1); init(&done, 1); fence_init(); }
    if (warp == 0) { tmem_alloc(&slot, 64); relinquish(); }
    before_sync(); __syncthreads(); after_sync();
    u32 tmem = slot, mine = tmem + (warp * 32u << 16);
    if (warp < 4) {
        tmem_st(mine + 40, words[2 * t]); tmem_st(mine + 41, words[2 * t + 1]);
        wait_st();
    }
    before_sync(); __syncthreads(); after_sync();
    if (t == 128) {
        arrive_expect(&full, 6144);
        load_bulk(as, a, 4096, &full); load_bulk(bs, b, 2048, &full);
        wait(&copied, 0);
    } else if (t == 160) {
        wait(&full, 0);
        asm volatile("tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%0], %1;" :: "r"(tmem + 32), "l"(matrix(as, 2048, 128, 0)) : "memory");
        commit(&copied);
        asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; tcgen05.mma.sp.cta_group::1.kind::f8f6f4 [%0], [%1], %2, [%3], %4, p;}"
            :: "r"(tmem), "r"(tmem + 32), "l"(matrix(bs, 512, 128, 0)), "r"(tmem + 40), "r"(FORMu) : "memory");
        commit(&done);
    } else if (warp < 4) {
        wait(&done, 0); after_sync();
        u32 x[32]; float most;
        LOAD
        wait_ld();
        best[t] = most + 0 * __uint_as_float(x[7]);
        before_sync();
    }
    __syncthreads();
    if (warp == 0) tmem_free(tmem, 64);
}
""".replace(
    "LOAD",
    'asm volatile("tcgen05.ld.red.sync.aligned.32x32b.x32.max.f32 {{{}}}, %32, [%33];" : {}, "=f"(most) : "r"(mine));'.format(
        ", ".join(f"%{i}" for i in range(32)), ", ".join(f'"=r"(x[{i}])' for i in range(32))
    ),
).replace("FORM", str(descriptor(128, 32, 5, 5, 1) | 4))
SPARSE_PLANTS: dict[str, tuple[str, str, str]] = {
    "metadata stored without their wait": ("wait_st();", "", "wait::st|race"),
    "metadata without a fence": ("wait_st();\n    }\n    before_sync();", "wait_st();\n    }\n", "before_thread_sync"),
    "metadata in a column that nobody wrote": ('"r"(tmem + 40), "r"', '"r"(tmem + 42), "r"', "nothing has written a part"),
    "metadata in an odd column": ('"r"(tmem + 40), "r"', '"r"(tmem + 41), "r"', "must be even"),
    "a descriptor that says dense": (f"{descriptor(128, 32, 5, 5, 1) | 4}u", f"{descriptor(128, 32, 5, 5, 1)}u", "bit 2 says"),
    "a copy of bytes that have not arrived": ("wait(&full, 0);", "", "unwritten|is going to write"),
    "bytes refilled under the copy": (
        "wait(&copied, 0);",
        "arrive_expect(&full, 4096); load_bulk(as, a, 4096, &full); wait(&copied, 0);",
        "may still be reading|still in flight|phase",
    ),
    "the copy over the metadata": (
        '"r"(tmem + 32), "l"(matrix(as',
        '"r"(tmem + 36), "l"(matrix(as',
        "no meaning|nothing has written a part",
    ),
    "the reduction used before its wait": (
        "wait_ld();\n        best[t] = most",
        "best[t] = most; wait_ld();\n        best[t] = most",
        "has to come first",
    ),
    "the reduction of sums in flight": ("wait(&done, 0); after_sync();", "", "is going to write|race|unwritten"),
}

# A scheduler keeps two answers ahead; workers take tiles in order.
QUEUE = r"""
extern "C" __global__ void __launch_bounds__(96) kernel(u32* count) {
    __shared__ __align__(16) uint4 answers[2];
    __shared__ __align__(8) u64 arrived[2], read[2];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    if (t == 0) { for (int i = 0; i < 2; ++i) { init(&arrived[i], 1); init(&read[i], 2); } fence_init(); }
    __syncthreads();
    u32 tile = blockIdx.x;
    for (int i = 0;; ++i) {
        int place = i % 2, turn = i / 2 & 1;
        if (warp == 0) {
            if (lane == 0) {
                wait(&read[place], turn ^ 1);
                fence_async();
                arrive_expect(&arrived[place], 16);
                asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];"
                    :: "r"(shared_address(&answers[place])), "r"(shared_address(&arrived[place])) : "memory");
            }
        } else if (t == 32) {
            atomicAdd(&count[tile], 1);
        }
        wait(&arrived[place], turn);
        u32 ok, x;
        asm volatile("{.reg .pred p; .reg .b128 r; ld.shared.b128 r, [%2];"
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r; selp.u32 %0, 1, 0, p;"
            "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, _, _, _}, r;}" : "=r"(ok), "=r"(x)
            : "r"(shared_address(&answers[place])) : "memory");
        __syncwarp();
        if (warp > 0 && lane == 0) arrive(&read[place]);
        if (!ok) break;
        tile = x;
    }
    __syncthreads();
}
"""
QUEUE_PLANTS: dict[str, tuple[str, str, str]] = {
    "the answer of the other place": (
        "wait(&arrived[place], turn);",
        "wait(&arrived[place ^ 1], turn);",
        "going to write|deadlock|unwritten",
    ),
    "an answer that some warps do not wait for": (
        "wait(&arrived[place], turn);",
        "if (warp < 2) wait(&arrived[place], turn);",
        "is going to write",
    ),
    "a place that is asked for again before it was read": ("wait(&read[place], turn ^ 1);", "", "race|may still|read"),
    "one reader counts for two": ("init(&read[i], 2)", "init(&read[i], 1)", "race|may still|arrival|read"),
    "three readers expected": ("init(&read[i], 2)", "init(&read[i], 3)", "deadlock"),
}


def attention(source: str, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """Results of attention without a softmax, and their values."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((ROWS, 16), (KEYS, 16), (WIDTH, KEYS)))
    o = np.zeros((ROWS, WIDTH), np.float32)
    values = np.concatenate([core_matrices(np.ascontiguousarray(part)) for part in np.split(v, 2, axis=1)])
    run_cuda(
        TCGEN05 + moves(WIDTH) + source,
        "kernel",
        1,
        128,
        [core_matrices(q), core_matrices(k), values, o],
        "sm_100a",
        hazards=True,
        **options,
    )
    scores = (q.astype(np.float32) @ k.astype(np.float32).T / 2).astype(np.float16).astype(np.float32)
    return o, scores @ v.astype(np.float32).T


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def sparse(source: str, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """The largest sum of each row of a sparse product of 4-bit floats, and its value."""
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 16, (128, 32)).astype(np.uint8), rng.integers(0, 16, (32, 64)).astype(np.uint8)
    nibbles, places = chosen_places(128, 64, 8, 6)
    best = np.zeros(128, np.float32)

    def packed(matrix: np.ndarray) -> np.ndarray:
        pairs = (matrix[:, ::2] | matrix[:, 1::2] << 4).reshape(len(matrix), -1, 8)
        return core_matrices(np.pad(pairs, ((0, 0), (0, 0), (0, 8))).reshape(len(matrix), -1))

    arrays = [packed(a), packed(b), metadata_words(nibbles, 8, np.arange(128), 0), best]
    run_cuda(TCGEN05 + source, "kernel", 1, 192, arrays, "sm_103a", hazards=True, **options)
    dense = np.zeros((128, 64), np.float32)
    np.put_along_axis(dense, places, E2M1[a], axis=1)
    return best, (dense @ E2M1[b].T).max(axis=1)


def queue(source: str, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """Times that each tile was done, which should be once."""
    count = np.zeros(13, np.uint32)
    run_cuda(TCGEN05 + source, "kernel", 13, 96, [count], "sm_100a", hazards=True, **options)
    return count, np.ones(13, np.uint32)


Run = Callable[..., tuple[np.ndarray, np.ndarray]]
KERNELS: dict[str, tuple[Run, str, dict[str, tuple[str, str, str]]]] = {
    "attention": (attention, ATTENTION, ATTENTION_PLANTS),
    "sparse": (sparse, SPARSE, SPARSE_PLANTS),
    "queue": (queue, QUEUE, QUEUE_PLANTS),
}
PLANTS = [(name, plant) for name, (_, _, plants) in KERNELS.items() for plant in plants]


@pytest.mark.parametrize("schedule", [None, 1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_a_sound_kernel_is_clean_in_every_order(name, schedule):
    run, source, _ = KERNELS[name]
    found, wanted = run(source, **({} if schedule is None else {"schedule": emulator.RandomWarps(schedule)}))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("name", "plant"), PLANTS, ids=[f"{name}: {plant}" for name, plant in PLANTS])
def test_a_planted_hazard_is_found(name, plant):
    run, source, plants = KERNELS[name]
    before, after, message = plants[plant]
    assert before in source
    with pytest.raises(emulator.EmulatorError, match=message):
        run(source.replace(before, after))
