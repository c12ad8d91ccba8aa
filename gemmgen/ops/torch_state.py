"""The state of torch that decides how a call is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmgen.core.errors import LaunchError

compiling: Callable[[], bool] | None = None
"""True while ``torch.compile`` traces a call, which then sees the operator instead. None until torch's operators are registered."""


def recording(*arrays: object) -> bool:
    """True if torch records an operation on these for derivatives."""
    import torch

    return torch.is_grad_enabled() and any(getattr(array, "requires_grad", False) for array in arrays)


def by_operator(name: str, arguments: tuple[object, ...], possible: bool) -> Any:
    """The result of torch's operator, in place of the function. Raises ``LaunchError`` for calls that it does not stand for."""
    if not possible:
        raise LaunchError(
            f"{name}: where torch compiles or records gradients, the operator makes its result and takes tensors and names of "
            "operations: no out, beta, amax, stream, backend, batch_invariant, numbers as bias or "
            "mappings"
        )
    import torch  # not from sys.modules: the tracer would go through all of it, while other threads import

    return getattr(torch.ops.gemmgen, name)(*arguments)
