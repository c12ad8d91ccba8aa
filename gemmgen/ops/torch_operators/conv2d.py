"""``torch.ops.gemmgen.conv2d``, which has no derivatives."""

from __future__ import annotations

from typing import Any

from gemmgen.ops.torch_operators.declaration import TorchOperator

SCHEMA = (
    "(Tensor x, Tensor w, Tensor? bias=None, Tensor? residual=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1, "
    "float alpha=1.0, float bias_scale=1.0, float gamma=1.0, str activation='', str output='', str layout='') -> Tensor"
)


def call(
    x: Any,
    w: Any,
    bias: Any = None,
    residual: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    alpha: float = 1.0,
    bias_scale: float = 1.0,
    gamma: float = 1.0,
    activation: str = "",
    output: str = "",
    layout: str = "",
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the function by which the operator computes."""
    window = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}
    factors = {"alpha": alpha, "bias_scale": bias_scale, "gamma": gamma}
    words = {"activation": activation or None, "output": output or None, "layout": layout or None}
    return (x, w), {"bias": bias, "residual": residual, **window, **factors, **words}


def result(
    x: Any,
    w: Any,
    bias: Any = None,
    residual: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
    alpha: Any = 1.0,
    bias_scale: Any = 1.0,
    gamma: Any = 1.0,
    activation: Any = "",
    output: str = "",
    layout: str = "",
) -> Any:
    """An empty tensor like the operator's result: extents may be symbolic."""
    import torch

    n, k = x.shape[0], w.shape[0]
    filter_extents = w.shape[2:4]
    p, q = (
        max((extent + 2 * pad - step * (taps - 1) - 1) // skip + 1, 0)
        for extent, pad, step, taps, skip in zip(x.shape[2:4], padding, dilation, filter_extents, stride, strict=True)
    )
    kind = getattr(torch, output) if output else x.dtype
    if len(x.shape) == 4 and layout in ("", "nhwc"):
        return x.new_empty([n, p, q, k], dtype=kind).permute(0, 3, 1, 2)
    shape = {"nchw32": [n, k // 32, p, q, 32], "nchw4": [n, k // 4, p, q, 4], "nhwc": [n, p, q, k]}[layout or "nchw32"]
    return x.new_empty(shape, dtype=kind)


OPERATOR = TorchOperator(SCHEMA, call, result)
