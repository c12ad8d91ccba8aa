"""``gemmgen analyze``: resources, machine code, traffic and roofs of compiled kernels, without a GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gemmgen.cli.host import are_for_processors, print_analysis
from gemmgen.cli.options import architecture_option, complete_device, json_option, parse_size, set_option, specs_or_problem_argument
from gemmgen.cli.output import print_json, print_table, progress_bar
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import plan_specs

if TYPE_CHECKING:
    from gemmgen.cli.selection import PlannedSpec
    from gemmgen.hardware.target import Architecture, Device
    from gemmgen.perf.analysis.report import Analysis
    from gemmgen.toolchain.nvrtc import Binary

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"\s*(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*(?P<unit>[a-zµμ]*)\s*", re.IGNORECASE)


def parse_time(text: str) -> float:
    """The seconds of ``123us``, ``1.2ms`` or ``0.001s``. Raises ``UsageError``."""
    match = _TIME.fullmatch(text)
    seconds = float(match["number"]) * _UNITS.get(match["unit"].lower(), math.nan) if match else math.nan
    if not (0 < seconds < math.inf):
        raise click.UsageError(f"--time {text!r}: expected a time above 0 with its unit (ns, us, ms, s), for example 123us or 1.2ms")
    return seconds


@click.command("analyze")
@specs_or_problem_argument
@problem_options()
@architecture_option("Architecture to compile for; else the device's.")
@click.option(
    "device_name",
    "--device",
    shell_complete=complete_device,
    help="GPU whose roofs to compare with; else the H200, or one of --arch.",
)
@click.option("--size", metavar="M,N,K", help="Sizes of the problem, in the family's order; else a typical one.")
@click.option(
    "time_text", "--time", metavar="TIME", help="A measured time for this size, such as 123us or 1.2ms; adds the utilisation of each unit."
)
@click.option("traffic", "--traffic/--no-traffic", default=True, help="Count wavefronts and sectors of one case on the emulator.")
@click.option(
    "with_listing", "--listing", is_flag=True, help="Also list the main loop: control code, live registers, banks, line of the source."
)
@set_option
@json_option
def command(
    specs: Sequence[str],
    asked: AskedProblems,
    architecture: str | None,
    device_name: str | None,
    size: str | None,
    time_text: str | None,
    traffic: bool,
    with_listing: bool,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Analyse the compiled form of each SPEC: occupancy, machine code, register banks, memory traffic, and its place under the roofs.

    One SPEC is shown in full; several are compared in a table. Machine code needs nvdisasm (see gemmgen doctor). For specs of
    processors, it needs objdump, and the roofs are measured.
    """
    from gemmgen.cli.compilation import compile_plans
    from gemmgen.hardware.target import architecture as find_architecture
    from gemmgen.perf.analysis.report import analyse

    seconds = parse_time(time_text) if time_text is not None else None
    sizes = parse_size(size) if size is not None else None
    files = asked.files(specs, device_name, architecture)
    if are_for_processors(files):
        if architecture or device_name:
            raise click.UsageError("--arch and --device are for GPUs; specs of processors are held against this one")
        print_analysis(plan_specs(files, overrides), sizes, seconds, as_json)
        return
    wanted = find_architecture(architecture) if architecture else None
    device = _device(device_name, wanted)
    if seconds is not None and len(files) != 1:
        raise click.UsageError(f"--time is that of one spec, and {len(files)} are named")
    planned = plan_specs(files, overrides, wanted or device.architecture)
    for item in planned:
        _require_sizes(item, sizes)
    binaries = compile_plans([item.plan for item in planned])
    analyses: dict[str, Analysis] = {}
    with progress_bar() as progress:
        task = progress.add_task("analysing", total=len(planned))
        for item, binary in zip(planned, binaries, strict=True):
            progress.update(task, description=item.file.label)
            label = item.file.label
            analyses[label] = analyse(item.plan, binary, device, sizes or item.problem, seconds=seconds, traffic=traffic)
            progress.advance(task)
    if as_json:
        print_json([{"spec": label, **analysis.to_json()} for label, analysis in analyses.items()])
    elif len(analyses) == 1:
        (analysis,) = analyses.values()
        general = _general(planned[0], analysis) if planned[0].plan.spec.sizes else None
        _print_one(analysis, general)
        if with_listing:
            _print_listing(binaries[0])
    else:
        _print_comparison(analyses, device)


def _device(name: str | None, architecture: Architecture | None) -> Device:
    """The device that is named; else the default one, or the first that can run code compiled for ``architecture``."""
    from gemmgen.dispatch.prediction import device_for
    from gemmgen.hardware.target import device

    if name is not None:
        return device(name)
    return device_for(architecture)


def _require_sizes(item: PlannedSpec, sizes: tuple[int, ...] | None) -> None:
    from gemmgen.kernels import family_of

    names = family_of(item.plan.spec).instance_sizes(item.plan)
    if sizes is not None and len(sizes) != len(names):
        given = ",".join(map(str, sizes))
        raise click.UsageError(f"--size {given}: {item.file.label} needs {len(names)} numbers: {','.join(names)}")


def _general(item: PlannedSpec, analysis: Analysis) -> Analysis:
    """The analysis of the same kernel for all sizes."""
    from gemmgen.cli.compilation import compile_plans
    from gemmgen.perf.analysis.report import analyse
    from gemmgen.verification.baked_cases import general_plan

    general = general_plan(item.plan)
    (binary,) = compile_plans([general])
    return analyse(general, binary, analysis.device, analysis.problem, traffic=False)


def _print_one(analysis: Analysis, general: Analysis | None) -> None:
    from gemmgen.cli.analysis import saved_section, sections_of
    from gemmgen.cli.counters import print_counters
    from gemmgen.cli.sections import print_sections

    saved = [] if general is None else [saved_section(analysis, general)]
    print_sections(analysis.plan.name, [*saved, *sections_of(analysis)])
    click.echo()
    if analysis.traffic is None:
        click.echo(f"Memory traffic was not counted: {analysis.traffic_missing}.")
        return
    case = analysis.traffic.case
    dimensions = " ".join(f"{name}={value}" for name, value in case.dimensions.items())
    click.echo(f"Memory traffic of one case ({case.name}: {dimensions}), counted on the emulator\n")
    print_counters(analysis.traffic.counters)


def _print_listing(binary: Binary) -> None:
    """The main loop, an instruction a line."""
    from gemmgen.perf.analysis.listing import listing

    click.echo(
        "\nMain loop: waits:read:write:yield:stall (barriers, cycles); live registers; banks of operands (E even, O odd, r reused); line\n"
    )
    for one in listing(binary):
        if one.in_main_loop:
            control = str(one.annotation.control) if one.annotation else ""
            live = str(one.annotation.live_registers or "") if one.annotation else ""
            banks = "".join("r" if read.reused else "EO"[read.bank] for read in one.reads)
            mark = "!" if one.bank_conflict else " "
            line = one.instruction.source_line or ""
            click.echo(f"{one.instruction.address:04x}  {control:<16} {live:>3}  {banks:<3}{mark} {one.text:<58} {line}".rstrip())


def _print_comparison(analyses: dict[str, Analysis], device: Device) -> None:
    from gemmgen.cli.analysis import COLUMN_NOTES, comparison_rows
    from gemmgen.perf.analysis.report import NOT_COUNTED

    columns, rows = comparison_rows(analyses)
    print_table(columns, rows)
    missing = dict.fromkeys(analysis.code_missing for analysis in analyses.values() if analysis.code_missing)
    architectures = ", ".join(dict.fromkeys(analysis.architecture for analysis in analyses.values()))
    click.echo(f"\nCompiled for {architectures}; filled: typical or given sizes on the {device.name}.")
    for text in missing:
        click.echo(f"Machine code was not looked at: {text}")
    for label, analysis in analyses.items():
        if analysis.traffic is None and analysis.traffic_missing != NOT_COUNTED:
            click.echo(f"{label}: memory traffic was not counted: {analysis.traffic_missing}")
    click.echo("\n".join(COLUMN_NOTES))
