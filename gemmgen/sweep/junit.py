"""Results as JUnit XML, which continuous integration shows as tests: one test case for each point.

The file keeps to the schema of Ant's JUnit task (github.com/windyroad/JUnit-Schema) and to that of Jenkins's xUnit plugin
(junit-10.xsd). What a spec's constraints reject is skipped, a wrong result is a failure, everything else that went wrong an error: an
axis value that makes no valid spec too, and points that an interrupted sweep did not get to.
"""

from __future__ import annotations

import json
import math
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

from gemmgen.core.text import xml_text
from gemmgen.sweep.encoding import encodable, plain
from gemmgen.sweep.records import PointResult, Status

_OUTCOMES = {
    Status.CORRECT: None,
    Status.CONSTRAINTS: "skipped",
    Status.INVALID: "error",
    Status.CORRECTNESS: "failure",
    Status.COMPILE: "error",
    Status.RUNTIME: "error",
    Status.TIMEOUT: "error",
}

_EPOCH = "1970-01-01T00:00:00"


def junit(results: Sequence[PointResult], incomplete: str = "") -> str:
    """The document: a suite for each sweep and architecture, in the order of ``results``.

    ``incomplete`` says why there are not results for all points; it becomes an error in a suite of its own.
    """
    suites: dict[tuple[str, str], list[PointResult]] = {}
    for result in results:
        suites.setdefault((result.sweep, result.architecture), []).append(result)
    root = ElementTree.Element("testsuites")
    for number, ((sweep, architecture), members) in enumerate(suites.items()):
        root.append(_suite(number, sweep, architecture, members))
    if incomplete:
        root.append(_incomplete(len(suites), incomplete))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _empty_suite(number: int, name: str, timestamp: str, outcomes: Counter[str | None], seconds: float) -> ElementTree.Element:
    return ElementTree.Element(
        "testsuite",
        {
            "package": "gemmgen.sweep",
            "id": str(number),
            "name": name,
            "timestamp": timestamp,
            "hostname": _token(socket.gethostname()) or "localhost",
            "tests": str(outcomes.total()),
            "failures": str(outcomes["failure"]),
            "errors": str(outcomes["error"]),
            "skipped": str(outcomes["skipped"]),
            "time": _decimal(seconds),
        },
    )


def _incomplete(number: int, why: str) -> ElementTree.Element:
    """A suite whose one test says that others were not run."""
    suite = _empty_suite(number, "incomplete", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"), Counter(["error"]), 0.0)
    ElementTree.SubElement(suite, "properties")
    case = ElementTree.SubElement(suite, "testcase", {"classname": "gemmgen", "name": "the sweep is complete", "time": _decimal(0.0)})
    ElementTree.SubElement(case, "error", {"type": "incomplete", "message": _text(why)}).text = _text(why)
    ElementTree.SubElement(suite, "system-out")
    ElementTree.SubElement(suite, "system-err")
    return suite


def _suite(number: int, sweep: str, architecture: str, results: Sequence[PointResult]) -> ElementTree.Element:
    outcomes = Counter(_OUTCOMES[result.status] for result in results)
    name = _token(f"{sweep} {architecture}") or "sweep"
    timestamp = _timestamp(min(result.date for result in results))
    suite = _empty_suite(number, name, timestamp, outcomes, sum(_seconds(result) for result in results))
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("device", "backend", "compiler"):
        values = sorted({getattr(result, name) for result in results} - {""})
        if values:
            ElementTree.SubElement(properties, "property", {"name": name, "value": _text(", ".join(values))})
    names: Counter[tuple[str, str]] = Counter()
    short = _short_paths(dict.fromkeys(path for result in results for path in result.axes))
    for result in results:
        suite.append(_case(result, names, short))
    # Empty, but the schema of Ant's task wants them.
    ElementTree.SubElement(suite, "system-out")
    ElementTree.SubElement(suite, "system-err")
    return suite


def _short_paths(paths: Iterable[str]) -> dict[str, str]:
    """For each field path the fewest last parts that no other has: ``thread.m`` for ``mainloop.tile.thread.m``."""
    endings = {path: [".".join(parts[place:]) for place in reversed(range(len(parts)))] for path in paths for parts in [path.split(".")]}
    uses = Counter(ending for of_path in endings.values() for ending in of_path)
    return {path: next((ending for ending in of_path if uses[ending] == 1), path) for path, of_path in endings.items()}


def _case(result: PointResult, names: Counter[tuple[str, str]], short: Mapping[str, str]) -> ElementTree.Element:
    classname = _token(".".join(part for part in ("gemmgen", result.sweep, result.kind, result.architecture) if part))
    name = _name(result, short)
    names[classname, name] += 1
    if names[classname, name] > 1:
        name = f"{name} #{names[classname, name]}"
    case = ElementTree.Element("testcase", {"classname": classname, "name": name, "time": _decimal(_seconds(result))})
    outcome = _OUTCOMES[result.status]
    if outcome is not None:
        first = next(iter(result.reason.strip().splitlines()), "") or result.reason_code or str(result.status)
        told = ElementTree.SubElement(case, outcome, {"type": _text(result.reason_code or str(result.status)), "message": _text(first)})
        where = ", ".join(part for part in (f"stage {result.stage}", result.instance) if part)
        told.text = _text("\n".join([result.reason, "", where, json.dumps(plain(result.spec))]))
    return case


def _name(result: PointResult, short: Mapping[str, str]) -> str:
    """Distinction of this point from the others: its axes, and its problem."""
    parts = [f"{short[path]}={_value(value)}" for path, value in result.axes.items()]
    if result.problem:
        parts.append("x".join(str(size) for size in result.problem.values()))
    return _token(" ".join(parts)) or _token(result.instance) or result.digest[:12] or "point"


def _value(value: Any) -> str:
    match value:
        case str():
            return value
        case dict():
            return f"{{{', '.join(f'{name}: {_value(inner)}' for name, inner in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
    return json.dumps(plain(value))


def _seconds(result: PointResult) -> float:
    return sum(value for value in result.seconds.values() if math.isfinite(value) and value > 0)


def _decimal(seconds: float) -> str:
    return f"{seconds:.3f}"


def _timestamp(date: str) -> str:
    """Without a time zone, as the schema wants it; UTC."""
    try:
        moment = datetime.fromisoformat(date)
        moment = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except (ValueError, OverflowError):
        return _EPOCH
    return moment.isoformat(timespec="seconds")


def _text(text: str) -> str:
    return xml_text(encodable(text))


def _token(text: str) -> str:
    """Text on one line, with single spaces: what XML Schema calls a token."""
    return " ".join(_text(text).split())
