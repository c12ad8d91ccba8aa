"""Types that a reduction computes in, its state from element to element, and the operations around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemmgen.core.elements import ELEMENTS, FLOATS, DataType, float_format
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.functions import FUNCTIONS
from gemmgen.kernels.epilogue.operations import DATA_TYPES, Abs, Cast, Complaint, FormulaOutput, Operand, Operation, Square
from gemmgen.kernels.epilogue.steps import (
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
from gemmgen.kernels.launch import Argument, ArrayArgument, ScalarArgument
from gemmgen.kernels.reduction.spec import ReductionSpec, Walk

StateKind = Literal["scalar", "extremum", "logsumexp", "moments", "large_sum", "norm", "joint"]
_STATES: Mapping[str, StateKind] = {
    "first_minimum": "extremum",
    "first_maximum": "extremum",
    "logsumexp": "logsumexp",
    "moments": "moments",
    "large_sum": "large_sum",
    "norm": "norm",
}
"""Kinds of states by combiner; those of all others are scalars."""
STATE_NAMES = {
    "extremum": "Extremum",
    "logsumexp": "LogSumExp",
    "moments": "Moments",
    "large_sum": "LargeSum",
    "norm": "Norm",
    "joint": "Joint",
}
TAKES_VECTORS: tuple[StateKind, ...] = ("moments", "large_sum", "norm")
"""States that the elements of a whole vector are added to at once."""
_SHORT = ("f16", "s8", "u8")
"""Types whose sums of squares stay in the range of float32, however many they are."""
JOINED = ("sum", "mean", "sum_of_squares", "l1_norm", "l2_norm", "min", "max", "argmin", "argmax", "any", "all")
"""Operations of which two can be made in one pass."""
EXTREMA = ("min", "max", "argmin", "argmax")
TRUTHS = ("any", "all")

COMBINERS: dict[str, str] = {
    "sum": "add",
    "mean": "add",
    "sum_of_squares": "add",
    "l1_norm": "add",
    "l2_norm": "add",
    "product": "multiply",
    "min": "minimum",
    "max": "maximum",
    "any": "either",
    "all": "both",
    "argmin": "first_minimum",
    "argmax": "first_maximum",
    "logsumexp": "logsumexp",
    "mean_variance": "moments",
}
"""The operation that combines two states: the name of its macro."""

ONE = Formula("1")
RESULTS = Formula("results")
"""Stands for the shape of the results, which the launch sequence knows."""


@dataclass(frozen=True)
class ResultSpace(OutputSpace):
    """The results of a reduction: an operation may read a number, or an array with a value for each result."""

    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        if operand.per == "all":
            return number_argument(operand, name, kind)
        if operand.per not in ("memory", "result"):
            return f"per {operand.per}", "per all, memory or result: results have neither rows nor columns"
        stored = operand.stored or kind
        size, index = (RESULTS, "at") if operand.per == "result" else (ONE, "0")
        array = ArrayArgument(name, stored, "input", (size,), (ONE,), ELEMENTS[stored].bytes, operand.meaning)
        return Access(operand, array, convert(f"{name}[{index}]", stored, "s64" if stored == "s64" else kind), stored)

    def store(self, output: FormulaOutput, name: str, text: str, kind: DataType) -> Store | Complaint:
        if output.reduce is None:
            if kind == "f64" and output.type not in ("f32", "f16", "bf16", "bool"):
                return f"a float64 value as {output.type}", "type f32, f16, bf16 or bool, or float32(...) around the value"
            array = ArrayArgument(name, output.type, "output", (RESULTS,), (ONE,), 1, "a further result")
            return Store(name, array, (f"{name}[at] = {stored_text(text, kind, output.type)};",), output)
        if output.reduce in SUMS:
            return (
                f"reduce: {output.reduce} of results",
                "reduce: max, min or absmax; a sum of all results is a reduction of more axes",
            )
        if output.per not in (None, "all"):
            return f"a reduction per {output.per}", "per: all: results have neither rows nor columns"
        if kind != "f32":
            return f"a reduction of {ELEMENTS[kind].word} values", "float32 values: float32(...) makes them"
        array = ArrayArgument(name, "f32", "inout", (ONE,), (ONE,), 4, f"{output.reduce} of all results")
        return Store(name, array, (extremum_text(output, name, "0", text),), output)


PLACES = {
    "all": ("1", "reduced"),
    "rows": ("outer", "reduced"),
    "columns": ("reduced", "inner"),
    "middle": ("outer * reduced", "inner"),
    "strided": ("outer * reduced", "inner"),
}
"""Rows and columns of X by shape: of three axes the last one counts the columns, and the others together the rows. Of a tensor, the kept
axes together count the rows, and the reduced ones the columns."""


@dataclass(frozen=True)
class ElementSpace(OutputSpace):
    """The elements before a reduction: an operation may read a number, a value for each row or column of X, or an array of X's shape
    without gaps, and store such an array."""

    shape: str
    kept: int = 1
    reduced: int = 1
    """Axes of a tensor."""

    @property
    def _lines(self) -> tuple[str, str]:
        """Numbers of rows and of columns, as formulas."""
        if self.shape != "tensor":
            return PLACES[self.shape]
        rows, columns = [f"k{axis}" for axis in range(self.kept)], [f"r{axis}" for axis in range(self.reduced)]
        return " * ".join(rows) or "1", " * ".join(columns)

    @property
    def coordinates(self) -> Mapping[str, str]:
        return {} if self.shape == "all" else {"row": "at_row", "column": "at_column"}

    @property
    def _element(self) -> str:
        """CUDA expression of the element's place in an array of X's shape."""
        return "at_column" if self.shape == "all" else "static_cast<long long>(at_row) * pitch + at_column"

    def _shape(self) -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
        rows, columns = self._lines
        return ((Formula(columns),), (ONE,)) if self.shape == "all" else ((Formula(rows), Formula(columns)), (Formula(columns), ONE))

    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        if operand.per == "all":
            return number_argument(operand, name, kind)
        stored = operand.stored or kind
        rows, columns = self._lines
        lines = {"memory": ("1", "0"), "row": (rows, "at_row"), "column": (columns, "at_column")}
        if operand.per == "result":
            (shape, strides), index = self._shape(), self._element
        elif operand.per not in lines or (self.shape == "all" and operand.per != "memory"):
            axes = "memory or element: the elements are one line" if self.shape == "all" else "memory, row, column or element"
            return f"per {operand.per}", f"per all, {axes}"
        else:
            extent, index = lines[operand.per]
            shape, strides = (Formula(extent),), (ONE,)
        array = ArrayArgument(name, stored, "input", shape, strides, ELEMENTS[stored].bytes, operand.meaning)
        return Access(operand, array, convert(f"{name}[{index}]", stored, "s64" if stored == "s64" else kind), stored)

    def store(self, output: FormulaOutput, name: str, text: str, kind: DataType) -> Store | Complaint:
        if output.reduce is not None:
            return f"reduce: {output.reduce} of elements", "values for each element: the operation of the kernel reduces them"
        if kind == "f64" and output.type not in ("f32", "f16", "bf16", "bool"):
            return f"a float64 value as {output.type}", "type f32, f16, bf16 or bool, or float32(...) around the value"
        shape, strides = self._shape()
        array = ArrayArgument(name, output.type, "output", shape, strides, ELEMENTS[output.type].bytes, "a value for each element")
        return Store(name, array, ("if (exists)", f"    {name}[{self._element}] = {stored_text(text, kind, output.type)};"), output)


@dataclass(frozen=True)
class Arithmetic:
    """Types and operations of one instance."""

    operation: str
    stored: DataType
    """Type of the elements in memory."""
    value: DataType
    """Type in which elements are prepared."""
    compute: DataType
    """Type of the numbers that are combined: that of the prepared elements, or int for truth values."""
    state: StateKind
    combiner: str
    prologue: tuple[Step, ...]
    """With the operation's own, such as the square in a sum of squares, at the end."""
    result: DataType
    """Type of the reduction's result, before the epilogue."""
    epilogue: tuple[Step, ...]
    output: DataType
    correction: int
    wide: bool = False
    """True if positions and counts have 64 bits for every type of the numbers."""
    parts: tuple[Arithmetic, ...] = ()
    """Arithmetic of each operation that one pass makes, if there are several."""
    scope: str = ""
    """The C++ namespace of the functions, where there are several operations."""
    lines: str = "rows"
    """``columns`` if an element's place along the reduced axis is its row, ``matrices`` if its place along two axes is; ``results`` if the
    results of a tensor are its rows."""

    @property
    def is_float(self) -> bool:
        return self.compute in FLOATS

    @property
    def state_c(self) -> str:
        """The C type of the running value."""
        return f"{self.scope}{STATE_NAMES[self.state]}" if self.state in STATE_NAMES else ELEMENTS[self.compute].c_type

    @property
    def counter_c(self) -> str:
        """The type of an index or a count in a state: as wide as the number beside it, so that no byte of it is unused, if not more
        is counted."""
        return "int" if ELEMENTS[self.compute].bytes == 4 and not self.wide else "long long"

    @property
    def state_bytes(self) -> int:
        if self.parts:
            return self._joint_bytes
        size = ELEMENTS[self.compute].bytes
        if self.wide and self.state in ("extremum", "moments"):
            return {"extremum": 16, "moments": 24 if size == 4 else 32}[self.state]
        numbers = {"scalar": 1, "extremum": 2, "logsumexp": 2, "moments": 4, "large_sum": 2, "norm": 3}
        return numbers[self.state] * size

    @property
    def _joint_bytes(self) -> int:
        at, widest = 0, 1
        for part in self.parts:
            unit = max(ELEMENTS[part.compute].bytes, 8 if part.has_index and part.wide else 1)
            at, widest = -(-at // unit) * unit + part.state_bytes, max(widest, unit)
        return -(-at // widest) * widest

    @property
    def state_registers(self) -> int:
        """32-bit registers that a state occupies."""
        return -(-self.state_bytes // 4)

    @property
    def fields(self) -> tuple[str, ...]:
        """The members of a state that is a struct, and of the structs in it."""
        if self.parts:
            names = [(f"part{place}", part) for place, part in enumerate(self.parts)]
            return tuple(f"{name}.{field}" if field else name for name, part in names for field in part.fields or ("",))
        members: dict[str, tuple[str, ...]] = {
            "extremum": ("value", "index"),
            "logsumexp": ("largest", "sum"),
            "moments": ("count", "origin", "mean", "variance"),
            "large_sum": ("sum", "large"),
            "norm": ("sum", "large", "small"),
        }
        return members.get(self.state, ())

    @property
    def suffix(self) -> str:
        """The end of the names of CUDA's functions, and of literals, for numbers of this type."""
        return "f" if self.compute == "f32" else ""

    @property
    def keeps_smallest(self) -> bool:
        """True if an extremum is the smallest element, not the largest."""
        return self.combiner.endswith("minimum")

    @property
    def takes_vectors(self) -> bool:
        """True if the elements of a whole vector are added to a state at once."""
        return self.state in TAKES_VECTORS

    @property
    def has_index(self) -> bool:
        """True if the position of an element matters."""
        return self.state == "extremum" or self.places or any(part.has_index for part in self.parts)

    @property
    def places(self) -> bool:
        """True if the operations on an element read or write arrays, or name its coordinates."""
        return any(step.has_place or step.arguments for step in self.prologue)

    @property
    def element_arguments(self) -> tuple[Argument, ...]:
        """Kernel arguments that the operations on elements add."""
        return tuple(argument for step in self.prologue for argument in step.arguments)

    @property
    def element_stores(self) -> tuple[Store, ...]:
        """Values for each element that the operations on them store."""
        return tuple(store for step in self.prologue for store in step.stores)

    @property
    def place_parameters(self) -> tuple[Argument, ...]:
        """Further parameters of the function that prepares an element."""
        names = {"at_row": "its row", "at_column": "its column", "pitch": "elements of a row"}
        place = [ScalarArgument(name, "s32", meaning) for name, meaning in names.items()]
        exists = [ScalarArgument("exists", "bool", "whether it is taken for the first time")] if self.element_stores else []
        return (*place, *exists, *self.element_arguments) if self.places else ()

    @property
    def is_extremum(self) -> bool:
        return self.operation in EXTREMA

    @property
    def is_truth(self) -> bool:
        return self.operation in TRUTHS

    @property
    def no_index(self) -> str:
        """The index of no element, larger than any other."""
        return "9223372036854775807ll" if self.wide else "2147483647"

    @property
    def named_identity(self) -> bool:
        """True if the empty state is worth a separate function."""
        return bool(self.parts) or self.combiner not in ("add", "multiply", "either", "both")

    @property
    def last(self) -> DataType:
        """Type of the result after the epilogue."""
        return self.epilogue[-1].result if self.epilogue else self.result

    @property
    def bias_by_result(self) -> bool:
        """True if the epilogue looks something up for each result."""
        return any(isinstance(argument, ArrayArgument) for argument in self.result_arguments)

    @property
    def prepares(self) -> bool:
        """True if an element has to be converted or changed before it is reduced."""
        return bool(self.prologue) or self.stored != self.value or self.is_truth

    @property
    def finishes(self) -> bool:
        """True if a result is more than the state of the whole."""
        return self.state != "scalar" or bool(self.epilogue) or self.output != self.compute or self.operation in ("mean", "l2_norm")

    @property
    def ignores_zeros(self) -> bool:
        """True if an element of 0 changes nothing, so that it may stand where there is none."""
        if self.parts:
            return all(part.ignores_zeros for part in self.parts)
        return self.combiner in ("add", "large_sum", "norm") and all(step.calls <= {"square", "abs"} for step in self.prologue)

    @property
    def may_repeat(self) -> bool:
        """True if an element that is taken twice changes nothing."""
        if self.parts:
            return all(part.may_repeat for part in self.parts)
        return self.state == "extremum" or self.combiner in ("minimum", "maximum", "either", "both")

    @property
    def adds_bytes(self) -> bool:
        """True if four elements at a time are added by a dot product with ones."""
        return not self.parts and self.combiner == "add" and self.stored == "s8" and not self.is_float and not self.prologue

    @property
    def needs_count(self) -> bool:
        """True if the result depends on how many elements there are."""
        return self.operation == "mean" or any(part.needs_count for part in self.parts)

    @property
    def rejects_nothing(self) -> bool:
        """True if the reduction of no elements has no result."""
        return self.is_extremum or any(part.rejects_nothing for part in self.parts)

    @property
    def exact_in_any_order(self) -> bool:
        """True if atomic operations give the same bits in any order."""
        return self.state == "scalar" and not self.is_float

    @property
    def result_stores(self) -> tuple[Store, ...]:
        """Further outputs of the epilogue."""
        return tuple(store for step in self.epilogue for store in step.stores)

    @property
    def result_arguments(self) -> tuple[Argument, ...]:
        """Kernel arguments that the epilogue adds."""
        return tuple(argument for step in self.epilogue for argument in step.arguments)


def plan_arithmetic(spec: ReductionSpec, reasons: list[Reason]) -> Arithmetic:
    """The types of an instance; adds conflicts to ``reasons``."""
    if isinstance(spec.operation, tuple):
        return _joint(spec, reasons)
    operation, stored = str(spec.operation), DATA_TYPES[spec.input]
    squares: tuple[Operation, ...] = (Square(op="square"),)
    own: dict[str, tuple[Operation, ...]] = {"sum_of_squares": squares, "l2_norm": squares, "l1_norm": (Abs(op="abs"),)}
    accumulator = _accumulator(spec, stored, reasons)
    combiner = _combiner(operation, stored, accumulator, bool(spec.prologue))
    if combiner == "norm":
        own["l2_norm"] = ()
    axes = (spec.strategy.kept, spec.strategy.reduced) if isinstance(spec.strategy, Walk) else (1, 1)
    elements = ElementSpace(spec.shape, *axes)
    held = plan_steps(spec.prologue, accumulator, "prologue", [], elements)[1]
    back = () if held == accumulator else (Cast(op="cast", type=_type_name(accumulator)),)
    plan_steps((*spec.prologue, *back), accumulator, "prologue", reasons, elements)
    prologue, _ = plan_steps((*spec.prologue, *back, *own.get(operation, ())), accumulator, "prologue", [], elements)
    compute: DataType = "s32" if operation in TRUTHS else accumulator
    if operation in ("logsumexp", "mean_variance") and compute not in FLOATS:
        need = "a floating-point accumulator: float32 or float64"
        reasons.append(Reason("type", "accumulator", f"{operation} in {_type_name(accumulator)}", need))
    rounding = sorted({name for step in prologue for name in step.calls if name in ("exp", "sqrt") or FUNCTIONS[name].approximate})
    if combiner.startswith("first_") and rounding:
        need = "elements that stay different: rounding makes equal ones of some, and the first of them would be taken"
        reasons.append(Reason("tie", "prologue", f"{operation} after {rounding[0]}", need, "leave it out"))
    state = _STATES.get(combiner, "scalar")
    result = _result_type(operation, compute)
    if state == "moments" and spec.epilogue:
        reasons.append(Reason("epilogue", "epilogue", "an epilogue", "none: mean_variance writes two arrays, which is applied to?"))
    epilogue, last = plan_steps(spec.epilogue, result, "epilogue", [], ResultSpace())
    default_output = "u8" if operation in TRUTHS and not spec.epilogue else last
    output = DATA_TYPES[spec.output] if spec.output else default_output
    stores = () if output in (last, "u8") else (Cast(op="cast", type=_type_name(output)),)
    plan_steps((*spec.epilogue, *stores), result, "epilogue", reasons, ResultSpace())
    taken = {argument.name for step in prologue for argument in step.arguments}
    for name in sorted(taken & {argument.name for step in epilogue for argument in step.arguments}):
        reasons.append(Reason("elementwise", "epilogue", f"a second operand named {name}", "a name that the prologue does not have"))
    if state == "moments" and output not in FLOATS:
        reasons.append(Reason("output", "output", str(spec.output), "a floating-point type for mean and variance"))
    if output == "u8" and (operation not in TRUTHS or spec.epilogue):
        reasons.append(Reason("output", "output", "bool", "another type: only any and all, without epilogue, give truth values"))
    return Arithmetic(
        operation=operation,
        stored=stored,
        value=accumulator,
        compute=compute,
        state=state,
        combiner=combiner,
        prologue=prologue,
        result=result,
        epilogue=epilogue,
        output=output,
        correction=spec.correction,
        wide=isinstance(spec.strategy, Walk) and spec.strategy.wide,
        lines={"columns": "columns", "middle": "matrices", "strided": "matrices", "tensor": "results"}.get(spec.shape, "rows"),
    )


def _joint(spec: ReductionSpec, reasons: list[Reason]) -> Arithmetic:
    """The types of operations that one pass makes."""
    assert isinstance(spec.operation, tuple)
    parts = [
        replace(plan_arithmetic(spec.model_copy(update={"operation": operation}), reasons), scope=f"part{place}::")
        for place, operation in enumerate(spec.operation)
    ]
    alone = [operation for operation in spec.operation if operation not in JOINED]
    if alone:
        reasons.append(Reason("operation", "operation", alone[0], f"two of {', '.join(JOINED)}", "or this one alone"))
    for field in ("prologue", "epilogue", "output"):
        if getattr(spec, field):
            need = "none beside two operations: which would it belong to?"
            reasons.append(Reason(field, field, str(getattr(spec, field)), need, "reduce one after the other"))
    first = parts[0]
    return replace(
        first, operation="+".join(spec.operation), state="joint", combiner="joint", prologue=(), epilogue=(), parts=tuple(parts), scope=""
    )


def _accumulator(spec: ReductionSpec, stored: DataType, reasons: list[Reason]) -> DataType:
    held = ELEMENTS[stored].computed_in
    if spec.accumulator is not None:
        chosen = DATA_TYPES[spec.accumulator]
        if chosen not in FLOATS and stored in FLOATS:
            need, hint = "float32 or float64 for floating-point input", "or a cast to an integer type in the prologue"
            reasons.append(Reason("type", "accumulator", spec.accumulator, need, hint))
            return held
        if spec.operation in ("argmin", "argmax") and chosen in FLOATS and _bits(stored) > _bits(chosen):
            need = f"a type that has a value for each of {ELEMENTS[stored].word}: elements that differ would become equal"
            reasons.append(Reason("type", "accumulator", f"{spec.operation} in {spec.accumulator}", need))
        return chosen
    if held in FLOATS or spec.operation in EXTREMA or spec.operation in TRUTHS:
        return held
    # Sums that 64 bits do not hold, of few elements.
    wide = {"mean": ("s64",), "l2_norm": ("s32", "s64")}.get(str(spec.operation), ())
    return "f64" if spec.operation in ("logsumexp", "mean_variance") or stored in wide else "s64"


def _bits(kind: DataType) -> int:
    """Binary digits of the values of a type."""
    return float_format(kind).digits if kind in FLOATS else 8 * ELEMENTS[kind].bytes


def _combiner(operation: str, stored: DataType, compute: DataType, changed: bool) -> str:
    """The operation on two states. Means and norms have separate states where an intermediate sum could leave the range of the type,
    ``changed``: for the elements after a prologue."""
    if operation not in ("mean", "l2_norm") or compute not in FLOATS:
        return COMBINERS[operation]
    short = stored not in FLOATS or stored == "f16" if operation == "mean" else stored in (*_SHORT, "s32")
    if not changed and (short or (compute == "f64" and stored != "f64")):
        return COMBINERS[operation]
    return "large_sum" if operation == "mean" else "norm"


def _type_name(kind: DataType) -> Any:
    """The name that a spec has for a type."""
    return next(name for name, known in DATA_TYPES.items() if known == kind)


def _result_type(operation: str, compute: DataType) -> DataType:
    if operation in ("argmin", "argmax"):
        return "s64"
    if operation in ("mean", "l2_norm") and compute not in FLOATS:
        return "f64"
    return compute
