"""`emulate`, `diff` and `banks` with files that are none, deep launch files and numbers beyond all bounds: a message, at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gemmgen.cli import cli

KERNEL = "__global__ void copy(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }"
LAUNCH = ("--grid", "1", "--block", "32", "--arg", "f32[32]=ones", "--arg", "f32[32]=zeros", "--arg", "i32=32")


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    file = tmp_path / "copy.cu"
    file.write_text(KERNEL)
    return str(file)


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "pipe.npy")
    return str(tmp_path / "pipe.npy")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="gemmgen")


def test_a_named_pipe_as_a_kernel_does_not_hang(pipe: str) -> None:
    result = run("emulate", pipe, *LAUNCH)
    assert (result.exit_code, "is a pipe" in result.output) == (2, True)


@pytest.mark.parametrize("argument", ["f32[32]=@{}", "f32[]=@{}"])
def test_a_named_pipe_as_an_array_does_not_hang(kernel: str, pipe: str, argument: str) -> None:
    result = run("emulate", kernel, "--grid", "1", "--block", "32", "--arg", argument.format(pipe))
    assert (result.exit_code, "is a pipe" in result.output) == (2, True)


def test_a_named_pipe_that_is_expected_does_not_hang(kernel: str, pipe: str) -> None:
    result = run("emulate", kernel, *LAUNCH, "--expect", f"y=@{pipe}")
    assert (result.exit_code, "is a pipe" in result.output) == (2, True)


def test_a_named_pipe_as_a_launch_file_does_not_hang(kernel: str, pipe: str) -> None:
    result = run("emulate", kernel, "--launches", pipe)
    assert (result.exit_code, "is a pipe" in result.output) == (2, True)


def test_named_pipes_are_not_compared(kernel: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.cu")
    result = run("diff", kernel, str(tmp_path / "pipe.cu"))
    assert (result.exit_code != 0, "is a pipe" in result.output) == (True, True)


def test_a_file_of_several_arrays_is_told(kernel: str, tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "two.npz", a=np.ones(3), b=np.ones(3))
    result = run("emulate", kernel, *LAUNCH, "--expect", f"y=@{tmp_path / 'two.npz'}")
    assert (result.exit_code, "holds several arrays" in result.output) == (2, True)


LAUNCH_FILES = {
    "[" * 60_000: "nested more than",
    "arrays: &a {}\nlaunches: *a": "alias",
    "{arrays: {}, arrays: {}}": "twice",
    "{launches: [" + "{entry: k}," * 5000 + "]}": "more",
    "": "tells no launches",
    "launches: !!python/object/apply:os.system [true]": "tag",
    "launches: [{entry: copy, grid: 1:00, block: 1}]": "grid",
    '{launches: [], "\\e[2J": 1}': "x1b",
}


@pytest.mark.parametrize("text", LAUNCH_FILES, ids=range(len(LAUNCH_FILES)))
def test_a_hostile_launch_file_is_a_short_message(kernel: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "launches.yaml"
    file.write_text(text)
    result = run("emulate", kernel, "--launches", str(file))
    assert (result.exit_code, len(result.output) < 6000, "\x1b" in result.output) == (2, True, False)
    assert LAUNCH_FILES[text] in result.output


@pytest.mark.parametrize("option", ["--schedules", "--seed"])
def test_a_number_beyond_all_bounds_is_a_mistake(kernel: str, option: str) -> None:
    result = run("emulate", kernel, *LAUNCH, option, "9" * 21)
    assert (result.exit_code, "is not in the range" in result.output) == (2, True)


@pytest.mark.parametrize("pattern", ["9" * 5000, "--5", "0,--4"], ids=range(3))
def test_an_offset_that_is_no_number_is_a_mistake(pattern: str) -> None:
    result = run("banks", "--", pattern)
    assert (result.exit_code, "no number" in result.output, len(result.output) < 400) == (2, True, True)
