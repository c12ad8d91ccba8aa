"""The work of a GEMM's launches, for the model of their time, and a vendor's library beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.kernels.family import Cost, Fetch, Peer, Work
from gemmgen.kernels.gemm.launch_costs import Moved, finishing_clocks, finishing_shown, lost_rows, result_bytes
from gemmgen.kernels.gemm.peer import gemm_peer
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.strategies import part_of


def work(plan: GemmPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
    """The launches of one problem."""
    m, n, k, batch = problem["m"], problem["n"], problem["k"], problem.get("batch", 1)
    groups = problem.get("groups", 1)
    tiles = plan.spec.triangles.tiles_of_result((m, n), (plan.tile_m, plan.tile_n)) * batch
    if plan.grouped:
        tiles = (ceil_div(m, plan.tile_m) + round(groups * lost_rows(plan.row_parts))) * ceil_div(n, plan.tile_n)
    factors = float(m * k * plan.row_bits // 8 * (batch if problem.get("stride_a", 1) else 1))
    weights = k * n * plan.weight_bits // 8
    factors += float(sum(weights * (batch * groups if problem.get(factor.batch_stride or "", 1) else 1) for factor in plan.factors_b))
    moved = Moved(tiles, factors, float(m * n * batch * result_bytes(plan)))
    works: tuple[Work, ...] = part_of(plan, "cost").work(plan, problem, moved)
    finishing = finishing_clocks(plan) * plan.finishing_pace * m * n * batch
    if not finishing or not works:
        return works
    last = works[-1]
    aside = plan.finishes_aside and plan.store != "partial"
    moves = any(step.matrices or step.placed for step in plan.epilogue)
    shown = float(finishing_shown(max(1.0, last.results), not plan.matrix_c.row_major, plan.tile_m, moves)) if aside else 1.0
    return (*works[:-1], replace(last, finishing_clocks=finishing / max(1.0, last.blocks) * shown))


def cost(plan: GemmPlan, problem: Mapping[str, int]) -> Cost:
    """Two operations for each multiplication, one crossing of the memory bus for each array."""
    m, n, k = (problem[name] for name in ("m", "n", "k"))
    reads_c = plan.spec.beta == "argument"
    products = len(plan.factors_b)
    moved = m * k * plan.row_bits // 8 + products * k * n * plan.weight_bits // 8 * problem.get("groups", 1)
    results = m * n * plan.matrix_c.element_bytes * (1 + reads_c + len(plan.residuals))
    batch = problem.get("batch", 1)
    special = float(batch * m * n * sum(step.special for step in plan.epilogue))
    elements = batch * plan.spec.triangles.elements_of_result(m, n)
    return Cost(2.0 * products * elements * k, float(batch * (moved + results)), plan.unit, special)


def fetches(plan: GemmPlan, problem: Mapping[str, int]) -> tuple[Fetch, ...]:
    """A once for each column of tiles and B once for each row of them, m n k (1/tile_m + 1/tile_n) elements in all, but once for a
    cluster that shares them; C and the operand added to it, once."""
    m, n, k = (problem[name] for name in ("m", "n", "k"))
    batch = problem.get("batch", 1)
    rows, columns = plan.fetched_tile
    results = 1.0 + (plan.spec.beta == "argument")
    of_factors = [
        Fetch("A", float(batch * m * k * plan.matrix_a.element_bytes), ceil_div(n, columns)),
        Fetch("C", float(batch * m * n * plan.matrix_c.element_bytes), results),
    ]
    times = float(ceil_div(m, rows))
    if plan.grouped:  # each group's rows meet its own B
        times = max(1.0, times / max(1, problem["groups"]))
    weights = float(batch * k * n * plan.matrix_b.element_bytes * problem.get("groups", 1))
    of_factors[1:1] = [Fetch(factor.name, weights, times) for factor in plan.factors_b]
    of_factors += [Fetch(matrix.name, float(batch * m * n * matrix.element_bytes), 1.0) for matrix in plan.residuals]
    return tuple(of_factors)


def executed_operations(plan: GemmPlan, problem: Mapping[str, int]) -> float:
    """The operations of ``cost`` with those on padding, where tiles that reach beyond the problem are computed whole."""
    tiles = {"m": plan.tile_m, "n": plan.tile_n, "k": plan.padded_k}
    return cost(plan, {**problem, **{name: round_up(problem[name], tile) for name, tile in tiles.items()}}).operations


def peer(plan: GemmPlan, problem: Mapping[str, int], arrays: Mapping[str, object], scalars: Mapping[str, float]) -> Peer | str:
    """The fastest algorithm of cuBLASLt for the same product; the reason, in words, if there is none."""
    return gemm_peer(plan, arrays, scalars)
