"""setp, set, and logic on predicates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Negated, Operand, Pair, Sink
from gemmgen.emulator.registers import DTYPES

Comparison = Callable[[Source, Source], Source]


def _unordered(compare: Comparison) -> Comparison:
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


COMPARISONS: dict[str, Comparison] = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": _unordered(np.equal),
    "neu": np.not_equal,
    "ltu": _unordered(np.less),
    "leu": _unordered(np.less_equal),
    "gtu": _unordered(np.greater),
    "geu": _unordered(np.greater_equal),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}

COMBINATIONS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(inst: Instruction, type_name: str) -> tuple[Comparison, bool]:
    """The comparison and whether it is a plain ufunc."""
    name = inst.modifiers[0]
    if name not in COMPARISONS:
        raise UnknownInstruction(f"comparison .{name}", instruction=inst)
    compare = COMPARISONS[name]
    if name == "ne" and np.dtype(DTYPES[type_name]).kind != "f":
        compare = np.not_equal
    return compare, isinstance(compare, np.ufunc)


def _read(binder: Binder, inst: Instruction, operand: Operand, type_name: str) -> Source:
    return binder.source(inst, operand, type_name)


def _predicate(binder: Binder, inst: Instruction, operand: Operand) -> tuple[Source, bool]:
    """A predicate operand and whether it is negated."""
    if isinstance(operand, Negated):
        return binder.source(inst, operand.register, "pred"), True
    return binder.source(inst, operand, "pred"), False


@instruction("setp", when=lambda inst: inst.type not in ("f16", "f16x2", "bf16", "bf16x2"))
def setp(inst: Instruction, binder: Binder) -> Operation:
    """A comparison into one predicate or two, perhaps combined with a third."""
    type_name = inst.type
    compare, plain = _comparison(inst, type_name)
    a, b = (_read(binder, inst, operand, type_name) for operand in inst.operands[1:3])
    if inst.has("ftz"):
        inner = compare
        compare, plain = (lambda x, y: inner(ieee.flush_f32(x), ieee.flush_f32(y))), False
    destination = inst.operands[0]
    combination = inst.first_of(("and", "or", "xor"))
    if isinstance(destination, Pair):
        first, second = destination.first, destination.second
    else:
        first, second = destination, Sink()
    targets = [binder.target(inst, operand, "pred") for operand in (first, second)]
    if combination is None:
        if plain and isinstance(second, Sink):
            return binder.elementwise(targets[0], compare, [a, b])

        def both(x: Source, y: Source) -> tuple[Source, Source]:
            result = compare(x, y)
            return result, ~result

        return binder.gathered(targets, both, [a, b])
    combine = COMBINATIONS[combination]
    other, negated = _predicate(binder, inst, inst.operands[3])

    def combined(x: Source, y: Source, p: Source) -> tuple[Source, Source]:
        result = compare(x, y)
        if negated:
            p = ~p
        return combine(result, p), combine(~result, p)

    return binder.gathered(targets, combined, [a, b, other])


@instruction("set", when=lambda inst: not set(inst.types) & {"f16", "f16x2", "bf16", "bf16x2"})
def set_(inst: Instruction, binder: Binder) -> Operation:
    """Like setp, but the result is 1.0 for a float destination and all ones for an integer one."""
    result_type, type_name = inst.types
    compare, _ = _comparison(inst, type_name)
    target = binder.target(inst, inst.operands[0], result_type)
    a, b = (_read(binder, inst, operand, type_name) for operand in inst.operands[1:3])
    dtype = DTYPES[result_type]
    true = np.float32(1) if result_type == "f32" else ~np.dtype(dtype).type(0)
    false = np.dtype(dtype).type(0)
    combination = inst.first_of(("and", "or", "xor"))
    if combination is None:
        return binder.gathered([target], lambda x, y: np.where(compare(x, y), true, false), [a, b])
    combine = COMBINATIONS[combination]
    other, negated = _predicate(binder, inst, inst.operands[3])
    return binder.gathered([target], lambda x, y, p: np.where(combine(compare(x, y), ~p if negated else p), true, false), [a, b, other])
