"""Exchange between the lanes of a warp: shfl, vote, match, redux, elect, bar.warp.sync, activemask.

The machine brings lanes together before these run: when one executes, every live lane of its mask is there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator import ieee
from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.floating import minimum
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Negated, Operand, Pair, Register, Sink
from gemmgen.emulator.registers import DTYPES


def by_lanes(binder: Binder, run: Callable[[Lanes], None]) -> Operation:
    """An operation whose full form is the partial form over all lanes."""
    everyone = np.arange(binder.geometry.lanes)
    return Operation(lambda: run(everyone), run)


def value_at(source: Source, lanes: Lanes) -> Source:
    """An operand for some lanes, scalars repeated."""
    return source[lanes] if isinstance(source, np.ndarray) else np.full(len(lanes), source)


def uniform(source: Source) -> int | None:
    """The value that all lanes have; None if they differ."""
    if not isinstance(source, np.ndarray):
        return int(source)
    return int(source[0]) if (source == source[0]).all() else None


def member_mask_operand(inst: Instruction) -> Operand | None:
    """The operand that names the lanes which take part; None for instructions that take the whole warp."""
    if inst.opcode in ("shfl", "vote", "match", "redux", "elect"):
        return inst.operands[-1] if inst.has("sync") or inst.opcode == "elect" else None
    if inst.opcode == "bar":
        return inst.operands[0]
    return None


def present_words(binder: Binder, lanes: Lanes) -> Source:
    """One mask a warp: which of its lanes are among `lanes`."""
    there = np.zeros(binder.geometry.lanes, np.bool_)
    there[lanes] = True
    return np.packbits(there, bitorder="little").view(np.uint32)


@instruction("bar", when=lambda inst: inst.has("warp"))
def warp_barrier(inst: Instruction, binder: Binder) -> Operation:
    """The machine has already brought the lanes together."""
    return Operation(lambda: None, lambda lanes: None)


@instruction("activemask")
def active_mask(inst: Instruction, binder: Binder) -> Operation:
    """The lanes of the warp that execute this together: those the schedule happens to run."""
    target = binder.target(inst, inst.operands[0], "b32")

    def run(lanes: Lanes) -> None:
        if target is not None:
            target[lanes] = present_words(binder, lanes)[lanes // WARP]

    return by_lanes(binder, run)


def shuffle_sources(inst: Instruction, binder: Binder) -> Callable[[Lanes], tuple[Source, Source]]:
    """For lanes that execute a shuffle: the lane that each takes its value from, and whether that one is inside its segment.

    PTX ISA, shfl.sync: mode, b, and the clamp and segment fields of c.
    """
    b, c = (binder.source(inst, operand, "u32") for operand in inst.operands[2:4])
    mode = inst.first_of(("up", "down", "bfly", "idx"))
    five = 31

    def sources(lanes: Lanes) -> tuple[Source, Source]:
        lane = lanes % WARP
        offset = value_at(b, lanes).astype(np.int64) & five
        control = value_at(c, lanes).astype(np.int64)
        clamp, segment = control & five, (control >> 8) & five
        highest = (lane & segment) | (clamp & ~segment)
        lowest = lane & segment
        if mode == "up":
            chosen = lane - offset
            inside = chosen >= highest
        elif mode == "down":
            chosen = lane + offset
            inside = chosen <= highest
        elif mode == "bfly":
            chosen = lane ^ offset
            inside = chosen <= highest
        else:
            chosen = lowest | (offset & ~segment)
            inside = chosen <= highest
        return np.where(inside, chosen, lane) + (lanes - lane), inside

    return sources


def from_inactive_lanes(inst: Instruction, binder: Binder) -> Callable[[Lanes], np.ndarray]:
    """For lanes that execute a shuffle together: which of them take a value from a lane that takes no part."""
    sources = shuffle_sources(inst, binder)
    mask = binder.source(inst, inst.operands[4], "u32")

    def inactive(lanes: Lanes) -> np.ndarray:
        chosen, inside = sources(lanes)
        named = (value_at(mask, lanes).astype(np.uint32) >> (chosen % WARP).astype(np.uint32)) & np.uint32(1)
        there = np.zeros(binder.geometry.lanes, np.bool_)
        there[lanes] = True
        outside: np.ndarray = inside & ((named == 0) | ~there[chosen])
        return outside

    return inactive


@instruction("shfl")
def shfl(inst: Instruction, binder: Binder) -> Operation:
    """A register of another lane of the warp."""
    if not inst.has("sync"):
        raise UnknownInstruction("shfl without .sync is no longer valid", instruction=inst)
    destination = inst.operands[0]
    value_operand, valid_operand = (destination.first, destination.second) if isinstance(destination, Pair) else (destination, Sink())
    target = binder.target(inst, value_operand, "b32")
    valid = binder.target(inst, valid_operand, "pred")
    a, b, c = (binder.source(inst, operand, "u32") for operand in inst.operands[1:4])
    sources = shuffle_sources(inst, binder)
    staged = np.zeros(binder.geometry.lanes, np.uint32)
    everyone = np.arange(binder.geometry.lanes)
    known: dict[tuple[int, int], tuple[Source, Source]] = {}

    def of_everyone() -> tuple[Source, Source]:
        """The sources of all lanes; nearly all shuffles have the same b and c in every lane."""
        key = uniform(b), uniform(c)
        if key[0] is None or key[1] is None:
            return sources(everyone)
        pair = known.get((key[0], key[1]))
        if pair is None:
            if len(known) >= WARP:
                known.clear()
            pair = known[key[0], key[1]] = sources(everyone)
        return pair

    def run(lanes: Lanes) -> None:
        chosen, inside = sources(lanes)
        staged[lanes] = value_at(a, lanes)
        if target is not None:
            target[lanes] = staged[chosen]
        if valid is not None:
            valid[lanes] = inside

    def full() -> None:
        chosen, inside = of_everyone()
        if target is not None:
            np.copyto(target, a[chosen] if isinstance(a, np.ndarray) else a)
        if valid is not None:
            np.copyto(valid, inside)

    return Operation(full, run)


def _masked_votes(binder: Binder, lanes: Lanes, votes: np.ndarray, masks: np.ndarray) -> tuple[Source, Source]:
    """For each lane: the ballot among its mask's lanes, and which of them are present."""
    ballots = present_words(binder, lanes[votes])[lanes // WARP]
    there = present_words(binder, lanes)[lanes // WARP]
    return ballots & masks, there & masks


@instruction("vote")
def vote(inst: Instruction, binder: Binder) -> Operation:
    """Predicates of a warp combined."""
    if not inst.has("sync"):
        raise UnknownInstruction("vote without .sync is no longer valid", instruction=inst)
    mode = inst.first_of(("all", "any", "uni", "ballot"))
    operand = inst.operands[1]
    negated = isinstance(operand, Negated)
    predicate = binder.source(inst, operand.register if isinstance(operand, Negated) else operand, "pred")
    mask = binder.source(inst, inst.operands[2], "u32")
    target = binder.target(inst, inst.operands[0], "b32" if mode == "ballot" else "pred")

    def run(lanes: Lanes) -> None:
        votes = value_at(predicate, lanes)
        ballots, there = _masked_votes(binder, lanes, ~votes if negated else votes, value_at(mask, lanes))
        if target is None:
            return
        if mode == "ballot":
            target[lanes] = ballots
        elif mode == "any":
            target[lanes] = ballots != 0
        elif mode == "all":
            target[lanes] = ballots == there
        else:
            target[lanes] = (ballots == 0) | (ballots == there)

    return by_lanes(binder, run)


def _groups(lanes: Lanes, masks: np.ndarray) -> list[np.ndarray]:
    """Positions of lanes that share a warp and a mask."""
    keys = (lanes // WARP).astype(np.uint64) << np.uint64(32) | masks.astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return np.split(order, cuts)


@instruction("match")
def match(inst: Instruction, binder: Binder) -> Operation:
    """Lanes that hold the same value."""
    everyone = inst.has("all")
    destination = inst.operands[0]
    first, second = (destination.first, destination.second) if isinstance(destination, Pair) else (destination, Sink())
    target, agreed = binder.target(inst, first, "b32"), binder.target(inst, second, "pred")
    type_name = inst.type
    value = binder.source(inst, inst.operands[1], type_name)
    mask = binder.source(inst, inst.operands[2], "u32")

    def run(lanes: Lanes) -> None:
        values, masks = value_at(value, lanes), value_at(mask, lanes)
        result = np.zeros(len(lanes), np.uint32)
        bits = np.left_shift(np.uint32(1), (lanes % WARP).astype(np.uint32))
        for positions in _groups(lanes, masks):
            if everyone:
                same = bool((values[positions] == values[positions[0]]).all())
                result[positions] = np.bitwise_or.reduce(bits[positions]) if same else 0
                continue
            for distinct in np.unique(values[positions]):
                equal = positions[values[positions] == distinct]
                result[equal] = np.bitwise_or.reduce(bits[equal])
        if target is not None:
            target[lanes] = result
        if agreed is not None:
            agreed[lanes] = result != 0

    return by_lanes(binder, run)


@instruction("redux")
def redux(inst: Instruction, binder: Binder) -> Operation:
    """A value combined over the lanes of a mask."""
    operation = inst.first_of(("add", "min", "max", "and", "or", "xor"))
    type_name = inst.type
    target = binder.target(inst, inst.operands[0], type_name)
    value = binder.source(inst, inst.operands[1], type_name)
    mask = binder.source(inst, inst.operands[2], "u32")
    dtype = DTYPES[type_name]
    if type_name == "f32":
        if operation not in ("min", "max"):
            raise UnknownInstruction("redux on floats knows min and max only", instruction=inst)
        largest, propagate, absolute = operation == "max", inst.has("NaN"), inst.has("abs")

        def reduce(values: np.ndarray) -> np.generic:
            result = np.abs(values[:1]) if absolute else values[:1]
            for element in values[1:]:
                result = minimum(result, np.abs(element) if absolute else element, largest, propagate)
            reduced: np.generic = ieee.canonical_f32(result)[0]
            return reduced
    else:
        ufunc = {
            "add": np.add,
            "min": np.minimum,
            "max": np.maximum,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }[operation or ""]

        def reduce(values: np.ndarray) -> np.generic:
            reduced: np.generic = ufunc.reduce(values, dtype=dtype)
            return reduced

    def run(lanes: Lanes) -> None:
        values, masks = value_at(value, lanes), value_at(mask, lanes)
        if target is None:
            return
        for positions in _groups(lanes, masks):
            target[lanes[positions]] = reduce(values[positions])

    return by_lanes(binder, run)


@instruction("elect")
def elect(inst: Instruction, binder: Binder) -> Operation:
    """The lowest lane of the mask leads."""
    destination = inst.operands[0]
    if not isinstance(destination, Pair):
        raise UnknownInstruction("elect.sync has two results, a lane and a predicate: d|p", instruction=inst)
    first, second = destination.first, destination.second
    target, leads = binder.target(inst, first, "b32"), binder.target(inst, second, "pred")
    mask = binder.source(inst, inst.operands[1], "u32")

    def run(lanes: Lanes) -> None:
        masks = value_at(mask, lanes).astype(np.uint32)
        leader = np.bitwise_count((masks & (~masks + np.uint32(1))) - np.uint32(1))
        if target is not None:
            target[lanes] = leader
        if leads is not None:
            leads[lanes] = leader == lanes % WARP

    return by_lanes(binder, run)


def mask_source(inst: Instruction, binder: Binder) -> Source:
    """The member mask as a row or a scalar; all lanes for instructions without one."""
    operand = member_mask_operand(inst)
    if operand is None:
        return np.uint32(0xFFFFFFFF)
    if not isinstance(operand, Integer | Register):
        raise UnknownInstruction("a member mask must be a register or a constant", instruction=inst)
    return binder.source(inst, operand, "u32")


__all__ = ["by_lanes", "mask_source", "member_mask_operand", "present_words", "value_at"]
