"""Predicted times of single plans, by the model that chooses among instances."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmgen.dispatch.model import model_seconds
from gemmgen.hardware.target import DEVICES, Architecture, Device, device
from gemmgen.kernels import family_of
from gemmgen.kernels.family import KernelPlan
from gemmgen.perf.cost_model import cost_model_of

DEFAULT_DEVICE = "H200"
"""Device that plans are held against where none is named."""


def device_for(architecture: Architecture | None) -> Device:
    """The default device; of architectures whose binaries it does not run, the first known one that does."""
    default = device(DEFAULT_DEVICE)
    if architecture is None:
        return default
    return next((candidate for candidate in (default, *DEVICES.values()) if candidate.architecture.runs_cubins_of(architecture)), default)


def predicted_seconds(plan: KernelPlan, target: Device | None = None, sizes: Sequence[int] = ()) -> float | None:
    """Time of a plan's launches on ``target`` by the model, without a GPU and without compiling; None if the model cannot tell.

    ``sizes`` are in the family's order; without any, those of a typical problem. The model takes registers as the plan estimates them.
    """
    family = family_of(plan.spec)
    typical = family.instance_sizes(plan)
    problem = family.problem(plan, tuple(sizes) or tuple(typical.values()))
    seconds = model_seconds(cost_model_of(plan.spec.kind).work(plan, problem), target or device_for(plan.architecture))
    return seconds if math.isfinite(seconds) else None
