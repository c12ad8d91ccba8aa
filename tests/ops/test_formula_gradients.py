"""Derivatives of products with formulas, beside those of torch's own operations."""

from __future__ import annotations

from typing import Any

import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

torch = pytest.importorskip("torch")
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
