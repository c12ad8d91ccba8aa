"""The asynchronous instructions form by form: where each is tested, and kernels for those that no other test has."""

import re
from pathlib import Path

import numpy as np
import pytest

from gemmgen import emulator

from .prelude import run

ENGINES = Path(__file__).parent
BLOCKS = """KERNEL(int* out) {
    __shared__ __align__(16) int box[64]; __shared__ __align__(16) int other[64]; __shared__ u64 bar, state;
    int t = threadIdx.x; (void)state;
    box[t] = t; other[t] = 10 * t;
    if (t == 0) { init(&bar, 1); fence_init(); }
    fence_async();
    cluster_sync();
    u32 b = shared_address(&bar), far = peer_address(&bar, rank() ^ 1), place = peer_address(&box[t], rank() ^ 1);
    (void)b; (void)far; (void)place;
    BODY
    cluster_sync();
    out[64 * blockIdx.x + t] = box[t];
}"""
LANES = np.arange(64)
FORMS = {
    "mbarrier.expect_tx": (
        """if (t == 0) { asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" :: "r"(b) : "memory"); arrive(&bar);
           asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" :: "r"(b) : "memory"); }
           wait(&bar, 0); box[t] += 1;""",
        LANES + 1,
    ),
    "mbarrier.arrive_drop.expect_tx": (
        """if (t == 0) { asm volatile("mbarrier.arrive_drop.expect_tx.release.cta.shared::cta.b64 _, [%0], 16;" :: "r"(b) : "memory");
           asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" :: "r"(b) : "memory"); }
           wait(&bar, 0); box[t] += 2;""",
        LANES + 2,
    ),
    "mbarrier.try_wait.shared": (
        """if (t == 0) asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
           __syncthreads();
           asm volatile("{.reg .pred p;\\nAGAIN: mbarrier.try_wait.shared::cta.b64 p, [%0], %1;\\n@!p bra AGAIN;}" 
             :: "r"(b), "l"(state) : "memory");
           box[t] += 3;""",
        LANES + 3,
    ),
    "mbarrier.try_wait with a time": (
        """if (t == 0) arrive(&bar);
           asm volatile("{.reg .pred p;\\nAGAIN: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], 0, 1000;\\n@!p bra AGAIN;}"
             :: "r"(b) : "memory"); box[t] += 4;""",
        LANES + 4,
    ),
    "mbarrier.test_wait.shared": (
        """if (t == 0) asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
           __syncthreads();
           u32 done; asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
             : "=r"(done) : "r"(b), "l"(state) : "memory"); box[t] += done;""",
        LANES + 1,
    ),
    "mbarrier.arrive at another block with a count": (
        """if (t == 0) asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], 1;" :: "r"(far) : "memory");
           asm volatile("{.reg .pred p;\\nAGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\\n@!p bra AGAIN;}"
             :: "r"(b) : "memory"); box[t] += 5;""",
        LANES + 5,
    ),
    "mbarrier.arrive.expect_tx at another block": (
        """if (t == 0) {
             asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], 4;" :: "r"(far) : "memory");
             asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" 
               :: "r"(place), "r"(77), "r"(far) : "memory"); }
           asm volatile("{.reg .pred p;\\nAGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\\n@!p bra AGAIN;}"
             :: "r"(b) : "memory");""",
        np.where(LANES == 0, 77, LANES),
    ),
    "st.async of a vector": (
        """if (t == 0) arrive_expect(&bar, 256);
           cluster_sync();
           if (t % 4 == 0) asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %1, %2, %2}, [%3];"
             :: "r"(place), "r"(t), "r"(-t), "r"(far) : "memory");
           wait(&bar, 0);""",
        np.where(LANES % 4 < 2, 1, -1) * (LANES // 4 * 4),
    ),
    "ld.shared::cluster and st.shared::cluster": (
        """int v; asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(peer_address(&other[t], rank() ^ 1)) : "memory");
           asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(place), "r"(v + 1) : "memory");""",
        10 * LANES + 1,
    ),
    "atom.shared::cluster and red.shared::cluster": (
        """u32 first = peer_address(&box[0], rank() ^ 1); int old;
           asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], 2;" : "=r"(old) : "r"(first) : "memory");
           asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" :: "r"(first) : "memory");""",
        np.where(LANES == 0, 64 * 3, LANES),
    ),
    "cp.reduce.async.bulk to another block": (
        """if (t == 0) arrive_expect(&bar, 256);
           cluster_sync();
           if (t == 0) asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32 "
             "[%0], [%1], 256, [%2];"
             :: "r"(peer_address(box, rank() ^ 1)), "r"(shared_address(other)), "r"(far) : "memory");
           wait(&bar, 0);""",
        11 * LANES,
    ),
    "cp.async.bulk.prefetch.L2": (
        """if (t == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], 256;" :: "l"(out) : "memory");""",
        LANES,
    ),
    "fence.proxy.async of one space": (
        """box[t] = 3 * t;
           asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
           __syncthreads();
           if (t == 0) { store_bulk(out + 64 * blockIdx.x, box, 256); commit(); wait_group<0>(); }""",
        3 * LANES,
    ),
    "barrier.cluster with its modifiers": (
        """asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(place), "r"(6) : "memory");
           asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
           box[t] += t;""",
        6 + LANES,
    ),
    "fence.acq_rel.cluster": (
        """asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(place), "r"(8) : "memory");
           asm volatile("fence.acq_rel.cluster;\\nbarrier.cluster.arrive.relaxed.aligned;\\nbarrier.cluster.wait.aligned;\\n"
             "fence.acq_rel.cluster;" ::: "memory");
           box[t] += 1;""",
        np.full(64, 9),
    ),
    "elect.sync": (
        """u32 who, leads; asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %1, 1, 0, p;}" : "=r"(who), "=r"(leads));
           box[t] += 100 * leads + who;""",
        LANES + 100 * (LANES % 32 == 0),
    ),
    "getctarank.shared::cluster": (
        """u32 r; asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(r) : "r"(place)); box[t] = r + rank();""",
        np.ones(64, np.int64),
    ),
}
"""Forms and kernels of two blocks that meet before and after; every block leaves the same 64 numbers."""
ELSEWHERE = {
    "mbarrier.init, mbarrier.inval": ("test_hazards.py", "test_a_barrier_is_not_initialised_twice", r"inval\(bar"),
    "mbarrier.arrive with counts, mbarrier.pending_count": ("test_mbarrier.py", "test_arrivals_of_several_at_once", r"\[%1\], 2;"),
    "mbarrier.arrive.noComplete": ("test_mbarrier.py", "test_an_arrival_that_does_not_complete", "noComplete"),
    "mbarrier.arrive_drop": ("test_mbarrier.py", "test_a_dropped_arrival_lowers_the_count_of_later_phases", "arrive_drop"),
    "mbarrier.complete_tx": ("test_mbarrier.py", "test_bytes_may_come_before_they_are_expected", "complete_tx"),
    "mbarrier.test_wait.parity": ("test_mbarrier.py", "test_parities_alternate", r"test_wait\.parity"),
    "mbarrier.test_wait of a state": ("test_mbarrier.py", "test_states_tell_their_phase", r"test_wait\.b64"),
    "cp.async.mbarrier.arrive": ("test_mbarrier.py", "test_copies_of_threads_arrive_when_they_land", "noinc"),
    "fence.mbarrier_init": ("test_hazards.py", "test_tma_needs_a_fence_after_the_initialisation", "fence_init"),
    "cp.async.bulk in and out": ("test_bulk_copy.py", "test_bytes_go_to_shared_memory_and_back", "store_bulk"),
    "cp.async.bulk between blocks": ("test_clusters.py", "test_bulk_copies_between_blocks", r"bulk\.shared::cluster\.shared::cta"),
    "cp.async.bulk with a mask of bytes": ("test_bulk_copy.py", "test_a_mask_of_bytes", "cp_mask"),
    "cp.reduce.async.bulk": ("test_bulk_copy.py", "test_reductions_into_global_memory", r"cp\.reduce\.async\.bulk"),
    "cp.async.bulk.wait_group and .read": ("test_hazards.py", "test_a_wait_may_leave_no_group_too_many", "wait_group_read"),
    "cp.async.bulk.tensor 1d to 5d": ("test_bulk_copy.py", "test_tiles_of_every_rank", r"tensor"),
    "cp.async.bulk.tensor, im2col": ("test_bulk_copy.py", "test_columns_of_pixels", "im2col"),
    "cp.async.bulk.tensor, store and reduce": (
        "test_bulk_copy.py",
        "test_boxes_are_stored_where_the_array_is",
        r"cp\.reduce\.async\.bulk\.tensor",
    ),
    "cp.async.bulk.tensor, multicast": ("test_clusters.py", "test_multicast_reaches_every_block_of_the_mask", "multicast::cluster"),
    "swizzles": ("test_tensor_copy.py", "test_a_box_lands_swizzled_and_filled", "64B"),
    "interleaved layouts": ("test_tensor_copy.py", "test_a_copy_leaves_what_an_h200_left", "interleave"),
    "fill with NaN": ("test_tensor_copy.py", "test_nan_fills_what_lies_outside", "nan"),
    "tensormap.replace": ("test_changed_maps.py", "test_a_map_takes_another_array", r"tensormap\.replace"),
    "st.async and red.async": ("test_clusters.py", "test_stores_that_signal_a_barrier", r"red\.async"),
    "mapa, getctarank, generic": ("test_clusters.py", "test_generic_addresses_and_atomics_reach_other_blocks", r"getctarank\.u64"),
    "registers of clusters": ("test_clusters.py", "test_special_registers_tell_the_cluster", "cluster"),
    "setmaxnreg and its pool": ("test_bulk_copy.py", "test_a_pool_has_so_many_registers", "setmaxnreg"),
    "griddepcontrol": ("test_dependent_launches.py", "test_what_comes_before_the_wait_is_a_hazard", "griddepcontrol"),
    "wgmma of every type": ("../test_wgmma.py", "test_small_integers_are_exact_in_every_type", "types"),
    "wgmma of every layout": ("../test_wgmma.py", "test_16_bit_operands_in_every_layout", "MN_MAJOR"),
    "wgmma, negation and scale-d": ("../test_wgmma.py", "test_operands_can_be_negated", "-1"),
    "wgmma, groups": ("../hazards/test_wgmma.py", "test_the_older_of_two_groups_is_there_before_the_newer", "wait"),
    "mma.sync of fp8": ("../test_tensor_core.py", "test_half_accumulators_equal_the_h200", "m16n8k32"),
}
"""Forms and where else they are tested: a file, a test, and words that the file has."""


@pytest.mark.parametrize("form", FORMS)
def test_a_form_does_what_it_says(form):
    body, expected = FORMS[form]
    out = np.zeros((2, 64), np.int32)
    result = run(BLOCKS.replace("BODY", body), out, grid=2, block=64, cluster=2, hazards=True)
    assert not result.findings
    np.testing.assert_array_equal(out, [expected, expected])


@pytest.mark.parametrize("form", ELSEWHERE)
def test_a_form_is_tested_elsewhere(form):
    file, test, words = ELSEWHERE[form]
    text = (ENGINES / file).read_text(encoding="utf-8")
    assert f"def {test}(" in text and re.search(words, text)


def test_a_relaxed_arrival_needs_its_fence():
    body, _ = FORMS["fence.acq_rel.cluster"]
    without = body.replace("fence.acq_rel.cluster;\\nbarrier.cluster.arrive", "barrier.cluster.arrive")
    with pytest.raises(emulator.SharedRace):
        run(BLOCKS.replace("BODY", without), np.zeros((2, 64), np.int32), grid=2, block=64, cluster=2, hazards=True)


def test_a_barrier_off_its_alignment_is_refused():
    body = 'asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" :: "r"(b - 4) : "memory");'
    with pytest.raises(emulator.EmulatorError, match="4 bytes past a multiple of 8"):
        run(BLOCKS.replace("BODY", body), np.zeros((2, 64), np.int32), grid=2, block=64, cluster=2)
