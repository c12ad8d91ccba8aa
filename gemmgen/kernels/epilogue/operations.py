"""The registry of operations on single elements: what a kernel applies to elements before they are reduced, or to results before
they are stored, in the order that the spec lists them.

An operation is one class here and one macro of the same name in ``templates/epilogue/operations.cu.j2``. The class states the
spec's fields, what it reads beside the value, which types it works on, its reference with an error bound, and what a user of torch
would write; the macro writes the CUDA statement. Every family takes all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import erfc, pi, sqrt
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AllowInfNan, Field, model_validator

from gemmgen.core.elements import BY_WORD, ELEMENTS, FLOATS, DataType
from gemmgen.kernels.accuracy import LIBRARY_ERROR, SMALLEST, UNIT_ROUNDOFF
from gemmgen.kernels.epilogue.numbers import Tracked, clear_bounds, fused_multiply_add, rounded, to_type
from gemmgen.kernels.family import SpecModel

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

Finite = Annotated[float, AllowInfNan(False)]
Float32 = Annotated[float, AllowInfNan(False), Field(ge=-3.4028234e38, le=3.4028234e38)]
"""A finite number that float32 can hold after rounding."""

NumberType = Literal["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"]
DATA_TYPES: dict[str, DataType] = {word: BY_WORD[word] for word in get_args(NumberType)} | {"bool": "u8"}
"""The types of a spec as those of a launch sequence; truth values are bytes, 0 or 1."""

Axis = Literal["all", "memory", "row", "column", "channel", "result"]
"""Along which values an operand differs: ``all``: a single number, passed by value; ``memory``: a single number that a kernel before this
one left in the device's memory; ``row``, ``column``: one value for each row, for each column; ``channel``: one for each channel of an
image; ``result``: one for each result. A family has those that its output has."""

INVERSE_LARGEST = 2.0**-128
"""The value at which ``expf`` overflows: 1 / (1 + exp(-x)) is below this, the inverse of the largest float32, and becomes 0."""

EXPONENTIAL_ULPS = 1.0
"""Error of the exponential functions that the kernels use, in units of the last place: the generated float32 one stays
below 1, which a test measures; for CUDA's float64 ``exp`` its Programming Guide states 1."""

Complaint = tuple[str, str]
"""Reason against an operation: what it got, and what it needs."""


@dataclass(frozen=True)
class Operand:
    """A value that an operation reads beside the one that it changes."""

    name: str
    per: Axis
    meaning: str
    default: float | None = None
    """Value of a number where the caller gives none."""
    like_output: bool = False
    """True if it is an array of the output's shape with strides of its own."""
    stored: DataType | None = None
    """The type of a matrix's vectors of it, whatever the matrix holds; None: the matrix decides."""


class Operation(SpecModel):
    """One operation on one value."""

    op: str

    approximate: ClassVar[bool] = False
    """True where it calls a function of the CUDA math library. Those are built on approximate instructions, which the emulator
    rounds correctly and a GPU nearly so: within the error bound, but not with the same bits."""

    special: ClassVar[int] = 0
    """Special functions that it takes at least: 2^x, square roots, reciprocals, which processors have units of their own for."""

    def operands(self) -> tuple[Operand, ...]:
        """Operands that the operation reads beside the value, with the names that the first operation of its kind gives them."""
        return ()

    @property
    def constants(self) -> Mapping[str, float]:
        """Numbers of the spec that the macro writes."""
        return {}

    def problem(self, kind: DataType) -> Complaint | None:
        """Reason against applying it to a value of type ``kind``; None if it can."""
        return None

    def result_type(self, kind: DataType) -> DataType:
        """The type that the value has afterwards; halves are held in float32."""
        return kind

    @property
    def becomes_integer(self) -> bool:
        """True where the value is an integer afterwards, whatever it was."""
        return False

    def saturation(self, low: float, high: float) -> tuple[float, float] | None:
        """Bounds that do the same as the operation with saturation to [low, high] after it; None if none do."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """The operation in a few words."""

    @abstractmethod
    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        """Value, bound and type after the operation. ``operands`` broadcast against the value.

        The bound grows by the operation's condition (how much a change of the value changes the result) and by the rounding
        errors of its evaluation.
        """

    @abstractmethod
    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        """The operation on a torch tensor, in place where torch can: what a user of a vendor library would write after its call."""


def needs_float(kind: DataType) -> Complaint | None:
    """The complaint about a value that is no float."""
    return None if kind in FLOATS else ("an integer value", "a floating-point value: cast to float32 or float64 before it")


def needs_float32(kind: DataType) -> Complaint | None:
    """The complaint about a value that is no float32, for functions whose error is known in float32 alone."""
    return None if kind == "f32" else (f"a value of type {ELEMENTS[kind].word}", "a float32 value: cast to float32 before it")


class Scale(Operation):
    """Multiplies by a constant."""

    op: Literal["scale"]
    factor: Finite
    """The constant, rounded to the value's type; for integer values, an integer."""

    @property
    def constants(self) -> Mapping[str, float]:
        return {"factor": self.factor}

    def problem(self, kind: DataType) -> Complaint | None:
        return _constant_problem(kind, self.factor, "by", "factor")

    def describe(self) -> str:
        return f"scale by {self.factor:g}"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        if value.kind not in FLOATS:
            return value.with_integers(value.value * value.value.dtype.type(int(self.factor)))
        factor = _held(self.factor, value.kind)
        return rounded(value.value * factor, value.bound * abs(factor), value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.mul_(self.factor)


_PLACES = {"all": ", the same for all", "memory": ", the same for all, from memory"}
"""Words for a single number."""


class Factor(Operation):
    """Multiplies by a number, the same for all values or one for each row, column, channel or result: scales of quantised factors. Those of
    rows, columns, channels and in memory are float32."""

    op: Literal["factor"]
    per: Axis = "all"

    def operands(self) -> tuple[Operand, ...]:
        if self.per == "all":
            return (Operand("factor", "all", "multiplies every element", default=1.0),)
        meaning = "multiplies every element" if self.per == "memory" else f"one factor for each {self.per}"
        return (Operand("factor", self.per, meaning, stored=None if self.per == "result" else "f32"),)

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float(kind)

    def describe(self) -> str:
        return f"factor{_PLACES.get(self.per, f' per {self.per}')}"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        factors = operands[0].astype(value.value.dtype)
        return rounded(value.value * factors, clear_bounds(value.bound * np.abs(factors)), value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.mul_(operands[0])


class Bias(Operation):
    """Adds a number, the same for all values or one for each row, column, channel or result."""

    op: Literal["bias"]
    per: Axis = "all"

    def operands(self) -> tuple[Operand, ...]:
        if self.per == "all":
            return (Operand("bias", "all", "added to every element", default=0.0),)
        return (Operand("bias", self.per, "added to every element" if self.per == "memory" else f"one value for each {self.per}"),)

    def describe(self) -> str:
        return f"bias{_PLACES.get(self.per, f' per {self.per}')}"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        total = value.value + operands[0].astype(value.value.dtype)
        return rounded(total, value.bound, value.kind) if value.kind in FLOATS else value.with_integers(total)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.add_(operands[0])


class Residual(Operation):
    """Adds gamma times an array Z of the output's shape, which has strides of its own. Z is always read."""

    op: Literal["residual"]

    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand("gamma", "all", "factor of {Z}", default=1.0),
            Operand("Z", "result", "added to the results", like_output=True),
        )

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float(kind)

    def describe(self) -> str:
        return "residual gamma Z"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        gamma, residual = (operand.astype(value.value.dtype) for operand in operands)
        if value.kind == "f32":
            exact = fused_multiply_add(gamma, residual, value.value)
            return rounded(exact, value.bound, value.kind)
        product = gamma * residual
        return rounded(value.value + product, value.bound + abs(product) * 2.0**-60, value.kind, ulps=2.0)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.add_(operands[1], alpha=operands[0])


class Multiply(Operation):
    """Multiplies by the elements of an array of the output's shape, such as a gate."""

    op: Literal["multiply"]

    def operands(self) -> tuple[Operand, ...]:
        return (Operand("F", "result", "factors of the results", like_output=True),)

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float(kind)

    def describe(self) -> str:
        return "product with F"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        factors = operands[0].astype(value.value.dtype)
        return rounded(value.value * factors, clear_bounds(value.bound * np.abs(factors)), value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.mul_(operands[0])


class Square(Operation):
    """Multiplies with itself."""

    op: Literal["square"]

    def describe(self) -> str:
        return "square"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        if value.kind not in FLOATS:
            return value.with_integers(value.value * value.value)
        bound = value.bound * (2 * np.abs(value.value) + value.bound)
        return rounded(value.value * value.value, clear_bounds(bound), value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.square_()


class Abs(Operation):
    """The absolute value; the smallest integer of a type stays itself."""

    op: Literal["abs"]

    def describe(self) -> str:
        return "absolute value"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        return Tracked(np.abs(value.value), value.bound, value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.abs_()


class Exp(Operation):
    """e to the power of the value."""

    op: Literal["exp"]

    special: ClassVar[int] = 1

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float(kind)

    def describe(self) -> str:
        return "exp"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        result = np.exp(value.value)
        bound = clear_bounds(result * np.expm1(value.bound))
        return rounded(result, bound, value.kind, ulps=2 * EXPONENTIAL_ULPS)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.exp_()


class Sqrt(Operation):
    """The square root; NaN for negative values."""

    op: Literal["sqrt"]

    special: ClassVar[int] = 1

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float(kind)

    def describe(self) -> str:
        return "square root"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        return square_root(value)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.sqrt_()


class Relu(Operation):
    """Replaces negative values by zero; NaN stays NaN."""

    op: Literal["relu"]

    def describe(self) -> str:
        return "ReLU"

    def saturation(self, low: float, high: float) -> tuple[float, float]:
        return max(0.0, low), high

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        return Tracked(np.where(value.value < 0, value.value.dtype.type(0), value.value), value.bound, value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.relu_()


class LeakyRelu(Operation):
    """Multiplies what is not positive by a slope."""

    op: Literal["leaky_relu"]
    slope: Float32 = 0.01
    """The factor, rounded to the value's type."""

    @property
    def constants(self) -> Mapping[str, float]:
        return {"slope": self.slope}

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float(kind)

    def describe(self) -> str:
        return f"leaky ReLU with slope {self.slope:g}"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        slope = _held(self.slope, value.kind)
        below = rounded(value.value * slope, value.bound * max(1.0, abs(slope)), value.kind)
        # A value within its bound of 0 may have taken either branch.
        bound = np.where(value.value > value.bound, value.bound, np.maximum(value.bound, below.bound))
        return Tracked(np.where(value.value > 0, value.value, below.value), bound, value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        from torch.nn.functional import leaky_relu_

        return leaky_relu_(values, self.slope)


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

    @property
    def constants(self) -> Mapping[str, float]:
        return {name: limit for name, limit in (("low", self.low), ("high", self.high)) if limit is not None}

    def problem(self, kind: DataType) -> Complaint | None:
        found = (_constant_problem(kind, limit, "to", "limit") for limit in self.constants.values())
        return next((complaint for complaint in found if complaint is not None), None)

    def saturation(self, low: float, high: float) -> tuple[float, float]:
        least = low if self.low is None else min(max(self.low, low), high)
        return least, high if self.high is None else min(max(self.high, low), high)

    def describe(self) -> str:
        if self.low is not None and self.high is not None:
            return f"clamp to [{self.low:g}, {self.high:g}]"
        return f"at least {self.low:g}" if self.low is not None else f"at most {self.high:g}"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        result = value.value
        if self.low is not None:
            low = result.dtype.type(_held(self.low, value.kind))
            result = np.where(result < low, low, result)
        if self.high is not None:
            high = result.dtype.type(_held(self.high, value.kind))
            result = np.where(result > high, high, result)
        return Tracked(result, value.bound, value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.clamp_(self.low, self.high)


class HardSwish(Operation):
    """scale * v * min(max(v + 3, 0), 6) / 6: v in real units, and the result in those of the output."""

    op: Literal["h_swish"]
    scale: Float32 = 1.0
    """Multiplies the result: one over the output's quantisation step."""

    @property
    def constants(self) -> Mapping[str, float]:
        return {"factor": self.scale / 6.0}

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float(kind)

    def describe(self) -> str:
        return "h-swish" + ("" if self.scale == 1 else f", scaled by {self.scale:g}")

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        factor = _held(self.scale / 6.0, value.kind)
        shifted = rounded(value.value + 3, value.bound, value.kind)
        gate = np.clip(shifted.value, 0.0, 6.0)
        bound = value.bound * 6 + shifted.bound * (np.abs(value.value) + value.bound)
        product = rounded(value.value * gate, clear_bounds(bound), value.kind)
        return rounded(product.value * factor, product.bound * abs(factor), value.kind)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        from torch.nn.functional import hardswish

        return hardswish(values, inplace=True).mul_(self.scale)


class Gelu(Operation):
    """x Phi(x), with the distribution function Phi of the normal distribution or its approximation by tanh. Minus infinity gives NaN,
    as the product of infinity and 0."""

    op: Literal["gelu"]

    special: ClassVar[int] = 1
    form: Literal["erf", "tanh"] = "erf"
    """``erf``: x (1 + erf(x / sqrt(2))) / 2; ``tanh``: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""

    approximate: ClassVar[bool] = True

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float32(kind)

    def describe(self) -> str:
        return f"GELU ({self.form})"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        x = value.value
        if self.form == "erf":
            tail = np.vectorize(erfc, otypes=[np.float64])(-x / sqrt(2))
        else:
            tail = 1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))
        # The slope is at most 1.13. The relative error of the inner argument z (2 roundings for erf, at most 7 for tanh) changes
        # erf(z) by at most 0.49 and tanh(z) by at most 0.45 of itself; then come the function, at most 1 in size, the sum, at most
        # 2, the factor |x| / 2, and the rounding of the product.
        inner = 0.49 * 2 if self.form == "erf" else 0.45 * 7
        factor = (inner * UNIT_ROUNDOFF + LIBRARY_ERROR + 2 * UNIT_ROUNDOFF) / 2 + UNIT_ROUNDOFF
        return _evaluated(value, 0.5 * x * tail, 1.13, factor * (np.abs(x) + value.bound))

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        from torch.nn.functional import gelu

        return values.copy_(gelu(values, approximate="tanh" if self.form == "tanh" else "none"))


class Silu(Operation):
    """x / (1 + exp(-x)), also called swish. Minus infinity gives NaN, as the quotient of two infinities."""

    op: Literal["silu"]

    special: ClassVar[int] = 2

    approximate: ClassVar[bool] = True

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float32(kind)

    def describe(self) -> str:
        return "SiLU"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        result = value.value / (1 + np.exp(-value.value))
        # The slope is at most 1.1. The errors of the exponential, the sum and the quotient are relative to the result. Where the
        # exponential overflows, beyond x = -88.7, the result is 0; x exp(x) is then less than 2^7 / the largest float32.
        error = (LIBRARY_ERROR + 2 * UNIT_ROUNDOFF) * (np.abs(result) + 1.1 * value.bound) + 2**7 * INVERSE_LARGEST
        return _evaluated(value, result, 1.1, error)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        from torch.nn.functional import silu

        return silu(values, inplace=True)


class Sigmoid(Operation):
    """1 / (1 + exp(-x))."""

    op: Literal["sigmoid"]

    special: ClassVar[int] = 2

    approximate: ClassVar[bool] = True

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float32(kind)

    def describe(self) -> str:
        return "sigmoid"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        result = 1 / (1 + np.exp(-value.value))
        error = (LIBRARY_ERROR + 2 * UNIT_ROUNDOFF) * (result + 0.25 * value.bound) + INVERSE_LARGEST
        return _evaluated(value, result, 0.25, error)

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.sigmoid_()


class Tanh(Operation):
    """The hyperbolic tangent."""

    op: Literal["tanh"]

    special: ClassVar[int] = 2

    approximate: ClassVar[bool] = True

    def problem(self, kind: DataType) -> Complaint | None:
        return needs_float32(kind)

    def describe(self) -> str:
        return "tanh"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        import numpy as np

        result = np.tanh(value.value)
        return _evaluated(value, result, 1.0, LIBRARY_ERROR * (np.abs(result) + value.bound))

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        return values.tanh_()


class Cast(Operation):
    """Rounds to another type. Halves and int8 are then held in float32 and int32 again, so that more operations may follow.

    Floating point becomes an integer by dropping the fraction; what is too large becomes the largest, NaN becomes 0.
    """

    op: Literal["cast"]
    type: NumberType

    def result_type(self, kind: DataType) -> DataType:
        return ELEMENTS[DATA_TYPES[self.type]].computed_in

    @property
    def becomes_integer(self) -> bool:
        return DATA_TYPES[self.type] not in FLOATS

    def describe(self) -> str:
        return f"cast to {self.type}"

    def reference(self, value: Tracked, operands: Sequence[Array]) -> Tracked:
        return to_type(value, DATA_TYPES[self.type])

    def apply_torch(self, values: Any, operands: Sequence[Any]) -> Any:
        import torch

        return values.to(getattr(torch, self.type)).to(values.dtype)


OPERATIONS: tuple[type[Operation], ...] = tuple(Operation.__subclasses__())
"""All operations."""

if TYPE_CHECKING:
    AnyOperation = Operation
else:
    AnyOperation = Annotated[reduce(or_, OPERATIONS), Field(discriminator="op")]


def square_root(value: Tracked, *, of_squares: bool = False) -> Tracked:
    """The square root of tracked values.

    Where a bound leaves the sign open, so is whether the root is NaN: nothing is known of it. ``of_squares``: the kernel adds up
    squares, which no error makes negative.
    """
    import numpy as np

    with np.errstate(invalid="ignore"):
        root = np.sqrt(value.value)
        # |sqrt(v + e) - sqrt(v)| = |e| / (sqrt(v + e) + sqrt(v)) <= |e| / sqrt(v), and <= sqrt(|e|).
        bound = np.sqrt(value.bound)
        bound = np.minimum(bound, np.divide(value.bound, root, out=bound.copy(), where=root > 0))
        if not of_squares:
            unknown = (value.bound > 0) & (np.abs(value.value) <= value.bound)
            root, bound = np.where(unknown, 0.0, root), np.where(unknown, np.inf, bound)
            bound = np.where(value.value < -value.bound, 0.0, bound)  # NaN for certain
    return rounded(root, clear_bounds(bound), value.kind)


def _constant_problem(kind: DataType, number: float, how: str, what: str) -> Complaint | None:
    if kind in FLOATS:
        largest = ELEMENTS[kind].limits[1]
        got = f"a {ELEMENTS[kind].word} value {how} {number:g}"
        return None if abs(number) <= largest else (got, f"a {what} of at most {largest:.7e}, the largest {ELEMENTS[kind].word}")
    whole = float(number).is_integer() and abs(number) < 2**31
    return None if whole else (f"an integer value {how} {number:g}", f"an integer {what} below 2**31, or a cast before it")


def _held(number: float, kind: DataType) -> float:
    """A constant as values of ``kind`` hold it."""
    import numpy as np

    return float(np.float32(number)) if kind == "f32" else number


def _evaluated(value: Tracked, result: Array, slope: float, error: Array) -> Tracked:
    """A float32 function's ``result``: the incoming bound times its largest slope, and the ``error`` of evaluating it.

    What an infinite or NaN value gives is exact.
    """
    import numpy as np

    bound = np.where(np.isfinite(value.value), slope * value.bound + error + SMALLEST, value.bound)
    return Tracked(result, bound, value.kind)
