"""``gemmgen bench``: speed of specs on a GPU or a processor, beside the libraries that compute the same, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.compilation import compile_plans
from gemmgen.cli.host import common_target
from gemmgen.cli.options import json_option, parse_size, set_option, specs_or_problem_argument
from gemmgen.cli.output import Column, counted, operation_unit, print_json, print_table, progress_bar, rate, styled
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import PlannedSpec, plan_specs, sized_problem
from gemmgen.core.errors import EnvironmentMissing
from gemmgen.perf.measuring import TimingOptions, time_instances
from gemmgen.runtime.targets import GPUS, PROCESSOR

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.perf.analysis.roofline import Roofline
    from gemmgen.perf.benchmark import BenchmarkReport, Comparison
    from gemmgen.perf.host.benchmark import HostReport
    from gemmgen.perf.measuring import TimedInstance, TimingReport
    from gemmgen.runtime.cuda.driver import GpuDevice


@click.command("bench")
@specs_or_problem_argument
@problem_options(device=True)
@click.option(
    "sizes",
    "--size",
    metavar="M,N,K",
    multiple=True,
    help="Sizes of a problem, in the family's order; else those of --problem. Repeatable.",
)
@click.option(
    "with_peer",
    "--peer/--no-peer",
    default=True,
    show_default=True,
    help="Time the vendor's library in the same run, if torch is there.",
)
@click.option("--l2-resident", is_flag=True, help="Keep the arrays in the L2 instead of rotating among more than fit.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Number of times each contestant is timed, in turns.",
)
@click.option("--threads", type=click.IntRange(1, 1024), help="For specs of processors: number of threads; else all.")
@set_option
@json_option
def command(
    specs: Sequence[str],
    asked: AskedProblems,
    sizes: Sequence[str],
    with_peer: bool,
    l2_resident: bool,
    rounds: int,
    threads: int | None,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Time each SPEC on the GPU: device time of launches from a CUDA graph, in turns with the vendor's library. Specs for processors
    are timed on this one, in turns with NumPy's BLAS, and with torch's if it is there.

    Times within each other's spread are a tie. Every kernel's result is checked before it is timed. Beside a kernel with sizes
    baked in, the same kernel for all sizes takes its turn.
    """
    problems = list(dict.fromkeys(parse_size(size) for size in sizes))
    files = asked.files(specs)
    if not problems and any(file.problem is None for file in files):
        raise click.UsageError("missing option '--size'")
    target = common_target(files)
    if target is PROCESSOR and l2_resident:
        raise click.UsageError("--l2-resident is for GPUs; on a processor the arrays are where the last call left them")
    if target is GPUS and threads is not None:
        raise click.UsageError("--threads is for specs of processors")
    device = _device() if target is GPUS else None
    planned = plan_specs(files, overrides, device.architecture if device else None)
    if problems:
        planned = [each for item in planned for each in _with_general(item)]
    groups = [_groups(planned, problem) for problem in problems] or [_groups(_with_general(item), None) for item in planned]
    planned = list({id(item): item for group in groups for _, members in group for item in members}.values())
    binaries = compile_plans([item.plan for item in planned])
    instances = {id(item): (item.plan, binary) for item, binary in zip(planned, binaries, strict=True)}
    options = TimingOptions(rounds, with_peer, l2_resident, threads)
    runs: list[tuple[_Group, Any]] = []
    with progress_bar() as progress:
        task = progress.add_task("timing", total=sum(map(len, groups)))
        for group in (group for per_problem in groups for group in per_problem):
            problem, members = group
            progress.update(task, description=_problem_text(problem, members[0]))
            runs.append((group, time_instances(target, [instances[id(item)] for item in members], problem, options)))
            progress.advance(task)
    if as_json:
        print_json([_to_json(problem, members, report, device) for (problem, members), report in runs])
    elif device is None:
        _print_processor_reports(runs)
    else:
        _print_reports(runs, device)


def _device() -> GpuDevice:
    """GPU 0. Raises ``EnvironmentMissing`` if there is none, or if its architecture is not known."""
    from gemmgen.runtime.cuda.driver import gpu

    device = gpu()
    if device.architecture is None:
        raise EnvironmentMissing(f"{device} is of an architecture that gemmgen does not know")
    return device


def _with_general(item: PlannedSpec) -> list[PlannedSpec]:
    """The kernel and, if sizes are baked into it, the same kernel for all sizes."""
    from gemmgen.verification.baked_cases import general_plan

    if not item.plan.spec.sizes:
        return [item]
    general = general_plan(item.plan)
    return [item, PlannedSpec(replace(item.file, label=f"{item.file.label}, for all sizes"), general)]


_Group = tuple[dict[str, int], list[PlannedSpec]]


def _groups(planned: Sequence[PlannedSpec], sizes: Sequence[int] | None) -> list[_Group]:
    """The specs that work on the same arrays, and so can be timed together, each with its problem."""
    from gemmgen.verification.baked_cases import general_plan

    groups: dict[Any, _Group] = {}
    for item in planned:
        problem = sized_problem(item, sizes)
        general = general_plan(item.plan) if item.plan.spec.sizes else item.plan
        arrays = [array for array in general.sequence.arrays if array.role != "workspace"]
        layout = tuple((array.name, array.type, array.role, array.shape, array.strides) for array in arrays)
        groups.setdefault((item.plan.spec.kind, layout, *problem.items()), (problem, []))[1].append(item)
    return list(groups.values())


def _problem_text(problem: dict[str, int], item: PlannedSpec) -> str:
    from gemmgen.kernels import family_of

    return ",".join(str(problem[name]) for name in family_of(item.plan.spec).instance_sizes(item.plan))


def _roofline(problem: dict[str, int], item: PlannedSpec, device: GpuDevice) -> Roofline | None:
    """The device's roofs; None if they are not known."""
    from gemmgen.hardware.target import match_device
    from gemmgen.perf.analysis.roofline import roofline
    from gemmgen.perf.cost_model import cost_model_of

    known = match_device(device.name, device.sm_count)
    return roofline(cost_model_of(item.plan.spec.kind).cost(item.plan, problem), known) if known else None


def _fraction(roofs: Roofline | None, timing: TimedInstance) -> float | None:
    return roofs.fraction(timing.us * 1e-6) if roofs else None


def _labels(members: Sequence[PlannedSpec]) -> dict[str, str]:
    return {item.plan.name: item.file.label for item in members}


def _to_json(problem: dict[str, int], members: Sequence[PlannedSpec], report: TimingReport, device: GpuDevice | None) -> dict[str, Any]:
    roofs = _roofline(problem, members[0], device) if device else None
    labels = _labels(members)
    data = report.to_json()
    for timing, plain in zip(report.timings, data["timings"], strict=True):
        plain["spec"] = labels.get(timing.name)
        if device:
            plain["fraction_of_roof"] = _fraction(roofs, timing)
    return data


def _print_reports(runs: Sequence[tuple[_Group, BenchmarkReport]], device: GpuDevice) -> None:
    from gemmgen.perf.cost_model import cost_model_of

    rows: list[list[str | Text]] = []
    notes: dict[str, None] = {}
    for (problem, members), report in runs:
        roofs = _roofline(problem, members[0], device)
        labels = _labels(members)
        cost = cost_model_of(members[0].plan.spec.kind).cost(members[0].plan, problem)
        unit = f"{operation_unit(cost.unit)}/s"
        verdicts = {comparison.name: _verdict(comparison, report) for comparison in reversed(report.comparisons)}
        for timing in report.timings:
            fraction = _fraction(roofs, timing)
            rows.append(
                [
                    _problem_text(problem, members[0]),
                    labels.get(timing.name, timing.name),
                    f"{timing.median_us:.2f}",
                    f"±{timing.spread_us / 2:.2f}",
                    rate(timing.operations_per_second, unit),
                    "" if fraction is None else f"{fraction:.1%}",
                    verdicts.get(timing.name, styled("peer", "dim") if timing.kind == "peer" else ""),
                ]
            )
        notes |= dict.fromkeys(report.notes)
    columns = [
        Column("size"),
        Column("spec", folds=True),
        Column("µs", "right"),
        Column("spread", "right"),
        Column("rate", "right"),
        Column("of roof", "right"),
        Column("peer"),
    ]
    print_table(columns, rows)
    clocks = runs[0][1].clocks
    seen = f"SM clock {clocks.sm_median:.0f} MHz" if clocks.sm_median else "clocks unknown"
    click.echo(f"\n{device}; {seen}; {runs[0][1].inputs}; median of {runs[0][1].rounds} rounds, spread from 10% to 90%.")
    for note in notes:
        click.echo(f"Note: {note}")


def _print_processor_reports(runs: Sequence[tuple[_Group, HostReport]]) -> None:
    rows = []
    for (problem, members), report in runs:
        labels = _labels(members)
        peers = [timing.name for timing in report.timings if timing.kind == "peer"]
        for timing in report.timings:
            beside = ", ".join(f"{report.ratio(timing.name, peer):.2f}x {peer}" for peer in peers) if timing.kind == "candidate" else "peer"
            speed = f"{timing.operations_per_second * 1e-9:.1f}"
            name = labels.get(timing.name, timing.name)
            rows.append([_problem_text(problem, members[0]), name, f"{timing.us:.1f}", speed, f"{timing.of_fma_rate:.0%}", beside])
    columns = [Column("size"), Column("spec", folds=True), Column("µs", "right"), Column("GFLOP/s", "right"), Column("of FMA", "right")]
    print_table([*columns, Column("beside", folds=True)], rows)
    report = runs[0][1]
    chains, bandwidth = report.fma_operations_per_second * 1e-9, report.rates.bytes_per_second * 1e-9
    click.echo(f"\n{report.processor}, {counted(report.threads, 'thread')}, {report.clock}, first quartile of {report.rounds} rounds.")
    click.echo(f"of FMA: part of the {chains:.0f} GFLOP/s of multiply-adds measured in this run; memory is read at {bandwidth:.1f} GB/s.")


def _verdict(comparison: Comparison, report: BenchmarkReport) -> str | Text:
    peers = {timing.name for timing in report.timings if timing.kind == "peer"}
    if comparison.other not in peers:
        return ""
    if comparison.verdict == "tie":
        return styled(f"tie ({comparison.speedup:.2f}x)", "yellow")
    return styled(f"{comparison.speedup:.2f}x", "green" if comparison.verdict == "faster" else "red")
