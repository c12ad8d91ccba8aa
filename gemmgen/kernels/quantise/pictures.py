"""Pictures of a quantising kernel: the elements of a block, a warp and a lane."""

from __future__ import annotations

from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.pictures import ArrayOverview, Division, Picture, Share, TileHierarchy, product
from gemmgen.kernels.quantise.plan import BLOCK_COLUMNS, BLOCK_LANES, BLOCK_LINES, BLOCKS_OF_A_WARP, LANE_COLUMNS, WARPS, QuantisePlan


def pictures(plan: QuantisePlan) -> list[Picture]:
    """The tiles."""
    tiles = plan.spec.block == "128x128"
    rows, columns = (BLOCK_LINES, BLOCK_COLUMNS) if tiles else (WARPS, BLOCKS_OF_A_WARP * BLOCK_COLUMNS)
    side = BLOCK_COLUMNS // LANE_COLUMNS if tiles else BLOCK_LANES
    # Lanes lie side by side; those of a tile's warp have two rows, again and again.
    own = WARP_THREADS // side if tiles else 1
    down = rows // (WARPS * own) if tiles else 1
    warps = tuple(
        Share(warp, product([first * WARPS * own + warp * own + row for first in range(down) for row in range(own)], range(columns)))
        for warp in range(WARPS)
    )
    halves = 1 if tiles else BLOCK_COLUMNS // (side * LANE_COLUMNS)
    lanes = tuple(
        Share(lane, product([lane // side if tiles else 0], _columns(lane // side if not tiles else 0, lane % side, side, halves)))
        for lane in range(WARP_THREADS)
    )
    note = f"{LANE_COLUMNS} neighbours of a row"
    overview = ArrayOverview("y", "rows of x", "columns of x", rows, columns, ((0, 0),), False, ("a threadblock's share",), combines=False)
    levels = (
        Division("block", rows, columns, "rows", "columns", "warp", warps, (f"{plan.threads} threads",)),
        Division("warp", own, BLOCK_COLUMNS if tiles else WARP_THREADS // side * BLOCK_COLUMNS, "rows", "columns", "lane", lanes),
        Division("thread", 1, LANE_COLUMNS, "rows", "columns", "element", (), (note,)),
    )
    return [TileHierarchy("Division of work", overview, levels)]


def _columns(block: int, place: int, side: int, halves: int) -> list[int]:
    """Columns of a lane in a warp's part: of its block, at its place among the lanes side by side, in each half."""
    return [
        block * BLOCK_COLUMNS + (half * side + place) * LANE_COLUMNS + column for half in range(halves) for column in range(LANE_COLUMNS)
    ]
