"""Float32 products by warps that multiply fragments of planes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop, warp_mma_loop, warp_mma_regions
from gemmgen.kernels.gemm.mma_sync.plan import MmaSyncPlan, grid_of, name_parts, template_of
from gemmgen.kernels.gemm.mma_sync.reasons import BLOCK_ROWS
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop
from gemmgen.kernels.gemm.split_precision.planes import plane_scheme, planes_plan
from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan, split_factors
from gemmgen.kernels.gemm.split_precision.reasons import fragment_reasons, plane_reasons
from gemmgen.kernels.gemm.split_precision.sequence import planes_sequence
from gemmgen.kernels.gemm.tensor_cores.plan import tensor_numbers


@dataclass(frozen=True, kw_only=True)
class MmaSyncPlanesPlan(SplitPrecisionPlan, MmaSyncPlan):
    """A float32 GEMM by ``mma.sync`` of planes."""

    instructions: ClassVar[str] = "mma"
    loop: WarpLoop


def plan_by_mma_sync(spec: GemmSpec, mainloop: MmaSyncMainloop, architecture: Architecture) -> MmaSyncPlanesPlan:
    """The plan of ``spec``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, [*division_reasons(spec), *invariance_reasons(spec)])
    arithmetic = mainloop.arithmetic
    multiplied = split_factors(arithmetic.model_copy(update={"split": "kernel"}), outline.matrices[0])
    unfit = [*plane_reasons(spec, arithmetic, outline.matrices, plane_scheme(arithmetic)), *fragment_reasons(spec, mainloop)]
    loop = warp_mma_loop(outline, mainloop, multiplied, unfit) if outline.readable else None
    epilogue = outline.epilogue()
    assert loop is not None
    name = outline.name("gemm_mma", name_parts(mainloop))
    planes = planes_plan(name, arithmetic, outline.matrices, loop.tile_k, matrices_held=(loop.warp_n // 8, loop.warp_m // BLOCK_ROWS))
    grid, regions = grid_of(loop), warp_mma_regions(loop)
    return MmaSyncPlanesPlan(
        **tensor_numbers(outline, name, epilogue, loop.threads, grid, regions),
        sequence=planes_sequence(name, spec, outline.matrices, loop, grid, epilogue, planes),
        template=template_of(mainloop),
        loop=loop,
        planes=planes,
    )
