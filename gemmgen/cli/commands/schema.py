"""``gemmgen schema``: the JSON Schemas of specs and of the commands' output."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from gemmgen.cli.options import NAMED_PATH
from gemmgen.cli.selection import tell_written, write_output


def output_schemas() -> dict[str, str]:
    """The schemas of outputs, by the names of their commands."""
    files = resources.files("gemmgen.cli.schemas").iterdir()
    return {
        file.name.removesuffix(".json"): file.read_text()
        for file in sorted(files, key=lambda file: file.name)
        if file.name.endswith(".json")
    }


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in output_schemas() if name.startswith(incomplete)]


@click.command("schema")
@click.option("file", "-o", "--output", type=NAMED_PATH, metavar="FILE", help="Write it to FILE.")
@click.option(
    "of",
    "--of",
    metavar="COMMAND",
    shell_complete=_complete,
    help="Schema of the output of a command with --json, such as verify or library-list.",
)
def command(file: Path | None, of: str | None) -> None:
    """Print the JSON Schema of specs, with which editors check and complete YAML; or that of a command's --json.

    In an editor with the YAML language server, begin a spec with: # yaml-language-server: $schema=FILE
    """
    if of is not None:
        schemas = output_schemas()
        if of not in schemas:
            raise click.UsageError(f"--of {of!r}: there are schemas of {', '.join(schemas)}")
        text = schemas[of]
    else:
        from gemmgen.kernels.spec_files import file_schema

        text = json.dumps(file_schema(), indent=2) + "\n"
    if file is None:
        click.echo(text, nl=False)
    else:
        changed = write_output(file, text)
        tell_written(file, changed)
