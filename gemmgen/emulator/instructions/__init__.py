"""One handler an instruction, in files by concern; importing this package fills the table, but for `registry.LATER`.

A new opcode also needs its modifiers in `forms.py`, and its name in `blocks.py` if lanes wait for each other at it.
"""

from importlib import import_module

from gemmgen.emulator.instructions.registry import bind, instruction, load_later, opcodes


def _load(file: str) -> None:
    import_module(f"{__name__}.{file}")


load_later(_load)
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
    "mbarrier",
    "memory",
    "moves",
    "ordering",
    "packed",
    "runtime",
    "small_floats",
    "stochastic",
    "warp",
    # Forms for 128 bits, which are asked before the general ones.
    "wide",
):
    _load(_concern)

__all__ = ["bind", "instruction", "opcodes"]
