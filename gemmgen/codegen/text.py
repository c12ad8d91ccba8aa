"""Pieces of CUDA and C that are the same in all templates: declarations of parameters, products, and words that count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.literals import float_literal
from gemmgen.kernels.epilogue.steps import convert
from gemmgen.kernels.source import parameter, parameters, times


def c_type(kind: DataType) -> str:
    """The C type of the elements of a type in memory."""
    return ELEMENTS[kind].c_type


def unsigned_c_type(kind: DataType) -> str:
    """The unsigned C type in which integers of a type wrap around."""
    return ELEMENTS[kind].unsigned_c_type


def literal(number: int, kind: DataType) -> str:
    """A small whole number as a C literal of a type."""
    return ELEMENTS[kind].literal(number)


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 row``, ``4 rows``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def consecutive(number: int, noun: str, nouns: str) -> str:
    """Things side by side: ``one float``, ``4 consecutive floats``."""
    return f"one {noun}" if number == 1 else f"{number} consecutive {nouns}"


def stepped(name: str, step: int) -> str:
    """The increment of a loop's variable."""
    return f"++{name}" if step == 1 else f"{name} += {step}"


def product(expression: str, factor: int | str) -> str:
    """A sum times a factor, which is left out if it is 1."""
    return expression if factor == 1 else f"({expression}) * {factor}"


def remainder(expression: str, divisor: int) -> str:
    """The remainder of a division, which is 0 where the divisor is 1."""
    return "0" if divisor == 1 else f"{expression} % {divisor}"


def bracketed(expression: str) -> str:
    """An expression as an operand: in brackets if it is more than a name."""
    return f"({expression})" if " " in expression else expression


def over_cluster(blocks: int, name: str = "kClusterBlocks") -> str:
    """Factor from the extent of a tile to that of a cluster which has several side by side, by the name of their number; empty for 1."""
    return f" * {name}" if blocks > 1 else ""


def power_of_two(bits: int) -> str:
    """A power of two of which these are the bits as a float, as they are written, and which it is as a comment."""
    return f"{bits:#x};  // 2^{(bits >> 23) - 127}"


def rounded_up(expression: str, multiple: int | str) -> str:
    """The least multiple, of a number or of a constant, that is not below an expression, a sum or a product, as an expression."""
    if isinstance(multiple, str):
        return f"({expression} + {multiple} - 1) / {multiple} * {multiple}"
    return f"({expression} + {multiple - 1}) / {multiple} * {multiple}"


def components(width: int) -> str:
    """Names of the first elements of a CUDA vector."""
    return "xyzw"[:width]


def half_words(width: int) -> tuple[tuple[str, int, int], ...]:
    """Words of a vector of halves: the name of the word, and the numbers of its lower and upper half."""
    return tuple(("xyzw"[word], 2 * word, 2 * word + 1) for word in range(width // 2))


def constant(name: str, value: object, meaning: str = "", kind: str = "int") -> str:
    """The definition of a whole number by name."""
    return f"constexpr {kind} {name} = {value};" + (f"  // {meaning}" if meaning else "")


def constants_of(constants: Iterable[tuple[str, object, str]]) -> str:
    """``constant`` of each name, value and meaning, one to a line."""
    return "\n".join(constant(name, value, meaning) for name, value, meaning in constants)


FILTERS: Mapping[str, Callable[..., Any]] = {
    "bracketed": bracketed,
    "c_type": c_type,
    "components": components,
    "consecutive": consecutive,
    "converted": convert,
    "counted": counted,
    "float_literal": float_literal,
    "half_words": half_words,
    "literal": literal,
    "over_cluster": over_cluster,
    "parameter": parameter,
    "parameters": parameters,
    "power_of_two": power_of_two,
    "product": product,
    "remainder": remainder,
    "rounded_up": rounded_up,
    "stepped": stepped,
    "times": times,
    "unsigned_c_type": unsigned_c_type,
}
"""Filters of the templates."""
