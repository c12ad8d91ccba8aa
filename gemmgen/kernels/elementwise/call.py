"""``gemmgen.ops.elementwise``: its signature, and its arguments as instances and torch's operator take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from gemmgen.kernels.calls import hashable, is_number, number

NAME = "elementwise"
OPERANDS = ("x", "bias", "bias2", "z", "z2", "f", "f2")
RESULTS = ("out",)
NUMBERS = ("bias", "bias2", "gamma", "gamma2")
OPTIONS = ("operations",)


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
    and ``z2``, ``f2``. All arrays have x's type, any strides but negative ones, and broadcast by NumPy's rules; up to four axes
    may be left when neighbouring ones that lie alike count as one. ``out``: where to write; it decides the result's type, else
    that is x's, or that of a cast.

    Raises ``LaunchError`` for arguments that do not go together.
    """
    numbers = [0.0, 0.0, number("elementwise", "gamma", gamma), number("elementwise", "gamma", gamma2)]
    biases = [bias, bias2]
    for place, given in enumerate(biases):
        if given is not None and is_number(given.__class__):
            biases[place], numbers[place] = None, number("elementwise", "bias", given)
    wanted = operations if operations.__class__ is str else hashable(operations)
    return (x, *biases, z, z2, f, f2, out), (wanted,), tuple(numbers), stream


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
