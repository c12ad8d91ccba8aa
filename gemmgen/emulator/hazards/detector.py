"""Watches one launch for hazards: reads of unwritten memory and races."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gemmgen.emulator import native
from gemmgen.emulator.errors import EmulatorError, SourceText
from gemmgen.emulator.fused_access import FusedAccess
from gemmgen.emulator.geometry import WARP, Geometry, Lanes
from gemmgen.emulator.hazards.compare_and_swap_guesses import guesses
from gemmgen.emulator.hazards.destinations import destinations
from gemmgen.emulator.hazards.order import Order
from gemmgen.emulator.hazards.polling import polling
from gemmgen.emulator.hazards.proxies import ProxyRules
from gemmgen.emulator.hazards.report import (
    SURVIVED,
    EarlyWarpgroupFence,
    Findings,
    GlobalRace,
    HazardError,
    InactiveShuffle,
    LockstepRace,
    MissedBarrier,
    MissingWarpgroupFence,
    PartialRegisterCount,
    ReloadedOperand,
    SameValue,
    ScopeRace,
    SharedRace,
    StaleRead,
    StrayAccess,
    UndefinedRegister,
    UnfencedTicket,
    UnfinishedLaunch,
    UnfinishedStore,
    UnorderedLaunch,
    UnwrittenRead,
    VolatileRace,
    global_place,
    shared_place,
)
from gemmgen.emulator.hazards.shadow import GUARD, UNWRITTEN, WATCHED, Records, Shadow
from gemmgen.emulator.hazards.sites import Site, granules, has_parts_of_blocks, site_of
from gemmgen.emulator.hazards.tensor_memory import TensorRules
from gemmgen.emulator.hazards.undefined import UndefinedRegisters, tainted_by
from gemmgen.emulator.instructions.warp import from_inactive_lanes, member_mask_operand, value_at
from gemmgen.emulator.lane_state import EXITED
from gemmgen.emulator.memory import GLOBAL_BASE, Access, BankedSpace, Observer, Region, Space, Spaces, verb
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Register, Vector, registers_of

if TYPE_CHECKING:
    from gemmgen.emulator.buffers import LaunchMemory
    from gemmgen.emulator.machine import Machine
    from gemmgen.emulator.program import Program


class FollowLoads(Exception):
    """A load of unwritten memory: the launch is to be repeated with a detector that follows the values of loads."""


@dataclass(slots=True)
class _UnwrittenLoad:
    """A load of memory that nothing has written, the registers that its value can reach, and the lanes that executed it."""

    site: Site
    place: str
    results: frozenset[str]
    lanes: np.ndarray


class HazardDetector(Observer):
    """Sees every access and every synchronization of a launch; raises or collects the errors (`findings`)."""

    def __init__(
        self,
        program: Program,
        memory: LaunchMemory,
        strict: bool = False,
        remember_all: bool = False,
        follows_loads: bool | None = None,
        refills: bool | None = None,
    ) -> None:
        """`remember_all`: reads of memory that this launch does not write matter to the next one. `follows_loads`: a load of unwritten
        memory is an error where its value is used; False raises FollowLoads at the first such load, None takes each for an error.
        `refills`: memory that threads have read must be fenced before an engine overwrites it; None: by strict rules."""
        self.follows_refills = strict if refills is None else refills
        self.program = program
        self.memory = memory
        self.findings = Findings(strict)
        self.follows_loads = follows_loads
        self._valueless = False
        """True once a register without a value was stored to shared memory."""
        self._loaded: list[_UnwrittenLoad] = []
        """Loads of unwritten memory whose values nothing has used yet."""
        self.order = Order(has_parts_of_blocks(program))
        self.records = Records()
        self.granules = dict(granules(program))
        self._sites: dict[int, Site] = {}
        self._shuffles: dict[int, Callable[[Lanes], np.ndarray]] = {}
        unwritten = list(memory.unwritten())
        self.granules["global"] = min(self.granules["global"], *(_alignment(start, flags) for start, flags in unwritten), 16)
        # A box may begin at any element.
        self.granules["global"] = min(self.granules["global"], *(placed.map.element_bytes for placed in memory.maps), 16)
        self._global = Shadow(len(memory.data), self.granules["global"], self.order, self.records, self._global_race)
        self._global.unwritten = self._unwritten_global
        self._global.repeated = self._global_repeated
        self._global.unfenced = self._global_unfenced
        self._global.stale = self._stale
        self._global.content = lambda: memory.data
        written = None if remember_all else destinations(program)
        self._watch(memory.regions if written is None else memory.regions_behind(written))
        for start, flags in unwritten:
            self._mark_unwritten(start, flags)
        self._shared: Shadow | None = None
        self._local: Shadow | None = None
        self.sources: dict[int, str | SourceText | None] = {}
        """The CUDA text of instructions of earlier launches, by their identity."""
        self.proxies = ProxyRules(self)
        """Watches engines; a separate observer, called after this one."""
        self.tensor_memory = TensorRules(self.proxies)
        """Watches tensor memory."""

    @property
    def shared_shadow(self) -> Shadow | None:
        """Events of shared memory."""
        return self._shared

    @property
    def global_shadow(self) -> Shadow:
        """Events of global memory."""
        return self._global

    def _watch(self, regions: Sequence[Region]) -> None:
        """Reads of these regions are remembered, since the launch may write them."""
        for region in regions:
            if region.writable:
                self._global.state[self._granules_of("global", region.start, region.stop)] |= WATCHED

    def _granules_of(self, space: str, start: int, stop: int) -> slice:
        granule = self.granules[space]
        return slice(start // granule, -(-stop // granule))

    def _mark_unwritten(self, start: int, unwritten: np.ndarray) -> None:
        """`unwritten`: one flag a byte from `start` on."""
        granule = self.granules["global"]
        first = start // granule
        flags = np.zeros((-(-(start + len(unwritten)) // granule) - first) * granule, np.bool_)
        flags[start - first * granule :][: len(unwritten)] = unwritten
        self._global.state[first : first + len(flags) // granule] |= flags[::granule].view(np.uint8) * np.uint8(UNWRITTEN)

    # -- the course of a launch --------------------------------------------------------------------------------

    def attach(self, machine: Machine) -> None:
        """The machine that runs the next wave."""
        self.machine = machine
        if isinstance(machine.tracker, UndefinedRegisters):
            machine.tracker.report = self._undefined

        # Another machine has other registers.
        self._shuffles.clear()

    def of_worker(self) -> HazardDetector:
        # It is a copy already, like all of its process.
        return self

    def wave_started(self, geometry: Geometry, spaces: Spaces) -> None:
        self._global.settle()
        self._loaded.clear()
        self.geometry = geometry
        self.order.start_wave(geometry)
        loops = self._global.loops = native.loops_for(geometry.lanes)
        self._shared = self._banked(self._shared, spaces.shared, private=False)
        self._local = self._banked(self._local, spaces.local, private=True)
        self._shared.loops = self._local.loops = loops
        self._stride = spaces.shared.stride
        self._base = {
            "shared": geometry.block_of_lane * spaces.shared.stride,
            "local": np.arange(geometry.lanes) * spaces.local.stride,
        }

    def blocks_replaced(self, places: np.ndarray) -> None:
        assert self._shared is not None and self._local is not None
        # Records of the former blocks name lanes, so they must be settled before these lanes become other threads.
        self._global.settle()
        local_stride = self.geometry.stride * self.machine.spaces.local.stride
        for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            first, stop = int(run[0]), int(run[-1]) + 1
            part = self._granules_of("shared", first * self._stride, stop * self._stride)
            self._shared.forget(part)
            self._shared.state[part] = (self._shared.state[part] & GUARD) | (UNWRITTEN | WATCHED)
            self._local.state[self._granules_of("local", first * local_stride, stop * local_stride)] = UNWRITTEN
        replaced = np.zeros(self.geometry.blocks, np.bool_)
        replaced[places] = True
        self.order.blocks_replaced(places, lambda place: place < 0 and bool(replaced[(-1 - place) // self._stride]))

    def _banked(self, old: Shadow | None, space: BankedSpace, private: bool) -> Shadow:
        size = len(space.data)
        if old is None or old.count * old.granule != size:
            scoped = not private and self.geometry.cluster_size > 1
            old = Shadow(size, self.granules[space.name], self.order, self.records, self._shared_race, private, not private, scoped)
            old.unwritten = self._unwritten_local if private else self._unwritten_shared
            old.content = lambda: space.data
            if not private:
                old.repeated = self._shared_repeated
        old.forget()
        old.state.fill(UNWRITTEN if private else UNWRITTEN | WATCHED)
        if not private and (self.program.shared_gaps or space.padding):
            old.outside = self._between_variables
            by_block = old.state[: old.count].reshape(-1, space.stride // old.granule)
            for start, stop in (*self.program.shared_gaps, (space.size, space.stride)):
                by_block[:, -(-start // old.granule) : stop // old.granule] |= GUARD
        return old

    def written(self, start: int, stop: int) -> np.ndarray:
        """For each byte of global memory in between, whether something has written it, in this launch or before."""
        part = self._granules_of("global", start, stop)
        granule = self._global.granule
        flags: np.ndarray = ((self._global.state[part] & UNWRITTEN) == 0).repeat(granule)
        return flags[start - part.start * granule :][: stop - start]

    def passes(self, error: EmulatorError, count: int = 1, place: str = "") -> bool:
        if type(error) not in SURVIVED:
            return False
        details = {"instruction": error.instruction, "threads": error.threads, "other": error.other, "other_threads": error.other_threads}
        self.findings.add(SURVIVED[type(error)](error.message, count, place, **details))
        return True

    # -- accesses ----------------------------------------------------------------------------------------------

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if self.findings.are_enough:
            return
        site = self._sites.get(id(access)) or self._site(access)
        if space.name == "global":
            offsets = (addresses.astype(np.uint64, copy=False) - np.uint64(GLOBAL_BASE)).view(np.int64)
            self._global.access(site, lanes, offsets)
        else:
            offsets = self._offsets(space, lanes, addresses)
            shadow = self._shared if space.name == "shared" else self._local
            assert shadow is not None
            shadow.access(site, lanes, offsets)
            if self.follows_loads and access.kind == "store":
                self._store_without_value(site, shadow, lanes, offsets)
        if site.strong and space.name != "local":
            places = offsets if space.name == "global" else -1 - offsets
            self.order.strong_access(
                np.arange(len(places)) if lanes is None else lanes,
                places,
                site.reads and site.observes,
                site.writes,
                site.reads and site.writes,
                site.acquires,
                site.releases,
                site.device,
            )

    def plan(self, space: Space, fused: FusedAccess) -> bool:
        access = fused.access
        assert isinstance(access, Access)
        site = self._sites.get(id(access)) or self._site(access)
        shadow = {"global": self._global, "shared": self._shared, "local": self._local}[space.name]
        followed = self.follows_loads and access.kind == "store" and space.name != "global"
        if self.findings.are_enough:
            return not followed
        return shadow is not None and not followed and shadow.plan(site, fused)

    def _site(self, access: Access) -> Site:
        # The site holds on to the access, so that its id stays its own.
        inst = access.instruction
        site = self._sites[id(access)] = site_of(access, polling(self.program).waits_with(inst), inst in guesses(self.program))
        return site

    def _offsets(self, space: Space, lanes: Lanes | None, addresses: np.ndarray) -> np.ndarray:
        if isinstance(space, BankedSpace) and space.name == "shared":
            return space.offsets(lanes, addresses)
        base = self._base[space.name]
        offsets: np.ndarray = (base if lanes is None else base[lanes]) + addresses.astype(np.int64)
        return offsets

    def async_copy_issued(self, access: Access, lanes: Lanes | None, addresses: np.ndarray, origins: np.ndarray) -> None:
        """From here on the destination is written; other accesses to it are races."""
        assert self._shared is not None
        site = self._sites.get(id(access)) or self._site(access)
        self._shared.access(site, lanes, self._offsets(self.machine.spaces.shared, lanes, addresses), writes=False)

    def allocated(self, start: int, stop: int) -> None:
        self._global.state[self._granules_of("global", start, stop)] = UNWRITTEN | WATCHED

    def copied_locally(self, lanes: Lanes, to: int, source: int, size: int) -> None:
        assert self._local is not None
        granule = self._local.granule
        base = self._base["local"][lanes][:, None] // granule
        steps = np.arange(-(-size // granule))
        self._local.state[base + to // granule + steps] = self._local.state[base + source // granule + steps]

    # -- synchronization -----------------------------------------------------------------------------------------

    def block_barrier(self, instruction: Instruction, lanes: Lanes | None) -> None:
        assert self._shared is not None
        # Other blocks of a cluster do not take part; their accesses stay unordered.
        alone = self.geometry.cluster_size == 1
        if lanes is None:
            self.order.whole_blocks_met(None)
            if alone:
                self._shared.forget()
            return
        stride = self.geometry.stride
        block = int(lanes[0]) // stride
        members = np.arange(block * stride, block * stride + stride)
        met = np.zeros(stride, np.bool_)
        met[lanes - block * stride] = True
        ended = (self.machine.state.key[members] == EXITED) & ~self.geometry.padding[members]
        if ended.any() and len(instruction.operands) - 2 * instruction.has("red") < 2:
            self._missed(instruction, lanes, members[ended])
        if (met | (self.machine.state.key[members] == EXITED)).all():
            self.order.whole_blocks_met(lanes)
            if alone:
                self._shared.forget(self._granules_of("shared", block * self._stride, (block + 1) * self._stride))
        else:
            self.order.part_of_block_met(lanes, int(self.machine.state.barrier[lanes[0]]))

    def barrier_arrived(self, instruction: Instruction, lanes: Lanes, numbers: np.ndarray) -> None:
        self.order.arrived(lanes, numbers)

    def warp_barrier(self, instruction: Instruction, lanes: Lanes | None) -> None:
        if instruction.opcode == "shfl":
            self._look_at_shuffle(instruction, lanes)
            return
        if instruction.opcode != "bar":
            return
        who = np.flatnonzero(~self.geometry.padding) if lanes is None else lanes
        operand = member_mask_operand(instruction)
        if isinstance(operand, Register):
            masks = value_at(self.machine.registers.row(operand, "u32"), who)
        else:
            masks = np.full(len(who), operand.value & 0xFFFFFFFF if isinstance(operand, Integer) else 0xFFFFFFFF)
        self.order.warps_met(who, masks)

    def _look_at_shuffle(self, inst: Instruction, lanes: Lanes | None) -> None:
        """Begins to follow the values of shuffles as soon as one takes a value from a lane that takes no part."""
        machine = self.machine
        tracker = machine.tracker
        if isinstance(tracker, UndefinedRegisters) and tracker.shuffle is not None:
            return
        mask = inst.operands[4]
        if lanes is None and isinstance(mask, Integer) and mask.value & 0xFFFFFFFF == 0xFFFFFFFF:
            return
        who = np.arange(self.geometry.lanes) if lanes is None else lanes
        who = who[~self.geometry.padding[who]]
        if id(inst) not in self._shuffles:
            self._shuffles[id(inst)] = from_inactive_lanes(inst, machine.binder)
        if not len(who) or not self._shuffles[id(inst)](who).any():
            return
        if not isinstance(tracker, UndefinedRegisters):
            tracker = UndefinedRegisters(frozenset(), machine.registers, self.geometry.lanes)
        tracker.report = self._undefined
        tracker.follow_shuffles(self.program, machine.binder, inst)
        machine.follow_with(tracker)

    def executed(self, instruction: Instruction, lanes: Lanes | None) -> None:
        if instruction.opcode in ("membar", "fence") and not instruction.has("proxy"):
            who = np.arange(self.geometry.lanes) if lanes is None else lanes
            self.order.fence(who, device=not instruction.has("cta"))

    # -- reports -----------------------------------------------------------------------------------------------

    def _global_site(self, site: Site, granules: np.ndarray) -> str:
        names = [(region.start, region.stop, region.name) for region in self.machine.spaces.global_.regions]
        return global_place(names, int(granules[0]) * self._global.granule, site.access.element_bytes)

    def shared_place(self, offset: int) -> str:
        """The variable at an offset in the shared memory of all blocks."""
        return shared_place(self.program, offset % self._stride, 1)

    def global_place(self, granule: int) -> str:
        """The buffer at a granule of global memory."""
        names = [(region.start, region.stop, region.name) for region in self.memory.regions]
        return global_place(names, granule * self._global.granule, 1)

    def _shared_site(self, site: Site, granules: np.ndarray) -> str:
        assert self._shared is not None
        return shared_place(self.program, int(granules[0]) * self._shared.granule % self._stride, site.access.element_bytes)

    def _global_race(self, site: Site, lanes: Lanes, granules: np.ndarray, records: Records, others: np.ndarray) -> None:
        other = records.sites[int(others[0]) >> 32]
        kind: type[HazardError] = GlobalRace
        earlier = (int(others[0]) & 0xFFFFFFFF) - self.order.first_stream
        if self.proxies.follows and 0 <= earlier < 2:
            kind = UnfinishedLaunch if earlier else UnorderedLaunch
        elif site.strong and other is not None and other.strong:
            kind = ScopeRace if site.narrow or other.narrow else VolatileRace
        if kind is GlobalRace:
            seen = self.order.seen_unfenced(lanes, *records.unpack(others))
            if seen.any():
                self._race(UnfencedTicket, self._global_site(site, granules[seen]), site, lanes[seen], records, others[seen])
                lanes, granules, others = lanes[~seen], granules[~seen], others[~seen]
                if not len(lanes):
                    return
        self._race(kind, self._global_site(site, granules), site, lanes, records, others)

    def _shared_race(self, site: Site, lanes: Lanes, granules: np.ndarray, records: Records, others: np.ndarray) -> None:
        other = records.sites[int(others[0]) >> 32]
        kind: type[HazardError] = SharedRace
        if site.strong and other is not None and other.strong:
            ours, theirs = int(self.order.threads[lanes[0]]), int(others[0]) & 0xFFFFFFFF
            kind = LockstepRace if ours // WARP == theirs // WARP else VolatileRace
            if ours // self.geometry.stride != theirs // self.geometry.stride and (site.narrow or other.narrow):
                kind = ScopeRace
        self._race(kind, self._shared_site(site, granules), site, lanes, records, others)

    def _global_unfenced(self, site: Site, lanes: Lanes, granules: np.ndarray, records: Records, others: np.ndarray) -> np.ndarray:
        # Where the storing block has executed its fence, current GPUs load the data after the flag.
        rest = ~self.order.seen_unfenced(lanes, *records.unpack(others), by_tickets=False)
        if rest.any():
            self._race(GlobalRace, self._global_site(site, granules[rest]), site, lanes[rest], records, others[rest])
        return rest

    def _global_repeated(self, site: Site, lanes: Lanes, granules: np.ndarray, records: Records, others: np.ndarray) -> None:
        self._race(SameValue, self._global_site(site, granules), site, lanes, records, others)

    def _shared_repeated(self, site: Site, lanes: Lanes, granules: np.ndarray, records: Records, others: np.ndarray) -> None:
        self._race(SameValue, self._shared_site(site, granules), site, lanes, records, others)

    def _missed(self, instruction: Instruction, lanes: Lanes, ended: Lanes) -> None:
        self.findings.add(
            MissedBarrier(
                f"{len(lanes)} threads of a block met at this barrier; {len(ended)} had ended: {self.geometry.describe(ended)}",
                instruction=instruction,
                threads=self.geometry.describe(lanes),
            )
        )

    def _race(self, kind: type[HazardError], place: str, site: Site, lanes: Lanes, records: Records, others: np.ndarray) -> None:
        other = records.sites[int(others[0]) >> 32]
        thread = int(others[0]) & 0xFFFFFFFF
        assert other is not None
        same = other.instruction is site.instruction
        message = f"{verb(site.access)} of {place}, unordered with "
        message += "the same instruction of another thread" if same else f"another thread's {verb(other.access)}"
        self.findings.add(
            kind(
                message,
                len(lanes),
                place,
                instruction=site.instruction,
                threads=self.geometry.describe(np.unique(lanes)),
                other=other.instruction,
                other_threads=self.order.describe(thread),
                other_source=self.sources.get(id(other.instruction)),
            )
        )

    def _of_use(self, site: Site, granules: np.ndarray, granule: int) -> np.ndarray:
        """Positions of the granules whose value a register receives that something reads. The compiler widens loads over bytes
        that it then leaves alone; whatever is in those does not matter."""
        destination = site.instruction.operands[0] if site.access.kind == "load" and site.instruction.operands else None
        if not isinstance(destination, Vector) or site.instruction.opcode not in ("ld", "ldu"):
            return np.arange(len(granules))
        used = [any(register.name not in self.program.mentioned_once for register in registers_of(e)) for e in destination.elements]
        element = granules * granule % site.access.width // site.access.element_bytes
        return np.flatnonzero(np.array(used)[element])

    def _stale(self, site: Site, lanes: Lanes, granules: np.ndarray) -> None:
        place = self._global_site(site, granules)
        self.findings.add(
            StaleRead(
                f"ld.global.nc of {place}, which this launch has written",
                len(lanes),
                place,
                instruction=site.instruction,
                threads=self.geometry.describe(np.unique(lanes)),
            )
        )

    def store_unfinished(self, message: str, instruction: Instruction, lanes: Lanes) -> None:
        self.findings.add(UnfinishedStore(message, instruction=instruction, threads=self.geometry.describe(lanes)))

    def registers_misused(self, message: str, instruction: Instruction, lanes: Lanes) -> None:
        self.findings.add(PartialRegisterCount(message, instruction=instruction, threads=self.geometry.describe(lanes)))

    # -- loads of unwritten memory -------------------------------------------------------------------------------

    def _load_unwritten(self, site: Site, lanes: Lanes, granules: np.ndarray, granule: int, place: str) -> None:
        """Remembers a load of unwritten memory until its value is used, if that can be followed."""
        inst = site.instruction
        of_matrices = inst.opcode == "ldmatrix" and inst.has("m8n8")
        if not (inst.opcode in ("ld", "ldu") or of_matrices) or self.follows_loads is None:
            self._unwritten(site, lanes, place)
            return
        if not self.follows_loads:
            raise FollowLoads
        tracker = self.machine.tracker
        assert isinstance(tracker, UndefinedRegisters)
        destination = inst.operands[0]
        elements = list(destination.elements) if isinstance(destination, Vector) else [destination]
        if of_matrices:
            element, lanes = _receivers(inst, lanes, granules, granule)
        else:
            element = granules * granule % site.access.width // site.access.element_bytes
        for index in np.unique(element).tolist():
            names = [register.name for register in registers_of(elements[min(index, len(elements) - 1)])]
            here = np.unique(lanes[element == index])
            tracker.mark(names, here)
        known = next((load for load in self._loaded if load.site is site), None)
        if known is None:
            names = [register.name for register in registers_of(destination)]
            known = _UnwrittenLoad(site, place, tainted_by(self.program, names), np.zeros(self.geometry.lanes, np.bool_))
            self._loaded.append(known)
        known.lanes[lanes] = True

    def _store_without_value(self, site: Site, shadow: Shadow, lanes: Lanes | None, offsets: np.ndarray) -> None:
        """A store to shared or local memory of a register that holds no value leaves the memory without one."""
        tracker, inst = self.machine.tracker, site.instruction
        if inst.opcode != "st" or not (inst.has("local") or inst.has("shared")) or not isinstance(tracker, UndefinedRegisters):
            return
        who = np.arange(self.geometry.lanes) if lanes is None else lanes
        value = inst.operands[1]
        elements = list(value.elements) if isinstance(value, Vector) else [value]
        granule, size = shadow.granule, site.access.element_bytes
        for index, element in enumerate(elements):
            lacking = np.flatnonzero(tracker.lacks_value(element, who))
            for first in (offsets[lacking] + index * size).tolist():
                shadow.state[first // granule : -(-(first + size) // granule)] |= UNWRITTEN
            if len(lacking) and shadow is self._shared:
                self._valueless = True

    def _unwritten_global(self, site: Site, lanes: Lanes, granules: np.ndarray) -> None:
        of_use = self._of_use(site, granules, self._global.granule)
        lanes, granules = lanes[of_use], granules[of_use]
        if not len(granules):
            return
        self._load_unwritten(site, lanes, granules, self._global.granule, self._global_site(site, granules))

    def _unwritten_shared(self, site: Site, lanes: Lanes, granules: np.ndarray) -> None:
        assert self._shared is not None
        of_use = self._of_use(site, granules, self._shared.granule)
        lanes, granules = lanes[of_use], granules[of_use]
        if not len(granules):
            return
        self._load_unwritten(site, lanes, granules, self._shared.granule, self._shared_site(site, granules))

    def _between_variables(self, site: Site, lanes: Lanes, granules: np.ndarray) -> None:
        assert self._shared is not None
        # Accesses past the end of shared memory are noted already.
        inside = granules * self._shared.granule % self._stride < self.machine.spaces.shared.size
        lanes, granules = lanes[inside], granules[inside]
        if not len(lanes):
            return
        place = self._shared_site(site, granules)
        self.findings.add(
            StrayAccess(
                f"{verb(site.access)} of {site.access.width} bytes at {place}, past the end of this variable",
                len(lanes),
                place,
                instruction=site.instruction,
                threads=self.geometry.describe(np.unique(lanes)),
            )
        )

    def _unwritten_local(self, site: Site, lanes: Lanes, granules: np.ndarray) -> None:
        assert self._local is not None
        of_use = self._of_use(site, granules, self._local.granule)
        lanes, granules = lanes[of_use], granules[of_use]
        if not len(granules):
            return
        address = int(granules[0]) * self._local.granule - int(self._base["local"][lanes[0]])
        place = f"local memory (an array of one thread), byte {address}"
        self._load_unwritten(site, lanes, granules, self._local.granule, place)

    def _unwritten(self, site: Site, lanes: Lanes, place: str, use: Instruction | None = None) -> None:
        or_valueless = " but perhaps a register without a value" if self._valueless and place.startswith("shared") else ""
        self.findings.add(
            UnwrittenRead(
                f"{verb(site.access)} of {place}, which nothing has written{or_valueless}",
                len(lanes),
                place,
                instruction=site.instruction,
                threads=self.geometry.describe(np.unique(lanes)),
                other=use,
                other_threads=None if use is None else "uses the value",
            )
        )

    def fence_missing(self, message: str, instruction: Instruction, lanes: Lanes, other: Instruction | None, missing: bool) -> None:
        """A wgmma is issued without a fence, or `other` accesses its registers after the fence."""
        kind = MissingWarpgroupFence if missing else EarlyWarpgroupFence
        threads = self.geometry.describe(lanes)
        self.findings.add(kind(message, instruction=instruction, threads=threads, other=other, other_threads=threads if other else None))

    def operand_reloaded(self, message: str, instruction: Instruction, lanes: Lanes, other: Instruction) -> None:
        """The source of an A register is overwritten while `other` is in flight."""
        threads = self.geometry.describe(lanes)
        self.findings.add(
            ReloadedOperand(message, len(lanes), instruction=instruction, threads=threads, other=other, other_threads=threads)
        )

    def _undefined(self, instruction: Instruction, lanes: Lanes, register: str, use: str, defined: Instruction | None) -> None:
        tracker = self.machine.tracker
        for load in self._loaded:
            used = lanes[load.lanes[lanes]] if register in load.results else lanes[:0]
            if len(used):
                self._unwritten(load.site, used, load.place, instruction)
                lanes = lanes[~load.lanes[lanes]]
        if not len(lanes) or self.findings.are_enough:
            return
        by_shuffle = isinstance(tracker, UndefinedRegisters) and tracker.shuffle is not None
        if self.follows_loads is False and instruction.opcode == "st" and instruction.has("shared") and not by_shuffle:
            # Padding may be exchanged through shared memory as long as nobody uses it.
            raise FollowLoads
        if isinstance(tracker, UndefinedRegisters) and tracker.shuffle is not None and register not in tracker.unassigned:
            self.findings.add(
                InactiveShuffle(
                    f"{use} comes, by a shuffle, from a lane that takes no part in it",
                    len(lanes),
                    instruction=instruction,
                    threads=self.geometry.describe(lanes),
                    other=tracker.shuffle,
                )
            )
            return
        self.findings.add(
            UndefinedRegister(
                f"{use} is made of {register}, which holds no value yet",
                instruction=instruction,
                threads=self.geometry.describe(lanes),
                other=defined,
            )
        )


def _alignment(start: int, flags: np.ndarray) -> int:
    """The largest power of two, up to 16, that all places are multiples of where written and unwritten bytes meet."""
    edges = np.concatenate([[0], np.flatnonzero(flags[1:] != flags[:-1]) + 1, [len(flags)]]) + start
    common = int(np.bitwise_or.reduce(edges)) | 16
    return common & -common


def _receivers(inst: Instruction, lanes: Lanes, granules: np.ndarray, granule: int) -> tuple[np.ndarray, Lanes]:
    """Number of the matrix, and the lane that a ldmatrix gives the data to, for each word that a granule touches. `lanes` gave the
    addresses of the rows: lane 8 i + r that of row r of matrix i (PTX ISA, "ldmatrix")."""
    offsets = granules * granule % 16
    matrices, rows, first = lanes % 32 // 8, lanes % 8, lanes // 32 * 32
    receivers = []
    for piece in range(max(granule // 4, 1)):
        word = offsets // 4 + piece
        if inst.has("trans"):
            # Lane 4 c + r / 2 has rows r and r + 1 of column c.
            receivers += [first + 4 * (2 * word + half) + rows // 2 for half in (0, 1)]
        else:
            receivers.append(first + 4 * rows + word)
    return np.tile(matrices, len(receivers)), np.concatenate(receivers)
