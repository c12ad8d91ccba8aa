"""Kernels compiled as a whole: the same memory, counts and findings as lane by lane; possible hazards are given up."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.emulator import Device, launch, native_threads
from gemmgen.emulator.device import DeviceLaunch
from gemmgen.emulator.memory import GLOBAL_BASE
from gemmgen.emulator.program import link
from tests.emulator.test_native import needs_compiler

BLOCKS, THREADS = 3, 96
BYTES = BLOCKS * THREADS * 4
KERNEL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 kernel_x, .param .u64 kernel_y, .param .u64 kernel_z)
{
  .reg .u32 %r<30>; .reg .u64 %rd<20>; .reg .f32 %f<9>; .reg .pred %p<9>;
  .shared .align 16 .b8 tile[384];
  .local .align 8 .b8 own[16];
  ld.param.u64 %rd1, [kernel_x]; ld.param.u64 %rd2, [kernel_y]; ld.param.u64 %rd3, [kernel_z];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd4, %r4, 4; add.u64 %rd5, %rd1, %rd4; add.u64 %rd6, %rd2, %rd4; add.u64 %rd7, %rd3, %rd4;
  mov.u32 %r5, tile; shl.b32 %r6, %r1, 2; add.u32 %r7, %r5, %r6; xor.b32 %r8, %r6, 64; add.u32 %r9, %r5, %r8;
  ld.global.u32 %r10, [%rd5]; mov.u32 %r20, 5; setp.lt.u32 %p1, %r1, 40; mov.u64 %rd10, own;
  BODY
done:
  st.global.u32 [%rd6], %r20;
  ret;
}
"""
MEETINGS = "st.shared.u32 [%r7], %r10; bar.sync 0; ld.shared.u32 %r20, [%r9];"
CLEAN = {
    "a tile": MEETINGS,
    "a tile twice": f"{MEETINGS} bar.sync 0; st.shared.u32 [%r7], %r20; bar.sync 0; ld.shared.u32 %r20, [%r9];",
    "lanes of a warp": "st.shared.u32 [%r7], %r10; bar.warp.sync -1; xor.b32 %r8, %r6, 4; "
    "add.u32 %r9, %r5, %r8; ld.shared.u32 %r20, [%r9];",
    "a shuffle": "shfl.sync.down.b32 %r20|%p2, %r10, 3, 31, -1; @%p2 add.u32 %r20, %r20, 100;",
    "a vote": "setp.gt.u32 %p2, %r10, 500; vote.sync.ballot.b32 %r20, %p2, -1; vote.sync.any.pred %p3, %p2, -1; @%p3 not.b32 %r20, %r20;",
    "a sum of a warp": "redux.sync.max.s32 %r20, %r10, -1;",
    "a count of a block": "setp.gt.u32 %p2, %r10, 500; bar.red.popc.u32 %r20, 0, %p2;",
    "equal lanes": "and.b32 %r11, %r10, 3; match.any.sync.b32 %r20, %r11, -1;",
    "lanes that have ended": "and.b32 %r11, %r1, 24; setp.eq.u32 %p2, %r11, 24; @%p2 bra done; shfl.sync.down.b32 %r12, %r10, 4, 31, -1; "
    "add.u32 %r12, %r12, %r10; shfl.sync.down.b32 %r13, %r12, 8, 31, -1; and.b32 %r11, %r1, 31; setp.lt.u32 %p3, %r11, 12; "
    "@%p3 add.u32 %r20, %r13, %r12;",
    "a part of a warp": "and.b32 %r11, %r1, 16; setp.ne.u32 %p2, %r11, 0; @%p2 bra done; shfl.sync.bfly.b32 %r20, %r10, 1, 31, 0xffff;",
    "sums of all blocks": "and.b32 %r11, %r1, 7; mul.wide.u32 %rd8, %r11, 4; add.u64 %rd8, %rd3, %rd8; red.global.add.u32 [%rd8], %r10;",
    "sums of floats of all blocks": "and.b32 %r11, %r1, 7; mul.wide.u32 %rd8, %r11, 4; add.u64 %rd8, %rd3, %rd8; cvt.rn.f32.u32 %f1, %r10; "
    "red.global.add.f32 [%rd8], %f1;",
    "sums of a tile": "st.shared.u32 [%r7], 0; bar.sync 0; atom.shared.add.u32 %r21, [tile+8], %r10; "
    "bar.sync 0; ld.shared.u32 %r20, [tile+8];",
    "a loop": "again: add.u32 %r20, %r20, %r10; shr.u32 %r10, %r10, 1; setp.ne.u32 %p2, %r10, 0; @%p2 bra again;",
    "local memory": "st.local.u32 [%rd10+4], %r10; ld.local.u16 %r20, [%rd10+4];",
    "generic addresses": "cvta.shared.u64 %rd8, 0; cvt.u64.u32 %rd9, %r7; add.u64 %rd8, %rd8, %rd9; "
    "st.u32 [%rd8], %r10; ld.u32 %r20, [%rd8];",
    "a value that nobody needs": "@%p1 mov.u32 %r15, %r10; selp.u32 %r20, %r15, 7, %p1;",
    "functions": "cvt.rn.f32.u32 %f1, %r10; sin.approx.ftz.f32 %f2, %f1; lg2.approx.f32 %f3, %f1; ex2.approx.f32 %f4, %f2;"
    "fma.rn.f32 %f5, %f3, %f4, %f2; mov.b32 %r20, %f5;",
    "places taken one by one": "atom.global.add.u32 %r21, [%rd3], 1; and.b32 %r21, %r21, 0; add.u32 %r20, %r21, %r10;",
    "sums of floats": "mov.u32 %r11, 1065353216; st.shared.u32 [%r7], %r11; bar.sync 0; mov.b32 %f1, %r11; "
    "atom.shared.add.f32 %f2, [tile], %f1; "
    "bar.sync 0; ld.shared.u32 %r20, [tile];",
    "an exchange and a swap": "st.shared.u32 [%r7], %r10; bar.sync 0; atom.shared.exch.b32 %r21, [%r7], %r1; "
    "atom.shared.cas.b32 %r20, [%r7], %r1, %r21;",
    "a counter": "st.shared.u32 [%r7], 0; bar.sync 0; atom.shared.inc.u32 %r21, [tile], 6; bar.sync 0; ld.shared.u32 %r20, [tile];",
    "a carry": "add.cc.u32 %r11, %r10, 0xffffff00; addc.cc.u32 %r12, %r10, 0xffffffff; addc.u32 %r20, %r11, 5; "
    "sub.cc.u32 %r13, %r11, %r10; subc.u32 %r14, %r12, 3; mad.lo.cc.u32 %r15, %r10, %r10, %r14; madc.hi.u32 %r16, %r10, %r12, %r13;"
    "xor.b32 %r20, %r20, %r13; xor.b32 %r20, %r20, %r14; xor.b32 %r20, %r20, %r15; xor.b32 %r20, %r20, %r16;",
    "a carry across a barrier": "add.cc.u32 %r11, %r10, 0xfffffe00; bar.sync 0; addc.u32 %r20, %r10, 0;",
    "lanes that are here": "activemask.b32 %r20;",
    "equal long values": "and.b32 %r11, %r10, 1; cvt.u64.u32 %rd8, %r11; shl.b64 %rd8, %rd8, 40; match.any.sync.b64 %r20, %rd8, -1;",
    "all equal": "match.all.sync.b32 %r20|%p2, %r2, -1; match.all.sync.b32 %r21|%p3, %r10, -1; @%p2 add.u32 %r20, %r20, %r21;",
    "volatile accesses": "st.volatile.shared.u32 [%r7], %r10; bar.sync 0; ld.volatile.shared.u32 %r20, [%r9];",
    "writes that a barrier orders": "st.global.u32 [%rd7], %r10; bar.sync 0; cvt.u64.u32 %rd8, %r8; mul.wide.u32 %rd9, %r2, 384;"
    "add.u64 %rd9, %rd9, %rd8; add.u64 %rd9, %rd3, %rd9; ld.global.u32 %r20, [%rd9];",
}
SWAPS = (
    "ld.global.u32 %r11, [%rd3]; again: max.u32 %r12, %r11, %r10; atom.global.cas.b32 %r13, [%rd3], %r11, %r12; "
    "setp.ne.u32 %p2, %r13, %r11; mov.u32 %r11, %r13; @%p2 bra again;"
)
OWN_SUM = "mov.u32 %r11, 1065353216; mov.b32 %f1, %r11; red.global.add.f32 [%rd7], %f1; bar.sync 0; ld.global.u32 %r20, [%rd7];"
HAZARDS = {
    "no barrier": ("st.shared.u32 [%r7], %r10; ld.shared.u32 %r20, [%r9];", ["SharedRace"]),
    "no second barrier": (f"{MEETINGS} st.shared.u32 [%r7], %r20;", ["SharedRace"]),
    "one place of all": ("st.global.u32 [%rd3], %r10;", ["GlobalRace"]),
    "a neighbour's write": ("st.global.u32 [%rd7], %r10; ld.global.u32 %r20, [%rd3];", ["GlobalRace"]),
    "a neighbour's read": ("ld.global.u32 %r20, [%rd3]; st.global.u32 [%rd7], %r10;", ["GlobalRace"]),
    "an update beside a store": ("st.global.u32 [%rd7], %r10; red.global.add.u32 [%rd3], 1;", ["GlobalRace"]),
    "nothing written": ("ld.shared.u32 %r20, [%r7];", ["UnwrittenRead"]),
    "nothing written by half": ("@%p1 st.shared.u32 [%r7], %r10; bar.sync 0; ld.shared.u32 %r20, [%r7];", ["UnwrittenRead"]),
    "nothing written to local memory": ("st.local.u32 [%rd10], %r10; ld.local.u32 %r20, [%rd10+4];", ["UnwrittenRead"]),
    "an early end": ("@%p1 ret; bar.sync 0;", ["MissedBarrier"]),
    "a value that is needed": ("@%p1 mov.u32 %r15, %r10; add.u32 %r20, %r15, 1;", ["UndefinedRegister"]),
    "a read of the cache": ("st.global.u32 [%rd7], %r10; ld.global.nc.u32 %r20, [%rd7];", ["StaleRead"]),
    "a lane that is not there": ("shfl.sync.idx.b32 %r20, %r10, 20, 31, 0xffff;", ["DivergentWarp"]),
    "a volatile exchange": ("st.volatile.shared.u32 [%r7], %r10; ld.volatile.shared.u32 %r20, [%r9];", ["LockstepRace"]),
    "a read of a counter": ("atom.global.add.u32 %r21, [%rd7], 1; ld.global.u32 %r20, [%rd3];", ["GlobalRace"]),
    "a lane that has ended": (
        "and.b32 %r11, %r1, 24; setp.eq.u32 %p2, %r11, 24; @%p2 bra done; shfl.sync.down.b32 %r20, %r10, 4, 31, -1;",
        ["InactiveShuffle"],
    ),
    "beyond the end": ("ld.global.u32 %r20, [%rd5+4];", ["OutOfBounds"]),
    "between words": ("ld.global.u32 %r20, [%rd1+2];", ["Misaligned"]),
}


def launched(
    body: str, monkeypatch: pytest.MonkeyPatch, enough: int, now: int = 1, jobs: int = 1, threads: int = THREADS
) -> tuple[DeviceLaunch, list[object], bool]:
    """A launch, its results, and whether compiled code did all of it."""
    monkeypatch.setattr(native_threads, "ENOUGH_WORK", enough)
    device = Device(1 << 24, jobs=jobs)
    device._clock.now = now
    module = device.load(KERNEL.replace("BODY", body))
    places = [device.allocate(BYTES, name) for name in "xyz"]
    data = np.random.default_rng(5).integers(0, 1000, BYTES // 4, np.uint32)
    for place in (places[0], places[2]):
        device.memory[place - GLOBAL_BASE :][:BYTES].view("u4")[:] = data
        device.note_written(place, BYTES)
    parameters = b"".join(place.to_bytes(8, "little") for place in places)
    result = device.launch(module, "kernel", grid=(BLOCKS, 1, 1), block=(threads, 1, 1), parameters=parameters, tracks=True)
    left: list[object] = [device.memory[place - GLOBAL_BASE :][:BYTES].tolist() for place in places]
    left += [device.count_unwritten(place, BYTES) for place in places]
    left += [
        (each.region.name, each.read.tolist(), each.written.tolist(), each.atomic.tolist())
        for each in sorted(result.touched, key=lambda each: each.region.start)
    ]
    left.append(result.instructions)
    kernel = module.kernels["kernel"]
    return result, left, kernel.compiled is not None and kernel.compiled.failures == 0


def said(result: DeviceLaunch) -> list[str]:
    return [f"{type(each).__name__} {each}" for each in (*result.findings, *([result.error] if result.error is not None else []))]


@needs_compiler
@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_launch_is_the_same_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, expected, was_compiled = launched(CLEAN[name], monkeypatch, 1 << 60)
    assert (said(plain), was_compiled) == ([], False)
    quick, found, was_compiled = launched(CLEAN[name], monkeypatch, 0)
    assert (said(quick), was_compiled) == ([], True)
    assert found == expected


@needs_compiler
def test_compare_and_swap_loops_take_fewer_turns_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, expected, _ = launched(SWAPS, monkeypatch, 1 << 60)
    quick, found, was_compiled = launched(SWAPS, monkeypatch, 0)
    assert (said(plain), said(quick), was_compiled) == ([], [], True)
    assert found[:-1] == expected[:-1]
    assert quick.instructions < plain.instructions


@needs_compiler
@pytest.mark.parametrize("name", HAZARDS)
def test_a_hazard_gives_the_compiled_launch_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, codes = HAZARDS[name]
    plain, expected, _ = launched(body, monkeypatch, 1 << 60)
    assert {line.partition(" ")[0] for line in said(plain)} >= set(codes)
    quick, found, was_compiled = launched(body, monkeypatch, 0)
    assert not was_compiled
    assert (said(quick), found) == (said(plain), expected)


@needs_compiler
@pytest.mark.parametrize(
    "name", ["a tile", "sums of all blocks", "sums of floats of all blocks", "local memory", "writes that a barrier orders"]
)
def test_threads_share_the_blocks_of_a_launch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[int] = []
    original = native_threads._share
    monkeypatch.setattr(native_threads, "_ALONE_SECONDS", 0)
    monkeypatch.setattr(native_threads, "_share", lambda team, *rest: shared.append(len(team)) or original(team, *rest))
    _, expected, _ = launched(CLEAN[name], monkeypatch, 1 << 60)
    quick, found, was_compiled = launched(CLEAN[name], monkeypatch, 0, jobs=3)
    assert (said(quick), was_compiled, shared) == ([], True, [3])
    assert found == expected


@needs_compiler
@pytest.mark.parametrize("name", ["a neighbour's write", "one place of all", "an update beside a store"])
def test_threads_see_conflicts_between_their_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one thread each: nothing but the comparison of the threads' records can see a conflict."""
    monkeypatch.setattr(native_threads, "_ALONE_SECONDS", 0)
    body = HAZARDS[name][0]
    plain, expected, _ = launched(body, monkeypatch, 1 << 60, threads=1)
    quick, found, was_compiled = launched(body, monkeypatch, 0, jobs=3, threads=1)
    assert plain.findings or plain.error
    assert not was_compiled
    assert (said(quick), found) == (said(plain), expected)


@needs_compiler
@pytest.mark.parametrize("operation", ["f32", "f64"])
def test_sums_of_floats_keep_the_order_of_blocks(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that share the blocks put their additions off; the same numbers in any other order have other sums."""
    monkeypatch.setattr(native_threads, "_ALONE_SECONDS", 0)
    root = f"cvt.rn.{operation}.u32 %v1, %r10; sqrt.rn.{operation} %v1, %v1;"
    body = f".reg .{operation} %v<2>; {root} red.global.add.{operation} [%rd3], %v1;"
    shared: list[int] = []
    original = native_threads._share
    monkeypatch.setattr(native_threads, "_share", lambda team, *rest: shared.append(len(team)) or original(team, *rest))
    _, expected, one = launched(body, monkeypatch, 0)
    _, found, three = launched(body, monkeypatch, 0, jobs=3)
    assert one and three and shared == [3] and found == expected


@needs_compiler
def test_a_sum_that_its_block_reads_is_not_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_threads, "_ALONE_SECONDS", 0)
    _, expected, one = launched(OWN_SUM, monkeypatch, 0)
    _, found, three = launched(OWN_SUM, monkeypatch, 0, jobs=3)
    assert (one, three) == (True, False) and found == expected


@needs_compiler
def test_a_kernel_that_was_given_up_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nothing has written when a kernel first runs is written later: compiled code then takes the launches over."""
    monkeypatch.setattr(native_threads, "ENOUGH_WORK", 0)
    device = Device(1 << 24)
    module = device.load(KERNEL.replace("BODY", "ld.global.u32 %r11, [%rd7]; add.u32 %r20, %r10, %r11;"))
    places = [device.allocate(BYTES, name) for name in "xyz"]
    parameters = b"".join(place.to_bytes(8, "little") for place in places)
    tried: list[bool] = []
    original = native_threads.run
    monkeypatch.setattr(native_threads, "run", lambda *given: tried.append(original(*given)) or tried[-1])
    findings = []
    for number in range(13):
        if number == 8:
            for place in places:
                device.note_written(place, BYTES)
        findings.append(len(device.launch(module, "kernel", grid=(1, 1, 1), block=(32, 1, 1), parameters=parameters).findings))
    assert [outcome is not None for outcome in tried] == [False, False, False, False, True, True]
    assert [bool(count) for count in findings] == [True] * 8 + [False] * 5


@needs_compiler
def test_blocks_stay_in_order_where_it_matters() -> None:
    body = CLEAN["places taken one by one"]
    ordered = native_threads.kernel_of(link(KERNEL.replace("BODY", body), "kernel"))
    free = native_threads.kernel_of(link(KERNEL.replace("BODY", CLEAN["sums of all blocks"]), "kernel"))
    assert ordered is not None and ordered.is_ordered
    assert free is not None and not free.is_ordered


@needs_compiler
def test_a_long_translation_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    program = link(KERNEL.replace("BODY", CLEAN["sums of all blocks"]), "kernel")
    assert native_threads.kernel_of(program) is not None
    monkeypatch.setattr(native_threads, "_MAX_TEXT", len(native_threads.translation(program, False).text) - 1)
    assert native_threads.kernel_of(program) is None


@needs_compiler
def test_times_that_run_out_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    almost = native_threads.LAST_TIME // 2 - 2
    _, found, was_compiled = launched(CLEAN["sums of all blocks"], monkeypatch, 0, almost)
    _, expected, _ = launched(CLEAN["sums of all blocks"], monkeypatch, 1 << 60)
    assert was_compiled and found == expected


@needs_compiler
def test_times_begin_anew_for_memory_of_other_launches() -> None:
    """A launch whose times begin anew leaves records of other memory with later times; the next launch starts from empty records."""
    clock = native_threads.Clock()
    clock.now = native_threads.LAST_TIME
    clock.granules(2, 64)[:] = 1
    assert clock.now == 1
    clock.now = native_threads.LAST_TIME
    assert not clock.granules(2, 64).any()


@needs_compiler
@pytest.mark.parametrize("name", ["a tile", "sums of all blocks", "writes that a barrier orders"])
def test_a_large_launch_without_a_device_is_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(large: int) -> tuple[list[list[int]], dict[str, int], int]:
        monkeypatch.setattr(native_threads, "LARGE_LAUNCH", large)
        x, y, z = (np.arange(BYTES // 4, dtype=np.uint32) % 7 for _ in range(3))
        result = launch(KERNEL.replace("BODY", CLEAN[name]), grid=BLOCKS, block=THREADS, args=[x, y, z], hazards=True)
        return [x.tolist(), y.tolist(), z.tolist()], result.instructions, result.waves

    ran: list[object] = []
    original = native_threads.run
    monkeypatch.setattr(native_threads, "run", lambda *what: ran.append(outcome := original(*what)) or outcome)
    assert left(0) == left(1 << 60)
    assert len(ran) == 1 and ran[0] is not None


@pytest.mark.parametrize(
    ("body", "suits"),
    [
        ("mov.u32 %r21, 0; again: mad.lo.u32 %r20, %r20, %r10, 3; add.u32 %r21, %r21, 1; setp.lt.u32 %p2, %r21, 9; @%p2 bra again;", True),
        ("again: mad.lo.u32 %r20, %r20, %r10, 3; setp.lt.u32 %p2, %r20, 9; @%p2 bra again;", False),
        ("again: ld.global.u32 %r20, [%rd5]; add.u32 %r21, %r21, 1; setp.lt.u32 %p2, %r21, 9; @%p2 bra again;", False),
        (MEETINGS, False),
    ],
    ids=["arithmetic", "leaves one by one", "loads", "no loop"],
)
def test_loops_of_arithmetic_suit_lanes(body: str, suits: bool) -> None:
    assert native_threads.suits_lanes(link(KERNEL.replace("BODY", body), "kernel")) == suits
