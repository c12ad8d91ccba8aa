"""Arguments that products share: scales that are numbers, and arguments beside an epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from gemmgen.core.errors import LaunchError


def numbers_as_factors(a: Any, alpha: Any, scale_a: Any, scale_b: Any, output: str | None) -> tuple[str | None, Any, Any, Any]:
    """``output``, ``alpha`` with the scales that are numbers, and those that are none."""
    numbers = isinstance(scale_a, Real) or isinstance(scale_b, Real)
    if numbers and output is None and not a.dtype.is_floating_point:
        output = "float32"
    if isinstance(scale_a, Real):
        scale_a, alpha = None, alpha * scale_a
    if isinstance(scale_b, Real):
        scale_b, alpha = None, alpha * scale_b
    return output, alpha, scale_a, scale_b


def refuse_beside_epilogue(operation: str, others: Mapping[str, object]) -> None:
    """Raises ``LaunchError`` for arguments whose part the epilogue has."""
    for name, value in others.items():
        if value is not None:
            raise LaunchError(f"{operation}: {name} beside epilogue, need all of it in the formula")
