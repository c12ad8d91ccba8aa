"""Expressions in Python's syntax that are read as data and never run as code: one reader and one walker for all grammars.

A ``Grammar`` says which parts of the syntax there are; ``read`` gives the tree of a text in it, and a ``Walker`` works a tree out
with names of its caller's. Formulas over a problem's dimensions and constraints of sweeps are two grammars; the printer of C in
exports walks the trees of the first.
"""

from __future__ import annotations

import ast
import operator
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

MAX_DEPTH = 200
"""Maximum depth of a tree. Recursive walks need a stack for as many levels."""

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda member, container: member in container,
    ast.NotIn: lambda member, container: member not in container,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}

SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "/",
    ast.Mod: "%",
    ast.LShift: "<<",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
"""Operators of integers in C."""


class NotInGrammar(Exception):
    """A text cannot be parsed, or contains a part that the grammar lacks; the message names it."""


@dataclass(frozen=True)
class Grammar:
    """The parts of Python's syntax that expressions of one kind may have."""

    binary: frozenset[type[ast.operator]]
    compare: frozenset[type[ast.cmpop]]
    functions: Mapping[str, tuple[int | None, Callable[..., Any]]]
    """By name: how many arguments (None: one or more), and the function."""
    constants: tuple[type, ...]
    general: bool
    """True if there are members, lists, chains of comparisons, signs, ``and or not`` and ``yes if condition else no``."""
    parts: str
    """The contents, in words."""

    def children(self, node: ast.expr) -> list[ast.expr]:
        """The parts of a node. Raises ``NotInGrammar`` for a wrong number of arguments, ``_Foreign`` if the grammar has no such node."""
        match node:
            case ast.Constant(value=value) if type(value) in self.constants:
                return []
            case ast.Name():
                return []
            case ast.BinOp(left=left, op=op, right=right) if type(op) in self.binary:
                return [left, right]
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in self.compare for op in ops):
                if self.general or len(ops) == 1:
                    return [left, *others]
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in self.functions:
                wanted = self.functions[name][0]
                if wanted is not None and len(arguments) != wanted:
                    raise NotInGrammar(f"{name} takes {wanted} arguments, got {len(arguments)}")
                return arguments
        general = _general_children(node) if self.general else None
        if general is None:
            raise _Foreign(node)
        return general


def _general_children(node: ast.expr) -> list[ast.expr] | None:
    match node:
        case ast.Attribute(value=parent, attr=attribute) if not attribute.startswith("_"):
            return [parent]
        case ast.Subscript(value=parent, slice=ast.Constant(value=int() | str())):
            return [parent]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return elements
        case ast.BoolOp(values=values):
            return values
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return [operand]
        case ast.IfExp(test=test, body=body, orelse=other):
            return [test, body, other]
    return None


class _Foreign(Exception):
    """A node that a grammar does not have."""

    def __init__(self, node: ast.expr) -> None:
        super().__init__(node)
        self.node = node


def text_of(node: ast.expr, text: str) -> str:
    """The part of ``text`` that a node of its tree was read from. Unlike ``ast.unparse`` it needs no stack, however deep the node is."""
    return ast.get_source_segment(text.strip(), node) or ""


def read(text: str, grammar: Grammar, most_nodes: int | None = None) -> ast.expr:
    """The tree of ``text``, at most ``MAX_DEPTH`` levels deep. Raises ``NotInGrammar``."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotInGrammar(f"cannot be read: {getattr(error, 'msg', None) or error}") from None
    if most_nodes is not None and sum(1 for _ in ast.walk(tree)) > most_nodes:
        raise NotInGrammar(f"more than {most_nodes} parts; split it into several")
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise NotInGrammar(f"nested more than {MAX_DEPTH} levels deep")
        try:
            level = [child for node in level for child in grammar.children(node)]
        except _Foreign as error:
            raise NotInGrammar(f"{reprlib.repr(text_of(error.node, text))} is not supported; allowed are {grammar.parts}") from None
    return tree


class Walker:
    """Works out a tree that was read with ``grammar``. Subclasses define names and members."""

    grammar: ClassVar[Grammar]

    def name(self, name: str) -> Any:
        """The value of a name."""
        raise NotImplementedError

    def member(self, parent: object, key: str | int, node: ast.expr) -> Any:
        """A member of a value."""
        raise NotImplementedError

    def constant(self, value: object) -> Any:
        """A literal."""
        return value

    def arithmetic(self, op: ast.operator, left: Any, right: Any) -> Any:
        """The result of an operator."""
        return BINARY[type(op)](left, right)

    def value(self, node: ast.expr) -> Any:
        """The value of a node; ``and``, ``or`` and conditionals evaluate only the operands that they need."""
        match node:
            case ast.Name(id=name):
                return self.name(name)
            case ast.Constant(value=constant):
                return self.constant(constant)
            case ast.BinOp(left=left, op=op, right=right):
                return self.arithmetic(op, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                one = self.value(left)
                for comparison, other in zip(ops, map(self.value, others), strict=True):
                    if not COMPARE[type(comparison)](one, other):
                        return False
                    one = other
                return True
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self.grammar.functions[name][1](*map(self.value, arguments))
            case ast.Attribute(value=parent, attr=attribute):
                return self.member(self.value(parent), attribute, node)
            case ast.Subscript(value=parent, slice=ast.Constant(value=int() | str() as key)):
                return self.member(self.value(parent), key, node)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self.value(element) for element in elements]
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self.value(part) for part in values)
            case ast.BoolOp(values=values):
                return any(self.value(part) for part in values)
            case ast.UnaryOp(op=op, operand=operand):
                return UNARY[type(op)](self.value(operand))
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.value(body) if self.value(test) else self.value(other)
        raise AssertionError(f"a tree has a part that was not read: {ast.dump(node)}")
