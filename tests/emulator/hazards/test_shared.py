"""Races in shared memory: each kernel is clean with its ordering and caught without it."""

import numpy as np
import pytest

from gemmgen import emulator

from .twins import check, ints, twins

REVERSE = """int* out) {
    __shared__ int tile[64]; int t = threadIdx.x;
    tile[t] = t; __syncthreads();
    out[t] = tile[63 - t]; }"""


def test_read_after_write_without_a_barrier():
    text = twins(REVERSE, "__syncthreads();", emulator.SharedRace, ints(64))
    assert "read of shared tile[" in text and "another thread's write" in text
    assert text.count("kernel.cu:") == 2 and text.count("PTX   line") == 2
    assert "tile[t] = t;" in text and "out[t] = tile[63 - t];" in text and "__syncthreads()" in text
    assert "thread (0,0,0) of block (0,0,0) and 63 others" in text


def test_write_after_read_without_a_barrier():
    source = """int* out) {
        __shared__ int tile[64]; int t = threadIdx.x; int sum = 0;
        for (int i = 0; i < 3; ++i) { tile[t] = t + i; __syncthreads(); sum += tile[t ^ 33]; __syncthreads(); /* next */ }
        out[t] = sum; }"""
    text = twins(source, "__syncthreads(); /* next */", emulator.SharedRace, ints(64))
    assert "write of shared tile" in text


def test_two_writes_to_one_byte():
    source = """int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        tile[t] = t; __syncthreads(); tile[63 - t] += 1; __syncthreads(); out[t] = tile[t]; }"""
    assert "write of shared tile[63]" in twins(
        source, "__syncthreads(); tile[63 - t] += 1;", emulator.SharedRace, ints(64), instead="tile[63 - t] = 1;"
    )


@pytest.mark.parametrize(("value", "error"), [("t", emulator.SharedRace), ("7", emulator.SameValue)])
def test_two_lanes_of_one_instruction_write_one_byte(value, error):
    source = f"""int* out) {{
        __shared__ int tile[64]; int t = threadIdx.x;
        tile[t / 1] = {value}; __syncthreads(); out[t] = tile[t / 2]; }}"""
    text = twins(source, "tile[t / 1]", error, ints(64), instead="tile[t / 2]")
    assert "the same instruction of another thread" in text


def test_parts_of_one_word_do_not_race():
    assert not check(
        """unsigned char* out) {
        __shared__ unsigned char tile[64]; int t = threadIdx.x;
        tile[t] = t; out[t] = tile[t]; }""",
        np.zeros(64, np.uint8),
    ).findings


def test_lanes_of_a_warp_are_not_ordered_by_themselves():
    source = """int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        tile[t] = t; __syncwarp();
        out[t] = tile[t ^ 1]; }"""
    text = twins(source, "__syncwarp();", emulator.SharedRace, ints(64))
    assert "__syncwarp()" in text
    with pytest.raises(emulator.SharedRace):
        check(source.replace("t ^ 1", "t ^ 32"), ints(64))


def test_shuffles_and_votes_order_no_memory():
    source = """int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        tile[t] = t; int v = __shfl_xor_sync(~0u, t, 1) + __ballot_sync(~0u, t & 1); /* sync */ __syncwarp();
        out[t] = tile[t ^ 1] + v; }"""
    assert "read of shared tile[1]" in twins(source, "/* sync */ __syncwarp();", emulator.SharedRace, ints(64))


def test_a_warp_barrier_orders_the_lanes_of_its_mask_only():
    source = """int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        tile[t] = t; __syncwarp(t & 16 ? 0xffff0000u : 0xffffu);
        out[t] = tile[t ^ 1]; }"""
    assert "read of shared tile[16]" in twins(source, "t ^ 1", emulator.SharedRace, ints(64), instead="t ^ 16")


def test_warp_barriers_are_cumulative():
    assert not check(
        """int* out) {
        __shared__ int tile[64]; int t = threadIdx.x, lane = t & 31;
        tile[t] = t;
        if (lane < 16) __syncwarp(0xffffu);
        if (lane >= 8 && lane < 24) __syncwarp(0xffff00u);
        if (lane >= 16 && lane < 24) out[t] = tile[t & 32]; }""",
        ints(64),
    ).findings


NAMED = """int* out) {
    __shared__ int tile[128]; int t = threadIdx.x;
    if (t < 64) { tile[t] = t; asm volatile("bar.sync 1, 64;" ::: "memory"); out[t] = tile[t ^ 32]; }
    else { tile[t] = t; asm volatile("bar.sync 2, 64;" ::: "memory"); out[t] = tile[t ^ 32]; } }"""


def test_a_barrier_of_a_part_of_the_block_orders_that_part():
    text = twins(NAMED, "out[t] = tile[t ^ 32]; }\n", emulator.SharedRace, ints(128), instead="out[t] = tile[t ^ 64]; }\n", block=128)
    assert "shared tile" in text


def test_arriving_hands_over_what_was_written():
    source = """int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        if (t < 64) { tile[t] = t; asm volatile("bar.arrive 1, 128;" ::: "memory"); }
        else { asm volatile("bar.sync 1, 128;" ::: "memory"); out[t - 64] = tile[127 - t]; } }"""
    message = twins(
        source,
        'tile[t] = t; asm volatile("bar.arrive 1, 128;" ::: "memory");',
        emulator.SharedRace,
        ints(64),
        instead='asm volatile("bar.arrive 1, 128;" ::: "memory"); tile[t] = t;',
        block=128,
    )
    assert "read of shared tile[63]" in message


def test_atomics_race_with_plain_accesses_only():
    source = """int* out) {
        __shared__ int count[4]; int t = threadIdx.x;
        if (t < 4) count[t] = 0;
        __syncthreads(); /* zero */
        atomicAdd(&count[t & 3], 1);
        __syncthreads(); /* sum */
        out[t] = count[t & 3]; }"""
    twins(source, "__syncthreads(); /* zero */", emulator.SharedRace, ints(64))
    text = twins(source, "__syncthreads(); /* sum */", emulator.SharedRace, ints(64))
    assert "atomic operation" in text


def test_many_readers_of_one_word_before_it_is_overwritten():
    # The reader that matters is neither the first nor the last one.
    source = """int* out) {
        __shared__ int word; int t = threadIdx.x;
        if (t == 0) word = 5;
        __syncthreads();
        if (t != 20) out[t] = word;
        __syncthreads(); /* ordered */
        if (t == 1) word = 6; }"""
    assert "write of shared word[0]" in twins(source, "__syncthreads(); /* ordered */", emulator.SharedRace, ints(64))


def test_blocks_have_shared_memories_of_their_own():
    assert not check(REVERSE.replace("out[t]", "out[64 * blockIdx.x + t]"), ints(64 * 40), grid=40).findings


def test_flags_in_shared_memory():
    source = """int* out) {
        __shared__ int data, flag; int t = threadIdx.x; volatile int* f = &flag;
        if (t == 0) flag = 0;
        __syncthreads();
        if (t == 0) { data = *out; /* release */ __threadfence_block(); *f = 1; }
        if (t == 32) { while (*f == 0) {} /* acquire */ __threadfence_block(); out[0] = data; } }"""
    for remove in ("/* release */ __threadfence_block();", "/* acquire */ __threadfence_block();"):
        assert "read of shared data[0]" in twins(source, remove, emulator.SharedRace, ints(1))


LAST_WARP = """int* out) {
    __shared__ int states[64]; int t = threadIdx.x; volatile int* s = states;
    s[t] = t; __syncthreads();
    if (t < 32) { LOOP }
    if (t == 0) *out = s[0]; }"""
UNROLLED = " ".join(f"s[t] += s[t + {distance}];" for distance in (32, 16, 8, 4, 2, 1))
ROLLED = """_Pragma("unroll 1")
    for (int distance = 32; distance > 0; distance /= 2) {
        int sum = s[t] + s[t + distance]; /* read */ __syncwarp(); s[t] = sum; /* written */ __syncwarp(); }"""


@pytest.mark.parametrize("loop", [UNROLLED, ROLLED.replace("__syncwarp();", "")], ids=["unrolled", "rolled"])
def test_volatile_sums_that_need_lockstep(loop):
    """The last steps of a reduction as they were written while the lanes of a warp ran in lockstep."""
    with pytest.raises(emulator.SharedRace) as raised:
        check(LAST_WARP.replace("LOOP", loop), ints(1), strict=True)
    text = str(raised.value)
    assert "of shared states" in text and "do not run in lockstep" in text and "thread (16,0,0)" in text


@pytest.mark.parametrize("barrier", ["/* read */ __syncwarp();", "/* written */ __syncwarp();"])
def test_volatile_sums_need_both_warp_barriers(barrier):
    assert "of shared states[16]" in twins(LAST_WARP.replace("LOOP", ROLLED), barrier, emulator.SharedRace, ints(1))


@pytest.mark.parametrize(("first", "second"), [(1, 2), (1, 40)], ids=["lanes of a warp", "warps"])
def test_a_volatile_flag_may_be_waited_for(first, second):
    assert not check(
        f"""int* out) {{
        __shared__ int flag; int t = threadIdx.x; volatile int* f = &flag;
        if (t == 0) flag = 0;
        __syncthreads();
        if (t == {first}) {{ while (*f == 0) {{}} out[0] = 1; }}
        if (t == {second}) *f = 7; }}""",
        ints(1),
    ).findings


def test_volatile_data_between_warps_is_not_a_matter_of_lockstep():
    source = """int* out) {
        __shared__ int data; int t = threadIdx.x; volatile int* d = &data;
        if (t == 0) data = 0;
        __syncthreads();
        if (t == READER) out[0] = *d;
        if (t == 1) *d = 7; }"""
    check(source.replace("READER", "40"), ints(1))
    with pytest.raises(emulator.SharedRace, match="lockstep"):
        check(source.replace("READER", "2"), ints(1), strict=True)


COPY = """const int* in, int* out) {
    __shared__ int tile[64]; int t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(in + t) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads(); /* landed */
    out[t] = tile[t ^ 1];
    __syncthreads(); /* read */
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(in + t) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[t] += tile[t]; }"""


def test_a_copy_needs_a_barrier_before_others_may_read():
    text = twins(COPY, "__syncthreads(); /* landed */", emulator.SharedRace, ints(64), ints(64))
    assert "cp.async" in text


def test_a_copy_must_not_start_before_others_have_read():
    text = twins(COPY, "__syncthreads(); /* read */", emulator.SharedRace, ints(64), ints(64))
    assert text.index("cp.async") < text.index("ld.shared")


def test_copying_before_and_waiting_after_a_barrier_is_caught():
    wait = 'asm volatile("cp.async.wait_all;" ::: "memory");'
    moved = COPY.replace("__syncthreads(); /* read */", "").replace(f"{wait}\n    out", f"__syncthreads(); {wait}\n    out")
    with pytest.raises(emulator.SharedRace):
        check(moved, ints(64), ints(64))


def test_several_hazards_are_told_at_once():
    source = """int* out) {
        __shared__ int a[64], b[64]; int t = threadIdx.x;
        a[t] = t; b[t] = t;
        out[t] = a[63 - t]; out[t] += b[62 ^ t]; }"""
    with pytest.raises(emulator.HazardError) as raised:
        check(source, ints(64))
    assert len(raised.value.also) == 1 and str(raised.value).count("shared memory race") == 2


def test_a_hazard_is_told_although_something_worse_follows():
    with pytest.raises(emulator.SharedRace) as raised:
        check(REVERSE.replace("__syncthreads();", "").replace("out[t]", "out[t + 1000]"), ints(64))
    assert "out of bounds" in str(raised.value)
