"""Runs one instance on the emulator: its verification, and its costs by line, as a record of evidence."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import VerificationError
from gemmgen.library.json_text import rounded

if TYPE_CHECKING:
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.verification.counters import CaseCounters
    from gemmgen.verification.runner import VerificationReport


def today() -> str:
    """The date in UTC, ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def prove(path: Path, architecture: str) -> dict[str, Any]:
    """The record of an instance that was verified on the emulator, every hazard looked for, and counted.

    Raises ``VerificationError`` with the cases that failed.
    """
    from gemmgen.codegen.rendering import render
    from gemmgen.kernels.planning import plan
    from gemmgen.library.digests import cases_digest, options_digest, program_digests
    from gemmgen.runtime.emulation import EmulatorBackend
    from gemmgen.toolchain.compilation import compile_plan
    from gemmgen.toolchain.nvrtc import nvrtc_version
    from gemmgen.verification.counters import count_case
    from gemmgen.verification.runner import verify_binary

    planned = plan(path, architecture)
    binary = compile_plan(planned)
    backend = EmulatorBackend()
    report = verify_binary(planned, binary, backend)
    if not report.passed:
        raise VerificationError(f"{planned.name} for {architecture} is wrong on the emulator: {failure_text(report)}")
    return {
        "instance": planned.name,
        "architecture": architecture,
        **program_digests(binary.ptx, planned.name),
        "source": render(planned).digest,
        "options": options_digest(),
        "cases": cases_digest(planned),
        "compiler": ".".join(map(str, nvrtc_version())),
        "backend": backend.name,
        "device": backend.description,
        "date": today(),
        "verification": {**verification_fields(report), "hazards": "races, uninitialised reads and divergence looked for"},
        "traffic": traffic(planned, count_case(planned, binary)),
    }


def verification_fields(report: VerificationReport) -> dict[str, object]:
    """A verification in short; ``worst_ratio`` is the largest error over its proven bound."""
    fields: dict[str, Any] = {
        "passed": report.passed,
        "cases": len(report.results),
        "elements": report.elements,
        "worst_ratio": rounded(report.worst_ratio) if report.passed else None,
    }
    return fields if report.passed else fields | {"failure": failure_text(report)}


def failure_text(report: VerificationReport) -> str:
    """The first case that failed, and how many did."""
    if not report.failures:
        return "no case was run"
    first, total = report.failures[0], len(report.failures)
    return f"{first.case.name}, {first.case.data}: {first.failure}" + (f" (and {total - 1} more)" if total > 1 else "")


def traffic(plan: KernelPlan, counted: CaseCounters) -> dict[str, Any]:
    """Wavefronts and sectors of each line that accesses memory, and instructions of warps by class, in one case."""
    counters = counted.counters
    sites = []
    for line in counters.memory_lines:
        site: dict[str, Any] = {"line": line.line}
        tally = line.tally.to_json()
        site |= {space: tally[f"{space}_memory"] for space in ("shared", "global") if tally[f"{space}_memory"]}
        sites.append(site)
    total = counters.total
    return {
        "case": counted.case.name,
        "problem": dict(counted.case.dimensions),
        "scalars": dict(counted.case.scalars),
        "wavefronts": total.shared_total.wavefronts,
        "bank_conflicts": total.shared_total.conflicts,
        "sectors": total.global_total.sectors,
        "barriers": counters.barriers,
        "instructions": dict(sorted(total.instructions.items())),
        "sites": sites,
    }
