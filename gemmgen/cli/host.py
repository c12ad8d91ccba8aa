"""Commands on specs for processors: what differs from those on specs for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.output import Column, count, print_json, print_table, progress_bar
from gemmgen.cli.selection import PlannedSpec, SpecFile, plan_specs
from gemmgen.core.errors import SpecError

if TYPE_CHECKING:
    from gemmgen.verification.runner import VerificationReport


def are_for_processors(files: Sequence[SpecFile], overrides: Sequence[str] = ()) -> bool:
    """Whether all ``files`` are specs for processors. Raises ``UsageError`` where some are and some are not."""
    from gemmgen.kernels import HOST_FAMILIES
    from gemmgen.kernels.spec_files import read_yaml

    kinds = []
    for file in files:
        try:
            kinds.append(read_yaml(file.path).get("kind"))
        except SpecError:
            kinds.append(None)  # said where it is read in earnest
    host = [isinstance(kind, str) and kind in HOST_FAMILIES for kind in kinds]
    if any(host) and not all(host):
        one, other = files[host.index(True)].label, files[host.index(False)].label
        raise click.UsageError(f"{one} is for a processor and {other} for a GPU: name them in two commands")
    return bool(host) and all(host)


def verification_reports(files: Sequence[SpecFile], overrides: Sequence[str], sanitize: bool) -> dict[str, VerificationReport]:
    """Compiles and verifies specs natively; with ``sanitize``, under the sanitizers too, whose finding ends it."""
    from gemmgen.core.errors import VerificationError
    from gemmgen.runtime.native import NativeBackend
    from gemmgen.toolchain.compilation import compile_host_plan
    from gemmgen.verification.oracle import oracle_of
    from gemmgen.verification.runner import verify_binary
    from gemmgen.verification.sanitized import verify_sanitized

    planned = plan_specs(files, overrides)
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
        found = verify_sanitized(item.plan)
        if not found.passed:
            raise VerificationError(f"{item.file.label}: under the sanitizers: {found.finding}")
        click.echo(f"{item.file.label}: {found.cases} cases under AddressSanitizer and UndefinedBehaviorSanitizer, nothing found", err=True)
    return reports


def print_compiled(planned: Sequence[PlannedSpec], as_json: bool) -> None:
    """Compiles specs and shows what came out."""
    from gemmgen.toolchain.compilation import compile_host_plan

    compiled = [(item, compile_host_plan(item.plan)) for item in planned]
    if as_json:
        print_json([
            {
                "spec": item.file.label, "name": item.plan.name, "architecture": binary.architecture, "compiler": binary.compiler,
                "options": list(binary.options), "library_bytes": len(binary.library),
            }
            for item, binary in compiled
        ])  # fmt: skip
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
