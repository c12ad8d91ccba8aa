"""CUDA around the instructions of tcgen05, for tests: thin wrappers, and kernels of one product."""

# ruff: noqa: E501 (CUDA)

from __future__ import annotations

import numpy as np

from .engines.prelude import PRELUDE
from .wgmma import Layout

TCGEN05 = (
    PRELUDE
    + r"""
DEVICE void tmem_alloc(u32* to, u32 columns) { asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" :: "r"(shared_address(to)), "r"(columns) : "memory"); }
DEVICE void tmem_free(u32 at, u32 columns) { asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(at), "r"(columns) : "memory"); }
DEVICE void relinquish() { asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory"); }
DEVICE void before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
DEVICE void after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
DEVICE void wait_ld() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
DEVICE void wait_st() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
DEVICE void commit(u64* bar) { asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(shared_address(bar)) : "memory"); }
DEVICE u64 matrix(const void* p, u64 leading, u64 stride, u64 mode) {
    return (u64)shared_address(p) >> 4 & 0x3FFF | leading >> 4 << 16 | stride >> 4 << 32 | 1ull << 46 | mode << 61;
}
#define MMA(NAME, KIND) DEVICE void NAME(u32 d, u64 a, u64 b, u32 form, u32 accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1." KIND " [%0], %1, %2, %3, p;\n}" \
                 :: "r"(d), "l"(a), "l"(b), "r"(form), "r"(accumulate) : "memory"); }
#define MMA_TS(NAME, KIND) DEVICE void NAME(u32 d, u32 a, u64 b, u32 form, u32 accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1." KIND " [%0], [%1], %2, %3, p;\n}" \
                 :: "r"(d), "r"(a), "l"(b), "r"(form), "r"(accumulate) : "memory"); }
MMA(mma_f16, "kind::f16") MMA(mma_tf32, "kind::tf32") MMA(mma_i8, "kind::i8") MMA(mma_f8, "kind::f8f6f4")
MMA_TS(mma_f16_ts, "kind::f16") MMA_TS(mma_f8_ts, "kind::f8f6f4")
DEVICE u32 tmem_ld(u32 at) { u32 x; asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(x) : "r"(at)); return x; }
DEVICE void tmem_st(u32 at, u32 x) { asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" :: "r"(at), "r"(x) : "memory"); }
"""
)


def descriptor(m: int, n: int, a: int, b: int, sums: int, **bits: int) -> int:
    """An instruction descriptor: sizes, the codes of types, and further fields."""
    places = {"saturate": 3, "a_negate": 13, "b_negate": 14, "a_major": 15, "b_major": 16}
    return sums << 4 | a << 7 | b << 10 | n >> 3 << 17 | m >> 4 << 24 | sum(value << places[name] for name, value in bits.items())


def core_matrices(matrix: np.ndarray) -> np.ndarray:
    """A K-major operand without swizzle: tiles of 8 rows of 16 bytes, down the rows first."""
    rows = np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), -1, 16)
    return np.ascontiguousarray(rows.reshape(-1, 8, rows.shape[1], 16).transpose(2, 0, 1, 3)).ravel()


def moves(columns: int) -> str:
    """Device functions that load and store a lane's first columns of tensor memory, eight at a time."""
    eight = ", ".join(f"%{i}" for i in range(8))
    return f"""
DEVICE void load_columns(u32 from, u32* to) {{
    for (int c = 0; c < {columns}; c += 8) {{
        u32 x[8];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{eight}}}, [%8];" : {", ".join(f'"=r"(x[{i}])' for i in range(8))} : "r"(from + c));
        wait_ld();
        for (int i = 0; i < 8; ++i) to[c + i] = x[i];
    }}
}}
DEVICE void store_columns(u32 to, const u32* from) {{
    for (int c = 0; c < {columns}; c += 8)
        asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%8], {{{eight}}};" :: {", ".join(f'"r"(from[c + {i}])' for i in range(8))}, "r"(to + c));
    wait_st();
}}
"""


TENSOR_MODES = {"none": 0, "128B": 2, "64B": 4, "32B": 6}
IMAGE = 16384


def named(layout: Layout, address: str) -> str:
    """The descriptor of an operand that lies at an address as a layout says."""
    return f"matrix({address}, {layout.leading}, {layout.stride}, {TENSOR_MODES[layout.mode]})"


PLAIN = Layout("none", leading=2048, stride=128)
"""Core matrices of 128 rows below each other."""


def product_kernel(kind: str, form: int, columns: int, a: Layout = PLAIN, b: Layout = PLAIN, accumulate: int = 0, issue: str = "") -> str:
    """One product of a block of one warpgroup: images of A and B from global memory, D [128, columns] in words to global memory, where the
    words that D starts from are given, in lanes of the tensor memory. `issue` replaces the product."""
    issue = issue or f"{kind}(tmem, {named(a, 'as')}, {named(b, 'bs')}, {form}u, {accumulate});"
    return (
        TCGEN05
        + moves(columns)
        + f"""
extern "C" __global__ void __launch_bounds__(128) kernel(const uint4* a, const uint4* b, u32* d) {{
    __shared__ __align__(1024) uint4 as[{IMAGE // 16}];
    __shared__ __align__(1024) uint4 bs[{IMAGE // 16}];
    __shared__ u32 slot; __shared__ __align__(8) u64 bar;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) {{ init(&bar, 1); fence_init(); }}
    if (warp == 0) {{ tmem_alloc(&slot, 512); relinquish(); }}
    for (int i = t; i < {IMAGE // 16}; i += 128) {{ as[i] = a[i]; bs[i] = b[i]; }}
    fence_async();
    __syncthreads();
    u32 tmem = slot, mine = tmem + (warp * 32u << 16);
    store_columns(mine, d + t * {columns});
    before_sync(); __syncthreads(); after_sync();
    if (t == 0) {{
        {issue}
        commit(&bar);
    }}
    wait(&bar, 0);
    after_sync();
    load_columns(mine, d + t * {columns});
    before_sync(); __syncthreads();
    if (warp == 0) tmem_free(tmem, 512);
}}
"""
    )
