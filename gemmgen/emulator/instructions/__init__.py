"""One handler an instruction, in files by concern; importing this package fills the table."""

from gemmgen.emulator.instructions import (
    approximate, atomics, bits, compare, convert, floating, half, integer, memory, moves, ordering, packed, warp,
)  # fmt: skip
from gemmgen.emulator.instructions.registry import bind, instruction, opcodes

__all__ = [
    "approximate", "atomics", "bind", "bits", "compare", "convert", "floating", "half", "instruction", "integer",
    "memory", "moves", "opcodes", "ordering", "packed", "warp",
]  # fmt: skip
