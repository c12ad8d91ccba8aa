"""The referee refuses every exploit with its kind, and accepts honest kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from sampling import ALL

from gemmgen.cli import cli
from gemmgen.core.errors import SpecError
from gemmgen.judge.page import verdict_page
from gemmgen.judge.referee import KINDS, Failure, Referee, Verdict
from gemmgen.judge.reference import Question, answers
from gemmgen.judge.task import Task, parse_shapes
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import load_kernel

from .corpus import GEMM, GEMM_SHAPE, LOOP, Candidate, exploits, gemm_source, honest

REFERENCES = Path(__file__).with_name("references.py")
MOST_SECONDS = 60


def verdict_of(candidate: Candidate) -> Verdict:
    code = load_kernel(candidate.source, f"{candidate.name}.cu", Path(), CompileOptions("sm_80"))
    return Referee(code, Task.model_validate(candidate.task), (REFERENCES, candidate.function), parse_shapes((candidate.shape,))).judge()


@pytest.mark.parametrize("candidate", exploits() if ALL else exploits()[1::12], ids=lambda candidate: candidate.name)
def test_an_exploit_is_refused_with_its_kind(candidate):
    verdict = verdict_of(candidate)
    assert candidate.kind in verdict.kinds, verdict.failures
    assert verdict.seconds < MOST_SECONDS


@pytest.mark.parametrize("candidate", honest() if ALL else honest()[2::13], ids=lambda candidate: candidate.name)
def test_an_honest_kernel_is_accepted(candidate):
    verdict = verdict_of(candidate)
    assert verdict.accepted, verdict.failures
    assert verdict.seconds < MOST_SECONDS


def test_the_corpus_has_sixty_exploits_and_sixty_kernels():
    kinds = [candidate.kind for candidate in exploits()]
    assert len(kinds) == len(honest()) == 60
    assert len(set(kinds)) == 20
    assert set(kinds) <= KINDS.keys()
    assert len({candidate.name for candidate in honest()}) == 60


@pytest.fixture
def files(tmp_path):
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(GEMM))
    (tmp_path / "good.cu").write_text(gemm_source(LOOP))
    (tmp_path / "bad.cu").write_text(gemm_source(LOOP, "C[i] = -sum;"))
    return tmp_path


@pytest.mark.parametrize(("name", "code"), [("good.cu", 0), ("bad.cu", 1)])
def test_the_command_says_so_by_its_exit_code(files, name, code):
    options = ["--task", str(files / "task.yaml"), "--reference", f"{REFERENCES}:gemm", "--shapes", GEMM_SHAPE]
    result = CliRunner().invoke(cli, ["judge", str(files / name), *options, "--json"])
    assert result.exit_code == code, result.output
    found = json.loads(result.output)
    assert found["accepted"] == (code == 0)
    assert ("wrong-function" in found["kinds"]) == (code == 1)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("while True: pass", "more than|ended without|CPU"),
        ("raise ValueError('no')", "no"),
        ("return {'C': 'text'}", ""),
        ("import os; os._exit(3)", "without results"),
    ],
)
def test_a_reference_that_fails_is_told_in_one_line(tmp_path, body, told):
    file = tmp_path / "reference.py"
    file.write_text(f"def f(sizes, arrays):\n    {body}\n")
    try:
        found = answers(file, "f", [Question({"m": 1}, {})], seconds=2)
    except SpecError as error:
        assert "\n" not in str(error)
    else:
        assert found[0]["C"].dtype.kind == "U"
        assert not told


@pytest.mark.parametrize("text", ["m", "m=", "m=1,n=x", "m=-1", "=3", "m=99999999"])
def test_shapes_that_are_none_are_refused(text):
    with pytest.raises(SpecError):
        parse_shapes((text,))


def test_the_page_escapes_what_a_kernel_says():
    verdict = Verdict("<script>.cu", [Failure("traps", {"m": 1}, "<b>no</b>")])
    page = verdict_page(verdict)
    assert "<script>.cu" not in page
    assert "<b>no</b>" not in page
