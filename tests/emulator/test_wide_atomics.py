"""atom.exch and atom.cas of 16 bytes: lanes take turns, each with whole values."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import run_cuda

ATOMIC = """
typedef unsigned long long u64;
__device__ void exchange(u64* p, u64 low, u64 high, u64* old) {
    asm volatile("{.reg .b128 a, b; mov.b128 a, {%3, %4}; atom.SPACE.exch.b128 b, [%2], a; mov.b128 {%0, %1}, b;}"
        : "=l"(old[0]), "=l"(old[1]) : "l"(ADDRESS), "l"(low), "l"(high) : "memory");
}
__device__ void compare(u64* p, u64 low, u64 high, u64 new_low, u64 new_high, u64* old) {
    asm volatile("{.reg .b128 a, b; mov.b128 a, {%3, %4}; mov.b128 b, {%5, %6}; atom.SPACE.cas.b128 a, [%2], a, b; mov.b128 {%0, %1}, a;}"
        : "=l"(old[0]), "=l"(old[1]) : "l"(ADDRESS), "l"(low), "l"(high), "l"(new_low), "l"(new_high) : "memory");
}
"""
SPACES = {"global": "p", "shared": "__cvta_generic_to_shared(p)"}
COUNTED = """
extern "C" __global__ void kernel(ulonglong2* out, ulonglong2* seen) {
    __shared__ ulonglong2 own;
    int t = threadIdx.x;
    ulonglong2* where = SHARED ? &own : out;
    if (t == 0) *where = make_ulonglong2(0, ~0ull);
    __syncthreads();
    u64 old[2], now[2] = {0, ~0ull};
    for (;;) {  // both halves change together
        compare((u64*)where, now[0], now[1], now[0] + 1, now[1] - 1, old);
        if (old[0] == now[0] && old[1] == now[1]) break;
        now[0] = old[0], now[1] = old[1];
    }
    seen[t] = make_ulonglong2(old[0], old[1]);
    __syncthreads();
    if (t == 0) *out = *where;
}
"""


def source(space: str, body: str) -> str:
    return ATOMIC.replace("SPACE", space).replace("ADDRESS", SPACES[space]) + body.replace("SHARED", str(int(space == "shared")))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("schedule", [None, 3])
def test_a_counter_of_two_halves_counts_every_thread_once(space, schedule):
    out, seen = np.zeros(2, np.uint64), np.zeros((96, 2), np.uint64)
    more = {} if schedule is None else {"schedule": emulator.RandomWarps(schedule)}
    run_cuda(source(space, COUNTED), "kernel", 1, 96, [out, seen], "compute_90", hazards=True, **more)
    assert out.tolist() == [96, 2**64 - 97]
    assert sorted(seen[:, 0].tolist()) == list(range(96))
    assert (seen[:, 0] + seen[:, 1] == np.uint64(2**64 - 1)).all()


def test_an_exchange_hands_values_on():
    body = """
    extern "C" __global__ void kernel(u64* p, ulonglong2* seen, int bytes) {
        u64 old[2];
        exchange((u64*)((char*)p + bytes), threadIdx.x + 1, 100 * (threadIdx.x + 1), old);
        seen[threadIdx.x] = make_ulonglong2(old[0], old[1]);
    }"""
    p, seen = np.zeros(4, np.uint64), np.zeros((64, 2), np.uint64)
    run_cuda(source("global", body), "kernel", 1, 64, [p, seen, np.int32(0)], "compute_90", hazards=True)
    assert sorted([*seen[:, 0].tolist(), int(p[0])]) == list(range(65))
    assert (seen[:, 1] == 100 * seen[:, 0]).all() and p[1] == 100 * p[0] and not p[2:].any()
    with pytest.raises(emulator.EmulatorError, match="misaligned"):
        run_cuda(source("global", body), "kernel", 1, 1, [p, seen, np.int32(8)], "compute_90")
