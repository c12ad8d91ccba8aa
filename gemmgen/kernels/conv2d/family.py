"""int8 convolution as a kernel family: y = activation(alpha * convolution(x, filter) + beta * bias + gamma * z)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemmgen.core.formulas import round_up
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.conv2d.direct import plan_direct
from gemmgen.kernels.conv2d.few_channels import plan_few_channels
from gemmgen.kernels.conv2d.grouped import plan_grouped
from gemmgen.kernels.conv2d.plan import plan_warp_tiles
from gemmgen.kernels.conv2d.problem import SIZE_NAMES, channel_multiples, fixed_parameters, sizes
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.spec import Conv2dSpec, DirectMainloop, FewChannelsMainloop, GroupedMainloop, TensorMemoryMainloop
from gemmgen.kernels.conv2d.tensor_memory import plan_tensor_memory
from gemmgen.kernels.conv2d.warpgroup_plan import plan_warpgroup
from gemmgen.kernels.epilogue.sums import with_sums
from gemmgen.kernels.family import Family

TYPICAL = (128, 128, 28, 28, 128, 3, 3, 1, 1)


def plan_conv2d(spec: Conv2dSpec, architecture: Architecture) -> FinishingPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    plan = _plan(spec, architecture)
    return replace(plan, sequence=with_sums(plan.sequence, plan.name, plan.steps, plan.terms)) if plan.sum_kernels else plan


def _plan(spec: Conv2dSpec, architecture: Architecture) -> FinishingPlan:
    """The plan of the convolution's own kernels."""
    if isinstance(spec.mainloop, DirectMainloop):
        return plan_direct(spec, spec.mainloop, architecture)
    if isinstance(spec.mainloop, GroupedMainloop):
        return plan_grouped(spec, spec.mainloop, architecture)
    if isinstance(spec.mainloop, FewChannelsMainloop):
        return plan_few_channels(spec, spec.mainloop, architecture)
    if isinstance(spec.mainloop, TensorMemoryMainloop):
        return plan_tensor_memory(spec, spec.mainloop, architecture)
    if spec.mainloop is not None:
        return plan_warpgroup(spec, spec.mainloop, architecture)
    return plan_warp_tiles(spec, architecture)


def _problem(plan: FinishingPlan, given: Sequence[int]) -> dict[str, int]:
    return sizes(plan.spec, given)


def _instance_sizes(plan: FinishingPlan) -> dict[str, int]:
    """The typical layer with the spec's fixed values, and channels that its groups divide."""
    fixed = fixed_parameters(plan.spec)
    typical = {name: fixed.get(name, value) for name, value in zip(SIZE_NAMES, TYPICAL, strict=True)}
    units = dict(zip(("c", "k"), channel_multiples(plan.spec, fixed.get("groups", 1)), strict=True))
    return typical | {name: round_up(typical[name], unit) for name, unit in units.items() if name not in fixed}


family = Family("conv2d", Conv2dSpec, plan_conv2d, SIZE_NAMES, TYPICAL, _problem, _instance_sizes)
