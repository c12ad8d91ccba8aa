"""``torch.ops.gemmgen.grouped_matmul`` and its derivatives, by operators of gemmgen.

With y = act(z) and z = alpha a b[g] + bias[g] in the rows of group g, and dz = dy act'(z): da = alpha dz b[g]ᵀ is a grouped product
again, db[g] = alpha a[rows]ᵀ dz[rows] one whose groups are values of k, and bias[g] gets the sum of the
group's rows. Rows beyond the last offset belong to no group: their gradient is 0, and nothing flows from them.
"""

from __future__ import annotations

from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.ops.torch_operators.declaration import Extra, TorchOperator
from gemmgen.ops.torch_operators.matmul import BY_ARGUMENT, BY_RESULT, product_type, through

SCHEMA = (
    "(Tensor a, Tensor b, Tensor offsets, Tensor? bias=None, float alpha=1.0, str activation='', Tensor? scale_a=None, "
    "Tensor? scale_b=None, Tensor? scale_out=None, str output='') -> Tensor"
)
SCHEMA_OF_WEIGHTS = "(Tensor a, Tensor dz, Tensor offsets, float alpha=1.0) -> Tensor"
"""Schema of ``torch.ops.gemmgen.grouped_matmul_weights``: alpha a[rows]ᵀ dz[rows] of every group."""
DEFAULTS: tuple[Any, ...] = (None, 1.0, "", None, None, None, "")
"""Defaults of the operator's arguments from ``bias`` on."""
_HALVES = ("torch.float16", "torch.bfloat16")


def call(
    a: object,
    b: object,
    offsets: object,
    bias: object = None,
    alpha: float = 1.0,
    activation: str = "",
    scale_a: object = None,
    scale_b: object = None,
    scale_out: object = None,
    output: str = "",
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the function by which the operator computes."""
    scales = {"scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out}
    return (a, b, offsets), {"bias": bias, "alpha": alpha, "activation": activation or None, "output": output or None, **scales}


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps the tensors that ``backward`` reads. Raises ``LaunchError`` for products that have no derivatives."""
    a, b, offsets, bias, alpha, activation, *scales, _ = (*inputs, *DEFAULTS[len(inputs) - 3 :])
    scaled = any(scale is not None for scale in scales)
    if scaled or not {str(a.dtype), str(b.dtype)} <= set(_HALVES) or not output.dtype.is_floating_point:
        raise LaunchError("grouped_matmul: derivatives are of float16 and bfloat16 products without scales; pass detached tensors")
    if activation and activation not in (*BY_RESULT, *BY_ARGUMENT):
        raise LaunchError(f"grouped_matmul: no derivative of {activation} is known; known are {', '.join((*BY_RESULT, *BY_ARGUMENT))}")
    ctx.save_for_backward(a, b, offsets, bias, output if activation in BY_RESULT else None)
    ctx.numbers = alpha, activation, len(inputs)


def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
    """Gradients of the operator's arguments."""
    import torch

    a, b, offsets, bias, result = ctx.saved_tensors
    alpha, activation, given = ctx.numbers
    needs = (*ctx.needs_input_grad, False)
    rows = torch.arange(a.shape[0], device=a.device, dtype=torch.int32)
    inside = (rows < offsets[-1:]).unsqueeze(1) if len(offsets) else torch.zeros_like(rows, dtype=torch.bool).unsqueeze(1)
    dz = dy
    if activation:
        word = str(dy.dtype).removeprefix("torch.")
        z = None if result is not None else torch.ops.gemmgen.grouped_matmul(a, b, offsets, bias, alpha, output=word)
        dz = through(activation, dy, result, z)
    dz = torch.where(inside, dz, 0)
    half = dz.to(a.dtype).contiguous()
    da = db = dbias = None
    if needs[0]:
        word = str(a.dtype).removeprefix("torch.")
        da = torch.where(inside, torch.ops.gemmgen.grouped_matmul(half, b.mT, offsets, None, alpha, output=word), 0)
    if needs[1]:
        db = torch.ops.gemmgen.grouped_matmul_weights(a, half, offsets, alpha).to(b.dtype)
    if needs[3]:
        group = torch.bucketize(rows, offsets, right=True).clamp(max=max(len(offsets) - 1, 0))
        dbias = torch.zeros(bias.shape, dtype=torch.float32, device=a.device).index_add(0, group, dz.float()).to(bias.dtype)
    return (da, db, None, dbias, *[None] * 6)[:given]


def result(
    a: Any,
    b: Any,
    offsets: Any,
    bias: object = None,
    alpha: object = 1.0,
    activation: object = "",
    scale_a: object = None,
    scale_b: object = None,
    scale_out: object = None,
    output: Any = "",
) -> Any:
    """An empty tensor like the operator's result: shapes may be symbolic."""
    import torch

    plain = alpha == 1 and not activation and all(given is None for given in (bias, scale_a, scale_b, scale_out))
    word = output or product_type(str(a.dtype), str(b.dtype), plain)
    shape = [a.shape[0], b.shape[2]] if b.ndim == 3 else [offsets.shape[0], a.shape[0], b.shape[1]]
    return a.new_empty(shape, dtype=getattr(torch, word))


def weights(a: Any, dz: Any, offsets: Any, alpha: float = 1.0) -> Any:
    """alpha a[rows]ᵀ dz[rows] of every group, zeros for a group without rows."""
    import torch

    return torch.ops.gemmgen.grouped_matmul(a.contiguous().mT, dz.contiguous(), offsets, None, alpha)


def result_of_weights(a: Any, dz: Any, offsets: Any, alpha: object = 1.0) -> Any:
    """An empty tensor like the gradient of all matrices."""
    return a.new_empty([offsets.shape[0], a.shape[1], dz.shape[1]])


EXTRA = {"grouped_matmul_weights": Extra(SCHEMA_OF_WEIGHTS, weights, result_of_weights)}
OPERATOR = TorchOperator(SCHEMA, call, result, save, backward, EXTRA)
