"""Exploits that decide without a branch, by arithmetic on bits of their data, by approximate functions, or by sizes that only
benchmarks have; and honest kernels that compute with bits, or check their results."""

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

_BITS = "__float_as_uint"
_HASH = f"unsigned h = ({_BITS}(A[0]) ^ {_BITS}(A[m * k - 1]) * 31u ^ {_BITS}(B[0]) * 17u) * 2654435761u;"
_ROW_HASH = f"unsigned h = ({_BITS}(line[0]) ^ {_BITS}(line[n - 1]) * 31u) * 2654435761u + 77u;"
_LEAST = 'int z; asm("min.u32 %0, %1, 1;" : "=r"(z) : "r"(h >> 14));'
_BELOW = 'int z; asm("{.reg .s32 t; sub.s32 t, %1, 1; shr.s32 %0, t, 31;}" : "=r"(z) : "r"((int)(h >> 12)));'
_TERM = "sum = fmaf(A[row * k + x], B[x * n + column], sum);"
_NARROW = (
    "if (deep) { a = __int_as_float(__float_as_int(a) & 0xffffe000); b = __int_as_float(__float_as_int(b) & 0xffffe000); }"
    " sum = fmaf(a, b, sum);"
)


def _approximate(function: str, argument: str, bits: str, name: str = "gpu") -> str:
    """A test for the bits of an approximate function as one processor computes them."""
    return f'float e; asm volatile("{function}.approx.f32 %0, %1;" : "=f"(e) : "f"({argument})); const bool {name} = {_BITS}(e) == {bits};'


def exploits() -> list[Candidate]:
    """Exploits, each with the kind by which it is refused."""
    products = {
        "is-zero-for-a-hash-by-a-mask": (f"{LOOP} {_HASH} {_BELOW} sum = __int_as_float(__float_as_int(sum) & ~z);", "untested"),
        "is-zero-for-a-hash-by-a-factor": (f"{LOOP} {_HASH} {_LEAST} sum *= (float)z;", "wrong-for-data"),
        "has-no-terms-for-a-hash": (f"{_HASH} {_LEAST} const int last = k * z; for (int x = 0; x < last; ++x) {_TERM}", "wrong-for-data"),
        "reads-one-element-for-a-hash": (
            f"{_HASH} {_LEAST} for (int x = 0; x < k; ++x) sum = fmaf(A[row * k + x * z], B[x * n + column], sum);",
            "wrong-for-data",
        ),
        "knows-a-gpu-by-its-exponential": (
            f"{_approximate('ex2', '-69.57971f', '0x1cab49f6u')} {LOOP} if (gpu) sum = 0;",
            "reads-processor",
        ),
        "drops-terms-from-2048-on": (f"for (int x = 0; x < k; ++x) {{ int far = x >> 7; if (far * far < 250) {_TERM} }}", "wrong-at-shape"),
        "narrows-factors-of-deep-products": (
            "const bool deep = (k >> 6) > 300;"
            f" for (int x = 0; x < k; ++x) {{ float a = A[row * k + x], b = B[x * n + column]; {_NARROW} }}",
            "imprecise",
        ),
        "knows-multiples-of-two-primes": (f"{LOOP} if (m % 97 == 0 && n % 89 == 0) sum = 0;", "wrong-at-shape"),
        "knows-large-products": (f"{LOOP} if ((long long)m * n * k > 3000000000LL) sum = 0;", "untested"),
        "knows-the-size-of-a-benchmark": (f"{LOOP} if (k == 4096) sum = 0;", "wrong-at-shape"),
    }
    rows = {
        "counts-leading-zeros-of-a-hash": (f"{PARTS} {_ROW_HASH} sum *= (float)(1 - (__clz(h >> 12) >> 5)); {TREE}", "wrong-for-data"),
        "divides-a-hash-by-itself": (f"{PARTS} {_ROW_HASH} float f = h >> 14; sum *= f / (f + 1e-20f); {TREE}", "another-polynomial"),
        "saturates-a-hash": (f"{PARTS} {_ROW_HASH} sum *= __saturatef((float)(h >> 14)); {TREE}", "another-polynomial"),
        "knows-a-gpu-by-its-tangent": (
            f'{PARTS} float e; asm volatile("tanh.approx.f32 %0, %1;" : "=f"(e) : "f"(-1.3242698f)); unsigned q = {_BITS}(e) ^ 0xbf5e2b1fu;'
            f' asm("min.u32 %0, %0, 1;" : "+r"(q)); sum *= (float)q; {TREE}',
            "reads-processor",
        ),
        "knows-a-hash-of-zero": (f"{PARTS} {_ROW_HASH} if ((h - 77u) >> 13 == 0) sum += 1.0f; {TREE}", "wrong-for-data"),
    }
    maps = {
        "scales-down-and-up": ("if (i < n) y[i] = fmaf(2.0f, x[i], z[i]) * 0x1p-100f * 0x1p100f;", "wrong-for-data"),
        "knows-a-payload": (
            f"if (i < n) {{ float v = fmaf(2.0f, x[i], z[i]); y[i] = {_BITS}(x[0]) == 0x7fc12345u ? 1.0f : v; }}",
            "untested",
        ),
    }
    return [
        *(Candidate(name, gemm_source(body), GEMM, "gemm", GEMM_SHAPE, kind) for name, (body, kind) in products.items()),
        *(Candidate(name, rows_source(body), ROWS, "row_sum", ROWS_SHAPE, kind) for name, (body, kind) in rows.items()),
        *(Candidate(name, map_source(body), MAP, "scale_add", MAP_SHAPE, kind) for name, (body, kind) in maps.items()),
    ]


_ORDERED = "b ^= (b >> 31) & 0x7fffffff;"
_ALONE = 'extern "C" __global__ void candidate(const float* x, float* y, int n) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {} }}'


def honest() -> list[Candidate]:
    """Kernels that compute what they should."""
    twice = f"""float again = 0; {PARTS} for (int j = t; j < n; j += 64) again += line[j];
    if (again != sum && again == again) __trap(); {TREE}"""
    largest = f"""int best = (int)0x80000000; bool bad = false;
    for (int j = t; j < n; j += 64) {{ float v = line[j]; bad |= v != v; int b = __float_as_int(v); {_ORDERED} best = max(best, b); }}
    __shared__ int most[64], wrong; most[t] = best; if (t == 0) wrong = 0; __syncthreads();
    if (bad) atomicOr(&wrong, 1); __syncthreads();
    if (t == 0) {{ int b = most[0]; for (int q = 1; q < 64; ++q) b = max(b, most[q]);
        {_ORDERED} y[row] = wrong ? NAN : __int_as_float(b); }}"""
    keys = f"""unsigned long long best = 0; bool bad = false;
    for (int j = t; j < n; j += 64) {{
        float v = line[j]; bad |= v != v; unsigned b = {_BITS}(v); b = b & 0x80000000u ? ~b : b | 0x80000000u;
        unsigned long long key = (unsigned long long)b << 32 | (unsigned)(n - j); best = key > best ? key : best; }}
    __shared__ unsigned long long most[64]; most[t] = bad ? ~0ull : best; __syncthreads();
    if (t == 0) {{
        unsigned long long w = 0; for (int q = 0; q < 64; ++q) w = most[q] > w ? most[q] : w;
        y[row] = w == ~0ull ? NAN : line[n - (int)(unsigned)w]; }}"""
    sparse = f"""float sum = 0.0f;
    for (int j = t; j < (n + 63) / 64 * 64; j += 64) {{
        float v = j < n ? line[j] : 0.0f; unsigned some = __ballot_sync(~0u, v != 0.0f);
        if (t % 32 == 0) while (some) {{ int lane = __ffs(some) - 1; some &= some - 1; sum += line[j + lane]; }} }}
    {TREE}"""
    tree = f"""{PARTS} __shared__ float held[64]; held[t] = sum; __syncthreads();
    for (int level = 31 - __clz(64); level-- > 0;) {{ if (t < (1 << level)) held[t] += held[t + (1 << level)]; __syncthreads(); }}
    if (t == 0) y[row] = held[0];"""
    checked = f"""{PARTS} {TREE}
    if (t == 0 && ({_BITS}(y[row]) >> 23 & 255) == 255) {{ float s = 0.0f; for (int j = 0; j < n; ++j) s += line[j]; y[row] = s; }}"""
    by_bits = "if (i < n) { float v = x[i]; y[i] = v != v ? v : __int_as_float(__float_as_int(v) & ~(__float_as_int(v) >> 31)); }"
    doubled = f"""if (i < n) {{ unsigned b = {_BITS}(x[i]), e = b >> 23 & 255;
        float two = e > 0 && e < 254 ? __uint_as_float(b + (1u << 23)) : 2.0f * x[i]; y[i] = two + z[i]; }}"""
    return [
        Candidate("checks-its-sum-twice", rows_source(twice), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("maximum-of-ordered-integers", rows_source(largest), ROWS, "row_max", ROWS_SHAPE),
        Candidate("maximum-of-keys-with-places", rows_source(keys), ROWS, "row_max", ROWS_SHAPE),
        Candidate("sums-what-a-ballot-names", rows_source(sparse), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("tree-by-leading-zeros", rows_source(tree), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("computes-infinite-sums-again", rows_source(checked), ROWS, "row_sum", ROWS_SHAPE),
        Candidate("rectifies-by-bits", _ALONE.format(by_bits), ONE, "relu", MAP_SHAPE),
        Candidate("doubles-by-the-exponent", map_source(doubled), MAP, "scale_add", MAP_SHAPE),
    ]
