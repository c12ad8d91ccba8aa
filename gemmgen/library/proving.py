"""Proofs for the library: which properties of its kernels hold for all problems, kept as evidence beside that of the emulator."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gemmgen.core.version import __version__
from gemmgen.library.digests import launch_digest, program_digests
from gemmgen.library.evidence import PROOFS_FILE, Record, evidence_text, read_evidence
from gemmgen.library.folder import LibraryFolder, write_file
from gemmgen.library.listing import Instance, Listing

if TYPE_CHECKING:
    from gemmgen.proof.prover import KernelProof


@dataclass
class ProvingReport:
    """Instances that were proved, or tried."""

    tried: int = 0
    known: int = 0
    """Instances whose proofs are there already."""
    properties: dict[str, int] = field(default_factory=dict)
    """Instances for which each property was proved of all kernels."""
    seconds: float = 0.0


def prove_library(
    listing: Listing,
    folder: LibraryFolder,
    *,
    only: Collection[str] | None = None,
    seconds: float,
    within: float | None = None,
    again: bool = False,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> ProvingReport:
    """Proves the kernels of a library one after the other and writes ``evidence/proofs.json`` after each, so that it can be interrupted.

    Each kernel gets ``seconds`` of its process's time; after ``within`` seconds no further instance is begun. An instance whose program and
    launch were tried before is skipped, unless ``again``. A program that several architectures share is proved once.
    """
    from gemmgen.proof.prover import prove_sequence
    from gemmgen.toolchain.compilation import COMPILE_OPTIONS
    from gemmgen.toolchain.nvrtc import compile_source

    report, began = ProvingReport(), time.monotonic()
    proofs = dict(read_evidence(folder.evidence).proofs)
    chosen = [instance for instance in listing.instances if only is None or instance.name in only]
    for index, instance in enumerate(chosen):
        progress("proving", index, len(chosen))
        for architecture, plan in instance.plans.items():
            if within is not None and time.monotonic() - began > within:
                break
            binary = compile_source(
                instance.source.text, architecture=architecture, options=COMPILE_OPTIONS, name=instance.source.file_name
            )
            code = program_digests(binary.ptx, plan.name)["code"]
            key = (code, launch_digest(plan.sequence))
            if key in proofs and not again:
                report.known += 1
            else:
                found = prove_sequence(plan.sequence, binary.ptx, seconds)
                proofs[key] = _record(instance, architecture, key, found)
                report.tried += 1
                report.seconds += sum(proof.seconds for proof in found)
                write_file(folder.evidence / PROOFS_FILE, evidence_text({"backend": "proof"}, proofs.values()))
            for name in proofs[key]["proved"]:
                report.properties[name] = report.properties.get(name, 0) + 1
            break  # further architectures: only those whose program differs are worth the time, and the first stands for most
    progress("proving", len(chosen), len(chosen))
    return report


def _record(instance: Instance, architecture: str, key: tuple[str, str], proofs: Sequence[KernelProof]) -> Record:
    found: dict[str, Any] = {
        "backend": "proof",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "by": f"gemmgen {__version__}",
        "instance": instance.name,
        "architecture": architecture,
        "code": key[0],
        "launch": key[1],
        "proved": [name for name in (each.name for each in proofs[0].properties) if all(name in proof.proved for proof in proofs)],
        "kernels": [list(proof.proved) for proof in proofs],
        "seconds": round(sum(proof.seconds for proof in proofs), 1),
    }
    reasons = [f"{each.name}: {each.reasons[0]}" for proof in proofs for each in proof.properties if each.reasons]
    return found | ({"obstacles": list(dict.fromkeys(reason[:300] for reason in reasons))} if reasons else {})
