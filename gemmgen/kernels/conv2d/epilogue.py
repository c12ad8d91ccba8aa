"""The end of a convolution: operations on float32 results, and the numbers, channel vectors and arrays like y that they read."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import Formula
from gemmgen.kernels.conv2d.spec import Conv2dSpec, NoActivation
from gemmgen.kernels.epilogue.operations import Cast, Complaint, Operand, Operation
from gemmgen.kernels.epilogue.steps import Access, OutputSpace, Step, convert, number_argument, plan_steps
from gemmgen.kernels.launch import ArrayArgument

INT8_HIGH = 127.0
_VECTOR_ALIGNMENT = 16
_OWN = {"bias": 1, "residual": 1}
"""The names bias, z and gamma are those of the sum before the operations."""


def output_layout(spec: Conv2dSpec) -> tuple[str, ...]:
    """The extents of y."""
    return {
        "nchw32": ("n", "k // 32", "p", "q", "32"),
        "nchw4": ("n", "k // 4", "p", "q", "4"),
        "nhwc": ("n", "p", "q", "k"),
    }[spec.output.layout]


def packed_strides(extents: tuple[str, ...]) -> tuple[str, ...]:
    """Strides of an array without gaps, as formulas."""
    strides = ["1"]
    for extent in reversed(extents[1:]):
        strides.append(extent if strides[-1] == "1" else f"({extent}) * {strides[-1]}")
    return tuple(reversed(strides))


@dataclass(frozen=True)
class OutputChannels(OutputSpace):
    """The elements of y: an operation may read a number, a float32 for each channel, or an array that lies like y and has its type."""

    spec: Conv2dSpec

    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        if operand.per == "all":
            return number_argument(operand, name, "f32")
        if operand.per not in ("channel", "result"):
            return f"per {operand.per}", "per all, channel or result"
        name = name.lower()
        stored: DataType = operand.stored or ("f32" if operand.per == "channel" else self.spec.output.type)
        extents = ("k",) if operand.per == "channel" else output_layout(self.spec)
        array = ArrayArgument(
            name,
            stored,
            "input",
            tuple(map(Formula, extents)),
            tuple(map(Formula, packed_strides(extents))),
            _VECTOR_ALIGNMENT,
            operand.meaning,
        )
        return Access(operand, array, f"{name}_element", stored)


def operations_of(spec: Conv2dSpec) -> tuple[Operation, ...]:
    """The activation and the operations after it."""
    first = () if isinstance(spec.activation, NoActivation) else (spec.activation,)
    return (*first, *spec.epilogue)


def saturation_of(spec: Conv2dSpec) -> tuple[float, float] | None:
    """Bounds of an 8-bit result that take care of the activation too; None if something has to be computed before."""
    if spec.output.type not in ("s8", "u8") or spec.epilogue:
        return None
    low, high = ELEMENTS[spec.output.type].limits
    if isinstance(spec.activation, NoActivation):
        return float(low), float(high)
    return spec.activation.saturation(float(low), float(high))


def plan_operations(spec: Conv2dSpec, reasons: list[Reason]) -> tuple[Step, ...]:
    """The activation and the epilogue as operations on float32; adds to ``reasons`` what does not go together."""
    operations, space = operations_of(spec), OutputChannels(spec)
    steps, last = plan_steps(operations, "f32", "epilogue", reasons, space, _OWN)
    if last == "f32":
        return steps
    return plan_steps((*operations, Cast(op="cast", type="float32")), "f32", "epilogue", [], space, _OWN)[0]


@dataclass(frozen=True)
class ElementRead:
    """An array that results read element by element: how the kernel passes it on to where a lane's results are finished."""

    access: Access

    @property
    def name(self) -> str:
        return self.access.name

    @property
    def per_channel(self) -> bool:
        return self.access.operand.per == "channel"

    @property
    def pointer(self) -> str:
        """The declaration of a pointer to the first element that a lane reads."""
        return f"const {ELEMENTS[self.access.stored].c_type}* {self.name}"

    def element(self, quads_apart: int, plane: str) -> str:
        """The expression of the i-th channel of a lane; 0 where there is no such result. ``plane``: how far apart in y groups of
        four channels lie, if not as channels do."""
        at = "i" if quads_apart == 4 else f"i / 4 * {quads_apart} + i % 4"
        if plane and not self.per_channel:
            at = f"i / 4 * {plane} + i % 4"
        value = convert(f"{self.name}[{at}]", self.access.stored, "f32")
        return f"exists ? {value} : 0.0f"


def element_reads(steps: tuple[Step, ...]) -> tuple[ElementRead, ...]:
    """The arrays that the operations read."""
    return tuple(ElementRead(access) for step in steps for access in step.accesses if isinstance(access.argument, ArrayArgument))
