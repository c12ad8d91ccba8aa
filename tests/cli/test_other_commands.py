from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cli.conftest import Run
from gemmgen.cli.choice import estimate_source
from gemmgen.cli.output import duration, rate
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import DEVICES, device


def test_explain_tells_the_plan_and_the_roof_that_binds(run: Run, spec: Path) -> None:
    shown = run("explain", spec).out
    for title in ("Computation", "Tile hierarchy", "Shared memory", "Launch", "Roofs of the H200"):
        assert title in shown
    assert re.search("bound by +arithmetic: at least 2.10 ms", shown)


def test_explain_for_another_device_and_size(run: Run, spec: Path) -> None:
    explained = run("explain", spec, "--device", "t4", "--size", "64,64,4", "--json").json
    assert explained["device"] == "T4"
    assert explained["binding"] == "memory"
    assert explained["operations"] == 2 * 64 * 64 * 4
    assert explained["launch_sequence"]["launches"][0]["entry"] == explained["name"]


def test_explain_an_empty_problem(run: Run, spec: Path) -> None:
    assert run("explain", spec, "--size", "0,0,0", "--json").json["intensity"] is None
    run("explain", spec, "--size", "0,0,0")


def test_explain_says_that_a_device_is_too_old(run: Run, spec: Path) -> None:
    assert "does not run on it" in run("explain", spec, "--device", "T4", "--set", "architecture=sm_80").out


def test_explain_shows_warnings(run: Run, spec: Path) -> None:
    assert "got about 136 registers a thread by an estimate" in " ".join(run("explain", "gemm/simt/maxas/64").out.split())
    assert "Warnings" not in run("explain", spec).out


@pytest.mark.parametrize("command", ["explain", "analyze"])
def test_roofs_of_another_architecture_are_marked(run: Run, spec: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("B200", "B300"):  # the only devices of sm_100 and later
        monkeypatch.delitem(DEVICES, name)
    shown = run(command, spec, "--arch", "sm_100", *(["--no-traffic"] if command == "analyze" else [])).out
    (roofs,) = re.findall(r"^Roofs of the H200$(.*)", shown, re.MULTILINE | re.DOTALL)
    assert "a binary for sm_100 does not run on it: no device of sm_100 is known, and these are another one's figures" in " ".join(
        roofs.split()
    )


def test_a_choice_for_an_architecture_of_no_device_is_marked(run: Run) -> None:
    shown = run("explain", "--problem", "gemm:64,64,64", "--arch", "sm_100", "--device", "H200").out
    assert "note       a binary for sm_100 does not run on it" in shown


@pytest.mark.parametrize(
    ("problem", "roof"),
    [
        ("gemm:8192,8192,16,bf16,nt,silu", "special functions: 32.1 µs at 4.18 Tfunctions/s"),
        ("gemm:8192,8192,16,bf16,nt,relu", "memory: 29.6 µs at 4.55 TB/s"),
        ("gemm:4096,4096,4096,s8,nt,bias,gelu", "arithmetic: 71.1 µs at 1.93 POP/s"),
    ],
)
def test_the_roof_of_a_problem_is_that_of_its_unit(run: Run, problem: str, roof: str) -> None:
    assert f"roof       {roof}" in run("explain", "--problem", problem, "--device", "H200").out


@pytest.mark.parametrize(
    ("architecture", "device"),
    [("sm_75", "T4"), ("sm_80", "A100"), ("sm_89", "L40S"), ("sm_90a", "H200"), ("sm_100a", "B200"), ("sm_120a", "RTX 5090")],
)
def test_roofs_are_those_of_a_device_of_the_architecture(run: Run, spec: Path, architecture: str, device: str) -> None:
    shown = run("explain", spec, "--arch", architecture).out
    assert f"Roofs of the {device}" in shown and "does not run" not in shown


def test_schema_is_json_schema_on_standard_output_or_in_a_file(run: Run) -> None:
    schema = json.loads(run("schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    run("schema", "-o", "schema.json")
    assert json.loads(Path("schema.json").read_text()) == schema
    assert "unchanged" in run("schema", "-o", "schema.json").out


def test_doctor_lists_pieces_and_costs(run: Run) -> None:
    names = [finding["name"] for finding in run("doctor", "--json").json]
    assert {"Python", "NVRTC", "cache"} <= set(names)
    assert "NVRTC" in run("doctor").out


def test_cache_is_shown_and_emptied(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "cache"))
    run("compile", spec)
    assert run("cache", "info", "--json").json["entries"] == 1
    assert "1 entry" in run("cache", "info").out
    assert run("cache", "clear").out == "1 compiled kernel removed\n"
    assert run("cache", "info", "--json").json["entries"] == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(run: Run, shell: str) -> None:
    assert "_GEMMGEN_COMPLETE" in run("completion", shell).out


def test_tables_neither_cut_nor_fold_when_piped(run: Run, spec: Path) -> None:
    name = "a_rather_long_name_" * 10 + ".yaml"
    spec.rename(name)
    lines = run("compile", name).out.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith(name)


def test_narrow_tables_fold_and_lose_nothing(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    spec.rename("a_rather_long_name_that_folds_on_a_narrow_terminal.yaml")
    shown = run("compile", "a_rather_long_name_that_folds_on_a_narrow_terminal.yaml").out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "…" not in shown
    assert "".join(line.split(" ")[0] for line in shown.splitlines()[2:]) == "a_rather_long_name_that_folds_on_a_narrow_terminal.yaml"


def test_numbers_for_people() -> None:
    seconds = (0, 4.4e-12, 3e-9, 4.45e-5, 0.265, 12.34, 1234)
    assert [duration(s) for s in seconds] == ["0 s", "0.0044 ns", "3.00 ns", "44.5 µs", "265 ms", "12.3 s", "1234 s"]
    assert [rate(v, "B/s") for v in (0, 999, 1e3, 4.55e12)] == ["0.00 B/s", "999 B/s", "1.00 kB/s", "4.55 TB/s"]


def test_explain_tells_whose_times_correct_an_estimate() -> None:
    asked = parse_problem("gemm:64,64,64")
    found = choose(asked, device("H200"))
    by_model = replace(found, chosen=replace(found.chosen, source="model"))
    assert "other instances" in estimate_source(by_model)
    assert estimate_source(replace(by_model, table=None)) == "the model alone"
