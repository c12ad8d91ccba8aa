"""Pieces of CUDA and C that are the same in all templates: declarations of parameters, products, and words that count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gemmgen.core.literals import float_literal
from gemmgen.kernels.source import parameter, parameters, times


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 row``, ``4 rows``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rounded_up(expression: str, multiple: int) -> str:
    """The least multiple that is not below an expression, a sum or a product, as an expression."""
    return f"({expression} + {multiple - 1}) / {multiple} * {multiple}"


def components(width: int) -> str:
    """Names of the first elements of a CUDA vector."""
    return "xyzw"[:width]


def half_words(width: int) -> tuple[tuple[str, int, int], ...]:
    """Words of a vector of halves: the name of the word, and the numbers of its lower and upper half."""
    return tuple(("xyzw"[word], 2 * word, 2 * word + 1) for word in range(width // 2))


def constant(name: str, value: object, meaning: str = "") -> str:
    """The definition of a whole number by name."""
    return f"constexpr int {name} = {value};" + (f"  // {meaning}" if meaning else "")


FILTERS: Mapping[str, Callable[..., Any]] = {
    "components": components,
    "counted": counted,
    "float_literal": float_literal,
    "half_words": half_words,
    "parameter": parameter,
    "parameters": parameters,
    "rounded_up": rounded_up,
    "times": times,
}
"""Filters of the templates."""
