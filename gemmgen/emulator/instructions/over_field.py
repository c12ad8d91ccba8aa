"""Floating-point instructions over a finite field, and as summation trees (`gemmgen.emulator.arithmetic`).

Sums and products are the field's. Functions without algebraic meaning (exponentials, divisions, minima, selections by a comparison) are
hashes of their name and their arguments, so that two kernels agree only if they pass equal arguments. Rounding to a narrower
type is a hash as well. Everything else on floating-point types raises NoFieldMeaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmgen.emulator import residue_loops, residues
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.data_flow import tests_infinity
from gemmgen.emulator.errors import NoFieldMeaning
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.bits import constant_permutation, logic, prmt, shift
from gemmgen.emulator.instructions.compare import COMBINATIONS
from gemmgen.emulator.instructions.integer import add_sub
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.packed_results import packing_of
from gemmgen.emulator.ptx.syntax import Instruction, Negated, Pair
from gemmgen.emulator.residue_words import cuts_bytes, whole_words
from gemmgen.emulator.whole_words import added_sums, byte_masks, bytes_as_numbers, masked_words

_FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2")
_BYTE_OF_LARGE = 0x7440
"""The selector of the lowest byte of a number from 2^23 on."""
_PAIRS_OF_BYTES = ("e4m3x2", "e5m2x2")
_OPCODES = (
    *("add", "sub", "mul", "fma", "mad", "neg", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "tanh", "sin", "cos", "abs", "copysign"),
    *("min", "max", "testp", "setp", "set", "slct", "cvt"),
)


def _on_floats(inst: Instruction) -> bool:
    return any(modifier in (*_FLOATS, "tf32", *_PAIRS_OF_BYTES) for modifier in inst.modifiers)


def _on_f32(inst: Instruction) -> bool:
    return inst.types == ("f32",)


def _sources(inst: Instruction, binder: Binder, first: int = 1) -> list[Source]:
    return [binder.source(inst, operand, "b32") for operand in inst.operands[first:]]


def _words(value: np.ndarray) -> Source:
    return residues.words(residues.canonical(value))


def _on_residues(
    binder: Binder, targets: list[np.ndarray | None], compute: Callable[..., Source], sources: Sequence[Source], *, writes: bool = True
) -> Operation:
    """`binder.gathered` for an instruction that computes with residues, and `writes` some."""
    return binder.gathered(targets, _on_field(compute, writes=writes), sources)


def _on_field(compute: Callable[..., Source], *, writes: bool = True) -> Callable[..., Source]:
    """A function of residues as one of patterns, some of which may be codes."""

    def with_codes(*values: Source) -> Source:
        if residues.interned.get() is None:
            return compute(*values)
        result = compute(*(residues.read(value) if getattr(value, "dtype", None) == np.uint32 else value for value in values))
        return residues.written(result) if writes else result

    return with_codes


@instruction(*_OPCODES, when=_on_floats, table="field")
def without_meaning(inst: Instruction, binder: Binder) -> Operation:
    """Raises NoFieldMeaning: the handlers below are asked first."""
    raise NoFieldMeaning(f"{'.'.join((inst.opcode, *inst.modifiers))} has no meaning over a finite field", instruction=inst)


_NONE = np.zeros(0, np.uint32)


def _difference(a: Source, b: Source) -> Source:
    return _words(np.asarray(a, np.uint64) + (np.uint64(residues.MODULUS) - residues.canonical(b)))


def _product(a: Source, b: Source, c: Source = _NONE) -> Source:
    # Factors and addends are below 2^32, so sums stay below 2^64.
    total = np.array(a, np.uint64, ndmin=1) * np.asarray(b, np.uint64)
    if c is not _NONE:
        total += np.asarray(c, np.uint64)
    return residues.words(residues.folded(total))


_RING: dict[str, Callable[..., Source]] = {
    "add": lambda a, b: residues.words(residues.folded(np.array(a, np.uint64, ndmin=1) + np.asarray(b, np.uint64))),
    "sub": _difference,
    "mul": _product,
    "fma": _product,
    "mad": _product,
    "neg": lambda a: _difference(np.uint64(0), a),
}


@instruction(*_RING, when=lambda inst: _on_f32(inst) and not inst.has("sat"), table="field")
def ring(inst: Instruction, binder: Binder) -> Operation:
    """Sums and products, for any rounding mode."""
    target, sources = binder.target(inst, inst.operands[0], "b32"), _sources(inst, binder)
    values = _rows_in_loops(sources, target)
    if values is None or target is None:
        return binder.gathered([target], _on_field(_RING[inst.opcode]), sources)
    return _in_loops(residue_loops.ring(inst.opcode, values, target))


def _rows_in_loops(sources: Sequence[Source], target: np.ndarray | None) -> list[np.ndarray] | None:
    """Sources as rows that loops in C read; None where NumPy has to compute a result."""
    if residue_loops.loops() is None or target is None or not target.flags.c_contiguous:
        return None
    rows = residue_loops.words_of(sources)
    # Copies would not follow the registers.
    shared = rows is not None and all(
        not isinstance(source, np.ndarray) or np.shares_memory(source, row) for source, row in zip(sources, rows, strict=True)
    )
    return rows if shared else None


def _in_loops(compute: Callable[[residue_loops.Codes, Lanes | None], object]) -> Operation:
    """The operation of a loop in C over words, some of which may be codes."""

    def run(lanes: Lanes | None) -> None:
        compute(residues.codes_in_loops(), lanes)
        residues.settle()

    return Operation(lambda: run(None), lambda lanes: run(np.ascontiguousarray(lanes, np.int64)))


SATURATED = "saturated"
"""The opaque function for values between 0 and 1, whichever instruction does it."""


@instruction("add", "sub", "mul", "fma", "mad", when=lambda inst: _on_f32(inst) and inst.has("sat"), table="field")
def saturated(inst: Instruction, binder: Binder) -> Operation:
    """Sums and products bounded by 0 and 1."""
    compute = _RING[inst.opcode]
    target = binder.target(inst, inst.operands[0], "b32")
    return _on_residues(binder, [target], lambda *values: residues.opaque(SATURATED, [compute(*values)]), _sources(inst, binder))


_TREE: dict[str, Callable[..., Source]] = {
    "add": residues.tree_sum,
    "sub": lambda a, b: residues.tree_sum(a, _RING["neg"](b)),
    "fma": lambda a, b, c: residues.tree_sum(residues.multiplied(a, b), c),
    "mad": lambda a, b, c: residues.tree_sum(residues.multiplied(a, b), c),
}


@instruction(*_TREE, when=lambda inst: _on_f32(inst) and not inst.has("sat"), table="tree")
def tree(inst: Instruction, binder: Binder) -> Operation:
    """Additions that remember their order."""
    return binder.gathered([binder.target(inst, inst.operands[0], "b32")], _TREE[inst.opcode], _sources(inst, binder))


@instruction(
    "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "tanh", "sin", "cos", "abs", "copysign", "min", "max", when=_on_f32, table="field"
)
def opaque(inst: Instruction, binder: Binder) -> Operation:
    """Functions that are known by their name and arguments alone; those of two interchangeable arguments commute."""
    key, commutes = ".".join((inst.opcode, *sorted(inst.modifiers))), inst.opcode in ("min", "max")
    target = binder.target(inst, inst.operands[0], "b32")

    def compute(*values: Source) -> Source:
        hashed = residues.opaque(key, values, commutes=commutes)
        # Infinities stay infinities, for comparisons with one.
        return np.where(_infinite_first(values[0]) != 0, _INFINITIES[0], hashed) if inst.opcode == "abs" else hashed

    return _on_residues(binder, [target], compute, _sources(inst, binder))


@instruction("shl", when=lambda inst: inst.type == "b32", table="field")
def shift_left(inst: Instruction, binder: Binder) -> Operation:
    """An opaque function of a sum whose lowest bits become a power of two: these bits alone would tell only 512 numbers apart."""
    if not binder.data_flow.shifts_sum(inst):
        return shift(inst, binder)
    target = binder.target(inst, inst.operands[0], "b32")
    return _on_residues(binder, [target], lambda *values: residues.opaque("shl", values), _sources(inst, binder))


@instruction("add", when=lambda inst: inst.modifiers in (("s32",), ("u32",)), table="field")
def add_integers(inst: Instruction, binder: Binder) -> Operation:
    """Sums of products are added as residues, where elements of 8 bits are parts of words; all other integers as integers."""
    if id(inst) not in added_sums(binder.program):
        return add_sub(inst, binder)
    target = binder.target(inst, inst.operands[0], "b32")

    def compute(a: Source, b: Source) -> Source:
        if whole_words.get() is None:
            return a + b
        if (np.maximum(a, b) > residues.MODULUS).any():
            raise NoFieldMeaning("a negative integer is added to a sum of products", instruction=inst)
        return _words(a.astype(np.uint64) + b)

    return binder.gathered([target], compute, _sources(inst, binder))


@instruction("and", when=lambda inst: inst.type == "b32", table="field")
def mask(inst: Instruction, binder: Binder) -> Operation:
    """Zeros in place of bits; of bytes as wholes, where elements are parts of words."""
    word = masked_words(binder.program).get(id(inst))
    if word is None:
        return logic(inst, binder)
    first, computed = word == inst.operands[1], byte_masks(binder.program).get(id(inst), False)

    def compute(a: Source, b: Source) -> Source:
        words, masks = (a, b) if first else (b, a)
        if (drawn := whole_words.get()) is not None:
            drawn.require_bytes(words, masks)
        elif computed and (cuts_bytes(masks) & (words != 0)).any():
            raise NoFieldMeaning("a mask takes bytes of elements apart", instruction=inst)
        return a & b

    target = binder.target(inst, inst.operands[0], inst.type)
    return binder.gathered([target], compute, [binder.source(inst, operand, inst.type) for operand in inst.operands[1:]])


@instruction("prmt", table="field")
def pack(inst: Instruction, binder: Binder) -> Operation:
    """Bytes chosen from a pair of words. A word of four results stands for these in full, where the run has codes for pairs of them."""
    packing = packing_of(binder.program)
    registers = packing.words.get(id(inst))
    place = bytes_as_numbers(binder.program).get(id(inst))
    if place is not None:
        return _byte_as_number(inst, binder, place)
    if registers is None and id(inst) not in packing.parts:
        return prmt(inst, binder)
    plain = constant_permutation(packing.selectors[id(inst)])
    target = binder.target(inst, inst.operands[0], "b32")
    results = [binder.source(inst, register, "b32") for register in registers or ()]

    def compute(a: Source, b: Source, *values: Source) -> Source:
        known = residues.pairs.get()
        if known is None:
            return plain(a, b)
        if not values:
            return a
        first, second, third, fourth = (residues.read(value) for value in values)
        return known.codes(first, second) | known.codes(third, fourth) << np.uint32(16)

    return binder.gathered([target], compute, [*(binder.source(inst, operand, "b32") for operand in inst.operands[1:3]), *results])


def _byte_as_number(inst: Instruction, binder: Binder, place: int) -> Operation:
    """A byte of a word as a number: its residue, where bytes that count in full are parts of words."""
    plain = constant_permutation(_BYTE_OF_LARGE + place)

    def compute(a: Source, b: Source) -> Source:
        drawn = whole_words.get()
        return plain(a, b) if drawn is None or residues.pairs.get() is None else drawn.numbers_of_bytes(np.asarray(a), place)

    sources = [binder.source(inst, operand, "b32") for operand in inst.operands[1:3]]
    return binder.gathered([binder.target(inst, inst.operands[0], "b32")], compute, sources)


# -- comparisons ---------------------------------------------------------------------------------------------------

_ORDERS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "num": lambda a, b: np.ones(a.shape, np.bool_),
    "nan": lambda a, b: np.zeros(a.shape, np.bool_),
}


def _order_of(inst: Instruction) -> str:
    """A comparison without the answer that it gives for NaN, which no residue is."""
    name = inst.modifiers[0]
    return name.removesuffix("u") if name not in ("num", "nan") else name


_INFINITIES = residues.of_float(float("inf")), residues.of_float(float("-inf"))


def _infinite_first(word: Source) -> np.ndarray:
    """1 and -1 for infinities, 0 for all other numbers."""
    values = residues.canonical(word)
    order: np.ndarray = (values == _INFINITIES[0]).astype(np.int64) - (values == _INFINITIES[1])
    return order


@instruction("setp", when=_on_f32, table="field")
def setp(inst: Instruction, binder: Binder) -> Operation:
    """A comparison in one fixed order of residues."""
    compare = _ORDERS[_order_of(inst)]
    destination = inst.operands[0]
    pair = (destination.first, destination.second) if isinstance(destination, Pair) else (destination,)
    targets = [binder.target(inst, operand, "pred") for operand in pair]
    a, b = (binder.source(inst, operand, "b32") for operand in inst.operands[1:3])
    combination = inst.first_of(tuple(COMBINATIONS))
    third: Sequence[Source] = ()
    negated = False
    if combination is not None:
        operand = inst.operands[3]
        negated = isinstance(operand, Negated)
        third = (binder.source(inst, operand.register if isinstance(operand, Negated) else operand, "pred"),)

    order, infinities = (_infinite_first, np.array(_INFINITIES)) if tests_infinity(inst) else (residues.centred, None)
    target, rows = targets[0], _rows_in_loops([a, b], targets[0])
    if rows is not None and target is not None and len(targets) == 1 and combination is None:
        return _in_loops(residue_loops.comparison(_order_of(inst), rows, infinities, target))

    def compute(x: Source, y: Source, *others: Source) -> Source:
        holds = compare(*np.broadcast_arrays(order(x), order(y)))
        answers = [holds, ~holds]
        if combination is not None:
            other = ~others[0] if negated else others[0]
            answers = [COMBINATIONS[combination](answer, other) for answer in answers]
        return answers[0] if len(targets) == 1 else tuple(answers)

    return _on_residues(binder, targets, compute, [a, b, *third], writes=False)


@instruction("selp", when=lambda inst: inst.type in ("f32", "b32"), table="field")
def select(inst: Instruction, binder: Binder) -> Operation:
    """One of two values. Where a comparison of float32 decides, a hash of all four numbers, which hides no difference of the compared
    ones as a choice between them would."""
    target = binder.target(inst, inst.operands[0], "b32")
    first, second = (binder.source(inst, operand, "b32") for operand in inst.operands[1:3])
    comparison = binder.data_flow.comparison_behind(inst)
    if comparison is None or tests_infinity(comparison):
        condition = binder.source(inst, inst.operands[3], "pred")
        return _on_residues(binder, [target], lambda c, a, b: np.where(c, a, b), [condition, first, second])
    x, y = (binder.source(comparison, operand, "b32") for operand in comparison.operands[1:])
    order = _order_of(comparison)
    # All orders are written with "less" or "equal".
    if order in ("gt", "le"):
        x, y = y, x
    if order in ("ge", "le", "ne"):
        first, second = second, first
    key = "selp.eq" if order in ("eq", "ne") else "selp.lt"
    return _on_residues(binder, [target], lambda *values: residues.opaque(key, values), [x, y, first, second])


def _select_by_order(inst: Instruction, binder: Binder) -> Operation:
    """One of two values, as the condition says."""
    target = binder.target(inst, inst.operands[0], "b32")
    first, second = (binder.source(inst, operand, "b32") for operand in inst.operands[1:3])
    condition = binder.source(inst, inst.operands[3], "pred")
    rows = _rows_in_loops([first, second], target)
    if rows is None or target is None or not isinstance(condition, np.ndarray) or not condition.flags.c_contiguous:
        return binder.gathered([target], lambda c, a, b: np.where(c, a, b), [condition, first, second])
    choose = residue_loops.choice(condition, rows, target)
    return Operation(lambda: choose(None), lambda lanes: choose(np.ascontiguousarray(lanes, np.int64)))


# -- comparators ---------------------------------------------------------------------------------------------------

NO_PLACE = residues.MODULUS
"""The place that code for extrema with places gives to no element: the largest int32, which is 0 as a residue."""


@instruction("max", "min", when=_on_f32, table="joined")
@instruction("selp", when=lambda inst: inst.type in ("f32", "b32"), table="joined")
def joined(inst: Instruction, binder: Binder) -> Operation:
    """A comparator as the sum of both sets of elements; other selections as they are."""
    comparator = binder.arithmetic.comparators.get(id(inst))
    if comparator is None:
        if inst.opcode != "selp":
            raise NoFieldMeaning(f"{inst.opcode} is no comparator", instruction=inst)
        return _select_by_order(inst, binder)
    neutral = residues.of_float(binder.arithmetic.neutral)
    target = binder.target(inst, inst.operands[0], "b32")
    if comparator.decided is not None:
        # The other half of the pair has been decided, and both stand for the same sum.
        other = [binder.source(inst, comparator.decided, "b32")]
        if inst.type == "f32":
            return binder.gathered([target], lambda place: _as_value(residues.canonical(place), neutral), other)
        return binder.gathered([target], lambda value: _as_place(_of_value(value, neutral)), other)
    values = [binder.source(inst, value, "b32") for value in comparator.values]
    fresh, gives_place = comparator.fresh, inst.type != "f32"
    places = [binder.source(inst, place, "b32") for place in comparator.places or ()]

    def require_same(differ: object) -> None:
        if differ:
            raise NoFieldMeaning("a value and a place of different elements are compared", instruction=inst)

    def compute(a: Source, b: Source, *others: Source) -> Source:
        total, differ = _sum_of_both((a, b), others, fresh, neutral)
        require_same(differ)
        return _as_place(total) if gives_place else _as_value(total, neutral)

    rows = _rows_in_loops([*values, *places], target)
    if rows is None or target is None:
        return binder.gathered([target], compute, [*values, *places])
    join = residue_loops.union(rows, fresh, int(neutral), residues.name_of("element"), target, gives_place=gives_place)
    return Operation(lambda: require_same(join(None)), lambda lanes: require_same(join(np.ascontiguousarray(lanes, np.int64))))


def _sum_of_both(
    values: Sequence[Source], places: Sequence[Source], fresh: tuple[bool, bool], neutral: np.uint32
) -> tuple[np.ndarray, bool]:
    """The sum that two values with their places stand for, and whether some value and its place stand for different ones."""
    total: np.ndarray = np.zeros(1, np.uint64)
    differ = False
    for side, value in enumerate(values):
        if places and fresh[side]:
            total = total + residues.opaque("element", [value, np.asarray(places[side]).astype(np.uint32)]).astype(np.uint64)
            continue
        own = _of_value(value, neutral)
        if places:
            place = np.asarray(places[side])
            differ |= bool(((np.asarray(value) == neutral) != (place == NO_PLACE)).any() or (own != residues.canonical(place)).any())
        total = total + own
    return total, differ


def _of_value(word: Source, neutral: np.uint32) -> np.ndarray:
    """The sum that a word stands for; none for the number that every element beats."""
    return np.where(np.asarray(word) == neutral, np.uint64(0), residues.canonical(word))


def _as_place(total: np.ndarray) -> Source:
    summed = residues.canonical(total)
    return residues.words(np.where(summed == 0, np.uint64(NO_PLACE), summed))


def _as_value(total: np.ndarray, neutral: np.uint32) -> Source:
    summed = residues.canonical(total)
    other = np.where(summed == neutral, summed + np.uint64(residues.MODULUS), summed)
    return residues.words(np.where(summed == 0, np.uint64(neutral), other))


# -- conversions ---------------------------------------------------------------------------------------------------


def _key(inst: Instruction) -> str:
    return ".".join((inst.opcode, *sorted(inst.modifiers)))


@instruction("cvt", when=lambda inst: inst.types == ("f32", "f32"), table="field")
def convert_to_itself(inst: Instruction, binder: Binder) -> Operation:
    """Saturation and rounding to whole numbers are opaque; a change of rounding mode alone changes nothing."""
    target = binder.target(inst, inst.operands[0], "b32")
    plain = not any(inst.has(name) for name in ("sat", "rni", "rzi", "rmi", "rpi", "relu"))
    key = SATURATED if inst.has("sat") and not any(inst.has(name) for name in ("rni", "rzi", "rmi", "rpi", "relu")) else _key(inst)
    return _on_residues(binder, [target], _words if plain else lambda a: residues.opaque(key, [a]), _sources(inst, binder))


@instruction("cvt", when=lambda inst: inst.types in (("bf16", "f32"), ("f16", "f32")), table="field")
def narrow(inst: Instruction, binder: Binder) -> Operation:
    """Rounding to 16 bits."""
    target = binder.target(inst, inst.operands[0], "b16")
    return _on_residues(binder, [target], lambda a: _narrowed(inst, a, 16).astype(np.uint16), _sources(inst, binder), writes=False)


def _narrowed(inst: Instruction, value: Source, bits: int) -> Source:
    if inst.has("relu"):
        value = residues.opaque("max.f32", [value, np.uint64(0)], commutes=True)
    return residues.narrowed(value, bits)


@instruction("cvt", when=lambda inst: inst.types in (("bf16x2", "f32"), ("f16x2", "f32")) and len(inst.operands) == 3, table="field")
def narrow_pair(inst: Instruction, binder: Binder) -> Operation:
    """Rounding of two numbers; the first goes to the upper half."""
    target = binder.target(inst, inst.operands[0], "b32")

    def compute(a: Source, b: Source) -> Source:
        return (_narrowed(inst, a, 16) << np.uint32(16)) | _narrowed(inst, b, 16)

    return _on_residues(binder, [target], compute, _sources(inst, binder), writes=False)


@instruction("cvt", when=lambda inst: inst.types == ("f32",) and inst.first_of(_PAIRS_OF_BYTES) is not None, table="field")
def narrow_bytes(inst: Instruction, binder: Binder) -> Operation:
    """Rounding of two numbers to 8 bits each; the first goes to the upper byte."""
    target = binder.target(inst, inst.operands[0], "b16")

    def compute(a: Source, b: Source) -> Source:
        return ((_narrowed(inst, a, 8) << np.uint32(8)) | _narrowed(inst, b, 8)).astype(np.uint16)

    return _on_residues(binder, [target], compute, _sources(inst, binder), writes=False)


@instruction("cvt", when=lambda inst: inst.types == ("f16x2",) and inst.first_of(_PAIRS_OF_BYTES) is not None, table="field")
def widen_bytes(inst: Instruction, binder: Binder) -> Operation:
    """Codes of 8 bits and of 16 count alike."""
    target = binder.target(inst, inst.operands[0], "b32")
    source = binder.source(inst, inst.operands[1], "b16")
    return binder.gathered([target], lambda a: ((a.astype(np.uint32) & 0xFF00) << np.uint32(8)) | (a.astype(np.uint32) & 0xFF), [source])


@instruction("cvt", when=lambda inst: inst.types in (("f32", "bf16"), ("f32", "f16")), table="field")
def widen(inst: Instruction, binder: Binder) -> Operation:
    """A code of 16 bits as the upper half of a word."""
    target = binder.target(inst, inst.operands[0], "b32")
    source = binder.source(inst, inst.operands[1], "b16")
    return binder.gathered([target], lambda a: np.asarray(a).astype(np.uint32) << np.uint32(16), [source])


@instruction("cvt", when=lambda inst: inst.has("tf32") and not inst.has("relu"), table="field")
def cut(inst: Instruction, binder: Binder) -> Operation:
    """float32 to tf32: the upper 19 bits of the word."""
    target = binder.target(inst, inst.operands[0], "b32")
    return binder.gathered([target], lambda a: a & np.uint32(0xFFFFE000), _sources(inst, binder))


_INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


@instruction("cvt", when=lambda inst: len(inst.types) == 2 and inst.types[0] == "f32" and inst.types[1] in _INTEGERS, table="field")
def from_integer(inst: Instruction, binder: Binder) -> Operation:
    """An integer as the residue that it is."""
    target = binder.target(inst, inst.operands[0], "b32")
    return binder.gathered(
        [target], lambda a: residues.written(residues.of_integers(a)), [binder.source(inst, inst.operands[1], inst.types[1])]
    )


@instruction("cvt", when=lambda inst: len(inst.types) == 2 and inst.types[1] == "f32" and inst.types[0] in ("s32", "u32"), table="field")
def to_integer(inst: Instruction, binder: Binder) -> Operation:
    """Rounding to an integer as a hash of 8 bits around zero, which saturation afterwards leaves alone."""
    target = binder.target(inst, inst.operands[0], "b32")
    return _on_residues(binder, [target], lambda a: residues.narrowed(a, 8) - np.uint32(128), _sources(inst, binder), writes=False)
