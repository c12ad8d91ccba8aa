"""GEMM as a kernel family: C = epilogue(alpha * op(A) * op(B) + beta * C)."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.kernels.family import Family
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.plan import GemmPlan, packed, plan_gemm
from gemmgen.kernels.gemm.spec import GemmSpec

SIZE_NAMES = ("m", "n", "k")
TYPICAL = (4096, 4096, 4096)
TALL = 131072
"""Rows of a typical product of few columns and little depth."""


def _problem(plan: GemmPlan, sizes: Sequence[int]) -> dict[str, int]:
    return packed(plan, sizes[:3], *sizes[3:])


def _instance_sizes(plan: GemmPlan) -> dict[str, int]:
    if isinstance(plan.loop, WarpLoop) and plan.loop.vectors is not None:
        rows, several = (512, {"batch": 64}) if plan.batched else (TALL, {})
        return {"m": rows, "n": plan.tile_n, "k": plan.loop.tile_k} | several
    if plan.grouped:
        return dict(zip(SIZE_NAMES, TYPICAL, strict=True)) | {"groups": 16}
    return {"m": 512, "n": 512, "k": 512, "batch": 64} if plan.batched else dict(zip(SIZE_NAMES, TYPICAL, strict=True))


family = Family("gemm", GemmSpec, plan_gemm, SIZE_NAMES, TYPICAL, _problem, _instance_sizes)
