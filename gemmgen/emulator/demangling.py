"""Names of functions as people write them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from ctypes.util import find_library
from functools import cache
from typing import Any


def _runtimes() -> Iterator[str | None]:
    """Names of C++ runtimes. The usual one comes first, because find_library starts processes."""
    yield "libstdc++.so.6"
    yield find_library("stdc++")
    yield find_library("c++")


@cache
def _demangler() -> Any:
    """`__cxa_demangle` of the C++ runtime; None without one."""
    for name in _runtimes():
        try:
            function = ctypes.CDLL(name).__cxa_demangle if name else None
        except (OSError, AttributeError):
            continue
        if function is not None:
            function.restype = ctypes.c_void_p
            return function
    return None


@cache
def demangled(symbol: str) -> str:
    """`void k<3>(float*)` of a mangled C++ function; the symbol itself if it is none, or if there is no C++ runtime."""
    function = _demangler() if symbol.startswith("_Z") else None
    if function is None:
        return symbol
    status = ctypes.c_int()
    pointer = function(symbol.encode(), None, None, ctypes.byref(status))
    if status.value or not pointer:
        return symbol
    text = ctypes.cast(pointer, ctypes.c_char_p).value or b""
    ctypes.CDLL(None).free(ctypes.c_void_p(pointer))
    return text.decode(errors="replace")


def qualified_name(symbol: str) -> str:
    """`space::name`, with template arguments, of a mangled C++ function, without its types; else the symbol itself."""
    text = demangled(symbol)
    if text == symbol:
        return _outline(symbol)
    text = re.sub(r"\[abi:\w+\]", "", text.replace("(anonymous namespace)", "(anonymous)"))
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "<") - (character == ">" and text[index - 1] != "-")
        if character == "(" and depth == 0 and not text.startswith("(anonymous)", index):
            text = text[:index]
            break
    # A template's name comes with its result type.
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ">") - (text[index] == "<")
        if text[index] == " " and depth == 0:
            return text[index + 1 :]
    return text


def plain_name(symbol: str) -> str:
    """The last part of a qualified name, without template arguments."""
    return re.sub(r"<.*", "", qualified_name(symbol), flags=re.DOTALL).split("::")[-1]


def _outline(symbol: str) -> str:
    """Demangles without a C++ runtime (Itanium C++ ABI, section 5.1), and without template arguments."""
    if not symbol.startswith("_Z"):
        return symbol
    rest = symbol[2:]
    nested = rest.startswith("N")
    rest = rest[1:] if nested else rest
    parts = []
    while match := re.match(r"L?(\d+)", rest):
        begin = match.end()
        end = begin + int(match[1])
        parts.append("(anonymous)" if rest[begin:end].startswith("_GLOBAL__N_") else rest[begin:end])
        rest = rest[end:]
        if not nested:
            break
    return "::".join(parts) or symbol


_HIDDEN = re.compile(r"\b(?:_INTERNAL_\w+|__v?\d+|_V_[0-9A-Fa-f_]+|CUB_\d+_SM_\w+|CUB_\d+)::")
"""Namespaces that do not appear in sources: versions of libraries, and the compiler's names for the unnamed namespaces of files."""


def plainly(symbol: str) -> str:
    """The demangled name of a symbol without the namespaces that nobody writes."""
    return _HIDDEN.sub("", demangled(symbol))
