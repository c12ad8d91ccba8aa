"""The public call: a PTX text, an entry, a grid, arguments."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemmgen.emulator.buffers import DeviceMemory
from gemmgen.emulator.errors import BadLaunch, EmulatorError, SourceText
from gemmgen.emulator.geometry import WARP, Dim3
from gemmgen.emulator.hazards import HazardDetector, HazardError, UndefinedRegisters, find_undefined
from gemmgen.emulator.hazards.sequences import Footprint, footprints, overlap
from gemmgen.emulator.machine import Machine
from gemmgen.emulator.memory import Observer
from gemmgen.emulator.program import Program, link
from gemmgen.emulator.registers import RegisterFile
from gemmgen.emulator.schedule import MinimumBlock, Schedule

MAX_THREADS = 1024
MAX_CLUSTER = 16
"""Blocks of a cluster, where the kernel allows sizes that not every GPU has (CUDA programming guide)."""
SHARED_LIMIT = 227 * 1024
LANES_PER_WAVE = 2048
STEP_LIMIT = 5_000_000
_WAVE_BYTES = 512 << 20
_CACHED_MACHINE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """Result of a launch. Counts are of lanes: one instruction executed by a full warp counts 32."""

    entry: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    instructions: dict[str, int]
    """Instructions by opcode, guarded-off ones included."""
    steps: int
    """Basic blocks executed, over all waves."""
    waves: int
    """Number of times that blocks were started together."""
    findings: tuple[HazardError, ...] = ()
    """Warnings and notes."""
    output: str = ""
    """Text that the kernel printed."""
    footprints: tuple[Footprint, ...] = field(default=(), repr=False, compare=False)
    """Reads and writes, for a launch that may begin before this one has ended."""

    @property
    def total_instructions(self) -> int:
        """All instructions of all lanes."""
        return sum(self.instructions.values())


def launch(
    ptx: str | bytes,
    entry: str | None = None,
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    shared_bytes: int = 0,
    args: Sequence[Any] = (),
    source: str | SourceText | None = None,
    observers: Sequence[Observer] = (),
    schedule: Schedule | None = None,
    shared_limit: int = SHARED_LIMIT,
    step_limit: int = STEP_LIMIT,
    lanes_per_wave: int = LANES_PER_WAVE,
    hazards: bool = False,
    strict: bool = False,
    cluster: int | Sequence[int] | None = None,
    symbols: Mapping[str, np.ndarray] | None = None,
    overlaps: LaunchResult | None = None,
    overlapped: bool = False,
) -> LaunchResult:
    """Executes a kernel on the CPU.

    `args`, one a parameter: NumPy arrays and `Buffer`s are pointers and are changed in place; numbers are converted to the
    parameter's type; `bytes` are structs by value; None is a null pointer. A `TensorMap` whose `base` is an array or a
    `Buffer` is passed by value, a list of them as a struct of maps or, to a pointer, as an array of maps in global memory.
    `cluster` are the blocks of a cluster, which run at the same time. `shared_bytes` is dynamic shared memory. `source` is
    the CUDA text, or a function from a file's name to it, quoted in errors. `observers` see every access; `schedule` chooses
    who runs when; `lanes_per_wave` is how many lanes run side by side (whole blocks, at least one). `hazards` makes it an
    error, a HazardError, to race, to read what nothing has written and to use a register without a value. What may be
    harmless is a finding of the result; with `strict` that is an error too. `symbols` fill the module's variables, by their
    names in PTX, and take back what the kernel wrote to them.

    `overlaps` is the launch before this one in its stream if this one may begin before that has ended (programmatic dependent
    launch): with `hazards`, what both touch is an error where no griddepcontrol.wait comes first. That launch has to be made with
    `hazards` and `overlapped`.

    Raises EmulatorError, in its subclasses. Arrays then hold what was written until the error.
    """
    try:
        return _launch(
            ptx.decode() if isinstance(ptx, bytes) else ptx, entry, _dimensions(grid, "grid"), _dimensions(block, "block"),
            shared_bytes, args, observers, schedule or MinimumBlock(), shared_limit, step_limit, lanes_per_wave, hazards, strict,
            None if cluster is None else _dimensions(cluster, "cluster"),
            symbols, overlaps, overlapped,
        )  # fmt: skip
    except EmulatorError as error:
        if error.source is None:
            error.source = source
        raise


def _launch(
    ptx: str,
    entry: str | None,
    grid: Dim3,
    block: Dim3,
    shared_bytes: int,
    args: Sequence[Any],
    observers: Sequence[Observer],
    schedule: Schedule,
    shared_limit: int,
    step_limit: int,
    lanes_per_wave: int,
    hazards: bool,
    strict: bool,
    cluster: Dim3 | None,
    symbols: Mapping[str, np.ndarray] | None,
    overlaps: LaunchResult | None,
    overlapped: bool,
) -> LaunchResult:
    program = link(ptx, entry)
    _check_geometry(program, grid, block)
    blocks_of_cluster = _cluster_of(program, grid, cluster)
    if shared_bytes < 0:
        raise BadLaunch(f"shared_bytes is {shared_bytes}")
    needed = program.dynamic_shared_offset + shared_bytes if shared_bytes else program.shared_bytes
    if needed > shared_limit:
        raise BadLaunch(
            f"{program.entry.name} needs {needed} bytes of shared memory ({program.shared_bytes} static, "
            f"{shared_bytes} dynamic); the limit is {shared_limit}"
        )
    try:
        memory = DeviceMemory(program, args, symbols)
    except MemoryError:
        raise BadLaunch("the arguments and the module's variables do not fit into this computer's memory") from None
    total_blocks = grid[0] * grid[1] * grid[2]
    per_wave = _blocks_per_wave(program, block, total_blocks, needed, lanes_per_wave, int(np.prod(blocks_of_cluster)))
    detector = HazardDetector(program, memory, strict, remember_all=overlapped) if hazards else None
    if detector is not None:
        observers = [*observers, detector, detector.proxies]
        if overlaps is not None:
            overlap(detector, overlaps.footprints)
    counts: Counter[str] = Counter()
    steps = waves = 0
    first = 0
    output: list[str] = []
    try:
        while first < total_blocks:
            count = min(per_wave, total_blocks - first)
            machine = _machine(program, block, count, needed + program.shared_gap_bytes, hazards)
            machine.specials.dynamic_shared_bytes, machine.specials.total_shared_bytes = shared_bytes, needed
            machine.spaces.global_.map(memory.data, memory.regions, memory.heap)
            machine.specials.grid_workspace = memory.grid_workspace
            machine.maps = memory.maps
            machine.geometry.cluster_dim = blocks_of_cluster
            machine.geometry.explicit_cluster = cluster is not None or "reqnctapercluster" in program.entry.directives
            if machine.spaces.shared.warpgroups is not None:
                machine.spaces.shared.warpgroups.report = detector.fence_missing if detector is not None else None
            if detector is not None:
                detector.attach(machine)
            machine.start_wave(first, grid, observers)
            try:
                with np.errstate(all="ignore", under="call", call=machine.flags):
                    steps += machine.run(schedule, step_limit - steps)
            finally:
                if isinstance(machine.tracker, UndefinedRegisters) and machine.tracker.binder is not None:
                    machine.follow_with(_tracker(program, machine, hazards))
                memory.regions = machine.spaces.global_.regions
                machine.spaces.global_.release()
                output += machine.spaces.output
            counts += machine.take_counts()
            first, waves = machine.next_block, waves + machine.starts
        if detector is not None:
            memory.note_written(detector.written)
            if detector.findings:
                raise detector.findings.error()
    except HazardError as error:
        error.output = "".join(output)
        raise
    except EmulatorError as error:
        error.output = "".join(output)
        if detector is not None and detector.findings:
            first_of_all = detector.findings.error(error)
            first_of_all.output = error.output
            raise first_of_all from error
        raise
    finally:
        memory.copy_back()
    findings = () if detector is None else detector.findings.all()
    touched = tuple(footprints(detector)) if detector is not None and overlapped else ()
    return LaunchResult(program.entry.name, grid, block, needed, dict(counts), steps, waves, findings, "".join(output), touched)


def _dimensions(value: int | Sequence[int], name: str) -> Dim3:
    sizes = [value] if isinstance(value, int | np.integer) else list(value)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int | np.integer) for size in sizes):
        raise BadLaunch(f"{name} must be one to three integers, got {value!r}")
    x, y, z = (int(size) for size in (*sizes, 1, 1)[:3])
    if min(x, y, z) < 1:
        raise BadLaunch(f"{name} is ({x},{y},{z}): every dimension must be at least 1")
    return x, y, z


def _check_geometry(program: Program, grid: Dim3, block: Dim3) -> None:
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS or block[2] > 64:
        raise BadLaunch(f"a block of {block} has {threads} threads; the limits are {MAX_THREADS} in all and 64 along z")
    if grid[0] >= 1 << 31 or grid[1] > 65535 or grid[2] > 65535:
        raise BadLaunch(f"grid {grid} is beyond the limits (2147483647, 65535, 65535)")
    directives = program.entry.directives
    if "maxntid" in directives:
        limit = int(np.prod(directives["maxntid"]))
        if threads > limit:
            raise BadLaunch(f"{program.entry.name} was compiled for at most {limit} threads a block, got {threads}")
    if "reqntid" in directives:
        required = (*directives["reqntid"], 1, 1)[:3]
        if tuple(required) != block:
            raise BadLaunch(f"{program.entry.name} requires blocks of {tuple(required)}, got {block}")


def _cluster_of(program: Program, grid: Dim3, given: Dim3 | None) -> Dim3:
    """The shape of the launch's clusters. Raises BadLaunch for one that the kernel or the grid does not allow."""
    name, directives = program.entry.name, program.entry.directives
    required = None
    if "reqnctapercluster" in directives:
        x, y, z = (*directives["reqnctapercluster"], 1, 1)[:3]
        required = (x, y, z)
    if required is not None and given not in (None, required):
        raise BadLaunch(f"{name} requires clusters of {required}, got {given}")
    if "explicitcluster" in directives and required is None and given is None:
        raise BadLaunch(f"{name} has to be launched with a cluster (.explicitcluster)")
    cluster = given or required or (1, 1, 1)
    size = cluster[0] * cluster[1] * cluster[2]
    most = min(directives.get("maxclusterrank", (MAX_CLUSTER,))[0], MAX_CLUSTER)
    if size > most:
        raise BadLaunch(f"clusters of {cluster} have {size} blocks; {name} may have {most}")
    if any(blocks % side for blocks, side in zip(grid, cluster, strict=True)):
        raise BadLaunch(f"grid {grid} is no multiple of the cluster {cluster} along every axis")
    return cluster


def _blocks_per_wave(program: Program, block: Dim3, total: int, shared: int, lanes_per_wave: int, cluster: int) -> int:
    """Number of blocks that run side by side, whole clusters; all of them, memory permitting, if the kernel waits for other blocks."""
    lanes = -(-block[0] * block[1] * block[2] // WARP) * WARP
    per_block = lanes * (RegisterFile.bytes_per_lane(program) + program.local_bytes + 64) + shared
    by_memory = max(_WAVE_BYTES // max(per_block, 1), 1)
    wanted = total if program.polls else max(lanes_per_wave // lanes, 1)
    clusters = total // cluster
    count = min(max(min(wanted, by_memory) // cluster, 1), clusters)
    # Waves of equal size need one machine instead of two.
    waves = -(-clusters // count)
    return -(-clusters // waves) * cluster


class _Machines(threading.local):
    """The machines of one thread, most recently used last."""

    def __init__(self) -> None:
        self.by_shape: OrderedDict[tuple[int, Dim3, int, int, bool], tuple[Program, Machine, int]] = OrderedDict()


_machines = _Machines()


def _machine(program: Program, block: Dim3, blocks: int, shared: int, hazards: bool) -> Machine:
    """A machine for so many blocks: a used one if there is one, since binding costs more than running a small launch."""
    undefined = find_undefined(program) if hazards else frozenset()
    key = (id(program), block, blocks, shared, bool(undefined))
    known = _machines.by_shape
    found = known.pop(key, None)
    if found is None:
        lanes = blocks * (-(-block[0] * block[1] * block[2] // WARP) * WARP)
        size = lanes * (RegisterFile.bytes_per_lane(program) + program.local_bytes + 64) + blocks * shared
        machine = Machine(program, block, blocks, shared)
        machine.tracker = _tracker(program, machine, hazards)
        found = (program, machine, size)
    known[key] = found
    while len(known) > 1 and sum(size for _, _, size in known.values()) > _CACHED_MACHINE_BYTES:
        known.popitem(last=False)
    return found[1]


def _tracker(program: Program, machine: Machine, hazards: bool) -> UndefinedRegisters | None:
    """Observer of the registers that may hold no value; None if there are none."""
    undefined = find_undefined(program) if hazards else frozenset()
    return UndefinedRegisters(undefined, machine.registers, machine.geometry.lanes) if undefined else None
