"""Least operations and bytes of a CPU GEMM."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan
from gemmgen.kernels.family import Cost


def cost(plan: CpuGemmPlan, problem: Mapping[str, int]) -> Cost:
    """Least operations and bytes of one problem."""
    m, n, k = (problem[name] for name in ("m", "n", "k"))
    reads_c = plan.spec.beta == "argument"
    elements = m * k + k * n + m * n * (1 + reads_c + len(plan.residuals))
    return Cost(2.0 * m * n * k, 4.0 * elements, "fp32")
