"""Products of a 2:4 sparse A by warpgroups (``wgmma.mma_async.sp``): reasons against them, and metadata.

Source: PTX ISA, "Asynchronous Warpgroup Level Multiply-and-Accumulate Operation using wgmma.mma_async.sp instruction". Metadata come with
the tiles, in the order of lanes (`gemmgen.kernels.gemm.sparsity`), so that a lane reads one register for 64 values of k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.core.errors import Reason
from gemmgen.kernels.gemm.sparsity import LANE_ROWS, LANES
from gemmgen.kernels.gemm.spec import GemmSpec, WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.sparse import sparse_form_reasons
from gemmgen.kernels.math.warpgroup import METADATA_K, WarpgroupLoop
from gemmgen.kernels.matrix import Matrix

TYPES = ("f16", "bf16", "s8", "u8", "e4m3", "e5m2")
DEPTHS = (METADATA_K, 2 * METADATA_K)
"""Values of k of a stage: a TMA box has at most 256 words."""
METADATA_ALIGNMENT = 4
"""Words that rows of metadata are aligned to: 16 bytes."""


def metadata_matrix() -> Matrix:
    """Words that say which values of k the kept ones are."""
    rows, words = f"ceil_div(m, {LANE_ROWS})", f"ceil_div(k, {METADATA_K}) * {LANES}"
    return Matrix("metadata", rows, words, "ld_metadata", True, METADATA_ALIGNMENT, "u32")


def sparse_reasons(spec: GemmSpec, mainloop: WgmmaMainloop) -> Iterator[Reason]:
    """Parts of the mainloop that do not go with a sparse A."""
    if mainloop.sparse == "none":
        return
    yield from sparse_form_reasons(spec, TYPES)
    if mainloop.tile.k not in DEPTHS:
        yield Reason("tile_k", "mainloop.tile.k", str(mainloop.tile.k), f"{DEPTHS[0]} or {DEPTHS[1]} with a sparse A")
    if mainloop.a_from != "shared" or mainloop.copied != "none" or mainloop.unroll != "full" or mainloop.arithmetic.f32_by is not None:
        got = (
            f"a with a_from: {mainloop.a_from}, copied: {mainloop.copied}, unroll: {mainloop.unroll}, f32_by: {mainloop.arithmetic.f32_by}"
        )
        need = "a_from: shared, copied: none, unroll: full and no f32_by with a sparse A"
        yield Reason("sparse", "mainloop.sparse", got, need)
    if mainloop.instruction_n is not None:
        need = "all columns of the tile in an instruction with a sparse A"
        yield Reason("sparse", "mainloop.instruction_n", str(mainloop.instruction_n), need)


def kept_values(loop: WarpgroupLoop) -> WarpgroupLoop:
    """The loop whose steps count the kept values of k alone, which its sums are made of."""
    return replace(loop, tile_k=loop.tile_k // 2)
