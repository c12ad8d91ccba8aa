"""Host code in a CUDA file: NVRTC compiles device code only, so what runs on the host is taken out, line by line in place.

Nothing is understood beyond the outline: at namespace scope, a function that is neither for the device nor `constexpr` belongs to the
host. Types, templates of types, constants and everything for the device stay as they are, unless the compiler refuses them and nothing
for the device needs them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

_SKIP = re.compile(r"//[^\n]*|/\*.*?\*/|R\"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'", re.DOTALL)
_HOST_SIGN = re.compile(
    r"<<<|\bint\s+main\s*\(|\bstd::(?:cout|vector|string|printf)\b|\bcuda(?:Malloc|Memcpy|DeviceSynchronize)\b"
    r"|\bPYBIND11_MODULE\b|\bTORCH_LIBRARY|\b(?:torch|at)::Tensor\b"
)
_TYPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:struct|class|union|enum)\b", re.DOTALL)
_ATTRIBUTE = re.compile(r"\b(?:alignas|__align__|__attribute__|__builtin_align__|__declspec)\s*\(|\[\[")
_KEPT_OR_BLANK = re.compile(r"((?<=\n)[ \t]*#[ \t]*(?:if|el|endif|define|undef)(?:\\\n|[^\n])*|\n)|.")
_ACCESS = re.compile(r"(?:public|private|protected)\s*:")
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
    device = _device_words(plain)
    items = ((start, stop, plain[start:entered] if entered is not None else None) for start, stop, entered in _items(plain))
    return _blanked(text, [(start, stop) for start, stop, head in items if _is_host(plain[start:stop], head, device)])


def without_refused_items(text: str, lines: Collection[int]) -> str | None:
    """The text without the items of namespace scope that the compiler refused in these lines: types with members of the host's, variables
    that the host's functions initialise. None if one of the lines is in something else, such as code for the device."""
    plain = _without_comments(text)
    device = _device_words(plain)
    refused, left = [], set(lines)
    for start, stop, entered in _items(plain):
        inside = left & _lines_of(plain, start, stop)
        # A specialisation stays: without it, another template would be taken in its place.
        if not inside or re.match(r"template\s*<\s*>", plain[start:stop]):
            continue
        # Of a class, functions of the host alone go, if they are all that is refused: others may derive from it.
        parts = _refused_functions(plain, entered + 1, stop - 1, inside, device) if entered and _is_type(plain[start:entered]) else []
        covered = inside & {line for part in parts for line in _lines_of(plain, *part)}
        if parts and (covered == inside or device.search(plain, start, stop)):
            left -= covered
            refused += parts
        elif not device.search(plain, start, stop):
            left -= inside
            refused.append((start, stop))
    return None if left or not refused else _blanked(text, refused)


def _refused_functions(plain: str, start: int, stop: int, lines: set[int], device: re.Pattern[str]) -> list[tuple[int, int]]:
    """The member functions of the host in these lines; variables stay, since they are the layout of the class."""
    return [
        (first, last)
        for first, last, body in _items(plain, start, stop)
        if lines & _lines_of(plain, first, last)
        and "(" in _plain_head(plain[first : body or last])
        and not device.search(plain, first, last)
    ]


def _lines_of(plain: str, start: int, stop: int) -> set[int]:
    first = plain.count("\n", 0, start) + 1
    return set(range(first, first + plain.count("\n", start, stop) + 1))


def _blanked(text: str, parts: Iterable[tuple[int, int]]) -> str:
    """The text without these parts; conditions and macros in them stay, since what is behind may belong to them."""
    pieces, position = [], 0
    for start, stop in parts:
        pieces += [text[position:start], _KEPT_OR_BLANK.sub(lambda match: match[1] or " ", text[start:stop])]
        position = stop
    return "".join([*pieces, text[position:]])


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


def _device_words(plain: str) -> re.Pattern[str]:
    """The words that mark device code: the language's, and the macros of the file that stand for them."""
    marks = list(_DEVICE_WORDS)
    for match in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\\\n]|\\\n|\\.)*)", plain, re.MULTILINE):
        if any(re.search(rf"\b{word}\b", match[2]) for word in marks):
            marks.append(match[1])
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, marks))})\b")


def _items(plain: str, position: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int | None]]:
    """Declarations and definitions at namespace scope, or between two places in a class: start, end, and position of the first brace."""
    end = len(plain) if end is None else end
    while position < end:
        character = plain[position]
        if character.isspace() or character in "};":
            position += 1
        elif character == "#":
            position = _end_of_directive(plain, position)
        elif label := _ACCESS.match(plain, position):
            position = label.end()
        else:
            stop, entered = _item(plain, position)
            stop = min(stop, end)
            if entered is not None and _NAMESPACE.match(plain[position:entered].strip()):
                position = entered + 1
                continue
            yield position, stop, entered
            position = stop


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
    alternatives: list[int] = []
    while position < len(plain):
        character = plain[position]
        if character == "#" and plain[:position].rpartition("\n")[2].strip() == "":
            # Each branch of a condition begins as deep as the first one did: two heads of one function may open two braces.
            if directive := re.match(r"#\s*(if|el|endif)", plain[position : position + 20]):
                if directive[1] == "if":
                    alternatives.append(depth)
                elif directive[1] == "el":
                    depth = alternatives[-1] if alternatives else 0
                else:
                    del alternatives[-1:]
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
                if not initialiser and not _is_type(head):
                    return position + 1, entered
        elif character == ";" and depth == 0:
            return position + 1, entered
        position += 1
    return len(plain), entered


def _is_host(item: str, head: str | None, device: re.Pattern[str]) -> bool:
    outline = item if head is None else head
    if device.search(outline) or re.match(r"(using|typedef|extern\s+\"C\"\s*$|static_assert|asm)\b", item):
        return False
    if _is_type(outline) if head is not None else _TYPE.match(outline):
        return False
    if head is None or "=" in _plain_head(outline).split("(")[0]:
        # A declaration: of the host if its type or its initial value is.
        return _HOST_TYPES.search(item) is not None or re.search(r"\bstd::\w+\s*\(|\bcuda\w+\(|<<<", item) is not None
    return "(" in _plain_head(outline)


def _is_type(head: str) -> bool:
    """True for what stands in front of the brace of a class, not of a function that returns one."""
    plain = _plain_head(head)
    return _TYPE.match(plain) is not None and "(" not in re.split(r"(?<!:):(?!:)", plain)[0]


def _plain_head(head: str) -> str:
    """A head without the parameters of its template, and without attributes."""
    plain = head.strip()
    while match := re.match(r"template\s*<", plain):
        plain = plain[_closing(plain, match.end(), "<", ">") :].lstrip()
    while match := _ATTRIBUTE.search(plain):
        brackets = "()" if match[0].endswith("(") else "[]"
        plain = plain[: match.start()] + " " + plain[_closing(plain, match.end(), *brackets) :].removeprefix("]")
    return plain


def _closing(text: str, position: int, opening: str, closing: str) -> int:
    """The place behind the bracket that closes the one in front of a position; other brackets between the two are whole."""
    depth, inner = 1, 0
    while position < len(text) and depth:
        character = text[position]
        if opening == "<" and character in "()":
            inner += 1 if character == "(" else -1
        elif inner == 0:
            depth += (character == opening) - (character == closing)
        position += 1
    return position
