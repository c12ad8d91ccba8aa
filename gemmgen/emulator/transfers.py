"""Transfers that engines make on their own, and the barriers that tell of them: the data that memory, engines and observers share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.ptx.syntax import Instruction

Kind = Literal["read", "write"]


@dataclass(eq=False, slots=True)
class AsyncAccess:
    """Shared memory that one asynchronous operation reads or writes: chunks of 16 bytes, counted over all blocks of the wave."""

    instruction: Instruction
    kind: Kind
    lanes: Lanes
    chunks: np.ndarray
    awaits: str
    """Completion that others have to wait for, in words."""
    stream: int = -1
    """Number of the engine's thread of control, for the order of events; -1 where nobody looks for hazards."""
    time: int = -1
    """Time of its end, in the order of events."""


@dataclass(eq=False, slots=True)
class Barrier:
    """One barrier. `pending` arrivals and `owed` bytes keep its phase from completing; bytes may come before they are expected."""

    offset: int
    """Absolute byte offset in the wave's shared memory."""
    expected: int
    pending: int
    instruction: Instruction
    lane: int
    """The threads that initialised it."""
    owed: int = 0
    phase: int = 0
    waiters: list[Lanes] = field(default_factory=list)
