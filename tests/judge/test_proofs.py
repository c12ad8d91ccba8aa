"""Proofs about candidates, and counterexamples that become problems."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gemmgen.judge.api import judge
from gemmgen.judge.candidates import KernelCandidate
from gemmgen.judge.proofs import prove
from gemmgen.judge.task import Task
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import load_kernel

from .corpus import MAP, PLAIN_MAP, map_source

pytest.importorskip("z3")
REFERENCES = Path(__file__).with_name("references.py")


@pytest.mark.parametrize(
    ("body", "kinds", "proved"),
    [(PLAIN_MAP, [], True), (f"{PLAIN_MAP} if (n == 7777 && i == 0) y[n] = 0.0f;", ["out-of-bounds"], False)],
)
def test_a_counterexample_finds_sizes_that_nobody_draws(tmp_path: Path, body: str, kinds: list[str], proved: bool) -> None:
    (tmp_path / "map.cu").write_text(map_source(body))
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(MAP))
    found = judge(tmp_path / "map.cu", tmp_path / "task.yaml", (REFERENCES, "scale_add"), ("n=256",), prove_seconds=30)
    assert found.kinds == kinds
    assert (found.proofs["memory"] == "proved") == proved
    if kinds:
        assert found.failures[0].shape == {"n": 7777}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"block": ["n"]}, "a block depend"),
        ({"arguments": [*MAP["arguments"][:3], {"name": "n", "value": "n + 0"}]}, "is a formula"),
        ({"grid": ["rows"]}, "rows is no argument"),
    ],
)
def test_tasks_that_proofs_do_not_take_are_told(more: dict[str, object], reason: str) -> None:
    task = Task.model_validate({**MAP, **more})
    kernel = KernelCandidate(load_kernel(map_source(PLAIN_MAP), "map.cu", Path(), CompileOptions("sm_80")), task)
    assert reason in str(prove(kernel, 1))
