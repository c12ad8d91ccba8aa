"""Kernels in other styles than those of the corpus, written after the referee: exploits, and honest kernels."""

from __future__ import annotations

from typing import Any

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
    TURN,
    TURN_SHAPE,
    Candidate,
    gemm_source,
    map_source,
    rows_source,
)

LINES: dict[str, Any] = {
    "grid": ["m"],
    "block": [64],
    "arguments": [
        {"name": "x", "shape": ["m", "n"]},
        {"name": "y", "shape": ["m", "n"], "role": "output"},
        {"name": "m"},
        {"name": "n"},
    ],
    "tile": {"m": 4, "n": 64},
}
LINES_SHAPE = "m=5,n=96"
IN_LINES = 'extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {'
SUM_OF_BLOCK = """__shared__ float parts[64]; __shared__ float whole;
    auto together = [&](float v, bool most) {
        parts[t] = v; __syncthreads();
        for (int half = 32; half > 0; half /= 2) {
            if (t < half) parts[t] = most ? fmaxf(parts[t], parts[t + half]) : parts[t] + parts[t + half];
            __syncthreads();
        }
        if (t == 0) whole = parts[0];
        __syncthreads();
        float found = whole; __syncthreads();
        return found;
    };"""


def typed(task: dict[str, Any], types: dict[str, str], **more: Any) -> dict[str, Any]:
    """A task with other types of some arrays."""
    arguments = [{**one, "type": types[one["name"]]} if one["name"] in types else one for one in task["arguments"]]
    return {**task, "arguments": arguments, **more}


def exploits() -> list[Candidate]:
    """Sixteen kernels, with one of the kinds that they are refused for."""
    softmax = f"""{IN_LINES}
    int t = threadIdx.x; const float* line = x + blockIdx.x * n; {SUM_OF_BLOCK}
    float sum = 0; for (int j = t; j < n; j += 64) sum += expf(line[j]);
    sum = together(sum, false);
    for (int j = t; j < n; j += 64) y[blockIdx.x * n + j] = expf(line[j]) / sum;
}}"""
    square = """extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r < m && c < n) y[m == n ? c * m + r : (c * m + r) % (m * n - (m != 32))] = x[r * n + c];
}"""
    padded = rows_source(
        f"""__shared__ float kept[128]; for (int j = t; j < n && j < 128; j += blockDim.x) kept[j] = line[j];
    __syncthreads(); float sum = 0; for (int j = t; j < 128; j += blockDim.x) sum += kept[j] * (j < n ? 1.0f : 0.0f);
    for (int j = 128 + t; j < n; j += blockDim.x) sum += line[j]; {TREE}"""
    )
    memo = map_source(
        "if (i == 0 && seen[0] == x[0] && seen[1] == x[1]) { } if (calls > 0 && seen[0] != 0.0f) { if (i < n) y[i] = seen[0]; return; } "
        "if (i < n) y[i] = fmaf(2.0f, x[i], z[i]); if (i == 0) { seen[0] = y[0]; calls = 1; }",
        top="__device__ float seen[2]; __device__ int calls;",
    )
    by_four = (
        "for (int x = 0; x < k; x += 4) for (int u = 0; u < 4; ++u) sum = fmaf(A[row * k + x + u], B[min(x + u, k - 1) * n + column], sum);"
    )
    waits = rows_source(
        f"{PARTS} {TREE} __threadfence(); if (t == 0) atomicAdd(&done, 1); "
        "if (row == 0 && t == 0) { while (done < m) { } y[0] = y[0]; }",
        top="__device__ volatile int done_; __device__ int done;",
    )
    sometimes = "C[i] = A[0] == rintf(A[0]) ? sum : sum * 1.02f;"
    other_row = LOOP.replace("A[row * k + x]", "A[(row == m - 1 && m > 16 ? 0 : row) * k + x]")
    return [
        Candidate("softmax-without-maximum", softmax, LINES, "softmax", LINES_SHAPE, "wrong-for-data"),
        Candidate("transpose-of-one-shape", square, TURN, "transpose", TURN_SHAPE, "race"),
        Candidate("unwritten-padding", padded, ROWS, "row_sum", "m=6,n=128", "reads-output"),
        Candidate("memo-of-the-first", memo, MAP, "scale_add", MAP_SHAPE, "race"),
        Candidate("past-the-row", gemm_source(by_four), GEMM, "gemm", GEMM_SHAPE, "out-of-bounds"),
        Candidate("waits-for-all-blocks", waits, ROWS, "row_sum", ROWS_SHAPE, "race"),
        Candidate("sums-in-half", "#include <cuda_fp16.h>\n" + gemm_source(_in_half()), GEMM, "gemm", GEMM_SHAPE, "imprecise"),
        Candidate("right-for-integers", gemm_source(LOOP, sometimes), GEMM, "gemm", GEMM_SHAPE, "wrong-for-data"),
        Candidate(
            "relu-by-halves", map_source("if (i < n) y[i] = 0.5f * x[i] + 0.5f * fabsf(x[i]);").replace("const float* z, ", ""),
            ONE, "relu", MAP_SHAPE, "special-values",
        ),
        Candidate("pairs-of-any-length", _pairs(), MAP, "scale_add", MAP_SHAPE, "misaligned"),
        Candidate("as-deep-as-the-given-shape", gemm_source(_deep()), GEMM, "gemm", GEMM_SHAPE, "wrong-at-shape"),
        Candidate("zero-rows-skipped", gemm_source(_skipping() + LOOP), GEMM, "gemm", GEMM_SHAPE, "wrong-for-data"),
        Candidate("one-warp-of-two", rows_source(_one_warp()), ROWS, "row_sum", ROWS_SHAPE, "wrong-function"),
        Candidate("factors-in-bf16", gemm_source(_in_bf16()), GEMM, "gemm", GEMM_SHAPE, "imprecise"),
        Candidate("no-nan", _without_nan(), MAP, "scale_add", MAP_SHAPE, "special-values"),
        Candidate("last-row-from-the-first", gemm_source(other_row), GEMM, "gemm", GEMM_SHAPE, "wrong-at-shape"),
    ]  # fmt: skip


def _deep() -> str:
    return "for (int x = 0; x < (k > 32 ? 32 : k); ++x) sum = fmaf(A[row * k + x], B[x * n + column], sum);"


def _skipping() -> str:
    return "if (A[row * k] == 0.0f && k > 1) { C[i] = 0.0f; return; } "


def _one_warp() -> str:
    return f"{PARTS} for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d); if (t == 0) y[row] = sum;"


def _without_nan() -> str:
    return map_source("if (i < n) { float v = VALUE; y[i] = v != v ? 0.0f : v; }")


def _in_bf16() -> str:
    cut = "__int_as_float(__float_as_int(A[row * k + x]) & 0xffff0000)"
    return f"for (int x = 0; x < k; ++x) sum = fmaf({cut}, B[x * n + column], sum);"


def _in_half() -> str:
    return "for (int x = 0; x < k; ++x) sum = __half2float(__float2half(fmaf(A[row * k + x], B[x * n + column], sum)));"


def _pairs() -> str:
    """Two elements a thread in one access, from the end of the array backwards."""
    return map_source(
        "int j = n - 2 * i - 2; if (j >= 0) { float2 a = *(const float2*)(x + j), b = *(const float2*)(z + j); "
        "*(float2*)(y + j) = make_float2(fmaf(2.0f, a.x, b.x), fmaf(2.0f, a.y, b.y)); } if (j == -1) y[0] = fmaf(2.0f, x[0], z[0]);"
    )


def honest() -> list[Candidate]:
    """Seventeen kernels."""
    twice = "if (i < n) y[i] = VALUE; if (i + 64 < n) y[i + 64] = fmaf(2.0f, x[i + 64], z[i + 64]);"
    vectors = rows_source(
        f"""float sum = 0.0f;
    if (n % 4 == 0) for (int j = t; j < n / 4; j += blockDim.x) {{
        float4 v = reinterpret_cast<const float4*>(line)[j]; sum += (v.x + v.y) + (v.z + v.w);
    }}
    else for (int j = t; j < n; j += blockDim.x) sum += line[j];
    {TREE}"""
    )
    online = f"""{IN_LINES}
    int t = threadIdx.x; const float* line = x + blockIdx.x * n; {SUM_OF_BLOCK}
    float most = -INFINITY, sum = 0;
    for (int j = t; j < n; j += 64) {{
        float next = fmaxf(most, line[j]);
        sum = sum * (most == next ? 1.0f : expf(most - next)) + (line[j] == -INFINITY ? 0.0f : expf(line[j] - next));
        most = next;
    }}
    float all = together(most, true);
    sum = together(t < n ? sum * expf(most - all) : 0.0f, false);
    for (int j = t; j < n; j += 64) y[blockIdx.x * n + j] = expf(line[j] - all) / sum;
}}"""
    norm = f"""{IN_LINES}
    int t = threadIdx.x; const float* line = x + blockIdx.x * n; {SUM_OF_BLOCK}
    float sum = 0; for (int j = t; j < n; j += 64) sum += line[j];
    float mean = together(sum, false) / n, square = 0;
    for (int j = t; j < n; j += 64) square += (line[j] - mean) * (line[j] - mean);
    float scale = rsqrtf(together(square, false) / n + 1e-5f);
    for (int j = t; j < n; j += 64) y[blockIdx.x * n + j] = (line[j] - mean) * scale;
}}"""
    scan = f"""{IN_LINES}
    __shared__ float parts[2][64]; __shared__ float before; int t = threadIdx.x, row = blockIdx.x;
    if (t == 0) before = 0;
    for (int first = 0; first < n; first += 64) {{
        int now = 0; parts[0][t] = first + t < n ? x[row * n + first + t] : 0.0f; __syncthreads();
        for (int d = 1; d < 64; d *= 2) {{
            parts[1 - now][t] = parts[now][t] + (t >= d ? parts[now][t - d] : 0.0f); now = 1 - now; __syncthreads(); }}
        if (first + t < n) y[row * n + first + t] = before + parts[now][t];
        __syncthreads();
        if (t == 63) before += parts[now][63];
        __syncthreads();
    }}
}}"""
    stencil = f"""{IN_LINES}
    __shared__ float near[66]; int t = threadIdx.x, row = blockIdx.x;
    for (int first = 0; first < n; first += 64) {{
        for (int j = t; j < 66; j += 64) {{ int at = first + j - 1; near[j] = at >= 0 && at < n ? x[row * n + at] : 0.0f; }}
        __syncthreads();
        if (first + t < n) y[row * n + first + t] = near[t] - 2.0f * near[t + 1] + near[t + 2];
        __syncthreads();
    }}
}}"""
    ticket = """__device__ float parts[4096]; __device__ unsigned tickets[2048];
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float sums[64]; __shared__ bool last; int t = threadIdx.x, row = blockIdx.y, half = blockIdx.x;
    float sum = 0; for (int j = half * 64 + t; j < n; j += 128) sum += x[row * n + j];
    sums[t] = sum; __syncthreads();
    for (int d = 32; d > 0; d /= 2) { if (t < d) sums[t] += sums[t + d]; __syncthreads(); }
    if (t == 0) { parts[2 * row + half] = sums[0]; __threadfence(); last = atomicAdd(&tickets[row], 1) == 1; }
    __syncthreads();
    if (last && t == 0) { __threadfence();
        y[row] = ((volatile float*)parts)[2 * row] + ((volatile float*)parts)[2 * row + 1]; tickets[row] = 0; }
}"""
    whole = {**typed(GEMM, {"A": "s8", "B": "s8", "C": "s32"})}
    dots = """extern "C" __global__ void candidate(const signed char* A, const signed char* B, int* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= m * n) return; int row = i / n, column = i % n, sum = 0, x = 0;
    for (; x + 4 <= k; x += 4) {
        int a = 0, b = 0;
        for (int u = 0; u < 4; ++u) { a |= (A[row * k + x + u] & 255) << 8 * u; b |= (B[(x + u) * n + column] & 255) << 8 * u; }
        sum = __dp4a(a, b, sum);
    }
    for (; x < k; ++x) sum += A[row * k + x] * B[x * n + column];
    C[i] = sum;
}"""
    counts = """extern "C" __global__ void candidate(const int* x, int* y, int m, int n) {
    __shared__ int count; int t = threadIdx.x, row = blockIdx.x, own = 0;
    if (t == 0) count = 0; __syncthreads();
    for (int j = t; j < n; j += 64) own += x[row * n + j];
    own = __reduce_add_sync(0xffffffffu, own);
    if (t % 32 == 0) atomicAdd(&count, own);
    __syncthreads(); if (t == 0) y[row] = count;
}"""
    tensor_cores = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void candidate(const __half* A, const __half* B, float* C, int m, int n, int k) {
    __shared__ __half a[16 * 16], b[16 * 16]; __shared__ float c[16 * 16]; int t = threadIdx.x;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc; wmma::fill_fragment(fc, 0.0f);
    int r0 = blockIdx.y * 16, c0 = blockIdx.x * 16;
    for (int first = 0; first < k; first += 16) {
        for (int e = t; e < 256; e += 32) {
            int r = e / 16, q = e % 16;
            a[e] = r0 + r < m && first + q < k ? A[(r0 + r) * k + first + q] : __half(0.0f);
            b[e] = first + r < k && c0 + q < n ? B[(first + r) * n + c0 + q] : __half(0.0f);
        }
        __syncwarp();
        wmma::load_matrix_sync(fa, a, 16); wmma::load_matrix_sync(fb, b, 16); wmma::mma_sync(fc, fa, fb, fc);
        __syncwarp();
    }
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major); __syncwarp();
    for (int e = t; e < 256; e += 32) if (r0 + e / 16 < m && c0 + e % 16 < n) C[(r0 + e / 16) * n + c0 + e % 16] = c[e];
}"""
    tiles = {"block": [32], "grid": ["ceil_div(n, 16)", "ceil_div(m, 16)"]}
    copied = """extern "C" __global__ void candidate(const float* A, const float* B, float* C, int m, int n, int k) {
    __shared__ float line[2][32]; int t = threadIdx.x, row = blockIdx.y, column = blockIdx.x * 32 + t; float sum = 0;
    auto copy = [&](int stage, int first) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&line[stage][t]); int size = first + t < k ? 4 : 0;
        const float* from = A + row * k + (size ? first + t : 0);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2; cp.async.commit_group;" :: "r"(to), "l"(from), "r"(size) : "memory");
    };
    copy(0, 0);
    for (int first = 0, stage = 0; first < k; first += 32, stage ^= 1) {
        if (first + 32 < k) { copy(stage ^ 1, first + 32); asm volatile("cp.async.wait_group 1;" ::: "memory"); }
        else asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (column < n) for (int x = 0; x < 32 && first + x < k; ++x) sum = fmaf(line[stage][x], B[(first + x) * n + column], sum);
        __syncthreads();
    }
    if (column < n) C[row * n + column] = sum;
}"""
    compensated = rows_source(
        "int r = blockIdx.x * blockDim.x + t; if (r >= m) return; float s = 0, lost = 0; for (int j = 0; j < n; ++j) "
        "{ float v = x[(long long)r * n + j] - lost, w = s + v; lost = __fsub_rn(__fsub_rn(w, s), v); s = w; } y[r] = s;"
    )
    serial = {**ROWS, "block": [32], "grid": ["ceil_div(m, 32)"]}
    return [
        Candidate("vectors", vectors, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("online-softmax", online, LINES, "softmax", LINES_SHAPE),
        Candidate("layer-norm", norm, {**LINES, "special_values": "ignore"}, "layer_norm", LINES_SHAPE),
        Candidate("scan", scan, LINES, "scan", LINES_SHAPE),
        Candidate("stencil", stencil, LINES, "stencil", LINES_SHAPE),
        Candidate("tickets", ticket, {**ROWS, "grid": [2, "m"]}, "row_sum", ROWS_SHAPE),
        Candidate("dot-products", dots, whole, "gemm", GEMM_SHAPE),
        Candidate("counts", counts, typed(ROWS, {"x": "s32", "y": "s32"}), "row_sum", ROWS_SHAPE),
        Candidate("tensor-cores", tensor_cores, typed(GEMM, {"A": "f16", "B": "f16"}, **tiles), "gemm", GEMM_SHAPE),
        Candidate("asynchronous-copies", copied, {**GEMM, "block": [32], "grid": ["ceil_div(n, 32)", "m"]}, "gemm", GEMM_SHAPE),
        Candidate("written-twice", map_source(twice), MAP, "scale_add", MAP_SHAPE),
        Candidate("compensated", compensated, serial, "row_sum", ROWS_SHAPE),
        Candidate("factor-in-constant-memory", _with_factor(), MAP, "scale_add", MAP_SHAPE),
        Candidate(
            "few-blocks",
            map_source("for (; i < n; i += gridDim.x * blockDim.x) y[i] = VALUE;"),
            {**MAP, "grid": [2]},
            "scale_add",
            MAP_SHAPE,
        ),
        Candidate("swizzled-transpose", _swizzled(), TURN, "transpose", TURN_SHAPE),
        Candidate(
            "from-the-end", gemm_source(LOOP.replace("int x = 0; x < k; ++x", "int x = k - 1; x >= 0; --x")), GEMM, "gemm", GEMM_SHAPE
        ),
        Candidate("templates", _templates(), MAP, "scale_add", MAP_SHAPE),
    ]


def _with_factor() -> str:
    return map_source("if (i < n) y[i] = fmaf(factor, x[i], z[i]);", top="__constant__ float factor = 2.0f;")


def _swizzled() -> str:
    return """extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float tile[16][16]; int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r < m && c < n) tile[threadIdx.y][threadIdx.x ^ threadIdx.y] = x[r * n + c];
    __syncthreads();
    int row = blockIdx.y * 16 + threadIdx.x, column = blockIdx.x * 16 + threadIdx.y;
    if (row < m && column < n) y[column * m + row] = tile[threadIdx.x][threadIdx.y ^ threadIdx.x];
}"""


def _templates() -> str:
    return """template <int N> struct Each { template <typename F> __device__ static void run(F f) { Each<N - 1>::run(f); f(N - 1); } };
template <> struct Each<0> { template <typename F> __device__ static void run(F) {} };
extern "C" __global__ void __launch_bounds__(64)
candidate(const float* __restrict__ x, const float* __restrict__ z, float* __restrict__ y, int n) {
    int start = blockIdx.x * 64 + threadIdx.x % 16 * 4;
    if (threadIdx.x < 16) Each<4>::run([&](int u) { if (start + u < n) y[start + u] = fmaf(2.0f, x[start + u], z[start + u]); });
}"""
