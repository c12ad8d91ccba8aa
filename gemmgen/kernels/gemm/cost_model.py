"""The work of a GEMM's launches, for the model of their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.family import Cost, Costs, Fetch, Peer, Work
from gemmgen.kernels.gemm.peer import gemm_peer
from gemmgen.kernels.gemm.gemv.loop import SLICES_AT_ONCE, VectorLoop, estimated_registers
from gemmgen.kernels.gemm.mma_sync.loop import BLOCK_COLUMNS, WarpLoop
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.simt.loop import NaiveLoop, TiledLoop
from gemmgen.kernels.gemm.spec import StreamK
from gemmgen.kernels.gemm.split_precision.planes import REPAIR_THREADS, REPAIR_TILE, SPLIT_THREADS, PlaneOperand, PlanesPlan
from gemmgen.kernels.gemm.wgmma.copied import CopyPlan
from gemmgen.kernels.math.warpgroup import WarpgroupLoop

NAIVE_STEP = 8
"""Values of k that a thread of the naive kernel is taken to have in flight."""
REDUCTION_REGISTERS = 40
SPLIT_REGISTERS = 40
REPAIR_REGISTERS = 64
FLOAT_BYTES = 4
WAIT_FOR_B = {"k": 0.15, "m": 0.6}
"""Latency of a read of B in a kernel for few columns, over that of the memory."""
NARROW_COPY = 6
"""Instructions of a copy through registers, over those of an asynchronous one: calibrated on 61 x 61 x 396480 and its kin."""
LINE_BYTES = 128
SECTOR_BYTES = 32
LEFT_IN_L2 = 0.2
"""Part of A that has to come from memory again for every further tile of columns."""
COPY_REGISTERS = 40
COPY_INSTRUCTIONS = 8.0
"""Of a thread, for a copy of its own to shared memory: where it comes from and goes to, and how much of it exists."""
MMA_OPERATIONS_PER_CLOCK = 2048.0
"""Of an SM, on 16-bit types by `mma.sync`."""
SHARED_BYTES_PER_CLOCK = 128.0
COMPENSATION_ISSUE = 0.27
"""Cost of keeping what that rounds off: 1.2 to 1.3 times the time of plain sums, on an H200, of three products of planes; the others
have as many additions beside more products."""
READ_INSTRUCTIONS = 13.0
"""Of a lane, for a word of a fragment that it reads from global memory: whether and where it exists. Calibrated, as the next two and the
costs of this kind, on 57 small, shallow and other products in bfloat16 on an H100."""
READ_ONE_BY_ONE = 3.0
"""The same of two halves of a word that are read one by one, over that of a word."""
READ_WAVEFRONTS = 1.7
"""Clock cycles of the L1 for such a read of a warp, whose lanes meet a line for each of up to eight rows."""
SCHEDULERS = 4
"""Of an SM."""
TILE_INSTRUCTIONS = 60.0
"""Of a lane that reads and stores vectors of fragments, for every tile: as the compiler makes them, with the next two."""
WORD_INSTRUCTIONS = 3.0
"""For every word of A."""
STORE_INSTRUCTIONS = 6.0
"""For every vector that it stores, beside the conversion of its elements."""
STREAMED_PAUSE = 5.0
"""Time between two results of a block of stream-K, which fills its stages anew for each, over that of a persistent one by `mma.sync`: 1829
products of 22 x 22 x 22 take 43 us on an H200, eight or nine for each of 216 blocks."""
STORED_AT_ONCE = 64
"""Results of a thread of `mma.sync` beyond which stores take longer, since there are fewer warps to hide their latencies: 4097 x 4097 x 31
takes 27 us by eight warps to a tile of 128 x 128 on an H200, 47 by four."""
SPLIT_STEPS = 5.0
"""Latencies of memory that a kernel that splits takes, with its launch: 2 to 3 microseconds for small matrices."""
SPLIT_ROW = 340.0
"""Values of a row along k that a warp splits in one more latency; it reads them twice, some at a time. A quarter of them where it reads
them one by one."""
SPLIT_COLUMN = 4.0
"""Latencies that a thread takes for its part of a column, of which it reads a quarter at a time."""
SPLIT_READS = 1.5
"""Times that it reads what it splits: once for the extremes, and again from caches, as far as those hold it."""
UNFILLED = 0.3
"""Time of a tile that lacks rows for some groups of warps: this share of what the missing ones would take is spent all the same."""
DRAWING_BYTES = 16384.0
"""Bytes of A that a block of a kernel for few columns has on their way, for which its costs say how many blocks draw all that the memory
gives."""
FEW = 4
OF_FEW = 1.2
"""Times of copies for tensor cores with at most FEW rows or columns, over what tiles of more rows lead to expect: 7552 x 2 x 8096 takes
51 us on an H200, in bfloat16. Without it, the model prefers tensor cores to faster multiply-adds in six of 79 such products, with it in
one."""
PROMOTION_ISSUE = 0.06
"""The same of 8-bit floats, whose sums leave the tensor core."""
NARROWEST = 16
"""Columns of a tile of multiply-adds up to which its copies draw less of the memory: 7070 x 1 x 5088 takes 53 us on an H200 by tiles of
64 x 8, 39 by a kernel for one column."""
FILLED = 4.6
"""Time of a row of a box that lies beyond the matrix, over that of one that exists: 1 x 4096 x 11008 of bytes takes 20 us by tiles of 64
rows on an H200, 64 x 4096 x 11008 takes 14."""
MULTICAST = 0.2
"""Part of the time of loading a tile of A that blocks which share it are spared: 520 x 4096 x 4096 takes 28.5 us on an H200 by pairs, 34.6
by blocks for themselves, 400 x 4096 x 11008 51.9 and 53.3. Blocks that share a tile of B gained nothing."""
COSTS = {
    "tiled": Costs(
        arithmetic=1.01, shared=0.9, loads=1.12, latency=0.72, barriers=0.83, stores=0.53, memory=0.6, idle=0.57, hide=2.57, crowd=0.95
    ),
    "tiled, narrow": Costs(
        arithmetic=1.01, shared=0.9, loads=1.12, latency=1.4, barriers=0.83, stores=0.53, memory=1.7, idle=0.57, hide=2.57, crowd=0.95
    ),
    "tiled, 16 bits": Costs(arithmetic=1.49, shared=1.02, latency=0.94, barriers=0.98, memory=1.03, idle=-0.78, hide=1.05),
    "vector along k": Costs(
        arithmetic=0.78,
        shared=0.71,
        loads=1.08,
        latency=0.73,
        barriers=0.59,
        stores=1.84,
        memory=0.66,
        idle=-0.63,
        draw=1.51,
        hide=0.95,
        crowd=1.0,
    ),
    "vector along k, 16 bits": Costs(
        arithmetic=2.03,
        shared=0.41,
        loads=1.02,
        latency=0.77,
        barriers=0.98,
        stores=0.99,
        memory=0.78,
        idle=0.08,
        draw=1.58,
        hide=1.13,
        crowd=0.06,
    ),
    "vector along m": Costs(
        arithmetic=1.52,
        shared=1.59,
        loads=0.92,
        latency=0.64,
        barriers=1.42,
        stores=0.1,
        memory=0.96,
        idle=2.2,
        draw=1.68,
        hide=2.13,
        crowd=0.43,
    ),
    "vector along m, B in shared memory": Costs(
        arithmetic=1.55, loads=0.66, latency=0.36, barriers=5.08, stores=0.1, memory=0.64, idle=4.5, draw=1.23, hide=4.25
    ),
    "vector, a thread for a row": Costs(
        arithmetic=1.59, shared=0.82, loads=1.02, latency=0.1, barriers=5.99, stores=2.6, memory=0.63, idle=-1.0, draw=1.12, hide=3.0
    ),
    "vector along m, 16 bits": Costs(arithmetic=1.21, shared=1.13, loads=0.8, latency=1.08, memory=0.64, idle=-0.95, draw=1.93, crowd=0.06),
    "wgmma": Costs(
        arithmetic=0.83,
        loads=0.38,
        latency=2.16,
        barriers=0.61,
        stores=1.25,
        memory=0.84,
        idle=0.3,
        pause=1.7,
        draw=0.49,
        hide=0.8,
        crowd=0.64,
    ),
    "wgmma, ping-pong": Costs(
        arithmetic=0.53, loads=0.38, latency=1.22, barriers=0.82, stores=0.78, memory=0.97, idle=1.94, pause=1.78, draw=0.85, hide=0.97
    ),
    "wgmma, clusters along k": Costs(
        arithmetic=0.62, loads=0.43, latency=0.96, barriers=1.27, stores=0.56, memory=0.78, idle=0.29, draw=0.54, hide=0.97, crowd=0.56
    ),
    "planes by wgmma": Costs(arithmetic=1.05, loads=0.56, barriers=1.19, stores=1.49, memory=0.84, idle=-0.03, draw=0.89, crowd=0.18),
    "planes by wgmma, clusters along k": Costs(arithmetic=1.28, loads=0.62, stores=0.96, memory=1.06, idle=0.61, crowd=0.26),
    "planes of rows split in the mainloop": Costs(
        arithmetic=1.4, loads=0.5, latency=0.24, barriers=0.2, stores=1.11, memory=1.15, idle=-1.0, draw=0.9, hide=0.8, crowd=1.0
    ),
    "mma": Costs(
        arithmetic=0.78,
        shared=1.05,
        loads=0.48,
        latency=1.27,
        barriers=1.1,
        stores=0.78,
        memory=1.1,
        begin=0.0,
        idle=1.9,
        pause=1.91,
        draw=0.77,
        hide=1.12,
    ),
    "mma, direct": Costs(arithmetic=1.59, loads=0.38, latency=0.39, stores=1.5, memory=0.78, begin=0.0, idle=0.19, hide=4.0),
    "mma, vectors": Costs(arithmetic=1.57, loads=0.5, latency=0.76, memory=0.89, begin=1.03, idle=0.34, hide=2.33),
    "planes by mma": Costs(arithmetic=1.55, loads=0.94, stores=1.03, idle=0.13, hide=1.12),
    "copies": Costs(loads=1.47, latency=0.94, stores=1.39, memory=0.82, idle=1.03, crowd=0.1),
    "splits": Costs(loads=0.79, latency=0.7, barriers=0.97, stores=0.63, memory=0.71, idle=-0.5, draw=1.4),
    "repairs": Costs(latency=0.87, idle=-0.95),
    "sum of slices": Costs(loads=0.73, latency=0.8, stores=1.14, idle=0.65, crowd=0.28),
}
"""Costs of each kind of kernel, calibrated on some 550 products in float32 and bfloat16 that seeded generators drew, and on the problems of
the tuned table, on an H200 with 10 to 60 instances each (``measurements/choice.py``): so that what the model picks is the best.
Those of rows that are split in the mainloop: on 18 products of 16 to 256 rows on an H100 (``measurements/f32_split.md``), within 11%, and
the best instance of each."""
STORES = {
    "wgmma, boxes": 1.11,
    "wgmma, pairs": 5.18,
    "wgmma, elements": 6.66,
    "wgmma, turned": 4.7,
    "wgmma, partial": 1.76,
    "mma, pairs": 1.62,
    "mma, rows": 1.77,
    "mma, elements": 8.57,
    "mma, partial": 0.72,
    "mma, vectors of 8": 1.0,
    "mma, vectors of 4": 1.2,
    "mma, vectors of 2": 1.8,
    "planes by wgmma, scaled": 1.98,
    "planes by wgmma, partial": 1.76,
    "planes by mma, scaled": 1.03,
}
"""Time of stores of results, over that of their bytes in whole lines, by the instructions that multiply and the way of storing."""
SCATTERED_READS = 2.5
"""Time of reading what is added to results that `wgmma` leaves in pairs or elements, over that of storing these: 16 times of an H200 with
bias, residual and ReLU (128 rows, six instances that compute columns) are predicted within 17%, where they were 31% off without it."""


def work(plan: GemmPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
    """The launches of one problem."""
    m, n, k, batch = problem["m"], problem["n"], problem["k"], problem.get("batch", 1)
    groups = problem.get("groups", 1)
    tiles = ceil_div(m, plan.tile_m) * ceil_div(n, plan.tile_n) * batch
    if plan.grouped:
        # A group's last tile has half of its rows on average; groups of warps without rows let it pass.
        parts = plan.loop.consumers if isinstance(plan.loop, WarpgroupLoop) and plan.loop.skips_rows else 1
        lost = UNFILLED + (1 - UNFILLED) * (parts + 1) / (2 * parts) - 0.5
        tiles = (ceil_div(m, plan.tile_m) + round(groups * lost)) * ceil_div(n, plan.tile_n)
    a, b, c = plan.matrix_a, plan.matrix_b, plan.matrix_c
    factors = float(m * k * a.element_bytes * (batch if problem.get("stride_a", 1) else 1))
    factors += float(k * n * b.element_bytes * (batch * groups if problem.get("stride_b", 1) else 1))
    reads = (plan.spec.beta == "argument") + len(plan.residuals)
    result = float(m * n * batch * c.element_bytes * (1 + reads))
    tile_result = result / max(1, tiles)
    loop = plan.loop
    if isinstance(loop, WarpLoop) and loop.vectors is not None:
        return (_vectors_work(plan, loop, problem, tiles, (factors, result, tile_result)),)
    if isinstance(loop, WarpLoop) and loop.direct:
        return (_direct_work(plan, loop, problem, tiles, (factors, result, tile_result)),)
    if isinstance(loop, WarpLoop):
        return _warp_mma_work(plan, loop, problem, tiles, (factors, result, tile_result))
    if isinstance(loop, WarpgroupLoop):
        return _tensor_core_work(plan, loop, problem, tiles, (factors, result, tile_result))
    if isinstance(loop, VectorLoop):
        return (_vector_work(plan, loop, problem, (factors, result, tile_result)),)
    if not isinstance(loop, TiledLoop):
        step = NAIVE_STEP
        loads = float((plan.tile_m + plan.tile_n) * step * FLOAT_BYTES) * 2
        work = Work(
            tiles,
            plan.threads,
            40,
            0,
            k / step,
            2.0 * plan.tile_m * plan.tile_n * step,
            "fp32",
            4.0,
            0.0,
            loads,
            1.0,
            tile_result,
            factors + result,
        )
        return (work,)
    steps = ceil_div(k, loop.tile_k)
    scheme, slices = plan.spec.decomposition.scheme, problem.get("slices", plan.slices)
    groups = loop.k_groups
    blocks, own_steps, stored, turns = tiles, float(ceil_div(steps, slices * groups)), tile_result, 1
    partial = float(m * n * batch * FLOAT_BYTES) / max(1, tiles)
    if isinstance(plan.spec.decomposition, StreamK):
        blocks = min(plan.spec.decomposition.blocks * batch, max(1, tiles * steps))
        own_steps = tiles * steps / blocks
        stored = partial * 2 + tile_result
        turns = 2
    elif slices > 1 or plan.cut_at_launch:
        blocks = tiles * slices
        stored = partial if scheme == "split_k_parallel" else 2 * partial
        turns = slices if scheme == "split_k_serial" else 1
    if plan.exchange is None and plan.store == "finished":
        # Lanes whose stores are narrower than what lies side by side fill lines in several goes.
        stored *= max(1.0, loop.minor.fragment.vector / plan.vector_c)
    warps = plan.threads // WARP_THREADS
    tile = plan.spec.mainloop.tile
    fma = tile.thread.m * tile.thread.n * loop.tile_k
    wavefronts = loop.wavefronts_per_step
    shared = sum(access.per_step for access in loop.accesses)
    copies = sum(o.copy.passes * (o.copy.vector if o.is_async and not o.mn_major else 1) for o in loop.copied)
    guards = 3 * copies * (sum(o.guards_rows or o.guards_columns for o in loop.copied) > 0)
    loaded = (_held(m, plan.tile_m) * a.element_bytes + _held(n, plan.tile_n) * b.element_bytes) * loop.tile_k * groups
    main = Work(
        blocks=blocks,
        threads=plan.threads,
        registers=registers(plan, loop),
        shared_bytes=plan.shared_bytes,
        steps=own_steps,
        operations=2.0 * plan.tile_m * plan.tile_n * loop.tile_k * groups,
        unit="fp32",
        issue=1.0 + (shared + 2 * copies + guards + 8) / fma,
        shared_clocks=float(wavefronts * warps),
        loaded_bytes=loaded,
        in_flight=float(max(1, loop.stages - 1)),
        stored_bytes=stored,
        memory_bytes=factors + (0.0 if scheme == "split_k_parallel" else result),
        turns=turns,
        costs=COSTS[_tiled_kind(plan, min(a.element_bytes, b.element_bytes))],
    )
    if scheme != "split_k_parallel":
        return (main,)
    return main, _reduction_work(plan, problem, result, c.element_bytes * (1 + reads))


def _held(extent: int, tile: int) -> float:
    """Rows or columns of a tile that exist, on average."""
    return extent / max(1, ceil_div(extent, tile))


def _shared_loads(sharers: int) -> float:
    """Time of loading a tile that so many blocks share, over that of a block's own."""
    return 1 - MULTICAST * (1 - 1 / sharers)


def _boxed(tile_bytes: int, extent: int, tile: int) -> float:
    """Bytes of a tile that the copy engine brings, those that it fills counted as what they cost."""
    held = _held(extent, tile) / tile
    return tile_bytes * (held + FILLED * (1 - held))


def registers(plan: GemmPlan, loop: TiledLoop | VectorLoop | WarpLoop | WarpgroupLoop) -> int:
    """Registers of a thread, an estimate within what the spec allows."""
    if isinstance(loop, WarpLoop):
        return min(255, loop.estimated_registers, 65536 // (loop.threads * loop.min_blocks_per_sm) // 8 * 8)
    if isinstance(loop, WarpgroupLoop):
        return min(255, 65536 // (loop.threads * loop.min_blocks_per_sm) // 8 * 8)
    limit = 65536 // (plan.threads * loop.min_blocks_per_sm) // 8 * 8
    return max(32, min(255, limit, estimated_registers(loop) if isinstance(loop, VectorLoop) else loop.estimated_registers))


def _vector_work(plan: GemmPlan, loop: VectorLoop, problem: Mapping[str, int], moved: tuple[float, float, float]) -> Work:
    """The launch of a kernel for few columns; ``moved``: bytes of A and B, of C, and of a tile of C."""
    factors, result, tile_result = moved
    slices = problem.get("slices", 1)
    tiles = ceil_div(problem["m"], loop.tile_m) * ceil_div(problem["n"], loop.columns) * problem.get("batch", 1)
    step = loop.step * loop.unroll
    own_k = ceil_div(problem["k"], slices)
    a, b = plan.matrix_a, plan.matrix_b
    again = ceil_div(problem["n"], loop.columns) - 1
    sums = float(loop.elements * FLOAT_BYTES) if slices > 1 else 0.0
    values = loop.rows * loop.vector
    loads = values / loop.width_a + loop.columns * loop.vector / loop.width_b
    converted = values * (a.element_bytes == 2) + loop.columns * loop.vector * (b.element_bytes == 2)
    warps = plan.threads // WARP_THREADS
    costs = COSTS[_vector_kind(loop, min(a.element_bytes, b.element_bytes))]
    # How many blocks draw all that the memory gives, depends on what each has on its way.
    ahead = plan.threads * loop.unroll * values * a.element_bytes
    # The last block of a tile reads the sums of all slices, several at a time.
    rounds = ceil_div(slices, loop.summers * SLICES_AT_ONCE) * ceil_div(loop.elements * loop.summers, loop.sum_width * plan.threads)
    meeting = 2 * rounds if slices > 1 else 0
    # Along k, where a step is short, its costs are calibrated with those rounds as steps; along m they are latencies of memory.
    more_steps, more_idle = (meeting, 0) if loop.along == "k" else (0, meeting)
    return Work(
        blocks=tiles * slices,
        threads=plan.threads,
        registers=registers(plan, loop),
        shared_bytes=plan.shared_bytes,
        steps=float(max(1, ceil_div(own_k, step)) + more_steps),
        operations=2.0 * loop.elements * step,
        unit="fp32",
        issue=1.0 + (loads + converted + 4) / (values * loop.columns),
        shared_clocks=_lines(plan, loop, problem["n"], problem["k"]) * loop.unroll * warps,
        loaded_bytes=float(step * (loop.rows_read * a.element_bytes * _sectors(plan, loop) + loop.columns * b.element_bytes)),
        # Where B is not read ahead, every vector of A waits for its own, from the L2 if the teams read different parts.
        in_flight=1.0 if loop.reads_b_ahead or loop.stages_b else 1.0 / (1.0 + loop.unroll * WAIT_FOR_B[loop.along]),
        stored_bytes=tile_result + sums * 2,
        memory_bytes=factors * (1 + LEFT_IN_L2 * again) + result,
        turns=2 if slices > 1 else 1,
        early=plan.spec.early_launch,
        costs=replace(costs, draw=costs.draw * DRAWING_BYTES / ahead, idle=costs.idle + more_idle),
    )


def _vector_kind(loop: VectorLoop, element_bytes: int) -> str:
    """Name of a kernel for few columns in the table of costs."""
    if element_bytes < FLOAT_BYTES:
        return f"vector along {loop.along}, 16 bits"
    if loop.lanes == 1:
        return "vector, a thread for a row"
    return f"vector along {loop.along}{', B in shared memory' if loop.stages_b else ''}"


def _sectors(plan: GemmPlan, loop: VectorLoop) -> float:
    """Bytes of the sectors that a team reads of a column of A, over those of its rows: more where they begin within a sector."""
    if loop.along == "k":
        return 1.0
    bytes_of_team = loop.lanes * loop.rows * plan.matrix_a.element_bytes
    begins = loop.grain if loop.shifted else plan.matrix_a.alignment
    return 1.0 + max(0, SECTOR_BYTES - begins * plan.matrix_a.element_bytes) / bytes_of_team


def _lines(plan: GemmPlan, loop: VectorLoop, n: int, k: int) -> float:
    """Lines of the L1 that a warp's loads for one step touch, one in a clock cycle."""
    a, b = plan.matrix_a, plan.matrix_b
    loads_a, loads_b = loop.rows * loop.vector / loop.width_a, loop.columns * loop.vector / loop.width_b
    if loop.along == "m":
        return loads_a * max(1.0, WARP_THREADS * loop.width_a * a.element_bytes / LINE_BYTES) + loads_b
    lanes = min(WARP_THREADS, loop.lanes)
    teams = WARP_THREADS // lanes
    # Rows of different teams lie apart; where a matrix is not contiguous along k, lanes are as far apart as it is wide.
    wide_a = lanes * loop.width_a * a.element_bytes if a.row_major else lanes * loop.vector * loop.rows * a.element_bytes / teams
    wide_b = lanes * loop.vector * (n * b.element_bytes if b.row_major else b.element_bytes)
    if lanes == 1:  # threads lie side by side, and all read the same of B, which goes to the registers of each
        wide_a = WARP_THREADS * (min(LINE_BYTES, loop.rows * k * a.element_bytes) if a.row_major else loop.width_a * a.element_bytes)
        wide_b = WARP_THREADS * loop.width_b * b.element_bytes
        return loads_a * max(1.0, wide_a / LINE_BYTES) + loads_b * max(1.0, wide_b / LINE_BYTES)
    return loads_a * max(1.0, wide_a / LINE_BYTES) * teams + loads_b * max(1.0, min(lanes, wide_b / LINE_BYTES))


def _reduction_work(plan: GemmPlan, problem: Mapping[str, int], result: float, element_bytes: int) -> Work:
    """The kernel that adds up the slices of k."""
    reduction = plan.sequence.launches[plan.reduction_launch]
    grid = reduction.grid_of(problem)
    elements = reduction.threads // plan.reduction_groups * 4
    return Work(
        grid[0] * grid[1] * grid[2],
        reduction.threads,
        REDUCTION_REGISTERS,
        0,
        ceil_div(problem.get("slices", plan.slices), plan.reduction_groups),
        0.0,
        "fp32",
        1.0,
        0.0,
        float(elements * FLOAT_BYTES * plan.reduction_groups),
        4.0,
        float(elements * element_bytes),
        result,
        follows=True,
        early=reduction.programmatic,
        costs=COSTS["sum of slices"],
    )


@dataclass(frozen=True)
class _Share:
    """A grid, and the work of its busiest block."""

    blocks: int
    steps: float
    results: float
    joins: float = 0.0
    """Sums that it collects from other blocks, one after the other."""
    left: float = 0.0
    """Sums that it leaves behind."""
    pauses: float = 0.0
    """Results, where the time between two of them is longer than that of a persistent grid; else 0."""


def _compensation(planes: PlanesPlan) -> float:
    """Cost of keeping the errors of additions, over the time of products."""
    return COMPENSATION_ISSUE * 3 / planes.scheme.products if planes.compensated else 0.0


def _share(plan: GemmPlan, loop: WarpgroupLoop | WarpLoop, works: int, depth: int) -> _Share:
    """The distribution of ``works`` pieces of ``depth`` steps each over blocks."""
    division = plan.spec.decomposition
    if isinstance(division, StreamK):
        return _streamed(works, depth, division.blocks)
    blocks = min(works, loop.persistent_blocks) if loop.persistent_blocks else works
    if not blocks:
        return _Share(0, float(depth), 1.0)
    # The last tiles of blocks that take the next one each do not come at the same time.
    results = max(1.0, works / blocks + 0.5) if loop.dynamic else float(ceil_div(works, blocks))
    return _Share(blocks, depth * results, results)


def _streamed(tiles: int, depth: int, blocks: int) -> _Share:
    """Stream-K on tensor cores: the last tiles' steps are distributed evenly, the others are whole."""
    shared = min(tiles, tiles % blocks + blocks) if tiles % blocks else 0
    whole = (tiles - shared) // blocks
    own = ceil_div(shared * depth, blocks)
    if not own:
        return _Share(blocks if whole else 0, float(depth * whole), float(whole))
    cut = own % depth > 0
    joins = float(ceil_div(depth, own) - (depth % own == 0)) if cut else 0.0
    results = 1 + (ceil_div(own, depth) + whole - 1) * STREAMED_PAUSE
    return _Share(min(blocks, shared * depth), float(own + whole * depth), float(ceil_div(own, depth) + whole), joins, float(cut), results)


def _tensor_core_work(
    plan: GemmPlan, loop: WarpgroupLoop, problem: Mapping[str, int], tiles: int, moved: tuple[float, float, float]
) -> tuple[Work, ...]:
    """The launches of a GEMM on tensor cores; ``moved``: bytes of A and B, of C, and of a tile of C."""
    factors, result, tile_result = moved
    partial = plan.store == "partial"
    clustered = loop.sharers > 1
    tiles_m, tiles_n = (ceil_div(problem[axis], tile) for axis, tile in (("m", loop.tile_m), ("n", loop.tile_n)))
    if clustered and tiles and not plan.grouped:
        tiles = tiles // (tiles_m * tiles_n) * ceil_div(tiles_m, loop.cluster_m) * ceil_div(tiles_n, loop.cluster_n) * loop.sharers
    parts = problem.get("slices", plan.slices) * loop.cluster_k
    works = tiles * parts
    share = _share(plan, loop, works, max(1, ceil_div(ceil_div(problem["k"], loop.tile_k), parts)))
    results = max(1.0, share.results)
    sums = float(loop.tile_m * loop.tile_n * FLOAT_BYTES)
    stored = float(problem["m"] * problem["n"] * problem.get("batch", 1) * FLOAT_BYTES) / max(1, tiles) if partial else tile_result
    scattered = plan.fragment_store in ("pairs", "elements")
    # In ping-pong, a group stores while the other multiplies, if the copy engine does.
    hidden = loop.ping_pong and plan.fragment_store in ("boxes", "partial")
    compensation = 0.0 if plan.planes is None else _compensation(plan.planes)
    kind = "wgmma" if plan.planes is None else "planes by wgmma"
    added = SCATTERED_READS * len(plan.residuals) if scattered else 0.0
    main = Work(
        blocks=share.blocks,
        threads=loop.threads,
        registers=min(255, 65536 // (loop.threads * loop.min_blocks_per_sm) // 8 * 8),
        shared_bytes=plan.shared_bytes,
        steps=share.steps,
        operations=2.0 * loop.tile_m * loop.tile_n * loop.tile_k,
        unit=plan.unit,
        issue=1.0 + (PROMOTION_ISSUE * loop.blocks_n if loop.promote_steps else compensation),
        shared_clocks=0.0,
        loaded_bytes=_boxed(loop.a.tile_bytes, problem["m"], loop.tile_m) * _shared_loads(loop.cluster_n)
        + _boxed(loop.b.tile_bytes, problem["n"], loop.tile_n),
        in_flight=float(loop.stages),
        stored_bytes=STORES[f"{kind}, {plan.fragment_store}"] * stored * (1 + added) * (1 if hidden else results)
        + (sums if loop.cluster_k > 1 else 0.0)
        + STORES["wgmma, partial"] * sums * (share.joins + share.left),
        memory_bytes=factors + (0.0 if partial else result),
        turns=2 if loop.cluster_k > 1 else 1 + share.joins,
        early=plan.spec.early_launch,
        results=results,
        costs=_of_few(COSTS[_kind(kind, loop)], problem),
    )
    if plan.copied is not None:
        return _copy_work(plan, plan.copied, problem), replace(main, follows=True)
    reads = (plan.spec.beta == "argument") + len(plan.residuals)
    reduction = (_reduction_work(plan, problem, result, plan.matrix_c.element_bytes * (1 + reads)),) if partial else ()
    if plan.planes is not None:
        return _around_planes(plan, plan.planes, problem, (main, *reduction))
    return main, *reduction


def _tiled_kind(plan: GemmPlan, element_bytes: int) -> str:
    """Name of a tiled kernel in the table of costs."""
    if element_bytes < FLOAT_BYTES:
        return "tiled, 16 bits"
    return "tiled, narrow" if plan.tile_n <= NARROWEST else "tiled"


def _of_few(costs: Costs, problem: Mapping[str, int]) -> Costs:
    """Costs on tensor cores, those of few rows or columns included."""
    if min(problem["m"], problem["n"]) > FEW:
        return costs
    slower = {name: getattr(costs, name) * OF_FEW for name in ("memory", "loads", "latency")}
    return replace(costs, **slower)


def _kind(kind: str, loop: WarpgroupLoop) -> str:
    """Name of a kind of kernel in the table of costs, how its blocks and groups divide the work included."""
    if loop.split_registers:
        return "planes of rows split in the mainloop"
    if loop.cluster_k > 1:
        return f"{kind}, clusters along k"
    return f"{kind}, ping-pong" if loop.ping_pong and kind == "wgmma" else kind


def _copy_work(plan: GemmPlan, copied: CopyPlan, problem: Mapping[str, int]) -> Work:
    """The kernel that copies factors first."""
    launch = plan.sequence.launches[0]
    grid = launch.grid_of(problem)
    blocks = grid[0] * grid[1] * grid[2]
    moved = 2.0 * problem.get("batch", 1) * problem["k"]
    moved *= sum(problem[factor.extent] * factor.matrix.element_bytes for factor in copied.factors)
    each = moved / max(blocks, 1) / 2
    return Work(
        blocks,
        launch.threads,
        COPY_REGISTERS,
        0,
        1.0,
        0.0,
        "fp32",
        1.0,
        0.0,
        each,
        4.0,
        each,
        moved,
        early=plan.spec.early_launch,
        costs=COSTS["copies"],
    )


def _warp_mma_work(
    plan: GemmPlan, loop: WarpLoop, problem: Mapping[str, int], tiles: int, moved: tuple[float, float, float]
) -> tuple[Work, ...]:
    """The launches of a GEMM whose warps multiply fragments; ``moved``: bytes of A and B, of C, and of a tile of C."""
    factors, result, tile_result = moved
    partial = plan.store == "partial"
    slices = problem.get("slices", plan.slices)
    share = _share(plan, loop, tiles * slices, max(1, ceil_div(ceil_div(problem["k"], loop.tile_k), slices)))
    results = max(1.0, share.results)
    sums = float(loop.tile_m * loop.tile_n * FLOAT_BYTES)
    operations = 2.0 * loop.tile_m * loop.tile_n * loop.tile_k
    warps = loop.threads // WARP_THREADS
    copies = sum(o.passes * (1 if o.is_async else NARROW_COPY) * (o.vector if o.turned else 1) for o in (loop.a, loop.b))
    products = 1 if plan.planes is None else plan.planes.scheme.products
    busy = loop.a.planes * copies * COPY_INSTRUCTIONS * warps / 4
    busy /= products * operations / MMA_OPERATIONS_PER_CLOCK * loop.a.element_bytes / 2
    compensation = 0.0 if plan.planes is None else _compensation(plan.planes)
    read = (loop.warp_m + loop.warp_n) * loop.tile_k * loop.a.element_bytes * loop.a.planes * warps
    stored = float(problem["m"] * problem["n"] * problem.get("batch", 1) * FLOAT_BYTES) / max(1, tiles) if partial else tile_result
    kind = "mma" if plan.planes is None else "planes by mma"
    main = Work(
        blocks=share.blocks,
        threads=loop.threads,
        registers=registers(plan, loop),
        shared_bytes=plan.shared_bytes,
        steps=share.steps,
        operations=operations,
        unit=plan.unit,
        issue=1.0 + busy + compensation,
        shared_clocks=(read + loop.a.tile_bytes + loop.b.tile_bytes) / SHARED_BYTES_PER_CLOCK,
        loaded_bytes=loop.a.tile_bytes * _held(problem["m"], loop.tile_m) / loop.tile_m
        + loop.b.tile_bytes * _held(problem["n"], loop.tile_n) / loop.tile_n,
        in_flight=float(loop.stages - 1),
        stored_bytes=STORES[f"{kind}, {plan.fragment_store}"] * stored * results * max(1.0, loop.sums / STORED_AT_ONCE)
        + STORES["mma, partial"] * sums * (share.joins + share.left),
        memory_bytes=factors + (0.0 if partial else result),
        turns=1 + share.joins,
        early=plan.spec.early_launch,
        results=max(results, share.pauses),
        costs=_of_few(COSTS[kind], problem),
    )
    if plan.planes is not None:
        return _around_planes(plan, plan.planes, problem, (main,))
    reads = (plan.spec.beta == "argument") + len(plan.residuals)
    return (main, _reduction_work(plan, problem, result, plan.matrix_c.element_bytes * (1 + reads))) if partial else (main,)


def _direct_work(plan: GemmPlan, loop: WarpLoop, problem: Mapping[str, int], tiles: int, moved: tuple[float, float, float]) -> Work:
    """A GEMM whose warps read fragments from global memory; ``moved``: bytes of A and B, of C, and of a tile of C."""
    factors, result, tile_result = moved
    reads = [words * o.fragments * (1 if o.reads_words else READ_ONE_BY_ONE) for o, words in ((loop.a, 4), (loop.b, 2))]
    warp_operations = 2.0 * loop.tile_m * loop.tile_n * loop.tile_k
    clocks = warp_operations / MMA_OPERATIONS_PER_CLOCK * SCHEDULERS
    read = _held(problem["m"], loop.tile_m) + _held(problem["n"], loop.tile_n)
    return Work(
        blocks=ceil_div(tiles, loop.own_tiles),
        threads=loop.threads,
        registers=min(255, loop.estimated_registers),
        shared_bytes=plan.shared_bytes,
        steps=float(max(1, ceil_div(problem["k"], loop.tile_k))),
        operations=warp_operations * loop.own_tiles,
        unit=plan.unit,
        issue=1.0 + sum(reads) * loop.parts * READ_INSTRUCTIONS / clocks,
        shared_clocks=sum(reads) * loop.parts * loop.own_tiles * READ_WAVEFRONTS,
        loaded_bytes=read * loop.tile_k * loop.a.element_bytes * loop.own_tiles,
        in_flight=1.0,
        stored_bytes=STORES[f"mma, {plan.fragment_store}"] * tile_result * loop.own_tiles,
        memory_bytes=factors + result,
        early=plan.spec.early_launch,
        costs=COSTS["mma, direct"],
    )


def _vectors_work(plan: GemmPlan, loop: WarpLoop, problem: Mapping[str, int], tiles: int, moved: tuple[float, float, float]) -> Work:
    """A GEMM whose warps keep B and go through rows of A; ``moved``: bytes of A and B, of C, and of a tile of C."""
    assert loop.vectors is not None
    factors, result, tile_result = moved
    blocks = min(ceil_div(tiles, loop.own_tiles), loop.persistent_blocks)
    rounds = float(ceil_div(tiles, max(1, blocks * loop.own_tiles)))
    warp_operations = 2.0 * loop.tile_m * loop.tile_n * loop.tile_k
    clocks = warp_operations / MMA_OPERATIONS_PER_CLOCK * SCHEDULERS
    # Warps keep B where all tiles have the same columns.
    again = problem["n"] > loop.tile_n or problem.get("batch", 1) > 1
    lines = _held(problem["m"], loop.tile_m) + (loop.tile_n if again else 0)
    words = (4 * loop.a.fragments + (2 * loop.b.fragments if again else 0)) * loop.parts
    narrow = 8 // (loop.vectors.along_k if loop.a.k_major else loop.vectors.rows)
    stores = loop.tile_m // BLOCK_COLUMNS * (loop.tile_n // (BLOCK_COLUMNS * loop.vectors.blocks_n))
    instructions = TILE_INSTRUCTIONS + WORD_INSTRUCTIONS * words * narrow + (STORE_INSTRUCTIONS + loop.vectors.columns) * stores
    return Work(
        blocks=blocks,
        threads=loop.threads,
        registers=registers(plan, loop),
        shared_bytes=plan.shared_bytes,
        steps=rounds,
        operations=warp_operations * loop.own_tiles,
        unit=plan.unit,
        issue=1.0 + instructions / clocks,
        shared_clocks=0.0,
        loaded_bytes=lines * problem["k"] * loop.a.element_bytes * loop.own_tiles,
        in_flight=1.0,
        stored_bytes=STORES[f"mma, vectors of {loop.vectors.columns}"] * tile_result * loop.own_tiles * rounds,
        memory_bytes=factors + result,
        early=plan.spec.early_launch,
        costs=COSTS["mma, vectors"],
    )


def _split_latencies(operand: PlaneOperand, k: int) -> float:
    """Latencies of memory that a thread waits for, one after the other, when it measures or splits its part of an operand."""
    if not operand.k_major:
        return SPLIT_COLUMN
    return k / (SPLIT_ROW * operand.vector / 4 * (SPLIT_THREADS / 32 if operand.row_of_block else 1))


def _around_planes(plan: GemmPlan, planes: PlanesPlan, problem: Mapping[str, int], product: tuple[Work, ...]) -> tuple[Work, ...]:
    """A product by planes and, if there are slices, their sum, with the kernels that split before it and the one that repairs after it."""
    k = problem["k"]
    around = []
    for index, kernel in enumerate(planes.kernels):
        grid = plan.sequence.launches[index].grid_of(problem)[0]
        read = float(sum(problem[operand.extent] * k * FLOAT_BYTES for operand in kernel.operands))
        writes = index == len(planes.kernels) - 1 or any(operand.k_major for operand in kernel.operands)
        written = read * planes.scheme.planes * planes.scheme.element_bytes / FLOAT_BYTES if writes else 0.0
        each = 1.0 / max(grid, 1)
        latencies = SPLIT_STEPS + max(_split_latencies(operand, k) for operand in kernel.operands)
        around.append(
            Work(
                grid,
                SPLIT_THREADS,
                SPLIT_REGISTERS,
                0,
                latencies,
                0.0,
                "fp32",
                1.0,
                0.0,
                read * each / latencies,
                1.0,
                written * each,
                SPLIT_READS * read + written,
                follows=index > 0,
                early=plan.spec.early_launch,
                costs=COSTS["splits"],
            )
        )
    tiles = plan.sequence.launches[-1].grid_of(problem)[0]
    checked = float(REPAIR_TILE * 2 * FLOAT_BYTES)
    repair = Work(
        tiles,
        REPAIR_THREADS,
        REPAIR_REGISTERS,
        0,
        1.0,
        0.0,
        "fp32",
        1.0,
        0.0,
        checked,
        1.0,
        0.0,
        checked * tiles,
        follows=True,
        early=plan.spec.early_launch,
        costs=COSTS["repairs"],
    )
    return (*around, *(replace(work, follows=True) for work in product), repair)


def cost(plan: GemmPlan, problem: Mapping[str, int]) -> Cost:
    """Two operations for each product, one crossing of the memory bus for each array."""
    m, n, k = (problem[name] for name in ("m", "n", "k"))
    reads_c = plan.spec.beta == "argument"
    moved = m * k * plan.matrix_a.element_bytes + k * n * plan.matrix_b.element_bytes * problem.get("groups", 1)
    results = m * n * plan.matrix_c.element_bytes * (1 + reads_c + len(plan.residuals))
    batch = problem.get("batch", 1)
    special = float(batch * m * n * sum(step.operation.special for step in plan.epilogue))
    return Cost(2.0 * batch * m * n * k, float(batch * (moved + results)), plan.unit, special)


def fetches(plan: GemmPlan, problem: Mapping[str, int]) -> tuple[Fetch, ...]:
    """A once for each column of tiles and B once for each row of them, m n k (1/tile_m + 1/tile_n) elements in all, but once for a
    cluster that shares them; C, and what is added to it, once."""
    m, n, k = (problem[name] for name in ("m", "n", "k"))
    batch = problem.get("batch", 1)
    tile_m, tile_n = (1, min(plan.tile_n, WARP_THREADS)) if isinstance(plan.loop, NaiveLoop) else (plan.tile_m, plan.tile_n)
    cluster = plan.spec.mainloop.cluster if isinstance(plan.loop, WarpgroupLoop) else None
    across, down = (cluster.n, cluster.m) if cluster else (1, 1)
    results = 1.0 + (plan.spec.beta == "argument")
    found = [
        Fetch("A", float(batch * m * k * plan.matrix_a.element_bytes), ceil_div(n, tile_n * across)),
        Fetch("B", float(batch * k * n * plan.matrix_b.element_bytes * problem.get("groups", 1)), ceil_div(m, tile_m * down)),
        Fetch("C", float(batch * m * n * plan.matrix_c.element_bytes), results),
    ]
    if plan.grouped:  # each group's rows meet its own B
        found[1] = Fetch("B", found[1].bytes, max(1.0, found[1].times / max(1, problem["groups"])))
    found += [Fetch(matrix.name, float(batch * m * n * matrix.element_bytes), 1.0) for matrix in plan.residuals]
    return tuple(found)


def executed_operations(plan: GemmPlan, problem: Mapping[str, int]) -> float:
    """The operations of ``cost`` with those on padding, where tiles that reach beyond the problem are computed whole."""
    tile_k = plan.loop.tile_k if isinstance(plan.loop, TiledLoop | WarpgroupLoop | WarpLoop) else 1
    tiles = {"m": plan.tile_m, "n": plan.tile_n, "k": tile_k}
    return cost(plan, {**problem, **{name: round_up(problem[name], tile) for name, tile in tiles.items()}}).operations


def peer(plan: GemmPlan, problem: Mapping[str, int], arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> Peer | str:
    """The fastest algorithm of cuBLASLt for the same product; the reason, in words, if there is none."""
    return gemm_peer(plan, arrays, scalars)
