from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gemmgen.kernels.manifest import MANIFEST
from gemmgen.library.building import Target, build, compile_facts
from gemmgen.library.checking import check
from gemmgen.library.compiled import Facts
from gemmgen.library.evidence import EMULATOR_FILE
from gemmgen.library.folder import LibraryFolder
from gemmgen.library.listing import Instance, Listing, read_listing
from gemmgen.library.over_field import FIELD_FILE
from library.conftest import section

Relist = Callable[[str, str], Listing]


def states(listing: Listing, folder: LibraryFolder, sample: int = 0) -> set[tuple[str, str]]:
    report = check(listing, folder, sample=sample, jobs=1)
    assert report.passed == (not report.problems)
    return {(problem.file.rpartition(".")[2], problem.state) for problem in report.problems}


def first_source(listing: Listing) -> str:
    return listing.instances[0].source_file


def test_a_library_as_built_is_current(listing: Listing, folder: LibraryFolder) -> None:
    report = check(listing, folder, sample=None, jobs=1)
    assert report.problems == [] and report.notes == []
    assert (report.files, report.compiled, report.verified) == (3 + 3 + 1, 5, 3)


def test_a_source_that_was_edited_is_stale(listing: Listing, folder: LibraryFolder) -> None:
    path = folder.path / first_source(listing)
    path.write_text(path.read_text().replace("constexpr", "const", 1))
    assert states(listing, folder) == {("cu", "stale")}


def test_a_missing_source_and_an_extra_certificate_are_named(listing: Listing, folder: LibraryFolder) -> None:
    stem = listing.instances[0].stem
    (folder.path / f"{stem}.cu").unlink()
    (folder.path / f"{stem}x.json").write_bytes((folder.path / f"{stem}.json").read_bytes())
    assert states(listing, folder) == {("cu", "missing"), ("json", "extra")}


def test_foreign_files_are_no_problem(listing: Listing, folder: LibraryFolder) -> None:
    (folder.path / "notes.txt").write_text("mine")
    (folder.path / "mine.json").write_text("[]")
    assert states(listing, folder) == set()


def test_a_changed_spec_makes_files_stale(folder: LibraryFolder, relist: Relist) -> None:
    found = states(relist("gemm/small.yaml", "k: 8 -> k: 16"), folder)
    assert found == {("cu", "stale"), ("json", "stale")}


def test_a_changed_template_makes_sources_and_certificates_stale(
    root: object, folder: LibraryFolder, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmgen.codegen.rendering import Source, render

    monkeypatch.setattr(
        "gemmgen.library.listing.render_with_templates", lambda plan: (Source(plan.name, render(plan).text + "// more\n"), "")
    )
    assert states(read_listing(listing.path), folder) == {("cu", "stale"), ("json", "stale")}


def test_an_unseen_comment_of_a_template_makes_stale(folder: LibraryFolder, listing: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.library.certificate.text_digest", lambda text: "0" * 64)
    assert states(listing, folder) == {("json", "stale")}


def change_registers(folder: LibraryFolder, instance: Instance, add: int) -> None:
    path = folder.path / instance.certificate_file
    registers = section(folder, instance)["binary"][instance.name]["registers"]
    path.write_text(path.read_text().replace(f'"registers": {registers}', f'"registers": {registers + add}', 1))


def test_registers_that_were_changed_by_hand_are_found(listing: Listing, folder: LibraryFolder) -> None:
    file = listing.instances[0].certificate_file
    right = (folder.path / file).read_bytes()
    change_registers(folder, listing.instances[0], 1)
    report = check(listing, folder, sample=0, jobs=1)
    assert [(problem.file, problem.state) for problem in report.problems] == [(file, "stale")]
    assert "differs from the manifest" in report.problems[0].why
    assert build(listing, folder, jobs=1).written == [file]
    assert (folder.path / file).read_bytes() == right


def test_registers_that_compiler_does_not_report_are_found(listing: Listing, folder: LibraryFolder) -> None:
    for instance in listing.instances:
        change_registers(folder, instance, 1)
    manifest = json.loads((folder.path / MANIFEST).read_text())
    for entry in manifest["instances"]:
        del entry["binaries"]
    (folder.path / MANIFEST).write_text(json.dumps(manifest))
    assert ("json", "wrong") in states(listing, folder, sample=1)


def test_another_program_of_the_same_source_is_verified(listing: Listing, folder: LibraryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_otherwise(*arguments: Any) -> dict[Target, Facts]:
        return {target: replace(facts, code="other") for target, facts in compile_facts(*arguments).items()}

    monkeypatch.setattr("gemmgen.library.checking.compile_facts", compile_otherwise)
    report = check(listing, folder, sample=1)
    assert report.passed and report.verified == report.compiled == len(report.notes) > 0
    assert "is verified instead" in report.notes[0]


def test_counts_that_emulator_does_not_confirm_are_found(listing: Listing, folder: LibraryFolder) -> None:
    path = folder.evidence / EMULATOR_FILE
    data = json.loads(path.read_text())
    for record in data["records"]:
        record["traffic"]["sectors"] += 1
    path.write_text(json.dumps(data))
    assert ("json", "wrong") in states(listing, folder, sample=1)


def test_without_evidence_a_certificate_is_unverified(listing: Listing, folder: LibraryFolder) -> None:
    (folder.evidence / EMULATOR_FILE).unlink()
    assert ("json", "unverified") in states(listing, folder)


def test_without_a_run_over_the_field_it_is_unverified(listing: Listing, folder: LibraryFolder) -> None:
    (folder.evidence / FIELD_FILE).unlink()
    assert ("json", "unverified") in states(listing, folder)


def test_evidence_for_other_cases_does_not_count(listing: Listing, folder: LibraryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.library.checking.cases_digest", lambda plan: "0" * 64)
    assert ("json", "unverified") in states(listing, folder)


def test_records_that_nothing_needs_are_stale(listing: Listing, folder: LibraryFolder) -> None:
    path = folder.evidence / EMULATOR_FILE
    data = json.loads(path.read_text())
    data["records"].append({**data["records"][0], "program": "0" * 64})
    path.write_text(json.dumps(data))
    assert states(listing, folder) == {("json", "stale")}


@pytest.mark.usefixtures("other_compiler")
def test_with_another_compiler_nothing_is_compiled(listing: Listing, folder: LibraryFolder) -> None:
    report = check(listing, folder, sample=None, allow_uncompiled=True, jobs=1)
    assert report.passed and report.compiled == 0
    assert "nothing was compiled, which needs NVRTC 13.0" in report.notes[0]


@pytest.mark.usefixtures("other_compiler")
def test_a_gate_that_compiled_nothing_does_not_pass(listing: Listing, folder: LibraryFolder) -> None:
    report = check(listing, folder, sample=2, jobs=1)
    assert [problem.state for problem in report.problems] == ["unchecked"]
    assert "--allow-uncompiled" in report.problems[0].why


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"digests": 3}', b"\xff\xfe", b'{"format": "gemmgen certificate"}'])
def test_a_damaged_certificate_is_named_and_no_crash(listing: Listing, folder: LibraryFolder, damage: bytes) -> None:
    (folder.path / listing.instances[0].certificate_file).write_bytes(damage)
    assert states(listing, folder) == {("json", "damaged" if damage == b"\xff\xfe" else "stale")}


def test_a_folder_that_is_not_there_is_missing(listing: Listing, folder: LibraryFolder) -> None:
    assert check(listing, LibraryFolder(folder.path / "none")).problems[0].state == "missing"


def test_table_of_tuned_instances_that_cannot_be_read_is_damaged(listing: Listing, folder: LibraryFolder) -> None:
    (folder.path / "tuned").mkdir()
    (folder.path / "tuned" / "h200.json").write_text('{"schema_version": 1, "device": "H200", "problems": []}')
    assert states(listing, folder) == set()
    (folder.path / "tuned" / "h200.json").write_text('{"schema_version": 1, "dev')
    report = check(listing, folder, sample=0, jobs=1)
    assert [(problem.file, problem.state) for problem in report.problems] == [("tuned/h200.json", "damaged")]
    assert "is no JSON" in report.problems[0].why and "gemmgen tune" in report.problems[0].why
