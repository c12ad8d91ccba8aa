"""Severity of findings: wrong by CUDA's rules, possibly wrong, and neither."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.hazards.report import MAX_REPEATS, Findings

from ..helpers import compile_ptx
from .twins import check, ints, twins


def findings(source: str, *args, grid: int = 1, block: int = 64, **kwargs) -> list[type[emulator.EmulatorError]]:
    """The kinds of findings of a launch that does not fail."""
    whole = source if "__global__" in source else f'extern "C" __global__ void kernel({source}'
    result = emulator.launch(compile_ptx(whole), "kernel", grid=grid, block=block, args=args, source=whole, hazards=True, **kwargs)
    return [type(finding) for finding in result.findings]


@pytest.mark.parametrize("grid", [1, 3])
def test_a_flag_that_all_set_alike_is_a_note(grid):
    source = "int* flag, const int* a) { if (a[threadIdx.x] > 0) *flag = 1; }"
    assert findings(source, ints(1), np.ones(64, np.int32), grid=grid) == [emulator.SameValue]


def test_a_flag_that_one_sets_differently_is_a_race():
    source = "int* flag) { *flag = 1 + 0 * (threadIdx.x == 9); }"
    with pytest.raises(emulator.GlobalRace):
        check(source.replace("0 *", "1 *"), ints(1))
    assert findings(source, ints(1)) == [emulator.SameValue]


def test_notes_are_errors_by_strict_rules():
    with pytest.raises(emulator.SameValue) as raised:
        check("int* flag) { *flag = 1; }", ints(1), strict=True)
    assert raised.value.count == 63


def test_nothing_is_noted_once_the_search_has_stopped():
    findings = Findings()
    for _ in range(MAX_REPEATS):
        findings.add(emulator.SharedRace("two threads meet", place="tile[0]"))
    findings.add(emulator.UnwrittenRead("a store that was not recorded", place="other[0]"))
    assert findings.are_enough and [type(found) for found in findings.all()] == [emulator.SharedRace]


GUESS = """
    unsigned old = *sum, assumed;
    do { assumed = old; old = atomicCAS(sum, assumed, assumed + threadIdx.x); } while (assumed != old);"""


def test_the_first_guess_of_a_compare_and_swap_is_checked_by_it():
    total = np.zeros(1, np.uint32)
    assert findings(f"unsigned* sum) {{ {GUESS} }}", total, grid=2) == []
    assert total[0] == 2 * sum(range(64))


def test_a_load_that_no_swap_checks_is_a_race():
    # The value goes to the swap of another address.
    source = f"unsigned* sum) {{ {GUESS.replace('old = *sum', 'old = sum[1]')} atomicAdd(sum + 1, 1); }}"
    with pytest.raises(emulator.GlobalRace, match="another thread's read"):
        check(source, ints(2).view(np.uint32))


@pytest.mark.parametrize("operation", ["atomicAdd_block(p, 1)", "atomicCAS_block(p, 0, 1)"])
def test_atomics_of_block_scope_do_not_order_blocks(operation):
    source = f"int* p) {{ {operation}; }}"
    twins(source.replace("_block", ""), "(p", emulator.ScopeRace, ints(1), instead="_block(p", grid=2)
    assert findings(source, ints(1)) == []


def test_block_scope_and_device_scope_do_not_mix():
    source = "int* p) { if (blockIdx.x) atomicAdd(p, 1); else atomicAdd(p, 1); }"
    assert "scope too narrow: atomic operation" in twins(
        source, "else atomicAdd(", emulator.ScopeRace, ints(1), instead="else atomicAdd_block(", grid=2
    )


def test_volatile_conflicts_are_warnings():
    source = (
        "volatile int* f, int* o) { if (threadIdx.x == 0) f[0] = blockIdx.x; __syncthreads(); o[threadIdx.x + 64 * blockIdx.x] = f[0]; }"
    )
    assert set(findings(source, ints(1), ints(128), grid=2)) == {emulator.VolatileRace}
    assert findings(source, ints(1), ints(64)) == []


@pytest.mark.parametrize("guard", ["if (threadIdx.x % 2) return;", "if (threadIdx.x >= n) return;"])
def test_threads_that_end_before_a_barrier(guard):
    source = f"int* a, int n) {{ {guard} a[threadIdx.x] = 1; __syncthreads(); a[threadIdx.x] = 2; }}"
    assert findings(source, ints(64), 40) == [emulator.MissedBarrier]
    with pytest.raises(emulator.MissedBarrier):
        check(source, ints(64), 40, strict=True)
    assert findings(source.replace(guard, ""), ints(64), 40) == []


def test_an_overrun_does_not_reach_the_next_shared_array():
    source = """int* out, int n) {
        __shared__ int a[32], b[32]; int t = threadIdx.x;
        a[t] = t; b[t] = 7; __syncthreads(); out[t] = a[t + n] + b[31 - t]; }"""
    assert findings(source, ints(32), 0, block=32) == []
    with pytest.raises(emulator.OutOfBounds, match=r"shared \w\[32\], past the end of this variable"):
        check(source, ints(32), 4, block=32)


def test_an_overrun_does_not_reach_dynamic_shared_memory():
    source = """int* out, int n) {
        extern __shared__ int dynamic[]; __shared__ int a[32]; int t = threadIdx.x;
        a[t] = t; dynamic[t] = 7; __syncthreads(); out[t] = a[t + n] + dynamic[31 - t]; }"""
    assert findings(source, ints(32), 0, block=32, shared_bytes=128) == []
    with pytest.raises(emulator.OutOfBounds, match="past the end of this variable"):
        check(source, ints(32), 4, block=32, shared_bytes=128)


def test_one_finding_tells_how_often_and_where_first():
    with pytest.raises(emulator.SharedRace) as raised:
        check(
            "int* out) { __shared__ int s[64]; int t = threadIdx.x; for (int i = 0; i < 3; ++i) s[t] = t + i; out[t] = s[t ^ 5]; }",
            ints(64),
        )
    assert (raised.value.count, raised.value.place, raised.value.also) == (64, "shared s[5]", ())


@pytest.mark.parametrize("use", ["o[t] = v;", "if (v > 3) o[t] = 1;", "o[v] = 1;"])
def test_a_value_from_a_lane_outside_the_mask(use):
    source = f"int* o) {{ int t = threadIdx.x, v = t; if (t < 16) v = __shfl_sync(0xffff, v, 4); {use} }}"
    text = twins(source, "v, 4", emulator.InactiveShuffle, ints(64), instead="v, 20", block=32)
    assert "shfl.sync" in text


def test_a_value_from_a_lane_that_has_ended():
    source = "int* o, int n) { int t = threadIdx.x; if (t >= n) return; int v = t; v += __shfl_down_sync(~0u, v, 4); o[t] = v; }"
    assert findings(source, ints(32), 32, block=32) == []
    with pytest.raises(emulator.InactiveShuffle):
        check(source, ints(32), 20, block=32)


def test_a_value_from_nowhere_that_nobody_uses():
    # The sums of the upper lanes are made of missing data; only the first lane's is stored.
    source = """int* o) { int t = threadIdx.x, v = t; if (t >= 16) return;
        for (int d = 8; d; d /= 2) v += __shfl_down_sync(0xffff, v, d);
        if (t == 0) *o = v; }"""
    out = ints(1)
    assert findings(source, out, block=32) == [] and out[0] == 120
    with pytest.raises(emulator.InactiveShuffle):
        check(source.replace("d = 8", "d = 16"), ints(1), block=32)


def test_shuffles_are_followed_no_longer_in_the_next_launch():
    source = "int* o, int n) { int t = threadIdx.x, v = t; if (t < n) v = __shfl_sync((1ll << n) - 1, v, 20); o[t] = v; }"
    with pytest.raises(emulator.InactiveShuffle):
        check(source, ints(32), 16, block=32)
    check(source, ints(32), 32, block=32)
