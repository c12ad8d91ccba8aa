"""Kernels that multiply by tcgen05: both of their rings are proved for every problem, and no mistake in them is."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.codegen.rendering import render
from gemmgen.emulator.ptx.parser import parse
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.control import Unliftable
from gemmgen.proof.rings import Findings
from gemmgen.proof.slicing import with_floats
from gemmgen.proof.tensor_memory import follow_tensor_memory
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import compile_source

from .test_rings import changed, doubled, number, without

OF_RINGS = ("races", "progress", "initialised")


@cache
def kernel() -> tuple[LaunchSequence, str]:
    """A kernel with two stages, and its PTX."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()["gemm/tcgen05/bf16_128x64"], ["mainloop.stages=2"]))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, compile_plan(plan).ptx


def followed(ptx: str) -> Findings:
    module, (launch,) = parse(ptx), kernel()[0].launches
    return follow_tensor_memory(kernel()[0], launch, module, module.functions[launch.entry], lambda: None)[0].findings


def test_both_rings_are_proved() -> None:
    found = followed(kernel()[1])
    assert not any(found.reasons.values())
    assert all(len(found.checked[name]) > 20 for name in OF_RINGS)


COMMIT = r"tcgen05\.commit[^;]*;"
BEFORE = r"tcgen05\.fence::before_thread_sync;"
AFTER = r"tcgen05\.fence::after_thread_sync;"
WAIT = r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, \[(%r\d+)\], (%r\d+);"
RELEASE = r"mbarrier\.arrive\.shared::cta\.b64 _, \[[^;]*;"
EXPECT = r"mbarrier\.arrive\.expect_tx[^;]*;"
COPY = r"cp\.async\.bulk\.tensor\.2d\.shared::cluster[^;]*;"
TURN = r"xor\.b32\s+(%r\d+), \1, %r\d+;"
FLIP = r"xor\.b32\s+(%r\d+), (%r\d+), 1;"
SLOTS = r"setp\.eq\.s32 \s*%p\d+, %r\d+, (2);"


def once_more_behind_its_commit(ptx: str) -> str:
    """A stage's last product is issued again behind the commit that gives the stage back."""
    product = re.findall(r"\{\s*\.reg \.pred p;\s*setp[^;]*;\s*tcgen05\.mma[^}]*\}", ptx)[-1]
    return changed(COMMIT, lambda found: f"{found[0]}\n{product}", 0)(ptx)


MISTAKES: dict[str, Callable[[str], str]] = {
    "a stage is not given back": without(COMMIT, 0),
    "sums are not handed on": without(COMMIT, 1),
    "a stage is given back twice": changed(COMMIT, doubled, 0),
    "sums are handed on twice": changed(COMMIT, doubled, 1),
    "a stage is given back before its last product": once_more_behind_its_commit,
    "sums are given back twice": changed(RELEASE, doubled),
    "sums are not given back": without(RELEASE),
    "sums are given back before they are loaded": without(r"tcgen05\.wait::ld[^;]*;"),
    "every lane gives sums back": changed(
        r"setp\.ne\.s32\s+(%p\d+), (%r\d+), 0;(\s*)(?=tcgen05|\s*//|\s*\.loc)", lambda m: f"setp.ne.s32 {m[1]}, {m[2]}, {m[2]};", 0
    ),
    "no fence before sums are given back": without(BEFORE, 1),
    "no meeting of the warp before sums are given back": without(r"bar\.warp\.sync\s+-1;", 1),
    "no fence before the block meets first": without(BEFORE, 0),
    "no fence before sums are loaded": without(AFTER, 1),
    "no fence before sums are written again": without(AFTER, 2),
    "no fence before the block meets last": without(BEFORE, 2),
    "no fence before columns are freed": without(AFTER, 3),
    "the issuer's parity for sums is the readers'": changed(FLIP, lambda m: f"mov.b32 {m[1]}, {m[2]};", 1),
    "the filler's parity is the issuer's": changed(FLIP, lambda m: f"mov.b32 {m[1]}, {m[2]};", 0),
    "the filler's parity does not turn": without(TURN, 0),
    "the issuer's parity of stages does not turn": without(TURN, 1),
    "the issuer's parity of sums does not turn": without(TURN, 2),
    "the readers' parity does not turn": without(TURN, 3),
    "the filler has one stage less": number(SLOTS, lambda n: n - 1, 0),
    "the issuer has one stage more": number(SLOTS, lambda n: n + 1, 1),
    "the issuer has one set less": number(SLOTS, lambda n: n - 1, 2),
    "readers have one set more": number(SLOTS, lambda n: n + 1, 3),
    "fewer bytes are promised": number(r"mov\.b32 \s*%r\d+, (24576);", lambda n: n - 16),
    "no bytes are promised": without(EXPECT),
    "a box is not copied": without(COPY, 1),
    "a box is copied twice": changed(COPY, doubled, 1),
    "sums continue from the tile before": changed(
        r"selp\.u32\s+(%r\d+), 1, 0, (%p\d+);(?=[^;]*mov\.b32)", lambda m: f"mov.u32 {m[1]}, 1;", 0
    ),
    "sets overlap": number(r"shl\.b32 \s*%r\d+, %r\d+, (6);(?=[^;]*add\.s32[^;]*;[^;]*mov\.b32[^;]*, 0;)", lambda n: n - 1),
    "fewer columns are allocated": changed(r"(tcgen05\.alloc[^;]*), 128;", lambda m: f"{m[1]}, 64;"),
    "columns are not freed": without(r"tcgen05\.dealloc[^;]*;"),
    "fewer columns are freed": changed(r"(tcgen05\.dealloc[^;]*), 128;", lambda m: f"{m[1]}, 64;"),
    "all warps free columns": changed(
        r"setp\.ne\.s32 (\s*%p\d+), (%r\d+), 0;(?![\s\S]*setp\.ne)", lambda m: f"setp.ne.s32 {m[1]}, {m[2]}, {m[2]};"
    ),
    "lanes of another warp are loaded": number(r"add\.s32 \s*%r\d+, %r\d+, (1048576);", lambda n: 2 * n),
    "barriers are not made visible": without(r"fence\.mbarrier_init[^;]*;"),
    "the block does not meet at first": without(r"bar\.sync\s+0;", 0),
    "the block does not meet at last": without(r"bar\.sync\s+0;", 1),
    "releases by fewer warps": number(r"mov\.b32 \s*%r\d+, (4);", lambda n: n - 1),
    "releases by more warps": number(r"mov\.b32 \s*%r\d+, (4);", lambda n: n + 1),
    "the launch before is not waited for": without(r"griddepcontrol\.wait;"),
    "the issuer does not wait for boxes": changed(WAIT, lambda m: f"setp.eq.u32 p, {m[2]}, {m[2]};", 3),
    "the issuer does not wait for readers": changed(WAIT, lambda m: f"setp.eq.u32 p, {m[2]}, {m[2]};", 2),
    "readers do not wait": changed(WAIT, lambda m: f"setp.eq.u32 p, {m[2]}, {m[2]};", 0),
    "the filler does not wait": changed(WAIT, lambda m: f"setp.eq.u32 p, {m[2]}, {m[2]};", 1),
    "the issuer takes one turn less": changed(r"max\.s32(\s*%r\d+, %r\d+), 1;", lambda m: f"max.s32{m[1]}, 2;", 1),
    "products of 80 columns": number(r"mov\.b32 \s*%r\d+, (135267472);", lambda n: n + (2 << 17)),
    "products of a layout that does not exist": changed(r"4611756662049472512", lambda m: str(int(m[0]) ^ 1 << 61), 0),
    "products read the next stage": number(r"shl\.b32 \s*%r\d+, %r\d+, (10);(?=[^;]*add\.s32[^;]*;[^;]*shl\.b32)", lambda n: n + 1),
    "results of a load used before the wait": changed(r"(tcgen05\.wait::ld[^;]*;)", lambda m: "add.f32 %f2, %f146, %f147;\n" + m[1]),
    "a second allocation": changed(r"tcgen05\.alloc[^;]*;", doubled),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_no_mistake_in_a_ring_is_proved(name: str) -> None:
    ptx = kernel()[1]
    wrong = MISTAKES[name](ptx)
    assert wrong != ptx
    try:
        found = followed(wrong)
    except Unliftable:
        return
    assert any(found.reasons[each] for each in (*OF_RINGS, "memory"))


SCALED = ("fp8_128x64", "int8_128x128", "tf32_128x128")
"""Kernels where alpha, a float, decides whether there is a sum over k."""
DECISION = "    if (alpha == 0.0f)\n        k = 0;\n"
TURN_OF = "const Work {} = work_at(index, m, n, k);"


@cache
def scaled(name: str) -> tuple[LaunchSequence, str]:
    """A kernel with two stages and a factor alpha, and its CUDA source."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()[f"gemm/tcgen05/{name}"], ["mainloop.stages=2"]))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, render(plan).text


def reasons(name: str, source: str) -> dict[str, list[str]]:
    """Why properties of a kernel with this source are not proved; none if it is not followed at all."""
    sequence = scaled(name)[0]
    (launch,) = sequence.launches
    module = parse(compile_source(source, architecture="sm_100a", options=COMPILE_OPTIONS, name="kernel.cu").ptx)
    try:
        found = follow_tensor_memory(sequence, launch, module, with_floats(module.functions[launch.entry]), lambda: None)[0].findings
    except Unliftable as error:
        return {"races": [str(error)]}
    return {each: list(found.reasons[each]) for each in (*OF_RINGS, "memory") if found.reasons[each]}


@pytest.mark.parametrize("name", SCALED)
def test_alpha_may_decide_whether_there_is_a_sum(name: str) -> None:
    assert not reasons(name, scaled(name)[1])


def decided(**conditions: str) -> Callable[[str], str]:
    """Parties set k to 0 by conditions of theirs: the filler, the issuer, or readers."""

    def change(source: str) -> str:
        assert source.count(DECISION) == 1
        parts = source.replace(DECISION, "").split(TURN_OF.format("work"))
        head, middle, tail = parts
        turns = {party: f"work_at(index, m, n, {text} ? 0 : k);" for party, text in conditions.items()}
        whole = "work_at(index, m, n, k);"
        filler, issuer = (f"const Work work = {turns.get(party, whole)}" for party in ("filler", "issuer"))
        return f"{head}{filler}{middle}{issuer}" + tail.replace(
            f"const Work tile = {whole}", f"const Work tile = {turns.get('readers', whole)}"
        )

    return change


ALPHA = "alpha == 0.0f"
UNEQUAL: dict[str, Callable[[str], str]] = {
    "the filler alone": decided(filler=ALPHA),
    "the issuer alone": decided(issuer=ALPHA),
    "all but the issuer": decided(filler=ALPHA, readers=ALPHA),
    "all but readers": decided(filler=ALPHA, issuer=ALPHA),
    "another constant": decided(filler=ALPHA, issuer="alpha == 1.0f", readers=ALPHA),
    "another order": decided(filler="alpha > 0.0f", issuer="!(alpha <= 0.0f)", readers="alpha > 0.0f"),
    "the opposite": decided(filler=ALPHA, issuer="alpha != 0.0f", readers=ALPHA),
    "another float": decided(filler=ALPHA, issuer="alpha * alpha == 0.0f", readers=ALPHA),
    "a float of the thread": decided(**dict.fromkeys(("filler", "issuer", "readers"), "alpha * threadIdx.x == 0.0f")),
    "a float in memory": decided(**dict.fromkeys(("filler", "issuer", "readers"), "__ldg(reinterpret_cast<const float*>(C)) == 0.0f")),
    "a float that changes": decided(filler="(alpha += 1.0f) == 0.0f", issuer="(alpha += 2.0f) == 0.0f", readers=ALPHA),
    "a stage is given back where alpha is 1": changed(r"commit_products\(empty", lambda m: f"if (alpha == 1.0f) {m[0]}"),
    "sums are handed on where alpha is 1": changed(r"commit_products\(done", lambda m: f"if (alpha == 1.0f) {m[0]}"),
    "readers wait where alpha is 1": changed(r"mbarrier_wait\(done", lambda m: f"if (alpha == 1.0f) {m[0]}"),
    "bytes are promised where alpha is 1": changed(r"mbarrier_arrive_expect\(full", lambda m: f"if (alpha == 1.0f) {m[0]}"),
    "sums are given back where alpha is 1": changed(r"if \(lane == 0\)(?=\s*mbarrier_arrive)", lambda m: "if (lane == 0 && alpha == 1.0f)"),
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("mistake", UNEQUAL)
def test_no_mistake_in_what_alpha_decides_is_proved(name: str, mistake: str) -> None:
    source = scaled(name)[1]
    wrong = UNEQUAL[mistake](source)
    assert wrong != source
    assert reasons(name, wrong)


def test_products_of_two_shapes_do_not_write_the_same_sums() -> None:
    ptx = kernel()[1]
    product = re.findall(r"\{\s*\.reg \.pred p;\s*setp[^;]*;\s*tcgen05\.mma[^}]*\}", ptx)[-1]
    form = re.findall(r"tcgen05\.mma\S* \[[^,]*, [^,]*, [^,]*, (%r\d+)", product)[0]
    anew = re.sub(r"setp[^;]*;", f"setp.ne.b32 p, 0, 0;\n.reg .b32 half;\nsub.s32 half, {form}, {4 << 17};", product).replace(
        f"{form}, p;", "half, p;"
    )
    reasons = followed(ptx.replace(product, f"{product}\n{anew}")).reasons
    assert any("two shapes" in each for each in reasons["races"])


@pytest.mark.parametrize("count", [2, 4])
def test_wider_loads_at_the_address_of_columns_are_not_proved(count: int) -> None:
    found = re.search(r"ld\.volatile\.shared\.u32\s+%r\d+, (\[[^\]]*\]);", ptx := kernel()[1])
    assert found is not None
    wider = f"ld.shared.v{count}.f32 {{{', '.join(f'%f{register}' for register in range(1, count + 1))}}}, {found[1]};"
    try:
        reasons = followed(ptx.replace(found[0], f"{found[0]}\n{wider}")).reasons
    except Unliftable as error:
        assert "outside of shared memory" in str(error)
        return
    assert reasons["initialised"]


def test_rings_that_begin_anew_after_a_meeting_are_not_proved() -> None:
    source = scaled(SCALED[0])[1]
    meeting = "    tensor_memory_before_sync();\n    __syncthreads();\n    tensor_memory_after_sync();\n"
    first, last = source.index("    if (warp == kEpilogueWarps) {"), source.rindex(meeting)
    again = f"{meeting}    {{ int index = blockIdx.x; int set = 0; int set_phase = 0;\n{source[first:last]}    }}\n"
    assert "used again" in reasons(SCALED[0], source[:last] + again + source[last:])["races"][0]
