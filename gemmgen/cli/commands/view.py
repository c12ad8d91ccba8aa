"""``gemmgen view``: one kernel on a page, from its source to its machine code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from gemmgen.cli.options import NAMED_PATH, architecture_option, complete_device, complete_spec, parse_size, set_option
from gemmgen.cli.pictures import require_page
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import plan_specs, tell_written, write_output
from gemmgen.core.errors import SpecError
from gemmgen.core.text import printable


@click.command("view")
@click.argument("spec", metavar="[SPEC]", required=False, shell_complete=complete_spec)
@problem_options()
@click.option("-o", "--output", type=NAMED_PATH, metavar="FILE", help="The page; else NAME.html here.")
@architecture_option("Architecture to compile for; else the device's.")
@click.option("device_name", "--device", shell_complete=complete_device, help="The GPU of the roofs; else an H200.")
@click.option("--size", metavar="M,N,K", help="Sizes of the problem, in the family's order; else a typical one.")
@set_option
def command(
    spec: str | None,
    asked: AskedProblems,
    output: Path | None,
    architecture: str | None,
    device_name: str | None,
    size: str | None,
    overrides: Sequence[str],
) -> None:
    """Write one self-contained HTML page of SPEC: CUDA, PTX and machine code side by side with linked lines, counters by line,
    control codes, live registers, register banks, and the reasons for its speed.
    """
    from gemmgen.cli.certified import certified_proof
    from gemmgen.cli.compilation import compile_plans
    from gemmgen.cli.host import are_for_processors
    from gemmgen.hardware.target import architecture as find_architecture
    from gemmgen.hardware.target import device as find_device
    from gemmgen.perf.analysis.report import analyse
    from gemmgen.present.web.view import view

    if output is not None:
        require_page(output)
    files = asked.files([spec] if spec is not None else [], device_name, architecture)
    if len(files) != 1:
        raise SpecError(f"{spec or '--problem'} names {len(files)} specs; view takes one")
    if are_for_processors(files):
        raise click.UsageError("view shows kernels of GPUs; gemmgen analyze shows those of processors")
    device = find_device(device_name or "H200")
    target = find_architecture(architecture) if architecture else device.architecture
    (planned,) = plan_specs(files, overrides, target)
    (binary,) = compile_plans([planned.plan])
    analysis = analyse(planned.plan, binary, device, parse_size(size) if size else planned.problem)
    path = output or Path(f"{planned.plan.name}.html")
    proof = certified_proof(planned.plan)
    changed = write_output(path, view(analysis, binary, () if proof is None else tuple(proof["proved"])))
    tell_written(path, changed)
    if analysis.code_missing:
        click.echo(printable(f"Without machine code: {analysis.code_missing}"), err=True)
