"""Specs of warps with block scales that cannot work (sm_120a)."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop
from gemmgen.kernels.gemm.tensor_cores.block_scaling import block_scaling, scale_kind_reasons


def scaled_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop, architecture: Architecture) -> Iterator[Reason]:
    """Scales, types and tiles that do not go together."""
    packed = mainloop.multiplied == "e2m1"
    yield from scale_kind_reasons(spec, packed, "mma_sync")
    if not spec.scales.given:
        return
    if not architecture.supports("block_scaled_mma"):
        yield Reason(
            "scales", "scales", f"block scales on {architecture.name}", "sm_120a for mma_sync with block scales", "architecture: sm_120a"
        )
    scaling = block_scaling(spec, mainloop)
    if scaling is None or spec.scales.a != spec.scales.b:
        return
    if mainloop.fragment_buffers != 1 or mainloop.copies == "none" or mainloop.unroll != "full":
        got = f"fragment_buffers {mainloop.fragment_buffers}, copies {mainloop.copies}, unroll {mainloop.unroll}"
        yield Reason("scales", "mainloop", got, "fragment_buffers: 1, unroll: full and tiles in shared memory with block scales")
    if mainloop.tile.threadblock.k % scaling.word_k:
        got = str(mainloop.tile.threadblock.k)
        yield Reason("tile_k", "mainloop.tile.threadblock.k", got, f"a multiple of {scaling.word_k} bytes, four blocks of scales")
