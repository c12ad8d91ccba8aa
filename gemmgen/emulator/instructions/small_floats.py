"""cvt between float32 or float16 and pairs of floats of 8 bits or less: e4m3, e5m2, e2m3, e3m2, e2m1, ue8m0."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.instructions.half import split
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Operand, Register


@dataclass(frozen=True)
class _Format:
    """Sign, exponent and mantissa bits; codes from `finite` on, without the sign, are infinities and NaN."""

    exponent_bits: int
    mantissa_bits: int
    finite: int
    nan: int | None

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits


_FORMATS = {
    "e4m3x2": _Format(4, 3, 0x7F, 0x7F),
    "e5m2x2": _Format(5, 2, 0x7C, 0x7F),
    "e2m3x2": _Format(2, 3, 0x20, None),
    "e3m2x2": _Format(3, 2, 0x20, None),
    "e2m1x2": _Format(2, 1, 0x08, None),
}
_SCALE = "ue8m0x2"


@cache
def _magnitudes(name: str) -> np.ndarray:
    """The values of all codes without sign, the largest finite one last."""
    form = _FORMATS[name]
    codes = np.arange(form.finite)
    mantissa = codes & ((1 << form.mantissa_bits) - 1)
    exponent = codes >> form.mantissa_bits
    bias = (1 << (form.exponent_bits - 1)) - 1
    whole = np.where(exponent > 0, mantissa + (1 << form.mantissa_bits), mantissa).astype(np.float64)
    values: np.ndarray = np.ldexp(whole, np.maximum(exponent, 1) - bias - form.mantissa_bits)
    return values


def encode(value: np.ndarray, name: str, relu: bool) -> np.ndarray:
    """Codes of float64 values, rounded to nearest even; values that are too large become the largest number (.satfinite)."""
    form, magnitudes = _FORMATS[name], _magnitudes(name)
    size = np.minimum(np.abs(np.where(np.isnan(value), 0.0, value)), magnitudes[-1])
    above = np.minimum(np.searchsorted(magnitudes, size), len(magnitudes) - 1)
    below = np.maximum(above - 1, 0)
    down, up = size - magnitudes[below], magnitudes[above] - size
    code = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    negative = np.signbit(value) & ~np.isnan(value)
    code = np.where(negative, 0, code) if relu else code | negative.astype(np.int64) << (form.bits - 1)
    nan = form.finite - 1 if form.nan is None else form.nan
    codes: np.ndarray = np.where(np.isnan(value), nan, code).astype(np.uint32)
    return codes


def decode(codes: np.ndarray, name: str) -> np.ndarray:
    """The values of codes, as float64."""
    form, magnitudes = _FORMATS[name], _magnitudes(name)
    low = codes & ((1 << (form.bits - 1)) - 1)
    values = magnitudes[np.minimum(low, form.finite - 1)]
    if form.nan is not None:
        infinite = (low == form.finite) & (name == "e5m2x2")
        values = np.where(low >= form.finite, np.where(infinite, np.inf, np.nan), values)
    signed: np.ndarray = np.where(codes >> (form.bits - 1) & 1, -values, values)
    return signed


def _encode_scale(bits: np.ndarray, up: bool, saturate: bool) -> np.ndarray:
    """float32 bits to a power of two; the sign does not count."""
    exponent, mantissa = (bits >> np.uint32(23)) & np.uint32(0xFF), bits & np.uint32(0x7FFFFF)
    special = exponent == 0xFF
    if up:
        # A subnormal of up to 2**-127 is the code 0.
        more = np.where(exponent == 0, mantissa > 0x400000, mantissa > 0)
        exponent = exponent + more
    largest = np.uint32(0xFE)
    exponent = np.where((exponent >= 0xFF) & saturate, largest, exponent)
    infinite = np.where(saturate, largest, np.uint32(0xFF))
    codes: np.ndarray = np.where(special, np.where(mantissa > 0, np.uint32(0xFF), infinite), exponent).astype(np.uint32)
    return codes


def _row(inst: Instruction, binder: Binder, operand: Operand, type_name: str) -> np.ndarray:
    if not isinstance(operand, Register):
        raise UnknownInstruction("a register is expected", instruction=inst)
    return binder.registers.row(operand, type_name)


def _is_small(inst: Instruction) -> bool:
    return any(inst.has(name) for name in (*_FORMATS, _SCALE))


@instruction("cvt", when=_is_small)
def convert(inst: Instruction, binder: Binder) -> Operation:
    """The first of two sources goes to the upper half."""
    relu = inst.has("relu")
    name = inst.first_of((*_FORMATS, _SCALE)) or ""
    narrows = inst.modifiers[-1] != name
    width = 4 if name == "e2m1x2" else 8
    raw = "b32" if not narrows else "b16"
    target = _row(inst, binder, inst.operands[0], raw)
    source_type = inst.modifiers[-1]
    if not narrows:
        codes = _row(inst, binder, inst.operands[1], "b16")
        to_half = inst.has("f16x2")
        if not to_half and name != _SCALE:
            raise UnknownInstruction(f"cvt from .{name} to this type", instruction=inst)

        def widen(value: Source) -> Source:
            mask = (1 << width) - 1
            pair = np.stack([value & mask, (value >> width) & mask], axis=1).astype(np.uint32)
            if name == _SCALE:
                words = np.where(pair == 0xFF, 0x7FFF, np.where(pair == 0, 0x0040, pair << 7)).astype(np.uint16)
            else:
                numbers = decode(pair, name)
                numbers = np.where(np.signbit(numbers) & ~np.isnan(numbers), 0.0, numbers) if relu else numbers
                words = ieee.canonical_f16(numbers.astype(np.float16)).view(np.uint16)
            return np.ascontiguousarray(words).view(np.uint32)[:, 0]

        return binder.gathered([target], widen, [codes])

    def narrow(value: np.ndarray) -> np.ndarray:
        if name == _SCALE:
            return _encode_scale(value.astype(np.float32).view(np.uint32), inst.has("rp"), inst.has("satfinite"))
        return encode(value, name, relu)

    if source_type == "f32":
        sources = [binder.source(inst, operand, "f32") for operand in inst.operands[1:3]]

        def both(upper: Source, lower: Source) -> Source:
            high, low = (narrow(np.array(part, np.float64, ndmin=1)) for part in (upper, lower))
            return ((high << width) | low).astype(np.uint16)

        return binder.gathered([target], both, sources)
    packed = binder.source(inst, inst.operands[1], "b32")

    def from_halves(value: Source) -> Source:
        numbers = split(value, source_type)
        return ((narrow(numbers[:, 1]) << width) | narrow(numbers[:, 0])).astype(np.uint16)

    return binder.gathered([target], from_halves, [packed])
