"""Complete results: every element of a result is stored by some thread.

An index of a store is ``W q + f(t)``: W times a part of the block's index, which takes all values from 0 to below its extent E, and a
number for each thread. Three facts show that all elements are stored: E W is at least the array's extent, the numbers of all threads and
stores fill the tile of W elements along each axis, and a thread whose element lies within the array carries out one of its stores.

In a loop over tiles the part is ``b + E t`` in iteration t of block b, which takes all values from 0 on. The iteration is reached if
every earlier one has another one after it, wherever the later element lies within the array (``gemmgen.proof.walks``).

Blocks that share a tile need not all store it: where their indices differ, block 0 stands for them, or the block that came last, of which
there is one if all blocks that share a counter add to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import z3

from gemmgen.proof.contract import Array
from gemmgen.proof.data import Access
from gemmgen.proof.distances import by_thread
from gemmgen.proof.enumeration import NotEnumerable, Numbers, evaluate
from gemmgen.proof.knowledge import Knowledge, Path
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import MAX_CASES, NO_ARRAY, Verdict, element_indices, first_choice, formula, place
from gemmgen.proof.polynomials import Monomial
from gemmgen.proof.tickets import Ticket, is_drawn, tickets
from gemmgen.proof.values import Condition, Value, as_condition, as_term, conjunction, conjuncts, floor_divide
from gemmgen.proof.walks import Division, numbers_of_divisions, walk_of

MAX_TILE = 1 << 18
"""Elements of one block's tile."""
MAX_CHOICES = 4
MAX_WIDTH = 16
"""Elements of one store."""


class _NotShown(Exception):
    """A step that is not proved; the text says which."""


@dataclass(frozen=True, eq=False)
class _Part:
    """One element of a store: its indices by axis, each a form, and the threads that may store it."""

    access: Access
    indices: Sequence[z3.ArithRef]
    outer: tuple[Mapping[Monomial, int], ...]
    tables: tuple[Numbers, ...]
    threads: Numbers
    """Numbers of the threads that conditions on the thread alone let through."""
    alone: tuple[Condition, ...]
    """Conditions on the thread alone."""
    rest: tuple[Condition, ...]
    """The other conditions of the store."""
    iteration: z3.ArithRef | None
    """The iteration of the loop around the store."""


def complete(lifter: Lifter, ordered: bool = False) -> Verdict:
    """Every element of every result that this kernel is given is stored. The kernel's progress must be proved.

    ``ordered``: memory and races are proved as well, so that tickets tell the block that comes last.
    """
    known, verdict = lifter.known, Verdict("complete")
    used = known.contract.used
    results = [array for array in known.contract.arrays.values() if array.writable and not array.workspace and used(array.name)]
    drawn = [ticket for ticket in tickets(lifter) if is_drawn(lifter, ticket)] if ordered else []
    for array in results:
        verdict.obligations += 1
        if why := not_stored(lifter, array, drawn):
            verdict.unproved.append(f"{array.name}: {why}")
        else:
            verdict.proved += 1
    return verdict


def not_stored(lifter: Lifter, array: Array, drawn: Sequence[Ticket] = ()) -> str:
    """The reason why an element of an array may not be stored by any thread; empty if all are. Loops and waits are provided to end."""
    stores = [access for access in lifter.known.lifted.accesses if access.writes and access.space not in ("shared", "local")]
    try:
        _whole(lifter, array, stores, drawn)
    except _NotShown as error:
        return str(error)
    except NotEnumerable:
        return "an index that is no sum of a part of the block and one of the thread"
    return ""


def _whole(lifter: Lifter, array: Array, stores: Sequence[Access], drawn: Sequence[Ticket]) -> None:
    known = lifter.known
    if not known.contract.has_blocks(array):
        raise _NotShown("the grid may have no block where the array has elements")
    parts: list[_Part] = []
    for store in stores:
        if store.address is None or store.address.base is None:
            raise _NotShown(f"{place(store)}: {NO_ARRAY}")
        if store.address.base == array.name:
            parts += _parts(lifter, array, store)
    by_outer: dict[tuple[object, ...], list[_Part]] = {}
    for part in parts:
        by_outer.setdefault(tuple(tuple(sorted(outer.items())) for outer in part.outer), []).append(part)
    if not by_outer:
        raise _NotShown("no store was found")
    reasons: list[str] = []
    for group in by_outer.values():
        try:
            _tile(lifter, array, group, drawn)
            return
        except _NotShown as error:
            reasons.append(str(error))
    raise _NotShown(reasons[0])


def _parts(lifter: Lifter, array: Array, store: Access) -> list[_Part]:
    """The elements of one store."""
    assert store.address is not None
    if store.kind != "store" or not isinstance(store.size, int) or store.size % array.element_bytes or len(store.iterations) > 1:
        raise _NotShown(f"{place(store)}: stores that are atomic, in nested loops, or of parts of elements")
    count = store.size // array.element_bytes
    if count > MAX_WIDTH:
        raise _NotShown(f"{place(store)}: {count} elements at once")
    iteration = store.iterations[0] if store.iterations else None
    if iteration is None:
        guards = lifter.guards(store.block, store.path)
    else:
        guards = lifter.guards_in_iteration(lifter.known.loops[iteration.get_id()], store.block, store.path)
    if guards is None:
        raise _NotShown(f"{place(store)}: the condition under which a thread comes to it is not known")
    known = lifter.known
    symbols = known.cluster_threads()
    threads = known.contract.launch.threads * (known.contract.launch.cluster[0] if known.block_symbols else 1)
    allowed = np.ones(threads, dtype=bool)
    alone: list[Condition] = []
    rest: list[Condition] = []
    for condition in conjuncts(guards):
        if isinstance(condition, bool):
            rest.append(condition)
            continue
        try:
            allowed &= np.broadcast_to(evaluate(condition, symbols) != 0, threads)
            alone.append(condition)
        except NotEnumerable:
            rest.append(condition)
    parts, digits = [], numbers_of_divisions(known)
    for step in range(count):
        indices = element_indices(known, store.address.z3 + step * array.element_bytes, array)
        if indices is None:
            raise _NotShown(f"{place(store)}: an offset that is no sum of indices times strides")
        indices = [_settled(known, index, guards) for index in indices]
        forms = [by_thread(known, index, digits, symbols) for index in indices]
        outer, tables = tuple(form[0] for form in forms), tuple(form[1] for form in forms)
        parts.append(_Part(store, indices, outer, tables, np.nonzero(allowed)[0], tuple(alone), tuple(rest), iteration))
    return parts


def _settled(known: Knowledge, index: z3.ArithRef, guards: Sequence[Condition]) -> z3.ArithRef:
    """An index without the choices that a store's guards decide, such as the smaller of an index and the last one."""
    for _ in range(MAX_CHOICES):
        choice = first_choice(index)
        if choice is None:
            break
        holds = known.proves(guards, choice)
        if not holds and not known.proves(guards, z3.Not(choice)):
            break
        index = z3.simplify(z3.substitute(index, (choice, z3.BoolVal(holds))))
    return index


@dataclass(frozen=True, eq=False)
class _Form:
    """The form of the stores' indices: the elements that the tile of one part of the block has along each axis."""

    widths: Sequence[int]
    used: frozenset[int]
    """The parts of the block's index that the indices depend on."""
    walked: int | None
    """The axis along which iterations continue."""
    division: Division | None
    tiles: z3.ArithRef | None
    """The number that the dividend of a division is below, for elements of the array."""


def _form_of(known: Knowledge, array: Array, parts: Sequence[_Part]) -> _Form:
    """Raises ``_NotShown`` for indices that do not take all values along an axis."""
    iteration, outers = parts[0].iteration, parts[0].outer
    division = _division(known, outers, iteration)
    widths: list[int] = []
    walked: int | None = None
    by_digit: dict[int, int] = {}
    used: set[int] = set() if division is None else {division.walk.block}
    for axis, extent in enumerate(array.shape):
        outer = outers[axis]
        if not outer:
            width = 1 + max(int(part.tables[axis][part.threads].max(initial=0)) for part in parts)
            if not known.proves((), as_term(extent) <= width):
                raise _NotShown("one block's elements do not fill an axis")
            size = next(number for number in range(1, width + 1) if number == width or known.proves((), as_term(extent) <= number))
            widths.append(size)
            continue
        ((monomial, width), *others) = outer.items()
        if division is not None and not others and monomial in ((division.quotient,), (division.remainder,)):
            if monomial[0] in by_digit:
                raise _NotShown("two indices that depend on one quotient or remainder")
            by_digit[monomial[0]] = axis
            widths.append(width)
            continue
        walk = walk_of(known, outer, iteration)
        if walk is None and others:
            raise _NotShown("an index that depends on several parts of the block's index")
        if walk is None or walk.block in used:
            raise _NotShown("an index that is no multiple of a part of the block's index")
        used.add(walk.block)
        if walk.iterations and (walked is not None or (division is not None and division.walk.iterations)):
            raise _NotShown("two indices that depend on the iteration")
        if walk.iterations:
            walked = axis
        elif not known.proves((), as_term(known.extents[walk.block]) * walk.width >= as_term(extent)):
            few = as_term(known.extents[walk.block]) * walk.width >= as_term(extent)
            raise _NotShown(f"the grid may have too few blocks; not shown: {formula(few)}")
        widths.append(walk.width)
    tiles = None
    if division is not None:
        if len(by_digit) < 2:
            raise _NotShown("an index that depends on a quotient, and none on its remainder")
        places = [(by_digit[digit], widths[by_digit[digit]]) for digit in (division.quotient, division.remainder)]
        tiles = _tiles(known, array, division, places[0], places[1])
    if iteration is not None and walked is None and (division is None or not division.walk.iterations):
        raise _NotShown("a loop whose iterations do not step by the grid")
    return _Form(widths, frozenset(used), walked, division, tiles)


def _division(known: Knowledge, outers: Sequence[Mapping[Monomial, int]], iteration: z3.ArithRef | None) -> Division | None:
    """The division of a number ``W (b + E t) + f(thread)`` whose quotient and remainder are in indices; None if there is none."""
    factors = {factor for outer in outers for monomial in outer for factor in monomial}
    digits = numbers_of_divisions(known)
    for quotient, remainder in known.divided:
        numbers = quotient.z3.get_id(), remainder.z3.get_id()
        if numbers[0] not in factors or numbers[0] not in digits:
            continue
        dividend, divisor = known.quotients[numbers[0]]
        outer, own = by_thread(known, dividend, symbols=known.cluster_threads())
        walk = walk_of(known, outer, iteration)
        if walk is not None and int(own.min()) >= 0 and int(own.max()) < walk.width:
            return Division(*numbers, dividend, divisor, walk, own)
    return None


def _tiles(known: Knowledge, array: Array, division: Division, row: tuple[int, int], column: tuple[int, int]) -> z3.ArithRef:
    """The number of tiles. ``row`` and ``column``: axis and width of the index that depends on the quotient, and on the remainder."""
    extents = [as_term(extent) for extent in array.shape]
    inside = [extent >= 1 for extent in extents]
    if row[1] < 1 or column[1] < 1:
        raise _NotShown("a tile of no elements")
    if not known.proves(inside, division.divisor >= 1) or not known.proves(inside, extents[column[0]] <= division.divisor * column[1]):
        raise _NotShown("a row of tiles may have too few columns")
    rows = as_term(floor_divide(Value(extents[row[0]] + (row[1] - 1)), row[1]).term)
    tiles = rows * division.divisor
    if not division.walk.iterations and not known.proves(inside, known.extents[division.walk.block] * division.walk.width >= tiles):
        raise _NotShown("the grid may have too few blocks")
    return tiles


def _tile(lifter: Lifter, array: Array, parts: Sequence[_Part], drawn: Sequence[Ticket]) -> None:
    """Raises ``_NotShown`` unless the stores of one form fill the whole array."""
    known, iteration = lifter.known, parts[0].iteration
    if any(part.iteration is not iteration for part in parts):
        raise _NotShown("some stores are in a loop, others are not")
    form = _form_of(known, array, parts)
    division = form.division
    widths = [*([] if division is None else [division.walk.width]), *form.widths]
    if math.prod(widths) > MAX_TILE or any(width < 1 for width in widths):
        raise _NotShown("a tile of too many elements")
    again: Path = ()
    if iteration is not None:
        conditions = lifter.again(known.loops[iteration.get_id()])
        if conditions is None:
            raise _NotShown("a loop whose iterations follow each other under conditions that are not known")
        again = conditions
    filled = np.zeros(widths, dtype=bool)
    classes: dict[tuple[object, ...], list[_Part]] = {}
    for part in parts:
        key = (part.threads.tobytes(), *[table.tobytes() for table in part.tables])
        classes.setdefault(key, []).append(part)
    failed: list[_Part] = []
    chosen: list[list[Condition]] = [[]]
    blocks = {part.get_id(): part for whole in known.block_parts.values() for part in whole}
    if not form.used & {number for ticket in drawn for number in blocks if number not in ticket.parts}:
        chosen += [[ticket.came_last] for ticket in drawn]
    chosen.append([as_condition(part == 0) for number, part in blocks.items() if number not in form.used])
    for members in classes.values():
        first = members[0]
        tables = [*([] if division is None else [division.own]), *first.tables]
        places = [table[first.threads] for table in tables]
        inside = np.ones(len(first.threads), dtype=bool)
        for values, width in zip(places, widths, strict=True):
            inside &= (values >= 0) & (values < width)
        if not inside.any():
            continue
        if not any(_carried_out(known, array, members, form, again, block) for block in chosen):
            failed.append(first)
            continue
        filled[tuple(values[inside] for values in places)] = True
    if not filled.all():
        why = ""
        if failed:
            guard = formula(conjunction(failed[0].rest))
            why = f": {place(failed[0].access)}: a guard may keep an element from being stored; not shown: {guard}"
        raise _NotShown(f"{int((~filled).sum())} of the {filled.size} elements of a block's tile may not be stored{why}")


def _carried_out(
    known: Knowledge, array: Array, members: Sequence[_Part], form: _Form, again: Sequence[Condition], block: Sequence[Condition]
) -> bool:
    """True if a thread of a chosen block stores its element in one of several ways, wherever the element lies within the array.

    In a loop, the thread comes to the element's iteration: after each earlier iteration, another one follows.
    """
    first = members[0]
    premises: list[Condition] = [*first.alone, *block]
    later: list[Condition] = [*premises]
    for axis, (index, extent) in enumerate(zip(first.indices, array.shape, strict=True)):
        premises += [index >= 0, index < as_term(extent)]
        if first.iteration is not None and axis == form.walked:
            later.append(_an_iteration_later(index, first.iteration) < as_term(extent))
    if form.division is not None and form.tiles is not None:
        premises.append(form.division.dividend < form.tiles)
        if first.iteration is not None and form.division.walk.iterations:
            later.append(_an_iteration_later(form.division.dividend, first.iteration) < form.tiles)
    if first.iteration is not None:
        prefix = known.recurrences[first.iteration.get_id()].prefix
        if not known.proves((*prefix, *later), conjunction(again)):
            return False
    ways = [as_condition(conjunction(part.rest)) for part in members[:MAX_CASES]]
    return known.proves(premises, ways[0] if len(ways) == 1 else z3.Or(*ways))


def _an_iteration_later(term: z3.ArithRef, iteration: z3.ArithRef) -> z3.ArithRef:
    later = z3.substitute(term, (iteration, iteration + 1))
    assert isinstance(later, z3.ArithRef)
    return later
