"""Hazards: what a kernel must not do even if today's result is right."""

from gemmgen.emulator.hazards.detector import HazardDetector
from gemmgen.emulator.hazards.report import GlobalRace, HazardError, SharedRace, UndefinedRegister, UnwrittenRead
from gemmgen.emulator.hazards.undefined import UndefinedRegisters, find_undefined

__all__ = [
    "GlobalRace", "HazardDetector", "HazardError", "SharedRace", "UndefinedRegister", "UndefinedRegisters", "UnwrittenRead",
    "find_undefined",
]  # fmt: skip
