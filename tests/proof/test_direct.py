"""Kernels with a ring whose threads store results themselves: the stores are proved for every problem, and no mistake in them is."""

from __future__ import annotations

import re
from functools import cache

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.emulator.ptx.parser import parse
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.complete import not_stored
from gemmgen.proof.contract import Contract
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.prover import KernelProof, prove_kernel
from gemmgen.proof.solver import Solver
from gemmgen.toolchain.compilation import compile_plan

NAME = "gemm/wgmma/fp8_decode/16_two"
STORE = "st.global.u16"
SECONDS = 20.0


@cache
def kernel() -> tuple[LaunchSequence, str]:
    """A kernel for few columns, whose threads store the registers of their products, and its PTX."""
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()[NAME]))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, re.sub(r"\n\s*(\.loc[^\n]*|//[^\n]*)?(?=\n)", "", compile_plan(plan).ptx)


def proof_of(ptx: str) -> KernelProof:
    sequence, _ = kernel()
    return prove_kernel(sequence, sequence.launches[0], ptx, SECONDS)


def test_stores_of_registers_are_proved() -> None:
    proof = proof_of(kernel()[1])
    assert set(proof.proved) == {"memory", "races", "progress", "initialised", "once", "complete"}, [
        each.reasons for each in proof.properties
    ]


def test_mistakes_change_the_kernel_of_these_tests() -> None:
    _, ptx = kernel()
    assert len(re.findall(STORE, ptx)) == 8
    for pattern, into, _ in MISTAKES.values():
        assert re.sub(pattern, into, ptx, count=1) != ptx, pattern


MISTAKES: dict[str, tuple[str, str, str]] = {
    "rows without a guard": (r"setp\.ge\.s32 (\s*%p\d+, %r\d+, %r\d+;\s*@%p\d+ bra\s+\S+;\s*ld\.param)", r"setp.ne.s32 \1", "memory"),
    "one row too many": (r"setp\.ge\.s32 (\s*%p\d+, %r\d+, %r\d+;\s*@%p\d+ bra\s+\S+;\s*ld\.param)", r"setp.gt.s32 \1", "memory"),
    "one column too many": (r"setp\.ge\.s32 (\s*%p\d+, %r\d+, %r\d+;\s*@%p\d+ bra\s+\S+;\s*cvt\.rn)", r"setp.gt.s32 \1", "memory"),
    "a store nine rows further": (r"(st\.global\.u16 \s*\[%rd\d+)\+16\]", r"\1+18]", "memory"),
    "a store between two elements": (r"(st\.global\.u16 \s*\[%rd\d+)\+16\]", r"\1+15]", "memory"),
    "two stores to one element": (r"(st\.global\.u16 \s*\[%rd\d+)\+16\]", r"\1]", "once"),
    "a wider store": (r"st\.global\.u16 (\s*\[%rd\d+\]), %rs\d+;", r"st.global.f32 \1, %f1;", "memory"),
    "lanes share rows": (r"shr\.u32 (\s*%r\d+, %r\d+), 2;", r"shr.u32 \1, 3;", "once"),
    "lanes share columns": (r"and\.b32 (\s*%r\d+, %r\d+), 6;", r"and.b32 \1, 4;", "once"),
    "warps share rows": (r"and\.b32 (\s*%r\d+, %r\d+), 96;", r"and.b32 \1, 64;", "once"),
    "tiles share columns": (r"shl\.b32 (\s*%r\d+, %r\d+), 4;(?=\s*or\.b32)", r"shl.b32 \1, 3;", "once"),
    "tiles share rows": (r"shl\.b32 (\s*%r\d+, %r\d+), 6;(?=\s*or\.b32)", r"shl.b32 \1, 5;", "once"),
    "a product of 32 bits": (
        r"mul\.wide\.s32 (\s*)(%rd\d+), (%r\d+), (%r\d+);(?=\s*add\.s64 \s*%rd\d+, \2)",
        r"mul.lo.s32 %r44, \3, \4;\ncvt.s64.s32 \2, %r44;",
        "memory",
    ),
    "roles by lane": (r"shr\.u32 (\s*%r\d+, %r\d+), 7;", r"and.b32 \1, 1;", "once"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_store_is_not_proved(mistake: str) -> None:
    _, ptx = kernel()
    pattern, into, wrong = MISTAKES[mistake]
    assert wrong not in proof_of(re.sub(pattern, into, ptx, count=1)).proved


ROW = r"(setp\.ge\.s32 \s*%p\d+, %r\d+, )(%r\d+)(;\s*@%p\d+ bra\s+\S+;\s*ld\.param)"
COLUMN = r"(setp\.ge\.s32 \s*%p\d+, %r\d+, )(%r\d+)(;\s*@%p\d+ bra\s+\S+;\s*cvt\.rn)"
NOT_WHOLE: dict[str, tuple[str, str]] = {
    "the last row": (ROW, r"add.s32 %r91, \2, -1;\n\1%r91\3"),
    "rows beyond 4096": (ROW, r"min.s32 %r91, \2, 4096;\n\1%r91\3"),
    "the last column": (COLUMN, r"add.s32 %r91, \2, -1;\n\1%r91\3"),
    "rows where the sums are long": (ROW, r"min.s32 %r91, \2, %r205;\n\1%r91\3"),
    "a store of the first lane": (r"(setp\.ne\.s32 \s*(%p\d+), %r\d+, 0;[^$]*wgmma[^@]*[^%]*[\s\S]*?)(st\.global)", r"\1@\2 \3"),
    "a store of other stages than the first": (r"st\.global", r"setp.ne.s32 %p8, %r209, 0;\n@%p8 st.global"),
    "a store that waits decide": (r"st\.global", r"setp.ne.s32 %p8, %r88, 0;\n@%p8 st.global"),
    "a thread that leaves unless a wait succeeds at once": (r"(@%p7 bra \s*)\$L__BB0_8", r"\1$L__BB0_26"),
    "nothing is stored where k is 0": (r"(@%p6 bra \s*)\$L__BB0_12", r"\1$L__BB0_26"),
    "the tile of the first block": (r"setp\.ge\.s32 (\s*%p5, %r202), %r4;", r"setp.lt.s32 \1, 1;"),
    "the last tile": (r"(setp\.ge\.s32 \s*%p5, %r202), %r4;", r"add.s32 %r91, %r4, -1;\n\1, %r91;"),
    "a row of tiles": (r"div\.s32 (\s*%r\d+, %r202), %r3;", r"add.s32 %r91, %r3, 1;\ndiv.s32 \1, %r91;"),
    "a store nine rows further": (r"(st\.global\.u16 \s*\[%rd\d+)\+16\]", r"\1+18]"),
    "two stores to one element": (r"(st\.global\.u16 \s*\[%rd\d+)\+16\]", r"\1]"),
    "lanes share rows": (r"shr\.u32 (\s*%r\d+, %r\d+), 2;", r"shr.u32 \1, 3;"),
    "lanes share columns": (r"and\.b32 (\s*%r\d+, %r\d+), 6;", r"and.b32 \1, 4;"),
    "warps share rows": (r"and\.b32 (\s*%r\d+, %r\d+), 96;", r"and.b32 \1, 64;"),
    "tiles share columns": (r"shl\.b32 (\s*%r\d+, %r\d+), 4;(?=\s*or\.b32)", r"shl.b32 \1, 3;"),
    "tiles share rows": (r"shl\.b32 (\s*%r\d+, %r\d+), 6;(?=\s*or\.b32)", r"shl.b32 \1, 5;"),
    "roles by lane": (r"shr\.u32 (\s*%r\d+, %r\d+), 7;", r"and.b32 \1, 1;"),
}


def left_out(ptx: str) -> str:
    """The reason why an element of the result may not be stored, provided that loops and waits end."""
    sequence, _ = kernel()
    module, launch = parse(ptx), sequence.launches[0]
    function = next(each for each in module.functions.values() if each.is_entry)
    lifter = Lifter(module, function, Contract(sequence, launch), Solver(SECONDS))
    lifter.known.of_ring = True
    lifter.lift()
    return not_stored(lifter, lifter.known.contract.arrays["C"])


def test_threads_store_every_element() -> None:
    assert left_out(kernel()[1]) == ""


@pytest.mark.parametrize("mistake", NOT_WHOLE)
def test_elements_that_no_thread_stores_are_noticed(mistake: str) -> None:
    _, ptx = kernel()
    pattern, into = NOT_WHOLE[mistake]
    mutant = re.sub(pattern, into, ptx, count=1)
    assert mutant != ptx and left_out(mutant)
