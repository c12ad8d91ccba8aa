"""float16 and bfloat16 arithmetic, single and in pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.instructions.compare import COMBINATIONS, COMPARISONS
from gemmgen.emulator.instructions.floating import is_mixed, minimum, saturated, with_crossed_signs
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Negated, Pair, Sink
from gemmgen.emulator.registers import DTYPES

_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_F16_TINY = 2.0**-14


def _is_half(inst: Instruction) -> bool:
    return inst.type in _HALVES and not is_mixed(inst)


def split(value: Source, type_name: str) -> Source:
    """Raw lanes as float64 values, one row a lane, one column an element."""
    bits = np.array(value, ndmin=1).view(np.uint16).reshape(-1, TYPE_BYTES[type_name] // 2)
    return ieee.bf16_to_f64(bits) if type_name.startswith("bf16") else bits.view(np.float16).astype(np.float64)


def join(s: np.ndarray, e: np.ndarray | float, type_name: str) -> Source:
    """s + e rounded to the type and packed again."""
    narrow = ieee.to_bf16(s, e) if type_name.startswith("bf16") else ieee.to_f16(s, e).view(np.uint16)
    return np.ascontiguousarray(narrow).view(np.uint32 if TYPE_BYTES[type_name] == 4 else np.uint16)[:, 0]


def _flush(value: np.ndarray) -> Source:
    return np.where(np.abs(value) < _F16_TINY, np.copysign(0.0, value), value)


def _add(a: np.ndarray, b: np.ndarray) -> tuple[Source, Source]:
    s, e = ieee.two_sum(a, b)
    return s, np.where(np.isfinite(s), e, 0.0)


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[Source, Source]:
    return _add(a * b, c)


_ARITHMETIC: dict[str, Callable[..., tuple[Source, Source]]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, -b),
    "mul": lambda a, b: (a * b, 0.0),
    "fma": _fma,
    "min": lambda a, b: (minimum(a, b, False, False), 0.0),
    "max": lambda a, b: (minimum(a, b, True, False), 0.0),
}


@instruction("add", "sub", "mul", "fma", "min", "max", when=_is_half)
def arithmetic(inst: Instruction, binder: Binder) -> Operation:
    """Arithmetic on each half, rounded once."""
    type_name = inst.type
    raw = f"b{TYPE_BYTES[type_name] * 8}"
    operation = _ARITHMETIC[inst.opcode]
    if inst.opcode in ("min", "max") and inst.has("NaN"):
        operation = lambda a, b: (minimum(a, b, inst.opcode == "max", True), 0.0)  # noqa: E731
    if inst.has("xorsign"):
        crossed = with_crossed_signs(lambda a, b: minimum(np.abs(a), np.abs(b), inst.opcode == "max", inst.has("NaN")))
        operation = lambda a, b: (crossed(a, b), 0.0)  # noqa: E731
    flush, saturate, relu = inst.has("ftz"), inst.has("sat"), inst.has("relu")

    def compute(*values: Source) -> Source:
        parts = [split(value, type_name) for value in values]
        if flush:
            parts = [_flush(part) for part in parts]
        s, e = operation(*parts)
        if flush:
            # Values that are subnormal before rounding are flushed, even if they would round to a normal number.
            small = (np.abs(s) < _F16_TINY) | ((np.abs(s) == _F16_TINY) & (e * np.sign(s) < 0))
            s, e = np.where(small, np.copysign(0.0, s), s), np.where(small, 0.0, e)
        packed = join(s, e, type_name)
        if not (flush or saturate or relu):
            return packed
        result = split(packed, type_name)
        if flush:
            result = _flush(result)
        if saturate:
            result = saturated(result)
        if relu:
            result = np.where(np.isnan(result), result, np.maximum(result, 0.0))
        return join(result, 0.0, type_name)

    return binder.computed(inst, compute, raw, raw)


@instruction("neg", "abs", when=_is_half)
def neg_abs(inst: Instruction, binder: Binder) -> Operation:
    """Negation and magnitude; a NaN becomes the one that arithmetic gives."""
    type_name, flush = inst.type, inst.has("ftz")
    raw = f"b{TYPE_BYTES[type_name] * 8}"
    change = np.negative if inst.opcode == "neg" else np.abs

    def compute(value: Source) -> Source:
        numbers = split(value, type_name)
        return join(change(_flush(numbers) if flush else numbers), 0.0, type_name)

    return binder.computed(inst, compute, raw, raw)


def _combined(inst: Instruction, binder: Binder) -> tuple[Callable[[Source, Source], Source] | None, list[Source], bool]:
    """Combination of a comparison with a predicate: the function, the predicate if there is one, and whether that is negated."""
    name = inst.first_of(("and", "or", "xor"))
    if name is None:
        return None, [], False
    operand = inst.operands[3]
    negated = isinstance(operand, Negated)
    source = binder.source(inst, operand.register if isinstance(operand, Negated) else operand, "pred")
    return COMBINATIONS[name], [source], negated


def _read_of(inst: Instruction) -> Callable[[Source, str], Source]:
    """`split`, with subnormals flushed if the instruction says so."""
    return (lambda value, type_name: _flush(split(value, type_name))) if inst.has("ftz") else split


@instruction("setp", when=_is_half)
def setp(inst: Instruction, binder: Binder) -> Operation:
    """Packed forms have one destination a half; each may be combined with the same predicate."""
    type_name = inst.type
    raw = f"b{TYPE_BYTES[type_name] * 8}"
    compare = COMPARISONS[inst.modifiers[0]]
    combine, condition, negated = _combined(inst, binder)
    destination = inst.operands[0]
    first, second = (destination.first, destination.second) if isinstance(destination, Pair) else (destination, Sink())
    targets = [binder.target(inst, first, "pred"), binder.target(inst, second, "pred")]
    packed = TYPE_BYTES[type_name] == 4
    read = _read_of(inst)

    def compute(a: Source, b: Source, *conditions: Source) -> tuple[Source, Source]:
        result = compare(read(a, type_name), read(b, type_name))
        both = [result[:, 0], result[:, 1] if packed else ~result[:, 0]]
        if combine is not None:
            other = ~conditions[0] if negated else conditions[0]
            both = [combine(each, other) for each in both]
        return both[0], both[1]

    return binder.gathered(targets, compute, [*(binder.source(inst, o, raw) for o in inst.operands[1:3]), *condition])


@instruction("set", when=lambda inst: bool(set(inst.types) & set(_HALVES)))
def set_(inst: Instruction, binder: Binder) -> Operation:
    """A comparison as a number."""
    result_type, type_name = inst.types
    compare = COMPARISONS[inst.modifiers[0]]
    combine, condition, negated = _combined(inst, binder)
    raw_result, raw = f"b{TYPE_BYTES[result_type] * 8}", f"b{TYPE_BYTES[type_name] * 8}"
    target = binder.target(inst, inst.operands[0], raw_result)
    dtype = np.dtype(DTYPES[type_name]) if type_name not in _HALVES else None
    read = _read_of(inst)

    def compute(a: Source, b: Source, *conditions: Source) -> Source:
        if dtype is None:
            result = compare(read(a, type_name), read(b, type_name))
        else:
            result = compare(np.asarray(a).view(dtype)[..., None], np.asarray(b).view(dtype)[..., None])
        if combine is not None:
            other = ~conditions[0] if negated else conditions[0]
            result = combine(result, np.asarray(other)[..., None])
        if result_type in _HALVES:
            return join(result.astype(np.float64), 0.0, result_type)
        if TYPE_BYTES[type_name] == 4 and dtype is None:
            halves = np.where(result, np.uint16(0xFFFF), np.uint16(0))
            return np.ascontiguousarray(halves).view(np.uint32)[:, 0]
        ones = np.dtype(f"u{TYPE_BYTES[result_type]}").type
        one = np.float32(1).view(np.uint32) if result_type == "f32" else ~ones(0)
        return np.where(result[:, 0], one, ones(0))

    return binder.gathered([target], compute, [*(binder.source(inst, o, raw) for o in inst.operands[1:3]), *condition])
