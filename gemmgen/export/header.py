"""An instance as one C header: the binary, and functions over the driver API that check, launch and document it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmgen.core.formulas import Formula
from gemmgen.core.version import __version__
from gemmgen.export.arithmetic import INT32, Expression, Facts, to_c
from gemmgen.export.images import Bundle, Image
from gemmgen.export.tensor_maps import Map, to_c_map
from gemmgen.export.text import FILTERS, c_name, c_type, check_prefix, readable, template
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import (
    GRID_LIMITS,
    MAX_MULTIPROCESSORS,
    MULTIPROCESSORS,
    PORTABLE_CLUSTER,
    ArrayArgument,
    Dimension,
    HostArgument,
    KernelLaunch,
    LaunchSequence,
    ScalarArgument,
    TensorMapArgument,
)
from gemmgen.kernels.naming import NAME_DIGITS


@dataclass(frozen=True)
class Check:
    """A condition under which a problem is refused, and the words for it."""

    condition: str
    message: str
    checked: bool = False
    """True if evaluating the condition may set ``overflow``."""


@dataclass(frozen=True)
class Default:
    """The value of a dimension that the caller leaves to the header."""

    text: str
    checked: bool


@dataclass(frozen=True)
class Step:
    """One dimension when a problem is completed: its default, if it has one, and its range."""

    name: str
    default: Default | None
    check: Check


@dataclass(frozen=True)
class Struct:
    """A struct that the host computes: its C type and its fields."""

    name: str
    meaning: str
    fields: tuple[StructField, ...]


@dataclass(frozen=True)
class StructField:
    """An array of integers, or one integer, in such a struct."""

    name: str
    type: str
    capacity: int
    count: Expression
    value: Expression
    meaning: str
    out_of_range: str
    """A condition in C under which the variable ``value`` does not fit; empty if it always does."""
    needs_count_check: bool


@dataclass(frozen=True)
class Extent:
    """Blocks along one axis of a grid."""

    axis: str
    value: Expression
    limit: int
    meaning: str
    cluster: int = 1
    """Blocks of a cluster along the axis."""

    @property
    def uneven(self) -> str:
        """A condition in C under which the grid does not consist of whole clusters; empty if that cannot be."""
        if self.cluster == 1:
            return ""
        if self.value.constant is not None:
            return "1" if self.value.constant % self.cluster else ""
        return f"{self.local} % {self.cluster} != 0"

    @property
    def local(self) -> str:
        return f"blocks_{self.axis}"

    @property
    def impossible(self) -> str:
        """A condition in C under which no GPU has such a grid; empty if that cannot be."""
        low, high = self.value.limits
        parts = ([f"{self.local} < 0"] if low < 0 else []) + ([f"{self.local} > {self.limit}"] if high > self.limit else [])
        return " || ".join(parts)


@dataclass(frozen=True)
class Launch:
    """One kernel of the sequence."""

    entry: str
    grid: tuple[Extent, ...]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    programmatic: bool
    shared: Expression
    parameters: tuple[str, ...]
    """Addresses, in the order of the kernel's parameters."""
    may_be_empty: tuple[str, ...]
    """The axes along which the grid can have no blocks."""

    def nonempty(self, grid: str) -> list[str]:
        """Conditions in C under which the grid, an array of three numbers, has blocks."""
        return [f"{grid}[{'xyz'.index(axis)}] > 0" for axis in self.may_be_empty]

    def empty(self, grid: str) -> str:
        """The contrary; empty if the grid always has blocks."""
        return " || ".join(f"{grid}[{'xyz'.index(axis)}] == 0" for axis in self.may_be_empty)

    @property
    def has_large_cluster(self) -> bool:
        """True if the driver has to be asked for clusters of that size."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2] > PORTABLE_CLUSTER

    @property
    def attributes(self) -> int:
        """Number of the launch's attributes; with none, the plain launch function does."""
        return (self.cluster != (1, 1, 1)) + self.programmatic


@dataclass(frozen=True)
class Pointer:
    """An array that the caller passes."""

    name: str
    declaration: str
    argument: ArrayArgument
    nonempty: str
    """A C condition under which the array has elements; empty if it always has."""
    nested: tuple[tuple[str, ...], tuple[str, ...]] | None
    """Extents and strides, if the caller could choose them so that written elements overlap one another."""


@dataclass(frozen=True)
class Header:
    """Values of the template."""

    prefix: str
    name: str
    digest: str
    """Digest of the spec, as in the name."""
    version: str
    compiler: str
    standing: str
    """Relation to the library's certificates."""
    summary: Sequence[str]
    spec_lines: Sequence[str]
    dimensions: Sequence[Dimension]
    required: Sequence[str]
    names: Mapping[str, str]
    steps: Sequence[Step]
    constraints: Sequence[Check]
    launches: Sequence[Launch]
    structs: Sequence[Struct]
    maps: Sequence[Map]
    pointers: Sequence[Pointer]
    scalars: Sequence[ScalarArgument]
    dimension_types: Mapping[str, str]
    workspace: ArrayArgument | None
    workspace_bytes: Expression
    workspace_zero_bytes: Expression
    images: Sequence[Image]
    asks_device: bool
    """True if a grid depends on the number of the device's multiprocessors."""

    @property
    def guard(self) -> str:
        return f"{self.prefix.upper()}_H"

    @property
    def zeroes(self) -> bool:
        """True if a part of the workspace has to be zero."""
        return self.workspace is not None and self.workspace_zero_bytes.constant != 0

    @property
    def has_computed_shared(self) -> bool:
        """True if a kernel's dynamic shared memory depends on the problem."""
        return any(launch.shared.constant is None for launch in self.launches)

    @property
    def may_overflow(self) -> bool:
        """True if planning a problem needs the variable ``overflow``."""
        expressions: list[Expression | Check | Default | None] = [step.default for step in self.steps]
        expressions += [*self.constraints, self.workspace_bytes, self.workspace_zero_bytes]
        expressions += [extent.value for launch in self.launches for extent in launch.grid]
        expressions += [launch.shared for launch in self.launches]
        expressions += [part for struct in self.structs for each in struct.fields for part in (each.count, each.value)]
        expressions += [expression for each in self.maps for expression in each.expressions]
        return any(expression is not None and expression.checked for expression in expressions)

    @property
    def nothing_launched(self) -> str:
        """A condition in C under which no kernel is launched; empty if that cannot be."""
        parts = [launch.empty(f"plan->grid[{index}]") for index, launch in enumerate(self.launches)]
        if not all(parts):
            return ""
        return " && ".join(f"({part})" if "||" in part and len(parts) > 1 else part for part in parts)

    @property
    def has_truth_values(self) -> bool:
        """True if arrays hold values of type ``bool``, which C has a header for."""
        return any(pointer.argument.type == "bool" for pointer in self.pointers)

    @property
    def const_pointers(self) -> list[str]:
        """The declarations of pointers that are only looked at."""
        return [f"const {pointer.declaration.removeprefix('const ')}" for pointer in self.pointers]

    @property
    def reads_plan(self) -> bool:
        """True if checking pointers needs the problem."""
        return self.workspace is not None or any(pointer.nonempty or pointer.nested for pointer in self.pointers)

    @property
    def passed_dimensions(self) -> list[str]:
        """The dimensions that are parameters of a kernel."""
        passed = {parameter for launch in self.launches for parameter in launch.parameters}
        return [name for name in self.dimension_types if f"&{self.names[name]}" in passed]


def default_prefix(plan: KernelPlan) -> str:
    """Prefix of the functions of an instance's header: short enough to read, and no two instances have the same."""
    return f"{plan.spec.label or plan.spec.kind}_{plan.spec_digest[:NAME_DIGITS]}"


def render_header(bundle: Bundle, prefix: str | None = None) -> str:
    """The header of an instance. Its functions begin with ``prefix``, by default ``default_prefix``."""
    chosen = default_prefix(bundle.plan) if prefix is None else prefix
    check_prefix(chosen)
    text: str = template("header.h.j2", FILTERS).render(header=model(bundle, chosen))
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def model(bundle: Bundle, prefix: str) -> Header:
    """All parts of the header of an instance, as C."""
    from gemmgen.codegen.rendering import spec_lines
    from gemmgen.codegen.summary import summary

    plan = bundle.plan
    sequence = plan.sequence
    names = {d.name: c_name(d.name) for d in sequence.dimensions}
    facts = Facts({d.name: (d.minimum, d.maximum) for d in sequence.dimensions})
    asks_device = any(launch.blocks_of_device is not None for launch in sequence.launches)
    if asks_device:
        names[MULTIPROCESSORS] = MULTIPROCESSORS
        facts.assume(Formula(f"{MULTIPROCESSORS} >= 1"))
        facts.assume(Formula(f"{MULTIPROCESSORS} <= {MAX_MULTIPROCESSORS}"))
    steps, required = _steps(sequence, names)
    constraints = []
    for constraint in sequence.constraints:
        violation = to_c(constraint.condition, facts, names, negated=True)
        message = f"{constraint.explanation} ({readable(constraint.condition)})"
        constraints.append(Check(violation.text, message, violation.checked))
        facts.assume(constraint.condition)
    launches = [_launch(sequence, launch, facts, names) for launch in sequence.launches]
    alternatives = [facts.copy() for _ in launches]
    for alternative, launch in zip(alternatives, sequence.launches, strict=True):
        for formula in launch.grid_of_device:
            alternative.assume_positive(formula)
    launched = Facts.of_either(alternatives)
    workspaces = [argument for argument in sequence.arrays if argument.role == "workspace"]
    return Header(
        prefix=prefix,
        name=plan.name,
        digest=plan.spec_digest[:NAME_DIGITS],
        version=__version__,
        compiler="NVRTC {}.{}".format(*bundle.nvrtc_version),
        standing=bundle.standing,
        summary=summary(plan),
        spec_lines=spec_lines(plan.spec),
        dimensions=sequence.dimensions,
        required=required,
        names=names,
        steps=steps,
        constraints=constraints,
        launches=launches,
        structs=[_struct(host, launched, names) for host in sequence.host_arguments],
        maps=[to_c_map(sequence, argument, launched, names) for argument in sequence.tensor_maps],
        pointers=[_pointer(sequence, argument, facts) for argument in sequence.arrays if argument.role != "workspace"],
        scalars=sequence.scalars,
        dimension_types={a.name: c_type(a.type) for a in sequence.arguments if isinstance(a, ScalarArgument) and a.name in names},
        workspace=max(workspaces, key=lambda argument: argument.alignment, default=None),
        workspace_bytes=to_c(sequence.workspace_bytes, launched, names),
        workspace_zero_bytes=to_c(sequence.workspace_zero_bytes, launched, names),
        images=bundle.images,
        asks_device=asks_device,
    )


def resolution_order(dimensions: Sequence[Dimension]) -> tuple[list[Dimension], list[str]]:
    """The dimensions in an order in which each default needs earlier ones only, and the names of those that must be given.

    Where defaults need one another, as do two ways to say the same, the first is given.
    """
    ordered = [dimension for dimension in dimensions if dimension.default is None]
    required = [dimension.name for dimension in ordered]
    waiting = [dimension for dimension in dimensions if dimension.default is not None]
    while waiting:
        known = {dimension.name for dimension in ordered}
        ready = [d for d in waiting if d.default is not None and d.default.names <= known]
        if not ready:
            ready = waiting[:1]
            required.append(ready[0].name)
        ordered += ready
        waiting = [dimension for dimension in waiting if dimension not in ready]
    return ordered, [dimension.name for dimension in dimensions if dimension.name in required]


def _steps(sequence: LaunchSequence, names: Mapping[str, str]) -> tuple[list[Step], list[str]]:
    ordered, required = resolution_order(sequence.dimensions)
    ranges: dict[str, tuple[int, int]] = {}
    steps = []
    for dimension in ordered:
        name = names[dimension.name]
        default = None
        if dimension.default is not None and dimension.name not in required:
            value = to_c(dimension.default, Facts(ranges), names)
            default = Default(value.text, value.checked)
        ranges[dimension.name] = dimension.minimum, dimension.maximum
        least, most = dimension.minimum, dimension.maximum
        need = f"{least}, which the kernel is made for" if least == most else f"from {least} to {most}"
        message = f"{dimension.name} ({dimension.meaning}) must be {need}"
        steps.append(Step(name, default, Check(f"{name} < {_number(dimension.minimum)} || {name} > {_number(dimension.maximum)}", message)))
    return steps, required


def _number(value: int) -> str:
    return str(value) if -(2**31) < value < 2**31 else f"INT64_C({value})"


def _launch(sequence: LaunchSequence, launch: KernelLaunch, facts: Facts, names: Mapping[str, str]) -> Launch:
    """The launch in C; afterwards the facts hold that its grid is one that a GPU can have."""
    grid = tuple(
        Extent(axis, to_c(formula, facts, names), limit, str(formula), cluster)
        for axis, formula, limit, cluster in zip("xyz", launch.grid_of_device, GRID_LIMITS, launch.cluster, strict=True)
    )
    for formula, limit in zip(launch.grid_of_device, GRID_LIMITS, strict=True):
        facts.assume_at_most(formula, limit)
    dimensions = {dimension.name for dimension in sequence.dimensions}
    parameters = []
    for name in launch.arguments:
        argument = sequence.argument(name)
        if isinstance(argument, HostArgument):
            parameters.append(f"&plan.{c_name(name)}")
        elif isinstance(argument, TensorMapArgument):
            parameters.append(f"&map_{c_name(name)}")
        elif isinstance(argument, ArrayArgument) and argument.role == "workspace":
            parameters.append("&workspace")
        else:
            parameters.append(f"&{names[name] if name in dimensions else c_name(name)}")
    return Launch(
        entry=launch.entry,
        grid=grid,
        block=launch.block,
        cluster=launch.cluster,
        programmatic=launch.programmatic,
        shared=to_c(launch.dynamic_shared_bytes, facts, names),
        parameters=tuple(parameters),
        may_be_empty=tuple(extent.axis for extent in grid if extent.value.limits[0] < 1),
    )


def _struct(host: HostArgument, facts: Facts, names: Mapping[str, str]) -> Struct:
    fields = []
    for part in host.fields:
        inner = facts.copy()
        count = to_c(part.count, facts, names)
        inner.assume(Formula("i >= 0"))
        inner.assume(Formula(f"i < {part.capacity}"))
        value = to_c(part.value, inner, names)
        if count.constant == 1:
            zero = facts.copy()
            zero.assume(Formula("i == 0"))
            value = to_c(part.value, zero, {**names, "i": "0"})
        low, high = INT32 if part.type == "s32" else (0, 2**32 - 1)
        below = [f"value < {'INT32_MIN' if low else 0}"] if value.limits[0] < low else []
        above = [f"value > {'INT32_MAX' if low else 'UINT32_MAX'}"] if value.limits[1] > high else []
        fields.append(
            StructField(
                name=c_name(part.name),
                type=c_type(part.type),
                capacity=part.capacity,
                count=count,
                value=value,
                meaning=part.meaning,
                out_of_range=" || ".join(below + above),
                needs_count_check=count.limits[1] > part.capacity,
            )
        )
    return Struct(c_name(host.name), host.meaning, tuple(fields))


def _pointer(sequence: LaunchSequence, argument: ArrayArgument, facts: Facts) -> Pointer:
    dimensions = {dimension.name for dimension in sequence.dimensions}
    names = {name: f"plan->problem.{c_name(name)}" for name in dimensions}
    extents = [to_c(extent, facts, names) for extent in argument.shape]
    strides = [to_c(stride, facts, names) for stride in argument.strides]
    of_shape = frozenset().union(*(extent.names for extent in argument.shape))
    chosen = [stride.text for stride in argument.strides if stride.text in dimensions - of_shape]
    # One stride that is at least the extent of the other axis, along which elements lie side by side, leaves no overlap.
    promised = {f"{stride} >= {extent}" for stride in chosen for extent in argument.shape}
    safe = len(extents) == 2 and len(chosen) == 1 and any(str(constraint.condition) in promised for constraint in sequence.constraints)
    may_overlap = argument.writes and bool(chosen) and len(extents) > 1 and not safe
    const = "" if argument.writes else "const "
    return Pointer(
        name=c_name(argument.name),
        declaration=f"{const}{c_type(argument.type)} *{c_name(argument.name)}",
        argument=argument,
        nonempty=" && ".join(f"{extent.text} > 0" for extent in extents if extent.limits[0] < 1),
        nested=(tuple(e.text for e in extents), tuple(s.text for s in strides)) if may_overlap else None,
    )
