"""Layers of a model: problems that differ in their first size alone, and the kernels that serve ranges of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gemmgen.core.errors import SpecError
from gemmgen.dispatch.chosen import choose_kernel
from gemmgen.dispatch.matcher import matcher_of
from gemmgen.dispatch.problems import read_problem
from gemmgen.dispatch.selection import Option, fitted
from gemmgen.hardware.target import Device
from gemmgen.kernels import PROBLEM_KINDS, family
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.problem_words import plain_word
from gemmgen.kernels.requests import Layout, Request

LARGEST = 2**31 - 1
_STEPS = (16, 64, 48, 1)
"""Differences in the first size by which it is found out how dimensions follow from it."""


@dataclass(frozen=True)
class Served:
    """A kernel for a range of a layer's first size."""

    plan: KernelPlan
    label: str
    least: int
    most: int
    dimensions: Mapping[str, tuple[int, int]]
    """For each dimension of the launch, a number and the factor of the first size that is added to it."""
    arrays: Mapping[str, str]
    """For each array of the kernel, the operand of the layer that it is."""
    scalars: Mapping[str, str]
    """For each number that the kernel takes, the layer's name for it."""


@dataclass(frozen=True)
class Layer:
    """One operation of a model, of any first size."""

    name: str
    problem: str
    """The problem with the first size left out."""
    first: str
    """Name of the first size."""
    request: Request
    """At one of the sizes."""
    operands: Mapping[str, Layout]
    """Arrays by name, at that size, those that are written last."""
    written: frozenset[str]
    served: tuple[Served, ...]
    """In the order of their ranges, one after the other."""


def layers_of(problems: Sequence[str], device: Device) -> list[Layer]:
    """The layers that problems name, with the kernels for them. Raises ``SpecError`` and ``LaunchError``."""
    groups: dict[tuple[str, str], dict[int, str]] = {}
    for text in problems:
        problem = read_problem(text)
        if problem.for_processor:
            raise SpecError(f"{problem.text}: layers of a model are kernels of GPUs; export this one alone, with --format header or shared")
        kind, _, given = problem.text.partition(":")
        count = len(problem.request.sizes)
        names = family(PROBLEM_KINDS[kind]).size_names
        words = [plain_word(word) for word in given.split(",") if word and not word.isdecimal() and word.partition("=")[0] not in names]
        rest = ",".join([*map(str, problem.request.sizes[1:count]), *words])
        groups.setdefault((kind, rest), {})[problem.request.sizes[0]] = f"{kind}:{problem.request.sizes[0]},{rest}"
    return [_layer(kind, rest, calls, device) for (kind, rest), calls in groups.items()]


def _layer(kind: str, rest: str, label_of_size: Mapping[int, str], device: Device) -> Layer:
    first = family(PROBLEM_KINDS[kind]).size_names[0]
    sizes = sorted(label_of_size)
    options = {size: _option(label_of_size[size], device) for size in sizes}
    name = re.sub(r"[^a-z0-9]+", "_", f"{kind}_{rest}".lower()).strip("_")
    middles = [math.isqrt(one * other) + 1 for one, other in pairwise(sizes)]
    bounds = [1, *middles, LARGEST + 1]
    served: list[Served] = []
    for place, size in enumerate(sizes):
        one = _served(label_of_size[size], size, options[size], bounds[place], bounds[place + 1] - 1, device)
        before = served[-1] if served else None
        if before is not None and (before.plan, before.dimensions) == (one.plan, one.dimensions):
            served[-1] = replace(before, most=one.most)
        else:
            # The sizes around a kernel of one size alone are those of its neighbours.
            served.append(one if before is None or one.least == one.most else replace(one, least=before.most + 1))
    option = options[sizes[0]]
    operands = dict(option.fit.arrays.values())
    written = {option.fit.arrays[array.name][0] for array in option.plan.sequence.arrays if array.writes and array.role != "workspace"}
    request = read_problem(label_of_size[sizes[0]]).request
    ordered = {operand: operands[operand] for operand in sorted(operands, key=lambda one: (one in written, one))}
    return Layer(name, f"{kind}:{first.upper()},{rest}", first, request, ordered, frozenset(written), tuple(served))


def _option(text: str, device: Device) -> Option:
    choice = choose_kernel(read_problem(text), device).choice
    assert choice is not None
    plan = choice.chosen.plan
    if orders := matcher_of(plan.spec.kind).operand_orders(plan):
        order = "in a packed order, which a bundle does not produce; export the kernel by itself"
        raise SpecError(f"{text}: its kernel reads {', '.join(orders)} {order}")
    return choice.chosen


def _served(text: str, size: int, option: Option, least: int, most: int, device: Device) -> Served:
    dimensions = {name: (value, 0) for name, value in option.dimensions.items()}
    other = _at_another_size(text, size, option, device)
    if other is None:
        least = most = size  # a kernel of this very size
    else:
        step, step_values = other
        for name, value in option.dimensions.items():
            factor = (step_values[name] - value) // step if name in step_values and not _is_setting(name, option) else 0
            dimensions[name] = (value - factor * size, factor)
    arrays = {name: operand for name, (operand, _) in option.fit.arrays.items()}
    known = {scalar.name for scalar in option.plan.sequence.scalars}
    scalars = {name: number for name, number in option.fit.scalars.items() if name in known}
    return Served(option.plan, option.candidate.label, least, most, dimensions, arrays, scalars)


def _is_setting(name: str, option: Option) -> bool:
    """True of a dimension that no array fixes and the launch chooses, such as a number of slices."""
    arrays = [array for array in option.plan.sequence.arrays if array.role != "workspace"]
    return not any(name in formula.names for array in arrays for formula in (*array.shape, *array.strides))


def _at_another_size(text: str, size: int, option: Option, device: Device) -> tuple[int, Mapping[str, int]] | None:
    """Another first size, as a difference, and the dimensions of the same kernel there; None if it serves no other."""
    kind, _, rest = text.partition(":")
    parts = rest.split(",")
    for step in _STEPS:
        moved = f"{kind}:{','.join([str(size + step), *parts[1:]])}"
        request = read_problem(moved).request.on(device)
        fitting = fitted(option.candidate, request, device.architecture, device)
        if not isinstance(fitting, str) and fitting[1].spec == option.plan.spec:
            return step, fitting[2]
    return None
