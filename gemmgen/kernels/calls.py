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


class Fields(tuple[tuple[str, Any], ...]):
    """A mapping as pairs that a dictionary can look up."""


def hashable(activation: Any) -> Any:
    """An activation as something that a dictionary can look up: ``Fields`` for mappings, tuples for sequences."""
    if isinstance(activation, Fields):
        return activation
    if isinstance(activation, Mapping):
        return Fields((str(key), hashable(value)) for key, value in activation.items())
    if isinstance(activation, list | tuple):
        return tuple(hashable(part) for part in activation)
    return activation


def written_out(activation: Any) -> Any:
    """The mappings and lists that ``hashable`` was given."""
    if isinstance(activation, Fields):
        return {key: written_out(value) for key, value in activation}
    if isinstance(activation, Mapping):
        return {key: written_out(value) for key, value in activation.items()}
    return [written_out(part) for part in activation] if isinstance(activation, list | tuple) else activation
