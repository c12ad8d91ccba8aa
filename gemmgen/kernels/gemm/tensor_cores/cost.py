"""The work of GEMMs on tensor cores that does not depend on the instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.family import Costs
from gemmgen.kernels.gemm.launch_costs import grouped_results
from gemmgen.kernels.gemm.spec import StreamK
from gemmgen.kernels.gemm.tensor_cores.plan import TensorPlan

STREAMED_PAUSE = 5.0
"""Time between two results of a block of stream-K, which fills its stages anew for each, over that of a persistent one by `mma.sync`: 1829
products of 22 x 22 x 22 take 43 us on an H200, eight or nine for each of 216 blocks."""
FEW = 4
OF_FEW = 1.2
"""Times of copies for tensor cores with at most FEW rows or columns, relative to the time predicted from larger tiles: 7552 x 2 x 8096
takes 51 us on an H200, in bfloat16. Without it, the model prefers tensor cores to faster multiply-adds in six of 79 such products, with it
in one."""


@dataclass(frozen=True)
class Pace:
    """Costs of a product by the instructions that make it, and by the matrices that they multiply."""

    costs: Costs
    stores: Mapping[str, float]
    """Time of each way of storing, over that of the bytes in whole lines."""
    products: int = 1
    """Products of matrices for one of the factors."""
    compensation: float = 0.0
    """Cost of keeping the errors of additions, over the time of products."""


@dataclass(frozen=True)
class Share:
    """A grid, and the work of its busiest block."""

    blocks: int
    steps: float
    results: float
    joins: float = 0.0
    """Sums that it collects from other blocks, one after the other."""
    left: float = 0.0
    """Sums that it leaves behind."""
    pauses: float = 0.0
    """Results, where the time between two of them is longer than that of a persistent grid; else 0."""


def share_of(plan: TensorPlan, works: int, depth: int, across: int = 0) -> Share:
    """The distribution of ``works`` pieces of ``depth`` steps each over blocks. ``across``: of groups of rows, those with the same rows."""
    division = plan.spec.decomposition
    if isinstance(division, StreamK):
        return _streamed(works, depth, division.blocks)
    blocks = min(works, plan.grid.persistent_blocks) if plan.grid.persistent_blocks else works
    if not blocks:
        return Share(0, float(depth), 1.0)
    if plan.grid.dynamic and across:
        results = max(1.0, float(grouped_results(works, across, blocks)))
    else:
        # The last tiles of blocks that take the next one each do not come at the same time.
        results = max(1.0, works / blocks + 0.5) if plan.grid.dynamic else float(ceil_div(works, blocks))
    return Share(blocks, depth * results, results)


def _streamed(tiles: int, depth: int, blocks: int) -> Share:
    """Stream-K on tensor cores: the last tiles' steps are distributed evenly, the others are whole."""
    shared = min(tiles, tiles % blocks + blocks) if tiles % blocks else 0
    whole = (tiles - shared) // blocks
    own = ceil_div(shared * depth, blocks)
    if not own:
        return Share(blocks if whole else 0, float(depth * whole), float(whole))
    cut = own % depth > 0
    joins = float(ceil_div(depth, own) - (depth % own == 0)) if cut else 0.0
    results = 1 + (ceil_div(own, depth) + whole - 1) * STREAMED_PAUSE
    return Share(min(blocks, shared * depth), float(own + whole * depth), float(ceil_div(own, depth) + whole), joins, float(cut), results)


def of_few(costs: Costs, problem: Mapping[str, int]) -> Costs:
    """Costs on tensor cores, those of few rows or columns included."""
    if min(problem["m"], problem["n"]) > FEW:
        return costs
    slower = {name: getattr(costs, name) * OF_FEW for name in ("memory", "loads", "latency")}
    return replace(costs, **slower)
