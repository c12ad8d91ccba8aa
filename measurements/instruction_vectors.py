"""Data-processing instructions on random and extreme operands: a GPU's results, bit for bit.

    python measurements/instruction_vectors.py --out FILE.npz     runs every form on the first GPU and records the results
    python measurements/instruction_vectors.py --emulate          runs every form on the emulator alone
    python measurements/instruction_vectors.py --list             prints the forms

Operands follow from the name of a form, so the file holds results only: `names`, `heads` (the results of the first lanes, as bits) and
`sums` (a CRC-32 of each run of 64 results). `tests/emulator/test_gpu_vectors.py` holds the emulator against them. Of approximate
instructions the PTX ISA gives a bound, not the bits; all their results are in `approximate_*`.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

CASES = 2048
RUN = 64
HEAD = 24
BLOCK = 128
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED_COMPARISONS = ("lo", "ls", "hi", "hs")
FLOAT_COMPARISONS = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
ROUNDINGS = ("rn", "rz", "rm", "rp")
_BITS = {"pred": 32, "f16x2": 32, "bf16x2": 32, "bf16": 16, "u8": 8, "s8": 8, "b8": 8}


def bits_of(type_name: str) -> int:
    """Bits of a PTX type."""
    return _BITS.get(type_name) or int(type_name.lstrip("usbf"))


@dataclass(frozen=True)
class Form:
    """One instruction: `text` names its result %d and its operands %a, %b, %c, %e; `result` and `operands` are their types.

    Types beginning with `n` are small numbers: `n32` counts bits. `setup` comes before the operands are loaded, `memory` is an
    operation on the result's own place, which holds the first operand before. `approximate` results have a bound only.
    """

    text: str
    result: str
    operands: tuple[str, ...]
    memory: bool = False
    approximate: bool = False

    @property
    def opcode(self) -> str:
        """The first word."""
        return self.text.split()[0].split(".")[0]


def _extremes(type_name: str) -> np.ndarray:
    """Operands worth asking about, as bits."""
    bits = bits_of(type_name)
    if type_name in ("f16x2", "bf16x2"):
        half = _extremes(type_name[:-2])
        return (half[:, None] << np.uint64(16) | half).ravel()
    if type_name[0] in "fb" and type_name[-2:] != "b8" and type_name not in ("b8", "b16", "b32", "b64"):
        exponent, mantissa = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}[type_name]
        top, bias = (1 << exponent) - 1, (1 << exponent - 1) - 1
        ones = (1 << mantissa) - 1
        found = [0, 1, 2, ones, ones - 1, 1 << mantissa, (1 << mantissa) + 1]
        for power in (-1, 0, 1, 2, 3, 7, 8, 10, 11, 15, 16, 23, 24, 30, 31, 32, 52, 53, 62, 63, 64, -2, -8, -14, -24, -25, -126):
            if 0 < bias + power < top:
                found += [(bias + power) << mantissa | fraction for fraction in (0, 1, ones, 1 << mantissa - 1)]
        found += [(top - 1) << mantissa | ones, (top - 1) << mantissa, top << mantissa, top << mantissa | 1 << mantissa - 1]
        found += [top << mantissa | 1, top << mantissa | ones]
        values = np.array(found, np.uint64)
        return np.concatenate([values, values | np.uint64(1 << bits - 1)])
    edges = [0, 1, 2, 3, 5, 10, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    edges += [1 << 32, (1 << 52) + 1, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, 0x5555555555555555]
    values = np.array([edge & (1 << bits) - 1 for edge in (*edges, *(-edge for edge in edges))], np.uint64)
    return values


def operands_of(form: Form) -> list[np.ndarray]:
    """The operands of a form, as unsigned integers of their size: extremes, random bits, and near ones of both."""
    rng = np.random.default_rng(zlib.crc32(form.text.encode()))
    found = []
    for type_name in form.operands:
        if type_name[0] == "n":
            most = int(type_name[1:])
            values = np.where(rng.random(CASES) < 0.8, rng.integers(0, most + 2, CASES), rng.integers(0, 1 << 32, CASES)).astype(np.uint64)
            found.append(values.astype(np.uint32))
            continue
        if type_name[0] == "m":
            found.append(rng.integers(0, 4, CASES).astype(f"u{int(type_name[1:]) // 8}"))
            continue
        bits = bits_of(type_name)
        size = max(bits, 16) // 8
        extremes = _extremes(type_name)
        random = rng.integers(0, 1 << 64, CASES, np.uint64, endpoint=False) >> np.uint64(64 - bits)
        if type_name in ("f16", "bf16", "f32", "f64"):
            # Numbers of like size, whose sums cancel and round.
            scale = {"f16": 4, "bf16": 16, "f32": 16, "f64": 30}[type_name]
            near = np.ldexp(rng.normal(size=CASES), rng.integers(-scale, scale, CASES))
            near_bits = _float_bits(near, type_name)
            random = np.where(rng.random(CASES) < 0.6, near_bits, random)
        elif type_name in ("f16x2", "bf16x2"):
            halves = [_float_bits(np.ldexp(rng.normal(size=CASES), rng.integers(-4, 4, CASES)), type_name[:-2]) for _ in range(2)]
            random = np.where(rng.random(CASES) < 0.6, halves[0] << np.uint64(16) | halves[1], random)
        else:
            random = random >> (rng.integers(0, bits, CASES).astype(np.uint64) * (rng.random(CASES) < 0.3)).astype(np.uint64)
        chosen = np.where(rng.random(CASES) < 0.5, extremes[rng.integers(0, len(extremes), CASES)], random)
        found.append(chosen.astype(f"u{size}"))
    return found


def _float_bits(values: np.ndarray, type_name: str) -> np.ndarray:
    if type_name == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint64)
    with np.errstate(over="ignore"):
        narrow = values.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[type_name])
    return narrow.view(f"u{narrow.itemsize}").astype(np.uint64)


def _sizes(form: Form) -> tuple[int, list[int]]:
    """Bytes of a result and of each operand in memory."""
    sizes = [4 if name[0] == "n" else int(name[1:]) // 8 if name[0] == "m" else max(bits_of(name), 16) // 8 for name in form.operands]
    return max(bits_of(form.result), 16) // 8, sizes


def entry_of(form: Form, name: str) -> str:
    """A kernel that executes a form once a thread."""
    result, sizes = _sizes(form)
    letters = "abce"[: len(sizes)]
    parameters = ", ".join(f".param .u64 {name}_{letter}" for letter in (*letters, "d"))
    lines = [
        f".visible .entry {name}({parameters})",
        "{",
        ".reg .b64 %addr, %at; .reg .b32 %t, %u, %v; .reg .pred %p, %q, %r; .reg .b16 %h<4>; .reg .b32 %w<8>; .reg .b64 %x<8>;",
        "mov.u32 %u, %ctaid.x; mov.u32 %v, %ntid.x; mov.u32 %t, %tid.x; mad.lo.u32 %t, %u, %v, %t;",
    ]
    for letter, size in zip(letters, sizes, strict=True):
        lines.append(f".reg .b{size * 8} %{letter}; ld.param.u64 %addr, [{name}_{letter}]; mul.wide.u32 %at, %t, {size};")
        lines.append(f"add.s64 %addr, %addr, %at; ld.global.b{size * 8} %{letter}, [%addr];")
    lines.append(f".reg .b{result * 8} %d; ld.param.u64 %addr, [{name}_d]; mul.wide.u32 %at, %t, {result}; add.s64 %addr, %addr, %at;")
    if form.memory:
        lines += [f"st.global.b{result * 8} [%addr], %a;", form.text]
    else:
        lines += [form.text, f"st.global.b{result * 8} [%addr], %d;"]
    return "\n".join([*lines, "ret;", "}", ""])


def module_of(forms: Sequence[Form], first: int = 0) -> str:
    """A module with one entry a form, `form_0` and on."""
    head = ".version 8.4\n.target sm_90a\n.address_size 64\n"
    return head + "\n".join(entry_of(form, f"form_{first + number}") for number, form in enumerate(forms))


# -- the forms -------------------------------------------------------------------------------------------------------


def _plain(opcode: str, type_name: str, count: int, result: str | None = None, source: str | None = None) -> Form:
    letters = ", ".join(f"%{letter}" for letter in "abce"[:count])
    return Form(f"{opcode}.{type_name} %d, {letters};", result or type_name, (source or type_name,) * count)


def integers() -> Iterator[Form]:
    """Arithmetic on integers."""
    for t in ("u16", "s16", "u32", "s32", "u64", "s64"):
        for opcode in ("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"):
            yield _plain(opcode, t, 2)
        for opcode in ("mad.lo", "mad.hi", "sad"):
            yield _plain(opcode, t, 3)
        if t[0] == "s":
            yield _plain("neg", t, 1)
            yield _plain("abs", t, 1)
        if t[1:] != "64":
            wide = f"{t[0]}{int(t[1:]) * 2}"
            yield Form(f"mul.wide.{t} %d, %a, %b;", wide, (t, t))
            yield Form(f"mad.wide.{t} %d, %a, %b, %c;", wide, (t, t, wide))
    for opcode in ("add.sat", "sub.sat"):
        yield _plain(opcode, "s32", 2)
    yield _plain("mad.hi.sat", "s32", 3)
    for t, half in product(("u32", "s32"), ("lo", "hi")):
        yield _plain(f"mul24.{half}", t, 2)
        yield _plain(f"mad24.{half}", t, 3)
    yield _plain("mad24.hi.sat", "s32", 3)
    for t in ("u16x2", "s16x2"):
        for opcode in ("add", "min", "max"):
            yield Form(f"{opcode}.{t} %d, %a, %b;", "b32", ("b32", "b32"))
    for opcode in ("min", "max"):
        yield Form(f"{opcode}.relu.s16x2 %d, %a, %b;", "b32", ("b32", "b32"))
        yield Form(f"{opcode}.relu.s32 %d, %a, %b;", "b32", ("b32", "b32"))
    for a, b in product(("u32", "s32"), repeat=2):
        yield Form(f"dp4a.{a}.{b} %d, %a, %b, %c;", "b32", ("b32",) * 3)
        for half in ("lo", "hi"):
            yield Form(f"dp2a.{half}.{a}.{b} %d, %a, %b, %c;", "b32", ("b32",) * 3)
    for t in ("u32", "s32", "u64", "s64"):
        bits = "b" + t[1:]
        yield Form(f"add.cc.{t} %{'w' if t[1:] == '32' else 'x'}0, %a, %b; addc.{t} %d, %c, %a;", bits, (bits,) * 3)
        yield Form(f"sub.cc.{t} %{'w' if t[1:] == '32' else 'x'}0, %a, %b; subc.{t} %d, %c, %a;", bits, (bits,) * 3)
        yield Form(f"sub.cc.{t} %{'w' if t[1:] == '32' else 'x'}0, %a, %b; addc.{t} %d, %c, %a;", bits, (bits,) * 3)
        yield Form(f"add.cc.{t} %{'w' if t[1:] == '32' else 'x'}0, %a, %b; addc.cc.{t} %d, %c, %a; addc.{t} %d, %d, %b;", bits, (bits,) * 3)
        yield Form(f"mad.lo.cc.{t} %d, %a, %b, %c; madc.hi.{t} %d, %a, %b, %d;", bits, (bits,) * 3)
        yield Form(f"mad.hi.cc.{t} %d, %a, %b, %c; addc.{t} %d, %d, %b;", bits, (bits,) * 3)
    video = ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vavrg")
    for opcode, parts, (d, a, b) in product(video, (2, 4), (("u32", "u32", "u32"), ("s32", "s32", "s32"), ("s32", "u32", "s32"))):
        for tail in ("", ".sat", ".add"):
            if opcode == "vavrg" and tail == ".sat":
                continue
            yield Form(f"{opcode}{parts}.{d}.{a}.{b}{tail} %d, %a, %b, %c;", "b32", ("b32",) * 3)


def bits() -> Iterator[Form]:
    """Logic, shifts and the handling of bits."""
    for t in ("b16", "b32", "b64"):
        for opcode in ("and", "or", "xor"):
            yield _plain(opcode, t, 2)
        yield _plain("not", t, 1)
        yield _plain("cnot", t, 1)
        size = int(t[1:])
        yield Form(f"shl.{t} %d, %a, %b;", t, (t, f"n{size}"))
        for kind in "bus":
            yield Form(f"shr.{kind}{size} %d, %a, %b;", t, (t, f"n{size}"))
    for t in ("b32", "b64"):
        yield Form(f"popc.{t} %d, %a;", "b32", (t,))
        yield Form(f"clz.{t} %d, %a;", "b32", (t,))
        yield Form(f"brev.{t} %d, %a;", t, (t,))
        yield Form(f"bfi.{t} %d, %a, %b, %c, %e;", t, (t, t, f"n{int(t[1:])}", f"n{int(t[1:])}"))
    for t in ("u32", "s32", "u64", "s64"):
        raw, size = "b" + t[1:], int(t[1:])
        yield Form(f"bfe.{t} %d, %a, %b, %c;", raw, (raw, f"n{size}", f"n{size}"))
        yield Form(f"bfind.{t} %d, %a;", "b32", (raw,))
        yield Form(f"bfind.shiftamt.{t} %d, %a;", "b32", (raw,))
    for mode in ("clamp", "wrap"):
        yield Form(f"bmsk.{mode}.b32 %d, %a, %b;", "b32", ("n32", "n32"))
        for t in ("u32", "s32"):
            yield Form(f"szext.{mode}.{t} %d, %a, %b;", "b32", ("b32", "n32"))
        for side in "lr":
            yield Form(f"shf.{side}.{mode}.b32 %d, %a, %b, %c;", "b32", ("b32", "b32", "n32"))
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield Form(f"prmt.b32{mode} %d, %a, %b, %c;", "b32", ("b32", "b32", "b32"))
    for table in (0x00, 0x1B, 0x96, 0xE8, 0xCA, 0xF8, 0x80, 0xFE, 0xFF, 0x47):
        yield Form(f"lop3.b32 %d, %a, %b, %c, {table};", "b32", ("b32",) * 3)
    for base, offset in ((0, 1), (0, 3), (5, 0), (31, -1), (16, -3), (8, 2)):
        yield Form(f"fns.b32 %d, %a, {base}, {offset};", "b32", ("b32",))
    for t in ("b16", "b32", "b64", "f32", "f64"):
        yield Form(f"setp.lt.s32 %p, %c, 0; selp.{t} %d, %a, %b, %p;", t, (t, t, "b32"))
    for t, condition in product(("b16", "b32", "b64", "f32", "f64"), ("s32", "f32")):
        yield Form(f"slct.{t}.{condition} %d, %a, %b, %c;", t, (t, t, condition))
    yield Form("slct.ftz.b32.f32 %d, %a, %b, %c;", "b32", ("b32", "b32", "f32"))
    yield Form("mov.b32 {%h0, %h1}, %a; mov.b32 %d, {%h1, %h0};", "b32", ("b32",))
    yield Form("mov.b64 {%w0, %w1}, %a; mov.b64 %d, {%w1, %w0};", "b64", ("b64",))


def comparisons() -> Iterator[Form]:
    """setp and set."""
    for t in ("b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16"):
        names = COMPARISONS[:2] if t[0] == "b" and t != "bf16" else COMPARISONS
        names += UNSIGNED_COMPARISONS if t[0] == "u" else FLOAT_COMPARISONS if "f" in t else ()
        for name in names:
            yield Form(f"setp.{name}.{t} %p, %a, %b; selp.b32 %d, 1, 0, %p;", "b32", (t, t))
    both = "selp.b32 %d, 1, 0, %p; selp.b32 %w0, 2, 0, %q; or.b32 %d, %d, %w0;"
    for t, combine, negated in product(("s32", "f32", "f64", "u16"), ("and", "or", "xor"), ("", "!")):
        yield Form(f"setp.lt.s32 %r, %c, 0; setp.le.{combine}.{t} %p|%q, %a, %b, {negated}%r; {both}", "b32", (t, t, "b32"))
    yield Form("setp.lt.ftz.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", "b32", ("f32", "f32"))
    yield Form("setp.eq.ftz.f16 %p, %a, %b; selp.b32 %d, 1, 0, %p;", "b32", ("f16", "f16"))
    for t, name in product(("f16x2", "bf16x2"), (*COMPARISONS, *FLOAT_COMPARISONS)):
        yield Form(f"setp.{name}.{t} %p|%q, %a, %b; {both}", "b32", (t, t))
    for result, t in product(("u32", "s32", "f32"), ("u16", "s32", "u64", "f32", "f64")):
        for name in ("eq", "lt", "ge"):
            yield Form(f"set.{name}.{result}.{t} %d, %a, %b;", "b32", (t, t))
    yield Form("set.lt.ftz.f32.f32 %d, %a, %b;", "b32", ("f32", "f32"))
    for t in ("f16", "bf16"):
        for name in ("eq", "lt", "geu", "num"):
            yield Form(f"set.{name}.{t}.{t} %d, %a, %b;", t, (t, t))
            yield Form(f"set.{name}.u32.{t} %d, %a, %b;", "b32", (t, t))
            yield Form(f"set.{name}.{t}x2.{t}x2 %d, %a, %b;", f"{t}x2", (f"{t}x2", f"{t}x2"))


def floats() -> Iterator[Form]:
    """Arithmetic on float32 and float64, correctly rounded."""
    for opcode, rounding, ftz, sat in product(("add", "sub", "mul"), ROUNDINGS, ("", ".ftz"), ("", ".sat")):
        yield _plain(f"{opcode}.{rounding}{ftz}{sat}", "f32", 2)
    for rounding, ftz, sat in product(ROUNDINGS, ("", ".ftz"), ("", ".sat")):
        yield _plain(f"fma.{rounding}{ftz}{sat}", "f32", 3)
    for rounding, ftz in product(ROUNDINGS, ("", ".ftz")):
        yield _plain(f"div.{rounding}{ftz}", "f32", 2)
        yield _plain(f"rcp.{rounding}{ftz}", "f32", 1)
        yield _plain(f"sqrt.{rounding}{ftz}", "f32", 1)
    for rounding in ROUNDINGS:
        for opcode in ("add", "sub", "mul", "div"):
            yield _plain(f"{opcode}.{rounding}", "f64", 2)
        yield _plain(f"fma.{rounding}", "f64", 3)
        yield _plain(f"rcp.{rounding}", "f64", 1)
        yield _plain(f"sqrt.{rounding}", "f64", 1)
    for opcode, ftz, nan, sign in product(("min", "max"), ("", ".ftz"), ("", ".NaN"), ("", ".xorsign.abs")):
        yield _plain(f"{opcode}{ftz}{nan}{sign}", "f32", 2)
    for t in ("f32", "f64"):
        for opcode in ("neg", "abs"):
            yield _plain(opcode, t, 1)
        yield _plain("copysign", t, 2)
        for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield Form(f"testp.{test}.{t} %p, %a; selp.b32 %d, 1, 0, %p;", "b32", (t,))
    for opcode in ("neg.ftz", "abs.ftz"):
        yield _plain(opcode, "f32", 1)
    for opcode in ("min", "max"):
        yield _plain(opcode, "f64", 2)


def halves() -> Iterator[Form]:
    """Arithmetic on float16 and bfloat16, single and in pairs."""
    for t in ("f16", "f16x2"):
        for opcode, ftz, sat in product(("add", "sub", "mul"), ("", ".ftz"), ("", ".sat")):
            yield _plain(f"{opcode}.rn{ftz}{sat}", t, 2)
        for ftz, tail in product(("", ".ftz"), ("", ".sat", ".relu")):
            yield _plain(f"fma.rn{ftz}{tail}", t, 3)
        for opcode, ftz, nan, sign in product(("min", "max"), ("", ".ftz"), ("", ".NaN"), ("", ".xorsign.abs")):
            yield _plain(f"{opcode}{ftz}{nan}{sign}", t, 2)
        for opcode, ftz in product(("neg", "abs"), ("", ".ftz")):
            yield _plain(f"{opcode}{ftz}", t, 1)
    for t in ("bf16", "bf16x2"):
        for opcode in ("add", "sub", "mul"):
            yield _plain(f"{opcode}.rn", t, 2)
        for tail in ("", ".relu"):
            yield _plain(f"fma.rn{tail}", t, 3)
        for opcode, nan, sign in product(("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")):
            yield _plain(f"{opcode}{nan}{sign}", t, 2)
        for opcode in ("neg", "abs"):
            yield _plain(opcode, t, 1)


def conversions() -> Iterator[Form]:
    """cvt between all types."""
    kinds = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    for to, source in product(kinds, kinds):
        if to == source:
            continue
        result = "b" + str(max(bits_of(to), 16))
        if bits_of(to) == 8:
            # The register is wider than the type, and the value is extended.
            yield Form(f"cvt.{to}.{source} %h0, %a; cvt.{to[0]}32.{to[0]}16 %d, %h0;", "b32", (source,))
            yield Form(f"cvt.sat.{to}.{source} %h0, %a; cvt.{to[0]}32.{to[0]}16 %d, %h0;", "b32", (source,))
            continue
        yield Form(f"cvt.{to}.{source} %d, %a;", result, (source,))
        # A type that holds all values of the other one has nothing to saturate.
        if not (bits_of(to) > bits_of(source) and (to[0] == "s" or source[0] == "u")):
            yield Form(f"cvt.sat.{to}.{source} %d, %a;", result, (source,))
    for t, source, rounding in product(("f16", "bf16", "f32", "f64"), kinds, ROUNDINGS):
        if t == "bf16" and bits_of(source) == 8:
            continue
        yield Form(f"cvt.{rounding}.{t}.{source} %d, %a;", t, (source,))
    for to, source, rounding in product(kinds[2:], ("f16", "bf16", "f32", "f64"), ("rni", "rzi", "rmi", "rpi")):
        yield Form(f"cvt.{rounding}.{to}.{source} %d, %a;", "b" + to[1:], (source,))
    for to in ("u8", "s8"):
        for source in ("f16", "f32", "f64"):
            yield Form(f"cvt.rni.{to}.{source} %h0, %a; cvt.{to[0]}32.{to[0]}16 %d, %h0;", "b32", (source,))
            yield Form(f"cvt.rzi.sat.{to}.{source} %h0, %a; cvt.{to[0]}32.{to[0]}16 %d, %h0;", "b32", (source,))
    for to, rounding in product(("s32", "u32", "s64", "u64", "s16"), ("rni", "rzi", "rmi", "rpi")):
        yield Form(f"cvt.{rounding}.ftz.{to}.f32 %d, %a;", "b" + to[1:], ("f32",))
    yield Form("cvt.f32.f16 %d, %a;", "f32", ("f16",))
    yield Form("cvt.f32.bf16 %d, %a;", "f32", ("bf16",))
    yield Form("cvt.f64.f16 %d, %a;", "f64", ("f16",))
    yield Form("cvt.f64.bf16 %d, %a;", "f64", ("bf16",))
    yield Form("cvt.f64.f32 %d, %a;", "f64", ("f32",))
    yield Form("cvt.ftz.f64.f32 %d, %a;", "f64", ("f32",))
    yield Form("cvt.sat.f32.f16 %d, %a;", "f32", ("f16",))
    yield Form("cvt.sat.f64.f32 %d, %a;", "f64", ("f32",))
    for rounding in ROUNDINGS:
        yield Form(f"cvt.{rounding}.f16.f32 %d, %a;", "f16", ("f32",))
        yield Form(f"cvt.{rounding}.bf16.f32 %d, %a;", "bf16", ("f32",))
        yield Form(f"cvt.{rounding}.f16.f64 %d, %a;", "f16", ("f64",))
        yield Form(f"cvt.{rounding}.bf16.f64 %d, %a;", "bf16", ("f64",))
        yield Form(f"cvt.{rounding}.f16.bf16 %d, %a;", "f16", ("bf16",))
        yield Form(f"cvt.{rounding}.bf16.f16 %d, %a;", "bf16", ("f16",))
        for tail in ("", ".ftz", ".sat", ".ftz.sat"):
            yield Form(f"cvt.{rounding}{tail}.f32.f64 %d, %a;", "f32", ("f64",))
        yield Form(f"cvt.{rounding}.sat.f16.f32 %d, %a;", "f16", ("f32",))
        yield Form(f"cvt.{rounding}.ftz.f16.f32 %d, %a;", "f16", ("f32",))
    for whole in ("rni", "rzi", "rmi", "rpi"):
        for t in ("f16", "f32", "f64"):
            yield Form(f"cvt.{whole}.{t}.{t} %d, %a;", t, (t,))
            yield Form(f"cvt.{whole}.sat.{t}.{t} %d, %a;", t, (t,))
        yield Form(f"cvt.{whole}.ftz.f32.f32 %d, %a;", "f32", ("f32",))
    yield Form("cvt.sat.f32.f32 %d, %a;", "f32", ("f32",))
    yield Form("cvt.ftz.f32.f32 %d, %a;", "f32", ("f32",))
    for rounding, relu in product(("rn", "rz"), ("", ".relu")):
        yield Form(f"cvt.{rounding}{relu}.bf16.f32 %d, %a;", "bf16", ("f32",))
        yield Form(f"cvt.{rounding}{relu}.f16.f32 %d, %a;", "f16", ("f32",))
        for t in ("f16x2", "bf16x2"):
            yield Form(f"cvt.{rounding}{relu}.{t}.f32 %d, %a, %b;", "b32", ("f32", "f32"))
        yield Form(f"cvt.{rounding}{relu}.tf32.f32 %d, %a;", "b32", ("f32",))
    yield Form("cvt.rna.tf32.f32 %d, %a;", "b32", ("f32",))
    for t, relu in product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        yield Form(f"cvt.rn.satfinite{relu}.{t}.f32 %d, %a, %b;", "b16", ("f32", "f32"))
        yield Form(f"cvt.rn.satfinite{relu}.{t}.f16x2 %d, %a;", "b16", ("f16x2",))
        yield Form(f"cvt.rn{relu}.f16x2.{t} %d, %a;", "b32", ("b16",))
    for to in ("u16", "s16"):
        yield Form(f"cvt.pack.sat.{to}.s32 %d, %a, %b;", "b32", ("b32", "b32"))
    for to in ("u8", "s8", "u4", "s4", "u2", "s2"):
        yield Form(f"cvt.pack.sat.{to}.s32.b32 %d, %a, %b, %c;", "b32", ("b32",) * 3)


def warps() -> Iterator[Form]:
    """Exchange between the lanes of a whole warp."""
    for mode in ("up", "down", "bfly", "idx"):
        yield Form(f"shfl.sync.{mode}.b32 %d|%p, %a, %b, %c, -1; @!%p not.b32 %d, %d;", "b32", ("b32", "n32", "n32"))
        for control in (0x0, 0x1F, 0x101F, 0x181C, 0x1E01):
            yield Form(f"shfl.sync.{mode}.b32 %d|%p, %a, 3, {control}, -1; @!%p not.b32 %d, %d;", "b32", ("b32",))
    for mode in ("all", "any", "uni"):
        yield Form(f"setp.lt.s32 %q, %a, 0; vote.sync.{mode}.pred %p, %q, -1; selp.b32 %d, 1, 0, %p;", "b32", ("b32",))
    yield Form("setp.lt.s32 %q, %a, 0; vote.sync.ballot.b32 %d, %q, -1;", "b32", ("b32",))
    for t in ("b32", "b64"):
        yield Form(f"match.any.sync.{t} %d, %a, -1;", "b32", ("m" + t[1:],))
        yield Form(f"match.all.sync.{t} %d|%p, %a, -1; @!%p not.b32 %d, %d;", "b32", ("m" + t[1:],))
    for t, opcode in product(("u32", "s32"), ("add", "min", "max")):
        yield Form(f"redux.sync.{opcode}.{t} %d, %a, -1;", "b32", ("b32",))
    for opcode in ("and", "or", "xor"):
        yield Form(f"redux.sync.{opcode}.b32 %d, %a, -1;", "b32", ("b32",))


def atomics() -> Iterator[Form]:
    """Result of an atomic operation in memory, exclusive-ored with its return value."""
    for t in ("u32", "s32", "u64", "s64"):
        raw = "b" + t[1:]
        names = ("add", "min", "max") if t != "s64" else ("min", "max")
        for name in names:
            yield Form(f"atom.global.{name}.{t} %d, [%addr], %b;", raw, (raw, raw), memory=True)
    for t, name in product(("b32", "b64"), ("and", "or", "xor", "exch")):
        yield Form(f"atom.global.{name}.{t} %d, [%addr], %b;", t, (t, t), memory=True)
    for name in ("inc", "dec"):
        yield Form(f"atom.global.{name}.u32 %d, [%addr], %b;", "b32", ("b32", "b32"), memory=True)
    for t in ("b16", "b32", "b64"):
        yield Form(f"atom.global.cas.{t} %d, [%addr], %b, %c;", t, ("m" + t[1:], "m" + t[1:], t), memory=True)
    for t in ("f32", "f64"):
        yield Form(f"atom.global.add.{t} %d, [%addr], %b;", t, (t, t), memory=True)
    for t in ("f16", "f16x2", "bf16", "bf16x2"):
        yield Form(f"atom.global.add.noftz.{t} %d, [%addr], %b;", t, (t, t), memory=True)


def approximations() -> Iterator[Form]:
    """Instructions whose results have a bound in the ISA."""
    for opcode in ("ex2", "lg2", "sin", "cos", "rcp", "sqrt", "rsqrt"):
        for ftz in ("", ".ftz"):
            yield Form(f"{opcode}.approx{ftz}.f32 %d, %a;", "f32", ("f32",), approximate=True)
    yield Form("tanh.approx.f32 %d, %a;", "f32", ("f32",), approximate=True)
    for opcode in ("div.approx", "div.full"):
        yield Form(f"{opcode}.f32 %d, %a, %b;", "f32", ("f32", "f32"), approximate=True)
    yield Form("rsqrt.approx.f64 %d, %a;", "f64", ("f64",), approximate=True)
    yield Form("rcp.approx.ftz.f64 %d, %a;", "f64", ("f64",), approximate=True)
    yield Form("ex2.approx.f16 %d, %a;", "f16", ("f16",), approximate=True)
    yield Form("tanh.approx.f16 %d, %a;", "f16", ("f16",), approximate=True)
    yield Form("ex2.approx.ftz.bf16 %d, %a;", "bf16", ("bf16",), approximate=True)
    yield Form("tanh.approx.bf16 %d, %a;", "bf16", ("bf16",), approximate=True)


GROUPS = {
    "integers": integers,
    "bits": bits,
    "comparisons": comparisons,
    "floats": floats,
    "halves": halves,
    "conversions": conversions,
    "warps": warps,
    "atomics": atomics,
    "approximations": approximations,
}


def forms() -> list[Form]:
    """All forms, in order, each once."""
    return list(dict.fromkeys(form for group in GROUPS.values() for form in group()))


# -- running -----------------------------------------------------------------------------------------------------------


def on_emulator(form: Form) -> np.ndarray:
    """The results of a form on the emulator."""
    from gemmgen import emulator

    result = np.zeros(CASES, f"u{_sizes(form)[0]}")
    emulator.launch(module_of([form]), "form_0", grid=CASES // BLOCK, block=BLOCK, args=[*operands_of(form), result])
    return result


def on_gpu(chosen: Sequence[Form]) -> list[np.ndarray]:
    """The results of forms on the first GPU."""
    from gemmgen.runtime.cuda import driver

    results = []
    with driver.current_device(0):
        for first in range(0, len(chosen), 100):
            part = chosen[first : first + 100]
            module = driver.call("cuModuleLoadData", module_of(part, first).encode() + b"\0")
            for number, form in enumerate(part, first):
                function = driver.call("cuModuleGetFunction", module, f"form_{number}".encode())
                result = np.zeros(CASES, f"u{_sizes(form)[0]}")
                arrays = [*operands_of(form), result]
                pointers = []
                for array in arrays:
                    pointers.append(driver.call("cuMemAlloc", array.nbytes))
                    driver.call("cuMemcpyHtoD", pointers[-1], array.ctypes.data, array.nbytes)
                kinds = (np.ctypeslib.ctypes.c_void_p,) * len(pointers)
                values = tuple(int(pointer) for pointer in pointers)
                driver.call("cuLaunchKernel", function, CASES // BLOCK, 1, 1, BLOCK, 1, 1, 0, 0, (values, kinds), 0)
                driver.call("cuCtxSynchronize")
                driver.call("cuMemcpyDtoH", result.ctypes.data, pointers[-1], result.nbytes)
                for pointer in pointers:
                    driver.release("cuMemFree", pointer)
                results.append(result)
            driver.call("cuModuleUnload", module)
    return results


def heads_and_sums(result: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Part of a result that the file keeps: the first values, and a checksum of each run."""
    sums = [zlib.crc32(run.tobytes()) for run in result.reshape(-1, RUN)]
    return result[:HEAD].astype(np.uint64), np.array(sums, np.uint32)


def record(path: Path, measured: Sequence[np.ndarray], chosen: Sequence[Form]) -> None:
    """Writes the file."""
    exact = [(form, result) for form, result in zip(chosen, measured, strict=True) if not form.approximate]
    kept = [heads_and_sums(result) for _, result in exact]
    arrays = {
        "names": np.array("\n".join(form.text for form, _ in exact)),
        "heads": np.array([head for head, _ in kept]),
        "sums": np.array([sums for _, sums in kept]),
    }
    rough = [(form, result) for form, result in zip(chosen, measured, strict=True) if form.approximate]
    arrays["approximate_names"] = np.array("\n".join(form.text for form, _ in rough))
    arrays["approximate_results"] = np.array([result[:512].astype(np.uint64) for _, result in rough])
    np.savez_compressed(path, **arrays)


def main() -> None:
    """Prints the forms in which GPU and emulator differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the file to write")
    parser.add_argument("--emulate", action="store_true", help="run on the emulator alone")
    parser.add_argument("--list", action="store_true", help="print the forms, and run nothing")
    options = parser.parse_args()
    chosen = forms()
    if options.list:
        sys.stdout.writelines(f"{form.text}\n" for form in chosen)
        return
    measured = None if options.emulate else on_gpu(chosen)
    if options.out is not None and measured is not None:
        record(options.out, measured, chosen)
    differing = 0
    for number, form in enumerate(chosen):
        try:
            emulated = on_emulator(form)
        except Exception as error:
            print(f"{form.text:60} not emulated: {str(error).splitlines()[0]}")
            continue
        if measured is None or form.approximate:
            continue
        bad = np.flatnonzero(emulated != measured[number])
        if len(bad):
            differing += 1
            at = bad[:3]
            operands = [" ".join(f"{int(array[i]):x}" for array in operands_of(form)) for i in at]
            told = "; ".join(
                f"({o}) -> {int(measured[number][i]):x}, emulated {int(emulated[i]):x}" for o, i in zip(operands, at, strict=True)
            )
            print(f"{form.text:60} {len(bad)} of {CASES} differ: {told}")
    print(f"{len(chosen)} forms, {differing} differ")


if __name__ == "__main__":
    main()
