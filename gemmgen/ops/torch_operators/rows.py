"""``torch.ops.gemmgen.softmax`` and the other operations on rows, with their derivatives, for torch's autograd and ``torch.compile``.

The number of an operator's results is fixed. Norms of a sum, which return the sum too, are separate operators (``rms_norm_of_sum``), as are
the gradients of norms with a weight (``rms_norm_gradients``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmgen.ops.torch_operators.declaration import TorchOperator

AXIS = "int axis=-1"
FUNCTIONS = {
    "softmax": "softmax",
    "softmax_gradient": "softmax_gradient",
    "log_softmax": "log_softmax",
    "log_softmax_gradient": "log_softmax_gradient",
    "cumsum": "cumsum",
    "logcumsumexp": "logcumsumexp",
    "topk": "topk",
    "rms_norm": "rms_norm",
    "rms_norm_of_sum": "rms_norm",
    "rms_norm_gradient": "rms_norm_gradient",
    "rms_norm_gradients": "rms_norm_gradient",
    "layer_norm": "layer_norm",
    "layer_norm_of_sum": "layer_norm",
    "layer_norm_gradient": "layer_norm_gradient",
    "layer_norm_gradients": "layer_norm_gradient",
}
"""For each operator the function of ``gemmgen.ops`` that computes it."""


def like(x: Any, axis: int, count: int | None = None, kind: Any = None) -> Any:
    """An empty tensor as operations along an axis return it: of x's shape, or ``count`` elements along it, contiguous there."""
    axis %= len(x.shape)
    moved = [extent for place, extent in enumerate(x.shape) if place != axis]
    return x.new_empty([*moved, x.shape[axis] if count is None else count], dtype=kind).movedim(-1, axis)


def _all(inputs: tuple[object, ...], defaults: tuple[object, ...]) -> tuple[Any, ...]:
    return (*inputs, *defaults[len(inputs) :])


# -- One operand


def _simple(name: str) -> TorchOperator:
    """An operation of one operand; ``save`` keeps the result for those whose gradient is a function of it."""

    def call(x: object, axis: int = -1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (x,), {"axis": axis}

    def result(x: object, axis: int = -1) -> Any:
        return like(x, axis)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.given, ctx.axis = len(inputs), _all(inputs, (None, -1))[1]
        if name != "cumsum":
            ctx.save_for_backward(output)

    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        import torch

        if name == "cumsum":
            dx = torch.ops.gemmgen.cumsum(dy.flip(ctx.axis), ctx.axis).flip(ctx.axis)
        else:
            dx = getattr(torch.ops.gemmgen, f"{name}_gradient")(dy, *ctx.saved_tensors, ctx.axis)
        return (dx, None)[: ctx.given]

    schema = f"(Tensor x, {AXIS}) -> Tensor"
    if name == "logcumsumexp":
        return TorchOperator(schema, call, result)
    return TorchOperator(schema, call, result, save, backward)


def _simple_gradient() -> TorchOperator:
    """The gradient as a function of the result."""

    def call(dy: object, y: object, axis: int = -1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (dy, y), {"axis": axis}

    def result(dy: object, y: object, axis: int = -1) -> Any:
        return like(y, axis)

    return TorchOperator(f"(Tensor dy, Tensor y, {AXIS}) -> Tensor", call, result)


def _selection() -> TorchOperator:
    """The largest or smallest elements; the gradient goes to their places."""

    def call(x: object, k: int, axis: int = -1, largest: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (x, k), {"axis": axis, "largest": largest}

    def result(x: object, k: int, axis: int = -1, largest: bool = True) -> Any:
        import torch

        return like(x, axis, k), like(x, axis, k, torch.int64)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, _, ctx.axis, _ = _all(inputs, (None, None, -1, True))
        ctx.given, ctx.shape = len(inputs), x.shape
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    def backward(ctx: Any, dvalues: Any, dindices: object) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        dx = dvalues.new_zeros(ctx.shape).scatter(ctx.axis, indices, dvalues)
        return (dx, None, None, None)[: ctx.given]

    return TorchOperator(f"(Tensor x, int k, {AXIS}, bool largest=True) -> (Tensor, Tensor)", call, result, save, backward)


# -- Norms


def _norm(name: str, eps: float) -> TorchOperator:
    """``rms_norm`` or ``layer_norm``; only the second has a bias."""

    def call(
        x: object, weight: object = None, bias: object = None, eps: float = eps, axis: int = -1
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (x, weight), {"eps": eps, "axis": axis} | ({"bias": bias} if name == "layer_norm" else {})

    def result(x: object, weight: object = None, bias: object = None, eps: float = eps, axis: int = -1) -> Any:
        return like(x, axis)

    def save(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        x, weight, bias, ctx.eps, ctx.axis = _all(inputs, (None, None, None, eps, -1))
        ctx.given = len(inputs)
        ctx.save_for_backward(x, weight, bias)

    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        dx, dweight, dbias = _gradients(name, dy, x, weight, bias, ctx.eps, ctx.axis)
        return (dx, dweight, dbias, None, None)[: ctx.given]

    schema = f"(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps={eps}, {AXIS}) -> Tensor"
    return TorchOperator(schema, call, result, save, backward)


def _norm_of_sum(name: str, eps: float) -> TorchOperator:
    """The norm of x + residual, with the sum as its second result."""

    def call(
        x: object, residual: object, weight: object = None, bias: object = None, eps: float = eps, axis: int = -1
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (x, weight), {"residual": residual, "eps": eps, "axis": axis} | ({"bias": bias} if name == "layer_norm" else {})

    def result(x: object, residual: object, weight: object = None, bias: object = None, eps: float = eps, axis: int = -1) -> Any:
        return like(x, axis), like(x, axis)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, _, weight, bias, ctx.eps, ctx.axis = _all(inputs, (None, None, None, None, eps, -1))
        ctx.given = len(inputs)
        ctx.save_for_backward(output[1], weight, bias)

    def backward(ctx: Any, dy: Any, dtotal: object) -> tuple[Any, ...]:
        total, weight, bias = ctx.saved_tensors
        dx, dweight, dbias = _gradients(name, dy, total, weight, bias, ctx.eps, ctx.axis)
        dx = dx + dtotal
        return (dx, dx, dweight, dbias, None, None)[: ctx.given]

    schema = f"(Tensor x, Tensor residual, Tensor? weight=None, Tensor? bias=None, float eps={eps}, {AXIS}) -> (Tensor, Tensor)"
    return TorchOperator(schema, call, result, save, backward)


def _gradients(name: str, dy: object, x: object, weight: Any, bias: Any, eps: float, axis: int) -> tuple[Any, Any, Any]:
    """Gradients of x, weight and bias; None for those that were not given."""
    import torch

    if weight is None and bias is None:
        return getattr(torch.ops.gemmgen, f"{name}_gradient")(dy, x, eps, axis), None, None
    used = torch.ones_like(bias) if weight is None else weight
    dx, *sums = getattr(torch.ops.gemmgen, f"{name}_gradients")(dy, x, used, eps, axis)
    return dx, None if weight is None else sums[0].to(weight.dtype), None if bias is None else sums[1].to(bias.dtype)


def _norm_gradient(eps: float) -> TorchOperator:
    """The gradient of a norm without a weight."""

    def call(dy: object, x: object, eps: float = eps, axis: int = -1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (dy, x), {"eps": eps, "axis": axis}

    def result(dy: object, x: object, eps: float = eps, axis: int = -1) -> Any:
        return like(x, axis)

    return TorchOperator(f"(Tensor dy, Tensor x, float eps={eps}, {AXIS}) -> Tensor", call, result)


def _norm_gradients(results: int, eps: float) -> TorchOperator:
    """The gradients of x, weight and, of three results, bias."""

    def call(dy: object, x: object, weight: object, eps: float = eps, axis: int = -1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (dy, x, weight), {"eps": eps, "axis": axis}

    def result(dy: object, x: Any, weight: Any, eps: float = eps, axis: int = -1) -> Any:
        import torch

        kind = weight.dtype if weight.dtype == x.dtype else torch.float32
        return (like(x, axis), *(weight.new_empty(weight.shape, dtype=kind) for _ in range(results - 1)))

    returned = ", ".join(["Tensor"] * results)
    return TorchOperator(f"(Tensor dy, Tensor x, Tensor weight, float eps={eps}, {AXIS}) -> ({returned})", call, result)


RMS_EPS, LAYER_EPS = 1e-06, 1e-05
OPERATORS: Mapping[str, TorchOperator] = {
    **{name: _simple(name) for name in ("softmax", "log_softmax", "cumsum", "logcumsumexp")},
    **{name: _simple_gradient() for name in ("softmax_gradient", "log_softmax_gradient")},
    "topk": _selection(),
    "rms_norm": _norm("rms_norm", RMS_EPS),
    "rms_norm_gradient": _norm_gradient(RMS_EPS),
    "rms_norm_gradients": _norm_gradients(2, RMS_EPS),
    "layer_norm_gradient": _norm_gradient(LAYER_EPS),
    "layer_norm_gradients": _norm_gradients(3, LAYER_EPS),
    "rms_norm_of_sum": _norm_of_sum("rms_norm", RMS_EPS),
    "layer_norm": _norm("layer_norm", LAYER_EPS),
    "layer_norm_of_sum": _norm_of_sum("layer_norm", LAYER_EPS),
}
