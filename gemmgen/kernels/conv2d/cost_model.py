"""The work of a convolution's launches, for the model of their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.conv2d.direct import DirectPlan
from gemmgen.kernels.conv2d.few_channels import FewChannelsPlan
from gemmgen.kernels.conv2d.grouped import GroupedPlan
from gemmgen.kernels.conv2d.peer import cudnn_peer
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.conv2d.problem import is_depthwise
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.family import Cost, Costs, Fetch, Peer, Work

STORES_EXPOSED = 0.5
"""Part of the stores that other work does not hide, fitted to an H200's times of ResNet-50's layers at batches of 1, 16 and 128."""
TENSOR_CORE_ISSUE = 1.25
"""Time of products on tensor cores over that at their peak: power above all, on an H200."""


@dataclass(frozen=True)
class WarpgroupCosts:
    """Figures of kernels on ``wgmma`` that counts do not tell, by the type of x."""

    in_flight: float
    """Steps in flight for each stage, in units of the latency of a load."""
    issue: float
    """Time of products over that at their peak."""
    window_loads: float
    """Further factor of the time of copies where taps share their pixels."""
    loads: float
    """Time of a load from the L2 by TMA, relative to one by threads."""
    stores: float
    """Part of the stores that other work does not hide."""
    joined: float
    """Clock cycles in which the first block of a cluster reads the sums of each other block."""
    copies: float
    """Time of copies of vectors by threads over that of copies by TMA of rows of whole steps that begin at sectors."""
    shared: float
    """Part of the time of a copy that sharing it with the other blocks of a cluster does not save. Where rows of products are pixels, it
    saves nothing: pairs of blocks take 1.03 times as long as single ones, the median of 43 layers."""
    crowd: float
    """Part of the time of loads that grows with the SMs which load at the same time."""
    scattered: float
    """Blocks of clusters that divide a tile's sum, over those that the SMs hold at once: GPCs hold pairs, but no whole numbers of larger
    clusters. 7 x 1024 x 10 x 10 with 160 filters of 3 x 3 takes 20.5 us by 33 clusters of four, 10.7 by fewer."""
    window: float
    """Factor of the products and copies of tiles in which three taps share pixels."""
    crowded_window: float
    """The same where such tiles are of more pixels than ``WIDE_WINDOW``, or blocks have several of them."""
    tall_window: float
    """The same where more taps share pixels."""
    crowded_tall_window: float
    """Factor of tiles whose more than three taps share pixels, where a block computes several of them."""
    pointwise: float
    """Factor of ``copies`` where the filter has one tap."""
    vector_start: float
    """Latencies of memory before the first vectors of a block have arrived, beyond those of TMA."""
    part_of_row: float
    """Times of a copy by TMA over that of rows of whole steps that begin at sectors: of rows that end within a step."""
    odd_row: float
    """The same of rows that begin within a sector."""
    part_of_odd_row: float
    """The same of both."""
    odd_row_of_clusters: float
    """Further factor of such rows where a cluster's blocks copy parts of them for each other."""
    short_odd_row: float
    """Further factor of such rows of 64 bytes."""
    short_row: float
    """Times of a copy of rows of 64 bytes by TMA over that of rows of 128 bytes, which end with a step and begin at sectors."""
    pixel_rows: float
    """Factor of the products and copies of tiles whose rows are pixels, where TMA copies rows of whole steps that begin at sectors."""
    odd_window_row: float
    """Factor of such times where three taps share pixels."""
    odd_tall_row: float
    """Factor of such times where more than three taps share pixels."""
    wide_vectors: float
    """Factor of the products and copies of tiles of ``WIDE_TILE`` pixels whose vectors threads copy, where the filter has one tap."""
    narrow_vectors: float
    """Factor of such tiles with at most ``NARROW_TILE`` output channels, where the filter has several taps."""
    large_vectors: float
    """Factor of such tiles of ``LARGE_TILE`` channels and pixels, where the filter has one tap."""
    narrow_rows: float
    """Factor of tiles of ``WIDE_TILE`` pixels and at most ``NARROW_TILE`` channels whose rows are pixels that TMA copies."""
    row_stores: float
    """Factor of ``stores`` where rows of products are pixels, the filter has one tap, and a tile ``FEW_STEPS`` steps at most."""
    shared_reads: float
    """Part of the shared memory's rate at which tensor cores read tiles: 0 if they never wait for it, else over 1 / it."""


WARPGROUP_COSTS = {
    True: WarpgroupCosts(
        in_flight=0.509,
        issue=1.876,
        window_loads=0.64,
        loads=0.827,
        stores=4.407,
        joined=863,
        copies=1.595,
        shared=0.963,
        crowd=0.52,
        scattered=1.1,
        window=0.972,
        crowded_window=1.143,
        tall_window=0.867,
        crowded_tall_window=1.05,
        pointwise=0.924,
        vector_start=0.782,
        part_of_row=4.0,
        odd_row=2.859,
        part_of_odd_row=2.12,
        odd_row_of_clusters=1.32,
        short_odd_row=2.39,
        short_row=1.0,
        pixel_rows=1.074,
        shared_reads=0.369,
        odd_window_row=0.91,
        odd_tall_row=0.59,
        wide_vectors=1.51,
        narrow_vectors=1.17,
        large_vectors=1.2,
        narrow_rows=1.15,
        row_stores=1.1,
    ),
    False: WarpgroupCosts(
        in_flight=0.475,
        issue=TENSOR_CORE_ISSUE,
        window_loads=1.0,
        loads=0.484,
        stores=STORES_EXPOSED,
        joined=200,
        copies=2.41,
        shared=0.0,
        crowd=0.285,
        scattered=1.14,
        window=1.0,
        crowded_window=1.0,
        tall_window=1.0,
        crowded_tall_window=1.0,
        pointwise=1.771,
        vector_start=0.0,
        part_of_row=3.458,
        odd_row=3.06,
        part_of_odd_row=4.27,
        odd_row_of_clusters=1.69,
        short_odd_row=1.19,
        short_row=1.626,
        pixel_rows=1.0,
        shared_reads=0.0,
        odd_window_row=1.0,
        odd_tall_row=1.0,
        wide_vectors=1.0,
        narrow_vectors=1.0,
        large_vectors=1.0,
        narrow_rows=1.0,
        row_stores=1.0,
    ),
}
"""For 16-bit floats, fitted to 203 drawn and named layers on an H200, up to 34 instances of each, so that the chosen one takes little
longer than the best: 1.036 times as a mean, 1.044 before; 1.053 of 56 layers drawn afterwards. For integers, fitted to 134 layers:
1.031, 1.041 before."""

WIDE_TILE, NARROW_TILE, LARGE_TILE, FEW_STEPS = 256, 112, 192, 4
"""Pixels and channels of a tile and steps for which a few costs are their own."""
WIDE_WINDOW = 256
"""Pixels of a tile whose taps share them, from which on it is crowded."""
BLOCK_ROWS, SHARED_RATE = 64, 128
"""Rows of an instruction on ``wgmma``, and bytes a clock cycle of an SM's shared memory."""
JOINED_TILE = 64 * 64
"""Results of the tiles by which the clock cycles of joining were measured."""
SECTOR = 32
"""Bytes that the L2 moves at once."""
DIRECT_ISSUE = 4.0
"""Instructions for each multiply-add of a thread that sums up by itself: a load, a conversion, a test whether the tap is in the image."""


SHARED_LINES = 3.0
"""Threads of a block that read the same pixels, by way of the L1: above, below and beside each other."""


def work(plan: FinishingPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
    """The launches of one problem. A step is one slice of the implicit GEMM's k."""
    if isinstance(plan, WarpgroupPlan):
        return (_warpgroup_work(plan, problem),)
    if isinstance(plan, DirectPlan):
        return (_direct_work(plan, problem),)
    if isinstance(plan, GroupedPlan):
        return (_grouped_work(plan, problem),)
    if isinstance(plan, FewChannelsPlan):
        return (_few_channels_work(plan, problem),)
    assert isinstance(plan, Conv2dPlan)
    n, c, h, w, k, r, s, p, q, groups = (problem[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q", "groups"))
    tile = plan.warp_tile.threadblock
    pixels, channels = (tile.n, tile.m) if plan.channels_are_rows else (tile.m, tile.n)
    tiles = ceil_div(n * p * q, pixels) * ceil_div(k // groups, channels) * groups
    depth = c // groups * r * s
    steps = ceil_div(ceil_div(depth, tile.k), plan.split_k)
    size = ELEMENTS[plan.output.type].bytes
    outputs = n * p * q * k
    reads = 1 + plan.arrays_like_output
    blocks, per_block = tiles * plan.split_k, 1.0
    if plan.spec.persistent_blocks is not None and blocks > plan.spec.persistent_blocks:
        per_block, blocks = blocks / plan.spec.persistent_blocks, plan.spec.persistent_blocks
    compulsory = float(min(n * c * h * w, n * c * p * q * r * s) + k * depth)
    partial = plan.split_k > 1
    warp = plan.warp_tile.warp
    # Fragments of 8 x 16 or 16 x 32 bytes are read by ldmatrix, 128 bytes a wavefront.
    warps = plan.threads // 32
    wavefronts = warps * (warp.m + warp.n) * tile.k / 128
    main = Work(
        blocks=blocks,
        threads=plan.threads,
        registers=min(255, plan.registers),
        shared_bytes=plan.shared_bytes,
        steps=steps * per_block,
        operations=2.0 * tile.m * tile.n * tile.k,
        unit="int8",
        issue=1.0 + 8.0 * (warp.m + warp.n) / (warp.m * warp.n),
        shared_clocks=wavefronts,
        loaded_bytes=float((tile.m + tile.n) * tile.k),
        in_flight=float(max(1, plan.stages - 1)),
        stored_bytes=float(pixels * channels * (4 if partial else size * reads)) * per_block,
        memory_bytes=compulsory + (0.0 if partial else float(outputs * size * reads)),
        early=plan.spec.early_launch,
    )
    if not partial:
        return (main,)
    finish = plan.sequence.launches[1]
    x, y, z = finish.grid_of(problem)
    count = max(1, x * y * z)
    second = Work(
        count,
        finish.threads,
        40,
        0,
        float(plan.split_k),
        0.0,
        "fp32",
        1.0,
        0.0,
        outputs * 4.0 / count,
        4.0,
        outputs * size * reads / count,
        float(outputs * size * reads),
        follows=True,
        early=plan.spec.early_launch,
    )
    return main, second


def _warpgroup_work(plan: WarpgroupPlan, problem: Mapping[str, int]) -> Work:
    loop, spec = plan.loop, plan.spec
    channel_tiles = round_up(ceil_div(problem["k"], loop.tile_m), loop.cluster_m)
    pixels = problem["n"] * problem["p"] * (problem["q"] + plan.taps - 1)
    works = channel_tiles * round_up(ceil_div(pixels, loop.tile_pixels), loop.cluster_n)
    costs = WARPGROUP_COSTS[ELEMENTS[spec.input.type].is_float]
    divided = loop.cluster_k > 1
    blocks = min(works, loop.persistent_blocks) if loop.persistent_blocks else works * loop.cluster_k
    blocks = ceil(blocks * costs.scattered) if loop.cluster_k > 2 else blocks
    turns = ceil_div(works, blocks) if blocks else 1
    inputs, taps = problem["c"] // problem["groups"], problem["r"] * problem["s"]
    steps = ceil_div(taps * inputs, loop.tile_k) if loop.vectors else taps // plan.taps * ceil_div(inputs, loop.tile_k)
    steps = ceil_div(steps, loop.cluster_k)
    alone = 1.0 if loop.pixel_rows else costs.shared
    loaded_a, loaded_b = (operand.tile_bytes * costs.loads * (alone + (1 - alone) / operand.blocks) for operand in (loop.a, loop.b))
    by_threads = costs.copies * (costs.pointwise if taps == 1 else 1.0)
    copies = by_threads if loop.vectors else _row_copies(plan, problem, costs)
    loaded = loaded_a * (1.0 if loop.vectors else copies) + loaded_b * copies
    loaded *= costs.window_loads if plan.windows else 1.0
    if not divided and works:
        loaded *= 1 - costs.crowd * (1 - works / (blocks * turns))  # fewer blocks load in the last turn
    crowded = costs.crowded_window if loop.tile_pixels > WIDE_WINDOW or turns > 1 else costs.window
    tall = costs.crowded_tall_window if turns > 1 else costs.tall_window
    slow = (crowded if plan.taps == 3 else tall) if plan.windows else 1.0
    if loop.vectors and loop.tile_pixels == WIDE_TILE:
        slow *= costs.wide_vectors if taps == 1 else costs.narrow_vectors if loop.tile_m <= NARROW_TILE else 1.0
    slow *= costs.large_vectors if loop.vectors and taps == 1 and loop.tile_m == loop.tile_pixels == LARGE_TILE else 1.0
    slow *= costs.pixel_rows if loop.pixel_rows and copies == 1.0 else 1.0
    wide_rows = loop.pixel_rows and not loop.vectors and loop.tile_pixels == WIDE_TILE
    slow *= costs.narrow_rows if wide_rows and loop.tile_m <= NARROW_TILE else 1.0
    stores = costs.stores * (costs.row_stores if taps == 1 and loop.pixel_rows and steps <= FEW_STEPS else 1.0)
    reads = 1 + plan.arrays_like_output
    return Work(
        blocks=blocks,
        threads=loop.threads,
        registers=min(plan.architecture.registers_per_thread, loop.registers_at_once(plan.architecture.registers_per_sm)),
        shared_bytes=plan.shared_bytes,
        steps=float(steps * turns),
        operations=2.0 * loop.tile_m * loop.tile_pixels * loop.tile_k * plan.taps,
        unit=loop.unit,
        issue=costs.issue * slow,
        shared_clocks=costs.shared_reads * _shared_bytes(plan) / SHARED_RATE,
        loaded_bytes=loaded * slow,
        in_flight=costs.in_flight * loop.stages,
        stored_bytes=stores * float(loop.tile_m * loop.tile_pixels * ELEMENTS[spec.output.type].bytes * reads * turns),
        memory_bytes=cost(plan, problem).bytes,
        turns=min(2, loop.cluster_k),  # the first block of a cluster waits for the others, and reads their sums
        early=spec.early_launch,
        finishing_clocks=costs.joined * (loop.cluster_k - 1) * _joined_tiles(plan),
        costs=Costs(crowd=costs.crowd, idle=costs.vector_start if loop.vectors else 0.0),
    )


def _shared_bytes(plan: WarpgroupPlan) -> int:
    """Bytes of shared memory that the instructions of a step read: each 64 rows of A and all columns of B."""
    loop = plan.loop
    rows, columns, parts = loop.tile_m, loop.tile_n, loop.tile_pixels // loop.tile_n
    if loop.pixel_rows:
        rows, columns, parts = loop.pixel_rows, loop.tile_m, 1
    return ceil_div(rows, BLOCK_ROWS) * parts * (BLOCK_ROWS + columns) * loop.b.row_bytes * plan.taps


def _joined_tiles(plan: WarpgroupPlan) -> float:
    """Tiles of 64 x 64 whose sums the first block of a cluster reads of another one, where these take the place of its tiles."""
    return plan.loop.tile_m * plan.loop.tile_pixels / JOINED_TILE


def _row_copies(plan: WarpgroupPlan, problem: Mapping[str, int], costs: WarpgroupCosts) -> float:
    """Time of the copies of rows of channels over that where rows begin at sectors and have all channels of a step."""
    inputs = problem["c"] // problem["groups"]
    if plan.spec.input.layout != "nhwc":
        return 1.0
    even = inputs * ELEMENTS[plan.spec.input.type].bytes % SECTOR == 0
    whole, part = (1.0, costs.part_of_row) if even else (costs.odd_row, costs.part_of_odd_row)
    steps = ceil_div(inputs, plan.loop.tile_k)
    times = whole if inputs % plan.loop.tile_k == 0 else ((steps - 1) * whole + part) / steps
    if times == 1.0:
        return costs.short_row if plan.loop.b.row_bytes < 128 else times
    times *= costs.odd_row_of_clusters if plan.loop.b.blocks > 1 else 1.0
    times *= costs.short_odd_row if plan.loop.b.row_bytes < 128 else 1.0
    return max(1.0, times * (costs.odd_window_row if plan.taps == 3 else costs.odd_tall_row)) if plan.windows else times


def _direct_work(plan: DirectPlan, problem: Mapping[str, int]) -> Work:
    """A step is a product of each of a thread's results."""
    if is_depthwise(plan.spec):
        return _depthwise_work(plan, problem)
    blocks = ceil_div(ceil_div(problem["n"] * problem["p"] * problem["q"], plan.pixels) * problem["k"], plan.threads)
    results = plan.threads * plan.pixels
    return Work(
        blocks=blocks,
        threads=plan.threads,
        registers=32 + 8 * plan.pixels,
        shared_bytes=0,
        steps=float(problem["r"] * problem["s"] * problem["c"] // problem["groups"]),
        operations=2.0 * results,
        unit="fp32",
        issue=DIRECT_ISSUE,
        shared_clocks=0.0,
        loaded_bytes=float(results * ELEMENTS[plan.spec.input.type].bytes),
        in_flight=float(plan.pixels),
        stored_bytes=float(results * ELEMENTS[plan.output.type].bytes * (1 + plan.arrays_like_output)),
        memory_bytes=cost(plan, problem).bytes,
        early=plan.spec.early_launch,
        costs=_slower(SINGLE_CHANNELS if ELEMENTS[plan.spec.input.type].is_float else 1.0),
    )


def _slower(factor: float) -> Costs:
    """Costs of a kernel that takes longer than its counted work by a factor, whatever bounds it."""
    return Costs(arithmetic=factor, loads=factor, latency=factor, memory=factor)


WIDE_CHANNELS, FOUR_ROWS, SINGLE_CHANNELS = 1.45, 1.12, 3.0
"""Times over the counted work on an H200: of threads with eight channels (1.2 to 1.6 times in 17 of 17 layers, 0.8 to 1.3 times with four
channels), of those with four rows of pixels (0.8 to 1.5 times), and of threads that have a single channel of floats each (2 to 4 times)."""
TWO_CHANNELS, WIDE_STRIDES = 0.76, 1.25
"""Factors for threads with two channels (0.76 to 1 in 9 of 9 layers), and for those with four pixels two apart (1.06 to 1.41)."""
LARGE_FILTER, TALL_FILTER = 5, 7
"""Rows of filters from which single rows of pixels take much longer, and four rows no longer than others."""
ONE_ROW, SQUARE = 3.9, 1.35
"""Factors for threads with a single row of pixels under such filters (2.9 to 7.5 times in 12 of 12 layers: 64 images of 704 channels of
18 x 18 take 99.7 us under 7 x 7 taps with stride 2, 33.5 by two rows), and for those with 2 x 2 pixels under tall ones with a stride (1.1
to 1.9 times)."""
MAX_LINES, LONG_STRIPS, LOW_STRIPS = 10, 1.35, 1.12
"""Factors for threads with more rows of x, whose code no longer fits (8 x 4 pixels under 5 x 5 taps, or with stride 2: 1.2), and for those
with two rows of pixels under 5 x 5 taps and more."""
MAX_INSTRUCTIONS, LONG_CODE = 3400, 2.3
"""Instructions of a thread from which they are fetched again and again, and how many times as long it takes: 4 x 4 pixels of four
channels under 5 x 5 taps with stride 2."""
VECTOR_ISSUE, RESULT_ISSUE = 3.0, 4.0
"""Instructions of a depthwise kernel that read a vector, its address and predicate included, and that finish a result and store it."""


def _depthwise_work(plan: DirectPlan, problem: Mapping[str, int]) -> Work:
    """A step is a row of x under the taps of a thread's pixels."""
    strips = problem["n"] * ceil_div(problem["p"], plan.rows) * ceil_div(problem["q"], plan.pixels)
    tiles = ceil_div(problem["k"], plan.channels * plan.lanes)
    columns = (plan.pixels - 1) * problem["stride_w"] + (problem["s"] - 1) * problem["dilation_w"] + 1
    lines = (plan.rows - 1) * problem["stride_h"] + (problem["r"] - 1) * problem["dilation_h"] + 1
    results = plan.threads * plan.rows * plan.pixels * plan.channels
    products = plan.rows * plan.pixels * problem["r"] * problem["s"]
    converted = columns * lines + (1 if plan.keeps_factors else plan.rows) * problem["r"] * problem["s"]
    beside = (1.2 + VECTOR_ISSUE / plan.channels) * converted + RESULT_ISSUE * plan.rows * plan.pixels
    size = ELEMENTS[plan.spec.input.type].bytes
    summed = min(plan.rows, ceil_div((problem["r"] - 1) * problem["dilation_h"] + 1, problem["stride_h"]))
    windows = 2 * columns * plan.channels * size // 4
    factors = problem["r"] * problem["s"] * plan.channels if plan.keeps_factors else 0
    slow = (WIDE_CHANNELS if plan.channels >= 8 else 1.0) * (FOUR_ROWS if plan.rows == 4 and problem["r"] < TALL_FILTER else 1.0)
    slow *= ONE_ROW if plan.rows == 1 and problem["r"] >= LARGE_FILTER else 1.0
    slow *= SQUARE if plan.rows == plan.pixels == 2 and problem["r"] >= TALL_FILTER and problem["stride_h"] > 1 else 1.0
    slow *= TWO_CHANNELS if plan.channels == 2 else 1.0
    slow *= WIDE_STRIDES if problem["stride_w"] > 1 and plan.pixels >= 4 else 1.0
    slow *= LONG_STRIPS if lines > MAX_LINES and plan.rows > 4 else 1.0
    slow *= LOW_STRIPS if plan.rows == 2 and problem["r"] >= 5 else 1.0
    slow *= LONG_CODE if plan.channels * (products + beside) > MAX_INSTRUCTIONS else 1.0
    return Work(
        blocks=ceil_div(strips, plan.threads // plan.lanes) * tiles,
        threads=plan.threads,
        registers=min(255, 40 + summed * plan.pixels * plan.channels + windows + factors),
        shared_bytes=0,
        steps=float(lines),
        operations=2.0 * products * plan.threads * plan.channels / lines,
        unit="fp32",
        issue=1.0 + beside / products,
        shared_clocks=0.0,
        loaded_bytes=float(columns * plan.threads * plan.channels * size) / SHARED_LINES,
        in_flight=float(min(lines, 2)),
        stored_bytes=float(results * ELEMENTS[plan.output.type].bytes * (1 + plan.arrays_like_output)),
        memory_bytes=cost(plan, problem).bytes,
        early=plan.spec.early_launch,
        costs=_slower(slow),
    )


def _grouped_work(plan: GroupedPlan, problem: Mapping[str, int]) -> Work:
    """A step is a filter tap; nothing is copied while a block multiplies."""
    tile = plan.tile
    tiles = problem["n"] * ceil_div(problem["p"], tile.rows) * ceil_div(problem["q"], tile.columns)
    taps = problem["r"] * problem["s"]
    slots = tile.fragments * tile.parts * 16
    return Work(
        blocks=tiles * ceil_div(problem["k"], tile.chunk),
        threads=tile.threads,
        registers=min(255, 60 + 9 * tile.fragments),
        shared_bytes=plan.shared_bytes,
        steps=float(taps),
        operations=2.0 * slots * tile.chunk * tile.block,
        unit=plan.products,
        issue=1.5,
        shared_clocks=float(slots * tile.chunk * tile.block / 16 * 2 / 128),
        loaded_bytes=float(tile.bytes) / taps,
        in_flight=float(taps),
        stored_bytes=float(tile.rows * tile.columns * tile.chunk * ELEMENTS[plan.output.type].bytes * (1 + plan.arrays_like_output)),
        memory_bytes=cost(plan, problem).bytes,
        early=plan.spec.early_launch,
    )


def _few_channels_work(plan: FewChannelsPlan, problem: Mapping[str, int]) -> Work:
    """A step is a row of the filter; nothing is copied while a block multiplies."""
    tile = plan.tile
    tiles = problem["n"] * ceil_div(problem["p"], tile.rows) * ceil_div(problem["q"], tile.columns)
    slots = tile.fragments * tile.parts * 16
    depth = tile.steps * 16
    return Work(
        blocks=tiles * ceil_div(problem["k"], tile.chunk),
        threads=tile.threads,
        registers=min(255, 70 + 9 * tile.fragments * tile.slices),
        shared_bytes=plan.shared_bytes,
        steps=float(problem["r"]),
        operations=2.0 * slots * tile.chunk * depth,
        unit=plan.products,
        issue=1.5,
        shared_clocks=float(slots * depth * tile.warps_k * 2 / 128),
        loaded_bytes=float(tile.bytes) / problem["r"],
        in_flight=float(problem["r"]),
        stored_bytes=float(tile.rows * tile.columns * tile.chunk * ELEMENTS[plan.output.type].bytes * (1 + plan.arrays_like_output)),
        memory_bytes=cost(plan, problem).bytes,
        early=plan.spec.early_launch,
    )


def fetches(plan: FinishingPlan, problem: Mapping[str, int]) -> tuple[Fetch, ...]:
    """x once for each filter tap that a pixel of it meets and each tile of channels, the filter once for each tile of pixels, but once for
    a cluster that shares them; y and the operand added to it, once. Without tiles, a warp's channels share x, and a thread's pixels the
    filter."""
    n, c, h, w, k, r, s, p, q, groups = (problem[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q", "groups"))
    if isinstance(plan, WarpgroupPlan):
        loop = plan.loop
        pixels, channels, taps = loop.tile_pixels * loop.cluster_n, loop.tile_m * loop.cluster_m, plan.taps
    elif isinstance(plan, DirectPlan):
        lines = problem["dilation_h"] * (r - 1) + 1  # rows that a block of many reads once
        pixels, channels, taps = (plan.pixels, WARP_THREADS, 1) if plan.channels == 1 else (plan.rows * plan.pixels, k, s * min(r, lines))
    elif isinstance(plan, GroupedPlan | FewChannelsPlan):
        grouped = plan.tile
        shared = r * s * grouped.rows * grouped.columns / (grouped.rows_x * grouped.columns_x)
        pixels, channels, taps = grouped.rows * grouped.columns, k, max(1, round(shared))
    else:
        assert isinstance(plan, Conv2dPlan)
        tile, taps = plan.warp_tile.threadblock, 1
        pixels, channels = (tile.n, tile.m) if plan.channels_are_rows else (tile.m, tile.n)
    size, result = ELEMENTS[plan.spec.input.type].bytes, ELEMENTS[plan.output.type].bytes * n * p * q * k
    met = p * q * r * s / (taps * h * w) if h * w else 0.0
    return (
        Fetch("x", float(size * n * c * h * w), met * ceil_div(k // groups, channels)),
        Fetch("filter", float(size * k * (c // groups) * r * s), ceil_div(n * p * q, pixels)),
        Fetch("y", float(result), 1.0 + plan.arrays_like_output),
    )


def cost(plan: FinishingPlan, problem: Mapping[str, int]) -> Cost:
    """Two operations for each product, one crossing of the memory bus for each array."""
    n, c, h, w, k, r, s, p, q = (problem[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q"))
    depth = c // problem["groups"] * r * s
    outputs = n * p * q * k
    size = ELEMENTS[plan.output.type].bytes * outputs
    inputs = ELEMENTS[plan.spec.input.type].bytes * (n * c * h * w + depth * k)
    total = inputs + size + size * plan.arrays_like_output + (4 * k if plan.shifted else 0)
    unit = "int8"
    if isinstance(plan, WarpgroupPlan | GroupedPlan | FewChannelsPlan):
        unit = plan.loop.unit if isinstance(plan, WarpgroupPlan) else plan.products
    elif isinstance(plan, DirectPlan):
        unit = "fp32"
    return Cost(2.0 * outputs * depth, float(total), unit)


def executed_operations(plan: FinishingPlan, problem: Mapping[str, int]) -> float:
    """Tiles of pixels by output channels of a group, over whole steps of the implicit GEMM's k."""
    if isinstance(plan, DirectPlan):
        return cost(plan, problem).operations
    if isinstance(plan, WarpgroupPlan):
        loop = plan.loop
        rows = round_up(problem["n"] * problem["p"] * (problem["q"] + plan.taps - 1), loop.tile_pixels)
        sums = problem["r"] * problem["s"] * round_up(problem["c"] // problem["groups"], loop.tile_k)
        return 2.0 * rows * round_up(problem["k"], loop.tile_m) * sums
    if isinstance(plan, GroupedPlan):
        rows = round_up(problem["p"], plan.tile.rows) * round_up(problem["q"], plan.tile.columns) * problem["n"]
        return 2.0 * rows * round_up(problem["k"], plan.tile.block) * plan.tile.block * problem["r"] * problem["s"]
    if isinstance(plan, FewChannelsPlan):
        rows = round_up(problem["p"], plan.tile.rows) * round_up(problem["q"], plan.tile.columns) * problem["n"]
        return 2.0 * rows * round_up(problem["k"], plan.tile.chunk) * plan.depth
    assert isinstance(plan, Conv2dPlan)
    tile, groups = plan.warp_tile.threadblock, problem["groups"]
    pixels, channels = (tile.n, tile.m) if plan.channels_are_rows else (tile.m, tile.n)
    depth = problem["c"] // groups * problem["r"] * problem["s"]
    rows = round_up(problem["n"] * problem["p"] * problem["q"], pixels)
    return 2.0 * rows * round_up(problem["k"] // groups, channels) * groups * round_up(depth, tile.k)


def peer(plan: FinishingPlan, problem: Mapping[str, int], arrays: Mapping[str, object], scalars: Mapping[str, float]) -> Peer | str:
    """cuDNN's convolution with bias, residual and ReLU."""
    return cudnn_peer(plan, problem, arrays, scalars)
