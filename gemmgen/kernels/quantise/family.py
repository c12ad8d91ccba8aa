"""Quantisation as a kernel family."""

from __future__ import annotations

from gemmgen.kernels.family import Family
from gemmgen.kernels.quantise.plan import QuantisePlan, packed_problem, plan_quantise
from gemmgen.kernels.quantise.spec import QuantiseSpec

TYPICAL = {"m": 4096, "k": 7168}


def _instance_sizes(plan: QuantisePlan) -> dict[str, int]:
    return dict(TYPICAL)


family = Family("quantise", QuantiseSpec, plan_quantise, tuple(TYPICAL), tuple(TYPICAL.values()), packed_problem, _instance_sizes)
