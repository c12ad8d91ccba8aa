"""``gemmgen draw``: pictures of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from gemmgen.cli.options import architecture_option, complete_spec, json_option, named_specs, set_option
from gemmgen.cli.output import Column, counted, print_json, print_table
from gemmgen.cli.pictures import write_picture
from gemmgen.cli.problem import AskedProblems, problem_options
from gemmgen.cli.selection import find_specs, plan_specs, tell_written
from gemmgen.core.errors import EnvironmentMissing, GemmgenError, SpecError

if TYPE_CHECKING:
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.kernels.pictures import Picture
    from gemmgen.toolchain.nvrtc import KernelResources

ALL = "all"
REGISTERS, CODE = "registers", "code"
"""Pictures of the machine code; the others are of the plan."""
COMPILED = ("waves", "occupancy")
"""Pictures of the plan that show registers and shared memory of the compiled kernels."""


def _complete_picture(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the pictures that there are of the spec."""
    from gemmgen.dispatch.prediction import device_for
    from gemmgen.present.launch_pictures import all_pictures

    try:
        (planned,) = plan_specs(find_specs(named_specs(context)[:1]))
        names = [picture.name for picture in all_pictures(planned.plan, device_for(None))]
    except (GemmgenError, ValueError):
        return []
    return [CompletionItem(name) for name in [*names, ALL] if name.startswith(incomplete)]


@click.command("draw")
@click.argument("spec", metavar="[SPEC]", required=False, shell_complete=complete_spec)
@problem_options(device=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE|DIR",
    help="Write all pictures into one file (.svg, .png, .pdf), or an SVG for each into a directory; - is standard output.",
)
@click.option(
    "names",
    "--picture",
    metavar="NAME",
    multiple=True,
    default=(ALL,),
    shell_complete=_complete_picture,
    show_default=True,
    help="Picture to draw: tiles, fragments, shared, loops, ...; registers and code (of the machine code) only on request. Repeatable.",
)
@click.option("--access", metavar="NAME", help="In the picture shared, draw only this access, such as load-a.")
@architecture_option("Architecture to plan for; else the spec's own.")
@set_option
@json_option
def command(
    spec: str | None,
    asked: AskedProblems,
    output: str | None,
    names: Sequence[str],
    access: str | None,
    architecture: str | None,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Draw pictures of SPEC: its tiles, the elements of each lane, and the banks of shared memory that its accesses use.

    Without -o, list the available pictures of this spec.
    """
    from gemmgen.dispatch.prediction import device_for
    from gemmgen.hardware.target import architecture as find_architecture
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.kernels.naming import NAME_DIGITS
    from gemmgen.present.drawing import draw
    from gemmgen.present.launch_pictures import all_pictures

    files = asked.files([spec] if spec is not None else [], architecture=architecture)
    if len(files) != 1:
        raise SpecError(f"{spec or '--problem'} names {len(files)} specs; draw takes one")
    (planned,) = plan_specs(files, overrides, find_architecture(architecture) if architecture else None)
    plan = planned.plan
    drawn_on = device_for(plan.architecture if isinstance(plan, KernelPlan) else None)
    compiled = _compiled(plan) if isinstance(plan, KernelPlan) and not {ALL, *COMPILED}.isdisjoint(names) and output is not None else None
    available = all_pictures(plan, drawn_on, compiled=compiled)
    if REGISTERS in names or CODE in names:  # of the compiled kernel, and drawn only when asked for
        available += _of_machine_code(plan, names)
    pictures = choose(available, names, access, planned.file.label)
    if output == "":
        raise click.UsageError("-o needs the name of a file or of a directory, or - for standard output")
    if output is None or as_json:
        if output is not None:
            raise click.UsageError("--json lists the pictures that there are, and does not go with -o")
        _list(pictures, as_json)
        return
    # Without the digest of the spec, which changes with every field that specs learn, while the picture stays.
    shown = plan.name.removesuffix(f"_{plan.spec_digest[:NAME_DIGITS]}")
    if output == "-":
        click.echo(draw(shown, pictures), nl=False)
        return
    path = Path(output)
    if output.endswith("/") or _is_directory(path):
        written = [(path / f"{plan.name}.{picture.name}.svg", draw(shown, [picture])) for picture in pictures]
    else:
        written = [(path, draw(shown, pictures))]
    for file, text in written:
        tell_written(file, write_picture(file, text))


def _compiled(plan: KernelPlan) -> Mapping[str, KernelResources] | None:
    """Resources of the plan's kernels as the compiler gives them; None without a compiler."""
    from gemmgen.cli.compilation import compile_plans

    try:
        (binary,) = compile_plans([plan])
    except EnvironmentMissing as missing:
        click.echo(f"registers are the plan's estimate, since nothing could be compiled: {missing}", err=True)
        return None
    return binary.resources


def _of_machine_code(plan: object, names: Sequence[str]) -> list[Picture]:
    from gemmgen.cli.compilation import compile_plans
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.present.loop_picture import loop_picture
    from gemmgen.present.register_picture import register_picture

    if not isinstance(plan, KernelPlan):
        raise click.UsageError(f"--picture {REGISTERS if REGISTERS in names else CODE} shows kernels of GPUs")
    (binary,) = compile_plans([plan])
    pictures: list[Picture] = [register_picture(binary, plan.architecture)] if REGISTERS in names else []
    return [*pictures, loop_picture(binary)] if CODE in names else pictures


def choose(pictures: Sequence[Picture], names: Sequence[str], access: str | None, label: str) -> list[Picture]:
    """The pictures of these names, in the family's order. Raises ``GemmgenError`` that says which there are."""
    from gemmgen.kernels.pictures import BankMaps

    known = [picture.name for picture in pictures]
    unknown = [name for name in names if name not in known and name != ALL]
    if unknown:
        raise GemmgenError(f"--picture {unknown[0]!r}: {label} has no such picture; there are: {', '.join(known)} and {ALL}")
    chosen = list(pictures) if ALL in names else [picture for picture in pictures if picture.name in names]
    if access is None:
        return chosen
    with_banks = [picture for picture in chosen if isinstance(picture, BankMaps)]
    accesses = [one.access for picture in pictures if isinstance(picture, BankMaps) for one in picture.maps]
    if not accesses:
        raise GemmgenError(f"--access {access!r}: {label} makes no access to shared memory that could be drawn")
    if access not in accesses:
        raise GemmgenError(f"--access {access!r}: {label} has no such access; there are: {', '.join(accesses)}")
    if not with_banks:
        raise click.UsageError("--access chooses among the accesses of --picture shared")
    return [replace(picture, maps=tuple(one for one in picture.maps if one.access == access)) for picture in with_banks]


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError) as error:
        raise GemmgenError(f"{str(path)!r}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _list(pictures: Sequence[Picture], as_json: bool) -> None:
    """The pictures, and for shared memory each access with its wavefronts layout by layout."""
    from gemmgen.kernels.pictures import BankMaps
    from gemmgen.present.drawing.descriptions import cost_of, describe

    if as_json:
        listed: list[dict[str, Any]] = []
        for picture in pictures:
            entry: dict[str, Any] = {"picture": picture.name, "title": picture.title, "description": describe(picture)}
            if isinstance(picture, BankMaps):
                entry["accesses"] = [
                    {
                        "access": one.access,
                        "title": one.title,
                        "layouts": [
                            {"title": layout.title, "chosen": layout.chosen, "wavefronts": cost.wavefronts, "conflicts": cost.conflicts}
                            for layout in one.layouts
                            for cost in [cost_of(layout.access)]
                        ],
                    }
                    for one in picture.maps
                ]
            listed.append(entry)
        print_json(listed)
        return
    rows = []
    for picture in pictures:
        rows.append((picture.name, "", picture.title))
        if isinstance(picture, BankMaps):
            for one in picture.maps:
                costs = "; ".join(f"{layout.title}: {counted(cost_of(layout.access).wavefronts, 'wavefront')}" for layout in one.layouts)
                rows.append(("", one.access, f"{one.title}: {costs}"))
    print_table((Column("picture"), Column("access"), Column("shows", folds=True)), rows)
    click.echo("-o FILE.svg draws all of them, or those that --picture names", err=True)
