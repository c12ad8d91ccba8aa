"""Findings as reports for continuous integration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmgen.core import ci_reports
from gemmgen.core.ci_reports import Location, Result, Rule, TestCase, TestSuite
from gemmgen.sanitizer.findings import Finding, Place


def sarif(findings: Sequence[Finding]) -> str:
    """SARIF with the page of each finding's code as its rule."""
    from gemmgen.sanitizer.explanations import EXPLANATIONS

    rules = {code: Rule(code, page.title, page.remedy) for code, page in EXPLANATIONS.items()}
    return ci_reports.sarif("gemmgen emulate", [_result(finding) for finding in findings], rules)


def _result(finding: Finding) -> Result:
    return Result(
        finding.code,
        finding.severity,
        finding.message,
        _locations(finding.places[:1]),
        _locations(finding.places[1:]),
        {"count": finding.count, "element": finding.element, "threads": [place.threads for place in finding.places]},
    )


def _locations(places: Sequence[Place]) -> list[Location]:
    return [
        Location(place.file, place.line, place.column or 0, f"{place.threads or 'some thread'}: {place.ptx}")
        for place in places
        if place.file is not None and place.line
    ]


def junit(name: str, findings: Sequence[Finding]) -> str:
    """A test suite of one case, which fails if there is an error."""
    errors = [finding for finding in findings if finding.severity == "error"]
    case = TestCase(
        "gemmgen.emulate",
        name,
        "failure" if errors else "passed",
        errors[0].code if errors else "",
        "\n\n".join(finding.text for finding in errors),
        errors[0].message if errors else "",
        output="\n\n".join(finding.text for finding in findings if finding.severity != "error"),
    )
    return ci_reports.junit([TestSuite("gemmgen.emulate", "gemmgen emulate", [case])])


def workflow_commands(findings: Sequence[Finding]) -> Iterator[str]:
    """A workflow command for each finding, at its first place in a file."""
    for finding in findings:
        place = next((place for place in finding.places if place.file is not None), None)
        location = Location(place.file or "", place.line or 0) if place is not None else None
        yield ci_reports.workflow_command(finding.severity, finding.title, finding.text, location)
