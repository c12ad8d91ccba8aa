"""Lines about the order of tiles and the division of k that explanations of several strategies have."""

from __future__ import annotations

from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.spec import SplitKLast, SplitKParallel, SplitKSerial, StreamK

Lines = tuple[tuple[str, str], ...]


def order_of_tiles(plan: GemmPlan, takers: str = "") -> str:
    """The order in which the tiles of C are taken; ``takers``: the beginning of the sentence where there are no bands."""
    raster = plan.spec.rasterization
    along, across = (plan.minor, plan.major) if raster.along == "minor" else (plan.major, plan.minor)
    if raster.group > 1:
        return f"bands of {raster.group} tiles along {across}, traversed along {along}: concurrent blocks share rows and columns in the L2"
    return f"{takers}along {along}"


def blocks(plan: GemmPlan) -> Lines:
    """The blocks of a grid that has one for each tile, or for each slice of a tile."""
    lines = [("order of tiles", order_of_tiles(plan, "consecutive blocks take tiles "))]
    if plan.spec.early_launch:
        text = "early: blocks come to the SMs while the work before them in the stream still runs, and wait for it there"
        lines.append(("launch", text))
    if plan.spec.batch == "strided":
        lines.append(("batch", "y of the grid counts the products of the batch"))
    return tuple(lines)


def division_of_k(plan: GemmPlan) -> Lines:
    """The blocks that share a tile's k, and how their sums meet."""
    division = plan.spec.decomposition
    workspace = f"{plan.sequence.workspace_bytes} bytes"
    zeroed = f"{workspace}, of which the first {plan.sequence.workspace_zero_bytes} are 0 at first and left so"
    if isinstance(division, SplitKSerial):
        return (
            ("division of k", f"{division.slices} slices, a block for each slice of a tile (z of the grid); those of a tile take turns"),
            ("sum", "each adds its part to the tile's sum in the workspace, in the order of k: always the same bits; the last one stores"),
            ("workspace", f"{zeroed}: for each tile whose turn it is, then its sum"),
        )
    if isinstance(division, SplitKParallel):
        slices = "as many slices as the dimension slices says" if plan.cut_at_launch else f"{division.slices} slices"
        groups = f", shared among {plan.reduction_groups} groups of its threads" if plan.reduction_groups > 1 else ""
        return (
            ("division of k", f"{slices}, a block for each slice of a tile (z of the grid); none waits for another"),
            ("sum", f"a second kernel adds the slices up in a fixed order{groups}, and writes C"),
            ("workspace", f"{workspace}: the partial products of all slices"),
        )
    if isinstance(division, SplitKLast):
        return (
            ("division of k", "as many slices as the dimension slices says, a block for each slice of a tile (z of the grid)"),
            (
                "sum",
                "the last block of a tile to arrive adds up the sums in the workspace in a fixed order and stores the result",
            ),
            ("workspace", f"{zeroed}: for each tile the number of blocks that arrived, then their sums"),
        )
    if isinstance(division, StreamK):
        return (
            ("division of k", f"{division.blocks} blocks share the steps along k of all tiles evenly, wherever that cuts a tile"),
            ("sum", "a block's sum of a tile that it does not finish goes to the workspace; the block with the last step adds it up"),
            ("workspace", f"{zeroed}: for each block a flag that its sum is complete, then the sums"),
        )
    return (("division of k", "none: one block for each tile, over all of k"),)
