"""Files of a release against the package."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
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


COMPOSITE = sorted((ROOT / ".github" / "actions").glob("*/action.yml"))
ACTIONS = [*WORKFLOWS, *COMPOSITE]


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: *(.*)", path.read_text())
    assert not [line for line in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line)]


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.parent.name + path.stem)
def test_checkouts_keep_no_credentials(path: Path) -> None:
    steps = path.read_text().split("uses: ")[1:]
    assert not [step for step in steps if step.startswith("actions/checkout") and "persist-credentials: false" not in step]


@pytest.mark.parametrize("path", COMPOSITE, ids=lambda path: path.parent.name)
def test_what_an_action_is_given_is_no_option(path: Path) -> None:
    text = path.read_text()
    assert 'pip install -- "$REQUIREMENT"' in text
    assert "${{ inputs." not in "".join(re.findall(r"run: *\|?\n?(.*?)(?=\n    - |\Z)", text, re.DOTALL))


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.stem)
def test_no_signing_key_is_in_a_shared_cache(path: Path) -> None:
    assert "cache.key" not in path.read_text() and "~/.cache/gemmgen" not in path.read_text()


def test_a_release_is_tested_first_and_has_provenance() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert "make test" in [step.get("run") for step in jobs["test"]["steps"]] and jobs["build"]["needs"] == "test"
    steps = json.dumps(jobs["build"]["steps"])
    assert "attest-build-provenance" in steps and "docs/sbom.py" in steps and "--require-hashes" in steps and "--no-isolation" in steps


def test_build_tools_are_pinned_with_hashes() -> None:
    lines = (ROOT / ".github" / "requirements" / "build.txt").read_text().replace("\\\n", " ").splitlines()
    assert lines and all(re.match(r"[\w.-]+==\S+\s+--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    wanted = (ROOT / ".github" / "requirements" / "build.in").read_text().split()
    assert {line.partition("==")[0] for line in lines} >= set(wanted)


def test_all_supported_releases_of_python_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python-version"] == stated == ["3.11", "3.12", "3.13", "3.14"]
    assert {one["releases"] for one in jobs["dependencies"]["strategy"]["matrix"]["include"]} == {"lowest", "newest"}


def test_every_dependency_has_a_lowest_release() -> None:
    told = subprocess.run([sys.executable, str(ROOT / ".github" / "lowest.py")], capture_output=True, text=True, check=True).stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [line.partition("==")[0] for line in told.split()] == [re.split("[>=]", one)[0] for one in project["dependencies"]]


def test_the_bill_of_materials_has_what_the_package_needs() -> None:
    told = subprocess.run([sys.executable, str(ROOT / "docs" / "sbom.py"), "gemmgen"], capture_output=True, text=True, check=True).stdout
    document = json.loads(told)
    names = {component["name"] for component in document["components"]}
    assert {"numpy", "pydantic", "pydantic-core", "jinja2", "markupsafe", "nvidia-cuda-nvrtc"} <= names and "pytest" not in names
    assert document["metadata"]["component"]["version"] == __version__


def test_the_action_takes_a_file_whose_name_begins_with_a_dash() -> None:
    assert (
        'gemmgen emulate "${options[@]}" --annotations -- "$FILE"' in (ROOT / ".github" / "actions" / "emulate" / "action.yml").read_text()
    )
