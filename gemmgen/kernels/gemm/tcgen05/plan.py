"""The plan of a GEMM on tensor memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmgen.core.formulas import round_up
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.scaling import TILE_BLOCKS
from gemmgen.kernels.gemm.spec import GemmSpec, TensorMemoryMainloop
from gemmgen.kernels.gemm.tcgen05.loop import TensorMemoryLoop, regions, stored_reasons, tensor_memory_loop
from gemmgen.kernels.gemm.tcgen05.sequence import tcgen05_sequence
from gemmgen.kernels.gemm.tensor_cores.block_scaling import scaled_product
from gemmgen.kernels.gemm.tensor_cores.grid import Grid
from gemmgen.kernels.gemm.tensor_cores.operands import as_stored
from gemmgen.kernels.gemm.tensor_cores.plan import TensorPlan, tensor_numbers
from gemmgen.kernels.math.tensor_memory import COLUMNS, DEEP_PRODUCTS, PAIRS

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array

TEMPLATE = "gemm/tcgen05.cu.j2"
OTHER_REGISTERS = 48
"""Registers of a thread beside its sums; an estimate."""


@dataclass(frozen=True, kw_only=True)
class TensorMemoryPlan(TensorPlan):
    """A GEMM whose sums lie in tensor memory."""

    loop: TensorMemoryLoop

    @property
    def registers_per_thread(self) -> int:
        held = 2 * self.loop.tile_n if self.loop.by_planes else 0
        return held + 2 * COLUMNS // 2 + OTHER_REGISTERS

    @property
    def staged_store(self) -> str:
        return "boxes" if self.loop.box_columns else ""

    @property
    def finishes_aside(self) -> bool:
        return True

    @property
    def tiles_in_turn(self) -> dict[str, tuple[int, int, int]]:
        sizes = super().tiles_in_turn
        if self.loop.blocks > 1:  # of the other cases a pair has no third tile, for which it would use a set of sums again
            sizes["more tiles than sets of sums"] = (2 * self.loop.blocks, 3, round_up(self.least_depth or 1, self.loop.tile_k))
        if self.loop.deep and self.loop.scaled is not None:
            # The last instruction takes scales of a tile that is not copied, in the second stage's first use.
            blocks = TILE_BLOCKS * (self.loop.scale_words - 1)
            sizes["a last tile of scales that does not exist"] = (1, 1, 2 * self.loop.tile_k + blocks * self.loop.scaled.block_k)
        return sizes

    def product(self, arrays: Mapping[str, Array], slices: int, exact: bool) -> tuple[Array, Array]:
        if self.loop.scaled is None:
            return super().product(arrays, slices, exact)
        return scaled_product(self, self.loop.scaled, arrays, 1, exact)

    @property
    def packed_factors(self) -> bool:
        return self.loop.packed

    @property
    def bits_not_confirmed(self) -> tuple[str, ...]:
        of_pairs = (PAIRS,) if self.loop.pair and self.loop.accumulator != "int" else ()
        return (*of_pairs, DEEP_PRODUCTS) if self.loop.deep else of_pairs

    def additions(self, k: int) -> tuple[str, int]:
        if self.loop.scaled is not None:
            depth = f" k{self.loop.instruction_depth}" if self.loop.deep else ""
            return f"tcgen05 {self.loop.scaled.kind}{depth}, blocks of {self.loop.scaled.block_k}", 0
        return f"tcgen05 k{self.loop.instruction_k}", 0


def name_parts(loop: TensorMemoryLoop) -> list[str]:
    """Parts of an instance's name that depend on its mainloop."""
    return [
        f"{loop.tile_m * loop.blocks}x{loop.tile_n}x{loop.tile_k}",
        f"s{loop.stages}",
        *(["tma"] if loop.box_columns else []),
        *(["dynamic"] if loop.dynamic else []),
    ]


def grid_of(loop: TensorMemoryLoop) -> Grid:
    """Distribution of tiles over blocks."""
    return Grid(loop.tile_m, loop.tile_n, loop.tile_k, loop.persistent_blocks, cluster_m=loop.blocks, dynamic=loop.dynamic)


def plan(spec: GemmSpec, mainloop: TensorMemoryMainloop, architecture: Architecture) -> TensorMemoryPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, [*division_reasons(spec), *invariance_reasons(spec)])
    a, b, _ = outline.matrices
    loop = tensor_memory_loop(outline, mainloop, as_stored(a, b), stored_reasons(spec, mainloop, outline.matrices))
    epilogue = outline.epilogue()
    assert loop is not None
    name = outline.name("gemm_tcgen05", [*name_parts(loop), *(["e2m1"] if loop.packed else []), *(["k96"] if loop.deep else [])])
    grid = grid_of(loop)
    shared = regions(loop)
    return TensorMemoryPlan(
        **tensor_numbers(outline, name, epilogue, loop.threads, grid, shared),
        sequence=tcgen05_sequence(name, spec, outline.matrices, loop, grid, epilogue),
        template=TEMPLATE,
        loop=loop,
    )
