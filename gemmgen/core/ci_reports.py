"""Reports for continuous integration: JUnit XML, SARIF 2.1.0, and workflow commands of GitHub Actions.

JUnit documents keep to the schema of Ant's JUnit task (github.com/windyroad/JUnit-Schema) and to that of Jenkins's xUnit plugin
(junit-10.xsd), but for the attribute ``file`` of test cases that name one, which GitLab and editors read.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal
from xml.etree import ElementTree

from gemmgen.core.text import printable, xml_text
from gemmgen.core.version import __version__

Outcome = Literal["passed", "failure", "error", "skipped"]
"""Outcomes of a JUnit test case."""
Level = Literal["error", "warning", "note"]
"""Levels of SARIF results."""

_EPOCH = "1970-01-01T00:00:00"


@dataclass(frozen=True)
class TestCase:
    """A test case of a JUnit document."""

    classname: str
    name: str
    outcome: Outcome = "passed"
    kind: str = ""
    """A word that tools sort failures by."""
    text: str = ""
    """Full text of the failure; its first line is the message unless ``message`` is given."""
    message: str = ""
    seconds: float = 0.0
    file: str = ""
    output: str = ""
    """Remarks beside the outcome."""


@dataclass(frozen=True)
class TestSuite:
    """A test suite of a JUnit document."""

    package: str
    name: str
    cases: Sequence[TestCase]
    date: str = ""
    """Start in ISO 8601; now if empty."""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Location:
    """A place in a source file, with a remark."""

    file: str
    line: int
    column: int = 0
    remark: str = ""


@dataclass(frozen=True)
class Rule:
    """A kind of result in a SARIF document."""

    code: str
    title: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Result:
    """A result of a SARIF document, at its first location; the others are related."""

    code: str
    level: Level
    message: str
    locations: Sequence[Location] = ()
    related: Sequence[Location] = ()
    properties: Mapping[str, object] = field(default_factory=dict)


def junit(suites: Iterable[TestSuite]) -> str:
    """JUnit XML with the suites in order; cases of one suite with equal names are numbered."""
    root = ElementTree.Element("testsuites")
    for number, suite in enumerate(suites):
        root.append(_suite(number, suite))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(number: int, suite: TestSuite) -> ElementTree.Element:
    outcomes = Counter(case.outcome for case in suite.cases)
    element = ElementTree.Element(
        "testsuite",
        {
            "package": suite.package,
            "id": str(number),
            "name": _token(suite.name) or "suite",
            "timestamp": _timestamp(suite.date),
            "hostname": _token(socket.gethostname()) or "localhost",
            "tests": str(outcomes.total()),
            "failures": str(outcomes["failure"]),
            "errors": str(outcomes["error"]),
            "skipped": str(outcomes["skipped"]),
            "time": f"{sum(case.seconds for case in suite.cases):.3f}",
        },
    )
    properties = ElementTree.SubElement(element, "properties")
    for name, value in suite.properties.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": xml_text(value)})
    names: Counter[tuple[str, str]] = Counter()
    for case in suite.cases:
        element.append(_case(case, names))
    # Empty, but the schema of Ant's task requires them.
    ElementTree.SubElement(element, "system-out")
    ElementTree.SubElement(element, "system-err")
    return element


def _case(case: TestCase, names: Counter[tuple[str, str]]) -> ElementTree.Element:
    classname, name = _token(case.classname), _token(case.name) or "case"
    names[classname, name] += 1
    if names[classname, name] > 1:
        name = f"{name} #{names[classname, name]}"
    file = {"file": xml_text(case.file)} if case.file else {}
    element = ElementTree.Element("testcase", {"classname": classname, "name": name, **file, "time": f"{case.seconds:.3f}"})
    if case.outcome != "passed":
        message = case.message or next(iter(case.text.strip().splitlines()), "") or case.kind
        outcome = ElementTree.SubElement(element, case.outcome, {"type": xml_text(case.kind), "message": xml_text(message)})
        outcome.text = xml_text(case.text)
    if case.output:
        ElementTree.SubElement(element, "system-out").text = xml_text(case.output)
    return element


def _timestamp(date: str) -> str:
    """UTC without a time zone, which the schema requires."""
    try:
        moment = datetime.fromisoformat(date) if date else datetime.now(UTC)
        moment = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except (ValueError, OverflowError):
        return _EPOCH
    return moment.isoformat(timespec="seconds")


def _token(text: str) -> str:
    """Text on one line with single spaces, a token of XML Schema."""
    return " ".join(xml_text(text).split())


def sarif(tool: str, results: Sequence[Result], rules: Mapping[str, Rule] | None = None) -> str:
    """SARIF 2.1.0, which GitHub's code scanning and editors show beside the lines; ``rules`` explains codes of results."""
    codes = sorted({result.code for result in results})
    described = [_rule((rules or {}).get(code, Rule(code))) for code in codes]
    driver = {"name": tool, "version": __version__, "informationUri": "https://pypi.org/project/gemmgen/", "rules": described}
    members = [
        {
            "ruleId": result.code,
            "ruleIndex": codes.index(result.code),
            "level": result.level,
            "message": {"text": result.message},
            "locations": [_location(location) for location in result.locations],
            "relatedLocations": [_location(location) for location in result.related],
            "properties": result.properties,
        }
        for result in results
    ]
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": members}],
    }
    return json.dumps(document, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, object]:
    texts = {"shortDescription": rule.title, "help": rule.remedy}
    return {"id": rule.code, **{name: {"text": text} for name, text in texts.items() if text}}


def _location(location: Location) -> dict[str, object]:
    region = {"startLine": location.line, **({"startColumn": location.column} if location.column else {})}
    place: dict[str, object] = {"physicalLocation": {"artifactLocation": {"uri": location.file.lstrip("/")}, "region": region}}
    return place | ({"message": {"text": location.remark}} if location.remark else {})


def workflow_command(level: Level, title: str, message: str, location: Location | None = None) -> str:
    """A workflow command of GitHub Actions, which shows the message at its line."""
    where = f"file={_property(location.file)},line={location.line}," if location is not None else ""
    return f"::{'notice' if level == 'note' else level} {where}title={_property(title)}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
