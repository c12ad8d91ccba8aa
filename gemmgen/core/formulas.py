"""Integer formulas over the names of a problem, evaluated here and printable as C.

A launch has to tell Python, C++ and the certificate the same story about its grid, so the story is kept as text:
``ceil_div(m, 128) * ceil_div(n, 128)``. The grammar is small: names, non-negative integer literals, ``+ - * // % <<``,
comparisons (1 or 0), ``min``, ``max``, ``ceil_div``, ``round_up``, ``ceil_log2`` and ``select(condition, yes, no)``. C, where
that is printed, needs a function ``ceil_log2``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.core.expressions import SYMBOLS, Grammar, NotInGrammar, read
from gemmgen.core.text import printable


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer that is at least ``numerator / denominator``."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``value``."""
    return ceil_div(value, multiple) * multiple


def ceil_log2(value: int) -> int:
    """The smallest exponent of a power of two that is at least ``value``, which is positive."""
    return (value - 1).bit_length()


_FUNCTIONS: dict[str, tuple[int | None, Callable[..., int]]] = {
    "ceil_div": (2, ceil_div),
    "round_up": (2, round_up),
    "ceil_log2": (1, ceil_log2),
    "min": (2, min),
    "max": (2, max),
    "select": (3, lambda condition, yes, no: yes if condition else no),
}


class FormulaError(GemmgenError):
    """A formula is not in the grammar, names something unknown, or divides by zero."""


_SHOWN = 300
"""Characters of a formula that a message shows."""
GRAMMAR = Grammar(
    binary=frozenset({ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.LShift}),
    compare=frozenset({ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq}),
    functions=_FUNCTIONS,
    constants=(int,),
    general=False,
    parts="integers, names, + - * // %, comparisons, and the functions of formulas",
)


@lru_cache(maxsize=4096)
def _read(text: str) -> ast.expr:
    try:
        return read(text, GRAMMAR)
    except NotInGrammar as error:
        raise FormulaError(f"formula {printable(text, _SHOWN)!r}: {error}") from None


@lru_cache(maxsize=4096)
def _names(text: str) -> frozenset[str]:
    tree = _read(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)


@lru_cache(maxsize=4096)
def _compiled(text: str) -> tuple[CodeType, tuple[str, ...]]:
    """The formula, which was read, as Python code, and the names that it reads."""
    names = sorted(_names(text))
    if functions := _FUNCTIONS.keys() & set(names):
        raise FormulaError(f"formula {printable(text, _SHOWN)!r}: {', '.join(sorted(functions))} is a function, and names no number")
    return compile(text.strip(), "<formula>", "eval"), tuple(names)


_GLOBALS: dict[str, Any] = {"__builtins__": {}, **{name: function for name, (_, function) in _FUNCTIONS.items()}}


class _Folded(ast.NodeTransformer):
    """A formula with integers in the place of names, and its constant parts evaluated."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.values[node.id]) if node.id in self.values else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(argument) for argument in node.args]
        if isinstance(node.func, ast.Name) and node.func.id == "select" and isinstance(node.args[0], ast.Constant):
            return node.args[1] if node.args[0].value else node.args[2]
        return self._evaluated(node, node.args)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        node.left, node.right = self.visit(node.left), self.visit(node.right)
        return self._evaluated(node, [node.left, node.right])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        node.left, node.comparators = self.visit(node.left), [self.visit(other) for other in node.comparators]
        return self._evaluated(node, [node.left, *node.comparators])

    @staticmethod
    def _evaluated(node: ast.expr, parts: list[ast.expr]) -> ast.expr:
        """The node as a number if all its parts are numbers and it is none below 0, which the grammar has no literals for."""
        if not all(isinstance(part, ast.Constant) for part in parts):
            return node
        try:
            value = Formula(ast.unparse(ast.fix_missing_locations(node))).evaluate({})
        except FormulaError:
            return node
        return ast.Constant(value) if value >= 0 else node


def _to_c(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=value):
            return str(value)
        case ast.BinOp(left=left, op=op, right=right):
            return f"({_to_c(left)} {SYMBOLS[type(op)]} {_to_c(right)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return f"({_to_c(left)} {SYMBOLS[type(op)]} {_to_c(right)})"
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
        _read(self.text)

    @property
    def tree(self) -> ast.expr:
        """The formula, read."""
        return _read(self.text)

    @classmethod
    def of(cls, value: Formula | str | int) -> Formula:
        """``value`` as a formula: text is parsed, an integer becomes its literal."""
        return value if isinstance(value, Formula) else cls(str(value))

    @property
    def names(self) -> frozenset[str]:
        """The problem names that the formula reads."""
        return _names(self.text)

    @property
    def is_name(self) -> bool:
        """True if the formula is a single name, so that a measured value can bind it."""
        return isinstance(self.tree, ast.Name)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The formula's value; ``FormulaError`` if a name is missing or a divisor is zero."""
        tree = self.tree
        if isinstance(tree, ast.Name) and tree.id in values:
            return int(values[tree.id])
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return int(tree.value)
        code, names = _compiled(self.text)
        try:
            return int(eval(code, _GLOBALS, {name: int(values[name]) for name in names}))
        except KeyError as missing:
            known = ", ".join(sorted(values))
            raise FormulaError(f"formula {printable(self.text, _SHOWN)!r}: {missing.args[0]!r} has no value; known: {known}") from None
        except ZeroDivisionError:
            raise FormulaError(f"formula {printable(self.text, _SHOWN)!r} divides by zero") from None

    def given(self, values: Mapping[str, int]) -> Formula:
        """The formula with ``values`` in the place of their names, its parts that are then constants evaluated."""
        if not self.names & values.keys():
            return self
        folded = _Folded(values).visit(copy.deepcopy(self.tree))
        return Formula(ast.unparse(ast.fix_missing_locations(folded)))

    def to_c(self) -> str:
        """The formula as a C expression over the same names, right for non-negative values."""
        return _to_c(self.tree)

    def __str__(self) -> str:
        return self.text
