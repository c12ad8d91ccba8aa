"""Integer arithmetic."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator.binding import Binder, Compute, Source
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction
from gemmgen.emulator.registers import DTYPES

INTEGER_TYPES = {"u16", "s16", "u32", "s32", "u64", "s64", "u8", "s8"}


def is_integer(inst: Instruction) -> bool:
    """True if the type of an instruction is a plain integer type."""
    return inst.type in INTEGER_TYPES


def is_plain(inst: Instruction) -> bool:
    """True if an integer operation neither leaves nor takes a carry."""
    return is_integer(inst) and not inst.has("cc")


def is_packed_integer(inst: Instruction) -> bool:
    """True if the operation is on two 16-bit integers."""
    return inst.has("u16x2") or inst.has("s16x2")


def _sources(inst: Instruction, binder: Binder, *types: str) -> list[Source]:
    return [binder.source(inst, operand, name) for operand, name in zip(inst.operands[1:], types, strict=True)]


@instruction("add", "sub", when=is_plain)
def add_sub(inst: Instruction, binder: Binder) -> Operation:
    """Sums and differences modulo 2**width, or saturated."""
    compute = np.add if inst.opcode == "add" else np.subtract
    type_name = inst.type
    if inst.has("sat"):
        low, high = np.int64(-(2**31)), np.int64(2**31 - 1)
        return binder.computed(
            inst, lambda a, b: np.clip(compute(a.astype(np.int64), b.astype(np.int64)), low, high).astype(np.int32), type_name, type_name
        )
    unsigned = "u" + type_name[1:]
    return binder.elementwise(binder.target(inst, inst.operands[0], unsigned), compute, _sources(inst, binder, unsigned, unsigned))


def _wide_type(type_name: str) -> str:
    return f"{type_name[0]}{TYPE_BYTES[type_name] * 16}"


def multiply_high(first: Source, second: Source) -> Source:
    """The upper half of a product of two integers of equal type."""
    size = first.dtype.itemsize
    kind = "i" if first.dtype.kind == "i" else "u"
    if size < 8:
        wide = np.dtype(f"{kind}{size * 2}")
        return ((first.astype(wide) * second.astype(wide)) >> wide.type(size * 8)).astype(first.dtype)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b = np.asarray(first).view(np.uint64), np.asarray(second).view(np.uint64)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    cross = (middle & mask) + a_low * b_high
    high = a_high * b_high + (middle >> half) + (cross >> half)
    if kind == "i":
        high = high - np.where(a >> np.uint64(63), b, np.uint64(0)) - np.where(b >> np.uint64(63), a, np.uint64(0))
    return high.view(first.dtype)


def _multiply_wide(wide: np.dtype) -> Compute:
    def compute(first: Source, second: Source, out: np.ndarray | None) -> Source:
        return np.multiply(first, second, out, dtype=wide)

    return compute


@instruction("mul", when=is_integer)
def mul(inst: Instruction, binder: Binder) -> Operation:
    """The low, high or whole product."""
    type_name = inst.type
    if inst.has("wide"):
        wide = _wide_type(type_name)
        target = binder.target(inst, inst.operands[0], wide)
        sources = _sources(inst, binder, type_name, type_name)
        return binder.elementwise(target, _multiply_wide(np.dtype(DTYPES[wide])), sources)
    target = binder.target(inst, inst.operands[0], type_name)
    sources = _sources(inst, binder, type_name, type_name)
    if inst.has("hi"):
        return binder.gathered([target], multiply_high, sources)
    return binder.elementwise(target, np.multiply, sources)


@instruction("mad", when=is_plain)
def mad(inst: Instruction, binder: Binder) -> Operation:
    """A product, low, high or whole, plus a third operand."""
    type_name = inst.type
    if inst.has("wide"):
        wide = _wide_type(type_name)
        dtype = DTYPES[wide]
        return binder.computed(inst, lambda a, b, c: np.multiply(a, b, dtype=dtype) + c, wide, type_name, type_name, wide)
    if inst.has("hi"):
        add = _saturated if inst.has("sat") else np.add
        return binder.computed(inst, lambda a, b, c: add(multiply_high(a, b), c), type_name, type_name)
    return binder.computed(inst, lambda a, b, c: a * b + c, type_name, type_name)


def _saturated(first: Source, second: Source) -> Source:
    """A sum of s32, cut to their range."""
    return np.clip(first.astype(np.int64) + second.astype(np.int64), -(2**31), 2**31 - 1).astype(np.int32)


@instruction("mul24", "mad24")
def mul24(inst: Instruction, binder: Binder) -> Operation:
    """The low 24 bits of each factor; `.hi` gives bits 47..16 of the product."""
    type_name = inst.type
    wide = np.int64 if type_name == "s32" else np.uint64
    shift, drop = wide(40), wide(16 if inst.has("hi") else 0)
    dtype = DTYPES[type_name]

    def product(first: Source, second: Source) -> Source:
        a, b = (value.astype(wide) << shift >> shift for value in (first, second))
        return ((a * b) >> drop).astype(dtype)

    if len(inst.operands) == 3:
        return binder.computed(inst, product, type_name, type_name)
    add = _saturated if inst.has("sat") else np.add
    return binder.computed(inst, lambda a, b, c: add(product(a, b), c), type_name, type_name)


def divide(first: Source, second: Source) -> Source:
    """Integer quotient toward zero; dividing by zero gives all ones, as the hardware does."""
    zero = first.dtype.type(0)
    safe = np.where(second == zero, first.dtype.type(1), second)
    quotient = first // safe
    if first.dtype.kind == "i":
        remainder = first - quotient * safe
        quotient = quotient + ((remainder != zero) & ((first < zero) != (safe < zero)))
    return np.where(second == zero, ~zero, quotient).astype(first.dtype)


def remainder(first: Source, second: Source) -> Source:
    """Integer remainder with the sign of the dividend; by zero, all ones, as the hardware has it."""
    zero = first.dtype.type(0)
    return np.where(second == zero, ~zero, first - divide(first, second) * second).astype(first.dtype)


@instruction("div", "rem", when=is_integer)
def div(inst: Instruction, binder: Binder) -> Operation:
    """Quotients and remainders."""
    type_name = inst.type
    return binder.computed(inst, divide if inst.opcode == "div" else remainder, type_name, type_name)


@instruction("neg", "abs", when=is_integer)
def neg_abs(inst: Instruction, binder: Binder) -> Operation:
    """Negation and magnitude."""
    compute = np.negative if inst.opcode == "neg" else np.absolute
    target = binder.target(inst, inst.operands[0], inst.type)
    return binder.elementwise(target, compute, _sources(inst, binder, inst.type))


@instruction("min", "max", when=is_integer)
def min_max(inst: Instruction, binder: Binder) -> Operation:
    """The smaller or the larger one."""
    ufunc = np.minimum if inst.opcode == "min" else np.maximum
    relu = inst.has("relu")

    def compute(a: Source, b: Source) -> Source:
        result = ufunc(a, b)
        return np.maximum(result, result.dtype.type(0)) if relu else result

    return binder.computed(inst, compute, inst.type, inst.type)


@instruction("add", "min", "max", when=is_packed_integer)
def packed_integer(inst: Instruction, binder: Binder) -> Operation:
    """Two 16-bit integers in one register."""
    compute = {"add": np.add, "min": np.minimum, "max": np.maximum}[inst.opcode]
    dtype = np.int16 if inst.has("s16x2") else np.uint16
    relu = inst.has("relu")

    def both(a: Source, b: Source) -> Source:
        length = max(np.size(a), np.size(b))
        first, second = (np.broadcast_to(value, length).copy().view(dtype) for value in (a, b))
        result = compute(first, second)
        return (np.maximum(result, dtype(0)) if relu else result).view(np.uint32)

    return binder.computed(inst, both, "u32", "u32")


@instruction("sad")
def sad(inst: Instruction, binder: Binder) -> Operation:
    """A sum and an absolute difference."""
    type_name = inst.type
    return binder.computed(inst, lambda a, b, c: c + (np.maximum(a, b) - np.minimum(a, b)), type_name, type_name)


@instruction("dp4a", "dp2a")
def dot(inst: Instruction, binder: Binder) -> Operation:
    """Dot product of four bytes with four bytes, or of two halves with two bytes, added to a word."""
    a_type, b_type = inst.types
    a_kind, b_kind = a_type[0].replace("s", "i"), b_type[0].replace("s", "i")

    def split(value: Source, kind: str, size: int) -> Source:
        return np.array(value, ndmin=1).view(f"{kind}{size}").reshape(-1, 4 // size).astype(np.int64)

    def compute(a: Source, b: Source, c: Source) -> Source:
        b_bytes = split(b, b_kind, 1)
        if inst.opcode == "dp4a":
            products = split(a, a_kind, 1) * b_bytes
        else:
            first = 2 if inst.has("hi") else 0
            products = split(a, a_kind, 2) * b_bytes[:, first : first + 2]
        return (products.sum(axis=1) + c.astype(np.int64)).astype(np.uint32)

    return binder.computed(inst, compute, "u32", "u32")
