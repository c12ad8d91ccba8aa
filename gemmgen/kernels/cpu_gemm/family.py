"""SGEMM on processors as a kernel family: C = epilogue(alpha * op(A) * op(B) + beta * C)."""

from __future__ import annotations

from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan, packed, plan_cpu_gemm
from gemmgen.kernels.cpu_gemm.spec import CpuGemmSpec
from gemmgen.kernels.family import Family

SIZE_NAMES = ("m", "n", "k")
TYPICAL = (1024, 1024, 1024)


def _instance_sizes(plan: CpuGemmPlan) -> dict[str, int]:
    return dict(zip(SIZE_NAMES, TYPICAL, strict=True))


family = Family("cpu_gemm", CpuGemmSpec, plan_cpu_gemm, SIZE_NAMES, TYPICAL, packed, _instance_sizes)
