"""Operations in their order, with the types of the values between them and with what they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gemmgen.core.elements import ELEMENTS, FLOATS, DataType
from gemmgen.core.errors import Reason
from gemmgen.core.literals import literal
from gemmgen.kernels.epilogue.numbers import Tracked, to_type, tracked
from gemmgen.kernels.epilogue.operations import DATA_TYPES, Cast, Complaint, Operand, Operation
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, ScalarArgument
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    import numpy.typing as npt

Place = Literal["prologue", "epilogue", "operations", "activation"]
"""The field of a spec that the operations stand in."""


@dataclass(frozen=True)
class Access:
    """An operand as one kernel reads it."""

    operand: Operand
    argument: ScalarArgument | ArrayArgument | Matrix
    text: str
    """The CUDA expression for the value of it that belongs to an element."""
    stored: DataType
    """The type that it is stored as."""

    @property
    def name(self) -> str:
        return self.argument.name


class OutputSpace(Protocol):
    """The elements that a family's operations work on, and where what they read lies."""

    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        """Access of a value of type ``kind`` to the operand under this name; or why there is no such operand."""


@dataclass(frozen=True)
class Step:
    """One operation as a kernel does it: ``target`` is the variable that holds the value afterwards."""

    operation: Operation
    kind: DataType
    """Type of the value before it."""
    result: DataType
    source: str
    target: str
    accesses: tuple[Access, ...] = ()
    literals: Mapping[str, str] = field(default_factory=dict)
    """The operation's constants, as CUDA writes them in ``kind``."""
    conversions: tuple[str, ...] = ()
    """Expressions of a cast: the value in the type that it rounds to, and that as the result."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The expressions of what the operation reads."""
        return tuple(access.text for access in self.accesses)

    @property
    def arguments(self) -> tuple[ScalarArgument | ArrayArgument, ...]:
        """Numbers and arrays that it reads, but for matrices with a leading dimension."""
        return tuple(access.argument for access in self.accesses if not isinstance(access.argument, Matrix))

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return tuple(access.argument for access in self.accesses if isinstance(access.argument, Matrix))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return tuple(dimension for matrix in self.matrices for dimension in matrix.dimensions)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(constraint for matrix in self.matrices for constraint in matrix.constraints)

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """All that the operation adds to the kernel's parameters."""
        parameters: list[Argument] = list(self.arguments)
        for matrix in self.matrices:
            parameters += [matrix.argument("input"), *matrix.scalars]
        return tuple(parameters)

    @property
    def c_type(self) -> str:
        return ELEMENTS[self.kind].c_type

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS

    @property
    def zero(self) -> str:
        return ELEMENTS[self.kind].literal(0)

    @property
    def suffix(self) -> str:
        """The end of the names of math functions for the value's type."""
        return "f" if self.kind == "f32" else ""

    @property
    def unsigned_c(self) -> str:
        """The unsigned type in which integers wrap around."""
        return ELEMENTS[self.kind].unsigned_c_type

    @property
    def declaration(self) -> str:
        """The type to declare the target with, where it is a new variable."""
        return f"{ELEMENTS[self.result].c_type} " if self.target != self.source else ""


def plan_steps(
    operations: Sequence[Operation],
    kind: DataType,
    place: Place,
    reasons: list[Reason],
    space: OutputSpace | None,
    used: Mapping[str, int] | None = None,
) -> tuple[tuple[Step, ...], DataType]:
    """The operations with the types of their values, and the type after them.

    ``space``: None where operations work on elements that no operand belongs to. ``used``: how many operations of a kind the
    kernel has before these, whose names they must not share.
    """
    steps: list[Step] = []
    seen = dict(used or {})
    name, names = "value", 1
    truncated_to, inexact = 0, False
    for index, operation in enumerate(operations):
        problem = operation.problem(kind) or _truncation_problem(operation, kind, truncated_to, inexact and place == "prologue")
        if problem is not None:
            reasons.append(Reason("elementwise", f"{place}.{index}", f"{operation.op} of {problem[0]}", problem[1]))
        if isinstance(operation, Cast) and operation.becomes_integer and (truncated_to or kind in FLOATS):
            truncated_to = ELEMENTS[DATA_TYPES[operation.type]].bytes
        inexact |= operation.op == "exp" or operation.approximate
        result = operation.result_type(kind)
        target = name
        if result != kind:
            names += 1
            target = f"value{names}"
        count = seen.get(operation.op, 0)
        seen[operation.op] = count + 1
        accesses = _accesses(operation, count, kind, space, f"{place}.{index}", reasons)
        whole = kind in FLOATS or all(float(constant).is_integer() for constant in operation.constants.values())
        literals = {key: literal(kind, constant) for key, constant in operation.constants.items()} if whole else {}
        steps.append(Step(operation, kind, result, name, target, accesses, literals, _conversions(operation, name, kind, result)))
        name, kind = target, result
    return tuple(steps), kind


def _accesses(
    operation: Operation, count: int, kind: DataType, space: OutputSpace | None, where: str, reasons: list[Reason]
) -> tuple[Access, ...]:
    operands = operation.operands()
    if operands and space is None:
        got, need = f"{operation.op} of an element", "a place in the epilogue: what it reads belongs to results"
        reasons.append(Reason("elementwise", where, got, need))
        return ()
    names = {operand.name: numbered(operand.name, count) for operand in operands}
    found: list[Access] = []
    for operand in operands:
        assert space is not None
        access = space.access(operand, names[operand.name], kind)
        if isinstance(access, tuple):
            reasons.append(Reason("elementwise", where, f"{operation.op} {access[0]}", access[1]))
        else:
            found.append(access)
    return tuple(found)


def number_argument(operand: Operand, name: str, kind: DataType, text: str | None = None) -> Access:
    """An operand that is a single number, of the value's own type."""
    index = name.removeprefix(operand.name)
    meaning = operand.meaning.format(Z=f"Z{index}")
    default = operand.default if kind in FLOATS or operand.default is None else int(operand.default)
    return Access(operand, ScalarArgument(name, kind, meaning, default=default), text or name, kind)


def numbered(name: str, index: int) -> str:
    """``name`` for the first of its kind, then ``name2``, ``name3`` ..."""
    return name if index == 0 else f"{name}{index + 1}"


def convert(expression: str, kind: DataType, to: DataType) -> str:
    """The CUDA expression of a value of one type as another. Halves are their bits; conversions to halves go by way of float32."""
    halves = ("f16", "bf16")
    source, target = ELEMENTS[kind], ELEMENTS[to]
    if kind == to:
        return expression
    if kind in halves:
        number = f"{kind}_to_float({expression})"
        return number if to == "f32" else f"static_cast<{target.c_type}>({number})"
    if to in halves:
        return f"float_to_{to}({expression if kind == 'f32' else f'static_cast<float>({expression})'})"
    if source.is_float and to in ("s8", "s32", "s64"):
        function = f"__{'float' if kind == 'f32' else 'double'}2{'ll' if to == 's64' else 'int'}_rz"
        if to == "s8":
            return f"static_cast<signed char>({expression} == {expression} ? max(-128, min(127, {function}({expression}))) : 0)"
        return f"({expression} == {expression} ? {function}({expression}) : 0)"
    return f"static_cast<{target.c_type}>({expression})"


def _conversions(operation: Operation, source: str, kind: DataType, result: DataType) -> tuple[str, ...]:
    if not isinstance(operation, Cast):
        return ()
    to = DATA_TYPES[operation.type]
    narrow = convert(source, kind, to)
    return narrow, convert(narrow, to, result)


def apply_steps(steps: Sequence[Step], value: Tracked, read: Callable[[Access], npt.NDArray[Any]]) -> Tracked:
    """Value and error bound after all steps; ``read`` gives what an access reads, shaped to broadcast against the value."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for step in steps:
            value = step.operation.reference(value, tuple(_as_computed(access, read(access), step.kind) for access in step.accesses))
    return value


def _as_computed(access: Access, values: npt.NDArray[Any], kind: DataType) -> npt.NDArray[Any]:
    """Value of an access, in the type that the operation computes in: a double beside a value that a cast has made a half
    is rounded to float32 first, as kernels do it."""
    import numpy as np

    values = np.asarray(values)
    held = ELEMENTS[access.stored].computed_in
    return values if held == kind else to_type(tracked(values, held), kind).value


def _truncation_problem(operation: Operation, kind: DataType, truncated_to: int, inexact: bool) -> Complaint | None:
    """The complaint about what follows once floating point became an integer of ``truncated_to`` bytes (0: it did not).

    A result that errs by its last bit is then off by one, which later operations would make any number.
    """
    if truncated_to and kind not in FLOATS:
        if not isinstance(operation, Cast):
            return "a value that was floating point", "only casts after that: do it before the cast"
        if operation.becomes_integer and ELEMENTS[DATA_TYPES[operation.type]].bytes < truncated_to:
            return "a value that was floating point", "no integer type smaller than the first: it would wrap around"
    if inexact and kind in FLOATS and operation.becomes_integer:
        return "an exponential", "a floating-point type: by its last bit elements would differ by one"
    return None
