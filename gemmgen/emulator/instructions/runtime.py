"""Services of the CUDA runtime to device code: printf, malloc and free; and the stack of functions that call themselves."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

from gemmgen.emulator.binding import Binder
from gemmgen.emulator.errors import BadAllocation, Trapped, UnknownInstruction
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.instructions.registry import instruction
from gemmgen.emulator.instructions.warp import by_lanes
from gemmgen.emulator.memory import GLOBAL_BASE, LOCAL_WINDOW, Access, Spaces
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.program import FRAME
from gemmgen.emulator.ptx.syntax import Group, Instruction, Symbol

_CONVERSION = re.compile(r"%([-+ #0]*)(\*|[0-9]+)?(?:\.(\*|[0-9]*))?(hh|h|ll|l|j|z|t|L)?([diouxXcfFeEgGaAspn%])")
_MAX_STACK_BYTES = 256 << 20
_MAX_CALLS = 1024
"""Bound on the depth of recursion. A GPU's stack, a kilobyte a thread by default, holds fewer calls of most functions."""
_MAX_STRING_LENGTH = 4096
_WIDEST = 4096
"""Bound on the width and on the precision of one conversion of ``printf``."""


@instruction("call")
def runtime_call(inst: Instruction, binder: Binder) -> Operation:
    """A function of the runtime; its arguments and its result lie in .param variables."""
    (group,) = inst.operands
    assert isinstance(group, Group)
    names = [operand.name for operand in group.elements if isinstance(operand, Symbol)]
    run: dict[str, Callable[[Instruction, Binder, list[str], Lanes], None]] = {"vprintf": _print, "malloc": _allocate, "free": _free}
    function = run[inst.modifiers[0]]
    return by_lanes(binder, lambda lanes: function(inst, binder, names, lanes))


def _access(inst: Instruction, binder: Binder, name: str, kind: str, lanes: Lanes) -> tuple[np.ndarray, np.ndarray]:
    """The memory of a .param variable as elements of its size, and the index of each lane's."""
    placed = binder.program.symbols[name]
    size = placed.variable.size
    addresses = np.full(len(lanes), placed.offset, np.uint64)
    index = binder.spaces.local.locate(Access(inst, kind, size, size), lanes, addresses)
    return binder.spaces.local.units[size], index


def _read(inst: Instruction, binder: Binder, name: str, lanes: Lanes) -> np.ndarray:
    memory, index = _access(inst, binder, name, "load", lanes)
    values: np.ndarray = memory[index]
    return values


def _write(inst: Instruction, binder: Binder, name: str, lanes: Lanes, values: np.ndarray) -> None:
    memory, index = _access(inst, binder, name, "store", lanes)
    memory[index] = values.astype(memory.dtype)


# -- printf ------------------------------------------------------------------------------------------------------


def bytes_at(spaces: Spaces, address: int, lane: int, count: int) -> bytes:
    """A limited number of bytes at a generic address, as a lane sees them; fewer where its memory ends."""
    if address >> 32 == LOCAL_WINDOW >> 32:
        start = address - LOCAL_WINDOW
        base = lane * spaces.local.stride
        return spaces.local.data[base + start : base + min(start + count, spaces.local.stride)].tobytes()
    start = address - GLOBAL_BASE
    for region in spaces.global_.regions:
        if region.start <= start < region.stop:
            return spaces.global_.data[start : min(start + count, region.stop)].tobytes()
    return b""


def string_at(spaces: Spaces, address: int, lane: int) -> str:
    """The C string at a generic address."""
    return bytes_at(spaces, address, lane, _MAX_STRING_LENGTH).partition(b"\0")[0].decode("utf-8", "replace")


def _print(inst: Instruction, binder: Binder, names: list[str], lanes: Lanes) -> None:
    result, form, arguments = names
    spaces = binder.spaces
    counts = []
    for lane, where, values in zip(lanes.tolist(), _read(inst, binder, form, lanes), _read(inst, binder, arguments, lanes), strict=True):
        text, count, cut = _formatted(spaces, string_at(spaces, int(where), lane), int(values), lane)
        spaces.output.dropped += cut
        spaces.output.append(text)
        counts.append(count)
    _write(inst, binder, result, lanes, np.array(counts, np.int32).view(np.uint32))


def _formatted(spaces: Spaces, form: str, values: int, lane: int) -> tuple[str, int, int]:
    """A format with the arguments that lie at an address, as varargs are: aligned to their size, floats as double; the number of
    arguments, and that of characters by which widths and precisions go beyond their bound."""
    offset = count = cut = 0

    def take(size: int, kind: str) -> int | float:
        nonlocal offset, count
        offset = -(-offset // size) * size
        raw = bytes_at(spaces, values + offset, lane, size)
        offset += size
        count += 1
        value: int | float = struct.unpack(f"<{kind}", raw)[0] if len(raw) == size else 0
        return value

    def bounded(part: str | None, of_width: bool) -> str:
        """A width or a precision; a negative width means the left, a negative precision none (C17, 7.21.6.1)."""
        nonlocal cut
        if part is None:
            return ""
        number = int(take(4, "i")) if part == "*" else int(part[-20:] or 0)
        if number < 0 and not of_width:
            return ""
        cut += max(abs(number) - _WIDEST, 0)
        sign, number = "-" if number < 0 else "", min(abs(number), _WIDEST)
        return f"{sign}{number}" if of_width else f".{number}"

    def convert(match: re.Match[str]) -> str:
        flags, width, precision, length, letter = match.groups()
        if letter == "%":
            return "%"
        start = f"%{flags}{bounded(width, True)}{bounded(precision, False)}"
        wide = length in ("l", "ll", "j", "z", "t")
        if letter in "fFeEgG":
            return (start + letter) % take(8, "d")
        if letter in "aA":
            return float(take(8, "d")).hex()
        if letter == "s":
            return (start + "s") % string_at(spaces, int(take(8, "Q")), lane)
        if letter == "p":
            return (start + "s") % hex(int(take(8, "Q")))
        if letter == "c":
            return (start + "s") % chr(int(take(4, "i")) & 0xFF)
        if letter == "n":
            take(8, "Q")
            return ""
        signed = letter in "di"
        number = int(take(8, "q" if signed else "Q") if wide else take(4, "i" if signed else "I"))
        bits = {"hh": 8, "h": 16}.get(length or "")
        if bits is not None:
            number &= (1 << bits) - 1
            number -= (signed and number >> (bits - 1)) << bits
        return (start + ("d" if letter in "diu" else letter)) % number

    return _CONVERSION.sub(convert, form), count, cut


def assertion_message(inst: Instruction, binder: Binder, lane: int) -> str:
    """Message of an assertion that failed; its arguments are the condition, the file, the line and the function."""
    names = [operand.name for operand in inst.operands if isinstance(operand, Symbol)]
    if len(names) < 4:
        return "an assertion failed"
    who = np.array([lane])
    condition, file, line = (int(_read(inst, binder, name, who)[0]) for name in names[:3])
    return f"an assertion failed: {string_at(binder.spaces, condition, lane)} ({string_at(binder.spaces, file, lane)}:{line})"


# -- the heap ----------------------------------------------------------------------------------------------------


def _allocate(inst: Instruction, binder: Binder, names: list[str], lanes: Lanes) -> None:
    result, size = names
    memory = binder.spaces.global_
    addresses = []
    for lane, count in zip(lanes.tolist(), _read(inst, binder, size, lanes).tolist(), strict=True):
        start = memory.allocate(int(count), f"an allocation of {binder.geometry.describe_lane(lane)}")
        if start:
            for observer in memory.observers:
                observer.allocated(start - GLOBAL_BASE, start - GLOBAL_BASE + int(count))
        addresses.append(start)
    _write(inst, binder, result, lanes, np.array(addresses, np.uint64))


def _free(inst: Instruction, binder: Binder, names: list[str], lanes: Lanes) -> None:
    for lane, address in zip(lanes.tolist(), _read(inst, binder, names[0], lanes).tolist(), strict=True):
        wrong = binder.spaces.global_.free(int(address))
        if wrong:
            binder.fail(BadAllocation, wrong, inst, np.array([lane]))


# -- recursion ---------------------------------------------------------------------------------------------------


class Frames:
    """The stack of one group of functions that call each other: registers and variables of every call that is not over."""

    def __init__(self, binder: Binder, prefix: str) -> None:
        self.binder = binder
        registers = binder.registers
        mine = [register for group in binder.program.registers.values() for register in group if register.name.startswith(prefix)]
        self.rows: dict[str, np.ndarray] = {}
        for name in registers.arrays:
            rows = [registers.place(register)[1] for register in mine if registers.place(register)[0] == name]
            if name == "b128":
                rows = [row + part for row in rows for part in range(2)]
            if rows:
                self.rows[name] = np.array(rows)
        places = [placed for name, placed in binder.program.symbols.items() if name.startswith(prefix) and placed.variable.space == "local"]
        self.bytes = np.concatenate([np.arange(p.offset, p.offset + p.variable.size) for p in places] or [np.zeros(0, np.int64)])
        self.depth = np.zeros(binder.geometry.lanes, np.int64)
        self.saved: dict[str, np.ndarray] = {}

    def clear(self, lanes: Lanes | None) -> None:
        """Fresh lanes (None: all) have called nothing."""
        self.depth[... if lanes is None else lanes] = 0

    def _room(self, inst: Instruction, lanes: Lanes) -> None:
        needed = int(self.depth[lanes].max()) + 1
        there = len(self.saved["local"]) if self.saved else 0
        if needed <= there:
            return
        arrays = self.binder.registers.arrays
        per_lane = len(self.bytes) + sum(len(rows) * arrays[name].itemsize for name, rows in self.rows.items())
        capacity = max(2 * there, 8)
        if needed > _MAX_CALLS or needed * per_lane * len(self.depth) > _MAX_STACK_BYTES:
            deepest = lanes[self.depth[lanes] == needed - 1]
            self.binder.fail(Trapped, f"the stack overflows: {needed - 1} calls deep in recursion", inst, deepest)
        grown = {name: np.zeros((capacity, len(rows), len(self.depth)), arrays[name].dtype) for name, rows in self.rows.items()}
        grown["local"] = np.zeros((capacity, len(self.bytes), len(self.depth)), np.uint8)
        for name, array in self.saved.items():
            grown[name][:there] = array
        self.saved = grown

    def push(self, inst: Instruction, lanes: Lanes) -> None:
        """Saves the variables of the lanes' present call."""
        self._room(inst, lanes)
        arrays, depth = self.binder.registers.arrays, self.depth[lanes]
        for name, rows in self.rows.items():
            self.saved[name][depth, :, lanes] = arrays[name][rows[:, None], lanes].T
        local = self.binder.spaces.local
        self.saved["local"][depth, :, lanes] = local.data[lanes[:, None] * local.stride + self.bytes]
        self.depth[lanes] += 1

    def pop(self, lanes: Lanes) -> None:
        """Restores the variables of the calling function."""
        self.depth[lanes] -= 1
        arrays, depth = self.binder.registers.arrays, self.depth[lanes]
        for name, rows in self.rows.items():
            arrays[name][rows[:, None], lanes] = self.saved[name][depth, :, lanes].T
        local = self.binder.spaces.local
        local.data[lanes[:, None] * local.stride + self.bytes] = self.saved["local"][depth, :, lanes]


@instruction(FRAME)
def frame(inst: Instruction, binder: Binder) -> Operation:
    """Pushes or pops the frame of a recursive call, or copies an argument or a result."""
    what = inst.modifiers[0]
    symbols = [operand.name for operand in inst.operands if isinstance(operand, Symbol)]
    if what in ("argument", "result"):
        to, source = (binder.program.symbols[name] for name in symbols)
        # The caller's variables of one name in several scopes share a place, as large as the largest.
        formal, actual = (to, source) if what == "argument" else (source, to)
        if formal.variable.size > actual.variable.size:
            raise UnknownInstruction("an argument of another size", instruction=inst)
        return by_lanes(binder, lambda lanes: _copy(binder, to.offset, source.offset, formal.variable.size, lanes))
    known = binder.frames.get(symbols[0])
    frames: Frames = known if isinstance(known, Frames) else Frames(binder, symbols[0])
    binder.frames[symbols[0]] = frames
    if what == "push":
        return by_lanes(binder, lambda lanes: frames.push(inst, lanes))
    return by_lanes(binder, frames.pop)


def _copy(binder: Binder, to: int, source: int, size: int, lanes: Lanes) -> None:
    """Moves bytes between variables of a lane. Readers and writers track whether they have been written."""
    local = binder.spaces.local
    base = lanes[:, None] * local.stride + np.arange(size)
    local.data[base + to] = local.data[base + source]
    for observer in local.observers:
        observer.copied_locally(lanes, to, source, size)
