"""The protocol of rendering: the work of a kernel in words, for the top of its source."""

from __future__ import annotations

from typing import Protocol, cast

from gemmgen.kernels import family_module
from gemmgen.kernels.family import InstancePlan


class Summary(Protocol):
    """The module ``explain`` of a family, as far as generated files need it."""

    def summary(self, plan: InstancePlan) -> list[str]:
        """The kernel's computation, in a few lines for the top of its source."""


def summary(plan: InstancePlan) -> list[str]:
    """A kernel's computation, in a few lines."""
    return cast("Summary", family_module(plan.spec.kind, "explain")).summary(plan)
