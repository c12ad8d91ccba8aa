"""Products on tensor memory (``tcgen05``) in numbers: kinds of instructions and their descriptors."""

from __future__ import annotations

ROWS = 128
"""Rows of an instruction's result: a lane of tensor memory each."""
BUFFERS = 2
"""Sets of sums in tensor memory."""
COLUMNS = 32
"""Columns of results that a thread holds at a time."""
EPILOGUE_WARPS = 4
WARPS = EPILOGUE_WARPS + 2
"""Warps of a block: those that finish results, one that copies, one that multiplies."""
TENSOR_COLUMNS = 512
FORMATS = {"f16": 0, "bf16": 1, "tf32": 2, "u8": 0, "s8": 1, "e4m3": 0, "e5m2": 1}
"""Codes of types in an instruction descriptor (PTX ISA, "Instruction descriptor")."""
KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "u8": "i8", "s8": "i8", "e4m3": "f8f6f4", "e5m2": "f8f6f4"}
PAIRS = "products of pairs of blocks"
"""Products of floats that no published model of the bits covers (docs/tensor_core_numerics.md)."""
DEEP_PRODUCTS = "products of 96 values of k"
"""Another kind that no published model covers."""
UNITS = {"f16": "f16", "tf32": "tf32", "i8": "int8", "f8f6f4": "fp8"}
"""Peaks of a device that the kinds run at."""


def instruction_form(type_a: str, type_b: str, rows: int, columns: int, *, along_m: bool = False, along_n: bool = False) -> int:
    """The instruction descriptor: types, sizes, and whether A runs along m and B along n instead of k."""
    sums = 2 if KINDS[type_a] == "i8" else 1
    sizes = columns >> 3 << 17 | rows >> 4 << 24
    return sums << 4 | FORMATS[type_a] << 7 | FORMATS[type_b] << 10 | along_m << 15 | along_n << 16 | sizes


def allocated_columns(used: int) -> int:
    """Columns of tensor memory that a block allocates for ``used`` ones: a power of two from 32."""
    return max(32, 1 << (used - 1).bit_length())
