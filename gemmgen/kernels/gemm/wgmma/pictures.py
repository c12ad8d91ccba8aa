"""Pictures of a GEMM by warpgroups."""

from __future__ import annotations

from gemmgen.hardware.shared_memory import WARP
from gemmgen.kernels.gemm.overview import product_overview, shares_of_k
from gemmgen.kernels.gemm.wgmma.plan import WgmmaPlan
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS, WarpgroupLoop
from gemmgen.kernels.pictures import Division, Picture, Share, TileHierarchy
from gemmgen.kernels.pipeline_picture import pipeline


def pictures(plan: WgmmaPlan) -> list[Picture]:
    """Tiles, the pipeline, and the division of k."""
    return [_warpgroup_tiles(plan, plan.loop), pipeline("tma", plan.loop.stages), *shares_of_k(plan, plan.loop.tile_k)]


def _warpgroup_tiles(plan: WgmmaPlan, loop: WarpgroupLoop) -> TileHierarchy:
    """From the product to a lane's share of the result of one instruction (PTX ISA, "Register Fragments" of wgmma)."""
    rows = loop.blocks_m * BLOCK_ROWS
    groups = tuple(Share(group, ((group * rows, 0, rows, loop.tile_n),)) for group in range(loop.tile_m // rows))
    notes = (f"{loop.consumers} groups that multiply, a producer", *(("a tile each, alternately",) if loop.ping_pong else ()))
    block = Division("threadblock tile", loop.tile_m, loop.tile_n, "m", "n", "warpgroup", groups, notes)
    warps = tuple(
        Share(warp, tuple((block_m * BLOCK_ROWS + 16 * warp, 0, 16, loop.tile_n) for block_m in range(loop.blocks_m))) for warp in range(4)
    )
    group = Division("tile of a warpgroup", rows, loop.tile_n, "m", "n", "warp", warps, (f"instructions of 64 × {loop.instruction_n}",))
    lanes = tuple(
        Share(lane, tuple((lane // 4 + 8 * half, 8 * j + lane % 4 * 2, 1, 2) for half in range(2) for j in range(loop.tile_n // 8)))
        for lane in range(WARP)
    )
    warp_tile = Division("rows of a warp", 16, loop.tile_n, "m", "n", "lane", lanes, ("pairs of neighbours, in every 8 columns",))
    stages = f"{loop.stages} stages in shared memory, filled by TMA"
    slices = f"in blue: the block's slices of A and B, {loop.tile_k} deep; bold: the one that is multiplied"
    overview = product_overview(plan, loop.tile_k, loop.stages, (slices, stages))
    return TileHierarchy("Tile hierarchy", overview, (block, group, warp_tile))
