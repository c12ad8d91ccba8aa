"""Names that kernels give their own variables, which operands of formulas have with an underscore behind them: they become parameters."""

from __future__ import annotations

import re
from functools import cache

from gemmgen.core.resources import resource_directory
from gemmgen.kernels.epilogue.functions import FUNCTIONS

LOCAL = frozenset(
    ("second", "at_row", "at_column", "exists", "place", "element", "reduced", "total", "sum", "at", "index", "shared_memory")
)
"""Parameters of the functions that formulas are written into, and dynamic shared memory."""

EXPORTED = frozenset(
    (
        *("stream", "arrays", "views", "given", "scalars", "launches", "handle", "driver", "device", "context", "kernel", "grid"),
        *("producer", "cupy", "numpy", "ceil_div", "round_up"),
    )
)
"""Parameters and variables of exported modules' launch functions."""

MEMBERS = frozenset(("bias",))
"""Names that templates give members of structures alone, which hide no parameter."""

_ARGUMENTS = re.compile(
    r"ld\w*|stride_\w+|k[A-Z]\w*|[a-zA-Z]|B2|alpha|beta|amax|part\d+|value\d+|\w+_element|\w+_rows|\w+_columns|\w+_loaded|"
    r"sums_at|\w+_terms|[di]\d|outer|inner|divisors|workspace|batch|groups|offsets|counts|gather|scatter|slices|rows_[ac]|map_\w+|"
    r"\w+_stride\d"
)
"""Arguments and constants whose names plans make."""

_TYPE = r"\b(?:int|float|double|unsigned|bool|auto|long|short|char|[A-Z]\w*)"
_DECLARED = re.compile(_TYPE + r"\s*[&*]*\s*(?:const\s+|__restrict__\s+)*\(?&?((?:[a-z]|Made0)\w*)\s*\)?(?=[=;\[,)\s({])")
_CALLED = re.compile(r"\b([A-Za-z]\w*)\s*(?:<[^<>;{}()]*>)?\s*\(")
_STRUCTURE = re.compile(r"\b(?:struct|class|enum|typename|using)\s+(?:__\w+\(\w+\)\s*)?([A-Za-z]\w*)")
_SHARED = re.compile(r"__shared__[^;(]*?\b([A-Za-z]\w*)\s*\[")
_OF_CUDA = re.compile(
    r"(?:thread|block)Idx|(?:block|grid)Dim|warpSize|NULL|nullptr|dim3|"
    r"(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]|u?int(?:8|16|32|64)_t|(?:size|ptrdiff|wchar)_t|"
    r"alignas|alignof|asm|catch|\w+_cast|consteval|constinit|decltype|explicit|export|friend|mutable|noexcept|protected|requires|"
    r"CU[a-z]\w*|cu[A-Z]\w*|static_assert|thread_local|throw|try|typeid|typename|virtual"
)
"""Names of CUDA's, and words of C++ that are no types and no statements."""
_MACROS = re.compile(r"[A-Z][A-Z0-9_]+|[LMP]_\w+|errno|stdin|stdout|stderr|linux|unix|sched_priority|math_errhandling")
"""Macros of the C library's headers and of compilers: names in capitals, and some others."""

_MARKS = re.compile(r"\{#.*?#\}|\{%.*?%\}|//[^\n]*", re.DOTALL)
_VALUES = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_MADE = "Made0"
"""Stands for a value that a template inserts: a type, a name or a part of one."""
_FEWEST = 4
"""Letters of a name beside its computed part from which on all such names are reserved."""


@cache
def _taken() -> re.Pattern[str]:
    """Variables, functions, structures and shared arrays of templates and of formulas, which a parameter would hide or be hidden by."""
    texts = [*_templates(_MADE), *(function.code.replace("{s}", suffix) for function in FUNCTIONS.values() for suffix in ("", "f"))]
    names = {name for text in _templates("X") for name in _DECLARED.findall(text)}
    names |= {name for text in texts for pattern in (_DECLARED, _CALLED, _STRUCTURE, _SHARED) for name in pattern.findall(text)}
    known = sorted(name for name in names if _MADE not in name or len(name.replace(_MADE, "").replace("_", "")) >= _FEWEST)
    return re.compile("|".join(name.replace(_MADE, r"\w+") for name in known))


def _templates(value: str) -> list[str]:
    """Texts of the templates without comments and statements, with ``value`` in place of the values that they insert."""
    root = resource_directory("templates")
    texts = (path.read_text(encoding="utf-8") for pattern in ("*.j2", "*.cuh") for path in root.rglob(pattern))
    return [_VALUES.sub(value, _MARKS.sub("", text)) for text in texts]


def is_reserved(name: str) -> bool:
    """True if an operand of this name could be taken for a variable, function or type of a kernel."""
    return name in LOCAL | EXPORTED or (
        name not in MEMBERS and any(pattern.fullmatch(name) for pattern in (_ARGUMENTS, _OF_CUDA, _MACROS, _taken()))
    )
