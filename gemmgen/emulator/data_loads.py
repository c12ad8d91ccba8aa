"""Observations of a kernel's run for claims about all data: the instructions that read data, and the bytes that instructions touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.emulator.accessed_bytes import AccessedBytes
from gemmgen.emulator.fused_access import FusedAccess
from gemmgen.emulator.memory import GLOBAL_BASE, Access, GlobalSpace, Observer, Region, Space
from gemmgen.emulator.ptx.syntax import Instruction


class DataLoads(Observer):
    """Notes which instructions read the arrays that hold residues, and the bytes that each instruction touches."""

    def __init__(self, names: set[str], *, bytes_too: bool = False, given: Sequence[tuple[str, int, int]] = ()) -> None:
        """``given``: bytes (first, past the last) of arrays that are no data though they feed floating-point instructions."""
        self._names, self._bytes_too, self._given = names, bytes_too, given
        self.sees_parameters = bytes_too or bool(given)
        self._of_given: dict[int, bool] = {}
        self._beside: dict[int, tuple[int, int]] = {}
        """Bytes (first, past the last) of the arrays that instructions read last and that hold no data."""
        self.instructions: dict[int, Instruction] = {}
        self.bytes_of: dict[int, AccessedBytes] = {}
        """Bytes by the identity of instructions."""

    def accessed(self, space: Space, access: Access, lanes: object, addresses: npt.NDArray[Any]) -> None:
        if self._bytes_too and len(addresses):
            self.bytes_of.setdefault(id(access.instruction), AccessedBytes()).add(type(space).__name__, addresses, access.width)
        if self._given and isinstance(space, GlobalSpace) and access.kind == "load" and len(addresses):
            inside = self._lies_in_given(space, np.asarray(addresses, np.int64))
            self._of_given[id(access.instruction)] = inside and self._of_given.get(id(access.instruction), True)
        if (
            not isinstance(space, GlobalSpace)
            or access.kind == "store"
            or id(access.instruction) in self.instructions
            or not len(addresses)
        ):
            return
        first = int(addresses[0]) - GLOBAL_BASE
        begin, end = self._beside.get(id(access.instruction), (0, 0))
        if begin <= first < end:
            return
        met = next((region for region in space.regions if region.start <= first < region.stop), None)
        if met is not None and self._is_data(met):
            self.instructions[id(access.instruction)] = access.instruction
        elif met is not None:
            self._beside[id(access.instruction)] = (met.start, met.stop)

    def plan(self, space: Space, fused: FusedAccess) -> bool:
        access, region = fused.access, fused.region
        if self._bytes_too or self._given or not isinstance(access, Access):
            return False
        if isinstance(space, GlobalSpace) and access.kind != "store" and isinstance(region, Region) and self._is_data(region):
            self.instructions[id(access.instruction)] = access.instruction
        return True

    def _is_data(self, region: Region) -> bool:
        return not self._names.isdisjoint(region.name.split("/"))

    @property
    def of_given(self) -> frozenset[int]:
        """Loads, by identity, that read nothing but given bytes."""
        return frozenset(inst for inst, inside in self._of_given.items() if inside)

    def _lies_in_given(self, space: GlobalSpace, addresses: npt.NDArray[np.int64]) -> bool:
        places = addresses - GLOBAL_BASE
        starts = {region.name: region.start for region in space.regions}
        inside = np.zeros(len(places), np.bool_)
        for name, first, stop in self._given:
            if name in starts:
                inside |= (places >= starts[name] + first) & (places < starts[name] + stop)
        return bool(inside.all())
