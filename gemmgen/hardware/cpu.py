"""Processors that native kernels are written for: vector registers, compiler flags, and the architectures that this machine can run.

The x86-64 levels are those of the x86-64 psABI, section 3.1.1 (micro-architecture levels).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class CpuArchitecture:
    """Resources of one core for a micro-kernel."""

    name: str
    machine: str
    """Answer of ``uname -m`` on a machine of this kind."""
    lanes: int
    """float32 elements of one vector register."""
    registers: int
    """Architectural vector registers."""
    masks: bool
    """True if loads and stores can leave out lanes."""
    compiler_flags: tuple[str, ...]
    """Flags of GCC and Clang."""
    zig_target: str
    """The triple by which Zig's C compiler knows it."""
    zig_flags: tuple[str, ...]
    features: frozenset[str]
    """Names in ``/proc/cpuinfo`` that a machine must have beside being of this kind."""

    @property
    def dot_columns(self) -> int:
        """Columns of a product up to which long sums are dot products: they would leave half of a vector's lanes unused."""
        return max(4, self.lanes // 2)

    @property
    def vector_bytes(self) -> int:
        return 4 * self.lanes


_V3 = frozenset({"avx2", "fma", "bmi2", "f16c"})

CPU_ARCHITECTURES: dict[str, CpuArchitecture] = {
    architecture.name: architecture
    for architecture in (
        CpuArchitecture("x86_64_v3", "x86_64", 8, 16, True, ("-march=x86-64-v3",), "x86_64-linux-gnu", ("-mcpu=x86_64_v3",), _V3),
        CpuArchitecture(
            "x86_64_v4",
            "x86_64",
            16,
            32,
            True,
            ("-march=x86-64-v4",),
            "x86_64-linux-gnu",
            ("-mcpu=x86_64_v4",),
            _V3 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
        ),
        CpuArchitecture("aarch64", "aarch64", 4, 32, False, ("-march=armv8-a",), "aarch64-linux-gnu", (), frozenset({"asimd"})),
    )
}
"""Oldest first within a kind of machine."""


def cpu_architecture(name: str) -> CpuArchitecture:
    """The architecture called ``name``. Raises ``SpecError``."""
    architecture = CPU_ARCHITECTURES.get(name)
    if architecture is None:
        raise SpecError(f"{name!r} is no CPU architecture; there are {', '.join(CPU_ARCHITECTURES)}")
    return architecture


@cache
def host_features() -> frozenset[str]:
    """Features of this machine's processor, by the names that ``/proc/cpuinfo`` uses; empty where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features")))
    return frozenset(next(flags, []))


def runs_here(wanted: CpuArchitecture) -> bool:
    """True if this machine executes code for ``wanted``."""
    return platform.machine().lower() in (wanted.machine, {"x86_64": "amd64", "aarch64": "arm64"}[wanted.machine]) and (
        wanted.features <= host_features()
    )


def best_architecture() -> CpuArchitecture | None:
    """The newest architecture whose code this machine executes; None if there is none."""
    return next((architecture for architecture in reversed(CPU_ARCHITECTURES.values()) if runs_here(architecture)), None)


@cache
def host_name() -> str:
    """The processor's name, as ``/proc/cpuinfo`` has it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
