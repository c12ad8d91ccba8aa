"""``gemmgen doctor``: what this machine has, and what each missing piece costs."""

from __future__ import annotations

from dataclasses import asdict

import click

from gemmgen.cli.options import json_option
from gemmgen.cli.output import Column, print_json, print_table, styled

_STYLES = {"ok": "green", "missing": "yellow", "warning": "red"}


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Show what gemmgen finds on this machine, and what each missing piece costs you."""
    from rich.text import Text

    from gemmgen.cli.environment import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    rows = []
    for finding in findings:
        detail = Text(finding.detail)
        if finding.cost:
            detail.append(f"\n{finding.cost}", style="dim")
        rows.append((finding.name, styled(finding.status, _STYLES[finding.status]), detail))
    print_table([Column("piece"), Column("status"), Column("what was found, and what it costs", folds=True)], rows)
