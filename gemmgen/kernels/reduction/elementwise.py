"""Operations on single elements: before they are reduced, and on each result.

An operation is one class here and one macro of the same name in ``templates/reduction/elementwise.cu.j2``. The class states
the spec's fields, which types it works on and what it does to a reference value and its error bound.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AllowInfNan, Field

from gemmgen.core.elements import BY_WORD, ELEMENTS, FLOATS, DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.family import SpecModel
from gemmgen.kernels.launch import Argument, ArrayArgument, ScalarArgument
from gemmgen.kernels.reduction.numbers import Tracked, clear_bounds, rounded, to_type

if TYPE_CHECKING:
    import numpy.typing as npt

NumberType = Literal["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"]
DATA_TYPES: dict[str, DataType] = {word: BY_WORD[word] for word in get_args(NumberType)} | {"bool": "u8"}
"""The types of a spec as those of a launch sequence; truth values are bytes, 0 or 1."""

EXPONENTIAL_ULPS = {"f32": 1.0, "f64": 1.0}
"""Error of the exponential functions that the kernels use, in units of the last place: the generated float32 one stays
below 1, which a test measures; for CUDA's float64 ``exp`` its Programming Guide states 1."""


class Elementwise(SpecModel):
    """One operation on one value."""

    op: str

    def problem(self, kind: DataType, place: Literal["prologue", "epilogue"]) -> tuple[str, str] | None:
        """Why it cannot be applied to a value of type ``kind``: (what it got, what it needs); None if it can."""
        return None

    def result_type(self, kind: DataType) -> DataType:
        """The type that the value has afterwards; halves are held in float32."""
        return kind

    @property
    def becomes_integer(self) -> bool:
        """Whether the value is an integer afterwards, whatever it was."""
        return False

    def arguments(self, index: int, kind: DataType) -> tuple[Argument, ...]:
        """Kernel arguments that the operation adds; ``index`` counts the operations of its kind, from 0."""
        return ()

    @abstractmethod
    def describe(self) -> str:
        """The operation in a few words."""

    @abstractmethod
    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        """Value, bound and type after the operation."""


def needs_float(kind: DataType) -> tuple[str, str] | None:
    """The complaint about a value that is no float."""
    return None if kind in FLOATS else ("an integer value", "a floating-point value: cast to float32 or float64 before it")


class Scale(Elementwise):
    """Multiplies by a constant."""

    op: Literal["scale"]
    factor: Annotated[float, AllowInfNan(False)]
    """The constant; for integer values, an integer."""

    def problem(self, kind: DataType, place: str) -> tuple[str, str] | None:
        if kind in FLOATS:
            largest = ELEMENTS["f32"].limits[1]
            fits = kind == "f64" or abs(self.factor) <= largest
            return None if fits else (f"a float32 value by {self.factor:g}", f"a factor of at most {largest:g}, the largest float32")
        whole = self.factor.is_integer() and abs(self.factor) < 2**31
        return None if whole else (f"an integer value by {self.factor:g}", "an integer factor below 2**31, or a cast before it")

    def describe(self) -> str:
        return f"scale by {self.factor:g}"

    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        import numpy as np

        if value.kind not in FLOATS:
            return value.with_integers(value.value * value.value.dtype.type(int(self.factor)))
        factor = float(np.float32(self.factor)) if value.kind == "f32" else self.factor
        return rounded(value.value * factor, value.bound * abs(factor), value.kind)


class Square(Elementwise):
    """Multiplies with itself."""

    op: Literal["square"]

    def describe(self) -> str:
        return "square"

    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        import numpy as np

        if value.kind not in FLOATS:
            return value.with_integers(value.value * value.value)
        bound = value.bound * (2 * np.abs(value.value) + value.bound)
        return rounded(value.value * value.value, clear_bounds(bound), value.kind)


class Abs(Elementwise):
    """The absolute value; the smallest integer of a type stays itself."""

    op: Literal["abs"]

    def describe(self) -> str:
        return "absolute value"

    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        import numpy as np

        return Tracked(np.abs(value.value), value.bound, value.kind)


class Exp(Elementwise):
    """e to the power of the value."""

    op: Literal["exp"]

    def problem(self, kind: DataType, place: str) -> tuple[str, str] | None:
        return needs_float(kind)

    def describe(self) -> str:
        return "exp"

    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        import numpy as np

        result = np.exp(value.value)
        bound = clear_bounds(result * np.expm1(value.bound))
        return rounded(result, bound, value.kind, ulps=2 * EXPONENTIAL_ULPS[value.kind])


class Sqrt(Elementwise):
    """The square root; NaN for negative values."""

    op: Literal["sqrt"]

    def problem(self, kind: DataType, place: str) -> tuple[str, str] | None:
        return needs_float(kind)

    def describe(self) -> str:
        return "square root"

    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        return square_root(value)


class Relu(Elementwise):
    """Replaces negative values by zero; NaN stays NaN."""

    op: Literal["relu"]

    def describe(self) -> str:
        return "ReLU"

    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        import numpy as np

        return Tracked(np.where(value.value < 0, value.value.dtype.type(0), value.value), value.bound, value.kind)


class Bias(Elementwise):
    """Adds one number to all results, or one to each."""

    op: Literal["bias"]
    per: Literal["all", "result"] = "all"
    """``all``: a single number; ``result``: an array of the shape of the output."""

    def problem(self, kind: DataType, place: str) -> tuple[str, str] | None:
        return ("an element", "a place in the epilogue: a bias is added to results") if place == "prologue" else None

    def arguments(self, index: int, kind: DataType) -> tuple[Argument, ...]:
        name = "bias" if index == 0 else f"bias{index + 1}"
        if self.per == "all":
            return (ScalarArgument(name, kind, "added to every result", default=0),)
        size = Formula("1")
        return (ArrayArgument(name, kind, "input", (size,), (size,), 1, "added to the results, one to each"),)

    def describe(self) -> str:
        return "bias, the same for all" if self.per == "all" else "bias for each result"

    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        if value.kind not in FLOATS:
            return value.with_integers(value.value + arguments[0].astype(value.value.dtype))
        return rounded(value.value + arguments[0].astype(value.value.dtype), value.bound, value.kind)


class Cast(Elementwise):
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

    def reference(self, value: Tracked, arguments: tuple[npt.NDArray[Any], ...]) -> Tracked:
        return to_type(value, DATA_TYPES[self.type])


def square_root(value: Tracked) -> Tracked:
    """The square root of tracked values."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        root = np.sqrt(value.value)
        # |sqrt(v + e) - sqrt(v)| = |e| / (sqrt(v + e) + sqrt(v)) <= |e| / sqrt(v), and <= sqrt(|e|).
        bound = np.sqrt(value.bound)
        bound = np.minimum(bound, np.divide(value.bound, root, out=bound.copy(), where=root > 0))
    return rounded(root, clear_bounds(bound), value.kind)


if TYPE_CHECKING:
    AnyElementwise = Elementwise
else:
    AnyElementwise = Annotated[reduce(or_, Elementwise.__subclasses__()), Field(discriminator="op")]
