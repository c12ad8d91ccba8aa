"""One run of a program: answers its CUDA runtime, launches its kernels on a device, and collects the errors."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import get_args

import numpy as np

from gemmgen.emulator import Device, DeviceLaunch, DeviceModule, Texture, residues
from gemmgen.emulator.arithmetic import REAL, Arithmetic
from gemmgen.emulator.counters import CounterObserver, Counters
from gemmgen.emulator.demangling import qualified_name
from gemmgen.emulator.errors import BadLaunch, EmulatorError, Misaligned, OutOfBounds, ParseError, ReadOnly, Trapped, UnknownInstruction
from gemmgen.emulator.memory import GLOBAL_BASE, Region
from gemmgen.emulator.program_properties import opcodes
from gemmgen.emulator.schedule import Schedule
from gemmgen.emulator.textures import AddressMode
from gemmgen.hardware.tensor_map import Element, Fill, Interleave, L2Promotion, Swizzle, TensorMap
from gemmgen.sanitizer.findings import Finding, Place, Severity, findings_of, findings_of_launches
from gemmgen.sanitizer.programs import blas
from gemmgen.sanitizer.programs.fat_binaries import ptx_of
from gemmgen.sanitizer.programs.messages import BadMessage, Body, Frame, MemoryKind, Operation, StreamEvent, limit_of
from gemmgen.sanitizer.programs.places import Places
from gemmgen.sanitizer.programs.repeats import KnownLaunches, size_on
from gemmgen.sanitizer.programs.streams import Conflict, StreamOrder

_INVALID_VALUE, _OUT_OF_MEMORY, _INVALID_CONFIGURATION, _INVALID_FUNCTION = 1, 2, 9, 98
_ILLEGAL_ADDRESS, _TIMEOUT, _ASSERT, _MISALIGNED, _LAUNCH_FAILURE, _NOT_SUPPORTED = 700, 702, 710, 716, 719, 801
_PAGE = 4096
_MAX_OBJECTS = 1 << 20
_MAX_FINDINGS = 400
_MAX_GUARDED = 256
_MAX_COPIES = 1 << 16
_MAX_NAMES = 1000
"""Kernels and calls of a report that nobody could run or has."""
_MAX_MODULES, _MAX_MODULE_BYTES = 4096, 256 << 20
_MAX_KERNELS = 1 << 16
_MAX_STACKS = 1 << 12
"""Different lists of calls that allocations are remembered with."""
_ELEMENTS: tuple[Element, ...] = get_args(Element)
_PACKED = {len(_ELEMENTS): (4, False), len(_ELEMENTS) + 1: (4, True), len(_ELEMENTS) + 2: (6, True)}
"""CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B, _16U4_ALIGN16B and _16U6_ALIGN16B: bits of a number, and whether 16 of them are padded to 16 bytes
of shared memory."""
_INTERLEAVES: tuple[Interleave, ...] = get_args(Interleave)
_SWIZZLES: tuple[Swizzle, ...] = get_args(Swizzle)
_PROMOTIONS: tuple[L2Promotion, ...] = get_args(L2Promotion)
_FILLS: tuple[Fill, ...] = get_args(Fill)
_MAX_STREAMS = 1 << 16
_PROGRAMMATIC = 2
"""The kind of a launch that may begin before the one in front of it has ended; 1 is a cooperative launch."""
_ADDRESS_MODES: tuple[AddressMode, ...] = ("wrap", "clamp", "mirror", "border")


@dataclass(frozen=True)
class DeviceAnswers:
    """Answers of a device to a program that asks about it, and the pace of time: so many times as fast as the emulator's."""

    name: str
    memory_bytes: int
    multiprocessors: int
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int
    l2_bytes: int
    pace: float = 1.0

    def to_environment(self) -> dict[str, str]:
        """The answers as the runtime reads them."""
        own = {
            "DEVICE_NAME": self.name,
            "DEVICE_BYTES": self.memory_bytes,
            "MULTIPROCESSORS": self.multiprocessors,
            "CLOCK": self.clock_khz,
            "MEMORY_CLOCK": self.memory_clock_khz,
            "BUS": self.bus_bits,
            "L2": self.l2_bytes,
            "PACE": self.pace,
        }
        return {f"GEMMGEN_{name}": str(value) for name, value in own.items()}


@dataclass(frozen=True)
class RunSettings:
    """Choices for a run. `repeats`: launches that are equal in a row beyond this number are skipped; 0: none are."""

    architecture: int = 80
    hazards: bool = True
    strict: bool = False
    multiprocessors: int = 8
    repeats: int = 0
    seconds: int = 600
    sandbox: bool = False
    memory_bytes: int = 8 << 30
    counters: bool = False
    jobs: int = 1
    """Threads that share the blocks of a launch."""
    arithmetic: Arithmetic = REAL
    schedule: Schedule | None = None
    """The order of warps; None: blocks one after the other."""
    folder: Path | None = None
    """Folder that the program starts in; None: the current one."""
    silent: bool = False
    """True to drop the program's output."""
    answers: DeviceAnswers | None = None
    """Answers of the device about itself; None: those of the emulator."""
    hides: bool = False
    """True to leave nothing of the emulator in the program's environment and name."""
    keeps_copies: bool = False
    """True to keep digests of the bytes that are copied between host and device."""


@dataclass
class KernelTotals:
    """Launches of one kernel. `counters` are those of the launches that were not skipped."""

    launches: int = 0
    skipped: int = 0
    instructions: int = 0
    seconds: float = 0.0
    counters: Counters | None = None


@dataclass
class Report:
    """Outcome of a run."""

    status: int | None = None
    """The program's exit status, negative for a signal; None while it runs."""
    kernels: dict[str, KernelTotals] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    unsupported: dict[str, str] = field(default_factory=dict)
    """Calls that the emulator does not have, and where the first one was made."""
    refused: dict[str, str] = field(default_factory=dict)
    """Kernels that the emulator does not run, and why."""
    allocations: int = 0
    most_bytes: int = 0
    """Most bytes that were allocated at a time."""
    copied_bytes: int = 0
    copied_to_device: set[bytes] = field(default_factory=set)
    """Digests of bytes that were copied from the host, if they are kept; zeros are left out."""
    copied_to_host: set[bytes] = field(default_factory=set)
    library_calls: int = 0
    """Calls of cuBLAS, which compute on the host with real numbers."""
    host_memory: bool = False
    """True if host and kernels share memory, whose changes by the host are unseen."""
    modules: tuple[str, ...] = ()
    """PTX of all modules."""
    timed: bool = False
    """True if the program measured time with events."""
    ended_early: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class _Owner:
    """An allocation: the call that made it, and where."""

    call: str
    kind: MemoryKind
    frames: tuple[Frame, ...]
    number: int


class Session:
    """Answers one program."""

    def __init__(self, settings: RunSettings, places: Places, text_of: Callable[[str], str | None]) -> None:
        self.settings, self.places, self.text_of = settings, places, text_of
        self.device = Device(
            settings.memory_bytes,
            hazards=settings.hazards,
            strict=settings.strict,
            arithmetic=settings.arithmetic,
            schedule=settings.schedule,
            jobs=settings.jobs,
        )
        self.order = StreamOrder()
        self.report = Report()
        self.child: subprocess.Popen[bytes] | None = None
        self.running = ""
        """The kernel that is running now."""
        self.is_over = False
        """True once the program's time is spent: nothing more is answered."""
        self._owners: dict[int, _Owner] = {}
        self._freed: dict[int, tuple[_Owner, tuple[Frame, ...]]] = {}
        self._allocated = 0
        self._host_sees = False
        """True once there is memory that host and kernels share."""
        self._launch_findings: list[tuple[Finding, ...]] = []
        self._others: dict[tuple[str, str], Finding] = {}
        self._known = KnownLaunches(self.device, size_on(self.device))
        self._last_launch = b""
        self._counted: dict[str, CounterObserver] = {}
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}
        self._module_bytes = 0
        self._in_a_row = 0
        self._overlaps = False
        """True once a launch may begin before the one in front of it has ended, or code that is made for that is loaded."""
        self._before: dict[int, DeviceLaunch] = {}
        """The last launch of each stream, if nothing has come behind it."""
        self._answers: dict[Operation, Callable[[Body], bytes]] = {
            Operation.LOAD_MODULE: self._load_module,
            Operation.FIND_VARIABLE: self._find_variable,
            Operation.FIND_KERNEL: self._find_kernel,
            Operation.LAUNCH: self._launch,
            Operation.ALLOCATE: self._allocate,
            Operation.RELEASE: self._release,
            Operation.COPIED: self._copied,
            Operation.STREAM: self._stream,
            Operation.TENSOR_MAP: self._tensor_map,
            Operation.TEXTURE: self._texture,
            Operation.MISUSE: self._misuse,
            Operation.UNSUPPORTED: self._unsupported,
            Operation.BLAS: self._blas,
            Operation.FORGET: self._forget,
            Operation.PLACE_CONTENTS: self._place_contents,
        }

    # -- the connection ------------------------------------------------------------------------------------------

    def serve(self, connection: socket.socket) -> None:
        """Answers until the program closes its end, which happens when it ends. Raises BadMessage."""
        # A program that ends with a message unread resets the connection.
        with connection.makefile("rb") as stream, suppress(ConnectionError):
            while not self.is_over and len(head := stream.read(8)) == 8:
                number, size = struct.unpack("<II", head)
                if size > limit_of(number):
                    raise BadMessage(f"a message of {size} bytes")
                data = stream.read(size)
                if len(data) < size:
                    break
                status, answer = self._answer(Operation(number), Body(data))
                connection.sendall(struct.pack("<iI", status, len(answer)) + answer)

    def _answer(self, operation: Operation, body: Body) -> tuple[int, bytes]:
        try:
            return 0, self._answers[operation](body)
        except _Refused as refusal:
            return refusal.status, refusal.text.encode()
        except MemoryError:
            return _OUT_OF_MEMORY, b""
        except BadLaunch as error:
            return _INVALID_CONFIGURATION, str(error).encode()

    # -- modules -------------------------------------------------------------------------------------------------

    def _load_module(self, body: Body) -> bytes:
        data = body.rest()
        self._module_bytes += len(data)
        if len(self.device.modules) >= _MAX_MODULES or self._module_bytes > _MAX_MODULE_BYTES:
            raise BadMessage("too many modules")
        try:
            text = self.places.with_names(ptx_of(data, self.settings.architecture))
            self.device.load(text)
            self.report.modules = (*self.report.modules, text)
            self._overlaps |= "griddepcontrol" in text
        except (BadLaunch, ParseError, UnknownInstruction) as error:
            self._refuse("a module", error)
            raise _Refused(_INVALID_FUNCTION, str(error)) from None
        return struct.pack("<Q", len(self.device.modules) - 1)

    def _module(self, number: int) -> DeviceModule:
        if number == 2**64 - 1:
            raise _Refused(_INVALID_FUNCTION, "the module was refused")
        if number >= len(self.device.modules):
            raise BadMessage(f"no module {number}")
        return self.device.modules[number]

    def _find_variable(self, body: Body) -> bytes:
        module, name = self._module(body.number("Q")), body.name()
        placed = module.places.get(name)
        if placed is None:
            raise _Refused(_INVALID_VALUE, f"the module has no variable {name}")
        return struct.pack("<QQ", placed.offset + GLOBAL_BASE, placed.variable.size)

    def _find_kernel(self, body: Body) -> bytes:
        module, name = self._module(body.number("Q")), body.name()
        try:
            layout = self.device.layout(module, name)
        except (BadLaunch, ParseError, UnknownInstruction) as error:
            self._refuse(qualified_name(name), error)
            raise _Refused(_INVALID_FUNCTION, str(error)) from None
        words = (len(layout.parameters), layout.shared_bytes, layout.local_bytes, layout.max_threads)
        return struct.pack("<4I", *words) + b"".join(struct.pack("<II", *pair) for pair in layout.parameters)

    def _refuse(self, name: str, error: Exception) -> None:
        """A module or a kernel that does not run."""
        if len(self.report.refused) < _MAX_NAMES:
            self.report.refused.setdefault(name, str(error))

    # -- launches ------------------------------------------------------------------------------------------------

    def _as_residues(self, module: DeviceModule, name: str, parameters: bytes) -> bytes:
        """A launch's arguments over a field: numbers of the type float become residues, as literals of kernels do."""
        converted, entry = bytearray(parameters), self.device.kernel(module, name).entry
        for parameter, (offset, size) in zip(entry.parameters, self.device.layout(module, name).parameters, strict=True):
            if parameter.type == "f32" and size == 4 and offset + size <= len(converted):
                (value,) = struct.unpack_from("<f", converted, offset)
                converted[offset : offset + size] = residues.of_float(value).tobytes()
        return bytes(converted)

    def _launch(self, body: Body) -> bytes:
        module_number = body.number("Q")
        module = self._module(module_number)
        *shape, shared, kinds, stream = body.numbers("12I")
        name = body.text()
        parameters = body.rest()
        grid, block, cluster = (shape[0], shape[1], shape[2]), (shape[3], shape[4], shape[5]), (shape[6], shape[7], shape[8])
        label = qualified_name(name)
        if len(self.report.kernels) >= _MAX_KERNELS and label not in self.report.kernels:
            raise BadMessage("too many kernels")
        totals = self.report.kernels.setdefault(label, KernelTotals())
        totals.launches += 1
        key = sha256(struct.pack("<Q10I", module_number, *shape, shared) + name.encode() + b"\0" + parameters).digest()
        self._in_a_row = self._in_a_row + 1 if key == self._last_launch else 1
        self._last_launch = key
        if 0 < self.settings.repeats < self._in_a_row or self._known.put_in_place(key):
            totals.skipped += 1
            self._before.clear()
            return struct.pack("<I", self._known.is_pending << 31)
        began = time.perf_counter()
        attempts: list[CounterObserver] = []

        def observed() -> CounterObserver:
            attempts.append(CounterObserver())
            return attempts[-1]

        self.running = label
        try:
            result = self.device.launch(
                module,
                name,
                grid=grid,
                block=block,
                parameters=parameters if self.settings.arithmetic is REAL else self._as_residues(module, name, parameters),
                shared_bytes=shared,
                cluster=cluster if any(cluster) else None,
                source=self.text_of,
                progress=self._progress,
                tracks=True,
                observed=observed if self.settings.counters else None,
                keeps_footprints=self._overlaps,
                before=self._before.get(stream) if kinds & _PROGRAMMATIC else None,
            )
            self._overlaps |= bool(kinds & _PROGRAMMATIC)
            self._before[stream] = result
        except (ParseError, UnknownInstruction) as error:
            self._refuse(label, error)
            raise _Refused(_INVALID_FUNCTION, str(error)) from None
        finally:
            self.running = ""
        totals.instructions += result.instructions
        totals.seconds += time.perf_counter() - began
        if attempts:
            counted = self._counted.setdefault(label, CounterObserver())
            counted.absorb(attempts[-1].observed(), self.device.kernel(module, name))
        self._note_launch(result, module, key)
        if self.order.is_used:
            work = self.order.enqueue(stream, label)
            for touched in result.touched:
                self._conflicts(self.order.touch(work, touched))
        if len(self._launch_findings) < _MAX_FINDINGS:
            findings = findings_of(result.error, result.findings, self.text_of)
            if findings:
                self._launch_findings.append(tuple(self._named(finding) for finding in findings))
        if result.error is not None:
            if isinstance(result.error, UnknownInstruction):
                self._refuse(label, result.error)
            raise _Refused(_status_of(result.error), result.output)
        return self._pages_of_the_host(result) + result.output.encode()

    def _pages_of_the_host(self, result: DeviceLaunch) -> bytes:
        """Pages that the host sees and the launch has written: their number, then address and bytes of each run."""
        ranges: list[tuple[int, int]] = []
        for touched in result.touched if self._host_sees else ():
            if self._kind(touched.region.start) in (MemoryKind.MANAGED, MemoryKind.PINNED):
                changed, units = touched.changed, _PAGE // touched.unit
                flags = np.resize(changed, -(-len(changed) // units) * units)
                flags[len(changed) :] = False
                pages = np.flatnonzero(flags.reshape(-1, units).any(axis=1))
                for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1) if len(pages) else ():
                    ranges.append((touched.region.start + GLOBAL_BASE + int(run[0]) * _PAGE, len(run) * _PAGE))
        ranges = ranges[:_MAX_GUARDED]
        return struct.pack("<I", len(ranges)) + b"".join(struct.pack("<QQ", *each) for each in ranges)

    def _progress(self, done: int, total: int) -> None:
        if self.child is not None and self.child.poll() is not None:
            raise ProgramEnded(f"the program ended while a kernel was running: {done} of {total} blocks were done")

    def _note_launch(self, result: DeviceLaunch, module: DeviceModule, key: bytes) -> None:
        """The memory that the launch changed, and whether its effect depends on nothing but memory of the device."""
        variables = {placed.offset for placed in module.places.values()}
        plain = all(each.region.start in variables or self._kind(each.region.start) == MemoryKind.DEVICE for each in result.touched)
        strays = any(isinstance(finding, OutOfBounds) for finding in result.findings)
        used = opcodes(result.program) if result.program is not None else frozenset()
        # Reads of textures and accesses to surfaces are not among the memory that was touched.
        by_textures: set[int] = set()
        if used & {"tex", "tld4"}:
            texels = [self.device.region_of(texture.base + GLOBAL_BASE) for texture in self.device.textures]
            by_textures = {region.start for region in texels if region is not None}
        alone = plain and not result.engines_moved and not result.output and result.error is None and not strays
        self._known.note(key, result.touched, by_textures, alone and not used & {"suld", "sust"}, result.has_changed)

    def _kind(self, start: int) -> MemoryKind | None:
        owner = self._owners.get(start + GLOBAL_BASE)
        return owner.kind if owner is not None else None

    # -- memory --------------------------------------------------------------------------------------------------

    def _allocate(self, body: Body) -> bytes:
        size, kind, call, frames = body.number("Q"), body.number("I"), body.text(), body.frames()
        body.end()
        if kind not in set(MemoryKind):
            raise BadMessage(f"no kind of memory {kind}")
        if len(self._owners) >= _MAX_OBJECTS or size > self.settings.memory_bytes:
            raise MemoryError
        self.report.allocations += 1
        number = self.report.allocations
        alignment = 512 if kind == MemoryKind.DEVICE else _PAGE
        count = size if kind == MemoryKind.DEVICE else -(-size // _PAGE) * _PAGE
        # The host writes pinned and managed memory unseen.
        address = self.device.allocate(count, f"allocation {number}", alignment=alignment, written=kind != MemoryKind.DEVICE)
        self._host_sees |= kind != MemoryKind.DEVICE
        self.report.host_memory = self._host_sees
        self._owners[address] = _Owner(call, MemoryKind(kind), self._kept(frames), number)
        self._allocated += size
        self.report.most_bytes = max(self.report.most_bytes, self._allocated)
        self._known.renew(address - GLOBAL_BASE)
        return struct.pack("<Q", address)

    def _kept(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """The calls, as they are kept once for all allocations with the same; none beyond a number of different ones."""
        return self._stacks.setdefault(frames, frames) if len(self._stacks) < _MAX_STACKS else self._stacks.get(frames, ())

    def _release(self, body: Body) -> bytes:
        address, stream, call, frames = body.number("Q"), body.number("I"), body.text(), body.frames()
        body.end()
        if stream > _MAX_STREAMS:
            raise BadMessage(f"no stream {stream}")
        owner = self._owners.get(address)
        if owner is None:
            before = self._freed.get(address)
            if before is not None:
                text = f"{call} of {self._described(before[0])}, which {self._at(before[1])} has freed before"
                self._tell("double-free", "memory freed twice", "error", text, frames)
            else:
                self._tell(
                    "invalid-free", "free of an invalid pointer", "error", f"{call} of 0x{address:x}, which is no allocation", frames
                )
            return b""
        region = self.device.region_of(address)
        assert region is not None
        if call.endswith("FreeAsync") and self.order.is_used:
            work = self.order.enqueue(stream, call)
            self._conflicts(self.order.touch_bytes(work, region, 0, region.stop - region.start, True), frames)
        del self._owners[address]
        self._allocated -= region.stop - region.start
        self.device.free(address)
        self.order.forget(region.start)
        self._freed[address] = (owner, self._kept(frames))
        self._known.renew(region.start)
        return b""

    def _forget(self, body: Body) -> bytes:
        """A graph has freed its own memory: the address stays the graph's, the contents are undefined."""
        address = body.number("Q")
        body.end()
        if address not in self._owners:
            raise BadMessage(f"0x{address:x} is no allocation")
        start = address - GLOBAL_BASE
        self.device.note_unwritten(address)
        self._known.renew(start)  # to skip a launch would leave the memory marked as unwritten
        return b""

    def _place_contents(self, body: Body) -> bytes:
        """The host is going to look at memory of the device."""
        body.end()
        self._known.place_contents()
        return b""

    def _region(self, address: int, count: int) -> Region:
        region = self.device.region_of(address)
        if region is None or address - GLOBAL_BASE + count > region.stop:
            raise BadMessage("a copy outside of allocations")
        return region

    def _copied(self, body: Body) -> bytes:
        target, source, count, stream, waits, same = body.numbers("QQQIII")
        call, frames = body.text(), body.frames()
        body.end()
        self._before.clear()
        work = self.order.enqueue(stream, call) if self.order.is_used else None
        if self.settings.keeps_copies:
            self._keep_copy(target, source, count)
        if source:
            region = self._region(source, count)
            self._look_for_unwritten(region, source, count, call, frames, to_host=not target)
            if work is not None:
                self._conflicts(self.order.touch_bytes(work, region, source - GLOBAL_BASE - region.start, count, False), frames)
        if target:
            region = self._region(target, count)
            self.device.note_written(target, count)
            if not same:
                self._known.change(region.start)
            self._last_launch = b""
            if work is not None:
                self._conflicts(self.order.touch_bytes(work, region, target - GLOBAL_BASE - region.start, count, True), frames)
        self.report.copied_bytes += count
        if waits:
            self.order.synchronize(stream)
        return b""

    def _keep_copy(self, target: int, source: int, count: int) -> None:
        """Notes the digest of a copy between host and device; the bytes are those of the device's side."""
        if bool(target) == bool(source):
            return
        address, copies = (target, self.report.copied_to_device) if target else (source, self.report.copied_to_host)
        self._region(address, count)
        moved = self.device.memory[address - GLOBAL_BASE : address - GLOBAL_BASE + count]
        if len(copies) < _MAX_COPIES and moved.any():
            copies.add(sha256(moved.tobytes()).digest())

    def _look_for_unwritten(self, region: Region, address: int, count: int, call: str, frames: tuple[Frame, ...], to_host: bool) -> None:
        """Bytes that nothing has written reach the host."""
        if not (self.settings.hazards and to_host):
            return
        unwritten = self.device.count_unwritten(address, count)
        if unwritten:
            owner = self._owners.get(region.start + GLOBAL_BASE)
            text = f"{call} of {count} bytes, of which nothing has written {unwritten}, from {self._described(owner)}"
            self._tell("unwritten-copy", "copy of unwritten memory to the host", "warning", text, frames)

    # -- streams -------------------------------------------------------------------------------------------------

    def _stream(self, body: Body) -> bytes:
        what, stream, event = body.numbers("III")
        body.end()
        if what not in set(StreamEvent) or stream > _MAX_STREAMS:
            raise BadMessage(f"no event {what} of stream {stream}")
        if what != StreamEvent.RECORD:
            self._before.clear()
        match StreamEvent(what):
            case StreamEvent.CREATE | StreamEvent.CREATE_UNORDERED:
                self.order.create(stream, what == StreamEvent.CREATE_UNORDERED)
            case StreamEvent.DESTROY:
                self.order.destroy(stream)
            case StreamEvent.SYNCHRONIZE:
                self.order.synchronize(stream)
            case StreamEvent.SYNCHRONIZE_ALL:
                self.order.synchronize_all()
            case StreamEvent.RECORD:
                self.report.timed = True
                self.order.record(event, stream)
            case StreamEvent.WAIT:
                self.order.wait(stream, event)
            case StreamEvent.SYNCHRONIZE_EVENT:
                self.order.synchronize_event(event)
        return b""

    def _conflicts(self, conflicts: Iterable[Conflict], frames: tuple[Frame, ...] = ()) -> None:
        for conflict in conflicts:
            owner = self._owners.get(conflict.region + GLOBAL_BASE)
            earlier, later = ("writes" if writes else "reads" for writes in (conflict.earlier_writes, conflict.later_writes))
            text = f"{conflict.later.label} in {_stream_name(conflict.later.stream)} {later} {self._described(owner)}, which "
            text += f"{conflict.earlier.label} in {_stream_name(conflict.earlier.stream)} {earlier}, and nothing orders the two"
            self._tell("stream-race", "streams without an order", "error", text, frames)

    # -- tensor maps and textures --------------------------------------------------------------------------------

    def _tensor_map(self, body: Body) -> bytes:
        kind, rank, interleave, swizzle, promotion, fill = body.numbers("6I")
        bits, padded = _PACKED.get(kind, (8, False))
        known = kind < len(_ELEMENTS) or kind in _PACKED
        if not known or not 1 <= rank <= 5 or interleave > 2 or swizzle >= len(_SWIZZLES) or promotion > 3 or fill > 1:
            raise _Refused(_INVALID_VALUE, "a tensor map of a kind that the emulator does not have")
        base = body.number("Q")
        extents, strides = body.numbers(f"{rank}Q"), body.numbers(f"{rank - 1}Q")
        box, steps = body.numbers(f"{rank}I"), body.numbers(f"{rank}I")
        body.end()
        if kind in _PACKED and (extents[0] * bits % 8 or box[0] * bits % 8):
            raise _Refused(_INVALID_VALUE, "a tensor map whose rows end within a byte")
        made = TensorMap(
            "u8" if kind in _PACKED else _ELEMENTS[kind],
            (extents[0] * bits // 8, *extents[1:]),
            strides,
            (box[0] * bits // 8, *box[1:]),
            steps,
            _INTERLEAVES[interleave],
            _SWIZZLES[swizzle],
            _FILLS[fill],
            _PROMOTIONS[promotion],
            bits=bits,
            padded=padded,
        )
        # The driver asks for no allocation either: a kernel may replace the address, and copies check their boxes.
        if len(self.device.maps) >= _MAX_OBJECTS:
            raise MemoryError
        return self.device.encode(made, base)

    def _texture(self, body: Body) -> bytes:
        address, *extents, pitch = body.numbers("5Q")
        bits, channels, kind, linear_filter, mode, normalized, as_float, linear_memory = body.numbers("8I")
        body.end()
        names = {0: "i", 1: "u", 2: "f"}
        if (
            kind not in names
            or bits not in (8, 16, 32)
            or (kind, bits) == (2, 8)
            or mode >= len(_ADDRESS_MODES)
            or channels not in (1, 2, 4)
        ):
            raise _Refused(_NOT_SUPPORTED, "a texture of a kind that the emulator does not have")
        shape = tuple(extent for extent in reversed(extents) if extent)
        texel = channels * bits // 8
        if any(extent > 1 << 32 for extent in shape) or pitch >= 1 << 32 or (pitch and (len(shape) != 2 or pitch < shape[1] * texel)):
            raise _Refused(_INVALID_VALUE, "a texture of extents that do not fit")
        count = int(np.prod(shape, dtype=object)) * texel if not pitch else (shape[0] - 1) * pitch + shape[1] * texel
        region = self.device.region_of(address)
        if not shape or region is None or address - GLOBAL_BASE + count > region.stop:
            raise _Refused(_INVALID_VALUE, "a texture over memory that is not allocated")
        array = np.broadcast_to(np.zeros((), f"{names[kind]}{bits // 8}"), (*shape, channels) if channels > 1 else shape)
        texture = Texture(array, channels, "linear" if linear_filter else "point", _ADDRESS_MODES[mode], bool(normalized), bool(as_float))
        if (not normalized and texture.address in ("wrap", "mirror")) or linear_memory:
            # CUDA takes other modes for clamping then.
            texture = Texture(array, channels, texture.filter, "clamp", bool(normalized), bool(as_float))
        if len(self.device.textures) >= _MAX_OBJECTS:
            raise MemoryError
        try:
            return struct.pack("<Q", self.device.add_texture(texture, address, pitch))
        except ValueError as error:
            raise _Refused(_NOT_SUPPORTED, str(error)) from None

    # -- cuBLAS --------------------------------------------------------------------------------------------------

    def _blas(self, body: Body) -> bytes:
        call, stream, frames = body.text(), body.number("I"), body.frames()
        self.report.library_calls += 1
        numbers, scalars = body.numbers("II")
        if numbers > blas.MAX_NUMBERS or scalars > 4:
            raise _Refused(_NOT_SUPPORTED, "a batch of so many matrices is not implemented")
        values, factors = body.numbers(f"{numbers}q"), body.reals(scalars)
        body.end()
        self._before.clear()
        self._known.place_contents()
        memory = blas.Memory(self.device.memory, self.device.region_of)
        try:
            with np.errstate(all="ignore"):
                result = blas.compute(memory, values, factors)
        except blas.Refusal as refusal:
            self._lacks(f"{call}: {refusal}", frames)
            raise _Refused(_NOT_SUPPORTED, str(refusal)) from None
        except blas.OutsideOfAllocation as outside:
            owner = self._owners.get(outside.region.start + GLOBAL_BASE) if outside.region is not None else None
            holder = f"beyond {self._described(owner)}" if owner is not None else "where nothing is allocated"
            text = f"{call} touches {outside.count:,} bytes from 0x{outside.address:x} on as {outside.what}, {holder}"
            self._tell("library-out-of-bounds", "call of a library out of bounds", "error", text, frames)
            raise _Refused(_ILLEGAL_ADDRESS, text) from None
        work = self.order.enqueue(stream, call) if self.order.is_used else None
        for part in memory.ranges:
            region = self._region(part.address, part.count)
            if not part.writes and not part.gaps and self.settings.hazards:
                unwritten = self.device.count_unwritten(part.address, part.count)
                if unwritten:
                    owner = self._owners.get(region.start + GLOBAL_BASE)
                    text = f"{call} reads {part.count:,} bytes of {self._described(owner)}, of which nothing has written {unwritten:,}"
                    self._tell("library-unwritten-read", "read of unwritten memory by a library", "error", text, frames)
            if part.writes:
                self.device.note_written(part.address, part.count)
                self._known.change(region.start)
            if work is not None:
                self._conflicts(
                    self.order.touch_bytes(work, region, part.address - GLOBAL_BASE - region.start, part.count, part.writes), frames
                )
        return result

    # -- findings ------------------------------------------------------------------------------------------------

    def _misuse(self, body: Body) -> bytes:
        code, message, frames = body.text(), body.text(), body.frames()
        body.end()
        if code not in MISUSES:
            raise BadMessage(f"no finding {code!r}")
        self._tell(code, MISUSES[code], "error", re.sub(r"\b_Z\w+", lambda match: qualified_name(match[0]), message), frames)
        return b""

    def _unsupported(self, body: Body) -> bytes:
        name, frames = body.text(), body.frames()
        body.end()
        self._lacks(name, frames)
        return b""

    def _lacks(self, call: str, frames: tuple[Frame, ...]) -> None:
        """A call that the emulator does not have."""
        if len(self.report.unsupported) < _MAX_NAMES and call not in self.report.unsupported:
            self.report.unsupported[call] = self._at(frames)

    def _tell(self, code: str, title: str, severity: Severity, message: str, frames: tuple[Frame, ...]) -> None:
        if len(self._others) >= _MAX_FINDINGS:
            return
        call = self.places.first(frames)
        where = (Place(call.file, call.line, None, call.function, 0, "", None),) if call is not None else ()
        text = f"{'' if severity == 'error' else f'{severity}: '}{title}: {message}"
        if call is not None:
            quoted = self.places.line(call)
            text += f"\n  host  {call.file}:{call.line}" + (f"\n      {call.line:>6} | {quoted.strip()}" if quoted else "")
        severity = "error" if self.settings.strict else severity
        finding = Finding(code, title, severity, message, where, None, 1, text)
        self._others.setdefault((code, message if call is None else f"{call.file}:{call.line}"), finding)

    def _described(self, owner: _Owner | None) -> str:
        if owner is None:
            return "memory of the device"
        call = self.places.first(owner.frames)
        name = self.places.variable(call) if call is not None else None
        where = f" ({owner.call} at {call.file}:{call.line})" if call is not None else f" ({owner.call})"
        return f"{name or f'allocation {owner.number}'}{where}"

    def _at(self, frames: tuple[Frame, ...]) -> str:
        call = self.places.first(frames)
        return f"{call.file}:{call.line}" if call is not None else "the program"

    def _named(self, finding: Finding) -> Finding:
        """The finding with allocations called as the program calls them."""
        owners = {owner.number: owner for owner in (*self._owners.values(), *(owner for owner, _ in self._freed.values()))}

        def name(text: str) -> str:
            return self.places.renamed(text, lambda number: self._described(owners[number]) if number in owners else None)

        element = name(finding.element) if finding.element else finding.element
        return replace(finding, message=name(finding.message), text=name(finding.text), element=element)

    def finish(self, status: int | None) -> Report:
        """The report, once the program has ended."""
        for address, owner in self._owners.items() if status == 0 and not self.report.ended_early else ():
            if len(self._others) >= _MAX_FINDINGS:
                break
            if any(frame.file.endswith(".py") for frame in owner.frames):
                continue  # Python's objects free their memory when the interpreter ends, or never
            region = self.device.region_of(address)
            size = region.stop - region.start if region is not None else 0
            text = f"{size:,} bytes of {self._described(owner)} are never freed"
            self._tell("leak", "memory that is never freed", "note", text, owner.frames)
        order = ("error", "warning", "note")
        findings = [*findings_of_launches(self._launch_findings), *self._others.values()]
        self.report.findings = tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))
        for label, counted in self._counted.items():
            self.report.kernels[label].counters = counted.counters(self.text_of)
        self.report.status = status
        return self.report

    def close(self) -> None:
        """Gives up the device, its file and what answers the program."""
        self.device.close()
        self._answers.clear()


MISUSES = {
    "host-access": "device memory used by host code",
    "host-race": "memory used by host code before it has waited",
    "copy-out-of-bounds": "copy out of bounds",
    "copy-direction": "copy in the wrong direction",
    "too-much-shared-memory": "launch with too much shared memory",
}
"""Findings that the runtime makes by itself."""


class ProgramEnded(Exception):
    """The program has ended while a kernel was running."""


class _Refused(Exception):
    """A call that fails with a code of cudaError_t."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def _status_of(error: EmulatorError) -> int:
    if isinstance(error, OutOfBounds | ReadOnly):
        return _ILLEGAL_ADDRESS
    if isinstance(error, Misaligned):
        return _MISALIGNED
    if isinstance(error, Trapped):
        return _ASSERT if "assert" in error.message else _LAUNCH_FAILURE
    return _LAUNCH_FAILURE


def _stream_name(stream: int) -> str:
    return f"stream {stream}" if stream else "the default stream"
