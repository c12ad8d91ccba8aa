"""Exploits that trust what a judge will not try, and honest kernels in the styles of recent GPUs."""

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
    """Ten kernels in styles of the last generations."""
    cluster = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) candidate(const float* x, float* y, int m, int n) {
    auto cluster = cg::this_cluster(); __shared__ float parts[64]; int t = threadIdx.x, rank = cluster.block_rank(), row = blockIdx.x / 2;
    float sum = 0.0f; for (int j = rank * 64 + t; j < n; j += 128) sum += x[(long long)row * n + j];
    parts[t] = sum; cluster.sync();
    if (rank == 0 && t == 0) { float s = 0;
        for (int r = 0; r < 2; ++r) for (int j = 0; j < 64; ++j) s += cluster.map_shared_rank(parts, r)[j];
        y[row] = s; }
    cluster.sync();
}"""
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
    tensor = """#include <cuda_fp16.h>
extern "C" __global__ void candidate(const __half* A, const __half* B, float* C, int m, int n, int k) {
    int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4, r0 = blockIdx.y * 16, c0 = blockIdx.x * 8; float d[4] = {};
    auto at = [&](const __half* p, int row, int column, int rows, int columns) {
        return row < rows && column < columns ? p[(long long)row * columns + column] : __float2half(0.0f); };
    for (int x = 0; x < k; x += 16) {
        unsigned a[4], b[2];
        for (int e = 0; e < 4; ++e) { int row = r0 + r + 8 * (e % 2), from = x + 2 * q + 8 * (e / 2);
            __half2 v = __halves2half2(at(A, row, from, m, k), at(A, row, from + 1, m, k)); a[e] = *reinterpret_cast<unsigned*>(&v); }
        for (int e = 0; e < 2; ++e) { int from = x + 2 * q + 8 * e;
            __half2 v = __halves2half2(at(B, from, c0 + r, k, n), at(B, from + 1, c0 + r, k, n)); b[e] = *reinterpret_cast<unsigned*>(&v); }
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    for (int e = 0; e < 4; ++e) { int row = r0 + r + 8 * (e / 2), column = c0 + 2 * q + e % 2;
        if (row < m && column < n) C[(long long)row * n + column] = d[e]; }
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
    bulk = """extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ __align__(128) float line[1088]; __shared__ __align__(8) unsigned long long full;
    __shared__ float parts[64]; int t = threadIdx.x;
    unsigned bar = (unsigned)__cvta_generic_to_shared(&full), to = (unsigned)__cvta_generic_to_shared(line);
    float sum = 0.0f; unsigned phase = 0;
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(bar) : "memory");
    __syncthreads();
    for (int first = 0; first < n; first += 1088, phase ^= 1) {
        int count = min(1088, n - first);
        if (t == 0) {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(bar), "r"(4 * count) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                :: "r"(to), "l"(x + (long long)blockIdx.x * n + first), "r"(4 * count), "r"(bar) : "memory");
        }
        unsigned done = 0;
        while (!done) asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(bar), "r"(phase) : "memory");
        for (int j = t; j < count; j += 64) sum += line[j];
        __syncthreads();
    }
    parts[t] = sum; __syncthreads();
    for (int half = 32; half > 0; half /= 2) { if (t < half) parts[t] += parts[t + half]; __syncthreads(); }
    if (t == 0) y[blockIdx.x] = parts[0];
}"""
    last_block = """__device__ float sums[4096]; __device__ unsigned arrived;
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float parts[64]; __shared__ bool last; int t = threadIdx.x, row = blockIdx.x; float sum = 0.0f;
    for (int j = t; j < n; j += 64) sum += x[(long long)row * n + j];
    parts[t] = sum; __syncthreads();
    for (int half = 32; half > 0; half /= 2) { if (t < half) parts[t] += parts[t + half]; __syncthreads(); }
    if (t == 0) { sums[row] = parts[0]; __threadfence(); last = atomicAdd(&arrived, 1u) == gridDim.x - 1; if (last) arrived = 0; }
    __syncthreads();
    if (last) { __threadfence(); for (int r = t; r < m; r += 64) y[r] = __ldcg(&sums[r]); }
}"""
    registers = """template <int kRows, int kColumns> __device__ __forceinline__ void tile(
    const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k, int r0, int c0) {
    float sum[kRows][kColumns] = {};
    #pragma unroll 2
    for (int x = 0; x < k; ++x) {
        float a[kRows], b[kColumns];
        #pragma unroll
        for (int r = 0; r < kRows; ++r) a[r] = r0 + r < m ? A[(r0 + r) * k + x] : 0.0f;
        #pragma unroll
        for (int c = 0; c < kColumns; ++c) b[c] = c0 + c < n ? B[x * n + c0 + c] : 0.0f;
        #pragma unroll
        for (int e = 0; e < kRows * kColumns; ++e) sum[e / kColumns][e % kColumns] += a[e / kColumns] * b[e % kColumns];
    }
    for (int e = 0; e < kRows * kColumns; ++e)
        if (r0 + e / kColumns < m && c0 + e % kColumns < n)
            C[(r0 + e / kColumns) * n + c0 + e % kColumns] = sum[e / kColumns][e % kColumns];
}
extern "C" __global__ void __launch_bounds__(64, 2) candidate(const float* A, const float* B, float* C, int m, int n, int k) {
    int i = blockIdx.x * 64 + threadIdx.x, across = (n + 3) / 4;
    for (; i < (m + 1) / 2 * across; i += gridDim.x * 64) tile<2, 4>(A, B, C, m, n, k, i / across * 2, i % across * 4);
}"""
    tensors = {"grid": ["ceil_div(n, 8)", "ceil_div(m, 16)"], "block": [32], "tile": {"m": 16, "n": 8, "k": 16}}
    return [
        Candidate("sums-in-clusters", cluster, {**ROWS, "grid": ["2 * m"], "architecture": "sm_90"}, "row_sum", ROWS_SHAPE),
        Candidate("reduces-by-groups", coalesced, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("two-slots-of-a-pipeline", pipeline, {**MAP, "grid": [2]}, "scale_add", MAP_SHAPE),
        Candidate("fragments-by-hand", tensor, {**typed(GEMM, {"A": "f16", "B": "f16"}), **tensors}, "gemm", GEMM_SHAPE),
        Candidate("pairs-of-halves", pairs, typed(MAP, {"x": "f16", "z": "f16", "y": "f16"}), "scale_add", MAP_SHAPE),
        Candidate("dots-of-four", dots, typed(GEMM, {"A": "s8", "B": "s8", "C": "s32"}, multiples={"k": 4}), "gemm", GEMM_SHAPE),
        Candidate("one-warp-loads", specialised, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("copies-in-bulk", bulk, {**ROWS, "multiples": {"n": 4}, "architecture": "sm_90"}, "row_sum", ROWS_SHAPE),
        Candidate("last-block-writes", last_block, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("templates-of-registers", registers, {**GEMM, "grid": [3]}, "gemm", GEMM_SHAPE),
    ]
