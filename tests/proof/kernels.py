"""Small CUDA kernels with the preconditions of their launches, and mistakes that change the verdict of the proof."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import ArrayArgument, ArrayRole, Constraint, Dimension, KernelLaunch, LaunchSequence, ScalarArgument

ENTRY = "kernel"
MAX_EXTENT = 1 << 30
"""Larger extents would overflow the kernels' own indices."""


def array(name: str, role: ArrayRole, shape: tuple[str, ...], strides: tuple[str, ...], alignment: int = 4) -> ArrayArgument:
    return ArrayArgument(name, "f32", role, tuple(map(Formula, shape)), tuple(map(Formula, strides)), alignment, "an array")


@dataclass(frozen=True)
class Sample:
    """A kernel that is right, and texts in it that a mistake replaces, with the property that then fails."""

    source: str
    arrays: tuple[ArrayArgument, ...]
    dimensions: tuple[str, ...]
    grid: str
    threads: int
    mistakes: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """By name: the text, its replacement, and the property."""
    constraints: tuple[str, ...] = ()
    unproved: frozenset[str] = frozenset()
    """Properties of the kernel that hold and are not proved."""

    @property
    def sequence(self) -> LaunchSequence:
        scalars = tuple(ScalarArgument(name, "s32", name) for name in self.dimensions)
        launch = KernelLaunch(
            ENTRY,
            (Formula(self.grid), Formula("1"), Formula("1")),
            (self.threads, 1, 1),
            (*[argument.name for argument in self.arrays], *self.dimensions),
        )
        dimensions = tuple(Dimension(name, name, 1 if name.startswith("ld") else 0, MAX_EXTENT) for name in self.dimensions)
        constraints = tuple(Constraint(Formula(text), text) for text in self.constraints)
        return LaunchSequence(ENTRY, dimensions, (*self.arrays, *scalars), (launch,), constraints)


SCALE = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int n)
{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n)
        y[i] = 2 * x[i];
}
""",
    (array("x", "input", ("n",), ("1",)), array("y", "output", ("n",), ("1",))),
    ("n",),
    "ceil_div(n, 256)",
    256,
    {
        "guard lets one more thread in": ("i < n", "i <= n", "memory"),
        "guard is missing": ("if (i < n)", "", "memory"),
        "all threads store one element": ("y[i]", "y[i / 2]", "once"),
        "blocks overlap": ("blockIdx.x * 256", "blockIdx.x * 255", "once"),
        "input is written": ("y[i] = 2 * x[i]", "((float*)x)[i] = 2", "memory"),
        "reads before the array": ("x[i]", "x[i - 1]", "memory"),
    },
)

GRID_STRIDE = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int n)
{
    for (long long i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128)
        y[i] = x[i] + 1;
}
""",
    (array("x", "input", ("n",), ("1",)), array("y", "output", ("n",), ("1",))),
    ("n",),
    "min(ceil_div(n, 128), 64)",
    128,
    {
        "step is half a grid": ("i += gridDim.x * 128", "i += gridDim.x * 64", "once"),
        "loop runs one element too far": ("i < n", "i <= n", "memory"),
        "a loop that stands still": ("i += gridDim.x * 128", "i += 0", "progress"),
    },
    unproved=frozenset({"once", "complete"}),
)

TRANSPOSE = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int m, int n, int ldx, int ldy)
{
    __shared__ float tile[16][17];
    int tiles = (n + 15) / 16;
    int row = blockIdx.x / tiles * 16, column = blockIdx.x % tiles * 16;
    int r = threadIdx.x / 16, c = threadIdx.x % 16;
    if (row + r < m && column + c < n)
        tile[r][c] = x[(long long)(row + r) * ldx + column + c];
    __syncthreads();
    if (column + r < n && row + c < m)
        y[(long long)(column + r) * ldy + row + c] = tile[c][r];
}
""",
    (array("x", "input", ("m", "n"), ("ldx", "1")), array("y", "output", ("n", "m"), ("ldy", "1"))),
    ("m", "n", "ldx", "ldy"),
    "ceil_div(m, 16) * ceil_div(n, 16)",
    256,
    {
        "no barrier": ("__syncthreads();", "", "races"),
        "barrier only for some": ("__syncthreads();", "if (r < 8) __syncthreads();", "progress"),
        "columns without a guard": ("row + r < m && column + c < n", "row + r < m", "memory"),
        "wrong stride": ("(column + r) * ldy", "(column + r) * ldx", "memory"),
        "row number overflows 32 bits": ("(long long)(row + r) * ldx", "(row + r) * ldx", "memory"),
        "tile too narrow": ("tile[16][17]", "tile[16][15]", "memory"),
        "rows stored twice": ("column + r) * ldy", "column + r / 2) * ldy", "once"),
    },
    constraints=("ldx >= n", "ldy >= m"),
    unproved=frozenset({"initialised"}),
)

BLOCK_SUM = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int n)
{
    __shared__ float sums[128];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 128)
        sum += x[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        y[0] = sums[0];
}
""",
    (array("x", "input", ("n",), ("1",)), array("y", "output", ("1",), ("1",))),
    ("n",),
    "1",
    128,
    {
        "no barrier within the tree": ("        __syncthreads();\n    }", "    }", "races"),
        "tree reaches beyond": ("threadIdx.x + half]", "threadIdx.x + half + 64]", "memory"),
        "every thread stores the sum": ("if (threadIdx.x == 0)", "", "once"),
        "loop starts one late and ends one late": ("int i = threadIdx.x; i < n", "int i = threadIdx.x + 1; i <= n", "memory"),
    },
)

RING = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int n)
{
    __shared__ float stages[2][64];
    float sum = 0;
    int stage = 0;
    stages[0][threadIdx.x] = threadIdx.x < n ? x[threadIdx.x] : 0;
    __syncthreads();
    for (int at = 64; at < n; at += 64) {
        int next = at + threadIdx.x;
        sum += stages[stage][63 - threadIdx.x];
        stages[stage ^ 1][threadIdx.x] = next < n ? x[next] : 0;
        __syncthreads();
        stage ^= 1;
    }
    y[threadIdx.x] = sum + stages[stage][63 - threadIdx.x];
}
""",
    (array("x", "input", ("n",), ("1",)), array("y", "output", ("64",), ("1",))),
    ("n",),
    "1",
    64,
    {
        "one stage instead of two": ("stages[stage ^ 1][threadIdx.x] =", "stages[stage][threadIdx.x] =", "races"),
        "no barrier between turns": ("        __syncthreads();\n", "", "races"),
        "tail without a guard": ("next < n ? x[next] : 0", "x[next]", "memory"),
    },
    constraints=("n >= 1",),
    unproved=frozenset({"initialised"}),
)

BATCH = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int batch, int m, int n, int ldx, int ldy, int stride_x, int stride_y)
{
    int tiles = (n + 31) / 32;
    long long product = blockIdx.x / (tiles * m);
    int row = blockIdx.x / tiles % m, column = blockIdx.x % tiles * 32 + threadIdx.x;
    if (column < n)
        y[product * stride_y + (long long)row * ldy + column] = x[product * stride_x + (long long)row * ldx + column];
}
""",
    (
        array("x", "input", ("batch", "m", "n"), ("stride_x", "ldx", "1")),
        array("y", "output", ("batch", "m", "n"), ("stride_y", "ldy", "1")),
    ),
    ("batch", "m", "n", "ldx", "ldy", "stride_x", "stride_y"),
    "batch * (m * ceil_div(n, 32))",
    32,
    {
        "one product over another": ("y[product * stride_y", "y[product / 2 * stride_y", "once"),
        "rows without their product": ("y[product * stride_y +", "y[", "once"),
        "the stride of rows for products": ("y[product * stride_y", "y[product * ldy", "memory"),
        "columns without a guard": ("if (column < n)", "", "memory"),
    },
    constraints=("ldx >= n", "ldy >= n"),
    unproved=frozenset({"complete"}),
)

WARP_TILES = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int m, int n, int ldy)
{
    int across = (n + 31) / 32, lane = threadIdx.x % 32;
    for (int tile = blockIdx.x * 4 + threadIdx.x / 32; tile < m * across; tile += gridDim.x * 4) {
        int row = tile / across, column = tile % across * 32 + lane;
        if (column < n)
            y[(long long)row * ldy + column] = x[column];
    }
}
""",
    (array("x", "input", ("n",), ("1",)), array("y", "output", ("m", "n"), ("ldy", "1"))),
    ("m", "n", "ldy"),
    "min(ceil_div(m * ceil_div(n, 32), 4), 64)",
    128,
    {
        "two warps share their tiles": ("threadIdx.x / 32", "threadIdx.x / 64", "once"),
        "blocks begin too close": ("blockIdx.x * 4", "blockIdx.x * 3", "once"),
        "steps of half the grid": ("tile += gridDim.x * 4", "tile += gridDim.x * 2", "once"),
        "columns at half their distance": ("% across * 32", "% across * 16", "once"),
        "two rows in one": ("row = tile / across", "row = tile / across / 2", "once"),
        "the remainder by another number": ("tile % across", "tile % (across / 2 + 1)", "once"),
        "lanes share columns": ("threadIdx.x % 32", "threadIdx.x % 32 / 2", "once"),
        "the first tiles again": ("int row = tile / across", "tile = tile < 8 ? tile / 2 : tile; int row = tile / across", "once"),
    },
    constraints=("ldy >= n", "m <= 4096", "n <= 4096"),
    unproved=frozenset({"complete"}),
)

KEPT = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int m, int n)
{
    int last = -1;
    float kept[2];
    for (int row = blockIdx.x * 4 + threadIdx.x / 32; row < m; row += gridDim.x * 4) {
        int column = row % n;
        if (column != last) {
            kept[0] = x[column];
            kept[1] = x[column] * x[0];
            last = column;
        }
        if (threadIdx.x % 32 == 0)
            y[row] = kept[0] + kept[1];
    }
}
""",
    (array("x", "input", ("n",), ("1",)), array("y", "output", ("m",), ("1",))),
    ("m", "n"),
    "min(ceil_div(m, 4), 64)",
    128,
    {
        "the first column counts as kept": ("int last = -1", "int last = 0", "initialised"),
        "another column counts as kept": ("column != last", "column != last + 1", "initialised"),
        "only later columns are loaded": ("column != last", "column > last + 1", "initialised"),
    },
    constraints=("n >= 1", "m <= 4096"),
    unproved=frozenset({"complete"}),
)

ROWS = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int m, int n, int ldx)
{
    __shared__ float first[64];
    int place = (threadIdx.x & 0x35) | ((threadIdx.x & 8) >> 2) | ((threadIdx.x & 2) << 2);
    int column = blockIdx.x * 64 + place;
    const float* source = x + column;
    bool mine = column < n;
    if (mine && m > 0) {
        first[place] = *source;
        source += ldx;
    } else
        first[place] = 0;
    __syncthreads();
    float total = first[place];
    for (int row = 1; row < m; ++row) {
        if (mine)
            total += *source;
        source += ldx;
    }
    if (mine)
        y[column] = total;
}
""",
    (array("x", "input", ("m", "n"), ("ldx", "1")), array("y", "output", ("n",), ("1",))),
    ("m", "n", "ldx"),
    "ceil_div(n, 64)",
    64,
    {
        "a first row where there is none": ("m > 0", "m >= 0", "memory"),
        "the first row is passed over twice": ("source += ldx;", "source += 2 * ldx;", "memory"),
        "the first row is passed over in one case": ("source += ldx;", "if (m > 7) source += 2 * (long long)ldx;", "memory"),
        "one row too many": ("row = 1", "row = 0", "memory"),
        "the last row twice": ("row < m", "row <= m", "memory"),
        "a bit that two places share": ("8) >> 2", "8) >> 3", "once"),
        "a bit that is left out": ("0x35", "0x34", "once"),
        "a bit beyond the block's columns": ("2) << 2", "2) << 5", "races"),
    },
    constraints=("ldx >= n",),
    unproved=frozenset({"complete", "initialised"}),
)

VECTORS = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int m, int n, int ldy)
{
    const int pitch = (n + 3) / 4 * 4;
    const long long at = (static_cast<long long>(blockIdx.x) * 256 + threadIdx.x) * 4;
    if (at >= static_cast<long long>(m) * pitch)
        return;
    const int row = static_cast<int>(at / pitch);
    const int column = static_cast<int>(at % pitch);
    const float4 vector = *reinterpret_cast<const float4*>(x + at);
    const float values[4] = {vector.x, vector.y, vector.z, vector.w};
    for (int v = 0; v < 4; ++v)
        y[static_cast<long long>(row) * ldy + column + v] = values[v];
}
""",
    (array("x", "input", ("m * n",), ("1",), 16), array("y", "output", ("m", "n"), ("ldy", "1"))),
    ("m", "n", "ldy"),
    "ceil_div(ceil_div(m * n, 4), 256)",
    256,
    {
        "vectors overlap": ("threadIdx.x) * 4", "threadIdx.x) * 3", "once"),
        "two elements of a vector are one": ("column + v", "column + v / 2", "complete"),
        "rows of another width": ("at % pitch", "at % (pitch + 4)", "once"),
        "a row is divided by another width": ("at / pitch", "at / (pitch + 4)", "once"),
        "columns of the low bits": ("at % pitch", "at % 4096", "once"),
        "a column too far": ("column + v", "column + v + 1", "memory"),
        "the last vectors are missing": (">= static_cast<long long>(m) * pitch", ">= static_cast<long long>(m) * pitch - 4", "complete"),
    },
    ("n % 4 == 0", "ldy >= n", "m * n <= 68719476736"),
)

SAMPLES = {
    "scale": SCALE,
    "grid stride": GRID_STRIDE,
    "transpose": TRANSPOSE,
    "block sum": BLOCK_SUM,
    "ring": RING,
    "batch": BATCH,
    "warp tiles": WARP_TILES,
    "kept": KEPT,
    "rows": ROWS,
    "vectors": VECTORS,
}
