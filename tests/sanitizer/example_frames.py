"""Frames around the examples of the pages of findings, so that they run: parameters, text before and after, and a launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from emulator.tcgen05 import TCGEN05, descriptor
from emulator.wgmma import HELPERS, wrapper

from gemmgen.emulator import TensorMap

BARRIERS = """
typedef unsigned long long uint64_t; typedef unsigned uint32_t;
#define DEVICE __device__ __forceinline__
DEVICE uint32_t address_of(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
DEVICE void barrier_init(uint64_t* b, int n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(address_of(b)), "r"(n) : "memory");
}
DEVICE void barrier_arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(address_of(b)) : "memory"); }
DEVICE void barrier_expect(uint64_t* b, int n) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(address_of(b)), "r"(n) : "memory");
}
DEVICE void barrier_wait(uint64_t* b, int phase) {
    asm volatile("{\\n.reg .pred p;\\nL: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\\n@!p bra L;\\n}"
        :: "r"(address_of(b)), "r"(phase) : "memory");
}
DEVICE void copy_bulk(void* to, const void* from, int n, uint64_t* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(address_of(to)), "l"(from), "r"(n), "r"(address_of(b)) : "memory");
}
DEVICE void cp_async(float* tile, const float* source) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\\ncp.async.wait_all;"
        :: "r"(address_of(tile + threadIdx.x)), "l"(source + threadIdx.x) : "memory");
}
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
DEVICE void cp_async_bulk_store(void* to, const void* from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;\\ncp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;"
        :: "l"(to), "r"(address_of(from)) : "memory");
}
"""
MAPS = """struct __align__(64) CUtensorMap { uint64_t opaque[16]; };
DEVICE void tensormap_replace(CUtensorMap* map) {
    asm volatile("tensormap.replace.tile.box_dim.global.b1024.b32 [%0], 1, %1;" :: "l"(map), "r"(4) : "memory");
}
DEVICE void fence_release_map() { asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory"); }
DEVICE void fence_acquire_map(CUtensorMap* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
}
DEVICE void load_tile(void* to, const CUtensorMap* map, uint64_t* b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {0, 0}], [%2];"
        :: "r"(address_of(to)), "l"(map), "r"(address_of(b)) : "memory");
}
"""
CLUSTER = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
WGMMA = HELPERS + wrapper("multiply", "m64n8k16.f32.bf16.bf16", "f32", 4) + "#define wgmma(d, a, b) multiply(d, a, b, 1)\n"
OPERANDS = """__shared__ __align__(1024) unsigned short first[64 * 64], second[8 * 64];
for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) first[i] = 0x3f80;
for (int i = threadIdx.x; i < 8 * 64; i += blockDim.x) second[i] = 0x3f80;
proxy_fence();
__syncthreads();
uint64_t a = matrix(first, 16, 1024, 1), b = matrix(second, 16, 1024, 1);
float d[4] = {1.0f, 2.0f, 3.0f, 4.0f};
float out;
"""
TENSOR = (
    TCGEN05
    + f"#define tcgen05_mma(d, a, b) mma_f16(d, a, b, {descriptor(128, 32, 0, 0, 1)}u, 0)\n"
    + """#define tcgen05_ld(d) tmem_ld(d + (threadIdx.x / 32 * 32u << 16))
#define tcgen05_commit commit
#define tcgen05_wait_ld wait_ld
#define tcgen05_alloc tmem_alloc
#define tcgen05_dealloc tmem_free
#define tcgen05_fence_before before_sync
#define tcgen05_fence_after after_sync
#define barrier_wait wait
"""
)
ALLOCATED = """__shared__ __align__(1024) u32 first[1024], second[256];
__shared__ u32 slot;
__shared__ u64 done, emptied;
if (threadIdx.x == 0) { init(&done, 1); init(&emptied, 1); fence_init(); }
for (int i = threadIdx.x; i < 1024; i += 128) first[i] = second[i % 256] = 0x3c003c00;
fence_async();
if (threadIdx.x < 32) { tmem_alloc(&slot, 32); relinquish(); }
before_sync(); __syncthreads(); after_sync();
u32 sums = slot, x = 0;
u64 a = matrix(first, 2048, 128, 0), b = matrix(second, 512, 128, 0);
"""
FREED = """before_sync(); __syncthreads(); after_sync();
if (threadIdx.x < 32) tmem_free(sums, 32);
out[threadIdx.x] = x;
"""
PRODUCT = "if (threadIdx.x == 0) { tcgen05_mma(sums, a, b); tcgen05_commit(&done); }\n"
AWAITED = "wait(&done, 0); after_sync();\n"
FINISH = "wgmma_commit();\nwgmma_wait<0>();\n"
RESULT = "result[threadIdx.x] = out;"
SUMS = "for (int i = 0; i < 4; ++i) result[threadIdx.x * 4 + i] = d[i];"


def _ints(count: int) -> Any:
    return np.arange(count, dtype=np.int32)


def _floats(count: int) -> Any:
    return np.arange(count, dtype=np.float32)


@dataclass(frozen=True)
class Frame:
    """A kernel around an example: `{prelude} kernel({parameters}) { {before} example {after} }` and how it is launched."""

    parameters: str = ""
    args: tuple[Any, ...] = ()
    block: int = 32
    grid: int = 1
    before: str = ""
    after: str = ""
    prelude: str = ""
    bounds: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def source(self, example: str) -> str:
        """The CUDA source with an example in it."""
        body = f"{self.before}\n{example}\n{self.after}"
        return f'{self.prelude}\nextern "C" __global__ void {self.bounds} kernel({self.parameters})\n{{\n{body}\n}}\n'


def _hopper(parameters: str, args: tuple[Any, ...], **more: Any) -> Frame:
    more.setdefault("prelude", BARRIERS)
    options = {"architecture": "sm_90a", **more.pop("options", {})}
    return Frame(parameters, args, options=options, **more)


def _wgmma(before: str = "", after: str = "") -> Frame:
    return _hopper("float* result", (_floats(512),), block=128, prelude=WGMMA, before=OPERANDS + before, after=after)


def _tensor(before: str = "", after: str = "", whole: bool = True, block: int = 128) -> Frame:
    return Frame(
        "unsigned* out",
        (np.zeros(128, np.uint32),),
        block=block,
        prelude=TENSOR,
        before=(ALLOCATED if whole else "__shared__ u32 slot;\n") + before,
        after=after + FREED if whole else after,
        bounds=f"__launch_bounds__({block})",
        options={"architecture": "sm_100a"},
    )


COPY = "__shared__ __align__(16) int s[32];\nint t = threadIdx.x, x = 0;"
BULK = "__shared__ __align__(16) float shared[64];\n__shared__ uint64_t own;\n"
PIPELINE = "#include <cuda_pipeline.h>\n"
CLUSTERED = {"cluster": 2}

FRAMES = {
    "shared-race": Frame("const int* in, int* out", (_ints(64), _ints(64)), block=64),
    "global-race": Frame("int* sum, const int* in", (_ints(2), _ints(64)), grid=2),
    "lockstep-race": Frame(
        "const int* in, int* out",
        (_ints(32), _ints(32)),
        before="__shared__ int shared[32];\nint t = threadIdx.x;\nshared[t] = in[t];\n__syncwarp();",
        after="__syncwarp();\nout[t] = shared[t];",
    ),
    "unfenced-ticket": Frame(
        "unsigned* part, unsigned* out",
        (np.zeros(2, np.uint32), np.zeros(2, np.uint32)),
        prelude="__device__ unsigned tickets, sink;\n__device__ void total(const unsigned* part) { sink = part[0] + part[1]; }\n",
        before="unsigned sum = 1;",
        grid=2,
        block=1,
    ),
    "stale-read": Frame("int* a, int* out", (_ints(64), _ints(64)), block=64),
    "scope-race": Frame("int* counter", (_ints(1),), grid=2, block=1),
    "volatile-race": Frame("int* flag, int* out", (_ints(1), _ints(2)), grid=2, block=1),
    "same-value": Frame("const int* a, int* found", (_ints(64), _ints(1)), block=64),
    "missed-barrier": Frame(
        "const int* a, int n, int* out",
        (_ints(64), 40, _ints(64)),
        block=64,
        before="__shared__ int s[64];",
        after="if (threadIdx.x < n) out[threadIdx.x] = s[n - 1 - threadIdx.x];",
    ),
    "unwritten-read": Frame("int* out", (_ints(64),), block=64),
    "undefined-register": Frame(
        "const float* a, int n, float* out", (_floats(8), 8, _floats(1)), block=1, after="out[0] = sum;", options={"debug": True}
    ),
    "inactive-shuffle": Frame("int* out", (_ints(32),), before="int v = threadIdx.x;", after="out[threadIdx.x] = v;"),
    "out-of-bounds": Frame("const float* x, float* y, int n", (_floats(50), _floats(50), 50), grid=2),
    "misaligned": Frame("const float* x, float4* y", (_floats(8), "f32[4]"), block=1, after="y[0] = v;"),
    "read-only": Frame("float* y, int n", (_floats(1), 1), block=1, prelude="__constant__ float weights[4];"),
    "divergent-barrier": Frame(
        "int* done", (_ints(32),), prelude="#define work() atomicAdd(done + threadIdx.x, 1)", after="done[threadIdx.x ^ 1] += 1;"
    ),
    "divergent-warp": Frame("int* out", (_ints(32),), before="int v = threadIdx.x;", after="out[threadIdx.x] = v;"),
    "deadlock": Frame("int* lock", (_ints(1),), grid=2, block=1),
    "in-flight-read": Frame("const int* a, int* out", (_ints(32), _ints(32)), prelude=PIPELINE, before=COPY, after="out[t] = x;"),
    "in-flight-write": Frame(
        "const int* a, int* out",
        (_ints(32), _ints(32)),
        prelude=PIPELINE,
        before=COPY,
        after="__pipeline_commit();\n__pipeline_wait_prior(0);\nout[t] = s[t] + x;",
    ),
    "missing-warpgroup-fence": _wgmma(after=FINISH + SUMS),
    "early-warpgroup-fence": _wgmma("wgmma_fence();\nwgmma(d, a, b);\n" + FINISH, after=FINISH + SUMS),
    "register-in-flight": _wgmma("wgmma_fence();", after=RESULT + "\nwgmma_wait<0>();"),
    "unfinished-wgmma": _wgmma("wgmma_fence();"),
    "invalid-matrix": _wgmma(
        "uint64_t address = shared_address(first), leading = 16, stride = 1024, swizzle = 1;",
        after="wgmma_fence();\nwgmma(d, descriptor, b);\n" + FINISH + SUMS,
    ),
    "tensor-memory-in-flight": _tensor(after="wait_ld();\n"),
    "tensor-load-in-flight": _tensor(PRODUCT + AWAITED, "wait_ld();\n"),
    "missing-tensor-fence": _tensor(PRODUCT, "wait_ld();\n"),
    "tensor-race": _tensor(PRODUCT + AWAITED, "if (threadIdx.x == 0) tcgen05_commit(&emptied);\nwait(&emptied, 0); after_sync();\n"),
    "lanes-of-first-warp": _tensor(PRODUCT + AWAITED, "wait_ld();\n"),
    "tensor-memory-misuse": _tensor(whole=False),
    "unfinished-copy": _hopper(
        "const float* global",
        (_floats(64),),
        block=1,
        before=BULK + "uint64_t* barrier = &own;\nint bytes = 256, phase = 0;\nbarrier_init(barrier, 1);\n"
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\nbarrier_expect(barrier, bytes);',
    ),
    "barrier-misuse": _hopper("", (), block=1),
    "cluster-misuse": _hopper(
        "int* out",
        (_ints(2),),
        block=1,
        grid=2,
        prelude=CLUSTER,
        before="__shared__ int value;\nauto cluster = cg::this_cluster();\nif (cluster.block_rank() == 0)\n{",
        after="}\nelse\n{ cluster.sync();\ncluster.sync(); }",
        options=CLUSTERED,
    ),
    "early-barrier-use": _hopper(
        "",
        (),
        prelude="#include <cuda/barrier>\n",
        before="#pragma nv_diag_suppress static_var_with_dynamic_init\n__shared__ cuda::barrier<cuda::thread_scope_block> bar;",
    ),
    "missing-init-fence": _hopper(
        "const float* source, float* out",
        (_floats(64), _floats(1)),
        block=1,
        before="__shared__ __align__(16) float tile[64];\n__shared__ uint64_t barrier;\nint bytes = 256;",
        after="barrier_expect(&barrier, bytes);\nbarrier_wait(&barrier, 0);\nout[0] = tile[63];",
    ),
    "missing-proxy-fence": _hopper(
        "float* out", (_floats(64),), block=64, before="__shared__ __align__(16) float tile[64];\nfloat x = threadIdx.x;"
    ),
    "copy-without-proxy-fence": _hopper(
        "const float* source, float* out", (_floats(64), _floats(64)), block=64, before="__shared__ __align__(16) float tile[64];"
    ),
    "refill-without-proxy-fence": _hopper(
        "const float* source, float* out",
        (_floats(64), _floats(1)),
        block=1,
        before="__shared__ __align__(16) float tile[64];\n__shared__ uint64_t barrier;\nint bytes = 256;\nfloat x;\n"
        'barrier_init(&barrier, 1);\nasm volatile("fence.mbarrier_init.release.cluster;");\nbarrier_expect(&barrier, bytes);\n'
        "copy_bulk(tile, source, bytes, &barrier);\nbarrier_wait(&barrier, 0);\nbarrier_expect(&barrier, bytes);",
        after="barrier_wait(&barrier, 1);\nout[0] = x + tile[63];",
        options={"strict": True},
    ),
    "missing-map-fence": _hopper(
        "CUtensorMap* map, float* out",
        ([TensorMap("f32", (8, 8), (32,), (8, 8), base=_floats(64).reshape(8, 8))], _floats(1)),
        block=1,
        prelude=BARRIERS + MAPS,
        before="__shared__ __align__(128) float tile[64];\n__shared__ uint64_t barrier;\nbarrier_init(&barrier, 1);\n"
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\nbarrier_expect(&barrier, 128);',
        after="barrier_wait(&barrier, 0);\nout[0] = tile[31];",
    ),
    "outliving-access": _hopper(
        "int* out",
        (_ints(64),),
        grid=2,
        prelude=CLUSTER,
        before="__shared__ int own[32];\nown[threadIdx.x] = threadIdx.x;\nauto cluster = cg::this_cluster();\ncluster.sync();\n"
        "volatile int* remote = cluster.map_shared_rank(own, cluster.block_rank() ^ 1);\nint x;",
        after="out[blockIdx.x * 32 + threadIdx.x] = x;",
        options=CLUSTERED,
    ),
    "unordered-launch": _hopper(
        "const float* x, float* y",
        (_floats(32), _floats(32)),
        prelude='#define cudaGridDependencySynchronize() asm volatile("griddepcontrol.wait;" ::: "memory")',
        before="int i = threadIdx.x;",
    ),
    "register-pool-misuse": _hopper(
        "float* out", (_floats(384),), block=384, bounds="__launch_bounds__(384, 1)", after="out[threadIdx.x] = 1.0f;"
    ),
    "bad-allocation": Frame("int* out", (_ints(1),), block=1, before="int* p = (int*)malloc(8);\n*p = 3;\nout[0] = *p;"),
    "invalid-copy": _hopper(
        "const float* source, float* out",
        (_floats(64), _floats(1)),
        block=1,
        before="__shared__ __align__(16) float tile[64];\n__shared__ uint64_t barrier;\nbarrier_init(&barrier, 1);\n"
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\nbarrier_expect(&barrier, 32);',
        after="barrier_wait(&barrier, 0);\nout[0] = tile[7];",
    ),
    "trapped": Frame("int n, int* out", (0, _ints(1)), block=1, prelude="#include <cassert>\n", after="out[0] = n;"),
    "schedule-dependent": Frame("int* count, int* out", (np.zeros(1, np.int32), _ints(64)), block=64, options={"schedules": 8}),
}
