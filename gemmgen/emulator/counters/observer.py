"""Counts while a launch runs: an observer that is given every access, every basic block and every barrier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.counters.classes import instruction_class, space_of
from gemmgen.emulator.counters.costs import (
    SECTOR_BYTES,
    GlobalCosts,
    SharedCosts,
    copied_sectors,
    copy_costs,
    costs_of_pieces,
    global_costs,
    rows_of_warps,
    shared_costs,
)
from gemmgen.emulator.counters.report import (
    Counters,
    GlobalTraffic,
    LineCounters,
    SharedTraffic,
    SiteCounters,
    Tally,
    TensorWork,
    sum_tallies,
)
from gemmgen.emulator.errors import SourceText
from gemmgen.emulator.geometry import WARP, Geometry, Lanes
from gemmgen.emulator.memory import Access, Observer, Space, Spaces
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.hardware.shared_memory import BANK_BYTES, BANKS

_REMEMBERED_COSTS = 4096


@dataclass(slots=True)
class _Site:
    """Running totals of one instruction in one memory space."""

    instruction: Instruction
    kind: str
    requests: int = 0
    units: int = 0
    conflicts: int = 0
    ideal: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Block:
    block: BasicBlock
    warps: int = 0


class CounterObserver(Observer):
    """Counts the costs of all launches that it observes; ``counters`` returns the result.

    The unit is the warp: an instruction that some lanes of a warp execute counts once, and again if the others come to it
    later. Instructions count also if their guard holds for no lane, as on a GPU; requests need an active lane.
    """

    def __init__(self) -> None:
        self._shared: dict[int, _Site] = {}
        self._global: dict[int, _Site] = {}
        self._blocks: dict[int, _Block] = {}
        self._products: dict[int, tuple[Instruction, TensorWork]] = {}
        self._barriers = 0
        self._warps = 0
        self._blocks_in_wave = 0
        self._block_of_lane = np.zeros(0, np.int64)
        self._known_costs: dict[tuple[int, bool, bytes], tuple[int, int, int]] = {}
        self._copy_reads: list[tuple[Lanes | None, np.ndarray, int]] = []
        """Lanes, addresses and width of the reads of the copy being issued."""

    def restarted(self) -> None:
        vars(self).update(vars(CounterObserver()))

    def of_worker(self) -> CounterObserver:
        return CounterObserver()

    def observed(self) -> Any:
        totals = [
            {key: (site.kind, site.requests, site.units, site.conflicts, site.ideal, site.bytes) for key, site in sites.items()}
            for sites in (self._shared, self._global)
        ]
        blocks = {key: tally.warps for key, tally in self._blocks.items()}
        return totals, blocks, {key: work for key, (_, work) in self._products.items()}, self._barriers

    def absorb(self, observed: Any, program: Program) -> None:
        # Copies of a process know things by the same addresses.
        instructions = {id(inst): inst for block in program.blocks for inst in (*block.body, block.terminator) if inst is not None}
        totals, blocks, products, barriers = observed
        for sites, counted in zip((self._shared, self._global), totals, strict=True):
            for key, (kind, *numbers) in counted.items():
                site = sites.setdefault(key, _Site(instructions[key], kind))
                for name, number in zip(("requests", "units", "conflicts", "ideal", "bytes"), numbers, strict=True):
                    setattr(site, name, getattr(site, name) + number)
        for block in program.blocks:
            if id(block) in blocks:
                self._blocks.setdefault(id(block), _Block(block)).warps += blocks[id(block)]
        for key, work in products.items():
            self._products[key] = instructions[key], self._products.get(key, (None, TensorWork()))[1] + work
        self._barriers += barriers

    # -- called by the emulator -------------------------------------------------------------------------------

    def wave_started(self, geometry: Geometry, spaces: Spaces) -> None:
        self._warps = geometry.lanes // WARP
        self._blocks_in_wave = geometry.blocks
        self._block_of_lane = geometry.block_of_lane

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if access.describes:
            return  # tensor maps are read by TMA, past the counters of memory
        if access.instruction.opcode == "cp" and access.instruction.has("bulk"):
            if space.name == "global":
                self._count_bulk(access, addresses)
        elif access.instruction.opcode == "cp":
            if space.name == "global":
                self._copy_reads.append((lanes, addresses, access.width))
        elif space.name == "shared":
            self._count_shared(access, rows_of_warps(lanes, addresses))
        elif space.name == "global" and space_of(access.instruction) not in ("param", "const"):
            self._count_global(access, global_costs(rows_of_warps(lanes, addresses), access.width))

    def async_copy_issued(self, access: Access, lanes: Lanes | None, addresses: np.ndarray, origins: np.ndarray) -> None:
        # A copy counts when it is issued, as one request; when its parts land depends on the waits.
        taken = np.zeros(self._warps * WARP, np.int64)
        for who, _, width in self._copy_reads:
            taken[... if who is None else who] += width
        filled = rows_of_warps(lanes, taken if lanes is None else taken[lanes]) == 0
        self._count_copy(access, rows_of_warps(lanes, origins), rows_of_warps(lanes, addresses), filled)
        if self._copy_reads:
            costs = costs_of_pieces(self._copy_reads, self._warps)
            if access.instruction.has("cg"):
                sectors = copied_sectors(np.where(filled, -1, rows_of_warps(lanes, origins)))
                costs = costs._replace(sectors=sectors[sectors > 0])
            self._count_global(access, costs)
            self._copy_reads = []

    def product_issued(self, instruction: Instruction, groups: np.ndarray, shared_bytes: int) -> None:
        known = self._products.get(id(instruction), (instruction, TensorWork()))[1]
        self._products[id(instruction)] = instruction, known + TensorWork(len(groups), len(groups) * shared_bytes)

    def block_started(self, block: BasicBlock, lanes: Lanes | None) -> None:
        tally = self._blocks.get(id(block))
        if tally is None:
            tally = self._blocks[id(block)] = _Block(block)
        tally.warps += self._warps if lanes is None else _count_runs(lanes // WARP)

    def block_barrier(self, instruction: Instruction, lanes: Lanes | None) -> None:
        self._barriers += self._blocks_in_wave if lanes is None else _count_runs(self._block_of_lane[lanes])

    # -- counting ----------------------------------------------------------------------------------------------

    def _count_shared(self, access: Access, offsets: np.ndarray) -> None:
        site = _site(self._shared, access)
        site.requests += len(offsets)
        if site.kind == "atomic":
            return
        pairs = site.kind.endswith("load")
        self._add_costs(site, (access.width, pairs, offsets.tobytes()), lambda: shared_costs(offsets, access.width, pairs=pairs))

    def _count_bulk(self, access: Access, addresses: np.ndarray) -> None:
        """One copy of one lane, which TMA makes."""
        site = _site(self._global, access, f"bulk {access.kind}")
        touched = len(np.unique(addresses)) * access.width
        site.requests += 1
        site.units += len(np.unique(addresses // np.uint64(SECTOR_BYTES)))
        site.ideal += -(-touched // SECTOR_BYTES)
        site.bytes += touched

    def _count_copy(self, access: Access, sources: np.ndarray, destinations: np.ndarray, filled: np.ndarray) -> None:
        site = _site(self._shared, access)
        site.requests += len(destinations)
        bypass = access.instruction.has("cg")
        # Only banks matter, and lines that differ: patterns that repeat elsewhere are known.
        line = BANKS * BANK_BYTES
        start = np.where(sources < 0, np.iinfo(np.int64).max, sources).min(axis=1, keepdims=True) // line * line if bypass else line
        sources = np.where(sources < 0, -1, sources - start if bypass else sources % line)
        key = (access.width, bypass, access.copy_form.encode() + sources.tobytes() + destinations.tobytes() + filled.tobytes())
        self._add_costs(site, key, lambda: copy_costs(sources, destinations, filled, access.width, access.copy_form, bypass))

    def _add_costs(self, site: _Site, key: tuple[int, bool, bytes], compute: Callable[[], SharedCosts]) -> None:
        known = self._known_costs.get(key)
        if known is None:
            costs = compute()
            known = (int(costs.wavefronts.sum()), int(costs.conflicts.sum()), int(costs.ideal.sum()))
            if len(self._known_costs) >= _REMEMBERED_COSTS:
                self._known_costs.clear()
            self._known_costs[key] = known
        site.units += known[0]
        site.conflicts += known[1]
        site.ideal += known[2]

    def _count_global(self, access: Access, costs: GlobalCosts) -> None:
        site = _site(self._global, access)
        site.requests += len(costs.sectors)
        site.units += int(costs.sectors.sum())
        site.ideal += int(costs.ideal.sum())
        site.bytes += int(costs.bytes.sum())

    # -- the result --------------------------------------------------------------------------------------------

    def counters(self, source: str | SourceText = "") -> Counters:
        """Counts so far. ``source`` is the CUDA text, or a function from a file's name to it, quoted line by line."""
        files: dict[str, list[str]] = {}

        def quoted(file: str, line: int) -> str:
            if file not in files:
                files[file] = ((source(file) if callable(source) else source) or "").splitlines()
            return files[file][line - 1].strip() if 0 < line <= len(files[file]) else ""

        sites = sorted(self._sites(), key=lambda site: (site.file, site.line, site.ptx_line))
        by_line: dict[tuple[str, int], list[Tally]] = defaultdict(list)
        for site in sites:
            by_line[site.file, site.line].append(site.tally)
        for place, instructions in self._instructions_by_line().items():
            by_line[place].append(Tally(instructions=instructions))
        lines = tuple(
            LineCounters(file, line, quoted(file, line), sum_tallies(tallies)) for (file, line), tallies in sorted(by_line.items())
        )
        return Counters(sum_tallies(line.tally for line in lines), lines, tuple(sites), self._barriers)

    def _sites(self) -> list[SiteCounters]:
        sites = []
        for site in self._shared.values():
            shared = SharedTraffic(site.requests, site.units, site.conflicts, site.ideal)
            sites.append(_site_counters(site.instruction, Tally(shared_memory={site.kind: shared})))
        for site in self._global.values():
            traffic = GlobalTraffic(site.requests, site.units, site.ideal, site.bytes)
            sites.append(_site_counters(site.instruction, Tally(global_memory={site.kind: traffic})))
        for inst, work in self._products.values():
            sites.append(_site_counters(inst, Tally(tensor={inst.opcode: work})))
        return sites

    def _instructions_by_line(self) -> dict[tuple[str, int], dict[str, int]]:
        by_line: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for tally in self._blocks.values():
            terminator = tally.block.terminator
            for inst in (*tally.block.body, *([terminator] if terminator is not None else [])):
                by_line[_place(inst)][instruction_class(inst)] += tally.warps
        return {place: dict(counts) for place, counts in by_line.items()}


def _site(sites: dict[int, _Site], access: Access, name: str | None = None) -> _Site:
    # Instructions are known by identity: equal ones at different places of an expanded call are different sites.
    site = sites.get(id(access.instruction))
    if site is None:
        opcode = access.instruction.opcode
        kind = name or {"cp": "cp.async", "ldmatrix": "ldmatrix", "stmatrix": "stmatrix"}.get(opcode, access.kind)
        if access.instruction.has("shared::cluster") and kind in ("load", "store"):
            kind = f"cluster {kind}"
        site = sites[id(access.instruction)] = _Site(access.instruction, kind)
    return site


def _site_counters(instruction: Instruction, tally: Tally) -> SiteCounters:
    file, line = _place(instruction)
    return SiteCounters(instruction.line, instruction.text, file, line, tally)


def _place(inst: Instruction) -> tuple[str, int]:
    if inst.location is None:
        return "", 0
    own = inst.location.own()
    return own.file, own.line


def _count_runs(values: np.ndarray) -> int:
    """Number of different values in an ascending array."""
    return int(np.count_nonzero(values[1:] != values[:-1])) + 1 if len(values) else 0
