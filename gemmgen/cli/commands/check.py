"""``gemmgen check``: specs accepted or refused, with all reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.options import architectures_option, json_option, set_option, specs_argument
from gemmgen.cli.output import print_json
from gemmgen.cli.selection import SpecFile, find_specs
from gemmgen.core.errors import PlanError, Reason, SpecError
from gemmgen.core.text import printable


@click.command("check")
@specs_argument
@architectures_option("Architecture to check for, or all; else the spec's own. Repeatable.")
@set_option
@json_option
@click.pass_context
def command(context: click.Context, specs: Sequence[str], architectures: Sequence[str], overrides: Sequence[str], as_json: bool) -> None:
    """Check that each SPEC can work, and list every reason if not. Exits with 2 if one cannot. A warning is an estimate, for
    example of registers, that suggests a slow kernel."""
    from gemmgen.hardware.target import ARCHITECTURES, architecture

    names: list[str | None] = [*(ARCHITECTURES if "all" in architectures else dict.fromkeys(architectures))] or [None]
    for name in names:
        if name is not None:
            architecture(name)
    findings = [finding for file in find_specs(specs) for finding in _check(file, names, overrides)]
    rejected = sum(not finding["accepted"] for finding in findings)
    bugs = sum(finding["bug"] for finding in findings)
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            _print(finding)
        click.echo(f"{len(findings) - rejected} accepted, {rejected} rejected", err=True)
    if bugs:
        context.exit(exit_codes.BUG)
    if rejected:
        context.exit(exit_codes.USAGE)


def _check(file: SpecFile, architectures: Sequence[str | None], overrides: Sequence[str]) -> list[dict[str, Any]]:
    from gemmgen.kernels.planning import plan
    from gemmgen.kernels.spec_files import load_spec

    findings = []
    try:
        spec = load_spec(file.path if file.spec is None else file.spec.model_dump(mode="json"), overrides)
    except SpecError as error:
        return [_finding(file, architectures[0], error=str(error))]
    for name in architectures:
        try:
            planned = plan(spec, name)
            findings.append(_finding(file, name or spec.architecture, kernel=planned.name, warnings=planned.warnings))
        except PlanError as error:
            findings.append(_finding(file, name or spec.architecture, error=error.message.rstrip(":"), reasons=error.reasons))
        except Exception as error:  # one file must not keep the others from being checked
            text = f"this is a bug in gemmgen, not a mistake of yours; please report it: {type(error).__name__}: {error}"
            findings.append(_finding(file, name or spec.architecture, error=text, bug=True))
    return findings


def _finding(
    file: SpecFile,
    architecture: str | None,
    *,
    kernel: str | None = None,
    error: str = "",
    reasons: Sequence[Reason] = (),
    warnings: Sequence[Reason] = (),
    bug: bool = False,
) -> dict[str, Any]:
    return {
        "spec": file.label,
        "architecture": architecture,
        "accepted": kernel is not None,
        "name": kernel,
        "error": error,
        "bug": bug,
        "reasons": [{**asdict(reason), "text": str(reason)} for reason in reasons],
        "warnings": [{**asdict(warning), "text": str(warning)} for warning in warnings],
    }


def _print(finding: dict[str, Any]) -> None:
    where = printable(f"{finding['spec']} ({finding['architecture']})" if finding["architecture"] else finding["spec"])
    if finding["accepted"]:
        click.echo(f"{click.style('accepted', fg='green')}  {where}")
        for warning in finding["warnings"]:
            click.echo(f"    {click.style('warning', fg='yellow')}: {printable(warning['text'])}")
        return
    click.echo(f"{click.style('rejected', fg='red')}  {where}")
    for line in printable(finding["error"]).splitlines():
        click.echo(f"  {line}")
    for reason in finding["reasons"]:
        click.echo(f"    - {printable(reason['text'])}")
