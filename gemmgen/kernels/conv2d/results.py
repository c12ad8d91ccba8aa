"""The epilogue of a convolution, in a plan: from sums to stored results, for every mainloop."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.conv2d.epilogue import (
    COLUMN,
    ROW,
    ElementRead,
    ElementStore,
    element_reads,
    element_stores,
    operations_of,
    terms_of,
)
from gemmgen.kernels.conv2d.layouts import FilterOrder
from gemmgen.kernels.conv2d.spec import Conv2dSpec, Output
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.epilogue.sums import SummingPlan, Terms
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
class FinishingPlan(SummingPlan, KernelPlan[Conv2dSpec]):
    """A convolution instance: the layer's parameters, and the path of its results."""

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
    def stores(self) -> tuple[ElementStore, ...]:
        """Arrays that the operations write beside y."""
        return element_stores(self.steps, self.spec)

    @property
    def finishing(self) -> tuple[Step, ...]:
        """The epilogue's steps."""
        return self.steps

    @property
    def terms(self) -> Terms:
        """The matrix that the terms of a sum form."""
        return terms_of(self.spec)

    @property
    def arrays_read(self) -> int:
        """Arrays of y's shape that are read: z, and those of the operations."""
        return int(self.spec.residual) + sum(not (read.per_channel or read.per_row) for read in self.reads)

    @property
    def arrays_like_output(self) -> int:
        """Arrays of y's shape that are read or written beside y."""
        return self.arrays_read + sum(store.per_element for store in self.stores)

    @property
    def stores_elements(self) -> bool:
        """True if an array that lies like y is written beside it."""
        return any(store.per_element for store in self.stores)

    @property
    def stores_channels(self) -> bool:
        """True if an array with a number for each channel is written beside y."""
        return any(store.per_channel for store in self.stores)

    @property
    def needs_place(self) -> bool:
        """True if finishing a result takes its place in y."""
        return bool(self.arrays_like_output or self.stores or self.needs_row)

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The variables among row and column that the operations name."""
        words = {word for step in self.steps for line in step.lines for word in re.findall(r"\w+", line)}
        return tuple(name for name in (ROW, COLUMN) if name in words)

    @property
    def needs_row(self) -> bool:
        """True if finishing a result takes the number of its pixel."""
        return ROW in self.coordinates or any(read.per_row for read in self.reads)

    @property
    def reads_channels(self) -> bool:
        """True if finishing a result takes its channel."""
        reads, writes = any(read.per_channel for read in self.reads), any(store.per_channel for store in self.stores)
        return self.spec.alpha == "channel" or reads or writes or COLUMN in self.coordinates

    @property
    def step_numbers(self) -> tuple[ScalarArgument, ...]:
        """Numbers that the operations read."""
        return tuple(argument for step in self.steps for argument in step.arguments if isinstance(argument, ScalarArgument))

    # -- Pieces of the source that depend on the spec

    @property
    def number(self) -> str:
        """The C type of a result before it is stored."""
        return "int" if self.exact else "float"

    @property
    def bias_scaled(self) -> bool:
        """True if the bias is multiplied by beta."""
        return bool(self.spec.beta == "argument" and not self.exact)

    @property
    def rounding(self) -> str:
        """The building block that rounds results to elements of 8 bits; ``none`` for others."""
        if self.output.type not in ("s8", "u8"):
            return "none"
        return "unit" if self.unit and self.output.type == "s8" else "bytes"

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of a result of 8 bits before it is rounded."""
        low, high = ELEMENTS[self.output.type].limits
        return self.saturation or (float(low), float(high))
