"""Pieces of CUDA and C that are the same in all templates: declarations of parameters, products, and words that count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.literals import float_literal
from gemmgen.kernels.launch import Argument, ArrayArgument, HostArgument, TensorMapArgument


def parameter(argument: Argument) -> str:
    """The declaration of a kernel parameter."""
    if isinstance(argument, HostArgument):
        return f"const __grid_constant__ {argument.struct} {argument.name}"
    if isinstance(argument, TensorMapArgument):
        return f"const __grid_constant__ TensorMap {argument.name}"
    kind = ELEMENTS[argument.type].c_type
    if not isinstance(argument, ArrayArgument):
        return f"{kind} {argument.name}"
    const = "const " if not argument.writes else ""
    return f"{const}{kind}* __restrict__ {argument.name}"


def parameters(arguments: Sequence[Argument]) -> str:
    """The declarations of all parameters, in lines of a readable width."""
    lines = [""]
    for argument in arguments:
        declaration = parameter(argument)
        if len(lines[-1]) + len(declaration) > 110:
            lines.append("")
        lines[-1] += f"{declaration}, "
    return "\n".join(line.rstrip() for line in lines).rstrip(", ")


def times(factor: int, operator: str = "*") -> str:
    """The rest of a product, or of a quotient, whose last factor this is: nothing for 1."""
    return "" if factor == 1 else f" {operator} {factor}"


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
