"""A sum whose first block waits for the words that the other blocks store: every wait ends, and with a mistake in it none is proved to."""

from __future__ import annotations

import re
from functools import cache

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.prover import KernelProof, domain, prove_kernel
from gemmgen.toolchain.compilation import compile_plan

NAME = "reduction/sum/1k"


@cache
def kernel() -> tuple[LaunchSequence, str]:
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()[NAME]))
    assert isinstance(plan, KernelPlan)
    return plan.sequence, re.sub(r"\n\s*(\.loc[^\n]*|//[^\n]*)?(?=\n)", "", compile_plan(plan).ptx)


def proof_of(ptx: str) -> KernelProof:
    sequence, _ = kernel()
    return prove_kernel(sequence, sequence.launches[0], ptx, 30.0)


def test_waits_for_other_blocks_end() -> None:
    proof = proof_of(kernel()[1])
    assert {"memory", "races", "once", "progress", "initialised"} <= set(proof.proved), [each.reasons for each in proof.properties]
    assert "every block of a grid runs, whatever others wait for" in domain(kernel()[0])


RELEASE = r"st\.relaxed\.gpu\.b64 (\s*\[%rd\d+)\], (%rd\d+);(?=\s*bra)"
CLEAR = r"(mov\.u64 \s*%rd\d+, 0;\s*)st\.relaxed\.gpu\.b64 (\s*\[%rd\d+)\], (%rd\d+);"
FIRST = r"setp\.eq\.s32 (\s*%p\d+, %r\d+), 0;(\s*@%p\d+ bra[^;]*;\s*setp\.ne\.s32)"
SPIN = r"(nanosleep[^@]*)ld\.relaxed\.gpu\.b64( \s*%rd\d+, \[)(%rd\d+)\];"
MISTAKES: dict[str, tuple[str, str]] = {
    "a word without its flag": (r"or\.b64 (\s*%rd\d+, %rd\d+), 4294967296;", r"or.b64 \1, 0;"),
    "a flag of the number alone": (r"or\.b64 (\s*%rd\d+), (%rd\d+), 4294967296;", r"mov.b64 \1, \2;"),
    "a flag in one half of the word": (r"st\.relaxed\.gpu\.b64 (\s*\[%rd\d+\]), (%rd\d+);(?=\s*bra)", r"st.relaxed.gpu.b32 \1, %r1;"),
    "a word before its flag is set": (
        r"(?s)(or\.b64 \s*%rd\d+, %rd\d+, 4294967296;)(.*?st\.relaxed\.gpu\.b64 \s*\[%rd\d+\], %rd\d+;)(?=\s*bra)",
        r"\2 \1",
    ),
    "a number whose bits in the word are 0": (RELEASE, rf"st.relaxed.gpu.b64 \1], {1 << 64};"),
    "the next block's word": (RELEASE, r"st.relaxed.gpu.b64 \1+8], \2;"),
    "a store that nobody needs to see": (RELEASE, r"st.global.b64 \1], \2;"),
    "a store for the block alone": (RELEASE, r"st.relaxed.cta.b64 \1], \2;"),
    "no store": (RELEASE, ""),
    "a store that data decides": (
        r"(\n[^\n]*)st\.relaxed\.gpu\.b64 (\s*\[%rd\d+\], %rd\d+;)(?=\s*bra)",
        r"\1setp.gt.f32 %p1, %f130, 0f00000000; @%p1 st.relaxed.gpu.b64 \2",
    ),
    "a store by some blocks": (
        r"setp\.ne\.s32 (\s*)(%p\d+), (%r\d+), 0;(\s*@%p\d+ bra\s+\S+;\s*mul\.wide\.u32 \s*%rd\d+, )(%r\d+)",
        r"setp.gt.u32 \1\2, \5, 3;\4\5",
    ),
    "words at half their distance": (r"mul\.wide\.u32 (\s*%rd\d+, %r\d+), 8;(\s*add\.s64[^;]*;\s*mov\.b32)", r"mul.wide.u32 \1, 4;\2"),
    "words that overlap": (
        r"(?s)mul\.wide\.u32 (\s*%rd\d+, %r\d+), 8;(.*)mul\.wide\.u32 (\s*%rd\d+, %r\d+), 8;",
        r"mul.wide.u32 \1, 4;\2mul.wide.u32 \3, 4;",
    ),
    "a wait for one word and the next in turn": (SPIN, r"\1xor.b64 \3, \3, 8; ld.relaxed.gpu.b64\2\3];"),
    "one word too many is waited for": (r"setp\.ge\.u32 (\s*%p\d+, %r\d+, %r\d+;\s*@%p\d+ bra\s+\$L__BB0_26;)", r"setp.gt.u32 \1"),
    "the first block's own word": (r"selp\.b32 (\s*%r\d+), 256,", r"selp.b32 \1, 0,"),
    "two threads wait for a word": (r"(selp\.b32 \s*(%r\d+), 256, %r\d+, %p\d+;)", r"\1 or.b32 \2, \2, 1;"),
    "two blocks wait": (FIRST, r"setp.lt.u32 \1, 2;\2"),
    "another block waits": (FIRST, r"setp.eq.s32 \1, 1;\2"),
    "all blocks wait": (FIRST, r"setp.ge.u32 \1, 0;\2"),
    "a wait for a word to be 0": (r"setp\.eq\.s64 (\s*%p\d+, %rd\d+, 0;\s*@%p\d+ bra)", r"setp.ne.s64 \1"),
    "the opposite of a comparison": (r"setp\.eq\.s64 (\s*)(%p\d+, %rd\d+, 0;\s*@%p\d+ bra)", r"setp.eq.s64 \1%p1|\2"),
    "a wait for another number": (r"setp\.eq\.s64 (\s*%p\d+, %rd\d+), 0;(\s*@%p\d+ bra)", r"setp.eq.s64 \1, 1;\2"),
    "a look at half a word": (
        r"setp\.eq\.s64 \s*(%p\d+), (%rd\d+), 0;(\s*@%p\d+ bra)",
        r"cvt.u32.u64 %r1, \2; setp.eq.s32 \1, %r1, 0;\3",
    ),
    "a load that sees no other block": (SPIN, r"\1ld.global.b64\2\3];"),
    "a load of the block alone": (SPIN, r"\1ld.relaxed.cta.b64\2\3];"),
    "a wait that moves on": (SPIN, r"\1add.s64 \3, \3, 8; ld.relaxed.gpu.b64\2\3];"),
    "a wait that is skipped where the word is 0": (r"setp\.ne\.s64 (\s*%p\d+, %rd\d+, 0;\s*@%p\d+ bra)", r"setp.eq.s64 \1"),
    "another word is cleared": (CLEAR, r"\1st.relaxed.gpu.b64 \2+8], \3;"),
    "words are cleared before they are waited for": (
        r"(ld\.relaxed\.gpu\.b64 \s*%rd\d+, (\[%rd\d+\]);\s*setp\.ne)",
        r"mov.u64 %rd33, 0; st.relaxed.gpu.b64 \2, %rd33; \1",
    ),
    "every block clears a word": (
        r"(setp\.eq\.s32 \s*%p\d+, %r\d+, 0;\s*@%p\d+ bra[^;]*;\s*setp\.ne\.s32)",
        r"mov.u64 %rd33, 0; st.relaxed.gpu.b64 [%rd10+8], %rd33; \1",
    ),
    "words are taken by atomics": (CLEAR, r"\1atom.relaxed.gpu.global.exch.b64 \3, \2], \3;"),
}


def test_mistakes_change_the_sum() -> None:
    _, ptx = kernel()
    unchanged = [name for name, (pattern, into) in MISTAKES.items() if re.sub(pattern, into, ptx, count=1) == ptx]
    assert unchanged == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wait_with_a_mistake_is_not_proved_to_end(mistake: str) -> None:
    proof = proof_of(re.sub(*MISTAKES[mistake], kernel()[1], count=1))
    assert "progress" not in proof.proved
