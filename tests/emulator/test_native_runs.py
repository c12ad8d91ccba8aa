"""Compiled runs of arithmetic instructions: the same bits as those of the instructions' handlers."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.emulator import RandomWarps, launch, machine, native, native_runs, schedule
from tests.emulator.test_native import HEAD, needs_compiler

THREADS = 2048
KERNEL = """
.visible .entry kernel(.param .u64 kernel_x, .param .u64 kernel_y)
{
  .reg .b32 %r<400>; .reg .b64 %rd<400>; .reg .f32 %f<400>; .reg .pred %p<400>; .reg .b16 %rs<400>; .reg .f64 %d<400>;
  ld.param.u64 %rd391, [kernel_x]; ld.param.u64 %rd392, [kernel_y];
  mov.u32 %r391, %tid.x; mov.u32 %r392, %ctaid.x; mad.lo.u32 %r391, %r392, 128, %r391;
  mad.wide.u32 %rd391, %r391, 24, %rd391; mad.wide.u32 %rd392, %r391, SIZE, %rd392;
  ld.global.u64 %rd1, [%rd391]; ld.global.u64 %rd2, [%rd391+8]; ld.global.u64 %rd3, [%rd391+16];
  mov.b64 {%r1, %r4}, %rd1; mov.b64 {%r2, %r5}, %rd2; mov.b64 {%r3, %r6}, %rd3;
  mov.b32 {%rs1, %rs4}, %r1; mov.b32 {%rs2, %rs5}, %r2; mov.b32 {%rs3, %rs6}, %r3;
  mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3; mov.b64 %d1, %rd1; mov.b64 %d2, %rd2; mov.b64 %d3, %rd3;
  and.b32 %r7, %r6, 1; setp.ne.u32 %p1, %r7, 0; and.b32 %r8, %r6, 2; setp.ne.u32 %p2, %r8, 0;
  mov.u32 %r390, 0;
again:
  BODY
  add.u32 %r390, %r390, 1;
  setp.lt.u32 %p390, %r390, 3;
  @%p390 bra again;
  ret;
}
"""


def _each(forms: str, types: str, operands: str) -> list[str]:
    return [f"{form.replace('T', name)} D, {operands}" for form in forms.split() for name in types.split()]


WORDS = "%r1, %r2"
FORMS = {
    "words": [
        *(f"set.{test}.u32.{kind} D, %r1, %r2" for test in ("lt", "ne") for kind in ("u32", "s32", "f16x2")),
        *(f"set.{test}.{kind}.f32 D, %f1, %f2" for test in ("ne", "geu") for kind in ("u32", "f32")),
        "set.neu.f16x2.f16x2 D, %r1, %r2",
        *_each("neg.T abs.T", "f16x2 bf16x2", "%r1"),
        *_each("cvt.rni.T.f16", "u32 s32", "%rs1"),
        *_each("add.T sub.T mul.lo.T mul.hi.T div.T rem.T min.T max.T", "u32 s32", WORDS),
        *_each("mad.lo.T mad.hi.T", "u32 s32", f"{WORDS}, %r3"),
        *_each("shl.b32 shr.u32 shr.s32", "", WORDS),
        *(f"{form} D, %r1, %r4" for form in ("shl.b32", "shr.u32", "shr.s32")),
        *(f"{form} D, %r1, {amount}" for form in ("shl.b32", "shr.u32", "shr.s32") for amount in (0, 7, 31, 32, 40)),
        *_each("and.b32 or.b32 xor.b32", "b32", WORDS),
        *_each("neg.s32 abs.s32 not.b32 cnot.b32 popc.b32 clz.b32 brev.b32", "s32", "%r1"),
        "shf.l.wrap.b32 D, %r1, %r2, %r3",
        "shf.r.clamp.b32 D, %r1, %r2, %r3",
        "lop3.b32 D, %r1, %r2, %r3, 150",
        "lop3.b32 D, %r1, %r2, %r3, 0",
        "prmt.b32 D, %r1, %r2, %r3",
        "prmt.b32 D, %r1, %r2, 0x6240",
        *_each("bfe.T", "u32 s32", "%r1, %r4, %r5"),
        *_each("bfe.T", "u32 s32", "%r1, 5, 9"),
        "bfi.b32 D, %r1, %r2, %r4, %r5",
        "bfi.b32 D, %r1, %r2, 3, 40",
        "selp.b32 D, %r1, 77, %p1",
        "@%p1 add.u32 D, %r1, %r2",
        "@!%p2 mul.lo.s32 D, %r1, 3",
        "mov.b32 D, {%rs1, %rs2}",
        *_each("add.T sub.T mul.T min.T max.T", "f16x2 bf16x2", WORDS),
        *_each("fma.rn.T", "f16x2 bf16x2", f"{WORDS}, %r3"),
        *_each("cvt.rn.T.f32", "f16x2 bf16x2", "%f1, %f2"),
        "cvt.u32.u16 D, %rs1",
        "cvt.s32.s16 D, %rs1",
        "cvt.s32.s8 D, %r1",
        "cvt.u32.u64 D, %rd1",
        *(
            f"cvt.{rounding}.{to}.{source} D, %{'f' if source == 'f32' else 'd'}1"
            for rounding in ("rni", "rzi", "rmi", "rpi")
            for to in ("u32", "s32", "u8", "s16")
            for source in ("f32", "f64")
        ),
    ],
    "long": [
        *_each("add.T sub.T mul.lo.T mul.hi.T div.T rem.T min.T max.T", "u64 s64", "%rd1, %rd2"),
        *_each("mad.lo.T", "u64 s64", "%rd1, %rd2, %rd3"),
        *_each("mul.wide.T", "u32 s32", WORDS),
        *_each("mad.wide.T", "u32 s32", f"{WORDS}, %rd3"),
        *(f"{form} D, %rd1, %r4" for form in ("shl.b64", "shr.u64", "shr.s64")),
        *_each("and.b64 or.b64 xor.b64", "b64", "%rd1, %rd2"),
        *_each("neg.s64 abs.s64 not.b64 brev.b64", "s64", "%rd1"),
        *_each("bfe.T", "u64 s64", "%rd1, %r4, %r5"),
        "bfi.b64 D, %rd1, %rd2, %r4, %r5",
        "selp.b64 D, %rd1, %rd2, %p1",
        "mov.b64 D, {%r1, %r2}",
        "cvta.to.global.u64 D, %rd1",
        "cvt.u64.u32 D, %r1",
        "cvt.s64.s32 D, %r1",
        *(f"cvt.rzi.{to}.{source} D, %{'f' if source == 'f32' else 'd'}1" for to in ("u64", "s64") for source in ("f32", "f64")),
    ],
    "floats": [
        "cvt.rn.ftz.f32.f64 D, %d1",
        *_each(
            "add.T sub.T mul.T mul.ftz.T add.sat.T fma.ftz.T div.rn.T div.full.T min.T max.T max.ftz.T".replace(" fma.ftz.T", ""),
            "f32",
            "%f1, %f2",
        ),
        *_each("fma.rn.T fma.rn.ftz.T fma.rm.T fma.rm.ftz.T fma.rn.sat.T mad.rn.T".replace(" mad.rn.T", ""), "f32", "%f1, %f2, %f3"),
        *_each("neg.T abs.T sqrt.rn.T rcp.rn.T rcp.approx.T sqrt.approx.T rsqrt.approx.T", "f32", "%f1"),
        *_each("cvt.rni.T.f32 cvt.rzi.T.f32 cvt.rmi.T.f32 cvt.rpi.T.f32", "f32", "%f1"),
        *_each("ex2.approx.T ex2.approx.ftz.T lg2.approx.T sin.approx.T cos.approx.ftz.T tanh.approx.T", "f32", "%f1"),
        *_each("cvt.sat.T.f32 cvt.ftz.sat.T.f32", "f32", "%f1"),
        "copysign.f32 D, %f1, %f2",
        "cvt.f32.f16 D, %rs1",
        "cvt.f32.bf16 D, %rs1",
        "fma.rn.f32 D, %f1, 0f3FC00000, %f2",
        "add.f32 D, %f1, 0f3F800000",
        "mov.f32 D, 0f7F800001",
        "selp.f32 D, %f1, %f2, %p2",
        "@%p2 add.f32 D, %f1, %f2",
        "cvt.rn.f32.f64 D, %d1",
        "cvt.rn.f32.s32 D, %r1",
        "cvt.rn.f32.u32 D, %r1",
        "cvt.rn.f32.u64 D, %rd1",
        "cvt.rn.f32.s64 D, %rd1",
        "cvt.rn.f32.u16 D, %rs1",
        "cvt.rn.f32.u8 D, %r1",
    ],
    "doubles": [
        "cvt.ftz.f64.f32 D, %f1",
        *_each("min.T max.T", "f64", "%d1, %d2"),
        *_each("add.T sub.T mul.T div.rn.T", "f64", "%d1, %d2"),
        "fma.rn.f64 D, %d1, %d2, %d3",
        "copysign.f64 D, %d1, %d2",
        *_each("rcp.approx.ftz.T rsqrt.approx.T", "f64", "%d1"),
        *_each("neg.T abs.T sqrt.rn.T rcp.rn.T cvt.rni.T.f64 cvt.rzi.T.f64", "f64", "%d1"),
        "selp.f64 D, %d1, %d2, %p1",
        "cvt.f64.f32 D, %f1",
        "cvt.rn.f64.s32 D, %r1",
        "cvt.rn.f64.u64 D, %rd1",
    ],
    "predicates": [
        *(f"setp.{test}.{kind} D, %rs1, %rs2" for test in ("lt", "neu", "num") for kind in ("f16", "bf16")),
        *(
            f"setp.{name}.{kind} D, {pair}"
            for names, kind, pair in (
                ("eq ne lt le gt ge", "s32", WORDS),
                ("eq ne lo ls hi hs", "u32", WORDS),
                ("lt ge", "u64", "%rd1, %rd2"),
                ("lt ge ne", "s16", "%rs1, %rs2"),
                ("eq ne lt le gt ge equ neu ltu leu gtu geu num nan", "f32", "%f1, %f2"),
                ("eq ne lt neu geu nan", "f64", "%d1, %d2"),
            )
            for name in names.split()
        ),
        "setp.lt.ftz.f32 D, %f1, %f2",
        "setp.lt.and.s32 D, %r1, %r2, !%p1",
        "setp.lt.or.s32 D|%p389, %r1, %r2, %p1",
        "setp.gt.xor.f32 D|_, %f1, %f2, %p1",
        *_each("and.pred or.pred xor.pred", "pred", "%p1, %p2"),
        "not.pred D, %p1",
        "mov.pred D, %p1",
        "@%p2 setp.lt.s32 D, %r1, %r2",
    ],
    "halves": [
        *_each("add.T sub.T mul.lo.T mul.hi.T div.T rem.T min.T max.T", "u16 s16", "%rs1, %rs2"),
        "mad.lo.s16 D, %rs1, %rs2, %rs3",
        *(f"{form} D, %rs1, %r4" for form in ("shl.b16", "shr.u16", "shr.s16")),
        *_each("and.b16 or.b16 xor.b16", "b16", "%rs1, %rs2"),
        "not.b16 D, %rs1",
        "selp.b16 D, %rs1, %rs2, %p1",
        "cvt.u16.u32 D, %r1",
        "cvt.s16.s8 D, %rs1",
        "cvt.u16.u8 D, %r1",
        *_each("add.T sub.T mul.T min.T max.T", "f16 bf16", "%rs1, %rs2"),
        *_each("fma.rn.T", "f16 bf16", "%rs1, %rs2, %rs3"),
        *_each("cvt.rn.T.f32", "f16 bf16", "%f1"),
        *_each("neg.T abs.T", "f16 bf16", "%rs1"),
        *(f"set.{test}.f16.f16 D, %rs1, %rs2" for test in ("eq", "ltu", "num", "ge")),
        *_each("cvt.rn.f16.T", "u16 s16", "%rs1"),
        *_each("cvt.rn.f16.T", "u32 s32", "%r1"),
        *_each("cvt.rzi.T.f16", "u16 s16", "%rs1"),
    ],
}
"""Instructions with their destination as D, by the type of the destination."""
REGISTERS = {
    "words": ("r", "u32", 4),
    "long": ("rd", "u64", 8),
    "floats": ("f", "f32", 4),
    "doubles": ("d", "f64", 8),
    "predicates": ("p", "", 1),
    "halves": ("rs", "u16", 2),
}
SPECIAL = [
    0,
    1,
    0x80000000,
    0x7FFFFFFF,
    0xFFFFFFFF,
    0x3F800000,
    0xBF800000,
    0x7F800000,
    0xFF800000,
    0x7FC00001,
    0x7F800001,
    0xFFC12345,
    0x00000001,
    0x807FFFFF,
    0x4F000000,
    0xCF000000,
    0x42FF0000,
    31,
    32,
    255,
    0x7FF00000,
    0xFFF80000,
    0x7FF40000,
    0x41E00000,
    0xC1E00000,
]


def kernel(name: str) -> tuple[str, int]:
    """The kernel of some forms, and the bytes of a thread's results."""
    register, type_name, size = REGISTERS[name]
    lines, size = [], max(size, 2)
    for number, form in enumerate(FORMS[name]):
        target = f"%{register}{number + 10}"
        if form.startswith("@"):
            lines.append(f"mov.{'pred' if register == 'p' else f'b{8 * size}'} {target}, {f'%{register}1'};")
        lines.append(form.replace("D", target, 1) + ";")
    # The results behind all forms, so that the forms make one run.
    for number in range(len(FORMS[name])):
        target, place = f"%{register}{number + 10}", f"[%rd392+{size * number}]"
        lines.append(
            f"selp.u16 %rs20, 1, 0, {target}; st.global.u16 {place}, %rs20;"
            if register == "p"
            else f"st.global.{type_name} {place}, {target};"
        )
    each = -(-size * len(FORMS[name]) // 8) * 8
    return HEAD + KERNEL.replace("BODY", "\n".join(lines)).replace("SIZE", str(each)), each


def inputs() -> np.ndarray:
    """Words of all sizes, and those that mean something special to some type."""
    rng = np.random.default_rng(7)
    words = rng.integers(0, 1 << 32, size=6 * THREADS, dtype=np.uint64).astype(np.uint32)
    words[::2] = np.where(rng.random(3 * THREADS) < 0.5, rng.choice(np.array(SPECIAL, np.uint32), 3 * THREADS), words[::2] >> 20)
    words[1::2] = np.where(rng.random(3 * THREADS) < 0.5, rng.choice(np.array(SPECIAL, np.uint32), 3 * THREADS), words[1::2])
    return words


def results(text: str, each: int) -> np.ndarray:
    """The results of all threads."""
    out = np.zeros(THREADS * each, np.uint8)
    launch(text, grid=THREADS // 128, block=128, args=[inputs(), out], hazards=True)
    return out.reshape(THREADS, each)


@needs_compiler
@pytest.mark.parametrize("name", FORMS)
def test_runs_compute_the_bits_of_handlers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, each = kernel(name)
    monkeypatch.setattr(native_runs, "ENOUGH_WORK", 0)
    lengths: list[int] = []
    original = native_runs.compile_block

    def compile_block(*what: object) -> dict[tuple[int, int], native_runs.Function]:
        def counted(run: native_runs.Function, length: int) -> native_runs.Function:
            return lambda *given: lengths.append(length) or run(*given)

        return {(start, stop): counted(run, stop - start) for (start, stop), run in original(*what).items()}  # type: ignore[arg-type]

    monkeypatch.setattr(native_runs, "compile_block", compile_block)
    fast = results(text, each)
    assert sum(lengths) >= 3 * len(FORMS[name])
    lengths.clear()
    monkeypatch.setattr(native, "is_possible", lambda: False)
    slow = results(f"{text}// by handlers\n", each)
    assert not lengths
    size = max(REGISTERS[name][2], 2)
    wrong = [
        form
        for i, form in enumerate(FORMS[name])
        if not np.array_equal(fast[:, size * i : size * i + size], slow[:, size * i : size * i + size])
    ]
    assert not wrong


BARRIERS = """
.visible .entry kernel(.param .u64 kernel_out)
{
  .reg .b32 %r<10>; .reg .b64 %rd<4>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [kernel_out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r3, 0;
again:
  add.u32 %r3, %r3, %r1; xor.b32 %r4, %r3, %r2; add.u32 %r3, %r3, %r4; shr.u32 %r3, %r3, 1;
  bar.sync 0;
  add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 40; @%p1 bra again;
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r3;
  ret;
}
"""


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_lanes_wait_at_barriers_of_blocks_that_are_compiled(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A basic block is compiled, and bound anew, while a part of a warp's lanes waits at the barrier behind it."""
    out, expected = np.zeros((2, 64), np.uint32)
    launch(HEAD + BARRIERS, grid=1, block=64, args=[expected])
    monkeypatch.setattr(machine, "_STEPS_BETWEEN_NOTES", 1)
    monkeypatch.setattr(schedule, "_PARTED", 0.9)
    for enough in range(1000, 10_000, 3000):
        monkeypatch.setattr(native_runs, "ENOUGH_WORK", enough)
        launch(f"{HEAD}{BARRIERS}// {seed}, {enough}\n", grid=1, block=64, args=[out], schedule=RandomWarps(seed), hazards=True)
        assert np.array_equal(out, expected)
