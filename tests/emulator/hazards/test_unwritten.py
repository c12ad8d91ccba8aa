"""Reads of memory that nothing has written, and registers without a value."""

import numpy as np
import pytest

from gemmgen import emulator

from ..helpers import wrap_ptx
from .twins import check, ints, twins, unwritten


def test_shared_memory_that_a_part_of_the_lanes_wrote():
    source = """int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        if (t < 64) tile[t] = t;
        __syncthreads(); out[t] = tile[63 - t]; }"""
    text = twins(source, "t < 64", emulator.UnwrittenRead, ints(64), instead="t < 63")
    assert "read of shared tile[63], which nothing has written" in text
    assert "by    thread (0,0,0) of block (0,0,0)\n" in text and "out[t] = tile[63 - t];" in text


def test_registers_without_a_value_pass_through_shared_memory():
    source = """const int* in, int* out, int n) {
        __shared__ int tile[64]; int t = threadIdx.x, value;
        if (t < n) value = in[t];
        tile[63 - t] = value;
        __syncthreads();
        int taken = tile[t];
        if (63 - t < LIMIT) out[63 - t] = taken; }"""
    arguments = (np.arange(64, dtype=np.int32), np.zeros(64, np.int32), 40)
    assert not check(source.replace("LIMIT", "n"), *arguments, block=64).findings
    with pytest.raises(emulator.UnwrittenRead, match="nothing has written but perhaps a register without a value"):
        check(source.replace("LIMIT", "n + 1"), *arguments, block=64)


@pytest.mark.parametrize("condition", ["t < n && value > 0", "!(t >= n || value <= 0)"])
def test_a_condition_that_its_other_half_decides(condition):
    source = """const int* in, int* out, int n) {
        int t = threadIdx.x, value;
        if (t < n) { value = in[t]; atomicAdd(out, value); }
        __syncthreads();
        if (CONDITION) out[t + 1] = value; }""".replace("CONDITION", condition)
    arguments = (np.arange(64, dtype=np.int32), np.zeros(65, np.int32), 40)
    assert not check(source, *arguments, block=64).findings
    with pytest.raises(emulator.UndefinedRegister):
        check(source.replace("if (t < n) {", "if (t < n - 1) {"), *arguments, block=64)


MATRICES = """const unsigned* in, unsigned* out, int last) {
    __shared__ __align__(16) unsigned tile[4][32];
    unsigned value, next, sum = 0; int t = threadIdx.x;
    tile[0][t] = in[t]; tile[1][t] = in[t + 32];
    if (t < ROWS) tile[2][t] = 0;
    __syncthreads();
    asm volatile("ldmatrix.sync.aligned.m8n8.x1TRANS.shared.b16 {%0}, [%1];"
        : "=r"(value) : "r"((unsigned)__cvta_generic_to_shared(&tile[0][t % 8 * 4])));
    for (int k = 0; k < last; ++k) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x1TRANS.shared.b16 {%0}, [%1];"
            : "=r"(next) : "r"((unsigned)__cvta_generic_to_shared(&tile[k + 1][t % 8 * 4])));
        sum += value;
        value = next;
    }
    out[t] = sum; }"""


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_a_matrix_that_is_loaded_ahead_and_not_used(transposed):
    source = MATRICES.replace("TRANS", transposed).replace("ROWS", "0")
    arguments = (np.arange(64, dtype=np.uint32), np.zeros(32, np.uint32))
    assert not check(source, *arguments, 2, block=32).findings
    with pytest.raises(emulator.UnwrittenRead, match=r"read of shared tile\[128\], which nothing has written"):
        check(source, *arguments, 3, block=32)


@pytest.mark.parametrize(("transposed", "lacking"), [("", range(12, 32)), (".trans", [lane for lane in range(32) if lane % 4 > 0])])
def test_lanes_that_receive_unwritten_rows_of_a_matrix(transposed, lacking):
    # Rows 0 to 2 are written: lanes 0 to 11, or half of the pair of rows that lanes 1, 5, ... have.
    source = MATRICES.replace("TRANS", transposed).replace("ROWS", "12")
    source = source.replace("out[t] = sum", "if (MASK >> t & 1) out[t] = sum")
    arguments = (np.arange(64, dtype=np.uint32), np.zeros(32, np.uint32))
    whole = sum(1 << lane for lane in range(32) if lane not in lacking)
    assert not check(source.replace("MASK", f"{whole}u"), *arguments, 3, block=32).findings
    for lane in (min(lacking), max(lacking)):
        with pytest.raises(emulator.UnwrittenRead):
            check(source.replace("MASK", f"{1 << lane}u"), *arguments, 3, block=32)


def test_a_vector_that_reaches_one_unwritten_byte():
    source = """int4* out) {
        __shared__ __align__(16) unsigned char tile[16]; int t = threadIdx.x;
        if (t < 16) tile[t] = t;
        __syncthreads(); out[t] = *(int4*)tile; }"""
    assert "tile[3] (its byte 3), which nothing has written" in twins(
        source, "t < 16", emulator.UnwrittenRead, ints(4 * 64), instead="t < 15"
    )


def test_shared_memory_of_an_earlier_block():
    source = """int* out) { __shared__ int s; if (threadIdx.x == 0 && blockIdx.x == 0) s = out[0]; __syncthreads();
        if (threadIdx.x == 1) out[blockIdx.x] = s; }"""
    check(source.replace("blockIdx.x == 0", "true"), ints(9))
    with pytest.raises(emulator.UnwrittenRead, match=r"of block \(1,0,0\)"):
        check(source, ints(9), grid=9, lanes_per_wave=1)


def test_local_memory():
    source = """int* out, int n) {
        int own[16];
        #pragma unroll 1
        for (int i = 0; i < 16; ++i) own[(i * n) & 15] = i;
        out[threadIdx.x] = own[threadIdx.x & 15]; }"""
    check(source, ints(64), 1)
    with pytest.raises(emulator.UnwrittenRead, match="local memory"):
        check(source, ints(64), 2)


GLOBAL = "int* data, int* out, int n) { int t = threadIdx.x; if (t < n) out[t] = data[t]; }"


def test_a_buffer_that_starts_unwritten():
    with pytest.raises(emulator.UnwrittenRead, match=r"read of data\[0\], which nothing has written"):
        check(GLOBAL, unwritten(64), ints(64), 64)


def test_the_gaps_of_a_buffer():
    check(GLOBAL, unwritten(64, slice(0, 40)), ints(64), 40)
    with pytest.raises(emulator.UnwrittenRead, match=r"data\[40\]"):
        check(GLOBAL, unwritten(64, slice(0, 40)), ints(64), 41)


def test_gaps_of_less_than_an_access():
    flags = np.ones(64, np.bool_)
    flags[62:] = False
    buffer = emulator.Buffer(np.zeros(32, np.int16), name="half", written=flags)
    with pytest.raises(emulator.UnwrittenRead, match=r"half\[15\] \(its byte 2\)"):
        check("int* data, int* out) { out[threadIdx.x] = data[threadIdx.x & 15]; }", buffer, ints(64))


def test_what_a_launch_writes_counts_as_written_in_the_next():
    buffer = unwritten(64)
    check("int* data) { if (threadIdx.x & 1) data[threadIdx.x] = 1; }", buffer)
    assert buffer.written is not None and buffer.written.reshape(-1, 4).all(axis=1).tolist() == [False, True] * 32
    check("int* data, int* out) { if (threadIdx.x & 1) out[threadIdx.x] = data[threadIdx.x]; }", buffer, ints(64))


REGISTER = "int* out, const int* in, int n) { int v; if (n > 3) v = in[threadIdx.x]; USE }"


@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("out[threadIdx.x] = v + 1;", "the value that is stored"),
        ("if (v > 7) out[v] = 1;", "the condition of this branch|this address"),
        ("out[threadIdx.x] = __shfl_xor_sync(~0u, v, 1);", "the value that is stored"),
        ("out[threadIdx.x] = __ballot_sync(~0u, __reduce_add_sync(~0u, v) > 7);", "a value that other lanes receive"),
    ],
)
def test_a_variable_that_some_path_does_not_assign(use, what):
    source = REGISTER.replace("USE", use)
    check(source, ints(64), np.arange(64, dtype=np.int32), 4)
    with pytest.raises(emulator.UndefinedRegister, match=what):
        check(source, ints(64), np.arange(64, dtype=np.int32), 3)


PREDICATED = """.reg .pred %p, %q; .reg .b32 %t, %v, %w; .reg .b64 %o, %a;
    ld.param.u64 %o, [p]; mov.u32 %t, %tid.x; setp.lt.u32 %p, %t, 16;
    @%p mov.u32 %v, 5;
    mad.wide.u32 %a, %t, 4, %o;
    USE
    ret;"""


@pytest.mark.parametrize(
    ("use", "fine"),
    [
        ("@%p st.global.u32 [%a], %v;", True),
        ("st.global.u32 [%a], %v;", False),
        ("selp.b32 %w, %v, 9, %p; st.global.u32 [%a], %w;", True),
        ("selp.b32 %w, 9, %v, %p; st.global.u32 [%a], %w;", False),
        ("setp.eq.u32 %q, %v, 5; @%q st.global.u32 [%a], %t;", False),
        ("setp.eq.u32 %q, %v, 5; @%q bra END; st.global.u32 [%a], %t; END:", False),
        ("mad.wide.u32 %a, %v, 4, %o; st.global.u32 [%a], %t;", False),
        ("@!%p mov.u32 %v, 6; st.global.u32 [%a], %v;", True),
    ],
)
def test_lanes_are_followed_one_by_one(use, fine):
    ptx = wrap_ptx(PREDICATED.replace("USE", use), ".param .u64 p")
    if fine:
        emulator.launch(ptx, grid=1, block=32, args=[np.zeros(32, np.uint32)], hazards=True)
    else:
        with pytest.raises(emulator.UndefinedRegister, match=r"16,0,0.* and 15 others" if "%w, 9" not in use else r"thread \(16,0,0"):
            emulator.launch(ptx, grid=1, block=32, args=[np.zeros(32, np.uint32)], hazards=True)


AGGREGATED = """int* out, int* count, int lead) {
    int i = threadIdx.x; if (i % 3 == 0) return;
    unsigned mask = __activemask(); int rank = __popc(mask & ((1u << i % 32) - 1)), p;
    if (rank == 0) p = atomicAdd(count, __popc(mask));
    p = __shfl_sync(mask, p, __ffs(mask) - 1 + lead); out[p + rank] = i; }"""


def test_a_value_that_no_lane_takes_may_go_into_a_shuffle():
    assert not check(AGGREGATED, ints(64), np.zeros(1, np.int32), 0).findings


def test_a_value_that_a_lane_takes_from_one_without():
    with pytest.raises(emulator.HazardError, match="holds no value"):
        check(AGGREGATED, ints(64), np.zeros(1, np.int32), 1)
