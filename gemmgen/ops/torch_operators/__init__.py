"""The operations as custom operators of torch, a module each, with shapes for tracing, so that ``torch.compile`` takes them as they are.

All have derivatives, ``conv2d`` for 16-bit floats. Other tensors that require gradients are refused, unless ``torch.no_grad()`` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.ops.torch_operators import rows
from gemmgen.ops.torch_operators.declaration import TorchOperator

_library: Any = None


def declaration_of(name: str) -> TorchOperator:
    """The operator of torch for an operation."""
    if name in rows.FUNCTIONS:
        return rows.OPERATORS[name]
    operator: TorchOperator = import_module(f"gemmgen.ops.torch_operators.{name}").OPERATOR
    return operator


def register(functions: Mapping[str, Callable[..., object]]) -> Callable[[], bool]:
    """Defines ``torch.ops.gemmgen.*`` for functions of ``gemmgen.ops``, once; gives ``torch.compiler.is_compiling``.

    Raises ``EnvironmentMissing`` without torch.
    """
    global _library
    try:
        import torch
    except ImportError as error:
        raise EnvironmentMissing(f"torch cannot be imported ({error}); install torch") from None
    is_compiling: Callable[[], bool] = torch.compiler.is_compiling
    if _library is not None:
        return is_compiling
    library = torch.library.Library("gemmgen", "DEF")
    for name, function in functions.items():
        operator = declaration_of(name)
        _define(torch, library, name, operator.schema, _implementation(function, operator), operator.result)
        if operator.backward is not None:
            torch.library.register_autograd(f"gemmgen::{name}", operator.backward, setup_context=operator.save, lib=library)
        for other, extra in operator.extra.items():
            _define(torch, library, other, extra.schema, extra.implementation, extra.result)
    _library = library
    return is_compiling


def _define(torch: Any, library: Any, name: str, schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        library.impl(name, implementation, key)
    torch.library.register_fake(f"gemmgen::{name}", fake, lib=library)


def _implementation(function: Callable[..., object], operator: TorchOperator) -> Callable[..., Any]:
    def implementation(*arguments: object) -> Any:
        given, named = operator.call(*arguments)
        return function(*given, **named)

    return implementation
