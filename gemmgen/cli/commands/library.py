"""``gemmgen library``: the pregenerated library, from its list to the certificate of each instance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from gemmgen.cli import exit_codes
from gemmgen.cli.check_reports import Check, CheckReports, check_report_options
from gemmgen.cli.help_text import Group
from gemmgen.cli.options import NAMED_PATH, Number, complete_architecture, json_option
from gemmgen.cli.output import counted, print_json, progress_bar
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.library.folder import LibraryFolder
    from gemmgen.library.listing import Listing


def _complete_instance(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of instances and of their specs."""
    from gemmgen.core.errors import GemmgenError
    from gemmgen.kernels.manifest import read_manifest
    from gemmgen.library.folder import shipped_folder

    try:
        entries = read_manifest(shipped_folder().path)["instances"]
    except GemmgenError:
        return []
    names = [name for entry in entries for name in (entry["spec_name"], entry["name"])]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


_list_option = click.option(
    "list_file",
    "--list",
    type=NAMED_PATH,
    metavar="FILE",
    help="List of instances to use instead of specs/library.yaml, with its specs beside it.",
)
_folder_option = click.option(
    "folder",
    "--library",
    type=NAMED_PATH,
    metavar="DIR",
    help="Folder of a library to use instead of gemmgen's own.",
)
_jobs_option = click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Work on N instances at a time; else one for each CPU.",
)
_names_argument = click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_complete_instance)


@click.group("library", cls=Group)
def command() -> None:
    """The library of ready kernels: sources, certificates and manifest in generated/, from the list in specs/library.yaml."""


@command.command("build")
@_names_argument
@click.option(
    "-o",
    "--output",
    type=NAMED_PATH,
    metavar="DIR",
    help="Write into DIR instead of generated/; if it has no evidence, that of generated/ is copied.",
)
@_list_option
@_jobs_option
def build_command(names: Sequence[str], output: Path | None, list_file: Path | None, jobs: int | None) -> None:
    """Bring the library up to date: all of it, or the instances whose spec or name begins with a NAME.

    Only changed kernels are compiled, verified on the emulator and written. Kernels that are no longer listed are removed, unless NAMEs are
    given. An interrupted build continues where it stopped. Exits with 1 if an instance is wrong."""
    from gemmgen.library.building import build
    from gemmgen.library.folder import choose, shipped_folder, writable_folder

    folder = _folder(output) if output is not None else writable_folder()
    listing = _listing(list_file)
    only = choose(names, ((instance.name, instance.label) for instance in listing.instances)) if names else None
    with _progress() as progress:
        report = build(listing, folder, only=only, seed=shipped_folder(), jobs=jobs, progress=progress)
    for verb, files in (("written", report.written), ("removed", report.removed)):
        for name, number in sorted(Counter(file.partition(".")[0] for file in files).items()):
            click.echo(printable(f"{verb}    {name} ({counted(number, 'file')})"))
    click.echo(
        f"{counted(len(only) if only is not None else len(listing.instances), 'instance')}: {report.compiled} compiled, "
        f"{report.carried} carried over, {report.verified} verified, {report.over_field} run over a finite field, {report.failed} failed; "
        f"{len(report.written)} files written, {len(report.removed)} removed, {report.unchanged} unchanged",
        err=True,
    )


@command.command("check")
@_folder_option
@_list_option
@click.option(
    "--sample",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    metavar="N",
    help="Compile and verify N instances again, chosen by the sources alone.",
)
@click.option("everything", "--all", is_flag=True, help="Compile and verify all of them again.")
@click.option("--allow-uncompiled", is_flag=True, help="Pass if the compiler that the list names is missing, without compiling.")
@_jobs_option
@check_report_options
@json_option
@click.pass_context
def check_command(
    context: click.Context,
    folder: Path | None,
    list_file: Path | None,
    sample: int,
    everything: bool,
    allow_uncompiled: bool,
    jobs: int | None,
    as_json: bool,
    reports: CheckReports,
) -> None:
    """Check that sources, certificates and manifest equal the output of a build. Exits with 1 if one differs, or if the compiler
    is missing.
    """
    from dataclasses import asdict

    from gemmgen.library.checking import check

    library, listing = _find(folder), _listing(list_file)
    with _progress() as progress:
        report = check(
            listing, library, sample=None if everything else sample, allow_uncompiled=allow_uncompiled, jobs=jobs, progress=progress
        )
    names = [*library.own_files(), *(problem.file for problem in report.problems)]
    why = {problem.file: problem for problem in reversed(report.problems)}
    reports.write(
        [
            Check("library", name, str(library.path / name), why[name].why if name in why else "", why[name].state if name in why else "")
            for name in sorted(dict.fromkeys(names))
        ]
    )
    if as_json:
        print_json({**asdict(report), "passed": report.passed})
    else:
        for alike in report.by_cause():
            first = alike[0]
            text = f"{first.file}: {first.why}" if len(alike) == 1 else f"{len(alike)} files: {first.cause}; {first.file}: {first.why}"
            click.echo(f"{click.style(f'{first.state:<10}', fg='red')}  {printable(text)}")
        for note in report.notes:
            click.echo(printable(f"Note: {note}"), err=True)
        again = f"{report.compiled} compiled again, {report.verified} verified again"
        compared = f"{counted(report.files, 'file')} of {counted(len(listing.instances), 'instance')} in {library.path} compared"
        click.echo(printable(f"{compared}, {again}"), err=True)
    if not report.passed:
        where = (f" --output {folder}" if folder is not None else "") + (f" --list {list_file}" if list_file is not None else "")
        fixable = all(problem.state != "unchecked" for problem in report.problems)
        remedy = f"; to fix this, run: gemmgen library build{where}" if fixable else ""
        click.echo(f"{counted(len(report.problems), 'problem')}{remedy}", err=True)
        context.exit(exit_codes.FAILED)


@command.command("list")
@_folder_option
@click.option("--kind", metavar="KIND", help="Only the instances of one kernel family.")
@json_option
def list_command(folder: Path | None, kind: str | None, as_json: bool) -> None:
    """Show the instances, where they were verified, and how fast they are beside their peers."""
    from gemmgen.cli.library_output import print_list
    from gemmgen.kernels.manifest import read_manifest

    library = _find(folder)
    manifest = read_manifest(library.path)
    kinds = sorted({entry["kind"] for entry in manifest["instances"]})
    if kind is not None and kind not in kinds:
        raise click.UsageError(f"--kind {kind!r}: the library has {', '.join(kinds) or 'no instances'}")
    entries = [entry for entry in manifest["instances"] if kind in (None, entry["kind"])]
    if as_json:
        print_json(entries)
    else:
        print_list(entries, library)


@command.command("show")
@click.argument("name", shell_complete=_complete_instance)
@click.option("architecture", "--arch", metavar="ARCH", shell_complete=complete_architecture, help="Only for one architecture.")
@_folder_option
@json_option
def show_command(name: str, architecture: str | None, folder: Path | None, as_json: bool) -> None:
    """Show the certificates of one instance: its name, the beginning of it, or the name of its spec."""
    from gemmgen.cli.library_output import print_certificates, print_obstacles
    from gemmgen.core.errors import GemmgenError
    from gemmgen.kernels.manifest import read_manifest
    from gemmgen.library.evidence import read_evidence
    from gemmgen.library.folder import choose

    library = _find(folder)
    entries = {entry["name"]: entry for entry in read_manifest(library.path)["instances"]}
    (chosen,) = choose([name], ((key, entry["spec_name"]) for key, entry in entries.items()))
    names = entries[chosen]["architectures"]
    if architecture is not None and architecture not in names:
        raise click.UsageError(f"--arch {architecture!r}: {chosen} has certificates for {', '.join(names)}")
    known = library.certificates(entries[chosen])
    if len(known) < len(names):
        file = library.path / entries[chosen]["certificate"]
        raise GemmgenError(f"{file} is missing or damaged; make it anew with: gemmgen library build")
    certificates = [certificate for name, certificate in known.items() if architecture in (None, name)]
    if as_json:
        print_json(certificates)
    else:
        print_certificates(entries[chosen], certificates)
        proofs = read_evidence(library.evidence).proofs.values()
        print_obstacles([record for record in proofs if record["instance"] == chosen])


@command.command("measure")
@_names_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="Where to write the evidence; put into generated/evidence/, the next build certifies it.",
)
@click.option("bench", "--bench/--no-bench", default=True, show_default=True, help="Time the instances beside their peers.")
@click.option("sanitized", "--sanitize", is_flag=True, help="Let compute-sanitizer look for bad accesses and races as well.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=15,
    show_default=True,
    help="Number of times each contestant is timed, in turns.",
)
@_list_option
@_jobs_option
@click.pass_context
def measure_command(
    context: click.Context,
    names: Sequence[str],
    output: Path,
    bench: bool,
    sanitized: bool,
    rounds: int,
    list_file: Path | None,
    jobs: int | None,
) -> None:
    """Run the library on this machine's GPU: verify every instance, time it, and write the evidence.

    One that fails does not stop the others. Exits with 1 if one did; the results of the others are written all the same, after an
    interrupt too.
    """
    from gemmgen.library import measuring
    from gemmgen.library.folder import choose, write_file
    from gemmgen.library.sanitizing import find_sanitizer

    listing = _listing(list_file)
    only = choose(names, ((instance.name, instance.label) for instance in listing.instances)) if names else None
    if sanitized:
        find_sanitizer()
    with _progress() as progress:
        measurement = measuring.start(listing, only=only, jobs=jobs, progress=progress)
        try:
            measuring.verify_all(listing, measurement, jobs=jobs, progress=progress)
            if sanitized:
                measuring.sanitize_all(listing, measurement, jobs=jobs, progress=progress)
            if bench:
                measuring.time_all(listing, measurement, rounds=rounds, progress=progress)
        finally:
            write_file(output, measurement.text())
    for failure in measurement.failures:
        click.echo(f"{click.style('failed', fg='red')}  {printable(failure)}")
    counts = [
        f"{sum(field in record for record in measurement.records.values())} {done}"
        for field, done in (("verification", "verified"), ("sanitizer", "watched by the sanitizer"), ("benchmarks", "timed"))
    ]
    click.echo(f"{counted(len(measurement.records), 'instance')} on {measurement.run['device']}: {', '.join(counts)}; {output}", err=True)
    if measurement.failures:
        context.exit(exit_codes.FAILED)


@command.command("prove")
@_names_argument
@click.option("--seconds", type=Number(1, 3600), default=60.0, show_default=True, metavar="S", help="Time for each kernel.")
@click.option("--within", type=Number(1), metavar="S", help="Do not start another instance after S seconds.")
@click.option("--again", is_flag=True, help="Also repeat proofs that were tried before.")
@click.option(
    "--check", "checks", is_flag=True, help="Repeat recorded proofs and write nothing; exit with 1 if a property is no longer proved."
)
@click.option("--sample", type=click.IntRange(1), metavar="N", help="With --check: N instances, chosen by the programs alone; else all.")
@_folder_option
@_list_option
@_jobs_option
@click.pass_context
def prove_command(
    context: click.Context,
    names: Sequence[str],
    seconds: float,
    within: float | None,
    again: bool,
    checks: bool,
    sample: int | None,
    folder: Path | None,
    list_file: Path | None,
    jobs: int | None,
) -> None:
    """Prove properties of the library's kernels for all problems, and keep the proofs as evidence, which the next build certifies.

    Writes evidence/proofs.json after each instance; an interrupted run continues where it stopped. A proof holds for one program and its
    launch: where either changes, the certificate no longer shows it. With --check, repeats proofs instead.
    """
    from gemmgen.library.folder import choose, writable_folder
    from gemmgen.library.proving import check_proofs, prove_library
    from gemmgen.library.workers import cpus

    if sample is not None and not checks:
        raise click.UsageError("--sample is for --check")
    if checks and again:
        raise click.UsageError("--check repeats proofs anyway: --again is not for it")
    if checks:
        library, listing = _find(folder), _listing(list_file)
        only = choose(names, ((instance.name, instance.label) for instance in listing.instances)) if names else None
        with _progress() as progress:
            checked = check_proofs(
                listing, library, only=only, sample=sample, seconds=seconds, within=within, jobs=jobs or cpus(), progress=progress
            )
        for lost in checked.lost:
            click.echo(f"no longer proved: {lost}")
        click.echo(
            f"{counted(checked.repeated, 'proof')} repeated, {checked.stale} of other programs, {checked.longer} would take longer, "
            f"{checked.left} left; properties lost: {len(checked.lost)}",
            err=True,
        )
        if checked.lost:
            context.exit(exit_codes.FAILED)
        return
    records = _folder(folder) if folder is not None else writable_folder()
    listing = _listing(list_file)
    only = choose(names, ((instance.name, instance.label) for instance in listing.instances)) if names else None
    with _progress() as progress:
        report = prove_library(
            listing, records, only=only, seconds=seconds, within=within, again=again, jobs=jobs or cpus(), progress=progress
        )
    counts = ", ".join(f"{name} {number}" for name, number in report.properties.items()) or "nothing proved"
    click.echo(f"{counted(report.tried, 'instance')} tried in {report.seconds:.0f} s, {report.known} known before; {counts}", err=True)
    for told in report.contradicted:
        click.echo(told)
    if report.contradicted:
        context.exit(exit_codes.BUG)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage, on standard error."""
    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)

        yield progress


def _listing(file: Path | None) -> Listing:
    from gemmgen.library.listing import read_listing

    return read_listing(file)


def _folder(path: Path) -> LibraryFolder:
    from gemmgen.library.folder import LibraryFolder

    if path.exists() and not path.is_dir():
        raise click.UsageError(f"{path} is a file; name a folder")
    return LibraryFolder(path)


def _find(path: Path | None) -> LibraryFolder:
    """The folder of a library that should exist."""
    from gemmgen.library.folder import shipped_folder

    return shipped_folder() if path is None else _folder(path)
