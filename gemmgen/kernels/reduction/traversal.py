"""The family's rule for tensors: from the axes of a request to a strategy, and to the number of blocks that share a result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.reduction.arithmetic import Arithmetic
from gemmgen.kernels.reduction.choice import LOADS, RESIDENT_THREADS, VECTOR_BYTES, power_of_two, resident_blocks
from gemmgen.kernels.reduction.spec import FlatColumns, FlatRows, FlatTiles, TensorColumns, TensorRows
from gemmgen.kernels.reduction.tensor import MAX_COUNTED, MAX_PARTS
from gemmgen.kernels.requests import widest

Strategy = TypeVar("Strategy", FlatColumns, FlatRows, FlatTiles, TensorColumns, TensorRows)

THREADS = 256
SHARED_BYTES = 32 << 10
"""Shared memory of a block at most: several blocks then fit on an SM."""
MAX_FLAT_ROW_LENGTH = 64
SHORTEST_ROWS = {2: 12, 4: 10}
"""Elements of rows up to which a thread reads them one by one, of two rows, by the bytes of an element. The L1 then gives what other loads
have brought: 1442559 x 5 of float32 take 9.5 us, 13.9 through shared memory; 1100001 x 10 of halves 7.8 and 12.3."""
PAIRED_ROWS = range(20, 33)
"""Elements of four bytes of rows that begin anywhere and that two threads share: 300000 x 23 take 8.4 us, 15.0 through shared memory,
1094916 x 27 take 35.5 and 44.1."""
MAX_FLAT_COLUMNS = 127
"""With more, threads side by side waste little of their tiles, for any alignment of rows."""
FLAT_COLUMN_THREADS, MAX_SHORT_THREADS = 512, 704
SHORTLY_READ_BYTES = 40 << 20
"""Bytes of an array up to which one block for each SM reads few columns. 761984 x 7 of float32 take 10.5 us with one block and
11.8 us with three, whose partial sums take longer to combine; 1115073 x 14 take 21.0 and 20.7 us. Its threads are as many, up to
MAX_SHORT_THREADS, as have whole turns: 1150000 x 9 take 15.2 us with 640 threads and 7.7 turns, 16.0 with 512 and 9.9."""
TILE_LANES = (8, 9)
"""Threads side by side of ``flat_tiles``: 128 bytes of a row and more, without a gap. More are as fast, but make fewer blocks."""
WIDE_TILE_LANES = (16, 32)
"""Lanes of wide tiles, where narrow ones are more than twice, and sixteen times, as many as fill the device; fewer vectors are read
twice."""
SHARED_TILE_LANES = (12, 14, 16)
"""Lanes of tiles that several blocks share, so that fewer blocks combine their results."""
TILE_GROUPS = (8, 16, 32, 64)
"""Rows that a block of ``flat_tiles`` may load from at the same time."""
MAX_TILE_GROUPS = 32
"""Of them in a block that has a tile to itself: larger ones leave more of an SM idle (24 x 1012 x 375 of float32 11.8 us, 15.8 with 64)."""
MIN_TURNS = 8
"""Rows of a thread of ``flat_tiles``, at least: groups that have fewer wait longer for one another than they load."""
THREADS_PER_SM = 900
"""With four vectors each, more than the memory takes to be busy."""
BUSY_BYTES_PER_SM = 36 << 10
"""In flight on each SM, with which the memory is busy: 4.5 TB/s times 1 us, on 132 of them."""
MEETING_BYTES_PER_SM = 112 << 10
"""Bytes that each SM could read while blocks meet: 3.3 us on an H200."""
MIN_TILE_ROWS = 128
"""Fewer leave each thread so few loads that those by which blocks and groups meet count as much."""
MAX_TILE_STATE = 16
"""Bytes of a state of ``flat_tiles``: with more, its registers would be spilled."""
MAX_ROW_THREADS, MAX_UNROLL = 1024, 8
"""Threads of a row, and loads of each in flight, at most."""
THREADS_OF_AXES, THREADS_OF_SM = 128, 1024
"""Threads that reduce several axes, 111 x 96 x 56 x 56 of halves 18.8 us, 19.9 with 256; and on an SM where several blocks share a result:
that of float32 takes 34 us with 750 to 1150, 42 with 1700, of which some wait for others to leave."""
LANE_THREADS = 128
"""Threads of a block each of whose warps, or parts of a warp, has rows to itself."""
SMALL_BYTES = 4 << 20
"""Tensors up to this are read in the time of a few loads: with vectors that rows begin at, however short, and by larger blocks."""
MAX_LOADS = 32
"""Loads of a thread up to which few threads share a row."""
FEW_RESULTS = 8
"""Results to an SM below which a block for each is no larger than lets all run at the same time."""
FULL_TURN, FULL_TURN_OF_WORDS, LONG_FULL_TURN = 0.8, 0.5, 0.6
"""Part of the threads that read whole vectors in the turn that loads all of a row: 5880 rows of 7024 halves take 21.1 us with 128 threads,
25.3 with 32; 4304 rows of 4994 (0.61) 14.1 and 12.4. Of elements of four bytes: 4511 rows of 2835 (0.69) 13.9 us, 14.7 with 32. Of 256
threads and more: 778 rows of 21744 halves (0.66) 9.8 us with 512, 10.3 with 128; 1032 rows of 9496 (0.58) 7.5 with 256, 7.0 with 64."""
FEW_LANES, LANE_UNITS = 8, 48
"""Threads that do not share a row alone where it has more loads: 3423 rows of 456 halves take 2.3 us with 16, 2.6 with 8."""
ONE_WAVE = 2112
"""Results whose blocks of 128 threads are on the SMs at the same time: 1200 rows of 5000 halves take 5.0 us with them, 5.7 with 32."""
FEW_UNITS = (256, 400)
"""Loads of a row that 64 threads have in flight at the same time, and 32 do not: 2544 halves 4.7 us instead of 5.0, 3352 of them 6.2
either way."""
WORD_COLUMNS = 4
"""Results of a thread that it reads one by one, four bytes each: 8441173 take 18.9 us, 28.9 with eight and twice as many threads."""
TALL_LANES, TALL_THREADS = 8, 512
"""Threads side by side, 128 bytes of a row, where blocks with more would have to share results; and threads of such a block, if all are on
the SMs at the same time: 31 x 1062 x 200 of float32 take 9.4 us, 9.9 by 256 threads, 12.8 by 16 lanes; 60 x 500 x 200 take 8.2 by 256, 8.9
by 512."""
NARROW_LANES, MEETING_BYTES_OF_COLUMNS = 16, 150 << 10
"""Threads side by side where blocks of those tiles would still have to share results; and bytes that each SM could read while they meet."""
MIN_OUTER = 8
"""Places of the slower kept axes from which on blocks do not share results either where threads read less than a vector: the first and
third axis of 37 x 13 x 87 x 298 take 15.8 us by 512 threads, 20.2 by thirteen blocks for each tile; those of 27 x 12 x 57 x 199 8.9 us by
256 threads, 11.8 by six blocks."""
MANY_MOMENTS = 4096
"""Rows whose means and variances sixteen threads make: 8192 of 4096 of bfloat16 take 18.2 us, 19.1 by 32 threads each."""
MIN_RAGGED = 32
"""Vectors of a row from which on the last may be a part of one."""
MAX_REPEATED = 256
"""Places that one thread stores a result for."""
NARROW_LOADS = 16
"""Loads of a thread that are in flight at the same time where each is of four bytes or less."""
BYTES_IN_FLIGHT = 64
"""Bytes in flight of a thread: with 1024 threads on each SM, enough to keep an H200's memory busy."""
STATE_REGISTERS = 32
"""32-bit registers of states and of loads that the rule gives a thread."""


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor, strides in elements."""

    extent: int
    stride: int
    result_stride: int = 0
    """Stride of the results, where the axis is kept."""

    def joined(self, inner: Axis) -> Axis | None:
        """The axis that walks through this one and, faster, through ``inner``; None if none does."""
        one = self.stride == inner.stride * inner.extent and self.result_stride == inner.result_stride * inner.extent
        both = self.extent * inner.extent
        return Axis(both, inner.stride, inner.result_stride) if one and both <= MAX_COUNTED else None


@dataclass(frozen=True)
class Tensor:
    """A tensor's axes, the slowest first; those of extent 1 are left out."""

    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]

    @property
    def results(self) -> int:
        return math.prod(axis.extent for axis in self.kept)

    @property
    def count(self) -> int:
        return math.prod(axis.extent for axis in self.reduced)


@dataclass(frozen=True)
class Traversal:
    """A strategy for a tensor."""

    strategy: TensorRows | TensorColumns | FlatColumns | FlatTiles | FlatRows
    alignment: int
    """Elements that the spec may promise."""
    parts: int
    kept: tuple[Axis, ...]
    """The axes in the order of the kernel's arguments."""
    reduced: tuple[Axis, ...]


def tensor_of(kept: Iterable[Axis], reduced: Iterable[Axis], in_order: bool) -> Tensor:
    """Axes sorted by their strides, and joined where one stride walks through several. ``in_order``: the places along the reduced
    axes are numbered, so that these stay as they are."""

    def sorted_axes(axes: Iterable[Axis]) -> list[Axis]:
        # Along a stride of 0 the same elements come again: the slowest of all.
        return sorted(axes, key=lambda axis: -abs(axis.stride) if axis.stride else -math.inf)

    def shown(axes: Sequence[Axis]) -> tuple[Axis, ...]:
        merged: list[Axis] = []
        for axis in axes:
            if axis.extent == 1:
                continue
            one = merged[-1].joined(axis) if merged and axis.extent and merged[-1].extent else None
            merged[-1:] = [one] if one is not None else [*merged[-1:], axis]
        return tuple(merged)

    return Tensor(shown(sorted_axes(kept)), shown(list(reduced) if in_order else sorted_axes(reduced)))


def traversal(tensor: Tensor, types: Arithmetic, alignment: int, multiprocessors: int) -> Traversal:
    """The strategy for a tensor whose address is a multiple of ``alignment`` bytes, on a device with ``multiprocessors``."""
    kept, reduced = tensor.kept, tensor.reduced or (Axis(1, 0),)
    if kept and kept[0].stride == 0 and kept[0].extent <= MAX_REPEATED:  # the same results for every place along the first axis
        one = traversal(Tensor(kept[1:], tensor.reduced), types, alignment, multiprocessors)
        if one.strategy.name != "flat_rows":
            strategy = one.strategy.model_copy(update={"kept": one.strategy.kept + 1, "repeated": True})
            return Traversal(strategy, one.alignment, one.parts, kept, reduced)
    nearest = [axes[-1] for axes in (kept, tensor.reduced) if axes and axes[-1].stride]
    if kept and (not tensor.reduced or min(nearest, key=lambda axis: abs(axis.stride), default=reduced[-1]) is kept[-1]):
        return _columns(kept, reduced, types, alignment, multiprocessors)
    return _rows(kept, reduced, types, alignment, multiprocessors)


def shares(groups: int, most: int, slots: int) -> int:
    """Blocks that share each of ``groups`` pieces of work, at most ``most``, where the device holds ``slots`` blocks at a time: as few
    as leave next to nothing of the device idle in the last wave."""
    most = max(1, min(most, MAX_PARTS, ceil_div(2 * slots, max(groups, 1))))
    if groups >= 8 * slots or most == 1:
        return 1

    def idle(parts: int) -> float:
        blocks = groups * parts
        return 1 - blocks / (ceil_div(blocks, slots) * slots)

    best = min(map(idle, range(1, most + 1)))
    return next(parts for parts in range(1, most + 1) if idle(parts) <= best + 0.04)


def _meeting_pays(all_bytes: int, in_flight: int, multiprocessors: int) -> bool:
    """True if several blocks for a result save more time than their meeting takes: one alone, with ``in_flight`` bytes on the whole
    device, leaves the memory idle for so long."""
    idle = all_bytes / multiprocessors * (BUSY_BYTES_PER_SM * multiprocessors / max(in_flight, 1) - 1)
    return idle > MEETING_BYTES_PER_SM


def _parts(groups: int, most: int, slots: int, all_bytes: int, bytes_of_block: int, multiprocessors: int) -> int:
    """Blocks that share a result, where the cost of combining is repaid, else 1. ``bytes_of_block``: in flight."""
    return shares(groups, most, slots) if _meeting_pays(all_bytes, groups * bytes_of_block, multiprocessors) else 1


def _within_registers(vector: int, types: Arithmetic) -> int:
    """Elements of a vector, at most ``vector``, each of which has a state in a thread's registers."""
    while vector > 1 and vector * types.state_registers > STATE_REGISTERS // 2:
        vector //= 2
    return vector


def _checked(strategy: type[Strategy], name: str, **numbers: object) -> Strategy:
    """A strategy with numbers that its own fields check."""
    return strategy.model_validate({"name": name, **numbers})


def _rows(kept: tuple[Axis, ...], reduced: tuple[Axis, ...], types: Arithmetic, alignment: int, multiprocessors: int) -> Traversal:
    """Lanes along the reduced axis; short rows without gaps by way of shared memory."""
    size, inner = ELEMENTS[types.stored].bytes, reduced[-1]
    results = math.prod(axis.extent for axis in kept)
    count = math.prod(axis.extent for axis in reduced)
    vector = VECTOR_BYTES // size if inner.stride == 1 else 1
    ragged = inner.extent * size % VECTOR_BYTES != 0
    packed = len(kept) == len(reduced) == 1 and inner.stride == 1 and kept[0].stride == inner.extent
    shortest = packed and inner.extent <= SHORTEST_ROWS.get(size, 0) and results <= MAX_COUNTED
    if shortest and (ragged or inner.extent * size == VECTOR_BYTES):
        return _shortest_rows(kept, reduced, types, multiprocessors)
    if packed and not ragged and inner.extent * size <= 4 * VECTOR_BYTES and alignment >= VECTOR_BYTES and results <= MAX_COUNTED:
        loads = power_of_two(inner.extent * size // VECTOR_BYTES)
        alone = _checked(
            TensorRows, "tensor_rows", threads=LANE_THREADS, vector=vector, unroll=loads, kept=1, reduced=1, wide=False, lanes=1
        )
        return Traversal(alone, vector, 1, kept, reduced)
    if packed and ragged and size == 4 and inner.extent in PAIRED_ROWS and not types.has_index and results <= MAX_COUNTED:
        pair = _checked(TensorRows, "tensor_rows", threads=LANE_THREADS, vector=vector, unroll=2, kept=1, reduced=1, wide=False, lanes=2)
        return Traversal(pair, 1, 1, kept, reduced)
    if packed and inner.extent <= MAX_FLAT_ROW_LENGTH and (ragged or inner.extent * size < 4 * VECTOR_BYTES) and results <= MAX_COUNTED:
        longest = min(MAX_FLAT_ROW_LENGTH, max(8, power_of_two(inner.extent), LOADS * vector))
        threads = max(32, min(THREADS, SHARED_BYTES // (longest * size)))
        short = _checked(FlatRows, "flat_rows", threads=threads, vector=vector, unroll=LOADS, kept=1, reduced=1, longest=longest)
        return Traversal(short, 1, 1, kept, reduced)
    vector = min(vector, power_of_two(max(1, inner.extent) + 1) // 2)
    promised = widest(vector, (alignment // size, *(axis.stride for axis in (*kept, *reduced[:-1]))))
    all_bytes = results * count * size
    if promised * size >= 4 and all_bytes <= SMALL_BYTES and ceil_div(inner.extent, promised) <= 2 * WARP_THREADS * MAX_UNROLL:
        vector = promised
    units = math.prod(axis.extent for axis in reduced[:-1]) * ceil_div(inner.extent, vector)
    numbered = types.has_index or types.state == "moments"
    wide = max(results, units, inner.extent, count if numbered else 0) > MAX_COUNTED
    threads, lanes, unroll, parts = THREADS, None, LOADS, 1
    division = _division(units, results, vector * size, types, multiprocessors) if len(reduced) == 1 else None
    if division is not None:
        sharing, unroll = _in_one_turn(units, results, size, types) or division
        lanes = sharing if sharing <= WARP_THREADS else None
        threads = sharing if lanes is None else THREADS if all_bytes <= SMALL_BYTES else LANE_THREADS
    else:
        one_axis, many = len(reduced) == 1, results >= FEW_RESULTS * multiprocessors
        threads = min(THREADS if one_axis else THREADS_OF_AXES, max(64, power_of_two(ceil_div(units, LOADS))))
        if one_axis and units <= 8 * threads:  # all of a row at the same time
            unroll = min(power_of_two(ceil_div(units, threads)), STATE_REGISTERS // vector)
        elif many and not one_axis and units > LOADS * threads:
            unroll = MAX_UNROLL
        most, slots = units // (threads * unroll * 2), multiprocessors * resident_blocks("tensor_rows", threads, size, 0)
        if not one_axis:
            slots = multiprocessors * (THREADS_OF_SM // threads)
            most = min(most, slots // max(results, 1))
        parts = _parts(results, most, slots, all_bytes, threads * unroll * vector * size, multiprocessors)
    if types.state == "moments" and lanes == WARP_THREADS:
        lanes = lanes // 2 if results >= MANY_MOMENTS else lanes
        unroll = min(unroll, LOADS)  # 5.0 us instead of 5.3 for 2048 x 1000 of float32, 19.2 instead of 19.7 for 8192 x 4096 of bfloat16
    while unroll > 1 and unroll * ceil_div(vector * size, 4) > STATE_REGISTERS:
        unroll //= 2
    strategy = _checked(
        TensorRows,
        "tensor_rows",
        threads=threads,
        vector=vector,
        unroll=unroll,
        kept=len(kept),
        reduced=len(reduced),
        wide=wide,
        lanes=lanes,
    )
    return Traversal(strategy, promised if promised == vector else 1, parts, kept, reduced)


def _shortest_rows(kept: tuple[Axis, ...], reduced: tuple[Axis, ...], types: Arithmetic, multiprocessors: int) -> Traversal:
    """Threads side by side, each with all elements of a row, or of two where there are many."""
    results, extent = kept[0].extent, reduced[0].extent
    columns = 2 if results >= 2 * FEW_RESULTS * LANE_THREADS * multiprocessors else 1
    numbers = {"threads": LANE_THREADS, "lanes": LANE_THREADS, "vector": 1, "unroll": extent, "columns": columns}
    strategy = _checked(TensorColumns, "tensor_columns", **numbers, kept=1, reduced=1, wide=False)
    return Traversal(strategy, 1, 1, kept, reduced)


def _in_one_turn(units: int, results: int, size: int, types: Arithmetic) -> tuple[int, int] | None:
    """Threads that share a row, and loads of each in flight, where as many threads as load all of a row at the same time are faster: few
    of them idle, or all rows at work at the same time. None for other lengths, and for operations with more arithmetic."""
    threads = next((one for one in (64, 128, 256, 512) if units <= one * MAX_UNROLL), None)
    if types.has_index or types.state == "logsumexp" or threads is None:
        return None
    if types.state == "moments":
        return (128, MAX_UNROLL) if threads == 256 and results < ONE_WAVE // 2 else None
    together = results <= ONE_WAVE and threads < 256
    part = LONG_FULL_TURN if threads > 128 else FULL_TURN_OF_WORDS if size >= 4 else FULL_TURN
    full = units >= part * threads * MAX_UNROLL
    if threads == 64:
        return (threads, MAX_UNROLL) if together and FEW_UNITS[0] < units <= FEW_UNITS[1] else None
    return (threads, MAX_UNROLL) if full or together else None


def _division(units: int, results: int, load_bytes: int, types: Arithmetic, multiprocessors: int) -> tuple[int, int] | None:
    """Threads that share a row of ``units`` loads, and loads of each in flight: as few that do nothing in the last turn, and as few turns,
    as possible, where enough is in flight to keep the memory busy. None where several blocks have to share a row for that."""
    busy = BUSY_BYTES_PER_SM // 2 if types.state == "logsumexp" else BUSY_BYTES_PER_SM  # arithmetic takes half of the time
    wanted = ceil_div(busy * multiprocessors, load_bytes * max(results, 1))
    if min(units, wanted) > MAX_ROW_THREADS * MAX_UNROLL:
        return None
    wanted = min(power_of_two(units), wanted if load_bytes == VECTOR_BYTES else WARP_THREADS * MAX_UNROLL)
    few = results < FEW_RESULTS * multiprocessors
    most = power_of_two(ceil_div(RESIDENT_THREADS * multiprocessors, max(results, 1))) if few else THREADS * 2
    least = min(THREADS * 2, power_of_two(ceil_div(units, MAX_LOADS)))
    divisions: list[tuple[int, bool, int, int]] = []
    for sharing in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
        for unroll in (8, 4, 2, 1):
            enough = sharing * unroll >= wanted and sharing >= min(least, most) and not (sharing <= FEW_LANES and units > LANE_UNITS)
            if enough and sharing <= max(most, WARP_THREADS) and (unroll == 1 or sharing * (unroll // 2) < units):
                turns = ceil_div(units, sharing * unroll)
                divisions.append((sharing * turns * (unroll + 1), sharing > WARP_THREADS, -unroll * sharing, sharing))
    if not divisions:
        return None
    *_, in_flight, sharing = min(divisions)
    return sharing, -in_flight // sharing


def _columns(kept: tuple[Axis, ...], reduced: tuple[Axis, ...], types: Arithmetic, alignment: int, multiprocessors: int) -> Traversal:
    """Threads side by side along a kept axis; short rows without gaps by vectors across their ends."""
    size, inner = ELEMENTS[types.stored].bytes, kept[-1]
    outer = math.prod(axis.extent for axis in kept[:-1])
    count = math.prod(axis.extent for axis in reduced)
    full = VECTOR_BYTES // size
    wide = max(outer * inner.extent, count) > MAX_COUNTED
    strides = [axis.stride for axis in (*kept[:-1], *reduced) if axis.extent > 1]
    anywhere = widest(full, (alignment // size, *strides)) if inner.stride == 1 else 1
    vector = widest(anywhere, (inner.extent,))
    packed = inner.stride == 1 and len(reduced) == 1 and reduced[0].stride == inner.extent and count > 1
    if packed and not types.has_index and not wide and count * inner.extent <= MAX_COUNTED:
        columns_walk = _flat_columns(kept, reduced, types, vector, full, multiprocessors)
        if columns_walk is not None:
            return columns_walk
    if packed and not wide:
        columns_walk = _flat_tiles(kept, reduced, types, vector, full, multiprocessors)
        if columns_walk is not None:
            return columns_walk
    ragged = anywhere > vector and inner.extent >= MIN_RAGGED * anywhere
    vector = _within_registers(anywhere if ragged else vector, types)
    vectors = ceil_div(max(inner.extent, 1), vector)
    threads = LANE_THREADS if count == 1 else THREADS
    groups = min(threads, power_of_two(count // 4 + 1) // 2 or 1)
    lanes = min(power_of_two(vectors), max(32, threads // max(groups, 1)))
    groups = threads // lanes
    each = ceil_div(max(count, 1), groups)
    unroll = min(NARROW_LOADS if vector * size <= 4 else LOADS, power_of_two(each))
    columns = 1
    most_columns = WORD_COLUMNS if count == 1 and vector * size == 4 else 8
    while columns < most_columns and unroll * columns * vector * size < BYTES_IN_FLIGHT and lanes * columns * 2 <= vectors:
        columns *= 2
    while columns > 1 and columns * vector * types.state_registers > STATE_REGISTERS:
        columns //= 2
    tiles = outer * ceil_div(vectors, lanes * columns)
    all_bytes = outer * inner.extent * count * size

    def sharers(threads: int) -> int:
        most, slots = count // (threads // lanes * unroll * 2), multiprocessors * RESIDENT_THREADS // threads
        return _parts(tiles, most, slots, all_bytes, threads * unroll * columns * vector * size, multiprocessors)

    busy = BUSY_BYTES_PER_SM * multiprocessors

    def sharing_pays(in_flight: int) -> bool:
        return all_bytes * (busy - in_flight) > MEETING_BYTES_OF_COLUMNS * multiprocessors * in_flight

    parts = sharers(threads)
    if parts > 1 and lanes > NARROW_LANES and vector * size == VECTOR_BYTES:
        tiles = outer * ceil_div(vectors, TALL_LANES)
        tall = tiles * TALL_THREADS <= THREADS_PER_SM * multiprocessors and count >= TALL_THREADS // TALL_LANES * LOADS
        tall = tall and TALL_THREADS * vector * types.state_bytes <= SHARED_BYTES
        threads, lanes, unroll, parts = TALL_THREADS if tall else threads, TALL_LANES, LOADS, 1
        if sharing_pays(tiles * threads * unroll * VECTOR_BYTES):
            threads, lanes, unroll = THREADS, NARROW_LANES, min(MAX_UNROLL, power_of_two(ceil_div(count * NARROW_LANES, THREADS)))
            in_flight = outer * ceil_div(vectors, lanes) * threads * unroll * VECTOR_BYTES
            parts = max(1, min(round(2 * busy / in_flight), count // (threads // lanes * unroll * 2)))
    elif parts > 1 and outer >= MIN_OUTER and vector * size < VECTOR_BYTES and outer * ceil_div(vectors, TALL_LANES) >= multiprocessors:
        threads, lanes, columns, unroll, parts = TALL_THREADS if vector > 1 else THREADS, TALL_LANES, 1, MAX_UNROLL, 1
    strategy = _checked(
        TensorColumns,
        "tensor_columns",
        threads=threads,
        vector=vector,
        unroll=unroll,
        kept=len(kept),
        reduced=len(reduced),
        wide=wide,
        lanes=lanes,
        columns=columns,
        ragged=ragged and vector > 1,
    )
    return Traversal(strategy, vector, parts, kept, reduced)


def _flat_columns(
    kept: tuple[Axis, ...], reduced: tuple[Axis, ...], types: Arithmetic, aligned: int, full: int, multiprocessors: int
) -> Traversal | None:
    """None where rows are long enough, or begin at vectors, so that threads side by side do as well."""
    columns, rows = kept[-1].extent, reduced[0].extent
    if columns > MAX_FLAT_COLUMNS or (aligned == full and columns >= 32 * full) or rows * columns < 4096:
        return None
    outer = math.prod(axis.extent for axis in kept[:-1])
    size = ELEMENTS[types.stored].bytes
    all_bytes = outer * rows * columns * size
    one_turn = outer == 1 and all_bytes <= SHORTLY_READ_BYTES
    choices: list[tuple[float, float, int, int, int]] = []
    for threads in range(384, 1025, 32):
        vector = full
        while vector > 1 and threads * vector * types.state_bytes > SHARED_BYTES:
            vector //= 2
        period = columns // math.gcd(columns, vector)
        if columns <= threads and threads * vector * types.state_bytes <= SHARED_BYTES:
            active = threads // period * period
            busy = round(20 * active / threads) / 20
            turns = rows * columns / (active * vector * LOADS * multiprocessors)
            whole = round(20 * turns / math.ceil(turns)) if one_turn and FLAT_COLUMN_THREADS <= threads <= MAX_SHORT_THREADS else 0
            choices.append((busy * vector, whole, -abs(threads - FLAT_COLUMN_THREADS), threads, vector))
    if not choices:
        return None
    elements, _, _, threads, vector = max(choices)
    if elements < full / 4:
        return None
    period = columns // math.gcd(columns, vector)
    turn = threads // period * period * vector * LOADS
    resident = resident_blocks("flat_columns", threads, size, types.state_bytes) if all_bytes > SHORTLY_READ_BYTES else 1
    most = rows * columns // (2 * turn)
    parts = _parts(outer, most, multiprocessors * resident, all_bytes, turn * size, multiprocessors)
    if one_turn and parts > 1:
        parts = min(most, multiprocessors)
    strategy = _checked(FlatColumns, "flat_columns", threads=threads, vector=vector, unroll=LOADS, kept=len(kept), reduced=1)
    return Traversal(strategy, 1, parts, kept, reduced)


def _flat_tiles(
    kept: tuple[Axis, ...], reduced: tuple[Axis, ...], types: Arithmetic, aligned: int, full: int, multiprocessors: int
) -> Traversal | None:
    """None where rows begin at vectors, there are few, or they are much shorter than the narrowest tile; where states are large."""
    columns, rows, outer = kept[-1].extent, reduced[0].extent, math.prod(axis.extent for axis in kept[:-1])
    vector = _within_registers(full, types)
    if aligned >= vector or columns < TILE_LANES[0] * vector or rows < MIN_TILE_ROWS or types.state_bytes > MAX_TILE_STATE:
        return None
    size = ELEMENTS[types.stored].bytes
    wanted = THREADS_PER_SM * multiprocessors

    def tiles(lanes: int) -> int:
        return outer * ceil_div(columns, (lanes - 1) * vector)

    def idle(lanes: int) -> int:
        return round(10 * (1 - outer * columns / (tiles(lanes) * lanes * vector)))

    def possible(lanes: int, groups: int) -> bool:
        threads = lanes * groups
        fits = threads <= 1024 and threads * vector * types.state_bytes <= SHARED_BYTES
        return fits and threads % 32 == 0 and groups % vector == 0

    narrow = tiles(TILE_LANES[0]) * TILE_LANES[0]
    if narrow * TILE_GROUPS[0] > 2 * wanted:
        pairs = [(WIDE_TILE_LANES[narrow * TILE_GROUPS[0] > 16 * wanted], max(TILE_GROUPS[0], vector))]
    elif narrow * TILE_GROUPS[-1] < wanted // 2:
        pairs = [(lanes, groups) for groups in reversed(TILE_GROUPS) for lanes in SHARED_TILE_LANES]
    else:
        most = min(max(TILE_GROUPS[0], rows // MIN_TURNS), MAX_TILE_GROUPS)
        pairs = [(lanes, groups) for groups in TILE_GROUPS if groups <= most for lanes in TILE_LANES]

    def rank(pair: tuple[int, int]) -> tuple[int, int, int]:
        lanes, groups = pair
        return abs(round(math.log2(tiles(lanes) * lanes * groups / wanted))), idle(lanes), lanes

    pairs = [pair for pair in pairs if possible(*pair)]
    if not pairs:
        return None
    lanes, groups = min(pairs, key=rank)
    threads = lanes * groups
    parts, unroll = 1, LOADS
    in_flight = tiles(lanes) * threads * LOADS * vector * size
    if _meeting_pays(outer * rows * columns * size, in_flight, multiprocessors):
        slots = multiprocessors * resident_blocks("flat_tiles", threads, size, types.state_bytes)
        parts = max(1, min(rows // (2 * groups * LOADS), slots // tiles(lanes)))
    elif in_flight < BUSY_BYTES_PER_SM * multiprocessors and types.state_registers == 1 and rows >= groups * MAX_UNROLL:
        unroll = MAX_UNROLL  # 23 x 913 x 401 of halves take 7.6 us, 8.8 with four loads at the same time
    strategy = _checked(FlatTiles, "flat_tiles", threads=threads, vector=vector, unroll=unroll, kept=len(kept), reduced=1, lanes=lanes)
    return Traversal(strategy, 1, parts, kept, reduced)
