"""CUDA that tests of the engines begin with: thin wrappers of the instructions, as kernels for Hopper have them."""

from __future__ import annotations

from typing import Any

from gemmgen import emulator

from ..helpers import compile_ptx

PRELUDE = r"""
typedef unsigned int u32; typedef unsigned long long u64; typedef unsigned short u16; typedef unsigned char u8;
struct __align__(64) CUtensorMap { u64 opaque[16]; };
#define DEVICE __device__ __forceinline__
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void init(u64* bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(bar)), "r"(count) : "memory"); }
DEVICE void inval(u64* bar) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(shared_address(bar)) : "memory"); }
DEVICE void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
DEVICE void arrive(u64* bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(bar)) : "memory"); }
DEVICE void arrive(u64* bar, u32 count) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(bar)), "r"(count) : "memory"); }
DEVICE void arrive_expect(u64* bar, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(bar)), "r"(bytes) : "memory"); }
DEVICE void wait(u64* bar, u32 parity) {
    asm volatile("{\n.reg .pred P;\nL: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n@!P bra L;\n}" :: "r"(shared_address(bar)), "r"(parity) : "memory");
}
DEVICE void load_tile(void* to, const CUtensorMap* map, u64* bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 :: "r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y) : "memory");
}
DEVICE void store_tile(const CUtensorMap* map, const void* from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 :: "l"(map), "r"(shared_address(from)), "r"(x), "r"(y) : "memory");
}
DEVICE void load_bulk(void* to, const void* from, u32 bytes, u64* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
DEVICE void store_bulk(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
DEVICE void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEVICE void wait_group() { asm volatile("cp.async.bulk.wait_group %0;" :: "n"(N) : "memory"); }
template <int N> DEVICE void wait_group_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory"); }
DEVICE u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEVICE u32 peer_address(const void* p, u32 rank) { u32 a; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(shared_address(p)), "r"(rank)); return a; }
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
DEVICE void cluster_sync() { cluster_arrive(); cluster_wait(); }
DEVICE void arrive_at(u32 bar) { asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(bar) : "memory"); }
#define KERNEL extern "C" __global__ void __launch_bounds__(1024) kernel
"""  # noqa: E501


def run(body: str, *args: Any, grid: Any = 1, block: Any = 128, **kwargs: Any) -> emulator.LaunchResult:
    """Compiles `KERNEL(...) { ... }` behind the prelude for sm_90a and launches it."""
    source = PRELUDE + body
    return emulator.launch(compile_ptx(source, "compute_90a"), "kernel", grid=grid, block=block, args=args, source=source, **kwargs)
