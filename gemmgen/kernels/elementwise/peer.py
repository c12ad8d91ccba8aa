"""The same operations in torch, on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.elementwise.access import axis_of
from gemmgen.kernels.elementwise.plan import ElementwisePlan
from gemmgen.kernels.epilogue.steps import Access


def torch_operations(
    plan: ElementwisePlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]
) -> tuple[str, Callable[[], None]] | None:
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
            values = step.operation.apply_torch(values, [read(access) for access in step.accesses])
        y.copy_(values)

    return f"torch ({len(plan.steps)} operations)" if len(plan.steps) > 1 else "torch", run
