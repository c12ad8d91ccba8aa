"""Problems of a model from its recordings: traces of torch's profiler, NVTX ranges in exports of Nsight Systems, or lists.

These files come from other tools: their size, the number of events and of distinct problems are bounded, and entries of unexpected form are
skipped."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gemmgen.core.errors import SpecError
from gemmgen.core.files import MAX_BYTES, read_plain
from gemmgen.core.text import printable
from gemmgen.dispatch.problems import read_problem

MAX_EVENTS = 5_000_000
MAX_PROBLEMS = 4096
MAX_TEXT_LENGTH = 10_000
"""Characters of the text of an event."""
SQLITE_STEPS = 200_000_000
"""Instructions of SQLite's machine after which a query is given up."""
_SQLITE_MAGIC = b"SQLite format 3\0"
_RANGE = re.compile(r"(?P<name>aten::\w+)\b.*?sizes = (?P<sizes>\[.*\])")
_TYPES = {
    "float": "f32",
    "c10::Half": "f16",
    "c10::BFloat16": "bf16",
    "double": "f64",
    "signed char": "s8",
    "unsigned char": "u8",
    "c10::Float8_e4m3fn": "e4m3",
    "c10::Float8_e5m2": "e5m2",
}
"""Types as torch's profiler names them."""
_PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}
"""Places of both factors among the inputs of a product."""
_MAPS = {"aten::relu": "relu", "aten::silu": "silu", "aten::gelu": "gelu", "aten::sigmoid": "sigmoid", "aten::tanh": "tanh"}
_REDUCTIONS = {"aten::sum": "sum", "aten::mean": "mean", "aten::amax": "max", "aten::argmax": "argmax", "aten::logsumexp": "logsumexp"}
_LINE = re.compile(r"\b(?P<name>count|us)=(?P<value>[0-9]{1,12}(\.[0-9]{1,12})?)(?![0-9.])")


@dataclass(frozen=True)
class Counted:
    """One problem of a model."""

    problem: str
    count: int = 1
    microseconds: float | None = None
    """Time of all its calls together, where it was recorded."""


@dataclass(frozen=True)
class Call:
    """One call of an operation of torch, as a profile has it."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...] = ()
    """Empty where the profile has none: packed arrays."""
    types: tuple[str, ...] = ()
    """Types from ``_TYPES``; if empty, the caller names them."""
    arguments: tuple[Any, ...] = ()
    """Other inputs by their place, as text."""
    microseconds: float | None = None


def problem_of(call: Call, type: str = "f32") -> str | None:
    """The problem that a call computes; None if no kind of problem does. ``type``: of elements, where the call does not say it."""
    kind = next((_TYPES[one] for one in call.types if one in _TYPES), type)
    word = "" if kind == "f32" else kind
    shapes = call.shapes
    if call.name in _PRODUCTS:
        places = _PRODUCTS[call.name]
        if len(shapes) <= max(places) or any(len(shapes[place]) not in (2, 3) for place in places):
            return None
        a, b = (shapes[place] for place in places)
        if len(a) != len(b) or a[-1] != b[-2] or min(*a, *b) < 1:
            return None
        letters = "".join(_letter(call, place) for place in places)
        batch = f"batch={a[0]}" if len(a) == 3 else ""
        bias = "bias" if call.name == "aten::addmm" and len(shapes[0]) == 1 else ""
        return _joined("gemm", (a[-2], b[-1], a[-1]), "" if letters == "nn" else letters, word, batch, bias)
    if call.name in _MAPS and shapes and shapes[0]:
        return _joined("elementwise", (1, 1, 1, _product(shapes[0])), _MAPS[call.name], word)
    if call.name in _REDUCTIONS and shapes and shapes[0]:
        return _reduction(call, _REDUCTIONS[call.name], word)
    return None


def _letter(call: Call, place: int) -> str:
    strides = call.strides[place] if place < len(call.strides) else ()
    shape = call.shapes[place]
    transposed = len(strides) == len(shape) and strides[-2] == 1 and strides[-1] != 1
    return "t" if transposed and shape[-1] > 1 else "n"


def _reduction(call: Call, operation: str, word: str) -> str | None:
    shape = call.shapes[0]
    numbers = re.findall(r"-?\d{1,6}", str(call.arguments[1])) if len(call.arguments) > 1 else []
    axes = sorted({int(number) % len(shape) for number in numbers if -len(shape) <= int(number) < len(shape)}) or list(range(len(shape)))
    if axes != list(range(axes[0], axes[-1] + 1)):
        return None
    extents = (_product(shape[: axes[0]]), _product(shape[axes[0] : axes[-1] + 1]), _product(shape[axes[-1] + 1 :]))
    return _joined("reduction", extents, "" if operation == "sum" else operation, word)


def _product(extents: Sequence[int]) -> int:
    result = 1
    for extent in extents:
        result *= extent
    return result


def _joined(kind: str, sizes: Sequence[int], *words: str) -> str:
    return f"{kind}:{','.join([*map(str, sizes), *filter(None, words)])}"


def counted(calls: Iterable[Call], type: str = "f32") -> list[Counted]:
    """The problems of calls, each once, those that take or occur most first."""
    by_request: dict[str, Counted] = {}
    for call in calls:
        text = problem_of(call, type)
        if text is None or (text not in by_request and (len(by_request) >= MAX_PROBLEMS or not _is_problem(text))):
            continue
        known = by_request.get(text, Counted(text, 0))
        time = call.microseconds
        total = known.microseconds if time is None else (known.microseconds or 0.0) + time
        by_request[text] = replace(known, count=known.count + 1, microseconds=total)
    return sorted(by_request.values(), key=lambda one: (-(one.microseconds or 0.0), -one.count, one.problem))


def _is_problem(text: str) -> bool:
    try:
        return not read_problem(text).request.is_empty
    except SpecError:
        return False


def read_profile(path: Path, type: str = "f32") -> list[Counted]:
    """The problems of a profile: a JSON trace of torch's profiler with shapes, or an SQLite export of Nsight Systems whose NVTX ranges have
    them. Raises ``SpecError`` for a file that is neither, or that has no such problem."""
    data = _content(path)
    if data.startswith(_SQLITE_MAGIC):
        calls: Iterable[Call] = _nsys_calls(path)
        need = "NVTX ranges with sizes: record with torch.autograd.profiler.emit_nvtx(record_shapes=True)"
    else:
        calls = _trace_calls(path, data)
        need = "operations with shapes: record with torch.profiler.profile(record_shapes=True)"
    calls_counted = counted(calls, type)
    if not calls_counted:
        raise SpecError(f"{path}: has no product, reduction or map of elements that a problem describes; need {need}")
    return calls_counted


def _content(path: Path) -> bytes:
    try:
        data = read_plain(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES and not data.startswith(_SQLITE_MAGIC):
        raise SpecError(f"{path}: is larger than {MAX_BYTES} bytes; record fewer steps")
    return data


def _trace_calls(path: Path, data: bytes) -> Iterator[Call]:
    try:
        trace = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: is neither JSON nor an SQLite export: {printable(' '.join(str(error).split()), 200)}") from None
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    for event in events[:MAX_EVENTS] if isinstance(events, list) else ():
        call = _event_call(event)
        if call is not None:
            yield call


def _event_call(event: object) -> Call | None:
    """An operation of a trace of torch's profiler; None of other events, and of those of another form."""
    if not isinstance(event, dict) or not isinstance(event.get("name"), str) or not isinstance(event.get("args"), dict):
        return None
    arguments, time = event["args"], event.get("dur")
    shapes = _extents(arguments.get("Input Dims"))
    if shapes is None or not event["name"].startswith("aten::"):
        return None
    types, concrete = arguments.get("Input type"), arguments.get("Concrete Inputs")
    return Call(
        event["name"],
        shapes,
        _extents(arguments.get("Input Strides")) or (),
        tuple(str(one) for one in types) if isinstance(types, list) else (),
        tuple(str(one)[:MAX_TEXT_LENGTH] for one in concrete) if isinstance(concrete, list) else (),
        float(time) if isinstance(time, int | float) and 0 <= time < 1e12 else None,
    )


def _extents(value: object) -> tuple[tuple[int, ...], ...] | None:
    """Lists of whole numbers, one for each input; None of anything else."""
    if not isinstance(value, list):
        return None
    shapes: list[tuple[int, ...]] = []
    for one in value:
        numbers = tuple(one) if isinstance(one, list) else ()
        whole = len(numbers) <= 8 and all(
            isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31 for number in numbers
        )
        shapes.append(numbers if whole else ())
    return tuple(shapes)


def _nsys_calls(path: Path) -> Iterator[Call]:
    steps = 0

    def too_long() -> bool:
        nonlocal steps
        steps += 1_000_000
        return steps > SQLITE_STEPS

    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)) as database:
            database.set_progress_handler(too_long, 1_000_000)
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1000")}
            if "NVTX_EVENTS" not in tables:
                return
            text = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))" if "StringIds" in tables else "text"
            for content, start, end in database.execute(f"SELECT {text}, start, end FROM NVTX_EVENTS LIMIT {MAX_EVENTS}"):
                call = _range_call(content, start, end)
                if call is not None:
                    yield call
    except sqlite3.Error as error:
        raise SpecError(f"{path}: is no SQLite export of Nsight Systems: {printable(str(error), 200)}") from None


def _range_call(content: Any, start: Any, end: Any) -> Call | None:
    match = _RANGE.match(content) if isinstance(content, str) and len(content) <= MAX_TEXT_LENGTH else None
    if match is None:
        return None
    try:
        shapes = _extents(json.loads(match["sizes"]))
    except (ValueError, RecursionError):
        return None
    timed = isinstance(start, int) and isinstance(end, int) and 0 <= end - start < 1e15
    return None if shapes is None else Call(match["name"], shapes, microseconds=(end - start) * 1e-3 if timed else None)


def problems_text(problems: Sequence[Counted]) -> str:
    """Problems as a file that ``read_counted`` reads, and ``gemmgen warm`` and ``tune`` too."""
    total = sum(one.microseconds or 0.0 for one in problems)
    lines = []
    for one in problems:
        time = "" if one.microseconds is None else f" us={one.microseconds:.3f} share={one.microseconds / total if total else 0.0:.1%}"
        lines.append(f"{one.problem}  # count={one.count}{time}\n")
    return "".join(lines)


def read_counted(path: Path) -> list[Counted]:
    """The problems of a file, one a line; ``# count=32 us=1200`` behind one says how often it occurs and how long all of that took. Raises
    ``SpecError`` that names the line."""
    text = _content(path).decode("utf-8", "replace")
    lines: list[Counted] = []
    for number, line in enumerate(text.splitlines(), 1):
        problem, _, comment = line.partition("#")
        if not (problem := "".join(problem.split())):
            continue
        if len(lines) >= MAX_PROBLEMS:
            raise SpecError(f"{path}: has more than {MAX_PROBLEMS} problems")
        numbers = {match["name"]: float(match["value"]) for match in _LINE.finditer(comment[:MAX_TEXT_LENGTH])}
        try:
            read_problem(problem)
        except SpecError as error:
            raise SpecError(f"{path}, line {number}: {error}") from None
        lines.append(Counted(problem, max(1, int(numbers.get("count", 1))), numbers.get("us")))
    if not lines:
        raise SpecError(f"{path}: lists no problem; need lines such as gemm:4096,11008,4096,nt,bf16")
    return lines
