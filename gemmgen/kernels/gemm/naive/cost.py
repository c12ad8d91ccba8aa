"""The work of a GEMM with a thread for each element of C."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.launch_costs import FLOAT_BYTES, Moved
from gemmgen.kernels.gemm.naive.plan import REGISTERS, STEP, NaivePlan


def work(plan: NaivePlan, problem: Mapping[str, int], moved: Moved) -> tuple[Work, ...]:
    """The only launch."""
    return (
        Work(
            blocks=moved.tiles,
            threads=plan.threads,
            registers=REGISTERS,
            shared_bytes=0,
            steps=problem["k"] / STEP,
            operations=2.0 * plan.tile_m * plan.tile_n * STEP,
            unit="fp32",
            issue=4.0,
            shared_clocks=0.0,
            loaded_bytes=float((plan.tile_m + plan.tile_n) * STEP * FLOAT_BYTES) * 2,
            in_flight=1.0,
            stored_bytes=moved.tile_result,
            memory_bytes=moved.factors + moved.result,
        ),
    )
