"""The protocol of dispatch: problems as text, instances fitted to requests, and problems to tune on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol, cast

from gemmgen.hardware.target import SAME_INSTRUCTIONS, Architecture, Device
from gemmgen.kernels import family_module, has_family_module
from gemmgen.kernels.family import KernelPlan, KernelSpec
from gemmgen.kernels.points import Points
from gemmgen.kernels.requests import Fit, NoClass, Request


class Matcher(Protocol):
    """The module ``matcher`` of a family."""

    def parse_request(self, sizes: Sequence[int], options: Sequence[str]) -> Request:
        """A request for packed arrays, from values for the family's ``size_names`` and words such as ``nt``; raises ``SpecError``."""

    def fit(self, spec: Any, request: Any) -> Fit | str:
        """Fit of an instance, its spec changed where the request needs it; or why it cannot."""

    def problem_grid(self, fine: bool) -> list[str]:
        """Problems that instances are timed on to know which is best where, as ``parse_request`` reads them, most useful first."""

    def operand_orders(self, plan: Any) -> Mapping[str, str]:
        """The storage order of operands that an instance reads in a special order, as functions of ``gemmgen.layouts`` know it."""


class Settings(Protocol):
    """The function ``settings`` of a matcher whose instances leave a choice to the launch."""

    def __call__(self, plan: Any, dimensions: Mapping[str, int], device: Device) -> Sequence[Mapping[str, int]]:
        """Values worth trying for dimensions of a problem that no array fixes, such as a number of slices of k."""


def settings_of(kind: str) -> Settings | None:
    """Choices that the matcher of a family leaves to the launch; None where there are none."""
    return getattr(family_module(kind, "matcher"), "settings", None)


class Space(Protocol):
    """The module ``space`` of a family whose kernels are points of a space, of which files list a few."""

    def points(self, request: Any, device: Device) -> Sequence[Points]:
        """All points that can serve a request on a device."""

    def coordinates(self, spec: Any) -> Sequence[float] | None:
        """Coordinates of a kernel, as points have them; None for one of no space."""

    def multiplies(self, spec: Any, request: Any) -> bool:
        """True if a kernel is for elements of the request's types."""

    def suits(self, spec: Any, request: Any) -> bool:
        """False for a kernel that is slower at the request than at the problems which tables hold of it."""

    def is_outrun(self, spec: Any, request: Any, whole: bool) -> bool:
        """True for a kernel that points outrun wherever no table says otherwise; ``whole``: points serve the problem by one launch."""

    def label(self, spec: Any) -> str:
        """Name of a point for people."""

    def least_seconds(self, spec: Any, request: Any, device: Device) -> float:
        """Seconds in which no kernel of this strategy can serve the request: 0 if nothing is known of it."""


@cache
def space_of(kind: str) -> Space | None:
    """The space of a family; None for one that has none."""
    return cast("Space", family_module(kind, "space")) if has_family_module(kind, "space") else None


class NumericClasses(Protocol):
    """The function ``numeric_class_of`` of a matcher that knows the instances that give a row the same bits."""

    def __call__(self, plan: Any, dimensions: Mapping[str, int]) -> str | NoClass:
        """Name of an instance's class; or why it has none: a row's bits depend on how many rows there are."""


def numeric_class_of(plan: KernelPlan, dimensions: Mapping[str, int]) -> str | NoClass:
    """Name of the class of instances that give a row the same bits: a separate one per instance if the family has no classes."""
    own: NumericClasses | None = getattr(family_module(plan.spec.kind, "matcher"), "numeric_class_of", None)
    return plan.name if own is None else own(plan, dimensions)


def numeric_class_at(plan: KernelPlan, dimensions: Mapping[str, int], terms: int) -> str | NoClass | None:
    """The class for sums of a number of terms; None where the family knows no classes."""
    summed = getattr(family_module(plan.spec.kind, "matcher"), "SUMMED", None)
    return None if summed is None else numeric_class_of(plan, {**dimensions, summed: terms})


class Adapted(Protocol):
    """The function ``adapted`` of a matcher whose instances gain from features of an architecture or a device."""

    def __call__(self, spec: Any, architecture: Architecture, device: Device | None) -> KernelSpec:
        """A fitted spec with those features; ``device``: the one that it is launched on, if that is known."""


def adapted(spec: KernelSpec, architecture: Architecture, device: Device | None) -> KernelSpec:
    """A fitted spec with features of the architecture and the device that its family's matcher wants there."""
    own: Adapted | None = getattr(family_module(spec.kind, "matcher"), "adapted", None)
    adapted_spec = spec if own is None else own(spec, architecture, device)
    if architecture.name in SAME_INSTRUCTIONS.get(adapted_spec.architecture, ()):
        adapted_spec = adapted_spec.model_copy(update={"architecture": architecture.name})
    return adapted_spec


def matcher_of(kind: str) -> Matcher:
    """The matcher of a family."""
    return cast("Matcher", family_module(kind, "matcher"))
