"""Fences and pauses. Memory here is sequentially consistent; observers are told where order was asked for."""

from __future__ import annotations

from gemmgen.emulator.binding import Binder, Operation
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.ptx.syntax import Instruction


@instruction("membar", "fence")
def fence(inst: Instruction, binder: Binder) -> Operation:
    """Order for others to see; execution here is ordered anyway."""
    space = binder.spaces.global_

    def some(lanes: Lanes | None) -> None:
        for observer in space.observers:
            observer.executed(inst, lanes)

    return Operation(lambda: some(None), some)


@instruction("nanosleep", "pmevent", "griddepcontrol", "setmaxnreg")
def no_effect(inst: Instruction, binder: Binder) -> Operation:
    """Timing and power only."""
    return Operation(lambda: None, lambda lanes: None)
