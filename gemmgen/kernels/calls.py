"""Arguments of calls of operations: numbers, and options that a dictionary can look up."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from numbers import Real
from typing import Any

from gemmgen.core.errors import LaunchError


@cache
def is_number(kind: type) -> bool:
    """True if objects of a class are numbers; remembered, for asking costs a tenth of a launch."""
    return issubclass(kind, Real)


def number(operation: str, name: str, value: Any) -> float:
    """An argument as a float. Raises ``LaunchError`` for what is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise LaunchError(f"{operation}: {name} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except (OverflowError, ValueError) as error:
        raise LaunchError(f"{operation}: {name} must be a number that a float holds: {error}") from None


def hashable(activation: Any) -> Any:
    """An activation as something that a dictionary can look up: pairs for a mapping, tuples for sequences."""
    if isinstance(activation, Mapping):
        return tuple(sorted(activation.items(), key=lambda item: str(item[0])))
    if isinstance(activation, list | tuple) and not (activation and isinstance(activation[0], tuple)):
        return tuple(hashable(part) for part in activation)
    return activation
