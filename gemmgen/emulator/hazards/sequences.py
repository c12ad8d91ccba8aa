"""Launches that may begin before the one in front of them has ended (programmatic dependent launch).

CUDA programming guide, "Programmatic Dependent Launch and Synchronization": until a thread has executed griddepcontrol.wait, writes of the
previous launch may not be visible, and memory that it reads must not be overwritten. The launch before is a stream here, like an engine: it
has touched its memory at time zero, and threads that have waited are ordered after it.

Behind a chain of such launches more than one may still run. A launch whose threads have waited ends behind the one before it; the one
behind it begins behind that, too, if in some block every launch_dependents follows a wait, for all blocks have to be that far, or to have
ended, before it begins. The end of a launch that has not waited says nothing about the one before it: a wait is for the prerequisite
grids, the ones right before (PTX ISA, "griddepcontrol"). Such launches are a second stream, which no wait orders. A launch that does not
begin early finds everything finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gemmgen.emulator.errors import SourceText
from gemmgen.emulator.hazards.proxies import EARLIER
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
    writer_source: str | SourceText | None = None
    reader_source: str | SourceText | None = None
    """The CUDA text that each of them comes from."""


def footprints(detector: HazardDetector, source: str | SourceText | None) -> Iterator[Footprint]:
    """Effects of a launch that has ended on the arrays that it was given. `source` is its CUDA text."""
    shadow, sites = detector.global_shadow, detector.records.sites
    shadow.settle()
    for start, base, size in detector.memory.extents():
        if base % shadow.granule:
            continue
        part = slice(base // shadow.granule, -(-(base + size) // shadow.granule))
        foreign = len(EARLIER) if detector.proxies.follows else 0
        accesses = {kind: shadow.own_access(kind, part, foreign) for kind in (WRITTEN, STRONG_WRITE, READ, STRONG_READ)}
        flags, instructions = [], []
        for kinds in ((WRITTEN, STRONG_WRITE), (READ, STRONG_READ)):
            flags.append((accesses[kinds[0]] != 0) | (accesses[kinds[1]] != 0))
            one = next((int(packed[packed != 0][0]) for packed in (accesses[kind] for kind in kinds) if packed.any()), None)
            site = None if one is None else sites[one >> 32]
            instructions.append(None if site is None else site.instruction)
        (written, read), (writer, reader) = flags, instructions
        texts = (detector.sources.get(id(inst), source) for inst in (writer, reader))
        yield Footprint(start, shadow.granule, written, read, writer, reader, *texts)


def in_flight_behind(
    detector: HazardDetector, own: tuple[Footprint, ...], before: Sequence[Footprint], unfinished: Sequence[Footprint]
) -> tuple[tuple[Footprint, ...], tuple[Footprint, ...]]:
    """Effects that a launch leaves to the one behind it: those that are there once that one has waited, and those of which no wait tells.
    `before` and `unfinished` are its own predecessors."""
    proxies = detector.proxies
    if not proxies.waited:
        return own, (*unfinished, *before)
    if proxies.waited - proxies.triggered:
        return own, tuple(unfinished)
    return (*own, *before), tuple(unfinished)


def overlap(detector: HazardDetector, before: Sequence[Footprint], unfinished: Sequence[Footprint]) -> None:
    """Adds the accesses of earlier launches with which a launch's threads must be ordered: those of the previous launch, and of launches
    that it did not wait for."""
    detector.proxies.follows = True
    _mark(detector, before, detector.order.first_stream)
    # Last, since they are also among the addresses that the launch before touched.
    _mark(detector, unfinished, detector.order.first_stream + 1)


def _mark(detector: HazardDetector, earlier: Sequence[Footprint], stream: int) -> None:
    shadow = detector.global_shadow
    extents = list(detector.memory.extents())
    for footprint in earlier:
        reads = footprint.read & ~footprint.written
        for kind, flags, inst, text in (
            ("store", footprint.written, footprint.writer, footprint.writer_source),
            ("load", reads, footprint.reader, footprint.reader_source),
        ):
            if inst is None:
                continue
            detector.sources[id(inst)] = text
            site = site_of(Access(inst, kind, shadow.granule, shadow.granule))
            for start, base, size in extents:
                granules = _granules_of(flags, footprint, shadow.granule, start, base, size)
                if len(granules):
                    shadow.note(site, granules, stream)


def _granules_of(flags: np.ndarray, footprint: Footprint, granule: int, start: int, base: int, size: int) -> np.ndarray:
    """The shadow's granules, ascending, of the flags within `size` bytes at `start`, which begin at `base` of the space."""
    step = footprint.granule
    first = max(0, -((footprint.start - start) // step))
    last = max(first, -((footprint.start - start - size) // step))
    indices: np.ndarray = np.flatnonzero(flags[first:last])
    offset = (first * step + footprint.start) - start + base
    if step == granule and offset % granule == 0:
        indices += offset // granule
        return indices
    granules: np.ndarray = ((indices[:, None] * step + offset + np.arange(0, step, granule)) // granule).ravel()
    distinct: np.ndarray = granules[np.append(True, granules[1:] != granules[:-1])[: len(granules)]]
    return distinct
