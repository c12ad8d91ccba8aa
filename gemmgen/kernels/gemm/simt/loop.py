"""The mainloop of a GEMM by tiles in shared memory and in registers, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES
from gemmgen.kernels.gemm.simt.operand import Operand, OperandRequest, SharedAccess, plan_operand, shared_accesses, shared_loader
from gemmgen.kernels.gemm.simt.reasons import cache_reasons, loader_reason, loop_reasons
from gemmgen.kernels.gemm.spec import GemmSpec, TiledMainloop
from gemmgen.kernels.math.fma_order import FmaOrder, fma_order
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks
from gemmgen.kernels.tiles.unrolling import unroll_argument

REGISTER_UNIT = 8
"""Registers of a thread are allocated in multiples of this."""
OTHER_REGISTERS = 24
"""Registers for addresses, counters and predicates that an instance needs beside its fragments; an estimate."""


@dataclass(frozen=True)
class TiledLoop:
    """Numbers of a mainloop with tiles in shared memory."""

    a: Operand
    b: Operand
    copied: tuple[Operand, ...]
    """Operands that a thread copies: A and B, or one thing that is A for some threads and B for the others."""
    tile_k: int
    stages: int
    row_major: bool
    """True if C is stored row-major."""
    lanes_major: int
    """Lanes of a warp along the slow dimension of C."""
    lanes_minor: int
    """Lanes of a warp along the contiguous dimension of C."""
    z_order: bool
    """True if lanes are counted in a zig-zag instead of along the contiguous dimension first."""
    copies: Literal["registers", "cp_async"]
    fragment_buffers: int
    k_group: int
    """Values of k that the fragments hold at a time."""
    unroll: str
    """Argument of ``#pragma unroll`` at the loop over the k of a tile: nothing, or a factor."""
    order: FmaOrder
    whole_k: bool
    """True if k is a multiple of ``tile_k``."""
    warps_major: int
    """Warps of a block along the slow dimension of C."""
    warps_minor: int
    """Warps of a block along the contiguous dimension of C; warps are counted along it first."""
    checks_tiles: bool
    """True if whole tiles are checked for the edges of the matrices, and only the vectors of those that cross one."""
    k_groups: int
    """Groups of threads that split the block's k, each with separate tiles."""
    min_blocks_per_sm: int
    accesses: tuple[SharedAccess, ...]
    estimated_registers: int

    @property
    def wavefronts_per_step(self) -> float:
        """For all accesses that a warp makes for a tile along k; on average if half of the warps copies each operand."""
        stores, loads = (sum(access.wavefronts for access in self.accesses[kind::2]) for kind in (0, 1))
        return loads + stores * len(self.copied) / 2

    @property
    def several_warps(self) -> bool:
        """True if several warps work on a tile."""
        return self.warps_major * self.warps_minor > 1

    def warps_along(self, operand: Operand) -> int:
        """Warps of a block, or of each of its groups, along the operand's axis of C."""
        return self.warps_major if operand.axis == self.major.axis else self.warps_minor

    def lanes_along(self, operand: Operand) -> int:
        """Lanes of a warp along the operand's axis of C."""
        return self.lanes_major if operand.axis == self.major.axis else self.lanes_minor

    @property
    def sums(self) -> int:
        """Elements of C that a thread adds up, each in a separate register."""
        return self.a.fragment.extent * self.b.fragment.extent

    @property
    def checked_axes(self) -> tuple[Literal["m", "n"], ...]:
        """The axes of C along which a tile may cross the edge of a factor."""
        return tuple(o.axis for o in (self.a, self.b) if (o.guards_rows if o.contiguous_along_k else o.guards_columns))

    @property
    def major(self) -> Operand:
        """The operand whose extent runs along the slow dimension of C."""
        return self.a if self.row_major else self.b

    @property
    def minor(self) -> Operand:
        """The operand whose extent runs along the contiguous dimension of C."""
        return self.b if self.row_major else self.a


def tiled_loop(
    spec: GemmSpec,
    mainloop: TiledMainloop,
    matrices: tuple[Matrix, Matrix, Matrix],
    threads: int,
    architecture: Architecture,
    reasons: list[Reason],
) -> TiledLoop | None:
    """The loop, or None with the errors added to ``reasons``."""
    tile = mainloop.tile
    row_major = spec.order == "row_major"
    lanes = (tile.warp.m // tile.thread.m, tile.warp.n // tile.thread.n)
    lanes_major, lanes_minor = lanes if row_major else lanes[::-1]
    warps = (tile.threadblock.m // tile.warp.m, tile.threadblock.n // tile.warp.n)
    warps_major, warps_minor = warps if row_major else warps[::-1]
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
            l2_policy=getattr(spec.cache, f"l2_policy_{name.lower()}"),
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
        unroll=unroll_argument(mainloop.unroll),
        order=fma_order(mainloop.order),
        whole_k=whole_k,
        warps_major=warps_major,
        warps_minor=warps_minor,
        checks_tiles=mainloop.edges == "each_tile" and any(operand.guarded for operand in copied),
        k_groups=mainloop.k_groups,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        accesses=shared_accesses(a) + shared_accesses(b),
        estimated_registers=accumulators + fragments + staged + OTHER_REGISTERS,
    )


def shared_regions(loop: TiledLoop, group_threads: int) -> tuple[SharedRegion, ...]:
    """The tiles of A and B and, over them, the sums of groups that split k."""
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


def resource_reasons(loop: TiledLoop, threads: int, regions: tuple[SharedRegion, ...], architecture: Architecture) -> list[Reason]:
    """More shared memory, registers or threads than the architecture has for the blocks that are to fit on an SM."""
    resident = ResidentBlocks(architecture, loop.min_blocks_per_sm, threads)
    reasons = list(resident.too_many(max(region.offset + region.bytes for region in regions), "mainloop."))
    hint = "use smaller thread tiles, fewer threads or fewer blocks"
    reasons += resident.too_many_sums(loop.sums, register_budget(loop, threads, architecture), "mainloop.tile.thread", hint)
    return reasons


def register_budget(loop: TiledLoop, threads: int, architecture: Architecture) -> int:
    """Registers that a thread may use, so that as many blocks fit on an SM as the spec wants. The compiler spills any excess."""
    for_all = architecture.registers_per_sm // max(1, loop.min_blocks_per_sm * threads)
    return int(min(architecture.registers_per_thread, for_all // REGISTER_UNIT * REGISTER_UNIT))
