"""The operations of a kernel on torch tensors: as a user of a vendor library would write them after its call, in place where torch can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.epilogue.graph import Typed
from gemmgen.kernels.epilogue.operations import VALUE
from gemmgen.kernels.epilogue.steps import Step

_FUNCTIONAL = ("gelu", "silu", "softplus", "leaky_relu", "relu")
"""Functions of ``torch.nn.functional``."""


def apply_torch(step: Step, values: object, operands: Sequence[object]) -> Any:
    """One operation on a tensor. ``operands``: the arrays that it reads, in the order of its accesses."""
    names = {VALUE: values} | {access.operand.name: operand for access, operand in zip(step.accesses, operands, strict=True)}
    for target, tree in step.assignments:
        names[target] = _value(tree, names, target == VALUE)
    return names[VALUE]


def _value(node: Typed, names: Mapping[str, object], replaces: bool) -> Any:
    """The value of a tree; ``replaces``: the value that it is made of is not used again."""
    import torch

    if node.number is not None:
        return node.number
    if node.name:
        return names[node.name]
    arguments = [_value(argument, names, False) for argument in node.arguments]
    if node.cast is not None:
        (values,) = arguments
        return values.to(getattr(torch, ELEMENTS[node.cast].word)).to(getattr(torch, ELEMENTS[node.kind].word))
    assert node.function is not None
    name = node.function.name
    if name == "fma":
        factor, values, addend = arguments
        if isinstance(factor, torch.Tensor):
            values, factor = factor * values, 1.0
        return (
            addend.add_(values, alpha=factor) if replaces and node.arguments[2].name == VALUE else torch.add(addend, values, alpha=factor)
        )
    if name in ("min", "max") and node.arguments[1].number is not None:
        limit = {"max" if name == "min" else "min": arguments[1]}
        return torch.clamp(arguments[0], **limit)
    if name == "gelu_tanh":
        return torch.nn.functional.gelu(arguments[0], approximate="tanh")
    if name == "hard_swish":
        return torch.nn.functional.hardswish(arguments[0]).mul_(6)
    in_place = getattr(arguments[0], f"{node.function.torch}_", None) if replaces and node.arguments[0].name == VALUE else None
    if in_place is not None and name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        return in_place(*arguments[1:])
    function = getattr(torch.nn.functional if name in _FUNCTIONAL else torch, node.function.torch)
    return function(*(torch.as_tensor(one) if name in ("min", "max", "select") else one for one in arguments))
