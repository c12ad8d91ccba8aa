"""Degree of an epilogue's results as polynomials of random residues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmgen.kernels.epilogue.graph import Typed
from gemmgen.kernels.epilogue.operations import VALUE
from gemmgen.kernels.epilogue.steps import Step


def degree_of_steps(steps: Sequence[Step], before: int) -> int:
    """Highest degree of a value that the steps assign, where the value before them has this degree and every operand has degree 1.

    Two different polynomials have the same residue with a probability of at most their degree over the modulus. A function that is neither
    sum nor product is a hash: its results are equal where its arguments are, or by one more chance in as many as the modulus. So it counts
    as one degree more than its arguments."""
    value = most = before
    for step in steps:
        names = {VALUE: value} | {access.operand.name: 1 for access in step.accesses}
        for name, tree in step.assignments:
            names[name] = _degree(tree, names)
            most = max(most, names[name])
        value = names[VALUE]
    return most


def _degree(tree: Typed, degrees: Mapping[str, int]) -> int:
    if tree.function is None:
        # Numbers, and the indices of an element, have none.
        return degrees.get(tree.name, 0) if tree.name else max((_degree(argument, degrees) for argument in tree.arguments), default=0)
    own = [_degree(argument, degrees) for argument in tree.arguments]
    match tree.function.name:
        case "add":
            return max(own)
        case "mul":
            return own[0] + own[1]
        case "fma":
            return max(own[0] + own[1], own[2])
    return max(own, default=0) + 1
