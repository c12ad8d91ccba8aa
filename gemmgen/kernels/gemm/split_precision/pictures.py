"""Pictures of float32 products by those of smaller types: of the product of planes."""

from __future__ import annotations

from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan, product_part
from gemmgen.kernels.pictures import Picture


def pictures(plan: SplitPrecisionPlan) -> list[Picture]:
    """Pictures of the product of planes."""
    drawn: list[Picture] = product_part(plan, "pictures").pictures(plan)
    return drawn
