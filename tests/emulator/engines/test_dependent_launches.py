"""griddepcontrol: a launch that begins early waits before it touches what the launch before it touches."""

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import compile_ptx
from .prelude import PRELUDE, run

FIRST = """KERNEL(const float* in, float* out) {
    out[threadIdx.x] = 2 * in[threadIdx.x];
    asm volatile("griddepcontrol.launch_dependents;");
}"""
SECOND = """KERNEL(const float* weights, float* data, float* out) {
    float weight = weights[threadIdx.x];
    asm volatile("griddepcontrol.wait;" ::: "memory");
    out[threadIdx.x] = weight * data[threadIdx.x];
}"""


def sequence(second: str) -> np.ndarray:
    source, middle, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32), np.zeros(64, np.float32)
    first = run(FIRST, source, middle, block=64, hazards=True, overlapped=True)
    run(second, np.full(64, 3, np.float32), middle, out, block=64, hazards=True, overlaps=first)
    return out


def test_what_the_launch_before_wrote_is_read_behind_the_wait():
    np.testing.assert_array_equal(sequence(SECOND), 6 * np.arange(64))


def test_one_thread_may_wait_for_all():
    one = SECOND.replace("asm volatile", "if (threadIdx.x == 0) asm volatile").replace("    out[", "    __syncthreads();\n    out[")
    np.testing.assert_array_equal(sequence(one), 6 * np.arange(64))


@pytest.mark.parametrize(
    "early",
    [
        SECOND.replace('asm volatile("griddepcontrol.wait;" ::: "memory");\n', "\n"),
        SECOND.replace("float weight = weights[threadIdx.x];", "float weight = *(volatile float*)&data[threadIdx.x];"),
        SECOND.replace("asm volatile", "if (threadIdx.x == 0) asm volatile"),
        SECOND.replace("    float weight = weights", "    data[threadIdx.x] = 1; float weight = weights"),
    ],
)
def test_what_comes_before_the_wait_is_a_hazard(early):
    with pytest.raises(emulator.UnorderedLaunch, match="launch before this one"):
        sequence(early)


def test_what_the_launch_before_reads_must_not_be_overwritten():
    source, middle = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    body = "KERNEL(float* in) { WAIT in[threadIdx.x] = 0; }"
    first = run(FIRST, source, middle, block=64, hazards=True, overlapped=True)
    run(body.replace("WAIT", 'asm volatile("griddepcontrol.wait;" ::: "memory");'), source, block=64, hazards=True, overlaps=first)
    with pytest.raises(emulator.UnorderedLaunch):
        run(body.replace("WAIT", ""), source, block=64, hazards=True, overlaps=first)


def test_launches_that_do_not_overlap_need_no_wait():
    data, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    source = PRELUDE + FIRST
    emulator.launch(compile_ptx(source, "compute_90a"), "kernel", grid=1, block=64, args=[data, out], hazards=True)
    assert not run(
        SECOND.replace('asm volatile("griddepcontrol.wait;" ::: "memory");', ""), data, out, data.copy(), block=64, hazards=True
    ).findings
