"""The public call: a PTX text, an entry, a grid, arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from gemmgen.emulator import native_threads
from gemmgen.emulator.arithmetic import REAL, Arithmetic
from gemmgen.emulator.buffers import DeviceMemory
from gemmgen.emulator.errors import BadLaunch, EmulatorError, SourceText
from gemmgen.emulator.geometry import Dim3
from gemmgen.emulator.hazards.destinations import destinations
from gemmgen.emulator.hazards.detector import FollowLoads, HazardDetector
from gemmgen.emulator.hazards.report import HazardError
from gemmgen.emulator.hazards.sequences import Footprint, footprints, in_flight_behind, overlap
from gemmgen.emulator.memory import Observer
from gemmgen.emulator.parallel import Progress, run_all
from gemmgen.emulator.printing import Output
from gemmgen.emulator.program import Program, link
from gemmgen.emulator.schedule import MinimumBlock, Schedule
from gemmgen.emulator.waves import Waves, blocks_per_wave, bytes_of_block
from gemmgen.hardware.target import MAX_NONPORTABLE_CLUSTER

MAX_THREADS = 1024
SHARED_LIMIT = 227 * 1024
LOCAL_LIMIT = 512 * 1024
"""Bytes of local memory a thread (CUDA C++ Programming Guide, technical specifications per compute capability)."""
MEMORY_LIMIT = 1 << 30
"""Bytes for the registers and the local memory of one block, and for a module's variables. Arguments have a separate limit."""
STEP_LIMIT = 5_000_000
_IN_PARTS = 2
"""The state of a page some of whose bytes nothing has written, as native_threads.c has it."""


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
    printed: Output = field(default_factory=Output, repr=False, compare=False)
    """Printed text of this launch, to be joined with that of other launches."""
    unfinished: tuple[Footprint, ...] = field(default=(), repr=False, compare=False)
    """Launches that may still run when this one has ended: it began before their end and did not wait for it."""

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
    args: Sequence[object] = (),
    source: str | SourceText | None = None,
    observers: Sequence[Observer] = (),
    schedule: Schedule | None = None,
    shared_limit: int = SHARED_LIMIT,
    step_limit: int = STEP_LIMIT,
    lanes_per_wave: int | None = None,
    hazards: bool = False,
    strict: bool = False,
    refills: bool | None = None,
    cluster: int | Sequence[int] | None = None,
    symbols: Mapping[str, np.ndarray] | None = None,
    overlaps: LaunchResult | None = None,
    overlapped: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    arithmetic: Arithmetic = REAL,
    only: tuple[int, int] | None = None,
) -> LaunchResult:
    """Executes a kernel on the CPU.

    `args`, one a parameter: NumPy arrays and `Buffer`s are pointers and are changed in place; numbers are converted to the parameter's
    type; `bytes` are structs by value; None is a null pointer. A `TensorMap` whose `base` is an array or a `Buffer` is passed by value, a
    list of them as a struct of maps or, to a pointer, as an array of maps in global memory. `cluster` are the blocks of a cluster, which
    run at the same time. `shared_bytes` is dynamic shared memory. `source` is the CUDA text, or a function from a file's name to it, quoted
    in errors. `observers` see every access; `schedule` chooses the order of lanes; `lanes_per_wave` is how many lanes run side by side
    (whole blocks, at least one); None chooses. `hazards` makes it an error, a HazardError, to race, to read unwritten memory and to use a
    register without a value. Possibly harmless faults are findings of the result; with `strict` they are errors. `refills` looks for shared
    memory that threads have read and an engine overwrites without a proxy fence; None: as `strict` says. `symbols` fill the module's
    variables, by their names in PTX, and receive the values that the kernel wrote to them.

    `overlaps` is the launch before this one in its stream if this one may begin before that has ended (programmatic dependent launch): with
    `hazards`, memory that both touch is an error without a prior griddepcontrol.wait, and so is memory of an earlier launch that no launch
    in between has waited for. Those launches have to be made with `hazards` and `overlapped`.

    `jobs` processes share the blocks of a launch that takes long, as long as no block touches memory that another one writes; results,
    findings and counts are those of one process. `progress(done, total)` counts blocks.

    `arithmetic` is the meaning of floating-point instructions; over a field, data are residues (`gemmgen.emulator.residues`). `only` are
    the numbers of the first block that runs, and of the first one after it that does not; None: all blocks run.

    Raises EmulatorError, in its subclasses. Arrays then hold the data written until the error.
    """
    try:
        return _launch(
            ptx.decode() if isinstance(ptx, bytes) else ptx,
            entry,
            _dimensions(grid, "grid"),
            _dimensions(block, "block"),
            shared_bytes,
            args,
            source,
            observers,
            schedule or MinimumBlock(),
            shared_limit,
            step_limit,
            lanes_per_wave,
            hazards,
            strict,
            strict if refills is None else refills,
            None if cluster is None else _dimensions(cluster, "cluster"),
            symbols,
            overlaps,
            overlapped,
            jobs,
            progress,
            arithmetic,
            only,
        )
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
    args: Sequence[object],
    source: str | SourceText | None,
    observers: Sequence[Observer],
    schedule: Schedule,
    shared_limit: int,
    step_limit: int,
    lanes_per_wave: int | None,
    hazards: bool,
    strict: bool,
    refills: bool,
    cluster: Dim3 | None,
    symbols: Mapping[str, np.ndarray] | None,
    overlaps: LaunchResult | None,
    overlapped: bool,
    jobs: int,
    progress: Progress | None,
    arithmetic: Arithmetic,
    only: tuple[int, int] | None,
) -> LaunchResult:
    program = link(ptx, entry)
    check_geometry(program, grid, block)
    check_memory(program, block)
    blocks_of_cluster = cluster_of(program, grid, cluster)
    if shared_bytes < 0:
        raise BadLaunch(f"shared_bytes is {shared_bytes}")
    needed = program.dynamic_shared_offset + shared_bytes if shared_bytes else program.shared_bytes
    if needed > shared_limit:
        raise BadLaunch(
            f"{program.entry.name} needs {needed} bytes of shared memory ({program.shared_bytes} static, "
            f"{shared_bytes} dynamic); the limit is {shared_limit}"
        )
    given = list(observers)
    for follows_loads in (False, True):
        try:
            memory = DeviceMemory(program, args, symbols)
        except MemoryError:
            raise BadLaunch("the arguments and the module's variables do not fit into this computer's memory") from None
        detector = HazardDetector(program, memory, strict, overlapped, follows_loads, refills) if hazards else None
        if detector is not None and overlaps is not None:
            overlap(detector, overlaps.footprints, overlaps.unfinished)
        waves = Waves(
            program,
            grid,
            block,
            memory,
            deepcopy(schedule),
            blocks_per_wave(program, block, grid, needed, lanes_per_wave, int(np.prod(blocks_of_cluster))),
            shared_bytes,
            needed,
            step_limit,
            detector,
            [*given, *([detector, detector.proxies] if detector is not None else [])],
            blocks_of_cluster,
            cluster is not None or "reqnctapercluster" in program.entry.directives,
            arithmetic,
        )
        is_plain = not given and overlaps is None and not overlapped and lanes_per_wave is None and type(schedule) is MinimumBlock
        try:
            if not (is_plain and only is None and _run_compiled(waves, jobs, progress)):
                execute(waves, jobs if overlaps is None and not overlapped else 1, progress, only)
        except FollowLoads:
            # Arrays still hold their contents from before the launch.
            for observer in given:
                observer.restarted()
            continue
        except EmulatorError:
            memory.copy_back()
            raise
        memory.copy_back()
        break
    findings = () if detector is None else detector.findings.all()
    touched = tuple(footprints(detector, source)) if detector is not None and overlapped else ()
    unfinished: tuple[Footprint, ...] = ()
    if detector is not None and overlapped and overlaps is not None:
        touched, unfinished = in_flight_behind(detector, touched, overlaps.footprints, overlaps.unfinished)
    return LaunchResult(
        program.entry.name,
        grid,
        block,
        needed,
        dict(waves.counts),
        waves.steps,
        waves.starts,
        findings,
        waves.output.text,
        touched,
        waves.output,
        unfinished,
    )


def _run_compiled(waves: Waves, jobs: int, progress: Progress | None) -> bool:
    """Runs a large launch by compiled code; False, with nothing changed, if it may have hazards or the kernel cannot be compiled."""
    program, memory = waves.program, waves.memory
    unfit = waves.arithmetic is not REAL or memory.maps or int(np.prod(waves.cluster)) != 1 or waves.explicit_cluster
    if (
        unfit
        or native_threads.expected_work(program, waves.grid, waves.block) < native_threads.LARGE_LAUNCH
        or native_threads.is_for_lanes(program, waves.grid, waves.block, jobs)
    ):
        return False
    kernel = native_threads.remembered_kernel(program)
    if kernel is None or not native_threads.is_worth_a_try(kernel):
        return False
    page_bytes = native_threads.PAGE_BYTES
    pages = np.zeros(-(-len(memory.data) // page_bytes), np.uint8)
    unwritten: dict[int, np.ndarray] = {}
    for start, flags in memory.unwritten():
        for page in range(start // page_bytes, -(-(start + len(flags)) // page_bytes)):
            begin = page * page_bytes
            low, high = max(start, begin), min(start + len(flags), begin + page_bytes)
            unwritten.setdefault(page, np.zeros(page_bytes, np.bool_))[low - begin : high - begin] = flags[low - start : high - start]
            pages[page] = _IN_PARTS
    written = destinations(program)
    watched = memory.regions if written is None else memory.regions_behind(written)
    outcome = native_threads.run(
        kernel,
        native_threads.Launch(
            memory.data,
            memory.regions,
            watched,
            pages,
            unwritten,
            {},
            native_threads.Clock(),
            waves.grid,
            waves.block,
            waves.shared_bytes,
            waves.needed,
            jobs,
            progress,
        ),
    )
    if outcome is None:
        return False
    waves.counts, waves.starts, waves.steps = outcome.instructions(program), 1, sum(outcome.executions)
    left = {**unwritten, **outcome.unwritten}

    def is_written(start: int, stop: int) -> np.ndarray:
        flags = np.ones(stop - start, np.bool_)
        for page, missing in left.items():
            begin = page * page_bytes
            low, high = max(start, begin), min(stop, begin + page_bytes)
            if low < high:
                flags[low - start : high - start] = ~missing[low - begin : high - begin]
        return flags

    if waves.detector is not None:
        memory.note_written(is_written)
    return True


def execute(waves: Waves, jobs: int, progress: Progress | None, only: tuple[int, int] | None = None) -> None:
    """Runs the blocks of a launch. Raises EmulatorError: the one that ended it, or the first hazard that is an error, with all others."""
    detector = waves.detector
    try:
        if only is None:
            run_all(waves, jobs, progress)
        else:
            waves.run(*only)
        if detector is not None:
            waves.memory.note_written(detector.written)
            if detector.findings:
                raise detector.findings.error()
    except HazardError as error:
        error.printed = waves.output
        raise
    except EmulatorError as error:
        error.printed = waves.output
        if detector is not None and detector.findings:
            first_of_all = detector.findings.error(error)
            first_of_all.printed = error.printed
            raise first_of_all from error
        raise


def _dimensions(value: int | Sequence[int], name: str) -> Dim3:
    sizes = [value] if isinstance(value, int | np.integer) else list(value)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int | np.integer) for size in sizes):
        raise BadLaunch(f"{name} must be one to three integers, got {value!r}")
    x, y, z = (int(size) for size in (*sizes, 1, 1)[:3])
    if min(x, y, z) < 1:
        raise BadLaunch(f"{name} is ({x},{y},{z}): every dimension must be at least 1")
    return x, y, z


def check_geometry(program: Program, grid: Dim3, block: Dim3) -> None:
    """Raises BadLaunch for a grid or a block that no GPU, or not this kernel, allows."""
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


def check_memory(program: Program, block: Dim3) -> None:
    """Raises BadLaunch for resources that no device has, or that exceed this computer's limits, before they are allocated."""
    name = program.entry.name
    if program.local_bytes > LOCAL_LIMIT:
        raise BadLaunch(f"{name} needs {program.local_bytes} bytes of local memory a thread; the limit is {LOCAL_LIMIT}")
    if program.static_bytes > MEMORY_LIMIT:
        raise BadLaunch(f"the module's variables have {program.static_bytes} bytes; the emulator's limit is {MEMORY_LIMIT}")
    needed = bytes_of_block(program, block)
    if needed > MEMORY_LIMIT:
        raise BadLaunch(f"a block of {name} needs {needed} bytes for registers and local memory; the emulator's limit is {MEMORY_LIMIT}")


def cluster_of(program: Program, grid: Dim3, given: Dim3 | None) -> Dim3:
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
    if min(cluster) < 1:
        raise BadLaunch(f"clusters of {cluster}: every dimension must be at least 1")
    size = cluster[0] * cluster[1] * cluster[2]
    most = min(directives.get("maxclusterrank", (MAX_NONPORTABLE_CLUSTER,))[0], MAX_NONPORTABLE_CLUSTER)
    if size > most:
        raise BadLaunch(f"clusters of {cluster} have {size} blocks; {name} may have {most}")
    if any(blocks % side for blocks, side in zip(grid, cluster, strict=True)):
        raise BadLaunch(f"grid {grid} is no multiple of the cluster {cluster} along every axis")
    return cluster
