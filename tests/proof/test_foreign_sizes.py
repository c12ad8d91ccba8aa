"""Kernels in other styles whose mistakes depend on sizes: none is proved, their right twins are, and the emulator shows the mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("z3")

from gemmgen.cli.proof_files import ForeignKernel, read_foreign
from gemmgen.proof.prover import prove_sequence

SECONDS = 30.0
VECTOR = ("x=in f32[n]", "y=out f32[n]")


@dataclass(frozen=True)
class Pair:
    """A kernel, the text of its right twin that a mistake exchanges, and the property that then does not hold."""

    parameters: str
    body: str
    old: str
    new: str
    property: str
    arrays: tuple[str, ...] = VECTOR
    grid: str = "ceil_div(n, 64)"
    block: tuple[int, ...] = (64,)
    expects: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (1000,)
    seen: bool = True
    """False for a mistake that the emulator cannot report: an element that no thread stores, or sizes too large to run."""

    def read(self, body: str, folder: Path) -> ForeignKernel:
        file = folder / "kernel.cu"
        file.write_text(f'extern "C" __global__ void kernel({self.parameters})\n{{\n{body}\n}}\n')
        return read_foreign(
            file,
            entry_name=None,
            architecture=None,
            block=self.block,
            grid=self.grid,
            arrays=self.arrays,
            expects=self.expects,
            shared="0",
            seconds=SECONDS,
        )

    @property
    def problem(self) -> dict[str, int]:
        names = [part.split()[-1] for part in self.parameters.split(", ") if part.startswith("int ")]
        return dict(zip(names, self.sizes * len(names) if len(self.sizes) == 1 else self.sizes, strict=False))


MAP = "const float* x, float* y, int n"
PAIRS = {
    "four at a time, and a tail of one to three": Pair(
        MAP,
        """
    const int i = (blockIdx.x * 64 + threadIdx.x) * 4;
    if (i + 3 < n)
        *reinterpret_cast<float4*>(y + i) = *reinterpret_cast<const float4*>(x + i);
    else
        for (int j = i; j < n; ++j)
            y[j] = x[j];
""",
        "i + 3 < n",
        "i + 2 < n",
        "memory",
        ("x=in f32[n] @16", "y=out f32[n] @16"),
        "ceil_div(n, 256)",
        expects=("n <= 2147483000",),
        sizes=(1003,),
    ),
    "the left neighbour of the first, unsigned": Pair(
        MAP,
        """
    const unsigned i = blockIdx.x * 64 + threadIdx.x;
    if (i < n)
        y[i] = i - 1 < static_cast<unsigned>(n) ? x[i - 1] : x[i];
""",
        "i - 1 < static_cast<unsigned>(n)",
        "static_cast<int>(i - 1) < n",
        "memory",
        sizes=(65,),
    ),
    "a remainder by a mask": Pair(
        MAP,
        """
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n)
        y[i] = x[(i + 1) % n];
""",
        "(i + 1) % n",
        "(i + 1) & n",
        "memory",
        expects=("n <= 2147483646",),
        sizes=(1000,),
    ),
    "threads leave before the others meet": Pair(
        MAP,
        """
    __shared__ float row[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    row[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n)
        y[i] = row[63 - threadIdx.x];
""",
        "row[threadIdx.x] = i < n ? x[i] : 0.0f;",
        "if (i >= n) return;\n    row[threadIdx.x] = x[i];",
        "initialised",
        sizes=(65,),
    ),
    "rows of a matrix in 32 bits": Pair(
        "const float* A, float* C, int m, int n",
        """
    const int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    if (row < m && column < n)
        C[static_cast<long long>(row) * n + column] = A[static_cast<long long>(row) * n + column];
""",
        "C[static_cast<long long>(row) * n + column]",
        "C[row * n + column]",
        "memory",
        ("A=in f32[m, n]", "C=out f32[m, n]"),
        "ceil_div(n, 32), ceil_div(m, 8)",
        (32, 8),
        seen=False,
    ),
    "a transposed matrix with the guards of the other": Pair(
        "const float* A, float* B, int m, int n",
        """
    __shared__ float tile[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    tile[threadIdx.y][threadIdx.x] = row < m && column < n ? A[static_cast<long long>(row) * n + column] : 0.0f;
    __syncthreads();
    row = blockIdx.x * 16 + threadIdx.y;
    column = blockIdx.y * 16 + threadIdx.x;
    if (row < n && column < m)
        B[static_cast<long long>(row) * m + column] = tile[threadIdx.x][threadIdx.y];
""",
        "row < n && column < m",
        "row < m && column < n",
        "memory",
        ("A=in f32[m, n]", "B=out f32[n, m]"),
        "ceil_div(n, 16), ceil_div(m, 16)",
        (16, 16),
        sizes=(40, 20),
    ),
    "a scan with one buffer": Pair(
        MAP,
        """
    __shared__ float rows[2][64];
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    int now = 0;
    rows[0][t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    #pragma unroll
    for (int step = 1; step < 64; step *= 2) {
        rows[1 - now][t] = t >= step ? rows[now][t] + rows[now][t - step] : rows[now][t];
        now = 1 - now;
        __syncthreads();
    }
    if (i < n)
        y[i] = rows[now][t];
""",
        "rows[1 - now][t] = ",
        "rows[step == 32 ? now : 1 - now][t] = ",
        "races",
    ),
    "a ring of three rows that fails in later turns": Pair(
        MAP,
        """
    __shared__ float ring[3][64];
    const int t = threadIdx.x;
    for (int turn = 0; turn < n / 64; ++turn) {
        ring[turn % 3][t] = x[turn * 64 + t];
        __syncthreads();
        y[turn * 64 + t] = ring[turn % 3][63 - t];
    }
""",
        "ring[turn % 3][63 - t];",
        "ring[(turn > 10 ? turn + 1 : turn) % 3][63 - t];",
        "races",
        grid="1",
        expects=("n % 64 == 0",),
        sizes=(1024,),
    ),
    "a loop of four with a rest": Pair(
        "const float* x, float* y, int n, int k",
        """
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= n)
        return;
    float total = 0.0f;
    for (int j = 0; j < k / 4; ++j)
        total += x[4 * j] + x[4 * j + 1] + x[4 * j + 2] + x[4 * j + 3];
    for (int j = k / 4 * 4; j < k; ++j)
        total += x[j];
    y[i] = total;
""",
        "j < k / 4;",
        "j < (k + 1) / 4;",
        "memory",
        ("x=in f32[k]", "y=out f32[n]"),
        expects=("k <= 1000000000",),
        sizes=(64, 7),
    ),
    "a parity in 8 bits": Pair(
        MAP,
        """
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n)
        y[i] = x[i];
""",
        "y[i] = x[i]",
        "y[static_cast<unsigned char>(i / 64) * 64 + i % 64] = x[i]",
        "once",
        sizes=(20000,),
        seen=False,
    ),
    "a last block of its own": Pair(
        MAP,
        """
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (blockIdx.x + 1 < gridDim.x || i < n)
        y[i] = x[i];
""",
        "blockIdx.x + 1 < gridDim.x",
        "blockIdx.x < gridDim.x",
        "memory",
        sizes=(130,),
    ),
    "a pyramid of halves": Pair(
        "const float* x, float* y, int n",
        """
    __shared__ float part[128];
    const int t = threadIdx.x, i = blockIdx.x * 128 + t;
    part[t] = i < n ? x[i] : 0.0f;
    #pragma unroll
    for (int s = 64; s > 0; s >>= 1) {
        __syncthreads();
        if (t < s)
            part[t] += part[t + s];
    }
    if (t == 0)
        y[blockIdx.x] = part[0];
""",
        "t < s)",
        "t <= s)",
        "races",
        ("x=in f32[n]", "y=out f32[ceil_div(n, 128)]"),
        "ceil_div(n, 128)",
        (128,),
    ),
    "a pointer that walks by the grid": Pair(
        MAP,
        """
    const float* from = x + blockIdx.x * 64 + threadIdx.x;
    float* to = y + blockIdx.x * 64 + threadIdx.x;
    for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) {
        *to = *from;
        from += gridDim.x * 64;
        to += gridDim.x * 64;
    }
""",
        "to += gridDim.x * 64;",
        "to += gridDim.x * 64 - 1;",
        "once",
        grid="min(ceil_div(n, 64), 4)",
        expects=("n <= 2147400000",),
        seen=False,
    ),
    "an even row for odd sizes": Pair(
        "const float* A, float* C, int m, int n, int ld",
        """
    const int row = blockIdx.x;
    for (int pair = threadIdx.x; pair < (n + 1) / 2; pair += 64) {
        C[static_cast<long long>(row) * ld + 2 * pair] = A[static_cast<long long>(row) * n + 2 * pair];
        if (2 * pair + 1 < n)
            C[static_cast<long long>(row) * ld + 2 * pair + 1] = A[static_cast<long long>(row) * n + 2 * pair + 1];
    }
""",
        "if (2 * pair + 1 < n)",
        "if (2 * pair + 1 < ld)",
        "memory",
        ("A=in f32[m, n]", "C=out f32[m, n : ld, 1]"),
        "m",
        expects=("ld >= n", "n <= 1000000000"),
        sizes=(2, 7, 9),
    ),
    "halves of a warp at one barrier": Pair(
        MAP,
        """
    __shared__ float row[64];
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    row[t] = i < n ? x[i] : 0.0f;
    asm volatile("bar.sync 1, 64;" ::: "memory");
    if (i < n)
        y[i] = row[t ^ 32];
""",
        "bar.sync 1, 64;",
        "bar.sync 1, 32;",
        "progress",
        seen=False,
    ),
    "a warp that reads another's row": Pair(
        MAP,
        """
    __shared__ float row[64];
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    row[t] = i < n ? x[i] : 0.0f;
    __syncwarp();
    if (i < n)
        y[i] = row[t ^ 16];
""",
        "row[t ^ 16]",
        "row[t ^ 48]",
        "races",
    ),
    "matrices of a batch that overlap": Pair(
        "const float* A, float* C, int b, int n",
        """
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n)
        C[static_cast<long long>(blockIdx.y) * n + i] = A[static_cast<long long>(blockIdx.y) * n + i];
""",
        "C[static_cast<long long>(blockIdx.y) * n + i]",
        "C[static_cast<long long>(blockIdx.y) * (n - n % 2) + i]",
        "once",
        ("A=in f32[b, n]", "C=out f32[b, n]"),
        "ceil_div(n, 64), b",
        sizes=(3, 65),
        seen=False,
    ),
    "a turn more where sizes are multiples": Pair(
        MAP,
        """
    __shared__ float row[64];
    const int t = threadIdx.x;
    for (int first = 0; first < n; first += 64) {
        row[t] = first + t < n ? x[first + t] : 0.0f;
        __syncthreads();
        if (first + t < n)
            y[first + t] = row[63 - t];
        __syncthreads();
    }
""",
        "            y[first + t] = row[63 - t];\n        __syncthreads();",
        "            y[first + t] = row[63 - t];\n        if (n % 4096 == 0) __syncthreads();",
        "races",
        grid="1",
        expects=("n <= 2147483000",),
        sizes=(200,),
    ),
    "indices that wrap around in 16 bits": Pair(
        MAP,
        """
    __shared__ float table[256];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t;
    table[t] = 1.0f;
    __syncthreads();
    if (i < n)
        y[i] = x[i] + table[(i + 7) % 256];
""",
        "table[(i + 7) % 256]",
        "table[static_cast<short>(i + 7) % 256]",
        "memory",
        grid="ceil_div(n, 256)",
        block=(256,),
        expects=("n <= 2147483000",),
        sizes=(40000,),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_right_twin_is_proved(name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    kernel = pair.read(pair.body, tmp_path)
    proof = prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)[0]
    assert pair.property in proof.proved, [each.reasons for each in proof.properties if each.name == pair.property]
    assert [finding.message for finding in kernel.faults(pair.problem)] == []


@pytest.mark.parametrize("name", PAIRS)
def test_a_mistake_of_some_sizes_is_not_proved(name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    body = pair.body.replace(pair.old, pair.new)
    assert body != pair.body
    kernel = pair.read(body, tmp_path)
    assert pair.property not in prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)[0].proved
    assert bool(kernel.faults(pair.problem)) is pair.seen
