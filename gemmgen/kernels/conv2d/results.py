"""The end of a convolution's kernel, in a plan: what becomes of sums, whatever computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.conv2d.epilogue import ElementRead, element_reads, operations_of
from gemmgen.kernels.conv2d.layouts import FilterOrder
from gemmgen.kernels.conv2d.spec import Conv2dSpec, Output
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import Argument, ScalarArgument

CONSTANT_NAMES = {
    "c": "kInputChannels",
    "k": "kOutputChannels",
    "r": "kFilterRows",
    "s": "kFilterColumns",
    "stride_h": "kStrideH",
    "stride_w": "kStrideW",
    "padding_h": "kPaddingH",
    "padding_w": "kPaddingW",
    "dilation_h": "kDilationH",
    "dilation_w": "kDilationW",
    "groups": "kChannelGroups",
}
"""Parameters of a layer as a source names them that they are constants of."""


@dataclass(frozen=True)
class LayerConstant:
    """A parameter that the kernel is specialised for, as it is written in the source."""

    name: str
    value: int


@dataclass(frozen=True)
class FinishingPlan(KernelPlan):
    """A convolution instance: the layer's parameters, and what results go through."""

    filter_order: FilterOrder
    v: Mapping[str, str]
    """Each parameter as the source writes it: a constant's name, a kernel argument's, or a number."""
    constants: tuple[LayerConstant, ...]
    divisors: tuple[str, ...]
    """Divisors for which the host prepares numbers."""
    saturation: tuple[float, float] | None
    """Bounds of an 8-bit result that take care of the activation too; None if it has to be computed."""
    unit: bool
    """True if results are scaled so that saturation to [0, 1] bounds them: the factor 1/128 is exact."""
    biased: bool
    """True if sums begin at the bits of a large float, so that they need no conversion."""
    steps: tuple[Step, ...]
    """Operations that are computed on each result: the activation, unless saturation takes care of it, and the epilogue."""
    kernel_arguments: tuple[Argument, ...]

    @property
    def output(self) -> Output:
        output: Output = self.spec.output
        return output

    @property
    def output_c_type(self) -> str:
        """The C type of an element of y."""
        return ELEMENTS[self.output.type].c_type

    @property
    def accumulator(self) -> str:
        """The C type of a sum."""
        return "int"

    @property
    def shifted(self) -> bool:
        """True if there is a bias."""
        return bool(self.spec.bias != "none")

    @property
    def exact(self) -> bool:
        """True if results are sums of integers."""
        return self.output.type == "s32"

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors that finishing a result takes, beside beta."""
        present = {"alpha": self.spec.alpha, "gamma": self.spec.gamma if self.spec.residual else "one"}
        return () if self.exact else tuple(name for name, factor in present.items() if factor != "one")

    @property
    def formula(self) -> str:
        """The formula from a sum to a result, in words."""
        spec: Conv2dSpec = self.spec
        terms = ["alpha * sum" if spec.alpha != "one" else "sum"]
        if spec.bias != "none":
            terms.append("beta * bias" if spec.beta == "argument" else "bias")
        if spec.residual:
            terms.append("gamma * z" if spec.gamma == "argument" else "z")
        operations = [operation.describe() for operation in operations_of(spec)]
        return " + ".join(terms) + "".join(f", then {operation}" for operation in operations)

    @property
    def reads(self) -> tuple[ElementRead, ...]:
        """Arrays that the operations read for each result."""
        return element_reads(self.steps)

    @property
    def arrays_like_output(self) -> int:
        """Arrays of y's shape that are read: z, and those of the operations."""
        return int(self.spec.residual) + sum(not read.per_channel for read in self.reads)

    @property
    def step_numbers(self) -> tuple[ScalarArgument, ...]:
        """Numbers that the operations read."""
        return tuple(argument for step in self.steps for argument in step.arguments if isinstance(argument, ScalarArgument))
