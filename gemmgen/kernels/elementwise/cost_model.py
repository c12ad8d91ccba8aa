"""Bytes, operations and work of an elementwise kernel's launch, and the equivalent torch operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.elementwise.access import AXES, axis_of
from gemmgen.kernels.elementwise.plan import ElementwisePlan
from gemmgen.kernels.epilogue.steps import Access
from gemmgen.kernels.epilogue.torch_values import apply_torch
from gemmgen.kernels.family import Cost, Fetch, Peer, Work

BASE_REGISTERS = 20
SECTOR_BYTES = 32


def elements_of(plan: ElementwisePlan, problem: Mapping[str, int]) -> int:
    """Elements of y."""
    count = 1
    for axis in AXES[: plan.rank]:
        count *= problem[axis]
    return count


def distinct_elements(plan: ElementwisePlan, problem: Mapping[str, int], shape: tuple[str, ...], strides: tuple[str, ...]) -> int:
    """Elements of an array that lie apart: along a stride of 0 there is one."""
    count = 1
    for name, stride in zip(shape, strides, strict=True):
        extent = 1 if name == "1" else problem[name]
        count *= extent if stride == "1" or problem[stride] != 0 else min(extent, 1)
    return count


def bytes_read(plan: ElementwisePlan, problem: Mapping[str, int]) -> int:
    """Bytes of all arrays that are read, each element once."""
    total = 0
    for read in plan.reads:
        shape, strides = (tuple(str(part) for part in parts) for parts in (read.argument.shape, read.argument.strides))
        total += distinct_elements(plan, problem, shape, strides) * ELEMENTS[read.argument.type].bytes
    return total


def work(plan: ElementwisePlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
    """The launch of one problem. A step of a block is its tile."""
    resolved = plan.sequence.resolve(problem)
    if not resolved:
        return ()
    blocks = resolved[0].grid[0]
    elements = float(elements_of(plan, problem))
    share = elements / max(blocks, 1)
    tile = float(min(plan.tile * plan.vector, share))
    size = ELEMENTS[plan.stored].bytes
    # Neighbouring threads that read a row with gaps fill no sector.
    apart = [problem[array.strides[-1]] for array in (plan.x,) if not plan.contiguous]
    waste = max([1.0, *(min(SECTOR_BYTES / size, float(stride)) for stride in apart)])
    along = sum(ELEMENTS[read.argument.type].bytes for read in plan.reads if read.along)
    registers = BASE_REGISTERS + 2 * plan.rank + plan.unroll * (2 + plan.vector * len(plan.reads) * max(1, size // 4))
    written = elements * plan.written_bytes
    return (
        Work(
            blocks=blocks,
            threads=plan.threads,
            registers=min(255, registers),
            shared_bytes=0,
            steps=max(1.0, share / max(tile, 1.0)),
            operations=tile * plan.operation_count,
            unit=_unit(plan),
            issue=2.0,
            shared_clocks=0.0,
            loaded_bytes=tile * along * waste,
            in_flight=1.0,
            stored_bytes=written / max(blocks, 1),
            memory_bytes=bytes_read(plan, problem) + written,
            early=plan.spec.early_launch,
        ),
    )


def cost(plan: ElementwisePlan, problem: Mapping[str, int]) -> Cost:
    """N operations for each of the kernel's operations, and the bytes of each array once: 3 N elements for a binary one.
    Utilisation follows from these: operations / (time x rate), bytes / (time x bandwidth)."""
    elements = elements_of(plan, problem)
    written = elements * plan.written_bytes
    special = float(elements * sum(step.special for step in plan.steps))
    return Cost(float(elements * plan.operation_count), float(bytes_read(plan, problem) + written), _unit(plan), special)


def _unit(plan: ElementwisePlan) -> str:
    """The unit that most operations run on; float64 has a separate one."""
    doubles = sum(step.kind == "f64" for step in plan.steps)
    return "fp64" if 2 * doubles > len(plan.steps) else "fp32"


def fetches(plan: ElementwisePlan, problem: Mapping[str, int]) -> tuple[Fetch, ...]:
    """All arrays once: no element serves two threads."""
    written = elements_of(plan, problem) * plan.written_bytes
    return Fetch("read", float(bytes_read(plan, problem)), 1.0), Fetch("written", float(written), 1.0)


def executed_operations(plan: ElementwisePlan, problem: Mapping[str, int]) -> float:
    """The operations of ``cost``: no element is computed in vain but those past the end of a row."""
    return cost(plan, problem).operations


def peer(plan: ElementwisePlan, problem: Mapping[str, int], arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> Peer:
    """One torch operation after the other, in the type that the kernel computes in, then a copy into y."""
    import torch

    x, y = arrays["x"], arrays["y"]
    computed = getattr(torch, ELEMENTS[ELEMENTS[plan.stored].computed_in].word)

    def read(access: Access) -> Any:
        if access.operand.per == "all":
            return scalars[access.name]
        axis = axis_of(access.operand.per, plan.rank)
        array = arrays[access.name]
        return array if axis is None else array.reshape([-1 if one == axis else 1 for one in range(plan.rank)])

    def run() -> None:
        values = x.to(computed, copy=True) if plan.steps else x
        for step in plan.steps:
            values = apply_torch(step, values, [read(access) for access in step.accesses])
        y.copy_(values)

    return Peer(f"torch ({len(plan.steps)} operations)" if len(plan.steps) > 1 else "torch", run)
