"""Hazards between engines and threads: a clean kernel, and one that lacks a fence, a barrier or a wait."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import TensorMap

from .prelude import run


def twins(body: str, remove: str, error: type[emulator.EmulatorError], *args, instead: str = "", **kwargs) -> str:
    """A kernel is clean; with `remove` replaced it has a hazard, whose message is returned."""
    assert remove in body
    run(body, *args, hazards=True, **kwargs)
    with pytest.raises(error) as raised:
        run(body.replace(remove, instead), *args, hazards=True, strict=True, **kwargs)
    return str(raised.value)


DATA = np.arange(1024, dtype=np.float32)
STORE = """KERNEL(const __grid_constant__ CUtensorMap map, float* plain) {
    __shared__ __align__(1024) float tile[1024];
    for (int i = threadIdx.x; i < 1024; i += 128) tile[i] = plain[i];
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) { store_tile(&map, tile, 0, 0); commit(); wait_group_read<0>(); }
    __syncthreads();
    tile[threadIdx.x] = 0;
}"""


def out_map(array: np.ndarray | None = None) -> TensorMap:
    return TensorMap("f32", (32, 32), (128,), (32, 32), base=np.zeros((32, 32), np.float32) if array is None else array)


def test_generic_writes_need_a_fence_before_a_store():
    message = twins(STORE, "fence_async();", emulator.MissingProxyFence, out_map(), DATA)
    assert "shared tile[0], which threads have written" in message and "tile[i] = plain[i]" in message and "store_tile" in message


def test_fence_by_issuing_thread_behind_barrier_will_do():
    moved = STORE.replace("fence_async();\n", "\n").replace("{ store_tile", "{ fence_async(); store_tile")
    assert not run(moved, out_map(), DATA, hazards=True).findings


def test_a_fence_by_a_thread_in_between_will_do():
    moved = STORE.replace("fence_async();\n    __syncthreads();", "__syncthreads(); if (threadIdx.x == 77) fence_async(); __syncthreads();")
    assert not run(moved, out_map(), DATA, hazards=True).findings


def test_a_fence_before_the_write_will_not():
    early = STORE.replace("fence_async();\n", "\n").replace("    for (int i", "    fence_async(); for (int i")
    with pytest.raises(emulator.MissingProxyFence):
        run(early, out_map(), DATA, hazards=True)


def test_threads_that_write_have_to_meet_the_one_that_stores():
    message = twins(STORE, "fence_async();\n    __syncthreads();", emulator.SharedRace, out_map(), DATA, instead="fence_async();")
    assert "store_tile" in message


def test_the_source_of_a_store_must_stay_until_it_is_read():
    message = twins(STORE, "wait_group_read<0>();", emulator.InFlightWrite, out_map(), DATA)
    assert "may still be reading" in message and "tile[threadIdx.x] = 0" in message and "(byte 0 of tile)" in message


def test_others_may_overwrite_the_source_behind_a_barrier_only():
    assert "shared memory race: write of shared tile" in twins(
        STORE, "wait_group_read<0>(); }\n    __syncthreads();", emulator.EmulatorError, out_map(), DATA, instead="wait_group_read<0>(); }"
    )


def test_a_group_that_was_not_committed_is_not_waited_for():
    assert "which an asynchronous operation may still be reading" in twins(STORE, "commit(); ", emulator.InFlightWrite, out_map(), DATA)


def test_a_wait_may_leave_no_group_too_many():
    assert "which an asynchronous operation may still be reading" in twins(
        STORE, "wait_group_read<0>", emulator.InFlightWrite, out_map(), DATA, instead="wait_group_read<1>"
    )


def test_a_block_must_not_end_before_its_stores_have_read():
    body = STORE.replace("tile[threadIdx.x] = 0;", "")
    assert "ends while" in twins(body, "wait_group_read<0>();", emulator.UnfinishedStore, out_map(), DATA)
    stored = np.zeros((32, 32), np.float32)
    result = run(body.replace("wait_group_read<0>();", ""), out_map(stored), DATA, hazards=True)
    assert [finding.severity for finding in result.findings] == ["warning"]
    assert (stored.reshape(-1) == DATA).all()


LOAD = """KERNEL(const __grid_constant__ CUtensorMap map, float* out) {
    __shared__ __align__(1024) float tile[2][1024]; __shared__ u64 bar[2];
    if (threadIdx.x == 0) { init(bar, 1); init(bar + 1, 1); fence_init(); }
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive_expect(bar, 4096); load_tile(tile[0], &map, bar, 0, 0);
        arrive_expect(bar + 1, 4096); load_tile(tile[1], &map, bar + 1, 0, 16);
    }
    wait(bar, 0);
    float a = tile[0][threadIdx.x];
    wait(bar + 1, 0);
    out[threadIdx.x] = a + tile[1][threadIdx.x];
}"""


def load_args() -> tuple[TensorMap, np.ndarray]:
    return out_map(DATA.reshape(32, 32)), np.zeros(128, np.float32)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_loaded_data_is_there_behind_its_own_barrier_only(seed):
    schedule = {} if seed is None else {"schedule": emulator.RandomWarps(seed)}
    for remove in ("wait(bar + 1, 0);", "wait(bar, 0);"):
        assert "read of shared" in twins(LOAD, remove, emulator.EmulatorError, *load_args(), **schedule)


def test_one_thread_that_waits_does_not_wait_for_the_others():
    for seed in (1, 2, 3):
        message = twins(
            LOAD,
            "wait(bar + 1, 0);",
            emulator.EmulatorError,
            *load_args(),
            instead="if (threadIdx.x < 32) wait(bar + 1, 0);",
            schedule=emulator.RandomWarps(seed),
        )
        assert "read of shared" in message


def test_one_thread_may_wait_for_all_before_a_barrier():
    body = LOAD.replace("wait(bar, 0);", "if (threadIdx.x == 5) { wait(bar, 0); wait(bar + 1, 0); } __syncthreads();")
    assert not run(body.replace("    wait(bar + 1, 0);\n", ""), *load_args(), hazards=True).findings


@pytest.mark.parametrize("remove", ["fence_init();"])
def test_tma_needs_a_fence_after_the_initialisation(remove):
    message = twins(LOAD, remove, emulator.MissingInitFence, *load_args())
    assert "in init(" in message and "in load_tile(" in message
    run(LOAD.replace(remove, "fence_async();"), *load_args(), hazards=True)


def test_others_may_use_a_barrier_behind_its_initialisation_only():
    assert "need not know of its initialisation" in twins(LOAD, "__syncthreads();", emulator.EarlyBarrierUse, *load_args())


def test_wrong_parity_passes_too_early():
    assert "nobody has seen the completion of a phase" in twins(
        LOAD, "wait(bar, 0);", emulator.InFlightRead, *load_args(), instead="wait(bar, 1);"
    )


def test_bytes_that_never_come_are_told_with_every_barrier():
    message = twins(LOAD, "arrive_expect(bar, 4096)", emulator.Deadlock, *load_args(), instead="arrive_expect(bar, 8192)")
    assert "phase 0, 0 of 1 arrivals pending, 4096 bytes still to come" in message and "127 others wait for phase 0" in message


def test_more_bytes_than_expected():
    assert "gets 2048 bytes more in phase 0 than were expected" in twins(
        LOAD, "arrive_expect(bar, 4096)", emulator.BarrierMisuse, *load_args(), instead="arrive_expect(bar, 2048)"
    )


def test_an_arrival_that_is_missing():
    message = twins(LOAD, "init(bar, 1)", emulator.Deadlock, *load_args(), instead="init(bar, 2)")
    assert "1 of 2 arrivals pending" in message


def test_a_barrier_that_was_never_initialised():
    assert "none has been initialised" in twins(LOAD, "init(bar + 1, 1);", emulator.BarrierMisuse, *load_args())


def test_a_barrier_is_not_initialised_twice():
    again = "init(bar + 1, 1); init(bar + 1, 1);"
    assert "initialised again" in twins(LOAD, "init(bar + 1, 1);", emulator.BarrierMisuse, *load_args(), instead=again)
    run(LOAD.replace("init(bar + 1, 1);", "init(bar + 1, 2); inval(bar + 1); init(bar + 1, 1);"), *load_args(), hazards=True)


def test_a_barrier_is_no_data():
    assert "only mbarrier instructions may touch it" in twins(
        LOAD, "float a =", emulator.BarrierMisuse, *load_args(), instead="*(volatile u64*)bar = 0; float a ="
    )


RING = """KERNEL(const __grid_constant__ CUtensorMap map, float* out, int steps) {
    constexpr int STAGES = 2;
    __shared__ __align__(1024) float tile[STAGES][256]; __shared__ u64 full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) { for (int s = 0; s < STAGES; ++s) { init(full + s, 1); init(empty + s, 3); } fence_init(); }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0)
            for (int k = 0; k < steps; ++k) {
                int s = k % STAGES, phase = k / STAGES & 1;
                wait(empty + s, phase ^ 1);
                arrive_expect(full + s, 1024);
                load_tile(tile[s], &map, full + s, 0, 8 * k);
            }
    } else {
        float sum = 0;
        for (int k = 0; k < steps; ++k) {
            int s = k % STAGES, phase = k / STAGES & 1;
            wait(full + s, phase);
            sum += tile[s][threadIdx.x - 32] + tile[s][threadIdx.x + 64];
            fence_async();
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(empty + s);
        }
        out[threadIdx.x - 32] = sum;
    }
}"""
ROWS = np.random.default_rng(5).integers(0, 100, (64, 32)).astype(np.float32)
RING_MISTAKES = {
    "slot not waited for": ("wait(empty + s, phase ^ 1);", ""),
    "producer's parity": ("wait(empty + s, phase ^ 1)", "wait(empty + s, phase)"),
    "consumer's parity": ("wait(full + s, phase)", "wait(full + s, phase ^ 1)"),
    "data not waited for": ("wait(full + s, phase);", ""),
    "arrival before the reading": ("wait(full + s, phase);", "wait(full + s, phase); if (threadIdx.x % 32 == 0) arrive(empty + s);"),
    "count of empty one too low": ("init(empty + s, 3)", "init(empty + s, 2)"),
    "count of empty one too high": ("init(empty + s, 3)", "init(empty + s, 4)"),
    "count of full": ("init(full + s, 1)", "init(full + s, 2)"),
    "no warp meets": ("__syncwarp();\n            if", "if"),
    "a stage less than indexed": ("tile[STAGES][256]", "tile[STAGES - 1][256]"),
    "stages share a slot": ("load_tile(tile[s]", "load_tile(tile[0]"),
    "wrong barrier completes": ("&map, full + s", "&map, full"),
    "too few bytes expected": ("arrive_expect(full + s, 1024)", "arrive_expect(full + s, 512)"),
    "too many bytes expected": ("arrive_expect(full + s, 1024)", "arrive_expect(full + s, 1040)"),
    "no bytes expected": ("arrive_expect(full + s, 1024)", "arrive(full + s)"),
    "phase of another ring": ("int s = k % STAGES, phase = k / STAGES & 1;\n            wait", "int s = k % STAGES, phase = k & 1;\n wait"),
    "one step too many": ("sum = 0;\n        for (int k = 0; k < steps", "sum = 0;\n        for (int k = 0; k <= steps"),
    "arrival by one consumer": ("if (threadIdx.x % 32 == 0) arrive(empty", "if (threadIdx.x == 32) arrive(empty"),
    "arrival by all lanes": ("if (threadIdx.x % 32 == 0) arrive(empty", "arrive(empty"),
    "no fence after the initialisation": ("fence_init();", ""),
    "no barrier after the initialisation": ("__syncthreads();", ""),
    "box of another size": ("load_tile(tile[s], &map, full + s, 0, 8 * k)", "load_tile(tile[s], &map, full + s, 0, 8 * k + 1)"),
}


def ring(body: str, **kwargs) -> np.ndarray:
    out = np.zeros(96, np.float32)
    run(body, TensorMap("f32", (32, 64), (128,), (32, 8), base=ROWS), out, 8, hazards=True, **kwargs)
    return out


def ring_sums() -> np.ndarray:
    slots = ROWS.reshape(8, 256)
    return (slots[:, :96] + slots[:, 96:192]).sum(axis=0)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_ring_of_slots_is_clean(seed):
    got = ring(RING, **({} if seed is None else {"schedule": emulator.RandomCrowds(seed)}))
    np.testing.assert_array_equal(got, ring_sums())


@pytest.mark.parametrize("mistake", RING_MISTAKES)
def test_a_mistake_in_a_ring_is_found(mistake):
    old, new = RING_MISTAKES[mistake]
    assert old in RING
    try:
        got = ring(RING.replace(old, new), step_limit=20_000)
    except emulator.EmulatorError:
        return
    assert not np.array_equal(got, ring_sums())


SEEN = """KERNEL(float* out, float* copy) {
    __shared__ __align__(16) float tile[64];
    tile[threadIdx.x] = threadIdx.x; fence_async(); __syncthreads();
    if (threadIdx.x == 0) { store_bulk(out, tile, 256); commit(); wait_group<0>(); }
    __syncthreads();
    copy[threadIdx.x] = ((volatile float*)out)[threadIdx.x];
}"""


def test_what_a_bulk_copy_wrote_is_there_behind_its_wait():
    args = np.zeros(64, np.float32), np.zeros(64, np.float32)
    message = twins(SEEN, "wait_group<0>()", emulator.GlobalRace, *args, instead="wait_group_read<0>()", block=64)
    assert "the bulk copies of thread (0,0,0)" in message
    twins(SEEN, "wait_group<0>(); }\n    __syncthreads();", emulator.GlobalRace, *args, instead="wait_group<0>(); }", block=64)


def test_blocks_may_reduce_into_one_place():
    body = SEEN.replace(
        "store_bulk(out, tile, 256);",
        """asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;"
        :: "l"(out), "r"(shared_address(tile)) : "memory");""",
    ).replace("copy[threadIdx.x] = ((volatile float*)out)[threadIdx.x];", "")
    out = np.zeros(64, np.float32)
    run(body, out, out.copy(), grid=3, block=64, hazards=True)
    np.testing.assert_array_equal(out, 3 * np.arange(64))


def test_a_box_may_begin_at_any_row_and_at_any_16_bytes():
    assert not run(LOAD.replace("bar, 0, 0)", "bar, 16, 3)"), *load_args(), hazards=True).findings
