from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import SPEC, Run


def test_a_spec_is_rendered_to_standard_output(run: Run, spec: Path) -> None:
    shown = run("render", spec)
    assert 'extern "C" __global__' in shown.out
    assert shown.err == ""
    assert run("render", spec, "-o", "-").out == shown.out
    assert not Path("-").exists()


def test_shipped_spec_is_found_by_name(run: Run) -> None:
    texts = {run("render", name).out for name in ("gemm/v0_naive", "specs/gemm/v0_naive.yaml", "gemm/v0_naive.yaml")}
    assert len(texts) == 1


def test_a_file_here_goes_before_a_shipped_spec_of_that_name(run: Run, spec: Path) -> None:
    Path("gemm").mkdir()
    spec.rename("gemm/v0_naive")
    assert "32x32x8" in run("render", "gemm/v0_naive").out


def test_files_are_written_once_and_left_alone(run: Run, spec: Path) -> None:
    first = run("render", spec, "-o", "out")
    (file,) = Path("out").iterdir()
    assert first.out == f"written    {file}\n"
    before = file.stat()
    assert run("render", spec, "-o", "out").out == f"unchanged  {file}\n"
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert file.stat().st_ino == before.st_ino


def test_json_lists_the_files(run: Run, spec: Path) -> None:
    (entry,) = run("render", spec, "-o", "out", "--json").json
    assert entry["spec"] == "small.yaml"
    assert entry["changed"] is True
    assert Path(entry["file"]).is_file()


def test_directory_stands_for_all_specs_below_it(run: Run, spec: Path) -> None:
    Path("specs/deep").mkdir(parents=True)
    Path("specs/one.yaml").write_text(SPEC)
    Path("specs/deep/two.yaml").write_text(SPEC.replace("k: 8", "k: 16"))
    Path("specs/notes.txt").write_text("no spec")
    entries = run("render", "specs", "specs/one.yaml", "-o", "out", "--json").json
    assert [entry["spec"] for entry in entries] == ["specs/deep/two.yaml", "specs/one.yaml"]


def test_set_replaces_fields(run: Run, spec: Path) -> None:
    shown = run("render", spec, "--set", "mainloop.stages=1", "--set", "epilogue=[{op: relu}]")
    assert "kStages" not in shown.out
    assert "ReLU" in shown.out


def test_the_same_spec_under_two_names_is_one_kernel(run: Run, spec: Path) -> None:
    Path("copy.yaml").write_text("# a copy\n" + SPEC)
    run("render", spec, "copy.yaml", "-o", "out")
    assert len(list(Path("out").iterdir())) == 1


def test_different_specs_of_one_name_are_an_error(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.kernels.gemm.plan.instance_name", lambda *_: "same")
    Path("other.yaml").write_text(SPEC.replace("k: 8", "k: 16"))
    failed = run("render", spec, "other.yaml", "-o", "out", code=2)
    assert "small.yaml and other.yaml differ and have the same name same" in failed.err
    assert not Path("out").exists()


def test_nothing_is_written_when_one_of_several_specs_is_bad(run: Run, spec: Path) -> None:
    Path("bad.yaml").write_text(SPEC.replace("m: 8, n: 4", "m: 8, n: 5"))
    Path("worse.yaml").write_text("- a list\n")
    failed = run("render", spec, "bad.yaml", "worse.yaml", "-o", "out", code=2)
    assert "bad.yaml" in failed.err
    assert "worse.yaml: a spec is a YAML mapping" in failed.err
    assert failed.out == ""
    assert not Path("out").exists()


def test_a_directory_that_cannot_be_made(run: Run, spec: Path) -> None:
    assert "cannot be written" in run("render", spec, "-o", "/proc/out", code=2).err


def test_an_output_directory_that_is_a_file(run: Run, spec: Path) -> None:
    assert "cannot be written" in run("render", spec, "-o", "small.yaml", code=2).err
    assert spec.read_text() == SPEC


def test_check_accepts_a_spec_for_every_architecture(run: Run, spec: Path) -> None:
    from gemmgen.hardware.target import ARCHITECTURES

    findings = run("check", spec, "--arch", "all", "--json").json
    assert [finding["architecture"] for finding in findings] == list(ARCHITECTURES)
    assert all(finding["accepted"] for finding in findings)


def test_check_gives_all_reasons_of_all_specs(run: Run, spec: Path) -> None:
    Path("bad.yaml").write_text(SPEC.replace("thread: {m: 8, n: 4}", "thread: {m: 3, n: 5}"))
    failed = run("check", spec, "bad.yaml", code=2)
    assert "accepted  small.yaml" in failed.out
    assert "mainloop.tile.thread.m: got 3" in failed.out
    assert "mainloop.tile.thread.n: got 5" in failed.out
    good, bad = run("check", spec, "bad.yaml", "--json", code=2).json
    assert good["accepted"] and not bad["accepted"]
    assert {reason["field"] for reason in bad["reasons"]} >= {"mainloop.tile.thread.m", "mainloop.tile.thread.n"}


def test_check_goes_on_after_a_spec_that_cannot_be_read(run: Run, spec: Path) -> None:
    Path("bad.yaml").write_text("kind: gemm\nmainloop: {strategy: tiled}\n")
    bad, good = run("check", "bad.yaml", spec, "--json", code=2).json
    assert "mainloop.tile: required field is missing" in bad["error"]
    assert good["accepted"]


def test_check_rejects_an_older_architecture(run: Run, spec: Path) -> None:
    failed = run("check", spec, "--arch", "sm_75", "--set", "architecture=sm_80", code=2)
    assert "architecture: got sm_75, need sm_80 or newer" in failed.out


def test_check_accepts_with_a_warning(run: Run) -> None:
    shown = run("check", "gemm/simt/maxas/64", "gemm/v1_tiled")
    assert shown.out.count("accepted") == 2
    assert shown.out.count("warning: mainloop.tile.thread: got about 136 registers a thread by an estimate") == 1


def test_warnings_are_part_of_the_json_of_check(run: Run) -> None:
    first, second = run("check", "gemm/simt/maxas/64", "gemm/v1_tiled", "--json").json
    assert [warning["code"] for warning in first["warnings"]] == ["registers"] and second["warnings"] == []
