from __future__ import annotations

from pathlib import Path

from cli.conftest import Run


def test_verification_can_show_what_a_case_costs(run: Run, spec: Path) -> None:
    shown = run("verify", spec, "--backend", "emulator", "--counters").out
    assert "cost of one case (2 x 3 tiles" in shown
    assert "fma float32" in shown
    assert "float4" in shown
    assert "total" in shown


def test_counters_as_json(run: Run, spec: Path) -> None:
    (report,) = run("verify", spec, "--backend", "emulator", "--counters", "--json").json
    counters = report["counters"]
    assert counters["case"] == "2 x 3 tiles"
    assert counters["total"]["shared_memory"]["load"]["wavefronts"] > 0
    assert (
        sum(line["instructions"].get("fma float32", 0) for line in counters["lines"]) == (counters["total"]["instructions"]["fma float32"])
    )


def test_without_being_asked_nothing_is_counted(run: Run, spec: Path) -> None:
    (report,) = run("verify", spec, "--backend", "emulator", "--json").json
    assert report["counters"] is None
