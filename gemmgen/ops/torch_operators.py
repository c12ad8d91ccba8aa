"""The operations as custom operators of torch, with shapes for tracing, so that ``torch.compile`` takes them as they are.

``matmul``, ``grouped_matmul``, ``reduce`` and ``elementwise`` have derivatives. ``conv2d`` has none: tensors that require gradients are
refused, under ``torch.no_grad()`` they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.ops import torch_grouped
from gemmgen.ops.operators import FamilyTorchOperator, family_torch_operators
from gemmgen.ops.torch_derivatives import backward, product_type, save
from gemmgen.ops.torch_gradients import reduction_backward, save_reduction

_SCHEMAS = {
    "matmul": "(Tensor a, Tensor b, Tensor? bias=None, Tensor? residual=None, float alpha=1.0, float gamma=1.0, "
    "str activation='', Tensor? scale_a=None, Tensor? scale_b=None, Tensor? scale_out=None, str output='', str precision='f32') -> Tensor",
    "grouped_matmul": torch_grouped.SCHEMA,
    "reduce": "(Tensor x, str op='sum', int[]? axis=None, bool keepdims=False, int correction=0) -> Tensor",
    "conv2d": "(Tensor x, Tensor w, Tensor? bias=None, Tensor? residual=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, "
    "int groups=1, float alpha=1.0, float bias_scale=1.0, float gamma=1.0, str activation='', str output='', str layout='') -> Tensor",
}
_library: Any = None
_functions: dict[str, Callable[..., Any]] = {}
"""Functions behind the operators."""


def register(*functions: Callable[..., Any]) -> Any:
    """Defines ``torch.ops.gemmgen.*`` for functions of ``gemmgen.ops``, once; gives ``torch.compiler.is_compiling``.

    Raises ``EnvironmentMissing`` without torch.
    """
    global _library
    try:
        import torch
    except ImportError as error:
        raise EnvironmentMissing(f"torch cannot be imported ({error}); install torch") from None
    if _library is not None:
        return torch.compiler.is_compiling
    _functions.update({function.__name__: function for function in functions})
    library = torch.library.Library("gemmgen", "DEF")
    for name, schema in _SCHEMAS.items():
        _define(torch, library, name, schema, _IMPLEMENTATIONS[name], _fake(torch, name))
    torch.library.register_autograd("gemmgen::matmul", backward, setup_context=save, lib=library)
    grouped = torch_grouped
    torch.library.register_autograd("gemmgen::grouped_matmul", grouped.backward, setup_context=grouped.save, lib=library)
    _define(torch, library, "grouped_matmul_weights", grouped.SCHEMA_OF_WEIGHTS, grouped.weights, grouped.result_of_weights)
    torch.library.register_autograd("gemmgen::reduce", reduction_backward, setup_context=save_reduction, lib=library)
    for name, operator in family_torch_operators().items():
        _define(torch, library, name, operator.SCHEMA, _implementation(name, operator), operator.result)
        torch.library.register_autograd(f"gemmgen::{name}", operator.backward, setup_context=operator.save, lib=library)
    _library = library
    return torch.compiler.is_compiling


def _define(torch: Any, library: Any, name: str, schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        library.impl(name, implementation, key)
    torch.library.register_fake(f"gemmgen::{name}", fake, lib=library)


def _implementation(name: str, operator: FamilyTorchOperator) -> Callable[..., Any]:
    def implementation(*arguments: Any) -> Any:
        given, named = operator.call(*arguments)
        return _functions[name](*given, **named)

    return implementation


def needs_gradients(*arrays: Any) -> bool:
    """True if torch records an operation on these for derivatives."""
    import torch

    return torch.is_grad_enabled() and any(getattr(array, "requires_grad", False) for array in arrays)


def _matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    residual: Any = None,
    alpha: float = 1.0,
    gamma: float = 1.0,
    activation: str = "",
    scale_a: Any = None,
    scale_b: Any = None,
    scale_out: Any = None,
    output: str = "",
    precision: str = "f32",
) -> Any:
    return _functions["matmul"](
        a,
        b,
        bias=bias,
        residual=residual,
        alpha=alpha,
        gamma=gamma,
        activation=activation or None,
        scale_a=scale_a,
        scale_b=scale_b,
        scale_out=scale_out,
        output=output or None,
        precision=precision,
    )


def _grouped(
    a: Any,
    b: Any,
    offsets: Any,
    bias: Any = None,
    alpha: float = 1.0,
    activation: str = "",
    scale_a: Any = None,
    scale_b: Any = None,
    scale_out: Any = None,
    output: str = "",
) -> Any:
    scales = {"scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out}
    words = {"activation": activation or None, "output": output or None}
    return _functions["grouped_matmul"](a, b, offsets, bias=bias, alpha=alpha, **scales, **words)


def _reduce(x: Any, op: str = "sum", axis: Any = None, keepdims: bool = False, correction: int = 0) -> Any:
    if op == "mean_variance":
        raise LaunchError("torch.ops.gemmgen.reduce returns one tensor; call gemmgen.ops.reduce for mean_variance")
    return _functions["reduce"](x, op, None if axis is None else tuple(axis), keepdims=keepdims, correction=correction)


def _conv2d(
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
) -> Any:
    return _functions["conv2d"](
        x,
        w,
        bias=bias,
        residual=residual,
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
        groups=groups,
        alpha=alpha,
        bias_scale=bias_scale,
        gamma=gamma,
        activation=activation or None,
        output=output or None,
        layout=layout or None,
    )


_IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "matmul": _matmul,
    "grouped_matmul": _grouped,
    "reduce": _reduce,
    "conv2d": _conv2d,
}


def _fake(torch: Any, name: str) -> Any:
    """Shape and type of the operator's result, without computing it: shapes may be symbolic."""

    def matmul(
        a: Any,
        b: Any,
        bias: Any = None,
        residual: Any = None,
        alpha: Any = 1.0,
        gamma: Any = 1.0,
        activation: Any = "",
        scale_a: Any = None,
        scale_b: Any = None,
        scale_out: Any = None,
        output: Any = "",
        precision: Any = "f32",
    ) -> Any:
        left, right = a.shape, b.shape
        batch = torch.broadcast_shapes(left[:-2], right[:-2])
        rows = [left[-2]] if len(left) > 1 else []
        columns = [right[-1]] if len(right) > 1 else []
        plain = alpha == 1 and not activation and all(given is None for given in (bias, scale_a, scale_b, scale_out))
        word = output or product_type(str(a.dtype), str(b.dtype), plain)
        return a.new_empty([*batch, *rows, *columns], dtype=getattr(torch, word))

    def reduce(x: Any, op: str = "sum", axis: Any = None, keepdims: bool = False, correction: int = 0) -> Any:
        rank = len(x.shape)
        axes = range(rank) if axis is None else [one % rank for one in axis]
        shape = [1 if place in axes else extent for place, extent in enumerate(x.shape) if keepdims or place not in axes]
        return x.new_empty(shape, dtype=_reduced_type(torch, op, x.dtype))

    def conv2d(
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

    return {"matmul": matmul, "grouped_matmul": torch_grouped.result, "reduce": reduce, "conv2d": conv2d}[name]


@cache
def _reduced_type(torch: Any, op: str, kind: Any) -> Any:
    """The result type of a reduction, found by a call on one element."""
    from gemmgen.core.elements import BY_WORD, ELEMENTS
    from gemmgen.kernels.requests import Layout
    from gemmgen.ops.operators import operator_called

    word = str(kind).removeprefix("torch.")
    stored = Layout.packed((1,), "s8" if kind == torch.bool else BY_WORD.get(word, word))
    (result,) = operator_called("reduce").interpret({"x": stored}, {"op": op}).results
    return torch.bool if result.truth else getattr(torch, ELEMENTS[result.type].word)
