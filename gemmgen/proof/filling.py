"""Boxes that TMA stores fill a result: no element is left out.

The stored boxes of one tile fill W elements along each axis, from ``W u`` on (``gemmgen.proof.boxes``). Two tiles have different numbers u,
for no element lies in two boxes. Each u is at least 0, and W u lies below the array's extent, so u is one of ceil(extent / W) numbers. If
there are as many tiles as there are such u for all axes together, then each of them is the u of some tile.

Each tile has a block and a turn, and that block's threads store all boxes before they turn to the next tile, or end: the states of the ring
show this (``gemmgen.proof.rings``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import z3

from gemmgen.kernels.launch import LaunchSequence
from gemmgen.proof.boxes import Convert, term_of
from gemmgen.proof.contract import AXES
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.rings import INDEX, TILE, Ring, Sent
from gemmgen.proof.symbols import Content, Expression, replaced
from gemmgen.proof.values import as_term

MAX_TILE = 1 << 20
"""Elements of one tile."""


def left_out(ring: Ring, name: str, counter: Expression | None, sequence: LaunchSequence, known: Knowledge, convert: Convert) -> str:
    """The reason why a result may have an element that is not stored; empty if it has none. No element is stored twice."""
    array = known.contract.arrays[name]
    if not known.contract.has_blocks(array):
        return "the grid may have no block where the array has elements"
    maps = [map_ for map_ in sequence.tensor_maps if map_.array == name and map_.name in ring.written_maps]
    if len(maps) != 1:
        return "TMA does not store it by one map"
    sends = [sent for sent in ring.sends if sent.map_ == maps[0].name]
    for thread in {sent.thread for sent in sends}:
        if problem := _leaves_a_box(ring, sends, thread, counter):
            return problem
    extents = [known.contract.term(extent) for extent in maps[0].extents]
    return _fill(sends, maps[0].box, extents, counter, known, convert)


def _leaves_a_box(ring: Ring, sends: Collection[Sent], thread: int, counter: Expression | None) -> str:
    """The reason why a thread may be done with a tile before it has stored all of its boxes."""
    wanted = {(sent.place, tuple(_of_tile(place, counter) for place in sent.coordinates)) for sent in sends if sent.thread == thread}
    for role, iterations in ring.iterations.items():
        if role[thread] and not all(wanted <= iteration.of(thread) for iteration in iterations):
            return "a thread may be done with a tile before it has stored all boxes"
    ended = [ends for role, ends in ring.ends.items() if role[thread]]
    if not ended:
        return "a thread that stores boxes was not followed to its end"
    if counter is not None and not all(_none_left(facts, counter) for ends in ended for facts in ends):
        return "a thread may end before the last tile"
    if counter is None and any(facts for ends in ended for facts in ends):
        return "a thread may end before it has stored a box"
    return ""


def _of_tile(place: Content, counter: Expression | None) -> Content | None:
    renewed = place if counter is None else replaced(place, counter, TILE)
    return None if renewed is None else replaced(renewed, INDEX, TILE)


def _none_left(facts: Collection[Expression], counter: Expression) -> bool:
    """True if decisions say that the number of the next tile has reached its limit."""
    limit = counter.arguments[2]
    return any(fact.arguments == (each, limit) for fact in facts for each in (counter, INDEX))


def _fill(
    sends: Sequence[Sent],
    box: Sequence[int],
    extents: Sequence[z3.ArithRef],
    counter: Expression | None,
    known: Knowledge,
    convert: Convert,
) -> str:
    """The reason why the boxes of all tiles may not fill an array of some extents; empty if they do."""
    corners: set[tuple[int, ...]] = set()
    units: list[z3.ArithRef | None] = []
    steps: list[int] = []
    for sent in sends:
        forms = []
        for place in sent.coordinates:
            content = place if counter is None else replaced(place, counter, INDEX)
            value = None if content is None else convert(content)
            if value is None or value.base:
                return "a coordinate of a box has no formula"
            forms.append(dict(known.polynomials.of(known.seen(value, 32, True, ()).z3)))
        corners.add(tuple(form.pop((), 0) for form in forms))
        if not steps:
            steps = [min((abs(number) for number in form.values()), default=0) for form in forms]
            units = [
                term_of({monomial: number // step for monomial, number in form.items()}, known) if step else None
                for form, step in zip(forms, steps, strict=True)
            ]
    ends = [max(corner[axis] for corner in corners) + box[axis] for axis in range(len(box))]
    if any(corner[axis] < 0 for corner in corners for axis in range(len(box))) or math.prod(ends) > MAX_TILE:
        return "a tile of negative places, or of too many elements"
    widths = [step or end for step, end in zip(steps, ends, strict=True)]
    filled = np.zeros(widths, np.bool_)
    for corner in corners:
        filled[tuple(slice(first, first + size) for first, size in zip(corner, box, strict=True))] = True
    if not filled.all():
        return f"{int((~filled).sum())} of the {filled.size} elements of a tile are in no box"
    numbers: list[z3.ArithRef] = []
    for unit, width, extent in zip(units, widths, extents, strict=True):
        if unit is None:
            if not known.proves((), extent <= width):
                return "one tile does not fill an axis"
            continue
        if not known.proves((), z3.And(unit >= 0, unit * width < extent)):
            return "a tile may begin outside of the array"
        numbers.append((extent + (width - 1)) / width)
    return "" if _as_many(_tiles(counter, known), numbers, known) else "there may be fewer tiles than the array needs"


def _tiles(counter: Expression | None, known: Knowledge) -> list[z3.ArithRef]:
    """Factors of the number of tiles."""
    factors: list[z3.ArithRef] = []
    for place, axis in enumerate(AXES):
        if axis == "x" and counter is not None:
            tile = known.block["x"].z3.get_id()
            factors += known.factors.get(tile, (known.extents[tile],))
        else:
            factors += [as_term(factor) for factor in known.contract.grid_factors[place]]
    return factors


def _as_many(factors: Sequence[z3.ArithRef], numbers: Sequence[z3.ArithRef], known: Knowledge) -> bool:
    """True if two products have the same factors, but for those that are 1."""
    left = list(factors)
    for number in numbers:
        same = next((at for at, factor in enumerate(left) if known.proves((), factor == number)), None)
        if same is None:
            return False
        left.pop(same)
    return all(known.proves((), factor >= 1) for factor in left)
