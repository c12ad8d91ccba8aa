"""Places in shared memory: the boxes of tensor maps, and the operands of ``wgmma``."""

from __future__ import annotations

import math

import numpy as np

from gemmgen.emulator import matrix_descriptor
from gemmgen.emulator.engines.boxes import swizzled_addresses
from gemmgen.emulator.ptx.syntax import Instruction, Integer
from gemmgen.hardware.tensor_map import ELEMENT_BYTES, SWIZZLE_SPANS
from gemmgen.kernels.launch import TensorMapArgument

CHUNK_BYTES = 16
PRODUCT_ROWS = 64
PRODUCT_K_BYTES = 32
HALVES = ("f16", "bf16")


def row_bytes(tensor_map: TensorMapArgument) -> int:
    """Bytes of one row of a box."""
    return ELEMENT_BYTES[tensor_map.element] * tensor_map.box[0]


def box_rows(tensor_map: TensorMapArgument) -> int:
    """Rows of a box, of all its planes."""
    return math.prod(tensor_map.box[1:])


def row_pitch(tensor_map: TensorMapArgument) -> int:
    """Bytes from one row of a box to the next in shared memory."""
    return max(row_bytes(tensor_map), SWIZZLE_SPANS[tensor_map.swizzle])


def box_bytes(tensor_map: TensorMapArgument) -> int:
    """Bytes of a box in global memory."""
    return box_rows(tensor_map) * row_bytes(tensor_map)


def box_places(tensor_map: TensorMapArgument, start: int) -> np.ndarray:
    """Addresses of the bytes of a box in shared memory, by row."""
    rows = np.arange(box_rows(tensor_map))[:, None] * row_pitch(tensor_map)
    return swizzled_addresses(start + rows + np.arange(row_bytes(tensor_map)), tensor_map.swizzle)


def operand_chunks(instruction: Instruction, bits: int, which: int) -> tuple[np.ndarray, bool]:
    """Addresses of the chunks of 16 bytes that an operand of a product lies in, and whether they run along its rows, not along k."""
    shape = next((word for word in instruction.modifiers if word.startswith("m64n")), "")
    columns, depth = (int(part) for part in shape[4:].split("k"))
    kinds = [word for word in instruction.modifiers if word != "satfinite"][-3:]
    sparse = instruction.has("sp")
    flags = [operand.value for operand in instruction.operands[6 if sparse else 4 :] if isinstance(operand, Integer)]
    majors = flags[2:] if kinds[1] in HALVES else []
    majors = [0] * (2 - len(majors)) + majors
    extent = (PRODUCT_ROWS, columns)[which]
    transposed = majors[which] == 1
    # Of a sparse A there is half as much as of B.
    along_k = PRODUCT_K_BYTES * (2 if sparse and which == 1 else 1)
    depth = depth // 2 if sparse and which == 0 else depth
    rows, row_chunks = (depth, extent * 2 // CHUNK_BYTES) if transposed else (extent, along_k // CHUNK_BYTES)
    return matrix_descriptor.chunks(matrix_descriptor.decode(bits), rows, row_chunks, not transposed), transposed
