"""PTX text to tokens."""

from __future__ import annotations

import re
from bisect import bisect_right

from gemmgen.emulator.errors import ParseError

_PATTERN = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)
  | (?P<unclosed>/\*)
  | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<word>\.reg(?=\.)|[.%$A-Za-z_][\w$]*(?:(?:\.|::)[\w$]+)*)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<punct>[-+!@|{}()\[\],;:=<>*/&~^?])
    """,
    re.VERBOSE | re.DOTALL,
)


class Tokens:
    """A cursor over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: list[str] = []
        self.words: list[str] = []
        self.positions: list[int] = []
        self.index = 0
        self._line_starts = [0] + [match.end() for match in re.finditer("\n", text)]
        position, end = 0, len(text)
        match_at = _PATTERN.match
        while position < end:
            match = match_at(text, position)
            if match is None:
                raise ParseError(f"unexpected character {text[position]!r}", ptx_line=self.line_at(position))
            kind = match.lastgroup
            if kind == "unclosed":  # looked for once: from every later one it would be looked for again
                raise ParseError("a comment that does not end", ptx_line=self.line_at(position))
            if kind != "skip":
                self.kinds.append(kind or "")
                self.words.append(match.group())
                self.positions.append(position)
            position = match.end()
        self.kinds.append("end")
        self.words.append("")
        self.positions.append(end)

    def line_at(self, position: int) -> int:
        """The 1-based line of a text position."""
        return bisect_right(self._line_starts, position)

    @property
    def line(self) -> int:
        """The line of the current token."""
        return self.line_at(self.positions[self.index])

    @property
    def word(self) -> str:
        """The current token's text; empty at the end."""
        return self.words[self.index]

    @property
    def kind(self) -> str:
        """The current token's kind."""
        return self.kinds[self.index]

    def next(self) -> str:
        """The current token's text; moves on."""
        word = self.words[self.index]
        if self.kinds[self.index] == "end":
            raise self.error("the text ends in the middle of a statement")
        self.index += 1
        return word

    def accept(self, word: str) -> bool:
        """Moves past `word` if it is next."""
        if self.words[self.index] == word and self.kinds[self.index] != "string":
            self.index += 1
            return True
        return False

    def expect(self, word: str) -> None:
        """Moves past `word`, which must be next."""
        if not self.accept(word):
            raise self.error(f"expected {word!r}, got {self.word!r}")

    def integer(self) -> int:
        """An integer literal, perhaps negative."""
        sign = -1 if self.accept("-") else 1
        if self.kind != "int":
            raise self.error(f"expected an integer, got {self.word!r}")
        return sign * parse_integer(self.next())

    def error(self, message: str) -> ParseError:
        """An error at the current token."""
        return ParseError(message, ptx_line=self.line)


def parse_integer(word: str) -> int:
    """The value of an integer literal (decimal, hexadecimal, binary, octal; a trailing U is allowed)."""
    digits = word.rstrip("U")
    lowered = digits.lower()
    if lowered.startswith("0x"):
        return int(digits, 16)
    if lowered.startswith("0b"):
        return int(digits, 2)
    if len(digits) > 1 and digits[0] == "0":
        return int(digits, 8)
    return int(digits)
