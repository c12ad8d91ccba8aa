"""``torch.ops.gemmgen.reduce``, and its derivatives, for torch's autograd and ``torch.compile``.

Backward passes take operators of gemmgen where they read arrays of the input's size: the exponentials of a logsumexp.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from gemmgen.core.elements import BY_WORD, ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.requests import Layout
from gemmgen.ops.operators import operator_called
from gemmgen.ops.torch_operators.declaration import TorchOperator

SCHEMA = "(Tensor x, str op='sum', int[]? axis=None, bool keepdims=False, int correction=0) -> Tensor"

REDUCTIONS = ("sum", "mean", "max", "min", "logsumexp", "sum_of_squares", "l1_norm", "l2_norm")
"""Reductions that have derivatives."""


def call(x: Any, op: str = "sum", axis: Any = None, keepdims: bool = False, correction: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the function by which the operator computes. Raises ``LaunchError`` for an operation with two results."""
    if op == "mean_variance":
        raise LaunchError("torch.ops.gemmgen.reduce returns one tensor; call gemmgen.ops.reduce for mean_variance")
    return (x, op, None if axis is None else tuple(axis)), {"keepdims": keepdims, "correction": correction}


def result(x: Any, op: str = "sum", axis: Any = None, keepdims: bool = False, correction: int = 0) -> Any:
    """An empty tensor like the operator's result: extents may be symbolic."""
    rank = len(x.shape)
    axes = range(rank) if axis is None else [one % rank for one in axis]
    shape = [1 if place in axes else extent for place, extent in enumerate(x.shape) if keepdims or place not in axes]
    return x.new_empty(shape, dtype=_reduced_type(op, x.dtype))


@cache
def _reduced_type(op: str, kind: object) -> Any:
    """The result type of a reduction, found by a call on one element."""
    import torch

    word = str(kind).removeprefix("torch.")
    stored = Layout.packed((1,), "s8" if kind == torch.bool else BY_WORD.get(word, word))
    (result,) = operator_called("reduce").interpret({"x": stored}, {"op": op}).results
    return torch.bool if result.truth else getattr(torch, ELEMENTS[result.type].word)


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps the tensors that ``backward`` reads. Raises ``LaunchError`` for reductions without derivatives."""
    defaults: tuple[Any, ...] = (None, "sum", None, False, 0)
    x, operation, axis, keepdims, _ = (*inputs, *defaults[len(inputs) :])
    if operation not in REDUCTIONS:
        raise LaunchError(f"reduce: no derivative of {operation} is known; known are {', '.join(REDUCTIONS)}")
    rank = len(x.shape)
    ctx.axes = list(range(rank)) if axis is None else [one % rank for one in axis]
    ctx.operation, ctx.keepdims, ctx.shape, ctx.dtype, ctx.given = operation, keepdims, x.shape, x.dtype, len(inputs)
    if operation not in ("sum", "mean"):
        ctx.save_for_backward(x, output)


def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
    """Gradients of the operator's arguments."""
    whole = [1 if place in ctx.axes else extent for place, extent in enumerate(ctx.shape)]
    spread = dy.reshape(whole)
    if ctx.operation in ("sum", "mean"):
        if ctx.operation == "mean":
            spread = spread / math.prod(ctx.shape[axis] for axis in ctx.axes)
        dx = spread.to(ctx.dtype).expand(ctx.shape)
    else:
        x, y = ctx.saved_tensors
        dx = _reduced(ctx.operation, x, y.reshape(whole), spread, ctx.axes).to(ctx.dtype)
    return (dx, None, None, None, None)[: ctx.given]


def _reduced(operation: str, x: Any, y: Any, dy: Any, axes: list[int]) -> Any:
    import torch

    if operation in ("max", "min"):  # equal elements share the gradient, as torch.amax has it
        chosen = x == y.to(x.dtype)
        return torch.where(chosen, dy / torch.ops.gemmgen.reduce(chosen, "sum", axes, True), 0)
    if operation == "logsumexp":
        values = x if x.dtype in (torch.float32, torch.float64) else x.float()
        down, share = (-y).to(values.dtype), dy.to(values.dtype)
        return torch.ops.gemmgen.elementwise(values, "bias exp multiply", down, None, share)
    if operation == "sum_of_squares":
        return 2 * dy * x
    if operation == "l1_norm":
        return dy * x.sign()
    return torch.where(y == 0, 0, dy * x / y)


OPERATOR = TorchOperator(SCHEMA, call, result, save, backward)
