"""Loads and stores whose checks and moves are one pass of native code, as long as nothing out of the ordinary happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from gemmgen.emulator import native
from gemmgen.emulator.geometry import Geometry, Lanes


class _Access(Protocol):
    @property
    def kind(self) -> str:
        """`load` or `store`."""

    @property
    def width(self) -> int:
        """Bytes of a lane."""

    @property
    def element_bytes(self) -> int:
        """Bytes of a register."""


class _Observer(Protocol):
    def look_ahead(self, addresses: np.ndarray) -> None:
        """Looks at pages before they are touched."""


class _Region(Protocol):
    @property
    def start(self) -> int:
        """The first byte's offset."""


class _Space(Protocol):
    """Memory, as `gemmgen.emulator.memory` has it."""

    geometry: Geometry
    loops: native.Loops | None
    generation: int
    data: np.ndarray

    @property
    def observers(self) -> Sequence[_Observer]:
        """Observers of its accesses."""

    @property
    def is_in_flight(self) -> bool:
        """True if accesses have to look at operations in flight."""

    def foresee(self, fused: FusedAccess, addresses: np.ndarray) -> None:
        """Expects an access where it is about to happen."""

    def is_planned_for(self, fused: FusedAccess) -> bool:
        """True if a plan is for the region where the access is expected."""

    def plan(self, fused: FusedAccess) -> bool:
        """Fills the plan; False if the access cannot be made natively."""


class _Shadow(Protocol):
    """Shadow memory, as `gemmgen.emulator.hazards.shadow` has it."""

    state: np.ndarray

    @property
    def has_pending(self) -> bool:
        """True if there are reads that are not noted yet."""

    @property
    def next_record(self) -> int:
        """The number of the next access."""

    def settle(self) -> None:
        """Notes the reads."""


class FusedAccess:
    """One load or store in one space. Its plan holds for a wave; observers add their checks to it."""

    def __init__(self, space: _Space, access: _Access, rows: Sequence[np.ndarray | None], is_signed: bool) -> None:
        """`rows`: the register of each element, as long as the lanes; None for an element that nobody reads. `is_signed`: loads extend by
        the sign."""
        self.space, self.access = space, access
        self.plan = native.AccessPlan()
        self.region: _Region | None = None
        """The region of global memory that the plan is for."""
        self._rows = [row for row in rows if row is not None]
        self._places = frozenset(row.ctypes.data for row in self._rows)
        self.plan.rows[: len(rows)] = [native.pointer(row) for row in rows]
        self.plan.element, self.plan.elements = access.element_bytes, len(rows)
        self.plan.mask = access.width - 1
        self.plan.register_bytes = self._rows[0].strides[0]
        self._is_signed = is_signed
        self._generation = -1
        self._is_possible = False
        self._shadow: _Shadow | None = None
        self._noted: Callable[[Lanes | None, np.ndarray, int, int], None] | None = None
        self._state: np.ndarray | None = None

    def __call__(self, lanes: Lanes | None, addresses: np.ndarray) -> bool:
        """Moves the data of these lanes (None: all); False if the access has to be made step by step."""
        space, plan, shadow = self.space, self.plan, self._shadow
        assert space.loops is not None
        if (
            self._generation != space.generation
            or not space.is_planned_for(self)
            or (shadow is not None and shadow.state is not self._state)
        ):
            self._prepare(addresses)
            shadow = self._shadow
        if not self._is_possible or space.is_in_flight or not native.fits(addresses, lanes):
            return False
        place = addresses.ctypes.data
        if plan.elements > 1 and place in self._places:
            addresses = addresses.copy()
            place = addresses.ctypes.data
        offsets = np.empty(len(addresses), np.int64)
        record = 0
        if shadow is not None:
            record = shadow.next_record << 32
            if shadow.has_pending:
                plan.kind |= native.HAS_PENDING
            else:
                plan.kind &= ~native.HAS_PENDING
        where = (place, addresses.itemsize == 8, len(addresses), native.pointer(lanes), record, offsets.ctypes.data)
        answer = space.loops.access_memory(plan, *where)
        if answer == native.UNSEEN:
            for observer in space.observers:
                observer.look_ahead(addresses)
            answer = space.loops.access_memory(plan, *where)
        if answer == native.SETTLE and shadow is not None:
            shadow.settle()
            plan.kind &= ~native.HAS_PENDING
            answer = space.loops.access_memory(plan, *where)
        if answer >= native.UNSEEN:
            return False
        if self._noted is not None:
            self._noted(lanes, offsets, plan.granules, answer)
        return True

    def _prepare(self, addresses: np.ndarray) -> None:
        space, plan = self.space, self.plan
        space.foresee(self, addresses)
        self._generation = space.generation
        self._shadow = self._noted = self._state = None
        plan.state = plan.looked = plan.touched = plan.base = None
        plan.kind = native.IS_STORE if self.access.kind == "store" else native.IS_SIGNED * self._is_signed
        plan.data = space.data.ctypes.data
        self._is_possible = space.plan(self)

    def look_at(self, shadow: _Shadow, noted: Callable[[Lanes | None, np.ndarray, int, int], None]) -> None:
        """Adds shadow memory to the plan; `noted(lanes, offsets, granules, answer)` is called after each access."""
        self._shadow, self._noted, self._state = shadow, noted, shadow.state

    def touch(self, flags: np.ndarray, start: int, unit: int) -> None:
        """Adds flags to the plan, one for each `unit` bytes from an offset on."""
        self.plan.touched, self.plan.touched_start = flags.ctypes.data, start
        self.plan.touched_shift = unit.bit_length() - 1
        self.plan.touched_units = max(self.access.width // unit, 1)


def fused(space: _Space, access: _Access, rows: Sequence[np.ndarray | None], is_signed: bool = False) -> FusedAccess | None:
    """The access in native code, if there is any, and if it is one of whole elements; loads into wider registers extend them."""
    known = [row for row in rows if row is not None]
    if space.loops is None or not known or len(rows) > native.MAX_ELEMENTS or access.width != len(rows) * access.element_bytes:
        return None
    sizes = {(row.itemsize, row.strides[0]) for row in known}
    size, stride = next(iter(sizes))
    fits = size == access.element_bytes if access.kind == "store" else size >= access.element_bytes and stride == size
    return FusedAccess(space, access, rows, is_signed) if len(sizes) == 1 and fits else None
