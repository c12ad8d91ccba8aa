"""Registers that warpgroups hand to each other: setmaxnreg (PTX ISA, "Miscellaneous Instructions").

A block gets registers for all of its threads at the count that the kernel was compiled for. A warpgroup that lowers its count gives the
difference to the block's pool, one that raises its count waits until the pool has enough. The compiler's register count is not in the PTX.
It is assumed to be all registers of an SM, divided among the blocks and threads of the kernel's launch bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmgen.emulator.errors import RegisterPoolMisuse, UnknownInstruction
from gemmgen.emulator.geometry import WARP, Geometry, Lanes
from gemmgen.emulator.memory import Observer
from gemmgen.emulator.ptx.syntax import Instruction, Integer

SM_REGISTERS = 65536
"""32-bit registers of an SM (CUDA programming guide, technical specifications by compute capability)."""
_UNIT = 8
_MOST = 255 // _UNIT * _UNIT
_WARPS = 4
"""Warps of a warpgroup, which must all execute the instruction."""


def granted(directives: dict[str, tuple[int, ...]], threads: int) -> int:
    """Registers a thread that the compiler may use, in multiples of eight as the hardware hands them out."""
    if "maxnreg" in directives:
        return -(-directives["maxnreg"][0] // _UNIT) * _UNIT
    bound = directives.get("maxntid") or directives.get("reqntid")
    most = int(np.prod(bound)) if bound else threads
    blocks = directives.get("minnctapersm", (1,))[0]
    return min(SM_REGISTERS // (-(-most // WARP) * WARP * blocks) // _UNIT * _UNIT, _MOST)


def register_count(inst: Instruction) -> int:
    """The count that setmaxnreg asks for: 24 to 256, a multiple of 8 (PTX ISA)."""
    operand = inst.operands[0]
    if not isinstance(operand, Integer) or not 24 <= operand.value <= 256 or operand.value % _UNIT:
        raise UnknownInstruction("setmaxnreg takes a constant from 24 to 256 that is a multiple of 8", instruction=inst)
    return operand.value


class RegisterPool:
    """Registers that each warp holds and each block's pool has left. `wake` lets warps that wait for registers try again."""

    def __init__(self, geometry: Geometry, directives: dict[str, tuple[int, ...]], wake: Callable[[Lanes], None]) -> None:
        self.geometry = geometry
        self._granted = granted(directives, geometry.threads)
        self._wake = wake
        self.held = np.full(geometry.lanes // WARP, self._granted, np.int64)
        self.free = np.zeros(geometry.blocks, np.int64)
        self._counts: dict[int, list[int]] = {}
        """Counts that each warp has asked for, one after the other."""
        self._latest: dict[int, Instruction] = {}
        """The latest setmaxnreg of each warp."""

    def clear(self, lanes: Lanes | None = None) -> None:
        """Fresh blocks (None: all)."""
        self.held[... if lanes is None else np.unique(lanes // WARP)] = self._granted
        self.free[... if lanes is None else np.unique(lanes // self.geometry.stride)] = 0
        if lanes is None:
            self._counts.clear()
            self._latest.clear()
            return
        for warp in np.unique(lanes // WARP).tolist():
            self._counts.pop(warp, None)
            self._latest.pop(warp, None)

    def decrease(self, inst: Instruction, lanes: Lanes, count: int) -> None:
        """Warps release registers beyond a count."""
        warps = np.unique(lanes // WARP)
        if (self.held[warps] < count).any():
            self._fail(f"setmaxnreg.dec to {count} where a thread holds {int(self.held[warps].min())} registers", inst, lanes)
        blocks = warps // self.geometry.warps_per_block
        np.add.at(self.free, blocks, (self.held[warps] - count) * WARP)
        self.held[warps] = count
        self._note(inst, warps, count)
        for block in np.unique(blocks).tolist():
            self._wake(self.geometry.lanes_at(np.array([block])))

    def may_increase(self, inst: Instruction, lanes: Lanes, count: int) -> np.ndarray:
        """Lanes whose warps find enough registers in the pool, and then have them."""
        granted_to = np.zeros(len(self.held), np.bool_)
        for warp in np.unique(lanes // WARP).tolist():
            held = int(self.held[warp])
            if held > count:
                self._fail(f"setmaxnreg.inc to {count} where a thread holds {held} registers already", inst, lanes[lanes // WARP == warp])
            block = warp // self.geometry.warps_per_block
            wanted = (count - held) * WARP
            if wanted <= self.free[block]:
                self.free[block] -= wanted
                self.held[warp] = count
                self._note(inst, np.array([warp]), count)
                granted_to[warp] = True
        granted: np.ndarray = granted_to[lanes // WARP]
        return granted

    def _note(self, inst: Instruction, warps: np.ndarray, count: int) -> None:
        for warp in warps.tolist():
            self._counts.setdefault(warp, []).append(count)
            self._latest[warp] = inst

    def blocks_ended(self, places: Sequence[int], observers: Sequence[Observer]) -> None:
        """Blocks have no living thread. Reports to observers if the warps of a warpgroup have asked for different counts."""
        size = self.geometry.warps_per_block
        for place in places:
            for first in range(place * size, place * size + size, _WARPS):
                warps = range(first, min(first + _WARPS, place * size + size))
                differs = next((warp for warp in warps if self._counts.get(warp, []) != self._counts.get(first, [])), None)
                if differs is None:
                    continue
                asked = [_listed(self._counts.get(warp, [])) for warp in (first, differs)]
                message = (
                    f"all warps of a warpgroup have to execute the same setmaxnreg: of warps {first % size} to {warps[-1] % size}, "
                    f"warp {first % size} has asked for {asked[0]}, warp {differs % size} for {asked[1]}"
                )
                inst = next(self._latest[warp] for warp in (differs, first) if warp in self._latest)
                for observer in observers:
                    observer.registers_misused(message, inst, np.arange(differs * WARP, (differs + 1) * WARP))

    def explain(self, block: int, lanes: Lanes, inst: Instruction) -> str:
        """Reason that these lanes wait for registers."""
        count = register_count(inst)
        warps = np.unique(lanes // WARP)
        wanted = int(((count - self.held[warps]) * WARP).sum())
        return (
            f"for registers: {len(warps)} warps want {count} registers a thread, {wanted} more in all; the block's pool has "
            f"{int(self.free[block])} left (the kernel is compiled for {self._granted} registers a thread)"
        )

    def _fail(self, message: str, inst: Instruction, lanes: Lanes) -> None:
        raise RegisterPoolMisuse(message, instruction=inst, threads=self.geometry.describe(lanes))


def _listed(counts: list[int]) -> str:
    """Counts of registers in words."""
    return "nothing" if not counts else ", then ".join(map(str, counts)) + " registers"
