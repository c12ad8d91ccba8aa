"""The bytes that instructions access, kept as arrays: addresses and widths, and a byte for byte list only where two sets may meet."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MAX_PENDING = 1 << 20
"""Addresses that are kept before they are put in order."""
_SPARSE = 16
"""A range with more bytes for each access than this is sorted; others are marked byte by byte."""
_Addresses = npt.NDArray[np.int64]


class AccessedBytes:
    """A set of bytes, in memories of several kinds."""

    __slots__ = ("_memories",)

    def __init__(self) -> None:
        self._memories: dict[str, _Memory] = {}

    def add(self, kind: str, addresses: npt.NDArray[np.integer], width: int) -> None:
        """So many bytes from each address on, of one kind of memory."""
        if len(addresses):
            self._memories.setdefault(kind, _Memory()).add(addresses.astype(np.int64), width)

    def update(self, other: AccessedBytes) -> None:
        """All bytes of another set."""
        for kind, memory in other._memories.items():
            self._memories.setdefault(kind, _Memory()).update(memory)

    def isdisjoint(self, other: AccessedBytes) -> bool:
        """True if the two sets have no byte in common."""
        return all(kind not in other._memories or memory.isdisjoint(other._memories[kind]) for kind, memory in self._memories.items())


class _Memory:
    """A set of bytes in one memory."""

    __slots__ = ("count", "first", "pending", "stop")

    def __init__(self) -> None:
        self.pending: list[tuple[_Addresses, int]] = []
        self.count = 0
        self.first, self.stop = 1 << 62, -(1 << 62)

    def add(self, addresses: _Addresses, width: int) -> None:
        self.pending.append((addresses, width))
        self.count += len(addresses)
        self.first, self.stop = min(self.first, int(addresses.min())), max(self.stop, int(addresses.max()) + width)
        if self.count > _MAX_PENDING:
            self.bytes()
            self.count = 0

    def update(self, other: _Memory) -> None:
        for addresses, width in other.pending:
            self.add(addresses, width)

    def isdisjoint(self, other: _Memory) -> bool:
        if self.first >= other.stop or other.first >= self.stop:
            return True
        return not len(np.intersect1d(self.bytes(), other.bytes(), assume_unique=True))

    def bytes(self) -> _Addresses:
        """Each byte once, in order."""
        if len(self.pending) > 1 or self.pending[0][1] > 1:
            self.pending = [(self._in_order(), 1)]
        return self.pending[0][0]

    def _in_order(self) -> _Addresses:
        accesses = sum(len(addresses) for addresses, _ in self.pending)
        if self.stop - self.first > _SPARSE * accesses + _MAX_PENDING:
            return np.unique(np.concatenate([(each[:, None] + np.arange(width)).reshape(-1) for each, width in self.pending]))
        touched = np.zeros(self.stop - self.first, np.bool_)
        for addresses, width in self.pending:
            for step in range(width):
                touched[addresses + (step - self.first)] = True
        return np.flatnonzero(touched) + self.first
