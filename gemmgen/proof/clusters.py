"""Blocks of a cluster that fill and release each other's slots, or store to each other's shared memory.

Each block of the cluster is followed by itself, with its rank as a number; ``%ctaid.x`` stands for the cluster's index then, of which a
block's own index is a multiple and its rank. What blocks do to each other is compared afterwards:

- The fillers of some blocks copy to a block, and its readers release a slot at the ``empty`` barriers of just these blocks. So a filler
  copies use c + S to a block only after all readers of that block released use c: bytes of two uses never meet in one phase of ``full``.
  A warp arrives for use c + S at a filler's ``empty`` only after this filler's bytes for that use came, so that phases do not meet there
  either.
- All copies to a slot together have the bytes that its block promises, and lie apart.
- Blocks that do so take the same decisions, with as many uses of the ring between two of them.
- Barriers of the cluster divide the run into intervals. In one interval, no two threads use a byte of another block unless both read it,
  and a byte that is read was stored in an earlier one. The first barrier comes before, and the last one after all uses of other blocks'
  memory.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gemmgen.core.formulas import Formula
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Address, Function, Instruction, Module, Register, Vector, written
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.hardware.tensor_map import SHARED_ALIGNMENT
from gemmgen.kernels.launch import KernelLaunch, LaunchSequence
from gemmgen.proof.control import Unliftable
from gemmgen.proof.layouts import box_bytes, row_bytes, row_pitch
from gemmgen.proof.rings import (
    BARRIER_BYTES,
    GRID,
    INDEX,
    PROPERTIES,
    Iteration,
    Ring,
    Sent,
    State,
    one_shared_array,
    product_registers,
    uses_rings,
)
from gemmgen.proof.roles import SHARED_BASE, Facts, Role, Runner, Values, only_global, whole_warps
from gemmgen.proof.symbols import Content, Expression

MAX_INTERVALS = 8
"""Barriers of the cluster on one way through a kernel."""
WINDOW = 1 << 24
"""Distance of the addresses that stand for the memory of two blocks. Kernels only add to such an address, and use it."""
NO_WINDOW = frozenset(("add", "mov", "sub"))
"""Statements that may compute from an address in another block."""

Bytes = npt.NDArray[np.bool_]
Owners = npt.NDArray[np.int32]
Decides = Callable[[Expression], bool | None]
"""The outcome of a comparison that has only one; None for others."""


def uses_cluster(function: Function) -> bool:
    """True for a kernel with statements on a cluster: barriers, and memory of other blocks."""
    return any(
        each.opcode == "mapa"
        or (each.opcode in ("barrier", "ld", "st", "red", "atom") and any("cluster" in word for word in each.modifiers))
        for each in function.body
    )


def of_clusters(launch: KernelLaunch) -> KernelLaunch:
    """The launch with one block for each cluster. Raises ``Unliftable``."""
    blocks, *rest = launch.cluster
    tree = launch.grid[0].tree
    if rest == [1, 1] and isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
        for one, other in ((tree.left, tree.right), (tree.right, tree.left)):
            if isinstance(one, ast.Constant) and one.value == blocks:
                return replace(launch, grid=(Formula(ast.unparse(other)), *launch.grid[1:]), cluster=(1, 1, 1))
    raise Unliftable(None, "a grid that is no number of clusters along x")


@dataclass(frozen=True, eq=False)
class Far:
    """An access of a block's threads to the memory of a block of its cluster."""

    interval: int
    target: int
    owners: Owners
    """The thread of each byte; -1 for none."""
    stores: bool
    instruction: Instruction


class ClusterRunner(Runner):
    """All ways of the threads of one block of a cluster."""

    in_cluster = True
    monitor: ClusterRing
    decides: Decides

    def special(self, name: str) -> Content | None:
        """The content of a special register."""
        ring = self.monitor
        match name.lstrip("%"):
            case "ctaid.x":
                return Expression("add.s32", (Expression("mul.s32", (INDEX, ring.blocks)), ring.rank))
            case "nctaid.x":
                return Expression("mul.s32", (GRID, ring.blocks))
            case "clusterid.x":
                return INDEX
            case "nclusterid.x":
                return GRID
            case "cluster_ctarank" | "cluster_ctaid.x":
                return ring.rank
            case "cluster_nctarank" | "cluster_nctaid.x":
                return ring.blocks
        return super().special(name)

    def _outcomes(self, comparison: Expression) -> tuple[bool, ...]:
        known = self.decides(comparison)
        return (True, False) if known is None else (known,)

    def _result_of(self, instruction: Instruction, contents: tuple[Content | None, ...]) -> Content | None:
        if instruction.opcode == "mapa":
            return self._elsewhere(instruction, contents)
        if len(contents) == 2 and isinstance(contents[0], Expression) and isinstance(contents[1], int):
            content = self._of_index(instruction, contents[0], contents[1])
            if content is not None:
                return content
        return super()._result_of(instruction, contents)

    def _of_index(self, instruction: Instruction, content: Expression, number: int) -> Content | None:
        """A block's index, or the number of blocks, divided by the blocks of a cluster, or the rest; None for other results."""
        whole = {self.special("%ctaid.x"): (INDEX, self.monitor.rank), self.special("%nctaid.x"): (GRID, 0)}.get(content)
        blocks = self.monitor.blocks
        if whole is None or not instruction.type[1:].startswith("32"):
            return None
        quotient = (instruction.opcode == "div" and number == blocks) or (instruction.opcode == "shr" and 1 << number == blocks)
        power = blocks & (blocks - 1) == 0
        remainder = (instruction.opcode == "rem" and number == blocks) or (instruction.opcode == "and" and power and number == blocks - 1)
        return whole[0] if quotient else whole[1] if remainder else None

    def _elsewhere(self, instruction: Instruction, contents: tuple[Content | None, ...]) -> Content | None:
        """The address of the same place in the memory of another block."""
        address, rank = contents
        if not instruction.has("shared::cluster") or not isinstance(address, int | tuple) or not isinstance(rank, int | tuple):
            return None
        columns = [each if isinstance(each, tuple) else (each,) * self.count for each in (address, rank)]
        if any(not 0 <= where < WINDOW for where in columns[0]):
            raise Unliftable(instruction, "an address that is not one of this block's shared memory")
        return tuple(
            where + (block + 1 if 0 <= block < self.monitor.blocks else 127) * WINDOW for where, block in zip(*columns, strict=True)
        )

    def _meets_again(self, role: Role, instruction: Instruction) -> bool:
        return instruction.opcode == "barrier" and instruction.modifiers[:2] == ("cluster", "wait")

    def _named(
        self, roles: tuple[Role, ...], facts: Facts, comparison: Expression, together: Sequence[int]
    ) -> tuple[tuple[Role, ...], Facts, Expression | None, bool, Content | None]:
        if self.decides(comparison) is False:  # no iteration follows
            return roles, facts, None, False, None
        return super()._named(roles, facts, comparison, together)

    def _met(self, roles: tuple[Role, ...], facts: Facts) -> tuple[Role, ...] | None:
        for role in roles:
            wait = self.flow.blocks[role.block][role.place]
            if wait.has("aligned") and not whole_warps(role.threads):
                raise Unliftable(wait, "only a part of a warp comes here")
        states = self.monitor.met(roles, facts)
        return tuple(replace(role, place=role.place + 1, waiting=None, monitor=state) for role, state in zip(roles, states, strict=True))


class ClusterRing(Ring):
    """The protocol of one block of a cluster."""

    in_cluster = True

    def __init__(
        self,
        sequence: LaunchSequence,
        launch: KernelLaunch,
        function: Function,
        shared_bytes: int,
        fills: Mapping[int, tuple[tuple[int, int], ...]],
        rank: int,
        blocks: int,
    ) -> None:
        super().__init__(sequence, launch, function, shared_bytes, fills)
        self.rank, self.blocks = rank, blocks
        self._has_ring = uses_rings(function)
        self.tempo: list[tuple[int, ...]] = []
        """Uses of the ring by each role between two decisions of all."""
        self.copies: dict[int, tuple[int, tuple[tuple[int, int, frozenset[int]], ...]]] = {}
        """By slot: the bytes that are promised; place, bytes and blocks of each copy by this block's filler."""
        self._copying: dict[tuple[int, int], frozenset[int]] = {}
        self.releases: dict[tuple[bool, ...], frozenset[int]] = {}
        """By role: the blocks whose barriers its warps arrive at."""
        self.near: set[tuple[int, int]] = set()
        """Accesses of threads to their own block's memory, each with its interval."""
        self.far: list[Far] = []
        self._far: dict[object, tuple[int, ...]] = {}
        self.delivered: dict[int, frozenset[int]] = {}
        """By interval: stores to other blocks that are made on every way."""
        self.written: dict[int, Bytes] = {}
        """By interval: bytes that threads of this block stored before its end on every way."""
        self.awaited: list[tuple[Instruction, int, Bytes]] = []
        """Loads of bytes that no thread of this block wrote."""
        self.meetings: set[int] = set()
        self.last_far = -1
        """The last interval in which another block is used."""

    def start(self) -> State:
        """The state before the first event."""
        return replace(super().start(), started=not self._has_ring)

    def settle(self) -> None:
        """Checks of the block as a whole, after all ways were followed."""
        if self._has_ring:
            super().settle()
        else:
            self._disjoint({})
            self.enough_registers()

    # -- intervals ---------------------------------------------------------------------------------------------

    def event(self, state: object, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> object:
        """The state after an event."""
        assert isinstance(state, State)
        if state.arrived and instruction.opcode not in ("fence", "griddepcontrol") and not only_global(instruction):
            raise Unliftable(instruction, "between a thread's arrival at a barrier of the cluster and its wait")
        return super().event(state, role, instruction, threads, values)

    def _meet(self, state: State, role: Role, instruction: Instruction, values: Values) -> State:
        if not instruction.has("cluster"):
            return super()._meet(state, role, instruction, values)
        if not {"cluster", "arrive"} <= {*instruction.modifiers} <= {"cluster", "arrive", "release", "aligned"}:
            raise Unliftable(instruction, "this use of a barrier of the cluster is not modelled")
        return replace(state, arrived=True)

    def _fence(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...]) -> State:
        """A fence behind the arrival at a barrier of the cluster orders nothing for threads that pass the barrier."""
        return state if state.arrived else super()._fence(state, role, instruction, threads)

    def met(self, roles: Sequence[Role], facts: Facts) -> Sequence[State]:
        """The states of all roles behind a barrier of the cluster."""
        settled = [state for state in self.together([role.monitor for role in roles], True, facts) if isinstance(state, State)]
        if all(roles[0].threads):
            self.teams.setdefault(roles[0].threads, (0,) * len(roles[0].threads))
        interval = settled[0].interval
        if any(state.interval != interval or not state.arrived for state in settled) or interval >= MAX_INTERVALS:
            raise Unliftable(None, "barriers of the cluster that not all threads come to in turn, or too many")
        self.findings.note("progress", ("barrier of the cluster", interval), True, "")
        bytes_ = np.zeros(self.shared_bytes, np.bool_)
        for state in settled:
            for number in state.plain | state.fenced_stores | state.visible | state.older:
                bytes_ |= self._owners[number][0] >= 0
        self.written[interval] = self.written[interval] & bytes_ if interval in self.written else bytes_
        delivered = frozenset[int]().union(*[state.delivered for state in settled])
        self.delivered[interval] = self.delivered.get(interval, delivered) & delivered
        started = all(state.started for state in settled)
        if not started:
            only = settled[0]
            if len(settled) > 1 and self._has_ring:
                raise Unliftable(None, "threads part before the barriers are initialised")
            if only.barriers and not only.fenced:
                raise Unliftable(None, "barriers are not visible to the copy engine when the cluster meets")
            if self.barriers not in (None, only.barriers) or len(only.barriers) % 2:
                raise Unliftable(None, "barriers that are no ring")
            self.barriers = only.barriers or self.barriers
        return [
            replace(
                state,
                started=started or bool(state.barriers),
                interval=interval + 1,
                arrived=False,
                delivered=frozenset(),
                plain=frozenset(),
                fenced_stores=frozenset(),
                visible=state.visible | state.fenced_stores,
                older=state.older | state.plain,
                loads=frozenset(),
                left=frozenset(),
            )
            for state in settled
        ]

    def together(self, states: Sequence[object], complete: bool, facts: Mapping[Expression, bool]) -> Sequence[object]:
        """All roles have used the ring as often since the last time."""
        closed = [self._closed(state) for state in states if isinstance(state, State)]
        if complete:
            self.tempo.append(tuple(sorted(state.uses for state in closed if state.fills or state.reads)))
        return super().together(closed, complete, facts)

    def finished(self, state: object, role: Role, facts: Mapping[Expression, bool]) -> None:
        """Nothing is held and nothing in flight at the end."""
        assert isinstance(state, State)
        self.meetings.add(state.interval)
        self.findings.note("progress", ("arrived", role.threads), not state.arrived, "a thread ends between an arrival and its wait")
        super().finished(self._closed(state), role, facts)

    # -- the ring ----------------------------------------------------------------------------------------------

    def _closed(self, state: State) -> State:
        """The state after the last copies of the use that is being filled, where its bytes were promised."""
        if state.promised <= 0:
            return state
        slots = self._slots()
        slot = state.use % slots
        copies = (state.promised, tuple(sorted(((start, size, self._copying[start, size]) for start, size in state.filled), key=repr)))
        if self.copies.setdefault(slot, copies) != copies:
            raise Unliftable(None, "a slot is not always filled in the same way")
        return replace(state, filled=(), promised=-1, use=(state.use + 1) % (2 * slots), uses=state.uses + 1)

    def _waited(self, state: State, role: Role, instruction: Instruction, address: int, parity: int) -> State:
        return super()._waited(self._closed(state), role, instruction, address, parity)

    def _filled(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        target, source, barrier = instruction.operands[:3]
        tensor_map = self._map(instruction, source, values)
        self.fetched_maps.add(tensor_map.name)
        start, address, size = values.of(target), values.of(barrier), box_bytes(tensor_map)
        if row_pitch(tensor_map) != row_bytes(tensor_map):
            raise Unliftable(instruction, "boxes with gaps between their rows are not modelled as stages")
        if not isinstance(start, int) or not isinstance(address, int) or threads != role.threads:
            raise Unliftable(instruction, "a copy whose place is not known")
        blocks = frozenset((self.rank,))
        if any("multicast" in word for word in instruction.modifiers):
            mask = values.of(instruction.operands[3]) if len(instruction.operands) > 3 else None
            if not isinstance(mask, int) or not 0 < mask & 0xFFFF < 1 << self.blocks:
                raise Unliftable(instruction, "a copy to blocks that are not known, or not in the cluster")
            blocks = frozenset(block for block in range(self.blocks) if mask >> block & 1)
        self._uses_others(state, instruction, blocks)
        if not self._inside(instruction, start, size, SHARED_ALIGNMENT):
            raise Unliftable(instruction, "outside of this block's shared memory, or not aligned")
        slot = state.use % self._slots()
        self._ring(instruction, state.promised > 0 and self._learned(self.full, slot, address), "not a copy to the slot that is filled")
        self._ring(instruction, self._copying.setdefault((start, size), blocks) == blocks, "a copy to other blocks than before")
        apart = all(start + size <= other or other + length <= start for other, length in state.filled)
        self.findings.note("races", ("boxes", instruction.line), apart, "overlaps another copy of its slot", instruction)
        return replace(state, filled=(*state.filled, (start, size)))

    def _uses_others(self, state: State, instruction: Instruction, blocks: frozenset[int]) -> None:
        if blocks <= {self.rank}:
            return
        if not state.interval:
            raise Unliftable(instruction, "another block of the cluster may not have begun")
        self.last_far = max(self.last_far, state.interval)

    def _barrier(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        words = instruction.modifiers
        if "shared::cluster" not in words:
            return super()._barrier(state, role, instruction, threads, values)
        given = values.of(instruction.operands[2]) if len(instruction.operands) == 3 else 1
        if words[0] != "arrive" or {*words} - {"arrive", "release", "cluster", "shared::cluster", "b64"} or given != 1 or not state.started:
            raise Unliftable(instruction, "this use of a barrier of another block is not modelled")
        places = self._places(instruction, values.of(instruction.operands[1]), threads)
        addresses = {address for _, _, address in places}
        if len(addresses) != 1:
            raise Unliftable(instruction, "an arrival at several barriers")
        (address,) = addresses
        if not self._inside(instruction, address, BARRIER_BYTES, BARRIER_BYTES):
            raise Unliftable(instruction, "outside of shared memory, or not aligned")
        by_warp = [
            sorted(block for thread, block, _ in places if thread // WARP_THREADS == warp)
            for warp in range(len(threads) // WARP_THREADS)
            if role.threads[warp * WARP_THREADS]
        ]
        blocks = frozenset(by_warp[0]) if by_warp else frozenset[int]()
        self._ring(instruction, all(each == sorted(blocks) for each in by_warp), "not one arrival of each warp at each block's barrier")
        self._uses_others(state, instruction, blocks)
        self._releases(role, blocks, instruction)
        return self._without_oldest(state, instruction, address)

    def _released(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], address: int) -> State:
        self._releases(role, frozenset((self.rank,)), instruction)
        return super()._released(state, role, instruction, threads, address)

    def _releases(self, role: Role, blocks: frozenset[int], instruction: Instruction) -> None:
        same = self.releases.setdefault(role.threads, blocks) == blocks
        self._ring(instruction, same and bool(blocks), "a slot is not always released at the same blocks")

    def _places(self, instruction: Instruction, content: Content | None, threads: tuple[bool, ...]) -> list[tuple[int, int, int]]:
        """Thread, block and address in that block of each thread's access."""
        if not isinstance(content, int | tuple):
            raise Unliftable(instruction, "an address in the cluster that is not known")
        accesses = []
        for thread, here in enumerate(threads):
            if here:
                window, address = divmod(content if isinstance(content, int) else content[thread], WINDOW)
                block = window - 1 if window else self.rank
                if not 0 <= block < self.blocks:
                    raise Unliftable(instruction, "a block that is not in the cluster")
                accesses.append((thread, block, address))
        return accesses

    def _counted(self, counts: Mapping[int, int]) -> None:
        """Arrivals of all blocks are counted together."""

    # -- memory of other blocks --------------------------------------------------------------------------------

    def _access(self, state: State, role: Role, instruction: Instruction, threads: tuple[bool, ...], values: Values) -> State:
        if not any("cluster" in word for word in instruction.modifiers):
            return super()._access(state, role, instruction, threads, values)
        stores = instruction.opcode == "st"
        plain = {*instruction.modifiers} <= {"shared::cluster", "v2", "v4", "volatile", *TYPE_BYTES}
        if instruction.opcode not in ("st", "ld") or not plain:
            raise Unliftable(instruction, "this access to another block's memory is not modelled")
        where, data = instruction.operands if stores else instruction.operands[::-1]
        size = TYPE_BYTES[instruction.type] * (len(data.elements) if isinstance(data, Vector) else 1)
        content = values.of(where)
        places = self._places(instruction, content, threads)
        self._uses_others(state, instruction, frozenset(block for _, block, _ in places) | {-1})
        key = (id(instruction), content, threads, state.interval)
        if key not in self._far:
            numbers = []
            for target in sorted({block for _, block, _ in places}):
                owners: Owners = np.full(self.shared_bytes, -1, np.int32)
                for thread, block, address in places:
                    if block == target:
                        if not self._inside(instruction, address, size, size):
                            raise Unliftable(instruction, "outside of shared memory, or not aligned")
                        part = owners[address - SHARED_BASE : address - SHARED_BASE + size]
                        if stores and (part >= 0).any():
                            self.findings.note(
                                "races", ("one store", instruction.line), False, "two threads store the same bytes", instruction
                            )
                        part[:] = thread
                numbers.append(len(self.far))
                self.far.append(Far(state.interval, target, owners, stores, instruction))
            self._far[key] = tuple(numbers)
        return replace(state, delivered=state.delivered | {*self._far[key]}) if stores else state

    def _stored(self, state: State, instruction: Instruction, number: int) -> State:
        self.near.add((number, state.interval))
        return super()._stored(state, instruction, number)

    def _loaded(self, state: State, instruction: Instruction, number: int) -> State:
        self.near.add((number, state.interval))
        return super()._loaded(state, instruction, number)

    def _unwritten(self, state: State, instruction: Instruction, bytes_: Bytes) -> None:
        self.findings.checked["initialised"].add(instruction.line)
        if bytes_.any():
            self.awaited.append((instruction, state.interval, bytes_))

    def used_near(self, interval: int, stores_only: bool) -> Bytes:
        """Bytes of this block that its own threads use in an interval, or the copy engine and barriers at any time."""
        used = np.zeros(self.shared_bytes, np.bool_)
        by_threads = {number for number, _ in self.near}
        for number, (owners, stores) in enumerate(self._owners):
            if number not in by_threads or ((number, interval) in self.near and (stores or not stores_only)):
                used |= owners >= 0
        for address, _ in self.barriers or ():
            used[address - SHARED_BASE : address - SHARED_BASE + BARRIER_BYTES] = True
        for regions in self.known_fills.values():
            for start, size in regions:
                used[start - SHARED_BASE : start - SHARED_BASE + size] = True
        return used


def follow_cluster(
    sequence: LaunchSequence, launch: KernelLaunch, module: Module, function: Function, check_time: Callable[[], None], decides: Decides
) -> tuple[Ring, Runner]:
    """The protocol of a kernel whose blocks form clusters, as that of one block that has the threads of all. Raises ``Unliftable``."""
    _only_added_to(function)
    name, size = one_shared_array(launch, module, function, static=not uses_rings(function))
    blocks = launch.cluster[0]

    def run(fills: Sequence[Mapping[int, tuple[tuple[int, int], ...]]]) -> list[tuple[ClusterRing, ClusterRunner]]:
        runs = []
        for rank in range(blocks):
            ring = ClusterRing(sequence, launch, function, size, fills[rank], rank, blocks)
            ring.product_registers = product_registers(function)
            runner = ClusterRunner(function, launch.block, ring, check_time)
            runner.shared, runner.decides = name, decides
            runner.run()
            runs.append((ring, runner))
        return runs

    first = run([{} for _ in range(blocks)])
    fills = _fills([ring for ring, _ in first])
    second = run(fills)
    rings, runners = [ring for ring, _ in second], [runner for _, runner in second]
    if _fills(rings) != fills:
        raise Unliftable(None, "slots are not always filled in the same way")
    for ring, regions in zip(rings, fills, strict=True):
        ring.fills = dict(regions)
        ring.settle()
    if uses_rings(function):
        _settle_ring(rings, runners)
    _settle_cluster(rings)
    return _as_one(rings), _all_ways(runners)


def _only_added_to(function: Function) -> None:
    """Addresses in other blocks are only used, or added to: their bits depend on the hardware."""
    windows: set[str] = set()
    changed = True
    while changed:
        changed = False
        for instruction in function.body:
            targets = {register.name for register in written(instruction)}
            sources = {operand.name for operand in instruction.operands[1:] if isinstance(operand, Register)}
            inherits = instruction.opcode == "mapa" or (sources & windows and instruction.opcode in NO_WINDOW)
            if inherits and not targets <= windows:
                windows |= targets
                changed = True
            if sources & windows and instruction.opcode not in (*NO_WINDOW, "mbarrier", "st", "ld"):
                raise Unliftable(instruction, "a number is computed from an address in another block")
    for instruction in function.body:
        used = {each.base.name for each in instruction.operands if isinstance(each, Address) and isinstance(each.base, Register)}
        if used & windows and not any("shared::cluster" in word for word in instruction.modifiers):
            raise Unliftable(instruction, "an address in another block is used as one in this block")


def _fills(rings: Sequence[ClusterRing]) -> list[dict[int, tuple[tuple[int, int], ...]]]:
    """By block: the places of each slot that the fillers of all blocks copy to. Raises ``Unliftable``."""
    slots = {tuple(sorted(ring.copies)) for ring in rings}
    if len(slots) != 1:
        raise Unliftable(None, "the blocks of a cluster fill different slots")
    by_block: list[dict[int, tuple[tuple[int, int], ...]]] = []
    for mine in rings:
        regions: dict[int, tuple[tuple[int, int], ...]] = {}
        for slot, (promised, _) in mine.copies.items():
            here = sorted((start, size) for ring in rings for start, size, blocks in ring.copies[slot][1] if mine.rank in blocks)
            if sum(size for _, size in here) != promised:
                raise Unliftable(None, f"{sum(size for _, size in here)} bytes are copied to a slot that waits for {promised}")
            if any(start + size > following for (start, size), (following, _) in pairwise(here)):
                raise Unliftable(None, "copies of two blocks to a slot overlap")
            regions[slot] = tuple(here)
        by_block.append(regions)
    return by_block


def _settle_ring(rings: Sequence[ClusterRing], runners: Sequence[ClusterRunner]) -> None:
    """Copies and releases of all blocks of a cluster fit together."""
    findings = rings[0].findings
    layouts = {(ring.barriers, tuple(ring.full), tuple(ring.empty)) for ring in rings}
    if len(layouts) != 1:
        raise Unliftable(None, "the blocks of a cluster have different barriers")
    counts = dict(rings[0].barriers or ())
    copied: dict[int, frozenset[int]] = {}
    for ring in rings:
        by_slot = {frozenset((ring.rank,)).union(*[blocks for _, _, blocks in copies]) for _, copies in ring.copies.values()}
        released = {ring.releases.get(role, frozenset()) for role in ring.readers}
        if len(by_slot) != 1 or len(released) != 1:
            raise Unliftable(None, "slots that are filled or released at different blocks")
        (copied[ring.rank],) = by_slot
    arrivals = dict.fromkeys(range(len(rings)), 0)
    releasing: dict[int, set[int]] = {ring.rank: set() for ring in rings}
    for ring in rings:
        for role, blocks in ring.releases.items():
            for block in blocks:
                arrivals[block] += sum(role[::WARP_THREADS])
                releasing[block].add(ring.rank)
    same = all(releasing[rank] == copied[rank] for rank in copied)
    first = rings[0]
    fine = all(counts[each] == 1 for each in first.full) and all(
        counts[each] == arrivals[rank] for each in first.empty for rank in arrivals
    )
    for name in ("races", "progress", "initialised"):
        findings.note(
            name, "arrivals", fine, f"slots are released by {arrivals[0]} arrivals, and their barriers count {counts[first.empty[0]]}"
        )
        findings.note(name, "releases", same, "the blocks that a filler copies to are not those whose readers release its slots")
    if any(copied[rank] != {rank} for rank in copied):
        ways = {
            (tuple((s.before, s.after, s.comparison, s.outcome) for s in runner.steps), tuple(ring.tempo))
            for ring, runner in _pairs(rings, runners)
        }
        for name in ("races", "progress", "initialised"):
            findings.note(name, "one way", len(ways) == 1, "the blocks of a cluster may take different decisions")


def _settle_cluster(rings: Sequence[ClusterRing]) -> None:
    """The blocks of a cluster meet equally often, and their uses of each other's memory are in order."""
    findings = rings[0].findings
    meetings = set[int]().union(*[ring.meetings for ring in rings])
    findings.note(
        "progress", "barriers of the cluster", len(meetings) == 1, "threads may pass different numbers of barriers of the cluster"
    )
    last = max(ring.last_far for ring in rings)
    for name in ("memory", "races", "progress"):
        why = "a block may end while another one of its cluster uses its memory"
        findings.note(name, "end of the cluster", all(last < number for number in meetings), why)
    _settle_far(rings)


def _pairs(rings: Sequence[ClusterRing], runners: Sequence[ClusterRunner]) -> list[tuple[ClusterRing, ClusterRunner]]:
    return list(zip(rings, runners, strict=True))


def _settle_far(rings: Sequence[ClusterRing]) -> None:
    """No two accesses to a block's memory in one interval meet, and bytes are stored before they are read."""
    findings, threads = rings[0].findings, rings[0].launch.threads
    for mine in rings:
        far = [(ring.rank, each) for ring in rings for each in ring.far if each.target == mine.rank]
        for interval in {each.interval for _, each in far}:
            here = [(rank, each) for rank, each in far if each.interval == interval]
            writer: Owners = np.full(mine.shared_bytes, -1, np.int32)
            for stores in (True, False):
                near = mine.used_near(interval, stores_only=not stores)
                for rank, each in here:
                    if each.stores != stores:
                        continue
                    owners = np.where(each.owners >= 0, each.owners + rank * threads, -1)
                    meets = ((writer >= 0) & (owners >= 0) & (writer != owners)).any() or (near & (owners >= 0)).any()
                    why = "meets another access to this block's memory without a barrier of the cluster"
                    findings.note("races", ("far", each.instruction.line, rank, interval), not meets, why, each.instruction)
                    if stores:
                        writer = np.where(owners >= 0, owners, writer).astype(np.int32)
        ready = np.zeros(mine.shared_bytes, np.bool_)
        for interval in range(MAX_INTERVALS + 1):
            for _, each in far:
                if not each.stores and each.interval == interval:
                    missing = (each.owners >= 0) & ~ready
                    findings.note(
                        "initialised",
                        ("far", each.instruction.line),
                        not missing.any(),
                        "reads bytes that were not written",
                        each.instruction,
                    )
            for instruction, when, bytes_ in mine.awaited:
                if when == interval:
                    findings.note(
                        "initialised", instruction.line, not (bytes_ & ~ready).any(), "reads bytes that were not written", instruction
                    )
            ready |= mine.written.get(interval, np.zeros(mine.shared_bytes, np.bool_))
            for ring in rings:
                for number in ring.delivered.get(interval, ()):
                    if ring.far[number].target == mine.rank:
                        ready |= ring.far[number].owners >= 0


def _as_one(rings: Sequence[ClusterRing]) -> Ring:
    """All blocks as one, whose threads are those of the first block, then those of the second."""
    whole, threads = rings[0], rings[0].launch.threads
    count = threads * len(rings)

    def wide(content: Content | None, rank: int) -> Content | None:
        if isinstance(content, tuple):
            return (0,) * (threads * rank) + content + (0,) * (count - threads * (rank + 1))
        if isinstance(content, Expression) and not content.uniform:
            parts = tuple(part for each in content.arguments if (part := wide(each, rank)) is not None)
            return Expression(content.operation, parts, content.low)
        return content

    def all_of(mask: tuple[bool, ...], rank: int) -> tuple[bool, ...]:
        return (False,) * (threads * rank) + mask + (False,) * (count - threads * (rank + 1)) if mask else ()

    sends: set[Sent] = set()
    iterations: dict[tuple[bool, ...], set[Iteration]] = {}
    ends: dict[tuple[bool, ...], set[frozenset[Expression]]] = {}
    for ring in rings:
        rank = ring.rank
        sends |= {replace(sent, thread=sent.thread + threads * rank) for sent in ring.sends}
        for role, counted in ring.iterations.items():
            iterations[all_of(role, rank)] = {
                Iteration(
                    all_of(iteration.threads, rank),
                    frozenset((line, tuple(wide(each, rank) for each in places)) for line, places in iteration.boxes),
                )
                for iteration in counted
            }
        ends |= {all_of(role, rank): facts for role, facts in ring.ends.items()}
        whole.used_maps |= ring.used_maps
        whole.written_maps |= ring.written_maps
        whole.fetched_maps |= ring.fetched_maps
        whole.direct |= ring.direct
        for name in PROPERTIES:
            whole.findings.checked[name] |= {(rank, what) for what in ring.findings.checked[name]} if rank else set()
            whole.findings.reasons[name] += [reason for reason in ring.findings.reasons[name] if reason not in whole.findings.reasons[name]]
    whole.sends, whole.iterations, whole.ends = sends, iterations, ends
    return whole


def _all_ways(runners: Sequence[ClusterRunner]) -> Runner:
    """The decisions of all blocks, as those of one runner."""
    whole = runners[0]
    for runner in runners[1:]:
        whole.steps += [replace(step, before=step.before + whole.states, after=step.after + whole.states) for step in runner.steps]
        whole.beginnings |= runner.beginnings
        whole.states += runner.states
    return whole
