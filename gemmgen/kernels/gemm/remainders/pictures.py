"""Pictures of float64 products by remainders, which show the products of their planes."""

from __future__ import annotations

from gemmgen.kernels.gemm.remainders.plan import RemaindersPlan
from gemmgen.kernels.gemm.wgmma import pictures as wgmma
from gemmgen.kernels.pictures import Picture


def pictures(plan: RemaindersPlan) -> list[Picture]:
    """The pictures of the integer products."""
    return wgmma.pictures(plan)
