"""Instructions before which lanes wait for an engine, and the lanes that may continue."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.engines.registers import register_count
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions import mbarrier
from gemmgen.emulator.ptx.syntax import Instruction

Park = Callable[[Lanes | None], Lanes | None]
"""`park(lanes)`: parks waiting lanes and returns the lanes that continue."""


def parking(inst: Instruction, binder: Binder, block: int) -> Park:
    """Parks the lanes that cannot execute an instruction, the first of a basic block, yet."""
    engines = binder.engines
    state = engines.state
    everyone = np.arange(binder.geometry.lanes)
    guard = None if inst.guard is None else binder.registers.row(inst.guard, "pred")
    ready = _readiness(inst, binder)
    # A time limit ends waits at mbarriers only.
    impatient = inst.opcode == "mbarrier"

    def park(lanes: Lanes | None) -> Lanes | None:
        who = everyone if lanes is None else lanes
        asking = who if guard is None else who[guard[who] != inst.guard_negated]
        if impatient:
            asking = asking[~state.timed_out[asking]]
        if not len(asking):
            return lanes
        finished = ready(asking)
        if finished.all():
            return lanes
        waiting = asking[~finished]
        state.park(waiting, block)
        return np.setdiff1d(who, waiting, assume_unique=True)

    return park


def _readiness(inst: Instruction, binder: Binder) -> Callable[[Lanes], np.ndarray]:
    engines = binder.engines
    match inst.opcode:
        case "mbarrier":
            return mbarrier.readiness(inst, binder)
        case "barrier":
            return lambda lanes: engines.clusters.may_pass(inst, lanes)
        case "setmaxnreg":
            count = register_count(inst)
            return lambda lanes: engines.registers.may_increase(inst, lanes, count)
        case _:
            raise UnknownInstruction("nothing is known to wait for", instruction=inst)
