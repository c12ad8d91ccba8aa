"""Every technique of the sources has a spec, a template, a picture and a measurement, and every step of a story was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gemmgen.kernels.spec_files import load_spec
from measurements.stories import CHAPTERS

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "stories" / "techniques.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TABLE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| technique")
]


def test_the_table_has_all_five_sources() -> None:
    sections = re.findall(r"^## (.*)$", TABLE.read_text(), re.MULTILINE)
    assert len(sections) == 5 and len(ROWS) >= 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_technique_is_complete(row: list[str]) -> None:
    _, specs, template, picture, measurement = row
    named = [name for name in re.findall(r"`([^`]+)`", specs) if re.fullmatch(r"(gemm|conv2d|reduction|elementwise|cpu)(/\w+)+", name)]
    assert named or specs.startswith("any")
    for name in named:
        load_spec(name)
    assert (ROOT / template.strip("`")).exists()
    assert re.match(r"`gemmgen (draw|banks) ", picture) or picture.startswith("[")
    assert re.search(r"\]\([^)]+\)", measurement)


def test_every_step_of_the_stories_was_measured() -> None:
    measured = json.loads((ROOT / "measurements" / "stories.json").read_text())
    found = {chapter["chapter"]: [(step["spec"], tuple(step["changes"])) for step in chapter["steps"]] for chapter in measured["chapters"]}
    assert found == {chapter.name: [(step.spec, step.changes) for step in chapter.steps] for chapter in CHAPTERS}
    assert measured["device"].startswith("NVIDIA") and measured["date"]
    assert all(step["checked"] and step["median_us"] > 0 for chapter in measured["chapters"] for step in chapter["steps"])


STORIES = sorted(path for path in TABLE.parent.glob("*.md") if path.stem not in ("index", "techniques", "programs"))


UNTIMED = ("blackwell", "proof")
"""Stories of kernels that no developer can run, and of none that gets faster."""


@pytest.mark.parametrize("page", STORIES, ids=lambda path: path.stem)
def test_a_story_ends_with_exercises_that_have_answers(page: Path) -> None:
    (exercises,) = re.findall(r"^## Exercises$(.*)", page.read_text(), re.MULTILINE | re.DOTALL)
    questions = re.split(r"^\d\. ", exercises, flags=re.MULTILINE)[1:]
    assert len(questions) >= 2
    commands = [re.search(r"^<!-- run .*-->\n```console\n\$ gemmgen .*\n.+", question, re.MULTILINE) for question in questions]
    hidden = [re.search(r"<summary>Answer</summary>\s*\S", question) for question in questions]
    assert all(commands) or all(hidden)


@pytest.mark.parametrize("page", STORIES, ids=lambda path: path.stem)
def test_a_story_shows_what_changes_in_a_kernel(page: Path) -> None:
    text = page.read_text()
    codes = re.findall(r"^<!-- (?:code|run) .*-->\n```\w+\n", text, re.MULTILINE)
    assert re.search(r"^<!-- diff .*-->\n```diff\n--- ", text, re.MULTILINE) or len(codes) >= 4


@pytest.mark.parametrize("page", STORIES, ids=lambda path: path.stem)
def test_a_story_shows_what_it_gained(page: Path) -> None:
    text = page.read_text()
    charted = re.search(r"^<!-- chart \w+ -->\n!\[", text, re.MULTILINE) and re.search(r"^<!-- times \w+ -->\n\|", text, re.MULTILINE)
    gains = re.findall(r"^\*\*Gain\.\*\* .*\d", text, re.MULTILINE)
    limits = re.findall(r"^\*\*Limit\.\*\* ", text, re.MULTILINE)
    assert charted or len(gains) >= 5 or (page.stem in UNTIMED and len(limits) >= 3)
