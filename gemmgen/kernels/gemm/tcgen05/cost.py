"""The work of a GEMM on tensor memory. Nobody here has such a device: its costs are those of warpgroups on an H200."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of, store_costs
from gemmgen.kernels.gemm.launch_costs import Moved
from gemmgen.kernels.gemm.tcgen05.plan import TensorMemoryPlan
from gemmgen.kernels.gemm.tensor_cores.cost import Pace, of_few, share_of


def work(plan: TensorMemoryPlan, problem: Mapping[str, int], moved: Moved, pace: Pace | None = None) -> tuple[Work, ...]:
    """The launch of one problem."""
    loop, tiles, pace = plan.loop, moved.tiles, pace or Pace(costs_of("wgmma"), store_costs("wgmma"))
    if loop.pair and tiles:
        rows = ceil_div(problem["m"], loop.tile_m)
        tiles = tiles // rows * round_up(rows, loop.blocks)
    share = share_of(plan, tiles, max(1, ceil_div(problem["k"], loop.tile_k)))
    results = max(1.0, share.results)
    return (
        Work(
            blocks=share.blocks,
            threads=loop.threads,
            registers=plan.registers_per_thread,
            shared_bytes=plan.shared_bytes,
            steps=share.steps,
            operations=2.0 * loop.tile_m * loop.tile_n * loop.tile_k * pace.products,
            unit=plan.unit,
            issue=1.0 + pace.compensation,
            shared_clocks=0.0,
            loaded_bytes=float(loop.a.tile_bytes + loop.b.tile_bytes),
            in_flight=float(loop.stages),
            # The results of one tile are stored while the next is multiplied.
            stored_bytes=pace.stores[plan.fragment_store] * moved.tile_result,
            memory_bytes=moved.factors + moved.result,
            early=plan.spec.early_launch,
            results=results,
            costs=of_few(pace.costs, problem),
        ),
    )
