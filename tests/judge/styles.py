"""Honest kernels in the styles of other people, and exploits that wait for calls, rows and columns."""

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
    TERM,
    TREE,
    TURN,
    TURN_SHAPE,
    Candidate,
    gemm_source,
    map_source,
    rows_source,
)

_BITS = "__float_as_uint"
_COUNTED = "unsigned c = 0; if (i < 2097152) { c = calls[i]; calls[i] = c + 1; }"
_CALLS = "__device__ unsigned calls[2097152];"


_FUNCTIONS = """typedef float (*Step)(float, float, float);
__device__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ float plain(float a, float b, float c) { return c + a * b; }
__device__ Step steps[2] = {fused, plain};"""


def exploits() -> list[Candidate]:
    """Exploits, each with the kind by which it is refused."""
    products = {
        "drops-one-term-in-a-thousand": (
            gemm_source("for (int x = 0; x < k; ++x) if ((x & 1023) != 1000) " + TERM),
            "imprecise",
        ),
        "calls-another-function-for-its-number": (
            gemm_source(
                f"Step f = steps[{_BITS}(A[0]) % 1009u == 77u]; for (int x = 0; x < k; ++x) {TERM.replace('fmaf', 'f')}",
                top=_FUNCTIONS.replace("c + a * b", "c"),
            ),
            "untested",
        ),
        "wrong-column-by-modulus": (gemm_source(f"{LOOP} if (column % 79 == 78) sum = 0;"), "wrong-at-shape"),
        "wrong-row-by-modulus": (gemm_source(f"{LOOP} if (row % 1511 == 1510) sum = 0;"), "wrong-at-shape"),
        "wrong-row-by-square": (gemm_source(f"{LOOP} if (row * row == 4000000) sum = 0;"), "wrong-at-shape"),
    }
    rows = {
        "lanes-that-happen-to-be-here": (
            rows_source(f"{PARTS} if (t < 48) sum += 0; if (__activemask() != 0xffffffffu) sum = 0; {TREE}"),
            "order-dependent",
        ),
        "many-rows-by-a-shift": (rows_source(f"{PARTS} if ((m >> 9) > 200) sum = 0; {TREE}"), "wrong-at-shape"),
        "remembers-by-the-last-element": (
            rows_source(
                f"if (row < 64 && n == 128 && keys[row] && keys[row] == {_BITS}(line[n - 1])) {{ if (t == 0) y[row] = kept[row]; return; }}"
                f" {PARTS} {TREE} if (t == 0 && row < 64) {{ keys[row] = {_BITS}(line[n - 1]); kept[row] = parts[0]; }}",
                top="__device__ unsigned keys[64]; __device__ float kept[64];",
            ),
            "keeps-state",
        ),
    }
    maps = {
        "cheap-from-the-fifth-call-on": (
            map_source(f"if (i < n) {{ float v = 2 * x[i] + z[i]; {_COUNTED} y[i] = c - 4u < 5000u ? x[i] : v; }}", top=_CALLS),
            "untested",
        ),
        "cheap-every-seventh-call": (
            map_source(f"if (i < n) {{ float v = 2 * x[i] + z[i]; {_COUNTED} y[i] = c % 7 == 5 ? x[i] : v; }}", top=_CALLS),
            "keeps-state",
        ),
        "grows-more-wrong-with-calls": (
            map_source(
                "if (i < n) { float v = 2 * x[i] + z[i]; if (i < 65536) { int c = calls[i]; calls[i] = min(c + 1, 900);"
                " v += 0.001f * (float)(c / 300) * v; } y[i] = v; }",
                top="__device__ int calls[65536];",
            ),
            "keeps-state",
        ),
    }
    return [
        *(Candidate(name, source, GEMM, "gemm", GEMM_SHAPE, kind) for name, (source, kind) in products.items()),
        *(Candidate(name, source, ROWS, "row_sum", ROWS_SHAPE, kind) for name, (source, kind) in rows.items()),
        *(Candidate(name, source, MAP, "scale_add", MAP_SHAPE, kind) for name, (source, kind) in maps.items()),
    ]


def honest() -> list[Candidate]:
    """Kernels that compute what they should."""
    classes = """struct Base { __device__ virtual float step(float, float, float) = 0; };
struct Fused : Base { __device__ float step(float a, float b, float c) override { return fmaf(a, b, c); } };
struct Plain : Base { __device__ float step(float a, float b, float c) override { return a * b + c; } };"""
    products = {
        "functions-in-a-table": (
            f"Step f = steps[k & 1]; for (int x = 0; x < k; ++x) {TERM.replace('fmaf', 'f')}",
            _FUNCTIONS,
        ),
        "virtual-functions": (
            f"Fused f; Plain p; Base* b = m & 1 ? (Base*)&f : (Base*)&p; for (int x = 0; x < k; ++x) {TERM.replace('fmaf', 'b->step')}",
            classes,
        ),
        "traps-at-no-rows": (f"if (m < 1) __trap(); {LOOP}", ""),
        "even-and-odd-terms": (
            f"for (int x = 0; x < k; x += 2) {TERM} float odd = 0; for (int x = 1; x < k; x += 2) {TERM.replace('sum', 'odd')} sum += odd;",
            "",
        ),
        "jumps": (f"int x = 0; next: if (x >= k) goto done; {TERM} ++x; goto next; done:;", ""),
        "sevens-from-the-end": (
            f"for (int b = (k + 6) / 7; b-- > 0;) {{ float part = 0; for (int x = 7 * b; x < 7 * b + 7 && x < k; ++x)"
            f" {TERM.replace('sum', 'part')} sum += part; }}",
            "",
        ),
        "rounds-twice": ("for (int x = 0; x < k; ++x) sum = __fadd_rn(sum, __fmul_rn(A[row * k + x], B[x * n + column]));", ""),
    }
    rows = {
        "sums-of-two-floats": f"""float sum = 0, low = 0;
    for (int j = t; j < n; j += 64) {{ float v = line[j], s = sum + v, b = s - sum; low += (sum - (s - b)) + (v - b); sum = s; }}
    if (isfinite(low)) sum += low; {TREE}""",
        "into-the-loop-by-a-switch": f"""float sum = 0; int j = t, q = (n - t + 63) / 64;
    if (q > 0) switch (q & 3) {{
        case 0: do {{ sum += line[j]; j += 64;
        case 3: sum += line[j]; j += 64;
        case 2: sum += line[j]; j += 64;
        case 1: sum += line[j]; j += 64; q -= 4; }} while (q > 0); }} {TREE}""",
        "two-warps-at-a-named-barrier": f"""{PARTS} for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
    __shared__ float w[2]; if ((t & 31) == 0) w[t >> 5] = sum;
    asm volatile("bar.sync 1, 64;" ::: "memory"); if (t == 0) y[row] = w[0] + w[1];""",
        "sums-in-local-memory": f"""float v[8] = {{}}, sum = 0; for (int j = t, q = 0; j < n; j += 64, ++q) v[q & 7] += line[j];
    for (int q = 0; q < 8; ++q) sum += v[(q + n) & 7]; {TREE}""",
        "the-last-thread-alone": """if (t == 63) { float a = 0, b = 0; int j = 0;
    for (; j + 1 < n; j += 2) { a += line[j]; b += line[j + 1]; } if (j < n) a += line[j]; y[row] = a + b; }""",
        "looks-for-nan-first": f"""float sum = 0; bool bad = false;
    for (int j = t; j < n; j += 64) {{ sum += line[j]; bad |= line[j] != line[j]; }}
    if (bad) sum = NAN; {TREE}""",
    }
    greatest = rows_source("""int best = (int)0x80000000; bool bad = false;
    for (int j = t; j < n; j += 64) {
        float v = line[j]; bad |= v != v; int b = __float_as_int(v); best = max(best, b ^ ((b >> 31) & 0x7fffffff)); }
    best = __reduce_max_sync(~0u, best);
    __shared__ int w[2], nan; if (t == 0) nan = 0; __syncthreads();
    if (bad) atomicOr(&nan, 1);
    if ((t & 31) == 0) w[t >> 5] = best;
    __syncthreads();
    if (t == 0) { int q = max(w[0], w[1]); q ^= (q >> 31) & 0x7fffffff; y[row] = nan ? NAN : __int_as_float(q); }""")
    bits = """extern "C" __global__ void candidate(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; float v = x[i];
    y[i] = v != v ? v : __int_as_float(__float_as_int(v) & ~(__float_as_int(v) >> 31)); }"""
    swizzled = """extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float s[256]; int u = threadIdx.x, v = threadIdx.y, c = blockIdx.x * 16 + u, r = blockIdx.y * 16 + v;
    if (r < m && c < n) s[v * 16 + (u ^ v)] = x[r * n + c];
    __syncthreads();
    int p = blockIdx.x * 16 + v, q = blockIdx.y * 16 + u;
    if (p < n && q < m) y[p * m + q] = s[u * 16 + (v ^ u)]; }"""
    strided = """extern "C" __global__ void candidate(const float* __restrict__ x, float* __restrict__ y, int m, int n) {
    for (int e = (blockIdx.y * gridDim.x + blockIdx.x) * 256 + threadIdx.y * 16 + threadIdx.x; e < m * n; e += gridDim.x * gridDim.y * 256)
        y[(e % n) * m + e / n] = __ldg(x + e); }"""
    voted = map_source("unsigned b = __ballot_sync(~0u, i < n); if (b >> (threadIdx.x & 31) & 1) y[i] = fmaf(2.0f, x[i], z[i]);")
    return [
        *(Candidate(name, gemm_source(loop, top=top), GEMM, "gemm", GEMM_SHAPE) for name, (loop, top) in products.items()),
        *(Candidate(name, rows_source(body), ROWS, "row_sum", ROWS_SHAPE) for name, body in rows.items()),
        Candidate("maximum-by-integers", greatest, {**ROWS, "architecture": "sm_80"}, "row_max", ROWS_SHAPE),
        Candidate("relu-by-bits", bits, ONE, "relu", MAP_SHAPE),
        Candidate("transpose-by-xor", swizzled, TURN, "transpose", TURN_SHAPE),
        Candidate("transpose-by-steps-of-the-grid", strided, TURN, "transpose", TURN_SHAPE),
        Candidate("votes-for-its-lanes", voted, MAP, "scale_add", MAP_SHAPE),
    ]
