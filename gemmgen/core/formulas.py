"""Integer formulas over the names of a problem, evaluated here and printable as C.

A launch has to tell Python, C++ and the certificate the same story about its grid, so the story is kept as text:
``ceil_div(m, 128) * ceil_div(n, 128)``. The grammar is small: names, non-negative integer literals, ``+ - * // % <<``,
comparisons (1 or 0), ``min``, ``max``, ``ceil_div``, ``round_up``, ``ceil_log2`` and ``select(condition, yes, no)``. C, where
that is printed, needs a function ``ceil_log2``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gemmgen.core.errors import GemmgenError

_BINARY: dict[type[ast.operator], tuple[Callable[[int, int], int], str]] = {
    ast.Add: (operator.add, "+"),
    ast.Sub: (operator.sub, "-"),
    ast.Mult: (operator.mul, "*"),
    ast.FloorDiv: (operator.floordiv, "/"),
    ast.Mod: (operator.mod, "%"),
    ast.LShift: (operator.lshift, "<<"),
}
_COMPARE: dict[type[ast.cmpop], tuple[Callable[[int, int], bool], str]] = {
    ast.Lt: (operator.lt, "<"),
    ast.LtE: (operator.le, "<="),
    ast.Gt: (operator.gt, ">"),
    ast.GtE: (operator.ge, ">="),
    ast.Eq: (operator.eq, "=="),
    ast.NotEq: (operator.ne, "!="),
}


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer that is at least ``numerator / denominator``."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``value``."""
    return ceil_div(value, multiple) * multiple


def ceil_log2(value: int) -> int:
    """The smallest exponent of a power of two that is at least ``value``, which is positive."""
    return (value - 1).bit_length()


_FUNCTIONS: dict[str, tuple[int, Callable[..., int]]] = {
    "ceil_div": (2, ceil_div),
    "round_up": (2, round_up),
    "ceil_log2": (1, ceil_log2),
    "min": (2, min),
    "max": (2, max),
    "select": (3, lambda condition, yes, no: yes if condition else no),
}


class FormulaError(GemmgenError):
    """A formula is not in the grammar, names something unknown, or divides by zero."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"formula {text!r} cannot be read: {error}") from None
    _check(tree, text)
    return tree


def _check(node: ast.expr, text: str) -> None:
    match node:
        case ast.Name():
            return
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left, text)
            _check(right, text)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            _check(left, text)
            _check(right, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            if len(args) != _FUNCTIONS[name][0]:
                raise FormulaError(f"formula {text!r}: {name} takes {_FUNCTIONS[name][0]} arguments, got {len(args)}")
            for argument in args:
                _check(argument, text)
        case _:
            raise FormulaError(f"formula {text!r}: {ast.unparse(node)!r} is not part of the formula grammar")


def _evaluate(node: ast.expr, values: Mapping[str, int], text: str) -> int:
    match node:
        case ast.Name(id=name):
            if name not in values:
                raise FormulaError(f"formula {text!r}: {name!r} has no value; known: {', '.join(sorted(values))}")
            return int(values[name])
        case ast.Constant(value=int() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            try:
                return _BINARY[type(op)][0](_evaluate(left, values, text), _evaluate(right, values, text))
            except ZeroDivisionError:
                raise FormulaError(f"formula {text!r} divides by zero") from None
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return int(_COMPARE[type(op)][0](_evaluate(left, values, text), _evaluate(right, values, text)))
        case ast.Call(func=ast.Name(id=name), args=args):
            arguments = [_evaluate(argument, values, text) for argument in args]
            try:
                return _FUNCTIONS[name][1](*arguments)
            except ZeroDivisionError:
                raise FormulaError(f"formula {text!r} divides by zero") from None
    raise AssertionError(f"unchecked node in formula {text!r}")


def _to_c(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=value):
            return str(value)
        case ast.BinOp(left=left, op=op, right=right):
            return f"({_to_c(left)} {_BINARY[type(op)][1]} {_to_c(right)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return f"({_to_c(left)} {_COMPARE[type(op)][1]} {_to_c(right)})"
        case ast.Call(func=ast.Name(id="ceil_div"), args=[left, right]):
            numerator, denominator = _to_c(left), _to_c(right)
            return f"(({numerator} + {denominator} - 1) / {denominator})"
        case ast.Call(func=ast.Name(id="round_up"), args=[left, right]):
            value, multiple = _to_c(left), _to_c(right)
            return f"(({value} + {multiple} - 1) / {multiple} * {multiple})"
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=[left, right]):
            a, b = _to_c(left), _to_c(right)
            return f"({a} {'<' if name == 'min' else '>'} {b} ? {a} : {b})"
        case ast.Call(func=ast.Name(id="ceil_log2"), args=[value]):
            return f"ceil_log2({_to_c(value)})"
        case ast.Call(args=[condition, yes, no]):
            return f"({_to_c(condition)} ? {_to_c(yes)} : {_to_c(no)})"
    raise AssertionError("unchecked node in formula")


@dataclass(frozen=True)
class Formula:
    """An integer formula, kept as its text. Raises ``FormulaError`` at once if the text is outside the grammar."""

    text: str

    def __post_init__(self) -> None:
        _parse(self.text)

    @classmethod
    def of(cls, value: Formula | str | int) -> Formula:
        """``value`` as a formula: text is parsed, an integer becomes its literal."""
        return value if isinstance(value, Formula) else cls(str(value))

    @cached_property
    def names(self) -> frozenset[str]:
        """The problem names that the formula reads."""
        tree = _parse(self.text)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)

    @property
    def is_name(self) -> bool:
        """Whether the formula is a single name, so that a measured value can bind it."""
        return isinstance(_parse(self.text), ast.Name)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The formula's value; ``FormulaError`` if a name is missing or a divisor is zero."""
        return _evaluate(_parse(self.text), values, self.text)

    def to_c(self) -> str:
        """The formula as a C expression over the same names, right for non-negative values."""
        return _to_c(_parse(self.text))

    def __str__(self) -> str:
        return self.text
