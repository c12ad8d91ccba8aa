"""The plan of a GEMM with narrow weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.mma_sync.warp_plan import WarpPlan
from gemmgen.kernels.gemm.narrow_weights.loop import NarrowLoop, narrow_loop, narrow_regions
from gemmgen.kernels.gemm.narrow_weights.sequence import group_matrices, narrow_sequence
from gemmgen.kernels.gemm.packed_weights import unpack
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.spec import GemmSpec, NarrowWeightsMainloop
from gemmgen.kernels.gemm.tensor_cores.blocks import Blocks, product_of_blocks
from gemmgen.kernels.gemm.tensor_cores.grid import Grid
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array

TYPICAL_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class NarrowPlan(WarpPlan):
    """A GEMM whose warps make fragments of B of packed weights."""

    loop: NarrowLoop

    @property
    def typical(self) -> dict[str, int]:
        return {"m": TYPICAL_ROWS, "n": 4096, "k": 4096}

    @property
    def weight_bits(self) -> int:
        return self.loop.bits

    @property
    def factor_scales(self) -> tuple[Matrix, ...]:
        return group_matrices(self.spec, self.loop)

    def additions(self, k: int) -> tuple[str, int]:
        return f"k16, weights of {self.loop.bits} bits", self.loop.group

    def product(self, arrays: Mapping[str, Array], slices: int, exact: bool) -> tuple[Array, Array]:
        """The sum over groups of s (A (Q - Z)), in which Q - Z are small integers, and its largest error."""
        import numpy as np

        a, k = arrays["A"].astype(np.float64), arrays["A"].shape[-1]
        n = arrays["scales"].shape[-1]
        codes = unpack(arrays["B"].astype(np.uint32), self.loop.bits, k, n).astype(np.float64)
        zeros = arrays["zeros"].astype(np.float64) if self.loop.zeros else np.full((1, n), 2.0 ** (self.loop.bits - 1))
        group = self.loop.group or max(k, 1)
        weights = codes - (np.repeat(zeros, group, axis=0)[:k] if self.loop.zeros else zeros)
        blocks = Blocks(group, None, arrays["scales"].T)
        return product_of_blocks(self.loop, a, weights, blocks, 1 if exact else slices, 0, exact)


def plan(spec: GemmSpec, mainloop: NarrowWeightsMainloop, architecture: Architecture) -> NarrowPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, [*division_reasons(spec), *invariance_reasons(spec)])
    loop = narrow_loop(outline, mainloop) if outline.readable else None
    epilogue = outline.epilogue()
    assert loop is not None
    name = outline.name("gemm_narrow", name_parts(mainloop))
    grid, regions = Grid(loop.tile_m, loop.tile_n, loop.tile_k), narrow_regions(loop)
    return NarrowPlan(
        name=name,
        spec_digest=outline.digest,
        architecture=architecture,
        sequence=narrow_sequence(name, spec, outline.matrices, loop, grid, epilogue),
        template="gemm/narrow_weights.cu.j2",
        shared_memory=regions,
        dynamic_shared_bytes=loop.shared_bytes,
        spec=spec,
        matrices=outline.matrices,
        threads=loop.threads,
        tile_m=loop.tile_m,
        tile_n=loop.tile_n,
        vector_c=min(2, spec.alignment.c),
        epilogue=epilogue,
        loop=loop,
        grid=grid,
    )


def name_parts(mainloop: NarrowWeightsMainloop) -> list[str]:
    """Part of an instance's name for its mainloop."""
    block, warp = mainloop.tile.threadblock, mainloop.tile.warp
    group = "col" if mainloop.group == "column" else f"g{mainloop.group}"
    weights = f"w{mainloop.bits}{group}{'z' if mainloop.zeros else ''}"
    return [f"{block.m}x{block.n}x{block.k}", f"w{warp.m}x{warp.n}", f"s{mainloop.stages}", weights]
