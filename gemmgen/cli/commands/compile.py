"""``gemmgen compile``: from specs to binaries, for several architectures at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.compilation import compile_plans
from gemmgen.cli.host import are_for_processors, print_compiled
from gemmgen.cli.options import ALL_ARCHITECTURES, NAMED_PATH, architectures_option, json_option, set_option, specs_or_problem_argument
from gemmgen.cli.output import Column, count, print_json, print_table
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import PlannedSpec, SpecFile, plan_specs, tell_written, write_output
from gemmgen.core.errors import PlanError, SpecError
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.perf.analysis.residency import Residency
    from gemmgen.toolchain.nvrtc import Binary


@dataclass(frozen=True, slots=True)
class _Compiled:
    planned: PlannedSpec
    binary: Binary
    kernels: list[Residency]


@click.command("compile")
@specs_or_problem_argument
@problem_options(device=True)
@architectures_option("Architecture to compile for, or all that the spec allows; else the spec's own. Repeatable.")
@click.option("--ptx", is_flag=True, help="Output the PTX.")
@click.option("--cubin", is_flag=True, help="Output the cubin.")
@click.option("--sass", is_flag=True, help="Output the disassembled machine code.")
@click.option(
    "directory",
    "-o",
    "--output",
    type=NAMED_PATH,
    metavar="DIR",
    help="Write NAME.ARCH.ptx, .cubin and .sass into DIR: those asked for, else PTX and cubin.",
)
@set_option
@json_option
def command(
    specs: Sequence[str],
    asked: AskedProblems,
    architectures: Sequence[str],
    ptx: bool,
    cubin: bool,
    sass: bool,
    directory: Path | None,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Compile each SPEC with NVRTC, and show the registers, spills, shared memory and occupancy of its kernels.

    With --ptx, --cubin or --sass and without -o, one spec for one architecture goes to standard output instead. No GPU is needed.
    """
    kinds = [kind for kind, wanted in (("ptx", ptx), ("cubin", cubin), ("sass", sass)) if wanted]
    to_stdout = bool(kinds) and directory is None
    if to_stdout:
        _require_plain_output(kinds, as_json)
    only = architectures[0] if len(architectures) == 1 and ALL_ARCHITECTURES not in architectures else None
    files_named = asked.files(specs, architecture=only)
    if are_for_processors(files_named):
        if kinds or directory is not None or architectures:
            raise click.UsageError("specs of processors are compiled for their own architecture; gemmgen export writes their libraries")
        print_compiled(plan_specs(files_named, overrides), as_json)
        return
    planned = _plan_everywhere(files_named, overrides, architectures)
    if to_stdout and len(planned) > 1:
        raise click.UsageError(f"{len(planned)} results do not fit into one output: name one spec and one --arch, or -o DIR")

    from gemmgen.perf.analysis.residency import residencies

    binaries = compile_plans([item.plan for item in planned])
    if to_stdout:
        sys.stdout.flush()
        click.echo(_content(kinds[0], binaries[0]), nl=False)
        return
    compiled = [_Compiled(p, b, residencies(p.plan, b)) for p, b in zip(planned, binaries, strict=True)]
    files = {} if directory is None else _write(compiled, kinds or ["ptx", "cubin"], directory)
    if as_json:
        print_json([_to_json(item, files.get(index, {})) for index, item in enumerate(compiled)])
        return
    _print_table(compiled)
    for outcome in files.values():
        for path, changed in outcome.items():
            tell_written(path, changed)


def _require_plain_output(kinds: Sequence[str], as_json: bool) -> None:
    if as_json:
        raise click.UsageError(f"--json and --{kinds[0]} both want standard output; write the files with -o DIR")
    if len(kinds) > 1:
        raise click.UsageError(f"--{' and --'.join(kinds)} both want standard output; write the files with -o DIR")
    if kinds == ["cubin"] and sys.stdout.isatty():
        raise click.UsageError("a cubin is binary and this is a terminal; send it to a file or a pipe, or use -o DIR")


def _plan_everywhere(files: Sequence[SpecFile], overrides: Sequence[str], architectures: Sequence[str]) -> list[PlannedSpec]:
    """A plan for each spec and architecture; for ``all``, those architectures that the spec can work on."""
    from gemmgen.hardware.target import ARCHITECTURES, architecture

    if ALL_ARCHITECTURES not in architectures:
        names: list[str | None] = list(dict.fromkeys(architectures)) or [None]
        for name in architectures:
            architecture(name)
        by_name = [plan_specs(files, overrides, name) for name in names]
        return [item for items in zip(*by_name, strict=True) for item in items]
    planned = []
    for own in plan_specs(files, overrides):
        for target in ARCHITECTURES.values():
            try:
                planned += plan_specs([own.file], overrides, target)
            except (PlanError, SpecError) as error:
                if target.compute_capability >= own.plan.architecture.compute_capability:
                    click.echo(printable(f"left out: {error}"), err=True)
    return planned


def _content(kind: str, binary: Binary) -> str | bytes:
    if kind == "sass":
        from gemmgen.toolchain.sass import disassemble

        return disassemble(binary.cubin)
    return binary.ptx if kind == "ptx" else binary.cubin


def _write(compiled: Sequence[_Compiled], kinds: Sequence[str], directory: Path) -> dict[int, dict[Path, bool]]:
    """The files of each result and whether they changed; all contents are made before the first is written."""
    contents = {
        index: {directory / f"{item.planned.plan.name}.{item.binary.architecture}.{kind}": _content(kind, item.binary) for kind in kinds}
        for index, item in enumerate(compiled)
    }
    return {index: {path: write_output(path, content) for path, content in files.items()} for index, files in contents.items()}


def _to_json(item: _Compiled, files: dict[Path, bool]) -> dict[str, Any]:
    return {
        "spec": item.planned.file.label,
        "name": item.planned.plan.name,
        "architecture": item.binary.architecture,
        "nvrtc_version": list(item.binary.nvrtc_version),
        "options": list(item.binary.options),
        "warnings": item.binary.log,
        "kernels": [kernel.to_json() for kernel in item.kernels],
        "files": [{"file": str(path), "changed": changed} for path, changed in files.items()],
    }


def _print_table(compiled: Sequence[_Compiled]) -> None:
    columns: list[tuple[Column, Callable[[_Compiled, Residency], str]]] = [
        (Column("spec", folds=True), lambda item, kernel: item.planned.file.label),
        (Column("arch"), lambda item, kernel: item.binary.architecture),
        (Column("regs", "right"), lambda item, kernel: str(kernel.resources.registers)),
        (Column("spill B", "right"), lambda item, kernel: count(kernel.resources.spill_stores + kernel.resources.spill_loads)),
        (Column("shared B", "right"), lambda item, kernel: count(kernel.shared_bytes)),
        (Column("blocks/SM", "right"), lambda item, kernel: str(kernel.occupancy.blocks_per_sm)),
        (Column("limited by"), lambda item, kernel: ", ".join(kernel.occupancy.limited_by)),
    ]
    if any(len(item.kernels) > 1 for item in compiled):
        columns.insert(1, (Column("kernel", folds=True), lambda item, kernel: kernel.entry))
    rows = [[text(item, kernel) for _, text in columns] for item in compiled for kernel in item.kernels]
    print_table([column for column, _ in columns], rows)
    for item in compiled:
        if item.binary.log:
            click.echo(item.binary.log, err=True)
