"""Pictures of a GEMM with a thread for each element of C."""

from __future__ import annotations

from collections.abc import Iterable

from gemmgen.hardware.shared_memory import WARP
from gemmgen.kernels.gemm.naive.plan import NaiveLoop, NaivePlan
from gemmgen.kernels.gemm.overview import product_overview
from gemmgen.kernels.pictures import Division, Picture, Rectangle, Share, TileHierarchy, product


def pictures(plan: NaivePlan) -> list[Picture]:
    """The tile of a block."""
    return [_naive_tiles(plan, plan.loop)]


def _naive_tiles(plan: NaivePlan, loop: NaiveLoop) -> TileHierarchy:
    warps = -(-plan.threads // WARP)
    shares = [
        Share(warp, _thread_rectangles(plan, loop, range(warp * WARP, min((warp + 1) * WARP, plan.threads)))) for warp in range(warps)
    ]
    block = Division(
        "threadblock tile", plan.tile_m, plan.tile_n, "m", "n", "warp", tuple(shares), (f"{plan.threads} threads, an element each",)
    )
    note = "no tiles in shared memory: each thread reads a row of A and a column of B from global memory, a value of each at a time"
    overview = product_overview(plan, 1, 1, (note,))
    return TileHierarchy("Tile hierarchy", overview, (block,))


def _thread_rectangles(plan: NaivePlan, loop: NaiveLoop, threads: Iterable[int]) -> tuple[Rectangle, ...]:
    """Rectangles of the elements of some threads, which are neighbours along the minor dimension."""
    by_major: dict[int, list[int]] = {}
    for thread in threads:
        by_major.setdefault(thread // loop.tile_minor, []).append(thread % loop.tile_minor)
    merged: dict[tuple[int, ...], list[int]] = {}
    for major, minors in by_major.items():
        merged.setdefault(tuple(minors), []).append(major)
    rectangles: list[Rectangle] = []
    for columns, rows in merged.items():
        rectangles += product(rows, columns) if plan.matrix_c.row_major else product(columns, rows)
    return tuple(rectangles)
