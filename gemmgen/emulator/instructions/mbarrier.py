"""mbarrier and cp.async.mbarrier.arrive: threads and engines meet at barriers in shared memory.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". Lanes that wait do not run: the machine parks them before
the instruction until the phase has completed. Where nothing else can happen, the wait ends without it, as a time limit would end it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gemmgen.emulator.binding import Binder, Source
from gemmgen.emulator.engines.barriers import Barriers, pending_count
from gemmgen.emulator.errors import OutOfBounds, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.async_copy import in_flight_of
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.memory import SHARED_WINDOW, Access
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Operand, Sink
from gemmgen.emulator.transfers import Barrier

_BYTES = 8
_LOCAL_ONLY = ("init", "inval", "test_wait", "try_wait")

Offsets = Callable[[Lanes], np.ndarray]
"""The absolute byte offsets in shared memory that some lanes' operands name."""


def shared_offsets(inst: Instruction, binder: Binder, operand: Operand, width: int, generic: bool = False) -> Offsets:
    """Address of an operand in shared memory, of other blocks of the cluster too; checked for `width` bytes. `generic`: the operand
    is a generic address, as where the instruction names no state space."""
    _, some = binder.addresses(inst, operand)
    shared = binder.spaces.shared
    access = Access(inst, "atomic", width, width)

    def offsets(lanes: Lanes) -> np.ndarray:
        addresses = some(lanes)
        if generic:
            outside = (addresses >> np.uint64(32)) != np.uint64(SHARED_WINDOW >> 32)
            if outside.any():
                binder.fail(OutOfBounds, f"address 0x{int(addresses[outside][0]):x} is not in shared memory", inst, lanes[outside])
            addresses = addresses - np.uint64(SHARED_WINDOW)
        absolute: np.ndarray = shared.resolve(access, lanes, addresses).astype(np.int64) * min(width, 16)
        return absolute

    return offsets


def _barrier_offsets(inst: Instruction, binder: Binder, operand: Operand) -> Offsets:
    generic = not any(modifier.split("::")[0] == "shared" for modifier in inst.modifiers)
    offsets = shared_offsets(inst, binder, operand, _BYTES, generic)
    if inst.modifiers[0] not in _LOCAL_ONLY:
        return offsets
    stride, shared = binder.geometry.stride, binder.spaces.shared

    def local(lanes: Lanes) -> np.ndarray:
        addresses = offsets(lanes)
        foreign = addresses // shared.stride != lanes // stride
        if foreign.any():
            binder.fail(OutOfBounds, f"mbarrier.{inst.modifiers[0]} of a barrier in another block", inst, lanes[foreign])
        return addresses

    return local


def by_barrier(barriers: Barriers, inst: Instruction, lanes: Lanes, offsets: np.ndarray) -> Iterator[tuple[Barrier, np.ndarray]]:
    """The barriers that lanes name, each with the positions of its lanes."""
    first = int(offsets[0])
    if (offsets == first).all():
        groups = [(first, np.arange(len(offsets)))]
    else:
        groups = [(int(offset), np.flatnonzero(offsets == offset)) for offset in np.unique(offsets)]
    for offset, positions in groups:
        barrier = barriers.at(inst, lanes[positions], offset)
        for observer in barriers.shared.observers:
            observer.barrier_used(inst, barrier, lanes[positions])
        yield barrier, positions


@instruction("mbarrier", when=lambda inst: inst.has("init"))
def init(inst: Instruction, binder: Binder) -> Operation:
    """Initialises a barrier with the number of arrivals that it expects in each phase."""
    barriers = binder.engines.barriers
    offsets = _barrier_offsets(inst, binder, inst.operands[0])
    count = binder.source(inst, inst.operands[1], "u32")

    def run(lanes: Lanes) -> None:
        for lane, offset, expected in zip(lanes.tolist(), offsets(lanes).tolist(), value_at(count, lanes).tolist(), strict=True):
            barriers.init(inst, lane, offset, expected)

    return by_lanes(binder, run)


@instruction("mbarrier", when=lambda inst: inst.has("inval"))
def inval(inst: Instruction, binder: Binder) -> Operation:
    """Ends a barrier."""
    barriers = binder.engines.barriers
    offsets = _barrier_offsets(inst, binder, inst.operands[0])

    def run(lanes: Lanes) -> None:
        for lane, offset in zip(lanes.tolist(), offsets(lanes).tolist(), strict=True):
            barriers.inval(inst, lane, offset)

    return by_lanes(binder, run)


@instruction("mbarrier", when=lambda inst: inst.modifiers[:1] in (("arrive",), ("arrive_drop",)))
def arrive(inst: Instruction, binder: Binder) -> Operation:
    """Counts arrivals, after announcing bytes with .expect_tx; returns the state before."""
    barriers = binder.engines.barriers
    result, address, *rest = inst.operands
    target = None if isinstance(result, Sink) else binder.target(inst, result, "b64")
    offsets = _barrier_offsets(inst, binder, address)
    expects, drops, completes = inst.has("expect_tx"), inst.has("arrive_drop"), not inst.has("noComplete")
    if len(rest) > 1 or ((expects or not completes) and not rest) or (target is not None and inst.has("shared::cluster")):
        raise UnknownInstruction("mbarrier.arrive in a form that is not understood", instruction=inst)
    number = binder.source(inst, rest[0] if rest else Integer(1), "u32")

    def run(lanes: Lanes) -> None:
        numbers = value_at(number, lanes)
        for barrier, positions in by_barrier(barriers, inst, lanes, offsets(lanes)):
            who, given = lanes[positions], numbers[positions]
            if expects:
                barriers.expect(inst, barrier, who, given)
                given = np.ones(len(who), np.int64)
            states = barriers.arrive(inst, barrier, who, given, drops, completes)
            if target is not None:
                target[who] = states

    return by_lanes(binder, run)


@instruction("mbarrier", when=lambda inst: inst.modifiers[:1] in (("expect_tx",), ("complete_tx",)))
def count_bytes(inst: Instruction, binder: Binder) -> Operation:
    """Announces bytes, or says that some have arrived, without an arrival."""
    barriers = binder.engines.barriers
    offsets = _barrier_offsets(inst, binder, inst.operands[0])
    number = binder.source(inst, inst.operands[1], "u32")

    def run(lanes: Lanes) -> None:
        numbers = value_at(number, lanes).astype(np.int64)
        for barrier, positions in by_barrier(barriers, inst, lanes, offsets(lanes)):
            if inst.has("expect_tx"):
                barriers.expect(inst, barrier, lanes[positions], numbers[positions])
            else:
                barriers.complete(inst, barrier, lanes[positions], int(numbers[positions].sum()))

    return by_lanes(binder, run)


@instruction("mbarrier", when=lambda inst: inst.has("pending_count"))
def pending(inst: Instruction, binder: Binder) -> Operation:
    """The pending arrivals that a state encodes."""
    return binder.computed(inst, pending_count, "b32", "u64")


def _question(inst: Instruction, binder: Binder) -> tuple[Offsets, Source]:
    """The barriers that a wait asks, and which phase of them: a parity or a state. Only try_wait has a time."""
    if len(inst.operands) > (4 if inst.has("try_wait") else 3):
        raise UnknownInstruction(f"mbarrier.{inst.modifiers[0]} with operands too many", instruction=inst)
    offsets = _barrier_offsets(inst, binder, inst.operands[1])
    return offsets, binder.source(inst, inst.operands[2], "u32" if inst.has("parity") else "u64")


@instruction("mbarrier", when=lambda inst: inst.has("test_wait") or inst.has("try_wait"))
def wait(inst: Instruction, binder: Binder) -> Operation:
    """Tells whether a phase has completed."""
    engines = binder.engines
    barriers, state = engines.barriers, engines.state
    target = binder.target(inst, inst.operands[0], "pred")
    offsets, number = _question(inst, binder)
    parity = inst.has("parity")

    def run(lanes: Lanes) -> None:
        numbers = value_at(number, lanes)
        state.timed_out[lanes] = False
        for barrier, positions in by_barrier(barriers, inst, lanes, offsets(lanes)):
            who = lanes[positions]
            done = barriers.has_completed(inst, barrier, who, numbers[positions], parity)
            if target is not None:
                target[who] = done
            if done.any():
                for observer in binder.spaces.shared.observers:
                    observer.phase_seen(inst, barrier, who[done])

    return by_lanes(binder, run)


def readiness(inst: Instruction, binder: Binder) -> Callable[[Lanes], np.ndarray]:
    """Lanes whose wait would succeed now; records the waiting lanes with the barriers."""
    barriers = binder.engines.barriers
    offsets, number = _question(inst, binder)
    parity = inst.has("parity")

    def ready(lanes: Lanes) -> np.ndarray:
        numbers = value_at(number, lanes)
        flags = np.empty(len(lanes), np.bool_)
        for barrier, positions in by_barrier(barriers, inst, lanes, offsets(lanes)):
            done = flags[positions] = barriers.has_completed(inst, barrier, lanes[positions], numbers[positions], parity)
            if not done.all():
                barrier.waiters.append(lanes[positions[~done]])
        return flags

    return ready


@instruction("cp", when=lambda inst: inst.modifiers[:3] == ("async", "mbarrier", "arrive"))
def arrive_after_copies(inst: Instruction, binder: Binder) -> Operation:
    """Arrives once all cp.async that the lane has issued have landed; without .noinc that arrival is one more than expected."""
    engines, in_flight = binder.engines, in_flight_of(binder)
    barriers = engines.barriers
    offsets = _barrier_offsets(inst, binder, inst.operands[0])

    def land(lanes: Lanes, where: np.ndarray, limits: np.ndarray) -> None:
        in_flight.land(inst, lanes, limits)
        for barrier, positions in by_barrier(barriers, inst, lanes, where):
            who = lanes[positions]
            barriers.arrive(inst, barrier, who, np.ones(len(who), np.int64), False, True)

    def run(lanes: Lanes) -> None:
        where = offsets(lanes)
        if not inst.has("noinc"):
            for barrier, positions in by_barrier(barriers, inst, lanes, where):
                barrier.pending += len(positions)
        limits = in_flight.committed[lanes] + 1
        engines.copies.pending.append(lambda: land(lanes, where, limits))

    return by_lanes(binder, run)
