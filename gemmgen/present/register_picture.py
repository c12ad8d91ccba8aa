"""The register banks of a compiled main loop, as a picture."""

from __future__ import annotations

from gemmgen.core.errors import GemmgenError
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.pictures import MultiplyAdd, RegisterBanks
from gemmgen.perf.analysis.listing import listing
from gemmgen.perf.analysis.register_banks import BANKS, ffma_cycles, rule_is_known
from gemmgen.toolchain.nvrtc import Binary

NAME = "registers"


def register_picture(binary: Binary, architecture: Architecture) -> RegisterBanks:
    """The FFMAs of a binary's main loop with their operands. Raises ``GemmgenError`` where there are none, or the rule is not known."""
    if not rule_is_known(architecture):
        raise GemmgenError(f"--picture {NAME}: the rule of {architecture.name}'s register banks is not known")
    loop = [one for one in listing(binary) if one.in_main_loop and one.instruction.mnemonic == "FFMA"]
    if not loop:
        raise GemmgenError(f"--picture {NAME}: the main loop has no FFMA")
    instructions = tuple(MultiplyAdd(tuple((read.register, read.reused) for read in one.reads), one.bank_conflict) for one in loop)
    operands = sum(len(one.operands) for one in instructions)
    reused = sum(cached for one in instructions for _, cached in one.operands)
    conflicts = sum(one.conflict for one in instructions)
    shared = "two operands" if ffma_cycles(architecture) == 1 else "three operands"
    notes = (
        f"{len(loop)} FFMAs in the main loop, of which the first are shown, as {architecture.name} issues them; "
        f"{reused} of {operands} operands ({reused / operands:.0%}) are in the reuse cache.",
        f"{conflicts} FFMAs need more than one operand of a bank, which delivers one register a cycle: {shared} of one bank cost a cycle "
        "where neighbours do not spare it.",
    )
    return RegisterBanks("Operands of the main loop by register bank", instructions, BANKS, notes)
