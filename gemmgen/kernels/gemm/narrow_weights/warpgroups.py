"""The mainloop of narrow weights that warpgroups multiply from registers, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from gemmgen.core.errors import Reason
from gemmgen.core.formulas import Formula
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.narrow_weights.loop import STORED, Codes, MainloopShown
from gemmgen.kernels.gemm.packed_weights import PANEL, UNIT_BYTES, UNIT_WORDS
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.spec import DataParallel, GemmSpec, NarrowWeightsMainloop, SplitKCluster, SplitKLast
from gemmgen.kernels.gemm.tensor_cores.sequence import matrix_map
from gemmgen.kernels.launch import TensorMapArgument
from gemmgen.kernels.math.warpgroup import WARPGROUP, WarpgroupInstruction
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks

TILE_K = 128
"""Values of k of a stage: whole groups of any size. Half as many, if sums are not those of groups."""
BOX_ELEMENTS = 64
"""Values of k of a box of A, whose rows have 128 bytes."""
WARP_COLUMNS = 16
"""Columns of an instruction's result that a warp has."""
MAX_ROWS = 256
MAX_COLUMNS = 256
MANY_ROWS = 176
"""Rows of a tile above which half as many rows of sums are stored at a time, to save shared memory."""
NUMBER_BYTES = 2
"""Bytes of a scale or a zero point."""
BARRIER_BYTES = 8
FEW_ROWS = 64
"""Rows of a tile whose products take about as long as the fragments of weights."""
SOME_ROWS = 128
"""Rows of a tile up to which a thread holds fragments of two halves of a stage."""
MAX_CONSUMERS = 4
REGISTERS = {(2, 1): (24, 240), (1, 3): (24, 136), (2, 2): (24, 104), (3, 1): (24, 160), (4, 1): (24, 112)}
"""Registers of a thread of the producer, and of one of the consumers, by the groups of consumers and the blocks of an SM."""
OTHER_REGISTERS = 40
"""Registers of a thread beside sums and fragments; an estimate."""


def rows_at_a_time(tile_m: int) -> int:
    """Rows of a tile whose sums a group of warps passes through shared memory at a time."""
    return gcd(tile_m, 16 if tile_m > MANY_ROWS else 32)


@dataclass(frozen=True, kw_only=True)
class RegisterLoop(Codes, WarpgroupInstruction):
    """Numbers of a mainloop whose warpgroups multiply weights from registers by rows of A in shared memory."""

    tile_m: int
    tile_n: int
    tile_k: int
    blocks: int
    """Instructions side by side along n of a group of warps, 64 columns each."""
    k_warps: int
    """Groups of warps that have the same columns, and take the stages in turn."""
    cluster_k: int
    stages: int
    min_blocks_per_sm: int
    persistent_blocks: int
    """Blocks of the grid, which take tiles in turn; 0: as many as there are tiles."""
    type_b: str
    instruction_n: int
    """Rows of A: weights are the left factor of an instruction."""
    a_in_registers: bool = True

    @property
    def small(self) -> bool:
        """True if codes become small numbers. Scaled, these would be too small for float16."""
        return not self.floats and (self.type_a == "bf16" or (self.bits == 4 and not self.scales_weights))

    @property
    def nibbles(self) -> str:
        return "small_nibbles" if self.small else "spread_nibbles"

    @property
    def panel(self) -> int:
        return PANEL

    @property
    def groups(self) -> int:
        """Groups of a stage, or 1 for a part of one."""
        return max(1, self.tile_k // self.group) if self.group else 1

    def first_group(self, step: str) -> str:
        """The first group of a stage."""
        return f"{step} * kGroups" if self.group <= self.tile_k else f"{step} / kGroupSteps"

    @property
    def consumers(self) -> int:
        """Groups of warps that multiply."""
        return self.column_groups * self.k_warps

    @property
    def column_groups(self) -> int:
        """Groups of warps side by side along n, each of which reads the stages that its turn is."""
        return self.tile_n // (4 * WARP_COLUMNS * self.blocks)

    @property
    def overlaps(self) -> bool:
        """True if groups make fragments of a part of a stage while the tensor cores multiply the part before. Groups that have more rows
        take turns instead: on an H200, by weights of 4 bits, 128 x 14336 x 14336 took 105.7 us with halves of stages, 111.1 with turns,
        4096 x 14336 x 4096 745 us and 734."""
        return self.tile_m <= (FEW_ROWS if self.promote_steps else SOME_ROWS)

    @property
    def parts(self) -> int:
        """Parts of a stage whose fragments are made together, each of one group."""
        return max(2, self.groups) if self.promote_steps else 2 if self.overlaps else 1

    @property
    def takes_turns(self) -> bool:
        """True if groups start their instructions in turns; short ones leave gaps that fragments fill by themselves."""
        return self.consumers > 1 and not self.overlaps and self.tile_m > FEW_ROWS

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a thread of the producer and of a consumer, where they are redistributed."""
        return REGISTERS.get((self.consumers, self.min_blocks_per_sm))

    @property
    def instruction_k(self) -> int:
        return 16

    @property
    def transposed(self) -> tuple[bool, ...]:
        return (False,)

    @property
    def unit(self) -> str:
        return "f16_wgmma"

    @property
    def numbers_alignment(self) -> int:
        return 2 if self.group else 1

    # Shared memory.

    @property
    def weight_bytes(self) -> int:
        """Packed weights of a stage."""
        return self.tile_n // PANEL * (self.tile_k // self.unit_k) * UNIT_BYTES

    @property
    def row_bytes(self) -> int:
        """Rows of A of a stage."""
        return self.tile_m * self.tile_k * 2

    @property
    def rows_multiplied(self) -> int:
        return self.tile_m

    @property
    def readings(self) -> int:
        return self.column_groups * self.blocks

    @property
    def costs(self) -> str:
        return "wgmma"

    @property
    def shown(self) -> MainloopShown:
        columns = 4 * WARP_COLUMNS * self.blocks
        taken = f", {self.k_warps} of which take stages in turn" if self.k_warps > 1 else ""
        return MainloopShown(
            (
                ("groups of warps", f"{self.consumers}, {columns} columns each{taken}; two more warps start copies"),
                ("stages", f"{self.stages}, filled by TMA while others are multiplied"),
                ("factors", "weights are the left factor, in registers; rows of A the right one, in shared memory"),
            ),
            "group",
            tuple((0, group * columns, self.tile_m, columns) for group in range(self.column_groups)),
            STORED,
        )

    @property
    def sums_rows(self) -> int:
        """Rows whose sums a group of warps passes through shared memory at a time."""
        return rows_at_a_time(self.tile_m)

    @property
    def stages_bytes(self) -> int:
        return self.stages * (self.row_bytes + self.weight_bytes)

    @property
    def received_offset(self) -> int:
        """Bytes of shared memory before the sums that blocks of a cluster send, and their barrier."""
        return self.stages_bytes

    @property
    def sums_bytes(self) -> int:
        """Sums that blocks of a cluster send, with a barrier, or of some rows, padded against bank conflicts."""
        if self.cluster_k > 1:
            return self.k_warps * self.tile_m * self.tile_n * 4 + BARRIER_BYTES
        return self.consumers * self.sums_rows * (self.tile_n // self.consumers + 4) * 4

    @property
    def numbers_offset(self) -> int:
        """Bytes of shared memory before scales and zero points."""
        return self.stages_bytes + self.sums_bytes

    @property
    def numbers_bytes(self) -> int:
        """Scales and zero points of all stages."""
        groups = self.stages * self.groups if self.group else 0
        return groups * self.tile_n * NUMBER_BYTES * (2 if self.zeros else 1)

    @property
    def barriers_offset(self) -> int:
        """Bytes of shared memory before the barriers of stages."""
        return self.numbers_offset + self.numbers_bytes

    @property
    def shared_bytes(self) -> int:
        return self.barriers_offset + self.barriers * BARRIER_BYTES

    @property
    def barriers(self) -> int:
        """Two for each stage, and one for the turn of each group."""
        return 2 * self.stages + (self.consumers if self.takes_turns else 0)

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums, those of a group beside those of all."""
        return self.blocks * self.tile_m // 2 * (2 if self.promote_steps else 1)

    @property
    def estimated_registers(self) -> int:
        """Registers of a thread that multiplies, an estimate."""
        held = (
            self.tile_k if not self.promote_steps else min(self.group, self.tile_k) if not self.overlaps else 2 * self.tile_k // self.parts
        )
        return self.sums + 4 * self.blocks * held // self.instruction_k + OTHER_REGISTERS

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
            meaning=f"the packed weights in boxes of {self.tile_k} values of k of {self.tile_n} columns",
            box=(UNIT_WORDS, self.tile_k // self.unit_k, self.tile_n // PANEL),
            l2_promotion="256B",
        )
        return matrix_map(a, self.box_a), weights


def register_loop(outline: Outline, mainloop: NarrowWeightsMainloop) -> RegisterLoop | None:
    """The loop, or None with the errors added to the outline's reasons."""
    spec, architecture, tile = outline.spec, outline.architecture, mainloop.tile
    reasons = list(_reasons(spec, mainloop))
    if not architecture.supports("wgmma"):
        reasons.append(Reason("wgmma", "mainloop.method", f"warpgroups on {architecture.name}", "sm_90a", "architecture: sm_90a"))
    outline.reasons += reasons
    if reasons:
        return None
    loop = RegisterLoop(
        bits=mainloop.bits,
        group=0 if mainloop.group == "column" else mainloop.group,
        zeros=mainloop.zeros,
        floats=mainloop.codes != "integers",
        type_a=spec.storage.a,
        type_b=spec.storage.a,
        instruction_n=tile.threadblock.m,
        tile_m=tile.threadblock.m,
        tile_n=tile.threadblock.n,
        tile_k=tile.threadblock.k,
        blocks=tile.warp.n // WARP_COLUMNS,
        k_warps=mainloop.k_warps,
        cluster_k=spec.decomposition.slices if isinstance(spec.decomposition, SplitKCluster) else 1,
        scales_weights=mainloop.scaled == "weights",
        stages=mainloop.stages,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        persistent_blocks=mainloop.persistent_blocks,
    )
    resident = ResidentBlocks(architecture, loop.min_blocks_per_sm, loop.threads)
    limit = loop.registers[1] if loop.registers is not None else resident.allocated_registers
    outline.reasons += resident.too_many_sums(loop.sums, limit, "mainloop.tile", "fewer rows or columns")
    outline.reasons += resident.too_much_per_block(loop.shared_bytes)
    if loop.tile_n // tile.warp.n % loop.cluster_k:
        need = f"the columns of {loop.cluster_k} warps or a multiple: each block of a cluster finishes as many columns"
        outline.reasons.append(Reason("tile_n", "mainloop.tile.threadblock.n", str(loop.tile_n), need))
    return loop


def _reasons(spec: GemmSpec, mainloop: NarrowWeightsMainloop) -> Iterator[Reason]:
    """Tiles, alignments and divisions of k that warpgroups do not have."""
    block, warp = mainloop.tile.threadblock, mainloop.tile.warp
    depths = (TILE_K,) if mainloop.group != "column" and mainloop.scaled == "sums" else (TILE_K, TILE_K // 2)
    if block.m % 8 or block.m > MAX_ROWS or warp.m != block.m or block.k not in depths:
        got = f"{warp.m} of {block.m} rows, {block.k} of k"
        need = f"a multiple of 8 rows up to {MAX_ROWS}, the same for warps, and {' or '.join(map(str, depths))} of k for warpgroups"
        yield Reason("tile", "mainloop.tile", got, need)
    consumers = block.n // (4 * warp.n) * mainloop.k_warps
    if warp.n not in (WARP_COLUMNS, 2 * WARP_COLUMNS) or block.n % (4 * warp.n) or consumers > MAX_CONSUMERS or block.n > MAX_COLUMNS:
        need = f"{WARP_COLUMNS} or {2 * WARP_COLUMNS} columns for each warp of one to {MAX_CONSUMERS} warpgroups, {MAX_COLUMNS} at most"
        yield Reason("warp_tile", "mainloop.tile.warp", f"{warp.n} of {block.n} columns", need)
    if mainloop.min_blocks_per_sm > {1: 3, 2: 2}.get(consumers, 1):
        need = "up to 3, 2 for two groups, or 1 from 3 groups on, for warpgroups"
        yield Reason("min_blocks_per_sm", "mainloop.min_blocks_per_sm", str(mainloop.min_blocks_per_sm), need)
    if mainloop.k_warps > 1:
        yield Reason("k_warps", "mainloop.k_warps", str(mainloop.k_warps), "1 for warpgroups")
    if mainloop.persistent_blocks and spec.decomposition.scheme != "data_parallel":
        got = str(mainloop.persistent_blocks)
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", got, "0 with clusters that divide k")
    if not isinstance(spec.decomposition, DataParallel | SplitKCluster | SplitKLast):
        need = "data_parallel, split_k_cluster or split_k_last for warpgroups"
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need)
    if spec.alignment.a < 8 or spec.alignment.c < 2:
        got = f"{spec.alignment.a} and {spec.alignment.c}"
        yield Reason("alignment", "alignment", got, "a: 8 and c: 2 or more for warpgroups: TMA brings A, and pairs are stored")
    if "a" in spec.constant:
        yield Reason("constant", "constant", ", ".join(spec.constant), "[b] for warpgroups, whose weights are copied before the wait")


def register_regions(loop: RegisterLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: stages, or the sums of a tile; barriers."""
    stage, barriers = loop.row_bytes + loop.weight_bytes, loop.barriers
    sent = "sums that blocks of the cluster send" if loop.cluster_k > 1 else "sums of some rows, [group][row][column], padded"
    words = "scales and zero points" if loop.zeros else "scales"
    size, offset = loop.numbers_bytes, loop.numbers_offset
    numbers = [SharedRegion("numbers", "unsigned short", (size // NUMBER_BYTES,), offset, size, f"{words}, [stage][group]")] if size else []
    return (
        SharedRegion(
            "stages", "unsigned char", (loop.stages, stage), 0, loop.stages_bytes, "rows of A, swizzled, and packed weights, [stage]"
        ),
        SharedRegion("sums", "float", (loop.sums_bytes // 4,), loop.stages_bytes, loop.sums_bytes, sent),
        *numbers,
        SharedRegion(
            "barriers",
            "unsigned long long",
            (barriers,),
            loop.barriers_offset,
            barriers * BARRIER_BYTES,
            "of stages: full, empty; turns of groups",
        ),
    )
