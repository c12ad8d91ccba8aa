"""``gemmgen.ops.elementwise``: its signature, and its arguments as instances and torch's operator take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from gemmgen.kernels.calls import hashable, integer_or_number, is_number

NAME = "elementwise"
OPERANDS = ("x", "bias", "bias2", "z", "z2", "f", "f2")
RESULTS = ("out",)
NUMBERS = ("bias", "bias2", "gamma", "gamma2")
OPTIONS = ("operations", "fractions")


def arguments(
    x: Any,
    operations: str | Mapping[str, Any] | Sequence[Any] = (),
    *,
    bias: Any = None,
    bias2: Any = None,
    z: Any = None,
    z2: Any = None,
    gamma: float = 1.0,
    gamma2: float = 1.0,
    f: Any = None,
    f2: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The ``operations`` on every element of ``x``, one after the other.

    ``operations``: names (``relu``, ``gelu``, ``exp``, ``square`` ...), or mappings as in a spec (``{"op": "scale", "factor": 2.0}``,
    ``{"op": "cast", "type": "float16"}``), or several of them; none: a copy. ``bias`` adds ``bias``, a number or an array;
    ``residual`` adds ``gamma`` times ``z``; ``multiply`` multiplies by ``f``; a second one of a kind reads ``bias2``, ``gamma2``
    and ``z2``, ``f2``. All arrays have x's type and broadcast by NumPy's rules; those with negative strides, or with more than four axes
    that lie apart, are copied first. Numbers beside integers are integers. ``out``: where to write, which may be an operand itself; it
    decides the result's type, else that is x's, or that of the last cast. ``docs/operations.md`` says which types are taken.

    Raises ``LaunchError`` for arguments that do not go together.
    """
    numbers = [0, 0, integer_or_number("elementwise", "gamma", gamma), integer_or_number("elementwise", "gamma2", gamma2)]
    biases = [bias, bias2]
    for place, given in enumerate(biases):
        if given is not None and is_number(given.__class__):
            biases[place], numbers[place] = None, integer_or_number("elementwise", NUMBERS[place], given)
    wanted = operations if operations.__class__ is str else hashable(operations)
    fractions = tuple(name for name, value in zip(NUMBERS, numbers, strict=True) if not isinstance(value, int))
    return (x, *biases, z, z2, f, f2, out), (wanted, fractions), tuple(numbers), stream


IN_PLACE = OPERANDS
"""Operands that the result may overwrite: a thread reads an element's operands before it writes the element."""


def keeps_type(options: tuple[Any, ...]) -> bool:
    """True if the result has x's type because no operation is a cast."""
    from gemmgen.kernels.elementwise.operator import parse_operations

    return all(operation.op != "cast" for operation in parse_operations(options[0]))


def traced(
    x: Any,
    operations: str | Mapping[str, Any] | Sequence[Any] = (),
    *,
    bias: Any = None,
    bias2: Any = None,
    z: Any = None,
    z2: Any = None,
    gamma: float = 1.0,
    gamma2: float = 1.0,
    f: Any = None,
    f2: Any = None,
    out: Any = None,
    stream: Any = None,
) -> tuple[tuple[Any, ...], bool]:
    """Arguments of torch's operator for a call, and True if it can stand for the call."""
    names = (operations,) if isinstance(operations, str) else tuple(operations)
    plain = all(isinstance(name, str) for name in names) and bias2 is z2 is f2 is None and not isinstance(bias, Real)
    return (x, " ".join(map(str, names)), bias, z, f, gamma), plain and out is None and stream is None
