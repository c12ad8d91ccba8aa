"""A device whose memory, modules and variables last from launch to launch, as those of a GPU do.

Memory is one array at the addresses of `GLOBAL_BASE` on. Which bytes have been written is kept by pages: a page that is written as a
whole, or not at all, costs nothing. A launch looks at the pages that it touches, so its cost does not depend on other allocations.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmgen.emulator import native_threads
from gemmgen.emulator.arithmetic import REAL, Arithmetic
from gemmgen.emulator.buffers import HEAP_BYTES, initial_bytes
from gemmgen.emulator.demangling import plainly
from gemmgen.emulator.engines.boxes import PlacedMap
from gemmgen.emulator.errors import BadLaunch, EmulatorError, SourceText
from gemmgen.emulator.fused_access import FusedAccess
from gemmgen.emulator.geometry import Dim3, Lanes
from gemmgen.emulator.hazards.destinations import destinations
from gemmgen.emulator.hazards.detector import FollowLoads, HazardDetector
from gemmgen.emulator.hazards.report import HazardError
from gemmgen.emulator.hazards.sequences import Footprint, footprints, in_flight_behind, overlap
from gemmgen.emulator.hazards.shadow import UNWRITTEN, WATCHED
from gemmgen.emulator.launch import SHARED_LIMIT, STEP_LIMIT, check_geometry, check_memory, cluster_of, execute
from gemmgen.emulator.memory import GLOBAL_BASE, MAPPED_BYTES, Access, Heap, Observer, Region, Space
from gemmgen.emulator.parallel import Progress
from gemmgen.emulator.program import Placed, Program, link_in_place
from gemmgen.emulator.ptx import parse
from gemmgen.emulator.schedule import MinimumBlock, Schedule
from gemmgen.emulator.textures import HANDLE_BASE, PlacedTexture, Texture, placed_texture
from gemmgen.emulator.waves import Waves, blocks_per_wave
from gemmgen.hardware.tensor_map import TensorMap, problems

PARAMETER_BYTES = 1 << 16
"""Bytes at the start of device memory for the parameters of the launch that runs."""
GUARD_BYTES = 256
PAGE_BYTES = 1 << 16
DEFAULT_BYTES = 16 << 30
"""Size of device memory. Pages that nothing touches take no memory of the computer."""
SNAPSHOT_BYTES = 32 << 20
"""Limit of memory that is copied before a launch, so that the launch can be repeated with values of loads followed."""
_MAX_FREED = 1024
_SYSTEM_PAGE = 4096
_QUARANTINE_BYTES = 256 << 20
"""Freed memory that is not used again as long as there is other memory."""
_CLUSTERS = {"reqnctapercluster", "explicitcluster"}
_WHOLE, _NONE, _PARTS = 0, 1, 2
"""Initialised bytes of a page: all, none, or those that the flags mark."""


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """A kernel as its launches see it: byte offset and size of each parameter, static shared memory, and the limit of threads."""

    parameters: tuple[tuple[int, int], ...]
    shared_bytes: int
    local_bytes: int
    max_threads: int

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        return max((offset + size for offset, size in self.parameters), default=0)


@dataclass(slots=True)
class _Kernel:
    program: Program
    follows_loads: bool = False
    """True once a launch has read memory that nothing had written: from then on values of loads are followed."""
    compiled: native_threads.Kernel | None = None
    is_tried: bool = False
    """True once it has been compiled, or cannot be."""
    work: int = 0
    """Instructions that its launches have executed lane by lane."""


@dataclass(slots=True)
class DeviceModule:
    """A module of PTX whose variables have their places."""

    places: dict[str, Placed]
    link: Callable[[str], Program]
    kernels: dict[str, _Kernel] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceLaunch:
    """Result of a launch on a device. `error` would have ended the launch on a GPU, too; memory then holds the writes up to that point."""

    kernel: str
    grid: Dim3
    block: Dim3
    instructions: int
    findings: tuple[EmulatorError, ...]
    """Hazards, the worst first; those that are errors among them."""
    error: EmulatorError | None
    output: str
    touched: tuple[Touched, ...]
    """Memory that the launch touched, by allocation."""
    engines_moved: bool = False
    """True if engines moved data, of which `touched` does not tell."""
    has_changed: bool = True
    """False if memory certainly holds the same bytes as before."""
    footprints: tuple[Footprint, ...] = field(default=(), repr=False)
    """Reads and writes, for a launch that may begin before this one has ended; if they were to be kept."""
    unfinished: tuple[Footprint, ...] = field(default=(), repr=False)
    """Footprints of earlier launches that may still run when this one has ended."""
    program: Program | None = field(default=None, repr=False)

    def effects(self) -> tuple[Footprint, ...]:
        """Reads and writes for a launch behind this one: without footprints those of `touched`, by one load and one store of the kernel."""
        if self.footprints or self.program is None:
            return self.footprints
        body = [
            inst
            for block in self.program.blocks
            for inst in block.body
            if not any(inst.has(space) for space in ("shared", "param", "local"))
        ]
        writer = next((inst for inst in body if inst.opcode in ("st", "red", "atom", "cp")), None)
        reader = next((inst for inst in body if inst.opcode in ("ld", "atom", "cp")), None)
        return tuple(Footprint(each.region.start, each.unit, each.changed, each.read, writer, reader) for each in self.touched)


@dataclass(slots=True)
class Touched:
    """Memory of one region that a launch read, wrote and changed by atomic operations: flags for each `unit` bytes from its start."""

    region: Region
    unit: int
    read: np.ndarray
    written: np.ndarray
    atomic: np.ndarray

    @classmethod
    def nothing_of(cls, region: Region) -> Touched:
        """No flags set yet."""
        unit = touched_unit(region.stop - region.start)
        count = (region.stop - region.start) // unit + 1
        return cls(region, unit, np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.zeros(count, np.bool_))

    @property
    def changed(self) -> np.ndarray:
        """Flags of the units that stores or atomic operations have changed."""
        flags: np.ndarray = self.written | self.atomic
        return flags

    @property
    def is_changed(self) -> bool:
        """True if one of `changed` is set."""
        return bool(self.written.any() or self.atomic.any())


def touched_unit(size_bytes: int) -> int:
    """Bytes that one flag of `Touched` stands for in a region of a size: 1 in small regions, 4 in those of up to 64 MiB, then 64."""
    return 1 if size_bytes <= 4 << 20 else 4 if size_bytes <= 64 << 20 else 64


class Device:
    """Device memory with allocations, modules and their variables; kernels are launched on raw parameter bytes.

    `hazards` looks for races and uninitialised reads in each launch; they are findings, and the launch continues after them.
    `arithmetic` is the meaning of floating-point instructions, `schedule` the order of warps.
    """

    def __init__(
        self,
        size_bytes: int = DEFAULT_BYTES,
        *,
        hazards: bool = True,
        strict: bool = False,
        jobs: int = 1,
        arithmetic: Arithmetic = REAL,
        schedule: Schedule | None = None,
    ) -> None:
        if size_bytes < 2 * PAGE_BYTES or size_bytes % PAGE_BYTES:
            raise ValueError(f"device memory is a multiple of {PAGE_BYTES} bytes, got {size_bytes}")
        self.size_bytes, self.hazards, self.strict, self.jobs = size_bytes, hazards, strict, jobs
        self.arithmetic, self.schedule = arithmetic, schedule
        self.descriptor = os.memfd_create("gemmgen-device") if sys.platform == "linux" else -1
        """The file of the memory, for another process to map; -1 where there are none."""
        if self.descriptor >= 0:
            os.ftruncate(self.descriptor, size_bytes)
            self._close = weakref.finalize(self, os.close, self.descriptor)
        self.memory = np.frombuffer(mmap.mmap(self.descriptor, size_bytes), np.uint8)
        self._top = PARAMETER_BYTES + GUARD_BYTES
        self._regions: dict[int, Region] = {}
        self._free: list[tuple[int, int]] = []
        self._freed: dict[int, int] = {}
        self._pages = np.zeros(size_bytes // PAGE_BYTES, np.uint8)
        self._unwritten: dict[int, np.ndarray] = {}
        """Flags of the bytes of pages that are written in parts."""
        self.maps: list[PlacedMap] = []
        self.textures: list[PlacedTexture] = []
        self._heap: Heap | None = None
        self._grid_workspace = 0
        self.modules: list[DeviceModule] = []
        self._clock = native_threads.Clock()

    def close(self) -> None:
        """Closes the file of the memory, which other processes can no longer map by it; the memory itself stays."""
        if self.descriptor >= 0:
            self._close()

    # -- memory ------------------------------------------------------------------------------------------------

    def allocate(self, count: int, name: str, *, alignment: int = 256, writable: bool = True, written: bool = False) -> int:
        """The address of fresh bytes. Raises MemoryError."""
        if count < 0 or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"an allocation of {count} bytes, aligned to {alignment}")
        start = self._find_room(count, alignment)
        self._regions[start] = Region(name, start, start + count, writable)
        self._freed.pop(start + GLOBAL_BASE, None)
        if not written:
            self._note(start, start + count, written=False)
        return start + GLOBAL_BASE

    def _find_room(self, count: int, alignment: int) -> int:
        # Freed memory is reused late, so that uses after free are seen.
        if (
            sum(stop - first for first, stop in self._free) > _QUARANTINE_BYTES
            and (freed := self._find_freed(count, alignment)) is not None
        ):
            return freed
        start = -(-self._top // alignment) * alignment
        if start + count + GUARD_BYTES <= self.size_bytes:
            self._top = start + count + GUARD_BYTES
            return start
        freed = self._find_freed(count, alignment)
        if freed is None:
            raise MemoryError(f"{count} bytes of device memory")
        return freed

    def _find_freed(self, count: int, alignment: int) -> int | None:
        for index, (first, stop) in enumerate(self._free):
            start = -(-first // alignment) * alignment
            if start + count + GUARD_BYTES <= stop:
                self._free[index] = (start + count + GUARD_BYTES, stop)
                self._freed = {at: size for at, size in self._freed.items() if not first <= at - GLOBAL_BASE < start + count}
                return start
        return None

    def free(self, address: int) -> None:
        """Gives an allocation back. Raises KeyError for an address that is none."""
        region = self._regions.pop(address - GLOBAL_BASE)
        self._note(region.start, region.stop, written=True)
        self._free.append((region.start, region.stop + GUARD_BYTES))
        self._freed[address] = region.stop - region.start
        if len(self._freed) > _MAX_FREED:
            del self._freed[next(iter(self._freed))]

    def region_of(self, address: int) -> Region | None:
        """The allocation or variable that holds an address."""
        offset = address - GLOBAL_BASE
        exact = self._regions.get(offset)
        if exact is not None:
            return exact
        return next((region for region in self._regions.values() if region.start <= offset < region.stop), None)

    def allocations(self) -> tuple[Region, ...]:
        """All placed objects, in order of their addresses."""
        return tuple(region for _, region in sorted(self._regions.items()))

    def note_written(self, address: int, count: int) -> None:
        """Bytes have been written from outside."""
        self._note(address - GLOBAL_BASE, address - GLOBAL_BASE + count, written=True)

    def _note_unwatched(self, regions: Sequence[Region], tracker: _Tracker | None) -> None:
        """Behind a launch whose search for hazards stopped, all that it may have written counts as written."""
        if tracker is None or tracker.engines_moved:
            for region in regions:
                self._note(region.start, region.stop, written=True)
            return
        for touched in tracker.regions():
            changed, start = np.flatnonzero(touched.changed), touched.region.start
            if len(changed):
                stop = min(start + (int(changed[-1]) + 1) * touched.unit, touched.region.stop)
                self._note(start + int(changed[0]) * touched.unit, stop, written=True)

    def note_unwritten(self, address: int) -> None:
        """The contents of an allocation have become undefined. Raises KeyError for an address that is none."""
        region = self._regions[address - GLOBAL_BASE]
        self._note(region.start, region.stop, written=False)

    def count_unwritten(self, address: int, count: int) -> int:
        """Bytes of a range that nothing has written."""
        start, stop = address - GLOBAL_BASE, address - GLOBAL_BASE + count
        unwritten = 0
        for page in range(start // PAGE_BYTES, -(-stop // PAGE_BYTES)):
            state = int(self._pages[page])
            begin = page * PAGE_BYTES
            low, high = max(start - begin, 0), min(stop - begin, PAGE_BYTES)
            if state == _NONE:
                unwritten += high - low
            elif state == _PARTS:
                unwritten += int(np.count_nonzero(self._unwritten[page][low:high]))
        return unwritten

    def _note(self, start: int, stop: int, written: bool) -> None:
        first, last = -(-start // PAGE_BYTES), stop // PAGE_BYTES
        if first <= last:
            self._pages[first:last] = _WHOLE if written else _NONE
            for page in [page for page in self._unwritten if first <= page < last] if self._unwritten else ():
                del self._unwritten[page]
        edges = {start // PAGE_BYTES, (stop - 1) // PAGE_BYTES} if stop > start else set()
        for page in edges:
            if first <= page < last:
                continue
            begin = page * PAGE_BYTES
            self._flags(page)[max(start - begin, 0) : min(stop - begin, PAGE_BYTES)] = not written
            self._pages[page] = _PARTS

    def _flags(self, page: int) -> np.ndarray:
        """The flags of a page's bytes, which can be changed: True where nothing has written."""
        flags = self._unwritten.get(page)
        if flags is None:
            flags = self._unwritten[page] = np.full(PAGE_BYTES, self._pages[page] == _NONE, np.bool_)
        return flags

    # -- modules, maps, textures -------------------------------------------------------------------------------

    def load(self, ptx: str) -> DeviceModule:
        """A module, whose variables get their places and initial values. Raises EmulatorError."""
        parsed = parse(ptx)
        places: dict[str, Placed] = {}
        # Pages with managed variables hold nothing else: the host may touch them.
        least = _SYSTEM_PAGE if ".attribute(.managed)" in ptx else 256
        for variable in parsed.variables.values():
            if variable.space in ("global", "const") and not variable.external:
                alignment = max(least, variable.alignment)
                name = plainly(variable.name)
                address = self.allocate(variable.size, name, alignment=alignment, writable=variable.space == "global", written=True)
                places[variable.name] = Placed(variable, address - GLOBAL_BASE)
        if places and least > 256:
            self._top = -(-self._top // least) * least
        module = DeviceModule(places, lambda entry: link_in_place(parsed, entry, places))
        first = next((name for name, function in parsed.functions.items() if function.is_entry), None)
        if first is not None and places:
            program = self.kernel(module, first)
            for placed in places.values():
                content = np.frombuffer(initial_bytes(program, placed.variable), np.uint8)
                self.memory[placed.offset : placed.offset + len(content)] = content
        self.modules.append(module)
        return module

    def kernel(self, module: DeviceModule, name: str) -> Program:
        """A kernel of a module. Raises BadLaunch if it has none of this name."""
        if name not in module.kernels:
            module.kernels[name] = _Kernel(module.link(name))
        return module.kernels[name].program

    def layout(self, module: DeviceModule, name: str) -> KernelLayout:
        """The layout of a kernel's parameters, and its resource needs."""
        program = self.kernel(module, name)
        parameters = tuple((program.symbols[each.name].offset, each.size) for each in program.entry.parameters)
        limit = int(np.prod(program.entry.directives.get("maxntid", (1024,))))
        return KernelLayout(parameters, program.shared_bytes, program.local_bytes, limit)

    def encode(self, tensor_map: TensorMap, address: int) -> bytes:
        """The bytes of a tensor map over memory at an address. Raises BadLaunch for a launch that CUDA does not allow."""
        wrong = problems(tensor_map, address)
        if wrong:
            raise BadLaunch("\n  ".join(["a tensor map that CUDA does not allow", *wrong]))
        self.maps.append(PlacedMap(tensor_map, address - GLOBAL_BASE, len(self.maps)))
        return self.maps[-1].encode()

    def add_texture(self, texture: Texture, address: int, pitch: int = 0) -> int:
        """The handle of a texture or surface whose texels lie at an address, rows `pitch` bytes apart (0: without gaps).

        Raises ValueError for values that CUDA would reject.
        """
        self.textures.append(placed_texture(texture, texture.array, address - GLOBAL_BASE, pitch))
        return HANDLE_BASE + len(self.textures) - 1

    # -- launches ----------------------------------------------------------------------------------------------

    def launch(
        self,
        module: DeviceModule,
        kernel: str,
        *,
        grid: Dim3,
        block: Dim3,
        parameters: bytes,
        shared_bytes: int = 0,
        cluster: Dim3 | None = None,
        source: str | SourceText | None = None,
        progress: Progress | None = None,
        step_limit: int = STEP_LIMIT,
        lanes_per_wave: int | None = None,
        tracks: bool = False,
        observed: Callable[[], Observer] | None = None,
        keeps_footprints: bool = False,
        before: DeviceLaunch | None = None,
    ) -> DeviceLaunch:
        """Runs a kernel on raw parameter bytes. `tracks` records the memory that it touches; `observed` makes the observer of an attempt
        at the launch, of which the last one counts. `before` is the launch in front of this one, which kept its footprints, if this one may
        begin before that has ended (programmatic dependent launch). Raises BadLaunch if it cannot start."""
        program = self.kernel(module, kernel)
        if min(*grid, *block) < 1:
            raise BadLaunch(f"grid {grid}, block {block}: every dimension must be at least 1")
        check_geometry(program, grid, block)
        check_memory(program, block)
        blocks = cluster_of(program, grid, cluster)
        if shared_bytes < 0 or len(parameters) != self.layout(module, kernel).parameter_bytes:
            raise BadLaunch(f"{kernel} got {len(parameters)} bytes of parameters and {shared_bytes} of shared memory")
        needed = program.dynamic_shared_offset + shared_bytes if shared_bytes else program.shared_bytes
        if needed > SHARED_LIMIT:
            raise BadLaunch(f"{plainly(kernel)} needs {needed} bytes of shared memory; the limit is {SHARED_LIMIT}")
        known = module.kernels[kernel]
        if observed is None and not keeps_footprints and before is None and lanes_per_wave is None and cluster is None:
            quick = self._launch_compiled(known, kernel, grid, block, parameters, (shared_bytes, needed), tracks, progress)
            if quick is not None:
                return quick
        snapshot = self._snapshot() if self.hazards and not known.follows_loads else None
        follows = True if known.follows_loads else (False if snapshot is not None else None)
        while True:
            memory = _LaunchMemory(self, program, parameters)
            detector = _DeviceDetector(program, memory, self.strict, keeps_footprints, follows, self) if self.hazards else None
            if detector is not None and before is not None:
                overlap(detector, before.effects(), before.unfinished)
            tracker = _Tracker() if tracks else None
            observers: list[Observer] = [*([tracker] if tracker is not None else []), *([observed()] if observed is not None else [])]
            observers += [detector, detector.proxies] if detector is not None else []
            per_wave = blocks_per_wave(program, block, grid, needed, lanes_per_wave, int(np.prod(blocks)))
            explicit = cluster is not None or "reqnctapercluster" in program.entry.directives
            waves = Waves(
                program,
                grid,
                block,
                memory,
                self.schedule or MinimumBlock(),
                per_wave,
                shared_bytes,
                needed,
                step_limit,
                detector,
                observers,
                blocks,
                explicit,
                self.arithmetic,
            )
            error: EmulatorError | None = None
            try:
                execute(waves, self.jobs if tracker is None else 1, progress)
            except FollowLoads:
                assert snapshot is not None
                self._restore(snapshot)
                known.follows_loads = follows = True
                continue
            except HazardError as hazard:
                error = hazard.ending
            except EmulatorError as failure:
                error = failure
            break
        if detector is not None:
            detector.note_pages()
            if detector.findings.are_enough:
                self._note_unwatched(memory.regions, tracker)
        if memory.data is not memory.arena:
            memory.arena[:] = memory.data
        if memory.heap.stop:
            self._heap = memory.heap
            self._keep_heap_regions(memory.regions)
        footprint: tuple[Footprint, ...] = ()
        unfinished: tuple[Footprint, ...] = ()
        if detector is not None and keeps_footprints:
            footprint = tuple(footprints(detector, source))
            if before is not None:
                footprint, unfinished = in_flight_behind(detector, footprint, before.effects(), before.unfinished)
        known.work += sum(waves.counts.values())
        findings = detector.findings.all() if detector is not None else ()
        for report in (*findings, *([error] if error is not None else [])):
            report.source = report.source or source
        return DeviceLaunch(
            kernel,
            grid,
            block,
            sum(waves.counts.values()),
            findings,
            error,
            waves.output.text,
            tuple(tracker.regions()) if tracker is not None else (),
            tracker is not None and tracker.engines_moved,
            True,
            footprint,
            unfinished,
            program,
        )

    def _launch_compiled(
        self,
        known: _Kernel,
        kernel: str,
        grid: Dim3,
        block: Dim3,
        parameters: bytes,
        shared_bytes: tuple[int, int],
        tracks: bool,
        progress: Progress | None,
    ) -> DeviceLaunch | None:
        """The launch by compiled code; None, with nothing changed, if it may have hazards or the kernel cannot be compiled."""
        program = known.program
        is_plain = self.arithmetic is REAL and self.schedule is None and not self.maps and not program.entry.directives.keys() & _CLUSTERS
        if not self.hazards or not is_plain or native_threads.is_for_lanes(program, grid, block, self.jobs):
            return None
        if not known.is_tried:
            if known.work + native_threads.expected_work(program, grid, block) < native_threads.ENOUGH_WORK:
                return None
            known.is_tried = True
            known.compiled = native_threads.kernel_of(program)
        if known.compiled is None or not native_threads.is_worth_a_try(known.compiled):
            return None
        memory = _LaunchMemory(self, program, parameters)
        written = destinations(program)
        watched = memory.regions if written is None else memory.regions_behind(written)
        units = {region.start: touched_unit(region.stop - region.start) for region in memory.regions if region.start and tracks}
        outcome = native_threads.run(
            known.compiled,
            native_threads.Launch(
                memory.data,
                memory.regions,
                watched,
                self._pages,
                self._unwritten,
                units,
                self._clock,
                grid,
                block,
                *shared_bytes,
                self.jobs,
                progress,
            ),
        )
        if outcome is None:
            return None
        for page, unwritten in outcome.unwritten.items():
            self.note_page(page, unwritten)
        by_start = {region.start: region for region in memory.regions}
        touched = tuple(Touched(by_start[start], units[start], *flags) for start, flags in outcome.flags.items())
        instructions = sum(outcome.instructions(program).values())
        return DeviceLaunch(kernel, grid, block, instructions, (), None, "", touched, has_changed=outcome.has_changed, program=program)

    def _snapshot(self) -> list[tuple[int, np.ndarray]] | None:
        """Copies of all allocations; None if they are too large."""
        regions = [region for region in self._regions.values() if region.writable]
        if sum(region.stop - region.start for region in regions) > SNAPSHOT_BYTES:
            return None
        return [(region.start, self.memory[region.start : region.stop].copy()) for region in regions]

    def _restore(self, snapshot: Sequence[tuple[int, np.ndarray]]) -> None:
        for start, content in snapshot:
            self.memory[start : start + len(content)] = content

    def _keep_heap_regions(self, regions: Sequence[Region]) -> None:
        """Allocations that kernels made with malloc last as others do."""
        assert self._heap is not None
        first = self._heap.stop - HEAP_BYTES
        self._regions = {start: region for start, region in self._regions.items() if not first <= start < self._heap.stop}
        self._regions |= {region.start: region for region in regions if first <= region.start < self._heap.stop}

    def heap(self) -> Heap:
        """The heap of kernels that call malloc."""
        if self._heap is None:
            start = self._find_room(HEAP_BYTES, 256)
            self._heap = Heap(start, start + HEAP_BYTES)
        return self._heap

    def grid_workspace(self) -> int:
        """The address of the counters of grid barriers, as they are before a launch."""
        if not self._grid_workspace:
            self._grid_workspace = self.allocate(16, "the workspace of grid barriers", written=True)
        start = self._grid_workspace - GLOBAL_BASE
        self.memory[start : start + 16] = np.frombuffer(struct.pack("<IIII", 16, 0, 0, 0), np.uint8)
        return self._grid_workspace

    def in_use(self) -> int:
        """Bytes from the start of memory on that have been given out, in whole pages of a GPU."""
        return min(-(-(self._top + GUARD_BYTES) // MAPPED_BYTES) * MAPPED_BYTES, self.size_bytes)

    def freed(self) -> dict[int, int]:
        """Sizes of allocations that were given back, by address."""
        return self._freed

    def unwritten_in(self, page: int) -> bool | np.ndarray:
        """False if all of a page is written, True if nothing is, else the flags of its bytes."""
        state = int(self._pages[page])
        return self._unwritten[page] if state == _PARTS else state == _NONE

    def note_page(self, page: int, unwritten: np.ndarray) -> None:
        """Bytes of a page that are still unwritten behind a launch."""
        if self._pages[page] == _WHOLE:
            return
        if not unwritten.any():
            self._pages[page] = _WHOLE
            self._unwritten.pop(page, None)
            return
        flags = self._flags(page)
        flags &= unwritten
        self._pages[page] = _PARTS


class _LaunchMemory:
    """Device memory as one launch sees it."""

    def __init__(self, device: Device, program: Program, parameters: bytes) -> None:
        self.device, self.program, self.parameters = device, program, parameters
        self.heap = device.heap() if program.allocates else Heap(0, 0, freed=device.freed())
        self.grid_workspace = device.grid_workspace() if program.meets_grid else 0
        self.arena = device.memory[: device.in_use()]
        self.data = self.arena
        self.data[: program.parameter_bytes] = 0
        self.data[: len(parameters)] = np.frombuffer(parameters, np.uint8)
        self.maps, self.textures = device.maps, device.textures
        self.regions = [Region("the kernel's parameters", 0, program.parameter_bytes, False), *device.allocations()]

    def unwritten(self) -> Iterator[tuple[int, np.ndarray]]:
        """Nothing: the detector asks page by page."""
        return iter(())

    def extents(self) -> Iterator[tuple[int, int, int]]:
        """Every allocation at its place."""
        return ((region.start, region.start, region.stop - region.start) for region in self.regions[1:] if region.stop > region.start)

    def regions_behind(self, names: Collection[str]) -> list[Region]:
        """The regions that these parameters, and module variables with such names, lead to."""
        symbols, places = self.program.symbols, []
        own = {parameter.name: parameter for parameter in self.program.entry.parameters}
        for name in names:
            if name in own:
                offset = symbols[name].offset
                words = range(offset, offset + own[name].size - 7, 4)
                places += [int.from_bytes(self.parameters[word : word + 8], "little") - GLOBAL_BASE for word in words]
            elif name in symbols and symbols[name].variable.space not in ("param", "shared", "local"):
                places.append(symbols[name].offset)
        return [region for region in self.regions if any(region.start <= place <= region.stop for place in places)]

    def note_written(self, written: Callable[[int, int], np.ndarray]) -> None:
        """The detector of a device notes the pages itself."""

    def copy_back(self) -> None:
        """Nothing: launches work on the memory itself."""


class _DeviceDetector(HazardDetector):
    """Looks at the pages of global memory when a launch first touches them."""

    def __init__(
        self, program: Program, memory: _LaunchMemory, strict: bool, remember_all: bool, follows_loads: bool | None, device: Device
    ) -> None:
        self._device = device
        self._looked = np.zeros(-(-len(memory.data) // PAGE_BYTES), np.bool_)
        self._watched: list[Region] | None = None
        super().__init__(program, memory, strict, remember_all, follows_loads)
        if remember_all or destinations(program) is None:
            self._watched = None

    def _watch(self, regions: Sequence[Region]) -> None:
        self._watched = [region for region in regions if region.writable]

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if space.name == "global":
            self.look_ahead(addresses)
        super().accessed(space, access, lanes, addresses)

    def look_ahead(self, addresses: np.ndarray) -> None:
        offsets = addresses.astype(np.uint64, copy=False) - np.uint64(GLOBAL_BASE)
        first, last = int(np.minimum.reduce(offsets)) // PAGE_BYTES, int(np.maximum.reduce(offsets)) // PAGE_BYTES
        if not self._looked[first : last + 1].all():
            touched = np.zeros(last - first + 1, np.bool_)
            touched[(offsets // np.uint64(PAGE_BYTES)).view(np.int64) - first] = True
            for page in np.flatnonzero(touched).tolist():
                self._look(first + page)

    def plan(self, space: Space, fused: FusedAccess) -> bool:
        if space.name == "global":
            fused.plan.looked, fused.plan.page_shift = self._looked.ctypes.data, PAGE_BYTES.bit_length() - 1
        return super().plan(space, fused)

    def _look(self, page: int) -> None:
        if self._looked[page]:
            return
        self._looked[page] = True
        begin, stop = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(self.memory.data))
        state = self._global.state[self._granules_of("global", begin, stop)]
        granule = self._global.granule
        unwritten = self._device.unwritten_in(page)
        if isinstance(unwritten, np.ndarray):
            whole = unwritten[: stop - begin].reshape(-1, granule).all(axis=1)
            state |= whole.view(np.uint8) * np.uint8(UNWRITTEN)
        elif unwritten:
            state |= UNWRITTEN
        if self._watched is None:
            state |= WATCHED
            return
        for region in self._watched:
            if region.start < stop and begin < region.stop:
                first, last = max(region.start - begin, 0), min(region.stop, stop) - begin
                state[first // granule : -(-last // granule)] |= WATCHED

    def note_pages(self) -> None:
        """Records the launch's writes in the device's memory."""
        for page in np.flatnonzero(self._looked).tolist():
            begin, stop = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(self.memory.data))
            unwritten = np.zeros(PAGE_BYTES, np.bool_)
            unwritten[: stop - begin] = ~self.written(begin, stop)
            self._device.note_page(page, unwritten)


class _Tracker(Observer):
    """Notes the bytes of each region that a launch reads and writes."""

    def __init__(self) -> None:
        self._touched: dict[int, Touched] = {}
        self.engines_moved = False

    def regions(self) -> Iterator[Touched]:
        """The memory that was touched."""
        yield from self._touched.values()

    def box_moved(self, *what: object) -> None:
        self.engines_moved = True

    def plan(self, space: Space, fused: FusedAccess) -> bool:
        region, access = fused.region, fused.access
        assert isinstance(access, Access)
        if space.name == "global" and isinstance(region, Region) and region.start:
            touched, flags = self._flags(region, access)
            fused.touch(flags, region.start, touched.unit)
        return True

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if space.name != "global":
            return
        wide = addresses.astype(np.uint64, copy=False)
        regions = getattr(space, "regions", [])
        if access.hint < len(regions):
            region = regions[access.hint]
            inside = wide - np.uint64(GLOBAL_BASE + region.start)
            # Offsets below the region wrap around, so one comparison is enough.
            if int(np.maximum.reduce(inside)) < region.stop - region.start:
                self._note(region, access, inside.view(np.int64))
                return
        offsets = (wide - np.uint64(GLOBAL_BASE)).view(np.int64)
        low, high = int(offsets.min()), int(offsets.max())
        for region in regions:
            if region.start <= high and low < region.stop:
                self._note(region, access, offsets[(offsets >= region.start) & (offsets < region.stop)] - region.start)

    def _flags(self, region: Region, access: Access) -> tuple[Touched, np.ndarray]:
        touched = self._touched.get(region.start)
        if touched is None:
            touched = self._touched[region.start] = Touched.nothing_of(region)
        return touched, touched.atomic if access.kind == "atomic" else touched.written if access.kind == "store" else touched.read

    def _note(self, region: Region, access: Access, begin: np.ndarray) -> None:
        """Sets the flags of an access to a region, from these bytes of it on; they are multiples of the width."""
        if region.start == 0 or not len(begin):
            return
        touched, flags = self._flags(region, access)
        width = access.width
        if touched.unit == 1 and width in (2, 4, 8) and region.start % width == 0:
            flags[: len(flags) // width * width].view(f"u{width}")[begin // width] = int.from_bytes(b"\1" * width, "little")
            return
        units = begin >> (touched.unit.bit_length() - 1) if touched.unit > 1 else begin
        flags[units] = True
        for step in range(1, width // touched.unit):
            flags[units + step] = True
