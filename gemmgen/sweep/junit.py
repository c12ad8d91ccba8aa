"""Results as JUnit XML, which continuous integration shows as tests: one test case for each point.

A point that its spec's constraints reject is skipped, a wrong result is a failure, everything else that went wrong an error: an axis
value that makes no valid spec too, and points that an interrupted sweep did not reach.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gemmgen.core import ci_reports
from gemmgen.core.ci_reports import Outcome, TestCase, TestSuite
from gemmgen.sweep.encoding import encodable, plain
from gemmgen.sweep.records import PointResult, Status

_OUTCOMES: dict[Status, Outcome] = {
    Status.CORRECT: "passed",
    Status.CONSTRAINTS: "skipped",
    Status.INVALID: "error",
    Status.CORRECTNESS: "failure",
    Status.COMPILE: "error",
    Status.RUNTIME: "error",
    Status.TIMEOUT: "error",
}


def junit(results: Sequence[PointResult], incomplete: str = "") -> str:
    """The document: a suite for each sweep and architecture, in the order of ``results``.

    ``incomplete`` says why there are not results for all points; it becomes an error in a separate suite.
    """
    members: dict[tuple[str, str], list[PointResult]] = {}
    for result in results:
        members.setdefault((result.sweep, result.architecture), []).append(result)
    suites = [_suite(sweep, architecture, points) for (sweep, architecture), points in members.items()]
    if incomplete:
        case = TestCase("gemmgen", "the sweep is complete", "error", "incomplete", encodable(incomplete), encodable(incomplete))
        suites.append(TestSuite("gemmgen.sweep", "incomplete", [case]))
    return ci_reports.junit(suites)


def _suite(sweep: str, architecture: str, results: Sequence[PointResult]) -> TestSuite:
    values = {name: sorted({getattr(result, name) for result in results} - {""}) for name in ("device", "backend", "compiler")}
    short = _short_paths(dict.fromkeys(path for result in results for path in result.axes))
    return TestSuite(
        "gemmgen.sweep",
        encodable(f"{sweep} {architecture}"),
        [_case(result, short) for result in results],
        min(result.date for result in results) or "unknown",
        {name: encodable(", ".join(some)) for name, some in values.items() if some},
    )


def _short_paths(paths: Iterable[str]) -> dict[str, str]:
    """For each field path the fewest last parts that no other has: ``thread.m`` for ``mainloop.tile.thread.m``."""
    endings = {path: [".".join(parts[place:]) for place in reversed(range(len(parts)))] for path in paths for parts in [path.split(".")]}
    uses = Counter(ending for of_path in endings.values() for ending in of_path)
    return {path: next((ending for ending in of_path if uses[ending] == 1), path) for path, of_path in endings.items()}


def _case(result: PointResult, short: Mapping[str, str]) -> TestCase:
    classname = ".".join(part for part in ("gemmgen", result.sweep, result.kind, result.architecture) if part)
    where = ", ".join(part for part in (f"stage {result.stage}", result.instance) if part)
    outcome = _OUTCOMES[result.status]
    passed = outcome == "passed"
    return TestCase(
        encodable(classname),
        encodable(_name(result, short)),
        outcome,
        "" if passed else encodable(result.reason_code or str(result.status)),
        "" if passed else encodable("\n".join([result.reason, "", where, json.dumps(plain(result.spec))])),
        "" if passed else encodable(next(iter(result.reason.strip().splitlines()), "") or result.reason_code or str(result.status)),
        sum(value for value in result.seconds.values() if math.isfinite(value) and value > 0),
    )


def _name(result: PointResult, short: Mapping[str, str]) -> str:
    """Distinction of this point from the others: its axes, and its problem."""
    parts = [f"{short[path]}={_value(value)}" for path, value in result.axes.items()]
    if result.problem:
        parts.append("x".join(str(size) for size in result.problem.values()))
    return " ".join(" ".join(parts).split()) or result.instance.strip() or result.digest[:12] or "point"


def _value(value: object) -> str:
    match value:
        case str():
            return value
        case dict():
            return f"{{{', '.join(f'{name}: {_value(inner)}' for name, inner in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
    return json.dumps(plain(value))
