"""Epilogues of matrix products: operations on float32 values, and the numbers, vectors and matrices that they read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.operations import Cast, Complaint, Operand, Operation
from gemmgen.kernels.epilogue.steps import Access, Step, convert, number_argument, plan_steps
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.kernels.matrix import Matrix


@dataclass(frozen=True)
class MatrixSpace:
    """The elements of C: an operation may read a number, a value for each row or column, or a matrix of C's shape, stored like C; vectors
    are float32 where C has integers or 8 bits, and where they are scales."""

    output: Matrix
    grouped: bool = False
    """True if rows belong to groups, each of which has its own values for each column."""

    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        if operand.per == "all":
            return number_argument(operand, name, "f32")
        stored = self.output.type
        vectors: DataType = operand.stored or (stored if stored in ("f32", "f16", "bf16") else "f32")
        if operand.like_output:
            stride = self.output.batch_stride and f"stride_{name.lower()}"
            matrix = replace(self.output, name=name, leading_dimension=f"ld{name.lower()}", batch_stride=stride)
            return Access(operand, matrix, matrix.variable, stored)
        if operand.per not in ("memory", "row", "column"):
            return (
                f"per {operand.per}",
                "per all, memory, row or column; residual adds a matrix of C's shape, multiply takes one as factors",
            )
        extent, index = {"memory": ("1", "0"), "row": ("m", "row"), "column": ("n", "column")}[operand.per]
        shape: tuple[Formula, ...] = (Formula(extent),)
        strides: tuple[Formula, ...] = (Formula("1"),)
        meaning = operand.meaning
        if self.grouped and operand.per == "column":
            shape, strides, meaning = (Formula("groups"), *shape), (Formula("n"), *strides), f"{meaning} of each group"
        vector = ArrayArgument(name, vectors, "input", shape, strides, ELEMENTS[vectors].bytes, meaning)
        return Access(operand, vector, convert(f"{name}[{index}]", vectors, "f32"), vectors)


def plan_epilogue(operations: tuple[Operation, ...], output: Matrix, reasons: list[Reason], grouped: bool = False) -> tuple[Step, ...]:
    """The operations as the kernel does them, from a float32 value to another; adds to ``reasons`` what does not go together."""
    space = MatrixSpace(output, grouped)
    steps, last = plan_steps(operations, "f32", "epilogue", reasons, space)
    if last == "f32":
        return steps
    return plan_steps((*operations, Cast(op="cast", type="float32")), "f32", "epilogue", [], space)[0]
