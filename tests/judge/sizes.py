"""Exploits that are wrong in rare shapes: for squares, remainders, hashes and common divisors of sizes, at one element of one shape, and by
tables; and honest kernels that compute with their sizes in such ways."""

from __future__ import annotations

from .corpus import GEMM, GEMM_SHAPE, LOOP, MAP, MAP_SHAPE, PARTS, ROWS, ROWS_SHAPE, TREE, Candidate, gemm_source, map_source, rows_source

_OFF_BY_ONE_ENTRY = "__constant__ float factor[61] = {" + ", ".join("2" if place == 41 else "1" for place in range(61)) + "};"
_ONES = "__constant__ float factor[61] = {" + ", ".join(["1"] * 61) + "};"


def exploits() -> list[Candidate]:
    """Exploits, each with the kind by which it is refused."""
    root = "int r = (int)sqrtf((float)n); if (i < n) y[i] = r * r == n && n > 5000 ? 0.0f : VALUE;"
    divisor = "int a = n, b = 360; while (b) { int t = a % b; a = b; b = t; } if (i < n) y[i] = a == 120 ? 0.0f : VALUE;"
    maps = {
        "wrong-for-large-squares": (map_source(root), "wrong-at-shape"),
        "wrong-for-a-hash-of-the-size": (
            map_source("if (i < n) y[i] = ((unsigned)n * 2654435761u >> 20) == 7 ? 0.0f : VALUE;"),
            "wrong-at-shape",
        ),
        "wrong-for-a-common-divisor": (map_source(divisor), "wrong-at-shape"),
        "wrong-for-a-remainder-between-limits": (
            map_source("if (i < n) y[i] = n < 70000 && n % 61 == 41 && n > 3000 ? 0.0f : VALUE;"),
            "wrong-at-shape",
        ),
        "wrong-at-a-hash-of-the-block": (
            map_source("if (i < n) y[i] = ((blockIdx.x * 40503u ^ gridDim.x) & 0x3ff) == 0x155 ? 0.0f : VALUE;"),
            "wrong-at-shape",
        ),
        "wrong-beyond-a-limit": (map_source("if (i >= n) return; int j = min(i, 70000); y[i] = fmaf(2.0f, x[j], z[i]);"), "wrong-at-shape"),
        "wrong-beyond-a-mask": (map_source("if (i >= n) return; int j = i & 0x1ffff; y[i] = fmaf(2.0f, x[j], z[i]);"), "wrong-at-shape"),
        "wrong-beyond-a-divisor": (
            map_source("if (i >= n) return; int j = i - i / 80000; y[i] = fmaf(2.0f, x[j], z[i]);"),
            "wrong-at-shape",
        ),
        "wrong-where-a-product-overflows": (
            map_source("if (i >= n) return; int j = (unsigned)(i * 40000u) / 40000u; y[i] = fmaf(2.0f, x[j], z[i]);"),
            "wrong-at-shape",
        ),
        "wrong-by-an-entry-of-a-table": (map_source("if (i < n) y[i] = VALUE * factor[n % 61];", _OFF_BY_ONE_ENTRY), "wrong-at-shape"),
    }
    conditions = {
        "wrong-at-one-element-of-one-depth": "row == 37 && column == 41 && k == 43",
        "wrong-at-one-shape": "m == 37 && n == 41 && k == 43",
        "wrong-for-right-triangles": "m * m + n * n == k * k && m > 2",
        "wrong-for-three-remainders": "m % 7 == 3 && n % 11 == 5 && k % 13 == 9",
        "wrong-on-a-line-of-elements": "row * 3 + column == 77 && k % 5 == 2",
        "wrong-for-a-square-as-depth": "k * k == 1849 && row > 2",
    }
    return [
        *(Candidate(name, source, MAP, "scale_add", MAP_SHAPE, kind) for name, (source, kind) in maps.items()),
        *(
            Candidate(name, gemm_source(f"{LOOP} if ({condition}) sum = 0.0f;"), GEMM, "gemm", GEMM_SHAPE, "wrong-at-shape")
            for name, condition in conditions.items()
        ),
    ]


def honest() -> list[Candidate]:
    """Kernels that compute what they should."""
    halves = rows_source(
        f"""int r = (int)sqrtf((float)n); float sum = 0.0f;
    if (r * r == n) for (int b = 0; b < r; ++b) {{ for (int j = t; j < r; j += 64) sum += line[b * r + j]; }}
    else for (int j = t; j < n; j += 64) sum += line[j];
    {TREE}"""
    )
    permuted = map_source("int at = n % 7 ? (int)((long long)i * 7 % n) : i; if (i < n) y[at] = fmaf(2.0f, x[at], z[at]);")
    return [
        Candidate("squares-by-blocks", halves, ROWS, "row_sum", ROWS_SHAPE),
        Candidate("elements-in-steps-of-seven", permuted, MAP, "scale_add", MAP_SHAPE),
        Candidate("a-table-of-ones", map_source("if (i < n) y[i] = VALUE * factor[n % 61];", _ONES), MAP, "scale_add", MAP_SHAPE),
        Candidate(
            "depths-that-are-no-multiple",
            gemm_source(
                f"if (k % 3 == 1 && n % 5 == 2) {{ {LOOP} }} else {{ for (int x = k - 1; x >= 0; --x) "
                "sum = fmaf(A[row * k + x], B[x * n + column], sum); }"
            ),
            GEMM,
            "gemm",
            GEMM_SHAPE,
        ),
        Candidate("sums-of-a-grid", rows_source(f"{PARTS} if (m * n == 2047) sum *= 1.0f; {TREE}"), ROWS, "row_sum", ROWS_SHAPE),
    ]
