"""The work of a product of few columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of
from gemmgen.kernels.gemm.gemv.loop import LINE_BYTES, SLICES_AT_ONCE, VectorLoop
from gemmgen.kernels.gemm.gemv.plan import GemvPlan
from gemmgen.kernels.gemm.launch_costs import FLOAT_BYTES, Moved

WAIT_FOR_B = {"k": 0.15, "m": 0.6}
"""Latency of a read of B in a kernel for few columns, over that of the memory."""
SECTOR_BYTES = 32
LEFT_IN_L2 = 0.2
"""Part of A that has to come from memory again for every further tile of columns."""
DRAWING_BYTES = 16384.0
"""Bytes of A that a block of a kernel for few columns has on their way, for which its costs say how many blocks draw all that the memory
gives."""


def work(plan: GemvPlan, problem: Mapping[str, int], moved: Moved) -> tuple[Work, ...]:
    """The only launch."""
    loop = plan.loop
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
    costs = costs_of(_kind(loop, min(a.element_bytes, b.element_bytes)))
    # The number of blocks that saturates memory depends on the bytes that each has in flight.
    ahead = plan.threads * loop.unroll * values * a.element_bytes
    # The last block of a tile reads the sums of all slices, several at a time.
    rounds = ceil_div(slices, loop.summers * SLICES_AT_ONCE) * ceil_div(loop.elements * loop.summers, loop.sum_width * plan.threads)
    meeting = 2 * rounds if slices > 1 else 0
    # Along k, where a step is short, its costs are calibrated with those rounds as steps; along m they are latencies of memory.
    more_steps, more_idle = (meeting, 0) if loop.along == "k" else (0, meeting)
    main = Work(
        blocks=tiles * slices,
        threads=plan.threads,
        registers=plan.registers_per_thread,
        shared_bytes=plan.shared_bytes,
        steps=float(max(1, ceil_div(own_k, step)) + more_steps),
        operations=2.0 * loop.elements * step,
        unit="fp32",
        issue=1.0 + (loads + converted + 4) / (values * loop.columns),
        shared_clocks=_lines(plan, loop, problem["n"], problem["k"]) * loop.unroll * warps,
        loaded_bytes=float(step * (loop.rows_read * a.element_bytes * _sectors(plan, loop) + loop.columns * b.element_bytes)),
        # Where B is not read ahead, every vector of A waits for its own, from the L2 if the teams read different parts.
        in_flight=1.0 if loop.reads_b_ahead or loop.stages_b else 1.0 / (1.0 + loop.unroll * WAIT_FOR_B[loop.along]),
        stored_bytes=moved.tile_result + sums * 2,
        memory_bytes=moved.factors * (1 + LEFT_IN_L2 * again) + moved.result,
        turns=2 if slices > 1 else 1,
        early=plan.spec.early_launch,
        costs=replace(costs, draw=costs.draw * DRAWING_BYTES / ahead, idle=costs.idle + more_idle),
    )
    return (main,)


def _kind(loop: VectorLoop, element_bytes: int) -> str:
    """Name of a kernel for few columns in the table of costs."""
    if element_bytes < FLOAT_BYTES:
        return f"vector along {loop.along}, 16 bits"
    if loop.lanes == 1:
        return "vector, a thread for a row"
    return f"vector along {loop.along}{', B in shared memory' if loop.stages_b else ''}"


def _sectors(plan: GemvPlan, loop: VectorLoop) -> float:
    """Bytes of the sectors that a team reads of a column of A, over those of its rows: more where they begin within a sector."""
    if loop.along == "k":
        return 1.0
    bytes_of_team = loop.lanes * loop.rows * plan.matrix_a.element_bytes
    begins = loop.grain if loop.shifted else plan.matrix_a.alignment
    return 1.0 + max(0, SECTOR_BYTES - begins * plan.matrix_a.element_bytes) / bytes_of_team


def _lines(plan: GemvPlan, loop: VectorLoop, n: int, k: int) -> float:
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
