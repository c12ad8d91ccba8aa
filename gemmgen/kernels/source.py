"""Pieces of CUDA and C that plans and templates write alike: declarations of parameters, and products."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.core.elements import ELEMENTS
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
    return f"{const}{kind}* {'' if argument.shares else '__restrict__ '}{argument.name}"


def parameters(arguments: Sequence[Argument]) -> str:
    """The declarations of all parameters, in lines of a readable width."""
    lines = [""]
    for argument in arguments:
        declaration = parameter(argument)
        if len(lines[-1]) + len(declaration) > 110:
            lines.append("")
        lines[-1] += f"{declaration}, "
    return "\n".join(line.rstrip() for line in lines).rstrip(", ")


def times(factor: int | str, operator: str = "*") -> str:
    """The rest of a product, or of a quotient, whose last factor this is: nothing for 1."""
    return "" if factor == 1 else f" {operator} {factor}"
