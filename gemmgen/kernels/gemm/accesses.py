"""What the mainloop's accesses to shared memory cost: every store of a tile and every load of a fragment, of every warp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from gemmgen.hardware.shared_memory import BANK_BYTES, WARP, shared_access_cost
from gemmgen.kernels.tiles.indexing import FragmentMap, TileCopy

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.operand import Operand


@dataclass(frozen=True)
class SharedAccess:
    """One kind of access to shared memory in the mainloop, as the warp makes it for which it costs most."""

    what: str
    store: bool
    width_bytes: int
    per_step: int
    """How many times a warp does it for each tile along k."""
    wavefronts: int
    """Of all of them together."""
    conflicts: int

    @property
    def least_wavefronts(self) -> int:
        """What they would cost with no conflict: these lanes cannot have the same elements, in vectors of this width, for less."""
        return self.wavefronts - self.conflicts


def shared_accesses(operand: Operand) -> tuple[SharedAccess, SharedAccess]:
    """The accesses of one warp to the operand's shared tile during one step along k: stores, then loads of fragments."""
    return _store_access(operand, _store_starts), _load_access(operand, _fragment_starts)


def estimated_wavefronts(operand: Operand) -> int:
    """Wavefronts of these accesses if all cost what the first of their kind does, whose lanes begin at row 0 and column 0."""
    stores, loads = _store_access(operand, _first_store), _load_access(operand, _first_fragment)
    return stores.wavefronts + loads.wavefronts


def every_store(operand: Operand) -> list[list[list[int]]]:
    """Byte offsets in the operand's shared tile of all lanes' stores during one step along k: for each warp, for each of its stores.

    A warp of fewer than 32 threads has fewer lanes.
    """
    copy, width = operand.copy, operand.store_width
    warps = []
    for first in range(0, copy.threads, WARP):
        accesses = []
        for a_pass in range(copy.passes):
            places = [copy.position(thread, a_pass) for thread in range(first, min(first + WARP, copy.threads))]
            for element in range(0, copy.vector, width):
                shared = [(column + element, row) if operand.transposes else (row, column + element) for row, column in places]
                accesses.append([shared_offset(operand, *place) for place in shared])
        warps.append(accesses)
    return warps


def every_load(operand: Operand) -> list[list[list[int]]]:
    """Byte offsets in the operand's shared tile of all lanes' reads of fragments during one step along k: for each position of a
    warp along the operand's axis, for each of its reads."""
    fragment = operand.fragment
    elements = range(0, fragment.extent, operand.load_width if operand.mn_major else 1)
    warps = []
    for warp in range(fragment.warps):
        accesses = []
        for k in range(0, operand.tile_k, operand.k_vector):
            for element in elements:
                along = [fragment.position(warp, lane, element) for lane in operand.lane_positions]
                accesses.append([shared_offset(operand, *((k, at) if operand.mn_major else (at, k))) for at in along])
        warps.append(accesses)
    return warps


Start = tuple[int, int, int]
"""How an access begins: row and column of its first element in the shared tile, as far as they matter for its cost, and where in
a row of the stored matrix the first lane's vector is, as far as the next lanes' places depend on it."""


def _moduli(operand: Operand) -> tuple[int, int]:
    """Accesses whose lanes differ by the same rows and columns cost the same if they begin at rows and columns that are equal
    modulo these: then all lanes' addresses differ by the same number of words, which turns the banks but changes no cost."""
    elements_per_word = max(1, BANK_BYTES // operand.shared_bytes)
    if operand.swizzle is None:
        return elements_per_word, elements_per_word
    return max(elements_per_word, operand.swizzle.row_period), operand.swizzle.span


StoreStarts = Callable[[TileCopy, int, bool, int, int], list[Counter[Start]]]
FragmentStarts = Callable[[FragmentMap, int, int], list[Counter[int]]]


def _store_access(operand: Operand, starts_of: StoreStarts) -> SharedAccess:
    width = operand.store_width
    warps = [
        [(_store_offsets(operand, start), count) for start, count in starts.items()]
        for starts in starts_of(operand.copy, width, operand.transposes, *_moduli(operand))
    ]
    return _dearest(f"store tile of {operand.name}", warps, width * operand.shared_bytes, store=True)


def _first_store(copy: TileCopy, width: int, *_: int) -> list[Counter[Start]]:
    return [Counter({(0, 0, 0): copy.passes * copy.vector // width})]


@lru_cache(maxsize=256)
def _store_starts(copy: TileCopy, width: int, transposes: bool, row_modulus: int, column_modulus: int) -> list[Counter[Start]]:
    """For each warp, how its stores of a tile begin, and how many of them begin alike."""
    warps = []
    for first in range(0, copy.threads, WARP):
        starts: Counter[Start] = Counter()
        phase = first % copy.vectors_per_row if copy.vectors_per_row % WARP else 0
        for a_pass in range(copy.passes):
            row, column = copy.position(first, a_pass)
            for element in range(0, copy.vector, width):
                shared = (column + element, row) if transposes else (row, column + element)
                starts[shared[0] % row_modulus, shared[1] % column_modulus, phase] += 1
        warps.append(starts)
    return warps


def _store_offsets(operand: Operand, start: Start) -> list[int]:
    first_row, first_column, phase = start
    rows_and_columns = _lane_vectors(operand.copy, phase)
    if operand.transposes:
        return [shared_offset(operand, first_row + column, first_column + row) for row, column in rows_and_columns]
    return [shared_offset(operand, first_row + row, first_column + column) for row, column in rows_and_columns]


def _lane_vectors(copy: TileCopy, phase: int) -> Iterator[tuple[int, int]]:
    """Row and column of each lane's vector in the stored matrix, relative to the first lane's."""
    first_row, first_column = copy.position(phase, 0)
    for lane in range(min(WARP, copy.threads)):
        row, column = copy.position(phase + lane, 0)
        yield row - first_row, column - first_column


def _load_access(operand: Operand, starts_of: FragmentStarts) -> SharedAccess:
    width = operand.load_width
    row_modulus, column_modulus = _moduli(operand)
    # All lanes read the same k. What a swizzle makes of it only swaps banks: rows are multiples of the swizzle's span apart.
    k_modulus = max(1, BANK_BYTES // operand.shared_bytes)
    k_starts = Counter(k % k_modulus for k in range(0, operand.tile_k, operand.k_vector))
    axis_modulus, axis_width = (column_modulus, width) if operand.mn_major else (row_modulus, 1)
    warps = [
        [(_load_offsets(operand, along, k), count * repeated) for along, count in starts.items() for k, repeated in k_starts.items()]
        for starts in starts_of(operand.fragment, axis_width, axis_modulus)
    ]
    return _dearest(f"load fragment of {operand.name}", warps, width * operand.shared_bytes, store=False)


def _first_fragment(fragment: FragmentMap, width: int, _: int) -> list[Counter[int]]:
    return [Counter({0: fragment.extent // width})]


def _fragment_starts(fragment: FragmentMap, width: int, modulus: int) -> list[Counter[int]]:
    """For each position of a warp, where the first lane's reads of ``width`` elements begin, and how many begin alike."""
    return [
        Counter(fragment.position(warp, 0, element) % modulus for element in range(0, fragment.extent, width))
        for warp in range(fragment.warps)
    ]


def _load_offsets(operand: Operand, start: int, k: int) -> list[int]:
    along = [start + position * operand.fragment.lane_stride for position in operand.lane_positions]
    if operand.mn_major:
        return [shared_offset(operand, k, column) for column in along]
    return [shared_offset(operand, row, k) for row in along]


def shared_offset(operand: Operand, row: int, column: int) -> int:
    """Byte offset within one stage of the operand's shared tile of the element that belongs at ``row`` and ``column`` of it."""
    if operand.swizzle is not None:
        column = operand.swizzle.column(row, column)
    return (row * operand.pitch + column) * operand.shared_bytes


def _dearest(what: str, warps: list[list[tuple[list[int], int]]], width_bytes: int, *, store: bool) -> SharedAccess:
    """Of the warps' accesses, each given by byte offsets for the lanes and how many times it is made, the costliest warp's."""
    costs = []
    for accesses in warps:
        wavefronts = conflicts = 0
        for offsets, count in accesses:
            cost = _cached_cost(tuple(offsets), width_bytes, store)
            wavefronts += count * cost[0]
            conflicts += count * cost[1]
        costs.append((wavefronts, conflicts))
    wavefronts, conflicts = max(costs)
    return SharedAccess(what, store, width_bytes, sum(count for _, count in warps[0]), wavefronts, conflicts)


@lru_cache(maxsize=4096)
def _cached_cost(offsets: tuple[int, ...], width_bytes: int, store: bool) -> tuple[int, int]:
    inactive = (-1,) * (WARP - len(offsets))
    cost = shared_access_cost(offsets + inactive, width_bytes, store=store)
    return cost.wavefronts, cost.conflicts
