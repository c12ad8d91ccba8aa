"""Copies as Nsight Compute counts them where their cost differs.

Of `cp.async`, the instrumented counters agree with the hardware's rule but for two properties of single instructions. Of a copy whose
condition is in the predicate register P0 (`LDGSTS … , P0`) they take every lane alike; conditions in P1 to P6 they read. Which register
a copy has is in its machine code: the copies of a kernel stand there in the order of its PTX. And sectors of `.cg` they merge between two
neighbouring lanes only, where the hardware's own counter merges them among eight.

Of TMA, sectors of loads are those that come to shared memory: of the whole box, filled elements included, in each block that
it goes to, and once more those of which only a part lies in the array. Sectors of stores are those of each row of a box by itself.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import Any

import numpy as np

from gemmgen.emulator.counters import CounterObserver
from gemmgen.emulator.counters.costs import SECTOR_BYTES, copied_sectors, copy_costs
from gemmgen.emulator.memory import Access
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.toolchain.sass import disassemble, parse

_COPY = re.compile(r"\bcp\.async\.c[ag]\.")


class CopySites(CounterObserver):
    """Counts as every observer does, and each site of a copy once more as if its condition were in P0."""

    def __init__(self) -> None:
        super().__init__()
        self.difference: Counter[int] = Counter()
        """By line of the PTX: wavefronts that a condition in P0 adds."""
        self.sectors_of_pairs = 0
        """Sectors that are added if they are merged in pairs of lanes only."""
        self.boxes: Counter[str] = Counter()
        """Sectors of TMA's boxes, loaded and stored."""

    def of_worker(self) -> CopySites:
        return CopySites()

    def observed(self) -> Any:
        return super().observed(), dict(self.difference), self.sectors_of_pairs, dict(self.boxes)

    def absorb(self, observed: Any, program: Program) -> None:
        counted, difference, pairs, boxes = observed
        super().absorb(counted, program)
        self.difference.update(difference)
        self.sectors_of_pairs += pairs
        self.boxes.update(boxes)

    def box_moved(self, instruction: Instruction, kind: str, rows: np.ndarray, unit: int, blocks: int) -> None:
        if kind == "load":
            padded = np.full((len(rows), -(-rows.shape[1] * unit // SECTOR_BYTES) * (SECTOR_BYTES // unit)), -1, np.int64)
            padded[:, : rows.shape[1]] = rows
            inside = (padded >= 0).reshape(-1, SECTOR_BYTES // unit)
            in_part = inside.any(axis=1) & ~inside.all(axis=1)
            self.boxes["load"] += blocks * (len(inside) + int(np.count_nonzero(in_part)))
        else:
            sectors = np.sort(np.where(rows < 0, -1, rows // SECTOR_BYTES), axis=1)
            fresh = sectors >= 0
            fresh[:, 1:] &= sectors[:, 1:] != sectors[:, :-1]
            self.boxes["store"] += int(np.count_nonzero(fresh))

    def _count_copy(self, access: Access, sources: np.ndarray, destinations: np.ndarray, filled: np.ndarray) -> None:
        super()._count_copy(access, sources, destinations, filled)
        if access.instruction.has("cg"):
            read = np.where(filled, -1, sources)
            self.sectors_of_pairs += int((copied_sectors(read, 2) - copied_sectors(read)).sum())
        if access.instruction.has("cg") and access.copy_form != "whole":
            plain, first = (
                copy_costs(sources, destinations, filled, access.width, access.copy_form, True, first_predicate=first)
                for first in (False, True)
            )
            self.difference[access.instruction.line] += int(first.wavefronts.sum()) - int(plain.wavefronts.sum())

    def profiled(self, binary: Binary, predicted: dict[str, int]) -> dict[str, int]:
        """The numbers that the profiler should show for these copies where they differ from the prediction."""
        found = {}
        for name, boxes in (("TMA load sectors", self.boxes["load"]), ("TMA store sectors", self.boxes["store"])):
            if boxes:
                found[name] = boxes
        sites = [number for number, line in enumerate(binary.ptx.splitlines(), 1) if _COPY.search(line)]
        conditions = _conditions(binary.cubin) if sites else ()
        if sites and len(sites) == len(conditions):
            of_first = (site for site, condition in zip(sites, conditions, strict=True) if condition == "P0")
            found["copy wavefronts"] = predicted["copy wavefronts"] + sum(self.difference[site] for site in of_first)
        if sites:
            found["copy sectors"] = predicted["copy sectors"] + self.sectors_of_pairs
        return {name: number for name, number in found.items() if number != predicted[name]}


@functools.lru_cache
def _conditions(cubin: bytes) -> tuple[str, ...]:
    """The last operand of each copy in machine code, in order."""
    code = parse(disassemble(cubin, line_info=False))
    return tuple(inst.operands[-1].lstrip("!") for inst in code if inst.mnemonic == "LDGSTS")
