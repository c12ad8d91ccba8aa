"""Coverage of k: each stored element of a product of matrices is made from one sum of the products a[i, x] b[x, j].

Every x in 0 ... k - 1 occurs once, and zeros may follow beyond.

An index is a form: a sum that all threads of a block share, and a number for each thread, which is a table. Registers hold data
(``gemmgen.proof.data``): the lemmas below say which element of A or B an operand of a product is, for all threads, blocks and turns.

- *Shared memory.* A load's bytes come from the store that is found by its address. The lemma: that store was carried out by its thread, it
  is ordered before the load by a barrier, and no other store to these bytes lies between. Races are excluded before, so that the order by
  barriers is the order of all accesses to a byte.
- *Loops.* What a register holds at the start of turn t is what the turn before left there. An element's index as a function of t is that of
  a turn with t - 1 in place of t; the register's content before the loop must be that function of 0. A sum of n products before the
  loop, and D products with indices n + D t + 0 ... D - 1 in turn t, has n + D t products at the start of turn t.
- *Zeros.* In place of an element, a 0 may stand where an index of the element lies outside of its array.

Where alpha is 0, kernels need not multiply: the property speaks of all other problems. Products by tensor cores are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import z3

from gemmgen.emulator.ptx.syntax import Address, Float, Register, Symbol
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.proof.data import (
    Access,
    Applied,
    Carried,
    Chosen,
    Data,
    Fused,
    Loaded,
    Number,
    Packed,
    Recurrence,
)
from gemmgen.proof.enumeration import NotEnumerable, Numbers, evaluate
from gemmgen.proof.knowledge import Path
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import OtherThread, Verdict, address_cases, element_indices, landings, place
from gemmgen.proof.polynomials import Monomial
from gemmgen.proof.semantics import uniform_comparison
from gemmgen.proof.slicing import written
from gemmgen.proof.values import Condition, as_condition, as_term, mentions

MAX_SPLITS = 2
"""Conditions that problems are told apart by."""
FARTHEST = 9
"""Turns between a store to shared memory and the load of what it stored."""
MAX_REASONS = 6
MAX_PARTS = 64
"""Elements of one store, at most."""


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
class Element:
    """An element of an array, which counts as 0 where an index is out of range."""

    array: str
    indices: tuple[Form, ...]


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum of products: how many, and the indices of its element of the result by the dimensions' names."""

    count: z3.ArithRef
    free: Mapping[str, Form] | None
    """None for the empty sum, which any element has."""
    ordered: bool = True
    """True if the products are added from index 0 up."""


@dataclass(frozen=True)
class Product:
    """The contract's product of two matrices."""

    dimension: str
    """The dimension that is summed over."""
    operands: Mapping[str, tuple[str, ...]]
    """The dimensions of the operands' axes, in the contract's order."""
    results: Mapping[str, tuple[str, ...]]
    type: str
    """The type of the operands' elements; empty if they differ."""


def product_of(sequence: LaunchSequence) -> Product | None:
    """The product that a sequence computes: two inputs share a dimension that its results do not have. None for other sequences."""
    if len(sequence.launches) != 1:
        return None
    shapes = {array.name: tuple(str(extent) for extent in array.shape) for array in sequence.arrays}
    results = {array.name: shapes[array.name] for array in sequence.arrays if array.writes}
    inside = {name for shape in results.values() for name in shape}
    operands = {array.name: shapes[array.name] for array in sequence.arrays if not array.writes and set(shapes[array.name]) - inside}
    over = {name for shape in operands.values() for name in shape} - inside
    names = {dimension.name for dimension in sequence.dimensions}
    plain = all(set(shape) <= names and len(set(shape)) == len(shape) for shape in (*operands.values(), *results.values()))
    if len(operands) != 2 or len(over) != 1 or len(results) != 1 or not plain:
        return None
    (dimension,) = over
    types = {array.type for array in sequence.arrays if array.name in operands}
    kind = types.pop() if len(types) == 1 else ""
    return Product(dimension, operands, results, kind) if all(dimension in shape for shape in operands.values()) else None


def coverage(lifter: Lifter, product: Product) -> Verdict:
    """Every stored element of a result is made from one whole sum over k. The kernel's memory, races and progress must be proved.

    Problems are told apart by the conditions under which loops are passed by, and each kind is proved on its own.
    """
    total = Verdict("coverage")
    conditions = list(_problem_conditions(lifter))[:MAX_SPLITS]
    scaled = list(_scaled(lifter))
    for choice in range(1 << len(conditions)):
        assumed = [*scaled, *[(condition, bool(choice >> number & 1)) for number, condition in enumerate(conditions)]]
        if lifter.known.proves([condition if holds else z3.Not(condition) for condition, holds in assumed], False):
            continue
        verdict = _Coverage(lifter, product, assumed).verdict()
        total.obligations += verdict.obligations
        total.proved += verdict.proved
        total.unproved += verdict.unproved
        if total.unproved:
            break
    return total


def _scaled(lifter: Lifter) -> Iterator[tuple[z3.BoolRef, bool]]:
    """Comparisons of alpha with 0, and their results for any other alpha: where it is 0, kernels need not multiply."""
    known = lifter.known
    registers: set[str] = set()
    for instruction in known.function.body:
        source = instruction.operands[1] if instruction.opcode == "ld" and instruction.has("param") else None
        if isinstance(source, Address) and isinstance(source.base, Symbol) and not source.offset:
            number = source.base.name.rpartition("_param_")[2]
            arguments = known.contract.launch.arguments
            if number.isdigit() and int(number) < len(arguments) and arguments[int(number)] == "alpha":
                registers |= {register.name for register in written(instruction)}
    for instruction in known.function.body:
        if instruction.opcode == "setp" and len(instruction.operands) == 3:
            one, other = instruction.operands[1:]
            if isinstance(one, Register) and one.name in registers and other in (Float(0, 32), Float(0, 64)):
                condition = uniform_comparison(known, instruction)
                for order, holds in (("eq", False), ("neu", True), ("ne", True)):
                    if isinstance(condition, z3.BoolRef) and instruction.has(order):
                        yield condition, holds


def _problem_conditions(lifter: Lifter) -> Iterator[z3.BoolRef]:
    """Conditions on the problem alone that addresses and intervals of shared memory depend on."""
    seen: set[int] = set()
    private = lifter.known.private
    for access in lifter.known.lifted.accesses:
        if access.space != "shared" or access.address is None:
            continue
        pending: list[z3.ExprRef] = [access.address.z3, access.barriers[0].z3]
        while pending:
            part = pending.pop()
            if part.get_id() in seen:
                continue
            seen.add(part.get_id())
            pending += part.children()
            if part.decl().kind() == z3.Z3_OP_ITE and not z3.is_const(part.arg(0)) and not mentions(part.arg(0), private):
                yield part.arg(0)


@dataclass(frozen=True, eq=False)
class _Site:
    """One store to shared memory."""

    access: Access
    address: Form
    turn: z3.ArithRef | None
    bytes: int


@dataclass(frozen=True, eq=False)
class _Stores:
    """The stores of one interval between barriers whose addresses have one common part, by byte."""

    base: str
    sites: Sequence[_Site]
    turn: z3.ArithRef | None
    barriers: z3.ArithRef
    outer: Mapping[Monomial, int]
    addresses: Numbers
    """Address of each element, ascending."""
    site: Numbers
    part: Numbers
    """The element's place in its store."""
    thread: Numbers


@dataclass(frozen=True, eq=False)
class _Case:
    """The stores that a load reads from: those of ``shift`` turns later, or at one turn those before the loop."""

    stores: _Stores
    shift: int
    at: int | None
    """The only turn of the case; None for all turns from ``-shift`` on."""
    delta: int
    """Difference between the table of a load and the addresses of the stores."""


class _Coverage:
    def __init__(self, lifter: Lifter, product: Product, assumed: Sequence[tuple[z3.BoolRef, bool]]) -> None:
        self._assumed = [(condition, z3.BoolVal(holds)) for condition, holds in assumed]
        self._premised = [condition if holds else z3.Not(condition) for condition, holds in assumed]
        self._lifter, self._known, self._product = lifter, lifter.known, product
        self._threads = self._known.contract.launch.threads
        self._symbols = self._known.all_threads()
        self._evaluated: dict[int, Numbers] = {}
        contract = self._known.contract
        self._axes = {
            name: tuple(dimensions[axis] for axis in contract.arrays[name].axes)
            for name, dimensions in (*product.operands.items(), *product.results.items())
        }
        sizes = {contract.arrays[name].element_bytes for name in product.operands}
        self._unit = min(sizes)
        self._one_size = len(sizes) == 1
        self._k = next(
            as_term(contract.arrays[name].shape[axes.index(product.dimension)])
            for name, axes in self._axes.items()
            if product.dimension in axes
        )
        self._answers: dict[tuple[object, ...], bool] = {}
        self._kept: list[object] = []
        self._elements: dict[tuple[object, ...], Element] = {}
        self._sums: dict[tuple[object, ...], Sum | None] = {}
        self._carried: dict[tuple[int, str], Element | None] = {}
        self._carried_sums: dict[tuple[int, str], Sum | None] = {}
        self._stores: dict[str, list[_Stores]] = {}
        self._cases: dict[tuple[object, ...], list[_Case]] = {}
        self._failures: dict[tuple[object, ...], str] = {}
        self._dependent: dict[int, bool] = {}
        self._own_turns = [turn for turn in self._known.finished if not self._is_uniform(turn)]
        self._pieces: dict[tuple[object, ...], Data] = {}
        self._other: OtherThread | None = None

    def verdict(self) -> Verdict:
        """The property: one obligation for each element that a thread stores."""
        verdict = Verdict("coverage")
        known = self._known
        if not self._one_size:
            verdict.unproved.append("the operands' elements differ in size")
            return verdict
        stores = [
            access
            for access in known.lifted.accesses
            if access.writes and (access.space != "shared" and (access.address is None or access.address.base in self._product.results))
        ]
        if not stores:
            verdict.unproved.append("no store to the result was found")
        for store in stores:
            try:
                verdict.obligations += max(1, len(store.data))
                self._stored(store)
                verdict.proved += max(1, len(store.data))
            except NotShown as error:
                verdict.unproved.append(f"{place(store)}: {error}")
            except NotEnumerable:
                verdict.unproved.append(f"{place(store)}: an index that is no sum of a shared part and one of the thread")
            if len(verdict.unproved) >= MAX_REASONS:
                break
        return verdict

    # Forms ---------------------------------------------------------------------------------------------------------------------

    def _form(self, term: z3.ArithRef, path: Path = ()) -> Form:
        known = self._known
        term = self._known_of(term)
        for number in self._mentioned(term, known.taken):
            turn, _ = known.taken[number]
            symbol = self._symbol(term, number)
            if not self._proves(path, symbol == turn):
                raise NotShown("how often a pointer was moved is not known")
            term = z3.substitute(term, (symbol, turn))
        outer: dict[Monomial, int] = {}
        table: Numbers = np.zeros(self._threads, dtype=np.int64)
        for monomial, number in known.polynomials.of(term).items():
            factors = [known.polynomials.term(factor) for factor in monomial]
            if factors and not any(self._depends(factor) for factor in factors):
                outer[monomial] = number
                continue
            value: Numbers = np.asarray(number, dtype=np.int64)
            for factor in factors:
                value = np.asarray(value * evaluate(factor, self._symbols, self._evaluated))
            table = np.asarray(table + value)
        return Form(outer, table)

    def _depends(self, term: z3.ExprRef | bool) -> bool:
        """True unless all threads of a block have the same value for a term."""
        if isinstance(term, bool):
            return False
        number = term.get_id()
        if number not in self._dependent:
            self._kept.append(term)
            self._dependent[number] = self._known.depends_on_thread(term) or mentions(term, self._own_turns)
        return self._dependent[number]

    def _is_uniform(self, turn: z3.ArithRef) -> bool:
        """True if all threads of a block leave a loop in the same turn."""
        known, lifter = self._known, self._lifter

        def agree(condition: Condition) -> bool:
            return isinstance(condition, bool) or not known.depends_on_thread(condition)

        loop = known.recurrences.get(turn.get_id())
        return loop is not None and all(lifter.agreed(*each, agree) for each in lifter.conditions(lifter.ways_out(loop.header)))

    def _loop(self, turn: z3.ArithRef) -> Recurrence:
        """The loop of a turn, which must lie in no other."""
        loop = self._known.recurrences[turn.get_id()]
        if loop.outer:
            raise NotShown("a loop within another")
        return loop

    def _known_of(self, term: z3.ArithRef) -> z3.ArithRef:
        """A term without the choices that the assumed kind of problem decides."""
        if not self._assumed:
            return term
        found = z3.substitute(term, *self._assumed)
        if found.eq(term):
            return term
        found = z3.simplify(found)
        self._kept.append(found)
        return found

    def _barriers(self, access: Access) -> z3.ArithRef:
        """Barriers that a thread has passed before an access."""
        return self._known_of(access.barriers[0].z3)

    def _mentioned(self, term: z3.ExprRef, wanted: Mapping[int, object]) -> list[int]:
        found, pending, seen = [], [term], set[int]()
        while pending:
            part = pending.pop()
            number = part.get_id()
            if number in seen:
                continue
            seen.add(number)
            if number in wanted:
                found.append(number)
            pending += part.children()
        return found

    def _symbol(self, term: z3.ExprRef, number: int) -> z3.ArithRef:
        pending = [term]
        while pending:
            part = pending.pop()
            if part.get_id() == number and isinstance(part, z3.ArithRef):
                return part
            pending += part.children()
        raise NotShown("a symbol was lost")

    def _outer_term(self, outer: Mapping[Monomial, int]) -> z3.ArithRef:
        total: z3.ArithRef = z3.IntVal(0)
        for monomial, number in sorted(outer.items()):
            part: z3.ArithRef = z3.IntVal(number)
            for factor in monomial:
                part = part * self._known.polynomials.term(factor)
            total = total + part
        return total

    def _moved(self, form: Form, turn: z3.ArithRef, into: z3.ArithRef) -> Form:
        """A form with another turn in place of one, the only one that it depends on."""
        if mentions(self._outer_term(form.outer), [each for each in self._known.finished if not each.eq(turn)]):
            raise NotShown("an index that depends on two loops")
        term = z3.simplify(z3.substitute(self._outer_term(form.outer), (turn, into)))
        self._kept.append(term)
        outer = dict(self._known.polynomials.of(term))
        number = outer.pop((), 0)
        return Form(outer, form.table + number)

    def _same(self, one: Form, two: Form, path: Path) -> bool:
        """True if two indices are equal for every thread."""
        difference = one.table - two.table
        if difference.size and (difference != difference[0]).any():
            return False
        offset = int(difference[0]) if difference.size else 0
        if one.outer == two.outer:
            return offset == 0
        return self._proves(path, self._outer_term(one.outer) + offset == self._outer_term(two.outer))

    def _proves(self, path: Sequence[Condition], goal: Condition) -> bool:
        if isinstance(goal, bool):
            return goal
        key = (goal.get_id(), *[each if isinstance(each, bool) else each.get_id() for each in path])
        if key not in self._answers:
            self._kept.append((goal, tuple(path)))
            self._answers[key] = self._known.proves([*self._premised, *path], goal, 2000)
        return self._answers[key]

    def _impossible(self, path: Path) -> bool:
        goal = z3.BoolVal(False)
        return self._proves(path, goal)

    # Elements ------------------------------------------------------------------------------------------------------------------

    def _key(self, data: object, path: Path) -> tuple[object, ...]:
        self._kept.append((data, path))
        return (id(data), *[each if isinstance(each, bool) else each.get_id() for each in path])

    def _element(self, data: Data, path: Path, size: int) -> Element:
        """The element of an operand that a register, or its only part, holds. Raises ``NotShown``."""
        key = (*self._key(data, path), size)
        if key in self._failures:
            raise NotShown(self._failures[key])
        if key not in self._elements:
            try:
                self._elements[key] = self._found_element(data, path, size)
            except NotShown as error:
                self._failures[key] = str(error)
                raise
        return self._elements[key]

    def _found_element(self, data: Data, path: Path, size: int) -> Element:
        match data:
            case Loaded(access, offset, width) if width == size:
                return self._loaded(access, offset)
            case Chosen():
                return self._chosen(data, path, size)
            case Carried(turn, name):
                return self._carried_element(turn, name, size)
            case Packed((part,)):
                return self._element(part, path, size)
            case Packed((Number(zero=True), part)) if size == 2 and self._type_of_operands == "bf16":
                return self._element(part, path, size)  # a bf16 is the upper half of an f32
        raise NotShown(f"an operand of a product is {_named(data)}")

    @property
    def _type_of_operands(self) -> str:
        return self._product.type

    def _loaded(self, access: Access, offset: int) -> Element:
        if access.address is None or access.address.base is None:
            raise NotShown("an address is not known")
        base = access.address.base
        if base in self._product.operands:
            return self._global(base, self._indices(access, offset), access.path)
        if base in self._known.contract.arrays:
            raise NotShown(f"an operand of a product comes from {base}")
        return self._shared(access, self._form(access.address.z3 + offset, access.path))

    def _indices(self, access: Access, offset: int) -> list[z3.ArithRef]:
        assert access.address is not None and access.address.base is not None
        array = self._known.contract.arrays[access.address.base]
        indices = element_indices(self._known, self._known_of(access.address.z3 + offset), array)
        if indices is None:
            raise NotShown(f"an offset in {array.name} is no sum of indices times strides")
        return indices

    def _global(self, array: str, indices: Sequence[z3.ArithRef], path: Path) -> Element:
        return Element(array, tuple(self._form(index, path) for index in indices))

    def _chosen(self, data: Chosen, path: Path, size: int) -> Element:
        """An element on some ways and 0 on others, where the element is outside of its array."""
        found: Element | None = None
        zeros: list[Path] = []
        where: tuple[str, list[z3.ArithRef]] | None = None
        for way, leaf in self._leaves(data, path):
            if isinstance(leaf, Number) and leaf.zero:
                zeros.append(way)
                continue
            element = self._element(leaf, way, size)
            if isinstance(leaf, Loaded) and leaf.access.address is not None and leaf.access.address.base == element.array:
                where = element.array, self._indices(leaf.access, leaf.offset)
            if found is not None and not self._equal(found, element, path):
                raise NotShown("an operand of a product is one of two elements")
            found = element
        if found is None:
            raise NotShown("an operand of a product is always 0")
        for way in zeros:
            if where is None or not self._proves(way, self._outside(*where)):
                raise NotShown("a 0 stands in place of an element")
        return found

    def _outside(self, array: str, indices: Sequence[z3.ArithRef]) -> z3.BoolRef:
        shape = self._known.contract.arrays[array].shape
        return z3.Or(*[each for index, extent in zip(indices, shape, strict=True) for each in (index < 0, index >= as_term(extent))])

    def _leaves(self, data: Data, path: Path) -> Iterator[tuple[Path, Data]]:
        """The values that a choice can have, each with its path, without those that no thread gets."""
        pending: list[tuple[Path, Data]] = [(path, data)]
        while pending:
            way, each = pending.pop()
            if not isinstance(each, Chosen):
                yield way, each
                continue
            condition = as_condition(each.condition)
            for holds, branch in ((condition, each.yes), (z3.Not(condition), each.no)):
                further = (*way, holds)
                if not self._impossible(further):
                    pending.append((further, branch))

    def _equal(self, one: Element, two: Element, path: Path) -> bool:
        return one.array == two.array and all(self._same(a, b, path) for a, b in zip(one.indices, two.indices, strict=True))

    def _carried_element(self, turn: z3.ArithRef, name: str, size: int) -> Element:
        """The value of a register at the start of a turn: that which the turn before left there."""
        key = (turn.get_id(), name)
        if key in self._carried:
            found = self._carried[key]
            if found is None:
                raise NotShown("a register that is passed from turn to turn")
            return found
        self._carried[key] = None
        loop = self._loop(turn)
        if name not in loop.after:
            raise NotShown("a register that a turn leaves without a known content")
        body = self._element(loop.after[name], loop.again, size)
        element = Element(body.array, tuple(self._moved(index, turn, turn - 1) for index in body.indices))
        first = Element(body.array, tuple(self._moved(index, turn, z3.IntVal(0)) for index in element.indices))
        before = self._element(loop.before[name], loop.entry, size)
        if not self._equal(before, first, loop.entry):
            raise NotShown("a register holds another element before a loop than the loop's turns suggest")
        self._carried[key] = element
        return element

    # Shared memory ---------------------------------------------------------------------------------------------------------------

    def _shared(self, access: Access, address: Form) -> Element:
        """The element that a load finds at an address in shared memory."""
        cases = self._sources(access, address)
        general = next((case for case in cases if case.at is None), cases[0])
        found = self._read(access, address, general)
        if general.stores.turn is None:
            return found
        turn = general.stores.turn
        for case in cases:
            if case is general:
                continue
            here = Element(found.array, tuple(self._moved(index, turn, z3.IntVal(case.at or 0)) for index in found.indices))
            other = self._read(access, address, case)
            if not self._equal(other, here, (*access.path, turn == (case.at or 0))):
                raise NotShown("what a load reads in the first turns is not what the others suggest")
        return found

    def _read(self, access: Access, address: Form, case: _Case) -> Element:
        stores = case.stores
        wanted = address.table + case.delta
        places = np.searchsorted(stores.addresses, wanted)
        places = np.minimum(places, len(stores.addresses) - 1)
        if (stores.addresses[places] != wanted).any():
            raise NotShown("a load of bytes that no store of its interval wrote")
        site, part, thread = stores.site[places], stores.part[places], stores.thread[places]
        total: Element | None = None
        tables: list[Numbers] = []
        for number in np.unique(site).tolist():
            self._carried_out(access, stores.sites[number], case, thread[site == number])
        code = site * MAX_PARTS + part
        for both in np.unique(code).tolist():
            mine = code == both
            element = self._stored_in_turn(stores, both // MAX_PARTS, both % MAX_PARTS, case.shift)
            if total is None:
                total, tables = element, [np.zeros(self._threads, dtype=np.int64) for _ in element.indices]
            if total.array != element.array or any(a.outer != b.outer for a, b in zip(total.indices, element.indices, strict=True)):
                raise NotShown("threads load elements of different forms")
            for table, index in zip(tables, element.indices, strict=True):
                table[mine] = index.table[thread[mine]]
        assert total is not None
        return Element(total.array, tuple(Form(index.outer, table) for index, table in zip(total.indices, tables, strict=True)))

    def _stored_in_turn(self, stores: _Stores, site: int, part: int, shift: int) -> Element:
        """The value that a store wrote that many turns later, in terms of the present turn."""
        key = ("stored", id(stores), site, part, shift)
        if key not in self._elements:
            element = self._stored_element(stores.sites[site], part)
            if stores.turn is not None and shift:
                moved = tuple(self._moved(index, stores.turn, stores.turn + shift) for index in element.indices)
                element = Element(element.array, moved)
            self._elements[key] = element
        return self._elements[key]

    def _stored_element(self, site: _Site, part: int) -> Element:
        access, size = site.access, self._unit
        if access.source is not None:
            return self._copied(access.source, part)
        each = site.bytes // len(access.data) if access.data else 0
        if each == size:
            return self._element(access.data[part], access.path, size)
        if each > size and each % size == 0:
            parts = each // size
            return self._element(self._piece(access.data[part // parts], part % parts, size, parts), access.path, size)
        raise NotShown("a store to shared memory of an unknown content")

    def _piece(self, data: Data, part: int, size: int, parts: int) -> Data:
        """One of a register's elements; the same object for each request."""
        match data:
            case Packed(pieces) if len(pieces) == parts:
                return pieces[part]
            case Loaded(access, offset, _):
                key = ("piece", id(data), part)
                if key not in self._pieces:
                    self._kept.append(data)
                    self._pieces[key] = Loaded(access, offset + part * size, size)
                return self._pieces[key]
            case Chosen(condition, yes, no):
                key = ("piece", id(data), part)
                if key not in self._pieces:
                    self._kept.append(data)
                    self._pieces[key] = Chosen(condition, self._piece(yes, part, size, parts), self._piece(no, part, size, parts))
                return self._pieces[key]
            case Number(zero=True):
                return data
        raise NotShown(f"a part of {_named(data)}")

    def _copied(self, load: Access, part: int) -> Element:
        """An element of an asynchronous copy, which is 0 beyond the bytes that are read."""
        array = None if load.address is None else load.address.base
        if load.address is None or array is None or array not in self._product.operands:
            raise NotShown("a copy from elsewhere")
        offset, size = part * self._unit, as_term(load.size)
        indices: list[z3.ArithRef] | None = None
        for conditions, address in address_cases(self._known, replace(load.address, term=self._known_of(load.address.z3))):
            if self._proves((*load.path, *conditions), size <= offset):
                continue  # this address is only named where nothing is read
            if indices is not None:
                raise NotShown("a copy from one of two places")
            indices = self._indices(replace(load, address=address), offset)
        if indices is None:
            raise NotShown("a copy that always fills with 0")
        filled = z3.And(size <= offset, self._outside(array, indices))
        if not self._proves((*load.path, size < offset + self._unit), filled):
            raise NotShown("a copy fills an element with 0")
        return self._global(array, indices, load.path)

    def _all_stores(self, base: str) -> list[_Stores]:
        if base not in self._stores:
            self._stores[base] = list(self._grouped(base))
        return self._stores[base]

    def _grouped(self, base: str) -> Iterator[_Stores]:
        groups: dict[tuple[object, ...], list[_Site]] = {}
        for access in self._known.lifted.accesses:
            if access.space not in ("shared", "generic") or not access.writes:
                continue
            if access.address is None or access.address.base is None or not isinstance(access.size, int):
                raise NotShown("a store to shared memory at an unknown address")
            if access.address.base != base:
                continue
            if len(access.turns) > 1 or access.kind == "atomic" or access.size % self._unit or access.size >= MAX_PARTS * self._unit:
                raise NotShown("stores to shared memory in nested loops, atomic ones and those of parts of elements")
            turn = access.turns[0] if access.turns else None
            address = self._form(access.address.z3, access.path)
            barriers = self._barriers(access)
            copies = None if access.group is None else access.group.z3.get_id()
            key = (None if turn is None else turn.get_id(), barriers.get_id(), copies, *sorted(address.outer.items()))
            groups.setdefault(key, []).append(_Site(access, address, turn, access.size))
        for sites in groups.values():
            addresses, numbers, parts, threads = [], [], [], []
            for number, site in enumerate(sites):
                writes = self._writers(site)
                for part in range(site.bytes // self._unit):
                    addresses.append(site.address.table[writes] + part * self._unit)
                    numbers.append(np.full(len(writes), number))
                    parts.append(np.full(len(writes), part))
                    threads.append(writes)
            together = np.concatenate(addresses)
            order = np.argsort(together, kind="stable")
            sorted_ = together[order]
            if (sorted_[1:] - sorted_[:-1] < self._unit).any():
                raise NotShown("two stores to one place in shared memory between the same barriers")
            first = sites[0]
            yield _Stores(
                base,
                sites,
                first.turn,
                self._barriers(first.access),
                first.address.outer,
                sorted_,
                np.concatenate(numbers)[order],
                np.concatenate(parts)[order],
                np.concatenate(threads)[order],
            )

    def _writers(self, site: _Site) -> Numbers:
        """The threads that conditions on the thread alone do not keep from a store."""
        allowed = np.ones(self._threads, dtype=bool)
        for condition in site.access.path:
            if not isinstance(condition, bool):
                try:
                    allowed &= np.broadcast_to(evaluate(condition, self._symbols, self._evaluated) != 0, self._threads)
                except NotEnumerable:
                    continue
        return np.nonzero(allowed)[0]

    def _carried_out(self, access: Access, site: _Site, case: _Case, threads: Numbers) -> None:
        """The store of each of some threads is carried out, wherever the load is."""
        store, premises = site.access, self._premises(access, case)
        conditions: list[Condition] = list(store.path)
        if site.turn is not None:
            loop = self._loop(site.turn)
            length = len(loop.prefix)
            if len(store.path) < length or any(mine is not theirs for mine, theirs in zip(store.path, loop.prefix, strict=False)):
                raise NotShown("a store whose path through its loop is not known")
            conditions = [*loop.entry, *store.path[length:]]
        for condition in conditions:
            if isinstance(condition, bool):
                if not condition:
                    raise NotShown("a store that is never carried out")
                continue
            if self._depends(condition):
                try:
                    values = np.broadcast_to(evaluate(condition, self._symbols, self._evaluated), self._threads)
                except NotEnumerable:
                    values = np.zeros(self._threads, dtype=np.int64)
                if not values[threads].all():
                    self._all_threads_come(condition, site, case, premises)
                continue
            wanted = condition
            if site.turn is not None:
                wanted = z3.substitute(condition, (site.turn, self._turn_of(site.turn, case)))
            if not self._proves(premises, wanted):
                raise NotShown("a store that is not carried out in every turn")

    def _all_threads_come(self, condition: z3.BoolRef, site: _Site, case: _Case, premises: Path) -> None:
        """A condition of a store holds for any thread."""
        self._other = self._other or OtherThread(self._known, same_block=True)
        theirs = self._other.term(condition)
        if site.turn is not None:
            theirs = z3.substitute(theirs, (self._other.term(site.turn), self._turn_of(site.turn, case)))
        if not isinstance(theirs, z3.BoolRef) or not self._proves((*premises, *self._other.facts), theirs):
            raise NotShown("a store that some threads may leave out")

    def _turn_of(self, turn: z3.ArithRef, case: _Case) -> z3.ArithRef:
        return turn + case.shift if case.at is None else z3.IntVal(case.at + case.shift)

    def _premises(self, access: Access, case: _Case) -> Path:
        loops = self._loop_of(access)
        if loops is None:
            return access.path
        if case.at is not None:
            return (*access.path, loops == case.at)
        return (*access.path, loops + case.shift >= 0)

    def _loop_of(self, access: Access) -> z3.ArithRef | None:
        """The turn of the loop that a load is in, or that it comes after; None for loads before all loops."""
        if access.turns:
            if len(access.turns) > 1:
                raise NotShown("a load in nested loops")
            return access.turns[0]
        base = None if access.address is None else access.address.base
        turns = [store.turn for store in self._all_stores(base or "") if store.turn is not None]
        order = self._lifter.flow.order
        for turn in turns:  # the loop was entered, and comes before
            loop = self._loop(turn)
            entered = z3.And(*[as_condition(condition) for condition in loop.entry]) if loop.entry else z3.BoolVal(True)
            if order[loop.header] < order[access.block] and not self._depends(entered) and self._proves(access.path, entered):
                return turn
        return None

    def _sources(self, access: Access, address: Form) -> list[_Case]:
        """The stores that a load reads from, in every turn. Raises ``NotShown``."""
        assert access.address is not None and access.address.base is not None
        key = (
            access.address.base,
            *sorted(address.outer.items()),
            self._barriers(access).get_id(),
            *[each if isinstance(each, bool) else each.get_id() for each in access.path],
        )
        if key in self._failures:
            raise NotShown(self._failures[key])
        if key not in self._cases:
            try:
                self._cases[key] = self._searched(access, address)
            except NotShown as error:
                self._failures[key] = str(error)
                raise
        return self._cases[key]

    def _searched(self, access: Access, address: Form) -> list[_Case]:
        assert access.address is not None and access.address.base is not None
        groups = self._all_stores(access.address.base)[::-1]  # the last one before a load is what it reads
        turn = self._loop_of(access)
        load_barriers = self._barriers(access)
        if self._depends(load_barriers):
            raise NotShown("threads differ in the barriers they passed")
        found: list[_Case] = []
        if turn is None:
            for group in groups:
                if group.turn is None and (case := self._fixed(access, address, group, None)) is not None:
                    self._nothing_between(access, address, case, groups)
                    return [case]
            raise NotShown("no store before a load was found")
        for shift in range(0, -FARTHEST, -1):
            for group in groups:
                if group.turn is None or not group.turn.eq(turn):
                    continue
                case = _Case(group, shift, None, 0)
                if self._matches(access, address, case):
                    self._nothing_between(access, address, case, groups)
                    found.append(case)
                    break
            if found:
                break
        if not found:
            raise NotShown("no store was found that a load in a loop reads from")
        for at in range(-found[0].shift):
            if self._impossible((*access.path, turn == at)):
                continue
            for group in groups:
                fixed = None if group.turn is not None else self._fixed(access, address, group, at)
                if fixed is not None:
                    self._nothing_between(access, address, fixed, groups)
                    found.append(fixed)
                    break
            else:
                raise NotShown("no store was found that a load in the first turns reads from")
        return found

    def _overlaps(self, address: Form, group: _Stores, delta: int) -> bool:
        return bool(np.isin(address.table + delta, group.addresses).all())

    def _matches(self, access: Access, address: Form, case: _Case) -> bool:
        """True if the stores of a loop, some turns earlier, are those at a load's address, and before it."""
        group = case.stores
        if group.turn is None or not self._overlaps(address, group, 0):
            return False
        premises, moved = self._premises(access, case), self._turn_of(group.turn, case)
        there = z3.substitute(self._outer_term(group.outer), (group.turn, moved))
        if not self._quickly_equal(there, self._outer_term(address.outer), group.turn):
            return False
        return self._proves(premises, there == self._outer_term(address.outer)) and self._before(access, case, premises)

    def _quickly_equal(self, one: z3.ArithRef, two: z3.ArithRef, turn: z3.ArithRef) -> bool:
        """False if two terms differ at some turns."""
        for at in (20, 21, 25):
            difference = z3.simplify(z3.substitute(one - two, (turn, z3.IntVal(at))))
            if z3.is_int_value(difference) and difference.as_long():
                return False
        return True

    def _fixed(self, access: Access, address: Form, group: _Stores, at: int | None) -> _Case | None:
        """The case of stores outside of loops, for a load outside of them or in one turn."""
        outer = self._outer_term(address.outer)
        turn = self._loop_of(access)
        if at is not None and turn is not None:
            outer = z3.substitute(outer, (turn, z3.IntVal(at)))
        distance = z3.simplify(outer - self._outer_term(group.outer), som=True)
        if not z3.is_int_value(distance):
            return None
        delta = int(distance.as_long())
        case = _Case(group, 0, at, delta)
        if not self._overlaps(address, group, delta) or not self._before(access, case, self._premises(access, case)):
            return None
        return case

    def _before(self, access: Access, case: _Case, premises: Path) -> bool:
        """True if a barrier orders the stores, and what copies bring, before a load."""
        group, load = case.stores, self._barriers(access)
        if case.at is not None and (turn := self._loop_of(access)) is not None:
            load = z3.substitute(load, (turn, z3.IntVal(case.at)))

        def then(term: z3.ExprRef) -> z3.ExprRef:
            return term if group.turn is None else z3.substitute(term, (group.turn, self._turn_of(group.turn, case)))

        for site in group.sites:
            store = site.access
            if self._depends(self._barriers(store)):
                return False
            if store.group is None:
                if not self._proves(premises, then(self._barriers(store)) < load):
                    return False
                continue
            for landing in landings(self._known, store, 0):
                reached, barriers = then(landing.reached), then(landing.barriers)
                if not self._depends(reached) and self._proves(premises, z3.And(reached, barriers < load)):
                    break
            else:
                return False
        return True

    def _nothing_between(self, access: Access, address: Form, case: _Case, groups: Sequence[_Stores]) -> None:
        """No other store to a load's bytes is carried out after those that it reads, and before it."""
        known, load = self._known, self._barriers(access)
        premises = self._premises(access, case)
        chosen, turn = case.stores, self._loop_of(access)
        low, high = int(chosen.addresses.min()) - case.delta, int(chosen.addresses.max()) - case.delta + self._unit
        outer = self._outer_term(address.outer)
        if case.at is not None and turn is not None:
            load, outer = (z3.substitute(term, (turn, z3.IntVal(case.at))) for term in (load, outer))
        mine = chosen.barriers
        if chosen.turn is not None:
            mine = z3.substitute(mine, (chosen.turn, self._turn_of(chosen.turn, case)))
        self._other = self._other or OtherThread(known, same_block=True)
        other = self._other
        for group in groups:
            start = z3.IntVal(int(group.addresses.min()))
            end = z3.IntVal(int(group.addresses.max()) + self._unit)
            theirs = other.term(self._outer_term(group.outer))
            overlap = z3.And(outer + low < theirs + end, theirs + start < outer + high)
            when = other.term(group.barriers)
            same: Condition = group is chosen
            if group is chosen and chosen.turn is not None:
                same = other.term(chosen.turn) == self._turn_of(chosen.turn, case)
            path = tuple(other.conditions(_common([site.access.path for site in group.sites])))
            further = (*premises, *other.facts, *path, overlap, when < load)
            if not self._proves(further, z3.Or(when < mine, as_condition(same))):
                raise NotShown("another store may come between a store and the load of what it stored")

    # Sums ------------------------------------------------------------------------------------------------------------------------

    def _sum(self, data: Data, path: Path) -> Sum | None:
        """A sum of products over k that a register holds; None if it is no such sum. Raises ``NotShown`` for a wrong one."""
        key = self._key(data, path)
        if key not in self._sums:
            self._sums[key] = None
            self._sums[key] = self._found_sum(data, path)
        return self._sums[key]

    def _found_sum(self, data: Data, path: Path) -> Sum | None:
        chain: list[Fused] = []
        while isinstance(data, Fused):
            chain.append(data)
            data = data.c
        match data:
            case Number(zero=True):
                base: Sum | None = Sum(z3.IntVal(0), None)
            case Carried(turn, name):
                base = self._carried_sum(turn, name)
            case Chosen():
                base = self._chosen_sum(data, path)
            case _:
                base = None
        if base is None:
            return None
        return self._extended(base, chain[::-1], path)

    def _extended(self, base: Sum, chain: Sequence[Fused], path: Path) -> Sum | None:
        """A sum and the products that are added to it."""
        if not chain:
            return base
        pairs: list[tuple[Element, Element]] = []
        for link in chain:
            if not (self._holds_elements(link.a) and self._holds_elements(link.b)):
                return None  # an operation of the epilogue
            pairs.append((self._element(link.a, path, self._unit), self._element(link.b, path, self._unit)))
        free = base.free
        start = self._known.polynomials.of(base.count)
        distances: list[int] = []
        for pair in pairs:
            summed: list[Form] = []
            mine: dict[str, Form] = {}
            if {element.array for element in pair} != set(self._product.operands):
                raise NotShown("both operands of a product come from one array")
            for element in pair:
                for dimension, index in zip(self._axes[element.array], element.indices, strict=True):
                    if dimension == self._product.dimension:
                        summed.append(index)
                    elif dimension in mine:
                        if not self._same(mine[dimension], index, path):
                            raise NotShown(f"the operands of a product differ in {dimension}")
                    else:
                        mine[dimension] = index
            if not self._same(summed[0], summed[1], path):
                raise NotShown(f"the operands of a product have different {self._product.dimension}")
            distances.append(self._distance(summed[0], base.count, start, path))
            if free is not None and not all(self._same(free[name], mine[name], path) for name in mine):
                raise NotShown("a sum holds products of different rows or columns")
            free = mine
        if sorted(distances) != list(range(len(distances))):
            missing = sorted(set(range(len(distances))) - set(distances))
            raise NotShown(f"products {distances[:8]} follow each other, where {missing[:4] or 'others'} are missing")
        ordered = base.ordered and distances == list(range(len(distances)))
        return Sum(z3.simplify(base.count + len(distances)), free, ordered)

    def _holds_elements(self, data: Data) -> bool:
        """False for a number, a parameter or a result, as an epilogue multiplies by."""
        match data:
            case Number() | Fused() | Applied():
                return False
            case Loaded(access) if access.address is not None and access.address.base in self._known.contract.arrays:
                return access.address.base in self._product.operands
            case Chosen(_, yes, no):
                return self._holds_elements(yes) or self._holds_elements(no)
            case Carried(turn, name):
                loop = self._loop(turn)
                return not any(isinstance(each.get(name), Fused | Applied) for each in (loop.before, loop.after))
        return True

    def _distance(self, index: Form, count: z3.ArithRef, start: Mapping[Monomial, int], path: Path) -> int:
        """Distance of an index of k from the first product that a sum lacks."""
        if (index.table != index.table[0]).any():
            raise NotShown(f"threads multiply different {self._product.dimension}")
        number = int(index.table[0])
        if {monomial: times for monomial, times in start.items() if monomial} == index.outer:
            return number - start.get((), 0)
        distance = z3.simplify(self._outer_term(index.outer) + number - count, som=True)
        if z3.is_int_value(distance):
            return int(str(distance))
        offset = number - start.get((), 0)
        for guess in (offset, 0):
            if self._proves(path, distance == guess):
                return guess
        raise NotShown(f"the {self._product.dimension} of a product does not follow from how many were added before")

    def _chosen_sum(self, data: Chosen, path: Path) -> Sum | None:
        total: Sum | None = None
        for way, leaf in self._leaves(data, path):
            each = self._sum(leaf, way)
            if each is None:
                return None
            if total is None:
                total = each
                continue
            mine, theirs = total.free or {}, each.free or {}
            if theirs and not all(self._same(mine[name], theirs[name], path) for name in mine):
                raise NotShown("a sum of products of different rows or columns")
            condition = reduce(z3.And, [as_condition(part) for part in way[len(path) :]])
            count = total.count if total.count.eq(each.count) else z3.If(condition, each.count, total.count)
            total = Sum(count, total.free or each.free, total.ordered and each.ordered)
        return total

    def _carried_sum(self, turn: z3.ArithRef, name: str) -> Sum | None:
        """The sum that a register holds at the start of a turn."""
        key = (turn.get_id(), name)
        if key in self._carried_sums:
            return self._carried_sums[key]
        self._carried_sums[key] = None
        loop = self._loop(turn)
        if name not in loop.after and loop.again != (False,):
            return None
        before = self._sum(loop.before[name], loop.entry)
        if before is None or mentions(before.count, [turn]):
            return None
        if loop.again == (False,):
            self._carried_sums[key] = before
            return before
        added, link = 0, loop.after[name]
        links: list[Fused] = []
        while isinstance(link, Chosen):
            ways = [leaf for _, leaf in self._leaves(link, loop.again)]
            if len(ways) != 1:
                return None
            link = ways[0]
        while isinstance(link, Fused):
            links.append(link)
            added += 1
            link = link.c
        if not (isinstance(link, Carried) and link.turn.eq(turn) and link.name == name):
            return None
        start = Sum(z3.simplify(before.count + turn * added), before.free, before.ordered)
        after = self._extended(start, links[::-1], loop.again)
        if after is None or not self._turnless(after.free):
            return None
        found = Sum(start.count, after.free, after.ordered)
        self._carried_sums[key] = found
        return found

    def _turnless(self, free: Mapping[str, Form] | None) -> bool:
        return free is None or not any(mentions(self._outer_term(form.outer), self._known.finished) for form in free.values())

    # Results ---------------------------------------------------------------------------------------------------------------------

    def _stored(self, store: Access) -> None:
        if store.kind != "store" or store.address is None or store.address.base is None:
            raise NotShown("a store to an unknown array, or an atomic one")
        if not store.data or not isinstance(store.size, int):
            raise NotShown("what is stored is not known")
        size = store.size // len(store.data)
        array = self._known.contract.arrays[store.address.base]
        if size != array.element_bytes:
            raise NotShown("a store of several elements in one register")
        for number, data in enumerate(store.data):
            indices = [self._form(index, store.path) for index in self._indices(store, number * size)]
            places = dict(zip(self._axes[array.name], indices, strict=True))
            whole = 0
            for way, value, _ in self._sums_in(data, store.path):
                whole += 1
                if value.free is not None and not all(self._same(value.free[name], places[name], way) for name in value.free):
                    raise NotShown(f"the sum that is stored belongs to another element of {array.name}")
                if not self._proves(way, value.count >= self._k):
                    raise NotShown(f"the sum may end before {self._product.dimension}")
            if not whole:
                raise NotShown("no sum of products is stored")

    def _sums_in(self, data: Data, path: Path) -> Iterator[tuple[Path, Sum, Data]]:
        """The one sum that a stored value is made from, on each way, and its register. Raises ``NotShown`` if there are more."""
        for way, leaf in self._leaves(data, path):
            found = self._sum(leaf, way)
            if found is not None:
                yield way, found, leaf
                continue
            inner: list[tuple[Path, Sum, Data]] = []
            match leaf:
                case Fused(a, b, c):
                    parts: Sequence[Data] = (a, b, c)
                case Applied(_, parts):
                    pass
                case _:
                    raise NotShown(f"a result is made from {_named(leaf)}")
            for part in parts:
                if not self._plain(part):
                    mine = list(self._sums_in(part, way))
                    if any(one is not other for _, _, one in inner for _, _, other in mine):
                        raise NotShown("a result is made from several sums")
                    inner += mine
            yield from inner

    def _plain(self, data: Data) -> bool:
        """True for numbers, parameters, and elements of arrays other than the operands."""
        match data:
            case Number():
                return True
            case Loaded(access):
                base = None if access.address is None else access.address.base
                return base in self._known.contract.arrays and base not in self._product.operands
            case Chosen(_, yes, no):
                return self._plain(yes) and self._plain(no)
            case Packed(parts) | Applied(_, parts):
                return all(self._plain(part) for part in parts)
            case Fused(a, b, c):
                return self._plain(a) and self._plain(b) and self._plain(c)
        return False


def _common(paths: Sequence[Path]) -> Path:
    """The conditions that all paths begin with."""
    first = paths[0]
    length = min(len(path) for path in paths)
    while any(mine is not theirs for path in paths for mine, theirs in zip(first[:length], path[:length], strict=True)):
        length -= 1
    return first[:length]


def _named(data: Data) -> str:
    """A kind of data in words."""
    names = {
        "Number": "a number",
        "Unknown": "something unknown",
        "Loaded": "loaded bytes",
        "Carried": "a register of a loop",
        "Fused": "a product",
        "Applied": "the result of an operation",
        "Packed": "a register of several elements",
        "Chosen": "one of several contents",
    }
    return names[type(data).__name__]
