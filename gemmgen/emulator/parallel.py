"""The blocks of one launch on several processes, as long as they have nothing to do with each other.

A launch begins in one process. If it takes long, copies of that process (fork) share the waves that are left, on one global memory. Each
records the memory that its blocks read and write. As soon as one touches memory that another one writes, or finds an error, the copies'
work is discarded, and the first process continues alone from its last state. So results always have an order that a single process could
have taken."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmgen.emulator.errors import EmulatorError
from gemmgen.emulator.geometry import Lanes
from gemmgen.emulator.hazards.detector import FollowLoads
from gemmgen.emulator.hazards.report import HazardError
from gemmgen.emulator.hazards.sites import granules
from gemmgen.emulator.memory import GLOBAL_BASE, Access, Observer, Space
from gemmgen.emulator.printing import BUFFER_CHARACTERS, Output
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Special
from gemmgen.emulator.schedule import MinimumBlock
from gemmgen.emulator.waves import Waves, cancels_launches

if TYPE_CHECKING:
    from multiprocessing import connection

Progress = Callable[[int, int], None]
"""`progress(done, total)`: blocks that have run, and all blocks."""

ALONE_SECONDS = 0.5
"""Seconds that one process runs alone."""
_POLL_SECONDS = 0.2
_PARTS = 8
"""Parts of the work for each process, so that they end at about the same time."""
_MAX_JOBS = 64
_MAX_NOTES = 1 << 30
"""Bytes for all records of accesses."""
_TIMES = ("%clock", "%globaltimer", "%smid", "%warpid")
_PATTERNS = {1: 0x1, 2: 0x101, 4: 0x1010101, 8: 0x101010101010101}


def run_all(waves: Waves, jobs: int, progress: Progress | None) -> None:
    """Runs all blocks."""
    tell = progress or (lambda done, total: None)
    began = time.perf_counter()
    jobs = min(jobs, _MAX_JOBS)
    alone = jobs <= 1 or not _can_share(waves)

    def go_on(done: int) -> bool:
        tell(done, waves.total)
        return alone or time.perf_counter() - began < ALONE_SECONDS or waves.total - done <= waves.per_wave

    first = waves.run(0, waves.total, go_on)
    if first < waves.total:
        finished = _Team(waves, first, jobs).run(tell)
        if not finished:
            alone = True
            waves.run(first, waves.total, go_on)


def _can_share(waves: Waves) -> bool:
    """True if blocks may run in any order, as far as the program tells."""
    program = waves.program
    return (
        sys.platform == "linux"
        and not _is_daemon()
        and isinstance(waves.schedule, MinimumBlock)
        and not (program.polls or program.allocates or program.meets_grid or cancels_launches(program))
        and not _reads_time(program)
        and all(observer.of_worker() is not None for observer in waves.observers)
    )


def _is_daemon() -> bool:
    """True in a process that may have no children. Asks only where multiprocessing is there: importing it takes time."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.current_process().daemon


def _reads_time(program: Program) -> bool:
    return any(
        isinstance(operand, Special) and operand.name.startswith(_TIMES)
        for block in program.blocks
        for inst in block.body
        for operand in inst.operands
    )


def _shared_array(size: int) -> np.ndarray:
    """Bytes, all zero, that processes share."""
    return np.frombuffer(mmap.mmap(-1, max(size, 16)), np.uint8)[:size]


class _Touches(Observer):
    """Notes which granules of global memory are read and written."""

    def __init__(self, read: np.ndarray, written: np.ndarray, granule: int) -> None:
        self._shift = granule.bit_length() - 1
        self._granule = granule
        self._read, self._written = ({n: row.view(f"u{n}") for n in _PATTERNS} for row in (read, written))

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if space.name != "global":
            return
        total = max(1, access.width // self._granule)
        per = min(total, 8)
        offsets = addresses.astype(np.uint64, copy=False) - np.uint64(GLOBAL_BASE)
        index = (offsets >> np.uint64(self._shift + per.bit_length() - 1)).view(np.int64)
        for piece in range(total // per):
            place = index + piece if piece else index
            if access.kind != "store":
                self._read[per][place] = _PATTERNS[per]
            if access.kind != "load":
                self._written[per][place] = _PATTERNS[per]


@dataclass(slots=True)
class _Report:
    """Outcome of one process."""

    counts: Counter[str]
    steps: int
    starts: int
    output: list[tuple[int, Output]]
    """Text by the first block of the part that printed it."""
    findings: list[tuple[int, HazardError]]
    """Findings, by the first block of the part that they were first seen in."""
    observed: list[Any]


class _Team:
    """Processes that share the blocks from `first` on."""

    def __init__(self, waves: Waves, first: int, jobs: int) -> None:
        self.waves = waves
        data = waves.memory.data
        self.granule = min([granules(waves.program)["global"], *(placed.map.element_bytes for placed in waves.memory.maps)])
        count = -(-len(data) // (self.granule * 16)) * 16
        left = -(-(waves.total - first) // waves.per_wave)
        self.jobs = max(min(jobs, left, _MAX_NOTES // (2 * count)), 1)
        part = max(left // (self.jobs * _PARTS), 1) * waves.per_wave
        self.parts = [(start, min(start + part, waves.total)) for start in range(first, waves.total, part)]
        self.first = first
        self.rows = _shared_array(2 * self.jobs * count).reshape(self.jobs, 2, count)
        self.done = _shared_array(8 * self.jobs).view(np.int64)
        self.data = _shared_array(len(data))
        self.data[:] = data
        self.state: np.ndarray | None = None
        if waves.detector is not None:
            state = waves.detector.global_shadow.state
            self.state = _shared_array(len(state))
            self.state[:] = state

    def run(self, progress: Progress) -> bool:
        """Runs the blocks; False if they have to do with each other or something is wrong, and nothing has changed then."""
        from multiprocessing import get_context

        context = get_context("fork")
        read_end, write_end = os.pipe()
        os.write(write_end, b"".join(struct.pack("<qq", *part) for part in self.parts))
        os.close(write_end)
        processes, ends = [], []
        try:
            with warnings.catch_warnings():
                # Threads of the parent, if there are any, do not exist in the copies.
                warnings.simplefilter("ignore", DeprecationWarning)
                for number in range(self.jobs):
                    ours, theirs = context.Pipe(duplex=False)
                    process = context.Process(target=self._work, args=(number, read_end, theirs), daemon=True)
                    process.start()
                    theirs.close()
                    processes.append(process)
                    ends.append(ours)
            reports = self._wait(ends, progress)
        finally:
            os.close(read_end)
            for process in processes:
                if process.is_alive():
                    process.terminate()
                process.join()
            for end in ends:
                end.close()
        if reports is None or self._conflict() or self.waves.steps + sum(report.steps for report in reports) > self.waves.step_limit:
            return False
        self._take(reports)
        return True

    def _wait(self, ends: list[connection.Connection], progress: Progress) -> list[_Report] | None:
        """The reports of all; None as soon as one fails or two touch the same memory."""
        from multiprocessing import connection

        reports: list[_Report] = []
        waiting = list(ends)
        looked = time.perf_counter()
        pause = _POLL_SECONDS
        while waiting:
            for end in connection.wait(waiting, _POLL_SECONDS):
                assert isinstance(end, connection.Connection)
                try:
                    report = end.recv()
                except EOFError:
                    return None
                if report is None:
                    return None
                reports.append(report)
                waiting.remove(end)
            progress(self.first + int(self.done.sum()), self.waves.total)
            if time.perf_counter() - looked > pause:
                before = time.perf_counter()
                if self._conflict():
                    return None
                looked = time.perf_counter()
                pause = max(_POLL_SECONDS, 20 * (looked - before))
        return reports

    def _conflict(self) -> bool:
        """True if a process has touched memory that another one has written."""
        written, read = self.rows[:, 1], self.rows[:, 0]
        by_anyone, by_several = written[0].copy(), np.zeros(written.shape[1], np.uint8)
        for row in written[1:]:
            by_several |= by_anyone & row
            by_anyone |= row
        if by_several.any():
            return True
        return any(bool((by_anyone & ~mine & theirs).any()) for mine, theirs in zip(written, read, strict=True))

    # -- in a copy of the process ------------------------------------------------------------------------------

    def _work(self, number: int, parts: int, end: connection.Connection) -> None:
        """Runs parts until none are left, and reports; reports nothing if there is an error."""
        waves = self.waves
        waves.memory.data = self.data
        known = set()
        if waves.detector is not None:
            assert self.state is not None
            waves.detector.global_shadow.use_state(self.state)
            known = set(waves.detector.findings.all())
        copies = [observer.of_worker() for observer in waves.observers]
        touches = _Touches(self.rows[number, 0], self.rows[number, 1], self.granule)
        waves.observers = [touches, *(copy for copy in copies if copy is not None)]
        waves.counts, waves.steps, waves.starts = Counter(), 0, 0
        output: list[tuple[int, Output]] = []
        printed = 0
        findings: list[tuple[int, HazardError]] = []
        before = {id(hazard): hazard.count for hazard in known}
        try:
            while token := os.read(parts, 16):
                start, stop = struct.unpack("<qq", token)
                waves.output = Output()
                done = int(self.done[number])

                def count(block: int, done: int = done, start: int = start) -> bool:
                    self.done[number] = done + block - start
                    return True

                waves.run(start, stop, count)
                output.append((start, waves.output))
                printed += len(waves.output)
                while printed > BUFFER_CHARACTERS and len(output) > 1:
                    oldest = output.pop(0)[1]
                    printed -= len(oldest)
                    output[0][1].dropped += len(oldest) + oldest.dropped
                if waves.detector is not None:
                    if waves.detector.findings:
                        end.send(None)
                        return
                    seen = {id(hazard) for _, hazard in findings}
                    findings += [(start, hazard) for hazard in waves.detector.findings.all() if id(hazard) not in seen]
        except (EmulatorError, FollowLoads):
            end.send(None)
            return
        for _, hazard in findings:
            hazard.count -= before.get(id(hazard), 0)
        reports = [(start, hazard) for start, hazard in findings if hazard.count > 0]
        observed = [copy.observed() for copy in copies if copy is not None]
        end.send(_Report(waves.counts, waves.steps, waves.starts, output, reports, observed))

    # -- back in the first process -----------------------------------------------------------------------------

    def _take(self, reports: list[_Report]) -> None:
        waves = self.waves
        waves.memory.data = self.data
        for report in reports:
            waves.counts += report.counts
            waves.steps += report.steps
            waves.starts += report.starts
            for observer, observed in zip(waves.observers, report.observed, strict=True):
                observer.absorb(observed, waves.program)
        parts = sorted((part for report in reports for part in report.output), key=lambda part: part[0])
        waves.output.extend(text for _, text in parts)
        if waves.detector is not None:
            assert self.state is not None
            waves.detector.global_shadow.use_state(self.state)
            findings = sorted((item for report in reports for item in report.findings), key=lambda item: item[0])
            for _, hazard in findings:
                waves.detector.findings.add(hazard)
