"""Pictures of a plan as plain data: families provide it, ``gemmgen.present`` draws it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Rectangle = tuple[int, int, int, int]
"""First row, first column, rows, columns."""


@dataclass(frozen=True)
class Share:
    """Part of a tile that one warp, lane or instruction has."""

    number: int
    rectangles: tuple[Rectangle, ...]


@dataclass(frozen=True)
class Division:
    """A tile of ``rows`` x ``columns`` elements, and the owner of each."""

    title: str
    rows: int
    columns: int
    row_axis: str
    column_axis: str
    owner: str
    """Owner that shares are numbered by: ``warp``, ``lane``."""
    shares: tuple[Share, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProductOverview:
    """The whole of C = A B, of which one block computes a tile, a slice of k at a time."""

    a: str
    b: str
    c: str
    m: str
    """Short name of the rows of C."""
    n: str
    k: str
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    """Slices of A and B that are in shared memory at a time."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArrayOverview:
    """An array of which one block takes a part at a time."""

    name: str
    rows: str
    """Name of the rows; empty if the array has only one."""
    columns: str
    tile_rows: int
    tile_columns: int
    tiles_of_block: tuple[tuple[int, int], ...]
    """Tiles of the array that the first block takes, by row and column of tiles."""
    reduces_rows: bool
    """True if elements of one column are combined; else those of one row."""
    notes: tuple[str, ...] = ()
    combines: bool = True
    """True if elements are combined at all."""


@dataclass(frozen=True)
class TileHierarchy:
    """From the whole problem to a thread's share, one panel per level."""

    title: str
    overview: ProductOverview | ArrayOverview
    levels: tuple[Division, ...]
    """Each divides the first share of the one before."""
    name: str = "tiles"


@dataclass(frozen=True)
class Fragments:
    """Assignment of lanes to the elements of a tile of C, and of the operands that it is the product of."""

    title: str
    c: Division
    a: Division | None = None
    """To the left of C, with the same rows."""
    b: Division | None = None
    """Above C, with the same columns."""
    notes: tuple[str, ...] = ()
    lanes_of_a_color: int = 8
    """Number of consecutive lanes with one color."""
    name: str = "fragments"


@dataclass(frozen=True)
class SharedAccess:
    """One instruction of a warp that stores to shared memory or loads from it."""

    offsets: tuple[int, ...]
    """Byte offset for each lane, -1 for lanes that take no part."""
    width: int
    """Bytes a lane."""
    store: bool
    """True if the groups that it is served by never pair up: stores, and matrices of ``ldmatrix``."""

    @staticmethod
    def of(offsets: Iterable[int], width: int, *, store: bool) -> SharedAccess:
        """An access of as many lanes as there are offsets."""
        known = tuple(offsets)
        return SharedAccess(known + (-1,) * (32 - len(known)), width, store)


@dataclass(frozen=True)
class LaneOrder:
    """One numbering of the lanes of a warp over its tile, and the cost of their reads of both operands."""

    title: str
    chosen: bool
    """True if it is the instance's own."""
    positions: tuple[tuple[int, int], ...]
    """Row and column, in thread tiles, of each lane."""
    reads: tuple[tuple[str, SharedAccess], ...]
    """Operand, and a read of it."""


@dataclass(frozen=True)
class LaneOrders:
    """Orders of lanes side by side."""

    title: str
    orders: tuple[LaneOrder, ...]
    row_axis: str
    column_axis: str
    notes: tuple[str, ...] = ()
    name: str = "lanes"


@dataclass(frozen=True)
class SharedLayout:
    """One way to lay a tile out in shared memory, and an access to it."""

    title: str
    bytes: int
    """Bytes of the tile, padding included."""
    colors: Mapping[int, int]
    """The color of each piece of ``BankMap.unit`` bytes, by its byte offset; missing offsets are padding."""
    access: SharedAccess
    chosen: bool = True
    """True if it is the instance's own."""


@dataclass(frozen=True)
class BankMap:
    """One access to shared memory, in one layout or before and after a change."""

    access: str
    """Name of the access, which ``--access`` takes: ``load-a``."""
    title: str
    layouts: tuple[SharedLayout, ...]
    total: str
    """Number of times it is made, and the cost of all."""
    notes: tuple[str, ...] = ()
    unit: int = 16
    """Bytes that are drawn as one."""


@dataclass(frozen=True)
class BankMaps:
    """Accesses to shared memory, each with the banks that it hits."""

    title: str
    maps: tuple[BankMap, ...]
    name: str = "shared"


@dataclass(frozen=True)
class TreeStep:
    """One step in which pairs of threads combine their values: source and destination by thread."""

    title: str
    pairs: tuple[tuple[int, int], ...]
    """(into, from): numbers of the states that are combined."""
    workers: tuple[int, ...]
    """The threads that do it, in the order of ``pairs``."""
    access: SharedAccess | None = None
    """The first warp's load of the combined elements, if they lie in shared memory."""
    barrier: str = ""
    """Barrier between it and the next step."""


@dataclass(frozen=True)
class Tree:
    """Combination of a block's results by its threads."""

    title: str
    threads: int
    steps: tuple[TreeStep, ...]
    notes: tuple[str, ...] = ()
    name: str = "fragments"


@dataclass(frozen=True)
class Span:
    """Something that takes a while."""

    row: int
    start: float
    length: float
    text: str
    color: int
    strong: bool = True
    """False: drawn pale, as background work."""


@dataclass(frozen=True)
class Timeline:
    """Rows of spans over time, or over steps of a loop."""

    title: str
    rows: tuple[str, ...]
    spans: tuple[Span, ...]
    unit: str
    """Meaning of the horizontal axis."""
    notes: tuple[str, ...] = ()
    marks: tuple[float, ...] = ()
    """Moments that all rows have in common, barriers say."""
    name: str = "pipeline"


@dataclass(frozen=True)
class LaunchWaves:
    """One launch, in waves of as many blocks as a device holds at once."""

    title: str
    blocks: int
    multiprocessors: int
    blocks_per_multiprocessor: int
    persistent: bool = False
    """True if the number of blocks stays the same for larger problems, of which a block takes several tiles."""


@dataclass(frozen=True)
class WavePicture:
    """The launches of a problem over the multiprocessors of a device."""

    title: str
    launches: tuple[LaunchWaves, ...]
    notes: tuple[str, ...] = ()
    name: str = "waves"


@dataclass(frozen=True)
class OccupancyPicture:
    """Blocks on a multiprocessor, and the resource that allows no more."""

    title: str
    limits: tuple[tuple[str, int], ...]
    """Blocks that each resource allows, by the resource's name."""
    blocks: int
    warps_per_block: int
    places: int
    """Warps that a multiprocessor holds at most."""
    notes: tuple[str, ...] = ()
    name: str = "occupancy"


@dataclass(frozen=True)
class Roof:
    """A bound of a device's rate."""

    title: str
    value: float
    """Operations per second; of a sloped one, bytes per second."""
    sloped: bool = False
    """True if the rate grows with the operations for each byte."""


@dataclass(frozen=True)
class RoofPoint:
    """A problem beneath the roofs, its bytes counted in one way."""

    title: str
    intensity: float
    """Operations for each byte."""
    rate: float
    """Operations per second that the roofs allow there."""


@dataclass(frozen=True)
class RoofPicture:
    """Rates that a device allows a problem, by the operations for each byte (roofline)."""

    title: str
    unit: str
    """Unit of an operation: FLOP or OP."""
    roofs: tuple[Roof, ...]
    """At least a level and a sloped one."""
    points: tuple[RoofPoint, ...]
    notes: tuple[str, ...] = ()
    name: str = "roofs"


@dataclass(frozen=True)
class MultiplyAdd:
    """One FFMA of a loop: its register operands, by place."""

    operands: tuple[tuple[int, bool], ...]
    """Number of each register, and True where the reuse cache has it, so that no bank is read."""
    conflict: bool


@dataclass(frozen=True)
class RegisterBanks:
    """Multiply-adds of a main loop in the order of the machine code, and the banks that their operands come from."""

    title: str
    instructions: tuple[MultiplyAdd, ...]
    banks: int
    notes: tuple[str, ...] = ()
    name: str = "registers"


@dataclass(frozen=True)
class TapStep:
    """One entry of the table that a convolution walks its filter taps by."""

    block: int
    """Block of channels that the tap lies in."""
    row: int
    column: int
    increment: int
    """Bytes to the next tap that a thread copies."""


@dataclass(frozen=True)
class TapWalk:
    """Filter taps in the order in which a thread copies them, and how far its pointer moves each time."""

    title: str
    rows: int
    columns: int
    steps: tuple[TapStep, ...]
    notes: tuple[str, ...] = ()
    name: str = "increments"


@dataclass(frozen=True)
class IssueSlot:
    """One instruction of a loop with its control code."""

    mnemonic: str
    kind: str
    """Unit that it goes to, in a word or two."""
    stall: int
    """Cycles before the next instruction of the warp may be issued."""
    waits: tuple[int, ...]
    """Barriers that it waits for."""
    sets: tuple[int, ...]
    """Barriers that it sets, for its result or for its operands."""
    reused: int
    """Operands marked to stay in the reuse cache."""


@dataclass(frozen=True)
class LoopCode:
    """Machine code of a main loop as it is scheduled, and its room in the instruction cache."""

    title: str
    slots: tuple[IssueSlot, ...]
    bytes: int
    cache: str
    """Name of the instruction cache."""
    cache_bytes: int
    notes: tuple[str, ...] = ()
    name: str = "code"


@dataclass(frozen=True)
class Piece:
    """Part of a matrix that a loop works on at a time, within the part that the loop around it has."""

    matrix: str
    rows: int
    """Rows of the enclosing loop's part, in elements."""
    columns: int
    taken: Rectangle
    held: str = ""
    """Place that keeps the piece meanwhile, and its size."""


@dataclass(frozen=True)
class Loop:
    """One loop of a nest."""

    title: str
    note: str
    c: Piece
    left: Piece
    right: Piece


@dataclass(frozen=True)
class LoopNest:
    """Loops of a product on a processor, the outermost first, and the pieces of C += left * right that each works on."""

    title: str
    loops: tuple[Loop, ...]
    notes: tuple[str, ...] = ()
    name: str = "loops"


@dataclass(frozen=True)
class PackedOperand:
    """Block of an operand, copied into panels of ``panel`` lines, within which all lines of one step along k are neighbours."""

    name: str
    lines: int
    """Rows of the left operand or columns of the right one."""
    depth: int
    """Steps along k."""
    panel: int
    line_axis: str
    upright: bool
    """True if lines are drawn as rows."""
    note: str
    """Way from the matrix as it is stored."""


@dataclass(frozen=True)
class Packing:
    """Operands in the order in which a micro-kernel reads them."""

    title: str
    operands: tuple[PackedOperand, ...]
    name: str = "packing"


Picture = (
    TileHierarchy
    | Fragments
    | LaneOrders
    | BankMaps
    | Tree
    | Timeline
    | WavePicture
    | OccupancyPicture
    | RoofPicture
    | RegisterBanks
    | TapWalk
    | LoopCode
    | LoopNest
    | Packing
)


def runs(positions: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Consecutive positions together: (first, how many) of each run, in order."""
    ranges: list[tuple[int, int]] = []
    for position in sorted(positions):
        if ranges and sum(ranges[-1]) == position:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((position, 1))
    return tuple(ranges)


def product(rows: Iterable[int], columns: Iterable[int]) -> tuple[Rectangle, ...]:
    """The rectangles of all elements in some rows and some columns."""
    column_runs = runs(columns)
    return tuple((row, column, height, width) for row, height in runs(rows) for column, width in column_runs)
