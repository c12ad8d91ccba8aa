"""Text that kernels print, kept like the device keeps it: a buffer of a megabyte, in which new text takes the place of the oldest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

BUFFER_CHARACTERS = 1 << 20
"""Characters that are kept, as many as the device's buffer has bytes by default (CUDA C++ Programming Guide, formatted output)."""


class Output:
    """Printed text, the newest megabyte of it, and the number of characters that gave way."""

    def __init__(self, text: str = "", dropped: int = 0) -> None:
        self.dropped = dropped
        self._parts: deque[str] = deque()
        self._size = 0
        self.append(text)

    def append(self, text: str) -> None:
        """Adds the output of one thread; the oldest text is dropped."""
        if not text:
            return
        self._parts.append(text)
        self._size += len(text)
        while self._size > BUFFER_CHARACTERS:
            excess = self._size - BUFFER_CHARACTERS
            oldest = self._parts.popleft()
            gone = min(excess, len(oldest))
            if gone < len(oldest):
                self._parts.appendleft(oldest[gone:])
            self._size -= gone
            self.dropped += gone

    def extend(self, others: Iterable[Output]) -> None:
        """Adds the output of others, in this order."""
        for other in others:
            self.dropped += other.dropped
            for part in other._parts:
                self.append(part)

    def clear(self) -> None:
        """Forgets everything."""
        self._parts.clear()
        self._size = self.dropped = 0

    def __len__(self) -> int:
        return self._size

    @property
    def text(self) -> str:
        """The text, behind a line that says how much is missing in front of it."""
        lost = f"({self.dropped:,} characters that were printed earlier are left out)\n" if self.dropped else ""
        return lost + "".join(self._parts)
