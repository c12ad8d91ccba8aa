"""Path of one operand, A or B: from global memory through registers into shared memory and on into fragments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Literal

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.errors import Reason
from gemmgen.hardware.shared_memory import BANK_BYTES, BANKS, WARP, copy_source_degree, shared_access_cost
from gemmgen.kernels.gemm.spec import L2Policy, SharedOperand, Tile, TiledMainloop
from gemmgen.kernels.tiles.indexing import (
    FragmentMap,
    TileCopy,
    XorSwizzle,
    contiguous_fragment,
    interleaved_fragment,
    lane_position,
    split_fragment,
    tile_copy,
    xor_swizzles,
)

QUAD = 4
DEPTHS = (4, 8, 16, 32, 64)
"""Depths of a tile along k to suggest where the one that was asked for does not work."""
WIDEST_COPY_BYTES = 16
"""Bytes of the widest asynchronous copy; only these can bypass the L1."""
CHUNK_BYTES = 16
"""Unit that a swizzle moves as a whole: the widest vector of one access."""


@dataclass(frozen=True)
class Operand:
    """The numbers of A or B in a tiled mainloop."""

    name: Literal["A", "B", "AB"]
    """``AB`` for code that copies either of them."""
    axis: Literal["m", "n"]
    leading_dimension: str
    type: DataType
    """Type of its elements in global memory."""
    contiguous_along_k: bool
    """True if neighbours in global memory differ in k."""
    extent: int
    """Extent of the threadblock tile along ``axis``."""
    tile_k: int
    copy: TileCopy
    """Global memory to registers; rows and columns as the matrix is stored."""
    mn_major: bool
    """True if consecutive elements in shared memory run along ``axis``."""
    padding: int
    fragment: FragmentMap
    lane_positions: tuple[int, ...]
    """Position along ``axis``, in lanes, of each lane of a warp."""
    k_vector: int
    """Values of k that one read of a fragment takes."""
    is_async: bool
    """True if the tile is copied straight into shared memory, without registers."""
    l2_prefetch: int
    """Bytes that the L2 fetches along with an asynchronous copy; 0: as many as it likes."""
    keeps_in_l1: bool
    """True if asynchronous copies of 16 bytes keep their data in the L1."""
    l2_policy: L2Policy
    """Eviction priority in the L2 of data read by asynchronous copies."""
    guards_rows: bool
    """True if rows of the stored matrix may end within a tile."""
    guards_columns: bool
    """True if columns of the stored matrix may end within a tile."""
    swizzle: XorSwizzle | None = None
    """Position of an element in its row of the shared tile, if not that of its column."""
    shares_loader: bool = False
    """True if one half of the threads copies A and the other B, into tiles that are laid out alike."""

    @property
    def suffix(self) -> str:
        return self.name.lower()

    @property
    def is_half(self) -> bool:
        return self.type != "f32"

    @property
    def c_type(self) -> str:
        """The type of an element in CUDA."""
        return ELEMENTS[self.type].c_type

    @property
    def element_bytes(self) -> int:
        return ELEMENTS[self.type].bytes

    @property
    def converts_fragments(self) -> bool:
        """True if halves lie in shared memory as such: an asynchronous copy does not convert, so fragments are converted."""
        return self.is_async and self.is_half

    @property
    def shared_type(self) -> DataType:
        """Type of an element in shared memory."""
        return self.type if self.is_async else "f32"

    @property
    def shared_c_type(self) -> str:
        return ELEMENTS[self.shared_type].c_type

    @property
    def shared_bytes(self) -> int:
        """Bytes of an element in shared memory."""
        return ELEMENTS[self.shared_type].bytes

    @property
    def pitch(self) -> int:
        """Elements from one row of the shared tile to the next."""
        return (self.extent if self.mn_major else self.tile_k) + self.padding

    @property
    def pitch_constant(self) -> str:
        """Name of the pitch in a kernel."""
        return f"kPitch{'AB' if self.shares_loader else self.name}"

    @property
    def shared_shape(self) -> tuple[int, int]:
        """Rows and pitch of the shared tile."""
        return (self.tile_k if self.mn_major else self.extent), self.pitch

    @property
    def transposes(self) -> bool:
        """True if the tile is transposed on its way into shared memory, element by element."""
        return self.mn_major == self.contiguous_along_k

    @property
    def store_width(self) -> int:
        """Elements that one store into shared memory writes."""
        width = self.copy.vector if self.is_async else min(QUAD, self.copy.vector)
        return 1 if self.transposes or self.pitch % width else width

    @property
    def vector_bytes(self) -> int:
        """Bytes of one global access."""
        return self.copy.vector * self.element_bytes

    @property
    def cached_in_l1(self) -> bool:
        """True if its asynchronous copies are of 16 bytes, which bypass the L1, and are to be kept there all the same."""
        return self.keeps_in_l1 and self.vector_bytes == WIDEST_COPY_BYTES

    @property
    def swizzles_each_vector(self) -> bool:
        """True if the swizzle moves a fragment's vectors differently, so that each has its own place and not all follow the first."""
        if self.swizzle is None:
            return False
        period = self.swizzle.span if self.mn_major else self.swizzle.row_period
        vectors = range(0, self.fragment.extent, self.load_width if self.mn_major else 1)
        return any(self.fragment.position(0, 0, element) % period for element in vectors)

    @property
    def swizzle_period(self) -> int:
        """Rows, or columns where the rows run along m or n, after which the swizzle does the same: a fragment's vectors lie a multiple
        of it apart, so that all follow the first; 0 where each is placed by itself."""
        if self.swizzle is None or self.swizzles_each_vector or not self.scatters:
            return 0
        return self.swizzle.span if self.mn_major else self.swizzle.row_period

    @property
    def guarded(self) -> bool:
        """True if copies have to look where the matrix ends."""
        return self.guards_rows or self.guards_columns

    @property
    def has_policy(self) -> bool:
        """True if its asynchronous copies have an L2 eviction policy."""
        return self.l2_policy != "normal"

    @property
    def title(self) -> str:
        """The operand in comments."""
        return "A or B" if self.name == "AB" else self.name

    @property
    def scatters(self) -> bool:
        """True if a thread's elements along the axis lie in several pieces, whose offsets a device function computes."""
        return self.fragment.pieces > 1 and self.fragment.piece_stride != self.fragment.vector

    @property
    def shared_rows(self) -> str:
        """The constant that says how many rows the shared tile has."""
        return "kTileK" if self.mn_major else f"kTile{self.axis.upper()}"

    @property
    def inside(self) -> Operand:
        """The operand for interior tiles, whose copies check nothing."""
        return replace(self, guards_rows=False, guards_columns=False)

    @property
    def load_width(self) -> int:
        """Elements that one load of a fragment reads."""
        if self.k_vector > 1:
            return self.k_vector
        return self.fragment.vector if self.mn_major and self.pitch % self.fragment.vector == 0 else 1


@dataclass(frozen=True)
class OperandRequest:
    """Input of an operand's plan."""

    name: Literal["A", "B"]
    axis: Literal["m", "n"]
    contiguous_along_k: bool
    leading_dimension: str
    type: DataType
    widest: int
    """Elements of one global access."""
    threads: int
    lane_grid: tuple[int, int]
    """Lanes of a warp along the major and the minor direction of C."""
    is_minor: bool
    """True if ``axis`` is the minor direction."""
    whole_extent: bool
    """True if the matrix's extent along ``axis`` is a multiple of the tile."""
    whole_k: bool
    """True if k is a multiple of the tile's depth."""
    l2_prefetch: int
    keeps_in_l1: bool
    l2_policy: L2Policy


def plan_operand(request: OperandRequest, mainloop: TiledMainloop, reasons: list[Reason]) -> Operand | None:
    """The operand's numbers, or None with the errors added to ``reasons``."""
    shared = mainloop.shared_a if request.name == "A" else mainloop.shared_b
    field = f"mainloop.shared_{request.name.lower()}"
    tile = mainloop.tile
    block, tile_k = getattr(tile.threadblock, request.axis), tile.threadblock.k
    along_k = request.contiguous_along_k
    rows, columns = (block, tile_k) if along_k else (tile_k, block)
    mn_major = shared.order == "mn_major"
    is_async = mainloop.copies == "cp_async"
    # An asynchronous copy cannot transpose a vector: element by element it can.
    widest = 1 if is_async and mn_major == along_k else request.widest
    copy = tile_copy(rows, columns, request.threads, widest)
    if copy is None:
        need = f"a tile of {request.name} that {request.threads} threads can share evenly"
        hint = "a row's vectors and the threads must divide one another"
        shapes = {k: (block, k) if along_k else (k, block) for k in DEPTHS}
        depths = [str(k) for k, shape in shapes.items() if tile_copy(shape[0], shape[1], request.threads, widest) is not None]
        hint += f"; {', '.join(depths)} along k would do" if depths else ""
        got = f"{rows} x {columns} elements for {request.threads} threads"
        reasons.append(Reason("tile_copy", f"mainloop.tile.threadblock.{request.axis}", got, need, hint))
        return None
    if is_async and request.type != "f32" and copy.vector == 1:
        need = "vectors of at least two halves for cp.async, which copies 4, 8 or 16 bytes and cannot transpose"
        suffix = request.name.lower()
        hint = f"alignment.{suffix} of 2 or more and shared_{suffix}.order as it is stored, or copies: registers"
        got = "halves one by one"
        reasons.append(Reason("cp_async_width", f"storage.{suffix}", got, need, hint))
        return None
    if shared.k_vector > 1 and (mn_major or tile_k % shared.k_vector):
        need = "order: k_major and a depth of the tile along k that it divides"
        reasons.append(Reason("k_vector", f"{field}.k_vector", str(shared.k_vector), need))
        return None
    owned = _fragment(request, shared.fragment or mainloop.fragment, tile)
    whole = (request.whole_extent, request.whole_k)
    operand = Operand(
        name=request.name,
        axis=request.axis,
        leading_dimension=request.leading_dimension,
        type=request.type,
        contiguous_along_k=along_k,
        extent=block,
        tile_k=tile_k,
        copy=copy,
        mn_major=mn_major,
        padding=0,
        fragment=owned,
        lane_positions=tuple(
            lane_position(lane, *request.lane_grid, mainloop.lanes == "z_order")[request.is_minor] for lane in range(WARP)
        ),
        k_vector=shared.k_vector,
        is_async=is_async,
        l2_prefetch=request.l2_prefetch,
        keeps_in_l1=request.keeps_in_l1 and copy.vector * ELEMENTS[request.type].bytes == WIDEST_COPY_BYTES,
        l2_policy=request.l2_policy,
        guards_rows=not whole[0 if along_k else 1],
        guards_columns=not whole[1 if along_k else 0],
    )
    if shared.swizzle == "xor":
        return _swizzled(operand, shared, field, reasons)
    return _padded(operand, shared, field, reasons)


def _padded(operand: Operand, shared: SharedOperand, field: str, reasons: list[Reason]) -> Operand | None:
    aligned = _aligned_elements(operand)
    if shared.padding == "auto":
        return _best_padded(operand, aligned)
    operand = replace(operand, padding=shared.padding)
    if operand.pitch % aligned:
        got = f"{shared.padding}, which makes rows of {operand.pitch} elements"
        need = f"rows of a multiple of {aligned} elements, so that vectors stay aligned"
        reasons.append(Reason("padding", f"{field}.padding", got, need))
        return None
    return operand


@lru_cache(maxsize=1024)
def _best_padded(operand: Operand, aligned: int) -> Operand:
    """With the smallest padding of those with the fewest wavefronts; beyond one turn of the banks they repeat."""
    paddings = range(-operand.pitch % aligned, BANKS * BANK_BYTES // operand.shared_bytes, aligned)
    return _fewest_wavefronts(replace(operand, padding=padding) for padding in paddings)


def _swizzled(operand: Operand, shared: SharedOperand, field: str, reasons: list[Reason]) -> Operand | None:
    if shared.padding not in ("auto", 0):
        need = "auto or 0 beside a swizzle: rows of padded length would not keep their chunks"
        reasons.append(Reason("padding", f"{field}.padding", str(shared.padding), need))
        return None
    swizzled = _best_swizzled(operand)
    if swizzled is None:
        rows, columns = operand.shared_shape
        got = f"a tile of {rows} rows of {columns * operand.shared_bytes} bytes"
        need = f"two rows or more, of an even number of {CHUNK_BYTES}-byte chunks that can be permuted"
        reasons.append(Reason("swizzle", f"{field}.swizzle", got, need, "a tile deeper along k, or padding"))
    return swizzled


@lru_cache(maxsize=1024)
def _best_swizzled(operand: Operand) -> Operand | None:
    """With the simplest swizzle of those with the fewest wavefronts, or None if no swizzle keeps the chunks of a row in it."""
    swizzles = xor_swizzles(*operand.shared_shape, CHUNK_BYTES // operand.shared_bytes)
    if not swizzles:
        return None
    return _fewest_wavefronts(replace(operand, swizzle=swizzle) for swizzle in swizzles)


def _fragment(request: OperandRequest, kind: str, tile: Tile) -> FragmentMap:
    block, warp, thread = (getattr(part, request.axis) for part in (tile.threadblock, tile.warp, tile.thread))
    if kind == "contiguous" or (kind == "interleaved" and warp == thread):  # with a single lane nothing lies between
        return contiguous_fragment(block, warp, thread)
    if kind == "interleaved":
        return interleaved_fragment(block, warp, thread)
    return split_fragment(block, warp, thread, warp if kind == "quads_in_warp" else block, QUAD)


def _aligned_elements(operand: Operand) -> int:
    """Alignment of the pitch: the widest vector that is read or, asynchronously, written."""
    width = operand.fragment.vector if operand.mn_major else operand.k_vector
    if operand.is_async and not operand.transposes:
        width = max(width, operand.copy.vector)
    return width


def shared_loader(a: Operand, b: Operand) -> Operand | None:
    """The copy of A in one half of the threads and B in the other, or None if they are not stored or their tiles not laid out alike."""

    def layout(operand: Operand) -> tuple[object, ...]:
        from_memory = operand.type, operand.contiguous_along_k, operand.copy, operand.l2_prefetch, operand.keeps_in_l1, operand.l2_policy
        return (*from_memory, operand.mn_major, operand.pitch, operand.swizzle)

    if layout(a) != layout(b):
        return None
    guards_rows, guards_columns = a.guards_rows or b.guards_rows, a.guards_columns or b.guards_columns
    return replace(a, name="AB", leading_dimension="ld_ab", guards_rows=guards_rows, guards_columns=guards_columns, shares_loader=True)


def _fewest_wavefronts(candidates: Iterable[Operand]) -> Operand:
    """The first of the candidates whose stores and loads take the fewest wavefronts."""
    estimated = []
    for candidate in candidates:
        estimated.append((estimated_wavefronts(candidate), candidate))
    best, fewest = estimated[0][1], 0
    for estimate, candidate in sorted(estimated, key=itemgetter(0)):
        if fewest and fewest <= estimate:
            break
        wavefronts = sum(access.wavefronts for access in shared_accesses(candidate))
        if not fewest or wavefronts < fewest:
            best, fewest = candidate, wavefronts
    return best


@dataclass(frozen=True)
class SharedAccess:
    """One kind of access to shared memory in the mainloop, as the warp makes it for which it costs most."""

    what: str
    store: bool
    width_bytes: int
    per_step: int
    """Number of times that a warp does it for each tile along k."""
    wavefronts: int
    """Wavefronts of all of them together."""
    conflicts: int

    @property
    def least_wavefronts(self) -> int:
        """Their cost without conflicts: these lanes cannot have the same elements, in vectors of this width, for less."""
        return self.wavefronts - self.conflicts


def shared_accesses(operand: Operand) -> tuple[SharedAccess, SharedAccess]:
    """The accesses of one warp to the operand's shared tile during one step along k: stores, then loads of fragments."""
    return _store_access(operand, _store_starts), _load_access(operand, _fragment_starts)


def estimated_wavefronts(operand: Operand) -> int:
    """Wavefronts of these accesses if all cost as much as the first of their kind, whose lanes begin at row 0 and column 0."""
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
"""Start of an access: row and column of its first element in the shared tile, as far as they matter for its cost, and where in
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


@lru_cache(maxsize=256)
def _lane_vectors(copy: TileCopy, phase: int) -> tuple[tuple[int, int], ...]:
    """Row and column of each lane's vector in the stored matrix, relative to the first lane's."""
    first_row, first_column = copy.position(phase, 0)
    positions = (copy.position(phase + lane, 0) for lane in range(min(WARP, copy.threads)))
    return tuple((row - first_row, column - first_column) for row, column in positions)


def source_degree(operand: Operand) -> int:
    """Wavefronts that the sources of an asynchronous copy cost for each group of lanes, where rows of the matrix are a multiple of 128
    bytes apart, as those of most matrices are."""
    apart = BANKS * BANK_BYTES
    addresses = [row * apart + column * operand.element_bytes for row, column in _lane_vectors(operand.copy, 0)]
    return copy_source_degree(addresses, operand.copy.vector * operand.element_bytes)


def _load_access(operand: Operand, starts_of: FragmentStarts) -> SharedAccess:
    width = operand.load_width
    row_modulus, column_modulus = _moduli(operand)
    # All lanes read the same k. A swizzle only swaps banks here, because rows are multiples of the swizzle's span apart.
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
    """Cost of the costliest of the warps' accesses, each given by the lanes' byte offsets and its number of repetitions."""
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
