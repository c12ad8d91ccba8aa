"""Fences, pauses and register counts. Memory here is sequentially consistent; observers are notified of requests for order."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.engines.registers import register_count
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, Integer
from gemmgen.hardware.tensor_map import MAP_BYTES


@instruction("membar", "fence")
def fence(inst: Instruction, binder: Binder) -> Operation:
    """Order for others to see; execution here is ordered anyway."""
    space = binder.spaces.global_
    maps, everyone = None, np.arange(binder.geometry.lanes)
    if inst.has("tensormap::generic") and inst.opcode == "fence":
        *_, size = inst.operands or (None,)
        fits = isinstance(size, Integer) and size.value == MAP_BYTES if inst.has("acquire") else size is None
        if not fits:
            raise UnknownInstruction(
                f"fence.proxy.tensormap::generic: .acquire takes the address of a map and its size, {MAP_BYTES}; .release takes nothing",
                instruction=inst,
            )
        if inst.has("acquire"):
            _, maps = binder.addresses(inst, inst.operands[0])

    def some(lanes: Lanes | None) -> None:
        for observer in space.observers:
            observer.executed(inst, lanes)
            if maps is not None:
                who = everyone if lanes is None else lanes
                observer.map_acquired(inst, who, maps(who))

    return Operation(lambda: some(None), some)


@instruction("setmaxnreg")
def change_registers(inst: Instruction, binder: Binder) -> Operation:
    """Gives registers to the block's pool; for .inc the machine has already waited until there were enough."""
    pool = binder.engines.registers
    count = register_count(inst)
    if inst.has("dec"):
        return by_lanes(binder, lambda lanes: pool.decrease(inst, lanes, count))
    return Operation(lambda: None, lambda lanes: None)


@instruction("griddepcontrol")
def grid_dependency(inst: Instruction, binder: Binder) -> Operation:
    """Waits for the launch before, or lets the next one begin: launches run one after another here, and observers are notified."""
    return fence(inst, binder)


@instruction("nanosleep", "pmevent", "brkpt")
def no_effect(inst: Instruction, binder: Binder) -> Operation:
    """Timing and power only."""
    return Operation(lambda: None, lambda lanes: None)
