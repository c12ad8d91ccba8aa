"""The operations that a kernel can apply to each result before storing it, in the order that the spec lists them.

An operation is one class here and one macro of the same name in ``templates/common/epilogue.cu.j2``. The class states the
spec's fields, the kernel arguments it adds and what it does to a float64 reference; the macro writes the CUDA statement.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import erfc, pi, sqrt
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AllowInfNan, Field, model_validator

from gemmgen.core.formulas import Formula
from gemmgen.kernels.accuracy import LIBRARY_ERROR, SMALLEST, UNIT_ROUNDOFF, rounded
from gemmgen.kernels.family import SpecModel
from gemmgen.kernels.launch import ArrayArgument, ScalarArgument
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    from gemmgen.kernels.accuracy import Array

Float32 = Annotated[float, AllowInfNan(False), Field(ge=-3.4028234e38, le=3.4028234e38)]
"""A finite number that float32 can hold after rounding."""

INVERSE_LARGEST = 2.0**-128
"""Where ``expf`` overflows, 1 / (1 + exp(-x)) is below this, the inverse of the largest float32, and becomes 0."""


class EpilogueOperation(SpecModel):
    """One operation on the values of the result, element by element."""

    op: str

    approximate: ClassVar[bool] = False
    """Whether it calls a function of the CUDA math library. Those are built on approximate instructions, which the emulator
    rounds correctly and a GPU nearly so: within the error bound, but not with the same bits."""

    def arguments(self, index: int, output: Matrix) -> tuple[ScalarArgument | ArrayArgument, ...]:
        """Scalars and vectors that the operation adds; ``index`` counts the operations of its kind, from 0."""
        return ()

    def matrices(self, index: int, output: Matrix) -> tuple[Matrix, ...]:
        """Matrices that it reads element by element, beside the ``output``."""
        return ()

    @property
    def coordinates(self) -> tuple[Literal["row", "column"], ...]:
        """Which coordinates of an element the operation looks at."""
        return ()

    @abstractmethod
    def describe(self) -> str:
        """The operation in a few words."""

    @abstractmethod
    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        """Value and error bound after the operation, from those before it and the operation's arguments, matrices last.

        ``arguments`` are float64 and broadcast against ``value``. The bound grows by the operation's condition (how much a
        change of the value changes the result) and by the rounding errors of its evaluation.
        """

    @abstractmethod
    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        """The operation in place on a torch tensor (m x n): what a user of a vendor library would write after its call."""


class Scale(EpilogueOperation):
    """Multiplies by a constant."""

    op: Literal["scale"]
    factor: Float32
    """The constant, rounded to float32."""

    def describe(self) -> str:
        return f"scale by {self.factor:g}"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        factor = _float32(self.factor)
        return rounded(value * factor, bound * abs(factor))

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.mul_(self.factor)


class Bias(EpilogueOperation):
    """Adds a value for each row, for each column, or one for all. Vectors are stored like C."""

    op: Literal["bias"]
    per: Literal["row", "column", "all"]
    """``row``: a vector of m values; ``column``: a vector of n values; ``all``: a single number."""

    def arguments(self, index: int, output: Matrix) -> tuple[ScalarArgument | ArrayArgument, ...]:
        name = numbered("bias", index)
        if self.per == "all":
            return (ScalarArgument(name, "f32", "added to every element", default=0.0),)
        extent, meaning = ("m", "one value for each row") if self.per == "row" else ("n", "one value for each column")
        vector = ArrayArgument(name, output.type, "input", (Formula(extent),), (Formula("1"),), output.element_bytes, meaning)
        return (vector,)

    @property
    def coordinates(self) -> tuple[Literal["row", "column"], ...]:
        return () if self.per == "all" else (self.per,)

    def describe(self) -> str:
        return "bias, the same for all" if self.per == "all" else f"bias per {self.per}"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        return rounded(value + arguments[0], bound)

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.add_(arguments[0][:, None] if self.per == "row" else arguments[0])


class Residual(EpilogueOperation):
    """Adds gamma times a matrix Z of C's shape, stored like C with a leading dimension of its own. Z is always read."""

    op: Literal["residual"]

    def arguments(self, index: int, output: Matrix) -> tuple[ScalarArgument | ArrayArgument, ...]:
        name, matrix = numbered("gamma", index), numbered("Z", index)
        return (ScalarArgument(name, "f32", f"factor of {matrix}", default=1.0),)

    def matrices(self, index: int, output: Matrix) -> tuple[Matrix, ...]:
        stride = output.batch_stride and numbered("stride_z", index)
        return (replace(output, name=numbered("Z", index), leading_dimension=numbered("ldz", index), batch_stride=stride),)

    def describe(self) -> str:
        return "residual gamma Z"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        gamma, residual = arguments
        scaled, scaled_bound = rounded(gamma * residual, bound * 0)
        return rounded(value + scaled, bound + scaled_bound)

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.add_(arguments[1], alpha=arguments[0])


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


class LeakyRelu(EpilogueOperation):
    """Multiplies what is not positive by a slope."""

    op: Literal["leaky_relu"]
    slope: Float32 = 0.01
    """The factor, rounded to float32."""

    def describe(self) -> str:
        return f"leaky ReLU with slope {self.slope:g}"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        import numpy as np

        slope = _float32(self.slope)
        below, below_bound = rounded(value * slope, bound * max(1.0, abs(slope)))
        # A value within its bound of 0 may have taken either branch.
        return np.where(value > 0, value, below), np.where(value > bound, bound, np.maximum(bound, below_bound))

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        from torch.nn.functional import leaky_relu_

        leaky_relu_(values, self.slope)


class Clamp(EpilogueOperation):
    """Limits values from below, from above, or both; NaN stays NaN."""

    op: Literal["clamp"]
    low: Float32 | None = None
    """The smallest value, rounded to float32."""
    high: Float32 | None = None
    """The largest value, rounded to float32."""

    @model_validator(mode="after")
    def _in_order(self) -> Clamp:
        if self.low is None and self.high is None:
            raise ValueError("needs low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low is {self.low:g}, need at most high, {self.high:g}")
        return self

    def describe(self) -> str:
        limits = [f"at least {self.low:g}"] if self.low is not None else []
        limits += [f"at most {self.high:g}"] if self.high is not None else []
        return " and ".join(limits)

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        import numpy as np

        if self.low is not None:
            value = np.where(value < _float32(self.low), _float32(self.low), value)
        if self.high is not None:
            value = np.where(value > _float32(self.high), _float32(self.high), value)
        return value, bound

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.clamp_(self.low, self.high)


class Gelu(EpilogueOperation):
    """x Phi(x), with the distribution function Phi of the normal distribution or its approximation by tanh. Minus infinity gives NaN,
    as the product of infinity and 0."""

    op: Literal["gelu"]
    form: Literal["erf", "tanh"] = "erf"
    """``erf``: x (1 + erf(x / sqrt(2))) / 2; ``tanh``: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""

    approximate: ClassVar[bool] = True

    def describe(self) -> str:
        return f"GELU ({self.form})"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        import numpy as np

        if self.form == "erf":
            tail = np.vectorize(erfc, otypes=[np.float64])(-value / sqrt(2))
        else:
            tail = 1 + np.tanh(sqrt(2 / pi) * (value + 0.044715 * value**3))
        # The slope is at most 1.13. The relative error of the inner argument z (2 roundings for erf, at most 7 for tanh) changes
        # erf(z) by at most 0.49 and tanh(z) by at most 0.45 of itself; then come the function, at most 1 in size, the sum, at most
        # 2, the factor |x| / 2, and the rounding of the product.
        inner = 0.49 * 2 if self.form == "erf" else 0.45 * 7
        factor = (inner * UNIT_ROUNDOFF + LIBRARY_ERROR + 2 * UNIT_ROUNDOFF) / 2 + UNIT_ROUNDOFF
        return _evaluated(value, bound, 0.5 * value * tail, 1.13, factor * (np.abs(value) + bound))

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        from torch.nn.functional import gelu

        values.copy_(gelu(values, approximate="tanh" if self.form == "tanh" else "none"))


class Silu(EpilogueOperation):
    """x / (1 + exp(-x)), also called swish. Minus infinity gives NaN, as the quotient of two infinities."""

    op: Literal["silu"]

    approximate: ClassVar[bool] = True

    def describe(self) -> str:
        return "SiLU"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        import numpy as np

        result = value / (1 + np.exp(-value))
        # The slope is at most 1.1. The errors of the exponential, the sum and the quotient are relative to the result. Where the
        # exponential overflows, beyond x = -88.7, the result is 0; x exp(x) is then less than 2^7 / the largest float32.
        error = (LIBRARY_ERROR + 2 * UNIT_ROUNDOFF) * (np.abs(result) + 1.1 * bound) + 2**7 * INVERSE_LARGEST
        return _evaluated(value, bound, result, 1.1, error)

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        from torch.nn.functional import silu

        silu(values, inplace=True)


class Sigmoid(EpilogueOperation):
    """1 / (1 + exp(-x))."""

    op: Literal["sigmoid"]

    approximate: ClassVar[bool] = True

    def describe(self) -> str:
        return "sigmoid"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        import numpy as np

        result = 1 / (1 + np.exp(-value))
        error = (LIBRARY_ERROR + 2 * UNIT_ROUNDOFF) * (result + 0.25 * bound) + INVERSE_LARGEST
        return _evaluated(value, bound, result, 0.25, error)

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.sigmoid_()


class Tanh(EpilogueOperation):
    """The hyperbolic tangent."""

    op: Literal["tanh"]

    approximate: ClassVar[bool] = True

    def describe(self) -> str:
        return "tanh"

    def reference(self, value: Array, bound: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        import numpy as np

        result = np.tanh(value)
        return _evaluated(value, bound, result, 1.0, LIBRARY_ERROR * (np.abs(result) + bound))

    def apply_torch(self, values: Any, arguments: Sequence[Any]) -> None:
        values.tanh_()


if TYPE_CHECKING:
    AnyEpilogueOperation = EpilogueOperation
else:
    AnyEpilogueOperation = Annotated[reduce(or_, EpilogueOperation.__subclasses__()), Field(discriminator="op")]


def numbered(name: str, index: int) -> str:
    """``name`` for the first of its kind, then ``name2``, ``name3`` ..."""
    return name if index == 0 else f"{name}{index + 1}"


def _float32(number: float) -> float:
    import numpy as np

    return float(np.float32(number))


def _evaluated(value: Array, bound: Array, result: Array, slope: float, error: Array) -> tuple[Array, Array]:
    """A function's ``result``: the incoming bound times its largest slope, and the ``error`` of evaluating it.

    What an infinite or NaN value gives is exact.
    """
    import numpy as np

    return result, np.where(np.isfinite(value), slope * bound + error + SMALLEST, bound)
