"""``gemmgen trace``: the problems that a model computes, from a script or from a profile of it."""

from __future__ import annotations

from pathlib import Path

import click

from gemmgen.cli.options import NAMED_PATH
from gemmgen.cli.output import counted as counted_text
from gemmgen.cli.selection import tell_written, write_output


@click.command("trace", context_settings={"ignore_unknown_options": True})
@click.argument("source", metavar="SCRIPT|PROFILE", type=NAMED_PATH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", type=NAMED_PATH, metavar="FILE", help="Write the problems into FILE; else to standard output.")
@click.option("kind", "--type", default="f32", show_default=True, help="Type of elements if the profile does not name it.")
def command(source: Path, arguments: tuple[str, ...], output: Path | None, kind: str) -> None:
    """List the problems of a model, one a line, with the number of occurrences and the share of the time.

    A SCRIPT (.py) is run with torch, and every product, reduction and elementwise operation is recorded; ARGUMENTS are passed to it. A
    PROFILE is a trace of torch.profiler with shapes (.json), or an export of Nsight Systems (.sqlite) of a run under
    torch.autograd.profiler.emit_nvtx(record_shapes=True).

    \b
    gemmgen trace model.py -o problems.txt
    gemmgen trace trace.json -o problems.txt
    gemmgen plan-model problems.txt --device H200
    """
    from gemmgen.core.errors import SpecError
    from gemmgen.core.text import did_you_mean
    from gemmgen.dispatch.profiles import problems_text, read_profile
    from gemmgen.kernels.problem_words import plain_word

    element = plain_word(kind)
    known = ("f32", "f16", "bf16", "f64", "s8", "u8", "e4m3", "e5m2")
    if element not in known:
        raise SpecError(f"--type {kind!r}: no type of elements{did_you_mean(kind, known)}; there are {', '.join(known)}")
    if source.suffix == ".py":
        from gemmgen.ops.tracing import traced

        calls = traced(source, arguments)
    elif arguments:
        raise click.UsageError("a profile takes no arguments; a script, which ends in .py, does")
    else:
        calls = read_profile(source, element)
    text = problems_text(calls)
    if output is None:
        click.echo(text, nl=False)
    else:
        tell_written(output, write_output(output, text))
    click.echo(f"{counted_text(len(calls), 'problem')} of {counted_text(sum(one.count for one in calls), 'call')}", err=True)
