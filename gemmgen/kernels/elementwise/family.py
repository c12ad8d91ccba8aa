"""Elementwise operations as a kernel family: y = operations(x, z, ...)."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.kernels.elementwise.access import AXES
from gemmgen.kernels.elementwise.plan import ElementwisePlan, packed_problem, plan_elementwise
from gemmgen.kernels.elementwise.spec import ElementwiseSpec
from gemmgen.kernels.family import Family

TYPICAL = {1: (1 << 24,), 2: (4096, 4096), 3: (64, 512, 512), 4: (32, 64, 128, 128)}
"""Extents for which an instance of each rank is explained."""


def _instance_sizes(plan: ElementwisePlan) -> dict[str, int]:
    """The extents of as many axes as the spec has."""
    return dict(zip(AXES, TYPICAL[plan.rank], strict=False))


def _problem(plan: ElementwisePlan, sizes: Sequence[int]) -> dict[str, int]:
    return packed_problem(plan, dict(zip(_instance_sizes(plan), sizes, strict=True)))


family = Family("elementwise", ElementwiseSpec, plan_elementwise, AXES, (1, 1, 1, 1 << 24), _problem, _instance_sizes)
