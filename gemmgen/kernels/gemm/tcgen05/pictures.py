"""Pictures of a GEMM on tensor memory."""

from __future__ import annotations

from gemmgen.kernels.gemm.overview import product_overview
from gemmgen.kernels.gemm.scaling import TILE_BLOCKS, TILE_LINES
from gemmgen.kernels.gemm.tcgen05.loop import SCALE_COLUMNS, TensorMemoryLoop
from gemmgen.kernels.gemm.tcgen05.plan import TensorMemoryPlan
from gemmgen.kernels.math.tensor_memory import BUFFERS
from gemmgen.kernels.pictures import Fragments, Picture, TileHierarchy, Timeline
from gemmgen.kernels.pipeline_picture import pipeline
from gemmgen.kernels.tensor_memory_picture import (
    blocks_of_pair,
    columns_in_use,
    columns_over_time,
    loaded_columns,
    scale_tile,
    warps_of_tile,
)


def pictures(plan: TensorMemoryPlan) -> list[Picture]:
    """Tiles and the pipeline."""
    loop = plan.loop
    slices = f"in blue: the block's slices of A and B, {loop.tile_k} deep; bold: the one that is multiplied"
    overview = product_overview(plan, loop.tile_k, loop.stages, (slices, f"{loop.stages} stages in shared memory"))
    pair = (blocks_of_pair(loop.tile_n),) if loop.pair else ()
    hierarchy = TileHierarchy("Tile hierarchy", overview, (*pair, warps_of_tile(loop.tile_n, "m", "n"), loaded_columns("m", "n")))
    scales = [scale_tile(TILE_LINES, TILE_BLOCKS)] if loop.scaled is not None else []
    return [hierarchy, pipeline("tma", loop.stages), _tensor_memory(loop), _over_time(loop), *scales]


def _ends(loop: TensorMemoryLoop) -> list[int]:
    """Columns where a use of tensor memory ends and the next one begins, from 0 on."""
    ends = [loop.tile_n * number for number in range(BUFFERS + loop.kept_sums + 1)]
    return [*ends, *(ends[-1] + side * loop.scale_words * SCALE_COLUMNS for side in (1, 2) if loop.scaled is not None)]


def _over_time(loop: TensorMemoryLoop) -> Timeline:
    ends = _ends(loop)
    scales = (ends[BUFFERS], ends[-1]) if loop.scaled is not None else None
    return columns_over_time(loop.tile_n, scales, "step" if loop.promote_steps else "tile")


def _tensor_memory(loop: TensorMemoryLoop) -> Fragments:
    """Sets of sums, those of smaller products of planes, scales of A and of B."""
    ends = _ends(loop)
    owners = "; 2: scales of A, 3: scales of B, copied again for each stage" if loop.scaled is not None else ""
    owners = "; 2 and 3: smaller products of planes, of a tile each" if loop.kept_sums else owners
    return columns_in_use(ends, loop.tensor_columns, loop.pair, owners)
