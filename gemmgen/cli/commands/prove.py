"""``gemmgen prove``: properties of a compiled kernel for every problem that its preconditions allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.compilation import compile_plans
from gemmgen.cli.options import architecture_option, json_option, set_option, specs_argument
from gemmgen.cli.output import Column, print_json, print_table, progress_bar, styled
from gemmgen.cli.selection import PlannedSpec, find_specs, plan_specs
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.proof.prover import KernelProof, Property
    from gemmgen.toolchain.nvrtc import Binary

COLOURS = {"proved": "green", "refuted": "red", "unproved": "yellow"}
MAX_REASONS = 3
"""Reasons of one property that the table shows."""


@click.command("prove")
@specs_argument
@architecture_option("Architecture whose PTX is proved; else the spec's own.")
@set_option
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Time for each kernel; its rest is unproved.",
)
@click.option(
    "required",
    "--require",
    multiple=True,
    type=click.Choice(["memory", "races", "once", "progress", "all"]),
    help="Exit with 1 unless this property is proved of every kernel. Repeatable.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    specs: Sequence[str],
    architecture: str | None,
    overrides: Sequence[str],
    seconds: float,
    required: Sequence[str],
    as_json: bool,
) -> None:
    """Prove properties of each SPEC's PTX for all sizes, strides and grids that its preconditions allow.

    memory: every access lies within its array. races: no two threads of a block meet in shared memory. once: no element of a result is
    stored twice. progress: barriers are reached by all threads, and loops end. A property that is not proved is not thereby wrong: the
    statements that stand in the way are listed. A counterexample counts as refuted only if the emulator shows the fault as well.
    """
    from gemmgen.hardware.target import architecture as find_architecture
    from gemmgen.proof.prover import prove_sequence

    planned = plan_specs(find_specs(specs), overrides, find_architecture(architecture) if architecture else None)
    binaries = compile_plans([item.plan for item in planned])
    proofs: dict[str, Sequence[KernelProof]] = {}
    with progress_bar() as progress:
        task = progress.add_task("proving", total=len(planned))
        for item, binary in zip(planned, binaries, strict=True):
            progress.update(task, description=item.file.label)
            found = prove_sequence(item.plan.sequence, binary.ptx, seconds)
            proofs[item.file.label] = [_replayed(item, binary, proof) for proof in found]
            progress.advance(task)
    if as_json:
        print_json([_as_json(item, proofs[item.file.label]) for item in planned])
    else:
        for item in planned:
            _print(item, proofs[item.file.label])
    statuses = [each for found in proofs.values() for proof in found for each in proof.properties]
    wanted = {name for name in required} if "all" not in required else {each.name for each in statuses}
    if any(each.status == "refuted" for each in statuses) or any(each.name in wanted and each.status != "proved" for each in statuses):
        context.exit(exit_codes.FAILED)


def _replayed(item: PlannedSpec, binary: Binary, proof: KernelProof) -> KernelProof:
    """The proof, with counterexamples called refutations where the emulator shows their faults."""
    from gemmgen.verification.replay import replay

    def judged(each: Property) -> Property:
        if each.counterexample is None:
            return each
        fault = replay(item.plan, binary, each.counterexample["problem"])
        if fault:
            return replace(each, status="refuted", reasons=(_sentence(each.counterexample), fault.strip().splitlines()[0]))
        reason = f"a counterexample that the emulator did not confirm: {_sentence(each.counterexample)}"
        return replace(each, reasons=(*each.reasons, reason))

    return replace(proof, properties=tuple(judged(each) for each in proof.properties))


def _sentence(example: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{name} = {value}" for name, value in example["problem"].items())
    thread = ", ".join(f"{name} = {value}" for name, value in example["thread"].items())
    at = f", {example['line']}" if example["line"] else ""
    return f"for {sizes} the thread {thread or '0'} at {example['statement']}{at}"


def _as_json(item: PlannedSpec, proofs: Sequence[KernelProof]) -> dict[str, Any]:
    from gemmgen.proof.prover import domain

    return {
        "spec": item.file.label,
        "name": item.plan.name,
        "architecture": item.plan.architecture.name,
        "domain": list(domain(item.plan.sequence)),
        "kernels": [proof.to_json() for proof in proofs],
    }


def _print(item: PlannedSpec, proofs: Sequence[KernelProof]) -> None:
    from gemmgen.proof.prover import domain

    click.echo(f"{item.file.label} on {item.plan.architecture.name}, for all problems with")
    click.echo("  " + "; ".join(domain(item.plan.sequence)))
    for proof in proofs:
        rows: list[list[str | Text]] = []
        for each in proof.properties:
            done = f"{each.proved} of {each.obligations}" if each.obligations else "–"
            rows.append([each.name, styled(each.status, COLOURS[each.status]), done, each.meaning])
        print_table([Column(proof.entry), Column(""), Column("obligations"), Column("meaning")], rows)
        for each in proof.properties:
            for reason in each.reasons[:MAX_REASONS]:
                click.echo(f"  {each.name}: {printable(reason)}")
            if len(each.reasons) > MAX_REASONS:
                click.echo(f"  {each.name}: and {len(each.reasons) - MAX_REASONS} more")
        click.echo(f"  {proof.seconds:.1f} s, {proof.queries} questions to z3")
