"""The declaration of an operator of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Extra:
    """An operator that a derivative needs beside the operation's own."""

    schema: str
    implementation: Callable[..., Any]
    result: Callable[..., Any]
    """From the operator's arguments to an empty tensor like its result."""


@dataclass(frozen=True)
class TorchOperator:
    """``torch.ops.gemmgen.<name>`` for a function of ``gemmgen.ops``, declared as ``OPERATOR`` in the module of that name."""

    schema: str
    call: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
    """From the operator's arguments to those of the function."""
    result: Callable[..., Any]
    """From the operator's arguments to an empty tensor like its result; extents may be symbolic."""
    save: Callable[..., None] | None = None
    """``setup_context`` of torch's autograd; None for operations without derivatives."""
    backward: Callable[..., tuple[Any, ...]] | None = None
    """Gradients of the operator's arguments."""
    extra: Mapping[str, Extra] = field(default_factory=dict)
    """Operators that ``backward`` calls, by name."""
