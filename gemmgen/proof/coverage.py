"""Coverage of k: each stored element of a product of matrices is made from one sum of the products a[i, x] b[x, j].

Every x in 0 ... k - 1 occurs once, and zeros may follow beyond.

An index is a form: a sum that all threads of a block share, and a number for each thread, which is a table. Registers hold data
(``gemmgen.proof.data``): the lemmas below say which element of A or B an operand of a product is, for all threads, blocks and iterations.

- *Shared memory.* A load's bytes come from the store that is found by its address. The lemma: that store was carried out by its thread, it
  is ordered before the load by a barrier, and no other store to these bytes lies between. Races are excluded before, so that the order by
  barriers is the order of all accesses to a byte.
- *Loops.* A register holds at the start of iteration t the value that the previous iteration left there. An element's index as a function
  of t is that of an iteration with t - 1 in place of t; the register's content before the loop must be that function of 0. A sum of n
  products before the loop, and D products with indices n + D t + 0 ... D - 1 in iteration t, has n + D t products at the start of iteration
  t.
- *Zeros.* In place of an element, a 0 may stand where an index of the element lies outside of its array.

Where alpha is 0, kernels need not multiply: the property speaks of all other problems.

Products of tensor cores are those of ``mma.sync``: PTX's tables say which lane and register holds which element of a fragment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import z3

from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Float, Function, Register, registers_of, written
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.proof.data import (
    Access,
    Applied,
    Carried,
    Chosen,
    Data,
    Fragment,
    Fused,
    Loaded,
    Multiplied,
    Number,
    Packed,
    Part,
    TileProduct,
    Widened,
    narrow,
)
from gemmgen.proof.enumeration import NotEnumerable, Numbers
from gemmgen.proof.knowledge import Path, bits_of
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import Verdict, address_cases, element_indices, formula, place
from gemmgen.proof.parameters import whole_parameter
from gemmgen.proof.polynomials import Monomial
from gemmgen.proof.provenance import MAX_PARTS, Case, Form, NotShown, Provenance, Site, Stores, kinds_of_problems, path_key
from gemmgen.proof.semantics import uniform_comparison
from gemmgen.proof.slicing import FLOATS
from gemmgen.proof.terms import mentions
from gemmgen.proof.values import as_condition, as_term

MAX_REASONS = 6
MULTIPLIES = frozenset(("and", "div", "mad", "mul"))
"""Operations whose result may be the same for all sums if another operand is 0."""
ADDS = frozenset(("add", "neg", "sub"))
"""Operations whose other operands may be 0 on some ways: nothing is added there."""


@dataclass(frozen=True, eq=False)
class Element:
    """An element of an array, which counts as 0 where an index is out of range."""

    array: str
    indices: tuple[Form, ...]
    type: str = ""
    """The type of float that it was converted to; empty for its bits as they are."""


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
    types: Mapping[str, str]
    """The types of the operands' elements."""
    result: str
    """The type of the results' elements."""


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
    types = {array.name: array.type for array in sequence.arrays if array.name in operands}
    (result,) = (array.type for array in sequence.arrays if array.writes)
    return Product(dimension, operands, results, types, result) if all(dimension in shape for shape in operands.values()) else None


def coverage(lifter: Lifter, product: Product) -> Verdict:
    """Every stored element of a result is made from one whole sum over k. The kernel's memory, races and progress must be proved.

    Problems are distinguished by the conditions under which loops are passed by, and each kind is proved on its own.
    """
    total = Verdict("coverage")
    for assumed in kinds_of_problems(lifter, list(_scaled(lifter))):
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
        number = whole_parameter(known.function, instruction)
        if number is not None and known.contract.launch.arguments[number] == "alpha":
            registers |= {register.name for register in written(instruction)}
    for instruction in known.function.body:
        if instruction.opcode == "setp" and len(instruction.operands) == 3 and not instruction.has("ftz"):  # with which tiny numbers are 0
            one, other = instruction.operands[1:]
            if isinstance(one, Register) and one.name in registers and other in (Float(0, 32), Float(0, 64)):
                condition = uniform_comparison(known, instruction)
                for order, holds in (("eq", False), ("neu", True)):  # ne does not hold for a NaN
                    if isinstance(condition, z3.BoolRef) and instruction.has(order):
                        yield condition, holds


class _Coverage:
    def __init__(self, lifter: Lifter, product: Product, assumed: Sequence[tuple[z3.BoolRef, bool]]) -> None:
        self._known, self._product = lifter.known, product
        self._threads = self._known.contract.launch.threads
        contract = self._known.contract
        self._axes = {
            name: tuple(dimensions[axis] for axis in contract.arrays[name].axes)
            for name, dimensions in (*product.operands.items(), *product.results.items())
        }
        sizes = {contract.arrays[name].element_bytes for name in product.operands}
        self._unit = min(sizes)
        self._at = Provenance(lifter, self._unit, assumed)
        self._one_size = len(sizes) == 1
        self._k = next(
            as_term(contract.arrays[name].shape[axes.index(product.dimension)])
            for name, axes in self._axes.items()
            if product.dimension in axes
        )
        self._elements: dict[tuple[object, ...], Element] = {}
        self._sums: dict[tuple[object, ...], Sum | None] = {}
        self._carried: dict[tuple[int, str, int, int], Element | None] = {}
        self._carried_sums: dict[tuple[int, str], Sum | None] = {}
        self._failures: dict[tuple[object, ...], str] = {}
        self._types: dict[tuple[int, str], str | None] = {}
        self._pieces: dict[tuple[object, ...], Data] = {}
        self._lanes: Numbers = np.arange(self._threads, dtype=np.int64) % WARP_THREADS
        self._warps: Numbers = np.arange(self._threads, dtype=np.int64) // WARP_THREADS

    def verdict(self) -> Verdict:
        """The property: one obligation for each element that a thread stores."""
        verdict = Verdict("coverage")
        known = self._known
        if not self._one_size:
            verdict.unproved.append("the operands' elements differ in size")
            return verdict
        if _reads_short_bits_as_floats(known.function):
            verdict.unproved.append("the bits of shorter numbers are read as floats")
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

    def _key(self, data: object, path: Path) -> tuple[object, ...]:
        self._at.kept.append((data, path))
        return (id(data), *path_key(path))

    def _element(self, data: Data, path: Path, size: int) -> Element:
        """The element of an operand that a register, or its only part, holds. Raises ``NotShown``."""
        if not any(isinstance(narrow(part), Chosen) for part in (data.parts if isinstance(data, Packed) else (data,))):
            path = ()  # only choices depend on the way
        key = (*self._key(data, path), size)
        if key in self._failures:
            raise NotShown(self._failures[key])
        if key not in self._elements:
            try:
                self._elements[key] = self._uncached_element(data, path, size)
            except NotShown as error:
                self._failures[key] = str(error)
                raise
        return self._elements[key]

    def _uncached_element(self, data: Data, path: Path, size: int) -> Element:
        match data:
            case Loaded(access, offset, width) if width == size:
                return self._loaded(access, offset)
            case Loaded(access, offset, width) if width == 2 * size and access.space == "shared" and access.address is not None:
                return self._shared(access, self._at.form(access.address.z3, access.path).plus(offset), width)
            case Chosen():
                return self._chosen(data, path, size)
            case Carried(iteration, name):
                return self._carried_element(iteration, name, size)
            case Packed((part,)):
                return self._element(part, path, size)
            case Part(Carried(iteration, name), place, count):
                return self._carried_element(iteration, name, size, place, count)
            case Part(Fragment() as fragment, place, count) if size * count == 4:
                return self._of_fragment(fragment, place, size)
            case Fragment() if size == 4 and not data.transposed:
                return self._of_fragment(data, 0, size)
            case Packed((Number(zero=True), part)) if size == 2:
                return self._read_as(self._element(part, path, size), "bf16", "f32")  # the upper half of an f32
            case Widened(part, kind, into) if 8 * size == bits_of(kind):
                return self._read_as(self._element(part, path, size), kind, into)
        raise NotShown(f"an operand of a product is {_named(data)}")

    def _of_fragment(self, fragment: Fragment, place: int, size: int) -> Element:
        """An element of a register that ``ldmatrix`` loads: bytes of a row that another lane names."""
        access, lanes = fragment.access, self._lanes
        if access.address is None or access.address.base is None or (fragment.transposed and size != 2):
            raise NotShown("an address is not known")
        row, column = (lanes % 4 * 2 + place, lanes // 4) if fragment.transposed else (lanes // 4, lanes % 4 * (4 // size) + place)
        named = self._at.form(access.address.z3, access.path).taken(self._warps * WARP_THREADS + 8 * fragment.matrix + row)
        return self._shared(access, named.plus(column * size))

    def _read_as(self, element: Element, kind: str, into: str) -> Element:
        """An element whose bits are converted from a type of floats to another one."""
        if element.type or self._product.types[element.array] != kind:
            raise NotShown(f"an element of {element.array} is read as {kind}")
        return replace(element, type=into)

    def _multiplied_as(self, element: Element, kind: str) -> Element:
        """An operand of a product of numbers of a type, which is the element's own unless it was converted to it."""
        if (element.type or self._product.types[element.array]) != kind:
            raise NotShown(f"an element of {element.array} is multiplied as {kind}")
        return element

    def _loaded(self, access: Access, offset: int) -> Element:
        if access.address is None or access.address.base is None:
            raise NotShown("an address is not known")
        base = access.address.base
        if base in self._product.operands:
            return self._global(base, self._indices(access, offset), access.path)
        if base in self._known.contract.arrays:
            raise NotShown(f"an operand of a product comes from {base}")
        return self._shared(access, self._at.form(access.address.z3, access.path).plus(offset))

    def _indices(self, access: Access, offset: int) -> list[z3.ArithRef]:
        assert access.address is not None and access.address.base is not None
        array = self._known.contract.arrays[access.address.base]
        indices = element_indices(self._known, self._at.known_of(access.address.z3 + offset), array)
        if indices is None:
            raise NotShown(f"an offset in {array.name} is no sum of indices times strides")
        return indices

    def _global(self, array: str, indices: Sequence[z3.ArithRef], path: Path) -> Element:
        return Element(array, tuple(self._at.form(index, path) for index in indices))

    def _chosen(self, data: Chosen, path: Path, size: int) -> Element:
        """An element on some ways and 0 on others, where the element is outside of its array."""
        chosen: Element | None = None
        zeros: list[Path] = []
        where: tuple[str, list[z3.ArithRef]] | None = None
        for way, leaf in self._leaves(data, path):
            if isinstance(leaf, Number) and leaf.zero:
                zeros.append(way)
                continue
            element = self._element(leaf, way, size)
            bare = narrow(leaf)
            if isinstance(bare, Loaded) and bare.access.base == element.array:
                where = element.array, self._indices(bare.access, bare.offset)
            if chosen is not None and not self._equal(chosen, element, path):
                raise NotShown("an operand of a product is one of two elements")
            chosen = element
        if chosen is None:
            raise NotShown("an operand of a product is always 0")
        for way in zeros:
            if where is None or not self._at.proves(way, self._outside(*where)):
                outside = "" if where is None else f"; not shown: {formula(self._outside(*where))}"
                raise NotShown(f"a 0 stands in place of an element{outside}")
        return chosen

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
                extra = (*way, holds)
                if not self._at.excluded(way, holds):
                    pending.append((extra, branch))

    def _equal(self, one: Element, two: Element, path: Path) -> bool:
        return (one.array, one.type) == (two.array, two.type) and all(
            self._at.same(a, b, path) for a, b in zip(one.indices, two.indices, strict=True)
        )

    def _carried_element(self, iteration: z3.ArithRef, name: str, size: int, place: int = 0, count: int = 1) -> Element:
        """The value of a register, or of one of its parts, at the start of an iteration: that which the iteration before left there."""
        key = (iteration.get_id(), name, place, count)
        if key in self._carried:
            known = self._carried[key]
            if known is None:
                raise NotShown("a register that is passed from iteration to iteration")
            return known
        self._carried[key] = None
        loop = self._at.loop(iteration)
        if name not in loop.after:
            raise NotShown("a register that an iteration leaves without a known content")
        left, right = loop.after[name], loop.before[name]
        if count > 1:
            left, right = (self._piece(each, place, size, count) for each in (left, right))
        body = self._element(left, loop.again, size)
        element = replace(body, indices=tuple(self._at.moved(index, iteration, iteration - 1) for index in body.indices))
        first = replace(body, indices=tuple(self._at.moved(index, iteration, z3.IntVal(0)) for index in element.indices))
        before = self._element(right, loop.entry, size)
        if not self._equal(before, first, loop.entry):
            raise NotShown("a register holds another element before a loop than the loop's iterations suggest")
        self._carried[key] = element
        return element

    # Shared memory ---------------------------------------------------------------------------------------------------------------

    def _shared(self, access: Access, address: Form, width: int = 0) -> Element:
        """The element that a load finds at an address in shared memory; ``width``: bytes that it was converted to, 0 for none."""
        cases = self._at.sources(access, address)
        general = next((case for case in cases if case.at is None), cases[0])
        element = self._read(access, address, general, width)
        if general.stores.iteration is None:
            return element
        iteration = general.stores.iteration
        for case in cases:
            if case is general:
                continue
            here = replace(element, indices=tuple(self._at.moved(index, iteration, z3.IntVal(case.at or 0)) for index in element.indices))
            other = self._read(access, address, case, width)
            if not self._equal(other, here, (*access.path, iteration == (case.at or 0))):
                raise NotShown("the addresses of a load in the first iterations do not follow the pattern of the others")
        return element

    def _read(self, access: Access, address: Form, case: Case, width: int) -> Element:
        stores = case.stores
        site, part, thread = self._at.written(address, case)
        total: Element | None = None
        tables: list[Numbers] = []
        for number in np.unique(site).tolist():
            self._at.carried_out(access, stores.sites[number], case, thread[site == number])
        code = site * MAX_PARTS + part
        for both in np.unique(code).tolist():
            mine = code == both
            element = self._stored_in_iteration(stores, both // MAX_PARTS, both % MAX_PARTS, case.shift, width)
            if total is None:
                total, tables = element, [np.zeros(self._threads, dtype=np.int64) for _ in element.indices]
            if (total.array, total.type) != (element.array, element.type) or any(
                a.outer != b.outer for a, b in zip(total.indices, element.indices, strict=True)
            ):
                raise NotShown("threads load elements of different forms")
            for table, index in zip(tables, element.indices, strict=True):
                table[mine] = index.table[thread[mine]]
        assert total is not None
        return replace(total, indices=tuple(Form(index.outer, table) for index, table in zip(total.indices, tables, strict=True)))

    def _stored_in_iteration(self, stores: Stores, site: int, part: int, shift: int, width: int) -> Element:
        """The value that a store wrote that many iterations later, in terms of the present iteration."""
        key = ("stored", id(stores), site, part, shift, width)
        if key not in self._elements:
            element = self._stored_element(stores.sites[site], part, width)
            if stores.iteration is not None and shift:
                moved = tuple(self._at.moved(index, stores.iteration, stores.iteration + shift) for index in element.indices)
                element = replace(element, indices=moved)
            self._elements[key] = element
        return self._elements[key]

    def _stored_element(self, site: Site, part: int, width: int) -> Element:
        access, size = site.access, self._unit
        if width:
            registers = list(registers_of(access.instruction.operands[1])) if access.source is None else []
            floats = bool(registers) and all(register.type in FLOATS for register in registers)
            if not floats or site.bytes != width * len(access.data) or part % (width // size):
                raise NotShown("a load of other bytes than one register's, which was converted")
            element = self._element(access.data[part // (width // size)], access.path, size)
            if not element.type:
                raise NotShown("a load of several elements that is used as one")
            return element
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
            case Loaded(access, offset, whole) if whole == size * parts:
                key = ("piece", id(data), part)
                if key not in self._pieces:
                    self._at.kept.append(data)
                    self._pieces[key] = Loaded(access, offset + part * size, size)
                return self._pieces[key]
            case Chosen(condition, yes, no):
                key = ("piece", id(data), part)
                if key not in self._pieces:
                    self._at.kept.append(data)
                    self._pieces[key] = Chosen(condition, self._piece(yes, part, size, parts), self._piece(no, part, size, parts))
                return self._pieces[key]
            case Fragment() | Carried():
                key = ("piece", id(data), part)
                if key not in self._pieces:
                    self._at.kept.append(data)
                    self._pieces[key] = Part(data, part, parts)
                return self._pieces[key]
            case Number(zero=True):
                return data
        raise NotShown(f"a part of {_named(data)}")

    def _copied(self, load: Access, part: int) -> Element:
        """An element of an asynchronous copy, which is 0 beyond the bytes that are read."""
        array = load.base
        if load.address is None or array is None or array not in self._product.operands:
            raise NotShown("a copy from elsewhere")
        offset, size = part * self._unit, as_term(load.size)
        indices: list[z3.ArithRef] | None = None
        for conditions, address in address_cases(self._known, replace(load.address, term=self._at.known_of(load.address.z3))):
            if self._at.proves((*load.path, *conditions), size <= offset):
                continue  # this address is only named where nothing is read
            if indices is not None:
                raise NotShown("a copy from one of two places")
            indices = self._indices(replace(load, address=address), offset)
        if indices is None:
            raise NotShown("a copy that always fills with 0")
        filled = z3.And(size <= offset, self._outside(array, indices))
        if not self._at.proves((*load.path, size < offset + self._unit), filled):
            raise NotShown(f"a copy fills an element with 0; not shown: {formula(filled)}")
        return self._global(array, indices, load.path)

    def _sum(self, data: Data, path: Path) -> Sum | None:
        """A sum of products over k that a register holds; None if it is no such sum. Raises ``NotShown`` for a wrong one."""
        key = self._key(data, path)
        if key not in self._sums:
            self._sums[key] = None
            self._sums[key] = self._uncached_sum(data, path)
        return self._sums[key]

    def _uncached_sum(self, data: Data, path: Path) -> Sum | None:
        chain: list[Fused | Multiplied] = []
        while isinstance(data, Fused | Multiplied):
            chain.append(data)
            data = _addend(data)
        match data:
            case Number(zero=True):
                base: Sum | None = Sum(z3.IntVal(0), None)
            case Carried(iteration, name):
                base = self._carried_sum(iteration, name)
            case Chosen():
                base = self._chosen_sum(data, path)
            case _:
                base = None
        if base is None:
            return None
        return self._extended(base, chain[::-1], path)

    def _extended(self, base: Sum, chain: Sequence[Fused | Multiplied], path: Path) -> Sum | None:
        """A sum and the products that are added to it."""
        if not chain:
            return base
        pairs: list[tuple[Element, Element, Path]] = []
        for link in chain:
            if isinstance(link, Multiplied):
                pairs += [(*pair, link.product.path) for pair in self._products(link)]
                continue
            if not (self._holds_elements(link.a) and self._holds_elements(link.b)):
                return None  # an operation of the epilogue
            one, other = (self._element(factor, path, self._unit) for factor in (link.a, link.b))
            pairs.append((self._multiplied_as(one, link.type), self._multiplied_as(other, link.type), path))
        free = base.free
        start = self._known.polynomials.of(base.count)
        distances: list[int] = []
        for one, other, where in pairs:
            summed: list[Form] = []
            mine: dict[str, Form] = {}
            if {one.array, other.array} != set(self._product.operands):
                raise NotShown("both operands of a product come from one array")
            for element in (one, other):
                for dimension, index in zip(self._axes[element.array], element.indices, strict=True):
                    if dimension == self._product.dimension:
                        summed.append(index)
                    elif dimension in mine:
                        if not self._at.same(mine[dimension], index, where):
                            raise NotShown(f"the operands of a product differ in {dimension}")
                    else:
                        mine[dimension] = index
            if not self._at.same(summed[0], summed[1], where):
                raise NotShown(f"the operands of a product have different {self._product.dimension}")
            distances.append(self._distance(summed[0], base.count, start, where))
            if free is not None and not all(self._at.same(free[name], mine[name], where) for name in mine):
                raise NotShown("a sum holds products of different rows or columns")
            free = mine
        if sorted(distances) != list(range(len(distances))):
            missing = sorted(set(range(len(distances))) - set(distances))
            raise NotShown(f"products {distances[:8]} follow each other, where {missing[:4] or 'others'} are missing")
        ordered = base.ordered and distances == list(range(len(distances)))
        return Sum(z3.simplify(base.count + len(distances)), free, ordered)

    def _products(self, link: Multiplied) -> list[tuple[Element, Element]]:
        """The products that a warp's tensor cores add to one register of each lane, by the tables of PTX's ``mma.sync``."""
        product, size = link.product, link.product.element_bytes
        if size != self._unit:
            raise NotShown("fragments of another type than the operands")
        each, lanes, first = 4 // size, self._lanes, self._warps * WARP_THREADS
        products: list[tuple[Element, Element]] = []
        for index in range(product.k):
            register, lane, part = index // (4 * each), index % (4 * each) // each, index % each
            a = self._fragment_element(product, product.a[2 * register + link.place // 2], part, each)
            b = self._fragment_element(product, product.b[register], part, each)
            row = first + lanes // 4 * 4 + lane
            column = first + (lanes % 4 * 2 + link.place % 2) * 4 + lane
            products.append((_taken(self._multiplied_as(a, product.type), row), _taken(self._multiplied_as(b, product.type), column)))
        return products

    def _fragment_element(self, product: TileProduct, data: Data, part: int, parts: int) -> Element:
        piece = data if parts == 1 else self._piece(data, part, self._unit, parts)
        return self._element(piece, product.path, self._unit)

    def _holds_elements(self, data: Data) -> bool:
        """False for a number, a parameter or a result, as an epilogue multiplies by."""
        match data:
            case Number() | Fused() | Multiplied() | Applied():
                return False
            case Loaded(access) if access.address is not None and access.address.base in self._known.contract.arrays:
                return access.address.base in self._product.operands
            case Chosen(_, yes, no):
                return self._holds_elements(yes) or self._holds_elements(no)
            case Widened(part):
                return self._holds_elements(part)
            case Carried(iteration, name):
                loop = self._at.loop(iteration)
                return not any(isinstance(each.get(name), Fused | Multiplied | Applied) for each in (loop.before, loop.after))
        return True

    def _distance(self, index: Form, count: z3.ArithRef, start: Mapping[Monomial, int], path: Path) -> int:
        """Distance of an index of k from the first product that a sum lacks."""
        if (index.table != index.table[0]).any():
            raise NotShown(f"threads multiply different {self._product.dimension}")
        number = int(index.table[0])
        if {monomial: times for monomial, times in start.items() if monomial} == index.outer:
            return number - start.get((), 0)
        distance = z3.simplify(self._at.outer_term(index.outer) + number - count, som=True)
        if z3.is_int_value(distance):
            return int(str(distance))
        offset = number - start.get((), 0)
        for guess in (offset, 0):
            if self._at.proves(path, distance == guess):
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
            if theirs and not all(self._at.same(mine[name], theirs[name], path) for name in mine):
                raise NotShown("a sum of products of different rows or columns")
            condition = reduce(z3.And, [as_condition(part) for part in way[len(path) :]])
            count = total.count if total.count.eq(each.count) else z3.If(condition, each.count, total.count)
            total = Sum(count, total.free or each.free, total.ordered and each.ordered)
        return total

    def _carried_sum(self, iteration: z3.ArithRef, name: str) -> Sum | None:
        """The sum that a register holds at the start of an iteration."""
        key = (iteration.get_id(), name)
        if key in self._carried_sums:
            return self._carried_sums[key]
        self._carried_sums[key] = None
        loop = self._at.loop(iteration)
        if name not in loop.after and loop.again != (False,):
            return None
        before = self._sum(loop.before[name], loop.entry)
        if before is None or mentions(before.count, [iteration]):
            return None
        if loop.again == (False,):
            self._carried_sums[key] = before
            return before
        added, link = 0, loop.after[name]
        links: list[Fused | Multiplied] = []
        while isinstance(link, Chosen):
            ways = [leaf for _, leaf in self._leaves(link, loop.again)]
            if len(ways) != 1:
                return None
            link = ways[0]
        while isinstance(link, Fused | Multiplied):
            links.append(link)
            added += 1 if isinstance(link, Fused) else link.product.k
            link = _addend(link)
        if not (isinstance(link, Carried) and link.iteration.eq(iteration) and link.name == name):
            return None
        start = Sum(z3.simplify(before.count + iteration * added), before.free, before.ordered)
        after = self._extended(start, links[::-1], loop.again)
        if after is None or not self._turnless(after.free):
            return None
        carried = Sum(start.count, after.free, after.ordered)
        self._carried_sums[key] = carried
        return carried

    def _turnless(self, free: Mapping[str, Form] | None) -> bool:
        return free is None or not any(mentions(self._at.outer_term(form.outer), self._known.finished) for form in free.values())

    # Results ---------------------------------------------------------------------------------------------------------------------

    def _stored(self, store: Access) -> None:
        if store.kind != "store" or store.address is None or store.address.base is None:
            raise NotShown("a store to an unknown array, or an atomic one")
        if not store.data or not isinstance(store.size, int):
            raise NotShown("the stored value is unknown")
        array = self._known.contract.arrays[store.address.base]
        size = array.element_bytes
        if store.size % (size * len(store.data)):
            raise NotShown("a store of parts of elements")
        parts = store.size // size // len(store.data)
        stored = [data if parts == 1 else self._piece(data, part, size, parts) for data in store.data for part in range(parts)]
        for number, data in enumerate(stored):
            indices = [self._at.form(index, store.path) for index in self._indices(store, number * size)]
            places = dict(zip(self._axes[array.name], indices, strict=True))
            if (kind := self._type(data, store.path)) != self._product.result:
                raise NotShown(f"{kind or 'a number of no known type'} is stored in {array.name}, whose type is {self._product.result}")
            whole = 0
            for way, value, _ in self._sums_in(data, store.path):
                whole += 1
                if value.free is not None and not all(self._at.same(value.free[name], places[name], way) for name in value.free):
                    raise NotShown(f"the sum that is stored belongs to another element of {array.name}")
                if not self._at.proves(way, value.count >= self._k):
                    raise NotShown(f"the sum may end before {self._product.dimension}; not shown: {formula(value.count >= self._k)}")
            if not whole:
                raise NotShown("no sum of products is stored")

    def _type(self, data: Data, path: Path) -> str | None:
        """The type that a number was computed or converted to from a sum; empty for constants and parameters, None if it is not known."""

        def fits(part: Data, kind: str) -> bool:
            return self._plain(part, path, True) or self._type(part, path) in ("", kind)

        match data:
            case Number():
                return ""
            case Fused(kind, a, b, c):
                whole = self._sum(data, path) is not None
                return kind if whole or all(fits(each, kind) for each in (a, b, c)) else None
            case Multiplied(product):
                return product.result
            case Widened(part, kind, into):
                return into if fits(part, kind) else None
            case Packed((part,)):
                return self._type(part, path)
            case Chosen():
                return _common({self._type(leaf, way) for way, leaf in self._leaves(data, path)})
            case Carried(iteration, name):
                key = (iteration.get_id(), name)
                if key not in self._types:
                    self._types[key] = ""  # as far as iterations pass it on
                    loop = self._at.loop(iteration)
                    ways = ((loop.before, loop.entry), (loop.after, loop.again))
                    self._types[key] = _common({self._type(contents[name], way) for contents, way in ways if name in contents})
                return self._types[key]
            case Applied("selp", operands):
                return _common({self._type(each, path) for each in operands})
            case Applied(_, operands, _, (into, kind)):
                return into if all(fits(each, kind) for each in operands) else None
            case Loaded(access, _, size) if (array := self._known.contract.arrays.get(access.base or "")) is not None:
                return array.type if size == array.element_bytes else None
        return None

    def _sums_in(self, data: Data, path: Path) -> Iterator[tuple[Path, Sum, Data]]:
        """The one sum that a stored value is made from, on each way, and its register. Raises ``NotShown`` if there are more."""
        for way, leaf in self._leaves(data, path):
            total = self._sum(leaf, way)
            if total is not None:
                yield way, total, leaf
                continue
            inner: list[tuple[Path, Sum, Data]] = []
            factors: Sequence[Data] = ()
            addends: Sequence[Data] = ()
            match leaf:
                case Fused(_, a, b, c):
                    added = self._plain(a, way, True) and self._plain(b, way, True)
                    factors, addends = ((), (a, b, c)) if added else ((a, b), (c,))
                    operands: Sequence[Data] = ()
                case Applied(opcode, operands, compared):
                    if opcode in ADDS:
                        operands, addends = (), operands
                    elif opcode in MULTIPLIES:
                        operands, factors = (), operands
                    if (
                        opcode == "selp"
                        and any(self._plain(each, way) for each in operands)
                        and not self._compares(operands, compared, way)
                    ):
                        raise NotShown("a result is chosen from a sum and a value without one, by another comparison than of the sum")
                case Widened(part):
                    operands = [part]
                case _:
                    raise NotShown(f"a result is made from {_named(leaf)}")
            if any(self._plain(each, way) and self._vanishes(each) for each in factors):
                raise NotShown("a result is made from a sum times 0")
            for part in (*operands, *factors, *addends):
                if not self._plain(part, way, any(part is each for each in addends)):
                    mine = list(self._sums_in(part, way))
                    if any(one is not other for _, _, one in inner for _, _, other in mine):
                        raise NotShown("a result is made from several sums")
                    inner += mine
            if not inner and not self._at.proves(way, self._k <= 0):
                raise NotShown("a result is made from no sum on some way")
            yield from inner

    def _compares(self, operands: Sequence[Data], compared: Sequence[Data], path: Path) -> bool:
        """True if the sum that some operands are made from is compared, and no other one."""
        chosen, tested = self._made_from(operands, path), self._made_from(compared, path)
        return bool(tested) and tested <= chosen

    def _made_from(self, operands: Sequence[Data], path: Path) -> set[int]:
        """Numbers of the sums that values are made from; none if one of the values is neither made from a sum nor without any."""
        try:
            return {id(leaf) for each in operands if not self._plain(each, path) for _, _, leaf in self._sums_in(each, path)}
        except NotShown:
            return set()

    def _plain(self, data: Data, path: Path, adds: bool = False) -> bool:
        """True for numbers, parameters, and elements of arrays other than the operands. ``adds``: one that is added may be 0 on some ways.

        Numbers that depend on the problem or the thread in any other way are no part of an epilogue.
        """
        match data:
            case Number():
                return True
            case Chosen():
                leaves = list(self._leaves(data, path))
                numbers = [leaf for _, leaf in leaves if isinstance(leaf, Number)] if len(leaves) > 1 else []
                fitting = not numbers or (adds and len(numbers) < len(leaves) and all(number.zero for number in numbers))
                return fitting and all(self._plain(leaf, way, adds) for way, leaf in leaves)
            case Loaded(access):
                base = access.base
                return base in self._known.contract.arrays and base not in self._product.operands
            case Widened(part):
                return self._plain(part, path, adds)
            case Packed(parts):
                return all(self._plain(part, path, adds) for part in parts)
            case Applied(opcode, parts):
                return all(self._plain(part, path, adds and opcode in ADDS) for part in parts)
            case Fused(_, a, b, c):
                return all(self._plain(part, path, adds) for part in (a, b, c))
        return False

    def _vanishes(self, data: Data) -> bool:
        """True for 0, and products with it."""
        match data:
            case Number(zero):
                return zero
            case Widened(part):
                return self._vanishes(part)
            case Fused(_, a, b, c):
                return self._vanishes(c) and (self._vanishes(a) or self._vanishes(b))
        return False


def _reads_short_bits_as_floats(function: Function) -> bool:
    """True if a register of 32 bits that a shorter number was loaded to is copied to one of a float."""
    short: set[str] = set()
    copies = [each for each in function.body if each.opcode in ("mov", "selp")]
    for each in function.body:
        if each.opcode == "ld" and TYPE_BYTES.get(each.type, 4) < 4:
            short |= {register.name for register in written(each) if register.type in ("b32", "u32", "s32")}
    for _ in copies:
        more = {
            target.name
            for each in copies
            for target in written(each)
            if any(isinstance(source, Register) and source.name in short for source in each.operands[1:])
        }
        if more <= short:
            break
        short |= more
    return any(target.type == "f32" and target.name in short for each in copies for target in written(each))


def _common(kinds: set[str | None]) -> str | None:
    """The one type of some numbers, of which constants have any."""
    several = kinds - {""}
    return "" if not several else several.pop() if len(several) == 1 else None


def _addend(link: Fused | Multiplied) -> Data:
    """The sum that a product is added to."""
    return link.c if isinstance(link, Fused) else link.product.c[link.place]


def _taken(element: Element, threads: Numbers) -> Element:
    """The element that other threads hold, by thread."""
    return replace(element, indices=tuple(index.taken(threads) for index in element.indices))


def _named(data: Data) -> str:
    """A kind of data in words."""
    names = {
        "Number": "a number",
        "Unknown": "something unknown",
        "Loaded": "loaded bytes",
        "Carried": "a register of a loop",
        "Fused": "a product",
        "Applied": "the result of an operation",
        "Widened": "a number of a longer type",
        "Packed": "a register of several elements",
        "Chosen": "one of several contents",
        "Fragment": "a fragment of several elements",
        "Part": "a part of a register",
        "Multiplied": "a product of fragments",
    }
    return names[type(data).__name__]
