"""Facts about one symbolic thread of a kernel while it is lifted: symbols, lemmas, and the events that were seen.

A fact must be satisfiable for any kernel: it defines a new symbol, or restates the contract. Conditions that hold only on
some ways through the kernel belong to a path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import z3

from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Function, Instruction, Module
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.proof.contract import AXES, Contract
from gemmgen.proof.control import Unliftable
from gemmgen.proof.data import Access, Data, Recurrence
from gemmgen.proof.enumeration import Numbers
from gemmgen.proof.polynomials import Polynomials
from gemmgen.proof.slicing import data_predicates, relevant_registers, uniform_floats
from gemmgen.proof.solver import Solver, limited_check
from gemmgen.proof.terms import mentions, node_of
from gemmgen.proof.values import UNBOUNDED, Condition, Term, Value, as_term, constant, negation

BARRIERS, GROUPS = "barriers passed", "groups closed"
"""Pseudo-registers, with names that PTX does not allow: barriers of the whole block passed, groups of copies closed, so far."""
TEAM_BARRIERS, WARP_BARRIERS = "barriers of teams passed", "barriers of warps passed"
"""Pseudo-registers: the same with the named barriers of the thread's team of warps; with those and the barriers of its warp."""
LEVELS = (BARRIERS, TEAM_BARRIERS, WARP_BARRIERS)
"""Counters of barriers: each orders two threads if they share a block, a team or a warp, and counts those before it as well."""
COUNTERS = (*LEVELS, GROUPS)
LEMMA_MILLISECONDS = 3000

State: TypeAlias = dict[str, Value | Condition | Data]
Path: TypeAlias = tuple[Condition, ...]
"""Conditions that all hold where a thread is."""


@dataclass(frozen=True, eq=False)
class Wait:
    """A wait for asynchronous copies: all but the last ``pending`` groups have arrived after it."""

    pending: int
    groups: Value
    barriers: tuple[Value, ...]
    iteration: z3.ArithRef | None
    """The iteration of the innermost loop around it."""
    path: Path
    reached: z3.BoolRef | None = None
    """The condition under which a thread comes to it, in a given iteration of that loop; None where that is not known."""
    block: int = 0
    """The basic block that it is in."""
    guards: Path | None = None
    """Conditions under which a thread reaches a wait outside of loops, provided that loops end; None if unknown."""


@dataclass(frozen=True, eq=False)
class Later:
    """The state of a thread after its loops: the symbols that belong to an iteration, each with one for its value after the last one."""

    pairs: tuple[tuple[z3.ExprRef, z3.ExprRef], ...]
    facts: tuple[z3.BoolRef, ...]

    def term(self, term: z3.ExprRef) -> z3.ExprRef:
        """The value of a term after all loops."""
        return z3.substitute(term, *self.pairs)


@dataclass
class Lifted:
    """A kernel as formulas."""

    accesses: list[Access] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    barrier_blocks: list[int] = field(default_factory=list)
    branches: list[tuple[int, Condition]] = field(default_factory=list)
    """Conditional branches: the basic block, and the condition in terms of the iterations of the loops around it."""
    team_blocks: list[int] = field(default_factory=list)
    warp_blocks: list[int] = field(default_factory=list)
    """Basic blocks with statements that wait for the rest of the block, of the thread's team and of its warp."""
    warp_guards: list[tuple[int, Condition]] = field(default_factory=list)
    """Guards of such statements of a warp, each with its basic block."""
    unbounded_loops: list[Instruction] = field(default_factory=list)
    traps: list[tuple[Instruction, Path]] = field(default_factory=list)
    """Statements that end a launch in an error, each with the way to it."""

    def _lists(self) -> tuple[list[Any], ...]:
        places = self.barrier_blocks, self.team_blocks, self.warp_blocks
        return self.accesses, self.waits, *places, self.warp_guards, self.unbounded_loops, self.branches, self.traps

    def marks(self) -> tuple[int, ...]:
        """The present lengths, for ``forget_since``."""
        return tuple(len(events) for events in self._lists())

    def forget_since(self, marks: tuple[int, ...]) -> None:
        """Drops all that was noted since."""
        for events, mark in zip(self._lists(), marks, strict=True):
            del events[mark:]

    """A branch back of each loop that was not proved to end."""


class Knowledge:
    """Symbols, facts and events of one kernel under one contract."""

    def __init__(self, module: Module, function: Function, contract: Contract, solver: Solver) -> None:
        self.module, self.function, self.contract, self.solver = module, function, contract, solver
        self.relevant = relevant_registers(function)
        self.uniform_floats = uniform_floats(function)
        self.facts: list[z3.BoolRef] = list(contract.facts)
        self.private: list[z3.ExprRef] = []
        """Symbols that every thread has for itself."""
        self._private: dict[int, z3.ExprRef] = {}
        self.lifted = Lifted()
        self.polynomials = Polynomials()
        self.indices: dict[tuple[str, object], list[z3.ArithRef] | None] = {}
        """Indices in an array by the array's name and an offset in it without constant; None for offsets of another form."""
        self.guessing = False
        """True while one iteration of a loop runs on arbitrary values to find its effects: nothing is proved or recorded then."""
        self.iterations: list[z3.ArithRef] = []
        """Iterations of the loops that the lifter is in, outermost first."""
        self.finished: list[z3.ArithRef] = []
        """Iterations of all loops that were lifted."""
        self.loops: dict[int, int] = {}
        """The loop's header by the number of an iteration's term."""
        self.at_start: list[tuple[int, z3.ArithRef, z3.ArithRef]] = []
        """Loops' headers, with registers at the start of an iteration of which nothing else is known, and their content before the loop."""
        self.divisions: list[tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef]] = []
        """Dividend, divisor times quotient, remainder."""
        self.divided: list[tuple[Value, Value]] = []
        """Quotients and remainders by numbers that are not known."""
        self.wrapped: dict[int, tuple[z3.ArithRef, int, int]] = {}
        """Multiples of 2^bits by which a term lies outside of its register's range: the term, the range's start and the bits."""
        self.taken: dict[int, tuple[z3.ArithRef, z3.BoolRef]] = {}
        """Iterations so far in which a condition held: the iteration and the condition in it."""
        self.changing: list[z3.ExprRef] = []
        """Private symbols that have a value in each iteration of a loop."""
        self.later = Later((), ())
        """The thread after its loops, for copies that a loop leaves in flight."""
        self.quotients: dict[int, tuple[z3.ArithRef, z3.ArithRef]] = {}
        """Dividend and divisor by the number of a quotient's or a remainder's term."""
        self.block_parts: dict[str, tuple[z3.ArithRef, ...]] = {}
        """The block's index by axis, or quotients and remainders that together determine it."""
        self.block_symbols: list[z3.ArithRef] = []
        """Symbols that a block's index is made of, where it is not one itself."""
        self.factors: dict[int, tuple[z3.ArithRef, ...]] = {}
        """Factors of the number of values, from 0, that a block's index or a part of it takes, by the number of its term."""
        self.grouped: dict[int, tuple[tuple[z3.ArithRef, ...], int, z3.ArithRef]] = {}
        """By the number of a remainder r of a block's index by g Q: Q as factors, g, and the number P - g q of which r is below its product
        with Q as well."""
        self.extents: dict[int, z3.ArithRef] = {}
        """The number of those values."""
        self.team: tuple[z3.ArithRef, int] | None = None
        """The number of a named barrier, which identifies a team of warps, and the threads of a team."""
        self.here: Instruction | None = None
        self.data_predicates = data_predicates(function)
        self.tracks_data = False
        """True if data is kept beside addresses, guards and barriers."""
        self.of_ring = False
        """True for a kernel with a ring, of which only the threads' accesses to global memory are followed."""
        self.stored: tuple[Data, ...] = ()
        """The data of the present store."""
        self.latest: Access | None = None
        """The last access of the present statement."""
        self.results: list[tuple[Access, Value]] = []
        """Loads from shared memory and atomics, each with the number that it gives."""
        self.loaded: dict[int, tuple[z3.ArithRef, ...]] = {}
        """Iterations of the loops around the load that gives a number, by the number of its term."""
        self.numbers: list[tuple[Access, Value]] = []
        """Stores and atomics, each with the number that it stores or adds."""
        self.recurrences: dict[int, Recurrence] = {}
        """The data of each loop by the number of its iteration's term."""
        self._names = 0
        x, y, z = contract.threads
        self.thread = {axis: self._axis(f"tid.{axis}", extent) for axis, extent in zip(AXES, (x, y, z), strict=True)}
        self.rank, self.cluster = constant(0), constant(0)
        """The block's index in its cluster, and the cluster's index."""
        self.block = {axis: self._block_index(axis, place) for place, axis in enumerate(AXES)}

    def symbol(self, name: str, low: int = -UNBOUNDED, high: int = UNBOUNDED, *, private: bool = True) -> Value:
        """A new integer."""
        self._names += 1
        term = z3.Int(f"{name}#{self._names}")
        if private:
            self.private.append(term)
        if low > -UNBOUNDED:
            self.facts.append(term >= low)
        if high < UNBOUNDED:
            self.facts.append(term <= high)
        return Value(term, low, high)

    def anything(self, bits: int, base: str | None = None) -> Value:
        """Any content of a register of so many bits, which nothing is known of."""
        half = 1 << max(bits - 1, 0)
        value = self.symbol("any", -half, half - 1)
        return Value(value.term, value.low, value.high, 0, base)

    def any_condition(self) -> z3.BoolRef:
        """A condition that nothing is known of."""
        self._names += 1
        condition = z3.Bool(f"any#{self._names}")
        self.private.append(condition)
        return condition

    def _axis(self, name: str, extent: int) -> Value:
        if extent == 1:
            return constant(0)
        term = z3.Int(name)
        self.private.append(term)
        self.facts += [term >= 0, term <= extent - 1]
        return Value(term, 0, extent - 1)

    def _block_index(self, axis: str, place: int) -> Value:
        grid = self.contract.grid[place]
        if z3.is_int_value(z3.simplify(grid)) and z3.simplify(grid).as_long() == 1:
            return constant(0)
        if axis == "x" and self.contract.launch.cluster != (1, 1, 1):
            return self._in_cluster(self.contract.launch.cluster)
        term = z3.Int(f"ctaid.{axis}")
        self.private.append(term)
        self.facts += [term >= 0, term < grid]
        self.factors[term.get_id()] = self.contract.grid_factors[place]
        self.extents[term.get_id()] = grid
        self.block_parts[axis] = (term,)
        return Value(term, 0, (1 << 31) - 1)

    def _in_cluster(self, shape: tuple[int, int, int]) -> Value:
        """The index along x of a block of a cluster, by the cluster's index and the block's rank."""
        blocks, factors = shape[0], self.contract.grid_factors[0]
        if shape[1:] != (1, 1) or len(factors) < 2 or not z3.is_int_value(factors[0]) or factors[0].as_long() != blocks:
            raise Unliftable(None, "a grid that is no number of clusters along x")
        cluster, rank = z3.Int("clusterid.x"), z3.Int("ctarank.x")  # with a dot, unlike the names of dimensions
        clusters = factors[1] if len(factors) == 2 else z3.Product(*factors[1:])
        self.private += [cluster, rank]
        self.facts += [cluster >= 0, cluster < clusters, rank >= 0, rank < blocks]
        self.factors[cluster.get_id()] = factors[1:]
        self.extents[cluster.get_id()] = clusters
        self.block_parts["x"] = (cluster,)  # the rank counts as a part of the thread's index, where threads are listed
        self.block_symbols += [cluster, rank]
        self.cluster, self.rank = Value(cluster, 0, (1 << 31) // blocks - 1), Value(rank, 0, blocks - 1)
        return Value(cluster * blocks + rank, 0, (1 << 31) - 1)

    def all_threads(self) -> dict[int, Numbers]:
        """The indices of all threads of a block, by the numbers of their terms."""
        count = np.arange(self.contract.launch.threads, dtype=np.int64)
        x, y, _ = self.contract.threads
        by_axis = {"x": count % x, "y": count // x % y, "z": count // (x * y)}
        return {value.term.get_id(): by_axis[axis] for axis, value in self.thread.items() if not isinstance(value.term, int)}

    def cluster_threads(self) -> dict[int, Numbers]:
        """The indices of all threads of a block, or of all blocks of a cluster, whose ranks belong to them."""
        threads = self.all_threads()
        if not self.block_symbols:
            return threads
        blocks = self.contract.launch.cluster[0]
        indices: dict[int, Numbers] = {number: np.tile(values, blocks) for number, values in threads.items()}
        indices[self.rank.z3.get_id()] = np.repeat(np.arange(blocks, dtype=np.int64), self.contract.launch.threads)
        return indices

    @property
    def linear_thread(self) -> Value:
        """The thread's index in its block."""
        x, y, _ = self.contract.threads
        terms = self.thread
        total = as_term(terms["x"].term) + as_term(terms["y"].term) * x + as_term(terms["z"].term) * (x * y)
        count = self.contract.launch.threads
        return Value(z3.simplify(total), 0, count - 1) if count > 1 else constant(0)

    @property
    def lane(self) -> Value:
        """The thread's index in its warp."""
        thread = self.linear_thread
        if thread.high < WARP_THREADS:
            return thread
        return Value(as_term(thread.term) % WARP_THREADS, 0, WARP_THREADS - 1)

    def depends_on_thread(self, term: z3.ExprRef | int | bool, besides: Collection[int] = ()) -> bool:
        """True unless all threads of a block have the same value for a term; ``besides``: numbers of terms that they share as well."""
        if isinstance(term, int):
            return False
        shared = {
            *besides,
            *self._numbers((*[value.term for value in self.block.values()], *self.block_symbols)),
            *self._numbers((*self.iterations, *self.finished)),
        }
        for symbol in self.private[len(self._private) :]:
            self._private[symbol.get_id()] = symbol
        return any(number in self._private and number not in shared for number in self._symbols(term))

    def is_of_problem(self, term: z3.ExprRef) -> bool:
        """True if all threads of the grid have the same value for a term, in all iterations."""
        private = self._numbers(self.private)
        return private.isdisjoint(self._symbols(term))

    def depends_on_rank(self, term: z3.ExprRef) -> bool:
        """True unless all blocks of a cluster have the same value for a term of the block."""
        return bool(self.block_symbols) and self.rank.z3.get_id() in self._symbols(term)

    @staticmethod
    def _numbers(terms: Iterable[Term]) -> set[int]:
        return {term.get_id() for term in terms if not isinstance(term, int)}

    def loops_in(self, term: z3.ExprRef | int | bool) -> set[int]:
        """Headers of the loops whose iterations a term depends on, such as a number that is loaded in each of them."""
        if isinstance(term, int):
            return set()
        symbols = list(self._symbols(term))
        counts = [count.get_id() for number in symbols for count in self.loaded.get(number, ())]
        return {self.loops[number] for number in (*symbols, *counts) if number in self.loops}

    def _symbols(self, term: z3.ExprRef) -> Iterator[int]:
        """Numbers of the symbols of a term; for quotients, those of the dividend."""
        pending, seen = [term], set[int]()
        while pending:
            for number in node_of(pending.pop()).symbols - seen:
                seen.add(number)
                if number in self.quotients:
                    pending += self.quotients[number]
                else:
                    yield number

    def proves(self, path: Iterable[Condition], goal: Condition, milliseconds: int = 5000) -> bool:
        """True if a goal holds wherever a path leads."""
        return self.solver.proves([*self.facts, *path], goal, milliseconds)

    def contradiction(self) -> bool:
        """True if the facts leave out some thread of every block: a proof from them would say nothing of it."""
        corners = [{axis: value.low for axis, value in self.thread.items()}, {axis: value.high for axis, value in self.thread.items()}]
        corners.append({axis: (value.low + value.high) // 2 for axis, value in self.thread.items()})
        for corner in corners:
            solver = z3.Solver()
            solver.add(*self.facts, *[as_term(self.thread[axis].term) == number for axis, number in corner.items()])
            self.solver.check_time()
            if limited_check(solver, 2000) == z3.unsat:
                return True
        return False

    def seen(self, value: Value, bits: int, signed: bool, path: Path) -> Value:
        """The number that an operation on a register of this type sees: the representative in the type's range."""
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        if value.constant is not None:
            return constant((value.constant - low) % (1 << bits) + low, value.base)
        if (low <= value.low and value.high <= high) or self.guessing or value.base:
            return value
        within = z3.And(value.z3 >= low, value.z3 <= high)
        if self.proves(path, within, LEMMA_MILLISECONDS):
            return Value(value.term, max(value.low, low), min(value.high, high), value.zeros, value.base)
        wraps = self.symbol("wraps")
        term = value.z3 - wraps.z3 * (1 << bits)
        self.wrapped[wraps.z3.get_id()] = (value.z3, low, bits)
        self.facts += [term >= low, term <= high]
        return Value(term, low, high, min(value.zeros, bits - 1), value.base)

    def guard(self, instruction: Instruction, state: State) -> Condition:
        """The condition under which an instruction is carried out."""
        assert instruction.guard is not None
        condition = self.condition(instruction.guard.name, state)
        return negation(condition) if instruction.guard_negated else condition

    def condition(self, name: str, state: State) -> Condition:
        """The content of a predicate register."""
        content = state.get(name)
        if not isinstance(content, bool | z3.BoolRef):
            content = state[name] = self.any_condition()
        return content

    def look_later(self) -> None:
        """Names the values that symbols of iterations have after the loops."""
        pairs = tuple((symbol, z3.Const(f"{symbol} later", symbol.sort())) for symbol in self.changing)
        facts = [fact for fact in self.facts if mentions(fact, self.changing)]
        self.private += [after for _, after in pairs]
        self.later = Later(pairs, tuple(z3.substitute(fact, *pairs) for fact in facts))

    def record(self, access: Access) -> None:
        """Notes an access, outside of guesses."""
        if not self.guessing:
            data = self.stored if access.kind == "store" else ()
            source = self.latest if access.group is not None else None
            self.latest = replace(access, iterations=tuple(self.iterations), data=data, source=source)
            self.lifted.accesses.append(self.latest)

    def unliftable(self, reason: str) -> Unliftable:
        """An error about the present instruction."""
        return Unliftable(self.here, reason)


def bits_of(kind: str) -> int:
    """Bits of a PTX type."""
    return 1 if kind == "pred" else 8 * TYPE_BYTES.get(kind, 4)
