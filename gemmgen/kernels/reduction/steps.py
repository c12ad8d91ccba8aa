"""Elementwise operations in their order, with the types of the values between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gemmgen.core.elements import ELEMENTS, FLOATS, DataType
from gemmgen.core.errors import Reason
from gemmgen.core.literals import float_literal
from gemmgen.kernels.launch import Argument
from gemmgen.kernels.reduction.elementwise import DATA_TYPES, Cast, Elementwise


@dataclass(frozen=True)
class Step:
    """One elementwise operation as the kernel does it: ``target`` is the variable that holds the value afterwards."""

    operation: Elementwise
    kind: DataType
    """Type of the value before it."""
    result: DataType
    source: str
    target: str
    arguments: tuple[Argument, ...]
    literal: str = ""
    """The constant of the operation, as CUDA writes it in ``kind``."""

    @property
    def c_type(self) -> str:
        return ELEMENTS[self.kind].c_type

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS

    @property
    def zero(self) -> str:
        return {"f32": "0.0f", "f64": "0.0"}.get(self.kind, "0")

    @property
    def unsigned_c(self) -> str:
        """The unsigned type in which integers wrap around."""
        return ELEMENTS[self.kind].unsigned_c_type

    @property
    def cast_to(self) -> DataType:
        """The type that a cast rounds to."""
        assert isinstance(self.operation, Cast)
        return DATA_TYPES[self.operation.type]

    @property
    def result_c_type(self) -> str:
        return ELEMENTS[self.result].c_type


def plan_steps(
    operations: Sequence[Elementwise], kind: DataType, place: Literal["prologue", "epilogue"], reasons: list[Reason]
) -> tuple[tuple[Step, ...], DataType]:
    """The operations with the types of their values, and the type after them."""
    steps: list[Step] = []
    seen: dict[str, int] = {}
    name, names = "value", 1
    truncated_to, inexact = 0, False
    for index, operation in enumerate(operations):
        problem = operation.problem(kind, place) or _truncation_problem(operation, kind, truncated_to, inexact and place == "prologue")
        if problem is not None:
            reasons.append(Reason("elementwise", f"{place}.{index}", f"{operation.op} of {problem[0]}", problem[1]))
        if isinstance(operation, Cast) and operation.becomes_integer and (truncated_to or kind in FLOATS):
            truncated_to = ELEMENTS[DATA_TYPES[operation.type]].bytes
        inexact |= operation.op == "exp"
        result = operation.result_type(kind)
        target = name
        if result != kind:
            names += 1
            target = f"value{names}"
        arguments = operation.arguments(seen.get(operation.op, 0), kind)
        seen[operation.op] = seen.get(operation.op, 0) + 1
        steps.append(Step(operation, kind, result, name, target, arguments, _literal(operation, kind)))
        name, kind = target, result
    return tuple(steps), kind


def _truncation_problem(operation: Elementwise, kind: DataType, truncated_to: int, inexact: bool) -> tuple[str, str] | None:
    """What may not follow once floating point became an integer of ``truncated_to`` bytes (0: it did not).

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


def _literal(operation: Elementwise, kind: DataType) -> str:
    factor = getattr(operation, "factor", None)
    if factor is None:
        return ""
    if kind == "f32":
        return float_literal(factor)
    return repr(float(factor)) if kind == "f64" else str(int(factor))
