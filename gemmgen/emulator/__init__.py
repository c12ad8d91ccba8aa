"""Executes PTX on the CPU, all lanes of all blocks as NumPy vectors: functional, exact, and stricter than a GPU."""

from gemmgen.emulator.buffers import Buffer, Struct
from gemmgen.emulator.errors import (
    BadAllocation,
    BadLaunch,
    BarrierMisuse,
    ClusterMisuse,
    Deadlock,
    DivergentBarrier,
    DivergentWarp,
    EmulatorError,
    InFlightRead,
    InFlightWrite,
    InvalidCopy,
    InvalidMatrix,
    Misaligned,
    OutOfBounds,
    ParseError,
    ReadOnly,
    RegisterInFlight,
    RegisterPoolMisuse,
    Trapped,
    UnfinishedCopy,
    UnfinishedWgmma,
    UnknownInstruction,
)
from gemmgen.emulator.hazards import (
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
    UnorderedLaunch,
    UnwrittenRead,
    VolatileRace,
)
from gemmgen.emulator.interleavings import ScheduleDependent, launch_interleaved
from gemmgen.emulator.launch import LaunchResult, launch
from gemmgen.emulator.memory import Access, Observer
from gemmgen.emulator.schedule import MinimumBlock, RandomCrowds, RandomWarps, Schedule
from gemmgen.emulator.textures import Texture
from gemmgen.hardware.tensor_map import Im2col, TensorMap

__all__ = [
    "Access", "BadAllocation", "BadLaunch", "BarrierMisuse", "Buffer", "ClusterMisuse", "Deadlock", "DivergentBarrier",
    "DivergentWarp", "EarlyBarrierUse", "EarlyWarpgroupFence", "EmulatorError", "GlobalRace", "HazardError", "Im2col",
    "InFlightRead", "InFlightWrite", "InactiveShuffle", "InvalidCopy", "InvalidMatrix", "LaunchResult", "MinimumBlock",
    "Misaligned", "MissedBarrier", "MissingInitFence", "MissingProxyFence", "MissingWarpgroupFence", "Observer",
    "OutOfBounds", "OutlivingAccess", "ParseError", "RandomCrowds", "RandomWarps", "ReadOnly", "RegisterInFlight",
    "RegisterPoolMisuse", "SameValue", "Schedule", "ScheduleDependent", "ScopeRace", "SharedRace", "Struct", "TensorMap", "Texture",
    "Trapped", "UndefinedRegister", "UnfinishedCopy", "UnfinishedWgmma", "UnknownInstruction", "UnorderedLaunch",
    "UnwrittenRead", "VolatileRace", "launch", "launch_interleaved",
]  # fmt: skip
