"""Addresses of two threads of a block: distances that are listed, and races in a ring of stages of which some bytes meet."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("z3")

from gemmgen.proof.distances import _any_within, _between
from gemmgen.proof.obligations import races
from tests.proof.kernels import Sample, array
from tests.proof.test_whole import lifted

STAGES = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int n)
{
    __shared__ float s[1024];
    int lane = threadIdx.x % 32, row = threadIdx.x / 32, stage = 0;
    float sum = 0;
    s[row * 36 + lane] = x[threadIdx.x];
    s[284 + row * 36 + lane] = x[threadIdx.x];
    __syncthreads();
    #pragma unroll 1
    for (int t = 0; t < n; ++t) {
        int put = stage >= 1 ? stage - 1 : 2;
        s[put * 284 + row * 36 + lane] = x[t];
        sum += s[stage * 284 + lane / 4 * 36 + row * 4 + lane % 4];
        stage = stage == 2 ? 0 : stage + 1;
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}
""",
    (array("x", "input", ("n",), ("1",)), array("y", "output", ("256",), ("1",))),
    ("n",),
    "1",
    256,
)
WARPS = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int n)
{
    __shared__ float s[320];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0;
    #pragma unroll 1
    for (int t = 0; t < n; ++t) {
        s[warp * 40 + lane] = x[t];
        __syncwarp();
        if (t + lane < 40) sum += s[warp * 40 + 31 - lane];
        __syncwarp();
    }
    y[threadIdx.x] = sum;
}
""",
    STAGES.arrays,
    ("n",),
    "1",
    256,
)
RINGS = Sample(
    """
extern "C" __global__ void kernel(const float* x, float* y, int n)
{
    __shared__ float s[128 * 3];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int count = n - warp * 5;
    const unsigned at = (unsigned)__cvta_generic_to_shared(s + warp * 96 + lane);
    float sum = 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(x + lane) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at + 128), "l"(x + lane) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    #pragma unroll 1
    for (int t = 0; t < count; ++t) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
        sum += s[warp * 96 + t % 3 * 32 + 31 - lane];
        if (t + 2 < count)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at + (t + 2) % 3 * 128), "l"(x + lane) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    y[threadIdx.x] = sum;
}
""",
    (array("x", "input", ("n + 32",), ("1",)), array("y", "output", ("128",), ("1",))),
    ("n",),
    "1",
    128,
)
OF_RINGS: dict[str, tuple[str, str]] = {
    "a wait for one group less": ("wait_group 1;", "wait_group 2;"),
    "no barrier of the warp": ("        __syncwarp();\n", ""),
    "the next stage is read": ("t % 3 * 32 + 31", "(t + 1) % 3 * 32 + 31"),
    "the stage that is read is filled": ("(t + 2) % 3 * 128", "t % 3 * 128"),
    "another warp's stage is read": ("s[warp * 96 + t", "s[(warp ^ 1) * 96 + t"),
    "stages overlap by one element": ('"r"(at + 128)', '"r"(at + 124)'),
    "rings overlap by one stage": ("s + warp * 96 + lane", "s + warp * 64 + lane"),
    "the first copies are one group": ('"r"(at), "l"(x + lane) : "memory");', '"r"(at), "l"(x + lane) : "memory"); if (0)'),
}
OF_WARPS: dict[str, tuple[str, str]] = {
    "no barrier before the load": ("        __syncwarp();\n        if", "        if"),
    "no barrier behind the load": ("        __syncwarp();\n    }", "    }"),
    "another warp's row": ("s[warp * 40 + 31", "s[(warp ^ 1) * 40 + 31"),
    "the last lane reads the next row": ("s[warp * 40 + 31 - lane]", "s[warp * 40 + (lane == 0 ? 40 : 31 - lane)]"),
    "rows overlap by one element": ("s[warp * 40 + lane]", "s[warp * 31 + lane]"),
    "two warps share a row": ("s[warp * 40 + lane]", "s[(warp < 7 ? warp : 6) * 40 + lane]"),
    "lanes share an element": ("s[warp * 40 + lane]", "s[warp * 40 + lane / 2]"),
    "a barrier in some turns": ("        __syncwarp();\n        if", "        if (t % 2) __syncwarp();\n        if"),
    "teams of threads in two warps": ("warp = threadIdx.x / 32;", "warp = (threadIdx.x + 16) / 32;"),
}
MEETING: dict[str, tuple[str, str]] = {
    "the stage that is read is filled": ("stage >= 1 ? stage - 1 : 2", "stage"),
    "two stages": ("stage >= 1 ? stage - 1 : 2", "stage >= 1 ? stage - 1 : 0"),
    "no barrier between turns": ("        __syncthreads();\n    }", "    }"),
    "stages overlap by one element": ("s[put * 284 +", "s[put * 284 + 1 +"),
    "the stages that are read begin an element earlier": ("s[stage * 284 +", "s[stage * 283 +"),
    "rows overlap by one element": ("s[put * 284 + row * 36", "s[put * 284 + row * 31"),
    "lanes share an element": ("row * 36 + lane] = x[t];", "row * 36 + lane / 2] = x[t];"),
    "the last lane has another's element": ("row * 36 + lane] = x[t];", "row * 36 + (lane == 31 ? 0 : lane)] = x[t];"),
    "warps share a row": ("row * 36 + lane] = x[t];", "(row == 7 ? 6 : row) * 36 + lane] = x[t];"),
    "a store of the last row alone": ("row * 36 + lane] = x[t];", "row * 36 + lane] = x[t]; if (row == 7) s[stage * 284 + lane] = 1;"),
}


def test_stages_that_lie_apart_have_no_race() -> None:
    verdict = races(lifted(STAGES.source, STAGES), True)
    assert verdict.holds, verdict.unproved


@pytest.mark.parametrize("mistake", MEETING)
def test_bytes_that_two_threads_touch(mistake: str) -> None:
    text, instead = MEETING[mistake]
    assert STAGES.source.count(text) == 1
    assert not races(lifted(STAGES.source.replace(text, instead), STAGES), True).holds


def test_warps_that_meet_by_themselves_have_no_race() -> None:
    verdict = races(lifted(WARPS.source, WARPS), True)
    assert verdict.holds, verdict.unproved


@pytest.mark.parametrize("mistake", OF_WARPS)
def test_bytes_that_two_threads_of_warps_touch(mistake: str) -> None:
    text, instead = OF_WARPS[mistake]
    assert WARPS.source.count(text) == 1
    assert not races(lifted(WARPS.source.replace(text, instead), WARPS), True).holds


def test_rings_of_warps_have_no_race() -> None:
    verdict = races(lifted(RINGS.source, RINGS), True)
    assert verdict.holds, verdict.unproved


@pytest.mark.parametrize("mistake", OF_RINGS)
def test_bytes_that_two_threads_touch_in_rings_of_warps(mistake: str) -> None:
    text, instead = OF_RINGS[mistake]
    assert RINGS.source.count(text) == 1
    assert not races(lifted(RINGS.source.replace(text, instead), RINGS), True).holds


@pytest.mark.parametrize("seed", range(20))
def test_listed_distances_are_those_of_all_bytes(seed: int) -> None:
    numbers = random.Random(seed)
    table, table_ = (np.array([numbers.randrange(60) for _ in range(9)]) for _ in range(2))
    threads, threads_ = (np.array(sorted(numbers.sample(range(9), 5))) for _ in range(2))
    size, size_, same = numbers.choice([1, 2, 4, 8]), numbers.choice([1, 4, 16]), bool(numbers.randrange(2))
    between = _between(table, threads, table_, threads_, same)
    assert between is not None
    for at in range(-90, 90):
        meets = any(
            set(range(table[t], table[t] + size)) & set(range(table_[u] + at, table_[u] + at + size_))
            for t in threads
            for u in threads_
            if same or t != u
        )
        assert _any_within(between, at - size, at + size_) == meets
