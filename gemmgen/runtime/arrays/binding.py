"""Binds the caller's arrays and numbers to a launch sequence: finds the problem's dimensions and checks everything.

The formulas of the arguments are unified with the arrays' shapes and strides: a shape or stride that is a single name binds that
dimension, others are checked once every name is bound. All problems found are reported in one message.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from gemmgen.core.elements import ELEMENTS, INTEGERS
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import Formula, FormulaError
from gemmgen.kernels.launch import ArrayArgument, LaunchSequence, ScalarArgument
from gemmgen.runtime.arrays.views import ArrayView, Device, describe, is_same, overlaps, overlaps_itself


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A problem and the values of its arguments, which a launch needs besides the kernel."""

    dimensions: dict[str, int]
    scalars: dict[str, float]
    pointers: dict[str, int]
    device: Device
    """Address of every array."""


def bind(sequence: LaunchSequence, arrays: Mapping[str, object], scalars: Mapping[str, object]) -> BoundCall:
    """The problem that ``arrays`` and ``scalars`` describe.

    ``arrays`` holds arrays of any library, or views, for every array argument that is no workspace. ``scalars`` holds
    numbers such as alpha, and may hold dimensions, which must then agree with the arrays.
    Raises ``LaunchError`` with all mistakes: names, types, ranks, shapes, strides, limits, constraints,
    read-only outputs, alignment, devices, and outputs that overlap another array.
    """
    problems: list[str] = []
    views = _views_of(sequence, arrays, problems)
    values, given = bind_scalars(sequence, scalars, problems)
    dimensions = bind_dimensions(sequence, views, given, problems)
    problems += memory_problems(sequence.arrays, views)
    raise_problems(sequence, problems)
    devices = {view.device for view in views.values()}
    return BoundCall(
        dimensions=dimensions,
        scalars=values,
        pointers={name: view.pointer for name, view in views.items()},
        device=devices.pop() if devices else "cpu",
    )


def raise_problems(sequence: LaunchSequence, problems: list[str]) -> None:
    """Raises ``LaunchError`` with all of ``problems``, if there are any."""
    if len(problems) == 1:
        raise LaunchError(f"{sequence.name} cannot be launched: {problems[0]}")
    if problems:
        raise LaunchError("\n  - ".join([f"{sequence.name} cannot be launched:", *problems]))


def _views_of(sequence: LaunchSequence, arrays: Mapping[str, object], problems: list[str]) -> dict[str, ArrayView]:
    wanted = [argument.name for argument in sequence.arrays if argument.role != "workspace"]
    problems += unknown_names(sequence, (name for name in arrays if name not in wanted))
    views: dict[str, ArrayView] = {}
    for name in wanted:
        if arrays.get(name) is None:
            problems.append(f"the array {name} ({sequence.argument(name).meaning}) is missing")
            continue
        try:
            views[name] = describe(arrays[name], name)
        except LaunchError as error:
            problems.append(str(error))
    return views


def unknown_names(sequence: LaunchSequence, names: Iterable[str]) -> list[str]:
    """A problem for each name that the sequence has no argument for."""
    known = [argument.name for argument in sequence.arguments if isinstance(argument, ArrayArgument | ScalarArgument)]
    known += [dimension.name for dimension in sequence.dimensions if dimension.name not in known]
    return [f"there is no argument {name!r} of that kind; the arguments are {', '.join(known)}" for name in names]


def bind_scalars(sequence: LaunchSequence, scalars: Mapping[str, Any], problems: list[str]) -> tuple[dict[str, float], dict[str, int]]:
    """The values of all scalar arguments, defaults filled in, and the dimensions that were given by number."""
    values: dict[str, float] = {}
    given: dict[str, int] = {}
    known = {argument.name: argument for argument in sequence.scalars}
    dimensions = {dimension.name for dimension in sequence.dimensions}
    for name, value in scalars.items():
        if name in known:
            problem = _scalar_problem(known[name], value)
            if problem:
                problems.append(problem)
            else:
                values[name] = int(value) if known[name].type in INTEGERS else float(value)
        elif name in dimensions:
            try:
                if isinstance(value, bool):
                    raise TypeError
                given[name] = operator.index(value)
            except TypeError:
                problems.append(f"{name} must be an integer, got {_short(value)}")
        else:
            problems += unknown_names(sequence, [name])
    for name, argument in known.items():
        if name not in scalars:
            if argument.default is None:
                problems.append(f"the scalar {name} ({argument.meaning}) is missing")
            else:
                values[name] = argument.default
    return values, given


def _scalar_problem(argument: ScalarArgument, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, Real):
        return f"{argument.name} must be a real number, got {_short(value)}"
    low, high = ELEMENTS[argument.type].limits
    if argument.type in INTEGERS:
        if not isinstance(value, Integral) or not low <= int(value) <= high:
            return f"{argument.name} must be an integer from {low} to {high}, got {_short(value)}"
    elif _too_large(value, high):
        return f"{argument.name} is {_short(value)}, more than {argument.type} can hold"
    return ""


def _too_large(value: Real, largest: float) -> bool:
    try:
        return math.isfinite(value) and abs(float(value)) > largest
    except OverflowError:  # an integer beyond any float
        return True


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:50]}..."


def _axis(argument: ArrayArgument, axis: int) -> str:
    rank = len(argument.shape)
    name = f"{argument.name}'s"
    if rank == 1:
        return f"{name} length"
    return f"{name} {('rows', 'columns')[axis]}" if rank == 2 else f"{name} extent {axis}"


def _stride(argument: ArrayArgument, axis: int) -> str:
    rank = len(argument.strides)
    name = f"{argument.name}'s"
    if rank == 1:
        return f"{name} stride"
    return f"{name} {('row', 'column')[axis]} stride" if rank == 2 else f"{name} stride {axis}"


def bind_dimensions(
    sequence: LaunchSequence, views: Mapping[str, ArrayView], given: Mapping[str, int], problems: list[str]
) -> dict[str, int]:
    """The value of every dimension; appends mismatches of types, shapes and strides to ``problems``.

    Depends on nothing but ``given`` and the views' layouts, so that its result can be kept for equal ones.
    """
    facts: list[tuple[Formula, int, str]] = []
    fitting: dict[str, tuple[ArrayArgument, ArrayView]] = {}
    for argument in sequence.arrays:
        view = views.get(argument.name)
        if view is not None:
            mismatch = _type_problems(argument, view)
            problems += mismatch
            if len(view.shape) == len(argument.shape):
                facts += _facts(argument, view, strides=not mismatch)
                if not mismatch:
                    fitting[argument.name] = argument, view
    devices = {view.device for view in views.values()}
    if len(devices) > 1:
        placed = ", ".join(f"{name} on {_device_text(view.device)}" for name, view in views.items())
        problems.append(f"the arrays are on different devices: {placed}")

    values = _bind_names(facts, given, problems)
    values = _fill_defaults(sequence, values, problems)
    for dimension in sequence.dimensions:
        value = values.get(dimension.name)
        if value is not None and not dimension.minimum <= value <= dimension.maximum:
            one = dimension.minimum == dimension.maximum
            need = f"{dimension.minimum}, which the kernel is made for" if one else f"{dimension.minimum} to {dimension.maximum}"
            problems.append(f"{dimension.name} must be {need} (got {value})")
    for formula, value, where in facts:
        needed = None if formula.is_name else _evaluate(formula, values, problems)
        if needed is not None and value != needed:
            problems.append(f"{where} is {value}, need {_reading(formula, needed)}")
    for constraint in sequence.constraints:
        if _evaluate(constraint.condition, values, problems) == 0:
            names = ", ".join(f"{name} = {values[name]}" for name in sorted(constraint.condition.names))
            need, _, reason = constraint.explanation.partition("; ")
            problems.append(f"{need} (got {names})" + (f"; {reason}" if reason else ""))
    for argument, view in fitting.values():
        if argument.writes and overlaps_itself(view):
            problems.append(f"{argument.name} is written, but its elements overlap each other (strides {view.strides})")
    return values


def _type_problems(argument: ArrayArgument, view: ArrayView) -> list[str]:
    problems = []
    # Where a library has no bfloat16, its bits are held as uint16.
    if view.type != argument.type and (view.type, argument.type) != ("u16", "bf16"):
        problems.append(f"{argument.name} has elements {view.type}, need {argument.type}")
    if len(view.shape) != len(argument.shape):
        need = f"{len(argument.shape)} ({', '.join(str(extent) for extent in argument.shape)})"
        problems.append(f"{argument.name} has {len(view.shape)} dimensions, need {need}")
    if argument.writes and view.read_only:
        problems.append(f"{argument.name} is written, but the array is read-only")
    return problems


def _facts(argument: ArrayArgument, view: ArrayView, strides: bool) -> list[tuple[Formula, int, str]]:
    """Facts that the array shows: (formula, its value here, where it was seen).

    No element's address depends on the stride of an extent of 0 or 1, nor on any stride of an empty array.
    """
    facts = [
        (formula, extent, _axis(argument, axis)) for axis, (formula, extent) in enumerate(zip(argument.shape, view.shape, strict=True))
    ]
    if strides and not view.is_empty:
        facts += [
            (formula, stride, _stride(argument, axis))
            for axis, (formula, stride) in enumerate(zip(argument.strides, view.strides, strict=True))
            if view.shape[axis] > 1
        ]
    return facts


def _bind_names(facts: list[tuple[Formula, int, str]], given: Mapping[str, int], problems: list[str]) -> dict[str, int]:
    seen = {name: (value, "the argument") for name, value in given.items()}
    for formula, value, where in facts:
        if formula.is_name:
            first, first_where = seen.setdefault(formula.text.strip(), (value, where))
            if first != value:
                problems.append(f"{formula} is {first} by {first_where} and {value} by {where}")
    return {name: value for name, (value, _) in seen.items()}


def _fill_defaults(sequence: LaunchSequence, values: dict[str, int], problems: list[str]) -> dict[str, int]:
    """Evaluates defaults, which may refer to one another, until no more can be."""
    values = dict(values)
    missing = [dimension for dimension in sequence.dimensions if dimension.name not in values]
    progress = True
    while missing and progress:
        progress = False
        for dimension in list(missing):
            if dimension.default is not None and dimension.default.names <= values.keys():
                missing.remove(dimension)
                value = _evaluate(dimension.default, values, problems)
                if value is not None:
                    values[dimension.name] = value
                    progress = True
    # With other problems at hand, such as a missing array, that a dimension is unknown is only their consequence.
    if not problems:
        problems += [f"{d.name} ({d.meaning}) follows from no array; pass {d.name}=..." for d in missing]
    return values


def _evaluate(formula: Formula, values: Mapping[str, int], problems: list[str]) -> int | None:
    """The formula's value; None if it needs a dimension that is not known, or cannot be evaluated."""
    if not formula.names <= values.keys():
        return None
    try:
        return formula.evaluate(values)
    except FormulaError as error:
        problems.append(str(error))
        return None


def _reading(formula: Formula, value: int) -> str:
    return str(value) if formula.text == str(value) else f"{formula} = {value}"


def _device_text(device: Device) -> str:
    return device if isinstance(device, str) else f"{device[0]}:{device[1]}"


def memory_problems(
    arguments: Iterable[ArrayArgument],
    views: Mapping[str, ArrayView],
    spans: Mapping[str, tuple[int, int]] | None = None,
) -> list[str]:
    """Mistakes in where the arrays lie: alignment, and outputs that overlap another array.

    ``spans`` are the views' ``span()``, if they are known from an equal layout.
    """
    problems: list[str] = []
    placed: list[tuple[int, int, ArrayArgument]] = []
    for argument in arguments:
        view = views.get(argument.name)
        if view is None:
            continue
        first, end = view.span() if spans is None else spans[argument.name]
        if first == end:
            continue
        past = view.pointer % argument.alignment
        if past:
            problems.append(f"{argument.name} must start at a multiple of {argument.alignment} bytes, it starts {past} bytes past one")
        placed.append((view.pointer + first, view.pointer + end, argument))
    for index, (start, end, argument) in enumerate(placed):
        for other_start, other_end, other in placed[index + 1 :]:
            if start < other_end and other_start < end and (argument.writes or other.writes):
                written, second = (argument, other) if argument.writes else (other, argument)
                if second.shares == written.name and is_same(views[argument.name], views[other.name]):
                    continue
                if overlaps(views[argument.name], views[other.name]):
                    problems.append(f"{written.name} is written, but overlaps {second.name} in memory")
    return problems
