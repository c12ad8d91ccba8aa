"""Bitwise logic, shifts, and the extraction, insertion and counting of bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Negated, Pair
from gemmgen.emulator.registers import DTYPES


@instruction("and", "or", "xor")
def logic(inst: Instruction, binder: Binder) -> Operation:
    """Bit by bit; predicates too."""
    compute = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[inst.opcode]
    target = binder.target(inst, inst.operands[0], inst.type)
    return binder.elementwise(target, compute, [binder.source(inst, o, inst.type) for o in inst.operands[1:]])


@instruction("not")
def not_(inst: Instruction, binder: Binder) -> Operation:
    """Every bit inverted."""
    target = binder.target(inst, inst.operands[0], inst.type)
    return binder.elementwise(target, np.invert, [binder.source(inst, inst.operands[1], inst.type)])


@instruction("cnot")
def cnot(inst: Instruction, binder: Binder) -> Operation:
    """1 where the source is 0, else 0."""
    return binder.computed(inst, lambda value: value == 0, inst.type, inst.type)


@lru_cache(maxsize=256)
def lop3_function(table: int) -> Callable[[Source, Source, Source], Source]:
    """The three-input function of a truth table: bit (4a + 2b + c) of the table is the result."""

    def two(low: int, b: Source, c: Source) -> Source | None:
        # The function of b and c with the 4-bit table `low`; None stands for all zeros.
        terms: dict[int, Callable[[], Source]] = {
            0b0001: lambda: ~(b | c),
            0b0010: lambda: ~b & c,
            0b0011: lambda: ~b,
            0b0100: lambda: b & ~c,
            0b0101: lambda: ~c,
            0b0110: lambda: b ^ c,
            0b0111: lambda: ~(b & c),
            0b1000: lambda: b & c,
            0b1001: lambda: ~(b ^ c),
            0b1010: lambda: c,
            0b1011: lambda: ~b | c,
            0b1100: lambda: b,
            0b1101: lambda: b | ~c,
            0b1110: lambda: b | c,
            0b1111: lambda: b | ~b,
        }
        return terms[low]() if low else None

    def compute(a: Source, b: Source, c: Source) -> Source:
        when_set, when_clear = two(table >> 4, b, c), two(table & 15, b, c)
        result = a & ~a
        if when_set is not None:
            result = result | (a & when_set)
        if when_clear is not None:
            result = result | (~a & when_clear)
        return result

    return compute


@instruction("lop3")
def lop3(inst: Instruction, binder: Binder) -> Operation:
    """Any function of three inputs, by its truth table. `.and` and `.or` also combine a predicate with whether the result is not 0."""
    table = inst.operands[4]
    if not isinstance(table, Integer):
        raise UnknownInstruction("lop3 needs a constant table", instruction=inst)
    compute = lop3_function(table.value & 255)
    sources = [binder.source(inst, operand, "b32") for operand in inst.operands[1:4]]
    if not (inst.has("and") or inst.has("or")):
        target = binder.target(inst, inst.operands[0], "b32")
        return binder.gathered([target], compute, sources)
    destination, condition = inst.operands[0], inst.operands[5]
    if not isinstance(destination, Pair):
        raise UnknownInstruction("lop3 with a predicate needs a second destination", instruction=inst)
    targets = [binder.target(inst, destination.first, "b32"), binder.target(inst, destination.second, "pred")]
    negated = isinstance(condition, Negated)
    other = binder.source(inst, condition.register if isinstance(condition, Negated) else condition, "pred")
    combine = np.logical_and if inst.has("and") else np.logical_or

    def both(a: Source, b: Source, c: Source, p: Source) -> tuple[Source, Source]:
        result = compute(a, b, c)
        return result, combine(result != 0, ~p if negated else p)

    return binder.gathered(targets, both, [*sources, other])


@instruction("szext")
def szext(inst: Instruction, binder: Binder) -> Operation:
    """The low bits of a word, extended by the sign of the top one of them or by zeros."""
    signed, clamp = inst.type == "s32", inst.has("clamp")

    def compute(value: Source, count: Source) -> Source:
        bits = np.minimum(count, np.uint32(32)) if clamp else count & np.uint32(31)
        wide = np.asarray(value).astype(np.uint64)
        ones = (np.uint64(1) << bits.astype(np.uint64)) - np.uint64(1)
        shifted = wide & ones
        if signed:
            top = (wide >> (np.maximum(bits, np.uint32(1)) - np.uint32(1)).astype(np.uint64)) & np.uint64(1)
            shifted = np.where((bits > 0) & (top > 0), shifted | ~ones, shifted)
        return shifted.astype(np.uint32)

    return binder.computed(inst, compute, "b32", "u32")


def _shift_compute(opcode: str, dtype: type[np.generic]) -> Callable[[Source, Source], Source]:
    bits = np.dtype(dtype).itemsize * 8
    arithmetic = np.dtype(dtype).kind == "i"

    def compute(value: Source, amount: Source) -> Source:
        # Amounts beyond the width give zero, or the sign for arithmetic right shifts.
        clamped = np.minimum(amount, np.uint32(bits - 1)).astype(dtype)
        if opcode == "shl":
            return np.where(amount < bits, value << clamped, dtype(0))
        shifted = value >> clamped
        return shifted if arithmetic else np.where(amount < bits, shifted, dtype(0))

    return compute


@instruction("shl", "shr")
def shift(inst: Instruction, binder: Binder) -> Operation:
    """Shifts; amounts beyond the width shift everything out."""
    type_name = inst.type
    dtype = DTYPES[type_name]
    bits = np.dtype(dtype).itemsize * 8
    target = binder.target(inst, inst.operands[0], type_name)
    value = binder.source(inst, inst.operands[1], type_name)
    amount = inst.operands[2]
    if isinstance(amount, Integer) and 0 <= amount.value < bits:
        compute = np.left_shift if inst.opcode == "shl" else np.right_shift
        return binder.elementwise(target, compute, [value, dtype(amount.value)])
    return binder.gathered([target], _shift_compute(inst.opcode, dtype), [value, binder.source(inst, amount, "u32")])


@instruction("shf")
def funnel_shift(inst: Instruction, binder: Binder) -> Operation:
    """The middle of a 64-bit value: `shf.l` its upper word after a left shift, `shf.r` its lower one after a right shift."""
    left, clamp = inst.has("l"), inst.has("clamp")
    word = np.uint64(32)

    def compute(low: Source, high: Source, amount: Source) -> Source:
        count = np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)
        whole = (high.astype(np.uint64) << word) | low.astype(np.uint64)
        if left:
            return ((whole << count.astype(np.uint64)) >> word).astype(np.uint32)
        return (whole >> count.astype(np.uint64)).astype(np.uint32)

    return binder.computed(inst, compute, "b32", "u32")


def permute_bytes(a: Source, b: Source, selector: Source, mode: str | None) -> Source:
    """prmt: four bytes chosen from eight; in the default mode bit 3 of a selector replicates the byte's sign."""
    whole = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    selector = selector.astype(np.uint64)
    byte, four, seven, eight = np.uint64(0xFF), np.uint64(4), np.uint64(7), np.uint64(8)
    result = np.zeros(np.broadcast(whole, selector).shape, np.uint64)
    for position in range(4):
        place = np.uint64(position)
        low = selector & np.uint64(3)
        if mode is None:
            nibble = (selector >> (place * four)) & np.uint64(15)
            chosen = (whole >> ((nibble & seven) * eight)) & byte
            sign = np.where(chosen & np.uint64(0x80), byte, np.uint64(0))
            chosen = np.where(nibble & np.uint64(8), sign, chosen)
        else:
            index = {
                "f4e": low + place,
                "b4e": low - place & seven,
                "rc8": low,
                "ecl": np.maximum(low, place),
                "ecr": np.minimum(low, place),
                "rc16": (low & np.uint64(1)) * np.uint64(2) + (place & np.uint64(1)),
            }[mode]
            chosen = (whole >> (index * eight)) & byte
        result |= chosen << (place * eight)
    return result.astype(np.uint32)


def constant_permutation(selector: int) -> Callable[[Source, Source], Source]:
    """prmt in its default mode by a selector that the program names: bytes that move equally far move together."""
    moves: dict[tuple[int, int], int] = {}
    signs: list[tuple[int, int, int]] = []
    for position in range(4):
        nibble = selector >> 4 * position & 15
        operand, byte = nibble >> 2 & 1, nibble & 3
        if nibble & 8:
            signs.append((operand, 0x80 << 8 * byte, 0xFF << 8 * position))
        else:
            move = (operand, 8 * (position - byte))
            moves[move] = moves.get(move, 0) | 0xFF << 8 * byte

    def compute(a: Source, b: Source) -> Source:
        parts: list[Source] = []
        for (operand, bits), mask in moves.items():
            shifted = (a, b)[operand] & np.uint32(mask)
            parts.append(shifted << np.uint32(bits) if bits > 0 else shifted >> np.uint32(-bits) if bits else shifted)
        for operand, sign, ones in signs:
            parts.append(np.where((a, b)[operand] & np.uint32(sign), np.uint32(ones), np.uint32(0)))
        result = parts[0]
        for part in parts[1:]:
            result = result | part
        return result

    return compute


@instruction("prmt")
def prmt(inst: Instruction, binder: Binder) -> Operation:
    """Bytes chosen from a pair of words."""
    mode = inst.first_of(("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))
    target = binder.target(inst, inst.operands[0], "b32")
    if mode is None and isinstance(inst.operands[3], Integer):
        permutation = constant_permutation(inst.operands[3].value)
        return binder.gathered([target], permutation, [binder.source(inst, o, "u32") for o in inst.operands[1:3]])
    return binder.computed(inst, lambda a, b, c: permute_bytes(a, b, c, mode), "b32", "u32")


def _field(number: Source, bits: int) -> Source:
    """A start or a length of a bit field: its low byte; 64-bit fields, which the hardware has no instruction for, know larger ones."""
    return number & np.uint32(255) if bits == 32 else np.minimum(number, np.uint32(255))


@instruction("bfe")
def bfe(inst: Instruction, binder: Binder) -> Operation:
    """A bit field, extended with the sign of its top bit for signed types."""
    type_name = inst.type
    signed = type_name[0] == "s"
    dtype = DTYPES[type_name]
    bits = np.dtype(dtype).itemsize * 8
    unsigned = np.dtype(f"u{bits // 8}").type

    def compute(value: Source, start: Source, length: Source) -> Source:
        raw = np.asarray(value).view(unsigned)
        first, count = _field(start, bits), _field(length, bits)
        top = np.minimum(first + count - np.uint32(1), np.uint32(bits - 1)).astype(unsigned)
        one = unsigned(1)
        sign = np.where(count == 0, unsigned(0), (raw >> top) & one) if signed else unsigned(0)
        shifted = np.where(first < bits, raw >> np.minimum(first, np.uint32(bits - 1)).astype(unsigned), unsigned(0))
        # Only the bits that exist count; the rest of the field is filled with the sign.
        available = np.where(first < bits, np.minimum(count, bits - np.minimum(first, np.uint32(bits))), 0).astype(unsigned)
        full = available >= unsigned(bits)
        mask = np.where(full, ~unsigned(0), (one << np.where(full, unsigned(0), available)) - one)
        return np.where(sign != 0, (shifted & mask) | ~mask, shifted & mask).astype(unsigned).view(dtype)

    return binder.computed(inst, compute, type_name, type_name, "u32", "u32")


@instruction("bfi")
def bfi(inst: Instruction, binder: Binder) -> Operation:
    """A value with a bit field replaced by another value's low bits."""
    type_name = inst.type
    dtype = DTYPES[type_name]
    bits = np.dtype(dtype).itemsize * 8

    def compute(field: Source, value: Source, start: Source, length: Source) -> Source:
        limit: Source
        one: Source
        zero: Source
        first, count = _field(start, bits).astype(dtype), _field(length, bits).astype(dtype)
        limit, one, zero = dtype(bits), dtype(1), dtype(0)
        ones = np.where(count >= limit, ~zero, (one << np.minimum(count, limit - one)) - one)
        inside = first < limit
        safe = np.where(inside, first, zero)
        mask = np.where(inside, ones << safe, zero)
        return (value & ~mask) | ((field << safe) & mask)

    return binder.computed(inst, compute, type_name, type_name, type_name, "u32", "u32")


@instruction("bmsk")
def bmsk(inst: Instruction, binder: Binder) -> Operation:
    """A mask of a given number of ones from a start bit."""
    clamp = inst.has("clamp")

    def compute(start: Source, length: Source) -> Source:
        first, count = start.astype(np.uint64), length.astype(np.uint64)
        if clamp:
            first, count = np.minimum(first, 32), np.minimum(count, 32)
        else:
            first, count = first & np.uint64(31), count & np.uint64(31)
        one = np.uint64(1)
        return (((one << count) - one) << first).astype(np.uint32)

    return binder.computed(inst, compute, "b32", "u32")


def leading_bit(value: Source) -> Source:
    """The position of the highest set bit of unsigned values; -1 for zero."""
    value = np.array(value, ndmin=1)
    position = np.full(value.shape, -1, np.int64)
    rest = value.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        large = rest >= np.uint64(1 << step)
        position += large * step
        rest = np.where(large, rest >> np.uint64(step), rest)
    return np.where(value != 0, position + 1, -1)


@instruction("clz")
def clz(inst: Instruction, binder: Binder) -> Operation:
    """Leading zeros."""
    type_name = inst.type
    bits = np.dtype(DTYPES[type_name]).itemsize * 8
    target = binder.target(inst, inst.operands[0], "u32")
    source = binder.source(inst, inst.operands[1], type_name)
    return binder.gathered([target], lambda value: bits - 1 - leading_bit(value), [source])


@instruction("bfind")
def bfind(inst: Instruction, binder: Binder) -> Operation:
    """The highest bit that differs from the sign; all ones if none."""
    type_name = inst.type
    bits = np.dtype(DTYPES[type_name]).itemsize * 8
    amount = inst.has("shiftamt")

    def compute(value: Source) -> Source:
        unsigned = np.dtype(f"u{bits // 8}").type
        raw = np.asarray(value).view(unsigned)
        if type_name[0] == "s":
            raw = np.where(value < 0, ~raw, raw)
        position = leading_bit(raw)
        if amount:
            position = np.where(position >= 0, bits - 1 - position, position)
        return position.astype(np.int32).view(np.uint32)

    return binder.computed(inst, compute, "u32", type_name)


@instruction("popc")
def popc(inst: Instruction, binder: Binder) -> Operation:
    """The number of ones."""
    return binder.computed(inst, np.bitwise_count, "u32", inst.type)


def reverse_bits(value: Source) -> Source:
    """Bit 0 becomes the top bit."""
    value = np.array(value, ndmin=1)
    size = value.dtype.itemsize
    bits = np.unpackbits(value.view(np.uint8).reshape(-1, size), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").reshape(-1).view(value.dtype)


@instruction("brev")
def brev(inst: Instruction, binder: Binder) -> Operation:
    """Bits in reverse order."""
    return binder.computed(inst, reverse_bits, inst.type, inst.type)


@instruction("fns")
def fns(inst: Instruction, binder: Binder) -> Operation:
    """The n-th set bit of a mask, counted from a base, upward or downward; all ones if there is none."""

    def one(mask: int, base: int, offset: int) -> int:
        positions = range(base, 32) if offset >= 0 else range(base, -1, -1)
        wanted = offset if offset > 0 else -offset if offset < 0 else 0
        seen = 0
        for position in positions:
            if mask >> position & 1:
                seen += 1
                if wanted == 0:
                    return position if position == base else 0xFFFFFFFF
                if seen == wanted:
                    return position
            elif wanted == 0:
                return 0xFFFFFFFF
        return 0xFFFFFFFF

    def compute(mask: Source, base: Source, offset: Source) -> Source:
        masks, bases, offsets = np.broadcast_arrays(mask, base, offset)
        values = [one(int(m), int(b) & 31, int(o)) for m, b, o in zip(masks.flat, bases.flat, offsets.flat, strict=True)]
        return np.array(values, np.uint32)

    return binder.computed(inst, compute, "b32", "u32", "u32", "s32")
