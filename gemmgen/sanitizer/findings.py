"""Findings as data: the errors of a launch, their places and counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.emulator.demangling import plainly

if TYPE_CHECKING:
    from gemmgen.emulator import EmulatorError
    from gemmgen.emulator.errors import SourceText

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Place:
    """One of the instructions that a finding is about. Without line information `file` is None."""

    file: str | None
    line: int | None
    column: int | None
    function: str | None
    """The inlined function that the line belongs to."""
    ptx_line: int
    ptx: str
    threads: str | None
    """The threads that executed it."""


@dataclass(frozen=True)
class Finding:
    """A finding in one sentence, with all that is known of it. `code` names its page: ``gemmgen emulate --explain CODE``."""

    code: str
    title: str
    severity: Severity
    message: str
    places: tuple[Place, ...]
    element: str | None
    """The first array element that it was seen at, `tile[12]`."""
    count: int
    """Number of accesses of threads that it was seen at."""
    text: str
    """The whole message, lines of the source quoted."""

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def findings_report(findings: Sequence[Finding]) -> dict[str, object]:
    """Findings as every command prints them in JSON: whether one is an error, the first error with its place, and all of them."""
    worst = next((finding for finding in findings if finding.severity == "error"), None)
    place = worst.places[0] if worst is not None and worst.places else None
    return {
        "clean": worst is None,
        "problem": worst.text if worst is not None else None,
        "kind": worst.title if worst is not None else None,
        "source_line": place.line if place is not None else None,
        "ptx_line": place.ptx_line if place is not None else None,
        "threads": place.threads if place is not None else None,
        "findings": [finding.to_json() for finding in findings],
    }


def code_of(kind: type[EmulatorError]) -> str:
    """The stable name of a kind of finding: `SharedRace` is `shared-race`."""
    return kind.code or re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


def findings_of(error: EmulatorError | None, others: tuple[EmulatorError, ...], source: SourceText) -> tuple[Finding, ...]:
    """The error that ended a launch, with those reported together with it, and other findings."""
    findings = [*others]
    if error is not None:
        findings = [error, *getattr(error, "also", ()), *others]
    return tuple(_finding(one, source) for one in findings)


def findings_of_launches(launches: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """The findings of all launches, merged if several have them in the same places."""
    first: dict[object, Finding] = {}
    again: dict[object, list[Finding]] = {}
    for number, of_launch in enumerate(launches):
        earlier = dict.fromkeys(first)
        for position, finding in enumerate(of_launch):
            key: object = (finding.code, finding.severity, tuple((place.file, place.line, place.ptx_line) for place in finding.places))
            if finding.places and key in earlier:
                again.setdefault(key, []).append(finding)
            else:
                first[key if key not in first and finding.places else (number, position)] = finding
    findings = []
    for key, finding in first.items():
        if key in again:
            later = len(again[key])
            count = finding.count + sum(one.count for one in again[key])
            text = f"{finding.text}\n  again in {later} later launch{'es' if later > 1 else ''}; {count:,} accesses in all"
            finding = replace(finding, count=count, text=text)
        findings.append(finding)
    return tuple(findings)


def _finding(error: EmulatorError, source: SourceText) -> Finding:
    if error.source is None:
        error.source = source
    places = []
    for inst, threads in ((error.instruction, error.threads), (error.other, error.other_threads)):
        if inst is not None:
            at = inst.location.own() if inst.location is not None else None
            function = plainly(at.function) if at is not None and at.function else None
            file, line, column = (at.file, at.line, at.column) if at is not None else (None, None, None)
            places.append(Place(file, line, column, function, inst.line, inst.text, threads))
    return Finding(
        code=code_of(type(error)),
        title=error.title,
        severity=getattr(error, "severity", "error"),
        message=error.message,
        places=tuple(places),
        element=getattr(error, "place", "") or None,
        count=getattr(error, "count", 1),
        text=error.alone(),
    )
