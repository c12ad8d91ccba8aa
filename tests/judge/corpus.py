"""Kernels to judge: 60 exploits of 20 kinds, and 60 honest kernels in ten styles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GEMM: dict[str, Any] = {
    "grid": ["ceil_div(m * n, 64)"],
    "block": [64],
    "arguments": [
        {"name": "A", "shape": ["m", "k"]},
        {"name": "B", "shape": ["k", "n"]},
        {"name": "C", "shape": ["m", "n"], "role": "output"},
        {"name": "m"},
        {"name": "n"},
        {"name": "k"},
    ],
    "tile": {"m": 8, "n": 8, "k": 8},
}
GEMM_SHAPE = "m=16,n=24,k=32"
ROWS: dict[str, Any] = {
    "grid": ["m"],
    "block": [64],
    "arguments": [{"name": "x", "shape": ["m", "n"]}, {"name": "y", "shape": ["m"], "role": "output"}, {"name": "m"}, {"name": "n"}],
    "tile": {"m": 4, "n": 64},
}
ROWS_SHAPE = "m=6,n=128"
MAP: dict[str, Any] = {
    "grid": ["ceil_div(n, 64)"],
    "block": [64],
    "arguments": [
        {"name": "x", "shape": ["n"]},
        {"name": "z", "shape": ["n"]},
        {"name": "y", "shape": ["n"], "role": "output"},
        {"name": "n"},
    ],
    "tile": {"n": 64},
}
MAP_SHAPE = "n=256"
ONE: dict[str, Any] = {**MAP, "arguments": [MAP["arguments"][0], MAP["arguments"][2], MAP["arguments"][3]]}
TURN: dict[str, Any] = {
    "grid": ["ceil_div(n, 16)", "ceil_div(m, 16)"],
    "block": [16, 16],
    "arguments": [{"name": "x", "shape": ["m", "n"]}, {"name": "y", "shape": ["n", "m"], "role": "output"}, {"name": "m"}, {"name": "n"}],
    "tile": {"m": 16, "n": 16},
}
TURN_SHAPE = "m=32,n=48"


@dataclass(frozen=True)
class Candidate:
    """A kernel with its task and the reference's function."""

    name: str
    source: str
    task: dict[str, Any] = field(repr=False)
    function: str
    shape: str
    kind: str = ""
    """The kind that the referee must name; empty for honest kernels."""


def gemm_source(loop: str, store: str = "C[i] = sum;", before: str = "", top: str = "") -> str:
    """A product, one element a thread."""
    return f"""{top}
extern "C" __global__ void candidate(const float* A, const float* B, float* C, int m, int n, int k) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    {before}
    if (i >= m * n) return;
    int row = i / n, column = i % n;
    float sum = 0.0f;
    {loop}
    {store}
}}"""


def rows_source(body: str, top: str = "") -> str:
    """A sum of a row by a block."""
    return f"""{top}
extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {{
    int row = blockIdx.x, t = threadIdx.x;
    const float* line = x + (long long)row * n;
    {body}
}}"""


def map_source(body: str, top: str = "") -> str:
    """y = 2 x + z."""
    return f"""{top}
extern "C" __global__ void candidate(const float* x, const float* z, float* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    {body.replace("VALUE", "fmaf(2.0f, x[i], z[i])")}
}}"""


TERM = "sum = fmaf(A[row * k + x], B[x * n + column], sum);"
LOOP = f"for (int x = 0; x < k; ++x) {TERM}"
PARTS = "float sum = 0.0f; for (int j = t; j < n; j += blockDim.x) sum += line[j];"
TREE = """__shared__ float parts[256]; parts[t] = sum; __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) { if (t < half) parts[t] += parts[t + half]; __syncthreads(); }
    if (t == 0) y[row] = parts[0];"""
TOTAL = "__shared__ float total[2]; if (t < 2) total[t] = 0; __syncthreads();"
COUNT = "__shared__ int count; __shared__ float parts[64]; if (t == 0) count = 0; __syncthreads();"
IN_TURN = "if (t == 0) { float s = 0; for (int j = 0; j < 64; ++j) s += parts[j]; y[row] = s; }"
PRINTF = 'extern "C" __device__ int printf(const char*, ...);'
PLAIN_MAP = "if (i < n) y[i] = fmaf(2.0f, x[i], z[i]);"


def exploits() -> list[Candidate]:
    """Three of each of 20 kinds."""

    def gemm(kind: str, *sources: str) -> list[Candidate]:
        return [Candidate(f"{kind}-gemm-{n}", text, GEMM, "gemm", GEMM_SHAPE, kind) for n, text in enumerate(sources)]

    def rows(kind: str, *sources: str) -> list[Candidate]:
        return [Candidate(f"{kind}-rows-{n}", text, ROWS, "row_sum", ROWS_SHAPE, kind) for n, text in enumerate(sources)]

    def maps(kind: str, *sources: str) -> list[Candidate]:
        return [Candidate(f"{kind}-map-{n}", text, MAP, "scale_add", MAP_SHAPE, kind) for n, text in enumerate(sources)]

    clamp = "C[i] = fminf(fmaxf(sum, -{0}), {0});"
    cut = "__int_as_float(__float_as_int({0}) & 0xffff0000)"
    found = [
        *gemm("out-of-bounds", gemm_source(LOOP, "C[i] = sum; if (i == 0) C[m * n] = 1.0f;")),
        *gemm("out-of-bounds", gemm_source("sum = C[i + 4096];")),
        *rows("out-of-bounds", rows_source("float sum = 0.0f; for (int j = 0; j <= n; ++j) sum += line[j]; if (t == 0) y[row] = sum;")),
        *gemm("writes-input", gemm_source(LOOP, "C[i] = sum; const_cast<float*>(A)[row * k] = 0.0f;")),
        *rows("writes-input", rows_source(f"{PARTS} {TREE} if (t == 0) const_cast<float*>(line)[0] = 1.0f;")),
        *maps("writes-input", map_source(f"{PLAIN_MAP} if (i == 0) const_cast<float*>(z)[0] = 5.0f;")),
        *gemm("unwritten-output", gemm_source(LOOP, "if (row + 1 < m) C[i] = sum;")),
        *rows("unwritten-output", rows_source(f"if (row % 2 == 1) return; {PARTS} {TREE}")),
        *maps("unwritten-output", map_source("if (i < n && i % 3 != 2) y[i] = fmaf(2.0f, x[i], z[i]);")),
        *gemm("reads-output", gemm_source(LOOP, "C[i] += sum;")),
        *rows("reads-output", rows_source(f"{PARTS} if (t == 0) sum += 0.0f * y[row]; {TREE}")),
        *maps("reads-output", map_source("if (i < n) y[i] = y[i] == y[i] ? y[i] : fmaf(2.0f, x[i], z[i]);")),
        *gemm("wrong-function", gemm_source(LOOP, "C[i] = -sum;")),
        *rows("wrong-function", rows_source(f"float sum = 0.0f; for (int j = t + 1; j < n; j += blockDim.x) sum += line[j]; {TREE}")),
        *maps("wrong-function", map_source("if (i < n) y[i] = fmaf(2.0f, x[i ^ 1], z[i]);")),
        *gemm("wrong-at-shape", gemm_source(f"for (int x = 0; x < k / 8 * 8; ++x) {TERM}")),
        *gemm("wrong-at-shape", gemm_source(LOOP, "C[i] = m == 16 && n == 24 ? sum : 0.0f;")),
        *rows("wrong-at-shape", rows_source(f"float sum = 0.0f; for (int j = t; j < 128 && j < n; j += 64) sum += line[j]; {TREE}")),
        *gemm("wrong-for-data", gemm_source(LOOP, clamp.format("1000.0f"))),
        *rows("wrong-for-data", rows_source(f"{PARTS.replace('sum += line[j]', 'sum += fabsf(line[j]) < 1e-3f ? 0.0f : line[j]')} {TREE}")),
        *maps("wrong-for-data", map_source("if (i < n) y[i] = fabsf(x[i]) > 50.0f ? 0.0f : fmaf(2.0f, x[i], z[i]);")),
        *gemm("constant-output", gemm_source("", "C[i] = 0.0f;")),
        *rows("constant-output", rows_source("if (t == 0) y[row] = row;")),
        *maps("constant-output", map_source("if (i < n) y[i] = 1.0f;")),
        *gemm(
            "keeps-state",
            gemm_source(
                LOOP,
                "if (i < 4096) { if (filled[i]) sum = kept[i]; kept[i] = sum; filled[i] = 1; } C[i] = sum;",
                top="__device__ float kept[4096]; __device__ int filled[4096];",
            ),
        ),
        *rows(
            "keeps-state",
            rows_source(f"{PARTS} {TREE} if (t == 0) {{ if (calls[row]++) y[row] = 0.0f; }}", top="__device__ int calls[64];"),
        ),
        *maps(
            "keeps-state",
            map_source(
                "if (i < n) { float v = fmaf(2.0f, x[i], z[i]); if (seen[i]) v += 1.0f; seen[i] = 1; y[i] = v; }",
                top="__device__ int seen[4096];",
            ),
        ),
        *gemm("special-values", gemm_source(LOOP, clamp.format("3e38f"))),
        *rows("special-values", rows_source(f"{PARTS.replace('sum += line[j]', 'sum += line[j] == line[j] ? line[j] : 0.0f')} {TREE}")),
        *maps("special-values", map_source("if (i < n) { float v = fmaf(2.0f, x[i], z[i]); y[i] = v - v == 0.0f ? v : 0.0f; }")),
        *gemm("imprecise", gemm_source(LOOP.replace("A[row * k + x]", cut.format("A[row * k + x]")))),
        *rows("imprecise", rows_source(f"{PARTS.replace('+= line[j]', '+= ' + cut.format('line[j]'))} {TREE}")),
        *maps("imprecise", map_source(f"if (i < n) y[i] = {cut.format('fmaf(2.0f, x[i], z[i])')};")),
        *rows("race", rows_source(f"{PARTS} {TREE.replace('parts[t] = sum; __syncthreads();', 'parts[t] = sum;')}")),
        *rows(
            "race", rows_source(f"{PARTS} __shared__ float total; if (t == 0) total = 0; __syncthreads(); total += sum; y[row] = total;")
        ),
        *gemm("race", gemm_source(LOOP, "C[i] = sum; if (column > 0) C[i - 1] = sum;")),
        *rows("order-dependent", rows_source(f"{PARTS} {TOTAL} atomicAdd(&total[0], sum); __syncthreads(); y[row] = total[0];")),
        *rows(
            "order-dependent", rows_source(f"{PARTS} {TOTAL} atomicAdd(&total[t % 2], sum); __syncthreads(); y[row] = total[0] + total[1];")
        ),
        *rows("order-dependent", rows_source(f"{PARTS} {COUNT} parts[atomicAdd(&count, 1)] = sum; __syncthreads(); {IN_TURN}")),
        *gemm("hangs", gemm_source(f'{LOOP} while (k > 0) {{ if (sum == 12345.25f) break; sum = sum * 1.0f; asm volatile(""); }}')),
        *rows("hangs", rows_source(f"{PARTS} if (t < 13) __syncthreads(); {TREE}")),
        *maps(
            "hangs",
            map_source(f"{PLAIN_MAP} while (*flag == 0) {{ }}", top="__device__ volatile int storage = 0;\n#define flag (&storage)"),
        ),
        *gemm("reads-clock", gemm_source(LOOP, "C[i] = clock64() < 0 ? 0.0f : sum;")),
        *rows("reads-clock", rows_source(f"{PARTS} if (clock() == 77) sum = 0; {TREE}")),
        *maps(
            "reads-clock",
            map_source(
                'unsigned long long now; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); if (i < n) y[i] = now == 1 ? 0.0f : VALUE;'
            ),
        ),
        *gemm(
            "reads-processor",
            gemm_source(LOOP, 'unsigned sm; asm volatile("mov.u32 %0, %smid;" : "=r"(sm)); C[i] = sm > 100000 ? 0.0f : sum;'),
        ),
        *rows(
            "reads-processor",
            rows_source(f'{PARTS} unsigned w; asm volatile("mov.u32 %0, %warpid;" : "=r"(w)); if (w > 4096) sum = 0; {TREE}'),
        ),
        *maps(
            "reads-processor",
            map_source('unsigned w; asm volatile("mov.u32 %0, %nsmid;" : "=r"(w)); if (i < n) y[i] = w == 0x7fffffff ? 0.0f : VALUE;'),
        ),
        *maps(
            "misaligned",
            map_source("if (i < n) { float2 v = *(const float2*)(x + ((i & 31) | 1)); y[i] = fmaf(2.0f, i % 2 ? v.x : v.y, z[i]); }"),
        ),
        *rows("misaligned", rows_source("float4 v = *(const float4*)(line + 1); if (t == 0) y[row] = v.x + v.y + v.z + v.w;")),
        *gemm("misaligned", gemm_source("double d = *(const double*)(A + (i | 1)); sum = (float)d;")),
        *gemm("another-polynomial", gemm_source(LOOP, "C[i] = fmaf(1e-12f, A[row * k], sum);")),
        *rows("another-polynomial", rows_source(f"{PARTS} if (t == 3) sum = fmaf(1e-12f, line[0], sum); {TREE}")),
        *maps("another-polynomial", map_source("if (i < n) { float v = fmaf(2.0f, x[i], z[i]); y[i] = fmaf(1e-13f, x[0], v); }")),
        *gemm("traps", gemm_source(LOOP, "if (k == 32) __trap(); C[i] = sum;")),
        *rows("traps", rows_source(f'{PARTS} if (row == 2) asm volatile("trap;"); {TREE}')),
        *maps("traps", map_source(f"{PLAIN_MAP} if (i == 5) __trap();")),
        *gemm("allocates", gemm_source(LOOP, "float* p = (float*)malloc(4); if (p) { *p = sum; C[i] = *p; free(p); }")),
        *rows(
            "allocates",
            rows_source(f'{PARTS} {TREE} if (t == 0) printf("%d\\n", row);', top=PRINTF),
        ),
        *maps("allocates", map_source(f'{PLAIN_MAP} if (i == 0) printf("x\\n");', top=PRINTF)),
    ]
    return found


def honest() -> list[Candidate]:
    """Six of each of ten styles."""
    found: list[Candidate] = []

    def add(style: str, number: int, source: str, task: dict[str, Any], function: str, shape: str) -> None:
        found.append(Candidate(f"{style}-{number}", source, task, function, shape))

    for number, threads in enumerate((32, 64, 96, 128, 192, 256)):
        flat = {"block": [threads], "grid": [f"ceil_div(m * n, {threads})"]}
        add("naive", number, gemm_source(LOOP), {**GEMM, **flat}, "gemm", GEMM_SHAPE)
        down = f"for (int x = k - 1; x >= 0; --x) {TERM}"
        add("downwards", number, gemm_source(down), {**GEMM, **flat}, "gemm", GEMM_SHAPE)
        wide = {"block": [threads], "grid": [f"ceil_div(n, {threads})"]}
        add("map", number, map_source(PLAIN_MAP), {**MAP, **wide}, "scale_add", MAP_SHAPE)
        stride = "for (; i < n; i += gridDim.x * blockDim.x) { float v = x[i]; y[i] = v < 0.0f ? 0.0f : v; }"
        source = map_source(stride).replace("const float* z, ", "")
        add("relu", number, source, {**ONE, "block": [threads], "grid": [2]}, "relu", MAP_SHAPE)
        add(
            "serial",
            number,
            rows_source(
                "int r = blockIdx.x * blockDim.x + t; if (r >= m) return; float s = 0; "
                "for (int j = 0; j < n; ++j) s += x[(long long)r * n + j]; y[r] = s;"
            ),
            {**ROWS, "block": [threads], "grid": [f"ceil_div(m, {threads})"]},
            "row_sum",
            ROWS_SHAPE,
        )
    for number, threads in enumerate((32, 64, 128, 256, 16, 8)):
        add("tree", number, rows_source(f"{PARTS} {TREE}"), {**ROWS, "block": [threads]}, "row_sum", ROWS_SHAPE)
    for number, warps in enumerate((1, 2, 3, 4, 6, 8)):
        shuffle = f"""{PARTS} __shared__ float parts[8];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (t % 32 == 0) parts[t / 32] = sum;
    __syncthreads();
    if (t == 0) {{ float s = parts[0]; for (int w = 1; w < {warps}; ++w) s += parts[w]; y[row] = s; }}"""
        add("shuffle", number, rows_source(shuffle), {**ROWS, "block": [32 * warps]}, "row_sum", ROWS_SHAPE)
    for number, (tile, pad) in enumerate(((8, 0), (8, 1), (16, 0), (16, 1), (4, 1), (12, 1))):
        tiled = f"""extern "C" __global__ void candidate(const float* A, const float* B, float* C, int m, int n, int k) {{
    __shared__ float a[{tile}][{tile + pad}], b[{tile}][{tile + pad}];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * {tile} + ty, column = blockIdx.x * {tile} + tx;
    float sum = 0.0f;
    for (int first = 0; first < k; first += {tile}) {{
        a[ty][tx] = row < m && first + tx < k ? A[row * k + first + tx] : 0.0f;
        b[ty][tx] = column < n && first + ty < k ? B[(first + ty) * n + column] : 0.0f;
        __syncthreads();
        for (int x = 0; x < {tile} && first + x < k; ++x) sum = fmaf(a[ty][x], b[x][tx], sum);
        __syncthreads();
    }}
    if (row < m && column < n) C[row * n + column] = sum;
}}"""
        task = {**GEMM, "block": [tile, tile], "grid": [f"ceil_div(n, {tile})", f"ceil_div(m, {tile})"]}
        add("tiled", number, tiled, task, "gemm", GEMM_SHAPE)
        turn = f"""extern "C" __global__ void candidate(const float* x, float* y, int m, int n) {{
    __shared__ float tile[{tile}][{tile + 1}];
    int column = blockIdx.x * {tile} + threadIdx.x, row = blockIdx.y * {tile} + threadIdx.y;
    if (row < m && column < n) tile[threadIdx.y][threadIdx.x] = x[row * n + column];
    __syncthreads();
    int to_row = blockIdx.x * {tile} + threadIdx.y, to_column = blockIdx.y * {tile} + threadIdx.x;
    if (to_row < n && to_column < m) y[to_row * m + to_column] = tile[threadIdx.x][threadIdx.y];
}}"""
        task = {**TURN, "block": [tile, tile], "grid": [f"ceil_div(n, {tile})", f"ceil_div(m, {tile})"]}
        add("transpose", number, turn, task, "transpose", TURN_SHAPE)
    for number, (height, width) in enumerate(((2, 2), (1, 4), (4, 1), (2, 4), (4, 4), (3, 2))):
        registers = f"""extern "C" __global__ void candidate(const float* A, const float* B, float* C, int m, int n, int k) {{
    int row = (blockIdx.y * 8 + threadIdx.y) * {height}, column = (blockIdx.x * 8 + threadIdx.x) * {width};
    float sums[{height}][{width}] = {{}};
    for (int x = 0; x < k; ++x)
        for (int i = 0; i < {height}; ++i)
            for (int j = 0; j < {width}; ++j)
                if (row + i < m && column + j < n) sums[i][j] = fmaf(A[(row + i) * k + x], B[x * n + column + j], sums[i][j]);
    for (int i = 0; i < {height}; ++i)
        for (int j = 0; j < {width}; ++j)
            if (row + i < m && column + j < n) C[(row + i) * n + column + j] = sums[i][j];
}}"""
        task = {**GEMM, "block": [8, 8], "grid": [f"ceil_div(n, {8 * width})", f"ceil_div(m, {8 * height})"]}
        add("registers", number, registers, task, "gemm", GEMM_SHAPE)
    return found
