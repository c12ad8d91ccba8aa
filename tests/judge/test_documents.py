"""The examples of docs/judge.md as they are written: the fixture and the action refuse the kernel, and accept a corrected one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .test_judge import HELD_OUT

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/judge.md").read_text()
ACTION = yaml.safe_load((ROOT / ".github/actions/judge/action.yml").read_text())
WHOLE = (
    ("for (int step = 0; step < k / 8; ++step)", "for (int step = 0; step < (k + 7) / 8; ++step)"),
    ("i < 8 * step + 8", "i < 8 * step + 8 && i < k"),
)


def block(language: str, start: str) -> str:
    """The block of the page that begins so."""
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if text.startswith(start))


@pytest.fixture(params=[False, True], ids=["as written", "corrected"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool]:
    """The folder with the page's files, and whether its kernel is right."""
    text = block("cuda", "// candidate.cu")
    for wrong, right in WHOLE if request.param else ():
        assert wrong in text
        text = text.replace(wrong, right)
    (tmp_path / "candidate.cu").write_text(text)
    (tmp_path / "task.yaml").write_text(block("yaml", "grid:"))
    (tmp_path / "reference.py").write_text(block("python", '"""The outputs'))
    (tmp_path / "test_kernel.py").write_text(block("python", "def test_kernel"))
    return tmp_path, bool(request.param)


def run(words: list[str], folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """A command with the commands of this environment."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **inputs, "PATH": paths}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_page_counts_the_kernels_that_were_written_later():
    exploits = sum(bool(each.kind) for each in HELD_OUT)
    assert f"{exploits} exploits and {len(HELD_OUT) - exploits} honest kernels that were written later" in PAGE.replace("\n", " ")


def test_the_fixture_fails_with_the_kind(kernel):
    folder, right = kernel
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_kernel.py"], folder)
    assert done.returncode == (0 if right else 1), done.stdout + done.stderr
    assert ("wrong-at-shape" in done.stdout) != right


def test_the_action_fails_with_the_kind(kernel):
    folder, right = kernel
    (step,) = [each for each in yaml.safe_load(block("yaml", "- uses: actions/checkout")) if each["uses"].endswith("judge")]
    given = {name: str(value.get("default", "")) for name, value in ACTION["inputs"].items()} | step["with"]
    assert set(given) == set(ACTION["inputs"])
    inputs = {name.upper().replace("-", "_"): str(value) for name, value in given.items()}
    done = run(["bash", "-c", ACTION["runs"]["steps"][-1]["run"]], folder, **inputs)
    assert done.returncode == (0 if right else 1), done.stdout + done.stderr
    assert ("wrong-at-shape" in done.stdout) != right
    assert (folder / "verdict.html").stat().st_size > 1000
