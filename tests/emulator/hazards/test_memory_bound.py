"""The memory that hazard checks take: bounded by the data of a kernel, not by its work."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.hazards import shadow
from gemmgen.emulator.hazards.clocks import NOTHING, Clocks
from gemmgen.emulator.hazards.destinations import destinations
from gemmgen.emulator.program import link

from ..helpers import compile_ptx
from .twins import check, ints


def _destinations(source: str) -> set[int] | None:
    program = link(compile_ptx('extern "C" __global__ void kernel(' + source), None)
    found = destinations(program)
    return None if found is None else {int(name.rpartition("_")[2]) for name in found if name.startswith("kernel_param_")}


def test_arrays_that_are_only_read_are_known():
    loop = "int s = 0; for (int i = 0; i < n; ++i) s += a[i] * b[threadIdx.x * n + i]; c[threadIdx.x] = s; }"
    assert _destinations(f"int* a, int* b, int* c, int n) {{ {loop}") == {2}


def test_an_index_from_memory_is_no_pointer():
    assert _destinations("long long* index, int* c) { c[index[threadIdx.x]] = 1; }") == {1}


def test_a_pointer_from_memory_leads_anywhere():
    assert _destinations("int** rows) { rows[threadIdx.x][0] = 1; }") is None


def test_either_pointer_may_be_written():
    assert _destinations("int* a, int* b, int* c, int n) { int* p = n > threadIdx.x ? a : b; p[threadIdx.x] = c[0]; }") == {0, 1}


def test_atomics_and_members_are_destinations():
    assert _destinations("int* a, int* b) { atomicAdd(b + a[threadIdx.x], 1); }") == {1}
    text = "pair p, int* b) { p.y[threadIdx.x] = b[threadIdx.x]; }"
    source = 'struct pair { int* x; int* y; }; extern "C" __global__ void kernel(' + text
    assert destinations(link(compile_ptx(source), None)) == {"kernel_param_0"}


def test_an_alias_of_a_written_array_is_watched():
    source = "const int* in, int* out) { int v = in[threadIdx.x ^ 1]; out[threadIdx.x] = v; }"
    data = emulator.Buffer(ints(64))
    check(source, ints(64), ints(64))
    with pytest.raises(emulator.GlobalRace):
        check(source, data, data, strict=True)


def test_a_long_log_keeps_some_accesses_of_each_granule(monkeypatch):
    monkeypatch.setattr(shadow, "_LOG", 64)
    accesses = shadow.AccessSet(4)
    for thread in range(1000):
        accesses.add(np.arange(4), np.full(4, (thread + 1) << 32 | thread))
    assert sum(len(chunk) for chunk, _ in accesses._log) <= 4 * shadow._ACCESSES_KEPT * 3
    threads = accesses.accesses_to(2) & 0xFFFFFFFF
    assert set(threads // 250) == {0, 1, 2, 3}


def test_clocks_that_nobody_holds_go():
    clocks, held = Clocks(), [NOTHING]
    clocks.holders.append(lambda: held)
    most = 0
    for time in range(1, 20001):
        clocks.drop_unheld()
        held[0] = clocks.join_all([held[0], clocks.new({}, {time % 8: time})])
        most = max(most, len(clocks))
    assert most <= 5000
    threads, last = np.arange(8), np.array([20000, *range(19993, 20000)])
    assert clocks[held[0]].covers(threads, last, 32).all()
    assert not clocks[held[0]].covers(threads, last + 1, 32).any()


def test_joined_clocks_know_what_their_sides_know():
    rng = np.random.default_rng(0)
    clocks, numbers, known = Clocks(), [NOTHING], [np.zeros((2, 40), np.int64)]
    for _ in range(400):
        first, second = rng.integers(0, len(numbers), 2).tolist()
        table = np.zeros((2, 40), np.int64)
        table[0, rng.integers(0, 5)], table[1, rng.integers(0, 40)] = rng.integers(1, 100, 2)
        blocks, threads = ({key: int(row[key]) for key in np.flatnonzero(row).tolist()} for row in table)
        numbers.append(clocks.join_all([numbers[first], numbers[second], clocks.new(blocks, threads)]))
        known.append(np.maximum(np.maximum(known[first], known[second]), table))
    for number, table in zip(numbers, known, strict=True):
        latest = np.maximum(np.repeat(table[0, :5], 8), table[1])
        threads = np.arange(40)
        assert clocks[number].covers(threads[latest > 0], latest[latest > 0], 8).all()
        assert not clocks[number].covers(threads, latest + 1, 8).any()


def test_clocks_of_blocks_that_release_are_added_up_rarely(monkeypatch):
    sums = []
    monkeypatch.setattr(Clocks, "_sum", lambda self, number, add=Clocks._sum: sums.append(number) or add(self, number))
    source = """int* partial, int* out, unsigned* ticket) {
        __shared__ bool last; int t = threadIdx.x;
        if (t == 0) partial[blockIdx.x] = t;
        __threadfence(); __syncwarp(); __syncthreads();
        if (t == 0) last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        __syncthreads();
        __threadfence(); __syncthreads();
        if (last) for (int b = t; b < gridDim.x; b += 32) out[b] = partial[b]; }"""
    blocks = 48
    assert not check(source, ints(blocks), ints(blocks), np.zeros(1, np.uint32), grid=blocks, block=32).findings
    assert 0 < len(sums) < 8 * blocks
