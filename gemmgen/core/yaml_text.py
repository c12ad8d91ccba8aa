"""YAML as plain data, by the core schema of YAML 1.2 and no other: mappings, lists, text, numbers, true, false and null.

PyYAML's parser finds the structure; the type of a scalar is decided here, by section 10.3 of the specification
(yaml.org/spec/1.2.2), because PyYAML's own rules are those of YAML 1.1, for which 020 is sixteen and 1:00 is sixty. The data is
made event by event, without recursion, so that no depth of nesting can exhaust the stack.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from typing import Any

import yaml

from gemmgen.core.text import printable

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
"""Levels of mappings and lists in one another. Ours have fewer than ten."""
MAX_VALUES = 20_000
"""Values of one text, keys not counted. A sweep may list thousands; every message about a text takes less than two seconds."""
MAX_DIGITS = 64
_SHOWN_LINE = 160
"""Columns of a line that is quoted."""
TAB = "\t"

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"

_NULL = re.compile(r"null|Null|NULL|~|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGERS = {10: re.compile(r"[-+]?[0-9]+"), 8: re.compile(r"0o[0-7]+"), 16: re.compile(r"0x[0-9a-fA-F]+")}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NOT_A_NUMBER = re.compile(r"\.(nan|NaN|NAN)")
_WORD = re.compile(r"(?!(null|true|false)$)[a-z_]\w*", re.IGNORECASE)
"""Scalars that are certainly text: most are, and this pattern recognises them quickly."""
_OCTAL_BEFORE = re.compile(r"[-+]?0[0-9]+")
_TEXT_SINCE = re.compile(
    r"(?P<truth>y|yes|on|n|no|off)|[-+]?(?P<sixty>[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|0b[01_]+|[0-9][0-9_]*_[0-9_]*)", re.IGNORECASE
)

_TOO_DEEP_FOR_LIBYAML = "exceeded maximum nesting depth"
"""The problem that libyaml reports since PyYAML 6.0.4, of a text whose values it has not given yet."""


class YamlTextError(ValueError):
    """A text that is not valid YAML, or contains values that specs must not; the message gives the position."""


class _Misplaced(Exception):
    """A part of a text that is valid YAML otherwise: where it stands, and a message."""

    def __init__(self, mark: object, told: str) -> None:
        super().__init__(told)
        self.mark = mark


def parse(text: bytes | str) -> Any:
    """Contents of a text with one document; None if there is nothing in it. Raises ``YamlTextError``.

    A key given twice and aliases are errors: the first is always a mistake, and the second can be made to explode.
    """
    if len(text) > MAX_BYTES:
        raise YamlTextError(f"larger than {MAX_BYTES} bytes")
    try:
        return _parse(text)
    except yaml.MarkedYAMLError as error:
        if error.problem == _TOO_DEEP_FOR_LIBYAML:
            raise _with_its_line(text, error.problem_mark, f"nested more than {MAX_DEPTH} levels deep") from None
        problem, line, column = error.problem, *_line_at(text, error.problem_mark)
        if line[column : column + 1] == TAB:
            problem = "a tab (→), where YAML wants spaces"
        raise _with_its_line(text, error.problem_mark, f"not valid YAML: {problem}") from None
    except _Misplaced as error:
        raise _with_its_line(text, error.mark, str(error)) from None
    except yaml.reader.ReaderError as error:
        raise YamlTextError(f"not valid YAML: not text in UTF-8, or a control character at position {error.position}") from None
    except yaml.YAMLError as error:
        raise YamlTextError(f"not valid YAML: {error}") from None
    except UnicodeError as error:
        raise YamlTextError(f"not valid YAML: not Unicode: {error}") from None


def _line_at(text: bytes | str, mark: Any) -> tuple[str, int]:
    """The line of a text at which a mark points, empty behind the end, and the column in it."""
    lines = (text.decode("utf-8", "replace") if isinstance(text, bytes) else text).splitlines()
    return (lines[mark.line], mark.column) if mark is not None and mark.line < len(lines) else ("", 0)


def _with_its_line(text: bytes | str, mark: Any, told: str) -> YamlTextError:
    line, column = _line_at(text, mark)
    shown = [_place(mark) + told, *(excerpt(line, mark.line + 1, column + 1) if line else [])]
    return YamlTextError("\n".join(shown))


def excerpt(shown: str, line: int, column: int) -> list[str]:
    """A line of a text with its number, and a caret below one of its columns, both counted from one."""
    number = f"{line:>7} | "
    return [
        f"{number}{printable(shown[:_SHOWN_LINE].replace(TAB, '→'))}",
        f"{' ' * (len(number) - 2)}| {' ' * (min(column, _SHOWN_LINE) - 1)}^",
    ]


def positions(text: bytes | str) -> dict[tuple[str | int, ...], tuple[int, int]]:
    """Line and column, both from one, of every value of a text that ``parse`` accepts: of its key in a mapping, of itself in a list."""
    places: dict[tuple[str | int, ...], tuple[int, int]] = {}
    stack: list[_Place] = []
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            stack.pop()
        elif isinstance(event, yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent):
            parent = stack[-1] if stack else None
            start: Any = event.start_mark
            mark = (start.line + 1, start.column + 1)
            if parent is not None and parent.is_mapping and parent.key is None:
                parent.key = str(_scalar(event)) if isinstance(event, yaml.ScalarEvent) else ""
                places[(*parent.path, parent.key)] = mark
                continue
            path = () if parent is None else parent.next_path()
            places.setdefault(path, mark)
            if not isinstance(event, yaml.ScalarEvent):
                stack.append(_Place(path, isinstance(event, yaml.MappingStartEvent)))
    return places


class _Place:
    """A mapping or a list whose values are being located."""

    def __init__(self, path: tuple[str | int, ...], is_mapping: bool) -> None:
        self.path = path
        self.is_mapping = is_mapping
        self.key: str | None = None
        self.length = 0

    def next_path(self) -> tuple[str | int, ...]:
        """Path of the value that comes next."""
        if self.is_mapping:
            path, self.key = (*self.path, self.key or ""), None
            return path
        self.length += 1
        return (*self.path, self.length - 1)


def hint(value: object) -> str:
    """Text to write instead of one that YAML 1.1 took for something else; "" for any other value."""
    match = _TEXT_SINCE.fullmatch(value) if isinstance(value, str) and len(value) <= MAX_DIGITS else None
    if match is None:
        return ""
    return "YAML 1.2 takes this for text: write true or false" if match["truth"] else "YAML 1.2 takes this for text: write a decimal number"


class _Open:
    """A mapping or a list that is being filled."""

    def __init__(self, data: dict[Any, Any] | list[Any]) -> None:
        self.data = data
        self.key: Any = None
        self.has_key = False

    @property
    def expects_key(self) -> bool:
        """True in a mapping before each key."""
        return isinstance(self.data, dict) and not self.has_key

    def add(self, value: object, mark: object) -> None:
        """An item of a list; of a mapping a key, then its value."""
        if isinstance(self.data, list):
            self.data.append(value)
        elif self.has_key:
            self.data[self.key], self.has_key = value, False
        elif isinstance(value, dict | list):
            raise _Misplaced(mark, "not valid YAML: a key is a mapping or a list, need text")
        elif value in self.data:
            raise _Misplaced(mark, f"not valid YAML: {reprlib.repr(value)} is given twice")
        else:
            self.key, self.has_key = value, True


def _parse(text: bytes | str) -> Any:
    root: list[Any] = []
    stack = [_Open(root)]
    values = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and not stack[-1].expects_key:
            values += 1
            if values > MAX_VALUES:
                raise _Misplaced(event.start_mark, f"more than {MAX_VALUES:,} values")
        match event:
            case yaml.ScalarEvent():
                stack[-1].add(_scalar(event), event.start_mark)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                if event.tag not in (None, "!", f"{_TAG}{'map' if is_mapping else 'seq'}"):
                    raise _Misplaced(event.start_mark, f"not valid YAML: the tag {event.tag!r} means nothing here")
                if len(stack) > MAX_DEPTH:
                    raise _Misplaced(event.start_mark, f"nested more than {MAX_DEPTH} levels deep")
                inner: dict[Any, Any] | list[Any] = {} if is_mapping else []
                stack[-1].add(inner, event.start_mark)
                stack.append(_Open(inner))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                stack.pop()
            case yaml.AliasEvent():
                raise _Misplaced(event.start_mark, "not valid YAML: aliases (*name) are not supported in specs")
            case yaml.DocumentStartEvent() if root:
                raise _Misplaced(event.start_mark, "not valid YAML: expected a single document, here begins another")
    return root[0] if root else None


def _scalar(event: yaml.ScalarEvent) -> Any:
    plain, quoted = event.implicit
    text = event.value
    if quoted or event.tag == "!" or (plain and _WORD.fullmatch(text)):
        return text
    where = _place(event.start_mark)
    if plain:
        return _plain(text, where)
    read = _TAGGED.get(str(event.tag).removeprefix(_TAG))
    if read is None:
        raise YamlTextError(f"{where}not valid YAML: the tag {event.tag!r} means nothing here")
    return read(text, where)


def _plain(text: str, where: str) -> Any:
    """A word without quotes and without a tag."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return text.lower() == "true"
    if any(form.fullmatch(text) for form in _INTEGERS.values()):
        return _integer(text, where)
    if _FLOAT.fullmatch(text) or _INFINITE.fullmatch(text) or _NOT_A_NUMBER.fullmatch(text):
        return _float(text, where)
    return text


def _integer(text: str, where: str) -> int:
    base = next((base for base, form in _INTEGERS.items() if form.fullmatch(text)), None)
    if base is None:
        raise _not(text, "a whole number", where)
    if len(text) > MAX_DIGITS:
        raise YamlTextError(f"{where}not valid YAML: a number of {len(text)} digits, need at most {MAX_DIGITS}")
    if _OCTAL_BEFORE.fullmatch(text):
        decimal = int(text)
        raise YamlTextError(
            f"{where}not valid YAML: {text} is {decimal} in YAML 1.2 and octal in YAML 1.1; write {decimal}, or 0o and octal digits"
        )
    return int(text, base)


def _float(text: str, where: str) -> float:
    if _INFINITE.fullmatch(text) or _NOT_A_NUMBER.fullmatch(text):
        return float(text.replace(".", "", 1))
    if not _FLOAT.fullmatch(text):
        raise _not(text, "a number", where)
    return float(text)


def _truth(text: str, where: str) -> bool:
    if not (_TRUE.fullmatch(text) or _FALSE.fullmatch(text)):
        raise _not(text, "true or false", where)
    return text.lower() == "true"


def _null(text: str, where: str) -> None:
    if not _NULL.fullmatch(text):
        raise _not(text, "null", where)


_TAGGED: dict[str, Callable[[str, str], Any]] = {
    "str": lambda text, where: text,
    "int": _integer,
    "float": _float,
    "bool": _truth,
    "null": _null,
}


def _not(text: str, need: str, where: str) -> YamlTextError:
    return YamlTextError(f"{where}not valid YAML: got {text[:40]!r}, need {need}")


def _place(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
