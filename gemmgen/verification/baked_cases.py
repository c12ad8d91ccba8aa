"""Cases of kernels that are made for sizes: a family's cases, with these sizes in place of the cases' own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

from gemmgen.core.errors import LaunchError, PlanError
from gemmgen.kernels import family_of
from gemmgen.kernels.family import Case, InstancePlan
from gemmgen.runtime.arrays.binding import bind_dimensions
from gemmgen.runtime.arrays.views import ArrayView, overlaps_itself
from gemmgen.verification.oracle import oracle_of

PlanT = TypeVar("PlanT", bound=InstancePlan)

MAX_PROMISE = 64
MAX_WORK = 1 << 31
"""Product of the sizes of all cases together, beyond the first ones: the emulator has to run them."""
FEWEST = 6
MAX_BORDER = 32
"""Extent beyond twice a result's that is tried for the dimension it depends on."""


def cases_of(plan: InstancePlan) -> list[Case]:
    """The cases that a verification runs."""
    cases = oracle_of(plan.spec.kind).cases
    if not plan.spec.sizes:
        return cases(plan)
    general = general_plan(plan)
    return _baked(plan, general, cases(general))


def counted_case_of(plan: InstancePlan) -> Case:
    """The problem whose memory traffic and instructions stand for the instance. Raises ``PlanError`` if there is none."""
    if not plan.spec.sizes:
        return oracle_of(plan.spec.kind).counted_case(plan)
    general = general_plan(plan)
    cases = _baked(plan, general, [oracle_of(plan.spec.kind).counted_case(general)]) or cases_of(plan)
    if not cases:
        raise PlanError(f"{plan.name}: no problem of its sizes is small enough to be counted", [])
    return cases[0]


def general_plan(plan: PlanT) -> PlanT:
    """The plan of the same kernel for all sizes."""
    family = family_of(plan.spec)
    spec = plan.spec.model_copy(update={"sizes": ()})
    promises = {name: min(size & -size, MAX_PROMISE) for name, size in plan.spec.sizes}
    general: PlanT
    try:
        general = family.plan(family.promising(spec, promises), plan.architecture)
    except PlanError:
        general = family.plan(spec, plan.architecture)
    return general


def _baked(plan: InstancePlan, general: InstancePlan, cases: Sequence[Case]) -> list[Case]:
    """The cases that the kernel can run once its sizes are put in, each problem once for each kind of data, and no more than are quickly
    run: the smallest."""
    by_dimensions: dict[Any, Case] = {}
    for case in cases:
        dimensions = _with_sizes(general, dict(plan.spec.sizes), case.dimensions)
        problems: list[str] = []
        try:
            bind_dimensions(plan.sequence, {}, dimensions, problems)
            problems += [] if problems else _overlapping(plan, dimensions)
            plan.sequence.resolve(dimensions)
        except LaunchError as error:
            problems.append(str(error))
        if not problems:
            key = tuple(dimensions.items()), tuple(case.scalars.items()), case.data, tuple(case.offsets.items())
            by_dimensions.setdefault(key, replace(case, dimensions=dimensions))
    smallest: list[Case] = []
    left = MAX_WORK
    names = family_of(plan.spec).own_sizes(plan)
    works = {id(case): prod(max(case.dimensions.get(name, 1), 1) for name in names) for case in by_dimensions.values()}
    for case in sorted(by_dimensions.values(), key=lambda one: works[id(one)]):
        left -= works[id(case)]
        if left >= 0 or len(smallest) < FEWEST:
            smallest.append(case)
    chosen = {id(case) for case in smallest}
    return [case for case in by_dimensions.values() if id(case) in chosen]


def _reaching(plan: InstancePlan, sizes: Mapping[str, int], wanted: dict[str, int]) -> dict[str, int]:
    """``wanted``, changed in sizes that are free so that extents which follow from them, rows of an image's result say, are those of the
    kernel."""
    family = family_of(plan.spec)
    names = family.own_sizes(plan)
    problem = family.own_problem(plan, list(wanted.values()))
    arrays = {name for array in plan.sequence.arrays for formula in array.shape for name in formula.names}
    for derived in [name for name in sizes if name in problem and name in arrays and name not in names]:
        for free in (name for name in names if name not in sizes):
            if problem[derived] == sizes[derived]:
                break
            for value in range(1, 2 * sizes[derived] + MAX_BORDER):
                tried = wanted | {free: value}
                try:
                    sizes_of = family.own_problem(plan, list(tried.values()))
                except LaunchError:
                    continue
                if sizes_of.get(derived) == sizes[derived]:
                    wanted, problem = tried, sizes_of
                    break
    return wanted


def _overlapping(plan: InstancePlan, dimensions: Mapping[str, int]) -> list[str]:
    """Results whose elements lie on one another, as happens where one stride is the kernel's and another a case's."""
    names = []
    for array in plan.sequence.arrays:
        if array.writes and array.role != "workspace":
            shape, strides = (tuple(one.evaluate(dimensions) for one in formulas) for formulas in (array.shape, array.strides))
            if overlaps_itself(ArrayView(0, shape, strides, array.type, "cpu")):
                names.append(f"the elements of {array.name} overlap")
    return names


def _with_sizes(plan: InstancePlan, sizes: Mapping[str, int], dimensions: Mapping[str, int]) -> dict[str, int]:
    """A problem of a kernel for all sizes with these ones, all else as far from a problem without gaps as it was."""
    family = family_of(plan.spec)
    names = family.own_sizes(plan)
    try:
        before = family.own_problem(plan, [dimensions[name] for name in names])
        wanted = _reaching(plan, sizes, {name: sizes.get(name, dimensions[name]) for name in names})
        after = family.own_problem(plan, list(wanted.values()))
    except (KeyError, LaunchError):
        return {**dimensions, **sizes}
    moved = {name: after[name] + value - before[name] for name, value in dimensions.items() if name in before and name in after}
    return {**dimensions, **moved, **sizes}
