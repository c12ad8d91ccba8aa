"""Properties of a lifted kernel, and z3's verdict on each: memory safety, freedom from races, results stored at most once, progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, permutations

import z3

from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.proof.contract import Array
from gemmgen.proof.data import Access
from gemmgen.proof.distances import Distances
from gemmgen.proof.knowledge import Knowledge, Wait
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.members import incomplete_masks, incomplete_warps
from gemmgen.proof.rows import is_dense, split_into_rows, within_dense, within_rows
from gemmgen.proof.solver import Answer
from gemmgen.proof.storing import Digits, Stored, shared_elements
from gemmgen.proof.terms import Node, mentions, node_of
from gemmgen.proof.tickets import tickets
from gemmgen.proof.values import Condition, Term, Value, as_condition, as_term, conjunction, conjuncts

OPERATIONS = frozenset({"add", "and", "dec", "inc", "max", "min", "or", "xor"})
"""Reductions of atomics."""
PROPERTIES = ("memory", "races", "once", "progress")
WARPGROUP_THREADS = 128
MEANINGS: dict[str, str] = {
    "memory": "every access lies within its array, and is aligned",
    "races": "no two threads of a block touch the same shared memory between the same barriers, unless both read",
    "once": "no two threads of the grid store the same element of a result",
    "progress": "all threads of a block reach the same barriers, and every loop ends",
    "initialised": "registers, shared memory and results are written before they are read",
    "handover": "partial results of other blocks are read after they were stored, and are visible",
    "complete": "every element of a result is stored",
    "coverage": "each stored element of a product is one sum over all of k, each index once, where alpha is not 0",
}
MAX_FORMULA = 300
"""Characters of a question that had no answer."""
NO_ARRAY = "the array that it points into is not known"
MAX_CASES = 16
"""Cases of one address that are looked at."""
MAX_ORDERS = 6
"""Orders of an array's axes that are tried."""
MAX_UNPROVED = 6
"""Unproved obligations of one property, after which its rest is not tried: it is lost, and time is better spent on the others."""
SMALL_SIZES = (1, 8, 64, 300, 3000)
"""Bounds of dimensions under which a counterexample is looked for first, since small ones are easy to read and to run."""


@dataclass(frozen=True)
class Counterexample:
    """Sizes, a thread and a statement for which a property seems not to hold."""

    problem: dict[str, int]
    thread: dict[str, int]
    """The thread's index and its block's, by the names of their registers."""
    statement: str
    line: str
    element: str = ""
    """The access in words, such as ``writes C[65][0], where C has 65 x 1 elements``."""


@dataclass
class Verdict:
    """One property: proved, or the statements that stand in the way."""

    name: str
    obligations: int = 0
    proved: int = 0
    unproved: list[str] = field(default_factory=list)
    counterexamples: list[Counterexample] = field(default_factory=list)
    spaces: set[str] = field(default_factory=set)
    """Kinds of memory with an access that was not proved."""
    left: set[str] = field(default_factory=set)
    """Arrays with a store that was not proved to lie within them."""

    @property
    def hopeless(self) -> bool:
        """True if so many obligations are unproved that the rest is not tried."""
        return len(self.unproved) + len(self.counterexamples) >= MAX_UNPROVED

    @property
    def holds(self) -> bool:
        """True if every obligation was proved."""
        return not self.unproved and not self.counterexamples

    def note(self, answer: Answer, access: Access, why: str, known: Knowledge, premises: Sequence[Condition], goal: Condition) -> None:
        """Adds one obligation's answer."""
        self.obligations += 1
        if answer.verdict == "proved":
            self.proved += 1
        elif answer.verdict == "refuted" and not self.counterexamples:
            self.counterexamples.append(_counterexample(known, access, premises, goal, answer))
        elif answer.verdict == "refuted":
            self.unproved.append(f"{place(access)}: {why}")
        else:
            self.unproved.append(f"{place(access)}: {why}; no answer to {formula(goal)}")


def formula(goal: Condition) -> str:
    """A question to the solver as text, cut if it is long."""
    text = " ".join(as_condition(goal).sexpr().split())
    return text if len(text) <= MAX_FORMULA else f"{text[:MAX_FORMULA]} …"


def place(access: Access) -> str:
    """An access by its statement and its line of CUDA."""
    location = access.instruction.location
    at = f" ({location})" if location is not None else ""
    return f"PTX line {access.instruction.line}: {access.instruction.text.strip().rstrip(';')}{at}"


def _counterexample(known: Knowledge, access: Access, premises: Sequence[Condition], goal: Condition, answer: Answer) -> Counterexample:
    assert answer.model is not None
    model: z3.ModelRef = answer.model
    symbols = known.contract.symbols
    outside = _outside(known, access)

    def other(more: Sequence[Condition]) -> z3.ModelRef | None:
        outcome = known.solver.implies([*premises, *more], goal, 1000)
        return outcome.model if outcome.verdict == "refuted" else None

    # An index beyond its axis may be another row's element: a run shows nothing of it.
    wanted: list[Condition] = []
    if outside is not None and (better := other([outside])) is not None:
        wanted, model = [outside], better
    for limit in SMALL_SIZES:
        if (better := other([*wanted, *[symbol <= limit for symbol in symbols.values()]])) is not None:
            model = better
            break
    else:
        # Some sizes must be large, so that the others are made small one after the other, the largest first.
        sizes = {name: model.eval(symbol, model_completion=True).as_long() for name, symbol in symbols.items()}
        for symbol in (symbols[name] for name in sorted(sizes, key=lambda name: -sizes[name])):
            for limit in SMALL_SIZES:
                if (better := other([*wanted, symbol <= limit])) is not None:
                    wanted.append(symbol <= limit)
                    model = better
                    break
    values = {name: known.contract.value_of(name, model) for name in symbols}
    indices: dict[str, int] = {}
    for group, prefix in ((known.thread, "tid"), (known.block, "ctaid")):
        for axis, value in group.items():
            if not isinstance(value.term, int):
                indices[f"{prefix}.{axis}"] = model.eval(value.term, model_completion=True).as_long()
    location = access.instruction.location
    at = "" if location is None else str(location.own())
    return Counterexample(values, indices, access.instruction.text.strip(), at, _element(known, access, model))


def _outside(known: Knowledge, access: Access) -> z3.BoolRef | None:
    """The condition under which an access begins before its array or ends behind the last element; None for accesses to other memory."""
    array = known.contract.arrays.get(access.base or "")
    if array is None or access.address is None:
        return None
    last = sum(((as_term(extent) - 1) * as_term(stride) for extent, stride in zip(array.shape, array.strides, strict=True)), z3.IntVal(0))
    return z3.Or(access.address.z3 < 0, access.address.z3 + as_term(access.size) > (last + 1) * array.element_bytes)


def _element(known: Knowledge, access: Access, model: z3.ModelRef) -> str:
    """The element that an access to an array begins with, in words; empty where it has no indices."""
    array = known.contract.arrays.get(access.base or "")
    if array is None or access.address is None:
        return ""
    indices = element_indices(known, access.address.z3, array)
    if indices is None:
        return ""

    def numbers(terms: Sequence[Term]) -> list[str]:
        by_axis = sorted(zip(array.axes, terms, strict=True), key=lambda pair: pair[0])
        return [str(model.eval(as_term(term), model_completion=True)) for _, term in by_axis]

    verb = "writes" if access.writes else "reads"
    place = "".join(f"[{index}]" for index in numbers(indices))
    return f"{verb} {array.name}{place}, where {array.name} has {' x '.join(numbers(array.shape))} elements"


# Memory --------------------------------------------------------------------------------------------------------------------


def memory(lifter: Lifter) -> Verdict:
    """Every access within its array, and aligned."""
    known, verdict = lifter.known, Verdict("memory")
    for access in known.lifted.accesses:
        if verdict.hopeless:
            verdict.unproved.append("and statements after these, which were not tried")
            verdict.spaces |= {access.space for access in known.lifted.accesses}
            verdict.left |= {access.address.base or "" for access in known.lifted.accesses if access.writes and access.address is not None}
            break
        lost = len(verdict.unproved) + len(verdict.counterexamples)
        premises = [*known.facts, *access.path]
        if not isinstance(access.size, int):
            premises.append(access.size > 0)
        if access.address is None or access.address.base is None:
            verdict.obligations += 1
            verdict.unproved.append(f"{place(access)}: {NO_ARRAY}")
            verdict.spaces.add(access.space)
            continue
        for conditions, address in address_cases(known, access.address):
            goal = _goal(known, access, address)
            if isinstance(goal, str):
                verdict.obligations += 1
                verdict.unproved.append(f"{place(access)}: {goal}")
                continue
            if _in_rows(known, access, address, [*premises, *conditions]):
                answer = Answer("proved")
            else:
                answer = known.solver.implies([*premises, *conditions], goal)
            if answer.verdict == "unknown" and all(known.solver.proves([*premises, *conditions], part) for part in conjuncts([goal])):
                answer = Answer("proved")
            verdict.note(answer, access, "bounds or alignment not proved within the time", known, [*premises, *conditions], goal)
        if len(verdict.unproved) + len(verdict.counterexamples) > lost:
            verdict.spaces.add(access.space)
            if access.writes:
                verdict.left.add(access.address.base)
    return verdict


def address_cases(known: Knowledge, address: Value) -> list[tuple[list[Condition], Value]]:
    """An address by the conditions under which it is a sum of indices times strides: a choice between two pointers is two cases."""
    array = known.contract.arrays.get(address.base or "")
    if array is None or is_dense(known, array):
        return [([], address)]
    cases: list[tuple[list[Condition], Value]] = []
    pending: list[tuple[list[Condition], z3.ArithRef]] = [([], address.z3)]
    while pending:
        conditions, term = pending.pop()
        indices = element_indices(known, term, array)
        choice = first_choice(term) if indices is None else _choice_of_rows(indices, array)
        if choice is None or len(pending) + len(cases) >= MAX_CASES:
            cases.append((conditions, replace(address, term=term)))
            continue
        for holds in (True, False):
            chosen = z3.simplify(z3.substitute(term, (choice, z3.BoolVal(holds))))
            pending.append(([*conditions, choice if holds else z3.Not(choice)], chosen))
    return cases


def first_choice(term: z3.ArithRef) -> z3.BoolRef | None:
    """The condition of a choice in a term."""
    return next((_condition_of(part) for part in node_of(term).parts() if part.kind == z3.Z3_OP_ITE), None)


def _choice_of_rows(indices: Sequence[z3.ArithRef], array: Array) -> z3.BoolRef | None:
    """The condition of a choice between numbers that depend on a stride: within an index, where the stride's own index misses them."""
    symbols = [symbol for stride in array.strides if not isinstance(stride, int) and (symbol := _symbol_and_factor(stride)[0]) is not None]
    wanted = {symbol.get_id() for symbol in symbols}
    parts = (part for index in indices for part in node_of(index).parts())
    choices = (part for part in parts if part.kind == z3.Z3_OP_ITE and any(arm.symbols & wanted for arm in part.children[1:]))
    return next((_condition_of(choice) for choice in choices), None)


def _condition_of(choice: Node) -> z3.BoolRef:
    condition = choice.children[0].term
    assert isinstance(condition, z3.BoolRef)
    return condition


def _goal(known: Knowledge, access: Access, address: Value) -> Condition | str:
    assert address.base is not None
    offset, size = address.z3, access.size
    if address.base in known.contract.arrays:
        if access.space not in ("global", "generic"):
            return f"{address.base} is no array in {access.space} memory"
        return _global_goal(known, access, offset, known.contract.arrays[address.base])
    variable = known.function.find_variable(0, address.base) or known.module.variables.get(address.base)
    if variable is None:
        return f"nothing is known of {address.base}"
    if access.space not in (variable.space, "generic") or (access.writes and variable.space in ("const", "param")):
        return f"{variable.name} is in {variable.space} memory"
    aligned = offset % access.width == 0 if access.width > 1 else True
    if variable.alignment % access.width and access.width > 1:
        return f"{variable.name} is aligned to {variable.alignment} bytes"
    if not variable.size and not _is_dynamic(known, address.base):
        return f"nothing is known of the size of {variable.name}"
    total: Term = variable.size if variable.size else known.contract.dynamic_shared
    return z3.And(offset >= 0, offset + as_term(size) <= as_term(total), as_condition(aligned))


def _in_rows(known: Knowledge, access: Access, address: Value, premises: Sequence[Condition]) -> bool:
    """True if an access to an array of contiguous rows lies within it, and is aligned; its array and size are known to be fit for it."""
    array = known.contract.arrays.get(address.base or "")
    if array is None or not isinstance(access.size, int) or access.size % array.element_bytes:
        return False
    inside = within_dense if is_dense(known, array) else within_rows
    return inside(known, address.z3, array, access.size // array.element_bytes, access.width, premises)


def _global_goal(known: Knowledge, access: Access, offset: z3.ArithRef, array: Array) -> Condition | str:
    if access.writes and not array.writable:
        return f"{array.name} is an input"
    if array.alignment % access.width:
        return f"{array.name} is aligned to {array.alignment} bytes only"
    if is_dense(known, array):
        limit = as_term(array.shape[0]) * as_term(array.strides[0]) * array.element_bytes
        return z3.And(offset >= 0, offset + as_term(access.size) <= limit, offset % access.width == 0)
    indices = element_indices(known, offset, array)
    if indices is None:
        return f"the offset in {array.name} is no sum of indices times strides"
    goals: list[z3.BoolRef] = []
    count = _elements(access.size, array)
    if count is None:
        return f"it touches parts of elements of {array.name}, or several that are not contiguous"
    for place_, (index, extent) in enumerate(zip(indices, array.shape, strict=True)):
        last = index + count - 1 if place_ == len(indices) - 1 else index
        goals += [index >= 0, last < as_term(extent)]
    if access.width > array.element_bytes:
        goals.append(_aligned(offset, indices, access.width, array))
    return z3.And(*goals)


def _aligned(offset: z3.ArithRef, indices: Sequence[z3.ArithRef], width: int, array: Array) -> z3.BoolRef:
    """The offset is a multiple of a width: where all strides are, it is enough that the place in a row is."""
    factors = [stride if isinstance(stride, int) else _symbol_and_factor(stride)[1] for stride in array.strides[:-1]]
    if array.strides[-1] == 1 and all(factor * array.element_bytes % width == 0 for factor in factors):
        return indices[-1] % (width // array.element_bytes) == 0
    return offset % width == 0


def _elements(size: Term, array: Array) -> z3.ArithRef | None:
    """Elements that so many bytes are; None if they are no whole number of elements, or several that are not contiguous."""
    element_bytes = array.element_bytes
    if isinstance(size, int):
        several = size > element_bytes and not (isinstance(array.strides[-1], int) and array.strides[-1] == 1)
        return None if size % element_bytes or several else z3.IntVal(size // element_bytes)
    if not (isinstance(array.strides[-1], int) and array.strides[-1] == 1):
        return None
    return (as_term(size) + (element_bytes - 1)) / element_bytes


def element_indices(known: Knowledge, offset: z3.ArithRef, array: Array) -> list[z3.ArithRef] | None:
    """Indices whose products with the strides add up to an offset in bytes: the coefficients of the strides in its sum of monomials.

    None if the offset has no such form. Strides of 1 take the rest.
    """
    rest, number = known.polynomials.split(offset)
    key = array.name, rest
    if key not in known.indices:
        known.indices[key] = _indices(known.polynomials.factors(rest), array)
    indices = known.indices[key]
    if indices is None or number % array.element_bytes:
        return None
    unit = next((axis for axis, stride in enumerate(array.strides) if isinstance(stride, int)), None)
    if number and unit is None:
        return None
    return [
        index if axis != unit or not number else z3.simplify(index + number // array.element_bytes) for axis, index in enumerate(indices)
    ]


def _indices(monomials: Sequence[tuple[int, list[z3.ArithRef]]], array: Array) -> list[z3.ArithRef] | None:
    """The indices of a sum without constant."""
    unit: int | None = None
    indices: list[z3.ArithRef] = []
    for axis, stride in enumerate(array.strides):
        if isinstance(stride, int):
            if stride != 1 or unit is not None:
                return None
            unit = axis
            indices.append(z3.IntVal(0))
            continue
        symbol, factor = _symbol_and_factor(stride)
        if symbol is None:
            return None
        index: z3.ArithRef = z3.IntVal(0)
        rest: list[tuple[int, list[z3.ArithRef]]] = []
        for number, parts in monomials:
            times = sum(part.eq(symbol) for part in parts)
            if not times:
                rest.append((number, parts))
                continue
            divisor = factor * array.element_bytes
            if times > 1 or number % divisor:
                return None
            index = index + _product(number // divisor, [part for part in parts if not part.eq(symbol)])
        monomials = rest
        indices.append(z3.simplify(index))
    if unit is None:
        return None if monomials else indices
    last: z3.ArithRef = z3.IntVal(0)
    for number, parts in monomials:
        if number % array.element_bytes:
            return None
        last = last + _product(number // array.element_bytes, parts)
    indices[unit] = z3.simplify(last)
    return indices


def _monomials(term: z3.ArithRef) -> list[tuple[int, list[z3.ArithRef]]]:
    simple = z3.simplify(term, som=True)
    monomials: list[tuple[int, list[z3.ArithRef]]] = []
    for part in simple.children() if z3.is_add(simple) else [simple]:
        number, rest, pending = 1, [], [part]
        while pending:
            factor = pending.pop()
            if z3.is_mul(factor):
                pending += factor.children()
            elif z3.is_int_value(factor):
                number *= factor.as_long()
            else:
                rest.append(factor)
        if number:
            monomials.append((number, rest))
    return monomials


def _symbol_and_factor(stride: z3.ArithRef) -> tuple[z3.ArithRef | None, int]:
    """A stride that is a symbol, or a number times one."""
    monomials = _monomials(stride)
    if len(monomials) == 1 and len(monomials[0][1]) == 1:
        return monomials[0][1][0], monomials[0][0]
    return None, 1


def _product(number: int, parts: Sequence[z3.ArithRef]) -> z3.ArithRef:
    total: z3.ArithRef = z3.IntVal(number)
    for part in parts:
        total = total * part
    return total


# Two threads ---------------------------------------------------------------------------------------------------------------


class OtherThread:
    """A second thread: every private symbol once more; in one block, values that depend on the block alone stay shared."""

    def __init__(self, known: Knowledge, same_block: bool, same_iterations: bool = False) -> None:
        fixed: set[int] = {iteration.get_id() for iteration in known.finished} if same_iterations else set()
        if same_block:
            fixed |= {value.term.get_id() for value in known.block.values() if not isinstance(value.term, int)}
            fixed |= {symbol.get_id() for symbol in known.block_symbols}
            for number, operands in known.quotients.items():
                if not any(known.depends_on_thread(operand) or known.loops_in(operand) for operand in operands):
                    fixed.add(number)
        self._pairs = [(symbol, z3.Const(f"{symbol}'", symbol.sort())) for symbol in known.private if symbol.get_id() not in fixed]
        self._terms: dict[int, tuple[z3.ExprRef, z3.ExprRef]] = {}
        """Terms by number, each with the other thread's."""
        self.facts = []
        for fact in known.facts:
            known.solver.check_time()
            self.facts.append(z3.substitute(fact, *self._pairs))

    def term(self, term: z3.ExprRef) -> z3.ExprRef:
        """The other thread's value of a term."""
        number = term.get_id()
        if number not in self._terms:
            self._terms[number] = term, z3.substitute(term, *self._pairs)
        return self._terms[number][1]

    def conditions(self, path: Sequence[Condition]) -> Iterator[Condition]:
        """The other thread's conditions."""
        for condition in path:
            yield condition if isinstance(condition, bool) else self.term(condition)


def _apart(known: Knowledge, other: OtherThread) -> z3.BoolRef:
    """The two threads of a block are different ones."""
    pairs = [(value.term, other.term(value.term)) for value in known.thread.values() if not isinstance(value.term, int)]
    return z3.Or(*[mine != theirs for mine, theirs in pairs]) if pairs else z3.BoolVal(False)


@dataclass(frozen=True)
class _Landing:
    """A wait that ends an asynchronous copy, if its thread comes to it."""

    reached: z3.BoolRef
    barriers: z3.ArithRef
    """Barriers passed before it."""


def landings(known: Knowledge, access: Access, level: int) -> list[_Landing]:
    """The waits for an asynchronous copy. Where each iteration closes as many groups, that of its wait follows from the group's number."""
    assert access.group is not None
    waits: list[_Landing] = []
    for wait in known.lifted.waits:
        if wait.reached is None:
            continue
        if wait.iteration is None:
            if not mentions(wait.groups.z3, known.finished) and not mentions(wait.barriers[level].z3, known.finished):
                closed = access.group.z3 + (wait.pending + 1) <= wait.groups.z3
                waits.append(_Landing(z3.And(wait.reached, closed), wait.barriers[level].z3))
            continue
        step = z3.simplify(z3.substitute(wait.groups.z3, (wait.iteration, wait.iteration + 1)) - wait.groups.z3, som=True)
        if not z3.is_int_value(step) or step.as_long() < 1:
            continue
        groups = step.as_long()
        before = z3.simplify(wait.groups.z3 - wait.iteration * groups, som=True)
        if mentions(before, known.finished):
            continue
        iteration = (access.group.z3 + (wait.pending + groups) - before) / groups
        iteration = z3.If(iteration >= 0, iteration, z3.IntVal(0))
        waits.append(
            _Landing(
                z3.substitute(wait.reached, (wait.iteration, iteration)),
                z3.substitute(wait.barriers[level].z3, (wait.iteration, iteration)),
            )
        )
    return waits


def _begins_in_time(
    known: Knowledge, access: Access, begin: z3.ArithRef, level: int, of_thread: Callable[[z3.ExprRef], z3.ExprRef]
) -> Iterator[Condition]:
    """Something that begins after so many barriers does not come after the end of an access of the thread that ``of_thread`` names."""
    if access.group is None:
        yield begin <= of_thread(access.barriers[level].z3)
        return
    for landing in landings(known, access, level):
        yield z3.Or(z3.Not(of_thread(landing.reached)), begin <= of_thread(landing.barriers))
    for wait, guards in final_waits(known):
        after = z3.And(*known.later.facts, *[as_condition(condition) for condition in wait.path])
        closed = access.group.z3 + (wait.pending + 1) <= known.later.term(wait.groups.z3)
        yield z3.Or(z3.Not(of_thread(guards)), of_thread(known.later.term(after)))
        yield z3.Or(z3.Not(of_thread(z3.And(guards, closed))), begin <= of_thread(known.later.term(wait.barriers[level].z3)))


def final_waits(known: Knowledge) -> Iterator[tuple[Wait, z3.BoolRef]]:
    """Waits after loops, each with the condition under which a thread comes to it. A copy that it covers was begun before it.

    Their statements about iterations mean the last iteration of each loop.
    """
    if known.lifted.unbounded_loops:
        return
    for wait in known.lifted.waits:
        terms = (*wait.path, wait.groups.z3, *[value.z3 for value in wait.barriers])
        if wait.guards is None or not any(mentions(term, known.finished) for term in terms):
            continue
        if not any(mentions(guard, known.changing) for guard in wait.guards):
            yield wait, conjunction(wait.guards)


def _meet(known: Knowledge, one: Access, two: Access, other: OtherThread, level: int) -> list[Condition]:
    """Two accesses may take place between the same barriers of a level."""
    mine, theirs = one.barriers[level].z3, other.term(two.barriers[level].z3)
    return [*_begins_in_time(known, one, theirs, level, lambda term: term), *_begins_in_time(known, two, mine, level, other.term)]


@dataclass(frozen=True, eq=False)
class _Group:
    """Accesses of one kind under one condition, whose addresses differ by constants only."""

    first: Access
    """The access with the lowest address."""
    offsets: dict[int, Access]
    """Distances from the first access's address in bytes, each with the first access there."""
    count: int

    @property
    def span(self) -> int:
        """Bytes from the lowest address to the highest."""
        return max(self.offsets)


def grouped(known: Knowledge, accesses: Sequence[Access]) -> list[_Group]:
    """Accesses whose array is known, by condition, interval and the part of their addresses that is not constant."""
    by_place: dict[tuple[object, ...], list[tuple[int, Access]]] = {}
    for access in accesses:
        if access.address is None:
            continue
        rest, offset = known.polynomials.split(access.address.z3)
        size = access.size if isinstance(access.size, int) else access.size.get_id()
        key = (*_when(access), access.kind, access.address.base, size, rest)
        by_place.setdefault(key, []).append((offset, access))
    groups = []
    for members in by_place.values():
        members.sort(key=lambda member: member[0])
        lowest, first = members[0]
        offsets: dict[int, Access] = {}
        for offset, access in members:
            offsets.setdefault(offset - lowest, access)
        groups.append(_Group(first, offsets, len(members)))
    return groups


def _when(access: Access) -> tuple[object, ...]:
    """The condition and the interval of an access, by the numbers of their terms."""
    path = tuple(condition if isinstance(condition, bool) else condition.get_id() for condition in access.path)
    return path, *(None if value is None else value.key for value in (*access.barriers, access.group))


def races(lifter: Lifter, uniform: bool, inside: bool = True) -> Verdict:
    """No two threads of a block touch the same shared memory between the same barriers, unless both read or both are atomic.

    ``inside``: all accesses to shared memory were proved to lie within their arrays, which lie apart.
    """
    known, verdict = lifter.known, Verdict("races")
    accesses = [access for access in known.lifted.accesses if access.space in ("shared", "generic")]
    if accesses and not inside:
        verdict.unproved.append("accesses to shared memory that may be outside of their arrays: see memory")
    if accesses and not uniform:
        verdict.unproved.append("barriers that some threads may miss: see progress")
    if any(access.writes for access in accesses):
        for access in accesses:
            if access.address is None or access.address.base is None:
                verdict.obligations += 1
                verdict.unproved.append(f"{place(access)}: {NO_ARRAY}")
    dynamic = {name for access in accesses if access.address is not None and _is_dynamic(known, name := access.address.base or "")}
    if len(dynamic) > 1:
        verdict.unproved.append(f"{' and '.join(sorted(dynamic))} begin at the same address")
    other = OtherThread(known, same_block=True)
    apart = _apart(known, other)
    meetings: dict[tuple[object, ...], bool] = {}
    between = Distances(known, other)
    groups = grouped(known, accesses)
    for number, one in enumerate(groups):
        for two in groups[number:]:
            if verdict.hopeless:
                return verdict
            if not (one.first.writes or two.first.writes) or _both_atomic(one.first, two.first):
                continue
            assert one.first.address is not None and two.first.address is not None
            if one.first.address.base == two.first.address.base:
                _meeting(lifter, verdict, one, two, other, apart, meetings, between)
    return verdict


def _both_atomic(one: Access, two: Access) -> bool:
    """True for atomics of equal size, which are aligned: they touch the same bytes or none in common."""
    return one.kind == two.kind == "atomic" and isinstance(one.size, int) and one.size == two.size


def _is_dynamic(known: Knowledge, name: str) -> bool:
    """True for shared memory whose size the launch gives."""
    variable = known.module.variables.get(name)
    return variable is not None and variable.space == "shared" and not variable.size


def _meeting(
    lifter: Lifter,
    verdict: Verdict,
    group: _Group,
    group_: _Group,
    other: OtherThread,
    apart: z3.BoolRef,
    meetings: dict[tuple[object, ...], bool],
    between: Distances,
) -> None:
    """Two groups of accesses, one of each thread: first whether they can be in the same interval, then whether they ever overlap."""
    known, one, two = lifter.known, group.first, group_.first
    assert one.address is not None and two.address is not None
    together: list[Condition] = [*known.facts, *other.facts, *one.path, *other.conditions(two.path), *_meet(known, one, two, other, 0)]
    for level, members in enumerate(lifter.members, start=1):
        if members is not None:  # threads of one team or warp, which its barriers keep apart
            together.append(z3.Or(members != other.term(members), conjunction(_meet(known, one, two, other, level))))
    # A copy does not meet itself, which only one copy at that address in one iteration of its loops can be.
    same_copy = group is group_ and group.count == len(group.offsets)
    other_copy = z3.Or(apart, *[iteration != other.term(iteration) for iteration in one.iterations])
    if one.group is None and two.group is None:
        together.append(apart)
    pairs = group.count * (group.count + 1) // 2 if group is group_ else group.count * group_.count
    when = (*_when(one), *_when(two))
    if when not in meetings:
        meetings[when] = not known.solver.proves(together, False, 500)
    if not meetings[when]:
        verdict.obligations += pairs
        verdict.proved += pairs
        return
    mine, theirs = one.address.z3, other.term(two.address.z3)
    size, size_ = as_term(one.size), other.term(as_term(two.size))
    distances: dict[int, tuple[Access, Access]] = {}
    for offset, access in group.offsets.items():
        for offset_, access_ in group_.offsets.items():
            if group is not group_ or offset_ >= offset:  # of one group, the two threads change places
                distances.setdefault(offset_ - offset, (access, access_))
    near = between.meeting(
        one,
        two,
        distances,
        together,
        one.group is not None or two.group is not None,
        when,
        _ordered_teams(lifter, one, two, other, meetings),
        [members for members in lifter.members if members is not None],
    )
    if not near:
        verdict.obligations += pairs
        verdict.proved += pairs
        return
    if len(near) == len(distances) and group is not group_ and len(group.offsets) * len(group_.offsets) > 1:
        apart_as_a_whole = z3.Or(mine + (size + group.span) <= theirs, theirs + (size_ + group_.span) <= mine)
        if known.solver.proves(together, apart_as_a_whole, 1000):
            verdict.obligations += pairs
            verdict.proved += pairs
            return
    verdict.obligations += pairs - len(near)
    verdict.proved += pairs - len(near)
    for distance, (access, access_) in distances.items():
        if distance not in near:
            continue
        goal = z3.Or(mine + size <= theirs + distance, theirs + (size_ + distance) <= mine)
        premises = together
        if same_copy and distance == 0:
            premises = [*together, other_copy]
        proved = between.apart(one, two, distance, together, premises, when)
        answer = Answer("proved") if proved else known.solver.implies(premises, goal)
        verdict.note(answer, access, f"may meet PTX line {access_.instruction.line}", known, premises, goal)


def _ordered_teams(
    lifter: Lifter, one: Access, two: Access, other: OtherThread, meetings: dict[tuple[object, ...], bool]
) -> Iterator[z3.ArithRef]:
    """The parts of the threads, teams or warps, whose own barriers always lie between two accesses of two threads of one part.

    Conditions that depend on the thread are left out, so that accesses under many such conditions share an answer.
    """
    known = lifter.known
    paths = [[each for each in access.path if not known.depends_on_thread(each)] for access in (one, two)]
    numbers = [tuple(each if isinstance(each, bool) else each.get_id() for each in path) for path in paths]
    for level, members in enumerate(lifter.members, start=1):
        if members is None:
            continue
        counts = [None if value is None else value.key for access in (one, two) for value in (access.barriers[level], access.group)]
        key = ("ordered", level, *numbers, *counts)
        if key not in meetings:
            when = [*paths[0], *other.conditions(paths[1]), *_meet(known, one, two, other, level)]
            meetings[key] = not known.solver.proves([*known.facts, *other.facts, *when], False, 500)
        if not meetings[key]:
            yield members


# Stored at most once -----------------------------------------------------------------------------------------------------------


def once(lifter: Lifter, within: Verdict, ordered: bool = False) -> Verdict:
    """No two threads of the grid, and no two statements of one, store the same element of a result.

    ``within``: the verdict on memory. Two indices are two elements only if both lie within their axes.
    ``ordered``: races and progress are proved, so that tickets tell the block that comes last.
    """
    known, verdict = lifter.known, Verdict("once")
    stores = [access for access in known.lifted.accesses if access.space not in ("shared", "local") and access.writes]
    by_array: dict[str, list[Access]] = {}
    added = {store.address.base for store in stores if store.kind == "atomic" and store.address is not None}
    for store in stores:
        name = store.base
        if name in known.contract.arrays and known.contract.arrays[name].workspace:
            continue
        if store.kind == "atomic" and name is not None:
            if why := _no_reduction(store, [each for each in stores if each.kind == "atomic"]):
                verdict.obligations += 1
                verdict.unproved.append(f"{place(store)}: {why}")
            continue
        if name is None or name in added:
            verdict.obligations += 1
            why = NO_ARRAY if name is None else f"elements of {name} are changed by atomics as well"
            verdict.unproved.append(f"{place(store)}: {why}")
        elif name in known.contract.arrays:
            by_array.setdefault(name, []).append(store)
        else:
            verdict.obligations += 1
            verdict.unproved.append(f"{place(store)}: several threads may store to {name}, which is no array of the launch")
    other = OtherThread(known, same_block=False)
    for name, accesses in by_array.items():
        if name in within.left:
            verdict.obligations += 1
            verdict.unproved.append(f"{place(accesses[0])}: its indices may lie outside of {name}: see memory")
            continue
        _stored_once(lifter, verdict, known.contract.arrays[name], accesses, other, ordered)
    return verdict


def _no_reduction(store: Access, atomics: Sequence[Access]) -> str:
    """Why an atomic is no reduction of a result by all threads of the grid; empty if it is one."""
    if store.instruction.has("cta") or store.instruction.has("cluster"):
        return "threads of other blocks may change the element as well, and its scope is narrower"
    if store.instruction.has("exch") or store.instruction.has("cas"):
        return "several threads may replace one element"
    same_array = [each for each in atomics if each.base == store.base]
    forms = {(*sorted(OPERATIONS & {*each.instruction.modifiers}), *each.instruction.types, str(each.size)) for each in same_array}
    return "" if len(forms) == 1 else "its array is changed by atomics of several forms"


def _stored_once(lifter: Lifter, verdict: Verdict, array: Array, stores: Sequence[Access], other: OtherThread, ordered: bool) -> None:
    known = lifter.known
    if not apart_in_memory(known, array):
        verdict.obligations += 1
        verdict.unproved.append(f"{array.name}: two of its elements may have one address: its strides need preconditions")
        return
    places: list[_Place] = []
    for store in stores:
        assert store.address is not None
        indices, count = element_indices(known, store.address.z3, array), _elements(store.size, array)
        if indices is None or count is None:
            verdict.obligations += 1
            verdict.unproved.append(f"{place(store)}: its offset in {array.name} is no sum of indices times strides")
            return
        places.append((store, indices, count))
    if _by_digits(known, verdict, places):
        return
    for ticket in tickets(lifter) if ordered else ():
        # Of the blocks that share a counter, at most one is behind the flag.
        if all(known.proves(store.path, ticket.holds) for store in stores) and _by_digits(known, verdict, places, ticket.parts):
            return
    who = [value.term for value in known.thread.values() if not isinstance(value.term, int)]
    for parts in known.block_parts.values():  # a block is known by the parts of its index, where the kernel uses those
        who += parts
    who += known.block_symbols
    iterations = tuple(dict.fromkeys(iteration for store in stores for iteration in store.iterations))
    different = z3.Or(*[symbol != other.term(symbol) for symbol in (*who, *iterations)])
    classes: dict[tuple[str, ...], bool] = {}
    groups = [next(first for first, other_ in enumerate(places) if _class(one, other_, 0) is not None) for one in places]
    for number, one in enumerate(places):
        for two in places[number:]:
            if verdict.hopeless:
                return
            goal = _disjoint(one, two, other)
            key = _class(one, two, groups[number])
            if key is not None and key not in classes:
                # Two threads, wherever they are: whether guards let them store is not asked.
                classes[key] = known.solver.proves([*known.facts, *other.facts, different], goal, 1000)
            if key is not None and classes[key] and (one is two or _differ(one, two)):
                verdict.obligations += 1
                verdict.proved += 1
                continue
            premises: list[Condition] = [*known.facts, *other.facts, *one[0].path, *other.conditions(two[0].path)]
            if one is two:
                premises.append(different)
            answer = known.solver.implies(premises, goal)
            why = f"an element of {array.name} may be stored by PTX line {two[0].instruction.line} as well"
            verdict.note(answer, one[0], why, known, premises, goal)


def apart_in_memory(known: Knowledge, array: Array) -> bool:
    """True if elements with different indices have different addresses: each stride is at least the span of the axes within it, or this
    is assumed."""
    if array.assumed_apart:
        return True
    axes = [axis for axis in zip(array.shape, array.strides, strict=True) if not isinstance(axis[0], int) or axis[0] > 1][::-1]

    def nested(order: Sequence[tuple[Term, Term]]) -> bool:
        span: Term = 1
        for extent, stride in order:
            if not known.proves((), z3.Or(as_term(extent) <= 1, as_term(stride) >= as_term(span))):
                return False
            span = span + (extent - 1) * stride
        return True

    return any(nested(order) for order in islice(permutations(axes), MAX_ORDERS))


_Place = tuple[Access, list[z3.ArithRef], z3.ArithRef]
"""A store, the indices of its first element, and how many elements it stores."""


def _by_digits(known: Knowledge, verdict: Verdict, places: Sequence[_Place], identity: frozenset[int] | None = None) -> bool:
    """True if the form of the stores' indices shows that no element is stored twice. ``identity``: the parts of a block's index that
    tell apart the blocks that store; all of them otherwise."""
    blocks = [part for axis in known.block_parts for part in _named_by(known, axis, places)]
    outer: dict[int, z3.ArithRef | None] = {part.get_id(): known.extents[part.get_id()] for part in blocks}
    iterations = {iteration.get_id(): None for store, _, _ in places for iteration in store.iterations}
    outer |= iterations
    parts = {part.get_id() for part in blocks}
    divided: list[tuple[int, int, z3.ArithRef, frozenset[int]]] = []
    private = {symbol.get_id() for symbol in known.private}
    for quotient, remainder in known.divided:
        dividend, divisor = known.quotients[quotient.z3.get_id()]
        numbers = quotient.z3.get_id(), remainder.z3.get_id()
        # Those of a block's index are parts of it.
        used = any(mentions(index, [quotient.z3]) for _, indices, _ in places for index in indices)
        if not used or parts & {*numbers}:
            continue
        if all(known.proves(store.path, divisor >= 1) for store, _, _ in places):
            divided.append((*numbers, dividend, node_of(divisor).symbols & private))
            outer |= {numbers[0]: None, numbers[1]: _values_of(known, remainder.z3, divisor, places)}
    identities = frozenset({*parts, *iterations}) if identity is None else identity | frozenset(iterations)
    stores = [Stored(indices, count.as_long(), store.path) for store, indices, count in places if z3.is_int_value(count)]
    if len(stores) < len(places):
        return False
    shared = shared_elements(known.polynomials, stores, Digits(known.cluster_threads(), outer, identities, divided))
    if shared is None:  # a loop's step may hold the grid in another form
        simple = {number: None if extent is None else z3.simplify(extent) for number, extent in outer.items()}
        shared = shared_elements(known.polynomials, stores, Digits(known.cluster_threads(), simple, identities, divided))
    if shared is None:
        return False
    excluded: dict[tuple[object, ...], bool] = {}
    for one, two in shared:  # of one thread, which goes one way or the other
        paths = places[one][0].path, places[two][0].path
        key = tuple(condition if isinstance(condition, bool) else condition.get_id() for path in paths for condition in path)
        if key not in excluded:
            excluded[key] = one != two and known.proves((*paths[0], *paths[1]), False)
        if not excluded[key]:
            return False
    verdict.obligations += len(places)
    verdict.proved += len(places)
    return True


def _named_by(known: Knowledge, axis: str, places: Sequence[_Place]) -> Sequence[z3.ArithRef]:
    """The parts of the block's index along an axis, or the index itself where indices name it and no part."""
    parts, whole = known.block_parts[axis], known.block[axis].z3
    indices = [index for _, indices, _ in places for index in indices]
    names = whole.get_id() in known.extents and any(mentions(index, [whole]) for index in indices)
    return (whole,) if names and not any(mentions(index, parts) for index in indices) else parts


def _values_of(known: Knowledge, remainder: z3.ArithRef, divisor: z3.ArithRef, places: Sequence[_Place]) -> z3.ArithRef | None:
    """The number of values of a remainder by the smaller of a constant and another number; None for other divisors."""
    node = node_of(divisor)
    for arm in node.children[1:] if node.kind == z3.Z3_OP_ITE else ():
        if z3.is_int_value(arm.term) and isinstance(arm.term, z3.ArithRef):
            within = z3.And(remainder >= 0, remainder < arm.term)
            if all(known.proves(store.path, within) for store, _, _ in places):
                return arm.term
    return None


def stored_by_one(known: Knowledge, array: Array, stores: Sequence[Access]) -> bool:
    """True if the form of the stores' indices shows that no two threads, blocks or iterations store one element of a workspace."""
    stores = [_in_one_iteration(known, store) for store in stores if not known.proves(store.path, False)]
    stores = [replace(store, path=(*store.path, *_groups_left_out(known, store))) for store in stores]
    places: list[_Place] = []
    for store in stores:
        assert store.address is not None
        indices, count = element_indices(known, store.address.z3, array), _elements(store.size, array)
        if indices is None or count is None:
            return False
        places.append((store, indices, count))
    if not places or _by_digits(known, Verdict("once"), places):
        return True
    if len(array.shape) > 1:
        return False
    counts, paths = [count for _, _, count in places], [store.path for store in stores]
    for rows in split_into_rows(known, [indices[0] for _, indices, _ in places], counts, paths):
        if _by_digits(known, Verdict("once"), list(zip(stores, rows, counts, strict=True))):
            return True
    return False


def _groups_left_out(known: Knowledge, store: Access) -> list[z3.BoolRef]:
    """Conditions that leave out the first or the last group of warps, as far as a store's path implies them."""
    thread, last = known.linear_thread.z3, known.contract.launch.threads - WARPGROUP_THREADS
    bounds = [thread >= WARPGROUP_THREADS, thread < last] if last > 0 else []
    return [bound for bound in bounds if known.proves(store.path, bound)]


def _in_one_iteration(known: Knowledge, store: Access) -> Access:
    """A store without the loops that it is only in iteration 0 of."""
    first = [(each, z3.IntVal(0)) for each in store.iterations if known.proves(store.path, each == 0)]
    if not first or store.address is None:
        return store
    path = tuple(condition if isinstance(condition, bool) else as_condition(z3.substitute(condition, *first)) for condition in store.path)
    others = tuple(each for each in store.iterations if not any(each.eq(alone) for alone, _ in first))
    address = replace(store.address, term=z3.substitute(store.address.z3, *first))
    return replace(store, address=address, path=path, iterations=others)


def _disjoint(one: _Place, two: _Place, other: OtherThread) -> z3.BoolRef:
    """The stores of one thread and of the other have no element in common."""
    (_, indices, count), (_, indices_, count_) = one, two
    theirs = [other.term(index) for index in indices_]
    same_row = [mine == index for mine, index in zip(indices[:-1], theirs[:-1], strict=True)]
    column, column_ = indices[-1], theirs[-1]
    return z3.Not(z3.And(*same_row, column < column_ + other.term(count_), column_ < column + count))


def _class(one: _Place, two: _Place, group: int) -> tuple[str, ...] | None:
    """The distance of two stores of one thread within their group, if it is the same in all threads; None if not."""
    distances = [z3.simplify(mine - theirs) for mine, theirs in zip(one[1], two[1], strict=True)]
    if all(z3.is_int_value(distance) for distance in distances):
        return (str(group), *[str(distance) for distance in distances], str(one[2]), str(two[2]))
    return None


def _differ(one: _Place, two: _Place) -> bool:
    """True if two stores of one thread never have an element in common, for any thread."""
    *rows, column = [z3.simplify(mine - theirs).as_long() for mine, theirs in zip(one[1], two[1], strict=True)]
    if any(rows):
        return True
    counts = one[2], two[2]
    if not all(z3.is_int_value(count) for count in counts):
        return False
    return bool(column >= counts[1].as_long() or -column >= counts[0].as_long())


# Progress --------------------------------------------------------------------------------------------------------------------


def progress(lifter: Lifter, common: Collection[int] = (), ended: Collection[int] = ()) -> Verdict:
    """All threads of a block, a team or a warp reach the same barriers of it, and every loop ends.

    ``common``: numbers of loaded contents that all threads of a block share. ``ended``: identities of the first statements of loops that
    end because other blocks store the value that they wait for.
    """
    known, verdict = lifter.known, Verdict("progress")
    lifted = known.lifted
    barriers = set(lifted.barrier_blocks)

    def uniform(condition: Condition) -> bool:
        return isinstance(condition, bool) or not known.depends_on_thread(condition, common)

    for block in sorted(barriers):
        verdict.obligations += 1
        if not all(lifter.agreed(*branch, uniform) for branch in lifter.conditions(lifter.deciding(block))):
            verdict.unproved.append(f"{_of_block(lifter, block)}: threads of a block may differ in whether they reach this barrier")
        else:
            verdict.proved += 1
    warp = z3.simplify(known.linear_thread.z3 / WARP_THREADS)
    members: list[z3.ArithRef | None] = [None if known.team is None else known.team[0], warp]
    for level, (whose, places) in enumerate((("team", lifted.team_blocks), ("warp", lifted.warp_blocks))):
        together, term = _Together(known, common), members[level]
        for block in sorted(set(places)):
            verdict.obligations += 1
            if term is not None and all(lifter.agreed(*branch, partial(together.agree, term)) for branch in _deciding(lifter, block)):
                verdict.proved += 1
            else:
                verdict.unproved.append(f"{_of_block(lifter, block)}: threads of a {whose} may differ in whether they reach its barrier")
                members[level] = None  # its barriers then order nothing
        for block, guard in lifted.warp_guards if whose == "warp" else ():
            verdict.obligations += 1
            if lifter.agreed(block, guard, partial(together.agree, warp)):
                verdict.proved += 1
            else:
                verdict.unproved.append(f"{_of_block(lifter, block)}: lanes of a warp may differ in whether they take part in a statement")
                members[level] = None
    lifter.members = tuple(members)
    for header, blocks in lifter.flow.loops.items():
        if not blocks & barriers:
            continue
        for block in lifter.ways_out(header):
            verdict.obligations += 1
            if not all(lifter.agreed(*branch, uniform) for branch in lifter.conditions([block])):
                verdict.unproved.append(
                    f"{_of_block(lifter, block)}: threads of a block may leave a loop with barriers at different iterations"
                )
            else:
                verdict.proved += 1
    for instruction in incomplete_masks(known.function, known.contract.launch.threads):
        verdict.obligations += 1
        verdict.unproved.append(f"{statement(instruction)}: lanes that its mask may leave out execute it")
    for instruction in incomplete_warps(known.function, known.contract.launch.threads):
        verdict.obligations += 1
        verdict.unproved.append(f"{statement(instruction)}: it needs all lanes of a warp, and the block's last warp has fewer")
    for instruction, path in lifted.traps:
        verdict.obligations += 1
        if known.proves(path, False):
            verdict.proved += 1
        else:
            verdict.unproved.append(f"{statement(instruction)}: a thread may come to it")
    verdict.obligations += len(lifter.flow.loops)
    unbounded = [instruction for instruction in known.lifted.unbounded_loops if id(instruction) not in ended]
    verdict.proved += len(lifter.flow.loops) - len(unbounded)
    for instruction in unbounded:
        verdict.unproved.append(f"{statement(instruction)}: this loop was not proved to end")
    return verdict


def _deciding(lifter: Lifter, block: int) -> Iterator[tuple[int, Condition]]:
    """The branches that decide whether a thread comes to a basic block, and those that leave the loops around it."""
    yield from lifter.conditions(lifter.deciding(block))
    for header, blocks in lifter.flow.loops.items():
        if block in blocks:
            yield from lifter.conditions(lifter.ways_out(header))


class _Together:
    """Conditions that two threads of one block agree on in the same iteration of a loop if a term has the same value for both."""

    def __init__(self, known: Knowledge, common: Collection[int]) -> None:
        self._known, self._common = known, common
        self._other = OtherThread(known, same_block=True, same_iterations=True)
        self._answers: dict[int, bool] = {}

    def agree(self, members: z3.ArithRef, condition: Condition) -> bool:
        known, other = self._known, self._other
        if isinstance(condition, bool) or not known.depends_on_thread(condition, self._common):
            return True
        number = condition.get_id()
        if number not in self._answers:
            theirs = next(iter(other.conditions([condition])))
            premises = [*known.facts, *other.facts, members == other.term(members)]
            self._answers[number] = known.solver.proves(premises, condition == theirs)
        return self._answers[number]


def _of_block(lifter: Lifter, block: int) -> str:
    return statement(lifter.flow.blocks[block][-1])


def statement(instruction: Instruction) -> str:
    """A statement and its line of PTX."""
    return f"PTX line {instruction.line}: {instruction.text.strip()}"
