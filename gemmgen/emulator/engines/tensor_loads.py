"""Registers that loads of tensor memory are going to write: nobody may touch them before the wait of their warp. The first use
is reported where somebody looks for hazards, and ends the warp's loads: the launch continues with the loaded value.

A move copies such a register together with its state, since a compiler may move registers around at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.engines.tensor_memory import TensorWatch
from gemmgen.emulator.engines.warpgroups import accesses_of, connected, is_move
from gemmgen.emulator.geometry import WARP, Geometry, Lanes
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Instruction, registers_of
from gemmgen.emulator.registers import RegisterFile


class TensorLoads:
    """The registers in flight, one flag a warp."""

    def __init__(
        self, geometry: Geometry, registers: RegisterFile, blocks: Sequence[BasicBlock], end_loads: Callable[[Lanes], None]
    ) -> None:
        """``end_loads`` ends the loads of the warps of lanes."""
        self.geometry, self.registers, self.end_loads = geometry, registers, end_loads
        results = {r.name: r for block in blocks for inst in block.body if _is_load(inst) for r in registers_of(inst.operands[0])}
        names = connected(blocks, results)
        self._position = {name: position for position, name in enumerate(names)}
        self._in_flight = np.zeros((len(names), geometry.lanes // WARP), np.bool_)
        self._loads: dict[int, Instruction] = {}
        """The latest load of each register, by position."""
        self._any = False
        self.watch: TensorWatch | None = None

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh lanes (None: all)."""
        self._in_flight[:, ... if lanes is None else np.unique(lanes // WARP)] = False

    def loaded(self, inst: Instruction, lanes: Lanes) -> None:
        """Warps have started a load."""
        warps = np.unique(lanes // WARP)
        for register in registers_of(inst.operands[0]):
            position = self._position[register.name]
            self._in_flight[position, warps] = True
            self._loads[position] = inst
        self._any = True

    def waited(self, lanes: Lanes) -> None:
        """Warps have waited for their loads."""
        self._in_flight[:, np.unique(lanes // WARP)] = False
        self._any = bool(self._in_flight.any())

    def follow(self, instructions: Sequence[Instruction], operation: Operation) -> Operation:
        """The operation of these instructions, with a look at registers in flight before it."""
        uses = [use for inst in instructions if (use := self._use(inst)) is not None]
        if not uses:
            return operation
        full, some = operation
        everyone = np.arange(self.geometry.lanes)

        def follow_full() -> None:
            if self._any:
                self._check(uses, everyone)
            full()

        def follow_some(lanes: Lanes) -> None:
            if self._any:
                self._check(uses, lanes)
            some(lanes)

        return Operation(follow_full, follow_some)

    def _use(self, inst: Instruction) -> tuple[Instruction, list[int], list[int]] | None:
        reads, writes = accesses_of(inst)
        positions = [[self._position[name] for name in dict.fromkeys(names) if name in self._position] for names in (reads, writes)]
        return (inst, positions[0], positions[1]) if positions[0] or positions[1] else None

    def _check(self, uses: Sequence[tuple[Instruction, list[int], list[int]]], lanes: Lanes) -> None:
        for inst, reads, writes in uses:
            acting = lanes
            if inst.guard is not None:
                acting = lanes[self.registers.row(inst.guard, "pred")[lanes] != inst.guard_negated]
            if not len(acting):
                continue
            warps = acting // WARP
            if is_move(inst) and reads and writes:
                self._in_flight[writes[0], warps] = self._in_flight[reads[0], warps]
                if reads[0] in self._loads:
                    self._loads[writes[0]] = self._loads[reads[0]]
                continue
            for position in (*reads, *writes):
                bad = acting[self._in_flight[position, warps]]
                if len(bad):
                    name = next(name for name, its in self._position.items() if its == position)
                    doing = "read" if position in reads else "written"
                    message = f"{name} is {doing} while a tcgen05.ld in flight has yet to write it: tcgen05.wait::ld has to come first"
                    if self.watch is not None:
                        self.watch.used_early(inst, self._loads[position], bad, message)
                    self._in_flight[position, bad // WARP] = False
                    self.end_loads(bad)


def _is_load(inst: Instruction) -> bool:
    return inst.opcode == "tcgen05" and inst.modifiers[0] == "ld"


def loads_of(blocks: Sequence[BasicBlock]) -> bool:
    """True if there are loads of tensor memory."""
    return any(_is_load(inst) for block in blocks for inst in block.body)
