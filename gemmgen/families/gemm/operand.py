"""How one operand, A or B, travels: from global memory through registers into shared memory and on into fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from gemmgen.errors import Reason
from gemmgen.families.gemm.spec import TiledMainloop
from gemmgen.indexing import FragmentMap, TileCopy, contiguous_fragment, split_fragment, tile_copy
from gemmgen.shared_memory import WARP, shared_access_cost

FLOAT_BYTES = 4
QUAD = 4
PADDING_CANDIDATES = tuple(range(33))


@dataclass(frozen=True)
class Operand:
    """The numbers of A or B in a tiled mainloop."""

    name: Literal["A", "B"]
    axis: Literal["m", "n"]
    leading_dimension: str
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
    lanes_per_step: int
    """Lanes after which the position along ``axis`` advances: 1 where neighbouring lanes differ in it."""

    @property
    def suffix(self) -> str:
        return self.name.lower()

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
        return 1 if self.transposes or self.pitch % self.copy.vector else self.copy.vector

    @property
    def load_width(self) -> int:
        """Elements that one load of a fragment reads."""
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


def plan_operand(
    name: Literal["A", "B"],
    axis: Literal["m", "n"],
    *,
    contiguous_along_k: bool,
    leading_dimension: str,
    widest: int,
    mainloop: TiledMainloop,
    threads: int,
    lanes_per_step: int,
    reasons: list[Reason],
) -> Operand | None:
    """The operand's numbers, or None with what is wrong added to ``reasons``. ``widest``: elements of one global access."""
    tile, fragment = mainloop.tile, mainloop.fragment
    shared = mainloop.shared_a if name == "A" else mainloop.shared_b
    block, warp, thread = (getattr(part, axis) for part in (tile.threadblock, tile.warp, tile.thread))
    tile_k = tile.threadblock.k
    rows, columns = (block, tile_k) if contiguous_along_k else (tile_k, block)
    copy = tile_copy(rows, columns, threads, widest)
    if copy is None:
        need = f"a tile of {name} that {threads} threads can share evenly"
        hint = "the elements in a row and the threads should divide one another"
        got = f"{rows} x {columns} elements for {threads} threads"
        reasons.append(Reason("tile_copy", f"mainloop.tile.threadblock.{axis}", got, need, hint))
        return None
    if fragment == "contiguous":
        owned = contiguous_fragment(block, warp, thread)
    else:
        owned = split_fragment(block, warp, thread, warp if fragment == "quads_in_warp" else block, QUAD)
    operand = Operand(
        name=name,
        axis=axis,
        leading_dimension=leading_dimension,
        contiguous_along_k=contiguous_along_k,
        extent=block,
        tile_k=tile_k,
        copy=copy,
        mn_major=shared.order == "mn_major",
        padding=0,
        fragment=owned,
        lanes_per_step=lanes_per_step,
    )
    if shared.padding == "auto":
        return min((replace(operand, padding=padding) for padding in _useful_paddings(operand)), key=_cost)
    operand = replace(operand, padding=shared.padding)
    if operand.mn_major and operand.pitch % owned.vector:
        need = f"a multiple of {owned.vector}, so that {owned.vector}-element reads of fragments stay aligned"
        reasons.append(Reason("padding", f"mainloop.shared_{operand.suffix}.padding", str(shared.padding), need))
        return None
    return operand


def shared_accesses(operand: Operand) -> tuple[SharedAccess, ...]:
    """The accesses of one warp to the operand's shared tile during one step along k: stores, then loads of fragments."""
    return (_store_access(operand), _load_access(operand))


def _useful_paddings(operand: Operand) -> Iterator[int]:
    step = operand.fragment.vector if operand.mn_major else 1
    return (padding for padding in PADDING_CANDIDATES if padding % step == 0)


def _cost(operand: Operand) -> tuple[int, int]:
    stores, loads = shared_accesses(operand)
    return stores.wavefronts + loads.wavefronts, operand.padding


def _shared_offset(operand: Operand, along_axis: int, along_k: int) -> int:
    row, column = (along_k, along_axis) if operand.mn_major else (along_axis, along_k)
    return (row * operand.pitch + column) * FLOAT_BYTES


def _store_access(operand: Operand) -> SharedAccess:
    copy, width = operand.copy, operand.store_width
    offsets = []
    for lane in range(WARP):
        row, column = copy.position(lane, 0)
        along_axis, along_k = (row, column) if operand.contiguous_along_k else (column, row)
        offsets.append(_shared_offset(operand, along_axis, along_k))
    count = copy.passes * (copy.vector // width)
    return _repeated(f"store tile of {operand.name}", offsets, width, count, store=True)


def _load_access(operand: Operand) -> SharedAccess:
    fragment, width = operand.fragment, operand.load_width
    offsets = []
    for lane in range(WARP):
        position = lane // operand.lanes_per_step % fragment.lanes
        offsets.append(_shared_offset(operand, fragment.position(0, position, 0), 0))
    count = fragment.extent // width * operand.tile_k
    return _repeated(f"load fragment of {operand.name}", offsets, width, count, store=False)


def _repeated(what: str, offsets: list[int], width: int, count: int, *, store: bool) -> SharedAccess:
    """``count`` accesses of ``width`` elements a lane, of which ``offsets`` is the first.

    The others differ from it by the same number of elements in every lane, which turns the banks but changes no cost.
    """
    width_bytes = width * FLOAT_BYTES
    cost = shared_access_cost(offsets, width_bytes, store=store)
    return SharedAccess(what, store, width_bytes, count, count * cost.wavefronts, count * cost.conflicts)
