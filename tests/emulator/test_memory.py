"""Loads and stores in every space, and accesses out of bounds."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.program import SHARED_GAP

from .helpers import run_cuda, wrap_ptx

COPY = r"""
extern "C" __global__ void copy(const TYPE* in, TYPE* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}
"""


@pytest.mark.parametrize("type_name", ["char", "unsigned short", "int", "double", "float2", "float4", "uchar4", "short2", "double2"])
def test_every_width_is_copied(type_name):
    size = {"char": 1, "unsigned short": 2, "int": 4, "double": 8, "float2": 8, "float4": 16, "uchar4": 4, "short2": 4, "double2": 16}
    data = np.random.default_rng(1).integers(0, 256, 300 * size[type_name]).astype(np.uint8)
    out = np.zeros_like(data)
    run_cuda(COPY.replace("TYPE", type_name), "copy", 3, 128, [data, out, 300])
    np.testing.assert_array_equal(out, data)


@pytest.mark.parametrize("architecture", ["compute_75", "compute_80", "compute_90", "compute_100", "compute_120"])
def test_shared_and_local_and_constant_memory(architecture):
    source = r"""
    __constant__ int table[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    __device__ float scale[2] = {0.5f, 2.0f};
    __device__ int counter;
    struct Pair { int first; float second[3]; };
    extern "C" __global__ void spaces(int* out, Pair pair, int shift) {
        __shared__ int tile[64];
        extern __shared__ float dynamic[];
        int t = threadIdx.x;
        int history[8];
        for (int i = 0; i < 8; ++i) history[(i + shift) & 7] = table[i] * t;
        tile[t] = history[(t + shift) & 7];
        dynamic[t] = scale[t & 1] * pair.second[t % 3];
        __syncthreads();
        out[blockIdx.x * 64 + t] = tile[63 - t] + pair.first + (int)dynamic[63 - t] + counter;
        __syncthreads();
        if (t == 0) counter = 1000;
    }
    """
    out = np.zeros(64, np.int32)
    pair = np.array([(7, (10.0, 20.0, 30.0))], [("first", "i4"), ("second", "f4", 3)])
    run_cuda(source, "spaces", 1, 64, [out, pair.tobytes(), 3], architecture, shared_bytes=256)
    t = 63 - np.arange(64)
    want = (1 << (t % 8)) * t + 7 + (np.array([0.5, 2.0])[t % 2] * np.array([10, 20, 30])[t % 3]).astype(int)
    np.testing.assert_array_equal(out, want)


def test_generic_pointers_reach_every_space():
    source = r"""
    __device__ __noinline__ int sum(const int* p, int n) { int s = 0; for (int i = 0; i < n; ++i) s += p[i]; return s; }
    extern "C" __global__ void generic(int* global, int* out, int which) {
        __shared__ int shared[4];
        int local[4] = {1, 2, 3, which};
        if (threadIdx.x < 4) shared[threadIdx.x] = 10 * threadIdx.x;
        __syncthreads();
        const int* p = threadIdx.x % 3 == 0 ? global : threadIdx.x % 3 == 1 ? shared : local;
        out[threadIdx.x] = sum(p, 4);
        int* q = threadIdx.x % 2 ? &shared[1] : &global[1];
        if (threadIdx.x < 2) atomicAdd(q, 5);
        __syncthreads();
        if (threadIdx.x == 9) out[0] += shared[1];
    }
    """
    data, out = np.array([100, 200, 300, 400], np.int32), np.zeros(32, np.int32)
    run_cuda(source, "generic", 1, 32, [data, out, 9])
    want = np.array([1000, 60, 15])[np.arange(32) % 3]
    want[0] += 15
    np.testing.assert_array_equal(out, want)
    assert data.tolist() == [100, 205, 300, 400]


def test_narrow_loads_extend_by_sign():
    body = """.reg .b64 %a, %o; .reg .b32 %x, %y; .reg .b16 %h;
    ld.param.u64 %a, [p]; ld.param.u64 %o, [q];
    ld.global.s8 %x, [%a]; ld.global.u8 %y, [%a]; st.global.v2.u32 [%o], {%x, %y};
    ld.global.s16 %x, [%a]; ld.global.s8 %h, [%a]; cvt.s32.s16 %y, %h; st.global.v2.u32 [%o+8], {%x, %y};
    ld.global.v4.u8 {%x, %y, _, %h}, [%a]; st.global.u8 [%o+16], %x; st.global.u8 [%o+17], %y; st.global.u16 [%o+18], %h; ret;"""
    data, out = np.array([0x80, 0xFF, 3, 4], np.uint8), np.zeros(5, np.uint32)
    emulator.launch(wrap_ptx(body, ".param .u64 p, .param .u64 q"), grid=1, block=1, args=[data, out])
    assert out.tolist() == [0xFFFFFF80, 0x80, 0xFFFFFF80, 0xFFFFFF80, 0x0004FF80]


def test_256_bit_vectors():
    body = """.reg .b64 %a, %o; .reg .b32 %r<8>; ld.param.u64 %a, [p]; ld.param.u64 %o, [q];
    ld.global.v8.b32 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [%a];
    st.global.v8.b32 [%o], {%r7,%r6,%r5,%r4,%r3,%r2,%r1,%r0}; ret;"""
    data, out = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    emulator.launch(wrap_ptx(body, ".param .u64 p, .param .u64 q"), grid=1, block=1, args=[data, out])
    assert out.tolist() == list(range(7, -1, -1))


def test_stores_of_diverged_lanes_touch_only_their_own():
    source = r"""extern "C" __global__ void odd(float4* out) {
        if (threadIdx.x & 1) out[threadIdx.x] = make_float4(1, 2, 3, threadIdx.x); }"""
    out = np.zeros((64, 4), np.float32)
    run_cuda(source, "odd", 1, 64, [out])
    want = np.zeros((64, 4), np.float32)
    want[1::2] = [1, 2, 3, 0]
    want[1::2, 3] = np.arange(1, 64, 2)
    np.testing.assert_array_equal(out, want)


# -- arguments ---------------------------------------------------------------------------------------------------

SCALE = r"""extern "C" __global__ void scale(float* x, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}"""


@pytest.mark.parametrize("architecture", ["compute_80", "compute_100"])
@pytest.mark.parametrize("factor", [2.5, np.float32(2.5), 3])
def test_scalars_convert_to_their_parameter(architecture, factor):
    x = np.arange(10, dtype=np.float32)
    if architecture == "compute_100" and isinstance(factor, int):
        factor = np.float32(factor)
    run_cuda(SCALE, "scale", 1, 32, [x, np.int32(10), factor], architecture)
    np.testing.assert_array_equal(x, np.arange(10, dtype=np.float32) * np.float32(factor))


def test_views_share_memory_with_their_array():
    base = np.arange(64, dtype=np.float32)
    run_cuda(SCALE, "scale", 1, 32, [base[16:32], 16, 2.0])
    want = np.arange(64, dtype=np.float32)
    want[16:32] *= 2
    np.testing.assert_array_equal(base, want)


def test_overlapping_arguments_see_each_other():
    base = np.arange(64, dtype=np.int32)
    run_cuda(COPY.replace("TYPE", "int"), "copy", 1, 8, [base[:8], base[4:12], 8])
    assert base[:12].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]


def test_fortran_order_and_two_dimensions():
    x = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    run_cuda(SCALE, "scale", 1, 32, [x, 12, 2.0])
    np.testing.assert_array_equal(x, 2 * np.arange(12, dtype=np.float32).reshape(3, 4))


def test_a_view_keeps_its_misalignment():
    base = np.zeros(64, np.float32)
    vector = COPY.replace("TYPE", "float4")
    run_cuda(vector, "copy", 1, 32, [base[4:20], base[32:48], 4])
    with pytest.raises(emulator.Misaligned, match="4 bytes past a multiple of 16"):
        run_cuda(vector, "copy", 1, 32, [base[1:17], base[32:48], 4])


@pytest.mark.parametrize("offset", [0, 4, 8, 12, 16])
def test_a_buffer_sets_its_alignment(offset):
    data, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    launch = lambda: run_cuda(  # noqa: E731
        COPY.replace("TYPE", "float4"), "copy", 1, 32, [emulator.Buffer(data, offset, name="A"), out, 4]
    )
    if offset % 16:
        with pytest.raises(emulator.Misaligned):
            launch()
        np.testing.assert_array_equal(out, 0)
    else:
        launch()
        np.testing.assert_array_equal(out, data)


def test_empty_arrays_and_null_pointers():
    run_cuda(SCALE, "scale", 1, 32, [np.zeros(0, np.float32), 0, 1.0])
    run_cuda(SCALE, "scale", 1, 32, [None, 0, 1.0])
    with pytest.raises(emulator.OutOfBounds, match="null pointer"):
        run_cuda(SCALE, "scale", 1, 32, [None, 1, 1.0])
    with pytest.raises(emulator.OutOfBounds):
        run_cuda(SCALE, "scale", 1, 32, [np.zeros(0, np.float32), 1, 1.0])


# -- errors ------------------------------------------------------------------------------------------------------


def test_out_of_bounds_names_buffer_distance_lanes_and_lines():
    x = np.zeros(100, np.float32)
    with pytest.raises(emulator.OutOfBounds) as caught:
        run_cuda(SCALE, "scale", 2, 64, [emulator.Buffer(x, name="x"), 102, 2.0])
    text = str(caught.value)
    assert "read of 4 bytes" in text
    assert "0 bytes past the end of x (400 bytes)" in text
    assert "thread (36,0,0) of block (1,0,0) and 1 other" in text
    assert "kernel.cu:3" in text
    assert "if (i < n) x[i] *= factor;" in text
    assert "ld.global.f32" in text
    assert caught.value.instruction.line == caught.value.ptx_line


def test_out_of_bounds_before_a_buffer():
    source = r"""extern "C" __global__ void before(int* x) { x[-2 - (int)threadIdx.x] = 1; }"""
    with pytest.raises(emulator.OutOfBounds, match=r"write of 4 bytes at 0x[0-9a-f]+, 8 bytes before x"):
        run_cuda(source, "before", 1, 1, [emulator.Buffer(np.zeros(4, np.int32), name="x")])


def test_a_vector_that_straddles_the_end():
    source = COPY.replace("TYPE", "float4")
    with pytest.raises(emulator.OutOfBounds, match="of which 8 lie past the end of in"):
        run_cuda(source, "copy", 1, 32, [emulator.Buffer(np.zeros(6, np.float32), name="in"), np.zeros(8, np.float32), 2])


def test_neighbouring_arrays_are_far_apart():
    a, b = np.zeros(16, np.float32), np.zeros(16, np.float32)
    for reach in (16, 100, 1000, 16000):
        with pytest.raises(emulator.OutOfBounds):
            run_cuda(COPY.replace("TYPE", "float"), "copy", -(-reach // 256) + 1, 256, [a, b, reach + 1])


def test_stores_to_read_only_memory():
    x = np.zeros(4, np.float32)
    with pytest.raises(emulator.ReadOnly, match="in x"):
        run_cuda(SCALE, "scale", 1, 32, [emulator.Buffer(x, name="x", writable=False), 4, 2.0])
    x.flags.writeable = False
    with pytest.raises(emulator.ReadOnly):
        run_cuda(SCALE, "scale", 1, 32, [x, 4, 2.0])


def test_shared_memory_has_an_end():
    source = r"""extern "C" __global__ void shared(int* out, int n) {
        extern __shared__ int tile[]; tile[threadIdx.x] = n; __syncthreads(); out[threadIdx.x] = tile[threadIdx.x ^ 1]; }"""
    out = np.zeros(32, np.int32)
    run_cuda(source, "shared", 1, 32, [out, 3], shared_bytes=128)
    assert (out == 3).all()
    with pytest.raises(emulator.OutOfBounds, match=r"write of 4 bytes at shared address 0x7c: shared memory has 124 bytes"):
        run_cuda(source, "shared", 1, 32, [out, 3], shared_bytes=124)


@pytest.mark.parametrize("hazards", [True, False])
@pytest.mark.parametrize(
    ("place", "where"),
    [("%r", "-0x400: shared memory has 128 bytes, the access reaches 1024 bytes"), ("%x+-4", "-0x4: .*reaches 4 bytes")],
    ids=["the system's bytes", "before the variable"],
)
def test_no_shared_variable_lies_at_address_0(place, where, hazards):
    body = f".reg .b32 %r, %x; mov.u32 %r, 0; mov.u32 %x, x; st.shared.u32 [%x], %r; ld.shared.u32 %r, [{place}]; ret;"
    ptx = wrap_ptx(body, declarations=".shared .b32 x[32];")
    with pytest.raises(emulator.OutOfBounds, match=rf"read of 4 bytes at shared address {where} before its start"):
        emulator.launch(ptx, grid=1, block=32, hazards=hazards)


def test_a_sum_of_shared_addresses_for_a_difference_is_seen():
    source = r"""extern "C" __global__ void shared(int* out) { extern __shared__ unsigned char memory[];
        const unsigned first = static_cast<unsigned>(__cvta_generic_to_shared(memory));
        const unsigned slot = first + 4 * threadIdx.x;
        *reinterpret_cast<int*>(memory + (slot - first)) = threadIdx.x + 1; __syncthreads();
        out[threadIdx.x] = *reinterpret_cast<const volatile int*>(memory + (slot - first)); }"""
    out = np.zeros(32, np.int32)
    run_cuda(source, "shared", 1, 32, [out], shared_bytes=8192)
    np.testing.assert_array_equal(out, np.arange(1, 33))
    head, read = source.rsplit("slot - first", 1)
    run_cuda(f"{head}slot + first{read}", "shared", 1, 32, [out], shared_bytes=8192)
    assert (out == -1).all()


def test_strict_alignments_of_shared_variables_hold():
    declarations = ".shared .b8 x[4]; .shared .align 4096 .b8 y[4];"
    body = (
        ".reg .b32 %x, %y; .reg .b64 %p; mov.u32 %x, x; mov.u32 %y, y; or.b32 %x, %x, 3; ld.param.u64 %p, [p]; st.global.u32 [%p], %y; ret;"
    )
    out = np.ones(1, np.uint32)
    emulator.launch(wrap_ptx(body, ".param .u64 p", declarations=declarations), grid=1, block=1, args=[out])
    assert out[0] % 4096 == 0 and out[0] > SHARED_GAP


def test_misaligned_shared_access():
    source = r"""extern "C" __global__ void shared(float4* out, int n) {
        __shared__ __align__(16) float tile[64]; tile[threadIdx.x] = 1; tile[threadIdx.x + 32] = 2; __syncthreads();
        out[threadIdx.x] = *reinterpret_cast<float4*>(&tile[threadIdx.x + n]); }"""
    with pytest.raises(emulator.Misaligned, match="read of 16 bytes at shared address 0x4"):
        run_cuda(source, "shared", 1, 32, [np.zeros(128, np.float32), 0])


def test_errors_leave_what_was_written_before():
    x = np.ones(64, np.float32)
    with pytest.raises(emulator.OutOfBounds):
        emulator.launch(
            wrap_ptx(
                ".reg .b64 %a; .reg .b32 %v; ld.param.u64 %a, [p]; mov.b32 %v, 0; st.global.b32 [%a], %v; st.global.b32 [%a+256], %v; ret;",
                ".param .u64 p",
            ),
            grid=1,
            block=1,
            args=[x],
        )
    assert x[0] == 0 and x[1] == 1


@pytest.mark.parametrize("type_name", ["f32", "b32", "u32", "s32", "f16", "b16"])
def test_a_wider_register_holds_the_bits_of_a_load(type_name):
    body = f""".reg .b64 %a, %b, %t; ld.param.u64 %a, [p]; ld.param.u64 %b, [q];
        ld.global.{type_name} %t, [%a]; st.global.b64 [%b], %t; ret;"""
    out = np.zeros(1, np.uint64)
    emulator.launch(wrap_ptx(body, ".param .u64 p, .param .u64 q"), grid=1, block=1, args=[np.array([0xBF80BC00], np.uint32), out])
    wanted = {"s32": 0xFFFFFFFFBF80BC00, "f16": 0xBC00, "b16": 0xBC00}.get(type_name, 0xBF80BC00)
    assert int(out[0]) == wanted
