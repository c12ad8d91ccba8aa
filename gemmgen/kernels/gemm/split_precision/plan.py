"""The plan of float32 products on tensor cores by those of smaller types: by the instructions that the spec asks for."""

from __future__ import annotations

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.gemm.split_precision.kept import PlanesMainloop
from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan


def plan(spec: GemmSpec, mainloop: PlanesMainloop, architecture: Architecture) -> SplitPrecisionPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    if mainloop.strategy == "wgmma":
        from gemmgen.kernels.gemm.split_precision.by_wgmma import plan_by_wgmma

        return plan_by_wgmma(spec, mainloop, architecture)
    if mainloop.strategy == "tcgen05":
        from gemmgen.kernels.gemm.split_precision.by_tcgen05 import plan_by_tcgen05

        return plan_by_tcgen05(spec, mainloop, architecture)
    from gemmgen.kernels.gemm.split_precision.by_mma_sync import plan_by_mma_sync

    return plan_by_mma_sync(spec, mainloop, architecture)
