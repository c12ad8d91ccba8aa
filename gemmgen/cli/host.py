"""Commands on specs for CPUs, where they differ from those on specs for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.output import Column, count, counted, print_json, print_table, progress_bar
from gemmgen.cli.selection import PlannedSpec, SpecFile, plan_specs
from gemmgen.core.errors import SpecError
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.verification.runner import VerificationReport


def are_for_processors(files: Sequence[SpecFile], overrides: Sequence[str] = ()) -> bool:
    """True if all ``files`` are specs for processors. Raises ``UsageError`` where some are and some are not."""
    from gemmgen.kernels import HOST_FAMILIES

    kinds: list[object] = []
    for file in files:
        try:
            kinds.append(file.kind)
        except SpecError:
            kinds.append(None)  # reported where the spec is loaded
    host = [isinstance(kind, str) and kind in HOST_FAMILIES for kind in kinds]
    if any(host) and not all(host):
        one, other = files[host.index(True)].label, files[host.index(False)].label
        raise click.UsageError(f"{one} is for a processor and {other} for a GPU: name them in two commands")
    return bool(host) and all(host)


def verification_reports(files: Sequence[SpecFile], overrides: Sequence[str], sanitize: bool) -> dict[str, VerificationReport]:
    """Compiles and verifies specs natively; with ``sanitize``, under the sanitizers too, whose finding ends it.

    Specs for other processors are skipped with a message; raises ``EnvironmentMissing`` where all are.
    """
    from gemmgen.core.errors import EnvironmentMissing, VerificationError
    from gemmgen.runtime.native import NativeBackend, require_host
    from gemmgen.toolchain.compilation import compile_host_plan
    from gemmgen.verification.oracle import oracle_of
    from gemmgen.verification.runner import verify_binary
    from gemmgen.verification.sanitized import verify_sanitized

    planned = []
    foreign = []
    for item in plan_specs(files, overrides):
        plan: Any = item.plan
        try:
            require_host(item.file.label, plan.architecture)
            planned.append(item)
        except EnvironmentMissing as error:
            foreign.append(str(error))
    if foreign and not planned:
        raise EnvironmentMissing("\n".join(foreign))
    for message in foreign:
        click.echo(printable(f"left out: {message}"), err=True)
    backend = NativeBackend()
    reports = {}
    with progress_bar() as progress:
        cases = [oracle_of(item.plan.spec.kind).cases(item.plan) for item in planned]
        task = progress.add_task("verifying", total=sum(map(len, cases)))
        for item, own_cases in zip(planned, cases, strict=True):
            progress.update(task, description=item.file.label)
            binary: Any = compile_host_plan(item.plan)
            reports[item.file.label] = verify_binary(
                item.plan, binary, backend, cases=own_cases, progress=lambda result: progress.advance(task)
            )
    for item in planned if sanitize else ():
        sanitized = verify_sanitized(item.plan)
        if not sanitized.passed:
            raise VerificationError(f"{item.file.label}: under the sanitizers: {sanitized.finding}")
        click.echo(
            printable(f"{item.file.label}: {sanitized.cases} cases under AddressSanitizer and UndefinedBehaviorSanitizer, nothing found"),
            err=True,
        )
    return reports


def print_compiled(planned: Sequence[PlannedSpec], as_json: bool) -> None:
    """Compiles specs and shows the results."""
    from gemmgen.toolchain.compilation import compile_host_plan

    compiled = [(item, compile_host_plan(item.plan)) for item in planned]
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


def print_benchmark(
    planned: Sequence[PlannedSpec], problems: Sequence[tuple[int, ...]], threads: int | None, rounds: int, with_peers: bool, as_json: bool
) -> None:
    """Times specs on the processor and shows how fast they are beside the libraries that are installed."""
    from gemmgen.kernels import family_of
    from gemmgen.perf.host.benchmark import all_threads, benchmark_host
    from gemmgen.toolchain.compilation import compile_host_plan

    binaries = [compile_host_plan(item.plan) for item in planned]
    reports = []
    with progress_bar() as progress:
        task = progress.add_task("timing", total=len(problems))
        for sizes in problems:
            if len(sizes) != 3:
                raise click.UsageError(f"--size {','.join(map(str, sizes))}: need 3 numbers: m,n,k")
            groups: dict[Any, list[int]] = {}
            for index, item in enumerate(planned):
                groups.setdefault(str([(a.shape, a.strides) for a in item.plan.sequence.arrays]), []).append(index)
            for members in groups.values():
                plan: Any = planned[members[0]].plan
                problem = family_of(plan.spec).problem(plan, sizes)
                chosen: Any = [(planned[index].plan, binaries[index]) for index in members]
                labels = [planned[index].file.label for index in members]
                reports.append(benchmark_host(chosen, problem, threads or all_threads(), rounds, with_peers, names=labels))
            progress.advance(task)
    if as_json:
        print_json([report.to_json() for report in reports])
        return
    rows = []
    for report in reports:
        size = ",".join(str(report.problem[name]) for name in ("m", "n", "k"))
        peers = [timing.name for timing in report.timings if timing.kind == "peer"]
        for timing in report.timings:
            beside = ", ".join(f"{report.ratio(timing.name, peer):.2f}x {peer}" for peer in peers) if timing.kind == "candidate" else "peer"
            speed = f"{timing.operations_per_second * 1e-9:.1f}"
            rows.append([size, timing.name, f"{timing.us:.1f}", speed, f"{timing.of_fma_rate:.0%}", beside])
    columns = [Column("size"), Column("spec", folds=True), Column("µs", "right"), Column("GFLOP/s", "right"), Column("of FMA", "right")]
    print_table([*columns, Column("beside", folds=True)], rows)
    report = reports[0]
    rate, bandwidth = report.fma_operations_per_second * 1e-9, report.rates.bytes_per_second * 1e-9
    click.echo(
        f"\n{report.processor}, {report.threads} thread{'s' * (report.threads > 1)}, {report.clock}, first quartile of {rounds} rounds."
    )
    click.echo(f"of FMA: part of the {rate:.0f} GFLOP/s of multiply-adds measured in this run; memory is read at {bandwidth:.1f} GB/s.")


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
    from gemmgen.toolchain.compilation import compile_host_plan

    if sizes is not None and len(sizes) != 3:
        raise click.UsageError(f"--size {','.join(map(str, sizes))}: need 3 numbers: m,n,k")
    results = []
    for item in planned:
        plan: Any = item.plan
        loop = inner_loop(disassemble(compile_host_plan(plan))) if plan.x86 else None
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
