"""Derivatives of ``torch.ops.gemmgen.reduce`` and ``.elementwise``, for torch's autograd and ``torch.compile``.

Backward passes take the same operators where they read arrays of the input's size: the exponentials of a logsumexp, the values
between the operations of an elementwise kernel, which are computed again instead of kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.epilogue.operations import LeakyRelu

REDUCTIONS = ("sum", "mean", "max", "min", "logsumexp", "sum_of_squares", "l1_norm", "l2_norm")
"""Reductions that have derivatives."""
LEAKY_SLOPE: float = LeakyRelu.model_fields["slope"].default


def save_reduction(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps what ``reduction_backward`` reads. Raises ``LaunchError`` for reductions without derivatives."""
    defaults: tuple[Any, ...] = (None, "sum", None, False, 0)
    x, operation, axis, keepdims, _ = (*inputs, *defaults[len(inputs) :])
    if operation not in REDUCTIONS:
        raise LaunchError(f"reduce: no derivative of {operation} is known; known are {', '.join(REDUCTIONS)}")
    rank = len(x.shape)
    ctx.axes = list(range(rank)) if axis is None else [one % rank for one in axis]
    ctx.operation, ctx.keepdims, ctx.shape, ctx.dtype, ctx.given = operation, keepdims, x.shape, x.dtype, len(inputs)
    if operation not in ("sum", "mean"):
        ctx.save_for_backward(x, output)


def reduction_backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
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


def save_elementwise(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps what ``elementwise_backward`` reads. Raises ``LaunchError`` for operations without derivatives."""
    defaults: tuple[Any, ...] = (None, "", None, None, None, 1.0)
    x, operations, bias, z, f, gamma = (*inputs, *defaults[len(inputs) :])
    words = operations.split()
    for word in words:
        if word not in OPERATIONS:
            raise LaunchError(f"elementwise: no derivative of {word} is known; known are {', '.join(OPERATIONS)}")
    ctx.save_for_backward(x, bias, z, f, output)
    ctx.words, ctx.gamma, ctx.given = words, gamma, len(inputs)


def elementwise_backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
    """Gradients of the operator's arguments, from the last operation to the first."""
    import torch

    x, bias, z, f, output = ctx.saved_tensors
    words = ctx.words
    gradients: dict[str, Any] = {"bias": None, "z": None, "f": None}
    after = output
    for place in reversed(range(len(words))):
        word = words[place]
        done = words[:place]
        given = {"bias": bias if "bias" in done else None, "z": z if "residual" in done else None, "f": f if "multiply" in done else None}
        before = x if not done else torch.ops.gemmgen.elementwise(x, " ".join(done), gamma=ctx.gamma, **given)
        if word == "bias":
            gradients["bias"] = dy.sum_to_size(bias.shape)
        elif word == "residual":
            gradients["z"] = (ctx.gamma * dy).sum_to_size(z.shape)
        elif word == "multiply":
            gradients["f"] = (dy * before).sum_to_size(f.shape)
            dy = dy * f
        else:
            dy = OPERATIONS[word](dy, before, after)
        after = before
    return (dy.sum_to_size(x.shape), None, gradients["bias"], gradients["z"], gradients["f"], None)[: ctx.given]


def _aten(name: str) -> Any:
    import torch

    return getattr(torch.ops.aten, name)


OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "bias": lambda dy, v, y: dy,
    "residual": lambda dy, v, y: dy,
    "multiply": lambda dy, v, y: dy,
    "relu": lambda dy, v, y: _aten("threshold_backward")(dy, v, 0),
    "leaky_relu": lambda dy, v, y: _aten("leaky_relu_backward")(dy, v, LEAKY_SLOPE, False),
    "sigmoid": lambda dy, v, y: _aten("sigmoid_backward")(dy, y),
    "tanh": lambda dy, v, y: _aten("tanh_backward")(dy, y),
    "silu": lambda dy, v, y: _aten("silu_backward")(dy, v),
    "gelu": lambda dy, v, y: _aten("gelu_backward")(dy, v, approximate="none"),
    "exp": lambda dy, v, y: dy * y,
    "sqrt": lambda dy, v, y: dy / (2 * y),
    "square": lambda dy, v, y: 2 * dy * v,
    "abs": lambda dy, v, y: dy * v.sign(),
}
"""Operations that have derivatives, each with the gradient before it from that after it, the value before, and the value after."""
