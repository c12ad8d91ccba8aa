"""Blocks that share a counter: the last one stores the result, and no mistake in that is proved."""

from __future__ import annotations

import re
from functools import cache

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.prover import prove_sequence
from gemmgen.toolchain.compilation import compile_plan

NAME = "reduction/columns/128"
SECONDS = 20.0


@cache
def kernel() -> tuple[LaunchSequence, str]:
    """Sums of columns, of which 33 blocks share each tile, and their PTX."""
    plan = gemmgen.plan(shipped_specs()[NAME])
    assert isinstance(plan, KernelPlan)
    return plan.sequence, compile_plan(plan).ptx


def proved(ptx: str) -> tuple[str, ...]:
    (proof,) = prove_sequence(kernel()[0], ptx, SECONDS)
    return proof.proved


def test_the_last_block_is_proved() -> None:
    assert {"memory", "races", "once", "progress", "initialised"} <= set(proved(kernel()[1]))


FLAG = r"\[_ZZ10comes_last\w*\]"
MISTAKES: dict[str, tuple[str, str, str]] = {
    "every sixteenth block is the last": (r"(setp\.(?:ne|eq)\.s32\s+%p\d+, %r\d+), 32;", r"\1, 15;", "once"),
    "one block more than is waited for": (r"(setp\.(?:ne|eq)\.s32\s+%p\d+, %r\d+), 32;", r"\1, 31;", "once"),
    "the others continue": (r"setp\.eq(\.s16\s+%p\d+, %rs\d+, 0;)", r"setp.ne\1", "once"),
    "every block is the last": (r"(selp\.u16\s+%rs\d+), 1, 0,", r"\1, 1, 1,", "once"),
    "nothing is added": (r"(mov\.u32\s+%r\d+), 1;(?=(?:[^;]*;){0,2}[^;]*atom)", r"\1, 0;", "once"),
    "every thread adds": (
        r"setp\.ne\.s32(\s+%p\d+, %r\d+, 0;\s*(?:\.loc[^\n]*\n\s*)*@%p\d+ bra[^;]*;(?=(?:[^;]*;){1,8}[^;]*atom))",
        r"setp.lt.s32\1",
        "once",
    ),
    "the counter restarts high": (r"(mov\.u32\s+%r\d+), 0;(?=[^;]*st\.global\.u32)", r"\1, 31;", "once"),
    "every block resets the counter": (r"@%p\d+ bra\s+\$L__BB0_\d+;(?=(?:[^;]*;){1}[^;]*st\.global\.u32)", "", "once"),
    "blocks add for themselves": (r"atom\.add\.acq_rel\.gpu", "atom.add.acq_rel.cta", "once"),
    "tiles share a counter": (r"(atom\.add[^\[]*\[)(%rd\d+)\]", r"and.b64 \2, \2, -8;\n\t\1\2]", "once"),
    "all tiles share a counter": (r"(shl\.b64\s+%rd\d+, %rd\d+), 2;(?=(?:[^;]*;){1,4}[^;]*atom)", r"\1, 63;", "once"),
    "no barrier before the flag is read": (rf"bar\.sync\s+0;(?=[^;]*ld\.shared\.u8[^;]*{FLAG})", "", "progress"),
    "a thread changes the flag": (rf"(ld\.shared\.u8\s+(%rs\d+), ({FLAG});)", r"st.shared.u8 \3, %rs1;\n\t\1", "progress"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_with_tickets_is_not_proved(mistake: str) -> None:
    pattern, into, wrong = MISTAKES[mistake]
    ptx = kernel()[1]
    mutant = re.sub(pattern, into, ptx)
    assert mutant != ptx
    assert wrong not in proved(mutant)
