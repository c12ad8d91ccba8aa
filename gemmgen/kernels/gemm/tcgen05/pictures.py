"""Pictures of a GEMM on tensor memory."""

from __future__ import annotations

from itertools import pairwise

from gemmgen.hardware.shared_memory import WARP
from gemmgen.kernels.gemm.overview import product_overview
from gemmgen.kernels.gemm.tcgen05.loop import BUFFERS, COLUMNS, EPILOGUE_WARPS, ROWS, SCALE_COLUMNS, TENSOR_COLUMNS, TensorMemoryLoop
from gemmgen.kernels.gemm.tcgen05.plan import TensorMemoryPlan
from gemmgen.kernels.pictures import Division, Fragments, Picture, Share, TileHierarchy
from gemmgen.kernels.pipeline_picture import pipeline


def pictures(plan: TensorMemoryPlan) -> list[Picture]:
    """Tiles and the pipeline."""
    loop = plan.loop
    rows = loop.tile_m // EPILOGUE_WARPS
    warps = tuple(Share(warp, ((warp * rows, 0, rows, loop.tile_n),)) for warp in range(EPILOGUE_WARPS))
    notes = ("one thread copies, one multiplies", "two sets of sums in tensor memory")
    block = Division("threadblock tile", loop.tile_m, loop.tile_n, "m", "n", "warp", warps, notes)
    lanes = tuple(
        Share(lane, tuple((lane // 4 + 8 * part, 8 * j + lane % 4 * 2, 1, 2) for part in range(4) for j in range(COLUMNS // 8)))
        for lane in range(WARP)
    )
    held = Division("columns that a warp loads", rows, COLUMNS, "m", "n", "lane", lanes, ("pairs of neighbours, in every 8 columns",))
    slices = f"in blue: the block's slices of A and B, {loop.tile_k} deep; bold: the one that is multiplied"
    overview = product_overview(plan, loop.tile_k, loop.stages, (slices, f"{loop.stages} stages in shared memory"))
    hierarchy = TileHierarchy("Tile hierarchy", overview, (block, held))
    return [hierarchy, pipeline("copy_engine", loop.stages), _tensor_memory(loop)]


def _tensor_memory(loop: TensorMemoryLoop) -> Fragments:
    """Columns of tensor memory by their use: sets of sums, scales of A and of B."""
    ends = [loop.tile_n * number for number in range(BUFFERS + 1)]
    ends += [ends[-1] + side * loop.scale_words * SCALE_COLUMNS for side in (1, 2) if loop.scaled is not None]
    uses = tuple(Share(number, ((0, first, ROWS, last - first),)) for number, (first, last) in enumerate(pairwise(ends)))
    owners = "; 2: scales of A, 3: scales of B, copied again for each stage" if loop.scaled is not None else ""
    notes = (
        f"{loop.tensor_columns} of {TENSOR_COLUMNS} columns allocated{' in each block of the pair' if loop.pair else ''}",
        f"0 and 1: sets of sums, one read by the epilogue while products are added to the other{owners}",
        f"warp w of the epilogue reads lanes 32 w to 32 w + {ROWS // EPILOGUE_WARPS - 1}",
    )
    columns = Division("uses of columns", ROWS, ends[-1], "lanes", "columns", "use", uses)
    return Fragments("Tensor memory", columns, notes=notes, lanes_of_a_color=1, name="tensor_memory")
