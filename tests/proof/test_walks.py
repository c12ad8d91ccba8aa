"""Loops over the tiles of a result store each element: tiles that warps and blocks share among them, and mistakes in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("z3")

from gemmgen.proof.complete import complete
from tests.proof.kernels import GRID_STRIDE, Sample, array
from tests.proof.test_whole import lifted

PERSISTENT = Sample(
    """
extern "C" __global__ void kernel(const float* A, float* C, int m, int n, int k, int lda, int ldc)
{
    int across = (n + 7) / 8, tiles = (m + 7) / 8 * across;
    #pragma unroll 1
    for (int tile = blockIdx.x * 4 + threadIdx.x / 32; tile < tiles; tile += gridDim.x * 4) {
        int row = tile / across * 8 + threadIdx.x % 32 / 4, column = tile % across * 8 + threadIdx.x % 4 * 2;
        if (row >= m || column >= n) continue;
        float sum = A[(long long)row * lda];
        C[(long long)row * ldc + column] = sum;
        if (column + 1 < n) C[(long long)row * ldc + column + 1] = sum;
    }
}
""",
    (array("A", "input", ("m", "k"), ("lda", "1")), array("C", "output", ("m", "n"), ("ldc", "1"))),
    ("m", "n", "k", "lda", "ldc"),
    "min(ceil_div(ceil_div(m, 8) * ceil_div(n, 8), 4), 528)",
    128,
    constraints=("lda >= k", "ldc >= n", "ceil_div(m, 8) * ceil_div(n, 8) < 1073741824"),
)
STEPS = replace(GRID_STRIDE, source=GRID_STRIDE.source.replace("    for (", "    #pragma unroll 1\n    for ("))
ONE_TURN = replace(
    PERSISTENT,
    source=PERSISTENT.source.replace("    #pragma unroll 1\n    for (int tile", "    int tile")
    .replace("; tile < tiles; tile += gridDim.x * 4) {", "; if (tile < tiles)\ndo {")
    # `continue` then leaves the block of statements
    .replace("sum;\n    }\n}", "sum;\n    } while (false);\n}"),
    grid="ceil_div(ceil_div(m, 8) * ceil_div(n, 8), 4)",
)
LEFT_BEHIND_A_STORE = """
extern "C" __global__ void kernel(const float* A, float* C, int m, int n, int k, int lda, int ldc)
{
    int across = (n + 7) / 8, tiles = (m + 7) / 8 * across;
    int tile = blockIdx.x * 4 + threadIdx.x / 32;
    if (tile >= tiles) return;
    #pragma unroll 1
    for (;; tile += gridDim.x * 4) {
        int row = tile / across * 8 + threadIdx.x % 32 / 4, column = tile % across * 8 + threadIdx.x % 4 * 2;
        if (CONDITION) continue;
        if (row < m && column < n) C[(long long)row * ldc + column] = 1;
        if (row < m && column + 1 < n) C[(long long)row * ldc + column + 1] = 1;
        if (tile + gridDim.x * 4 >= tiles) break;
    }
}
"""
"""A thread leaves the loop only behind a store, which some turns miss."""
IN_LOOPS: dict[str, tuple[str, str]] = {
    "tiles are left out between two turns": ("gridDim.x * 4", "gridDim.x * 8"),
    "a tile is left out between two turns": ("gridDim.x * 4", "gridDim.x * 4 + 1"),
    "one block more steps": ("gridDim.x * 4", "(gridDim.x + 1) * 4"),
    "the step is that of the largest grid": ("gridDim.x * 4", "528 * 4"),
    "the first tile": ("blockIdx.x * 4 + threadIdx.x / 32", "blockIdx.x * 4 + threadIdx.x / 32 + 1"),
    "the first tiles": ("blockIdx.x * 4 +", "(blockIdx.x + 1) * 4 +"),
    "warps have the same tile": ("blockIdx.x * 4 + threadIdx.x / 32", "blockIdx.x * 4 + threadIdx.x / 64"),
    "the last warp has none": ("tile < tiles;", "tile < tiles && threadIdx.x < 96;"),
    "the last thread stores nothing": ("column >= n) continue", "column >= n || threadIdx.x == 127) continue"),
    "the last tile": ("tile < tiles;", "tile < tiles - 1;"),
    "only the first row of tiles": ("tile < tiles;", "tile < across;"),
    "tiles beyond a million": ("tile < tiles;", "tile < tiles && tile < 1000000;"),
    "the last column of tiles": ("int across = (n + 7) / 8", "int across = n / 8"),
    "rows of tiles are longer": ("tile / across * 8", "tile / (across + 1) * 8"),
    "a tile's columns lie further apart": ("tile % across * 8", "tile % across * 9"),
    "quotient and remainder change places": ("tile / across * 8", "tile % across * 8"),
    "a block stops at the edge": ("column >= n) continue", "column >= n) break"),
    "a block stops after its first tile": ("column + 1] = sum;\n", "column + 1] = sum;\n        break;\n"),
    "a tile of each row is left out": ("column >= n) continue", "column >= n || tile % across == 3) continue"),
    "every seventh tile is left out": ("column >= n) continue", "column >= n || tile % 7 == 3) continue"),
    "the first turn stores nothing": ("column >= n) continue", "column >= n || tile < gridDim.x * 4) continue"),
    "later turns store nothing": ("column >= n) continue", "column >= n || tile >= gridDim.x * 4) continue"),
    "an empty sum is not stored": ("        C[(long long)row * ldc + column] =", "        if (k > 0) C[(long long)row * ldc + column] ="),
    "data decides": ("        C[(long long)row * ldc + column] =", "        if (sum != 0) C[(long long)row * ldc + column] ="),
    "the second column": ("if (column + 1 < n) C", "if (column + 2 < n) C"),
    "rows lie upon others": ("threadIdx.x % 32 / 4, column", "threadIdx.x % 32 / 8, column"),
}
AT_ONCE: dict[str, tuple[str, str]] = {
    "the first tile": ("threadIdx.x / 32;", "threadIdx.x / 32 + 1;"),
    "warps have the same tile": ("threadIdx.x / 32;", "threadIdx.x / 64;"),
    "the last tile": ("tile < tiles)", "tile < tiles - 1)"),
    "a warp has none": ("tile < tiles)", "tile < tiles && threadIdx.x / 32 != 2)"),
    "the last column of tiles": ("int across = (n + 7) / 8", "int across = n / 8"),
    "more columns of tiles than the grid is for": ("int across = (n + 7) / 8", "int across = n / 8 + 1"),
    "a tile's rows": ("tile / across * 8", "tile / across * 4"),
}
STRIDES: dict[str, tuple[str, str]] = {
    "the step is larger": ("gridDim.x * 128", "gridDim.x * 129"),
    "the first element": ("blockIdx.x * 128 + threadIdx.x", "blockIdx.x * 128 + threadIdx.x + 1"),
    "the last element": ("i < n", "i < n - 1"),
    "elements beyond 2^20": ("i < n", "i < n && i < (1 << 20)"),
    "a thread": ("y[i] =", "if (threadIdx.x != 5) y[i] ="),
    "later turns": ("y[i] =", "if (i < gridDim.x * 128) y[i] ="),
    "an end at the first zero": ("y[i] = x[i] + 1;", "{ y[i] = x[i] + 1; if (x[i] == 0) break; }"),
}


@pytest.mark.parametrize("sample", [PERSISTENT, ONE_TURN, STEPS], ids=["persistent", "one turn", "grid stride"])
def test_loops_over_tiles_are_complete(sample: Sample) -> None:
    verdict = complete(lifted(sample.source, sample))
    assert verdict.holds, verdict.unproved


@pytest.mark.parametrize("grid", ["ceil_div(m, 8)", "264"])
def test_any_grid_of_a_loop_will_do(grid: str) -> None:
    assert complete(lifted(PERSISTENT.source, replace(PERSISTENT, grid=grid))).holds


@pytest.mark.parametrize("mistake", IN_LOOPS)
def test_tiles_that_turns_leave_out(mistake: str) -> None:
    text, instead = IN_LOOPS[mistake]
    assert PERSISTENT.source.count(text) == 1
    assert not complete(lifted(PERSISTENT.source.replace(text, instead), PERSISTENT)).holds


@pytest.mark.parametrize("mistake", AT_ONCE)
def test_tiles_that_no_warp_has(mistake: str) -> None:
    text, instead = AT_ONCE[mistake]
    assert ONE_TURN.source.count(text) == 1
    assert not complete(lifted(ONE_TURN.source.replace(text, instead), ONE_TURN)).holds


@pytest.mark.parametrize("mistake", STRIDES)
def test_elements_that_turns_leave_out(mistake: str) -> None:
    text, instead = STRIDES[mistake]
    assert STEPS.source.count(text) == 1
    assert not complete(lifted(STEPS.source.replace(text, instead), STEPS)).holds


@pytest.mark.parametrize("grid", ["m // 8", "ceil_div(ceil_div(m, 8) * ceil_div(n, 8), 5)", "(m // 8) * ceil_div(n, 8)", "1"])
def test_a_grid_with_too_few_warps(grid: str) -> None:
    assert not complete(lifted(ONE_TURN.source, replace(ONE_TURN, grid=grid))).holds


def test_a_loop_that_no_block_may_run() -> None:
    assert not complete(lifted(PERSISTENT.source, replace(PERSISTENT, grid="m // 8"))).holds


@pytest.mark.parametrize("condition", ["tile % 2 == 0", "tile < 10 * across"])
def test_a_loop_that_is_left_behind_a_store(condition: str) -> None:
    source = LEFT_BEHIND_A_STORE.replace("CONDITION", condition)
    assert not complete(lifted(source, PERSISTENT)).holds


def test_two_indices_that_depend_on_one_turn() -> None:
    source = """
extern "C" __global__ void kernel(float* C, int m, int n, int ldc)
{
    #pragma unroll 1
    for (int t = 0; blockIdx.x + t * gridDim.x < m && blockIdx.y + t * gridDim.y < n; ++t)
        C[(long long)(blockIdx.x + t * gridDim.x) * ldc + blockIdx.y + t * gridDim.y] = 1;
}
"""
    sample = Sample(source, (array("C", "output", ("m", "n"), ("ldc", "1")),), ("m", "n", "ldc"), "32", 1, constraints=("ldc >= n",))
    assert not complete(lifted(source, sample)).holds
