"""The mainloop of narrow weights whose warps stream panels of weights, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.narrow_weights.loop import STORED, Codes, MainloopShown
from gemmgen.kernels.gemm.packed_weights import PANEL, UNIT_BYTES
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.spec import DataParallel, GemmSpec, NarrowWeightsMainloop, SplitKCluster, SplitKLast
from gemmgen.kernels.tiles.resources import ResidentBlocks

STEP_K = 128
"""Values of k of a step of a warp: whole groups of any size."""
ROWS = (2, 4, 8, 16)
"""Rows of C that a block may compute."""
PARTS = (32, 16, 8)
"""Columns of the sums that a warp sends to one block of a cluster."""
NUMBER_BYTES = 2
"""Bytes of a scale or a zero point."""
BARRIER_BYTES = 8
OTHER_REGISTERS = 64
"""Registers of a thread beside sums and words; an estimate."""


@dataclass(frozen=True, kw_only=True)
class StreamLoop(Codes):
    """Numbers of a mainloop whose warps copy and multiply a panel of weights each; rows of A are in shared memory for all of them."""

    tile_m: int
    panels: int
    k_warps: int
    """Warps that share a panel's steps along k."""
    cluster_k: int
    chunk_steps: int
    """Steps of all warps whose part of A is a chunk."""
    chunks: int
    """Chunks of A in shared memory."""
    late: bool
    """True if the next launch may begin once all weights were asked for."""
    stages: int
    vector: int
    """Elements of A of one copy."""
    min_blocks_per_sm: int
    whole_steps: bool
    """True if k is promised to be a multiple of a step."""

    @property
    def small(self) -> bool:
        return not self.floats and (self.bits == 4 or self.type_a == "bf16")

    @property
    def panel(self) -> int:
        return PANEL

    @property
    def tile_n(self) -> int:
        return PANEL * self.panels

    @property
    def tile_k(self) -> int:
        return STEP_K

    @property
    def part_columns(self) -> int:
        """Columns of the sums that a warp sends to one block of a cluster, the most with which all blocks finish as many."""
        return next(columns for columns in PARTS if self.tile_n // columns % self.cluster_k == 0)

    @property
    def step_k(self) -> int:
        """Values of k of a step of all warps."""
        return STEP_K * self.k_warps

    @property
    def warps(self) -> int:
        return self.panels * self.k_warps

    @property
    def threads(self) -> int:
        return WARP_THREADS * self.warps

    @property
    def type_b(self) -> str:
        return self.type_a

    @property
    def accumulator(self) -> str:
        return "float"

    @property
    def instruction(self) -> str:
        return f"mma.sync.aligned.m16n8k16.row.col.f32.{self.type_a}.{self.type_a}.f32"

    @property
    def numbers_alignment(self) -> int:
        return 2

    @property
    def unit(self) -> str:
        return "f16_mma"

    @property
    def vector_bytes(self) -> int:
        """Bytes of A of one copy."""
        return self.vector * 2

    @property
    def stage_bytes(self) -> int:
        """Weights of a step of a warp, with the scales and zero points of its groups."""
        numbers = PANEL * NUMBER_BYTES * (2 if self.zeros else 1)
        return STEP_K // self.unit_k * UNIT_BYTES + (STEP_K // self.group * numbers if self.group else 0)

    @property
    def ring_bytes(self) -> int:
        """Shared memory of a warp."""
        return self.stages * self.stage_bytes

    @property
    def chunk_bytes(self) -> int:
        """A chunk of A; rows are padded by 16 bytes against bank conflicts."""
        return self.tile_m * (self.chunk_steps * self.step_k * 2 + 16)

    @property
    def sums_pitch(self) -> int:
        """Floats from one row of a warp's sums to the next: no bank conflicts."""
        return PANEL + 4

    @property
    def sums_bytes(self) -> int:
        """Sums of a warp, which are where its ring was."""
        return self.tile_m * self.sums_pitch * 4

    @property
    def rows_multiplied(self) -> int:
        return self.tile_m

    @property
    def row_bytes(self) -> int:
        return self.tile_m * self.step_k * 2

    @property
    def weight_bytes(self) -> int:
        return self.warps * self.stage_bytes

    @property
    def readings(self) -> int:
        return self.panels

    @property
    def costs(self) -> str:
        return "mma"

    @property
    def shown(self) -> MainloopShown:
        taken = f", each for every {self.k_warps} steps of {STEP_K} of k" if self.k_warps > 1 else ""
        return MainloopShown(
            (
                ("warps", f"{self.k_warps} for each {PANEL} columns{taken}"),
                ("stages", f"{self.stages} for each warp, which copies to them and reads from them without waiting for others"),
                (
                    "rows of A",
                    f"{self.chunk_steps * self.step_k} values of k at a time{', twice' if self.chunks > 1 else ''}, for all warps",
                ),
            ),
            "warp" if self.k_warps == 1 else "warps",
            tuple((0, panel * PANEL, self.tile_m, PANEL) for panel in range(self.panels)),
            STORED,
        )

    @property
    def received_offset(self) -> int:
        """Bytes of shared memory before the sums that blocks of a cluster send, and their barrier."""
        return self.warps * self.ring_bytes + self.chunks * self.chunk_bytes

    @property
    def shared_bytes(self) -> int:
        received = self.k_warps * self.tile_m * self.tile_n * 4 + BARRIER_BYTES if self.cluster_k > 1 else 0
        return self.received_offset + received

    @property
    def estimated_registers(self) -> int:
        """Registers of a thread, an estimate."""
        sums = max(8, self.tile_m) * PANEL // WARP_THREADS
        return sums * (2 if self.group else 1) + 4 * STEP_K // self.unit_k + OTHER_REGISTERS


def stream_loop(outline: Outline, mainloop: NarrowWeightsMainloop) -> StreamLoop | None:
    """The loop, or None with the errors added to the outline's reasons."""
    spec, architecture, block = outline.spec, outline.architecture, mainloop.tile.threadblock
    cluster = spec.decomposition.slices if isinstance(spec.decomposition, SplitKCluster) else 1
    reasons = list(_reasons(spec, mainloop))
    if cluster > 1 and not architecture.supports("clusters"):
        reasons.append(Reason("clusters", "decomposition.scheme", f"split_k_cluster on {architecture.name}", "sm_90 or newer"))
    outline.reasons += reasons
    if reasons:
        return None
    loop = StreamLoop(
        bits=mainloop.bits,
        group=0 if mainloop.group == "column" else mainloop.group,
        zeros=mainloop.zeros,
        floats=mainloop.codes != "integers",
        type_a=spec.storage.a,
        tile_m=block.m,
        panels=block.n // PANEL,
        k_warps=mainloop.k_warps,
        cluster_k=cluster,
        chunk_steps=block.k // (STEP_K * mainloop.k_warps),
        chunks=mainloop.chunks,
        late=mainloop.next_launch == "late",
        stages=mainloop.stages,
        vector=min(8, spec.alignment.a),
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        whole_steps=spec.multiple_of.k % STEP_K == 0,
    )
    resident = ResidentBlocks(architecture, loop.min_blocks_per_sm, loop.threads)
    outline.reasons += resident.too_much_per_block(loop.shared_bytes)
    if loop.cluster_k == 1 and loop.ring_bytes < loop.sums_bytes:
        need = f"stages whose {loop.sums_bytes} bytes or more a warp can hold its sums in"
        outline.reasons.append(Reason("stages", "mainloop.stages", f"{loop.stages}, {loop.ring_bytes} bytes", need))
    if loop.tile_n // PARTS[-1] % loop.cluster_k:
        need = f"a multiple of {PARTS[-1] * loop.cluster_k}: each block of a cluster finishes as many columns"
        outline.reasons.append(Reason("tile_n", "mainloop.tile.threadblock.n", str(loop.tile_n), need))
    return loop


def _reasons(spec: GemmSpec, mainloop: NarrowWeightsMainloop) -> Iterator[Reason]:
    """Tiles and divisions of k that streams do not have."""
    block, warp, warps = mainloop.tile.threadblock, mainloop.tile.warp, mainloop.k_warps
    if block.m not in ROWS or warp.m != block.m or warp.n != PANEL or block.n % PANEL:
        got = f"{warp.m} x {warp.n} of {block.m} x {block.n}"
        yield Reason("warp_tile", "mainloop.tile.warp", got, f"2, 4, 8 or 16 rows, the threadblock's, and {PANEL} columns for streams")
    elif block.n // PANEL * warps > WARP_THREADS:
        yield Reason("threads", "mainloop.tile.threadblock.n", f"{block.n // PANEL} panels of {warps} warps", "at most 32 warps")
    if block.k % (STEP_K * warps):
        need = f"a multiple of {STEP_K * warps}, k of a step of all warps"
        yield Reason("tile_k", "mainloop.tile.threadblock.k", str(block.k), need)
    if not isinstance(spec.decomposition, DataParallel | SplitKCluster | SplitKLast):
        need = "data_parallel, split_k_cluster or split_k_last for streams"
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need)
    if "a" in spec.constant:
        yield Reason("constant", "constant", ", ".join(spec.constant), "[b] for streams, whose weights are copied before the wait")
    if spec.alignment.c < 2:
        yield Reason("alignment", "alignment.c", str(spec.alignment.c), "2 or more for streams, which store pairs")
    vector = min(8, spec.alignment.a)
    if spec.multiple_of.k % vector:
        need, hint = f"a multiple of {vector}, elements of A of one copy", f"multiple_of: {{k: {vector}}}"
        yield Reason("multiple_of", "multiple_of.k", str(spec.multiple_of.k), need, hint)


def stream_regions(loop: StreamLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: the warps' rings, then two chunks of A."""
    size = loop.warps * loop.ring_bytes
    pitch = loop.chunk_bytes // loop.tile_m
    numbers = "" if not loop.group else ", scales and zero points" if loop.zeros else " and scales"
    regions = [
        SharedRegion(
            "rings",
            "unsigned char",
            (loop.warps, loop.stages, loop.stage_bytes),
            0,
            size,
            f"packed weights{numbers}, [warp][stage]" + ("; then sums" if loop.cluster_k == 1 else ""),
        ),
        SharedRegion(
            "chunks",
            "unsigned short",
            (loop.chunks, loop.tile_m, pitch // 2),
            size,
            loop.chunks * loop.chunk_bytes,
            "parts of A, [chunk][m][k], padded",
        ),
    ]
    if loop.cluster_k > 1:
        sums = loop.k_warps * loop.tile_m * loop.tile_n
        regions.append(SharedRegion("received", "float", (sums,), loop.received_offset, 4 * sums, "sums that blocks of the cluster send"))
    return tuple(regions)
