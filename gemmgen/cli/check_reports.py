"""Outcomes of checks in the forms that continuous integration reads: JUnit, SARIF, annotations of GitHub's workflows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click

from gemmgen.cli.options import Decorator
from gemmgen.cli.selection import writable, write_output
from gemmgen.core.text import printable, xml_text


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    group: str
    """Subject that several checks have in common, a spec say."""
    name: str
    file: str
    """File in which a failure is to be mended."""
    failure: str = ""
    """Reason of failure; empty if it passed."""
    rule: str = "wrong"
    """Kind of failure, a word that tools sort by."""
    seconds: float = 0.0


@dataclass(frozen=True)
class CheckReports:
    """Reports that a command line asks for."""

    command: str
    junit: Path | None
    sarif: Path | None
    annotations: bool

    def write(self, checks: Sequence[Check]) -> None:
        """Writes the files, and the annotations to standard error, where GitHub reads them too and JSON stays whole."""
        if self.junit is not None:
            write_output(self.junit, junit(self.command, checks))
        if self.sarif is not None:
            write_output(self.sarif, sarif(self.command, checks))
        if self.annotations:
            for check in checks:
                if check.failure:
                    title = _property(f"{check.group}: {check.name}")
                    click.echo(f"::error file={_property(check.file)},line=1,title={title}::{_escaped(check.failure)}", err=True)


def check_report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--junit``, ``--sarif`` and ``--annotations``, which end in the command's argument ``reports``."""
    path = click.Path(dir_okay=False, path_type=Path)
    options: list[Decorator[Any]] = [
        click.option("--junit", "junit_file", type=path, metavar="FILE", help="Write the outcome as JUnit XML."),
        click.option("--sarif", "sarif_file", type=path, metavar="FILE", help="Write what failed as SARIF."),
        click.option(
            "--annotations", "--github", "annotations", is_flag=True, help="Tell what failed as annotations of GitHub's workflows."
        ),
    ]

    def wrapped(*args: Any, junit_file: Path | None, sarif_file: Path | None, annotations: bool, **more: Any) -> Any:
        for option, file in (("--junit", junit_file), ("--sarif", sarif_file)):
            if file is not None:
                writable(option, str(file))
        command = click.get_current_context().command_path.replace("python -m ", "")
        return function(*args, reports=CheckReports(command, junit_file, sarif_file, annotations), **more)

    wrapped.__doc__ = function.__doc__
    wrapped.__name__ = function.__name__
    wrapped.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]
    decorated: Callable[..., Any] = wrapped
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def junit(command: str, checks: Sequence[Check]) -> str:
    """A suite for each group."""
    root = ElementTree.Element("testsuites", name=xml_text(command))
    for group in dict.fromkeys(check.group for check in checks):
        members = [check for check in checks if check.group == group]
        failed = sum(bool(check.failure) for check in members)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=xml_text(group),
            tests=str(len(members)),
            failures=str(failed),
            errors="0",
            time=f"{sum(check.seconds for check in members):.3f}",
        )
        for check in members:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                name=xml_text(check.name),
                classname=xml_text(group),
                file=xml_text(check.file),
                time=f"{check.seconds:.3f}",
            )
            if check.failure:
                failure = ElementTree.SubElement(case, "failure", message=xml_text(check.failure.splitlines()[0]), type=check.rule)
                failure.text = xml_text(check.failure)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def sarif(command: str, checks: Sequence[Check]) -> str:
    """SARIF 2.1.0 of the checks that failed."""
    from gemmgen.core.version import __version__

    failed = [check for check in checks if check.failure]
    rules = sorted({check.rule for check in failed})
    results = [
        {
            "ruleId": check.rule,
            "ruleIndex": rules.index(check.rule),
            "level": "error",
            "message": {"text": f"{check.group}: {check.name}: {check.failure}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": check.file.lstrip("/")}, "region": {"startLine": 1}}}],
        }
        for check in failed
    ]
    driver = {"name": command, "version": __version__, "rules": [{"id": rule} for rule in rules]}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(document, indent=2) + "\n"


def _escaped(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
