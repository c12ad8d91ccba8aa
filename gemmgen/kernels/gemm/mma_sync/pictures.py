"""Pictures of a GEMM by warps that multiply fragments."""

from __future__ import annotations

from gemmgen.hardware.shared_memory import WARP
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.mma_sync.plan import MmaSyncPlan
from gemmgen.kernels.gemm.overview import product_overview, shares_of_k
from gemmgen.kernels.gemm.scaling import TILE_BLOCKS, TILE_LINES
from gemmgen.kernels.pictures import Division, Picture, Share, TileHierarchy
from gemmgen.kernels.pipeline_picture import pipeline
from gemmgen.kernels.tensor_memory_picture import scale_tile

_SCALE_READERS = (
    "a lane loads a word, the scales of one line; its byte id chooses among them (lanes 4 r and 4 r + 1: rows r and r + 8 of A, "
    "lane 4 c: column c of B)"
)


def pictures(plan: MmaSyncPlan) -> list[Picture]:
    """Tiles, the pipeline of asynchronous copies, and the division of k."""
    flow = [pipeline("cp_async", plan.loop.stages)] if plan.loop.any_async else []
    scales = [scale_tile(TILE_LINES, TILE_BLOCKS, _SCALE_READERS)] if plan.loop.scaled is not None else []
    return [_mma_tiles(plan, plan.loop), *flow, *shares_of_k(plan, plan.loop.tile_k), *scales]


def _mma_tiles(plan: MmaSyncPlan, loop: WarpLoop) -> TileHierarchy:
    """From the product to a lane's share of the results of a warp (PTX ISA, "Matrix Fragments for mma.m16n8k16")."""
    warps = tuple(
        Share(warp, ((warp // loop.warps_n * loop.warp_m, warp % loop.warps_n * loop.warp_n, loop.warp_m, loop.warp_n),))
        for warp in range(loop.warps_m * loop.warps_n)
    )
    block = Division("threadblock tile", loop.tile_m, loop.tile_n, "m", "n", "warp", warps, (f"{loop.threads} threads",))
    rows, columns = (1, 2) if loop.vectors is None else (loop.vectors.rows, loop.vectors.columns)
    downs, acrosses = range(0, loop.warp_m, 8 * rows), range(0, loop.warp_n, 4 * columns)
    lanes = tuple(
        Share(lane, tuple((down + lane // 4 * rows, across + lane % 4 * columns, rows, columns) for down in downs for across in acrosses))
        for lane in range(WARP)
    )
    note = "pairs of neighbours, in every 8 rows and columns"
    if loop.vectors is not None:
        note = f"{columns} neighbours of {rows} {'rows' if rows > 1 else 'row'}, in every {8 * rows} rows and {4 * columns} columns"
    warp_tile = Division("warp tile", loop.warp_m, loop.warp_n, "m", "n", "lane", lanes, (note, "instructions of 16 × 8"))
    slices = f"in blue: the block's slices of A and B, {loop.tile_k} deep; bold: the one that is multiplied"
    place = "read straight from global memory" if loop.direct else f"{loop.stages} stages in shared memory"
    overview = product_overview(plan, loop.tile_k, 1 if loop.direct else loop.stages, (slices, place))
    return TileHierarchy("Tile hierarchy", overview, (warp_tile,) if loop.direct else (block, warp_tile))
