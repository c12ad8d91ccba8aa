"""Float32 products on tensor memory by planes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.spec import GemmSpec, TensorMemoryMainloop
from gemmgen.kernels.gemm.split_precision.planes import leave_together, plane_scheme, planes_plan
from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan
from gemmgen.kernels.gemm.split_precision.reasons import plane_reasons, tensor_memory_reasons
from gemmgen.kernels.gemm.split_precision.sequence import plane_maps, planes_sequence
from gemmgen.kernels.gemm.tcgen05.loop import TensorMemoryLoop, regions, tensor_memory_loop
from gemmgen.kernels.gemm.tcgen05.plan import TEMPLATE, TensorMemoryPlan, grid_of, name_parts
from gemmgen.kernels.gemm.tensor_cores.operands import Multiplied, arithmetic_parts
from gemmgen.kernels.gemm.tensor_cores.plan import tensor_numbers
from gemmgen.kernels.math.tensor_memory import BUFFERS, EPILOGUE_WARPS, ROWS

BLOCKS_M = ROWS // EPILOGUE_WARPS // 16
"""Blocks of 16 rows that a warp has sums of."""


@dataclass(frozen=True, kw_only=True)
class TensorMemoryPlanesPlan(SplitPrecisionPlan, TensorMemoryPlan):
    """A float32 GEMM by ``tcgen05`` of planes."""

    instructions: ClassVar[str] = "tcgen05"
    loop: TensorMemoryLoop

    @property
    def cost_kind(self) -> str:
        return "planes by wgmma"  # nobody here has such a device

    @property
    def store_kind(self) -> str:
        return self.cost_kind


def plan_by_tcgen05(spec: GemmSpec, mainloop: TensorMemoryMainloop, architecture: Architecture) -> TensorMemoryPlanesPlan:
    """The plan of ``spec``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, [*division_reasons(spec), *invariance_reasons(spec)])
    arithmetic, scheme = mainloop.arithmetic, plane_scheme(mainloop.arithmetic)
    type = "tf32" if scheme.type == "f32" else scheme.type
    multiplied = Multiplied(
        types=(type, type),
        element_bytes=(scheme.element_bytes, scheme.element_bytes),
        planes=(scheme.planes, scheme.planes),
        kept_sums=0 if leave_together(scheme, compensated=True) else BUFFERS,
    )
    unfit = [*plane_reasons(spec, arithmetic, outline.matrices, scheme), *tensor_memory_reasons(spec, mainloop, scheme)]
    loop = tensor_memory_loop(outline, mainloop, multiplied, unfit)
    epilogue = outline.epilogue()
    assert loop is not None
    name = outline.name("gemm_tcgen05", [*name_parts(loop), *arithmetic_parts(arithmetic)])
    planes = planes_plan(
        name, arithmetic, outline.matrices, loop.tile_k, mainloop.promote_every, matrices_held=(loop.tile_n // 8, BLOCKS_M)
    )
    grid, shared = grid_of(loop), regions(loop)
    maps = plane_maps(planes, (loop.a.box, loop.b.box))
    return TensorMemoryPlanesPlan(
        **tensor_numbers(outline, name, epilogue, loop.threads, grid, shared),
        sequence=planes_sequence(name, spec, outline.matrices, loop, grid, epilogue, planes, maps),
        template=TEMPLATE,
        loop=loop,
        planes=planes,
    )
