"""The order of additions of a kernel, as a hash that two runs share if and only if they add up in the same order.

The emulator runs the kernel with sums that commute and do not associate (`gemmgen.emulator.arithmetic.TREE`). Elements follow
from their coordinates alone, so that instances of any layout and tile get the same rows of A and columns of B.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS
from gemmgen.emulator import residues
from gemmgen.emulator.arithmetic import TREE
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.kernels.planning import plan as plan_of
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.case_arrays import CaseMemory

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def summation_tree(plan: KernelPlan, dimensions: dict[str, int], rows: int = 1, columns: int = 8) -> str:
    """Hashes of the first elements of C, in hexadecimal; the plan has neither an epilogue nor alpha and beta. Raises ``LaunchError``."""
    if plan.architecture.compute_capability < (8, 0):
        # Before sm_80, results are rounded to bfloat16 by integer instructions on real bits.
        plan = plan_of(plan.spec, "sm_80")
    case = Case("summation tree", dimensions)
    memory = {array.name: CaseMemory.of(array, case) for array in plan.sequence.arrays if array.role != "workspace"}
    for name in ("A", "B"):
        piece = memory[name]
        word = _WORDS[ELEMENTS[piece.array.type].bytes]
        piece.view.view(word)[...] = _codes(name, piece.view.shape).astype(word)
    for name in memory.keys() & {"scales_a", "scales_b"}:
        piece = memory[name]
        piece.view.view(_WORDS[ELEMENTS[piece.array.type].bytes])[...] = 1
    buffers = {name: piece.buffer for name, piece in memory.items()}
    EmulatorBackend(hazards=False, arithmetic=TREE).run(compile_plan(plan), plan.sequence, dimensions, {}, buffers)
    piece = memory["C"]
    values = np.ascontiguousarray(piece.view[..., :rows, :columns])
    words = values.view(_WORDS[values.itemsize])
    narrow = words.astype(np.uint32) >> np.uint32(8 * values.itemsize - 8)
    codes = residues.narrowed(words, 8) if piece.array.type == "f32" else narrow
    return codes.astype(np.uint8).tobytes().hex()


def _codes(name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """31 bits for each element, from its row and column; 1 where tf32 would see nothing."""
    lines, k = np.arange(shape[-2], dtype=np.uint64)[:, None], np.arange(shape[-1], dtype=np.uint64)[None, :]
    if name == "B":
        lines, k = k, lines
    line, depth = np.broadcast_arrays(lines, k)
    mixed = residues.opaque(name, [line.reshape(-1), depth.reshape(-1)]).reshape(line.shape)
    return np.broadcast_to(mixed | np.uint32(0x02020202 & 0x7FFFFFFF), shape)
