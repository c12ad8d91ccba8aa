"""The work of float32 products on tensor cores by those of smaller types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of, store_costs
from gemmgen.kernels.gemm.launch_costs import FLOAT_BYTES, Moved
from gemmgen.kernels.gemm.split_precision.planes import REPAIR_THREADS, REPAIR_TILE, SPLIT_THREADS, PlaneOperand
from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan, product_part
from gemmgen.kernels.gemm.tensor_cores.cost import Pace

SPLIT_REGISTERS = 40
REPAIR_REGISTERS = 64
COMPENSATION_ISSUE = 0.27
"""Cost of keeping the rounding errors: 1.2 to 1.3 times the time of plain sums, on an H200, of three products of planes; the others
have as many additions beside more products."""
SPLIT_STEPS = 5.0
"""Latencies of memory that a kernel that splits takes, with its launch: 2 to 3 microseconds for small matrices."""
SPLIT_ROW = 340.0
"""Values of a row along k that a warp splits in one more latency; it reads them twice, some at a time. A quarter of them where it reads
them one by one."""
SPLIT_COLUMN = 4.0
"""Latencies that a thread takes for its part of a column, of which it reads a quarter at a time."""
SPLIT_READS = 1.5
"""Number of reads of the operand that it splits: once for the extremes, and again from caches, as far as it fits."""


def work(plan: SplitPrecisionPlan, problem: Mapping[str, int], moved: Moved) -> tuple[Work, ...]:
    """The product of planes and, if there are slices, their sum; the kernels that split before it, and the one that repairs after it."""
    k, planes = problem["k"], plan.planes
    compensation = COMPENSATION_ISSUE * 3 / planes.scheme.products if planes.compensated else 0.0
    pace = Pace(costs_of(plan.cost_kind), store_costs(plan.store_kind), planes.scheme.products, compensation)
    product: tuple[Work, ...] = product_part(plan, "cost").work(plan, problem, moved, pace)
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
                costs=costs_of("splits"),
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
        costs=costs_of("repairs"),
    )
    return (*around, *(replace(work, follows=True) for work in product), repair)


def _split_latencies(operand: PlaneOperand, k: int) -> float:
    """Latencies of memory that a thread waits for, one after the other, when it measures or splits its part of an operand."""
    if not operand.k_major:
        return SPLIT_COLUMN
    return k / (SPLIT_ROW * operand.vector / 4 * (SPLIT_THREADS / 32 if operand.row_of_block else 1))
