"""Pictures of a quantising kernel: the elements of a block, a warp and a lane."""

from __future__ import annotations

from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.pictures import ArrayOverview, Division, Picture, Share, TileHierarchy, product
from gemmgen.kernels.quantise.plan import BLOCK_COLUMNS, BLOCK_LINES, GROUPS_OF_A_WARP, LANE_COLUMNS, WARPS, QuantisePlan


def pictures(plan: QuantisePlan) -> list[Picture]:
    """The tiles."""
    tiles = plan.spec.block == "128x128"
    rows = BLOCK_LINES if tiles else WARPS
    own = rows // WARPS
    columns = BLOCK_COLUMNS * (GROUPS_OF_A_WARP if plan.spec.block == "1x128" else 1)
    warps = tuple(Share(warp, product(range(warp * own, (warp + 1) * own), range(columns))) for warp in range(WARPS))
    lanes = tuple(Share(lane, product(range(own), range(lane * LANE_COLUMNS, (lane + 1) * LANE_COLUMNS))) for lane in range(WARP_THREADS))
    note = f"{LANE_COLUMNS} neighbours of a row"
    overview = ArrayOverview("y", "rows of x", "columns of x", rows, columns, ((0, 0),), False, ("a threadblock's share",), combines=False)
    levels = (
        Division("block", rows, columns, "rows", "columns", "warp", warps, (f"{plan.threads} threads",)),
        Division("warp", own, BLOCK_COLUMNS, "rows", "columns", "lane", lanes),
        Division("thread", own, LANE_COLUMNS, "rows", "columns", "element", (), (note,)),
    )
    return [TileHierarchy("Who computes what", overview, levels)]
