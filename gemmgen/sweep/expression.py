"""Expressions over the fields of a spec and the numbers of its plan, as constraints of a sweep: text that is never run as code.

Names are field paths (``mainloop.tile.threadblock.k``, ``epilogue[0].op``) and plan values (``plan.shared_bytes``). The grammar:
literals, lists of them, ``+ - * / // % **``, comparisons (chains and ``in`` too), ``and or not``, ``yes if c else no``, and the
functions ``min max abs len``.
"""

from __future__ import annotations

import ast
import math
import operator
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from gemmgen.sweep.records import SweepError

MAXIMUM_CHARACTERS = 2000
MAXIMUM_NODES = 400
LARGEST_NUMBER = 1 << 128
"""Numbers beyond this are refused, so that no expression takes long or much memory."""

PLAN = "plan"
"""The name under which expressions see the plan."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda member, container: member in container,
    ast.NotIn: lambda member, container: member not in container,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "len": len}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}


class ExpressionError(SweepError):
    """An expression is outside the grammar, or cannot be worked out for these values."""


class UnknownName(ExpressionError):
    """An expression names a field or a plan value that there is not."""


@dataclass(frozen=True)
class Expression:
    """A checked expression. ``name`` is what messages call it. Raises ``ExpressionError`` if the text is outside the grammar."""

    name: str
    text: str

    def __post_init__(self) -> None:
        _ = self._tree

    @cached_property
    def _tree(self) -> ast.expr:
        if len(self.text) > MAXIMUM_CHARACTERS:
            raise self._error(f"{len(self.text)} characters, need at most {MAXIMUM_CHARACTERS}")
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._error(f"cannot be read: {getattr(error, 'msg', None) or error}") from None
        if sum(1 for _ in ast.walk(tree)) > MAXIMUM_NODES:
            raise self._error(f"more than {MAXIMUM_NODES} parts; split it into several constraints")
        self._check(tree)
        return tree

    @cached_property
    def reads_plan(self) -> bool:
        """Whether it needs the plan."""
        return any(isinstance(node, ast.Name) and node.id == PLAN for node in ast.walk(self._tree))

    def holds(self, spec: Mapping[str, Any], plan: Any = None) -> bool:
        """Whether the expression is true for a spec (plain data) and its plan.

        Raises ``UnknownName`` for a name that there is not, ``ExpressionError`` for values that do not go together.
        """
        try:
            return bool(self._value(self._tree, spec, plan))
        except ZeroDivisionError:
            raise self._error("divides by zero") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise self._error(str(error)) from None

    def _error(self, text: str) -> ExpressionError:
        return ExpressionError(f"{self.name}: {reprlib.repr(self.text)}: {text}")

    def _check(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
                self._bounded(value)
                children: list[ast.expr] = []
            case ast.Name():
                children = []
            case ast.Attribute(value=value, attr=attribute) if not attribute.startswith("_"):
                children = [value]
            case ast.Subscript(value=value, slice=ast.Constant(value=int() | str())):
                children = [value]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                children = elements
            case ast.BoolOp(values=values):
                children = values
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                children = [operand]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                children = [left, right]
            case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(op) in _COMPARE for op in ops):
                children = [left, *comparators]
            case ast.IfExp(test=test, body=body, orelse=other):
                children = [test, body, other]
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in _FUNCTIONS:
                children = arguments
            case _:
                raise self._error(
                    f"{reprlib.repr(ast.unparse(node))} is not part of the grammar: field paths, plan values, numbers, text, lists, "
                    f"+ - * / // % **, comparisons, in, and, or, not, if else, {', '.join(_FUNCTIONS)}"
                )
        for child in children:
            self._check(child)

    def _value(self, node: ast.expr, spec: Mapping[str, Any], plan: Any) -> Any:
        def value(child: ast.expr) -> Any:
            return self._value(child, spec, plan)

        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name):
                return self._named(name, spec, plan)
            case ast.Attribute(value=parent, attr=attribute):
                return self._member(value(parent), attribute, node)
            case ast.Subscript(value=parent, slice=ast.Constant(value=int() | str() as key)):
                return self._member(value(parent), key, node)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [value(element) for element in elements]
            case ast.BoolOp(op=ast.And(), values=values):
                return all(value(part) for part in values)
            case ast.BoolOp(values=values):
                return any(value(part) for part in values)
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._arithmetic(op, value(left), value(right))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                one = value(left)
                for comparison, other in zip(ops, map(value, comparators), strict=True):
                    if not _COMPARE[type(comparison)](one, other):
                        return False
                    one = other
                return True
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return value(body) if value(test) else value(otherwise)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _FUNCTIONS[name](*map(value, arguments))
        raise AssertionError(f"unchecked node in expression {self.text!r}")

    def _arithmetic(self, op: ast.operator, left: Any, right: Any) -> Any:
        for operand in (left, right):
            if not isinstance(operand, bool | int | float):
                raise self._error(f"{reprlib.repr(operand)} is not a number")
        if isinstance(op, ast.Pow) and (abs(right) > 128 or abs(left) > 1 << 64):
            raise self._error(f"{left} ** {right} is too large")
        return self._bounded(_BINARY[type(op)](left, right))

    def _bounded(self, number: Any) -> Any:
        infinite = isinstance(number, float) and not math.isfinite(number)
        if infinite or isinstance(number, complex) or (isinstance(number, int) and abs(number) > LARGEST_NUMBER):
            raise self._error("a number is too large, or not real")
        return number

    def _named(self, name: str, spec: Mapping[str, Any], plan: Any) -> Any:
        if name == PLAN:
            if plan is None:
                raise self._error("there is no plan of this spec")
            return plan
        if name not in spec:
            raise UnknownName(f"{self.name}: {reprlib.repr(self.text)}: no field {name!r}; there are {', '.join(spec)}, and plan")
        return spec[name]

    def _member(self, parent: Any, key: str | int, node: ast.expr) -> Any:
        if isinstance(parent, Mapping) and isinstance(key, str) and key in parent:
            return parent[key]
        if isinstance(parent, list | tuple) and isinstance(key, int) and -len(parent) <= key < len(parent):
            return parent[key]
        known = _members(parent)
        if isinstance(key, str) and key in known:
            try:
                found = getattr(parent, key)
            except (AttributeError, LookupError, AssertionError):  # a property that means nothing for this instance
                found = callable
            if not callable(found):
                return found
        there_are = f"; there are {', '.join(known)}" if known else ""
        raise UnknownName(f"{self.name}: {reprlib.repr(self.text)}: there is no {ast.unparse(node)}{there_are}")


def _members(value: Any) -> list[str]:
    """What an expression may read of a value: data, never methods."""
    if isinstance(value, Mapping):
        return [str(key) for key in value]
    if isinstance(value, BaseModel):
        return list(type(value).model_fields)
    if not is_dataclass(value) or isinstance(value, type):
        return []
    classes: tuple[type, ...] = type(value).__mro__
    properties = [name for kind in classes for name, held in vars(kind).items() if isinstance(held, property | cached_property)]
    return [name for name in dict.fromkeys([*(field.name for field in fields(value)), *properties]) if not name.startswith("_")]
