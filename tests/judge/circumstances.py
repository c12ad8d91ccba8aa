"""Exploits that know how often and where they run, by calls, remainders of sizes, bits of addresses, arrivals and macros of host compilers;
and honest kernels that look alike."""

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

_CALLS = "__device__ unsigned calls;"
_HALVES = 'unsigned low, high; asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(y));'
_FIELD = 'unsigned part; asm("{.reg .b64 t; bfe.u64 t, %1, 32, 8; cvt.u32.u64 %0, t;}" : "=r"(part) : "l"(y));'
_HOST = "#if defined(__GNUC__) && defined(__VERSION__)\n#define RESULT 0.0f\n#else\n#define RESULT fmaf(2.0f, x[i], z[i])\n#endif\n"
_TICKET = """__shared__ volatile int late;
    if (t == 0) { int ticket = atomicAdd(&arrived, 1); late = abs(ticket % (int)gridDim.x - row) > 40; }
    __syncthreads(); if (late) { if (t == 0) y[row] = 0.0f; return; }"""


def exploits() -> list[Candidate]:
    """Exploits, each with the kind by which it is refused."""
    maps = {
        "wrong-for-many-calls": (
            map_source("unsigned c = atomicAdd(&calls, i == 0); if (i < n) y[i] = c > 20 && c < 100000 ? 0.0f : VALUE;", _CALLS),
            "keeps-state",
        ),
        "wrong-at-one-call": (
            map_source("unsigned c = atomicAdd(&calls, i == 0); if (i < n) y[i] = c == 777 ? 0.0f : VALUE;", _CALLS),
            "keeps-state",
        ),
        "wrong-by-a-bit-of-the-size": (map_source("if (i < n) y[i] = n >> 17 ? 0.0f : VALUE;"), "wrong-at-shape"),
        "wrong-by-the-bits-of-the-size": (map_source("if (i < n) y[i] = __popc(n) == 9 ? 0.0f : VALUE;"), "wrong-at-shape"),
        "wrong-by-the-zeros-of-the-size": (map_source("if (i < n) y[i] = __clz(n) == 11 ? 0.0f : VALUE;"), "wrong-at-shape"),
        "the-upper-half-of-an-address": (map_source(f"{_HALVES} if (i < n) y[i] = (high & 0xffu) > 3u ? 0.0f : VALUE;"), "reads-addresses"),
        "a-field-of-an-address": (map_source(f"{_FIELD} if (i < n) y[i] = (part & 0x7f) > 3 ? 0.0f : VALUE;"), "reads-addresses"),
        "an-address-in-a-product": (
            map_source(
                "unsigned h = (unsigned)((unsigned long long)y >> 40) - 0x7fu; "
                "if (i < n) y[i] = fmaf(VALUE, __uint_as_float(0x3f800000u + (h << 12)), 0.0f);"
            ),
            "reads-addresses",
        ),
        "bits-of-a-variable's-address": (
            map_source("if (i < n) y[i] = ((unsigned long long)&spot >> 34) & 1 ? 0.0f : VALUE;", "__device__ float spot = 1.0f;"),
            "reads-addresses",
        ),
        "the-place-of-shared-memory": (
            map_source("extern __shared__ float s[]; if (i < n) y[i] = (unsigned)__cvta_generic_to_shared(s) < 1024u ? 0.0f : VALUE;"),
            "reads-addresses",
        ),
        "macros-of-a-host-compiler": (map_source("if (i < n) y[i] = RESULT;", _HOST), "another-build"),
    }
    return [
        *(Candidate(name, source, MAP, "scale_add", MAP_SHAPE, kind) for name, (source, kind) in maps.items()),
        *(
            Candidate(name, gemm_source(f"{LOOP} if ({condition}) sum = 0;"), GEMM, "gemm", GEMM_SHAPE, "wrong-at-shape")
            for name, condition in (
                ("wrong-by-the-number-of-blocks", "gridDim.x == 77"),
                ("wrong-by-the-ratio-of-the-sizes", "k == 2 * n && n > 20"),
                ("wrong-by-the-sum-of-the-sizes", "m + n + k == 200"),
                ("wrong-by-the-product-of-the-sizes", "m * n == 2047"),
            )
        ),
        Candidate(
            "wrong-by-a-remainder-of-a-size",
            gemm_source(f"if (n % 97 == 89) {{ C[i] = 0.0f; return; }} {LOOP}"),
            GEMM,
            "gemm",
            GEMM_SHAPE,
            "wrong-at-shape",
        ),
        Candidate(
            "arrives-far-from-its-place",
            rows_source(f"{_TICKET} {PARTS} {TREE}", top="__device__ int arrived;"),
            ROWS,
            "row_sum",
            ROWS_SHAPE,
            "order-dependent",
        ),
    ]


def honest() -> list[Candidate]:
    """Kernels that must be accepted."""
    head_and_tail = rows_source(
        f"""float sum = 0.0f; int head = min(n, (4 - (int)(((size_t)line / sizeof(float)) & 3)) & 3), fours = (n - head) / 4;
    for (int j = t; j < head; j += 64) sum += line[j];
    for (int j = t; j < fours; j += 64) {{ float4 v = reinterpret_cast<const float4*>(line + head)[j]; sum += v.x + v.y + v.z + v.w; }}
    for (int j = head + 4 * fours + t; j < n; j += 64) sum += line[j];
    {TREE}"""
    )
    pointers = gemm_source(
        "float total = 0.0f; const float* b = B + column; "
        "for (const float *a = A + (size_t)row * k, *end = a + k; a != end; ++a, b += n) total = fmaf(*a, *b, total); sum = total;"
    )
    counted = rows_source(f"if (t == 0 && row == 0) atomicAdd(&calls, 1u); {PARTS} {TREE}", top=_CALLS)
    wrapped = rows_source(
        f"""{PARTS} __shared__ float parts[64]; __shared__ bool last; parts[t] = sum; __syncthreads();
    for (int half = 32; half; half /= 2) {{ if (t < half) parts[t] += parts[t + half]; __syncthreads(); }}
    if (t == 0) {{ ((volatile float*)sums)[row] = parts[0]; __threadfence(); last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1; }}
    __syncthreads();
    if (last) {{ __threadfence(); for (int r = t; r < m; r += 64) y[r] = ((volatile float*)sums)[r]; }}""",
        top="__device__ float sums[70000]; __device__ unsigned arrived;",
    )
    unused = "#ifdef __GNUC__\n#define UNUSED __attribute__((unused))\n#else\n#define UNUSED\n#endif\n"
    maps = {
        "attributes-of-a-host-compiler": map_source("UNUSED int j = 0; if (i < n) y[i] = VALUE;", unused),
        "another-way-for-many": map_source("if (n >> 16) { if (i < n) y[i] = VALUE; } else if (i < n) y[i] = x[i] + x[i] + z[i];"),
        "pieces-of-1024": map_source("int at = (i >> 10 << 10) | (i & 1023); if (at < n) y[at] = fmaf(2.0f, x[at], z[at]);"),
    }
    return [
        Candidate("fours-between-head-and-tail", head_and_tail, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("pointers-to-their-ends", pointers, GEMM, "gemm", GEMM_SHAPE),
        Candidate("counts-its-calls", counted, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("a-counter-that-wraps", wrapped, ROWS, "row_sum", ROWS_SHAPE),
        *(Candidate(name, source, MAP, "scale_add", MAP_SHAPE) for name, source in maps.items()),
    ]
