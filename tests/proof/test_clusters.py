"""Kernels whose blocks form clusters: their rings and shared memory are proved for every problem, and no mistake in them is."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.prover import KernelProof, prove_kernel
from gemmgen.toolchain.compilation import compile_plan

SECONDS = 30.0
PROVED = {"memory", "races", "once", "progress", "initialised", "complete"}
PAIR, SPLIT = "gemm/wgmma/bf16_decode/32_pair", "gemm/wgmma/bf16_decode/16_k2"


@cache
def kernel(name: str) -> tuple[LaunchSequence, str]:
    """A small kernel of clusters of two blocks with three stages, and its PTX."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()[name], ["mainloop.stages=3", "mainloop.tile.k=64"]))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, compile_plan(plan).ptx


def proof_of(name: str, ptx: str) -> KernelProof:
    sequence, _ = kernel(name)
    return prove_kernel(sequence, sequence.launches[0], ptx, SECONDS)


@pytest.mark.parametrize("name", [PAIR, SPLIT])
def test_kernels_of_clusters_are_proved(name: str) -> None:
    proof = proof_of(name, kernel(name)[1])
    assert {*proof.proved} == PROVED, [each.reasons for each in proof.properties]


def changed(pattern: str, into: str, which: int = 0) -> Callable[[str], str]:
    """Replaces one place where a pattern is found, with its groups by number."""

    def change(ptx: str) -> str:
        found = list(re.finditer(pattern, ptx))[which]
        return ptx[: found.start()] + found.expand(into) + ptx[found.end() :]

    return change


def without(pattern: str, which: int = 0) -> Callable[[str], str]:
    return changed(pattern, "", which)


MEETING = r"barrier\.cluster\.arrive;\s*barrier\.cluster\.wait;"
MULTICAST = r"\.multicast::cluster (\[%r\d+\], \[%rd\d+, \{%r\d+, %r\d+\}\], \[%r\d+\]), %rs\d+;"
REMOTE_ARRIVAL = r"mbarrier\.arrive\.shared::cluster\.b64 _, (\[%r\d+\]);"
MAPPED = r"mapa\.shared::cluster\.u32 (%r\d+), (%r\d+), (%r\d+);"
FAR_STORE = r"st\.shared::cluster\.v4\.f32 \[(%r\d+)\], (\{[^}]*\});"
RANK = r"mov\.u32 (%r\d+), %cluster_ctarank;"


def read_early(ptx: str) -> str:
    """A load of the sums moved in front of the meeting."""
    load = next(re.finditer(r"ld\.shared\.v4\.f32[^;]*;", ptx))
    meeting = list(re.finditer(MEETING, ptx))[1]
    return ptx[: meeting.start()] + load[0] + "\n" + ptx[meeting.start() : load.start()] + ptx[load.end() :]


OF_PAIRS: dict[str, tuple[Callable[[str], str], str]] = {
    "no meeting at the end": (without(MEETING, 1), "races"),
    "the block alone meets at the end": (changed(MEETING, "bar.sync 0;", 1), "races"),
    "the block alone meets at the beginning": (changed(MEETING, "bar.sync 0;", 0), "races"),
    "no meeting at the beginning": (without(MEETING, 0), "races"),
    "an arrival without a wait at the end": (changed(MEETING, "barrier.cluster.arrive;", 1), "progress"),
    "a wait without an arrival at the end": (changed(MEETING, "barrier.cluster.wait;", 1), "progress"),
    "the meeting orders nothing": (changed(MEETING, "barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;", 0), "races"),
    "barriers are not made visible": (without(r"fence\.mbarrier_init[^;]*;"), "races"),
    "barriers are made visible behind the arrival": (
        lambda ptx: changed(r"(barrier\.cluster\.arrive;)", r"\1\nfence.mbarrier_init.release.cluster;")(
            without(r"fence\.mbarrier_init[^;]*;")(ptx)
        ),
        "races",
    ),
    "readers release at one block": (changed(r"setp\.gt\.u32(\s+%p\d+, %r\d+,) 1;", r"setp.gt.u32\1 0;"), "races"),
    "slots are refilled before the other block's readers release them": (
        lambda ptx: re.sub(
            r"setp\.gt\.u32(\s+%p\d+, %r\d+,) 1;",
            r"setp.gt.u32\1 0;",
            re.sub(
                MAPPED,
                rf"mapa.shared::cluster.u32 \1, \2, {re.findall(RANK, ptx)[0]};",
                re.sub(r"mov\.u32(\s+%r\d+,) 8;", r"mov.u32\1 4;", ptx),
            ),
        ),
        "races",
    ),
    "three lanes release": (changed(r"setp\.gt\.u32(\s+%p\d+, %r\d+,) 1;", r"setp.gt.u32\1 2;"), "races"),
    "both arrivals at the first block": (changed(MAPPED, r"mapa.shared::cluster.u32 \1, \2, 0;", 0), "races"),
    "arrivals at a block beyond the cluster": (
        changed(MAPPED, r"add.u32 \3, \3, 1;\nmapa.shared::cluster.u32 \1, \2, \3;", 0),
        "memory",
    ),
    "arrivals at the next slot": (changed(MAPPED, r"add.u32 \2, \2, 8;\nmapa.shared::cluster.u32 \1, \2, \3;", 0), "races"),
    "arrivals at the own block alone": (
        lambda ptx: re.sub(REMOTE_ARRIVAL, r"mbarrier.arrive.shared::cta.b64 _, \1;", re.sub(MAPPED, r"mov.u32 \1, \2;", ptx)),
        "races",
    ),
    "a release is missing": (without(REMOTE_ARRIVAL, 0), "progress"),
    "the last release of a tile is missing": (without(REMOTE_ARRIVAL, 1), "progress"),
    "a slot is released twice": (changed(REMOTE_ARRIVAL, r"\g<0>\n\g<0>", 0), "races"),
    "a slot is released before its products end": (
        changed(r"wgmma\.wait_group\.sync\.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
        "races",
    ),
    "barriers count one block's warps": (changed(r"mov\.u32(\s+%r\d+,) 8;", r"mov.u32\1 4;"), "races"),
    "barriers count more warps": (changed(r"mov\.u32(\s+%r\d+,) 8;", r"mov.u32\1 9;"), "progress"),
    "bytes of the own copies are promised": (changed(r"mov\.u32(\s+%r\d+,) 12288;", r"mov.u32\1 10240;"), "races"),
    "more bytes are promised": (changed(r"mov\.u32(\s+%r\d+,) 12288;", r"mov.u32\1 12304;"), "progress"),
    "the shared box is copied to one block": (changed(r"mov\.u16(\s+%rs\d+,) 3;", r"mov.u16\1 1;"), "progress"),
    "the shared box is copied to the other block": (changed(r"mov\.u16(\s+%rs\d+,) 3;", r"mov.u16\1 2;"), "progress"),
    "the shared box is copied beyond the cluster": (changed(r"mov\.u16(\s+%rs\d+,) 3;", r"mov.u16\1 7;"), "memory"),
    "the shared box is no multicast": (changed(MULTICAST, r" \1;"), "progress"),
    "the shared box is copied twice": (changed(r"(cp\.async\.bulk\.tensor[^;]*)" + MULTICAST, r"\g<0>\n\g<0>"), "races"),
    "all boxes are copied to both blocks": (
        changed(r"(complete_tx::bytes) (\[%r\d+\], \[%rd\d+, \{%r\d+, %r\d+\}\], \[%r\d+\]);", r"\1.multicast::cluster \2, 3;"),
        "progress",
    ),
    "a box is copied into the other block's slot": (
        changed(
            r"(cp\.async\.bulk\.tensor[^;[]*complete_tx::bytes) \[(%r\d+)\], (\[%rd\d+, \{%r\d+, %r\d+\}\], \[%r\d+\]);",
            r"mapa.shared::cluster.u32 \2, \2, 1;\n\1 [\2], \3;",
        ),
        "races",
    ),
    "a part of a warp waits as a whole one": (
        changed(MEETING, "barrier.cluster.arrive;\nbarrier.cluster.wait.aligned;", 1),
        "progress",
    ),
    "the filler waits for no slot": (changed(r"mbarrier\.try_wait\.parity[^;]*;", "setp.eq.s32 p, 0, 0;", 1), "races"),
    "readers wait for no slot": (changed(r"mbarrier\.try_wait\.parity[^;]*;", "setp.eq.s32 p, 0, 0;", 0), "races"),
    "the filler's parity is the readers'": (changed(r"xor\.b32\s+(%r\d+), (%r\d+), 1;", r"mov.b32 \1, \2;"), "races"),
    "both blocks copy the same rows of a slot": (
        lambda ptx: re.sub(RANK, r"mov.u32 \1, %cluster_ctarank;\nmov.u32 \1, 0;", ptx, count=1),
        "races",
    ),
    "the cluster's index differs within it": (
        changed(r"shr\.u32(\s+%r\d+, %r\d+,) 1;", r"shr.u32\1 0;", 0),
        "races",
    ),
    "both clusters of two have one index": (changed(r"shr\.u32(\s+%r\d+, %r\d+,) 1;", r"shr.u32\1 2;", 1), "once"),
}
OF_SUMS: dict[str, tuple[Callable[[str], str], str]] = {
    "no meeting before the sums are read": (changed(MEETING, "", 1), "races"),
    "the block alone meets before the sums are read": (changed(MEETING, "bar.sync 1, 128;", 1), "races"),
    "the fillers do not meet": (without(MEETING, 2), "progress"),
    "no block meets after the beginning": (lambda ptx: without(MEETING, 1)(without(MEETING, 2)(ptx)), "races"),
    "the block alone meets at the beginning": (changed(MEETING, "bar.sync 0;", 0), "progress"),
    "the meeting orders nothing": (changed(MEETING, "barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;", 1), "initialised"),
    "sums go to the own block": (changed(MAPPED, r"mapa.shared::cluster.u32 \1, \2, 1;"), "initialised"),
    "sums go to a third block": (changed(MAPPED, r"mapa.shared::cluster.u32 \1, \2, 2;"), "memory"),
    "sums go to the slots": (changed(MAPPED, r"sub.u32 \2, \2, 2048;\n\g<0>"), "races"),
    "sums go to the barriers": (changed(MAPPED, r"add.u32 \2, \2, 64;\n\g<0>"), "races"),
    "sums go beyond shared memory": (changed(MAPPED, r"add.u32 \2, \2, 8192;\n\g<0>"), "memory"),
    "sums are not aligned": (changed(MAPPED, r"add.u32 \2, \2, 8;\n\g<0>"), "memory"),
    "threads store to one place": (changed(r"shl\.b32(\s+%r\d+, %r\d+,) 4;", r"shl.b32\1 3;", 0), "races"),
    "a sum is not stored": (without(FAR_STORE, 1), "initialised"),
    "two sums at one place": (
        changed(r"add\.s32(\s+%r\d+, %r\d+,) 2048;(?=\s*(?:\.loc[^\n]*\s*|//[^\n]*\s*)*st\.shared::cluster)", r"add.s32\1 0;"),
        "initialised",
    ),
    "half of the threads' sums at others' places": (
        changed(r"add\.s32(\s+%r\d+, %r\d+,) 2048;(?=\s*(?:\.loc[^\n]*\s*|//[^\n]*\s*)*st\.shared::cluster)", r"add.s32\1 1024;"),
        "races",
    ),
    "sums are stored to shared::cta": (changed(FAR_STORE, r"st.shared::cta.v4.f32 [\1], \2;"), "memory"),
    "all blocks store sums": (changed(r"setp\.lt\.s32(\s+%p\d+, %r\d+,) 1;(?=[^{]*mapa)", r"setp.lt.s32\1 0;"), "races"),
    "no block stores sums": (changed(r"setp\.lt\.s32(\s+%p\d+, %r\d+,) 1;(?=[^{]*mapa)", r"setp.lt.s32\1 9;"), "initialised"),
    "all blocks store the result": (changed(r"mov\.pred(\s+%p\d+), -1;", r"mov.pred\1, 0;"), "once"),
    "the sums are read at other places": (
        changed(r"ld\.shared\.v4\.f32(\s+\{[^}]*\}), \[(%r\d+)\]", r"ld.shared.v4.f32\1, [\2+4096]", 0),
        "initialised",
    ),
    "sums are read before the blocks meet": (
        read_early,
        "races",
    ),
    "the filler's slice is longer": (
        changed(r"add\.s32(\s+%r\d+, %r\d+,) 1;(?=[^;]*;[^;]*;[^;]*shr\.s32)", r"add.s32\1 3;", -1),
        "progress",
    ),
    "a release is missing": (without(r"mbarrier\.arrive\.shared::cta\.b64 _,[^;]*;", 0), "progress"),
    "an address elsewhere is shifted": (
        changed(MAPPED, r"\g<0>\nshl.b32 \1, \1, 1;"),
        "races",
    ),
}


@pytest.mark.parametrize("mistake", OF_PAIRS)
def test_a_mistake_in_a_shared_ring_is_not_proved(mistake: str) -> None:
    change, wrong = OF_PAIRS[mistake]
    ptx = kernel(PAIR)[1]
    mutant = change(ptx)
    assert mutant != ptx
    assert wrong not in proof_of(PAIR, mutant).proved


@pytest.mark.parametrize("mistake", OF_SUMS)
def test_a_mistake_in_sums_of_a_cluster_is_not_proved(mistake: str) -> None:
    change, wrong = OF_SUMS[mistake]
    ptx = kernel(SPLIT)[1]
    mutant = change(ptx)
    assert mutant != ptx
    assert wrong not in proof_of(SPLIT, mutant).proved


def test_barriers_of_a_cluster_may_name_their_order() -> None:
    ptx = kernel(SPLIT)[1]
    spelled = re.sub(MEETING, "barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;", ptx)
    assert spelled != ptx
    assert {*proof_of(SPLIT, spelled).proved} == PROVED
