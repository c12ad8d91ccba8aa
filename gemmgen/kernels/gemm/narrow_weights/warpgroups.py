"""The mainloop of narrow weights that warpgroups multiply from registers, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.core.errors import Reason
from gemmgen.core.formulas import Formula
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.narrow_weights.loop import Codes
from gemmgen.kernels.gemm.packed_weights import PANEL, UNIT_BYTES, UNIT_WORDS
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.spec import DataParallel, GemmSpec, NarrowWeightsMainloop, SplitKCluster
from gemmgen.kernels.gemm.tensor_cores.sequence import matrix_map
from gemmgen.kernels.launch import TensorMapArgument
from gemmgen.kernels.math.warpgroup import WARPGROUP, WarpgroupInstruction
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks

TILE_K = 128
"""Values of k of a stage: whole groups of any size."""
BOX_ELEMENTS = 64
"""Values of k of a box of A, whose rows have 128 bytes."""
WARP_COLUMNS = 16
"""Columns of an instruction's result that a warp has."""
MOST_ROWS = 256
BARRIER_BYTES = 8
REGISTERS = (24, 240)
"""Registers of a thread of the producer, and of one of two groups of consumers."""
OTHER_REGISTERS = 40
"""Registers of a thread beside sums and fragments; an estimate."""


@dataclass(frozen=True, kw_only=True)
class RegisterLoop(Codes, WarpgroupInstruction):
    """Numbers of a mainloop whose warpgroups multiply weights from registers by rows of A in shared memory."""

    tile_m: int
    tile_n: int
    blocks: int
    """Instructions side by side along n of a group of warps, 64 columns each."""
    cluster_k: int
    stages: int

    @property
    def panel(self) -> int:
        return PANEL

    @property
    def tile_k(self) -> int:
        return TILE_K

    @property
    def consumers(self) -> int:
        """Groups of warps that multiply."""
        return self.tile_n // (4 * WARP_COLUMNS * self.blocks)

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def k_warps(self) -> int:
        return 1

    @property
    def min_blocks_per_sm(self) -> int:
        return 1

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a thread of the producer and of a consumer, where they are redistributed."""
        return REGISTERS if self.consumers > 1 else None

    # The instruction: weights are its left factor, so that its columns are rows of A.

    @property
    def type_b(self) -> str:
        return self.type_a

    @property
    def instruction_n(self) -> int:
        return self.tile_m

    @property
    def instruction_k(self) -> int:
        return 16

    @property
    def a_in_registers(self) -> bool:
        return True

    @property
    def transposed(self) -> tuple[bool, ...]:
        return (False,)

    @property
    def unit(self) -> str:
        return "f16_wgmma"

    # Shared memory.

    @property
    def weight_bytes(self) -> int:
        """Packed weights of a stage."""
        return self.tile_n // PANEL * (TILE_K // self.unit_k) * UNIT_BYTES

    @property
    def row_bytes(self) -> int:
        """Rows of A of a stage."""
        return self.tile_m * TILE_K * 2

    @property
    def sums_bytes(self) -> int:
        """Sums of a tile, which are where the stages were, in rows padded against bank conflicts."""
        return self.tile_m * (self.tile_n + 4) * 4

    @property
    def barriers_offset(self) -> int:
        """Bytes of shared memory before the barriers."""
        return max(self.stages * (self.row_bytes + self.weight_bytes), self.sums_bytes)

    @property
    def shared_bytes(self) -> int:
        return self.barriers_offset + 2 * self.stages * BARRIER_BYTES

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums, those of a group beside those of all."""
        return self.blocks * self.tile_m // 2 * (2 if self.group else 1)

    @property
    def estimated_registers(self) -> int:
        """Registers of a thread that multiplies, an estimate."""
        return self.sums + 4 * self.blocks * (self.group or TILE_K) // self.instruction_k + OTHER_REGISTERS

    @property
    def box_a(self) -> tuple[int, int]:
        """Elements along k and rows of a box of A."""
        return BOX_ELEMENTS, self.tile_m

    def maps(self, a: Matrix) -> tuple[TensorMapArgument, TensorMapArgument]:
        """Tensor maps of A, and of the packed weights: words of a unit, units along k, panels."""
        units = f"ceil_div(k, {self.unit_k})"
        weights = TensorMapArgument(
            name="map_b",
            array="B",
            element="u32",
            extents=(Formula(str(UNIT_WORDS)), Formula(units), Formula(f"ceil_div(n, {PANEL})")),
            strides=(Formula(str(UNIT_BYTES)), Formula(f"{UNIT_BYTES} * {units}")),
            meaning=f"the packed weights in boxes of {TILE_K} values of k of {self.tile_n} columns",
            box=(UNIT_WORDS, TILE_K // self.unit_k, self.tile_n // PANEL),
            l2_promotion="256B",
        )
        return matrix_map(a, self.box_a), weights


def register_loop(outline: Outline, mainloop: NarrowWeightsMainloop) -> RegisterLoop | None:
    """The loop, or None with what is wrong added to the outline's reasons."""
    spec, architecture, tile = outline.spec, outline.architecture, mainloop.tile
    found = list(_reasons(spec, mainloop))
    if not architecture.supports("wgmma"):
        found.append(Reason("wgmma", "mainloop.method", f"warpgroups on {architecture.name}", "sm_90a", "architecture: sm_90a"))
    outline.reasons += found
    if found:
        return None
    loop = RegisterLoop(
        bits=mainloop.bits,
        group=0 if mainloop.group == "column" else mainloop.group,
        zeros=mainloop.zeros,
        type_a=spec.storage.a,
        tile_m=tile.threadblock.m,
        tile_n=tile.threadblock.n,
        blocks=tile.warp.n // WARP_COLUMNS,
        cluster_k=spec.decomposition.slices if isinstance(spec.decomposition, SplitKCluster) else 1,
        stages=mainloop.stages,
    )
    resident = ResidentBlocks(architecture, 1, loop.threads)
    limit = REGISTERS[1] if loop.consumers > 1 else resident.allocated_registers
    outline.reasons += resident.too_many_sums(loop.sums, limit, "mainloop.tile", "fewer rows or columns")
    outline.reasons += resident.too_much_per_block(loop.shared_bytes)
    return loop


def _reasons(spec: GemmSpec, mainloop: NarrowWeightsMainloop) -> Iterator[Reason]:
    """Tiles, alignments and divisions of k that warpgroups do not have."""
    block, warp = mainloop.tile.threadblock, mainloop.tile.warp
    if block.m % 8 or block.m > MOST_ROWS or warp.m != block.m or block.k != TILE_K:
        got = f"{warp.m} of {block.m} rows, {block.k} of k"
        need = f"a multiple of 8 rows up to {MOST_ROWS}, the same for warps, and {TILE_K} of k for warpgroups"
        yield Reason("tile", "mainloop.tile", got, need)
    if warp.n not in (WARP_COLUMNS, 2 * WARP_COLUMNS) or block.n % (4 * warp.n) or block.n > 8 * warp.n:
        need = f"{WARP_COLUMNS} or {2 * WARP_COLUMNS} columns for each warp of one or two warpgroups"
        yield Reason("warp_tile", "mainloop.tile.warp", f"{warp.n} of {block.n} columns", need)
    if mainloop.k_warps > 1 or mainloop.min_blocks_per_sm > 1:
        yield Reason("k_warps", "mainloop.k_warps", str(mainloop.k_warps), "k_warps and min_blocks_per_sm of 1 for warpgroups")
    if not isinstance(spec.decomposition, DataParallel | SplitKCluster):
        need = "data_parallel or split_k_cluster for warpgroups"
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need)
    if spec.alignment.a < 8 or spec.alignment.c < 2:
        got = f"{spec.alignment.a} and {spec.alignment.c}"
        yield Reason("alignment", "alignment", got, "a: 8 and c: 2 or more for warpgroups: TMA brings A, and pairs are stored")
    if "a" in spec.constant:
        yield Reason("constant", "constant", ", ".join(spec.constant), "[b] for warpgroups, whose weights are copied before the wait")


def register_regions(loop: RegisterLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: stages, or the sums of a tile; barriers."""
    return (
        SharedRegion(
            "stages",
            "unsigned char",
            (loop.stages, loop.row_bytes + loop.weight_bytes),
            0,
            loop.barriers_offset,
            "rows of A, swizzled, and packed weights; then sums",
        ),
        SharedRegion(
            "barriers", "unsigned long long", (2 * loop.stages,), loop.barriers_offset, 2 * loop.stages * BARRIER_BYTES, "full, empty"
        ),
    )
