"""Host code in a CUDA file: NVRTC compiles device code only, so what runs on the host is taken out, line by line in place.

Nothing is understood beyond the outline: at namespace scope, a function that is neither for the device nor `constexpr` belongs to the
host. Types, templates of types, constants and everything for the device stay as they are.
"""

from __future__ import annotations

import re

_SKIP = re.compile(r"//[^\n]*|/\*.*?\*/|R\"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'", re.DOTALL)
_HOST_SIGN = re.compile(
    r"<<<|\bint\s+main\s*\(|\bstd::(?:cout|vector|string|printf)\b|\bcuda(?:Malloc|Memcpy|DeviceSynchronize)\b"
    r"|\bPYBIND11_MODULE\b|\bTORCH_LIBRARY|\b(?:torch|at)::Tensor\b"
)
_TYPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:struct|class|union|enum)\b", re.DOTALL)
_NAMESPACE = re.compile(r"^(?:inline\s+)?namespace\b[^({;=]*$|^extern\s*\"C(?:\+\+)?\"$")
_DEVICE_WORDS = ("__global__", "__device__", "__constant__", "constexpr", "consteval", "__managed__", "__shared__")
_HOST_TYPES = re.compile(
    r"\bstd::(?:vector|string|map|unordered_map|mt19937|ofstream|ifstream|mutex|unique_ptr|shared_ptr|optional)\b"
    r"|\b(?:torch|at|c10|py|pybind11|cv|boost)::(?!BFloat16\b|Half\b)\w"
)


def has_host_code(text: str) -> bool:
    """True if a file holds code for the host."""
    return _HOST_SIGN.search(_without_comments(text)) is not None


def device_part(text: str) -> str:
    """The text with the host's functions and variables blanked; lines and columns of the rest stay."""
    plain = _without_comments(text)
    marks = _device_macros(plain)
    result = list(text)
    for start, stop in _host_items(plain, marks):
        for index in range(start, stop):
            if result[index] != "\n":
                result[index] = " "
    return "".join(result)


def _without_comments(text: str) -> str:
    """Comments and the contents of literals blanked, at the same places."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if found[0] in "\"'" and found != '"C"':
            return found[0] + " " * (len(found) - 2) + found[-1]
        if found == '"C"':
            return found
        return "".join(character if character == "\n" else " " for character in found)

    return _SKIP.sub(blank, text)


def _device_macros(plain: str) -> tuple[str, ...]:
    """The words that mark device code: the language's, and the macros of the file that stand for them."""
    marks = list(_DEVICE_WORDS)
    for match in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\\\n]|\\\n|\\.)*)", plain, re.MULTILINE):
        if any(re.search(rf"\b{word}\b", match[2]) for word in marks):
            marks.append(match[1])
    return tuple(marks)


def _host_items(plain: str, marks: tuple[str, ...]) -> list[tuple[int, int]]:
    found = []
    position, end = 0, len(plain)
    device = re.compile(rf"\b(?:{'|'.join(map(re.escape, marks))})\b")
    while position < end:
        character = plain[position]
        if character.isspace() or character in "};":
            position += 1
        elif character == "#":
            position = _end_of_directive(plain, position)
        else:
            stop, entered = _item(plain, position)
            if entered is not None and _NAMESPACE.match(plain[position:entered].strip()):
                position = entered + 1
                continue
            if _is_host(plain[position:stop], plain[position:entered] if entered is not None else None, device):
                found.append((position, stop))
            position = stop
    return found


def _end_of_directive(plain: str, position: int) -> int:
    while True:
        newline = plain.find("\n", position)
        if newline < 0:
            return len(plain)
        if plain[newline - 1] != "\\":
            return newline + 1
        position = newline + 1


def _item(plain: str, start: int) -> tuple[int, int | None]:
    """End of a declaration, and position of its first brace."""
    depth, entered, position, initialiser = 0, None, start, False
    while position < len(plain):
        character = plain[position]
        if character == "#" and plain[:position].rpartition("\n")[2].strip() == "":
            position = _end_of_directive(plain, position)
            continue
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "=" and depth == 0 and entered is None:
            initialiser = True
        elif character == "{":
            if depth == 0 and entered is None:
                entered = position
                head = plain[start:position].strip()
                if _NAMESPACE.match(head):
                    return position, entered
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                head = plain[start:entered].strip()
                if not initialiser and not _TYPE.match(head):
                    return position + 1, entered
        elif character == ";" and depth == 0:
            return position + 1, entered
        position += 1
    return len(plain), entered


def _is_host(item: str, head: str | None, device: re.Pattern[str]) -> bool:
    outline = item if head is None else head
    if device.search(outline) or re.match(r"(using|typedef|extern\s+\"C\"\s*$|static_assert|asm)\b", item):
        return False
    if _TYPE.match(outline.strip()) and ("(" not in outline or head is None):
        return False
    if head is None or "=" in outline.split("(")[0]:
        # A declaration: of the host if its type or its initial value is.
        return _HOST_TYPES.search(item) is not None or re.search(r"\bstd::\w+\s*\(|\bcuda\w+\(|<<<", item) is not None
    return "(" in outline
