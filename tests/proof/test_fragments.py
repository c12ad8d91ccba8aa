"""Coverage of k of kernels with wgmma: no kernel with a mistake in products, sums or stores is proved."""

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
from gemmgen.proof.fragments import Form, form_of
from gemmgen.proof.symbols import Expression
from gemmgen.toolchain.compilation import compile_plan
from tests.proof.test_rings import LOAD, STORE, changed, doubled, kernel, number, proof_of, without

PRODUCT = r"wgmma\.mma_async[^{]*\{([^}]*)\}, (%rd\d+), (%rd\d+), p, 1, 1, 0, 0;"
ZERO = r"mov\.f32 \s*%f\d+, 0f00000000;"
ROUND = r"cvt\.rn\.bf16\.f32 (%rs\d+), (%f\d+);"
MATRICES = r"(stmatrix[^{]*)\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\};"
DEPTH = r"shl\.b32 \s*%r\d+, (%r\d+), 6;(?=[^;]*cp\.async\.bulk\.tensor)"
LIMIT = r"add\.s32 \s*%r\d+, %r44, (63);"


def everywhere(pattern: str, into: str) -> Callable[[str], str]:
    return lambda ptx: re.sub(pattern, into, ptx)


def both(one: Callable[[str], str], other: Callable[[str], str]) -> Callable[[str], str]:
    return lambda ptx: other(one(ptx))


def coordinates(which: int, into: Callable[[str, str], str]) -> Callable[[str], str]:
    """Changes the coordinates of a copy to the ring."""

    def change(found: re.Match[str]) -> str:
        pair = re.search(r"\{(%r\d+), (%r\d+)\}", found[0])
        assert pair is not None
        return into(pair[1], pair[2]).replace("COPY", found[0]).replace(pair[0], "{%r8001, %r8002}")

    return changed(LOAD, change, which)


def declared(change: Callable[[str], str]) -> Callable[[str], str]:
    """A change that may use registers %r8001 to %r8009 and %p801."""
    return lambda ptx: change(ptx).replace(".reg .pred ", ".reg .b32 %r8001, %r8002, %r8003;\n\t.reg .pred %p801;\n\t.reg .pred ", 1)


def place(row: str, column: str) -> Callable[[str], str]:
    """Changes where a box of the result goes, given as statements for column %r8001 and row %r8002 from columns C and rows R."""

    def change(found: re.Match[str]) -> str:
        text = (column + row).replace("C", found[1]).replace("R", found[2])
        return text + found[0].replace(f"{{{found[1]}, {found[2]}}}", "{%r8001, %r8002}")

    return declared(changed(STORE, change))


def copy(first: str, second: str) -> Callable[[str, str], str]:
    return lambda depth, row: first.replace("K", depth).replace("R", row) + second.replace("K", depth).replace("R", row) + "COPY"


SAME_K, SAME_ROW = "mov.u32 %r8001, K;\n\t", "mov.u32 %r8002, R;\n\t"
SAME_COLUMN = "mov.u32 %r8001, C;\n\t"
MISTAKES: dict[str, Callable[[str], str]] = {
    "A begins a tile of k later": declared(coordinates(0, copy("add.s32 %r8001, K, 64;\n\t", SAME_ROW))),
    "B begins at index 1": declared(coordinates(1, copy("add.s32 %r8001, K, 1;\n\t", SAME_ROW))),
    "A is read one row below": declared(coordinates(0, copy(SAME_K, "add.s32 %r8002, R, 1;\n\t"))),
    "B is read one column further": declared(coordinates(1, copy(SAME_K, "add.s32 %r8002, R, 1;\n\t"))),
    "A is transposed": declared(coordinates(0, copy("mov.u32 %r8001, R;\n\t", "mov.u32 %r8002, K;\n\t"))),
    "A repeats its tile of k from 2^20 on": declared(coordinates(0, copy("min.s32 %r8001, K, 1048576;\n\t", SAME_ROW))),
    "B skips a tile of k at turn eleven": declared(
        coordinates(
            1,
            copy("setp.eq.s32 %p801, K, 704;\n\tselp.b32 %r8003, 64, 0, %p801;\n\tadd.s32 %r8001, K, %r8003;\n\t", SAME_ROW),
        )
    ),
    "both skip the first half of k": changed(
        DEPTH, lambda m: m[0] + "\n\t" + re.sub(r"shl\.b32 \s*(%r\d+).*", r"add.s32 \1, \1, 32;", m[0])
    ),
    "tiles of k lie twice as far apart": number(r"shl\.b32 \s*%r\d+, %r225, (6);", lambda n: n + 1),
    "tiles of k overlap": number(r"shl\.b32 \s*%r\d+, %r225, (6);", lambda n: n - 1),
    "the tail of k is left out": everywhere(r"(add\.s32 \s*%r\d+, %r44,) 63;", r"\1 0;"),
    "a tail of one index is left out": everywhere(r"(add\.s32 \s*%r\d+, %r44,) 63;", r"\1 62;"),
    "one index of k is dropped": both(
        everywhere(r"setp\.lt\.s32 (\s*%p\d+), (%r211|%r44), 1;", r"setp.lt.s32 \1, \2, 2;"),
        everywhere(r"(add\.s32 \s*%r\d+, %r44,) 63;", r"\1 62;"),
    ),
    "k = 1 is passed over": everywhere(r"setp\.lt\.s32 (\s*%p\d+), (%r211|%r44), 1;", r"setp.lt.s32 \1, \2, 2;"),
    "a product is left out": without(PRODUCT, 2),
    "a product is added twice": changed(PRODUCT, doubled, 2),
    "products read the same indices": number(r"add\.s32 \s*%r101, %r100, (2);", lambda n: n - 2),
    "A and B are read at different indices": number(r"add\.s32 \s*%r102, %r95, (2);", lambda n: n + 2),
    "products in the wrong order of both": both(
        number(r"add\.s32 \s*%r101, %r100, (2);", lambda n: n + 4), number(r"add\.s32 \s*%r105, %r100, (6);", lambda n: n - 4)
    ),
    "B is read twice": changed(PRODUCT, lambda m: m[0].replace(m[2], m[3]), 1),
    "operands are exchanged": changed(PRODUCT, lambda m: m[0].replace(f"{m[2]}, {m[3]}", f"{m[3]}, {m[2]}"), 1),
    "a product is subtracted": changed(PRODUCT, lambda m: m[0].replace("p, 1, 1", "p, 1, -1"), 1),
    "a product reads A along its rows": changed(PRODUCT, lambda m: m[0].replace("1, 1, 0, 0", "1, 1, 1, 0"), 1),
    "bf16 is read as f16": changed(PRODUCT, lambda m: m[0].replace("f32.bf16.bf16", "f32.f16.f16"), 1),
    "a product begins the sum again": changed(r"setp\.ne\.b32 p, 1, 0;(\s*wgmma)", lambda m: f"setp.ne.b32 p, 0, 0;{m[1]}", 2),
    "every turn begins the sum again": changed(r"setp\.ne\.b32 p, 1, 0;(\s*wgmma)", lambda m: f"setp.ne.b32 p, 0, 0;{m[1]}", 0),
    "registers of a sum are exchanged": changed(
        PRODUCT, lambda m: m[0].replace(m[1], ", ".join([*m[1].split(", ")[1::-1], *m[1].split(", ")[2:]])), 3
    ),
    "sums do not begin at 0": changed(ZERO, lambda m: m[0].replace("0f00000000", "0f3F800000"), 1),
    "sums of an empty k are 1": changed(ZERO, lambda m: m[0].replace("0f00000000", "0f3F800000"), 0),
    "a sum is not set to 0": everywhere(r"mov\.f32 \s*%f250, %f\d+;", ""),
    "a sum begins with another": changed(r"(mov\.f32 \s*%f250), %f\d+;", lambda m: f"{m[1]}, %f1;", 1),
    "a sum changes after its products": changed(ROUND, lambda m: f"add.f32 {m[2]}, {m[2]}, {m[2]};\n\t{m[0]}", 3),
    "another sum is rounded": changed(ROUND, lambda m: m[0].replace(m[2], "%f256"), 3),
    "a sum is rounded as f16": changed(ROUND, lambda m: m[0].replace("bf16", "f16"), 3),
    "some threads keep their old values": declared(changed(ROUND, lambda m: f"setp.ne.s32 %p801, %r1, 200;\n\t@%p801 {m[0]}", 3)),
    "halves of a register are exchanged": changed(
        r"(mov\.b32 \s*%r128), \{(%rs\d+), (%rs\d+)\};", lambda m: f"{m[1]}, {{{m[3]}, {m[2]}}};"
    ),
    "matrices are exchanged": changed(MATRICES, lambda m: f"{m[1]}{{{m[3]}, {m[2]}, {m[4]}, {m[5]}}};"),
    "matrices are transposed": changed(MATRICES, lambda m: m[0].replace(".shared", ".trans.shared")),
    "a matrix is stored twice": changed(MATRICES, lambda m: f"{m[1]}{{{m[2]}, {m[2]}, {m[4]}, {m[5]}}};"),
    "rows of a matrix are not swizzled": number(r"and\.b32  \s*%r141, %r1, (7);", lambda n: 0),
    "warps store each other's rows": changed(r"(shr\.u32 \s*%r144), %r124, 5;", lambda m: f"{m[1]}, %r124, 5;\n\txor.b32 %r144, %r144, 1;"),
    "a box goes one row below": place("add.s32 %r8002, R, 1;\n\t", SAME_COLUMN),
    "a box goes 32 columns further": place(SAME_ROW, "add.s32 %r8001, C, 32;\n\t"),
    "a box goes to the next tile from row 2^20 on": place(
        "setp.gt.s32 %p801, R, 1048575;\n\tselp.b32 %r8003, 64, 0, %p801;\n\tadd.s32 %r8002, R, %r8003;\n\t", SAME_COLUMN
    ),
    "rows and columns of tiles are exchanged": changed(STORE, lambda m: m[0].replace(f"{m[1]}, {m[2]}", f"{m[2]}, {m[1]}")),
    "readers take other tiles than the filler": changed(r"(min\.s32 \s*%r160, %r159), 8;", lambda m: f"{m[1]}, 4;"),
    "an operand is stored": changed(r"(add\.s32 \s*%r154, %r90), 36864;", lambda m: f"{m[1]}, 24576;"),
}


ADD = r"add\.rn\.f32 \s*(%f\d+), (%f\d+), \1;"
FIRST = r"setp\.ne\.b32 p, (%r\d+), 0;(\s*wgmma)"
OF_TOTALS: dict[str, Callable[[str], str]] = {
    "a sum is not added to its total": without(ADD, 3),
    "a sum is added twice": changed(ADD, doubled, 3),
    "a sum is added to another total": both(without(ADD, 3), changed(ADD, lambda m: f"{m[0]}\n\tadd.rn.f32 {m[1]}, {m[2]}, {m[1]};", 3)),
    "totals are exchanged": changed(
        ADD + r"(\s*)" + ADD.replace(r"\1", r"\4"), lambda m: m[0].replace(m[2], "SUM").replace(m[5], m[2]).replace("SUM", m[5])
    ),
    "a sum is subtracted": changed(
        ADD, lambda m: m[0].replace("add.rn.f32", "sub.rn.f32").replace(f"{m[2]}, {m[1]}", f"{m[1]}, {m[2]}"), 3
    ),
    "a total begins at 1": changed(ZERO, lambda m: m[0].replace("0f00000000", "0f3F800000"), 0),
    "a total is not set to 0": changed(r"mov\.f32 \s*%f\d+, %f\d+;", lambda m: "", 5),
    "sums go on from turn to turn": changed(FIRST, lambda m: f"setp.ne.b32 p, 1, 0;{m[2]}", 0),
    "a sum begins with its second product": changed(FIRST, lambda m: f"setp.ne.b32 p, 0, 0;{m[2]}", 1),
    "each product begins a sum": everywhere(FIRST, r"setp.ne.b32 p, 0, 0;\2"),
    "no sum begins at 0": everywhere(FIRST, r"setp.ne.b32 p, 1, 0;\2"),
    "the last sum is stored, and not the total": lambda ptx: re.sub(
        ROUND, lambda m: m[0].replace(m[2], dict(re.findall(ADD, ptx)).get(m[2], m[2])), ptx
    ),
    "some threads do not add": declared(changed(ADD, lambda m: f"setp.ne.s32 %p801, %r1, 200;\n\t@%p801 {m[0]}", 3)),
    "the tail of k is left out": everywhere(r"(add\.s32 \s*%r\d+, %r\d+,) 127;", r"\1 0;"),
}


STORE_WORDS = r"(st\.shared\.v2\.b32 \[%r\d+\], )\{(%r\d+), (%r\d+)\};"
OF_GROUPS: dict[str, Callable[[str], str]] = {
    "both groups multiply the first rows": changed(r"shl\.b32 \s*(%r\d+), %r2, 13;", lambda m: f"mov.u32 {m[1]}, 8192;"),
    "groups multiply each other's rows": changed(
        r"shl\.b32 \s*(%r\d+), %r2, 13;", lambda m: f"shl.b32 {m[1]}, %r2, 13;\n\tsub.s32 {m[1]}, 24576, {m[1]};"
    ),
    "groups store each other's rows": changed(
        r"shl\.b32 \s*(%r\d+), %r2, 6;", lambda m: f"shl.b32 {m[1]}, %r2, 6;\n\tsub.s32 {m[1]}, 192, {m[1]};"
    ),
    "groups share the place of their results": changed(r"shl\.b32 \s*(%r\d+), %r2, 14;", lambda m: f"mov.u32 {m[1]}, 16384;"),
    "columns of a pair are exchanged": changed(STORE_WORDS, lambda m: f"{m[1]}{{{m[3]}, {m[2]}}};", 2),
    "a pair is not stored": without(STORE_WORDS, 8),
    "the second box has the columns of the first": changed(
        STORE, lambda m: m[0].replace(m[1], re.findall(r"global[^{]*\{(%r\d+), ", "".join(m.string.splitlines()))[0]), 1
    ),
    "the second box goes one column further": changed(r"add\.s32 \s*(%r\d+), (%r\d+), 24;", lambda m: f"add.s32 {m[1]}, {m[2]}, 25;"),
    "the sums are those of the first columns": lambda ptx: re.sub(
        r"(st\.shared\.v2\.b32 \[%r549\], )\{%r662, %r661\}", r"\1{%r674, %r673}", ptx
    ),
}


@cache
def kernel_with_groups() -> tuple[LaunchSequence, str]:
    """A kernel of two groups of warps that store whole words, and its PTX."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()["gemm/wgmma/int8/128x48"], []))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, compile_plan(plan).ptx


@pytest.mark.parametrize("mistake", OF_GROUPS)
def test_a_mistake_of_a_group_is_not_proved(mistake: str) -> None:
    sequence, ptx = kernel_with_groups()
    mutant = OF_GROUPS[mistake](ptx)
    assert mutant != ptx
    assert "coverage" not in proof_of(sequence, mutant).proved


@cache
def kernel_with_totals() -> tuple[LaunchSequence, str]:
    """A kernel that adds the sums of each turn to totals, and its PTX."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()["gemm/wgmma/fp8/64x32"], ["mainloop.stages=3"]))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, compile_plan(plan).ptx


def test_sums_and_totals_are_proved() -> None:
    assert "coverage" in proof_of(*kernel_with_totals()).proved


@pytest.mark.parametrize("mistake", OF_TOTALS)
def test_a_mistake_in_a_total_is_not_proved(mistake: str) -> None:
    sequence, ptx = kernel_with_totals()
    mutant = OF_TOTALS[mistake](ptx)
    assert mutant != ptx
    assert "coverage" not in proof_of(sequence, mutant).proved


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_sum_is_not_proved(mistake: str) -> None:
    sequence, ptx = kernel()
    mutant = MISTAKES[mistake](ptx)
    assert mutant != ptx
    assert "coverage" not in proof_of(sequence, mutant).proved


def test_forms_are_equal_modulo_words() -> None:
    turn = Expression("counter", (3, 10))
    shifted = Expression("or.b32", (Expression("shl.b32", (turn, 6)), 32))
    assert form_of(shifted) == Form(frozenset({(turn, 64)}), 32)
    assert form_of(Expression("or.b32", (Expression("shl.b32", (turn, 5)), 32))).terms != frozenset({(turn, 32)})
    assert Form(frozenset({(turn, 1 << 32)}), 5).congruent(Form(frozenset(), 5 + (1 << 32)))
    assert not Form(frozenset({(turn, 1 << 31)})).congruent(Form())


def test_a_product_of_two_numbers_is_no_square() -> None:
    rows = Expression("param", (3,))
    one = Expression("add.s32", (Expression("sub.s32", (rows, rows)), 1))
    assert form_of(Expression("mul.s32", (one, 1 << 16))) == Form(frozenset(), 1 << 16)
