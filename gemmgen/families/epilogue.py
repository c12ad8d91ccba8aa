"""The operations that a kernel can apply to each result before storing it, in the order that the spec lists them.

An operation is one class here and one macro of the same name in ``templates/common/epilogue.cu.j2``. The class states the
spec's fields, the kernel arguments it adds and what it does to a float64 reference; the macro writes the CUDA statement.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AllowInfNan, Field

from gemmgen.families.base import SpecModel
from gemmgen.formula import Formula
from gemmgen.launch import Argument, ArrayArgument, ScalarArgument

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-24
"""Of float32, rounding to nearest."""

SMALLEST = 2.0**-149
"""The smallest positive float32, and the largest error of a rounding in the subnormal range."""

Float32 = Annotated[float, AllowInfNan(False), Field(ge=-3.4028234e38, le=3.4028234e38)]
"""A finite number that float32 can hold after rounding."""


class EpilogueOperation(SpecModel):
    """One operation on the values of the result, element by element."""

    op: str

    def arguments(self, index: int) -> tuple[Argument, ...]:
        """Kernel arguments that the operation adds; ``index`` counts the operations of its kind, from 0."""
        return ()

    @abstractmethod
    def describe(self) -> str:
        """The operation in a few words."""

    @abstractmethod
    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        """Value and error bound after the operation, from those before it and the operation's arguments.

        ``arguments`` are float64 and broadcast against ``value``. The bound grows by the operation's condition and by one
        rounding of its result.
        """

    @abstractmethod
    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        """The operation in place on a torch tensor (m x n): what a user of a vendor library would write after its call."""


def rounded(value: Array, bound: Array) -> tuple[Array, Array]:
    """A computed value and its error bound after one rounding to float32.

    Where the bound is still 0 and float32 holds the value, the rounding is exact and the bound stays 0: such elements are
    then compared for equality.
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        inexact = (bound > 0) | (value.astype(np.float32) != value)
        grown = bound + UNIT_ROUNDOFF * (np.abs(value) + bound) + SMALLEST
    return value, np.where(inexact & np.isfinite(value), grown, bound)


class Scale(EpilogueOperation):
    """Multiplies by a constant."""

    op: Literal["scale"]
    factor: Float32
    """The constant, rounded to float32."""

    def describe(self) -> str:
        return f"scale by {self.factor:g}"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        import numpy as np

        factor = float(np.float32(self.factor))
        return rounded(value * factor, bound * abs(factor))

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.mul_(self.factor)


class Bias(EpilogueOperation):
    """Adds a value for each row, for each column, or one for all."""

    op: Literal["bias"]
    per: Literal["row", "column", "all"]
    """``row``: a vector of m values; ``column``: a vector of n values; ``all``: a single number."""

    def arguments(self, index: int) -> tuple[Argument, ...]:
        name = "bias" if index == 0 else f"bias{index + 1}"
        if self.per == "all":
            return (ScalarArgument(name, "f32", "added to every element", default=0.0),)
        extent, meaning = ("m", "one value for each row") if self.per == "row" else ("n", "one value for each column")
        return (ArrayArgument(name, "f32", "input", (Formula(extent),), (Formula("1"),), 4, meaning),)

    def describe(self) -> str:
        return "bias, the same for all" if self.per == "all" else f"bias per {self.per}"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        return rounded(value + arguments[0], bound)

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.add_(arguments[0][:, None] if self.per == "row" else arguments[0])


class Relu(EpilogueOperation):
    """Replaces negative values by zero; NaN stays NaN."""

    op: Literal["relu"]

    def describe(self) -> str:
        return "ReLU"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        import numpy as np

        return np.where(value < 0, 0.0, value), bound

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.relu_()


if TYPE_CHECKING:
    AnyEpilogueOperation = EpilogueOperation
else:
    AnyEpilogueOperation = Annotated[reduce(or_, EpilogueOperation.__subclasses__()), Field(discriminator="op")]


def epilogue_arguments(operations: Sequence[EpilogueOperation]) -> tuple[tuple[Argument, ...], ...]:
    """The kernel arguments of each operation, with names that no two share."""
    seen: dict[str, int] = {}
    arguments = []
    for operation in operations:
        index = seen.get(operation.op, 0)
        seen[operation.op] = index + 1
        arguments.append(operation.arguments(index))
    return tuple(arguments)


def apply_reference(
    operations: Sequence[EpilogueOperation],
    value: Array,
    bound: Array,
    arguments: Mapping[str, Any],
) -> tuple[Array, Array]:
    """Value (m x n) and error bound after all operations; ``arguments`` maps names to vectors or numbers."""
    import numpy as np

    for operation, declared in zip(operations, epilogue_arguments(operations), strict=True):
        shaped = []
        for argument in declared:
            given = np.asarray(arguments[argument.name], dtype=np.float64)
            per_row = isinstance(argument, ArrayArgument) and argument.shape[0].text == "m"
            shaped.append(given[:, None] if per_row else given)
        value, bound = operation.reference(value, bound, shaped)
    return value, bound
