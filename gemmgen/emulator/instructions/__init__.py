"""One handler an instruction, in files by concern; importing this package fills the table."""

from importlib import import_module

from gemmgen.emulator.instructions.registry import bind, instruction, opcodes

for _concern in (
    "approximate", "async_copy", "atomics", "bits", "carry", "compare", "convert", "floating", "half", "integer", "matrix", "memory",
    "moves", "multiply", "ordering", "packed", "warp",
):  # fmt: skip
    import_module(f"{__name__}.{_concern}")

__all__ = ["bind", "instruction", "opcodes"]
