"""Fits of float64 products by remainders: callers ask for these by name (``ops.matmul``), no request takes them by itself."""

from __future__ import annotations

from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, WgmmaMainloop
from gemmgen.kernels.requests import Fit


def fit(spec: GemmSpec, mainloop: WgmmaMainloop, request: GemmRequest) -> Fit | str:
    """The reason why an instance does not take part in the choice."""
    return "float64 by 8-bit integers is used where precision asks for it"


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return False
