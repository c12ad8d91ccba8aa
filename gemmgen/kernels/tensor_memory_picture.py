"""Pictures of tensor memory: uses of its columns, and the elements that the lanes of a warp load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gemmgen.hardware.shared_memory import WARP
from gemmgen.kernels.math.tensor_memory import COLUMNS, EPILOGUE_WARPS, ROWS, TENSOR_COLUMNS
from gemmgen.kernels.pictures import Division, Fragments, Share, Span, Timeline

SHOWN_TILES = 6
PRODUCT, EPILOGUE, COPY = 3.0, 2.0, 0.5
"""Lengths of a sketch: the products of a tile, its epilogue, and the copy of a stage's scales."""
SHOWN_STAGES = 3
"""Stages of a tile in the sketch."""


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


def scale_tile(lines: int, blocks: int, reader: str = "") -> Fragments:
    """Places of block scales in memory: of ``lines`` rows of A, or columns of B, and ``blocks`` of k. ``reader``: the note on their way to
    the tensor cores; that of ``tcgen05.cp`` unless given."""
    lanes = lines // 4
    words = tuple(Share(lane, tuple((quarter * lanes + lane, 0, 1, blocks) for quarter in range(4))) for lane in range(lanes))
    notes = (
        f"scale (i, j) is byte 16 (i mod {lanes}) + 4 (i div {lanes}) + j of a tile of {lines * blocks} bytes in memory",
        reader or f"tcgen05.cp brings it to byte j of column i div {lanes}, lane i mod {lanes} of each quarter of the lanes",
        f"numbers: rows of 16 bytes{'' if reader else ', which are lanes'}; each holds the scales of four lines, {lanes} apart",
    )
    tile = Division("a tile of scales", lines, blocks, "lines", "blocks of k", "lane", words)
    return Fragments("Block scales", tile, notes=notes, name="scales")


def columns_in_use(ends: Sequence[int], allocated: int, of_pair: bool = False, owners: str = "") -> Fragments:
    """Columns of tensor memory by their use, from each of ``ends`` to the next; ``owners``: uses beside the two sets of sums."""
    uses = tuple(Share(number, ((0, first, ROWS, last - first),)) for number, (first, last) in enumerate(pairwise(ends)))
    notes = (
        f"{allocated} of {TENSOR_COLUMNS} columns allocated{' in each block of the pair' if of_pair else ''}",
        "first columns: " + ", ".join(f"{first} of {number}" for number, first in enumerate(ends[:-1])),
        f"0 and 1: sets of sums, one read by the epilogue while products are added to the other{owners}",
        f"warp w of the epilogue reads lanes 32 w to 32 w + {ROWS // EPILOGUE_WARPS - 1}",
    )
    columns = Division("uses of columns", ROWS, ends[-1], "lanes", "columns", "use", uses)
    return Fragments("Tensor memory", columns, notes=notes, lanes_of_a_color=1, name="tensor_memory")


def columns_over_time(tile_columns: int, scales: tuple[int, int] | None = None, piece: str = "tile") -> Timeline:
    """Bars that show when each role holds the two sets of sums and, if there are block scales, their columns. ``piece``: the part of a
    product that a set takes at a time."""
    rows = [f"columns {first} to {first + tile_columns - 1}" for first in (0, tile_columns)]
    if scales is not None:
        rows.append(f"columns {scales[0]} to {scales[1] - 1}")
    spans: list[Span] = []
    free = [0.0, 0.0]
    multiplied = read = 0.0
    for tile in range(SHOWN_TILES):
        begin = max(multiplied, free[tile % 2])
        multiplied = begin + PRODUCT
        spans.append(Span(tile % 2, begin, PRODUCT, f"products {tile}", tile))
        begin_read = max(multiplied, read)
        read = begin_read + EPILOGUE
        free[tile % 2] = read
        spans.append(Span(tile % 2, begin_read, EPILOGUE, f"epilogue {tile}", tile, strong=False))
        if scales is not None:
            step = PRODUCT / SHOWN_STAGES
            for stage in range(SHOWN_STAGES):
                at = begin + stage * step
                spans.append(Span(2, at, COPY, "", tile, strong=False))
                spans.append(Span(2, at + COPY, step - COPY, "", tile))
    notes = [
        f"strong: the tensor cores add the products of {piece} i to these columns, from its first instruction to its commit's arrival; "
        "pale: four warps load them, and then let the next products in."
    ]
    if scales is not None:
        notes.append("scales: pale while tcgen05.cp copies those of a stage, strong while instructions read them.")
    unit = f"time, a sketch: products of a {piece} {PRODUCT:g}, its epilogue {EPILOGUE:g}"
    return Timeline("Tensor memory over time", tuple(rows), tuple(spans), unit, tuple(notes), name="tensor_memory_times")
