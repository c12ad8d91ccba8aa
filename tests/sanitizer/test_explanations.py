"""The examples of the pages of findings, run: the wrong code shows the finding of its page, the fixed code shows none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli.conftest import Run
from emulator.helpers import compile_ptx

import gemmgen
from gemmgen import emulator
from gemmgen.core.resources import resource_directory
from gemmgen.sanitizer.explanations import EXPLANATIONS

from .example_frames import FRAMES

SEQUENCE, OPTIONS = "unordered-launch", "wrong-result"
PRODUCER = """extern "C" __global__ void kernel(float* x) {
    x[threadIdx.x] = threadIdx.x;
    asm volatile("griddepcontrol.launch_dependents;");
}"""


def found(code: str, example: str) -> list[str]:
    """Codes of the findings of an example in its frame."""
    frame = FRAMES[code]
    result = gemmgen.emulate(frame.source(example), grid=frame.grid, block=frame.block, args=frame.args, **frame.options)
    return [finding.code for finding in result.findings]


def test_every_page_has_a_frame_or_a_test_of_its_own() -> None:
    assert set(EXPLANATIONS) == {*FRAMES, OPTIONS}
    assert len(EXPLANATIONS) == (resource_directory("docs") / "findings.md").read_text().count("\n## ")


@pytest.mark.parametrize("code", [code for code in FRAMES if code != SEQUENCE])
def test_the_wrong_example_has_the_finding(code: str) -> None:
    codes = found(code, EXPLANATIONS[code].example)
    assert codes and set(codes) == {code}


@pytest.mark.parametrize("code", [code for code in FRAMES if code != SEQUENCE])
def test_the_mended_example_has_no_finding(code: str) -> None:
    assert found(code, EXPLANATIONS[code].fixed) == []


def test_an_overlapping_launch() -> None:
    frame, page = FRAMES[SEQUENCE], EXPLANATIONS[SEQUENCE]
    x, y = np.zeros(32, np.float32), np.zeros(32, np.float32)

    def sequence(example: str) -> None:
        source = frame.source(example)
        ptx = compile_ptx(PRODUCER, "compute_90a")
        first = emulator.launch(ptx, "kernel", grid=1, block=32, args=[x], source=PRODUCER, hazards=True, overlapped=True)
        ptx = compile_ptx(source, "compute_90a")
        emulator.launch(ptx, "kernel", grid=1, block=32, args=[x, y], source=source, hazards=True, overlaps=first)

    with pytest.raises(emulator.UnorderedLaunch):
        sequence(page.example)
    sequence(page.fixed)
    assert y.tolist() == list(range(32))


def test_options_of_an_expectation(run: Run) -> None:
    Path("third.cu").write_text("__global__ void third(float* y) { y[threadIdx.x] = 1.0f + 4e-6f; }\n")
    np.save("reference.npy", np.ones(32, np.float32))
    launch = ["emulate", "third.cu", "--grid", "1", "--block", "32", "--arg", "f32[32]"]
    page = EXPLANATIONS[OPTIONS]
    assert "y[0] is" in run(*launch, *page.example.split(), code=1).out
    run(*launch, *page.fixed.split())
