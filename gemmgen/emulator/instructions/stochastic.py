"""cvt.rs: float32 to narrower floats, rounded by random bits that an operand holds.

PTX ISA, "cvt": random bits are added to the bits of the significand that the narrow type has no room for, and a carry rounds away from
zero. Random bits are aligned to the highest of these bits, of subnormal results too. An operand of 16 or 13 bits for each value
(`bf16x2`, `f16x2`) is specified; of four values, the PTX ISA names the halves of the operand, and public measurements the bytes: those of
a B200 for 8-bit floats and those of a B300, which reverses the bits of two bytes. The order of `e2m1x4` on sm_100a and of 6-bit floats
is inferred from these (docs/blackwell.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Vector

_FLOAT_BITS = 23
_BIAS = 127


class _Narrow(NamedTuple):
    """A type of results: bits of exponent and significand, the largest finite code, infinity, NaN, random bits, bits of its field."""

    exponent: int
    mantissa: int
    largest: int
    infinity: int
    nan: int
    random: int
    field: int


_TYPES = {
    "f16x2": _Narrow(5, 10, 0x7BFF, 0x7C00, 0x7FFF, 13, 16),
    "bf16x2": _Narrow(8, 7, 0x7F7F, 0x7F80, 0x7FFF, 16, 16),
    "e4m3x4": _Narrow(4, 3, 0x7E, 0x7E, 0x7F, 8, 8),
    "e5m2x4": _Narrow(5, 2, 0x7B, 0x7B, 0x7F, 8, 8),
    "e2m3x4": _Narrow(2, 3, 0x1F, 0x1F, 0x1F, 8, 8),
    "e3m2x4": _Narrow(3, 2, 0x1F, 0x1F, 0x1F, 8, 8),
    "e2m1x4": _Narrow(2, 1, 0x07, 0x07, 0x07, 8, 4),
}
_PAIRS = ("f16x2", "bf16x2")
_BYTES = {
    ("sm_100a", False): (0, 1, 2, 3),
    ("sm_100a", True): (0, 2, 1, 3),
    ("sm_103a", False): (1, 0, 3, 2),
    ("sm_103a", True): (2, 0, 3, 1),
}
"""Bytes of random bits of each value, the lowest first, by target and by whether results have 4 bits."""
_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.int64)


def round_by(value: np.ndarray, random: np.ndarray, narrow: _Narrow, relu: bool, saturate: bool) -> np.ndarray:
    """Codes of float32 values, rounded by random bits."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32).astype(np.int64)
    field, fraction = bits >> _FLOAT_BITS & 0xFF, bits & (1 << _FLOAT_BITS) - 1
    exponent = np.maximum(field, 1) - _BIAS
    significand = fraction | (field > 0).astype(np.int64) << _FLOAT_BITS
    lowest = 2 - (1 << narrow.exponent - 1)
    dropped = np.minimum(_FLOAT_BITS - narrow.mantissa + np.maximum(lowest - exponent, 0), 2 * _FLOAT_BITS)
    top = (significand >> dropped - narrow.random) & (1 << narrow.random) - 1
    rounded = (significand >> dropped) + (top + random >> narrow.random)
    codes = (np.maximum(exponent - lowest, 0) << narrow.mantissa) + rounded
    codes = np.where(codes > narrow.largest, narrow.largest if saturate else narrow.infinity, codes)
    negative = bits >> 31 & 1
    codes = np.where(negative > 0, 0, codes) if relu else codes | negative << narrow.exponent + narrow.mantissa
    return np.where((field == 0xFF) & (fraction > 0), narrow.nan, codes)


@instruction("cvt", when=lambda inst: inst.has("rs"))
def convert(inst: Instruction, binder: Binder) -> Operation:
    """The first source goes to the highest bits."""
    target = binder.program.module.target
    if target not in ("sm_100a", "sm_103a"):
        raise UnknownInstruction(f"cvt.rs exists on sm_100a and sm_103a only, not on {target}", instruction=inst)
    name = inst.first_of(tuple(_TYPES))
    if name is None or inst.modifiers[-1] != "f32" or (name not in _PAIRS and not inst.has("satfinite")):
        raise UnknownInstruction("cvt.rs converts .f32 to .f16x2 or .bf16x2, or with .satfinite to four narrower floats", instruction=inst)
    narrow, relu, saturate = _TYPES[name], inst.has("relu"), inst.has("satfinite")
    binder.require_real(inst, True)
    _, *operands, random_bits = inst.operands
    if name not in _PAIRS:
        (vector,) = operands
        operands = list(vector.elements) if isinstance(vector, Vector) else []
    if len(operands) != (2 if name in _PAIRS else 4):
        raise UnknownInstruction("cvt.rs with operands that are not understood", instruction=inst)
    sources = [binder.source(inst, operand, "f32") for operand in (*reversed(operands),)]
    width = 2 if name == "e2m1x4" else 4
    result = binder.target(inst, inst.operands[0], f"b{8 * width}")
    order = None if name in _PAIRS else _BYTES[target, name == "e2m1x4"]

    def random_of(words: np.ndarray, position: int) -> np.ndarray:
        if order is None:
            return words >> 16 * position & (1 << narrow.random) - 1
        octets: np.ndarray = words >> 8 * order[position] & 0xFF
        return _REVERSED[octets] if target == "sm_103a" and position % 2 else octets

    def compute(*values: Source) -> Source:
        words = np.array(values[-1], np.uint32, ndmin=1).astype(np.int64)
        packed = np.zeros(1, np.int64)
        for position, value in enumerate(values[:-1]):
            codes = round_by(np.array(value, np.float32, ndmin=1), random_of(words, position), narrow, relu, saturate)
            packed = packed | codes << narrow.field * position
        return packed.astype(np.uint16 if width == 2 else np.uint32)

    return binder.gathered([result], compute, [*sources, binder.source(inst, random_bits, "b32")])
