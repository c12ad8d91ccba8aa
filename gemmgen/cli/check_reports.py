"""Outcomes of checks as reports for continuous integration, and the options that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gemmgen.cli.options import Decorator
from gemmgen.cli.selection import writable, write_output
from gemmgen.core import ci_reports
from gemmgen.core.ci_reports import Location, Outcome, Result, TestCase, TestSuite


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    group: str
    """Subject that several checks have in common, a spec say."""
    name: str
    file: str
    """File in which a failure has to be fixed."""
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
                    title = f"{check.group}: {check.name}"
                    click.echo(ci_reports.workflow_command("error", title, check.failure, Location(check.file, 1)), err=True)


def check_report_options(function: Callable[..., object]) -> Callable[..., Any]:
    """``--junit``, ``--sarif`` and ``--annotations``, which end in the command's argument ``reports``."""
    path = click.Path(dir_okay=False, path_type=Path)
    options: list[Decorator[Any]] = [
        click.option("--junit", "junit_file", type=path, metavar="FILE", help="Write the outcome as JUnit XML."),
        click.option("--sarif", "sarif_file", type=path, metavar="FILE", help="Write the failures as SARIF."),
        click.option("--annotations", "--github", "annotations", is_flag=True, help="Report failures as annotations of GitHub workflows."),
    ]

    def wrapped(*args: object, junit_file: Path | None, sarif_file: Path | None, annotations: bool, **more: object) -> Any:
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
    """JUnit XML with a suite for each group."""
    package = ".".join(command.split())
    return ci_reports.junit(
        TestSuite(package, group, [_case(check) for check in checks if check.group == group])
        for group in dict.fromkeys(check.group for check in checks)
    )


def _case(check: Check) -> TestCase:
    outcome: Outcome = "failure" if check.failure else "passed"
    return TestCase(check.group, check.name, outcome, check.rule, check.failure, seconds=check.seconds, file=check.file)


def sarif(command: str, checks: Sequence[Check]) -> str:
    """SARIF of the checks that failed."""
    return ci_reports.sarif(
        command,
        [
            Result(check.rule, "error", f"{check.group}: {check.name}: {check.failure}", [Location(check.file, 1)])
            for check in checks
            if check.failure
        ],
    )
