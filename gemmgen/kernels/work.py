"""What a launch makes a device do, in the few numbers that a model of its time needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """One kernel on one problem. Blocks are alike: each walks through ``steps``, loading, computing, then stores its result."""

    blocks: int
    threads: int
    """Of a block."""
    registers: int
    """Of a thread, an estimate."""
    shared_bytes: int
    """Of a block."""
    steps: float
    """Of a block, one after the other."""
    operations: float
    """Of a block in one step, those on padding included."""
    unit: str
    """Which peak of the device they run at, as in ``Cost``."""
    issue: float
    """Instructions issued for each one that counts as an operation: at least 1."""
    shared_clocks: float
    """Clock cycles in which a block's accesses keep the shared memory busy in one step."""
    loaded_bytes: float
    """Bytes that a block loads from L2 or memory in one step."""
    in_flight: float
    """Steps whose loads are on their way at the same time."""
    stored_bytes: float
    """Bytes that a block stores at the end, and reads for that."""
    memory_bytes: float
    """Bytes that have to cross the memory bus, of the whole launch: each array once."""
    turns: int = 1
    """Blocks that take turns at one result, one after the other."""
    follows: bool = False
    """Whether the kernel works on what the one before it left, which is still in the L2."""
    early: bool = False
    """Whether it is launched while the one before it still runs."""
