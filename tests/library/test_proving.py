from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest

import gemmgen
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.library.building import keep_facts
from gemmgen.library.certificate import make_certificate
from gemmgen.library.evidence import Evidence, read_evidence
from gemmgen.library.folder import LibraryFolder
from gemmgen.library.listing import Instance, Listing
from gemmgen.library.proving import Subject, check_proofs, prove_library
from gemmgen.library.sections import separated
from gemmgen.proof.prover import KernelProof, Property


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the instances that a prover was asked about, which finds every property but one."""
    names: list[str] = []

    def prove(sequence: LaunchSequence, ptx: str, seconds: float) -> Sequence[KernelProof]:
        names.append(sequence.name)
        properties = (Property("memory", "", "proved", 2, 2), Property("races", "", "unproved", 2, 1, ("PTX line 7: may meet line 9",)))
        return tuple(KernelProof(launch.entry, properties, 1.5, 3) for launch in sequence.launches)

    monkeypatch.setattr("gemmgen.proof.prover.prove_sequence", prove)
    return names


def small(listing: Listing) -> Instance:
    return next(found for found in listing.instances if found.label == "gemm/small")


def proved(listing: Listing, folder: LibraryFolder, evidence: Evidence) -> list[object]:
    """The fields of the certificate of the small product."""
    instance = small(listing)
    facts = keep_facts(listing, folder, listing.targets())
    certificate = make_certificate(listing, instance, {name: facts[instance.name, name] for name in instance.plans}, evidence)
    return [one["proved"] for one in separated(certificate).values()]


def test_a_certificate_names_what_was_proved(listing: Listing, folder: LibraryFolder, asked: list[str]) -> None:
    report = prove_library(listing, folder, only={small(listing).name}, seconds=5)
    found = next(item for item in proved(listing, folder, read_evidence(folder.evidence)) if item is not None)
    assert isinstance(found, dict) and found["proved"] == ["memory"] and report.properties == {"memory": 1}


def test_a_proof_does_not_outlive_its_program(listing: Listing, folder: LibraryFolder, asked: list[str]) -> None:
    prove_library(listing, folder, only={small(listing).name}, seconds=5)
    path = folder.evidence / "proofs.json"
    data = json.loads(path.read_text())
    data["records"][0]["code"] = "0" * 64
    path.write_text(json.dumps(data))
    assert set(proved(listing, folder, read_evidence(folder.evidence))) == {None}


def test_a_proof_is_not_tried_twice(listing: Listing, folder: LibraryFolder, asked: list[str]) -> None:
    for again in (False, False, True):
        prove_library(listing, folder, only={small(listing).name}, seconds=5, again=again)
    assert len(asked) == 2


def test_no_instance_is_begun_after_the_time(listing: Listing, folder: LibraryFolder, asked: list[str]) -> None:
    assert prove_library(listing, folder, seconds=5, within=0).tried == 0 and not asked


def test_recorded_proofs_are_repeated(listing: Listing, folder: LibraryFolder, asked: list[str]) -> None:
    prove_library(listing, folder, only={small(listing).name}, seconds=5)
    text = (folder.evidence / "proofs.json").read_text()
    checked = check_proofs(listing, folder, seconds=5)
    assert (checked.repeated, checked.lost) == (1, []) and len(asked) == 2
    assert (folder.evidence / "proofs.json").read_text() == text


def test_a_property_that_is_no_longer_proved_is_named(listing: Listing, folder: LibraryFolder, asked: list[str]) -> None:
    prove_library(listing, folder, only={small(listing).name}, seconds=5)
    path = folder.evidence / "proofs.json"
    data = json.loads(path.read_text())
    data["records"][0]["kernels"][0].append("races")
    path.write_text(json.dumps(data))
    assert check_proofs(listing, folder, seconds=5).lost == [f"{small(listing).name}, kernel 0: races"]


def test_proofs_of_other_programs_and_slow_ones_are_not_repeated(listing: Listing, folder: LibraryFolder, asked: list[str]) -> None:
    prove_library(listing, folder, only={small(listing).name}, seconds=5)
    slow = check_proofs(listing, folder, seconds=2)
    assert (slow.repeated, slow.longer) == (0, 1)
    path = folder.evidence / "proofs.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["records"][0]["code"], "0" * 64))
    other = check_proofs(listing, folder, seconds=5)
    assert (other.repeated, other.stale, other.lost) == (0, 1, [])


def test_kernels_with_functions_are_sent_to_processes(listing: Listing) -> None:
    plan = gemmgen.plan(shipped_specs()["gemm/simt/linear/mlp_gelu"])
    assert isinstance(plan, KernelPlan)
    subject = Subject.of(replace(small(listing), plans={"sm_75": plan}))
    assert pickle.loads(pickle.dumps(subject)).sequence.launches == plan.sequence.launches
