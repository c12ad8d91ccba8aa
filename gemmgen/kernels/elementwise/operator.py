"""``gemmgen.ops.elementwise``: from the arrays and options of a call to the request that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from gemmgen.core.elements import ELEMENTS, FLOATS
from gemmgen.core.errors import LaunchError, PlanError, Reason
from gemmgen.kernels.elementwise.matcher import ARRAYS, NUMBERS, SPEC_TYPES, WORDS, axes_kept, broadcast, readable, request_of
from gemmgen.kernels.elementwise.plan import plan_operations
from gemmgen.kernels.elementwise.spec import ElementwiseSpec
from gemmgen.kernels.epilogue.activations import operations_named
from gemmgen.kernels.epilogue.operations import Bias, Formula, Operation, argument_name
from gemmgen.kernels.requests import Interpretation, Layout, Result


def parse_operations(wanted: object) -> tuple[Operation, ...]:
    """Operations from names, formulas, mappings as in a spec, or several of them. Raises ``LaunchError``."""
    return tuple(operations_named("elementwise: operation", wanted, WORDS))


def interpret(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: ``operations`` as ``parse_operations`` takes them. Raises ``LaunchError``."""
    x = operands["x"]
    if x.type not in SPEC_TYPES:
        raise LaunchError(f"elementwise: x has elements {x.type}, need one of {', '.join(SPEC_TYPES.values())}")
    if options.get("named"):
        return _interpret_named(x, options["operations"], operands)
    operations, names = _with_places(parse_operations(options.get("operations")), operands, options["numbers"])
    given = {name: operands[name] for name in names}
    for name, layout in given.items():
        if layout.type != x.type:
            raise LaunchError(f"elementwise: {name} has elements {layout.type}, need x's, {x.type}")
    shape = broadcast({"x": x, **given})
    result_shape = axes_kept(operations, shape)
    spec = _spec(x, operations, result_shape)
    reasons: list[Reason] = []
    steps, own = plan_operations(spec, reasons)
    if reasons:
        raise LaunchError(str(PlanError("elementwise:", reasons)))
    for name in options.get("fractions", ()):
        if any(access.name == name and access.stored not in FLOATS for step in steps for access in step.accesses):
            raise LaunchError(f"elementwise: {name} is not an integer, and is added to integers; cast to float32 before it")
    y = _result(operands.get("out"), own, shape)
    arrays = {"x": x, "y": y, **given}
    arrays, copies = readable(arrays, shape, result_shape)
    request = request_of(arrays, shape, operations, None if y.type == own else SPEC_TYPES[y.type])
    return Interpretation(request, (Result("out", shape, y.type),), copies)


def _spec(x: Layout, operations: tuple[Operation, ...], axes: int) -> ElementwiseSpec:
    """A spec of the operations, with as many axes as they name."""
    fields = {"kind": "elementwise", "input": SPEC_TYPES[x.type], "operations": operations, "rank": max(1, axes)}
    return ElementwiseSpec.model_validate(fields)


def _interpret_named(x: Layout, operations: tuple[Operation, ...], operands: Mapping[str, Layout]) -> Interpretation:
    """The request of a call whose formulas have operands and further outputs, which are passed by name. Operands for each row, column
    or channel are arrays that broadcast along the other axes. Raises ``LaunchError``."""
    read: dict[str, Layout] = {}
    written: dict[str, Layout] = {}
    others: dict[str, Layout] = {}
    named: dict[str, str] = {}
    numbers: dict[str, str] = {}
    all_operations: list[Operation] = []
    for one in operations:
        if not isinstance(one, Formula):
            all_operations.append(one)
            continue
        for word, given in one.inputs.items():
            kernel = argument_name(word)
            if given.per == "all":
                numbers[kernel] = word
                continue
            layout = _of_type(word, operands[word], given.type)
            named[kernel.lower()] = word
            if given.per == "memory":
                others[kernel.lower()] = _of_size(word, layout, 1)
            else:
                read[kernel.lower()] = _along(word, layout, given.per)
        inputs = {
            word: each if each.per in ("all", "memory") else each.model_copy(update={"per": "element"}) for word, each in one.inputs.items()
        }
        all_operations.append(one.model_copy(update={"inputs": inputs}))
    shape = broadcast({"x": x, **{named[name]: layout for name, layout in read.items()}})
    for word, output in (item for one in operations for item in one.extra_outputs.items()):
        layout, kernel = _of_type(word, operands[word], output.type), argument_name(word)
        named[kernel] = word
        if output.reduce is None:
            if layout.shape != shape:
                raise LaunchError(f"elementwise: {word} has shape {layout.shape}, need {shape}")
            written[kernel] = layout
        elif output.per == "channel":
            raise LaunchError(f"elementwise: {word} is a reduction per channel, need per: all, row or column")
        else:
            axis = {"row": -2, "column": -1}.get(output.per or "all", 0)
            others[kernel] = _of_size(word, layout, shape[axis] if axis and len(shape) >= -axis else 1)
    result_shape = axes_kept(all_operations, shape)
    reasons: list[Reason] = []
    _, own = plan_operations(_spec(x, tuple(all_operations), result_shape), reasons)
    if reasons:
        raise LaunchError(str(PlanError("elementwise:", reasons)))
    y = _result(operands.get("out"), own, shape)
    arrays = {"x": x, "y": y, **read, **written}
    arrays, copies = readable(arrays, shape, result_shape, ("y", *written))
    copies = tuple(replace(copy, operand=named.get(copy.operand, copy.operand)) for copy in copies)
    request = request_of(arrays, shape, tuple(all_operations), None if y.type == own else SPEC_TYPES[y.type], others, named, numbers)
    return Interpretation(request, (Result("out", shape, y.type),), copies)


def _result(out: Layout | None, own: str, shape: tuple[int, ...]) -> Layout:
    """The layout of the result: that of ``out`` if it is given, else packed elements of the type ``own``. Raises ``LaunchError``."""
    kind = out.type if out is not None else own
    if kind not in SPEC_TYPES:
        raise LaunchError(f"elementwise: out has elements {kind}, need one of {', '.join(SPEC_TYPES.values())}")
    if out is not None and out.shape != shape:
        raise LaunchError(f"elementwise: out has shape {out.shape}, need {shape}")
    return out if out is not None else Layout.packed(shape, kind)


def _of_type(word: str, layout: Layout, kind: str) -> Layout:
    """The layout of an array that a formula declares with a type. Raises ``LaunchError``."""
    if kind == "bool" and layout.type in ("u8", "s8"):  # calls see arrays of truth values as bytes
        layout = replace(layout, type="bool")
    if layout.type != kind:
        got = ELEMENTS[layout.type].word if layout.type in ELEMENTS else layout.type
        raise LaunchError(f"elementwise: {word} has elements {got}, need {ELEMENTS[kind].word}, as the formula says")
    return layout


def _of_size(word: str, layout: Layout, size: int) -> Layout:
    """An array of some values in a row. Raises ``LaunchError``."""
    if prod(layout.shape) != size or Layout.packed(layout.shape, layout.type).strides != layout.strides:
        raise LaunchError(f"elementwise: {word} has shape {layout.shape}, need {size} values without gaps")
    return Layout((size,), (1,), layout.type, layout.alignment)


def _along(word: str, layout: Layout, per: str) -> Layout:
    """An operand with axes of extent 1 behind its own, so that it broadcasts along rows or images. Raises ``LaunchError``."""
    behind = {"row": 1, "channel": 2}.get(per, 0)
    if per == "element" or (behind and len(layout.shape) > behind):
        return layout
    if len(layout.shape) != 1:
        raise LaunchError(f"elementwise: {word} has shape {layout.shape}, need one axis for an operand per {per}")
    return replace(layout, shape=(*layout.shape, *(1,) * behind), strides=(*layout.strides, *(1,) * behind))


def _named_by(operation: Operation) -> tuple[str, ...]:
    """Operands and further outputs of a formula."""
    return (*operation.inputs, *operation.outputs) if isinstance(operation, Formula) else ()


def _with_places(
    operations: tuple[Operation, ...], operands: Mapping[str, Layout], numbers: tuple[str, ...]
) -> tuple[tuple[Operation, ...], list[str]]:
    """The operations, a bias that is an array as one for each element, and the names of the arrays that they read. ``numbers``: biases
    that are numbers."""
    names: list[str] = []
    seen: dict[str, int] = {}
    placed = []
    for operation in operations:
        for name in _named_by(operation):
            raise LaunchError(f"elementwise: the formula has the operand or output {name}, pass operands={{{name!r}: ...}}")
        seen[operation.op] = count = seen.get(operation.op, 0) + 1
        number = "" if count == 1 else str(count)
        if isinstance(operation, Bias):
            name = f"bias{number}"
            if name in NUMBERS and name not in operands and name not in numbers:
                raise LaunchError(f"elementwise: the operation bias reads a number or an array; pass {name}=...")
            operation = Bias(op="bias", per="result" if name in operands else "all")
        for operand in operation.operands():
            name = f"{operand.name.lower()}{number}"
            known = NUMBERS if operand.per == "all" else ARRAYS
            if operand.name.lower() not in known:
                raise LaunchError(
                    f"elementwise: no array or number of a call is for {operation.op}: need scale, with a constant, or multiply"
                )
            if name not in known:
                raise LaunchError(f"elementwise: at most two operations {operation.op} read arrays or numbers in one call")
            if operand.per != "all":
                if name not in operands:
                    raise LaunchError(f"elementwise: the operation {operation.op} reads an array; pass {name}=...")
                names.append(name)
        placed.append(operation)
    unused = [name for name in ARRAYS if name in operands and name not in names]
    unused += [name for name in numbers if seen.get("bias", 0) < 1 + NUMBERS.index(name)]
    if unused:
        raise LaunchError(f"elementwise: no operation reads {', '.join(unused)}")
    return tuple(placed), names
