"""``gemmgen warm``: fills the compile cache with the kernels that operations will take, before a server is asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from gemmgen.cli.options import NAMED_PATH, complete_device, json_option
from gemmgen.cli.output import Column, counted, duration, print_json, print_table, progress_bar


@click.command("warm")
@click.argument("problems", nargs=-1, metavar="[KIND:SIZES]...")
@click.option("file", "--problems", type=NAMED_PATH, metavar="FILE", help="Problems that FILE lists, one a line: gemm:512,512,512,nt")
@click.option("device_name", "--device", shell_complete=complete_device, help="The GPU to compile for; else that of this machine.")
@json_option
def command(problems: Sequence[str], file: Path | None, device_name: str | None, as_json: bool) -> None:
    """Compile the kernels that gemmgen.ops launches for the given problems, such as gemm:4096,1,4096,nt,bf16, into the compile cache.

    Programs on this machine then find them there. With --device, no GPU is needed.
    """
    from gemmgen.core.cache import default_directory
    from gemmgen.core.errors import EnvironmentMissing
    from gemmgen.dispatch.tuning import read_problems
    from gemmgen.kernels import GPU_KINDS
    from gemmgen.ops.warming import warm

    listed = list(problems)
    if file is not None:
        listed += [f"{request.kind}:{request.text}" for request in read_problems(file, list(GPU_KINDS))]
    if not listed:
        raise click.UsageError("expected problems, or --problems with a file of them: gemmgen warm gemm:512,512,512,nt")
    with progress_bar() as progress:
        task = progress.add_task("compiling", total=len(listed))
        warmed = warm(listed, device=device_name, progress=lambda one: progress.advance(task))
    lost = {one.name for one in warmed if not one.kept}
    if as_json:
        print_json([asdict(one) for one in warmed])
    else:
        rows = [[one.problem, one.spec, one.name, duration(one.seconds)] for one in warmed]
        print_table([Column("problem"), Column("from", folds=True), Column("instance", folds=True), Column("compiled in", "right")], rows)
        click.echo(f"\n{counted(len({one.name for one in warmed} - lost), 'kernel')} ready.")
    if lost:
        need = "need a directory that this user can write, which GEMMGEN_CACHE_DIR may name"
        raise EnvironmentMissing(f"{counted(len(lost), 'kernel')} not kept: the compile cache {default_directory()} is not used; {need}")
