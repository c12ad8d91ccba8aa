"""Hazards: undefined behaviour of a kernel, even where its result happens to be right."""

from gemmgen.emulator.hazards.detector import HazardDetector
from gemmgen.emulator.hazards.report import (
    EarlyBarrierUse,
    EarlyWarpgroupFence,
    GlobalRace,
    HazardError,
    InactiveShuffle,
    MissedBarrier,
    MissingInitFence,
    MissingProxyFence,
    MissingWarpgroupFence,
    OutlivingAccess,
    SameValue,
    ScopeRace,
    SharedRace,
    UndefinedRegister,
    UnfinishedLaunch,
    UnorderedLaunch,
    UnwrittenRead,
    VolatileRace,
)
from gemmgen.emulator.hazards.undefined import UndefinedRegisters, find_undefined

__all__ = [
    "EarlyBarrierUse",
    "EarlyWarpgroupFence",
    "GlobalRace",
    "HazardDetector",
    "HazardError",
    "InactiveShuffle",
    "MissedBarrier",
    "MissingInitFence",
    "MissingProxyFence",
    "MissingWarpgroupFence",
    "OutlivingAccess",
    "SameValue",
    "ScopeRace",
    "SharedRace",
    "UndefinedRegister",
    "UndefinedRegisters",
    "UnfinishedLaunch",
    "UnorderedLaunch",
    "UnwrittenRead",
    "VolatileRace",
    "find_undefined",
]
