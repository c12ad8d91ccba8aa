"""Clusters: mapa, getctarank, barrier.cluster, and the stores and reductions that signal a barrier of another block.

PTX ISA, "mapa", "getctarank", "barrier.cluster", "st.async" and "red.async". Accesses to shared memory of other blocks themselves are
those of `memory.py` and `atomics.py`: the address says which block is meant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.engines.async_proxy import SentWords
from gemmgen.emulator.errors import ClusterMisuse, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.atomics import in_turns, update_of
from gemmgen.emulator.instructions.mbarrier import shared_offsets
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes, value_at
from gemmgen.emulator.memory import RANK_SHIFT, SHARED_WINDOW
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Instruction, Operand, Register, Symbol, Vector
from gemmgen.emulator.registers import DTYPES


def _named_space(inst: Instruction) -> bool:
    return inst.has("shared::cluster")


@instruction("mapa")
def map_address(inst: Instruction, binder: Binder) -> Operation:
    """The address in the block of a given rank that corresponds to an address in the lane's own block."""
    clusters = binder.engines.clusters
    type_name = inst.type
    target = binder.target(inst, inst.operands[0], type_name)
    operand = inst.operands[1]
    if isinstance(operand, Symbol):
        operand = Address(Symbol(operand.name), operand.offset)
    elif isinstance(operand, Register):
        operand = Address(operand)
    _, addresses = binder.addresses(inst, operand)
    rank = binder.source(inst, inst.operands[2], "u32")

    def run(lanes: Lanes) -> None:
        ranks = value_at(rank, lanes).astype(np.int64)
        beyond = ranks >= clusters.geometry.cluster_size
        if beyond.any():
            binder.fail(
                ClusterMisuse,
                f"there is no block of rank {int(ranks[beyond][0])} in a cluster of {clusters.geometry.cluster_size}",
                inst,
                lanes[beyond],
            )
        given = addresses(lanes).astype(np.uint64)
        inside = given & np.uint64((1 << RANK_SHIFT) - 1)
        mapped = inside | ranks.astype(np.uint64) << np.uint64(RANK_SHIFT)
        if not _named_space(inst):
            mapped |= np.uint64(SHARED_WINDOW)
        if target is not None:
            target[lanes] = mapped.astype(target.dtype)

    return by_lanes(binder, run)


@instruction("getctarank")
def rank_of_address(inst: Instruction, binder: Binder) -> Operation:
    """The rank of the block whose shared memory an address means."""
    target = binder.target(inst, inst.operands[0], "b32")
    operand = inst.operands[1]
    _, addresses = binder.addresses(inst, Address(operand) if isinstance(operand, Register) else operand)

    def run(lanes: Lanes) -> None:
        given = addresses(lanes).astype(np.uint64) & np.uint64(0xFFFFFFFF)
        if target is not None:
            target[lanes] = given >> np.uint64(RANK_SHIFT)

    return by_lanes(binder, run)


@instruction("barrier", when=lambda inst: inst.has("cluster"))
def cluster_barrier(inst: Instruction, binder: Binder) -> Operation:
    """Arrives at the cluster barrier, or continues after it: the machine parks lanes until all have arrived."""
    clusters = binder.engines.clusters
    if inst.has("arrive"):
        return by_lanes(binder, lambda lanes: clusters.arrive(inst, lanes))
    return by_lanes(binder, lambda lanes: clusters.passed(inst, lanes))


def _elements(operand: Operand) -> tuple[Operand, ...]:
    return operand.elements if isinstance(operand, Vector) else (operand,)


@instruction("st", "red", when=lambda inst: inst.has("async"))
def store_and_signal(inst: Instruction, binder: Binder) -> Operation:
    """Writes, or reduces into, shared memory of the cluster later on, and then counts the bytes at a barrier there."""
    engines = binder.engines
    barriers, units = engines.barriers, binder.spaces.shared.units
    address, value, barrier_address = inst.operands
    elements = _elements(value)
    size = TYPE_BYTES[inst.type]
    width = size * len(elements)
    if not inst.has("mbarrier::complete_tx::bytes") or size not in (4, 8) or width > 16:
        raise UnknownInstruction(f"{inst.opcode}.async in a form that is not understood", instruction=inst)
    targets = shared_offsets(inst, binder, address, width)
    signals = shared_offsets(inst, binder, barrier_address, 8)
    sources = [binder.source(inst, element, f"b{size * 8}") for element in elements]
    change: Callable[[np.ndarray, np.ndarray, np.ndarray], None] = _writer(units, size)
    if inst.opcode == "red":
        change = _reducer(inst, binder, units, size)

    def run(lanes: Lanes) -> None:
        where, signal = targets(lanes), signals(lanes)
        apart = where // binder.spaces.shared.stride != signal // binder.spaces.shared.stride
        if apart.any():
            binder.fail(ClusterMisuse, "the barrier is in another block than the data", inst, lanes[apart])
        values = np.stack([value_at(source, lanes) for source in sources], axis=1)

        words = SentWords(inst, lanes.copy(), where, width)
        engines.proxy.send(words)

        def land() -> None:
            engines.proxy.receive(words)
            for column in range(values.shape[1]):
                change(where // size + column, values[:, column], lanes)
            for offset in np.unique(signal).tolist():
                here = lanes[signal == offset]
                for observer in binder.spaces.shared.observers:
                    observer.words_arrived(inst, where[signal == offset], width, barriers.at(inst, here, offset))
                barriers.complete(inst, barriers.at(inst, here, offset), here, width * len(here))

        engines.copies.pending.append(land)

    return by_lanes(binder, run)


def _writer(units: dict[int, np.ndarray], size: int) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    def write(index: np.ndarray, values: np.ndarray, lanes: Lanes) -> None:
        units[size][index] = values

    return write


def _reducer(
    inst: Instruction, binder: Binder, units: dict[int, np.ndarray], size: int
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    operation = inst.first_of(("add", "inc", "dec", "min", "max", "and", "or", "xor"))
    if operation is None:
        raise UnknownInstruction("red.async in a form that is not understood", instruction=inst)
    dtype = np.dtype(DTYPES[inst.type])
    update = update_of(inst, operation, inst.type, binder.arithmetic)

    def reduce(index: np.ndarray, values: np.ndarray, lanes: Lanes) -> None:
        in_turns(units[size].view(dtype), index, update, (values.view(dtype),))

    return reduce
