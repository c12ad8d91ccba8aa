"""Registers that may be read before they are written, found in short functions by their control flow."""

from __future__ import annotations

import pytest

from gemmgen.emulator.ptx.parser import parse
from gemmgen.proof.control import control_flow
from gemmgen.proof.registers import read_unwritten

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 kernel_param_0, .param .u32 kernel_param_1)
{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .f32 %f<9>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [kernel_param_0];
    ld.param.u32 %r1, [kernel_param_1];
    mov.u32 %r2, 0;
    setp.lt.s32 %p1, %r2, %r1;
"""
STORE = "st.global.f32 [%rd1], %f1;"
AHEAD = """    mov.f32 %f1, 0f00000000;
LOOP:
    setp.lt.s32 %p2, %r2, %r1;
    @!%p2 bra NEXT;
    ld.global.f32 %f2, [%rd1];
NEXT:
    st.global.f32 [%rd1], %f1;
    mov.f32 %f1, %f2;
    add.s32 %r2, %r2, 1;
    @%p2 bra LOOP;
"""
FUNCTIONS: dict[str, tuple[str, set[str]]] = {
    "written": (f"mov.f32 %f1, 0f00000000; {STORE}", set()),
    "never written": (STORE, {"%f1"}),
    "written on one way": (f"@%p1 bra A; mov.f32 %f1, 0f00000000; A: {STORE}", {"%f1"}),
    "written on both ways": (f"@%p1 bra A; mov.f32 %f1, 0f00000000; bra B; A: mov.f32 %f1, 0f3F800000; B: {STORE}", set()),
    "used where it was written": (f"@%p1 bra A; mov.f32 %f1, 0f00000000; A: @%p1 bra B; {STORE} B:", set()),
    "used where it was not written": (f"@%p1 bra A; mov.f32 %f1, 0f00000000; A: @!%p1 bra B; {STORE} B:", {"%f1"}),
    "the predicate changes": (
        f"@%p1 bra A; mov.f32 %f1, 0f00000000; A: setp.gt.s32 %p1, %r2, %r1; @%p1 bra B; {STORE} B:",
        {"%f1"},
    ),
    "written under a guard and used under it": (f"@%p1 mov.f32 %f1, 0f00000000; @%p1 {STORE}", set()),
    "written under a guard and used without it": (f"@%p1 mov.f32 %f1, 0f00000000; {STORE}", {"%f1"}),
    "written under both guards": (f"@%p1 mov.f32 %f1, 0f00000000; @!%p1 mov.f32 %f1, 0f3F800000; {STORE}", set()),
    "chosen where it was written": (f"@%p1 ld.global.f32 %f2, [%rd1]; selp.f32 %f1, %f2, 0f00000000, %p1; {STORE}", set()),
    "chosen where it was not written": (f"@%p1 ld.global.f32 %f2, [%rd1]; selp.f32 %f1, 0f00000000, %f2, %p1; {STORE}", {"%f2"}),
    "a copy that nobody uses": ("mov.f32 %f1, %f2;", set()),
    "a copy that is used": (f"mov.f32 %f1, %f2; {STORE}", {"%f1"}),
    "a copy of a copy": (f"mov.f32 %f3, %f2; mov.f32 %f1, %f3; {STORE}", {"%f1"}),
    "a copy over a written value": (f"mov.f32 %f1, 0f00000000; mov.f32 %f1, %f2; {STORE}", {"%f1"}),
    "loaded a turn ahead": (AHEAD, set()),
    "loaded a turn ahead, and one turn more": (AHEAD.replace("@%p2 bra LOOP", "setp.le.s32 %p2, %r2, %r1; @%p2 bra LOOP"), {"%f1"}),
    "loaded a turn ahead on the other way": (AHEAD.replace("@!%p2 bra NEXT", "@%p2 bra NEXT"), {"%f1"}),
    "a predicate that guards itself": (f"@%p1 setp.gt.s32 %p1, %r1, 7; @%p1 mov.f32 %f1, 0f00000000; {STORE}", {"%f1"}),
    "sums of products that hold no value": (
        "mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1;"
        " wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, %p1, 1, 1, 0, 0;",
        {"%f4"},
    ),
    "products that begin sums": (
        "mov.b32 %r3, 0; setp.ne.b32 %p3, %r3, 0;"
        " wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, %p3, 1, 1, 0, 0;",
        set(),
    ),
    "a guard of its own": (f"@%p2 setp.gt.s32 %p2, %r1, 7; @%p2 {STORE}", {"%p2", "%f1"}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_registers_that_may_be_unwritten_are_found(name: str) -> None:
    body, expected = FUNCTIONS[name]
    (function,) = [each for each in parse(f"{HEAD}{body}\n    ret;\n}}\n").functions.values() if each.is_entry]
    assert {register.name for _, register in read_unwritten(function, control_flow(function))} == expected


def test_an_unanswered_question_is_reported_with_its_formula() -> None:
    z3 = pytest.importorskip("z3")
    from gemmgen.proof.data import Access
    from gemmgen.proof.obligations import MAX_FORMULA, Verdict
    from gemmgen.proof.solver import Answer

    (function,) = [each for each in parse(f"{HEAD}{STORE}\n    ret;\n}}\n").functions.values() if each.is_entry]
    store = next(each for each in function.body if each.opcode == "st")
    verdict, known = Verdict("memory"), None
    for goal in (z3.Int("i") * z3.Int("i") < z3.Int("n"), z3.And(*[z3.Int(f"row {i}") >= 0 for i in range(99)])):
        verdict.note(Answer("unknown"), Access("store", "global", None, 4, 4, (), (), store, 0), "bounds", known, [], goal)  # type: ignore[arg-type]
    short, long = verdict.unproved
    assert short.endswith("bounds; no answer to (< (* i i) n)")
    assert long.endswith(" …") and len(long) < len(short) + MAX_FORMULA
