"""``torch.ops.gemmgen.conv2d``, and its derivatives, for torch's autograd and ``torch.compile``.

Layers of float16 and bfloat16 in ``channels_last`` have derivatives, without an activation or with relu; the gradients of images and
filters are separate operators, which second derivatives do not go through.
"""

from __future__ import annotations

from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.ops.filters import results_of
from gemmgen.ops.torch_operators.declaration import TorchOperator

SCHEMA = (
    "(Tensor x, Tensor w, Tensor? bias=None, Tensor? residual=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1, "
    "float alpha=1.0, float bias_scale=1.0, float gamma=1.0, str activation='', str output='', str layout='') -> Tensor"
)


def _both(value: Any) -> tuple[Any, ...]:
    """Numbers for rows and for columns; torch's dispatcher passes a default as one number."""
    return (value, value) if isinstance(value, int) else tuple(value)


def call(
    x: object,
    w: object,
    bias: object = None,
    residual: object = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: int = 1,
    alpha: float = 1.0,
    bias_scale: float = 1.0,
    gamma: float = 1.0,
    activation: str = "",
    output: str = "",
    layout: str = "",
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the function by which the operator computes."""
    window = {"stride": _both(stride), "padding": _both(padding), "dilation": _both(dilation), "groups": groups}
    factors = {"alpha": alpha, "bias_scale": bias_scale, "gamma": gamma}
    words = {"activation": activation or None, "output": output or None, "layout": layout or None}
    return (x, w), {"bias": bias, "residual": residual, **window, **factors, **words}


def result(
    x: Any,
    w: Any,
    bias: object = None,
    residual: object = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: object = 1,
    alpha: object = 1.0,
    bias_scale: object = 1.0,
    gamma: object = 1.0,
    activation: object = "",
    output: str = "",
    layout: str = "",
) -> Any:
    """An empty tensor like the operator's result: extents may be symbolic."""
    import torch

    n, k = x.shape[0], w.shape[0]
    p, q = results_of(x.shape[2:4], w.shape[2:4], _both(stride), _both(padding), _both(dilation))
    kind = getattr(torch, output) if output else x.dtype
    if len(x.shape) == 4 and layout in ("", "nhwc"):
        return x.new_empty([n, p, q, k], dtype=kind).permute(0, 3, 1, 2)
    shape = {"nchw32": [n, k // 32, p, q, 32], "nchw4": [n, k // 4, p, q, 4], "nhwc": [n, p, q, k]}[layout or "nchw32"]
    return x.new_empty(shape, dtype=kind)


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps the tensors that ``backward`` reads. Raises ``LaunchError`` for layers without derivatives."""
    import torch

    defaults: tuple[Any, ...] = (None, None, None, None, (1, 1), (0, 0), (1, 1), 1, 1.0, 1.0, 1.0, "", "", "")
    x, w, bias, residual, stride, padding, dilation, groups, alpha, bias_scale, gamma, activation, _, layout = (
        *inputs,
        *defaults[len(inputs) :],
    )
    refused = None
    if x.dtype not in (torch.float16, torch.bfloat16) or output.dtype not in (x.dtype, torch.float32):
        refused = f"{x.dtype} to {output.dtype}, need float16 or bfloat16"
    elif len(x.shape) != 4 or layout not in ("", "nhwc"):
        refused = "layouts other than channels_last"
    elif activation not in ("", "relu"):
        refused = f"the activation {activation}; apply it by ops.elementwise after the layer"
    if refused:
        raise LaunchError(f"conv2d: no derivative of {refused}")
    ctx.given, ctx.factors, ctx.activation = len(inputs), (alpha, bias_scale, gamma), activation
    ctx.window = (list(_both(stride)), list(_both(padding)), list(_both(dilation)), groups)
    ctx.kinds = tuple(None if one is None else one.dtype for one in (bias, residual))
    ctx.save_for_backward(x, w, output if activation else None)


def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
    """Gradients of the operator's arguments. Raises ``LaunchError`` where torch records them for second derivatives."""
    import torch

    x, w, y = ctx.saved_tensors
    if torch.is_grad_enabled() and any(one.requires_grad for one in (x, w, dy)):
        raise LaunchError("conv2d: no second derivative is known")
    if y is not None:
        dy = torch.where(y > 0, dy, 0)
    alpha, bias_scale, gamma = ctx.factors
    scaled = (dy if alpha == 1 else dy * alpha).to(x.dtype)
    stride, padding, dilation, groups = ctx.window
    # On a GPU that is cuDNN, which was 1.5 to 12 times as fast as the same gradients by kernels of ops.conv2d and ops.matmul.
    wanted = [*ctx.needs_input_grad[:2], False]
    dx, dw, _ = torch.ops.aten.convolution_backward(scaled, x, w, None, stride, padding, dilation, False, [0, 0], groups, wanted)
    dbias = dresidual = None
    if ctx.given > 2 and ctx.needs_input_grad[2]:
        dbias = (bias_scale * dy.sum((0, 2, 3), dtype=torch.float32)).to(ctx.kinds[0])
    if ctx.given > 3 and ctx.needs_input_grad[3]:
        dresidual = (gamma * dy).to(ctx.kinds[1])
    return (dx, dw, dbias, dresidual, *[None] * 10)[: ctx.given]


OPERATOR = TorchOperator(SCHEMA, call, result, save, backward)
