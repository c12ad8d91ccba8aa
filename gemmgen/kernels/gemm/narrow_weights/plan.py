"""The plan of a GEMM with narrow weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.mma_sync.warp_plan import WarpPlan
from gemmgen.kernels.gemm.narrow_weights.loop import NarrowLoop, WeightLoop, common_reasons, narrow_loop, narrow_regions
from gemmgen.kernels.gemm.narrow_weights.sequence import TICKET_BYTES, group_matrices, narrow_sequence
from gemmgen.kernels.gemm.narrow_weights.streams import StreamLoop, stream_loop, stream_regions
from gemmgen.kernels.gemm.narrow_weights.warpgroups import RegisterLoop, register_loop, register_regions
from gemmgen.kernels.gemm.packed_weights import unpack
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.spec import GemmSpec, NarrowWeightsMainloop
from gemmgen.kernels.gemm.tensor_cores.block_scaling import E2M1
from gemmgen.kernels.gemm.tensor_cores.blocks import Blocks, product_of_blocks, product_of_integers
from gemmgen.kernels.gemm.tensor_cores.grid import Grid
from gemmgen.kernels.gemm.tensor_cores.plan import TensorPlan
from gemmgen.kernels.launch import TensorMapArgument
from gemmgen.kernels.math.tensor_accuracy import product_bound
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array

TYPICAL_ROWS = 16
BEYOND_E4M3 = 480.0
"""The value of the bits of NaN as a number."""


def float_values(bits: int) -> Array:
    """The value of each code of weights that are floats; those of NaN count as the next number of the format would."""
    import numpy as np

    sizes = np.array(E2M1) if bits == 4 else to_numbers("e4m3", np.arange(128, dtype=np.uint8)).astype(np.float64)
    if bits == 8:
        sizes[-1] = BEYOND_E4M3
    return np.concatenate([sizes, -sizes])


@dataclass(frozen=True, kw_only=True)
class WeightPlan(TensorPlan):
    """A GEMM with narrow weights."""

    loop: WeightLoop

    @property
    def typical(self) -> dict[str, int]:
        return {"m": min(TYPICAL_ROWS, self.tile_m), "n": 4096, "k": 4096}

    @property
    def weight_bits(self) -> int:
        return self.loop.bits

    @property
    def factor_scales(self) -> tuple[Matrix, ...]:
        return group_matrices(self.spec, self.loop)

    def additions(self, k: int) -> tuple[str, int]:
        if self.loop.scales_weights:
            return f"k16, scaled weights of {self.loop.bits} bits", 0
        values = "floats" if self.loop.floats else "weights"
        return f"k{self.loop.instruction_k}, {values} of {self.loop.bits} bits", self.loop.group

    def product(self, arrays: Mapping[str, Array], slices: int, exact: bool) -> tuple[Array, Array]:
        """The sum over groups of s (A (Q - Z)), in which Q - Z are small integers, or the product of A and the rounded s (Q - Z); and its
        largest error."""
        import numpy as np

        a, k = arrays["A"].astype(np.float64), arrays["A"].shape[-1]
        n = arrays["scales"].shape[-1]
        codes = unpack(arrays["B"].astype(np.uint32), self.loop.bits, k, n, self.loop.neighbours).astype(np.float64)
        zeros = arrays["zeros"].astype(np.float64) if self.loop.zeros else np.full((1, n), 2.0 ** (self.loop.bits - 1))
        group = self.loop.group or max(k, 1)
        weights = codes - (np.repeat(zeros, group, axis=0)[:k] if self.loop.zeros else zeros)
        exact = exact and not (self.loop.floats and self.loop.bits == 8)  # numbers of 8-bit floats are too far apart
        parts = 1 if exact else slices * self.parts_of_k
        if self.loop.floats:
            weights = float_values(self.loop.bits)[codes.astype(np.uint8)]
        if self.loop.scales_weights:
            scaled = weights * np.repeat(arrays["scales"].astype(np.float64), group, axis=0)[:k]
            rounded = to_numbers(self.loop.type_a, to_elements(self.loop.type_a, scaled)).astype(np.float64)
            product = a @ rounded
            return product, np.zeros(product.shape) if exact else product_bound(self.loop, parts, a, rounded)
        blocks = Blocks(group, None, arrays["scales"].T)
        if self.loop.type_a == "s8":
            return product_of_integers(a, weights, blocks, slices * self.parts_of_k, exact)
        if (unit := self.loop.unit_of_codes) != 1:
            # A sum in these units is as far from 0 as float32 has numbers, unless it is one.
            products = product_of_blocks(self.loop, a, weights * unit, blocks, parts, 0, exact)
            return products[0] / unit, products[1] / unit
        return product_of_blocks(self.loop, a, weights, blocks, parts, 0, exact)

    @property
    def parts_of_k(self) -> int:
        """Sums of parts of k that make up one of C within a launch."""
        return self.grid.cluster_k


@dataclass(frozen=True, kw_only=True)
class PairPlan(WeightPlan):
    """A GEMM with narrow weights whose threads store pairs of results from shared memory."""

    loop: StreamLoop | RegisterLoop

    @property
    def workspace_alignment(self) -> int:
        return TICKET_BYTES

    @property
    def fragment_store(self) -> str:
        return "pairs"

    @property
    def registers_per_thread(self) -> int:
        return min(255, self.loop.estimated_registers, 65536 // (self.threads * self.loop.min_blocks_per_sm) // 8 * 8)


@dataclass(frozen=True, kw_only=True)
class NarrowPlan(WeightPlan, WarpPlan):
    """A GEMM whose warps make fragments of B of packed weights."""

    loop: NarrowLoop

    def scaled_sum(self, value: str, column: str) -> str:
        if self.loop.group:
            return value
        scaled = f"{value} * {self.loop.number(f'scales[{column}]')}"
        # 0 times an infinite scale would be NaN.
        return f"(alpha != 0.0f ? {scaled} : {value})" if self.spec.alpha == "argument" else scaled


@dataclass(frozen=True, kw_only=True)
class StreamPlan(PairPlan):
    """A GEMM of few rows whose warps stream packed weights."""

    loop: StreamLoop

    @property
    def step_k(self) -> int:
        return self.loop.step_k

    @property
    def parts_of_k(self) -> int:
        return self.loop.cluster_k * self.loop.k_warps

    def additions(self, k: int) -> tuple[str, int]:
        words, promoted = super().additions(k)
        return f"{words}, steps of {self.loop.k_warps} warps in turn" if self.loop.k_warps > 1 else words, promoted


@dataclass(frozen=True, kw_only=True)
class RegisterPlan(PairPlan):
    """A GEMM whose warpgroups multiply weights from registers."""

    loop: RegisterLoop

    @property
    def stores_vectors(self) -> bool:
        """True if a thread stores 16 bytes of a row at a time."""
        others = any(step.stores for step in self.epilogue)
        return self.spec.alignment.c >= 8 and self.matrix_c.element_bytes == 2 and not others


def plan(spec: GemmSpec, mainloop: NarrowWeightsMainloop, architecture: Architecture) -> WeightPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    division = division_reasons(spec) if mainloop.method == "tiles" else ()
    outline = Outline(spec, architecture, [*division, *invariance_reasons(spec)])
    return {"tiles": _tiles, "streams": _streams, "warpgroups": _warpgroups}[mainloop.method](outline, mainloop)


def _tiles(outline: Outline, mainloop: NarrowWeightsMainloop) -> NarrowPlan:
    loop = narrow_loop(outline, mainloop) if outline.readable else None
    epilogue = outline.epilogue()
    assert loop is not None
    grid = Grid(loop.tile_m, loop.tile_n, loop.tile_k)
    return NarrowPlan(
        **_common(outline, mainloop, loop, grid, epilogue),
        template="gemm/narrow_weights.cu.j2",
        shared_memory=narrow_regions(loop),
        loop=loop,
    )


def _streams(outline: Outline, mainloop: NarrowWeightsMainloop) -> StreamPlan:
    outline.reasons += common_reasons(outline.spec, outline.architecture, mainloop)
    loop = stream_loop(outline, mainloop) if outline.readable else None
    epilogue = outline.epilogue()
    assert loop is not None
    grid = Grid(loop.tile_m, loop.tile_n, loop.step_k, cluster_k=loop.cluster_k)
    return StreamPlan(
        **_common(outline, mainloop, loop, grid, epilogue),
        template="gemm/weight_streams.cu.j2",
        shared_memory=stream_regions(loop),
        loop=loop,
    )


def _warpgroups(outline: Outline, mainloop: NarrowWeightsMainloop) -> RegisterPlan:
    outline.reasons += common_reasons(outline.spec, outline.architecture, mainloop)
    loop = register_loop(outline, mainloop) if outline.readable else None
    epilogue = outline.epilogue()
    assert loop is not None
    grid = Grid(loop.tile_m, loop.tile_n, loop.tile_k, loop.persistent_blocks, cluster_k=loop.cluster_k)
    return RegisterPlan(
        **_common(outline, mainloop, loop, grid, epilogue, loop.maps(outline.matrices[0])),
        template="gemm/weight_warpgroups.cu.j2",
        shared_memory=register_regions(loop),
        loop=loop,
    )


def _common(
    outline: Outline,
    mainloop: NarrowWeightsMainloop,
    loop: WeightLoop,
    grid: Grid,
    epilogue: tuple[Step, ...],
    maps: tuple[TensorMapArgument, ...] = (),
) -> dict[str, Any]:
    """Fields of every plan; ``maps``: of A and B, where TMA brings them."""
    spec = outline.spec
    name = outline.name("gemm_narrow", name_parts(mainloop))
    return {
        "name": name,
        "spec_digest": outline.digest,
        "architecture": outline.architecture,
        "sequence": narrow_sequence(name, spec, outline.matrices, loop, grid, epilogue, maps),
        "dynamic_shared_bytes": loop.shared_bytes,
        "spec": spec,
        "matrices": outline.matrices,
        "threads": loop.threads,
        "tile_m": grid.tile_m,
        "tile_n": grid.tile_n,
        "vector_c": min(2, spec.alignment.c),
        "epilogue": epilogue,
        "grid": grid,
    }


def name_parts(mainloop: NarrowWeightsMainloop) -> list[str]:
    """Part of an instance's name for its mainloop."""
    block, warp = mainloop.tile.threadblock, mainloop.tile.warp
    group = "col" if mainloop.group == "column" else f"g{mainloop.group}"
    kind = "w" if mainloop.codes == "integers" else f"{mainloop.codes}w"
    weights = f"{kind}{mainloop.bits}{group}{'z' if mainloop.zeros else ''}{'s' if mainloop.scaled == 'weights' else ''}"
    warps = f"x{mainloop.k_warps}" if mainloop.k_warps > 1 else ""
    method = [] if mainloop.method == "tiles" else [mainloop.method]
    return [*method, f"{block.m}x{block.n}x{block.k}", f"w{warp.m}x{warp.n}{warps}", f"s{mainloop.stages}", weights]
