"""Proofs for the library: which properties of its kernels hold for all problems, kept as evidence beside that of the emulator."""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gemmgen.core.version import __version__
from gemmgen.library.digests import launch_digest, program_digests
from gemmgen.library.evidence import PROOFS_FILE, Record, evidence_text, read_evidence
from gemmgen.library.folder import LibraryFolder, write_file
from gemmgen.library.listing import Instance, Listing
from gemmgen.library.workers import run_tasks
from gemmgen.proof.prover import CONTRADICTED

if TYPE_CHECKING:
    from gemmgen.kernels.launch import LaunchSequence
    from gemmgen.proof.prover import KernelProof

OBSTACLES = 2
"""Statements in the way of each property of a kernel that its record names."""


@dataclass
class ProvingReport:
    """Instances that were proved, or tried."""

    tried: int = 0
    known: int = 0
    """Instances whose proofs are there already."""
    properties: dict[str, int] = field(default_factory=dict)
    """Instances for which each property was proved of all kernels."""
    contradicted: list[str] = field(default_factory=list)
    """Properties that were proved although a run on a small problem shows a fault, each with its kernel and the fault."""
    seconds: float = 0.0
    """From the first to the last."""


def prove_library(
    listing: Listing,
    folder: LibraryFolder,
    *,
    only: Collection[str] | None = None,
    seconds: float,
    within: float | None = None,
    again: bool = False,
    jobs: int = 1,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> ProvingReport:
    """Proves the kernels of a library in so many processes and writes ``evidence/proofs.json`` after each, so that it can be interrupted.

    Each kernel gets ``seconds`` of its process's time; after ``within`` seconds no further instance is begun. An instance whose program and
    launch were tried before is skipped, unless ``again``. A program that several architectures share is proved once.
    """
    report, began = ProvingReport(), time.monotonic()
    proofs = dict(read_evidence(folder.evidence).proofs)
    chosen = [instance for instance in listing.instances if only is None or instance.name in only]
    # The slowest first, so that all processes end at about the same time.
    times = {str(record["instance"]): float(record["seconds"]) for record in proofs.values()}
    chosen.sort(key=lambda instance: -times.get(instance.name, seconds))
    known = frozenset() if again else frozenset(proofs)
    end = None if within is None else time.time() + within
    tasks = [(Subject.of(instance), known, seconds, end) for instance in chosen]
    for done, (_, result) in enumerate(run_tasks(prove_subject, tasks, jobs, each=1)):
        progress("proving", done, len(chosen))
        if isinstance(result, Exception):
            raise result
        if result is None:
            continue
        key, record = result
        if record is None:
            report.known += 1
        else:
            proofs[key] = record
            report.tried += 1
            report.contradicted += [f"{record['instance']}, {told}" for told in record.get("obstacles", ()) if CONTRADICTED in told]
            write_file(folder.evidence / PROOFS_FILE, evidence_text({"backend": "proof"}, proofs.values()))
        for name in proofs[key]["proved"]:
            report.properties[name] = report.properties.get(name, 0) + 1
    report.seconds = time.monotonic() - began
    progress("proving", len(chosen), len(chosen))
    return report


@dataclass
class CheckedProofs:
    """Recorded proofs that were repeated."""

    repeated: int = 0
    stale: int = 0
    """Records of other programs or launches than those of today, which no certificate shows."""
    longer: int = 0
    """Records whose proofs took more than half of the time limit, and were not repeated."""
    left: int = 0
    """Records for which no time was left."""
    lost: list[str] = field(default_factory=list)
    """Properties that are recorded and were not proved again, each with its kernel."""


def check_proofs(
    listing: Listing,
    folder: LibraryFolder,
    *,
    only: Collection[str] | None = None,
    sample: int | None = None,
    seconds: float,
    within: float | None = None,
    jobs: int = 1,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> CheckedProofs:
    """Repeats recorded proofs, or a sample of them, which the digests of the programs choose. Writes nothing."""
    checked, records = CheckedProofs(), read_evidence(folder.evidence).proofs
    by_name: dict[str, list[Record]] = {}
    for record in records.values():
        by_name.setdefault(record["instance"], []).append(record)
    chosen = [instance for instance in listing.instances if instance.name in by_name and (only is None or instance.name in only)]
    chosen = [instance for instance in chosen if any(map(any, (record["kernels"] for record in by_name[instance.name])))]
    quick = [instance for instance in chosen if min(record["seconds"] for record in by_name[instance.name]) <= seconds / 2]
    checked.longer = len(chosen) - len(quick)
    quick.sort(key=lambda instance: hashlib.sha256(by_name[instance.name][0]["code"].encode()).hexdigest())
    end = None if within is None else time.time() + within
    tasks = [(Subject.of(instance), frozenset[tuple[str, str]](), seconds, end) for instance in quick[:sample]]
    for done, (_, result) in enumerate(run_tasks(prove_subject, tasks, jobs, each=1)):
        progress("proving", done, len(tasks))
        if isinstance(result, Exception):
            raise result
        if result is None:
            checked.left += 1
            continue
        key, repeated = result
        before = records.get(key)
        if before is None or repeated is None:
            checked.stale += 1
            continue
        checked.repeated += 1
        for number, (old, new) in enumerate(zip(before["kernels"], repeated["kernels"], strict=True)):
            lost = [name for name in old if name not in new]
            checked.lost += [f"{repeated['instance']}, kernel {number}: {name}" for name in lost]
    progress("proving", len(tasks), len(tasks))
    return checked


@dataclass(frozen=True)
class Subject:
    """The parts of an instance that another process needs: its plan has functions that cannot be sent there."""

    name: str
    plan: str
    architecture: str
    file_name: str
    source: str
    sequence: LaunchSequence

    @classmethod
    def of(cls, instance: Instance) -> Subject:
        """The program for the first architecture, which stands for the others in most cases."""
        architecture, plan = next(iter(instance.plans.items()))
        return cls(instance.name, plan.name, architecture, instance.source.file_name, instance.source.text, plan.sequence)


def prove_subject(
    subject: Subject, known: Collection[tuple[str, str]], seconds: float, end: float | None, runs: bool = True
) -> tuple[tuple[str, str], Record | None] | None:
    """The digests of an instance's program and launch, and its proof unless these are known; None where it is too late to begin.

    ``runs``: runs on small problems may contradict the proof.
    """
    from gemmgen.proof.prover import prove_sequence
    from gemmgen.toolchain.compilation import COMPILE_OPTIONS
    from gemmgen.toolchain.nvrtc import compile_source
    from gemmgen.verification.contradictions import contradict

    if end is not None and time.time() >= end:
        return None
    binary = compile_source(subject.source, architecture=subject.architecture, options=COMPILE_OPTIONS, name=subject.file_name)
    key = (program_digests(binary.ptx, subject.plan)["code"], launch_digest(subject.sequence))
    if key in known:
        return key, None
    proofs = prove_sequence(subject.sequence, binary.ptx, seconds)
    if runs:
        proofs = contradict(subject.sequence, binary.ptx, subject.architecture, proofs)
    return key, _record(subject, key, proofs)


def _record(subject: Subject, key: tuple[str, str], proofs: Sequence[KernelProof]) -> Record:
    fields: dict[str, Any] = {
        "backend": "proof",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "by": f"gemmgen {__version__}",
        "instance": subject.name,
        "architecture": subject.architecture,
        "code": key[0],
        "launch": key[1],
        "proved": [name for name in (each.name for each in proofs[0].properties) if all(name in proof.proved for proof in proofs)],
        "kernels": [list(proof.proved) for proof in proofs],
        "seconds": round(sum(proof.seconds for proof in proofs), 1),
    }
    reasons = [f"{each.name}: {reason}" for proof in proofs for each in proof.properties for reason in each.reasons[:OBSTACLES]]
    return fields | ({"obstacles": list(dict.fromkeys(reason[:300] for reason in reasons))} if reasons else {})
