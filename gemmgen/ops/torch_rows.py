"""Derivatives of operations on rows under torch's autograd. The functions that compute are handed to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]


class Softmax(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """``softmax`` or ``log_softmax``, whose gradient is a function of the result."""

    @staticmethod
    def forward(ctx: Any, x: Any, axis: int, forward: Function, backward: Function) -> Any:
        y = forward(x, axis)
        ctx.save_for_backward(y)
        ctx.axis, ctx.gradient = axis, backward
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (y,) = ctx.saved_tensors
        return ctx.gradient(dy, y, ctx.axis), None, None, None


class Cumsum(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """``cumsum``, whose gradient is the sum of those behind each element."""

    @staticmethod
    def forward(ctx: Any, x: Any, axis: int, forward: Function) -> Any:
        ctx.axis, ctx.sums = axis, forward
        return forward(x, axis)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return ctx.sums(dy.flip(ctx.axis), ctx.axis).flip(ctx.axis), None, None


class Norm(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """A norm, perhaps of a sum, which is a second result. ``forward`` takes x, weight, bias and residual."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, residual: Any, forward: Function, backward: Function) -> Any:
        found = forward(x, weight, bias, residual)
        total = x if residual is None else found[1]
        ctx.save_for_backward(total, torch.ones_like(bias) if weight is None and bias is not None else weight)
        ctx.gradient, ctx.given = backward, (weight is not None, bias is not None, residual is not None)
        return found

    @staticmethod
    def backward(ctx: Any, dy: Any, dtotal: Any = None) -> Any:
        total, weight = ctx.saved_tensors
        found = ctx.gradient(dy, total, weight)
        dx, *sums = found if isinstance(found, tuple) else (found,)
        dx = dx if dtotal is None else dx + dtotal
        has_weight, has_bias, has_residual = ctx.given
        return dx, sums[0] if has_weight else None, sums[1] if has_bias else None, dx if has_residual else None, None, None
