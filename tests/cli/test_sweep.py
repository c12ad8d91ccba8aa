from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, eventually

from gemmgen.sweep.engine import Settings
from gemmgen.sweep.file import shipped_sweeps
from gemmgen.sweep.store import ResultStore
from gemmgen.sweep.worker import _descendants

from .conftest import SPEC, Run

SWEEP = """\
name: trial
base: small.yaml
axes:
  mainloop.stages: {range: [1, 3, 1]}
  mainloop.tile.threadblock.k: {powers_of_two: [4, 8]}
  transpose: [nn, tt]
constraints:
  shallow: mainloop.stages * mainloop.tile.threadblock.k < 24
stages: compile
cases: 1
"""
COMMAND = [sys.executable, "-c", "from gemmgen.cli import main; main()", "sweep"]


@pytest.fixture
def sweep(tmp_path: Path, run: Run, no_gpu: None) -> Path:
    (tmp_path / "small.yaml").write_text(SPEC)
    (tmp_path / "trial.yaml").write_text(SWEEP)
    return Path("trial.yaml")


def edit(sweep: Path, old: str, new: str) -> None:
    text = sweep.read_text()
    assert old in text
    sweep.write_text(text.replace(old, new))


def test_every_point_ends_in_one_status_with_its_reason(run: Run, sweep: Path) -> None:
    told = run("sweep", sweep, "--json").json
    assert told["points"] == 12 and told["duplicates"] == told["known"] == 0
    assert {(line["status"], line["reason_code"]): line["points"] for line in told["counts"]} == {
        ("correct", ""): 8,
        ("constraints", "shallow"): 2,
        ("constraints", "stages"): 2,
    }
    assert len(told["results"]) == 12
    assert all(one["metrics"]["registers"] > 0 for one in told["results"] if one["status"] == "correct")


def test_a_second_run_takes_what_is_known(run: Run, sweep: Path) -> None:
    run("sweep", sweep)
    edit(sweep, "transpose: [nn, tt]", "transpose: [nt, nn]")
    told = run("sweep", sweep, "--json").json
    assert (told["points"], told["known"]) == (12, 6)
    assert "6 from an earlier run" in run("sweep", sweep, "--set", "transpose=nn").out


def test_set_changes_the_base_or_the_values_of_an_axis(run: Run, sweep: Path) -> None:
    options = ["--set", "mainloop.stages={range: [2, 5, 1]}", "--set", "transpose=nt", "--set", "label=mine", "--stages", "check"]
    told = run("sweep", sweep, *options, "--json").json
    assert {one["axes"]["mainloop.stages"] for one in told["results"]} == {2, 3, 4, 5}
    assert {one["axes"]["transpose"] for one in told["results"]} == {"nt"}
    assert {one["spec"]["label"] for one in told["results"]} == {"mine"}


def test_where_leaves_points_out_and_says_how_many(run: Run, sweep: Path) -> None:
    told = run("sweep", sweep, "--where", "plan.shared_bytes < 5000 and transpose == 'tt'", "--stages", "check", "--json").json
    assert told["points"] + told["left_out"] == 12 and 0 < told["points"] < 6
    assert all(one["spec"]["transpose"] == "tt" for one in told["results"])


def test_a_sample_is_the_same_for_the_same_seed(run: Run, sweep: Path) -> None:
    def axes(seed: int) -> list[Any]:
        told = run("sweep", sweep, "--sample", 4, "--seed", seed, "--stages", "check", "--json").json
        return sorted(str(one["axes"]) for one in told["results"])

    assert axes(1) == axes(1) != axes(2)
    assert len(axes(1)) == 4


def test_a_dry_run_counts_and_estimates_and_runs_nothing(run: Run, sweep: Path) -> None:
    told = run("sweep", sweep, "--dry-run", "--json").json
    assert (told["combinations"], told["points"], told["to_run"], told["known"]) == (12, 12, 8, 0)
    assert told["estimate"]["seconds"] > 0 and told["estimate"]["measured"] == {"compile": 0}
    assert not Path("trial.sqlite").exists()
    assert "an assumption" in run("sweep", sweep, "--dry-run").out
    run("sweep", sweep, "--set", "transpose=nn")
    told = run("sweep", sweep, "--dry-run", "--json").json
    assert (told["to_run"], told["known"], told["estimate"]["measured"]) == (4, 6, {"compile": 4})
    assert "4 measured" in run("sweep", sweep, "--dry-run").out


def test_points_that_are_the_same_are_counted(run: Run, sweep: Path) -> None:
    out = run("sweep", sweep, "--set", "transpose=[nn, nn, nn]").out
    assert "6 points" in out and "12 further combinations give points that others give too" in out


def test_results_are_exported_at_once_or_later(run: Run, sweep: Path) -> None:
    run("sweep", sweep, "--stages", "check", "--export", "junit=one.xml", "--export", "csv=one.csv")
    run("sweep", "--results", "trial.sqlite", "--export", "junit=two.xml")
    cases = [len(ElementTree.parse(name).findall(".//testcase")) for name in ("one.xml", "two.xml")]
    assert cases == [12, 12] and Path("one.csv").read_text().count("\n") == 13


def test_an_export_that_fails_does_not_take_the_summary_with_it(run: Run, sweep: Path) -> None:
    outcome = run("sweep", sweep, "--stages", "check", "--export", "csv=/dev/full", code=2)
    assert "12 points: 8 correct" in outcome.out and "/dev/full" in outcome.err


def test_a_wrong_kernel_is_named_and_ends_in_exit_code_1(run: Run, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.sweep.engine.Settings", partial(Settings, execute="sweep.faults:execute_wrong"))
    options = ["--set", "transpose=nn", "--set", "mainloop.stages=1", "--set", "label=wrong", "--stages", "verify"]
    outcome = run("sweep", sweep, *options, code=1)
    assert "correctness" in outcome.out and "wrong_result" in outcome.out
    assert "correctness at verify: wrong_32x32x4" in outcome.err


def test_bench_without_a_gpu_says_what_to_do(run: Run, sweep: Path) -> None:
    edit(sweep, "cases: 1", "cases: 1\nsizes: [[64, 64, 64]]")
    assert "--stages verify" in run("sweep", sweep, "--stages", "bench", code=2).err
    assert "emulator" in run("sweep", sweep, "--stages", "bench", "--backend", "emulator", code=2).err
    assert "would not run here" in run("sweep", sweep, "--stages", "bench", "--dry-run").err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "this file is empty"),
        ("[1]", "this file holds a list"),
        ("name: x\nname: y", "given twice"),
        ("name: trial", "base"),
        ("name: Trial!\nbase: small.yaml", "name"),
        ("name: trial\nbase: none.yaml", "'none.yaml' is neither a spec file"),
        ("name: trial\nbase: 3", "base"),
        ("name: trial\nbase: small.yaml\nspeed: 3", "no such field"),
        ("name: trial\nbase: small.yaml\naxes: {mainloop.stages: []}", "axes.mainloop.stages"),
        ("name: trial\nbase: small.yaml\naxes: {mainloop.stages: 3}", "axes.mainloop.stages"),
        ("name: trial\nbase: small.yaml\naxes: {mainloop.stages: {range: [3, 1, 1]}}", "no values"),
        ("name: trial\nbase: small.yaml\naxes: {mainloop.stages: {range: [1, 3, 0]}}", "axes.mainloop.stages"),
        ("name: trial\nbase: small.yaml\naxes: {mainloop.stages: {range: [0, 4000000000000, 1]}}", "at most 10,000 values"),
        ("name: trial\nbase: small.yaml\naxes: {mainloop.stages: {powers_of_two: [5, 7]}}", "no values"),
        ("name: trial\nbase: small.yaml\naxes: {'a b': [1]}", "'a b' is not a field path"),
        ("name: trial\nbase: small.yaml\naxes: {label.x: [1], label: [a]}", "put 'label' first"),
        ("name: trial\nbase: small.yaml\naxes: {label: [a], label.x: [1]}", "has no field"),
        ("name: trial\nbase: small.yaml\naxes: {alpha: [one], x: {together: [{alpha: one}]}}", "both set 'alpha'"),
        ("name: trial\nbase: small.yaml\nconstraints: {fast: plan.speed() > 1}", "fast: 'plan.speed() > 1'"),
        ("name: trial\nbase: small.yaml\nconstraints: {fast: mainloop.speed > 1}", "there is no mainloop.speed"),
        ("name: trial\nbase: small.yaml\nconstraints: {fast: 1 / 0}", "fast: '1 / 0': divides by zero"),
        ("name: trial\nbase: small.yaml\nconstraints: {fast: 1 / 0}\naxes: {transpose: [tt]}", "(at transpose=tt)"),
        ("name: trial\nbase: gemm/v3_double_bufer", "trial.yaml: base: 'gemm/v3_double_bufer'"),
        ("name: trial\nbase: gemm/v3_double_bufer", "did you mean gemm/v3_double_buffer"),
        ("name: trial\nbase: small.yaml\naxes: {mainloop.stages: {rang: [1, 3, 1]}}", "{range: [first, last, step]}"),
        ("name: trial\nbase: small.yaml\naxes: {mainloop.speed: [1, 2]}", "no point of trial is a valid spec"),
        ("name: trial\nbase: small.yaml\nstages: fast", "stages"),
        ("name: trial\nbase: small.yaml\narchitectures: [sm_1]", "sm_1"),
        ("name: trial\nbase: small.yaml\nsizes: [[1, .nan]]", "sizes"),
        ("name: trial\nbase: small.yaml\nlimits: {verify: .nan}", "limits.verify"),
        ("name: trial\nbase: small.yaml\nlimits: {verify: -1}", "limits.verify"),
        ("name: trial\nbase: small.yaml\ncases: 0", "cases"),
    ],
)
def test_what_is_wrong_with_a_sweep_file_is_said(run: Run, sweep: Path, text: str, says: str) -> None:
    sweep.write_text(text)
    assert says in run("sweep", sweep, "--stages", "check", code=2).err


def test_mistake_in_axis_is_told_for_form_that_was_meant(run: Run, sweep: Path) -> None:
    edit(sweep, "range: [1, 3, 1]", "range: [1, 3]")
    err = run("sweep", sweep, code=2).err
    assert "axes.mainloop.stages.range.2: required field is missing" in err and "powers_of_two" not in err


def test_a_field_below_what_has_none_rejects_its_points_only(run: Run, sweep: Path) -> None:
    edit(sweep, "transpose: [nn, tt]", "decomposition: [null, {scheme: split_k_serial}]\n  decomposition.slices: [2, 3]")
    told = run("sweep", sweep, "--set", "mainloop.stages=1", "--set", "mainloop.tile.threadblock.k=8", "--json").json
    assert [(line["status"], line["reason_code"], line["points"]) for line in told["counts"]] == [
        ("correct", "", 2),
        ("constraints", "axes", 2),
    ]
    assert "'decomposition' is None and has no field 'slices'" in told["counts"][1]["example"]


def test_a_base_is_named_like_a_spec_elsewhere(run: Run, sweep: Path) -> None:
    for name in ("gemm/v3_double_buffer", "specs/gemm/v3_double_buffer.yaml", "gemm/v3_double_buffer.yaml"):
        sweep.write_text(f"name: trial\nbase: {name}\nstages: check")
        assert run("sweep", sweep, "--json").json["counts"][0]["status"] == "correct"


def test_the_file_in_the_documentation_is_a_sweep(run: Run, sweep: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    Path("tiles.yaml").write_text(text.split("```yaml\n")[1].split("```")[0])
    told = run("sweep", "tiles.yaml", "--dry-run", "--stages", "compile", "--json").json
    assert told["combinations"] == 2 * 2 * 3 * 2 * 2 and told["to_run"] > 10
    assert {line["reason_code"] for line in told["counts"]} == {"", "fits_twice", "not_both"}


def test_times_need_problems(run: Run, sweep: Path) -> None:
    assert "sizes: got none" in run("sweep", sweep, "--stages", "bench", "--dry-run", code=2).err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nosuch"], "neither a file here nor a sweep that ships with gemmgen; there are ci_conv2d"),
        (["ci_gem"], "did you mean ci_gemm"),
        (["."], "is a directory"),
        (["small.yaml"], "this is a spec, not a sweep"),
        (["a\0b"], "a\\x00b"),
        ([], "name a SWEEP"),
        (["--results", "none"], "no such results file"),
        (["trial.yaml", "--where", "1 +"], "--where"),
        (["trial.yaml", "--where", "speed > 1"], "no field 'speed'"),
        (["trial.yaml", "--set", "mainloop.stages"], "expected path=value"),
        (["trial.yaml", "--set", "transpose.x=1"], "the axis 'transpose' sets this field"),
        (["trial.yaml", "--set", "alpha.x=1"], "has no field 'x'"),
        (["trial.yaml", "--set", "mainloop.stages={range: 3}"], "axes.mainloop.stages"),
        (["trial.yaml", "--sample", "0"], "--sample"),
        (["trial.yaml", "--timeout", "0"], "--timeout"),
        (["trial.yaml", "--timeout", "nan"], "--timeout"),
        (["trial.yaml", "--jobs", "-1"], "--jobs"),
        (["trial.yaml", "--export", "pdf=x"], "expected FORMAT=FILE"),
        (["trial.yaml", "--export", "csv"], "expected FORMAT=FILE"),
        (["trial.yaml", "--results", "."], "is a directory"),
        (["trial.yaml", "--results", "small.yaml"], "not a results file of gemmgen"),
        (["trial.yaml", "--results", "small.yaml/x"], "cannot be"),
        (["trial.yaml", "--search", "tpe", "--sample", "3"], "--search chooses points itself"),
        (["trial.yaml", "--search", "tpe", "--objective", "1+1"], "--objective"),
        (["trial.yaml", "--export", "csv=small.yaml/x"], "--export 'small.yaml/x': cannot be written: small.yaml is not a directory"),
        (["trial.yaml", "--export", "csv=."], "--export '.': is a directory"),
    ],
)
def test_what_is_wrong_with_the_command_is_said(run: Run, sweep: Path, options: list[str], says: str) -> None:
    before = Path("small.yaml").read_text()
    assert says in run("sweep", *options, *(["--stages", "check"] if options and options[0] != "--results" else []), code=2).err
    assert Path("small.yaml").read_text() == before


def test_whatever_yaml_can_hold_is_kept_as_text(run: Run, sweep: Path) -> None:
    edit(sweep, "transpose: [nn, tt]", "transpose: [2020-01-01, {1: 2, a: 3}, .nan, 1e999, [[]], null, 'ü\\u2028']")
    told = run("sweep", sweep, "--json", code=2).json
    assert told["points"] == 42 and {line["status"] for line in told["counts"]} == {"invalid"}
    assert run("sweep", sweep, "--json", code=2).json["known"] == 42


def test_a_space_too_large_to_enumerate_says_how_to_go_on(run: Run, sweep: Path) -> None:
    large = ["--set", "mainloop.stages={range: [1, 9000, 1]}", "--set", "mainloop.tile.threadblock.k={range: [1, 9000, 1]}"]
    assert "--sample N" in run("sweep", sweep, *large, "--dry-run", code=2).err
    larger = [part for field in range(20) for part in ("--set", f"x{field}={{range: [1, 9000, 1]}}")]
    edit(sweep, "axes:", "axes:\n" + "\n".join(f"  x{field}: [1]" for field in range(20)))
    assert run("sweep", sweep, *large, "--dry-run", "--sample", 5, "--allow-invalid").out.startswith("status")
    assert "more than 10^80 points" in run("sweep", sweep, *larger, "--dry-run", code=2).err
    outcome = run("sweep", sweep, *larger, "--dry-run", "--sample", 5, "--allow-invalid")
    assert "5 invalid" in outcome.out and "No point was accepted" in outcome.err


@pytest.mark.parametrize("name", sorted(shipped_sweeps()))
def test_a_shipped_sweep_can_be_run(run: Run, sweep: Path, name: str) -> None:
    told = run("sweep", name, "--dry-run", "--sample", 20, "--json").json
    accepted = told["points"] - sum(line["points"] for line in told["counts"] if line["status"] == "constraints")
    assert accepted >= 5
    assert told["combinations"] > (1000 if name.startswith("tune") else 100)
    assert not {line["reason_code"] for line in told["counts"]} & {"spec", "axes", "sizes", "exception"}


def test_a_misspelled_value_of_an_axis_fails_the_run(run: Run, sweep: Path) -> None:
    edit(sweep, "transpose: [nn, tt]", "transpose: [nn, ttt]")
    few = ("--set", "mainloop.stages=1", "--set", "mainloop.tile.threadblock.k=8", "--stages", "check")
    outcome = run("sweep", sweep, *few, "--export", "junit=found.xml", code=2)
    assert "1 correct, 1 invalid" in outcome.out
    assert "1 of 2 points of trial make no valid spec: " in outcome.err and "did you mean" in outcome.err
    report = Path("found.xml").read_text()
    assert 'errors="1"' in report and 'skipped="0"' in report
    assert "1 invalid" in run("sweep", sweep, *few, "--allow-invalid").out
    assert run("sweep", sweep, *few, "--dry-run", code=2).err == outcome.err


def start(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([*COMMAND, *arguments], env=environment, text=True, **more)


def kept() -> int:
    if not Path("trial.sqlite").exists():
        return 0
    with ResultStore("trial.sqlite", read_only=True) as store:
        return len(store.all())


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def checking(process: int) -> bool:
    """A sweep has begun with its points: there is a worker among the processes that it has started."""
    for child in _descendants(process):
        with contextlib.suppress(OSError):
            if b"gemmgen.sweep.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return True
    return False


def test_sweep_killed_again_and_again_still_ends(run: Run, sweep: Path) -> None:
    edit(sweep, "stages: compile", "stages: verify")
    edit(sweep, "axes:\n", f"axes:\n  label: [{', '.join(f'p{number}' for number in range(100))}]\n")
    for _ in range(3):
        before = kept()
        running = start("trial.yaml", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        assert eventually(lambda: kept() > before)  # noqa: B023
        workers = _descendants(running.pid)
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert kept() > before
        assert workers and eventually(lambda: all(map(gone, workers)))  # noqa: B023
    edit(sweep, ", ".join(f"p{number}" for number in range(100)), "p0")
    with ResultStore("trial.sqlite", read_only=True) as store:
        done = sum(one.axes["label"] == "p0" for one in store.all())
    told = run("sweep", sweep, "--json").json
    assert told["known"] == done >= 3
    assert told["points"] == len(told["results"]) == 12


def test_an_interrupted_sweep_sums_up_and_leaves_no_process(run: Run, sweep: Path) -> None:
    edit(sweep, "stages: compile", "stages: verify")
    edit(sweep, "axes:\n", f"axes:\n  label: [{', '.join(f'p{number}' for number in range(100))}]\n")
    running = start("trial.yaml", stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert eventually(lambda: kept() > 0)
    workers = _descendants(running.pid)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert "correct" in out and "Interrupted: run the same command again to continue from here." in err and "Traceback" not in err
    assert workers and eventually(lambda: all(map(gone, workers)))


def test_an_interrupted_dry_run_says_that_it_is_not_whole(run: Run, sweep: Path) -> None:
    many = ", ".join(f"p{number}" for number in range(1500))
    edit(sweep, "  transpose: [nn, tt]", f"  transpose: [nn, tt]\n  label: [{many}]")
    running = start("trial.yaml", "--dry-run", stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert eventually(lambda: checking(running.pid)), running.communicate()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130 and "Interrupted" in err and "Traceback" not in err


def test_a_terminal_sees_the_rate_and_the_time_left(run: Run, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", "160")
    running = start("trial.yaml", "--stages", "verify", stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:
            break
        seen += data
        if not data:
            break
    os.close(ours)
    assert running.wait(PATIENCE) == 0
    assert b"/s" in seen and b"left" in seen and b"12" in seen
