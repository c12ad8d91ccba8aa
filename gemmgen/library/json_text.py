"""Readable JSON: values that fit on a line stay on one line. The same data always gives the same text."""

from __future__ import annotations

import json
import math

WIDTH = 140


def to_text(data: object) -> str:
    """``data`` as JSON in the order of its keys, with a line break at the end."""
    return _text(data, 0, 0) + "\n"


def rounded(value: float, digits: int = 4) -> float:
    """``value`` rounded to a number of significant digits: lower ones differ from machine to machine."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def _text(value: object, indent: int, before: int) -> str:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict | list | tuple) or not value or indent + before + len(line) <= WIDTH:
        return line
    inner = indent + 1
    if isinstance(value, dict):
        keys = [json.dumps(key, ensure_ascii=False) + ": " for key in value]
        items = [key + _text(item, inner, len(key) + 1) for key, item in zip(keys, value.values(), strict=True)]
    else:
        items = [_text(item, inner, 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    separator = ",\n" + " " * inner
    return f"{opening}\n{' ' * inner}{separator.join(items)}\n{' ' * indent}{closing}"
