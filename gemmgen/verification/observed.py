"""Observations of a kernel's run for claims about all data: the instructions that read data, and the bytes that instructions touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.emulator import Observer
from gemmgen.emulator.memory import GLOBAL_BASE, Access, GlobalSpace, Space
from gemmgen.emulator.program import Program, link
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.kernels.family import KernelPlan
from gemmgen.toolchain.nvrtc import Binary


class DataLoads(Observer):
    """Notes which instructions read the arrays that hold residues, and the bytes that each instruction touches."""

    def __init__(self, names: set[str], *, bytes_too: bool = False) -> None:
        self._names, self._bytes_too = names, bytes_too
        self.found: dict[int, Instruction] = {}
        self.bytes_of: dict[int, set[tuple[str, int]]] = {}
        """Addresses by the identity of instructions, each with its kind of memory."""

    def accessed(self, space: Space, access: Access, lanes: Any, addresses: npt.NDArray[Any]) -> None:
        if self._bytes_too and len(addresses):
            touched = np.unique(np.asarray(addresses, np.int64)[:, None] + np.arange(access.width))
            kind = type(space).__name__
            self.bytes_of.setdefault(id(access.instruction), set()).update((kind, byte) for byte in touched.tolist())
        if not isinstance(space, GlobalSpace) or access.kind == "store" or id(access.instruction) in self.found or not len(addresses):
            return
        first = int(addresses[0]) - GLOBAL_BASE
        regions = space.regions
        if any(region.start <= first < region.stop and region.name in self._names for region in regions):
            self.found[id(access.instruction)] = access.instruction


def programs_of(plan: KernelPlan, binary: Binary) -> list[Program]:
    """The programs of an instance's launches, in their order."""
    text = binary.ptx if isinstance(binary.ptx, str) else binary.ptx.decode()
    return [link(text, launch.entry) for launch in plan.sequence.launches]
