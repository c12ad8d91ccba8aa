"""The result of counting: totals, and the same by line of the source and by instruction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class SharedTraffic:
    """Accesses to shared memory. ``requests`` are instructions executed by a warp with an active lane."""

    requests: int = 0
    wavefronts: int = 0
    conflicts: int = 0
    """Wavefronts beyond one for each group of lanes that is served together."""
    ideal: int = 0
    """The fewest wavefronts that could have moved as many words."""

    def __add__(self, other: SharedTraffic) -> SharedTraffic:
        return SharedTraffic(
            self.requests + other.requests,
            self.wavefronts + other.wavefronts,
            self.conflicts + other.conflicts,
            self.ideal + other.ideal,
        )

    def to_json(self) -> dict[str, Any]:
        return {"requests": self.requests, "wavefronts": self.wavefronts, "conflicts": self.conflicts, "ideal": self.ideal}


@dataclass(frozen=True, slots=True)
class GlobalTraffic:
    """Accesses to global memory. ``requests`` are instructions executed by a warp with an active lane."""

    requests: int = 0
    sectors: int = 0
    """Distinct pieces of 32 bytes, counted for each request."""
    ideal: int = 0
    """Sectors if the bytes of each request lay side by side."""
    bytes: int = 0
    """Distinct bytes, counted for each request."""

    @property
    def efficiency(self) -> float:
        """The part of the sectors' bytes that was asked for; 1 where there are no sectors."""
        return self.bytes / (32 * self.sectors) if self.sectors else 1.0

    def __add__(self, other: GlobalTraffic) -> GlobalTraffic:
        return GlobalTraffic(
            self.requests + other.requests, self.sectors + other.sectors, self.ideal + other.ideal, self.bytes + other.bytes
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "sectors": self.sectors,
            "ideal": self.ideal,
            "bytes": self.bytes,
            "efficiency": round(self.efficiency, 4),
        }


@dataclass(frozen=True, slots=True)
class TensorWork:
    """Products of warpgroups. ``operations`` are instructions executed by a warpgroup."""

    operations: int = 0
    shared_bytes: int = 0
    """Bytes that they read from shared memory."""

    def __add__(self, other: TensorWork) -> TensorWork:
        return TensorWork(self.operations + other.operations, self.shared_bytes + other.shared_bytes)

    def to_json(self) -> dict[str, Any]:
        return {"operations": self.operations, "shared_bytes": self.shared_bytes}


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a piece of a kernel.

    ``shared_memory`` and ``global_memory`` have an entry for each kind of access that occurs: ``load``, ``store``,
    ``ldmatrix``, ``stmatrix``, ``cp.async`` (its reads of global and its writes of shared memory), ``atomic``; of shared memory
    ``cluster load`` and ``cluster store``, those of .shared::cluster, which go over the network of the cluster; of global memory
    ``bulk load`` and ``bulk store``, a request for each copy by TMA.
    ``tensor`` has an entry ``wgmma`` where warpgroups multiply. ``instructions`` counts executions by warps, by class.
    """

    shared_memory: Mapping[str, SharedTraffic] = field(default_factory=dict)
    global_memory: Mapping[str, GlobalTraffic] = field(default_factory=dict)
    instructions: Mapping[str, int] = field(default_factory=dict)
    tensor: Mapping[str, TensorWork] = field(default_factory=dict)

    @property
    def shared_loads(self) -> int:
        """Wavefronts of reads from shared memory into registers."""
        return self._wavefronts("load", "ldmatrix", "cluster load")

    @property
    def shared_stores(self) -> int:
        """Wavefronts of writes of threads to shared memory, including copies."""
        return self._wavefronts("store", "stmatrix", "cp.async", "cluster store")

    def _wavefronts(self, *kinds: str) -> int:
        return sum(self.shared_memory[kind].wavefronts for kind in kinds if kind in self.shared_memory)

    @property
    def shared_total(self) -> SharedTraffic:
        """All accesses to shared memory; of atomics only the requests."""
        return sum(self.shared_memory.values(), SharedTraffic())

    @property
    def global_total(self) -> GlobalTraffic:
        """All accesses to global memory."""
        return sum(self.global_memory.values(), GlobalTraffic())

    @property
    def total_instructions(self) -> int:
        """Executions by warps of all classes."""
        return sum(self.instructions.values())

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            _merged(self.shared_memory, other.shared_memory),
            _merged(self.global_memory, other.global_memory),
            _merged(self.instructions, other.instructions),
            _merged(self.tensor, other.tensor),
        )

    def to_json(self) -> dict[str, Any]:
        tensor = {"tensor": {kind: work.to_json() for kind, work in sorted(self.tensor.items())}} if self.tensor else {}
        return {
            "shared_memory": {kind: traffic.to_json() for kind, traffic in sorted(self.shared_memory.items())},
            "global_memory": {kind: traffic.to_json() for kind, traffic in sorted(self.global_memory.items())},
            "instructions": dict(sorted(self.instructions.items())),
            **tensor,
        }


@dataclass(frozen=True, slots=True)
class SiteCounters:
    """Counts of one PTX instruction that accesses shared or global memory."""

    ptx_line: int
    ptx: str
    file: str
    line: int
    tally: Tally

    def to_json(self) -> dict[str, Any]:
        return {"ptx_line": self.ptx_line, "ptx": self.ptx, "file": self.file, "line": self.line, **self.tally.to_json()}


@dataclass(frozen=True, slots=True)
class LineCounters:
    """Counts of one line of the CUDA source; line 0 stands for instructions without a line."""

    file: str
    line: int
    text: str
    """The line itself, where the source is known."""
    tally: Tally

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "text": self.text, **self.tally.to_json()}


@dataclass(frozen=True, slots=True)
class Counters:
    """Costs of all launches that an observer saw."""

    total: Tally
    lines: tuple[LineCounters, ...]
    sites: tuple[SiteCounters, ...]
    barriers: int
    """Number of times that a whole block was released from a barrier."""

    @property
    def memory_lines(self) -> tuple[LineCounters, ...]:
        """The lines that access shared or global memory, or have tensor cores do so."""
        return tuple(line for line in self.lines if line.tally.shared_memory or line.tally.global_memory or line.tally.tensor)

    def to_json(self) -> dict[str, Any]:
        """Totals and lines; the instructions that make up a line are left to ``sites``."""
        return {"total": self.total.to_json(), "barriers": self.barriers, "lines": [line.to_json() for line in self.lines]}


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """All counts together."""
    return reduce(Tally.__add__, tallies, Tally())


Value = TypeVar("Value", SharedTraffic, GlobalTraffic, TensorWork, int)


def _merged(first: Mapping[str, Value], second: Mapping[str, Value]) -> dict[str, Value]:
    merged = dict(first)
    for kind, value in second.items():
        merged[kind] = merged[kind] + value if kind in merged else value
    return merged
