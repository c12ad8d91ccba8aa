"""Verdicts over a finite field for certificates: one run of each instance, on the machine code for one of its architectures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.kernels.family import KernelPlan
from gemmgen.library.compiled import Facts
from gemmgen.library.digests import options_digest, program_digests
from gemmgen.library.emulator_run import today
from gemmgen.library.evidence import Evidence, Record, evidence_text
from gemmgen.library.listing import Instance
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.field import FIRST_PAIRED_ARCHITECTURE, METHOD, FieldReport, verify_field

FIELD_FILE = "field.json"
FIRST_PAIRED = find_architecture(FIRST_PAIRED_ARCHITECTURE)
BACKEND = "field"
_RUN = {"backend": BACKEND, "device": "PTX emulator over the residues modulo 2^31 - 1"}


def field_architecture(plans: Mapping[str, KernelPlan]) -> str:
    """The architecture whose machine code is run: the first that has instructions for bfloat16."""
    return next(
        (name for name, plan in plans.items() if plan.architecture.compute_capability >= FIRST_PAIRED.compute_capability), next(iter(plans))
    )


def field_record(evidence: Evidence, instance: Instance, facts: Mapping[str, Facts]) -> Record | None:
    """The record of an instance's runs over the field: of the same machine code, or of the same source with the same options."""
    architecture = field_architecture(instance.plans)
    code = facts[architecture].code if architecture in facts else None
    options, source = options_digest(), instance.source.digest
    alike = [record for record in evidence.over_field if record["method"] == METHOD and record["options"] == options]
    same = [record for record in alike if record["source"] == source]
    return next(iter(same + [record for record in alike if record["code"] == code]), None)


def run_over_field(path: Path, architecture: str) -> Record:
    """The record of an instance's runs over the field, right or wrong."""
    from gemmgen.kernels.planning import plan
    from gemmgen.toolchain.compilation import compile_plan

    planned = plan(path, architecture)
    binary = compile_plan(planned)
    report = verify_field(planned, binary if planned.architecture.compute_capability >= FIRST_PAIRED.compute_capability else None)
    return record_of(planned, binary, report)


def record_of(planned: KernelPlan, binary: Binary, report: FieldReport) -> Record:
    """The record of runs over the field."""
    from gemmgen.codegen.rendering import render

    return {
        **_RUN,
        "instance": planned.name,
        "architecture": planned.architecture.name,
        "code": program_digests(binary.ptx, planned.name)["code"],
        "source": render(planned).digest,
        "options": options_digest(),
        "method": METHOD,
        "date": today(),
        "field": {"claim": report.text, **report.to_json()},
    }


def quoted_and_missing(
    evidence: Evidence, instances: Collection[Instance], facts: Mapping[tuple[str, str], Facts]
) -> tuple[list[Record], list[Instance]]:
    """The records that certificates of the instances quote, each once, and the instances that have none."""
    quoted: dict[int, Record] = {}
    missing: list[Instance] = []
    for instance in instances:
        own = {name: facts[instance.name, name] for name in instance.plans if (instance.name, name) in facts}
        record = field_record(evidence, instance, own)
        if record is None:
            missing.append(instance)
        else:
            quoted[id(record)] = record
    return list(quoted.values()), missing


def field_evidence(records: Iterable[Record]) -> str:
    """The file of the runs over the field."""
    return evidence_text(_RUN, records)
