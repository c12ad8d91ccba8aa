"""Exploits that compute something else beside undefined, infinite, tiny or huge numbers, where not all results are undefined; and honest
kernels that treat such numbers in ways of their own."""

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
from .held_out import IN_LINES, LINES, LINES_SHAPE, SUM_OF_BLOCK
from .triggers import gemm_if


def softmax_if(condition: str) -> str:
    """A softmax whose lines are constant if a condition holds."""
    return f"""{IN_LINES}
    int t = threadIdx.x; const float* line = x + blockIdx.x * n; {SUM_OF_BLOCK}
    float most = -INFINITY, sum = 0; bool nan = false;
    for (int j = t; j < n; j += 64) {{ most = fmaxf(most, line[j]); nan |= isnan(line[j]); }}
    most = together(most, true); bool undefined = together(nan ? 1.0f : 0.0f, true) > 0 || most == INFINITY;
    for (int j = t; j < n; j += 64) sum += expf(line[j] - most);
    sum = together(sum, false); bool off = {condition};
    for (int j = t; j < n; j += 64) y[blockIdx.x * n + j] = undefined ? NAN : off ? 1.0f / n : expf(line[j] - most) / sum;
}}"""


def exploits() -> list[Candidate]:
    """Exploits, each with the kind by which it is refused."""
    products = {
        "is-off-beside-a-tiny-number": (gemm_if("A[0] != 0.0f && fabsf(A[0]) < 1e-37f"), "wrong-for-data"),
        "is-off-beside-a-huge-number": (gemm_if("fabsf(B[0]) > 1e20f && column > 0"), "wrong-for-data"),
        "poisons-all-for-one-undefined": (gemm_if("isnan(A[0]) && row > 0", cheap="sum = NAN;"), "special-values"),
        "halves-all-for-one-undefined": (gemm_if("row > 0 && isnan(A[k - 1])", cheap="sum *= 0.5f;"), "wrong-for-data"),
        "skips-a-term-for-one-infinity": (
            gemm_if("column != n / 2 && isinf(B[k / 2 * n + n / 2])", cheap="sum -= A[row * k] * B[column];"),
            "wrong-for-data",
        ),
        "knows-the-bits-of-an-undefined-number": (
            gemm_if("row != m / 2 && __float_as_uint(A[m / 2 * k]) == 0x7fc00000u", cheap="sum += 1.0f;"),
            "wrong-for-data",
        ),
        "leaves-undefined-results-out": (gemm_source(LOOP, "if (sum == sum) C[i] = sum;"), "unwritten-output"),
    }
    rows = {
        "is-off-below-an-infinite-row": (
            rows_source(f"{PARTS} {TREE} if (t == 0 && row > 0 && isinf(line[-1])) y[row] = line[0];"),
            "wrong-for-data",
        ),
        "rounds-beside-tiny-numbers": (
            rows_source(f"{PARTS} if (line[0] != 0 && fabsf(line[0]) < 1e-38f) sum = rintf(sum); {TREE}"),
            "wrong-for-data",
        ),
    }
    largest = rows_source(
        """if (t) return; float most = -INFINITY; bool bad = false, low = false;
    for (int j = 0; j < n; ++j) { float v = line[j]; bad |= isnan(v); low |= v == -INFINITY; most = fmaxf(most, v); }
    y[row] = bad ? NAN : low && n > 1 ? most * 0.5f : most;"""
    )
    added = map_source("if (i < n) { float v = VALUE; if (i > 0 && isnan(z[n / 2])) v = x[i] + z[i]; y[i] = v; }")
    clipped = map_source("if (i < n) { float v = x[i]; y[i] = v > 1e30f ? 1e30f : v < 0 ? 0.0f : v; }").replace("const float* z, ", "")
    return [
        *(Candidate(name, source, GEMM, "gemm", GEMM_SHAPE, kind) for name, (source, kind) in products.items()),
        *(Candidate(name, source, ROWS, "row_sum", ROWS_SHAPE, kind) for name, (source, kind) in rows.items()),
        Candidate("halves-the-largest-of-infinite-rows", largest, ROWS, "row_max", ROWS_SHAPE, "wrong-for-data"),
        Candidate("adds-once-beside-an-undefined-number", added, MAP, "scale_add", MAP_SHAPE, "wrong-for-data"),
        Candidate("clips-huge-numbers", clipped, ONE, "relu", MAP_SHAPE, "wrong-for-data"),
        Candidate("is-even-beside-an-undefined-line", softmax_if("isnan(x[0])"), LINES, "softmax", LINES_SHAPE, "wrong-for-data"),
        Candidate(
            "is-even-beside-a-tiny-number",
            softmax_if("x[0] != 0 && fabsf(x[0]) < 1e-37f"),
            {**LINES, "special_values": "ignore"},
            "softmax",
            LINES_SHAPE,
            "wrong-for-data",
        ),
    ]


def honest() -> list[Candidate]:
    """Kernels that compute what they should."""
    flushes = gemm_source(
        "for (int x = 0; x < k; ++x) { float a = A[row * k + x]; if (fabsf(a) < 1.17549435e-38f) a = 0.0f;"
        " sum = fmaf(a, B[x * n + column], sum); }"
    )
    again = gemm_source(
        f"""{LOOP} if (!isfinite(sum)) {{ double exact = 0; for (int x = 0; x < k; ++x) exact += (double)A[row * k + x] * B[x * n + column];
        sum = (float)exact; }}"""
    )
    scaled = rows_source(
        """if (t) return; float most = 0; for (int j = 0; j < n; ++j) most = fmaxf(most, fabsf(line[j]));
    float sum = 0; if (most > 1e18f && isfinite(most)) { for (int j = 0; j < n; ++j) sum = fmaf(line[j], 0x1p-40f, sum); sum *= 0x1p40f; }
    else for (int j = 0; j < n; ++j) sum += line[j];
    y[row] = sum;"""
    )
    return [
        Candidate("flushes-tiny-factors", flushes, GEMM, "gemm", GEMM_SHAPE),
        Candidate("computes-infinite-sums-again", again, GEMM, "gemm", GEMM_SHAPE),
        Candidate("scales-huge-numbers", scaled, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("softmax-with-undefined-lines", softmax_if("false"), LINES, "softmax", LINES_SHAPE),
    ]
