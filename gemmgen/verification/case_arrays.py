"""The memory that a case gives a kernel: arrays with their gaps, offsets and poison, and the bytes that may be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, numpy_type, to_elements
from gemmgen.core.errors import PlanError, Reason
from gemmgen.kernels.family import Case, InstancePlan
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.runtime.backend import HostBuffer
from gemmgen.verification.oracle import oracle_of

MAX_CASE_BYTES = 2**29
"""Memory of one case's arrays and workspace, beyond which it is not run: copies, references in float64 and the emulator's records of
every byte take some twenty times as much."""

POISON = 0xFF
"""Every byte of memory that holds no input; as a float it is a NaN."""


def case_bytes(plan: InstancePlan, case: Case) -> int:
    """Bytes of a case's arrays, gaps included, and of its workspace."""
    total = plan.sequence.workspace_bytes.evaluate(case.dimensions)
    for array in plan.sequence.arrays:
        if array.role != "workspace":
            total += _elements(array, case) * ELEMENTS[array.type].bytes
    return total


def require_memory(plan: InstancePlan, cases: Sequence[Case]) -> None:
    """Raises ``PlanError`` if a case needs more than ``MAX_CASE_BYTES``: a spec's alignments and fixed sizes can make problems huge."""
    for case in cases:
        needed = case_bytes(plan, case)
        if needed > MAX_CASE_BYTES:
            sizes = " ".join(f"{name}={value}" for name, value in case.dimensions.items())
            got = f"{needed / 2**30:.3g} GiB for the case {case.name!r} ({sizes})"
            need = f"at most {MAX_CASE_BYTES / 2**30:g} GiB"
            hint = "a spec that promises or fixes less has smaller cases"
            raise PlanError(f"{plan.name} cannot be verified:", [Reason("case_arrays", "", got, need, hint)])


def _elements(array: ArrayArgument, case: Case) -> int:
    """From an array's first element to its last."""
    shape = [extent.evaluate(case.dimensions) for extent in array.shape]
    strides = [stride.evaluate(case.dimensions) for stride in array.strides]
    return 0 if 0 in shape else 1 + sum((extent - 1) * abs(stride) for extent, stride in zip(shape, strides, strict=True))


@dataclass
class CaseMemory:
    """The memory of one array argument in one case, and the array inside it."""

    array: ArrayArgument
    buffer: HostBuffer
    view: npt.NDArray[Any]

    @classmethod
    def of(cls, array: ArrayArgument, case: Case) -> CaseMemory:
        """Poisoned memory, no larger than from the array's first element to its last."""
        shape = tuple(extent.evaluate(case.dimensions) for extent in array.shape)
        strides = tuple(stride.evaluate(case.dimensions) for stride in array.strides)
        size = _elements(array, case)
        element = numpy_type(array.type)
        storage = np.full(size * element.itemsize, POISON, np.uint8).view(element)
        byte_strides = [stride * element.itemsize for stride in strides]
        # Along a negative stride, the first element is the last one in memory.
        origin = sum((extent - 1) * -min(stride, 0) for extent, stride in zip(shape, strides, strict=True)) if size else 0
        view = np.lib.stride_tricks.as_strided(storage[origin:], shape, byte_strides)
        offset = case.offsets.get(array.name, 0) * ELEMENTS[array.type].bytes
        unread = array.needed is not None and case.scalars.get(array.needed) == 0
        initialised = array.reads and not unread
        origin_bytes = origin * element.itemsize
        flags = _element_bytes(view, storage.nbytes, origin_bytes) if initialised and view.size < size else None
        return cls(array, HostBuffer(storage, offset, initialised, flags, origin_bytes), view)

    def fill(self, values: npt.NDArray[Any]) -> None:
        """Puts ``values`` into the array, rounded to its type."""
        self.view[...] = to_elements(self.array.type, values)

    def stray_write(self, before: npt.NDArray[Any], written: bool) -> str:
        """Changes where there must be none: in an input, and in the gaps of an output."""
        changed = self.buffer.storage.view(np.uint8) != before.view(np.uint8)
        if written:
            changed &= ~_element_bytes(self.view, changed.size, self.buffer.origin_bytes)
        if not changed.any():
            return ""
        first = int(np.flatnonzero(changed)[0])
        what = "between its elements" if written else "although it is an input"
        return f"{self.array.name} was written {what}, {first} bytes from its start"


def _element_bytes(view: npt.NDArray[Any], size: int, origin: int) -> npt.NDArray[np.bool_]:
    """A flag for each of ``size`` bytes, of which the view's first is at ``origin``: true if it belongs to an element."""
    flags = np.zeros(size, np.bool_)
    if view.size:
        np.lib.stride_tricks.as_strided(flags[origin:], (*view.shape, view.itemsize), (*view.strides, 1))[...] = True
    return flags


def prepare_case(plan: InstancePlan, case: Case) -> dict[str, CaseMemory]:
    """The memory of every array argument of ``plan``, inputs filled by the family, everything else poisoned.

    The same case always gets the same contents. Raises ``PlanError`` if it needs too much memory.
    """
    require_memory(plan, [case])
    memory = {array.name: CaseMemory.of(array, case) for array in plan.sequence.arrays if array.role != "workspace"}
    for index, (name, piece) in enumerate(memory.items()):
        if piece.array.reads:
            piece.fill(oracle_of(plan.spec.kind).fill(plan, case, name, piece.view.shape, case.generator(index)))
    return memory
