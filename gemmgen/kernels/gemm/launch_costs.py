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
SPECIAL_INSTRUCTIONS = 8.0
"""Instructions in whose time a special function is computed: an SM has 16 lanes for them, 128 for others."""
MOVED = 1.5
"""Time of the instructions that read or write an element of a further matrix, over that at the full rate."""
READ_INSTRUCTIONS = {1: 6.0, 2: 6.0, 4: 18.0}
WRITTEN_INSTRUCTIONS = {1: 12.0, 2: 12.0, 4: 18.0}
"""Instructions in whose time an element of a further operand is read, or of a further output written, by its bytes: beside GELU, a stored
bfloat16 added 2.3 us to that tile, a stored float32 3.4 us, and a float32 operand alone 3.5 us."""
ROUNDED_INTEGER = 12.0
"""Instructions in whose time an integer sum becomes a float, and the result an 8-bit integer, which run at a part of the rate."""
SCATTERED_BYTES = 4.0
"""Time of storing single bytes, by their number, over that of elements of 4 bytes: 3072 x 512 x 4992 with int8 results took 19.0 us on an
H200 by tiles of the transpose, 13.7 us by its own."""
SHOWN, SHOWN_COLUMN_MAJOR, SHOWN_NARROW = 0.12, 0.4, 0.4
"""Part of the time of an epilogue with further matrices that shows although another group multiplies meanwhile, and the same of
column-major results, and of tiles of 64 rows: on an H200, a float32 operand added 5 to 6% to 3000 x 14336 x 2560 by 128 x 176, and 13% by
64 x 224."""
SHOWN_FUNCTIONS, SHOWN_FUNCTIONS_COLUMN_MAJOR, SHOWN_FUNCTIONS_NARROW = 0.01, 0.08, 0.1
"""Part of the time that shows if an epilogue needs no further matrices: on an H200, GELU added 0.8 us, as a mean of 12 products, to what
the last row-major tile of 128 rows takes alone, and almost nothing where a block has ten; with ten column-major tiles, it added 3.8 us to
5000 x 5120 x 6144."""
TRANSPOSED_TOGETHER = 1.6
"""Time of an epilogue of groups that finish a column-major tile together, over that of a row-major one: on an H200, bias and GELU added
2.1 us to 512 x 4096 x 4096 and 1.3 us, 6.3 and 4.9 us to 1024 x 8192 x 4096, 7.1 and 5.6 us to 2048 x 4096 x 4096. 1600 x 1600 x 1600 with
both took 15.5 us as its transpose, 15.1 as it is."""
NARROW_ROWS = 128
UNFILLED = 0.3
"""Time of a tile that lacks rows for some groups of warps: this share of the missing groups' time is spent nevertheless."""
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


def lost_rows(parts: Any) -> Any:
    """Tiles whose time a group's last rows take beyond their share, on average half of a tile; ``parts``: groups of warps, a number or a
    column, that skip a tile without rows for them."""
    return UNFILLED + (1 - UNFILLED) * (parts + 1) / (2 * parts) - 0.5


def grouped_results(tiles: Any, across: Any, blocks: Any) -> Any:
    """Tiles of a block of groups of rows whose ends only the device knows, on average: their number, of which ``across`` have the same
    rows, may be off by one row of tiles. Numbers or columns."""
    import numpy as np

    counts = [np.ceil(np.maximum(tiles + off * across, 1.0) / blocks) for off in (-1, 0, 0, 1)]
    return sum(counts) / len(counts)


def scattered(way: str, element_bytes: int) -> float:
    """Factor on the time of a way of storing, by the bytes of an element."""
    return SCATTERED_BYTES if way == "elements" and element_bytes == 1 else 1.0


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
    """Clock cycles in which an SM issues the epilogue's instructions for one element, or computes its special functions if they take
    longer, and moves those of further matrices."""
    instructions = sum(step.instructions for step in plan.epilogue)
    if plan.matrix_c.type in ("s8", "u8"):
        instructions += ROUNDED_INTEGER
    special = SPECIAL_INSTRUCTIONS * sum(step.special for step in plan.epilogue)
    written = {name for step in plan.epilogue for name in step.written}
    moved = 0.0
    for matrix in (matrix for step in plan.epilogue for matrix in (*step.matrices, *step.placed)):
        by_bytes = WRITTEN_INSTRUCTIONS if matrix.name in written else READ_INSTRUCTIONS
        moved += by_bytes.get(matrix.element_bytes, by_bytes[4])
    return (max(instructions, special) + MOVED * moved) / LANES_PER_CLOCK


def finishing_shown(results: Any, column_major: bool, rows: Any, moves: bool) -> Any:
    """Part of an epilogue's time that shows where a group finishes one of a block's results while another multiplies for the next: that of
    the last result, and a share of the others'. ``rows``: of a tile, a number or a column; ``moves``: True if further matrices are."""
    import numpy as np

    if moves:
        share = SHOWN_COLUMN_MAJOR if column_major else np.where(rows < NARROW_ROWS, SHOWN_NARROW, SHOWN)
    else:
        narrow = np.where(rows < NARROW_ROWS, SHOWN_FUNCTIONS_NARROW, SHOWN_FUNCTIONS)
        share = SHOWN_FUNCTIONS_COLUMN_MAJOR if column_major else narrow
    return 1.0 / results + share * (1.0 - 1.0 / results)


def finishing_pace(groups: Any) -> Any:
    """Time of an epilogue's instructions by so many groups of an SM, a number or a column, over that of issuing them at the full rate: on
    an H200, GELU added 1.2 times that to ten products by two and three groups, on average, and 1.7 times that where one finished a tile."""
    return 1.2 + 0.6 / groups**3.5
