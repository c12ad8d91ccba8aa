"""Sizes by which a kernel's decisions have an answer that no run has had: the decisions are computed for many sizes at once.

A predicate is followed back to the kernel's parameters and to the numbers of its thread and block. What it depends on beside these, such as
data, is not followed, and a register that several instructions write is taken as the last of them left it. So the sizes that are found are
guesses, which runs of the kernel must confirm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.graphs import reached
from gemmgen.emulator.data_flow import instructions_of
from gemmgen.emulator.instructions.compare import COMBINATIONS, COMPARISONS
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Float,
    Instruction,
    Integer,
    Negated,
    Operand,
    Register,
    Special,
    Symbol,
    Variable,
    writers_of,
)

DRAWS = 1 << 18
"""Combinations of sizes that are tried."""
_MAX_DEPTH = 200
_MAX_BLOCKS = 200
"""Basic blocks whose branches are looked at."""
_ORDERED = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs")
_PLAIN: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "mov": np.positive,
    "sqrt": np.sqrt,
    "selp": lambda one, other, chosen: np.where(chosen, one, other),
    "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype),
}
Values = npt.NDArray[Any]


class Unknown(Exception):
    """A value that does not follow from sizes and numbers of threads."""


class Solver:
    """The values of a kernel's registers for many combinations of sizes, threads and blocks."""

    def __init__(self, program: Program, inputs: Mapping[str, Values]) -> None:
        """``inputs``: values of parameters and special registers, by their names in PTX."""
        self.inputs = inputs
        self.writers = writers_of(instructions_of(program))
        self.blocks = program.blocks
        self.known: dict[str, Values | None] = {}

    def gives(self, decision: Instruction, answer: bool) -> Values:
        """Combinations for which a decision is made with this answer. Raises ``Unknown``."""
        with np.errstate(all="ignore"):
            holds = np.asarray(self._result(decision, 0) == answer, np.bool_)
            for guard, is_true in self._guards_of(decision):
                with suppress(Unknown):
                    holds = holds & (self._register(guard, 0) == is_true)
        return holds

    def _guards_of(self, inst: Instruction) -> Iterator[tuple[str, bool]]:
        """The predicates of branches that every way to an instruction passes, each with the value by which it gets there."""
        block = next((each.index for each in self.blocks if any(one is inst for one in each.instructions)), 0)
        for branch in self.blocks[:_MAX_BLOCKS]:
            end = branch.terminator
            if branch.index == block or end is None or end.opcode != "bra" or end.guard is None or self._leads(0, block, branch.index):
                continue
            taken, past = (any(self._leads(each, block, branch.index) for each in ways) for ways in (branch.targets, [branch.index + 1]))
            if taken != past:
                yield end.guard.name, taken != end.guard_negated

    def _leads(self, start: int, end: int, without: int) -> bool:
        """True if there is a way between two blocks that does not pass a third."""
        ways = reached([start], lambda each: [other for other in self.blocks[each].successors if other != without])
        return start != without and end in ways

    def is_known(self, operand: Operand) -> bool:
        """True if a value follows from the inputs."""
        with suppress(Unknown), np.errstate(all="ignore"):
            self._of(operand, "b64", 0)
            return True
        return False

    def tables(self, variables: Mapping[str, Variable]) -> Iterator[int]:
        """Numbers of entries of a module's variables that are read at places which follow from the inputs."""
        for inst in (inst for each in self.writers.values() for inst in each if inst.opcode == "ld" and not inst.has("param")):
            name, place = "", inst.operands[1]
            parts = [place.base if isinstance(place, Address) else place]
            while parts:
                part = parts.pop()
                if isinstance(part, Symbol) and part.name in variables:
                    name = part.name
                elif isinstance(part, Register) and not self.is_known(part):
                    own = self.writers.get(part.name, [])
                    if len(own) != 1 or own[0].opcode not in ("add", "mov", "cvta"):
                        break
                    parts += own[0].operands[1:]
            else:
                if name:
                    yield variables[name].size // TYPE_BYTES[inst.type]

    def _register(self, name: str, depth: int) -> Values:
        if name not in self.known:
            self.known[name] = None  # a value that is computed from itself, as in loops, stays unknown
            if name not in self.writers or depth > _MAX_DEPTH:
                raise Unknown
            self.known[name] = self._result(self.writers[name][-1], depth + 1)
        value = self.known[name]
        if value is None:
            raise Unknown
        return value

    def _of(self, operand: Operand, kind: str, depth: int) -> Values:
        match operand:
            case Register(name):
                value = self._register(name, depth)
                return value if value.dtype == np.bool_ else _as(value, kind)
            case Negated(register):
                return ~self._register(register.name, depth)
            case Integer(value):
                return _as(np.array(value & 0xFFFFFFFFFFFFFFFF, np.uint64).view(np.int64), kind)
            case Float(bits, 32):
                return np.array(bits, np.uint32).view(np.float32)
            case Float(bits, 64):
                return np.array(bits, np.uint64).view(np.float64)
            case Special(name) if name in self.inputs:
                return self.inputs[name]
        raise Unknown

    def _result(self, inst: Instruction, depth: int) -> Values:
        kind = inst.type or ("pred" if inst.has("pred") else "")
        if inst.opcode == "ld" and inst.has("param"):
            address = inst.operands[1]
            base = address.base if isinstance(address, Address) else None
            if not isinstance(base, Symbol) or base.offset or base.name not in self.inputs:
                raise Unknown
            return _as(self.inputs[base.name], kind)
        if inst.opcode == "cvt":
            value = self._of(inst.operands[1], inst.types[1], depth)
            if inst.types[0][0] in "su" and value.dtype.kind == "f":
                value = (np.floor if inst.has("rmi") else np.ceil if inst.has("rpi") else np.rint if inst.has("rni") else np.trunc)(value)
            return _as(value, inst.types[0])
        if inst.opcode == "setp":
            one, other, *joined = (self._of(each, kind if place < 2 else "pred", depth) for place, each in enumerate(inst.operands[1:]))
            compared = inst.first_of(_ORDERED)
            if compared is None:
                raise Unknown
            holds = COMPARISONS[compared](one, other)
            by = inst.first_of(tuple(COMBINATIONS))
            return np.asarray(COMBINATIONS[by](holds, joined[0]) if by is not None and joined else holds)
        is_wide = inst.has("wide")
        values = [self._of(each, "s64" if is_wide and place == 2 else kind, depth) for place, each in enumerate(inst.operands[1:])]
        return _as(self._computed(inst, kind, values), "s64" if is_wide else kind)

    def _computed(self, inst: Instruction, kind: str, values: Sequence[Values]) -> Values:
        bits = int(kind[1:]) if kind[1:].isdecimal() else 1
        match inst.opcode:
            case "mul" | "mad" if kind[0] in "su":
                one, other = values[0], values[1]
                exact = one.astype(object) * other if inst.has("hi") and bits > 32 else one.astype(np.int64) * other.astype(np.int64)
                if inst.has("hi"):
                    exact = (exact.view(np.uint64) if kind[0] == "u" and bits <= 32 else exact) >> bits
                return np.asarray(exact if inst.opcode == "mul" else exact + values[2])
            case "mul":
                return np.asarray(values[0] * values[1])
            case "div" if kind[0] == "f":
                return np.asarray(values[0] / values[1])
            case "div" | "rem":
                divisor = np.where(values[1] == 0, 1, values[1])
                quotient = np.abs(values[0]) // np.abs(divisor) * np.sign(values[0]) * np.sign(divisor)
                return np.asarray(quotient if inst.opcode == "div" else values[0] - quotient * divisor)
            case "shl" | "shr":
                by = np.minimum(values[1] & 0xFFFFFFFF, 63)
                return np.asarray(values[0] << by if inst.opcode == "shl" else values[0] >> by)
            case "popc":
                return np.asarray(np.bitwise_count(values[0].astype(np.uint64) & np.uint64((1 << bits) - 1)), np.int64)
            case "clz":
                unsigned = values[0].astype(np.uint64) & np.uint64((1 << min(bits, 32)) - 1)
                return bits - np.ceil(np.log2(unsigned.astype(np.float64) + 1)).astype(np.int64)
        plain = _PLAIN.get(inst.opcode)
        if plain is None or len(values) != (3 if inst.opcode in ("selp", "fma") else 1 if inst.opcode in _UNARY else 2):
            raise Unknown
        return np.asarray(plain(*values))


_UNARY = ("not", "neg", "abs", "mov", "sqrt")


def _as(value: Values, kind: str) -> Values:
    """A value in a type: integers as int64 with the type's bits, of 64 bits with a sign."""
    if kind in ("", "pred") or value.dtype == np.bool_:
        return value.astype(np.bool_) if kind == "pred" else value
    if kind in ("f32", "f64"):
        return value.astype(np.float32 if kind == "f32" else np.float64)
    if kind[0] not in "sub" or not kind[1:].isdecimal() or (value.dtype.kind == "f" and kind[0] == "b"):
        raise Unknown
    bits = int(kind[1:])
    whole = (np.nan_to_num(value) if value.dtype.kind == "f" else value).astype(np.int64)
    if bits >= 64:
        return whole
    below = whole & ((1 << bits) - 1)
    return np.where(below >> (bits - 1) & 1, below - (1 << bits), below) if kind[0] == "s" else below
