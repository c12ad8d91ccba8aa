"""Words about GEMMs on tensor cores that do not depend on the instructions."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.spec import StreamK
from gemmgen.kernels.gemm.tensor_cores.plan import TensorPlan
from gemmgen.kernels.gemm.wording import Lines, order_of_tiles


@dataclass(frozen=True)
class Wording:
    """Words that differ where operands are split into matrices of smaller types."""

    products: int = 1
    """Products of matrices for one of the factors."""
    rows: str = "come to registers"
    """Way of A to registers, if it is multiplied from there."""
    adds: str = "a second kernel adds up in a fixed order"
    writer: str = "the second kernel"
    """The kernel that adds up slices."""
    collects: str = "the first collects the sums, in order"
    """Addition of the sums of a cluster's blocks that divide k."""
    filler: str = ""
    """Agent that fills tiles beyond the edges."""
    pair: str = ""
    """Work of two blocks that multiply together."""
    sections: tuple[Section, ...] = ()
    """Further sections, before that on results."""


STORED = {
    "pairs": "two neighbours at a time, straight from registers",
    "elements": "one by one, straight from registers",
    "rows": "side by side, by way of shared memory, where a warp turns 16 rows around at a time",
    "transposed": "side by side, by way of shared memory, where a warp turns 16 rows of 32 columns around at a time",
    "scaled": "two neighbours at a time, straight from registers, without the scales of their row and column",
}


def work_lines(plan: TensorPlan, wording: Wording, copied: Lines = ()) -> Lines:
    """The grid, the order of tiles, the division of k, and operands shared by blocks; ``copied``: factors that are copied first."""
    grid = plan.grid
    lines = [("tile", f"{grid.tile_m} x {grid.tile_n} of C, {grid.tile_k} of k at a time")]
    division = plan.spec.decomposition
    if isinstance(division, StreamK):
        lines.append(("grid", f"{division.blocks} blocks"))
    elif grid.persistent_blocks:
        how = "ask a counter for the next tile" if grid.dynamic else "take tiles in turn"
        lines.append(("grid", f"at most {grid.persistent_blocks} blocks, which {how}"))
    else:
        taken = "; blocks that run take over the tiles of those that wait, by cluster launch control" if grid.dynamic else ""
        lines.append(("grid", f"one block for each tile{taken}"))
    lines.append(("order of tiles", order_of_tiles(plan)))
    if grid.cluster_k > 1:
        lines.append(("division of k", f"{grid.cluster_k} blocks of a cluster have a part each; {wording.collects}"))
    elif isinstance(division, StreamK):
        text = "the steps of tiles that fill no whole round of blocks, and of one more round, are distributed evenly"
        adds = "the block with a tile's last step adds the other blocks' sums from the workspace, in the order of the blocks"
        lines.append(("division of k", f"{text}; {adds}"))
    elif plan.store == "last":
        text = "as many slices as the dimension slices says, a block for each slice of a tile (z of the grid)"
        lines.append(("division of k", f"{text}; the last one to arrive adds up their sums from the workspace, in the order of k"))
    elif plan.slices > 1 or plan.cut_at_launch:
        slices = "as many slices as the dimension slices says" if plan.cut_at_launch else f"{plan.slices} slices"
        lines.append(("division of k", f"{slices}, whose sums {wording.adds}"))
    if grid.shares_both:
        text = f"{grid.cluster_m} x {grid.cluster_n} blocks: those side by side along m copy parts of a tile of B to one another"
        lines.append(("cluster", f"{text}, those side by side along n parts of a tile of A"))
    elif wording.pair:
        lines.append(("pair", wording.pair))
    elif grid.sharers > 1:
        axis, shared = ("m", "B") if grid.cluster_m > 1 else ("n", "A")
        lines.append(("cluster", f"{grid.sharers} blocks side by side along {axis} copy parts of one tile of {shared} to all of them"))
    lines += copied
    if plan.grouped:
        skips = "; groups of warps without existing rows in a tile skip it, so that the tile takes less time" if grid.skips_rows else ""
        lines.append(("groups", f"blocks read where the rows of each group end, and count its tiles, from the first group on{skips}"))
    lines.append(("edges", f"elements outside a matrix are filled with 0 {wording.filler}and not stored"))
    if plan.spec.early_launch:
        lines.append(("launch", "early: blocks come to the SMs while the work before them in the stream still runs, and wait for it there"))
    return tuple(lines)


def regions(plan: TensorPlan) -> Lines:
    """Arrays in shared memory."""
    return tuple(region.described for region in plan.shared_memory)


def results(plan: TensorPlan, wording: Wording, stored: str | None = None, extra: Lines = ()) -> Lines:
    """Stores of results; ``stored``: by a way that only the instance's instructions have."""
    partial = f"partial sums, straight from registers into the workspace; {wording.writer} writes C"
    lines = [("stored", stored or (partial if plan.fragment_store == "partial" else STORED[plan.fragment_store])), *extra]
    read = ["C"] if plan.spec.beta == "argument" else []
    read += [matrix.name for matrix in plan.residuals]
    if read and plan.fragment_store != "partial":
        lines.append(("read before", f"{' and '.join(read)}, two neighbours at a time{'; C only if beta is not 0' if 'C' in read else ''}"))
    return tuple(lines)
