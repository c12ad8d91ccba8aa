"""Pictures that plans of several strategies have: the whole product, and the division of k."""

from __future__ import annotations

from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.spec import SplitKCluster, SplitKLast, SplitKParallel, SplitKSerial, StreamK
from gemmgen.kernels.pictures import Picture, ProductOverview, Span, Timeline

SHOWN_BLOCKS = 12
SHARED_TILES = 15
"""Tiles of C in the sketch of how blocks split k."""
SHOWN_SLICES = 4
"""Slices of k in the sketch, where the launch chooses how many there are."""
SHARED_STEPS = 16
"""Steps along k of each."""


def product_overview(plan: GemmPlan, tile_k: int, stages: int, notes: tuple[str, ...]) -> ProductOverview:
    """The product with one tile, and the steps along k that are in shared memory."""
    return ProductOverview(
        a="A",
        b="B",
        c="C",
        m="m",
        n="n",
        k="k",
        tile_m=plan.tile_m,
        tile_n=plan.tile_n,
        tile_k=tile_k,
        stages=stages,
        notes=(*notes, *_division_of_k(plan)),
    )


def _division_of_k(plan: GemmPlan) -> tuple[str, ...]:
    division = plan.spec.decomposition
    if isinstance(division, SplitKLast) or plan.cut_at_launch:
        return ("k is divided among as many blocks for each tile of C as the launch says",)
    if isinstance(division, SplitKSerial | SplitKParallel | SplitKCluster):
        return (f"k is divided among {division.slices} blocks for each tile of C",)
    if isinstance(division, StreamK):
        return (f"{division.blocks} blocks share the steps along k of all tiles",)
    return ()


def shares_of_k(plan: GemmPlan, tile_k: int) -> list[Picture]:
    """Steps along k of the first blocks, where k is divided: a small product in the place of a large one."""
    division = plan.spec.decomposition
    spans: list[Span] = []
    notes: tuple[str, ...]
    if isinstance(division, StreamK):
        blocks = min(SHOWN_BLOCKS, division.blocks)
        total = SHARED_TILES * SHARED_STEPS
        for block in range(blocks):
            step, end = block * total // blocks, (block + 1) * total // blocks
            start = step
            while step < end:
                tile = step // SHARED_STEPS
                until = min(end, (tile + 1) * SHARED_STEPS)
                spans.append(Span(block, step - start, until - step, f"tile {tile}", tile, strong=until - step == SHARED_STEPS))
                step = until
        notes = (
            f"{blocks} of the {division.blocks} blocks on {SHARED_TILES} tiles of {SHARED_STEPS} steps: each takes as many steps.",
            "Pale: a part of a tile, whose sum is added to that of the blocks that have the rest.",
        )
    elif isinstance(division, SplitKSerial | SplitKParallel | SplitKCluster):
        slices = division.slices if isinstance(division.slices, int) else SHOWN_SLICES
        blocks = min(SHOWN_BLOCKS // slices * slices or slices, 4 * slices)
        for block in range(blocks):
            tile, part = divmod(block, slices)
            first, last = part * SHARED_STEPS // slices, (part + 1) * SHARED_STEPS // slices
            spans.append(Span(block, first, last - first, f"tile {tile}", tile))
        chosen = "" if isinstance(division.slices, int) else ", as many as the launch chooses"
        notes = (f"k of each tile is cut into {slices} slices{chosen}, one for each of {slices} blocks, whose sums are then added.",)
    else:
        return []
    rows = tuple(f"block {block}" for block in range(blocks))
    unit = f"steps of {tile_k} along k; a sketch of {SHARED_STEPS} steps a tile"
    return [Timeline("Steps along k that each block takes", rows, tuple(spans), unit, notes, name="k_division")]
