"""The work of a GEMM with narrow weights, with the bytes of packed weights and the fitted costs of kernels without them."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of, store_costs
from gemmgen.kernels.gemm.launch_costs import FLOAT_BYTES, Moved, held, reduction_work
from gemmgen.kernels.gemm.narrow_weights.plan import WeightPlan
from gemmgen.kernels.gemm.tensor_cores.cost import share_of

CONVERSION = 0.5
"""Instructions that make 16-bit fragments, over those that multiply them for one block of 16 rows."""
SHARED_BYTES_PER_CLOCK = 128.0


def work(plan: WeightPlan, problem: Mapping[str, int], moved: Moved) -> tuple[Work, ...]:
    """The launches of one problem."""
    loop = plan.loop
    partial = plan.store == "partial"
    parts = problem.get("slices", plan.slices) * loop.cluster_k
    share = share_of(plan, moved.tiles * parts, max(1, ceil_div(ceil_div(problem["k"], plan.step_k), parts)))
    sums = float(plan.tile_m * plan.tile_n * FLOAT_BYTES)
    main = Work(
        blocks=share.blocks,
        threads=loop.threads,
        registers=plan.registers_per_thread,
        shared_bytes=plan.shared_bytes,
        steps=share.steps,
        operations=2.0 * plan.tile_m * plan.tile_n * plan.step_k,
        unit=plan.unit,
        issue=1.0 + CONVERSION / max(1, loop.rows_multiplied // 16),
        shared_clocks=(loop.row_bytes * (1 + loop.readings) + 2 * loop.weight_bytes) / SHARED_BYTES_PER_CLOCK,
        loaded_bytes=loop.row_bytes * held(problem["m"], plan.tile_m) / plan.tile_m + loop.weight_bytes,
        in_flight=float(loop.stages - 1),
        stored_bytes=(store_costs("mma")["partial"] * sums if partial else store_costs("mma")[plan.fragment_store] * moved.tile_result)
        + (sums if loop.cluster_k > 1 or plan.store == "last" else 0.0),
        memory_bytes=moved.factors + (0.0 if partial else moved.result),
        turns=2 if loop.cluster_k > 1 or plan.store == "last" else 1,
        early=plan.spec.early_launch,
        results=max(1.0, share.results),
        costs=costs_of(loop.costs),
    )
    return (main, reduction_work(plan, problem, moved.result)) if partial else (main,)
