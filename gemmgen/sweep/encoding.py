"""Values as exports can hold them."""

from __future__ import annotations

import math
from typing import Any


def plain(value: object) -> Any:
    """``value`` as JSON has it: numbers that JSON lacks become null, and characters that UTF-8 cannot encode are replaced."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str():
            return encodable(value)
        case dict():
            return {encodable(str(key)): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bool() | int() | None:
            return value
    return encodable(str(value))


def encodable(text: str) -> str:
    """``text`` with a replacement character for each half of a surrogate pair, which UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
