"""Branches, exits and barriers: control flow of lanes between basic blocks.

A terminator bound to a machine is called with the lanes that reached it (None: all) and returns the block at which all of them continue, or
AGAIN after it has filed each lane's next block in `state.key`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from gemmgen.emulator import native
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.engines.warpgroups import meets_warpgroup
from gemmgen.emulator.errors import Deadlock, DivergentBarrier, DivergentWarp, Trapped, UnknownInstruction
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.instructions.forms import check_form
from gemmgen.emulator.instructions.registry import MISUSE, misunderstood
from gemmgen.emulator.instructions.runtime import assertion_message
from gemmgen.emulator.instructions.warp import member_mask_operand, value_at
from gemmgen.emulator.lane_state import AGAIN, EXITED, PARKED, STALLED, WAITING, LaneState
from gemmgen.emulator.ptx.syntax import Instruction, Integer, Negated, Operand

Terminator = Callable[[Lanes | None], int]


_NAMED_BARRIERS = 16
"""Barriers of a block (PTX ISA, "bar")."""


class Control:
    """Binds terminators and keeps the barriers of a machine."""

    def __init__(self, binder: Binder, state: LaneState) -> None:
        self.binder = binder
        self.state = state
        self.everyone = np.arange(binder.geometry.lanes)
        self.sites: list[tuple[Instruction, Callable[[Lanes], None] | None]] = []
        self._site_of: dict[int, int] = {}
        """Places in ``sites`` by the barriers' identities."""

    def terminator(self, block: BasicBlock) -> Terminator:
        """The closure that ends a basic block."""
        inst, following = block.terminator, block.index + 1
        if inst is None:
            return lambda lanes: following
        try:
            check_form(inst)
            return self._terminator(inst, block, following)
        except MISUSE as error:
            raise misunderstood(inst, error) from error

    def _terminator(self, inst: Instruction, block: BasicBlock, following: int) -> Terminator:
        match inst.opcode:
            case "bra":
                return self._branch(inst, block.targets[0], following)
            case "brx":
                return self._indexed_branch(inst, block.targets, following)
            case "ret" | "exit":
                return self._guarded(inst, following, self._exit)
            case "trap":
                return self._guarded(inst, following, lambda lanes: self._trap(inst, lanes))
            case _:
                wait = self._barrier(inst, following)
                return self._guarded(inst, following, wait)

    # -- branches ----------------------------------------------------------------------------------------------

    def _branch(self, inst: Instruction, target: int, following: int) -> Terminator:
        if inst.guard is None:
            return lambda lanes: target
        row = self.binder.registers.row(inst.guard, "pred")
        when_set, when_clear = (following, target) if inst.guard_negated else (target, following)
        key, total = self.state.key, self.binder.geometry.lanes
        count_nonzero = np.count_nonzero
        loops = native.loops_for(total)
        if loops is not None:
            part, held, keys = loops.part_lanes, row.ctypes.data, key.ctypes.data

            def part_natively(lanes: Lanes | None) -> int:
                if lanes is not None and not native.is_index(lanes):
                    lanes = np.ascontiguousarray(lanes, np.int64)
                all_of_them = total if lanes is None else len(lanes)
                count = part(held, all_of_them, native.pointer(lanes), keys, when_set, when_clear)
                return when_set if count == all_of_them else when_clear if count == 0 else AGAIN

            return part_natively

        def run(lanes: Lanes | None) -> int:
            holds = row if lanes is None else row[lanes]
            count = count_nonzero(holds)
            if count == (total if lanes is None else len(lanes)):
                return when_set
            if count == 0:
                return when_clear
            key[... if lanes is None else lanes] = np.where(holds, when_set, when_clear)
            return AGAIN

        return run

    def _indexed_branch(self, inst: Instruction, targets: tuple[int, ...], following: int) -> Terminator:
        table = np.array(targets, np.int32)
        index = self.binder.source(inst, inst.operands[0], "u32")

        def run(lanes: Lanes | None) -> int:
            who = self.everyone if lanes is None else lanes
            chosen = value_at(index, who)
            if int(chosen.max()) >= len(table):
                self.binder.fail(Trapped, "a branch index beyond its table", inst, who[chosen >= len(table)])
            self.state.key[who] = table[chosen]
            return AGAIN

        return self._guarded(inst, following, run)

    def _guarded(self, inst: Instruction, following: int, run: Terminator) -> Terminator:
        """`run` for the lanes whose guard holds; the others continue."""
        if inst.guard is None:
            return run
        row = self.binder.registers.row(inst.guard, "pred")

        def guarded(lanes: Lanes | None) -> int:
            who = self.everyone if lanes is None else lanes
            holds = row[who] != inst.guard_negated
            if holds.all():
                return run(lanes)
            if not holds.any():
                return following
            self.state.key[who[~holds]] = following
            chosen = who[holds]
            next_block = run(chosen)
            if next_block != AGAIN:
                self.state.key[chosen] = next_block
            return AGAIN

        return guarded

    # -- the end -----------------------------------------------------------------------------------------------

    def _exit(self, lanes: Lanes | None) -> int:
        warpgroups = self.binder.warpgroups
        if warpgroups is not None:
            warpgroups.exited(lanes)
        self.state.key[... if lanes is None else lanes] = EXITED
        if self.state.any_stalled and lanes is not None:
            self._look_again(lanes)
        if self.binder.started_engines is not None:
            self.binder.started_engines.exited(self.everyone if lanes is None else lanes)
        if self.state.any_waiting and lanes is not None:
            self._release(np.unique(self.binder.geometry.block_of_lane[lanes]))
        return AGAIN

    def _look_again(self, exited: Lanes) -> None:
        """Lanes that stall for others of their warps come to their instruction anew: those that have exited are not waited for."""
        state = self.state
        stalled = np.flatnonzero(state.key == STALLED)
        freed = stalled[np.isin(stalled // WARP, exited // WARP)]
        state.key[freed] = state.resume[freed]

    def _trap(self, inst: Instruction, lanes: Lanes | None) -> NoReturn:
        who = self.everyone if lanes is None else lanes
        what = "the kernel executed trap"
        if inst.has("assert"):
            what = assertion_message(inst, self.binder, int(who[0]))
        elif inst.has("nowhere"):
            what = "a call of an address at which no function lies"
        self.binder.fail(Trapped, what, inst, who)

    # -- barriers ----------------------------------------------------------------------------------------------

    def _barrier(self, inst: Instruction, following: int) -> Terminator:
        """bar and barrier: .sync waits, .arrive counts and continues, .red waits and combines a predicate."""
        binder, geometry, state = self.binder, self.binder.geometry, self.state
        operands = list(inst.operands)
        reduction = inst.first_of(("popc", "and", "or")) if inst.has("red") else None
        result_operand, predicate_operand = (operands.pop(0), operands.pop()) if reduction else (None, None)
        if inst.has("arrive") and len(operands) < 2:
            raise UnknownInstruction("an arrival at a barrier needs the number of threads that meet there", instruction=inst)
        if isinstance(operands[0], Integer) and not 0 <= operands[0].value < _NAMED_BARRIERS:
            raise UnknownInstruction(f"barrier {operands[0].value}: a block has barriers 0 to {_NAMED_BARRIERS - 1}", instruction=inst)
        number = binder.source(inst, operands[0], "u32")
        count = binder.source(inst, operands[1], "u32") if len(operands) > 1 else None
        whole_block = not isinstance(number, np.ndarray) and (
            count is None or (isinstance(operands[1], Integer) and operands[1].value == geometry.threads)
        )
        combine = self._reduction(inst, reduction, result_operand, predicate_operand)
        site = self._site_of.setdefault(id(inst), len(self.sites))
        if site == len(self.sites):
            self.sites.append((inst, combine))
        else:  # bound anew while lanes may wait at it
            self.sites[site] = inst, combine
        arrives = inst.has("arrive")

        def run(lanes: Lanes | None) -> int:
            if lanes is None and whole_block and not arrives and not state.arrived:
                if combine is not None:
                    combine(self.everyone)
                for observer in binder.spaces.shared.observers:
                    observer.block_barrier(inst, None)
                return following
            who = self.everyone if lanes is None else lanes
            numbers = value_at(number, who).astype(np.int64)
            if (numbers >= _NAMED_BARRIERS).any():
                binder.fail(DivergentBarrier, f"barrier {numbers.max()}: a block has barriers 0 to {_NAMED_BARRIERS - 1}", inst, who)
            self._note_counts(inst, who, numbers, count)
            if arrives:
                for block, barrier in {(int(geometry.block_of_lane[w]), int(n)) for w, n in zip(who, numbers, strict=True)}:
                    here = (geometry.block_of_lane[who] == block) & (numbers == barrier)
                    state.arrived[block, barrier] = state.arrived.get((block, barrier), 0) + int(here.sum())
                state.key[who] = following
                for observer in binder.spaces.shared.observers:
                    observer.barrier_arrived(inst, who, numbers)
            else:
                state.key[who] = WAITING
                state.resume[who] = following
                state.barrier[who] = numbers
                state.site[who] = site
                state.any_waiting = True
            self._release(np.unique(geometry.block_of_lane[who]))
            return AGAIN

        return run

    def _note_counts(self, inst: Instruction, who: Lanes, numbers: np.ndarray, count: np.ndarray | np.generic | None) -> None:
        if count is None:
            return
        counts = value_at(count, who)
        if (counts % WARP).any() or (counts == 0).any():
            self.binder.fail(DivergentBarrier, "a barrier count must be a positive multiple of 32", inst, who)
        blocks = self.binder.geometry.block_of_lane[who]
        for block, barrier, wanted in {(int(b), int(n), int(c)) for b, n, c in zip(blocks, numbers, counts, strict=True)}:
            known = self.state.expected.setdefault((block, barrier), wanted)
            if known != wanted:
                self.binder.fail(DivergentBarrier, f"barrier {barrier} with counts {known} and {wanted}", inst, who)

    def _reduction(
        self, inst: Instruction, kind: str | None, result: Operand | None, predicate: Operand | None
    ) -> Callable[[Lanes], None] | None:
        if kind is None or result is None or predicate is None:
            return None
        binder, geometry = self.binder, self.binder.geometry
        negated = isinstance(predicate, Negated)
        source = binder.source(inst, predicate.register if isinstance(predicate, Negated) else predicate, "pred")
        target = binder.target(inst, result, "u32" if kind == "popc" else "pred")

        def combine(lanes: Lanes) -> None:
            votes = value_at(source, lanes)
            votes = ~votes if negated else votes
            blocks = geometry.block_of_lane[lanes]
            yes = np.bincount(blocks[votes], minlength=geometry.blocks)[blocks]
            everyone = np.bincount(blocks, minlength=geometry.blocks)[blocks]
            if target is not None:
                target[lanes] = yes if kind == "popc" else yes == everyone if kind == "and" else yes > 0

        return combine

    def _release(self, blocks: np.ndarray) -> None:
        """Releases waiting lanes where enough lanes have arrived."""
        state, stride = self.state, self.binder.geometry.stride
        for block in blocks.tolist():
            first = block * stride
            key = state.key[first : first + stride]
            waiting = key == WAITING
            if not waiting.any():
                continue
            numbers = state.barrier[first : first + stride]
            alive = int(np.count_nonzero(key != EXITED))
            for number in np.unique(numbers[waiting]).tolist():
                here = np.flatnonzero(waiting & (numbers == number)) + first
                arrived = len(here) + state.arrived.get((block, number), 0)
                if arrived < state.expected.get((block, number), alive):
                    continue
                self._check_aligned(here)
                state.arrived.pop((block, number), None)
                state.expected.pop((block, number), None)
                self._go_on(here)

    def _go_on(self, lanes: Lanes) -> None:
        state = self.state
        sites = state.site[lanes]
        combines = [self.sites[site] for site in np.unique(sites).tolist()]
        inst, combine = combines[0]
        if combine is not None:
            combine(lanes)
        for observer in self.binder.spaces.shared.observers:
            observer.block_barrier(inst, lanes)
        state.key[lanes] = state.resume[lanes]

    def _check_aligned(self, lanes: Lanes) -> None:
        """All lanes of a warp must wait at the same instruction, and none of them may be elsewhere."""
        state, geometry = self.state, self.binder.geometry
        for warp in np.unique(lanes // WARP).tolist():
            members = np.arange(warp * WARP, warp * WARP + WARP)
            alive = members[state.key[members] != EXITED]
            here = lanes[lanes // WARP == warp]
            inst = self.sites[int(state.site[here[0]])][0]
            if inst.opcode == "barrier" and not inst.has("aligned"):
                continue
            if len(here) < len(alive):
                missing = alive[~np.isin(alive, here)]
                self.binder.fail(
                    DivergentBarrier,
                    f"a barrier of whole warps that only a part of a warp reached; missing: {geometry.describe(missing)}",
                    inst,
                    here,
                )
            others = here[state.site[here] != state.site[here[0]]]
            if len(others):
                elsewhere = self.sites[int(state.site[others[0]])][0]
                self.binder.fail(
                    DivergentBarrier,
                    f"lanes of one warp wait at different barriers: the others at PTX line {elsewhere.line}"
                    f"{f', {elsewhere.location}' if elsewhere.location else ''}",
                    inst,
                    here,
                )

    # -- nothing can run ---------------------------------------------------------------------------------------

    def explain_standstill(self, stalled_at: Callable[[int], Instruction]) -> NoReturn:
        """Raises the error for lanes that wait for lanes which will never come."""
        state, geometry = self.state, self.binder.geometry
        stalled = np.flatnonzero(state.key == STALLED)
        engines = self.binder.started_engines
        if engines is not None and (state.key == PARKED).any():
            others = [
                f"{geometry.describe(stalled[state.resume[stalled] == place])} for lanes of their warp, {_at(stalled_at(place))}"
                for place in np.unique(state.resume[stalled]).tolist()
            ]
            waiting = np.flatnonzero(state.key == WAITING)
            for block in np.unique(geometry.block_of_lane[waiting]).tolist():
                others += self._waits_of(block)
            raise engines.explain(stalled_at, others)
        if len(stalled):
            inst = stalled_at(int(state.resume[stalled[0]]))
            at_same = stalled[state.resume[stalled] == state.resume[stalled[0]]]
            missing = "lanes of its member mask" if member_mask_operand(inst) is not None else "lanes of its warp (.aligned)"
            missing = "warps of its warpgroup" if meets_warpgroup(inst) else missing
            self.binder.fail(DivergentWarp, f"{inst.opcode} waits for {missing} that never arrive", inst, at_same)
        waiting = np.flatnonzero(state.key == WAITING)
        block = int(geometry.block_of_lane[waiting[0]])
        waiting = waiting[geometry.block_of_lane[waiting] == block]
        parts = self._waits_of(block)
        inst = self.sites[int(state.site[waiting[0]])][0]
        kind = DivergentBarrier if len(parts) > 1 else Deadlock
        self.binder.fail(kind, f"a block waits for threads that never come: {'; '.join(parts)}", inst, waiting)

    def _waits_of(self, block: int) -> list[str]:
        """Barriers at which threads of a block wait, and for how many."""
        state, geometry = self.state, self.binder.geometry
        first = block * geometry.stride
        members = np.arange(first, first + geometry.stride)
        waiting = members[state.key[members] == WAITING]
        alive = int(np.count_nonzero(state.key[members] != EXITED))
        parts = []
        for site, number in sorted({(int(state.site[w]), int(state.barrier[w])) for w in waiting}):
            here = waiting[(state.site[waiting] == site) & (state.barrier[waiting] == number)]
            wanted = state.expected.get((block, number), alive)
            parts.append(f"{len(here)} of {wanted} threads at barrier {number}, {_at(self.sites[site][0])}")
        return parts


def _at(inst: Instruction) -> str:
    where = f" ({inst.location})" if inst.location else ""
    return f"PTX line {inst.line}{where}"
