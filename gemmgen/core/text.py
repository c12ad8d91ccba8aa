"""Text of others made fit to be shown: no character in it moves the cursor or recolours the terminal, and it has an end."""

from __future__ import annotations

import re

MAXIMUM_CHARACTERS = 20_000
"""Of one message."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""All but tab and line feed: controls of C0 and C1, and what turns the direction of writing around (unicode.org, UAX #9)."""


def printable(text: str, limit: int = MAXIMUM_CHARACTERS) -> str:
    """``text`` with control characters written as escapes, and its middle left out where it is longer than ``limit``."""
    if len(text) > limit:
        left_out = len(text) - limit
        text = f"{text[: limit - limit // 4]} ... ({left_out} characters left out) ... {text[len(text) - limit // 4 :]}"
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
