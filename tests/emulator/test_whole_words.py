"""Elements of 8 bits by the words that they are moved in: residues of words, and programs that take words apart."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.emulator import NoFieldMeaning, launch, residues
from gemmgen.emulator.arithmetic import FIELD
from gemmgen.emulator.program import link
from gemmgen.emulator.residue_words import Words, require_whole, whole_words
from gemmgen.emulator.whole_words import added_sums, bytes_as_numbers, sums_only_move, words_taken_apart

HEAD = """
.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a)
{
  .reg .b16 %rs<8>;
  .reg .b32 %r<32>;
  .reg .f32 %f<8>;
  .reg .b64 %rd<4>;
  .shared .align 16 .b8 tile[1024];
  ld.param.u64 %rd1, [a];
  ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
  ld.global.v2.u32 {%r5, %r6}, [%rd1 + 16];
"""
PRODUCT = """
  mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r11, %r12, %r13, %r14}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%r7, %r7, %r7, %r7};
"""
STORE = "  st.global.v4.u32 [%rd1 + 64], {%r11, %r12, %r13, %r14};\n"


def apart(*lines: str, tail: str = PRODUCT + STORE) -> str:
    return words_taken_apart(link(HEAD + "".join(f"  {line}\n" for line in lines) + tail + "  ret;\n}\n", "k"))


@pytest.mark.parametrize(
    "line",
    [
        "mov.b32 %r1, %r2;",
        "shfl.sync.bfly.b32 %r9, %r1, 4, 31, -1;",
        "st.shared.v2.u32 [tile], {%r1, %r2};",
        "cp.async.ca.shared.global [tile], [%rd1], 8;",
        "cvt.rn.f32.s32 %f1, %r11;",
        "mov.u32 %r9, %tid.x; and.b32 %r1, %r2, %r9;",
        "and.b32 %r1, %r2, 65535;",
    ],
)
def test_words_that_only_move_are_whole(line: str) -> None:
    assert apart(line) == ""


@pytest.mark.parametrize(
    "lines",
    [
        ("prmt.b32 %r1, %r2, %r3, 0x6540;",),
        ("xor.b32 %r5, %r6, 0xffffff;",),
        ("shf.l.wrap.b32 %r2, %r3, %r4, 8;",),
        ("mov.b32 {%rs1, %rs2}, %r2;", "mov.b32 %r1, {%rs2, %rs1};"),
        ("ld.shared.u8 %r1, [tile];",),
        ("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r1}, [tile];",),
        ("prmt.b32 %r9, %r2, %r3, 0x6540;", "st.shared.u32 [tile], %r9;"),
        ("st.shared.u8 [tile + 3], %r2;",),
        ("add.s32 %r9, %r1, %r2;", "st.global.u32 [%rd1 + 8], %r9;"),
        ("ld.shared.u32 %r9, [tile];", "xor.b32 %r9, %r9, 255;", "st.shared.u32 [tile], %r9;"),
    ],
)
def test_bytes_that_move_alone_are_noticed(lines: tuple[str, ...]) -> None:
    assert apart(*lines) == lines[-1] or apart(*lines) == lines[0]


def test_sums_that_integers_change_are_noticed() -> None:
    def only_move(line: str) -> bool:
        return sums_only_move(link(HEAD + PRODUCT + f"  {line}\n" + STORE + "  ret;\n}\n", "k"))

    assert only_move("mov.b32 %r15, %r11;") and only_move("cvt.rn.f32.s32 %f1, %r11;")
    assert not only_move("and.b32 %r11, %r11, 0x7fffffff;")
    assert not only_move("red.global.add.s32 [%rd1], %r11;")


def test_every_element_of_a_word_has_its_residue() -> None:
    words = Words(np.random.default_rng(1), 5000)
    drawn = words.draw((50, 100))
    elements = drawn.view(np.uint8)
    residues = words.of_elements(elements)
    assert residues.shape == (50, 400)
    assert len(np.unique(residues)) == residues.size
    changed = elements.copy()
    changed[7, 11] ^= 1
    assert (words.of_elements(changed) != residues).sum() == 4
    assert not words.of_elements(np.zeros((1, 8), np.uint8)).any()


def test_words_have_no_byte_of_zeros() -> None:
    words = Words(np.random.default_rng(2), 40000).draw((40000,))
    assert words.view(np.uint8).all()
    assert len(np.unique(words)) == 40000


def test_copies_within_a_word_are_refused() -> None:
    require_whole(2, 8)
    token = whole_words.set(Words(np.random.default_rng(3), 8))
    try:
        require_whole(4, 8)
        with pytest.raises(NoFieldMeaning):
            require_whole(2, 8)
    finally:
        whole_words.reset(token)


REST = "  add.s32 %r12, %r11, %r9;\n  st.global.u32 [%rd1 + 64], %r12;\n"


@pytest.mark.parametrize(
    ("partial", "count"),
    [
        ("ld.shared.u32 %r9, [tile];", 1),
        ("ld.shared.u32 %r8, [tile];\n  add.s32 %r9, %r8, %r13;", 2),
        ("ld.shared.u8 %r9, [tile];", 0),
        ("ld.param.u32 %r9, [a];", 0),
        ("mul.lo.s32 %r9, %r11, %r12;", 0),
    ],
)
def test_sums_of_products_are_added(partial: str, count: int) -> None:
    program = link(HEAD + PRODUCT + f"  {partial}\n{REST}  ret;\n}}\n", "k")
    assert len(added_sums(program)) == count
    assert sums_only_move(program) == (count > 0)


def test_a_program_that_only_adds_partial_sums_moves_them() -> None:
    loop = "again:\n  ld.global.u32 %r9, [%rd1 + 32];\n  add.s32 %r12, %r12, %r9;\n  bra again;\n"
    store = "  st.global.u32 [%rd1 + 64], %r12;\n"
    assert sums_only_move(link(HEAD + loop + store + "  ret;\n}\n", "k"))
    assert not sums_only_move(link(HEAD + loop + "  shl.b32 %r12, %r12, 1;\n" + store + "  ret;\n}\n", "k"))


def test_masks_leave_whole_bytes_of_words() -> None:
    words = Words(np.random.default_rng(9), 100)
    drawn = words.draw((3, 1))
    for mask in (0, 0xFF, 0xFFFF00FF, 0xFFFFFFFF):
        words.require_bytes(drawn, np.uint32(mask))
    words.require_bytes(np.zeros(3, np.uint32), np.uint32(1))
    for mask in (1, 0xFE, 0x7FFFFFFF, 0x80808080):
        with pytest.raises(NoFieldMeaning):
            words.require_bytes(drawn, np.uint32(mask))


@pytest.mark.parametrize("elements", [4, 8])
def test_bytes_that_a_mask_leaves_keep_their_residues(elements: int) -> None:
    words = Words(np.random.default_rng(10), 5000, elements)
    drawn = words.draw((4999, 1))
    whole = words.of_bytes(drawn.view(np.uint8))
    for count in (2, 3):
        cut = words.of_bytes((drawn & np.uint32((1 << 8 * count) - 1)).view(np.uint8))
        assert (cut[:, :count] == whole[:, :count]).all() and not cut[:, count:].any()
    others = words.of_bytes((drawn & np.uint32(0xFFFFFF00)).view(np.uint8))
    assert (others == others[0]).all() and (others != whole).mean() > 0.99


def test_a_mask_that_cuts_a_byte_of_an_element_has_no_meaning() -> None:
    text = HEAD.replace("u64 a)", "u64 a, .param .u32 mask)") + "  ld.param.u32 %r9, [mask];\n  and.b32 %r1, %r2, %r9;\n" + PRODUCT + STORE
    words = Words(np.random.default_rng(11), 100)
    token = whole_words.set(words)
    try:
        data = np.concatenate([words.draw((8,)), np.zeros(24, np.uint32)])
        launch(text + "  ret;\n}\n", "k", grid=1, block=32, args=[data, np.uint32(0xFFFF)], hazards=False, arithmetic=FIELD)
        with pytest.raises(NoFieldMeaning, match="bytes of elements"):
            launch(text + "  ret;\n}\n", "k", grid=1, block=32, args=[data, np.uint32(0x1FF)], hazards=False, arithmetic=FIELD)
    finally:
        whole_words.reset(token)


BYTE = """
  xor.b32 %r8, %r1, 0x80808080;
  mov.b32 %r9, 0x4B000000;
  prmt.b32 %r10, %r8, %r9, 0x7442;
  mov.b32 %f1, %r10;
  add.rn.f32 %f2, %f1, 0fCB000080;
  st.global.f32 [%rd1 + 64], %f2;
"""


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("", "", 1),
        ("%r8, %r1, 0x80808080", "%r8, %r1, 0x80808000", 0),
        ("0x7442", "0x7452", 0),
        ("  xor.b32", "  shr.u32 %r1, %r1, 8;\n  xor.b32", 0),
        ("0x4B000000", "0x4B000001", 0),
    ],
)
def test_bytes_that_become_numbers_are_known(old: str, new: str, count: int) -> None:
    assert len(bytes_as_numbers(link(HEAD + BYTE.replace(old, new) + "  ret;\n}\n", "k"))) == count


def test_a_byte_that_becomes_a_number_has_its_residue() -> None:
    words = Words(np.random.default_rng(12), 100)
    tokens = whole_words.set(words), residues.pairs.set(residues.Pairs(np.random.default_rng(13)))
    try:
        data = np.concatenate([words.draw((8,)), np.zeros(24, np.uint32)])
        launch(HEAD + BYTE + "  ret;\n}\n", "k", grid=1, block=1, args=[data], arithmetic=FIELD)
        assert residues.canonical(data[16:17]) == words.of_elements(data[:1].view(np.uint8))[2]
    finally:
        whole_words.reset(tokens[0])
        residues.pairs.reset(tokens[1])
