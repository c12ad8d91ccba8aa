"""Blocks that wait for blocks that have not started, and threads that wait for an event that never happens."""

import importlib

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.schedule import BLOCKED, RandomCrowds

from .helpers import run_cuda

THREADS = 32
PLACES = 4


@pytest.fixture(autouse=True)
def places(monkeypatch):
    """Room for few blocks at a time."""
    module = importlib.import_module("gemmgen.emulator.launch")
    monkeypatch.setattr(module, "blocks_per_wave", lambda program, block, grid, *more: min(PLACES, grid[0]))


FIRST_WAITS = r"""extern "C" __global__ void first_waits(const int* in, int* results, unsigned* flags, int* out) {
    int b = blockIdx.x, t = threadIdx.x;
    if (b != 0) {
        if (t == 0) {
            results[b] = in[b];
            RELEASE
            flags[b] = 1;
        }
        return;
    }
    int sum = 0;
    for (int other = 1 + t; other < gridDim.x; other += blockDim.x) {
        while (((volatile unsigned*)flags)[other] == 0) { }
        __threadfence();
        sum += results[other];
    }
    atomicAdd(out, sum);
}""".replace("flags[b] = 1", "((volatile unsigned*)flags)[b] = 1")


def first_waits(blocks=11, release="__threadfence();", source=FIRST_WAITS, **kwargs):
    given = np.arange(100, 100 + blocks, dtype=np.int32)
    out = np.zeros(1, np.int32)
    results = emulator.Buffer(np.zeros(blocks, np.int32), written=np.zeros(4 * blocks, np.bool_))
    args = [given, results, np.zeros(blocks, np.uint32), out]
    result = run_cuda(source.replace("RELEASE", release), "first_waits", blocks, THREADS, args, hazards=True, **kwargs)
    assert out[0] == given[1:].sum()
    return result


@pytest.mark.parametrize("blocks", [PLACES + 1, 2 * PLACES, 50])
def test_a_block_that_waits_for_the_last_one_of_a_larger_grid(blocks):
    result = first_waits(blocks)
    assert result.waves == 1 + -(-(blocks - PLACES) // (PLACES - 1))


@pytest.mark.parametrize("schedule", [emulator.RandomWarps(3), RandomCrowds(4)])
def test_late_blocks_in_other_interleavings(schedule):
    assert first_waits(schedule=schedule).waves > 1


@pytest.mark.parametrize("schedule", [None, RandomCrowds(4)])
def test_a_late_block_that_does_not_release_what_it_wrote(schedule):
    with pytest.raises(emulator.GlobalRace) as caught:
        first_waits(release="", schedule=schedule)
    assert "of block (0,0,0)" in str(caught.value)
    assert caught.value.other_threads is not None


def test_the_former_block_of_a_place_vouches_for_nothing():
    """Only blocks of the first wave release: writes of later ones at their places stay unordered."""
    with pytest.raises(emulator.GlobalRace) as caught:
        first_waits(blocks=PLACES + 2, release=f"if (b < {PLACES}) __threadfence();")
    assert f"thread (0,0,0) of block ({PLACES},0,0)" in caught.value.other_threads


@pytest.mark.parametrize(
    ("former", "late", "end"),
    [
        ("while (flags[2] == 0) { } __threadfence(); out[0] = data[2];", "out[1] = data[2];", ""),
        ("data[1] = 1; __threadfence(); __syncthreads();", "", "__threadfence(); out[0] = data[1];"),
        ("out[0] = data[3];", "data[3] = 1;", ""),
    ],
    ids=["knows", "publishes", "has read"],
)
def test_what_former_block_of_place_did_is_not_late_ones(former, late, end):
    """Block 4 comes to the place of block 1: it has not acquired the writes that block 1 acquired, publishes none
    of them, and its reads are not those of block 1."""
    source = r"""extern "C" __global__ void heirs(volatile unsigned* flags, int* data, int* out) {
        int b = blockIdx.x;
        if (b == 0) { while (flags[4] == 0) { } END }
        if (b == 1) { FORMER }
        if (b == 2) { data[2] = 1; __threadfence(); }
        if (b == 4) { LATE }
        flags[b] = 1;
    }"""

    def run(former, late):
        text = source.replace("FORMER", former).replace("LATE", late).replace("END", end)
        run_cuda(text, "heirs", 5, 1, [np.zeros(5, np.uint32), np.zeros(5, np.int32), np.zeros(2, np.int32)], hazards=True)

    ordered = "while (flags[1] == 0 || flags[2] == 0) { } __threadfence();"
    run(former + "__threadfence();", ordered + late + "__threadfence();")
    with pytest.raises(emulator.GlobalRace):
        run(former, late)


@pytest.mark.parametrize("memory", ["__shared__ int box[32];", "int box[4];", "register"])
def test_a_late_block_finds_nothing_of_the_former_one(memory):
    """Blocks of the first wave give something a value; later ones read it all the same."""
    if memory == "register":
        write, declare, read = 'asm volatile("mov.b32 %0, 7;" : "=r"(held));', "int held;", "held"
    else:
        box = "((volatile int*)box)[t]" if "32" in memory else "((volatile int*)box)[t & 3]"
        write, declare, read = f"{box} = 7;", memory, box
    source = (
        r"""extern "C" __global__ void inherits(volatile unsigned* flags, int* out) {
        DECLARE
        int b = blockIdx.x, t = threadIdx.x;
        if (b < LIMIT) { WRITE }
        if (b == 0) { while (flags[gridDim.x - 1] == 0) { } return; }
        out[b * 32 + t] = READ;
        flags[b] = 1;
    }""".replace("DECLARE", declare)
        .replace("WRITE", write)
        .replace("READ", read)
    )
    args = [np.zeros(6, np.uint32), np.zeros(6 * 32, np.int32)]

    def run(limit):
        run_cuda(source.replace("LIMIT", str(limit)), "inherits", 6, 32, args, hazards=True)

    run(6)
    args[0][:] = 0
    with pytest.raises(emulator.HazardError, match=r"which nothing has written|holds no value") as caught:
        run(PLACES)
    assert f"of block ({PLACES},0,0)" in str(caught.value)


@pytest.mark.parametrize(
    ("leave", "meet"),
    [
        (
            'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((unsigned)__cvta_generic_to_shared(s + t)), "l"(in + t));',
            'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((unsigned)__cvta_generic_to_shared(s + 32 + t)), "l"(in + t));'
            "s[t] = t; out[b * 32 + t] = s[t];",
        ),
        ('asm volatile("bar.arrive 1, 64;");', 'if (t == 0) asm volatile("bar.sync 1, 32;"); out[b * 32 + t] = t;'),
    ],
)
def test_what_blocks_left_unfinished_does_not_concern_late_ones(leave, meet):
    source = r"""extern "C" __global__ void unfinished(volatile unsigned* flags, const int* in, int* out) {
        __shared__ int s[64];
        int b = blockIdx.x, t = threadIdx.x;
        if (b == 0) { while (flags[gridDim.x - 1] == 0) { } return; }
        if (b < 4) { LEAVE } else { MEET }
        flags[b] = 1;
    }""".replace("LEAVE", leave).replace("MEET", meet)
    out = np.zeros(7 * 32, np.int32)
    run_cuda(source.replace("if (t == 0) asm", "asm"), "unfinished", 7, 32, [np.zeros(7, np.uint32), np.ones(32, np.int32), out])
    assert out[4 * 32 :].tolist() == 3 * list(range(32))


def test_a_register_that_a_late_block_has_not_written_is_zero():
    source = r"""extern "C" __global__ void inherits(volatile unsigned* flags, int* out) {
        int held, b = blockIdx.x;
        if (b < 4) asm volatile("mov.b32 %0, 7;" : "=r"(held));
        if (b == 0) while (flags[gridDim.x - 1] == 0) { }
        out[b] = held;
        flags[b] = 1;
    }"""
    out = np.zeros(6, np.int32)
    run_cuda(source, "inherits", 6, 1, [np.zeros(6, np.uint32), out])
    assert out.tolist() == [7, 7, 7, 7, 0, 0]


def test_special_registers_of_late_blocks():
    source = r"""extern "C" __global__ void named(volatile unsigned* flags, int* out) {
        int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        out[b] = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z;
        if (b == 0) while (flags[gridDim.x * gridDim.y * gridDim.z - 1] == 0) { }
        flags[b] = 1;
    }"""
    out = np.zeros(3 * 2 * 4, np.int32)
    run_cuda(source, "named", (3, 2, 4), 1, [np.zeros(24, np.uint32), out])
    assert out.tolist() == [x + 10 * y + 100 * z for z in range(4) for y in range(2) for x in range(3)]


# -- waits that never end ----------------------------------------------------------------------------------------


def test_a_block_that_never_comes():
    with pytest.raises(emulator.Deadlock, match="only poll memory, which nothing changes any more") as caught:
        first_waits(source=FIRST_WAITS.replace("if (b != 0)", "if (b == 7) return; if (b != 0)"))
    assert caught.value.threads == "thread (6,0,0) of block (0,0,0)"
    assert "while (((volatile unsigned*)flags)[other] == 0)" in str(caught.value)


def test_all_places_are_taken_by_blocks_that_wait():
    source = r"""extern "C" __global__ void all_wait(unsigned* count) {
        atomicAdd(count, 1);
        while (*(volatile unsigned*)count < gridDim.x) { }
    }"""
    run_cuda(source, "all_wait", PLACES, 1, [np.zeros(1, np.uint32)])
    with pytest.raises(emulator.Deadlock, match=f"3 of the grid's blocks cannot start, for there is room for {PLACES}"):
        run_cuda(source, "all_wait", PLACES + 3, 1, [np.zeros(1, np.uint32)])


@pytest.mark.parametrize(
    ("wait", "threads"),
    [
        ("while (atomicCAS(lock, 0, 1) != 0) { }", 1),
        ("while (atomicExch(lock, 5) != 0) { }", 1),
        ("while (atomicAdd(lock, 0) != 0) { }", 64),
        ("do { if (threadIdx.x == 0) s = *(volatile int*)lock; __syncthreads(); if (!s) break; __syncthreads(); } while (true);", 64),
        ("while (__any_sync(~0u, *(volatile int*)lock)) { }", 64),
        ("unsigned pause = 8; while (*(volatile int*)lock) { __nanosleep(pause); if (pause < 256) pause *= 2; }", 64),
    ],
)
@pytest.mark.parametrize("schedule", [emulator.MinimumBlock, lambda: emulator.RandomWarps(1), lambda: RandomCrowds(2)])
def test_every_way_to_wait(wait, threads, schedule):
    """For a lock that the last block gives back late, and for one that nobody gives back."""
    source = r"""extern "C" __global__ void waits(int* lock, int* out) {
        __shared__ int s;
        if (blockIdx.x == 2) { if (threadIdx.x == 0) { RETURN } return; }
        WAIT
        out[threadIdx.x] = 1;
        if (blockDim.x == 1) atomicExch(lock, 0);
    }""".replace("WAIT", wait)
    late = "float x = clock(); for (int i = 0; i < 3000; ++i) x = x * 0.5f + i; out[64] = x; atomicExch(lock, 0);"
    args = [np.ones(1, np.int32), np.zeros(65, np.int32)]
    run_cuda(source.replace("RETURN", late), "waits", 3, threads, args, schedule=schedule())
    assert args[1][:threads].all()
    args[0][0] = 1
    with pytest.raises(emulator.Deadlock, match="only poll memory, which nothing changes any more"):
        run_cuda(source.replace("RETURN", ""), "waits", 3, threads, args, schedule=schedule(), step_limit=50_000)


@pytest.mark.parametrize("patience", ["--tries", "clock64() - start < 60000", "__any_sync(~0u, --tries)"])
def test_a_wait_that_gives_up_is_no_deadlock(patience):
    source = r"""extern "C" __global__ void gives_up(volatile int* flag, int* out) {
        int tries = 3000; long long start = clock64();
        while (*flag == 0 && PATIENCE) { }
        out[threadIdx.x] = 1;
    }""".replace("PATIENCE", patience)
    out = np.zeros(32, np.int32)
    run_cuda(source, "gives_up", 1, 32, [np.zeros(1, np.int32), out])
    assert out.all()


class FirstWarpFirst(emulator.MinimumBlock):
    """Leaves all warps but the first waiting for a long time."""

    turns = 0

    def pick(self, key):
        self.turns += 1
        if self.turns < 5000:
            key = np.where(np.arange(len(key)) < 32, key, BLOCKED)
        return super().pick(key)


def test_a_thread_that_the_schedule_leaves_waiting_may_still_act():
    source = r"""extern "C" __global__ void late(volatile int* flag, int* out) {
        if (blockIdx.x == 0) while (*flag == 0) { }
        else *flag = 1;
        out[blockIdx.x] = 1;
    }"""
    out = np.zeros(2, np.int32)
    run_cuda(source, "late", 2, 1, [np.zeros(1, np.int32), out], schedule=FirstWarpFirst())
    assert out.all()


def test_blocks_that_hand_over_a_token_are_no_deadlock():
    source = r"""extern "C" __global__ void ping_pong(volatile int* turn, int* out) {
        for (int i = 0; i < 1000; ++i) {
            while (*turn != blockIdx.x) { }
            *turn = 1 - blockIdx.x;
        }
        out[blockIdx.x] = 1;
    }"""
    out = np.zeros(2, np.int32)
    run_cuda(source, "ping_pong", 2, 1, [np.zeros(1, np.int32), out])
    assert out.all()


def test_late_block_does_not_race_with_former_ones_shared_memory():
    source = r"""extern "C" __global__ void kernel(volatile unsigned* flags, int* out) {
        __shared__ int count; int b = blockIdx.x;
        if (b == 0) { while (flags[gridDim.x - 1] == 0) { } return; }
        count = b; asm volatile("" ::: "memory");
        out[b] = count; asm volatile("" ::: "memory");
        count = b + 1; asm volatile("" ::: "memory");
        out[b] = count - 1;
        flags[b] = 1;
    }"""
    out = np.zeros(6, np.int32)
    run_cuda(source, "kernel", 6, 1, [np.zeros(6, np.uint32), out], hazards=True)
    assert out.tolist() == list(range(6))


def test_what_only_memory_shows_is_progress():
    """Both threads come round with the same registers; the count goes on until it is enough."""
    source = r"""extern "C" __global__ void kernel(volatile unsigned* count, volatile unsigned* enough) {
        if (blockIdx.x == 0) { while (*count < 20000) { } *enough = 1; }
        else while (*enough == 0) atomicAdd((unsigned*)count, 1);
    }"""
    count = np.zeros(1, np.uint32)
    run_cuda(source, "kernel", 2, 1, [count, np.zeros(1, np.uint32)])
    assert count[0] >= 20000
