"""The staged epilogue: each warp transposes its results in shared memory, so that global accesses are whole, adjacent vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from gemmgen.core.errors import Reason
from gemmgen.hardware.shared_memory import WARP, shared_access_cost
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.simt.operand import Operand, SharedAccess
from gemmgen.kernels.tiles.indexing import FragmentMap, TileCopy

FLOAT_BYTES = 4
WIDEST_SHARED = 4
"""Floats that one access to shared memory moves at most."""
PADDING_CANDIDATES = tuple(range(33))


@dataclass(frozen=True)
class Exchange:
    """Passage of a warp's tile through shared memory: one row of every thread tile at a time, which together make a slab.

    A slab has as many rows as the warp has lanes along the slow dimension of C. Its columns are those of the warp tile, closed up
    where the fragments leave gaps.
    """

    warps: int
    padding: int
    fragment: FragmentMap
    """Fragment of the operand along the contiguous dimension of C."""
    copy: TileCopy
    """Division of the slab among lanes for global memory."""

    @property
    def pitch(self) -> int:
        """Elements from one row of the slab to the next."""
        return self.copy.columns + self.padding

    @property
    def shape(self) -> tuple[int, int, int]:
        """Slabs of the block, rows, pitch."""
        return self.warps, self.copy.rows, self.pitch

    @property
    def run(self) -> int:
        """Columns of the slab that are adjacent in C."""
        return self.copy.columns if self.is_closed else self.fragment.lanes * self.fragment.vector

    @property
    def is_closed(self) -> bool:
        """True if the columns of the warp tile are adjacent in C."""
        return self.fragment.extent * self.fragment.lanes == self.fragment.warp_stride

    @property
    def piece_stride(self) -> int:
        """From one vector of a thread to its next one, in columns of the slab."""
        return self.fragment.piece_stride if self.is_closed else self.run

    @property
    def spreads_pieces(self) -> bool:
        """True if the vectors of a thread are not adjacent in a row of the slab."""
        return self.piece_stride != self.fragment.vector

    @property
    def store_width(self) -> int:
        """Elements that one store into the slab writes."""
        return gcd(self.fragment.vector, self.pitch, WIDEST_SHARED)

    @property
    def load_width(self) -> int:
        """Elements that one load from the slab reads."""
        return gcd(self.copy.vector, self.pitch, WIDEST_SHARED)

    def region(self) -> SharedRegion:
        """Place in shared memory: over the tiles, which are no longer needed then."""
        size = self.warps * self.copy.rows * self.pitch * FLOAT_BYTES
        return SharedRegion("exchange", "float", self.shape, 0, size, "staged results, one slab a warp; over the tiles")


def plan_exchange(major: Operand, minor: Operand, warps: int, alignment: int, reasons: list[Reason]) -> Exchange | None:
    """The exchange with the fewest wavefronts, or None with the errors added to ``reasons``."""
    fragment = minor.fragment
    columns = fragment.lanes * fragment.extent
    rows = WARP // fragment.lanes
    run = columns if columns == fragment.warp_stride else fragment.lanes * fragment.vector
    vector = gcd(alignment, fragment.extent, run)
    copy = TileCopy(rows, columns, vector, WARP)
    if WARP % copy.vectors_per_row and copy.vectors_per_row % WARP:
        got = f"{copy.vectors_per_row} vectors of {vector} in a row of the warp tile"
        need = "a number that divides 32, or that 32 divides, to stage the epilogue"
        reasons.append(Reason("store", f"mainloop.tile.thread.{minor.axis}", got, need, "thread tiles of a power of two"))
        return None
    positions = tuple(zip(major.lane_positions, minor.lane_positions, strict=True))
    plain = Exchange(warps, 0, fragment, copy)
    candidates = (replace(plain, padding=padding) for padding in PADDING_CANDIDATES)
    widths = plain.store_width, plain.load_width
    wide = [candidate for candidate in candidates if (candidate.store_width, candidate.load_width) == widths]
    return min(wide, key=lambda each: (sum(access.wavefronts for access in exchange_accesses(each, positions)), each.padding))


def exchange_accesses(exchange: Exchange, positions: tuple[tuple[int, int], ...]) -> tuple[SharedAccess, SharedAccess]:
    """The accesses of one warp for one slab: stores of fragments, loads of rows. ``positions``: (major, minor) of each lane."""
    stores, loads = first_offsets(exchange, positions)
    copy, fragment = exchange.copy, exchange.fragment
    store_count = fragment.extent // exchange.store_width
    load_count = copy.passes * copy.vector // exchange.load_width
    return (
        _access("store slab", stores, exchange.store_width, store_count, store=True),
        _access("load slab", loads, exchange.load_width, load_count, store=False),
    )


def first_offsets(exchange: Exchange, positions: tuple[tuple[int, int], ...]) -> tuple[list[int], list[int]]:
    """Byte offsets within the slab of the lanes' first store and of their first load; the others are as many bytes further for all."""
    pitch, copy, fragment = exchange.pitch, exchange.copy, exchange.fragment
    stores = [(row * pitch + column * fragment.lane_stride) * FLOAT_BYTES for row, column in positions]
    loads = []
    for lane in range(WARP):
        row, column = copy.position(lane, 0)
        loads.append((row * pitch + column) * FLOAT_BYTES)
    return stores, loads


def _access(what: str, offsets: list[int], width: int, count: int, *, store: bool) -> SharedAccess:
    cost = shared_access_cost(offsets, width * FLOAT_BYTES, store=store)
    return SharedAccess(what, store, width * FLOAT_BYTES, count, count * cost.wavefronts, count * cost.conflicts)
