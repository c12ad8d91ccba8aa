"""Float32 products by warpgroups that multiply planes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.spec import GemmSpec, WgmmaMainloop
from gemmgen.kernels.gemm.split_precision.planes import plane_scheme, planes_plan
from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan, partial_sums, split_factors
from gemmgen.kernels.gemm.split_precision.reasons import plane_reasons, warpgroup_reasons
from gemmgen.kernels.gemm.split_precision.sequence import plane_maps, planes_sequence
from gemmgen.kernels.gemm.tensor_cores.plan import tensor_numbers
from gemmgen.kernels.gemm.wgmma.copied import as_copied
from gemmgen.kernels.gemm.wgmma.loop import warpgroup_loop, warpgroup_regions
from gemmgen.kernels.gemm.wgmma.plan import TEMPLATE, WgmmaPlan, grid_of, name_parts
from gemmgen.kernels.math.warpgroup import WarpgroupLoop


@dataclass(frozen=True, kw_only=True)
class WgmmaPlanesPlan(SplitPrecisionPlan, WgmmaPlan):
    """A float32 GEMM by ``wgmma`` of planes."""

    instructions: ClassVar[str] = "wgmma"
    loop: WarpgroupLoop

    @property
    def cost_kind(self) -> str:
        if self.loop.split_registers:
            return "planes of rows split in the mainloop"
        return "planes by wgmma" + (", clusters along k" if self.loop.cluster_k > 1 else "")

    @property
    def staggered(self) -> bool:
        return self.loop.staggered


def plan_by_wgmma(spec: GemmSpec, mainloop: WgmmaMainloop, architecture: Architecture) -> WgmmaPlanesPlan:
    """The plan of ``spec``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, [*division_reasons(spec), *invariance_reasons(spec)])
    arithmetic, scheme = mainloop.arithmetic, plane_scheme(mainloop.arithmetic)
    a, b, c = outline.matrices
    read = as_copied(mainloop, a), as_copied(mainloop, b), c
    multiplied = split_factors(arithmetic, read[0])
    if arithmetic.split == "mainloop":
        every = mainloop.promote_every if isinstance(mainloop.promote_every, int) else scheme.promote_every
        multiplied = replace(multiplied, split_registers=2 * scheme.planes * every // scheme.instruction_k)
    unfit = [*plane_reasons(spec, arithmetic, read, scheme), *warpgroup_reasons(spec, mainloop, read, scheme)]
    loop = warpgroup_loop(outline, mainloop, read, multiplied, unfit)
    epilogue = outline.epilogue()
    assert loop is not None
    name = outline.name("gemm", name_parts(spec, mainloop))
    planes = planes_plan(
        name,
        arithmetic,
        outline.matrices,
        loop.tile_k,
        mainloop.promote_every,
        loop.cluster_k * loop.k_groups,
        (loop.tile_n // 8, loop.blocks_m),
        *partial_sums(spec, outline.matrices),
    )
    grid, regions = grid_of(loop), warpgroup_regions(loop)
    maps = plane_maps(planes, (loop.a.box, loop.b.box))
    return WgmmaPlanesPlan(
        **tensor_numbers(outline, name, epilogue, loop.threads, grid, regions),
        sequence=planes_sequence(name, spec, outline.matrices, loop, grid, epilogue, planes, maps),
        template=TEMPLATE,
        loop=loop,
        planes=planes,
    )
