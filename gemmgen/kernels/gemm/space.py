"""The space of GEMM kernels: the points of the strategies that have one."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.hardware.target import Device
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, WgmmaMainloop
from gemmgen.kernels.gemm.strategies import import_for_choice
from gemmgen.kernels.gemm.wgmma import plan as wgmma_plan
from gemmgen.kernels.gemm.wgmma import space as wgmma
from gemmgen.kernels.points import Points

MULTIPLY_ADDS = ("naive", "tiled", "gemv")
"""Strategies that multiply without tensor cores."""
GEMV_ROWS = 4


def points(request: GemmRequest, device: Device) -> list[Points]:
    """All points that can serve a request on a device."""
    import_for_choice()
    return wgmma.points(request, device)


def coordinates(spec: GemmSpec) -> Sequence[float] | None:
    """Coordinates of a kernel, as points have them; None for one of no space."""
    return wgmma.coordinates(spec)


def multiplies(spec: GemmSpec, request: GemmRequest) -> bool:
    """True if a kernel is for factors of the request's types."""
    return (spec.storage.a, spec.storage.b) == (request.a.type, request.b.type)


def suits(spec: GemmSpec, request: GemmRequest) -> bool:
    """False for a kernel on tensor cores that is made for other types, in whose place there are points of the request's; and for GEMV with
    an epilogue, where few threads finish results: on an H200, bias and GELU made an instance take 14.9 us instead of 11.2 us for
    1 x 3584 x 5120, and 44.0 us instead of 32.0 us for 1 x 8192 x 8192. On tensor cores they add nothing."""
    return not request.epilogue if spec.mainloop.strategy in MULTIPLY_ADDS else multiplies(spec, request)


def is_outrun(spec: GemmSpec, request: GemmRequest, whole: bool) -> bool:
    """True for products by multiply-adds in tiles, which are slower than tensor cores unless the problem is tiny. If points serve the
    problem ``whole``, without copying its factors first, also for those by warps' instructions, and for GEMV with more than ``GEMV_ROWS``
    rows: of 500 drawn products of such problems, with 1 to 100 rows, none was to be served by one."""
    strategy = spec.mainloop.strategy
    return strategy in ("naive", "tiled") or (
        whole and (strategy == "mma_sync" or (strategy == "gemv" and min(request.sizes[:2]) > GEMV_ROWS))
    )


def label(spec: GemmSpec) -> str:
    """Name of a point: its numbers, and whether C is computed as its transpose: *across* if TMA stores it, else *turned*."""
    assert isinstance(spec.mainloop, WgmmaMainloop)
    parts = [*wgmma_plan.name_parts(spec, spec.mainloop), f"b{spec.mainloop.min_blocks_per_sm}"]
    parts += [f"k{spec.decomposition.slices}"] if spec.decomposition.scheme == "split_k_cluster" else []
    parts += (["across"] if spec.store == "tma" else ["turned"]) if spec.order == "column_major" else []
    return "point/wgmma/" + "_".join(part for part in parts if part not in ("tma", "b1"))


def least_seconds(spec: GemmSpec, request: GemmRequest, device: Device) -> float:
    """Seconds in which no kernel of this strategy can serve the request: at the peak of the multiply-add lanes; 0 on tensor cores."""
    if spec.mainloop.strategy not in MULTIPLY_ADDS:
        return 0.0
    m, n, k = request.sizes
    elements = request.triangles.elements_of_result(m, n)
    return 2.0 * elements * k * (request.c.shape[0] if request.batched else 1) / device.fp32_roof.value
