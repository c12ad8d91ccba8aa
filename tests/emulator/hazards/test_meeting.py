"""Threads that wait for each other: barriers and warp-synchronous instructions that somebody misses."""

import numpy as np
import pytest

from gemmgen import emulator

from .twins import check, ints, twins


def test_a_barrier_in_a_branch_that_a_part_of_a_warp_takes():
    source = """int* out) { __shared__ int s[64]; int t = threadIdx.x; s[t] = t;
        if (t < 64) __syncthreads();
        else { s[t] = 0; __syncthreads(); }
        out[t] = s[t ^ 1]; }"""
    assert "lanes of one warp wait at different barriers" in twins(source, "t < 64", emulator.DivergentBarrier, ints(64), instead="t < 16")


def test_a_barrier_that_whole_warps_miss():
    source = "int* out) { int t = threadIdx.x; if (t < 64) __syncthreads(); if (t >= 32) __syncthreads(); out[t] = t; }"
    check(source.replace("t < 64", "true").replace("t >= 32", "true"), ints(64))
    elsewhere = source.replace("if (t >= 32) __syncthreads();", 'if (t < 32) asm volatile("bar.sync 1, 64;");')
    with pytest.raises(emulator.DivergentBarrier):
        check(elsewhere.replace("t < 64", "t >= 32"), ints(64))


def test_threads_that_have_exited_are_not_waited_for():
    result = check(
        """int* out) {
        __shared__ int s[64]; int t = threadIdx.x;
        s[t] = t;
        if (t >= 40) return;
        __syncthreads();
        out[t] = s[(t + 7) % 40]; }""",
        ints(64),
    )
    assert [type(finding) for finding in result.findings] == [emulator.MissedBarrier]


def test_a_count_that_too_few_threads_reach():
    source = """int* out) { int t = threadIdx.x; if (t < 64) asm volatile("bar.sync 1, 64;"); out[t] = t; }"""
    assert "64 of 96 threads at barrier 1" in twins(
        source, "bar.sync 1, 64", emulator.Deadlock, ints(96), instead="bar.sync 1, 96", block=96
    )


def test_counts_that_contradict_each_other():
    source = """int* out) { int t = threadIdx.x;
        if (t < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 1, 64; // second"); out[t] = t; }"""
    assert "barrier 1 with counts 64 and 96" in twins(
        source, "bar.sync 1, 64; // second", emulator.DivergentBarrier, ints(64), instead="bar.sync 1, 96;"
    )


@pytest.mark.parametrize(
    "meeting",
    [
        "__syncwarp();",
        "out[t + 32] = __shfl_sync(~0u, t, 3);",
        "out[t + 32] = __ballot_sync(~0u, t & 1);",
        "out[t + 32] = __match_any_sync(~0u, t & 3);",
        "out[t + 32] = __reduce_add_sync(~0u, t);",
    ],
)
def test_lanes_that_a_mask_names_and_that_never_come(meeting):
    source = "int* out) { int t = threadIdx.x; if (t < 32) { MEET } __syncthreads(); out[t] = t; }".replace("MEET", meeting)
    check(source, ints(64), block=32)
    with pytest.raises(emulator.DivergentWarp, match="never arrive"):
        check(source.replace("t < 32", "t < 31"), ints(64), block=32)


def test_lanes_that_their_own_mask_leaves_out():
    source = "int* out) { out[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 0); }"
    assert "executed by lanes that its member mask leaves out" in twins(
        source, "0xffffffffu", emulator.DivergentWarp, ints(32), instead="0xffffu", block=32
    )


def test_a_lock_that_is_never_released():
    source = """int* lock, int* out) { if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        __threadfence(); *out = *out + 1; __threadfence();
        atomicExch(lock, 0); } }"""
    assert "only poll memory, which nothing changes any more" in twins(
        source, "atomicExch(lock, 0);", emulator.Deadlock, np.zeros(1, np.int32), ints(1), grid=3, step_limit=20_000
    )


def test_a_lock_that_guards_nothing():
    source = """int* lock, int* out) { if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        __threadfence(); *out = *out + 1; /* done */ __threadfence();
        atomicExch(lock, 0); } }"""
    assert "global memory race: read of" in twins(source, "/* done */ __threadfence();", emulator.GlobalRace, ints(1), ints(1), grid=3)
