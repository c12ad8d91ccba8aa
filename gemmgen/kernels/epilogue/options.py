"""Operations in the options of a call, as something that a dictionary can look up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Fields(tuple[tuple[str, Any], ...]):
    """A mapping as pairs that a dictionary can look up."""


def hashable(activation: Any) -> Any:
    """An activation as something that a dictionary can look up: ``Fields`` for mappings and for functions, which are called on symbols;
    tuples for sequences."""
    if isinstance(activation, Fields):
        return activation
    if isinstance(activation, Mapping):
        return Fields((str(key), hashable(value)) for key, value in activation.items())
    if isinstance(activation, list | tuple):
        return tuple(hashable(part) for part in activation)
    if hasattr(activation, "tolist"):  # an array of names, or a number of NumPy's
        return hashable(activation.tolist())
    if callable(activation):
        from gemmgen.kernels.epilogue.tracing import epilogue

        return hashable(epilogue(activation))
    return activation


def written_out(activation: Any) -> Any:
    """The mappings and lists that ``hashable`` was given."""
    if isinstance(activation, Fields):
        return {key: written_out(value) for key, value in activation}
    if isinstance(activation, Mapping):
        return {key: written_out(value) for key, value in activation.items()}
    return [written_out(part) for part in activation] if isinstance(activation, list | tuple) else activation
