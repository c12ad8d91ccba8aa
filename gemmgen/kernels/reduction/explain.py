"""A reduction's plan in words."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.family import Section
from gemmgen.kernels.reduction.plan import BlockLayout, ColumnLayout, LaneLayout, ReductionPlan
from gemmgen.kernels.reduction.tensor import TensorLayout

_LINES = {
    "all": "all elements of X",
    "rows": "each row of X, outer x reduced",
    "columns": "each column of X, reduced x inner",
    "middle": "the middle axis of X, outer x reduced x inner, contiguous along inner",
    "tensor": "X over some of its axes, each with its stride as an argument",
    "strided": "the middle axis of X, outer x reduced x inner, with any strides",
}
_NAMES = {
    "sum": "the sum",
    "product": "the product",
    "min": "the smallest",
    "max": "the largest",
    "mean": "the mean",
    "sum_of_squares": "the sum of squares",
    "l1_norm": "the L1 norm",
    "l2_norm": "the L2 norm",
    "any": "whether any is not 0:",
    "all": "whether none is 0:",
    "argmin": "where the first smallest is:",
    "argmax": "where the first largest is:",
    "logsumexp": "log(sum(exp(x)))",
    "mean_variance": "mean and variance",
}
_EMPTY = {
    "add": "0",
    "multiply": "1",
    "either": "false",
    "both": "true",
    "logsumexp": "-infinity",
    "moments": "NaN",
}
_FINISHES = {
    "two_pass": "a second kernel combines the blocks' results",
    "last_block": "the block that ends last combines the others' results; it knows by a ticket",
    "first_block": "the first block waits for the others' results and combines them",
    "atomic": "atomic operations on the result, whose order does not matter",
}


def summary(plan: ReductionPlan) -> list[str]:
    """The kernel's computation, and its treatment of odd values."""
    a, spec = plan.arithmetic, plan.spec
    if a.parts:
        texts = [f"Y{place} = {_NAMES[part.operation].rstrip(':')}" for place, part in enumerate(a.parts)]
        types = [
            f"Y{place} computed in {ELEMENTS[part.compute].word}, stored as {ELEMENTS[part.output].word}"
            for place, part in enumerate(a.parts)
        ]
        sentences = [f"{', '.join(texts)}, of {_LINES[spec.shape]}.", f"Elements {spec.input}; {'; '.join(types)}."]
        return [*sentences, *dict.fromkeys(semantics(replace(plan, arithmetic=part)) for part in a.parts)]
    joiner = "" if _NAMES[a.operation].endswith(":") else " of"
    text = f"{'Mean and variance' if a.state == 'moments' else 'Y'} = {_NAMES[a.operation]}{joiner} {_LINES[spec.shape]}"
    if a.state == "moments":
        text = f"Mean and variance (squared distances over count{' - 1' if a.correction else ''}) of {_LINES[spec.shape]}"
    steps = ", then ".join(step.operation.describe() for step in a.epilogue)
    lines = [f"{text}{', then ' + steps if steps else ''}."]
    own = a.state == "scalar" and {"sum_of_squares": 1, "l1_norm": 1, "l2_norm": 1}.get(a.operation, 0)
    before = [step.operation.describe() for step in a.prologue[: len(a.prologue) - own]]
    if before:
        lines.append(f"Before that, on each element: {', '.join(before)}.")
    computed = "truth values" if a.is_truth else ELEMENTS[a.compute].word
    lines.append(f"Elements {spec.input}, computed in {computed}, stored as {ELEMENTS[a.output].word}.")
    lines.append(semantics(plan))
    return lines


def semantics(plan: ReductionPlan) -> str:
    """Treatment of NaN, overflow and empty input."""
    a = plan.arithmetic
    parts = []
    if a.operation in ("min", "max") and a.is_float:
        parts.append("NaN if there is one; -0 is less than +0")
    elif a.state == "extremum" and a.is_float:
        parts.append("the first NaN if there is one, +0 and -0 equal")
    elif a.is_truth:
        parts.append("NaN counts as true" if plan.spec.input.startswith(("f", "b")) else "")
    elif not a.is_float and not a.is_extremum:
        parts.append(f"wraps around in {ELEMENTS[a.compute].word}")
    elif a.state == "moments":
        parts.append("NaN and infinities make the variance NaN; the mean takes them as in IEEE 754")
    elif a.is_float:
        parts.append("NaN and infinities as in IEEE 754")
    empty = _EMPTY.get(a.combiner)
    if a.operation == "mean":
        empty = "NaN"
    parts.append("nothing at all is an error" if empty is None else f"of no elements: {empty}")
    parts.append("the same bits on every run")
    text = "; ".join(part for part in parts if part)
    return f"{text[0].upper()}{text[1:]}."


def explain(plan: ReductionPlan) -> list[Section]:
    """Work of a thread and a block, how results meet, shared memory."""
    sections = [Section("Computation", tuple(("", line) for line in summary(plan)))]
    sections.append(Section("Division of reads", _work(plan)))
    if plan.finish:
        meeting = [("blocks", _FINISHES[plan.finish])]
        if plan.workspace.used:
            meeting.append(("workspace", f"{plan.workspace.total} bytes, of which {plan.workspace.signs} start as 0 and are left 0"))
        sections.append(Section("Combination of blocks", tuple(meeting)))
    if plan.shared_memory:
        sections.append(
            Section(
                "Shared memory",
                tuple(
                    (r.name, f"bytes {r.offset} to {r.offset + r.bytes - 1}: {r.type}{''.join(f'[{e}]' for e in r.shape)}, {r.meaning}")
                    for r in plan.shared_memory
                ),
            )
        )
    return sections


def _work(plan: ReductionPlan) -> tuple[tuple[str, str], ...]:
    layout = plan.layout
    load = f"{plan.vector * ELEMENTS[plan.arithmetic.stored].bytes} bytes a load"
    if isinstance(layout, LaneLayout):
        return (
            ("row", f"{layout.lanes} lanes, {load}, {plan.unroll} at a time"),
            ("group of lanes", f"{layout.rows} row{'s' if layout.rows > 1 else ''} at a time"),
            ("threadblock", f"{layout.rows_per_block} rows by {plan.threads} threads"),
        )
    if isinstance(layout, ColumnLayout):
        return (
            ("thread", f"{plan.vector} columns, {load}, {plan.unroll} rows at a time"),
            ("threadblock", f"{layout.tile_columns} columns by {layout.lanes} x {layout.row_threads} threads"),
            ("tile of columns", f"{layout.splits} block{'s share' if layout.splits > 1 else ' takes'} the rows"),
        )
    if isinstance(layout, TensorLayout):
        return _tensor_work(plan, layout, load)
    assert isinstance(layout, BlockLayout)
    elements = {"one": "one element", "pair": "two elements, a block apart", "stream": "as many elements as it takes"}[layout.loads]
    lines = [
        ("thread", f"{elements}, {load}, {plan.unroll} at a time, into {plan.accumulators} state{'s' if plan.accumulators > 1 else ''}"),
        ("threadblock", f"{plan.threads} threads; tree: {layout.tree}"),
    ]
    if layout.blocks_per_row is not None:
        lines.append(("row", f"{layout.blocks_per_row} block{'s' if layout.blocks_per_row > 1 else ''}"))
    else:
        lines.append(("grid", str(plan.sequence.launches[1 if plan.finish == "atomic" else 0].grid[0])))
    return tuple(lines)


def _tensor_work(plan: ReductionPlan, layout: TensorLayout, load: str) -> tuple[tuple[str, str], ...]:
    axes = (
        "axes",
        f"X[{', '.join(layout.axes)}], of which {', '.join(layout.reduced)} {'are' if len(layout.reduced) > 1 else 'is'} reduced",
    )
    thread = ("thread", f"{load}, {plan.unroll} at a time")
    parts = ("result", "as many blocks as ``parts`` says share it")
    if layout.name == "tensor_rows":
        lanes = ("result", f"{layout.lanes} lane{'s' if layout.lanes > 1 else ''}")
        return (axes, thread, parts if layout.in_parts else lanes)
    if layout.name in ("tensor_columns", "flat_tiles"):
        return (axes, thread, ("threadblock", f"{layout.tile_columns} results by {layout.lanes} x {layout.groups} threads"), parts)
    if layout.name == "flat_columns":
        return (axes, thread, ("threadblock", f"vectors across rows, by all threads that make whole rows of {plan.threads}"), parts)
    return (
        axes,
        thread,
        (
            "threadblock",
            f"rows of {plan.threads * layout.choice.longest} elements through shared memory, each of at most {layout.choice.longest}",
        ),
    )
