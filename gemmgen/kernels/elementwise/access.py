"""Addresses of the elements of an elementwise kernel's arrays: axes, strides, and the operations' operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.elementwise.spec import ElementwiseSpec
from gemmgen.kernels.epilogue.operations import DATA_TYPES, Complaint, FormulaOutput, Operand
from gemmgen.kernels.epilogue.steps import SUMS, Access, OutputSpace, Store, convert, extremum_text, number_argument, stored_text
from gemmgen.kernels.launch import ArrayArgument, Constraint, Dimension

AXES = ("d0", "d1", "d2", "d3")
"""Names of extents, the slowest axis first."""
MAX_EXTENT = 2**31 - 1


def axis_of(per: str, rank: int) -> int | None:
    """The axis along which a vector for each row, column or channel (of n, c, h, w) runs; None if there is none."""
    return {"column": rank - 1, "row": rank - 2 if rank > 1 else None, "channel": 1 if rank > 2 else None}.get(per)


@dataclass(frozen=True)
class StridedArray:
    """An array with all the axes, and its own strides."""

    name: str
    stored: DataType
    rank: int
    contiguous: bool
    """True if the last axis has stride 1."""
    alignment: int
    """Elements that the base pointer and the other strides are multiples of."""

    @property
    def stride_names(self) -> tuple[str, ...]:
        """The kernel's arguments for the strides that are not known."""
        known = 1 if self.contiguous else 0
        return tuple(f"{self.name}_stride{axis}" for axis in range(self.rank - known))

    @property
    def strides(self) -> tuple[str, ...]:
        return (*self.stride_names, *(("1",) if self.contiguous else ()))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Strides of the array; by default those of an array without gaps."""
        strides = []
        for axis, name in enumerate(self.stride_names):
            if axis == self.rank - 1:
                default = "1"
            elif axis == self.rank - 2:
                step = "1" if self.contiguous else f"{self.name}_stride{self.rank - 1}"
                default = f"round_up(max({AXES[self.rank - 1]}, 1) * {step}, {self.alignment})"
            else:
                default = f"max({AXES[axis + 1]}, 1) * {self.name}_stride{axis + 1}"
            meaning = f"elements of {self.name} from one index along axis {axis} to the next"
            strides.append(Dimension(name, meaning, default=Formula(default)))
        return tuple(strides)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        if self.alignment == 1:
            return ()
        text = f"must be a multiple of {self.alignment}, as the spec's alignment promises"
        return tuple(Constraint(Formula(f"{name} % {self.alignment} == 0"), f"{name} {text}") for name in self.stride_names)

    @property
    def offset(self) -> str:
        """The CUDA expression of where an element lies, from its indices ``i0``, ``i1`` ... and its ``column`` on the last axis."""
        terms = [f"static_cast<long long>(i{axis}) * {name}" for axis, name in enumerate(self.stride_names[: self.rank - 1])]
        terms.append("column" if self.contiguous else f"static_cast<long long>(column) * {self.stride_names[-1]}")
        return " + ".join(terms)

    def argument(self, role: Literal["input", "output"], meaning: str) -> ArrayArgument:
        return ArrayArgument(
            name=self.name,
            type=self.stored,
            role=role,
            shape=tuple(Formula(extent) for extent in AXES[: self.rank]),
            strides=tuple(Formula(stride) for stride in self.strides),
            alignment=self.alignment * ELEMENTS[self.stored].bytes,
            meaning=meaning,
        )


@dataclass(frozen=True)
class Read:
    """An array that the kernel reads: where the elements that belong to one vector of y lie."""

    argument: ArrayArgument
    offset: str
    """CUDA expression of the first of them."""
    along: bool
    """True if there is one for each element of the vector; else one for all of them."""

    @property
    def name(self) -> str:
        return self.argument.name


@dataclass(frozen=True)
class Write:
    """An array beside y that the kernel writes."""

    store: Store
    argument: ArrayArgument
    offset: str
    """CUDA expression of where the first element of a vector is stored or reduced."""
    along: bool
    """True if each element of the vector has its own place."""

    @property
    def name(self) -> str:
        return self.argument.name

    @property
    def reduces(self) -> bool:
        """True if elements raise or lower numbers in memory."""
        return self.store.output.reduce is not None

    def reduction(self, target: str, value: str, element: str) -> str:
        """The statement that reduces a value; ``element``: its place in a vector, or nothing."""
        place = f"{target} + {element}" if element and self.along else target
        return extremum_text(self.store.output, place, "0", value)


@dataclass(frozen=True)
class ElementSpace(OutputSpace):
    """The elements of y: an operation may read a number, a value for each row, column or channel, or an array of y's shape."""

    spec: ElementwiseSpec

    def array(self, name: str, stored: DataType) -> StridedArray:
        """An array of y's shape."""
        return StridedArray(name, stored, self.spec.rank, self.spec.inner == "contiguous", self.spec.alignment)

    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        if operand.per == "all":
            return number_argument(operand, name, kind)
        name, stored = name.lower(), operand.stored or DATA_TYPES[self.spec.input]
        if operand.per == "group":
            return f"per {operand.per}", "per all, memory, row, column, channel or result"
        if operand.per == "memory":
            one = ArrayArgument(name, stored, "input", (Formula("1"),), (Formula("1"),), ELEMENTS[stored].bytes, operand.meaning)
            return Access(operand, one, convert(name, stored, "s64" if stored == "s64" else kind), stored)
        if ELEMENTS[stored].bytes > ELEMENTS[DATA_TYPES[self.spec.input]].bytes and self.spec.alignment > 1:
            return f"of type {stored} beside {self.spec.input}", "a type that is no wider than the input's, or alignment: 1"
        text = convert(name, stored, kind)
        if operand.per == "result":
            return Access(operand, self.array(name, stored).argument("input", operand.meaning), text, stored)
        axis = axis_of(operand.per, self.spec.rank)
        if axis is None:
            return f"per {operand.per} of {self.spec.rank} axes", "an axis for it: rows need 2 axes, channels 3; or per all or result"
        alignment = ELEMENTS[stored].bytes * (self.spec.alignment if operand.per == "column" else 1)
        vector = ArrayArgument(name, stored, "input", (Formula(AXES[axis]),), (Formula("1"),), alignment, operand.meaning)
        return Access(operand, vector, text, stored)

    def store(self, output: FormulaOutput, name: str, text: str, kind: DataType) -> Store | Complaint:
        if output.reduce is not None:
            return self._reduced(output, name, text, kind)
        array = self.array(name, output.type).argument("output", "a further result")
        return Store(name, array, (f"{name} = {stored_text(text, kind, output.type)};",), output)

    def _reduced(self, output: FormulaOutput, name: str, text: str, kind: DataType) -> Store | Complaint:
        """The store of a value that a number in memory is raised or lowered to."""
        if output.reduce in SUMS:
            return f"reduce: {output.reduce}", "reduce: max, min or absmax; kind: reduction sums a formula of its elements, its prologue"
        if kind != "f32":
            return f"a reduction of {ELEMENTS[kind].word} values", "float32 values: float32(...) makes them"
        per = output.per or "all"
        axis = axis_of(per, self.spec.rank)
        if axis is None and per != "all":
            return f"a reduction per {per} of {self.spec.rank} axes", "an axis for it: rows need 2 axes, channels 3; or per: all"
        extent = "1" if axis is None else AXES[axis]
        array = ArrayArgument(name, "f32", "inout", (Formula(extent),), (Formula("1"),), 4, f"{output.reduce} of {per}")
        return Store(name, array, (f"{name} = {text};",), output)

    @property
    def coordinates(self) -> Mapping[str, str]:
        """Indices along the last two axes."""
        return {"row": "at_row", "column": "at_column"} if self.spec.rank > 1 else {"column": "at_column"}

    def write(self, store: Store) -> Write:
        """The kernel's way to write a further output."""
        assert isinstance(store.argument, ArrayArgument)
        if store.output.reduce is None:
            return Write(store, store.argument, self.array(store.name, store.type).offset, True)
        axis = axis_of(store.output.per or "all", self.spec.rank)
        last = axis == self.spec.rank - 1
        return Write(store, store.argument, "0" if axis is None else "column" if last else f"i{axis}", last)

    def read(self, access: Access) -> Read:
        """The kernel's way to read an array that an operation names."""
        assert isinstance(access.argument, ArrayArgument)
        if access.operand.per == "result":
            return Read(access.argument, self.array(access.name, access.stored).offset, True)
        if access.operand.per == "memory":
            return Read(access.argument, "0", False)
        axis = axis_of(access.operand.per, self.spec.rank)
        last = axis == self.spec.rank - 1
        return Read(access.argument, "column" if last else f"i{axis}", last)
