"""Elementwise operations as requests: the arguments of ``ops.elementwise`` understood, and how an instance does them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, get_args

import pydantic

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.kernels.elementwise.access import AXES
from gemmgen.kernels.elementwise.plan import VECTOR_BYTES, plan_operations, widest_vector
from gemmgen.kernels.elementwise.spec import ElementwiseSpec
from gemmgen.kernels.epilogue.operations import DATA_TYPES, AnyOperation, Bias, NumberType, Operation
from gemmgen.kernels.requests import Fit, Interpretation, Layout, Request, Result, changed_fields, replaced, say_once, widest

SPEC_TYPES: dict[str, str] = {DATA_TYPES[name]: name for name in get_args(NumberType)}
ARRAYS = ("bias", "bias2", "z", "z2", "f", "f2")
"""The names of arrays that operations read."""
NUMBERS = ("bias", "bias2", "gamma", "gamma2")
"""The names of numbers that operations read."""


@dataclass(frozen=True)
class ElementwiseRequest(Request):
    """y = operations(x); all arrays with the same axes, as few as describe them."""

    kind: ClassVar[str] = "elementwise"
    extents: tuple[int, ...]
    arrays: tuple[tuple[str, Layout], ...]
    """x, y, then what operations read, by the kernel's names."""
    operands: tuple[tuple[str, str], ...]
    """For each of these names, the operand of the call that it is."""
    operations: tuple[Operation, ...] = ()
    output: str | None = None
    """Type of y as a spec names it; None: the operations' own."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*(1,) * (len(AXES) - len(self.extents)), *self.extents)

    @property
    def is_empty(self) -> bool:
        return 0 in self.extents

    @property
    def contiguous(self) -> bool:
        """Whether neighbours along the last axis lie side by side in all arrays."""
        return self.extents[-1] <= 1 or all(layout.strides[-1] == 1 for _, layout in self.arrays)

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


def fit_elementwise(spec: ElementwiseSpec, request: ElementwiseRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    x = request.arrays[0][1]
    contiguous = request.contiguous
    changes: dict[str, Any] = {
        "input": SPEC_TYPES[x.type],
        "output": request.output,
        "operations": request.operations,
        "rank": len(request.extents),
        "inner": "contiguous" if contiguous else "strided",
        "alignment": request.promise(max(spec.alignment, 1)) if contiguous else 1,
    }
    if spec.inner == "strided" and contiguous and spec.alignment == 1 and request.promise(4) > 1:
        return "it reads any stride, the arrays have neighbours side by side"
    changed = replaced(spec, changes)
    assert isinstance(changed, ElementwiseSpec)
    if changed.vector is not None and changed.vector > widest_vector(changed, plan_operations(changed, [])[1]):
        changed = changed.model_copy(update={"vector": None})
    names = dict(request.operands)
    arrays = {name: (names[name], layout) for name, layout in request.arrays}
    dimensions = dict(zip(AXES, request.extents, strict=False))
    rank = len(request.extents)
    for name, layout in request.arrays:
        strides = layout.strides[: rank - 1] if contiguous else layout.strides
        dimensions |= {f"{name}_stride{axis}": stride for axis, stride in enumerate(strides)}
    return Fit(changed, arrays, {name: name for name in NUMBERS}, dimensions, changed_fields(spec, changed))


@cache
def _adapter() -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(AnyOperation)


def parse_operations(wanted: Any) -> tuple[Operation, ...]:
    """Operations from names, mappings as in a spec (or their items), or several of them. Raises ``LaunchError``."""
    if wanted is None:
        return ()
    if isinstance(wanted, str | Mapping) or (isinstance(wanted, tuple) and wanted and _is_item(wanted[0])):
        wanted = (wanted,)
    found = []
    for one in wanted:
        fields = {"op": one} if isinstance(one, str) else dict(one)
        try:
            found.append(_adapter().validate_python(fields))
        except pydantic.ValidationError as error:
            raise LaunchError(f"elementwise: operation {one!r}: {error.errors(include_url=False)[0]['msg']}") from None
    return tuple(found)


def _is_item(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and not isinstance(one[1], tuple)


def interpret_elementwise(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: ``operations`` as ``parse_operations`` takes them. Raises ``LaunchError``."""
    x = operands["x"]
    if x.type not in SPEC_TYPES:
        raise LaunchError(f"elementwise: x has elements {x.type}, need one of {', '.join(SPEC_TYPES.values())}")
    operations, names = _with_places(parse_operations(options.get("operations")), operands)
    given = {name: operands[name] for name in names}
    for name, layout in given.items():
        if layout.type != x.type:
            raise LaunchError(f"elementwise: {name} has elements {layout.type}, need x's, {x.type}")
    shape = _broadcast({"x": x, **given})
    spec = ElementwiseSpec(kind="elementwise", input=SPEC_TYPES[x.type], operations=operations)  # type: ignore[arg-type]
    reasons: list[Any] = []
    own = plan_operations(spec, reasons)[1]
    if reasons:
        raise LaunchError(str(PlanError("elementwise:", reasons)))
    out = operands.get("out")
    kind = out.type if out is not None else own
    if kind not in SPEC_TYPES:
        raise LaunchError(f"elementwise: out has elements {kind}, need one of {', '.join(SPEC_TYPES.values())}")
    if out is not None and out.shape != shape:
        raise LaunchError(f"elementwise: out has shape {out.shape}, need {shape}")
    arrays = {"x": x, "y": out if out is not None else Layout.packed(shape, kind), **given}
    for name, layout in arrays.items():
        if layout.alignment < layout.element_bytes:
            raise LaunchError(f"elementwise: {name} does not start at a multiple of its {layout.element_bytes} bytes an element")
        if any(stride < 0 for stride in layout.strides):
            raise LaunchError(f"elementwise: {name} has negative strides; pass a contiguous copy")
    extents, merged = merge_axes(shape, {name: _spread(layout, shape) for name, layout in arrays.items()})
    if len(extents) > len(AXES):
        raise LaunchError(f"elementwise: the arrays need {len(extents)} axes, {len(AXES)} are the most; pass contiguous copies")
    layouts = tuple((name, Layout(extents, strides, arrays[name].type, arrays[name].alignment)) for name, strides in merged.items())
    request = ElementwiseRequest(
        extents, layouts, tuple((name, "out" if name == "y" else name) for name in arrays), operations,
        None if kind == own else SPEC_TYPES[kind],
    )  # fmt: skip
    return Interpretation(request, (Result("out", shape, kind),))


def _with_places(operations: tuple[Operation, ...], operands: Mapping[str, Layout]) -> tuple[tuple[Operation, ...], list[str]]:
    """The operations, a bias that is an array as one for each element, and the names of the arrays that they read."""
    names: list[str] = []
    seen: dict[str, int] = {}
    found = []
    for operation in operations:
        seen[operation.op] = count = seen.get(operation.op, 0) + 1
        number = "" if count == 1 else str(count)
        if isinstance(operation, Bias):
            name = f"bias{number}"
            operation = Bias(op="bias", per="result" if name in operands else "all")
        for operand in operation.operands():
            name = f"{operand.name.lower()}{number}"
            known = NUMBERS if operand.per == "all" else ARRAYS
            if name not in known:
                raise LaunchError(f"elementwise: at most two operations {operation.op} read arrays or numbers in one call")
            if operand.per != "all":
                if name not in operands:
                    raise LaunchError(f"elementwise: the operation {operation.op} reads an array; pass {name}=...")
                names.append(name)
        found.append(operation)
    unused = [name for name in ARRAYS if name in operands and name not in names]
    if unused:
        raise LaunchError(f"elementwise: no operation reads {', '.join(unused)}")
    return tuple(found), names


def _broadcast(arrays: Mapping[str, Layout]) -> tuple[int, ...]:
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


def merge_axes(shape: tuple[int, ...], strides: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """The same elements with as few axes as possible: those of extent 1 left out, neighbours made one where all arrays allow it."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, extent in enumerate(shape):
        steps = tuple(one[axis] for one in strides.values())
        if extent == 1:
            continue
        if axes and all(outer == inner * extent for outer, inner in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = axes[-1][0] * extent, steps
        else:
            axes.append((extent, steps))
    if not axes:
        axes = [(1, tuple(1 for _ in strides))]
    return tuple(extent for extent, _ in axes), {name: tuple(steps[place] for _, steps in axes) for place, name in enumerate(strides)}


def packed_request(sizes: Sequence[int], options: Sequence[str]) -> ElementwiseRequest:
    """A request from four extents and words: ``f16``, ``padded`` (gaps between rows), ``strided``, ``unaligned``, operations that read
    nothing such as ``relu``. Raises ``SpecError``."""
    kind, aligned, padded, strided = "f32", True, False, False
    operations: list[str] = []
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
            operations.append(option)
    shape = tuple(sizes)
    packed = Layout.packed(shape, kind)
    strides = [2 * stride for stride in packed.strides] if strided else list(packed.strides)
    if padded:
        gap = VECTOR_BYTES // packed.element_bytes
        strides = [stride * 2 if axis < len(shape) - 1 and shape[-1] % gap == 0 else stride for axis, stride in enumerate(strides)]
    x = Layout(shape, tuple(strides), kind, packed.alignment if aligned else packed.element_bytes)
    try:
        request = interpret_elementwise({"x": x, "out": x}, {"operations": tuple(operations) or None}).request
    except LaunchError as error:
        need = "a type such as f16, padded, strided, unaligned, or operations that read nothing, such as relu"
        raise SpecError(f"{error}; the words of an elementwise problem are {need}") from None
    assert isinstance(request, ElementwiseRequest)
    return request
