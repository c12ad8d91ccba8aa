"""Work of GEMM launches that all strategies share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of
from gemmgen.kernels.gemm.plan import GemmPlan

LANES_PER_CLOCK = 128.0
"""Lanes that an SM issues an instruction for in a clock cycle."""
SPECIAL_PER_CLOCK = 16.0
"""Special functions of an SM in a clock cycle (CUDA C++ Programming Guide, table of arithmetic throughputs)."""
FLOAT_BYTES = 4
REDUCTION_REGISTERS = 40


@dataclass(frozen=True)
class Moved:
    """Bytes that cross the memory bus for a problem, and the tiles of C."""

    tiles: int
    factors: float
    """A and B."""
    result: float
    """C and the operand added to it."""

    @property
    def tile_result(self) -> float:
        """Elements of a tile of C."""
        return self.result / max(1, self.tiles)


def held(extent: int, tile: int) -> float:
    """Rows or columns of a tile that exist, on average."""
    return extent / max(1, ceil_div(extent, tile))


def result_bytes(plan: GemmPlan) -> int:
    """Bytes that are written and read for an element of C."""
    return plan.matrix_c.element_bytes * (1 + int(plan.spec.beta == "argument") + len(plan.residuals))


def reduction_work(plan: GemmPlan, problem: Mapping[str, int], result: float) -> Work:
    """The kernel that adds up the slices of k; ``result``: bytes of C and of the operand added to it."""
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
        float(elements * result_bytes(plan)),
        result,
        follows=True,
        early=reduction.programmatic,
        costs=costs_of("sum of slices"),
    )


def finishing_clocks(plan: GemmPlan) -> float:
    """Clock cycles in which an SM issues the epilogue's instructions for one element, or its special functions if they take longer."""
    instructions = sum(step.instructions for step in plan.epilogue)
    special = sum(step.special for step in plan.epilogue)
    return max(instructions / LANES_PER_CLOCK, special / SPECIAL_PER_CLOCK)


def finishing_pace(groups: Any) -> Any:
    """Time of an epilogue's instructions by so many groups of an SM, a number or a column, over that at its peak: on an H200, bias and GELU
    added 3.0 us to tiles of 128 x 160 that one group finished, 1.5 us where two did, of which 0.9 us at the peak."""
    return 1.0 + 2.3 / groups**1.8
