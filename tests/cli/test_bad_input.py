"""Each kind of bad input ends in one message that names the remedy, exit code 2, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import SPEC, Run

COMMANDS = (("render", "-o", "out"), ("compile", "-o", "out"), ("verify", "--backend", "emulator"), ("explain",))

BAD_SPECS = {
    "unknown field": (SPEC + "colour: red\n", ["colour: no such field"]),
    "unknown nested field": (SPEC.replace("k: 8}", "k: 8, z: 1}"), ["mainloop.tile.threadblock.z"]),
    "wrong value": (SPEC + "transpose: xx\n", ["transpose: got 'xx', need 'nn', 'nt', 'tn' or 'tt'"]),
    "wrong type": (SPEC.replace("m: 8", "m: eight"), ["mainloop.tile.thread.m: got 'eight'"]),
    "missing field": (SPEC.replace("    warp: {m: 32, n: 32}\n", ""), ["mainloop.tile.warp: required field is missing"]),
    "impossible tile": (SPEC.replace("m: 8, n: 4", "m: 8, n: 5"), ["mainloop.tile.thread.n: got 5", "[thread_tile]"]),
    "too much shared memory": (
        SPEC.replace("m: 32, n: 32, k: 8", "m: 128, n: 128, k: 256"),
        ["bytes", "[shared_memory]"],
    ),
    "too many registers": (
        SPEC.replace("m: 32, n: 32, k: 8", "m: 128, n: 128, k: 8")
        .replace("warp: {m: 32, n: 32}", "warp: {m: 128, n: 128}")
        .replace("m: 8, n: 4", "m: 32, n: 16"),
        ["registers"],
    ),
    "unknown kind": (SPEC.replace("gemm", "sort"), ["kind: got 'sort', need one of: gemm"]),
    "no kind": (SPEC.replace("kind: gemm\n", ""), ["kind: it has none"]),
    "no mapping": ("- kind: gemm\n", ["a spec is a YAML mapping", "a list"]),
    "an empty file": ("", ["this file is empty"]),
    "no YAML": ("kind: [gemm\n", ["line", "not valid YAML"]),
    "a key given twice": (SPEC + "alpha: one\n", ["'alpha' is given twice"]),
    "an object to construct": ("!!python/object/apply:os.system ['touch owned']", ["not valid YAML"]),
    "a label with quotes": (SPEC + "label: 'a\"b'\n", ["label"]),
    "a label with a line break": (SPEC + 'label: "a\\nb"\n', ["label"]),
    "a label that leaves the directory": (SPEC + "label: ../../up\n", ["label"]),
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("case", BAD_SPECS)
def test_bad_spec(run: Run, tmp_path: Path, command: tuple[str, ...], case: str) -> None:
    text, expected = BAD_SPECS[case]
    Path("bad.yaml").write_text(text)
    failed = run(command[0], "bad.yaml", *command[1:], code=2)
    assert failed.err.startswith("Error: ")
    assert "bad.yaml" in failed.err
    for part in expected:
        assert part in failed.err
    assert failed.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_a_file_that_is_not_there(run: Run) -> None:
    failed = run("render", "missing.yaml", code=2)
    assert "'missing.yaml' is no file, no directory and no spec that ships with gemmgen" in failed.err


def test_a_shipped_spec_with_a_typing_mistake(run: Run) -> None:
    assert "did you mean gemm/v0_naive" in run("render", "gemm/v0_naiv", code=2).err
    assert "did you mean gemm/v3_double_buffer" in run("render", "gemm/v3", code=2).err
    assert "did you mean gemm/v3_double_buffer" in run("render", "v3_double", code=2).err


def test_all_missing_files_are_named(run: Run) -> None:
    failed = run("render", "one.yaml", "two.yaml", code=2)
    assert "'one.yaml'" in failed.err and "'two.yaml'" in failed.err


def test_a_directory_without_specs(run: Run) -> None:
    Path("empty").mkdir()
    assert "empty: the directory holds no .yaml file" in run("check", "empty", code=2).err


def test_a_file_that_is_not_text(run: Run) -> None:
    Path("bad.yaml").write_bytes(b"kind: \xff\xfe\x00")
    assert "bad.yaml" in run("render", "bad.yaml", code=2).err


def test_a_file_name_with_a_nul(run: Run) -> None:
    assert "a\\x00b" in run("render", "a\0b", code=2).err


def test_a_file_name_too_long(run: Run) -> None:
    assert "x" * 20 in run("render", "x" * 5000, code=2).err.replace("\n", "")


@pytest.mark.parametrize("name", ['it\'s [bold] "so".yaml', "line\nbreak.yaml", "\udcff.yaml", "-dash.yaml"])
def test_odd_file_names_work(run: Run, spec: Path, name: str) -> None:
    spec.rename(name)
    (finding,) = run("check", "--json", "--", name).json
    assert finding["accepted"]
    run("check", "--", name)
    run("compile", "--", name)


@pytest.mark.parametrize("command", ["check", "compile", "verify", "explain"])
def test_an_unknown_architecture(run: Run, spec: Path, command: str) -> None:
    failed = run(command, spec, "--arch", "sm_42", code=2)
    assert "unknown architecture 'sm_42'; known: sm_75" in failed.err


def test_an_unknown_device(run: Run, spec: Path) -> None:
    assert "unknown device 'Voodoo2'; known: " in run("explain", spec, "--device", "Voodoo2", code=2).err


@pytest.mark.parametrize("override", ["stages", "=1", "mainloop..stages=1", "kind.deep=1", "mainloop.stages=[1"])
def test_a_bad_override(run: Run, spec: Path, override: str) -> None:
    assert f"--set {override.partition('=')[0]}" in run("check", spec, "--set", override, code=2).out.replace("'", "")
    assert "--set" in run("render", spec, "--set", override, code=2).err


@pytest.mark.parametrize(
    ("size", "message"), [("64", "needs 3 numbers: m,n,k"), ("a,b,c", "sizes must be whole numbers"), ("1,2,-3", "whole numbers from 0")]
)
def test_a_bad_size(run: Run, spec: Path, size: str, message: str) -> None:
    assert message in run("explain", spec, "--size", size, code=2).err


def test_explain_takes_one_spec(run: Run) -> None:
    assert "explain takes one" in run("explain", "gemm", code=2).err


def test_specs_are_required(run: Run) -> None:
    assert "Missing argument 'SPEC...'" in run("verify", code=2).err


def test_an_unknown_command(run: Run) -> None:
    assert "did you mean 'compile'?" in run("compil", code=2).err
    assert "there are: render, check" in run("xyz", code=2).err


def test_a_bug_is_not_hidden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("gemmgen.kernels.spec_files.json_schema", broken)
    failed = run("schema", code=70)
    assert "RuntimeError: unforeseen" in failed.err
    assert "this is a bug in gemmgen" in failed.err


@pytest.mark.parametrize("error", [MemoryError(), ImportError("libnvrtc.so.13: failed to map segment from shared object")])
def test_too_little_memory_is_no_bug(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr("gemmgen.kernels.spec_files.json_schema", broken)
    failed = run("schema", code=2)
    assert failed.err.startswith("Error: not enough memory") and "Traceback" not in failed.err
