"""Shared memory: the store that a load reads from, for all threads, blocks and iterations of loops.

An index or an address is a form: a sum that all threads of a block share, and a number for each thread, which is a table. The bytes of a
load come from the store that is found by its address. The lemma: its thread carries that store out, a barrier orders it before the
load, and no other store to these bytes lies between. Races are excluded before, so that the order by barriers is the order of all
accesses to a byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import z3

from gemmgen.proof.data import Access, Recurrence
from gemmgen.proof.enumeration import NotEnumerable, Numbers, evaluate, total
from gemmgen.proof.knowledge import Path
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import OtherThread, final_waits, landings
from gemmgen.proof.polynomials import Monomial
from gemmgen.proof.terms import mentions, node_of, term_of
from gemmgen.proof.values import Condition, as_condition, conjuncts

MAX_SPLITS = 2
"""Conditions that distinguish problems."""
FARTHEST = 9
"""Iterations between a store to shared memory and the load of that data."""
BETWEEN = "another store may come between a store and the load of that data"
FAR_APART = 512
"""Bytes between the parts of shared memory that stores are looked at by, such as the tiles of A and B."""
LARGE = 1 << 16
MAX_PARTS = 64
"""Units of one store, at most."""


class NotShown(Exception):
    """A step that is not proved; the text says which."""


@dataclass(frozen=True, eq=False)
class Form:
    """An index, or an address: ``outer`` + ``table``[thread]."""

    outer: Mapping[Monomial, int]
    """The part that the threads of a block share, without its constant."""
    table: Numbers

    def taken(self, threads: Numbers) -> Form:
        """The index that other threads have, by thread."""
        return Form(self.outer, self.table[threads])

    def plus(self, number: int | Numbers) -> Form:
        """The index with a number added."""
        return Form(self.outer, self.table + number)


@dataclass(frozen=True, eq=False)
class Site:
    """One store to shared memory."""

    access: Access
    address: Form
    iteration: z3.ArithRef | None
    bytes: int


@dataclass(frozen=True, eq=False)
class Stores:
    """The stores of one interval between barriers whose addresses have one common part, by byte."""

    base: str
    sites: Sequence[Site]
    iteration: z3.ArithRef | None
    barriers: z3.ArithRef
    outer: Mapping[Monomial, int]
    addresses: Numbers
    """Address of each element, ascending."""
    site: Numbers
    part: Numbers
    """The element's place in its store."""
    thread: Numbers


@dataclass(frozen=True, eq=False)
class Case:
    """The stores that a load reads from: those of ``shift`` iterations later, or at one iteration those before the loop."""

    stores: Stores
    shift: int
    at: int | None
    """The only iteration of the case; None for all iterations from ``-shift`` on."""
    delta: int
    """Difference between the table of a load and the addresses of the stores."""


class Provenance:
    """The stores to shared memory of one kernel, and the forms of its indices and addresses."""

    def __init__(self, lifter: Lifter, unit: int, assumed: Sequence[tuple[z3.BoolRef, bool]] = (), partial: bool = False) -> None:
        """``unit``: bytes that all accesses to shared memory are multiples of. ``assumed``: conditions on the problem, and whether they
        hold. ``partial``: True if stores whose form is not known may be left out, where it matters only that some store comes first.
        """
        self._assumed = [(condition, z3.BoolVal(holds)) for condition, holds in assumed]
        self._premised = [condition if holds else z3.Not(condition) for condition, holds in assumed]
        self._lifter, self._known, self.unit, self._partial = lifter, lifter.known, unit, partial
        self._threads = self._known.contract.launch.threads
        self._symbols = self._known.all_threads()
        self._evaluated: dict[int, Numbers] = {}
        self._answers: dict[tuple[object, ...], bool] = {}
        self.kept: list[object] = []
        self._known_of: dict[int, z3.ArithRef] = {}
        self._forms: dict[tuple[object, ...], Form] = {}
        self._moved: dict[tuple[object, ...], Form] = {}
        """Forms with another iteration, without a table."""
        self._possible: set[tuple[int, frozenset[int]]] = set()
        self._ordered: dict[tuple[object, ...], bool] = {}
        self._carried_out: set[tuple[object, ...]] = set()
        self._alone: set[tuple[object, ...]] = set()
        self._after: dict[tuple[int, ...], bool] = {}
        self._outer_terms: dict[tuple[tuple[Monomial, int], ...], z3.ArithRef] = {}
        self._premises: dict[tuple[object, ...], Path] = {}
        self._keys: dict[int, tuple[Path, tuple[int, ...]]] = {}
        self._places: dict[tuple[object, ...], bool] = {}
        self._distances: dict[tuple[object, ...], int | None] = {}
        self._loops_of: dict[int, z3.ArithRef | None] = {}
        self._stores: dict[str, list[Stores]] = {}
        self._cases: dict[tuple[object, ...], list[Case]] = {}
        self._failures: dict[tuple[object, ...], str] = {}
        self._dependent: dict[int, bool] = {}
        self._of_iterations = [symbol for symbol in self._known.changing if symbol.get_id() in self._known.quotients]
        """Quotients in loops: another iteration in place of theirs would leave them as they are."""
        self._own_iterations = [iteration for iteration in self._known.finished if not self._is_uniform(iteration)]
        self._other: OtherThread | None = None
        self._order: dict[int, int] = {}
        self._passed: dict[int, z3.ArithRef] = {}
        """Counts of barriers, kept so that their numbers are not given to others."""

    def form(self, term: z3.ArithRef, path: Path = ()) -> Form:
        key = (term.get_id(), *self.key(path))
        if key not in self._forms:
            self.kept.append((term, path))
            self._forms[key] = self._uncached_form(self.known_of(term), path)
        return self._forms[key]

    def _uncached_form(self, term: z3.ArithRef, path: Path) -> Form:
        known = self._known
        for number in node_of(term).symbols & known.taken.keys():
            iteration, symbol = known.taken[number][0], term_of(number)
            if not self.proves(path, symbol == iteration):
                raise NotShown("how often a pointer was moved is not known")
            term = z3.substitute(term, (symbol, iteration))
        if mentions(term, self._of_iterations):
            raise NotShown("an index that is divided by a number that is not known, in a loop")
        outer: dict[Monomial, int] = {}
        own: list[tuple[int, list[Numbers]]] = []
        for monomial, number in known.polynomials.of(term).items():
            factors = [known.polynomials.term(factor) for factor in monomial]
            if factors and not any(self.depends(factor) for factor in factors):
                outer[monomial] = number
            else:
                own.append((number, [evaluate(factor, self._symbols, self._evaluated) for factor in factors]))
        return Form(outer, total(own, self._threads))

    def depends(self, term: z3.ExprRef | bool) -> bool:
        """True unless all threads of a block have the same value for a term."""
        if isinstance(term, bool):
            return False
        number = term.get_id()
        if number not in self._dependent:
            self.kept.append(term)
            own = mentions(term, self._own_iterations) or mentions(term, self._of_iterations)
            self._dependent[number] = own or self._known.depends_on_thread(term)
        return self._dependent[number]

    def _is_uniform(self, iteration: z3.ArithRef) -> bool:
        """True if all threads of a block leave a loop in the same iteration."""
        known, lifter = self._known, self._lifter

        def agree(condition: Condition) -> bool:
            return isinstance(condition, bool) or not known.depends_on_thread(condition)

        loop = known.recurrences.get(iteration.get_id())
        return loop is not None and all(lifter.agreed(*each, agree) for each in lifter.conditions(lifter.ways_out(loop.header)))

    def loop(self, iteration: z3.ArithRef) -> Recurrence:
        """The loop of an iteration, which must lie in no other."""
        loop = self._known.recurrences[iteration.get_id()]
        if loop.outer:
            raise NotShown("a loop within another")
        return loop

    def known_of(self, term: z3.ArithRef) -> z3.ArithRef:
        """A term without the choices that the assumed kind of problem decides."""
        if not self._assumed:
            return term
        key = term.get_id()
        if key not in self._known_of:
            substituted = z3.substitute(term, *self._assumed)
            self.kept.append(term)
            self._known_of[key] = term if substituted.eq(term) else z3.simplify(substituted)
        return self._known_of[key]

    def barriers(self, access: Access) -> z3.ArithRef:
        """Barriers that a thread has passed before an access."""
        count = self.known_of(access.barriers[0].z3)
        self._passed[count.get_id()] = count
        return count

    def outer_term(self, outer: Mapping[Monomial, int]) -> z3.ArithRef:
        key = tuple(sorted(outer.items()))
        if key not in self._outer_terms:
            self._outer_terms[key] = self._sum(key)
        return self._outer_terms[key]

    def _sum(self, outer: Sequence[tuple[Monomial, int]]) -> z3.ArithRef:
        total: z3.ArithRef = z3.IntVal(0)
        for monomial, number in outer:
            part: z3.ArithRef = z3.IntVal(number)
            for factor in monomial:
                part = part * self._known.polynomials.term(factor)
            total = total + part
        return total

    def moved(self, form: Form, iteration: z3.ArithRef, into: z3.ArithRef) -> Form:
        """A form with another iteration in place of one, the only one that it depends on."""
        key = (iteration.get_id(), into.get_id(), *sorted(form.outer.items()))
        if key not in self._moved:
            if mentions(self.outer_term(form.outer), [each for each in self._known.finished if not each.eq(iteration)]):
                raise NotShown("an index that depends on two loops")
            term = z3.simplify(z3.substitute(self.outer_term(form.outer), (iteration, into)))
            self.kept.append((into, term))
            outer = dict(self._known.polynomials.of(term))
            self._moved[key] = Form(outer, total([(outer.pop((), 0), ())], 1))
        moved = self._moved[key]
        return Form(moved.outer, form.table + moved.table)

    def same(self, one: Form, two: Form, path: Path) -> bool:
        """True if two indices are equal for every thread."""
        difference = one.table - two.table
        if difference.size and (difference != difference[0]).any():
            return False
        offset = int(difference[0]) if difference.size else 0
        if one.outer == two.outer:
            return offset == 0
        return self.proves(path, self.outer_term(one.outer) + offset == self.outer_term(two.outer))

    def proves(self, path: Sequence[Condition], goal: Condition) -> bool:
        if isinstance(goal, bool):
            return goal
        key = (goal.get_id(), *path_key(path))
        if key not in self._answers:
            self.kept.append((goal, tuple(path)))
            self._answers[key] = self._known.proves([*self._premised, *path], goal, 2000)
        return self._answers[key]

    def excluded(self, path: Path, condition: z3.BoolRef) -> bool:
        """True if a condition contradicts a path. Paths that say the same of its symbols get the same answer, if that is False."""
        wanted = node_of(condition)
        nodes = [node_of(each) for each in path if not isinstance(each, bool)]
        reach = wanted.symbols.union(*[each.symbols for each in nodes if each.symbols & wanted.symbols])
        key = (wanted.number, frozenset(each.number for each in nodes if each.symbols <= reach))
        if key in self._possible:
            return False
        goal = z3.Not(condition)
        known = (goal.get_id(), *path_key(path))
        if known not in self._answers:
            # Other paths differ in guards of rows and columns: a counterexample of large extents fulfils those of most of them.
            wide = [symbol >= LARGE for symbol in self._known.contract.symbols.values() if symbol.get_id() not in wanted.symbols]
            self.kept.append((goal, path))
            self._answers[known] = self._known.solver.proves([*self._known.facts, *self._premised, *path], goal, 2000, wide)
        if self._answers[known]:
            return True
        self._possible.add(key)
        return False

    def impossible(self, path: Path) -> bool:
        goal = z3.BoolVal(False)
        return self.proves(path, goal)

    # Elements ------------------------------------------------------------------------------------------------------------------

    def all_stores(self, base: str) -> list[Stores]:
        if base not in self._stores:
            self._stores[base] = list(self._grouped(base))
        return self._stores[base]

    def _grouped(self, base: str) -> Iterator[Stores]:
        groups: dict[tuple[object, ...], list[Site]] = {}
        for access in self._known.lifted.accesses:
            if access.space not in ("shared", "generic") or not access.writes:
                continue
            if access.address is None or access.address.base is None or not isinstance(access.size, int):
                if self._partial:
                    continue
                raise NotShown("a store to shared memory at an unknown address")
            if access.address.base != base:
                continue
            if len(access.iterations) > 1 or access.kind == "atomic" or access.size % self.unit or access.size >= MAX_PARTS * self.unit:
                if self._partial:
                    continue
                raise NotShown("stores to shared memory in nested loops, atomic ones and those of parts of elements")
            iteration = access.iterations[0] if access.iterations else None
            try:
                address = self.form(access.address.z3, access.path)
            except (NotShown, NotEnumerable):
                if self._partial:
                    continue
                raise
            barriers = self.barriers(access)
            copies = None if access.group is None else access.group.key
            key = (None if iteration is None else iteration.get_id(), barriers.get_id(), copies, *sorted(address.outer.items()))
            groups.setdefault(key, []).append(Site(access, address, iteration, access.size))
        for sites in groups.values():
            addresses, numbers, parts, threads = [], [], [], []
            for number, site in enumerate(sites):
                writes = self.possible(site.access)
                for part in range(site.bytes // self.unit):
                    addresses.append(site.address.table[writes] + part * self.unit)
                    numbers.append(np.full(len(writes), number))
                    parts.append(np.full(len(writes), part))
                    threads.append(writes)
            together = np.concatenate(addresses)
            order = np.argsort(together, kind="stable")
            sorted_ = together[order]
            alone = np.ones(len(sorted_), dtype=bool)
            alone[1:] = sorted_[1:] - sorted_[:-1] >= self.unit
            if self._partial:
                order, sorted_ = order[alone], sorted_[alone]
            elif not alone.all():
                raise NotShown("two stores to one place in shared memory between the same barriers")
            first = sites[0]
            yield Stores(
                base,
                sites,
                first.iteration,
                self.barriers(first.access),
                first.address.outer,
                sorted_,
                np.concatenate(numbers)[order],
                np.concatenate(parts)[order],
                np.concatenate(threads)[order],
            )

    def possible(self, access: Access) -> Numbers:
        """The threads that conditions on the thread alone do not keep from an access."""
        allowed = np.ones(self._threads, dtype=bool)
        for condition in conjuncts(access.path):
            if not isinstance(condition, bool):
                try:
                    allowed &= np.broadcast_to(evaluate(condition, self._symbols, self._evaluated) != 0, self._threads)
                except NotEnumerable:
                    continue
        return np.nonzero(allowed)[0]

    def carried_out(self, access: Access, site: Site, case: Case, threads: Numbers) -> None:
        """The store of each of some threads is carried out, wherever the load is."""
        if self._after_its_loop(access, site):
            raise NotShown("a store that may come after the loop of its load")
        premises = self.premises(access, case)
        by_all = (id(site), case.shift, case.at, *self.key(premises))
        key = (threads.tobytes(), *by_all)
        if by_all not in self._carried_out and key not in self._carried_out:
            for_all = self._shown_carried_out(site, case, threads, premises)
            self.kept.append((site, premises))
            self._carried_out.add(by_all if for_all else key)

    def _shown_carried_out(self, site: Site, case: Case, threads: Numbers, premises: Path) -> bool:
        """True if the store of every thread is carried out, not only that of these."""
        store, for_all = site.access, True
        guards = None if site.iteration is not None else self._lifter.guards(store.block, store.path)  # ways out of loops say nothing
        conditions: list[Condition] = list(store.path if guards is None else guards)
        if site.iteration is not None:
            loop = self.loop(site.iteration)
            length = len(loop.prefix)
            if len(store.path) < length or any(mine is not theirs for mine, theirs in zip(store.path, loop.prefix, strict=False)):
                raise NotShown("a store whose path through its loop is not known")
            conditions = [*loop.entry, *store.path[length:]]
        for condition in conditions:
            if isinstance(condition, bool):
                if not condition:
                    raise NotShown("a store that is never carried out")
                continue
            if self.depends(condition):
                try:
                    values = np.broadcast_to(evaluate(condition, self._symbols, self._evaluated), self._threads)
                except NotEnumerable:
                    values = np.zeros(self._threads, dtype=np.int64)
                if not values[threads].all():
                    self._all_threads_come(condition, site, case, premises)
                elif not values.all():
                    for_all = False
                continue
            wanted = condition
            if site.iteration is not None:
                wanted = z3.substitute(condition, (site.iteration, self.iteration_of(site.iteration, case)))
            if not self.proves(premises, wanted):
                raise NotShown("a store that is not carried out in every iteration")
        return for_all

    def _all_threads_come(self, condition: z3.BoolRef, site: Site, case: Case, premises: Path) -> None:
        """A condition of a store holds for any thread."""
        self._other = self._other or OtherThread(self._known, same_block=True)
        theirs = self._other.term(condition)
        if site.iteration is not None:
            theirs = z3.substitute(theirs, (self._other.term(site.iteration), self.iteration_of(site.iteration, case)))
        if not isinstance(theirs, z3.BoolRef) or not self.proves((*premises, *self._other.facts), theirs):
            raise NotShown("a store that some threads may leave out")

    def iteration_of(self, iteration: z3.ArithRef, case: Case) -> z3.ArithRef:
        return iteration + case.shift if case.at is None else z3.IntVal(case.at + case.shift)

    def premises(self, access: Access, case: Case) -> Path:
        key = (id(access), case.shift, case.at)
        if key not in self._premises:
            self.kept.append(access)
            self._premises[key] = self._uncached_premises(access, case)
        return self._premises[key]

    def key(self, path: Path) -> tuple[int, ...]:
        """Numbers of the conditions of a path that is asked about often."""
        if id(path) not in self._keys:
            self._keys[id(path)] = path, path_key(path)
        return self._keys[id(path)][1]

    def _uncached_premises(self, access: Access, case: Case) -> Path:
        loops = self.loop_of(access)
        if loops is None:
            return access.path
        if case.at is not None:
            return (*access.path, loops == case.at)
        return (*access.path, loops + case.shift >= 0)

    def loop_of(self, access: Access) -> z3.ArithRef | None:
        """The iteration of the loop that a load is in, or that it comes after; None for loads before all loops."""
        if id(access) not in self._loops_of:
            self._loops_of[id(access)] = self._uncached_loop(access)
            self.kept.append(access)
        return self._loops_of[id(access)]

    def _uncached_loop(self, access: Access) -> z3.ArithRef | None:
        if access.iterations:
            if len(access.iterations) > 1:
                raise NotShown("a load in nested loops")
            return access.iterations[0]
        base = access.base
        iterations = [store.iteration for store in self.all_stores(base or "") if store.iteration is not None]
        order = self._lifter.flow.order
        for iteration in iterations:  # the loop was entered, and comes before
            loop = self.loop(iteration)
            entered = z3.And(*[as_condition(condition) for condition in loop.entry]) if loop.entry else z3.BoolVal(True)
            if order[loop.header] < order[access.block] and not self.depends(entered) and self.proves(access.path, entered):
                return iteration
        return None

    def sources(self, access: Access, address: Form) -> list[Case]:
        """The stores that a load reads from, in every iteration. Raises ``NotShown``."""
        assert access.address is not None and access.address.base is not None
        key = (
            access.address.base,
            *sorted(address.outer.items()),
            *self._when(access),
            *self.key(access.path),
        )
        self._search(key, access, address, None)
        if self._failures.get(key) == BETWEEN:  # of all that these stores wrote, a load reads a part
            own = int(address.table.min()), int(address.table.max()) + self.unit
            key = (*key, *own)
            self._search(key, access, address, own)
        if key in self._failures:
            raise NotShown(self._failures[key])
        return self._cases[key]

    def _search(self, key: tuple[object, ...], access: Access, address: Form, span: tuple[int, int] | None) -> None:
        if key in self._failures or key in self._cases:
            return
        try:
            self._cases[key] = self._searched(access, address, span)
        except NotShown as error:
            self._failures[key] = str(error)

    def _searched(self, access: Access, address: Form, span: tuple[int, int] | None) -> list[Case]:
        assert access.address is not None and access.address.base is not None
        groups = self.all_stores(access.address.base)[::-1]  # a load reads the last one before it
        iteration = self.loop_of(access)
        load_barriers = self.barriers(access)
        if self.depends(load_barriers):
            raise NotShown("threads differ in the barriers they passed")
        cases: list[Case] = []
        if iteration is None:
            for group in groups:
                if group.iteration is None and (case := self._fixed(access, address, group, None)) is not None:
                    self._nothing_between(access, address, case, groups, span)
                    return [case]
            raise NotShown("no store before a load was found")
        for shift in range(0, -FARTHEST, -1):
            for group in groups:
                if group.iteration is None or not group.iteration.eq(iteration):
                    continue
                case = Case(group, shift, None, 0)
                if self._matches(access, address, case):
                    self._nothing_between(access, address, case, groups, span)
                    cases.append(case)
                    break
            if cases:
                break
        if not cases:
            raise NotShown("no store was found that a load in a loop reads from")
        for at in range(-cases[0].shift):
            if self.impossible((*access.path, iteration == at)):
                continue
            for group in groups:
                fixed = None if group.iteration is not None else self._fixed(access, address, group, at)
                if fixed is not None:
                    self._nothing_between(access, address, fixed, groups, span)
                    cases.append(fixed)
                    break
            else:
                raise NotShown("no store was found that a load in the first iterations reads from")
        return cases

    def written(self, address: Form, case: Case) -> tuple[Numbers, Numbers, Numbers]:
        """The store, the unit within it and its thread that each thread's load reads. Raises ``NotShown``."""
        stores, wanted = case.stores, address.table + case.delta
        places = np.searchsorted(stores.addresses, wanted)
        places = np.minimum(places, len(stores.addresses) - 1)
        if (stores.addresses[places] != wanted).any():
            raise NotShown("a load of bytes that no store of its interval wrote")
        return stores.site[places], stores.part[places], stores.thread[places]

    def _overlaps(self, address: Form, group: Stores, delta: int) -> bool:
        wanted = address.table + delta
        if not len(group.addresses):
            return False
        places = np.minimum(np.searchsorted(group.addresses, wanted), len(group.addresses) - 1)
        return bool((group.addresses[places] == wanted).all())

    def _matches(self, access: Access, address: Form, case: Case) -> bool:
        """True if the stores of a loop, some iterations earlier, are those at a load's address, and before it."""
        if not self._overlaps(address, case.stores, 0) or not self.same_place(access, address, case):
            return False
        return self._before(access, case, self.premises(access, case))

    def same_place(self, access: Access, address: Form, case: Case) -> bool:
        """True if the part of an address that the threads share is, in every iteration, that of a loop's stores some iterations earlier."""
        key = (tuple(sorted(address.outer.items())), id(case.stores), case.shift, case.at, *self.key(self.premises(access, case)))
        if key not in self._places:
            self.kept.append(case.stores)
            self._places[key] = self._is_same_place(access, address, case)
        return self._places[key]

    def _is_same_place(self, access: Access, address: Form, case: Case) -> bool:
        group = case.stores
        if group.iteration is None:
            return False
        moved = self.iteration_of(group.iteration, case)
        there = z3.substitute(self.outer_term(group.outer), (group.iteration, moved))
        if not self._quickly_equal(there, self.outer_term(address.outer), group.iteration):
            return False
        return self.proves(self.premises(access, case), there == self.outer_term(address.outer))

    def _quickly_equal(self, one: z3.ArithRef, two: z3.ArithRef, iteration: z3.ArithRef) -> bool:
        """False if two terms differ at some iterations."""
        for at in (20, 21, 25):
            difference = z3.simplify(z3.substitute(one - two, (iteration, z3.IntVal(at))))
            if z3.is_int_value(difference) and difference.as_long():
                return False
        return True

    def _fixed(self, access: Access, address: Form, group: Stores, at: int | None) -> Case | None:
        """The case of stores outside of loops, for a load outside of them or in one iteration."""
        delta = self.distance(access, address, group, at)
        if delta is None:
            return None
        case = Case(group, 0, at, delta)
        if not self._overlaps(address, group, delta) or not self._before(access, case, self.premises(access, case)):
            return None
        return case

    def distance(self, access: Access, address: Form, group: Stores, at: int | None) -> int | None:
        """Bytes between the shared part of a load's address, in one iteration or in all, and of stores outside of loops."""
        iteration = self.loop_of(access)
        key = (
            tuple(sorted(address.outer.items())),
            tuple(sorted(group.outer.items())),
            at,
            None if iteration is None else iteration.get_id(),
        )
        if key not in self._distances:
            self._distances[key] = self._uncached_distance(address, group, at, iteration)
        return self._distances[key]

    def _uncached_distance(self, address: Form, group: Stores, at: int | None, iteration: z3.ArithRef | None) -> int | None:
        outer = self.outer_term(address.outer)
        if at is not None and iteration is not None:
            outer = z3.substitute(outer, (iteration, z3.IntVal(at)))
        distance = z3.simplify(outer - self.outer_term(group.outer), som=True)
        return int(distance.as_long()) if z3.is_int_value(distance) else None

    def _before(self, access: Access, case: Case, premises: Path) -> bool:
        """True if a barrier of the block orders the stores and copies before a load."""
        sites, iterations = case.stores.sites, [iteration.get_id() for iteration in access.iterations]
        key = (id(case.stores), case.shift, case.at, self.barriers(access).get_id(), *iterations, 0, *self.key(premises))
        if key not in self._ordered:
            # All of these stores passed as many barriers, and copies are of one group.
            early = not any(self._after_its_loop(access, site) for site in sites)
            self._ordered[key] = early and self.ordered(access, sites[0], case, premises)
            self.kept.append(premises)
        return self._ordered[key]

    def ordered(self, access: Access, site: Site, case: Case, premises: Path, level: int = 0) -> bool:
        """True if a barrier of a level orders a store, or the arrival of a copy, before a load of threads that share that barrier."""
        store, load = site.access, self.known_of(access.barriers[level].z3)
        if case.at is not None and (iteration := self.loop_of(access)) is not None:
            load = z3.substitute(load, (iteration, z3.IntVal(case.at)))

        def then(term: z3.ExprRef) -> z3.ExprRef:
            return term if site.iteration is None else z3.substitute(term, (site.iteration, self.iteration_of(site.iteration, case)))

        passed = self.known_of(store.barriers[level].z3)
        if self.depends(passed) or self.depends(load) or self._after_its_loop(access, site):
            return False
        if store.group is None:
            return self.proves(premises, then(passed) < load)
        for landing in landings(self._known, store, level):
            reached, barriers = then(landing.reached), then(landing.barriers)
            if not self.depends(reached) and not self.depends(barriers) and self.proves(premises, z3.And(reached, barriers < load)):
                return True
        if access.iterations:
            return False
        for wait, guards in final_waits(self._known):  # of a load after loops, all iterations are the last ones as well
            closed = self.known_of(then(store.group.z3) + (wait.pending + 1)) <= self.known_of(wait.groups.z3)
            passed = self.known_of(wait.barriers[level].z3)
            if not any(self.depends(term) for term in (guards, closed, passed)) and self.proves(
                premises, z3.And(guards, closed, passed < load)
            ):
                return True
        return False

    def _after_its_loop(self, access: Access, site: Site) -> bool:
        """True if a store seems to come after the loop that a load is in: there, the iteration's symbol stands for the last iteration."""
        if site.iteration is not None or not access.iterations:
            return False
        key = (id(site), *[iteration.get_id() for iteration in access.iterations])
        if key not in self._after:
            terms = (*site.access.path, *[value.z3 for value in site.access.barriers])
            self._after[key] = any(mentions(term, access.iterations) for term in terms)
            self.kept.append((site, access))
        return self._after[key]

    def _nothing_between(self, access: Access, address: Form, case: Case, groups: Sequence[Stores], span: tuple[int, int] | None) -> None:
        """No other store to a load's bytes is carried out after those that it reads, and before it.

        ``span``: the first byte of all threads' loads and the one after the last, by the tables of their addresses: the parts of the stores
        that these lie in are looked at; all of them if it is None.
        """
        known, load = self._known, self.barriers(access)
        premises = self.premises(access, case)
        chosen, iteration = case.stores, self.loop_of(access)
        parts = [(start - case.delta, end - case.delta) for start, end in _spans(chosen.addresses, self.unit, FAR_APART if span else None)]
        parts = [(start, end) for start, end in parts if span is None or (start < span[1] and span[0] < end)]
        low, high = min(start for start, _ in parts), max(end for _, end in parts)
        outer = self.outer_term(address.outer)
        key = (id(chosen), case.shift, case.at, outer.get_id(), low, high, span is None, *self._when(access), *self.key(premises))
        if key in self._alone:
            return
        self.kept.append((chosen, outer, premises))
        if case.at is not None and iteration is not None:
            load, outer = (z3.substitute(term, (iteration, z3.IntVal(case.at))) for term in (load, outer))
        mine = chosen.barriers
        if chosen.iteration is not None:
            mine = z3.substitute(mine, (chosen.iteration, self.iteration_of(chosen.iteration, case)))
        self._other = self._other or OtherThread(known, same_block=True)
        other = self._other
        for group in groups:
            if not len(group.addresses):
                continue
            theirs = other.term(self.outer_term(group.outer))
            spans = _spans(group.addresses, self.unit, FAR_APART if span is not None else None)
            overlap = z3.Or(*[z3.And(outer + low < theirs + end, theirs + start < outer + high) for start, end in spans])
            when = other.term(group.barriers)
            same: Condition = group is chosen
            if group is chosen and chosen.iteration is not None:
                same = other.term(chosen.iteration) == self.iteration_of(chosen.iteration, case)
            path = tuple(other.conditions(_common([site.access.path for site in group.sites])))
            extra = (
                *premises,
                *other.facts,
                *path,
                overlap,
                z3.Or(when < load, z3.And(when == load, self._just_before(access, case, group))),
            )
            if not self.proves(extra, z3.Or(when < mine, as_condition(same))):
                raise NotShown(BETWEEN)
        self._alone.add(key)

    def _just_before(self, access: Access, case: Case, group: Stores) -> z3.BoolRef:
        """Some store of a group may come before a load between the same barriers of the block.

        It is one of the loading thread itself, earlier on its way, or one that a barrier of their team or warp orders before the load. All
        others would be races.
        """
        assert self._other is not None
        other, known, iteration = self._other, self._known, self.loop_of(access)

        def there(term: z3.ExprRef) -> z3.ExprRef:
            return term if case.at is None or iteration is None else z3.substitute(term, (iteration, z3.IntVal(case.at)))

        earlier: list[Condition] = []
        for site in group.sites:
            follows = self._place(site.access) > self._place(access)
            if site.iteration is not None and access.iterations and site.iteration.eq(access.iterations[0]):
                theirs, mine = other.term(site.iteration), there(site.iteration)
                earlier.append(theirs < mine if follows else theirs <= mine)
            else:
                earlier.append(not follows)
        own = [value.term == other.term(value.term) for value in known.thread.values() if not isinstance(value.term, int)]
        ways = [z3.And(*own, z3.Or(*map(as_condition, earlier)))]
        for level, members in enumerate(self._lifter.members, start=1):
            if members is not None:
                load = there(self.known_of(access.barriers[level].z3))
                counts = [other.term(self.known_of(site.access.barriers[level].z3)) for site in group.sites]
                ways.append(z3.And(members == other.term(members), z3.Or(*[count < load for count in counts])))
        return z3.Or(*ways)

    def _when(self, access: Access) -> tuple[int, ...]:
        """When an access takes place, beside its path: barriers passed, iterations, and the stores to its array that come before it."""
        place = self._place(access)
        before = sum(self._place(site.access) <= place for group in self.all_stores(access.base or "") for site in group.sites)
        counts = [self.known_of(count.z3) for count in access.barriers]
        self._passed.update((count.get_id(), count) for count in counts)
        return (before, *[count.get_id() for count in counts], *[iteration.get_id() for iteration in access.iterations])

    def _place(self, access: Access) -> int:
        """The place of an access among all, in the order of a thread's way through one iteration of each loop; -1 for others."""
        if not self._order:
            self._order.update({id(each): place for place, each in enumerate(self._known.lifted.accesses)})
        return self._order.get(id(access), -1)

    # Sums ------------------------------------------------------------------------------------------------------------------------


def path_key(path: Sequence[Condition]) -> tuple[int, ...]:
    """Numbers of a path's conditions."""
    return tuple(each if isinstance(each, bool) else each.get_id() for each in path)


def _spans(addresses: Numbers, unit: int, apart: int | None) -> list[tuple[int, int]]:
    """The first address and the one after the last, of each part of ascending addresses if parts lie so many bytes apart."""
    gaps = np.nonzero(np.diff(addresses) >= apart)[0] if apart is not None else np.zeros(0, dtype=np.int64)
    firsts, lasts = [0, *(gaps + 1).tolist()], [*gaps.tolist(), len(addresses) - 1]
    return [(int(addresses[first]), int(addresses[last]) + unit) for first, last in zip(firsts, lasts, strict=True)]


def _common(paths: Sequence[Path]) -> Path:
    """The conditions that all paths begin with."""
    first = paths[0]
    length = min(len(path) for path in paths)
    while any(mine is not theirs for path in paths for mine, theirs in zip(first[:length], path[:length], strict=True)):
        length -= 1
    return first[:length]


def kinds_of_problems(lifter: Lifter, assumed: Sequence[tuple[z3.BoolRef, bool]] = ()) -> Iterator[list[tuple[z3.BoolRef, bool]]]:
    """Conditions, with their consequences, that distinguish problems; together they are all problems for which ``assumed`` holds."""
    conditions = list(_problem_conditions(lifter))[:MAX_SPLITS]
    for choice in range(1 << len(conditions)):
        kind = [*assumed, *[(condition, bool(choice >> number & 1)) for number, condition in enumerate(conditions)]]
        if not lifter.known.proves([condition if holds else z3.Not(condition) for condition, holds in kind], False):
            yield kind


def _problem_conditions(lifter: Lifter) -> Iterator[z3.BoolRef]:
    """Conditions on the problem alone that addresses and intervals of shared memory depend on."""
    seen: set[int] = set()
    private = {symbol.get_id() for symbol in lifter.known.private}
    for access in lifter.known.lifted.accesses:
        if access.space != "shared" or access.address is None:
            continue
        for term in (access.address.z3, access.barriers[0].z3):
            for part in node_of(term).parts():
                if part.number in seen or part.kind != z3.Z3_OP_ITE:
                    continue
                seen.add(part.number)
                condition = part.children[0]
                if condition.children and not condition.symbols & private and isinstance(condition.term, z3.BoolRef):
                    yield condition.term
