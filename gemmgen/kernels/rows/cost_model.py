"""Bytes and operations of an operation on rows."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.family import Cost, Fetch, Peer, Work
from gemmgen.kernels.rows.plan import SUMMING_LANES, RowsPlan, Statement, moved_bytes

REGISTERS_BESIDE_ELEMENTS = 24
SELECTION_OPERATIONS = 8.0
"""Instructions of topk for an element: its order, and comparisons."""


def cost(plan: RowsPlan, problem: Mapping[str, int]) -> Cost:
    """The formulas of an element, each once; every operand and result crosses the memory bus once."""
    elements = float(problem["m"] * problem["n"])
    per_element = [one for one in plan.statements if one.by_element or one.combination]
    special = sum(node.function.special for one in per_element for node in one.tree.walk() if node.function is not None)
    operations = SELECTION_OPERATIONS if plan.program.selects else sum(map(_operations, per_element))
    return Cost(elements * operations, float(moved_bytes(plan, problem)), "fp32", elements * special)


def _operations(statement: Statement) -> float:
    """Instructions of a statement for an element."""
    return float(bool(statement.combination)) + sum(node.function.cost for node in statement.tree.walk() if node.function is not None)


def fetches(plan: RowsPlan, problem: Mapping[str, int]) -> tuple[Fetch, ...]:
    """Matrices once where they are held, else in each pass that reads them; results once."""
    elements = problem["m"] * problem["n"]
    steps = [step for step in plan.body if not isinstance(step, str)] if plan.statements else []
    reads = []
    for matrix in plan.matrices:
        again = 2.0 if plan.program.selects else float(sum(matrix.name in step.matrices for step in steps))
        times = 1.0 if plan.held or plan.prefix is not None else again
        reads.append(Fetch(matrix.name, float(elements * matrix.element_bytes), times))
    written = ((matrix.name, float(problem["m"] * problem[matrix.columns] * matrix.element_bytes)) for matrix in plan.outputs)
    return (*reads, *(Fetch(name, size, 1.0) for name, size in written))


def executed_operations(plan: RowsPlan, problem: Mapping[str, int]) -> float:
    """The operations of ``cost``, those on lanes beyond the end of a row included."""
    columns = plan.lanes * plan.vector * plan.held if plan.held else problem["n"]
    return cost(plan, problem).operations * max(columns, 1) / max(problem["n"], 1)


def work(plan: RowsPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
    """The launches of one problem."""
    read = sum(one.moved for one in fetches(plan, problem)[: len(plan.matrices)])
    written = sum(one.moved for one in fetches(plan, problem)[len(plan.matrices) :])
    blocks = _blocks(plan, 0, problem)
    words = plan.held * plan.vector * sum(matrix.element_bytes for matrix in plan.matrices) // 4
    works = [
        Work(
            blocks=blocks,
            threads=plan.threads,
            registers=REGISTERS_BESIDE_ELEMENTS + words + plan.held * plan.vector * len(plan.sums),
            shared_bytes=4 * plan.warps * max(plan.reductions, 1),
            steps=1.0,
            operations=executed_operations(plan, problem) / blocks,
            unit="fp32",
            issue=1.5,
            shared_clocks=0.0,
            loaded_bytes=read / blocks,
            in_flight=1.0,
            stored_bytes=written / blocks,
            memory_bytes=float(moved_bytes(plan, problem)),
        )
    ]
    if plan.sums:
        partial = float(plan.sequence.workspace_bytes.evaluate(problem))
        columns = _blocks(plan, 1, problem)
        works.append(
            Work(
                blocks=columns,
                threads=SUMMING_LANES * SUMMING_LANES,
                registers=REGISTERS_BESIDE_ELEMENTS,
                shared_bytes=4 * SUMMING_LANES * (SUMMING_LANES + 1),
                steps=1.0,
                operations=partial / 4 / columns,
                unit="fp32",
                issue=2.0,
                shared_clocks=0.0,
                loaded_bytes=partial / columns,
                in_flight=1.0,
                stored_bytes=float(len(plan.sums) * problem["n"] * ELEMENTS[plan.weight_type].bytes) / columns,
                memory_bytes=partial,
                follows=True,
            )
        )
    return tuple(works)


def _blocks(plan: RowsPlan, launch: int, problem: Mapping[str, int]) -> int:
    """Blocks of a launch, at least 1."""
    along, across, _ = (extent.evaluate(problem) for extent in plan.sequence.launches[launch].grid)
    return max(along * across, 1)


def peer(plan: RowsPlan, problem: Mapping[str, int], arrays: Mapping[str, object], scalars: Mapping[str, float]) -> Peer | str:
    """None: ``measurements.row_operations`` compares with torch and torch.compile."""
    return "no vendor's library computes it; measurements.row_operations compares with torch.compile"
