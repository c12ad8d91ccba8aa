"""Expressions over the fields of a spec and the numbers of its plan, as constraints of a sweep: text that is never run as code.

Names are field paths (``mainloop.tile.threadblock.k``, ``epilogue[0].op``) and plan values (``plan.shared_bytes``). The grammar:
literals, lists of them, ``+ - * / // % **``, comparisons (chains and ``in`` too), ``and or not``, ``yes if c else no``, and the
functions ``min max abs len``.
"""

from __future__ import annotations

import ast
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel

from gemmgen.core.expressions import BINARY, COMPARE, Grammar, NotInGrammar, Walker, read, text_of
from gemmgen.sweep.records import SweepError

MAX_CHARACTERS = 2000
MAX_NODES = 400
MAX_NUMBER = 1 << 128
"""Numbers beyond this are refused, so that no expression takes long or much memory."""

PLAN = "plan"
"""The name under which expressions see the plan."""

GRAMMAR = Grammar(
    binary=frozenset({ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow}),
    compare=frozenset(COMPARE),
    functions={"min": (None, min), "max": (None, max), "abs": (None, abs), "len": (None, len)},
    constants=(bool, int, float, str, type(None)),
    general=True,
    parts="field paths, plan values, numbers, text, lists, + - * / // % **, comparisons, in, and, or, not, if else, min, max, abs, len",
)


class ExpressionError(SweepError):
    """An expression is outside the grammar, or cannot be worked out for these values."""


class UnknownName(ExpressionError):
    """An expression names a field or a plan value that there is not."""


@dataclass(frozen=True)
class Expression:
    """A checked expression. ``name`` is its name in messages. Raises ``ExpressionError`` if the text is outside the grammar."""

    name: str
    text: str

    def __post_init__(self) -> None:
        _ = self._tree

    @cached_property
    def _tree(self) -> ast.expr:
        if len(self.text) > MAX_CHARACTERS:
            raise self.error(f"{len(self.text)} characters, need at most {MAX_CHARACTERS}")
        try:
            tree = read(self.text, GRAMMAR, MAX_NODES)
        except NotInGrammar as error:
            raise self.error(str(error)) from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                self.bounded(node.value)
        return tree

    @cached_property
    def reads_plan(self) -> bool:
        """True if it needs the plan."""
        return any(isinstance(node, ast.Name) and node.id == PLAN for node in ast.walk(self._tree))

    def holds(self, spec: Mapping[str, object], plan: object = None) -> bool:
        """True if the expression is true for a spec (plain data) and its plan.

        Raises ``UnknownName`` for a name that there is not, ``ExpressionError`` for values that do not go together.
        """
        try:
            return bool(_Values(self, spec, plan).value(self._tree))
        except ZeroDivisionError:
            raise self.error("divides by zero") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise self.error(str(error)) from None

    def error(self, text: str) -> ExpressionError:
        """An error in the expression, under its name."""
        return ExpressionError(f"{self.name}: {reprlib.repr(self.text)}: {text}")

    def bounded(self, number: object) -> Any:
        """A number, unless it is too large or not real."""
        infinite = isinstance(number, float) and not math.isfinite(number)
        if infinite or isinstance(number, complex) or (isinstance(number, int) and abs(number) > MAX_NUMBER):
            raise self.error("a number is too large, or not real")
        return number


@dataclass
class _Values(Walker):
    """The value of an expression for a spec and its plan."""

    expression: Expression
    spec: Mapping[str, Any]
    plan: Any
    grammar: ClassVar[Grammar] = GRAMMAR

    def arithmetic(self, op: ast.operator, left: Any, right: Any) -> Any:
        for operand in (left, right):
            if not isinstance(operand, bool | int | float):
                raise self.expression.error(f"{reprlib.repr(operand)} is not a number")
        if isinstance(op, ast.Pow) and (abs(right) > 128 or abs(left) > 1 << 64):
            raise self.expression.error(f"{left} ** {right} is too large")
        return self.expression.bounded(BINARY[type(op)](left, right))

    def name(self, name: str) -> Any:
        if name == PLAN:
            if self.plan is None:
                raise self.expression.error("there is no plan of this spec")
            return self.plan
        if name not in self.spec:
            text = reprlib.repr(self.expression.text)
            raise UnknownName(f"{self.expression.name}: {text}: no field {name!r}; there are {', '.join(self.spec)}, and plan")
        return self.spec[name]

    def member(self, parent: object, key: str | int, node: ast.expr) -> Any:
        if isinstance(parent, Mapping) and isinstance(key, str) and key in parent:
            return parent[key]
        if isinstance(parent, list | tuple) and isinstance(key, int) and -len(parent) <= key < len(parent):
            return parent[key]
        known = _members(parent)
        if isinstance(key, str) and key in known:
            try:
                value = getattr(parent, key)
            except (AttributeError, LookupError, AssertionError):  # a property that means nothing for this instance
                value = callable
            if not callable(value):
                return value
        shown = reprlib.repr(text_of(node, self.expression.text)).strip("'\"")
        there_are = f"; there are {', '.join(known)}" if known else ""
        raise UnknownName(f"{self.expression.name}: {reprlib.repr(self.expression.text)}: there is no {shown}{there_are}")


def _members(value: object) -> list[str]:
    """Members that an expression may read of a value: data, never methods."""
    if isinstance(value, Mapping):
        return [str(key) for key in value]
    if isinstance(value, BaseModel):
        return list(type(value).model_fields)
    if not is_dataclass(value) or isinstance(value, type):
        return []
    classes: tuple[type, ...] = type(value).__mro__
    properties = [name for kind in classes for name, held in vars(kind).items() if isinstance(held, property | cached_property)]
    return [name for name in dict.fromkeys([*(field.name for field in fields(value)), *properties]) if not name.startswith("_")]
