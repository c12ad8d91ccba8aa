"""Names that kernels give their own variables, which operands of formulas have with an underscore behind them: they become parameters."""

from __future__ import annotations

import re
from functools import cache

from gemmgen.core.resources import resource_directory

LOCAL = frozenset(("second", "at_row", "at_column", "exists", "place", "element", "reduced", "total", "sum", "at", "index"))
"""Parameters of the functions that formulas are written into."""

_ARGUMENTS = re.compile(
    r"ld\w*|stride_\w+|k[A-Z]\w*|[a-zA-Z]|B2|alpha|beta|amax|part\d+|value\d+|\w+_element|\w+_rows|\w+_columns|\w+_loaded|"
    r"sums_at|\w+_terms|[di]\d|outer|inner|divisors|workspace|batch|groups|offsets|counts|gather|scatter|slices|rows_[ac]|map_\w+|"
    r"\w+_stride\d"
)
"""Arguments and constants whose names plans make."""

_TYPE = r"\b(?:int|float|double|unsigned|bool|auto|long|short|char|[A-Z]\w*)"
_DECLARED = re.compile(_TYPE + r"\s*[&*]*\s*(?:const\s+|__restrict__\s+)*\(?&?([a-z]\w*)\s*\)?(?=[=;\[,)\s({])")
_MARKS = re.compile(r"\{#.*?#\}|\{%.*?%\}|//[^\n]*", re.DOTALL)
_VALUES = re.compile(r"\{\{.*?\}\}", re.DOTALL)


@cache
def declared_names() -> frozenset[str]:
    """Variables and functions that the templates of kernels declare."""
    root = resource_directory("templates")
    texts = (path.read_text(encoding="utf-8") for pattern in ("*.j2", "*.cuh") for path in root.rglob(pattern))
    return frozenset(name for text in texts for name in _DECLARED.findall(_VALUES.sub("X", _MARKS.sub("", text))))


def is_reserved(name: str) -> bool:
    """True if an operand of this name could be taken for a variable of a kernel."""
    return name in LOCAL or _ARGUMENTS.fullmatch(name) is not None or name in declared_names()
