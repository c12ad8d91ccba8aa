"""The order of kernels that multiply by ``tcgen05``: one ring of stages in shared memory and one of sets of sums in tensor memory.

Three parties take part. ``Survey`` finds them and their barriers; ``TensorRings`` checks the sequence of each one's events in every state:

- The filler fills use c of the stages as in ``gemmgen.proof.rings``.
- The issuer, one thread, opens use t of the T sets: it waits for ``drained[t mod T]``. For each use of the stages it waits for ``full``,
  starts products that read held stages and write the open set, and commits them to ``empty``. A commit to ``done[t mod T]`` closes the set.
- The readers, whole warps, wait for ``done[t mod T]``, load the set and wait for the loads. One thread of each warp arrives at ``drained``.

A commit arrives when all earlier products of its thread are complete. So a stage is refilled, and a set is read, after the products that
use them; a set is written again after every warp has read it. Between two decisions that both parties of a ring take, they use it equally
often, so parities do not alias, by the argument of ``gemmgen.proof.rings`` for each ring.

No wait is unmatched. Filler and issuer use the stages in one order, issuer and readers the sets. If the filler waits for use c of a stage
to be empty, the issuer has not committed use c - S; if the issuer waits for use c to be full, the filler has not reached use c. Both
cannot hold, and the same is true of the sets. So of the three, one continues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gemmgen.emulator import matrix_descriptor
from gemmgen.emulator.instructions.tensor_product import KINDS, decode
from gemmgen.emulator.ptx.syntax import (
    Address,
    Function,
    Instruction,
    Integer,
    Module,
    Negated,
    Operand,
    Register,
    Vector,
    registers_of,
    written,
)
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.launch import KernelLaunch, LaunchSequence
from gemmgen.proof.control import Unliftable
from gemmgen.proof.layouts import CHUNK_BYTES, box_bytes
from gemmgen.proof.rings import MAX_USES, Ring, State, _Group, _variable
from gemmgen.proof.roles import SHARED_BASE, Facts, Role, Runner, Values
from gemmgen.proof.symbols import Content, Expression, of_thread

COLUMNS = 512
LANES = 128
WARPS_OF_LANES = LANES // WARP_THREADS
MIN_COLUMNS = 32
BASE = Expression("tensor memory")
"""The address of the columns that a block allocated: lane 0 of any column."""
ROW_BYTES = 32
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
LOADS = {"32x32b": (32, 1), "16x64b": (16, 2), "16x128b": (16, 4), "16x256b": (16, 8)}
"""Lanes and columns of a load with ``.x1``."""
LANES_AT_ONCE = 16
ADDRESS_BYTES = 4
Cells = tuple[int, int, int]
"""A set of sums, the first column and the number of columns."""


def uses_tensor_memory(function: Function) -> bool:
    """True for a kernel with products in tensor memory."""
    return any(instruction.opcode == "tcgen05" for instruction in function.body)


@dataclass
class Barriers:
    """The parties, by thread, and the barriers between them."""

    filler: int
    issuer: int
    readers: frozenset[int]
    full: frozenset[int]
    empty: frozenset[int]
    done: frozenset[int]
    drained: frozenset[int]
    address_at: int
    """Address in shared memory to which the allocation writes that of the columns."""

    @property
    def stages(self) -> int:
        """Slots of the ring in shared memory."""
        return len(self.full)

    @property
    def sets(self) -> int:
        """Slots of the ring in tensor memory."""
        return len(self.done)


def _address(instruction: Instruction, operand: Operand, values: Values) -> int:
    address = values.of(operand)
    if not isinstance(address, int):
        raise Unliftable(instruction, "a barrier whose address is not known")
    return address


class Survey:
    """Collects the uses of barriers, without any check. Implements ``gemmgen.proof.roles.Monitor``."""

    def __init__(self) -> None:
        self.waits: dict[int, set[int]] = defaultdict(set)
        self.promises: dict[int, set[int]] = defaultdict(set)
        self.arrivals: dict[int, set[int]] = defaultdict(set)
        self.commits: dict[int, set[int]] = defaultdict(set)
        self.begun: set[int] = set()
        self.copies: set[int] = set()
        self.places: dict[int, set[tuple[str, int]]] = defaultdict(set)
        """Map and address of the boxes that are copied, by the barrier that counts their bytes."""
        self.products: set[int] = set()
        self.loads: set[int] = set()
        self.addresses: set[int] = set()

    def event(self, state: object, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> object:
        """Notes the threads of an event."""
        here = {number for number, takes in enumerate(threads) if takes}
        words, operands = instruction.modifiers, instruction.operands
        match instruction.opcode, words[0] if words else "":
            case "mbarrier", "init":
                self.begun.add(_address(instruction, operands[0], values))
            case "mbarrier", "try_wait" | "test_wait":
                self.waits[_address(instruction, operands[1], values)] |= here
            case "mbarrier", _:
                chosen = self.promises if "expect_tx" in words else self.arrivals
                chosen[_address(instruction, operands[1], values)] |= here
            case "cp", _:
                if "tensor" in words and "shared::cluster" in words and len(operands) == 3:
                    self.copies |= here
                    map_ = _variable(values.of(operands[1].base)) if isinstance(operands[1], Address) else ""
                    start = values.of(operands[0])
                    if isinstance(start, int):
                        self.places[_address(instruction, operands[2], values)].add((map_, start))
            case "tcgen05", "alloc":
                self.addresses.add(_address(instruction, operands[0], values))
            case "tcgen05", "commit":
                self.commits[_address(instruction, operands[0], values)] |= here
            case "tcgen05", "mma":
                self.products |= here
            case "tcgen05", "ld":
                self.loads |= here
        return state

    def start(self) -> object:
        """The only state."""
        return None

    def plain(self, state: object, instruction: Instruction, certain: bool) -> object:
        """Statements on registers are of no interest."""
        return state

    def finished(self, state: object, role: Role, facts: Facts) -> None:
        """The end of a role is of no interest."""

    def idle(self, state: object) -> bool:
        """No role counts."""
        return True

    def together(self, states: Sequence[object], complete: bool, facts: Facts) -> Sequence[object]:
        """The states as they are."""
        return states

    def between(self, roles: Sequence[Role], chosen: Collection[int]) -> Sequence[object]:
        """The states as they are."""
        return [roles[place].monitor for place in chosen]

    def met(self, roles: Sequence[Role]) -> object:
        """The state of all threads."""
        return None

    def counted(self, state: object, number: int, name: Expression) -> object:
        """The state as it is."""
        return state

    def renamed(self, role: Role, old: Expression, name: Expression, grows: bool) -> object:
        """The state as it is."""
        return role.monitor

    @property
    def address_at(self) -> int:
        """Where the address of the columns is, as far as it is known."""
        return next(iter(self.addresses), -1)

    def barriers(self) -> Barriers:
        """The parties and their barriers. Raises ``Unliftable`` for other uses of barriers."""
        if len(self.copies) != 1 or len(self.products) != 1 or not self.loads or self.copies & self.products:
            raise Unliftable(None, "not one thread that copies, one that multiplies, and others that load sums")
        (filler,), (issuer,), readers = self.copies, self.products, frozenset(self.loads)
        if {filler, issuer} & readers or len(self.addresses) != 1:
            raise Unliftable(None, "parties that are not apart, or several allocations of tensor memory")
        full = frozenset(self.promises)
        by = {party: frozenset(each for each, threads in self.waits.items() if party in threads) for party in (filler, issuer, *readers)}
        empty, drained = by[filler], by[issuer] - full
        done = frozenset().union(*[by[reader] for reader in readers])
        kinds = (full, empty, done, drained)
        allowed = {filler: empty, issuer: full | drained}
        fine = (
            sum(map(len, kinds)) == len(frozenset().union(*kinds))
            and frozenset().union(*kinds) == self.begun
            and len(full) == len(empty) > 0
            and len(done) == len(drained) > 0
            and full <= by[issuer]
            and set(self.commits) == empty | done
            and set(self.arrivals) == drained
            and all(threads == {issuer} for threads in self.commits.values())
            and all(threads == {filler} for threads in self.promises.values())
            and all(threads <= readers for threads in self.arrivals.values())
            and all(each in allowed.get(thread, done) for each, threads in self.waits.items() for thread in threads)
        )
        if not fine:
            raise Unliftable(None, "the barriers in shared memory are no two rings")
        return Barriers(filler, issuer, readers, full, empty, done, drained, next(iter(self.addresses)))


@dataclass(frozen=True)
class TensorState(State):
    """One role's place in both rings."""

    columns: int = 0
    """Columns that were allocated; 0 before and after."""
    allocations: int = 0
    relinquished: bool = False
    changed: bool = False
    """True if operations on tensor memory follow the last ``fence::before_thread_sync``."""
    synchronized: bool = False
    """True if the warp has met since that fence."""
    ordered: bool = False
    """True if ``fence::after_thread_sync`` follows the last wait for a set, or for the block."""
    iteration: int = 0
    """The next use of the sets, modulo twice their number."""
    iterations: int = 0
    """Uses of the sets since the last decision that issuer and readers took together."""
    opened: int = -1
    """The set that the issuer writes, or readers read."""
    begun: frozenset[Cells] = frozenset()
    """Sums of the open set that do not continue from earlier contents."""
    uncommitted: bool = False
    """True if products follow the last commit that readers wait for."""
    sums: frozenset[Cells] = frozenset()
    """Sums that the issuer handed on since the last common decision."""
    loaded: frozenset[Cells] = frozenset()
    """Cells that readers loaded since then."""
    waited: bool = False
    """True once it waited for a stage or a set."""
    over: bool = False
    """True once the block has met after some thread had: in which phases the barriers are then depends on how often they were used."""


class TensorRings(Ring):
    """The protocol of one kernel with both rings."""

    known: Barriers

    def __init__(
        self,
        sequence: LaunchSequence,
        launch: KernelLaunch,
        function: Function,
        shared_bytes: int,
        fills: Mapping[int, tuple[tuple[int, int], ...]],
        known: Barriers,
    ) -> None:
        super().__init__(sequence, launch, function, shared_bytes, fills)
        self.known = known
        self.done: list[int] = []
        self.drained: list[int] = []
        self.set_columns: dict[int, set[tuple[int, int]]] = defaultdict(set)
        self.allocated: set[int] = set()
        self._kinds: dict[Cells, str] = {}
        """The kind of the products that write sums."""
        self._loads: dict[object, frozenset[tuple[int, int]]] = {}
        """The columns that a load's threads reach, by its address."""

    @property
    def address_at(self) -> int:
        """Where the address of the columns is."""
        return self.known.address_at

    # -- Monitor -----------------------------------------------------------------------------------------------

    def start(self) -> TensorState:
        """The state before the first event."""
        return TensorState()

    def event(self, state: object, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> object:
        """The state after an event."""
        if instruction.opcode == "setmaxnreg":
            raise Unliftable(instruction, "numbers of registers are not modelled for tensor memory")
        if instruction.opcode != "tcgen05":
            return super().event(state, role, instruction, threads, values)
        state = self.plain(state, instruction, False)
        assert isinstance(state, TensorState)
        words = instruction.modifiers
        if "cta_group::2" in words:
            raise Unliftable(instruction, "pairs of blocks are not modelled")
        match words[0]:
            case "fence::before_thread_sync":
                return replace(state, changed=False, synchronized=False) if threads == role.threads else state
            case "fence::after_thread_sync":
                return replace(state, ordered=True) if threads == role.threads else state
            case "wait::ld":
                if threads != role.everyone.threads:
                    raise Unliftable(instruction, "a wait of some threads")
                return replace(state, open=_Group())
            case "alloc":
                return self._allocate(state, instruction, threads, values)
            case "relinquish_alloc_permit":
                return replace(state, relinquished=True)
            case "dealloc":
                return self._free(state, role, instruction, threads, values)
            case "ld":
                return self._load(state, role, instruction, threads, values)
            case "mma":
                return self._multiply(state, role, instruction, threads, values)
            case "commit":
                return self._commit(state, role, instruction, threads, values)
        raise Unliftable(instruction, f"tcgen05.{words[0]} is not modelled")

    def finished(self, state: object, role: Role, facts: Mapping[Expression, bool]) -> None:
        """Nothing is in flight at the end, and nothing allocated."""
        assert isinstance(state, TensorState)
        super().finished(state, role, facts)
        self.findings.note("memory", ("columns", role.threads), not state.columns, "tensor memory is still allocated when the block ends")
        self._quiet(state, "when the block ends")

    def _quiet(self, state: TensorState, when: str) -> None:
        """Nothing is between two uses of a ring, and nothing in flight."""
        if state.held or state.promised >= 0 or state.opened >= 0 or state.uncommitted or state.open.registers:
            raise Unliftable(None, f"a stage, a set of sums or a load is in use {when}")

    def between(self, roles: Sequence[Role], chosen: Collection[int]) -> Sequence[TensorState]:
        """The states of roles that decide together: both parties of a ring have used it as often since the last time."""
        mine = [roles[place].monitor for place in chosen]
        states = [state for state in mine if isinstance(state, TensorState)]
        if any(state.uses > MAX_USES or state.iterations > MAX_USES for state in states):
            raise Unliftable(None, f"more than {MAX_USES} uses of a ring between two decisions that both parties take")
        here = {number for place in chosen for number, takes in enumerate(roles[place].everyone.threads) if takes}
        of_ring = [role.monitor for place in chosen if self._has(role := roles[place], self.known.filler, self.known.issuer)]
        if {self.known.filler, self.known.issuer} <= here:
            self._equal([state.uses for state in of_ring if isinstance(state, TensorState)], "the stages are")
            states = [replace(state, uses=0) for state in states]
        if {self.known.issuer, *self.known.readers} <= here:
            of_sets = [role.monitor for place in chosen if self._has(role := roles[place], self.known.issuer, *self.known.readers)]
            self._handed_on([state for state in of_sets if isinstance(state, TensorState)])
            states = [replace(state, iterations=0, sums=frozenset(), loaded=frozenset()) for state in states]
        return states

    def _has(self, role: Role, *threads: int) -> bool:
        return any(role.everyone.threads[thread] for thread in threads)

    def _equal(self, uses: Collection[int], subject: str) -> None:
        equal = len(set(uses)) <= 1
        if not equal:
            raise Unliftable(None, f"{subject} not used equally often by both parties between two decisions")
        for name in ("races", "progress", "initialised"):
            self.findings.checked[name].add(("uses", subject))

    def _handed_on(self, states: Collection[TensorState]) -> None:
        self._equal([state.iterations for state in states], "the sets of sums are")
        sums = frozenset().union(*[state.sums for state in states])
        loaded = frozenset().union(*[state.loaded for state in states])
        for set_, first, width in loaded:
            fine = any(set_ == other and begin <= first and first + width <= begin + count for other, begin, count in sums)
            self.findings.note("initialised", ("sums", set_, first, width), fine, "readers load sums that no product wrote")

    def met(self, roles: Sequence[Role]) -> TensorState:
        """The state of all threads at a barrier where they meet again."""
        states = [role.monitor for role in roles if isinstance(role.monitor, TensorState)]
        states = [state for state in self.between(roles, range(len(roles))) if isinstance(state, TensorState)]
        for state in states:
            self._quiet(state, "when the block meets")
            self.findings.note("races", "fences", not state.changed, "no tcgen05.fence::before_thread_sync before the block meets")
            if state.groups or state.leaving or any(state.leaving_groups) or state.barriers != states[0].barriers:
                raise Unliftable(None, "operations in flight when the block meets")
        first = states[0]
        return replace(
            first,
            fills=False,
            reads=False,
            use=0,
            iteration=0,
            waited=False,
            over=any(state.waited or state.over for state in states),
            filled=(),
            ordered=False,
            changed=False,
            columns=max(state.columns for state in states),
            senders=(),
            plain=frozenset().union(*[state.plain for state in states]),
            fenced_stores=frozenset().union(*[state.fenced_stores for state in states]),
            visible=frozenset().union(*[state.visible for state in states]),
            older=frozenset().union(*[state.older for state in states]),
            loads=frozenset().union(*[state.loads for state in states]),
            left=frozenset().union(*[state.left for state in states]),
            sent=frozenset().union(*[state.sent for state in states]),
        )

    # -- barriers in shared memory -----------------------------------------------------------------------------

    def _slots(self) -> int:
        return self.known.stages

    def _met_first(self, state: TensorState, role: Role, instruction: Instruction, values: Values) -> State:
        met = super()._meet(state, role, instruction, values)
        assert isinstance(met, TensorState)
        self.findings.note("races", ("fence", instruction.line), not state.changed, "no tcgen05.fence::before_thread_sync", instruction)
        return replace(met, ordered=False)

    def _meet(self, state: State, role: Role, instruction: Instruction, values: Values) -> State:
        assert isinstance(state, TensorState)
        if instruction.has("warp"):
            mask = values.of(instruction.operands[0])
            if not isinstance(mask, int) or mask & 0xFFFFFFFF != 0xFFFFFFFF:
                raise Unliftable(instruction, "a barrier of some lanes of a warp")
            synchronized = not state.changed and not state.open.registers
            if not state.started or all(role.threads):
                return replace(state, synchronized=synchronized)
            warps = tuple(thread // WARP_THREADS for thread in range(len(role.threads)))
            if self.teams.setdefault(role.threads, warps) != warps:
                raise Unliftable(instruction, "threads meet in different teams")
            return replace(_settled(state), synchronized=synchronized)
        if not state.started:
            return self._met_first(state, role, instruction, values)
        number = values.of(instruction.operands[0])
        if all(role.threads) and number == 0 and len(instruction.operands) == 1 and not state.changed:
            self._quiet(state, "when the block meets")
            self.findings.note("progress", ("barrier", instruction.line), True, "")
            return replace(_settled(state), ordered=False)
        raise Unliftable(instruction, "only barriers of the whole block are modelled for tensor memory")

    def _waited(self, state: State, role: Role, instruction: Instruction, address: int, parity: int) -> State:
        assert isinstance(state, TensorState)
        self._ring(instruction, not state.over, "the rings are used again after the block has met")
        state = replace(state, waited=True)
        slots, sets = self.known.stages, self.known.sets
        slot, phase = state.use % slots, state.use // slots % 2
        set_, iteration = state.iteration % sets, state.iteration // sets % 2
        alone = sum(role.threads) == 1
        if address in self.known.empty:
            right = alone and role.threads[self.known.filler] and self._learned(self.empty, slot, address)
            self._ring(instruction, right and parity == phase ^ 1 and state.promised < 0, "not the wait for the next stage to be empty")
            return replace(state, fills=True, promised=0, filled=())
        if address in self.known.full:
            right = alone and role.threads[self.known.issuer] and self._learned(self.full, slot, address)
            self._ring(instruction, right and parity == phase, "not the wait for the next stage to be full")
            self._ring(instruction, len(state.held) < slots, "all stages are held")
            return replace(state, reads=True, held=(*state.held, (slot, False)), use=(state.use + 1) % (2 * slots), uses=state.uses + 1)
        if address in self.known.drained:
            right = alone and role.threads[self.known.issuer] and self._learned(self.drained, set_, address)
            right = right and parity == iteration ^ 1 and state.opened < 0
            self._ring(instruction, right, "not the wait for the next set of sums to be read")
            return replace(state, opened=set_, begun=frozenset(), ordered=False)
        right = all(number in self.known.readers for number, here in enumerate(role.threads) if here)
        right = right and address in self.known.done and self._learned(self.done, set_, address)
        right = right and parity == iteration and state.opened < 0
        self._ring(instruction, right, "not the wait for the next set of sums")
        self.readers.add(role.threads)
        return replace(state, opened=set_, ordered=False)

    def _promised(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], address: int, count: int) -> State:
        self.fillers.add(role.threads)
        return super()._promised(state, role, instruction, threads, address, count)

    def _released(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], address: int) -> State:
        """An arrival of each warp that has read a set."""
        assert isinstance(state, TensorState)
        right = state.opened >= 0 and role.threads in self.readers and self._learned(self.drained, state.opened, address)
        self._ring(instruction, right, "not the release of the set of sums that is read")
        self._ring(instruction, not state.open.registers, "a set of sums is released before its loads are complete")
        fenced = not state.changed and state.synchronized
        self._ring(instruction, fenced, "no tcgen05.fence::before_thread_sync and barrier of the warp before a set of sums is released")
        whole = all(sum(threads[first : first + WARP_THREADS]) == role.threads[first] for first in range(0, len(threads), WARP_THREADS))
        same = self.arrivals.setdefault(role.threads, threads) == threads
        self._ring(instruction, whole and same, "not one arrival of each warp")
        return self._next_set(state)

    def _next_set(self, state: TensorState) -> TensorState:
        return replace(state, opened=-1, iteration=(state.iteration + 1) % (2 * self.known.sets), iterations=state.iterations + 1)

    def _commit(self, state: TensorState, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> TensorState:
        """An arrival as soon as all products before it are complete."""
        if any("multicast" in word for word in instruction.modifiers) or len(instruction.operands) != 1:
            raise Unliftable(instruction, "commits to several blocks are not modelled")
        address = _address(instruction, instruction.operands[0], values)
        self._ring(instruction, threads == role.threads and threads[self.known.issuer] and sum(threads) == 1, "a commit of other threads")
        if address in self.known.empty:
            self._ring(instruction, bool(state.held), "a commit for a stage that is not held")
            (slot, _), *rest = state.held
            self._ring(instruction, self._learned(self.empty, slot, address), "not the release of the oldest stage that is held")
            return replace(state, held=tuple(rest))
        right = state.opened >= 0 and self._learned(self.done, state.opened, address)
        self._ring(instruction, right, "not the commit of the set of sums that is written")
        return replace(self._next_set(state), uncommitted=False, sums=state.sums | state.begun, begun=frozenset())

    # -- tensor memory -----------------------------------------------------------------------------------------

    def _warps(self, instruction: Instruction, threads: tuple[bool, ...]) -> list[int]:
        return [first // WARP_THREADS for first in range(0, len(threads), WARP_THREADS) if threads[first]]

    def _columns(self, instruction: Instruction, operand: Operand) -> int:
        columns = operand.value if isinstance(operand, Integer) else 0
        if not MIN_COLUMNS <= columns <= COLUMNS or columns & (columns - 1):
            raise Unliftable(instruction, "a number of columns that is no power of two from 32 to 512, or not known")
        return columns

    def _allocate(self, state: TensorState, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> TensorState:
        columns = self._columns(instruction, instruction.operands[1])
        address = _address(instruction, instruction.operands[0], values)
        self._inside(instruction, address, ADDRESS_BYTES, ADDRESS_BYTES)
        fine = not state.started and not state.allocations and not state.relinquished and len(self._warps(instruction, threads)) == 1
        self._ring(instruction, fine and address == self.address_at, "not the only allocation, by one warp before the block meets")
        self.allocated.add(columns)
        return replace(state, columns=columns, allocations=1, changed=True)

    def _free(self, state: TensorState, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> TensorState:
        columns = self._columns(instruction, instruction.operands[1])
        whole = values.of(instruction.operands[0]) == BASE and columns == state.columns and all(role.everyone.threads)
        self._ring(instruction, whole and len(self._warps(instruction, threads)) == 1, "does not free the allocated columns, once")
        self._quiet(state, "when its columns are freed")
        self.findings.note("races", ("after", instruction.line), state.ordered, "no tcgen05.fence::after_thread_sync", instruction)
        return replace(state, columns=0)

    def _place(
        self, state: TensorState, instruction: Instruction, operand: Operand, thread: int, values: Values, width: int
    ) -> tuple[int, int]:
        """Lane and column, counted from the allocation's first, of an address; the columns from there are allocated."""
        if not isinstance(operand, Address):
            raise Unliftable(instruction, "an address of tensor memory that is not understood")
        offset = _beyond_base(of_thread(values.of(operand.base), thread))
        if offset is None:
            raise Unliftable(instruction, "an address of tensor memory that is not known")
        offset = offset + operand.offset & 0xFFFFFFFF
        lane, column = offset >> 16, offset & 0xFFFF
        inside = column + width <= state.columns and lane < LANES
        self.findings.note("memory", (instruction.line, offset), inside, "columns that are not allocated", instruction)
        if not inside:
            raise Unliftable(instruction, "columns that are not allocated")
        return lane, column

    def _load(self, state: TensorState, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> TensorState:
        words, (results, address) = instruction.modifiers, instruction.operands
        shape = next((word for word in words if word in LOADS), None)
        times = next((int(word[1:]) for word in words if word[:1] == "x" and word[1:].isdigit()), 0)
        if shape is None or not times or any(word in words for word in ("red", "pack::16b")) or not isinstance(results, Vector):
            raise Unliftable(instruction, "this load of tensor memory is not modelled")
        lanes, columns = LOADS[shape]
        self._ring(instruction, state.opened >= 0 and role.threads in self.readers, "sums are loaded before their products are waited for")
        self.findings.note("races", ("after", instruction.line), state.ordered, "no tcgen05.fence::after_thread_sync", instruction)
        content = values.of(address.base) if isinstance(address, Address) else None
        key = (id(instruction), content, threads)
        if key not in self._loads:
            self._loads[key] = self._cells_loaded(state, instruction, address, threads, values, (lanes, columns * times))
        loaded = state.loaded | {(state.opened, first, width) for first, width in self._loads[key]}
        registers = frozenset(register.name for register in registers_of(results))
        opened = _Group(frozenset(), state.open.registers | registers)
        return replace(state, open=opened, loaded=loaded, changed=True, synchronized=False)

    def _cells_loaded(
        self,
        state: TensorState,
        instruction: Instruction,
        address: Operand,
        threads: tuple[bool, ...],
        values: Values,
        shape: tuple[int, int],
    ) -> frozenset[tuple[int, int]]:
        """The columns that threads load, each from the lanes of its warp."""
        lanes, columns = shape
        cells: set[tuple[int, int]] = set()
        before = (-1, -1)
        for thread, here in enumerate(threads):
            if here:
                lane, column = self._place(state, instruction, address, thread, values, columns)
                first = thread // WARP_THREADS % WARPS_OF_LANES * WARP_THREADS
                mine = first <= lane and lane + lanes <= first + WARP_THREADS and lane % LANES_AT_ONCE == 0
                self.findings.note("memory", (instruction.line, "lanes", thread), mine, "lanes of another warp", instruction)
                if thread % WARP_THREADS and (lane, column) != before:
                    raise Unliftable(instruction, "threads of a warp load from different addresses")
                before = lane, column
                cells.add((column, columns))
        return frozenset(cells)

    def _multiply(self, state: TensorState, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> TensorState:
        name = instruction.first_of(tuple(KINDS))
        words = instruction.modifiers
        plain = name is not None and not any(word in ("sp", "ws", "block_scale", "ashift") for word in words)
        if name is None or not plain or len(instruction.operands) != 5 or threads != role.threads or sum(threads) != 1:
            raise Unliftable(instruction, "only plain products by one thread are modelled")
        d, a, b, form_operand, predicate = instruction.operands
        bits = values.of(form_operand)
        if not isinstance(bits, int) or isinstance(a, Address):
            raise Unliftable(instruction, "a product whose form is not known, or with A in tensor memory")
        form, problem = decode(bits & 0xFFFFFFFF, KINDS[name], pair=False)
        if problem is not None or form.m != LANES:
            raise Unliftable(instruction, problem or f"products of {form.m} rows are not modelled")
        lane, column = self._place(state, instruction, d, threads.index(True), values, form.n)
        self._ring(instruction, state.opened >= 0 and lane == 0, "a product writes sums that are not waited for")
        self.findings.note("races", ("after", instruction.line), state.ordered, "no tcgen05.fence::after_thread_sync", instruction)
        slots: set[int] = set()
        for which, operand in enumerate((a, b)):
            slots |= self._operand_slots(state, instruction, values.of(operand), which, (form.m, form.n)[which], bits, name)
        held = tuple((slot, was_read or slot in slots) for slot, was_read in state.held)
        cells = (state.opened, column, form.n)
        self.set_columns[state.opened].add((column, form.n))
        alone = all(other == cells or not _overlap(cells, other) for other in state.begun) and self._kinds.setdefault(cells, name) == name
        self.findings.note("races", ("order", instruction.line), alone, "products of two shapes in flight write the same sums", instruction)
        begins = _is_zero(predicate, values)
        self.findings.note(
            "initialised",
            ("sums", instruction.line),
            begins or cells in state.begun,
            "the product continues from sums that none began",
            instruction,
        )
        return replace(state, held=held, begun=state.begun | {cells}, uncommitted=True, changed=True)

    def _operand_slots(
        self, state: TensorState, instruction: Instruction, content: Content | None, which: int, rows: int, bits: int, name: str
    ) -> frozenset[int]:
        """The stages that an operand lies in; each is held, and its bytes filled."""
        if not isinstance(content, int):
            raise Unliftable(instruction, "a matrix descriptor that is not known")
        key = (id(instruction), content, which)
        if key not in self._slots_of_operands:
            addresses = _operand_chunks(instruction, content, which, rows, bits, name)
            low, high = int(addresses.min()), int(addresses.max()) + CHUNK_BYTES
            inside = low >= SHARED_BASE and high <= SHARED_BASE + self.shared_bytes
            self.findings.note("memory", (instruction.line, content), inside, "reads outside of shared memory", instruction)
            if not inside:
                raise Unliftable(instruction, "reads outside of shared memory")
            places = (addresses.reshape(-1, 1) - SHARED_BASE + np.arange(CHUNK_BYTES)).ravel()
            stages = frozenset(int(slot) for slot in np.unique(self._slot_of[places]))
            self.findings.note("initialised", (instruction.line, content), -1 not in stages, "reads bytes that no copy fills", instruction)
            self._slots_of_operands[key] = stages - {-1}
        slots = self._slots_of_operands[key]
        self._ring(instruction, slots <= {slot for slot, _ in state.held}, "a product reads a stage that is not held")
        return slots

    def _access(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        """Loads of the address of the columns, after the block has met; other accesses as in other kernels with a ring."""
        if _loads_word(instruction) and values.of(instruction.operands[1]) == self.address_at:
            self._ring(instruction, state.started, "the address of the columns is read before the block has met")
            return state
        return super()._access(state, role, instruction, threads, values)

    # -- the kernel as a whole ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Checks of the kernel as a whole, after all ways were followed."""
        if self.barriers is None or not self.readers or len(self.fillers) != 1 or len(self.allocated) != 1:
            raise Unliftable(None, "parties of the rings are missing")
        counts = dict(self.barriers)
        orders = (
            (self.full, self.known.full),
            (self.empty, self.known.empty),
            (self.done, self.known.done),
            (self.drained, self.known.drained),
        )
        if len(counts) != len(self.barriers) or any(set(order) != known or len(order) != len(known) for order, known in orders):
            raise Unliftable(None, "the barriers in shared memory are no two rings")
        readers = {number for role in self.readers for number, here in enumerate(role) if here}
        arriving = sum(sum(threads) for threads in self.arrivals.values())
        fine = all(counts[each] == 1 for each in (*self.full, *self.empty, *self.done)) and readers == set(self.known.readers)
        fine = fine and all(counts[each] == arriving for each in self.drained)
        apart = all(
            first + width <= other or other + length <= first
            for set_, columns in self.set_columns.items()
            for first, width in columns
            for another, others in self.set_columns.items()
            for other, length in others
            if set_ != another
        )
        for name in ("races", "progress", "initialised"):
            self.findings.note(name, "arrivals", fine, f"a set is released by {arriving} arrivals, which is not what its barrier counts")
            self.findings.note(name, "sets", apart, "sets of sums overlap in tensor memory")
        self._disjoint({**counts, self.address_at: 1})


class TensorRunner(Runner):
    """Roles that part, and meet again at barriers of the whole block."""

    monitor: Survey | TensorRings

    def _meets_again(self, role: Role, instruction: Instruction) -> bool:
        return instruction.opcode in ("bar", "barrier") and not instruction.has("warp") and not all(role.everyone.threads)

    def _agreed(self, roles: tuple[Role, ...], together: Sequence[int], facts: Facts) -> Sequence[object]:
        return self.monitor.between(roles, together)

    def _passed(self, here: Role, instruction: Instruction) -> Role | None:
        """The role behind stores of results, which the order does not depend on."""
        try:
            return self._either_way(here, instruction)
        except Unliftable:
            return None

    def _loaded(self, instruction: Instruction, values: Values) -> Content | None:
        """The address of the columns; nothing is known of other loads."""
        at = values.of(instruction.operands[1]) if _loads_word(instruction) else None
        return BASE if at is not None and at == self.monitor.address_at else None

    def _met(self, roles: tuple[Role, ...], facts: Facts) -> tuple[Role, ...] | None:
        """All threads as one role, at the barrier that each of them has come to; None if some have not."""
        if any(role.ended for role in roles) or len({(role.block, role.place) for role in roles}) != 1:
            return None
        everyone = (True,) * self.count
        if any(sum(column) != 1 for column in zip(*[role.threads for role in roles], strict=True)):
            return None
        merged: dict[str, Content] = {}
        first, *rest = [dict(role.environment) for role in roles]
        for name, content in first.items():
            others = [environment.get(name) for environment in rest]
            if all(other == content for other in others):
                merged[name] = content
                continue
            numbers = [each for each in (content, *others) if isinstance(each, int | tuple)]
            if len(numbers) == len(roles):
                columns = [each if isinstance(each, tuple) else (each,) * self.count for each in numbers]
                here = [next(place for place, role in enumerate(roles) if role.threads[number]) for number in range(self.count)]
                merged[name] = tuple(columns[place][number] for number, place in enumerate(here))
        state = self.monitor.met(roles)
        return (Role(everyone, roles[0].block, roles[0].place, tuple(sorted(merged.items())), state),)


def _loads_word(instruction: Instruction) -> bool:
    """True for a load of one number of 32 bits from shared memory, as the address of the columns is."""
    if instruction.opcode != "ld" or not instruction.has("shared"):
        return False
    return isinstance(instruction.operands[0], Register) and instruction.type in ("u32", "b32", "s32")


def _settled(state: TensorState) -> TensorState:
    """The state after a barrier of the threads that share memory."""
    return replace(
        state,
        plain=frozenset(),
        fenced_stores=frozenset(),
        visible=state.visible | state.fenced_stores,
        older=state.older | state.plain,
        loads=frozenset(),
        left=frozenset(),
    )


def _beyond_base(content: Content | None) -> int | None:
    """The number that a sum adds to the address of the columns; None for other contents."""
    if content == BASE:
        return 0
    if not isinstance(content, Expression) or content.operation not in ("add.s32", "add.u32") or len(content.arguments) != 2:
        return None
    one, other = content.arguments
    if isinstance(one, int):
        one, other = other, one
    before = _beyond_base(one)
    return before + other & 0xFFFFFFFF if before is not None and isinstance(other, int) else None


def _overlap(one: Cells, two: Cells) -> bool:
    """True if two sums of one set have a column in common."""
    return one[0] == two[0] and one[1] < two[1] + two[2] and two[1] < one[1] + one[2]


def _is_zero(predicate: Operand, values: Values) -> bool:
    """True if a product does not add to what its cells hold."""
    negated = isinstance(predicate, Negated)
    register = predicate.register if isinstance(predicate, Negated) else predicate
    content = values.of(register) if isinstance(register, Register) else None
    return isinstance(content, int) and bool(content) == negated


def _operand_chunks(instruction: Instruction, bits: int, which: int, rows: int, form_bits: int, name: str) -> np.ndarray:
    """Addresses of the chunks of 16 bytes that an operand of a product lies in."""
    form, _ = decode(form_bits & 0xFFFFFFFF, KINDS[name], pair=False)
    descriptor, problem = matrix_descriptor.decode_tensor(bits)
    if problem is not None:
        raise Unliftable(instruction, f"a matrix descriptor has no meaning: {problem}")
    if not form.major[which]:
        chunks = ROW_BYTES // CHUNK_BYTES
        crosses = descriptor.start % descriptor.span + ROW_BYTES > descriptor.span
        if descriptor.mode == matrix_descriptor.WIDE_ATOMS or (descriptor.mode and crosses):
            raise Unliftable(instruction, "rows of an operand that cross the end of a swizzled row")
        return matrix_descriptor.chunks(descriptor, rows, chunks, True)
    size = ELEMENT_BYTES.get((form.a, form.b)[which], 1)
    return matrix_descriptor.chunks(descriptor, KINDS[name].depth, -(-rows * size // CHUNK_BYTES), False)


def follow_tensor_memory(
    sequence: LaunchSequence, launch: KernelLaunch, module: Module, function: Function, check_time: Callable[[], None]
) -> tuple[TensorRings, TensorRunner]:
    """The protocol of a kernel with products in tensor memory, followed on all its ways. Raises ``Unliftable``."""
    if launch.cluster != (1, 1, 1):
        raise Unliftable(None, "clusters of blocks are not modelled")
    shared = [variable for variable in module.variables.values() if variable.space == "shared"]
    if len(shared) != 1 or shared[0].size or (function.variables and any(each.space == "shared" for each in function.variables)):
        raise Unliftable(None, "shared memory that is not one array of the launch's size")
    try:
        size = launch.dynamic_shared_bytes.evaluate({})
    except Exception as error:
        raise Unliftable(None, "the size of shared memory depends on the problem") from error
    survey = Survey()
    _run(function, launch, survey, shared[0].name, check_time)
    known = survey.barriers()
    maps = TensorRings(sequence, launch, function, size, {}, known).maps
    if any(name not in maps for places in survey.places.values() for name, _ in places):
        raise Unliftable(None, "a tensor map that is not known")
    fills = {
        slot: tuple(sorted((start, box_bytes(maps[name])) for name, start in survey.places[barrier]))
        for slot, barrier in enumerate(survey.promises)
    }
    for start, bytes_ in (region for regions in fills.values() for region in regions):
        if not SHARED_BASE <= start <= SHARED_BASE + size - bytes_:
            raise Unliftable(None, "a box outside of shared memory")
    rings = TensorRings(sequence, launch, function, size, fills, known)
    rings.product_registers = frozenset(
        register.name
        for instruction in function.body
        if instruction.opcode == "tcgen05" and instruction.modifiers[0] == "ld"
        for register in written(instruction)
    )
    runner = _run(function, launch, rings, shared[0].name, check_time)
    rings.settle()
    if rings.fills != fills:
        raise Unliftable(None, "stages are not filled in the order that was expected")
    return rings, runner


def _run(
    function: Function, launch: KernelLaunch, monitor: Survey | TensorRings, shared: str, check_time: Callable[[], None]
) -> TensorRunner:
    runner = TensorRunner(function, launch.block, monitor, check_time)
    runner.shared = shared
    runner.run()
    return runner
