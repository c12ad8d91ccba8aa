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
