"""``gemmgen verify``: the evidence that kernels are correct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.check_reports import Check, CheckReports, check_report_options
from gemmgen.cli.compilation import compile_plans
from gemmgen.cli.counters import print_counters
from gemmgen.cli.emulation_progress import LaunchProgress
from gemmgen.cli.host import common_target, runnable_specs, verify_under_sanitizers
from gemmgen.cli.options import architecture_option, json_option, parse_size, set_option, specs_or_problem_argument
from gemmgen.cli.output import Column, count, counted, duration, print_json, print_table, progress_bar, styled
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import PlannedSpec, SpecFile, plan_specs, sized_problem
from gemmgen.core.errors import LaunchError, PlanError, Reason, SpecError
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.text import Text

    from gemmgen.cli.output import LineProgress
    from gemmgen.kernels.family import Case
    from gemmgen.runtime.backends import BackendName
    from gemmgen.verification.field import FieldReport
    from gemmgen.verification.runner import VerificationReport


@click.command("verify")
@specs_or_problem_argument
@problem_options(device=True)
@click.option(
    "backend_name",
    "--backend",
    type=click.Choice(["auto", "emulator", "gpu"]),
    default="auto",
    show_default=True,
    help="Where to run; auto takes the GPU if there is one.",
)
@architecture_option("Architecture to compile for; else the GPU's, or the spec's own on the emulator.")
@set_option
@click.option(
    "--schedules",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="On the emulator: run every launch under N interleavings of warps and blocks, which must give the same bits.",
)
@click.option(
    "--sanitize",
    is_flag=True,
    help="For specs of processors: run the cases under AddressSanitizer and UndefinedBehaviorSanitizer as well.",
)
@click.option(
    "sizes",
    "--size",
    metavar="M,N,K",
    multiple=True,
    help="Run a problem of these sizes as well, in the family's order, as gemmgen bench takes them. Repeatable.",
)
@click.option(
    "--field",
    is_flag=True,
    help="Also run each kernel over a finite field, on the emulator: one run for all data, with the probability that it misses an error.",
)
@click.option("--counters", is_flag=True, help="Also show the cost of one case, by line of the source.")
@check_report_options
@json_option
@click.pass_context
def command(
    context: click.Context,
    specs: Sequence[str],
    asked: AskedProblems,
    backend_name: BackendName,
    architecture: str | None,
    overrides: Sequence[str],
    schedules: int,
    sanitize: bool,
    sizes: Sequence[str],
    field: bool,
    counters: bool,
    as_json: bool,
    reports: CheckReports,
) -> None:
    """Run each SPEC on the edge cases of its kernel family, and compare every element with a reference.

    Exits with 1 if a case fails. Small integers must come out exactly, reals within the error bound of the computation.
    """
    from gemmgen.runtime.targets import GPUS
    from gemmgen.verification.extra_cases import extra_cases
    from gemmgen.verification.runner import verify_binary

    problems = list(dict.fromkeys(map(parse_size, sizes)))
    over_field: dict[str, FieldReport] = {}
    files = asked.files(specs, architecture=architecture)
    target = common_target(files)
    for_gpus = {"--field": field, "--counters": counters, "--schedules": schedules > 1}
    if target is not GPUS and (used := [name for name, given in for_gpus.items() if given]):
        raise click.UsageError(f"{used[0]} is for kernels of GPUs, which the emulator runs")
    if sanitize and target is GPUS:
        raise click.UsageError("--sanitize is for specs of processors; the emulator finds such errors in kernels by itself")
    emulation = LaunchProgress()
    backend = target.backend(backend_name, schedules, emulation)
    if schedules > 1 and backend.name != "emulator":
        raise click.UsageError("--schedules needs the emulator: add --backend emulator")
    planned = runnable_specs(target, plan_specs(files, overrides, architecture or backend.architecture))
    cases = _all_cases(planned, problems)
    binaries = compile_plans([item.plan for item in planned])
    by_label = {}
    with progress_bar() as progress:
        task = progress.add_task("verifying", total=sum(map(len, cases)) + sum(len(extra_cases(item.plan)) for item in planned))
        for item, binary, own_cases in zip(planned, binaries, cases, strict=True):
            label = item.file.label
            progress.update(task, description=label)
            emulation.show = partial(_describe, progress, task, label)
            by_label[item.file.label] = verify_binary(
                item.plan, binary, backend, cases=own_cases, progress=lambda result: progress.advance(task), counters=counters, extra=True
            )
            if field:
                from gemmgen.verification.field import verify_field

                over_field[item.file.label] = verify_field(item.plan)
    if sanitize:
        verify_under_sanitizers(planned)
    _report(context, files, by_label, over_field, reports, as_json)


def _describe(progress: Progress | LineProgress, task: TaskID, label: str, text: str) -> None:
    progress.update(task, description=f"{label}: {text}")


def _all_cases(planned: Sequence[PlannedSpec], sizes: Sequence[tuple[int, ...]]) -> list[list[Case]]:
    """The cases of each spec, and those of problems of the sizes that are asked for.

    Raises ``SpecError`` with all specs that have no cases, or too large ones, before the first is run.
    """
    from gemmgen.verification.baked_cases import cases_of
    from gemmgen.verification.case_arrays import require_memory

    errors, all_cases = [], []
    for item in planned:
        try:
            cases = cases_of(item.plan)
            if not cases:
                need = "a problem small enough for a verification: the sizes that the spec fixes allow only larger ones"
                raise PlanError(f"{item.plan.name} cannot be verified:", [Reason("no_case", "", "none", need)])
            cases += [case for size in sizes for case in _sized(item, size, cases)]
            require_memory(item.plan, cases)
            all_cases.append(cases)
        except (PlanError, LaunchError) as error:
            errors.append(f"{item.file.label}: {error}")
    if errors:
        raise SpecError("\n".join(errors))
    return all_cases


def _sized(item: PlannedSpec, sizes: tuple[int, ...], others: Sequence[Case]) -> list[Case]:
    """A problem of these sizes with each kind of data that the spec's own cases have.

    Raises ``LaunchError`` if the kernel cannot run it.
    """
    from gemmgen.runtime.arrays.binding import bind_dimensions, raise_problems

    problem = sized_problem(item, sizes)
    wrong: list[str] = []
    bind_dimensions(item.plan.sequence, {}, problem, wrong)
    raise_problems(item.plan.sequence, wrong)
    like = {case.data: case for case in reversed(others) if case.data != "nonfinite"}
    name = f"size {','.join(map(str, sizes))}"
    return [replace(case, name=name, dimensions=problem, offsets={}, seed=sum(sizes)) for case in like.values()]


def _report(
    context: click.Context,
    files: Sequence[SpecFile],
    reports: dict[str, VerificationReport],
    over_field: dict[str, FieldReport],
    written: CheckReports,
    as_json: bool,
) -> None:
    paths = {file.label: str(file.path) for file in files}
    written.write(
        [
            Check(label, _case_text(result.case), paths[label], result.failure, result.case.data, result.seconds)
            for label, report in reports.items()
            for result in report.results
        ]
        + [
            Check(
                label,
                "over a finite field",
                paths[label],
                of_field.reason if of_field.outcome == "wrong" else "",
                "field",
                of_field.seconds,
            )
            for label, of_field in over_field.items()
        ]
    )
    if as_json:
        fields = {label: {"field": of_field.to_json()} for label, of_field in over_field.items()}
        print_json([{"spec": label, **report.to_json(), **fields.get(label, {})} for label, report in reports.items()])
    else:
        _print_reports(reports)
        for label, of_field in over_field.items():
            click.echo(printable(f"field: {label}: {of_field.text}"))
    if not all(report.passed for report in reports.values()) or any(of_field.outcome == "wrong" for of_field in over_field.values()):
        context.exit(exit_codes.FAILED)


def _print_reports(reports: dict[str, VerificationReport]) -> None:
    rows: list[list[str | Text]] = []
    for label, report in reports.items():
        failed = len(report.failures)
        verdict = styled("verified", "green") if report.passed else styled("WRONG", "bold red")
        rows.append(
            [
                label,
                verdict,
                f"{len(report.results) - failed}/{len(report.results)}",
                count(report.elements),
                f"{report.worst_ratio:.3g}",
                report.architecture,
                duration(report.seconds),
            ]
        )
    print_table(
        [
            Column("spec", folds=True),
            Column("verdict"),
            Column("cases", "right"),
            Column("elements", "right"),
            Column("error/bound", "right"),
            Column("arch"),
            Column("time", "right"),
        ],
        rows,
    )
    backends = dict.fromkeys(f"{report.backend} ({report.device})" for report in reports.values())
    click.echo(f"\nRan on: {', '.join(backends)}. Every element was compared.")
    click.echo("error/bound: the largest error of an element over the bound proven for it; 0 is exact.")
    for label, report in reports.items():
        if report.failures:
            click.echo(printable(f"\n{label}: {counted(len(report.failures), 'case')} failed"))
            for result in report.failures:
                click.echo(printable(f"  - {_case_text(result.case)}\n    {result.failure}"))
    for label, report in reports.items():
        if report.counters is not None:
            click.echo(printable(f"\n{label}: cost of one case ({_case_text(report.counters.case)}), counted on the emulator\n"))
            print_counters(report.counters.counters)


def _case_text(case: Case) -> str:
    parts = [f"{name}={value}" for name, value in case.dimensions.items()]
    parts += [f"{name}={value:g}" for name, value in case.scalars.items()]
    parts += [f"{name} + {offset} elements" for name, offset in case.offsets.items() if offset]
    return f"{case.name}, {case.data}: {' '.join(parts)}"
