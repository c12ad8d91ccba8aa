"""Derivatives of expression graphs by the chain rule, backwards from the result.

Every function says its derivative as an expression of its arguments and its result (``gemmgen.kernels.epilogue.functions``). Assignments
are first divided into single calls, so that the derivative is about as long as the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gemmgen.kernels.epilogue.expression import Node, call, name, number, parse
from gemmgen.kernels.epilogue.extensions import macro_of
from gemmgen.kernels.epilogue.functions import CASTS, FUNCTIONS

_ARGUMENTS = ("x", "y", "z")
_CASTS = {*CASTS, *CASTS.values()}

Assignment = tuple[str, Node]
"""A name and the tree of its value."""


@dataclass(frozen=True)
class Derivative:
    """Assignments that give the derivatives of a result."""

    assignments: tuple[Assignment, ...]
    """The graph's own in single calls, then those of the derivative."""
    by: Mapping[str, Node]
    """The derivative by each input, times the upstream gradient: a name or a number."""


@dataclass
class _Flat:
    """Assignments of single calls."""

    assignments: list[Assignment] = field(default_factory=list)
    current: dict[str, Node] = field(default_factory=dict)
    """The latest value of each name that is assigned."""
    count: int = 0
    prefix: str = "v"

    def add(self, node: Node) -> Node:
        """The node as a name or a number."""
        self.count += 1
        variable = name(f"{self.prefix}{self.count}")
        self.assignments.append((variable.name, node))
        return variable

    def flat(self, node: Node, bound: Mapping[str, Node]) -> Node:
        if node.number is not None:
            return node
        if node.name:
            return bound.get(node.name) or self.current.get(node.name, node)
        arguments = tuple(self.flat(argument, bound) for argument in node.arguments)
        macro = macro_of(node.function)
        if macro is not None:
            parameters, body = macro
            return self.flat(body, dict(zip(parameters, arguments, strict=True)))
        return self.add(call(node.function, *arguments))


def derivative(assignments: Sequence[Assignment], result: str, inputs: Sequence[str], upstream: str = "upstream") -> Derivative:
    """The derivative of ``result`` by each of ``inputs``, times the gradient ``upstream`` of the result.

    A name may be assigned several times. Casts have the derivative 1; comparisons and ``round`` have 0.
    """
    flat = _Flat()
    for target, node in assignments:
        flat.current[target] = flat.flat(node, {})
    forward = tuple(flat.assignments)
    gradients: dict[str, Node] = {}

    def plus(target: Node, term: Node) -> None:
        if target.name:
            gradients[target.name] = backward.add(call("add", gradients[target.name], term)) if target.name in gradients else term

    backward = _Flat(prefix="d")
    plus(flat.current.get(result, name(result)), name(upstream))
    for target, node in reversed(forward):
        if target not in gradients:
            continue
        seed = gradients[target]
        if node.function in _CASTS:
            plus(node.arguments[0], seed)
            continue
        bound = dict(zip(_ARGUMENTS, node.arguments, strict=False)) | {"f": name(target)}
        for argument, text in zip(node.arguments, FUNCTIONS[node.function].derivative, strict=True):
            if argument.name and text is not None:
                plus(argument, _times(backward, seed, parse(text), bound))
    return Derivative((*forward, *backward.assignments), {one: gradients.get(one, number(0)) for one in inputs})


def _times(backward: _Flat, seed: Node, slope: Node, bound: Mapping[str, Node]) -> Node:
    """The product of a gradient and a slope."""
    if slope.number is not None:
        if slope.number == 1:
            return seed
        return backward.add(call("neg", seed)) if slope.number == -1 else backward.add(call("mul", seed, slope))
    if slope.function == "select" and slope.arguments[1].number is not None and slope.arguments[2].number is not None:
        # Where the slope is 0 or 1, the gradient is chosen, not multiplied, so that an infinite one does not become NaN.
        yes, no = slope.arguments[1].number, slope.arguments[2].number
        if {yes, no} == {0, 1}:
            condition = backward.flat(slope.arguments[0], bound)
            return backward.add(call("select", condition, seed if yes else number(0), seed if no else number(0)))
    return backward.add(call("mul", seed, backward.flat(slope, bound)))
