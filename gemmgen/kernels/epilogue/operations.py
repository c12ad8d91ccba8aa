"""The operations that a spec lists, applied to elements before they are reduced, or to results before they are stored.

An operation is short for assignments to ``value`` in the language of expressions (``gemmgen.kernels.epilogue.expression``). Its types,
reference, error bound, CUDA text and derivative come from those; the class states the spec's fields and its further inputs.
Every family takes all operations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import reduce
from keyword import iskeyword
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AllowInfNan, BeforeValidator, Field, model_validator

from gemmgen.core.elements import BY_WORD, DataType
from gemmgen.kernels.epilogue.expression import SPECIAL, FormulaError, Node, call, name, nearest, number, parse, place, written
from gemmgen.kernels.epilogue.extensions import extension_names, operation_of
from gemmgen.kernels.epilogue.functions import known_functions
from gemmgen.kernels.epilogue.reserved import is_reserved
from gemmgen.kernels.family import SpecModel

Finite = Annotated[float, AllowInfNan(False)]
Float32 = Annotated[float, AllowInfNan(False), Field(ge=-3.4028234e38, le=3.4028234e38)]
"""A finite number that float32 can hold after rounding."""

NumberType = Literal["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"]
DATA_TYPES: dict[str, DataType] = {word: BY_WORD[word] for word in get_args(NumberType)} | {"bool": "u8"}
"""The types of a spec as those of a launch sequence; truth values are bytes, 0 or 1."""

Axis = Literal["all", "memory", "row", "column", "group", "channel", "result"]
"""Along which values an operand differs: ``all``: a single number, passed by value; ``memory``: a single number that a kernel before this
one left in the device's memory; ``row``, ``column``: one value for each row, for each column; ``group``: one for each group of rows;
``channel``: one for each channel of an image; ``result``: one for each result. A family has those that its output has."""

VALUE = "value"
"""The name of the array that an operation changes."""

Complaint = tuple[str, str]
"""Reason against an operation: the value found, and the requirement."""


@dataclass(frozen=True)
class Operand:
    """A value that an operation reads beside the one that it changes."""

    name: str
    per: Axis
    meaning: str
    default: float | None = None
    """Value of a number where the caller gives none."""
    like_output: bool = False
    """True if it is an array of the output's shape with separate strides."""
    stored: DataType | None = None
    """The type that it is stored as, independent of the output's type; None: the family decides."""
    in_place: bool = False
    """True if callers may pass the result's array."""


@dataclass(frozen=True)
class Assignment:
    """A name and the expression of its value."""

    target: str
    node: Node
    text: str
    """The expression as messages show it."""


class Operation(SpecModel):
    """One operation on one value."""

    op: str

    floats_only: ClassVar[bool] = False
    """True if its operands are floating point."""
    words: ClassVar[str] = ""
    """The operation in a few words, where they do not depend on its fields."""
    formula: ClassVar[str] = ""
    """Its expression, where that does not depend on its fields."""

    def operands(self) -> tuple[Operand, ...]:
        """Operands that the operation reads beside the value, with the names that the first operation of its kind gives them."""
        return ()

    def transposed(self) -> Operation:
        """The operation for the transposed output."""
        fields = self.model_dump()
        other = {"row": "column", "column": "row"}.get(fields.get("per", ""))
        return self if other is None else self.model_copy(update={"per": other})

    @property
    def extra_outputs(self) -> Mapping[str, FormulaOutput]:
        """Outputs beside the value."""
        return {}

    def expressions(self) -> tuple[str | Node, ...]:
        """Expressions that become the value, one after the other."""
        return (self.formula,)

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The operation in the language of expressions: it assigns ``value`` and its own names."""
        nodes = (parse(one) if isinstance(one, str) else one for one in self.expressions())
        return tuple(Assignment(VALUE, node, self.op) for node in nodes)

    def saturation(self, low: float, high: float) -> tuple[float, float] | None:
        """Bounds that do the same as the operation with saturation to [low, high] after it; None if none do."""
        return None

    def describe(self) -> str:
        """The operation in a few words."""
        return self.words


class Scale(Operation):
    """Multiplies by a constant."""

    op: Literal["scale"]
    factor: Finite
    """The constant, rounded to the value's type; for integer values, an integer."""

    def describe(self) -> str:
        return f"scale by {self.factor:g}"

    def expressions(self) -> tuple[str | Node, ...]:
        return (call("mul", name(VALUE), number(self.factor)),)


_PLACES = {"all": ", the same for all", "memory": ", the same for all, from memory"}
"""Words for a single number."""


class Factor(Operation):
    """Multiplies by a number, the same for all values or one for each row, column, channel or result: scales of quantised factors. Those of
    rows, columns, channels and in memory are float32."""

    op: Literal["factor"]
    per: Axis = "all"
    """Elements that share a value: all, or those of one row, column, channel or result."""

    floats_only: ClassVar[bool] = True

    def operands(self) -> tuple[Operand, ...]:
        if self.per == "all":
            return (Operand("factor", "all", "multiplies every element", default=1.0),)
        meaning = "multiplies every element" if self.per == "memory" else f"one factor for each {self.per}"
        return (Operand("factor", self.per, meaning, stored=None if self.per == "result" else "f32"),)

    def describe(self) -> str:
        return f"factor{_PLACES.get(self.per, f' per {self.per}')}"

    def expressions(self) -> tuple[str | Node, ...]:
        return ("value * factor",)


class Bias(Operation):
    """Adds a number, the same for all values or one for each row, column, channel or result."""

    op: Literal["bias"]
    per: Axis = "all"
    """Elements that share a value: all, or those of one row, column, channel or result."""

    def operands(self) -> tuple[Operand, ...]:
        if self.per == "all":
            return (Operand("bias", "all", "added to every element", default=0.0),)
        return (Operand("bias", self.per, "added to every element" if self.per == "memory" else f"one value for each {self.per}"),)

    def describe(self) -> str:
        return f"bias{_PLACES.get(self.per, f' per {self.per}')}"

    def expressions(self) -> tuple[str | Node, ...]:
        return ("value + bias",)


class Residual(Operation):
    """Adds gamma times an array Z of the output's shape, which has its own strides. Z is always read."""

    op: Literal["residual"]

    floats_only: ClassVar[bool] = True

    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand("gamma", "all", "factor of {Z}", default=1.0),
            Operand("Z", "result", "added to the results", like_output=True),
        )

    def describe(self) -> str:
        return "residual gamma Z"

    def expressions(self) -> tuple[str | Node, ...]:
        return ("fma(gamma, Z, value)",)


class Multiply(Operation):
    """Multiplies by the elements of an array of the output's shape, such as a gate."""

    op: Literal["multiply"]

    floats_only: ClassVar[bool] = True

    def operands(self) -> tuple[Operand, ...]:
        return (Operand("F", "result", "factors of the results", like_output=True),)

    def describe(self) -> str:
        return "product with F"

    def expressions(self) -> tuple[str | Node, ...]:
        return ("value * F",)


class Square(Operation):
    """Multiplies with itself."""

    op: Literal["square"]
    words: ClassVar[str] = "square"
    formula: ClassVar[str] = "square(value)"


class Abs(Operation):
    """The absolute value; the smallest integer of a type stays itself."""

    op: Literal["abs"]
    words: ClassVar[str] = "absolute value"
    formula: ClassVar[str] = "abs(value)"


class Exp(Operation):
    """e to the power of the value."""

    op: Literal["exp"]
    words: ClassVar[str] = "exp"
    formula: ClassVar[str] = "exp(value)"


class Sqrt(Operation):
    """The square root; NaN for negative values."""

    op: Literal["sqrt"]
    words: ClassVar[str] = "square root"
    formula: ClassVar[str] = "sqrt(value)"


class Relu(Operation):
    """Replaces negative values by zero; NaN stays NaN."""

    op: Literal["relu"]
    words: ClassVar[str] = "ReLU"
    formula: ClassVar[str] = "relu(value)"

    def saturation(self, low: float, high: float) -> tuple[float, float]:
        return max(0.0, low), high


class LeakyRelu(Operation):
    """Multiplies values that are not positive by a slope."""

    op: Literal["leaky_relu"]
    slope: Float32 = 0.01
    """The factor, rounded to the value's type."""

    def describe(self) -> str:
        return f"leaky ReLU with slope {self.slope:g}"

    def expressions(self) -> tuple[str | Node, ...]:
        return (call("leaky_relu", name(VALUE), number(self.slope)),)


class Clamp(Operation):
    """Limits values from below, from above, or both; NaN stays NaN."""

    op: Literal["clamp"]
    low: Float32 | None = None
    """The smallest value, rounded to the value's type."""
    high: Float32 | None = None
    """The largest value, rounded to the value's type."""

    @model_validator(mode="after")
    def _in_order(self) -> Clamp:
        if self.low is None and self.high is None:
            raise ValueError("needs low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low is {self.low:g}, need at most high, {self.high:g}")
        return self

    def saturation(self, low: float, high: float) -> tuple[float, float]:
        least = low if self.low is None else min(max(self.low, low), high)
        return least, high if self.high is None else min(max(self.high, low), high)

    def describe(self) -> str:
        if self.low is not None and self.high is not None:
            return f"clamp to [{self.low:g}, {self.high:g}]"
        return f"at least {self.low:g}" if self.low is not None else f"at most {self.high:g}"

    def expressions(self) -> tuple[str | Node, ...]:
        limits = (("max", self.low), ("min", self.high))
        return tuple(call(function, name(VALUE), number(limit)) for function, limit in limits if limit is not None)


class HardSwish(Operation):
    """scale * v * min(max(v + 3, 0), 6) / 6: v in real units, and the result in those of the output."""

    op: Literal["h_swish"]
    scale: Float32 = 1.0
    """Multiplies the result: one over the output's quantisation step."""

    def describe(self) -> str:
        return "h-swish" + ("" if self.scale == 1 else f", scaled by {self.scale:g}")

    def expressions(self) -> tuple[str | Node, ...]:
        return (call("mul", parse("hard_swish(value)"), number(self.scale / 6.0)),)


class Gelu(Operation):
    """x Phi(x), with the distribution function Phi of the normal distribution or its approximation by tanh. Minus infinity gives NaN,
    as the product of infinity and 0."""

    op: Literal["gelu"]
    form: Literal["erf", "tanh"] = "erf"
    """``erf``: x (1 + erf(x / sqrt(2))) / 2; ``tanh``: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""

    def describe(self) -> str:
        return f"GELU ({self.form})"

    def expressions(self) -> tuple[str | Node, ...]:
        return ("gelu(value)" if self.form == "erf" else "gelu_tanh(value)",)


class Silu(Operation):
    """x / (1 + exp(-x)), also called swish. Minus infinity gives NaN, as the product of infinity and 0."""

    op: Literal["silu"]
    words: ClassVar[str] = "SiLU"
    formula: ClassVar[str] = "silu(value)"


class Sigmoid(Operation):
    """1 / (1 + exp(-x))."""

    op: Literal["sigmoid"]
    words: ClassVar[str] = "sigmoid"
    formula: ClassVar[str] = "sigmoid(value)"


class Tanh(Operation):
    """The hyperbolic tangent."""

    op: Literal["tanh"]
    words: ClassVar[str] = "tanh"
    formula: ClassVar[str] = "tanh(value)"


class Cast(Operation):
    """Rounds to another type. Halves and int8 are then held in float32 and int32 again, so that more operations may follow.

    Floating point becomes an integer by dropping the fraction; values that are too large become the largest integer, NaN becomes 0.
    """

    op: Literal["cast"]
    type: NumberType
    """Type that values are rounded to."""

    def describe(self) -> str:
        return f"cast to {self.type}"

    def expressions(self) -> tuple[str | Node, ...]:
        return (f"{self.type}(value)",)


Identifier = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]
StoredType = Literal["f32", "f64", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "s32", "s64", "bool"]
"""Types of arrays that formulas read and write, by their short names or those of NumPy and torch."""
OutputType = Literal["f32", "f64", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "s32", "bool"]
FormulaAxis = Literal["all", "memory", "row", "column", "group", "channel", "element"]
Reduce = Literal["sum", "max", "min", "absmax", "sum_of_squares"]

MAX_NAMES = 256
"""Operands, intermediate values and outputs of one formula: no kernel has registers for more."""
RESULTS = ("C", "y", "Y", "out", VALUE)
"""Names of the result of a kernel among the outputs of a formula."""
ALSO_NAMED = {"inputs": ("y",), "let": ("y", "out")}
"""Those that operands and intermediate values may have, too."""
PRODUCT = "acc"
"""Another name of the value before a formula."""
SECOND = "acc2"
"""The product by the second matrix, where a GEMM has two."""
COORDINATES = ("row", "column")
"""Names of the integer coordinates of an element."""
_WORDS = frozenset(
    re.split(
        " ",
        "auto bool break case char class const constexpr continue default delete do double else enum extern false float for goto if "
        "inline int long namespace new operator private public register return short signed sizeof static struct switch template this "
        "true typedef union unsigned using void volatile while",
    )
)
"""Words of C++ that look like names."""


def _short(word: object) -> Any:
    """The short name of an element type."""
    return BY_WORD.get(word, word) if isinstance(word, str) else word


class FormulaInput(SpecModel):
    """An operand of a formula. ``{scalar: f32}`` is short for a number that is passed by value, ``{pointer: f32}`` for one in memory."""

    per: FormulaAxis = "all"
    """``all``: one number, passed by value; ``memory``: one number in the device's memory; ``row``, ``column``, ``group``, ``channel``: one
    for each of them; ``element``: an array of the output's shape."""
    type: Annotated[StoredType, BeforeValidator(_short)] = "f32"
    """The type that it is stored as, independent of the output's type."""
    default: Finite | None = None
    """Value of a number where the caller gives none."""
    in_place: bool = False
    """True if callers may pass the result's array for it: each element is read before it is written."""

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, fields: object) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        require_fields(fields, ("per", "type", "default", "in_place", "scalar", "pointer"))
        for word, per in (("scalar", "all"), ("pointer", "memory")):
            if word in fields and not {"per", "type"} & set(fields):
                return {"per": per, "type": fields[word]} | {key: value for key, value in fields.items() if key != word}
        return fields

    @model_validator(mode="after")
    def _number(self) -> FormulaInput:
        if self.per == "all" and self.type not in ("f32", "f64", "s32", "s64"):
            raise FormulaError(f"a number of type {self.type}", "need f32, f64, s32 or s64; per: memory takes any type")
        if self.type == "s64" and self.per not in ("all", "memory"):
            raise FormulaError(f"values of type s64 per {self.per}", "need a number: scalar or pointer")
        if self.in_place and self.per != "element":
            raise FormulaError(f"in_place of an operand per {self.per}", "need per: element")
        if self.default is not None and self.per != "all":
            raise FormulaError(f"a default of an operand per {self.per}", "need per: all")
        return self


class FormulaOutput(SpecModel):
    """A further output of a formula: an array of the output's shape, or a reduction of all elements, of rows or of columns."""

    value: str | None = None
    """The expression that is stored."""
    of: str | None = None
    """The expression that is reduced."""
    reduce: Reduce | None = None
    """The reduction. The array is raised to a maximum or lowered to a minimum by the kernel, so that the caller says where it starts."""
    per: Literal["all", "row", "column", "channel", "element"] | None = None
    """``all``: one number; ``row``, ``column``, ``channel``: one for each of them. Without a reduction, ``element``."""
    type: Annotated[OutputType, BeforeValidator(_short)] = "f32"
    """The type that it is stored as. Reductions are float32."""

    @model_validator(mode="after")
    def _either(self) -> FormulaOutput:
        if (self.value is None) == (self.of is None) or (self.reduce is None) != (self.of is None):
            given = [one for one in ("value", "reduce", "of") if getattr(self, one) is not None]
            raise FormulaError(" with ".join(given) or "no expression", "need either value, or reduce with of")
        if self.reduce is not None and self.type != "f32":
            raise FormulaError(f"a reduction of type {self.type}", "need f32")
        if self.reduce is None and self.per not in (None, "element"):
            raise FormulaError(f"a value per {self.per}", "need reduce with of, or per: element")
        if self.per == "element" and self.reduce is not None:
            raise FormulaError("a reduction per element", "need per: all, row, column or channel")
        return self

    @property
    def text(self) -> str:
        """The expression that is stored or reduced."""
        return self.value if self.value is not None else self.of or ""


class Formula(Operation):
    """Expressions of named operands: a value, and further outputs. A whole epilogue may be one, written as a mapping of its fields."""

    op: Literal["formula"]
    value: str = VALUE
    """The expression of the new value. It may use ``value`` (or ``acc``), the operands, the names under ``let``, ``row`` and ``column``.
    Among the outputs, under the name of the result, it means the same."""
    inputs: Mapping[Identifier, FormulaInput] = Field(default_factory=dict)
    """Operands by their names, which callers pass them under."""
    let: Mapping[Identifier, str] = Field(default_factory=dict)
    """Intermediate values by their names, in any order."""
    outputs: Mapping[Identifier, FormulaOutput] = Field(default_factory=dict)
    """Further outputs by their names."""

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, fields: object) -> Any:
        """The result's expression stands among the outputs, too; an output may be an expression alone."""
        if not isinstance(fields, Mapping) or not isinstance(fields.get("outputs"), Mapping):
            return fields
        outputs = {word: {"value": one} if isinstance(one, str) else one for word, one in fields["outputs"].items()}
        results = [word for word in outputs if word in RESULTS]
        for part in ("inputs", "let"):
            if twice := [word for word in results if isinstance(fields.get(part), Mapping) and word in fields[part]]:
                raise FormulaError(f"two meanings of {twice[0]!r}, under {part} and under outputs", "need names that differ")
        if len(results) + ("value" in fields) > 1:
            names = ", ".join([*results, *(["value"] if "value" in fields else [])])
            raise FormulaError(f"two writers of the result: {names}", "need one")
        changed = dict(fields) | {"outputs": {word: one for word, one in outputs.items() if word not in results}}
        for word in results:
            one = outputs[word]
            if not isinstance(one, Mapping) or set(one) != {"value"}:
                raise FormulaError(f"{word} with fields beside its expression", "need none: the spec of the kernel says its type")
            changed["value"] = one["value"]
        return changed

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @model_validator(mode="after")
    def _goes_together(self) -> Formula:
        if (count := len(self.inputs) + len(self.let) + len(self.outputs)) > MAX_NAMES:
            raise FormulaError(f"{count:,} names under inputs, let and outputs", f"need at most {MAX_NAMES}")
        taken: dict[str, str] = {}
        known = {VALUE, PRODUCT, SECOND, *COORDINATES, *SPECIAL}
        for kind, names in (("inputs", self.inputs), ("let", self.let), ("outputs", self.outputs)):
            for word in names:
                if word in known or (word in RESULTS and word not in ALSO_NAMED.get(kind, ())):
                    raise FormulaError(f"{word!r}, which expressions know already", "need another name", kind)
                if word in known_functions() or word in extension_names():
                    raise FormulaError(f"{word!r}, which is a function", "need another name", kind)
                if iskeyword(word):
                    raise FormulaError(f"{word!r}, a word of Python's", "need another name", kind)
                own = argument_name(word)
                if own in taken:
                    raise FormulaError(f"two meanings of {word!r}, under {taken[own]} and under {kind}", "need names that differ")
                taken[own] = kind
        used = {name for assignment in self.assignments for name in assignment.node.names}
        unused = [word for word in (*self.inputs, *self.let) if word not in used]
        if unused:
            raise FormulaError(f"{unused[0]!r}, which no expression uses", "need names that an expression uses")
        return self

    @property
    def extra_outputs(self) -> Mapping[str, FormulaOutput]:
        return self.outputs

    @property
    def outcomes(self) -> Mapping[str, Assignment]:
        """The further outputs' expressions."""
        return {word: self._assignment(word, output.text) for word, output in self.outputs.items()}

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """Intermediate values in an order in which each comes before it is used, then the outputs' and the value."""
        known = {VALUE, PRODUCT, SECOND, *COORDINATES, *self.inputs, *self.let}
        pending = {word: self._assignment(word, text) for word, text in self.let.items()}
        last = [*self.outcomes.values(), self._assignment(VALUE, self.value)]
        for assignment in (*pending.values(), *last):
            for word, at in assignment.node.names.items():
                if word not in known:
                    raise FormulaError(f"the unknown name {word!r}", f"need one of {', '.join(sorted(known))}{nearest(word, known)}",
                                       place(assignment.text, at))  # fmt: skip
        parsed: list[Assignment] = []
        needed = {target: self.let.keys() & one.node.names.keys() for target, one in pending.items()}
        while pending:
            ready = [target for target in pending if needed[target].isdisjoint(pending)]
            if not ready:
                raise FormulaError(f"a cycle of {', '.join(pending)}", "need values that do not depend on themselves", "let")
            parsed += [pending.pop(target) for target in ready]
        return (*parsed, *last)

    def _assignment(self, target: str, text: str) -> Assignment:
        """An expression, in which conditions that are operands of type ``bool`` are compared with 0."""
        assignment = _assignment(target, text)
        truths = {word for word, one in self.inputs.items() if one.type == "bool"}
        return replace(assignment, node=_with_comparisons(assignment.node, truths)) if truths else assignment

    def operands(self) -> tuple[Operand, ...]:
        return tuple(
            Operand(
                word,
                "result" if one.per == "element" else one.per,
                _meaning(one.per),
                one.default,
                one.per == "element",
                one.type,
                one.in_place,
            )
            for word, one in self.inputs.items()
        )

    def transposed(self) -> Formula:
        """The operation for the transposed output."""
        other = {"row": "column", "column": "row"}
        inputs = {word: one.model_copy(update={"per": other.get(one.per, one.per)}) for word, one in self.inputs.items()}
        outputs = {}
        for word, one in self.outputs.items():
            texts = {field: _renamed(text, other) for field, text in (("value", one.value), ("of", one.of)) if text is not None}
            outputs[word] = one.model_copy(update={"per": other.get(one.per or "", one.per), **texts})
        let = {word: _renamed(text, other) for word, text in self.let.items()}
        return self.model_copy(update={"value": _renamed(self.value, other), "inputs": inputs, "let": let, "outputs": outputs})

    def in_kernels(self) -> Formula:
        """The formula with the names that kernels use for operands, intermediate values and outputs."""
        other = {word: argument_name(word) for word in (*self.inputs, *self.let, *self.outputs) if argument_name(word) != word}
        if not other:
            return self
        outputs = {}
        for word, one in self.outputs.items():
            texts = {field: _renamed(text, other) for field, text in (("value", one.value), ("of", one.of)) if text is not None}
            outputs[argument_name(word)] = one.model_copy(update=texts)
        inputs = {argument_name(word): one for word, one in self.inputs.items()}
        let = {argument_name(word): _renamed(text, other) for word, text in self.let.items()}
        return self.model_copy(update={"value": _renamed(self.value, other), "inputs": inputs, "let": let, "outputs": outputs})

    def expressions(self) -> tuple[str | Node, ...]:
        return (self.value,)

    def describe(self) -> str:
        return " ".join(self.value.split()) if self.value != VALUE else ", ".join(self.outputs)


def argument_name(word: str) -> str:
    """The name that kernels have for an operand, an intermediate value or an output: its own, with an underscore behind it where
    kernels, or C++, have the name themselves."""
    return f"{word}_" if word in _WORDS or is_reserved(word) else word


def _meaning(per: FormulaAxis) -> str:
    """The meaning of an operand in the kernel's signature."""
    numbers = {"all": "a number of the epilogue", "memory": "a number of the epilogue", "element": "an operand of the epilogue"}
    return numbers.get(per, f"one value for each {per}")


def _assignment(target: str, text: str) -> Assignment:
    return Assignment(target, parse(text), text)


def _with_comparisons(node: Node, truths: Set[str]) -> Node:
    """A tree whose conditions compare operands, which are numbers in expressions, with 0."""
    conditions = {"select": 1, "and": 2, "or": 2, "not": 1}.get(node.function, 0)
    arguments = [_with_comparisons(argument, truths) for argument in node.arguments]
    for index, argument in enumerate(arguments[:conditions]):
        if argument.name in truths:
            arguments[index] = Node(argument.at, "ne", (argument, Node(argument.at, number=0.0)))
    return replace(node, arguments=tuple(arguments))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """An expression with other names."""
    tree = parse(text)
    return written(_with_names(tree, names)) if any(word in names for word in tree.names) else text


def _with_names(node: Node, names: Mapping[str, str]) -> Node:
    if node.name:
        return Node(node.at, name=names.get(node.name, node.name))
    return Node(node.at, node.function, tuple(_with_names(argument, names) for argument in node.arguments), "", node.number)


NAMED_FORMS: Mapping[str, Mapping[str, Any]] = {"gelu_tanh": {"op": "gelu", "form": "tanh"}}
"""Names that calls may use for an operation with fields."""

OPERATIONS: tuple[type[Operation], ...] = tuple(Operation.__subclasses__())
"""All operations."""

if TYPE_CHECKING:
    AnyOperation = Operation
else:
    AnyOperation = Annotated[reduce(or_, OPERATIONS), Field(discriminator="op")]


def operations_from(fields: object) -> Any:
    """The operations of a list, or of a whole epilogue that is a mapping: a formula, or one operation."""
    if isinstance(fields, Mapping):
        if "op" not in fields:
            require_fields(fields, ("inputs", "let", "outputs", "value"))
            if not fields:
                raise FormulaError("an empty formula", "need value or outputs; a list of no operations is []")
        return (known_fields(fields) if "op" in fields else {"op": "formula", **fields},)
    if isinstance(fields, str):
        raise FormulaError(repr(fields[:40]), "need a list of operations, or the fields of a formula: {value: relu(acc)} for example")
    return tuple(known_fields(one) for one in fields) if isinstance(fields, list) else fields


def require_fields(fields: Mapping[Any, object], known: Sequence[str]) -> None:
    """Raises ``FormulaError`` for a field of a mapping that is not among those that are ``known``."""
    for word in fields:
        if isinstance(word, str) and word not in known:
            raise FormulaError(f"the unknown field {word[:40]!r}", f"need {', '.join(known[:-1])} or {known[-1]}{nearest(word, known)}")


def known_fields(fields: object) -> Any:
    """The fields of an operation, written out where another package brings it."""
    word = fields.get("op") if isinstance(fields, Mapping) and set(fields) == {"op"} else None
    if not isinstance(word, str) or word in _OWN:
        return fields
    return operation_of(word) or fields


_OWN = frozenset(get_args(one.model_fields["op"].annotation)[0] for one in OPERATIONS)
"""Names of gemmgen's own operations."""

Operations = Annotated[
    tuple[AnyOperation, ...],
    BeforeValidator(operations_from, json_schema_input_type=tuple[AnyOperation, ...] | dict[str, Any]),
    Field(max_length=16),
]
"""The field of a spec that lists operations, or is a formula."""
