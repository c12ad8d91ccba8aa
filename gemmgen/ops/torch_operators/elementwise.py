"""``torch.ops.gemmgen.elementwise``: its schema, its result for tracing, and its derivatives.

The backward pass takes the same operator for the values between the operations, which are computed again instead of kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.epilogue.operations import LeakyRelu
from gemmgen.ops.torch_operators.declaration import TorchOperator

SCHEMA = "(Tensor x, str operations='', Tensor? bias=None, Tensor? z=None, Tensor? f=None, float gamma=1.0) -> Tensor"
LEAKY_SLOPE: float = LeakyRelu.model_fields["slope"].default


def call(
    x: object, operations: str = "", bias: object = None, z: object = None, f: object = None, gamma: float = 1.0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the function by which the operator computes."""
    return (x, tuple(operations.split())), {"bias": bias, "z": z, "f": f, "gamma": gamma}


def result(x: Any, operations: str = "", bias: Any = None, z: Any = None, f: Any = None, gamma: object = 1.0) -> Any:
    """A tensor of the result's shape and type, without computing it: shapes may be symbolic."""
    import torch

    return x.new_empty(torch.broadcast_shapes(*(array.shape for array in (x, bias, z, f) if array is not None)))


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps the tensors that ``backward`` reads. Raises ``LaunchError`` for operations without derivatives."""
    defaults: tuple[Any, ...] = (None, "", None, None, None, 1.0)
    x, operations, bias, z, f, gamma = (*inputs, *defaults[len(inputs) :])
    words = operations.split()
    for word in words:
        if word not in OPERATIONS:
            raise LaunchError(f"elementwise: no derivative of {word} is known; known are {', '.join(OPERATIONS)}")
    ctx.save_for_backward(x, bias, z, f, output)
    ctx.words, ctx.gamma, ctx.given = words, gamma, len(inputs)


def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
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
    "gelu_tanh": lambda dy, v, y: _aten("gelu_backward")(dy, v, approximate="tanh"),
    "exp": lambda dy, v, y: dy * y,
    "sqrt": lambda dy, v, y: dy / (2 * y),
    "square": lambda dy, v, y: 2 * dy * v,
    "abs": lambda dy, v, y: dy * v.sign(),
}
"""Operations that have derivatives, each with the gradient before it from that after it, the value before, and the value after."""


OPERATOR = TorchOperator(SCHEMA, call, result, save, backward)
