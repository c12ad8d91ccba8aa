"""How one operand, A or B, travels: from global memory through registers into shared memory and on into fragments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gemmgen.errors import Reason
from gemmgen.families.gemm.spec import Tile, TiledMainloop
from gemmgen.indexing import (
    FragmentMap,
    TileCopy,
    contiguous_fragment,
    interleaved_fragment,
    lane_position,
    split_fragment,
    tile_copy,
)
from gemmgen.launch import BYTES, C_TYPES, DataType
from gemmgen.shared_memory import WARP, shared_access_cost

QUAD = 4
PADDING_CANDIDATES = tuple(range(33))


@dataclass(frozen=True)
class Operand:
    """The numbers of A or B in a tiled mainloop."""

    name: Literal["A", "B", "AB"]
    """``AB`` for what copies either of them."""
    axis: Literal["m", "n"]
    leading_dimension: str
    type: DataType
    """Of its elements in global memory."""
    contiguous_along_k: bool
    """Whether neighbours in global memory differ in k."""
    extent: int
    """Extent of the threadblock tile along ``axis``."""
    tile_k: int
    copy: TileCopy
    """Global memory to registers; rows and columns as the matrix is stored."""
    mn_major: bool
    """Whether consecutive elements in shared memory run along ``axis``."""
    padding: int
    fragment: FragmentMap
    lane_positions: tuple[int, ...]
    """Position along ``axis``, in lanes, of each lane of a warp."""
    k_vector: int
    """Values of k that one read of a fragment takes."""
    is_async: bool
    """Whether the tile is copied straight into shared memory, without registers."""
    l2_prefetch: int
    """Bytes that the L2 fetches along with an asynchronous copy; 0: as many as it likes."""
    guards_rows: bool
    """Whether rows of the stored matrix may end within a tile."""
    guards_columns: bool
    """Whether columns of the stored matrix may end within a tile."""

    @property
    def suffix(self) -> str:
        return self.name.lower()

    @property
    def is_half(self) -> bool:
        return self.type != "f32"

    @property
    def c_type(self) -> str:
        """The type of an element in CUDA."""
        return C_TYPES[self.type]

    @property
    def element_bytes(self) -> int:
        return BYTES[self.type]

    @property
    def converts_fragments(self) -> bool:
        """Whether halves lie in shared memory as such: an asynchronous copy does not convert, so fragments are converted."""
        return self.is_async and self.is_half

    @property
    def shared_type(self) -> DataType:
        """Type of an element in shared memory."""
        return self.type if self.is_async else "f32"

    @property
    def shared_c_type(self) -> str:
        return C_TYPES[self.shared_type]

    @property
    def shared_bytes(self) -> int:
        """Bytes of an element in shared memory."""
        return BYTES[self.shared_type]

    @property
    def pitch(self) -> int:
        """Elements from one row of the shared tile to the next."""
        return (self.extent if self.mn_major else self.tile_k) + self.padding

    @property
    def shared_shape(self) -> tuple[int, int]:
        """Rows and pitch of the shared tile."""
        return (self.tile_k if self.mn_major else self.extent), self.pitch

    @property
    def transposes(self) -> bool:
        """Whether the tile is transposed on its way into shared memory, element by element."""
        return self.mn_major == self.contiguous_along_k

    @property
    def store_width(self) -> int:
        """Elements that one store into shared memory writes."""
        width = self.copy.vector if self.is_async else min(QUAD, self.copy.vector)
        return 1 if self.transposes or self.pitch % width else width

    @property
    def guarded(self) -> bool:
        """Whether copies have to look where the matrix ends."""
        return self.guards_rows or self.guards_columns

    @property
    def load_width(self) -> int:
        """Elements that one load of a fragment reads."""
        if self.k_vector > 1:
            return self.k_vector
        return self.fragment.vector if self.mn_major and self.pitch % self.fragment.vector == 0 else 1


@dataclass(frozen=True)
class SharedAccess:
    """One kind of access to shared memory in the mainloop, as one warp makes it."""

    what: str
    store: bool
    width_bytes: int
    per_step: int
    """How many times a warp does it for each tile along k."""
    wavefronts: int
    """Of all of them together."""
    conflicts: int


@dataclass(frozen=True)
class OperandRequest:
    """What the plan of an operand starts from."""

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
    """Whether ``axis`` is the minor direction."""
    whole_extent: bool
    """Whether the matrix's extent along ``axis`` is a multiple of the tile."""
    whole_k: bool
    """Whether k is a multiple of the tile's depth."""
    l2_prefetch: int


def plan_operand(request: OperandRequest, mainloop: TiledMainloop, reasons: list[Reason]) -> Operand | None:
    """The operand's numbers, or None with what is wrong added to ``reasons``."""
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
        hint = "the elements in a row and the threads should divide one another"
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
        guards_rows=not whole[0 if along_k else 1],
        guards_columns=not whole[1 if along_k else 0],
    )
    aligned = _aligned_elements(operand)
    if shared.padding == "auto":
        candidates = [padding for padding in PADDING_CANDIDATES if (columns_of(operand) + padding) % aligned == 0]
        return min((replace(operand, padding=padding) for padding in candidates), key=_cost)
    operand = replace(operand, padding=shared.padding)
    if operand.pitch % aligned:
        got = f"{shared.padding}, which makes rows of {operand.pitch} elements"
        need = f"rows of a multiple of {aligned} elements, so that vectors stay aligned"
        reasons.append(Reason("padding", f"{field}.padding", got, need))
        return None
    return operand


def columns_of(operand: Operand) -> int:
    """Elements in a row of the shared tile, without padding."""
    return operand.extent if operand.mn_major else operand.tile_k


def _fragment(request: OperandRequest, kind: str, tile: Tile) -> FragmentMap:
    block, warp, thread = (getattr(part, request.axis) for part in (tile.threadblock, tile.warp, tile.thread))
    if kind == "contiguous":
        return contiguous_fragment(block, warp, thread)
    if kind == "interleaved":
        return interleaved_fragment(block, warp, thread)
    return split_fragment(block, warp, thread, warp if kind == "quads_in_warp" else block, QUAD)


def _aligned_elements(operand: Operand) -> int:
    """What the pitch must be a multiple of: the widest vector that is read or, asynchronously, written."""
    width = operand.fragment.vector if operand.mn_major else operand.k_vector
    if operand.is_async and not operand.transposes:
        width = max(width, operand.copy.vector)
    return width


def shared_loader(a: Operand, b: Operand) -> Operand | None:
    """What copies A in one half of the threads and B in the other, or None if their tiles are not laid out alike."""
    alike = a.type == b.type and a.copy == b.copy and a.pitch == b.pitch
    alike = alike and a.mn_major and b.mn_major and not a.transposes and not b.transposes
    if not alike or a.is_async or b.is_async:
        return None
    guards_columns = a.guards_columns or b.guards_columns
    return replace(a, name="AB", leading_dimension="ld_ab", guards_columns=guards_columns)


def shared_accesses(operand: Operand) -> tuple[SharedAccess, ...]:
    """The accesses of one warp to the operand's shared tile during one step along k: stores, then loads of fragments."""
    return (_store_access(operand), _load_access(operand))


def _cost(operand: Operand) -> tuple[int, int]:
    stores, loads = shared_accesses(operand)
    return stores.wavefronts + loads.wavefronts, operand.padding


def _shared_offset(operand: Operand, along_axis: int, along_k: int) -> int:
    row, column = (along_k, along_axis) if operand.mn_major else (along_axis, along_k)
    return (row * operand.pitch + column) * operand.shared_bytes


def _store_access(operand: Operand) -> SharedAccess:
    copy, width = operand.copy, operand.store_width
    offsets = []
    for lane in range(WARP):
        row, column = copy.position(lane, 0)
        along_axis, along_k = (row, column) if operand.contiguous_along_k else (column, row)
        offsets.append(_shared_offset(operand, along_axis, along_k))
    count = copy.passes * (copy.vector // width)
    return _repeated(f"store tile of {operand.name}", offsets, width * operand.shared_bytes, count, store=True)


def _load_access(operand: Operand) -> SharedAccess:
    fragment, width = operand.fragment, operand.load_width
    offsets = [_shared_offset(operand, fragment.position(0, position, 0), 0) for position in operand.lane_positions]
    count = fragment.extent * operand.tile_k // width
    return _repeated(f"load fragment of {operand.name}", offsets, width * operand.shared_bytes, count, store=False)


def _repeated(what: str, offsets: list[int], width_bytes: int, count: int, *, store: bool) -> SharedAccess:
    """``count`` accesses of ``width_bytes`` a lane, of which ``offsets`` is the first.

    The others differ from it by the same number of elements in every lane, which turns the banks but changes no cost.
    """
    cost = shared_access_cost(offsets, width_bytes, store=store)
    return SharedAccess(what, store, width_bytes, count, count * cost.wavefronts, count * cost.conflicts)
