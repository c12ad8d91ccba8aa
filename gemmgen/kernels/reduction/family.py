"""Reductions as a kernel family: Y = epilogue(reduce(prologue(X)))."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.kernels.family import Family
from gemmgen.kernels.reduction.plan import ReductionPlan, packed_problem, plan_reduction
from gemmgen.kernels.reduction.spec import ReductionSpec
from gemmgen.kernels.reduction.tensor import TensorLayout

SIZE_NAMES = ("outer", "reduced", "inner")
TYPICAL = {
    "all": (1, 1 << 24, 1),
    "rows": (1 << 14, 1 << 10, 1),
    "columns": (1, 1 << 14, 1 << 10),
    "middle": (1 << 4, 1 << 10, 1 << 10),
    "strided": (1 << 4, 1 << 10, 1 << 10),
}
"""Extents (outer, reduced, inner) for specs that name none."""


def _instance_sizes(plan: ReductionPlan) -> dict[str, int]:
    """The extents that the shape has, with the spec's typical ones; of tensors, those of all axes."""
    if isinstance(plan.layout, TensorLayout):
        return plan.layout.typical_extents
    typical = plan.spec.typical
    values = (typical.outer, typical.reduced, typical.inner) if typical else TYPICAL[plan.spec.shape]
    names = {dimension.name for dimension in plan.sequence.dimensions}
    return {name: value for name, value in zip(SIZE_NAMES, values, strict=True) if name in names}


def _problem(plan: ReductionPlan, sizes: Sequence[int]) -> dict[str, int]:
    return packed_problem(plan, dict(zip(_instance_sizes(plan), sizes, strict=True)))


family = Family("reduction", ReductionSpec, plan_reduction, SIZE_NAMES, (1, 1 << 24, 1), _problem, _instance_sizes)
