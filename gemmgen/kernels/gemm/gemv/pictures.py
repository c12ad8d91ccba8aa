"""Pictures of a product of few columns."""

from __future__ import annotations

from gemmgen.kernels.gemm.gemv.loop import VectorLoop
from gemmgen.kernels.gemm.gemv.plan import GemvPlan
from gemmgen.kernels.gemm.overview import product_overview
from gemmgen.kernels.pictures import Division, Picture, Share, TileHierarchy


def pictures(plan: GemvPlan) -> list[Picture]:
    """The tile of a block."""
    return [_vector_tiles(plan, plan.loop)]


def _vector_tiles(plan: GemvPlan, loop: VectorLoop) -> TileHierarchy:
    """The rows of each team; or, where teams split k, those of each lane."""
    along_k = loop.along == "k"
    owners = loop.teams if along_k else loop.tile_m // loop.rows
    shares = tuple(Share(owner, ((owner * loop.rows, 0, loop.rows, loop.columns),)) for owner in range(owners))
    unit = "team" if along_k else "lane"
    teams = f"{loop.teams} teams of {loop.lanes} lanes" + ("" if along_k else ", which split k")
    block = Division("threadblock tile", plan.tile_m, plan.tile_n, "m", "n", unit, shares, (f"{plan.threads} threads: {teams}",))
    note = f"A is read once, from global memory into registers, {loop.step} of k at a time"
    note += f"; rows of a team move back by up to {loop.grain - 1}, to a multiple of {loop.grain}" if loop.shifted else ""
    return TileHierarchy("Tile hierarchy", product_overview(plan, loop.step, 1, (note,)), (block,))
