"""The certificate of an instance on one architecture, and the manifest: pure functions of specs, templates, compiler and evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gemmgen.core.version import __version__
from gemmgen.dispatch.matcher import numeric_class_at
from gemmgen.hardware.target import occupancy
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.manifest import MANIFEST_FORMAT
from gemmgen.kernels.requests import NoClass
from gemmgen.kernels.source import parameters
from gemmgen.library.compiled import Facts
from gemmgen.library.digests import cases_digest, compile_options, launch_digest, options_digest, text_digest
from gemmgen.library.evidence import Evidence, Record
from gemmgen.library.json_text import rounded
from gemmgen.library.listing import Instance, Listing
from gemmgen.library.over_field import field_record
from gemmgen.library.sections import joined, separated
from gemmgen.verification.baked_cases import counted_case_of

SCHEMA_VERSION = 2
ASSUMPTIONS = (
    "the constraints and bounds of the launch hold, and no grid has more than 2^30 blocks along an axis",
    "ptxas translates PTX as PTX is specified, and no array wraps around the end of memory",
    "coverage: alpha is not 0, and no result overlaps an operand",
)
"""Conditions that proofs rest on."""
FORMAT = "gemmgen certificate"
TERMS = 4096
"""Terms of the sums whose order a certificate's numeric class is about."""
FORMULAS = (
    "Integer expressions over the dimensions: // divides rounding down, ceil_div(a, b) rounding up, round_up(a, b) is the next "
    "multiple of b, ceil_log2(a) the smallest exponent of a power of two that is at least a, comparisons are 1 or 0, and "
    "select(condition, yes, no) chooses. Shapes and strides are in elements."
)


NEVER_RUN = "emulated, never run on the device"
"""A certificate's word on an architecture that none of its evidence comes from."""


def make_certificate(listing: Listing, instance: Instance, facts: Mapping[str, Facts], evidence: Evidence) -> dict[str, Any]:
    """The certificate of an instance for all its architectures, as plain data. ``facts``: by architecture."""
    field_section = field_record(evidence, instance, facts)
    over_field = (
        None
        if field_section is None
        else {"date": field_section["date"], "architecture": field_section["architecture"], **field_section["field"]}
    )
    return joined({name: {**_for_one(listing, instance, name, facts[name], evidence), "field": over_field} for name in instance.plans})


def _for_one(listing: Listing, instance: Instance, architecture: str, facts: Facts, evidence: Evidence) -> dict[str, Any]:
    """Facts about an instance on one architecture."""
    plan = instance.plans[architecture]
    options = options_digest()
    emulated = evidence.emulator.get((facts.program, cases_digest(plan)))
    codes = {facts.code, *(emulated.get("formerly", ()) if emulated else ())}
    seen = evidence.seen_on_gpus(architecture, codes=codes, source=instance.source.digest, options=options)
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "name": instance.name,
        "architecture": architecture,
        "kind": instance.spec.kind,
        "description": instance.spec.description,
        "spec_name": instance.label,
        "spec": instance.spec.model_dump(mode="json", exclude={"description"}, exclude_defaults=True),
        "digests": {
            "spec": plan.spec_digest,
            "source": instance.source.digest,
            "templates": text_digest(instance.templates),
            "options": options,
            "program": facts.program,
            "code": facts.code,
        },
        "compiler": {"name": "NVRTC", "release": listing.release, "options": list(compile_options())},
        "binary": {entry: dict(kernel) for entry, kernel in facts.kernels.items()},
        "occupancy": _occupancy(plan, instance, facts),
        "launch": describe_launch(plan.sequence) | {"example": _example(plan, instance)},
        "numeric_class": _numeric_class(plan),
        "predicted": _predicted(emulated, instance) if emulated else None,
        "proved": _proved(evidence.proofs.get((facts.code, launch_digest(plan.sequence)))),
        "verification": _verifications([emulated] if emulated else [], seen),
        "device_evidence": None if seen else NEVER_RUN,
        "bits_not_confirmed": list(plan.bits_not_confirmed),
        "sanitizer": _newest(seen, "sanitizer", lambda item: (item["tool"],)),
        "benchmarks": _newest(seen, "benchmarks", lambda item: tuple(sorted({**item["problem"], **item["scalars"]}.items()))),
    }


def make_manifest(listing: Listing, binaries: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """The index of the library. ``binaries``: the digests of the compiler's output, by instance and architecture."""
    return {
        "format": MANIFEST_FORMAT,
        "schema_version": SCHEMA_VERSION,
        "gemmgen": __version__,
        "compiler": {"name": "NVRTC", "release": listing.release, "options": list(compile_options())},
        "architectures": list(listing.architectures),
        "formulas": FORMULAS,
        "instances": [
            {
                "name": instance.name,
                "spec_name": instance.label,
                "kind": instance.spec.kind,
                "group": instance.group.title,
                "description": instance.spec.description,
                "digests": {"spec": instance.plan.spec_digest, "source": instance.source.digest},
                "source": instance.source_file,
                "certificate": instance.certificate_file,
                "architectures": list(instance.plans),
                "binaries": {name: binaries[instance.name, name] for name in instance.plans if (instance.name, name) in binaries},
                "launches": [
                    {"grid": [str(extent) for extent in launch.grid], "block": list(launch.block)}
                    for launch in instance.plan.sequence.launches
                ],
                "workspace_bytes": str(instance.plan.sequence.workspace_bytes),
            }
            for instance in listing.instances
        ],
    }


def recorded_binaries(manifest: Any) -> dict[tuple[str, str], str]:
    """The digests of binaries that a manifest records; none if it is missing, damaged or older than these records."""
    try:
        return {
            (str(entry["name"]), str(architecture)): str(digest)
            for entry in manifest["instances"]
            for architecture, digest in entry["binaries"].items()
        }
    except (KeyError, TypeError, AttributeError):
        return {}


def describe_launch(sequence: LaunchSequence) -> dict[str, Any]:
    """The signature and the launches, with each kernel's declaration in C, as a host in any language needs them."""
    described = sequence.to_json()
    for index, launch in enumerate(described["launches"]):
        listed = " ".join(parameters(sequence.parameters_of(index)).split())
        launch["declaration"] = f'extern "C" __global__ void {launch["entry"]}({listed})'
    return described


def _problem(plan: KernelPlan, instance: Instance) -> dict[str, int]:
    """A problem that stands for the instance: the first that it is timed on, else the largest that it is verified on."""
    return next(iter(instance.problems()), None) or dict(counted_case_of(plan).dimensions)


def _example(plan: KernelPlan, instance: Instance) -> dict[str, Any]:
    """One problem and the values of the formulas, to test a host's arithmetic against."""
    problem, sequence = _problem(plan, instance), plan.sequence
    return {
        "problem": problem,
        "workspace_bytes": sequence.workspace_bytes.evaluate(problem),
        "workspace_zero_bytes": sequence.workspace_zero_bytes.evaluate(problem),
        "launches": [
            {"entry": launch.entry, "grid": list(launch.grid), "dynamic_shared_bytes": launch.shared_bytes}
            for launch in sequence.resolve(problem)
        ],
    }


def _occupancy(plan: KernelPlan, instance: Instance, facts: Facts) -> dict[str, Any]:
    problem = _problem(plan, instance)
    limits = {}
    for launch in plan.sequence.launches:
        kernel = facts.kernels[launch.entry]
        shared = (kernel["static_shared_bytes"] or 0) + launch.dynamic_shared_bytes.evaluate(problem)
        result = occupancy(plan.architecture, launch.threads, kernel["registers"] or 0, shared)
        limits[launch.entry] = {
            "threads": launch.threads,
            "shared_bytes": shared,
            "blocks_per_sm": result.blocks_per_sm,
            "warps_per_sm": result.warps,
            "fraction": rounded(result.fraction),
            "limited_by": list(result.limited_by),
        }
    return limits


def _numeric_class(plan: KernelPlan) -> dict[str, Any] | None:
    """The class of instances that give a row the same bits as this one, at a depth at which certificates can be compared."""
    known = numeric_class_at(plan, counted_case_of(plan).dimensions, TERMS)
    if known is None:
        return None
    return {"terms": TERMS, **({"name": None, "reason": known.reason} if isinstance(known, NoClass) else {"name": known})}


def _predicted(record: Record, instance: Instance) -> dict[str, Any]:
    """Counters of the emulator, each access site with its line of the source."""
    lines = instance.source.text.splitlines()

    def quoted(line: int) -> str:
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    traffic = record["traffic"]
    sites = [{"line": site["line"], "source": quoted(site["line"]), **site} for site in traffic["sites"]]
    return {**traffic, "sites": sites}


def _proved(proof: Record | None) -> dict[str, Any] | None:
    """The properties that hold for all problems that the launch's constraints allow; None where nothing was proved of this program."""
    if proof is None or not any(proof["kernels"]):
        return None
    return {name: proof[name] for name in ("date", "by", "proved", "kernels")} | {"assumptions": list(ASSUMPTIONS)}


def _verifications(emulated: list[Record], seen: list[Record]) -> list[dict[str, Any]]:
    """The verifications, the newest of each device."""
    newest = {record["device"]: record for record in [*emulated, *seen] if "verification" in record}
    return [{**_origin(record), "architecture": record["architecture"], **record["verification"]} for record in newest.values()]


def _newest(records: Iterable[Record], what: str, key: Any) -> list[dict[str, Any]]:
    """The newest of each device and key in the list ``what``."""
    newest: dict[Any, dict[str, Any]] = {}
    for record in records:
        for item in record.get(what, ()):
            newest[record["device"], key(item)] = {**_origin(record), **item}
    return list(newest.values())


def _origin(record: Record) -> dict[str, Any]:
    names = ("date", "backend", "device", "driver", "compiler")
    return {name: record[name] for name in names if name in record}


def failures(certificate: Mapping[str, object]) -> list[str]:
    """Evidence in a certificate against its instance, in words."""
    return list(dict.fromkeys(failure for one in separated(certificate).values() for failure in _failures(one)))


def _failures(certificate: Mapping[str, Any]) -> list[str]:
    name = certificate["name"]
    texts = [f"{name}: wrong on {item['device']}: {item['failure']}" for item in certificate["verification"] if not item["passed"]]
    over_field = certificate.get("field")
    if over_field and over_field["outcome"] == "wrong":
        texts.append(f"{name}: wrong over a finite field: {over_field['reason']}")
    return texts + [
        f"{name}: {item['tool']} on {item['device']}: {item['failure']}" for item in certificate["sanitizer"] if not item["passed"]
    ]
