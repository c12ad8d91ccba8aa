"""The plan of a product of few columns."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.gemv.loop import STAGED_VECTOR, VectorLoop, estimated_registers, vector_loop, vector_regions
from gemmgen.kernels.gemm.gemv.sequence import gemv_sequence
from gemmgen.kernels.gemm.plan import GemmPlan, Helper, Outline
from gemmgen.kernels.gemm.reasons import (
    direct_store_reasons,
    invariance_reasons,
    launch_slices_reasons,
    multiply_add_reasons,
    thread_reasons,
    vector_division_reasons,
)
from gemmgen.kernels.gemm.spec import GemmSpec, GemvMainloop, SplitKLast


@dataclass(frozen=True, kw_only=True)
class GemvPlan(GemmPlan):
    """A GEMM that streams A past a few columns of B."""

    loop: VectorLoop

    @property
    def registers_per_thread(self) -> int:
        limit = 65536 // (self.threads * self.loop.min_blocks_per_sm) // 8 * 8
        return max(32, min(255, limit, estimated_registers(self.loop)))

    @property
    def step_k(self) -> int:
        return self.loop.step * self.loop.unroll

    @property
    def slice_k(self) -> int:
        return self.loop.step

    @property
    def slices_of_a_turn(self) -> int:
        return self.loop.summers * self.loop.slices_at_once

    @property
    def padded_k(self) -> int:
        return 1

    def additions(self, k: int) -> tuple[str, int]:
        return f"chains of fma {self.mainloop_digest}", 0

    @property
    def helpers(self) -> tuple[Helper, ...]:
        """Loads of A and B, whole and guarded; functions that others call come first."""
        return self._loads_along_m() if self.loop.along == "m" else self._loads_along_k()

    def _loads_along_k(self) -> tuple[Helper, ...]:
        loop = self.loop
        kinds = ("whole", "guarded")
        sides = ((self.matrix_a, loop.width_a), (self.matrix_b, loop.width_b))
        wanted = [(matrix, width, kind) for matrix, width in sides for kind in kinds]
        needed: dict[Helper, None] = {}
        if self.store == "last":
            needed[Helper("copy", "load_guarded", (loop.sum_width,))] = None
        if loop.width_c > 1:
            element = self.matrix_c.type
            needed |= {Helper("copy", kind, (loop.width_c,)): None for kind in ("load_whole", "store_whole")}
            if self.matrix_c.is_half:
                needed |= {Helper("half", "pack", (element,)): None, Helper("half", "store_whole", (loop.width_c, element)): None}
        for matrix, width, kind in wanted:
            needed[Helper("half" if matrix.is_half else "copy", f"load_{kind}", (width,))] = None
        for matrix, width, kind in wanted:
            if matrix.is_half:
                needed[Helper("half", "load_converted", (width, matrix.type, kind == "guarded"))] = None
        return tuple(needed)

    def _loads_along_m(self) -> tuple[Helper, ...]:
        """Loads of A and B in their storage order, and the function that adds up slices."""
        loop = self.loop
        needed = {Helper("copy", "load_guarded", (loop.sum_width,)): None} if self.store == "last" else {}
        if loop.stages_b:
            needed[Helper("copy", "load_whole", (STAGED_VECTOR,))] = None
        for held in (loop.held_a,) if loop.stages_b else (loop.held_a, loop.held_b):
            kind = "load_words" if held.in_words else "load_whole"
            needed[Helper("copy" if held.element == "f32" else "half", kind, (held.width,))] = None
        return tuple(needed)


def plan(spec: GemmSpec, mainloop: GemvMainloop, architecture: Architecture) -> GemvPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, _combination_reasons(spec))
    loop = vector_loop(spec, mainloop, outline.matrices, architecture, outline.reasons) if outline.readable else None
    outline.reasons += thread_reasons(mainloop.threads, architecture, "mainloop.threads")
    epilogue = outline.epilogue()
    assert loop is not None
    name = outline.name("gemm_vector", [f"{mainloop.lanes}{mainloop.along}", f"{mainloop.rows}x{mainloop.columns}"])
    regions = vector_regions(loop)
    return GemvPlan(
        name=name,
        spec_digest=outline.digest,
        architecture=architecture,
        sequence=gemv_sequence(name, spec, outline.matrices, loop, epilogue),
        template="gemm/vector.cu.j2",
        shared_memory=regions,
        dynamic_shared_bytes=0,
        spec=spec,
        matrices=outline.matrices,
        threads=mainloop.threads,
        tile_m=loop.tile_m,
        tile_n=mainloop.columns,
        vector_c=loop.width_c,
        epilogue=epilogue,
        loop=loop,
    )


def _combination_reasons(spec: GemmSpec) -> list[Reason]:
    division = [] if isinstance(spec.decomposition, SplitKLast) else vector_division_reasons(spec)
    groups = (division, launch_slices_reasons(spec), invariance_reasons(spec), multiply_add_reasons(spec), direct_store_reasons(spec))
    return [reason for reasons in groups for reason in reasons]
