"""Pictures of a GEMM on tensor memory."""

from __future__ import annotations

from gemmgen.hardware.shared_memory import WARP
from gemmgen.kernels.gemm.overview import product_overview
from gemmgen.kernels.gemm.tcgen05.loop import COLUMNS, EPILOGUE_WARPS
from gemmgen.kernels.gemm.tcgen05.plan import TensorMemoryPlan
from gemmgen.kernels.pictures import Division, Picture, Share, TileHierarchy
from gemmgen.kernels.pipeline_picture import pipeline


def pictures(plan: TensorMemoryPlan) -> list[Picture]:
    """Tiles and the pipeline."""
    loop = plan.loop
    rows = loop.tile_m // EPILOGUE_WARPS
    warps = tuple(Share(warp, ((warp * rows, 0, rows, loop.tile_n),)) for warp in range(EPILOGUE_WARPS))
    notes = ("one thread copies, one multiplies", "two sets of sums in tensor memory")
    block = Division("threadblock tile", loop.tile_m, loop.tile_n, "m", "n", "warp", warps, notes)
    lanes = tuple(
        Share(lane, tuple((lane // 4 + 8 * part, 8 * j + lane % 4 * 2, 1, 2) for part in range(4) for j in range(COLUMNS // 8)))
        for lane in range(WARP)
    )
    held = Division("columns that a warp loads", rows, COLUMNS, "m", "n", "lane", lanes, ("pairs of neighbours, in every 8 columns",))
    slices = f"in blue: the block's slices of A and B, {loop.tile_k} deep; bold: the one that is multiplied"
    overview = product_overview(plan, loop.tile_k, loop.stages, (slices, f"{loop.stages} stages in shared memory"))
    return [TileHierarchy("Tile hierarchy", overview, (block, held)), pipeline("copy_engine", loop.stages)]
