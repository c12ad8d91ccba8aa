"""Kernels with TMA, mbarriers and wgmma: their ring is proved for every problem, and no mistake in it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.core.formulas import Formula
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.prover import KernelProof, prove_kernel
from gemmgen.toolchain.compilation import compile_plan

NAME = "gemm/wgmma/bf16/64x32"
STAGES = 3
SECONDS = 20.0
SECONDS_OF_SLICES = 100.0


@cache
def kernel() -> tuple[LaunchSequence, str]:
    """A small kernel with three stages, and its PTX."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()[NAME], [f"mainloop.stages={STAGES}", "mainloop.tile.k=64"]))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, compile_plan(plan).ptx


def proof_of(sequence: LaunchSequence, ptx: str) -> KernelProof:
    return prove_kernel(sequence, sequence.launches[0], ptx, SECONDS)


def test_a_ring_is_proved() -> None:
    proof = proof_of(*kernel())
    assert set(proof.proved) == {"memory", "races", "progress", "initialised", "once", "complete", "coverage"}, [
        each.reasons for each in proof.properties
    ]


def without(pattern: str, which: int = 0) -> Callable[[str], str]:
    return changed(pattern, lambda found: "", which)


def changed(pattern: str, into: Callable[[re.Match[str]], str], which: int = 0) -> Callable[[str], str]:
    def change(ptx: str) -> str:
        places = list(re.finditer(pattern, ptx))
        found = places[which]
        return ptx[: found.start()] + into(found) + ptx[found.end() :]

    return change


def number(pattern: str, by: Callable[[int], int], which: int = 0) -> Callable[[str], str]:
    """Changes the number that is a pattern's only group."""

    def into(found: re.Match[str]) -> str:
        start, end = found.start(1) - found.start(), found.end(1) - found.start()
        return found[0][:start] + str(by(int(found[1]))) + found[0][end:]

    return changed(pattern, into, which)


def doubled(found: re.Match[str]) -> str:
    return found[0] + "\n\t" + found[0]


RELEASE = r"mbarrier\.arrive\.shared::cta\.b64 _, \[[^;]*;"
EXPECT = r"mbarrier\.arrive\.expect_tx[^;]*;"
LOAD = r"cp\.async\.bulk\.tensor\.2d\.shared::cluster[^;]*;"
WAIT = r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, \[(%r\d+)\], (%r\d+);"
NEXT_TILE = r"add\.s32\s+(%r\d+), \1, (%r\d+);(?=[^;]*setp\.lt)"
STORE = r"cp\.async\.bulk\.tensor\.2d\.global[^{]*\{(%r\d+), (%r\d+)\}[^;]*;"
RING_SIZE = r"setp\.eq\.s32 \s*%p\d+, %r\d+, (3);"
EXPECT_AT = r"mbarrier\.arrive\.expect_tx[^;]*(\[%r\d+\])[^;]*;"
EXCHANGE = ".reg .b32 t; mov.u32 t, %laneid; shfl.sync.idx.b32 t, t, 0, 31, -1;"
EXCHANGE_IF = EXCHANGE.replace("shfl", "@p shfl")
MISTAKES: dict[str, tuple[Callable[[str], str], str]] = {
    "no slot is released within a tile": (without(RELEASE, 0), "progress"),
    "the last slot of a tile is not released": (without(RELEASE, 1), "progress"),
    "a slot is released twice": (changed(RELEASE, doubled), "races"),
    "a slot is released a turn early": (number(r"wgmma\.wait_group\.sync\.aligned (1);", lambda n: n + 1), "races"),
    "the last products are not waited for": (number(r"wgmma\.wait_group\.sync\.aligned (0);", lambda n: n + 1), "races"),
    "no wait for products": (without(r"wgmma\.wait_group\.sync\.aligned 1;"), "races"),
    "products in no group": (without(r"wgmma\.commit_group[^;]*;"), "races"),
    "no fence before products": (without(r"wgmma\.fence[^;]*;"), "races"),
    "the filler's parity is the readers'": (changed(r"xor\.b32\s+(%r\d+), (%r\d+), 1;", lambda m: f"mov.b32 {m[1]}, {m[2]};"), "races"),
    "a parity that does not turn": (changed(r"xor\.b32\s+(%r\d+), \1, %r\d+;", lambda m: "", 0), "races"),
    "the filler's parity does not turn": (changed(r"xor\.b32\s+(%r\d+), \1, %r\d+;", lambda m: "", 1), "races"),
    "readers have one stage less": (number(RING_SIZE, lambda n: n - 1, 0), "races"),
    "the filler has one stage less": (number(RING_SIZE, lambda n: n - 1, 1), "races"),
    "one stage more": (number(RING_SIZE, lambda n: n + 1, 1), "memory"),
    "fewer bytes are promised": (number(r"mov\.u32 \s*%r\d+, (12288);", lambda n: n - 16), "races"),
    "more bytes are promised": (number(r"mov\.u32 \s*%r\d+, (12288);", lambda n: n + 16), "progress"),
    "no bytes are promised": (without(EXPECT), "progress"),
    "bytes are promised twice": (changed(EXPECT, doubled), "progress"),
    "a box is not copied": (without(LOAD, 1), "progress"),
    "a box is copied twice": (changed(LOAD, doubled, 1), "races"),
    "slots overlap": (number(r"shl\.b32 \s*%r\d+, %r\d+, (13);", lambda n: n - 1), "races"),
    "releases by fewer warps": (number(r"mov\.u32 \s*%r\d+, (4);", lambda n: n - 1), "races"),
    "releases by more warps": (number(r"mov\.u32 \s*%r\d+, (4);", lambda n: n + 1), "progress"),
    "every lane releases": (
        changed(r"setp\.ne\.s32\s+(%p\d+), (%r\d+), 0;(?=[^;]*wgmma\.fence)", lambda m: f"setp.ne.s32 {m[1]}, {m[2]}, {m[2]};"),
        "races",
    ),
    "barriers are not made visible": (without(r"fence\.mbarrier_init[^;]*;"), "races"),
    "the block does not meet": (without(r"bar\.sync\s+0;"), "races"),
    "the launch before is not waited for": (without(r"griddepcontrol\.wait;"), "races"),
    "stores are not made visible to TMA": (without(r"fence\.proxy\.async[^;]*;"), "races"),
    "no barrier before results are stored": (without(r"bar\.sync %r\d+, 128;", 0), "races"),
    "no barrier before results leave": (without(r"bar\.sync %r\d+, 128;", 1), "initialised"),
    "results that leave are not waited for": (without(r"cp\.async\.bulk\.wait_group\.read 0;", 0), "races"),
    "results still leave at the end": (without(r"cp\.async\.bulk\.wait_group\.read 0;", 1), "races"),
    "a barrier for fewer threads": (number(r"bar\.sync %r\d+, (128);", lambda n: n - 32), "progress"),
    "a matrix is not stored": (without(r"stmatrix[^;]*;", 1), "initialised"),
    "readers take one turn more": (
        changed(r"setp\.lt\.s32( \s*%p\d+, %r\d+, %r\d+;[^;]*@%p\d+ bra)", lambda m: f"setp.le.s32{m[1]}", 0),
        "progress",
    ),
    "readers skip tiles": (changed(NEXT_TILE, doubled, 0), "progress"),
    "the filler skips tiles": (changed(NEXT_TILE, doubled, 1), "progress"),
    "the filler waits for no slot": (changed(WAIT, lambda m: "setp.eq.s32 p, 0, 0;", 1), "races"),
    "readers wait for no slot": (changed(WAIT, lambda m: "setp.eq.s32 p, 0, 0;", 0), "races"),
    "columns of tiles overlap": (number(r"shl\.b32 \s*%r\d+, %r\d+, (5);", lambda n: n - 1), "once"),
    "rows of tiles overlap": (number(r"shl\.b32 \s*%r\d+, %r\d+, (6);", lambda n: n - 1), "once"),
    "groups of tiles overlap": (number(r"shl\.b32 \s*%r\d+, %r\d+, (3);(?=[^;]*;[^;]*min)", lambda n: n - 1), "once"),
    "more rows than a group has": (number(r"min\.s32 \s*%r\d+, %r\d+, (8);", lambda n: n + 8), "once"),
    "a box is stored twice": (changed(STORE, doubled), "once"),
    "every tile in one column": (changed(STORE, lambda m: m[0].replace(m[1], "0")), "once"),
    "rows and columns exchanged": (changed(STORE, lambda m: m[0].replace(f"{m[1]}, {m[2]}", f"{m[2]}, {m[1]}")), "once"),
    "blocks take the next tile": (lambda ptx: re.sub(r"(mov\.u32 \s*%r\d+), %nctaid\.x;", r"\1, 1;", ptx), "once"),
    "all blocks begin at one tile": (lambda ptx: re.sub(r"(mov\.u32 \s*%r\d+), %ctaid\.x;", r"\1, 0;", ptx), "once"),
    "two blocks begin at one tile": (
        lambda ptx: re.sub(r"(mov\.u32 \s*(%r\d+)), %ctaid\.x;", r"\1, %ctaid.x;\n\tshr.u32 \2, \2, 1;", ptx),
        "once",
    ),
    "waits that order nothing": (lambda ptx: ptx.replace("try_wait.parity", "try_wait.parity.relaxed.cta"), "races"),
    "one thread exchanges a number with the lanes of its warp": (changed(EXPECT, lambda m: f"{{ {EXCHANGE} }}\n\t{m[0]}"), "progress"),
    "data decides which lanes exchange a number": (
        changed(
            r"bar\.sync %r\d+, 128;",
            lambda m: f"{{ .reg .pred p; .reg .f32 f; cvt.rn.f32.u32 f, %r1; setp.lt.f32 p, f, 0f41000000; {EXCHANGE_IF} }}\n\t{m[0]}",
        ),
        "progress",
    ),
    "more registers than the block has": (
        changed(r"bar\.sync\s+0;", lambda m: f"{m[0]}\n\tsetmaxnreg.inc.sync.aligned.u32 256;"),
        "progress",
    ),
    "fewer registers for a half of a group": (
        changed(
            r"bar\.sync\s+0;",
            lambda m: f"{m[0]}\n\t{{ .reg .pred p; setp.lt.u32 p, %r1, 64; @p setmaxnreg.dec.sync.aligned.u32 96; }}",
        ),
        "progress",
    ),
    "a sum is read between a fence and its products": (
        changed(
            r"(wgmma\.fence\.sync\.aligned;)((?:[^w]|w(?!gmma))*wgmma\.mma_async[^{]*\{(%f\d+))",
            lambda m: f"{m[1]}\n\t{{ .reg .f32 f; add.f32 f, {m[3]}, {m[3]}; }}{m[2]}",
        ),
        "races",
    ),
    "a thread stores over a barrier": (changed(EXPECT_AT, lambda m: f"{m[0]}\n\tst.shared.u32 {m[1]}, 0;"), "progress"),
    "lanes of a warp store to one row": (changed(r"and\.b32(?=\s+%r\d+, %r1, 15;)", lambda m: "or.b32"), "races"),
    "a generic address of a barrier": (lambda ptx: ptx.replace("mbarrier.arrive.shared::cta", "mbarrier.arrive"), "memory"),
    "a generic address of matrices": (lambda ptx: re.sub(r"(stmatrix\S*)\.shared\.b16", r"\1.b16", ptx), "memory"),
    "half of k is read": (changed(r"ld\.param\.u32(?=\s*%r\d+, \[\w+_param_2\])", lambda m: "ld.param.u16"), "coverage"),
    "half of k is read again": (changed(r"ld\.param\.u32(?=\s*%r\d+, \[\w+_param_2\])", lambda m: "ld.param.u16", 1), "coverage"),
    "a wait that gives up": (changed(r"(selp\.s32 %r\d+), 1, 0, p;", lambda m: f"{m[1]}, 1, 1, p;"), "races"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_ring_is_not_proved(mistake: str) -> None:
    sequence, ptx = kernel()
    change, wrong = MISTAKES[mistake]
    mutant = change(ptx)
    assert mutant != ptx
    assert wrong not in proof_of(sequence, mutant).proved


@cache
def kernel_with_slices() -> tuple[LaunchSequence, str]:
    """A kernel whose blocks multiply slices of k, and its PTX."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()["gemm/wgmma/bf16_split_k/64x64"], ["mainloop.stages=3"]))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, compile_plan(plan).ptx


TURNS = r"setp\.lt\.s32( \s*%p\d+, %r\d+, %r\d+;[^;]*@%p\d+ bra)"
SLICE_END = r"add\.s32 \s*(%r\d+), (%r\d+), (%r\d+);(?=[^;]*div\.s32)"
SLICE_BEGIN = r"min\.s32 \s*(%r\d+), (%r\d+), (%r\d+);"
OF_SLICES: dict[str, Callable[[str], str]] = {
    "readers take one turn more": changed(TURNS, lambda m: f"setp.le.s32{m[1]}", 0),
    "the filler takes one turn more": changed(TURNS, lambda m: f"setp.le.s32{m[1]}", 2),
    "the filler's slice is longer": changed(SLICE_END, lambda m: f"{m[0]}\n\tadd.s32 {m[1]}, {m[1]}, 1;", -1),
    "the filler's slice is shorter": changed(SLICE_END, lambda m: f"{m[0]}\n\tsub.s32 {m[1]}, {m[1]}, 1;", -1),
    "the filler begins later": changed(SLICE_END, lambda m: f"{m[0]}\n\tadd.s32 {m[3]}, {m[3]}, 1;", -1),
    "the filler's turns may overflow": changed(SLICE_BEGIN, lambda m: f"mov.u32 {m[1]}, {m[2]};", 2),
    "readers have slices of another length": changed(SLICE_BEGIN, lambda m: f"{m[0]}\n\tshr.s32 {m[1]}, {m[1]}, 1;", 1),
    "slices of the filler are those of other tiles": changed(SLICE_BEGIN, lambda m: f"add.s32 {m[2]}, {m[2]}, 1;\n\t{m[0]}", 2),
}


@pytest.mark.parametrize("mistake", OF_SLICES)
def test_a_mistake_in_slices_of_k_is_not_proved(mistake: str) -> None:
    sequence, ptx = kernel_with_slices()
    mutant = OF_SLICES[mistake](ptx)
    assert mutant != ptx
    assert "progress" not in prove_kernel(sequence, sequence.launches[0], mutant, SECONDS_OF_SLICES).proved


GUARD = r"setp\.ge\.s32(\s+%p\d+, %r\d+, %r\d+;\s*(?:\.loc[^;\n]*\n\s*)*@%p\d+ bra)"
PARTIAL_SUM = r"st\.global\.v2\.f32\s*\[(%rd\d+)(\+\d+)?\]"


def farther(which: int, bytes_: int) -> Callable[[str], str]:
    """Stores a partial sum so many bytes farther."""
    return changed(PARTIAL_SUM, lambda m: f"st.global.v2.f32 [{m[1]}+{int((m[2] or '+0')[1:]) + bytes_}]", which)


OF_ROWS: dict[str, Callable[[str], str]] = {
    "a slice too many": changed(TURNS, lambda m: f"setp.le.s32{m[1]}", 1),
    "a row too many": changed(GUARD, lambda m: f"setp.gt.s32{m[1]}", 1),
    "a column too many": changed(GUARD, lambda m: f"setp.gt.s32{m[1]}", 2),
    "rows as long as multiples of 2": lambda ptx: re.sub(r"(and\.b32 \s*%r\d+, %r\d+,) -4;", r"\1 -2;", ptx),
    "rows of any length": lambda ptx: re.sub(r"(and\.b32 \s*%r\d+, %r\d+,) -4;", r"\1 -1;", ptx),
    "a pair that is not aligned": farther(0, 4),
    "a pair in the next columns": farther(3, 8),
    "a pair far away": farther(7, 1024),
}


@pytest.mark.parametrize("mistake", OF_ROWS)
def test_a_mistake_in_partial_sums_is_not_proved(mistake: str) -> None:
    sequence, ptx = kernel_with_slices()
    mutant = OF_ROWS[mistake](ptx)
    assert mutant != ptx
    assert "memory" not in prove_kernel(sequence, sequence.launches[0], mutant, SECONDS_OF_SLICES).proved


def test_slices_of_k_are_proved() -> None:
    sequence, ptx = kernel_with_slices()
    proof = prove_kernel(sequence, sequence.launches[0], ptx, SECONDS_OF_SLICES)
    assert {"memory", "races", "progress", "initialised"} <= set(proof.proved), [each.reasons for each in proof.properties]


def test_each_store_of_a_line_counts() -> None:
    """The second of two stores in one line reaches beyond shared memory."""
    sequence, ptx = kernel()
    last = 1024 + sequence.launches[0].dynamic_shared_bytes.evaluate({}) - 1
    stores = f"{{ .reg .b32 a, v; mov.u32 a, {last}; mov.u32 v, 0; st.shared.u8 [a], v; st.shared.v4.u32 [a], {{v, v, v, v}}; }}"
    assert "memory" not in proof_of(sequence, changed(STORE, lambda found: f"{stores}\n\t{found[0]}")(ptx)).proved


def test_an_array_that_is_only_written_is_not_copied() -> None:
    sequence, ptx = kernel()
    first, second, result = sequence.tensor_maps
    wrong = replace(sequence, arguments=tuple(replace(each, array=result.array) if each is first else each for each in sequence.arguments))
    assert {second.array, result.array} == {map_.array for map_ in wrong.tensor_maps}
    assert not {"initialised", "races"} & set(proof_of(wrong, ptx).proved)


def test_shared_memory_must_be_as_large_as_the_ring() -> None:
    sequence, ptx = kernel()
    (launch,) = sequence.launches
    small = replace(launch, dynamic_shared_bytes=Formula(str(launch.dynamic_shared_bytes.evaluate({}) - 8)))
    assert "memory" not in prove_kernel(replace(sequence, launches=(small,)), small, ptx, SECONDS).proved


def test_rows_of_a_result_must_lie_apart() -> None:
    sequence, ptx = kernel()
    overlapping = tuple(each for each in sequence.constraints if "ldc" not in str(each.condition) or "%" in str(each.condition))
    assert len(overlapping) < len(sequence.constraints)
    assert "once" not in proof_of(replace(sequence, constraints=overlapping), ptx).proved


@pytest.mark.parametrize(("field", "formula"), [("extents", ("n + 1", "m")), ("strides", ("2 * ldc + 16",)), ("offset_bytes", "16")])
def test_a_map_must_be_that_of_its_array(field: str, formula: str | tuple[str, ...]) -> None:
    sequence, ptx = kernel()
    wrong = Formula(formula) if isinstance(formula, str) else tuple(map(Formula, formula))
    arguments = tuple(replace(each, **{field: wrong}) if each.name == "map_c" else each for each in sequence.arguments)
    assert "memory" not in proof_of(replace(sequence, arguments=arguments), ptx).proved


@pytest.mark.parametrize("register", ["%tid.w", "%ntid.w"])
def test_a_thread_index_along_no_axis_is_not_followed(register: str) -> None:
    sequence, ptx = kernel()
    assert not proof_of(sequence, ptx.replace("%tid.x", register, 1)).proved
