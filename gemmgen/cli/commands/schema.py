"""``gemmgen schema``: the JSON Schema of specs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gemmgen.cli.options import NAMED_PATH
from gemmgen.cli.selection import write_output


@click.command("schema")
@click.option("file", "-o", "--output", type=NAMED_PATH, metavar="FILE", help="Write it to FILE.")
def command(file: Path | None) -> None:
    """Print the JSON Schema of specs, with which editors check and complete YAML.

    In an editor with the YAML language server, begin a spec with: # yaml-language-server: $schema=FILE
    """
    from gemmgen.kernels.spec_files import json_schema

    text = json.dumps(json_schema(), indent=2) + "\n"
    if file is None:
        click.echo(text, nl=False)
    else:
        changed = write_output(file, text)
        click.echo(f"{'written  ' if changed else 'unchanged'}  {file}")
