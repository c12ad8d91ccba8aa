"""Comparators of programs: places that keep the better of two values, decided by comparisons of these two alone.

A kernel for a maximum moves its data and puts them through comparators. Where every choice that data decide is such a comparator, for
one total order, the kernel gives the best of a fixed set of elements, however it arranges them: which set, one run with another operation
of the same laws in place of the comparators tells (`gemmgen.verification.extrema`). This module reads comparators off the text: it
computes symbolically along straight code, through branches that data decide, and decides each candidate by all orders of its operands, NaN
included. Anything else that is done with data is a reason to claim nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from gemmgen.emulator.accessed_bytes import AccessedBytes
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.data_flow import ProgramFlow, instructions_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import (
    Address,
    Float,
    Instruction,
    Integer,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    written_by,
)

_Numbers = npt.NDArray[np.float64]
_Truths = npt.NDArray[np.bool_]
_BYTES = ("b8", "u8", "s8")
_MAX_STEPS = 200_000
"""Symbolic steps before the analysis gives up."""
_VALUES = (-math.inf, -1.0, -0.0, 0.0, 2.0, math.inf, math.nan)
"""One of each kind: all orders of two numbers occur among them, and both zeros."""
_BITS = {
    *("add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not", "cvt", "cvta", "mov", "min", "max", "selp", "setp", "rem"),
    *("div",),
}
"""Instructions without data whose results follow from their operands."""


@dataclass(frozen=True)
class Order:
    """The total order that decides: the larger or the smaller is better, NaN best of all; equal values by their places if they have any."""

    largest: bool
    indexed: bool

    def first_is_better(self, a: float, b: float, before: bool) -> bool:
        """True if a is better than b; `before`: its place is further to the front."""
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and (not math.isnan(b) or before)
        if a == b:
            return before
        return (a > b) == self.largest

    def best(self, a: float, b: float) -> float:
        """The better of two values, by sign for zeros."""
        if math.isnan(a) or math.isnan(b):
            return math.nan
        ordered = sorted((a, b), key=lambda value: (value, math.copysign(1, value)))
        return ordered[1] if self.largest else ordered[0]


@dataclass(frozen=True)
class Comparator:
    """A selection that keeps the better of two, with the registers that hold both values and, of indexed ones, both places."""

    values: tuple[Register, Register]
    places: tuple[Operand, Operand] | None = None
    fresh: tuple[bool, bool] = (False, False)
    """True for a place that no comparator gave: that of an element."""
    decided: Register | None = None
    """The other half of the result, where another instruction gave it and perhaps overwrote its operands."""


class Refused(Exception):
    """Data are used in another way."""

    def __init__(self, reason: str, inst: Instruction | None = None) -> None:
        where = ""
        if inst is not None:
            line = f"line {inst.location.own().line} of the source" if inst.location is not None else f"line {inst.line} of PTX"
            where = f": {inst.text.strip()} ({line})"
        super().__init__(reason + where)


class _Term:
    """A symbolic value: a kind with its parts, and whether data are in it.

    Equal terms are one object, so that terms whose parts are shared many times are compared and hashed at once.
    """

    __slots__ = ("__weakref__", "data", "kind", "parts")
    __match_args__ = ("kind", "parts", "data")
    kind: str
    parts: tuple[object, ...]
    data: bool
    _known: ClassVar[WeakValueDictionary[tuple[object, ...], _Term]] = WeakValueDictionary()

    def __new__(cls, kind: str, parts: tuple[object, ...], data: bool) -> _Term:
        key = (kind, parts, data)
        term = cls._known.get(key)
        if term is None:
            term = super().__new__(cls)
            term.kind, term.parts, term.data = key
            cls._known[key] = term
        return term


_Env = dict[str, _Term]


@dataclass
class Traffic:
    """Bytes that loads and stores of a run touched, by instruction, in its own kind of memory."""

    bytes_of: dict[int, AccessedBytes] = field(default_factory=dict)
    seeds: set[int] = field(default_factory=set)
    """Instructions that read the elements."""


def comparators(programs: Sequence[Program], traffic: Traffic, order: Order) -> dict[int, Comparator]:
    """The selections of programs that run one after another, by the identity of their instruction. Raises Refused."""
    loads = set(traffic.seeds) | {
        id(inst)
        for program in programs
        for inst in instructions_of(program)
        # Loads that the run did not come to may read data.
        if inst.opcode == "ld" and not inst.has("param") and id(inst) not in traffic.bytes_of
    }
    flows = [ProgramFlow(program) for program in programs]
    flags = frozenset[int]().union(*(flow.flagged_words.flags(traffic.bytes_of, traffic.seeds) for flow in flows))
    while True:
        stored = AccessedBytes()
        for flow in flows:
            for inst, data in flow.spread_from(loads, flags):
                if inst.opcode in ("st", "atom", "red") and id(inst) in traffic.bytes_of and data.any_of(_names(inst.operands[1:])):
                    stored.update(traffic.bytes_of[id(inst)])
        everything = [inst for program in programs for inst in instructions_of(program)]
        more = {
            id(inst)
            for inst in everything
            if inst.opcode not in ("st", "red") and id(inst) not in loads and id(inst) in traffic.bytes_of
            if not stored.isdisjoint(traffic.bytes_of[id(inst)])
        }
        if not more:
            break
        loads |= more
    for inst in everything:
        if id(inst) in loads and inst.type in _BYTES:
            raise Refused("bytes of data are read alone", inst)
    by_instruction: dict[int, Comparator] = {}
    for flow in flows:
        by_instruction |= _Reading(flow, loads, flags, order).comparators()
    return by_instruction


def _names(operands: Iterable[Operand]) -> Iterator[str]:
    for operand in operands:
        match operand:
            case Register(name):
                yield name
            case Negated(register):
                yield register.name
            case Vector(elements):
                yield from _names(elements)
            case Pair(first, second):
                yield from _names((first, second))


class _Reading:
    """The symbolic execution of one program."""

    def __init__(self, flow: ProgramFlow, loads: set[int], flags: frozenset[int], order: Order) -> None:
        self.flow, self.program, self.loads, self.flags, self.order = flow, flow.program, loads, flags, order
        self.tainted: dict[int, frozenset[str]] = {}
        """Registers with data at the begin of a block."""
        self.regions = flow.regions
        self.by_instruction: dict[int, Comparator] = {}
        self.bad: dict[str, str] = {}
        """Registers that leave a block with a value of data that is no comparator's."""
        self.used: set[str] = set()
        self.steps = 0
        self.floats = {register.name for registers in self.program.registers.values() for register in registers if register.type == "f32"}
        self.predicates = {register.name for register in self.program.registers.get("pred", ())}
        self.neutral = 0xFF800000 if order.largest else 0x7F800000

    def comparators(self) -> dict[int, Comparator]:
        """All of them. Raises Refused."""
        starts: dict[int, frozenset[str]] = {}
        block_of = {id(inst): block.index for block in self.program.blocks for inst in (*block.body, *_end(block))}
        first = {block.index: next(iter((*block.body, *_end(block))), None) for block in self.program.blocks}
        data_names: set[str] = set()
        for inst, data in self.flow.spread_from(self.loads, self.flags):
            at = block_of[id(inst)]
            if inst is first[at]:
                starts[at] = data.names()
                data_names |= starts[at]
        self.tainted = starts
        self.data_names = data_names
        inside: set[int] = set()
        for block in self.program.blocks:
            if block.index in inside:
                continue
            inside |= self._read_from(block)
        wrong = sorted(self.bad.keys() & self.used)
        if wrong:
            raise Refused(self.bad[wrong[0]])
        return self.by_instruction

    # -- straight code ---------------------------------------------------------------------------------------------

    def _read_from(self, block: BasicBlock) -> set[int]:
        """Reads a block and those that branches decided by data lead to; returns the latter."""
        env: _Env = {}
        self.selections: list[tuple[Instruction, _Term, _Term, _Term, _Env]] = []
        self.start = self.tainted.get(block.index, frozenset())
        inside = self._walk(block, env, None)
        self._decide_selections()
        for name, term in env.items():
            problem = self._problem(term)
            if problem:
                self.bad[name] = problem
        return inside

    def _walk(self, block: BasicBlock, env: _Env, stop: int | None) -> set[int]:
        """Executes from a block to the end of the straight code, or to the block `stop`."""
        inside: set[int] = set()
        while True:
            for inst in block.body:
                self._execute(inst, env)
            last = block.terminator
            if last is None:
                following = block.index + 1
                if stop is None or following >= len(self.program.blocks):
                    return inside
            elif last.opcode == "bra" and last.guard is None:
                following = block.targets[0]
                if stop is None:
                    return inside
            elif last.opcode == "bra" and last.guard is not None and (condition := self._register(last.guard, env)).data:
                region = self.regions.get(block.index)
                if region is None:
                    raise Refused("control flow depends on data", last)
                join, members = region
                self._branch(block, condition, join, env)
                inside |= members
                following = join
                if stop is None and join != stop:
                    # The block behind it is straight code as well, unless other blocks branch there.
                    entries = {b.index for b in self.program.blocks if join in b.targets or (b.index + 1 == join and _falls(b))}
                    if not entries <= members | {block.index}:
                        return inside
                    inside.add(join)
            else:
                if last.guard is None:
                    self._execute(last, env)
                elif self._register(last.guard, env).data:
                    raise Refused("control flow depends on data", last)
                if stop is not None:
                    raise Refused("a branch within a choice of data", last)
                return inside
            if following == stop:
                return inside
            block = self.program.blocks[following]

    def _branch(self, block: BasicBlock, condition: _Term, join: int, env: _Env) -> None:
        """Both ways of a branch that data decide, up to where they meet."""
        last = block.terminator
        assert last is not None
        ways = []
        for target in (block.targets[0], block.index + 1):
            own = dict(env)
            if target != join:
                self._walk(self.program.blocks[target], own, join)
            ways.append(own)
        taken, fallen = ways if not last.guard_negated else reversed(ways)
        for name in taken.keys() | fallen.keys():
            first, second = (way.get(name) or self._at_start(name) for way in (taken, fallen))
            if first == second:
                env[name] = first
            else:
                env[name] = self._merged(_Term("ite", (condition, first, second), True))

    def _merged(self, term: _Term) -> _Term:
        """A value that two ways give: the better of two, or an expression that is not yet one."""
        operands = _leaves(term)
        if not self.order.indexed and len(operands) == 2 and self._is_better_of(term, operands) and _instruction_of(term) is not None:
            return _Term("best", (term,), True)
        return term

    # -- instructions ----------------------------------------------------------------------------------------------

    def _at_start(self, name: str) -> _Term:
        return _Term("register", (name,), name in self.start)

    def _register(self, register: Register, env: _Env) -> _Term:
        term = env.get(register.name)
        if term is None:
            term = env[register.name] = self._at_start(register.name)
        if term.kind == "register":
            self.used.add(str(term.parts[0]))
        return term

    def _value(self, operand: Operand, env: _Env) -> _Term:
        match operand:
            case Register():
                return self._register(operand, env)
            case Negated(register):
                return _not(self._register(register, env))
            case Integer(value):
                return _Term("integer", (value,), False)
            case Float(bits, width):
                return _Term("float", (bits, width), False)
            case Special(name):
                return _Term("special", (name,), False)
            case Symbol(name, offset):
                return _Term("symbol", (name, offset), False)
        raise Refused(f"an operand {operand} is not understood")

    def _execute(self, inst: Instruction, env: _Env) -> None:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise Refused("the code is too long to be read")
        if inst.guard is not None and self._register(inst.guard, env).data:
            raise Refused("control flow depends on data", inst)
        for operand in inst.operands:
            if isinstance(operand, Address) and any(self._value(each, env).data for each in (operand.base, *operand.extra)):
                raise Refused("an address depends on data", inst)
        names = written_by(inst)
        operands = [each for each in (inst.operands[1:] if names else inst.operands) if not isinstance(each, Address | Sink)]
        flat = [e for each in operands for e in (each.elements if isinstance(each, Vector) else (each,)) if not isinstance(e, Sink)]
        terms = [self._value(each, env) for each in flat]
        result = self._result(inst, terms, env)
        for place, name in enumerate(names):
            term = result if len(names) == 1 else _part(inst, result, place, terms)
            if isinstance(inst.operands[0], Pair) and place:
                if inst.opcode == "setp" and result.data:
                    raise Refused("a comparison with two results", inst)
                term = _Term("free", (id(inst), place), False)
            if inst.guard is not None:
                before = env.get(name) or self._at_start(name)
                term = _Term("either", (id(inst), before, term), term.data or before.data)
            self._check_constant(inst, name, term)
            env[name] = term

    def _check_constant(self, inst: Instruction, name: str, term: _Term) -> None:
        """A number that stands where data do must be the one that every element beats, or the place of none."""
        is_float = self._is_float(name)
        if term.data or term == _Term("float", (self.neutral, 32), False) or not (is_float or name in self.data_names):
            return
        if term.kind == "register" and (self._is_float(str(term.parts[0])) or term.parts[0] in self.data_names):
            return  # writes to that one are checked
        if term.kind == "float" or name in self.predicates or (self.order.indexed and not is_float):
            return  # hashed in the run; or a place, or the place of nothing, which the run checks
        raise Refused("a number other than the least takes part", inst)

    def _is_float(self, name: str) -> bool:
        return name in self.floats

    def _result(self, inst: Instruction, terms: list[_Term], env: _Env) -> _Term:
        if id(inst) in self.loads:
            if inst.opcode != "ld":
                raise Refused("data are read in a way that is not understood", inst)
            return _Term("loaded", (id(inst),), True)
        if id(inst) in self.flags:
            return _Term("free", (id(inst),), False)
        data = any(term.data for term in terms)
        kind = inst.opcode
        if kind == "mov" and len(terms) == 1 and isinstance(inst.operands[0], Register) and isinstance(inst.operands[1], Register | Float):
            return terms[0]
        if kind == "setp" and len(inst.types) == 1 and len(terms) in (2, 3):
            test = _Term("test", (inst.modifiers[0], inst.type, terms[0], terms[1]), terms[0].data or terms[1].data)
            if len(terms) == 3:
                combination = inst.first_of(("and", "or", "xor"))
                return _Term(str(combination), (test, terms[2]), test.data or terms[2].data)
            return test
        if kind in ("and", "or", "xor") and inst.has("pred"):
            return _Term(kind, tuple(terms), data)
        if kind == "not" and inst.has("pred"):
            return _not(terms[0])
        if kind == "add" and inst.types == ("s32",) and not data:
            return _sum(terms[0], terms[1])
        if kind == "or" and inst.type == "b32" and not data and _fills_zeros(terms[0], terms[1]):
            return _sum(terms[0], terms[1])
        if not data:
            return _Term("of", (kind, inst.modifiers, *terms), False) if kind in _BITS else _Term("free", (id(inst),), False)
        return self._of_data(inst, kind, terms, env)

    def _of_data(self, inst: Instruction, kind: str, terms: list[_Term], env: _Env) -> _Term:
        if kind == "selp":
            if terms[2].data:
                term = _Term("chosen", (id(inst),), True)
                self.selections.append((inst, terms[2], terms[0], terms[1], dict(env)))
                return term
            self._require_moved(inst, [term for term in terms[:2] if term.data])
            for term in terms[:2]:
                if not term.data and not self.order.indexed and term.kind != "float":
                    raise Refused("a number other than the least takes part", inst)
            return _Term("moved", (id(inst),), True)
        if kind in ("max", "min") and inst.types == ("f32",) and not inst.has("abs") and not inst.has("xorsign") and len(terms) == 2:
            term = _Term("extremum", (kind, inst.has("NaN"), inst.has("ftz"), id(inst), *terms), True)
            both = _leaves(term)
            if inst.has("ftz") or len(both) != 2:
                raise Refused("an extremum of more than two values, or without denormals", inst)
            self.by_instruction[id(inst)] = Comparator((_as_register(inst.operands[1], inst), _as_register(inst.operands[2], inst)))
            return self._merged(term)
        if kind == "add" and inst.types == ("f32",):
            return _Term("sum of floats", tuple(terms), True)
        if _moves_bits(inst) and not (kind == "shfl" and any(term.data for term in terms[1:])):
            self._require_moved(inst, [term for term in terms if term.data])
            return _half(inst, terms) or _Term("moved", (id(inst),), True)
        raise Refused("more is done with data than comparisons", inst)

    def _require_moved(self, inst: Instruction, terms: list[_Term]) -> None:
        for term in terms:
            problem = self._problem(term)
            if problem:
                raise Refused(problem, inst)

    @staticmethod
    def _problem(term: _Term) -> str:
        """The reason why a value of data cannot be used further, or "": it is neither an element nor a comparator's result."""
        if not term.data or term.kind in ("register", "loaded", "moved", "best", "chosen", "test", "and", "or", "xor", "not"):
            return ""
        if term.kind == "part":
            assert isinstance(term.parts[0], _Term)
            return _Reading._problem(term.parts[0])
        if term.kind == "either":
            return "a guarded instruction writes data"
        return "a choice that data decide is not the better of two values"

    # -- decisions -------------------------------------------------------------------------------------------------

    def _decide_selections(self) -> None:
        """Decides each selection between two numbers, or two places: it must keep the better one."""
        of_floats = [each for each in self.selections if each[0].type == "f32"]
        of_places = [each for each in self.selections if each[0].type != "f32"]
        for inst, condition, first, second, env in of_floats:
            if not self.order.indexed:
                term = _Term("ite", (condition, first, second), True)
                if set(_leaves(term)) != {first, second} or not self._is_better_of(term, [first, second]):
                    raise Refused("a choice that data decide is not the better of two values", inst)
                self.by_instruction[id(inst)] = Comparator((_as_register(inst.operands[1], inst), _as_register(inst.operands[2], inst)))
                continue
            partner = next((each for each in of_places if each[1] == condition), None)
            if partner is None:
                raise Refused("a choice between values has no choice between places beside it", inst)
            if not self._keeps_better(condition, (first, second), (partner[2], partner[3])):
                raise Refused("a choice that data decide is not the better of two values", inst)
            self.by_instruction[id(inst)] = self._indexed((first, second), (partner[2], partner[3]), env, inst, partner[0])
        for inst, condition, first, second, env in of_places:
            if not self.order.indexed:
                raise Refused("data decide about a number that is no data", inst)
            values = _leaves(condition)
            pairs = [pair for pair in itertools.permutations(values, 2) if self._keeps_better(condition, pair, (first, second))]
            if len(values) != 2 or len(pairs) != 1:
                raise Refused("a choice that data decide is not the better of two values", inst)
            other = next((each[0] for each in of_floats if each[1] == condition), None)
            self.by_instruction[id(inst)] = self._indexed(pairs[0], (first, second), env, inst, other)

    def _indexed(
        self, values: tuple[_Term, ...], places: tuple[_Term, _Term], env: _Env, inst: Instruction, other: Instruction | None
    ) -> Comparator:
        if other is not None:
            chosen = _Term("chosen", (id(other),), True)
            names = [name for name, held in env.items() if held is chosen]
            if names:
                none = Register(names[0], "b32")
                return Comparator((none, none), decided=none)
        first, second = (_where(value, env, "f32", inst) for value in values)
        assert isinstance(first, Register)
        assert isinstance(second, Register)
        return Comparator(
            (first, second),
            (_where(places[0], env, "b32", inst), _where(places[1], env, "b32", inst)),
            (not places[0].data, not places[1].data),
        )

    def _keeps_better(self, condition: _Term, values: Sequence[_Term], places: tuple[_Term, _Term]) -> bool:
        """True if a condition holds exactly if the first value, with its place, is the better one."""
        if len(set(values)) != 2 or set(_leaves(condition)) - set(values):
            return False
        cases = _cases(self.order, *(self._kinds(value) for value in values))
        holds, unknown = _Evaluation(dict(zip(values, cases.values, strict=True)), places, cases.before).of(condition)
        return not unknown.any() and bool((holds == cases.first_is_better).all())

    def _is_better_of(self, term: _Term, values: Sequence[_Term]) -> bool:
        """True if an expression is the better of two values, for all orders of them."""
        cases = _cases(self.order, *(self._kinds(value) for value in values))
        result, unknown = _Evaluation(dict(zip(values, cases.values, strict=True)), None, cases.before).of(term)
        if unknown.any() or result.dtype != np.float64:
            return False
        wanted = cases.best
        same = (result == wanted) & ((result != 0) | (np.signbit(result) == np.signbit(wanted)))
        return bool((same | (np.isnan(result) & np.isnan(wanted))).all())

    def _kinds(self, value: _Term) -> tuple[float, ...]:
        if value.kind == "float":
            return (-math.inf if self.order.largest else math.inf,) if value.parts == (self.neutral, 32) else ()
        return _VALUES


class _Unknown(Exception):
    """An expression depends on more than the two values."""


@dataclass(frozen=True)
class _Cases:
    """All pairs of two values, with either of their places before the other one, and the result of an order for each."""

    values: tuple[_Numbers, _Numbers]
    before: _Truths
    first_is_better: _Truths
    best: _Numbers


@lru_cache(maxsize=16)
def _cases(order: Order, first: tuple[float, ...], second: tuple[float, ...]) -> _Cases:
    combinations = list(itertools.product(first, second, (True, False)))
    a, b = (np.array([case[part] for case in combinations], np.float64) for part in (0, 1))
    return _Cases(
        (a, b),
        np.array([case[2] for case in combinations], np.bool_),
        np.array([order.first_is_better(*case) for case in combinations], np.bool_),
        np.array([order.best(a, b) for a, b, _ in combinations], np.float64),
    )


def _end(block: BasicBlock) -> tuple[Instruction, ...]:
    return (block.terminator,) if block.terminator is not None else ()


def _falls(block: BasicBlock) -> bool:
    last = block.terminator
    return last is None or last.guard is not None or last.opcode in ("bar", "barrier")


def _moves_bits(inst: Instruction) -> bool:
    """True for instructions that move bits unchanged: to another lane, into memory, or between the halves of a word."""
    constants = [operand.value for operand in inst.operands if isinstance(operand, Integer)]
    match inst.opcode:
        case "st" | "shfl" | "mov":
            return inst.type not in _BYTES
        case "shl" | "shr":
            return constants in ([16], [32]) and inst.type in ("b32", "u32", "b64", "u64")
        case "and":
            return constants in ([0xFFFF0000], [-0x10000], [0xFFFF])
        case "or":
            return inst.type == "b64" and len(constants) == 1 and constants[0] & 0xFFFFFFFF == 0
        case "cvt":
            moved = {("u64", "u32"), ("u32", "u64"), ("s64", "s32"), ("u32", "u16"), ("u16", "u32"), ("f32", "bf16"), ("f32", "f16")}
            return inst.types in moved or inst.types in {("bf16", "f32"), ("f16", "f32")}
    return False


def _part(inst: Instruction, result: _Term, place: int, terms: Sequence[_Term]) -> _Term:
    """One of several results; of a word of 32 bits that is cut, its lower or its upper half."""
    if inst.opcode == "mov" and inst.type == "b32" and len(terms) == 1 and result.data:
        return _Term("moved", ("half", terms[0], place), True)
    return _Term("part", (result, place), result.data)


def _half(inst: Instruction, terms: Sequence[_Term]) -> _Term | None:
    """Halves of a word in one form each, however code takes them out: alone, widened with zeros, or as the upper half of a word."""
    value = next(term for term in terms if term.data)
    constants = [operand.value for operand in inst.operands if isinstance(operand, Integer)]
    if inst.opcode == "cvt" and inst.types == ("u32", "u16"):
        return _Term("moved", ("wide", value), True)
    if inst.opcode == "cvt" and inst.types == ("f32", "bf16"):
        return _Term("moved", ("upper", value), True)
    if inst.type not in ("b32", "u32") or inst.opcode not in ("shl", "shr", "and"):
        return None
    if inst.opcode == "shl":
        wide = value.kind == "moved" and value.parts[0] == "wide"
        return _Term("moved", ("upper", value.parts[1] if wide else _Term("moved", ("half", value, 0), True)), True)
    if inst.opcode == "and" and constants != [0xFFFF]:
        return _Term("moved", ("upper", _Term("moved", ("half", value, 1), True)), True)
    return _Term("moved", ("wide", _Term("moved", ("half", value, int(inst.opcode == "shr")), True)), True)


def _as_register(operand: Operand, inst: Instruction) -> Register:
    if not isinstance(operand, Register):
        raise Refused("a comparator with a literal", inst)
    return operand


def _where(term: _Term, env: Mapping[str, _Term], kind: str, inst: Instruction) -> Operand:
    """A register, or a literal, that holds a term right before an instruction."""
    if term.kind == "integer":
        return Integer(int(str(term.parts[0])))
    names = [name for name, held in env.items() if held == term]
    own = str(term.parts[0]) if term.kind == "register" else ""
    if not names:
        raise Refused("the other half of a pair of value and place is gone", inst)
    return Register(own if own in names else names[0], kind)


def _not(term: _Term) -> _Term:
    return _Term("not", (term,), term.data)


def _sum(first: _Term, second: _Term) -> _Term:
    """A sum of integers; those of a term and a literal in a normal form."""
    if first.kind == "integer":
        first, second = second, first
    if second.kind != "integer":
        return _Term("of", ("add", (), first, second), False)
    base, offset = _split(first)
    offset += int(str(second.parts[0]))
    return _Term("offset", (base, offset), False) if offset else base


def _fills_zeros(first: _Term, second: _Term) -> bool:
    """True if a literal sets bits that a shift to the left has cleared."""
    match first, second:
        case _Term("of", ("shl", _, _, _Term("integer", (int(amount),)))), _Term("integer", (int(value),)):
            return 0 <= value < 1 << amount
    return False


def _split(term: _Term) -> tuple[_Term, int]:
    if term.kind == "offset":
        base, offset = term.parts
        assert isinstance(base, _Term)
        assert isinstance(offset, int)
        return base, offset
    return term, 0


def _leaves(term: _Term) -> list[_Term]:
    """The values that an expression compares or chooses between, each once: floats, not places."""
    leaves: dict[_Term, None] = {}
    work, seen = [term], set[_Term]()
    while work:
        each = work.pop()
        if each in seen or (each.kind == "test" and each.parts[1] != "f32"):
            continue
        seen.add(each)
        if each.kind in ("test", "and", "or", "xor", "not", "ite", "extremum", "sum of floats"):
            work += [part for part in each.parts if isinstance(part, _Term)]
        elif each.data or each.kind == "float":
            leaves[each] = None
    return list(leaves)


def _instruction_of(term: _Term) -> int | None:
    """The instruction that gives the better of two where neither is NaN; None if a branch chooses between them."""
    while term.kind == "ite":
        condition, first, second = term.parts
        if not (isinstance(condition, _Term) and isinstance(first, _Term) and isinstance(second, _Term)):
            return None
        if condition.kind != "test" or condition.parts[0] not in ("nan", "num"):
            return None
        term = second if condition.parts[0] == "nan" else first
    return int(str(term.parts[3])) if term.kind == "extremum" else None


def _compared(name: str, a: _Numbers, b: _Numbers) -> _Truths:
    """A comparison of floats; one without order holds only for names that end in u, "ne" included by its definition for unordered "neu"."""
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return unordered if name == "nan" else ~unordered
    compare = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    ordered: _Truths = compare[name.removesuffix("u")](a, b)
    return np.where(unordered, name.endswith("u"), ordered)


class _Evaluation:
    """Expressions of two values and their places, for all cases at once. A part that depends on more is unknown, case by case."""

    def __init__(self, values: Mapping[_Term, _Numbers], places: tuple[_Term, _Term] | None, before: _Truths) -> None:
        self.places, self.before = places, before
        none = np.zeros(len(before), np.bool_)
        self.known: dict[_Term, tuple[_Numbers | _Truths, _Truths]] = {term: (numbers, none) for term, numbers in values.items()}

    def of(self, term: object) -> tuple[_Numbers | _Truths, _Truths]:
        """The values of a term in all cases, and the cases where they are unknown."""
        assert isinstance(term, _Term)
        if term not in self.known:
            try:
                self.known[term] = self._computed(term)
            except _Unknown:
                self.known[term] = np.zeros(len(self.before), np.bool_), np.ones(len(self.before), np.bool_)
        return self.known[term]

    def _computed(self, term: _Term) -> tuple[_Numbers | _Truths, _Truths]:
        parts = term.parts
        match term.kind:
            case "test" if parts[1] == "f32":
                (a, first), (b, second) = self.of(parts[2]), self.of(parts[3])
                return _compared(str(parts[0]), a.astype(np.float64), b.astype(np.float64)), first | second
            case "test":
                assert isinstance(parts[2], _Term)
                assert isinstance(parts[3], _Term)
                straight = _places_compared(str(parts[0]), str(parts[1]), parts[2], parts[3], self.places)
                return self.before if straight else ~self.before, np.zeros(len(self.before), np.bool_)
            case "not":
                value, unknown = self.of(parts[0])
                return ~value.astype(np.bool_), unknown
            case "and" | "or" | "xor":
                (a, first), (b, second) = self.of(parts[0]), self.of(parts[1])
                combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[term.kind]
                return combine(a, b), first | second
            case "ite":
                (condition, unknown), (a, first), (b, second) = (self.of(part) for part in parts)
                holds = condition.astype(np.bool_)
                return np.where(holds, a, b), unknown | np.where(holds, first, second)
            case "extremum":
                (a, first), (b, second) = self.of(parts[4]), self.of(parts[5])
                return _extremum(str(parts[0]), bool(parts[1]), a.astype(np.float64), b.astype(np.float64)), first | second
            case "sum of floats":
                (a, first), (b, second) = self.of(parts[0]), self.of(parts[1])
                nan = np.isnan(a.astype(np.float64)) | np.isnan(b.astype(np.float64))
                return np.full(len(nan), math.nan), first | second | ~nan
        raise _Unknown


def _extremum(name: str, propagates: bool, a: _Numbers, b: _Numbers) -> _Numbers:
    """min and max of PTX: NaN wins or loses, and -0 is less than +0."""
    lower = (a < b) | ((a == b) & np.signbit(a))
    chosen = np.where(lower == (name == "min"), a, b)
    if propagates:
        return np.where(np.isnan(a) | np.isnan(b), math.nan, chosen)
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, chosen))


def _places_compared(name: str, type_name: str, x: _Term, y: _Term, places: tuple[_Term, _Term] | None) -> bool:
    """A comparison of two places, written with any offset that says the same of different ones: i < j, i <= j - 1, i <= j.

    True if it holds where the first place is before the second, False if it holds where it is behind. Raises _Unknown."""
    if places is None or type_name not in ("s32", "s64") or name not in ("lt", "le", "gt", "ge"):
        raise _Unknown
    if name in ("gt", "ge"):
        x, y, name = y, x, {"gt": "lt", "ge": "le"}[name]
    (base_x, at_x), (base_y, at_y) = _split(x), _split(y)
    for (first, second), answer in (((places[0], places[1]), True), ((places[1], places[0]), False)):
        (base_1, at_1), (base_2, at_2) = _split(first), _split(second)
        if (base_1, base_2) == (base_x, base_y):
            # x <= y + slack, of places that differ: the same as before for a slack of 0 or -1.
            slack = (at_y - at_2) - (at_x - at_1) - (name == "lt")
            if slack in (0, -1):
                return answer
    raise _Unknown
