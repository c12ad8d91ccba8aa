"""Docstrings of the fields of classes, read from the source on demand, because reading those of all models would slow down every start."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache


def field_docstrings(model: type) -> dict[str, str]:
    """The text below each annotated field, by field, with those of base classes; a field that is defined anew has its new text only."""
    docstrings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.partition(".")[0] == "gemmgen":
            docstrings |= _classes(base.__module__).get(base.__qualname__, {})
    return {field: words for field, words in docstrings.items() if words}


@cache
def _classes(module: str) -> dict[str, dict[str, str]]:
    """Docstrings of fields of all classes at the top of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _fields(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> dict[str, str]:
    """The text of each annotated field of a class, empty for those without."""
    fields = {}
    for field, below in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                fields[name] = inspect.cleandoc(words)
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                fields[name] = ""
    return fields
