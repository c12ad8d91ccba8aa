"""mbarrier, one instruction at a time."""

import numpy as np
import pytest

from gemmgen import emulator

from .prelude import run

START = "KERNEL(u64* out) { __shared__ u64 bar; u32 b = shared_address(&bar); u64 s = 0, r = 0; u32 n = 0; (void)s; (void)r; (void)n; "
COUNT = 'asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(n) : "l"(s)); *out++ = n;'
TEST = """asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(n)
              : "r"(b), "r"(PARITY) : "memory"); *out++ = n;"""


def outputs(body: str, count: int) -> list[int]:
    out = np.zeros(count, np.uint64)
    run(START + body.replace("COUNT;", COUNT) + "}", out, block=1)
    return out.tolist()


def test_arrivals_count_down_and_begin_again():
    arrival = 'asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(s) : "r"(b) : "memory"); COUNT;'
    assert outputs("init(&bar, 3);" + 5 * arrival, 5) == [3, 2, 1, 3, 2]


def test_arrivals_of_several_at_once():
    arrival = 'asm volatile("mbarrier.arrive.shared.b64 %0, [%1], 2;" : "=l"(s) : "r"(b) : "memory"); COUNT;'
    assert outputs("init(&bar, 4);" + 3 * arrival, 3) == [4, 2, 4]


def test_a_dropped_arrival_lowers_the_count_of_later_phases():
    drop = 'asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(s) : "r"(b) : "memory"); COUNT;'
    arrival = drop.replace("arrive_drop", "arrive")
    assert outputs("init(&bar, 2);" + drop + 3 * arrival, 4) == [2, 1, 1, 1]


def test_parities_alternate():
    tests = "".join(TEST.replace("PARITY", str(parity)) for parity in (0, 1))
    assert outputs("init(&bar, 1);" + tests + "arrive(&bar);" + tests + "arrive(&bar);" + tests, 6) == [0, 1, 1, 0, 0, 1]


def test_states_tell_their_phase():
    body = """init(&bar, 2);
        asm volatile("mbarrier.arrive.b64 %0, [%1];" : "=l"(s) : "l"(&bar) : "memory");
        TEST arrive(&bar); TEST
        asm volatile("mbarrier.arrive.b64 %0, [%1];" : "=l"(s) : "l"(&bar) : "memory"); TEST"""
    question = """asm volatile("{.reg .pred p; mbarrier.test_wait.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(n) : "l"(&bar), "l"(s)
                  : "memory"); *out++ = n;"""
    assert outputs(body.replace("TEST", question), 3) == [0, 1, 0]


def test_bytes_are_owed_until_they_come():
    tx = 'asm volatile("mbarrier.{}.relaxed.cta.shared::cta.b64 [%0], {};" :: "r"(b) : "memory");'
    test = TEST.replace("PARITY", "0")
    body = "init(&bar, 1);" + tx.format("expect_tx", 48) + "arrive(&bar);" + test + tx.format("complete_tx", 16) + test
    assert outputs(body + tx.format("complete_tx", 32) + test, 3) == [0, 0, 1]


def test_bytes_may_come_before_they_are_expected():
    tx = 'asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 48;" :: "r"(b) : "memory");'
    test = TEST.replace("PARITY", "0")
    assert outputs("init(&bar, 1);" + tx + test + "arrive_expect(&bar, 48);" + test, 2) == [0, 1]


def test_an_arrival_that_does_not_complete():
    arrival = 'asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 1;" : "=l"(s) : "r"(b) : "memory"); COUNT;'
    assert outputs("init(&bar, 2);" + arrival, 1) == [2]
    with pytest.raises(emulator.BarrierMisuse, match="promises not to"):
        outputs("init(&bar, 1);" + arrival, 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("init(&bar, 0);", "1 to 1048575 are possible"),
        ("init(&bar, 2); arrive(&bar, 3);", "gets 3 arrivals at once where 2 of 2 are pending"),
        ("init(&bar, 1); arrive_expect(&bar, 16); arrive(&bar);", "an arrival more than its count of 1 in phase 0"),
        ("init(&bar, 1); arrive_expect(&bar, 1 << 20);", "it can count to 1048575"),
        ("arrive(&bar);", "none has been initialised there"),
        ("init(&bar, 1); inval(&bar); arrive(&bar);", "none has been initialised there"),
        ("init(&bar, 1); r = bar; *out = r;", "only mbarrier instructions may touch it"),
    ],
)
def test_what_a_barrier_must_not_be_asked(body, message):
    with pytest.raises(emulator.BarrierMisuse, match=message):
        outputs(body, 1)


def test_a_barrier_is_aligned():
    with pytest.raises(emulator.Misaligned):
        run("KERNEL() { __shared__ u64 bar[2]; init((u64*)((char*)bar + 4), 1); }", block=1)


WAIT = """KERNEL(int* out) {
    __shared__ u64 bar; __shared__ int value;
    if (threadIdx.x == 0) init(&bar, 32);
    __syncthreads();
    if (threadIdx.x < 32) { if (threadIdx.x == 7) value = 42; __syncwarp(); arrive(&bar); }
    else { HINT(&bar, 0); out[threadIdx.x - 32] = value; }
}"""
LOOP = 'asm volatile("{.reg .pred p; L: mbarrier.FORM p, [%0], 0EXTRA; @!p bra L;}" :: "r"(shared_address(&bar)))'
HINTS = {
    "try": LOOP.replace("FORM", "try_wait.parity.shared::cta.b64").replace("EXTRA", ""),
    "time": LOOP.replace("FORM", "try_wait.parity.acquire.cta.shared::cta.b64").replace("EXTRA", ", 1000"),
    "test": LOOP.replace("FORM", "test_wait.parity.shared.b64").replace("EXTRA", ""),
}


@pytest.mark.parametrize("hint", HINTS)
def test_waits_take_no_steps_and_order_memory(hint):
    out = np.zeros(32, np.int32)
    result = run(WAIT.replace("HINT(&bar, 0)", HINTS[hint]), out, block=64, hazards=True)
    assert (out == 42).all() and result.steps < 20


def test_a_try_gives_up_where_nothing_else_can_happen():
    body = """KERNEL(int* out) { __shared__ u64 bar; init(&bar, 1); u32 done, tries = 0;
        do { asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                          : "=r"(done) : "r"(shared_address(&bar)) : "memory");
             if (!done && ++tries == 1) arrive(&bar); } while (!done);
        *out = tries; }"""
    out = np.zeros(1, np.int32)
    run(body, out, block=1)
    assert out[0] == 1


CP_ASYNC = """KERNEL(const int* in, int* out) {
    __shared__ int tile[64]; __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar, COUNT);
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(shared_address(&tile[threadIdx.x])), "l"(in + threadIdx.x));
    asm volatile("cp.async.mbarrier.arrive.NOINC.b64 [%0];" :: "r"(shared_address(&bar)));
    EXTRA
    wait(&bar, 0);
    out[threadIdx.x] = tile[threadIdx.x ^ 1];
}"""


@pytest.mark.parametrize(
    ("noinc", "count", "extra"), [("noinc.shared::cta", 64, ""), ("shared::cta", 1, "if (threadIdx.x == 0) arrive(&bar);")]
)
def test_copies_of_threads_arrive_when_they_land(noinc, count, extra):
    body = CP_ASYNC.replace("NOINC", noinc).replace("COUNT", str(count)).replace("EXTRA", extra or "")
    data, out = np.arange(64, dtype=np.int32) + 7, np.zeros(64, np.int32)
    if extra:
        body = body.replace("wait(&bar, 0)", "__syncthreads(); wait(&bar, 0)").replace(
            "if (threadIdx.x == 0) arrive", "__syncthreads(); if (threadIdx.x == 0) arrive"
        )
    run(body, data, out, block=64, hazards=True)
    np.testing.assert_array_equal(out, data.reshape(-1, 2)[:, ::-1].ravel())
    with pytest.raises(emulator.InFlightRead):
        run(body.replace("wait(&bar, 0);", ""), data, out, block=64)
