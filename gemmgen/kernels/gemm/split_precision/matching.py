"""Fits of float32 products on tensor cores by those of smaller types."""

from __future__ import annotations

from gemmgen.kernels.gemm.fitting import changes_for, fitted, placed
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop, WgmmaMainloop
from gemmgen.kernels.gemm.split_precision.kept import PLANES, PlanesMainloop, with_kept_planes
from gemmgen.kernels.requests import Fit

MARGIN_OF_PLANES = 1.1
"""Estimated time of multiply-adds, over that of products by planes, from which on these are taken: where both take about as long, the
simpler kernel, without a workspace, is the better choice."""
SEVERAL_TILES = 64
"""Rows of a tile from which on products split in the mainloop may have several tiles of rows."""
MIN_DEPTH_OF_PLANES = 128
"""k from which on products by planes are taken, whose bound is never larger than that of multiply-adds: they pay from here on only."""


def fit(spec: GemmSpec, mainloop: PlanesMainloop, request: GemmRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    if request.precision == "ffma":
        return "it computes float32 by planes, and multiply-adds are asked for"
    if request.invariant != "none":
        return "the way in which it repairs a row depends on the other rows of a tile"
    if request.k < MIN_DEPTH_OF_PLANES:
        return f"products by planes do not pay below k = {MIN_DEPTH_OF_PLANES}"
    if mainloop.strategy == "wgmma":
        return _wgmma_fit(spec, mainloop, request)
    if mainloop.strategy == "tcgen05":
        return _planes_fit(spec, mainloop, request)
    return _mma_sync_fit(spec, mainloop, request)


def _wgmma_fit(spec: GemmSpec, mainloop: WgmmaMainloop, request: GemmRequest) -> Fit | str:
    from gemmgen.kernels.gemm.wgmma.matching import takes_transpose

    if mainloop.arithmetic.split == "mainloop" and mainloop.tile.n < min(SEVERAL_TILES, request.m, request.n):
        # 43 x 11008 x 4096 takes 176 us on an H200 by three tiles of 16 rows, where cuBLAS takes 137.
        return "it would read and split the large matrix again for every tile of so few rows"
    return _planes_fit(spec, mainloop, request, takes_transpose(spec, request))


def _mma_sync_fit(spec: GemmSpec, mainloop: MmaSyncMainloop, request: GemmRequest) -> Fit | str:
    from gemmgen.kernels.gemm.mma_sync.matching import with_filled_stages

    return _planes_fit(spec, with_filled_stages(spec, mainloop, request), request)


def _planes_fit(spec: GemmSpec, mainloop: PlanesMainloop, request: GemmRequest, transposed_c: bool = False) -> Fit | str:
    if request.groups is not None:
        return "it has no groups of rows"
    placement = placed(spec, request, transposed_c)
    if isinstance(placement, str):
        return placement
    request = placement.request
    if mainloop.arithmetic.f32_by == PLANES and not request.batched and request.planes is not None:
        mainloop = with_kept_planes(mainloop, "b" if request.operands[1] == "b" else "a")
    kept = mainloop.arithmetic.kept
    arrays = {f"planes_{kept}": ("planes", request.planes)} if kept != "none" and request.planes is not None else {}
    return fitted(spec, request, changes_for(spec, placement) | {"mainloop": mainloop}, MARGIN_OF_PLANES, arrays)


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return False
