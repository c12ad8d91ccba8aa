"""Expressions of epilogues: text is parsed into trees and never evaluated as code.

The grammar is that of Python's expressions with numbers, names, ``+ - * / // %``, comparisons, ``and or not``, ``a if c else b`` and calls
of the functions in ``gemmgen.kernels.epilogue.functions``. Operators are calls too: ``a + b`` is ``add(a, b)``.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gemmgen.core.errors import Mismatch

MAX_CHARACTERS = 1000
MAX_DEPTH = 40
"""Limit of nested operators and calls."""

_PARTS = "need numbers, names, + - * / // %, comparisons, and, or, not, a if c else b, calls of functions"

_BINARY: dict[type[ast.AST], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
                                     ast.Mod: "mod"}  # fmt: skip
_COMPARE: dict[type[ast.AST], str] = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
_LOGIC: dict[type[ast.AST], str] = {ast.And: "and", ast.Or: "or"}
_UNARY: dict[type[ast.AST], str] = {ast.USub: "neg", ast.Not: "not"}

OPERATORS = {*_BINARY.values(), *_COMPARE.values(), *_LOGIC.values(), *_UNARY.values()}
"""Functions that are written as operators alone."""


class FormulaError(Mismatch):
    """An expression that cannot be read, or whose parts do not go together."""


@dataclass(frozen=True)
class Node:
    """A number, a name, or a call of a function with arguments."""

    at: int
    """Position of its first character in the text, from 0; -1 for a node that no text has."""
    function: str = ""
    arguments: tuple[Node, ...] = ()
    name: str = ""
    number: float | None = None

    def walk(self) -> Iterator[Node]:
        """The node and all nodes below it."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += reversed(node.arguments)

    @property
    def names(self) -> dict[str, int]:
        """Names in the order of their first appearance, with their positions."""
        counts: dict[str, int] = {}
        for node in self.walk():
            if node.name:
                counts.setdefault(node.name, node.at)
        return counts


def number(value: float) -> Node:
    """A literal."""
    return Node(-1, number=value)


def name(text: str) -> Node:
    """A name."""
    return Node(-1, name=text)


def call(function: str, *arguments: Node, at: int = -1) -> Node:
    """A call of a function, or an operator."""
    return Node(at, function, arguments)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that is nearest to ``word``; empty if none is near."""
    matches = difflib.get_close_matches(word, sorted(known), 1, 0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def place(text: str, at: int) -> str:
    """A position in an expression, in words."""
    return f"character {at + 1} of {text!r}" if at >= 0 else repr(text)


@lru_cache(maxsize=1024)
def parse(text: str) -> Node:
    """The tree of an expression. Raises ``FormulaError``; takes time linear in the length of the text."""
    if len(text) > MAX_CHARACTERS:
        raise FormulaError(f"an expression of {len(text)} characters", f"need at most {MAX_CHARACTERS}; name parts of it under let")
    if not text.isascii() or not text.isprintable():
        at = next(index for index, character in enumerate(text) if not (character.isascii() and character.isprintable()))
        raise FormulaError(repr(text[at]), "need letters, digits and operators of ASCII", place(text, at))
    if _bracket_depth(text) > MAX_DEPTH:
        raise FormulaError("brackets inside each other", f"need at most {MAX_DEPTH}; name parts of it under let", repr(text[:40]))
    stripped = text.lstrip()
    try:
        tree = ast.parse(stripped, mode="eval").body
    except SyntaxError as error:
        at = min(max((error.offset or 1) - 1, 0), max(len(stripped) - 1, 0)) + len(text) - len(stripped)
        raise FormulaError("no expression", f"{_PARTS} ({error.msg})", place(text, at)) from None
    except (ValueError, RecursionError, MemoryError):
        raise FormulaError("no expression", "too many operators inside each other", repr(text[:40])) from None
    return _Reader(text, len(text) - len(stripped)).node(tree, 0)


def _bracket_depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


@dataclass(frozen=True)
class _Reader:
    text: str
    indented: int

    def node(self, tree: ast.expr, depth: int) -> Node:
        at = tree.col_offset + self.indented
        if depth > MAX_DEPTH:
            need = f"need at most {MAX_DEPTH}; name parts of it under let"
            raise FormulaError("operators inside each other", need, place(self.text, at))

        def made(function: str, *arguments: ast.expr) -> Node:
            return Node(at, function, tuple(self.node(argument, depth + 1) for argument in arguments))

        match tree:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | float() as value):
                return Node(at, number=self.finite(value, at))
            case ast.Name(id=word) if word in SPECIAL:
                return Node(at, number=SPECIAL[word])
            case ast.Name(id=word):
                return Node(at, name=word)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
                return Node(at, number=-math.inf)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.node(operand, depth + 1)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(value, bool):
                return Node(at, number=-self.finite(value, at))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return made(_UNARY[type(op)], operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return made(_BINARY[type(op)], left, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return made(_COMPARE[type(op)], left, right)
            case ast.BoolOp(op=op, values=[first, *others]) if type(op) in _LOGIC:
                result = self.node(first, depth + 1)
                for other in others:
                    result = Node(at, _LOGIC[type(op)], (result, self.node(other, depth + 1)))
                return result
            case ast.IfExp(test=test, body=body, orelse=other):
                return made("select", test, body, other)
            case ast.Call(func=ast.Name(id=word), args=arguments, keywords=[]):
                return made(word, *arguments)
        shown = (ast.get_source_segment(self.text.lstrip(), tree) or "")[:40]
        raise FormulaError(f"{shown!r}, which no expression has,", _PARTS, place(self.text, at))

    def finite(self, value: float, at: int) -> float:
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result):
            raise FormulaError("a number that is too large", "need one that float64 holds", place(self.text, at))
        return result


SPECIAL = {"inf": math.inf, "nan": math.nan}
"""Constants of floating-point types by name."""

_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
_LEVELS = {"or": 1, "and": 2, "not": 3, "add": 5, "sub": 5, "neg": 7} | dict.fromkeys(_COMPARE.values(), 4)
_LEVELS |= dict.fromkeys(("mul", "div", "floordiv", "mod"), 6)


def written(node: Node, level: int = 0) -> str:
    """The text of a tree, which ``parse`` reads as the same tree. ``level``: of the operator around it."""
    if node.number is not None:
        whole = float(node.number).is_integer() and abs(node.number) < 2**53
        sign = "-" if math.copysign(1, node.number) < 0 and not math.isnan(node.number) else ""
        text = sign + (repr(int(abs(node.number))) if whole else repr(abs(node.number)))
        return f"({text})" if sign and level > 5 else text
    if node.name:
        return node.name
    if node.function not in _LEVELS:
        return f"{node.function}({', '.join(written(argument) for argument in node.arguments)})"
    own = _LEVELS[node.function]
    if node.function in ("neg", "not"):
        text = f"{'-' if node.function == 'neg' else 'not '}{written(node.arguments[0], own + 1)}"
    else:
        left, right = node.arguments
        sign = _SIGNS.get(node.function, node.function)
        text = f"{written(left, own + (node.function in _COMPARE.values()))} {sign} {written(right, own + 1)}"
    return f"({text})" if own < level else text
