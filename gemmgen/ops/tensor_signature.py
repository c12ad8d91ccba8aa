"""Tensors that are like earlier ones, found by one call of torch's instead of a dozen questions to each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

MAX_LIKENESSES = 4
"""Limit of combinations of layouts for which calls of one form are recognised; the others are looked up."""

Likeness = Callable[..., bool]
"""True if tensors have the class, type, device, shape and strides of those that it was made from, and are as lazy and differentiable."""


def likeness(torch: Any, tensors: Sequence[object]) -> Likeness | None:
    """Key of tensors like these; None for subclasses that may mean something else, and where torch offers nothing."""
    make = _maker(torch)
    plain = torch.Tensor, torch.nn.Parameter
    return None if make is None or any(tensor.__class__ not in plain for tensor in tensors) else make(tensors)


@cache
def _maker(torch: Any) -> Callable[[Sequence[Any]], Likeness] | None:
    """The check by which torch's compiler guards compiled code, if this torch has it and it distinguishes the necessary properties."""
    try:
        guards = torch._C._dynamo.guards.TensorGuards

        def make(tensors: Sequence[object]) -> Likeness:
            check: Likeness = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
            return check

        one = torch.zeros(2, 3)
        check = make((one,))
        unlike = (
            torch.zeros(3, 2),
            torch.zeros(3, 2).t(),
            torch.zeros(2, 4)[:, :3],
            torch.zeros(2, 3, 1),
            one.double(),
            one.int(),
            torch._neg_view(one),
            torch.zeros(2, 3, requires_grad=True),
            torch.nn.Parameter(one),
            torch.empty(2, 3, device="meta"),
            None,
        )
        return make if check(torch.ones(2, 3)) and not any(check(other) for other in unlike) else None
    except Exception:  # a torch without it, or with another
        return None
