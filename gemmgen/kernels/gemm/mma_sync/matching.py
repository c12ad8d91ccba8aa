"""Fits of GEMMs by warps that multiply fragments."""

from __future__ import annotations

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.gemm.fitting import changes_for, fitted, placed
from gemmgen.kernels.gemm.mma_sync.doubles import is_double
from gemmgen.kernels.gemm.mma_sync.reasons import transposing_reasons
from gemmgen.kernels.gemm.request import DOUBLE, GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop
from gemmgen.kernels.gemm.tensor_cores.matching import group_changes, groups_refusal
from gemmgen.kernels.requests import MAX_ALIGNMENT, Fit

MIN_STAGES = 2
SHALLOW = 256
"""Values of k up to which `mma.sync` stores unaligned rows of results through shared memory: 3246 x 3246 x 34 takes 23 us on an H200, 28
straight from registers. Beyond, the mainloop rules, which some instances run faster without it: 2500 cubed 141 us, 162 with it."""


def fit(spec: GemmSpec, mainloop: MmaSyncMainloop, request: GemmRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be. Instances serve all types alike, with tiles of as
    many elements."""
    if (refusal := groups_refusal(spec, request)) is not None:
        return refusal
    if mainloop.accumulators == "f16":
        return "its sums are float16"
    if is_double(spec) != (request.a.type == DOUBLE):
        return "its tiles are for doubles" if is_double(spec) else "its tiles are for smaller types than doubles"
    placement = placed(spec, request)
    if isinstance(placement, str):
        return placement
    request = placement.request
    if mainloop.fragment_reads == "vectors" and placement.result_bytes < MAX_ALIGNMENT:
        # 3270 x 3270 x 14 takes 50 us on an H200 by such warps, 16 by warps that share a tile; 28 x 28 x 28 in a batch of 3174, 18 and 10.
        return "rows of results that are no multiples of 16 bytes are stored faster by other warps"
    across = placement.transpose == "tn" and spec.order == "row_major"
    if request.depths is not None and not (across and spec.decomposition.scheme == "data_parallel"):
        return "values of k that differ take A and B in rows of m and n, and k undivided"
    if request.grouping.gathered or request.depths is not None:
        mainloop = mainloop.model_copy(update={"copies": "cp_async"})
    unaligned = is_shallow(spec, mainloop, request) and not is_double(spec) and placement.result_bytes < MAX_ALIGNMENT
    turns = unaligned and not request.grouping.scattered and not any(transposing_reasons(spec, mainloop))
    store = "through_shared" if turns else spec.store
    changes = changes_for(spec, placement, truncated=request.precision == "tf32")
    changes |= {"store": store, "mainloop": with_filled_stages(spec, mainloop, request)}
    return fitted(spec, request, changes | group_changes(request))


def is_shallow(spec: GemmSpec, mainloop: MmaSyncMainloop, request: GemmRequest) -> bool:
    """True if the mainloop is so short that stores decide."""
    return mainloop.copies != "none" and spec.store == "direct" and request.k <= SHALLOW


def with_filled_stages(spec: GemmSpec, mainloop: MmaSyncMainloop, request: GemmRequest) -> MmaSyncMainloop:
    """The mainloop with no more stages than k fills: others take shared memory from the L1. 4097 x 4097 x 31 takes 34 us by four on an
    H100, 26 by two."""
    if not is_shallow(spec, mainloop, request):
        return mainloop
    filled = ceil_div(request.k, mainloop.tile.threadblock.k)
    return mainloop.model_copy(update={"stages": max(MIN_STAGES, min(mainloop.stages, filled))})


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return getattr(spec.decomposition, "slices", 1) == "launch"
