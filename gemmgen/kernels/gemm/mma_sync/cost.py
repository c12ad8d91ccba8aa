"""The work of a GEMM by warps that multiply fragments."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of, store_costs
from gemmgen.kernels.gemm.launch_costs import FLOAT_BYTES, Moved, held, reduction_work
from gemmgen.kernels.gemm.mma_sync.loop import BLOCK_COLUMNS, FragmentVectors, WarpLoop
from gemmgen.kernels.gemm.mma_sync.plan import MmaSyncPlan
from gemmgen.kernels.gemm.tensor_cores.cost import Pace, of_few, share_of

NARROW_COPY = 6
"""Instructions of a copy through registers, over those of an asynchronous one: calibrated on 61 x 61 x 396480 and its kin."""
COPY_INSTRUCTIONS = 8.0
"""Registers of a thread for its copy to shared memory: source and target addresses, and bounds."""
MMA_OPERATIONS_PER_CLOCK = 2048.0
"""Operations of an SM per clock, on 16-bit types by `mma.sync`."""
SHARED_BYTES_PER_CLOCK = 128.0
READ_INSTRUCTIONS = 13.0
"""Instructions of a lane for a word of a fragment in global memory: whether and where it exists. Calibrated, as the next two and the
costs of this kind, on 57 small, shallow and other products in bfloat16 on an H100."""
READ_ONE_BY_ONE = 3.0
"""Instructions for two halves of a word that are read one by one, over those for a word."""
READ_WAVEFRONTS = 1.7
"""Clock cycles of the L1 for such a read of a warp, whose lanes meet a line for each of up to eight rows."""
SCHEDULERS = 4
"""Schedulers of an SM."""
TILE_INSTRUCTIONS = 60.0
"""Instructions of a lane that reads and stores vectors of fragments, for every tile: as the compiler makes them, with the next two."""
WORD_INSTRUCTIONS = 3.0
"""For every word of A."""
STORE_INSTRUCTIONS = 6.0
"""For every vector that it stores, beside the conversion of its elements."""
STORED_AT_ONCE = 64
"""Results of a thread of `mma.sync` beyond which stores take longer, since there are fewer warps to hide their latencies: 4097 x 4097 x 31
takes 27 us by eight warps to a tile of 128 x 128 on an H200, 47 by four."""
VECTOR_STORES = {8: 1.0, 4: 1.2, 2: 1.8}
"""Time of stores of vectors of so many neighbours, over that of their bytes in whole lines."""


def work(plan: MmaSyncPlan, problem: Mapping[str, int], moved: Moved, pace: Pace | None = None) -> tuple[Work, ...]:
    """The launches of one problem."""
    loop, tiles, pace = plan.loop, moved.tiles, pace or Pace(costs_of("mma"), store_costs("mma"))
    if loop.vectors is not None:
        return (_vectors_work(plan, loop, loop.vectors, problem, moved),)
    if loop.direct:
        return (_direct_work(plan, loop, problem, moved),)
    partial = plan.store == "partial"
    slices = problem.get("slices", plan.slices)
    share = share_of(plan, tiles * slices, max(1, ceil_div(ceil_div(problem["k"], loop.tile_k), slices)))
    results = max(1.0, share.results)
    sums = float(loop.tile_m * loop.tile_n * FLOAT_BYTES)
    operations = 2.0 * loop.products * loop.tile_m * loop.tile_n * loop.a.tile_k
    warps = loop.threads // WARP_THREADS
    copies = sum(o.products * o.passes * (1 if o.is_async else NARROW_COPY) * (o.vector if o.transposed else 1) for o in (loop.a, loop.b))
    busy = loop.a.planes * copies * COPY_INSTRUCTIONS * warps / 4
    busy /= pace.products * operations / MMA_OPERATIONS_PER_CLOCK * loop.a.element_bytes / 2
    read = (loop.warp_m + loop.products * loop.warp_n) * loop.tile_k * loop.a.element_bytes * loop.a.planes * warps
    stored = float(problem["m"] * problem["n"] * problem.get("batch", 1) * FLOAT_BYTES) / max(1, tiles) if partial else moved.tile_result
    main = Work(
        blocks=share.blocks,
        threads=loop.threads,
        registers=plan.registers_per_thread,
        shared_bytes=plan.shared_bytes,
        steps=share.steps,
        operations=operations,
        unit=plan.unit,
        issue=1.0 + busy + pace.compensation,
        shared_clocks=(read + loop.a.tile_bytes + loop.b.tile_bytes) / SHARED_BYTES_PER_CLOCK,
        loaded_bytes=loop.a.tile_bytes * held(problem["m"], loop.tile_m) / loop.tile_m
        + loop.b.tile_bytes * held(problem["n"], loop.tile_n) / loop.tile_n,
        in_flight=float(loop.stages - 1),
        stored_bytes=pace.stores[plan.fragment_store] * stored * results * max(1.0, loop.sums / STORED_AT_ONCE)
        + store_costs("mma")["partial"] * sums * (share.joins + share.left),
        memory_bytes=moved.factors + (0.0 if partial else moved.result),
        turns=1 + share.joins,
        early=plan.spec.early_launch,
        results=max(results, share.pauses),
        costs=of_few(pace.costs, problem),
    )
    return (main, reduction_work(plan, problem, moved.result)) if partial else (main,)


def _direct_work(plan: MmaSyncPlan, loop: WarpLoop, problem: Mapping[str, int], moved: Moved) -> Work:
    """A GEMM whose warps read fragments from global memory."""
    reads = [words * o.fragments * (1 if o.reads_words else READ_ONE_BY_ONE) for o, words in ((loop.a, 4), (loop.b, 2))]
    warp_operations = 2.0 * loop.tile_m * loop.tile_n * loop.tile_k
    clocks = warp_operations / MMA_OPERATIONS_PER_CLOCK * SCHEDULERS
    read = held(problem["m"], loop.tile_m) + held(problem["n"], loop.tile_n)
    return Work(
        blocks=ceil_div(moved.tiles, loop.own_tiles),
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
        stored_bytes=store_costs("mma")[plan.fragment_store] * moved.tile_result * loop.own_tiles,
        memory_bytes=moved.factors + moved.result,
        early=plan.spec.early_launch,
        costs=costs_of("mma, direct"),
    )


def _vectors_work(plan: MmaSyncPlan, loop: WarpLoop, vectors: FragmentVectors, problem: Mapping[str, int], moved: Moved) -> Work:
    """A GEMM whose warps keep B and go through rows of A."""
    tiles = moved.tiles
    blocks = min(ceil_div(tiles, loop.own_tiles), loop.persistent_blocks)
    rounds = float(ceil_div(tiles, max(1, blocks * loop.own_tiles)))
    warp_operations = 2.0 * loop.tile_m * loop.tile_n * loop.tile_k
    clocks = warp_operations / MMA_OPERATIONS_PER_CLOCK * SCHEDULERS
    # Warps keep B where all tiles have the same columns.
    again = problem["n"] > loop.tile_n or problem.get("batch", 1) > 1
    lines = held(problem["m"], loop.tile_m) + (loop.tile_n if again else 0)
    words = (4 * loop.a.fragments + (2 * loop.b.fragments if again else 0)) * loop.parts
    narrow = 8 // (vectors.along_k if loop.a.k_major else vectors.rows)
    stores = loop.tile_m // BLOCK_COLUMNS * (loop.tile_n // (BLOCK_COLUMNS * vectors.blocks_n))
    instructions = TILE_INSTRUCTIONS + WORD_INSTRUCTIONS * words * narrow + (STORE_INSTRUCTIONS + vectors.columns) * stores
    return Work(
        blocks=blocks,
        threads=loop.threads,
        registers=plan.registers_per_thread,
        shared_bytes=plan.shared_bytes,
        steps=rounds,
        operations=warp_operations * loop.own_tiles,
        unit=plan.unit,
        issue=1.0 + instructions / clocks,
        shared_clocks=0.0,
        loaded_bytes=lines * problem["k"] * loop.a.element_bytes * loop.own_tiles,
        in_flight=1.0,
        stored_bytes=VECTOR_STORES[vectors.columns] * moved.tile_result * loop.own_tiles * rounds,
        memory_bytes=moved.factors + moved.result,
        early=plan.spec.early_launch,
        costs=costs_of("mma, vectors"),
    )
