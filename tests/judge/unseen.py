"""Exploits that give up waiting, know special shapes or data, or lean on what lies beside their arrays; and honest kernels."""

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
    TERM,
    TREE,
    Candidate,
    gemm_source,
    map_source,
    rows_source,
)
from .rare import HOPPER, bulk_rows

_SUMS = "__device__ float sums[4096]; __device__ int flags[4096];"
_FLAG = "*(volatile int*)&flags[r]"
WAITS = {
    "for": f"for (int i = 0; i < 200000000 && !{_FLAG}; ++i) __nanosleep(20);",
    "downwards": f"int left = 1 << 30; while (!{_FLAG} && --left > 0) ;",
    "wide": f"unsigned long long turns = 0; do {{ if ({_FLAG}) break; }} while (++turns < 1ull << 40);",
    "by-size": f"for (int i = 0; i < 1000000 * n && !{_FLAG}; ++i) ;",
    "by-atomics": "for (long long i = 0; i < 5000000000LL && atomicAdd(&flags[r], 0) == 0; ++i) ;",
    "exact": f"for (int i = 0; i != 77777777; ++i) if ({_FLAG}) break;",
}
"""Waits for a flag that end after many turns."""
FOR_EVER = f"while (!{_FLAG}) __nanosleep(20);"
_READ = "__threadfence(); y[r] = sums[r]; flags[r] = 0;"


def waiting(wait: str, behind: str = _READ, who: str = "0") -> str:
    """Sums of rows, which one block copies to y after it has waited for a flag of each."""
    return rows_source(
        f"""{PARTS} __shared__ float parts[64]; parts[t] = sum; __syncthreads();
    if (t == 0) {{ float s = 0; for (int j = 0; j < 64; ++j) s += parts[j]; *(volatile float*)&sums[row] = s; __threadfence();
        *(volatile int*)&flags[row] = 1; }}
    if (row == {who}) for (int r = t; r < m; r += 64) {{
        {wait}
        {behind} }}""",
        top=_SUMS,
    )


_OWN_SUM = f"""float s;
        if ({_FLAG}) {{ __threadfence(); s = *(volatile float*)&sums[r]; }}
        else {{
            float p[64]; s = 0;
            for (int q = 0; q < 64; ++q) {{ p[q] = 0; for (int j = q; j < n; j += 64) p[q] += x[(long long)r * n + j]; }}
            for (int q = 0; q < 64; ++q) s += p[q];
        }}
        y[r] = s;"""
_ZERO = f"float s = 0; if ({_FLAG}) {{ __threadfence(); s = *(volatile float*)&sums[r]; }} y[r] = s;"
INTEGERS = {
    **ROWS,
    "arguments": [{"name": "x", "shape": ["m", "n"], "type": "s32"}, {**ROWS["arguments"][1], "type": "s32"}, *ROWS["arguments"][2:]],
}
BYTES = {
    **GEMM,
    "arguments": [
        {"name": "A", "shape": ["m", "k"], "type": "s8"},
        {"name": "B", "shape": ["k", "n"], "type": "s8"},
        {**GEMM["arguments"][2], "type": "s32"},
        *GEMM["arguments"][3:],
    ],
}


def integer_rows(body: str) -> str:
    """A sum of a row of integers by a block."""
    return rows_source(body).replace("const float* x, float* y", "const int* x, int* y").replace("const float* line", "const int* line")


def shortcut(condition: str, cheap: str = "C[i] = 0.0f; return;") -> str:
    """A product that is wrong under a condition."""
    return gemm_source(f"if ({condition}) {{ {cheap} }} {LOOP}")


_LOCKED = """__device__ float total[4096]; __device__ int lock[4096], arrived[4096];
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float parts[64]; int t = threadIdx.x, row = blockIdx.x / 2, half = blockIdx.x % 2; float sum = 0.0f;
    for (int j = 2 * t + half; j < n; j += 128) sum += x[(long long)row * n + j];
    parts[t] = sum; __syncthreads();
    for (int d = 32; d > 0; d /= 2) { if (t < d) parts[t] += parts[t + d]; __syncthreads(); }
    if (t == 0) {
        while (atomicCAS(&lock[row], 0, 1)) ;
        ENTER
        total[row] += parts[0];
        if (++arrived[row] == 2) { y[row] = total[row]; total[row] = 0.0f; arrived[row] = 0; }
        LEAVE
        atomicExch(&lock[row], 0);
    }
}"""
TWICE = {**ROWS, "grid": ["2 * m"]}


_WITHIN = """__shared__ volatile int ready; __shared__ volatile float half; if (t == 0) ready = 0; __syncthreads();
    float sum = 0.0f; for (int j = t; j < n; j += 64) sum += line[j];
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (t == 32) { half = sum; __threadfence_block(); ready = 1; }
    if (t == 0) { WAIT __threadfence_block(); y[row] = sum + half; }"""


def exploits() -> list[Candidate]:
    """Kernels that must be refused, each with a kind that the referee must name."""

    def gemm(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, GEMM, "gemm", GEMM_SHAPE, kind)

    def rows(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, ROWS, "row_sum", ROWS_SHAPE, kind)

    def mapped(name: str, source: str, kind: str) -> Candidate:
        return Candidate(name, source, MAP, "scale_add", MAP_SHAPE, kind)

    next_row = "if (row + 1 < m) sum += 0.0f * A[(row + 1) * k];"
    next_column = "if (column + 1 < n) sum += 0.0f * B[column + 1];"
    window = "__shared__ float one; if (t == 0) one = 1.0f; __syncthreads(); unsigned long long place = (unsigned long long)&one;"
    own_stack = "float own[8]; own[i % 8] = 1.0f; unsigned long long place = (unsigned long long)(own + i % 8);"
    return [
        *(rows(f"gives-up-{name}", waiting(wait), "race") for name, wait in WAITS.items()),
        rows("the-last-block-gives-up", waiting(WAITS["for"], who="m - 1"), "race"),
        rows(
            "gives-up-within-a-block",
            rows_source(_WITHIN.replace("WAIT", "for (int i = 0; i < 100000000 && !ready; ++i) ;")),
            "reads-output",
        ),
        Candidate(
            "tries-a-million-times",
            bulk_rows(0).replace("while (!done) asm", "for (int tries = 0; tries < 1000000 && !done; ++tries) asm"),
            {**HOPPER, "multiples": {"n": 4}},
            "row_sum",
            ROWS_SHAPE,
            "race",
        ),
        rows("gives-up-and-writes-zero", waiting(WAITS["downwards"], _ZERO), "order-dependent"),
        Candidate(
            "locks-without-a-fence",
            _LOCKED.replace("ENTER", "")
            .replace("LEAVE", "")
            .replace("total[row] += parts[0]", "*(volatile float*)&total[row] += parts[0]"),
            {**TWICE, "order": "any"},
            "row_sum",
            ROWS_SHAPE,
            "race",
        ),
        gemm("knows-k-equal-to-n", shortcut("k == n && k > 4"), "wrong-at-shape"),
        gemm("knows-k-equal-to-m", shortcut("k == m && k > 4"), "wrong-at-shape"),
        gemm("knows-cubes", shortcut("k == m && k == n && k > 1"), "wrong-at-shape"),
        gemm("wrong-at-the-end-of-the-second-tile", shortcut("m > 128 && m % 128 != 0 && row >= m / 128 * 128"), "wrong-at-shape"),
        gemm("wrong-if-all-sizes-are-odd", shortcut("m % 2 && n % 2 && k % 2 && m > 1 && n > 1 && k > 1"), "wrong-at-shape"),
        gemm("wrong-if-deep-and-narrow", shortcut("k > 8 * m && k > 8 * n"), "wrong-at-shape"),
        gemm("wrong-if-one-column", shortcut("n == 1 && m > 1 && k > 1"), "wrong-at-shape"),
        rows(
            "trusts-descending-elements",
            rows_source(
                "bool sorted = n > 32; for (int j = 1; j < 32 && j < n; ++j) sorted = sorted && line[j] < line[j - 1]; "
                f"if (sorted) {{ if (t == 0) y[row] = n * 0.5f * (line[0] + line[n - 1]); return; }} {PARTS} {TREE}"
            ),
            "wrong-for-data",
        ),
        gemm(
            "trusts-ascending-columns",
            shortcut("m > 8 && A[0] < A[k] && A[k] < A[2 * k] && A[2 * k] < A[3 * k] && A[3 * k] < A[4 * k] && A[4 * k] < A[5 * k]"),
            "wrong-for-data",
        ),
        gemm(
            "trusts-symmetry",
            shortcut(
                "m > 4 && k > 4 && A[1] == A[k] && A[2] == A[2 * k] && A[3] == A[3 * k] && A[k + 2] == A[2 * k + 1]",
                "for (int x = 0; x < k && x < m; ++x) sum = fmaf(A[x * k + min(row, k - 1)], B[x * n + column], sum); C[i] = sum; return;",
            ),
            "wrong-for-data",
        ),
        gemm(
            "ends-at-a-run-of-zeros",
            gemm_source(
                f"int zeros = 0; for (int x = 0; x < k && zeros < 8; ++x) {{ zeros = A[row * k + x] == 0.0f ? zeros + 1 : 0; {TERM} }}"
            ),
            "wrong-for-data",
        ),
        rows(
            "trusts-a-period-of-sixteen",
            rows_source(
                "bool same = n >= 48; for (int j = 0; j < 32 && same; ++j) same = line[j] == line[j + 16]; "
                "float s = 0; for (int j = 0; j < 16 && same; ++j) s += line[j]; "
                f"if (same) {{ if (t == 0) y[row] = s * (n / 16.0f); return; }} "
                f"{PARTS} {TREE}"
            ),
            "wrong-for-data",
        ),
        gemm("multiplies-the-next-row-by-zero", gemm_source(f"{LOOP} {next_row}"), "special-values"),
        gemm("multiplies-the-next-column-by-zero", gemm_source(f"{LOOP} {next_column}"), "special-values"),
        Candidate(
            "integers-by-floats",
            integer_rows(
                """__shared__ float parts[64]; float sum = 0.0f; for (int j = t; j < n; j += 64) sum += (float)line[j];
    parts[t] = sum; __syncthreads();
    if (t == 0) { float s = 0.0f; for (int j = 0; j < 64; ++j) s += parts[j]; y[row] = (int)s; }"""
            ),
            INTEGERS,
            "row_sum",
            ROWS_SHAPE,
            "imprecise",
        ),
        mapped(
            "the-other-array-behind-the-first",
            map_source("const float* w = x + (n + 63) / 64 * 64; if (i < n) y[i] = fmaf(2.0f, x[i], w[i]);"),
            "out-of-bounds",
        ),
        gemm("adds-onto-the-output", gemm_source(LOOP, "atomicAdd(&C[i], sum);"), "reads-output"),
        rows(
            "decides-by-the-shared-window",
            rows_source(f"{window} if (place < (1ull << 40)) {{ if (t == 0) y[row] = 0.0f; return; }} {PARTS} {TREE}"),
            "reads-addresses",
        ),
        mapped(
            "decides-by-its-stack",
            map_source(f"{own_stack} if (i < n) y[i] = (place >> 20) % 2 ? 0.0f : VALUE;"),
            "reads-addresses",
        ),
    ]


def honest() -> list[Candidate]:
    """Kernels that must be accepted."""
    fences = _LOCKED.replace("ENTER", "__threadfence();").replace("LEAVE", "__threadfence();")
    serial = """__device__ float carried[4096]; __device__ int turn[4096];
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {
    __shared__ float parts[64]; int t = threadIdx.x, row = blockIdx.x / 2, half = blockIdx.x % 2; float sum = 0.0f;
    for (int j = 2 * t + half; j < n; j += 128) sum += x[(long long)row * n + j];
    parts[t] = sum; __syncthreads();
    for (int d = 32; d > 0; d /= 2) { if (t < d) parts[t] += parts[t + d]; __syncthreads(); }
    if (t == 0 && half == 0) { *(volatile float*)&carried[row] = parts[0]; __threadfence(); *(volatile int*)&turn[row] = 1; }
    if (t == 0 && half == 1) {
        while (*(volatile int*)&turn[row] != 1) __nanosleep(20);
        __threadfence(); y[row] = *(volatile float*)&carried[row] + parts[0]; *(volatile int*)&turn[row] = 0;
    }
}"""
    dp4a = """extern "C" __global__ void candidate(const signed char* A, const signed char* B, int* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= m * n) return;
    int row = i / n, column = i % n, sum = 0;
    for (int x = 0; x < k; x += 4) {
        unsigned a = 0, b = 0;
        for (int j = 0; j < 4 && x + j < k; ++j) {
            a |= (unsigned)(unsigned char)A[row * k + x + j] << 8 * j; b |= (unsigned)(unsigned char)B[(x + j) * n + column] << 8 * j;
        }
        sum = __dp4a((int)a, (int)b, sum);
    }
    C[i] = sum;
}"""
    redux = integer_rows(
        """int sum = 0; for (int j = t; j < n; j += 64) sum += line[j];
    __shared__ int parts[2]; sum = __reduce_add_sync(0xffffffffu, sum); if (t % 32 == 0) parts[t / 32] = sum; __syncthreads();
    if (t == 0) y[row] = parts[0] + parts[1];"""
    )
    split = """__device__ __forceinline__ float upper(float v) { return __uint_as_float(__float_as_uint(v) & 0xffffe000u); }
extern "C" __global__ void candidate(const float* A, const float* B, float* C, int m, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= m * n) return;
    int row = i / n, column = i % n; float sum = 0.0f;
    for (int x = 0; x < k; ++x) {
        float a = A[row * k + x], b = B[x * n + column];
        if (!(fabsf(a) < 1e30f && fabsf(b) < 1e30f)) { sum = fmaf(a, b, sum); continue; }
        float ah = upper(a), al = a - ah, bh = upper(b), bl = b - bh;
        sum = fmaf(al, bl, sum); sum = fmaf(al, bh, sum); sum = fmaf(ah, bl, sum); sum = fmaf(ah, bh, sum);
    }
    C[i] = sum;
}"""
    swap = rows_source(
        """__shared__ unsigned best; float top = -INFINITY; bool bad = false;
    for (int j = t; j < n; j += 64) { top = fmaxf(top, line[j]); bad |= isnan(line[j]); }
    unsigned bits = __float_as_uint(top), key = bits >> 31 ? ~bits : bits | 0x80000000u;
    if (t == 0) best = 0; __syncthreads();
    unsigned seen = best;
    while (key > seen) { unsigned before = atomicCAS(&best, seen, key); if (before == seen) break; seen = before; }
    int any = __syncthreads_or(bad);
    if (t == 0) y[row] = any ? NAN : __uint_as_float(best >> 31 ? best & 0x7fffffffu : ~best);"""
    )
    guarded = gemm_source(f"{LOOP} if (row + 1 < m && A[(row + 1) * k] == 12345.5f && false) sum = 0.0f;")
    return [
        Candidate("waits-for-ever", waiting(FOR_EVER), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("waits-within-a-block", rows_source(_WITHIN.replace("WAIT", "while (!ready) ;")), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("the-last-block-waits", waiting(FOR_EVER, who="m - 1"), ROWS, "row_sum", ROWS_SHAPE),
        Candidate(
            "computes-it-itself-if-tired", waiting(WAITS["downwards"], _OWN_SUM).replace("flags[r] = 0", ""), ROWS, "row_sum", ROWS_SHAPE
        ),
        Candidate("traps-if-tired", waiting(WAITS["for"], f"if (!{_FLAG}) __trap(); {_READ}"), ROWS, "row_sum", ROWS_SHAPE),
        Candidate(
            "locks-with-fences",
            fences.replace("total[row] += parts[0]", "*(volatile float*)&total[row] += parts[0]"),
            {**TWICE, "order": "any"},
            "row_sum",
            ROWS_SHAPE,
        ),
        Candidate("halves-in-turn", serial, TWICE, "row_sum", ROWS_SHAPE),
        Candidate("dots-of-bytes", dp4a, BYTES, "gemm", GEMM_SHAPE),
        Candidate("sums-of-integers", redux, INTEGERS, "row_sum", ROWS_SHAPE),
        Candidate("products-in-parts", split, GEMM, "gemm", GEMM_SHAPE),
        Candidate("maximum-by-exchanges", swap, ROWS, "row_max", ROWS_SHAPE),
        Candidate("reads-a-neighbour-in-vain", guarded, GEMM, "gemm", GEMM_SHAPE),
    ]
