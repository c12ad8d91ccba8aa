"""Pictures of a GEMM plan."""

from __future__ import annotations

from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.strategies import part_of
from gemmgen.kernels.pictures import Picture


def pictures(plan: GemmPlan) -> list[Picture]:
    """All pictures of a plan, in the order from large to small."""
    drawn: list[Picture] = part_of(plan, "pictures").pictures(plan)
    return drawn
