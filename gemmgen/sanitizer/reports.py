"""Findings in the forms that other tools read: SARIF, JUnit, annotations of GitHub's workflows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from gemmgen.core.text import printable, xml_text
from gemmgen.sanitizer.findings import Finding, Place

_LEVELS = {"error": "error", "warning": "warning", "note": "note"}


def sarif(findings: Sequence[Finding]) -> str:
    """SARIF 2.1.0, which GitHub's code scanning and editors show beside the lines."""
    from gemmgen.core.version import __version__
    from gemmgen.sanitizer.explanations import EXPLANATIONS

    codes = sorted({finding.code for finding in findings})
    rules = []
    for code in codes:
        page = EXPLANATIONS.get(code)
        rule: dict[str, Any] = {"id": code}
        if page is not None:
            rule |= {"shortDescription": {"text": page.title}, "help": {"text": page.remedy}}
        rules.append(rule)
    results = [
        {
            "ruleId": finding.code,
            "ruleIndex": codes.index(finding.code),
            "level": _LEVELS[finding.severity],
            "message": {"text": finding.message},
            "locations": [location for place in finding.places[:1] if (location := _location(place)) is not None],
            "relatedLocations": [location for place in finding.places[1:] if (location := _location(place)) is not None],
            "properties": {"count": finding.count, "element": finding.element, "threads": [p.threads for p in finding.places]},
        }
        for finding in findings
    ]
    driver = {"name": "gemmgen emulate", "version": __version__, "informationUri": "https://pypi.org/project/gemmgen/", "rules": rules}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(document, indent=2) + "\n"


def _location(place: Place) -> dict[str, Any] | None:
    if place.file is None or not place.line:
        return None
    region = {"startLine": place.line, **({"startColumn": place.column} if place.column else {})}
    return {
        "physicalLocation": {"artifactLocation": {"uri": place.file.lstrip("/")}, "region": region},
        "message": {"text": f"{place.threads or 'some thread'}: {place.ptx}"},
    }


def junit(name: str, findings: Sequence[Finding]) -> str:
    """A test suite of one case, which fails if there is an error."""
    errors = [finding for finding in findings if finding.severity == "error"]
    suite = ElementTree.Element("testsuite", name="gemmgen emulate", tests="1", failures=str(int(bool(errors))), errors="0")
    case = ElementTree.SubElement(suite, "testcase", name=xml_text(name), classname="gemmgen.emulate")
    if errors:
        failure = ElementTree.SubElement(case, "failure", message=xml_text(errors[0].message), type=errors[0].code)
        failure.text = xml_text("\n\n".join(finding.text for finding in errors))
    others = [finding.text for finding in findings if finding.severity != "error"]
    if others:
        ElementTree.SubElement(case, "system-out").text = xml_text("\n\n".join(others))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def workflow_commands(findings: Sequence[Finding]) -> Iterator[str]:
    """Workflow commands: GitHub shows the message at the line."""
    for finding in findings:
        level = "notice" if finding.severity == "note" else finding.severity
        place = next((place for place in finding.places if place.file is not None), None)
        where = f" file={_property(place.file or '')},line={place.line}," if place is not None else " "
        yield f"::{level}{where}title={_property(finding.title)}::{_escaped(finding.text)}"


def _escaped(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
