"""Pictures of float64 products by remainders: of the products of their planes."""

from __future__ import annotations

from gemmgen.kernels.gemm.remainders.plan import RemaindersPlan
from gemmgen.kernels.gemm.wgmma import pictures as wgmma
from gemmgen.kernels.pictures import Picture


def pictures(plan: RemaindersPlan) -> list[Picture]:
    """Those of the products."""
    return wgmma.pictures(plan)
