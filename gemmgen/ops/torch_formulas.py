"""Derivatives of products with formulas, by the chain rule of the formula's graph.

With y = f(z, operands) and z = alpha a b, the gradient of z comes from the graph's derivative
(``gemmgen.kernels.epilogue.derivative``), and those of a and b from that by two products. Where the derivative reads z, the forward pass
stores it as a further output, or the backward pass computes it again: ``saved``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.epilogue.derivative import Derivative, derivative
from gemmgen.kernels.epilogue.expression import Node, name
from gemmgen.kernels.epilogue.functions import CASTS, FUNCTIONS
from gemmgen.kernels.epilogue.operations import COORDINATES, PRODUCT, VALUE, Formula, Operation
from gemmgen.kernels.epilogue.options import hashable
from gemmgen.ops.formulas import finished, parsed
from gemmgen.ops.torch_operators.matmul import product_gradients

Saved = Literal["auto", "store", "recompute"]
DEEP = 512
"""Depth of a product from which on storing its sums takes less time than computing them again."""
SAVED = "saved_product"
"""The further output that the product is stored in."""
UPSTREAM = "upstream"


@dataclass(frozen=True)
class Backward:
    """The derivative of a formula."""

    derivative: Derivative
    operands: tuple[tuple[str, str], ...]
    """Names of the operands, and the axis along which their values differ."""
    reads: frozenset[str]
    """Names outside the graph that the derivatives read."""


@lru_cache(maxsize=64)
def backward_of(operations: tuple[Operation, ...]) -> Backward:
    """The derivative of a formula's result by the product and by its operands."""
    assignments: list[tuple[str, Node]] = []
    operands: list[tuple[str, str]] = []
    for one in operations:
        if isinstance(one, Formula):
            assignments.append((PRODUCT, name(VALUE)))
        extra = set(one.extra_outputs)
        assignments += [(assignment.target, assignment.node) for assignment in one.assignments if assignment.target not in extra]
        operands += [(operand.name, operand.per) for operand in one.operands()]
    derivatives = derivative(assignments, VALUE, (VALUE, *(operand for operand, _ in operands)), UPSTREAM)
    needed = _needed(derivatives)
    made = {target for target, _ in derivatives.assignments}
    reads = {word for target, node in derivatives.assignments if target in needed for word in node.names if word not in made}
    return Backward(derivatives, tuple(operands), frozenset(reads | {node.name for node in derivatives.by.values() if node.name} - made))


def _needed(derivative: Derivative) -> set[str]:
    """Names of the assignments that the derivatives are made of."""
    needed = {node.name for node in derivative.by.values() if node.name}
    for target, node in reversed(derivative.assignments):
        if target in needed:
            needed |= set(node.names)
    return needed


def recorded(
    operation: str,
    a: Any,
    b: Any,
    epilogue: Any,
    given: Mapping[str, Any],
    alpha: float,
    choices: Mapping[str, Any],
    saved: Saved,
) -> Any:
    """The product with its derivatives by ``a``, ``b`` and the floating-point tensors among ``given``. Raises ``LaunchError``."""
    import torch

    if a.dim() == 1:  # a vector is a matrix of one row or one column
        whole = recorded(operation, a.unsqueeze(0), b, epilogue, given, alpha, choices, saved)
        return whole.squeeze(-2 if b.dim() > 1 else -1)
    if b.dim() == 1:
        return recorded(operation, a, b.unsqueeze(1), epilogue, given, alpha, choices, saved).squeeze(-1)
    operations = parsed(operation, epilogue)
    if not a.dtype.is_floating_point or not b.dtype.is_floating_point or min(a.element_size(), b.element_size()) < 2:
        raise LaunchError(f"{operation}: derivatives are of float32, float16 and bfloat16 products; pass detached tensors")
    written = {word for one in operations for word in one.extra_outputs}
    tensors = {word: value for word, value in given.items() if isinstance(value, torch.Tensor) and word not in written}
    others = {word: value.detach() if isinstance(value, torch.Tensor) else value for word, value in given.items() if word not in tensors}
    plan = backward_of(operations)
    needs_product = bool({VALUE} & plan.reads)
    store = needs_product and (saved == "store" or (saved == "auto" and a.shape[-1] >= DEEP))
    function = _function()
    return function.apply(
        _Call(operation, epilogue, tuple(tensors), others, alpha, dict(choices), store, needs_product), a, b, *tensors.values()
    )


@dataclass(frozen=True)
class _Call:
    operation: str
    epilogue: Any
    names: tuple[str, ...]
    """Operands that are tensors, in the order in which they follow a and b."""
    others: Mapping[str, Any]
    alpha: float
    choices: Mapping[str, Any]
    store: bool
    needs_product: bool


@lru_cache(maxsize=1)
def _function() -> Any:
    """The function of torch's that records the product."""
    import torch

    members = {"forward": staticmethod(_forward), "backward": staticmethod(_backward)}
    return type("FinishedProduct", (torch.autograd.Function,), members)


def _forward(ctx: Any, call: _Call, a: Any, b: Any, *tensors: Any) -> Any:
    import torch

    given = dict(call.others) | {word: tensor.detach() for word, tensor in zip(call.names, tensors, strict=True)}
    epilogue, product = call.epilogue, None
    if call.store:
        shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        product = torch.empty((*shape, a.shape[-2], b.shape[-1]), dtype=torch.float32, device=a.device)
        first = {"op": "formula", "outputs": {SAVED: {"value": VALUE, "type": "f32"}}}
        listed = [one.model_dump(mode="json") for one in parsed(call.operation, call.epilogue)]
        epilogue, given = hashable([first, *listed]), given | {SAVED: product}
    factors = {"a": a.detach(), "b": b.detach()}
    result = finished(call.operation, factors, epilogue, given, None, (call.alpha, 0.0), call.choices, None)
    ctx.call = call
    ctx.save_for_backward(a, b, product, *tensors)
    return result


def _backward(ctx: Any, upstream: Any) -> Any:
    import torch

    if torch.is_grad_enabled():  # a second derivative would miss the values that the forward pass stored
        raise LaunchError(f"{ctx.call.operation}: derivatives of an epilogue have none themselves: call backward without create_graph")
    a, b, product, *tensors = ctx.saved_tensors
    gradients = _gradients(ctx.call, a, b, product, tensors, upstream)
    needed = (needs for needs in ctx.needs_input_grad[1:])
    return (None, *(gradient if needs else None for gradient, needs in zip(gradients, needed, strict=True)))


def _gradients(call: _Call, a: Any, b: Any, product: Any, tensors: Sequence[Any], upstream: Any) -> list[object]:
    """Gradients of a, b and the operands."""
    import torch

    operations = parsed(call.operation, call.epilogue)
    plan = backward_of(operations)
    rows, columns = upstream.shape[-2:]
    names: dict[str, Any] = {UPSTREAM: upstream.float()}
    if call.needs_product:
        names[VALUE] = product if product is not None else _product(call, a, b)
    device = upstream.device
    names[COORDINATES[0]] = torch.arange(rows, dtype=torch.int32, device=device).unsqueeze(-1)
    names[COORDINATES[1]] = torch.arange(columns, dtype=torch.int32, device=device)
    given = dict(call.others) | dict(zip(call.names, tensors, strict=True))
    stored = {operand.name: operand for one in operations for operand in one.operands()}
    for operand, per in plan.operands:
        value = given.get(operand, stored[operand].default)
        if not isinstance(value, torch.Tensor):
            value = torch.as_tensor(value, device=device)
        value = value if stored[operand].stored == "s64" else value.float()
        names[operand] = value.reshape(-1, 1) if per == "row" else value.reshape(-1) if per == "column" else value
    needed = _needed(plan.derivative)
    for target, node in plan.derivative.assignments:
        if target in needed:
            names[target] = evaluated(node, names)
    gradients: dict[str, Any] = {}
    for word, node in plan.derivative.by.items():
        gradient = evaluated(node, names)
        gradients[word] = (
            gradient.expand(upstream.shape) if isinstance(gradient, torch.Tensor) else torch.full_like(names[UPSTREAM], gradient)
        )
    of_product = gradients[VALUE].to(upstream.dtype).contiguous()
    results = list(product_gradients(a, b, of_product, call.alpha, str(call.choices.get("precision", "f32"))))
    for word, tensor in zip(call.names, tensors, strict=True):
        per = dict(plan.operands)[word]
        gradient = gradients[word]
        if per == "row":
            gradient = gradient.reshape(-1, rows, columns).sum((0, 2))
        elif per == "column":
            gradient = gradient.reshape(-1, columns).sum(0)
        elif per in ("all", "memory"):
            gradient = gradient.sum()
        results.append(gradient.reshape(tensor.shape).to(tensor.dtype))
    return results


def _product(call: _Call, a: object, b: object) -> Any:
    """The sums that the formula starts from, computed again in float32."""
    choices = dict(call.choices) | {"output": "float32"}
    return finished(call.operation, {"a": a, "b": b}, hashable({"value": VALUE}), {}, None, (call.alpha, 0.0), choices, None)


_IN_FUNCTIONAL = ("gelu", "silu", "softplus", "leaky_relu", "relu")


def evaluated(node: Node, names: Mapping[str, object]) -> Any:
    """The value of an expression on tensors."""
    import torch

    if node.number is not None:
        return node.number
    if node.name:
        return names[node.name]
    arguments = [evaluated(argument, names) for argument in node.arguments]
    kind = CASTS.get(node.function) or (node.function if node.function in CASTS.values() else None)
    if kind is not None:
        held = getattr(torch, ELEMENTS[ELEMENTS[kind].computed_in].word)
        return torch.as_tensor(arguments[0]).to(getattr(torch, ELEMENTS[kind].word)).to(held)
    if node.function == "rand":
        return _random(arguments)
    tensors = [one if isinstance(one, torch.Tensor) else torch.tensor(one, device=_device(arguments)) for one in arguments]
    if node.function == "fma":
        return tensors[0] * tensors[1] + tensors[2]
    if node.function == "gelu_tanh":
        return torch.nn.functional.gelu(tensors[0], approximate="tanh")
    if node.function == "hard_swish":
        return torch.nn.functional.hardswish(tensors[0]) * 6
    if node.function == "leaky_relu":
        return torch.where(tensors[0] > 0, tensors[0], tensors[0] * tensors[1])
    word = FUNCTIONS[node.function].torch
    return getattr(torch.nn.functional if node.function in _IN_FUNCTIONAL else torch, "neg" if node.function == "neg" else word)(*tensors)


def _device(arguments: Sequence[object]) -> Any:
    import torch

    return next((one.device for one in arguments if isinstance(one, torch.Tensor)), None)


def _random(arguments: Sequence[object]) -> Any:
    """The numbers that ``rand`` draws. They are drawn on the host."""
    import numpy as np
    import torch

    from gemmgen.kernels.epilogue.numbers import tracked

    host = [np.asarray(one.cpu() if isinstance(one, torch.Tensor) else one).astype(np.int64) for one in arguments]
    drawn = FUNCTIONS["rand"].reference(*(tracked(one, "s64") for one in host))
    return torch.as_tensor(drawn.value, dtype=torch.float32, device=_device(arguments))
