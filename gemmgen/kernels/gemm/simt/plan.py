"""The plan of a GEMM by tiles in shared memory and in registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.plan import GemmPlan, Helper, Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons, multiply_add_reasons
from gemmgen.kernels.gemm.sequence import REDUCTION_VECTOR
from gemmgen.kernels.gemm.simt.exchange import Exchange, plan_exchange
from gemmgen.kernels.gemm.simt.loop import TiledLoop, resource_reasons, shared_regions, tiled_loop
from gemmgen.kernels.gemm.simt.reasons import tile_reasons
from gemmgen.kernels.gemm.simt.sequence import simt_sequence
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel, TiledMainloop
from gemmgen.kernels.tiles.resources import ResidentBlocks


@dataclass(frozen=True, kw_only=True)
class SimtPlan(GemmPlan):
    """A GEMM whose threads each multiply a tile with FFMA instructions."""

    loop: TiledLoop
    exchange: Exchange | None
    """Exchange of results through shared memory before they are stored to C, if there is one."""

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """An estimate of registers that exceeds the limit per thread."""
        resident = ResidentBlocks(self.architecture, self.loop.min_blocks_per_sm, self.threads)
        return resident.few_registers(self.loop.estimated_registers, resident.allocated_registers, "mainloop.tile.thread")

    @property
    def registers_per_thread(self) -> int:
        limit = 65536 // (self.threads * self.loop.min_blocks_per_sm) // 8 * 8
        return max(32, min(255, limit, self.loop.estimated_registers))

    @property
    def step_k(self) -> int:
        return self.loop.tile_k

    @property
    def slice_k(self) -> int:
        return self.loop.tile_k * self.loop.k_groups

    @property
    def stages(self) -> int:
        return self.loop.stages

    def additions(self, k: int) -> tuple[str, int]:
        groups = self.loop.k_groups
        return "fma" if groups == 1 else f"fma in {groups} groups by {self.loop.tile_k}", 0

    @property
    def mainloop(self) -> str:
        """The kernel's mainloop in ``templates/gemm/mainloop.cu.j2``."""
        if self.loop.fragment_buffers == 2:
            return f"{self.loop.copies}_read_ahead"
        if self.loop.stages == 1:
            return f"{self.loop.copies}_one_stage"
        return "cp_async_stages" if self.loop.copies == "cp_async" else "registers_two_stages"

    @property
    def partial_vector(self) -> int:
        """Elements of a partial product that one store to the workspace writes."""
        return self.exchange.copy.vector if self.exchange else gcd(REDUCTION_VECTOR, self.loop.minor.fragment.vector)

    @property
    def group_threads(self) -> int:
        """Threads of a block that work on the same tiles."""
        return self.threads // self.loop.k_groups

    @property
    def divides_k(self) -> bool:
        """True if a thread may have only a part of k."""
        return self.store != "finished" or self.group_threads < self.threads

    @property
    def helpers(self) -> tuple[Helper, ...]:
        """Copies of vectors between memories and registers; wide ones first, after the functions that others call."""
        needed: dict[Helper, None] = {}

        def load(kind: str, width: int, half: bool) -> None:
            needed[Helper("half" if half else "copy", f"load_{kind}", (width,))] = None

        for operand in sorted(self.loop.copied, key=lambda operand: -operand.copy.vector):
            if not operand.is_async:
                for copied in (operand.inside, operand) if self.loop.checks_tiles else (operand,):
                    load("guarded" if copied.guarded else "whole", operand.copy.vector, operand.is_half)
            elif operand.converts_fragments and operand.load_width > 1:
                load("whole", operand.load_width, half=True)
        kind = "whole" if self.whole_minor else "guarded"
        if self.store == "partial":
            needed[Helper("copy", f"store_{kind}", (self.partial_vector,))] = None
            return tuple(needed)
        width, element = self.vector_c, self.matrix_c.type
        half = self.matrix_c.is_half
        if self.spec.beta == "argument" or self.residuals:
            load(kind, width, half)
            if half:
                needed[Helper("half", "load_converted", (width, element, kind == "guarded"))] = None
        if half and width > 1:
            needed[Helper("half", "pack", (element,))] = None
        streaming = (True,) if self.spec.cache.streaming_stores else ()
        stored = (width, element, *streaming) if half else (width, *streaming)
        needed[Helper("half" if half else "copy", f"store_{kind}", stored)] = None
        return tuple(needed)


def plan(spec: GemmSpec, mainloop: TiledMainloop, architecture: Architecture) -> SimtPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, _combination_reasons(spec))
    tile = mainloop.tile
    unfit = tile_reasons(mainloop, architecture)
    outline.reasons += unfit
    threads = 0
    loop: TiledLoop | None = None
    if not unfit and outline.readable:
        threads = WARP_THREADS * (tile.threadblock.m // tile.warp.m) * (tile.threadblock.n // tile.warp.n)
        loop = tiled_loop(spec, mainloop, outline.matrices, threads, architecture, outline.reasons)
    vector_c = 1
    regions: tuple[SharedRegion, ...] = ()
    exchange: Exchange | None = None
    if loop is not None:
        vector_c = gcd(spec.alignment.c, loop.minor.fragment.vector)
        regions = shared_regions(loop, threads)
        if spec.store == "through_shared":
            partial = isinstance(spec.decomposition, SplitKParallel)
            vector = REDUCTION_VECTOR if partial else spec.alignment.c
            exchange = plan_exchange(loop.major, loop.minor, threads // WARP_THREADS, vector, outline.reasons)
        if exchange is not None:
            vector_c = exchange.copy.vector
            regions += (exchange.region(),)
        threads *= loop.k_groups
        outline.reasons += resource_reasons(loop, threads, regions, architecture)
    epilogue = outline.epilogue()
    assert loop is not None
    name = outline.name("sgemm", _name_parts(mainloop))
    shared_bytes = max((region.offset + region.bytes for region in regions), default=0)
    dynamic = 0 if shared_bytes <= architecture.static_shared_bytes_per_block else shared_bytes
    return SimtPlan(
        name=name,
        spec_digest=outline.digest,
        architecture=architecture,
        sequence=simt_sequence(name, spec, outline.matrices, tile, threads, dynamic, epilogue),
        template="gemm/tiled.cu.j2",
        shared_memory=regions,
        dynamic_shared_bytes=dynamic,
        spec=spec,
        matrices=outline.matrices,
        threads=threads,
        tile_m=tile.threadblock.m,
        tile_n=tile.threadblock.n,
        vector_c=vector_c,
        epilogue=epilogue,
        loop=loop,
        exchange=exchange,
    )


def _combination_reasons(spec: GemmSpec) -> list[Reason]:
    return [*division_reasons(spec), *invariance_reasons(spec), *multiply_add_reasons(spec)]


def _name_parts(mainloop: TiledMainloop) -> list[str]:
    tile = mainloop.tile
    parts = [
        f"{tile.threadblock.m}x{tile.threadblock.n}x{tile.threadblock.k}",
        f"w{tile.warp.m}x{tile.warp.n}",
        f"t{tile.thread.m}x{tile.thread.n}",
        f"s{mainloop.stages}",
    ]
    return parts + ([f"g{mainloop.k_groups}"] if mainloop.k_groups > 1 else [])
