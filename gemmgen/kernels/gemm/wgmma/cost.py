"""The work of a GEMM by warpgroups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of, store_costs
from gemmgen.kernels.gemm.launch_costs import FLOAT_BYTES, Moved, held, reduction_work, scattered
from gemmgen.kernels.gemm.tensor_cores.cost import Pace, of_few, share_of
from gemmgen.kernels.gemm.wgmma.copied import CopyPlan
from gemmgen.kernels.gemm.wgmma.plan import WgmmaPlan
from gemmgen.kernels.gemm.wgmma.scaled import BLOCK_K
from gemmgen.kernels.launch import CLUSTERED
from gemmgen.kernels.math.warpgroup import WarpgroupLoop
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.requests import MAX_ALIGNMENT

COPY_REGISTERS = 40
SECTOR_BYTES = 32
PROMOTION_ISSUE = 0.06
"""Issue time of promotions of 8-bit floats, whose sums leave the tensor core."""
SCALED_OPERATIONS = 1.1e6
"""Operations in whose time a step's block scales are read and multiplied: products with scales took 1.16 times as long as without them on
an H200 by tiles of 128 x 176, 1.08 by 128 x 256, 1.3 to 1.7 by 64 x 32."""
WAITING_OPERATIONS = 2.2e6
"""Operations for these where the tensor cores wait for them: one block on an SM, one set of products, all columns of a tile. 1024 x 7424 x
11648 took 190 us by 128 x 152 on an H200, 158 by halves of 128 x 256."""
THREE_GROUPS_OPERATIONS = 0.6e6
"""Operations for a step's block scales in tiles of three groups, two of which keep the tensor cores busy while one scales:
4096 x 24576 x 1536 took 256 us by tiles of 192 x 128 on an H200, 241 without scales."""
UNEVEN_OPERATIONS = 0.6e6
"""Operations for these, besides, where halves of a tile's columns are in several blocks of scales. 4096 x 24576 x 1536 took 304 us by tiles
of 128 x 224 on an H200, 287 by 128 x 256."""
FILLED = 4.6
"""Time of a row of a box that lies beyond the matrix, over that of one that exists: 1 x 4096 x 11008 of bytes takes 20 us by tiles of 64
rows on an H200, 64 x 4096 x 11008 takes 14."""
MULTICAST = 0.2
"""Part of the time of loading a tile of A that blocks which share it are spared: 520 x 4096 x 4096 takes 28.5 us on an H200 by pairs, 34.6
by blocks for themselves, 400 x 4096 x 11008 51.9 and 53.3. Blocks that share a tile of B gained nothing."""
ODD_ROWS = 2.5
"""Time of loading a tile whose rows begin at odd multiples of 16 bytes, over that of one whose rows begin at multiples of 32: TMA loads
53 GB/s on an SM of an H200. In bfloat16, 4096 x 4096 x 4040 took 233 us by tiles of 128 x 256, and 333 by 128 x 112; 4096 x 4096 x 4032
took 206 and 199. Promotion to other lines of the L2, or to none, made it no faster. Each of two blocks of a cluster loads half of a shared
tile: 512 x 4096 x 4040 took 32.6 us by pairs of blocks that share tiles of A, 41.8 without, and 4096 x 4096 x 4040 took 205. Clusters of
2 x 2 gained nothing."""
SCATTERED_READS = 2.5
"""Time of reading the operand that is added to results that `wgmma` leaves in pairs or elements, over that of storing these: 16 times of an
H200 with bias, residual and ReLU (128 rows, six instances that compute columns) are predicted within 17%, where they were 31% off
without it."""


def work(plan: WgmmaPlan, problem: Mapping[str, int], moved: Moved, pace: Pace | None = None) -> tuple[Work, ...]:
    """The launches of one problem."""
    loop, tiles, pace = plan.loop, moved.tiles, pace or Pace(costs_of(kind_of(plan.loop, "wgmma")), store_costs("wgmma"))
    partial = plan.store == "partial"
    clustered = loop.sharers > 1
    tiles_m, tiles_n = (ceil_div(problem[axis], tile) for axis, tile in (("m", loop.tile_m), ("n", loop.tile_n)))
    if clustered and tiles and not plan.grouped:
        tiles = tiles // (tiles_m * tiles_n) * ceil_div(tiles_m, loop.cluster_m) * ceil_div(tiles_n, loop.cluster_n) * loop.sharers
    parts = problem.get("slices", plan.slices) * loop.cluster_k
    works = tiles * parts
    share = share_of(plan, works, max(1, ceil_div(ceil_div(problem["k"], loop.tile_k), parts)), tiles_n if plan.grouped else 0)
    results = max(1.0, share.results)
    sums = float(loop.tile_m * loop.tile_n * FLOAT_BYTES)
    stored = float(problem["m"] * problem["n"] * problem.get("batch", 1) * FLOAT_BYTES) / max(1, tiles) if partial else moved.tile_result
    apart = plan.fragment_store in ("pairs", "elements")
    # In ping-pong, a group stores while the other multiplies, if TMA does.
    hidden = loop.ping_pong and plan.fragment_store in ("boxes", "partial")
    added = SCATTERED_READS * len(plan.residuals) if apart else 0.0
    waits = loop.product_sets == loop.blocks_n == loop.min_blocks_per_sm == 1
    scaled = THREE_GROUPS_OPERATIONS if loop.consumers > 2 else WAITING_OPERATIONS if waits else SCALED_OPERATIONS
    scaled += UNEVEN_OPERATIONS * (loop.blocks_n > 1 and loop.tile_n % BLOCK_K > 0)
    main = Work(
        blocks=spread(share.blocks, loop.cluster_blocks),
        threads=loop.threads,
        registers=plan.registers_per_thread,
        shared_bytes=plan.shared_bytes,
        steps=share.steps,
        operations=(1.0 if loop.sparse else 2.0) * loop.products * loop.tile_m * loop.tile_n * loop.tile_k,
        unit=plan.unit,
        issue=1.0
        + (PROMOTION_ISSUE * loop.blocks_n if loop.promote_steps else pace.compensation)
        + (scaled * loop.scale_blocks / (2.0 * loop.tile_m * loop.tile_n * loop.tile_k) if loop.scale_bytes else 0.0),
        shared_clocks=0.0,
        loaded_bytes=_boxed(loop.a.tile_bytes, problem["m"], loop.tile_m)
        * _shared_loads(loop.cluster_n)
        * odd_rows(_row_bytes(plan.matrix_a, problem), loop.cluster_n, loop.cluster_m)
        + _boxed(loop.b.tile_bytes, problem["n"], loop.tile_n)
        * odd_rows(_row_bytes(plan.matrix_b, problem), loop.cluster_m, loop.cluster_n)
        + loop.metadata_bytes,
        in_flight=float(loop.stages),
        stored_bytes=pace.stores[plan.fragment_store]
        * scattered(plan.fragment_store, plan.matrix_c.element_bytes)
        * stored
        * (1 + added)
        * (1 if hidden else results)
        + (sums if loop.cluster_k > 1 else 0.0)
        + store_costs("wgmma")["partial"] * sums * (share.joins + share.left),
        memory_bytes=moved.factors + (0.0 if partial else moved.result),
        turns=2 if loop.cluster_k > 1 else 1 + share.joins,
        early=plan.spec.early_launch,
        results=results,
        costs=of_few(pace.costs, problem),
    )
    if plan.copied is not None:
        return _copy_work(plan, plan.copied, problem), replace(main, follows=True)
    return (main, reduction_work(plan, problem, moved.result)) if partial else (main,)


def usable(sm_count: int, cluster_blocks: int) -> int:
    """Multiprocessors that clusters of so many blocks use at a time, a multiple of their size."""
    return sm_count * CLUSTERED[cluster_blocks] // CLUSTERED[1] // cluster_blocks * cluster_blocks


def spread(blocks: Any, cluster_blocks: int) -> Any:
    """Blocks, a number or a column, with those that would find room on the multiprocessors that their clusters leave empty."""
    return blocks * CLUSTERED[1] / CLUSTERED[cluster_blocks] if CLUSTERED[cluster_blocks] < CLUSTERED[1] else blocks


def kind_of(loop: WarpgroupLoop, kind: str) -> str:
    """Name of a kind of kernel in the table of costs, how its blocks and groups divide the work included."""
    if loop.cluster_k > 1:
        return f"{kind}, clusters along k"
    return f"{kind}, ping-pong" if loop.ping_pong and kind == "wgmma" else kind


def _shared_loads(sharers: int) -> float:
    """Time of loading a tile that so many blocks share, over that of a block's own."""
    return 1 - MULTICAST * (1 - 1 / sharers)


def _boxed(tile_bytes: int, extent: int, tile: int) -> float:
    """Bytes of a tile that TMA copies, with filled bytes counted at their cost."""
    own = held(extent, tile) / tile
    return tile_bytes * (own + FILLED * (1 - own))


def odd_rows(row_bytes: int, sharers: Any, others: Any) -> Any:
    """Time of loading a tile of a matrix with rows of so many bytes, over that of one of whole sectors; ``sharers``: blocks of a cluster
    that load a part of it each, and ``others`` along the cluster's other axis, numbers or columns."""
    import numpy as np

    if row_bytes % SECTOR_BYTES != MAX_ALIGNMENT:
        return 1.0
    return np.where((sharers == 2) & (others == 1), ODD_ROWS / 2, ODD_ROWS)


def _row_bytes(matrix: Matrix, problem: Mapping[str, int]) -> int:
    return problem.get(matrix.leading_dimension, 0) * matrix.element_bytes


def _copy_work(plan: WgmmaPlan, copied: CopyPlan, problem: Mapping[str, int]) -> Work:
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
        costs=costs_of("copies"),
    )
