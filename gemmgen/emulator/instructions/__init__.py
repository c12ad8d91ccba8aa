"""One handler an instruction, in files by concern; importing this package fills the table.

A new opcode also needs its modifiers in `forms.py`, and its name in `blocks.py` if lanes wait for each other at it.
"""

from importlib import import_module

from gemmgen.emulator.instructions.registry import bind, instruction, opcodes

for _concern in (
    "approximate",
    "async_copy",
    "atomics",
    "bits",
    "bulk_copy",
    "carry",
    "cluster",
    "compare",
    "convert",
    "floating",
    "half",
    "integer",
    "matrix",
    "mbarrier",
    "memory",
    "moves",
    "multiply",
    "double_product",
    "ordering",
    "packed",
    "runtime",
    "small_floats",
    "stochastic",
    "tensor_maps",
    "texture",
    "video",
    "tensor_memory",
    "tensor_product",
    "warp",
    "wgmma",
    "wmma",
    # Forms for 128 bits, which are asked before the general ones.
    "wide",
    "launch_control",
    # The handlers over other meanings of arithmetic come last: they are asked first.
    "over_field",
):
    import_module(f"{__name__}.{_concern}")

__all__ = ["bind", "instruction", "opcodes"]
