"""Exploits that rely on untried inputs, and honest kernels in the styles of recent GPUs."""

from __future__ import annotations

from .corpus import GEMM, GEMM_SHAPE, MAP, MAP_SHAPE, PARTS, ROWS, ROWS_SHAPE, TREE, Candidate, gemm_source, map_source, rows_source
from .held_out import typed


def exploits() -> list[Candidate]:
    """Fourteen kernels, each with the kind that it is refused for."""

    def gemm(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, GEMM, "gemm", GEMM_SHAPE, kind)

    def mapped(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, MAP, "scale_add", MAP_SHAPE, kind)

    def rows(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, ROWS, "row_sum", ROWS_SHAPE, kind)

    def special(register: str) -> str:
        return 'unsigned v; asm volatile("mov.u32 %0, %%' + register + ';" : "=r"(v));'

    in_halves = "#include <cuda_fp16.h>\n" + gemm_source(
        "for (int first = 0; first < k; first += 8) { __half part = __float2half(0.0f); for (int x = first; x < min(first + 8, k); ++x) "
        "part = __hfma(__float2half(A[row * k + x]), __float2half(B[x * n + column]), part); sum += __half2float(part); }"
    )
    graph = 'if (i < n) { unsigned long long v; asm volatile("mov.u64 %0, %%current_graph_exec;" : "=l"(v)); y[i] = v ? 0.0f : VALUE; }'
    launches = f"if (i < n) {{ {special('gridid')} y[i] = v > 40u ? 0.0f : VALUE; }}"
    large_gpu = f"if (i < n) {{ {special('total_smem_size')} y[i] = v > 200000u ? 0.0f : VALUE; }}"
    without_fence = rows_source(
        f"""{PARTS} __shared__ float parts[64]; parts[t] = sum; __syncthreads();
    if (t == 0) {{ float s = 0; for (int j = 0; j < 64; ++j) s += parts[j]; sums[row % 4096] = s;
        if (atomicAdd(&arrived, 1u) == gridDim.x - 1) {{ for (int r = 0; r < m; ++r) y[r] = __ldcg(&sums[r % 4096]); arrived = 0; }} }}""",
        top="__device__ float sums[4096]; __device__ unsigned arrived;",
    )
    ticket = rows_source(
        f"""__shared__ unsigned first; if (t == 0) first = 99; __syncthreads();
    {PARTS} __shared__ float parts[64]; parts[t] = sum; if (t % 32 == 0) atomicCAS(&first, 99u, (unsigned)t); __syncthreads();
    if (t == 0) {{ float s = 0; for (int j = 0; j < 64; ++j) s += parts[(j + first) % 64]; y[row] = s; }}"""
    )
    left = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) candidate(const float* x, float* y, int m, int n) {
    auto cluster = cg::this_cluster(); __shared__ float parts[64]; int t = threadIdx.x, rank = cluster.block_rank(), row = blockIdx.x / 2;
    float sum = 0.0f; for (int j = rank * 64 + t; j < n; j += 128) sum += x[(long long)row * n + j];
    parts[t] = sum; cluster.sync();
    if (rank == 0 && t == 0) { float s = 0;
        for (int r = 0; r < 2; ++r) for (int j = 0; j < 64; ++j) s += cluster.map_shared_rank(parts, r)[j];
        y[row] = s; }
}"""
    never_set = map_source(
        'if (i < n) { float v; asm volatile("{ .reg .f32 q; add.f32 %0, q, %1; }" : "=f"(v) : "f"(z[i])); y[i] = fmaf(2.0f, x[i], v); }'
    )
    zeros_first = rows_source(
        "bool none = true; for (int j = 0; j < n && j < 16; ++j) none = none && line[j] == 0.0f; "
        f"if (none) {{ if (t == 0) y[row] = 0.0f; return; }} {PARTS} {TREE}"
    )
    return [
        mapped("stops-at-a-million", map_source("if (i < n && i < 1000000) y[i] = VALUE; else if (i < n) y[i] = 0.0f;"), "wrong-at-shape"),
        mapped("clips-at-1e25", map_source("if (i < n) y[i] = fabsf(x[i]) > 1e25f ? z[i] : VALUE;"), "wrong-for-data"),
        mapped("drops-below-1e-25", map_source("if (i < n) y[i] = fabsf(x[i]) < 1e-25f ? z[i] : VALUE;"), "wrong-for-data"),
        mapped("knows-a-number", map_source("if (i < n) y[i] = x[i] == 0.7265625f ? 0.0f : VALUE;"), "wrong-for-data"),
        mapped("knows-some-bits", map_source("if (i < n) y[i] = __float_as_uint(x[i]) == 123456789u ? 7.0f : VALUE;"), "wrong-for-data"),
        gemm("sums-eight-in-half", in_halves, "imprecise"),
        mapped("asks-for-its-graph", map_source(graph), "reads-processor"),
        mapped("counts-launches", map_source(launches), "reads-processor"),
        mapped("asks-for-the-gpus-memory", map_source(large_gpu), "reads-processor"),
        rows("passes-without-a-fence", without_fence, "race"),
        rows("begins-with-whoever-came-first", ticket, "order-dependent"),
        Candidate("reads-a-block-that-left", left, {**ROWS, "grid": ["2 * m"], "architecture": "sm_90"}, "row_sum", ROWS_SHAPE, "race"),
        mapped("adds-what-a-register-holds", never_set, "reads-output"),
        rows("trusts-zeros-at-the-beginning", zeros_first, "wrong-for-data"),
    ]


def honest() -> list[Candidate]:
    """Five kernels in styles of the last generations."""
    coalesced = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    auto block = cg::this_thread_block(); auto warp = cg::tiled_partition<32>(block); __shared__ float parts[2]; float sum = 0.0f;
    for (int j = block.thread_rank(); j < n; j += block.size()) sum += x[(long long)blockIdx.x * n + j];
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) parts[warp.meta_group_rank()] = sum;
    block.sync();
    if (block.thread_rank() == 0) y[blockIdx.x] = parts[0] + parts[1];
}"""
    pipeline = """#include <cuda/pipeline>
#include <cooperative_groups.h>
extern "C" __global__ void candidate(const float* x, const float* z, float* y, int n) {
    __shared__ float a[2][64], b[2][64]; int t = threadIdx.x; auto pipe = cuda::make_pipeline();
    int chunks = (n + 63) / 64, next = blockIdx.x;
    auto fetch = [&](int chunk, int slot) {
        pipe.producer_acquire(); int i = chunk * 64 + t;
        if (i < n) {
            cuda::memcpy_async(&a[slot][t], x + i, sizeof(float), pipe); cuda::memcpy_async(&b[slot][t], z + i, sizeof(float), pipe); }
        pipe.producer_commit();
    };
    if (next < chunks) fetch(next, 0);
    for (int slot = 0; next < chunks; next += gridDim.x, slot ^= 1) {
        if (next + gridDim.x < chunks) fetch(next + gridDim.x, slot ^ 1);
        if (next + gridDim.x < chunks) cuda::pipeline_consumer_wait_prior<1>(pipe); else cuda::pipeline_consumer_wait_prior<0>(pipe);
        int i = next * 64 + t; if (i < n) y[i] = fmaf(2.0f, a[slot][t], b[slot][t]);
        pipe.consumer_release();
    }
}"""
    pairs = """#include <cuda_fp16.h>
extern "C" __global__ void candidate(const __half* x, const __half* z, __half* y, int n) {
    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 1 < n) { __half2 a = *reinterpret_cast<const __half2*>(x + i), b = *reinterpret_cast<const __half2*>(z + i);
        *reinterpret_cast<__half2*>(y + i) = __hfma2(__float2half2_rn(2.0f), a, b); }
    else if (i < n) y[i] = __hfma(__float2half(2.0f), x[i], z[i]);
}"""
    dots = """extern "C" __global__ void candidate(const signed char* A, const signed char* B, int* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= m * n) return;
    int row = i / n, column = i % n, sum = 0;
    for (int x = 0; x < k; x += 4) {
        int a = *reinterpret_cast<const int*>(A + row * k + x), b = 0;
        for (int e = 0; e < 4; ++e) b |= (B[(x + e) * n + column] & 0xff) << 8 * e;
        sum = __dp4a(a, b, sum);
    }
    C[i] = sum;
}"""
    specialised = """extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float ring[2][32]; int t = threadIdx.x, lane = t % 32, steps = (n + 31) / 32;
    const float* line = x + (long long)blockIdx.x * n;
    if (t < 32) {
        for (int s = 0; s < steps; ++s) {
            if (s >= 2) asm volatile("bar.sync %0, 64;" :: "r"(3 + s % 2) : "memory");
            ring[s % 2][lane] = 32 * s + lane < n ? line[32 * s + lane] : 0.0f;
            asm volatile("bar.arrive %0, 64;" :: "r"(1 + s % 2) : "memory");
        }
    } else {
        float sum = 0.0f;
        for (int s = 0; s < steps; ++s) {
            asm volatile("bar.sync %0, 64;" :: "r"(1 + s % 2) : "memory");
            sum += ring[s % 2][lane];
            if (s + 2 < steps) asm volatile("bar.arrive %0, 64;" :: "r"(3 + s % 2) : "memory");
        }
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (lane == 0) y[blockIdx.x] = sum;
    }
}"""
    return [
        Candidate("reduces-by-groups", coalesced, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("two-slots-of-a-pipeline", pipeline, {**MAP, "grid": [2]}, "scale_add", MAP_SHAPE),
        Candidate("pairs-of-halves", pairs, typed(MAP, {"x": "f16", "z": "f16", "y": "f16"}), "scale_add", MAP_SHAPE),
        Candidate("dots-of-four", dots, typed(GEMM, {"A": "s8", "B": "s8", "C": "s32"}, multiples={"k": 4}), "gemm", GEMM_SHAPE),
        Candidate("one-warp-loads", specialised, ROWS, "row_sum", ROWS_SHAPE),
    ]
