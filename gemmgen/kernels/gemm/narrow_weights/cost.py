"""The work of a GEMM with narrow weights: that of its tiles, by the bytes of packed weights. Not calibrated: no GPU has run it."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of, store_costs
from gemmgen.kernels.gemm.launch_costs import Moved, held, reduction_work
from gemmgen.kernels.gemm.narrow_weights.plan import NarrowPlan
from gemmgen.kernels.gemm.tensor_cores.cost import share_of

CONVERSION = 0.5
"""Instructions that make 16-bit fragments, over those that multiply them for one block of 16 rows."""
SHARED_BYTES_PER_CLOCK = 128.0


def work(plan: NarrowPlan, problem: Mapping[str, int], moved: Moved) -> tuple[Work, ...]:
    """The launches of one problem."""
    loop = plan.loop
    partial = plan.store == "partial"
    slices = problem.get("slices", plan.slices)
    share = share_of(plan, moved.tiles * slices, max(1, ceil_div(ceil_div(problem["k"], loop.tile_k), slices)))
    blocks_m = loop.warp_m // 16
    sums = float(loop.tile_m * loop.tile_n * 4)
    main = Work(
        blocks=share.blocks,
        threads=loop.threads,
        registers=plan.registers_per_thread,
        shared_bytes=plan.shared_bytes,
        steps=share.steps,
        operations=2.0 * loop.tile_m * loop.tile_n * loop.tile_k,
        unit=plan.unit,
        issue=1.0 + CONVERSION / blocks_m,
        shared_clocks=(loop.a.tile_bytes * (1 + loop.warps_n) + 2 * loop.weight_bytes) / SHARED_BYTES_PER_CLOCK,
        loaded_bytes=loop.a.tile_bytes * held(problem["m"], loop.tile_m) / loop.tile_m + loop.weight_bytes,
        in_flight=float(loop.stages - 1),
        stored_bytes=store_costs("mma")["partial"] * sums if partial else store_costs("mma")[plan.fragment_store] * moved.tile_result,
        memory_bytes=moved.factors + (0.0 if partial else moved.result),
        early=plan.spec.early_launch,
        results=max(1.0, share.results),
        costs=costs_of("mma"),
    )
    return (main, reduction_work(plan, problem, moved.result)) if partial else (main,)
