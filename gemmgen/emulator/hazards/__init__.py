"""Hazards: what a kernel must not do even if today's result is right."""

from gemmgen.emulator.hazards.detector import HazardDetector
from gemmgen.emulator.hazards.report import (
    EarlyWarpgroupFence,
    GlobalRace,
    HazardError,
    MissedBarrier,
    MissingWarpgroupFence,
    SameValue,
    ScopeRace,
    SharedRace,
    UndefinedRegister,
    UnwrittenRead,
    VolatileRace,
)
from gemmgen.emulator.hazards.undefined import UndefinedRegisters, find_undefined

__all__ = [
    "EarlyWarpgroupFence", "GlobalRace", "HazardDetector", "HazardError", "MissedBarrier", "MissingWarpgroupFence", "SameValue",
    "ScopeRace", "SharedRace", "UndefinedRegister", "UndefinedRegisters", "UnwrittenRead", "VolatileRace", "find_undefined",
]  # fmt: skip
