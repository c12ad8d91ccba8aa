"""cp.async: data arrives at its wait, in its group; nothing may touch it before."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.program import SHARED_GAP

from .helpers import run_cuda, wrap_ptx

PRELUDE = r"""
template <int BYTES> __device__ void copy_async(void* to, const void* from) {
    unsigned target = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(target), "l"(from), "n"(BYTES) : "memory");
}
template <int BYTES> __device__ void copy_async(void* to, const void* from, int size) {
    unsigned target = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(target), "l"(from), "n"(BYTES), "r"(size) : "memory");
}
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ void wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
__device__ void wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
"""


def run(body: str, *args, blocks: int = 1, threads: int = 64, **kwargs):
    source = PRELUDE + 'extern "C" __global__ void kernel(' + body
    return run_cuda(source, "kernel", blocks, threads, list(args), **kwargs)


@pytest.mark.parametrize(("size", "type_name"), [(4, "int"), (8, "int2"), (16, "int4")])
def test_every_size_arrives(size, type_name):
    data = np.random.default_rng(1).integers(0, 256, 3 * 64 * size).astype(np.uint8)
    out = np.zeros_like(data)
    run(
        f"""const {type_name}* in, {type_name}* out) {{
        __shared__ {type_name} tile[64];
        int t = threadIdx.x, base = blockIdx.x * 64;
        copy_async<{size}>(&tile[t], &in[base + t]); commit(); wait<0>(); __syncthreads();
        out[base + (t ^ 1)] = tile[t ^ 1]; }}""",
        data,
        out,
        blocks=3,
    )
    np.testing.assert_array_equal(out, data)


@pytest.mark.parametrize(
    "form",
    [
        "cp.async.cg.shared.global [%0], [%1], 16;",
        "cp.async.cg.shared::cta.global.L2::128B [%0], [%1], 16;",
        "cp.async.ca.shared.global.L2::64B [%0], [%1], 16, %2;",
        "cp.async.cg.shared.global.L2::256B [%0], [%1], 16, 16;",
        "{.reg .b64 p; createpolicy.fractional.L2::evict_last.b64 p, 1.0; cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, p;}",
        "{.reg .b64 p; createpolicy.fractional.L2::evict_last.b64 p, 1.0; "
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, p;}",
    ],
)
def test_cache_hints_and_sizes_that_change_nothing(form):
    data = np.arange(256, dtype=np.int32)
    out = np.zeros_like(data)
    run(
        f"""const int4* in, int4* out, int size) {{
        __shared__ int4 tile[64];
        unsigned to = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x]);
        asm volatile("{form}" :: "r"(to), "l"(in + threadIdx.x), "r"(size) : "memory");
        wait_all(); out[threadIdx.x] = tile[threadIdx.x]; }}""",
        data,
        out,
        16,
    )
    np.testing.assert_array_equal(out, data)


def test_a_group_leaves_its_old_bytes_until_its_wait():
    # Groups in order: the second wait lets the newest group fly on.
    data = np.arange(192, dtype=np.int32) + 1000
    out = np.zeros((3, 64), np.int32)
    run(
        """const int* in, int* out) {
        __shared__ int tile[3][64];
        int t = threadIdx.x;
        for (int s = 0; s < 3; ++s) { tile[s][t] = -1; copy_async<4>(&tile[s][t], &in[64 * s + t]); commit(); }
        wait<2>(); out[t] = tile[0][t];
        wait<1>(); out[64 + t] = tile[1][t];
        wait<0>(); out[128 + t] = tile[2][t]; }""",
        data,
        out,
    )
    np.testing.assert_array_equal(out.ravel(), data)


def test_wait_group_does_not_land_the_open_group():
    body = """const int* in, int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        copy_async<4>(&tile[t], &in[t]); WAIT; out[t] = tile[t]; }"""
    data, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    with pytest.raises(emulator.InFlightRead):
        run(body.replace("WAIT", "wait<0>()"), data, out)
    run(body.replace("WAIT", "wait_all()"), data, out)
    np.testing.assert_array_equal(out, data)


def test_empty_groups_count():
    body = """const int* in, int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        copy_async<4>(&tile[t], &in[t]); commit(); EMPTY wait<1>(); out[t] = tile[t]; }"""
    data, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    with pytest.raises(emulator.InFlightRead):
        run(body.replace("EMPTY", ""), data, out)
    run(body.replace("EMPTY", "commit();"), data, out)
    np.testing.assert_array_equal(out, data)


def test_lanes_of_one_warp_have_groups_of_their_own():
    data, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    run(
        """const int* in, int* out) {
        __shared__ int tile[64]; int t = threadIdx.x;
        if (t & 1) { copy_async<4>(&tile[t], &in[t]); commit(); }
        else { copy_async<4>(&tile[t], &in[t]); commit(); commit(); wait<1>(); out[t] = tile[t]; }
        if (t % 4 == 1) { wait<0>(); out[t] = tile[t]; }
        }""",
        data,
        out,
    )
    np.testing.assert_array_equal(out, np.where(np.arange(64) % 4 == 3, 0, data))


# The lanes' instructions before their wait, and which of them (odd or even) may read their data after `wait<1>`.
GROUPS_OF_LANES = {
    "odd lanes close one group more": ("COPY; commit(); if (t & 1) commit();", 1),
    "odd lanes open their group later": ("if (t & 1) commit(); COPY; commit(); if (!(t & 1)) commit();", 0),
    "odd lanes never close theirs": ("COPY; if (!(t & 1)) { commit(); commit(); }", 0),
}


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("case", GROUPS_OF_LANES)
def test_each_lane_counts_its_own_groups(case, seed):
    before, ready = GROUPS_OF_LANES[case]
    body = """const int* in, int* out) { __shared__ int tile[64]; int t = threadIdx.x;
        BEFORE wait<1>(); if ((t & 1) == READER) out[t] = tile[t]; }""".replace(
        "BEFORE", before.replace("COPY", "copy_async<4>(&tile[t], &in[t])")
    )
    data, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    schedule = {} if seed is None else {"schedule": emulator.RandomWarps(seed)}
    run(body.replace("READER", str(ready)), data, out, **schedule)
    np.testing.assert_array_equal(out, np.where(data % 2 == ready, data, 0))
    with pytest.raises(emulator.InFlightRead):
        run(body.replace("READER", str(1 - ready)), data, out, **schedule)


def test_a_wait_of_some_lanes_lets_their_newest_group_fly():
    with pytest.raises(emulator.InFlightRead):
        run(
            """const int* in, int* out) { __shared__ int tile[64]; int t = threadIdx.x;
            copy_async<4>(&tile[t], &in[t]); commit(); if (t < 32) { wait<1>(); out[t] = tile[t]; } }""",
            np.zeros(64, np.int32),
            np.zeros(64, np.int32),
        )


@pytest.mark.parametrize("size", [4, 8, 16])
def test_bytes_beyond_the_source_size_are_zero(size):
    rng = np.random.default_rng(2)
    sizes = rng.integers(0, size + 1, 128).astype(np.int32)
    data = rng.integers(1, 256, (128, size)).astype(np.uint8)
    out = np.full((128, size), 0xEE, np.uint8)
    run(
        f"""const char* in, char* out, const int* sizes) {{
        extern __shared__ int4 raw[]; char* tile = (char*)raw;
        int t = blockIdx.x * 64 + threadIdx.x;
        copy_async<{size}>(tile + {size} * threadIdx.x, in + {size} * t, sizes[t]);
        wait_all();
        for (int i = 0; i < {size}; ++i) out[{size} * t + i] = tile[{size} * threadIdx.x + i]; }}""",
        data,
        out,
        sizes,
        blocks=2,
        shared_bytes=64 * size,
    )
    np.testing.assert_array_equal(out, np.where(np.arange(size) < sizes[:, None], data, 0))


def test_a_source_of_size_zero_is_not_looked_at():
    data, out = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
    body = """const int* in, int* out, int limit) {
        __shared__ int tile[64]; int t = threadIdx.x;
        copy_async<4>(&tile[t], t < limit ? in + t : (const int*)3, t < limit ? 4 : 0); wait_all(); out[t] = tile[t]; }"""
    run(body, data, out, 40)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 40, data, 0))


def test_ignored_sources_are_zero_and_not_looked_at():
    data, out = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
    run(
        """const int* in, int* out, int limit) {
        __shared__ int tile[64]; int t = threadIdx.x;
        unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t]);
        asm volatile("{.reg .pred p; setp.ge.s32 p, %2, %3; cp.async.ca.shared.global [%0], [%1], 4, p;}"
            :: "r"(to), "l"(in + (t < limit ? t : t + (1 << 20))), "r"(t), "r"(limit) : "memory");
        wait_all(); out[t] = tile[t]; }""",
        data,
        out,
        40,
    )
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 40, data, 0))


def test_a_source_size_beyond_the_copy_is_an_error():
    with pytest.raises(emulator.InvalidCopy, match="src-size 5"):
        run(
            """const int* in, int size) { __shared__ int tile[64];
            copy_async<4>(&tile[threadIdx.x], &in[threadIdx.x], size); wait_all(); }""",
            np.zeros(64, np.int32),
            5,
        )


def test_predicated_copies():
    data, out = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
    run(
        """const int* in, int* out, int limit) {
        __shared__ int tile[64]; int t = threadIdx.x;
        tile[t] = -5; if (t < limit) copy_async<4>(&tile[t], &in[t]); commit(); wait<0>(); out[t] = tile[t]; }""",
        data[:40],
        out,
        40,
    )
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 40, data, -5))


def test_the_source_is_taken_when_the_copy_is_issued():
    data, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    run(
        """int* in, int* out) { __shared__ int tile[64]; int t = threadIdx.x;
        copy_async<4>(&tile[t], &in[t]); in[t] = 7; wait_all(); out[t] = tile[t]; }""",
        data,
        out,
    )
    np.testing.assert_array_equal(out, np.arange(64))


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copy", "error"),
    [
        ("copy_async<4>(&tile[t], in + t + 1)", emulator.OutOfBounds),
        ("copy_async<4>(tile + t + 1, in + t)", emulator.OutOfBounds),
        ("copy_async<8>(tile + (t & 30), in + (t & 31))", emulator.Misaligned),
        ("copy_async<8>(tile + (t & 31), in + (t & 30))", emulator.Misaligned),
        ("copy_async<16>(tile + (t & ~3), in + (t & ~3) + 1, 4)", emulator.Misaligned),
        ("copy_async<16>(tile + 4 * (t / 4), in + 4 * (t / 4) + 4, 5)", emulator.OutOfBounds),
    ],
)
def test_addresses_are_checked_when_the_copy_is_issued(copy, error):
    with pytest.raises(error) as caught:
        run(f"const int* in) {{ __shared__ __align__(16) int tile[64]; int t = threadIdx.x;\n{copy}; }}", np.zeros(64, np.int32))
    assert "cp.async" in str(caught.value)


TOUCH = """const int* in, int* out) { __shared__ __align__(16) char tile[256]; int t = threadIdx.x;
    copy_async<4>(tile + 4 * t, in + t); commit();
    TOUCH; wait<0>(); }"""


@pytest.mark.parametrize(
    "touch",
    [
        "out[t] = ((volatile int*)tile)[t]",
        "out[t] = ((volatile char*)tile)[4 * t + 3]",
        "if (t == 5) out[t] = ((volatile short*)tile)[33]",
        "if (t == 5) out[0] = (int)((volatile long long*)tile)[31]",
        "if (t < 16) ((int4*)out)[t] = ((int4*)tile)[t]",
    ],
)
def test_reading_what_is_in_flight(touch):
    with pytest.raises(emulator.InFlightRead) as caught:
        run(TOUCH.replace("TOUCH", touch), np.zeros(64, np.int32), np.zeros(64, np.int32))
    text = str(caught.value)
    assert "cp.async" in text and "copy_async<4>" not in text.splitlines()[0]
    assert caught.value.instruction.opcode == "ld" and caught.value.other.opcode == "cp"
    assert caught.value.other_threads


@pytest.mark.parametrize(
    "touch",
    [
        "((volatile int*)tile)[t] = 1",
        "if (t == 9) ((volatile char*)tile)[77] = 1",
        "atomicAdd((int*)tile + t, 1)",
        "copy_async<4>(tile + 4 * t, in + t)",
        "if (t == 63) copy_async<16>(tile + 16, in)",
    ],
)
def test_writing_what_is_in_flight(touch):
    with pytest.raises(emulator.InFlightWrite) as caught:
        run(TOUCH.replace("TOUCH", touch), np.zeros(64, np.int32), np.zeros(64, np.int32))
    assert caught.value.other.opcode == "cp"


NAMED = """const int* in, int* out) {
    __shared__ int first[64]; __shared__ int second[2][64]; int t = threadIdx.x;
    first[t] = t; second[0][t] = t; copy_async<4>(&second[1][t], &in[t]); __syncthreads();
    if (blockIdx.x == 1 && t == 5) TOUCH; out[64 + t] = first[t] + second[0][t]; __syncthreads(); wait_all(); }"""


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("touch", "place"),
    [
        ("out[0] = ((volatile int*)second)[66]", "byte 264 of second"),
        ("((volatile char*)second)[511] = 1", "byte 511 of second"),
        ("copy_async<4>(&second[1][9], in)", "byte 292 of second"),
    ],
)
def test_a_place_in_flight_has_the_name_of_its_variable(touch, place, seed):
    schedule = {} if seed is None else {"schedule": emulator.RandomWarps(seed)}
    data, out = np.zeros(64, np.int32), np.zeros(128, np.int32)
    with pytest.raises((emulator.InFlightRead, emulator.InFlightWrite), match=place):
        run(NAMED.replace("TOUCH", touch), data, out, blocks=2, **schedule)
    run(NAMED.replace("TOUCH", "out[1] = ((volatile int*)second)[63]"), data, out, blocks=2, **schedule)


def test_two_lanes_of_one_instruction_copy_to_one_place():
    with pytest.raises(emulator.InFlightWrite, match="another lane of the same instruction"):
        run(
            """const int* in) { __shared__ int tile[64]; copy_async<4>(&tile[threadIdx.x / 2], in); wait_all(); }""", np.zeros(64, np.int32)
        )


def test_another_block_has_memory_of_its_own():
    data, out = np.arange(4, dtype=np.int32), np.zeros(256, np.int32)
    run(
        """const int* in, int* out) { __shared__ int tile[64]; int t = threadIdx.x;
        if (blockIdx.x & 1) { copy_async<4>(&tile[t], &in[blockIdx.x]); commit(); } else tile[t] = -1;
        if (!(blockIdx.x & 1)) out[64 * blockIdx.x + t] = tile[t];
        wait<0>(); out[64 * blockIdx.x + t] = tile[t]; }""",
        data,
        out,
        blocks=4,
    )
    np.testing.assert_array_equal(out.reshape(4, 64)[:, 0], [-1, 1, -1, 3])


def test_memory_beside_a_copy_may_be_used():
    data, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    run(
        """const int* in, int* out) { __shared__ int tile[2][64]; int t = threadIdx.x;
        copy_async<4>(&tile[1][t], &in[t]); tile[0][t] = t; out[t] = tile[0][t]; wait_all(); out[t] += tile[1][t]; }""",
        data,
        out,
    )
    np.testing.assert_array_equal(out, 2 * data)


def test_leaving_without_wait_is_legal():
    out = np.zeros(256, np.int32)
    run(
        """const int* in, int* out) { __shared__ int tile[64]; int t = threadIdx.x;
        tile[t] = t; for (int i = 0; i <= blockIdx.x; ++i) commit(); wait<0>();
        out[64 * blockIdx.x + t] = tile[t]; copy_async<4>(&tile[t], &in[t]); commit(); }""",
        np.full(64, -1, np.int32),
        out,
        blocks=4,
        lanes_per_wave=64,
    )
    np.testing.assert_array_equal(out, np.tile(np.arange(64), 4))


def test_what_an_exited_lane_never_waited_for_stays_in_flight():
    with pytest.raises(emulator.InFlightRead):
        run(
            """const int* in, int* out) { __shared__ int tile[64]; int t = threadIdx.x;
            if (t < 32) { copy_async<4>(&tile[t], &in[t]); commit(); return; }
            __syncthreads(); out[t] = tile[t - 32]; }""",
            np.zeros(64, np.int32),
            np.zeros(64, np.int32),
        )


@pytest.mark.parametrize("seed", range(3))
def test_a_pipeline_of_stages_under_any_schedule(seed):
    data = np.random.default_rng(seed).integers(-99, 99, (2, 20, 96)).astype(np.int32)
    out = np.zeros((2, 96), np.int32)
    run(
        """const int* in, int* out, int steps) {
        __shared__ int tile[3][96]; int t = threadIdx.x, sum = 0; in += blockIdx.x * steps * 96;
        for (int s = 0; s < 2; ++s) { copy_async<4>(&tile[s][t], &in[96 * s + t]); commit(); }
        for (int s = 0; s < steps; ++s) {
            wait<1>(); __syncthreads();
            if (s + 2 < steps) copy_async<4>(&tile[(s + 2) % 3][t], &in[96 * (s + 2) + t]);
            commit();
            sum += (s + 1) * tile[s % 3][95 - t];
        }
        out[96 * blockIdx.x + t] = sum; }""",
        data,
        out,
        20,
        blocks=2,
        threads=96,
        schedule=emulator.RandomWarps(seed) if seed else None,
    )
    np.testing.assert_array_equal(out, (data * np.arange(1, 21)[:, None]).sum(1)[:, ::-1])


def test_observers_see_issue_and_landing():
    class Log(emulator.Observer):
        def __init__(self):
            self.events = []

        def accessed(self, space, access, lanes, addresses):
            self.events.append((space.name, access.kind, access.width, addresses.tolist()[:2], access.instruction.opcode))

        def async_copy_issued(self, access, lanes, addresses, origins):
            self.events.append(("issued", access.width, None if lanes is None else len(lanes), addresses.tolist()[:2]))

        def async_group_landed(self, wait, access, lanes, addresses):
            self.events.append(("landed", wait.modifiers[1], access.instruction.opcode, addresses.tolist()[:2]))

    log = Log()
    run(
        """const int4* in) { __shared__ int4 tile[64]; copy_async<16>(&tile[threadIdx.x], &in[threadIdx.x]); commit(); wait<0>(); }""",
        np.zeros(256, np.int32),
        observers=[log],
    )
    kinds = [event[:2] for event in log.events if event[0] != "global" or event[4] == "cp"]
    assert kinds == [("global", "load"), ("issued", 16), ("landed", "wait_group"), ("shared", "store")]
    assert log.events[-1] == ("shared", "store", 16, [SHARED_GAP, SHARED_GAP + 16], "cp")


def test_a_landing_is_told_with_the_addresses_of_the_issue():
    class Landed(emulator.Observer):
        addresses = None

        def async_group_landed(self, wait, access, lanes, addresses):
            self.addresses = addresses.tolist()

    body = """.reg .b32 %r, %x; .reg .b64 %a; ld.param.u64 %a, [p]; mov.u32 %r, %tid.x; mov.u32 %x, x; mad.lo.u32 %r, %r, 4, %x;
    cp.async.ca.shared.global [%r], [%a], 4; add.u32 %r, %r, 64; cp.async.wait_all; ret;"""
    landed = Landed()
    ptx = wrap_ptx(body, ".param .u64 p", declarations=".shared .b32 x[32];")
    emulator.launch(ptx, grid=1, block=32, args=[np.zeros(1, np.int32)], observers=[landed])
    assert landed.addresses == [SHARED_GAP + 4 * lane for lane in range(32)]


@pytest.mark.parametrize(
    "form",
    [
        "cp.async.cg.shared.global [%0], [%1], 8;",
        "cp.async.ca.shared::cluster.global [%0], [%1], 8;",
    ],
)
def test_other_forms_are_refused(form):
    text = form.replace("%0", "%r").replace("%1", "%a")
    ptx = wrap_ptx(f".reg .b32 %r; .reg .b64 %a; mov.b32 %r, 0; mov.b64 %a, 0; {text} ret;", declarations=".shared .b64 x[4];")
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(ptx, grid=1, block=32)
