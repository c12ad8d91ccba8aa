"""Operations in the options of a call, as something that a dictionary can look up."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from gemmgen.core.errors import SpecError

MAX_DEPTH = 30
"""Levels of nested mappings and lists."""


class Fields(tuple[tuple[str, Any], ...]):
    """A mapping as pairs that a dictionary can look up."""


def hashable(activation: object) -> Any:
    """An activation as something that a dictionary can look up: ``Fields`` for mappings and for functions, which are called on symbols;
    tuples for sequences. Raises ``SpecError``."""
    return _hashable(activation, 0)


def _hashable(activation: object, depth: int) -> Any:
    if isinstance(activation, Fields):
        return activation
    if depth > MAX_DEPTH:
        raise SpecError(f"mappings and lists more than {MAX_DEPTH} deep, which no operation has")
    if isinstance(activation, Mapping):
        return Fields((str(key), _hashable(value, depth + 1)) for key, value in activation.items())
    if isinstance(activation, list | tuple):
        return tuple(_hashable(part, depth + 1) for part in activation)
    if hasattr(activation, "tolist"):  # an array of names, or a number of NumPy's
        return _hashable(activation.tolist(), depth + 1)
    if callable(activation):
        from gemmgen.kernels.epilogue.tracing import epilogue

        return _hashable(epilogue(activation), depth + 1)
    if activation.__hash__ is None:
        raise SpecError(f"got {reprlib.repr(activation)} of type {type(activation).__name__}, which no operation has")
    return activation


def written_out(activation: object) -> Any:
    """The mappings and lists that ``hashable`` was given."""
    if isinstance(activation, Fields):
        return {key: written_out(value) for key, value in activation}
    if isinstance(activation, Mapping):
        return {key: written_out(value) for key, value in activation.items()}
    return [written_out(part) for part in activation] if isinstance(activation, list | tuple) else activation
