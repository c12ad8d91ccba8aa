"""wgmma operations in flight, and the registers and shared memory that they own meanwhile.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". An operation may read its operands and write its results at any time up to the
wait for its group. Here it happens at the last moment, when the first warp of its warpgroup waits, so that a premature change of an operand
shows in the results. In between, its accumulators belong to the operation, its A registers and its shared memory must stay as they are.

Compilers move accumulators to other registers while operations on them are in flight. Such a move is no access: the register
file of the machine is another one. It is noted, and made when the value is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np

from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.engines.async_proxy import AsyncProxy
from gemmgen.emulator.errors import RegisterInFlight, UnfinishedWgmma
from gemmgen.emulator.geometry import WARP, Geometry, Lanes
from gemmgen.emulator.memory import BankedSpace
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Address, Instruction, Register, registers_of
from gemmgen.emulator.registers import RegisterFile
from gemmgen.emulator.transfers import AsyncAccess

WARPS = 4
GROUP_LANES = WARPS * WARP
CHUNK_BYTES = 16


class FenceReport(Protocol):
    """Takes an operation that no fence, or none late enough, precedes."""

    def __call__(self, message: str, instruction: Instruction, lanes: Lanes, other: Instruction | None, missing: bool) -> None:
        """`other` accessed a register; `missing`: there is no fence at all since the last operation on it."""


class ReloadReport(Protocol):
    """Takes an instruction that overwrites the source of an A register while the operation on it is in flight."""

    def __call__(self, message: str, instruction: Instruction, lanes: Lanes, other: Instruction) -> None:
        """`other` is the operation."""


class Product(Protocol):
    """The arithmetic of one wgmma instruction, for whole warpgroups [groups, ...] by the number of each one's first lane."""

    @property
    def accumulators(self) -> tuple[int, ...]:
        """The rows of the register file that hold D."""

    def load(self, groups: np.ndarray) -> np.ndarray:
        """The accumulators as matrices."""

    def step(self, sums: np.ndarray, issue: Issue, chosen: np.ndarray) -> np.ndarray:
        """D = A B + D for those of an issue's warpgroups that `chosen` (positions) names."""

    def store(self, groups: np.ndarray, sums: np.ndarray) -> None:
        """Matrices back to the accumulators."""


@dataclass(slots=True)
class Issue:
    """One instruction executed by some warpgroups."""

    instruction: Instruction
    product: Product
    groups: np.ndarray
    """The first lane of each warpgroup."""
    batches: np.ndarray
    """The commit group of each warp, [groups, 4]."""
    operands: tuple[np.ndarray, ...]
    """Facts that the arithmetic needs of each warpgroup's operands: descriptors, scale-d."""
    proxy: AsyncProxy
    reads: list[list[AsyncAccess]]
    """Bytes that each warpgroup reads in shared memory."""
    a_registers: tuple[int, ...]
    """Registers of A, and of the metadata of a sparse one, which the operation reads while it runs."""
    a_sources: tuple[int, ...]
    """Registers whose values the A registers are copies of: the assembler may make one register of both."""
    waited: np.ndarray
    """Warps that have waited for it, [groups, 4]."""
    done: np.ndarray
    """Warpgroups whose results are written."""
    owned: np.ndarray
    """One flag a lane: its registers belong to the operation."""


@dataclass(slots=True)
class Move:
    """A register copied while an operation was about to write it."""

    instruction: Instruction
    source: int
    target: int
    lanes: np.ndarray
    """One flag a lane."""


@dataclass(slots=True)
class _Use:
    """The followed registers that one instruction reads and writes, by row."""

    instruction: Instruction
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    is_copy: bool


class Warpgroups:
    """The operations in flight of a machine, and each warp's commit groups."""

    def __init__(self, geometry: Geometry, registers: RegisterFile, shared: BankedSpace, blocks: Sequence[BasicBlock]) -> None:
        self.geometry = geometry
        self.registers = registers
        self.shared = shared
        self.log: list[Issue | Move] = []
        """Operations issued and not ended for all their warps, in order."""
        warps = geometry.lanes // WARP
        self.committed = np.zeros(warps, np.int64)
        """Number of groups that each warp has closed; its operations go into the group of this number."""
        self.fences = np.zeros(warps, np.int64)
        """Number of wgmma.fence that each warp has executed."""
        self.report: FenceReport | None = None
        """Observer of operations without a fence before them; None if hazards are not searched."""
        self.report_reload: ReloadReport | None = None
        """Observer of sources of A registers that are overwritten too early; None if hazards are not searched."""
        self._touched_by: dict[int, Instruction] = {}
        self._issued = np.zeros(warps, np.int64)
        """The number of fences of each warp when it last issued an operation."""
        followed = _followed(blocks)
        self._rows = {name: registers.place(register)[1] for name, register in followed.items()}
        self._copied = {self._rows[target]: self._rows[source] for target, source in _copies(blocks) if target in self._rows}
        """Registers that are nothing but a copy of another one."""
        self._names = {row: name for name, row in self._rows.items()}
        self._position = {row: position for position, row in enumerate(self._names)}
        self._touched = np.full((len(self._names), geometry.lanes), -1, np.int32)
        """Time of lanes' last access to a register other than by wgmma, as the number of their fences; -1 since their last wgmma on it."""

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh lanes (None: all), whole blocks, with fresh memory."""
        if lanes is None:
            self.log.clear()
            self.committed.fill(0)
            self.fences.fill(0)
            self._issued.fill(0)
            self._touched.fill(-1)
            return
        warps = np.unique(lanes // WARP)
        self.committed[warps] = self.fences[warps] = self._issued[warps] = 0
        self._touched[:, lanes] = -1

    # -- the instructions ----------------------------------------------------------------------------------------

    def fence(self, lanes: Lanes) -> None:
        """Register accesses of these lanes are ordered before their next operations."""
        self.fences[np.unique(lanes // WARP)] += 1

    def commit(self, lanes: Lanes) -> None:
        """Closes the open group of these lanes' warps, empty or not."""
        self.committed[np.unique(lanes // WARP)] += 1

    def issue(
        self,
        instruction: Instruction,
        product: Product,
        groups: np.ndarray,
        operands: tuple[np.ndarray, ...],
        reads: Sequence[np.ndarray],
        a_registers: tuple[int, ...],
        proxy: AsyncProxy,
    ) -> None:
        """Warpgroups start an operation. `reads` are addresses in shared memory, [groups, chunks], of the operands that lie there."""
        warps = groups[:, None] // WARP + np.arange(WARPS)
        lanes = (groups[:, None] + np.arange(GROUP_LANES)).ravel()
        self._check_fence(instruction, lanes, (*product.accumulators, *a_registers))
        self._check_registers(instruction, product, lanes, a_registers)
        owned = np.zeros(self.geometry.lanes, np.bool_)
        owned[lanes] = True
        accesses = [
            [
                proxy.begin(instruction, "read", group + np.arange(GROUP_LANES), np.unique(chunks), "the wgmma.wait_group of its warpgroup")
                for addresses in reads
                for chunks in self._chunks(groups[position : position + 1], addresses[position : position + 1])
            ]
            for position, group in enumerate(groups)
        ]
        for observer in self.shared.observers:
            observer.product_issued(instruction, groups, sum(addresses.shape[1] for addresses in reads) * CHUNK_BYTES)
        self.log.append(
            Issue(
                instruction,
                product,
                groups,
                self.committed[warps],
                operands,
                proxy,
                accesses,
                a_registers,
                self._sources(a_registers, lanes),
                np.zeros(warps.shape, np.bool_),
                np.zeros(len(groups), np.bool_),
                owned,
            )
        )

    def _sources(self, a_registers: tuple[int, ...], lanes: Lanes) -> tuple[int, ...]:
        if self.report_reload is None:
            return ()
        values = self.registers.arrays["b32"]
        pairs = ((row, self._copied[row]) for row in a_registers if row in self._copied)
        return tuple(source for row, source in pairs if np.array_equal(values[row, lanes], values[source, lanes]))

    def wait(self, instruction: Instruction, lanes: Lanes, newest: int) -> None:
        """Ends the operations of these lanes' warps, all but those in each warp's `newest` latest groups and in its open one."""
        if not self.log:
            return
        warps = np.unique(lanes // WARP)
        limits = np.full(len(self.committed), -1, np.int64)
        limits[warps] = self.committed[warps] - newest
        newly: list[tuple[Issue, np.ndarray]] = []
        for event in self.log:
            if isinstance(event, Move):
                continue
            ready = ~event.waited & (event.batches < limits[event.groups[:, None] // WARP + np.arange(WARPS)])
            if ready.any():
                event.waited |= ready
                newly.append((event, ready))
        if not newly:
            return
        ended = [event.done.copy() for event, _ in newly]
        self._perform()
        for (event, ready), before in zip(newly, ended, strict=True):
            for position in np.flatnonzero(ready.any(axis=1)).tolist():
                knowing = (event.groups[position] + (np.flatnonzero(ready[position])[:, None] * WARP + np.arange(WARP))).ravel()
                for access in event.reads[position]:
                    (event.proxy.tell if before[position] else event.proxy.end)(access, knowing)
        remaining: list[Issue | Move] = []
        for event in self.log:
            if isinstance(event, Move):
                if event.lanes.any():
                    remaining.append(event)
                continue
            if event.waited.all():
                continue
            event.owned.reshape(-1, WARP)[(event.groups[:, None] // WARP + np.arange(WARPS))[event.waited]] = False
            remaining.append(event)
        self.log[:] = remaining

    def exited(self, lanes: Lanes | None) -> None:
        """Raises UnfinishedWgmma if lanes (None: all) end without having waited for their operations."""
        for event in self.log:
            if isinstance(event, Issue):
                left = np.flatnonzero(event.owned if lanes is None else event.owned[lanes])
                if len(left):
                    who = left if lanes is None else lanes[left]
                    batches = event.batches[event.groups == who[0] // GROUP_LANES * GROUP_LANES, who[0] // WARP % WARPS]
                    committed = bool((batches < self.committed[who[0] // WARP]).any())
                    what = "that nothing waited for" if committed else "whose group was never committed"
                    raise UnfinishedWgmma(
                        f"threads end with a wgmma in flight {what}",
                        instruction=event.instruction,
                        threads=self.geometry.describe(who),
                    )

    # -- the work ------------------------------------------------------------------------------------------------

    def _chunks(self, groups: np.ndarray, addresses: np.ndarray) -> np.ndarray:
        """Addresses [groups, chunks] of an operand as numbers of chunks of the whole shared space."""
        base = self.geometry.block_of_lane[groups] * self.shared_stride
        chunks: np.ndarray = (addresses + base[:, None]) // CHUNK_BYTES
        return chunks

    @property
    def shared_stride(self) -> int:
        """Bytes from one block's shared memory to the next one's."""
        return len(self.shared.data) // self.geometry.blocks

    def gather(self, groups: np.ndarray, addresses: np.ndarray) -> np.ndarray:
        """The chunks at these addresses, one row of them a warpgroup."""
        chunks: np.ndarray = self.shared.units[CHUNK_BYTES][self._chunks(groups, addresses)]
        return chunks

    def _perform(self) -> None:
        """Writes the results of all operations that a warp has waited for, in order; and the moves behind them."""
        moves = any(isinstance(event, Move) for event in self.log)
        pending: dict[int, np.ndarray] = {}
        held: tuple[Product, np.ndarray, np.ndarray] | None = None
        for event in self.log:
            if isinstance(event, Move):
                if held is not None and event.source in held[0].accumulators:
                    held[0].store(held[1], held[2])
                    held = None
                self._make(event, pending)
                continue
            ready = event.waited.any(axis=1) & ~event.done
            if ready.any():
                chosen = np.flatnonzero(ready)
                groups = event.groups[chosen]
                if held is None or held[0].accumulators != event.product.accumulators or not np.array_equal(held[1], groups):
                    if held is not None:
                        held[0].store(held[1], held[2])
                    held = (event.product, groups, event.product.load(groups))
                held = (held[0], groups, event.product.step(held[2], event, chosen))
                event.done |= ready
            if moves and not event.done.all():
                left = np.zeros(self.geometry.lanes, np.bool_)
                left[(event.groups[~event.done][:, None] + np.arange(GROUP_LANES)).ravel()] = True
                for row in event.product.accumulators:
                    pending[row] = pending[row] | left if row in pending else left
        if held is not None:
            held[0].store(held[1], held[2])

    def _make(self, move: Move, pending: dict[int, np.ndarray]) -> None:
        blocked = pending.get(move.source)
        ready = move.lanes if blocked is None else move.lanes & ~blocked
        lanes = np.flatnonzero(ready)
        registers = self.registers.arrays["b32"]
        registers[move.target, lanes] = registers[move.source, lanes]
        move.lanes = move.lanes & ~ready
        if move.lanes.any():
            known = pending.get(move.target)
            pending[move.target] = move.lanes if known is None else known | move.lanes

    # -- registers -----------------------------------------------------------------------------------------------

    def follow(self, instructions: Sequence[Instruction], operation: Operation) -> Operation:
        """The operation of these instructions, with a look at the registers that operations in flight own."""
        uses = [use for inst in instructions if inst.opcode != "wgmma" and (use := self._use(inst)) is not None]
        if not uses:
            return operation
        everyone = np.arange(self.geometry.lanes)
        full, some = operation
        log = self.log

        def follow_full() -> None:
            if log or self.report is not None:
                left = self._before(uses, everyone)
                if left is not everyone:
                    if len(left):
                        some(left)
                    return
            full()

        def follow_some(lanes: Lanes) -> None:
            left = self._before(uses, lanes) if log or self.report is not None else lanes
            if len(left):
                some(left)

        return Operation(follow_full, follow_some)

    def _use(self, inst: Instruction) -> _Use | None:
        reads, writes = accesses_of(inst)
        read_rows = tuple(self._rows[name] for name in dict.fromkeys(reads) if name in self._rows)
        written_rows = tuple(self._rows[name] for name in dict.fromkeys(writes) if name in self._rows)
        if not read_rows and not written_rows:
            return None
        return _Use(inst, read_rows, written_rows, is_move(inst) and bool(read_rows) and bool(written_rows))

    def _before(self, uses: Sequence[_Use], lanes: Lanes) -> Lanes:
        """Called before instructions that use followed registers; returns the lanes for which they are to be executed."""
        for use in uses:
            inst = use.instruction
            acting = lanes
            if inst.guard is not None:
                acting = lanes[self.registers.row(inst.guard, "pred")[lanes] != inst.guard_negated]
            if not len(acting):
                continue
            if self.log:
                self._check_writes(use, acting)
                moved = self._check_reads(use, acting)
                if moved is not None:
                    lanes = lanes[~moved[lanes]]
            if self.report is not None and not is_move(inst):
                for row in (*use.reads, *use.writes):
                    self._touch(row, acting, inst)
            elif self.report is not None and use.is_copy:
                # A copy has the same order as its source.
                self._touched[self._position[use.writes[0]], acting] = self._touched[self._position[use.reads[0]], acting]
                self._touched_by[use.writes[0]] = self._touched_by.get(use.reads[0], inst)
        return lanes

    def _touch(self, row: int, lanes: Lanes, inst: Instruction) -> None:
        self._touched[self._position[row], lanes] = self.fences[lanes // WARP]
        self._touched_by[row] = inst

    def _check_writes(self, use: _Use, lanes: Lanes) -> None:
        for row in use.writes:
            for event in self.log:
                if isinstance(event, Move):
                    if event.target == row:
                        # The value that was to come is overwritten: nobody will see it.
                        event.lanes[lanes] = False
                    continue
                if row in event.a_sources and self.report_reload is not None and not is_move(use.instruction):
                    early = lanes[event.owned[lanes]]
                    if len(early):
                        self.report_reload(
                            f"{self._names[row]}, of which an A register is a copy, is written while the wgmma on it is in flight",
                            use.instruction,
                            early,
                            event.instruction,
                        )
                if row in event.product.accumulators or row in event.a_registers:
                    bad = lanes[event.owned[lanes]]
                    if len(bad):
                        kind = "metadata" if event.instruction.has("sp") and row == event.a_registers[-1] else "an A register"
                        what = "an accumulator" if row in event.product.accumulators else kind
                        self._fail(use.instruction, bad, event, f"{self._names[row]} is written while a wgmma in flight owns it as {what}")

    def _check_reads(self, use: _Use, lanes: Lanes) -> np.ndarray | None:
        """Raises RegisterInFlight where a result is read that is not there yet; for a copy, notes it and returns those lanes."""
        moved: np.ndarray | None = None
        for row in use.reads:
            for event in self.log:
                if isinstance(event, Move):
                    owned = event.lanes if event.target == row else None
                else:
                    owned = event.owned if row in event.product.accumulators else None
                if owned is None or not owned[lanes].any():
                    continue
                bad = lanes[owned[lanes]]
                if not use.is_copy:
                    source = event if isinstance(event, Issue) else self._source_of(event, bad)
                    self._fail(use.instruction, bad, source, f"{self._names[row]} is read while a wgmma in flight has yet to write it")
                if moved is None:
                    moved = np.zeros(self.geometry.lanes, np.bool_)
                moved[bad] = True
        if moved is not None:
            self.log.append(Move(use.instruction, use.reads[0], use.writes[0], moved.copy()))
        return moved

    def _source_of(self, move: Move, lanes: Lanes) -> Issue:
        """The operation whose result a noted move waits for."""
        row = move.source
        for event in reversed(self.log[: next(i for i, event in enumerate(self.log) if event is move)]):
            if isinstance(event, Move):
                if event.target == row and event.lanes[lanes].any():
                    row = event.source
            elif row in event.product.accumulators and event.owned[lanes].any():
                return event
        raise AssertionError("a move without an operation")

    def _fail(self, instruction: Instruction, lanes: Lanes, issue: Issue, message: str) -> NoReturn:
        group, warp = lanes[0] // GROUP_LANES * GROUP_LANES, lanes[0] // WARP % WARPS
        batch = int(issue.batches[issue.groups == group, warp][0])
        behind = int(self.committed[lanes[0] // WARP]) - batch - 1
        wait = f"wgmma.wait_group {behind} by these threads has to come first"
        remedy = "its group is not even committed" if behind < 0 else wait
        if instruction.opcode != "wgmma":
            remedy += "; if it stands behind the wait in the source, the compiler moved it: "
            remedy += 'asm volatile("" : "+f"(value)) behind the wait holds it there'
        raise RegisterInFlight(
            f"{message}: {remedy}",
            instruction=instruction,
            threads=self.geometry.describe(lanes),
            other=issue.instruction,
            other_threads=self.geometry.describe(lanes),
        )

    def _check_registers(self, instruction: Instruction, product: Product, lanes: Lanes, a_registers: tuple[int, ...]) -> None:
        """An operation may use accumulators in flight only as the same accumulators, and must not read A from them."""
        for event in self.log:
            bad = lanes[(event.lanes if isinstance(event, Move) else event.owned)[lanes]]
            if not len(bad):
                continue
            if isinstance(event, Move):
                if event.target in a_registers:
                    name = self._names[event.target]
                    self._fail(
                        instruction, bad, self._source_of(event, bad), f"{name} is an A operand, but a wgmma in flight has yet to write it"
                    )
                continue
            theirs = event.product.accumulators
            overlap = set(theirs).intersection(a_registers) | set(event.a_registers).intersection(product.accumulators)
            if theirs != product.accumulators:
                overlap |= set(theirs).intersection(product.accumulators)
            if overlap:
                self._fail(instruction, bad, event, f"{self._names[min(overlap)]} is used while another wgmma in flight owns it")

    def _check_fence(self, instruction: Instruction, lanes: Lanes, rows: Sequence[int]) -> None:
        if self.report is None:
            return
        fences = self.fences[lanes // WARP]
        if (fences == 0).any():
            self.report("no wgmma.fence comes before this first wgmma", instruction, lanes[fences == 0], None, True)
            return
        since_last = fences > self._issued[lanes // WARP]
        self._issued[lanes // WARP] = fences
        positions = np.array([self._position[row] for row in rows])
        touched = self._touched[positions[:, None], lanes]
        late = touched >= fences
        if late.any():
            row = int(np.flatnonzero(late.any(axis=1))[0])
            missing = not bool(since_last[late[row]].all())
            what = "no wgmma.fence lies" if missing else "the wgmma.fence comes too early: none lies"
            message = f"{what} between an access to {self._names[rows[row]]} and the wgmma that uses it"
            self.report(message, instruction, lanes[late[row]], self._touched_by[rows[row]], missing)
        if (touched >= 0).any():
            self._touched[positions[:, None], lanes] = -1


def _followed(blocks: Sequence[BasicBlock]) -> dict[str, Register]:
    """The registers that operations use, and those that moves connect with accumulators."""
    followed = {
        r.name: r
        for block in blocks
        for inst in block.body
        if inst.opcode == "wgmma" and inst.has("mma_async")
        for operand in (*inst.operands[:2], *(inst.operands[3:4] if inst.has("sp") else ()))
        for r in registers_of(operand)
        if r.type != "b64"
    }
    return connected(blocks, followed)


def connected(blocks: Sequence[BasicBlock], by_name: dict[str, Register]) -> dict[str, Register]:
    """Registers, and all others that moves connect with them."""
    by_name = dict(by_name)
    moves = [
        (inst.operands[0], inst.operands[1])
        for block in blocks
        for inst in block.body
        if is_move(inst) and isinstance(inst.operands[0], Register) and isinstance(inst.operands[1], Register)
    ]
    grew = True
    while grew:
        grew = False
        for target, source in moves:
            for known, other in ((target, source), (source, target)):
                if known.name in by_name and other.name not in by_name:
                    by_name[other.name] = other
                    grew = True
    return by_name


def _copies(blocks: Sequence[BasicBlock]) -> list[tuple[str, str]]:
    """Registers that one instruction alone writes, which copies another register: names of target and source."""
    writes: dict[str, list[Instruction]] = {}
    for block in blocks:
        for inst in block.body:
            for name in accesses_of(inst)[1]:
                writes.setdefault(name, []).append(inst)
    alone = (
        (name, writers[0]) for name, writers in writes.items() if len(writers) == 1 and is_move(writers[0]) and writers[0].guard is None
    )
    return [(name, inst.operands[1].name) for name, inst in alone if isinstance(inst.operands[1], Register)]


def is_move(inst: Instruction) -> bool:
    """True if an instruction may copy one register to another."""
    return inst.opcode == "mov" and len(inst.operands) == 2 and isinstance(inst.operands[0], Register)


def accesses_of(inst: Instruction) -> tuple[list[str], list[str]]:
    """Names of the registers that an instruction reads and writes."""
    stores = (
        inst.opcode in ("st", "red", "stmatrix")
        or inst.modifiers[:1] == ("dealloc",)
        or (bool(inst.operands) and isinstance(inst.operands[0], Address))
    )
    operands = inst.operands
    reads = [r.name for operand in (operands if stores else operands[1:]) for r in registers_of(operand)]
    writes = [] if stores else [r.name for operand in operands[:1] for r in registers_of(operand)]
    return reads, writes


def meets_warpgroup(inst: Instruction) -> bool:
    """True if all warps of a warpgroup execute an instruction together."""
    return inst.opcode == "wgmma" and (inst.has("mma_async") or inst.has("fence"))


def whole_groups(geometry: Geometry, words: np.ndarray) -> np.ndarray:
    """The lanes of each warp (a mask) that are in `words` (a mask per warp) in all warps of its warpgroup."""
    per_block = geometry.warps_per_block
    groups = -(-per_block // WARPS)
    # Warps that a block does not have keep nobody waiting.
    padded = np.full((geometry.blocks, groups * WARPS), 0xFFFFFFFF, np.uint32)
    padded[:, :per_block] = words.reshape(geometry.blocks, per_block)
    common = np.bitwise_and.reduce(padded.reshape(geometry.blocks, groups, WARPS), axis=2)
    result: np.ndarray = np.repeat(common, WARPS, axis=1)[:, :per_block].ravel()
    return result
