"""Fits of GEMMs with narrow weights."""

from __future__ import annotations

from gemmgen.kernels.gemm.fitting import changes_for, fitted, placed
from gemmgen.kernels.gemm.packed_weights import packed_shape
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, Multiples, NarrowWeightsMainloop, Storage
from gemmgen.kernels.requests import Fit, Layout

DEEPEST_TILE = 128
"""Depth of a tile that holds whole groups of any size."""


def fit(spec: GemmSpec, mainloop: NarrowWeightsMainloop, request: GemmRequest) -> Fit | str:
    """The instance's spec with the request's bits, groups and zero points; or why it cannot be."""
    weights = request.weights
    assert weights is not None
    found = placed(spec, request)
    if isinstance(found, str):
        return found
    if found.request is not request or found.transpose[0] == "t":
        return "it takes A and C stored row-major"
    if weights.group != "column" and request.k % weights.group:
        return f"groups of {weights.group} do not divide k = {request.k}"
    groups = 1 if weights.group == "column" else request.k // weights.group
    tile = mainloop.tile
    depth = tile.threadblock.model_copy(update={"k": max(tile.threadblock.k, DEEPEST_TILE)})
    mainloop = mainloop.model_copy(
        update={
            "bits": weights.bits,
            "group": weights.group,
            "zeros": weights.zeros,
            "tile": tile.model_copy(update={"threadblock": depth}),
        }
    )
    changes = changes_for(spec, found) | {
        "transpose": "nn",
        "storage": Storage.model_validate({"a": request.a.type, "b": "u8", "c": request.c.type}),
        "alignment": spec.alignment.model_copy(update={"a": found.alignment["a"], "c": found.alignment["c"]}),
        "multiple_of": Multiples(k=1 if weights.group == "column" else weights.group),
        "mainloop": mainloop,
    }
    numbers = Layout.packed((groups, request.n), request.a.type)
    kept = {"B": ("b", Layout.packed(packed_shape(request.k, request.n, weights.bits), "u32")), "scales": ("scales", numbers)}
    kept |= {"zeros": ("zeros", numbers)} if weights.zeros else {}
    return fitted(spec, request, changes, kept=kept)


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return getattr(spec.decomposition, "slices", 1) == "launch"
