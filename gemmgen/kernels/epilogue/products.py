"""Epilogues of matrix products: operations on float32 values, and the numbers, vectors and matrices that they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemmgen.core.elements import ELEMENTS, FLOATS, DataType
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.graph import Accuracy
from gemmgen.kernels.epilogue.operations import Cast, Complaint, FormulaOutput, Operand, Operation
from gemmgen.kernels.epilogue.steps import (
    EXTREMA,
    SECOND_VALUE,
    SUMS,
    Access,
    OutputSpace,
    Step,
    Store,
    convert,
    extremum_text,
    number_argument,
    plan_steps,
    stored_text,
)
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.kernels.matrix import Matrix


@dataclass(frozen=True)
class MatrixSpace(OutputSpace):
    """The elements of C: an operation may read a number, a value for each row or column, or a matrix of C's shape, stored like C; vectors
    are float32 where C has integers or 8 bits, and where they are scales."""

    output: Matrix
    grouped: bool = False
    """True if rows belong to groups, each of which has its own values for each column."""
    sums: bool = True
    """True if the instance can keep the terms of sums in its workspace."""
    second: bool = False
    """True if the instance has a second product."""
    computed: DataType = "f32"
    """The type of results before operations, which operands are converted to."""
    works_in_place = True

    @property
    def second_product(self) -> str:
        return SECOND_VALUE if self.second else ""

    @property
    def coordinates(self) -> Mapping[str, str]:
        """The true row and column of an element."""
        return {"row": "at_row", "column": "at_column"}

    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        if operand.per == "all":
            return number_argument(operand, name, "s32" if operand.stored == "s32" else self.computed)
        stored = self.output.type
        vectors: DataType = operand.stored or (stored if stored in ("f32", "f64", "f16", "bf16") else "f32")
        if operand.like_output:
            return self._like_output(operand, name)
        if operand.per == "group" and not self.grouped:
            return "per group", "batch: grouped, whose rows have groups"
        if operand.per not in ("memory", "row", "column", "group"):
            return (
                f"per {operand.per}",
                "per all, memory, row, column or group; residual adds a matrix of C's shape, multiply takes one as factors",
            )
        extent, index = {"memory": ("1", "0"), "row": ("m", "row"), "column": ("n", "column"), "group": ("groups", "0")}[operand.per]
        shape: tuple[Formula, ...] = (Formula(extent),)
        strides: tuple[Formula, ...] = (Formula("1"),)
        meaning = operand.meaning
        if self.grouped and operand.per == "column":
            shape, strides, meaning = (Formula("groups"), *shape), (Formula("n"), *strides), f"{meaning} of each group"
        vector = ArrayArgument(name, vectors, "input", shape, strides, ELEMENTS[vectors].bytes, meaning)
        return Access(operand, vector, convert(f"{name}[{index}]", vectors, "s64" if vectors == "s64" else self.computed), vectors)

    def _like_output(self, operand: Operand, name: str) -> Access | Complaint:
        stored = operand.stored or self.output.type
        if operand.in_place and stored != self.output.type:
            return f"in_place of {ELEMENTS[stored].word}", f"{ELEMENTS[self.output.type].word}, the result's type"
        shares = self.output.name if operand.in_place else ""
        if operand.stored is not None and (stored != self.output.type or not ELEMENTS[stored].is_float):
            matrix = replace(self._matrix(name, stored), shares=shares)
            zero = ELEMENTS[self.computed].literal(0)
            element = convert(self._element(matrix), stored, self.computed)
            return Access(operand, matrix, f"(exists ? {element} : {zero})", stored, placed=True)
        matrix = replace(self._matrix(name, stored, self.output.alignment), shares=shares)
        return Access(operand, matrix, matrix.variable, stored)

    def _matrix(self, name: str, stored: DataType, alignment: int = 1) -> Matrix:
        """A matrix of C's shape and storage order."""
        stride = self.output.batch_stride and f"stride_{name.lower()}"
        return replace(self.output, name=name, leading_dimension=f"ld{name.lower()}", batch_stride=stride, type=stored, alignment=alignment)

    def _element(self, matrix: Matrix) -> str:
        """The CUDA expression of the element at the place."""
        slow, fast = ("at_row", "at_column") if matrix.row_major else ("at_column", "at_row")
        return f"{matrix.name}[static_cast<long long>({slow}) * {matrix.leading_dimension} + {fast}]"

    def store(self, output: FormulaOutput, name: str, text: str, kind: DataType) -> Store | Complaint:
        if kind == "f64" and (output.reduce is not None or output.type not in ("f32", "f64", "f16", "bf16", "bool")):
            what = f"a float64 value as {output.type}" if output.reduce is None else "a reduction of float64 values"
            return what, "float32(...) around the value" + (", or type f32, f64, f16, bf16 or bool" if output.reduce is None else "")
        if output.reduce is None:
            matrix = self._matrix(name, output.type, self.output.alignment if output.type == self.output.type else 1)
            value = stored_text(text, kind, output.type)
            return Store(name, matrix, ("if (exists)", f"    {self._element(matrix)} = {value};"), output)
        if kind not in FLOATS:
            return f"a reduction of {ELEMENTS[kind].word} values", "floating point: float32(...) makes it"
        per = output.per or "all"
        if per == "channel":
            return "a reduction per channel", "per: all, row or column"
        if output.reduce in SUMS:
            return self._sum(output, name, text)
        batched = per != "all" and self.output.batch_stride is not None
        if batched and not self.sums:
            return f"a reduction per {per} of a batch by planes", "per: all"
        extent, index = {"all": ("1", "0"), "row": ("m", "at_row"), "column": ("n", "at_column")}[per]
        meaning = {"all": "of all elements", "row": "of each row", "column": "of each column"}[per]
        shape: tuple[Formula, ...] = (Formula(extent),)
        strides: tuple[Formula, ...] = (Formula("1"),)
        if batched:
            shape, strides, meaning = (Formula("batch"), *shape), (Formula(extent), *strides), f"{meaning} of each product"
        array = ArrayArgument(name, "f32", "inout", shape, strides, 4, f"{output.reduce} {meaning}")
        return Store(name, array, ("if (exists)", f"    {extremum_text(output, name, index, text)}"), output)

    def _sum(self, output: FormulaOutput, name: str, text: str) -> Store | Complaint:
        """The store of a term, which lies at the element's place among all."""
        if not self.sums:
            return (
                f"reduce: {output.reduce} of products by planes",
                f"reduce: {', '.join(EXTREMA)}; store the values and sum them with a reduction kernel",
            )
        count = "batch * m * n" if self.output.batch_stride is not None else "m * n"
        terms = ArrayArgument(f"{name}_terms", "f32", "workspace", (Formula(count),), (Formula("1"),), 4, f"the terms of {name}")
        return Store(name, terms, ("if (exists)", f"    {terms.name}[place] = {text};"), output)


def plan_epilogue(
    operations: tuple[Operation, ...],
    output: Matrix,
    reasons: list[Reason],
    grouped: bool = False,
    accuracy: Accuracy = "full",
    sums: bool = True,
    second: bool = False,
    by_output: bool = False,
) -> tuple[Step, ...]:
    """The operations as the kernel does them, from a float32 value to another, or from a double where the output has doubles; adds
    conflicts to ``reasons``."""
    kind: DataType = "f64" if output.type == "f64" else "f32"
    space = MatrixSpace(output, grouped, sums, second, kind)
    steps, last = plan_steps(operations, kind, "epilogue", reasons, space, accuracy=accuracy, by_output=by_output)
    if last == kind:
        return steps
    to_float = (*operations, Cast(op="cast", type="float64" if kind == "f64" else "float32"))
    return plan_steps(to_float, kind, "epilogue", [], space, accuracy=accuracy, by_output=by_output)[0]
