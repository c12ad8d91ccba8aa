"""Runs a program for a wave of blocks: picks lanes, executes basic blocks, follows branches.

Blocks of a wave that have ended give their places to the next blocks of the grid when those that are left only poll memory:
they may be waiting for one that has not started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from gemmgen.emulator import fusion, native, native_runs
from gemmgen.emulator.arithmetic import REAL, Arithmetic
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.control import Control, Terminator
from gemmgen.emulator.engines import Engines, PlacedMap
from gemmgen.emulator.engines.tensor_loads import TensorLoads, loads_of
from gemmgen.emulator.engines.tensor_memory import TensorWatch
from gemmgen.emulator.engines.warpgroups import Warpgroups, meets_warpgroup, whole_groups
from gemmgen.emulator.errors import Deadlock, DivergentWarp
from gemmgen.emulator.geometry import WARP, Dim3, Geometry, Lanes
from gemmgen.emulator.instructions import bind
from gemmgen.emulator.instructions.engine_waits import Park, parking
from gemmgen.emulator.instructions.registry import MISUSE, means_the_same, misunderstood
from gemmgen.emulator.instructions.warp import mask_source, present_words, uniform, value_at
from gemmgen.emulator.lane_state import AGAIN, EXITED, STALLED, LaneState
from gemmgen.emulator.livelock import Watch
from gemmgen.emulator.memory import BankedSpace, GlobalSpace, Observer, Spaces
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.emulator.registers import RegisterFile
from gemmgen.emulator.residue_fusion import bind_residue_group
from gemmgen.emulator.schedule import Schedule
from gemmgen.emulator.special_registers import SpecialRegisters

_STEPS_BETWEEN_NOTES = 64


class RegisterTracker(Protocol):
    """Tracks properties of registers besides their values; bound to instructions like handlers."""

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh lanes (None: all) begin."""

    def follow(self, instructions: Sequence[Instruction], operation: Operation) -> Operation:
        """The operation of these instructions, with a look at their registers before it."""

    def follows(self, inst: Instruction) -> bool:
        """True if it looks at registers of this instruction."""

    def follow_terminator(self, inst: Instruction | None, finish: Terminator) -> Terminator:
        """The end of a basic block, with a look at its registers before it."""


class BoundBlock:
    """A basic block bound to a machine."""

    __slots__ = ("at", "block", "finish", "full", "masks", "park", "some")

    def __init__(
        self,
        block: BasicBlock,
        operations: Sequence[Operation],
        at: Sequence[Instruction],
        finish: Terminator,
        masks: np.ndarray | np.generic | None,
        park: Park | None,
    ) -> None:
        self.block = block
        self.at = at
        self.full: list[Callable[[], None]] = [operation.full for operation in operations]
        self.some: list[Callable[[Lanes], None]] = [operation.some for operation in operations]
        self.finish = finish
        self.masks = masks
        self.park = park


_SHARED_UNIT = 128
"""Bytes in whose multiples GPUs allocate shared memory (CUDA occupancy calculator, compute capability 8.0 and later)."""


class Machine:
    """Registers, memory and control for `blocks` blocks side by side; reused from wave to wave and launch to launch."""

    def __init__(self, program: Program, block_dim: Dim3, blocks: int, shared_bytes: int, arithmetic: Arithmetic = REAL) -> None:
        self.program = program
        self.geometry = Geometry(block_dim, blocks)
        geometry = self.geometry
        self.registers = RegisterFile(program, geometry.lanes)
        everyone = np.arange(geometry.lanes)
        padding = -(shared_bytes - program.shared_start - program.shared_gap_bytes) % _SHARED_UNIT
        self.spaces = Spaces(
            GlobalSpace(geometry),
            BankedSpace("shared", geometry, geometry.block_of_lane, blocks, shared_bytes, program.shared_start, padding),
            BankedSpace("local", geometry, everyone, geometry.lanes, program.local_bytes),
        )
        self.specials = SpecialRegisters(geometry)
        self.binder = Binder(program, geometry, self.registers, self.spaces, self.specials, arithmetic)
        if any(inst.opcode == "wgmma" for block in program.blocks for inst in block.body):
            self.binder.warpgroups = Warpgroups(geometry, self.registers, self.spaces.shared, program.blocks)
            self.spaces.shared.warpgroups = self.binder.warpgroups
        if loads_of(program.blocks):
            self.binder.tensor_loads = TensorLoads(geometry, self.registers, program.blocks, self._end_loads)
        self.state = LaneState(geometry.lanes)
        self.control = Control(self.binder, self.state)
        self.scratch = fusion.Scratch(geometry.lanes)
        self.flags = fusion.FloatFlags()
        self.bound: list[BoundBlock | None] = [None] * len(program.blocks)
        self.executions = [0] * len(program.blocks)
        self.fuse = True
        self.clears_registers = True
        """False if every path writes each register before it reads it."""
        self.can_compile = native.is_possible() and self.binder.warpgroups is None and self.binder.tensor_loads is None
        """True if runs of instructions that run often are compiled."""
        self._noted = [0] * len(program.blocks)
        """Executions of blocks that count as work already."""
        self._often: set[int] = set()
        """Blocks that have been bound anew for their work."""
        self.bind_group = fusion.bind_group if arithmetic.is_real else bind_residue_group
        self.tracker: RegisterTracker | None = None
        self.tensor_watch: TensorWatch | None = None
        self.maps: list[PlacedMap] = []
        """The tensor maps of the launch."""
        self.spaces.shared.describe = program.describe_shared
        self.binder.make_engines = self._start_engines
        self.next_block = 0
        """The first block of the grid that has not started."""
        self.starts = 0
        """Number of times that blocks of this wave were started together."""

    def _start_engines(self) -> Engines:
        engines = Engines(self.program, self.geometry, self.spaces, self.state)
        engines.maps = self.maps
        engines.claim_cluster = self.claim_cluster
        engines.watch_tensor_memory(self.tensor_watch)
        return engines

    def _end_loads(self, lanes: Lanes) -> None:
        self.binder.engines.tensor_memory.wait(lanes, writes=False)

    def watch_tensor_memory(self, watch: TensorWatch | None) -> None:
        """Another observer of tensor memory, or none."""
        self.tensor_watch = watch
        if self.binder.tensor_loads is not None:
            self.binder.tensor_loads.watch = watch
        if self.binder.started_engines is not None:
            self.binder.started_engines.watch_tensor_memory(watch)

    # -- binding -----------------------------------------------------------------------------------------------

    def _bind(self, number: int) -> BoundBlock:
        block = self.program.blocks[number]
        operations = []
        pieces, functions = self._pieces(block)
        for piece in pieces:
            function = functions.get(id(piece))
            if function is not None:
                operations.append(native_runs.operation_of(function, self.binder))
                continue
            if isinstance(piece, list):
                operation = self.bind_group(piece, self.binder, self.scratch, self.flags)
            else:
                operation = self.binder.guarded(piece, bind(piece, self.binder))
            if self.binder.warpgroups is not None:
                operation = self.binder.warpgroups.follow(piece if isinstance(piece, list) else [piece], operation)
            if self.binder.tensor_loads is not None:
                operation = self.binder.tensor_loads.follow(piece if isinstance(piece, list) else [piece], operation)
            if self.tracker is not None:
                operation = self.tracker.follow(piece if isinstance(piece, list) else [piece], operation)
            operations.append(operation)
        masks = mask_source(block.body[0], self.binder) if block.synchronizing else None
        at = [piece[0] if isinstance(piece, list) else piece for piece in pieces]
        at.append(block.terminator or block.body[-1])
        finish = self.control.terminator(block)
        if self.tracker is not None:
            finish = self.tracker.follow_terminator(block.terminator, finish)
        park = parking(block.body[0], self.binder, number) if block.parking else None
        bound = BoundBlock(block, operations, at, finish, masks, park)
        self.bound[number] = bound
        return bound

    def _pieces(self, block: BasicBlock) -> tuple[Sequence[Instruction | list[Instruction]], dict[int, native_runs.Function]]:
        """A basic block as single instructions and groups of them, with the compiled functions of groups, by their identity."""
        if not self.fuse:
            return block.body, {}
        pieces: Sequence[Instruction | list[Instruction]] = fusion.partition(block.body, self.geometry.lanes)
        if not self.can_compile or native_runs.compiled(self.program).work[block.index] < native_runs.ENOUGH_WORK:
            return pieces, {}
        if not self.binder.arithmetic.is_real and any(isinstance(piece, list) for piece in pieces):
            # Compiled runs would cut the groups, which are in C already.
            return pieces, {}
        runs = native_runs.compile_block(self.program, block.index, self.binder, self._stays_out)
        functions: dict[int, native_runs.Function] = {}
        if runs:
            pieces = []
            for start, stop in native_runs.pieces_of(len(block.body), runs):
                piece = list(block.body[start:stop])
                if (start, stop) in runs:
                    functions[id(piece)] = runs[start, stop]
                    pieces.append(piece)
                else:
                    pieces.append(piece[0])
        return pieces, functions

    def _stays_out(self, inst: Instruction) -> bool:
        """True for instructions that are not compiled: those that are followed, and those that compute something else than C would."""
        arithmetic = self.binder.arithmetic
        return (self.tracker is not None and self.tracker.follows(inst)) or not (arithmetic.is_real or means_the_same(inst, arithmetic))

    def _note_work(self) -> None:
        """Binds blocks anew that have run often enough to be compiled."""
        if not self.can_compile:
            return
        work = native_runs.compiled(self.program).work
        for number, (executed, before) in enumerate(zip(self.executions, self._noted, strict=True)):
            if executed > before:
                work[number] += (executed - before) * len(self.program.blocks[number].body)
                if work[number] >= native_runs.ENOUGH_WORK and number not in self._often:
                    self._often.add(number)
                    self.bound[number] = None
        self._noted[:] = self.executions

    def follow_with(self, tracker: RegisterTracker | None) -> None:
        """Another tracker from the next basic block on."""
        self.tracker = tracker
        self.bound[:] = [None] * len(self.bound)

    # -- running -----------------------------------------------------------------------------------------------

    def start_wave(self, first_block: int, grid_dim: Dim3, observers: Sequence[Observer]) -> None:
        """Fresh lanes for the blocks from `first_block` on."""
        self.next_block = first_block + self.geometry.blocks
        self.geometry.grid_dim = grid_dim
        self.geometry.numbers[:] = self.geometry.block_numbers(first_block, self.geometry.blocks)
        self.starts = 1
        self.spaces.watch(observers)
        ranked = self.program.names_clusters and self.geometry.cluster_size > 1
        self.spaces.shared.ranks = self.specials.shared_addresses(0, 8) if ranked else None
        if self.clears_registers:
            self.registers.clear()
        self.spaces.shared.clear()
        self.spaces.local.clear()
        self.specials.refresh()
        self.state.reset(self.geometry.padding)
        if self.tracker is not None:
            self.tracker.clear()
        for frames in self.binder.frames.values():
            frames.clear(None)
        self.spaces.output.clear()
        if self.binder.tensor_loads is not None:
            self.binder.tensor_loads.clear()
        engines = self.binder.started_engines
        if engines is not None:
            engines.maps = self.maps
            engines.clear()
        for observer in observers:
            observer.wave_started(self.geometry, self.spaces)

    @property
    def blocks_left(self) -> int:
        """Number of blocks of the grid that have not started."""
        x, y, z = self.geometry.grid_dim
        return x * y * z - self.next_block

    def claim_cluster(self) -> Dim3 | None:
        """Takes the next cluster that has not started out of the grid: the coordinates of its first block."""
        if not self.blocks_left:
            return None
        number = int(self.geometry.block_numbers(self.next_block, 1)[0])
        self.next_block += self.geometry.cluster_size
        x, y, _ = self.geometry.grid_dim
        return number % x, number // x % y, number // (x * y)

    def start_more(self) -> bool:
        """Puts the next blocks of the grid at the places of blocks that have ended; False if there are none."""
        if not self.blocks_left:
            return False
        geometry = self.geometry
        size = geometry.cluster_size
        ended = (self.state.key.reshape(geometry.blocks // size, geometry.stride * size) == EXITED).all(axis=1).repeat(size)
        places = np.flatnonzero(ended)[: self.blocks_left]
        if not len(places):
            return False
        geometry.numbers[places] = geometry.block_numbers(self.next_block, len(places))
        self.next_block += len(places)
        self.starts += 1
        lanes = geometry.lanes_at(places)
        if self.clears_registers:
            self.registers.clear(lanes)
        self.spaces.shared.clear(lanes)
        self.spaces.local.clear(lanes)
        self.specials.refresh()
        self.state.restart(geometry, places)
        if self.tracker is not None:
            self.tracker.clear(lanes)
        for frames in self.binder.frames.values():
            frames.clear(lanes)
        if self.binder.tensor_loads is not None:
            self.binder.tensor_loads.clear(lanes)
        if self.binder.started_engines is not None:
            self.binder.started_engines.clear(lanes)
        for observer in self.spaces.shared.observers:
            observer.blocks_replaced(places)
        return True

    def run(self, schedule: Schedule, step_limit: int) -> int:
        """Runs the wave to its end; returns the number of steps (block executions) taken."""
        state, total = self.state, self.geometry.lanes
        key, bound_blocks, executions = state.key, self.bound, self.executions
        schedule.start(total)
        watch = Watch(self, step_limit)
        attention = watch.attention
        told = self._told_of_blocks()
        steps = moved = next_note = 0
        while True:
            if steps >= attention:
                if watch.attend(steps, moved):
                    schedule.start(total)
                    moved = steps
                attention = watch.attention
                told = self._told_of_blocks()
            engines = self.binder.started_engines
            if engines is not None and engines.copies.pending:
                engines.copies.land_any(schedule.overtake)
            turn = schedule.pick(key)
            if turn is None:
                if engines is not None and engines.go_on():
                    continue
                if int(key.max()) == EXITED and not (key < EXITED).any():
                    return steps
                self.control.explain_standstill(lambda number: self.program.blocks[number].body[0])
            number, until = turn.block, turn.until
            lanes: Lanes | None = turn.lanes if len(turn.lanes) < total else None
            while True:
                if steps >= next_note:
                    self._note_work()
                    next_note = steps + _STEPS_BETWEEN_NOTES
                bound = bound_blocks[number] or self._bind(number)
                if bound.masks is not None:
                    met = self._meet(bound, lanes)
                    if met is not None and not len(met):
                        break
                    if met is not lanes:
                        lanes = met
                    # An observer may have begun to follow registers.
                    bound = bound_blocks[number] or self._bind(number)
                if bound.park is not None:
                    lanes = bound.park(lanes)
                    if lanes is not None and not len(lanes):
                        break
                steps += 1
                if not bound.block.spins:
                    moved = steps
                if steps > step_limit:
                    self._give_up(bound, lanes, steps)
                for tell in told:
                    tell(bound.block, lanes)
                position = 0
                try:
                    if lanes is None:
                        executions[number] += total
                        for full in bound.full:
                            full()
                            position += 1
                    else:
                        executions[number] += len(lanes)
                        for some in bound.some:
                            some(lanes)
                            position += 1
                    number = bound.finish(lanes)
                except MISUSE as error:
                    raise misunderstood(bound.at[position], error) from error
                stay = number < until
                if lanes is not None and (bound.block.polling or (stay and number != AGAIN)):
                    # A poll counts even where it ends the turn anyway: those behind the loop would starve.
                    stay = schedule.keep(bound.block.polling) and stay
                if number == AGAIN:
                    break
                if not stay or steps >= attention:
                    key[... if lanes is None else lanes] = number
                    break

    def _told_of_blocks(self) -> list[Callable[[BasicBlock, Lanes | None], None]]:
        """The observers' methods that do something when a basic block starts."""
        methods = [observer.block_started for observer in self.spaces.shared.observers]
        return [method for method in methods if getattr(method, "__func__", None) is not Observer.block_started]

    def _meet(self, bound: BoundBlock, lanes: Lanes | None) -> Lanes | None:
        """Brings the lanes of each member mask together: returns those that may execute, the others stall."""
        inst = bound.block.body[0]
        if inst.guard is not None:
            # Lanes whose guard does not hold take no part; the mask of the others decides.
            return lanes
        masks = bound.masks
        if lanes is None and uniform(masks) == 0xFFFFFFFF:
            self._observe_meeting(inst, None)
            return None
        key, number = self.state.key, bound.block.index
        everyone = np.arange(self.geometry.lanes) if lanes is None else lanes
        stalled = np.flatnonzero((key == STALLED) & (self.state.resume == number))
        together = np.union1d(everyone, stalled) if len(stalled) else everyone
        wanted = value_at(masks, together).astype(np.uint32)
        own = np.left_shift(np.uint32(1), (together % WARP).astype(np.uint32))
        if (wanted & own == 0).any():
            error = DivergentWarp(
                f"{inst.opcode} is executed by lanes that its member mask leaves out",
                instruction=inst,
                threads=self.geometry.describe(together[wanted & own == 0]),
            )
            # A GPU exchanges values nevertheless; at a barrier it traps.
            if inst.opcode == "bar" or not any(observer.passes(error) for observer in self.spaces.shared.observers):
                raise error
            wanted |= own
        gone = present_words(self.binder, np.flatnonzero(key == EXITED))
        there = present_words(self.binder, together) | gone
        if meets_warpgroup(inst):
            there = whole_groups(self.geometry, there)
        ready = (wanted & ~there[together // WARP]) == 0
        waiting = together[~ready]
        if len(waiting):
            key[waiting] = STALLED
            self.state.any_stalled = True
            self.state.resume[waiting] = number
        met = together[ready]
        if len(met):
            self._observe_meeting(inst, met)
        return None if len(met) == self.geometry.lanes else met

    def _observe_meeting(self, inst: Instruction, lanes: Lanes | None) -> None:
        for observer in self.spaces.shared.observers:
            observer.warp_barrier(inst, lanes)

    def _give_up(self, bound: BoundBlock, lanes: Lanes | None, steps: int) -> None:
        inst = bound.block.terminator or (bound.block.body[-1] if bound.block.body else None)
        who = np.arange(self.geometry.lanes) if lanes is None else lanes
        raise Deadlock(
            f"no end after {steps - 1} steps; the lanes at this place seem to loop forever",
            instruction=inst,
            threads=self.geometry.describe(who),
        )

    # -- counting ----------------------------------------------------------------------------------------------

    def take_counts(self) -> Counter[str]:
        """Instructions executed since the last call, by opcode, summed over lanes (guarded-off ones included)."""
        counts: Counter[str] = Counter()
        for block, executed in zip(self.program.blocks, self.executions, strict=True):
            if executed:
                for inst in block.instructions:
                    counts[inst.opcode] += executed
        self.forget_counts()
        return counts

    def forget_counts(self) -> None:
        """Counts anew from here on."""
        self._note_work()
        self.executions[:] = [0] * len(self.executions)
        self._noted[:] = self.executions
