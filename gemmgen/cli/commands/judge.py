"""``gemmgen judge``: a referee for kernels that someone, or some model, wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.options import Number, json_option
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
@click.option("--shapes", metavar="m=64,n=48,k=32", multiple=True, required=True, help="A problem. Repeatable.")
@click.option(
    "--run-native",
    is_flag=True,
    help="Let host code and Python of the candidate run, in separate processes with limits: for programs, torch extensions and Triton "
    "kernels. Kernels run on a GPU, too, if there is one.",
)
@click.option("--time", metavar="m=4096,n=4096,k=4096", help="Time the kernel on a GPU on this problem; needs --run-native.")
@click.option("--peer", metavar="FILE.py:FUNCTION", help="The function (torch, sizes, tensors) that is timed beside it.")
@click.option(
    "prove_seconds",
    "--prove",
    type=Number(0, 3600),
    default=0.0,
    metavar="S",
    help="Prove properties of the kernel for every problem, as gemmgen prove does, for S seconds at most; counterexamples are run.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="Draw the data of an earlier verdict again; by default they are new, so that no kernel can know them.",
)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Write the verdict as an HTML page.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    candidate: Path,
    task_file: Path,
    reference: str,
    shapes: Sequence[str],
    run_native: bool,
    time: str | None,
    peer: str | None,
    prove_seconds: float,
    seed: int | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Judge a CANDIDATE: is it the same function as the reference, on all shapes around its tile, for all data?

    CANDIDATE is a kernel (CUDA or PTX), a program with a main, the source of a torch extension, or a Python file with a Triton kernel, as
    the launch file says. Kernels run on the emulator; nothing of the candidate runs as native code without --run-native. Outputs are
    poisoned, inputs read-only, arrays guarded; errors are compared with a derived bound; several orders of warps must agree; later calls
    must not see earlier ones.

    Exits with 0 if it is accepted, 1 if it is refused, 2 if it could not be judged.
    """
    from gemmgen.judge.api import judge, parse_reference
    from gemmgen.judge.page import verdict_page

    beside = None if peer is None else parse_reference(peer)
    if beside is not None and not (beside[1] and beside[0].is_file()):
        raise click.BadParameter(f"--peer {peer}: expected FILE.py:FUNCTION")
    named = parse_reference(reference)
    verdict = judge(
        candidate,
        task_file,
        named,
        tuple(shapes),
        run_native=run_native,
        time=time,
        peer=beside,
        prove_seconds=prove_seconds,
        seed=seed,
    )
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
    click.echo(f"{word}  {printable(verdict.candidate)}  ({len(verdict.shapes)} shapes, seed {verdict.seed}, {duration(verdict.seconds)})")
    for failure in verdict.failures:
        where = ",".join(f"{name}={value}" for name, value in failure.shape.items())
        click.echo(printable(f"  {failure.kind}: it {KINDS[failure.kind]}"))
        click.echo(printable(f"    {f'at {where}: ' if where else ''}{failure.message}"))
    if (times := verdict.times) is not None:
        beside = f", {times.peer} {times.peer_us:.2f} us" if times.peer_us is not None else f" ({times.peer})"
        click.echo(printable(f"{times.device}: {times.candidate_us:.2f} us{beside}"))
    for note in verdict.notes:
        click.echo(printable(f"note: {note}"))
    if proved := [name for name, status in verdict.proofs.items() if status == "proved"]:
        click.echo(f"proved for every problem: {', '.join(proved)}")
    if verdict.accepted:
        click.echo(f"largest error / bound: {verdict.worst_ratio:.3g}")
