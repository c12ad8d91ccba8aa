"""Races in global memory, within a block and between blocks; atomics and fences understood."""

import numpy as np
import pytest

from gemmgen import emulator

from .twins import check, ints, twins


def test_threads_of_one_block():
    source = "int* data, int* out) { int t = threadIdx.x; data[t] = t; __syncthreads(); out[t] = data[63 - t]; }"
    text = twins(source, "__syncthreads();", emulator.GlobalRace, emulator.Buffer(ints(64), name="data"), ints(64))
    assert "read of data[63]" in text and text.count("kernel.cu:") == 2


def test_a_barrier_orders_no_other_block():
    source = "int* data, int* out) { int t = threadIdx.x + 64 * blockIdx.x; data[t] = t; __syncthreads(); out[t] = data[t ^ 1]; }"
    for lanes_per_wave in (1, 2048):
        message = twins(
            source, "data[t ^ 1]", emulator.GlobalRace, ints(256), ints(256), instead="data[t ^ 64]", grid=4, lanes_per_wave=lanes_per_wave
        )
        assert "global memory race" in message


def test_two_blocks_write_one_element():
    source = "int* data) { data[threadIdx.x + 64 * blockIdx.x] = blockIdx.x; }"
    text = twins(source, "64 * blockIdx.x", emulator.GlobalRace, ints(256), instead="63 * blockIdx.x", grid=4)
    assert "of block (0,0,0)" in text and "write" in text


def test_a_block_writes_what_another_one_has_read():
    source = "int* data, int* out) { int t = threadIdx.x + 64 * blockIdx.x; out[t] = data[t]; data[t] = 5; }"
    for lanes_per_wave in (1, 2048):
        message = twins(
            source,
            "data[t] = 5",
            emulator.GlobalRace,
            ints(320),
            ints(320),
            instead="data[t + 64] = 5",
            grid=4,
            lanes_per_wave=lanes_per_wave,
        )
        assert "global memory race" in message


def test_reading_together_is_fine():
    assert not check("const int* data, int* out) { out[threadIdx.x + 64 * blockIdx.x] = data[7]; }", ints(8), ints(256), grid=4).findings
    assert not check("int* data, int* out) { out[threadIdx.x + 64 * blockIdx.x] = data[7]; }", ints(8), ints(256), grid=4).findings


def test_own_elements_may_be_updated_in_place():
    assert not check("int* data) { int t = threadIdx.x; for (int i = 0; i < 4; ++i) data[t] = data[t] + 1; }", ints(64)).findings


LAST_BLOCK = """extern "C" __global__ void kernel(int* partial, int* out, unsigned* ticket) {
    __shared__ int sum[64]; __shared__ bool last;
    int t = threadIdx.x;
    partial[64 * blockIdx.x + t] = t;
    WRITERS
    if (t == 0) { RELEASE last = atomicAdd(ticket, 1u) == gridDim.x - 1; ACQUIRE }
    __syncthreads();
    if (last) {
        READERS
        int total = 0;
        for (int b = 0; b < gridDim.x; ++b) total += partial[64 * b + (63 - t)];
        out[t] = total;
    }
}"""


def last_block(writers="__syncthreads();", release="", acquire="", readers="") -> str:
    return LAST_BLOCK.replace("WRITERS", writers).replace("RELEASE", release).replace("ACQUIRE", acquire).replace("READERS", readers)


FENCE = "__threadfence();"


@pytest.mark.parametrize("lanes_per_wave", [1, 128, 2048])
@pytest.mark.parametrize(
    "parts",
    [
        dict(release=FENCE, acquire=FENCE),
        dict(release=FENCE, readers=FENCE),
        dict(writers=FENCE + "__syncthreads();", readers=FENCE),
        dict(writers=FENCE + "__syncthreads();", acquire=FENCE),
    ],
)
def test_the_last_block_may_read_what_all_wrote(parts, lanes_per_wave):
    assert not check(last_block(**parts), ints(64 * 8), ints(64), np.zeros(1, np.uint32), grid=8, lanes_per_wave=lanes_per_wave).findings


@pytest.mark.parametrize("lanes_per_wave", [1, 128, 2048])
@pytest.mark.parametrize(
    "parts",
    [
        dict(acquire=FENCE),
        dict(writers="", release=FENCE, acquire=FENCE),
        dict(writers=FENCE, acquire=FENCE),
        dict(release="__threadfence_block();", acquire=FENCE),
    ],
)
def test_the_last_block_without_a_fence(parts, lanes_per_wave):
    with pytest.raises(emulator.GlobalRace) as raised:
        check(last_block(**parts), ints(64 * 8), ints(64), np.zeros(1, np.uint32), grid=8, lanes_per_wave=lanes_per_wave)
    assert "__threadfence()" in str(raised.value) and "partial" in str(raised.value)


@pytest.mark.parametrize("lanes_per_wave", [1, 2048])
@pytest.mark.parametrize(
    "parts",
    [dict(release=FENCE), dict(writers=FENCE + "__syncthreads();"), dict(release=FENCE, acquire="__threadfence_block();")],
)
def test_the_last_block_of_the_programming_guide_is_a_warning(parts, lanes_per_wave):
    arguments = ints(64 * 8), ints(64), np.zeros(1, np.uint32)
    result = check(last_block(**parts), *arguments, grid=8, lanes_per_wave=lanes_per_wave)
    assert [type(finding) for finding in result.findings] == [emulator.UnfencedTicket]
    assert "__threadfence()" in str(result.findings[0])


STRONG_DATA = """
__device__ int load(const int* p) { int v; asm volatile("LOAD.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ void store(int* p, int v) { asm volatile("st.STORE.global.b32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
__device__ unsigned take(unsigned* p) {
    unsigned v; asm volatile("atom.TICKET.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory"); return v; }
extern "C" __global__ void kernel(int* partial, int* out, unsigned* ticket) {
    __shared__ bool last;
    int t = threadIdx.x;
    WRITE
    if (t == 0) { RELEASE last = take(ticket) == gridDim.x - 1; ACQUIRE }
    __syncthreads();
    if (last && t < gridDim.x) out[t] = load(partial + t);
}"""


def strong_data(load="ld.volatile", store="volatile", ticket="relaxed", release="", acquire="", write="") -> str:
    words = {"LOAD": load, "STORE": store, "TICKET": ticket, "RELEASE": release, "ACQUIRE": acquire}
    text = STRONG_DATA.replace("WRITE", write or "if (t == 0) store(partial + blockIdx.x, blockIdx.x);")
    for word, value in words.items():
        text = text.replace(word, value)
    return text


@pytest.mark.parametrize("lanes_per_wave", [1, 2048])
@pytest.mark.parametrize(
    "parts",
    [
        dict(),
        dict(load="ld.relaxed.gpu", store="relaxed.gpu"),
        dict(write="if (t == 1) store(partial + blockIdx.x, 1); __syncthreads();"),
        dict(write="if (t == 0) atomicExch(partial + blockIdx.x, 1);"),
        dict(acquire=FENCE),
        dict(release="__threadfence_block();", acquire=FENCE),
        dict(ticket="acquire"),
    ],
)
def test_a_flag_orders_no_strong_stores_by_itself(parts, lanes_per_wave):
    with pytest.raises(emulator.GlobalRace, match=r"another thread's (write|atomic operation)"):
        check(strong_data(**parts), ints(8), ints(8), np.zeros(1, np.uint32), grid=8, lanes_per_wave=lanes_per_wave)


@pytest.mark.parametrize("lanes_per_wave", [1, 2048])
@pytest.mark.parametrize(
    "parts",
    [
        dict(release=FENCE, acquire=FENCE),
        dict(ticket="acq_rel"),
        dict(ticket="release", acquire=FENCE),
        dict(load="ld.relaxed.gpu", store="relaxed.gpu", release=FENCE, acquire=FENCE),
        dict(write="if (t == 1) store(partial + blockIdx.x, 1); __syncthreads();", release=FENCE, acquire=FENCE),
    ],
)
def test_fences_around_a_flag_order_strong_stores(parts, lanes_per_wave):
    result = check(strong_data(**parts), ints(8), ints(8), np.zeros(1, np.uint32), grid=8, lanes_per_wave=lanes_per_wave)
    assert not result.findings


def test_data_beside_their_flag_in_one_word_need_no_fence():
    source = """volatile unsigned long long* word, int* out) {
        int b = blockIdx.x; unsigned long long seen = 1ull << 32;
        if (b > 0) do seen = word[b - 1]; while (seen >> 32 == 0);
        out[b] = int(seen); word[b] = seen + b; }"""
    assert not check(source, np.zeros(4, np.uint64), ints(4), grid=4, block=1).findings


def test_a_look_before_an_atomic_maximum_needs_no_fence():
    source = """int* best) {
        for (int i = 0; i < 4; ++i) { int seen; asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(seen) : "l"(best + i));
            if (seen < blockIdx.x) atomicMax(best + i, blockIdx.x); } }"""
    assert not check(source, ints(4), grid=8, block=1, lanes_per_wave=2).findings


def test_a_ticket_that_is_no_atomic():
    racy = last_block(release=FENCE, acquire=FENCE).replace("atomicAdd(ticket, 1u)", "(*ticket)++")
    with pytest.raises(emulator.GlobalRace):
        check(racy, ints(64 * 8), ints(64), np.zeros(1, np.uint32), grid=8)


SERIAL = """__device__ int load(const int* p) { int v; asm volatile(LOAD : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ void store(int* p, int v) { asm volatile(STORE :: "l"(p), "r"(v) : "memory"); }
extern "C" __global__ void kernel(int* sum, int* semaphore) {
    int t = threadIdx.x;
    if (t == 0) { while (load(semaphore) != blockIdx.x) {} AFTER }
    __syncthreads();
    sum[t] = sum[t] + blockIdx.x;
    __syncthreads(); // all have written
    if (t == 0) { BEFORE store(semaphore, blockIdx.x + 1); }
}"""


def serial(load: str, store: str, after: str = "", before: str = "") -> str:
    return (
        SERIAL.replace("LOAD", f'"{load}.global.b32 %0, [%1];"')
        .replace("STORE", f'"{store}.global.b32 [%0], %1;"')
        .replace("AFTER", after)
        .replace("BEFORE", before)
    )


@pytest.mark.parametrize(
    ("source", "legal"),
    [
        (serial("ld.acquire.gpu", "st.release.gpu"), True),
        (serial("ld.volatile", "st.volatile", FENCE, FENCE), True),
        (serial("ld.relaxed.gpu", "st.release.gpu", FENCE), True),
        (serial("ld.acquire.gpu", "st.relaxed.gpu", "", FENCE), True),
        (serial("ld.acquire.gpu", "st.relaxed.gpu"), False),
        (serial("ld.relaxed.gpu", "st.release.gpu"), False),
        (serial("ld.volatile", "st.volatile", "", FENCE), False),
        (serial("ld.volatile", "st.volatile", FENCE), False),
        (serial("ld.acquire.cta", "st.release.gpu"), False),
        (serial("ld.acquire.gpu", "st.release.cta"), False),
        (serial("ld.acquire.gpu", "st.release.gpu").replace("__syncthreads(); // all have written", ""), False),
    ],
)
def test_blocks_that_add_one_after_another(source, legal):
    if legal:
        check(source, ints(64), ints(1), grid=6)
    else:
        with pytest.raises(emulator.GlobalRace):
            check(source, ints(64), ints(1), grid=6)


def test_a_chain_of_blocks_hands_on_what_it_received():
    # Block 2 reads the value that block 0 wrote, and knows of it through block 1 only.
    source = """__device__ int load(const int* p) {
        int v; asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v;
    }
    __device__ void store(int* p) { asm volatile("st.release.gpu.global.b32 [%0], 1;" :: "l"(p) : "memory"); }
    extern "C" __global__ void kernel(int* data, int* flag, int* out) {
        int b = blockIdx.x;
        if (b > 0) while (load(flag + b - 1) == 0) {}
        if (b == 0) *data = 42;
        if (b == 2) *out = *data;
        store(flag + b); }"""
    message = twins(
        source,
        "load(flag + b - 1) == 0",
        emulator.GlobalRace,
        ints(1),
        ints(3),
        ints(1),
        grid=3,
        block=1,
        instead="b == 2 ? false : load(flag + b - 1) == 0",
    )
    assert "unordered with another thread's read" in message


def test_a_plain_flag_is_a_race():
    with pytest.raises(emulator.GlobalRace):
        check("int* f) { if (threadIdx.x == 0) *f = 1; if (threadIdx.x == 40) while (*(volatile int*)f == 0) {} }", ints(1))


def test_reductions_acquire_nothing():
    source = """int* data, int* flag, int* out) {
        if (blockIdx.x == 0 && threadIdx.x == 0) { *data = 1; __threadfence(); atomicExch(flag, 1); }
        if (blockIdx.x == 1 && threadIdx.x == 0) {
            asm volatile("{.reg .b32 %%old; OBSERVE}" :: "l"(flag) : "memory");
            __threadfence(); *out = *data; } }"""
    atom, red = "atom.global.add.u32 %%old, [%0], 1;", "red.global.add.u32 [%0], 1;"
    message = twins(
        source.replace("OBSERVE", atom), atom, emulator.GlobalRace, ints(1), ints(1), ints(1), grid=2, instead=red, lanes_per_wave=1
    )
    assert "global memory race: read of" in message


def test_histograms_need_no_fences():
    assert not check(
        "int* bins) { for (int i = 0; i < 9; ++i) atomicAdd(&bins[(threadIdx.x * i) & 7], 1); __threadfence(); }", ints(8), grid=9
    ).findings


def test_whoever_saw_a_message_may_take_it_out():
    # The plain write follows a strong read that has seen the other block's strong write.
    source = """unsigned long long* mail, int* out) {
        if (threadIdx.x == 0 && blockIdx.x == 1) __nv_atomic_store_n(mail, 7ull, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
        if (threadIdx.x == 0 && blockIdx.x == 0) {
            unsigned long long letter = 0;
            while (letter == 0) letter = __nv_atomic_load_n(mail, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
            *out = letter; }
        __syncthreads();
        if (threadIdx.x == 9 && blockIdx.x == 0) *mail = 0; }"""
    assert "global memory race: write of" in twins(source, "__syncthreads();", emulator.GlobalRace, np.zeros(1, np.uint64), ints(1), grid=2)
