"""``torch.ops.gemmgen.matmul``, and its derivatives by the same operator.

With y = act(z), z = alpha a b + bias + gamma residual, and dz = dy act'(z): da = alpha dz bᵀ, db = alpha aᵀ dz, and dz itself goes to the
bias, summed up, and to the residual. act' needs the result where that determines it (as in torch), else z, which is recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.epilogue.operations import LeakyRelu
from gemmgen.ops.torch_operators.declaration import TorchOperator

SCHEMA = (
    "(Tensor a, Tensor b, Tensor? bias=None, Tensor? residual=None, float alpha=1.0, float gamma=1.0, str activation='', "
    "Tensor? scale_a=None, Tensor? scale_b=None, Tensor? scale_out=None, str output='', str precision='f32') -> Tensor"
)
_FLOATS = ("torch.float32", "torch.float16", "torch.bfloat16")
BY_RESULT = ("relu", "leaky_relu", "sigmoid", "tanh")
"""Activations whose derivative their result tells."""
BY_ARGUMENT = ("silu", "gelu", "gelu_tanh")
"""Activations whose derivative is computed from their input."""
DEFAULTS: tuple[Any, ...] = (None, None, None, None, 1.0, 1.0, "", None, None, None, "", "f32")
"""Defaults of the operator's arguments."""
LEAKY_SLOPE: float = LeakyRelu.model_fields["slope"].default


def call(
    a: object,
    b: object,
    bias: object = None,
    residual: object = None,
    alpha: float = 1.0,
    gamma: float = 1.0,
    activation: str = "",
    scale_a: object = None,
    scale_b: object = None,
    scale_out: object = None,
    output: str = "",
    precision: str = "f32",
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the function by which the operator computes."""
    scales = {"scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out}
    words = {"activation": activation or None, "output": output or None, "precision": precision}
    return (a, b), {"bias": bias, "residual": residual, "alpha": alpha, "gamma": gamma, **scales, **words}


def result(
    a: Any,
    b: Any,
    bias: object = None,
    residual: object = None,
    alpha: object = 1.0,
    gamma: object = 1.0,
    activation: object = "",
    scale_a: object = None,
    scale_b: object = None,
    scale_out: object = None,
    output: Any = "",
    precision: object = "f32",
) -> Any:
    """An empty tensor like the operator's result: extents may be symbolic."""
    import torch

    left, right = a.shape, b.shape
    batch = torch.broadcast_shapes(left[:-2], right[:-2])
    rows = [left[-2]] if len(left) > 1 else []
    columns = [right[-1]] if len(right) > 1 else []
    plain = alpha == 1 and not activation and all(given is None for given in (bias, scale_a, scale_b, scale_out))
    word = output or product_type(str(a.dtype), str(b.dtype), plain)
    return a.new_empty([*batch, *rows, *columns], dtype=getattr(torch, word))


def save(ctx: Any, inputs: tuple[object, ...], output: Any) -> None:
    """Keeps the tensors that ``backward`` reads. Raises ``LaunchError`` for products that have no derivatives."""
    every = (*inputs, *DEFAULTS[len(inputs) :])
    a, b, bias, residual, alpha, gamma, activation, scale_a, scale_b, scale_out, _, precision = every
    if any(scale is not None for scale in (scale_a, scale_b, scale_out)) or not {str(t.dtype) for t in (a, b, output)} <= set(_FLOATS):
        raise LaunchError("matmul: derivatives are of float32, float16 and bfloat16 products without scales; pass detached tensors")
    if activation and activation not in (*BY_RESULT, *BY_ARGUMENT):
        raise LaunchError(f"matmul: no derivative of {activation} is known; known are {', '.join((*BY_RESULT, *BY_ARGUMENT))}")
    result = output if activation in BY_RESULT else None
    ctx.save_for_backward(a, b, bias, residual if activation and result is None else None, result)
    ctx.numbers = alpha, gamma, activation, precision


def backward(context: Any, dy: Any) -> tuple[Any, ...]:
    """Gradients of the operator's arguments."""
    a, b, bias, residual, result = context.saved_tensors
    alpha, gamma, activation, precision = context.numbers
    given = len(context.needs_input_grad)
    needs = (*context.needs_input_grad, False, False)
    dz = dy
    if activation:
        z = None if result is not None else _product(a, b, alpha, precision, bias, residual, gamma)
        dz = through(activation, dy, result, z)
    dz = dz.contiguous()
    da, db = product_gradients(a, b, dz, alpha, precision, needs[:2])
    dbias = dz.sum_to_size(bias.shape).to(bias.dtype) if needs[2] else None
    dresidual = gamma * dz if needs[3] else None
    return (da, db, dbias, dresidual, *[None] * 8)[:given]


def product_gradients(a: Any, b: Any, dz: Any, alpha: float, precision: str, needs: Sequence[bool] = (True, True)) -> tuple[Any, Any]:
    """Gradients of both factors of alpha a b from that of the product; None where ``needs`` says so."""
    vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
    left, right = a.unsqueeze(0) if vector_a else a, b.unsqueeze(1) if vector_b else b
    whole = dz.unsqueeze(-1) if vector_b else dz
    whole = whole.unsqueeze(-2) if vector_a else whole
    da = db = None
    if needs[0]:
        da = _product(whole, right.mT, alpha, precision).sum_to_size(_batched(left, whole)).reshape(a.shape).to(a.dtype)
    if needs[1]:
        if len(right.shape) == 2:  # one product instead of a batch, and a sum over it
            left, whole = left.flatten(0, -2), whole.flatten(0, -2)
        db = _product(left.mT, whole, alpha, precision).sum_to_size(_batched(right, whole)).reshape(b.shape).to(b.dtype)
    return da, db


def _batched(factor: Any, product: Any) -> tuple[int, ...]:
    """The factor's shape with as many axes as the product has."""
    return (1,) * (len(product.shape) - len(factor.shape)) + tuple(factor.shape)


def _product(a: Any, b: Any, alpha: float, precision: str, bias: object = None, residual: object = None, gamma: float = 1.0) -> Any:
    import torch

    both_float32 = a.dtype == b.dtype == torch.float32
    return torch.ops.gemmgen.matmul(a, b, bias, residual, alpha, gamma, precision=precision if both_float32 else "f32")


def through(activation: str, dy: object, result: object, z: object) -> Any:
    """Gradient before an activation, by torch's own formulas."""
    import torch

    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(dy, result, 0)
    if activation == "leaky_relu":
        return aten.leaky_relu_backward(dy, result, LEAKY_SLOPE, True)
    if activation == "sigmoid":
        return aten.sigmoid_backward(dy, result)
    if activation == "tanh":
        return aten.tanh_backward(dy, result)
    if activation == "silu":
        return aten.silu_backward(dy, z)
    return aten.gelu_backward(dy, z, approximate="tanh" if activation == "gelu_tanh" else "none")


@cache
def product_type(a: str, b: str, plain: bool) -> str:
    """The word for the type of a product of factors of these, ``plain`` as it is."""
    from gemmgen.core.elements import BY_WORD, ELEMENTS
    from gemmgen.kernels.gemm.request import result_type

    kinds = [BY_WORD[word.removeprefix("torch.")] for word in (a, b)]
    return ELEMENTS[result_type(kinds[0], kinds[1], plain)].word


OPERATOR = TorchOperator(SCHEMA, call, result, save, backward)
