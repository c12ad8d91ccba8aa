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


def _spec_schema() -> dict[str, object]:
    from gemmgen.core.editor_schema import for_editors
    from gemmgen.dispatch.auto_specs import AutoSpec
    from gemmgen.kernels.spec_files import file_schema

    schema = file_schema()
    head = {name: schema.pop(name) for name in ("$schema", "title", "$defs")}
    chosen = {"required": ["mainloop"], "properties": {"mainloop": {"const": "auto"}}}
    return {**head, "if": chosen, "then": for_editors(AutoSpec.model_json_schema()), "else": schema}


def _sweep_schema() -> dict[str, object]:
    from gemmgen.core.editor_schema import for_editors
    from gemmgen.sweep.file import SweepFile

    schema = for_editors(SweepFile.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "gemmgen sweep"}


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in output_schemas() if name.startswith(incomplete)]


@click.command("schema")
@click.option("file", "-o", "--output", type=NAMED_PATH, metavar="FILE", help="Write it to FILE.")
@click.option(
    "--of",
    metavar="COMMAND",
    shell_complete=_complete,
    help="Schema of the output of a command with --json, such as verify or library-list.",
)
@click.option("--sweep", is_flag=True, help="Schema of sweep files.")
def command(file: Path | None, of: str | None, sweep: bool) -> None:
    """Print the JSON Schema of specs, with which editors check and complete YAML; or that of sweep files, or of a command's --json.

    In an editor with the YAML language server, begin a spec with this line:

    \b
    # yaml-language-server: $schema=FILE
    """
    if of is not None and sweep:
        raise click.UsageError("--of and --sweep name different schemas: give one of them")
    if of is not None:
        schemas = output_schemas()
        if of not in schemas:
            raise click.UsageError(f"--of {of!r}: there are schemas of {', '.join(schemas)}")
        text = schemas[of]
    else:
        text = json.dumps(_sweep_schema() if sweep else _spec_schema(), indent=2) + "\n"
    if file is None:
        click.echo(text, nl=False)
    else:
        changed = write_output(file, text)
        tell_written(file, changed)
