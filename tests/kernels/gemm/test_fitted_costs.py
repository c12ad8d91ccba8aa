"""The data file of fitted costs, and the fit."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import gemmgen
from gemmgen.dispatch.model import model_seconds
from gemmgen.hardware.target import device
from gemmgen.kernels.family import Costs, Work
from gemmgen.kernels.gemm import fitted_costs
from measurements import fit_costs

ROOT = Path(__file__).resolve().parents[3]


def data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fitted_costs.FILE.read_text())
    return found


def test_every_fit_names_its_origin() -> None:
    found = data()
    used = {row["origin"] for section in ("kinds", "stores") for row in found[section].values()}
    assert used == found["origins"].keys()
    for origin in found["origins"].values():
        assert {"device", "date", "command", "data"} <= origin.keys()
        in_history = origin["data"].startswith("revision ")
        assert in_history or (ROOT / origin["data"]).is_file() or (ROOT / "generated" / origin["data"]).is_file()


def test_costs_are_costs_and_say_no_default() -> None:
    plain = {field.name: field.default for field in fields(Costs)}
    for kind, row in data()["kinds"].items():
        assert row["costs"].keys() <= plain.keys(), kind
        assert all(value != plain[name] for name, value in row["costs"].items()), kind


def test_the_file_is_as_the_fit_writes_it() -> None:
    assert fitted_costs.FILE.read_text() == fitted_costs.as_text(data())


def test_nothing_is_read_before_a_time_is_asked_for(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(fitted_costs, "FILE", tmp_path / "missing.json")
    monkeypatch.setattr(fitted_costs, "fitted_costs", cache(fitted_costs.fitted_costs.__wrapped__))
    assert gemmgen.plan("gemm/v3_double_buffer").name


def test_a_fit_finds_the_cost_that_times_were_made_with() -> None:
    h200 = device("H200")

    def work(steps: float) -> Work:
        costs = fitted_costs.costs_of("repairs")
        return Work(1000, 128, 40, 0, steps, 4096.0, "fp32", 1.0, 0.0, 8192.0, 2.0, 512.0, 1e6, costs=costs)

    def timing(steps: float) -> fit_costs.Timing:
        real = work(steps)
        slower = Work(**{**{f.name: getattr(real, f.name) for f in fields(Work)}, "costs": Costs(latency=0.87, idle=-0.95, loads=2.0)})
        return fit_costs.Timing("problem", model_seconds((slower,), h200), lambda: (work(steps),))

    timings = [timing(steps) for steps in (10.0, 100.0, 1000.0)]
    before = fit_costs.spread(timings, h200)
    assert abs(fit_costs.fit("repairs", timings, h200).loads - 2.0) < 0.2
    assert fit_costs.spread(timings, h200) == before, "a fit leaves the costs in force as they are"


def test_written_fits_replace_their_kinds_alone() -> None:
    text = fit_costs.written({"repairs": Costs(loads=3.0)}, device("H200"), "the command")
    old, new = data(), json.loads(text)
    assert new["kinds"].pop("repairs")["costs"] == {"loads": 3.0}
    assert old["kinds"].pop("repairs")
    assert old["kinds"] == {kind: row for kind, row in new["kinds"].items()}
