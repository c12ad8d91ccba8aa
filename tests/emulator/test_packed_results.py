"""Results of 8 bits that are packed into words: codes of pairs, and programs that take the halves of such words apart."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.emulator import residues
from gemmgen.emulator.packed_results import packing_of
from gemmgen.emulator.program import link

HEAD = """
.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a)
{
  .reg .b16 %rs<8>;
  .reg .b32 %r<32>;
  .reg .f32 %f<12>;
  .reg .b64 %rd<4>;
  .shared .align 16 .b8 tile[1024];
  ld.param.u64 %rd1, [a];
  ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
"""
SUMS = "".join(f"  add.f32 %f{i + 4}, %f{i}, 0f4B400000;\n  mov.b32 %r{i}, %f{i + 4};\n" for i in range(1, 5))
PACK = """
  mov.u32 %r10, 64;
  prmt.b32 %r5, %r1, %r2, %r10;
  prmt.b32 %r6, %r3, %r4, 64;
  prmt.b32 %r7, %r5, %r6, 21520;
"""
STORE = "  st.global.u32 [%rd1 + 64], %r7;\n"


def packing(pack: str = PACK, behind: str = STORE, sums: str = SUMS):
    return packing_of(link(HEAD + sums + pack + behind + "  ret;\n}\n", "k"))


def test_a_word_of_four_sums_is_found() -> None:
    found = packing()
    assert [[register.name for register in registers] for registers in found.words.values()] == [["%r1", "%r2", "%r3", "%r4"]]
    assert len(found.parts) == 2 and found.taken_apart == ""


def test_halves_keep_the_order_of_the_permutation() -> None:
    found = packing(PACK.replace("21520", "0x1054"))
    assert [[register.name for register in registers] for registers in found.words.values()] == [["%r3", "%r4", "%r1", "%r2"]]


@pytest.mark.parametrize(
    "pack",
    [
        PACK.replace("21520", "21504"),  # a result twice
        PACK.replace("%r3, %r4, 64", "%r3, %r4, 0x0051"),  # a byte that is not the lowest
        PACK.replace("%r3, %r4, 64", "%r3, %r4, 0x00c0"),  # a sign
        PACK.replace("mov.u32 %r10, 64;", "mov.u32 %r10, 64;\n  mov.u32 %r10, 65;"),
        PACK.replace("prmt.b32 %r7", "mov.b32 %r1, %r9;\n  prmt.b32 %r7"),
        PACK.replace("prmt.b32 %r7", "bra over;\nover:\n  prmt.b32 %r7"),
        "  prmt.b32 %r7, %r7, %r2, 0x5410;\n",
        "  prmt.b32 %r7, %r5, %r5, 0x5410;\n  prmt.b32 %r5, %r7, %r7, 0x5410;\n",
        "  mov.u32 %r10, 64;\n  prmt.b32 %r7, %r5, %r6, 21520;\n  prmt.b32 %r5, %r1, %r2, %r10;\n  prmt.b32 %r6, %r3, %r4, 64;\n",
    ],
)
def test_other_permutations_stay_permutations(pack: str) -> None:
    assert packing(pack).words == {}


@pytest.mark.parametrize(
    "behind",
    [
        "mov.b32 %r8, %r7;\n  st.shared.u32 [tile], %r8;",
        "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [tile], {%r7};",
        "shfl.sync.bfly.b32 %r8, %r7, 4, 31, -1;",
        "shr.u32 %r11, %r7, 7;\n  and.b32 %r12, %r11, 16843009;\n  sub.s32 %r13, %r7, %r12;\n  st.global.u32 [%rd1], %r13;",
    ],
)
def test_words_that_only_move_are_whole(behind: str) -> None:
    found = packing(behind=f"  {behind}\n")
    assert found.words and found.taken_apart == ""


@pytest.mark.parametrize(
    "behind",
    [
        "st.global.u8 [%rd1], %r7;",
        "st.global.u16 [%rd1], %r7;",
        "and.b32 %r8, %r7, 0xffffff;",
        "mov.b32 {%rs1, %rs2}, %r7;",
        "prmt.b32 %r8, %r7, %r9, 0x3214;",
        "shr.u32 %r11, %r7, 8;\n  and.b32 %r12, %r11, 16843009;\n  sub.s32 %r13, %r7, %r12;",
        "shr.u32 %r11, %r7, 7;\n  and.b32 %r12, %r11, 257;\n  sub.s32 %r13, %r7, %r12;",
        "shr.u32 %r11, %r7, 7;\n  and.b32 %r12, %r11, 16843009;\n  sub.s32 %r13, %r6, %r12;",
        "sub.s32 %r13, %r7, %r12;\n  shr.u32 %r11, %r7, 7;\n  and.b32 %r12, %r11, 16843009;",
    ],
)
def test_halves_that_are_taken_apart_are_found(behind: str) -> None:
    assert packing(behind=f"  {behind}\n").taken_apart


def test_each_pair_has_one_code() -> None:
    rng = np.random.default_rng(5)
    known = residues.Pairs(rng)
    first, second = rng.integers(0, residues.MODULUS, (2, 30_000), dtype=np.uint32)
    codes = known.codes(first, second)
    assert len(set(codes.tolist())) == 30_000
    assert (known.codes(first[::-1], second[::-1]) == codes[::-1]).all()
    assert not np.isin(known.codes(second, first), codes).any()
    assert not ((codes & 0xFF == 0x80) | (codes >> 8 == 0x80)).any()


def test_more_pairs_than_codes_are_refused() -> None:
    known = residues.Pairs(np.random.default_rng(5))
    with pytest.raises(OverflowError):
        known.codes(np.arange(66_000, dtype=np.uint32), np.zeros(66_000, np.uint32))


def test_an_opaque_function_of_one_argument_never_collides() -> None:
    values = np.random.default_rng(6).choice(residues.MODULUS, 200_000, replace=False).astype(np.uint32)
    for commutes in (False, True):
        for arguments in ([values, np.uint64(7)], [np.uint64(7), values]):
            assert len(np.unique(residues.canonical(residues.opaque("f", arguments, commutes=commutes)))) == len(values)
