"""The same launch under several interleavings."""

import numpy as np
import pytest

import gemmgen
from gemmgen import emulator
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary

from ..helpers import compile_ptx
from .twins import ints

TICKETS = """extern "C" __global__ void kernel(int* out, int* next) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x % 32 == 0) { int ticket = atomicAdd(next, 1); out[VALUE] = ticket; } }"""


def interleaved(source: str, *args, schedules: int = 4, **kwargs) -> emulator.LaunchResult:
    return emulator.launch_interleaved(
        compile_ptx(source), "kernel", schedules=schedules, grid=6, block=96, args=list(args), source=source, hazards=True, **kwargs
    )


def test_an_order_that_shows_in_the_result():
    with pytest.raises(emulator.ScheduleDependent, match=r"argument 0\[\d+\] is \d+ in one order of warps and \d+ in another"):
        interleaved(TICKETS.replace("VALUE", "t / 32"), ints(18), ints(1))


def test_an_order_that_does_not_show():
    out, following = ints(18), ints(1)
    interleaved(TICKETS.replace("VALUE", "ticket"), out, following)
    assert out.tolist() == list(range(18)) and following[0] == 18


def test_floating_point_atomics_are_named_as_the_cause():
    source = """extern "C" __global__ void kernel(float* sum) { atomicAdd(sum, 1.0f / (1 + threadIdx.x + 96 * blockIdx.x)); }"""
    with pytest.raises(emulator.ScheduleDependent, match="floating-point atomic additions round differently") as raised:
        interleaved(source, np.zeros(1, np.float32))
    assert "atom" in str(raised.value) or "red" in str(raised.value)


@pytest.mark.parametrize("schedule", [emulator.RandomWarps, emulator.RandomCrowds])
def test_lanes_of_a_warp_do_not_run_in_lockstep(schedule):
    """Sums that are right only in lockstep: without the hazard detector, the interleavings tell."""
    ptx = compile_ptx("""extern "C" __global__ void kernel(int* out) {
        __shared__ int states[64]; int t = threadIdx.x; volatile int* s = states;
        s[t] = t; __syncthreads();
        if (t < 32)
            for (int distance = 32; distance > 0; distance /= 2) s[t] += s[t + distance];
        if (t == 0) *out = s[0]; }""")
    results = set()
    for seed in range(20):
        out = ints(1)
        emulator.launch(ptx, "kernel", grid=1, block=64, args=[out], schedule=schedule(seed))
        results.add(int(out[0]))
    assert sum(range(64)) in results and len(results) > 1


def test_integer_atomics_agree():
    total = ints(1)
    interleaved('extern "C" __global__ void kernel(int* sum) { atomicAdd(sum, threadIdx.x); }', total)
    assert total[0] == 6 * 95 * 96 // 2


def test_flags_of_what_is_written_are_those_of_one_run():
    flags = np.zeros(4 * 18, np.bool_)
    out = emulator.Buffer(ints(18), written=flags)
    interleaved(TICKETS.replace("VALUE", "ticket"), out, ints(1))
    assert flags.all()


def test_verification_under_schedules():
    plan = gemmgen.plan("specs/gemm/v3_double_buffer.yaml")
    cases = [case for case in oracle_of(plan.spec.kind).cases(plan) if case.name in ("one element", "primes")]
    report = verify_binary(plan, compile_plan(plan), EmulatorBackend(schedules=3), cases=cases)
    assert report.passed and report.results
