"""Sizes that a kernel is compiled for: dimensions of its launch sequence that become constants of its source.

A family plans as always; then every kernel loses the parameters of these names, formulas are evaluated as far as the values go, and the
source defines a constant of each name. Nothing else needs to know: binding a problem, the emulator, the launcher and exports see
dimensions that have one value each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import Formula
from gemmgen.core.text import did_you_mean
from gemmgen.kernels.launch import (
    ArrayArgument,
    Constraint,
    Dimension,
    HostArgument,
    KernelLaunch,
    LaunchSequence,
    ScalarArgument,
    TensorMapArgument,
)

_ARGUMENTS = (ArrayArgument, HostArgument, ScalarArgument, TensorMapArgument)


def baked(plan: Any, sizes: Mapping[str, int]) -> Any:
    """``plan`` with ``sizes`` as constants. Raises ``PlanError`` with all reasons if the kernel has no such dimensions, or if a
    constraint fails for every problem of these sizes."""
    reasons = _reasons(plan.sequence, sizes)
    if reasons:
        raise PlanError(f"{plan.name} cannot be made for these sizes:", reasons)
    changes: dict[str, Any] = {}
    for field in fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, LaunchSequence):
            changes[field.name] = with_constants(value, sizes)
        elif isinstance(value, tuple) and value and all(isinstance(one, _ARGUMENTS) for one in value):
            changes[field.name] = tuple(one for one in value if one.name not in sizes)
    return replace(plan, **changes)


def _reasons(sequence: LaunchSequence, sizes: Mapping[str, int]) -> list[Reason]:
    known = {dimension.name: dimension for dimension in sequence.dimensions}
    reasons = []
    for name, value in sizes.items():
        if name not in known:
            near = did_you_mean(name, known).strip(" ()")
            reasons.append(Reason("unknown_size", f"sizes.{name}", str(value), f"a dimension: one of {', '.join(known)}", near))
        elif not max(known[name].minimum, 1) <= value <= known[name].maximum:
            least = max(known[name].minimum, 1)
            reasons.append(Reason("size", f"sizes.{name}", str(value), f"a number from {least} to {known[name].maximum}"))
    for constraint in () if reasons else sequence.constraints:
        condition = constraint.condition.given(sizes)
        if not condition.names and not condition.evaluate({}):
            reasons.append(Reason("sizes", "sizes", "", "", fault=constraint.explanation))
    return reasons


def with_constants(sequence: LaunchSequence, sizes: Mapping[str, int]) -> LaunchSequence:
    """The sequence of kernels that have constants in the place of the parameters ``sizes``. Shapes and strides of arrays stay formulas,
    so that arrays are still described, and checked, by name."""

    def dimension(own: Dimension) -> Dimension:
        if own.name in sizes:
            value = sizes[own.name]
            return replace(own, minimum=value, maximum=value, default=Formula(str(value)))
        return replace(own, default=None if own.default is None else own.default.given(sizes))

    def launch(own: KernelLaunch) -> KernelLaunch:
        x, y, z = (formula.given(sizes) for formula in own.grid)
        return replace(
            own,
            grid=(x, y, z),
            arguments=tuple(name for name in own.arguments if name not in sizes),
            dynamic_shared_bytes=own.dynamic_shared_bytes.given(sizes),
        )

    def argument(own: object) -> Any:
        if not isinstance(own, TensorMapArgument):
            return own
        return replace(
            own,
            extents=tuple(formula.given(sizes) for formula in own.extents),
            strides=tuple(formula.given(sizes) for formula in own.strides),
            offset_bytes=own.offset_bytes.given(sizes),
        )

    constraints = [Constraint(own.condition.given(sizes), own.explanation) for own in sequence.constraints]
    return replace(
        sequence,
        dimensions=tuple(map(dimension, sequence.dimensions)),
        arguments=tuple(argument(own) for own in sequence.arguments if not (isinstance(own, ScalarArgument) and own.name in sizes)),
        launches=tuple(map(launch, sequence.launches)),
        constraints=tuple(own for own in constraints if own.condition.names),
        workspace_bytes=sequence.workspace_bytes.given(sizes),
        workspace_zero_bytes=sequence.workspace_zero_bytes.given(sizes),
    )


def constants(plan: Any) -> list[tuple[str, str, int, str]]:
    """Type, name, value and meaning of the constants that a plan's source defines for the sizes that it is made for."""
    values, whole = dict(plan.spec.sizes), ELEMENTS["s32"].c_type
    return [(whole, own.name, values[own.name], own.meaning) for own in plan.sequence.dimensions if own.name in values]
