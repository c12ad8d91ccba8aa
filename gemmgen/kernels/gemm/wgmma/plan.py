"""The plan of a GEMM by warpgroups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.epilogue.steps import Access, Store
from gemmgen.kernels.gemm.launch_costs import TRANSPOSED_TOGETHER, finishing_pace
from gemmgen.kernels.gemm.plan import EpilogueVector, Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.sparsity import from_lane_words
from gemmgen.kernels.gemm.spec import GemmSpec, WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.grid import Grid
from gemmgen.kernels.gemm.tensor_cores.operands import arithmetic_parts, as_stored
from gemmgen.kernels.gemm.tensor_cores.plan import TensorPlan, tensor_numbers
from gemmgen.kernels.gemm.tensor_cores.reasons import COPY_ALIGNMENT
from gemmgen.kernels.gemm.tensor_cores.sparse import sparse_product
from gemmgen.kernels.gemm.wgmma.copied import CopyPlan, as_copied, copy_plan
from gemmgen.kernels.gemm.wgmma.loop import boxed_outputs, last_operand, operand_in_stages, vector_bytes, warpgroup_loop, warpgroup_regions
from gemmgen.kernels.gemm.wgmma.reasons import constant_reasons, stored_reasons
from gemmgen.kernels.gemm.wgmma.scaled import StagedScales, scaled_product, scaled_reasons, staged_scales
from gemmgen.kernels.gemm.wgmma.sequence import wgmma_sequence
from gemmgen.kernels.gemm.wgmma.sparse import kept_values, metadata_matrix, sparse_reasons
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS, WARPGROUP, WarpgroupLoop
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.resources import ResidentBlocks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.gemm.plan import Array

TEMPLATE = "gemm/tensor_core.cu.j2"
ROWS_BESIDE = 8
"""Registers of a thread that must be left if it reads the epilogue's values for its rows before the products: else 128 x 200 spills."""


@dataclass(frozen=True, kw_only=True)
class WgmmaPlan(TensorPlan):
    """A GEMM whose warpgroups multiply tiles copied by TMA."""

    loop: WarpgroupLoop
    copied: CopyPlan | None = None
    """The kernel that copies factors first, if there is one."""

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """An estimate of registers that exceeds the limit per thread."""
        return self._resident.few_registers(self.loop.estimated_registers, self._register_limit, "mainloop.tile")

    @property
    def _resident(self) -> ResidentBlocks:
        return ResidentBlocks(self.architecture, self.loop.min_blocks_per_sm, self.threads)

    @property
    def _register_limit(self) -> int:
        """Registers of a thread that multiplies."""
        return self.loop.registers[1] if self.loop.registers else self._resident.allocated_registers

    @property
    def registers_per_thread(self) -> int:
        return min(255, 65536 // (self.threads * self.loop.min_blocks_per_sm) // 8 * 8)

    @property
    def finishes_aside(self) -> bool:
        return self.loop.ping_pong

    @property
    def finishing_pace(self) -> float:
        groups = 1 if self.loop.ping_pong else self.loop.consumers
        together = TRANSPOSED_TOGETHER if not self.loop.ping_pong and not self.matrix_c.row_major else 1.0
        return together * float(finishing_pace(groups * self.loop.min_blocks_per_sm))

    @property
    def slice_k(self) -> int:
        return self.loop.tile_k * self.loop.k_groups

    def additions(self, k: int) -> tuple[str, int]:
        every = self.loop.promote_steps * self.loop.tile_k
        cut = " of 14 bits" if self.matrix_a.type in ("e4m3", "e5m2") else ""
        scaled = "".join(f", {scale.operand} scaled by {scale.block.lines} x {scale.block.k}" for scale in self.scales)
        sparse = " of a sparse A" if self.loop.sparse else ""
        return f"k{self.loop.instruction_depth}{sparse}{cut}{scaled}", every if every < k or scaled else 0

    def metadata_by_rows(self, arrays: Mapping[str, Array]) -> npt.NDArray[np.uint16]:
        return from_lane_words(arrays["metadata"], arrays["A"].shape[0], self.loop.a.element_bytes)

    def product(self, arrays: Mapping[str, Array], slices: int, exact: bool) -> tuple[Array, Array]:
        if self.loop.sparse:
            a, b, metadata = arrays["A"].astype(float), arrays["B"].astype(float), self.metadata_by_rows(arrays)
            parts, joined = max(slices, self.grid.cluster_k), self.joined_parts(b.shape[-2])
            return sparse_product(kept_values(self.loop), a, b, metadata, parts, joined, exact)
        return scaled_product(self, arrays, slices, exact) if self.scales else super().product(arrays, slices, exact)

    @property
    def metadata(self) -> Matrix | None:
        return metadata_matrix() if self.loop.sparse else None

    @property
    def staged_scales(self) -> tuple[StagedScales, ...]:
        """Block scales of a stage."""
        assert isinstance(self.spec.mainloop, WgmmaMainloop)
        return staged_scales(self.spec, self.spec.mainloop)

    @property
    def row_parts(self) -> int:
        return self.loop.consumers if self.loop.skips_rows else 1

    @property
    def fetched_tile(self) -> tuple[int, int]:
        return self.tile_m * self.grid.cluster_m, self.tile_n * self.grid.cluster_n

    @property
    def main_launch(self) -> int:
        return int(self.copied is not None)

    @property
    def staged_store(self) -> str:
        if self.spec.store == "tma":
            return "boxes"
        return "transposed" if self.loop.transposed_store else ""

    @property
    def residual_staged(self) -> bool:
        return self.loop.residual or (self.operand_in_stages is not None and not self.operand_in_stages.placed)

    @property
    def operand_in_stages(self) -> Access | None:
        """The operand of the epilogue that stages bring."""
        return operand_in_stages(self.loop, self.epilogue)

    @property
    def last_operand(self) -> Access | None:
        """The operand that stages bring for a block's last tile, and threads read for others."""
        return last_operand(self.loop, self.epilogue)

    @property
    def collected_outputs(self) -> tuple[Store, ...]:
        staging = self.loop.staging
        if staging is None or not staging.matrices or self.grouped or self.batched:
            return ()
        return tuple(store for store in self._stored_matrices if store.type in ("f16", "bf16"))

    @property
    def boxed_outputs(self) -> tuple[Store, ...]:
        """Collected outputs that TMA stores."""
        return boxed_outputs(self.spec, self.loop, self.epilogue)

    @property
    def paired_outputs(self) -> tuple[Store, ...]:
        return tuple(store for store in self._stored_matrices if store.type == "f32") if self._in_pairs else ()

    @property
    def paired_inputs(self) -> tuple[Access, ...]:
        if not self._in_pairs:
            return ()
        accesses = [access for step in self.inner_epilogue for access in step.accesses if access.placed and access.stored == "f32"]
        return tuple(access for access in accesses if isinstance(access.argument, Matrix) and access != self.operand_in_stages)

    @property
    def finishes_at_once(self) -> bool:
        """True if functions of the epilogue wait for no memory, so that the compiler may move them before the release of a stage."""
        return any(step.instructions > 1 for step in self.epilogue) and not self.column_vectors and not self.loop.residual

    @property
    def targets_ahead(self) -> bool:
        """True if threads read the rows of C that their vectors of results go to before the products."""
        if not self.scattered or self.loop.staging is None:
            return False
        vectors = self.matrix_c.vectors_in(self.loop.staging.columns)
        return bool(WARPGROUP % vectors == 0 and WARPGROUP // vectors <= BLOCK_ROWS)

    @property
    def reads_next_chunk(self) -> bool:
        return bool(self.paired_inputs) and self._spare_registers >= 2 * self._chunk_registers

    @property
    def collects_pairs(self) -> bool:
        """In ping-pong alone: four products there were up to 2% faster on an H200, and two by groups that share a tile 1 and 5% slower."""
        if self.loop.staging is None or not self.paired_outputs or not self.loop.ping_pong:
            return False
        read = 2 * self._chunk_registers if self.reads_next_chunk else 0
        return self._spare_registers >= read + len(self.paired_outputs) * self.loop.staging.columns // 2

    @property
    def operands_ahead(self) -> int:
        """Fragments whose operands a thread reads at once, where it does not read those of a whole chunk ahead."""
        return 8 if self._spare_registers >= self._chunk_registers else 4

    @property
    def _chunk_registers(self) -> int:
        """Registers of a thread for the operands of a chunk of columns."""
        assert self.loop.staging is not None
        return len(self.paired_inputs) * self.loop.staging.columns // 2

    @property
    def _spare_registers(self) -> int:
        """Registers of a thread that its sums leave for operands."""
        return self._register_limit - self.loop.estimated_registers

    @property
    def _in_pairs(self) -> bool:
        """True if a thread finishes neighbours along rows of matrices that lie as C does."""
        return self.loop.staging is not None and not self.grouped and self.matrix_c.row_major

    @property
    def _stored_matrices(self) -> list[Store]:
        stores = [store for step in self.inner_epilogue for store in step.stores if store.output.reduce is None]
        return [store for store in stores if isinstance(store.argument, Matrix)]

    @property
    def column_vectors(self) -> tuple[EpilogueVector, ...]:
        return self._vectors("column") if self.loop.column_bytes else ()

    @property
    def row_vectors(self) -> tuple[EpilogueVector, ...]:
        return self._vectors("row") if self.loop.staging else ()

    @property
    def reads_rows_ahead(self) -> bool:
        registers = 2 * self.loop.blocks_m * len(self.row_vectors)
        return 0 < registers <= self._spare_registers - ROWS_BESIDE and not self.reads_next_chunk

    def _vectors(self, per: str) -> tuple[EpilogueVector, ...]:
        vectors: list[EpilogueVector] = []
        for access in (access for step in self.epilogue for access in step.accesses if access.operand.per == per):
            vectors.append(EpilogueVector(access, len(vectors) * vector_bytes(self.loop.tile_n)))
        return tuple(vectors)


def plan(spec: GemmSpec, mainloop: WgmmaMainloop, architecture: Architecture) -> WgmmaPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, [*division_reasons(spec), *invariance_reasons(spec)])
    a, b, c = outline.matrices
    read = as_copied(mainloop, a), as_copied(mainloop, b), c
    loop = warpgroup_loop(
        outline,
        mainloop,
        read,
        as_stored(a, b),
        [
            *stored_reasons(spec, mainloop, read),
            *scaled_reasons(spec, mainloop),
            *sparse_reasons(spec, mainloop),
            *constant_reasons(spec, mainloop),
        ],
    )
    epilogue = outline.epilogue()
    assert loop is not None
    if operand := operand_in_stages(loop, epilogue) or last_operand(loop, epilogue):
        epilogue = tuple(replace(step, accesses=_aligned(step.accesses, operand)) for step in epilogue)
    name = outline.name("gemm", name_parts(spec, mainloop))
    grid, copied = grid_of(loop), copy_plan(name, mainloop, outline.matrices)
    regions = warpgroup_regions(loop)
    return WgmmaPlan(
        **tensor_numbers(outline, name, epilogue, loop.threads, grid, regions),
        sequence=wgmma_sequence(name, spec, outline.matrices, loop, grid, epilogue, copied),
        template=TEMPLATE,
        loop=loop,
        copied=copied,
    )


def _aligned(accesses: Sequence[Access], operand: Access) -> tuple[Access, ...]:
    """The accesses with the operand's matrix aligned as TMA reads it."""
    matrix = operand.argument
    assert isinstance(matrix, Matrix)
    aligned = replace(operand, argument=replace(matrix, alignment=COPY_ALIGNMENT // matrix.element_bytes))
    return tuple(aligned if access == operand else access for access in accesses)


def grid_of(loop: WarpgroupLoop) -> Grid:
    """The grid of warpgroups, whose blocks may share tiles."""
    return Grid(
        tile_m=loop.tile_m,
        tile_n=loop.tile_n,
        tile_k=loop.tile_k,
        persistent_blocks=loop.persistent_blocks,
        cluster_m=loop.cluster_m,
        cluster_n=loop.cluster_n,
        cluster_k=loop.cluster_k,
        groups=loop.consumers,
        dynamic=loop.dynamic,
        skips_rows=loop.skips_rows,
    )


def name_parts(spec: GemmSpec, mainloop: WgmmaMainloop) -> list[str]:
    """Part of an instance's name for its mainloop."""
    tile, cluster = mainloop.tile, mainloop.cluster
    parts = [
        f"{tile.m}x{tile.n}x{tile.k}",
        f"s{mainloop.stages}",
        f"{mainloop.schedule[0]}{mainloop.consumers}",
    ]
    parts += arithmetic_parts(mainloop.arithmetic)
    parts += [f"cluster{cluster.m}x{cluster.n}"] if cluster.m * cluster.n > 1 else []
    parts += ["tma"] if spec.store == "tma" else []
    parts += ["dynamic"] if mainloop.tiles == "dynamic" else []
    parts += ["aregs"] if mainloop.a_from == "registers" else []
    parts += ["sparse"] if mainloop.sparse == "a" else []
    parts += [f"copied_{mainloop.copied}"] if mainloop.copied != "none" else []
    return parts
