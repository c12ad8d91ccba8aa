"""Kernels in other styles whose blocks use the memory of their cluster: right ones are proved, and none of their mistakes is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("z3")

from gemmgen.cli.proof_files import ForeignKernel, read_foreign
from gemmgen.proof.prover import prove_sequence

SECONDS = 30.0
TOOLS = r"""
__device__ __forceinline__ unsigned near(const void* place) { return static_cast<unsigned>(__cvta_generic_to_shared(place)); }
__device__ __forceinline__ unsigned there(const void* place, unsigned rank)
{
    unsigned found;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(near(place)), "r"(rank));
    return found;
}
__device__ __forceinline__ float read(unsigned place)
{
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(place) : "memory");
    return value;
}
__device__ __forceinline__ void write(unsigned place, float value)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(place), "f"(value) : "memory");
}
__device__ __forceinline__ unsigned my_rank() { unsigned rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); return rank; }
__device__ __forceinline__ void arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void meet() { arrive(); wait(); }
"""


@dataclass(frozen=True)
class Right:
    """A kernel and its launch."""

    blocks: int
    parameters: str
    body: str
    arrays: tuple[str, ...]
    grid: str
    block: int = 256
    expects: tuple[str, ...] = ()
    size: int = 1000

    def read(self, body: str, folder: Path, grid: str = "") -> ForeignKernel:
        file = folder / "kernel.cu"
        head = f'extern "C" __global__ void __cluster_dims__({self.blocks}, 1, 1) kernel({self.parameters})'
        file.write_text(f"{TOOLS}\n{head}\n{{\n{body}\n}}\n")
        return read_foreign(
            file,
            entry_name=None,
            architecture="sm_90",
            block=(self.block,),
            grid=grid or self.grid,
            arrays=self.arrays,
            expects=self.expects,
            shared="0",
            seconds=SECONDS,
        )


SUM = Right(
    2,
    "const float* x, float* sums, int n",
    """
    __shared__ float part[256];
    const unsigned rank = my_rank(), t = threadIdx.x;
    const int i = blockIdx.x * 256 + t;
    part[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int s = 128; s > 0; s /= 2) {
        if (t < s)
            part[t] += part[t + s];
        __syncthreads();
    }
    meet();
    if (rank == 0 && t == 0)
        sums[blockIdx.x / 2] = part[0] + read(there(part, 1));
    meet();
""",
    ("x=in f32[n]", "sums=out f32[ceil_div(n, 512)]"),
    "2 * ceil_div(n, 512)",
)
HALO = Right(
    2,
    "const float* x, float* y, int n",
    """
    __shared__ float row[258];
    const unsigned rank = my_rank(), t = threadIdx.x;
    const int i = blockIdx.x * 256 + t;
    const float mine = i < n ? x[i] : 0.0f;
    row[1 + t] = mine;
    if (t == 0)
        row[rank == 0 ? 0 : 257] = 0.0f;
    meet();
    if (t == (rank == 0 ? 255 : 0))
        write(there(row + (rank == 0 ? 0 : 257), rank ^ 1), mine);
    meet();
    if (i < n)
        y[i] = row[t] + row[t + 1] + row[t + 2];
""",
    ("x=in f32[n]", "y=out f32[n]"),
    "2 * ceil_div(n, 512)",
)
BROADCAST = Right(
    4,
    "const float* scale, float* y, int n",
    """
    __shared__ float row[64];
    const unsigned rank = my_rank(), t = threadIdx.x;
    if (rank == 0)
        row[t] = scale[t];
    meet();
    const float factor = read(there(row + t, 0));
    const int i = blockIdx.x * 64 + t;
    if (i < n)
        y[i] = factor;
    meet();
""",
    ("scale=in f32[64]", "y=out f32[n]"),
    "4 * ceil_div(n, 256)",
    64,
)
EXCHANGE = Right(
    4,
    "const float* x, float* y, int n",
    """
    __shared__ float box[256];
    const unsigned rank = my_rank(), t = threadIdx.x;
    const int i = blockIdx.x * 256 + t;
    const float mine = i < n ? x[i] : 0.0f;
    meet();
    write(there(box + rank * 64 + t / 4, t % 4), mine);
    meet();
    if (i < n)
        y[i] = box[t];
""",
    ("x=in f32[n]", "y=out f32[n]"),
    "4 * ceil_div(n, 1024)",
)
ROTATION = Right(
    4,
    "const float* x, float* y, int n",
    """
    __shared__ float box[2][128];
    const unsigned rank = my_rank(), t = threadIdx.x;
    const int i = blockIdx.x * 128 + t;
    float total = i < n ? x[i] : 0.0f;
    box[0][t] = total;
    #pragma unroll
    for (int turn = 0; turn < 3; ++turn) {
        meet();
        const float next = read(there(&box[turn % 2][t], (rank + 1) % 4));
        total += next;
        box[(turn + 1) % 2][t] = next;
    }
    meet();
    if (i < n)
        y[i] = total;
""",
    ("x=in f32[n]", "y=out f32[n]"),
    "4 * ceil_div(n, 512)",
    128,
)
MATRIX = Right(
    2,
    "const float* A, float* C, int m, int n, int lda",
    """
    __shared__ float tile[32][33];
    const unsigned rank = my_rank(), x = threadIdx.x % 32, y = threadIdx.x / 32;
    const int row = (blockIdx.x / 2) * 8 + y, column = (blockIdx.y * 2 + rank) * 32 + x;
    const float mine = row < m && column < n ? A[static_cast<long long>(row) * lda + column] : 0.0f;
    meet();
    write(there(&tile[y][x], 1 - rank), mine);
    meet();
    if (row < m && column < n)
        C[static_cast<long long>(row) * n + column] = tile[y][x];
""",
    ("A=in f32[m, n : lda, 1]", "C=out f32[m, n]"),
    "2 * ceil_div(m, 8), ceil_div(n, 64)",
    expects=("lda >= n",),
    size=100,
)
KERNELS = {"sum": SUM, "halo": HALO, "broadcast": BROADCAST, "exchange": EXCHANGE, "rotation": ROTATION, "matrix": MATRIX}
ALL = {"memory", "races", "once", "progress", "initialised", "complete"}


@dataclass(frozen=True)
class Wrong:
    """A text of a kernel that is exchanged, the property that does not hold then, and a size for which the emulator reports it."""

    kernel: str
    old: str
    new: str
    property: str
    size: int = 1000
    which: int = 0
    seen: bool = True
    """False for a fault that the emulator's order of threads does not show."""


MISTAKES = {
    "a block may end while its partner reads": Wrong("sum", "    meet();\n", "", "races", which=1),
    "the block alone meets before its sum is read": Wrong("sum", "meet();", "__syncthreads();", "races"),
    "a sum of the third of two blocks": Wrong("sum", "there(part, 1)", "there(part, 2)", "memory"),
    "a sum behind the array": Wrong("sum", "there(part, 1)", "there(part + 256, 1)", "memory"),
    "both blocks store the sum": Wrong("sum", "rank == 0 && t == 0", "t == 0", "once"),
    "a sum for each block": Wrong("sum", "sums[blockIdx.x / 2]", "sums[blockIdx.x]", "memory"),
    "the partner changes its sum while it is read": Wrong(
        "sum", "    meet();\n    if (rank", "    meet();\n    part[t] += 1.0f;\n    if (rank", "races"
    ),
    "half of the threads meet": Wrong("sum", "meet();", "if (t < 128) meet();", "progress", seen=False),
    "one block of two meets": Wrong("sum", "meet();\n    if (rank", "if (rank == 0) meet();\n    if (rank", "progress"),
    "no sum for some sizes": Wrong(
        "sum", "meet();\n    if (rank", "meet();\n    if (n < 1000000 && n > 1000) return;\n    if (rank", "complete", seen=False
    ),
    "blocks meet for small sizes": Wrong("sum", "meet();\n    if (rank", "if (n < 3000) meet();\n    if (rank", "races", 4000),
    "a tail that is not initialised": Wrong("sum", "part[t] = i < n ? x[i] : 0.0f;", "if (i < n) part[t] = x[i];", "initialised"),
    "indices above 2^31": Wrong("sum", "i < n ?", "i <= n ?", "memory", 1000),
    "the border of the own block": Wrong("halo", "rank ^ 1", "rank", "initialised"),
    "the border is a column of the partner": Wrong(
        "halo", "rank == 0 ? 0 : 257), rank ^ 1", "rank == 0 ? 1 : 256), rank ^ 1", "initialised"
    ),
    "the border comes before the partner began": Wrong("halo", "    meet();\n", "    __syncthreads();\n", "races"),
    "the border comes after the block read it": Wrong("halo", "    meet();\n    if (i", "    __syncthreads();\n    if (i", "races"),
    "every thread stores the border": Wrong("halo", "if (t == (rank == 0 ? 255 : 0))", "", "races"),
    "a border behind the row": Wrong("halo", "(rank == 0 ? 0 : 257), rank ^ 1", "(rank == 0 ? 0 : 258), rank ^ 1", "memory"),
    "a factor of the next block": Wrong("broadcast", "there(row + t, 0)", "there(row + t, rank + 1)", "memory"),
    "a factor of another block": Wrong("broadcast", "there(row + t, 0)", "there(row + t, 1)", "initialised"),
    "the first block may end early": Wrong("broadcast", "    meet();\n", "", "races", which=1),
    "the first block does not stay": Wrong(
        "broadcast", "    meet();\n    const", "    meet();\n    if (rank == 0 && n == 77) return;\n    const", "progress", 77
    ),
    "boxes of four blocks at one place": Wrong("exchange", "box + rank * 64 + t / 4", "box + t / 4", "races"),
    "boxes that overlap": Wrong("exchange", "rank * 64", "rank * 63", "races"),
    "boxes beyond the array": Wrong("exchange", "rank * 64", "rank * 65", "memory"),
    "a box that no block fills": Wrong("exchange", "t % 4), mine", "t % 2), mine", "initialised"),
    "boxes are stored before the blocks meet": Wrong("exchange", "    meet();\n    write", "    write", "races"),
    "boxes are read before they are stored": Wrong("exchange", "    meet();\n    if", "    __syncthreads();\n    if", "races"),
    "a store between arrival and wait": Wrong("exchange", "    meet();\n    write", "    arrive();\n    write", "races"),
    "one buffer in place of two": Wrong("rotation", "box[(turn + 1) % 2][t] = next", "box[turn % 2][t] = next", "races"),
    "the last turn is read from a block that may have ended": Wrong("rotation", "    meet();\n    if (i", "    if (i", "races"),
    "a neighbour behind the last": Wrong("rotation", "(rank + 1) % 4", "rank + 1", "memory"),
    "blocks of a cluster have one column": Wrong("matrix", "(blockIdx.y * 2 + rank) * 32", "blockIdx.y * 64", "complete", 100, seen=False),
    "columns of the partner": Wrong(
        "matrix", "(blockIdx.y * 2 + rank) * 32 + x;", "(blockIdx.y * 2 + rank) * 16 + x;", "once", 100, seen=False
    ),
    "rows by the block": Wrong("matrix", "(blockIdx.x / 2) * 8", "blockIdx.x * 8", "complete", 100, seen=False),
}


def problem(right: Right, size: int) -> dict[str, int]:
    names = [part.split()[-1] for part in right.parameters.split(", ") if part.startswith("int ")]
    return dict.fromkeys(names, size)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_clusters_are_proved(name: str, tmp_path: Path) -> None:
    right = KERNELS[name]
    kernel = right.read(right.body, tmp_path)
    proof = prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)[0]
    assert {*proof.proved} == ALL, [each.reasons for each in proof.properties]
    assert [finding.message for finding in kernel.faults(problem(right, right.size))] == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_with_a_cluster_is_not_proved(mistake: str, tmp_path: Path) -> None:
    wrong = MISTAKES[mistake]
    right = KERNELS[wrong.kernel]
    parts = right.body.split(wrong.old)
    body = wrong.old.join(parts[: wrong.which + 1]) + wrong.new + wrong.old.join(parts[wrong.which + 1 :])
    assert len(parts) > wrong.which + 1
    assert body != right.body
    kernel = right.read(body, tmp_path)
    assert wrong.property not in prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)[0].proved
    assert bool(kernel.faults(problem(right, wrong.size))) is wrong.seen
