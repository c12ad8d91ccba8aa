"""Fits of float64 products by remainders. Only callers that name the precision, such as ``ops.matmul``, get them."""

from __future__ import annotations

from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, WgmmaMainloop
from gemmgen.kernels.requests import Fit


def fit(spec: GemmSpec, mainloop: WgmmaMainloop, request: GemmRequest) -> Fit | str:
    """The reason why an instance is not a candidate."""
    return "float64 by 8-bit integers is used where precision asks for it"


def may_launch_early(spec: GemmSpec) -> bool:
    """True if the launch may decide numbers of an instance, and may start it early if the architecture allows that."""
    return False
