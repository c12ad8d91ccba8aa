"""cp.async: copies from global to shared memory that land when their group is waited for.

PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy". The source is read when the copy is issued; the
destination keeps its old bytes until the issuing lane's wait. Where `src-size` is smaller than the copy, the rest is zero;
where it is 0, or `ignore-src` holds, the source is not read and its address is not checked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.errors import InvalidCopy, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.in_flight import InFlight
from gemmgen.emulator.instructions.memory import space_name
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import value_at
from gemmgen.emulator.memory import Access, CopyForm
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Negated, Operand, Register

_SIZES = (4, 8, 16)

Sizes = Callable[[Lanes], np.ndarray]
"""Number of bytes that each of these lanes takes from its source."""


def in_flight_of(binder: Binder) -> InFlight:
    """The copies of cp.async of a machine."""
    if binder.in_flight is None:
        binder.in_flight = binder.spaces.shared.in_flight = InFlight(binder.geometry, binder.spaces.shared)
    return binder.in_flight


@instruction("cp", when=lambda inst: inst.modifiers[:1] == ("async",) and inst.first_of(("bulk", "mbarrier")) is None)
def copy(inst: Instruction, binder: Binder) -> Operation:
    """Issues a copy of 4, 8 or 16 bytes a lane into the lane's open group."""
    if inst.first_of(("ca", "cg")) is None:
        raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)
    operands = list(inst.operands)
    if inst.has("L2::cache_hint"):
        operands.pop()
    if (
        space_name(inst, operands[0], binder) != "shared"
        or inst.has("shared::cluster")
        or not inst.has("global")
        or not 3 <= len(operands) <= 4
    ):
        raise UnknownInstruction("cp.async in a form that is not understood", instruction=inst)
    size = operands[2]
    if not isinstance(size, Integer) or size.value not in _SIZES or (inst.has("cg") and size.value != 16):
        raise UnknownInstruction("cp.async.ca copies 4, 8 or 16 bytes, cp.async.cg copies 16", instruction=inst)
    width = size.value
    sizes = _source_sizes(inst, binder, operands[3], width) if len(operands) == 4 else None
    shared, in_flight = binder.spaces.shared, in_flight_of(binder)
    store = Access(inst, "store", width, width, copy_form="whole" if sizes is None else _form_of(binder, operands[3], width))
    read = _reader(inst, binder, width, sizes)
    all_targets, some_targets = binder.addresses(inst, operands[0])
    all_origins, some_origins = binder.addresses(inst, operands[1])

    def run(lanes: Lanes | None, targets: np.ndarray, origins: np.ndarray) -> None:
        index = shared.resolve(store, lanes, targets)
        in_flight.issue(store, lanes, targets, index, read(lanes, origins), origins)

    return Operation(
        lambda: run(None, all_targets(), all_origins()),
        lambda lanes: run(lanes, some_targets(lanes), some_origins(lanes)),
    )


def _form_of(binder: Binder, operand: Operand, width: int) -> CopyForm:
    """The form that ptxas gives to a copy with a fourth operand: it sees a constant, and where a number is one of two constants."""
    register = operand.register if isinstance(operand, Negated) else operand
    if not isinstance(register, Register) or register.type == "pred":
        return "chosen"
    definition = _definition(binder, register)
    if definition is None:
        return "sized"
    if definition.opcode == "mov":
        return "whole" if definition.operands[1] == Integer(width) else "sized"
    constants = definition.opcode == "selp" and all(_is_constant(binder, value) for value in definition.operands[1:3])
    return "chosen" if constants else "sized"


def _is_constant(binder: Binder, operand: Operand) -> bool:
    if isinstance(operand, Register):
        definition = _definition(binder, operand)
        return definition is not None and definition.opcode == "mov" and isinstance(definition.operands[1], Integer)
    return isinstance(operand, Integer)


def _definition(binder: Binder, register: Register) -> Instruction | None:
    """The first instruction that writes a register."""
    for block in binder.program.blocks:
        for inst in block.body:
            if inst.operands and inst.operands[0] == register:
                return inst
    return None


def _source_sizes(inst: Instruction, binder: Binder, operand: Operand, width: int) -> Sizes | None:
    """The optional fourth operand: a predicate is `ignore-src`, a number `src-size`; None if every lane copies all."""
    if isinstance(operand, Integer) and operand.value == width:
        return None
    register = operand.register if isinstance(operand, Negated) else operand
    if isinstance(register, Register) and register.type == "pred":
        ignored, negated = binder.source(inst, register, "pred"), isinstance(operand, Negated)
        return lambda lanes: np.where(ignored[lanes] != negated, 0, width)
    given = binder.source(inst, operand, "u32")

    def sizes(lanes: Lanes) -> np.ndarray:
        values: np.ndarray = value_at(given, lanes)
        if int(values.max()) > width:
            binder.fail(InvalidCopy, f"src-size {int(values.max())} exceeds the {width} bytes of the copy", inst, lanes[values > width])
        return values

    return sizes


def _reader(inst: Instruction, binder: Binder, width: int, sizes: Sizes | None) -> Callable[[Lanes | None, np.ndarray], Source]:
    """Takes each lane's data from global memory, zeros beyond its source size; one element of `width` bytes a lane."""
    space = binder.spaces.global_
    units = space.units
    # The bytes of a partial source are read in aligned pieces whose sizes are powers of two, largest first.
    accesses = {piece: Access(inst, "load", piece, piece) for piece in (16, 8, 4, 2, 1) if piece <= width}
    whole = accesses[width]

    def everything(lanes: Lanes | None, origins: np.ndarray) -> Source:
        return units[width][space.locate(whole, lanes, origins)]

    if sizes is None:
        return everything
    wanted = sizes

    def some(lanes: Lanes | None, origins: np.ndarray) -> Source:
        who = np.arange(len(origins)) if lanes is None else lanes
        taken = wanted(who)
        if int(taken.min()) == width:
            return everything(lanes, origins)
        data = np.zeros((len(who), width), np.uint8)
        reading = taken > 0
        if reading.any():
            space.check_alignment(whole, who[reading], origins[reading])
        begin = np.zeros(len(who), np.uint64)
        for piece, access in accesses.items():
            chosen = np.flatnonzero(taken & piece)
            if not len(chosen):
                continue
            places = begin[chosen]
            index = space.locate(access, who[chosen], origins[chosen] + places)
            data.view(f"u{piece}" if piece < 16 else np.complex128)[chosen, places.astype(np.int64) // piece] = units[piece][index]
            begin[chosen] += np.uint64(piece)
        return data.view(units[width].dtype)[:, 0]

    return some


@instruction("cp", when=lambda inst: inst.modifiers == ("async", "commit_group"))
def commit_group(inst: Instruction, binder: Binder) -> Operation:
    """Closes the open group; later copies belong to the next group."""
    in_flight = in_flight_of(binder)
    return Operation(lambda: in_flight.commit(None), in_flight.commit)


@instruction("cp", when=lambda inst: inst.modifiers in (("async", "wait_group"), ("async", "wait_all")))
def wait_group(inst: Instruction, binder: Binder) -> Operation:
    """Lands all groups but the N latest; `wait_all` closes the open group and lands it too."""
    in_flight = in_flight_of(binder)
    everything = inst.has("wait_all")
    count = Integer(0) if everything else inst.operands[0]
    if not isinstance(count, Integer) or count.value < 0:
        raise UnknownInstruction("cp.async.wait_group needs a constant", instruction=inst)
    newest = count.value

    def run(lanes: Lanes | None) -> None:
        if everything:
            in_flight.commit(lanes)
        in_flight.wait(inst, lanes, newest)

    return Operation(lambda: run(None), run)
