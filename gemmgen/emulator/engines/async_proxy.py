"""The asynchronous proxy: operations in flight, and the shared memory that belongs to them.

Copies by TMA and products of the tensor cores read and write shared memory on their own (PTX ISA, "Async proxy"). From
its issue until its completion has been observed, memory that an operation writes belongs to nobody else, and memory that it reads must
not change. Barriers that live in shared memory are no data at all. One byte of marks a chunk of 16 bytes answers the common case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from gemmgen.emulator.errors import BarrierMisuse, EmulatorError, InFlightRead, InFlightWrite
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.memory import UNIT_BYTES, Access, BankedSpace, verb
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.emulator.transfers import AsyncAccess, Kind

CHUNK = UNIT_BYTES
"""Granularity of tracking in shared memory, in bytes."""

_WRITING, _READING, _BARRIER, _WORDS = 1, 2, 4, 8


@dataclass(eq=False, slots=True)
class SentWords:
    """Words in flight from lanes to shared memory of the cluster: `width` bytes each at absolute offsets."""

    instruction: Instruction
    lanes: Lanes
    offsets: np.ndarray
    width: int


class AsyncProxy:
    """The accesses under way, and the marks that ordinary accesses are held against."""

    def __init__(self, geometry: Geometry, shared: BankedSpace) -> None:
        self.geometry = geometry
        self.shared = shared
        chunks = len(shared.data) // CHUNK
        self._marks = np.zeros(chunks, np.uint8)
        self._readers = np.zeros(chunks, np.int16)
        self.open: list[AsyncAccess] = []
        self._words: list[SentWords] = []
        self._barriers: dict[int, Instruction] = {}
        """Live barriers by absolute byte offset, and where they were initialised."""

    def clear(self) -> None:
        """Fresh shared memory everywhere."""
        self._marks.fill(0)
        self._readers.fill(0)
        self.open.clear()
        self._words.clear()
        self._barriers.clear()

    def clear_block(self, place: int) -> None:
        """Fresh shared memory for one block."""
        part = slice(place * self.shared.stride // CHUNK, (place + 1) * self.shared.stride // CHUNK)
        self._marks[part] = 0
        self._readers[part] = 0
        self.open = [a for a in self.open if not (part.start <= int(a.chunks[0]) < part.stop)]
        self._barriers = {at: inst for at, inst in self._barriers.items() if not part.start <= at // CHUNK < part.stop}

    # -- asynchronous accesses ---------------------------------------------------------------------------------

    def begin(self, instruction: Instruction, kind: Kind, lanes: Lanes, chunks: np.ndarray, awaits: str) -> AsyncAccess:
        """Lanes start an operation that reads or writes distinct chunks until `end`.

        Raises InFlightRead or InFlightWrite where that contradicts another one under way, BarrierMisuse where a barrier lives.
        """
        access = AsyncAccess(instruction, kind, lanes, chunks, awaits)
        self._check_engine(instruction, lanes, chunks, kind, _BARRIER | _WRITING | (_READING if kind == "write" else 0))
        if kind == "write":
            self._marks[chunks] |= _WRITING
        else:
            self._marks[chunks] |= _READING
            self._readers[chunks] += 1
        self.open.append(access)
        for observer in self.shared.observers:
            observer.async_started(access)
        return access

    def _check_engine(self, instruction: Instruction, lanes: Lanes, chunks: np.ndarray, kind: Kind, wrong: int) -> None:
        marks = self._marks[chunks]
        if int(np.bitwise_or.reduce(marks, initial=0)) & wrong:
            bad = chunks[(marks & wrong) != 0]
            name = f"asynchronous {kind}"
            self._conflict(instruction, self.geometry.describe(lanes), name, kind == "read", int(bad[0]) * CHUNK, CHUNK)

    def end(self, access: AsyncAccess, lanes: Lanes) -> None:
        """An operation has completed, and these lanes know."""
        self.open.remove(access)
        chunks = access.chunks
        if access.kind == "write":
            self._marks[chunks] &= 0xFF ^ _WRITING
        else:
            self._readers[chunks] -= 1
            free = chunks[self._readers[chunks] == 0]
            self._marks[free] &= 0xFF ^ _READING
        self.tell(access, lanes)

    def tell(self, access: AsyncAccess, lanes: Lanes) -> None:
        """More lanes know that an operation has completed."""
        for observer in self.shared.observers:
            observer.async_ended(access, lanes)

    def send(self, words: SentWords) -> None:
        """Words are in flight until `receive`: several may share a chunk."""
        self._words.append(words)
        self._marks[words.offsets // CHUNK] |= _WORDS

    def receive(self, words: SentWords) -> None:
        """Words have arrived."""
        self._words.remove(words)
        self._marks[words.offsets // CHUNK] &= 0xFF ^ _WORDS
        for other in self._words:
            self._marks[other.offsets // CHUNK] |= _WORDS

    # -- barriers in memory ------------------------------------------------------------------------------------

    def place_barrier(self, instruction: Instruction, offset: int) -> None:
        """From here on eight bytes at an absolute offset are a barrier."""
        self._barriers[offset] = instruction
        self._marks[offset // CHUNK] |= _BARRIER

    def remove_barrier(self, offset: int) -> None:
        """The bytes are ordinary memory again."""
        del self._barriers[offset]
        if offset ^ 8 not in self._barriers:
            self._marks[offset // CHUNK] &= 0xFF ^ _BARRIER

    # -- ordinary accesses -------------------------------------------------------------------------------------

    def check(self, access: Access, lanes: Lanes | None, index: np.ndarray) -> None:
        """Raises if an ordinary access touches memory of an operation in flight. `index`: units of min(width, 16) bytes."""
        unit = min(access.width, UNIT_BYTES)
        shift = (UNIT_BYTES // unit).bit_length() - 1
        wrong = _BARRIER | _WRITING | _WORDS | (_READING if access.kind != "load" else 0)
        for piece in range(access.width // unit):
            marks = self._marks[(index + piece) >> shift]
            if int(np.bitwise_or.reduce(marks)) & wrong:
                for position in np.flatnonzero(marks & wrong).tolist():
                    who = self.geometry.describe(np.array([position if lanes is None else lanes[position]]))
                    offset = (int(index[position]) + piece) * unit
                    self._conflict(access.instruction, who, verb(access), access.kind == "load", offset, unit)

    def _conflict(self, instruction: Instruction, threads: str, name: str, reads: bool, offset: int, width: int) -> None:
        """Raises for an access that meets an open one or a barrier; a barrier in the other half of the chunk is none of its."""
        place = self.shared.describe(offset % self.shared.stride)
        for at, other in self._barriers.items():
            if at < offset + width and offset < at + 8:
                raise BarrierMisuse(
                    f"{name} of {place}, where a barrier lives: only mbarrier instructions may touch it",
                    instruction=instruction,
                    threads=threads,
                    other=other,
                    other_threads="the initialisation of the barrier",
                )
        for words in self._words:
            met = (words.offsets < offset + width) & (words.offsets + words.width > offset)
            if met.any():
                kind: type[EmulatorError] = InFlightRead if reads else InFlightWrite
                raise kind(
                    f"{name} of {place}, where data is in flight: nobody has seen the phase of its barrier complete",
                    instruction=instruction,
                    threads=threads,
                    other=words.instruction,
                    other_threads=f"sent by {self.geometry.describe(words.lanes[met])}",
                )
        chunk = offset // CHUNK
        for open_access in self.open:
            if (open_access.kind == "write" or not reads) and (open_access.chunks == chunk).any():
                self._fail(instruction, threads, name, reads, place, open_access)

    def _fail(self, instruction: Instruction, threads: str, name: str, reads: bool, place: str, other: AsyncAccess) -> NoReturn:
        kind: type[EmulatorError] = InFlightRead if reads else InFlightWrite
        doing = "is going to write" if other.kind == "write" else "may still be reading"
        raise kind(
            f"{name} of {place}, which an asynchronous operation {doing}: nobody has seen {other.awaits}",
            instruction=instruction,
            threads=threads,
            other=other.instruction,
            other_threads=f"issued by {self.geometry.describe(other.lanes)}",
        )
