"""``gemmgen prove``: properties of a compiled kernel for every problem that its preconditions allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.compilation import compile_plans
from gemmgen.cli.options import Number, architecture_option, complete_spec, json_option, parse_dimensions, set_option
from gemmgen.cli.output import Column, print_json, print_table, progress_bar, styled
from gemmgen.cli.selection import find_specs, plan_specs
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text

    from gemmgen.hardware.target import Architecture
    from gemmgen.kernels.launch import LaunchSequence
    from gemmgen.proof.prover import KernelProof, Property

COLOURS = {"proved": "green", "refuted": "red", "unproved": "yellow", "contradicted": "red"}
MAX_REASONS = 3
"""Reasons of one property that the table shows."""


@click.command("prove")
@click.argument("specs", metavar="SPEC...|FILE", nargs=-1, required=True, shell_complete=complete_spec)
@architecture_option("Architecture whose PTX is proved; else the spec's own.")
@set_option
@click.option(
    "--seconds",
    type=Number(1, 3600),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Time limit for each kernel; the remaining properties count as unproved.",
)
@click.option(
    "required",
    "--require",
    multiple=True,
    type=click.Choice(["memory", "races", "once", "progress", "initialised", "handover", "complete", "coverage", "all"]),
    metavar="PROPERTY",
    help="Exit with 1 unless this is proved of every kernel: memory, races, once, progress, initialised, handover, complete, coverage, "
    "all. Repeatable.",
)
@click.option("--entry", metavar="NAME", help="For a FILE: name of the kernel in C++ or PTX; not needed if there is only one.")
@click.option("--block", metavar="X,Y,Z", callback=parse_dimensions, help="For a FILE: threads of a block.")
@click.option("--grid", metavar="EXPR,...", help="For a FILE: blocks as formulas of the kernel's integers, such as ceil_div(n, 256).")
@click.option(
    "arrays",
    "--array",
    multiple=True,
    metavar="ARRAY",
    help="For a FILE: the array that a parameter points to, 'A=in f32[m, k : lda, 1] @16': in, out or inout, extents, strides, alignment. "
    "Repeatable.",
)
@click.option("--expects", multiple=True, metavar="EXPR", help="For a FILE: a precondition, such as 'lda >= k'. Repeatable.")
@click.option("--shared", metavar="EXPR", help="For a FILE: bytes of dynamic shared memory.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    specs: Sequence[str],
    architecture: str | None,
    overrides: Sequence[str],
    seconds: float,
    required: Sequence[str],
    entry: str | None,
    block: tuple[int, ...] | None,
    grid: str | None,
    arrays: Sequence[str],
    expects: Sequence[str],
    shared: str | None,
    as_json: bool,
) -> None:
    """Prove properties of each SPEC's PTX for all sizes, strides and grids that its preconditions allow.

    memory: every access lies within its array. races: no two threads of a block conflict in shared memory. once: no element of a result is
    stored twice. progress: barriers are reached by all threads, and loops end. initialised: registers, shared
    memory and results are written before they are read.
    handover, of kernels with a workspace: blocks read partial results of others after these are stored.
    complete: every element of a result is stored. coverage, of products of matrices: each stored element is
    made from one sum over all of k. A property that is not proved need not be wrong: the statements that block the proof are
    listed. A property counts as refuted only if the emulator confirms the counterexample.

    A FILE (.cu or .ptx) from elsewhere needs its launch: integer parameters of the kernel are the sizes, and each pointer needs an --array.

    \b
    gemmgen prove saxpy.cu --block 256 --grid 'ceil_div(n, 256)' --array 'x=in f32[n]' --array 'y=inout f32[n]' --expects 'n >= 1'
    """
    from gemmgen.hardware.target import architecture as find_architecture
    from gemmgen.proof.prover import prove_sequence
    from gemmgen.verification.contradictions import contradict

    if is_file := len(specs) == 1 and Path(specs[0]).suffix in (".cu", ".ptx"):
        if block is None or grid is None:
            raise click.UsageError(
                f"Missing option '{'--block' if block is None else '--grid'}': {specs[0]} is a source file, so the launch must be given."
            )
        if overrides:
            raise click.UsageError("--set is for specs")
        from gemmgen.cli.proof_files import read_foreign

        foreign = read_foreign(
            Path(specs[0]),
            entry_name=entry,
            architecture=architecture,
            block=block,
            grid=grid,
            arrays=arrays,
            expects=expects,
            shared=shared or "0",
            seconds=seconds,
        )
        proved = prove_sequence(foreign.sequence, foreign.code.ptx, seconds)
        kernel_proofs = contradict(foreign.sequence, foreign.code.ptx, foreign.code.architecture, proved)
        subjects = [Subject(specs[0], foreign.entry.name, foreign.code.architecture, foreign.sequence)]
        replayed: Sequence[KernelProof] = [_replayed(foreign.replay, proof) for proof in kernel_proofs]
        proofs = {specs[0]: replayed}
    elif entry or block or grid or arrays or expects or shared:
        raise click.UsageError("--entry, --block, --grid, --array, --expects and --shared are for one FILE of kernels")
    if not is_file:
        subjects, proofs = _prove_specs(specs, overrides, find_architecture(architecture) if architecture else None, seconds)
    if as_json:
        print_json([_as_json(subject, proofs[subject.label]) for subject in subjects])
    else:
        for subject in subjects:
            _print(subject, proofs[subject.label])
    lacking, statuses = False, set[str]()
    for proof in (each for kernel_proofs in proofs.values() for each in kernel_proofs):
        wanted = {each.name for each in proof.properties} if "all" in required else set(required)
        statuses |= {each.status for each in proof.properties}
        lacking = lacking or not wanted <= set(proof.proved)
    if "contradicted" in statuses:
        context.exit(exit_codes.BUG)
    if lacking or "refuted" in statuses:
        context.exit(exit_codes.FAILED)


@dataclass(frozen=True)
class Subject:
    """Kernels that are proved, with their launch."""

    label: str
    name: str
    architecture: str
    sequence: LaunchSequence


def _prove_specs(
    specs: Sequence[str], overrides: Sequence[str], architecture: Architecture | None, seconds: float
) -> tuple[list[Subject], dict[str, Sequence[KernelProof]]]:
    """The kernels of specs, and their proofs by label."""
    from gemmgen.proof.prover import prove_sequence
    from gemmgen.verification.contradictions import contradict
    from gemmgen.verification.replay import replay

    planned = plan_specs(find_specs(specs), overrides, architecture)
    binaries = compile_plans([item.plan for item in planned])
    proofs: dict[str, Sequence[KernelProof]] = {}
    with progress_bar() as progress:
        task = progress.add_task("proving", total=len(planned))
        for item, binary in zip(planned, binaries, strict=True):
            progress.update(task, description=item.file.label)
            proved = prove_sequence(item.plan.sequence, binary.ptx, seconds)
            kernel_proofs = contradict(item.plan.sequence, binary.ptx, binary.architecture, proved)
            proofs[item.file.label] = [_replayed(partial(replay, item.plan, binary), proof) for proof in kernel_proofs]
            progress.advance(task)
    subjects = [Subject(item.file.label, item.plan.name, item.plan.architecture.name, item.plan.sequence) for item in planned]
    return subjects, proofs


def _replayed(replay: Callable[[str, Mapping[str, Any]], str], proof: KernelProof) -> KernelProof:
    """The proof, with counterexamples called refutations where the emulator shows their faults."""

    def judged(each: Property) -> Property:
        if each.counterexample is None:
            return each
        fault = replay(each.name, each.counterexample)
        if fault:
            return replace(each, status="refuted", reasons=(_sentence(each.counterexample), fault.strip().splitlines()[0]))
        reason = f"a counterexample that the emulator did not confirm: {_sentence(each.counterexample)}"
        return replace(each, reasons=(*each.reasons, reason))

    return replace(proof, properties=tuple(judged(each) for each in proof.properties))


def _sentence(example: Mapping[str, Any]) -> str:
    """A counterexample in words: ``for m = 65, n = 1 thread 17 of block 1 writes C[65][0], where C has 65 x 1 elements (…)``."""
    sizes = ", ".join(f"{name} = {value}" for name, value in example["problem"].items())
    who = f"{f'for {sizes} ' if sizes else ''}thread {_place(example['thread'], 'tid')} of block {_place(example['thread'], 'ctaid')}"
    statement = example["statement"].rstrip(";") + (f", {example['line']}" if example["line"] else "")
    return f"{who} {example['element']} ({statement})" if example["element"] else f"{who} executes {statement}"


def _place(indices: Mapping[str, int], register: str) -> str:
    """The index of a thread or a block, in parentheses if it has several axes."""
    numbers = [str(value) for name, value in indices.items() if name.startswith(f"{register}.")]
    return f"({', '.join(numbers)})" if len(numbers) > 1 else "".join(numbers) or "0"


def _as_json(subject: Subject, proofs: Sequence[KernelProof]) -> dict[str, object]:
    from gemmgen.proof.prover import domain

    return {
        "spec": subject.label,
        "name": subject.name,
        "architecture": subject.architecture,
        "domain": list(domain(subject.sequence)),
        "kernels": [proof.to_json() for proof in proofs],
    }


def _print(subject: Subject, proofs: Sequence[KernelProof]) -> None:
    from gemmgen.proof.prover import domain

    click.echo(printable(f"{subject.label} on {subject.architecture}, for all problems with"))
    click.echo(printable("  " + "; ".join(domain(subject.sequence))))
    for proof in proofs:
        rows: list[list[str | Text]] = []
        for each in proof.properties:
            done = f"{each.proved} of {each.obligations}" if each.obligations else "–"
            rows.append([each.name, styled(each.status, COLOURS[each.status]), done, each.meaning])
        click.echo(printable(f"  kernel {proof.entry}"))
        print_table([Column("property"), Column(""), Column("obligations"), Column("meaning")], rows)
        for each in proof.properties:
            for reason in each.reasons[:MAX_REASONS]:
                click.echo(f"  {each.name}: {printable(reason)}")
            if len(each.reasons) > MAX_REASONS:
                click.echo(f"  {each.name}: and {len(each.reasons) - MAX_REASONS} more")
        click.echo(f"  {proof.seconds:.1f} s, {proof.queries} questions to z3")
