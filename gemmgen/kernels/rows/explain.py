"""The plan of an operation on rows in words."""

from __future__ import annotations

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.family import Section
from gemmgen.kernels.rows.plan import RowsPlan


def summary(plan: RowsPlan) -> list[str]:
    """The kernel's computation, in a few lines."""
    word = ELEMENTS[plan.type].word
    if plan.program.selects:
        order = "smallest" if plan.spec.smallest else "largest"
        return [
            f"the k {order} elements of each row of a {word} matrix in order, and their columns:",
            "  NaN is larger than all numbers; of equal elements, the first one comes first",
        ]
    return [
        f"{plan.spec.operation} of each row of a {word} matrix, computed in float32:",
        *(f"  {line}" for line in plan.program.lines),
    ]


def explain(plan: RowsPlan) -> list[Section]:
    """Formulas, work of threads, and bytes."""
    per_row = f"{plan.lanes} threads, {plan.vector} element{'s' if plan.vector > 1 else ''} at a time"
    held = f"in registers, {plan.held} vectors a thread: rows to {plan.most_columns} columns"
    held_text = held if plan.held else "read again for each statistic"
    rows = f"{plan.rows} row{'s' if plan.rows > 1 else ''} at a time"
    sizes = sum(matrix.element_bytes for matrix in plan.matrices), sum(matrix.element_bytes for matrix in plan.outputs)
    return [
        Section("Computation", tuple(("", line) for line in summary(plan))),
        Section("Division of work", (("row", per_row), ("kept", held_text), ("block", rows))),
        Section("Cost of an element", (("bytes", f"{sizes[0]} read, {sizes[1]} written"), ("passes", str(passes(plan))))),
    ]


def passes(plan: RowsPlan) -> int:
    """Walks along a row."""
    return sum(not isinstance(step, str) for step in plan.body) if plan.statements else 1 if plan.held else 2
