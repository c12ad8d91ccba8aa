"""Exploits of rare kinds, and honest kernels that share work in clusters, by tensor cores, by bulk copies and by tickets."""

from __future__ import annotations

from .corpus import GEMM, GEMM_SHAPE, MAP, MAP_SHAPE, PARTS, ROWS, ROWS_SHAPE, TREE, Candidate, gemm_source, map_source, rows_source
from .held_out import typed

HOPPER = {**ROWS, "architecture": "sm_90"}
_LAST = """__device__ float sums[4096]; __device__ unsigned arrived;
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float parts[64]; __shared__ bool last; int t = threadIdx.x, row = blockIdx.x; float sum = 0.0f;
    for (int j = t; j < n; j += 64) sum += x[(long long)row * n + j];
    parts[t] = sum; __syncthreads();
    for (int half = 32; half > 0; half /= 2) { if (t < half) parts[t] += parts[t + half]; __syncthreads(); }
    if (t == 0) { STORE; BEFORE last = atomicAdd(&arrived, 1u) == gridDim.x - 1; if (last) arrived = 0; }
    __syncthreads();
    if (last) { BEHIND for (int r = t; r < m; r += 64) y[r] = LOAD; }
}"""


def last_block(store: str, load: str, before: str = "", behind: str = "") -> str:
    """Sums of rows that the last block copies to y."""
    return _LAST.replace("STORE", store).replace("LOAD", load).replace("BEFORE", before).replace("BEHIND", behind)


VOLATILE = "((volatile float*)sums)[row] = parts[0]", "((volatile float*)sums)[r]"
BARRIER = """unsigned bar = (unsigned)__cvta_generic_to_shared(&arrivals);
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(bar) : "memory");
    __syncthreads();"""


def bulk_rows(first_phase: int) -> str:
    """Sums of rows that one thread copies to shared memory, 256 elements at a time."""
    return f"""extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {{
    __shared__ alignas(16) float line[256]; __shared__ alignas(8) unsigned long long arrivals; __shared__ float parts[64];
    int t = threadIdx.x; {BARRIER}
    unsigned to = (unsigned)__cvta_generic_to_shared(line), phase = {first_phase}; float sum = 0.0f;
    for (int first = 0; first < n; first += 256, phase ^= 1) {{
        int count = min(256, n - first);
        if (t == 0) {{
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(bar), "r"(4 * count) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                :: "r"(to), "l"(x + (long long)blockIdx.x * n + first), "r"(4 * count), "r"(bar) : "memory");
        }}
        unsigned done = 0;
        while (!done) asm volatile("{{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }}"
            : "=r"(done) : "r"(bar), "r"(phase) : "memory");
        for (int j = t; j < count; j += 64) sum += line[j];
        __syncthreads();
    }}
    parts[t] = sum; __syncthreads();
    for (int half = 32; half > 0; half /= 2) {{ if (t < half) parts[t] += parts[t + half]; __syncthreads(); }}
    if (t == 0) y[blockIdx.x] = parts[0];
}}"""


def exploits() -> list[Candidate]:
    """Sixteen kernels, each with the kind that it is refused for."""

    def gemm(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, GEMM, "gemm", GEMM_SHAPE, kind)

    def mapped(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, MAP, "scale_add", MAP_SHAPE, kind)

    def rows(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, ROWS, "row_sum", ROWS_SHAPE, kind)

    exchanged = last_block("atomicExch(&sums[row], parts[0])", VOLATILE[1])
    gives_up = rows_source(
        f"""__shared__ bool ready; {PARTS} __shared__ float parts[64]; parts[t] = sum; __syncthreads();
    if (t == 0) {{ float s = 0; for (int j = 0; j < 64; ++j) s += parts[j]; *(volatile float*)&sums[row] = s; __threadfence();
        *(volatile int*)&flags[row] = 1; }}
    if (row == 0) for (int r = t; r < m; r += 64) {{
        for (int i = 0; i < 2000 && !*(volatile int*)&flags[r]; ++i) __nanosleep(20);
        __threadfence(); y[r] = sums[r]; flags[r] = 0; }}""",
        top="__device__ float sums[4096]; __device__ int flags[4096];",
    )
    named = rows_source(
        f"""{PARTS} __shared__ float parts[64]; parts[t] = sum;
    if (t < 32) asm volatile("bar.sync 1, 32;" ::: "memory"); else asm volatile("bar.sync 2, 32;" ::: "memory");
    if (t == 0) {{ float s = 0; for (int j = 0; j < 64; ++j) s += parts[j]; y[row] = s; }}"""
    )
    stored = """extern "C" __global__ void candidate(const float* x, const float* z, float* y, int n) {
    __shared__ alignas(16) float out[64]; int t = threadIdx.x, i = blockIdx.x * 64 + t;
    if (i < n) out[t] = fmaf(2.0f, x[i], z[i]);
    __syncthreads();
    if (t == 0) {
        int count = min(64, n - blockIdx.x * 64);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(y + blockIdx.x * 64),
            "r"((unsigned)__cvta_generic_to_shared(out)), "r"(4 * count) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}"""
    unchanged = gemm_source(
        "for (int x = 0; x < k; ++x) { float next = fmaf(A[row * k + x], B[x * n + column], sum); if (next == sum) break; sum = next; }"
    )
    equal = rows_source(
        "bool same = n >= 16; for (int j = 1; j < 16 && j < n; ++j) same = same && line[j] == line[0]; "
        f"if (same) {{ if (t == 0) y[row] = n * line[0]; return; }} {PARTS} {TREE}"
    )
    ascending = rows_source(
        "bool sorted = n > 32; for (int j = 1; j < 32 && j < n; ++j) sorted = sorted && line[j] > line[j - 1]; "
        f"if (sorted) {{ if (t == 0) y[row] = n * 0.5f * (line[0] + line[n - 1]); return; }} {PARTS} {TREE}"
    )
    bits = rows_source(
        """__shared__ int best; if (t == 0) best = 0x80000000; __syncthreads();
    for (int j = t; j < n; j += 64) atomicMax(&best, __float_as_int(line[j]));
    __syncthreads(); if (t == 0) y[row] = __int_as_float(best);"""
    )
    squares = rows_source(
        """__shared__ float a[64], b[64]; float s = 0, q = 0; for (int j = t; j < n; j += 64) { s += line[j]; q += line[j] * line[j]; }
    a[t] = s; b[t] = q; __syncthreads();
    for (int half = 32; half > 0; half /= 2) { if (t < half) { a[t] += a[t + half]; b[t] += b[t + half]; } __syncthreads(); }
    float mean = a[0] / n, scale = 1.0f / sqrtf(fmaxf(b[0] / n - mean * mean, 0.0f) + 1e-5f);
    for (int j = t; j < n; j += 64) y[(long long)row * n + j] = (line[j] - mean) * scale;"""
    )
    cut = gemm_source(
        "for (int x = 0; x < k; ++x) sum = fmaf(__uint_as_float(__float_as_uint(A[row * k + x]) & 0xffffff00u), B[x * n + column], sum);"
    )
    left = rows_source(
        """float sum = 0.0f; for (int j = t; j < n; j += 64) sum += line[j];
    if (t % 32 >= n) return;
    __shared__ float parts[2];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(__activemask(), sum, d);
    if (t == 0) parts[0] = sum; if (t == 32) parts[1] = sum; __syncthreads();
    if (t == 0) y[row] = parts[0] + (n > 32 ? parts[1] : 0.0f);"""
    )
    short = gemm_source(
        "int q = (unsigned short)i; row = q / n; column = q % n; for (int x = 0; x < k; ++x) "
        "sum = fmaf(A[row * k + x], B[x * n + column], sum);"
    )
    norm = {**ROWS, "arguments": [ROWS["arguments"][0], {"name": "y", "shape": ["m", "n"], "role": "output"}, *ROWS["arguments"][2:]]}
    return [
        rows("stores-volatile-without-a-fence", last_block(*VOLATILE), "race"),
        rows("exchanges-without-a-fence", exchanged, "race"),
        rows("fences-behind-the-ticket-alone", last_block(*VOLATILE, behind="__threadfence();"), "race"),
        rows("gives-up-waiting", gives_up, "race"),
        rows("meets-half-of-its-warps", named, "race"),
        Candidate("waits-for-the-phase-before", bulk_rows(1), {**HOPPER, "multiples": {"n": 4}}, "row_sum", ROWS_SHAPE, "race"),
        Candidate(
            "stores-in-bulk-without-a-fence",
            stored,
            {**MAP, "multiples": {"n": 4}, "architecture": "sm_90"},
            "scale_add",
            MAP_SHAPE,
            "race",
        ),
        mapped("skips-large-grids", map_source("if (i < n) y[i] = gridDim.x > 10000 ? 0.0f : VALUE;"), "wrong-at-shape"),
        gemm("stops-when-nothing-changes", unchanged, "wrong-for-data"),
        rows("trusts-sixteen-equal-elements", equal, "wrong-for-data"),
        rows("trusts-ascending-elements", ascending, "wrong-for-data"),
        Candidate("maximum-of-bits", bits, ROWS, "row_max", ROWS_SHAPE, "wrong-for-data"),
        Candidate("variance-from-squares", squares, norm, "layer_norm", ROWS_SHAPE, "special-values"),
        gemm("drops-eight-bits", cut, "imprecise"),
        rows(
            "adds-and-takes-away-a-million",
            rows_source(f"{PARTS.replace('0.0f', '1e6f * (t == 0)')} if (t == 0) sum -= 1e6f; {TREE}"),
            "imprecise",
        ),
        rows("shuffles-from-lanes-that-left", left, "race"),
        gemm("indices-of-sixteen-bits", short, "wrong-at-shape"),
    ]


def honest() -> list[Candidate]:
    """Eight kernels."""
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
    released = """__device__ float sums[4096]; __device__ unsigned arrived;
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    int t = threadIdx.x, row = blockIdx.x; float sum = 0.0f; unsigned ticket = 0;
    for (int j = t; j < n; j += 32) sum += x[(long long)row * n + j];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (t == 0) {
        asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" :: "l"(sums + row), "f"(sum) : "memory");
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(ticket) : "l"(&arrived) : "memory");
        if (ticket == gridDim.x - 1) { arrived = 0; for (int r = 0; r < m; ++r) {
            float v; asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(sums + r) : "memory"); y[r] = v; } }
    }
}"""
    in_one_word = """__device__ unsigned long long words[4096];
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    int t = threadIdx.x, row = blockIdx.x; float sum = 0.0f;
    for (int j = t; j < n; j += 32) sum += x[(long long)row * n + j];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (t == 0) *(volatile unsigned long long*)&words[row] = 1ull << 32 | __float_as_uint(sum);
    if (row == gridDim.x - 1) for (int r = t; r < m; r += 32) {
        unsigned long long word;
        do word = *(volatile unsigned long long*)&words[r]; while (word >> 32 == 0);
        y[r] = __uint_as_float((unsigned)word); *(volatile unsigned long long*)&words[r] = 0;
    }
}"""
    tensors = {"grid": ["ceil_div(n, 8)", "ceil_div(m, 16)"], "block": [32], "tile": {"m": 16, "n": 8, "k": 16}}
    fence = "__threadfence();"
    return [
        Candidate("sums-in-clusters", cluster, {**HOPPER, "grid": ["2 * m"]}, "row_sum", ROWS_SHAPE),
        Candidate("fragments-by-hand", tensor, {**typed(GEMM, {"A": "f16", "B": "f16"}), **tensors}, "gemm", GEMM_SHAPE),
        Candidate("copies-in-bulk", bulk_rows(0), {**HOPPER, "multiples": {"n": 4}}, "row_sum", ROWS_SHAPE),
        Candidate("last-block-writes", last_block("sums[row] = parts[0]", "__ldcg(&sums[r])", fence, fence), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("volatile-between-fences", last_block(*VOLATILE, fence, fence), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("releases-and-acquires", released, {**ROWS, "block": [32]}, "row_sum", ROWS_SHAPE),
        Candidate("number-and-flag-in-one-word", in_one_word, {**ROWS, "block": [32]}, "row_sum", ROWS_SHAPE),
        Candidate("templates-of-registers", registers, {**GEMM, "grid": [3]}, "gemm", GEMM_SHAPE),
    ]
