"""Pictures of an elementwise kernel: the tile of a block, a warp and a thread."""

from __future__ import annotations

from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.elementwise.plan import ElementwisePlan
from gemmgen.kernels.pictures import ArrayOverview, Division, Picture, Share, TileHierarchy, product


def pictures(plan: ElementwisePlan) -> list[Picture]:
    """The tiles."""
    vector, unroll, threads = plan.vector, plan.unroll, plan.threads
    rows, columns = range(unroll), threads * vector
    wide = WARP_THREADS * vector
    warps = tuple(Share(warp, product(rows, range(warp * wide, (warp + 1) * wide))) for warp in range(threads // WARP_THREADS))
    lanes = tuple(Share(lane, product(rows, range(lane * vector, (lane + 1) * vector))) for lane in range(WARP_THREADS))
    follows = ("each row follows the one above it in memory",) if unroll > 1 else ()
    note = f"{unroll} load{'s' if unroll > 1 else ''} of {vector} element{'s' if vector > 1 else ''} of each array"
    turns = ("a block takes tile after tile, a grid apart",) if plan.spec.blocks else ("a block for each tile",)
    taken = ((0, 0), (0, 3)) if plan.spec.blocks else ((0, 0),)
    overview = ArrayOverview("y", "", f"elements, {unroll * columns} at a time", unroll, columns, taken, False, turns, combines=False)
    levels = (
        Division("block", unroll, columns, "rows", "elements", "warp", warps, (f"{threads} threads", *follows)),
        Division("warp", unroll, wide, "rows", "elements", "lane", lanes),
        Division("thread", unroll, vector, "rows", "elements", "element", (), (note,)),
    )
    return [TileHierarchy("Division of work", overview, levels)]
