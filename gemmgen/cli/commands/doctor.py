"""``gemmgen doctor``: the tools found on this machine, and the features that each missing tool disables."""

from __future__ import annotations

from dataclasses import asdict

import click

from gemmgen.cli.options import json_option
from gemmgen.cli.output import Column, print_json, print_table, styled

_STYLES = {"ok": "green", "missing": "yellow", "warning": "red"}


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Show the tools found on this machine, and the features that each missing tool disables."""
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
    print_table([Column("piece"), Column("status"), Column("found, and the effect if missing", folds=True)], rows)
