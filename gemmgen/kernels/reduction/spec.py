"""Spec of a reduction kernel."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gemmgen.kernels.epilogue.operations import NumberType, Operations
from gemmgen.kernels.family import KernelSpec, SpecModel

OperationName = Literal[
    "sum",
    "product",
    "min",
    "max",
    "mean",
    "sum_of_squares",
    "l1_norm",
    "l2_norm",
    "any",
    "all",
    "argmin",
    "argmax",
    "logsumexp",
    "mean_variance",
]
InputType = Literal["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"]
AccumulatorType = Literal["float32", "float64", "int32", "int64"]
OutputType = NumberType | Literal["bool"]
Shape = Literal["all", "rows", "columns", "middle", "strided", "tensor"]

BlockName = Literal[
    "interleaved",
    "interleaved_compact",
    "sequential",
    "first_add",
    "unroll_last_warp",
    "fully_unrolled",
    "grid_stride",
    "shuffle",
    "streaming",
]
SERIES: tuple[str, ...] = (
    "interleaved",
    "interleaved_compact",
    "sequential",
    "first_add",
    "unroll_last_warp",
    "fully_unrolled",
    "grid_stride",
    "shuffle",
)
"""The eight steps from the first idea to a good kernel, by number."""

Finish = Literal["two_pass", "last_block", "first_block", "atomic"]
"""Combination of the partial results of several blocks: a second kernel reduces them; the block that ends last does, which it
knows by a ticket; the first block waits for the others' flags; or atomic operations, where their order cannot matter."""

Threads = Annotated[int, Field(ge=32, le=1024, strict=True)]
VectorWidth = Literal[1, 2, 4, 8, 16]
Unroll = Annotated[int, Field(ge=1, le=16, strict=True)]
BlocksPerSm = Annotated[int, Field(ge=1, le=32, strict=True)]


class Launching(SpecModel):
    """Fields that all divisions of the work share. A field that is left out is chosen by the family's rule."""

    threads: Threads | None = None
    """Threads of a block, a power of two."""
    vector: VectorWidth | None = None
    """Elements that one load reads; no more than ``alignment`` allows and 16 bytes hold."""
    unroll: Unroll | None = None
    """Loads of a thread that are in flight at the same time."""
    early_launch: bool = False
    """The kernel is brought to the SMs while the work before it in the stream still runs, and waits for it there
    (programmatic dependent launch). Needs sm_90."""


class BlockStrategy(Launching):
    """Everything to one value: the nine ways a grid of blocks can do it."""

    name: BlockName
    """``interleaved`` to ``shuffle`` are the steps of the classic series, ``streaming`` the one to use: wide loads, several
    in flight, a tree of shuffles."""
    items_per_thread: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None
    """Elements that a thread takes at least before the grid grows; for strategies whose threads take as many as it needs."""
    blocks_per_sm: BlocksPerSm | None = None
    """Blocks that an SM holds at a time; for strategies whose threads take many elements."""
    waves: Annotated[int, Field(ge=1, le=16, strict=True)] | None = None
    """The grid never has more than ``waves`` times ``blocks_per_sm`` times ``multiprocessors`` blocks. With one wave all run at the
    same time; with more, blocks start as others end, and an SM that is nearer to the memory takes more of them."""
    multiprocessors: Annotated[int, Field(ge=1, le=1024, strict=True)] = 132
    """SMs of the device that the grid is sized for. The result does not depend on the device that it runs on."""
    finish: Finish | None = None
    """Combination of the blocks' results."""


class RowLanes(Launching):
    """Rows: a thread, a part of a warp or a warp for each row, several rows at a time."""

    name: Literal["row_lanes"]
    lanes: Literal[1, 2, 4, 8, 16, 32] | None = None
    """Threads that share a row."""
    rows: Annotated[int, Field(ge=1, le=16, strict=True)] | None = None
    """Rows that these threads reduce at the same time."""


class RowBlocks(Launching):
    """Rows: a block for each row, or several."""

    name: Literal["row_blocks"]
    blocks_per_row: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    """Blocks that share a row."""
    finish: Literal["two_pass", "last_block", "atomic"] | None = None
    """Combination of the results of a row's blocks. None of them may wait for another: with many rows, those that wait could fill
    the device, and those they wait for would never start."""


class ColumnTiles(Launching):
    """Columns: a block for a tile of neighbouring columns, or several that share the rows."""

    name: Literal["column_tiles"]
    lanes: Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] | None = None
    """Threads side by side, each with ``vector`` columns; the others of the block take other rows."""
    splits: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    """Blocks that share the rows of one tile."""
    finish: Literal["two_pass", "last_block"] | None = None
    """Combination of these blocks' results."""


class Walk(Launching):
    """Fields of the strategies for tensors: axes in any number and order, each with its own stride."""

    kept: Annotated[int, Field(ge=0, le=7, strict=True)] = 1
    """Axes that the results have."""
    reduced: Annotated[int, Field(ge=1, le=8, strict=True)] = 1
    """Axes that are reduced."""
    repeated: bool = False
    """The tensor is broadcast along its first kept axis: the results are made once, and stored for each place along it."""
    wide: bool = False
    """Extents of 64 bits, and indices: for axes of more elements than 31 bits count."""


class TensorRows(Walk):
    """Tensors whose innermost axis is reduced: lanes along it, by a part of a warp, a warp, a block or several for each result.

    Vectors lie at multiples of their size in memory, wherever a row begins: the first and the last of a row hold a part of it.
    """

    name: Literal["tensor_rows"]
    lanes: Literal[1, 2, 4, 8, 16, 32] | None = None
    """Threads that share a result; left out, a block, or as many blocks as the launch says (``parts``)."""


class TensorColumns(Walk):
    """Tensors whose innermost axis is kept: threads side by side along it, others for other places along the reduced axes."""

    name: Literal["tensor_columns"]
    lanes: Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] | None = None
    """Threads side by side, each with ``vector`` neighbouring results."""
    columns: Annotated[int, Field(ge=1, le=8, strict=True)] | None = None
    """Vectors of results that a thread has, ``lanes`` vectors apart."""
    ragged: bool = False
    """The innermost extent may be any: the last vector along it has only a part of its elements."""


class FlatColumns(Walk):
    """Short rows without gaps, reduced along the columns: vectors across the rows' ends. A thread's next vector is whole rows further,
    so that each of its elements belongs to one column."""

    name: Literal["flat_columns"]


class FlatRows(Walk):
    """Short rows without gaps, each reduced: vectors across the rows' ends into shared memory, from where a thread takes a row."""

    name: Literal["flat_rows"]
    longest: Literal[8, 16, 32, 64] | None = None
    """Elements of a row at most. A block takes as many rows as have so many elements for each thread."""


class FlatTiles(Walk):
    """Longer rows without gaps, reduced along the columns: threads side by side along tiles of them, each with vectors that lie at
    multiples of their size in memory, wherever a row begins. A thread takes rows that begin at the same place in a vector."""

    name: Literal["flat_tiles"]
    lanes: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None
    """Threads side by side. The block's other threads take other rows, of which there have to be a multiple of ``vector``."""


WALKS = ("tensor_rows", "tensor_columns", "flat_columns", "flat_tiles", "flat_rows")
"""The strategies for tensors."""

Strategy = Annotated[
    BlockStrategy | RowLanes | RowBlocks | ColumnTiles | TensorRows | TensorColumns | FlatColumns | FlatTiles | FlatRows,
    Field(discriminator="name"),
]


class Extents(SpecModel):
    """Extents of a problem."""

    outer: Annotated[int, Field(ge=1, strict=True)] = 1
    """Product of the extents before the reduced axis."""
    reduced: Annotated[int, Field(ge=1, strict=True)]
    """Extent of the reduced axis."""
    inner: Annotated[int, Field(ge=1, strict=True)] = 1
    """Product of the extents after the reduced axis."""


class ReductionSpec(KernelSpec):
    """Y = epilogue(reduce(prologue(X))) over one axis of an array or over all of it."""

    mainloop_field: ClassVar[str] = "strategy"

    kind: Literal["reduction"]
    operation: OperationName | Annotated[tuple[OperationName, ...], Field(min_length=2, max_length=2)]
    """One, or a list of two that one pass over a tensor makes, each with a separate array: ``Y0`` and ``Y1``. ``any`` and ``all``
    ask which elements are not 0. ``argmin`` and ``argmax`` give the first index. ``mean_variance`` makes one pass over the data
    and writes two arrays."""
    input: InputType = "float32"
    """Type of the elements of X."""
    accumulator: AccumulatorType | None = None
    """The type that is computed in. Default: float32 for floating point up to 32 bits, else float64; int64 for sums and
    products of integers; the input's own type for extrema of integers."""
    output: OutputType | None = None
    """The type that is stored. Default: the accumulator's; int64 for an index, bool for ``any`` and ``all``, float64 for the
    mean and the norm of integers."""
    correction: Literal[0, 1] = 0
    """The variance is the sum of squared distances over the count less this: 0 for a population, 1 for a sample."""
    shape: Shape = "all"
    """``all``: one array of ``reduced`` elements. ``rows``: [outer, reduced], each row contiguous. ``columns``:
    [reduced, inner], reduced along the strided axis. ``middle``: [outer, reduced, inner], contiguous along inner.
    ``strided``: [outer, reduced, inner] with any strides, none of them negative. ``tensor``: up to eight axes, any of them
    reduced, with any strides, negative ones and 0 as well; the strategy says how many."""
    alignment: VectorWidth = 1
    """A promise in elements: the base pointer and the strides are multiples of it, and with ``columns`` and ``middle`` so is
    the inner extent. It allows loads of that many elements."""
    typical: Extents | None = None
    """The problem that the instance is meant for; it guides the choices left open. Any other gives the right result too."""
    prologue: Operations = ()
    """Operations on each element before it is reduced, in this order."""
    strategy: Strategy | None = None
    """Division of the work; left out, the family's rule chooses by shape and ``typical``."""
    epilogue: Operations = ()
    """Operations on each result before it is stored, in this order."""
