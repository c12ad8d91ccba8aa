"""Commands on specs for CPUs, where they differ from those on specs for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.compilation import compile_plans
from gemmgen.cli.output import Column, count, counted, print_json, print_table
from gemmgen.cli.selection import PlannedSpec, SpecFile
from gemmgen.core.errors import SpecError
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.runtime.targets import Target


def common_target(files: Sequence[SpecFile]) -> Target:
    """The target of all ``files``. Raises ``UsageError`` if they have different ones."""
    from gemmgen.runtime.targets import target_of

    first: dict[Target, SpecFile] = {}
    for file in files:
        try:
            first.setdefault(target_of(file.kind), file)
        except SpecError:
            continue  # reported where the spec is loaded
    if len(first) > 1:
        (target, one), (another, other) = first.items()
        raise click.UsageError(f"{one.label} is for a {target.name} and {other.label} for a {another.name}: name them in two commands")
    return next(iter(first), target_of(None))


def are_for_processors(files: Sequence[SpecFile]) -> bool:
    """True if all ``files`` are specs for processors. Raises ``UsageError`` where some are and some are not."""
    from gemmgen.runtime.targets import PROCESSOR

    return common_target(files) is PROCESSOR


def runnable_specs(target: Target, planned: Sequence[PlannedSpec]) -> list[PlannedSpec]:
    """The specs that this machine can run; a message names each of the others. Raises ``EnvironmentMissing`` if there is none."""
    from gemmgen.core.errors import EnvironmentMissing

    runnable, foreign = [], []
    for item in planned:
        try:
            target.require(item.file.label, item.plan)
            runnable.append(item)
        except EnvironmentMissing as error:
            foreign.append(str(error))
    if foreign and not runnable:
        raise EnvironmentMissing("\n".join(foreign))
    for message in foreign:
        click.echo(printable(f"left out: {message}"), err=True)
    return runnable


def verify_under_sanitizers(planned: Sequence[PlannedSpec]) -> None:
    """Runs the cases of specs under the compiler's sanitizers. Raises ``VerificationError`` with the first finding."""
    from gemmgen.core.errors import VerificationError
    from gemmgen.verification.sanitized import verify_sanitized

    for item in planned:
        plan: Any = item.plan
        sanitized = verify_sanitized(plan)
        if not sanitized.passed:
            raise VerificationError(f"{item.file.label}: under the sanitizers: {sanitized.finding}")
        click.echo(
            printable(f"{item.file.label}: {sanitized.cases} cases under AddressSanitizer and UndefinedBehaviorSanitizer, nothing found"),
            err=True,
        )


def print_compiled(planned: Sequence[PlannedSpec], as_json: bool) -> None:
    """Compiles specs and shows the results."""
    binaries: list[Any] = list(compile_plans([item.plan for item in planned]))
    compiled = list(zip(planned, binaries, strict=True))
    if as_json:
        print_json(
            [
                {
                    "spec": item.file.label,
                    "name": item.plan.name,
                    "architecture": binary.architecture,
                    "compiler": binary.compiler,
                    "options": list(binary.options),
                    "library_bytes": len(binary.library),
                }
                for item, binary in compiled
            ]
        )
        return
    columns = [Column("spec", folds=True), Column("arch"), Column("library B", "right"), Column("compiler", folds=True)]
    print_table(columns, [[item.file.label, binary.architecture, count(len(binary.library)), binary.compiler] for item, binary in compiled])


def print_analysis(planned: Sequence[PlannedSpec], sizes: tuple[int, ...] | None, seconds: float | None, as_json: bool) -> None:
    """Shows the machine code of specs, the cache use of their blocks, and the limits of a problem on this CPU."""
    from gemmgen.cli.output import duration
    from gemmgen.cli.sections import print_sections
    from gemmgen.hardware.cpu import runs_here
    from gemmgen.kernels import family_of
    from gemmgen.kernels.family import Section
    from gemmgen.perf.cost_model import cost_model_of
    from gemmgen.perf.host.benchmark import all_threads
    from gemmgen.perf.host.machine_code import disassemble, inner_loop
    from gemmgen.perf.host.rates import measure_rates
    from gemmgen.present.explanation import explanation_of

    if sizes is not None and len(sizes) != 3:
        raise click.UsageError(f"--size {','.join(map(str, sizes))}: need 3 numbers: m,n,k")
    results = []
    binaries: list[Any] = list(compile_plans([item.plan for item in planned]))
    for item, binary in zip(planned, binaries, strict=True):
        plan: Any = item.plan
        loop = inner_loop(disassemble(binary)) if plan.x86 else None
        problem = family_of(plan.spec).problem(plan, sizes or tuple(family_of(plan.spec).instance_sizes(plan).values()))
        cost = cost_model_of(plan.spec.kind).cost(plan, problem)
        threads = 1 if plan.blocked is None or plan.blocked.thread_count == 1 else all_threads()
        rates = measure_rates(plan.architecture, threads) if runs_here(plan.architecture) else None
        code = [("", "not looked at: only x86 is")]
        if loop is not None:
            code = [
                ("inner loop", f"{loop.instructions} instructions in {loop.function}"),
                ("multiply-adds", f"{loop.fma} of {loop.lanes} lanes: {loop.fma_share:.0%} of the instructions"),
                ("loads", f"{loop.loads}, {loop.broadcasts} of them broadcasts: {loop.loads_per_fma:.2f} for each multiply-add"),
                ("prefetches", str(loop.prefetches)),
                ("registers", f"{loop.vector_registers} of {plan.architecture.registers}; spills: {loop.spills or 'none'}"),
            ]
        roofs = [("", f"this machine does not run code for {plan.architecture.name}")]
        bound = 0.0
        if rates is not None:
            arithmetic, memory = cost.operations / rates.operations_per_second, cost.bytes / rates.bytes_per_second
            bound = max(arithmetic, memory)
            roofs = [
                ("problem", " ".join(f"{name}={problem[name]}" for name in "mnk")),
                ("arithmetic", f"{duration(arithmetic)} at {rates.operations_per_second * 1e-9:.0f} GFLOP/s, {counted(threads, 'thread')}"),
                ("memory", f"{duration(memory)} at {rates.bytes_per_second * 1e-9:.1f} GB/s, measured"),
                ("bound by", "arithmetic" if arithmetic > memory else "memory"),
            ]
            roofs += [("reaches", f"{bound / seconds:.0%} of the roof in {duration(seconds)}")] if seconds is not None else []
        sections = [*explanation_of(plan.spec.kind).explain(plan), Section("Machine code", tuple(code)), Section("Roofs", tuple(roofs))]
        results.append((item, loop, rates, bound, sections))
    if as_json:
        print_json(
            [
                {
                    "spec": item.file.label,
                    "name": item.plan.name,
                    "inner_loop": loop.to_json() if loop else None,
                    "operations_per_second": rates.operations_per_second if rates else None,
                    "bytes_per_second": rates.bytes_per_second if rates else None,
                    "least_seconds": bound or None,
                    "sections": [{"title": section.title, "lines": [list(line) for line in section.lines]} for section in sections],
                }
                for item, loop, rates, bound, sections in results
            ]
        )
        return
    for item, _, _, _, sections in results:
        print_sections(item.plan.name, sections)
