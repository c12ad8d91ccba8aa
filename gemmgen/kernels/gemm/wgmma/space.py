"""The space of kernels by warpgroups: every tile, depth, number of stages, division among groups and cluster that the plan accepts.

The numbers of a plan that decide its time are computed here for all points at once, by the formulas of ``loop`` and ``cost``; a test holds
the two together. Points that are chosen become specs, which are planned as any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from math import log2
from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError
from gemmgen.hardware.target import Architecture, Device, occupancy
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.kernels.gemm.fitted_costs import costs_of, store_costs
from gemmgen.kernels.gemm.grouping import Grouping
from gemmgen.kernels.gemm.launch_costs import (
    FLOAT_BYTES,
    TRANSPOSED_TOGETHER,
    finishing_clocks,
    finishing_pace,
    finishing_shown,
    grouped_results,
    lost_rows,
    scattered,
)
from gemmgen.kernels.gemm.request import GemmRequest, alignment_elements, is_stored
from gemmgen.kernels.gemm.scaling import Scales
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKCluster, WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.cost import of_few
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_FLOATS, BYTE_INTEGERS
from gemmgen.kernels.gemm.triangles import Triangles
from gemmgen.kernels.gemm.wgmma.cost import (
    FILLED,
    MULTICAST,
    PROMOTION_ISSUE,
    SCALED_OPERATIONS,
    SCATTERED_READS,
    THREE_GROUPS_OPERATIONS,
    UNEVEN_OPERATIONS,
    WAITING_OPERATIONS,
    odd_rows,
    usable,
)
from gemmgen.kernels.gemm.wgmma.loop import CONSUMER_REGISTERS, MOVING_REGISTERS, STORE_BUFFERS, has_one_matrix, staged_operand
from gemmgen.kernels.gemm.wgmma.matching import SPARE_REGISTERS, fit
from gemmgen.kernels.gemm.wgmma.plan import plan
from gemmgen.kernels.gemm.wgmma.point_model import Extents, Shapes, point_model, traits_of
from gemmgen.kernels.gemm.wgmma.reasons import DEFAULT_PROMOTION, MAX_BOX, MIN_PART, held_part
from gemmgen.kernels.gemm.wgmma.scaled import BLOCK_K, SCALE_TYPES, column_scales, staged_bytes
from gemmgen.kernels.launch import CLUSTERED
from gemmgen.kernels.math.warpgroup import (
    BARRIER_BYTES,
    BLOCK_ROWS,
    INTEGER_COLUMNS,
    OTHER_REGISTERS,
    SPAN_BYTES,
    TRANSPOSED_BYTES,
    TRANSPOSED_COLUMNS,
    WARPGROUP,
    plan_staging,
)
from gemmgen.kernels.points import Points, Works, picked
from gemmgen.kernels.requests import MAX_ALIGNMENT, Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column = NDArray[np.float64]

TYPES = ("bf16", "f16", *BYTE_FLOATS, "s8")
"""Types of factors whose kernels are points."""
SAME_POINTS = {"f16": "bf16", "e5m2": "e4m3"}
"""Types whose kernels have the numbers of others."""
TIMED_COLUMNS = 16
"""Columns of tiles for groups of rows are a multiple of this: no others were timed, and the model's errors are not used there."""
GROUPS = ((64, 1, False), (128, 1, False), (128, 2, False), (192, 3, False), (256, 2, False), (64, 2, True), (128, 2, True))
"""Rows of a tile, groups that multiply, and whether these work on separate tiles alternately."""
COLUMNS = tuple(range(8, 257, 8))
DEPTH_BYTES = (128, 256)
"""Bytes along k of a stage."""
MAX_STAGES = 16
THREE_GROUPS_COLUMNS = 128
"""Columns of a tile of three groups with block scales."""
MIN_STAGES = 3
MAX_BLOCKS = 8
"""More blocks of rows of a group, and of a cluster along k, than any point has."""
MIN_DEPTH = 128
"""Values of k from which on points are considered: their times are fitted to deeper products, and few stages fill no pipeline."""
FILLED_WAVE, FILLED_WAVE_OF_SLICES, HALF_FILLED, HALF_FILLED_OF_SLICES = 0.94, 0.8, 0.5, 0.35
"""Parts of the SMs that work in the last wave, from which on kernels start before the work before them ends, however long they take, or
up to which, in a single wave, short ones do. Of 75 grids of 5 to 450 us on an H200, those took 3% more to 8% less time by that. Grids of
55 to 85% took up to 43% more: the next launch's blocks take the SMs that are free, and no longer spread evenly. Launches of different
kernels with half-filled grids, one after the other, took 30% more where they were long."""
SHARED_BY_MANY = 6
"""Blocks that read a tile of the larger factor, from which on it matters little which SMs they are on. Where two to four blocks read it,
and run side by side, their requests meet on the way to the L2: 11 such grids took 5% more, and up to 16%, where blocks took the SMs as
these became free; 11 in which a single block or cluster read it took 4% less, and 11 of more blocks 3% less. Grids of several waves took
between 3% less and 7% more, the same on average: they wait."""
DENSE, DENSE_APART, DENSE_FILLED = 55.0, 65.0, 0.85
DENSE_OPERATIONS = {2: 4e11, 1: 2e12}
"""Tile area over the sum of its sides from which on grids are bound by arithmetic, and not by what SMs get from the L2; the same for single
waves of which two to five blocks read each tile of the larger factor, since five of tiles of 192 x 80 and 192 x 88 took 4 to 15% more, and
four of 128 x 144 took 4% less; the part of the SMs that work; and operations of a problem, for elements of 2 and of 1 bytes. Blocks that
start early then hide the launch: 48 such grids of 18 to 147 us took 1.7% less on an H200 on average, at best 4.6% less and at worst 1.1%
more; 10 of up to 4e11 operations on 16-bit elements 0.3% less, and 26 of bytes, of 90 to 770 us, 0.6% less; but 6 of more operations on
16-bit elements 0.9% more. The next launch's blocks spread evenly, one to an SM, as these become free. Grids that are bound by the L2 took
up to 13% more. Other single waves of bytes with one block to an SM start early from that part of the SMs on, too: ten took 4% less."""
DENSE_REUSED, REUSED = 46.0, 192
"""Another ``DENSE_APART``, for products with so many rows and columns for each byte of an element: 61 kernels of 9 to 81 us took 3.2% less
on an H200 on average, at best 7.8% less and at worst 7.8% more. Of products with fewer, or by smaller tiles, 31 kernels took 6% more on
average, and up to 19%; but seven of bytes with slices of k took 7% less: they start early."""
BAND, WIDE_BAND = 8, 16
"""Tiles that consecutive blocks take across a band. Where a grid is one wave, and its larger tiles are each read by up to ``WIDE_BAND``
blocks, these follow one another: requests of neighbours for one tile meet on the way to the L2. 23 grids with 9 to 16 such blocks took 3.9%
less time on an H200 on average than in bands of 8, at best 20% less and at worst 0.5% more."""
SHORT_BYTES = 16e6
"""Bytes of a problem below which all of its kernels start early: the launch is a fourth of their time."""
SHORT_ROWS, SHORT_WHOLE, SHORT_HALVES, SHORT_NARROW_HALVES = (9, 48), 0.15, -0.07, -0.14
"""Rows of short products of 16-bit elements whose kernels take more or less time than traits tell, and the logarithms of the factors: for
kernels of whole k, and of two slices of k with one block to an SM, by tiles of 128 rows and of 64. For 16 to 48 rows, 16 of the former, of
5 to 8 us, took 20% more on an H200; three and four slices took 0 to 1% more, two 7 to 15% less: 16 x 2048 x 3072 took 5.5 us by three,
5.0 by two."""
IN_TURN, NARROW_IN_TURN = 0.02, 0.04
"""Logarithms of the factors on the time of kernels of 16-bit elements whose blocks take several tiles each: for groups that share a tile,
and for groups of 64 rows in ping-pong. Of 18 products of 16 to 570 us on an H200, 77 of the former took 2% more, beside 90 of 128 rows in
ping-pong, and three of the latter 4% more."""
SLICED_INTEGERS = 0.04
"""Logarithm of the factor on the time of slices of k whose sums are integers, of 4 bytes as they are: 93 of them took 2% more than those of
8-bit floats, compared with the fastest kernels of 72 products."""
SAVED, SAVED_OF_SLICES = 0.7e-6, 1.7e-6
SAVING_BYTES, SAVING_COLUMNS, SAVING_BYTES_OF_WHOLE = (640, 896), 32, 2048
SAVING_BLOCKS, SAVING_PAIRS, SAVING_SHORT, SAVING_WAVES = 0.55, 0.9, 6e7, (1.65, 2.0)
"""Seconds that launches save by copying tiles of a constant operand early, if their blocks spread evenly: those with slices of k copy all
the while that others add their sums. The latter hold so many bytes along k in their stages, with the larger factor as A and so few columns
of B; otherwise, slices save no more than others. Of 140 kernels for up to 64 rows on an H200, those with slices saved 1.6 to 2 us with the
larger factor as A, none with fewer bytes. In chains of three layers of 64 rows, 35 kernels with slices saved no more than 28 others. In
chains of 16 rows, slices on ``SAVING_BLOCKS`` of the SMs, one block to each, or ``SAVING_PAIRS`` blocks of three and four slices for each
SM that holds two, save as much in products of up to ``SAVING_SHORT`` bytes: three layers of 8192, 2560, 2560 and 14336 took 35 us, not 40;
larger ones took 7 to 10 us more, and pairs of two slices 3 to 8. Blocks for whole k that take ``SAVING_WAVES`` waves, one block to an SM,
with ``SAVING_BYTES_OF_WHOLE`` along k, save 1.4 to 3 us: the second wave copies while the first ends."""
RESIDENT = (1, 2, 3)
"""Blocks that an SM holds at a time."""
CLUSTERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4))
"""Blocks of a cluster along m, n and k."""
STREAMED_BYTES = 12 << 20
"""Bytes from which on the larger factor, if each of its tiles is read once, is the first to leave the L2: products with up to 192 rows then
take 0 to 5% less time on an H200. With tiles that are read again, they take up to 10% longer."""
PERSISTENT = 0.6
"""Difference in coordinates between a grid whose blocks take tiles in turn and one with a block for each tile, which takes up to 1.2 times
as long on large products."""
SHALLOW = 4.0
"""Weight, in the distance of two points, of a difference in how groups or clusters divide the work, in units of a factor of two of a
tile's extent."""


NO_CHANGE: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Storage:
    """The properties of a problem's matrices that decide which points there are, in the orientation in which they are multiplied."""

    type: str
    result: str
    column_major: bool
    """True if C is computed as its transpose (swap-AB)."""
    a_along_k: bool
    b_along_k: bool
    boxes: bool
    """True if TMA stores the results."""
    residual: bool
    """True if a residual comes through shared memory."""
    in_parts: bool
    """True if each block of a cluster along k may finish a part of a tile's columns."""
    scales: Scales = Scales.NONE
    joined: bool = False
    """True if the columns of a tile are those of two products, side by side."""

    @property
    def base(self) -> dict[str, Any]:
        """Fields of the specs of all points."""
        size, result = ELEMENTS[self.type].bytes, ELEMENTS[self.result].bytes
        alignment = {"a": MAX_ALIGNMENT // size, "b": MAX_ALIGNMENT // size, "c": 1 if self.scattered else MAX_ALIGNMENT // result}
        fields: dict[str, Any] = {
            "kind": "gemm",
            "architecture": "sm_90a",
            "order": "column_major" if self.column_major else "row_major",
            "transpose": "tn" if self.column_major else "nt",
            "alpha": "one",
            "beta": "zero",
            "storage": {"a": self.type, "b": self.type, "c": self.result},
            "alignment": alignment,
        }
        if self.scales.given:
            fields["scales"] = self.scales
        if not self.scattered:
            along = "m" if self.column_major else "n"
            fields |= {"multiple_of": {along: MAX_ALIGNMENT // result}, "rasterization": {"group": BAND}, "store": "tma"}
        return fields

    @property
    def scattered(self) -> bool:
        """True if threads store single elements of column-major results."""
        return self.column_major and not self.boxes


@dataclass(frozen=True)
class Lattice:
    """All points for matrices that are stored in a way, free of their sizes; columns with an entry for each point."""

    storage: Storage
    ping_pong: bool
    tile_m: Column
    tile_n: Column
    tile_k: Column
    stages: Column
    consumers: Column
    cluster_m: Column
    cluster_n: Column
    cluster_k: Column
    collected: Column
    """Parts of a tile's columns, each of which another block of a cluster along k finishes."""
    resident: Column
    """Blocks that an SM must hold at a time."""
    instruction_n: Column
    product_sets: Column
    shared_bytes: Column
    staging_barriers: Column
    """Bytes of barriers for a residual that comes through the memory of the results."""
    fitting: Column
    """Blocks that an SM holds at a time, by registers and shared memory."""

    @property
    def threads(self) -> Column:
        return WARPGROUP * (1 + self.consumers)

    @property
    def promoted(self) -> bool:
        return self.storage.type in BYTE_FLOATS

    @property
    def columns(self) -> Iterator[tuple[str, Column]]:
        return ((one.name, getattr(self, one.name)) for one in fields(Lattice) if one.name not in ("storage", "ping_pong"))

    @cached_property
    def features(self) -> NDArray[np.float64]:
        """Coordinates of points, as ``coordinates`` has them."""
        import numpy as np

        row = self.tile_k * ELEMENTS[self.storage.type].bytes
        one = np.ones_like(row)
        columns = [
            np.log2(self.tile_m),
            np.log2(self.tile_n),
            np.log2(row) / 2,
            np.log2(self.stages * row) / 2,
            self.consumers,
            one * self.ping_pong,
            one * _store_coordinate(self.storage.column_major, self.storage.boxes),
            np.log2(self.cluster_m),
            np.log2(self.cluster_n),
            SHALLOW * np.log2(self.cluster_k) / 2,
            np.log2(self.resident),
            PERSISTENT * (self.cluster_k == 1) * (not self.storage.scattered),
        ]
        return np.stack(columns, axis=1)


def points(request: GemmRequest, device: Device, every_store: bool = False) -> list[Points]:
    """The points of the space for a request on a device, by kinds of kernel; none where warpgroups do not multiply such matrices.

    ``every_store``: with points whose threads store results that TMA stores faster."""
    if not device.architecture.supports("wgmma") or not _is_plain(request) or request.k < MIN_DEPTH:
        return []
    _make_usual_lattices(device.architecture)
    parts = []
    if request.groups is not None:
        stored = [_stored(request, False)] if is_stored(request.c, row_major=True) else []
    elif request.second is None:
        stored = [_stored(request, column_major) for column_major in (False, True)]
    elif is_stored(request.c, row_major=True):
        request = _side_by_side(request)
        stored = [replace(_stored(request, False), joined=True, in_parts=False)]
    else:
        return []
    if every_store and len(stored) > 1 and stored[1].boxes:
        stored.append(replace(stored[1], boxes=False, in_parts=False))
    for storage in stored:
        for lattice in lattices(storage, device.architecture):
            one = _on_problem(lattice, request, device)
            if one is not None:
                parts.append(one)
    return parts


@cache
def _make_usual_lattices(architecture: Architecture) -> None:
    """Makes the lattices of the usual storages of all types, so that the first choice of a process takes longer and no later one does."""
    for factor, result in (("bf16", "bf16"), ("e4m3", "bf16"), ("s8", "s32")):
        boxes = ELEMENTS[result].bytes in TRANSPOSED_BYTES
        for column_major in (False, True):
            lattices(Storage(factor, result, column_major, True, True, boxes=True, residual=False, in_parts=boxes), architecture)


def coordinates(spec: GemmSpec) -> Sequence[float] | None:
    """Coordinates of a kernel in the space, as those of its points; None for kernels of another kind."""
    mainloop, division = spec.mainloop, spec.decomposition
    if not isinstance(mainloop, WgmmaMainloop) or mainloop.arithmetic.f32_by or spec.batch == "grouped":
        return None
    if division.scheme not in ("data_parallel", "split_k_cluster"):
        return None
    tile, cluster = mainloop.tile, mainloop.cluster
    slices = division.slices if isinstance(division, SplitKCluster) else 1
    size = ELEMENTS[spec.storage.a].bytes
    return [
        log2(tile.m),
        log2(tile.n),
        log2(tile.k * size) / 2,
        log2(mainloop.stages * tile.k * size) / 2,
        float(mainloop.consumers),
        float(mainloop.schedule == "ping_pong"),
        _store_coordinate(spec.order == "column_major", spec.store == "tma"),
        log2(cluster.m),
        log2(cluster.n),
        SHALLOW * log2(slices) / 2,
        log2(mainloop.min_blocks_per_sm),
        PERSISTENT * (mainloop.persistent_blocks > 0) + SHALLOW * (mainloop.promote_every == "never" and spec.storage.a in BYTE_FLOATS),
    ]


def _store_coordinate(column_major: bool, boxes: bool) -> float:
    """Coordinate of the orientation, and of the store: by TMA in boxes, or by threads."""
    return SHALLOW / 2 + boxes if column_major else boxes - 1.0


def _is_plain(request: GemmRequest) -> bool:
    """True if the request asks for nothing that other strategies, or kernels for it alone, do."""
    plain = request.groups is None or (request.grouping == Grouping.SORTED and not request.block_scales)
    plain = plain and request.weights is None and request.planes is None
    plain = plain and request.triangles == Triangles.ALL and request.depths is None
    plain = plain and (request.second is None or (request.a.type in ("bf16", "f16") and not request.block_scales))
    plain = plain and all(by.block.k == BLOCK_K and by.block.type in SCALE_TYPES for _, by in request.block_scales)
    return plain and request.a.type == request.b.type and request.a.type in TYPES


def _side_by_side(request: GemmRequest) -> GemmRequest:
    """The product by one matrix of all columns, of which tiles are as many and as large as those of two products: their tiles of C are
    half as wide."""

    def doubled(layout: Layout) -> Layout:
        last = len(layout.strides) - 1
        strides = tuple(stride if stride == 1 or place == last else 2 * stride for place, stride in enumerate(layout.strides))
        return replace(layout, shape=(*layout.shape[:-1], 2 * layout.shape[-1]), strides=strides)

    return replace(request, second=None, b=doubled(request.b), c=doubled(request.c), epilogue=(), named=())


def _stored(request: GemmRequest, column_major: bool) -> Storage:
    """The storage of the request's matrices where C is computed as it is, or as its transpose."""
    by_rows = is_stored(request.c, row_major=True)
    a_along_k, b_along_k = is_stored(request.a, row_major=True), is_stored(request.b, row_major=False)
    whole = request.n if by_rows else request.m
    size = request.c.element_bytes
    aligned = (whole * size) % MAX_ALIGNMENT == 0 and request.c.alignment % MAX_ALIGNMENT == 0
    swapped = column_major == by_rows  # the kernel's A is the request's B
    along = (b_along_k, a_along_k) if swapped else (a_along_k, b_along_k)
    scaled = request.transposed.block_scales if swapped else request.block_scales
    return Storage(
        type=request.a.type,
        result=request.c.type,
        column_major=column_major,
        a_along_k=along[0],
        b_along_k=along[1],
        boxes=aligned and (not column_major or (size in TRANSPOSED_BYTES and not _reads_matrices(request))),
        in_parts=aligned and (not column_major or size in TRANSPOSED_BYTES) and not _reads_matrices(request),
        residual=not column_major and aligned and has_one_matrix(request.epilogue, request.c.type) and not request.accumulates,
        scales=Scales.model_validate({operand: by.stored(operand) for operand, by in scaled}) if scaled else Scales.NONE,
    )


def _reads_matrices(request: GemmRequest) -> bool:
    """True if the epilogue reads or writes matrices of the result's shape."""
    return request.accumulates or any(operand.like_output for operation in request.epilogue for operand in operation.operands())


def _reads_in_stages(request: GemmRequest) -> bool:
    """True if the epilogue reads one matrix of the result's shape, aligned as TMA requires."""
    layouts = [one.layout for one in request.named if one.per == "result" and not one.reduced] + [request.residual]
    aligned = (alignment_elements(MAX_ALIGNMENT, one, True) * one.element_bytes >= MAX_ALIGNMENT for one in layouts if one is not None)
    return not request.batched and staged_operand(request.epilogue, request.c.type) is not None and all(aligned)


def _stores_in_boxes(request: GemmRequest) -> bool:
    """True if the epilogue has further outputs of the result's shape and type."""
    outputs = (output for operation in request.epilogue for output in operation.extra_outputs.values())
    return not request.batched and any(output.reduce is None and output.type == request.c.type for output in outputs)


@lru_cache(maxsize=64)
def lattices(storage: Storage, architecture: Architecture) -> tuple[Lattice, ...]:
    """The points for matrices stored in a way: in ping-pong, with clusters that divide k, and the others."""
    import numpy as np

    alike = replace(storage, type=SAME_POINTS.get(storage.type, storage.type), result=SAME_POINTS.get(storage.result, storage.result))
    if alike != storage:
        return tuple(replace(lattice, storage=storage) for lattice in lattices(alike, architecture))
    size = ELEMENTS[storage.type].bytes
    depths = (BLOCK_K * size, 2 * BLOCK_K * size) if storage.scales.given else DEPTH_BYTES
    usable = []
    for ping_pong, divided in ((False, False), (True, False), (False, True)):
        if divided and storage.joined:
            continue  # a block has both sums
        if ping_pong and storage.type in BYTE_FLOATS:
            continue  # sums that leave the tensor core keep it waiting: 1.3 to 1.9 times as long as in groups that share a tile
        groups = [group for group in GROUPS if group[2] == ping_pong]
        clusters = [cluster for cluster in CLUSTERS if (cluster[2] > 1) == divided]
        grids = np.meshgrid(
            np.arange(len(groups)), np.array(_columns(storage)), np.array(depths), np.arange(len(clusters)), np.array(RESIDENT)
        )
        group, tile_n, depth, cluster, resident = (grid.ravel().astype(float) for grid in grids)
        tile_m, consumers = (np.array([one[place] for one in groups], float)[group.astype(int)] for place in (0, 1))
        # More than half of the points want more shared memory for the fewest stages than there is.
        room = architecture.shared_bytes_per_sm // resident - architecture.reserved_shared_bytes_per_block
        roomy = MIN_STAGES * (tile_m + tile_n) * depth <= room
        numbers = (tile_m, consumers, tile_n, depth, cluster, resident, room)
        tile_m, consumers, tile_n, depth, cluster, resident, room = (column[roomy] for column in numbers)
        cluster_m, cluster_n, cluster_k = (np.array([one[place] for one in clusters], float)[cluster.astype(int)] for place in range(3))
        tile_k = depth / size
        threads = WARPGROUP * (1 + consumers)
        blocks_m = tile_m / BLOCK_ROWS / np.where(ping_pong, 1, consumers)
        # Registers: those of the sums, and of the instruction whose sums leave the tensor core.
        allocated = np.minimum(architecture.registers_per_thread, architecture.registers_per_sm // (resident * threads)) // 8 * 8
        # Three groups with block scales have room for 128 sums and products of tiles of 128 columns, although the estimate exceeds it.
        moving = CONSUMER_REGISTERS | {2: MOVING_REGISTERS[2][1]}
        registers_of = moving if storage.scales.given else CONSUMER_REGISTERS
        shared_out = np.select([consumers == count for count in registers_of], list(map(float, registers_of.values())), 0.0)
        limit = np.where((consumers > 1) & (resident == 1), shared_out, allocated)
        instruction_n = tile_n.copy()
        if storage.type in BYTE_FLOATS:
            halved = (blocks_m * (tile_n + tile_n) / 2 + OTHER_REGISTERS > limit) & (tile_n % 16 == 0) & (tile_k == DEFAULT_PROMOTION)
            instruction_n = np.where(halved, tile_n / 2, tile_n)
        product_sets, others = np.ones_like(tile_n), np.full_like(tile_n, OTHER_REGISTERS)
        barred = np.zeros_like(tile_n, dtype=bool)
        if storage.scales.given:
            # With block scales, clusters that share tiles of two groups take 1.05 to 1.2 times as long, four slices of k longer than two,
            # and slices whose tiles are multiplied in parts 1.2 times as long as slices with two sets.
            # Groups of 128 rows that multiply halves of 128 columns take 1.1 to 1.2 times as long as those of 64 rows and 256 columns.
            # Three groups take 0.92 to 0.98 of the time of the best of two by tiles of 128 columns, up to twice that by 104 to 120. Stages
            # of two blocks of k serve few rows.
            shares = (consumers > 1) & (cluster_m * cluster_n > 1)
            barred = (
                shares
                | (cluster_k > 2)
                | ((consumers > 2) & ((tile_n != THREE_GROUPS_COLUMNS) | (cluster_k > 1)))
                | ((instruction_n < tile_n) & ((cluster_k > 1) | (blocks_m > 1)))
            )
            others += column_scales(storage.scales, tile_n, instruction_n)
            # The tensor cores need not wait for sums to be scaled where a second set of products fits.
            spare = SPARE_REGISTERS * (resident > 1)
            product_sets += (instruction_n == tile_n) & (blocks_m * 3 * tile_n / 2 + others + spare <= limit)
            barred |= product_sets < tile_k / BLOCK_K
        sums = blocks_m * (tile_n + (product_sets * instruction_n if storage.type in BYTE_FLOATS else 0)) / 2
        # The compiler gives a thread no more registers than it is launched with, and an instruction wants its sums among them.
        legal = ~barred & (sums + others <= limit) & (instruction_n / 2 + OTHER_REGISTERS <= allocated)
        if storage.scales.given:
            legal &= (cluster_m == 1) | (cluster_n == 1)
        if not storage.b_along_k:
            # Columns whose boxes begin at 16 bytes, and at no multiple of 32, take 1.2 to 2 times as long.
            legal &= tile_n * size % (2 * MAX_ALIGNMENT) == 0
        for along_k, extent, blocks in ((storage.a_along_k, tile_m, cluster_n), (storage.b_along_k, tile_n, cluster_m)):
            unit = 8 if along_k else SPAN_BYTES // size
            parts = (extent is tile_n) & (not along_k) & (blocks == 1) & (held_part(extent, unit) >= MIN_PART)
            legal &= (extent % (unit * blocks) == 0) | parts
            legal &= (extent / blocks if along_k else tile_k) <= MAX_BOX
        if storage.joined:
            legal &= tile_n / 2 % ((8 if storage.b_along_k else SPAN_BYTES // size) * cluster_m) == 0
        if not legal.any():
            continue
        columns = (tile_m, tile_n, tile_k, depth, consumers, cluster_m, cluster_n, cluster_k, resident, room, instruction_n, product_sets)
        tile_m, tile_n, tile_k, depth, consumers, cluster_m, cluster_n, cluster_k, resident, room, instruction_n, product_sets = (
            column[legal] for column in columns
        )
        threads, blocks_m = threads[legal], blocks_m[legal]
        # Shared memory: as many stages as fit beside the results that groups collect.
        codes, place = np.unique((tile_n * MAX_BLOCKS + blocks_m) * MAX_BLOCKS + cluster_k, return_inverse=True)
        collections = [
            _collection(storage, code // MAX_BLOCKS**2, code // MAX_BLOCKS % MAX_BLOCKS, code % MAX_BLOCKS) for code in map(int, codes)
        ]
        staged, collected, boxes, fits = np.array(collections, float)[place].T
        fixed = staged * consumers + (cluster_k - 1) * tile_m * tile_n * FLOAT_BYTES // collected
        staging_barriers = BARRIER_BYTES * consumers * boxes
        fixed += BARRIER_BYTES * np.where(ping_pong, consumers, 0) + staging_barriers
        stage = (tile_m + tile_n / _part(storage, tile_n)) * depth + 2 * BARRIER_BYTES
        stage += staged_bytes(storage.scales, tile_m, tile_n) * np.maximum(1, tile_k // BLOCK_K)
        stages = np.minimum(MAX_STAGES, (np.minimum(room, architecture.shared_bytes_per_block) - fixed) // stage)
        legal = (fits > 0) & (stages >= MIN_STAGES)
        columns_of = {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_k": tile_k,
            "stages": stages,
            "consumers": consumers,
            "cluster_m": cluster_m,
            "cluster_n": cluster_n,
            "cluster_k": cluster_k,
            "collected": collected,
            "resident": resident,
            "instruction_n": instruction_n,
            "product_sets": product_sets,
            "shared_bytes": fixed + stages * stage,
            "staging_barriers": staging_barriers,
        }
        made = {name: column[legal] for name, column in columns_of.items()}
        made["fitting"] = _blocks_of_sm(architecture, threads[legal], made["resident"], made["shared_bytes"])
        usable.append(Lattice(storage, ping_pong, **made))
    return tuple(usable)


def _blocks_of_sm(architecture: Architecture, threads: Column, resident: Column, shared_bytes: Column) -> Column:
    """Blocks that an SM holds at a time if threads get as many registers as ``resident`` blocks leave them."""
    import numpy as np

    by_registers = np.ones_like(threads)
    pairs = threads * MAX_BLOCKS + resident
    for pair in np.unique(pairs):
        count, held = divmod(int(pair), MAX_BLOCKS)
        registers = min(255, architecture.registers_per_sm // (count * held) // 8 * 8)
        by_registers[pairs == pair] = occupancy(architecture, count, registers, 0).blocks_per_sm
    unit = architecture.shared_allocation_bytes
    allocated = -(-(shared_bytes + architecture.reserved_shared_bytes_per_block) // unit) * unit
    blocks: Column = np.minimum(by_registers, architecture.shared_bytes_per_sm // np.maximum(allocated, 1))
    return blocks


def _collection(storage: Storage, tile_n: int, blocks_m: int, slices: int) -> tuple[int, int, int, bool]:
    """The shared memory in which a group collects results of tiles of ``tile_n`` columns: its bytes, the parts of the columns that blocks
    of a cluster finish, the boxes of a residual, and whether there is a way at all."""
    width = tile_n // 2 if storage.joined else tile_n
    size = ELEMENTS[storage.result].bytes
    if storage.in_parts and slices > 1:
        staging = plan_staging(width, blocks_m, size, 1, storage.column_major, slices)
        if staging is not None:
            return staging.group_bytes, slices, 0, True
    if storage.boxes:
        staging = plan_staging(width, blocks_m, size, STORE_BUFFERS, storage.column_major)
        return (0, 1, 0, False) if staging is None else (staging.group_bytes, 1, staging.buffers if storage.residual else 0, True)
    return 0 if storage.column_major else BLOCK_ROWS * TRANSPOSED_COLUMNS * FLOAT_BYTES, 1, 0, True


def _part(storage: Storage, tile_n: Column) -> Column:
    """Part of the columns of B that a stage holds that are of a tile."""
    columns: Column = held_part(tile_n, 1 if storage.b_along_k else SPAN_BYTES // ELEMENTS[storage.type].bytes)
    return columns


def _boxes_off(storage: Storage, tile_n: Column) -> Column:
    """Powers of two by which tiles of B, where n is contiguous, miss the width of a box; 0 where k is."""
    import numpy as np

    width = SPAN_BYTES // ELEMENTS[storage.type].bytes
    bits: Column = np.log2(width / np.gcd(tile_n.astype(int), width))
    return np.zeros_like(tile_n) if storage.b_along_k else bits


def _columns(storage: Storage) -> list[int]:
    step = 16 if storage.joined else 8
    return [columns for columns in COLUMNS if columns % step == 0 and (storage.type not in BYTE_INTEGERS or columns in INTEGER_COLUMNS)]


def _on_problem(lattice: Lattice, request: GemmRequest, device: Device) -> Points | None:
    """The points of a lattice on a problem, those left out that it gives less to do than to a smaller one; None if no point is left."""
    import numpy as np

    storage = lattice.storage
    if storage.column_major == is_stored(request.c, row_major=True):
        request = request.transposed
    m, n, k = request.sizes
    batch = request.c.shape[0] if request.batched else 1
    tiles_m, tiles_n = np.ceil(m / lattice.tile_m), np.ceil(n / lattice.tile_n)
    depth = np.ceil(k / lattice.tile_k)
    grouped = request.groups is not None
    if grouped:
        # Kernels of a group's rows have no clusters. Of two groups of warps and more, each leaves out its rows of a tile if there are none.
        parts = np.ones_like(tiles_m) if lattice.ping_pong else lattice.consumers
        tiles_m = tiles_m + np.round(request.groups * lost_rows(parts))
    # A tile wider than the problem needs, clusters that have no second tile to share, slices without a step; or those that wait for SMs: no
    # block multiplies while it sends its sums, and 640 x 8192 x 7168 took 1.5 times as long by two slices in four waves as by whole tiles.
    room = device.sm_count * lattice.resident
    wanted = (lattice.tile_n < n + 8) | (lattice.tile_n <= COLUMNS[0])
    wanted &= (
        (lattice.tile_m < m + BLOCK_ROWS)
        & (tiles_m >= lattice.cluster_m)
        & (tiles_n >= lattice.cluster_n)
        & (depth >= 4 * (lattice.cluster_k - 1))
        & ((lattice.cluster_k == 1) | (batch * tiles_m * tiles_n * lattice.cluster_k <= room))
    )
    if grouped:
        wanted &= (lattice.cluster_m * lattice.cluster_n * lattice.cluster_k == 1) & (lattice.tile_n % TIMED_COLUMNS == 0)
    if storage.joined and lattice.ping_pong:
        # Groups take turns for nothing where a block has one tile: 72 kernels of two products took 0.2% more than those of one group.
        wanted &= batch * tiles_m * tiles_n > room
    if not wanted.any():
        return None
    chosen = np.flatnonzero(wanted)
    at = _Columns(lattice, chosen)
    tiles_m, tiles_n, depth = tiles_m[chosen], tiles_n[chosen], depth[chosen]
    divided = bool((at.cluster_k > 1).any())
    tiles = batch * np.ceil(tiles_m / at.cluster_m) * np.ceil(tiles_n / at.cluster_n) * at.cluster_m * at.cluster_n
    works = tiles * at.cluster_k
    shared_by = at.cluster_m * at.cluster_n
    sizes = shared_by * at.cluster_k
    size_of = sizes.astype(np.intp)
    held = np.array([0.0, *(usable(device.sm_count, size) for size in CLUSTERED)])[size_of]
    persistent = held * at.resident * (not storage.scattered and not divided)
    blocks = np.where(persistent > 0, np.minimum(works, persistent), works)
    results = np.maximum(1, grouped_results(works, tiles_n, blocks) if grouped else np.ceil(works / blocks))
    steps = np.maximum(1, np.ceil(depth / at.cluster_k)) * results
    result_bytes = request.c.element_bytes * (1 + request.accumulates + (request.residual is not None))
    size = request.a.element_bytes
    result = float(m * n * batch * result_bytes)
    stored = result / (batch * tiles_m * tiles_n)
    way = "boxes" if storage.boxes else "elements" if storage.column_major else "transposed"
    added = SCATTERED_READS * (request.residual is not None) if way == "elements" else 0.0
    hidden = lattice.ping_pong and way == "boxes"
    sums = at.tile_m * at.tile_n * FLOAT_BYTES
    batch_a, batch_b = (layout.shape[0] if len(layout.shape) == 3 else 1 for layout in (request.a, request.b))
    kind = "wgmma, clusters along k" if divided else "wgmma, ping-pong" if lattice.ping_pong else "wgmma"
    spread_blocks = blocks * CLUSTERED[1] / np.array([CLUSTERED[1], *CLUSTERED.values()])[size_of]
    operations = 2.0 * at.tile_m * at.tile_n * at.tile_k
    issue = 1.0 + PROMOTION_ISSUE * (at.tile_n / at.instruction_n) if lattice.promoted else np.ones_like(blocks)
    if storage.scales.given:
        waits = (at.product_sets == 1) & (at.instruction_n == at.tile_n) & (at.resident == 1)
        uneven = (at.instruction_n < at.tile_n) & (at.tile_n % BLOCK_K > 0)
        scaled = np.where(at.consumers > 2, THREE_GROUPS_OPERATIONS, np.where(waits, WAITING_OPERATIONS, SCALED_OPERATIONS))
        issue = issue + (scaled * at.tile_k / BLOCK_K + UNEVEN_OPERATIONS * uneven) / operations
    memory_bytes = float(m * k * size * batch_a + k * n * size * batch_b) + result
    sharers = tiles_m / at.cluster_m if n >= m else tiles_n / at.cluster_n
    waves = works / (held * at.resident)
    apart = _read_apart(at, sharers)
    full, half = _settle_evenly(at, waves)
    if size == 1:
        full |= (at.resident == 1) & (waves >= DENSE_FILLED) & (waves <= 1)
        apart &= at.cluster_k == 1
    full &= ~apart
    dense_apart = DENSE_REUSED if min(m, n) >= REUSED * size else DENSE_APART
    dense = at.tile_m * at.tile_n / (at.tile_m + at.tile_n) >= np.where(apart & (waves <= 1), dense_apart, DENSE)
    starting = full | dense & (waves >= DENSE_FILLED) & (at.resident == 1) & (
        not divided and 2.0 * m * n * k * batch <= DENSE_OPERATIONS[size]
    )
    if memory_bytes < SHORT_BYTES:
        half = np.ones_like(half)
    together = TRANSPOSED_TOGETHER if storage.column_major else 1.0
    shown = finishing_shown(results, storage.column_major, at.tile_m, _reads_matrices(request))
    if storage.joined or grouped:
        # Of 96 kernels of two products for 16 rows, those that started early took 3.4% more on an H200, the fastest of them 0.2 to 1.2%.
        starting, half = np.zeros_like(starting), np.zeros_like(half)
    # A block of one tile has its stages bring an operand of the epilogue, too, if a box of it takes the place of a tile of A.
    staged = not lattice.ping_pong and not storage.column_major and not grouped and _reads_in_stages(request)
    brings = staged & (works <= persistent) & (sizes == 1) & (at.tile_k * size == SPAN_BYTES) & (at.tile_m <= at.tile_n)
    # Such a block of several groups has TMA store further outputs of C's type.
    boxed = not lattice.ping_pong and not storage.column_major and not grouped and _stores_in_boxes(request)
    of_one_tile = brings | (boxed & (works <= persistent) & (sizes == 1) & (at.consumers > 1))
    features = lattice.features.take(chosen, axis=0)
    features[of_one_tile, -1] = 0.0
    loaded_a = _boxed(at.tile_m, m, at.tile_k * size) * (1 - MULTICAST * (1 - 1 / at.cluster_n))
    loaded_b = _boxed(at.tile_n, n, at.tile_k * size) / _part(storage, at.tile_n)
    made = Works(
        blocks=spread_blocks,
        threads=at.threads,
        shared_bytes=at.shared_bytes - at.staging_barriers * brings,
        fitting=at.fitting,
        steps=steps,
        operations=operations,
        unit={"bf16": "f16", "f16": "f16", "s8": "int8"}.get(storage.type, "fp8") + "_wgmma",
        issue=issue,
        loaded_bytes=loaded_a * odd_rows(_row_bytes(request.a), at.cluster_n, at.cluster_m)
        + loaded_b * odd_rows(_row_bytes(request.b), at.cluster_m, at.cluster_n),
        in_flight=at.stages,
        stored_bytes=store_costs("wgmma")[way] * scattered(way, request.c.element_bytes) * stored * (1 + added) * (1 if hidden else results)
        + (sums if divided else 0.0),
        memory_bytes=memory_bytes,
        turns=np.full_like(blocks, 2.0 if divided else 1.0),
        results=results,
        finishing_clocks=_finishing_clocks(lattice, request)
        * finishing_pace((np.ones_like(blocks) if lattice.ping_pong else at.consumers) * at.resident)
        * (m * n * batch / spread_blocks * (shown if lattice.ping_pong else together)),
        costs=of_few(costs_of(kind), {"m": m, "n": n}),
        early=starting | half & (at.resident == 1),
    )

    once_a, once_b = tiles_n <= at.cluster_n, tiles_m <= at.cluster_m
    streamed = "a" if m > n and m * k * size >= STREAMED_BYTES else "b" if n * k * size >= STREAMED_BYTES else ""

    # Consecutive blocks share tiles of the larger side, if they are few enough.
    larger_b = at.tile_n > at.tile_m if storage.column_major else at.tile_n >= at.tile_m
    neighbours = np.where(larger_b, np.ceil(tiles_m / at.cluster_m), np.ceil(tiles_n / at.cluster_n))
    side_by_side = (waves <= 1) & (neighbours <= WIDE_BAND) & (not divided)

    def spec(place: int, early: bool, copies: bool = False) -> GemmSpec:
        once = streamed if streamed and not grouped and (once_a if streamed == "a" else once_b)[place] else ""
        starts = bool(starting[place] or (early and made.early[place]) or (copies and saved[place] > 0))
        band = {"group": BAND if neighbours[place] <= BAND else WIDE_BAND} if side_by_side[place] else {}
        order = {"along": "major"} if band and larger_b[place] == storage.column_major else {}
        return _spec(lattice, int(chosen[place]), 0 if of_one_tile[place] else int(persistent[place]), starts, once, order | band)

    shapes = Shapes(
        at.tile_m,
        at.tile_n,
        at.tile_k * size,
        at.stages,
        at.consumers,
        at.cluster_m,
        at.cluster_n,
        at.cluster_k,
        at.resident,
        held,
        _boxes_off(storage, at.tile_n),
        lattice.ping_pong,
        storage.column_major,
        storage.scattered,
    )

    def traits(places: NDArray[np.intp]) -> NDArray[np.float64]:
        works = picked(replace(made, loaded_bytes=loaded_a + loaded_b), places)
        return traits_of(picked(shapes, places), works, Extents(m, n, k, size), device)

    held_bytes, sliced = at.stages * at.tile_k * size, at.cluster_k > 1
    if m > n:
        alone, paired = at.resident == 1, (at.resident == 2) & (at.cluster_k > 2)
        spread = (waves <= 1) & ~apart & (alone & (works >= SAVING_BLOCKS * held) | paired & (works >= SAVING_PAIRS * held))
        spread &= memory_bytes <= SAVING_SHORT
        saving = sliced & (full | spread) & (held_bytes >= SAVING_BYTES[0])
        saved = np.where(saving, SAVED_OF_SLICES if n <= SAVING_COLUMNS else SAVED, 0.0)
        if n <= SAVING_COLUMNS:
            twice = (waves >= SAVING_WAVES[0]) & (waves <= SAVING_WAVES[1]) & (held_bytes >= SAVING_BYTES_OF_WHOLE)
            saved = np.where(twice & ~sliced & (at.resident == 1) & ~apart, SAVED_OF_SLICES, saved)
    else:
        saved = np.where(full & (~sliced | (held_bytes >= SAVING_BYTES[1])), SAVED, 0.0)
    beside_traits = np.zeros_like(blocks)
    if size == 2 and not lattice.ping_pong:
        beside_traits = np.where((waves > 1) & (at.resident == 1) & ~sliced, IN_TURN, 0.0)
    elif size == 2:
        beside_traits = np.where((waves > 1) & (at.resident == 1) & (at.tile_m == BLOCK_ROWS), NARROW_IN_TURN, 0.0)
    if memory_bytes < SHORT_BYTES and size == 2 and SHORT_ROWS[0] <= min(m, n) <= SHORT_ROWS[1]:
        halves = (at.resident == 1) & (at.cluster_k == 2)
        of_halves = np.where(at.tile_m == BLOCK_ROWS, SHORT_NARROW_HALVES, SHORT_HALVES)
        beside_traits = np.where(sliced, np.where(halves, of_halves, 0.0), SHORT_WHOLE)
    elif storage.type in BYTE_INTEGERS:
        beside_traits = np.where(sliced, SLICED_INTEGERS, 0.0)
    model = point_model()
    errors, corrections = model.errors, model.corrections
    if grouped:
        # Of 429 kernels for 16 products of groups, the fastest by the model alone took 2.4% more than the best on an H200, by errors 4.4%.
        errors = corrections = _no_errors
        beside_traits = np.zeros_like(blocks)
    return Points(made, features, traits, errors, corrections, beside_traits, saved, min(m, n) <= COLUMNS[0], spec, not grouped)


def _no_errors(traits: NDArray[np.float64]) -> NDArray[np.float64]:
    """No change of the model's times."""
    import numpy as np

    return np.zeros(len(traits))


def _settle_evenly(at: Lattice, waves: Column) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Grids whose blocks spread evenly over the SMs although blocks of the launch before are still there: those that fill all SMs once, and
    those that find room beside them."""
    import numpy as np

    sliced = at.cluster_k > 1
    full = np.where(sliced, waves >= FILLED_WAVE_OF_SLICES, (at.resident == 1) & (waves >= FILLED_WAVE)) & (waves <= 1)
    return full, waves <= np.where(sliced, HALF_FILLED_OF_SLICES, HALF_FILLED)


def _read_apart(at: Lattice, sharers: Column) -> NDArray[np.bool_]:
    """Grids of which a few blocks read each tile of the larger factor, and no cluster does. ``sharers``: clusters that read such a tile."""
    apart: NDArray[np.bool_] = (at.cluster_m * at.cluster_n == 1) & (sharers > 1) & (sharers < SHARED_BY_MANY)
    return apart


def _finishing_clocks(lattice: Lattice, request: GemmRequest) -> float:
    """Clock cycles of an SM for the epilogue of an element, which all points have in common, on problems of any size."""
    if not request.epilogue:
        return 0.0
    key = lattice.storage, lattice.ping_pong, request.epilogue
    if key not in _FINISHING:
        if len(_FINISHING) >= REMEMBERED:
            _FINISHING.clear()
        _FINISHING[key] = _planned_clocks(lattice, request)
    return _FINISHING[key]


_FINISHING: dict[tuple[Any, ...], float] = {}
REMEMBERED = 256


def _planned_clocks(lattice: Lattice, request: GemmRequest) -> float:
    """Clocks as the plan of one of the points counts them."""
    spec = _spec(lattice, 0, 0, False)
    assert isinstance(spec.mainloop, WgmmaMainloop)
    placement = fit(spec, spec.mainloop, request)
    if isinstance(placement, str):
        return 0.0
    fitted = placement.spec
    assert isinstance(fitted, GemmSpec) and isinstance(fitted.mainloop, WgmmaMainloop)
    try:
        return finishing_clocks(plan(fitted, fitted.mainloop, find_architecture(fitted.architecture)))
    except PlanError:
        return 0.0


class _Columns(Lattice):
    """Some of a lattice's points."""

    def __init__(self, lattice: Lattice, chosen: NDArray[np.intp]) -> None:
        columns = {name: column.take(chosen) for name, column in lattice.columns}
        super().__init__(lattice.storage, lattice.ping_pong, **columns)


def _row_bytes(layout: Layout) -> int:
    """Bytes from one row or column of a factor to the next."""
    return max(layout.strides[-2:]) * layout.element_bytes


def _boxed(tile: Column, extent: int, bytes_of_row: Column) -> Column:
    """Bytes of a tile that TMA copies, with filled bytes counted at their cost."""
    import numpy as np

    own = extent / np.maximum(1, np.ceil(extent / tile)) / tile
    filled: Column = tile * bytes_of_row * (own + FILLED * (1 - own))
    return filled


def _spec(
    lattice: Lattice, place: int, persistent: int, early: bool, once: str = "", rasterization: Mapping[str, Any] = NO_CHANGE
) -> GemmSpec:
    """The spec of a point; ``once``: the factor that is read once, by the name of its matrix, and so need not stay in the L2;
    ``rasterization``: changes of the order in which blocks take tiles."""
    number = {name: int(column[place]) for name, column in lattice.columns}
    mainloop: dict[str, Any] = {
        "strategy": "wgmma",
        "tile": {"m": number["tile_m"], "n": number["tile_n"], "k": number["tile_k"]},
        "stages": number["stages"],
        "consumers": number["consumers"],
        "schedule": "ping_pong" if lattice.ping_pong else "cooperative",
        "cluster": {"m": number["cluster_m"], "n": number["cluster_n"]},
        "persistent_blocks": persistent,
        "min_blocks_per_sm": number["resident"],
    }
    if number["instruction_n"] != number["tile_n"]:
        mainloop["instruction_n"] = number["instruction_n"]
    if number["product_sets"] > 1:
        mainloop["product_sets"] = number["product_sets"]
    fields = lattice.storage.base | {"mainloop": mainloop}
    if early:
        fields["early_launch"] = True
    if once:
        fields["cache"] = {f"l2_policy_{once}": "evict_first"}
    if "rasterization" in fields:
        fields["rasterization"] = fields["rasterization"] | rasterization
    if number["cluster_k"] > 1:
        fields["decomposition"] = {"scheme": "split_k_cluster", "slices": number["cluster_k"]}
        if number["collected"] > 1:
            fields["decomposition"]["finish"] = "all"
    return GemmSpec.model_validate(fields)
