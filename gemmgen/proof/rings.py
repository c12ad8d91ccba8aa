"""The order of kernels with a ring of stages that TMA fills and ``wgmma`` reads, by induction over the ring's uses.

One thread fills use c of the ring, c = 0, 1, 2, ...: it waits for ``empty[c mod S]``, promises bytes to ``full[c mod S]`` and
issues the copies. Every thread that multiplies waits for ``full[c mod S]``, reads, and one thread of each of its warps arrives at
``empty[c mod S]`` when the warp's products are complete. ``Ring`` checks that each thread's sequence of events has this form, in every
state that it can be in: the stage, the parity, the slots that are held, the products in flight. The rest holds for all such kernels:

- A phase of ``full`` completes once per use, by its single arrival and its promised bytes; one of ``empty`` by one arrival of each warp.
- Let f be the phases of ``full[s]`` that are complete while a thread waits for use u of slot s. It passed use u - 1, so f >= u. Filling
  use u + 1 needs this thread's own release of use u, so f <= u + 1. The parity tells u from u + 1: it never aliases. The same holds
  for ``empty``.
- A slot is refilled after all warps released it, and a warp releases it after the products that read it are complete.
- Filler and readers take the same decisions, with as many uses between two of them, and none of them is missing on any way. A reader
  holds fewer than S slots when it waits, so that the filler always has a slot that is released, and no wait is unmatched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gemmgen.emulator.engines.registers import granted
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Function, Instruction, Integer, Module, Operand, Vector, registers_of, written
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.hardware.tensor_map import SHARED_ALIGNMENT
from gemmgen.kernels.launch import KernelLaunch, LaunchSequence, TensorMapArgument
from gemmgen.proof.control import Unliftable
from gemmgen.proof.fragments import NOTHING, Fragments, Tracked
from gemmgen.proof.layouts import CHUNK_BYTES, box_bytes, box_places, box_rows, operand_chunks, row_bytes, row_pitch
from gemmgen.proof.parameters import beyond_parameters
from gemmgen.proof.roles import SHARED_BASE, Role, Runner, Values, renamed
from gemmgen.proof.symbols import Content, Expression, of_thread, replaced

INDEX, GRID = Expression("%ctaid.x"), Expression("%nctaid.x")
TILE = Expression("%tile")
WARPGROUP_THREADS = 128
BARRIER_BYTES = 8
MAX_PROMISED = (1 << 20) - 1
"""Bytes that a phase of a barrier can wait for."""
MAX_GROUPS = 16
"""Groups of products, or of results that leave, between two waits."""
MAX_USES = 64
"""Uses of the ring by one role between two decisions that all roles take."""
PROPERTIES = ("memory", "races", "initialised", "progress", "once")


@dataclass(frozen=True)
class _Group:
    """Products in flight: the slots that they read, and their registers."""

    slots: frozenset[int] = frozenset()
    registers: frozenset[str] = frozenset()
    results: frozenset[tuple[str, frozenset[str]]] = frozenset()
    """The shape of each product, and the registers of its result among them."""


@dataclass(frozen=True)
class State:
    """One role's place in the protocol."""

    barriers: tuple[tuple[int, int], ...] = ()
    """Address and arrivals of each barrier that was initialised."""
    owner: int = -1
    """The thread that initialised them."""
    fenced: bool = False
    started: bool = False
    """True once the block has met after the barriers were initialised."""
    dependencies: bool = False
    """True once the launches before this one are complete."""
    fills: bool = False
    reads: bool = False
    use: int = 0
    """The next use of the ring, modulo twice its slots."""
    uses: int = 0
    """Uses since the last decision that all roles took together."""
    user: tuple[bool, ...] = ()
    """The threads of the role when it last waited for a slot."""
    promised: int = -1
    """Bytes that the use that is being filled waits for; -1 between two uses."""
    filled: tuple[tuple[int, int], ...] = ()
    held: tuple[tuple[int, bool], ...] = ()
    """Slots that were waited for and not released, oldest first, each with whether a product has read it."""
    groups: tuple[_Group, ...] = ()
    open: _Group = _Group()
    dirty: frozenset[str] = frozenset()
    """Registers of products that other statements used since the last fence of products."""
    plain: frozenset[int] = frozenset()
    """Stores by threads since the last barrier, by number, that no fence makes visible to TMA."""
    fenced_stores: frozenset[int] = frozenset()
    visible: frozenset[int] = frozenset()
    """Stores that TMA may read."""
    older: frozenset[int] = frozenset()
    """Stores before the last barrier that only threads may read."""
    loads: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    """Reads by TMA that are in no group yet."""
    leaving_groups: tuple[frozenset[int], ...] = ()
    senders: tuple[bool, ...] = ()
    """The threads that these are of."""
    left: frozenset[int] = frozenset()
    """Reads by TMA that their thread has waited for, before the other threads know."""
    sent: frozenset[tuple[int, tuple[Content, ...]]] = frozenset()
    """Boxes that were stored, by the places of their statements and coordinates, without those of earlier values of a counter."""
    tracked: Tracked = NOTHING
    """Sums of products, where they are followed."""
    interval: int = 0
    """Barriers of the cluster passed."""
    arrived: bool = False
    """True between the arrival at such a barrier and the wait."""
    registers: int = 0
    """Registers that each thread asked for by ``setmaxnreg``; 0 before."""
    teams_met: bool = False
    """True once the threads have met in a team, after the block met."""
    delivered: frozenset[int] = frozenset()
    """Stores to other blocks of the cluster since the last such barrier."""


@dataclass
class Findings:
    """Reasons that properties are not proved, and how much was looked at."""

    reasons: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in PROPERTIES})
    checked: dict[str, set[object]] = field(default_factory=lambda: {name: set() for name in PROPERTIES})

    def note(self, property_: str, what: object, holds: bool, reason: str, at: Instruction | None = None) -> None:
        """One obligation, identified by its subject."""
        self.checked[property_].add(what)
        if holds:
            return
        whole = place_of(reason, at)
        if whole not in self.reasons[property_]:
            self.reasons[property_].append(whole)


def place_of(reason: str, at: Instruction | None) -> str:
    """A reason with its statement, if it has one."""
    if at is None:
        return reason
    where = f" ({at.location.own()})" if at.location is not None else ""
    return f"PTX line {at.line}: {at.text.strip().rstrip(';')}{where}: {reason}"


@dataclass(frozen=True)
class Sent:
    """A box that one thread has TMA store."""

    map_: str
    place: int
    """The place of the statement in the function."""
    thread: int
    coordinates: tuple[Content, ...]
    bounded: frozenset[Expression]
    """The comparisons that hold there."""


@dataclass(frozen=True)
class Iteration:
    """Boxes that some threads have stored of one tile."""

    threads: tuple[bool, ...]
    boxes: frozenset[tuple[int, tuple[Content | None, ...]]]
    """By statement, with their coordinates, in which the tile's number is called ``TILE``."""

    def of(self, thread: int) -> set[tuple[int, tuple[Content | None, ...]]]:
        """The boxes of one thread."""
        mine = bool(self.threads) and self.threads[thread]
        return {(line, tuple(of_thread(place, thread) for place in places)) for line, places in self.boxes} if mine else set()


class Ring:
    """The protocol of one kernel. Implements ``gemmgen.proof.roles.Monitor``; the slots are known from an earlier run, or not yet."""

    def __init__(
        self,
        sequence: LaunchSequence,
        launch: KernelLaunch,
        function: Function,
        shared_bytes: int,
        fills: Mapping[int, tuple[tuple[int, int], ...]],
    ) -> None:
        self.launch, self.shared_bytes, self.known_fills = launch, shared_bytes, fills
        self.findings = Findings()
        self.maps: dict[str, TensorMapArgument] = {}
        by_name = {argument.name: argument for argument in sequence.tensor_maps}
        for parameter, name in zip(function.parameters, launch.arguments, strict=True):
            if name in by_name:
                self.maps[parameter.name] = by_name[name]
        self.full: list[int] = []
        self.empty: list[int] = []
        self.barriers: tuple[tuple[int, int], ...] | None = None
        self.fills: dict[int, tuple[tuple[int, int], ...]] = {}
        self.used_maps: set[str] = set()
        self.written_maps: set[str] = set()
        self.fetched_maps: set[str] = set()
        self.sends: set[Sent] = set()
        self.iterations: dict[tuple[bool, ...], set[Iteration]] = {}
        """By role: the boxes that it had stored whenever it was done with a tile."""
        self.ends: dict[tuple[bool, ...], set[frozenset[Expression]]] = {}
        """By role: decisions that no tile is left whenever it ended."""
        self.direct: dict[int, Instruction] = {}
        """Loads and stores of global memory by threads, by identity."""
        self.fillers: set[tuple[bool, ...]] = set()
        self.readers: set[tuple[bool, ...]] = set()
        self.parties: set[frozenset[tuple[bool, ...]]] = set()
        """The roles that used the ring between two decisions of all."""
        self.arrivals: dict[tuple[bool, ...], tuple[bool, ...]] = {}
        self.teams: dict[tuple[bool, ...], tuple[int, ...]] = {}
        self._function = function
        self._numbers = {id(instruction): place for place, instruction in enumerate(function.body)}
        self._granted = granted(function.directives, launch.threads)
        self._asked_in: dict[str, int] = {}
        """Barriers of the cluster before all of these statements."""
        self._asked: dict[tuple[bool, ...], set[int]] = {}
        """By role: the registers that it had asked for whenever it ended."""
        self._footprints: dict[object, int] = {}
        self._users: dict[int, set[tuple[bool, ...]]] = {}
        """By footprint: the roles that make the access."""
        self._owners: list[tuple[np.ndarray, bool]] = []
        """By footprint: the thread that each byte belongs to, -1 for none, and whether it is written."""
        self._uses: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
        self._slots_of_operands: dict[tuple[int, int, int], frozenset[int]] = {}
        self._meetings: dict[tuple[int, int], bool] = {}
        self._slot_of = np.full(shared_bytes, -1, np.int16)
        for slot, regions in fills.items():
            for start, size in regions:
                self._slot_of[start - SHARED_BASE : start - SHARED_BASE + size] = slot

    # -- Monitor -----------------------------------------------------------------------------------------------

    def start(self) -> State:
        """The state before the first event."""
        return State(dirty=self.product_registers)

    def plain(self, state: object, instruction: Instruction, certain: bool) -> object:
        """Registers of products in flight are not touched, and those that are used are noted."""
        assert isinstance(state, State)
        if self.fragments is not None:
            tracked = self.fragments.computed(state.tracked, instruction, certain)
            if tracked is not state.tracked:
                state = replace(state, tracked=tracked)
        used, _ = self._of_products(instruction)
        if not used:
            return state
        if any(used & group.registers for group in (state.open, *state.groups)):
            self.findings.note("races", ("registers", instruction.line), False, "a register of a product in flight", instruction)
        return replace(state, dirty=state.dirty | used) if used - state.dirty else state

    def _of_products(self, instruction: Instruction) -> tuple[frozenset[str], frozenset[str]]:
        """The registers of products that a statement uses, and those that it writes."""
        key = id(instruction)
        if key not in self._uses:
            targets = {register.name for register in written(instruction)}
            used = targets | {register.name for operand in instruction.operands for register in registers_of(operand)}
            self._uses[key] = frozenset(used & self.product_registers), frozenset(targets & self.product_registers)
        return self._uses[key]

    in_cluster = False
    """True for a block of a cluster of several."""
    product_registers: frozenset[str] = frozenset()
    """Registers that products read or write."""
    fragments: Fragments | None = None
    """Follows sums of products once the slots are known."""

    def event(self, state: object, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> object:
        """The state after an event."""
        assert isinstance(state, State)
        opcode = instruction.opcode
        state_ = self.plain(state, instruction, False) if opcode not in ("wgmma", "mbarrier") else state
        assert isinstance(state_, State)
        match opcode:
            case "mbarrier":
                return self._barrier(state_, role, instruction, threads, values)
            case "cp":
                return self._copy(state_, role, instruction, threads, values)
            case "wgmma":
                return self._product(state_, role, instruction, values)
            case "tcgen05":
                raise Unliftable(instruction, "tensor memory is not modelled in this kernel")
            case "bar" | "barrier":
                return self._meet(state_, role, instruction, values)
            case "fence":
                return self._fence(state_, role, instruction, threads)
            case "griddepcontrol":
                return replace(state_, dependencies=True) if instruction.has("wait") and threads == role.threads else state_
            case "setmaxnreg":
                return self._registers(state_, instruction, threads)
        return self._access(state_, role, instruction, threads, values)

    def finished(self, state: object, role: Role, facts: Mapping[Expression, bool]) -> None:
        """Nothing is held and nothing in flight at the end."""
        assert isinstance(state, State)
        self._ended(state, role, facts)
        self._asked.setdefault(role.threads, set()).add(state.registers)
        note = self.findings.note
        note("progress", ("end", role.threads), not state.held, "a slot is still held when its readers end")
        note("progress", ("end of filling", role.threads), state.promised < 0, "the last use of the ring is not filled")
        in_flight = state.groups or state.open.slots
        note("races", ("products at the end", role.threads), not in_flight, "products are in flight when a thread ends")
        reading = state.leaving or any(state.leaving_groups)
        note("races", ("copies at the end", role.threads), not reading, "TMA may read shared memory when the block has ended")

    def _registers(self, state: State, instruction: Instruction, threads: tuple[bool, ...]) -> State:
        """Whole groups of warps ask once for a number of registers, before any of them waits for others again."""
        groups = {threads[first : first + WARPGROUP_THREADS] for first in range(0, len(threads), WARPGROUP_THREADS)}
        whole = all(len(group) == WARPGROUP_THREADS and len(set(group)) == 1 for group in groups)
        count = instruction.operands[0]
        if not whole or not isinstance(count, Integer) or not 24 <= count.value <= 256 or count.value % 8:
            raise Unliftable(instruction, "a number of registers that is not known, or for a part of a group of warps")
        first = state.started and not (state.registers or state.fills or state.reads or state.teams_met or state.interval > 1)
        first = first and self._asked_in.setdefault("interval", state.interval) == state.interval
        lower = count.value <= self._granted
        if not first or lower != instruction.has("dec"):
            raise Unliftable(
                instruction, "only one change of a group's registers, after the block has met and before other waits, is modelled"
            )
        return replace(state, registers=count.value)

    def enough_registers(self) -> None:
        """All threads together ask for no more registers than the block was given, on every way."""
        asked: list[set[int]] = [set() for _ in range(self.launch.threads)]
        for role, counts in self._asked.items():
            for thread, here in enumerate(role):
                if here:
                    asked[thread] |= counts
        if not any(any(counts) for counts in asked):
            return
        held = [max(counts, default=0) or self._granted for counts in asked]
        fine = all(len(counts) == 1 for counts in asked) and sum(held) <= self._granted * len(asked)
        self.findings.note("progress", "registers", fine, "groups of warps may ask for more registers than the block has")

    def idle(self, state: object) -> bool:
        """True for threads that neither fill nor read the ring."""
        return isinstance(state, State) and not state.fills and not state.reads

    def together(self, states: Sequence[object], complete: bool, facts: Mapping[Expression, bool]) -> Sequence[object]:
        """All roles have used the ring as often since the last time."""
        settled = [state for state in states if isinstance(state, State)]
        ring = [state for state in settled if state.fills or state.reads]
        if any(state.uses > MAX_USES for state in settled):
            raise Unliftable(None, f"more than {MAX_USES} uses of the ring between two decisions that all roles take")
        if not complete:
            return states
        if any(state.uses for state in ring):
            self.parties.add(frozenset(state.user for state in ring))
        same = len({state.uses for state in ring}) <= 1
        self.findings.note(
            "progress", "uses between decisions", same, "the ring is not filled and read equally often between two decisions"
        )
        if self.fragments is None:
            return [replace(state, uses=0) for state in settled]
        tracked = self.fragments.together([state.tracked for state in settled], facts)
        return [replace(state, uses=0, tracked=each) for state, each in zip(settled, tracked, strict=True)]

    def counted(self, state: object, number: int, name: Expression) -> object:
        """Counts of products follow a counter that has a name from now on."""
        assert isinstance(state, State)
        return state if self.fragments is None else replace(state, tracked=self.fragments.counted(state.tracked, number, name))

    # -- barriers in shared memory -----------------------------------------------------------------------------

    def _slots(self) -> int:
        assert self.barriers is not None
        return len(self.barriers) // 2

    def _barrier(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        words = instruction.modifiers
        kind = words[0]
        if any("cluster" in word for word in words) and not self.in_cluster:
            raise Unliftable(instruction, "barriers of other blocks are not modelled")
        operands = instruction.operands
        where = operands[0] if kind == "init" else operands[1]
        address = values.of(where)
        if not isinstance(address, int):
            raise Unliftable(instruction, "a barrier whose address is not known")
        inside = SHARED_BASE <= address <= SHARED_BASE + self.shared_bytes - BARRIER_BYTES and address % BARRIER_BYTES == 0
        self.findings.note("memory", (instruction.line, address), inside, "outside of shared memory, or not aligned", instruction)
        if kind == "init":
            count = values.of(operands[1])
            if state.started or sum(threads) != 1 or not isinstance(count, int) or any(address == other for other, _ in state.barriers):
                raise Unliftable(instruction, "a barrier that is initialised late, twice or by several threads")
            if state.barriers and not threads[state.owner]:
                raise Unliftable(instruction, "barriers that several threads initialise")
            return replace(state, barriers=(*state.barriers, (address, count)), fenced=False, owner=threads.index(True))
        if not state.started:
            raise Unliftable(instruction, "a barrier is used before the block has met")
        if kind in ("try_wait", "test_wait") and "parity" in words:
            parity = values.of(operands[2])
            if threads != role.threads or not isinstance(parity, int):
                raise Unliftable(instruction, "a wait of some threads, or for a parity that is not known")
            return self._waited(state, role, instruction, address, parity & 1)
        if kind == "arrive" and len(operands) <= 3:
            given = values.of(operands[2]) if len(operands) == 3 else None
            if "expect_tx" in words and isinstance(given, int):
                return self._promised(state, role, instruction, threads, address, given)
            if (
                "expect_tx" not in words
                and (len(operands) == 2 or given == 1)
                and not any(word in words for word in ("noComplete", "relaxed"))
            ):
                return self._released(state, role, instruction, threads, address)
        raise Unliftable(instruction, "this use of a barrier is not modelled")

    def _learned(self, known: list[int], slot: int, address: int) -> bool:
        """True if a barrier is the one of its slot; the first use of each slot says which that is."""
        if slot == len(known):
            known.append(address)
        return slot < len(known) and known[slot] == address

    def _waited(self, state: State, role: Role, instruction: Instruction, address: int, parity: int) -> State:
        slots = self._slots()
        slot, phase = state.use % slots, state.use // slots % 2
        filling = sum(role.threads) == 1 and not state.reads
        if filling:
            self.fillers.add(role.threads)
            complete = state.promised < 0
            right = self._learned(self.empty, slot, address) and parity == phase ^ 1 and complete
            self._ring(instruction, right, "not the wait for the next slot to be empty")
            return replace(state, fills=True, promised=0, filled=(), user=role.threads)
        self.readers.add(role.threads)
        right = self._learned(self.full, slot, address) and parity == phase
        self._ring(instruction, right, "not the wait for the next slot to be full")
        self._ring(instruction, len(state.held) < slots, "all slots are held")
        held, use = (*state.held, (slot, False)), (state.use + 1) % (2 * slots)
        return replace(state, reads=True, held=held, use=use, uses=state.uses + 1, user=role.threads)

    def _ring(self, instruction: Instruction, holds: bool, reason: str) -> None:
        if not holds:
            raise Unliftable(instruction, reason)
        for name in ("races", "progress", "initialised"):
            self.findings.checked[name].add(("ring", instruction.line))

    def _promised(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], address: int, count: int) -> State:
        slot = state.use % self._slots()
        right = threads == role.threads and state.fills and state.promised == 0 and self._learned(self.full, slot, address)
        self._ring(instruction, right and 0 < count <= MAX_PROMISED, "not the promise of bytes to the slot that is filled")
        return replace(state, promised=count)

    def _released(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], address: int) -> State:
        state = self._without_oldest(state, instruction, address)
        whole = all(sum(threads[first : first + WARP_THREADS]) == role.threads[first] for first in range(0, len(threads), WARP_THREADS))
        same = self.arrivals.setdefault(role.threads, threads) == threads
        self._ring(instruction, whole and same, "not one arrival of each warp")
        return state

    def _without_oldest(self, state: State, instruction: Instruction, address: int) -> State:
        """The state after the oldest slot that is held is released, at the address of its barrier."""
        if not state.held or not state.reads:
            self._ring(instruction, False, "an arrival for a slot that is not held")
        (slot, was_read), *rest = state.held
        right = self._learned(self.empty, slot, address) and was_read
        self._ring(instruction, right, "not the release of the oldest slot that is held")
        busy = slot in state.open.slots or any(slot in group.slots for group in state.groups)
        self._ring(instruction, not busy, "a slot is released while products may read it")
        return replace(state, held=tuple(rest))

    # -- copies ------------------------------------------------------------------------------------------------

    def _map(self, instruction: Instruction, operand: Operand, values: Values) -> TensorMapArgument:
        assert isinstance(operand, Address)
        tensor_map = self.maps.get(_variable(values.of(operand.base)))
        if tensor_map is None or operand.offset:
            raise Unliftable(instruction, "a tensor map that is not known")
        self.used_maps.add(tensor_map.name)
        coordinates = operand.extra[0] if operand.extra else None
        if (
            not isinstance(coordinates, Vector)
            or len(coordinates.elements) != len(tensor_map.extents)
            or not tensor_map.box
            or tensor_map.element_strides
            or tensor_map.interleave != "none"
        ):
            raise Unliftable(instruction, "only boxes of plain maps are modelled")
        return tensor_map

    def _copy(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        words, operands = instruction.modifiers, instruction.operands
        if words[:2] != ("async", "bulk"):
            raise Unliftable(instruction, "copies of single threads are not modelled for kernels with barriers in shared memory")
        if "commit_group" in words:
            if not state.senders or not _contains(threads, state.senders):
                return state
            if len(state.leaving_groups) == MAX_GROUPS:
                raise Unliftable(instruction, f"more than {MAX_GROUPS} groups of results leave before a wait")
            return replace(state, leaving=frozenset(), leaving_groups=(*state.leaving_groups, state.leaving))
        if "wait_group" in words:
            amount = operands[0].value if isinstance(operands[0], Integer) else -1
            if amount < 0:
                raise Unliftable(instruction, "a wait for a number of groups that is not known")
            if not _contains(threads, state.senders):
                return state
            split = max(0, len(state.leaving_groups) - amount)
            done = frozenset[int]().union(*state.leaving_groups[:split])
            return replace(state, leaving_groups=state.leaving_groups[split:], left=state.left | done)
        if "prefetch" in words:
            return state
        if "tensor" not in words or "tile" not in words or any("reduce" in word for word in words):
            raise Unliftable(instruction, "this copy is not modelled")
        if any("multicast" in word for word in words) and not self.in_cluster:
            raise Unliftable(instruction, "this copy is not modelled")
        if self.launch.programmatic and not state.dependencies:
            self.findings.note("races", ("dependencies", instruction.line), False, "the launch before may still run", instruction)
        if (
            words.index("tensor")
            and "shared::cluster" in words
            and "global" in words
            and words.index("shared::cluster") < words.index("global")
        ):
            return self._filled(state, role, instruction, threads, values)
        return self._sent(state, role, instruction, threads, values)

    def _filled(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        target, source, barrier = instruction.operands[:3]
        tensor_map = self._map(instruction, source, values)
        self.fetched_maps.add(tensor_map.name)
        start, address = values.of(target), values.of(barrier)
        size = box_bytes(tensor_map)
        if row_pitch(tensor_map) != row_bytes(tensor_map):
            raise Unliftable(instruction, "boxes with gaps between their rows are not modelled as stages")
        if not isinstance(start, int) or not isinstance(address, int) or threads != role.threads:
            raise Unliftable(instruction, "a copy whose place is not known")
        self._inside(instruction, start, size, SHARED_ALIGNMENT)
        slot = state.use % self._slots()
        self._ring(instruction, state.promised > 0 and self._learned(self.full, slot, address), "not a copy to the slot that is filled")
        filled = (*state.filled, (start, size))
        if self.fragments is not None:
            assert isinstance(source, Address) and isinstance(source.extra[0], Vector)
            coordinates = [values.of(element) for element in source.extra[0].elements]
            state = replace(state, tracked=self.fragments.filled(state.tracked, state.uses, tensor_map.name, start, coordinates))
        total = sum(each for _, each in filled)
        self._ring(instruction, total <= state.promised, "more bytes than were promised")
        apart = all(start + size <= other or other + length <= start for other, length in state.filled)
        self.findings.note("races", ("boxes", instruction.line), apart, "overlaps another copy of its slot", instruction)
        if total < state.promised:
            return replace(state, filled=filled)
        regions = tuple(sorted(filled))
        same = self.fills.setdefault(slot, regions) == regions
        self._ring(instruction, same, "a slot is not always filled in the same way")
        slots = self._slots()
        return replace(state, filled=(), promised=-1, use=(state.use + 1) % (2 * slots), uses=state.uses + 1)

    def _sent(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        """A box leaves shared memory: its bytes are written, visible to TMA, and stay until its thread has waited."""
        target, source = instruction.operands[:2]
        tensor_map = self._map(instruction, target, values)
        self.written_maps.add(tensor_map.name)
        start = values.of(source)
        if "bulk_group" not in instruction.modifiers or not isinstance(start, int | tuple):
            raise Unliftable(instruction, "a copy whose place is not known")
        number = self._footprint(
            instruction, start, box_rows(tensor_map) * row_pitch(tensor_map), threads, False, SHARED_ALIGNMENT, box=tensor_map
        )
        self._users.setdefault(number, set()).add(role.threads)
        owners = self._owners[number][0]
        ready = np.zeros(len(owners), np.bool_)
        for other in state.visible:
            ready |= self._owners[other][0] >= 0
        self.findings.note(
            "initialised", instruction.line, bool(ready[owners >= 0].all()), "sends bytes that were not written", instruction
        )
        unsettled = state.plain | state.fenced_stores | state.older
        fine = not any(self._overlap(number, other) for other in unsettled)
        self.findings.note("races", ("sent", instruction.line), fine, "stores are not visible to TMA yet", instruction)
        if state.senders not in ((), threads):
            raise Unliftable(instruction, "different threads send results")
        sent = self._box(state, instruction, target, tensor_map, threads, values)
        state = self._result(state, role, instruction, tensor_map, start, threads, values)
        return replace(state, leaving=state.leaving | {number}, senders=threads, sent=sent)

    def _box(
        self,
        state: State,
        instruction: Instruction,
        target: Operand,
        tensor_map: TensorMapArgument,
        threads: tuple[bool, ...],
        values: Values,
    ) -> frozenset[tuple[int, tuple[Content, ...]]]:
        """Notes where a box goes; the boxes of this state with it. In one iteration of the loops no statement stores a box twice."""
        assert isinstance(target, Address) and isinstance(target.extra[0], Vector)
        coordinates = tuple(place for element in target.extra[0].elements if (place := values.of(element)) is not None)
        if len(coordinates) < len(tensor_map.extents):
            self.findings.note("once", ("place", instruction.line), False, "the coordinates of a box are not known", instruction)
            return state.sent
        key = self._numbers[id(instruction)], coordinates
        self.findings.note("once", ("twice", instruction.line), key not in state.sent, "may store a box twice", instruction)
        true = frozenset(fact for fact, holds in values.facts.items() if holds and fact.operation == "lt.s32")
        for thread, here in enumerate(threads):
            if here:
                mine = tuple(place for each in coordinates if (place := of_thread(each, thread)) is not None)
                bounded = frozenset(fact for fact in true if any(isinstance(each, Expression) and _within(fact, each) for each in mine))
                self.sends.add(Sent(tensor_map.name, key[0], thread, mine, bounded))
        return state.sent | {key}

    def _iteration(self, state: State, role: Role, counter: Expression) -> None:
        """Notes the boxes that a role has stored of one tile when it turns to the next."""
        of_tile = {(line, places) for line, places in state.sent if counter is INDEX or _mentions(places, counter)}
        if counter is INDEX:
            of_tile = {(line, places) for line, places in of_tile if not any(map(_of_later_tiles, places))}
        boxes = frozenset((line, tuple(replaced(place, counter, TILE) for place in places)) for line, places in of_tile)
        self.iterations.setdefault(role.threads, set()).add(Iteration(state.senders, boxes))

    def _ended(self, state: State, role: Role, facts: Mapping[Expression, bool]) -> None:
        """Notes the boxes of a block's only tile when a role ends, and whether there was no tile left."""
        left = [fact for fact, holds in facts.items() if not holds and fact.operation == "lt.s32" and _names_tile(fact.arguments[0])]
        self.ends.setdefault(role.threads, set()).add(frozenset(left))
        if not left:
            self._iteration(state, role, INDEX)

    def _result(
        self,
        state: State,
        role: Role,
        instruction: Instruction,
        tensor_map: TensorMapArgument,
        start: int | tuple[int, ...],
        threads: tuple[bool, ...],
        values: Values,
    ) -> State:
        """The state after boxes left whose contents are followed."""
        if self.fragments is None:
            return state
        target = instruction.operands[0]
        assert isinstance(target, Address) and isinstance(target.extra[0], Vector)
        tracked, groups = state.tracked, _groups(role.threads)
        for thread, here in enumerate(threads):
            if here:
                coordinates = [of_thread(values.of(element), thread) for element in target.extra[0].elements]
                begin = start if isinstance(start, int) else start[thread]
                tracked = self.fragments.left(tracked, instruction, tensor_map.name, begin, coordinates, groups)
        return replace(state, tracked=tracked)

    def renamed(self, role: Role, old: Expression, name: Expression, grows: bool) -> object:
        """Boxes of a counter's earlier values are of no interest in later iterations: their places differ."""
        state = role.monitor
        assert isinstance(state, State)
        if counts_tiles(name):
            self._iteration(state, role, name if grows else INDEX)
        if self.fragments is not None:
            state = replace(state, tracked=self.fragments.renamed(state.tracked, old, name))
        if not grows and any(_mentions(places, name) for _, places in state.sent):
            self.findings.note("once", ("counter", name), False, "a loop that stores boxes begins again")
        renewed_boxes: set[tuple[int, tuple[Content, ...]]] = set()
        for line, places in state.sent:
            renewed = tuple(place for each in places if (place := renamed(each, old, name)) is not None)
            if len(renewed) == len(places):
                renewed_boxes.add((line, renewed))
        return state if renewed_boxes == state.sent else replace(state, sent=frozenset(renewed_boxes))

    # -- products ----------------------------------------------------------------------------------------------

    def _product(self, state: State, role: Role, instruction: Instruction, values: Values) -> State:
        if sum(role.threads) % WARPGROUP_THREADS or any(
            len(set(role.threads[first : first + WARPGROUP_THREADS])) > 1 for first in range(0, len(role.threads), WARPGROUP_THREADS)
        ):
            raise Unliftable(instruction, "a product of a part of a warpgroup")
        words = instruction.modifiers
        if words[0] == "fence":
            return replace(state, dirty=frozenset())
        if words[0] == "commit_group":
            if len(state.groups) == MAX_GROUPS:
                raise Unliftable(instruction, f"more than {MAX_GROUPS} groups of products before a wait")
            return replace(state, groups=(*state.groups, state.open), open=_Group())
        if words[0] == "wait_group":
            (amount,) = instruction.operands
            assert isinstance(amount, Integer)
            return replace(state, groups=state.groups[len(state.groups) - min(amount.value, len(state.groups)) :])
        if words[0] != "mma_async":
            raise Unliftable(instruction, "this product is not modelled")
        results, a, b = instruction.operands[:3]
        assert isinstance(results, Vector)
        used, targets = self._of_products(instruction)
        sources = used - targets
        fine = not (targets | sources) & state.dirty
        self.findings.note(
            "races", ("product", instruction.line), fine, "other statements used its registers since the last fence", instruction
        )
        flying = (state.open, *state.groups)
        result = next(word for word in words if word.startswith("m64n")), targets
        others = [each for group in flying for each in group.results]
        fine = all(each == result or not used & each[1] for each in others) and not any(
            targets & (group.registers - frozenset().union(*[each for _, each in group.results])) for group in flying
        )
        self.findings.note("races", ("operands", instruction.line), fine, "its registers belong to another product in flight", instruction)
        slots = frozenset[int]()
        for which, operand in enumerate((a, b)):
            if not isinstance(operand, Vector):
                slots |= self._read(state, role, instruction, values.of(operand), which)
        held = tuple((slot, was_read or slot in slots) for slot, was_read in state.held)
        if self.fragments is not None:
            use = None
            places = [place for place, (slot, _) in enumerate(state.held) if slot in slots]
            if len(slots) == 1 and len(places) == 1:
                use = state.uses - len(state.held) + places[0]
            contents = (values.of(a), values.of(b))
            descriptors = [
                [content[WARPGROUP_THREADS * group] if isinstance(content, tuple) else content for content in contents]
                for group in _groups(role.threads)
            ]
            scale = values.of(instruction.operands[3])
            state = replace(state, tracked=self.fragments.multiplied(state.tracked, instruction, use, scale, descriptors))
        opened = _Group(state.open.slots | slots, state.open.registers | used, state.open.results | {result})
        return replace(state, open=opened, held=held)

    def _read(self, state: State, role: Role, instruction: Instruction, content: Content | None, which: int) -> frozenset[int]:
        """The slots that an operand in shared memory lies in; each must be held, and its bytes filled."""
        if not isinstance(content, int | tuple):
            raise Unliftable(instruction, "a matrix descriptor that is not known")
        slots: set[int] = set()
        for first in range(0, len(role.threads), WARPGROUP_THREADS):
            if not role.threads[first]:
                continue
            bits = content if isinstance(content, int) else content[first]
            if isinstance(content, tuple) and len(set(content[first : first + WARPGROUP_THREADS])) > 1:
                raise Unliftable(instruction, "a matrix descriptor that differs within a warpgroup")
            slots |= self._slots_read(state, instruction, bits, which)
        return frozenset(slots)

    def _slots_read(self, state: State, instruction: Instruction, bits: int, which: int) -> set[int]:
        if not self.known_fills:
            return {state.held[-1][0]} if state.held else set()
        key = (id(instruction), bits, which)
        if key not in self._slots_of_operands:
            self._slots_of_operands[key] = self._slots_of(instruction, bits, which)
        slots = self._slots_of_operands[key]
        self._ring(instruction, slots <= {slot for slot, _ in state.held}, "a product reads a slot that is not held")
        return set(slots)

    def _slots_of(self, instruction: Instruction, bits: int, which: int) -> frozenset[int]:
        """The slots that an operand lies in; notes bytes outside of them and of shared memory."""
        addresses, _ = operand_chunks(instruction, bits, which)
        low, high = int(addresses.min()), int(addresses.max()) + CHUNK_BYTES
        inside = low >= SHARED_BASE and high <= SHARED_BASE + self.shared_bytes
        self.findings.note("memory", (instruction.line, bits), inside, "reads outside of shared memory", instruction)
        if not inside:
            raise Unliftable(instruction, "reads outside of shared memory")
        slots = frozenset(
            int(slot) for slot in np.unique(self._slot_of[(addresses.reshape(-1, 1) - SHARED_BASE + np.arange(CHUNK_BYTES)).ravel()])
        )
        self.findings.note("initialised", (instruction.line, bits), -1 not in slots, "reads bytes that no copy fills", instruction)
        return slots - {-1}

    # -- threads' own accesses ---------------------------------------------------------------------------------

    def _meet(self, state: State, role: Role, instruction: Instruction, values: Values) -> State:
        if any(word in instruction.modifiers for word in ("arrive", "red")):
            raise Unliftable(instruction, "only barriers at which all of their threads wait are modelled")
        if instruction.has("warp"):
            return state
        number = values.of(instruction.operands[0])
        threads = values.of(instruction.operands[1]) if len(instruction.operands) == 2 else len(role.threads)
        if not isinstance(number, int | tuple) or not isinstance(threads, int):
            raise Unliftable(instruction, "a barrier that is not known")
        if len(instruction.operands) == 2 and threads % WARP_THREADS:
            raise Unliftable(instruction, "a barrier waits for whole warps")
        numbers = number if isinstance(number, tuple) else (number,) * len(role.threads)
        mine = [each for each, here in zip(numbers, role.threads, strict=True) if here]
        if any(mine.count(each) != threads for each in set(mine)) or any(not 0 <= each < 16 for each in mine):
            raise Unliftable(instruction, "a barrier whose threads are not those that come to it")
        self.findings.note("progress", ("barrier", instruction.line), True, "")
        if not state.started:
            if threads != len(role.threads):
                raise Unliftable(instruction, "some threads meet before the block does")
            if state.barriers and not state.fenced:
                raise Unliftable(instruction, "barriers are not visible to TMA when the block meets")
            if self.barriers not in (None, state.barriers):
                raise Unliftable(instruction, "barriers are not always the same")
            if state.barriers:
                self.barriers = state.barriers
                if len(state.barriers) % 2:
                    raise Unliftable(instruction, "barriers that are no ring")
            return replace(state, started=bool(state.barriers))
        for other, names in self.teams.items():
            if other != role.threads and {each for each, here in zip(names, other, strict=True) if here} & set(mine):
                raise Unliftable(instruction, "threads of two roles meet at one barrier")
        if self.teams.setdefault(role.threads, numbers) != numbers:
            raise Unliftable(instruction, "threads meet in different teams")
        return replace(
            state,
            teams_met=True,
            plain=frozenset(),
            fenced_stores=frozenset(),
            visible=state.visible | state.fenced_stores,
            older=state.older | state.plain,
            loads=frozenset(),
            left=frozenset(),
        )

    def _fence(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...]) -> State:
        if instruction.has("mbarrier_init"):
            return replace(state, fenced=True) if state.owner >= 0 and threads[state.owner] else state
        if instruction.has("proxy"):
            if not instruction.has("async"):
                raise Unliftable(instruction, "this fence between proxies is not modelled")
            if threads != role.threads or any(word in instruction.modifiers for word in ("global", "acquire")):
                return state
            fenced = state.fenced or (state.owner >= 0 and threads[state.owner])
            return replace(state, plain=frozenset(), fenced_stores=state.fenced_stores | state.plain, fenced=fenced)
        return state

    def _access(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        opcode = instruction.opcode
        if instruction.has("param"):
            why = beyond_parameters(self._function, instruction)
            self.findings.note("memory", instruction.line, not why, why, instruction)
            return state
        if instruction.has("const"):
            self.direct[id(instruction)] = instruction
            return state
        if not instruction.has("shared") and not any(word.startswith("shared::cta") for word in instruction.modifiers):
            if opcode in ("st", "ld") and instruction.has("global"):
                self.direct[id(instruction)] = instruction
                if self.launch.programmatic and not state.dependencies:
                    self.findings.note("races", ("dependencies", instruction.line), False, "the launch before may still run", instruction)
                return state
            if opcode in ("red", "atom") and instruction.has("global"):
                for name in ("memory", "once", "races", "initialised"):
                    self.findings.note(name, instruction.line, False, "threads change global memory by atomics", instruction)
                return state
            raise Unliftable(instruction, "an access of unknown space")
        if opcode in ("red", "atom"):
            raise Unliftable(instruction, "atomic operations in shared memory are not modelled here")
        if not state.started:
            raise Unliftable(instruction, "shared memory is used before the block has met")
        stores = opcode in ("st", "stmatrix")
        where, data = instruction.operands[:2] if stores else instruction.operands[1::-1]
        address = values.of(where)
        if not isinstance(address, int | tuple):
            raise Unliftable(instruction, "an address in shared memory that is not known")
        if opcode in ("ldmatrix", "stmatrix"):
            matrices = next((int(word[1:]) for word in instruction.modifiers if word in ("x1", "x2", "x4")), 1)
            if not instruction.has("m8n8"):
                raise Unliftable(instruction, "only matrices of 8 x 8 are modelled")
            threads = tuple(here and number % WARP_THREADS < 8 * matrices for number, here in enumerate(threads))
            size = 16
        else:
            size = TYPE_BYTES[instruction.type] * (len(data.elements) if isinstance(data, Vector) else 1)
        number = self._footprint(instruction, address, size, threads, stores, size, by_warp=opcode == "stmatrix")
        self._users.setdefault(number, set()).add(role.threads)
        if not stores:
            return self._loaded(state, instruction, number)
        if self.fragments is not None:
            state = replace(state, tracked=self.fragments.stored(state.tracked, instruction, address, threads, size))
        return self._stored(state, instruction, number)

    def _stored(self, state: State, instruction: Instruction, number: int) -> State:
        recent = state.plain | state.fenced_stores | state.loads
        meets = any(self._meets(number, other) for other in (number, *recent))
        self.findings.note("races", ("store", instruction.line), not meets, "meets another access without a barrier", instruction)
        engine = state.leaving.union(state.left, *state.leaving_groups)
        fine = not any(self._overlap(number, other) for other in engine)
        self.findings.note("races", ("engine", instruction.line), fine, "TMA may still read there", instruction)
        sets = {
            name: frozenset(other for other in stores if not self._overlap(number, other))
            for name, stores in (("visible", state.visible), ("older", state.older))
        }
        return replace(state, plain=state.plain | {number}, visible=sets["visible"], older=sets["older"])

    def _loaded(self, state: State, instruction: Instruction, number: int) -> State:
        recent = state.plain | state.fenced_stores
        meets = any(self._meets(number, other) for other in recent)
        self.findings.note("races", ("load", instruction.line), not meets, "meets a store without a barrier", instruction)
        owners = self._owners[number][0]
        ready = np.zeros(len(owners), np.bool_)
        for other in state.visible | state.older:
            ready |= self._owners[other][0] >= 0
        for other in recent:
            ready |= self._owners[other][0] == owners
        self._unwritten(state, instruction, (owners >= 0) & ~ready)
        return replace(state, loads=state.loads | {number})

    def _unwritten(self, state: State, instruction: Instruction, bytes_: np.ndarray) -> None:
        """Notes the bytes of a load that no thread of this block wrote before."""
        self.findings.note("initialised", instruction.line, not bytes_.any(), "reads bytes that were not written", instruction)

    def _inside(self, instruction: Instruction, start: int, size: int, alignment: int) -> bool:
        inside = start >= SHARED_BASE and start + size <= SHARED_BASE + self.shared_bytes and start % alignment == 0
        self.findings.note("memory", (instruction.line, start), inside, "outside of shared memory, or not aligned", instruction)
        return inside

    def _footprint(
        self,
        instruction: Instruction,
        address: int | tuple[int, ...],
        size: int,
        threads: tuple[bool, ...],
        stores: bool,
        alignment: int,
        by_warp: bool = False,
        box: TensorMapArgument | None = None,
    ) -> int:
        """The number of the bytes that an access touches."""
        key = (id(instruction), address, threads)
        if key not in self._footprints:
            owners = np.full(self.shared_bytes, -1, np.int32)
            for thread, here in enumerate(threads):
                if here:
                    start = address if isinstance(address, int) else address[thread]
                    if not self._inside(instruction, start, size, alignment):
                        raise Unliftable(instruction, "outside of shared memory, or not aligned")
                    owner = len(threads) + thread // WARP_THREADS if by_warp else thread
                    place = box_places(box, start).ravel() if box is not None else np.arange(start, start + size)
                    before = owners[place - SHARED_BASE]
                    if stores and ((before >= 0) & ((before != owner) | by_warp)).any():  # a lane names a row of its warp
                        self.findings.note("races", ("one store", instruction.line), False, "two threads store the same bytes", instruction)
                    owners[place - SHARED_BASE] = owner
            self._footprints[key] = len(self._owners)
            self._owners.append((owners, stores))
        return self._footprints[key]

    def _meets(self, one: int, two: int) -> bool:
        """True if two threads touch the same byte."""
        if (one, two) not in self._meetings:
            a, b = self._owners[one][0], self._owners[two][0]
            self._meetings[one, two] = bool(((a >= 0) & (b >= 0) & (a != b)).any())
        return self._meetings[one, two]

    def _overlap(self, one: int, two: int) -> bool:
        a, b = self._owners[one][0], self._owners[two][0]
        return bool(((a >= 0) & (b >= 0)).any())

    # -- the kernel as a whole ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Checks of the kernel as a whole, after all ways were followed."""
        if self.barriers is None:
            raise Unliftable(None, "no ring of barriers in shared memory")
        counts, slots = dict(self.barriers), self._slots()
        different = len({*self.full, *self.empty}) == 2 * slots and len(self.full) == len(self.empty) == slots
        if not different or {*self.full, *self.empty} != set(counts):
            raise Unliftable(None, "the barriers in shared memory are no single ring")
        if len(self.fillers) != 1 or not self.readers:
            raise Unliftable(None, "a ring that is not filled by one thread")
        whole = all(party == self.fillers | self.readers for party in self.parties)
        for name in ("races", "progress", "initialised"):
            self.findings.note(name, "parties", whole, "the ring may be used without its filler, or without some of its readers")
        self._counted(counts)
        self._disjoint(counts)
        self.enough_registers()

    def _counted(self, counts: Mapping[int, int]) -> None:
        """Phases end with one arrival of each warp, or of the filler."""
        note = self.findings.note
        arriving = sum(sum(self.arrivals.get(role, ())) for role in self.readers)
        fine = all(counts[each] == 1 for each in self.full) and all(counts[each] == arriving for each in self.empty)
        for name in ("races", "progress", "initialised"):
            note(name, "arrivals", fine, f"a slot is released by {arriving} arrivals, and its barrier counts {counts[self.empty[0]]}")

    def _disjoint(self, counts: Mapping[int, int]) -> None:
        """Slots, barriers and the memory of each team lie apart."""
        taken = np.zeros(self.shared_bytes, np.int32)
        for address in counts:
            taken[address - SHARED_BASE : address - SHARED_BASE + BARRIER_BYTES] += 1
        for regions in self.fills.values():
            for start, size in regions:
                taken[start - SHARED_BASE : start - SHARED_BASE + size] += 1
        touched: dict[object, np.ndarray] = {}
        written_by: dict[object, np.ndarray] = {}
        count = self.launch.threads
        team_of: dict[int, tuple[tuple[int, int], ...]] = {}  # threads of one team meet in every role that has them
        for place, (role, names) in enumerate(self.teams.items()):
            for thread, here in enumerate(role):
                if here:
                    team_of[thread] = (*team_of.get(thread, ()), (place, names[thread]))
        for owners, stores in self._owners:
            for owner in np.unique(owners[owners >= 0]).tolist():
                thread = owner if owner < count else (owner - count) * WARP_THREADS
                team = team_of.get(thread, ("thread", thread))
                here = owners == owner
                touched[team] = touched.get(team, np.zeros(self.shared_bytes, np.bool_)) | here
                if stores:
                    written_by[team] = written_by.get(team, np.zeros(self.shared_bytes, np.bool_)) | here
        for bytes_ in touched.values():
            taken[bytes_] += 1
        apart = not (taken > 1).any() and not self._parted_meet()
        self.findings.note("races", "separate memory", apart, "slots, barriers and the memory of teams of threads overlap")

    def _parted_meet(self) -> bool:
        """True if roles that have parted may touch the same bytes: barriers that the whole block met at before do not order them."""
        touched: dict[tuple[bool, ...], np.ndarray] = {}
        written_by: dict[tuple[bool, ...], np.ndarray] = {}
        for number, (owners, stores) in enumerate(self._owners):
            for role in self._users.get(number, ()):
                for bytes_ in (touched, written_by) if stores else (touched,):
                    bytes_[role] = bytes_.get(role, np.zeros(self.shared_bytes, np.bool_)) | (owners >= 0)
        return any(
            (touched[one] & written_by[other]).any() and not _contains(one, other) and not _contains(other, one)
            for other in written_by
            for one in touched
        )


def _groups(threads: tuple[bool, ...]) -> tuple[int, ...]:
    """The warpgroups that some threads belong to."""
    return tuple(first // WARPGROUP_THREADS for first in range(0, len(threads), WARPGROUP_THREADS) if threads[first])


def _variable(content: Content | None) -> str:
    """The name of a variable whose address this is; empty for other contents."""
    if isinstance(content, Expression) and content.operation == "symbol" and content.arguments[1] == 0:
        name = content.arguments[0]
        return name.operation if isinstance(name, Expression) else ""
    return ""


def counts_tiles(content: Content | None) -> bool:
    """True for the number of a tile in the loop of a persistent block, after its first one."""
    return isinstance(content, Expression) and content.operation == "counter" and {INDEX, GRID} == {*content.arguments[:2]}


def _names_tile(content: Content | None) -> bool:
    return content == INDEX or counts_tiles(content)


def _of_later_tiles(content: Content | None) -> bool:
    return isinstance(content, Expression) and (counts_tiles(content) or any(map(_of_later_tiles, content.arguments)))


def _mentions(places: Sequence[Content], part: Expression) -> bool:
    return any(isinstance(place, Expression) and place.mentions(part) for place in places)


def _within(comparison: Expression, place: Expression) -> bool:
    """True if a coordinate depends on the number that a comparison bounds."""
    number = comparison.arguments[0]
    return isinstance(number, Expression) and place.mentions(number)


def _contains(threads: tuple[bool, ...], others: tuple[bool, ...]) -> bool:
    return all(here or not other for here, other in zip(threads, others, strict=True)) if others else True


def product_registers(function: Function) -> frozenset[str]:
    """Names of the registers that the function's products read and write."""
    names: set[str] = set()
    for instruction in function.body:
        if instruction.opcode == "wgmma" and instruction.has("mma_async"):
            for operand in instruction.operands[:2]:
                if isinstance(operand, Vector):
                    names |= {register.name for register in registers_of(operand)}
            if instruction.has("sp"):
                names |= {register.name for register in registers_of(instruction.operands[3])}
    return frozenset(names)


def uses_rings(function: Function) -> bool:
    """True for a kernel with barriers in shared memory."""
    return any(instruction.opcode == "mbarrier" for instruction in function.body)


def follow(
    sequence: LaunchSequence,
    launch: KernelLaunch,
    module: Module,
    function: Function,
    check_time: Callable[[], None],
    fragments: Callable[[Mapping[str, TensorMapArgument], int], Fragments | None] = lambda *_: None,
) -> tuple[Ring, Runner]:
    """The protocol of a kernel, followed on all its ways. Raises ``Unliftable``.

    ``fragments``: follows sums of products, from the tensor maps and the bytes of shared memory.
    """
    name, size = one_shared_array(launch, module, function)
    ring, _ = _run(sequence, launch, function, size, name, {}, check_time)
    used = fragments({map_.name: map_ for map_ in ring.maps.values()}, size)
    return _run(sequence, launch, function, size, name, ring.fills, check_time, used)


def one_shared_array(launch: KernelLaunch, module: Module, function: Function, *, static: bool = False) -> tuple[str, int]:
    """The name and the bytes of the only array in shared memory, which may be ``static``. Raises ``Unliftable``."""
    shared = [variable for variable in (*module.variables.values(), *function.variables) if variable.space == "shared"]
    if static and len(shared) == 1 and shared[0].size:
        return shared[0].name, shared[0].size
    if len(shared) != 1 or shared[0].size or shared[0].name not in module.variables:
        raise Unliftable(None, "shared memory that is not one array of the launch's size")
    try:
        size = launch.dynamic_shared_bytes.evaluate({})
    except Exception as error:
        raise Unliftable(None, "the size of shared memory depends on the problem") from error
    return shared[0].name, size


def _run(
    sequence: LaunchSequence,
    launch: KernelLaunch,
    function: Function,
    size: int,
    shared: str,
    fills: Mapping[int, tuple[tuple[int, int], ...]],
    check_time: Callable[[], None],
    fragments: Fragments | None = None,
) -> tuple[Ring, Runner]:
    ring = Ring(sequence, launch, function, size, fills)
    ring.product_registers = product_registers(function)
    ring.fragments = fragments
    runner = Runner(function, launch.block, ring, check_time)
    runner.shared = shared
    runner.run()
    ring.settle()
    return ring, runner
