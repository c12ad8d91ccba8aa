"""Fits of GEMMs on tensor memory."""

from __future__ import annotations

from gemmgen.kernels.gemm.fitting import changes_for, fitted, placed
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, TensorMemoryMainloop
from gemmgen.kernels.requests import MAX_ALIGNMENT, Fit


def fit(spec: GemmSpec, mainloop: TensorMemoryMainloop, request: GemmRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    if request.groups is not None:
        return "it has no groups of rows"
    truncated = request.precision == "tf32" and spec.storage.a == spec.storage.b == "tf32"
    placement = placed(spec, request)
    if isinstance(placement, str):
        return placement
    request = placement.request
    for name, layout, along_k in (("a", request.a, placement.row_major["a"]), ("b", request.b, not placement.row_major["b"])):
        if placement.alignment[name] * layout.element_bytes < MAX_ALIGNMENT:
            return f"TMA cannot read {name.upper()}, which is not aligned to {MAX_ALIGNMENT} bytes"
        if not along_k and layout.element_bytes != 2:
            return f"{name.upper()} is not stored along k"
    return fitted(spec, request, changes_for(spec, placement, truncated) | {"mainloop": mainloop})


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return False
