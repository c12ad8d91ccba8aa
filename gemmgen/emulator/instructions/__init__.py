"""One handler an instruction, in files by concern; importing this package fills the table.

What Hopper adds fits beside this, one new file each:

- `mbarrier`: phase and pending counts live in the shared memory that the kernel names; `try_wait` is an instruction that
  yields a predicate, and blocks that contain it count as polling (`blocks.py` does that already).
- `cp.async.bulk` and its tensor form: `InFlight.issue` takes the copy (an `index` a piece instead of a lane), and what lands
  it is the phase of an mbarrier in place of a group. The tensor map is a 128-byte parameter, decoded at binding.

A new opcode also needs its modifiers in `forms.py`, and its name in `blocks.py` if lanes wait for each other at it.
"""

from importlib import import_module

from gemmgen.emulator.instructions.registry import bind, instruction, opcodes

for _concern in (
    "approximate", "async_copy", "atomics", "bits", "carry", "compare", "convert", "floating", "half", "integer", "matrix", "memory",
    "moves", "multiply", "ordering", "packed", "warp", "wgmma",
):  # fmt: skip
    import_module(f"{__name__}.{_concern}")

__all__ = ["bind", "instruction", "opcodes"]
