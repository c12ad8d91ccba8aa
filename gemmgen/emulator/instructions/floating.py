"""float32 and float64 arithmetic with PTX's rounding, flushing and saturation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Compute, Source
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction


def is_f32(inst: Instruction) -> bool:
    """True if the operation is on float32."""
    return inst.type == "f32"


def is_mixed(inst: Instruction) -> bool:
    """True if float16 or bfloat16 operands are added to float32 (sm_100 and later)."""
    return inst.types in (("f32", "f16"), ("f32", "bf16"))


def is_f64(inst: Instruction) -> bool:
    """True if the operation is on float64."""
    return inst.type == "f64"


def rounding(inst: Instruction) -> str:
    """The rounding mode of an instruction; nearest even if it names none."""
    return inst.first_of(ieee.ROUNDINGS) or "rn"


def finish_f32(inst: Instruction, compute: Callable[..., Source]) -> Callable[..., Source]:
    """`compute` with .ftz on inputs and output and .sat on the output."""
    flush, saturate = inst.has("ftz"), inst.has("sat")
    if not flush and not saturate:
        return compute

    def wrapped(*values: Source) -> Source:
        result = compute(*[ieee.flush_f32(v) for v in values]) if flush else compute(*values)
        if flush:
            result = ieee.flush_f32(result)
        if saturate:
            result = saturated(result)
        return result

    return wrapped


def saturated(value: np.ndarray) -> Source:
    """Clamped to [0, 1]; NaN becomes 0."""
    return np.where(value > 0, np.minimum(value, value.dtype.type(1)), value.dtype.type(0))


def _fast(ufunc: np.ufunc) -> Compute:
    """A float32 ufunc that is exact in NumPy; only NaN needs care, and one reduction finds it."""

    def compute(a: Source, b: Source, out: np.ndarray | None) -> Source:
        result = ufunc(a, b, out)
        largest = result.max() if isinstance(result, np.ndarray) else result
        if largest != largest:
            if isinstance(result, np.ndarray):
                result[np.isnan(result)] = ieee.F32_NAN
            else:
                result = ieee.F32_NAN
        return result

    return compute


def _fast_f64(ufunc: np.ufunc) -> Compute:
    """A float64 ufunc that is exact in NumPy, except that of two NaNs it takes the first; one reduction finds NaNs."""

    def compute(a: Source, b: Source, out: np.ndarray | None) -> Source:
        largest = np.max(b)
        if largest == largest:
            return ufunc(a, b, out)
        result = ieee.passing_nan(ufunc(a, b), b)
        if out is not None:
            out[...] = result
        return result

    return compute


def _sources(inst: Instruction, binder: Binder) -> list[Source]:
    return [binder.source(inst, operand, inst.type) for operand in inst.operands[1:]]


@instruction("add", "sub", "mul", when=is_f32)
def arithmetic_f32(inst: Instruction, binder: Binder) -> Operation:
    """Sums and products: NumPy rounds them as the GPU does; the other modes go through exact sums."""
    target = binder.target(inst, inst.operands[0], "f32")
    mode = rounding(inst)
    ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[inst.opcode]
    if mode == "rn" and not inst.has("ftz") and not inst.has("sat"):
        return binder.elementwise(target, _fast(ufunc), _sources(inst, binder))
    exact: Callable[..., Source]
    if mode == "rn":
        exact = lambda a, b: ieee.canonical_f32(ufunc(a, b))  # noqa: E731
    elif inst.opcode == "mul":
        exact = lambda a, b: ieee.mul_f32(a, b, mode)  # noqa: E731
    elif inst.opcode == "add":
        exact = lambda a, b: ieee.add_f32(a, b, mode)  # noqa: E731
    else:
        exact = lambda a, b: ieee.add_f32(a, -np.asarray(b), mode)  # noqa: E731
    return binder.computed(inst, finish_f32(inst, exact), "f32", inst.type)


@instruction("fma", "mad", when=is_f32)
def fma_f32(inst: Instruction, binder: Binder) -> Operation:
    """A single fused multiply-add; runs of them are grouped before they get here."""
    mode = rounding(inst)
    return binder.computed(inst, finish_f32(inst, lambda a, b, c: ieee.fma_f32(a, b, c, mode)), "f32", inst.type)


@instruction("add", "sub", "fma", when=is_mixed)
def mixed(inst: Instruction, binder: Binder) -> Operation:
    """`add.f32.f16 d, a, c`: all operands but the last are narrow, and exact in float32."""
    narrow, mode = inst.types[1], rounding(inst)
    *first, last = inst.operands[1:]
    sources = [binder.source(inst, operand, "b16") for operand in first] + [binder.source(inst, last, "f32")]

    def widen(value: Source) -> Source:
        bits = np.array(value, ndmin=1)
        wide = ieee.bf16_to_f64(bits) if narrow == "bf16" else bits.view(np.float16).astype(np.float64)
        return wide.astype(np.float32)

    def compute(*values: Source) -> Source:
        *factors, addend = values
        wide = [widen(value) for value in factors]
        if inst.opcode == "fma":
            return ieee.fma_f32(wide[0], wide[1], addend, mode)
        return ieee.add_f32(wide[0], -np.asarray(addend) if inst.opcode == "sub" else addend, mode)

    return binder.gathered([binder.target(inst, inst.operands[0], "f32")], finish_f32(inst, compute), sources)


@instruction("div", when=is_f32)
def div_f32(inst: Instruction, binder: Binder) -> Operation:
    """.rn and the directed modes are exact; .full and .approx (2 ulp on the GPU) give the correctly rounded quotient."""
    mode = rounding(inst)
    return binder.computed(inst, finish_f32(inst, lambda a, b: ieee.div_f32(a, b, mode)), "f32", inst.type)


@instruction("rcp", when=is_f32)
def rcp_f32(inst: Instruction, binder: Binder) -> Operation:
    """.approx (1 ulp on the GPU) gives the correctly rounded reciprocal."""
    mode, one = rounding(inst), np.float32(1)
    return binder.computed(inst, finish_f32(inst, lambda a: ieee.div_f32(one, a, mode)), "f32", inst.type)


@instruction("sqrt", when=is_f32)
def sqrt_f32(inst: Instruction, binder: Binder) -> Operation:
    """.approx (1 ulp on the GPU) gives the correctly rounded root."""
    mode = rounding(inst)
    return binder.computed(inst, finish_f32(inst, lambda a: ieee.sqrt_f32(a, mode)), "f32", inst.type)


@instruction("add", "sub", "mul", "div", when=is_f64)
def arithmetic_f64(inst: Instruction, binder: Binder) -> Operation:
    """Sums, products and quotients."""
    target = binder.target(inst, inst.operands[0], "f64")
    mode = rounding(inst)
    ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[inst.opcode]
    if mode == "rn":
        return binder.elementwise(target, ufunc if inst.opcode == "div" else _fast_f64(ufunc), _sources(inst, binder))
    if inst.opcode == "sub":
        return binder.computed(inst, lambda a, b: ieee.directed_f64("add", a, ieee.negated(b), mode), "f64", inst.type)
    return binder.computed(inst, lambda a, b: ieee.directed_f64(inst.opcode, a, b, mode), "f64", inst.type)


@instruction("fma", "mad", when=is_f64)
def fma_f64(inst: Instruction, binder: Binder) -> Operation:
    """Fused multiply-add, rounded once."""
    mode = rounding(inst)
    return binder.computed(inst, lambda a, b, c: ieee.fma_f64(a, b, c, mode), "f64", inst.type)


@instruction("rcp", "sqrt", when=is_f64)
def unary_f64(inst: Instruction, binder: Binder) -> Operation:
    """Roots and reciprocals; `rcp.approx.ftz.f64` looks at the upper words alone, and its results have 20 bits of mantissa."""
    mode, one = rounding(inst), np.float64(1)
    compute: Callable[..., Source]
    if inst.opcode == "rcp" and inst.has("approx"):
        compute = lambda a: _upper_word(one / _upper_word(a))  # noqa: E731
    elif inst.opcode == "rcp":
        compute = (lambda a: one / a) if mode == "rn" else lambda a: ieee.directed_f64("div", np.ones_like(a), a, mode)
    else:
        compute = np.sqrt if mode == "rn" else lambda a: ieee.directed_f64("sqrt", a, None, mode)
    return binder.computed(inst, compute, "f64", inst.type)


def _upper_word(value: Source) -> Source:
    """float64 without its low 32 bits, subnormals flushed."""
    upper = (np.asarray(value, np.float64).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    return np.where(np.abs(upper) < np.finfo(np.float64).tiny, np.copysign(0.0, upper), upper)


def minimum(a: Source, b: Source, largest: bool, propagate: bool) -> Source:
    """IEEE 754-2019 minimumNumber or maximumNumber (-0 < +0); `propagate` lets a NaN win."""
    a, b = np.asarray(a), np.asarray(b)
    both_zero = (a == 0) & (b == 0)
    result = np.fmax(a, b) if largest else np.fmin(a, b)
    signs = np.signbit(a) & np.signbit(b) if largest else np.signbit(a) | np.signbit(b)
    result = np.where(both_zero, np.where(signs, a.dtype.type(-0.0), a.dtype.type(0)), result)
    if propagate:
        result = np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), result)
    return result


@instruction("min", "max", when=lambda inst: inst.type in ("f32", "f64"))
def min_max(inst: Instruction, binder: Binder) -> Operation:
    """The smaller or the larger one."""
    largest, propagate = inst.opcode == "max", inst.has("NaN")

    def compute(*values: Source) -> Source:
        result = minimum(values[0], values[1], largest, propagate)
        for value in values[2:]:
            result = minimum(result, value, largest, propagate)
        if inst.type == "f32":
            return ieee.canonical_f32(result)
        return np.where(np.isnan(result), ieee.passing_nan(result, *values), result)

    if inst.has("abs"):
        inner = compute
        compute = lambda *values: inner(*[np.abs(v) for v in values])  # noqa: E731
    if inst.has("xorsign"):
        compute = with_crossed_signs(compute)
    return binder.computed(inst, finish_f32(inst, compute), inst.type, inst.type)


def with_crossed_signs(compute: Callable[..., Source]) -> Callable[..., Source]:
    """A minimum or maximum of magnitudes with the exclusive or of the operands' signs (.xorsign.abs); a NaN keeps its own."""

    def crossed(a: Source, b: Source) -> Source:
        result = compute(a, b)
        return np.where((np.signbit(a) != np.signbit(b)) & ~np.isnan(result), -result, result)

    return crossed


@instruction("neg", "abs", when=lambda inst: inst.type in ("f32", "f64"))
def neg_abs(inst: Instruction, binder: Binder) -> Operation:
    """A NaN becomes the one that arithmetic gives: of float64 it keeps its sign and payload, and is quiet."""
    change, flush = np.negative if inst.opcode == "neg" else np.absolute, inst.has("ftz")

    def compute(a: Source) -> Source:
        if inst.type == "f64":
            return np.where(np.isnan(a), ieee.quiet(a), change(a))
        return ieee.canonical_f32(change(ieee.flush_f32(a) if flush else a))

    return binder.computed(inst, compute, inst.type, inst.type)


@instruction("copysign", when=lambda inst: inst.type in ("f32", "f64"))
def copysign(inst: Instruction, binder: Binder) -> Operation:
    """The second operand with the first one's sign."""
    return binder.computed(inst, lambda a, b: np.copysign(b, a), inst.type, inst.type)


@instruction("testp")
def testp(inst: Instruction, binder: Binder) -> Operation:
    """The class of a float."""
    target = binder.target(inst, inst.operands[0], "pred")
    source = binder.source(inst, inst.operands[1], inst.type)
    smallest = np.finfo(source.dtype).tiny
    tests: dict[str, Callable[[Source], Source]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        # PTX ISA: zeros are considered normal numbers.
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= smallest) | (a == 0)),
        "subnormal": lambda a: (np.abs(a) < smallest) & (a != 0),
    }
    return binder.gathered([target], tests[inst.modifiers[0]], [source])
