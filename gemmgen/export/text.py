"""Style of exported C: identifiers, comments, strings, and lines of a readable width."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import GemmgenError
from gemmgen.core.formulas import Formula
from gemmgen.export.arithmetic import Expression

WIDTH = 110
"""Columns after which lines are folded."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_PREFIX_LENGTH = 200
_KEYWORDS = frozenset(
    {
        *("alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char", "class"),
        *("compl", "const", "constexpr", "const_cast", "continue", "decltype", "default", "delete", "do", "double", "dynamic_cast"),
        *("else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long"),
        *("mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq", "private", "protected"),
        *("public", "register", "reinterpret_cast", "restrict", "return", "short", "signed", "sizeof", "static", "static_assert"),
        *("static_cast", "struct", "switch", "template", "this", "thread_local", "throw", "true", "try", "typedef", "typeid"),
        *("typename", "union", "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq"),
    }
)
_TYPES = re.compile(
    r"u?int(_least|_fast)?(8|16|32|64)|u?int(max|ptr)|s?size|ptrdiff|wchar|char(8|16|32)|max_align|nullptr|"
    r"l{0,2}div|fpos|off|time|clock"
)
"""With ``_t`` behind them, types of the standard headers: the prefix names a type so."""
_LOCALS = frozenset(
    {
        *("given", "bytes", "problem", "plan", "overflow", "blocks_x", "blocks_y", "blocks_z", "i", "value", "count", "extents"),
        *("strides", "arguments", "config", "attributes", "result", "kernel", "stream", "images", "reason", "workspace", "NULL"),
    }
)
"""Local names in the functions of a header."""


def c_type(kind: str) -> str:
    """The C type of elements of ``kind``; floats without one are their bits."""
    return ELEMENTS[kind].stdint


def type_name(kind: str) -> str:
    """Elements of ``kind`` in words."""
    element = ELEMENTS[kind]
    if not element.is_float:
        return element.word
    return element.c_type if element.computed_in == kind else f"{element.word} (its bits)"


def check_prefix(prefix: str) -> None:
    """Raises ``GemmgenError`` if ``prefix`` cannot begin the names of C functions."""
    if _TYPES.fullmatch(prefix) is not None:
        raise GemmgenError(f"--prefix {prefix!r}: {prefix}_t is a type of C already; take another, such as my_{prefix}")
    if _IDENTIFIER.fullmatch(prefix) is None or len(prefix) > MAX_PREFIX_LENGTH or prefix in _KEYWORDS:
        raise GemmgenError(
            f"--prefix {prefix[:60]!r}: need a C identifier of at most {MAX_PREFIX_LENGTH} letters, digits and underscores, such as my_gemm"
        )


def c_name(name: str) -> str:
    """``name`` as a C identifier that nothing else in the header has."""
    identifier = re.sub(r"\W", "_", name)
    return f"{identifier}_" if identifier in _KEYWORDS or identifier in _LOCALS else identifier


def comment(text: str) -> str:
    """``text`` as lines of a comment that is already open, each behind `` * ``."""
    lines = textwrap.wrap(_harmless(text), WIDTH, initial_indent=" * ", subsequent_indent=" *   ", break_long_words=False)
    return "\n".join(lines or [" *"])


def field_comment(text: str) -> str:
    """``text`` as a comment above a field of a struct."""
    lines = textwrap.wrap(_harmless(text) + " */", WIDTH, initial_indent="    /* ", subsequent_indent="     * ", break_long_words=False)
    return "\n".join(lines)


def _harmless(text: str) -> str:
    return text.replace("*/", "* /").replace("/*", "/ *")


def readable(formula: Formula) -> str:
    """A formula in C notation, without needless parentheses."""
    return ast.unparse(ast.parse(str(formula).strip(), mode="eval")).replace("//", "/")


def c_string(text: str, indent: int = 0) -> str:
    """A string literal, in several pieces where it is long."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("??", "?\\?")
    pieces = textwrap.wrap(escaped, WIDTH - indent - 2, break_long_words=False, break_on_hyphens=False, drop_whitespace=False)
    return ("\n" + " " * indent).join(f'"{piece}"' for piece in pieces or [""])


_LOOSENESS = {"?": 0, ":": 0, "|": 1, "&": 2, "=": 3, "!": 3, "<": 3, ">": 3, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5}
"""Operators by their first character: the smaller, the looser they bind."""


def fold(text: str, indent: int) -> str:
    """Code in lines of a readable width, all after the first indented: broken before operators, first where fewest parentheses
    are open. It must hold no string."""
    lines = []
    while len(text) > WIDTH - indent:
        depth, places = 0, []
        for at, character in enumerate(text[: WIDTH - indent]):
            depth += (character == "(") - (character == ")")
            if character == " " and at > 20 and (text[at - 1] == "," or text[at + 1] in _LOOSENESS):
                places.append((depth, _LOOSENESS.get(text[at + 1], 0), -at))
        if not places:
            break
        at = -min(places)[2]
        lines.append(text[:at])
        text = text[at + 1 :]
    return ("\n" + " " * indent).join([*lines, text])


def size(value: Expression) -> str:
    """A number of bytes as ``size_t``."""
    return value.text if value.constant is not None else f"(size_t)({value.text})"


def parameter_list(parameters: Iterable[str], indent: int) -> str:
    """Parameters, separated by commas, in lines of a readable width that begin at the same column."""
    lines = [""]
    for parameter in parameters:
        if lines[-1] and indent + len(lines[-1]) + len(parameter) > WIDTH:
            lines.append("")
        lines[-1] += f"{parameter}, "
    return ("\n" + " " * indent).join(line.rstrip() for line in lines).rstrip(", ")


def words(data: bytes) -> str:
    """Bytes as 64-bit words of a little-endian machine, filled up with zeros, at least one of which is there behind PTX."""
    padded = data + bytes(8 - len(data) % 8)
    numbers = [f"0x{int.from_bytes(padded[at : at + 8], 'little'):016x}," for at in range(0, len(padded), 8)]
    return "\n".join("    " + " ".join(numbers[at : at + 5]) for at in range(0, len(numbers), 5))


FILTERS: dict[str, Callable[..., Any]] = {
    "comment": comment,
    "field_comment": field_comment,
    "readable": readable,
    "c_string": c_string,
    "fold": fold,
    "size": size,
    "parameter_list": parameter_list,
    "words": words,
    "c_name": c_name,
    "c_type": c_type,
    "type_name": type_name,
}
"""Filters of templates of C."""


def template(name: str, filters: Mapping[str, Callable[..., object]]) -> Any:
    """One of the templates of this package."""
    import jinja2

    folder = resources.files("gemmgen.export") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda file: (folder / file).read_text(encoding="utf-8")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters.update(filters)
    return environment.get_template(name)
