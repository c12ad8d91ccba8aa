from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Run, no_gpu, run

from gemmgen.library.evidence import PROOFS_FILE, evidence_text
from gemmgen.library.folder import LibraryFolder
from gemmgen.library.listing import Listing

__all__ = ["no_gpu", "run"]


def test_build_says_what_it_wrote_and_check_that_nothing_is_left(run: Run, root: Path) -> None:
    spec = root / "specs" / "gemm" / "small.yaml"
    spec.write_text(spec.read_text().replace("A small product", "A little product"))
    where = ("--list", root / "specs" / "library.yaml")
    stale = run("library", "check", "--library", root / "generated", *where, "--sample", "0", code=1)
    assert stale.out.count("stale") == 1 and "2 files: a build writes other content" in stale.out
    assert '"description": "A small product.",\', a build writes' in stale.out
    assert "gemmgen library build --output" in stale.err
    built = run("library", "build", "-o", root / "generated", *where, "--jobs", "1")
    assert "written    manifest (1 file)\n" in built.out and "gemm/simt/small (1 file)" in built.out
    counts = "0 compiled, 0 carried over, 0 verified, 0 run over a finite field, 0 failed; 2 files written, 0 removed"
    assert f"3 instances: {counts}" in built.err
    assert run("library", "build", "-o", root / "generated", *where).out == ""
    checked = run("library", "check", "--library", root / "generated", *where, "--all", "--json", "--jobs", "1").json
    assert checked["passed"] is True and checked["compiled"] == 5 and checked["problems"] == []


def test_list_shows_every_instance_and_kind_chooses(run: Run, folder: LibraryFolder) -> None:
    shown = run("library", "list", "--library", folder.path).out
    assert "gemm/small" in shown and "Sums of rows." in shown and "emulator" in shown and "3 instances" in shown
    entries = run("library", "list", "--library", folder.path, "--kind", "reduction", "--json").json
    assert [entry["spec_name"] for entry in entries] == ["reduction/rows"]
    assert "the library has gemm, reduction" in run("library", "list", "--library", folder.path, "--kind", "fft", code=2).err


def test_show_takes_a_spec_a_name_or_the_beginning_of_one(run: Run, folder: LibraryFolder, listing: Listing) -> None:
    name = next(found.name for found in listing.instances if found.label == "reduction/rows")
    names = ("reduction/rows", name, name[:6], "specs/reduction/rows.yaml")
    (text,) = {run("library", "show", one, "--library", folder.path).out for one in names}
    for piece in (name, 'extern "C" __global__', "registers", "Evidence for sm_90", "whose PTX is the same", "sectors", "X: f32"):
        assert piece in text
    certificates = run("library", "show", name, "--library", folder.path, "--json", "--arch", "sm_90").json
    assert [certificate["architecture"] for certificate in certificates] == ["sm_90"]


def test_show_names_obstacles_of_proofs(run: Run, folder: LibraryFolder, listing: Listing) -> None:
    instance = next(found for found in listing.instances if found.label == "reduction/rows")
    fields = {
        "date": "2026-01-02",
        "by": "z3",
        "architecture": "sm_90",
        "code": "0" * 64,
        "launch": "1" * 64,
        "proved": [],
        "kernels": [[]],
    }
    reasons = ["memory: PTX line 7: not aligned", "races: PTX line 7: not aligned", "once: PTX line 9: stored twice"]
    record = {"backend": "proof", **fields, "instance": instance.name, "seconds": 1.5, "obstacles": reasons}
    (folder.evidence / PROOFS_FILE).write_text(evidence_text({"backend": "proof"}, [record]))
    shown = run("library", "show", "reduction/rows", "--library", folder.path).out
    (folder.evidence / PROOFS_FILE).unlink()
    assert "  memory, races: PTX line 7: not aligned" in shown and "  once: PTX line 9: stored twice" in shown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "names no instance"),
        ("sgemm", "is the beginning of 2 names"),
        ("reduction/row", "did you mean reduction/rows"),
        ("\x00", "names no instance"),
    ],
)
def test_a_name_that_is_none_or_several_is_told(run: Run, folder: LibraryFolder, name: str, message: str) -> None:
    assert message in run("library", "show", name, "--library", folder.path, code=2).err


def test_a_place_without_a_library_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "other"}))
    for arguments in (("list",), ("show", "x")):
        assert "holds no library" in run("library", *arguments, "--library", tmp_path / "none", code=2).err
        assert "is a file" in run("library", *arguments, "--library", tmp_path / "file", code=2).err
        assert "is not a manifest" in run("library", *arguments, "--library", tmp_path, code=2).err
    assert "is a file" in run("library", "build", "-o", tmp_path / "file", code=2).err


def test_show_of_a_damaged_certificate_is_told(run: Run, folder: LibraryFolder, listing: Listing) -> None:
    (folder.path / listing.instances[0].certificate_file).write_text("{")
    assert "is missing or damaged" in run("library", "show", listing.instances[0].name, "--library", folder.path, code=2).err


def test_an_installed_gemmgen_builds_only_where_it_is_told_to(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_resources" / "specs").mkdir(parents=True)
    monkeypatch.setattr("gemmgen.library.folder.resource_directory", lambda name: tmp_path / "_resources" / name)
    assert "--output" in run("library", "build", code=2).err


@pytest.mark.usefixtures("no_gpu")
def test_measuring_needs_a_gpu(run: Run) -> None:
    assert "no NVIDIA driver" in run("library", "measure", "-o", "x.json", code=2).err
    assert not Path("x.json").exists()
