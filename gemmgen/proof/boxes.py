"""Boxes that TMA stores: no element of a result lies in two of them.

A coordinate is ``W u + c``: the same ``W u`` for all statements and threads, and a number c for each. If the boxes of one tile lie
within W elements along each axis, any element of a box tells u; the tile's number T, or the block's index, follows from these, since

- ``w + 8 q`` with 0 <= w < 8 tells w and q,
- a quotient and a remainder by a number that is known tell the dividend,
- a term of known numbers is known.

A persistent block stores the tiles T = b, b + G, b + 2 G, ... of a grid of G blocks, which no other block or iteration has. The
state of the ring (``gemmgen.proof.rings``) shows that an iteration stores no box twice, and different boxes of one tile are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import z3

from gemmgen.kernels.launch import LaunchSequence
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.obligations import apart_in_memory
from gemmgen.proof.polynomials import Monomial
from gemmgen.proof.rings import GRID, INDEX, TILE, Sent
from gemmgen.proof.roles import Step
from gemmgen.proof.symbols import Content, Expression, replaced
from gemmgen.proof.values import Value

MAX_DIGITS = 8
MOST = (1 << 31) - 1

Convert = Callable[[Content], Value | None]


def stored_once(
    sends: Collection[Sent],
    steps: Sequence[Step],
    sequence: LaunchSequence,
    known: Knowledge,
    convert: Convert,
    in_range: Callable[[Step], bool],
) -> str:
    """The reason why an element may lie in two boxes; empty if none does.

    ``convert``: the formula of a content. ``in_range``: a counter below its limit does not overflow by its step.
    """
    arrays = {map_.name: map_.array for map_ in sequence.tensor_maps}
    maps = {sent.map_ for sent in sends}
    if len({arrays[name] for name in maps}) < len(maps):
        return "two maps of one array are stored to"
    counter = tiles(sends, steps, in_range)
    if isinstance(counter, str):
        return counter
    identity = [part for parts in known.block_parts.values() for part in parts]
    if counter is not None:
        if problem := _name_tiles(sends, counter, known, convert):
            return problem
        identity = [known.block["x"].z3, *[part for axis in "yz" for part in known.block_parts.get(axis, ())]]
    for name in maps:
        array = known.contract.arrays[arrays[name]]
        if not apart_in_memory(known, array):
            return f"{array.name}: two of its elements may have one address"
        box = next(map_.box for map_ in sequence.tensor_maps if map_.name == name)
        problem = _apart([sent for sent in sends if sent.map_ == name], box, counter, identity, known, convert)
        if problem:
            return f"{array.name}: {problem}"
    return ""


def _counters(content: Content) -> set[Expression]:
    if not isinstance(content, Expression):
        return set()
    if content.operation == "counter":
        return {content}
    return {counter for part in content.arguments for counter in _counters(part)}


def tiles(sends: Collection[Sent], steps: Sequence[Step], in_range: Callable[[Step], bool]) -> Expression | str | None:
    """The counter of a block's tiles; None if there is none; a reason where it does not count tiles apart."""
    counters = {counter for sent in sends for place in sent.coordinates for counter in _counters(place)}
    if not counters:
        return None
    counter = counters.pop()
    if counters or len(counter.arguments) != 3 or {*counter.arguments[:2]} != {INDEX, GRID}:
        return "boxes in a loop that is not one over the grid's tiles"
    named = [step for step in steps if step.counter == counter]
    if not all(step.step == GRID or (not step.grows and step.step == INDEX) for step in named):
        return "a loop over tiles whose step is not the grid"
    return counter if all(in_range(step) for step in named if step.outcome) else "a loop over tiles whose counter may overflow"


def _name_tiles(sends: Collection[Sent], counter: Expression, known: Knowledge, convert: Convert) -> str:
    """Lets the block's index along x mean the number of a tile, which is below the limit of its loop in every iteration."""
    limit = convert(counter.arguments[2])
    if limit is None or limit.base:
        return "the number of tiles has no formula"
    below = Expression("lt.s32", (counter, counter.arguments[2]))
    first = Expression("lt.s32", (INDEX, counter.arguments[2]))
    grid = known.block["x"].z3
    all_begin = known.proves((), grid < limit.z3)
    for sent in sends:
        within = any(isinstance(place, Expression) and place.mentions(counter) for place in sent.coordinates)
        if (within and below not in sent.bounded) or (not within and not all_begin and first not in sent.bounded):
            return "a box may be stored for a tile beyond the last"
        others = [replaced(place, counter, TILE) for place in sent.coordinates]
        if within and any(isinstance(place, Expression) and place.mentions(INDEX) for place in others):
            return "a box that depends on the block and on a tile"
    factors = [factor.z3 for part in _factors(counter.arguments[2]) if (factor := convert(part)) is not None]
    tile = known.symbol("tile", 0, MOST)
    known.facts.append(tile.z3 < limit.z3)
    known.block["x"] = tile
    known.block_parts["x"] = (tile.z3,)
    known.extents[tile.z3.get_id()] = limit.z3
    if known.proves((), z3.Product(*factors) == limit.z3):
        known.factors[tile.z3.get_id()] = tuple(factors)
    return ""


def _factors(content: Content) -> list[Content]:
    if isinstance(content, Expression) and content.operation == "mul.s32":
        return [factor for part in content.arguments for factor in _factors(part)]
    return [content]


def _apart(
    sends: Sequence[Sent],
    box: Sequence[int],
    counter: Expression | None,
    identity: Sequence[z3.ArithRef],
    known: Knowledge,
    convert: Convert,
) -> str:
    """The reason why two boxes of one map may have an element in common; empty if none have."""
    places: dict[tuple[int, int, tuple[int, ...]], tuple[Content | None, ...]] = {}
    outer: list[dict[Monomial, int]] | None = None
    for sent in sends:
        forms = []
        contents = tuple(content if counter is None else replaced(content, counter, INDEX) for content in sent.coordinates)
        for content in contents:
            value = None if content is None else convert(content)
            if value is None or value.base:
                return "a coordinate of a box has no formula"
            forms.append(dict(known.polynomials.of(known.seen(value, 32, True, ()).z3)))
        key = sent.place, sent.thread, tuple(form.pop((), 0) for form in forms)
        if places.setdefault(key, contents) != contents:
            return "a statement that has two forms of one place"
        if outer is not None and outer != forms:
            return "coordinates of boxes that differ by more than numbers"
        outer = forms
    assert outer is not None
    corners = list(places)
    determined: list[z3.ArithRef] = []
    for axis, form in enumerate(outer):
        if not form:
            continue
        step = min(abs(number) for number in form.values())
        width = max(place[axis] for *_, place in corners) - min(place[axis] for *_, place in corners) + box[axis]
        if step < width or any(number % step for number in form.values()):
            return "the boxes of two tiles may overlap"
        unit = {monomial: number // step for monomial, number in form.items()}
        determined += _digits(unit, known)
    for number, (*_, one) in enumerate(corners):
        for *_, two in corners[:number]:
            if all(abs(a - b) < size for a, b, size in zip(one, two, box, strict=True)):
                return "two boxes of one tile overlap"
    if not _tell(determined, identity, known):
        return "the place of a box does not tell its tile"
    return ""


def term_of(form: Mapping[Monomial, int], known: Knowledge) -> z3.ArithRef:
    """A sum without its constant as a term."""
    total: z3.ArithRef = z3.IntVal(0)
    for monomial, number in form.items():
        product: z3.ArithRef = z3.IntVal(number)
        for factor in monomial:
            product = product * known.polynomials.term(factor)
        total = total + product
    return z3.simplify(total) if len(form) != 1 else total


def _digits(form: Mapping[Monomial, int], known: Knowledge) -> list[z3.ArithRef]:
    """Numbers that a sum tells: a single term, or digits w + 8 q of which the lower one is proved to be small."""
    left = dict(form)
    digits: list[z3.ArithRef] = []
    for _ in range(MAX_DIGITS):
        ones = [monomial for monomial, number in left.items() if number == 1]
        if len(left) == 1 and ones:
            (monomial,) = ones
            return [*digits, known.polynomials.term(monomial[0])] if len(monomial) == 1 else digits
        if not ones or len(left) < 2:
            return digits
        rest = {monomial: number for monomial, number in left.items() if number != 1}
        base = min((abs(number) for number in rest.values()), default=0)
        low = term_of({monomial: 1 for monomial in ones}, known)
        if base < 2 or any(number % base for number in rest.values()) or not known.proves((), z3.And(low >= 0, low < base)):
            return digits
        if len(ones) == 1 and len(ones[0]) == 1:
            digits.append(known.polynomials.term(ones[0][0]))
        left = {monomial: number // base for monomial, number in rest.items()}
    return digits


def _tell(determined: Sequence[z3.ArithRef], identity: Sequence[z3.ArithRef], known: Knowledge) -> bool:
    """True if numbers that are the same for two boxes leave one tile only."""
    same = {term.get_id() for term in determined}
    private = {symbol.get_id() for symbol in known.private}

    def is_same(term: z3.ExprRef) -> bool:
        pending = [term]
        while pending:
            part = pending.pop()
            if part.get_id() in same:
                continue
            if part.get_id() in private:
                return False
            pending += part.children()
        return True

    changed = True
    while changed:
        changed = False
        for quotient, remainder in known.divided:
            dividend, divisor = known.quotients[quotient.z3.get_id()]
            parts = (quotient.z3, remainder.z3)
            if not is_same(divisor):
                continue
            if all(map(is_same, parts)) and not is_same(dividend):
                same.add(dividend.get_id())
                changed = True
            elif is_same(dividend) and not all(map(is_same, parts)):
                same |= {part.get_id() for part in parts}
                changed = True
    return all(is_same(part) for part in identity)
