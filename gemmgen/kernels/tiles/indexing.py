"""Index mathematics shared by plans, tests and pictures: which thread copies what, and which lane owns what.

All functions are pure and work on plain integers. Rows and columns are those of the stored matrix or tile.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FragmentMap:
    """Positions of a thread's elements along one extent of the threadblock tile.

    Element ``i`` of the thread at position ``lane`` (of ``lanes``) in warp position ``warp`` is at
    ``warp * warp_stride + lane * lane_stride + (i // vector) * piece_stride + i % vector``.
    """

    extent: int
    """Elements a thread owns."""
    vector: int
    """Consecutive elements, read or written by one access."""
    warp_stride: int
    lane_stride: int
    piece_stride: int
    lanes: int
    warps: int

    @property
    def pieces(self) -> int:
        """Vectors that the elements fall into."""
        return self.extent // self.vector

    def position(self, warp: int, lane: int, element: int) -> int:
        """Index within the threadblock tile of one element."""
        piece, within = divmod(element, self.vector)
        return warp * self.warp_stride + lane * self.lane_stride + piece * self.piece_stride + within


def vector_width(extent: int, widest: int = 4) -> int:
    """The widest of 4, 2, 1 elements, no wider than ``widest``, that divides ``extent``."""
    return next(width for width in (4, 2, 1) if width <= widest and extent % width == 0)


def contiguous_fragment(threadblock: int, warp: int, thread: int) -> FragmentMap:
    """Each thread owns ``thread`` consecutive elements."""
    width = vector_width(thread)
    return FragmentMap(thread, width, warp, thread, width, warp // thread, threadblock // warp)


def interleaved_fragment(threadblock: int, warp: int, thread: int) -> FragmentMap:
    """Each thread owns every ``warp / thread``-th element of the warp's extent, so that neighbouring lanes own neighbours."""
    lanes = warp // thread
    return FragmentMap(thread, 1, warp, 1, lanes, lanes, threadblock // warp)


def lane_position(lane: int, lanes_major: int, lanes_minor: int, z_order: bool) -> tuple[int, int]:
    """Place of a lane of a warp in the grid of lanes over the warp tile, as (major, minor).

    Row-major order counts along the minor direction first. In z-order the lowest bit of the lane goes to the minor direction, the
    next ones to the major direction, the rest to the minor one: then every lane agrees with lane ^ 1 in the major position and
    with lane ^ 2 in the minor position, which halves the groups that a wide read of shared memory is served in.
    """
    if z_order and lanes_major > 1 and lanes_minor > 1:
        return lane // 2 % lanes_major, lane % 2 + lane // (2 * lanes_major) * 2
    return divmod(lane, lanes_minor)


def split_fragment(threadblock: int, warp: int, thread: int, span: int, width: int) -> FragmentMap:
    """Each thread owns vectors of ``width`` elements, spread evenly over ``span`` (the warp's or the threadblock's extent).

    Neighbouring lanes then read neighbouring vectors from shared memory, which spares bank conflicts.
    """
    pieces = thread // width
    warp_stride = warp if span == warp else warp // pieces
    return FragmentMap(thread, width, warp_stride, width, span // pieces, warp // thread, threadblock // warp)


@dataclass(frozen=True)
class TileCopy:
    """Division among the threads of a block of a tile of ``rows`` x ``columns`` elements, stored row by row.

    In each pass every thread takes one vector, and consecutive threads take consecutive vectors. A pass covers either
    ``rows_per_pass`` whole rows or, if a row has more vectors than there are threads, one of ``passes_per_row`` parts of a row.
    """

    rows: int
    columns: int
    vector: int
    threads: int

    @property
    def vectors_per_row(self) -> int:
        return self.columns // self.vector

    @property
    def rows_per_pass(self) -> int:
        return max(1, self.threads // self.vectors_per_row)

    @property
    def passes_per_row(self) -> int:
        return max(1, self.vectors_per_row // self.threads)

    @property
    def passes(self) -> int:
        return self.rows * self.vectors_per_row // self.threads

    @property
    def in_words(self) -> str:
        """Number and width of a thread's copies."""
        if self.vector == 1:
            count = "one element of a tile" if self.passes == 1 else f"{self.passes} elements of a tile, one at a time"
            return f"a thread copies {count}; a row of the stored matrix has {self.vectors_per_row} of the tile"
        vectors = f"{self.passes} vector{'s' if self.passes > 1 else ''} of {self.vector}"
        return f"a tile is copied in {vectors} a thread, {self.vectors_per_row} vectors to a row of the stored matrix"

    def position(self, thread: int, a_pass: int) -> tuple[int, int]:
        """Row and column of the first element of a thread's vector in one pass."""
        row, vector = divmod(thread, self.vectors_per_row)
        down, along = divmod(a_pass, self.passes_per_row)
        return row + down * self.rows_per_pass, (vector + along * self.threads) * self.vector


def tile_copy(rows: int, columns: int, threads: int, widest: int) -> TileCopy | None:
    """The copy with the widest vectors, no wider than ``widest`` elements, that shares the tile out evenly; None if none does."""
    for width in (8, 4, 2, 1):
        if width > widest or columns % width:
            continue
        copy = TileCopy(rows, columns, width, threads)
        per_row = copy.vectors_per_row
        if per_row % threads == 0 or (threads % per_row == 0 and rows % copy.rows_per_pass == 0):
            return copy
    return None


@dataclass(frozen=True)
class XorSwizzle:
    """Column of its row that an element of a shared tile moves to: within a row, chunks of 16 bytes are permuted.

    ``bits`` bits of the row, from bit ``row_shift`` on, are combined by exclusive or with as many bits of the chunk's index, from
    bit ``chunk_shift`` on. Within a chunk nothing moves, so a vector that lies in one chunk stays a vector.
    """

    chunk: int
    """Elements of a chunk, a power of two."""
    bits: int
    row_shift: int
    chunk_shift: int

    @property
    def row_period(self) -> int:
        """Rows this far apart are permuted alike."""
        return 1 << self.row_shift + self.bits

    @property
    def mask(self) -> int:
        """The bits of the row that are combined, before they are shifted."""
        return (1 << self.bits) - 1

    @property
    def span(self) -> int:
        """Aligned pieces of a row of this many elements are permuted within themselves."""
        return self.chunk << self.chunk_shift + self.bits

    @property
    def element_shift(self) -> int:
        """First bit of an element's column that is combined with bits of the row."""
        return self.chunk_shift + self.chunk.bit_length() - 1

    def column(self, row: int, column: int) -> int:
        """Column where the element lies that would be at ``column`` without the swizzle; its own inverse."""
        return column ^ (row >> self.row_shift & (1 << self.bits) - 1) << self.element_shift


CHUNKS_IN_ALL_BANKS = 8
"""Chunks of 16 bytes that side by side fill the 32 banks of shared memory."""


def xor_swizzles(rows: int, columns: int, chunk: int) -> list[XorSwizzle]:
    """All swizzles of a tile of ``rows`` x ``columns`` elements that keep its chunks within their row, simple ones first.

    None if the rows are not whole chunks, and an even number of them, or if there is only one row.
    """
    chunks = columns // chunk if columns % chunk == 0 else 1
    return [
        XorSwizzle(chunk, bits, row_shift, chunk_shift)
        for bits in (1, 2, 3)
        for chunk_shift in range(3)
        if 1 << chunk_shift + bits <= CHUNKS_IN_ALL_BANKS and chunks % (1 << chunk_shift + bits) == 0
        for row_shift in range(rows.bit_length())
        if rows > 1 << row_shift + bits - 1
    ]
