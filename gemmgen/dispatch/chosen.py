"""The kernel that a named problem gets on a device; for a problem that gets none, the obstacle and the nearest problem that is served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast, get_args

from gemmgen.codegen.rendering import render
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.dispatch.candidates import candidates, reserves
from gemmgen.dispatch.problems import Problem, parse_problem
from gemmgen.dispatch.selection import Choice, choose, fitted, planned
from gemmgen.hardware.target import DEVICES, Architecture, Device
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.kernels import family
from gemmgen.kernels.family import InstancePlan, KernelSpec
from gemmgen.kernels.requests import Request

_TYPES = ("bf16", "f16", "f32", "s8", "e4m3")
"""Types that are tried in the place of one that is not served, in this order."""
_MULTIPLES = (16, 32, 64)
"""Multiples that sizes are rounded up to in search of a problem that is served."""


@dataclass(frozen=True)
class ChosenKernel:
    """A kernel for a problem, with all its numbers."""

    problem: Problem
    plan: InstancePlan
    dimensions: Mapping[str, int]
    """Every dimension of the launch, for arrays without gaps."""
    choice: Choice | None = None
    """The choice that it came out of; None for a processor, where candidates are timed."""


def choose_kernel(problem: Problem, device: Device, architecture: Architecture | None = None) -> ChosenKernel:
    """The kernel that operations would launch for ``problem`` on ``device``. Raises ``SpecError`` for a problem without a result and
    ``LaunchError``, with the nearest problem that is served, if no kernel serves it."""
    request = problem.request
    if request.is_empty:
        raise SpecError(f"{problem.text}: the result is empty, so no kernel is launched")
    try:
        choice = choose(request, device, architecture, complete=True)
    except LaunchError as error:
        reason = str(error).replace(f"{request.kind}:{request.text}", problem.text, 1)
        raise LaunchError(f"{reason}\n{_hint(problem, device, architecture or device.architecture)}") from None
    option = choice.chosen
    return ChosenKernel(problem, option.plan, option.dimensions, choice)


def self_contained(chosen: ChosenKernel) -> ChosenKernel:
    """The kernel with a spec that renders to the same source by itself: where that depends on the architecture, as conversions do, the spec
    is for the newest that its device runs."""
    plan = chosen.plan
    if chosen.choice is None:
        return chosen
    try:
        if _source(planned(plan.spec, find_architecture(plan.spec.architecture))) == _source(plan):
            return chosen
    except PlanError:  # the spec's own architecture is older than its types need
        pass
    for name in reversed(get_args(KernelSpec.model_fields["architecture"].annotation)):
        own = find_architecture(name)
        if name.endswith("a") or own.compute_capability > cast("Architecture", plan.architecture).compute_capability:
            continue
        spec = plan.spec.model_copy(update={"architecture": name})
        made = planned(spec, cast("Architecture", plan.architecture))
        if _source(planned(spec, own)) == _source(made):
            return replace(chosen, plan=made)
    return chosen


def _source(plan: InstancePlan) -> str:
    return render(plan).text


def is_served(request: Request, architecture: Architecture) -> bool:
    """True if some instance can serve the request."""
    group = (*candidates(request.kind), *reserves(request.kind))
    return any(not isinstance(fitted(candidate, request, architecture), str) for candidate in group)


def _hint(problem: Problem, device: Device, architecture: Architecture) -> str:
    """The property that stands in the way, and the nearest problem that is served."""
    lines = []
    elsewhere = [
        other.name
        for other in {each.architecture: each for each in reversed(DEVICES.values())}.values()
        if other.architecture != architecture and is_served(problem.request, other.architecture)
    ]
    if elsewhere:
        lines.append(f"The {device.name} ({architecture.name}) does not support it: served on {', '.join(sorted(elsewhere))}.")
    for text, change in _variants(problem):
        try:
            if is_served(parse_problem(text), architecture):
                return "\n".join([*lines, f"Nearest that is served: {text} ({change})."])
        except (SpecError, LaunchError):
            continue
    return "\n".join([*lines, "No problem with one word or the sizes changed is served either."])


def _variants(problem: Problem) -> Iterator[tuple[str, str]]:
    """Problems that differ in one property, with the difference in words."""
    kind, _, rest = problem.text.partition(":")
    count = len(family(problem.request.kind).size_names)
    request = problem.request
    sizes, words = (
        list(map(str, request.sizes)),
        [trait for trait in rest.split(",") if trait and not trait.isdecimal() and "=" not in trait],
    )
    words += [word for word in rest.split(",") if word.startswith(("batch=", "groups=", "dilation="))]
    assert len(sizes) == count
    for place, word in enumerate(words):
        for other in _TYPES:
            if other not in words:
                yield f"{kind}:{','.join([*sizes, *words[:place], other, *words[place + 1 :]])}", f"{other} for {word}"
    for place, word in enumerate(words):
        yield f"{kind}:{','.join([*sizes, *words[:place], *words[place + 1 :]])}", f"without {word}"
    for multiple in _MULTIPLES:
        rounded = [str(-(-int(size) // multiple) * multiple) if int(size) > 1 else size for size in sizes]
        if rounded != sizes:
            yield f"{kind}:{','.join([*rounded, *words])}", f"sizes that are multiples of {multiple}"
