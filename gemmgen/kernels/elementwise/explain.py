"""An elementwise kernel's plan in words."""

from __future__ import annotations

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.elementwise.plan import ElementwisePlan
from gemmgen.kernels.family import Section


def summary(plan: ElementwisePlan) -> list[str]:
    """The kernel's computation, in a few lines."""
    steps = ", then ".join(step.operation.describe() for step in plan.steps)
    stored, output = ELEMENTS[plan.stored].word, ELEMENTS[plan.output].word
    computed = ELEMENTS[ELEMENTS[plan.stored].computed_in].word
    strides = "any strides, 0 to broadcast" if plan.x.stride_names else "no gaps"
    return [
        f"y = {f'x, then {steps}' if steps else 'x'}.",
        f"Elements {stored}, computed in {computed}, stored as {output}.",
        f"{plan.rank} ax{'is' if plan.rank == 1 else 'es'}, the last {plan.spec.inner}; {strides}.",
    ]


def explain(plan: ElementwisePlan) -> list[Section]:
    """Work of a thread, a block and the grid; bytes and operations."""
    vector = plan.vector
    read = sum(ELEMENTS[one.argument.type].bytes for one in plan.reads if one.along)
    loads = ", ".join(f"{one.name} {ELEMENTS[one.argument.type].bytes * (vector if one.along else 1)} bytes" for one in plan.reads)
    written = ELEMENTS[plan.output].bytes
    blocks = f"at most {plan.spec.blocks}, a grid apart from tile to tile" if plan.spec.blocks else "one for each tile"
    at_a_time = f"{plan.unroll} vector{'s' if plan.unroll > 1 else ''} at a time"
    intensity = plan.operation_count / (read + written)
    return [
        Section("Computation", tuple(("", line) for line in summary(plan))),
        Section(
            "Division of work",
            (
                ("thread", f"{vector} element{'s' if vector > 1 else ''} of a row, {at_a_time}; it reads {loads}"),
                ("threadblock", f"{plan.threads} threads, a tile of {plan.tile * vector} elements"),
                ("blocks", blocks),
                ("grid", str(plan.sequence.launches[0].grid[0])),
            ),
        ),
        Section(
            "Cost of an element",
            (
                ("operations", str(plan.operation_count)),
                ("bytes", f"{read} read, {written} written, each array once"),
                ("intensity", f"{intensity:.3g} operations a byte; memory bound below the device's operation rate / bandwidth"),
            ),
        ),
    ]
