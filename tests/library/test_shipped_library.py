"""The library that ships with gemmgen: that it is current is proved here, that its sources are right by its evidence."""

from __future__ import annotations

from collections import Counter

import pytest

from gemmgen.kernels.manifest import read_manifest
from gemmgen.library.checking import check
from gemmgen.library.folder import shipped_folder
from gemmgen.library.listing import Listing, read_listing


@pytest.fixture(scope="module")
def shipped() -> Listing:
    return read_listing()


def test_sources_certificates_and_manifest_are_current(shipped: Listing) -> None:
    report = check(shipped, shipped_folder(), sample=0)
    assert report.problems == [], "gemmgen library build brings the library up to date"


def test_the_library_covers_every_family_and_what_people_call(shipped: Listing) -> None:
    kinds = Counter(instance.spec.kind for instance in shipped.instances)
    assert sum(kinds.values()) >= 60 and min(kinds.values()) >= 10
    products = [instance.spec for instance in shipped.instances if instance.label.startswith("gemm/simt/sgemm_")]
    for transpose in ("nn", "nt", "tn", "tt"):
        for alignment in (1, 4):
            fitting = [spec for spec in products if (spec.transpose, spec.alignment.a) == (transpose, alignment)]  # type: ignore[attr-defined]
            assert len(fitting) >= 3, (transpose, alignment)


def test_every_instance_is_verified_on_emulator() -> None:
    folder = shipped_folder()
    for entry in read_manifest(folder.path)["instances"]:
        known = folder.certificates(entry)
        assert list(known) == entry["architectures"]
        for certificate in known.values():
            assert any(item["backend"] == "emulator" and item["passed"] for item in certificate["verification"]), entry["certificate"]


def test_files_are_few_and_have_short_names() -> None:
    files = [path for path in shipped_folder().path.rglob("*") if path.is_file()]
    assert len(files) < 800
    assert max(len(path.stem) for path in files) <= 48


def test_every_instance_has_a_problem_that_it_is_timed_on(shipped: Listing) -> None:
    assert [instance.label for instance in shipped.instances if not instance.problems()] == []
