"""Blocks on several processes: everything as one process has it, and one process where blocks have to do with each other."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import parallel
from gemmgen.emulator.counters import CounterObserver

from .helpers import compile_ptx

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux only")


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """Launches share their blocks from the first wave on; yields whether each sharing came to its end."""
    ended = []
    run = parallel._Team.run

    def noted(team, progress):
        ended.append(run(team, progress))
        return ended[-1]

    monkeypatch.setattr(parallel, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(parallel._Team, "run", noted)
    return ended


def run(source: str, *args, jobs: int, grid: int = 24, block: int = 64, **kwargs):
    """Outcome of a launch: arrays, the result or the error, counters."""
    arrays = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    ptx = compile_ptx(f'extern "C" __global__ void kernel({source}')
    counted = CounterObserver()
    try:
        told = emulator.launch(
            ptx, grid=grid, block=block, args=arrays, jobs=jobs, lanes_per_wave=128, observers=[counted], hazards=True, **kwargs
        )
        result = (replace(told, findings=()), [str(finding) for finding in told.findings])
    except emulator.EmulatorError as error:
        result = (type(error), str(error))
    return [a for a in arrays if isinstance(a, np.ndarray)], result, counted.counters()


def same(source: str, *args, **kwargs):
    """Asserts that three processes report the same as one; returns the report."""
    alone, shared = (run(source, *args, jobs=jobs, **kwargs) for jobs in (1, 3))
    for one, other in zip(alone[0], shared[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert alone[1:] == shared[1:]
    return shared


def test_independent_blocks(shared):
    source = """const float* x, float* y) { __shared__ float t[64]; int i = blockIdx.x * 64 + threadIdx.x;
        t[threadIdx.x] = x[i]; __syncthreads(); y[i] = t[63 - threadIdx.x] + y[i]; }"""
    x, y = np.arange(24 * 64, dtype=np.float32), np.ones(24 * 64, np.float32)
    arrays, _, _ = same(source, x, y)
    assert shared == [True]
    np.testing.assert_array_equal(arrays[1], x.reshape(24, 64)[:, ::-1].ravel() + 1)


def test_warnings_are_added_up(shared):
    source = "int n, int* y) { int i = blockIdx.x * 64 + threadIdx.x; if (threadIdx.x >= n) return; __syncthreads(); y[i] = i; }"
    _, (_, findings), _ = same(source, 40, np.zeros(24 * 64, np.int32))
    assert shared == [True] and len(findings) == 1 and findings[0].startswith("warning: barrier that not all threads reach")


def test_printed_text_keeps_its_order(shared):
    _, (result, _), _ = same('int n) { if (threadIdx.x == 0) printf("%d ", n + (int)blockIdx.x); }', 5)
    assert shared == [True] and result.output.split() == [str(5 + block) for block in range(24)]


@pytest.mark.parametrize(
    "body",
    [
        "atomicAdd(y, threadIdx.x);",
        "y[blockIdx.x] = atomicAdd(y + 100, 1);",
        "y[blockIdx.x + threadIdx.x] = 7;",
        "if (threadIdx.x == 0) y[blockIdx.x] = y[blockIdx.x + 4] + 1;",
    ],
)
def test_blocks_that_meet_give_what_one_process_gives(shared, body):
    # One of the processes may have come to all of the work before the others began.
    same(f"int* y) {{ {body} }}", np.zeros(200, np.int32))
    assert len(shared) == 1


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [("r", "r", False), ("w", "", False), ("rw", "", False), ("w", "w", True), ("w", "r", True), ("r", "rw", True)],
)
def test_processes_meet_where_one_writes(first, second, meet):
    team = object.__new__(parallel._Team)
    team.rows = np.zeros((3, 2, 16), np.uint8)
    for row, touched in ((0, first), (2, second)):
        team.rows[row, 0, 5], team.rows[row, 1, 5] = "r" in touched, "w" in touched
    assert team._conflict() == meet


def test_an_error_is_that_of_one_process(shared):
    _, (kind, text), _ = same("int* y) { y[blockIdx.x * 64 + threadIdx.x] = 1; }", np.zeros(20 * 64, np.int32))
    assert shared == [False] and issubclass(kind, emulator.OutOfBounds) and "block (20,0,0)" in text


def test_what_was_written_is_known_afterwards(shared):
    flags = np.zeros(4 * 24 * 64, np.bool_)
    buffer = emulator.Buffer(np.zeros(24 * 64, np.int32), written=flags)
    run("int* y) { if (threadIdx.x < 32) y[blockIdx.x * 64 + threadIdx.x] = 1; }", buffer, jobs=3)
    assert shared == [True]
    assert (flags.reshape(24, 2, 128) == np.array([True, False])[None, :, None]).all()


def test_waiting_blocks_are_not_parted(shared):
    source = "int* y) { if (blockIdx.x) while (((volatile int*)y)[0] == 0); else ((volatile int*)y)[0] = 1; }"
    run(source, np.zeros(4, np.int32), jobs=3)
    assert shared == []


def test_progress_counts_blocks():
    told = []
    run("int* y) { y[blockIdx.x * 64 + threadIdx.x] = 1; }", np.zeros(24 * 64, np.int32), jobs=2, progress=lambda *each: told.append(each))
    assert told[-1] == (24, 24) and [done for done, _ in told] == sorted(done for done, _ in told)
