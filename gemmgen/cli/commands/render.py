"""``gemmgen render``: from specs to source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.cli.options import NAMED_PATH, json_option, set_option, specs_or_problem_argument
from gemmgen.cli.output import counted, print_json
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import PlannedSpec, plan_specs, tell_written, write_output
from gemmgen.core.errors import GemmgenError

if TYPE_CHECKING:
    from gemmgen.codegen.rendering import Source


@click.command("render")
@specs_or_problem_argument
@problem_options(device=True)
@click.option(
    "directory",
    "-o",
    "--output",
    type=NAMED_PATH,
    metavar="DIR",
    help="Write a file NAME.cu (or NAME.c, for a processor) for each spec into DIR; - is standard output.",
)
@set_option
@json_option
def command(specs: Sequence[str], asked: AskedProblems, directory: Path | None, overrides: Sequence[str], as_json: bool) -> None:
    """Write the source of each SPEC, CUDA or C: to standard output, or into a directory.

    Nothing is written unless every spec can be rendered, and a file that would not change is left alone.
    """
    if directory == Path("-"):
        directory = None
    if as_json and directory is None:
        raise click.UsageError("--json lists the files that were written, and needs -o DIR")
    rendered = render_all(plan_specs(asked.files(specs), overrides))
    if directory is None:
        for source in dict.fromkeys(source for _, source in rendered):
            click.echo(source.text, nl=False)
        return
    outcome = {}
    for source in dict.fromkeys(source for _, source in rendered):
        path = directory / source.file_name
        outcome[source.name] = (path, write_output(path, source.text))
    if as_json:
        print_json(
            [
                {"spec": planned.file.label, "name": source.name, "file": str(outcome[source.name][0]), "changed": outcome[source.name][1]}
                for planned, source in rendered
            ]
        )
        return
    for path, changed in outcome.values():
        tell_written(path, changed)
    written = sum(changed for _, changed in outcome.values())
    click.echo(f"{counted(written, 'file')} written, {len(outcome) - written} unchanged", err=True)


def render_all(planned: Sequence[PlannedSpec]) -> list[tuple[PlannedSpec, Source]]:
    """The source of each plan. Raises ``GemmgenError`` if specs that differ share a name."""
    from gemmgen.codegen.rendering import render

    first: dict[str, tuple[PlannedSpec, Source]] = {}
    rendered = []
    for item in planned:
        source = render(item.plan)
        other, text = first.setdefault(source.name, (item, source))
        if text != source:
            raise GemmgenError(
                f"{other.file.label} and {item.file.label} differ and have the same name {source.name}; give one of them another label"
            )
        rendered.append((item, source))
    return rendered
