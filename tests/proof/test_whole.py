"""Shared memory is written before it is read, and every element of a result is stored: a product of matrices, and mistakes in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("z3")

from gemmgen.emulator.ptx.parser import parse
from gemmgen.proof.complete import complete
from gemmgen.proof.contract import Contract
from gemmgen.proof.initialised import initialised
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import progress
from gemmgen.proof.solver import Solver
from gemmgen.toolchain.nvrtc import compile_source
from tests.proof.kernels import Sample
from tests.proof.test_coverage import TILED

NOT_STORED: dict[str, tuple[str, str]] = {
    "a column is not stored": ("        a[r][c] =", "        if (c != 3) a[r][c] ="),
    "the last row is not stored": ("        a[r][c] =", "        if (r < 7) a[r][c] ="),
    "one thread stores nothing": ("        b[r][c] =", "        if (threadIdx.x != 17) b[r][c] ="),
    "nothing is stored for a small k": ("        b[r][c] =", "        if (k > 8) b[r][c] ="),
    "nothing is stored in the first turn": ("        a[r][c] =", "        if (at > 0) a[r][c] ="),
    "stores begin at a later row of tiles": ("        a[r][c] =", "        if (row >= 8) a[r][c] ="),
    "a column of the padding is read": ("sum += a[r][x]", "sum += a[r][x + 1]"),
    "only data decides on a store": ("        a[r][c] =", "        if (B[0] > 0) a[r][c] ="),
}
NOT_WHOLE: dict[str, tuple[str, str]] = {
    "the last row": ("if (row < m && column < n)", "if (row < m - 1 && column < n)"),
    "the last column": ("if (row < m && column < n)", "if (row < m && column + 1 < n)"),
    "one column": ("if (row < m && column < n)", "if (row < m && column < n && column != 5)"),
    "one column of each tile": ("if (row < m && column < n)", "if (row < m && column < n && c != 5)"),
    "all where k is 0": ("if (row < m && column < n)", "if (row < m && column < n && k > 0)"),
    "all where k is odd": ("if (row < m && column < n)", "if (row < m && column < n && k % 2 == 0)"),
    "rows beyond 2^20": ("if (row < m && column < n)", "if (row < m && column < n && row < (1 << 20))"),
    "the last warp": ("if (row < m && column < n)", "if (row < m && column < n && threadIdx.x < 32)"),
    "the last thread": ("if (row < m && column < n)", "if (row < m && column < n && threadIdx.x < 63)"),
    "a block": ("if (row < m && column < n)", "if (row < m && column < n && blockIdx.x != 77)"),
    "elements whose sum is 0": ("if (row < m && column < n)", "if (row < m && column < n && sum != 0)"),
    "rows that another row is stored to": ("C[(long long)row * ldc", "C[(long long)(row & ~1) * ldc"),
    "columns that another is stored to": ("* ldc + column]", "* ldc + column / 2]"),
    "a tile's edge": ("blockIdx.x % tiles * 8 + c;", "blockIdx.x % tiles * 9 + c;"),
    "tiles that another block has": ("blockIdx.x % tiles * 8 + c;", "blockIdx.x % (tiles / 2 + 1) * 8 + c;"),
    "rows of tiles": ("int row = blockIdx.x / tiles * 8", "int row = blockIdx.x / (tiles + 1) * 8"),
}


def lifted(source: str, sample: Sample = TILED) -> Lifter:
    """The lifted kernel, whose threads agree on barriers."""
    binary = compile_source(source, architecture="sm_80", options=[], name="sample.cu")
    module, sequence = parse(binary.ptx), sample.sequence
    lifter = Lifter(module, next(iter(module.functions.values())), Contract(sequence, sequence.launches[0]), Solver(60))
    lifter.lift()
    progress(lifter)
    return lifter


def test_both_properties_are_proved() -> None:
    lifter = lifted(TILED.source)
    assert initialised(lifter).holds and complete(lifter).holds


@pytest.mark.parametrize("mistake", NOT_STORED)
def test_memory_that_may_not_be_initialised(mistake: str) -> None:
    text, instead = NOT_STORED[mistake]
    assert TILED.source.count(text) == 1
    assert not initialised(lifted(TILED.source.replace(text, instead))).holds


def test_loads_before_the_barrier_are_not_initialised() -> None:
    source = TILED.source.replace("__syncthreads();\n        #pragma", "#pragma")
    assert not initialised(lifted(source)).holds


@pytest.mark.parametrize("mistake", NOT_WHOLE)
def test_results_that_may_not_be_whole(mistake: str) -> None:
    text, instead = NOT_WHOLE[mistake]
    assert TILED.source.count(text) == 1
    assert not complete(lifted(TILED.source.replace(text, instead))).holds


@pytest.mark.parametrize("grid", ["ceil_div(m, 8) * (n // 8)", "(m // 8) * ceil_div(n, 8)", "ceil_div(m, 16) * ceil_div(n, 8)", "1"])
def test_a_grid_with_too_few_blocks(grid: str) -> None:
    assert not complete(lifted(TILED.source, replace(TILED, grid=grid))).holds
