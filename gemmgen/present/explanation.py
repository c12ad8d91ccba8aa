"""The protocols of presentation: a family's plans in words and as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from gemmgen.kernels import family_module
from gemmgen.kernels.family import InstancePlan, Section
from gemmgen.kernels.pictures import Picture


class Explanation(Protocol):
    """The module ``explain`` of a family, as far as people ask for it."""

    def explain(self, plan: InstancePlan) -> list[Section]:
        """The plan in words."""


class Illustration(Protocol):
    """The module ``pictures`` of a family."""

    def pictures(self, plan: InstancePlan) -> list[Picture]:
        """Pictures of the plan, as plain data: at least its tiles."""


def explanation_of(kind: str) -> Explanation:
    """The explanation of a family's plans."""
    return cast("Explanation", family_module(kind, "explain"))


def accuracy_of(kind: str, plan: InstancePlan, problem: Mapping[str, int]) -> str | None:
    """Bound of a plan's errors on a problem in words, from a family that states one: its function ``accuracy``."""
    state = getattr(family_module(kind, "explain"), "accuracy", None)
    return None if state is None else state(plan, problem)


def illustration_of(kind: str) -> Illustration:
    """The pictures of a family's plans."""
    return cast("Illustration", family_module(kind, "pictures"))
