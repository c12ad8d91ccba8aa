"""The language of the templates: Jinja, and two conventions that keep its marks out of the kernels.

A building block is named by its file: ``output.store(plan)`` is the macro ``store`` of ``output.cu.j2``, of the template's own
folder first, else of those that all families share. No template imports such a macro itself.

An expression that stands alone on a line is put in with the indentation of that line, and the line goes with it if it is empty.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension

from gemmgen.codegen.compiled_templates import CompiledTemplates
from gemmgen.codegen.text import FILTERS, constant, constants_of

SHARED = ("common",)
"""Folders whose building blocks all families find."""

_BLANKS: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
"""Treatment of blanks around the marks of Jinja."""

_NOTHING = "\0"
"""Left by an expression alone on its line that has no text."""

_LONE = re.compile(r"^([ \t]*)\{\{(?![-+])((?:(?!\}\}).)*)(?<![-+])\}\}$", re.MULTILINE)
_NAME = re.compile(r"\w+")
_TEXT = re.compile(r'"[^"]*"')
_MARKS = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_USED = re.compile(r"(?<![\w.])\w+(?=[.\[])")
"""Names that may be those of building blocks, between Jinja's marks."""
_BOUND = re.compile(r"\{%-? (?:set ([\w, ]+)|macro \w+\(([^)]*)\)|for ([\w, ]+?) in|import \S+ as (\w+))")
"""Names that a template defines or imports itself."""
_MACRO = re.compile(r"\{%-? *macro (\w+)\(.*?\{%-? *endmacro *-?%\}", re.DOTALL)
_USED_MACROS: ContextVar[set[tuple[str, str]] | None] = ContextVar("_USED_MACROS", default=None)
_EMPTY_LINE = re.compile(rf"^[ \t]*{_NOTHING}\n?", re.MULTILINE)


def environment(root: Path) -> jinja2.Environment:
    """The environment of the templates below ``root``, whose output goes through ``without_empty_lines``."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root),
        bytecode_cache=CompiledTemplates(_BLANKS),
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        cache_size=-1,
        extensions=[Conventions],
        **_BLANKS,
    )
    made.filters.update(FILTERS)
    made.filters["alone"] = _alone
    made.globals["constant"] = constant
    made.globals["constants_of"] = constants_of
    made.globals["block"] = partial(Block, made)
    return made


def referenced(environment: jinja2.Environment, source: str, name: str) -> list[str]:
    """Paths of the templates that the template ``name`` with this source takes in or has as building blocks."""
    tree = environment.parse(source, name)
    calls = [call for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Name) and call.node.name == "block"]
    blocks = [path.value for call in calls for path in call.args if isinstance(path, nodes.Const)]
    return [*blocks, *(path for path in meta.find_referenced_templates(tree) if path is not None)]


def without_empty_lines(text: str) -> str:
    """``text`` without the lines whose only expression was empty, and without the remains of empty expressions within joined lines."""
    return _EMPTY_LINE.sub("", text).replace(_NOTHING, "")


@contextmanager
def recorded_macros() -> Iterator[set[tuple[str, str]]]:
    """Collects the macros of building blocks that are called meanwhile, as path of the template and name."""
    used: set[tuple[str, str]] = set()
    token = _USED_MACROS.set(used)
    try:
        yield used
    finally:
        _USED_MACROS.reset(token)


def used_text(root: Path, template: str, used: Iterable[tuple[str, str]]) -> str:
    """The text of a kernel's template and of the macros that its rendering called, with the macros of the same files that these use.

    A macro that nothing calls is no part of it.
    """
    wanted: dict[str, set[str]] = {template: set()}
    for path, macro in used:
        wanted.setdefault(path, set()).add(macro)
    parts = []
    for path in sorted(wanted):
        text = (root / path).read_text(encoding="utf-8")
        macros = {match[1]: match[0] for match in _MACRO.finditer(text)}
        body = _MACRO.sub("", text)
        pending, taken = {body, *(macros[name] for name in wanted[path] if name in macros)}, set(wanted[path])
        while pending:
            words = {word for piece in pending for marks in _MARKS.findall(piece) for word in _NAME.findall(marks)}
            new = (words & macros.keys()) - taken
            taken |= new
            pending = {macros[name] for name in new}
        parts += [path, body, *(macros[name] for name in sorted(taken) if name in macros)]
    return "\0".join(parts)


class Block:
    """A building block, read when the first of its macros is called: most kernels need few of those that their template names."""

    def __init__(self, environment: jinja2.Environment, path: str) -> None:
        self._environment, self._path = environment, path

    def __getattr__(self, macro: str) -> Any:
        if (used := _USED_MACROS.get()) is not None:
            used.add((self._path, macro))
        return getattr(self._environment.get_template(self._path).module, macro)


class Conventions(Extension):
    """The two conventions, put into the words of Jinja without a change of line numbers."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """The template ``name``, on its first line the building blocks that it names."""
        source = _LONE.sub(lambda match: f'{match[1]}{{{{ ({match[2]}) | alone("{match[1]}") }}}}', source)
        blocks = building_blocks(_listed(self.environment), name) if name else {}
        used = {word for marks in _MARKS.findall(source) for word in _USED.findall(_TEXT.sub("", marks)) if word in blocks}
        used -= {word for names in _BOUND.findall(source) for word in _NAME.findall(" ".join(names))}
        return "".join(f'{{% set {stem} = block("{blocks[stem]}") %}}' for stem in sorted(used)) + source


@lru_cache(maxsize=4)
def _listed(environment: jinja2.Environment) -> list[str]:
    return environment.list_templates()


def building_blocks(templates: list[str], name: str) -> dict[str, str]:
    """The templates that ``name`` finds by the names of their files alone."""
    own = PurePosixPath(name)
    folders = {folder: rank for rank, folder in enumerate((*reversed(SHARED), str(own.parent)))}
    paths = [path for path in map(PurePosixPath, templates) if str(path.parent) in folders and path.suffix == ".j2" and path != own]
    return {path.name.partition(".")[0]: str(path) for path in sorted(paths, key=lambda path: folders[str(path.parent)])}


def _alone(value: object, indentation: str) -> str:
    """The text of an expression alone on its line, all lines but the first indented; at a line's start as it is."""
    text = str(value)
    if not text.strip():
        return _NOTHING
    return textwrap.dedent(text.strip("\n")).rstrip().replace("\n", f"\n{indentation}") if indentation else text
