"""The plan of a GEMM by warps that multiply fragments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.mma_sync.half_sums import half_product
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop, warp_mma_loop, warp_mma_regions
from gemmgen.kernels.gemm.mma_sync.sequence import mma_sync_sequence
from gemmgen.kernels.gemm.mma_sync.sparse import metadata_matrix
from gemmgen.kernels.gemm.mma_sync.warp_plan import WarpPlan
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop
from gemmgen.kernels.gemm.tensor_cores.block_scaling import packed_reasons, scaled_product
from gemmgen.kernels.gemm.tensor_cores.grid import Grid
from gemmgen.kernels.gemm.tensor_cores.operands import arithmetic_parts, as_stored
from gemmgen.kernels.gemm.tensor_cores.plan import tensor_numbers
from gemmgen.kernels.gemm.tensor_cores.reasons import type_reasons
from gemmgen.kernels.gemm.tensor_cores.sparse import sparse_product
from gemmgen.kernels.math.tensor_accuracy import product_bound
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.gemm.plan import Array

TALL = 131072
"""Rows of a typical product of few columns and little depth."""


@dataclass(frozen=True, kw_only=True)
class MmaSyncPlan(WarpPlan):
    """A GEMM whose warps multiply fragments, which they read from shared or from global memory."""

    @property
    def largest_depth(self) -> int | None:
        return None if self.loop.vectors is None else self.loop.tile_k

    @property
    def typical(self) -> dict[str, int]:
        if self.loop.vectors is None:
            return super().typical
        rows, several = (512, {"batch": 64}) if self.batched else (TALL, {})
        return {"m": rows, "n": self.tile_n, "k": self.loop.tile_k} | several

    @property
    def tiles_in_turn(self) -> dict[str, tuple[int, int, int]]:
        if self.loop.vectors is None:
            return super().tiles_in_turn
        # More rows of tiles than the warps of few blocks have, each of which continues with the same columns, or with others.
        own, depth = self.grid.own_tiles, self.loop.tile_k
        return {"many rows of a tile": (5 * own, 1, depth), "many tiles of a row": (3, 2 * own + 1, depth)}

    @property
    def metadata(self) -> Matrix | None:
        return metadata_matrix() if self.loop.sparse else None

    def metadata_by_rows(self, arrays: Mapping[str, Array]) -> npt.NDArray[np.uint16]:
        words: npt.NDArray[np.uint16] = arrays["metadata"].astype("uint16")
        return words

    def product(self, arrays: Mapping[str, Array], slices: int, exact: bool) -> tuple[Array, Array]:
        if self.loop.half_sums:
            return half_product(self.loop, arrays["A"].astype(float), arrays["B"].astype(float), max(slices, 1), exact)
        if self.loop.sparse:
            a, b = arrays["A"].astype(float), arrays["B"].astype(float)
            return sparse_product(self.loop, a, b, self.metadata_by_rows(arrays), max(slices, 1), self.joined_parts(b.shape[-2]), exact)
        if self.loop.scaled is None:
            return super().product(arrays, slices, exact)
        return scaled_product(self, self.loop.scaled, arrays, max(slices, 1) + self.joined_parts(arrays["A"].shape[-1]), exact)

    def product_bound(self, a: Array, b: Array, slices: int) -> Array:
        joined = self.joined_parts(a.shape[-1])
        return (
            product_bound(self.loop, max(slices, 1), a, b, joined, turing=True) if self.loop.turing else super().product_bound(a, b, slices)
        )

    @property
    def bits_not_confirmed(self) -> tuple[str, ...]:
        return ("sparse products of sm_100 and later",) if self.loop.sparse and self.architecture.compute_capability[0] >= 10 else ()

    @property
    def packed_factors(self) -> bool:
        return self.loop.scaled is not None and self.loop.scaled.packed

    def additions(self, k: int) -> tuple[str, int]:
        if self.loop.scaled is not None:
            return self.loop.scaled.instruction, 0
        if self.loop.vectors is not None:
            return f"vectors of {self.mainloop_digest}", 0
        if self.loop.sparse:
            return f"k{self.loop.instruction_depth} of a sparse A", 0
        if self.loop.double_depth:
            return "fma in the order of lanes", 0
        if self.loop.turing:
            return "k8 of sm_75", 0
        if self.loop.half_sums:
            return "k16 summed up in float16", 0
        halves = " in halves" if self.matrix_a.type in ("e4m3", "e5m2") else ""
        return f"k{self.loop.instruction_k}{halves}", 0

    @property
    def staged_store(self) -> str:
        if self.loop.transposed_store:
            return "rows"
        return "" if self.loop.vectors is None else "vectors"

    @property
    def even_k(self) -> bool:
        """True if the spec promises that k is even."""
        return bool(self.spec.multiple_of.k % 2 == 0)

    @property
    def fragment_vectors_read(self) -> tuple[tuple[int, int, bool], ...]:
        """Pairs and elements of the vectors that lanes read of A and B, and whether all of a vector exists or nothing, each once."""
        vectors = self.loop.vectors
        if vectors is None:
            return ()
        a = (vectors.words_along_k if self.loop.a.k_major else vectors.blocks_m, vectors.whole_a)
        b = (vectors.words_along_k if self.loop.b.k_major else vectors.blocks_n, vectors.whole_b)
        return tuple((pairs, 2 * pairs, whole) for pairs, whole in dict.fromkeys((a, b)))


def plan(spec: GemmSpec, mainloop: MmaSyncMainloop, architecture: Architecture) -> MmaSyncPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    outline = Outline(spec, architecture, [*division_reasons(spec), *invariance_reasons(spec)])
    multiplied = as_stored(*outline.matrices[:2])
    unfit = type_reasons(spec) if mainloop.multiplied == "stored" else packed_reasons(spec)
    loop = warp_mma_loop(outline, mainloop, multiplied, unfit) if outline.readable else None
    epilogue = outline.epilogue()
    assert loop is not None
    name = outline.name("gemm_mma", name_parts(mainloop))
    grid, regions = grid_of(loop), warp_mma_regions(loop)
    shared_bytes = max((region.offset + region.bytes for region in regions), default=0)
    return MmaSyncPlan(
        **tensor_numbers(outline, name, epilogue, loop.threads, grid, regions),
        sequence=mma_sync_sequence(name, spec, outline.matrices, loop, grid, epilogue, shared_bytes),
        template=template_of(mainloop),
        loop=loop,
    )


def grid_of(loop: WarpLoop) -> Grid:
    """The grid of warps that share a tile, or have one each."""
    return Grid(loop.tile_m, loop.tile_n, loop.tile_k, loop.persistent_blocks, loop.own_tiles, warps_apart=loop.direct)


def name_parts(mainloop: MmaSyncMainloop) -> list[str]:
    """Part of an instance's name for its mainloop."""
    block, warp = mainloop.tile.threadblock, mainloop.tile.warp
    parts = [f"{block.m}x{block.n}x{block.k}", f"w{warp.m}x{warp.n}"]
    if mainloop.fragment_reads == "vectors":
        parts.append("vectors")
    else:
        parts.append("direct" if mainloop.copies == "none" else f"s{mainloop.stages}")
    parts += [mainloop.copies] if mainloop.copies not in ("cp_async", "none") else []
    parts += ["sums16"] if mainloop.accumulators == "f16" else []
    parts += ["ahead"] if mainloop.fragment_buffers == 2 else []
    parts += ["sparse"] if mainloop.sparse == "a" else []
    parts += [mainloop.multiplied] if mainloop.multiplied != "stored" else []
    return parts + arithmetic_parts(mainloop.arithmetic)


def template_of(mainloop: MmaSyncMainloop) -> str:
    """The template of the kernel: fragments from shared memory, or from global memory, in pairs or in vectors."""
    if mainloop.fragment_reads == "vectors":
        return "gemm/warp_vectors.cu.j2"
    return "gemm/warp_direct.cu.j2" if mainloop.copies == "none" else "gemm/warp_mma.cu.j2"
