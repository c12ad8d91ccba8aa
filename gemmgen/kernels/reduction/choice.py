"""Division of the work: the family's rule for fields that a spec leaves open.

The numbers were measured on an H200 (``measurements/reduction.md``): enough loads in flight to fill its memory system, few
barriers, one launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.reduction.spec import (
    SERIES,
    BlockStrategy,
    ColumnTiles,
    Finish,
    FlatColumns,
    FlatRows,
    FlatTiles,
    ReductionSpec,
    RowBlocks,
    RowLanes,
    TensorColumns,
    TensorRows,
)

MULTIPROCESSORS = 132
"""SMs that grids are sized for where the spec names no number: those of an H100 or H200."""
VECTOR_BYTES = 16
"""The widest load."""
LOADS = 4
"""Loads of a thread that are in flight at the same time: with the threads that fit on an SM, more than memory needs."""
ONE_BLOCK_THREADS = 256
RESIDENT_THREADS = 1024
"""Threads of an SM that, each with loads in flight, keep the memory busy."""
FLAT_THREADS = 1536
"""Threads of an SM for kernels of short rows, whose blocks pause long to combine their threads' results; two thirds as many where
an element has less than four bytes, since a vector's elements then take more registers."""
TILE_THREADS = 1280
"""Threads for tiles of longer rows, where a state has no more than four bytes: with more, registers would be spilled. A tenth less
where an element has less than four bytes."""
LARGE_VECTORS = 1 << 24
"""Loads from which on an array is large: tens of microseconds on an H200."""
LONG_ROW_VECTORS = 512
"""Rows of more vectors than this get a block, or several."""
BLOCKS_FOR_ROWS = 64 * MULTIPROCESSORS
"""Approximate number of blocks that share few long rows: enough that the last ones to run do not leave most SMs idle."""
FEW_COLUMNS = 512
SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class BlockChoice:
    """Everything to one value, or rows by blocks."""

    name: str
    threads: int
    vector: int
    unroll: int
    early_launch: bool
    items_per_thread: int
    finish: Finish | None
    """None: one block alone."""
    most_blocks: int | None = None
    """Limit of blocks of the grid; None: no limit. For reductions to one value."""
    blocks_per_sm: int = 1
    blocks_per_row: int | None = None
    """For rows."""


@dataclass(frozen=True)
class LaneChoice:
    """Rows by lanes."""

    threads: int
    vector: int
    unroll: int
    early_launch: bool
    lanes: int
    rows: int


@dataclass(frozen=True)
class ColumnChoice:
    """Columns by tiles."""

    threads: int
    vector: int
    unroll: int
    early_launch: bool
    lanes: int
    splits: int
    finish: Literal["two_pass", "last_block"] | None


@dataclass(frozen=True)
class WalkChoice:
    """A tensor's axes."""

    name: Literal["tensor_rows", "tensor_columns", "flat_columns", "flat_tiles", "flat_rows"]
    threads: int
    vector: int
    unroll: int
    early_launch: bool
    kept: int
    reduced: int
    wide: bool
    lanes: int
    """Threads that share a result, or stand side by side; for flat arrays, all."""
    columns: int = 1
    longest: int = 0
    repeated: bool = False
    ragged: bool = False

    @property
    def in_parts(self) -> bool:
        """True if several blocks may share a result."""
        return self.name in ("tensor_columns", "flat_columns", "flat_tiles") or (self.name == "tensor_rows" and self.lanes == self.threads)


Choice = BlockChoice | LaneChoice | ColumnChoice | WalkChoice


def resident_blocks(name: str, threads: int, element_bytes: int, state_bytes: int) -> int:
    """Blocks of a kernel for tensors that an SM holds at a time."""
    most = RESIDENT_THREADS
    if name == "flat_columns" and state_bytes <= 8:
        most = FLAT_THREADS if element_bytes >= 4 else FLAT_THREADS * 3 // 4
    elif name == "flat_tiles" and state_bytes <= 4:
        most = TILE_THREADS if element_bytes >= 4 else TILE_THREADS * 9 // 10
    return max(1, most // threads)


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least ``value``."""
    return 1 << max(0, value - 1).bit_length()


def choose(spec: ReductionSpec, element_bytes: int, state_bytes: int) -> Choice:
    """The strategy that the spec asks for, its gaps filled by the rule."""
    widest = min(spec.alignment, VECTOR_BYTES // element_bytes)
    strategy = spec.strategy
    if strategy is None:
        strategy = _strategy(spec, widest)
    if isinstance(strategy, BlockStrategy):
        return _block(spec, strategy, widest)
    if isinstance(strategy, RowLanes):
        return _lanes(spec, strategy, widest)
    if isinstance(strategy, RowBlocks):
        return _row_blocks(spec, strategy, widest)
    if isinstance(strategy, TensorRows | TensorColumns | FlatColumns | FlatTiles | FlatRows):
        return _walk(strategy, VECTOR_BYTES // element_bytes, state_bytes)
    return _columns(spec, strategy, widest, element_bytes, state_bytes)


def _walk(strategy: TensorRows | TensorColumns | FlatColumns | FlatTiles | FlatRows, widest: int, state_bytes: int) -> WalkChoice:
    """Numbers that a strategy for tensors leaves open: vectors of 16 bytes, four loads in flight."""
    threads = strategy.threads or 256
    vector, unroll = strategy.vector or widest, strategy.unroll or LOADS
    lanes, columns, longest, ragged = threads, 1, 0, False
    if isinstance(strategy, TensorRows):
        lanes = strategy.lanes or threads
    elif isinstance(strategy, TensorColumns):
        vector = strategy.vector or max(1, min(widest, 64 // state_bytes))
        lanes, columns, ragged = strategy.lanes or min(32, threads), strategy.columns or 1, strategy.ragged
    elif isinstance(strategy, FlatTiles):
        groups = threads // strategy.lanes if strategy.lanes else 16
        widest = max(1, min(widest, 64 // state_bytes, groups & -groups))
        vector = strategy.vector or power_of_two(widest + 1) // 2
        lanes = strategy.lanes or max(1, threads // max(8, vector))
    elif isinstance(strategy, FlatRows):
        longest = strategy.longest or 16
    walk = (strategy.early_launch, strategy.kept, strategy.reduced, strategy.wide)
    return WalkChoice(strategy.name, threads, vector, unroll, *walk, lanes, columns, longest, strategy.repeated, ragged)


def _strategy(spec: ReductionSpec, widest: int) -> BlockStrategy | RowLanes | RowBlocks | ColumnTiles | TensorRows:
    """The kind of strategy for a shape."""
    if spec.shape == "tensor":
        return TensorRows(name="tensor_rows")
    if spec.shape == "all":
        return BlockStrategy(name="streaming")
    typical = spec.typical
    if spec.shape == "rows" and typical is not None:
        vectors = ceil_div(typical.reduced, widest)
        few_rows = typical.outer < 8 * MULTIPROCESSORS and vectors > 64
        return RowBlocks(name="row_blocks") if vectors > LONG_ROW_VECTORS or few_rows else RowLanes(name="row_lanes")
    narrow = typical is not None and typical.inner < 8 and typical.reduced > typical.inner
    if spec.shape == "rows" or (spec.shape == "strided" and narrow):
        return RowLanes(name="row_lanes")
    return ColumnTiles(name="column_tiles")


def _block(spec: ReductionSpec, strategy: BlockStrategy, widest: int) -> BlockChoice:
    if strategy.name in SERIES:
        vector = int(strategy.vector or 1)
        threads, unroll = strategy.threads or 256, strategy.unroll or 1
        number = SERIES.index(strategy.name)
        items = strategy.items_per_thread or (1 if number < 3 else 2 if number < 6 else max(8, vector * unroll))
        streams = number >= 6
        return BlockChoice(
            strategy.name,
            threads,
            vector,
            unroll,
            strategy.early_launch,
            items,
            strategy.finish or "two_pass",
            most_blocks=strategy.multiprocessors * (strategy.blocks_per_sm or 8) * (strategy.waves or 1) if streams else None,
            blocks_per_sm=strategy.blocks_per_sm or 1,
        )
    size = spec.typical.reduced if spec.typical is not None else 1 << 24
    vector = strategy.vector or widest
    threads, unroll, blocks_per_sm, waves = _streaming(ceil_div(size, vector))
    threads, unroll = strategy.threads or threads, strategy.unroll or unroll
    blocks_per_sm = strategy.blocks_per_sm or min(blocks_per_sm, 2048 // threads)
    return BlockChoice(
        strategy.name,
        threads,
        vector,
        unroll,
        strategy.early_launch,
        strategy.items_per_thread or vector * unroll,
        strategy.finish or "first_block",
        most_blocks=strategy.multiprocessors * blocks_per_sm * (strategy.waves or waves),
        blocks_per_sm=blocks_per_sm,
    )


def _streaming(vectors: int) -> tuple[int, int, int, int]:
    """Threads, unroll, blocks per SM and waves for everything to one value.

    One block is best where its 256 threads need no more than four loads each. Beyond that, four loads are in flight in
    each thread, in about one small block for each SM, whose threads grow with the array; then all SMs are filled. A grid
    that fills only a part of each SM is to be avoided where launches overlap: blocks of the next one then crowd on the SMs
    that are free first. Arrays that take much longer than a block's start are distributed in two waves.
    """
    if vectors <= ONE_BLOCK_THREADS * LOADS:
        threads = min(ONE_BLOCK_THREADS, max(32, power_of_two(vectors)))
        return threads, power_of_two(ceil_div(vectors, threads)), 1, 1
    if vectors >= LARGE_VECTORS:
        return 512, 2 * LOADS, 2, 2
    return min(1024, max(64, power_of_two(ceil_div(vectors, LOADS * 128)))), LOADS, 2, 1


def _row_blocks(spec: ReductionSpec, strategy: RowBlocks, widest: int) -> BlockChoice:
    outer, reduced = (spec.typical.outer, spec.typical.reduced) if spec.typical else (1 << 12, 1 << 14)
    vector = strategy.vector or widest
    vectors = ceil_div(reduced, vector)
    threads = strategy.threads or min(512, max(64, power_of_two(ceil_div(vectors, 8))))
    unroll = strategy.unroll or min(4, power_of_two(ceil_div(vectors, threads)))
    share = ceil_div(BLOCKS_FOR_ROWS, outer)
    blocks = strategy.blocks_per_row or power_of_two(max(1, min(share, vectors // (8 * threads * unroll), 512)) + 1) // 2
    finish = strategy.finish or ("last_block" if blocks > 1 else None)
    return BlockChoice("row_blocks", threads, vector, unroll, strategy.early_launch, vector * unroll, finish, blocks_per_row=blocks)


def _lanes(spec: ReductionSpec, strategy: RowLanes, widest: int) -> LaneChoice:
    """Eight lanes read 128 bytes without a gap; more of them share a row only where each still has eight loads."""
    vector = strategy.vector or (1 if spec.shape == "strided" else widest)
    vectors = ceil_div(spec.typical.reduced, vector) if spec.typical else 64
    lanes = strategy.lanes or min(32, max(min(8, power_of_two(vectors)), power_of_two(ceil_div(vectors, 8))))
    unroll = strategy.unroll or min(8, power_of_two(ceil_div(vectors, lanes)))
    rows = strategy.rows or max(1, 2 // unroll)
    return LaneChoice(strategy.threads or 256, vector, unroll, strategy.early_launch, lanes, rows)


def _columns(spec: ReductionSpec, strategy: ColumnTiles, widest: int, element_bytes: int, state_bytes: int) -> ColumnChoice:
    """Few columns are cut into narrow tiles, so that several blocks finish at the same time; a large array gets two blocks
    for each SM, a small one that is soon read only one, since each block's result has to be read as well."""
    vector = strategy.vector or (1 if spec.shape == "strided" else max(1, min(widest, 64 // state_bytes)))
    outer, reduced, inner = 1, 1 << 12, 1 << 12
    if spec.typical is not None:
        outer, reduced, inner = spec.typical.outer, spec.typical.reduced, spec.typical.inner
    threads = strategy.threads or 512
    widest_tile = 8 if inner <= FEW_COLUMNS else 32
    lanes = strategy.lanes or min(widest_tile, power_of_two(ceil_div(inner, vector)), threads)
    unroll = strategy.unroll or LOADS
    row_threads = max(1, threads // lanes)
    tiles = outer * ceil_div(inner, lanes * vector)
    blocks_per_sm = 1 if outer * reduced * inner * element_bytes <= SMALL_BYTES else 2
    share = ceil_div(MULTIPROCESSORS * blocks_per_sm, tiles)
    splits = strategy.splits or max(1, min(share, reduced // (row_threads * unroll * 4)))
    finish = strategy.finish or ("last_block" if splits > 1 else None)
    return ColumnChoice(threads, vector, unroll, strategy.early_launch, lanes, splits, finish)
