"""Formulas of the operations on rows.

A program is a list of assignments. Its names are matrices, values for each column, numbers, ``columns`` (the length of a row), and earlier
assignments. ``row_sum`` and ``row_max`` combine the elements of a row; ``prefix_sum`` and ``prefix_logsumexp`` combine those up to each
element; ``column_sum`` adds up rows. These stand outermost. All values are float32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from gemmgen.kernels.rows.spec import RowOperation

Combination = Literal["", "row_sum", "row_max", "prefix_sum", "prefix_logsumexp", "column_sum"]

_ASSIGNMENT = re.compile(r"(\w+) = (?:(row_sum|row_max|prefix_sum|prefix_logsumexp|column_sum)\((.*)\)|(.*))")


@dataclass(frozen=True)
class Assignment:
    """One line of a program."""

    name: str
    combination: Combination
    """Function that stands outermost; empty for a plain value."""
    text: str
    """The expression, or the argument of the combination."""

    @classmethod
    def read(cls, line: str) -> Assignment:
        """The assignment that a line states."""
        match = _ASSIGNMENT.fullmatch(line)
        assert match is not None, line
        name, combination, argument, plain = match.groups()
        return cls(name, cast("Combination", combination or ""), argument or plain)


@dataclass(frozen=True)
class Program:
    """The computation of one operation on rows."""

    matrices: tuple[str, ...]
    """Matrices that are read."""
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    """Assignments whose values are written as a matrix."""
    vectors: tuple[str, ...] = ()
    """Names of values for each column."""
    numbers: tuple[str, ...] = ()
    kept: str = ""
    """An assignment that takes the place of the first matrix in registers, where those are floats: nothing after it reads that matrix."""
    selects: bool = False
    """True if the results are the first k elements of each row in an order, and their columns."""

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        return tuple(map(Assignment.read, self.lines))

    @property
    def column_sums(self) -> tuple[str, ...]:
        """Assignments whose values are written as a value for each column."""
        return tuple(one.name for one in self.assignments if one.combination == "column_sum")


NORMS = ("rms_norm", "layer_norm")
GRADIENTS_OF_NORMS = ("rms_norm_gradient", "layer_norm_gradient")
SIMPLE: dict[str, Program] = {
    "softmax": Program(
        ("x",),
        ("most = row_max(x)", "power = exp(x - most)", "whole = row_sum(power)", "share = 1 / whole", "y = power * share"),
        ("y",),
        kept="power",
    ),
    "softmax_gradient": Program(("dy", "y"), ("whole = row_sum(dy * y)", "dx = (dy - whole) * y"), ("dx",)),
    "log_softmax": Program(
        ("x",),
        ("most = row_max(x)", "whole = row_sum(exp(x - most))", "above = log(whole)", "y = x - most - above"),
        ("y",),
    ),
    "log_softmax_gradient": Program(("dy", "y"), ("whole = row_sum(dy)", "dx = dy - exp(y) * whole"), ("dx",)),
    "cumsum": Program(("x",), ("y = prefix_sum(x)",), ("y",)),
    "logcumsumexp": Program(("x",), ("y = prefix_logsumexp(x)",), ("y",)),
    "topk": Program(("x",), (), ("values", "indices"), selects=True),
}
_SQUARES = ("squares = row_sum({z} * {z})", "inverse = 1 / sqrt(squares / columns + eps)", "normal = {z} * inverse")
_MOMENTS = (
    "whole = row_sum({z})",
    "middle = whole / columns",
    "centred = {z} - middle",
    "squares = row_sum(centred * centred)",
    "inverse = 1 / sqrt(squares / columns + eps)",
    "normal = centred * inverse",
)


def program(operation: RowOperation, kind: str, weight: bool, bias: bool, residual: bool) -> Program:
    """The program of an operation on matrices of type ``kind``, with the operands that a spec names."""
    if operation in SIMPLE:
        return SIMPLE[operation]
    vectors = (*(("weight",) if weight else ()), *(("bias",) if bias and operation in NORMS else ()))
    statistics: Sequence[str] = _SQUARES if operation.startswith("rms") else _MOMENTS
    if operation in NORMS:
        z = "total" if residual else "x"
        whole = (f"total = {kind}(x + residual)" if kind != "f32" else "total = x + residual",) if residual else ()
        value = f"y = normal{' * weight' if weight else ''}{' + bias' if bias else ''}"
        lines = (*whole, *(line.format(z=z) for line in statistics), value)
        return Program(("x", "residual") if residual else ("x",), lines, ("y", "total") if residual else ("y",), vectors, ("eps",))
    weighted = "weighted = dy * weight" if weight else "weighted = dy"
    if operation == "rms_norm_gradient":
        # The sum of weighted * normal is that of weighted * x, times the inverse: one pass makes both sums.
        lines = (weighted, _SQUARES[0].format(z="x"), "dotted = row_sum(weighted * x)", *(line.format(z="x") for line in _SQUARES[1:]))
        lines += ("along = dotted * inverse / columns", "dx = (weighted - normal * along) * inverse")
    else:
        moments = [line.format(z="x") for line in _MOMENTS]
        lines = (*moments[:3], weighted, moments[3], "dotted = row_sum(weighted * centred)", "added = row_sum(weighted)", *moments[4:])
        lines += ("along = dotted * inverse / columns", "level = added / columns")
        lines += ("dx = (weighted - level - normal * along) * inverse",)
    lines += ("dweight = column_sum(dy * normal)",) if weight else ()
    lines += ("dbias = column_sum(dy)",) if bias else ()
    return Program(("dy", "x"), lines, ("dx",), vectors, ("eps",))
