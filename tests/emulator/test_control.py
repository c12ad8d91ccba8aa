"""Divergence, loops, barriers, calls, and lanes that wait for each other."""

import numpy as np
import pytest

from gemmgen import emulator

from .helpers import compile_ptx, run_cuda, wrap_ptx


def collatz_steps(value: int) -> int:
    steps = 0
    while value != 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    return steps


COLLATZ = r"""extern "C" __global__ void collatz(int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = i + 1; int steps = 0;
    while (v != 1) { if (v & 1) v = 3 * v + 1; else v >>= 1; ++steps; }
    out[i] = steps;
}"""


@pytest.mark.parametrize("block", [1, 7, 32, 100, 128])
def test_loops_with_different_trip_counts(block):
    out = np.zeros(300, np.int32)
    run_cuda(COLLATZ, "collatz", -(-300 // block), block, [out, 300])
    assert out.tolist() == [collatz_steps(i + 1) for i in range(300)]


def test_diverged_lanes_meet_again():
    source = r"""extern "C" __global__ void meet(int* out) {
        int t = threadIdx.x, v = 0;
        for (int i = 0; i < t; ++i) v += i;
        if (t % 3 == 0) v += 100; else if (t % 3 == 1) v += 200; else v += 300;
        out[t] = v + __popc(__activemask());
    }"""
    out = np.zeros(32, np.int32)
    run_cuda(source, "meet", 1, 32, [out])
    t = np.arange(32)
    np.testing.assert_array_equal(out, t * (t - 1) // 2 + np.array([100, 200, 300])[t % 3] + 32)


@pytest.mark.parametrize("architecture", ["compute_75", "compute_90", "compute_120"])
def test_switch_and_nested_control_flow(architecture):
    source = r"""extern "C" __global__ void choose(const int* in, int* out, int n) {
        int i = threadIdx.x, v = in[i], r = 0;
        switch (v) {
            case 0: r = 11; break; case 1: r = v * 7 + i; break; case 2: for (int j = 0; j < i; ++j) r ^= j * v; break;
            case 3: r = -i; break; case 4: r = i << 3; break; case 5: r = i * i; break; case 6: r = n / (i + 1); break;
            case 7: r = n % (i + 1); break; default: r = -1;
        }
        out[i] = r;
    }"""
    values = (np.arange(64) * 7 % 11).astype(np.int32)
    out = np.zeros(64, np.int32)
    run_cuda(source, "choose", 1, 64, [values, out, 1000], architecture)

    def expected(i: int, v: int) -> int:
        r = 0
        for j in range(i):
            r ^= j * v
        return [11, v * 7 + i, r, -i, i << 3, i * i, 1000 // (i + 1), 1000 % (i + 1)][v] if v < 8 else -1

    assert out.tolist() == [expected(i, int(v)) for i, v in enumerate(values)]


def test_indexed_branches():
    body = """.reg .b64 %o; .reg .b32 %t, %m, %v; ld.param.u64 %o, [p]; mov.u32 %t, %tid.x; rem.u32 %m, %t, 3; mov.u32 %v, 0;
    targets: .branchtargets L0, L1, L2;
    brx.idx %m, targets;
    L0: mov.u32 %v, 5; bra.uni END;
    L1: mov.u32 %v, 6; bra.uni END;
    L2: mov.u32 %v, 7;
    END: mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %v; ret;"""
    out = np.zeros(32, np.uint32)
    emulator.launch(wrap_ptx(body, ".param .u64 p"), grid=1, block=32, args=[out])
    np.testing.assert_array_equal(out, 5 + np.arange(32) % 3)


def test_scopes_of_inline_assembly():
    source = r"""extern "C" __global__ void inlined(int* out, int n) {
        int v = threadIdx.x;
        asm volatile("{\n .reg .pred p;\n .reg .b32 t;\n setp.lt.s32 p, %0, 5;\n mov.b32 t, 100;\n @p bra DONE;\n add.s32 %0, %0, t;\n"
                     " DONE:\n}" : "+r"(v));
        asm volatile("{\n .reg .pred p;\n setp.gt.s32 p, %0, %1;\n @!p bra DONE;\n mov.b32 %0, %1;\n DONE:\n}" : "+r"(v) : "r"(n));
        out[threadIdx.x] = v;
    }"""
    out = np.zeros(32, np.int32)
    run_cuda(source, "inlined", 1, 32, [out, 120])
    t = np.arange(32)
    np.testing.assert_array_equal(out, np.minimum(np.where(t < 5, t, t + 100), 120))


def test_register_declarations_need_no_space():
    # The CUDA headers write `.reg.b32`.
    source = r"""extern "C" __global__ void glued(int* out) {
        asm("{.reg.b32 a,b;mov.b32 a,%1;add.s32 b,a,a;mov.b32 %0,b;}" : "=r"(out[threadIdx.x]) : "r"(threadIdx.x)); }"""
    out = np.zeros(32, np.int32)
    run_cuda(source, "glued", 1, 32, [out])
    np.testing.assert_array_equal(out, 2 * np.arange(32))


def test_calls_of_device_functions():
    source = r"""
    struct Triple { double a; float b; int c; };
    __device__ __noinline__ Triple twist(Triple x, int by) { x.a += by; x.b *= 2; if (by > 3) return x; x.c = -x.c; return x; }
    __device__ __noinline__ int twice(int x) { Triple t{1.0, 2.0f, x}; t = twist(t, x); return (int)t.a + (int)t.b + t.c; }
    extern "C" __global__ void calls(int* out) {
        int t = threadIdx.x, v = 0;
        if (t & 1) v = twice(t); else v = twice(t + 1) * 10;
        out[t] = v;
    }"""
    out = np.zeros(32, np.int32)
    run_cuda(source, "calls", 1, 32, [out])

    def twice(x: int) -> int:
        return 1 + x + 4 + (x if x > 3 else -x)

    assert out.tolist() == [twice(t) if t & 1 else twice(t + 1) * 10 for t in range(32)]


REDUCE = r"""extern "C" __global__ void reduce(const int* in, int* out) {
    extern __shared__ int s[];
    int t = threadIdx.x;
    s[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half >>= 1) { if (t < half) s[t] += s[t + half]; __syncthreads(); }
    if (t == 0) out[blockIdx.x] = s[0];
}"""


def reduce_with(schedule=None, lanes_per_wave=2048, block=128):
    """Sums by the kernel, and those expected."""
    data = np.random.default_rng(2).integers(-1000, 1000, 9 * block).astype(np.int32)
    out = np.zeros(9, np.int32)
    run_cuda(REDUCE, "reduce", 9, block, [data, out], shared_bytes=4 * block, schedule=schedule, lanes_per_wave=lanes_per_wave)
    return out.tolist(), data.reshape(9, block).sum(axis=1).tolist()


@pytest.mark.parametrize("lanes_per_wave", [1, 300, 100000])
def test_barriers_order_shared_memory(lanes_per_wave):
    sums, expected = reduce_with(lanes_per_wave=lanes_per_wave)
    assert sums == expected


@pytest.mark.parametrize("seed", range(3))
def test_other_interleavings_give_the_same_result(seed):
    sums, expected = reduce_with(emulator.RandomWarps(seed))
    assert sums == expected


def test_another_interleaving_shows_a_missing_barrier():
    source = REDUCE.replace("s[t + half]; __syncthreads();", "s[t + half];")
    ptx = compile_ptx(source)
    data = np.arange(256, dtype=np.int32)
    results = set()
    for seed in range(6):
        out = np.zeros(1, np.int32)
        emulator.launch(ptx, "reduce", grid=1, block=256, shared_bytes=1024, args=[data, out], schedule=emulator.RandomWarps(seed, 0.3))
        results.add(int(out[0]))
    assert len(results) > 1


def test_lanes_that_left_do_not_hold_a_barrier():
    source = r"""extern "C" __global__ void leave(int* out, int n) {
        __shared__ int s[64]; int t = threadIdx.x;
        if (t >= n) return;
        s[t] = t; __syncthreads(); out[t] = s[n - 1 - t]; }"""
    for n in (64, 40, 1):
        out = np.full(64, -1, np.int32)
        run_cuda(source, "leave", 1, 64, [out, n])
        assert out.tolist() == [*range(n - 1, -1, -1), *[-1] * (64 - n)]


def test_barriers_with_reduction():
    source = r"""extern "C" __global__ void vote(int* out, int n) {
        int t = threadIdx.x;
        int count = __syncthreads_count(t < n), all = __syncthreads_and(t < n), any = __syncthreads_or(t == n);
        out[blockIdx.x * blockDim.x + t] = count * 100 + all * 10 + any;
    }"""
    for n, want in ((0, 1), (5, 501), (64, 6410)):
        out = np.zeros(128, np.int32)
        run_cuda(source, "vote", 2, 64, [out, n])
        assert (out == want).all()


def test_named_barriers_with_counts_connect_producers():
    source = r"""extern "C" __global__ void pipe(int* out, int rounds) {
        __shared__ int box[32];
        int t = threadIdx.x, sum = 0;
        for (int i = 0; i < rounds; ++i) {
            if (t < 32) {
                box[t] = i * 32 + t;
                asm volatile("bar.arrive 1, 64;" ::: "memory");
                asm volatile("bar.sync 2, 64;" ::: "memory");
            } else {
                asm volatile("bar.sync 1, 64;" ::: "memory");
                sum += box[63 - t];
                asm volatile("bar.arrive 2, 64;" ::: "memory");
            }
        }
        out[t] = sum;
    }"""
    out = np.zeros(64, np.int32)
    run_cuda(source, "pipe", 1, 64, [out, 5])
    lane = 31 - np.arange(32)
    np.testing.assert_array_equal(out[32:], 5 * lane + 32 * 10)
    run_cuda(source, "pipe", 1, 64, [out, 5], schedule=emulator.RandomWarps(1))
    np.testing.assert_array_equal(out[32:], 5 * lane + 32 * 10)


LAST_BLOCK = r"""
__device__ unsigned done;
extern "C" __global__ void last_block(const float* in, float* partial, float* out, int n) {
    __shared__ float s[128]; __shared__ bool last;
    int t = threadIdx.x; float v = 0;
    for (int i = blockIdx.x * 128 + t; i < n; i += gridDim.x * 128) v += in[i];
    s[t] = v; __syncthreads();
    for (int h = 64; h; h >>= 1) { if (t < h) s[t] += s[t + h]; __syncthreads(); }
    if (t == 0) { partial[blockIdx.x] = s[0]; __threadfence(); last = atomicAdd(&done, 1) == gridDim.x - 1; }
    __syncthreads();
    if (last) {
        __threadfence();
        v = 0; for (int i = t; i < gridDim.x; i += 128) v += ((volatile float*)partial)[i];
        s[t] = v; __syncthreads();
        for (int h = 64; h; h >>= 1) { if (t < h) s[t] += s[t + h]; __syncthreads(); }
        if (t == 0) *out = s[0];
    }
}"""


@pytest.mark.parametrize("lanes_per_wave", [128, 1024])
def test_the_last_block_finishes(lanes_per_wave):
    data, out = np.arange(5000, dtype=np.float32), np.zeros(1, np.float32)
    run_cuda(LAST_BLOCK, "last_block", 11, 128, [data, np.zeros(11, np.float32), out, 5000], lanes_per_wave=lanes_per_wave)
    assert out[0] == data.sum(dtype=np.float64)


CHAIN = r"""extern "C" __global__ void chain(volatile int* flags, int* out, int reverse) {
    int b = reverse ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    if (threadIdx.x == 0) {
        if (b > 0) while (flags[b - 1] == 0) { }
        __threadfence();
        out[b] = b == 0 ? 1 : ((volatile int*)out)[b - 1] * 2;
        __threadfence();
        flags[b] = 1;
    }
}"""


@pytest.mark.parametrize("reverse", [0, 1])
def test_blocks_that_spin_for_others_do_not_starve_them(reverse):
    out = np.zeros(12, np.int32)
    run_cuda(CHAIN, "chain", 12, 64, [np.zeros(12, np.int32), out, reverse], lanes_per_wave=64)
    assert out.tolist() == [1 << i for i in range(12)]


def test_a_lock_is_taken_by_one_lane_after_another():
    source = r"""extern "C" __global__ void locked(int* lock, int* counter) {
        bool done = false;
        while (!done) {
            if (atomicCAS(lock, 0, 1) == 0) {
                int v = *(volatile int*)counter; *(volatile int*)counter = v + 1;
                __threadfence(); atomicExch(lock, 0); done = true;
            }
        }
    }"""
    counter = np.zeros(1, np.int32)
    run_cuda(source, "locked", 2, 64, [np.zeros(1, np.int32), counter])
    assert counter[0] == 128


def test_a_spin_lock_whose_holder_is_behind_the_loop():
    """The lanes that spin stand before the lane that must run: minimum-first alone would starve it."""
    source = r"""extern "C" __global__ void locked(int* lock, int* counter) {
        if (threadIdx.x % 32 == 0) {
            while (atomicCAS(lock, 0, 1) != 0) { }
            int v = *(volatile int*)counter; *(volatile int*)counter = v + 1;
            __threadfence(); atomicExch(lock, 0);
        }
    }"""
    counter = np.zeros(1, np.int32)
    run_cuda(source, "locked", 4, 64, [np.zeros(1, np.int32), counter])
    assert counter[0] == 8


# -- lanes that never come ---------------------------------------------------------------------------------------


def test_a_barrier_in_diverged_code():
    source = r"""extern "C" __global__ void half(int* out) {
        __shared__ int s[64]; int t = threadIdx.x; s[t] = t;
        if (t < 16) { __syncthreads(); s[t] += 1; } else { __syncthreads(); s[t] += 2; }
        out[t] = s[63 - t]; }"""
    with pytest.raises(emulator.DivergentBarrier, match="lanes of one warp wait at different barriers") as caught:
        run_cuda(source, "half", 1, 64, [np.zeros(64, np.int32)])
    assert "__syncthreads" in str(caught.value)


def test_two_barriers_that_wait_for_each_other():
    source = r"""extern "C" __global__ void cross(int* out) {
        if (threadIdx.x < 32) asm volatile("bar.sync 1;"); else asm volatile("bar.sync 2;");
        out[threadIdx.x] = 1; }"""
    with pytest.raises(emulator.DivergentBarrier, match=r"32 of 64 threads at barrier 1.*32 of 64 threads at barrier 2"):
        run_cuda(source, "cross", 1, 64, [np.zeros(64, np.int32)])


def test_a_count_that_is_never_reached():
    source = r"""extern "C" __global__ void few(int* out) {
        if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); out[threadIdx.x] = 1; }"""
    with pytest.raises(emulator.Deadlock, match="32 of 64 threads at barrier 1"):
        run_cuda(source, "few", 1, 64, [np.zeros(64, np.int32)])


def test_an_endless_loop():
    source = r"""extern "C" __global__ void forever(volatile int* flag) { while (*flag == 0) { } }"""
    with pytest.raises(emulator.Deadlock, match="no end after 1000 steps"):
        run_cuda(source, "forever", 1, 32, [np.zeros(1, np.int32)], step_limit=1000)


@pytest.mark.parametrize(
    "loop",
    ["for (int i = 0;; ++i) out[threadIdx.x] = i;", "while (true) atomicAdd(out, 1);", "if (threadIdx.x < 32) while (true) __syncwarp();"],
)
def test_a_loop_without_an_exit_ends_soon(loop):
    source = f'extern "C" __global__ void forever(int* out) {{ {loop} }}'
    with pytest.raises(emulator.Deadlock, match="no path leads from here to the end"):
        run_cuda(source, "forever", 1, 64, [np.zeros(64, np.int32)], step_limit=100_000)


def test_what_a_loop_without_an_exit_does_comes_first():
    source = r"""extern "C" __global__ void forever(int* out) { for (int i = 0;; ++i) out[i] = i; }"""
    with pytest.raises(emulator.OutOfBounds, match="0 bytes past the end"):
        run_cuda(source, "forever", 1, 1, [np.zeros(64, np.int32)])


def test_endless_recursion_overflows_a_bounded_stack():
    source = r"""__device__ __noinline__ int f(int n, int* p) { int x[4]; x[n & 3] = n; return f(n + 1, p) + x[(n + *p) & 3]; }
        extern "C" __global__ void k(int* p) { p[threadIdx.x] = f(threadIdx.x, p); }"""
    with pytest.raises(emulator.Trapped, match="the stack overflows: 1024 calls deep"):
        run_cuda(source, "k", 1, 32, [np.zeros(32, np.int32)], step_limit=100_000)


def test_a_shuffle_without_its_partner():
    source = r"""extern "C" __global__ void alone(int* out) {
        int t = threadIdx.x, v = t;
        if (t < 16) v = __shfl_sync(0xffffffff, v, 3); else while (((volatile int*)out)[40] == 0) { }
        out[t] = v; }"""
    with pytest.raises(emulator.EmulatorError):
        run_cuda(source, "alone", 1, 32, [np.zeros(64, np.int32)], step_limit=2000)
    body = """.reg .b32 %t, %v; .reg .pred %p; mov.u32 %t, %tid.x; setp.lt.u32 %p, %t, 8; @%p bra A;
    bar.warp.sync 0xffffff00; bar.sync 0; ret;
    A: shfl.sync.idx.b32 %v, %t, 0, 31, 0xffffffff; ret;"""
    with pytest.raises(emulator.DivergentWarp, match="shfl waits for lanes of its member mask that never arrive"):
        emulator.launch(wrap_ptx(body), grid=1, block=32)


def test_a_lane_outside_its_own_mask():
    body = ".reg .b32 %t; mov.u32 %t, %laneid; shfl.sync.idx.b32 %t, %t, 0, 31, 0xff; ret;"
    with pytest.raises(emulator.DivergentWarp, match="leaves out"):
        emulator.launch(wrap_ptx(body), grid=1, block=32)


def test_traps_and_assertions():
    source = r"""extern "C" __global__ void trap(int* out) { if (threadIdx.x == 5) __trap(); out[threadIdx.x] = 1; }"""
    with pytest.raises(emulator.Trapped, match=r"thread \(5,0,0\) of block \(0,0,0\)"):
        run_cuda(source, "trap", 1, 32, [np.zeros(32, np.int32)])


def test_lanes_of_a_warp_wait_for_each_other():
    source = r"""extern "C" __global__ void wait(int* out) {
        __shared__ int s[32]; int t = threadIdx.x;
        for (int i = 0; i < t; ++i) s[t] = i;
        s[t] = t; __syncwarp(); out[t] = s[31 - t] + __shfl_xor_sync(0xffffffff, t, 1); }"""
    out = np.zeros(32, np.int32)
    run_cuda(source, "wait", 1, 32, [out])
    t = np.arange(32)
    np.testing.assert_array_equal(out, 31 - t + (t ^ 1))


@pytest.mark.parametrize("schedule", [None, emulator.RandomWarps(1), emulator.RandomWarps(2), emulator.RandomCrowds(3)])
def test_lanes_that_exit_later_are_no_longer_waited_for(schedule):
    source = """extern "C" __global__ void kernel(int* out, int n) {
        int t = threadIdx.x;
        if (t >= n) return;
        out[t] = __ballot_sync(0xffffffffu, t % 2); }"""
    out = np.zeros(64, np.int32)
    run_cuda(source, "kernel", 1, 64, [out, 40], schedule=schedule)
    assert out.tolist() == [0xAAAAAAAA - (1 << 32)] * 32 + [0xAA] * 8 + [0] * 24
