"""Accesses of a lifted kernel on one problem, and those that the emulator traces: both as rows of numbers to compare."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import z3

from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.memory import GLOBAL_BASE, Access, Observer, Space, Spaces
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.proof.enumeration import NotEnumerable, Numbers, evaluate, operation
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.values import as_condition, as_term

Row = tuple[int, int, int, int, int]
"""Block, thread, offset in the array, bytes, barriers of the block passed."""
Site = tuple[int, str, str, str]
"""PTX line, kind, space, array."""
Rows = dict[Site, list[np.ndarray]]
MAX_ITERATIONS = 32
PIECES = (16, 8, 4, 2, 1)


class Unknown(Exception):
    """A lifted access depends on a register that was forgotten."""


class TooManyTurns(Exception):
    """A problem on which a loop takes more iterations than were looked at."""


class Trace(Observer):
    """Every access to the arrays and to shared memory of a launch."""

    def __init__(self, program: Program) -> None:
        self.rows: Rows = defaultdict(list)
        self._shared = sorted((placed.offset, name) for name, placed in program.symbols.items() if placed.variable.space == "shared")

    def wave_started(self, geometry: Geometry, spaces: Spaces) -> None:
        self._geometry, self._spaces = geometry, spaces
        self._barriers = np.zeros(geometry.lanes, np.int64)

    def blocks_replaced(self, places: np.ndarray) -> None:
        self._barriers[self._geometry.lanes_at(places)] = 0

    def block_barrier(self, instruction: Instruction, lanes: Lanes | None) -> None:
        if len(instruction.operands) == 1:  # a team's barriers have the number of its threads as well, and another counter
            self._barriers[slice(None) if lanes is None else lanes] += 1

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if space is self._spaces.global_:
            self._global(access.instruction, access.kind, access.width, lanes, addresses)
        elif space is self._spaces.shared and access.instruction.opcode != "cp":  # copies are seen when they are issued, not when they land
            self._in_shared(access.instruction, access.kind, access.width, lanes, addresses)

    def async_copy_issued(self, access: Access, lanes: Lanes | None, addresses: np.ndarray, origins: np.ndarray) -> None:
        self._in_shared(access.instruction, access.kind, access.width, lanes, addresses)

    def _global(self, instruction: Instruction, kind: str, width: int, lanes: Lanes | None, addresses: np.ndarray) -> None:
        offsets = addresses.astype(np.int64)
        for region in self._spaces.global_.regions:
            start, stop = region.start + GLOBAL_BASE, region.stop + GLOBAL_BASE
            inside = (offsets >= start) & (offsets < stop)
            if inside.any() and "param" not in region.name:
                self._add((instruction.line, kind, "global", region.name), inside, offsets - start, width, lanes)

    def _in_shared(self, instruction: Instruction, kind: str, width: int, lanes: Lanes | None, addresses: np.ndarray) -> None:
        offsets = addresses.astype(np.int64)
        for place, (start, name) in enumerate(self._shared):
            stop = self._shared[place + 1][0] if place + 1 < len(self._shared) else 1 << 40
            inside = (offsets >= start) & (offsets < stop)
            if inside.any():
                self._add((instruction.line, kind, "shared", name), inside, offsets - start, width, lanes)

    def _add(self, site: Site, inside: np.ndarray, offsets: np.ndarray, width: int, lanes: Lanes | None) -> None:
        geometry = self._geometry
        who = (np.arange(geometry.lanes) if lanes is None else lanes)[inside]
        blocks, threads = geometry.numbers[who // geometry.stride], who % geometry.stride
        self.rows[site].append(np.stack([blocks, threads, offsets[inside], np.full(len(who), width), self._barriers[who]], axis=1))


@dataclass(frozen=True)
class _Site:
    """An access whose terms are numbers in a list of terms."""

    site: Site
    path: tuple[int, ...]
    columns: tuple[int, int, int]
    """Offset, bytes, barriers passed."""
    iterations: tuple[int, ...]


class Formulas:
    """The accesses of a lifted kernel, with all their terms in an order in which each comes after those that it is made of."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self.terms: list[tuple[z3.ExprRef, tuple[int, ...]]] = []
        """Each with the places of its operands, or of its definition."""
        self._places: dict[int, int] = {}
        self.quotients = {quotient.z3.get_id() for quotient, _ in known.divided}
        self.accesses: list[_Site] = []
        self.unknown: set[Site] = set()
        for access in known.lifted.accesses:
            base = "" if access.address is None or access.address.base is None else access.address.base
            site = (access.instruction.line, access.kind, access.space, base)
            if access.space not in ("global", "shared", "generic"):
                continue
            if access.address is None or not base:
                self.unknown.add(site)
                continue
            path = tuple(self.place(as_condition(condition)) for condition in access.path)
            address, size, barriers = (self.place(term) for term in (access.address.z3, as_term(access.size), access.barriers[0].z3))
            self.accesses.append(
                _Site(site, path, (address, size, barriers), tuple(self.place(iteration) for iteration in access.iterations))
            )
        iterations = {iteration.get_id() for iteration in known.finished}
        self.iterations = [place for place, (term, _) in enumerate(self.terms) if term.get_id() in iterations]
        self.guards = [
            place
            for place, (term, parts) in enumerate(self.terms)
            if not parts and z3.is_bool(term) and term.decl().kind() == z3.Z3_OP_UNINTERPRETED and "any" not in str(term)
        ]
        """Comparisons of alpha and beta."""

    def place(self, term: z3.ExprRef) -> int:
        """The place of a term, which is added if it is new."""
        pending = [term]
        while pending:
            part = pending[-1]
            if part.get_id() in self._places:
                pending.pop()
                continue
            parts = [*part.children(), *self._definition(part.get_id())]
            missing = [each for each in parts if each.get_id() not in self._places]
            if missing:
                pending += missing
                continue
            self._places[part.get_id()] = len(self.terms)
            self.terms.append((part, tuple(self._places[each.get_id()] for each in parts)))
            pending.pop()
        return self._places[term.get_id()]

    def _definition(self, number: int) -> Sequence[z3.ExprRef]:
        known = self.known
        if number in known.wrapped:
            return known.wrapped[number][:1]
        return known.quotients.get(number) or known.taken.get(number) or ()


@dataclass
class Evaluation:
    """The terms of a kernel on one problem, for every thread of the grid and every iteration of every loop."""

    formulas: Formulas
    problem: Mapping[str, int]
    grid: tuple[int, int, int]
    most_iterations: int
    choice: Sequence[bool]

    def __post_init__(self) -> None:
        known = self.formulas.known
        self.threads = known.contract.launch.threads
        who = np.arange(self.grid[0] * self.grid[1] * self.grid[2] * self.threads)
        self.axes = {place: axis for axis, place in enumerate(self.formulas.iterations, start=1)}
        self.who = self._along(who, 0)
        given = {number: self._along(thread[who % self.threads], 0) for number, thread in known.all_threads().items()}
        block, (x, y, _) = who // self.threads, self.grid
        for axis, index in zip("xyz", (block % x, block // x % y, block // (x * y)), strict=True):
            given[known.block[axis].z3.get_id()] = self._along(index, 0)
        for name, symbol in known.contract.symbols.items():
            given[symbol.get_id()] = np.asarray(self.problem[name] // known.contract.step_of(name))
        guards = dict(zip(self.formulas.guards, self.choice, strict=True))
        self.values: list[Numbers | None] = []
        for place, (term, parts) in enumerate(self.formulas.terms):
            value: Numbers | None
            if place in self.axes:
                value = self._along(np.arange(self.most_iterations), self.axes[place])
            elif place in guards:
                value = np.asarray(int(guards[place]))
            elif term.get_id() in given and not z3.is_int_value(term):
                value = given[term.get_id()]
            else:
                found = [part for place_ in parts if (part := self.values[place_]) is not None]
                value = self._value(term, found) if len(found) == len(parts) else None
            self.values.append(value)

    def _along(self, numbers: np.ndarray, axis: int) -> Numbers:
        shape = [1] * (len(self.formulas.iterations) + 1)
        shape[axis] = len(numbers)
        return numbers.astype(np.int64).reshape(shape)

    def _value(self, term: z3.ExprRef, parts: list[Numbers]) -> Numbers | None:
        known, number = self.formulas.known, term.get_id()
        if number in known.quotients:
            a, b = parts
            divisor = np.maximum(b, 1)
            quotient = np.where(a >= 0, a // divisor, -(-a // divisor))
            return np.asarray(quotient if number in self.formulas.quotients else a - quotient * divisor)
        if number in known.wrapped:
            _, low, bits = known.wrapped[number]
            return np.asarray((parts[0] - low) >> bits)
        if number in known.taken:
            iterations, holds = parts
            axis = iterations.shape.index(self.most_iterations, 1)
            before = np.cumsum(np.broadcast_to(holds != 0, np.broadcast_shapes(holds.shape, iterations.shape)), axis=axis)
            before = np.roll(before, 1, axis=axis)
            np.moveaxis(before, axis, 0)[0] = 0
            return np.asarray(before)
        try:
            return evaluate(term, {}) if z3.is_int_value(term) else operation(term.decl().kind(), parts)
        except NotEnumerable:
            return None

    def rows(self) -> tuple[Rows, set[Site]]:
        """The accesses, and the sites that depend on forgotten registers."""
        found: Rows = defaultdict(list)
        unknown = set(self.formulas.unknown)
        for access in self.formulas.accesses:
            rows = self._rows(access)
            if rows is None:
                unknown.add(access.site)
            else:
                found[access.site].append(rows)
        return found, unknown

    def _rows(self, access: _Site) -> np.ndarray | None:
        carried: Numbers = np.asarray(True)
        for condition in access.path:
            holds = self.values[condition]
            if holds is None:
                return None
            carried = np.logical_and(carried, holds)
        columns = [value for place in (*access.columns, *access.iterations) if (value := self.values[place]) is not None]
        if len(columns) < len(access.columns) + len(access.iterations):
            return None
        shape = np.broadcast_shapes(*[column.shape for column in (carried, *columns, self.who)])
        chosen = np.broadcast_to(carried, shape)
        who, *others = (np.broadcast_to(column, shape)[chosen] for column in (self.who, *columns))
        if any((iteration == self.most_iterations - 1).any() for iteration in others[len(access.columns) :]):
            raise TooManyTurns
        rows = np.stack([who // self.threads, who % self.threads, *others], axis=1)
        return distinct(rows)[:, :5]  # a loop that was passed by has any number of iterations


def distinct(rows: np.ndarray) -> np.ndarray:
    """Each row once, in order."""
    ordered = rows[np.lexsort(rows.T[::-1])]
    return ordered[np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])] if len(rows) else rows


def disagreement(launches: Sequence[tuple[Formulas, tuple[int, int, int]]], problem: Mapping[str, int], traced: Rows) -> str:
    """The first access of the launches of one entry that is lifted and not traced, or traced and not lifted; empty if there is none.

    Raises ``TooManyTurns`` for a problem with more than ``MAX_ITERATIONS``, ``Unknown`` if more sites are unknown than known.
    """
    first = ""
    function = launches[0][0].known.function
    for choice in itertools.product((False, True), repeat=len(launches[0][0].guards)):
        lifted: Rows = defaultdict(list)
        unknown: set[Site] = set()
        for formulas, grid in launches:
            found, forgotten = _rows(formulas, problem, grid, choice)
            unknown |= forgotten
            for site, rows in found.items():
                lifted[site] += rows
        if len(unknown) > len(lifted):
            raise Unknown
        lines = {instruction.line for instruction in function.body} - {site[0] for site in unknown}
        mine, theirs = (normal({site: rows for site, rows in each.items() if site[0] in lines}) for each in (lifted, traced))
        difference = _difference(mine, theirs)
        if not difference:
            return ""
        first = first or difference
    return first


def _rows(formulas: Formulas, problem: Mapping[str, int], grid: tuple[int, int, int], choice: Sequence[bool]) -> tuple[Rows, set[Site]]:
    iterations = 4
    while True:
        try:
            return Evaluation(formulas, problem, grid, iterations, choice).rows()
        except TooManyTurns:
            if iterations >= MAX_ITERATIONS:
                raise
            iterations *= 2


def normal(rows: Rows) -> dict[Site, np.ndarray]:
    """All accesses of a site in one order, those of odd sizes in pieces of powers of two."""
    found: dict[Site, np.ndarray] = {}
    for (line, kind, space, array), parts in rows.items():
        every = np.concatenate(parts) if parts else np.zeros((0, 5), np.int64)
        pieces = []
        for piece in PIECES:
            chosen = every[(every[:, 3] & piece) > 0]
            moved = chosen.copy()
            moved[:, 2] += chosen[:, 3] // (2 * piece) * (2 * piece)
            moved[:, 3] = piece
            pieces.append(moved)
        every = np.concatenate(pieces)
        if len(every):
            site = (line, kind, space, array)
            found[site] = every[np.lexsort(every.T[::-1])]
    return found


def _difference(lifted: dict[Site, np.ndarray], traced: dict[Site, np.ndarray]) -> str:
    """The first access that one has and the other has not; empty if there is none."""
    for site in sorted({*lifted, *traced}):
        mine, theirs = (rows.get(site, np.zeros((0, 5), np.int64)) for rows in (lifted, traced))
        if mine.shape != theirs.shape or (mine != theirs).any():
            only = {tuple(row) for row in mine.tolist()} ^ {tuple(row) for row in theirs.tolist()}
            return f"{site}: {len(mine)} lifted, {len(theirs)} traced; e.g. {sorted(only)[:3]}"
    return ""
