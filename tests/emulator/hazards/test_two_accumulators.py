"""Hazards of tensor memory in a kernel of plain PTX: two accumulators, one begun by tcgen05.st, operands written by threads and used again."""

# ruff: noqa: E501 (CUDA)

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import run_cuda

KERNEL = r"""
typedef unsigned u32; typedef unsigned long long u64;
__device__ __forceinline__ u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void until(u64* bar, u32 parity) {
    u32 done;
    do asm volatile("{.reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2; selp.u32 %0, 1, 0, q;}" : "=r"(done) : "r"(at(bar)), "r"(parity) : "memory"); while (!done);
}
__device__ __forceinline__ u64 rows(const void* p, u64 number) {
    return (u64)(at(p) >> 4 & 0x3FFF) | number << 16 | 8ull << 32 | 1ull << 46; // K-major, no swizzle
}
extern "C" __global__ void __launch_bounds__(128) kernel(const uint4* a, const uint4* b, float* out) {
    __shared__ __align__(128) uint4 left[256];
    __shared__ __align__(128) uint4 right[2][64];
    __shared__ __align__(8) u64 first, second;
    __shared__ u32 base;
    const u32 t = threadIdx.x, quarter = (t & ~31u) << 16, form = 0x8080010; // 128 x 32, f16, sums f32
    if (t < 32) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" :: "r"(at(&base)) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    if (t == 64) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; mbarrier.init.shared::cta.b64 [%1], 1;" :: "r"(at(&first)), "r"(at(&second)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    left[t] = a[t]; left[t + 128] = a[t + 128];
    right[t / 64][t % 64] = b[t];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const u32 one = base, two = base + 32;
    for (u32 c = 0; c < 32; c += 2)
        asm volatile("tcgen05.st.sync.aligned.32x32b.x2.b32 [%0], {%1, %2};" :: "r"(two + quarter + c), "r"(__float_as_uint(c)), "r"(__float_as_uint(c + 1)) : "memory");
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    if (t == 96) {
        asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
        asm volatile("{.reg .pred q; setp.ne.u32 q, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, q;}" :: "r"(one), "l"(rows(left, 128)), "l"(rows(right[0], 32)), "r"(form) : "memory");
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(at(&first)) : "memory");
        asm volatile("{.reg .pred q; setp.ne.u32 q, 1, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, q;}" :: "r"(two), "l"(rows(left, 128)), "l"(rows(right[1], 32)), "r"(form) : "memory");
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(at(&second)) : "memory");
    }
    float sum[4];
    until(&first, 0);
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%0, %1}, [%2];" : "=f"(sum[0]), "=f"(sum[1]) : "r"(one + quarter));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); // of one
    out[4 * t] = sum[0]; out[4 * t + 1] = sum[1];
    if (t < 64) right[0][t] = make_uint4(0, 0, 0, 0);
    until(&second, 0);
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%0, %1}, [%2];" : "=f"(sum[2]), "=f"(sum[3]) : "r"(two + quarter + 30));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); // of two
    out[4 * t + 2] = sum[2]; out[4 * t + 3] = sum[3];
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    if (t < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" :: "r"(base));
}
"""

WAIT_ST = 'asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");'
AFTER = 'asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");'
BEFORE = 'asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");'
DEALLOC = 'if (t < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" :: "r"(base));'
PLANTS: dict[str, tuple[str, str, str]] = {
    "the second sum is read at the first commit": (
        f"until(&second, 0);\n    {AFTER}",
        "",
        "race in tensor memory|still in use|is going to write",
    ),
    "a factor of the running product is written": ("right[0][t] =", "right[1][t] =", "may still be reading"),
    "the common factor is written": ("right[0][t] =", "left[t] =", "may still be reading"),
    "the first load is used before its wait": (
        'asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); // of one',
        "",
        "before its wait",
    ),
    "a store before the product has no wait": (WAIT_ST, "", "race in tensor memory|wait::st|still in use"),
    "no fence behind the stores": (f"{WAIT_ST}\n    {BEFORE}", WAIT_ST, "fence::before_thread_sync"),
    "no fence of the thread that multiplies": (f"if (t == 96) {{\n        {AFTER}", "if (t == 96) {", "fence::after_thread_sync"),
    "no fence before the first load": (f"until(&first, 0);\n    {AFTER}", "until(&first, 0);", "fence::after_thread_sync"),
    "the allocation is kept": (DEALLOC, "", "holds 64 columns"),
    "half of the allocation is freed": (DEALLOC, DEALLOC.replace("64;", "32;"), "32 columns of an allocation of 64"),
    "the allocation is freed by two warps": (DEALLOC, DEALLOC.replace("t < 32", "t < 64"), "freed already"),
    "the second sum lies outside": ("two = base + 32;", "two = base + 48;", "which is not allocated"),
    "the quarter of the next warp": ("quarter = (t & ~31u) << 16", "quarter = (t + 32 & 96) << 16", "may begin at lane"),
    "the second commit counts at the first barrier": (
        '"r"(at(&second)) : "memory");\n    }',
        '"r"(at(&first)) : "memory");\n    }',
        "deadlock|nobody has seen",
    ),
    "a descriptor of another version": ("1ull << 46", "2ull << 46", "bits 46 to 48"),
    "a swizzle that nothing wrote": ("1ull << 46", "1ull << 46 | 2ull << 61", "unwritten|128"),
    "a stride behind the factors": ("8ull << 32", "64ull << 32", "unwritten|reaches"),
    "no proxy fence behind the factors": ('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', "", "proxy"),
}


def launch(source: str, **kwargs) -> tuple[np.ndarray, np.ndarray]:
    """The sums that the kernel stores, and those of NumPy."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (128, 16)).astype(np.float16), rng.integers(-4, 5, (2, 32, 16)).astype(np.float16)
    tiled = np.ascontiguousarray(a.reshape(128, 2, 8).transpose(1, 0, 2))
    factors = np.ascontiguousarray(b.reshape(2, 32, 2, 8).transpose(0, 2, 1, 3))
    out = np.zeros((128, 4), np.float32)
    run_cuda(source, "kernel", 1, 128, [tiled, factors, out], "compute_100a", hazards=True, strict=True, **kwargs)
    sums = np.concatenate(
        [a.astype(np.float32) @ b[0, :2].astype(np.float32).T, a.astype(np.float32) @ b[1, 30:].astype(np.float32).T + [30, 31]], 1
    )
    return out, sums


@pytest.mark.parametrize("seed", [None, 3])
def test_the_sound_kernel_multiplies(seed):
    out, sums = launch(KERNEL, **({} if seed is None else {"schedule": emulator.RandomCrowds(seed)}))
    np.testing.assert_array_equal(out, sums)


@pytest.mark.parametrize("name", PLANTS)
def test_a_mistake_is_found(name):
    old, new, message = PLANTS[name]
    assert old in KERNEL
    with pytest.raises(emulator.EmulatorError, match=message):
        launch(KERNEL.replace(old, new))
