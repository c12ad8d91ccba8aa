"""Launches that may begin before the one in front of them has ended (programmatic dependent launch).

CUDA programming guide, "Programmatic Dependent Launch and Synchronization": until a thread has executed griddepcontrol.wait, nothing
that the launch before has written need be there, and what it reads must not be overwritten. The launch before is a stream here,
like an engine: it has touched its memory at the beginning of time, and who has waited knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gemmgen.emulator.hazards.shadow import READ, STRONG_READ, STRONG_WRITE, WRITTEN
from gemmgen.emulator.hazards.sites import site_of
from gemmgen.emulator.memory import Access
from gemmgen.emulator.ptx.syntax import Instruction

if TYPE_CHECKING:
    from gemmgen.emulator.hazards.detector import HazardDetector


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """Effects of a launch on one run of the host's memory, one flag for each granule."""

    start: int
    granule: int
    written: np.ndarray
    read: np.ndarray
    writer: Instruction | None
    reader: Instruction | None
    """One of those that wrote, and of those that read."""


def footprints(detector: HazardDetector) -> Iterator[Footprint]:
    """Effects of a launch that has ended on the arrays that it was given."""
    shadow, sites = detector.global_shadow, detector.records.sites
    shadow.settle()
    for start, base, size in detector.memory.extents():
        if base % shadow.granule:
            continue
        part = slice(base // shadow.granule, -(-(base + size) // shadow.granule))
        state = shadow.state[part]
        written, read = (state & (WRITTEN | STRONG_WRITE)) != 0, (state & (READ | STRONG_READ)) != 0
        some_written, some_read = (np.flatnonzero(flags)[:1] + part.start for flags in (state & WRITTEN, state & READ))
        found = [
            sites[int(packed[0]) >> 32] if len(packed) else None
            for packed in (shadow.writers_of(some_written), shadow.readers_of(some_read))
        ]
        writer, reader = (None if site is None else site.instruction for site in found)
        yield Footprint(start, shadow.granule, written, read, writer, reader)


def overlap(detector: HazardDetector, earlier: Sequence[Footprint]) -> None:
    """Makes what an earlier launch did part of what a launch's threads have to be ordered with."""
    shadow = detector.global_shadow
    detector.proxies.follows = True
    extents = list(detector.memory.extents())
    for footprint in earlier:
        reads = footprint.read & ~footprint.written
        for kind, flags, inst in (("store", footprint.written, footprint.writer), ("load", reads, footprint.reader)):
            if inst is None:
                continue
            site = site_of(Access(inst, kind, shadow.granule, shadow.granule))
            for start, base, size in extents:
                granules = _granules_of(flags, footprint, shadow.granule, start, base, size)
                if len(granules):
                    shadow.note(site, granules, detector.order.first_stream)


def _granules_of(flags: np.ndarray, footprint: Footprint, granule: int, start: int, base: int, size: int) -> np.ndarray:
    """The shadow's granules, ascending, of what is flagged within `size` bytes at `start`, which begin at `base` of the space."""
    step = footprint.granule
    first = max(0, -((footprint.start - start) // step))
    last = max(first, -((footprint.start - start - size) // step))
    found: np.ndarray = np.flatnonzero(flags[first:last])
    offset = (first * step + footprint.start) - start + base
    if step == granule and offset % granule == 0:
        found += offset // granule
        return found
    granules: np.ndarray = ((found[:, None] * step + offset + np.arange(0, step, granule)) // granule).ravel()
    distinct: np.ndarray = granules[np.append(True, granules[1:] != granules[:-1])[: len(granules)]]
    return distinct
