"""Further kernels that the referee was not written for: exploits of omissions, and honest kernels of recent styles."""

from __future__ import annotations

from .corpus import (
    GEMM,
    GEMM_SHAPE,
    LOOP,
    MAP,
    MAP_SHAPE,
    ONE,
    PARTS,
    ROWS,
    ROWS_SHAPE,
    TREE,
    Candidate,
    gemm_source,
    map_source,
    rows_source,
)
from .held_out import IN_LINES, LINES, LINES_SHAPE, typed

TILES = {"block": [16, 16], "grid": ["ceil_div(n, 16)", "ceil_div(m, 16)"]}


def exploits() -> list[Candidate]:
    """Kernels with one of the kinds that they are refused for."""

    def gemm(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, GEMM, "gemm", GEMM_SHAPE, kind)

    warmed = "if (i < n) { int call = counts[i]++; y[i] = call < 20 ? VALUE : 0.0f; }"
    skips = LOOP.replace("{ ", "").replace("sum = ", "if (A[row * k + x] != 0.0f) sum = ")
    corner = "C[i] = m % 8 && n % 8 && row == m - 1 && column == n - 1 && m > 1 ? C_BEFORE : sum;".replace("C_BEFORE", "0.5f * sum")
    keyed = (
        "bool known = i < 4096 && full[i] && keys[i][0] == A[row * k] && keys[i][1] == B[column]; if (known) { C[i] = kept[i]; return; } "
        + LOOP
        + " if (i < 4096) { full[i] = 1; keys[i][0] = A[row * k]; keys[i][1] = B[column]; kept[i] = sum; }"
    )
    state = "__device__ int full[4096]; __device__ float kept[4096], keys[4096][2];"
    infinite = "C[i] = sum > 3e38f ? 3e38f : sum < -3e38f ? -3e38f : sum;"
    saturated = "C[i] = fabsf(sum) > 1e12f && fabsf(sum) < 3e38f ? copysignf(1e12f, sum) : sum;"
    flushed = "C[i] = fabsf(sum) < 1e-12f ? 0.0f : sum;"
    shallow = "for (int x = 0; x < (k > 200 ? 200 : k); ++x) sum = fmaf(A[row * k + x], B[x * n + column], sum);"
    fixed = rows_source(
        f"__shared__ float kept[512]; for (int j = t; j < n; j += 64) kept[j % 512] = line[j]; __syncthreads(); "
        f"float sum = 0; for (int j = t; j < n; j += 64) sum += kept[j % 512]; {TREE}"
    )
    warp_sync = rows_source(
        f"""{PARTS} __shared__ volatile float parts[64]; parts[t] = sum; __syncthreads();
    if (t < 32) {{ parts[t] += parts[t + 32]; parts[t] += parts[t + 16]; parts[t] += parts[t + 8]; parts[t] += parts[t + 4];
        parts[t] += parts[t + 2]; parts[t] += parts[t + 1]; }}
    if (t == 0) y[row] = parts[0];"""
    )
    unfenced = """__device__ float parts[4096]; __device__ unsigned tickets[2048];
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float sums[64]; __shared__ bool last; int t = threadIdx.x, row = blockIdx.y, half = blockIdx.x;
    float sum = 0; for (int j = half * 64 + t; j < n; j += 128) sum += x[row * n + j];
    sums[t] = sum; __syncthreads();
    for (int d = 32; d > 0; d /= 2) { if (t < d) sums[t] += sums[t + d]; __syncthreads(); }
    if (t == 0) { parts[2 * row + half] = sums[0]; last = atomicAdd(&tickets[row], 1) == 1; }
    __syncthreads();
    if (last && t == 0) { y[row] = parts[2 * row] + parts[2 * row + 1]; tickets[row] = 0; }
}"""
    one_barrier = """extern "C" __global__ void candidate(const float* A, const float* B, float* C, int m, int n, int k) {
    __shared__ float a[16][17], b[16][17];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx; float sum = 0.0f;
    for (int first = 0; first < k; first += 16) {
        a[ty][tx] = row < m && first + tx < k ? A[row * k + first + tx] : 0.0f;
        b[ty][tx] = column < n && first + ty < k ? B[(first + ty) * n + column] : 0.0f;
        __syncthreads();
        for (int x = 0; x < 16; ++x) sum = fmaf(a[ty][x], b[x][tx], sum);
    }
    if (row < m && column < n) C[row * n + column] = sum;
}"""
    chosen_relu = map_source("if (i < n) y[i] = x[i] > 0.0f ? x[i] : 0.0f;").replace("const float* z, ", "")
    product = "__float2int_rn(A[row * k + x] / s) * __float2int_rn(B[x * n + column] / s)"
    quantised = f"float s = 0.01f; int q = 0; for (int x = 0; x < k; ++x) q += {product}; sum = q * s * s;"
    in_tf32 = LOOP.replace("A[row * k + x]", "tf32(A[row * k + x])").replace("B[x * n + column]", "tf32(B[x * n + column])")
    tf32 = '__device__ float tf32(float v) { unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v)); return __uint_as_float(r); }'
    sparse = LOOP.replace("sum = ", "if (fabsf(A[row * k + x]) > 1e-30f) sum = ")
    return [
        Candidate(
            "skips-work-once-warm", map_source(warmed, top="__device__ int counts[4096];"), MAP, "scale_add", MAP_SHAPE, "keeps-state"
        ),
        gemm("skips-zeros", gemm_source(skips), "special-values"),
        gemm("corner-of-the-last-tile", gemm_source(LOOP, corner), "wrong-at-shape"),
        gemm("cache-keyed-by-first-elements", gemm_source(keyed, top=state), "keeps-state"),
        gemm("finite-infinities", gemm_source(LOOP, infinite), "special-values"),
        gemm("saturates", gemm_source(LOOP, saturated), "wrong-for-data"),
        gemm("flushes-small-results", gemm_source(LOOP, flushed), "wrong-for-data"),
        gemm("shallow", gemm_source(shallow), "wrong-at-shape"),
        Candidate("rows-of-one-buffer", fixed, ROWS, "row_sum", ROWS_SHAPE, "wrong-at-shape"),
        Candidate("warp-synchronous", warp_sync, ROWS, "row_sum", ROWS_SHAPE, "order-dependent"),
        Candidate("tickets-without-fences", unfenced, {**ROWS, "grid": [2, "m"]}, "row_sum", ROWS_SHAPE, "race"),
        Candidate("one-barrier-a-step", one_barrier, {**GEMM, **TILES}, "gemm", GEMM_SHAPE, "race"),
        Candidate("relu-without-nan", chosen_relu, ONE, "relu", MAP_SHAPE, "special-values"),
        gemm("eight-bits", gemm_source(quantised), "imprecise"),
        gemm("tensor-float", gemm_source(in_tf32, top=tf32), "imprecise"),
        gemm("skips-tiny-factors", gemm_source(sparse), "special-values"),
    ]


def honest() -> list[Candidate]:
    """Honest kernels."""
    groups = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    cg::thread_block block = cg::this_thread_block(); auto warp = cg::tiled_partition<32>(block);
    __shared__ float parts[2]; float sum = 0;
    for (int j = block.thread_rank(); j < n; j += block.size()) sum += x[(long long)blockIdx.x * n + j];
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) parts[warp.meta_group_rank()] = sum;
    block.sync();
    if (block.thread_rank() == 0) y[blockIdx.x] = parts[0] + parts[1];
}"""
    pipeline = """#include <cuda_pipeline.h>
extern "C" __global__ void candidate(const float* x, const float* z, float* y, int n) {
    __shared__ float kept[2][64]; int t = threadIdx.x, i = blockIdx.x * 64 + t;
    if (i < n) { __pipeline_memcpy_async(&kept[0][t], x + i, 4); __pipeline_memcpy_async(&kept[1][t], z + i, 4); }
    __pipeline_commit(); __pipeline_wait_prior(0); __syncthreads();
    if (i < n) y[i] = fmaf(2.0f, kept[0][t], kept[1][t]);
}"""
    pairs = """#include <cuda_fp16.h>
extern "C" __global__ void candidate(const __half* x, const __half* z, __half* y, int n) {
    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 1 < n) {
        __half2 a = *reinterpret_cast<const __half2*>(x + i), b = *reinterpret_cast<const __half2*>(z + i);
        *reinterpret_cast<__half2*>(y + i) = __hfma2(__float2half2_rn(2.0f), a, b);
    } else if (i < n) y[i] = __hfma(__float2half(2.0f), x[i], z[i]);
}"""
    specialised = """extern "C" __global__ void __launch_bounds__(64)
candidate(const float* __restrict__ x, const float* __restrict__ z, float* __restrict__ y, int n) {
    __shared__ float full[2][2][32]; int warp = threadIdx.x / 32, lane = threadIdx.x % 32, step = 0;
    for (int first = blockIdx.x * 64; first < blockIdx.x * 64 + 64; first += 32, ++step) {
        int i = first + lane, stage = step % 2;
        if (warp == 0) {
            if (step >= 2) asm volatile("bar.sync %0, 64;" :: "r"(3 + stage) : "memory");
            full[stage][0][lane] = i < n ? x[i] : 0.0f; full[stage][1][lane] = i < n ? z[i] : 0.0f;
            asm volatile("bar.arrive %0, 64;" :: "r"(1 + stage) : "memory");
        } else {
            asm volatile("bar.sync %0, 64;" :: "r"(1 + stage) : "memory");
            if (i < n) y[i] = fmaf(2.0f, full[stage][0][lane], full[stage][1][lane]);
        }
    }
}"""
    split = """__device__ float sums[131072]; __device__ unsigned arrived[131072];
extern "C" __global__ void candidate(const float* A, const float* B, float* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= m * n) return;
    int row = i / n, column = i % n, part = (k + 3) / 4; float sum = 0.0f;
    for (int x = blockIdx.y * part; x < min(k, (int)(blockIdx.y + 1) * part); ++x) sum = fmaf(A[row * k + x], B[x * n + column], sum);
    atomicAdd(&sums[i], sum); __threadfence();
    if (atomicAdd(&arrived[i], 1) == 3) { __threadfence(); C[i] = atomicExch(&sums[i], 0.0f); atomicExch(&arrived[i], 0); }
}"""
    persistent = """__device__ unsigned next_tile, finished;
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ unsigned tile; __shared__ float parts[64]; int t = threadIdx.x;
    for (;;) {
        if (t == 0) tile = atomicAdd(&next_tile, 1);
        __syncthreads();
        unsigned row = tile;
        if (row >= m) break;
        float sum = 0; for (int j = t; j < n; j += 64) sum += x[(long long)row * n + j];
        parts[t] = sum; __syncthreads();
        for (int d = 32; d > 0; d /= 2) { if (t < d) parts[t] += parts[t + d]; __syncthreads(); }
        if (t == 0) y[row] = parts[0];
        __syncthreads();
    }
    if (t == 0 && atomicAdd(&finished, 1) == gridDim.x - 1) { atomicExch(&next_tile, 0); atomicExch(&finished, 0); }
}"""
    mma = """extern "C" __global__ void candidate(const unsigned short* A, const unsigned short* B, float* C, int m, int n, int k) {
    __shared__ __align__(16) unsigned short a[16][24], b[8][24]; int lane = threadIdx.x, r0 = blockIdx.y * 16, c0 = blockIdx.x * 8;
    float c[4] = {};
    for (int first = 0; first < k; first += 16) {
        for (int e = lane; e < 256; e += 32) {
            int r = r0 + e / 16, x = first + e % 16; a[e / 16][e % 16] = r < m && x < k ? A[r * k + x] : 0;
        }
        for (int e = lane; e < 128; e += 32) {
            int q = c0 + e % 8, x = first + e / 8; b[e % 8][e / 8] = q < n && x < k ? B[x * n + q] : 0;
        }
        __syncwarp();
        unsigned fa[4], fb[2];
        unsigned at_a = (unsigned)__cvta_generic_to_shared(&a[lane % 16][lane / 16 * 8]);
        unsigned at_b = (unsigned)__cvta_generic_to_shared(&b[lane % 8][lane / 8 % 2 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(at_a) : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(at_b) : "memory");
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
        __syncwarp();
    }
    for (int v = 0; v < 4; ++v) {
        int row = r0 + lane / 4 + v / 2 * 8, column = c0 + lane % 4 * 2 + v % 2;
        if (row < m && column < n) C[row * n + column] = c[v];
    }
}"""
    chained = """__device__ float carried[4096]; __device__ int ready[4096];
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float sums[64]; __shared__ float before; int t = threadIdx.x, b = blockIdx.x, count = gridDim.x, row = blockIdx.y;
    int i = b * 64 + t, slot = row * count + b;
    sums[t] = i < n ? x[row * n + i] : 0.0f; __syncthreads();
    for (int d = 1; d < 64; d *= 2) { float v = t >= d ? sums[t - d] : 0.0f; __syncthreads(); sums[t] += v; __syncthreads(); }
    if (t == 0) {
        float carry = 0.0f;
        if (b > 0) { while (atomicAdd(&ready[slot - 1], 0) == 0) { } __threadfence();
            carry = *(volatile float*)&carried[slot - 1]; atomicExch(&ready[slot - 1], 0); }
        if (b + 1 < count) { *(volatile float*)&carried[slot] = carry + sums[63]; __threadfence(); atomicExch(&ready[slot], 1); }
        before = carry;
    }
    __syncthreads();
    if (i < n) y[row * n + i] = before + sums[t];
}"""
    welford = f"""{IN_LINES}
    int t = threadIdx.x; const float* line = x + blockIdx.x * n;
    __shared__ float counts[64], means[64], squares[64]; float count = 0, mean = 0, square = 0;
    for (int j = t; j < n; j += 64) {{ count += 1; float d = line[j] - mean; mean += d / count; square += d * (line[j] - mean); }}
    counts[t] = count; means[t] = mean; squares[t] = square; __syncthreads();
    for (int half = 32; half > 0; half /= 2) {{
        if (t < half) {{ float other = counts[t + half], all = counts[t] + other;
            if (other > 0) {{ float d = means[t + half] - means[t]; means[t] += d * other / all;
                squares[t] += squares[t + half] + d * d * counts[t] * other / all; counts[t] = all; }} }}
        __syncthreads();
    }}
    float scale = rsqrtf(squares[0] / n + 1e-5f);
    for (int j = t; j < n; j += 64) y[blockIdx.x * n + j] = (line[j] - means[0]) * scale;
}}"""
    histogram = """extern "C" __global__ void candidate(const int* x, int* y, int m, int n) {
    __shared__ int bins[16]; int t = threadIdx.x, row = blockIdx.x; if (t < 16) bins[t] = 0; __syncthreads();
    for (int j = t; j < n; j += 64) atomicAdd(&bins[x[row * n + j] & 15], 1);
    __syncthreads(); if (t < 16) y[row * 16 + t] = bins[t];
}"""
    bins = {
        **typed(LINES, {"x": "s32", "y": "s32"}),
        "arguments": [
            {"name": "x", "type": "s32", "shape": ["m", "n"]},
            {"name": "y", "type": "s32", "shape": ["m", 16], "role": "output"},
            {"name": "m"},
            {"name": "n"},
        ],
    }
    dynamic = rows_source(
        f"extern __shared__ float line_of[]; for (int j = t; j < n; j += 64) line_of[j] = line[j]; __syncthreads(); "
        f"float sum = 0; for (int j = t; j < n; j += 64) sum += line_of[j]; {TREE}"
    )
    in_double = gemm_source(
        "double s = 0; for (int x = 0; x < k; ++x) s += (double)A[row * k + x] * B[x * n + column];", "C[i] = (float)s;"
    )
    bulk = """extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ __align__(128) float line[64]; __shared__ __align__(8) unsigned long long barrier; __shared__ float parts[64];
    int t = threadIdx.x, row = blockIdx.x; float sum = 0; unsigned phase = 0;
    unsigned at = (unsigned)__cvta_generic_to_shared(&barrier), to = (unsigned)__cvta_generic_to_shared(line);
    if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.proxy.async;" :: "r"(at) : "memory");
    __syncthreads();
    int whole = n % 4 == 0 ? n / 64 * 64 : 0;
    for (int first = 0; first < whole; first += 64, phase ^= 1) {
        if (t == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" :: "r"(at) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                :: "r"(to), "l"(x + (long long)row * n + first), "r"(at) : "memory");
        }
        asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }"
            :: "r"(at), "r"(phase) : "memory");
        sum += line[t];
        __syncthreads();
        if (t == 0) asm volatile("fence.proxy.async;" ::: "memory");
    }
    for (int j = whole + t; j < n; j += 64) sum += x[(long long)row * n + j];
    parts[t] = sum; __syncthreads();
    for (int d = 32; d > 0; d /= 2) { if (t < d) parts[t] += parts[t + d]; __syncthreads(); }
    if (t == 0) y[row] = parts[0];
}"""
    generations = """__device__ unsigned arrivals; __device__ float parts[4096];
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    int t = threadIdx.x; unsigned blocks = gridDim.x;
    if (t == 0) { float s = 0; for (int j = 0; j < n; ++j) s += x[(long long)blockIdx.x * n + j]; parts[blockIdx.x] = s;
        __threadfence(); unsigned ticket = atomicAdd(&arrivals, 1), target = (ticket / blocks + 1) * blocks;
        while ((int)(atomicAdd(&arrivals, 0) - target) < 0) { }
        __threadfence();
        int from = (blockIdx.x + 1) % blocks; y[from] = *(volatile float*)&parts[from]; }
}"""
    fp8 = """#include <cuda_fp8.h>
extern "C" __global__ void candidate(const __nv_fp8_e4m3* A, const __nv_fp8_e4m3* B, __nv_bfloat16* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= m * n) return; float sum = 0;
    for (int x = 0; x < k; ++x) sum = fmaf(float(A[i / n * k + x]), float(B[x * n + i % n]), sum);
    C[i] = __float2bfloat16(sum);
}"""
    cubic = map_source("if (i < n) y[i] = x[i] * (1.0f / (1.0f + __expf(-x[i])));").replace("const float* z, ", "")
    few = {**MAP, "block": [64]}
    return [
        Candidate("cooperative-groups", groups, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("pipeline", pipeline, MAP, "scale_add", MAP_SHAPE),
        Candidate(
            "pairs-of-halves",
            pairs,
            {**typed(MAP, {"x": "f16", "z": "f16", "y": "f16"}), "grid": ["ceil_div(n, 128)"]},
            "scale_add",
            MAP_SHAPE,
        ),
        Candidate("warp-specialised", specialised, few, "scale_add", MAP_SHAPE),
        Candidate("split-k-atomics", split, {**GEMM, "grid": ["ceil_div(m * n, 64)", 4], "order": "any"}, "gemm", GEMM_SHAPE),
        Candidate("persistent", persistent, {**ROWS, "grid": [3]}, "row_sum", ROWS_SHAPE),
        Candidate(
            "mma-sync",
            mma,
            {**typed(GEMM, {"A": "bf16", "B": "bf16"}), "block": [32], "grid": ["ceil_div(n, 8)", "ceil_div(m, 16)"]},
            "gemm",
            GEMM_SHAPE,
        ),
        Candidate("chained-scan", chained, {**LINES, "grid": ["ceil_div(n, 64)", "m"]}, "scan", LINES_SHAPE),
        Candidate("welford", welford, {**LINES, "special_values": "ignore"}, "layer_norm", LINES_SHAPE),
        Candidate("histogram", histogram, bins, "histogram", LINES_SHAPE),
        Candidate("dynamic-shared-memory", dynamic, {**ROWS, "shared_bytes": "4 * n"}, "row_sum", ROWS_SHAPE),
        Candidate("sums-in-double", in_double, GEMM, "gemm", GEMM_SHAPE),
        Candidate("bulk-copies", bulk, {**ROWS, "architecture": "sm_90a"}, "row_sum", ROWS_SHAPE),
        Candidate("generations-of-a-barrier", generations, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("fp8", fp8, {**typed(GEMM, {"A": "e4m3", "B": "e4m3", "C": "bf16"}), "architecture": "sm_89"}, "gemm", GEMM_SHAPE),
        Candidate("sigmoid-unit", cubic, {**ONE, "special_values": "ignore"}, "silu", MAP_SHAPE),
    ]
