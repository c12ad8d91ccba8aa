"""Pictures of tensor memory: uses of its columns, and the elements that the lanes of a warp load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gemmgen.hardware.shared_memory import WARP
from gemmgen.kernels.math.tensor_memory import COLUMNS, EPILOGUE_WARPS, ROWS, TENSOR_COLUMNS
from gemmgen.kernels.pictures import Division, Fragments, Share


def warps_of_tile(columns: int, rows_axis: str, columns_axis: str) -> Division:
    """The rows of a tile that each warp of the epilogue finishes."""
    rows = ROWS // EPILOGUE_WARPS
    warps = tuple(Share(warp, ((warp * rows, 0, rows, columns),)) for warp in range(EPILOGUE_WARPS))
    notes = ("one thread copies, one multiplies", "two sets of sums in tensor memory")
    return Division("threadblock tile", ROWS, columns, rows_axis, columns_axis, "warp", warps, notes)


def blocks_of_pair(columns: int) -> Division:
    """The rows of a tile whose sums each block of a pair holds."""
    blocks = tuple(Share(block, ((block * ROWS, 0, ROWS, columns),)) for block in range(2))
    notes = (
        "a block copies its rows of A and half of the columns of B",
        "one thread of block 0 multiplies for both; each block has the sums of its rows",
    )
    return Division("tile of a pair of blocks", 2 * ROWS, columns, "m", "n", "block", blocks, notes)


def loaded_columns(rows_axis: str, columns_axis: str) -> Division:
    """The results that each lane of a warp loads at a time (16x256b)."""
    lanes = tuple(
        Share(lane, tuple((lane // 4 + 8 * part, 8 * j + lane % 4 * 2, 1, 2) for part in range(4) for j in range(COLUMNS // 8)))
        for lane in range(WARP)
    )
    notes = ("pairs of neighbours, in every 8 columns",)
    return Division("a warp's load", ROWS // EPILOGUE_WARPS, COLUMNS, rows_axis, columns_axis, "lane", lanes, notes)


def scale_tile(lines: int, blocks: int) -> Fragments:
    """Places of block scales in shared and in tensor memory: of ``lines`` rows of A, or columns of B, and ``blocks`` of k."""
    lanes = lines // 4
    words = tuple(Share(lane, tuple((quarter * lanes + lane, 0, 1, blocks) for quarter in range(4))) for lane in range(lanes))
    notes = (
        f"scale (i, j) is byte 16 (i mod {lanes}) + 4 (i div {lanes}) + j of a tile of {lines * blocks} bytes in memory",
        f"tcgen05.cp brings it to byte j of column i div {lanes}, lane i mod {lanes} of each quarter of the lanes",
        f"numbers: rows of 16 bytes, which are lanes; each holds the scales of four lines, {lanes} apart",
    )
    tile = Division("a tile of scales", lines, blocks, "lines", "blocks of k", "lane", words)
    return Fragments("Block scales", tile, notes=notes, name="scales")


def columns_in_use(ends: Sequence[int], allocated: int, of_pair: bool = False, owners: str = "") -> Fragments:
    """Columns of tensor memory by their use, from each of ``ends`` to the next; ``owners``: uses beside the two sets of sums."""
    uses = tuple(Share(number, ((0, first, ROWS, last - first),)) for number, (first, last) in enumerate(pairwise(ends)))
    notes = (
        f"{allocated} of {TENSOR_COLUMNS} columns allocated{' in each block of the pair' if of_pair else ''}",
        f"0 and 1: sets of sums, one read by the epilogue while products are added to the other{owners}",
        f"warp w of the epilogue reads lanes 32 w to 32 w + {ROWS // EPILOGUE_WARPS - 1}",
    )
    columns = Division("uses of columns", ROWS, ends[-1], "lanes", "columns", "use", uses)
    return Fragments("Tensor memory", columns, notes=notes, lanes_of_a_color=1, name="tensor_memory")
