"""Derivatives of products with formulas, beside those of torch's own operations."""

from __future__ import annotations

from typing import Any

import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.epilogue.derivative import derivative
from gemmgen.kernels.epilogue.expression import parse

torch = pytest.importorskip("torch")
from gemmgen.ops.torch_formulas import evaluated  # noqa: E402

ops.register_torch()

FORMULA = {
    "inputs": {"bias": {"per": "column"}, "gate": {"per": "element"}, "slope": {"per": "row"}, "rate": {"scalar": "f32"}},
    "let": {"z": "acc * slope + bias"},
    "outputs": {"C": "silu(z) * gate * rate if row >= column else tanh(z)", "kept_z": {"value": "z"}},
}


def operands(requires: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)

    def tensor(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator).requires_grad_(requires)

    return {"a": tensor(5, 8), "b": tensor(8, 6), "bias": tensor(6), "gate": tensor(5, 6), "slope": tensor(5, 1)}


@pytest.mark.parametrize("saved", ["store", "recompute"])
def test_gradients_are_those_of_torch(saved: str) -> None:
    given = operands(True)
    others = list(given)[2:]
    kept = torch.zeros(5, 6)
    named = {name: given[name] for name in others} | {"rate": 0.5, "kept_z": kept}
    result = ops.matmul(given["a"], given["b"], epilogue=FORMULA, operands=named, backend="emulator", saved=saved)
    upstream = torch.randn(5, 6, generator=torch.Generator().manual_seed(6))
    result.backward(upstream)
    other = operands(True)
    z = other["a"] @ other["b"] * other["slope"] + other["bias"]
    gated = torch.nn.functional.silu(z) * other["gate"] * 0.5
    lower = torch.arange(5)[:, None] >= torch.arange(6)
    wanted = torch.where(lower, gated, torch.tanh(z))
    wanted.backward(upstream)
    torch.testing.assert_close(result, wanted)
    torch.testing.assert_close(kept, z)
    for name, tensor in given.items():
        torch.testing.assert_close(tensor.grad, other[name].grad, msg=name, rtol=1e-4, atol=1e-5)


def test_batches_and_halves_have_gradients() -> None:
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(2, 4, 8, generator=generator).bfloat16().requires_grad_()
    b = torch.randn(8, 6, generator=generator).bfloat16().requires_grad_()
    result = ops.matmul(a, b, epilogue={"value": "gelu(acc) + abs(acc)"}, alpha=0.5)
    result.float().sum().backward()
    x, w = (tensor.detach().float().requires_grad_() for tensor in (a, b))
    z = 0.5 * (x @ w)
    (torch.nn.functional.gelu(z) + z.abs()).sum().backward()
    torch.testing.assert_close(a.grad.float(), x.grad, rtol=0.05, atol=0.05)
    torch.testing.assert_close(b.grad.float(), w.grad, rtol=0.05, atol=0.1)


def test_linear_formulas_keep_nothing() -> None:
    from gemmgen.kernels.epilogue.options import hashable
    from gemmgen.ops.formulas import parsed
    from gemmgen.ops.torch_formulas import backward_of

    linear = parsed("matmul", hashable({"value": "acc * 2 + bias", "inputs": {"bias": {"per": "column"}}}))
    assert "value" not in backward_of(linear).reads
    curved = parsed("matmul", hashable({"value": "silu(acc)"}))
    assert "value" in backward_of(curved).reads


SLOPES: dict[str, Any] = {
    "abs(acc)": torch.abs,
    "relu(acc)": torch.relu,
    "elu(acc, 0.7)": lambda x: torch.nn.functional.elu(x, 0.7),
    "relu6(acc)": torch.nn.functional.relu6,
    "hard_swish(acc) / 6": torch.nn.functional.hardswish,
    "clamp(acc, -1, 2)": lambda x: torch.clamp(x, -1, 2),
    "mish(acc)": torch.nn.functional.mish,
    "softplus(acc)": torch.nn.functional.softplus,
    "quick_gelu(acc)": lambda x: x * torch.sigmoid(1.702 * x),
    "sqrt(square(acc) + 1)": lambda x: torch.sqrt(x * x + 1),
}


@pytest.mark.parametrize("text", SLOPES)
def test_slopes_at_corners_and_far_out(text: str) -> None:
    places = [-200.0, -89.0, -5.0, -3.0, -1.0, -0.0, 0.0, 1e-20, 0.5, 2.0, 3.0, 20.0, 89.0, 200.0, 1e30]
    x = torch.tensor(places).requires_grad_()
    SLOPES[text](x).sum().backward()
    found = derivative([("result", parse(text))], "result", ["acc"])
    values: dict[str, Any] = {"acc": x.detach(), "upstream": torch.ones(len(places))}
    for name, node in found.assignments:
        values[name] = evaluated(node, values)
    torch.testing.assert_close(evaluated(found.by["acc"], values), x.grad)


def test_vectors_and_empty_products_have_gradients() -> None:
    for shapes in (((8,), (8, 6)), ((8,), (8,)), ((5, 0), (0, 6))):
        a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(3), requires_grad=True) for shape in shapes)
        ops.matmul(a, b, epilogue={"value": "silu(acc)"}, backend="emulator").sum().backward()
        x, w = (tensor.detach().clone().requires_grad_() for tensor in (a, b))
        torch.nn.functional.silu(x @ w).sum().backward()
        torch.testing.assert_close(a.grad, x.grad)
        torch.testing.assert_close(b.grad, w.grad)


def test_parts_chosen_by_divided_coordinates_have_gradients() -> None:
    given = operands(True)
    formula = {"value": "square(acc) if (row // 2 + column) % 3 == 1 else 2 * acc"}
    result = ops.matmul(given["a"], given["b"], epilogue=formula, backend="emulator")
    result.sum().backward()
    other = operands(True)
    product = other["a"] @ other["b"]
    places = torch.arange(5)[:, None] // 2 + torch.arange(6)
    torch.where(places % 3 == 1, product**2, 2 * product).sum().backward()
    for name in ("a", "b"):
        torch.testing.assert_close(given[name].grad, other[name].grad, rtol=1e-4, atol=1e-5)


def test_masks_have_gradients() -> None:
    a, b = torch.ones(4, 3, requires_grad=True), torch.ones(3, 2)
    keep = torch.tensor([[True, False], [False, False], [True, True], [False, True]])
    formula = {"inputs": {"keep": {"per": "element", "type": "bool"}}, "value": "2 * acc if keep else 0"}
    result = ops.matmul(a, b, epilogue=formula, operands={"keep": keep}, backend="emulator")
    torch.testing.assert_close(result, 6.0 * keep)
    result.sum().backward()
    torch.testing.assert_close(a.grad, 2.0 * keep.sum(1, keepdim=True).expand(4, 3))


def test_second_derivatives_are_refused() -> None:
    a, b = torch.ones(4, 3, requires_grad=True), torch.ones(3, 2)
    result = ops.matmul(a, b, epilogue={"value": "silu(acc)"}, saved="store", backend="emulator")
    with pytest.raises(LaunchError, match="have none themselves"):
        torch.autograd.grad(result.sum(), a, create_graph=True)


def test_dropout_has_gradients() -> None:
    a, b = torch.ones(6, 4, requires_grad=True), torch.ones(4, 8)
    formula = {"value": "acc / 0.5 if rand(3, 0, int64(row) * 8 + int64(column), 0) < 0.5 else 0"}
    result = ops.matmul(a, b, epilogue=formula, backend="emulator")
    result.sum().backward()
    torch.testing.assert_close(a.grad, (result.detach() != 0).float().sum(1, keepdim=True).expand(6, 4) * 2)


def test_what_has_no_gradients_is_refused() -> None:
    a, b = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)
    with pytest.raises(LaunchError, match="no out, beta or stream"):
        ops.matmul(a, b, epilogue={"value": "silu(acc)"}, out=torch.zeros(4, 4), backend="emulator")
    with pytest.raises(LaunchError, match="saved is 'all'"):
        ops.matmul(a, b, epilogue={"value": "silu(acc)"}, saved="all")
