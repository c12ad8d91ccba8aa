"""Problems as text, ``gemm:4096,11008,4096,nt,bf16,silu``: one grammar for all families, and the kernel that a problem gets."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.core.errors import SpecError
from gemmgen.core.text import did_you_mean, printable
from gemmgen.dispatch.matcher import matcher_of
from gemmgen.kernels import GROUPED, PROBLEM_KINDS, PROCESSOR, family
from gemmgen.kernels.problem_words import plain_word, unserved
from gemmgen.kernels.requests import Request

MAX__LENGTH = 4096
"""Characters of a problem."""
_LARGEST = 2**31 - 1
_KINDS_BY_OTHER_NAMES = {
    "matmul": "gemm",
    "mm": "gemm",
    "linear": "gemm",
    "bmm": "gemm",
    "moe": "grouped",
    "conv": "conv2d",
    "conv1d": "conv2d",
    "conv3d": "conv2d",
    "convolution": "conv2d",
    "reduce": "reduction",
    "sum": "reduction",
    "pointwise": "elementwise",
    "map": "elementwise",
    "quantize": "quantise",
}
"""Names of operations that people use, and the kind of problem that comes nearest."""
_SIZE = re.compile(r"(?P<name>[a-z_]+)=(?P<value>[0-9]+)")
_NUMBER = re.compile(r"(?![0-9]+$)[-+]?[0-9.][0-9._]*(e[-+]?[0-9]+|[kmg]i?)?", re.IGNORECASE)
"""Texts that are meant as numbers and are no sizes: -1, 1e6, 2.5, 4k."""


@dataclass(frozen=True)
class Problem:
    """A problem as a user names it."""

    text: str
    """Without spaces, its words as they were given."""
    request: Request
    for_processor: bool = False


def read_problem(text: str) -> Problem:
    """The problem that ``gemm:512,512,512,nt`` names; sizes may be named, as in ``gemm:m=512,n=512,k=512``. Raises ``SpecError``."""
    given = "".join(text[: MAX__LENGTH + 1].split())
    kind, _, rest = given.partition(":")
    shown = reprlib.repr(given)
    if len(given) > MAX__LENGTH:
        raise SpecError(f"{shown} is not a valid problem: it has more than {MAX__LENGTH} characters")
    if kind not in PROBLEM_KINDS:
        kinds = ", ".join(f"{name}:" for name in PROBLEM_KINDS)
        other = _KINDS_BY_OTHER_NAMES.get(kind.lower())
        near = did_you_mean(kind, PROBLEM_KINDS) if other is None else f" (did you mean {other}?)"
        if (reason := unserved(kind)) is not None:
            near = f"; {reason}"
        raise SpecError(f"{shown} is not a valid problem: it starts with {kind!r}, need one of {kinds}{near}")
    of_kind = family(PROBLEM_KINDS[kind])
    sizes, words = _sizes_and_words(shown, kind, rest, of_kind.size_names, of_kind.typical_sizes)
    if kind == GROUPED and not any(word.startswith("groups=") for word in words):
        raise SpecError(f"{shown} is not a valid problem: the number of groups is missing, as in grouped:4096,11008,4096,bf16,groups=8")
    request = matcher_of(of_kind.kind).parse_request(sizes, words)
    return Problem(given, request, kind == PROCESSOR)


def parse_problem(text: str) -> Request:
    """The request that a problem on a GPU makes. Raises ``SpecError``."""
    problem = read_problem(text)
    if problem.for_processor:
        raise SpecError(f"{reprlib.repr(text)}: this is a problem for a processor; this needs one of a GPU, gemm: say")
    return problem.request


def _sizes_and_words(shown: str, kind: str, rest: str, names: Sequence[str], typical: Sequence[int]) -> tuple[tuple[int, ...], list[str]]:
    """The sizes of a problem in the family's order, and its other words, in theirs."""
    parts = rest.split(",")
    named: dict[str, str] = {}
    for match in map(_SIZE.fullmatch, parts):
        if match is not None and match["name"] in names:
            if match["name"] in named:
                raise SpecError(f"{shown} is not a valid problem: {match['name']} is given twice")
            named[match["name"]] = match["value"]
    numbers = [named.get(name, "") for name in names] if named else parts[: len(names)]
    words = [part for part in parts if not _is_size(part, names)] if named else parts[len(names) :]
    if len(numbers) < len(names) or not all(part.isascii() and part.isdecimal() for part in numbers):
        example = f"{kind}:{','.join(map(str, typical))}"
        missing = f"; {', '.join(name for name in names if name not in named)} missing" if named else ""
        number = next((part for part in parts[: len(names)] if _NUMBER.fullmatch(part.rpartition("=")[2])), None) if not missing else None
        wrong = f": {printable(number, 40)} is not a whole number" if number is not None else ""
        needs = f"{kind} needs {len(names)} numbers ({', '.join(names)}){wrong}{missing}"
        raise SpecError(f"{shown} is not a valid problem: {needs}, for example {example}")
    if words and not named and words[0].isdecimal():
        given = len(names) + sum(word.isdecimal() for word in words)
        raise SpecError(f"{shown} is not a valid problem: {kind} needs {len(names)} numbers ({', '.join(names)}), got {given}")
    # Ten digits are enough for the largest; thousands are more than Python turns into a number.
    sizes = tuple(int(part) if len(part.lstrip("0")) <= 10 else 10**10 for part in numbers)
    if max(sizes) > _LARGEST or math.prod(max(size, 1) for size in sizes) > 2**62:
        raise SpecError(f"{shown} is not a valid problem: no device has memory for it")
    return sizes, [plain_word(word) for word in words if word]


def _is_size(part: str, names: Sequence[str]) -> bool:
    match = _SIZE.fullmatch(part)
    return match is not None and match["name"] in names
