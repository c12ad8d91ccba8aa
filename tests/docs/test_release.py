"""What goes with a release says the same as the package."""

from __future__ import annotations

from pathlib import Path

import yaml

from gemmgen.core.version import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__ and citation["license"] == "Apache-2.0"


def test_the_release_list_names_files_that_exist() -> None:
    text = (ROOT / "RELEASING.md").read_text()
    for name in ("CHANGELOG.md", "gemmgen/core/version.py", "CITATION.cff", "specs/library.yaml", ".ci/run", "docs/stability.md"):
        assert name in text and (ROOT / name).exists()
