"""Reductions as requests: the arguments of ``ops.reduce`` understood, and how an instance does them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import index
from typing import Any, ClassVar, get_args

import pydantic

from gemmgen.core.errors import LaunchError, Reason, SpecError
from gemmgen.kernels.epilogue.operations import DATA_TYPES
from gemmgen.kernels.reduction.arithmetic import Arithmetic, plan_arithmetic
from gemmgen.kernels.reduction.spec import InputType, OperationName, ReductionSpec
from gemmgen.kernels.requests import Fit, Interpretation, Layout, Request, Result, changed_fields, merged, replaced, say_once, widest

SPEC_TYPES: dict[str, str] = {kind: name for name, kind in DATA_TYPES.items()}
"""The types of a launch sequence as those of a spec."""
INDICES = ("argmin", "argmax")
ALIGNED_BYTES = 16


@dataclass(frozen=True)
class ReductionRequest(Request):
    """Y[outer, inner] = reduce X[outer, :, inner]; the results lie without gaps."""

    kind: ClassVar[str] = "reduction"
    operation: str
    x: Layout
    """With three axes: outer, reduced, inner."""
    output: str | None = None
    """Type of the results; None: the operation's own."""
    correction: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.x.shape

    @property
    def is_empty(self) -> bool:
        return 0 in self.x.shape[::2]

    @property
    def shapes(self) -> tuple[str, ...]:
        """The values of a spec's ``shape`` that describe it."""
        outer, _, inner = self.x.shape
        reduced_unit, inner_unit = (self.x.strides[axis] == 1 or self.x.shape[axis] <= 1 or self.x.is_empty for axis in (1, 2))
        found = ["all"] if outer == inner == 1 and reduced_unit else []
        found += ["rows"] if inner == 1 and reduced_unit else []
        found += ["columns"] if outer == 1 and inner_unit else []
        found += ["middle"] if inner_unit else []
        return (*found, "strided")

    @cached_property
    def traits(self) -> tuple[str, ...]:
        full = promise(ALIGNED_BYTES // self.x.element_bytes, self.x, self.shapes[0]) * self.x.element_bytes == ALIGNED_BYTES
        return (
            "" if self.operation == "sum" else self.operation,
            "" if self.x.type == "f32" else self.x.type,
            "strided" if self.shapes == ("strided",) else "",
            "" if full or self.shapes == ("strided",) else "unaligned",
        )


def promise(most: int, x: Layout, shape: str) -> int:
    """Elements, at most ``most``, that everything is a multiple of that a spec's ``alignment`` speaks of."""
    most = min(most, ALIGNED_BYTES // x.element_bytes)
    if x.is_empty:
        return most
    axes = {"all": (), "rows": (0,), "columns": (1,), "middle": (0, 1), "strided": (0, 1, 2)}[shape]
    seen = [x.alignment // x.element_bytes, *(x.strides[axis] for axis in axes if x.shape[axis] > 1)]
    seen += [x.shape[2]] if shape in ("columns", "middle") else []
    return widest(most, tuple(seen))


def fit_reduction(spec: ReductionSpec, request: ReductionRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    shape, x = spec.shape, request.x
    if shape not in request.shapes:
        return f"it reduces {shape}, the array can be read as {' or '.join(request.shapes)}"
    axes = {"all": (1,), "rows": (0, 1), "columns": (1, 2), "middle": (0, 1, 2), "strided": (0, 1, 2)}[shape]
    alignment = promise(spec.alignment, x, shape)
    wanted = DATA_TYPES[SPEC_TYPES[x.type]]
    probe = arithmetic(request.operation, wanted)
    changes: dict[str, Any] = {
        "operation": request.operation,
        "input": SPEC_TYPES[wanted],
        "accumulator": spec.accumulator if (spec.operation, spec.input) == (request.operation, SPEC_TYPES[wanted]) else None,
        "output": spec.output if _output(spec, request) else _output_name(request, probe),
        "correction": request.correction,
        "alignment": alignment,
        "prologue": (),
        "epilogue": (),
    }
    vector = getattr(spec.strategy, "vector", None)
    if spec.strategy is not None and vector is not None and vector > min(alignment, ALIGNED_BYTES // x.element_bytes):
        changes["strategy"] = spec.strategy.model_copy(update={"vector": None})
    changed = replaced(spec, changes)
    view = Layout(tuple(x.shape[axis] for axis in axes), tuple(x.strides[axis] for axis in axes), x.type, x.alignment)
    results = {"all": (1,), "rows": x.shape[:1], "columns": x.shape[2:], "middle": x.shape[::2], "strided": x.shape[::2]}[shape]
    kind = request.output or probe.output
    names = {"mean": "mean", "variance": "variance"} if probe.state == "moments" else {"Y": "out"}
    arrays = {"X": ("x", view)} | {name: (operand, Layout.packed(results, kind)) for name, operand in names.items()}
    return Fit(changed, arrays, derived=changed_fields(spec, changed))


def _output_name(request: ReductionRequest, types: Arithmetic) -> str | None:
    """The spec's ``output`` for what the request stores; None where that is the operation's own type."""
    return None if request.output is None or request.output == types.output else SPEC_TYPES[request.output]


def _output(spec: ReductionSpec, request: ReductionRequest) -> bool:
    """Whether the spec's own output type is what the request asks for."""
    if spec.output is None or (spec.operation, spec.input) != (request.operation, SPEC_TYPES[request.x.type]):
        return False
    return DATA_TYPES[spec.output] == (request.output or arithmetic(request.operation, request.x.type).output)


@cache
def arithmetic(operation: str, stored: str) -> Arithmetic:
    """The types that a reduction of elements of type ``stored`` has where nobody says otherwise."""
    spec = ReductionSpec(kind="reduction", operation=operation, input=SPEC_TYPES[stored])  # type: ignore[arg-type]
    return plan_arithmetic(spec, [])


def interpret_reduce(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: ``op``, ``axis``, ``keepdims``, ``correction``. Raises ``LaunchError``."""
    x, operation = operands["x"], options["op"]
    if operation not in get_args(OperationName):
        raise LaunchError(f"reduce: op is {operation!r}, need one of {', '.join(get_args(OperationName))}")
    if x.type not in [DATA_TYPES[name] for name in get_args(InputType)]:
        raise LaunchError(f"reduce: x has elements {x.type}, need one of {', '.join(get_args(InputType))}")
    if x.alignment < x.element_bytes:
        raise LaunchError(f"reduce: x does not start at a multiple of its {x.element_bytes} bytes an element")
    if options.get("correction", 0) not in (0, 1):
        raise LaunchError(f"reduce: correction is {options['correction']!r}, need 0 or 1")
    reduced = _axes(options.get("axis"), len(x.shape))
    if operation in INDICES and len(reduced) > 1 and reduced != tuple(range(len(x.shape))):
        raise LaunchError(f"reduce: {operation} takes one axis, or None for the index in the flattened array, got {options['axis']}")
    kept = tuple(axis for axis in range(len(x.shape)) if axis not in reduced)
    view = _three_axes(x, kept, reduced, operation)
    shape = tuple(1 if axis in reduced else x.shape[axis] for axis in range(len(x.shape)) if options.get("keepdims") or axis in kept)
    types = arithmetic(operation, x.type)
    names = ("mean", "variance") if types.state == "moments" else ("out",)
    given = [operands[name] for name in names if name in operands]
    if view.shape[1] == 0 and types.rejects_nothing and all(shape):
        raise LaunchError(f"reduce: {operation} of nothing has no value; the reduced extent is 0")
    kind = given[0].type if given else None
    _check_type(operation, x.type, kind)
    for name, out in zip(names, given, strict=False):
        _check_out(name, out, shape, given[0].type)
    request = ReductionRequest(operation, view, kind, int(options.get("correction", 0)))
    return Interpretation(request, tuple(Result(name, shape, kind or types.output, (kind or types.output) == "u8") for name in names))


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    given = tuple(range(rank)) if axis is None else tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    try:
        numbers = [rank if isinstance(one, bool) else index(one) for one in given]
    except TypeError:
        numbers = [rank]
    if not all(-rank <= number < rank for number in numbers):
        need = f"integers from {-rank} to {rank - 1}, or None for all" if rank else "None for an array without axes"
        raise LaunchError(f"reduce: axis is {axis!r}, need {need}")
    found = tuple(sorted(number % rank for number in numbers))
    if len(set(found)) < len(found):
        raise LaunchError(f"reduce: axis {axis!r} names an axis twice")
    return found


def _three_axes(x: Layout, kept: tuple[int, ...], reduced: tuple[int, ...], operation: str) -> Layout:
    """X as (outer, reduced, inner)."""

    def one(axes: Sequence[int]) -> tuple[int, int] | None:
        return merged(tuple(x.shape[axis] for axis in axes), tuple(x.strides[axis] for axis in axes))

    ordered = reduced if operation in INDICES else sorted(reduced, key=lambda axis: -abs(x.strides[axis]))
    middle = one(ordered)
    axes = [axis for axis in kept if x.shape[axis] != 1]
    choices = []
    for split in range(len(axes) + 1):
        outer, inner = one(axes[:split]), one(axes[split:])
        if outer is not None and inner is not None and middle is not None:
            # Rows where the reduced axis is contiguous, else columns, else whatever has a contiguous inner axis.
            by_rows = middle[1] == 1 or middle[0] <= 1
            rank = (not (inner[0] == 1 and by_rows), inner[1] != 1, split)
            choices.append((rank, Layout((outer[0], middle[0], inner[0]), (outer[1], middle[1], inner[1]), x.type, x.alignment)))
    if not choices or min(choices[0][1].strides) < 0:
        needs = "strides that are not negative" if choices else "one axis between at most two others"
        raise LaunchError(
            f"reduce: x of shape {x.shape} and strides {x.strides} (elements), reduced over axes {reduced}, is not what a kernel can "
            f"walk through, {needs}; reduce a contiguous copy{'' if choices else ', or axis by axis'}"
        )
    return min(choices, key=lambda choice: choice[0])[1]


def _check_type(operation: str, stored: str, kind: str | None) -> None:
    """Raises ``LaunchError`` unless a reduction stores results of the type ``kind`` (None: its own)."""
    reasons: list[Reason] = []
    kind = kind and SPEC_TYPES.get(kind, kind)
    try:
        fields = {"operation": operation, "input": SPEC_TYPES[stored], "output": kind}
        plan_arithmetic(ReductionSpec.model_validate({"kind": "reduction", **fields}), reasons)
    except pydantic.ValidationError:
        raise LaunchError(f"reduce: out has elements {kind}, which no reduction stores") from None
    if reasons:
        raise LaunchError(f"reduce: out has elements {kind}, need {reasons[0].need}")


def _check_out(name: str, out: Layout, shape: tuple[int, ...], kind: str) -> None:
    if out.shape != shape:
        raise LaunchError(f"reduce: {name} has shape {out.shape}, need {shape}")
    if out.type != kind:
        raise LaunchError(f"reduce: the results have elements of different types, {kind} and {out.type}")
    one = merged(out.shape, out.strides)
    if not out.is_empty and (one is None or (one[0] > 1 and one[1] != 1)):
        raise LaunchError(f"reduce: {name} has strides {out.strides}; results are stored without gaps: pass a contiguous array")


def packed_request(sizes: Sequence[int], options: Sequence[str]) -> ReductionRequest:
    """A request from extents (outer, reduced, inner) and words: ``argmax``, ``f16``, ``strided``, ``unaligned``. Raises ``SpecError``."""
    operation, kind, aligned, strided = "sum", "f32", True, False
    said: dict[str, str] = {}
    for option in options:
        if option in get_args(OperationName):
            say_once(said, "operation", option)
            operation = option
        elif option in SPEC_TYPES and option != "u8":
            say_once(said, "type", option)
            kind = option
        elif option in get_args(InputType):
            say_once(said, "type", option)
            kind = DATA_TYPES[option]
        elif option == "strided":
            strided = True
        elif option in ("aligned", "unaligned"):
            say_once(said, "alignment", option)
            aligned = option == "aligned"
        else:
            need = f"an operation ({', '.join(get_args(OperationName))}), a type such as f16, aligned, unaligned or strided"
            raise SpecError(f"a reduction has no option {option!r}: need {need}")
    outer, reduced, inner = sizes
    layout = Layout.packed((outer, reduced, inner), kind)
    strides = tuple(2 * stride for stride in layout.strides) if strided else layout.strides
    return ReductionRequest(operation, Layout(layout.shape, strides, kind, layout.alignment if aligned else layout.element_bytes))
