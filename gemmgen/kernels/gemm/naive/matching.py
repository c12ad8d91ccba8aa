"""Fits of GEMMs with a thread for each element of C."""

from __future__ import annotations

from gemmgen.kernels.gemm.fitting import multiply_add_fit
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, NaiveMainloop
from gemmgen.kernels.requests import Fit


def fit(spec: GemmSpec, mainloop: NaiveMainloop, request: GemmRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    return multiply_add_fit(spec, request)


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return False
