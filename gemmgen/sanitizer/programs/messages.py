"""Messages of a program's CUDA runtime (runtime.cpp), read with every field checked: the program is not trusted."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

MAX_MODULE_BYTES = 1 << 28
MAX_BYTES = 1 << 20
_MAX_FRAMES = 4
_MAX_PATH = 4096


class BadMessage(Exception):
    """A message that the runtime does not send: something else wrote to its socket."""


class Operation(IntEnum):
    """Numbers of messages; runtime.cpp has the same."""

    LOAD_MODULE = 1
    FIND_VARIABLE = 2
    FIND_KERNEL = 3
    LAUNCH = 4
    ALLOCATE = 5
    RELEASE = 6
    COPIED = 7
    STREAM = 8
    TENSOR_MAP = 9
    TEXTURE = 10
    MISUSE = 11
    UNSUPPORTED = 12
    BLAS = 13
    FORGET = 14
    PLACE_CONTENTS = 15


class StreamEvent(IntEnum):
    """An event of a stream, or of one of CUDA's events."""

    CREATE = 1
    CREATE_UNORDERED = 2
    DESTROY = 3
    SYNCHRONIZE = 4
    SYNCHRONIZE_ALL = 5
    RECORD = 6
    WAIT = 7
    SYNCHRONIZE_EVENT = 8


class MemoryKind(IntEnum):
    """Ways to allocate memory."""

    DEVICE = 0
    MANAGED = 1
    PINNED = 2


@dataclass(frozen=True)
class Frame:
    """A call of the program: a file, and the offset of the instruction behind the call in it; in a Python file, the line."""

    file: str
    offset: int


class Body:
    """The body of a message, read from its start."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        """The next bytes. Raises BadMessage."""
        if count < 0 or self._at + count > len(self._data):
            raise BadMessage("a message is too short")
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def numbers(self, layout: str) -> tuple[int, ...]:
        """Numbers by a struct layout."""
        numbers: tuple[int, ...] = struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))
        return numbers

    def reals(self, count: int) -> tuple[float, ...]:
        """Floating point numbers of 64 bits."""
        return struct.unpack(f"<{count}d", self.take(8 * count))

    def number(self, layout: str) -> int:
        """One number."""
        return self.numbers(layout)[0]

    def text(self, limit: int = _MAX_PATH) -> str:
        """A text behind its length."""
        count = self.number("I")
        if count > limit:
            raise BadMessage(f"a text of {count} bytes")
        return self.take(count).decode(errors="replace")

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data) - self._at)

    def name(self) -> str:
        """All that is left, as the name of a symbol."""
        rest = self.rest()
        if not 0 < len(rest) <= _MAX_PATH:
            raise BadMessage("a name without a fitting length")
        return rest.decode(errors="replace")

    def frames(self) -> tuple[Frame, ...]:
        """The calls that led to a message."""
        count = self.number("I")
        if count > _MAX_FRAMES:
            raise BadMessage(f"{count} frames")
        all_frames = []
        for _ in range(count):
            offset = self.number("Q")
            all_frames.append(Frame(self.text(), offset))
        return tuple(all_frames)

    def end(self) -> None:
        """Raises BadMessage if something is left."""
        if self._at != len(self._data):
            raise BadMessage("a message is too long")


def limit_of(operation: int) -> int:
    """The most bytes that a message may have. Raises BadMessage for an unknown one."""
    if operation not in set(Operation):
        raise BadMessage(f"no message has the number {operation}")
    return MAX_MODULE_BYTES if operation == Operation.LOAD_MODULE else MAX_BYTES
