"""Symbols: values of a kernel that Python's operators and functions combine into expressions."""

from __future__ import annotations

import reprlib
from numbers import Integral, Real
from typing import Any, NoReturn

from gemmgen.core.errors import SpecError
from gemmgen.kernels.epilogue.expression import Node, call, number, written

Number = int | float
_MAX_INTEGER = 1 << 1023
_NUMPYS = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "less": "lt", "less_equal": "le", "greater": "gt",
           "greater_equal": "ge", "equal": "eq", "not_equal": "ne"}  # fmt: skip
"""Operators by the names of NumPy's functions, which its numbers call."""


class Symbol:
    """A value of a kernel. Python's operators and comparisons on it, and functions of ``gemmgen.symbols``, give others."""

    __slots__ = ("node",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        self.node = node

    def __bool__(self) -> bool:
        raise SpecError("an epilogue's function asks whether a symbol is true: use select(condition, a, b) in place of if, and or or")

    def _number(self, *_: object) -> NoReturn:
        raise SpecError("an epilogue's function needs the number behind a symbol: use the functions of gemmgen.symbols in place of math's")

    __float__ = __int__ = __index__ = __complex__ = __round__ = _number

    def _parts(self, *_: object) -> NoReturn:
        raise SpecError("an epilogue's function takes parts of a symbol, which is one element: it has no neighbours")

    __iter__ = __getitem__ = __len__ = _parts

    def __array_ufunc__(self, function: Any, method: str, *inputs: object, **_: object) -> Symbol:
        if method != "__call__" or function.__name__ not in _NUMPYS:
            raise SpecError(
                f"an epilogue's function calls numpy.{function.__name__}: use the functions of gemmgen.symbols in place of NumPy's"
            )
        return symbol(_NUMPYS[function.__name__], *inputs)

    def __repr__(self) -> str:
        return written(self.node)

    def __add__(self, other: Symbol | Number) -> Symbol:
        return symbol("add", self, other)

    def __radd__(self, other: Number) -> Symbol:
        return symbol("add", other, self)

    def __sub__(self, other: Symbol | Number) -> Symbol:
        return symbol("sub", self, other)

    def __rsub__(self, other: Number) -> Symbol:
        return symbol("sub", other, self)

    def __mul__(self, other: Symbol | Number) -> Symbol:
        return symbol("mul", self, other)

    def __rmul__(self, other: Number) -> Symbol:
        return symbol("mul", other, self)

    def __truediv__(self, other: Symbol | Number) -> Symbol:
        return symbol("div", self, other)

    def __rtruediv__(self, other: Number) -> Symbol:
        return symbol("div", other, self)

    def __floordiv__(self, other: Symbol | Number) -> Symbol:
        return symbol("floordiv", self, other)

    def __mod__(self, other: Symbol | Number) -> Symbol:
        return symbol("mod", self, other)

    def __pow__(self, exponent: Number) -> Symbol:
        if isinstance(exponent, Symbol) or exponent != 2:
            raise SpecError(f"an epilogue's function takes the power {exponent!r} of a symbol: need 2, or a product")
        return symbol("square", self)

    def __neg__(self) -> Symbol:
        return symbol("neg", self)

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return symbol("abs", self)

    def __invert__(self) -> Symbol:
        return symbol("not", self)

    def __and__(self, other: Symbol) -> Symbol:
        return symbol("and", self, other)

    def __or__(self, other: Symbol) -> Symbol:
        return symbol("or", self, other)

    def __lt__(self, other: Symbol | Number) -> Symbol:
        return symbol("lt", self, other)

    def __le__(self, other: Symbol | Number) -> Symbol:
        return symbol("le", self, other)

    def __gt__(self, other: Symbol | Number) -> Symbol:
        return symbol("gt", self, other)

    def __ge__(self, other: Symbol | Number) -> Symbol:
        return symbol("ge", self, other)

    def __eq__(self, other: object) -> Any:
        return symbol("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return symbol("ne", self, other)


def node_of(value: object) -> Node:
    """The tree of a symbol, or of a number. Raises ``SpecError`` for anything else."""
    if isinstance(value, Symbol):
        return value.node
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SpecError(f"an epilogue's function computes with {reprlib.repr(value)}: need a symbol or a number")
    if isinstance(value, Integral) and (abs(int(value)) > _MAX_INTEGER or int(float(value)) != int(value)):
        shown = f"{value}" if abs(int(value)) < 1 << 128 else "an integer of more than 128 bits"
        raise SpecError(f"an epilogue's function computes with {shown}: need a number that float64 holds")
    return number(float(value))


def symbol(function: str, *arguments: object) -> Symbol:
    """The symbol of a call."""
    return Symbol(call(function, *map(node_of, arguments)))
