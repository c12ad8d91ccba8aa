"""Files of a release against the package."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from gemmgen.core.version import __version__

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCHEMA = json.loads((ROOT / "tests" / "docs" / "github_workflow_schema.json").read_text())  # from SchemaStore, Apache-2.0
spec = importlib.util.spec_from_file_location("release", ROOT / "docs" / "release.py")
assert spec is not None and spec.loader is not None
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__ and citation["license"] == "Apache-2.0"


def test_the_release_list_names_files_that_exist() -> None:
    text = (ROOT / "RELEASING.md").read_text()
    for name in ("CHANGELOG.md", "gemmgen/core/version.py", "CITATION.cff", "specs/library.yaml", ".ci/run", "docs/stability.md"):
        assert name in text and (ROOT / name).exists()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_one_that_github_takes(path: Path) -> None:
    workflow = yaml.load(path.read_text(), yaml.BaseLoader)
    errors = [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(_typed(workflow))]
    assert errors == []


def _typed(value: object) -> object:
    """Texts of a workflow as GitHub's YAML 1.2 reads them, in which ``on`` is no truth value."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return {"true": True, "false": False, "": None}.get(value, int(value) if str(value).isdigit() else value)  # type: ignore[arg-type, call-overload]


def test_every_input_of_the_action_says_whether_it_is_required() -> None:
    action = yaml.safe_load((ROOT / ".github" / "actions" / "emulate" / "action.yml").read_text())
    assert action["inputs"] and all("required" in entry for entry in action["inputs"].values())


def test_the_program_without_a_tag_says_how_it_is_used() -> None:
    result = subprocess.run([sys.executable, str(ROOT / "docs" / "release.py")], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (1, "usage: python docs/release.py vX.Y.Z\n")


def test_a_workflow_makes_targets_that_exist() -> None:
    targets = set((ROOT / "Makefile").read_text().split("\n.PHONY:", 1)[1].split("\n", 1)[0].split())
    used = {target for path in WORKFLOWS for target in re.findall(r"^ *(?:- )?run: make (\S+)", path.read_text(), re.MULTILINE)}
    assert used and used <= targets


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A tree of version 1.2.3."""
    (tmp_path / "gemmgen" / "core").mkdir(parents=True)
    (tmp_path / "gemmgen" / "core" / "version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-12-01)\n\n- New.\n\n## 1.2.2\n\n- Old.\n")
    return tmp_path


def test_notes_of_a_release_are_its_section(released: Path) -> None:
    assert release.notes("v1.2.3", released) == "- New."


def test_a_tag_that_is_not_the_version_is_refused(released: Path) -> None:
    with pytest.raises(SystemExit, match=r"version.py has 1.2.3, the tag is v1.2.4\n.*CITATION.cff.*\n.*no section 1.2.4"):
        release.notes("v1.2.4", released)
