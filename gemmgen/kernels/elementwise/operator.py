"""``gemmgen.ops.elementwise``: from the arrays and options of a call to the request that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmgen.core.elements import FLOATS
from gemmgen.core.errors import LaunchError, PlanError, Reason
from gemmgen.kernels.elementwise.matcher import ARRAYS, NUMBERS, SPEC_TYPES, WORDS, broadcast, readable, request_of
from gemmgen.kernels.elementwise.plan import plan_operations
from gemmgen.kernels.elementwise.spec import ElementwiseSpec
from gemmgen.kernels.epilogue.activations import operations_named
from gemmgen.kernels.epilogue.operations import Bias, Operation
from gemmgen.kernels.requests import Interpretation, Layout, Result


def parse_operations(wanted: Any) -> tuple[Operation, ...]:
    """Operations from names, formulas, mappings as in a spec, or several of them. Raises ``LaunchError``."""
    return tuple(operations_named("elementwise: operation", wanted, WORDS))


def interpret(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: ``operations`` as ``parse_operations`` takes them. Raises ``LaunchError``."""
    x = operands["x"]
    if x.type not in SPEC_TYPES:
        raise LaunchError(f"elementwise: x has elements {x.type}, need one of {', '.join(SPEC_TYPES.values())}")
    operations, names = _with_places(parse_operations(options.get("operations")), operands)
    given = {name: operands[name] for name in names}
    for name, layout in given.items():
        if layout.type != x.type:
            raise LaunchError(f"elementwise: {name} has elements {layout.type}, need x's, {x.type}")
    shape = broadcast({"x": x, **given})
    spec = ElementwiseSpec.model_validate({"kind": "elementwise", "input": SPEC_TYPES[x.type], "operations": operations})
    reasons: list[Reason] = []
    steps, own = plan_operations(spec, reasons)
    if reasons:
        raise LaunchError(str(PlanError("elementwise:", reasons)))
    for name in options.get("fractions", ()):
        if any(access.name == name and access.stored not in FLOATS for step in steps for access in step.accesses):
            raise LaunchError(f"elementwise: {name} is not an integer, and is added to integers; cast to float32 before it")
    out = operands.get("out")
    kind = out.type if out is not None else own
    if kind not in SPEC_TYPES:
        raise LaunchError(f"elementwise: out has elements {kind}, need one of {', '.join(SPEC_TYPES.values())}")
    if out is not None and out.shape != shape:
        raise LaunchError(f"elementwise: out has shape {out.shape}, need {shape}")
    arrays = {"x": x, "y": out if out is not None else Layout.packed(shape, kind), **given}
    arrays, copies = readable(arrays, shape)
    request = request_of(arrays, shape, operations, None if kind == own else SPEC_TYPES[kind])
    return Interpretation(request, (Result("out", shape, kind),), copies)


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
        found.append(operation)
    unused = [name for name in ARRAYS if name in operands and name not in names]
    if unused:
        raise LaunchError(f"elementwise: no operation reads {', '.join(unused)}")
    return tuple(found), names
