"""Pictures of a GEMM with narrow weights."""

from __future__ import annotations

from gemmgen.kernels.gemm.narrow_weights.plan import WeightPlan
from gemmgen.kernels.gemm.overview import product_overview, shares_of_k
from gemmgen.kernels.pictures import Division, Picture, Share, TileHierarchy


def pictures(plan: WeightPlan) -> list[Picture]:
    """The tile of a block, and the division of k."""
    loop = plan.loop
    shares = tuple(Share(index, (part,)) for index, part in enumerate(loop.shown.parts))
    block = Division("threadblock tile", plan.tile_m, plan.tile_n, "m", "n", loop.shown.worker, shares, (f"{plan.threads} threads",))
    overview = product_overview(plan, plan.step_k, loop.stages, (f"B has {loop.bits} bits for each weight",))
    return [TileHierarchy("Tile hierarchy", overview, (block,)), *shares_of_k(plan, plan.step_k)]
