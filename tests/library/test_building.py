from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gemmgen.core.errors import EnvironmentMissing, GemmgenError, VerificationError
from gemmgen.kernels.manifest import read_manifest
from gemmgen.library import building
from gemmgen.library.building import build
from gemmgen.library.folder import LibraryFolder
from gemmgen.library.listing import Listing
from library.conftest import section

Relist = Callable[[str, str], Listing]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_library_has_sources_certificates_and_a_manifest(listing: Listing, folder: LibraryFolder) -> None:
    files = contents(folder.path)
    assert sorted(name.rsplit(".", 1)[1] for name in files) == ["cu"] * 3 + ["json"] * (3 + 1 + 2)
    entries = read_manifest(folder.path)["instances"]
    assert [entry["name"] for entry in entries] == [instance.name for instance in listing.instances]
    for entry in entries:
        assert entry["source"] in files
        assert entry["certificate"] in files


def test_building_in_two_places_gives_the_same_bytes(listing: Listing, folder: LibraryFolder, tmp_path: Path) -> None:
    elsewhere = LibraryFolder(tmp_path / "deep" / "elsewhere")
    build(listing, elsewhere, jobs=1)
    assert contents(elsewhere.path) == contents(folder.path)


def test_a_build_runs_nothing_for_which_there_is_evidence(
    listing: Listing, folder: LibraryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("prove", "run_over_field"):
        monkeypatch.setattr(building, name, lambda *_: pytest.fail("the evidence was there"))
    report = build(listing, LibraryFolder(tmp_path / "new"), seed=folder, jobs=1)
    assert report.verified == report.over_field == 0
    assert contents(tmp_path / "new") == contents(folder.path)


def test_several_processes_build_the_same(listing: Listing, folder: LibraryFolder, tmp_path: Path) -> None:
    report = build(listing, LibraryFolder(tmp_path / "new"), jobs=2)
    assert report.verified > 1
    assert contents(tmp_path / "new") == contents(folder.path)


@pytest.mark.usefixtures("idle")
def test_building_again_touches_no_file(listing: Listing, folder: LibraryFolder) -> None:
    before = stamps(folder.path)
    report = build(listing, folder, jobs=1)
    assert (report.compiled, report.verified, report.written, report.removed) == (0, 0, [], [])
    assert stamps(folder.path) == before


def test_certificates_of_another_program_are_made_anew(folder: LibraryFolder, listing: Listing) -> None:
    """Another build of the compiler, of the release that the list names, made the program that certificates and manifest record."""
    good = contents(folder.path)
    for instance in listing.instances:
        for architecture in instance.plans:
            digest = section(folder, instance, architecture)["digests"]["program"]
            path = folder.path / instance.certificate_file
            path.write_text(path.read_text().replace(digest, digest[::-1]))
    manifest = folder.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"binaries"', '"formerly"'))
    for file in folder.evidence.glob("*.json"):
        file.unlink()
    report = build(listing, folder, jobs=1)
    assert report.compiled and report.verified and report.written
    for name in good:
        assert contents(folder.path)[name] == good[name], name
    again = build(listing, folder, jobs=1)
    assert (again.compiled, again.verified, again.written) == (0, 0, [])


def test_only_instance_whose_spec_changed_is_built(folder: LibraryFolder, listing: Listing, relist: Relist) -> None:
    before, old = stamps(folder.path), next(found for found in listing.instances if found.label == "gemm/small").name
    report = build(relist("gemm/small.yaml", "k: 8 -> k: 16"), folder, jobs=1)
    new = read_manifest(folder.path)["instances"]
    assert report.compiled == 2
    assert report.removed == []
    assert {entry["name"] for entry in new}.isdisjoint({old})
    changed = {name for name, stamp in stamps(folder.path).items() if before.get(name) != stamp}
    assert len(changed) == 2 + 3  # source and certificate; manifest and both files of evidence


def test_instance_no_longer_listed_is_removed(folder: LibraryFolder, relist: Relist) -> None:
    foreign = {"notes.txt": "mine", "kernel.cu": "__global__ void mine() {}", "data.json": "{}", "list.json": "[1]", "broken.json": "{"}
    for name, text in foreign.items():
        (folder.path / name).write_text(text)
    (folder.path / "tuned").mkdir()
    (folder.path / "tuned" / "h200.json").write_text("{}")
    (folder.evidence / "h200.json").write_text('{"format": "gemmgen evidence", "schema_version": 1, "run": {}, "records": []}')
    report = build(relist("library.yaml", "gemm/* -> gemm/hopper"), folder, jobs=1)
    assert report.removed == ["gemm/simt/small.cu", "gemm/simt/small.json"]
    assert {name: (folder.path / name).read_text() for name in foreign} == foreign
    assert (folder.path / "tuned" / "h200.json").exists() and (folder.evidence / "h200.json").exists()


@pytest.mark.usefixtures("idle")
def test_a_description_changes_files_without_compiling(folder: LibraryFolder, relist: Relist) -> None:
    report = build(relist("gemm/small.yaml", "A small product -> A little product"), folder, jobs=1)
    assert len(report.written) == 1 + 1


@pytest.mark.usefixtures("other_compiler")
def test_another_compiler_keeps_what_has_not_changed(folder: LibraryFolder, listing: Listing, relist: Relist) -> None:
    assert build(listing, folder, jobs=1).written == []
    with pytest.raises(EnvironmentMissing, match=r"gemm/small .*NVRTC 13\.0.*pip install 'nvidia-cuda-nvrtc==13\.0\.\*'"):
        build(relist("gemm/small.yaml", "k: 8 -> k: 16"), folder, jobs=1)


def test_a_wrong_instance_is_not_certified(folder: LibraryFolder, relist: Relist, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmgen.codegen.rendering import Source, render

    def broken(plan: object) -> Source:
        source = render(plan)  # type: ignore[arg-type]
        return Source(source.name, source.text.replace("fmaf(", "-fmaf("))

    listing = relist("gemm/small.yaml", "k: 8 -> k: 16")
    for module in ("gemmgen.toolchain.compilation.render", "gemmgen.codegen.rendering.render", "gemmgen.verification.runner.render"):
        monkeypatch.setattr(module, broken)
    with pytest.raises(VerificationError, match=r"is wrong on the emulator: .*: C\[0, 0\] is"):
        build(listing, folder, jobs=1)
    names = {entry["spec_name"]: entry["name"] for entry in read_manifest(folder.path)["instances"]}
    assert names["gemm/small"] not in {found.name for found in listing.instances}


def test_an_interrupted_build_keeps_what_it_verified(folder: LibraryFolder, relist: Relist, monkeypatch: pytest.MonkeyPatch) -> None:
    relist("gemm/small.yaml", "k: 8 -> k: 16")
    listing = relist("reduction/rows.yaml", "sum -> max")
    real, calls = building.prove, []

    def interrupted(path: Path, architecture: str) -> dict[str, object]:
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(path, architecture)

    monkeypatch.setattr(building, "prove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(listing, folder, jobs=1)
    monkeypatch.setattr(building, "prove", real)
    assert build(listing, folder, jobs=1).verified == 1


def test_a_wrong_verdict_over_the_field_fails_the_build(folder: LibraryFolder, relist: Relist, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmgen.verification.field import FieldReport

    def wrong(plan: object, binary: object) -> FieldReport:
        return FieldReport("small", "wrong", 1, 0.0, {}, "C[0, 0] is another polynomial", 0.0)

    monkeypatch.setattr("gemmgen.library.over_field.verify_field", wrong)
    with pytest.raises(VerificationError, match=r"wrong over a finite field: C\[0, 0\] is another polynomial"):
        build(relist("gemm/small.yaml", "k: 8 -> k: 16"), folder, jobs=1)


def test_a_build_interrupted_over_the_field_keeps_its_runs(
    folder: LibraryFolder, listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = building.run_over_field, []
    (folder.evidence / "field.json").unlink()

    def interrupted(path: Path, architecture: str) -> object:
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(path, architecture)

    monkeypatch.setattr(building, "run_over_field", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(listing, folder, jobs=1)
    monkeypatch.setattr(building, "run_over_field", real)
    assert build(listing, folder, jobs=1).over_field == 1


def test_named_instances_are_built_and_the_others_left_alone(folder: LibraryFolder, relist: Relist) -> None:
    relist("gemm/small.yaml", "k: 8 -> k: 16")
    listing = relist("reduction/rows.yaml", "sum -> max")
    wanted = next(found.name for found in listing.instances if found.label == "gemm/small")
    report = build(listing, folder, only=[wanted], jobs=1)
    assert report.compiled == 2
    assert report.removed == []
    assert not any("max" in name for name in contents(folder.path))


def test_evidence_of_a_failure_on_a_gpu_fails_the_build(folder: LibraryFolder, listing: Listing) -> None:
    instance = next(found for found in listing.instances if found.label == "gemm/small")
    digests = section(folder, instance)["digests"]
    record = {name: digests[name] for name in ("program", "code", "source", "options")}
    record |= {"instance": instance.name, "architecture": "sm_90"}
    record["verification"] = {"passed": False, "cases": 3, "elements": 9, "worst_ratio": None, "failure": "C[0, 0] is 1, expected 2"}
    run = {"backend": "gpu", "device": "NVIDIA H200", "date": "2026-01-01", "compiler": "13.0"}
    text = json.dumps({"format": "gemmgen evidence", "schema_version": 1, "run": run, "records": [record]})
    (folder.evidence / "h200.json").write_text(text)
    with pytest.raises(VerificationError, match=r"wrong on NVIDIA H200: C\[0, 0\] is 1"):
        build(listing, folder, jobs=1)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "other", "schema_version": 1, "run": {}, "records": []}'])
def test_a_file_that_holds_no_evidence_is_named(folder: LibraryFolder, listing: Listing, text: str) -> None:
    (folder.evidence / "odd.json").write_text(text)
    with pytest.raises(GemmgenError, match=r"odd\.json does not hold evidence"):
        build(listing, folder, jobs=1)


def test_a_folder_that_cannot_be_written_is_named(listing: Listing, folder: LibraryFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GemmgenError, match="cannot be written"):
        build(listing, LibraryFolder(tmp_path / "file" / "below"), seed=folder, jobs=1)
