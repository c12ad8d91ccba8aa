"""The end of a convolution: operations on float32 results, and the numbers, channel vectors and arrays like y that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gemmgen.core.elements import ELEMENTS, FLOATS, DataType
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import Formula
from gemmgen.kernels.conv2d.spec import Conv2dSpec, NoActivation
from gemmgen.kernels.epilogue.operations import Cast, Complaint, FormulaOutput, Operand, Operation
from gemmgen.kernels.epilogue.steps import (
    SUMS,
    Access,
    OutputSpace,
    Step,
    Store,
    extremum_text,
    number_argument,
    plan_steps,
    stored_text,
)
from gemmgen.kernels.epilogue.sums import START, Terms, passed, stores_of
from gemmgen.kernels.launch import Argument, ArrayArgument, ArrayRole

INT8_HIGH = 127.0
PIXELS = ("n * p * q",)
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


ROW, COLUMN = "at_row", "at_column"
"""Variables of the number of an element's pixel, and of its channel."""


@dataclass(frozen=True)
class OutputChannels(OutputSpace):
    """The elements of y as a matrix: a row for each pixel (n, p, q) and a column for each channel. An operation may read a number, a value
    for each row or column, or an array that lies like y."""

    spec: Conv2dSpec
    works_in_place = True

    @property
    def coordinates(self) -> Mapping[str, str]:
        return {"row": ROW, "column": COLUMN}

    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        if operand.per == "all":
            return number_argument(operand, name, "f32")
        if operand.per == "column":
            operand = replace(operand, per="channel")
        if operand.per not in ("memory", "channel", "row", "result"):
            return f"per {operand.per}", "per all, memory, row (a value for each pixel), channel or result"
        name = name.lower()
        if name == "bias" and self.spec.bias != "none":
            name = "bias_"  # beside that of the sum before the operations
        stored: DataType = operand.stored or ("f32" if operand.per != "result" else self.spec.output.type)
        extents = {"memory": ("1",), "channel": ("k",), "row": PIXELS}.get(operand.per) or output_layout(self.spec)
        alignment = ELEMENTS[stored].bytes if operand.per in ("memory", "row") else _VECTOR_ALIGNMENT
        if operand.in_place and stored != self.spec.output.type:
            return f"in_place of {ELEMENTS[stored].word}", f"{ELEMENTS[self.spec.output.type].word}, the result's type"
        array = _packed(name, stored, "input", extents, alignment, operand.meaning)
        return Access(operand, replace(array, shares="y") if operand.in_place else array, f"{name}_element", stored)

    def store(self, output: FormulaOutput, name: str, text: str, kind: DataType) -> Store | Complaint:
        layout = output_layout(self.spec)
        if output.reduce is None:
            array = _packed(name, output.type, "output", layout, ELEMENTS[output.type].bytes, "a further result")
            return Store(name, array, ("if (exists)", f"    {name}[at] = {stored_text(text, kind, output.type)};"), output)
        per = "channel" if output.per == "column" else output.per or "all"
        if kind not in FLOATS:
            return f"a reduction of {ELEMENTS[kind].word} values", "floating point: float32(...) makes it"
        if per not in ("all", "channel", "row"):
            return f"a reduction per {per}", "per: all, channel or row"
        output = output.model_copy(update={"per": per})
        if output.reduce in SUMS:
            if per != "all" and self.spec.output.layout != "nhwc":
                return f"a sum per {per} of {self.spec.output.layout.upper()}", "output.layout: nhwc, or per: all"
            terms = _packed(f"{name}_terms", "f32", "workspace", ("n * p * q", "k"), 4, f"the terms of {name}")
            return Store(name, terms, ("if (exists)", f"    {terms.name}[at] = {text};"), output)
        extents, index = {"channel": (("k",), "channel"), "row": (PIXELS, ROW)}.get(per, (("1",), "0"))
        array = _packed(name, "f32", "inout", extents, 4, f"{output.reduce} of {'all elements' if per == 'all' else f'each {per}'}")
        return Store(name, array, ("if (exists)", f"    {extremum_text(output, name, index, text)}"), output)


def _packed(name: str, kind: DataType, role: ArrayRole, extents: tuple[str, ...], alignment: int, meaning: str) -> ArrayArgument:
    """An array without gaps."""
    shape, strides = (tuple(map(Formula, texts)) for texts in (extents, packed_strides(extents)))
    return ArrayArgument(name, kind, role, shape, strides, alignment, meaning)


def terms_of(spec: Conv2dSpec) -> Terms:
    """The matrix that the terms of a sum form: a row for each pixel, and a column for each channel."""
    k = spec.convolution.k
    channels, constant = ("k", ()) if k == "argument" else (str(k), (str(k),))
    return Terms("n * p * q", channels, "row", "channel", ("n", "p", "q", *(() if constant else ("k",))), constant)


def arguments_of(steps: Sequence[Step]) -> list[Argument]:
    """Kernel arguments that the operations add."""
    return [*(argument for step in steps for argument in step.arguments), *((START,) if stores_of(steps) else ())]


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
    """The activation and the epilogue as operations on float32; adds conflicts to ``reasons``."""
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
    def single(self) -> bool:
        """True if it holds one number."""
        return self.access.operand.per == "memory"

    @property
    def per_channel(self) -> bool:
        """True if the results of a channel read the same number."""
        return self.single or self.access.operand.per == "channel"

    @property
    def per_row(self) -> bool:
        """True if the results of a pixel read the same number."""
        return self.access.operand.per == "row"


@dataclass(frozen=True)
class ElementStore:
    """An array that results write beside y: how the kernel passes it on to where a lane's results are finished."""

    store: Store
    passed: str
    """The pointer in the kernel, as a CUDA expression."""

    @property
    def name(self) -> str:
        """Name in the function that finishes a result."""
        return self.store.argument.name

    @property
    def per_channel(self) -> bool:
        """True if it has a number for each channel."""
        return self.store.output.per == "channel" and not self.store.is_term

    @property
    def per_element(self) -> bool:
        """True if it lies like y."""
        return self.store.output.reduce is None or self.store.is_term


def element_stores(steps: tuple[Step, ...], spec: Conv2dSpec) -> tuple[ElementStore, ...]:
    """The arrays that the operations write beside y."""
    terms = [store.name for store in stores_of(steps)]
    stores = [store for step in steps for store in step.stores]
    return tuple(
        ElementStore(one, passed(one.argument.name, terms.index(one.name), terms_of(spec)) if one.is_term else one.argument.name)
        for one in stores
    )


def element_reads(steps: tuple[Step, ...]) -> tuple[ElementRead, ...]:
    """The arrays that the operations read."""
    return tuple(ElementRead(access) for step in steps for access in step.accesses if isinstance(access.argument, ArrayArgument))
