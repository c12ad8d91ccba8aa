"""Pages of the gallery: each has its picture, its kernel, its evidence and its counters, or says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.kernels.shipped import shipped_specs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gallery(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import gallery

    (tmp_path / "generated").symlink_to(ROOT / "generated")
    monkeypatch.setattr(gallery, "ROOT", tmp_path)  # evidence that an earlier build kept is left alone
    monkeypatch.setenv("GEMMGEN_SITE_VERIFY", "1")
    yield gallery
    del sys.modules["gallery"]


def pages(gallery, monkeypatch, *names):
    shipped = shipped_specs()
    monkeypatch.setattr("gemmgen.kernels.shipped.shipped_specs", lambda: {name: shipped[name] for name in names})
    return dict(gallery.gallery_pages())


def test_a_page_has_all_that_is_known_of_a_spec(gallery, monkeypatch):
    found = pages(gallery, monkeypatch, "gemm/v1_tiled", "reduction/sum_last_block")
    for name, title in (("gemm/v1_tiled", "Certificates"), ("reduction/sum_last_block", "Evidence")):
        page = found[f"gallery/{name}.md"]
        for part in (
            f"## {title}",
            "## The kernel",
            "__global__",
            "## Counters",
            "wavefronts of shared memory",
            "](" + name.rpartition("/")[2],
        ):
            assert part in page
        assert found[f"gallery/{name}.svg"].startswith("<svg")
    assert "Proved for all sizes on sm_75, sm_80, sm_90: memory, races, once, progress" in found["gallery/gemm/v1_tiled.md"]


def test_a_kernel_for_another_processor_says_why_it_did_not_run(gallery, monkeypatch):
    def elsewhere(name, architecture):
        raise EnvironmentMissing("is for another processor")

    monkeypatch.setattr("gemmgen.runtime.native.library.require_host", elsewhere)
    page = pages(gallery, monkeypatch, "cpu/c2_blocked")["gallery/cpu/c2_blocked.md"]
    assert "Not verified on the machine that made this page: is for another processor." in page
    assert "## Counters" in page and "The inner loop of the machine code" in page
    assert not (gallery.ROOT / "build" / "gallery.json").exists()


def test_without_a_compiler_there_is_no_gallery(gallery, monkeypatch):
    def missing(*_):
        raise EnvironmentMissing("NVRTC was not found")

    monkeypatch.setattr("gemmgen.library.emulator_run.prove", missing)
    with pytest.raises(RuntimeError, match="no evidence of reduction/sum_last_block: NVRTC was not found"):
        pages(gallery, monkeypatch, "reduction/sum_last_block")
    assert not (gallery.ROOT / "build" / "gallery.json").exists()


def test_a_usual_build_verifies_and_compiles_nothing(gallery, monkeypatch):
    monkeypatch.delenv("GEMMGEN_SITE_VERIFY")
    monkeypatch.setattr("gemmgen.library.emulator_run.prove", lambda *_: pytest.fail("a kernel was verified"))
    monkeypatch.setattr("gemmgen.toolchain.compilation.compile_plan", lambda *_: pytest.fail("a kernel was compiled"))
    page = pages(gallery, monkeypatch, "reduction/sum_last_block")["gallery/reduction/sum_last_block.md"]
    assert "`gemmgen verify reduction/sum_last_block` verifies it" in page and "__global__" in page
