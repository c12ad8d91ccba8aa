"""``gemmgen judge``: a referee for kernels that someone, or some model, wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.options import json_option
from gemmgen.cli.output import duration, print_json, styled
from gemmgen.cli.selection import write_output
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.judge.referee import Verdict


@click.command("judge")
@click.argument("candidate", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--task", "task_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True, help="The launch file.")
@click.option(
    "--reference",
    metavar="FILE.py:FUNCTION|SPEC",
    required=True,
    help="A spec, whose arrays and sizes the task names as the spec does; or Python that computes the outputs from the inputs. Python "
    "runs as your user in a separate process, with limits on time and memory but without a sandbox: read a stranger's reference "
    "before you use it.",
)
@click.option("shapes", "--shapes", metavar="m=64,n=48,k=32", multiple=True, required=True, help="A problem. Repeatable.")
@click.option("page", "--page", type=click.Path(dir_okay=False, path_type=Path), help="Write the verdict as an HTML page.")
@json_option
@click.pass_context
def command(
    context: click.Context, candidate: Path, task_file: Path, reference: str, shapes: Sequence[str], page: Path | None, as_json: bool
) -> None:
    """Judge a CANDIDATE kernel (CUDA or PTX): is it the same function as the reference, on all shapes around its tile, for all data?

    The candidate runs on the emulator, never as native code. Outputs are poisoned, inputs read-only, arrays guarded; errors are
    compared with a derived bound; several orders of warps must agree; a second call must not see the first.

    Exits with 0 if it is accepted, 1 if it is refused, 2 if it could not be judged.
    """
    from gemmgen.judge.api import judge, parse_reference
    from gemmgen.judge.page import verdict_page

    verdict = judge(candidate, task_file, parse_reference(reference), tuple(shapes))
    if page is not None:
        write_output(page, verdict_page(verdict))
    if as_json:
        print_json(verdict.to_json())
    else:
        _print(verdict)
    if not verdict.accepted:
        context.exit(exit_codes.FAILED)


def _print(verdict: Verdict) -> None:
    from gemmgen.judge.referee import KINDS

    word = styled("accepted", "green") if verdict.accepted else styled("REFUSED", "bold red")
    click.echo(f"{word}  {printable(verdict.candidate)}  ({len(verdict.shapes)} shapes, {duration(verdict.seconds)})")
    for failure in verdict.failures:
        where = ",".join(f"{name}={value}" for name, value in failure.shape.items())
        click.echo(printable(f"  {failure.kind}: it {KINDS[failure.kind]}"))
        click.echo(printable(f"    {f'at {where}: ' if where else ''}{failure.message}"))
    if verdict.accepted:
        click.echo(f"largest error / bound: {verdict.worst_ratio:.3g}")
