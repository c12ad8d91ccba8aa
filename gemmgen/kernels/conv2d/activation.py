"""The activations that a convolution can end with.

An activation is one class here and one macro of the same name in ``templates/conv2d/activation.cu.j2``. The class states the
spec's fields and what it does to a float32 reference, operation by operation as the macro does.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AllowInfNan, Field, model_validator

from gemmgen.kernels.family import SpecModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

Float32 = Annotated[float, AllowInfNan(False), Field(ge=-3.4028234e38, le=3.4028234e38)]
"""A finite number, rounded to float32 where it is used."""

INT8_LOW, INT8_HIGH = -128.0, 127.0


class Activation(SpecModel):
    """A function of each result."""

    op: str

    @abstractmethod
    def describe(self) -> str:
        """The activation in a few words; empty if there is none."""

    @abstractmethod
    def reference(self, value: Array) -> Array:
        """The activation of float32 values."""

    def saturation(self) -> tuple[float, float] | None:
        """Bounds that do the same to an int8 output as the activation with saturation after it; None if none do."""
        return None


class NoActivation(Activation):
    """Leaves the results as they are."""

    op: Literal["none"]

    def describe(self) -> str:
        return ""

    def reference(self, value: Array) -> Array:
        return value

    def saturation(self) -> tuple[float, float]:
        return INT8_LOW, INT8_HIGH


class Relu(Activation):
    """Replaces negative values by zero."""

    op: Literal["relu"]

    def describe(self) -> str:
        return "ReLU"

    def reference(self, value: Array) -> Array:
        import numpy as np

        return np.fmax(value, np.float32(0))

    def saturation(self) -> tuple[float, float]:
        return 0.0, INT8_HIGH


class Clamp(Activation):
    """Limits values to an interval."""

    op: Literal["clamp"]
    low: Float32
    high: Float32
    """No smaller than ``low``."""

    @model_validator(mode="after")
    def _is_interval(self) -> Clamp:
        if self.low > self.high:
            raise ValueError("low no larger than high")
        return self

    def describe(self) -> str:
        return f"clamp to [{self.low:g}, {self.high:g}]"

    def reference(self, value: Array) -> Array:
        import numpy as np

        return np.fmin(np.fmax(value, np.float32(self.low)), np.float32(self.high))

    def saturation(self) -> tuple[float, float]:
        return min(max(self.low, INT8_LOW), INT8_HIGH), min(max(self.high, INT8_LOW), INT8_HIGH)


class LeakyRelu(Activation):
    """Multiplies negative values by a slope."""

    op: Literal["leaky_relu"]
    slope: Float32 = 0.01

    def describe(self) -> str:
        return f"leaky ReLU with slope {self.slope:g}"

    def reference(self, value: Array) -> Array:
        import numpy as np

        scaled: Array = np.where(value < 0, value * np.float32(self.slope), value)
        return scaled


class HardSwish(Activation):
    """scale * v * min(max(v + 3, 0), 6) / 6: v in real units, and the result in those of the output."""

    op: Literal["h_swish"]
    scale: Float32 = 1.0
    """Multiplies the result: one over the output's quantisation step."""

    def describe(self) -> str:
        return "h-swish" + ("" if self.scale == 1 else f", scaled by {self.scale:g}")

    def reference(self, value: Array) -> Array:
        import numpy as np

        gate = np.fmin(np.fmax(value + np.float32(3), np.float32(0)), np.float32(6))
        scaled: Array = (value * gate) * np.float32(self.factor)
        return scaled

    @property
    def factor(self) -> float:
        """scale / 6."""
        return self.scale / 6.0


if TYPE_CHECKING:
    AnyActivation = Activation
else:
    AnyActivation: Any = Annotated[reduce(or_, Activation.__subclasses__()), Field(discriminator="op")]
