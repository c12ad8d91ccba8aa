"""Tiers of tests: cheap functions keep a case, cases fit a budget, and expensive functions are sampled."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tiers


def chosen(tier: str, *names: str) -> set[str]:
    return tiers.chosen(cast(Any, [SimpleNamespace(nodeid=f"tests/{name}") for name in names]), tier)


@pytest.fixture(autouse=True)
def known_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"tests/a.py::test_slow": 2.0, "tests/a.py::test_cases[1]": 9.0, "tests/a.py::test_cases[2]": 5.0}
    (tmp_path / "costs.json").write_text(json.dumps({"seconds": costs}))
    monkeypatch.setattr(tiers, "COSTS", tmp_path / "costs.json")
    monkeypatch.setattr(tiers, "changed_specs", lambda: ("gemm/changed",))


def test_the_usual_tier_takes_a_sample_of_cheap_cases() -> None:
    assert len(chosen("usual", *(f"a.py::test_cheap[{case}]" for case in range(60)))) == 6
    assert len(chosen("fast", *(f"a.py::test_cheap[{case}]" for case in range(60)))) == 1


def test_expensive_cases_fit_the_budget_of_their_function() -> None:
    assert len(chosen("usual", *(f"a.py::test_slow[{case}]" for case in range(60)))) == 1


def test_a_sampled_expensive_function_keeps_its_cheapest_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "EXPENSIVE_ONE_IN", 1)
    assert chosen("usual", "a.py::test_cases[1]", "a.py::test_cases[2]") == {"tests/a.py::test_cases[2]"}


def test_a_quarter_of_expensive_functions_is_kept(tmp_path: Path) -> None:
    names = [f"a.py::test_{number}" for number in range(60)]
    (tmp_path / "costs.json").write_text(json.dumps({"seconds": {f"tests/{name}": 9.0 for name in names}}))
    assert 5 < len(chosen("usual", *names)) < 25
    assert len(chosen("all", *names)) == 60


def test_cases_of_changed_specs_are_kept() -> None:
    assert len(chosen("usual", *(f"a.py::test_slow[gemm/changed/{case}]" for case in range(5)))) == 5


def test_comments_and_former_names_change_no_kernel(tmp_path: Path) -> None:
    text = (tiers.ROOT / "specs/gemm/wgmma/bf16.yaml").read_text()
    former = f"# A comment.\n{text}".replace("strategy: wgmma", "strategy: tensor_core")
    kernels = []
    for place, changed in enumerate((text, former, text.replace("group: 8", "group: 4"))):
        file = tmp_path / str(place) / "bf16.yaml"
        file.parent.mkdir()
        file.write_text(changed)
        kernels.append(tiers._kernels(file))
    assert kernels[0] and kernels[0] == kernels[1] != kernels[2]
