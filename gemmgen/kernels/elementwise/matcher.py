"""Elementwise requests: which instance does them, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, get_args

import pydantic

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError, Reason, SpecError
from gemmgen.kernels.elementwise.access import AXES, MAX_EXTENT
from gemmgen.kernels.elementwise.plan import VECTOR_BYTES, ElementwisePlan, plan_operations, widest_vector
from gemmgen.kernels.elementwise.spec import ElementwiseSpec
from gemmgen.kernels.epilogue.operations import COORDINATES, DATA_TYPES, AnyOperation, NumberType, Operation
from gemmgen.kernels.problem_words import unknown_word
from gemmgen.kernels.requests import MAX_ALIGNMENT, Copy, Fit, Layout, Request, changed_fields, replaced, say_once, widest

SPEC_TYPES: dict[str, str] = {DATA_TYPES[name]: name for name in get_args(NumberType)}
ARRAYS = ("bias", "bias2", "z", "z2", "f", "f2")
"""The names of arrays that operations read."""
WORDS = ("abs", "square", "sqrt", "exp", "relu", "leaky_relu", "h_swish", "gelu", "silu", "sigmoid", "tanh")
"""Operations that a problem's words name: those that read x alone."""
NUMBERS = ("bias", "bias2", "gamma", "gamma2")
"""The names of numbers that operations read."""


@dataclass(frozen=True)
class ElementwiseRequest(Request):
    """y = operations(x); all arrays with the same axes, as few as describe them."""

    kind: ClassVar[str] = "elementwise"
    extents: tuple[int, ...]
    arrays: tuple[tuple[str, Layout], ...]
    """x, y, then the operations' operands, by the kernel's names."""
    operands: tuple[tuple[str, str], ...]
    """For each of these names, the operand of the call that it is."""
    operations: tuple[Operation, ...] = ()
    output: str | None = None
    """Type of y as a spec names it; None: the operations' own."""
    others: tuple[tuple[str, Layout], ...] = ()
    """Arrays without these axes: numbers in memory, and reductions."""
    numbers: tuple[tuple[str, str], ...] = tuple((name, name) for name in NUMBERS)
    """For each number of the kernel, the number of the call that it is."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*(1,) * (len(AXES) - len(self.extents)), *self.extents)

    @property
    def is_empty(self) -> bool:
        return 0 in self.extents

    @property
    def contiguous(self) -> bool:
        """True if neighbours along the last axis lie side by side in all arrays."""
        return self.extents[-1] <= 1 or all(layout.strides[-1] == 1 for _, layout in self.arrays)

    @property
    def has_wide_operands(self) -> bool:
        """True if an operand has larger elements than x."""
        return any(layout.element_bytes > self.arrays[0][1].element_bytes for _, layout in self.arrays[2:])

    def promise(self, most: int) -> int:
        """Elements, at most ``most``, that all base pointers and strides of the outer axes are multiples of."""
        if self.is_empty:
            return most
        seen = [layout.alignment // layout.element_bytes for _, layout in self.arrays]
        outer = range(len(self.extents) - 1)
        seen += [layout.strides[axis] for _, layout in self.arrays for axis in outer if self.extents[axis] > 1]
        return widest(most, tuple(seen))

    @cached_property
    def traits(self) -> tuple[str, ...]:
        stored = self.arrays[0][1].type
        full = VECTOR_BYTES // ELEMENTS[stored].bytes
        return (
            "" if stored == "f32" else stored,
            "" if len(self.extents) == 1 else "padded",
            "" if self.contiguous else "strided",
            "" if not self.contiguous or self.promise(full) == full else "unaligned",
        )


def fit(spec: ElementwiseSpec, request: ElementwiseRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    x = request.arrays[0][1]
    contiguous = request.contiguous
    changes: dict[str, Any] = {
        "input": SPEC_TYPES[x.type],
        "output": request.output,
        "operations": request.operations,
        "rank": len(request.extents),
        "inner": "contiguous" if contiguous else "strided",
        "alignment": request.promise(max(spec.alignment, 1)) if contiguous and not request.has_wide_operands else 1,
    }
    if spec.inner == "strided" and contiguous and spec.alignment == 1 and request.promise(4) > 1:
        return "it reads any stride, the arrays have neighbours side by side"
    changed = replaced(spec, changes)
    assert isinstance(changed, ElementwiseSpec)
    if changed.vector is not None and changed.vector > widest_vector(changed, plan_operations(changed, [])[1]):
        changed = changed.model_copy(update={"vector": None})
    names = dict(request.operands)
    arrays = {name: (names[name], layout) for name, layout in (*request.arrays, *request.others)}
    dimensions = dict(zip(AXES, request.extents, strict=False))
    rank = len(request.extents)
    for name, layout in request.arrays:
        strides = layout.strides[: rank - 1] if contiguous else layout.strides
        dimensions |= {f"{name}_stride{axis}": stride for axis, stride in enumerate(strides)}
    return Fit(changed, arrays, dict(request.numbers), dimensions, changed_fields(spec, changed))


def broadcast(arrays: Mapping[str, Layout]) -> tuple[int, ...]:
    """The shape that all arrays have by NumPy's rules."""
    rank = max(len(layout.shape) for layout in arrays.values())
    shape = [1] * rank
    for name, layout in arrays.items():
        for axis, extent in enumerate(layout.shape, rank - len(layout.shape)):
            if extent != 1 and shape[axis] not in (1, extent):
                raise LaunchError(f"elementwise: {name} of shape {layout.shape} does not broadcast with the others")
            shape[axis] = extent if shape[axis] == 1 else shape[axis]
    return tuple(shape)


def _spread(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides for the whole shape: 0 along the axes that the array is broadcast along."""
    missing = len(shape) - len(layout.shape)
    own = (
        0 if extent == 1 and whole != 1 else stride
        for extent, stride, whole in zip(layout.shape, layout.strides, shape[missing:], strict=True)
    )
    return (*(0,) * missing, *own)


def merge_axes(
    shape: tuple[int, ...], strides: Mapping[str, tuple[int, ...]], kept: int = 0
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """The elements with as few axes as possible: those of extent 1 left out, neighbours made one where all arrays allow it; the last
    ``kept`` axes stay as they are."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, extent in enumerate(shape):
        steps = tuple(one[axis] for one in strides.values())
        if axis >= len(shape) - kept:
            axes.append((extent, steps))
            continue
        if extent == 1:
            continue
        if axes and all(outer == inner * extent for outer, inner in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = axes[-1][0] * extent, steps
        else:
            axes.append((extent, steps))
    if not axes:
        axes = [(1, tuple(1 for _ in strides))]
    return tuple(extent for extent, _ in axes), {name: tuple(steps[place] for _, steps in axes) for place, name in enumerate(strides)}


def _merged(arrays: Mapping[str, Layout], shape: tuple[int, ...], kept: int = 0) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    if 0 in shape and not kept:
        return (0,), dict.fromkeys(arrays, (1,))
    return merge_axes(shape, {name: _spread(layout, shape) for name, layout in arrays.items()}, kept)


def readable(
    arrays: Mapping[str, Layout], shape: tuple[int, ...], kept: int = 0, written: Collection[str] = ("y",)
) -> tuple[dict[str, Layout], tuple[Copy, ...]]:
    """The arrays with row-major copies in the place of those that no kernel reads: with negative strides, at odd addresses, or where more
    axes are left than kernels walk through. ``kept``: axes that are not merged; ``written``: names of arrays that are no operands."""
    layouts, copies = dict(arrays), []
    for name, layout in arrays.items():
        if name not in written and (
            layout.alignment < layout.element_bytes or not all(0 <= stride <= MAX_EXTENT for stride in layout.strides)
        ):
            layouts[name] = Layout.packed(layout.shape, layout.type)
            copies.append(Copy(name, layout.shape))
    if len(_merged(layouts, shape, kept)[0]) > len(AXES):
        copies = [Copy(name, shape) for name in arrays if name not in written]
        layouts = {name: layout if name in written else Layout.packed(shape, layout.type) for name, layout in arrays.items()}
    return layouts, tuple(copies)


def request_of(
    arrays: Mapping[str, Layout],
    shape: tuple[int, ...],
    operations: tuple[Operation, ...],
    output: str | None,
    others: Mapping[str, Layout] | None = None,
    named: Mapping[str, str] | None = None,
    numbers: Mapping[str, str] | None = None,
) -> ElementwiseRequest:
    """The request for arrays by the kernel's names, x and y first, that broadcast to ``shape``. ``others``: arrays of other shapes;
    ``named``: names in the call of those that differ; ``numbers``: names in the call of the kernel's numbers, the operations' own by
    default. Raises ``LaunchError``."""
    for name, layout in arrays.items():
        if layout.alignment < layout.element_bytes:
            raise LaunchError(f"elementwise: {name} does not start at a multiple of its {layout.element_bytes} bytes an element")
        if any(stride < 0 for stride in layout.strides):
            raise LaunchError(f"elementwise: {name} has negative strides; pass a contiguous copy")
    extents, merged = _merged(arrays, shape, axes_kept(operations, shape))
    if len(extents) > len(AXES):
        raise LaunchError(f"elementwise: the arrays need {len(extents)} axes, {len(AXES)} are the most; pass contiguous copies")
    layouts = tuple((name, Layout(extents, strides, arrays[name].type, arrays[name].alignment)) for name, strides in merged.items())
    names = {"y": "out"} | dict(named or {})
    operands = tuple((name, names.get(name, name)) for name in (*arrays, *(others or {})))
    own = {name: name for name in NUMBERS} if numbers is None else numbers
    return ElementwiseRequest(extents, layouts, operands, operations, output, tuple((others or {}).items()), tuple(own.items()))


def axes_kept(operations: Sequence[Operation], shape: tuple[int, ...]) -> int:
    """Last axes of a shape that the operations name, as rows and columns, and that are therefore not merged with others."""
    named = {word for one in operations for assignment in one.assignments for word in assignment.node.names} & set(COORDINATES)
    named |= {str(output.per) for one in operations for output in one.extra_outputs.values() if output.reduce is not None}
    return min(2, len(shape)) if named & set(COORDINATES) else 0


def parse_request(sizes: Sequence[int], options: Sequence[str]) -> ElementwiseRequest:
    """A request from four extents and words: ``f16``, ``padded`` (gaps between rows), ``strided``, ``unaligned``. Raises
    ``SpecError``."""
    kind, aligned, padded, strided = "f32", True, False, False
    operations: list[Operation] = []
    said: dict[str, str] = {}
    for option in options:
        if option in SPEC_TYPES or option in SPEC_TYPES.values():
            say_once(said, "type", option)
            kind = option if option in SPEC_TYPES else DATA_TYPES[option]
        elif option in ("aligned", "unaligned"):
            say_once(said, "alignment", option)
            aligned = option == "aligned"
        elif option in ("padded", "strided"):
            padded, strided = padded or option == "padded", strided or option == "strided"
        else:
            operations.append(_operation(option))
    shape = tuple(sizes)
    packed = Layout.packed(shape, kind)
    strides = [2 * stride for stride in packed.strides] if strided else list(packed.strides)
    if padded:
        gap = VECTOR_BYTES // packed.element_bytes
        strides = [stride * 2 if axis < len(shape) - 1 and shape[-1] % gap == 0 else stride for axis, stride in enumerate(strides)]
    x = Layout(shape, tuple(strides), kind, packed.alignment if aligned else packed.element_bytes)
    if not operations:
        return request_of({"x": x, "y": x}, shape, (), None)
    spec = ElementwiseSpec.model_validate({"kind": "elementwise", "input": SPEC_TYPES[kind], "operations": tuple(operations)})
    reasons: list[Reason] = []
    result = plan_operations(spec, reasons)[1]
    if reasons:
        raise SpecError(f"an elementwise problem cannot have these operations: {reasons[0]}")
    y = Layout(shape, tuple(strides), result, x.alignment if result == kind else MAX_ALIGNMENT if aligned else ELEMENTS[result].bytes)
    return request_of({"x": x, "y": y}, shape, tuple(operations), None)


def _operation(word: str) -> Operation:
    """The operation of that name, which needs nothing but x. Raises ``SpecError``."""
    if word not in WORDS:
        need = f"{', '.join(WORDS)}, a type such as f16, padded, strided, aligned or unaligned"
        raise unknown_word("an elementwise problem", word, (*WORDS, "padded", "strided", "aligned", "unaligned"), need)
    operation: Operation = pydantic.TypeAdapter(AnyOperation).validate_python({"op": word})
    return operation


FLAT = tuple(1 << exponent for exponent in (12, 16, 20, 22, 24, 26, 28))
ROWS = ((1 << 20, 32), (1 << 16, 512), (1 << 14, 4096), (4096, 768), (64, 1 << 20))


def problem_grid(fine: bool) -> list[str]:
    """Flat arrays of all sizes, rows with gaps, other types and broadcasts at some."""
    flat = [f"1,1,1,{size}" for size in FLAT]
    rows = [f"1,1,{rows},{columns},padded" for rows, columns in ROWS]
    texts = [*flat, *rows]
    texts += [f"{text},{word}" for word in ("f16", "unaligned") for text in (flat[3], flat[5], rows[2])]
    if fine:
        texts += [f"{text},{word}" for word in ("bf16", "f64", "s8", "strided") for text in (*flat[2::2], *rows[1::2])]
    return list(dict.fromkeys(texts))


def operand_orders(plan: ElementwisePlan) -> Mapping[str, str]:
    """None: arrays are read as they lie."""
    return {}
