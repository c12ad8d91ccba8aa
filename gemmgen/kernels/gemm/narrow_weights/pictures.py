"""Pictures of a GEMM with narrow weights."""

from __future__ import annotations

from gemmgen.kernels.gemm.narrow_weights.plan import NarrowPlan
from gemmgen.kernels.gemm.overview import product_overview, shares_of_k
from gemmgen.kernels.pictures import Division, Picture, Share, TileHierarchy


def pictures(plan: NarrowPlan) -> list[Picture]:
    """The tile of a block, and the division of k."""
    loop = plan.loop
    shares = tuple(
        Share(warp, ((warp // loop.warps_n * loop.warp_m, warp % loop.warps_n * loop.warp_n, loop.warp_m, loop.warp_n),))
        for warp in range(loop.warps_m * loop.warps_n)
    )
    block = Division("threadblock tile", plan.tile_m, plan.tile_n, "m", "n", "warp", shares, (f"{plan.threads} threads",))
    overview = product_overview(plan, loop.tile_k, loop.stages, (f"B has {loop.bits} bits for each weight",))
    return [TileHierarchy("Tile hierarchy", overview, (block,)), *shares_of_k(plan, loop.tile_k)]
