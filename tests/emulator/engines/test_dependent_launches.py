"""griddepcontrol: a launch that begins early waits before it accesses the memory of the preceding launch."""

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

WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
REDUCE = """__shared__ __align__(16) float tile[64];
    tile[threadIdx.x] = 2; fence_async(); __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;"
                     :: "l"(out), "r"(shared_address(tile)) : "memory");
        commit(); wait_group<0>();
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


GO = 'asm volatile("griddepcontrol.launch_dependents;");'


@pytest.mark.parametrize(
    ("between", "ended"),
    [
        (f"{GO} WAIT", False),
        (f"WAIT {GO}", True),
        (f"if (threadIdx.x == 0) WAIT __syncthreads(); {GO}", True),
        (f"if (threadIdx.x == 0) WAIT {GO}", False),
        (f"if (blockIdx.x == 1) {{ WAIT {GO} }} else {GO}", True),
        ("WAIT", True),
    ],
)
def test_a_launch_behind_a_wait_finds_more_finished(between, ended):
    source, middle, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32), np.zeros(64, np.float32)
    first = run(FIRST, source, middle, block=64, hazards=True, overlapped=True)
    body = f"KERNEL() {{ {between.replace('WAIT', WAIT)} }}"
    second = run(body, block=64, grid=2, hazards=True, overlaps=first, overlapped=True)
    third = SECOND.replace(WAIT, "")
    if ended:
        run(third, middle, middle, out, block=64, hazards=True, overlaps=second)
    else:
        with pytest.raises(emulator.UnorderedLaunch, match="launch before this one"):
            run(third, middle, middle, out, block=64, hazards=True, overlaps=second)


@pytest.mark.parametrize("change", ["atomicAdd(&out[threadIdx.x], 2.f);", "*(volatile float*)&out[threadIdx.x] = 2;", REDUCE])
def test_atomic_operations_of_the_launch_before_count(change):
    source, middle, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32), np.zeros(64, np.float32)
    first = run(FIRST.replace("out[threadIdx.x] = 2 * in[threadIdx.x];", change), source, middle, block=64, hazards=True, overlapped=True)
    run(SECOND, source, middle, out, block=64, hazards=True, overlaps=first)
    with pytest.raises(emulator.UnorderedLaunch):
        run(SECOND.replace(WAIT, ""), source, middle, out, block=64, hazards=True, overlaps=first)


BETWEEN = """KERNEL(float* out) {
    asm volatile("griddepcontrol.launch_dependents;");
    WAIT
    out[threadIdx.x] = 5;
}"""
ONE_WAITS = 'if (threadIdx.x == 63) asm volatile("griddepcontrol.wait;" ::: "memory");'


def chain(*between: str, early: bool = True) -> np.ndarray:
    """A launch that writes, some unrelated ones, and one that reads the data of the first."""
    source, middle, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32), np.zeros(64, np.float32)
    last = run(FIRST, source, middle, block=64, hazards=True, overlapped=True)
    for waiting in between:
        body = BETWEEN.replace("WAIT", waiting)
        last = run(body, np.zeros(64, np.float32), block=64, hazards=True, overlaps=last, overlapped=True)
    run(SECOND, np.full(64, 3, np.float32), middle, out, block=64, hazards=True, overlaps=last if early else None)
    return out


def test_a_launch_that_waits_ends_behind_the_one_before():
    np.testing.assert_array_equal(chain(WAIT), 6 * np.arange(64))
    np.testing.assert_array_equal(chain(ONE_WAITS, WAIT), 6 * np.arange(64))


def test_a_late_launch_finds_everything_finished():
    np.testing.assert_array_equal(chain("", early=False), 6 * np.arange(64))


@pytest.mark.parametrize("between", [[""], ["", ""], ["", WAIT], [WAIT, ""], ["if (threadIdx.x == 64) " + WAIT]])
def test_a_launch_that_does_not_wait_leaves_others_unfinished(between):
    with pytest.raises(emulator.UnfinishedLaunch) as raised:
        chain(*between)
    message = str(raised.value)
    assert "out[threadIdx.x] = 2 * in[threadIdx.x];" in message and "weight * data[threadIdx.x]" in message


def test_launches_that_do_not_overlap_need_no_wait():
    data, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    source = PRELUDE + FIRST
    emulator.launch(compile_ptx(source, "compute_90a"), "kernel", grid=1, block=64, args=[data, out], hazards=True)
    assert not run(
        SECOND.replace('asm volatile("griddepcontrol.wait;" ::: "memory");', ""), data, out, data.copy(), block=64, hazards=True
    ).findings
