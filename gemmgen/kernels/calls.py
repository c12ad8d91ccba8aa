"""Arguments of calls of operations: numbers, and options that a dictionary can look up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from math import inf, isfinite
from numbers import Integral, Real
from operator import index
from typing import Any, TypeGuard

from gemmgen.core.errors import LaunchError
from gemmgen.core.text import printable

Operations = str | Mapping[str, object] | Callable[..., object] | Sequence[str | Mapping[str, object] | Callable[..., object]]
"""Operations on results: a name, a mapping as in a spec, a Python function on symbols, or several of them."""


@cache
def is_number(kind: type) -> bool:
    """True if objects of a class are numbers; remembered, for asking costs a tenth of a launch."""
    return issubclass(kind, Real)


def is_plain_number(value: object) -> TypeGuard[float]:
    """True for numbers that are no arrays."""
    kind: Any = value.__class__
    return is_number(kind)


FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""The smallest magnitude that rounds to infinity in float32."""


def number(operation: str, name: str, value: object, overflow: float = FLOAT32_OVERFLOW) -> float:
    """An argument, a number or an array without axes, as a float. Raises ``LaunchError`` for objects that are no numbers,
    and for finite ones from ``overflow`` on."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise LaunchError(f"{operation}: {name} must be a number, got {type(value).__name__}")
    try:
        as_float = float(value)
    except (OverflowError, ValueError) as error:
        raise LaunchError(f"{operation}: {name} must be a number that a float holds: {error}") from None
    if overflow <= abs(as_float) < inf:
        raise LaunchError(f"{operation}: {name} is {as_float:g}, more than float32 holds")
    return as_float


def integer(operation: str, name: str, value: Any) -> int:
    """An argument as an integer: Python's, NumPy's, or an array without axes. Raises ``LaunchError`` for anything else."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)
    except TypeError:
        raise LaunchError(f"{operation}: {name} is {value!r}, need an integer") from None


def word(operation: str, name: str, value: Any, words: Collection[str]) -> str:
    """An argument as one of some words. Raises ``LaunchError`` for anything else."""
    if isinstance(value, str) and value in words:
        return value
    *others, last = map(repr, words)
    raise LaunchError(f"{operation}: {name} is {printable(repr(value), 100)}, need {', '.join(others)} or {last}")


def flag(operation: str, name: str, value: object) -> bool:
    """An argument as a truth value. Raises ``LaunchError`` for arrays of any other number of elements than one."""
    try:
        return bool(value)
    except Exception:
        raise LaunchError(f"{operation}: {name} is {value.__class__.__name__}, need True or False") from None


def pair(operation: str, name: str, value: object) -> tuple[int, int]:
    """A stride, padding, dilation or extent: an integer for rows and columns, or one for each. Raises ``LaunchError``."""
    parts = tuple(value) if isinstance(value, list | tuple) else (value, value)
    least = 0 if "padding" in name else 1
    try:
        rows, columns = (integer(operation, name, part) for part in parts)
        if min(rows, columns) >= least:
            return rows, columns
    except (LaunchError, ValueError):
        pass
    need = f"an integer of at least {least}, or one for rows and one for columns"
    raise LaunchError(f"{operation}: {name} is {value!r}, need {need}")


def by_name(operation: str, operands: object) -> Mapping[str, Any]:
    """The operands of an epilogue by name; none for None. Raises ``LaunchError``."""
    if operands is None:
        return {}
    if not isinstance(operands, Mapping):
        raise LaunchError(f"{operation}: operands is {operands.__class__.__name__}, need a mapping of names to arrays and numbers")
    return operands


def integer_or_number(operation: str, name: str, value: object) -> float:
    """An argument as an integer of 64 bits if it is one, else as a float: neither loses bits. Raises ``LaunchError``."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        whole = int(value)
        if not -(2**63) <= whole < 2**63:
            raise LaunchError(f"{operation}: {name} is {whole}, need an integer of 64 bits at most")
        return whole
    return number(operation, name, value, inf)


def are_floats(*numbers: object) -> bool:
    """True if the numbers are Python's floats, finite ones within the range of float32."""
    for value in numbers:
        if value.__class__ is not float or (not -FLOAT32_OVERFLOW < value < FLOAT32_OVERFLOW and isfinite(value)):
            return False
    return True
