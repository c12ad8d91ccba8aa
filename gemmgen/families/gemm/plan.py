"""From a GEMM spec to every number that its kernel contains, or to all the reasons why there can be none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Literal

from gemmgen.errors import PlanError, Reason
from gemmgen.families.base import KernelPlan, SharedRegion
from gemmgen.families.gemm.accesses import SharedAccess, shared_accesses
from gemmgen.families.gemm.exchange import Exchange, plan_exchange
from gemmgen.families.gemm.fma_order import FmaOrder, fma_order
from gemmgen.families.gemm.helpers import Helper, conversion_helpers, copy_helpers
from gemmgen.families.gemm.matrices import FLOAT_BYTES, matrix_layouts
from gemmgen.families.gemm.operand import Operand, OperandRequest, plan_operand, shared_loader
from gemmgen.families.gemm.reasons import (
    alignment_reasons,
    cache_reasons,
    combination_reasons,
    launch_reasons,
    loader_reason,
    loop_reasons,
    resource_reasons,
    thread_reasons,
    tile_reasons,
)
from gemmgen.families.gemm.sequence import WORKSPACE_ALIGNMENT, Geometry, gemm_sequence
from gemmgen.families.gemm.spec import DataParallel, GemmSpec, NaiveMainloop, SplitKParallel, StreamK, TiledMainloop
from gemmgen.families.matrix import Matrix
from gemmgen.families.naming import architecture_reasons, instance_name, spec_digest
from gemmgen.families.stages import EpilogueStage, epilogue_stages
from gemmgen.launch import Argument, ScalarArgument
from gemmgen.target import WARP_THREADS, Architecture

REDUCTION_THREADS = 256
REDUCTION_VECTOR = 4
"""Elements of C that a thread of the kernel that sums up slices works on."""
MAXIMUM_REDUCTION_GROUPS = 16
OTHER_REGISTERS = 24
"""Registers for addresses, counters and predicates that an instance needs beside its fragments; an estimate."""


@dataclass(frozen=True)
class TiledLoop:
    """Numbers of a mainloop with tiles in shared memory."""

    a: Operand
    b: Operand
    copied: tuple[Operand, ...]
    """What a thread copies: A and B, or one thing that is A for some threads and B for the others."""
    tile_k: int
    stages: int
    row_major: bool
    """Whether C is stored row-major."""
    lanes_major: int
    """Lanes of a warp along the slow dimension of C."""
    lanes_minor: int
    """Lanes of a warp along the contiguous dimension of C."""
    z_order: bool
    """Whether lanes are counted in a zig-zag instead of along the contiguous dimension first."""
    copies: Literal["registers", "cp_async"]
    fragment_buffers: int
    k_group: int
    """Values of k that the fragments hold at a time."""
    unroll: str
    """What follows ``#pragma unroll`` at the loop over the k of a tile: nothing, or a factor."""
    order: FmaOrder
    whole_k: bool
    """Whether k is a multiple of ``tile_k``."""
    warps_minor: int
    """Warps of a block along the contiguous dimension of C; warps are counted along it first."""
    k_groups: int
    """Groups of threads that share out the block's k, each with tiles of its own."""
    min_blocks_per_sm: int
    accesses: tuple[SharedAccess, ...]
    estimated_registers: int

    @property
    def wavefronts_per_step(self) -> float:
        """Of all accesses that a warp makes for a tile along k; if half of the warps copies each operand, on average."""
        stores, loads = (sum(access.wavefronts for access in self.accesses[kind::2]) for kind in (0, 1))
        return loads + stores * len(self.copied) / 2

    @property
    def major(self) -> Operand:
        """The operand whose extent runs along the slow dimension of C."""
        return self.a if self.row_major else self.b

    @property
    def minor(self) -> Operand:
        """The operand whose extent runs along the contiguous dimension of C."""
        return self.b if self.row_major else self.a


@dataclass(frozen=True)
class NaiveLoop:
    """Numbers of the kernel with one thread for each element of C."""

    tile_major: int
    tile_minor: int


STORES = {"data_parallel": "finished", "split_k_parallel": "partial", "split_k_serial": "in_turn", "stream_k": "streamed"}


@dataclass(frozen=True)
class GemmPlan(KernelPlan):
    """A GEMM instance. *Major* names what runs along the slow dimension of stored C, *minor* along its contiguous one."""

    matrix_a: Matrix
    matrix_b: Matrix
    matrix_c: Matrix
    threads: int
    tile_m: int
    tile_n: int
    vector_c: int
    """Elements of C that one access reads or writes."""
    whole_major: bool
    """Whether the extent along the slow dimension of C is a multiple of the tile."""
    whole_minor: bool
    """Whether the extent along the contiguous dimension of C is a multiple of the tile."""
    epilogue: tuple[EpilogueStage, ...]
    loop: TiledLoop | NaiveLoop
    exchange: Exchange | None
    """How results pass through shared memory on their way to C, if they do."""
    reduction_groups: int
    """Groups of threads among which a block that sums up slices of k shares them."""

    @property
    def epilogue_coordinates(self) -> tuple[str, ...]:
        """Which coordinates of an element the epilogue looks at."""
        used = {coordinate for stage in self.epilogue for coordinate in stage.operation.coordinates}
        return tuple(coordinate for coordinate in ("row", "column") if coordinate in used)

    @property
    def epilogue_parameters(self) -> tuple[Argument, ...]:
        """What the device function for the epilogue is given: the value, coordinates, arguments and elements of matrices."""
        parameters: list[Argument] = [ScalarArgument("value", "f32", "the result so far")]
        parameters += [ScalarArgument(name, "s32", f"its {name}") for name in self.epilogue_coordinates]
        for stage in self.epilogue:
            parameters += stage.arguments
            parameters += [ScalarArgument(matrix.variable, "f32", f"element of {matrix.name}") for matrix in stage.matrices]
        return tuple(parameters)

    @property
    def looks_up_along_minor(self) -> bool:
        """Whether the epilogue looks something up along the contiguous dimension, for elements that must then exist."""
        return ("column" if self.minor == "n" else "row") in self.epilogue_coordinates

    @property
    def residuals(self) -> tuple[Matrix, ...]:
        """Matrices of C's shape that the epilogue reads."""
        return tuple(matrix for stage in self.epilogue for matrix in stage.matrices)

    @property
    def batched(self) -> tuple[Matrix, ...]:
        """Matrices of which each product of a batch has its own."""
        matrices = (self.matrix_a, self.matrix_b, self.matrix_c, *self.residuals)
        return matrices if self.spec.batch == "strided" else ()

    def batched_in(self, launch: int) -> tuple[Matrix, ...]:
        """Those of the batched matrices that the kernel of a launch is given."""
        given = self.sequence.launches[launch].arguments
        return tuple(matrix for matrix in self.batched if matrix.name in given)

    @property
    def approximate(self) -> bool:
        """Whether the epilogue calls functions whose last bits differ between backends."""
        return any(stage.operation.approximate for stage in self.epilogue)

    @property
    def mainloop(self) -> str:
        """Which of the mainloops in ``templates/gemm/mainloop.cu.j2`` the kernel has."""
        assert isinstance(self.loop, TiledLoop)
        if self.loop.fragment_buffers == 2:
            return f"{self.loop.copies}_read_ahead"
        if self.loop.stages == 1:
            return f"{self.loop.copies}_one_stage"
        return "cp_async_stages" if self.loop.copies == "cp_async" else "registers_two_stages"

    @property
    def partial_vector(self) -> int:
        """Elements of a partial product that one store to the workspace writes."""
        assert isinstance(self.loop, TiledLoop)
        return self.exchange.copy.vector if self.exchange else gcd(REDUCTION_VECTOR, self.loop.minor.fragment.vector)

    @property
    def workspace_alignment(self) -> int:
        """Bytes that the parts of the workspace are multiples of."""
        return WORKSPACE_ALIGNMENT

    @property
    def group_threads(self) -> int:
        """Threads of a block that work on the same tiles."""
        return self.threads // getattr(self.loop, "k_groups", 1)

    @property
    def slices(self) -> int:
        """Parts that k is divided into."""
        return int(getattr(self.spec.decomposition, "slices", 1))

    @property
    def store(self) -> str:
        """What becomes of a block's tile: ``finished``, or, with k divided among blocks, ``partial``, ``in_turn`` or ``streamed``."""
        return STORES[self.spec.decomposition.scheme]

    @property
    def divides_k(self) -> bool:
        """Whether a thread may have only a part of k."""
        return self.store != "finished" or self.group_threads < self.threads

    @property
    def helpers(self) -> tuple[Helper, ...]:
        """The small device functions that the kernel needs."""
        conversions = conversion_helpers(self)
        return conversions if isinstance(self.loop, NaiveLoop) else conversions + copy_helpers(self, self.loop)

    @property
    def major(self) -> Literal["m", "n"]:
        """The dimension of C that is slow in memory."""
        return "m" if self.matrix_c.row_major else "n"

    @property
    def minor(self) -> Literal["m", "n"]:
        """The dimension of C that is contiguous in memory."""
        return "n" if self.matrix_c.row_major else "m"


def plan_gemm(spec: GemmSpec, architecture: Architecture) -> GemmPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    reasons = architecture_reasons(spec, architecture)
    matrices = matrix_layouts(spec)
    reasons += alignment_reasons(matrices) + combination_reasons(spec) + launch_reasons(spec)
    mainloop = spec.mainloop
    loop: TiledLoop | NaiveLoop | None
    regions: tuple[SharedRegion, ...] = ()
    exchange: Exchange | None = None
    if isinstance(mainloop, NaiveMainloop):
        tile_m, tile_n = mainloop.threadblock.m, mainloop.threadblock.n
        threads = tile_m * tile_n
        reasons += thread_reasons(threads, architecture, "mainloop.threadblock")
        row_major = spec.order == "row_major"
        loop = NaiveLoop(*((tile_m, tile_n) if row_major else (tile_n, tile_m)))
        vector_c = 1
        prefix, parts = "sgemm_naive", [f"{tile_m}x{tile_n}"]
        template = "gemm/naive.cu.j2"
    else:
        tile = mainloop.tile
        tile_m, tile_n = tile.threadblock.m, tile.threadblock.n
        unfit = tile_reasons(mainloop, architecture)
        reasons += unfit
        loop, threads, vector_c = None, 0, 1
        if not unfit:
            threads = WARP_THREADS * (tile_m // tile.warp.m) * (tile_n // tile.warp.n)
            loop = _tiled_loop(spec, mainloop, matrices, threads, architecture, reasons)
        if loop is not None:
            vector_c = gcd(spec.alignment.c, loop.minor.fragment.vector)
            regions = _shared_regions(loop, threads)
            if spec.store == "through_shared":
                partial = isinstance(spec.decomposition, SplitKParallel)
                vector = REDUCTION_VECTOR if partial else spec.alignment.c
                exchange = plan_exchange(loop.major, loop.minor, threads // WARP_THREADS, vector, reasons)
            if exchange is not None:
                vector_c = exchange.copy.vector
                regions += (exchange.region(),)
            threads *= loop.k_groups
            reasons += resource_reasons(loop, threads, regions, architecture)
        prefix = "sgemm"
        parts = [
            f"{tile_m}x{tile_n}x{tile.threadblock.k}",
            f"w{tile.warp.m}x{tile.warp.n}",
            f"t{tile.thread.m}x{tile.thread.n}",
            f"s{mainloop.stages}",
        ]
        parts += [f"g{mainloop.k_groups}"] if mainloop.k_groups > 1 else []
        if not isinstance(spec.decomposition, DataParallel):
            count = spec.decomposition.blocks if isinstance(spec.decomposition, StreamK) else spec.decomposition.slices
            parts.append(f"{spec.decomposition.scheme.replace('_', '')}{count}")
        template = "gemm/tiled.cu.j2"
    if reasons:
        raise PlanError(f"no kernel for this spec on {architecture.name}:", reasons)
    assert loop is not None
    whole = {"m": spec.multiple_of.m % tile_m == 0, "n": spec.multiple_of.n % tile_n == 0}
    major, minor = ("m", "n") if spec.order == "row_major" else ("n", "m")
    parts += ["batched"] if spec.batch == "strided" else []
    types = [matrix.type for matrix in matrices]
    parts += ["_".join(types)] if set(types) != {"f32"} else []
    parts += [spec.transpose if spec.order == "row_major" else f"{spec.transpose}_col"]
    name = instance_name(prefix, parts, spec)
    epilogue = epilogue_stages(spec.epilogue, matrices[2])
    shared_bytes = max((region.offset + region.bytes for region in regions), default=0)
    static = shared_bytes <= architecture.static_shared_bytes_per_block
    geometry = Geometry(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=loop.tile_k if isinstance(loop, TiledLoop) else 1,
        threads=threads,
        regions=regions,
        static_shared=static,
        reduction_threads=REDUCTION_THREADS,
        reduction_elements=REDUCTION_THREADS // _reduction_groups(spec) * REDUCTION_VECTOR,
    )
    return GemmPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=gemm_sequence(name, spec, matrices, geometry, epilogue),
        template=template,
        shared_memory=regions,
        dynamic_shared_bytes=0 if static else shared_bytes,
        spec=spec,
        matrix_a=matrices[0],
        matrix_b=matrices[1],
        matrix_c=matrices[2],
        threads=threads,
        tile_m=tile_m,
        tile_n=tile_n,
        vector_c=vector_c,
        whole_major=whole[major],
        whole_minor=whole[minor],
        epilogue=epilogue,
        loop=loop,
        exchange=exchange,
        reduction_groups=_reduction_groups(spec),
    )


def _reduction_groups(spec: GemmSpec) -> int:
    """Groups of threads among which a reducing block shares the slices: about eight slices each, a power of two of groups."""
    slices = getattr(spec.decomposition, "slices", 1)
    return int(min(MAXIMUM_REDUCTION_GROUPS, 1 << max(0, (slices - 1).bit_length() - 3)))


def _tiled_loop(
    spec: GemmSpec,
    mainloop: TiledMainloop,
    matrices: tuple[Matrix, Matrix, Matrix],
    threads: int,
    architecture: Architecture,
    reasons: list[Reason],
) -> TiledLoop | None:
    """The loop, or None with what is wrong added to ``reasons``."""
    tile = mainloop.tile
    row_major = spec.order == "row_major"
    lanes = (tile.warp.m // tile.thread.m, tile.warp.n // tile.thread.n)
    lanes_major, lanes_minor = lanes if row_major else lanes[::-1]
    warps_minor = tile.threadblock.n // tile.warp.n if row_major else tile.threadblock.m // tile.warp.m
    whole_k = spec.multiple_of.k % tile.threadblock.k == 0

    def operand(name: Literal["A", "B"], axis: Literal["m", "n"], matrix: Matrix) -> Operand | None:
        request = OperandRequest(
            name,
            axis,
            contiguous_along_k=matrix.contiguous == "k",
            leading_dimension=matrix.leading_dimension,
            type=matrix.type,
            widest=matrix.alignment,
            threads=threads if mainloop.loaders == "all" else threads // 2,
            lane_grid=(lanes_major, lanes_minor),
            is_minor=(name == "B") == row_major,
            whole_extent=getattr(spec.multiple_of, axis) % getattr(tile.threadblock, axis) == 0,
            whole_k=whole_k,
            l2_prefetch=getattr(spec.cache, f"l2_prefetch_{name.lower()}"),
            keeps_in_l1=getattr(spec.cache, f"l1_{name.lower()}") == "keep",
        )
        return plan_operand(request, mainloop, reasons)

    reasons += loop_reasons(mainloop, architecture) + cache_reasons(spec, mainloop)
    a, b = operand("A", "m", matrices[0]), operand("B", "n", matrices[1])
    if a is None or b is None:
        return None
    copied: tuple[Operand, ...] = (a, b)
    if mainloop.loaders == "halves":
        loader = shared_loader(a, b)
        if loader is None:
            reasons.append(loader_reason(a, b))
            return None
        copied = (loader,)
        a, b = replace(a, shares_loader=True), replace(b, shares_loader=True)
    k_group = max(a.k_vector, b.k_vector)
    accumulators = tile.thread.m * tile.thread.n
    staged = sum(-(-o.copy.passes * o.copy.vector * o.element_bytes // FLOAT_BYTES) for o in copied if not o.is_async)
    fragments = (tile.thread.m + tile.thread.n) * k_group * mainloop.fragment_buffers
    return TiledLoop(
        a=a,
        b=b,
        copied=copied,
        tile_k=tile.threadblock.k,
        stages=mainloop.stages,
        row_major=row_major,
        lanes_major=lanes_major,
        lanes_minor=lanes_minor,
        z_order=mainloop.lanes == "z_order" and lanes_major > 1 and lanes_minor > 1,
        copies=mainloop.copies,
        fragment_buffers=mainloop.fragment_buffers,
        k_group=k_group,
        unroll="" if mainloop.unroll == "full" else f" {mainloop.unroll}",
        order=fma_order(mainloop),
        whole_k=whole_k,
        warps_minor=warps_minor,
        k_groups=mainloop.k_groups,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        accesses=shared_accesses(a) + shared_accesses(b),
        estimated_registers=accumulators + fragments + staged + OTHER_REGISTERS,
    )


def _shared_regions(loop: TiledLoop, group_threads: int) -> tuple[SharedRegion, ...]:
    regions: list[SharedRegion] = []
    offset = 0
    groups, group = ((loop.k_groups,), "[group]") if loop.k_groups > 1 else ((), "")
    for operand in (loop.a, loop.b):
        shape = (*groups, loop.stages, *operand.shared_shape)
        size = prod(shape) * operand.shared_bytes
        order = f"{group}[stage][k][{operand.axis}]" if operand.mn_major else f"{group}[stage][{operand.axis}][k]"
        meaning = f"tiles of {operand.name}, {order}"
        regions.append(SharedRegion(f"shared_{operand.suffix}", operand.shared_c_type, shape, offset, size, meaning))
        offset += -(-size // 16) * 16
    if groups:
        elements = loop.a.fragment.extent * loop.b.fragment.extent
        shape = (loop.k_groups - 1, elements, group_threads)
        regions.append(SharedRegion("sums", "float", shape, 0, prod(shape) * FLOAT_BYTES, "sums of the groups, over the tiles"))
    return tuple(regions)
