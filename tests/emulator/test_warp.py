"""Exchange between lanes, and atomics."""

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import bits_to_f32, run_cuda, wrap_ptx

T = np.arange(64)


def run(body: str, n: int = 0, architecture: str = "compute_80", block: int = 64) -> np.ndarray:
    source = f"""extern "C" __global__ void kernel(int* out, int n) {{
        int t = threadIdx.x, lane = t & 31; int r = 0;
        {body}
        out[t] = r;
    }}"""
    out = np.zeros(block, np.int32)
    run_cuda(source, "kernel", 1, block, [out, n], architecture)
    return out


@pytest.mark.parametrize("width", [4, 16, 32])
def test_shuffles(width):
    segment, inside = T // width * width, T % width
    got = run(f"r = __shfl_sync(0xffffffff, t * 3, n, {width});", 2)
    np.testing.assert_array_equal(got, (segment + 2 % width) * 3)
    got = run(f"r = __shfl_up_sync(0xffffffff, t * 3, n, {width});", 2)
    np.testing.assert_array_equal(got, np.where(inside >= 2, T - 2, T) * 3)
    got = run(f"r = __shfl_down_sync(0xffffffff, t * 3, n, {width});", 3)
    np.testing.assert_array_equal(got, np.where(inside + 3 < width, T + 3, T) * 3)
    got = run(f"r = __shfl_xor_sync(0xffffffff, t * 3, n, {width});", 3)
    np.testing.assert_array_equal(got, (T ^ 3) * 3)


def test_shuffle_from_a_lane_of_ones_own_choice():
    np.testing.assert_array_equal(run("r = __shfl_sync(0xffffffff, t, t * 5);"), T // 32 * 32 + T * 5 % 32)


def test_shuffle_tells_whether_its_source_was_inside():
    body = """.reg .b64 %o; .reg .b32 %t, %v; .reg .pred %p; ld.param.u64 %o, [p]; mov.u32 %t, %tid.x;
    shfl.sync.down.b32 %v|%p, %t, 4, 31, 0xffffffff; selp.b32 %v, 1, 0, %p;
    mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %v; ret;"""
    out = np.zeros(32, np.uint32)
    emulator.launch(wrap_ptx(body, ".param .u64 p"), grid=1, block=32, args=[out])
    np.testing.assert_array_equal(out, np.arange(32) < 28)


def test_exchange_inside_diverged_code():
    got = run("if (lane < 16) r = __shfl_xor_sync(0x0000ffff, t, 8); else r = __popc(__ballot_sync(0xffff0000, t & 1)) + 100;")
    np.testing.assert_array_equal(got, np.where(T % 32 < 16, T ^ 8, 108))


def test_votes():
    want = np.array([0x55555555, 0x55555555], np.uint32).view(np.int32)[T // 32]
    np.testing.assert_array_equal(run("r = __ballot_sync(0xffffffff, t % 2 == 0);"), want)
    np.testing.assert_array_equal(run("r = __all_sync(0xffffffff, t < n);", 40), T < 32)
    np.testing.assert_array_equal(run("r = __any_sync(0xffffffff, t >= n);", 40), T >= 32)
    np.testing.assert_array_equal(run("r = __uni_sync(0xffffffff, t >= n);", 40), T < 32)


def test_match():
    got = run("r = __match_any_sync(0xffffffff, lane / 8);")
    want = (np.uint32(0xFF) << (T % 32 // 8 * 8).astype(np.uint32)).view(np.int32)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(run("int p; r = __match_all_sync(0xffffffff, t / 32, &p); r = r == -1 && p;"), 1)
    np.testing.assert_array_equal(run("int p; r = __match_all_sync(0xffffffff, t / 48, &p) != 0 || p;"), T < 32)


@pytest.mark.parametrize(("name", "function"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)])
def test_warp_reductions(name, function):
    want = function.reduce((T * 7 - 90).reshape(2, 32), axis=1)[T // 32]
    np.testing.assert_array_equal(run(f"r = __reduce_{name}_sync(0xffffffff, t * 7 - 90);"), want)


def test_bitwise_warp_reduction_of_a_part():
    got = run("if (lane >= 8) r = __reduce_xor_sync(0xffffff00, (unsigned)t); ")
    want = [np.bitwise_xor.reduce(T[(w == T // 32) & (T % 32 >= 8)]) for w in (0, 1)]
    np.testing.assert_array_equal(got, np.where(T % 32 >= 8, np.array(want)[T // 32], 0))


def test_election():
    body = """.reg .b64 %o; .reg .b32 %t, %v; .reg .pred %p; ld.param.u64 %o, [p]; mov.u32 %t, %tid.x;
    elect.sync %v|%p, 0xffffffff; @%p add.u32 %v, %v, 50; mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %v; ret;"""
    out = np.zeros(64, np.uint32)
    emulator.launch(wrap_ptx(body, ".param .u64 p"), grid=1, block=64, args=[out])
    np.testing.assert_array_equal(out, np.where(T % 32 == 0, 50, 0))


def test_special_registers():
    source = r"""extern "C" __global__ void who(int* out) {
        int lin = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        unsigned laneid, lt, ge, smem; asm("mov.u32 %0, %%laneid;" : "=r"(laneid)); asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lt));
        asm("mov.u32 %0, %%lanemask_ge;" : "=r"(ge)); asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(smem));
        long long before = clock64(); int c = clock() > 0; bool later = clock64() > before;
        out[block * 48 + lin] = lin * 1000 + block * 10 + (laneid == lin % 32) + (lt == (1u << laneid) - 1) + (lt == ~ge) + later + c
                              + (smem == 64);
    }"""
    out = np.zeros(48 * 12, np.int32)
    run_cuda(source, "who", (2, 3, 2), (4, 3, 4), [out], shared_bytes=64)
    want = np.arange(48)[None, :] * 1000 + np.arange(12)[:, None] * 10 + 6
    np.testing.assert_array_equal(out, want.ravel())


# -- atomics -----------------------------------------------------------------------------------------------------


def atomic(statement: str, cell, value, type_name: str = "u32"):
    """All 64 lanes do one atomic each on cell[lane % 4] with value[lane]; returns the old values and the cells."""
    dtype = np.asarray(cell).dtype
    size = dtype.itemsize
    register = f"b{max(size, 2) * 8}"
    body = f""".reg .b64 %c, %v, %o; .reg .b32 %t, %m; .reg .{register} %d, %b; ld.param.u64 %c, [cells]; ld.param.u64 %v, [values];
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; and.b32 %m, %t, 3; mad.wide.u32 %c, %m, {size}, %c;
    mad.wide.u32 %v, %t, {size}, %v; mad.wide.u32 %o, %t, {size}, %o; ld.global.b{size * 8} %b, [%v]; mov.{register} %d, 0;
    {statement} st.global.b{size * 8} [%o], %d; ret;"""
    cells, values = np.array(cell), np.asarray(value, dtype)
    out = np.zeros(64, dtype)
    parameters = ".param .u64 cells, .param .u64 values, .param .u64 out"
    emulator.launch(wrap_ptx(body, parameters), grid=1, block=64, args=[cells, values, out])
    return out, cells


UPDATES = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda o, b: o & b,
    "or": lambda o, b: o | b,
    "xor": lambda o, b: o ^ b,
    "exch": lambda o, b: b,
    "inc": lambda o, b: 0 if o >= b else o + 1,
    "dec": lambda o, b: b if o == 0 or o > b else o - 1,
}


@pytest.mark.parametrize(
    ("name", "type_name"),
    [
        ("add", "u32"),
        ("add", "s32"),
        ("add", "u64"),
        ("min", "s32"),
        ("max", "u32"),
        ("min", "u64"),
        ("max", "s64"),
        ("and", "b32"),
        ("or", "b64"),
        ("xor", "b32"),
        ("exch", "b32"),
        ("exch", "b64"),
        ("inc", "u32"),
        ("dec", "u32"),
    ],
)
def test_atomics_take_turns(name, type_name):
    dtype = np.dtype(f"{'i' if type_name[0] == 's' else 'u'}{int(type_name[1:]) // 8}")
    random = np.random.default_rng(3)
    values = random.integers(0, 40, 64).astype(dtype)
    cells = random.integers(0, 40, 4).astype(dtype)
    out, after = atomic(f"atom.global.{name}.{type_name} %d, [%c], %b;", cells, values)
    state = cells.tolist()
    for lane in range(64):
        assert out[lane] == state[lane % 4]
        state[lane % 4] = UPDATES[name](state[lane % 4], int(values[lane]))
    assert after.tolist() == state
    if name not in ("exch",):
        assert atomic(f"red.global.{name}.{type_name} [%c], %b;", cells, values)[1].tolist() == state


def test_compare_and_swap():
    out, after = atomic("atom.global.cas.b32 %d, [%c], 7, %b;", np.array([7, 7, 8, 7], np.uint32), 100 + np.arange(64))
    assert after.tolist() == [100, 101, 8, 103]
    assert out[:8].tolist() == [7, 7, 8, 7, 100, 101, 8, 103]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floating_atomics_round_each_step(dtype):
    values = np.random.default_rng(4).standard_normal(64).astype(dtype)
    bits = np.dtype(dtype).itemsize * 8
    _, after = atomic(f"red.global.add.f{bits} [%c], %b;", np.zeros(4, dtype), values)
    want = np.zeros(4, dtype)
    for lane in range(64):
        want[lane % 4] += values[lane]
    np.testing.assert_array_equal(after, want)


def test_packed_half_atomics():
    values = np.tile(np.array([1.5, -0.25], np.float16), 64)
    _, after = atomic("red.global.add.noftz.f16x2 [%c], %b;", np.zeros(4, np.uint32), values.view(np.uint32))
    assert after.view(np.float16).tolist() == [24.0, -4.0] * 4


def test_shared_histogram():
    source = r"""extern "C" __global__ void histogram(const unsigned char* in, int* out, int n) {
        __shared__ int bins[16];
        if (threadIdx.x < 16) bins[threadIdx.x] = 0;
        __syncthreads();
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[in[i] & 15], 1);
        __syncthreads();
        if (threadIdx.x < 16) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
    }"""
    data = np.random.default_rng(5).integers(0, 256, 5000).astype(np.uint8)
    out = np.zeros(16, np.int32)
    run_cuda(source, "histogram", 5, 96, [data, out, 5000])
    np.testing.assert_array_equal(out, np.bincount(data & 15, minlength=16))


def test_atomic_maximum_of_floats_through_integers():
    source = r"""extern "C" __global__ void largest(const float* in, float* out) {
        atomicMax((int*)out, __float_as_int(in[blockIdx.x * blockDim.x + threadIdx.x])); }"""
    data, out = np.abs(bits_to_f32(np.random.default_rng(6).integers(0, 0x7F000000, 256))), np.zeros(1, np.float32)
    run_cuda(source, "largest", 2, 128, [data, out])
    assert out[0] == data.max()
