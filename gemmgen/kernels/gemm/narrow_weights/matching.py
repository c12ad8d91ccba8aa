"""Fits of GEMMs with narrow weights."""

from __future__ import annotations

import math

from gemmgen.kernels.gemm.fitting import changes_for, fitted, placed
from gemmgen.kernels.gemm.narrow_weights.loop import MIN_COPIED_BYTES
from gemmgen.kernels.gemm.packed_weights import BYTES, packed_shape
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, Multiples, NarrowWeightsMainloop, Storage
from gemmgen.kernels.requests import Fit, Layout

DEEPEST_TILE = 128
"""Depth of a tile that holds whole groups of any size."""
MIN_ALIGNMENT = {"tiles": 2, "streams": 2, "warpgroups": 8}
"""Elements that rows of A have to be aligned to, by method."""


def fit(spec: GemmSpec, mainloop: NarrowWeightsMainloop, request: GemmRequest) -> Fit | str:
    """The instance's spec with the request's bits, groups and zero points; or why it cannot be."""
    weights = request.weights
    assert weights is not None
    placement = placed(spec, request)
    if isinstance(placement, str):
        return placement
    if placement.request is not request or placement.transpose[0] == "t":
        return "it takes A and C stored row-major"
    if weights.group != "column" and request.k % weights.group:
        return f"groups of {weights.group} do not divide k = {request.k}"
    groups = 1 if weights.group == "column" else request.k // weights.group
    tiles = mainloop.method == "tiles"
    by_bytes = request.a.type in BYTES
    if by_bytes and not tiles:
        return "it is for activations of 16 bits"
    group: int = 1 if weights.group == "column" else weights.group
    least_a = MIN_ALIGNMENT[mainloop.method]
    if placement.alignment["a"] * request.a.element_bytes < MIN_COPIED_BYTES:
        return f"rows of A have to be aligned to {MIN_COPIED_BYTES} bytes"
    if not tiles and (placement.alignment["a"] < least_a or placement.alignment["c"] < 2 or request.n % 2):
        return f"rows of A, of C and of scales have to be aligned to {least_a}, 2 and 2 elements"
    if mainloop.method == "streams":
        group = math.lcm(group, min(8, placement.alignment["a"]))
        if request.k % group:
            return f"vectors of A of {group} elements do not divide k = {request.k}"
    tile = mainloop.tile
    depth = tile.threadblock.model_copy(update={"k": max(tile.threadblock.k, DEEPEST_TILE)})
    mainloop = mainloop.model_copy(
        update={
            "bits": weights.bits,
            "group": weights.group,
            "zeros": weights.zeros,
            **({"scaled": "sums"} if weights.floats else {}),
            "codes": weights.codes,
            "scale_type": None,
            "tile": tile.model_copy(update={"threadblock": depth}) if tiles else tile,
        }
    )
    changes = changes_for(spec, placement) | {
        "transpose": "nn",
        "storage": Storage.model_validate({"a": request.a.type, "b": "u8", "c": request.c.type}),
        "alignment": spec.alignment.model_copy(update={"a": placement.alignment["a"], "c": placement.alignment["c"]}),
        "multiple_of": Multiples(k=group),
        "mainloop": mainloop,
    }
    numbers = Layout.packed((groups, request.n), "f32" if by_bytes else request.a.type)
    arrays = {"B": ("b", Layout.packed(packed_shape(request.k, request.n, weights.bits), "u32")), "scales": ("scales", numbers)}
    arrays |= {"zeros": ("zeros", numbers)} if weights.zeros else {}
    return fitted(spec, request, changes, kept=arrays)


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return getattr(spec.decomposition, "slices", 1) == "launch"
