"""int8 convolution as a kernel family: y = activation(alpha * convolution(x, filter) + beta * bias + gamma * z)."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.core.formulas import round_up
from gemmgen.kernels.conv2d.plan import Conv2dPlan, plan_conv2d
from gemmgen.kernels.conv2d.problem import SIZE_NAMES, fixed_parameters, sizes
from gemmgen.kernels.conv2d.spec import Conv2dSpec
from gemmgen.kernels.conv2d.tiles import CHANNELS
from gemmgen.kernels.family import Family

TYPICAL = (128, 128, 28, 28, 128, 3, 3, 1, 1)


def _problem(plan: Conv2dPlan, given: Sequence[int]) -> dict[str, int]:
    return sizes(plan.spec, given)


def _instance_sizes(plan: Conv2dPlan) -> dict[str, int]:
    """The typical layer, with what the spec fixes, and channels that its groups divide."""
    fixed = fixed_parameters(plan.spec)
    typical = {name: fixed.get(name, value) for name, value in zip(SIZE_NAMES, TYPICAL, strict=True)}
    unit = CHANNELS * fixed.get("groups", 1)
    return typical | {name: round_up(typical[name], unit) for name in ("c", "k") if name not in fixed}


family = Family("conv2d", Conv2dSpec, plan_conv2d, SIZE_NAMES, TYPICAL, _problem, _instance_sizes)
