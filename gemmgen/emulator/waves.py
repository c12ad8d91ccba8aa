"""The blocks of a grid, wave after wave on one machine."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gemmgen.emulator.arithmetic import REAL, Arithmetic
from gemmgen.emulator.buffers import LaunchMemory
from gemmgen.emulator.geometry import WARP, Dim3
from gemmgen.emulator.hazards.destinations import bases_of
from gemmgen.emulator.hazards.detector import HazardDetector
from gemmgen.emulator.hazards.undefined import UndefinedRegisters, find_undefined
from gemmgen.emulator.machine import Machine
from gemmgen.emulator.memory import Observer
from gemmgen.emulator.printing import Output
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.registers import RegisterFile
from gemmgen.emulator.schedule import Schedule

_WAVE_BYTES = 512 << 20
_REGISTER_BYTES = 11 << 20
"""Registers of a wave, with their scratch, up to which more lanes made measured kernels faster."""
_MIN_LANES, _MAX_LANES = 2048, 16384
_WAVES_TO_CANCEL = 3
"""Waves of a grid whose blocks cancel the launch of others, if nothing else decides."""
_CACHED_MACHINE_BYTES = 256 << 20


@dataclass(slots=True)
class Waves:
    """A launch while it runs: its inputs, and its results so far."""

    program: Program
    grid: Dim3
    block: Dim3
    memory: LaunchMemory
    schedule: Schedule
    per_wave: int
    shared_bytes: int
    """Dynamic shared memory of a block."""
    needed: int
    """All shared memory of a block."""
    step_limit: int
    detector: HazardDetector | None
    observers: list[Observer]
    cluster: Dim3
    explicit_cluster: bool
    arithmetic: Arithmetic = REAL
    counts: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    starts: int = 0
    """Times that blocks were started together."""
    output: Output = field(default_factory=Output)

    @property
    def total(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    def run(self, first: int, stop: int, progress: Callable[[int], bool] = lambda done: True) -> int:
        """Runs the blocks from `first` up to `stop`, or until `progress` returns False; returns the next block to run."""
        hazards, detector, memory = self.detector is not None, self.detector, self.memory
        counted: Machine | None = None
        while first < stop:
            count = min(self.per_wave, stop - first)
            loads = detector is not None and detector.follows_loads is True
            machine = _machine(
                self.program, self.block, count, self.needed + self.program.shared_gap_bytes, hazards, loads, self.arithmetic
            )
            if machine is not counted:
                if counted is not None:
                    self.counts += counted.take_counts()
                machine.forget_counts()
                counted = machine
            machine.specials.dynamic_shared_bytes, machine.specials.total_shared_bytes = self.shared_bytes, self.needed
            machine.spaces.global_.map(memory.data, memory.regions, memory.heap)
            machine.spaces.global_.meant = lambda inst: memory.regions_behind(bases_of(self.program, inst))
            machine.specials.grid_workspace = memory.grid_workspace
            machine.maps = memory.maps
            machine.binder.textures = memory.textures
            machine.geometry.cluster_dim = self.cluster
            machine.geometry.explicit_cluster = self.explicit_cluster
            if machine.binder.warpgroups is not None:
                machine.binder.warpgroups.report = detector.fence_missing if detector is not None else None
                machine.binder.warpgroups.report_reload = detector.operand_reloaded if detector is not None else None
            machine.watch_tensor_memory(detector.tensor_memory if detector is not None else None)
            if detector is not None:
                detector.attach(machine)
            machine.start_wave(first, self.grid, self.observers)
            try:
                with np.errstate(all="ignore", under="call", call=machine.flags):
                    self.steps += machine.run(self.schedule, self.step_limit - self.steps)
            finally:
                if isinstance(machine.tracker, UndefinedRegisters) and machine.tracker.binder is not None:
                    machine.follow_with(_tracker(self.program, machine, hazards, loads))
                memory.regions = machine.spaces.global_.regions
                machine.spaces.global_.release()
                self.output.extend([machine.spaces.output])
            first = machine.next_block
            self.starts += machine.starts
            if not progress(first):
                break
        if counted is not None:
            self.counts += counted.take_counts()
        return first


def bytes_of_block(program: Program, block: Dim3) -> int:
    """Bytes that the lanes of a block take: registers, local memory and state."""
    lanes = -(-block[0] * block[1] * block[2] // WARP) * WARP
    return lanes * (RegisterFile.bytes_per_lane(program) + program.local_bytes + 64)


def blocks_per_wave(program: Program, block: Dim3, grid: Dim3, shared: int, lanes_per_wave: int | None, cluster: int) -> int:
    """Number of blocks that run side by side, whole clusters; all of them, memory permitting, if the kernel waits for other blocks.

    `lanes_per_wave` None takes as many lanes as have registers of _REGISTER_BYTES: more lanes share the cost of
    an instruction, until their registers no longer fit.
    """
    total = grid[0] * grid[1] * grid[2]
    lanes = -(-block[0] * block[1] * block[2] // WARP) * WARP
    per_block = bytes_of_block(program, block) + shared
    if lanes_per_wave is None:
        lanes_per_wave = min(max(_REGISTER_BYTES // max(RegisterFile.bytes_per_lane(program), 1), _MIN_LANES), _MAX_LANES)
    by_memory = max(_WAVE_BYTES // max(per_block, 1), 1)
    wanted = total if program.polls else max(lanes_per_wave // lanes, 1)
    if cancels_launches(program):
        # Some blocks have to be left whose launch can be cancelled.
        wanted = -(-total // _WAVES_TO_CANCEL)
    clusters = total // cluster
    count = min(max(min(wanted, by_memory) // cluster, 1), clusters)
    # Waves of equal size need one machine instead of two.
    waves = -(-clusters // count)
    return -(-clusters // waves) * cluster


@of_program
def cancels_launches(program: Program) -> bool:
    """True if blocks may take over the work of others that have not started (clusterlaunchcontrol)."""
    return any(inst.opcode == "clusterlaunchcontrol" and inst.has("try_cancel") for block in program.blocks for inst in block.body)


class _Machines(threading.local):
    """The machines of one thread, most recently used last."""

    def __init__(self) -> None:
        self.by_shape: OrderedDict[tuple[int, Dim3, int, int, bool, bool, str], tuple[Program, Machine, int]] = OrderedDict()


_machines = _Machines()


def _machine(program: Program, block: Dim3, blocks: int, shared: int, hazards: bool, loads: bool, arithmetic: Arithmetic) -> Machine:
    """A machine for a number of blocks: a used one if there is one, since binding costs more than running a small launch."""
    undefined = find_undefined(program) if hazards else frozenset()
    key = (id(program), block, blocks, shared, bool(undefined), loads, arithmetic.name)
    known = _machines.by_shape
    entry = known.pop(key, None)
    if entry is None:
        lanes = blocks * (-(-block[0] * block[1] * block[2] // WARP) * WARP)
        size = lanes * (RegisterFile.bytes_per_lane(program) + program.local_bytes + 64) + blocks * shared
        machine = Machine(program, block, blocks, shared, arithmetic)
        machine.tracker = _tracker(program, machine, hazards, loads)
        machine.clears_registers = not hazards or bool(undefined)
        entry = (program, machine, size)
    known[key] = entry
    while len(known) > 1 and sum(size for _, _, size in known.values()) > _CACHED_MACHINE_BYTES:
        known.popitem(last=False)
    return entry[1]


def _tracker(program: Program, machine: Machine, hazards: bool, loads: bool) -> UndefinedRegisters | None:
    """Observer of the registers that may hold no value; None if there are none."""
    undefined = find_undefined(program) if hazards else frozenset()
    if not undefined and not loads:
        return None
    tracker = UndefinedRegisters(undefined, machine.registers, machine.geometry.lanes)
    if undefined:
        tracker.follow_shuffles(machine.program, machine.binder)
    if loads:
        tracker.follow_loads(program)
    return tracker
