"""Colours of code, by Pygments: lines of HTML, and the style that they need in light and dark."""

from __future__ import annotations

from typing import Any

from pygments import lex
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer, RegexLexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, Punctuation, Text


class SassLexer(RegexLexer):  # type: ignore[misc]  # Pygments has no types
    """Machine code as nvdisasm prints it."""

    name = "SASS"
    tokens: Any = {  # noqa: RUF012  # the form that Pygments asks for
        "root": [
            (r"\s+", Text),
            (r"@!?U?P[T\d]+", Keyword.Pseudo),
            (r"\b(?:U?R\d+|U?RZ|SRZ|SR_[\w.]+|U?P\d|U?PT)\b", Name.Variable),
            (r"\.reuse\b", Generic.Strong),
            (r"`\([^)]*\)", Name.Label),
            (r"-?\b0x[0-9a-f]+\b|-?\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b", Number),
            (r"[A-Z][\w.]*", Keyword),
            (r"/\*.*?\*/", Comment),
            (r"[\[\](),;.|~!+*:{}-]", Punctuation),
            (r".", Text),
        ]
    }


def lexer(language: str) -> Lexer:
    """The lexer of ``cuda``, ``ptx``, ``sass``, ``diff`` or ``c``."""
    return SassLexer() if language == "sass" else get_lexer_by_name(language, stripnl=False, ensurenl=False)


def coloured_lines(text: str, language: str) -> list[str]:
    """The lines of a text as HTML, each with its own tags closed."""
    formatter = HtmlFormatter(nowrap=True)
    from io import StringIO

    out = StringIO()
    formatter.format(lex(text, lexer(language)), out)
    lines = out.getvalue().split("\n")
    return lines[: text.count("\n") + (0 if text.endswith("\n") else 1)]


def code_style() -> str:
    """Style sheet of the colours."""
    light = HtmlFormatter(style="default").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    # Tokens that a lexer does not know are not framed, because they are not the reader's mistake.
    plain, darker = (
        [line for line in text.splitlines() if line.startswith(".code .") and not line.startswith(".code .err ")] for text in (light, dark)
    )
    return "\n".join([*plain, "@media (prefers-color-scheme: dark) {", *darker, "}"])
