"""CUDA text with comments and the contents of literals blanked out."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SKIP_BEGINS = re.compile(r"//|/\*|R\"(?P<tag>[^(\s\"]{0,16})\(|\"|'")
_LITERAL = {quote: re.compile(rf"(?:[^{quote}\\\n]|\\.)*", re.DOTALL) for quote in "\"'"}
_NOT_A_NEWLINE = re.compile(r"[^\n]")


def without_comments(text: str) -> str:
    """Comments and the contents of literals blanked, at the same places. Takes time in proportion to the text, whatever is in it."""
    pieces, done = [], 0
    for start, stop in _skipped(text):
        piece = text[start:stop]
        pieces.append(text[done:start])
        if piece == '"C"':
            pieces.append(piece)
        elif piece[0] in "\"'":
            pieces.append(piece[0] + " " * (len(piece) - 2) + piece[-1])
        else:
            pieces.append(_NOT_A_NEWLINE.sub(" ", piece))
        done = stop
    return "".join([*pieces, text[done:]])


def _skipped(text: str) -> Iterator[tuple[int, int]]:
    """Places of comments and literals. An unclosed one counts as text."""
    position = 0
    # For each quote, the end of the last one that was not closed: those within it are not closed either.
    open_until = {'"': 0, "'": 0}
    never_closed: set[str] = set()
    while match := _SKIP_BEGINS.search(text, position):
        start, opening = match.span()[0], match[0]
        position = match.end()
        stop = -1
        if opening == "//":
            stop = text.find("\n", position)
            stop = len(text) if stop < 0 else stop
        elif opening == "/*":
            stop = -1 if opening in never_closed else text.find("*/", position)
            stop = stop + 2 if stop >= 0 else -1
        elif opening[0] == "R":
            closing = f'){match["tag"]}"'
            stop = -1 if "R" in never_closed else text.find(closing, position)
            stop = stop + len(closing) if stop >= 0 else -1
            position = start + 1
        elif start >= open_until[opening]:
            body = _LITERAL[opening].match(text, position)
            assert body is not None, "it matches nothing too"
            closed = text.startswith(opening, body.end()) and (opening == '"' or body.end() > position)
            stop = body.end() + 1 if closed else -1
            open_until[opening] = body.end()
        if stop >= 0:
            yield start, stop
            position = stop
        elif opening == "/*" or opening[0] == "R":
            never_closed.add(opening[0] if opening[0] == "R" else opening)
