"""Operations on rows of torch tensors: derivatives beside torch's own in float64, on the emulator and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sample_kernels import needs_gpu

from gemmgen import ops
from gemmgen.core.errors import LaunchError

torch = pytest.importorskip("torch")
functional = torch.nn.functional
ops.register_torch()
BOUNDS = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Largest differences over the largest value."""


def layer(x: Any, weight: Any = None, bias: Any = None) -> Any:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def rms(x: Any, weight: Any = None) -> Any:
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


VECTOR = (24,)
MATRIX = (5, 24)
CASES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = {
    "softmax": ([MATRIX], ops.softmax, lambda x: x.softmax(-1)),
    "softmax along columns": ([MATRIX], lambda x: ops.softmax(x, 0), lambda x: x.softmax(0)),
    "log_softmax of three extents": ([(2, 7, 3)], lambda x: ops.log_softmax(x, 1), lambda x: x.log_softmax(1)),
    "cumsum": ([MATRIX], ops.cumsum, lambda x: x.cumsum(-1)),
    "topk along columns": (
        [MATRIX],
        lambda x: ops.topk(x, 3, 0)[0].square().sum(0).expand(x.shape),
        lambda x: x.topk(3, 0)[0].square().sum(0).expand(x.shape),
    ),
    "cumsum along columns": ([MATRIX], lambda x: ops.cumsum(x, 0), lambda x: x.cumsum(0)),
    "rms_norm": ([MATRIX, VECTOR], ops.rms_norm, rms),
    "rms_norm without weight": ([MATRIX], ops.rms_norm, rms),
    "layer_norm": ([MATRIX, VECTOR, VECTOR], ops.layer_norm, layer),
    "layer_norm without bias": ([MATRIX, VECTOR], ops.layer_norm, layer),
    "layer_norm with a bias alone": ([MATRIX, VECTOR], lambda x, bias: ops.layer_norm(x, None, bias), lambda x, bias: layer(x, None, bias)),
    "rms_norm of a sum": (
        [MATRIX, MATRIX, VECTOR],
        lambda x, residual, weight: ops.rms_norm(x, weight, residual=residual),
        lambda x, residual, weight: (rms(x + residual, weight), x + residual),
    ),
}


def gradients(function: Callable[..., Any], arguments: list[Any], downs: list[Any]) -> list[Any]:
    """Derivatives of the results' products with ``downs``."""
    given = [one.detach().clone().requires_grad_() for one in arguments]
    found = function(*given)
    results = list(found) if isinstance(found, tuple) else [found]
    used = [down.to(result.dtype) for down, result in zip(downs, results, strict=False)]
    return [one.double() for one in torch.autograd.grad(results, given, used)]


def agree(name: str, kind: str, device: str, rows: int = 1) -> bool:
    """True if all derivatives are those of torch in float64, within the bound of the type."""
    shapes, ours, theirs = CASES[name]
    made = torch.Generator().manual_seed(len(name))
    shapes = [(shape[0] * rows, *shape[1:]) if len(shape) > 1 else shape for shape in shapes]
    arguments = [torch.randn(shape, generator=made).to(getattr(torch, kind)).to(device) for shape in shapes]
    downs = [torch.randn(shapes[0], generator=made).to(getattr(torch, kind)).to(device) for _ in range(2)]
    found = gradients(ours, arguments, downs)
    wanted = gradients(theirs, [one.double() for one in arguments], downs)
    pairs = list(zip(found, wanted, strict=True))
    return all(one.shape == other.shape for one, other in pairs) and all(
        float((one - other).abs().max()) <= BOUNDS[kind] * float(other.abs().max().clamp(min=1)) for one, other in pairs
    )


@pytest.mark.parametrize("name", CASES)
def test_derivatives_on_the_emulator(name: str) -> None:
    assert agree(name, "float32", "cpu")


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("name", CASES)
def test_derivatives_on_a_gpu(name: str, kind: str) -> None:
    assert agree(name, kind, "cuda", rows=40)


def test_logcumsumexp_has_no_derivative() -> None:
    with pytest.raises(LaunchError, match="no derivative"):
        ops.logcumsumexp(torch.ones(2, 3, requires_grad=True))


OPERATORS: dict[str, tuple[Any, ...]] = {
    "softmax": (MATRIX,),
    "log_softmax": (MATRIX, 0),
    "cumsum": ((3, 2, 5), 1),
    "logcumsumexp": (MATRIX,),
    "topk": (MATRIX, 3, 0, False),
    "rms_norm": (MATRIX, VECTOR),
    "layer_norm": (MATRIX, VECTOR, VECTOR),
    "rms_norm_of_sum": (MATRIX, MATRIX, VECTOR),
    "layer_norm_of_sum": (MATRIX, MATRIX, None, VECTOR),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck_accepts_the_operator(name: str) -> None:
    derived = name != "logcumsumexp"
    given = [torch.rand(one).requires_grad_(derived) if isinstance(one, tuple) else one for one in OPERATORS[name]]
    found = torch.library.opcheck(getattr(torch.ops.gemmgen, name).default, tuple(given))
    assert set(found.values()) == {"SUCCESS"}


def test_torch_compile_takes_them_in_one_graph() -> None:

    def block(x: Any, residual: Any, weight: Any) -> Any:
        normal, total = ops.rms_norm(x, weight, residual=residual)
        return ops.softmax(ops.layer_norm(normal * 2, weight) + total, 0).square().sum()

    made = [torch.rand(MATRIX, requires_grad=True), torch.rand(MATRIX, requires_grad=True), torch.rand(VECTOR, requires_grad=True)]
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    for one, other in zip(torch.autograd.grad(compiled(*made), made), torch.autograd.grad(block(*made), made), strict=True):
        torch.testing.assert_close(one, other)
