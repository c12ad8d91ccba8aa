"""cvt: between integers, floats and their narrow forms, in every rounding and saturation mode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.instructions.floating import saturated
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Operand, Register
from gemmgen.emulator.registers import DTYPES, widened

_FLOATS = {"f16", "bf16", "f32", "f64"}
_INTEGER_ROUNDINGS: dict[str, Callable[[Source], Source]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _target(inst: Instruction, binder: Binder, operand: Operand, type_name: str) -> np.ndarray | None:
    """A destination that may be wider than the type: the value is extended by the type's sign."""
    if not isinstance(operand, Register):
        return binder.target(inst, operand, type_name)
    return binder.registers.row(operand, widened(type_name, binder.registers.width(operand)))


@instruction("cvt", when=lambda inst: len(inst.types) == 2 and not inst.modifiers[-1].endswith("x2"))
def cvt(inst: Instruction, binder: Binder) -> Operation:
    """Conversions between two scalar types."""
    to, source_type = inst.types
    if to in ("f16x2", "bf16x2"):
        return _to_packed(inst, binder, to)
    source = binder.source(inst, inst.operands[1], source_type)
    target = _target(inst, binder, inst.operands[0], to)
    if to in _FLOATS and target is not None and target.itemsize > TYPE_BYTES[to]:
        raise UnknownInstruction(f"a conversion to .{to} into a wider register", instruction=inst)
    if source_type not in _FLOATS and to not in _FLOATS:
        return _integer_to_integer(inst, binder, target, source, to, source_type)
    if source_type not in _FLOATS:
        return binder.gathered([target], _integer_to_float(inst, to, source_type), [source])
    # .ftz is for float32 on both sides; float16 and bfloat16 take subnormals as they are.
    read = _as_f64(source_type, inst.has("ftz") and to not in ("f16", "bf16"))
    if to not in _FLOATS:
        return binder.gathered([target], _float_to_integer(inst, to, source_type, read), [source])
    return binder.gathered([target], _float_to_float(inst, to, source_type, read), [source])


@instruction("cvt", when=lambda inst: inst.has("tf32"))
def _to_tf32(inst: Instruction, binder: Binder) -> Operation:
    """float32 to tf32: 10 mantissa bits kept, in a 32-bit register."""
    mode = inst.first_of(("rna", "rn", "rz")) or ""
    relu = inst.has("relu")

    def compute(value: Source) -> Source:
        value = np.asarray(value)
        bits = value.view(np.uint32)
        drop = np.uint32(0x1FFF)
        if mode == "rna":
            rounded = bits + np.uint32(0x1000)
        elif mode == "rn":
            rounded = bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        else:
            rounded = bits
        rounded = rounded & ~drop
        rounded = np.where(np.isinf(value), bits, rounded)
        rounded = np.where(np.isnan(value), bits & ~drop if mode == "rna" else np.uint32(0x7FFFE000), rounded)
        if relu:
            rounded = np.where(np.signbit(value) & ~np.isnan(value), np.uint32(0), rounded)
        return rounded

    return binder.computed(inst, compute, "b32", "f32")


def _to_packed(inst: Instruction, binder: Binder, to: str) -> Operation:
    """`cvt.rn.f16x2.f32 d, a, b`: a goes to the upper half."""
    mode = inst.first_of((*ieee.ROUNDINGS, "rna")) or "rn"
    relu, saturate = inst.has("relu"), inst.has("satfinite")
    brain = to == "bf16x2"

    def narrow(value: Source) -> Source:
        return narrow_f32(np.asarray(value), brain, mode, relu, saturate).astype(np.uint32)

    target = binder.target(inst, inst.operands[0], "b32")
    sources = [binder.source(inst, operand, "f32") for operand in inst.operands[1:3]]
    return binder.gathered([target], lambda a, b: (narrow(a) << np.uint32(16)) | narrow(b), sources)


def narrow_f32(value: np.ndarray, brain: bool, mode: str, relu: bool, saturate: bool) -> Source:
    """float32 to float16 or bfloat16 bits."""
    if brain:
        bits = ieee.f32_to_bf16(value, mode)
        largest = np.uint16(0x7F7F)
    else:
        bits = ieee.to_f16(value.astype(np.float64), 0.0, mode).view(np.uint16)
        largest = np.uint16(0x7BFF)
    nan = np.isnan(value)
    if saturate:
        infinity = largest + np.uint16(1)
        sign = bits & np.uint16(0x8000)
        bits = np.where(((bits & np.uint16(0x7FFF)) == infinity) & ~nan, sign | largest, bits)
    if relu:
        bits = np.where((value < 0) | ((value == 0) & np.signbit(value)), np.uint16(0), bits)
    return bits


def _integer_to_integer(
    inst: Instruction, binder: Binder, target: np.ndarray | None, source: Source, to: str, source_type: str
) -> Operation:
    dtype = np.dtype(DTYPES[to])
    if inst.has("sat"):
        info, source_info = np.iinfo(str(dtype)), np.iinfo(source.dtype)
        low, high = max(int(info.min), int(source_info.min)), min(int(info.max), int(source_info.max))
        kind = source.dtype.type
        return binder.gathered([target], lambda a: np.clip(a, kind(low), kind(high)).astype(dtype), [source])
    if TYPE_BYTES[to] >= TYPE_BYTES[source_type] and (target is None or target.itemsize == dtype.itemsize):
        return binder.elementwise(target, _extend, [source])
    return binder.gathered([target], lambda a: a.astype(dtype), [source])


def _extend(value: Source, out: np.ndarray | None) -> Source:
    """Widens by the source's sign."""
    if out is None:
        return value
    np.copyto(out, value, casting="unsafe")
    return out


def _integer_to_float(inst: Instruction, to: str, source_type: str) -> Callable[[Source], Source]:
    mode = inst.first_of(ieee.ROUNDINGS) or "rn"
    wide = TYPE_BYTES[source_type] == 8

    def exact(value: Source) -> tuple[Source, Source]:
        # 64-bit integers as an exact sum of two float64.
        if not wide:
            return np.asarray(value).astype(np.float64), np.zeros(np.shape(value))
        value = np.asarray(value)
        high = (value >> value.dtype.type(32)).astype(np.float64) * 2.0**32
        low = (value & value.dtype.type(0xFFFFFFFF)).astype(np.float64)
        return ieee.two_sum(high, low)

    def compute(value: Source) -> Source:
        if to == "f32" and mode == "rn":
            return np.asarray(value).astype(np.float32)
        if to == "f64":
            if mode == "rn" or not wide:
                return np.asarray(value).astype(np.float64)
            s, e = exact(value)
            return _directed_sum(s, e, mode)
        s, e = exact(value)
        if to == "f32":
            return ieee.to_f32(s, e, mode)
        return ieee.to_f16(s, e, mode) if to == "f16" else ieee.to_bf16(s, e, mode)

    return compute


def _directed_sum(s: np.ndarray, e: np.ndarray, mode: str) -> Source:
    """s + e rounded to float64 in a directed mode, away from overflow."""
    if mode == "rz":
        step, toward = np.where(s > 0, e < 0, e > 0), 0.0
    elif mode == "rm":
        step, toward = e < 0, -np.inf
    else:
        step, toward = e > 0, np.inf
    return np.where(step, np.nextafter(s, toward), s)


def _as_f64(source_type: str, flush: bool) -> Callable[[Source], Source]:
    if source_type == "bf16":
        return lambda value: ieee.bf16_to_f64(np.asarray(value))
    if source_type == "f32" and flush:
        return lambda value: ieee.flush_f32(np.asarray(value)).astype(np.float64)
    return lambda value: np.asarray(value).astype(np.float64)


def _float_to_integer(inst: Instruction, to: str, source_type: str, read: Callable[[Source], Source]) -> Callable[[Source], Source]:
    """Out-of-range values clamp; NaN gives zero, or the top bit for a float64 source or a 64-bit result."""
    name = inst.first_of(tuple(_INTEGER_ROUNDINGS))
    if name is None:
        raise UnknownInstruction("a float to integer conversion without a rounding", instruction=inst)
    rounded = _INTEGER_ROUNDINGS[name]
    dtype = np.dtype(DTYPES[to])
    info = np.iinfo(str(dtype))
    low, high = float(info.min), float(info.max)
    top_bit = source_type == "f64" or to in ("s64", "u64")
    nan = dtype.type(info.min if dtype.kind == "i" else 1 << (dtype.itemsize * 8 - 1)) if top_bit else dtype.type(0)

    def compute(value: Source) -> Source:
        whole = rounded(read(value))
        inside = (whole >= low) & (whole <= high) & (whole < high + 1)
        result = np.where(inside, whole, 0.0).astype(dtype)
        result = np.where(whole > high, dtype.type(info.max), result)
        if high == 2.0 ** (dtype.itemsize * 8 - (dtype.kind == "i")):
            result = np.where(whole >= high, dtype.type(info.max), result)
        result = np.where(whole < low, dtype.type(info.min), result)
        return np.where(np.isnan(whole), nan, result)

    return compute


def _nan_bits(value: np.ndarray, source_type: str, to: str, flush: bool) -> Source:
    """NaNs of one float type converted to another, as bits; the result follows from the pair of types (measured on an H200)."""
    raw = value.view(f"u{value.itemsize}").astype(np.uint64)
    if source_type == "f64":
        bits, mantissa = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52)}[to]
        sign, payload = raw >> np.uint64(63), (raw & np.uint64((1 << 52) - 1)) >> np.uint64(52 - mantissa)
        ones = np.uint64((1 << (bits - 1 - mantissa)) - 1)
        return sign << np.uint64(bits - 1) | ones << np.uint64(mantissa) | np.uint64(1 << (mantissa - 1)) | payload
    if to == "f64":
        if flush:
            return np.full(raw.shape, 0x7FFFFFFFE0000000, np.uint64)
        wide = value.astype(np.float64) if source_type != "bf16" else ieee.bf16_to_f64(value)
        return ieee.quiet(wide).view(np.uint64)
    if source_type == "bf16" and to == "f32":
        return raw << np.uint64(16)
    return np.full(raw.shape, 0x7FFFFFFF if to == "f32" else 0x7FFF, np.uint64)


def _float_to_float(inst: Instruction, to: str, source_type: str, read: Callable[[Source], Source]) -> Callable[[Source], Source]:
    whole = inst.first_of(tuple(_INTEGER_ROUNDINGS))
    mode = inst.first_of((*ieee.ROUNDINGS, "rna")) or "rn"
    saturate, flush = inst.has("sat"), inst.has("ftz")
    if whole is None and not saturate and not inst.has("relu"):
        plain = _float_to_number(inst, to, source_type, read, None, mode)
        size = TYPE_BYTES[to]

        def keep_nan(value: Source) -> Source:
            given = np.array(value, ndmin=1)
            result = np.array(plain(given))
            nan = np.isnan(read(given))
            if nan.any():
                result.view(f"u{size}")[nan] = _nan_bits(given[nan], source_type, to, flush).astype(f"u{size}")
            return result

        return keep_nan
    return _float_to_number(inst, to, source_type, read, whole, mode)


def _float_to_number(
    inst: Instruction, to: str, source_type: str, read: Callable[[Source], Source], whole: str | None, mode: str
) -> Callable[[Source], Source]:
    saturate, flush = inst.has("sat"), inst.has("ftz")
    relu, satfinite = inst.has("relu"), inst.has("satfinite")

    def compute(value: Source) -> Source:
        wide = read(value)
        if whole is not None:
            wide = _INTEGER_ROUNDINGS[whole](wide)
        if saturate:
            wide = saturated(wide)
        if to == "f64":
            return wide
        if to == "f32":
            narrow = ieee.to_f32(wide, 0.0, mode)
            return ieee.flush_f32(narrow) if flush else narrow
        if source_type == "f32":
            bits = narrow_f32(wide.astype(np.float32), to == "bf16", mode, relu, satfinite)
            return bits if to == "bf16" else bits.view(np.float16)
        return ieee.to_f16(wide, 0.0, mode) if to == "f16" else ieee.to_bf16(wide, 0.0, mode)

    return compute


@instruction("cvt", when=lambda inst: inst.has("pack"))
def cvt_pack(inst: Instruction, binder: Binder) -> Operation:
    """`cvt.pack.sat.<t>.s32.b32 d, a, b, c`: two saturated values into the low bits, c's low bits above them."""
    to = inst.modifiers[2]
    bits = int(to[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    mask = np.uint32((1 << bits) - 1)

    def clamp(value: Source) -> Source:
        return np.clip(value, np.int32(low), np.int32(high)).astype(np.int32).view(np.uint32) & mask

    target = binder.target(inst, inst.operands[0], "b32")
    sources = [binder.source(inst, operand, "s32") for operand in inst.operands[1:3]]
    if bits == 16:
        return binder.gathered([target], lambda a, b: (clamp(a) << np.uint32(16)) | clamp(b), sources)
    third = binder.source(inst, inst.operands[3], "u32") if len(inst.operands) > 3 else np.uint32(0)
    return binder.gathered(
        [target],
        lambda a, b, c: (c << np.uint32(2 * bits)) | (clamp(a) << np.uint32(bits)) | clamp(b),
        [*sources, third],
    )
