"""The control codes of a compiled main loop, as a picture."""

from __future__ import annotations

from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.pictures import IssueSlot, LoopCode
from gemmgen.perf.analysis.control_flow import INSTRUCTION_BYTES
from gemmgen.perf.analysis.listing import ListedInstruction, listing
from gemmgen.perf.analysis.machine_code import INSTRUCTION_CACHE_BYTES
from gemmgen.present.drawing.code import SHOWN
from gemmgen.toolchain.nvrtc import Binary

NAME = "code"

_KINDS = (
    ("tensor core", ("mma",)),
    ("multiply-add", ("fma", "float64")),
    ("shared memory", ("load shared", "store shared")),
    ("global memory", ("load global", "store global", "copy", "load local", "store local")),
    ("integer", ("integer", "compare", "move", "conversion")),
    ("control", ("branch", "barrier", "wait", "fence")),
)


def loop_picture(binary: Binary) -> LoopCode:
    """The instructions of a binary's main loop with their control codes. Raises ``GemmgenError`` where nothing loops."""
    loop = [one for one in listing(binary) if one.in_main_loop]
    if not loop:
        raise GemmgenError(f"--picture {NAME}: the kernel has no loop")
    slots = tuple(_slot(one) for one in loop)
    size = len(slots) * INSTRUCTION_BYTES
    cycles = sum(max(1, slot.stall) for slot in slots)
    useful = sum(slot.kind in ("multiply-add", "tensor core") for slot in slots)
    fits = (
        "fits into the cache"
        if size <= INSTRUCTION_CACHE_BYTES
        else "does not fit into the cache: the rest is fetched from the next level in every iteration"
    )
    notes = (
        f"{useful} of {len(slots)} instructions are multiply-adds; by its control codes one warp goes round in {cycles} cycles, if no "
        f"barrier makes it wait: {sum(bool(slot.waits) for slot in slots)} instructions wait for one, "
        f"{sum(bool(slot.sets) for slot in slots)} set one.",
        f"The loop {fits}.",
        *([f"The first {SHOWN:,} of {len(slots):,} instructions are drawn."] if len(slots) > SHOWN else []),
    )
    return LoopCode(
        "The main loop by its control codes", slots, size, "first-level instruction cache (Volta's)", INSTRUCTION_CACHE_BYTES, notes
    )


def _slot(one: ListedInstruction) -> IssueSlot:
    kind = next((name for name, starts in _KINDS if one.kind.startswith(starts)), "other")
    reused = sum(".reuse" in operand for operand in one.instruction.operands)
    if one.annotation is None:
        return IssueSlot(one.instruction.mnemonic, kind, 1, (), (), reused)
    control = one.annotation.control
    sets = tuple(barrier for barrier in (control.read_barrier, control.write_barrier) if barrier is not None)
    return IssueSlot(one.instruction.mnemonic, kind, control.stall, control.waits, sets, reused)
