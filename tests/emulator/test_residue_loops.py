"""Loops over residues in C compute what NumPy does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmgen.emulator import launch, native_runs, residue_loops, residue_products, residues
from gemmgen.emulator.arithmetic import FIELD
from gemmgen.emulator.instructions import over_field
from gemmgen.emulator.residue_words import Words, whole_words
from tests.emulator.test_native import needs_compiler

RNG = np.random.default_rng(5)
WORDS = RNG.integers(0, 1 << 32, 4000, dtype=np.uint64).astype(np.uint32)
WORDS[:200] &= np.uint32(0xFFFF0000)
WORDS[200:210] = 0, 1, residues.MODULUS, residues.MODULUS - 1, residues.MODULUS + 1, 0xFFFFFFFF, 0x80000000, 0x7FFF0000, 0xFFFF0000, 0x10000
KERNEL = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 a, .param .u64 b)
{
  .reg .u32 %r<8>; .reg .u64 %rd<8>; .reg .f32 %f<32>; .reg .pred %p<3>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 16;
  add.u64 %rd4, %rd1, %rd3;
  add.u64 %rd5, %rd2, %rd3;
  ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4];
  fma.rn.f32 %f5, %f1, %f2, %f3;
  fma.rn.f32 %f6, %f1, 0f40400000, %f4;
  fma.rn.f32 %f7, %f2, %f3, 0f3F000000;
  sub.f32 %f8, %f5, %f6;
  neg.f32 %f9, %f8;
  mul.f32 %f10, %f9, %f7;
  setp.lt.u32 %p2, %r1, 147;
  @!%p2 bra JOINED;
  fma.rn.f32 %f6, %f7, %f2, %f6;
  fma.rn.f32 %f9, %f1, 0f40800000, %f9;
JOINED:
  and.b32 %r2, %r1, 3;
  setp.ne.u32 %p1, %r2, 1;
  @%p1 add.f32 %f10, %f10, %f1;
  max.f32 %f11, %f10, %f3;
  ex2.approx.f32 %f12, %f11;
  st.global.v4.f32 [%rd5], {%f6, %f9, %f10, %f12};
  ret;
}
"""


FRAGMENTS = """
.version 8.4
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 a, .param .u64 b)
{
  .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<9>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 40;
  add.u64 %rd4, %rd1, %rd3;
  mul.wide.u32 %rd5, %r1, 16;
  add.u64 %rd6, %rd2, %rd5;
  ld.global.v2.u32 {%r2, %r3}, [%rd4];
  ld.global.v2.u32 {%r4, %r5}, [%rd4 + 8];
  ld.global.v2.u32 {%r6, %r7}, [%rd4 + 16];
  ld.global.v2.f32 {%f1, %f2}, [%rd4 + 24];
  ld.global.v2.f32 {%f3, %f4}, [%rd4 + 32];
  setp.lt.u32 %p1, %r1, 64;
  @%p1 mma.sync.aligned.INSTRUCTION {%f5, %f6, %f7, %f8}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%f1, %f2, %f3, %f4};
  mma.sync.aligned.INSTRUCTION {%f1, %f2, %f3, %f4}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%f1, %f2, %f3, %f4};
  st.global.v2.f32 [%rd6], {%f1, %f2};
  st.global.v2.f32 [%rd6 + 8], {%f3, %f4};
  @%p1 st.global.v2.f32 [%rd6], {%f5, %f8};
  ret;
}
"""


def both(compute: Callable[[], np.ndarray], monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """A result by loops in C, and by NumPy."""
    assert residue_loops.loops() is not None
    in_c = compute()
    monkeypatch.setattr(residue_loops, "loops", lambda: None)
    return in_c, compute()


@needs_compiler
@pytest.mark.parametrize("type_name", ["f32", "bf16"])
def test_kernels_compute_the_same_residues(type_name, monkeypatch):
    data = residues.without_code(WORDS[210:1234].copy())

    def compute() -> np.ndarray:
        kept = residues.Interned(np.random.default_rng(3), 500, 500) if type_name == "bf16" else None
        token = residues.interned.set(kept)
        own = data.copy()
        if kept is not None:
            own[::3] = kept.draw((len(own[::3]),)).astype(np.uint32) << np.uint32(16)
        try:
            out = np.zeros(len(own), np.uint32)
            launch(KERNEL, "kernel", grid=1, block=256, args=[own, out], arithmetic=FIELD, hazards=False)
            return residues.canonical(residues.read(out))
        finally:
            residues.interned.reset(token)

    first, second = both(compute, monkeypatch)
    assert (first == second).all()
    assert len(np.unique(first)) > 900


@needs_compiler
def test_compiled_runs_leave_residues_alone(monkeypatch):
    text = KERNEL.replace("fma.rn", "fma.rz").replace(
        "and.b32 %r2, %r1, 3;", "and.b32 %r2, %r1, 3; mov.b32 %r3, %f9; mov.f32 %f9, 0f40400000;"
    )
    text = text.replace("@%p1 add", "shl.b32 %r2, %r2, 1; add.u32 %r3, %r3, %r2; mov.b32 %f9, %r3; @%p1 add")
    found = []
    for enough in (native_runs.ENOUGH_WORK, 0):
        monkeypatch.setattr(native_runs, "ENOUGH_WORK", enough)
        out = np.zeros(1024, np.uint32)
        launch(f"{text}// {enough}", "kernel", grid=1, block=256, args=[WORDS[:1024], out], arithmetic=FIELD, hazards=False)
        found.append(residues.canonical(out))
    assert (found[0] == found[1]).all()
    assert len(np.unique(found[0])) > 900


@needs_compiler
def test_reductions_and_hashes_are_the_same(monkeypatch):
    long = RNG.integers(0, 1 << 63, 3000, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def compute() -> np.ndarray:
        hashed = residues.opaque("ex2", [WORDS]), residues.opaque("max", [WORDS, WORDS[::-1].copy()], commutes=True)
        three = residues.opaque("selp", [WORDS, WORDS[:1], WORDS[::-1].copy()])
        return np.concatenate([residues.canonical(WORDS), residues.canonical(long), *hashed, three, residues.without_code(WORDS)])

    first, second = both(compute, monkeypatch)
    assert (first == second).all()


@needs_compiler
@pytest.mark.parametrize("shape", [(3, 16, 8, 16), (2, 5, 11, 67), (1, 1, 1, 1), (1, 2, 9, 130)])
def test_products_of_matrices_are_the_same(shape, monkeypatch):
    stacks, rows, columns, depth = shape
    a, b = (RNG.integers(residues.MODULUS - 9, residues.MODULUS, (stacks, each, depth), dtype=np.uint32) for each in (rows, columns))
    exact = a.astype(object) @ b.astype(object).swapaxes(-1, -2)
    found = residue_loops.matrix_products(a, b)
    assert found is not None
    assert (residues.canonical(found) == (exact % residues.MODULUS).astype(np.uint64)).all()
    assert (residues.canonical(residue_products._long_products(a, b)) == residues.canonical(found)).all()


@needs_compiler
@pytest.mark.parametrize("count", [2, 4])
def test_elements_of_words_are_the_same(count, monkeypatch):
    words = Words(np.random.default_rng(4), 700, count)
    elements = np.append(words.draw((70, 10)), WORDS[:10].reshape(1, 10), axis=0).view(f"u{4 // count}")
    first, second = both(lambda: words.of_elements(elements), monkeypatch)
    assert first.shape == (71, 10 * count)
    assert (first == second).all()


@needs_compiler
def test_codes_that_are_read_are_given_to_no_number(monkeypatch):
    kept = residues.Interned(np.random.default_rng(1), 10, 400)
    free = kept.codes[kept.pool :].copy()
    read = kept.read(free[:300].astype(np.uint32) << np.uint32(16))
    assert (read == kept.residues[free[:300]]).all()
    given = kept.narrowed(np.arange(1, 101, dtype=np.uint64))
    assert set(given.tolist()) == set(free[300:].tolist())
    with pytest.raises(OverflowError):
        kept.narrowed(np.arange(500, 510, dtype=np.uint64))


@needs_compiler
@pytest.mark.parametrize(
    ("instruction", "count"),
    [("m16n8k16.row.col.f32.bf16.bf16.f32", 2), ("m16n8k32.row.col.f32.e4m3.e5m2.f32", 4), ("m16n8k16.row.col.f32.f16.f16.f32", 0)],
)
def test_products_of_fragments_are_the_same(instruction, count, monkeypatch):
    rng = np.random.default_rng(6)
    kept, drawn = residues.Interned(rng, 3000, 3000), Words(rng, 1000, count or 2)
    words = np.where(
        RNG.random((96, 10)) < 0.7, drawn.draw((96, 10)) if count else kept.draw((96, 20)).view(np.uint32), WORDS[:960].reshape(96, 10)
    )

    def run() -> np.ndarray:
        tokens = residues.interned.set(kept), whole_words.set(drawn if count else None)
        out = np.zeros((96, 4), np.uint32)
        try:
            text = FRAGMENTS.replace("INSTRUCTION", instruction)
            launch(text, "kernel", grid=1, block=96, args=[words.astype(np.uint32), out], hazards=False, arithmetic=FIELD)
            return residues.canonical(residues.read(out))
        finally:
            residues.interned.reset(tokens[0])
            whole_words.reset(tokens[1])

    in_c, in_numpy = both(run, monkeypatch)
    assert len(np.unique(in_c)) > 300
    assert (in_c == in_numpy).all()


@needs_compiler
def test_rounded_numbers_have_one_code_each():
    kept = residues.Interned(np.random.default_rng(7), 10, 100)
    values = np.random.default_rng(8).integers(0, residues.MODULUS, 100, dtype=np.uint32)
    values[:5] = 0, 0, kept.residues[kept.codes[3]], values[50], values[50]
    codes = kept.narrowed(values)
    assert (kept.of_codes(codes) == values).all()
    assert codes[0] == 0 and codes[2] == kept.codes[3] and codes[3] == codes[50]
    with pytest.raises(OverflowError):
        kept.narrowed(np.arange(1000, 1200, dtype=np.uint32))


SOME_LANES = np.array([3, 700, 701, 2999])


def compared(relation: str, values: list[np.ndarray], infinities: np.ndarray | None) -> np.ndarray:
    """The answers, once for all lanes and once for some."""
    out, few = (np.zeros(max(map(len, values)), np.bool_) for _ in range(2))
    residue_loops.comparison(relation, values, infinities, out)(residue_loops.NO_CODES, None)
    lanes = SOME_LANES % len(out)
    residue_loops.comparison(relation, values, infinities, few)(residue_loops.NO_CODES, lanes)
    assert (few[lanes] == out[lanes]).all() and not np.delete(few, lanes).any()
    return out


def joined(values: list[np.ndarray], fresh: tuple[bool, bool], neutral: int, gives_place: bool) -> tuple[np.ndarray, bool]:
    """The sums for all lanes, which those for some equal, and whether values and places differ."""
    out, few = np.zeros(len(values[0]), np.uint32), np.zeros(len(values[0]), np.uint32)
    number = residues.name_of("element")
    differ = residue_loops.union(values, fresh, neutral, number, out, gives_place=gives_place)(None)
    residue_loops.union(values, fresh, neutral, number, few, gives_place=gives_place)(SOME_LANES)
    assert (few[SOME_LANES] == out[SOME_LANES]).all() and not np.delete(few, SOME_LANES).any()
    return out, bool(differ)


@needs_compiler
def test_choices_are_the_same():
    answers, others = RNG.random(len(WORDS)) < 0.5, RNG.permutation(WORDS)
    for second in (others, others[:1]):
        out, few = np.zeros_like(WORDS), np.zeros_like(WORDS)
        residue_loops.choice(answers, [WORDS, second], out)(None)
        residue_loops.choice(answers, [WORDS, second], few)(SOME_LANES)
        assert (out == np.where(answers, WORDS, second)).all()
        assert (few[SOME_LANES] == out[SOME_LANES]).all() and not np.delete(few, SOME_LANES).any()


@needs_compiler
@pytest.mark.parametrize("relation", ["eq", "ne", "lt", "le", "gt", "ge", "num", "nan"])
def test_comparisons_are_the_same(relation):
    others = np.where(RNG.random(len(WORDS)) < 0.5, WORDS, RNG.permutation(WORDS))
    compare = over_field._ORDERS[relation]
    infinities = np.array(over_field._INFINITIES)
    some = np.concatenate([infinities, infinities + np.uint32(residues.MODULUS), WORDS[:50]])
    for a, b in ((WORDS, others), (WORDS, others[:1]), (others[:1], WORDS)):
        found = compared(relation, [a, b], None)
        assert (found == compare(*np.broadcast_arrays(residues.centred(a), residues.centred(b)))).all()
    for word in some:
        found = compared(relation, [some, np.array([word])], infinities)
        order = over_field._infinite_first
        assert (found == compare(*np.broadcast_arrays(order(some), order(np.array([word]))))).all()


@needs_compiler
@pytest.mark.parametrize("fresh", [(False, False), (True, False), (False, True), (True, True), None])
def test_joined_sets_are_the_same(fresh):
    neutral = residues.of_float(float("-inf"))
    values = [RNG.permutation(WORDS), RNG.permutation(WORDS)]
    for each in values:
        each[:300] = neutral
    places = [np.where(each == neutral, residues.MODULUS, residues.canonical(each)).astype(np.uint32) for each in values] if fresh else []
    for gives_place in (False, True):
        found, wrong = joined([*values, *places], fresh or (False, False), int(neutral), gives_place)
        total, differ = over_field._sum_of_both(values, places, fresh or (False, False), neutral)
        assert not wrong and not differ
        wanted = over_field._as_place(total) if gives_place else over_field._as_value(total, neutral)
        assert (found == wanted).all()
    if fresh == (True, False):
        places[1][7] ^= np.uint32(1)
        assert joined([*values, *places], fresh, int(neutral), True)[1]
        assert over_field._sum_of_both(values, places, fresh, neutral)[1]
