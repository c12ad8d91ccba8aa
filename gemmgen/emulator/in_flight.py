"""Copies in flight: started by cp.async and not yet waited for.

A copy takes its data when it is issued and writes it when the issuing lane waits for its group. In between, its bytes belong
to nobody: reading them is an error, and so is writing them or copying something else there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemmgen.emulator.errors import EmulatorError, InFlightRead, InFlightWrite
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.memory import Access, BankedSpace, Observer, verb
from gemmgen.emulator.ptx.syntax import Instruction

WORD_BYTES = 4
"""The smallest copy, and the granularity at which memory is marked."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The copies of one instruction for some lanes (None: all): one entry a lane in each array.

    `index` counts units of `access.width` bytes in shared memory; `groups` numbers each lane's groups from 0.
    """

    access: Access
    lanes: Lanes | None
    addresses: np.ndarray
    index: np.ndarray
    data: np.ndarray
    groups: np.ndarray
    oldest: int
    newest: int

    def part(self, chosen: np.ndarray) -> Copy:
        """The copy for those lanes only that a mask chooses."""
        groups = self.groups[chosen]
        lanes = np.flatnonzero(chosen) if self.lanes is None else self.lanes[chosen]
        return Copy(
            self.access,
            lanes,
            self.addresses[chosen],
            self.index[chosen],
            self.data[chosen],
            groups,
            int(groups.min()),
            int(groups.max()),
        )


class InFlight:
    """The copies in flight into a shared memory, and each lane's commit groups."""

    def __init__(self, geometry: Geometry, space: BankedSpace) -> None:
        self.geometry = geometry
        self.space = space
        self.copies: list[Copy] = []
        self.committed = np.zeros(geometry.lanes, np.int64)
        """Number of groups that each lane has closed; its copies go into the group of this number."""
        words = len(space.data) // WORD_BYTES
        marks = np.zeros(words, np.uint8)
        self._marks = {width: marks.view(f"u{width // WORD_BYTES}") for width in (4, 8, 16)}
        self._marked_by = np.zeros(words, np.int32)

    def clear(self, lanes: Lanes | None = None) -> None:
        """Forgets the copies of lanes (None: all): new lanes, new memory."""
        if lanes is None:
            self.copies.clear()
            self.committed.fill(0)
            self._marks[WORD_BYTES].fill(0)
            return
        self.committed[lanes] = 0
        remaining = []
        for copy in self.copies:
            gone = np.isin(np.arange(len(copy.index)) if copy.lanes is None else copy.lanes, lanes)
            self._marks[copy.access.width][copy.index[gone]] = 0
            if not gone.all():
                remaining.append(copy.part(~gone))
        self.copies[:] = remaining

    # -- operations of lanes -----------------------------------------------------------------------------------------

    def issue(
        self, access: Access, lanes: Lanes | None, addresses: np.ndarray, index: np.ndarray, data: np.ndarray, origins: np.ndarray
    ) -> None:
        """Starts a copy of `data`, read at `origins`, to the units `index`. Raises InFlightWrite where another copy is in flight."""
        self.check(access, lanes, index)
        # Lanes of one instruction that share a destination: the last one leaves its number.
        numbers = np.arange(len(index), dtype=np.int32)
        self._marked_by[index] = numbers
        shared = self._marked_by[index] != numbers
        if shared.any():
            first = int(np.flatnonzero(shared)[0])
            self._fail(access, lanes, index == index[first], int(index[first]) * access.width, access.instruction, None)
        self._marks[access.width][index] = {4: 0x1, 8: 0x101, 16: 0x1010101}[access.width]
        groups = self.committed.copy() if lanes is None else self.committed[lanes]
        # The addresses may be a view of a register that changes.
        copy = Copy(access, lanes, addresses.copy(), index, data, groups, int(groups.min()), int(groups.max()))
        self.copies.append(copy)
        for observer in self.space.observers:
            observer.async_copy_issued(access, lanes, copy.addresses, origins)

    def commit(self, lanes: Lanes | None) -> None:
        """Closes the current group of these lanes, empty or not."""
        self.committed[... if lanes is None else lanes] += 1

    def wait(self, instruction: Instruction, lanes: Lanes | None, newest: int) -> None:
        """Lands the copies of these lanes, all but those in each lane's `newest` latest groups and in its open one."""
        if not self.copies:
            return
        if lanes is None:
            limits = self.committed - newest
            low = int(limits.min())
        else:
            limits = np.zeros(self.geometry.lanes, np.int64)
            limits[lanes] = self.committed[lanes] - newest
            low = 0
        self._land_below(instruction, limits, low)

    def land(self, instruction: Instruction, lanes: Lanes, limits: np.ndarray) -> None:
        """Lands the copies that these lanes have put into groups below a number each."""
        everywhere = np.zeros(self.geometry.lanes, np.int64)
        everywhere[lanes] = limits
        self._land_below(instruction, everywhere, 0)

    def _land_below(self, instruction: Instruction, limits: np.ndarray, low: int) -> None:
        """`limits`: one a lane; `low`: the least of them."""
        high = int(limits.max())
        remaining = []
        for copy in self.copies:
            if copy.oldest >= high:
                remaining.append(copy)
                continue
            if copy.newest < low:
                self._land(instruction, copy)
                continue
            ready = copy.groups < (limits if copy.lanes is None else limits[copy.lanes])
            if ready.all():
                self._land(instruction, copy)
            elif ready.any():
                self._land(instruction, copy.part(ready))
                remaining.append(copy.part(~ready))
            else:
                remaining.append(copy)
        self.copies[:] = remaining

    def _land(self, wait: Instruction, copy: Copy) -> None:
        width = copy.access.width
        self._marks[width][copy.index] = 0
        observers: Sequence[Observer] = self.space.observers
        for observer in observers:
            observer.async_group_landed(wait, copy.access, copy.lanes, copy.addresses)
            observer.accessed(self.space, copy.access, copy.lanes, copy.addresses)
        self.space.units[width][copy.index] = copy.data

    # -- operations that lanes must not do --------------------------------------------------------------------------------

    def check(self, access: Access, lanes: Lanes | None, index: np.ndarray) -> None:
        """Raises InFlightRead or InFlightWrite if an access meets a copy. `index`: units of min(width, 16) bytes."""
        if not self.copies:
            return
        unit = min(access.width, 16)
        for piece in range(access.width // unit):
            where = index + piece if piece else index
            marks = self._marks[unit][where] if unit >= WORD_BYTES else self._marks[WORD_BYTES][where * unit // WORD_BYTES]
            if marks.any():
                self._explain(access, lanes, np.asarray(where), unit, marks != 0)
                self._land_at(access.instruction, np.asarray(where), unit)

    def _land_at(self, instruction: Instruction, index: np.ndarray, unit: int) -> None:
        """Lands the copies to these units, as a GPU may have done by now."""
        met = np.zeros(len(self._marked_by), np.bool_)
        for word in range(max(unit // WORD_BYTES, 1)):
            met[index * unit // WORD_BYTES + word] = True
        remaining = []
        for copy in self.copies:
            words = copy.access.width // WORD_BYTES
            here = np.asarray(met[(copy.index * words)[:, None] + np.arange(words)].any(axis=1))
            if here.any():
                self._land(instruction, copy.part(here))
            if not here.all():
                remaining.append(copy.part(~here))
        self.copies[:] = remaining

    def _explain(self, access: Access, lanes: Lanes | None, index: np.ndarray, unit: int, bad: np.ndarray) -> None:
        """Finds the copy that the first offending lane met."""
        first = int(index[np.flatnonzero(bad)[0]])
        begin, end = first * unit // WORD_BYTES, -(-(first + 1) * unit // WORD_BYTES)
        for copy in self.copies:
            words = copy.access.width // WORD_BYTES
            met = (copy.index * words < end) & ((copy.index + 1) * words > begin)
            if met.any():
                who = self._who(copy.lanes, met)
                self._fail(access, lanes, bad, first * unit, copy.access.instruction, self.geometry.describe(who))
                return
        raise AssertionError("a mark without a copy")

    def _who(self, lanes: Lanes | None, chosen: np.ndarray) -> np.ndarray:
        positions = np.flatnonzero(chosen)
        return positions if lanes is None else lanes[positions]

    def _fail(
        self, access: Access, lanes: Lanes | None, bad: np.ndarray, offset: int, other: Instruction, other_threads: str | None
    ) -> None:
        """Raises the error, unless an observer notes it."""
        kind: type[EmulatorError] = InFlightRead if access.kind == "load" else InFlightWrite
        is_copy = access.instruction.opcode == "cp"
        what = "asynchronous copy" if is_copy else verb(access)
        if other_threads is None:
            rest = "which another lane of the same instruction copies to"
        else:
            rest = "where an asynchronous copy is still in flight: the lane that issued it has not waited for its group"
        error = kind(
            f"{what} of {access.width} bytes {'to' if is_copy else 'at'} {self.space.describe(offset % self.space.stride)}, {rest}",
            instruction=access.instruction,
            threads=self.geometry.describe(self._who(lanes, bad)),
            other=other,
            other_threads=other_threads,
        )
        if not any(observer.passes(error) for observer in self.space.observers):
            raise error
