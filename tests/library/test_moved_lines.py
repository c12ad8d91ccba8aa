"""Evidence of sources in which only comments changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmgen.library import building
from gemmgen.library.building import build
from gemmgen.library.compiled import Facts
from gemmgen.library.digests import text_digest
from gemmgen.library.evidence import Record
from gemmgen.library.folder import LibraryFolder
from gemmgen.library.listing import Listing
from gemmgen.library.moved_lines import moved_record

OLD = "int a;\n// a comment\nx = load();\nstore(x);\n"
FACTS = Facts("new program", "code", {})


def record(source: str = OLD, code: str = "code") -> Record:
    sites = [{"line": 3, "global": {"load": 1}}, {"line": 4, "global": {"store": 1}}]
    return {"code": code, "cases": "cases", "options": "o", "source": text_digest(source), "program": "old", "traffic": {"sites": sites}}


@pytest.mark.parametrize(
    ("new", "lines"),
    [
        ("int a;\n// a longer\n// comment\nx = load();\nstore(x);\n", [4, 5]),
        ("int a;\nx = load();\nint b;\nstore(x);\n", [2, 4]),
        ("int a;\n// a comment\nx = load(kFirst);\nstore(x);\n", [3, 4]),
        ("int a;\n// a comment\nx = load(\n    kFirst);\nstore(x);\n", None),
        ("int a;\n// a comment\nreturn;\nstore(x);\n", None),
    ],
)
def test_lines_of_the_same_code_are_told_anew(new: str, lines: list[int] | None) -> None:
    moved = moved_record([record()], FACTS, "cases", "o", OLD, new)
    assert (None if moved is None else [site["line"] for site in moved["traffic"]["sites"]]) == lines
    assert moved is None or (moved["program"], moved["source"]) == ("new program", text_digest(new))


def test_other_code_and_other_sources_have_no_evidence_here() -> None:
    others = [record(code="other"), record(source="another text")]
    assert moved_record(others, FACTS, "cases", "o", OLD, "// new\n" + OLD) is None


def test_a_record_of_the_same_program_holds_as_well() -> None:
    earlier = [record(source="a head that no line of code knows")]
    assert moved_record(earlier, FACTS, "cases", "o", OLD, "// new\n" + OLD, "another program") is None
    moved = moved_record(earlier, FACTS, "cases", "o", OLD, "// new\n" + OLD, "old")
    assert moved is not None and [site["line"] for site in moved["traffic"]["sites"]] == [4, 5]


def test_a_build_after_a_comment_changed_runs_nothing(
    listing: Listing, folder: LibraryFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder is made to hold the output of an older template: one comment less, all lines one further up."""
    small = next(instance for instance in listing.instances if instance.label == "gemm/small")
    name, source = small.name, folder.path / small.source_file
    text = source.read_text()
    old = text.replace("// SPDX-License-Identifier: Apache-2.0\n", "", 1)
    source.write_text(old)
    file = folder.evidence / "emulator.json"
    evidence = json.loads(file.read_text())
    before = json.loads(file.read_text())
    for known in evidence["records"]:
        if known["instance"] == name:
            known["program"], known["source"] = f"old {known['program'][4:]}", text_digest(old)
            for site in known["traffic"]["sites"]:
                site["line"] -= 1
    file.write_text(json.dumps(evidence))
    for certificate in (folder.path / small.certificate_file,):
        certificate.write_text(certificate.read_text().replace(text_digest(text), text_digest(old)))
    monkeypatch.setattr(building, "prove", lambda *_: pytest.fail("the code is the same"))
    assert build(listing, folder, jobs=1).verified == 0
    assert json.loads(file.read_text()) == before and source.read_text() == text
