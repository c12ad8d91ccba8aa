"""The work of float64 products by remainders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemmgen.kernels.family import Work
from gemmgen.kernels.gemm.fitted_costs import costs_of
from gemmgen.kernels.gemm.launch_costs import Moved
from gemmgen.kernels.gemm.remainders.plan import RemaindersPlan
from gemmgen.kernels.gemm.wgmma import cost as wgmma

DOUBLE_BYTES = 8
MEMORY_REGISTERS = 64
MEMORY_STEPS = 5.0
"""Memory latencies that each kernel other than the products costs, its launch included."""


def work(plan: RemaindersPlan, problem: Mapping[str, int], moved: Moved) -> tuple[Work, ...]:
    """The work of each launch: the products of all planes, and the kernels that split, join and repair, bound by memory."""
    m, n, k, planes = problem["m"], problem["n"], problem["k"], plan.scheme.planes
    inner = replace(moved, tiles=moved.tiles * planes, factors=float((m + n) * k * planes), result=float(m * n * planes))
    product = wgmma.work(plan.products, problem, inner)
    measured = float(sum(problem[operand.extent] for operand in plan.measured) * k * DOUBLE_BYTES)
    result = float(m * n)
    splits = [(0.0, float(problem[operand.extent] * k * (DOUBLE_BYTES + planes))) for operand in plan.operands]
    moves = [*splits, (result * planes, result * DOUBLE_BYTES), (0.0, 0.0)]
    if plan.measured:
        moves.insert(0, (measured, 0.0))
    around = []
    launches = [launch for index, launch in enumerate(plan.sequence.launches) if index != plan.main_launch]
    for index, (launch, (read, written)) in enumerate(zip(launches, moves, strict=True)):
        grid = launch.grid_of(problem)[0]
        each = 1.0 / max(grid, 1)
        around.append(
            Work(
                grid,
                launch.threads,
                MEMORY_REGISTERS,
                0,
                MEMORY_STEPS,
                0.0,
                "fp32",
                1.0,
                0.0,
                read * each / MEMORY_STEPS,
                1.0,
                written * each,
                read + written,
                follows=index > 0,
                early=False,
                costs=costs_of("splits"),
            )
        )
    before = plan.main_launch
    return (*around[:before], *(replace(one, follows=True) for one in product), *around[before:])
