"""GEMM as a kernel family: C = epilogue(alpha * op(A) * op(B) + beta * C)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.epilogue.sums import with_sums
from gemmgen.kernels.family import Family
from gemmgen.kernels.gemm.plan import TYPICAL, GemmPlan, packed
from gemmgen.kernels.gemm.spec import MAX_MULTIPLE, GemmSpec, Multiples
from gemmgen.kernels.gemm.strategies import part_for


def plan_gemm(spec: GemmSpec, architecture: Architecture) -> GemmPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    plan: GemmPlan = part_for(spec, "plan").plan(spec, spec.mainloop, architecture)
    return replace(plan, sequence=with_sums(plan.sequence, plan.name, plan.epilogue, plan.terms)) if plan.sum_kernels else plan


def _problem(plan: GemmPlan, sizes: Sequence[int]) -> dict[str, int]:
    return packed(plan, sizes[:3], *sizes[3:])


def _instance_sizes(plan: GemmPlan) -> dict[str, int]:
    return plan.typical


def _promising(spec: GemmSpec, sizes: Mapping[str, int]) -> GemmSpec:
    """The spec with extents as multiples of their sizes, as far as a promise may go."""
    promised = {name: size for name, size in sizes.items() if name in TYPICAL and size <= MAX_MULTIPLE}
    return spec.model_copy(update={"multiple_of": Multiples(**{**spec.multiple_of.model_dump(), **promised})})


family = Family("gemm", GemmSpec, plan_gemm, tuple(TYPICAL), tuple(TYPICAL.values()), _problem, _instance_sizes, _promising)
