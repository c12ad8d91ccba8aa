"""SGEMM on processors as a kernel family: C = epilogue(alpha * op(A) * op(B) + beta * C)."""

from __future__ import annotations

from gemmgen.core.errors import PlanError, Reason
from gemmgen.hardware.cpu import CpuArchitecture
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan, packed, plan_cpu_gemm
from gemmgen.kernels.cpu_gemm.spec import CpuGemmSpec
from gemmgen.kernels.family import Family

SIZE_NAMES = ("m", "n", "k")
TYPICAL = (1024, 1024, 1024)


def _instance_sizes(plan: CpuGemmPlan) -> dict[str, int]:
    return dict(zip(SIZE_NAMES, TYPICAL, strict=True))


def _plan(spec: CpuGemmSpec, architecture: CpuArchitecture) -> CpuGemmPlan:
    """The plan of a kernel, which does not depend on sizes: it works on cache blocks of any problem."""
    if spec.sizes:
        named = ", ".join(name for name, _ in spec.sizes)
        raise PlanError("cpu_gemm:", [Reason("sizes", "sizes", named, "none: kernels for processors take any sizes")])
    return plan_cpu_gemm(spec, architecture)


family = Family("cpu_gemm", CpuGemmSpec, _plan, SIZE_NAMES, TYPICAL, packed, _instance_sizes)
