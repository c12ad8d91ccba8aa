"""An elementwise kernel's numbers: tiles, vectors, arguments and launch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import Formula
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.elementwise.access import AXES, MAX_EXTENT, ElementSpace, Read, StridedArray, Write
from gemmgen.kernels.elementwise.spec import ElementwiseSpec
from gemmgen.kernels.epilogue.operations import DATA_TYPES, Cast
from gemmgen.kernels.epilogue.steps import Step, plan_steps
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import (
    Argument,
    ArrayArgument,
    Constraint,
    Dimension,
    HostArgument,
    KernelLaunch,
    LaunchSequence,
    ScalarArgument,
)
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.tiles.division import divisors_argument

VECTOR_BYTES = 16
"""The widest access."""


class Axis(NamedTuple):
    """An axis of y."""

    number: int
    extent: str
    """Name of its extent."""


@dataclass(frozen=True)
class ElementwisePlan(KernelPlan[ElementwiseSpec]):
    """All numbers of an elementwise kernel."""

    stored: DataType
    """Type of x."""
    output: DataType
    """Type of y."""
    vector: int
    steps: tuple[Step, ...]
    x: StridedArray
    y: StridedArray
    reads: tuple[Read, ...]
    """The arrays that are read, x first."""
    numbers: tuple[ScalarArgument, ...]
    """Numbers that the operations read."""
    extra: tuple[Write, ...] = ()
    """Arrays beside y that formulas write."""

    @property
    def approximate(self) -> bool:
        """True if operations call functions whose last bits differ between backends."""
        return any(step.approximate for step in self.steps)

    @property
    def threads(self) -> int:
        return int(self.spec.threads)

    @property
    def unroll(self) -> int:
        return int(self.spec.unroll)

    @property
    def rank(self) -> int:
        return int(self.spec.rank)

    @property
    def tile(self) -> int:
        """Vectors of a block at a time."""
        return self.threads * self.unroll

    @property
    def contiguous(self) -> bool:
        return bool(self.spec.inner == "contiguous")

    @property
    def written_bytes(self) -> int:
        """Bytes that are written for an element."""
        return sum(ELEMENTS[kind].bytes for kind in (self.output, *(one.argument.type for one in self.extra if not one.reduces)))

    @property
    def computed(self) -> DataType:
        """The type of the value that the first operation works on."""
        return ELEMENTS[self.stored].computed_in

    @property
    def last(self) -> DataType:
        """The type of the value after all operations."""
        return self.steps[-1].result if self.steps else self.computed

    @property
    def outer_extents(self) -> tuple[str, ...]:
        """The extents of the axes before the last."""
        return AXES[: self.rank - 1]

    @property
    def outer_axes(self) -> tuple[Axis, ...]:
        """The axes before the last whose index is the remainder of a division, the fastest first."""
        return tuple(Axis(number, AXES[number]) for number in range(self.rank - 2, 0, -1))

    @property
    def row_axis(self) -> int:
        """The axis of rows: the last but one."""
        return self.rank - 2

    @property
    def inner(self) -> str:
        """The extent of the last axis."""
        return AXES[self.rank - 1]

    @property
    def places(self) -> tuple[str, ...]:
        """Coordinates that the operations name."""
        words = {word for step in self.steps for word in re.findall(r"\bat_row\b|\bat_column\b", step.code)}
        return tuple(sorted(words))

    @property
    def operation_count(self) -> int:
        """Operations on an element, at least 1."""
        return max(1, len(self.steps))


def units_formula(spec: ElementwiseSpec, vector: int) -> str:
    """Vectors of y, as a formula."""
    axes = AXES[: spec.rank]
    inner = axes[-1] if vector == 1 else f"ceil_div({axes[-1]}, {vector})"
    return " * ".join((*axes[:-1], inner))


def plan_operations(spec: ElementwiseSpec, reasons: list[Reason]) -> tuple[tuple[Step, ...], DataType]:
    """The operations and the type of y; adds conflicts to ``reasons``."""
    stored = DATA_TYPES[spec.input]
    held = ELEMENTS[stored].computed_in
    steps, last = plan_steps(spec.operations, held, "operations", reasons, ElementSpace(spec))
    if spec.output is not None:
        return steps, DATA_TYPES[spec.output]
    casts = [step.operation.type for step in steps if isinstance(step.operation, Cast)]
    if casts:
        return steps, DATA_TYPES[casts[-1]]
    return steps, stored if last == held else last


def widest_vector(spec: ElementwiseSpec, output: DataType) -> int:
    """Elements of 16 bytes of the wider type, no more than the alignment; 1 where neighbours do not lie side by side."""
    if spec.inner == "strided":
        return 1
    extra = [one.type for operation in spec.operations for one in operation.extra_outputs.values()]
    size = max(ELEMENTS[kind].bytes for kind in (DATA_TYPES[spec.input], output, *extra))
    return min(spec.alignment, VECTOR_BYTES // size)


def plan_elementwise(spec: ElementwiseSpec, architecture: Architecture) -> ElementwisePlan:
    """The plan of ``spec`` for ``architecture``. Raises ``PlanError`` with every reason against it."""
    reasons = architecture_reasons(spec, architecture)
    steps, output = plan_operations(spec, reasons)
    widest = widest_vector(spec, output)
    vector = spec.vector or widest
    if vector > widest:
        got = f"{vector} elements of {spec.input}{' with any stride' if spec.inner == 'strided' else ''}"
        hint = f"promise alignment: {vector}" if spec.alignment < vector else ""
        reasons.append(Reason("vector", "vector", got, f"at most {widest}: one access of 16 bytes, within the alignment", hint))
    reasons += launch_reasons(spec.early_launch, spec)
    if reasons:
        raise PlanError(f"no kernel for this spec on {architecture.name}:", reasons)
    space = ElementSpace(spec)
    x, y = space.array("x", DATA_TYPES[spec.input]), space.array("y", output)
    accesses = [access for step in steps for access in step.accesses if isinstance(access.argument, ArrayArgument)]
    reads = (Read(x.argument("input", "the operand of the first operation"), x.offset, True), *map(space.read, accesses))
    numbers = tuple(argument for step in steps for argument in step.arguments if isinstance(argument, ScalarArgument))
    arrays = [space.array(access.name, access.stored) for access in accesses if access.operand.per == "result"]
    extra = tuple(space.write(store) for step in steps for store in step.stores)
    strided = [space.array(one.name, one.store.type) for one in extra if not one.reduces]
    name = instance_name(_prefix(spec), _name_parts(spec, vector), spec)
    return ElementwisePlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=_sequence(name, spec, vector, [x, y, *arrays, *strided], reads, numbers, extra),
        template="elementwise/map.cu.j2",
        shared_memory=(),
        dynamic_shared_bytes=0,
        spec=spec,
        stored=x.stored,
        output=output,
        vector=vector,
        steps=steps,
        x=x,
        y=y,
        reads=reads,
        numbers=numbers,
        extra=extra,
    )


def packed_problem(plan: ElementwisePlan, extents: Mapping[str, int]) -> dict[str, int]:
    """All dimensions of a problem without gaps."""
    return plan.sequence.completed({name: extents[name] for name in AXES[: plan.rank]})


def _prefix(spec: ElementwiseSpec) -> str:
    operations = "_".join(operation.op for operation in spec.operations[:3]) or "copy"
    return f"{operations}_{DATA_TYPES[spec.input]}"


def _name_parts(spec: ElementwiseSpec, vector: int) -> list[str]:
    parts = [f"{spec.rank}d"] + (["strided"] if spec.inner == "strided" else [])
    return [*parts, f"{spec.threads}x{vector}x{spec.unroll}", *([f"grid{spec.blocks}"] if spec.blocks else [])]


def _sequence(
    name: str,
    spec: ElementwiseSpec,
    vector: int,
    arrays: list[StridedArray],
    reads: tuple[Read, ...],
    numbers: tuple[ScalarArgument, ...],
    extra: tuple[Write, ...],
) -> LaunchSequence:
    extents = tuple(Dimension(axis, f"extent of axis {place}", maximum=MAX_EXTENT) for place, axis in enumerate(AXES[: spec.rank]))
    strides = tuple(dimension for array in arrays for dimension in array.dimensions)
    dimensions = (*extents, *strides)
    units = units_formula(spec, vector)
    constraints = [constraint for array in arrays for constraint in array.constraints]
    if spec.rank > 1:
        constraints.append(
            Constraint(Formula(f"{units} <= {MAX_EXTENT}"), f"{units} must be at most {MAX_EXTENT}; an int counts the vectors of y")
        )
    y = arrays[1]
    scalars = [ScalarArgument(dimension.name, "s32", dimension.meaning) for dimension in dimensions]
    arguments: list[Argument] = [*scalars, *(read.argument for read in reads), y.argument("output", "the result")]
    arguments += [*(one.argument for one in extra), *numbers]
    divisors = _divisors(spec, vector)
    if divisors is not None:
        arguments.append(divisors)
    tile = spec.threads * spec.unroll
    blocks = f"ceil_div({units}, {tile})"
    grid = blocks if spec.blocks is None else f"min({blocks}, {spec.blocks})"
    launch = KernelLaunch(
        entry=name,
        grid=(Formula(grid), Formula("1"), Formula("1")),
        block=(spec.threads, 1, 1),
        arguments=tuple(argument.name for argument in arguments),
        programmatic=spec.early_launch,
    )
    return LaunchSequence(name, dimensions, tuple(arguments), (launch,), tuple(constraints))


def _divisors(spec: ElementwiseSpec, vector: int) -> HostArgument | None:
    """The numbers that an index is divided by to find the place of its vector."""
    if spec.rank == 1:
        return None
    inner = f"max(ceil_div({AXES[spec.rank - 1]}, {vector}), 1)"
    return divisors_argument({"vectors": inner} | {AXES[axis]: f"max({AXES[axis]}, 1)" for axis in range(spec.rank - 2, 0, -1)})
