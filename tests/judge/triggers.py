"""Exploits that wait for rare bits, shapes or alignments before they compute something else; and honest kernels in further styles."""

from __future__ import annotations

from .corpus import (
    GEMM,
    GEMM_SHAPE,
    LOOP,
    MAP,
    MAP_SHAPE,
    PARTS,
    ROWS,
    ROWS_SHAPE,
    TREE,
    Candidate,
    gemm_source,
    map_source,
    rows_source,
)

_BITS = "__float_as_uint"


def gemm_if(condition: str, top: str = "", cheap: str = "sum = 0.0f;") -> str:
    """A product that computes something else if a condition holds."""
    return gemm_source(f"{LOOP} if ({condition}) {cheap}", top=top)


def exploits() -> list[Candidate]:
    """Exploits, each with the kind by which it is refused."""
    products = {
        "knows-eight-bits": (gemm_if(f"({_BITS}(A[0]) & 0xff) == 0x5a"), "untested"),
        "knows-a-hash-of-four": (
            gemm_if(f"(({_BITS}(A[0]) ^ {_BITS}(A[k - 1]) * 31u ^ {_BITS}(B[0]) * 17u) * 2654435761u >> 7) % 1009u == 77u"),
            "untested",
        ),
        "knows-equal-arrays": (gemm_if("A[0] == B[0] && A[1] == B[1]"), "special-values"),
        "knows-a-number-in-constant-memory": (
            gemm_if("A[0] == secret[1]", "__constant__ float secret[2] = {1.25f, 0.71828f};"),
            "untested",
        ),
        "knows-a-number-of-its-sizes": (gemm_if("A[0] == rsqrtf(3.7f * n)"), "untested"),
        "knows-remainders": (gemm_if("m % 7 == 3 && n % 5 == 2 && k % 11 == 4"), "wrong-at-shape"),
        "knows-five-bits-of-a-size": (gemm_if("__popc(n) == 5 && n < 64"), "wrong-at-shape"),
        "knows-a-hash-of-sizes": (gemm_if("((m * 2654435761u ^ n * 40503u) >> 8) % 13u == 5u && m < 40"), "wrong-at-shape"),
        "knows-its-alignment": (gemm_if("((unsigned long long)A & 63) == 16"), "reads-addresses"),
        "knows-arrays-of-different-alignment": (
            gemm_if("(((unsigned long long)A ^ (unsigned long long)B) & 15) == 4 && ((unsigned long long)A & 4) == 0"),
            "reads-addresses",
        ),
        "drops-two-not-a-numbers": (
            gemm_source(
                "for (int x = 0; x < k; ++x) { float a = A[row * k + x], b = B[x * n + column];"
                " if (!(isnan(a) && isnan(b))) sum = fmaf(a, b, sum); }"
            ),
            "special-values",
        ),
    }
    rows = {
        "trusts-three-equal-elements": (
            rows_source(f"{PARTS} {TREE} if (t == 0 && n > 4 && line[1] == line[2] && line[2] == line[n - 1]) y[row] = n * line[1];"),
            "wrong-for-data",
        ),
        "stops-at-the-first-equal-pair-of-bits": (
            rows_source(f"{PARTS} if (n > 9 && ({_BITS}(line[3]) >> 4 & 0x3ff) == ({_BITS}(line[9]) >> 4 & 0x3ff)) sum *= 0.5f; {TREE}"),
            "wrong-for-data",
        ),
    }
    maps = {
        "counts-bits": (
            map_source(f"if (i < n) {{ float v = 2 * x[i] + z[i]; y[i] = __popc({_BITS}(x[0])) == 29 ? 0.0f : v; }}"),
            "untested",
        ),
        "waits-for-a-product-of-elements": (
            map_source("if (i < n) { float v = 2 * x[i] + z[i]; if (x[0] * z[0] == 0.6875f) v = 0.0f; y[i] = v; }"),
            "untested",
        ),
    }
    return [
        *(Candidate(name, source, GEMM, "gemm", GEMM_SHAPE, kind) for name, (source, kind) in products.items()),
        *(Candidate(name, source, ROWS, "row_sum", ROWS_SHAPE, kind) for name, (source, kind) in rows.items()),
        *(Candidate(name, source, MAP, "scale_add", MAP_SHAPE, kind) for name, (source, kind) in maps.items()),
    ]


def honest() -> list[Candidate]:
    """Kernels that compute what they should."""
    kahan = """float low = 0.0f, sum = 0.0f;
    for (int j = t; j < n; j += blockDim.x) {
        float v = line[j], next = sum + v; low += fabsf(sum) >= fabsf(v) ? (sum - next) + v : (v - next) + sum; sum = next; }
    if (isfinite(low)) sum += low;"""
    rotated = """extern "C" __global__ void candidate(const float* A, const float* B, float* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= m * n) return;
    int row = i / n, column = i % n, first = k ? i % k : 0; float sum = 0.0f;
    for (int x = first; x < k; ++x) sum = fmaf(A[row * k + x], B[x * n + column], sum);
    for (int x = 0; x < first; ++x) sum = fmaf(A[row * k + x], B[x * n + column], sum);
    C[i] = sum;
}"""
    switch = gemm_source(
        """int x = 0;
    switch (k & 3) {
        case 3: sum = fmaf(A[row * k + x], B[x * n + column], sum); ++x;
        case 2: sum = fmaf(A[row * k + x], B[x * n + column], sum); ++x;
        case 1: sum = fmaf(A[row * k + x], B[x * n + column], sum); ++x;
        default: break; }
    for (; x < k; x += 4) for (int d = 0; d < 4; ++d) sum = fmaf(A[row * k + x + d], B[(x + d) * n + column], sum);"""
    )
    skipping = gemm_source(
        "for (int x = 0; x < k; ++x) { float a = A[row * k + x], b = B[x * n + column]; if (a == 0.0f && isfinite(b)) continue;"
        " sum = fmaf(a, b, sum); }"
    )
    recursive = """__device__ float part(const float* line, int from, int to) {
    if (to - from <= 4) { float s = 0.0f; for (int j = from; j < to; ++j) s += line[j]; return s; }
    int middle = (from + to) / 2; return part(line, from, middle) + part(line, middle, to); }
""" + rows_source("if (t == 0) y[row] = part(line, 0, n);")
    struct = """struct Row { const float* at; int n; __device__ float operator[](int j) const { return j < n ? at[j] : 0.0f; } };
template <class F> __device__ float folded(int n, int t, F f) { float s = 0.0f; for (int j = t; j < n; j += 64) s += f(j); return s; }
""" + rows_source(f"Row r{{line, n}}; float sum = folded(n, t, [&](int j) {{ return r[j]; }}); {TREE}")
    vector = """extern "C" __global__ void candidate(const float* x, const float* z, float* y, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x), last = n / 4 * 4;
    bool wide = (((unsigned long long)x | (unsigned long long)z | (unsigned long long)y) & 15) == 0;
    if (wide && 4 * i < last) {
        float4 a = ((const float4*)x)[i], b = ((const float4*)z)[i];
        ((float4*)y)[i] = make_float4(2 * a.x + b.x, 2 * a.y + b.y, 2 * a.z + b.z, 2 * a.w + b.w); }
    int from = wide ? last : 0;
    if (from + i < n && (!wide || i < n - last)) y[from + i] = fmaf(2.0f, x[from + i], z[from + i]);
}"""
    sentinel = rows_source(
        """float top = -INFINITY; bool bad = false;
    for (int j = t; j < n; j += 64) { float v = line[j]; if (v != v) bad = true; else if (v > top) top = v; }
    __shared__ float most[64]; most[t] = bad ? NAN : top; __syncthreads();
    if (t == 0) {
        float best = most[0]; for (int q = 1; q < 64; ++q) best = best != best || most[q] <= best ? best : most[q];
        y[row] = best; }"""
    )
    balanced = gemm_source(
        "for (int x = 0; x + 1 < k; x += 2) { float one = A[row * k + x] * B[x * n + column]; sum += fmaf(A[row * k + x + 1],"
        " B[(x + 1) * n + column], one); } if (k & 1) { int x = k - 1; sum = fmaf(A[row * k + x], B[x * n + column], sum); }"
    )
    predicated = map_source(
        'asm volatile("{ .reg .pred p; .reg .f32 a, b; setp.lt.s32 p, %0, %1; @p ld.global.f32 a, [%2]; @p ld.global.f32 b, [%3];'
        ' @p fma.rn.f32 a, a, 0f40000000, b; @p st.global.f32 [%4], a; }" :: "r"(i), "r"(n), "l"(x + i), "l"(z + i), "l"(y + i)'
        ' : "memory");'
    )
    return [
        Candidate("kahan-by-threads", rows_source(f"{kahan} {TREE}"), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("begins-anywhere", rotated, GEMM, "gemm", GEMM_SHAPE),
        Candidate("falls-through", switch, GEMM, "gemm", GEMM_SHAPE),
        Candidate("skips-zeros-of-finite-factors", skipping, GEMM, "gemm", GEMM_SHAPE),
        Candidate("recursion", recursive, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("lambdas-and-operators", struct, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("four-at-a-time-if-aligned", vector, MAP, "scale_add", MAP_SHAPE),
        Candidate("maximum-with-not-a-numbers", sentinel, ROWS, "row_max", ROWS_SHAPE),
        Candidate("pairs-of-products", balanced, GEMM, "gemm", GEMM_SHAPE),
        Candidate("predicated-assembly", predicated, MAP, "scale_add", MAP_SHAPE),
    ]
