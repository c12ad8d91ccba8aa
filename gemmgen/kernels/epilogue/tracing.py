"""Formulas from Python functions: a function is called once on symbols, and what it computes becomes a formula's fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gemmgen.core.errors import SpecError
from gemmgen.kernels.epilogue.expression import OPERATORS, Node, call, name, nearest, number, written
from gemmgen.kernels.epilogue.functions import CASTS, FUNCTIONS, MACROS
from gemmgen.kernels.epilogue.operations import COORDINATES, PRODUCT, VALUE

Number = int | float


class Symbol:
    """A value of a kernel. Python's operators and comparisons on it, and functions of ``gemmgen.symbols``, give others."""

    __slots__ = ("node",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        self.node = node

    def __bool__(self) -> bool:
        raise SpecError("an epilogue's function asks whether a symbol is true: use select(condition, a, b) in place of if, and or or")

    def __repr__(self) -> str:
        return written(self.node)

    def __add__(self, other: Symbol | Number) -> Symbol:
        return _symbol("add", self, other)

    def __radd__(self, other: Number) -> Symbol:
        return _symbol("add", other, self)

    def __sub__(self, other: Symbol | Number) -> Symbol:
        return _symbol("sub", self, other)

    def __rsub__(self, other: Number) -> Symbol:
        return _symbol("sub", other, self)

    def __mul__(self, other: Symbol | Number) -> Symbol:
        return _symbol("mul", self, other)

    def __rmul__(self, other: Number) -> Symbol:
        return _symbol("mul", other, self)

    def __truediv__(self, other: Symbol | Number) -> Symbol:
        return _symbol("div", self, other)

    def __rtruediv__(self, other: Number) -> Symbol:
        return _symbol("div", other, self)

    def __neg__(self) -> Symbol:
        return _symbol("neg", self)

    def __abs__(self) -> Symbol:
        return _symbol("abs", self)

    def __invert__(self) -> Symbol:
        return _symbol("not", self)

    def __and__(self, other: Symbol) -> Symbol:
        return _symbol("and", self, other)

    def __or__(self, other: Symbol) -> Symbol:
        return _symbol("or", self, other)

    def __lt__(self, other: Symbol | Number) -> Symbol:
        return _symbol("lt", self, other)

    def __le__(self, other: Symbol | Number) -> Symbol:
        return _symbol("le", self, other)

    def __gt__(self, other: Symbol | Number) -> Symbol:
        return _symbol("gt", self, other)

    def __ge__(self, other: Symbol | Number) -> Symbol:
        return _symbol("ge", self, other)

    def __eq__(self, other: object) -> Any:
        return _symbol("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _symbol("ne", self, other)


def _node(value: object) -> Node:
    if isinstance(value, Symbol):
        return value.node
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"an epilogue's function computes with {value!r}: need a symbol or a number")
    return number(float(value))


def _symbol(function: str, *arguments: object) -> Symbol:
    return Symbol(call(function, *map(_node, arguments)))


class Functions:
    """The functions of expressions, for Python functions that become formulas: ``gemmgen.symbols.silu(x)``."""

    def __getattr__(self, function: str) -> Callable[..., Symbol]:
        known = ({*FUNCTIONS} - OPERATORS) | {*MACROS, *CASTS}
        if function not in known:
            raise AttributeError(f"no function {function!r} of epilogues{nearest(function, known)}")
        return lambda *arguments: _symbol(function, *arguments)


class Epilogue(dict[str, Any]):
    """The fields of a formula that a Python function was turned into, in place of a mapping in a spec or in a call of an operation."""


def epilogue(**inputs: Any) -> Callable[[Callable[..., Any]], Epilogue]:
    """A decorator that turns a function into an epilogue.

    ``inputs``: what a formula's ``inputs`` say of each operand, by its name, ``gate={"per": "element", "type": "bf16"}`` say. The function
    has parameters of these names, and any of ``acc`` (the product so far), ``row`` and ``column``. It returns the result, or a mapping
    with the result under ``C`` and further outputs by their names: symbols, or mappings such as ``{"value": z, "type": "bf16"}`` and
    ``{"reduce": "max", "of": abs(y)}``. It is called once, on symbols; ``if`` on a symbol is refused, ``select`` chooses.
    Raises ``SpecError``.
    """

    def traced(function: Callable[..., Any]) -> Epilogue:
        known = {PRODUCT, VALUE, *COORDINATES, *inputs}
        parameters = list(inspect.signature(function).parameters)
        for parameter in parameters:
            if parameter not in known:
                raise SpecError(f"epilogue {function.__name__}: the parameter {parameter!r} is no input{nearest(parameter, known)}")
        result = function(**{parameter: Symbol(name(parameter)) for parameter in parameters})
        outputs = result if isinstance(result, Mapping) else {VALUE: result}
        return Epilogue({"inputs": dict(inputs), "outputs": {key: _texts(value) for key, value in outputs.items()}})

    return traced


def _texts(value: object) -> Any:
    """An output with symbols as text."""
    if isinstance(value, Mapping):
        return {key: _texts(part) if isinstance(part, Symbol) else part for key, part in value.items()}
    return written(_node(value))
