"""Partial results of other blocks: they are read after they were stored, and no mistake in that is proved."""

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
from gemmgen.proof.complete import complete
from gemmgen.proof.contract import Contract
from gemmgen.proof.flags import ended_waits
from gemmgen.proof.handover import handover
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import Verdict
from gemmgen.proof.solver import Solver
from gemmgen.toolchain.compilation import compile_plan

TICKETS, WORDS, LAUNCHES = "reduction/columns/32", "reduction/sum/1m", "reduction/s7_shuffle"


@cache
def kernel(name: str) -> tuple[LaunchSequence, str]:
    plan = gemmgen.plan(shipped_specs()[name])
    assert isinstance(plan, KernelPlan)
    return plan.sequence, compile_plan(plan).ptx


def lifted(name: str, ptx: str) -> list[Lifter]:
    """Each launch, whose memory, races and progress count as proved."""
    sequence, module = kernel(name)[0], parse(ptx)
    found = []
    for launch in sequence.launches:
        function = next(each for each in module.functions.values() if each.is_entry and each.name == launch.entry)
        found.append(Lifter(module, function, Contract(sequence, launch), Solver(60.0)))
        found[-1].lift()
    return found


def verdicts(name: str, ptx: str) -> list[Verdict]:
    return [handover(lifter, ended_waits(lifter)) for lifter in lifted(name, ptx)]


@pytest.mark.parametrize("name", (TICKETS, WORDS, LAUNCHES))
def test_partial_results_are_read_after_they_are_stored(name: str) -> None:
    assert all(verdict.holds and verdict.obligations for verdict in verdicts(name, kernel(name)[1]))


ATOM = r"atom\.add\.acq_rel\.gpu"
FLAG = r"\[_ZZ10comes_last\w*\]"
MISTAKES: dict[str, tuple[str, str, str]] = {
    "neighbours store to one place": (LAUNCHES, r"mul\.wide\.u32(\s+%rd\d+), (%r1), 4;", r"shr.u32 \2, \2, 1; mul.wide.u32\1, \2, 4;"),
    "blocks far apart store to one place": (
        LAUNCHES,
        r"mul\.wide\.u32(\s+%rd\d+), (%r1), 4;",
        r"and.b32 \2, \2, 1023; mul.wide.u32\1, \2, 4;",
    ),
    "blocks store to one place": (LAUNCHES, r"mul\.wide\.u32(\s+%rd\d+), %r1, 4;", r"mov.u64\1, 0;"),
    "threads store to one place": (LAUNCHES, r"@%p\d+ bra\s+\$L__BB0_\d+;(?=(?:[^;]*;){1,12}[^;]*st\.global)", ""),
    "the addition neither releases nor acquires": (TICKETS, ATOM, "atom.add.relaxed.gpu"),
    "the addition only releases": (TICKETS, ATOM, "atom.add.release.gpu"),
    "the addition only acquires": (TICKETS, ATOM, "atom.add.acquire.gpu"),
    "the addition is for this block alone": (TICKETS, ATOM, "atom.add.acq_rel.cta"),
    "no barrier before the addition": (TICKETS, rf"bar\.sync\s+0;(?=(?:[^;]*;){{1,12}}[^;]*{ATOM})", ""),
    "a barrier of the warp before the addition": (TICKETS, rf"bar\.sync\s+0;(?=(?:[^;]*;){{1,12}}[^;]*{ATOM})", "bar.warp.sync -1;"),
    "a barrier of the warp before the flag is loaded": (TICKETS, rf"bar\.sync\s+0;(?=[^;]*ld\.shared\.u8[^;]*{FLAG})", "bar.warp.sync -1;"),
    "partial sums through constant caches": (TICKETS, r"ld\.global\.f32(?=[^\n]*\n(?!.*ld\.global\.f32).*\Z)", "ld.global.nc.f32"),
    "one addition more is waited for": (
        TICKETS,
        r"(setp\.(?:ne|eq)\.s32\s+%p\d+, %r\d+), (\d+)(;(?=(?:[^;]*;){0,3}[^;]*selp\.u16))",
        r"\1, 1\3",
    ),
    "every block loads partial sums": (TICKETS, r"(selp\.u16\s+%rs\d+), 1, 0,", r"\1, 1, 1,"),
    "the flag is not looked at": (TICKETS, rf"(ld\.shared\.u8\s+(%rs\d+), {FLAG};)", r"\1 mov.u16 \2, 1;"),
    "words are stored without a scope": (WORDS, r"st\.relaxed\.gpu\.(?:global\.)?", "st.global."),
    "words are stored for this block alone": (WORDS, r"st\.relaxed\.gpu", "st.relaxed.cta"),
    "the first attempt loads another word": (WORDS, r"(ld\.relaxed\.gpu\.b64\s+%rd\d+, \[%rd\d+)\]", r"\1+8]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_handover_is_not_proved(mistake: str) -> None:
    name, pattern, into = MISTAKES[mistake]
    ptx = kernel(name)[1]
    mutant = re.sub(pattern, into, ptx, count=1, flags=re.DOTALL if r"\Z" in pattern else 0)
    assert mutant != ptx
    assert not all(verdict.holds for verdict in verdicts(name, mutant))


@pytest.mark.parametrize("name", (TICKETS, WORDS))
def test_one_of_the_blocks_stores_the_result(name: str) -> None:
    assert all(complete(lifter, ordered=True).holds for lifter in lifted(name, kernel(name)[1]))


NOT_STORED: dict[str, tuple[str, str, str]] = {
    "no block comes last": (TICKETS, r"(selp\.u16\s+%rs\d+), 1, 0,", r"\1, 0, 0,"),
    "one addition more is waited for": MISTAKES["one addition more is waited for"],
    "a block does not add": (TICKETS, r"(setp\.ne\.s32\s+%p\d+, %r\d+), 0;(?=(?:[^;]*;){1,10}[^;]*atom)", r"\1, 1;"),
    "two are added": (TICKETS, r"(mov\.u32\s+%r\d+), 1;(?=(?:[^;]*;){0,2}[^;]*atom)", r"\1, 2;"),
    "a block that there need not be": (WORDS, r"(setp\.(?:ne|eq)\.s32\s+%p\d+, %r\d+), 0;", r"\1, 1;"),
}


@pytest.mark.parametrize("mistake", NOT_STORED)
def test_a_result_that_no_block_stores_is_not_complete(mistake: str) -> None:
    name, pattern, into = NOT_STORED[mistake]
    mutant = re.sub(pattern, into, kernel(name)[1])
    assert mutant != kernel(name)[1]
    assert not any(complete(lifter, ordered=True).holds for lifter in lifted(name, mutant))
