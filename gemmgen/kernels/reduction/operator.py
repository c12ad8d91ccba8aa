"""``gemmgen.ops.reduce``: from the arrays and options of a call to the request that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import index
from typing import Any, get_args

import pydantic

from gemmgen.core.errors import LaunchError, Reason
from gemmgen.kernels.epilogue.operations import DATA_TYPES
from gemmgen.kernels.reduction.arithmetic import JOINED, plan_arithmetic
from gemmgen.kernels.reduction.matcher import ALIGNED_BYTES, SPEC_TYPES, ReductionRequest, arithmetic, in_order
from gemmgen.kernels.reduction.plan import MAX_AXES
from gemmgen.kernels.reduction.spec import InputType, OperationName, ReductionSpec
from gemmgen.kernels.reduction.traversal import Axis, Tensor, tensor_of
from gemmgen.kernels.requests import Copy, Interpretation, Layout, Result, merged, widest


def interpret(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: ``op``, ``axis``, ``keepdims``, ``correction``, ``batch_invariant``.
    Raises ``LaunchError``."""
    x, operation = operands["x"], options["op"]
    if isinstance(operation, tuple):
        for name in operation:
            if name not in JOINED:
                raise LaunchError(f"reduce: one pass makes two of {', '.join(JOINED)}; got {name!r}")
        operation = "+".join(operation)
    elif operation not in get_args(OperationName):
        raise LaunchError(f"reduce: op is {operation!r}, need one of {', '.join(get_args(OperationName))}")
    if x.type not in [DATA_TYPES[name] for name in get_args(InputType)]:
        raise LaunchError(f"reduce: x has elements {x.type}, need one of {', '.join(get_args(InputType))}")
    if options.get("correction", 0) not in (0, 1):
        raise LaunchError(f"reduce: correction is {options['correction']!r}, need 0 or 1")
    if options.get("correction") and operation != "mean_variance":
        raise LaunchError(f"reduce: correction is {options['correction']!r}, need 0: {operation} divides by no count")
    reduced = _axes(options.get("axis"), len(x.shape))
    if in_order(operation) and len(reduced) > 1 and reduced != tuple(range(len(x.shape))):
        raise LaunchError(f"reduce: {operation} takes one axis, or None for the index in the flattened array, got {options['axis']}")
    kept = tuple(axis for axis in range(len(x.shape)) if axis not in reduced)
    tensor = _tensor(x, kept, reduced, operation)
    copies: tuple[Copy, ...] = ()
    vector = widest(ALIGNED_BYTES // x.element_bytes, (prod(x.shape[axis] for axis in reduced),)) if options.get("batch_invariant") else 1
    if tensor is None or x.alignment < vector * x.element_bytes:
        x, copies = Layout.packed(x.shape, x.type), (Copy("x", x.shape),)
        tensor = _tensor(x, kept, reduced, operation)
    if tensor is None:
        raise LaunchError(
            f"reduce: x of shape {x.shape} has kept and reduced axes in turn, more than the {MAX_AXES} that kernels walk through; reduce "
            "axis by axis"
        )
    three = _three_axes(x, kept, reduced, operation)
    view = three or _like_three_axes(x, tensor)
    shape = tuple(1 if axis in reduced else x.shape[axis] for axis in range(len(x.shape)) if options.get("keepdims") or axis in kept)
    types = arithmetic(operation, x.type)
    names = ("first", "second") if types.parts else ("mean", "variance") if types.state == "moments" else ("out",)
    given = [operands[name] for name in names if name in operands]
    if view.shape[1] == 0 and types.rejects_nothing and all(shape):
        raise LaunchError(f"reduce: {operation} of nothing has no value; the reduced extent is 0")
    kind = given[0].type if given and not types.parts else None
    _check_type(operation, x.type, kind)
    own: list[str] = [part.output for part in types.parts]
    for place, (name, out) in enumerate(zip(names, given, strict=False)):
        _check_out(name, out, shape, own[place] if own else given[0].type)
    request = ReductionRequest(operation, view, kind, int(options.get("correction", 0)), tensor, three is not None)
    if options.get("batch_invariant"):
        if "rows" not in request.shapes or types.parts:
            raise LaunchError(
                "reduce: batch_invariant holds for one operation on rows: reduce the last axes of an array without gaps in them"
            )
        request = replace(request, invariant=True)
    kinds = own or [str(kind or types.output)] * len(names)
    return Interpretation(request, tuple(Result(name, shape, one, one == "u8") for name, one in zip(names, kinds, strict=True)), copies)


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    given = tuple(range(rank)) if axis is None else tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    try:
        numbers = [rank if isinstance(one, bool) else index(one) for one in given]
    except TypeError:
        numbers = [rank]
    if not all(-rank <= number < rank for number in numbers):
        need = f"integers from {-rank} to {rank - 1}, or None for all" if rank else "None for an array without axes"
        raise LaunchError(f"reduce: axis is {axis!r}, need {need}")
    axes = tuple(sorted(number % rank for number in numbers))
    if len(set(axes)) < len(axes):
        raise LaunchError(f"reduce: axis {axis!r} names an axis twice")
    return axes


def _tensor(x: Layout, kept: tuple[int, ...], reduced: tuple[int, ...], operation: str) -> Tensor | None:
    """The axes of X, with those of results that lie without gaps; None if there are too many."""
    steps = Layout.packed(tuple(x.shape[axis] for axis in kept), x.type).strides
    tensor = tensor_of(
        (Axis(x.shape[axis], x.strides[axis], step) for axis, step in zip(kept, steps, strict=True)),
        (Axis(x.shape[axis], x.strides[axis]) for axis in reduced),
        in_order(operation),
    )
    return tensor if len(tensor.kept) + len(tensor.reduced) <= MAX_AXES else None


def _like_three_axes(x: Layout, tensor: Tensor) -> Layout:
    """Three axes of the same extents as X, regardless of its strides: its key in a table."""
    inner = tensor.kept[-1].extent if tensor.kept and abs(tensor.kept[-1].stride) == 1 else 1
    return Layout.packed((tensor.results // max(inner, 1), tensor.count, inner), x.type, x.alignment)


def _three_axes(x: Layout, kept: tuple[int, ...], reduced: tuple[int, ...], operation: str) -> Layout | None:
    """X as (outer, reduced, inner); None if no three strides walk through it, or negative ones."""

    def one(axes: Sequence[int]) -> tuple[int, int] | None:
        return merged(tuple(x.shape[axis] for axis in axes), tuple(x.strides[axis] for axis in axes))

    ordered = reduced if in_order(operation) else sorted(reduced, key=lambda axis: -abs(x.strides[axis]))
    middle = one(ordered)
    axes = [axis for axis in kept if x.shape[axis] != 1]
    choices = []
    for split in range(len(axes) + 1):
        outer, inner = one(axes[:split]), one(axes[split:])
        if outer is not None and inner is not None and middle is not None:
            # Rows where the reduced axis is contiguous, else columns, else any strategy for a contiguous inner axis.
            by_rows = middle[1] == 1 or middle[0] <= 1
            rank = (not (inner[0] == 1 and by_rows), inner[1] != 1, split)
            choices.append((rank, Layout((outer[0], middle[0], inner[0]), (outer[1], middle[1], inner[1]), x.type, x.alignment)))
    if not choices or min(choices[0][1].strides) < 0:
        return None
    return min(choices, key=lambda choice: choice[0])[1]


def _check_type(operation: str, stored: str, kind: str | None) -> None:
    """Raises ``LaunchError`` unless a reduction stores results of the type ``kind`` (None: its own)."""
    reasons: list[Reason] = []
    kind = kind and SPEC_TYPES.get(kind, kind)
    try:
        names = operation.split("+")
        fields = {"operation": tuple(names) if len(names) > 1 else operation, "input": SPEC_TYPES[stored], "output": kind}
        plan_arithmetic(ReductionSpec.model_validate({"kind": "reduction", **fields}), reasons)
    except pydantic.ValidationError:
        raise LaunchError(f"reduce: out has elements {kind}, which no reduction stores") from None
    if reasons:
        word = "bool or uint8" if kind == "bool" else kind  # calls see arrays of truth values as bytes
        raise LaunchError(f"reduce: out has elements {word}, need {reasons[0].need}")


def _check_out(name: str, out: Layout, shape: tuple[int, ...], kind: str) -> None:
    if out.shape != shape:
        raise LaunchError(f"reduce: {name} has shape {out.shape}, need {shape}")
    if out.type != kind:
        raise LaunchError(f"reduce: the results have elements of different types, {kind} and {out.type}")
    one = merged(out.shape, out.strides)
    if not out.is_empty and (one is None or (one[0] > 1 and one[1] != 1)):
        raise LaunchError(f"reduce: {name} has strides {out.strides}; results are stored without gaps: pass a contiguous array")
