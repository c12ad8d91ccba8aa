"""``gemmgen run``: a whole CUDA program, host code included, without a GPU."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.counters import print_counters
from gemmgen.cli.options import complete_architecture, json_option, usable_processors
from gemmgen.cli.output import print_json
from gemmgen.cli.selection import write_output
from gemmgen.core.errors import GemmgenError
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.sanitizer.programs.session import Report

_SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")
_PYTHON = ".py"


@click.command("run", context_settings={"ignore_unknown_options": False})
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="PROGRAM|FILE.cu...|FILE.py [-- ARGS...]")
@click.option(
    "architecture",
    "--arch",
    default="sm_80",
    show_default=True,
    metavar="ARCH",
    shell_complete=complete_architecture,
    help="Architecture that the program sees.",
)
@click.option(
    "includes", "--include", "-I", multiple=True, type=click.Path(exists=True, file_okay=False), help="Folder of headers. Repeatable."
)
@click.option("definitions", "--define", "-D", metavar="NAME[=VALUE]", multiple=True, help="Define a macro. Repeatable.")
@click.option("compiler_options", "--option", metavar="OPTION", multiple=True, help="An option for nvcc: --option=-lm. Repeatable.")
@click.option("--build", metavar="COMMAND", help="Build the program first, with a wrapper of nvcc: --build make.")
@click.option("--sandbox", is_flag=True, help="Restrict the program and --build to files of the current folder, without network access.")
@click.option("--seconds", type=click.IntRange(1, 86400), default=600, show_default=True, help="Limit for the program.")
@click.option("--repeats", type=click.IntRange(0), default=0, metavar="N", help="Run at most N equal launches in a row.")
@click.option(
    "--multiprocessors",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="Multiprocessors that the program sees.",
)
@click.option("--memory", type=click.IntRange(1, 64), default=8, show_default=True, metavar="GIB", help="Device memory.")
@click.option(
    "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Threads that share the blocks of a launch. Default: one a processor."
)
@click.option("--strict", is_flag=True, help="Warnings and notes are errors.")
@click.option("--no-hazards", is_flag=True, help="Do not look for races and uninitialised reads; faster.")
@click.option("want_counters", "--counters", is_flag=True, help="Show memory traffic and instructions of each kernel, by line.")
@click.option("sarif_file", "--sarif", type=click.Path(dir_okay=False, path_type=Path), help="Write the findings as SARIF.")
@click.option("annotate", "--annotations", "--github", is_flag=True, help="Print the findings as annotations of GitHub's workflows too.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    files: Sequence[Path],
    architecture: str,
    includes: Sequence[str],
    definitions: Sequence[str],
    compiler_options: Sequence[str],
    build: str | None,
    sandbox: bool,
    seconds: int,
    repeats: int,
    multiprocessors: int,
    memory: int,
    jobs: int | None,
    strict: bool,
    no_hazards: bool,
    want_counters: bool,
    sarif_file: Path | None,
    annotate: bool,
    as_json: bool,
) -> None:
    """Run a CUDA program, unchanged, on the emulator.

    PROGRAM is CUDA sources, which nvcc and the host compiler build; or a program that is linked to the shared CUDA runtime and holds
    readable PTX; or a Python program whose packages hand PTX to the driver (cuda.bindings, cuda.core, numba). Its arguments follow
    after --. The report lists kernels, findings with their lines in CUDA and host code, memory, and unsupported calls.

    Exits with 1 if there is a finding that is an error, 2 if the program could not be run, a kernel was refused, or the program
    failed after an unsupported call, else with the program's own status.

    \b
    gemmgen run vectorAdd.cu -- 1000
    gemmgen run --build make ./reduction -- 4096
    gemmgen run vector_add.py
    """
    from gemmgen.sanitizer.programs.building import build_environment, build_program, make_toolkit, run_build
    from gemmgen.sanitizer.programs.running import fence_here, run_program
    from gemmgen.sanitizer.programs.session import RunSettings

    matched = re.fullmatch(r"sm_((\d+)[af]?)", architecture)
    if matched is None:
        raise click.UsageError(f"--arch {architecture}: expected a name like sm_80")
    shared = (sandbox, memory << 30, want_counters, jobs or usable_processors())
    settings = RunSettings(int(matched[2]), not no_hazards, strict, multiprocessors, repeats, seconds, *shared)
    sources, program, arguments = _split(files)
    with tempfile.TemporaryDirectory(prefix="gemmgen-run-") as name:
        folder = Path(name)
        libraries = folder / "lib"
        libraries.mkdir()
        toolkit = make_toolkit(libraries, matched[1])
        if build is not None:
            environment, prepare = build_environment(toolkit, folder), None
            if sandbox:
                scratch = folder / "scratch"
                scratch.mkdir()
                environment["TMPDIR"], prepare = str(scratch), fence_here([str(scratch)])
            run_build(build, environment, prepare)
        if sources and sources[0].suffix == _PYTHON:
            program, arguments = Path(sys.executable), [str(sources[0].resolve()), *arguments]
        elif sources:
            program = folder / sources[0].stem
            build_program(toolkit, sources, program, includes, definitions, compiler_options)
        assert program is not None
        if not os.access(program, os.X_OK) or program.is_dir():
            raise GemmgenError(f"{program} is no program{'' if build else '; --build COMMAND builds one, or give its .cu files'}")
        command_line = [str(program) if sources else _found(program), *arguments]
        report = run_program(
            command_line, libraries, settings, [toolkit.nvcc.include, os.path.realpath(toolkit.nvcc.include), name], quiet=as_json
        )
    shown = " ".join(str(source) for source in sources) or str(program)
    _write_reports(report, sarif_file, annotate)
    if as_json:
        print_json(_to_json(report))
    else:
        _print(shown, report)
    context.exit(_status(report))


def _split(files: Sequence[Path]) -> tuple[list[Path], Path | None, list[str]]:
    """Sources, or a program, and arguments."""
    if not files:
        raise click.UsageError("Missing argument 'PROGRAM|FILE.cu...|FILE.py'.")
    sources: list[Path] = []
    for file in files:
        if file.suffix not in _SOURCES and not (file.suffix == _PYTHON and not sources):
            break
        if not file.is_file():
            raise click.BadParameter(f"File {str(file)!r} does not exist.")
        sources.append(file)
        if file.suffix == _PYTHON:
            break
    rest = [str(file) for file in files[len(sources) :]]
    return (sources, None, rest) if sources else ([], files[0], rest[1:])


def _found(program: Path) -> str:
    return str(program.resolve()) if program.exists() else shutil.which(str(program)) or str(program)


def _status(report: Report) -> int:
    if any(finding.severity == "error" for finding in report.findings):
        return exit_codes.FAILED
    if report.status is None or _is_incomplete(report):
        return exit_codes.USAGE
    return report.status if report.status >= 0 else 128 - report.status


def _is_incomplete(report: Report) -> bool:
    """True if the program did not run as it would on a GPU: a kernel was refused, or it failed and had made a call that is not there."""
    return bool(report.refused or report.ended_early or (report.unsupported and report.status))


def _write_reports(report: Report, sarif_file: Path | None, annotate: bool) -> None:
    from gemmgen.sanitizer import reports

    if sarif_file is not None:
        write_output(sarif_file, reports.sarif(report.findings))
    if annotate:
        for line in reports.workflow_commands(report.findings):
            click.echo(line)


def _print(shown: str, report: Report) -> None:
    errors = sum(finding.severity == "error" for finding in report.findings)
    ended = (
        f"exit status {report.status}" if report.status is not None and report.status >= 0 else f"ended by signal {-(report.status or 0)}"
    )
    incomplete = _is_incomplete(report) or (report.status or 0) < 0
    verdict = "not clean" if errors else "not run to its end" if incomplete else "no findings" if report.status else "clean"
    click.echo(f"\n{verdict}  {shown}: {ended}, {report.seconds:.1f} s", err=True)
    for name, totals in sorted(report.kernels.items(), key=lambda item: -item[1].seconds):
        launches = f"{totals.launches} launch{'es' if totals.launches != 1 else ''}"
        skipped = f", {totals.skipped} of them skipped" if totals.skipped else ""
        click.echo(
            f"  {printable(name, 100)}: {launches}{skipped}, {totals.instructions:,} instructions of threads, {totals.seconds:.2f} s",
            err=True,
        )
    click.echo(
        f"  {report.allocations} allocations, at most {report.most_bytes:,} bytes at a time; {report.copied_bytes:,} bytes copied", err=True
    )
    with redirect_stdout(sys.stderr):
        for name, totals in report.kernels.items():
            if totals.counters is not None:
                executed = totals.launches - totals.skipped
                click.echo(f"\ncounters of {printable(name, 100)}, {executed} launch{'es' if executed != 1 else ''}:")
                print_counters(totals.counters)
    if report.timed:
        click.echo("  times of events are the emulator's: they say nothing about a GPU", err=True)
    if any(totals.skipped for totals in report.kernels.values()):
        click.echo("  skipped launches repeat an earlier one on the same memory, or are beyond --repeats", err=True)
    for call, where in report.unsupported.items():
        click.echo(f"  not supported: {printable(call, 200)} (first at {where})", err=True)
    for kernel, reason in report.refused.items():
        click.echo(f"  refused: {printable(kernel, 200)}: {reason}", err=True)
    if report.ended_early:
        click.echo(f"  {report.ended_early}", err=True)
    for finding in report.findings:
        click.echo(f"\n{finding.text}", err=True)


def _to_json(report: Report) -> dict[str, Any]:
    from gemmgen.sanitizer.findings import findings_report

    return {
        "status": report.status,
        "seconds": round(report.seconds, 3),
        "kernels": [
            {
                "name": name,
                "launches": t.launches,
                "skipped": t.skipped,
                "instructions": t.instructions,
                "seconds": round(t.seconds, 3),
                **({"counters": t.counters.to_json()} if t.counters is not None else {}),
            }
            for name, t in report.kernels.items()
        ],
        **findings_report(report.findings),
        "unsupported": [{"call": call, "place": place} for call, place in report.unsupported.items()],
        "refused": [{"kernel": kernel, "reason": reason} for kernel, reason in report.refused.items()],
        "allocations": report.allocations,
        "most_bytes": report.most_bytes,
        "copied_bytes": report.copied_bytes,
        "ended_early": report.ended_early,
    }
